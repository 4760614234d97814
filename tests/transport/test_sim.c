/* The provider sim passes what every provider has to pass, on a quiet network and on a bad one, and does what its seed
 * says. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#include "tests/support/less.h"
#include "tests/support/model.h"
#include "tests/support/transport_rig.h"
#include "transport/sim.h"

#define MS INT64_C(1000000)

/* ---- the cases of every provider ---- */

struct world {
    struct tp_sim_net *net;
    struct tp_sim_end end[2];
};

static void set_up_with(struct tr_rig *r, uint64_t seed, const struct tp_sim_fault *f)
{
    struct world *w = calloc(1, sizeof *w);
    cr_assert_not_null(w);
    w->net = tp_sim_net_new(seed);
    cr_assert_not_null(w->net);
    tp_sim_net_fault(w->net, f);
    for (int i = 0; i < 2; i++) {
        w->end[i].net = w->net;
        snprintf(w->end[i].name, sizeof w->end[i].name, "%c", 'a' + i);
        r->config[i].provider = &w->end[i];
    }
    r->world = w;
    r->now = 1;
    strcpy(r->address, "node-b");
}

static void set_up(struct tr_rig *r)
{
    set_up_with(r, 1, &(struct tp_sim_fault){0});
}

/* Everything that leaves connections whole. */
static void set_up_bad(struct tr_rig *r)
{
    set_up_with(
        r, 2,
        &(struct tp_sim_fault){
            .delay_min = 1000, .delay_max = 3 * MS, .lose = 50000, .retry_ns = MS / 2, .retries = 40, .piece = 700});
}

static void tear_down(struct tr_rig *r)
{
    struct world *w = r->world;
    tp_sim_net_free(w->net);
    free(w);
}

static void idle(struct tr_rig *r, int64_t until)
{
    if (until != TP_NEVER && until > r->now)
        r->now = until;
}

static const struct tr_kind kind = {.ops = &tp_sim, .set_up = set_up, .tear_down = tear_down, .idle = idle};
static const struct tr_kind bad = {.ops = &tp_sim, .set_up = set_up_bad, .tear_down = tear_down, .idle = idle};

#define TR_CASE(name)                                                                                                  \
    Test(sim, name)                                                                                                    \
    {                                                                                                                  \
        tr_case_##name(&kind);                                                                                         \
    }                                                                                                                  \
    Test(sim_bad, name)                                                                                                \
    {                                                                                                                  \
        tr_case_##name(&bad);                                                                                          \
    }
#include "tests/support/transport_cases.def"
#undef TR_CASE

/* ---- what the seed says ---- */

/* Traffic of all kinds over several channels; how it ended, as one number. */
struct traffic {
    uint64_t hash;
    int closed, reset, timed_out, puts_ok, puts_failed, frames;
    bool torn; /* a put was seen in part */
    struct tp_sim_stats stats;
    int64_t end;
};

static void mix(struct traffic *t, uint64_t v)
{
    t->hash = (t->hash ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    t->hash ^= t->hash >> 29;
}

static void on_event(struct tr_side *s, const struct tr_event *e, const uint8_t *bytes)
{
    struct traffic *t = s->ctx;
    (void)bytes;
    mix(t, (uint64_t)e->what << 32 | (uint32_t)e->status);
    mix(t, e->number);
    mix(t, (uint64_t)s->rig->now);
    t->closed += e->what == TR_CLOSED;
    t->reset += e->what == TR_CLOSED && e->status == -ECONNRESET;
    t->timed_out += e->what == TR_CLOSED && e->status == -ETIMEDOUT;
    t->frames += e->what == TR_FRAME;
    if (e->what == TR_PUT_DONE)
        *(e->status ? &t->puts_failed : &t->puts_ok) += 1;
}

enum { CHANNELS = 3, ROUNDS = 40, PUT = 20000 };

/* One frame and one put on each channel; those that have ended are opened again. */
static void send_round(struct tr_rig *r, struct tp_channel **c, int round)
{
    struct cfg_error err;
    memset(r->window[0], round + 1, PUT);
    for (int k = 0; k < CHANNELS; k++) {
        if (!c[k])
            cr_assert_eq(tp_sim.connect(r->side[0].ep, r->bound, (enum tp_class)k, NULL, &c[k], &err), 0);
        struct iovec v = {r->window[0], 100};
        struct tp_put p = {.region = r->region[0],
                           .from = r->window[0],
                           .size = PUT,
                           .key = r->key[1],
                           .offset = (uint64_t)k * PUT,
                           .cookie = (uint64_t)round,
                           .with_immediate = round % 2,
                           .immediate = (uint32_t)round};
        tp_sim.put(c[k], &p);
        tp_sim.send(c[k], &v, 1);
    }
}

static void run_traffic(uint64_t seed, const struct tp_sim_fault *f, struct traffic *t)
{
    *t = (struct traffic){0};
    struct tr_rig *r = tr_prepare(&kind);
    struct world *w = r->world;
    tp_sim_net_free(w->net);
    w->net = w->end[0].net = w->end[1].net = tp_sim_net_new(seed);
    tp_sim_net_fault(w->net, f);
    tr_open(r);
    for (int i = 0; i < 2; i++) {
        r->side[i].on_event = on_event;
        r->side[i].ctx = t;
    }
    struct tp_channel *c[CHANNELS] = {0};
    int seen = 0;
    for (int round = 0; round < ROUNDS; round++) {
        send_round(r, c, round);
        for (int i = 0; i < 6; i++)
            tr_turn(r);
        for (; seen < r->side[0].n; seen++)
            for (int k = 0; k < CHANNELS && r->side[0].log[seen].what == TR_CLOSED; k++)
                c[k] = c[k] == r->side[0].log[seen].c ? NULL : c[k];
        for (int b = 0; b < CHANNELS * PUT; b++)
            t->torn |= r->window[1][b] != r->window[1][b / PUT * PUT];
    }
    for (int k = 0; k < CHANNELS; k++)
        if (c[k])
            tp_sim.finish(c[k]);
    for (int i = 0; i < 20000 && r->side[0].ep->channels + r->side[1].ep->channels; i++)
        tr_turn(r);
    cr_assert_eq(r->side[0].ep->channels + r->side[1].ep->channels, 0, "seed %d: channels do not end", (int)seed);
    cr_assert_eq(r->side[0].puts_done, t->puts_ok + t->puts_failed);
    tp_sim_net_stat(w->net, &t->stats);
    t->end = r->now;
    tr_free(r);
}

static const struct tp_sim_fault rough = {.delay_min = 1000,
                                          .delay_max = MS,
                                          .lose = 100000,
                                          .retries = 3,
                                          .disconnect = 5000,
                                          .refuse = 50000,
                                          .piece = 512};

Test(sim, the_same_seed_gives_the_same_run)
{
    struct traffic a, b, other;
    run_traffic(5, &rough, &a);
    run_traffic(5, &rough, &b);
    run_traffic(6, &rough, &other);
    cr_expect_eq(a.hash, b.hash);
    cr_expect_eq(a.end, b.end);
    cr_expect_neq(a.hash, other.hash);
}

Test(sim, every_kind_of_fault_comes_and_nothing_stays)
{
    struct traffic sum = {0};
    for (uint64_t seed = 1; seed <= 200 / TS_LESS; seed++) {
        struct traffic t;
        run_traffic(seed, &rough, &t);
        sum.reset += t.reset;
        sum.timed_out += t.timed_out;
        sum.puts_ok += t.puts_ok;
        sum.puts_failed += t.puts_failed;
        sum.torn |= t.torn;
        sum.stats.lost += t.stats.lost;
        sum.stats.given_up += t.stats.given_up;
        sum.stats.disconnected += t.stats.disconnected;
        sum.stats.refused += t.stats.refused;
        sum.stats.partial += t.stats.partial;
    }
    cr_expect_gt(sum.reset, 0);
    cr_expect_gt(sum.timed_out, 0);
    cr_expect_gt(sum.puts_ok, 0);
    cr_expect_gt(sum.puts_failed, 0);
    cr_expect(sum.torn, "a put is never seen in part");
    cr_expect_gt(sum.stats.lost, 0);
    cr_expect_gt(sum.stats.given_up, 0);
    cr_expect_gt(sum.stats.disconnected, 0);
    cr_expect_gt(sum.stats.refused, 0);
    cr_expect_gt(sum.stats.partial, 0);
}

/* What was sent later on one channel may come first on the other. */
Test(sim, channels_overtake_one_another_and_keep_their_own_order)
{
    enum { FRAMES = 40 };
    struct tr_rig *r = tr_new(&bad);
    struct tp_channel *a[2], *b[2];
    int64_t last[2] = {-1, -1};
    tr_join(r, TP_CLASS_CONTROL, a);
    tr_join(r, TP_CLASS_EXPERT, b);
    for (uint64_t i = 0; i < FRAMES; i++)
        tr_send_number(r, i % 2 ? b[0] : a[0], i, 8);
    tr_until(r, &r->side[1].frames, FRAMES);
    cr_expect_not(r->side[1].in_order, "nothing was overtaken");
    for (int i = 0; i < r->side[1].n; i++) {
        const struct tr_event *e = &r->side[1].log[i];
        if (e->what != TR_FRAME)
            continue;
        cr_expect_gt((int64_t)e->number, last[e->number % 2]);
        last[e->number % 2] = (int64_t)e->number;
    }
    tr_free(r);
}

Test(sim, a_partition_is_silent_and_ends_what_is_under_way)
{
    struct tr_rig *r = tr_prepare(&kind);
    for (int i = 0; i < 2; i++)
        r->config[i].silence_ns = 50 * MS;
    tr_open(r);
    struct tp_channel *c[2], *late;
    struct cfg_error err;
    struct world *w = r->world;
    tr_join(r, TP_CLASS_KV, c);
    cr_assert_eq(tp_sim_net_cut(w->net, "a", "b", true), 0);
    tr_put(r, c[0], 0, 0, 5000, 1, 1);
    int64_t began = r->now;
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_eq(r->side[0].log[r->side[0].n - 1].status, -ETIMEDOUT);
    cr_expect_eq(r->side[0].puts_done, 1);
    cr_expect_ge(r->now, began + 50 * MS);
    cr_expect_eq(r->side[1].closed, 0, "news of it does not cross either");
    cr_assert_eq(tp_sim.connect(r->side[0].ep, r->bound, TP_CLASS_KV, NULL, &late, &err), 0);
    tr_until(r, &r->side[0].closed, 2);
    cr_expect_eq(r->side[0].log[r->side[0].n - 1].status, -ETIMEDOUT, "nobody answers");
    cr_expect_eq(r->side[1].accepted, 1);
    cr_assert_eq(tp_sim_net_cut(w->net, "a", "b", false), 0);
    tr_until(r, &r->side[1].closed, 1);
    cr_expect_eq(r->side[1].log[r->side[1].n - 1].status, -ECONNRESET);
    tr_join(r, TP_CLASS_KV, c);
    tr_free(r);
}

/* The fence: behind CLOSED nothing of the other side lands, whatever of it was on its way. */
Test(sim, nothing_lands_behind_closed)
{
    int torn = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct tr_rig *r = tr_new(&kind);
        struct world *w = r->world;
        struct tp_channel *c[2];
        uint64_t random = seed;
        tr_join(r, TP_CLASS_KV, c);
        const struct tp_sim_fault slow = {.delay_min = MS, .delay_max = 4 * MS, .piece = 256};
        cr_assert_eq(tp_sim_net_link(w->net, "a", "b", &slow), 0);
        memset(r->window[0], 0x11, TR_WINDOW);
        tr_put(r, c[0], 0, 0, 100000, 1, 1);
        for (uint32_t i = ts_random(&random, 500); i > 0; i--)
            tr_turn(r);
        if (!r->side[1].immediates)
            torn += memchr(r->window[1], 0x11, TR_WINDOW) != NULL;
        tp_sim.abort(c[1]);
        tr_until(r, &r->side[1].closed, 1);
        memset(r->window[1], 0x77, TR_WINDOW);
        tr_until(r, &r->side[0].closed, 1);
        cr_expect_eq(r->side[0].puts_done, 1);
        for (int i = 0; i < 100; i++)
            tr_turn(r);
        for (int i = 0; i < TR_WINDOW; i++)
            cr_assert_eq(r->window[1][i], 0x77, "seed %d", (int)seed);
        tr_free(r);
    }
    cr_expect_gt(torn, 5, "only %d were ended in the middle", torn);
}
