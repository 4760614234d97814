/* A test that reads one byte past a block. */
#ifndef WEFT_PLAIN_RUNNER
#define WEFT_PLAIN_RUNNER
#endif
#include "tests/harness.h"

Test(planted, overflow)
{
    volatile size_t size = 16;
    volatile char *p = malloc(size);
    cr_assert_not_null((void *)p);
    p[0] = 1;
    char c = p[size];
    free((void *)p);
    cr_expect(c || !c);
}
