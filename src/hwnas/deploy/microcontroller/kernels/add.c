static void add(const int8_t *a, const int8_t *b, int8_t *y, int32_t multiplier_a,
                int32_t multiplier_b, int shift, int32_t zero_a, int32_t zero_b, int32_t zero_y,
                int size, int period)
{
    int32_t half = (int32_t)((1u << shift) >> 1);
    for (int i = 0; i < size; i += period)
        for (int j = 0; j < period; j++) {
            int32_t sum = (a[i + j] - zero_a) * multiplier_a + (b[j] - zero_b) * multiplier_b;
            y[i + j] = clip8(((sum + half) >> shift) + zero_y);
        }
}
