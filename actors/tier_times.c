#include "actors/tier_times.h"

#define US INT64_C(1000)
#define MS INT64_C(1000000)
#define S INT64_C(1000000000)

const int64_t act_times_bound[ACT_TIMES_BOUNDS] = {
    10 * US, 25 * US, 50 * US,  100 * US, 250 * US, 500 * US, MS,        2500 * US, 5 * MS, 10 * MS,
    25 * MS, 50 * MS, 100 * MS, 250 * MS, 500 * MS, S,        2500 * MS, 5 * S,     10 * S, 60 * S};

void act_times_add(struct act_times *t, int64_t ns)
{
    t->count++;
    t->sum_ns += (uint64_t)(ns > 0 ? ns : 0);
    for (int i = 0; i < ACT_TIMES_BOUNDS; i++)
        if (ns <= act_times_bound[i]) {
            t->bucket[i]++;
            return;
        }
}
