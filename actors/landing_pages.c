/* The pages of a ticket: what this process has of the prompt already, what is fetched for the rest, and what is given
 * back when running sequences need it more. Part of the Landing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/landing_impl.h"
#include "actors/tier_device.h"

enum {
    RETRY_NS = 5000000,
    SHORT_NS = 50000000 /* so long after a Decode lacked pages no ticket gets any */
};

static void later(struct landing *l, struct land_slot *s)
{
    s->later = true;
    if (!act_timer_pending(&l->retry))
        act_timer_after(l->self, &l->retry, RETRY_NS, LAND_TAG_RETRY);
}

/* While it waits it holds nothing. */
static void let_go(struct landing *l, struct land_slot *s)
{
    land_return_pages(l, s->pages, s->n_pages);
    free(s->pages);
    s->pages = NULL;
    s->n_pages = s->held = 0;
}

static void ask_pages(struct landing *l, struct land_slot *s)
{
    struct act_msg m = act_msg_make(ACT_PAGES_ASK, l->e->tier);
    m.request = s->request;
    m.attempt = s->attempt;
    act_p_pages_ask(&m)->pages = (uint32_t)(act_blocks(l->e, land_most_tokens(l, s)) - s->held);
    s->asked_pages = act_request(l->self, &m) == 0;
    if (!s->asked_pages)
        land_step(l, s, ACT_TICKET_ON_REFUSE, -EAGAIN);
}

/* Blocks of the prompt that may come from the own history: whole ones, with a token left that is handed over. A
 * sequence that moves has rows of its own, which need not be clean. */
static int useful_history(const struct landing *l, const struct land_slot *s)
{
    const struct act_recipe *r = &s->recipe;
    int n = r->n_chain - 1, most = (r->n_ids - 1) / l->e->layout.block_tokens;
    n = n < most ? n : most;
    if (land_is_moved(s))
        return 0;
    return r->body->history && (int)r->body->history - 1 < n ? (int)r->body->history - 1 : n;
}

/* False: there is nothing to look for, or no way to. */
static bool ask_held(struct landing *l, struct land_slot *s)
{
    int n = useful_history(l, s);
    size_t bytes, keys = ((size_t)n + 1) * sizeof(struct act_key);
    struct act_msg m;
    if (n < 1 || act_msg_new(ACT_KV_LOOKUP, l->e->tier, keys, &m))
        return false;
    memcpy(act_msg_tail(&m, &bytes), s->recipe.chain, keys);
    m.request = s->request;
    m.attempt = s->attempt;
    *act_p_kv_lookup(&m) =
        (struct act_p_kv_lookup){.blocks = (uint32_t)n, .flags = ACT_LOOKUP_CLEAN_ONLY | ACT_LOOKUP_HERE_ONLY};
    s->asked_held = act_request(l->self, &m) == 0;
    if (!s->asked_held)
        act_msg_drop(&m);
    return s->asked_held;
}

void land_pages_ask(struct landing *l, struct land_slot *s)
{
    s->later = false;
    if (act_now(l->self) < l->grants_after)
        later(l, s);
    else if (!ask_held(l, s))
        ask_pages(l, s);
}

void land_pages_again(struct landing *l)
{
    for (int i = 0; i < l->n_slots; i++)
        if (l->slot[i].ticket.state == ACT_TICKET_GRANTING && l->slot[i].later)
            land_pages_ask(l, &l->slot[i]);
}

/* Of KV_FOUND or PAGES_GIVEN; the pages are in the order of the blocks. Returns their number. */
static int pages_of(struct act_msg *m, uint32_t *out)
{
    size_t bytes;
    const void *tail = act_msg_tail(m, &bytes);
    bool found = m->type == ACT_KV_FOUND;
    const struct act_tier_block *b = tail;
    const uint32_t *page = tail;
    size_t n = found ? act_p_kv_found(m)->blocks : act_p_pages_given(m)->pages,
           room = bytes / (found ? sizeof *b : sizeof *page);
    n = n < room ? n : room;
    for (size_t i = 0; i < n; i++)
        out[i] = found ? b[i].page : page[i];
    return (int)n;
}

static int make_sequence(struct landing *l, struct land_slot *s)
{
    const struct mdl_seq_params params = act_seq_params(l->e, s->recipe.n_ids + s->max_new);
    int r = mdl_seq_new(l->e->m->cfg, &params, &s->seq, &l->err);
    for (int b = 0; !r && b < s->n_pages; b++)
        mdl_seq_attach(s->seq, b, kv_device_bytes(l->e->device, (int)s->pages[b]));
    return r;
}

static void take_given(struct landing *l, struct land_slot *s, int status)
{
    s->asked_pages = false;
    /* An answer to an older question of this attempt may be of another number. */
    if (status || s->n_pages != act_blocks(l->e, land_most_tokens(l, s))) { /* asks again until the ticket's deadline */
        let_go(l, s);
        later(l, s);
        return;
    }
    s->link = l->link[s->writer.peer];
    if (s->writer.peer && !s->link) { /* it may have no connection for its rows yet */
        land_step(l, s, ACT_TICKET_ON_REFUSE, -ENOTCONN);
        return;
    }
    land_step(l, s, make_sequence(l, s) ? ACT_TICKET_ON_REFUSE : ACT_TICKET_ON_GRANT, -EAGAIN);
}

void land_pages_take(struct landing *l, struct act_msg *m)
{
    struct land_slot *s = land_find_slot(l, m->request, m->attempt);
    bool found = m->type == ACT_KV_FOUND,
         mine = s && s->ticket.state == ACT_TICKET_GRANTING && (found ? s->asked_held : s->asked_pages);
    size_t bytes;
    act_msg_tail(m, &bytes);
    uint32_t *page = malloc(((size_t)(mine ? s->n_pages : 0) + bytes / sizeof *page + 1) * sizeof *page);
    if (!page) { /* these stay out of use */
        if (mine)
            land_step(l, s, ACT_TICKET_ON_REFUSE, -EAGAIN);
        return;
    }
    int before = mine ? s->n_pages : 0, n = pages_of(m, page + before);
    if (!mine) {
        land_return_pages(l, page, n);
        free(page);
        return;
    }
    if (before)
        memcpy(page, s->pages, (size_t)before * sizeof *page);
    free(s->pages);
    s->pages = page;
    s->n_pages = before + n;
    if (!found) {
        take_given(l, s, act_p_pages_given(m)->status);
        return;
    }
    s->asked_held = false;
    s->held = n;
    ask_pages(l, s);
}

/* ---- running sequences lack pages ---- */

/* A prompt whose ticket was taken back asks again as the youngest, so after a few times (ACT_RECIPE_STAYS) it is left
 * alone. */
static bool is_unwritten(const struct land_slot *s)
{
    return s->ticket.state == ACT_TICKET_OPEN && !(s->recipe.body->flags & ACT_RECIPE_STAYS) && !s->ticket.seen &&
           !s->revoked && s->n_pages > s->held;
}

static struct land_slot *youngest_unwritten(struct landing *l)
{
    struct land_slot *young = NULL;
    for (int i = 0; i < l->n_slots; i++)
        if (is_unwritten(&l->slot[i]) && (!young || l->slot[i].order > young->order))
            young = &l->slot[i];
    return young;
}

static uint32_t pages_to_come(const struct landing *l)
{
    uint32_t n = 0;
    for (int i = 0; i < l->n_slots; i++)
        if (l->slot[i].ticket.state == ACT_TICKET_QUARANTINE && l->slot[i].revoked)
            n += (uint32_t)(l->slot[i].n_pages - l->slot[i].held);
    return n;
}

void land_revoke(struct landing *l, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    struct act_msg r = act_msg_make(ACT_TICKETS_REVOKE, ACT_NOBODY);
    uint32_t want = act_p_tickets_revoke(m)->pages;
    struct land_slot *s;
    l->grants_after = act_now(l->self) + SHORT_NS;
    while (pages_to_come(l) < want && (s = youngest_unwritten(l))) {
        s->revoked = true;
        land_step(l, s, ACT_TICKET_ON_GIVE_UP, -EAGAIN);
    }
    act_p_tickets_revoke(&r)->pages = pages_to_come(l);
    if (act_reply(l->self, &p, &r))
        act_msg_drop(&r);
}
