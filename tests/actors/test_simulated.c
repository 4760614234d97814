/* The whole engine in the simulation, for many seeds: everything about a run is drawn from its seed, what is wanted,
 * how many actors there are and where, how little memory they have, which messages between processes are lost, doubled
 * or late, who cancels when, which actor fails, which process ends as a whole and begins again, which tiers there are
 * below the pages and what becomes of them. After each run every request has ended once, in a way that is documented,
 * and everything is back where it was. What has happened over all seeds is counted, and printed; what never did fails
 * the test.
 *
 * WEFT_SEED=N runs the seed N alone and says on standard error what its world is, WEFT_SEEDS=N the seeds 1 to N;
 * WEFT_TRACE=1 prints every step. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/recipe.h"
#include "actors/runtime/buffer.h"
#include "tests/support/engine_world.h"
#include "tests/support/less.h"
#include "tests/support/model.h"
#include "tests/support/sim_tiers.h"

#define MS INT64_C(1000000)

enum { SEEDS = 240 / TS_LESS, FAMILIES = 3, MOST_NEW = 24, FEW_NEW = 8, MISHAPS = 4 };

/* Prompts that begin alike in blocks enough for an exact hit, in worlds with tiers below the pages. */
enum { SHORT = 24, LONG = 4, POOL = SHORT + LONG, CONTEXT = 96, LONG_CONTEXT = 192, LONG_PREFIX = 160 };

/* Virtual time by which all requests have ended: a place is looked for for 10 s at most, four times in a row. */
static const int64_t bound = 60000 * MS;

/* ---- what is wanted ---- */

/* Prompts that many seeds share, so that what they must give is computed once. Some begin alike. */
struct pool {
    struct ts_wanted wanted[POOL];
    int32_t ids[2][POOL][MOST_NEW]; /* [exact]: of a run without actors */
    bool known[2][POOL];
};

static void pool_fill(struct pool *p, int vocab)
{
    uint64_t random = 7;
    for (int i = 0; i < POOL; i++) {
        struct ts_wanted *q = &p->wanted[i];
        uint64_t family = (uint64_t)(i < SHORT ? i % FAMILIES : FAMILIES + i % 2);
        int alike = i < SHORT ? 2 * TS_WORLD_BLOCK + 3 : LONG_PREFIX;
        q->n_prompt = i < SHORT ? 1 + (int)ts_random(&random, i % 4 ? 24 : 60) : alike + 1 + (int)ts_random(&random, 8);
        q->max_new =
            i % 4 == 1 ? MOST_NEW / 2 + (int)ts_random(&random, MOST_NEW / 2) : 1 + (int)ts_random(&random, FEW_NEW);
        q->temperature = i % 2 ? 1 : 0;
        q->seed = ts_random(&random, 1000);
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = (int32_t)ts_random(k < alike ? &family : &random, (uint32_t)vocab);
    }
}

/* ---- a run ---- */

/* A process stands still for a while: nothing runs there, what is written to its pages lands. */
struct freeze {
    int64_t at, ns; /* ns 0: it does not */
    int first;      /* index of its actors (ts_inner), from here on */
};

/* What happens to the processes and to what they stand on, once each, at a virtual time. */
enum mishap_kind {
    PROCESS_ENDS, /* and begins again */
    NODE_ENDS,    /* a kv node, likewise */
    NODE_SILENT,
    DISK_SLOW, /* nothing is read for a while */
    DISK_BAD_READS,
    DISK_SHORT_READS,
    DISK_BAD_WRITES,
    DISK_BAD_FLUSHES,
    DISK_FULL,
    MISHAP_KINDS,
};

static const char *const mishap_name[MISHAP_KINDS] = {
    [PROCESS_ENDS] = "process ends",   [NODE_ENDS] = "kv node ends",        [NODE_SILENT] = "kv node is silent",
    [DISK_SLOW] = "disk is slow",      [DISK_BAD_READS] = "reads fail",     [DISK_SHORT_READS] = "reads are short",
    [DISK_BAD_WRITES] = "writes fail", [DISK_BAD_FLUSHES] = "flushes fail", [DISK_FULL] = "disk is full",
};

struct mishap {
    struct run *r;
    enum mishap_kind kind;
    int who; /* process or kv node */
    int64_t at, ns;
    int times;
};

struct run {
    struct ts_world w;
    uint64_t seed, random;
    int from[TS_WORLD_REQUESTS]; /* the pool's; -1: can never fit */
    struct freeze freeze;
    bool tiered;
    struct ts_sim_tiers tiers;
    struct mishap mishap[MISHAPS];
    int mishaps;
    long buffers, sequences; /* before it */
};

/* Over all runs, to see that they were of use. */
struct total {
    int whole, same, cancelled, failed, needless, moved, cached, never, lossy, both;
    int planned, frozen, shared, revoked, exact_hits, drained, deaths, shard_deaths, tiered;
    int mishap[MISHAP_KINDS];
    uint64_t host_read, disk_read, node_read, disk_stored, disk_errors, fenced, refused;
    struct ts_seen seen;
};

static int draw(struct run *r, int n)
{
    return (int)ts_random(&r->random, (uint32_t)n);
}

static bool one_in(struct run *r, int n)
{
    return draw(r, n) == 0;
}

/* For the longest sequence, and what the Decode actors keep. */
static int least_pages(const struct run *r)
{
    return r->tiered ? LONG_CONTEXT / TS_WORLD_BLOCK + 6 : CONTEXT / TS_WORLD_BLOCK + 8;
}

/* Up to `lose` per million, as often doubled; late by up to a ms, one link in eight by up to `late`. */
static struct act_sim_fault draw_link(struct run *r, int lose, int64_t late)
{
    return (struct act_sim_fault){.lose = (uint32_t)draw(r, lose + 1),
                                  .copy = (uint32_t)draw(r, lose + 1),
                                  .delay_min = draw(r, 1000) * 100,
                                  .delay_max = one_in(r, 8) ? late : MS};
}

/* A second process with Decode; sooner or later one of the two may be drained, often in the middle of a sequence. */
static void draw_second(struct run *r)
{
    struct ts_world *w = &r->w;
    ts_world_add_other(w, least_pages(r) + draw(r, 40));
    w->other.e.tickets = w->e.tickets;
    if (one_in(r, 4))
        return;
    w->kill[w->n_kills++] = (struct ts_kill){.at = 1 + draw(r, 20000000),
                                             .tokens = one_in(r, 4) ? 0 : 1 + draw(r, 6),
                                             .role = CFG_ROLE_KV,
                                             .drain = true,
                                             .other = one_in(r, 2)};
}

/* ---- mishaps ---- */

static void is_over(void *ctx)
{
    struct mishap *m = ctx;
    struct ts_sim_tiers *t = &m->r->tiers;
    if (m->kind == NODE_SILENT)
        ts_sim_tiers_silence(t, m->who, false);
    else if (m->kind == DISK_SLOW)
        kv_disk_hold(t->store[m->who].disk, KV_IO_READ, NULL, false);
    else
        kv_disk_room(t->store[m->who].disk, -1);
}

static void strike(void *ctx)
{
    struct mishap *m = ctx;
    struct run *r = m->r;
    struct ts_sim_tiers *t = &r->tiers;
    struct kv_disk *disk = m->kind >= DISK_SLOW ? t->store[m->who].disk : NULL;
    switch (m->kind) {
    case PROCESS_ENDS:
        ts_world_end_process(&r->w, (enum ts_process)m->who);
        if (r->tiered)
            ts_sim_tiers_end_process(t, (enum ts_process)m->who);
        return;
    case NODE_ENDS:
        ts_sim_tiers_end_node(t, m->who);
        return;
    case NODE_SILENT:
        ts_sim_tiers_silence(t, m->who, true);
        break;
    case DISK_SLOW:
        kv_disk_hold(disk, KV_IO_READ, NULL, true);
        break;
    case DISK_BAD_READS:
        kv_disk_fail(disk, KV_IO_READ, NULL, 0, m->times, -EIO);
        return;
    case DISK_SHORT_READS:
        kv_disk_fail(disk, KV_IO_READ, NULL, 0, m->times, 512);
        return;
    case DISK_BAD_WRITES:
        kv_disk_fail(disk, KV_IO_WRITE, NULL, 0, m->times, -EIO);
        return;
    case DISK_BAD_FLUSHES:
        kv_disk_fail(disk, KV_IO_SYNC, NULL, 0, m->times, -EIO);
        return;
    default:
        kv_disk_room(disk, 0);
        kv_disk_fail(disk, KV_IO_WRITE, NULL, 0, m->times, -ENOSPC);
        break;
    }
    cr_assert_eq(act_sim_at(r->w.sim, act_sim_now(r->w.sim) + m->ns, is_over, m), 0);
}

/* A process, a kv node or a disk has one of them at most. */
static void draw_mishap(struct run *r)
{
    struct ts_world *w = &r->w;
    struct ts_sim_tiers *t = &r->tiers;
    int processes = 1 + w->split + w->two;
    struct mishap m = {.r = r,
                       .kind = r->tiered && one_in(r, 6) ? PROCESS_ENDS : (enum mishap_kind)draw(r, MISHAP_KINDS),
                       .at = 1 + draw(r, r->tiered ? 60000000 : 20000000),
                       .ns = 1 + draw(r, one_in(r, 2) ? 5 : 700) * MS,
                       .times = 1 + draw(r, 6)};
    bool node = m.kind == NODE_ENDS || m.kind == NODE_SILENT, disk = m.kind >= DISK_SLOW;
    if ((node && !t->nodes) || (disk && !t->disk_blocks))
        return;
    m.who = draw(r, node ? t->nodes : processes);
    for (int i = 0; i < r->mishaps; i++) {
        bool other = r->mishap[i].kind == NODE_ENDS || r->mishap[i].kind == NODE_SILENT;
        if (other == node && r->mishap[i].who == m.who)
            return;
    }
    if (m.kind == PROCESS_ENDS) {
        w->restart = true;
        w->restart_ns = w->restart_ns ? w->restart_ns : 1 + draw(r, one_in(r, 2) ? 1000000 : 50000000);
    }
    r->mishap[r->mishaps++] = m;
}

/* Tiers that are small beside what is wanted, so that blocks go through all of them. */
static void draw_tiers(struct run *r)
{
    struct ts_sim_tiers *t = &r->tiers;
    ts_sim_tiers_open(t, &r->w);
    r->w.e.limits.context = LONG_CONTEXT;
    t->host_blocks = one_in(r, 2) ? 2 + draw(r, 6) : 12 + draw(r, 20);
    t->nodes = draw(r, TS_KV_NODES + 1);
    t->disk_blocks = t->nodes && one_in(r, 2) ? 0 : 32 + draw(r, 64);
    t->node_blocks = 16 + draw(r, 60);
    t->hedge_ns = one_in(r, 3) ? 1 + draw(r, 3) * MS : 0;
    t->node_restart_ns = 1 + draw(r, 30) * MS;
    t->link = draw_link(r, one_in(r, 2) ? 0 : 30000, 60 * MS);
}

static void draw_world(struct run *r)
{
    struct ts_world *w = &r->w;
    struct act_engine_limits *l = &w->e.limits;
    l->context = CONTEXT;
    if (r->tiered)
        draw_tiers(r); /* before the processes, which have the same limits */
    l->streams = 2 + draw(r, 3);
    l->prefills = 1 + draw(r, 3);
    l->chunk = 8 + draw(r, 17);
    l->lease = 1 + draw(r, 2);
    l->replay = one_in(r, 2) ? 0 : l->replay;
    w->e.snapshots = one_in(r, 2);
    w->e.snapshot_blocks = draw(r, 3);
    w->e.experts.limits = (struct act_exchange_limits){.deadline_ns = 30 * MS};
    w->watch = true;
    w->restart = !one_in(r, 4);
    w->prefills = 1 + draw(r, 2);
    w->decodes = 1 + draw(r, 2);
    w->apart = one_in(r, 2);
    /* The later of a shard's answers come behind the deadline, messages of a ticket behind its lease. */
    w->link = draw_link(r, 4000, r->tiered ? 2 * MS : 18 * MS);
    w->balance = one_in(r, 4);
    w->balancer = (struct act_balancer_arg){.interval_ns = 20 * MS, .deadline_ns = 100 * MS, .least_pairs = 1};
    const int64_t delay = one_in(r, 2) ? draw(r, 2000000) : 0;
    if (w->apart && one_in(r, 3)) {
        w->client_delay = delay;
    } else {
        ts_world_split(w, least_pages(r) + draw(r, 40), (enum mdl_handoff_form)draw(r, MDL_HANDOFF_FORMS));
        const int64_t lease = w->link.delay_max > MS ? 600 * MS : 100 * MS; /* more than a step with slow shards */
        const struct act_ticket_times t = {
            .grant = lease / 2, .lease = lease, .quarantine = lease / 2, .fence = 20 * MS};
        w->e.tickets = w->far.e.tickets = t;
        w->wire = (struct ts_wire){.delay_max = one_in(r, 2) ? draw(r, 4000000) : 0,
                                   .break_at = one_in(r, 4) ? 1 + draw(r, 16) : 0,
                                   .hold_at = one_in(r, 8) ? 1 + draw(r, 16) : 0,
                                   .hold_ns = 10 * lease,
                                   .half = one_in(r, 2)};
        w->kv_link = draw_link(r, 60000, lease + lease / 2);
        if (one_in(r, 2))
            draw_second(r);
        if (one_in(r, 6))
            r->freeze = (struct freeze){.at = 1 + draw(r, 20000000),
                                        .ns = draw(r, 3) * lease + draw(r, 100000000),
                                        .first = w->two && one_in(r, 2) ? TS_OTHER
                                                 : one_in(r, 3)         ? 0
                                                                        : TS_FAR};
    }
}

/* Some parts are slow, so that cancels and deaths fall between any two of their messages. */
static void draw_costs(struct run *r)
{
    static const int most_us[TS_PARTS] = {[TS_PART_TIER] = 2000,
                                          [TS_PART_EXPERT] = 20,
                                          [TS_PART_DECODE] = 500,
                                          [TS_PART_PREFILL] = 200,
                                          [TS_PART_LANDING] = 500};
    for (int i = 0; i < TS_PARTS; i++)
        r->w.cost[i] = one_in(r, 3) ? draw(r, most_us[i]) * INT64_C(1000) : 0;
}

static void draw_requests(struct run *r, const struct pool *p)
{
    struct ts_world *w = &r->w;
    w->n = (r->tiered ? 6 : 4) + draw(r, 4);
    for (int i = 0; i < w->n; i++) {
        struct ts_wanted *q = &w->wanted[i];
        bool lengthy = w->two && !one_in(r, 4); /* so that there is something to move */
        r->from[i] = one_in(r, 24)               ? -1
                     : r->tiered && one_in(r, 2) ? SHORT + draw(r, LONG)
                     : lengthy                   ? 1 + 4 * draw(r, SHORT / 4)
                                                 : draw(r, SHORT);
        *q = p->wanted[r->from[i] < 0 ? 0 : r->from[i]];
        q->n_prompt = r->from[i] < 0 ? w->e.limits.context + draw(r, 9) : q->n_prompt;
        q->start = draw(r, r->tiered ? 80000000 : 4000000);
        if (one_in(r, 3))
            q->cancel = q->start + draw(r, one_in(r, 2) ? 2000000 : 30000000);
    }
    static const unsigned role[] = {CFG_ROLE_PREFILL, CFG_ROLE_DECODE, CFG_ROLE_KV, CFG_ROLE_EXPERT};
    if (one_in(r, 4))
        w->kill[w->n_kills++] =
            (struct ts_kill){.at = 1 + draw(r, 20000000), .role = role[draw(r, w->split ? 4 : 2)], .index = 0};
    else if (one_in(r, 8))
        w->kill[w->n_kills++] = (struct ts_kill){.at = 1 + draw(r, 20000000),
                                                 .shard = true,
                                                 .index = draw(r, w->e.experts.n),
                                                 .other = w->split && one_in(r, 2)};
    for (int i = draw(r, r->tiered ? MISHAPS + 1 : one_in(r, 4) ? 2 : 1); i > 0; i--)
        draw_mishap(r);
    w->more_workers = r->tiered ? ts_sim_tiers_workers(&r->tiers) : 0;
}

static bool stand_still(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                        int *fail)
{
    struct run *r = w->before_ctx;
    (void)m, (void)fail;
    bool there = who->index >= r->freeze.first && who->index < r->freeze.first + TS_FAR;
    if (!r->freeze.ns || act_now(self) < r->freeze.at || !there || who->part == TS_PART_TIER)
        return false;
    act_busy(self, r->freeze.ns);
    r->freeze.ns = 0;
    return false;
}

static void describe(const struct run *r)
{
    const struct ts_world *w = &r->w;
    const struct act_engine_limits *l = &w->e.limits;
    fprintf(stderr, "seed %d: %s, %d shards%s%s, %d Prefill, %d Decode, streams %d, prefills %d, chunk %d, lease %d\n",
            (int)r->seed, l->replay ? "replay" : "exact", w->e.experts.n, w->apart ? " apart" : "",
            w->balance ? " balanced" : "", w->prefills, w->decodes, l->streams, l->prefills, l->chunk, l->lease);
    const struct act_sim_fault *f[2] = {w->apart ? &w->link : NULL, w->split ? &w->kv_link : NULL};
    for (int i = 0; i < 2; i++)
        if (f[i])
            fprintf(stderr, "  link to %s loses %u and doubles %u of a million, delays %lld to %lld us\n",
                    i ? "the other process" : "the shards", f[i]->lose, f[i]->copy, (long long)f[i]->delay_min / 1000,
                    (long long)f[i]->delay_max / 1000);
    if (w->split)
        fprintf(stderr, "  form %d%s\n", w->e.form, w->two ? ", two processes with Decode" : "");
    if (r->freeze.ns)
        fprintf(stderr, "  actors %d to %d stand still at %lld us for %lld us\n", r->freeze.first,
                r->freeze.first + TS_FAR - 1, (long long)r->freeze.at / 1000, (long long)r->freeze.ns / 1000);
    for (int i = 0; i < w->n_kills; i++)
        fprintf(stderr, "  %s %u%s %s at %lld us or with the tokens no. %d%s\n", w->kill[i].shard ? "shard" : "role",
                w->kill[i].shard ? (unsigned)w->kill[i].index : w->kill[i].role,
                w->kill[i].other ? " of the second" : "", w->kill[i].drain ? "is drained" : "ends",
                (long long)w->kill[i].at / 1000, w->kill[i].tokens,
                w->restart && !w->kill[i].drain ? " and begins again" : "");
    if (r->tiered)
        fprintf(stderr, "  tiers: host %d, disk %d, %d kv nodes of %d blocks, hedged after %lld us\n",
                r->tiers.host_blocks, r->tiers.disk_blocks, r->tiers.nodes, r->tiers.node_blocks,
                (long long)r->tiers.hedge_ns / 1000);
    for (int i = 0; i < r->mishaps; i++)
        fprintf(stderr, "  %d: %s at %lld us for %lld us, %d times\n", r->mishap[i].who, mishap_name[r->mishap[i].kind],
                (long long)r->mishap[i].at / 1000,
                (long long)(r->mishap[i].kind == PROCESS_ENDS ? w->restart_ns : r->mishap[i].ns) / 1000,
                r->mishap[i].times);
    for (int i = 0; i < w->n; i++)
        fprintf(stderr, "  request %d: prompt %d of %d tokens at %lld us, %d more%s", i + 1, r->from[i],
                w->wanted[i].n_prompt, (long long)w->wanted[i].start / 1000, w->wanted[i].max_new,
                w->wanted[i].cancel ? "" : "\n"),
            w->wanted[i].cancel
                ? (void)fprintf(stderr, ", cancelled at %lld us\n", (long long)w->wanted[i].cancel / 1000)
                : (void)0;
}

static bool all_ended(const struct ts_world *w)
{
    for (int i = 0; i < w->n; i++)
        if (!w->got[i].terminal && !w->got[i].cancelled)
            return false;
    return true;
}

/* ---- what has to hold ---- */

/* The tokens without actors. Bounded replay depends on hits and on where an attempt began; form global is another
 * approximation. There is nothing to compare then. */
static const int32_t *expected(struct run *r, struct pool *p, int i)
{
    struct ts_world *w = &r->w;
    bool exact = !w->e.limits.replay;
    const struct ts_outcome *o = &w->got[i];
    if (!exact && (o->cached || o->place.replaced || (w->split && w->e.form == MDL_HANDOFF_GLOBAL)))
        return NULL;
    if (!p->known[exact][r->from[i]])
        ts_world_plain(w, &p->wanted[r->from[i]], NULL, p->ids[exact][r->from[i]]);
    p->known[exact][r->from[i]] = true;
    return p->ids[exact][r->from[i]];
}

/* Ends that the gateway has an answer for; -EHOSTDOWN when four places in a row failed, or nobody is left. */
static bool is_documented(const struct run *r, int i)
{
    const struct ts_outcome *o = &r->w.got[i];
    for (int k = 0; k < r->w.n_kills && o->status == -ESHUTDOWN; k++)
        if (r->w.kill[k].drain) /* the only one that is left is being drained */
            return true;
    if (r->from[i] < 0 && o->status != -EHOSTDOWN)
        return o->status == -E2BIG;
    if (!o->status)
        return o->finish == ACT_FINISH_LENGTH && o->n == r->w.wanted[i].max_new;
    return o->status == -EHOSTDOWN;
}

static void check_request(struct run *r, struct pool *p, int i, struct total *t)
{
    const struct ts_outcome *o = &r->w.got[i];
    cr_assert_eq(o->terminal + o->cancelled, 1, "seed %d, request %d: %d ends, %scancelled; attempt %d", (int)r->seed,
                 i, o->terminal, o->cancelled ? "" : "not ", o->place.attempt);
    t->cancelled += o->cancelled;
    t->moved += o->place.replaced;
    t->planned += o->place.moved;
    t->cached += o->cached > 0;
    t->exact_hits += o->cached > 0 && !r->w.e.limits.replay && o->terminal && !o->status;
    if (o->terminal) {
        cr_assert(is_documented(r, i), "seed %d, request %d: status %d, finish %d, %d tokens of %d", (int)r->seed, i,
                  o->status, o->finish, o->n, r->w.wanted[i].max_new);
        t->never += o->status == -E2BIG;
        t->failed += o->status == -EHOSTDOWN;
        t->needless += o->status == -EHOSTDOWN && r->w.kv_link.delay_max <= MS && !r->freeze.at && !r->mishaps &&
                       (r->w.restart || !r->w.n_kills);
        t->whole += o->status == 0;
    }
    const int32_t *want = o->n ? expected(r, p, i) : NULL;
    for (int k = 0; want && k < o->n; k++)
        cr_assert_eq(o->ids[k], want[k], "seed %d, request %d, token %d: %d instead of %d", (int)r->seed, i, k,
                     o->ids[k], want[k]);
    t->same += want != NULL;
}

static void no_messages(void *ctx, const struct act_stats_actor *a)
{
    const struct run *r = ctx;
    cr_assert_eq(a->waiting + a->outbox, 0, "seed %d: %s keeps %d messages", (int)r->seed, a->name,
                 a->waiting + a->outbox);
}

static void count_messages(void *ctx, const struct act_stats_actor *a)
{
    *(int *)ctx += a->waiting + a->outbox;
}

/* Pages that are held are the leases of the Decode actors of that process, and nothing else. */
static void check_pages(struct run *r, const struct act_engine *e, const char *where)
{
    struct kv_device_stats s;
    int lease = 0;
    kv_device_stat(e->device, &s);
    for (int i = 0; i < r->w.n_reports; i++)
        for (int k = 0; k < e->n_decode; k++)
            if (act_addr_equal(r->w.report[i].who, act_current(r->w.rt, e->decode[k])))
                lease += r->w.report[i].lease;
    cr_assert_eq(s.held, lease, "seed %d: of %d pages %s %d are held, %d of them as leases", (int)r->seed, s.pages,
                 where, s.held, lease);
    cr_assert_eq(s.changed + (uint64_t)kv_device_canary_check(e->device), 0u,
                 "seed %d: a finished block %s was written to", (int)r->seed, where);
}

static void check_baseline(struct run *r)
{
    struct ts_world *w = &r->w;
    ts_world_reports(w);
    for (int i = 0; i < w->n_reports; i++)
        cr_assert_eq(w->report[i].work, 0, "seed %d: an actor of role %u still works", (int)r->seed, w->report[i].role);
    check_pages(r, &w->e, "here");
    if (w->split) {
        check_pages(r, &w->far.e, "at the other side");
        cr_assert_eq(w->far.stats.open, 0, "seed %d: %d tickets are open", (int)r->seed, w->far.stats.open);
    }
    if (w->two) {
        check_pages(r, &w->other.e, "at the second side");
        cr_assert_eq(w->other.stats.open, 0, "seed %d: %d tickets are open at the second side", (int)r->seed,
                     w->other.stats.open);
    }
    if (r->tiered)
        ts_sim_tiers_check(&r->tiers, (int)r->seed);
    cr_assert_eq(mdl_seq_live(), r->sequences, "seed %d: %ld sequences are left", (int)r->seed,
                 mdl_seq_live() - r->sequences);
    for (int from = 0; from < act_runtime_workers(w->rt); from++)
        for (int to = 0; to < act_runtime_workers(w->rt); to++) {
            int messages, requests;
            if (act_stats_lane(w->rt, from, to, &messages, &requests) == 0)
                cr_assert_eq(requests, 0, "seed %d: %d questions from worker %d to %d have no end", (int)r->seed,
                             requests, from, to);
        }
    /* Reports may be on their way in any instant, the same ones not in the next. */
    int waiting = 1;
    for (int i = 0; i < 4 && waiting; i++) {
        waiting = 0;
        act_sim_run(w->sim, act_sim_now(w->sim) + (7 + i) * MS, 1000000);
        act_stats_actors(w->rt, count_messages, &waiting);
    }
    act_stats_actors(w->rt, no_messages, r);
    ts_world_end_all(w);
    cr_assert_eq(w->lost_late, 0, "seed %d: the Router still knew %d requests", (int)r->seed, w->lost_late);
}

/* Every message of a hand-off comes twice, and requests leave while their rows are on the way. */
static void double_all(struct run *r)
{
    r->w.kv_link = (struct act_sim_fault){.copy = 1000000, .delay_max = MS};
    r->w.wire.delay_max = 2 * MS;
    for (int i = 0; i < r->w.n; i++)
        r->w.wanted[i].cancel = r->w.wanted[i].start + 1 + draw(r, 6000000);
}

static void count_run(const struct run *r, struct total *t)
{
    const struct ts_world *w = &r->w;
    const struct act_landing_stats *s[] = {&w->far.stats, &w->other.stats};
    t->frozen += r->freeze.at && !r->freeze.ns;
    t->shared += s[0]->held + s[1]->held > 0;
    t->revoked += s[0]->revoked + s[1]->revoked > 0;
    for (int i = 0; i < 2; i++) {
        t->fenced += s[i]->fenced;
        t->refused += s[i]->refused;
    }
    for (int i = 0; i < r->mishaps; i++)
        t->mishap[r->mishap[i].kind]++;
    for (int i = 0; i < w->n_kills; i++) {
        t->drained += w->kill[i].drain;
        t->shard_deaths += w->kill[i].shard;
        t->deaths += !w->kill[i].drain && !w->kill[i].shard;
    }
}

static void count_tiers(const struct run *r, struct total *t)
{
    t->tiered++;
    t->host_read += r->tiers.host_read;
    t->disk_read += r->tiers.disk_read;
    t->node_read += r->tiers.node_read;
    t->disk_stored += r->tiers.disk_stored;
    t->disk_errors += r->tiers.disk_errors;
}

static void run_seed(struct pool *p, uint64_t seed, bool say, bool doubled, struct total *t)
{
    static struct run run;
    struct run *r = &run;
    struct ts_seen *seen = &t->seen;
    *r = (struct run){.seed = seed, .random = seed, .buffers = act_buf_live(), .sequences = mdl_seq_live()};
    r->tiered = one_in(r, 4); /* then blocks have to leave the pages */
    ts_world_open(&r->w, least_pages(r) + draw(r, r->tiered ? 6 : 40), 1 + draw(r, 3));
    if (!p->wanted[0].n_prompt)
        pool_fill(p, r->w.m->cfg->vocab_size);
    draw_world(r);
    draw_costs(r);
    draw_requests(r, p);
    if (doubled)
        double_all(r);
    if (say)
        describe(r);
    if (getenv("WEFT_TRACE"))
        r->w.trace = stderr;
    r->w.before = stand_still;
    r->w.before_ctx = r;
    r->w.seen = seen;
    ts_world_start(&r->w, seed);
    for (int i = 0; i < r->mishaps; i++)
        cr_assert_eq(act_sim_at(r->w.sim, r->mishap[i].at, strike, &r->mishap[i]), 0);
    while (!all_ended(&r->w) && act_sim_now(r->w.sim) < bound)
        act_sim_run(r->w.sim, act_sim_now(r->w.sim) + 5 * MS, 10000000);
    act_sim_run(r->w.sim, act_sim_now(r->w.sim) + 3000 * MS, 10000000); /* deadlines of what was given up */
    for (int i = 0; i < r->w.n; i++)
        check_request(r, p, i, t);
    bool lossy = (r->w.split && r->w.kv_link.lose > 5000) || (r->w.apart && r->w.link.lose > 500), cancels = false;
    for (int i = 0; i < r->w.n; i++)
        cancels |= r->w.got[i].cancelled;
    t->lossy += lossy;
    count_run(r, t);
    t->both += lossy && cancels;
    check_baseline(r);
    if (r->tiered) {
        count_tiers(r, t);
        ts_sim_tiers_close(&r->tiers);
    }
    ts_world_close(&r->w);
    cr_assert_eq(act_buf_live(), r->buffers, "seed %d: %ld buffers are left", (int)seed, act_buf_live() - r->buffers);
    cr_assert_eq(mdl_seq_live(), r->sequences);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* Events that the usual range of seeds may not be without. back: the message came back as undeliverable. */
static const struct {
    enum ts_part part;
    enum act_type type;
    bool back;
} must[] = {
    {TS_PART_LANDING, ACT_RESERVE, false},        {TS_PART_LANDING, ACT_KV_READY, false},
    {TS_PART_LANDING, ACT_LINK_IMMEDIATE, false}, {TS_PART_LANDING, ACT_NODE_CLASS, false},
    {TS_PART_LANDING, ACT_LINK_FENCE, false},     {TS_PART_LANDING, ACT_CANCEL, false},
    {TS_PART_LANDING, ACT_DRAIN, false},          {TS_PART_LANDING, ACT_MOVE_GO, false},
    {TS_PART_PREFILL, ACT_RESERVED, false},       {TS_PART_PREFILL, ACT_LINK_PUT_DONE, false},
    {TS_PART_PREFILL, ACT_CANCEL, false},         {TS_PART_PREFILL, ACT_RESERVE, true},
    {TS_PART_PREFILL, ACT_TICKET_ABORT, false},   {TS_PART_PREFILL, ACT_TICKET_CLOSED, true},
    {TS_PART_PREFILL, ACT_KV_ROWS, false},        {TS_PART_DECODE, ACT_MOVE, false},
    {TS_PART_DECODE, ACT_MOVED, false},           {TS_PART_DECODE, ACT_CANCEL, false},
    {TS_PART_DECODE, ACT_LINK_PUT_DONE, false},   {TS_PART_EXPERT, ACT_EXPERT_RESULT, true},
    {TS_PART_TIER, ACT_TIER_FOUND, false},        {TS_PART_TIER, ACT_TIER_ROWS, false},
    {TS_PART_TIER, ACT_TIER_DONE, false},         {TS_PART_TIER, ACT_TIER_STORED, false},
};

static void print_seen(const struct ts_seen *s)
{
    static const char *const part[TS_PARTS] = {[TS_PART_TIER] = "device tier",
                                               [TS_PART_EXPERT] = "expert shard",
                                               [TS_PART_DECODE] = "Decode",
                                               [TS_PART_PREFILL] = "Prefill",
                                               [TS_PART_LANDING] = "Landing"};
    for (int p = 0; p < TS_PARTS; p++) {
        char line[4096] = "";
        size_t n = 0;
        for (int t = 0; t < ACT_TYPES; t++)
            for (int back = 0; back < 2; back++) {
                uint64_t seen = back ? s->back[p][t] : s->got[p][t];
                if (seen && n < sizeof line)
                    n += (size_t)snprintf(line + n, sizeof line - n, " %s%s %llu", act_type_name((enum act_type)t),
                                          back ? " (back)" : "", (unsigned long long)seen);
            }
        cr_log_info("%s:%s", part[p], line);
    }
}

static void check_coverage(const struct total *t)
{
    cr_expect_gt(t->both, SEEDS / 2, "too few runs had both");
    cr_expect_gt(t->whole, 3 * SEEDS);
    cr_expect_gt(t->same, 2 * SEEDS);
    cr_expect_gt(t->cancelled, SEEDS / 2);
    cr_expect_lt(t->failed, t->whole / 8);
    cr_expect_lt(t->needless, t->whole / 100, "too many failed where mail was in time and what had ended came back");
    cr_expect_gt(t->moved, SEEDS / 8);
    cr_expect_gt(t->cached, SEEDS / 8);
    cr_expect_gt(t->exact_hits, SEEDS / 64, "%d exact hits", t->exact_hits);
    cr_expect_gt(t->never, SEEDS / 32);
    cr_expect_gt(t->planned, SEEDS / 32, "%d planned moves", t->planned);
    cr_expect_gt(t->frozen, SEEDS / 32);
    cr_expect_gt(t->shared, SEEDS / 32);
    cr_expect_gt(t->deaths, SEEDS / 16);
    cr_expect_gt(t->shard_deaths, SEEDS / 32);
    cr_expect_gt(t->tiered, SEEDS / 8);
    if (TS_LESS > 1) /* too few for what is rare */
        return;
    cr_expect(t->host_read && t->disk_read && t->node_read && t->disk_errors, "a tier was of no use");
    for (int i = 0; i < MISHAP_KINDS; i++)
        cr_expect_gt(t->mishap[i], 0, "never: %s", mishap_name[i]);
    for (size_t i = 0; i < sizeof must / sizeof *must; i++)
        cr_expect((must[i].back ? t->seen.back : t->seen.got)[must[i].part][must[i].type], "part %d never got %s%s",
                  (int)must[i].part, act_type_name(must[i].type), must[i].back ? " back" : "");
}

Test(simulated, traffic_cancels_losses_and_deaths_leave_everything_where_it_was)
{
    static struct pool pool;
    static struct total t;
    uint64_t one = from_environment("WEFT_SEED", 0), last = from_environment("WEFT_SEEDS", SEEDS);
    for (uint64_t seed = one ? one : from_environment("WEFT_FROM", 1); seed <= (one ? one : last); seed++)
        run_seed(&pool, seed, one, false, &t);
    cr_log_info(
        "%d whole (%d compared), %d cancelled, %d failed (%d by losses alone), %d refused; %d moved, %d hits (%d "
        "exact); %d seeds with loss, %d with cancels as well; %d drained, %d planned moves, %d stood still, %d "
        "with history of the decoder, %d with tickets given up; %llu fences, %llu tickets refused; %d actors "
        "ended, %d shards",
        t.whole, t.same, t.cancelled, t.failed, t.needless, t.never, t.moved, t.cached, t.exact_hits, t.lossy, t.both,
        t.drained, t.planned, t.frozen, t.shared, t.revoked, (unsigned long long)t.fenced,
        (unsigned long long)t.refused, t.deaths, t.shard_deaths);
    cr_log_info(
        "%d seeds with tiers: %llu blocks read from hosts, %llu from disks (%llu stored, %llu errors), %llu from "
        "kv nodes",
        t.tiered, (unsigned long long)t.host_read, (unsigned long long)t.disk_read, (unsigned long long)t.disk_stored,
        (unsigned long long)t.disk_errors, (unsigned long long)t.node_read);
    for (int i = 0; i < MISHAP_KINDS; i++)
        cr_log_info("%d times: %s", t.mishap[i], mishap_name[i]);
    print_seen(&t.seen);
    if (!one && last >= SEEDS && !getenv("WEFT_FROM"))
        check_coverage(&t);
}

Test(simulated, doubled_grants_close_no_ticket_whose_writes_are_under_way)
{
    static struct pool pool;
    static struct total t;
    for (uint64_t seed = 1; seed <= SEEDS / 4; seed++)
        run_seed(&pool, seed, false, true, &t);
    cr_assert_gt(t.cancelled, SEEDS / 2);
}

/* It is told of later loads, too: without them it would take itself for empty, and say so to the Routers. */
Test(simulated, a_landing_that_begins_again_hears_of_the_load_of_its_decode_actors)
{
    static struct ts_world w;
    struct ts_seen seen = {0};
    ts_world_open(&w, 40, 2);
    w.restart = w.watch = true;
    w.seen = &seen;
    ts_world_split(&w, 40, MDL_HANDOFF_FULL);
    ts_world_requests(&w, 2, 1);
    w.kill[w.n_kills++] = (struct ts_kill){.at = 2 * MS, .role = CFG_ROLE_KV};
    ts_world_start(&w, 1);
    act_sim_run(w.sim, 1000 * MS, 10000000);
    memset(&seen, 0, sizeof seen);
    ts_world_reports(&w);
    cr_assert_gt(seen.got[TS_PART_LANDING][ACT_LOAD], 0u);
    cr_assert_eq(seen.back[TS_PART_DECODE][ACT_LOAD], 0u, "%d reports came back",
                 (int)seen.back[TS_PART_DECODE][ACT_LOAD]);
    ts_world_close(&w);
}

/* The pages that a Decode keeps at hand come back to nobody: a prompt that needs one of them would wait for ever. In a
 * world whose Decode has LONG_CONTEXT tokens of pages: the longest prompt that fits, then one that is a token longer.
 */
static void ask_beside_lease(struct ts_world *w)
{
    ts_world_requests(w, 2, 1);
    for (int i = 0; i < 2; i++) {
        w->wanted[i].n_prompt = (LONG_CONTEXT / TS_WORLD_BLOCK - w->e.limits.lease) * TS_WORLD_BLOCK + i;
        w->wanted[i].max_new = 4;
        w->wanted[i].start = 1 + i * 300 * MS;
    }
    ts_world_run(w, 1);
    ts_world_check_same(w, 0);
    cr_assert_eq(w->got[1].terminal, 1, "it waits for ever");
    cr_assert_eq(w->got[1].status, -E2BIG);
    ts_world_check_baseline(w);
    ts_world_close(w);
}

Test(simulated, a_prompt_that_only_fits_beside_no_lease_is_refused)
{
    static struct ts_world w;
    ts_world_open(&w, LONG_CONTEXT / TS_WORLD_BLOCK, 2);
    ask_beside_lease(&w);
}

/* The same of a Decode in another process: its Landing refuses for good. */
Test(simulated, a_prompt_that_only_fits_beside_no_lease_elsewhere_is_refused)
{
    static struct ts_world w;
    ts_world_open(&w, 2 * LONG_CONTEXT / TS_WORLD_BLOCK, 2);
    ts_world_split(&w, LONG_CONTEXT / TS_WORLD_BLOCK, MDL_HANDOFF_FULL);
    ask_beside_lease(&w);
}
