/* The one test header: Criterion's macros, or with WEFT_PLAIN_RUNNER a small runner inside one process.
 *
 * Criterion does not start under ThreadSanitizer, and its forks hide leaks from LeakSanitizer; sanitizer builds
 * therefore define WEFT_PLAIN_RUNNER and link tests/plain_runner.c. Every suite compiles both ways, so it may use only
 * what both offer:
 *
 *   Test(suite, name, .init = f, .fini = f, .description = "...", .disabled = true) { ... }
 *   TestSuite(suite, .init = f, .fini = f)
 *   cr_assert*, cr_expect* with: nothing (a condition), _not, _eq, _neq, _lt, _le, _gt, _ge, _null, _not_null,
 *       _str_eq, _str_neq, _float_eq, _float_neq, _arr_eq, _arr_neq; each with an optional printf message at the end
 *   cr_assert_fail, cr_expect_fail, cr_skip_test, cr_log_info: an optional printf message
 *
 * A format must be a string literal. cr_assert ends the test, cr_expect notes the failure and goes on; both belong to
 * the thread that runs the test. In the plain runner all tests of a suite share one process, so a test leaves no state
 * behind. Working directory: the root of the repository. */
#ifndef WEFT_TESTS_HARNESS_H
#define WEFT_TESTS_HARNESS_H

/* The same in both, so that a suite does not lean on what one of them happens to bring. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef WEFT_PLAIN_RUNNER

#include <criterion/criterion.h>

/* The short names of <= and >=; Criterion itself has the long ones. */
#define cr_assert_le cr_assert_leq
#define cr_assert_ge cr_assert_geq
#define cr_expect_le cr_expect_leq
#define cr_expect_ge cr_expect_geq

#else

struct th_options {
    void (*init)(void);
    void (*fini)(void);
    const char *description;
    double timeout; /* accepted, not enforced: whoever starts the suite limits it as a whole */
    bool disabled;
};

/* suite == NULL closes nothing; entries live in static memory of the suite and are linked by constructors. */
struct th_test {
    const char *suite, *name; /* name NULL: the options of the whole suite */
    void (*body)(void);
    struct th_options options;
    struct th_test *next;
};

/* Called by constructors before main. t stays owned by the caller and is linked into the runner's list. */
void th_register(struct th_test *t);
/* Notes a failed check and, when fatal, leaves the running test. */
void th_fail(bool fatal, const char *file, int line, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Leaves the running test and counts it as skipped. */
void th_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void th_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define TH_JOIN2(a, b) a##_##b
#define TH_JOIN(a, b) TH_JOIN2(a, b)

#define Test(Suite, Name, ...)                                                                                         \
    static void th_body_##Suite##_##Name(void);                                                                        \
    static struct th_test th_test_##Suite##_##Name = {#Suite, #Name, th_body_##Suite##_##Name, {__VA_ARGS__}, NULL};   \
    __attribute__((constructor)) static void th_add_##Suite##_##Name(void)                                             \
    {                                                                                                                  \
        th_register(&th_test_##Suite##_##Name);                                                                        \
    }                                                                                                                  \
    static void th_body_##Suite##_##Name(void)

#define TestSuite(Suite, ...)                                                                                          \
    static struct th_test th_suite_##Suite = {#Suite, NULL, NULL, {__VA_ARGS__}, NULL};                                \
    __attribute__((constructor)) static void th_add_suite_##Suite(void)                                                \
    {                                                                                                                  \
        th_register(&th_suite_##Suite);                                                                                \
    }                                                                                                                  \
    struct th_test /* lets the user's semicolon end a declaration */

/* A message is evaluated only after its check failed, so it may use what the check has set. The leading space keeps an
 * absent message from being an empty format; the runner drops it. */
#define TH_CHECK(fatal, ok, what, ...) ((ok) ? (void)0 : th_fail(fatal, __FILE__, __LINE__, what, " " __VA_ARGS__))
#define TH_CMP(fatal, a, op, b, ...) TH_CHECK(fatal, (a)op(b), #a " " #op " " #b, __VA_ARGS__)
#define TH_STR(fatal, a, b, want, ...)                                                                                 \
    TH_CHECK(fatal, th_str_check((a), (b), (want)), "strings " #a ", " #b, __VA_ARGS__)
#define TH_FLOAT(fatal, a, b, eps, want, ...)                                                                          \
    TH_CHECK(fatal, (fabs((double)(a) - (double)(b)) <= (double)(eps)) == (want), #a " against " #b " within " #eps,   \
             __VA_ARGS__)
#define TH_ARR(fatal, a, b, size, want, ...)                                                                           \
    TH_CHECK(fatal, (memcmp((a), (b), (size)) == 0) == (want), "bytes of " #a " against " #b, __VA_ARGS__)

/* Whether a and b are equal (want) or not equal (!want). If not so, prints both: the expression seldom says enough. */
bool th_str_check(const char *a, const char *b, bool want);

#define cr_assert(ok, ...) TH_CHECK(true, !!(ok), #ok, __VA_ARGS__)
#define cr_assert_not(ok, ...) TH_CHECK(true, !(ok), "not " #ok, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) TH_CMP(true, a, ==, b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) TH_CMP(true, a, !=, b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) TH_CMP(true, a, <, b, __VA_ARGS__)
#define cr_assert_le(a, b, ...) TH_CMP(true, a, <=, b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) TH_CMP(true, a, <=, b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) TH_CMP(true, a, >, b, __VA_ARGS__)
#define cr_assert_ge(a, b, ...) TH_CMP(true, a, >=, b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) TH_CMP(true, a, >=, b, __VA_ARGS__)
#define cr_assert_null(p, ...) TH_CHECK(true, (p) == NULL, #p " is null", __VA_ARGS__)
#define cr_assert_not_null(p, ...) TH_CHECK(true, (p) != NULL, #p " is not null", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) TH_STR(true, a, b, true, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) TH_STR(true, a, b, false, __VA_ARGS__)
#define cr_assert_float_eq(a, b, eps, ...) TH_FLOAT(true, a, b, eps, true, __VA_ARGS__)
#define cr_assert_float_neq(a, b, eps, ...) TH_FLOAT(true, a, b, eps, false, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, size, ...) TH_ARR(true, a, b, size, true, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, size, ...) TH_ARR(true, a, b, size, false, __VA_ARGS__)
#define cr_assert_fail(...) TH_CHECK(true, false, "failure", __VA_ARGS__)

#define cr_expect(ok, ...) TH_CHECK(false, !!(ok), #ok, __VA_ARGS__)
#define cr_expect_not(ok, ...) TH_CHECK(false, !(ok), "not " #ok, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) TH_CMP(false, a, ==, b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) TH_CMP(false, a, !=, b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) TH_CMP(false, a, <, b, __VA_ARGS__)
#define cr_expect_le(a, b, ...) TH_CMP(false, a, <=, b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) TH_CMP(false, a, <=, b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) TH_CMP(false, a, >, b, __VA_ARGS__)
#define cr_expect_ge(a, b, ...) TH_CMP(false, a, >=, b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) TH_CMP(false, a, >=, b, __VA_ARGS__)
#define cr_expect_null(p, ...) TH_CHECK(false, (p) == NULL, #p " is null", __VA_ARGS__)
#define cr_expect_not_null(p, ...) TH_CHECK(false, (p) != NULL, #p " is not null", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) TH_STR(false, a, b, true, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...) TH_STR(false, a, b, false, __VA_ARGS__)
#define cr_expect_float_eq(a, b, eps, ...) TH_FLOAT(false, a, b, eps, true, __VA_ARGS__)
#define cr_expect_float_neq(a, b, eps, ...) TH_FLOAT(false, a, b, eps, false, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, size, ...) TH_ARR(false, a, b, size, true, __VA_ARGS__)
#define cr_expect_arr_neq(a, b, size, ...) TH_ARR(false, a, b, size, false, __VA_ARGS__)
#define cr_expect_fail(...) TH_CHECK(false, false, "failure", __VA_ARGS__)

#define cr_skip_test(...) th_skip(" " __VA_ARGS__)
#define cr_log_info(...) th_log(" " __VA_ARGS__)

#endif
#endif
