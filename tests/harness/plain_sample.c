/* A suite for the plain runner in which tests pass, fail, skip and are disabled; test_harness.c reads what it prints.
 */
#ifndef WEFT_PLAIN_RUNNER
#define WEFT_PLAIN_RUNNER
#endif
#include "tests/harness.h"

static void note_init(void)
{
    puts("init called");
}

static void note_fini(void)
{
    puts("fini called");
}

Test(sample, passes)
{
    cr_assert(true);
}

Test(sample, asserts, .init = note_init, .fini = note_fini)
{
    cr_expect_eq(1 + 1, 3, "the first of %d", 2);
    cr_assert_str_eq("left", "right");
    puts("not reached");
}

Test(sample, skips)
{
    cr_skip_test("because %s", "it must");
    puts("not reached");
}

Test(sample, disabled, .disabled = true)
{
    puts("not reached");
}
