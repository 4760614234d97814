/* How long a thread looks at something before it sleeps, when looking is cheaper than being woken. It learns from how
 * long it had to wait the last times. For workers, and for loops that stand for one. */
#ifndef WEFT_ACTORS_RUNTIME_SPIN_H
#define WEFT_ACTORS_RUNTIME_SPIN_H

#include <stdint.h>

#define ACT_SPIN_LEAST INT64_C(2000)

/* The next time to look for, ns. now: the present one; most: the longest allowed; waited: how long it took until
 * something came, looking and sleeping together. What came within `most` could have been had by looking for longer;
 * what came later would not, and looking is given up by halves. */
static inline int64_t act_spin_next(int64_t now, int64_t most, int64_t waited)
{
    if (waited <= now)
        return now;
    if (waited > most)
        return now / 2 < ACT_SPIN_LEAST ? 0 : now / 2;
    int64_t next = 2 * now < ACT_SPIN_LEAST ? ACT_SPIN_LEAST : 2 * now;
    return next < most ? next : most;
}

#endif
