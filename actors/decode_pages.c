#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/decode_impl.h"
#include "actors/history.h"

/* Pages of tickets that were taken back are waited for so long, before a sequence is parked; and so long is it one
 * Decode's turn to gather pages for a parked sequence. */
enum { REVOKE_NS = 50000000, TURN_NS = 100000000 };

static uint8_t *page_bytes(const struct decode *d, uint32_t page)
{
    return kv_device_bytes(d->e->device, (int)page);
}

void dec_pages_return(struct decode *d, const uint32_t *page, int n)
{
    struct act_msg m;
    size_t bytes;
    if (!n)
        return;
    if (act_msg_new(ACT_PAGES_BACK, d->e->tier, (size_t)n * sizeof *page, &m))
        return;
    memcpy(act_msg_tail(&m, &bytes), page, (size_t)n * sizeof *page);
    act_p_pages_back(&m)->pages = (uint32_t)n;
    if (act_send(d->self, &m))
        act_msg_drop(&m);
    d->tier_empty = d->refused = false;
}

static struct dec_stream *oldest_parked(struct decode *d)
{
    struct dec_stream *old = NULL;
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        if (s->state == DEC_PARKED && (!old || s->order < old->order))
            old = s;
    }
    return old;
}

static int blocks_for(const struct decode *d, int tokens)
{
    int per = d->e->layout.block_tokens;
    return (tokens + per - 1) / per;
}

/* What a parked sequence needs to go on, by a token at least: with less it would be parked again at once. */
static int blocks_to_go_on(const struct decode *d, const struct dec_stream *s)
{
    int need = blocks_for(d, s->seq->len + 1);
    return need > s->n_pages ? need : s->n_pages;
}

/* Sequences that wait for a page; many of one age come to the end of their pages together. */
static int waiting(const struct decode *d)
{
    int n = 0;
    for (int i = 0; i < d->e->limits.streams; i++)
        n += d->stream[i].state == DEC_RUNNING && d->stream[i].waits_for_page;
    return n;
}

/* Pages that are to be at hand: the lease, one for each sequence that waits for one, and what the next parked sequence
 * needs. */
static int wanted(struct decode *d)
{
    const struct dec_stream *parked = oldest_parked(d);
    return d->e->limits.lease + (parked ? blocks_to_go_on(d, parked) : 0) + waiting(d);
}

/* Whether pages may be gathered one by one. Decodes that only have parked sequences would else each hold a part of
 * the pool, none of them enough to go on, and wait for each other's without end: so they do it by turns, and out of its
 * turn one takes all that it wants at once or nothing. One that generates will come to an end, and give pages back. */
static bool may_gather(const struct decode *d)
{
    int n = d->e->n_decode, own = 0;
    for (int i = 0; i < d->e->limits.streams; i++)
        if (d->stream[i].state == DEC_RUNNING)
            return true;
    while (own < n && d->e->decode[own].index != act_self_addr(d->self).index)
        own++;
    return n < 2 || act_now(d->self) / TURN_NS % n == own;
}

/* Asks for what is missing of them; what is too many goes back. */
void dec_pages_ask(struct decode *d)
{
    int want = wanted(d) - d->n_lease;
    if (!d->asked && want < 0) {
        dec_pages_return(d, d->lease + d->n_lease + want, -want);
        d->n_lease += want;
    }
    if (d->asked || d->refused || want <= 0)
        return;
    struct act_msg m = act_msg_make(ACT_PAGES_ASK, d->e->tier);
    act_p_pages_ask(&m)->pages = (uint32_t)(d->tier_empty ? 1 : want);
    if (act_request(d->self, &m) == 0)
        d->asked = want;
}

void dec_pages_given(struct decode *d, struct act_msg *m)
{
    const struct act_p_pages_given *p = act_p_pages_given(m);
    size_t bytes;
    const uint32_t *page = act_msg_tail(m, &bytes);
    bool one = d->tier_empty;
    d->asked = 0;
    if (p->status) {
        if (!may_gather(d)) {
            dec_pages_return(d, d->lease, d->n_lease);
            d->n_lease = 0;
            d->refused = d->tier_empty = true;
            return;
        }
        /* The whole lease was not to be had: try a single page before calling the tier empty. */
        d->refused = one;
        d->tier_empty = true;
        dec_pages_ask(d);
        return;
    }
    d->tier_empty = d->none_to_come = false;
    d->revoke_until = 0;
    for (uint32_t i = 0; i < p->pages && (i + 1) * sizeof *page <= bytes && d->n_lease < d->lease_cap; i++)
        d->lease[d->n_lease++] = page[i];
}

/* They come to the tier when their writers have said that nothing more will be written. */
bool dec_pages_revoke(struct decode *d)
{
    struct act_addr landing = act_current(act_self_runtime(d->self), d->e->landing);
    bool none = d->none_to_come, late = d->revoke_until && act_now(d->self) >= d->revoke_until;
    if (d->revoking)
        return true;
    if (act_addr_is_nobody(landing) || none || late) {
        d->none_to_come = false;
        d->revoke_until = 0;
        return false;
    }
    if (d->revoke_until)
        return true;
    struct act_msg m = act_msg_make(ACT_TICKETS_REVOKE, landing);
    act_p_tickets_revoke(&m)->pages = (uint32_t)(wanted(d) > d->n_lease ? wanted(d) - d->n_lease : 1);
    d->revoking = act_request(d->self, &m) == 0;
    return d->revoking;
}

void dec_pages_revoked(struct decode *d, const struct act_msg *m)
{
    d->revoking = false;
    d->none_to_come = m->type == ACT_UNDELIVERABLE || !act_p_tickets_revoke((struct act_msg *)m)->pages;
    d->revoke_until = d->none_to_come ? 0 : act_now(d->self) + REVOKE_NS;
}

bool dec_pages_ensure(struct decode *d, struct dec_stream *s)
{
    int tokens = s->seq->len + 1 + d->e->limits.draft, need;
    tokens = tokens < s->seq->params.max_tokens ? tokens : s->seq->params.max_tokens;
    need = blocks_for(d, tokens);
    while (s->n_pages < need && d->n_lease) {
        uint32_t page = d->lease[--d->n_lease];
        mdl_seq_attach(s->seq, s->n_pages, page_bytes(d, page));
        s->pages[s->n_pages++] = page;
    }
    /* Without a page for drafts the sequence goes on without them. */
    s->spec.room = s->n_pages * d->e->layout.block_tokens - s->seq->len - 1;
    s->waits_for_page = s->spec.room < 0;
    return !s->waits_for_page;
}

void dec_pages_end(struct decode *d, struct dec_stream *s)
{
    if (s->state == DEC_RUNNING && s->finish != ACT_FINISH_ERROR && s->seq) {
        act_history_publish(d->self, d->e, &s->recipe, s->ids, s->seq, s->pages, s->n_pages, s->replayed, s->hit);
        if (!s->replayed)
            act_history_snapshot(d->self, d->e, &s->recipe, s->ids, s->seq, s->seq->encoded);
    }
    if (!s->aside)
        dec_pages_return(d, s->pages, s->n_pages);
    s->n_pages = 0;
    free(s->aside);
    s->aside = NULL;
}

/* ---- parking ---- */

static bool park(struct decode *d, struct dec_stream *s)
{
    size_t block = d->e->layout.block_bytes;
    dec_move_drop(d, s, -ENOSPC);
    s->aside = malloc((size_t)s->n_pages * block + 1);
    if (!s->aside)
        return false;
    for (int i = 0; i < s->n_pages; i++) {
        memcpy(s->aside + (size_t)i * block, page_bytes(d, s->pages[i]), block);
        mdl_seq_attach(s->seq, i, NULL);
    }
    dec_pages_return(d, s->pages, s->n_pages);
    s->state = DEC_PARKED;
    d->stats.parked++;
    struct act_msg m = act_msg_make(ACT_PARKED, s->requester);
    m.request = s->request;
    m.attempt = s->attempt;
    act_p_parked(&m)->position = (uint32_t)s->seq->len;
    act_p_parked(&m)->reason = -ENOSPC;
    act_send(d->self, &m);
    return true;
}

bool dec_park_youngest(struct decode *d, const struct dec_stream *keep)
{
    struct dec_stream *young = NULL;
    for (int i = 0; i < d->e->limits.streams; i++) {
        struct dec_stream *s = &d->stream[i];
        bool leaves = s->move && s->move->stopped; /* its pages are free soon anyway */
        if (s->state == DEC_RUNNING && !s->in_round && !leaves && s != keep && (!young || s->order > young->order))
            young = s;
    }
    return young && young->n_pages && park(d, young);
}

/* Those for which it was parked go first: else it would take their page, and be parked for it again and again. */
static bool unpark(struct decode *d, struct dec_stream *s)
{
    size_t block = d->e->layout.block_bytes;
    if (d->n_lease < blocks_to_go_on(d, s) + waiting(d))
        return false;
    for (int i = 0; i < s->n_pages; i++) {
        s->pages[i] = d->lease[--d->n_lease];
        memcpy(page_bytes(d, s->pages[i]), s->aside + (size_t)i * block, block);
        mdl_seq_attach(s->seq, i, page_bytes(d, s->pages[i]));
    }
    free(s->aside);
    s->aside = NULL;
    s->state = DEC_RUNNING;
    d->stats.resumed++;
    struct act_msg m = act_msg_make(ACT_RESUMED, s->requester);
    m.request = s->request;
    m.attempt = s->attempt;
    act_p_resumed(&m)->position = (uint32_t)s->seq->len;
    act_send(d->self, &m);
    return true;
}

void dec_unpark(struct decode *d)
{
    struct dec_stream *old;
    while ((old = oldest_parked(d)) && unpark(d, old))
        ;
}
