/* One of several inputs side by side, from value start on in each row. */
static void concatenate(const int8_t *x, int8_t *y, const int8_t *values, int start, int width,
                        int rows, int total)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++, x++)
            y[r * total + start + i] = values ? values[*x + 128] : *x;
}
