/* What became of the prompts and sequences of a process: counts that its Prefill and Decode actors add to, and that
 * weft drain is told when the node ends. They outlive a restarted actor. */
#ifndef WEFT_ACTORS_TALLY_H
#define WEFT_ACTORS_TALLY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum act_tally_what {
    ACT_TALLY_PROMPTS,        /* taken */
    ACT_TALLY_PROMPTS_ENDED,  /* whatever became of them */
    ACT_TALLY_PROMPTS_FAILED, /* of those */
    ACT_TALLY_SEQUENCES,      /* taken: from a prompt, or moved here */
    ACT_TALLY_SEQUENCES_FINISHED,
    ACT_TALLY_SEQUENCES_MOVED, /* went on at another node, state and all */
    ACT_TALLY_SEQUENCES_LEFT,  /* cancelled, or failed */
    ACT_TALLIES,
};

struct act_tally {
    _Atomic uint64_t count[ACT_TALLIES];
    _Atomic uint64_t awaited; /* requests that other nodes have placed at a Landing which drains, as they said last */
};

/* t NULL: nobody counts. Any thread. */
static inline void act_tally_add(struct act_tally *t, enum act_tally_what what)
{
    /* Relaxed: the number alone is of interest; partner is act_tally_read. */
    if (t)
        atomic_fetch_add_explicit(&t->count[what], 1, memory_order_relaxed);
}

/* As act_tally_add. */
static inline void act_tally_await(struct act_tally *t, uint64_t n)
{
    /* Relaxed: the number alone is of interest; partner is act_tally_awaited. */
    if (t)
        atomic_store_explicit(&t->awaited, n, memory_order_relaxed);
}

static inline uint64_t act_tally_awaited(const struct act_tally *t)
{
    /* Relaxed: partner is act_tally_await. */
    return atomic_load_explicit(&t->awaited, memory_order_relaxed);
}

/* Each count by itself. Any thread. */
static inline void act_tally_read(const struct act_tally *t, uint64_t out[ACT_TALLIES])
{
    /* Relaxed: partner is act_tally_add. */
    for (int i = 0; i < ACT_TALLIES; i++)
        out[i] = atomic_load_explicit(&t->count[i], memory_order_relaxed);
}

#endif
