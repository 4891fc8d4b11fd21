static void normalise(const int8_t *x, int8_t *y, const int32_t *gamma, const int32_t *beta,
                      int64_t epsilon, int32_t zero, int rows, int width)
{
    for (int r = 0; r < rows; r++, x += width, y += width) {
        int32_t sum = 0, squares = 0;
        for (int i = 0; i < width; i++) {
            sum += x[i];
            squares += x[i] * x[i];
        }
        int64_t spread = (int64_t)width * squares - (int64_t)sum * sum + epsilon;
        int64_t inverse = ((int64_t)1 << 46) / root(spread << 24);
        for (int i = 0; i < width; i++) {
            int64_t centred = ((x[i] * width - sum) * inverse) >> 18;
            int64_t value = centred * gamma[i] + (int64_t)beta[i] * 65536 + ((int64_t)1 << 27);
            int64_t result = value >> 28;
            y[i] = clip8((int32_t)(result < -512 ? -512 : result > 512 ? 512 : result) + zero);
        }
    }
}
