#include "tests/support/put_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "tests/harness.h"

struct ts_put {
    struct ts_put *next;
    int64_t due;
    struct act_promise promise;
    uint32_t immediate;
    struct kv_device *from, *to; /* as they were when it was made */
    int n;
    struct act_put_range range[];
};

static int wire_start(struct act_self *self, void *state, const void *arg)
{
    struct ts_wire *w = *(struct ts_wire **)state = (struct ts_wire *)(uintptr_t)arg;
    (void)self;
    for (int i = 0; i < TS_WIRE_ENDS; i++) {
        w->end[i].generation = 2 + (uint32_t)(i == 2);
        w->end[i].first = NULL;
        w->end[i].last = &w->end[i].first;
        w->end[i].last_due = 0;
        w->end[i].broken = false;
    }
    w->bytes = 0;
    w->puts = w->landed = w->lost = w->refused = w->fences = w->ends = 0;
    return 0;
}

static void answer(struct act_self *self, struct act_promise *promise, int status, uint32_t generation)
{
    struct act_msg m = act_msg_make(ACT_LINK_PUT_DONE, ACT_NOBODY);
    *act_p_link_put_done(&m) = (struct act_p_link_put_done){.status = status, .generation = generation};
    act_reply(self, promise, &m);
}

static void copy(const struct ts_wire *w, const struct ts_put *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct act_put_range *r = &p->range[i];
        cr_assert_le(r->from + r->size, (size_t)kv_device_pages(p->from) * w->page_bytes);
        cr_assert_le(r->to + r->size, (size_t)kv_device_pages(p->to) * w->page_bytes);
        memcpy(kv_device_bytes(p->to, 0) + r->to, kv_device_bytes(p->from, 0) + r->from, r->size);
    }
}

bool ts_wire_writes_to(const struct ts_wire *w, const struct kv_device *device, uint32_t page)
{
    for (int e = 0; e < TS_WIRE_ENDS; e++)
        for (const struct ts_put *p = w->end[e].first; p; p = p->next)
            for (int i = 0; i < p->n && p->to == device; i++)
                if (p->range[i].to / w->page_bytes == page)
                    return true;
    return false;
}

void ts_wire_hang(struct ts_wire *w, int64_t ns)
{
    for (int e = 0; e < TS_WIRE_ENDS; e++) {
        for (struct ts_put *p = w->end[e].first; p; p = p->next)
            p->due += ns;
        w->end[e].last_due += ns;
    }
}

static struct ts_put *pop(struct ts_wire_end *e)
{
    struct ts_put *p = e->first;
    e->first = p->next;
    if (!e->first)
        e->last = &e->first;
    return p;
}

static void land(struct act_self *self, struct ts_wire *w, struct ts_wire_end *e)
{
    struct ts_put *p = pop(e);
    struct act_msg m = act_msg_make(ACT_LINK_IMMEDIATE, act_current(act_self_runtime(self), *e->landing));
    copy(w, p);
    *act_p_link_immediate(&m) =
        (struct act_p_link_immediate){.class = TP_CLASS_KV, .immediate = p->immediate, .generation = e->generation};
    if (!act_addr_is_nobody(m.dst) && act_send(self, &m))
        act_msg_drop(&m);
    w->landed++;
    answer(self, &p->promise, 0, e->generation);
    free(p);
}

static void tell(struct act_self *self, const struct ts_wire_end *e, uint32_t generation, bool up)
{
    struct act_msg m = act_msg_make(ACT_NODE_CLASS, act_current(act_self_runtime(self), *e->landing));
    *act_p_node_class(&m) = (struct act_p_node_class){.class = TP_CLASS_KV, .generation = generation, .up = up};
    if (!act_addr_is_nobody(m.dst) && act_send(self, &m))
        act_msg_drop(&m);
}

/* The connection ends, and the next one begins, of which the Landing hears first: without any it would take a writer of
 * this world, where all are in one process, for one that shares its pages. */
static void end(struct act_self *self, struct ts_wire *w, struct ts_wire_end *e)
{
    w->ends++;
    e->broken = false;
    if (w->half && e->first)
        copy(w, e->first);
    while (e->first) {
        struct ts_put *p = pop(e);
        w->lost++;
        if (!w->forgets)
            answer(self, &p->promise, -ECONNRESET, e->generation);
        free(p);
    }
    uint32_t before = e->generation;
    e->generation += 2;
    e->last_due = 0;
    tell(self, e, e->generation, true);
    tell(self, e, before, false);
}

void ts_wire_process_ended(struct ts_wire *w, const struct kv_device *device, struct kv_device *next)
{
    for (int i = 0; i < TS_WIRE_ENDS; i++) {
        struct ts_wire_end *e = &w->end[i];
        if (i)
            e->broken |= e->landing && (e->device == device || w->end[0].device == device);
        for (const struct ts_put *p = e->first; p; p = p->next)
            e->broken |= p->from == device;
    }
    for (int i = 0; i < TS_WIRE_ENDS; i++)
        if (w->end[i].device == device)
            w->end[i].device = next;
}

/* Where a put of this connection goes. */
static struct ts_wire_end *to_of(struct ts_wire *w, uint32_t generation)
{
    return &w->end[1 + (generation & 1)];
}

static struct kv_device *from_of(const struct ts_wire *w, struct act_addr src)
{
    for (int i = 1; i < TS_WIRE_ENDS; i++)
        for (int k = 0; k < 4 && w->end[i].decode; k++)
            if (w->end[i].decode[k].index == src.index && !act_addr_is_nobody(w->end[i].decode[k]))
                return w->end[i].device;
    return w->end[0].device;
}

static void take_put(struct act_self *self, struct ts_wire *w, struct act_msg *m)
{
    struct act_promise promise = act_promise_of(m);
    size_t bytes;
    const struct act_put_range *range = act_msg_tail(m, &bytes);
    uint32_t wanted = act_b_link_put(m)->generation;
    struct ts_wire_end *e = to_of(w, wanted);
    ++w->puts;
    if (w->break_at && w->puts >= w->break_at && w->puts < w->break_at + (w->breaks ? w->breaks : 1))
        end(self, w, e);
    if (w->puts == w->fail_at) {
        answer(self, &promise, -ENOMEM, 0);
        return;
    }
    if (wanted && wanted != e->generation) {
        w->refused++;
        answer(self, &promise, -ESTALE, 0);
        return;
    }
    struct ts_put *p = malloc(sizeof *p + bytes);
    cr_assert_not_null(p);
    int64_t due = act_now(self) + (w->delay_max ? (int64_t)(act_random(self) % (uint64_t)w->delay_max) : 0);
    if (w->puts == w->hold_at)
        due += w->hold_ns;
    *p = (struct ts_put){.due = due > e->last_due ? due : e->last_due,
                         .promise = promise,
                         .immediate = act_p_link_put(m)->immediate,
                         .from = from_of(w, m->src),
                         .to = e->device,
                         .n = (int)(bytes / sizeof *range)};
    memcpy(p->range, range, bytes);
    for (int i = 0; i < p->n; i++)
        w->bytes += range[i].size;
    e->last_due = p->due;
    *e->last = p;
    e->last = &p->next;
}

static void take_fence(struct act_self *self, struct ts_wire *w, struct act_msg *m)
{
    struct act_promise promise = act_promise_of(m);
    uint32_t wanted = act_p_link_fence(m)->generation;
    struct ts_wire_end *e = to_of(w, wanted);
    struct act_msg r = act_msg_make(ACT_LINK_FENCE, ACT_NOBODY);
    *act_p_link_fence(&r) = (struct act_p_link_fence){.class = TP_CLASS_KV, .generation = wanted};
    if (wanted == e->generation) {
        w->fences++;
        end(self, w, e);
    }
    act_reply(self, &promise, &r);
}

static int wire_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct ts_wire *w = *(struct ts_wire **)state;
    int64_t next = INT64_MAX;
    for (int k = 1; k < TS_WIRE_ENDS; k++)
        if (w->end[k].broken)
            end(self, w, &w->end[k]);
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_LINK_PUT)
            take_put(self, w, &m[i]);
        else if (m[i].type == ACT_LINK_FENCE && !w->deaf)
            take_fence(self, w, &m[i]);
        for (int k = 1; k < TS_WIRE_ENDS && m[i].type == ACT_NODES_WATCH; k++)
            if (w->end[k].landing && w->end[k].landing->index == m[i].src.index)
                tell(self, &w->end[k], w->end[k].generation, true);
    }
    for (int k = 1; k < TS_WIRE_ENDS; k++) {
        struct ts_wire_end *e = &w->end[k];
        while (e->first && e->first->due <= act_now(self))
            land(self, w, e);
        next = e->first && e->first->due < next ? e->first->due : next;
    }
    if (next != INT64_MAX)
        act_timer_at(self, &w->timer, next, 0);
    return 0;
}

static void wire_stop(struct act_self *self, void *state, int reason)
{
    struct ts_wire *w = *(struct ts_wire **)state;
    (void)self;
    (void)reason;
    for (int k = 1; k < TS_WIRE_ENDS; k++)
        while (w->end[k].first)
            free(pop(&w->end[k]));
}

const struct act_behaviour ts_wire_behaviour = {.name = "wire",
                                                .state_size = sizeof(struct ts_wire *),
                                                .start = wire_start,
                                                .receive = wire_receive,
                                                .stop = wire_stop};
