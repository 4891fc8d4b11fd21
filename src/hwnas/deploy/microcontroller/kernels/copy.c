static void copy(const int8_t *x, int8_t *y, int size)
{
    for (int i = 0; i < size; i++)
        y[i] = x[i];
}
