#include "actors/expert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/exchange.h"
#include "actors/exchange_wire.h"
#include "model/step.h"

/* One dispatch that waits or is worked on. */
struct work {
    struct work *next;
    struct act_promise promise;
    struct act_p_expert_dispatch head;
    struct act_buf *buf;
    uint32_t rows, pairs;
    struct mdl_exchange x; /* k is the most experts that any row has here */
    void *memory;
    int next_expert;
    int64_t since; /* when it came, or was last worked on */
};

/* In order of arrival. */
struct queue {
    struct work *first, **last;
};

enum { URGENT, BULK, QUEUES, AGE_NS = 20000000 };

struct shard {
    const struct act_expert_arg *arg;
    struct queue queue[QUEUES];
};

static int shard_start(struct act_self *self, void *state, const void *arg)
{
    struct shard *s = state;
    (void)self;
    s->arg = arg;
    for (int q = 0; q < QUEUES; q++)
        s->queue[q].last = &s->queue[q].first;
    return 0;
}

static void work_free(struct work *w)
{
    act_buf_free(w->buf);
    free(w->memory);
    free(w);
}

static void drop_first(struct queue *q)
{
    struct work *w = q->first;
    q->first = w->next;
    if (!q->first)
        q->last = &q->first;
    work_free(w);
}

static void shard_stop(struct act_self *self, void *state, int reason)
{
    struct shard *s = state;
    (void)self;
    (void)reason;
    for (int q = 0; q < QUEUES; q++)
        while (s->queue[q].first)
            drop_first(&s->queue[q]);
}

/* The exchange as mdl_experts_compute wants it: rows padded to the same number of experts; padding counts as delivered.
 */
static int unpack(struct work *w, const struct act_dispatch *d, const struct shard *s)
{
    struct mdl_exchange *x = &w->x;
    size_t hidden = (size_t)s->arg->m->cfg->hidden;
    x->layer = w->head.layer;
    x->rows = (int)w->rows;
    for (uint32_t r = 0; r < w->rows; r++)
        x->k = (int)d->pairs[r] > x->k ? (int)d->pairs[r] : x->k;
    size_t n = (size_t)x->rows * (size_t)x->k;
    w->memory = malloc(n * (hidden * sizeof(uint16_t) + sizeof(int32_t) + sizeof(float) + 1));
    if (!w->memory)
        return -ENOMEM;
    int32_t *expert = w->memory;
    float *weight = (float *)(expert + n);
    x->expert = expert;
    x->weight = weight;
    x->result = (uint16_t *)(weight + n);
    x->have = (uint8_t *)(x->result + n * hidden);
    x->codes = d->codes;
    x->scales = d->scales;
    const struct act_dispatch_pair *p = d->pair;
    for (size_t r = 0; r < w->rows; r++)
        for (int k = 0; k < x->k; k++) {
            size_t at = r * (size_t)x->k + (size_t)k;
            bool real = k < (int)d->pairs[r];
            expert[at] = real ? (int32_t)p->expert : -1;
            weight[at] = real ? p->weight : 0.0f;
            x->have[at] = !real;
            x->pending += real;
            p += real;
        }
    return 0;
}

/* Everything that a foreign process could have got wrong. */
static const char *check(const struct shard *s, const struct act_p_expert_dispatch *head,
                         const struct act_dispatch_size *size, size_t bytes, const struct act_dispatch *d)
{
    const struct mdl_config *cfg = s->arg->m->cfg;
    uint64_t pairs = 0;
    if (head->layer >= cfg->n_layers)
        return "no such layer";
    if (size->hidden != (uint32_t)cfg->hidden || !size->rows || size->rows > UINT16_MAX ||
        size->pairs > size->rows * MDL_MAX_TOPK || act_dispatch_bytes(size) > bytes)
        return "sizes do not fit";
    for (uint32_t r = 0; r < size->rows; r++) {
        if (!d->pairs[r] || d->pairs[r] > MDL_MAX_TOPK)
            return "a row without experts";
        pairs += d->pairs[r];
    }
    if (pairs != size->pairs)
        return "counts do not add up";
    for (uint32_t i = 0; i < size->pairs; i++)
        if (d->pair[i].expert < (uint32_t)s->arg->first ||
            d->pair[i].expert >= (uint32_t)(s->arg->first + s->arg->count))
            return "an expert that is not here";
    return NULL;
}

/* A dispatch that cannot be worked on goes back as undeliverable: its source runs the step again or gives up. */
static void take_dispatch(struct act_self *self, struct shard *s, struct act_msg *m)
{
    size_t bytes;
    void *tail = act_msg_tail(m, &bytes);
    struct act_dispatch_size size;
    struct act_dispatch d;
    if (bytes < sizeof size) {
        act_return(self, m);
        return;
    }
    memcpy(&size, tail, sizeof size);
    bool fits = size.rows <= UINT16_MAX && size.pairs <= size.rows * MDL_MAX_TOPK && act_dispatch_bytes(&size) <= bytes;
    if (fits)
        act_dispatch_place(&size, tail, &d);
    struct work *w = fits && !check(s, act_p_expert_dispatch(m), &size, bytes, &d) ? calloc(1, sizeof *w) : NULL;
    if (w) {
        w->head = *act_p_expert_dispatch(m);
        w->rows = size.rows;
        w->pairs = size.pairs;
    }
    if (!w || unpack(w, &d, s)) {
        free(w);
        act_return(self, m);
        return;
    }
    w->promise = act_promise_of(m);
    w->buf = act_msg_take(m);
    w->next_expert = s->arg->first;
    w->since = act_now(self);
    struct queue *q = &s->queue[w->head.stream & ACT_STREAM_BULK ? BULK : URGENT];
    *q->last = w;
    q->last = &w->next;
}

static int answer(struct act_self *self, const struct shard *s, struct work *w)
{
    struct act_msg r;
    size_t hidden = (size_t)s->arg->m->cfg->hidden, bytes;
    int status = act_msg_new(ACT_EXPERT_RESULT, ACT_NOBODY, (size_t)w->pairs * hidden * sizeof(uint16_t), &r);
    if (status)
        return status;
    *act_p_expert_result(&r) = (struct act_p_expert_result){
        w->head.sequence, w->head.map, w->head.stream, w->head.layer, w->head.rows, w->head.set, w->head.wave};
    uint8_t *to = act_msg_tail(&r, &bytes);
    for (int i = 0; i < w->x.rows * w->x.k; i++)
        if (w->x.expert[i] >= 0) {
            memcpy(to, w->x.result + (size_t)i * hidden, hidden * sizeof(uint16_t));
            to += hidden * sizeof(uint16_t);
        }
    if (act_reply(self, &w->promise, &r))
        act_msg_drop(&r); /* nobody waits any more */
    return 0;
}

/* Steps of running streams first; what has waited for long goes before them once. */
static struct queue *choose(struct act_self *self, struct shard *s)
{
    struct queue *urgent = &s->queue[URGENT], *bulk = &s->queue[BULK];
    if (!urgent->first)
        return bulk->first ? bulk : NULL;
    return bulk->first && act_now(self) - bulk->first->since > AGE_NS ? bulk : urgent;
}

/* The next expert of one dispatch. */
static int work_on(struct act_self *self, struct shard *s, struct queue *q)
{
    struct work *w = q->first;
    int end = s->arg->first + s->arg->count, status = 0;
    bool done = false;
    while (!done && w->next_expert < end && w->x.pending) {
        int before = w->x.pending;
        status = mdl_experts_compute(s->arg->m, &w->x, w->next_expert++, 1);
        if (status)
            return status;
        done = w->x.pending != before;
    }
    w->since = act_now(self);
    if (w->x.pending)
        return 0;
    status = answer(self, s, w);
    drop_first(q);
    return status;
}

static int shard_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct shard *s = state;
    for (int i = 0; i < count; i++)
        if (m[i].type == ACT_EXPERT_DISPATCH)
            take_dispatch(self, s, &m[i]);
    struct queue *q = choose(self, s);
    int status = q ? work_on(self, s, q) : 0;
    bool more = choose(self, s) != NULL;
    act_working(self, more);
    act_progress(self);
    if (more)
        act_yield(self);
    return status;
}

const struct act_behaviour act_expert_behaviour = {
    .name = "expert",
    .state_size = sizeof(struct shard),
    .start = shard_start,
    .receive = shard_receive,
    .stop = shard_stop,
};
