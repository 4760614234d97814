/* A test that passes and leaks: shows that leak detection sees into suites built with the plain runner. */
#ifndef WEFT_PLAIN_RUNNER
#define WEFT_PLAIN_RUNNER
#endif
#include "tests/harness.h"

static void *volatile held;

Test(planted, leak)
{
    held = malloc(4321);
    cr_assert_not_null(held);
    held = NULL;
}
