#include "actors/engram_store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/tier_times.h"

enum { REPORT_NS = 500000000, POLL_NS = 100000, TAG_REPORT = 1, TAG_POLL = 2 };

struct store;

/* A question on its way: the rows go straight into the answer. */
struct ask {
    struct kv_rows_op op;
    struct store *s;
    struct act_promise promise;
    struct act_buf *buf; /* of the question: its row numbers */
    struct act_msg reply;
    bool ahead;
    int64_t began;
};

struct store {
    struct act_self *self;
    const struct act_engram_store *c;
    struct act_timer report, poll;
    struct act_times times;
    int asks;
    bool stopping;
};

static int64_t time_now(const struct store *s)
{
    return s->c->clock.now(s->c->clock.ctx);
}

static void on_rows(struct kv_rows_op *op)
{
    struct ask *a = op->ctx;
    struct store *s = a->s;
    s->asks--;
    if (!a->ahead) {
        struct act_p_engram_rows *p = act_p_engram_rows(&a->reply);
        *p = (struct act_p_engram_rows){
            .rows = (uint32_t)op->n, .table = (uint32_t)op->table, .status = op->failed ? -EIO : 0};
        act_times_add(&s->times, time_now(s) - a->began);
        if (act_reply(s->self, &a->promise, &a->reply))
            act_msg_drop(&a->reply);
    }
    act_buf_free(a->buf);
    free(a);
}

static void take_rows(struct store *s, struct act_msg *m, bool ahead)
{
    size_t bytes;
    const uint64_t *row = act_msg_tail(m, &bytes);
    uint32_t n = ahead ? act_p_engram_ahead(m)->rows : act_p_engram_read(m)->rows,
             table = ahead ? act_p_engram_ahead(m)->table : act_p_engram_read(m)->table;
    bool fits = (size_t)n * sizeof *row <= bytes && table < KV_ROWS_TABLES;
    struct ask *a = fits ? calloc(1, sizeof *a) : NULL;
    size_t size = (size_t)n * kv_rows_bytes(s->c->rows);
    if (!a || (!ahead && act_msg_new(ACT_ENGRAM_ROWS, ACT_NOBODY, size, &a->reply))) {
        free(a);
        if (!ahead)
            act_return(s->self, m);
        return;
    }
    a->s = s;
    a->ahead = ahead;
    a->began = time_now(s);
    a->op = (struct kv_rows_op){.table = (int)table, .row = row, .n = (int)n, .done = on_rows, .ctx = a};
    if (!ahead) {
        a->promise = act_promise_of(m);
        a->op.out = act_msg_tail(&a->reply, &bytes);
    }
    a->buf = act_msg_take(m);
    s->asks++;
    kv_rows_read(s->c->rows, &a->op);
}

static void report(struct store *s)
{
    struct kv_rows_stats t;
    struct act_msg m;
    size_t bytes;
    act_timer_after(s->self, &s->report, REPORT_NS, TAG_REPORT);
    if (!s->c->observer || act_addr_is_nobody(*s->c->observer) ||
        act_msg_new(ACT_ENGRAM_STATS, *s->c->observer, sizeof s->times, &m))
        return;
    kv_rows_stat(s->c->rows, &t);
    *act_b_engram_stats(&m) = (struct act_b_engram_stats){.rows = t.rows,
                                                          .cached = t.cached,
                                                          .shared = t.shared,
                                                          .ahead = t.ahead,
                                                          .reads = t.reads,
                                                          .read_bytes = t.read_bytes,
                                                          .errors = t.errors,
                                                          .evicted = t.evicted,
                                                          .slots = t.slots,
                                                          .used = t.used,
                                                          .queue = (uint64_t)t.queue};
    memcpy(act_msg_tail(&m, &bytes), &s->times, sizeof s->times);
    if (act_send(s->self, &m))
        act_msg_drop(&m);
}

/* A storage without a descriptor (the simulation's) is looked after in turns of the actor. */
static void turn_storage(struct store *s)
{
    struct kv_storage *st = s->c->storage;
    struct kv_storage_stats stats;
    if (st->ops->descriptor(st) >= 0)
        return;
    st->ops->poll(st);
    st->ops->stat(st, &stats);
    if (stats.in_flight)
        act_timer_after(s->self, &s->poll, POLL_NS, TAG_POLL);
}

static int store_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct store *s = state;
    (void)self;
    for (int i = 0; i < count; i++)
        if (m[i].type == ACT_ENGRAM_READ || m[i].type == ACT_ENGRAM_AHEAD)
            take_rows(s, &m[i], m[i].type == ACT_ENGRAM_AHEAD);
        else if (m[i].type == ACT_TIMER && act_p_timer(&m[i])->tag == TAG_REPORT)
            report(s);
    turn_storage(s);
    return 0;
}

static int store_start(struct act_self *self, void *state, const void *arg)
{
    struct store *s = state;
    s->self = self;
    s->c = arg;
    report(s);
    return 0;
}

static void store_stop(struct act_self *self, void *state, int reason)
{
    struct store *s = state;
    (void)self;
    (void)reason;
    while (s->asks && s->c->storage->ops->wait(s->c->storage, 10000))
        ;
}

const struct act_behaviour act_engram_store_behaviour = {
    .name = "engram-store",
    .state_size = sizeof(struct store),
    .start = store_start,
    .receive = store_receive,
    .stop = store_stop,
};
