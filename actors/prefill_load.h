/* Blocks of a prompt that are still being read: which sources have arrived, and what is left of a hit when some do not.
 * Part of the Prefill actor's job. */
#ifndef WEFT_ACTORS_PREFILL_LOAD_H
#define WEFT_ACTORS_PREFILL_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "actors/runtime/message.h"

struct act_load {
    int first, n;     /* blocks first .. first + n - 1 of the prompt; n 0: nothing is being read */
    int sources;      /* of the model */
    int settled, ok;  /* sources that have been reported; leading blocks that all of these have */
    int wanted;       /* sources that the tier knows to be waited for */
    int64_t deadline; /* ns */
};

/* All that was read is there, or nothing had to be. */
static inline bool act_load_whole(const struct act_load *l)
{
    return !l->n || (l->settled == l->sources && l->ok == l->n);
}

/* The rows of this source are there. */
static inline bool act_load_ready(const struct act_load *l, int source)
{
    return !l->n || (l->settled > source && l->ok == l->n);
}

/* It will not become whole: every source was reported and not all blocks came, or the time is over. */
static inline bool act_load_failed(const struct act_load *l, int64_t now)
{
    return l->n && ((l->settled == l->sources && l->ok < l->n) || (!act_load_whole(l) && now >= l->deadline));
}

/* Takes a report (KV_ROWS). lookup: the number of the last one; what an earlier one brings went to other pages. */
static inline void act_load_rows(struct act_load *l, uint16_t lookup, const struct act_p_kv_rows *rows)
{
    if (!l->n || rows->number != lookup || (int)rows->source != l->settled)
        return;
    l->settled++;
    l->ok = (int)rows->blocks < l->ok ? (int)rows->blocks : l->ok;
}

#endif
