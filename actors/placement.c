#include "actors/placement.h"

#include <errno.h>
#include <string.h>

enum {
    TRIES_LEAST = 3, /* attempts that a request has, however long they take */
    TRIES_MAX = 10,  /* and however short: it may be what ends its places */
    SPARED_MAX = 20,
    WAIT_NS = 200000000,
    WAIT_DOUBLES = 4, /* pauses get longer so many times */
    MOVE_PAUSE_NS = 1000000000
};

/* How long a request that had a place is placed again, or waits for a place, before it is given up. */
static const int64_t patience_ns = INT64_C(10000000000);

/* A place that has said nothing for so long is asked. */
static const int64_t check_ns = INT64_C(10000000000);

/* A move of which nothing was heard for so long may be asked for again. */
static const int64_t move_ns = INT64_C(60000000000);

void act_place_init(struct act_place *p, struct act_self *self, struct act_addr router, uint64_t request)
{
    *p = (struct act_place){.self = self, .router = router, .request = request};
}

int act_place_ask(struct act_place *p, int ids, int max_tokens, const struct act_key *chain, int n_chain)
{
    struct act_msg m;
    size_t bytes;
    size_t keys = (size_t)n_chain * sizeof *chain, avoid = (size_t)p->n_avoid * sizeof *p->avoid;
    int r = act_msg_new(ACT_ROUTE, p->router, keys + avoid, &m);
    if (r)
        return r;
    uint8_t *tail = act_msg_tail(&m, &bytes);
    if (n_chain)
        memcpy(tail, chain, keys);
    memcpy(tail + keys, p->avoid, avoid);
    m.request = p->request;
    m.attempt = p->attempt;
    *act_p_route(&m) = (struct act_p_route){.ids = (uint32_t)ids,
                                            .max_tokens = (uint32_t)max_tokens,
                                            .blocks = (uint32_t)n_chain,
                                            .avoid = (uint32_t)p->n_avoid};
    r = act_request(p->self, &m);
    if (r)
        act_msg_drop(&m);
    else
        p->asked = true;
    return r;
}

void act_place_cancel(struct act_place *p, int reason)
{
    if (!p->placed)
        return;
    act_cancel(p->self, p->prefill, p->request, p->attempt, reason);
    act_cancel(p->self, p->decode, p->request, p->attempt, reason);
    if (p->moving)
        act_cancel(p->self, p->to, p->request, p->to_attempt, reason);
}

static int send(struct act_place *p, struct act_msg *m)
{
    m->request = p->request;
    m->attempt = p->attempt;
    int r = act_send(p->self, m);
    if (r)
        act_msg_drop(m);
    return r;
}

static enum act_place_event fail(struct act_place *p, int status)
{
    p->status = status;
    return ACT_PLACE_FAILED;
}

static int64_t patience(const struct act_place *p)
{
    return p->patience ? p->patience : patience_ns;
}

static bool is_avoided(const struct act_place *p, struct act_addr who)
{
    bool is = false;
    for (int i = 0; i < p->n_avoid; i++)
        is |= act_addr_equal(p->avoid[i], who);
    return is;
}

/* Who says that the request cannot go on there is not asked a second time. */
static void avoid(struct act_place *p, struct act_addr who)
{
    if (p->n_avoid < ACT_PLACE_AVOID && !is_avoided(p, who))
        p->avoid[p->n_avoid++] = who;
}

/* The place is lost. Cancels go out before the next prompt, and by the attempt's number they cannot mean that one. What
 * another transfer has brought about does not count among the few attempts that a request has. */
static enum act_place_event again(struct act_place *p, int reason, bool is_blameless)
{
    act_place_cancel(p, reason);
    p->placed = p->computed = p->decoding = p->moving = false;
    p->move_after = 0;
    p->prefill = p->decode = ACT_NOBODY;
    p->reason = reason;
    if (!p->tries && !p->spared)
        p->since = act_now(p->self);
    p->attempt = ++p->last;
    p->replaced++;
    bool spared = p->spared < SPARED_MAX && is_blameless;
    p->spared += spared;
    p->tries += !spared;
    if (p->tries >= TRIES_MAX || (p->tries >= TRIES_LEAST && act_now(p->self) - p->since >= patience(p)))
        return fail(p, -EHOSTDOWN);
    int waits = spared ? p->spared : p->tries;
    if (waits == 1 || reason == -ENOLINK)
        return ACT_PLACE_ASK;
    /* Nodes find each other again one by one: a Prefill may not know the Decode yet that the Router knows. */
    int doubled = spared ? 0 : waits - 2 < WAIT_DOUBLES ? waits - 2 : WAIT_DOUBLES;
    act_timer_after(p->self, &p->wait, (int64_t)WAIT_NS << doubled, ACT_PLACE_TAG);
    return ACT_PLACE_STALE;
}

static enum act_place_event take_routed(struct act_place *p, struct act_msg *m)
{
    const struct act_p_routed *in = act_p_routed(m);
    const struct act_b_routed *b = act_b_routed(m);
    p->asked = false;
    p->retry_ms = in->retry_ms;
    bool may_come = in->status == -EHOSTDOWN || in->status == -ESHUTDOWN; /* a node that is being restarted, perhaps */
    if (may_come && p->replaced && act_now(p->self) - p->since < patience(p)) {
        act_timer_after(p->self, &p->wait, WAIT_NS, ACT_PLACE_TAG);
        return ACT_PLACE_STALE;
    }
    if (in->status)
        return fail(p, in->status);
    if (is_avoided(p, b->prefill) || is_avoided(p, b->decode)) /* there is no other */
        return fail(p, -ENOLINK);
    p->prefill = b->prefill;
    p->decode = b->decode;
    p->placed = true;
    p->heard = act_now(p->self);
    act_timer_after(p->self, &p->check, check_ns, ACT_PLACE_CHECK_TAG);
    return ACT_PLACE_GO;
}

/* Nothing is heard: does it still have the attempt? Its answer, if it has, is to go on. */
void act_place_look(struct act_place *p)
{
    if (!p->placed || act_timer_pending(&p->check))
        return;
    if (act_now(p->self) - p->heard >= check_ns) {
        struct act_msg m = act_msg_make(ACT_PLACE_CHECK, p->computed ? p->decode : p->prefill);
        send(p, &m);
    }
    act_timer_after(p->self, &p->check, check_ns, ACT_PLACE_CHECK_TAG);
}

/* The word of a Prefill whose part is done: it has handed the request over, and may even be gone. */
static bool has_passed_on(const struct act_place *p, const struct act_msg *m)
{
    return p->computed && act_addr_equal(m->src, p->prefill);
}

/* Ends that another place can make good. */
static bool is_loss(int status)
{
    return status == -EHOSTDOWN || status == -ESHUTDOWN || status == -ETIMEDOUT || status == -ECONNRESET ||
           status == -ENOLINK;
}

/* ---- planned moves ---- */

static void ask_to_move(struct act_place *p, struct act_addr to)
{
    if (!p->placed || !p->computed || act_now(p->self) < p->move_after || act_addr_equal(to, p->decode))
        return;
    struct act_msg m = act_msg_make(ACT_MOVE, p->decode);
    p->to = to;
    p->to_attempt = ++p->last;
    *act_p_move(&m) = (struct act_p_move){.to = to, .attempt = p->to_attempt};
    p->moving = send(p, &m) == 0;
    p->move_after = act_now(p->self) + (p->moving ? move_ns : MOVE_PAUSE_NS);
}

/* The place that the sequence has left says where it is; there it goes on when told so. */
static enum act_place_event take_moved(struct act_place *p, struct act_msg *m)
{
    const struct act_p_moved in = *act_p_moved(m);
    struct act_promise promise = act_promise_of(m);
    struct act_msg heard = act_msg_make(ACT_MOVED, ACT_NOBODY);
    bool mine = p->placed && m->attempt == p->attempt;
    *act_p_moved(&heard) = in;
    if (act_reply(p->self, &promise, &heard))
        act_msg_drop(&heard);
    if (!mine && !in.status && in.attempt != p->attempt) /* it went on elsewhere in the meantime */
        act_cancel(p->self, in.to, p->request, (uint16_t)in.attempt, -ECANCELED);
    if (!mine)
        return ACT_PLACE_STALE;
    p->moving = false;
    p->move_after = act_now(p->self) + MOVE_PAUSE_NS;
    if (in.status)
        return ACT_PLACE_STALE;
    p->attempt = (uint16_t)in.attempt;
    p->last = p->last > p->attempt ? p->last : p->attempt;
    p->decode = in.to;
    p->moved++;
    struct act_msg book = act_msg_make(ACT_ROUTE_MOVED, p->router), go = act_msg_make(ACT_MOVE_GO, p->decode);
    act_p_route_moved(&book)->decode = p->decode;
    send(p, &book);
    send(p, &go);
    return ACT_PLACE_MOVED;
}

/* Something works for an attempt that was given up, and its cancel was lost: once more. */
static void end_older(struct act_place *p, struct act_msg *m)
{
    bool works =
        m->type == ACT_PREFILLING || m->type == ACT_PREFILLED || (m->type == ACT_TOKENS && !act_p_tokens(m)->finish);
    if (works && m->attempt < p->attempt)
        act_cancel(p->self, m->src, p->request, m->attempt, -ECANCELED);
}

enum act_place_event act_place_message(struct act_place *p, struct act_msg *m)
{
    if (m->type == ACT_TIMER && act_p_timer(m)->tag == ACT_PLACE_CHECK_TAG) {
        act_place_look(p);
        return ACT_PLACE_STALE;
    }
    if (m->type == ACT_TIMER)
        return act_p_timer(m)->tag != ACT_PLACE_TAG ? ACT_PLACE_NONE : ACT_PLACE_ASK;
    int status;
    enum act_type back = m->type == ACT_UNDELIVERABLE ? act_msg_returned_type(m) : ACT_NONE;
    if (back && back != ACT_ROUTE && back != ACT_PREFILL && back != ACT_MOVE && back != ACT_MOVE_GO &&
        back != ACT_PLACE_CHECK)
        return ACT_PLACE_STALE;
    if (m->request != p->request)
        return ACT_PLACE_NONE;
    if (m->type == ACT_MOVED)
        return take_moved(p, m);
    if (m->attempt != p->attempt) {
        end_older(p, m);
        return ACT_PLACE_STALE;
    }
    p->heard = act_now(p->self);
    switch (m->type) {
    case ACT_ROUTED:
        return p->asked ? take_routed(p, m) : ACT_PLACE_STALE;
    case ACT_ROUTE_LOST:
        if (!p->placed || (p->computed && act_addr_equal(act_p_route_lost(m)->who, p->prefill)))
            return ACT_PLACE_STALE;
        return again(p, act_p_route_lost(m)->reason, false);
    case ACT_ROUTE_MOVE:
        ask_to_move(p, act_p_route_move(m)->decode);
        return ACT_PLACE_STALE;
    case ACT_UNDELIVERABLE:
        if (back == ACT_MOVE || back == ACT_MOVE_GO) {
            p->moving = false;
            p->move_after = act_now(p->self) + MOVE_PAUSE_NS;
            return p->placed && back == ACT_MOVE_GO ? again(p, -EHOSTDOWN, false) : ACT_PLACE_STALE;
        }
        if (back == ACT_PLACE_CHECK && has_passed_on(p, m))
            return ACT_PLACE_STALE;
        p->asked = false;
        return back == ACT_ROUTE ? fail(p, -EHOSTDOWN) : p->placed ? again(p, -EHOSTDOWN, false) : ACT_PLACE_STALE;
    case ACT_FAILED:
        status = act_p_failed(m)->status;
        if (status == -ESRCH) /* to a PLACE_CHECK, which a hand-off may have overtaken */
            return p->placed && !has_passed_on(p, m) ? again(p, -EHOSTDOWN, false) : ACT_PLACE_STALE;
        if (p->decoding && has_passed_on(p, m))
            return ACT_PLACE_STALE;
        if (p->placed && status == -ENOLINK)
            avoid(p, act_addr_equal(m->src, p->prefill) ? p->prefill : p->decode);
        return p->placed && is_loss(status) ? again(p, status, status == -ECONNRESET) : ACT_PLACE_NONE;
    default:
        return ACT_PLACE_NONE;
    }
}

static void tell_done(struct act_place *p, bool all)
{
    struct act_msg m = act_msg_make(ACT_ROUTE_DONE, p->router);
    m.request = p->request;
    m.attempt = p->attempt;
    *act_p_route_done(&m) = (struct act_p_route_done){.prefill = p->prefill, .decode = all ? p->decode : ACT_NOBODY};
    if (act_send(p->self, &m))
        act_msg_drop(&m);
}

void act_place_progress(struct act_place *p, bool tokens)
{
    if (tokens) {
        p->tries = p->spared = p->n_avoid = 0;
        p->decoding = true;
    }
    if (!p->computed) {
        p->computed = true;
        tell_done(p, false);
    }
}

void act_place_end(struct act_place *p)
{
    if (p->placed || p->asked || p->replaced)
        tell_done(p, true);
    if (p->self)
        act_timer_cancel(p->self, &p->check);
    p->placed = p->asked = false;
}

/* ---- the places' side ---- */

void act_place_unknown(struct act_self *self, const struct act_msg *m)
{
    struct act_msg no = act_msg_make(ACT_FAILED, m->src);
    no.request = m->request;
    no.attempt = m->attempt;
    act_p_failed(&no)->status = -ESRCH;
    if (act_send(self, &no))
        act_msg_drop(&no); /* it asks again */
}
