/* One row of the output; rows are those of the input that the kernel meets. The bias has the zero
   point of the input times the sum of the weights taken off. */
static void convolve(const int8_t *const *rows, int8_t *y, const int8_t *weights,
                     const int32_t *bias, const int32_t *multiplier, const int8_t *shift,
                     const int8_t *table, int32_t zero_y, int32_t zero_x, int width, int inputs,
                     int out_width, int outputs, int kernel_height, int kernel_width, int stride,
                     int pad, int dilation, int groups)
{
    int in_group = inputs / groups, out_group = outputs / groups;
    for (int ox = 0; ox < out_width; ox++)
        for (int o = 0; o < outputs; o++) {
            int from = o / out_group * in_group;
            const int8_t *w = weights + o * kernel_height * kernel_width * in_group;
            int32_t sum = 0;
            for (int ky = 0; ky < kernel_height; ky++)
                for (int kx = 0; kx < kernel_width; kx++, w += in_group) {
                    int ix = ox * stride - pad + kx * dilation;
                    if (!rows[ky] || ix < 0 || ix >= width) {
                        for (int i = 0; i < in_group; i++)
                            sum += zero_x * w[i];
                        continue;
                    }
                    const int8_t *at = rows[ky] + ix * inputs + from;
                    for (int i = 0; i < in_group; i++)
                        sum += at[i] * w[i];
                }
            *y++ = finish(sum, o, bias, multiplier, shift, table, zero_y);
        }
}
