static void reduce(const int8_t *x, int8_t *y, int largest, int32_t multiplier, int8_t shift,
                   int32_t zero_x, int32_t zero_y, int outer, int size, int inner)
{
    for (int o = 0; o < outer; o++, x += size * inner)
        for (int i = 0; i < inner; i++) {
            int32_t sum = 0, most = -128;
            for (int j = 0; j < size; j++) {
                int32_t value = x[j * inner + i];
                sum += value - zero_x;
                most = value > most ? value : most;
            }
            *y++ = clip8(largest ? most : scaled(sum, multiplier, shift) + zero_y);
        }
}
