/* The engine's actors (Prefill, Decode, expert shards, device tier) in the simulation, with a scripted client, and the
 * same requests run without actors, for suites that compare the two. Failures end the running test. */
#ifndef WEFT_TESTS_SUPPORT_ENGINE_WORLD_H
#define WEFT_TESTS_SUPPORT_ENGINE_WORLD_H

#include "actors/balancer.h"
#include "actors/engine.h"
#include "actors/engram_store.h"
#include "actors/expert.h"
#include "actors/landing.h"
#include "actors/placement.h"
#include "actors/router.h"
#include "actors/runtime/sim.h"
#include "actors/runtime/stats.h"
#include "actors/tier_store.h"
#include "tests/support/put_wire.h"

enum {
    TS_WORLD_ENGINE,
    TS_WORLD_CLIENT,
    TS_WORLD_FAR,   /* with split */
    TS_WORLD_OTHER, /* with a second Decode process */
    TS_WORLD_WIRE,  /* with split: what carries rows between the processes */
    TS_WORLD_APART, /* the first shard's worker, when they are apart */
    TS_WORLD_REQUESTS = 256,
    TS_WORLD_SHARDS = 8,
    TS_WORLD_ACTORS = 12, /* of a part */
    TS_WORLD_BLOCK = 16,
    TS_WORLD_IDS = 256,
    TS_WORLD_KILLS = 8,
    TS_WORLD_OLD = 8,
    TS_WORLD_REPORTS = 32,
    TS_WORLD_NEW = 24, /* tokens that ts_world_requests asks for, at most */
};

struct ts_wanted {
    int n_prompt, max_new;
    int32_t prompt[256];
    float temperature;
    bool logprobs;   /* of its tokens, compared too */
    int32_t stop[8]; /* ids that end it */
    int n_stop;
    uint64_t seed;
    int64_t start, cancel; /* virtual ns; cancel 0: never */
};

struct ts_outcome {
    struct act_place place;
    int32_t ids[256];
    int n, terminal; /* terminal events seen */
    float logprob[256];
    int drafted, accepted, drafted_before, accepted_before; /* as TOKENS say; of earlier attempts */
    int steps, offered;                                     /* likewise, of the last attempt */
    int finish, cached, status;
    int parked;        /* how often it was set aside */
    bool cancelled;    /* by the client, before any end; what comes afterwards is not looked at */
    int64_t last, gap; /* virtual time of the newest tokens; the longest time without any between two of them */
    int64_t ended;
};

/* An actor that fails at a virtual time. */
struct ts_kill {
    int64_t at;
    int tokens; /* or, of a drain, when the client gets tokens for this time that others follow: where they come from */
    bool drain; /* or, a Landing, that is told to drain */
    bool other; /* of the second Decode process */
    bool shard; /* or an expert shard of the first process; other: of that with Decode */
    unsigned
        role; /* CFG_ROLE_PREFILL, CFG_ROLE_DECODE; CFG_ROLE_KV: the Landing; CFG_ROLE_EXPERT: the replaying Prefill */
    int index;
};

/* The newest report of a Prefill, a Decode or the Landing to a client that watches. */
struct ts_report {
    struct act_addr who;
    unsigned role; /* CFG_ROLE_PREFILL, CFG_ROLE_DECODE; CFG_ROLE_KV: the Landing */
    int64_t at;    /* virtual ns */
    uint64_t work; /* prompts and prompt tokens; sequences that are reserved, running or parked */
    int lease;     /* pages that a Decode keeps at hand */
};

/* What a process with Decode has in a world that is split: on a worker of its own, with its own pages and shards. */
struct ts_far {
    struct act_engine e;
    struct act_expert_arg expert[TS_WORLD_SHARDS];
    struct act_map *map;
    struct act_addr landing, replay;
    struct act_landing_arg arg;
    struct act_landing_stats stats;
};

/* A process: the first one with Prefill, those with Decode of a world that is split. */
enum ts_process { TS_HERE, TS_THERE, TS_SECOND, TS_PROCESSES };

enum ts_part { TS_PART_TIER, TS_PART_EXPERT, TS_PART_DECODE, TS_PART_PREFILL, TS_PART_LANDING, TS_PARTS };

/* ts_inner.index of what is in the other process of a split world is at least this; in the second one at least
 * TS_OTHER.
 */
enum { TS_FAR = 4, TS_OTHER = 8 };

/* What came to actors of a kind, over several worlds. */
struct ts_seen {
    uint64_t got[TS_PARTS][ACT_TYPES], back[TS_PARTS][ACT_TYPES]; /* back: as undeliverable */
};

/* An actor of the engine with something of the test before it. */
struct ts_world;
struct ts_inner {
    struct ts_world *w;
    enum ts_part part;
    int index;
    const struct act_behaviour *behaviour;
    const void *arg;
    void *state; /* the actor's own, while it lives: for tests that look into it between two steps */
    bool silent; /* it hears nothing and does nothing, but is not gone */
};

struct ts_world {
    struct mdl_model *m;
    struct act_sim *sim;
    struct act_runtime *rt;
    struct act_engine e;
    struct act_expert_arg expert[TS_WORLD_SHARDS];
    struct act_map *map;
    struct act_addr client;
    struct ts_wanted wanted[TS_WORLD_REQUESTS];
    struct ts_outcome got[TS_WORLD_REQUESTS];
    int n;
    struct act_router_arg router;
    const struct act_store *store;              /* tiers below the device, on the client's worker; NULL: none */
    const struct act_engram_store *engram;      /* on the client's worker; NULL: mapped tables */
    void (*before_sources)(struct ts_world *w); /* called when the shards are there; NULL: nothing */
    bool balance;                               /* with a balancer; what it does not say of `balancer` is filled in */
    struct act_balancer_arg balancer;
    int prefills, decodes;                               /* actors; 0: one */
    bool restart;                                        /* one that failed begins again */
    int64_t restart_ns;                                  /* after so long */
    int more_workers;                                    /* for actors of the test; ts_world_worker */
    void (*before_tiers)(struct ts_world *w, void *ctx); /* called when there are no actors yet; NULL: nothing */
    void *tiers_ctx;
    struct ts_kill kill[TS_WORLD_KILLS];
    int n_kills, tokens;
    struct ts_seen *seen;                /* NULL: nobody wants to know */
    struct kv_device *old[TS_WORLD_OLD]; /* of processes that have ended: what was under way may still read them */
    int n_old;
    bool deaf;                  /* the client ends when its first tokens come */
    bool client_silent;         /* it hears nothing and does nothing */
    int64_t patience;           /* of requests, ns; 0: as ever */
    enum act_type client_loses; /* the first of these to it is lost; of TOKENS, the first with an end */
    bool watch;                 /* Decode reports to the client; for ts_world_reports */
    struct ts_report report[TS_WORLD_REPORTS];
    int n_reports;
    int lost_late; /* requests that were told of a lost place after their end: the Router had not forgotten them */
    bool in_turn;  /* of struct act_sim_config */
    FILE *trace;   /* likewise */
    enum act_class prefill_class;
    /* Sees every message of an actor before it; true: the message is dealt with. A negative errno in *fail ends the
     * actor. */
    bool (*before)(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail);
    void *before_ctx;
    const struct ts_inner *frozen; /* takes nothing any more, as a process that stands still; may be set at any time */
    /* Sees the TOKENS that the client gets, with before_ctx; NULL: nothing. */
    void (*on_tokens)(void *ctx, struct act_msg *m);
    /* Called once at a virtual time, with before_ctx; NULL: not. */
    void (*at)(void *ctx);
    int64_t at_ns;
    /* Each shard on a worker of its own, behind a link with these faults, as in a process of its own. */
    bool apart;
    bool mortal; /* shards that fail stay dead */
    struct act_sim_fault link;
    /* Prefill here, Decode in another process (struct ts_far), with a Landing before it and a link with these faults in
     * between. */
    bool split;
    bool two; /* and a second one of these */
    struct act_sim_fault kv_link;
    int64_t client_delay; /* ns that messages between the client and the rest are on their way; 0: none */
    struct ts_wire wire;  /* for rows that are put there */
    struct ts_far far, other;
    struct act_engine members; /* as the Router knows them */
    int64_t cost[TS_PARTS];    /* virtual ns that a call of such an actor takes */
    float plain_logprob[256];  /* of the last ts_world_plain */

    struct ts_inner inner[TS_PARTS][TS_WORLD_ACTORS];
    struct act_behaviour outer[TS_PARTS];
    struct act_timer timer[2 * TS_WORLD_REQUESTS + TS_WORLD_KILLS]; /* of the client: starts, cancels, kills */
};

extern const struct act_behaviour ts_world_client; /* arg: struct ts_world * */

/* The mini8 model, limits for short requests, a device tier of so many pages. */
void ts_world_open(struct ts_world *w, int pages, int shards);
/* n requests at random times. */
void ts_world_requests(struct ts_world *w, int n, unsigned seed);
/* Makes the actors; nothing has run yet. */
void ts_world_start(struct ts_world *w, uint64_t seed);
/* ts_world_start, and runs until nothing happens any more; the trace. */
uint64_t ts_world_run(struct ts_world *w, uint64_t seed);
/* After everything has ended only what the actors keep by design is held: the leases of Decode; no ticket is open. */
void ts_world_check_baseline(struct ts_world *w);
/* Has every Prefill, Decode and the Landing say what it holds: w->report. Takes 0.6 s of virtual time. */
void ts_world_reports(struct ts_world *w);
/* The client cancels request i. */
void ts_world_cancel(struct ts_world *w, int i);
/* Ends every Prefill, Decode and Landing, as if each had failed; runs until that is known everywhere. */
void ts_world_end_all(struct ts_world *w);
/* The process ends as a whole, at this instant: its actors, its pages, its connections. Its actors begin again
 * restart_ns later, with new pages; w->restart is set. Between two steps of the simulation. */
void ts_world_end_process(struct ts_world *w, enum ts_process p);
/* Where an actor will be that has ended and begins again. */
struct act_addr ts_world_next_life(struct act_addr who);
struct act_engine *ts_world_engine(struct ts_world *w, enum ts_process p);
/* The k-th of more_workers. */
int ts_world_worker(const struct ts_world *w, int k);
void ts_world_close(struct ts_world *w);
/* The same when the simulation has ended. */
void ts_world_free(struct ts_world *w);

/* The tokens of a request without actors; chunk and draft as the engine has them, experts from `providers` (NULL: local
 * ones). out has room for max_new. */
void ts_world_plain(struct ts_world *w, const struct ts_wanted *q, const struct mdl_providers *providers, int32_t *out);
/* Prefill here, Decode in another process with so many pages; before ts_world_run, after limits are set. */
void ts_world_split(struct ts_world *w, int pages, enum mdl_handoff_form form);
/* And a second process with Decode; after ts_world_split. The Router hears of both from the client, as from a link. */
void ts_world_add_other(struct ts_world *w, int pages);
/* Request i ended once, with the tokens of the plain run. */
void ts_world_check_same(struct ts_world *w, int i);

#endif
