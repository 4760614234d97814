#include "actors/sending.h"

#include <errno.h>
#include <string.h>

static void send_closed(struct act_self *self, struct act_addr to, uint64_t request, uint16_t attempt, uint32_t slot,
                        uint32_t generation)
{
    struct act_msg m = act_msg_make(ACT_TICKET_CLOSED, to);
    m.request = request;
    m.attempt = attempt;
    *act_p_ticket_closed(&m) =
        (struct act_p_ticket_closed){.ticket = slot, .generation = generation, .status = -ECANCELED};
    if (act_send(self, &m))
        act_msg_drop(&m); /* the reader's deadlines do without it */
}

static unsigned step(struct act_sending *s, enum act_ticket_event event)
{
    unsigned todo = act_ticket_step(&s->ticket, event, 0, act_now(s->self), &s->e->tickets);
    if (todo & ACT_TICKET_DO_CLOSE)
        send_closed(s->self, s->reader, s->request, s->attempt, s->slot, s->ticket.generation);
    return todo;
}

void act_sending_ask(struct act_sending *s, struct act_self *self, const struct act_engine *e, struct act_addr reader,
                     uint64_t request, uint16_t attempt, enum mdl_handoff_form form)
{
    *s = (struct act_sending){
        .self = self, .e = e, .reader = reader, .request = request, .attempt = attempt, .form = form};
    step(s, ACT_TICKET_ON_ASK);
}

bool act_sending_reserved(struct act_sending *s, struct act_msg *m)
{
    const struct act_p_reserved *in = act_p_reserved(m);
    bool ticket = !in->status && in->pages;
    if (ticket) {
        s->slot = in->ticket;
        s->ticket.generation = in->generation;
    }
    step(s, ticket ? ACT_TICKET_ON_GRANTED : ACT_TICKET_ON_REFUSED);
    return ticket;
}

bool act_sending_is_mine(const struct act_sending *s, struct act_msg *m)
{
    const struct act_p_reserved *in = act_p_reserved(m);
    return s->ticket.state != ACT_TICKET_FREE && s->slot == in->ticket && s->ticket.generation == in->generation;
}

bool act_sending_writing(const struct act_sending *s)
{
    return s->ticket.state == ACT_TICKET_WRITING;
}

static int send_piece(struct act_sending *s, const struct mdl_seq *seq, int from, int to)
{
    struct act_msg m;
    size_t bytes;
    int r = act_msg_new(ACT_KV_WRITE, s->reader, mdl_handoff_rows_bytes(seq, from, to), &m);
    if (r)
        return r;
    m.request = s->request;
    m.attempt = s->attempt;
    *act_p_kv_write(&m) = (struct act_p_kv_write){
        .ticket = s->slot, .generation = s->ticket.generation, .number = s->writes, .from = (uint32_t)from};
    act_b_kv_write(&m)->to = (uint32_t)to;
    mdl_handoff_rows_save(seq, from, to, act_msg_tail(&m, &bytes));
    r = act_send(s->self, &m);
    if (r) {
        act_msg_drop(&m);
        return r;
    }
    s->writes++;
    return 0;
}

int act_sending_rows(struct act_sending *s, const struct mdl_seq *seq, int end)
{
    int per = s->e->layout.block_tokens, r = 0;
    while (!r && s->sent < end) {
        int edge = (s->sent / per + 1) * per, to = end < edge ? end : edge;
        r = send_piece(s, seq, s->sent, to);
        s->sent = r ? s->sent : to;
    }
    if (!r)
        act_ticket_touch(&s->ticket, act_now(s->self), &s->e->tickets);
    return r;
}

int act_sending_finish(struct act_sending *s, const struct mdl_seq *seq, const void *last, size_t last_bytes,
                       const struct act_b_kv_ready *known)
{
    struct act_msg m;
    size_t bytes, state = mdl_handoff_state_bytes(seq, s->form);
    int r = act_sending_rows(s, seq, mdl_handoff_tokens(s->form, seq->encoded));
    if (!r)
        r = act_msg_new(ACT_KV_READY, s->reader, state + last_bytes, &m);
    if (r)
        return r;
    m.request = s->request;
    m.attempt = s->attempt;
    *act_p_kv_ready(&m) = (struct act_p_kv_ready){
        .ticket = s->slot, .generation = s->ticket.generation, .writes = s->writes, .form = s->form};
    *act_b_kv_ready(&m) = *known;
    act_b_kv_ready(&m)->state = state;
    uint8_t *tail = act_msg_tail(&m, &bytes);
    mdl_handoff_state_save(seq, s->form, tail);
    if (last_bytes)
        memcpy(tail + state, last, last_bytes);
    r = act_send(s->self, &m);
    if (r)
        act_msg_drop(&m);
    else
        step(s, ACT_TICKET_ON_FINISH);
    return r;
}

unsigned act_sending_event(struct act_sending *s, enum act_ticket_event event)
{
    unsigned todo = s->ticket.state == ACT_TICKET_FREE ? 0 : step(s, event);
    /* Messages were sent or not when act_send returned: there is no connection of this end's own to be fenced. */
    return todo;
}

unsigned act_sending_message(struct act_self *self, struct act_sending *s, struct act_msg *m)
{
    bool aborted = m->type == ACT_TICKET_ABORT;
    uint32_t slot = aborted ? act_p_ticket_abort(m)->ticket : act_p_ticket_closed(m)->ticket;
    uint32_t generation = aborted ? act_p_ticket_abort(m)->generation : act_p_ticket_closed(m)->generation;
    bool asking = s && s->ticket.state == ACT_TICKET_ASKING;
    if (s && s->ticket.state != ACT_TICKET_FREE &&
        (asking || (s->slot == slot && s->ticket.generation == generation))) {
        if (asking) { /* the grant is still on its way */
            s->slot = slot;
            s->ticket.generation = generation;
        }
        return step(s, aborted ? ACT_TICKET_ON_ABORT : ACT_TICKET_ON_CLOSED);
    }
    if (aborted)
        send_closed(self, m->src, m->request, m->attempt, slot, generation);
    return 0;
}

void act_sending_unwanted(struct act_self *self, struct act_msg *m)
{
    const struct act_p_reserved *in = act_p_reserved(m);
    if (!in->status && in->pages)
        send_closed(self, m->src, m->request, m->attempt, in->ticket, in->generation);
    else if (!in->status)
        act_cancel(self, m->src, m->request, m->attempt, -ECANCELED);
}
