/* The expert exchange, seen from a source: an exchange of the model's step becomes messages to the shards that hold its
 * experts, and results become deliveries.
 *
 * An exchange is named by (source, stream, sequence, layer, map version). A stream is one micro-batch of one actor and
 * has at most one exchange under way. One row goes to a shard once, with the list of its experts there; more rows than
 * a wave has go in several, of which two are under way at a time. The shard answers one bf16 row per (row, expert)
 * in the same order. To a shard of another node a wave is put into a slot there, and the result into one here
 * (slots.h); inside a process, and where there are no slots, both are messages. Results are summed at home by ascending
 * expert, so the bits depend neither on who holds an expert nor on which replica was chosen. docs/FORMATS.md has the
 * bytes.
 *
 * A shard waits for nobody, and a source waits for a shard no longer than the deadline: then, or when a dispatch comes
 * back, the exchange is lost and the actor runs its step again from the start (nothing was committed, so the bits are
 * the same). A shard that could not be reached, was too slow, or refuses again and again what it is asked, is out of
 * service for a while, longer each time; its experts are computed by their other owners, or taken over by a shard that
 * reads them from its mapped checkpoint, or, where the configuration forbids that, waited for. Answers to an exchange
 * that is over are late: counted and dropped.
 *
 * The map of experts changes between steps only (act_exchange_begin), when the balancer sends another one.
 *
 * Part of the state of the actor that runs steps (Prefill, Decode); that actor alone calls it. */
#ifndef WEFT_ACTORS_EXCHANGE_H
#define WEFT_ACTORS_EXCHANGE_H

#include "actors/engram_fetch.h"
#include "actors/expert_map.h"
#include "actors/runtime/log.h"
#include "actors/runtime/runtime.h"
#include "model/step.h"

enum {
    ACT_EXCHANGE_LOSSES = 64,  /* of one step, however often it begins again; more fail it */
    ACT_EXCHANGE_REFUSALS = 3, /* of one step by a shard that is alive; then it is left out */
    ACT_EXCHANGE_WAVES = 2,    /* under way to one shard */
    ACT_EXCHANGE_ROWS = 512,   /* of a wave, where the limits do not say */
};

/* Streams of a source. The bit tells a shard that the step is a prompt's and gives way to running streams. */
enum { ACT_STREAM_BULK = 0x8000 };

/* As the index in EXPERT_SHARD: not a shard but the balancer. */
#define ACT_SHARD_BALANCER UINT32_MAX

/* Timers of exchanges carry this tag and their stream; the actor hands such TIMERs to act_exchange_message. */
#define ACT_EXCHANGE_TAG UINT64_C(0x45584348000000)

/* The tag of the TIMER that ends a step which is computed elsewhere (model/compute.h): to the actor it is one more
 * thing that its step has waited for. */
#define ACT_COMPUTED_TAG UINT64_C(0x434d5044000000)

struct act_exchange_limits {
    int rows;            /* of one wave; 0: ACT_EXCHANGE_ROWS */
    int64_t deadline_ns; /* an answer that takes longer is lost; 0: 5 s */
    int64_t patience_ns; /* a step that no shard can serve waits so long, then fails; 0: 30 s */
    bool no_takeover;    /* experts whose owners are all gone are waited for */
};

/* Who the sources and the shards of a deployment are to each other; the same for every source, immutable after start.
 */
struct act_experts {
    int n;                                 /* shards; 0: experts are computed on the spot */
    struct act_addr shard[ACT_SHARDS_MAX]; /* in the map's order */
    const struct act_map *map;             /* to begin with */
    struct act_exchange_limits limits;
    bool balanced;            /* there is a balancer, or will be */
    struct act_addr balancer; /* gets EXPERT_COUNTS; nobody: not known yet */
    int64_t report_ns;        /* between two of them */
    struct act_log *log;      /* NULL: none */
    struct act_addr engram;   /* the row store of Engram tables (engram_store.h); nobody: they are mapped */
    struct act_addr finder;   /* knows the shards of other nodes; nobody: there are none */
    struct act_slots *slots;  /* through which shards of other nodes are reached (slots.h); NULL: by messages */
    struct act_addr link;     /* with slots */
    uint16_t node;            /* this node's number, with slots */
};

/* Asks the finder, if there is one, for EXPERT_SHARD of the shards of other nodes, now and from now on. */
void act_experts_find(struct act_self *self, const struct act_experts *experts);

struct act_exchange_counters {
    uint64_t exchanges, dispatched, results;
    uint64_t late;              /* results of exchanges that were over */
    uint64_t returned;          /* dispatches that came back */
    uint64_t refused;           /* dispatches that a living shard did not compute */
    uint64_t expired;           /* deadlines that passed */
    uint64_t lost;              /* exchanges that were given up with a shard: the step began again */
    uint64_t stalled;           /* times that experts had to be waited for */
    uint64_t pairs, taken_over; /* (row, expert); of these, computed by a shard that does not own the expert */
    uint64_t switches;          /* maps taken */
    uint64_t puts, fences;      /* dispatches that went into slots; connections ended because of slots in use */
    uint64_t missing;           /* 1 while experts are missing (act_exchange_experts), else 0 */
};

/* Whether somebody computes every expert; DOUBTFUL: nobody does, as far as is known, but trying again is due. */
enum act_experts_state { ACT_EXPERTS_THERE, ACT_EXPERTS_DOUBTFUL, ACT_EXPERTS_MISSING };

enum { ACT_EXCHANGE_COUNTERS = sizeof(struct act_exchange_counters) / sizeof(uint64_t) };

/* A shard, as one stream sees it. */
struct act_exchange_peer {
    struct act_addr addr;
    int waves, sent, answered; /* of the current exchange */
    uint64_t have[4];          /* waves answered, a bit each */
    int fails;                 /* in a row */
    int refusals;              /* in this step */
    bool refuses;              /* it is, or was, left out for that; a step in which it refuses nothing ends this */
    bool answers;              /* it has computed something in this step */
    int64_t out_until;         /* out of service: tried again then */
    uint32_t link;             /* the connection to its node, for puts into slots there; 0: messages */
    uint32_t fenced;           /* the last connection that was ended because of slots in use, */
    uint16_t fenced_peer;      /* and whose */
};

struct act_exchange {
    struct act_self *self;
    struct mdl_model *m;
    const struct act_experts *experts;
    struct act_exchange_peer peer[ACT_SHARDS_MAX];
    struct act_shard_set out; /* of service */
    const struct act_map *map;
    struct act_map *own, *next; /* maps that the balancer sent: the present one, and one for the next step */
    struct act_promise promise; /* SWITCHED is owed for `next` */
    uint16_t stream;
    uint32_t sequence;              /* of the current exchange */
    struct mdl_exchange *current;   /* NULL: none */
    int16_t *shard;                 /* [pairs] of the current exchange: who computes it */
    uint8_t *wave;                  /* [pairs] in which wave it goes */
    int capacity;                   /* pairs */
    int place;                      /* of this source in slots; below 0: not known yet, none */
    struct act_exchange_slot *slot; /* [sets][shards] (exchange_slots.h); NULL: none */
    bool in_step;
    bool lost;  /* the step must be run again */
    int losses; /* exchanges lost since the step began first */
    /* Rows of others that the busiest shard worked on together with this source's, in proportion to all rows of this
     * source (act_steptime_verify_ns); 0: none, unknown, or of a step before the last. */
    int other_rows;
    uint32_t other_rows_of; /* the exchange of other_rows */
    bool others_told;       /* in the present step */
    bool stalled;
    int64_t stalled_at,
        waited;   /* since when; how long the step has stalled before that, and those given up before it */
    bool gave_up; /* the step has waited as long as it may */
    enum act_experts_state state;
    bool complete;                   /* all experts were there at some time */
    bool missing_told, gave_up_told; /* in the log, since they are not */
    char reason[128];                /* of the last step that was given up */
    struct act_timer timer;
    struct act_addr balancer;
    uint32_t *counts; /* [layers][experts] pairs since the last report; NULL without a balancer */
    int64_t reported;
    struct act_exchange_counters counters;
    struct act_engram_fetch engram;
    struct mdl_providers providers; /* to hand to the step */
};

/* -ENOMEM. Tells the balancer, if any, that this source exists, and asks the finder for shards. */
int act_exchange_init(struct act_exchange *e, struct act_self *self, struct mdl_model *m, uint16_t stream,
                      const struct act_experts *experts);
void act_exchange_free(struct act_exchange *e);
/* A step begins (also: again), and has ended or was given up. Between them the map stays. */
void act_exchange_begin(struct act_exchange *e);
void act_exchange_end(struct act_exchange *e);
/* Forgets the current exchange; results still on the way are late from now on. */
void act_exchange_abandon(struct act_exchange *e);
/* What a step that failed with this status is to be told as: why it was given up here, else `other`. */
const char *act_exchange_reason(const struct act_exchange *e, int status, const char *other);
/* The experts, as this stream sees them. Called with each report of the actor's load; says in the log when they go
 * missing, except at a start, and when they are back. */
enum act_experts_state act_exchange_experts(struct act_exchange *e);
/* Whether a LINK_PUT_DONE, or a LINK_PUT that came back, is of a dispatch. */
bool act_exchange_is_put(const struct act_msg *m);
/* Takes EXPERT_RESULT, UNDELIVERABLE of a dispatch, EXPERT_SWITCH, EXPERT_SHARD, LINK_IMMEDIATE and LINK_PUT_DONE of a
 * dispatch or result, ROOM or TIMER that is this stream's.
 * True when the step may have something to go on with, which includes that it is lost. */
bool act_exchange_message(struct act_exchange *e, struct act_msg *m);

#endif
