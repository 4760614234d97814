/* A test in which two threads write one variable without order. */
#ifndef WEFT_PLAIN_RUNNER
#define WEFT_PLAIN_RUNNER
#endif
#include "tests/harness.h"

#include <pthread.h>

static int shared;

static void *writer(void *arg)
{
    for (int i = 0; i < 1000; i++)
        shared++;
    return arg;
}

Test(planted, race)
{
    pthread_t a, b;
    cr_assert_eq(pthread_create(&a, NULL, writer, NULL), 0);
    cr_assert_eq(pthread_create(&b, NULL, writer, NULL), 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    cr_expect_gt(shared, 0);
}
