static void pixels(const int8_t *x, int8_t *y, const int8_t *values, int size, int channels)
{
    for (int i = 0; i < size; i += channels)
        for (int c = 0; c < channels; c++)
            y[i + c] = values[256 * c + (uint8_t)x[i + c]];
}
