#include "actors/decode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/decode_impl.h"
#include "actors/figures.h"
#include "actors/handoff.h"
#include "actors/placement.h"
#include "actors/router.h"
#include "actors/runtime/log.h"

enum { TAG_PAUSE = 1, TAG_RETRY = 2, TAG_REPORT = 3, TAG_LOAD = 4, RETRY_NS = 5000000, REPORT_NS = 500000000 };

/* ---- places ---- */

static uint32_t place_of(const struct decode *d, const struct dec_stream *s)
{
    return (uint32_t)(s - d->stream);
}

static void stream_clear(struct dec_stream *s)
{
    free(s->move);
    mdl_seq_free(s->seq);
    act_buf_free(s->recipe_buf);
    free(s->pages);
    free(s->aside);
    free(s->draft_weights);
    free(s->ids);
    free(s->logprobs);
    *s = (struct dec_stream){.owner = s->owner, .generation = s->generation + 1};
}

static int running_streams(const struct decode *d)
{
    int n = 0;
    for (int i = 0; i < d->e->limits.streams; i++)
        n += d->stream[i].state > DEC_RESERVED;
    return n;
}

void dec_stream_fail(struct decode *d, struct dec_stream *s, int status, const char *why)
{
    s->finish = ACT_FINISH_ERROR;
    act_log_event(d->e->log, ACT_LOG_WARNING, "decode", s->request, "failed", "attempt=%u tokens=%d reason=%s %s",
                  s->attempt, s->n_ids, act_reason_name(status), why);
}

/* Its experts are nowhere: it may go on at another Decode, which its requester sees to. */
static void send_away(struct decode *d, struct dec_stream *s, int status)
{
    struct act_msg m = act_msg_make(ACT_FAILED, s->requester);
    m.request = s->request;
    m.attempt = s->attempt;
    act_p_failed(&m)->status = status;
    if (act_send(d->self, &m))
        act_msg_drop(&m); /* it asks (PLACE_CHECK) */
    dec_stream_end(d, s);
}

void dec_stream_end(struct decode *d, struct dec_stream *s)
{
    dec_move_drop(d, s, 0);
    dec_pages_end(d, s);
    d->stats.cancelled += s->cancelled;
    if (s->state > DEC_RESERVED && s->state != DEC_LEAVING) /* that one has been counted */
        act_tally_add(d->e->tally, s->cancelled || s->finish == ACT_FINISH_ERROR || s->finish == ACT_FINISH_NONE
                                       ? ACT_TALLY_SEQUENCES_LEFT
                                       : ACT_TALLY_SEQUENCES_FINISHED);
    dec_stats_add(d, s);
    stream_clear(s);
}

static void cancel_stream(struct decode *d, struct dec_stream *s)
{
    s->cancelled = true;
    s->run.ghost = true; /* in a round its rows run on, unpicked and uncommitted */
    if (!s->in_round)
        dec_stream_end(d, s);
}

/* Of all attempts up to this one: an older one may still run on as a ghost beside it. */
static void cancel_attempts(struct decode *d, uint64_t request, int attempt)
{
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        if (s->state != DEC_FREE && s->request == request && s->attempt <= attempt)
            cancel_stream(d, s);
    }
}

static bool has_place(const struct decode *d, uint64_t request, uint16_t attempt)
{
    bool yes = false;
    for (int i = 0; i < d->e->limits.streams; i++)
        yes |= d->stream[i].state != DEC_FREE && d->stream[i].request == request && d->stream[i].attempt == attempt;
    return yes;
}

/* ---- messages ---- */

static void reserved(struct decode *d, struct act_promise *p, const struct dec_stream *s, int status)
{
    struct act_msg r = act_msg_make(ACT_RESERVED, ACT_NOBODY);
    *act_p_reserved(&r) = (struct act_p_reserved){
        .status = status, .ticket = s ? place_of(d, s) : 0, .generation = s ? s->generation : 0};
    if (act_reply(d->self, p, &r))
        act_msg_drop(&r);
}

/* A place is given when one is free and nobody is parked: those come back first. */
static void take_reserve(struct decode *d, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    const struct act_p_reserve *in = act_p_reserve(m);
    struct dec_stream *s = NULL;
    bool parked = false;
    if (m->attempt) /* whatever became of the cancel of the older ones */
        cancel_attempts(d, m->request, m->attempt - 1);
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *at = &d->stream[i];
        /* Who asks again has given up the first question, though its answer may be on the way: it is the same place. */
        if (at->state == DEC_RESERVED && at->request == m->request && at->attempt == m->attempt)
            dec_stream_end(d, s = at);
        parked |= at->state == DEC_PARKED;
        if (!s && at->state == DEC_FREE)
            s = at;
    }
    if (!s || parked) {
        reserved(d, &p, NULL, -EAGAIN);
        return;
    }
    if (act_recipe_read(m, (int)in->ids, d->e->vocab, &s->recipe)) {
        reserved(d, &p, NULL, -EINVAL);
        return;
    }
    s->state = DEC_RESERVED;
    s->request = m->request;
    s->attempt = m->attempt;
    s->requester = in->requester;
    s->sent = (uint32_t)(s->n_new = (int)s->recipe.body->committed); /* output of earlier attempts */
    s->max_new = s->n_new + (int)in->max_tokens;
    s->recipe_buf = act_msg_take(m);
    reserved(d, &p, s, 0);
}

static int take_sequence(struct decode *d, struct dec_stream *s, struct act_msg *m)
{
    const struct act_p_handoff *p = act_p_handoff(m);
    const struct act_b_handoff *b = act_b_handoff(m);
    size_t bytes, before = b->moved ? b->moved - 1 : (size_t)d->e->m->cfg->vocab_size;
    uint32_t *last = act_msg_tail(m, &bytes);
    s->seq = act_handoff_take(m);
    s->n_pages = (int)p->pages;
    s->replayed = b->replayed;
    s->hit = b->hit;
    s->pages = calloc((size_t)s->seq->n_blocks, sizeof *s->pages);
    s->ids = malloc((size_t)(s->recipe.n_ids + s->max_new) * sizeof *s->ids);
    if (s->recipe.sampling.top_logprobs || s->recipe.body->flags & ACT_RECIPE_LOGPROBS)
        s->logprobs = malloc(MDL_ROUND_MAX * sizeof *s->logprobs);
    if (!s->pages || !s->ids)
        return -ENOMEM;
    memcpy(s->pages, last + before, (size_t)s->n_pages * sizeof *s->pages);
    memcpy(s->ids, s->recipe.ids, (size_t)s->recipe.n_ids * sizeof *s->ids);
    s->n_ids = s->recipe.n_ids;
    s->run = (struct mdl_stream){.seq = s->seq, .pick = dec_pick, .pick_ctx = s};
    s->spec.choice = dec_spec_choice(d, s);
    s->key = dec_spec_key(d, s);
    if (b->moved) {
        dec_move_arrived(d, s, (const int32_t *)(const void *)last, (int)b->moved - 1);
        return act_plan_memory_load(last + before + s->n_pages, b->memory, &s->spec.memory);
    }
    int32_t id = dec_pick(s, s->n_ids, (float *)(void *)last, false);
    s->run.next = id;
    return id < 0 ? id : 0;
}

/* Cancelled meanwhile. The sender may be gone by now, so the pages go straight to the tier; what goes back to it is the
 * news, and the sequence ends with that message. */
static void give_back(struct decode *d, struct act_msg *m)
{
    size_t bytes, before = act_b_handoff(m)->moved;
    const uint32_t *last = act_msg_tail(m, &bytes);
    before = before ? before - 1 : (size_t)d->e->m->cfg->vocab_size;
    dec_pages_return(d, last + before, (int)act_p_handoff(m)->pages);
    act_p_handoff(m)->pages = 0;
    act_return(d->self, m);
}

static void take_handoff(struct decode *d, struct act_msg *m)
{
    uint32_t ticket = act_p_handoff(m)->ticket;
    struct dec_stream *s = ticket < (uint32_t)d->e->limits.streams ? &d->stream[ticket] : NULL;
    if (!s || s->state != DEC_RESERVED || s->request != m->request || s->attempt != m->attempt) {
        give_back(d, m);
        return;
    }
    s->state = DEC_RUNNING;
    s->order = ++d->order;
    d->stats.requests++;
    act_tally_add(d->e->tally, ACT_TALLY_SEQUENCES);
    int r = take_sequence(d, s, m);
    if (r) {
        dec_stream_fail(d, s, r, "it could not begin");
    }
    if (!r && s->state == DEC_ARRIVED)
        return;
    dec_tokens_send(d, s);
    if (s->finish != ACT_FINISH_NONE)
        dec_stream_end(d, s);
}

/* Mail that came back. Tokens without a reader: the requester is gone, whatever became of its cancel. A place that
 * nobody took: who asked for it is gone. */
static void take_returned(struct decode *d, struct act_msg *m)
{
    enum act_type type = act_msg_returned_type(m);
    if (type == ACT_PAGES_ASK)
        d->asked = 0;
    if (type == ACT_TICKETS_REVOKE)
        dec_pages_revoked(d, m);
    if (type == ACT_TOKENS || (type == ACT_RESERVED && !act_p_reserved(m)->status))
        cancel_attempts(d, m->request, m->attempt);
    dec_move_returned(d, m);
    d->waiting &= !act_exchange_message(&d->exchange, m);
}

static void report(struct decode *d)
{
    if (act_addr_is_nobody(d->e->observer))
        return;
    act_timer_after(d->self, &d->report, REPORT_NS, TAG_REPORT);
    act_figures_send(d->self, d->e->observer, ACT_FIGURES_DECODE_EXCHANGE, (const uint64_t *)&d->exchange.counters,
                     ACT_EXCHANGE_COUNTERS);
    dec_stats_send(d);
}

/* An actor knows of the pages in its own use only; a tier that several share looks emptier to each than it is. */
static void report_load(struct decode *d)
{
    struct kv_device_stats s;
    struct act_b_load load = {0};
    int held = d->n_lease;
    /* The Landing may have begun again. */
    struct act_addr landing = act_current(act_self_runtime(d->self), d->e->load);
    struct act_addr to = act_addr_is_nobody(d->e->load) ? d->e->router : landing;
    if (act_addr_is_nobody(d->e->load) && act_addr_is_nobody(d->e->router))
        return;
    act_timer_after(d->self, &d->load, ACT_LOAD_REPORT_NS, TAG_LOAD);
    if (act_addr_is_nobody(to)) /* between two lives */
        return;
    for (int i = 0; i < d->e->limits.streams; i++) {
        const struct dec_stream *stream = &d->stream[i];
        load.running += stream->state == DEC_RUNNING;
        load.waiting += stream->state == DEC_RESERVED || stream->state == DEC_PARKED || stream->state == DEC_ARRIVED;
        held += stream->aside ? 0 : stream->n_pages;
    }
    kv_device_stat(d->e->device, &s);
    load.pages_total = (uint32_t)s.pages;
    load.pages_free = (uint32_t)(s.pages > held ? s.pages - held : 0);
    load.experts = act_exchange_experts(&d->exchange);
    load.step_us = d->stats.last_round_us;
    act_load_report(d->self, to, CFG_ROLE_DECODE, &d->load_sequence, &load);
}

static void note_busy(struct decode *d, struct act_addr who, bool busy)
{
    int i = 0;
    while (i < d->n_busy && !act_addr_equal(d->busy[i], who))
        i++;
    if (busy && i == d->n_busy && i < ACT_INSTANCES_MAX)
        d->busy[d->n_busy++] = who;
    else if (!busy && i < d->n_busy)
        d->busy[i] = d->busy[--d->n_busy];
}

static void take_messages(struct decode *d, struct act_msg *m, int count)
{
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_RESERVE:
            take_reserve(d, &m[i]);
            break;
        case ACT_HANDOFF:
            take_handoff(d, &m[i]);
            break;
        case ACT_CANCEL:
            cancel_attempts(d, m[i].request, m[i].attempt);
            break;
        case ACT_PAGES_GIVEN:
            dec_pages_given(d, &m[i]);
            break;
        case ACT_TICKETS_REVOKE:
            dec_pages_revoked(d, &m[i]);
            break;
        case ACT_NODE_UP:
        case ACT_NODE_DOWN:
        case ACT_GROUP_BUDGET:
        case ACT_GROUP_COUNT:
            act_group_message(&d->group, &m[i]);
            break;
        case ACT_MOVE:
        case ACT_MOVE_GO:
        case ACT_MOVED:
        case ACT_RESERVED:
        case ACT_TICKET_ABORT:
        case ACT_TICKET_CLOSED:
            dec_move_message(d, &m[i]);
            break;
        case ACT_LINK_PUT_DONE:
            if (act_exchange_is_put(&m[i]))
                d->waiting &= !act_exchange_message(&d->exchange, &m[i]);
            else
                dec_move_message(d, &m[i]);
            break;
        case ACT_LINK_FENCE:
            break; /* the ends of the writes say more */
        case ACT_PLACE_CHECK:
            if (!has_place(d, m[i].request, m[i].attempt))
                act_place_unknown(d->self, &m[i]);
            break;
        case ACT_LOAD:
            note_busy(d, act_p_load(&m[i])->who, act_b_load(&m[i])->running > 0);
            break;
        case ACT_TIMER:
            if (act_p_timer(&m[i])->tag == TAG_PAUSE)
                d->paused = false;
            else if (act_p_timer(&m[i])->tag == TAG_RETRY)
                d->tier_empty = d->refused = false;
            else if (act_p_timer(&m[i])->tag == TAG_LOAD)
                report_load(d);
            else if (act_p_timer(&m[i])->tag == TAG_REPORT)
                report(d);
            else if (act_p_timer(&m[i])->tag == DEC_TAG_MOVES)
                break; /* every turn looks after them */
            else
                d->waiting &= !act_exchange_message(&d->exchange, &m[i]);
            break;
        case ACT_UNDELIVERABLE:
            take_returned(d, &m[i]);
            break;
        case ACT_DOWN:
            dec_move_down(d, &m[i]);
            d->waiting &= !act_exchange_message(&d->exchange, &m[i]);
            break;
        default:
            d->waiting &= !act_exchange_message(&d->exchange, &m[i]);
            break;
        }
    }
}

/* ---- rounds ---- */

static void begin_round(struct decode *d)
{
    d->n_round = 0;
    bool starved = false;
    dec_unpark(d);
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        if (s->state != DEC_RUNNING || (s->move && s->move->stopped))
            continue;
        if (!dec_pages_ensure(d, s)) {
            starved = true;
            continue;
        }
        s->run.limit = s->max_new - s->n_new;
        s->in_round = true;
        d->round[d->n_round++] = &s->run;
    }
    if (!starved) { /* the next shortage asks anew */
        d->none_to_come = false;
        d->revoke_until = 0;
    }
    if (starved && d->tier_empty && !d->asked && !dec_pages_revoke(d)) {
        /* Nothing to be had: the youngest makes room, unless it is alone. */
        for (int i = 0; i < d->n_round; i++)
            ((struct dec_stream *)d->round[i]->pick_ctx)->in_round = false;
        d->n_round = 0;
        dec_park_youngest(d, NULL);
        dec_pages_ask(d);
        return;
    }
    if (!d->n_round)
        return;
    dec_stats_round_began(d);
    dec_spec_round_begins(d);
    act_exchange_begin(&d->exchange);
    d->running = mdl_decoder_begin(d->decoder, d->round, d->n_round, &d->exchange.providers, &d->err) == 0;
    d->waiting = false;
    if (d->running)
        return;
    act_exchange_end(&d->exchange);
    for (int i = 0; i < d->n_round; i++) {
        struct dec_stream *s = d->round[i]->pick_ctx;
        s->in_round = false;
        dec_stream_fail(d, s, -EIO, d->err.msg);
        dec_tokens_send(d, s);
        dec_stream_end(d, s);
    }
}

static void end_round(struct decode *d, int status)
{
    d->running = false;
    act_exchange_end(&d->exchange);
    dec_stats_round_ended(d);
    dec_spec_round_ended(d, status);
    /* Before the last tokens of a request, so that whoever has its answer finds it in the figures. */
    bool ends = false;
    for (int i = 0; i < d->n_round; i++)
        ends |= ((struct dec_stream *)d->round[i]->pick_ctx)->finish != ACT_FINISH_NONE;
    if (ends && !act_addr_is_nobody(d->e->observer))
        dec_stats_send(d);
    for (int i = 0; i < d->n_round; i++) {
        struct dec_stream *s = d->round[i]->pick_ctx;
        s->in_round = false;
        if (s->cancelled) {
            dec_stream_end(d, s);
            continue;
        }
        if (status || s->run.status)
            dec_stream_fail(d, s, status ? status : s->run.status,
                            status ? act_exchange_reason(&d->exchange, status, d->err.msg)
                                   : "no token could be chosen");
        if (status == -ENOLINK || status == -EHOSTDOWN) {
            send_away(d, s, status);
            continue;
        }
        dec_tokens_send(d, s);
        if (s->finish != ACT_FINISH_NONE || s->cancelled)
            dec_stream_end(d, s);
    }
    act_progress(d->self);
    if (d->n_busy && d->e->limits.prefill_share_ns) {
        d->paused = true;
        act_timer_after(d->self, &d->pause, d->e->limits.prefill_share_ns, TAG_PAUSE);
    }
}

/* One phase. A step that lost a shard is run again from its start: nothing was committed. */
static void advance_round(struct decode *d)
{
    if (d->exchange.lost) {
        act_exchange_begin(&d->exchange);
        d->disturbed = true;
        if (mdl_decoder_begin(d->decoder, d->round, d->n_round, &d->exchange.providers, &d->err)) {
            end_round(d, -EIO);
            return;
        }
        d->waiting = false;
    }
    int r = mdl_decoder_advance(d->decoder, &d->err);
    if (r == MDL_STEP_WAIT)
        d->waiting = true;
    else if (r == MDL_STEP_DONE)
        end_round(d, 0);
    else if (r < 0)
        end_round(d, r);
}

static int decode_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct decode *d = state;
    (void)self;
    take_messages(d, m, count);
    if (d->running && !d->waiting)
        advance_round(d);
    else if (!d->running && !d->paused)
        begin_round(d);
    bool sending = dec_move_push(d);
    dec_move_deadlines(d);
    dec_pages_ask(d);
    /* Others give pages back without telling this actor. */
    if (d->tier_empty && !d->asked && !act_timer_pending(&d->retry))
        act_timer_after(d->self, &d->retry, RETRY_NS, TAG_RETRY);
    bool busy = running_streams(d) > 0;
    act_working(d->self, busy);
    if (sending || (busy && ((d->running && !d->waiting) || (!d->running && !d->paused && d->n_round))))
        act_yield(d->self);
    return 0;
}

static void decode_stop(struct act_self *self, void *state, int reason)
{
    struct decode *d = state;
    (void)self;
    (void)reason;
    for (int i = 0; d->stream && i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        dec_move_drop(d, s, 0);
        if (s->state > DEC_RESERVED && s->state != DEC_LEAVING)
            act_tally_add(d->e->tally, ACT_TALLY_SEQUENCES_LEFT);
        if (!s->aside)
            dec_pages_return(d, s->pages, s->n_pages);
        stream_clear(s);
    }
    act_left_abandon(&d->left);
    if (d->lease)
        dec_pages_return(d, d->lease, d->n_lease);
    act_exchange_free(&d->exchange);
    mdl_decoder_free(d->decoder);
    dec_spec_stop(d);
    mdl_sampler_free(d->sampler);
    free(d->stream);
    free(d->round);
    free(d->lease);
}

static int decode_start(struct act_self *self, void *state, const void *arg)
{
    struct decode *d = state;
    const struct act_engine *e = arg;
    const struct act_engine_limits *l = &e->limits;
    d->self = self;
    d->e = e;
    d->lease_cap = l->lease + l->context / e->layout.block_tokens + 2 + l->streams;
    d->stream = calloc((size_t)l->streams, sizeof *d->stream);
    d->round = calloc((size_t)l->streams, sizeof(struct mdl_stream *));
    d->lease = calloc((size_t)d->lease_cap, sizeof *d->lease);
    d->sampler = mdl_sampler_new(e->vocab);
    int r = d->stream && d->round && d->lease && d->sampler ? 0 : -ENOMEM;
    if (!r)
        r = act_exchange_init(&d->exchange, self, e->m, 0, &e->experts);
    if (!r)
        r = mdl_decoder_new(e->m, l->streams, l->draft, l->context, &d->decoder, &d->err);
    if (!r)
        r = dec_spec_start(d);
    if (r) {
        decode_stop(self, state, r);
        return r;
    }
    for (int i = 0; i < l->streams; i++)
        d->stream[i].owner = d;
    act_timer_after(self, &d->report, REPORT_NS, TAG_REPORT);
    act_timer_after(self, &d->load, 0, TAG_LOAD);
    return 0;
}

const struct act_behaviour act_decode_behaviour = {
    .name = "decode",
    .state_size = sizeof(struct decode),
    .start = decode_start,
    .receive = decode_receive,
    .stop = decode_stop,
};
