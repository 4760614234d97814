/* The fault decorator: without faults, and with delays alone, it passes what every provider has to pass; every other
 * fault does what its rule says. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#include "tests/support/transport_rig.h"
#include "transport/fault.h"
#include "transport/inproc.h"
#include "transport/sim.h"
#include "transport/tcp.h"

#define MS INT64_C(1000000)

struct world {
    struct tp_fault fault[2]; /* of the sides */
    struct tp_inproc_hub *hub;
    struct tp_sim_net *net;
    struct tp_sim_end end[2];
    int struck;
};

static void count(void *ctx, const struct tp_fault_rule *rule)
{
    (void)rule;
    ((struct world *)ctx)->struck++;
}

static struct world *new_world(struct tr_rig *r, const struct tp_ops *ops)
{
    struct world *w = r->world = calloc(1, sizeof *w);
    cr_assert_not_null(w);
    for (int i = 0; i < 2; i++) {
        w->fault[i] = (struct tp_fault){.ops = ops, .seed = (uint64_t)i + 1, .struck = count, .ctx = w};
        r->config[i].provider = &w->fault[i];
    }
    return w;
}

static void over_inproc(struct tr_rig *r)
{
    struct world *w = new_world(r, &tp_inproc);
    w->hub = tp_inproc_hub_new();
    for (int i = 0; i < 2; i++)
        w->fault[i].provider = w->hub;
    strcpy(r->address, "node-b");
}

static void over_sim(struct tr_rig *r)
{
    struct world *w = new_world(r, &tp_sim);
    w->net = tp_sim_net_new(3);
    for (int i = 0; i < 2; i++) {
        w->end[i].net = w->net;
        snprintf(w->end[i].name, sizeof w->end[i].name, "%c", 'a' + i);
        w->fault[i].provider = &w->end[i];
    }
    r->now = 1;
    strcpy(r->address, "node-b");
}

/* What the contract allows. */
static void over_sim_late(struct tr_rig *r)
{
    over_sim(r);
    struct world *w = r->world;
    for (int i = 0; i < 2; i++) {
        w->fault[i].rule[0] = (struct tp_fault_rule){.on = TP_FAULT_FRAME | TP_FAULT_IMMEDIATE | TP_FAULT_PUT_DONE,
                                                     .what = TP_FAULT_DELAY,
                                                     .chance = 200000,
                                                     .delay_ns = 2 * MS};
        w->fault[i].rules = 1;
    }
}

static void over_tcp(struct tr_rig *r)
{
    new_world(r, &tp_tcp);
}

static void tear_down(struct tr_rig *r)
{
    struct world *w = r->world;
    tp_inproc_hub_free(w->hub);
    tp_sim_net_free(w->net);
    free(w);
}

static void idle(struct tr_rig *r, int64_t until)
{
    if (until != TP_NEVER && until > r->now)
        r->now = until;
}

static const struct tr_kind inproc = {.ops = &tp_faulty, .set_up = over_inproc, .tear_down = tear_down};
static const struct tr_kind sim = {.ops = &tp_faulty, .set_up = over_sim, .tear_down = tear_down, .idle = idle};
static const struct tr_kind late = {.ops = &tp_faulty, .set_up = over_sim_late, .tear_down = tear_down, .idle = idle};
static const struct tr_kind tcp = {.ops = &tp_faulty, .set_up = over_tcp, .tear_down = tear_down, .uses_base = true};

#define TR_CASE(name)                                                                                                  \
    Test(fault_inproc, name)                                                                                           \
    {                                                                                                                  \
        tr_case_##name(&inproc);                                                                                       \
    }                                                                                                                  \
    Test(fault_sim, name)                                                                                              \
    {                                                                                                                  \
        tr_case_##name(&sim);                                                                                          \
    }                                                                                                                  \
    Test(fault_late, name)                                                                                             \
    {                                                                                                                  \
        tr_case_##name(&late);                                                                                         \
    }                                                                                                                  \
    Test(fault_tcp, name)                                                                                              \
    {                                                                                                                  \
        tr_case_##name(&tcp);                                                                                          \
    }
#include "tests/support/transport_cases.def"
#undef TR_CASE

/* ---- one fault at a time ---- */

/* Two sides with a rule at one of them. */
static struct tr_rig *with_rule(int side, struct tp_fault_rule rule, struct tp_channel *c[2])
{
    struct tr_rig *r = tr_prepare(&sim);
    struct world *w = r->world;
    w->fault[side].rule[0] = rule;
    w->fault[side].rules = 1;
    tr_open(r);
    if (c)
        tr_join(r, TP_CLASS_KV, c);
    return r;
}

static void turns(struct tr_rig *r, int n)
{
    for (int i = 0; i < n; i++)
        tr_turn(r);
}

Test(fault, a_lost_completion_comes_with_the_end)
{
    struct tp_channel *c[2];
    struct tr_rig *r = with_rule(0, (struct tp_fault_rule){.on = TP_FAULT_PUT_DONE, .what = TP_FAULT_LOSE, .at = 2}, c);
    for (uint64_t i = 1; i <= 3; i++)
        tr_put(r, c[0], 0, 0, 100, (int64_t)i, i);
    tr_until(r, &r->side[0].puts_done, 2);
    turns(r, 50);
    cr_expect_eq(r->side[0].puts_done, 2);
    cr_expect_eq(r->side[1].immediates, 3, "the bytes are there all the same");
    c[0]->ops->abort(c[0]);
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_eq(r->side[0].puts_done, 3);
    const struct tr_event *e = &r->side[0].log[r->side[0].n - 2];
    cr_expect(e->what == TR_PUT_DONE && e->number == 2 && e->status < 0);
    tr_free(r);
}

Test(fault, a_lost_put_does_not_cross)
{
    struct tp_channel *c[2];
    struct tr_rig *r = with_rule(0, (struct tp_fault_rule){.on = TP_FAULT_PUT, .what = TP_FAULT_LOSE, .at = 1}, c);
    memset(r->window[0], 7, 100);
    tr_put(r, c[0], 0, 0, 100, 1, 1);
    tr_put(r, c[0], 0, 500, 100, 2, 2);
    tr_until(r, &r->side[1].immediates, 1);
    cr_expect_eq(r->window[1][0], 0);
    cr_expect_eq(r->window[1][500], 7);
    c[0]->ops->finish(c[0]);
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_eq(r->side[0].puts_done, 2);
    tr_free(r);
}

Test(fault, an_immediate_is_lost_and_a_frame_comes_twice)
{
    struct tp_channel *c[2];
    struct tr_rig *r =
        with_rule(1, (struct tp_fault_rule){.on = TP_FAULT_IMMEDIATE, .what = TP_FAULT_LOSE, .at = 2, .every = 2}, c);
    struct world *w = r->world;
    for (int i = 1; i <= 6; i++)
        tr_put(r, c[0], 0, 0, 10, i, 1);
    tr_until(r, &r->side[0].puts_done, 6);
    cr_expect_eq(r->side[1].immediates, 3);
    cr_expect_eq(w->struck, 3);
    w->fault[1].rule[0] = (struct tp_fault_rule){.on = TP_FAULT_FRAME, .what = TP_FAULT_DOUBLE, .at = 1};
    tr_send_number(r, c[0], 0, 8);
    tr_send_number(r, c[0], 1, 8);
    tr_until(r, &r->side[1].frames, 3);
    turns(r, 20);
    cr_expect_eq(r->side[1].frames, 3);
    tr_free(r);
}

Test(fault, a_late_completion_holds_up_those_behind_it)
{
    struct tp_channel *c[2];
    struct tr_rig *r = with_rule(
        1, (struct tp_fault_rule){.on = TP_FAULT_FRAME, .what = TP_FAULT_DELAY, .at = 2, .delay_ns = 70 * MS}, c);
    int64_t began = r->now;
    for (uint64_t i = 0; i < 4; i++)
        tr_send_number(r, c[0], i, 8);
    tr_until(r, &r->side[1].frames, 1);
    cr_expect_lt(r->now, began + 70 * MS);
    tr_until(r, &r->side[1].frames, 4);
    cr_expect_ge(r->now, began + 70 * MS);
    cr_expect(r->side[1].in_order);
    tr_free(r);
}

Test(fault, what_is_refused_leaves_nothing)
{
    struct cfg_error err;
    struct tp_channel *c[2];
    struct tp_region *region;
    struct tp_key key;
    uint8_t memory[64];
    struct tr_rig *r =
        with_rule(0, (struct tp_fault_rule){.on = TP_FAULT_REGISTER, .what = TP_FAULT_REFUSE, .at = 2}, NULL);
    struct world *w = r->world;
    cr_expect_eq(tp_faulty.add_region(r->side[0].ep, memory, 64, &region, &key, &err), -ENOMEM);
    cr_expect_eq(r->side[0].ep->regions, 1);
    w->fault[0].rule[0] = (struct tp_fault_rule){.on = TP_FAULT_CONNECT, .what = TP_FAULT_REFUSE, .at = 1};
    cr_expect_eq(tp_faulty.connect(r->side[0].ep, r->bound, TP_CLASS_KV, NULL, c, &err), -ENETUNREACH);
    cr_expect_eq(r->side[0].ep->channels, 0);
    tr_join(r, TP_CLASS_KV, c);
    w->fault[0].rule[0] = (struct tp_fault_rule){.on = TP_FAULT_SEND, .what = TP_FAULT_REFUSE, .at = 1};
    struct iovec v = {memory, 8};
    memset(memory, 0, 8);
    cr_expect_eq(c[0]->ops->send(c[0], &v, 1), -EAGAIN);
    tr_until(r, &r->side[0].rooms, 1);
    cr_expect_eq(c[0]->ops->send(c[0], &v, 1), 0);
    tr_until(r, &r->side[1].frames, 1);
    tr_free(r);
}

/* At every operation in turn. */
Test(fault, a_channel_dies_at_any_operation)
{
    static const enum tp_fault_on on[] = {TP_FAULT_SEND, TP_FAULT_PUT, TP_FAULT_FRAME, TP_FAULT_IMMEDIATE,
                                          TP_FAULT_PUT_DONE};
    for (int k = 0; k < 5; k++)
        for (uint64_t at = 1; at <= 8; at++) {
            struct tp_channel *c[2];
            int side = on[k] == TP_FAULT_FRAME || on[k] == TP_FAULT_IMMEDIATE, accepted = 0;
            struct tr_rig *r = with_rule(side, (struct tp_fault_rule){.on = on[k], .what = TP_FAULT_KILL, .at = at}, c);
            for (int i = 0; i < 8 && r->side[0].ep->channels; i++) {
                struct tp_put p = {
                    .region = r->region[0], .from = r->window[0], .size = 64, .key = r->key[1], .with_immediate = true};
                struct iovec v = {r->window[0], 8};
                if (!r->side[0].closed) {
                    accepted += c[0]->ops->put(c[0], &p) == 0;
                    c[0]->ops->send(c[0], &v, 1);
                }
                turns(r, 3);
            }
            tr_until(r, &r->side[0].closed, 1);
            tr_until(r, &r->side[1].closed, 1);
            cr_expect_eq(r->side[side].log[r->side[side].n - 1].status, -ECONNRESET);
            cr_expect_eq(r->side[0].puts_done, accepted, "operation %d, number %d", k, (int)at);
            cr_expect_eq(r->side[0].ep->channels + r->side[1].ep->channels, 0);
            tr_free(r);
        }
}

Test(fault, a_crash_takes_every_channel)
{
    struct tp_channel *a[2], *b[2];
    struct tr_rig *r = with_rule(0, (struct tp_fault_rule){.on = TP_FAULT_SEND, .what = TP_FAULT_CRASH, .at = 1}, a);
    tr_join(r, TP_CLASS_EXPERT, b);
    struct iovec v = {r->window[0], 8};
    cr_expect_eq(a[0]->ops->send(a[0], &v, 1), -ENOTCONN);
    tr_until(r, &r->side[0].closed, 2);
    tr_until(r, &r->side[1].closed, 2);
    cr_expect_eq(r->side[1].frames, 0);
    tr_free(r);
}
