/* The bias has the zero point of the input times the sum of the weights taken off. */
static void linear(const int8_t *x, int8_t *y, const int8_t *weights, const int32_t *bias,
                   const int32_t *multiplier, const int8_t *shift, const int8_t *table,
                   int32_t zero_y, int rows, int inputs, int outputs)
{
    for (int r = 0; r < rows; r++, x += inputs) {
        const int8_t *w = weights;
        for (int o = 0; o < outputs; o++) {
            int32_t sum = 0;
            for (int i = 0; i < inputs; i++)
                sum += x[i] * *w++;
            *y++ = finish(sum, o, bias, multiplier, shift, table, zero_y);
        }
    }
}
