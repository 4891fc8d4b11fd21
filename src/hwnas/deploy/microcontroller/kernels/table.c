static void table(const int8_t *x, int8_t *y, const int8_t *values, int size)
{
    for (int i = 0; i < size; i++)
        y[i] = values[x[i] + 128];
}
