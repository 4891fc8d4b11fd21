/* Start of a program on the emulated boards mps2, and its way to print and to stop (semihosting). */
#include <stdint.h>

extern uint32_t stack_top, bss_start, bss_end;

int main(void);

static int32_t semihosting(int32_t operation, const void *argument)
{
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void print(const char *text)
{
    semihosting(0x04, text);
}

static void reset(void)
{
    for (uint32_t *word = &bss_start; word < &bss_end; word++)
        *word = 0;
    main();
    semihosting(0x18, (const void *)0x20026); /* the program ends */
}

static void fault(void)
{
    print("fault\n");
    semihosting(0x18, (const void *)0x20023); /* a run-time error */
}

__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    &stack_top, (const void *)reset, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault,
};
