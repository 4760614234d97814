/* How many tokens to draft and how many of the drafts to verify: the plan of one decoding round.
 *
 * A round is planned in two halves, around the drafter's pass:
 *
 *   act_plan_draft   before it: the depth (tokens that each request drafts at most; 0 skips the drafter) and the budget
 *                    (drafts of all requests together that are verified). Reads confidences of earlier blocks and the
 *                    step-time table, never the block to come.
 *   act_plan_split   behind it: gives the budget to the requests by the confidences of this block.
 *   act_plan_done    when the round is over: what it took; its confidences become earlier ones.
 *
 * Dynamic mode maximises expected tokens per second, (requests + sum of survivals) / time(requests, rows), over every
 * depth and budget, since the time is a staircase and a search that stops at the first fall would get stuck on a step.
 * The survival of a draft is the product of the calibrated confidences up to it: the chance that it is kept.
 *
 * Losslessness. That draft k of a request is verified depends on nothing that knows what draft k is: depth and budget
 * come from earlier blocks, and among current survivals a draft's rank depends only on its own request's drafts before
 * k (confidence k is said before draft k is drawn) and on other requests (a later draft of the same request is no more
 * likely and loses ties). The early-stop form looks at current survivals only, in falling order, and stops at the first
 * loss. Earlier blocks and other requests know nothing of it because every draft of every block is drawn with a random
 * number of its own, also where blocks overlap or requests share a seed: that is up to who draws (model/reject.h). This
 * matters for acceptance by rejection; greedy and sample-and-match give the same tokens under any plan.
 *
 * A pure object: no clock, no randomness, no allocation after init; one owner. Used by the Decode actor
 * (speculate.h), by benches, and by simulations with tables of other machines. */
#ifndef WEFT_ACTORS_PLAN_H
#define WEFT_ACTORS_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "actors/steptime.h"

enum {
    ACT_PLAN_BLOCK_MAX = 32,
    ACT_PLAN_MEMORY = 8, /* earlier blocks kept per request */
};

enum act_plan_mode {
    ACT_PLAN_OFF,   /* nothing is drafted */
    ACT_PLAN_FIXED, /* options.length drafts per request, all verified */
    ACT_PLAN_DYNAMIC,
};

/* What the budget of dynamic mode is computed from. */
enum act_plan_budget {
    ACT_PLAN_LAGGED,     /* earlier confidences, best of all budgets */
    ACT_PLAN_EARLY_STOP, /* current ones, in falling order up to the first loss */
};

struct act_plan_options {
    enum act_plan_mode mode;
    enum act_plan_budget budget;
    int length; /* of fixed mode; in dynamic mode the most per request */
    /* A change of plan must promise this much (0.01: 1 %) over the last plan, or over the whole block. */
    double min_gain;
    /* Share of time that may go to rounds that are planned otherwise although that is not best: with the whole block,
     * so that confidences are known also while drafts do not pay, and with the best plan of another depth, so that its
     * time is known, in turn. 0: never. */
    double probe_share;
    int max_rows; /* of a verification, where its buffers are bounded; 0: any number, which is what Decode takes */
};

/* What is remembered of a request; zero at its start, dropped with it. */
struct act_plan_memory {
    uint64_t name; /* given by the plan that first saw it */
    int n, next;
    int depth[ACT_PLAN_MEMORY];
    float survival[ACT_PLAN_MEMORY][ACT_PLAN_BLOCK_MAX];
};

/* The memory in the form in which it goes with a request to another planner: u32 blocks, then of each, the oldest
 * first, u32 depth and f32[depth] survivals, little-endian. */
enum { ACT_PLAN_MEMORY_BYTES = 4 + ACT_PLAN_MEMORY * (4 + 4 * ACT_PLAN_BLOCK_MAX) };
/* Returns the bytes written, at most ACT_PLAN_MEMORY_BYTES. */
size_t act_plan_memory_save(const struct act_plan_memory *m, void *out);
/* 0 bytes: nothing is known. -EPROTO: no such form, or survivals that are none; out is zero then. */
int act_plan_memory_load(const void *from, size_t bytes, struct act_plan_memory *out);

/* A request's part in a round; filled by the caller for every round. */
struct act_plan_request {
    struct act_plan_memory *memory;
    /* Drafts that can be of use: what may still be emitted, the sequence's end, pages at hand. Nothing else limits a
     * request: there is no constrained decoding whose grammar could. */
    int cap;
    /* Set by act_plan_draft. */
    int draft; /* tokens to draft, at most cap */
    /* Set by the caller before act_plan_split. */
    int drafted;                          /* tokens that were drafted */
    float confidence[ACT_PLAN_BLOCK_MAX]; /* calibrated: chance that draft k is kept if those before it are, 0..1 */
    /* Set by act_plan_split. */
    int offer; /* of these, the first ones to verify */
};

struct act_plan_choice {
    int depth, budget;
    double tokens, ns; /* expected of the round; 0 outside dynamic mode */
};

/* What somebody else has chosen for this round (group.h). */
struct act_plan_given {
    int depth;
    double share; /* of drafts per request that are verified */
};

struct act_plan_counters {
    uint64_t rounds, skipped, probes, trimmed; /* trimmed: drafts made and not offered */
    double expected_ns,
        seen_ns; /* dynamic rounds that were observed: what the table says of their batch; what it took */
};

struct act_plan {
    struct act_plan_options options;
    struct act_steptime *table; /* borrowed; refreshed by act_plan_done when asked to */
    int block, max_requests;
    /* Survival by position over all requests: what is assumed of one without history, and behind the end of a block. Of
     * the blocks that went so deep, the mean survival there and one before it; where none did, it goes on as before. */
    double prior[ACT_PLAN_BLOCK_MAX], kept[ACT_PLAN_BLOCK_MAX], kept_before[ACT_PLAN_BLOCK_MAX];
    uint64_t seen[ACT_PLAN_BLOCK_MAX];
    uint64_t blocks_seen;
    struct act_plan_choice choice;      /* of the present or last round */
    const struct act_plan_given *given; /* dynamic mode: set before act_plan_draft, used in its place; NULL: none */
    double scale;                       /* the search is for so many times the requests; below 1: 1 */
    bool probe, split;                  /* the present round; split: it was, before */
    /* Of the split: every draft was to be verified before this block was there, so that its blocks are a fair sample
     * for a calibration. Where a budget is shared out by this block, the ones that are verified whole are those that
     * looked good, and in a round that stops by this block so are all. */
    bool untrimmed;
    /* The last search, as long as it stands: nothing that it read has changed but the table, by a little. */
    struct act_plan_choice best, whole, rival; /* rival: the best of another depth */
    int quiet;                                 /* rounds that it has served */
    double best_scale;
    int best_other_rows;
    int requests, drafts, rows, other_rows; /* of the present round */
    int last_requests, last_caps;
    double rival_credit, whole_credit; /* ns that may go to such a probe */
    int since_probe;
    bool rival_was_last; /* of the probes */
    struct act_plan_counters counters;
    /* Expected drafts kept of the block to come, by depth and budget: running means over the blocks of the requests
     * named by `company`. */
    double *gain;   /* [block][max_requests * block + 1] */
    double *newest; /* the same of the last block alone */
    uint64_t company, names;
    int evidence;               /* blocks that the means rest on, as far as that still matters */
    bool learned;               /* a block was drafted since the means were brought up to date */
    struct act_plan_item *item; /* scratch, [max_requests * block] */
    double *verify_ns;          /* scratch, [max_requests * block + 1] of the present search, by budget */
};

/* block: drafts that the drafter makes at once. table may be NULL outside dynamic mode. -EINVAL, -ENOMEM. */
int act_plan_init(struct act_plan *p, const struct act_plan_options *options, int block, int max_requests,
                  struct act_steptime *table);
void act_plan_free(struct act_plan *p);

/* n: 1..max_requests. other_rows: as in act_steptime_verify_ns. Sets draft of every request. */
void act_plan_draft(struct act_plan *p, struct act_plan_request *r, int n, int other_rows);
/* The same requests in the same order. Sets offer of every request; remembers their survivals. Again for a round that
 * is run again from its start, with the same drafts: then it is counted and remembered once. */
void act_plan_split(struct act_plan *p, struct act_plan_request *r, int n);
/* refresh: the times are those of an undisturbed round and may go into the table. */
void act_plan_done(struct act_plan *p, double draft_ns, double verify_ns, bool refresh);

/* The best choice for given survivals, without history, hysteresis or probes: for tables, simulations and tests.
 * survival: [n][block], falling; cap [n]. */
struct act_plan_choice act_plan_best(struct act_plan *p, const float *survival, const int *cap, int n, int other_rows);

#endif
