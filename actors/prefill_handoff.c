/* The Prefill actor's hand-offs: to the Decode of this process, whole; to another process, under a ticket; and what
 * comes from another process, to be finished here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/handoff.h"
#include "actors/history.h"
#include "actors/prefill_impl.h"

/* ---- tickets of other processes ---- */

/* The job's ticket is lost or done. A job in a step stays until the step ends, also when the writes of a ticket that
 * was lost end before. */
static void ticket_did(struct prefill *p, struct job *j, unsigned todo, int status)
{
    if (j->again)
        return;
    if (todo & (ACT_TICKET_DO_FAIL | ACT_TICKET_DO_END) && j->segment >= 0)
        j->broken = j->broken ? j->broken : status;
    else if (todo & ACT_TICKET_DO_FAIL)
        pre_job_fail(p, j, status, "the hand-off to the decoder failed");
    else if (todo & ACT_TICKET_DO_END)
        pre_job_remove(p, j);
}

void pre_ticket_event(struct prefill *p, struct job *j, enum act_ticket_event event)
{
    ticket_did(p, j, act_sending_event(&j->sending, event), event == ACT_TICKET_ON_LEASE ? -ETIMEDOUT : -EHOSTDOWN);
}

/* The decoder needs its pages for what runs: the prompt asks for a ticket again. One that is handed over by now is not
 * here any more, and one whose grant is still to come could not tell it from the next. */
static void take_revoked(struct prefill *p, struct job *j)
{
    if (j->state == JOB_CONFIRMING || j->state == JOB_RESERVING) {
        pre_job_fail(p, j, -ECONNRESET, "the hand-off to the decoder failed");
        return;
    }
    j->taken_back++;
    j->again = true;
}

void pre_take_ticket_message(struct prefill *p, struct act_msg *m)
{
    struct job *j = pre_job_find(p, m->request, m->attempt);
    unsigned todo = act_sending_message(p->self, j ? &j->sending : act_left_find(p->left, m), m);
    bool ended =
        todo & (ACT_TICKET_DO_FAIL | ACT_TICKET_DO_END) || (j && j->sending.ticket.state == ACT_TICKET_DRAINING);
    if (j && ended && m->type == ACT_TICKET_ABORT && act_p_ticket_abort(m)->reason == -EAGAIN)
        take_revoked(p, j);
    else if (j)
        ticket_did(p, j, todo, -EHOSTDOWN);
}

/* Clean rows are the same wherever they were computed. Those that are computed behind a replayed hit are not, so the
 * decoder's own, clean ones can stand for that hit only. */
void pre_check_history(struct prefill *p, struct job *j)
{
    int per = p->e->layout.block_tokens;
    if (!act_sending_writing(&j->sending) || !j->plan.behind || j->sending.held * per <= j->plan.behind)
        return;
    j->history = (uint32_t)(j->plan.behind / per) + 1;
    j->again = true;
}

static void begin_again(struct prefill *p, struct job *j)
{
    pre_keep_finished(p, j);
    j->sending.again = true;
    act_sending_end(&j->sending, &p->left, j->pages, j->n_pages);
    mdl_seq_free(j->seq);
    act_buf_free(j->snapshot);
    free(j->pages);
    free(j->logits);
    j->seq = NULL;
    j->snapshot = NULL;
    j->pages = NULL;
    j->logits = NULL;
    j->n_pages = j->hit = j->clean = 0;
    j->load = (struct act_load){0};
    j->plan = (struct mdl_prefill){0};
    j->again = j->asked = j->later = false;
    j->state = JOB_RESERVING;
}

/* Answers and ends of writes name the request only: those that are on their way have to come first. */
void pre_begin_again(struct prefill *p)
{
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        bool waits = (j->asked && !j->later && j->state != JOB_RESERVING) || j->segment >= 0 || j->sending.puts;
        if (j->again && !waits && j->sending.lost) /* the reader has to end the connection before it grants again */
            pre_job_fail(p, j, -ECONNRESET, "the hand-off to the decoder failed");
        else if (j->again && !waits)
            begin_again(p, j);
    }
}

void pre_take_put_done(struct prefill *p, struct act_msg *m)
{
    struct job *j = pre_job_find(p, m->request, m->attempt);
    if (!j) {
        act_left_put_done(&p->left, m);
        return;
    }
    unsigned todo = act_sending_put_done(&j->sending, m);
    if (!j->sending.puts && j->state == JOB_CONFIRMING)
        pre_pages_return(p, j);
    ticket_did(p, j, todo, -ECONNRESET);
}

/* Deadlines that have passed, and the timer for the next one. */
void pre_look_at_tickets(struct prefill *p)
{
    int64_t now = act_now(p->self), first = INT64_MAX;
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        int64_t at = j->sending.ticket.state == ACT_TICKET_FREE ? INT64_MAX : j->sending.ticket.deadline;
        if (at <= now)
            pre_ticket_event(p, j, ACT_TICKET_ON_LEASE); /* may free the job; what it is now is looked at next time */
        first = at < first ? at : first;
    }
    int64_t left = act_left_deadlines(&p->left, now);
    first = left < first ? left : first;
    if (first != INT64_MAX)
        act_timer_at(p->self, &p->tickets, first <= now ? now + RETRY_NS : first, TAG_TICKETS);
}

/* What another process may have already. */
void pre_send_rows(struct prefill *p, struct job *j)
{
    const struct mdl_prefill *plan = &j->plan;
    int n = j->recipe.n_ids, end = plan->encoder_at < n ? plan->encoder_at & ~1 : n;
    if (!act_sending_writing(&j->sending) || !act_load_whole(&j->load)) /* a hit may still get shorter */
        return;
    end = end > plan->hit ? end : plan->hit & ~1;
    int whole = mdl_handoff_tokens(j->sending.form, n);
    int r = act_sending_rows(&j->sending, j->pages, end < whole ? end : whole);
    if (r && r != -EAGAIN && j->segment < 0)
        pre_job_fail(p, j, r, "the hand-off to the decoder failed");
}

static void report_prefilled(struct prefill *p, const struct job *j)
{
    struct act_msg m = act_msg_make(ACT_PREFILLED, j->requester);
    uint32_t below = (uint32_t)(j->load.n * p->e->layout.block_tokens), hit = (uint32_t)j->plan.hit;
    m.request = j->request;
    m.attempt = j->attempt;
    *act_p_prefilled(&m) = (struct act_p_prefilled){.ids = (uint32_t)j->recipe.n_ids,
                                                    .cached = hit,
                                                    .below = below < hit ? below : hit,
                                                    .provenance = (uint32_t)j->plan.behind};
    if (act_send(p->self, &m))
        act_msg_drop(&m);
}

/* The sequence and its pages move to Decode. */
void pre_hand_off(struct prefill *p, struct job *j, const float *logits)
{
    struct act_msg m;
    size_t bytes, vocab = (size_t)p->e->m->cfg->vocab_size * sizeof *logits;
    if (act_handoff_new(ACT_HANDOFF, j->decode, j->seq, vocab + (size_t)j->n_pages * sizeof *j->pages, &m)) {
        pre_job_fail(p, j, -ENOMEM, "out of memory");
        return;
    }
    m.request = j->request;
    m.attempt = j->attempt;
    act_p_handoff(&m)->ticket = j->ticket;
    act_p_handoff(&m)->pages = (uint32_t)j->n_pages;
    *act_b_handoff(&m) = (struct act_b_handoff){.cached = (uint32_t)j->plan.hit,
                                                .hit = j->plan.behind,
                                                .replayed = pre_replayed(p, j),
                                                .decoder_start = (uint32_t)j->plan.decoder_start};
    uint8_t *tail = act_msg_tail(&m, &bytes);
    memcpy(tail, logits, vocab);
    memcpy(tail + vocab, j->pages, (size_t)j->n_pages * sizeof *j->pages);
    if (!j->replay)
        report_prefilled(p, j);
    if (!j->plan.behind && !j->replay)
        act_history_snapshot(p->self, p->e, &j->recipe, j->recipe.ids, j->seq, j->recipe.n_ids - 1);
    act_history_publish(p->self, p->e, &j->recipe, j->recipe.ids, j->seq, j->pages, j->n_pages, pre_replayed(p, j),
                        j->plan.behind);
    j->seq = NULL;
    if (act_send(p->self, &m)) {
        act_msg_drop(&m);
        pre_job_fail(p, j, -EAGAIN, "the decoder takes nothing");
        return;
    }
    j->n_pages = 0;
    pre_job_remove(p, j);
}

/* The rest of the sequence goes to another process; this one keeps its finished blocks as cache. */
void pre_send_rest(struct prefill *p, struct job *j, const float *logits)
{
    const struct act_b_kv_ready known = {.cached = (uint32_t)j->plan.hit,
                                         .hit = j->plan.behind,
                                         .replayed = pre_replayed(p, j),
                                         .decoder_start = (uint32_t)j->plan.decoder_start};
    size_t vocab = (size_t)p->e->m->cfg->vocab_size * sizeof *logits;
    int r = act_sending_finish(&j->sending, j->seq, j->pages, logits, j->sending.form == MDL_HANDOFF_FULL ? vocab : 0,
                               &known);
    if (r == -EAGAIN && j->state == JOB_RUNNING && logits && (j->logits = malloc(vocab)))
        memcpy(j->logits, logits, vocab);
    j->state = JOB_SENDING;
    if (r == -EAGAIN && (!logits || j->logits))
        return; /* once more when there is room */
    if (r) {
        pre_job_fail(p, j, r, "the hand-off to the decoder failed");
        return;
    }
    report_prefilled(p, j);
    act_history_publish(p->self, p->e, &j->recipe, j->recipe.ids, j->seq, j->pages, j->n_pages, known.replayed,
                        known.hit);
    if (!j->plan.behind)
        act_history_snapshot(p->self, p->e, &j->recipe, j->recipe.ids, j->seq, j->recipe.n_ids - 1);
    pre_pages_return(p, j);
    mdl_seq_free(j->seq);
    j->seq = NULL;
    j->state = JOB_CONFIRMING;
    p->active--;
}

void pre_send_what_waits(struct prefill *p)
{
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        if (j->again)
            continue;
        if (j->state == JOB_SENDING)
            pre_send_rest(p, j, j->logits);
        else if (pre_job_computed(j) && act_load_whole(&j->load)) /* what it waited for has come */
            pre_send_rest(p, j, NULL);
        else if (j->state == JOB_RUNNING && j->segment < 0)
            pre_send_rows(p, j);
    }
}

/* ---- sequences of other processes ---- */

/* A cancel overtook it. Its sender may be gone by now, so pages and place go back from here; the sequence ends with the
 * message. */
static void give_back_replay(struct prefill *p, struct act_msg *m)
{
    size_t bytes;
    struct job gone = {.n_pages = (int)act_p_replay(m)->pages, .pages = act_msg_tail(m, &bytes)};
    act_cancel(p->self, act_b_replay(m)->decode, m->request, m->attempt, -ECANCELED);
    pre_pages_return(p, &gone);
}

/* Goes on with what the other side left to do; the sequence and its pages are this process's. */
void pre_take_replay(struct prefill *p, struct act_msg *m)
{
    const struct act_p_replay *in = act_p_replay(m);
    const struct act_b_replay *b = act_b_replay(m);
    size_t bytes, held = (size_t)in->pages * sizeof(uint32_t);
    const uint8_t *tail = act_msg_tail(m, &bytes);
    struct job *j = calloc(1, sizeof *j);
    struct act_msg prompt = act_msg_make(ACT_PREFILL, ACT_NOBODY);
    prompt.buf = j ? act_buf_copy(tail + held, bytes - held) : NULL;
    bool cancelled = pre_was_cancelled(p, m->request, m->attempt);
    if (cancelled || !prompt.buf) {
        act_msg_drop(&prompt);
        free(j);
        if (cancelled)
            give_back_replay(p, m);
        else
            act_return(p->self, m);
        return;
    }
    *j = (struct job){.request = m->request,
                      .attempt = m->attempt,
                      .segment = -1,
                      .state = JOB_RUNNING,
                      .replay = true,
                      .requester = b->requester,
                      .decode = b->decode,
                      .ticket = in->ticket,
                      .max_tokens = (int)(b->ids + b->max_tokens),
                      .seq = act_handoff_take(m)};
    const char *bad = act_recipe_read(&prompt, (int)b->ids, p->e->vocab, &j->recipe);
    j->buf = prompt.buf;
    j->n_blocks = act_blocks(p->e, j->max_tokens);
    j->pages = calloc((size_t)j->n_blocks + 1, sizeof *j->pages);
    *p->last = j;
    p->last = &j->next;
    p->active++;
    if (j->pages) {
        memcpy(j->pages, tail, held);
        j->n_pages = (int)in->pages;
    }
    struct mdl_prefill_params plan = {.replay = p->e->limits.replay, .full_bridge = p->e->limits.full_bridge};
    if (b->form == MDL_HANDOFF_GLOBAL)
        plan.hit = mdl_handoff_tokens(MDL_HANDOFF_GLOBAL, j->recipe.n_ids);
    int r = bad || !j->pages ? -EINVAL
            : b->form == MDL_HANDOFF_GLOBAL
                ? mdl_prefill_begin(&j->plan, j->seq, j->recipe.ids, j->recipe.n_ids, &plan, &p->err)
                : mdl_prefill_resume(&j->plan, j->seq, j->recipe.ids, j->recipe.n_ids, &plan, &p->err);
    if (r) {
        pre_job_fail(p, j, r, bad ? bad : p->err.msg);
        return;
    }
    if (b->form == MDL_HANDOFF_ENCODER) { /* what the first pass had found, as its process knew it */
        j->plan.hit = (int)b->cached;
        j->plan.behind = b->hit;
    } else if (b->hit) { /* whatever this side's replay alone would make of its own rows */
        j->plan.behind = ACT_HIT_MIXED;
    }
}
