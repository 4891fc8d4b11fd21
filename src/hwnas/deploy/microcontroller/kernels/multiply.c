static void multiply(const int8_t *a, const int8_t *b, int8_t *y, int32_t multiplier, int8_t shift,
                     int32_t zero_a, int32_t zero_b, int32_t zero_y, int size, int period)
{
    for (int i = 0; i < size; i += period)
        for (int j = 0; j < period; j++) {
            int32_t product = (a[i + j] - zero_a) * (b[j] - zero_b);
            y[i + j] = clip8(scaled(product, multiplier, shift) + zero_y);
        }
}
