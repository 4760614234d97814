#include "actors/expert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/exchange.h"
#include "actors/exchange_wire.h"
#include "actors/expert_slots.h"
#include "actors/figures.h"
#include "model/residency.h"
#include "model/step.h"

enum { URGENT, BULK, QUEUES, AGE_NS = 20000000, LOAD_EVERY_NS = 50000000, GROUP_ROWS = 1024 };

/* One dispatch that waits or is worked on. */
struct work {
    struct work *next;
    struct act_promise promise;
    struct act_p_expert_dispatch head;
    struct act_buf *buf;       /* of a message; NULL: it lies in a slot */
    struct act_slot_work slot; /* then */
    struct act_dispatch d;     /* in buf; or codes and scales in the slot, the rest behind this */
    int rows, pairs;
};

/* In order of arrival. */
struct queue {
    struct work *first, **last;
    /* Dispatches for one layer that are worked on together, taken out of the list above. */
    struct work *group;
    struct mdl_exchange x; /* of all their rows; k is the most experts that any row has here */
    void *memory;
    int next_expert;
    int64_t since; /* when the oldest came, or was last worked on */
};

struct shard {
    const struct act_expert_arg *arg;
    struct queue queue[QUEUES];
    const struct act_map *map; /* what it owns: the newest that it was told to keep */
    struct act_map *own, *next;
    struct act_promise ready;  /* owed for `next` */
    int load_layer, load_slot; /* of `next`: loaded up to here */
    int64_t loaded_at;         /* the last one of them */
    bool loading;
    uint64_t figures[ACT_SHARD_FIGURES];
    struct act_timer report; /* runs after work, so that a shard without any sleeps */
    bool reporting;
    struct act_expert_slots slots;
};

static int shard_start(struct act_self *self, void *state, const void *arg)
{
    struct shard *s = state;
    s->arg = arg;
    s->map = s->arg->map;
    for (int q = 0; q < QUEUES; q++)
        s->queue[q].last = &s->queue[q].first;
    return act_expert_slots_init(&s->slots, self, s->arg->slots, s->arg->link, s->arg->local, s->arg->index);
}

static struct work *drop_work(struct work *w)
{
    struct work *next = w->next;
    act_buf_free(w->buf);
    free(w);
    return next;
}

static void drop_group(struct queue *q)
{
    while (q->group)
        q->group = drop_work(q->group);
    free(q->memory);
    q->memory = NULL;
}

static void shard_stop(struct act_self *self, void *state, int reason)
{
    struct shard *s = state;
    (void)self;
    (void)reason;
    for (int q = 0; q < QUEUES; q++) {
        drop_group(&s->queue[q]);
        while (s->queue[q].first)
            s->queue[q].first = drop_work(s->queue[q].first);
    }
    act_map_free(s->own);
    act_map_free(s->next);
    act_expert_slots_free(&s->slots);
}

/* ---- dispatches ---- */

/* Everything that a foreign process could have got wrong. */
static const char *check(const struct shard *s, const struct act_p_expert_dispatch *head,
                         const struct act_dispatch_size *size, const struct act_dispatch *d)
{
    const struct mdl_config *cfg = s->arg->m->cfg;
    uint64_t pairs = 0;
    if (head->layer >= cfg->n_layers)
        return "no such layer";
    for (uint32_t r = 0; r < size->rows; r++) {
        if (!d->pairs[r] || d->pairs[r] > MDL_MAX_TOPK)
            return "a row without experts";
        pairs += d->pairs[r];
    }
    if (pairs != size->pairs)
        return "counts do not add up";
    const struct act_dispatch_pair *p = d->pair;
    for (uint32_t r = 0; r < size->rows; r++, p += d->pairs[r - 1])
        for (uint32_t k = 0; k < d->pairs[r]; k++)
            if (p[k].expert >= (uint32_t)cfg->n_experts || (k && p[k].expert <= p[k - 1].expert))
                return "experts that are not ascending, or do not exist";
    return NULL;
}

/* Where the parts are, if the sizes are possible, those that the message or the head has, and all of the bytes. */
static bool place(const struct shard *s, void *tail, size_t bytes, int rows, struct act_dispatch_size *size,
                  struct act_dispatch *d)
{
    if (bytes < sizeof *size)
        return false;
    memcpy(size, tail, sizeof *size);
    if (size->hidden != (uint32_t)s->arg->m->cfg->hidden || !size->rows || size->rows != (uint32_t)rows ||
        size->pairs > size->rows * MDL_MAX_TOPK || size->zero || act_dispatch_bytes(size) != bytes)
        return false;
    act_dispatch_parts(size, tail, d);
    return true;
}

static void enqueue(struct act_self *self, struct shard *s, struct work *w)
{
    struct queue *q = &s->queue[w->head.stream & ACT_STREAM_BULK ? BULK : URGENT];
    s->figures[ACT_SHARD_DISPATCHES]++;
    s->figures[ACT_SHARD_ROWS] += (uint64_t)w->rows;
    s->figures[ACT_SHARD_PAIRS] += (uint64_t)w->pairs;
    if (!q->first && !q->group)
        q->since = act_now(self);
    *q->last = w;
    q->last = &w->next;
}

/* A result without rows: what was asked for is not computed. Its source runs the step again, or without this shard. */
static int refuse(const struct act_p_expert_dispatch *h, struct act_addr to, struct act_msg *out)
{
    int r = act_msg_new(ACT_EXPERT_RESULT, to, 0, out);
    if (!r)
        *act_p_expert_result(out) =
            (struct act_p_expert_result){h->sequence, h->map, h->stream, h->layer, h->rows, h->set, h->wave};
    return r;
}

static void refuse_message(struct act_self *self, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    struct act_msg r;
    if (refuse(act_p_expert_dispatch(m), ACT_NOBODY, &r))
        act_return(self, m); /* there is no memory for more */
    else if (act_reply(self, &p, &r))
        act_msg_drop(&r); /* nobody waits */
}

static void take_dispatch(struct act_self *self, struct shard *s, struct act_msg *m)
{
    size_t bytes;
    void *tail = act_msg_tail(m, &bytes);
    struct act_dispatch_size size;
    struct act_dispatch d;
    struct work *w = NULL;
    if (place(s, tail, bytes, act_p_expert_dispatch(m)->rows, &size, &d) &&
        !check(s, act_p_expert_dispatch(m), &size, &d))
        w = malloc(sizeof *w);
    if (!w) {
        s->figures[ACT_SHARD_REFUSED]++;
        refuse_message(self, m);
        return;
    }
    *w = (struct work){.promise = act_promise_of(m),
                       .head = *act_p_expert_dispatch(m),
                       .d = d,
                       .rows = (int)size.rows,
                       .pairs = (int)size.pairs};
    w->buf = act_msg_take(m);
    enqueue(self, s, w);
}

static struct act_p_expert_dispatch dispatch_of(const struct act_slot_head *h)
{
    return (struct act_p_expert_dispatch){h->sequence, h->map, h->stream, h->layer, h->rows, h->set, h->wave};
}

static void refuse_slot(struct act_self *self, const struct act_slot_work *slot)
{
    const struct act_p_expert_dispatch head = dispatch_of(&slot->head);
    struct act_msg r;
    if (refuse(&head, slot->source, &r) == 0 && act_send(self, &r))
        act_msg_drop(&r); /* its deadline ends it */
}

/* What says where things are is copied: it is looked at again later. */
static struct work *copy_slot(const struct shard *s, const struct act_slot_work *slot)
{
    struct act_dispatch_size size;
    struct act_dispatch in;
    const struct act_slot_head *h = &slot->head;
    if (!place(s, slot->tail, h->bytes, h->rows, &size, &in))
        return NULL;
    size_t counts = size.rows * sizeof *in.pairs, pairs = size.pairs * sizeof *in.pair;
    struct work *w = malloc(sizeof *w + counts + pairs);
    if (!w)
        return NULL;
    *w = (struct work){.head = dispatch_of(h),
                       .slot = *slot,
                       .d = {.codes = in.codes, .scales = in.scales},
                       .rows = (int)size.rows,
                       .pairs = (int)size.pairs};
    w->d.pair = (struct act_dispatch_pair *)(void *)(w + 1);
    w->d.pairs = (uint32_t *)(void *)(w->d.pair + size.pairs);
    memcpy(w->d.pair, in.pair, pairs);
    memcpy(w->d.pairs, in.pairs, counts);
    if (!check(s, &w->head, &size, &w->d))
        return w;
    free(w);
    return NULL;
}

static void take_slot(struct act_self *self, struct shard *s, struct act_msg *m)
{
    struct act_slot_work slot;
    bool fresh = act_expert_slots_take(&s->slots, m, &slot);
    struct work *w = fresh ? copy_slot(s, &slot) : NULL;
    s->figures[ACT_SHARD_REFUSED] += !w;
    if (w)
        enqueue(self, s, w);
    else if (fresh)
        refuse_slot(self, &slot);
}

/* ---- work ---- */

/* Takes the oldest dispatch, and all others for its layer that fit, out of the list. */
static int take_group(struct queue *q)
{
    struct work **at = &q->first, **to = &q->group;
    int layer = q->first->head.layer, rows = 0;
    while (*at) {
        struct work *w = *at;
        if (w->head.layer != layer || (rows && rows + w->rows > GROUP_ROWS)) {
            at = &w->next;
            continue;
        }
        rows += w->rows;
        *at = w->next;
        w->next = NULL;
        *to = w;
        to = &w->next;
    }
    q->last = at;
    return rows;
}

static void add_rows(struct mdl_exchange *x, const struct work *w, int first, size_t hidden)
{
    memcpy((uint8_t *)(uintptr_t)x->codes + (size_t)first * hidden, w->d.codes, (size_t)w->rows * hidden);
    memcpy((uint8_t *)(uintptr_t)x->scales + (size_t)first * hidden / 32, w->d.scales, (size_t)w->rows * hidden / 32);
    const struct act_dispatch_pair *p = w->d.pair;
    for (int r = 0; r < w->rows; r++)
        for (int k = 0; k < x->k; k++) {
            size_t at = (size_t)(first + r) * (size_t)x->k + (size_t)k;
            bool real = k < (int)w->d.pairs[r];
            ((int32_t *)(uintptr_t)x->expert)[at] = real ? (int32_t)p->expert : -1;
            ((float *)(uintptr_t)x->weight)[at] = real ? p->weight : 0.0f;
            x->have[at] = !real;
            x->pending += real;
            p += real;
        }
}

/* The exchange as mdl_experts_compute wants it: rows padded to the same number of experts; padding counts as delivered.
 */
static int begin_group(struct queue *q, const struct shard *s)
{
    size_t hidden = (size_t)s->arg->m->cfg->hidden, rows = (size_t)take_group(q);
    struct mdl_exchange *x = &q->x;
    *x = (struct mdl_exchange){.layer = q->group->head.layer, .rows = (int)rows};
    for (const struct work *w = q->group; w; w = w->next)
        for (int r = 0; r < w->rows; r++)
            x->k = (int)w->d.pairs[r] > x->k ? (int)w->d.pairs[r] : x->k;
    size_t n = rows * (size_t)x->k;
    q->memory =
        malloc(n * (hidden * sizeof(uint16_t) + sizeof(int32_t) + sizeof(float) + 1) + rows * (hidden + hidden / 32));
    if (!q->memory)
        return -ENOMEM;
    x->expert = q->memory;
    x->weight = (const float *)(x->expert + n);
    x->result = (uint16_t *)(uintptr_t)(x->weight + n);
    x->codes = (const uint8_t *)(x->result + n * hidden);
    x->scales = x->codes + rows * hidden;
    x->have = (uint8_t *)(uintptr_t)(x->scales + rows * hidden / 32);
    int first = 0;
    for (const struct work *w = q->group; w; first += w->rows, w = w->next)
        add_rows(x, w, first, hidden);
    q->next_expert = 0;
    return 0;
}

/* The rows of a dispatch, which are the group's from `first` on. */
static void copy_rows(const struct shard *s, const struct mdl_exchange *x, const struct work *w, int first, uint8_t *to)
{
    size_t hidden = (size_t)s->arg->m->cfg->hidden;
    for (int i = first * x->k; i < (first + w->rows) * x->k; i++)
        if (x->expert[i] >= 0) {
            memcpy(to, x->result + (size_t)i * hidden, hidden * sizeof(uint16_t));
            to += hidden * sizeof(uint16_t);
        }
}

static struct act_addr source_of(const struct work *w)
{
    return w->buf ? w->promise.to : w->slot.source;
}

/* Rows of other sources in the same group. */
static int rows_of_others(const struct work *group, const struct work *w)
{
    int rows = 0;
    for (const struct work *o = group; o; o = o->next)
        rows += act_addr_equal(source_of(o), source_of(w)) ? 0 : o->rows;
    return rows;
}

static int answer(struct act_self *self, struct shard *s, const struct queue *q, struct work *w, int first)
{
    const struct mdl_exchange *x = &q->x;
    int others = rows_of_others(q->group, w);
    struct act_msg r;
    size_t size = (size_t)w->pairs * (size_t)s->arg->m->cfg->hidden * sizeof(uint16_t), bytes;
    uint8_t *to = w->buf ? NULL : act_expert_slots_answer(&s->slots, &w->slot, size);
    if (to) {
        copy_rows(s, x, w, first, to);
        if (act_expert_slots_put(&s->slots, &w->slot, size, others) == 0)
            return 0;
    }
    int status = act_msg_new(ACT_EXPERT_RESULT, w->buf ? ACT_NOBODY : w->slot.source, size, &r);
    if (status)
        return status;
    *act_p_expert_result(&r) = (struct act_p_expert_result){
        w->head.sequence, w->head.map, w->head.stream, w->head.layer, (uint16_t)others, w->head.set, w->head.wave};
    copy_rows(s, x, w, first, act_msg_tail(&r, &bytes));
    if (w->buf ? act_reply(self, &w->promise, &r) : act_send(self, &r))
        act_msg_drop(&r); /* nobody waits any more, or its deadline ends it */
    return 0;
}

/* Steps of running streams first; what has waited for long goes before them once. */
static struct queue *choose(struct act_self *self, struct shard *s)
{
    struct queue *urgent = &s->queue[URGENT], *bulk = &s->queue[BULK];
    bool any_urgent = urgent->first || urgent->group, any_bulk = bulk->first || bulk->group;
    if (!any_urgent)
        return any_bulk ? bulk : NULL;
    return any_bulk && act_now(self) - bulk->since > AGE_NS ? bulk : urgent;
}

/* The next expert of one group. */
static int work_on(struct act_self *self, struct shard *s, struct queue *q)
{
    int status = q->group ? 0 : begin_group(q, s), end = s->arg->m->cfg->n_experts;
    for (int before = q->x.pending; !status && q->x.pending == before && q->next_expert < end;)
        status = mdl_experts_compute(s->arg->m, &q->x, q->next_expert++, 1);
    q->since = act_now(self);
    if (status || q->x.pending)
        return status;
    int first = 0;
    for (struct work *w = q->group; w && !status; first += w->rows, w = w->next)
        status = answer(self, s, q, w, first);
    drop_group(q);
    return status;
}

/* ---- maps ---- */

static void ready(struct act_self *self, struct act_promise *p, uint32_t version, int status)
{
    struct act_msg r = act_msg_make(ACT_EXPERT_READY, ACT_NOBODY);
    *act_p_expert_ready(&r) = (struct act_p_expert_ready){.map = version, .status = status};
    if (act_reply(self, p, &r))
        act_msg_drop(&r);
}

static void take_plan(struct act_self *self, struct shard *s, struct act_msg *m)
{
    const struct mdl_config *cfg = s->arg->m->cfg;
    struct act_promise p = act_promise_of(m);
    struct act_map *map;
    size_t bytes;
    const void *tail = act_msg_tail(m, &bytes);
    int r = act_map_read(tail, bytes, &map);
    if (!r && (map->layers != cfg->n_layers || map->experts != cfg->n_experts || s->arg->index >= map->shards)) {
        act_map_free(map);
        r = -EBADMSG;
    }
    if (r) {
        ready(self, &p, act_p_expert_plan(m)->map, r);
        return;
    }
    if (s->next)
        ready(self, &s->ready, s->next->version, -ESTALE); /* a newer plan has come */
    act_map_free(s->next);
    s->next = map;
    s->ready = p;
    s->load_layer = s->load_slot = 0;
    s->loading = true;
}

/* One expert that the next map adds. */
static void load_one(struct act_self *self, struct shard *s)
{
    const struct act_map *n = s->next;
    while (s->load_layer < n->layers) {
        int layer = s->load_layer, slot = s->load_slot;
        s->load_slot = (slot + 1) % n->slots;
        s->load_layer += s->load_slot == 0;
        int expert = act_map_slots(n, layer, s->arg->index)[slot];
        if (expert >= 0 && !act_map_holds(s->map, layer, s->arg->index, expert)) {
            mdl_expert_load(s->arg->m, layer, expert);
            s->figures[ACT_SHARD_LOADED]++;
            return;
        }
    }
    s->loading = false;
    ready(self, &s->ready, n->version, 0);
}

static void release_others(const struct shard *s, const struct act_map *old)
{
    for (int l = 0; l < old->layers; l++) {
        const int32_t *slot = act_map_slots(old, l, s->arg->index);
        for (int i = 0; i < old->slots; i++)
            if (slot[i] >= 0 && !act_map_holds(s->map, l, s->arg->index, slot[i]))
                mdl_expert_release(s->arg->m, l, slot[i]);
    }
}

/* Every source uses the map by now. */
static void take_retire(struct act_self *self, struct shard *s, uint32_t version)
{
    if (!s->next || s->next->version != version)
        return;
    const struct act_map *old = s->map;
    struct act_map *old_own = s->own;
    s->map = s->own = s->next;
    s->next = NULL;
    if (s->loading) /* the map is in use before all of it is loaded; who planned it waits for no more than that */
        ready(self, &s->ready, version, 0);
    s->loading = false;
    if (s->arg->release)
        release_others(s, old);
    act_map_free(old_own);
}

/* ---- what it says about itself ---- */

static void report(struct act_self *self, struct shard *s)
{
    s->figures[ACT_SHARD_WAITING] = 0;
    for (int q = 0; q < QUEUES; q++) {
        for (const struct work *w = s->queue[q].first; w; w = w->next)
            s->figures[ACT_SHARD_WAITING]++;
        for (const struct work *w = s->queue[q].group; w; w = w->next)
            s->figures[ACT_SHARD_WAITING]++;
    }
    s->reporting = false;
    act_figures_send(self, *s->arg->observer, ACT_FIGURES_SHARD, s->figures, ACT_SHARD_FIGURES);
}

static int shard_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct shard *s = state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_EXPERT_DISPATCH)
            take_dispatch(self, s, &m[i]);
        else if (m[i].type == ACT_EXPERT_PLAN)
            take_plan(self, s, &m[i]);
        else if (m[i].type == ACT_EXPERT_RETIRE)
            take_retire(self, s, act_p_expert_retire(&m[i])->map);
        else if (m[i].type == ACT_LINK_IMMEDIATE)
            take_slot(self, s, &m[i]);
        else if (m[i].type == ACT_LINK_PUT_DONE ||
                 (m[i].type == ACT_UNDELIVERABLE && act_msg_returned_type(&m[i]) == ACT_LINK_PUT))
            act_expert_slots_put_done(&s->slots, &m[i]);
        else if (m[i].type == ACT_UNDELIVERABLE && act_msg_returned_type(&m[i]) == ACT_EXPERT_RESULT)
            act_expert_slots_returned(&s->slots, &m[i]);
        else if (m[i].type == ACT_TIMER)
            report(self, s);
        if (m[i].type != ACT_TIMER && s->arg->observer && !s->reporting) {
            act_timer_after(self, &s->report, ACT_FIGURES_EVERY_NS, 0);
            s->reporting = true;
        }
    }
    struct queue *q = choose(self, s);
    int status = q ? work_on(self, s, q) : 0;
    /* One that is never without work loads all the same, so that the plan it is loading for comes to be. */
    if (s->loading && (!q || act_now(self) - s->loaded_at >= LOAD_EVERY_NS)) {
        load_one(self, s);
        s->loaded_at = act_now(self);
    }
    bool more = choose(self, s) != NULL;
    act_working(self, more);
    act_progress(self);
    if (more || s->loading)
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
