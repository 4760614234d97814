/* By how much less the longest tests do in the slow builds, those of the sanitizers. */
#ifndef WEFT_TESTS_SUPPORT_LESS_H
#define WEFT_TESTS_SUPPORT_LESS_H

#ifdef WEFT_PLAIN_RUNNER
enum { TS_LESS = 8 };
#else
enum { TS_LESS = 1 };
#endif

#endif
