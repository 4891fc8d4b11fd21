/* One row of the output; rows are those of the input that the kernel meets. The bias has the zero
   point of the input times the sum of the weights taken off. */
static void convolve_depthwise(const int8_t *const *rows, int8_t *y, const int8_t *weights,
                               const int32_t *bias, const int32_t *multiplier, const int8_t *shift,
                               const int8_t *table, int32_t zero_y, int32_t zero_x, int width,
                               int channels, int out_width, int kernel_height, int kernel_width,
                               int stride, int pad, int dilation)
{
    for (int ox = 0; ox < out_width; ox++)
        for (int c = 0; c < channels; c++) {
            int32_t sum = 0;
            for (int ky = 0; ky < kernel_height; ky++)
                for (int kx = 0; kx < kernel_width; kx++) {
                    int ix = ox * stride - pad + kx * dilation;
                    int outside = !rows[ky] || ix < 0 || ix >= width;
                    sum += (outside ? zero_x : rows[ky][ix * channels + c])
                           * weights[(ky * kernel_width + kx) * channels + c];
                }
            *y++ = finish(sum, c, bias, multiplier, shift, table, zero_y);
        }
}
