/* `weft simulate`: the engine's actors in virtual time over a described machine. What its files share:
 *
 *   simulate_profile.c   a machine: how long its steps take, how often drafts are kept, what it costs
 *   simulate_compute.c   that machine in the place of a model's kernels (model/compute.h)
 *   simulate_world.c     the actors: Router, Prefill, Decode, Landing, device tiers, as many ranks as wanted
 *   simulate_common.c    a tier of blocks that Prefill ranks share
 *   simulate_load.c      the actor that stands for the gateway: asks, sends prompts, takes tokens
 *   simulate_report.c    tables, JSON, CSV
 *   simulate_plot.c      the picture of them
 *   simulate.c           the command
 *
 * One thread. */
#ifndef WEFT_CLI_SIMULATE_H
#define WEFT_CLI_SIMULATE_H

#include <jansson.h>

#include "actors/engine.h"
#include "actors/runtime/sim.h"

/* ---- a machine ---- */

/* How an expert group's size changes a step that was measured with `ranks` of them. */
struct sim_group {
    int ranks;          /* 0: the step times hold for any size */
    double weights_us;  /* reading the experts that a rank holds; as ranks grow each holds fewer */
    double exchange_us; /* moving rows to other ranks, at that size */
    double peer_us;     /* per further rank that is spoken to */
};

struct sim_profile {
    char name[400];
    char model_revision[17]; /* of the model that was measured; "": none, or not known */
    int block;
    struct act_steptime table;          /* of decoding rounds, as they are; what the planner is given has table_error */
    struct act_steptime_curve exchange; /* by rows, on top of a verification */
    double plan_us, noise, table_error;
    double base, slope, spread, persist;     /* of acceptance */
    struct act_steptime_curve encoder, tail; /* of a prefill step, by rows; n 0: takes no time */
    int replay, chunk, prompts;
    int layers[2];       /* below the cut, and from it on; one process: turns of a step are shorter than a layer */
    double expert_share; /* one process: of a prompt's step, time in experts, which go on beside rounds */
    int expert_parts;    /* one process: turns of a round in which the experts of a layer are done */
    double common_op_us, common_token_us; /* a read from a tier that all share */
    int streams, block_tokens, context;
    int64_t kv_tokens; /* of a rank */
    struct sim_group decode_group, prefill_group;
    bool lockstep;                    /* decode ranks of a group end their steps together */
    double network_us;                /* one way between ranks */
    double emit_us;                   /* of a rank's time, for each token that is picked for good */
    double request_us, token_us;      /* of the gateway's time, by request and by piece of an answer */
    double share_us;                  /* one process: what a round leaves to prompts that wait */
    int decode, prefill;              /* ranks, unless the command says otherwise */
    bool one_process;                 /* one machine that does everything: Prefill and Decode take turns */
    int prompt_tokens, output_tokens; /* means of made-up requests */
    double price;                     /* of a device for an hour; 0: unknown */
};

/* j: a parsed profile. -EINVAL names the member. */
int sim_profile_read(const json_t *j, struct sim_profile *out, struct cfg_error *err);
/* The table with the profile's error in every point, as a measurement would have it. */
int sim_profile_believed(const struct sim_profile *p, uint64_t seed, struct act_steptime *out);
/* What a step takes more (or less) in a group of so many ranks, ns. */
double sim_group_ns(const struct sim_group *g, int ranks);

/* Numbers from a seed. */
uint64_t sim_hash(uint64_t a, uint64_t b);
double sim_uniform(uint64_t *state);
double sim_normal(uint64_t *state);

/* ---- its compute ---- */

enum { SIM_TAIL = 8 }; /* the last ids of a prompt, which name its request */

struct sim_running {
    struct act_timer timer;
    int64_t due;      /* ns */
    int turns;        /* one process: still to be taken */
    double turn_ns;   /* one process: of a turn */
    int experts;      /* one process, prompts: turns of this layer's experts that are still to be taken */
    double expert_ns; /* of one of them */
    int64_t whole;    /* ns: when the last of them ended */
    double own_ns;    /* lockstep: what it takes without the others */
    uint64_t joined;  /* lockstep: the step that it is in; 0: none yet */
};

/* The step of a group of ranks that exchange rows in every layer, so that all wait for the slowest. Those that come
 * while it gathers are in it, a later one is in the next. Shared by the ranks' computes, on their worker. */
struct sim_lockstep {
    int64_t began, gathers_until, end; /* ns; the end is known when it gathers no more */
    uint64_t number;
};

/* A model without weights that takes a rank's time. Belongs to the rank, outlives its actors. */
struct sim_compute {
    struct mdl_model model; /* for struct act_engine */
    struct mdl_compute ops;
    const struct sim_profile *profile;
    bool shared;        /* the worker's time is taken, else nobody's but the rank's own */
    bool planned;       /* rounds are planned, which costs plan_us */
    bool plan_paid;     /* in this round */
    double extra_ns[2]; /* of a group of another size: decode, prefill */
    double late_ns;     /* timers are a little late; the next step gives it back */
    double picks_ns;    /* of the drafts of this round, not yet taken */
    uint64_t random;
    struct sim_running running[2]; /* decode, prefill */
    struct sim_lockstep *group;    /* of a decode rank; NULL: it waits for nobody */
};

/* The shape of the model that stands there: small, because its rows are never computed. */
void sim_compute_config(const struct sim_profile *p, struct mdl_config *out);
void sim_compute_init(struct sim_compute *c, const struct sim_profile *p, const struct mdl_config *config,
                      uint64_t seed);
/* The last SIM_TAIL ids of a prompt of n tokens, which say whose it is. */
void sim_compute_name(uint64_t request, int n, int32_t *tail);

/* ---- load and outcome ---- */

enum { SIM_BINS = 5200 };

/* Counts by the value's logarithm: quantiles are good to half a percent. Seconds. */
struct sim_histogram {
    uint64_t n, bin[SIM_BINS];
    double sum;
};
void sim_histogram_add(struct sim_histogram *h, double seconds);
double sim_histogram_quantile(const struct sim_histogram *h, double q); /* NAN: nothing was counted */

struct sim_arrival {
    double at; /* s; closed loop: not used */
    int prompt, output, line; /* line: of the file, from 1 */
    const struct act_key *chain; /* [n_chain], root first; NULL: shares nothing */
    int n_chain;
};

/* A recorded load (docs/FORMATS.md, "Request trace"). */
struct sim_trace {
    struct sim_arrival *arrival; /* ascending in at */
    int n, block_tokens;
    struct act_key *key;
};
int sim_trace_read(const char *path, struct sim_trace *out, struct cfg_error *err);
void sim_trace_free(struct sim_trace *t);

struct sim_load {
    int concurrency;               /* closed loop: requests at a time; 0: open */
    double rate;                   /* open loop: requests per second */
    const struct sim_trace *trace; /* NULL: made-up requests */
    double speed;                  /* the trace's time goes by so much faster */
    int requests;                  /* ends after so many; 0: after `seconds` */
    double warm, seconds;          /* not counted; counted */
    int groups, shared_tokens;     /* made-up prompts begin like the others of their group; 0: like no other */
    bool fixed_lengths;            /* made-up requests have the mean lengths */
    int block_tokens;
    uint64_t seed;
};

struct sim_outcome {
    double seconds; /* counted */
    uint64_t requests, refused, failed, tokens, prompt_tokens, cached_tokens;
    uint64_t steps, drafted, offered, accepted, stepped; /* stepped: tokens that came out of steps */
    uint64_t parked;
    uint64_t cut; /* made-up requests that were longer than the context */
    uint64_t messages, trace; /* of the run: actor calls, and a number that depends on every one of them */
    struct sim_histogram queue, first_token, gap, whole, user; /* user: tokens/s of a request, as seconds per token */
    uint64_t rank_bytes;
};

struct sim_world_options {
    struct act_plan_options plan;
    int decode, prefill;             /* ranks */
    int decode_group, prefill_group; /* ranks that share their experts; 0: all of a kind */
    bool group_sync;                 /* dynamic plans: one budget for the decode ranks of a group */
    bool prefix;                     /* routing by known prefixes */
    bool common;                     /* a tier that every Prefill reads and writes */
    uint64_t seed;
};

/* Runs the load to its end. */
int sim_world_run(const struct sim_profile *p, const struct sim_world_options *o, const struct sim_load *load,
                  struct sim_outcome *out, struct cfg_error *err);

/* The actor. arg: struct sim_load_arg *. */
struct sim_load_arg {
    const struct sim_profile *profile;
    const struct sim_load *load;
    struct act_addr router;
    struct sim_outcome *out;
    bool done;
};
extern const struct act_behaviour sim_load_behaviour;

#endif
