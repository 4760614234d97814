#include "actors/prefill_impl.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "actors/figures.h"
#include "actors/history.h"
#include "actors/placement.h"
#include "actors/router.h"

/* ---- ends ---- */

void pre_pages_return(struct prefill *p, struct job *j)
{
    struct act_msg m;
    size_t bytes;
    if (!j->n_pages || j->sending.puts ||
        act_msg_new(ACT_PAGES_BACK, p->e->tier, (size_t)j->n_pages * sizeof *j->pages, &m))
        return;
    memcpy(act_msg_tail(&m, &bytes), j->pages, (size_t)j->n_pages * sizeof *j->pages);
    act_p_pages_back(&m)->pages = (uint32_t)j->n_pages;
    if (act_send(p->self, &m))
        act_msg_drop(&m);
    j->n_pages = 0;
}

void pre_job_remove(struct prefill *p, struct job *j)
{
    struct job **at = &p->first;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    if (p->last == &j->next)
        p->last = at;
    p->active -= j->state != JOB_QUEUED && j->state != JOB_CONFIRMING;
    if (!j->replay)
        act_tally_add(p->e->tally, ACT_TALLY_PROMPTS_ENDED);
    mdl_seq_free(j->seq);
    free(j->logits);
    act_buf_free(j->buf);
    act_buf_free(j->snapshot);
    act_sending_end(&j->sending, &p->left, j->pages, j->n_pages);
    free(j->pages);
    free(j);
}

/* Tells the requester why, gives the place at Decode up, and forgets the job. Behind the hand-off the sequence may run
 * there: then that is for the requester to say. */
void pre_job_fail(struct prefill *p, struct job *j, int status, const char *text)
{
    struct act_msg m;
    size_t bytes, len = strlen(text);
    if (act_msg_new(ACT_FAILED, j->requester, len, &m))
        m = act_msg_make(ACT_FAILED, j->requester);
    else
        memcpy(act_msg_tail(&m, &bytes), text, len);
    m.request = j->request;
    m.attempt = j->attempt;
    act_p_failed(&m)->status = status;
    if (act_send(p->self, &m))
        act_msg_drop(&m);
    if (j->state > JOB_RESERVING && j->state != JOB_CONFIRMING)
        act_cancel(p->self, j->decode, j->request, j->attempt, status);
    pre_pages_return(p, j);
    if (!j->replay)
        act_tally_add(p->e->tally, ACT_TALLY_PROMPTS_FAILED);
    pre_job_remove(p, j);
}

struct job *pre_job_find(struct prefill *p, uint64_t request, uint16_t attempt)
{
    struct job *j = p->first;
    while (j && (j->request != request || j->attempt != attempt))
        j = j->next;
    return j;
}

/* ---- a prompt's way to its first step ---- */

static void take_prompt(struct prefill *p, struct act_msg *m)
{
    if (pre_was_cancelled(p, m->request, m->attempt) || !pre_end_older(p, m->request, m->attempt))
        return;
    struct job *j = calloc(1, sizeof *j);
    const struct act_p_prefill *in = act_p_prefill(m);
    if (!j) {
        act_return(p->self, m);
        return;
    }
    *j = (struct job){.request = m->request, .attempt = m->attempt, .segment = -1};
    const char *bad = act_recipe_read(m, (int)in->ids, p->e->vocab, &j->recipe);
    j->requester = bad ? m->src : j->recipe.body->requester;
    j->decode = act_addr_is_nobody(in->decode) ? p->e->decode[0] : in->decode;
    j->buf = act_msg_take(m);
    *p->last = j;
    p->last = &j->next;
    act_tally_add(p->e->tally, ACT_TALLY_PROMPTS);
    if (bad) {
        pre_job_fail(p, j, -EINVAL, bad);
        return;
    }
    int room = p->e->limits.context - j->recipe.n_ids;
    uint32_t wanted = j->recipe.body->max_tokens;
    if (room < 1) {
        pre_job_fail(p, j, -E2BIG, "the prompt is longer than the context");
        return;
    }
    j->max_tokens = j->recipe.n_ids + (wanted < (uint32_t)room ? (int)wanted : room);
    if (!act_can_hold(p->e, j->recipe.n_ids, j->max_tokens))
        pre_job_fail(p, j, -E2BIG, "the prompt and its output can never fit in the KV memory");
}

static void reserve(struct prefill *p, struct job *j)
{
    struct act_msg m;
    size_t bytes;
    if (act_msg_new(ACT_RESERVE, j->decode, j->buf->size, &m))
        return;
    bool exact = !p->e->limits.replay || j->recipe.body->flags & ACT_RECIPE_EXACT;
    act_sending_ask(&j->sending, p->self, p->e, j->decode, j->request, j->attempt,
                    exact ? MDL_HANDOFF_FULL : p->e->form);
    memcpy(act_msg_tail(&m, &bytes), j->buf->data, j->buf->size);
    struct act_b_prefill *body = act_msg_tail(&m, &bytes);
    body->history = j->history;
    if (j->taken_back >= TAKEN_BACK_MAX)
        body->flags |= ACT_RECIPE_STAYS;
    m.request = j->request;
    m.attempt = j->attempt;
    m.deadline = j->sending.ticket.deadline;
    *act_p_reserve(&m) = (struct act_p_reserve){.ids = (uint32_t)j->recipe.n_ids,
                                                .requester = j->requester,
                                                .max_tokens = (uint32_t)(j->max_tokens - j->recipe.n_ids)};
    j->asked = act_request(p->self, &m) == 0;
    if (!j->asked) {
        act_msg_drop(&m);
        act_sending_event(&j->sending, ACT_TICKET_ON_GIVE_UP);
    }
}

static bool runs_exact(const struct prefill *p, const struct job *j)
{
    return !p->e->limits.replay || j->recipe.body->flags & ACT_RECIPE_EXACT;
}

/* At least one token is left to compute, so that there are logits. */
static void look_up(struct prefill *p, struct job *j)
{
    int blocks = j->recipe.n_chain - 1, most = (j->recipe.n_ids - 1) / p->e->layout.block_tokens, n = j->recipe.n_ids;
    struct act_msg m;
    size_t bytes;
    blocks = blocks < most ? blocks : most;
    if (blocks < 0) {
        j->state = JOB_PAGES;
        return;
    }
    size_t keys = ((size_t)blocks + 1) * sizeof(struct act_key);
    if (act_msg_new(ACT_KV_LOOKUP, p->e->tier, keys + (size_t)n * sizeof(int32_t), &m))
        return;
    uint8_t *at = act_msg_tail(&m, &bytes);
    memcpy(at, j->recipe.chain, keys);
    memcpy(at + keys, j->recipe.ids, (size_t)n * sizeof(int32_t));
    m.request = j->request;
    m.attempt = j->attempt;
    bool exact = runs_exact(p, j);
    /* A hit without window rows is replayed. Behind rows that came about so their run goes on: nothing is replayed
     * twice. */
    *act_p_kv_lookup(&m) =
        (struct act_p_kv_lookup){.blocks = (uint32_t)blocks,
                                 .flags = exact ? ACT_LOOKUP_CLEAN_ONLY : 0,
                                 .number = ++j->lookups,
                                 .ids = p->e->snapshots && !exact ? (uint32_t)n : 0,
                                 .least = exact ? (uint32_t)mdl_prefill_exact_reach(p->e->m->cfg) : 0};
    *act_b_kv_lookup(&m) = (struct act_b_kv_lookup){.token_ns = p->token_ns,
                                                    .replay = (uint32_t)p->e->limits.replay,
                                                    .run_least = (uint32_t)mdl_prefill_run_least(p->e->m->cfg)};
    if (act_request(p->self, &m))
        act_msg_drop(&m);
    else
        j->asked = true;
}

static void ask_pages(struct prefill *p, struct job *j)
{
    struct act_msg m = act_msg_make(ACT_PAGES_ASK, p->e->tier);
    m.request = j->request;
    m.attempt = j->attempt;
    act_p_pages_ask(&m)->pages = (uint32_t)(act_blocks(p->e, j->recipe.n_ids) - j->n_pages);
    if (act_request(p->self, &m) == 0)
        j->asked = true;
}

static int begin_plan(struct prefill *p, struct job *j)
{
    const struct act_engine_limits *l = &p->e->limits;
    bool exact = runs_exact(p, j);
    const struct mdl_seq_params params = act_seq_params(p->e, j->max_tokens);
    int r = mdl_seq_new(p->e->m->cfg, &params, &j->seq, &p->err);
    if (r)
        return r;
    for (int b = 0; b < j->n_pages; b++)
        mdl_seq_attach(j->seq, b, kv_device_bytes(p->e->device, (int)j->pages[b]));
    struct mdl_prefill_params plan = {.exact = exact, .replay = l->replay, .full_bridge = l->full_bridge};
    if (j->snapshot && !exact &&
        !mdl_seq_snapshot_load(j->seq, j->recipe.ids, j->hit, j->snapshot->data + j->snapshot_at,
                               j->snapshot->size - j->snapshot_at)) {
        plan.hit_window = true;
        plan.hit_extra = params.window_extra;
    } else {
        if (j->snapshot) /* only its full blocks can be used */
            j->hit = j->hit / p->e->layout.block_tokens * p->e->layout.block_tokens;
        mdl_seq_adopt(j->seq, j->recipe.ids, j->hit);
    }
    plan.hit = j->hit;
    plan.hit_clean = j->clean < j->hit ? j->clean : 0;
    act_buf_free(j->snapshot);
    j->snapshot = NULL;
    return mdl_prefill_begin(&j->plan, j->seq, j->recipe.ids, j->recipe.n_ids, &plan, &p->err);
}

/* What the job's state asks for next; nothing while an answer is outstanding. */
static void push_on(struct prefill *p, struct job *j)
{
    if (j->asked || j->again)
        return;
    if (j->state == JOB_QUEUED) {
        j->state = JOB_RESERVING;
        p->active++;
    }
    if (j->state == JOB_RESERVING)
        reserve(p, j);
    if (j->state == JOB_LOOKUP)
        look_up(p, j);
    if (j->state == JOB_PAGES && !j->asked)
        ask_pages(p, j);
}

static void push_all(struct prefill *p)
{
    int active = p->active;
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        if (j->state == JOB_QUEUED && active >= p->e->limits.prefills)
            break;
        active += j->state == JOB_QUEUED;
        push_on(p, j);
    }
}

/* ---- answers ---- */

static void retry_later(struct prefill *p)
{
    if (!act_timer_pending(&p->retry))
        act_timer_after(p->self, &p->retry, RETRY_NS, TAG_RETRY);
}

/* The decoder has no connection for rows from here, which comes back soon where a fence has ended it; not for ever. */
static bool is_connecting(const struct prefill *p, struct job *j, int status)
{
    int64_t now = act_now(p->self), lease = p->e->tickets.lease ? p->e->tickets.lease : INT64_C(30000000000);
    bool began = j->no_connection_since != 0;
    j->no_connection_since = status != -ENOTCONN ? 0 : began ? j->no_connection_since : now;
    return status == -ENOTCONN && now - j->no_connection_since < lease;
}

static void take_reserved(struct prefill *p, struct job *j, struct act_msg *m)
{
    const struct act_p_reserved *in = act_p_reserved(m);
    act_sending_reserved(&j->sending, m);
    if (is_connecting(p, j, in->status) || in->status == -EAGAIN) {
        j->asked = j->later = true;
        retry_later(p);
    } else if (in->status) {
        pre_job_fail(p, j, in->status == -ENOTCONN ? -EHOSTDOWN : in->status, "the decoder refused the request");
    } else {
        j->ticket = in->ticket;
        j->n_blocks = act_blocks(p->e, j->max_tokens);
        j->pages = calloc((size_t)j->n_blocks + 1, sizeof *j->pages);
        j->state = JOB_LOOKUP;
        if (!j->pages)
            pre_job_fail(p, j, -ENOMEM, "out of memory");
    }
}

static void expect_rows(struct prefill *p, struct job *j, int first, int n)
{
    j->load = (struct act_load){.first = first,
                                .n = n,
                                .sources = p->e->m->cfg->n_kv_sources,
                                .ok = n,
                                .deadline = act_now(p->self) + p->e->read_timeout_ns};
    j->read_began = act_now(p->self);
    if (!act_timer_pending(&p->reads))
        act_timer_at(p->self, &p->reads, j->load.deadline, TAG_READS);
}

static void take_found(struct prefill *p, struct job *j, struct act_msg *m)
{
    size_t bytes;
    const struct act_tier_block *b = act_msg_tail(m, &bytes);
    uint32_t n = act_p_kv_found(m)->blocks;
    j->clean = 0;
    for (uint32_t i = 0; i < n && (i + 1) * sizeof *b <= bytes && j->n_pages < j->n_blocks; i++) {
        j->pages[j->n_pages++] = b[i].page;
        j->clean += b[i].replayed ? 0 : p->e->layout.block_tokens;
    }
    j->hit = j->n_pages * p->e->layout.block_tokens;
    if (act_p_kv_found(m)->snapshot && n == (uint32_t)j->n_pages) {
        j->hit = j->clean = (int)act_p_kv_found(m)->snapshot;
        j->snapshot = act_msg_take(m);
        j->snapshot_at = (size_t)((const uint8_t *)(b + n) - j->snapshot->data);
    }
    int replayed = j->snapshot ? 0 : p->e->limits.replay;
    if (j->clean < j->hit && !j->snapshot)
        replayed += mdl_prefill_run_least(p->e->m->cfg);
    act_engram_ahead(&p->exchange.engram, j->recipe.ids, j->recipe.n_ids, j->hit > replayed ? j->hit - replayed : 0,
                     p->step->capacity);
    uint32_t loading = act_p_kv_found(m)->loading;
    if (loading && n == (uint32_t)j->n_pages)
        expect_rows(p, j, (int)(n - loading), (int)loading);
    j->state = JOB_PAGES;
}

static void report_prefilling(struct prefill *p, struct job *j)
{
    if (j->reported)
        return;
    j->reported = true;
    struct act_msg m = act_msg_make(ACT_PREFILLING, j->requester);
    m.request = j->request;
    m.attempt = j->attempt;
    *act_p_prefilling(&m) = (struct act_p_prefilling){.ids = (uint32_t)j->recipe.n_ids, .cached = (uint32_t)j->hit};
    if (act_send(p->self, &m))
        act_msg_drop(&m);
}

/* While it waits for pages it holds none, or two prompts with hits would wait for each other's for ever. */
static void let_go_of_hit(struct prefill *p, struct job *j)
{
    if (!j->n_pages || j->sending.puts)
        return;
    pre_pages_return(p, j);
    act_buf_free(j->snapshot);
    j->snapshot = NULL;
    j->hit = 0;
    j->load.n = 0;
    j->state = JOB_LOOKUP;
}

/* Those that wait with a hit look it up again one after the other, by chance, or they would take the pages from each
 * other each time. */
static void ask_again(struct prefill *p)
{
    bool some = false;
    for (struct job *j = p->first; j; j = j->next) {
        bool now = j->later && (j->state != JOB_LOOKUP || act_random(p->self) % 4 == 0);
        some |= j->later && !now;
        if (now)
            j->asked = j->later = false;
    }
    if (some)
        retry_later(p);
}

static void take_given(struct prefill *p, struct job *j, struct act_msg *m)
{
    size_t bytes;
    const uint32_t *page = act_msg_tail(m, &bytes);
    if (act_p_pages_given(m)->status) {
        let_go_of_hit(p, j);
        j->asked = j->later = true;
        retry_later(p);
        return;
    }
    for (uint32_t i = 0; i < act_p_pages_given(m)->pages && (i + 1) * sizeof *page <= bytes && j->n_pages < j->n_blocks;
         i++)
        j->pages[j->n_pages++] = page[i];
    j->state = JOB_RUNNING;
    int r = begin_plan(p, j);
    if (r) {
        pre_job_fail(p, j, r, p->err.msg);
        return;
    }
    pre_check_history(p, j);
    if (j->again)
        return;
    report_prefilling(p, j);
    pre_send_rows(p, j);
}

static void take_answer(struct prefill *p, struct act_msg *m)
{
    struct job *j = pre_job_find(p, m->request, m->attempt);
    bool expected = j && j->asked && !j->later && j->state == JOB_RESERVING;
    if (m->type == ACT_RESERVED && !expected) {
        bool doubled = j ? act_sending_is_mine(&j->sending, m) : act_left_has(p->left, m);
        if (!doubled)
            act_sending_unwanted(p->self, m);
        return;
    }
    if (!j) { /* cancelled while it was asking: what came with the answer goes back */
        struct job gone = {.n_pages = 0};
        size_t bytes;
        const void *tail = act_msg_tail(m, &bytes);
        gone.pages = calloc(bytes / sizeof(uint32_t) + 1, sizeof *gone.pages);
        if (gone.pages && m->type == ACT_PAGES_GIVEN)
            for (uint32_t i = 0; i < act_p_pages_given(m)->pages; i++)
                gone.pages[gone.n_pages++] = ((const uint32_t *)tail)[i];
        if (gone.pages && m->type == ACT_KV_FOUND)
            for (uint32_t i = 0; i < act_p_kv_found(m)->blocks; i++)
                gone.pages[gone.n_pages++] = ((const struct act_tier_block *)tail)[i].page;
        pre_pages_return(p, &gone);
        free(gone.pages);
        return;
    }
    j->asked = false;
    if (m->type == ACT_RESERVED)
        take_reserved(p, j, m);
    else if (m->type == ACT_KV_FOUND)
        take_found(p, j, m);
    else
        take_given(p, j, m);
}

/* Nothing of the running step was committed: its segments begin again in the next one. */
static void leave_step(struct prefill *p)
{
    act_exchange_abandon(&p->exchange);
    act_exchange_end(&p->exchange);
    for (struct job *j = p->first; j; j = j->next)
        j->segment = -1;
    p->running = p->waiting = p->lacks_rows = false;
}

uint32_t pre_replayed(const struct prefill *p, const struct job *j)
{
    return j->plan.behind ? (uint32_t)p->e->limits.replay : 0;
}

void pre_keep_finished(struct prefill *p, const struct job *j)
{
    if ((j->state == JOB_RUNNING || j->state == JOB_SENDING) && j->seq && act_load_whole(&j->load))
        act_history_publish(p->self, p->e, &j->recipe, j->recipe.ids, j->seq, j->pages, j->n_pages, pre_replayed(p, j),
                            j->plan.behind);
}

void pre_job_cancel(struct prefill *p, struct job *j)
{
    j->cancelled = true;
    if (j->segment >= 0 && act_load_whole(&j->load))
        return; /* its rows run on as ghosts until the step ends */
    if (j->segment >= 0)
        leave_step(p); /* that end may be far away */
    if (j->state >= JOB_RESERVING)
        act_cancel(p->self, j->decode, j->request, j->attempt, -ECANCELED);
    pre_keep_finished(p, j);
    pre_pages_return(p, j);
    pre_job_remove(p, j);
}

static void take_returned(struct prefill *p, struct act_msg *m)
{
    enum act_type type = act_msg_returned_type(m);
    struct job *j = pre_job_find(p, m->request, m->attempt);
    if (type == ACT_HANDOFF && m->buf) { /* Decode had given the place up: a cancel crossed the hand-off */
        struct job gone = {.n_pages = (int)act_p_handoff(m)->pages};
        float *tail = (float *)(void *)(m->buf->data + act_type_info(ACT_HANDOFF)->body_size);
        gone.pages = (uint32_t *)(void *)(tail + p->e->m->cfg->vocab_size);
        pre_pages_return(p, &gone);
    } else if (type == ACT_LOAD) {
        act_routers_message(&p->routers, m);
    } else if (type == ACT_KV_WRITTEN || type == ACT_KV_READY) {
        if (j)
            pre_ticket_event(p, j, ACT_TICKET_ON_DOWN);
    } else if (type == ACT_LINK_PUT && !act_exchange_is_put(m)) { /* the link has ended, and every connection with it */
        pre_take_put_done(p, m);
    } else if (type == ACT_RESERVE || type == ACT_KV_LOOKUP || type == ACT_PAGES_ASK) {
        if (j)
            pre_job_fail(p, j, -EHOSTDOWN, "a part of the engine is gone");
    } else if (type == ACT_PREFILLING || type == ACT_PREFILLED) {
        if (j) /* whoever asked is gone, whatever became of its cancel */
            pre_job_cancel(p, j);
    } else {
        p->waiting &= !act_exchange_message(&p->exchange, m);
    }
}

/* ---- steps ---- */

/* The next segment that this process computes. The form of a hand-off may leave the layers from the cut on to the
 * other. */
static bool job_next(struct job *j, int rows, struct mdl_segment *seg)
{
    bool encoder_only = act_sending_writing(&j->sending) && j->sending.form != MDL_HANDOFF_FULL;
    return mdl_prefill_next(&j->plan, rows, seg) && !(encoder_only && seg->layer_begin > 0);
}

bool pre_job_computed(struct job *j)
{
    struct mdl_segment more;
    return j->state == JOB_RUNNING && j->segment < 0 && act_sending_writing(&j->sending) && !job_next(j, 1, &more);
}

/* A prompt whose rows are still being read runs alone, and only when no other can, so that it holds nobody up. */
static bool may_share(const struct prefill *p, const struct job *j, bool late)
{
    return j->state == JOB_RUNNING && !j->again && (act_load_whole(&j->load) || (late && !p->step->n_segments));
}

/* Tokens of the prompt up to the next point at which a snapshot is kept. */
static int rows_until_point(const struct prefill *p, const struct job *j, int rows)
{
    int every = p->e->snapshots ? p->e->snapshot_blocks * p->e->layout.block_tokens : 0;
    int left = every ? every - j->plan.encoder_at % every : rows;
    return j->plan.encoder_at < j->plan.n && left < rows ? left : rows;
}

/* A replay, or the end of a prompt: all that is left of its pass over the layers, and not much. */
static bool ends_soon(const struct prefill *p, struct job *j)
{
    struct mdl_segment seg;
    return job_next(j, p->step->capacity, &seg) && seg.n <= p->step->capacity / 2;
}

/* Adds the next segments of prompts, in the order in which they came, up to so many rows. */
static int add_segments(struct prefill *p, bool late, bool soon, int rows)
{
    int added = 0;
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        struct mdl_segment seg;
        int room = rows - added;
        if (j->segment >= 0 || !may_share(p, j, late) || !room || (soon && !ends_soon(p, j)) ||
            !job_next(j, rows_until_point(p, j, room), &seg))
            continue;
        if (mdl_step_add(p->step, &seg, &p->err)) {
            pre_job_fail(p, j, -EIO, p->err.msg);
            continue;
        }
        j->segment = p->step->n_segments - 1;
        added += seg.n;
        if (!seg.layer_begin)
            act_engram_ahead(&p->exchange.engram, j->recipe.ids, j->recipe.n_ids, seg.start + seg.n, p->step->capacity);
    }
    return added;
}

/* Replays of several requests share a pass, beside a long prompt too: half of a step is for those that end soon, the
 * rest goes by arrival. What shares a step has no influence on anybody's bits. */
static void build_step(struct prefill *p)
{
    int rows = p->step->capacity;
    mdl_step_begin(p->step, &p->exchange.providers);
    for (int late = 0; late < 2 && !p->step->n_segments; late++) {
        int soon = add_segments(p, late, true, rows / 2);
        add_segments(p, late, false, rows - soon);
    }
    p->running = p->step->n_segments > 0;
    p->waiting = p->lacks_rows = p->waited_rows = false;
    p->step_began = act_now(p->self);
    if (p->running)
        act_exchange_begin(&p->exchange);
}

/* The step waits for rows, and a prompt that needs none is not in it. */
static bool can_go_on(const struct prefill *p)
{
    for (const struct job *j = p->first; j; j = j->next)
        if (j->state == JOB_RUNNING && !j->again && j->segment < 0 && act_load_whole(&j->load))
            return true;
    return false;
}

/* The hit becomes as long as what has arrived. Pages of the rest go back, where they stay until nothing can be written
 * to them any more; others are asked for, and the prompt begins again. */
static void shorten_hit(struct prefill *p, struct job *j)
{
    struct act_load *l = &j->load;
    int good = l->settled == l->sources ? l->ok : 0, at = l->first + good, bad = l->n - good;
    struct job gone = {.pages = j->pages + at, .n_pages = bad};
    if (j->segment >= 0)
        leave_step(p);
    pre_pages_return(p, &gone);
    memmove(j->pages + at, j->pages + at + bad, (size_t)(j->n_pages - at - bad) * sizeof *j->pages);
    j->n_pages -= bad;
    j->hit = at * p->e->layout.block_tokens;
    l->n = 0;
    act_buf_free(j->snapshot); /* it needs all blocks before it */
    j->snapshot = NULL;
    mdl_seq_free(j->seq);
    j->seq = NULL;
    if (j->state == JOB_RUNNING)
        j->state = JOB_PAGES;
}

/* What failed or is late. A prompt whose answer is outstanding is looked at again when it has come. */
static void check_reads(struct prefill *p)
{
    int64_t now = act_now(p->self), next = ACT_NEVER;
    for (struct job *j = p->first; j; j = j->next) {
        if (!j->asked && act_load_failed(&j->load, now))
            shorten_hit(p, j);
        if (!act_load_whole(&j->load))
            next = j->load.deadline > now ? (j->load.deadline < next ? j->load.deadline : next) : now + RETRY_NS;
    }
    if (next != ACT_NEVER)
        act_timer_at(p->self, &p->reads, next, TAG_READS);
}

static void take_rows(struct prefill *p, struct act_msg *m)
{
    struct job *j = pre_job_find(p, m->request, m->attempt);
    if (!j)
        return;
    bool whole = act_load_whole(&j->load);
    act_load_rows(&j->load, j->lookups, act_p_kv_rows(m));
    if (!whole && act_load_whole(&j->load)) {
        uint64_t one = (uint64_t)(act_now(p->self) - j->read_began) / (uint64_t)(j->load.n * p->e->layout.block_tokens);
        p->read_ns = p->read_ns ? (3 * p->read_ns + one) / 4 : one;
    }
    if (p->lacks_rows)
        p->waiting = p->lacks_rows = false;
}

/* The step has come to a layer whose source is not there: its rows go before those of others. */
static void want_rows(struct prefill *p, struct job *j, int source)
{
    struct act_msg m = act_msg_make(ACT_KV_WANT, p->e->tier);
    if (source < j->load.wanted)
        return;
    j->load.wanted = source + 1;
    m.request = j->request;
    m.attempt = j->attempt;
    *act_p_kv_want(&m) = (struct act_p_kv_want){.sources = (uint16_t)(source + 1), .number = j->lookups};
    if (act_send(p->self, &m))
        act_msg_drop(&m); /* they come in their turn */
}

/* mdl_providers.kv; ctx is the exchange. */
static int rows_ready(void *ctx, struct mdl_step *step, const struct mdl_seq *seq, int source, int rows)
{
    struct prefill *p = (struct prefill *)(void *)((uint8_t *)ctx - offsetof(struct prefill, exchange));
    (void)step;
    (void)rows;
    for (struct job *j = p->first; j; j = j->next)
        if (j->seq == seq && !act_load_ready(&j->load, source)) {
            want_rows(p, j, source);
            p->lacks_rows = p->waited_rows = true;
            return 0;
        }
    return 1;
}

/* Another prompt may go on from here that begins like this one. */
static void keep_point(struct prefill *p, const struct job *j, const struct mdl_segment *seg)
{
    int every = p->e->snapshots ? p->e->snapshot_blocks * p->e->layout.block_tokens : 0, end = seg->start + seg->n;
    if (every && seg->layer_begin == 0 && end % every == 0 && end > j->plan.hit && end < j->plan.n && !j->plan.behind)
        act_history_snapshot(p->self, p->e, &j->recipe, j->recipe.ids, j->seq, end);
}

static void end_step(struct prefill *p, int status)
{
    p->running = false;
    act_exchange_end(&p->exchange);
    if (!status && !p->waited_rows && p->step->n_rows) {
        uint64_t one = (uint64_t)(act_now(p->self) - p->step_began) / (uint64_t)p->step->n_rows;
        p->token_ns = p->token_ns ? (3 * p->token_ns + one) / 4 : one;
    }
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        if (j->segment < 0)
            continue;
        int at = j->segment;
        const struct mdl_segment *seg = &p->step->segment[at];
        j->segment = -1;
        if (j->cancelled) {
            act_cancel(p->self, j->decode, j->request, j->attempt, -ECANCELED);
            pre_keep_finished(p, j);
            pre_pages_return(p, j);
            pre_job_remove(p, j);
            continue;
        }
        if (status || j->broken) {
            pre_job_fail(p, j, status ? status : j->broken,
                         status ? act_exchange_reason(&p->exchange, status, "the prefill step failed")
                                : "the hand-off to the decoder failed");
            continue;
        }
        struct mdl_segment more;
        mdl_step_commit(p->step, at, seg->n);
        mdl_prefill_advance(&j->plan, seg);
        keep_point(p, j, seg);
        if (j->again)
            continue;
        bool whole = !job_next(j, 1, &more);
        if (whole && act_sending_writing(&j->sending) && !act_load_whole(&j->load))
            want_rows(p, j, j->load.sources - 1); /* no layer here reads the last ones; they are sent all the same */
        else if (whole && act_sending_writing(&j->sending))
            pre_send_rest(p, j, mdl_step_logits(p->step, at, seg->n - 1));
        else if (whole)
            pre_hand_off(p, j, mdl_step_logits(p->step, at, seg->n - 1));
        else
            pre_send_rows(p, j);
    }
    act_progress(p->self);
}

/* The segments of a step that lost a shard, once more from its start. */
static void rerun(struct prefill *p)
{
    for (struct job *j = p->first; j; j = j->next)
        j->segment = -1;
    build_step(p);
    if (!p->running)
        act_exchange_end(&p->exchange);
}

static void advance(struct prefill *p)
{
    if (p->exchange.lost)
        rerun(p);
    int r = p->running ? mdl_step_advance(p->step) : MDL_STEP_DONE;
    if (r == MDL_STEP_WAIT)
        p->waiting = true;
    else if (r == MDL_STEP_DONE)
        end_step(p, 0);
    else if (r < 0)
        end_step(p, r);
}

/* Decode leaves time between its rounds while prompts are being computed. */
static void tell_busy(struct prefill *p, bool busy)
{
    struct act_b_load load = {.running = busy};
    if (busy == p->told_busy)
        return;
    p->told_busy = busy;
    for (int i = 0; i < p->e->n_decode; i++)
        act_load_report(p->self, p->e->decode[i], CFG_ROLE_PREFILL, &p->load_sequence, &load);
}

static void report_load(struct prefill *p)
{
    struct act_b_load load = {0};
    load.experts = act_exchange_experts(&p->exchange);
    load.token_ns = p->token_ns < UINT32_MAX ? (uint32_t)p->token_ns : UINT32_MAX;
    load.read_ns = p->read_ns < UINT32_MAX ? (uint32_t)p->read_ns : UINT32_MAX;
    act_timer_after(p->self, &p->report, ACT_LOAD_REPORT_NS, TAG_REPORT);
    act_figures_send(p->self, p->e->observer, ACT_FIGURES_PREFILL_EXCHANGE, (const uint64_t *)&p->exchange.counters,
                     ACT_EXCHANGE_COUNTERS);
    for (const struct job *j = p->first; j; j = j->next) {
        load.running += j->state == JOB_RUNNING;
        load.waiting += j->state != JOB_RUNNING;
        load.tokens_outstanding += (uint64_t)(j->recipe.n_ids - (j->state == JOB_RUNNING ? j->plan.encoder_at : 0));
    }
    act_load_report(p->self, p->e->router, CFG_ROLE_PREFILL, &p->load_sequence, &load);
    load.draining = p->draining;
    for (int i = 0; i < p->routers.n; i++)
        act_load_report(p->self, p->routers.addr[i], CFG_ROLE_PREFILL, &p->load_sequence, &load);
}

static void take_messages(struct prefill *p, struct act_msg *m, int count)
{
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_PREFILL:
            take_prompt(p, &m[i]);
            break;
        case ACT_RESERVED:
        case ACT_KV_FOUND:
        case ACT_PAGES_GIVEN:
            take_answer(p, &m[i]);
            break;
        case ACT_CANCEL:
            pre_take_cancel(p, &m[i]);
            break;
        case ACT_NODE_DOWN:
            pre_take_node_down(p, &m[i]);
            break;
        case ACT_NODE_UP:
            break;
        case ACT_TIMER:
            if (act_p_timer(&m[i])->tag == TAG_REPORT) {
                report_load(p);
                break;
            }
            if (act_p_timer(&m[i])->tag == TAG_READS)
                break; /* every turn looks after them */
            if (act_p_timer(&m[i])->tag != TAG_RETRY) {
                p->waiting &= !act_exchange_message(&p->exchange, &m[i]);
                break;
            }
            ask_again(p);
            break;
        case ACT_LOAD_WANTED:
            act_routers_message(&p->routers, &m[i]);
            break;
        case ACT_DRAIN:
            p->draining = true;
            break;
        case ACT_TICKET_ABORT:
        case ACT_TICKET_CLOSED:
            pre_take_ticket_message(p, &m[i]);
            break;
        case ACT_LINK_PUT_DONE:
            if (act_exchange_is_put(&m[i]))
                p->waiting &= !act_exchange_message(&p->exchange, &m[i]);
            else
                pre_take_put_done(p, &m[i]);
            break;
        case ACT_LINK_FENCE:
            break; /* the ends of the writes say more */
        case ACT_REPLAY:
            pre_take_replay(p, &m[i]);
            break;
        case ACT_PLACE_CHECK:
            if (!pre_job_find(p, m[i].request, m[i].attempt))
                act_place_unknown(p->self, &m[i]);
            break;
        case ACT_KV_ROWS:
            take_rows(p, &m[i]);
            break;
        case ACT_UNDELIVERABLE:
            take_returned(p, &m[i]);
            break;
        default:
            p->waiting &= !act_exchange_message(&p->exchange, &m[i]);
            break;
        }
    }
}

static int prefill_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct prefill *p = state;
    (void)self;
    take_messages(p, m, count);
    check_reads(p);
    pre_begin_again(p);
    push_all(p);
    if (p->lacks_rows && can_go_on(p))
        leave_step(p);
    if (!p->running)
        build_step(p);
    if (p->running && !p->waiting)
        advance(p);
    pre_send_what_waits(p);
    pre_begin_again(p);
    push_all(p);
    pre_look_at_tickets(p);
    tell_busy(p, p->active > 0);
    act_working(p->self, p->first != NULL);
    if (p->running && !p->waiting)
        act_yield(p->self);
    else if (!p->running)
        for (struct job *j = p->first; j; j = j->next)
            if (j->state == JOB_RUNNING) {
                act_yield(p->self);
                break;
            }
    return 0;
}

static void prefill_stop(struct act_self *self, void *state, int reason)
{
    struct prefill *p = state;
    (void)self;
    while (p->first) {
        if (p->first->state == JOB_CONFIRMING) /* the other side has it or says why not */
            pre_job_remove(p, p->first);
        else
            pre_job_fail(p, p->first, reason && reason != -ESHUTDOWN ? -EHOSTDOWN : -ESHUTDOWN, "the engine stops");
    }
    act_left_abandon(&p->left);
    tell_busy(p, false);
    act_exchange_free(&p->exchange);
    mdl_step_free(p->step);
}

static int prefill_start(struct act_self *self, void *state, const void *arg)
{
    struct prefill *p = state;
    p->self = self;
    p->e = arg;
    p->last = &p->first;
    act_timer_after(self, &p->report, 0, TAG_REPORT);
    pre_watch_nodes(p);
    int r = act_exchange_init(&p->exchange, self, p->e->m, ACT_STREAM_BULK, &p->e->experts);
    p->exchange.providers.kv = rows_ready;
    if (!r)
        r = mdl_step_new(p->e->m, p->e->limits.chunk, p->e->limits.context, &p->step, &p->err);
    if (r)
        act_exchange_free(&p->exchange);
    return r;
}

const struct act_behaviour act_prefill_behaviour = {
    .name = "prefill",
    .state_size = sizeof(struct prefill),
    .start = prefill_start,
    .receive = prefill_receive,
    .stop = prefill_stop,
};
