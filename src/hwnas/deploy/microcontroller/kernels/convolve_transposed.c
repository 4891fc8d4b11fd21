/* Gathers for each place of the output the places of the input whose kernels reach it. */
static void convolve_transposed(const int8_t *x, int8_t *y, const int8_t *weights,
                                const int32_t *bias, const int32_t *multiplier,
                                const int8_t *shift, const int8_t *table, int32_t zero_y,
                                int32_t zero_x, int height, int width, int inputs, int out_height,
                                int out_width, int outputs, int kernel_height, int kernel_width,
                                int stride_y, int stride_x, int pad_y, int pad_x)
{
    for (int oy = 0; oy < out_height; oy++)
        for (int ox = 0; ox < out_width; ox++)
            for (int o = 0; o < outputs; o++) {
                const int8_t *w = weights + o * kernel_height * kernel_width * inputs;
                int32_t sum = 0;
                for (int ky = 0; ky < kernel_height; ky++)
                    for (int kx = 0; kx < kernel_width; kx++, w += inputs) {
                        int sy = oy + pad_y - ky, sx = ox + pad_x - kx;
                        if (sy < 0 || sx < 0 || sy % stride_y || sx % stride_x)
                            continue;
                        int iy = sy / stride_y, ix = sx / stride_x;
                        if (iy >= height || ix >= width)
                            continue;
                        const int8_t *at = x + (iy * width + ix) * inputs;
                        for (int i = 0; i < inputs; i++)
                            sum += (at[i] - zero_x) * w[i];
                    }
                *y++ = finish(sum, o, bias, multiplier, shift, table, zero_y);
            }
}
