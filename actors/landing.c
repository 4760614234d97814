#include "actors/landing_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/figures.h"
#include "actors/handoff.h"
#include "actors/link.h"
#include "actors/placement.h"
#include "actors/runtime/log.h"

enum { SPARE = 16, TAG_LEASE = 1, TAG_LOAD = 3 };

/* ---- what a ticket's rules ask for ---- */

void land_return_pages(struct landing *l, const uint32_t *page, int n)
{
    struct act_msg m;
    size_t bytes;
    if (n < 1 || act_msg_new(ACT_PAGES_BACK, l->e->tier, (size_t)n * sizeof *page, &m))
        return;
    memcpy(act_msg_tail(&m, &bytes), page, (size_t)n * sizeof *page);
    act_p_pages_back(&m)->pages = (uint32_t)n;
    land_send(l, &m);
}

static void tell_failed(struct landing *l, struct act_addr to, uint64_t request, uint16_t attempt, int status)
{
    static const char text[] = "the hand-off to the decoder failed";
    struct act_msg m;
    size_t bytes;
    if (act_msg_new(ACT_FAILED, to, sizeof text - 1, &m))
        m = act_msg_make(ACT_FAILED, to);
    else
        memcpy(act_msg_tail(&m, &bytes), text, sizeof text - 1);
    m.request = request;
    m.attempt = attempt;
    act_p_failed(&m)->status = status;
    land_send(l, &m);
}

static void refuse(struct landing *l, struct act_promise *p, int status)
{
    struct act_msg r = act_msg_make(ACT_RESERVED, ACT_NOBODY);
    act_p_reserved(&r)->status = status;
    l->stats->refused++;
    if (act_reply(l->self, p, &r))
        act_msg_drop(&r);
}

static void grant(struct landing *l, struct land_slot *s)
{
    struct act_msg r;
    size_t bytes;
    if (act_msg_new(ACT_RESERVED, ACT_NOBODY, (size_t)s->n_pages * sizeof *s->pages, &r))
        return; /* the lease ends it */
    memcpy(act_msg_tail(&r, &bytes), s->pages, (size_t)s->n_pages * sizeof *s->pages);
    act_b_reserved(&r)->link = s->link;
    *act_p_reserved(&r) = (struct act_p_reserved){.ticket = (uint32_t)(s - l->slot),
                                                  .generation = s->ticket.generation,
                                                  .pages = (uint16_t)s->n_pages,
                                                  .held = (uint16_t)s->held};
    l->stats->granted++;
    if (act_reply(l->self, &s->promise, &r))
        act_msg_drop(&r);
}

static void tell_writer(struct landing *l, struct act_addr writer, uint64_t request, uint16_t attempt, uint32_t slot,
                        uint32_t generation, int status)
{
    struct act_msg m = act_msg_make(status ? ACT_TICKET_ABORT : ACT_TICKET_CLOSED, writer);
    m.request = request;
    m.attempt = attempt;
    if (!status)
        *act_p_ticket_closed(&m) = (struct act_p_ticket_closed){.ticket = slot, .generation = generation};
    else
        *act_p_ticket_abort(&m) =
            (struct act_p_ticket_abort){.ticket = slot, .generation = generation, .reason = status};
    land_send(l, &m);
}

/* In order with the question for the next place, or that would be given back too: a writer that begins again asks as
 * the same attempt. */
static void give_place_back(struct landing *l, struct act_addr decode, uint64_t request, uint16_t attempt)
{
    struct act_msg m = act_msg_make(ACT_CANCEL, decode);
    m.request = request;
    m.attempt = attempt;
    act_p_cancel(&m)->reason = -ECANCELED;
    if (act_send(l->self, &m))
        act_cancel(l->self, decode, request, attempt, -ECANCELED);
}

/* Frees what the slot still holds; the next ticket in it has another generation. */
static void clear(struct landing *l, struct land_slot *s)
{
    uint32_t generation = s->ticket.generation + 1;
    land_return_pages(l, s->pages, s->n_pages);
    if (s->placed)
        give_place_back(l, l->decode[s->decode].addr, s->request, s->attempt);
    mdl_seq_free(s->seq);
    act_buf_free(s->buf);
    act_buf_free(s->ready);
    free(s->pages);
    *s = (struct land_slot){.ticket = {.generation = generation, .deadline = INT64_MAX}};
    l->stats->open--;
}

/* The Landing ends while somebody may write to these pages. */
static void return_fenced(struct landing *l, struct land_slot *s)
{
    struct act_msg m;
    size_t bytes;
    if (s->n_pages < 1)
        return;
    if (act_msg_new(ACT_PAGES_FENCED, l->e->tier, (size_t)s->n_pages * sizeof *s->pages, &m)) {
        s->n_pages = 0; /* out of use for good is better than written to by two */
        return;
    }
    memcpy(act_msg_tail(&m, &bytes), s->pages, (size_t)s->n_pages * sizeof *s->pages);
    *act_p_pages_fenced(&m) = (struct act_p_pages_fenced){
        .pages = (uint32_t)s->n_pages, .peer = s->writer.peer, .class = TP_CLASS_KV, .generation = s->link};
    s->n_pages = 0;
    land_send(l, &m);
}

/* Ends the connection that the slot's writer uses. */
static void fence(struct landing *l, const struct land_slot *s)
{
    struct act_msg m = act_msg_make(ACT_LINK_FENCE, l->e->link);
    *act_p_link_fence(&m) =
        (struct act_p_link_fence){.peer = s->writer.peer, .class = TP_CLASS_KV, .generation = s->link};
    l->stats->fenced++;
    if (act_request(l->self, &m))
        act_msg_drop(&m); /* once more at the next deadline */
}

static void say_failed(struct landing *l, const struct land_slot *s, int status);

static void step_n(struct landing *l, struct land_slot *s, enum act_ticket_event event, uint32_t n, int status)
{
    bool held = s->ticket.state != ACT_TICKET_FREE;
    if (s->revoked && (event == ACT_TICKET_ON_LEASE || event == ACT_TICKET_ON_DOWN)) {
        s->revoked = false; /* its writer may not have heard, and then goes nowhere */
        tell_failed(l, s->requester, s->request, s->attempt, status);
    }
    unsigned todo = act_ticket_step(&s->ticket, event, n, act_now(l->self), &l->e->tickets);
    uint32_t number = (uint32_t)(s - l->slot);
    l->stats->stale += (todo & ACT_TICKET_DO_COUNT) != 0;
    if (todo & ACT_TICKET_DO_GRANT)
        grant(l, s);
    if (todo & ACT_TICKET_DO_REFUSE)
        refuse(l, &s->promise, status);
    if (todo & ACT_TICKET_DO_TAKE) {
        l->err.msg[0] = 0;
        int r = land_hand_on(l, s);
        tell_writer(l, s->writer, s->request, s->attempt, number, s->ticket.generation, r ? -ECANCELED : 0);
        if (r)
            say_failed(l, s, r);
        l->stats->taken += !r;
        l->stats->held += r ? 0 : (uint64_t)s->held;
    }
    if (todo & ACT_TICKET_DO_FAIL) {
        l->stats->failed++;
        tell_failed(l, s->requester, s->request, s->attempt, status);
    }
    if (todo & ACT_TICKET_DO_ABORT) {
        l->stats->revoked++;
        tell_writer(l, s->writer, s->request, s->attempt, number, s->ticket.generation,
                    s->revoked ? -EAGAIN : -ECANCELED);
    }
    if (held && s->ticket.state == ACT_TICKET_FREE)
        clear(l, s);
    if (todo & ACT_TICKET_DO_FENCE && s->link)
        fence(l, s);
    else if (todo & ACT_TICKET_DO_FENCE) /* rows of this process were copied when their message was sent */
        step_n(l, s, ACT_TICKET_ON_DOWN, 0, status);
}

void land_step(struct landing *l, struct land_slot *s, enum act_ticket_event event, int status)
{
    step_n(l, s, event, 0, status);
}

/* What came could not be used. A sequence that was to move is still whole where it was, and goes on there. */
static void say_failed(struct landing *l, const struct land_slot *s, int status)
{
    l->stats->failed++;
    act_log_event(l->e->log, ACT_LOG_WARNING, "landing", s->request, "not_taken",
                  "attempt=%u peer=%u tokens=%d moved=%d reason=%s%s%s", s->attempt, s->writer.peer, s->recipe.n_ids,
                  land_is_moved(s), act_reason_name(status), *l->err.msg ? " " : "", l->err.msg);
    if (!land_is_moved(s))
        tell_failed(l, s->requester, s->request, s->attempt, status);
}

/* ---- a question ---- */

struct land_slot *land_find_slot(struct landing *l, uint64_t request, uint16_t attempt)
{
    for (int i = 0; i < l->n_slots; i++)
        if (l->slot[i].ticket.state != ACT_TICKET_FREE && l->slot[i].request == request &&
            l->slot[i].attempt == attempt)
            return &l->slot[i];
    return NULL;
}

static void give_up(struct landing *l, uint64_t request, int attempt)
{
    for (int i = 0; i < l->n_slots; i++) {
        struct land_slot *s = &l->slot[i];
        if (s->ticket.state != ACT_TICKET_FREE && s->request == request && s->attempt <= attempt)
            land_step(l, s, ACT_TICKET_ON_GIVE_UP, -ECANCELED);
    }
}

static int best_decode(const struct landing *l)
{
    int best = 0;
    for (int i = 1; i < l->e->n_decode; i++) {
        const struct land_decoder *a = &l->decode[i], *b = &l->decode[best];
        if (act_addr_is_nobody(b->addr) ||
            (!act_addr_is_nobody(a->addr) &&
             a->load.running + a->load.waiting + a->given < b->load.running + b->load.waiting + b->given))
            best = i;
    }
    return best;
}

static void ask_decode(struct landing *l, struct land_slot *s)
{
    struct act_msg m;
    size_t bytes;
    if (act_msg_new(ACT_RESERVE, l->decode[s->decode].addr, s->buf->size, &m)) {
        land_step(l, s, ACT_TICKET_ON_REFUSE, -EAGAIN);
        return;
    }
    memcpy(act_msg_tail(&m, &bytes), s->buf->data, s->buf->size);
    m.request = s->request;
    m.attempt = s->attempt;
    *act_p_reserve(&m) = (struct act_p_reserve){
        .ids = (uint32_t)s->recipe.n_ids, .max_tokens = (uint32_t)s->max_new, .requester = s->requester};
    if (act_request(l->self, &m)) {
        act_msg_drop(&m);
        land_step(l, s, ACT_TICKET_ON_REFUSE, -EAGAIN);
        return;
    }
    l->decode[s->decode].given++;
}

/* What is wrong with a question, as the answer's status. */
static int check_reserve(const struct landing *l, struct act_msg *m, struct act_recipe *recipe)
{
    const struct act_p_reserve *in = act_p_reserve(m);
    if (in->ids > (uint32_t)l->e->limits.context || in->max_tokens > (uint32_t)l->e->limits.context ||
        (int)(in->ids + in->max_tokens) > l->e->limits.context)
        return -E2BIG;
    if (!in->max_tokens || act_recipe_read(m, (int)in->ids, l->e->vocab, recipe))
        return -EINVAL;
    return act_can_hold(l->e, (int)in->ids, (int)(in->ids + in->max_tokens)) ? 0 : -E2BIG;
}

static void take_reserve(struct landing *l, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    struct act_recipe recipe;
    if (!p.number) { /* a double: the first one has the answer */
        l->stats->stale++;
        return;
    }
    if (m->attempt)
        give_up(l, m->request, m->attempt - 1);
    int status = check_reserve(l, m, &recipe);
    struct land_slot *s = NULL;
    for (int i = 0; i < l->n_slots && !s; i++)
        if (l->slot[i].ticket.state == ACT_TICKET_FREE)
            s = &l->slot[i];
    /* Cancels at Decode mean all of an attempt, so it has one ticket at a time. Its writer asks twice when a doubled
     * refusal looks like an answer to the next question. */
    if (status || !s || land_find_slot(l, m->request, m->attempt)) {
        refuse(l, &p, status ? status : -EAGAIN);
        return;
    }
    const struct act_p_reserve *in = act_p_reserve(m);
    s->request = m->request;
    s->attempt = m->attempt;
    s->writer = m->src;
    s->requester = in->requester;
    s->promise = p;
    s->recipe = recipe;
    s->max_new = (int)in->max_tokens;
    s->decode = best_decode(l);
    s->order = ++l->order;
    s->buf = act_msg_take(m);
    l->stats->open++;
    land_step(l, s, ACT_TICKET_ON_RESERVE, 0);
    ask_decode(l, s);
}

static void take_reserved(struct landing *l, struct act_msg *m)
{
    struct land_slot *s = land_find_slot(l, m->request, m->attempt);
    const struct act_p_reserved *in = act_p_reserved(m);
    if (s && (s->placed || s->ticket.state != ACT_TICKET_GRANTING)) /* answered: to an earlier question, too late */
        return;
    if (!s) { /* given up: a cancel may have overtaken the question */
        if (!in->status)
            give_place_back(l, m->src, m->request, m->attempt);
        return;
    }
    if (in->status) {
        land_step(l, s, ACT_TICKET_ON_REFUSE, in->status);
        return;
    }
    s->place = in->ticket;
    s->placed = true;
    land_pages_ask(l, s);
}

/* ---- writes ---- */

static struct land_slot *slot_of(struct landing *l, uint32_t number, uint32_t generation)
{
    struct land_slot *s = number < (uint32_t)l->n_slots ? &l->slot[number] : NULL;
    return s && s->ticket.state != ACT_TICKET_FREE && s->ticket.generation == generation ? s : NULL;
}

static bool takes_rows(const struct land_slot *s)
{
    return s && (s->ticket.state == ACT_TICKET_OPEN || s->ticket.state == ACT_TICKET_CLOSING);
}

/* From a writer of this process. */
static void take_written(struct landing *l, struct act_msg *m)
{
    struct land_slot *s = slot_of(l, act_p_kv_written(m)->ticket, act_p_kv_written(m)->generation);
    if (takes_rows(s) && !s->link)
        land_step(l, s, ACT_TICKET_ON_WRITE, -EPROTO);
    else
        l->stats->stale++;
}

/* A put of another process has landed. It counts only if it came over the connection that its ticket names. */
static void take_immediate(struct landing *l, struct act_msg *m)
{
    const struct act_p_link_immediate *in = act_p_link_immediate(m);
    uint32_t number = in->immediate >> 16 & (ACT_TICKET_SLOTS_MAX - 1);
    struct land_slot *s = number < (uint32_t)l->n_slots ? &l->slot[number] : NULL;
    if (takes_rows(s) && (s->ticket.generation & 0xffff) == (in->immediate & 0xffff) && s->writer.peer == in->peer &&
        s->link && s->link == in->generation)
        land_step(l, s, ACT_TICKET_ON_WRITE, -EPROTO);
    else
        l->stats->stale++;
}

static void take_ready(struct landing *l, struct act_msg *m)
{
    const struct act_p_kv_ready in = *act_p_kv_ready(m);
    struct land_slot *s = slot_of(l, in.ticket, in.generation);
    if (!s) { /* the writer learns that there is no such ticket */
        l->stats->stale++;
        tell_writer(l, m->src, m->request, m->attempt, in.ticket, in.generation, -ECANCELED);
        return;
    }
    if (s->ticket.state == ACT_TICKET_OPEN) {
        s->announced = in;
        s->ready = act_msg_take(m);
    }
    step_n(l, s, ACT_TICKET_ON_READY, in.writes, -EPROTO);
}

static void take_closed(struct landing *l, struct act_msg *m)
{
    struct land_slot *s = slot_of(l, act_p_ticket_closed(m)->ticket, act_p_ticket_closed(m)->generation);
    if (s)
        land_step(l, s, act_p_ticket_closed(m)->status == -EAGAIN ? ACT_TICKET_ON_RETURN : ACT_TICKET_ON_CLOSED,
                  -EHOSTDOWN);
    else
        l->stats->stale++;
}

/* ---- connections ---- */

/* Nothing that was put over this connection can land any more: its tickets end. */
static void connection_ended(struct landing *l, uint16_t peer, uint32_t link)
{
    for (int i = 0; i < l->n_slots; i++) {
        struct land_slot *s = &l->slot[i];
        if (s->ticket.state != ACT_TICKET_FREE && s->link && s->link == link && s->writer.peer == peer)
            land_step(l, s, ACT_TICKET_ON_DOWN, -ECONNRESET);
    }
}

static void take_class(struct landing *l, const struct act_p_node_class *in)
{
    if (in->class != TP_CLASS_KV || in->peer >= ACT_PEERS_MAX)
        return;
    if (in->up)
        l->link[in->peer] = in->generation;
    else if (l->link[in->peer] == in->generation)
        l->link[in->peer] = 0;
    if (!in->up)
        connection_ended(l, in->peer, in->generation);
}

/* ---- ends ---- */

static void cancel_handed(struct landing *l, const struct land_decoder *d, const struct land_handed *h, int reason)
{
    if (!act_addr_is_nobody(d->addr))
        act_cancel(l->self, d->addr, h->request, h->attempt, reason);
    if (!act_addr_is_nobody(l->replay))
        act_cancel(l->self, l->replay, h->request, h->attempt, reason);
}

/* Of a request, wherever its sequence is by now. One that has no ticket yet gets none that lasts: its writer hears of
 * the cancel too, or of the requester's end, and says so behind its question, or gives back what it is granted. */
static void take_cancel(struct landing *l, struct act_msg *m)
{
    give_up(l, m->request, m->attempt);
    for (int i = 0; i < l->e->n_decode; i++)
        if (!act_addr_is_nobody(l->decode[i].addr))
            act_cancel(l->self, l->decode[i].addr, m->request, m->attempt, act_p_cancel(m)->reason);
    if (!act_addr_is_nobody(l->replay))
        act_cancel(l->self, l->replay, m->request, m->attempt, act_p_cancel(m)->reason);
}

/* Whatever a lost node wanted ends. Should it come back in the same life, its requests have been placed again. */
static void take_node_down(struct landing *l, uint16_t peer)
{
    for (int i = 0; i < l->n_slots; i++)
        if (l->slot[i].ticket.state != ACT_TICKET_FREE && l->slot[i].requester.peer == peer)
            land_step(l, &l->slot[i], ACT_TICKET_ON_GIVE_UP, -ECANCELED);
    for (int i = 0; i < l->e->n_decode; i++)
        for (int k = 0; k < l->e->limits.streams; k++) {
            struct land_handed *h = &l->decode[i].handed[k];
            if (!h->request || h->requester.peer != peer)
                continue;
            cancel_handed(l, &l->decode[i], h, -EHOSTDOWN);
            *h = (struct land_handed){0};
        }
}

/* The Decode that got the sequence; NULL: none did, or it has ended since. */
static struct land_decoder *who_got(struct landing *l, uint64_t request, uint16_t attempt, struct act_addr *requester)
{
    for (int i = 0; i < l->e->n_decode; i++)
        for (int k = 0; k < l->e->limits.streams; k++) {
            const struct land_handed *h = &l->decode[i].handed[k];
            if (!request || h->request != request || h->attempt != attempt)
                continue;
            *requester = h->requester;
            return &l->decode[i];
        }
    return NULL;
}

/* MOVE or MOVE_GO (type) for a sequence that is not here. */
static void refuse_move(struct landing *l, struct act_addr requester, enum act_type type, struct act_msg *m)
{
    if (type == ACT_MOVE_GO) {
        tell_failed(l, requester, m->request, m->attempt, -EHOSTDOWN);
        return;
    }
    struct act_msg no = act_msg_make(ACT_MOVED, requester);
    no.request = m->request;
    no.attempt = m->attempt;
    *act_p_moved(&no) =
        (struct act_p_moved){.to = act_p_move(m)->to, .status = -ENOENT, .attempt = act_p_move(m)->attempt};
    land_send(l, &no);
}

static void pass_move(struct landing *l, struct act_msg *m)
{
    struct act_addr requester;
    const struct land_decoder *d = who_got(l, m->request, m->attempt, &requester);
    if (!d) {
        refuse_move(l, m->src, (enum act_type)m->type, m);
        return;
    }
    struct act_msg on = act_msg_make((enum act_type)m->type, d->addr);
    on.request = m->request;
    on.attempt = m->attempt;
    memcpy(on.data, m->data, sizeof on.data);
    land_send(l, &on);
}

/* Decode did not have the place any more. Where the requester had not cancelled it, it goes on elsewhere. */
static void tell_unplaced(struct landing *l, uint64_t request, uint16_t attempt)
{
    for (int i = 0; i < l->e->n_decode; i++)
        for (int k = 0; k < l->e->limits.streams; k++) {
            struct land_handed *h = &l->decode[i].handed[k];
            if (h->request != request || h->attempt != attempt)
                continue;
            tell_failed(l, h->requester, request, attempt, -EHOSTDOWN);
            *h = (struct land_handed){0};
        }
}

/* Does the request have its place here still? What Decode has got only Decode knows. */
static void take_check(struct landing *l, struct act_msg *m)
{
    struct act_addr requester;
    const struct land_slot *s = land_find_slot(l, m->request, m->attempt);
    const struct land_decoder *d = who_got(l, m->request, m->attempt, &requester);
    struct act_msg on = *m;
    if (s && (s->ticket.state == ACT_TICKET_GRANTING || takes_rows(s)))
        return;
    on.flags = 0;
    on.dst = d ? d->addr : ACT_NOBODY;
    if (act_addr_is_nobody(on.dst))
        act_place_unknown(l->self, m);
    else if (act_forward(l->self, &on))
        act_msg_drop(&on); /* it is asked again */
}

/* Of the group's leader, for all Decode actors; they answer to it, so it stays the source. */
static void pass_budget(struct landing *l, const struct act_msg *m)
{
    for (int i = 0; i < l->e->n_decode; i++) {
        struct act_msg on = *m;
        on.flags = 0;
        on.dst = l->decode[i].addr;
        if (!act_addr_is_nobody(on.dst) && act_forward(l->self, &on))
            act_msg_drop(&on);
    }
}

static void take_returned(struct landing *l, struct act_msg *m)
{
    enum act_type type = act_msg_returned_type(m);
    struct land_slot *s = land_find_slot(l, m->request, m->attempt);
    size_t bytes;
    if (type == ACT_HANDOFF && m->buf) { /* Decode had given the place up: a cancel crossed the hand-off */
        uint32_t moved = ((const struct act_b_handoff *)(const void *)m->buf->data)->moved;
        size_t before = moved ? moved - 1 : (size_t)l->e->m->cfg->vocab_size;
        const uint32_t *last = (const uint32_t *)(const void *)(m->buf->data + act_type_info(type)->body_size);
        land_return_pages(l, last + before, (int)act_p_handoff(m)->pages);
        tell_unplaced(l, m->request, m->attempt);
    } else if (type == ACT_REPLAY && m->buf) {
        const uint32_t *page = (const uint32_t *)(const void *)(m->buf->data + act_type_info(type)->body_size);
        land_return_pages(l, page, (int)act_p_replay(m)->pages);
        const struct act_b_replay *b = (const struct act_b_replay *)(const void *)m->buf->data;
        act_cancel(l->self, b->decode, m->request, m->attempt, -ECANCELED);
        tell_failed(l, b->requester, m->request, m->attempt, -EHOSTDOWN);
    } else if (type == ACT_MOVE || type == ACT_MOVE_GO) {
        struct act_addr requester;
        if (who_got(l, m->request, m->attempt, &requester))
            refuse_move(l, requester, type, m);
    } else if (type == ACT_LOAD) {
        act_routers_message(&l->routers, m);
    } else if (type == ACT_RESERVE || type == ACT_KV_LOOKUP || type == ACT_PAGES_ASK) {
        if (s)
            land_step(l, s, ACT_TICKET_ON_REFUSE, -EHOSTDOWN);
    } else if (type == ACT_RESERVED) { /* the writer was gone before its answer came */
        s = slot_of(l, act_p_reserved(m)->ticket, act_p_reserved(m)->generation);
        if (s && !act_p_reserved(m)->status && act_msg_tail(m, &bytes))
            land_step(l, s, ACT_TICKET_ON_DOWN, -EHOSTDOWN);
    } else if (type == ACT_TICKET_ABORT) { /* the writer is gone; what it put may still be on its way */
        s = slot_of(l, act_p_ticket_abort(m)->ticket, act_p_ticket_abort(m)->generation);
        if (s && s->ticket.state == ACT_TICKET_QUARANTINE)
            land_step(l, s, s->link ? ACT_TICKET_ON_LEASE : ACT_TICKET_ON_DOWN, -EHOSTDOWN);
    } else if (type == ACT_LINK_FENCE) { /* with the link every connection has ended */
        for (int i = 0; i < l->n_slots; i++)
            if (l->slot[i].link)
                connection_ended(l, (uint16_t)l->slot[i].writer.peer, l->slot[i].link);
    }
}

/* A Decode has ended, and its sequences with it. */
static void take_down(struct landing *l, struct act_msg *m)
{
    uint32_t i = act_p_down(m)->tag;
    struct act_addr now = act_current(act_self_runtime(l->self), act_p_down(m)->who);
    if (act_p_down(m)->reason == -ESHUTDOWN)
        return;
    if (i == ACT_INSTANCES_MAX) {
        l->replay = now;
        if (!act_addr_is_nobody(now))
            act_monitor(l->self, now, i);
        return;
    }
    struct land_decoder *d = &l->decode[i];
    for (int k = 0; k < l->n_slots; k++) {
        struct land_slot *s = &l->slot[k];
        if (s->ticket.state == ACT_TICKET_FREE || s->decode != (int)i)
            continue;
        bool granted = s->ticket.state != ACT_TICKET_GRANTING;
        s->placed = false;
        if (granted)
            tell_failed(l, s->requester, s->request, s->attempt, -EHOSTDOWN);
        land_step(l, s, ACT_TICKET_ON_GIVE_UP, -EAGAIN);
    }
    for (int k = 0; k < l->e->limits.streams; k++) {
        struct land_handed *h = &d->handed[k];
        if (h->request)
            tell_failed(l, h->requester, h->request, h->attempt, -EHOSTDOWN);
        *h = (struct land_handed){0};
    }
    d->addr = now;
    d->load = (struct act_b_load){0};
    d->given = 0;
    if (!act_addr_is_nobody(now))
        act_monitor(l->self, now, i);
}

/* ---- load ---- */

static void report_load(struct landing *l)
{
    struct act_b_load sum = {0};
    uint32_t experts = ACT_EXPERTS_MISSING;
    for (int i = 0; i < l->e->n_decode; i++) {
        const struct act_b_load *b = &l->decode[i].load;
        if (act_addr_is_nobody(l->decode[i].addr))
            continue;
        sum.running += b->running;
        sum.waiting += b->waiting;
        sum.pages_total = b->pages_total;
        sum.pages_free = b->pages_free > sum.pages_free ? b->pages_free : sum.pages_free;
        experts = b->experts < experts ? b->experts : experts;
        sum.experts = experts;
        sum.step_us = b->step_us > sum.step_us ? b->step_us : sum.step_us;
    }
    act_load_report(l->self, l->arg->router ? *l->arg->router : ACT_NOBODY, CFG_ROLE_DECODE, &l->load_sequence, &sum);
    sum.draining = l->draining;
    act_tally_await(l->e->tally, l->draining ? act_routers_placed(&l->routers) : 0);
    for (int i = 0; i < l->routers.n; i++)
        act_load_report(l->self, l->routers.addr[i], CFG_ROLE_DECODE, &l->load_sequence, &sum);
    const uint64_t figures[ACT_LANDING_FIGURES] = {
        [ACT_LANDING_GRANTED] = l->stats->granted,     [ACT_LANDING_REFUSED] = l->stats->refused,
        [ACT_LANDING_TAKEN] = l->stats->taken,         [ACT_LANDING_FAILED] = l->stats->failed,
        [ACT_LANDING_REVOKED] = l->stats->revoked,     [ACT_LANDING_FENCED] = l->stats->fenced,
        [ACT_LANDING_STALE] = l->stats->stale,         [ACT_LANDING_HELD] = l->stats->held,
        [ACT_LANDING_OPEN] = (uint64_t)l->stats->open,
    };
    act_figures_send(l->self, l->e->observer, ACT_FIGURES_LANDING, figures, ACT_LANDING_FIGURES);
    act_timer_after(l->self, &l->load, ACT_LOAD_REPORT_NS, TAG_LOAD);
}

static void take_load(struct landing *l, struct act_msg *m)
{
    if (act_p_load(m)->role == CFG_ROLE_GATEWAY) {
        act_routers_message(&l->routers, m);
        return;
    }
    for (int i = 0; i < l->e->n_decode; i++)
        if (act_addr_equal(l->decode[i].addr, act_p_load(m)->who)) {
            l->decode[i].load = *act_b_load(m);
            l->decode[i].given = 0;
        }
}

/* ---- deadlines ---- */

static void look_at_leases(struct landing *l)
{
    int64_t now = act_now(l->self), first = INT64_MAX;
    for (int i = 0; i < l->n_slots; i++) {
        struct land_slot *s = &l->slot[i];
        if (s->ticket.state != ACT_TICKET_FREE && s->ticket.deadline <= now)
            land_step(l, s, ACT_TICKET_ON_LEASE, s->ticket.state == ACT_TICKET_GRANTING ? -EAGAIN : -ETIMEDOUT);
        if (s->ticket.state != ACT_TICKET_FREE && s->ticket.deadline < first)
            first = s->ticket.deadline;
    }
    if (first != INT64_MAX)
        act_timer_at(l->self, &l->lease, first, TAG_LEASE);
}

static void take_timer(struct landing *l, uint64_t tag)
{
    if (tag == TAG_LOAD)
        report_load(l);
    else if (tag == LAND_TAG_RETRY)
        land_pages_again(l);
}

static int landing_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct landing *l = state;
    (void)self;
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_RESERVE:
            take_reserve(l, &m[i]);
            break;
        case ACT_RESERVED:
            take_reserved(l, &m[i]);
            break;
        case ACT_KV_FOUND:
        case ACT_PAGES_GIVEN:
            land_pages_take(l, &m[i]);
            break;
        case ACT_TICKETS_REVOKE:
            land_revoke(l, &m[i]);
            break;
        case ACT_KV_WRITTEN:
            take_written(l, &m[i]);
            break;
        case ACT_LINK_IMMEDIATE:
            take_immediate(l, &m[i]);
            break;
        case ACT_LINK_FENCE:
            connection_ended(l, act_p_link_fence(&m[i])->peer, act_p_link_fence(&m[i])->generation);
            break;
        case ACT_NODE_CLASS:
            take_class(l, act_p_node_class(&m[i]));
            break;
        case ACT_NODE_DOWN:
            take_node_down(l, act_p_node_down(&m[i])->peer);
            break;
        case ACT_KV_READY:
            take_ready(l, &m[i]);
            break;
        case ACT_TICKET_CLOSED:
            take_closed(l, &m[i]);
            break;
        case ACT_CANCEL:
            take_cancel(l, &m[i]);
            break;
        case ACT_LOAD:
            take_load(l, &m[i]);
            break;
        case ACT_LOAD_WANTED:
            act_routers_message(&l->routers, &m[i]);
            break;
        case ACT_DRAIN:
            l->draining = true;
            report_load(l);
            break;
        case ACT_MOVE:
        case ACT_MOVE_GO:
            pass_move(l, &m[i]);
            break;
        case ACT_GROUP_BUDGET:
            pass_budget(l, &m[i]);
            break;
        case ACT_PLACE_CHECK:
            take_check(l, &m[i]);
            break;
        case ACT_DOWN:
            take_down(l, &m[i]);
            break;
        case ACT_UNDELIVERABLE:
            take_returned(l, &m[i]);
            break;
        case ACT_TIMER:
            take_timer(l, act_p_timer(&m[i])->tag);
            break;
        default:
            break;
        }
    }
    look_at_leases(l);
    return 0;
}

static void landing_stop(struct act_self *self, void *state, int reason)
{
    struct landing *l = state;
    (void)self;
    (void)reason;
    for (int i = 0; l->slot && i < l->n_slots; i++)
        if (l->slot[i].ticket.state != ACT_TICKET_FREE) {
            if (l->slot[i].link && l->slot[i].ticket.state != ACT_TICKET_GRANTING)
                return_fenced(l, &l->slot[i]);
            clear(l, &l->slot[i]);
        }
    /* Nobody learns any more when a Decode ends, so its sequences, whose requesters learn of this end, go too. */
    for (int i = 0; i < ACT_INSTANCES_MAX; i++) {
        for (int k = 0; l->decode[i].handed && k < l->e->limits.streams; k++) {
            const struct land_handed *h = &l->decode[i].handed[k];
            if (h->request)
                cancel_handed(l, &l->decode[i], h, -EHOSTDOWN);
        }
        free(l->decode[i].handed);
    }
    free(l->slot);
}

static int landing_start(struct act_self *self, void *state, const void *arg)
{
    struct landing *l = state;
    l->self = self;
    l->arg = arg;
    l->e = l->arg->engine;
    l->replay = l->arg->replay;
    l->stats = l->arg->stats ? l->arg->stats : &l->own;
    l->n_slots = l->e->n_decode * l->e->limits.streams + SPARE;
    l->n_slots = l->n_slots < ACT_TICKET_SLOTS_MAX ? l->n_slots : ACT_TICKET_SLOTS_MAX;
    l->slot = calloc((size_t)l->n_slots, sizeof *l->slot);
    int r = l->slot ? 0 : -ENOMEM;
    /* After a restart, mail for tickets of the one before must not fit those of this one. */
    uint32_t generation = (uint32_t)act_random(self) | 1;
    for (int i = 0; !r && i < l->n_slots; i++)
        l->slot[i].ticket = (struct act_ticket){.generation = generation, .deadline = INT64_MAX};
    for (int i = 0; !r && i < l->e->n_decode; i++) {
        l->decode[i].addr = l->e->decode[i];
        l->decode[i].handed = calloc((size_t)l->e->limits.streams, sizeof(struct land_handed));
        r = l->decode[i].handed ? act_monitor(self, l->decode[i].addr, (uint32_t)i) : -ENOMEM;
    }
    if (!r && !act_addr_is_nobody(l->replay))
        r = act_monitor(self, l->replay, ACT_INSTANCES_MAX);
    if (r) {
        landing_stop(self, state, r);
        return r;
    }
    act_timer_after(self, &l->load, 0, TAG_LOAD);
    if (!act_addr_is_nobody(l->e->link)) {
        struct act_msg m = act_msg_make(ACT_NODES_WATCH, l->e->link);
        act_p_nodes_watch(&m)->flags = ACT_WATCH_CLASSES;
        land_send(l, &m);
    }
    return 0;
}

const struct act_behaviour act_landing_behaviour = {
    .name = "landing",
    .state_size = sizeof(struct landing),
    .start = landing_start,
    .receive = landing_receive,
    .stop = landing_stop,
};
