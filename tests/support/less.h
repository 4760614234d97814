/* By how much less the longest tests do in the slow builds, those of the sanitizers, and how much more in
 * `make test-long`. */
#ifndef WEFT_TESTS_SUPPORT_LESS_H
#define WEFT_TESTS_SUPPORT_LESS_H

#include <stdlib.h>

#ifdef WEFT_PLAIN_RUNNER
enum { TS_LESS = 8 };
#else
enum { TS_LESS = 1 };
#endif

static inline int ts_more(int usual, int many)
{
    return getenv("WEFT_LONG") ? many : usual;
}

#endif
