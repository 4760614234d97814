/* The plain test runner behind tests/harness.h: runs the registered tests one after the other in this process.
 *
 * Owns the list of tests and the state of the one that runs; used by the main thread only, except that a check in
 * another thread may report success. Linked into suites that are built with WEFT_PLAIN_RUNNER. */
#ifndef WEFT_PLAIN_RUNNER
#define WEFT_PLAIN_RUNNER
#endif
#include "tests/harness.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

enum outcome { PASSED, FAILED, SKIPPED };

static struct th_test *first, **last = &first;
static struct {
    const struct th_test *test;
    enum outcome outcome;
    jmp_buf leave;
    pthread_t thread;
} running;

void th_register(struct th_test *t)
{
    *last = t;
    last = &t->next;
}

static void print_message(const char *fmt, va_list ap)
{
    /* The macros put one space before every format. */
    if (fmt[0] == ' ')
        fmt++;
    if (fmt[0]) {
        fputs(": ", stdout);
        vprintf(fmt, ap);
    }
    putchar('\n');
}

void th_fail(bool fatal, const char *file, int line, const char *what, const char *fmt, ...)
{
    if (!running.test || !pthread_equal(pthread_self(), running.thread)) {
        /* Nobody to return to: the thread is not ours to leave. */
        printf("%s:%d: %s, outside of the thread that runs the test\n", file, line, what);
        fflush(stdout);
        _Exit(3);
    }
    printf("%s:%d: %s/%s: failed: %s", file, line, running.test->suite, running.test->name, what);
    va_list ap;
    va_start(ap, fmt);
    print_message(fmt, ap);
    va_end(ap);
    running.outcome = FAILED;
    if (fatal)
        longjmp(running.leave, 1);
}

void th_skip(const char *fmt, ...)
{
    printf("%s/%s: skipped", running.test->suite, running.test->name);
    va_list ap;
    va_start(ap, fmt);
    print_message(fmt, ap);
    va_end(ap);
    if (running.outcome == PASSED)
        running.outcome = SKIPPED;
    longjmp(running.leave, 1);
}

void th_log(const char *fmt, ...)
{
    printf("%s/%s", running.test->suite, running.test->name);
    va_list ap;
    va_start(ap, fmt);
    print_message(fmt, ap);
    va_end(ap);
}

bool th_str_check(const char *a, const char *b, bool want)
{
    bool equal = a && b ? strcmp(a, b) == 0 : a == b;
    if (equal != want)
        printf("%s strings:\n  \"%s\"\n  \"%s\"\n", equal ? "equal" : "different", a ? a : "(null)", b ? b : "(null)");
    return equal == want;
}

static const struct th_options *suite_options(const char *suite)
{
    static const struct th_options none;
    for (const struct th_test *t = first; t; t = t->next)
        if (!t->name && strcmp(t->suite, suite) == 0)
            return &t->options;
    return &none;
}

/* Calls f, which may leave by longjmp. Returns whether it came back by itself. */
static bool call(void (*f)(void))
{
    if (setjmp(running.leave) != 0)
        return false;
    if (f)
        f();
    return true;
}

static enum outcome run_test(const struct th_test *t)
{
    const struct th_options *suite = suite_options(t->suite);
    if (t->options.disabled || suite->disabled) {
        printf("%s/%s: disabled\n", t->suite, t->name);
        return SKIPPED;
    }
    running.test = t;
    running.outcome = PASSED;
    running.thread = pthread_self();
    if (call(t->options.init ? t->options.init : suite->init))
        call(t->body);
    call(t->options.fini ? t->options.fini : suite->fini);
    running.test = NULL;
    return running.outcome;
}

int main(int argc, char **argv)
{
    int count[3] = {0, 0, 0};
    const char *filter = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const struct th_test *t = first; t; t = t->next) {
        char full[512];
        snprintf(full, sizeof full, "%s/%s", t->suite, t->name ? t->name : "");
        if (t->name && strstr(full, filter))
            count[run_test(t)]++;
    }
    printf("%d passed, %d failed, %d skipped\n", count[PASSED], count[FAILED], count[SKIPPED]);
    if (count[PASSED] + count[FAILED] + count[SKIPPED] == 0) {
        printf("no test matches \"%s\"\n", filter);
        return 2;
    }
    return count[FAILED] > 0;
}
