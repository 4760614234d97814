/* The Router: which Prefill and which Decode work for a request. One per gateway, on the gateway's worker.
 *
 * It knows its members from a list, from the directory of the link or from their first LOAD report, keeps books of what
 * it has placed itself, and takes from each report only what others have placed there; so a report that is a little old
 * does no harm. Of two members drawn at random the less loaded one is taken: Prefill by outstanding prompt tokens,
 * Decode by room in its KV memory, then by sequences. With `prefix`, every Prefill is weighed instead, and tokens that
 * one of them has computed before count for it. With `cost` too, they are weighed by time: until a prompt is computed
 * there, at what a token costs at that Prefill by its own report. Tokens that another Prefill has computed cost what
 * reading them does, where there is a tier that all of them read (`common`, or a kv node is there): then their place
 * hardly matters and load decides.
 *
 * When a member ends, or a distant one is silent for too long, each request that was placed there is told
 * (ROUTE_LOST). */
#ifndef WEFT_ACTORS_ROUTER_H
#define WEFT_ACTORS_ROUTER_H

#include "actors/engine.h"
#include "config/config.h"

struct act_log;

struct act_router_arg {
    const struct act_engine
        *engine;       /* its prefill and decode lists, as they are at start; NULL: none of this process */
    bool prefix;       /* weigh known prefixes against load */
    bool cost, common; /* with prefix: by time; and what one has computed all can read */
    int block_tokens;
    struct act_addr link; /* tells of members on other nodes (link.h); nobody: there are none */
    int64_t silent_ns;    /* a member of another node that was not heard of for so long is gone; 0: never */
    struct act_log *log;
    int *requests; /* how many are in its books, for whoever is on its thread; NULL: nobody looks */
    /* What is not there any more, "prefill" or "decode"; NULL: both are. On every change; thread of the Router. */
    void (*lacking)(void *ctx, const char *part);
    void *ctx;
};

/* arg: struct act_router_arg *. */
extern const struct act_behaviour act_router_behaviour;

/* Who gets an actor's LOAD reports beside the Router of its own process: Routers of other nodes that asked for them. */
enum { ACT_ROUTERS_MAX = 64 };
struct act_routers {
    struct act_addr addr[ACT_ROUTERS_MAX];
    uint32_t placed[ACT_ROUTERS_MAX]; /* requests that it has placed at this actor, as it said when that drained */
    int n;
};
/* LOAD_WANTED, or a LOAD that came back; of a Router its own LOAD: what it has placed. */
void act_routers_message(struct act_routers *r, struct act_msg *m);
/* Of all of them. */
uint64_t act_routers_placed(const struct act_routers *r);

/* Sends a LOAD report of the actor to the Router; role: CFG_ROLE_PREFILL or CFG_ROLE_DECODE. Or from a Router
 * (CFG_ROLE_GATEWAY) to a Decode that drains: `waiting` requests are placed there. Nobody: none is sent. */
void act_load_report(struct act_self *self, struct act_addr router, unsigned role, uint32_t *sequence,
                     const struct act_b_load *load);

enum { ACT_LOAD_REPORT_NS = 100000000 };

#endif
