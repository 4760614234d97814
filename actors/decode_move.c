/* Planned moves: a running sequence goes on at the Decode of another node, with the same bits in every mode.
 *
 * The side that it leaves is the writer of a ticket as Prefill is (sending.h). It decodes on while the rows that are
 * there go over; when all of them have, or it has grown by as much as the other side has pages for, also while it waits
 * for the grant of them, it takes part in no further round, and what is left follows: the last rows, the state, the
 * ids. A round that is under way ends first, so a block is verified and committed, or rolled back, before the state is
 * read.
 *
 * Who has the sequence is decided in one place. The receiver does nothing before its requester says MOVE_GO. The
 * requester says so when it has MOVED from the side that had the sequence until then, behind all its tokens. That side
 * sends MOVED only when the receiver has taken the sequence, and until then keeps it whole: whatever fails before, the
 * sequence goes on where it was, and what the receiver may have is cancelled, or given up there by its deadline. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/decode_impl.h"
#include "actors/runtime/log.h"

enum {
    MOVES_MAX = 4,       /* at a time; others wait for their turn, still decoding */
    PIECE_BLOCKS = 8,    /* rows of so many blocks are copied at a time, between two phases of a round */
    PAUSE_NS = 500000000 /* the longest gap that waiting for a place makes: then it decodes on and asks again later */
};

/* As long as the other side may take to hear of it. */
static int64_t patience(const struct decode *d)
{
    return d->e->tickets.lease ? d->e->tickets.lease : INT64_C(30000000000);
}

static struct dec_stream *find(struct decode *d, uint64_t request, uint16_t attempt)
{
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        if (s->state > DEC_RESERVED && s->request == request && s->attempt == attempt)
            return s;
    }
    return NULL;
}

static struct dec_stream *find_leaving(struct decode *d, uint64_t request, uint16_t attempt)
{
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        if (s->move && s->request == request && s->move->attempt == attempt)
            return s;
    }
    return NULL;
}

static void tell_stays(struct decode *d, struct act_addr requester, uint64_t request, uint16_t attempt,
                       struct act_addr to, uint32_t there, int status)
{
    struct act_msg m = act_msg_make(ACT_MOVED, requester);
    m.request = request;
    m.attempt = attempt;
    *act_p_moved(&m) = (struct act_p_moved){.to = to, .status = status, .attempt = there};
    if (act_send(d->self, &m))
        act_msg_drop(&m);
}

void dec_move_drop(struct decode *d, struct dec_stream *s, int status)
{
    struct dec_move *v = s->move;
    if (!v)
        return;
    s->move = NULL;
    if (v->sending.self) {
        act_sending_end(&v->sending, &d->left, NULL, 0);
        act_cancel(d->self, v->to, s->request, v->attempt, -ECANCELED);
    }
    if (status) {
        act_log_event(d->e->log, ACT_LOG_WARNING, "decode", s->request, "move_failed", "tokens=%d reason=%s", s->n_ids,
                      act_reason_name(status));
        tell_stays(d, s->requester, s->request, s->attempt, v->to, v->attempt, status);
    }
    free(v);
}

/* ---- away ---- */

static int moving(const struct decode *d)
{
    int n = 0;
    for (int i = 0; i < d->e->limits.streams; i++)
        n += d->stream[i].move && d->stream[i].move->sending.self;
    return n;
}

/* The recipe as the other side gets it: all ids, and how many of them are output. */
static int new_reserve(const struct decode *d, const struct dec_stream *s, struct act_msg *m)
{
    const struct act_recipe *r = &s->recipe;
    const size_t head = act_type_info(ACT_PREFILL)->body_size;
    size_t tail = act_recipe_tail(s->n_ids, r->n_chain, r->sampling.n_bias, r->n_stop), bytes;
    int e = act_msg_new(ACT_RESERVE, s->move->to, head + tail, m);
    (void)d;
    if (e)
        return e;
    uint8_t *at = act_msg_tail(m, &bytes);
    struct act_b_prefill body = *r->body;
    body.committed = (uint32_t)s->n_new;
    body.max_tokens = (uint32_t)(s->max_new - s->n_new);
    body.flags |= ACT_RECIPE_MOVED;
    memset(at, 0, head);
    memcpy(at, &body, sizeof body);
    at += head;
    memcpy(at, s->ids, (size_t)s->n_ids * sizeof(int32_t));
    at += (size_t)s->n_ids * sizeof(int32_t);
    /* What follows the ids in the recipe's own buffer: chain, biases, ids that stop. */
    memcpy(at, r->chain, tail - (size_t)s->n_ids * sizeof(int32_t));
    m->request = s->request;
    m->attempt = s->move->attempt;
    *act_p_reserve(m) =
        (struct act_p_reserve){.ids = (uint32_t)s->n_ids, .max_tokens = body.max_tokens, .requester = s->requester};
    return 0;
}

/* What was sent to a node that is lost does not come back. */
static void watch(struct decode *d, struct act_addr who)
{
    for (int i = 0; i < DEC_WATCHED; i++)
        if (act_addr_equal(d->watched[i], who))
            return;
    d->watched[d->next_watched++ % DEC_WATCHED] = who;
    if (!who.peer || act_addr_is_nobody(d->e->link)) {
        act_monitor(d->self, who, 0);
        return;
    }
    struct act_msg m = act_msg_make(ACT_LINK_WATCH, d->e->link);
    act_p_link_watch(&m)->who = who;
    if (act_send(d->self, &m))
        act_msg_drop(&m);
}

void dec_move_down(struct decode *d, struct act_msg *m)
{
    struct act_addr who = act_p_down(m)->who;
    for (int i = 0; i < DEC_WATCHED; i++)
        if (act_addr_equal(d->watched[i], who))
            d->watched[i] = ACT_NOBODY;
    for (int i = 0; i < d->e->limits.streams; i++)
        if (d->stream[i].move && act_addr_equal(d->stream[i].move->to, who))
            dec_move_drop(d, &d->stream[i], -EHOSTDOWN);
}

static void ask(struct decode *d, struct dec_stream *s)
{
    struct dec_move *v = s->move;
    struct act_msg m;
    if (new_reserve(d, s, &m)) {
        dec_move_drop(d, s, -ENOMEM);
        return;
    }
    v->told = s->n_ids;
    watch(d, v->to);
    act_sending_ask(&v->sending, d->self, d->e, v->to, s->request, v->attempt, MDL_HANDOFF_FULL);
    m.deadline = v->sending.ticket.deadline;
    if (act_request(d->self, &m)) {
        act_msg_drop(&m);
        dec_move_drop(d, s, -EAGAIN);
    }
}

static void take_move(struct decode *d, struct act_msg *m)
{
    const struct act_p_move *in = act_p_move(m);
    struct dec_stream *s = find(d, m->request, m->attempt);
    if (!s || s->cancelled) {
        act_return(d->self, m);
        return;
    }
    if (s->move || s->state == DEC_LEAVING)
        return;
    s->move = s->state == DEC_RUNNING ? calloc(1, sizeof *s->move) : NULL;
    if (!s->move) {
        tell_stays(d, s->requester, s->request, s->attempt, in->to, in->attempt, -EAGAIN);
        return;
    }
    s->move->to = in->to;
    s->move->attempt = (uint16_t)in->attempt;
}

static void take_reserved(struct decode *d, struct act_msg *m)
{
    const struct act_p_reserved *in = act_p_reserved(m);
    struct dec_stream *s = find_leaving(d, m->request, m->attempt);
    if (!s || s->move->sending.ticket.state != ACT_TICKET_ASKING) {
        bool doubled = s ? act_sending_is_mine(&s->move->sending, m) : act_left_has(d->left, m);
        if (!doubled)
            act_sending_unwanted(d->self, m);
        return;
    }
    if (!act_sending_reserved(&s->move->sending, m))
        dec_move_drop(d, s, in->status ? in->status : -EPROTO);
}

/* The other side has it: this one tells the requester and holds nothing any more. */
static void leave(struct decode *d, struct dec_stream *s)
{
    struct dec_move *v = s->move;
    struct act_msg m = act_msg_make(ACT_MOVED, s->requester);
    m.request = s->request;
    m.attempt = s->attempt;
    *act_p_moved(&m) = (struct act_p_moved){.to = v->to, .attempt = v->attempt};
    if (act_request(d->self, &m)) { /* nobody has heard of it yet, so it stays */
        act_msg_drop(&m);
        dec_move_drop(d, s, -EAGAIN);
        return;
    }
    act_log_event(d->e->log, ACT_LOG_INFO, "decode", s->request, "moved_away", "tokens=%d written=%u", s->n_ids,
                  v->sending.writes);
    act_tally_add(d->e->tally, ACT_TALLY_SEQUENCES_MOVED);
    d->stats.moved++;
    dec_pages_end(d, s);
    act_sending_end(&v->sending, &d->left, NULL, 0);
    free(v);
    s->move = NULL;
    s->state = DEC_LEAVING;
    s->wait_until = act_now(d->self) + patience(d);
}

static void take_ticket_message(struct decode *d, struct act_msg *m)
{
    struct dec_stream *s = find_leaving(d, m->request, m->attempt);
    bool confirming = s && s->move->sending.ticket.state == ACT_TICKET_CONFIRMING;
    unsigned todo = act_sending_message(d->self, s ? &s->move->sending : act_left_find(d->left, m), m);
    if (!s || !(todo & (ACT_TICKET_DO_FAIL | ACT_TICKET_DO_END)))
        return;
    if (confirming && m->type == ACT_TICKET_CLOSED)
        leave(d, s);
    else
        dec_move_drop(d, s, -ECONNRESET);
}

/* LINK_PUT_DONE, or a LINK_PUT that came back. The pages need no care: rows that are there stay as they are while the
 * sequence is here, and when it is not, nobody goes on with what was put. */
static void take_put_done(struct decode *d, struct act_msg *m)
{
    struct dec_stream *s = find_leaving(d, m->request, m->attempt);
    if (!s)
        act_left_put_done(&d->left, m);
    else if (act_sending_put_done(&s->move->sending, m) & (ACT_TICKET_DO_FAIL | ACT_TICKET_DO_END))
        dec_move_drop(d, s, -ECONNRESET);
}

/* The answer to MOVED: the requester has heard it. */
static void take_heard(struct decode *d, struct act_msg *m)
{
    struct dec_stream *s = find(d, m->request, m->attempt);
    if (s && s->state == DEC_LEAVING)
        dec_stream_end(d, s);
}

/* The ids that the other side does not have, and what is known of the sequence's drafts, so that the other planner does
 * not begin anew. */
static int finish(struct dec_stream *s)
{
    size_t ids = (size_t)(s->n_ids - s->move->told) * sizeof *s->ids;
    uint8_t *last = malloc(ids + ACT_PLAN_MEMORY_BYTES);
    if (!last)
        return -ENOMEM;
    memcpy(last, s->ids + s->move->told, ids);
    size_t memory = act_plan_memory_save(&s->spec.memory, last + ids);
    const struct act_b_kv_ready known = {.hit = s->hit, .replayed = s->replayed, .memory = (uint32_t)memory};
    int r = act_sending_finish(&s->move->sending, s->seq, s->pages, last, ids + memory, &known);
    free(last);
    return r;
}

/* In no further round. */
static void stop(struct decode *d, struct dec_move *v)
{
    if (!v->stopped)
        v->stopped_at = act_now(d->self);
    v->stopped = true;
}

/* The longest that the other side may take to answer, or to receive what it has room for. */
static int64_t deadline(const struct dec_move *v)
{
    int64_t at = v->sending.ticket.deadline, pause = v->stopped_at + PAUSE_NS;
    return v->stopped && v->sending.ticket.state == ACT_TICKET_ASKING && pause < at ? pause : at;
}

/* True: there is more to send at once. */
static bool push(struct decode *d, struct dec_stream *s)
{
    struct dec_move *v = s->move;
    int whole = s->seq->len & ~1, end = v->sending.sent + PIECE_BLOCKS * d->e->layout.block_tokens;
    if (s->n_ids - v->told + MDL_ROUND_MAX > act_move_slack(d->e))
        stop(d, v);
    if (!act_sending_writing(&v->sending))
        return false;
    int r = act_sending_rows(&v->sending, s->pages, end < whole ? end : whole);
    if (!r && v->sending.sent == whole)
        stop(d, v);
    if (!r && v->sending.sent < whole)
        return true;
    if (!r && v->stopped && !s->in_round)
        r = finish(s);
    if (r && r != -EAGAIN)
        dec_move_drop(d, s, r);
    return false;
}

bool dec_move_push(struct decode *d)
{
    bool more = false;
    int n = moving(d);
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        if (!s->move || s->state != DEC_RUNNING || s->cancelled || s->finish != ACT_FINISH_NONE)
            continue;
        if (!s->move->sending.self && n < MOVES_MAX) {
            n++;
            ask(d, s);
        } else if (s->move->sending.self) {
            more |= push(d, s);
        }
    }
    return more;
}

/* ---- here ---- */

void dec_move_arrived(struct decode *d, struct dec_stream *s, const int32_t *more, int n)
{
    if (n)
        memcpy(s->ids + s->n_ids, more, (size_t)n * sizeof *more);
    s->n_ids += n;
    s->n_new += n;
    s->sent = (uint32_t)s->n_new;
    s->run.next = s->ids[s->n_ids - 1];
    s->state = DEC_ARRIVED;
    s->wait_until = act_now(d->self) + patience(d);
}

static void take_go(struct decode *d, struct act_msg *m)
{
    struct dec_stream *s = find(d, m->request, m->attempt);
    if (!s || s->cancelled) {
        act_return(d->self, m);
        return;
    }
    if (s->state != DEC_ARRIVED)
        return;
    s->state = DEC_RUNNING;
    act_log_event(d->e->log, ACT_LOG_INFO, "decode", s->request, "moved_here", "tokens=%d blocks=%d", s->n_ids,
                  s->spec.memory.n);
}

/* ---- both ---- */

void dec_move_message(struct decode *d, struct act_msg *m)
{
    switch (m->type) {
    case ACT_MOVE:
        take_move(d, m);
        break;
    case ACT_MOVE_GO:
        take_go(d, m);
        break;
    case ACT_MOVED:
        take_heard(d, m);
        break;
    case ACT_RESERVED:
        take_reserved(d, m);
        break;
    case ACT_LINK_PUT_DONE:
        take_put_done(d, m);
        break;
    default:
        take_ticket_message(d, m);
        break;
    }
}

void dec_move_returned(struct decode *d, struct act_msg *m)
{
    enum act_type type = act_msg_returned_type(m);
    struct dec_stream *s = find_leaving(d, m->request, m->attempt);
    if (s && (type == ACT_RESERVE || type == ACT_KV_WRITTEN || type == ACT_KV_READY))
        dec_move_drop(d, s, -EHOSTDOWN);
    if (type == ACT_LINK_PUT && !act_exchange_is_put(m))
        take_put_done(d, m);
    if (type != ACT_MOVED || m->flags & ACT_MSG_LATE) /* late: it has had its own deadline */
        return;
    /* The requester is gone. */
    if (!(m->flags & ACT_MSG_ABANDONED) && !act_p_moved(m)->status)
        act_cancel(d->self, act_p_moved(m)->to, m->request, (uint16_t)act_p_moved(m)->attempt, -ECONNRESET);
    s = find(d, m->request, m->attempt);
    if (s && s->state == DEC_LEAVING)
        dec_stream_end(d, s);
}

/* Nobody came for it. A requester that has been told to come is told that it is lost; any other does not listen. */
static void give_up(struct decode *d, struct dec_stream *s)
{
    struct act_msg m = act_msg_make(ACT_FAILED, s->requester);
    m.request = s->request;
    m.attempt = s->attempt;
    act_p_failed(&m)->status = -ETIMEDOUT;
    if (s->state == DEC_ARRIVED && act_send(d->self, &m))
        act_msg_drop(&m);
    dec_stream_end(d, s);
}

void dec_move_deadlines(struct decode *d)
{
    int64_t now = act_now(d->self), first = act_left_deadlines(&d->left, now);
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        bool waits = s->state == DEC_ARRIVED || s->state == DEC_LEAVING;
        if (s->move && s->move->sending.self && deadline(s->move) <= now)
            dec_move_drop(d, s, -ETIMEDOUT);
        if (waits && s->wait_until <= now) {
            give_up(d, s);
            continue;
        }
        int64_t at = s->move && s->move->sending.self ? deadline(s->move) : waits ? s->wait_until : INT64_MAX;
        first = at < first ? at : first;
    }
    if (first != INT64_MAX)
        act_timer_at(d->self, &d->moves, first, DEC_TAG_MOVES);
}
