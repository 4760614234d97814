/* Hand-offs between two nodes as they are: two runtimes in one simulation, each with its link, over the fault decorator
 * before the simulated network. Router, Prefill, Landing, tickets and Decode are the real ones. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/decode.h"
#include "actors/link.h"
#include "actors/prefill.h"
#include "actors/runtime/buffer.h"
#include "actors/tier_device.h"
#include "tests/support/engine_world.h"
#include "tests/support/less.h"
#include "tests/support/model.h"
#include "transport/fault.h"
#include "transport/sim.h"

#define MS INT64_C(1000000)

enum { LINK_WORKER, ENGINE_WORKER, CLIENT_WORKER, WORKERS, POOL = 16, MOST_NEW = 3 };

/* Node 0 has the client, the Router and Prefill, node 1 Decode. */
struct net {
    struct ts_world w;
    struct act_runtime *rt[2];
    struct tp_sim_net *net;
    struct tp_sim_end end[2];
    struct tp_fault fault[2];
    struct act_link_arg link[2];
    struct act_link_peer peer[2];
    long buffers, sequences;
    int from[TS_WORLD_REQUESTS]; /* the pool's */
};

/* ---- what is asked ---- */

struct pool {
    struct ts_wanted wanted[POOL];
    int32_t ids[POOL][MOST_NEW];
    bool known[POOL];
};

static void pool_fill(struct pool *p, int vocab)
{
    uint64_t random = 11;
    if (p->wanted[0].n_prompt)
        return;
    for (int i = 0; i < POOL; i++) {
        struct ts_wanted *q = &p->wanted[i];
        *q = (struct ts_wanted){.max_new = 1 + (int)ts_random(&random, MOST_NEW),
                                .n_prompt = 2 + (int)ts_random(&random, i % 8 ? 10 : 34),
                                .seed = (uint64_t)i,
                                .temperature = (float)(i % 2)};
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = (int32_t)ts_random(&random, (uint32_t)vocab);
    }
}

/* ---- two nodes ---- */

static struct act_addr spawn(struct net *n, int node, int worker, const struct act_behaviour *b, const void *arg)
{
    const struct act_spawn spec = {.behaviour = b, .worker = worker, .arg = arg, .outbox = 1024};
    struct act_addr a;
    struct cfg_error err;
    cr_assert_eq(act_runtime_spawn(n->rt[node], &spec, &a, &err), 0, "%s", err.msg);
    return a;
}

static void spawn_link(struct net *n, int i)
{
    const struct act_engine *e = i ? &n->w.far.e : &n->w.e;
    struct act_link_arg *a = &n->link[i];
    *a = (struct act_link_arg){.net = {.ops = &tp_faulty,
                                       .endpoint = {.provider = &n->fault[i], .connect_ns = 100 * MS},
                                       .self = {.kind = TP_KIND_NODE,
                                                .number = (uint16_t)(i + 1),
                                                .epoch = 1,
                                                .roles = 1,
                                                .model = 1,
                                                .block_tokens = TS_WORLD_BLOCK},
                                       .handshake_ns = 200 * MS,
                                       .retry_max_ns = 100 * MS},
                               .peer = &n->peer[1 - i],
                               .n_peers = 1,
                               .n_windows = 1};
    a->window[0] = (struct act_link_window){.id = ACT_WINDOW_PAGES,
                                            .base = kv_device_bytes(e->device, 0),
                                            .size = (size_t)kv_device_pages(e->device) * e->layout.block_bytes};
    snprintf(a->net.self.name, sizeof a->net.self.name, "n%d", i);
    snprintf(a->listen, sizeof a->listen, "n%d", i);
    snprintf(n->peer[i].name, sizeof n->peer[i].name, "n%d", i);
    snprintf(n->peer[i].address, sizeof n->peer[i].address, "n%d", i);
    n->peer[i].number = (uint16_t)(i + 1);
}

static void spawn_engine(struct net *n, int node, struct act_engine *e, struct act_expert_arg *expert,
                         const struct act_map *map)
{
    e->tier = spawn(n, node, ENGINE_WORKER, &act_tier_device_behaviour, e);
    *expert = (struct act_expert_arg){.m = n->w.m, .map = map, .index = 0};
    e->experts.shard[0] = spawn(n, node, ENGINE_WORKER, &act_expert_behaviour, expert);
}

static void add_own(struct act_link_arg *a, enum act_node_kind kind, struct act_addr who)
{
    a->own[a->n_own++] = (struct act_node_actor){.kind = kind, .addr = who};
}

static void spawn_decode_node(struct net *n)
{
    struct ts_far *f = &n->w.far;
    f->e.link = spawn(n, 1, LINK_WORKER, &act_link_behaviour, &n->link[1]);
    spawn_engine(n, 1, &f->e, &f->expert[0], f->map);
    f->e.decode[f->e.n_decode++] = spawn(n, 1, ENGINE_WORKER, &act_decode_behaviour, &f->e);
    f->replay = spawn(n, 1, ENGINE_WORKER, &act_prefill_behaviour, &f->e);
    f->arg = (struct act_landing_arg){.engine = &f->e, .replay = f->replay, .stats = &f->stats};
    f->e.load = f->landing = spawn(n, 1, ENGINE_WORKER, &act_landing_behaviour, &f->arg);
    n->link[1].port[TP_CLASS_KV][ACT_PORT_LANDING] = f->landing;
    add_own(&n->link[1], ACT_NODE_LINK, f->e.link);
    add_own(&n->link[1], ACT_NODE_DECODE, f->landing);
}

static void spawn_prefill_node(struct net *n)
{
    struct ts_world *w = &n->w;
    w->e.link = spawn(n, 0, LINK_WORKER, &act_link_behaviour, &n->link[0]);
    spawn_engine(n, 0, &w->e, &w->expert[0], w->map);
    w->e.prefill[w->e.n_prefill++] = spawn(n, 0, ENGINE_WORKER, &act_prefill_behaviour, &w->e);
    w->members = w->e;
    w->router.engine = &w->members;
    w->router.link = w->e.link;
    w->e.router = spawn(n, 0, CLIENT_WORKER, &act_router_behaviour, &w->router);
    w->client = spawn(n, 0, CLIENT_WORKER, &ts_world_client, w);
    add_own(&n->link[0], ACT_NODE_LINK, w->e.link);
    add_own(&n->link[0], ACT_NODE_PREFILL, w->e.prefill[0]);
}

static void net_open(struct net *n, struct pool *p, int requests, int64_t apart, uint64_t seed)
{
    struct ts_world *w = &n->w;
    uint64_t random = seed;
    memset(n, 0, sizeof *n);
    n->buffers = act_buf_live();
    n->sequences = mdl_seq_live();
    ts_world_open(w, 24, 1);
    w->e.limits.context = 64;
    w->e.limits.replay = 0; /* so that a request that goes on elsewhere has the same tokens */
    ts_world_split(w, 24, MDL_HANDOFF_FULL);
    w->e.tickets = w->far.e.tickets =
        (struct act_ticket_times){.grant = 100 * MS, .lease = 100 * MS, .quarantine = 100 * MS, .fence = 100 * MS};
    pool_fill(p, w->m->cfg->vocab_size);
    w->n = requests;
    for (int i = 0; i < requests; i++) {
        n->from[i] = (int)ts_random(&random, POOL);
        w->wanted[i] = p->wanted[n->from[i]];
        w->wanted[i].start = 500 * MS + i * apart;
    }
    n->net = tp_sim_net_new(seed);
    tp_sim_net_fault(n->net, &(struct tp_sim_fault){.delay_min = MS / 20, .delay_max = MS / 2, .piece = 256});
    for (int i = 0; i < 2; i++) {
        n->end[i].net = n->net;
        snprintf(n->end[i].name, sizeof n->end[i].name, "n%d", i);
        n->fault[i] = (struct tp_fault){.ops = &tp_sim, .provider = &n->end[i], .seed = seed + (uint64_t)i};
    }
}

static bool all_ended(const struct ts_world *w)
{
    for (int i = 0; i < w->n; i++)
        if (!w->got[i].terminal)
            return false;
    return true;
}

static void net_run(struct net *n, uint64_t seed)
{
    struct ts_world *w = &n->w;
    struct cfg_error err;
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = seed}, &w->sim, &err), 0);
    for (int i = 0; i < 2; i++) {
        struct act_config c = {.node = (uint16_t)(i + 1), .epoch = 1, .workers = WORKERS};
        for (int k = 0; k < WORKERS; k++)
            c.worker[k] = (struct act_worker_config){.kind = ACT_WORKER_ENGINE, .cpu = -1};
        cr_assert_eq(act_sim_add(w->sim, &c, &n->rt[i], &err), 0, "%s", err.msg);
        spawn_link(n, i);
    }
    w->rt = n->rt[0];
    spawn_decode_node(n);
    spawn_prefill_node(n);
    while (!all_ended(w) && act_sim_now(w->sim) < 120000 * MS)
        act_sim_run(w->sim, act_sim_now(w->sim) + 20 * MS, 10000000);
    act_sim_run(w->sim, act_sim_now(w->sim) + 2000 * MS, 10000000);
}

/* Every request has its tokens, and nothing is held but the lease of the one Decode. May_refuse: one that comes while
 * the other node is not there ends with -EHOSTDOWN at once. Returns how many did. */
static int net_check(struct net *n, struct pool *p, const char *when, bool may_refuse)
{
    int refused = 0;
    struct ts_world *w = &n->w;
    struct kv_device_stats s;
    for (int i = 0; i < w->n; i++) {
        const struct ts_outcome *o = &w->got[i];
        int k = n->from[i];
        if (may_refuse && o->terminal == 1 && o->status == -EHOSTDOWN && !o->place.replaced && !o->n) {
            refused++;
            continue;
        }
        cr_assert(o->terminal == 1 && o->status == 0 && o->n == w->wanted[i].max_new,
                  "%s, request %d: %d ends, status %d, %d tokens of %d, attempt %d, reason %d", when, i, o->terminal,
                  o->status, o->n, w->wanted[i].max_new, o->place.attempt, o->place.reason);
        if (!p->known[k])
            ts_world_plain(w, &p->wanted[k], NULL, p->ids[k]);
        p->known[k] = true;
        cr_assert_arr_eq(o->ids, p->ids[k], (size_t)o->n * sizeof o->ids[0], "%s, request %d: other tokens", when, i);
    }
    cr_assert_eq(w->far.stats.open, 0, "%s: %d tickets are open", when, w->far.stats.open);
    kv_device_stat(w->e.device, &s);
    cr_assert_eq(s.held, 0, "%s: %d pages are held by the writer", when, s.held);
    kv_device_stat(w->far.e.device, &s);
    cr_assert_eq(s.held, w->e.limits.lease, "%s: %d pages are held by the reader", when, s.held);
    cr_assert_eq(mdl_seq_live(), n->sequences, "%s: sequences are left", when);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < WORKERS * WORKERS; k++) {
            int messages = 0, requests = 0;
            act_stats_lane(n->rt[i], k / WORKERS, k % WORKERS, &messages, &requests);
            cr_assert_eq(requests, 0, "%s: a question has no end", when);
        }
    return refused;
}

static void net_close(struct net *n)
{
    ts_world_close(&n->w);
    tp_sim_net_free(n->net);
    cr_assert_eq(act_buf_live(), n->buffers, "%ld buffers are left", act_buf_live() - n->buffers);
}

/* ---- the tests ---- */

static struct pool pool;
static struct net net;

Test(handoff_net, two_nodes_give_the_tokens_of_one)
{
    net_open(&net, &pool, 20, 3 * MS, 1);
    net_run(&net, 1);
    net_check(&net, &pool, "no faults", false);
    cr_expect_eq(net.w.far.stats.taken, 20);
    cr_expect_eq(net.w.far.stats.failed, 0);
    net_close(&net);
}

/* What tells one side that bytes have arrived, or the other that they have been sent, is lost. */
static void lose_one_in_fifty(uint32_t on, const char *what)
{
    enum { TRANSFERS = 250 / TS_LESS };
    uint64_t lost = 0;
    int again = 0;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        net_open(&net, &pool, TRANSFERS, 4 * MS, seed);
        for (int i = 0; i < 2; i++) {
            net.fault[i].rule[0] = (struct tp_fault_rule){
                .on = on, .classes = 1 << TP_CLASS_KV, .what = TP_FAULT_LOSE, .at = 11 + 7 * seed, .every = 50};
            net.fault[i].rules = 1;
        }
        net_run(&net, seed);
        net_check(&net, &pool, what, false);
        for (int i = 0; i < net.w.n; i++)
            again += net.w.got[i].place.replaced;
        lost += net.fault[0].rule[0].done + net.fault[1].rule[0].done;
        net_close(&net);
    }
    cr_log_info("%s: %d lost, %d transfers were made again", what, (int)lost, again);
    cr_expect_gt(lost, TRANSFERS / 50);
    cr_expect_gt(again, 0, "nothing that was lost was missed");
}

Test(handoff_net, lost_completions_leave_every_slot_free)
{
    lose_one_in_fifty(TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE, "completions");
}

Test(handoff_net, lost_frames_and_completions_leave_every_slot_free)
{
    lose_one_in_fifty(TP_FAULT_SEND | TP_FAULT_FRAME | TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE, "frames and completions");
}

/* The sending node is cut off at its k-th write of class kv (frames, puts), for every k that there is; it is back soon,
 * as the same incarnation. */
Test(handoff_net, the_sender_is_cut_off_between_any_two_writes)
{
    uint64_t writes = 1;
    int again = 0, refused = 0;
    for (uint64_t k = 0; k <= writes; k += TS_LESS) {
        char when[64];
        snprintf(when, sizeof when, "cut off at write %d", (int)k);
        net_open(&net, &pool, 3, MS, 5);
        net.fault[0].rule[0] = (struct tp_fault_rule){.on = TP_FAULT_SEND | TP_FAULT_PUT,
                                                      .classes = 1 << TP_CLASS_KV,
                                                      .what = TP_FAULT_CRASH,
                                                      .at = k ? k : UINT64_MAX};
        net.fault[0].rules = 1;
        net_run(&net, 5);
        refused += net_check(&net, &pool, when, k > 0);
        cr_assert_eq(net.fault[0].rule[0].done, k > 0);
        if (!k) /* the undisturbed run; pings of an idle connection, at its end, are writes too */
            writes = net.fault[0].rule[0].seen;
        for (int i = 0; i < net.w.n; i++)
            again += net.w.got[i].place.replaced;
        net_close(&net);
    }
    cr_log_info("%d writes, %d transfers were made again, %d found nobody", (int)writes, again, refused);
    cr_expect_gt(writes, 8);
    cr_expect_lt(refused, (int)writes);
    cr_expect_ge(again, 4 / TS_LESS);
}
