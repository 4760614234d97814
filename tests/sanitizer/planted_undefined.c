/* A test that overflows a signed integer. */
#ifndef WEFT_PLAIN_RUNNER
#define WEFT_PLAIN_RUNNER
#endif
#include "tests/harness.h"

#include <limits.h>

Test(planted, undefined)
{
    volatile int x = INT_MAX;
    x = x + 1;
    cr_expect(x || !x);
}
