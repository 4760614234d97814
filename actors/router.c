#include "actors/router.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link.h"
#include "actors/runtime/log.h"

enum { MEMBERS_FIRST = 64, BUCKETS = 1 << 14, PREFIXES = 1 << 14, TAG_SILENCE = 1, RETRY_MS = 1000 };

struct member {
    struct act_addr addr; /* nobody: the place in the table is free */
    unsigned role;
    bool draining;
    uint32_t experts; /* enum act_experts_state */
    int64_t heard;    /* ns */
    uint32_t sequence;
    uint64_t own, others; /* prompt tokens (Prefill), sequences (Decode), placed by this Router and by all others */
    uint64_t own_pages;   /* Decode: of requests placed since its last report */
    uint32_t pages_free, pages_total;
    uint32_t token_ns, read_ns; /* Prefill: of a token; 0: not known */
};

/* A request at its place. */
struct placed {
    struct placed *next;
    uint64_t request;
    uint16_t attempt;
    struct act_addr requester;
    int prefill, decode; /* members; -1: has no part in it any more */
    uint32_t tokens, pages;
};

/* Where a block of history was computed. Direct-mapped: the newest replaces what was there. */
struct prefix {
    struct act_key key;
    uint64_t where; /* bit i: member i, which is a Prefill of the first 64 */
};

struct router {
    struct act_self *self;
    const struct act_router_arg *arg;
    struct member *member; /* [members], places that members come to and leave; grows */
    int *list;             /* [members] scratch: those to choose from */
    int members;
    struct placed *bucket[BUCKETS];
    struct prefix *prefix; /* [PREFIXES], with arg->prefix */
    struct act_timer silence;
    const char *lacking;
    uint16_t keeper[CFG_NODES_MAX + 1]; /* incarnations of nodes that keep blocks for all, by number; 0: not there */
    int keepers;
    uint32_t told; /* LOADs to members that drain */
};

/* ---- members ---- */

static int find_member(const struct router *r, struct act_addr who)
{
    for (int i = 0; i < r->members; i++)
        if (!act_addr_is_nobody(r->member[i].addr) && act_addr_equal(r->member[i].addr, who))
            return i;
    return -1;
}

static void check_lacking(struct router *r)
{
    unsigned there = 0;
    for (int i = 0; i < r->members; i++)
        if (!act_addr_is_nobody(r->member[i].addr))
            there |= r->member[i].role;
    const char *now = !(there & CFG_ROLE_PREFILL) ? "prefill" : !(there & CFG_ROLE_DECODE) ? "decode" : NULL;
    if (now != r->lacking && r->arg->lacking)
        r->arg->lacking(r->arg->ctx, now);
    r->lacking = now;
}

static bool grow(struct router *r)
{
    int n = r->members ? 2 * r->members : MEMBERS_FIRST;
    struct member *member = realloc(r->member, (size_t)n * sizeof *member);
    r->member = member ? member : r->member;
    int *list = member ? realloc(r->list, (size_t)n * sizeof *list) : NULL;
    r->list = list ? list : r->list;
    if (!list)
        return false;
    memset(r->member + r->members, 0, (size_t)(n - r->members) * sizeof *member);
    r->members = n;
    return true;
}

static int add_member(struct router *r, struct act_addr who, unsigned role)
{
    int i = 0;
    while (i < r->members && !act_addr_is_nobody(r->member[i].addr))
        i++;
    if (i == r->members && !grow(r))
        return -1;
    r->member[i] = (struct member){.addr = who, .role = role, .heard = act_now(r->self)};
    act_monitor(r->self, who, (uint32_t)i); /* of another process: the transport and silence tell */
    return i;
}

/* ---- books ---- */

static struct placed **find_placed(struct router *r, uint64_t request)
{
    struct placed **at = &r->bucket[(request ^ request >> 32) % BUCKETS];
    while (*at && (*at)->request != request)
        at = &(*at)->next;
    return at;
}

static void leave_prefill(struct router *r, struct placed *p)
{
    if (p->prefill >= 0)
        r->member[p->prefill].own -= p->tokens;
    p->prefill = -1;
}

static void forget(struct router *r, struct placed **at)
{
    struct placed *p = *at;
    leave_prefill(r, p);
    if (p->decode >= 0)
        r->member[p->decode].own--;
    if (r->arg->requests)
        --*r->arg->requests;
    *at = p->next;
    free(p);
}

/* Everybody who has a part in it at this member loses the place. */
static void lose(struct router *r, int i, int reason)
{
    struct member *gone = &r->member[i];
    for (int b = 0; b < BUCKETS; b++)
        for (struct placed *p = r->bucket[b]; p; p = p->next) {
            if (p->prefill != i && p->decode != i)
                continue;
            struct act_msg m = act_msg_make(ACT_ROUTE_LOST, p->requester);
            m.request = p->request;
            m.attempt = p->attempt;
            *act_p_route_lost(&m) =
                (struct act_p_route_lost){.who = gone->addr, .reason = reason ? reason : -EHOSTDOWN};
            if (p->prefill == i)
                leave_prefill(r, p);
            if (p->decode == i)
                p->decode = -1;
            if (act_send(r->self, &m))
                act_msg_drop(&m);
        }
    for (int k = 0; r->prefix && i < 64 && k < PREFIXES; k++)
        r->prefix[k].where &= ~(UINT64_C(1) << i);
    *gone = (struct member){0};
}

/* ---- choice ---- */

struct want {
    uint32_t tokens, pages;
    const struct act_key *chain; /* behind each full block, the first one first */
    int blocks;
    int last;                     /* a member that just failed this request, or had it; -1: none */
    const struct act_addr *avoid; /* others that have failed it */
    int n_avoid;
    bool running; /* it has what it needs where it is */
};

static bool is_avoided(const struct router *r, int i, const struct want *w)
{
    bool is = i == w->last;
    for (int k = 0; k < w->n_avoid; k++)
        is |= act_addr_equal(r->member[i].addr, w->avoid[k]);
    return is;
}

static struct prefix *prefix_of(const struct router *r, const struct act_key *key)
{
    uint32_t hash;
    memcpy(&hash, key->byte, sizeof hash);
    return &r->prefix[hash % PREFIXES];
}

static uint64_t known_tokens(const struct router *r, int i, const struct want *w)
{
    int known = 0;
    for (int b = 0; r->prefix && i < 64 && b < w->blocks; b++) {
        const struct prefix *p = prefix_of(r, &w->chain[b]);
        if (p->where >> i & 1 && !memcmp(&p->key, &w->chain[b], sizeof p->key))
            known = b + 1;
    }
    uint64_t tokens = (uint64_t)known * (uint64_t)r->arg->block_tokens;
    return tokens < w->tokens ? tokens : w->tokens;
}

/* What is known of costs where a member has not reported its own. */
struct costs {
    double token_ns, read_ns;
    uint64_t most_known; /* tokens of this prompt, at any member */
};

static struct costs known_costs(const struct router *r, const int *list, int n, const struct want *w)
{
    struct costs c = {.most_known = 0};
    int tokens = 0, reads = 0;
    for (int k = 0; k < n; k++) {
        const struct member *m = &r->member[list[k]];
        uint64_t known = known_tokens(r, list[k], w);
        c.most_known = known > c.most_known ? known : c.most_known;
        c.token_ns += m->token_ns;
        c.read_ns += m->read_ns;
        tokens += m->token_ns > 0;
        reads += m->read_ns > 0;
    }
    c.token_ns = tokens ? c.token_ns / tokens : 1;
    c.read_ns = reads ? c.read_ns / reads : 0; /* nothing was read yet: the first reads will tell */
    return c;
}

/* Until the prompt would be computed there, ns. */
static double time_at(const struct router *r, int i, const struct costs *c, const struct want *w)
{
    const struct member *m = &r->member[i];
    double token = m->token_ns ? m->token_ns : c->token_ns, read = m->read_ns ? m->read_ns : c->read_ns;
    uint64_t known = known_tokens(r, i, w), elsewhere = 0;
    if (r->arg->common || r->keepers)
        elsewhere = c->most_known - known;
    double queue = (double)(m->own + m->others) * token;
    return queue + (double)(w->tokens - known - elsewhere) * token + (double)elsewhere * (read < token ? read : token);
}

/* Of equals any, since Routers of several gateways see the same. */
static int least_time(struct router *r, const int *list, int n, const struct want *w)
{
    struct costs c = known_costs(r, list, n, w);
    int from = (int)(act_random(r->self) % (uint64_t)n), best = -1;
    double least = 0;
    for (int k = 0; k < n; k++) {
        int i = list[(from + k) % n];
        double time = time_at(r, i, &c, w);
        if (best < 0 || time < least) {
            best = i;
            least = time;
        }
    }
    return best;
}

/* Whether member a is the better one. */
static bool is_better(const struct router *r, int a, int b, const struct want *w)
{
    const struct member *x = &r->member[a], *y = &r->member[b];
    uint64_t load_x = x->own + x->others, load_y = y->own + y->others;
    if (x->role == CFG_ROLE_PREFILL)
        return load_x + w->tokens - known_tokens(r, a, w) < load_y + w->tokens - known_tokens(r, b, w);
    int64_t room_x = (int64_t)x->pages_free - (int64_t)x->own_pages,
            room_y = (int64_t)y->pages_free - (int64_t)y->own_pages;
    bool fits_x = !x->pages_total || room_x >= w->pages, fits_y = !y->pages_total || room_y >= w->pages;
    if (fits_x != fits_y)
        return fits_x;
    return load_x != load_y ? load_x < load_y : room_x > room_y;
}

/* How much better another place is: this one has failed the request, or has no experts. Where they are doubtful, only
 * what is new there shows whether they are back. */
static int shortcomings(const struct router *r, int i, const struct want *w)
{
    uint32_t experts = r->member[i].experts;
    return 2 * (experts == ACT_EXPERTS_MISSING || (w->running && experts)) + is_avoided(r, i, w);
}

/* The number of a member, or the reason why there is none. One with shortcomings only where there is no other: rather
 * the one that failed than one without experts, and the last one rather not. */
static int choose(struct router *r, unsigned role, const struct want *w)
{
    int *list = r->list, n = 0, worse = -1;
    bool draining = false;
    for (int i = 0; i < r->members; i++) {
        const struct member *m = &r->member[i];
        if (act_addr_is_nobody(m->addr) || m->role != role)
            continue;
        draining |= m->draining;
        if (m->draining)
            continue;
        int less = shortcomings(r, i, w), least = worse < 0 ? INT_MAX : shortcomings(r, worse, w);
        if (!less)
            list[n++] = i;
        else if (less < least || (less == least && worse == w->last))
            worse = i;
    }
    if (!n)
        return worse >= 0 && !w->running ? worse : draining ? -ESHUTDOWN : -EHOSTDOWN;
    if (r->arg->prefix && r->arg->cost && role == CFG_ROLE_PREFILL)
        return least_time(r, list, n, w);
    if (r->arg->prefix && role == CFG_ROLE_PREFILL) {
        int best = list[0];
        for (int i = 1; i < n; i++)
            if (is_better(r, list[i], best, w))
                best = list[i];
        return best;
    }
    if (n == 1)
        return list[0];
    int first = (int)(act_random(r->self) % (uint64_t)n);
    int second = (int)(act_random(r->self) % (uint64_t)(n - 1));
    second += second >= first;
    return is_better(r, list[second], list[first], w) ? list[second] : list[first];
}

static void learn(struct router *r, int i, const struct want *w)
{
    for (int b = 0; r->prefix && i < 64 && b < w->blocks; b++) {
        struct prefix *p = prefix_of(r, &w->chain[b]);
        if (memcmp(&p->key, &w->chain[b], sizeof p->key))
            *p = (struct prefix){.key = w->chain[b]};
        p->where |= UINT64_C(1) << i;
    }
}

/* ---- messages ---- */

static void answer(struct router *r, struct act_promise *promise, int status, int prefill, int decode)
{
    struct act_msg a;
    if (act_msg_new(ACT_ROUTED, ACT_NOBODY, 0, &a))
        return; /* without an answer the question comes back to its sender */
    *act_p_routed(&a) = (struct act_p_routed){.status = status, .retry_ms = status ? RETRY_MS : 0};
    if (!status)
        *act_b_routed(&a) = (struct act_b_routed){.prefill = r->member[prefill].addr, .decode = r->member[decode].addr};
    if (act_reply(r->self, promise, &a))
        act_msg_drop(&a);
}

static void take_route(struct router *r, struct act_msg *m)
{
    struct act_promise promise = act_promise_of(m);
    const struct act_p_route *in = act_p_route(m);
    size_t bytes;
    const struct act_key *chain = act_msg_tail(m, &bytes);
    size_t avoided = in->avoid * sizeof(struct act_addr);
    int n_chain = (int)((bytes - avoided) / sizeof *chain), per = r->arg->block_tokens;
    struct want w = {.tokens = in->ids,
                     .pages = (uint32_t)(((uint64_t)in->ids + in->max_tokens + (uint64_t)per - 1) / (uint64_t)per),
                     .chain = n_chain > 1 ? chain + 1 : NULL, /* behind the root */
                     .blocks = n_chain > 1 ? n_chain - 1 : 0,
                     .avoid = (const struct act_addr *)(const void *)(chain + n_chain),
                     .n_avoid = (int)in->avoid};
    struct placed **at = find_placed(r, m->request), *p = *at;
    int last_prefill = -1, last_decode = -1;
    if (p) { /* an older attempt: where it failed, another is better */
        last_prefill = p->prefill;
        last_decode = p->decode;
        forget(r, at);
    }
    w.last = last_prefill;
    int prefill = choose(r, CFG_ROLE_PREFILL, &w);
    w.last = last_decode;
    int decode = choose(r, CFG_ROLE_DECODE, &w);
    int status = prefill < 0 ? prefill : decode < 0 ? decode : 0;
    p = status ? NULL : malloc(sizeof *p);
    if (!status && !p)
        status = -EAGAIN;
    if (p) {
        *p = (struct placed){.request = m->request,
                             .attempt = m->attempt,
                             .requester = m->src,
                             .prefill = prefill,
                             .decode = decode,
                             .tokens = w.tokens,
                             .pages = w.pages};
        at = find_placed(r, m->request);
        p->next = *at;
        *at = p;
        if (r->arg->requests)
            ++*r->arg->requests;
        r->member[prefill].own += w.tokens;
        r->member[decode].own++;
        r->member[decode].own_pages += w.pages;
        learn(r, prefill, &w);
    }
    answer(r, &promise, status, prefill, decode);
}

static void take_done(struct router *r, struct act_msg *m)
{
    struct placed **at = find_placed(r, m->request);
    const struct act_p_route_done *in = act_p_route_done(m);
    if (!*at || m->attempt < (*at)->attempt)
        return;
    if (!act_addr_is_nobody(in->prefill) && act_addr_is_nobody(in->decode))
        leave_prefill(r, *at);
    else
        forget(r, at);
}

/* Sequences at a Decode that is being drained had better run elsewhere; where there is no other, they end there. Those
 * that stay because of a full place are asked again with the next report. */
static void move_away(struct router *r, int i)
{
    for (int b = 0; b < BUCKETS; b++)
        for (struct placed *p = r->bucket[b]; p; p = p->next) {
            if (p->decode != i || p->prefill >= 0)
                continue;
            const struct want w = {.tokens = p->tokens, .pages = p->pages, .last = i, .running = true};
            int to = choose(r, CFG_ROLE_DECODE, &w);
            if (to < 0 || to == i)
                return;
            struct act_msg m = act_msg_make(ACT_ROUTE_MOVE, p->requester);
            m.request = p->request;
            m.attempt = p->attempt;
            act_p_route_move(&m)->decode = r->member[to].addr;
            if (act_send(r->self, &m))
                act_msg_drop(&m);
        }
}

static void take_moved(struct router *r, struct act_msg *m)
{
    struct placed *p = *find_placed(r, m->request);
    struct act_addr to = act_p_route_moved(m)->decode;
    if (!p || m->attempt <= p->attempt)
        return;
    if (p->decode >= 0)
        r->member[p->decode].own--;
    p->attempt = m->attempt;
    p->decode = find_member(r, to);
    if (p->decode >= 0) {
        r->member[p->decode].own++;
        r->member[p->decode].own_pages += p->pages;
        return;
    }
    struct act_msg lost = act_msg_make(ACT_ROUTE_LOST, p->requester); /* it ended in the meantime */
    lost.request = p->request;
    lost.attempt = p->attempt;
    *act_p_route_lost(&lost) = (struct act_p_route_lost){.who = to, .reason = -EHOSTDOWN};
    if (act_send(r->self, &lost))
        act_msg_drop(&lost);
}

/* A node's own actors are members from the start or not at all: the one that finishes prompts on a decode node
 * (server_landing.c) reports too, and is no place for prompts. One of another node that was lost as silent is back. */
static bool may_join(const struct router *r, const struct act_p_load *in)
{
    bool stranger = act_addr_is_nobody(r->arg->link) || in->who.peer;
    return stranger && (in->role == CFG_ROLE_PREFILL || in->role == CFG_ROLE_DECODE);
}

static void take_load(struct router *r, struct act_msg *m)
{
    const struct act_p_load *in = act_p_load(m);
    const struct act_b_load *b = act_b_load(m);
    int i = find_member(r, in->who);
    if (i < 0 && may_join(r, in)) {
        i = add_member(r, in->who, in->role);
        check_lacking(r);
    }
    struct member *who = i < 0 ? NULL : &r->member[i];
    if (!who || who->role != in->role || (who->sequence && (int32_t)(in->sequence - who->sequence) <= 0))
        return;
    uint64_t all = who->role == CFG_ROLE_PREFILL ? b->tokens_outstanding : (uint64_t)b->running + b->waiting;
    who->sequence = in->sequence;
    who->heard = act_now(r->self);
    if (b->draining && !who->draining)
        act_log_event(r->arg->log, ACT_LOG_INFO, "router", 0, "part_draining", "part=%s peer=%d",
                      who->role == CFG_ROLE_PREFILL ? "prefill" : "decode", (int)who->addr.peer);
    who->draining = b->draining;
    if (!who->experts != !b->experts)
        act_log_event(r->arg->log, ACT_LOG_INFO, "router", 0, b->experts ? "part_without_experts" : "part_has_experts",
                      "part=%s peer=%d", who->role == CFG_ROLE_PREFILL ? "prefill" : "decode", (int)who->addr.peer);
    who->experts = b->experts;
    who->others = all > who->own ? all - who->own : 0;
    who->own_pages = 0;
    who->pages_free = b->pages_free;
    who->pages_total = b->pages_total;
    who->token_ns = b->token_ns;
    who->read_ns = b->read_ns;
    if (who->draining && who->role == CFG_ROLE_DECODE) {
        move_away(r, i);
        /* It waits for what is to come to it, of which it knows nothing before a prompt's turn comes. */
        const struct act_b_load placed = {.waiting = (uint32_t)who->own};
        act_load_report(r->self, who->addr, CFG_ROLE_GATEWAY, &r->told, &placed);
    }
}

/* ---- other nodes ---- */

static unsigned role_of(uint32_t kind)
{
    return kind == ACT_NODE_PREFILL ? CFG_ROLE_PREFILL : kind == ACT_NODE_DECODE ? CFG_ROLE_DECODE : 0;
}

static void lose_members(struct router *r, uint16_t peer, const struct act_node_actor *keep, uint32_t n, int reason)
{
    for (int i = 0; i < r->members; i++) {
        const struct member *m = &r->member[i];
        bool kept = false;
        if (act_addr_is_nobody(m->addr) || m->addr.peer != peer)
            continue;
        for (uint32_t k = 0; k < n && !kept; k++)
            kept = act_addr_equal(keep[k].addr, m->addr);
        if (!kept)
            lose(r, i, reason);
    }
}

static void want_load(struct router *r, struct act_addr who)
{
    struct act_msg want = act_msg_make(ACT_LOAD_WANTED, who);
    if (act_send(r->self, &want))
        act_msg_drop(&want);
}

/* peer 0: the node keeps nothing, or has gone. */
static void set_keeper(struct router *r, uint32_t node, uint16_t peer)
{
    if (node > CFG_NODES_MAX)
        return;
    r->keepers += (peer != 0) - (r->keeper[node] != 0);
    r->keeper[node] = peer;
}

/* What the node has now, in place of what it had before. */
static void take_node(struct router *r, struct act_msg *m)
{
    const struct act_p_node_up *in = act_p_node_up(m);
    size_t bytes;
    const struct act_node_actor *a = act_msg_tail(m, &bytes);
    uint32_t n = in->actors < bytes / sizeof *a ? in->actors : (uint32_t)(bytes / sizeof *a);
    uint16_t keeper = 0;
    for (uint32_t k = 0; k < n; k++)
        keeper = a[k].kind == ACT_NODE_KV ? (uint16_t)in->peer : keeper;
    set_keeper(r, in->node, keeper);
    lose_members(r, in->peer, a, n, -EHOSTDOWN);
    for (uint32_t k = 0; k < n; k++) {
        if (!role_of(a[k].kind) || find_member(r, a[k].addr) >= 0 || add_member(r, a[k].addr, role_of(a[k].kind)) < 0)
            continue;
        want_load(r, a[k].addr);
        if (!act_addr_is_nobody(r->arg->link)) {
            struct act_msg watch = act_msg_make(ACT_LINK_WATCH, r->arg->link);
            act_p_link_watch(&watch)->who = a[k].addr;
            if (act_send(r->self, &watch))
                act_msg_drop(&watch);
        }
    }
    check_lacking(r);
}

static void take_node_down(struct router *r, struct act_msg *m)
{
    const struct act_p_node_down *in = act_p_node_down(m);
    if (in->node <= CFG_NODES_MAX && r->keeper[in->node] == in->peer)
        set_keeper(r, in->node, 0);
    lose_members(r, in->peer, NULL, 0, -EHOSTDOWN);
    check_lacking(r);
}

/* A member ended; one that was started again in the same place is used from now on. */
static void take_down(struct router *r, struct act_msg *m)
{
    int i = find_member(r, act_p_down(m)->who), reason = act_p_down(m)->reason;
    if (i < 0 || reason == -ESHUTDOWN)
        return;
    unsigned role = r->member[i].role;
    struct act_addr now = act_p_down(m)->who.peer ? ACT_NOBODY /* its node will tell */
                                                  : act_current(act_self_runtime(r->self), act_p_down(m)->who);
    bool left = r->member[i].draining; /* as it was asked to */
    act_log_event(r->arg->log, left ? ACT_LOG_INFO : ACT_LOG_ERROR, "router", 0, left ? "part_left" : "part_ended",
                  "part=%s reason=%s restarted=%d", role == CFG_ROLE_PREFILL ? "prefill" : "decode",
                  act_reason_name(reason), !act_addr_is_nobody(now));
    lose(r, i, reason);
    if (!act_addr_is_nobody(now) && find_member(r, now) < 0)
        add_member(r, now, role);
    check_lacking(r);
}

/* One that came back from a full connection has taken this Router off its list: it is asked again before it counts as
 * silent. One that stands still finds the question when it goes on. */
static void look_for_silence(struct router *r)
{
    int64_t now = act_now(r->self);
    for (int i = 0; i < r->members; i++) {
        struct member *m = &r->member[i];
        if (act_addr_is_nobody(m->addr) || !m->addr.peer || now - m->heard < r->arg->silent_ns / 2)
            continue;
        if (now - m->heard < r->arg->silent_ns) {
            want_load(r, m->addr);
            continue;
        }
        act_log_event(r->arg->log, ACT_LOG_ERROR, "router", 0, "part_silent", "part=%s peer=%d",
                      m->role == CFG_ROLE_PREFILL ? "prefill" : "decode", (int)m->addr.peer);
        lose(r, i, -ETIMEDOUT);
        check_lacking(r);
    }
    act_timer_after(r->self, &r->silence, r->arg->silent_ns / 4, TAG_SILENCE);
}

static int router_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct router *r = state;
    (void)self;
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_ROUTE:
            take_route(r, &m[i]);
            break;
        case ACT_ROUTE_DONE:
            take_done(r, &m[i]);
            break;
        case ACT_ROUTE_MOVED:
            take_moved(r, &m[i]);
            break;
        case ACT_LOAD:
            take_load(r, &m[i]);
            break;
        case ACT_DOWN:
            take_down(r, &m[i]);
            break;
        case ACT_NODE_UP:
            take_node(r, &m[i]);
            break;
        case ACT_NODE_DOWN:
            take_node_down(r, &m[i]);
            break;
        case ACT_TIMER:
            look_for_silence(r);
            break;
        default:
            break;
        }
    }
    return 0;
}

static int router_start(struct act_self *self, void *state, const void *arg)
{
    struct router *r = state;
    r->self = self;
    r->arg = arg;
    if (r->arg->requests)
        *r->arg->requests = 0;
    r->prefix = r->arg->prefix ? calloc(PREFIXES, sizeof *r->prefix) : NULL;
    if (r->arg->prefix && !r->prefix)
        return -ENOMEM;
    const struct act_engine *e = r->arg->engine;
    for (int i = 0; e && i < e->n_prefill; i++)
        add_member(r, e->prefill[i], CFG_ROLE_PREFILL);
    for (int i = 0; e && i < e->n_decode; i++)
        add_member(r, e->decode[i], CFG_ROLE_DECODE);
    check_lacking(r);
    if (!act_addr_is_nobody(r->arg->link)) {
        struct act_msg watch = act_msg_make(ACT_NODES_WATCH, r->arg->link);
        if (act_send(self, &watch))
            act_msg_drop(&watch);
    }
    if (r->arg->silent_ns > 0)
        act_timer_after(self, &r->silence, r->arg->silent_ns / 4, TAG_SILENCE);
    return 0;
}

static void router_stop(struct act_self *self, void *state, int reason)
{
    struct router *r = state;
    (void)self;
    (void)reason;
    for (int b = 0; b < BUCKETS; b++)
        while (r->bucket[b]) {
            struct placed *p = r->bucket[b];
            r->bucket[b] = p->next;
            free(p);
        }
    free(r->prefix);
    free(r->member);
    free(r->list);
}

const struct act_behaviour act_router_behaviour = {
    .name = "router",
    .state_size = sizeof(struct router),
    .start = router_start,
    .receive = router_receive,
    .stop = router_stop,
};

/* ---- the members' side ---- */

void act_routers_message(struct act_routers *r, struct act_msg *m)
{
    int i = 0;
    while (i < r->n && !act_addr_equal(r->addr[i], m->src))
        i++;
    if (m->type == ACT_LOAD_WANTED && i == r->n && r->n < ACT_ROUTERS_MAX) {
        r->placed[r->n] = 0;
        r->addr[r->n++] = m->src;
    } else if (m->type == ACT_LOAD && i < r->n) {
        r->placed[i] = act_b_load(m)->waiting;
    } else if (m->type == ACT_UNDELIVERABLE && i < r->n) {
        r->addr[i] = r->addr[--r->n];
        r->placed[i] = r->placed[r->n];
    }
}

uint64_t act_routers_placed(const struct act_routers *r)
{
    uint64_t sum = 0;
    for (int i = 0; i < r->n; i++)
        sum += r->placed[i];
    return sum;
}

void act_load_report(struct act_self *self, struct act_addr router, unsigned role, uint32_t *sequence,
                     const struct act_b_load *load)
{
    struct act_msg m;
    if (act_addr_is_nobody(router) || act_msg_new(ACT_LOAD, router, 0, &m))
        return;
    *act_p_load(&m) = (struct act_p_load){.who = act_self_addr(self), .role = role, .sequence = ++*sequence};
    *act_b_load(&m) = *load;
    if (act_send(self, &m))
        act_msg_drop(&m);
}
