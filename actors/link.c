/* The link: nodes that come and go, the directory, puts, watches, tools. See link.h. */
#include "actors/link.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/link_impl.h"
#include "actors/runtime/log.h"
#include "transport/bytes.h"

enum { ENTRY_BYTES = 20, TAG_LOOK = 1, LOOK_NS = 10000000 };

/* ---- the world of the net -------------------------------------------------------------------------- */

static int64_t host_now(void *ctx)
{
    return act_now(((struct link *)ctx)->self);
}

/* The real thing where there is a loop; the simulation's own bits elsewhere. */
static void host_random(void *ctx, void *out, size_t size)
{
    struct link *l = ctx;
    if (l->arg->net.endpoint.host.base) {
        randombytes_buf(out, size);
        return;
    }
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)out)[i] = (uint8_t)(act_random(l->self) >> 32);
}

/* Any thread (inproc). */
static void host_wake(void *ctx)
{
    struct link *l = ctx;
    /* Acq_rel: what the waker did is seen by the poll that the message causes. Partner: link_receive. */
    if (atomic_exchange_explicit(&l->awake, 1, memory_order_acq_rel))
        return;
    struct act_msg m = act_msg_make(ACT_NODES_WATCH, act_self_addr(l->self));
    if (act_runtime_post(act_self_runtime(l->self), &m))
        /* Release: as above. The next timer polls. */
        atomic_store_explicit(&l->awake, 0, memory_order_release);
}

static bool on_look(void *ctx)
{
    return tp_net_look(((struct link *)ctx)->net);
}

static bool on_arm(void *ctx)
{
    return tp_net_arm(((struct link *)ctx)->net);
}

static void on_log(void *ctx, enum tp_log_level level, const char *text)
{
    struct link *l = ctx;
    static const enum act_log_level levels[] = {ACT_LOG_ERROR, ACT_LOG_WARNING, ACT_LOG_INFO};
    act_log_write(l->arg->log, levels[level], "link", 0, "%s", text);
}

/* ---- the directory --------------------------------------------------------------------------------- */

static int tell_up(struct link *l, struct act_addr who, const struct link_peer *p)
{
    struct act_msg m;
    const struct tp_peer_info *info = tp_net_peer(l->net, (int)(p - l->peer));
    size_t bytes = (size_t)p->n_actors * sizeof p->actor[0], all = bytes + (info ? strlen(info->name) : 0);
    if (act_msg_new(ACT_NODE_UP, who, all, &m))
        return -ENOMEM;
    *act_p_node_up(&m) =
        (struct act_p_node_up){.node = p->node, .peer = p->number, .roles = p->roles, .actors = (uint32_t)p->n_actors};
    uint8_t *tail = act_msg_tail(&m, &all);
    memcpy(tail, p->actor, bytes);
    if (info)
        memcpy(tail + bytes, info->name, all - bytes);
    int r = act_send(l->self, &m);
    if (r)
        act_msg_drop(&m);
    return r;
}

void act_node_name(struct act_msg *m, char out[TP_NAME_TEXT])
{
    size_t bytes, at = act_p_node_up(m)->actors * sizeof(struct act_node_actor);
    const char *tail = act_msg_tail(m, &bytes);
    snprintf(out, TP_NAME_TEXT, "%.*s", bytes > at ? (int)(bytes - at) : 0, bytes > at ? tail + at : "");
}

/* NODE_UP once the node is complete: its directory is here and every class is connected. */
static void show(struct link *l, int index, bool changed)
{
    struct link_peer *p = &l->peer[index];
    const struct tp_peer_info *info = tp_net_peer(l->net, index);
    if (!p->number || !p->listed || !info || (p->shown && !changed))
        return;
    for (int i = 0; i < TP_CLASSES; i++)
        if (!info->class_up[i])
            return;
    p->shown = true;
    act_log_event(l->arg->log, ACT_LOG_INFO, "link", 0, changed ? "node_changed" : "node_up",
                  "node=%s epoch=%llu actors=%d", info->name, (unsigned long long)info->epoch, p->n_actors);
    for (int i = 0; i < l->subscribers; i++)
        tell_up(l, l->subscriber[i].who, p);
}

/* A class other than control, to those who want to know. who: nobody for all of them. */
static void tell_class(struct link *l, struct act_addr who, int index, enum tp_class class, uint32_t generation,
                       bool up)
{
    for (int i = 0; i < l->subscribers && l->peer[index].number; i++) {
        const struct link_subscriber *s = &l->subscriber[i];
        if (!s->classes || (!act_addr_is_nobody(who) && !act_addr_equal(who, s->who)))
            continue;
        struct act_msg m = act_msg_make(ACT_NODE_CLASS, s->who);
        *act_p_node_class(&m) = (struct act_p_node_class){
            .peer = l->peer[index].number, .class = (uint16_t) class, .generation = generation, .up = up};
        if (act_send(l->self, &m))
            act_msg_drop(&m);
    }
}

static void send_directory(struct link *l, int index)
{
    const struct act_link_arg *a = l->arg;
    uint8_t bytes[LINK_HEAD + 4 + ACT_LINK_ACTORS_MAX * ENTRY_BYTES] = {LINK_DIRECTORY}, *at = bytes + LINK_HEAD + 4;
    tp_put_uint(bytes + LINK_HEAD, (uint64_t)a->n_own, 4);
    for (int i = 0; i < a->n_own; i++, at += ENTRY_BYTES) {
        tp_put_uint(at, a->own[i].kind, 4);
        tp_put_uint(at + 4, a->own[i].a, 4);
        tp_put_uint(at + 8, a->own[i].b, 4);
        tp_put_uint(at + 12, a->own[i].addr.index, 4);
        tp_put_uint(at + 16, a->own[i].addr.generation, 4);
    }
    struct iovec v = {bytes, (size_t)(at - bytes)};
    if (tp_net_send(l->net, index, TP_CLASS_CONTROL, &v, 1))
        tp_net_fence(l->net, index, TP_CLASS_CONTROL);
}

static int take_directory(struct link *l, int index, const uint8_t *bytes, size_t size, struct cfg_error *err)
{
    struct link_peer *p = &l->peer[index];
    size_t n = size >= LINK_HEAD + 4 ? tp_get32(bytes + LINK_HEAD) : ACT_LINK_ACTORS_MAX + 1;
    const uint8_t *at = bytes + LINK_HEAD + 4;
    if (n > ACT_LINK_ACTORS_MAX || size != LINK_HEAD + 4 + n * ENTRY_BYTES)
        return cfg_error_set(err, EPROTO, "a malformed directory");
    bool changed = p->shown;
    for (size_t i = 0; i < n; i++, at += ENTRY_BYTES) {
        uint32_t slot = tp_get32(at + 12), generation = tp_get32(at + 16);
        if (slot >= ACT_INDEX_MAX || !generation)
            return cfg_error_set(err, EPROTO, "a malformed directory");
        p->actor[i] = (struct act_node_actor){.kind = tp_get32(at),
                                              .a = tp_get32(at + 4),
                                              .b = tp_get32(at + 8),
                                              .addr = {.generation = generation,
                                                       .peer = p->number & (ACT_PEERS_MAX - 1),
                                                       .index = slot & (ACT_INDEX_MAX - 1)}};
    }
    p->n_actors = (int)n;
    p->listed = true;
    show(l, index, changed);
    return 0;
}

static void send_directories(struct link *l)
{
    for (int i = 0; i < tp_net_peers(l->net); i++)
        if (l->peer[i].number)
            send_directory(l, i);
}

/* The others learn the new address of an own actor that has been started again; until then they have the old one, from
 * which mail comes back. While it is not there, its monitor says whether it will be (own_ended). */
static void look_at_own(struct link *l)
{
    bool changed = false;
    for (int i = 0; i < l->arg->n_own; i++) {
        struct act_addr *was = &l->arg->own[i].addr, now = act_current(act_self_runtime(l->self), *was);
        if (act_addr_equal(now, *was))
            continue;
        if (!act_addr_is_nobody(now)) {
            *was = now;
            changed = true;
        }
        act_monitor(l->self, *was, 0);
    }
    if (changed)
        send_directories(l);
}

/* One of this node's own actors has ended: for good, or until its supervision has started it again. */
static void own_ended(struct link *l, const struct act_p_down *d, bool restarts)
{
    bool changed = false;
    if (restarts && d->reason != -ESRCH) {
        look_at_own(l);
        return;
    }
    if (restarts) { /* asked for while it is not there */
        if (!act_timer_pending(&l->look))
            act_timer_after(l->self, &l->look, LOOK_NS, TAG_LOOK);
        return;
    }
    for (int i = 0; i < l->arg->n_own; i++)
        if (act_addr_equal(l->arg->own[i].addr, d->who)) {
            l->arg->own[i] = l->arg->own[--l->arg->n_own];
            i--;
            changed = true;
        }
    if (changed)
        send_directories(l);
}

/* ---- nodes that come and go ------------------------------------------------------------------------ */

static void on_up(void *ctx, int index, uint64_t epoch)
{
    struct link *l = ctx;
    const struct tp_peer_info *info = tp_net_peer(l->net, index);
    struct link_peer *p = &l->peer[index];
    struct act_runtime *rt = act_self_runtime(l->self);
    uint16_t number;
    int r = act_peer_number(rt, info->number, epoch, &number);
    if (!r && number == 0)
        r = -EINVAL;
    if (!r)
        r = act_peer_route(rt, number, act_self_addr(l->self));
    if (r) {
        act_log_write(l->arg->log, ACT_LOG_ERROR, "link", 0, "node %s cannot be given a number: %s", info->name,
                      strerror(-r));
        tp_net_fence(l->net, index, TP_CLASS_CONTROL);
        return;
    }
    memset(p, 0, offsetof(struct link_peer, actor));
    p->n_actors = p->calls = 0;
    p->number = number;
    p->node = info->number;
    p->roles = info->roles;
    l->index_of[number] = (int16_t)(index + 1);
    send_directory(l, index);
    act_yield(l->self);
}

static void end_watches(struct link *l, uint16_t number, int reason)
{
    for (struct link_watch **at = &l->watches, *w; (w = *at);) {
        /* Of actors there, and on behalf of actors there. */
        if (w->who.peer != number && w->watcher.peer != number) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        if (w->who.peer == number) {
            struct act_msg m = act_msg_make(ACT_DOWN, w->watcher);
            *act_p_down(&m) = (struct act_p_down){.who = w->who, .reason = reason, .tag = w->tag};
            if (act_send(l->self, &m))
                act_msg_drop(&m);
        }
        free(w);
    }
}

static void on_down(void *ctx, int index, uint64_t epoch, int reason, const char *why)
{
    struct link *l = ctx;
    struct link_peer *p = &l->peer[index];
    uint16_t number = p->number;
    (void)epoch;
    (void)why;
    if (!number)
        return;
    act_peer_route(act_self_runtime(l->self), number, ACT_NOBODY);
    p->number = 0;
    link_give_back(l, number, -1);
    link_end_puts(l, index, -ENOTCONN);
    link_end_fences(l, index, -1);
    end_watches(l, number, reason);
    for (int i = 0; p->shown && i < l->subscribers; i++) {
        struct act_msg m = act_msg_make(ACT_NODE_DOWN, l->subscriber[i].who);
        *act_p_node_down(&m) = (struct act_p_node_down){.node = p->node, .peer = number, .reason = reason};
        if (act_send(l->self, &m))
            act_msg_drop(&m);
    }
    p->shown = p->listed = false;
    l->index_of[number] = 0;
    act_yield(l->self);
}

static void on_class_up(void *ctx, int index, enum tp_class class, uint32_t generation)
{
    struct link *l = ctx;
    tell_class(l, ACT_NOBODY, index, class, generation, true);
    show(l, index, false);
    act_yield(l->self);
}

static void on_class_down(void *ctx, int index, enum tp_class class, uint32_t generation, int reason)
{
    struct link *l = ctx;
    (void)reason;
    tell_class(l, ACT_NOBODY, index, class, generation, false);
    link_end_fences(l, index, (int)class);
    link_give_back(l, l->peer[index].number, (int)class);
    act_yield(l->self);
}

static void on_message(void *ctx, int index, enum tp_class class, const uint8_t *bytes, size_t size)
{
    struct link *l = ctx;
    struct cfg_error err;
    (void)class;
    if (!l->peer[index].number)
        return;
    int r = bytes[0] == LINK_DIRECTORY ? take_directory(l, index, bytes, size, &err)
                                       : link_take(l, index, bytes, size, &err);
    if (r) {
        const struct tp_peer_info *info = tp_net_peer(l->net, index);
        act_log_write(l->arg->log, ACT_LOG_ERROR, "link", 0, "node %s is cut off: %s", info ? info->name : "?",
                      err.msg);
        tp_net_fence(l->net, index, TP_CLASS_CONTROL);
    }
    act_yield(l->self);
}

/* ---- puts ------------------------------------------------------------------------------------------ */

static struct act_addr port_of(const struct link *l, enum tp_class class, uint32_t immediate)
{
    const struct act_link_fan *f = &l->arg->fan[class][immediate >> 28];
    int member = (int)(immediate >> 20 & 255);
    if (!f->who)
        return l->arg->port[class][immediate >> 28];
    return member < f->n ? f->who[member] : ACT_NOBODY;
}

static void on_immediate(void *ctx, int index, enum tp_class class, uint32_t immediate)
{
    struct link *l = ctx;
    struct act_addr to = port_of(l, class, immediate);
    const struct tp_peer_info *info = tp_net_peer(l->net, index);
    struct act_msg m = act_msg_make(ACT_LINK_IMMEDIATE, act_current(act_self_runtime(l->self), to));
    *act_p_link_immediate(&m) = (struct act_p_link_immediate){.peer = l->peer[index].number,
                                                              .class = (uint16_t) class,
                                                              .immediate = immediate,
                                                              .generation = info ? info->generation[class] : 0};
    if (act_addr_is_nobody(m.dst) || !l->peer[index].number || act_send(l->self, &m))
        l->dropped_immediates++;
    act_yield(l->self);
}

/* It came to an actor that was just ending. In the expert exchange its next incarnation has use for it: slots are freed
 * by their answers (exchange_slots.h). */
static void immediate_came_back(struct link *l, struct act_msg *m)
{
    struct act_addr who = m->src, now = act_current(act_self_runtime(l->self), who);
    struct act_msg again = act_msg_make(ACT_LINK_IMMEDIATE, now);
    *act_p_link_immediate(&again) = *act_p_link_immediate(m);
    bool use =
        act_p_link_immediate(m)->class == TP_CLASS_EXPERT && !act_addr_is_nobody(now) && !act_addr_equal(now, who);
    if (!use || act_send(l->self, &again))
        l->dropped_immediates++;
}

static void on_put_done(void *ctx, int index, enum tp_class class, uint64_t cookie, int status)
{
    struct link *l = ctx;
    (void)index;
    (void)class;
    link_put_done(l, cookie, status);
    act_yield(l->self);
}

static void on_room(void *ctx, int index, enum tp_class class)
{
    struct link *l = ctx;
    (void)index;
    (void)class;
    act_yield(l->self);
}

int link_index_of(const struct link *l, uint16_t number)
{
    return number < ACT_PEERS_MAX ? l->index_of[number] - 1 : -1;
}

/* ---- watches --------------------------------------------------------------------------------------- */

static struct act_addr link_of(const struct link *l, unsigned number)
{
    int index = link_index_of(l, (uint16_t)number);
    for (int i = 0; index >= 0 && i < l->peer[index].n_actors; i++)
        if (l->peer[index].actor[i].kind == ACT_NODE_LINK)
            return l->peer[index].actor[i].addr;
    return ACT_NOBODY;
}

static void take_watch(struct link *l, struct act_msg *m)
{
    struct act_addr who = act_p_link_watch(m)->who;
    struct link_watch *w = calloc(1, sizeof *w);
    if (!w)
        return;
    *w = (struct link_watch){.next = l->watches, .watcher = m->src, .who = who, .tag = act_p_link_watch(m)->tag};
    l->watches = w;
    if (who.peer == 0) { /* somebody elsewhere watches an actor of this node */
        act_monitor(l->self, who, 1);
        return;
    }
    struct act_addr other = link_of(l, who.peer);
    if (act_addr_is_nobody(other)) {
        end_watches(l, (uint16_t)who.peer, -ENOTCONN);
        return;
    }
    struct act_msg on = *m;
    on.dst = other;
    link_send(l, &on);
}

void link_watch_done(struct link *l, struct act_addr watcher, struct act_addr who)
{
    for (struct link_watch **at = &l->watches, *w; (w = *at);) {
        if (!act_addr_equal(w->who, who) || !act_addr_equal(w->watcher, watcher)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        free(w);
    }
}

/* An actor of this node has ended: one of its directory (tag 0), or one that somebody elsewhere watches. */
static void take_down(struct link *l, struct act_msg *m)
{
    struct act_p_down *d = act_p_down(m);
    if (d->tag == 0) {
        own_ended(l, d, m->flags & ACT_MSG_RESTARTS);
        return;
    }
    for (struct link_watch **at = &l->watches, *w; (w = *at);) {
        if (!act_addr_equal(w->who, d->who)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        struct act_msg r = act_msg_make(ACT_DOWN, w->watcher);
        *act_p_down(&r) = (struct act_p_down){.who = w->who, .reason = d->reason, .tag = w->tag};
        r.src = act_self_addr(l->self);
        link_send(l, &r);
        free(w);
    }
}

/* ---- tools ----------------------------------------------------------------------------------------- */

static void on_asked(void *ctx, uint64_t tool, const uint8_t *bytes, size_t size)
{
    struct link *l = ctx;
    char question[256];
    snprintf(question, sizeof question, "%.*s", (int)(size < 255 ? size : 255), (const char *)bytes);
    char *answer = l->arg->asked ? l->arg->asked(l->arg->ctx, question) : NULL;
    if (answer)
        tp_net_answer(l->net, tool, answer, strlen(answer));
    free(answer);
}

static const struct tp_net_sink sink = {.up = on_up,
                                        .down = on_down,
                                        .class_up = on_class_up,
                                        .class_down = on_class_down,
                                        .message = on_message,
                                        .immediate = on_immediate,
                                        .put_done = on_put_done,
                                        .room = on_room,
                                        .asked = on_asked,
                                        .log = on_log};

bool act_link_peer_info(struct act_self *self, int index, struct tp_peer_info *out, int *calls)
{
    struct link *l = act_self_state(self);
    const struct tp_peer_info *info = l->net && index < tp_net_peers(l->net) ? tp_net_peer(l->net, index) : NULL;
    if (!info)
        return false;
    *out = *info;
    *calls = l->peer[index].calls;
    return true;
}

void act_link_traffic(struct act_self *self, enum tp_class class, struct tp_traffic *out)
{
    const struct link *l = act_self_state(self);
    *out = (struct tp_traffic){0};
    if (l->net)
        tp_net_traffic(l->net, class, out);
}

void act_link_held(struct act_self *self, struct tp_held *out)
{
    const struct link *l = act_self_state(self);
    *out = (struct tp_held){0};
    if (l->net)
        tp_net_held(l->net, out);
}

/* ---- the actor ------------------------------------------------------------------------------------- */

static int add_peers(struct link *l, const struct act_link_peer *list, int n)
{
    struct cfg_error err;
    int added = 0;
    for (int i = 0; i < n; i++) {
        bool there = list[i].number == l->arg->net.self.number;
        for (int k = 0; !there && k < tp_net_peers(l->net); k++) {
            const struct tp_peer_info *info = tp_net_peer(l->net, k);
            there = info && !strcmp(info->name, list[i].name) && info->number == list[i].number &&
                    !strcmp(info->address, list[i].address);
        }
        if (there)
            continue;
        if (tp_net_add_peer(l->net, list[i].name, list[i].number, list[i].address, &err) < 0)
            act_log_write(l->arg->log, ACT_LOG_ERROR, "link", 0, "node %s was not added: %s", list[i].name, err.msg);
        else
            added++;
    }
    return added;
}

/* One that left the list finishes what it has, with the help of the others, as long as nobody else is to have its name
 * or number. */
static bool may_finish(const struct tp_peer_info *info, const struct act_link_peer *list, int n)
{
    bool free = info->up;
    for (int i = 0; i < n; i++)
        free &= strcmp(info->name, list[i].name) && info->number != list[i].number;
    return free;
}

static void let_go(struct link *l)
{
    for (int k = 0; l->leaving && k < tp_net_peers(l->net); k++) {
        const struct tp_peer_info *info = tp_net_peer(l->net, k);
        if (!l->leave_at[k] || (info && info->up && act_now(l->self) < l->leave_at[k]))
            continue;
        l->leave_at[k] = 0;
        l->leaving--;
        if (!info)
            continue;
        act_log_event(l->arg->log, ACT_LOG_INFO, "link", 0, "node_let_go", "node=%s ended=%d", info->name, !info->up);
        tp_net_remove_peer(l->net, k);
    }
}

/* Those that left the list go first, so that an address can change. */
static void reload(struct link *l)
{
    struct act_link_peer *list = l->arg->reload ? calloc(ACT_LINK_PEERS_MAX, sizeof *list) : NULL;
    int n = list ? l->arg->reload(l->arg->ctx, list, ACT_LINK_PEERS_MAX) : -1, gone = 0;
    for (int k = 0; n >= 0 && k < tp_net_peers(l->net); k++) {
        const struct tp_peer_info *info = tp_net_peer(l->net, k);
        bool stays = !info;
        for (int i = 0; !stays && i < n; i++)
            stays = !strcmp(info->name, list[i].name) && info->number == list[i].number &&
                    !strcmp(info->address, list[i].address);
        gone += !stays;
        l->leaving -= l->leave_at[k] != 0;
        l->leave_at[k] = 0;
        if (!stays && may_finish(info, list, n)) {
            l->leave_at[k] = act_now(l->self) + l->arg->leave_ns;
            l->leaving++;
        } else if (!stays) {
            tp_net_remove_peer(l->net, k);
        }
    }
    if (n >= 0)
        act_log_event(l->arg->log, ACT_LOG_INFO, "link", 0, "nodes_read", "others=%d added=%d gone=%d", n,
                      add_peers(l, list, n), gone);
    free(list);
}

static int open_net(struct link *l, struct cfg_error *err)
{
    struct act_link_arg *a = l->arg;
    struct tp_net_config c = a->net;
    c.sink = &sink;
    c.endpoint.host = (struct tp_host){
        .ctx = l, .now = host_now, .random = host_random, .wake = host_wake, .base = act_self_event_base(l->self)};
    c.endpoint.host.looks = c.endpoint.host.base && c.ops->look;
    a->net.endpoint.host.base = c.endpoint.host.base;
    int r = tp_net_new(&c, &l->net, err);
    const struct act_looked_at looked = {.look = on_look, .arm = on_arm, .ctx = l, .spin_ns = a->spin_ns};
    if (!r && c.endpoint.host.looks && (r = act_look_at(l->self, &looked)))
        cfg_error_set(err, -r, "the link's worker cannot look at completions: %s", strerror(-r));
    l->looks = !r && c.endpoint.host.looks;
    for (int i = 0; !r && i < a->n_windows; i++)
        r = tp_net_add_window(l->net, a->window[i].id, a->window[i].base, a->window[i].size, err);
    if (!r && a->listen[0])
        r = tp_net_listen(l->net, a->listen, a->bound, err);
    if (!r)
        add_peers(l, a->peer, a->n_peers);
    return r;
}

static int link_start(struct act_self *self, void *state, const void *arg)
{
    struct link *l = state;
    struct cfg_error err;
    l->self = self;
    l->arg = (struct act_link_arg *)(uintptr_t)arg;
    l->arg->self = self;
    l->puts_tail = &l->puts;
    int r = open_net(l, &err);
    if (r) {
        if (l->arg->start_error)
            *l->arg->start_error = err;
        if (l->looks)
            act_look_at(self, NULL);
        tp_net_free(l->net);
        l->net = NULL;
        return r;
    }
    /* The first call of receive finds the directory complete: actors that are spawned after the link are in it. */
    act_timer_after(self, &l->timer, 0, 0);
    return 0;
}

static void subscribe(struct link *l, struct act_addr who, bool classes)
{
    for (int i = 0; i < l->subscribers; i++)
        if (act_addr_equal(l->subscriber[i].who, who) ||
            act_addr_is_nobody(act_current(act_self_runtime(l->self), l->subscriber[i].who)))
            l->subscriber[i--] = l->subscriber[--l->subscribers];
    if (l->subscribers == LINK_SUBSCRIBERS) {
        act_log_write(l->arg->log, ACT_LOG_ERROR, "link", 0, "too many actors want to know the nodes");
        return;
    }
    l->subscriber[l->subscribers++] = (struct link_subscriber){who, classes};
    for (int i = 0; i < tp_net_peers(l->net); i++) {
        const struct tp_peer_info *info = tp_net_peer(l->net, i);
        for (int c = TP_CLASS_KV; l->peer[i].number && info && c < TP_CLASSES; c++)
            if (info->class_up[c])
                tell_class(l, who, i, (enum tp_class)c, info->generation[c], true);
        if (l->peer[i].shown)
            tell_up(l, who, &l->peer[i]);
    }
}

static void take_own(struct link *l, struct act_msg *m)
{
    switch (m->type) {
    case ACT_NODES_WATCH:
        if (!act_addr_is_nobody(m->src)) /* else a wake-up */
            subscribe(l, m->src, act_p_nodes_watch(m)->flags & ACT_WATCH_CLASSES);
        break;
    case ACT_LINK_PUT:
        link_take_put(l, m);
        break;
    case ACT_LINK_FENCE:
        link_take_fence(l, m);
        break;
    case ACT_LINK_WATCH:
        take_watch(l, m);
        break;
    case ACT_DOWN:
        take_down(l, m);
        break;
    case ACT_RELOAD:
        reload(l);
        break;
    case ACT_TIMER:
        if (act_p_timer(m)->tag == TAG_LOOK)
            look_at_own(l);
        else if (act_p_timer(m)->tag == LINK_TAG_CALLS)
            link_expire(l);
        break;
    case ACT_UNDELIVERABLE:
        if (act_msg_returned_type(m) == ACT_LINK_IMMEDIATE)
            immediate_came_back(l, m);
        break;
    default:
        break;
    }
}

static int link_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct link *l = state;
    /* Acq_rel: partner is host_wake. */
    atomic_exchange_explicit(&l->awake, 0, memory_order_acq_rel);
    for (int i = 0; !l->begun && i < l->arg->n_own; i++)
        act_monitor(self, l->arg->own[i].addr, 0);
    l->begun = true;
    for (int i = 0; i < count; i++) {
        if (m[i].dst.peer)
            link_send(l, &m[i]);
        else
            take_own(l, &m[i]);
    }
    link_give_puts(l);
    int64_t next = tp_net_poll(l->net);
    let_go(l); /* the pings of those that leave bring it here in time */
    if (next <= act_now(self))
        act_yield(self);
    else if (next != TP_NEVER)
        act_timer_at(self, &l->timer, next, 0);
    return 0;
}

static void link_stop(struct act_self *self, void *state, int reason)
{
    struct link *l = state;
    for (int i = 0; i < ACT_LINK_PEERS_MAX; i++)
        if (l->peer[i].number) {
            act_peer_route(act_self_runtime(l->self), l->peer[i].number, ACT_NOBODY);
            link_give_back(l, l->peer[i].number, -1);
        }
    if (l->looks)
        act_look_at(self, NULL);
    tp_net_free(l->net);
    link_drop_puts(l);
    for (struct link_watch *w; (w = l->watches);) {
        l->watches = w->next;
        free(w);
    }
    free(l->scratch);
    if (reason != -ESHUTDOWN && l->arg->failed)
        l->arg->failed(l->arg->ctx, reason);
}

const struct act_behaviour act_link_behaviour = {
    .name = "link", .state_size = sizeof(struct link), .start = link_start, .receive = link_receive, .stop = link_stop};
