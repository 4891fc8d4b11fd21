/* Runs a network on images, and prints the clock ticks and the outputs of each. */
#include "images.h"

#define TIMER ((volatile uint32_t *)0x40000000) /* counts down, 25 million times a second */

void print(const char *text);

static void print_number(uint32_t number, int digits)
{
    char text[9];
    for (int i = 0; i < digits; i++)
        text[i] = "0123456789abcdef"[number >> 4 * (digits - 1 - i) & 15];
    text[digits] = 0;
    print(text);
}

#ifdef ROW
static void prepare(const uint8_t *image)
{
    (void)image;
}

static const int8_t *run(const uint8_t *image)
{
    const int8_t *outputs = 0;
    for (int i = 0; i < IMAGE_BYTES; i += ROW_BYTES)
        outputs = ROW(image + i);
    return outputs;
}
#else
static void prepare(const uint8_t *image)
{
    uint8_t *to = PIXELS();
    for (int i = 0; i < IMAGE_BYTES; i++)
        to[i] = image[i];
}

static const int8_t *run(const uint8_t *image)
{
    (void)image;
    return RUN();
}
#endif

int main(void)
{
    for (int image = 0; image < IMAGES; image++) {
        prepare(images[image]);
        TIMER[0] = 0;
        TIMER[2] = TIMER[1] = 0xffffffff;
        TIMER[0] = 1;
        const int8_t *outputs = run(images[image]);
        uint32_t ticks = 0xffffffff - TIMER[1];
        print_number(ticks, 8);
        print(" ");
        for (int i = 0; i < OUTPUTS; i++)
            print_number((uint8_t)outputs[i], 2);
        print("\n");
    }
    return 0;
}
