/* One-sided writes of this node's actors, and fences: see link.h, "Puts". */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link_impl.h"

int act_link_put(struct act_self *self, struct act_addr link, const struct act_put *put,
                 const struct act_put_range *range, int n)
{
    struct act_msg m;
    size_t bytes = (size_t)n * sizeof *range;
    int r = act_msg_new(ACT_LINK_PUT, link, bytes, &m);
    if (r)
        return r;
    m.request = put->request;
    m.attempt = put->attempt;
    *act_p_link_put(&m) = (struct act_p_link_put){.peer = put->peer,
                                                  .class = put->class,
                                                  .flags = put->with_immediate ? ACT_LINK_WITH_IMMEDIATE : 0,
                                                  .immediate = put->immediate};
    *act_b_link_put(&m) = (struct act_b_link_put){
        .from_window = put->from_window, .to_window = put->to_window, .generation = put->generation};
    memcpy(act_msg_tail(&m, &bytes), range, bytes);
    r = act_request(self, &m);
    if (r)
        act_msg_drop(&m);
    return r;
}

/* ---- ends ----------------------------------------------------------------------------------------- */

static void answer(struct link *l, struct act_promise *promise, int status, uint32_t generation)
{
    struct act_msg m = act_msg_make(ACT_LINK_PUT_DONE, ACT_NOBODY);
    *act_p_link_put_done(&m) = (struct act_p_link_put_done){.status = status, .generation = generation};
    act_reply(l->self, promise, &m);
}

/* Answers the put at `at` if nothing of it is under way or left. Returns whether it did. */
static bool end_if_done(struct link *l, struct link_put **at)
{
    struct link_put *x = *at;
    if (x->done < x->n)
        return false;
    *at = x->next;
    if (!*at)
        l->puts_tail = at;
    answer(l, &x->promise, x->status, x->generation);
    free(x);
    return true;
}

/* Nothing more of it is given to the net. A connection that has ended counts for more than a range that could not be
 * given: what was given before it may still be on its way. */
static void fail(struct link_put *x, int status)
{
    bool ended = status != -EINVAL && status != -ENOMEM;
    x->status = !x->status || ended ? status : x->status;
    x->n = x->given;
}

void link_put_done(struct link *l, uint64_t cookie, int status)
{
    struct link_put **at = &l->puts;
    while (*at && (*at)->cookie != cookie)
        at = &(*at)->next;
    if (!*at)
        return;
    (*at)->done++;
    if (status)
        fail(*at, status == -EINVAL || status == -ENOMEM ? -ECONNRESET : status);
    end_if_done(l, at);
}

void link_end_puts(struct link *l, int index, int status)
{
    for (struct link_put **at = &l->puts, *x; (x = *at);) {
        if (x->index == index && x->given < x->n)
            fail(x, status);
        if (x->index != index || !end_if_done(l, at))
            at = &x->next;
    }
}

static void answer_fence(struct link *l, struct act_promise *promise, uint16_t peer, uint16_t class,
                         uint32_t generation)
{
    struct act_msg m = act_msg_make(ACT_LINK_FENCE, ACT_NOBODY);
    *act_p_link_fence(&m) = (struct act_p_link_fence){.peer = peer, .class = class, .generation = generation};
    act_reply(l->self, promise, &m);
}

void link_end_fences(struct link *l, int index, int class)
{
    for (struct link_fence **at = &l->fences, *x; (x = *at);) {
        if (x->index != index || (class >= 0 && (int)x->class != class)) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        answer_fence(l, &x->promise, x->peer, (uint16_t)x->class, x->generation);
        free(x);
    }
}

void link_drop_puts(struct link *l)
{
    for (struct link_put *x; (x = l->puts);) {
        l->puts = x->next;
        answer(l, &x->promise, -ESHUTDOWN, x->generation);
        free(x);
    }
    for (struct link_fence *f; (f = l->fences);) {
        l->fences = f->next;
        free(f);
    }
}

/* ---- puts ----------------------------------------------------------------------------------------- */

/* Gives the next ranges of a put. 0: all that are left; -EAGAIN: the net takes no more; else why it has failed. */
static int give(struct link *l, struct link_put *x)
{
    const struct tp_peer_info *info = tp_net_peer(l->net, x->index);
    if (!info || !info->class_up[x->class])
        return -ENOTCONN;
    if (x->wanted && x->wanted != info->generation[x->class])
        return -ESTALE;
    x->wanted = x->generation = info->generation[x->class];
    while (x->given < x->n) {
        const struct act_put_range *r = &x->range[x->given];
        struct tp_net_put p = x->put;
        p.from = r->from;
        p.to = r->to;
        p.size = r->size;
        p.with_immediate &= x->given == x->n - 1;
        int e = tp_net_put(l->net, x->index, x->class, &p);
        if (e)
            return e;
        x->given++;
    }
    return 0;
}

void link_give_puts(struct link *l)
{
    uint32_t full[ACT_LINK_PEERS_MAX] = {0};
    for (struct link_put **at = &l->puts, *x; (x = *at);) {
        int r = 0;
        if (x->given < x->n && !(full[x->index] >> x->class & 1))
            r = give(l, x);
        if (r == -EAGAIN)
            full[x->index] |= 1u << x->class;
        else if (r)
            fail(x, r);
        if (!r || r == -EAGAIN || !end_if_done(l, at))
            at = &x->next;
    }
}

void link_take_put(struct link *l, struct act_msg *m)
{
    const struct act_p_link_put *p = act_p_link_put(m);
    const struct act_b_link_put *b = act_b_link_put(m);
    struct act_promise promise = act_promise_of(m);
    size_t bytes;
    const struct act_put_range *range = act_msg_tail(m, &bytes);
    size_t n = bytes / sizeof *range;
    int index = link_index_of(l, p->peer), status = 0;
    struct link_put *x = NULL;
    if (n < 1 || n > ACT_LINK_RANGES_MAX || p->class >= TP_CLASSES)
        status = -EINVAL;
    else if (index < 0)
        status = -ENOTCONN;
    else if (!(x = calloc(1, sizeof *x + n * sizeof *range)))
        status = -ENOMEM;
    if (status) {
        answer(l, &promise, status, 0);
        return;
    }
    x->promise = promise;
    x->cookie = ++l->cookies;
    x->peer = p->peer;
    x->index = index;
    x->class = (enum tp_class)p->class;
    x->wanted = b->generation;
    x->n = (int)n;
    x->put = (struct tp_net_put){.from_window = b->from_window,
                                 .to_window = b->to_window,
                                 .with_immediate = p->flags & ACT_LINK_WITH_IMMEDIATE,
                                 .immediate = p->immediate,
                                 .cookie = x->cookie};
    memcpy(x->range, range, n * sizeof *range);
    *l->puts_tail = x;
    l->puts_tail = &x->next;
}

/* ---- fences --------------------------------------------------------------------------------------- */

void link_take_fence(struct link *l, struct act_msg *m)
{
    const struct act_p_link_fence *f = act_p_link_fence(m);
    int index = link_index_of(l, f->peer);
    const struct tp_peer_info *info = index >= 0 ? tp_net_peer(l->net, index) : NULL;
    bool up = info && f->class < TP_CLASSES && info->class_up[f->class];
    struct act_promise promise = act_promise_of(m);
    /* One that has ended already is fenced; the next connection is somebody else's. */
    if (!up || (f->generation && f->generation != info->generation[f->class])) {
        answer_fence(l, &promise, f->peer, f->class, f->generation);
        return;
    }
    struct link_fence *x = calloc(1, sizeof *x);
    if (!x)
        return; /* the request comes back when the link ends; its sender has a deadline */
    *x = (struct link_fence){.promise = promise,
                             .index = index,
                             .class = (enum tp_class)f->class,
                             .peer = f->peer,
                             .generation = info->generation[f->class]};
    x->next = l->fences;
    l->fences = x;
    tp_net_fence(l->net, index, (enum tp_class)f->class);
}
