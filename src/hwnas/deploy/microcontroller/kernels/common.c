#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if INT_MAX < 2147483647 || -1 >> 1 != -1
#error "the code needs an int of 32 bits, and >> that keeps the sign of negative numbers"
#endif

static inline int8_t clip8(int32_t value)
{
    return (int8_t)(value < -128 ? -128 : value > 127 ? 127 : value);
}

/* sum * multiplier * 2^-shift, ties rounded up */
static inline int32_t scaled(int32_t sum, int32_t multiplier, int8_t shift)
{
    int64_t product = (int64_t)sum * multiplier + ((int64_t)1 << (shift - 1));
    int64_t result = product >> shift;
    return (int32_t)(result < -65536 ? -65536 : result > 65536 ? 65536 : result);
}
