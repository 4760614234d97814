/* The whole engine in the simulation, for many seeds: everything about a run is drawn from its seed, what is wanted,
 * how many actors there are and where, how little memory they have, which messages between processes are lost, doubled
 * or late, who cancels when and which actor fails. After each run every request has ended once, in a way that is
 * documented, and everything is back where it was.
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

#define MS INT64_C(1000000)

enum { SEEDS = 320 / TS_LESS, POOL = 24, FAMILIES = 3, CONTEXT = 96, MOST_NEW = 8, AT_LEAST_PAGES = 14 };

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
        uint64_t family = (uint64_t)(i % FAMILIES);
        q->n_prompt = 1 + (int)ts_random(&random, i % 4 ? 24 : 60);
        q->max_new = 1 + (int)ts_random(&random, MOST_NEW);
        q->temperature = i % 2 ? 1 : 0;
        q->seed = ts_random(&random, 1000);
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = (int32_t)ts_random(k < 2 * TS_WORLD_BLOCK + 3 ? &family : &random, (uint32_t)vocab);
    }
}

/* ---- a run ---- */

/* A process stands still for a while: nothing runs there, what is written to its pages lands. */
struct freeze {
    int64_t at, ns; /* ns 0: it does not */
    int first;      /* index of its actors (ts_inner), from here on */
};

struct run {
    struct ts_world w;
    uint64_t seed, random;
    int from[TS_WORLD_REQUESTS]; /* the pool's; -1: can never fit */
    struct freeze freeze;
    bool restarted;
    long buffers, sequences; /* before it */
};

/* Over all runs, to see that they were of use. */
struct total {
    int whole, same, cancelled, failed, needless, moved, cached, never, lossy, both;
    int planned, frozen, restarted, shared, revoked;
};

static int draw(struct run *r, int n)
{
    return (int)ts_random(&r->random, (uint32_t)n);
}

static bool one_in(struct run *r, int n)
{
    return draw(r, n) == 0;
}

/* Up to `lose` per million, as often doubled; late by up to a ms, one link in eight by up to `late`. */
static struct act_sim_fault draw_link(struct run *r, int lose, int64_t late)
{
    return (struct act_sim_fault){.lose = (uint32_t)draw(r, lose + 1),
                                  .copy = (uint32_t)draw(r, lose + 1),
                                  .delay_min = draw(r, 1000) * 100,
                                  .delay_max = one_in(r, 8) ? late : MS};
}

/* A second process with Decode; sooner or later one of the two may be drained. */
static void draw_second(struct run *r)
{
    struct ts_world *w = &r->w;
    ts_world_add_other(w, AT_LEAST_PAGES + draw(r, 40));
    w->other.e.tickets = w->e.tickets;
    if (one_in(r, 3) || w->n_kills == TS_WORLD_KILLS)
        return;
    w->kill[w->n_kills++] =
        (struct ts_kill){.at = 1 + draw(r, 20000000), .role = CFG_ROLE_KV, .drain = true, .other = one_in(r, 2)};
}

/* A process ends, and is back at once under the same names. */
static void draw_restart(struct run *r)
{
    struct ts_world *w = &r->w;
    const struct ts_kill all = {.at = 1 + draw(r, 20000000), .other = w->two && one_in(r, 2)};
    static const unsigned role[] = {CFG_ROLE_KV, CFG_ROLE_DECODE, CFG_ROLE_DECODE, CFG_ROLE_EXPERT};
    w->restart = r->restarted = true;
    for (int i = 0; i < 4; i++) {
        if (i == 2 && w->decodes < 2)
            continue;
        w->kill[w->n_kills] = all;
        w->kill[w->n_kills].role = role[i];
        w->kill[w->n_kills++].index = i == 2;
    }
}

static void draw_world(struct run *r)
{
    struct ts_world *w = &r->w;
    struct act_engine_limits *l = &w->e.limits;
    l->context = CONTEXT;
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
    w->link = draw_link(r, 4000, 18 * MS);
    w->balance = one_in(r, 4);
    w->balancer = (struct act_balancer_arg){.interval_ns = 20 * MS, .deadline_ns = 100 * MS, .least_pairs = 1};
    const int64_t delay = one_in(r, 2) ? draw(r, 2000000) : 0;
    if (w->apart && one_in(r, 3)) {
        w->client_delay = delay;
    } else {
        ts_world_split(w, AT_LEAST_PAGES + draw(r, 40), (enum mdl_handoff_form)draw(r, MDL_HANDOFF_FORMS));
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
        if (one_in(r, 3))
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
    w->n = 4 + draw(r, 4);
    for (int i = 0; i < w->n; i++) {
        struct ts_wanted *q = &w->wanted[i];
        r->from[i] = one_in(r, 24) ? -1 : draw(r, POOL);
        *q = p->wanted[r->from[i] < 0 ? 0 : r->from[i]];
        q->n_prompt = r->from[i] < 0 ? CONTEXT + draw(r, 9) : q->n_prompt;
        q->start = draw(r, 4000000);
        if (one_in(r, 3))
            q->cancel = q->start + draw(r, one_in(r, 2) ? 2000000 : 30000000);
    }
    static const unsigned role[] = {CFG_ROLE_PREFILL, CFG_ROLE_DECODE, CFG_ROLE_KV, CFG_ROLE_EXPERT};
    if (one_in(r, 4))
        w->kill[w->n_kills++] =
            (struct ts_kill){.at = 1 + draw(r, 20000000), .role = role[draw(r, w->split ? 4 : 2)], .index = 0};
    else if (w->split && one_in(r, 6))
        draw_restart(r);
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
        fprintf(stderr, "  role %u%s %s at %lld us%s\n", w->kill[i].role, w->kill[i].other ? " of the second" : "",
                w->kill[i].drain ? "is drained" : "ends", (long long)w->kill[i].at / 1000,
                w->restart && !w->kill[i].drain ? " and begins again" : "");
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
    if (r->from[i] < 0 && o->status != -EHOSTDOWN)
        return o->status == -E2BIG;
    for (int k = 0; k < r->w.n_kills && o->status == -ESHUTDOWN; k++)
        if (r->w.kill[k].drain) /* the only one that is left is being drained */
            return true;
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
    if (o->terminal) {
        cr_assert(is_documented(r, i), "seed %d, request %d: status %d, finish %d, %d tokens of %d", (int)r->seed, i,
                  o->status, o->finish, o->n, r->w.wanted[i].max_new);
        t->never += o->status == -E2BIG;
        t->failed += o->status == -EHOSTDOWN;
        t->needless +=
            o->status == -EHOSTDOWN && r->w.kv_link.delay_max <= MS && !r->freeze.at && (r->w.restart || !r->w.n_kills);
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
    /* Of a process that ends as a whole the device tier, which here goes on, ends too. What was on its way between two
     * of its actors that both ended comes back to nobody. */
    if (r->restarted && s.held > lease)
        return;
    cr_assert_eq(s.held, lease, "seed %d: of %d pages %s %d are held, %d of them as leases", (int)r->seed, s.pages,
                 where, s.held, lease);
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

static void run_seed(struct pool *p, uint64_t seed, bool say, struct total *t)
{
    static struct run run;
    struct run *r = &run;
    *r = (struct run){.seed = seed, .random = seed, .buffers = act_buf_live(), .sequences = mdl_seq_live()};
    ts_world_open(&r->w, AT_LEAST_PAGES + (int)ts_random(&r->random, 40), 1 + (int)ts_random(&r->random, 3));
    if (!p->wanted[0].n_prompt)
        pool_fill(p, r->w.m->cfg->vocab_size);
    draw_world(r);
    draw_costs(r);
    draw_requests(r, p);
    if (say)
        describe(r);
    if (getenv("WEFT_TRACE"))
        r->w.trace = stderr;
    r->w.before = stand_still;
    r->w.before_ctx = r;
    ts_world_start(&r->w, seed);
    while (!all_ended(&r->w) && act_sim_now(r->w.sim) < bound)
        act_sim_run(r->w.sim, act_sim_now(r->w.sim) + 5 * MS, 10000000);
    act_sim_run(r->w.sim, act_sim_now(r->w.sim) + 3000 * MS, 10000000); /* deadlines of what was given up */
    for (int i = 0; i < r->w.n; i++)
        check_request(r, p, i, t);
    bool lossy = (r->w.split && r->w.kv_link.lose > 5000) || (r->w.apart && r->w.link.lose > 500), cancels = false;
    for (int i = 0; i < r->w.n; i++)
        cancels |= r->w.got[i].cancelled;
    t->lossy += lossy;
    t->frozen += r->freeze.at && !r->freeze.ns;
    t->restarted += r->restarted;
    t->shared += r->w.far.stats.held + r->w.other.stats.held > 0;
    t->revoked += r->w.far.stats.revoked + r->w.other.stats.revoked > 0;
    t->both += lossy && cancels;
    check_baseline(r);
    ts_world_close(&r->w);
    cr_assert_eq(act_buf_live(), r->buffers, "seed %d: %ld buffers are left", (int)seed, act_buf_live() - r->buffers);
    cr_assert_eq(mdl_seq_live(), r->sequences);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

Test(simulated, traffic_cancels_losses_and_deaths_leave_everything_where_it_was)
{
    static struct pool pool;
    struct total t = {0};
    uint64_t one = from_environment("WEFT_SEED", 0), last = from_environment("WEFT_SEEDS", SEEDS);
    for (uint64_t seed = one ? one : 1; seed <= (one ? one : last); seed++)
        run_seed(&pool, seed, one, &t);
    /* A doubled grant comes when its request is gone and its writes are under way. */
    if (!one)
        run_seed(&pool, 2764, false, &t);
    cr_log_info("%d whole (%d compared), %d cancelled, %d failed (%d by losses alone), %d refused; %d moved, %d hits; "
                "%d seeds with loss, %d with cancels as well; %d planned moves, %d stood still, %d restarts, %d with "
                "history of the decoder, %d with tickets given up",
                t.whole, t.same, t.cancelled, t.failed, t.needless, t.never, t.moved, t.cached, t.lossy, t.both,
                t.planned, t.frozen, t.restarted, t.shared, t.revoked);
    if (one || last < SEEDS)
        return;
    cr_expect_gt(t.both, SEEDS / 2, "too few runs had both");
    cr_expect_gt(t.whole, 3 * SEEDS);
    cr_expect_gt(t.same, 2 * SEEDS);
    cr_expect_gt(t.cancelled, SEEDS / 2);
    cr_expect_lt(t.failed, t.whole / 8);
    cr_expect_lt(t.needless, t.whole / 100, "too many failed where mail was in time and what had ended came back");
    cr_expect_gt(t.moved, SEEDS / 8);
    cr_expect_gt(t.cached, SEEDS / 8);
    cr_expect_gt(t.never, SEEDS / 32);
    cr_expect_gt(t.planned, SEEDS / 128);
    cr_expect_gt(t.frozen, SEEDS / 32);
    cr_expect_gt(t.restarted, SEEDS / 32);
    cr_expect_gt(t.shared, SEEDS / 32);
}
