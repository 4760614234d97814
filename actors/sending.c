#include "actors/sending.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"

enum { WRITE_BLOCKS = 16 };

static void send_closed(struct act_self *self, struct act_addr to, uint64_t request, uint16_t attempt, uint32_t slot,
                        uint32_t generation, int status)
{
    struct act_msg m = act_msg_make(ACT_TICKET_CLOSED, to);
    m.request = request;
    m.attempt = attempt;
    *act_p_ticket_closed(&m) = (struct act_p_ticket_closed){.ticket = slot, .generation = generation, .status = status};
    if (act_send(self, &m))
        act_msg_drop(&m); /* the reader's deadlines do without it */
}

static void fence(const struct act_sending *s)
{
    struct act_msg m = act_msg_make(ACT_LINK_FENCE, s->e->link);
    *act_p_link_fence(&m) =
        (struct act_p_link_fence){.peer = s->reader.peer, .class = TP_CLASS_KV, .generation = s->link};
    if (act_request(s->self, &m))
        act_msg_drop(&m); /* once more at the next deadline */
}

static unsigned step(struct act_sending *s, enum act_ticket_event event)
{
    s->ticket.under_way = (uint32_t)s->puts;
    unsigned todo = act_ticket_step(&s->ticket, event, 0, act_now(s->self), &s->e->tickets);
    if (todo & ACT_TICKET_DO_CLOSE)
        send_closed(s->self, s->reader, s->request, s->attempt, s->slot, s->ticket.generation,
                    s->again ? -EAGAIN : -ECANCELED);
    if (todo & ACT_TICKET_DO_FENCE)
        fence(s);
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
    size_t bytes;
    bool ticket = !in->status && in->pages && m->buf;
    if (ticket) {
        const uint32_t *page = act_msg_tail(m, &bytes);
        s->slot = in->ticket;
        s->ticket.generation = in->generation;
        s->link = act_b_reserved(m)->link;
        s->n_to = (int)(bytes / sizeof *page < in->pages ? bytes / sizeof *page : in->pages);
        s->to = malloc(bytes + 1);
        if (s->to)
            memcpy(s->to, page, (size_t)s->n_to * sizeof *page);
        else
            s->n_to = 0; /* nothing can be written, which fails the job */
        s->held = in->held < s->n_to ? in->held : 0;
        s->sent = s->held * s->e->layout.block_tokens;
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

/* The ranges of the rows of tokens from..to-1, which one block holds. */
static int add_ranges(const struct act_sending *s, const uint32_t *page, int from, int to, struct act_put_range *out)
{
    const struct mdl_kv_layout *l = &s->e->layout;
    struct mdl_handoff_range r[MDL_HANDOFF_RANGES];
    int per = l->block_tokens, b = from / per;
    int n = mdl_handoff_ranges(l, s->e->m->cfg->n_kv_sources, from - b * per, to - b * per, r);
    for (int i = 0; i < n; i++)
        out[i] = (struct act_put_range){.from = page[b] * (uint64_t)l->block_bytes + r[i].offset,
                                        .to = s->to[b] * (uint64_t)l->block_bytes + r[i].offset,
                                        .size = r[i].size};
    return n;
}

/* The reader's pages are this process's, too. */
static int copy(struct act_sending *s, const struct act_put_range *range, int n)
{
    uint8_t *base = kv_device_bytes(s->e->device, 0);
    struct act_msg m = act_msg_make(ACT_KV_WRITTEN, s->reader);
    *act_p_kv_written(&m) = (struct act_p_kv_written){.ticket = s->slot, .generation = s->ticket.generation};
    for (int i = 0; i < n; i++)
        memcpy(base + range[i].to, base + range[i].from, range[i].size);
    int r = act_send(s->self, &m);
    if (r)
        act_msg_drop(&m);
    return r;
}

static int put(struct act_sending *s, const struct act_put_range *range, int n)
{
    const struct act_put p = {.peer = s->reader.peer,
                              .class = TP_CLASS_KV,
                              .generation = s->link,
                              .from_window = ACT_WINDOW_PAGES,
                              .to_window = ACT_WINDOW_PAGES,
                              .with_immediate = true,
                              .immediate = act_ticket_immediate(s->slot, s->ticket.generation),
                              .request = s->request,
                              .attempt = s->attempt};
    int r = act_link_put(s->self, s->e->link, &p, range, n);
    s->puts += r == 0;
    return r;
}

/* One write: blocks until `end`, or as many as one write takes. */
static int write_some(struct act_sending *s, const uint32_t *page, int end)
{
    struct act_put_range range[WRITE_BLOCKS * MDL_HANDOFF_RANGES];
    int per = s->e->layout.block_tokens, at = s->sent, n = 0;
    for (int blocks = 0; blocks < WRITE_BLOCKS && at < end; blocks++) {
        int edge = (at / per + 1) * per, to = end < edge ? end : edge;
        if (at / per >= s->n_to)
            return -EPROTO;
        n += add_ranges(s, page, at, to, range + n);
        at = to;
    }
    int r = n == 0 ? 0 : s->link ? put(s, range, n) : copy(s, range, n);
    if (r)
        return r;
    s->writes += n > 0;
    s->sent = at;
    return 0;
}

int act_sending_rows(struct act_sending *s, const uint32_t *page, int end)
{
    int r = 0;
    while (!r && s->sent < end)
        r = write_some(s, page, end);
    if (!r)
        act_ticket_touch(&s->ticket, act_now(s->self), &s->e->tickets);
    return r;
}

int act_sending_finish(struct act_sending *s, const struct mdl_seq *seq, const uint32_t *page, const void *last,
                       size_t last_bytes, const struct act_b_kv_ready *known)
{
    struct act_msg m;
    size_t bytes, state = mdl_handoff_state_bytes(seq, s->form);
    int r = act_sending_rows(s, page, mdl_handoff_tokens(s->form, seq->encoded));
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
    return s->ticket.state == ACT_TICKET_FREE ? 0 : step(s, event);
}

unsigned act_sending_put_done(struct act_sending *s, struct act_msg *m)
{
    int status = m->type == ACT_UNDELIVERABLE ? -ENOTCONN : act_p_link_put_done(m)->status;
    bool unmade = status == -EINVAL || status == -ENOMEM;
    s->puts--;
    s->lost |= status && !unmade;
    if (s->lost) /* that connection is gone, or was never to be had: the reader ends the ticket by itself */
        return act_sending_event(s, ACT_TICKET_ON_DOWN);
    /* The reader would wait for it until its deadline. */
    if (unmade && (s->ticket.state == ACT_TICKET_WRITING || s->ticket.state == ACT_TICKET_CONFIRMING))
        return act_sending_event(s, ACT_TICKET_ON_LEASE);
    return s->puts ? 0 : act_sending_event(s, ACT_TICKET_ON_DRAINED);
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
    /* What was lost is no word that nothing will come: the reader ends the connection. */
    bool unknown = s && (s->puts || s->lost) && s->slot == slot && s->ticket.generation == generation;
    if (aborted && !unknown)
        send_closed(self, m->src, m->request, m->attempt, slot, generation, -ECANCELED);
    return 0;
}

void act_sending_unwanted(struct act_self *self, struct act_msg *m)
{
    const struct act_p_reserved *in = act_p_reserved(m);
    if (!in->status && in->pages)
        send_closed(self, m->src, m->request, m->attempt, in->ticket, in->generation, -ECANCELED);
    else if (!in->status)
        act_cancel(self, m->src, m->request, m->attempt, -ECANCELED);
}

/* ---- what is left ---- */

static void return_pages(const struct act_sending *s, enum act_type type, const uint32_t *page, int n)
{
    struct act_msg m;
    size_t bytes;
    if (n < 1 || act_msg_new(type, s->e->tier, (size_t)n * sizeof *page, &m))
        return;
    memcpy(act_msg_tail(&m, &bytes), page, (size_t)n * sizeof *page);
    if (type == ACT_PAGES_BACK)
        act_p_pages_back(&m)->pages = (uint32_t)n;
    else
        *act_p_pages_fenced(&m) = (struct act_p_pages_fenced){
            .pages = (uint32_t)n, .peer = s->reader.peer, .class = TP_CLASS_KV, .generation = s->link};
    if (act_send(s->self, &m))
        act_msg_drop(&m);
}

void act_sending_end(struct act_sending *s, struct act_left **list, const uint32_t *page, int n)
{
    if (!s->self)
        return;
    act_sending_event(s, ACT_TICKET_ON_GIVE_UP);
    if (!s->puts)
        return_pages(s, ACT_PAGES_BACK, page, n);
    if (s->puts || s->lost) {
        int64_t lease = s->e->tickets.lease ? s->e->tickets.lease : INT64_C(30000000000);
        struct act_left *l = calloc(1, sizeof *l);
        if (l) {
            *l = (struct act_left){.next = *list, .sending = *s, .keep_until = act_now(s->self) + 2 * lease};
            l->page = s->puts && n ? malloc((size_t)n * sizeof *page) : NULL;
            l->n_pages = l->page ? n : 0;
            if (l->page)
                memcpy(l->page, page, (size_t)n * sizeof *page);
            *list = l;
            s->to = NULL;
        }
        /* Without memory the pages stay out of use. */
    }
    free(s->to);
    *s = (struct act_sending){.ticket.deadline = INT64_MAX};
}

static struct act_left **find(struct act_left **list, const struct act_msg *m)
{
    while (*list && ((*list)->sending.request != m->request || (*list)->sending.attempt != m->attempt))
        list = &(*list)->next;
    return list;
}

struct act_sending *act_left_find(struct act_left *list, const struct act_msg *m)
{
    struct act_left *l = *find(&list, m);
    return l ? &l->sending : NULL;
}

bool act_left_has(const struct act_left *list, struct act_msg *m)
{
    const struct act_p_reserved *in = act_p_reserved(m);
    for (const struct act_left *l = list; l; l = l->next)
        if (l->sending.request == m->request && l->sending.attempt == m->attempt && l->sending.slot == in->ticket &&
            l->sending.ticket.generation == in->generation)
            return true;
    return false;
}

/* Takes it off the list when nothing needs it any more. */
static bool let_go(struct act_left **at, int64_t now)
{
    struct act_left *l = *at;
    if (l->sending.puts && now < l->keep_until)
        return false;
    /* An end that never came: the tier ends the connection before it uses the pages, or this does, so that the question
     * to the link has its end. */
    if (l->sending.puts && !l->n_pages)
        fence(&l->sending);
    return_pages(&l->sending, l->sending.puts ? ACT_PAGES_FENCED : ACT_PAGES_BACK, l->page, l->n_pages);
    l->n_pages = 0;
    if (l->sending.lost && now < l->keep_until)
        return false;
    *at = l->next;
    free(l->sending.to);
    free(l->page);
    free(l);
    return true;
}

void act_left_put_done(struct act_left **list, struct act_msg *m)
{
    struct act_left **at = find(list, m);
    if (!*at)
        return;
    act_sending_put_done(&(*at)->sending, m);
    let_go(at, act_now((*at)->sending.self));
}

int64_t act_left_deadlines(struct act_left **list, int64_t now)
{
    int64_t first = INT64_MAX;
    while (*list) {
        struct act_sending *s = &(*list)->sending;
        if (s->ticket.deadline <= now)
            act_sending_event(s, ACT_TICKET_ON_LEASE);
        if (let_go(list, now))
            continue;
        int64_t at = s->ticket.state == ACT_TICKET_FREE ? (*list)->keep_until : s->ticket.deadline;
        first = at < first ? at : first;
        list = &(*list)->next;
    }
    return first;
}

void act_left_abandon(struct act_left **list)
{
    for (struct act_left *l; (l = *list);) {
        return_pages(&l->sending, l->sending.puts ? ACT_PAGES_FENCED : ACT_PAGES_BACK, l->page, l->n_pages);
        *list = l->next;
        free(l->sending.to);
        free(l->page);
        free(l);
    }
}
