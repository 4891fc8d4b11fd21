static int64_t root(int64_t value)
{
    int64_t result = 0;
    for (int64_t bit = (int64_t)1 << 60; bit; bit >>= 2) {
        if (value >= result + bit) {
            value -= result + bit;
            result = (result >> 1) + bit;
        } else {
            result >>= 1;
        }
    }
    return result;
}
