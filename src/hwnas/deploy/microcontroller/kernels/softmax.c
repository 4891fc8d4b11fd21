static void softmax(const int8_t *x, int8_t *y, const uint32_t *exponentials, int64_t inverse,
                    int32_t zero, int rows, int columns)
{
    for (int r = 0; r < rows; r++, x += columns, y += columns) {
        int32_t most = -128;
        uint32_t sum = 0;
        for (int c = 0; c < columns; c++)
            most = x[c] > most ? x[c] : most;
        for (int c = 0; c < columns; c++)
            sum += exponentials[most - x[c]];
        int64_t share = inverse / sum;
        for (int c = 0; c < columns; c++) {
            int64_t value = (int64_t)exponentials[most - x[c]] * share + ((int64_t)1 << 45);
            y[c] = clip8((int32_t)(value >> 46) + zero);
        }
    }
}
