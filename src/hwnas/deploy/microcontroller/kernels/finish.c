static inline int8_t finish(int32_t sum, int channel, const int32_t *bias, const int32_t *multiplier,
                            const int8_t *shift, const int8_t *table, int32_t zero)
{
    int8_t value = clip8(scaled(sum + bias[channel], multiplier[channel], shift[channel]) + zero);
    return table ? table[value + 128] : value;
}
