static void multiply_matrices(const int8_t *a, const int8_t *b, int8_t *y, int32_t multiplier,
                              int8_t shift, int32_t zero_a, int32_t zero_b, int32_t zero_y,
                              int batch, int rows, int inner, int columns)
{
    for (int n = 0; n < batch; n++, b += inner * columns)
        for (int r = 0; r < rows; r++, a += inner)
            for (int c = 0; c < columns; c++) {
                int32_t sum = 0;
                for (int i = 0; i < inner; i++)
                    sum += (a[i] - zero_a) * (b[i * columns + c] - zero_b);
                *y++ = clip8(scaled(sum, multiplier, shift) + zero_y);
            }
}
