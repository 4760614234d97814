/* What the files of actors/server*.c share: server_plan.c turns the configuration into plans, server_spawn.c makes the
 * actors of a node's roles, server.c has the public functions. Main thread, except what lock guards. */
#ifndef WEFT_ACTORS_SERVER_IMPL_H
#define WEFT_ACTORS_SERVER_IMPL_H

#include <pthread.h>

#include "actors/balancer.h"
#include "actors/engine.h"
#include "actors/expert.h"
#include "actors/expert_finder.h"
#include "actors/gateway/gateway.h"
#include "actors/gauge.h"
#include "actors/kv_node.h"
#include "actors/landing.h"
#include "actors/link.h"
#include "actors/router.h"
#include "actors/runtime/runtime.h"
#include "actors/server.h"
#include "actors/tally.h"
#include "actors/tier_source.h"
#include "actors/engram_store.h"
#include "actors/tier_store.h"
#include "actors/tier_watch.h"
#include "config/config.h"
#include "transport/providers.h"

/* The workers of a node's runtime. */
/* The last one is there only with tiers below the device. */
enum { SERVER_WORKER_IO, SERVER_WORKER_ENGINE, SERVER_WORKER_HELPER, SERVER_WORKER_TIER, SERVER_WORKERS };
_Static_assert((int)SERVER_WORKERS == (int)ACT_SERVER_WORKERS, "server.h tells others");

/* What a node with the role kv has (server_kv.c). */
struct server_kv {
    struct act_store store; /* n_tiers 0: the node has not the role */
    struct act_addr store_addr, addr, watch;
    struct act_kv_node_arg arg;
    uint8_t *buffer;
    size_t buffer_bytes;
    uint8_t *slots; /* of a node that computes; of that size too */
    size_t slots_bytes;
    char folder[CFG_PATH_TEXT]; /* of its ssd tier */
};

struct act_server {
    const struct cfg_config *config;
    const struct cfg_node *node;
    struct act_log *log;
    struct mdl_model *m;
    struct mdl_tokenizer *tok;
    struct mdl_tok_encoder *enc[2]; /* of the io worker and of the helper */
    struct act_runtime *rt;
    struct act_engine engine;
    struct act_expert_arg expert[ACT_SHARDS_MAX];
    struct act_map *map; /* of the experts of this node's group, to begin with */
    struct act_balancer_arg balancer;
    struct act_addr balancer_addr; /* of this node, in charge or not; nobody: none */
    struct act_finder_arg finder;
    struct act_slots *slots;   /* of the expert exchange with other nodes; NULL: none */
    int first_shard, n_shards; /* of this node, in its group */
    struct act_router_arg router;
    int placed; /* requests in the Router's books; of the io worker */
    struct act_landing_arg landing;
    struct act_engine members; /* as the Router knows this node, when a Landing stands for its Decode actors */
    struct act_store store;    /* n_tiers 0: nothing below the device */
    struct server_kv kv;
    struct act_tier_watch watch;
    struct act_engram_store engram; /* rows NULL: mapped tables */
    struct act_tier_source_arg tier_source;
    struct act_gauge_arg gauge;
    struct act_tally tally;
    struct act_link_arg *link; /* NULL: one node alone */
    struct {
        char name[CFG_NAME_TEXT];
        unsigned roles;
    } listed[CFG_NODES_MAX]; /* the nodes as the file last had them; from the start on of the io worker */
    int n_listed;
    struct act_link_peer *link_peers;
    struct tp_provider provider; /* of the link */
    int lock_file;               /* held while the node lives; -1: none */
    struct gw_context gateway;
    struct act_addr gateway_addr; /* nobody: the node has no such role */
    struct act_addr figures_addr; /* answers /metrics on a node without a gateway; nobody: nobody does */
    /* What the workers tell the main thread. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ready, drained, failed, draining, drain_asked;
    bool settled;                    /* nothing more becomes of what it had */
    bool watched;                    /* whoever asked for the drain waits to hear of that */
    bool farewell;                   /* and has */
    uint64_t tally_was[ACT_TALLIES]; /* when the drain began */
    char *stale;                     /* act_server_set_stale */
    int64_t began_s;                 /* seconds of CLOCK_MONOTONIC, when it was made */
    int64_t drain_began;             /* ns of CLOCK_MONOTONIC; main thread */
    int port;
    struct cfg_error gateway_error;
};

/* Called by actors, each once, on any worker; ctx is the server. */
void server_on_ready(void *ctx, int port);
void server_on_failed(void *ctx);
void server_on_drained(void *ctx);

static inline bool server_has(const struct act_server *s, unsigned roles)
{
    return (s->node->roles & roles) != 0;
}

/* Opens the model and turns the configuration into the plans of the node's roles. */
int server_plan(struct act_server *s, struct cfg_error *err);
/* server_tiers.c: opens the tiers below the device, as configured, when the device tier exists; and closes them. */
int server_tiers_open(struct act_server *s, struct cfg_error *err);
void server_tiers_close(struct act_server *s);
/* One more tier of a store. */
void server_add_tier(struct act_store *store, enum act_tier_kind kind, struct kv_tier *t);
/* The ssd tier of a store whose storage 0 is open, of so many bytes in the folder, which it does not copy. */
int server_add_ssd(struct act_server *s, struct act_store *store, const char *folder, int64_t bytes,
                   void (*log)(void *ctx, bool warning, const char *text), struct cfg_error *err);
/* server_kv.c: whether this node keeps blocks for others; its tiers and pool; its actors, before those that compute;
 * the tier through which a node that computes uses kv nodes, into store.nodes. */
bool server_keeps_blocks(const struct act_server *s);
int server_layout(const struct act_server *s, struct kv_layout *out, struct cfg_error *err);
int server_kv_open(struct act_server *s, struct cfg_error *err);
void server_kv_close(struct act_server *s);
int server_spawn_kv(struct act_server *s, struct cfg_error *err);
/* Whoever keeps what tiers say of themselves; before those that have tiers. */
int server_spawn_watch(struct act_server *s, struct cfg_error *err);
int server_nodes_open(struct act_server *s, struct cfg_error *err);
/* server_metrics.c: what answers HTTP at this address, the value of that key of the node: what a gateway and a node
 * with nodes[].metrics have in common; the actor of the latter, if there is one; the node's part of /metrics. */
int server_plan_http(struct act_server *s, const char *key, const char *address, struct cfg_error *err);
int server_spawn_figures(struct act_server *s, struct cfg_error *err);
void server_node_metrics(void *ctx, struct gw_bytes *b);
/* server_engram.c: opens the row store, as configured, after the tiers; its actor, before those that ask it; closes it.
 */
int server_engram_open(struct act_server *s, struct cfg_error *err);
int server_spawn_engram(struct act_server *s, struct cfg_error *err);
void server_engram_close(struct act_server *s);
/* server_experts.c: the node's group of expert shards, those of this process, and its balancer if it is
 * one of several expert nodes. Shards of other nodes are nobody until they are found. */
int server_spawn_experts(struct act_server *s, struct cfg_error *err);
/* server_slots.c: slots of the expert exchange, before the link's plan; their windows, for it; and who uses them, when
 * all actors are there. */
int server_slots_open(struct act_server *s, struct cfg_error *err);
void server_slots_windows(struct act_server *s, struct act_link_arg *a);
void server_slots_ports(struct act_server *s, struct act_link_arg *a);
/* server_landing.c: the Landing of a node with Decode actors in a deployment, after them; and this node's actors as
 * Routers are to know them. */
int server_spawn_landing(struct act_server *s, struct cfg_error *err);
const struct act_engine *server_members(struct act_server *s);
/* server_link.c: the boot epoch, for which the node's name is taken on this machine; the link's plan, after the other
 * plans; the link; and the directory, when all other actors are there. */
int server_incarnation(struct act_server *s, uint64_t *epoch, struct cfg_error *err);
int server_plan_link(struct act_server *s, uint64_t epoch, struct cfg_error *err);
int server_spawn_link(struct act_server *s, struct cfg_error *err);
void server_list_actors(struct act_server *s);
/* server_tools.c: what the node answers to weft status and weft drain, freed by the caller. ctx is the server; thread
 * of the io worker. */
char *server_answer_tool(void *ctx, const char *question);
/* server_drain.c: the drain begins, main thread; what has become of what the node had since then, as an object of the
 * caller's (NULL: it does not drain), whether that is the last word, and that weft drain has been told it: thread of
 * the io worker. */
void server_drain_begins(struct act_server *s);
struct json_t *server_drain_json(struct act_server *s);
bool server_drain_settled(struct act_server *s);
void server_drain_told(struct act_server *s);
/* Makes the actors of the node's roles; the runtime exists and does not run yet. */
int server_spawn(struct act_server *s, struct cfg_error *err);

#endif
