/* The harness itself: what it says when tests pass, fail and skip. The failing tests are in another program, because
 * this one must pass. */
#include "tests/harness.h"
#include "tests/support/process.h"

#include <string.h>

static int inits, finis;

static void count_init(void)
{
    inits++;
}

static void count_fini(void)
{
    finis++;
}

TestSuite(harness_fixture, .init = count_init, .fini = count_fini);

Test(harness_fixture, suite_init_runs_before_the_body)
{
    cr_assert_eq(inits, finis + 1, "inits %d, finis %d", inits, finis);
}

Test(harness_fixture, and_again_for_the_next_test)
{
    cr_assert_eq(inits, finis + 1);
}

Test(harness, every_check_accepts_what_is_true)
{
    int x = 3;
    const char *null_string = NULL;
    cr_assert(x == 3);
    cr_assert(x == 3, "with a message %d", x);
    cr_assert_not(x == 4);
    cr_assert_eq(x, 3);
    cr_assert_neq(x, 4);
    cr_assert_lt(x, 4);
    cr_assert_le(x, 3);
    cr_assert_leq(x, 3);
    cr_assert_gt(x, 2);
    cr_assert_ge(x, 3);
    cr_assert_geq(x, 3);
    cr_assert_null(null_string);
    cr_assert_not_null(&x);
    cr_assert_str_eq("a", "a");
    cr_assert_str_neq("a", "b");
    cr_assert_float_eq(1.0, 1.05, 0.1);
    cr_assert_float_neq(1.0, 1.2, 0.1);
    cr_assert_arr_eq("abc", "abd", 2);
    cr_assert_arr_neq("abc", "abd", 3);
    cr_expect(x == 3, "and the same for expect");
    cr_expect_eq(x, 3);
    cr_expect_le(x, 3);
    cr_expect_str_eq("a", "a", "%s", "message");
}

static const char *set_text(const char **text)
{
    *text = "set by the check";
    return *text;
}

static int count_call(int *calls)
{
    return ++*calls;
}

Test(harness, a_message_is_evaluated_after_a_failed_check_only)
{
    const char *text = NULL;
    int calls = 0;
    cr_assert(set_text(&text), "%s %d", text, count_call(&calls));
    cr_expect_eq(calls, 0);
}

Test(harness, a_disabled_test_does_not_run, .disabled = true)
{
    cr_assert_fail("must not run");
}

Test(harness, the_plain_runner_counts_and_says_what_failed)
{
    struct ts_result r = ts_run(ts_program("tests/harness/plain_sample"));
    cr_assert_eq(r.status, 1, "exit status %d", r.status);
    cr_expect(strstr(r.out, "1 passed, 1 failed, 2 skipped"), "output:\n%s", r.out);
    cr_expect(strstr(r.out, "failed: 1 + 1 == 3: the first of 2\n"), "output:\n%s", r.out);
    cr_expect(strstr(r.out, "\"left\"\n  \"right\""), "output:\n%s", r.out);
    cr_expect(strstr(r.out, "sample/skips: skipped: because it must\n"), "output:\n%s", r.out);
    cr_expect(strstr(r.out, "init called\n"), "output:\n%s", r.out);
    cr_expect(strstr(r.out, "fini called\n"), "a failed test still runs .fini:\n%s", r.out);
    cr_expect_null(strstr(r.out, "not reached"), "output:\n%s", r.out);
    ts_result_free(&r);
}

Test(harness, the_plain_runner_takes_a_filter)
{
    struct ts_result r = ts_run(ts_program("tests/harness/plain_sample"), "sample/pass");
    cr_expect_eq(r.status, 0);
    cr_expect_str_eq(r.out, "1 passed, 0 failed, 0 skipped\n");
    ts_result_free(&r);
    r = ts_run(ts_program("tests/harness/plain_sample"), "no such test");
    cr_expect_eq(r.status, 2, "a filter that matches nothing is not a success");
    ts_result_free(&r);
}
