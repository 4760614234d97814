/* The engine's actors in the simulation with tiers below the device: a scripted one whose reads the test answers, a
 * host tier, an ssd tier on a disk in memory. For suites about tiers; failures end the running test. */
#ifndef WEFT_TESTS_SUPPORT_TIER_WORLD_H
#define WEFT_TESTS_SUPPORT_TIER_WORLD_H

#include "kvtiers/storage_sim.h"
#include "tests/support/engine_world.h"

#define MS INT64_C(1000000)

enum { TS_SCRIPT_READS = 64, TS_SCRIPT_BLOCKS = 256 };

/* Keeps every block. Reads are answered source by source at virtual times of the test's choosing. */
struct ts_script {
    struct kv_tier base;
    const struct kv_layout *layout;
    struct ts_world *w;
    struct kv_tier_block block[TS_SCRIPT_BLOCKS]; /* bytes are its own */
    int n;
    int64_t at[KV_SOURCES_MAX];                 /* virtual ns; 0: at once */
    int64_t lookups_at;                         /* virtual ns: lookups are answered then; 0: at once */
    struct kv_tier_op *lookup[TS_SCRIPT_READS]; /* that wait for it */
    int n_lookups;
    int64_t stores_at;                         /* the same for stores */
    struct kv_tier_op *store[TS_SCRIPT_READS]; /* that wait for it */
    int n_stores;
    int ok;                    /* leading blocks of a read that succeed; -1: all */
    int ok_of[KV_SOURCES_MAX]; /* the same for one source, where it is less; 0: as ok */
    int refuse;                /* so many reads end as a whole, with nothing read */
    uint64_t byte_ns;          /* virtual time that a byte of a read takes */
    int64_t cheap_at;          /* virtual ns: reads that begin later take no time; 0: never */
    uint64_t bytes;            /* delivered */
    int offered;               /* blocks that it was given to keep */
    int wanted;                /* most sources of a read that somebody was said to wait for */
    bool garbage;              /* what does not succeed overwrites its memory all the same */
    int reads;
    struct {
        struct kv_tier_op *op;
        int source;
        int64_t ready; /* virtual ns */
    } open[TS_SCRIPT_READS];
    int n_open;
};

struct ts_tiers {
    struct ts_world w;
    struct act_store store;
    struct ts_script script;
    struct kv_layout layout;
    struct kv_disk *disk;
};

/* A world with a device of so many pages and no tier yet. */
void ts_tiers_open(struct ts_tiers *r, int pages, bool exact);
/* The first tier of each world. */
void ts_tiers_host(struct ts_tiers *r, int blocks);
void ts_tiers_script(struct ts_tiers *r);
void ts_tiers_ssd(struct ts_tiers *r, int blocks);
/* Checks that nothing is held; the script's blocks stay for the next world when `keep`. */
void ts_tiers_close(struct ts_tiers *r, bool keep);
/* The same without the check. */
void ts_tiers_end(struct ts_tiers *r, bool keep);
/* Frees what `keep` kept. */
void ts_tiers_forget(struct ts_tiers *r);
/* n requests of the same 160 tokens (nine blocks, which an exact restart can use), the first at once, the others later.
 */
void ts_tiers_prompts(struct ts_tiers *r, int n);
/* Request i asks for something else. */
void ts_tiers_other(struct ts_tiers *r, int i);
/* Fills the script from a first world, in exact mode. */
void ts_tiers_prepare(struct ts_tiers *r);
/* A second process: the device and the host (4 blocks) are empty, the script has the blocks. */
void ts_tiers_second(struct ts_tiers *r, int pages);

/* What ts_note_layers sees, in a world's before_ctx. */
struct ts_trace {
    int64_t first[MDL_MAX_LAYERS]; /* virtual time of a layer's first dispatch */
};

/* A world's `before`: notes when each layer's experts were first asked. */
bool ts_note_layers(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                    int *fail);

#endif
