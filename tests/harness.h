/* The one test header: Criterion's macros, or a plain in-process runner where Criterion cannot go (sanitizers). */
#ifndef WEFT_TESTS_HARNESS_H
#define WEFT_TESTS_HARNESS_H
#include <criterion/criterion.h>
#endif
