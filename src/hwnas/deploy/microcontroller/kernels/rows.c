/* The rows of a map that a kernel meets, NULL beyond its edges; row y is kept at place y % kept. */
static void rows_at(const int8_t **rows, const int8_t *x, int first, int dilation, int count,
                    int height, int bytes, int kept)
{
    for (int i = 0; i < count; i++) {
        int y = first + i * dilation;
        rows[i] = y < 0 || y >= height ? NULL : x + y % kept * bytes;
    }
}
