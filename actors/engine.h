/* What the actors of one engine worker share: borrowed, immutable after start, except the model's compute team, which
 * the actor that is running uses. Made by the process before its actors, freed after them. */
#ifndef WEFT_ACTORS_ENGINE_H
#define WEFT_ACTORS_ENGINE_H

#include "actors/exchange.h"
#include "actors/plan.h"
#include "actors/tally.h"
#include "actors/ticket.h"
#include "kvtiers/device.h"
#include "model/calibration.h"
#include "model/decode.h"
#include "model/handoff.h"
#include "model/prefill.h"
#include "model/sampler.h"

struct act_log;

enum { ACT_INSTANCES_MAX = 64 }; /* Prefill actors of a process, and Decode actors */

struct act_engine_limits {
    int context;  /* tokens of a sequence, prompt and output */
    int streams;  /* sequences that decode at a time */
    int prefills; /* prompts that compute at a time */
    int chunk;    /* rows of a prefill step */
    int draft;    /* guesses per step at most, 0: none */
    int replay;   /* R; 0: exact mode */
    int rollback;
    bool full_bridge;
    int lease;                /* free pages that Decode keeps at hand */
    int64_t prefill_share_ns; /* while prompts wait: time for them between two decode steps */
};

struct act_engine {
    struct mdl_model *m;
    struct act_engine_limits limits;
    struct act_plan_options plan; /* of decoding rounds */
    struct act_steptime steptime; /* for dynamic plans */
    struct mdl_calibration calibration;
    struct act_log *log; /* of probes; may be NULL */
    bool rejection;      /* sampled drafts are judged by rejection instead of sample-and-match */
    struct mdl_kv_layout layout;
    struct kv_device *device; /* owned by the tier actor alone; others use only the bytes of pages that they hold */
    struct kv_layout store_layout;   /* of a block, for the tiers below */
    int store_pages;                 /* pages lent to the tiers below at a time, for storing */
    int64_t read_timeout_ns;         /* a prompt waits this long for them */
    bool snapshots;                  /* sequences keep the window rows that snapshots need */
    int snapshot_blocks;             /* and one is kept every so many blocks of a prompt; 0: only at ends */
    enum mdl_handoff_form form;      /* in which prompts are handed to other processes */
    struct act_ticket_times tickets; /* deadlines of hand-offs to and from other processes */
    int vocab;                       /* ids that may be picked */
    bool group_sync;                 /* dynamic plans: one budget for all Decode actors of the deployment (group.h) */
    uint16_t node;                   /* this node's number in the deployment */
    struct act_experts experts;
    /* Set before start. */
    struct act_addr tier, prefill[ACT_INSTANCES_MAX], decode[ACT_INSTANCES_MAX];
    int n_prefill, n_decode;
    struct act_addr store;    /* the tiers below the device; nobody: none */
    struct act_addr observer; /* gets KV_STATS now and then; nobody: none */
    struct act_addr router;   /* gets LOAD of Prefill now and then; nobody: none */
    struct act_addr load;     /* gets LOAD of Decode; nobody: router does */
    struct act_tally *tally;  /* counts what became of prompts and sequences; NULL: nobody does */
    struct act_addr landing;  /* stands for the Decode actors towards other nodes (landing.h); nobody: one node alone */
    struct act_addr link;     /* to the other nodes (link.h); nobody: one node alone */
};

/* Of a sequence of up to max_tokens tokens whose blocks are pages of the device. */
static inline struct mdl_seq_params act_seq_params(const struct act_engine *e, int max_tokens)
{
    return (struct mdl_seq_params){.max_tokens = max_tokens,
                                   .block_tokens = e->layout.block_tokens,
                                   .rollback = e->limits.rollback,
                                   .replay = e->limits.replay,
                                   .full_bridge = e->limits.full_bridge,
                                   .window_extra = e->snapshots ? e->limits.replay : 0,
                                   .external_blocks = true};
}

/* Pages that the rows of so many tokens take. */
static inline int act_blocks(const struct act_engine *e, int tokens)
{
    return (tokens + e->layout.block_tokens - 1) / e->layout.block_tokens;
}

/* Whether a sequence that begins with `prompt` tokens and has `all` at its end can ever be here. What Decode
 * actors keep at hand (their lease) is for what runs there; no prompt ever gets it. */
static inline bool act_can_hold(const struct act_engine *e, int prompt, int all)
{
    struct kv_device_stats s;
    kv_device_stat(e->device, &s);
    return act_blocks(e, all) <= s.pages && act_blocks(e, prompt) <= s.pages - e->n_decode * e->limits.lease;
}

/* Tokens that a sequence may grow by while it moves to another Decode: the receiver has pages for so many more. Room
 * for the round that is under way, at least, and for one before it. */
static inline int act_move_slack(const struct act_engine *e)
{
    return e->layout.block_tokens > 2 * MDL_ROUND_MAX ? e->layout.block_tokens : 2 * MDL_ROUND_MAX;
}

#endif
