static void permute(const int8_t *x, int8_t *y, int a, int b, int c, int d, int step_a, int step_b,
                    int step_c, int step_d)
{
    for (int i = 0; i < a; i++)
        for (int j = 0; j < b; j++)
            for (int k = 0; k < c; k++)
                for (int l = 0; l < d; l++)
                    *y++ = x[i * step_a + j * step_b + k * step_c + l * step_d];
}
