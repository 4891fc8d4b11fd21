/* One row of the output; rows are those of the input that the kernel meets. */
static void pool(const int8_t *const *rows, int8_t *y, int largest, int32_t multiplier,
                 int8_t shift, int32_t zero_x, int32_t zero_y, int width, int channels,
                 int out_width, int kernel_height, int kernel_width, int stride, int pad)
{
    for (int ox = 0; ox < out_width; ox++)
        for (int c = 0; c < channels; c++) {
            int32_t sum = 0, most = -128;
            for (int ky = 0; ky < kernel_height; ky++)
                for (int kx = 0; kx < kernel_width; kx++) {
                    int ix = ox * stride - pad + kx;
                    if (!rows[ky] || ix < 0 || ix >= width)
                        continue;
                    int32_t value = rows[ky][ix * channels + c];
                    sum += value - zero_x;
                    most = value > most ? value : most;
                }
            *y++ = clip8(largest ? most : scaled(sum, multiplier, shift) + zero_y);
        }
}
