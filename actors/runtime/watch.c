/* Monitors, links and supervisors.
 *
 * A watch has two records. struct act_watch travels to the target's worker, lies in the target's list, and travels back
 * when the target ends: it is its own DOWN message, so reporting an end needs no memory. struct act_watching stays with
 * the watcher, and travels to the target's worker when the watch is withdrawn. Both go by control lists, which keep the
 * order between two workers, so at the target's worker a withdrawal finds the watch in the list, unless the target has
 * ended: then the watch is on its way back, and finds at the watcher's worker that nobody asks for it any more. */
#include "actors/runtime/internal.h"

#include <errno.h>
#include <stdlib.h>

static void link_watch(struct act_self *target, struct act_watch *x)
{
    x->next = target->watchers;
    x->link = &target->watchers;
    if (x->next)
        x->next->link = &x->next;
    target->watchers = x;
    COUNT_ADD(target->shown_watchers, 1);
}

static void unlink_watch(struct act_self *target, struct act_watch *x)
{
    *x->link = x->next;
    if (x->next)
        x->next->link = x->link;
    x->next = NULL;
    x->link = NULL;
    COUNT_ADD(target->shown_watchers, -1);
}

static struct act_watch *make_watch(struct act_addr watcher, struct act_addr target, enum act_watch_kind kind,
                                    uint32_t tag)
{
    struct act_watch *x = calloc(1, sizeof *x);
    if (x) {
        x->watcher = watcher;
        x->target = target;
        x->kind = kind;
        x->tag = tag;
    }
    return x;
}

/* self watches who. */
static int watch(struct act_self *self, struct act_addr who, enum act_watch_kind kind, uint32_t tag)
{
    if (who.peer)
        return -ENOTSUP;
    struct act_watch *x = make_watch(actor_addr(self), who, kind, tag);
    struct act_watching *own = calloc(1, sizeof *own);
    if (!x || !own) {
        free(x);
        free(own);
        return -ENOMEM;
    }
    x->id = own->id = ++self->worker->watch_id;
    own->watch = x;
    own->target = who;
    own->kind = kind;
    own->tag = tag;
    own->next = self->watching;
    self->watching = own;
    x->ctl.kind = CTL_WATCH;
    int to = actor_worker(self->rt, who);
    worker_control(to < 0 ? self->worker : &self->rt->worker[to], &x->ctl);
    return 0;
}

static void send_back(struct act_worker *w, struct act_watch *x, int reason, bool restarts)
{
    x->reason = reason;
    x->restarts = restarts;
    x->ctl.kind = CTL_DOWN;
    worker_control(&w->rt->worker[w->rt->worker_of[x->watcher.index]], &x->ctl);
}

void watch_arrived(struct act_worker *w, struct act_watch *x)
{
    struct act_self *target = actor_find(w, x->target);
    if (target)
        link_watch(target, x);
    else
        send_back(w, x, -ESRCH, actor_lives_on(w, x->target));
}

/* self does not want own any more. */
static void withdraw(struct act_self *self, struct act_watching *own)
{
    int to = actor_worker(self->rt, own->target);
    own->ctl.kind = CTL_UNWATCH;
    worker_control(to < 0 ? self->worker : &self->rt->worker[to], &own->ctl);
}

void watch_withdrawn(struct act_worker *w, struct act_watching *x)
{
    struct act_self *target = actor_find(w, x->target);
    if (target) {
        unlink_watch(target, x->watch);
        free(x->watch);
    }
    free(x);
}

/* Takes the watcher's record with this id out; NULL: it was withdrawn. */
static struct act_watching *take_watching(struct act_self *a, uint64_t id)
{
    for (struct act_watching **p = &a->watching; *p; p = &(*p)->next)
        if ((*p)->id == id) {
            struct act_watching *own = *p;
            *p = own->next;
            return own;
        }
    return NULL;
}

/* Makes the record into a DOWN message for the watcher. */
static void report(struct act_worker *w, struct act_self *a, const struct act_watch *x)
{
    struct act_node *n = node_new(w);
    if (!n) {
        actor_fail_later(a, -ENOMEM); /* it would wait for ever for what it was promised */
        return;
    }
    n->worker = (uint32_t)w->index;
    n->msg = act_msg_make(ACT_DOWN, x->watcher);
    n->msg.src = x->target;
    n->msg.flags = ACT_MSG_CONTROL | (x->restarts ? ACT_MSG_RESTARTS : 0);
    *act_p_down(&n->msg) = (struct act_p_down){.who = x->target, .reason = x->reason, .tag = x->tag};
    fifo_push(&a->control, n);
    a->waiting++;
    COUNT_ADD(a->shown_waiting, 1);
    worker_ready(a);
}

/* The link back: the ended target watched a as well. */
static void drop_link_back(struct act_self *a, struct act_addr who)
{
    for (struct act_watch *x = a->watchers; x; x = x->next)
        if (x->kind == WATCH_LINK && act_addr_equal(x->watcher, who)) {
            unlink_watch(a, x);
            free(x);
            return;
        }
}

void watch_came_back(struct act_worker *w, struct act_watch *x)
{
    struct act_self *a = actor_find(w, x->watcher);
    struct act_watching *own = a && x->id ? take_watching(a, x->id) : NULL;
    /* A supervisor and the far side of a link have no record of their own (id 0). */
    if (a && (own || x->id == 0)) {
        switch (x->kind) {
        case WATCH_MONITOR:
            report(w, a, x);
            break;
        case WATCH_LINK:
            drop_link_back(a, x->target);
            if (x->reason < 0)
                actor_fail_later(a, x->reason);
            break;
        case WATCH_CHILD:
            actor_fail_later(a, -EOWNERDEAD);
            break;
        case WATCH_SUPERVISOR:
            if (x->escalate)
                actor_fail_later(a, x->reason);
            else
                report(w, a, x);
            break;
        }
    }
    free(own);
    free(x);
}

int watch_supervisor(struct act_self *a)
{
    if (act_addr_is_nobody(a->spec.supervisor))
        return 0;
    int rc = watch(a, a->spec.supervisor, WATCH_CHILD, 0);
    if (rc != 0)
        return rc;
    struct act_watch *x = make_watch(a->spec.supervisor, actor_addr(a), WATCH_SUPERVISOR, 0);
    if (!x)
        return -ENOMEM;
    link_watch(a, x);
    return 0;
}

bool watch_end(struct act_self *a, int reason, bool final, bool escalate)
{
    bool told = false;
    while (a->watchers) {
        struct act_watch *x = a->watchers;
        unlink_watch(a, x);
        if (x->kind == WATCH_SUPERVISOR) {
            if (!final) { /* a restart makes a new one */
                free(x);
                continue;
            }
            x->escalate = escalate;
            told = true;
        }
        send_back(a->worker, x, reason, !final);
    }
    while (a->watching) {
        struct act_watching *own = a->watching;
        a->watching = own->next;
        withdraw(a, own);
    }
    return told;
}

int act_monitor(struct act_self *self, struct act_addr who, uint32_t tag)
{
    return watch(self, who, WATCH_MONITOR, tag);
}

void act_demonitor(struct act_self *self, struct act_addr who, uint32_t tag)
{
    struct act_watching **p = &self->watching;
    while (*p) {
        struct act_watching *own = *p;
        if (own->kind == WATCH_MONITOR && own->tag == tag && act_addr_equal(own->target, who)) {
            *p = own->next;
            withdraw(self, own);
        } else {
            p = &own->next;
        }
    }
    /* One that has arrived and waits. */
    struct act_fifo keep = {NULL, NULL};
    for (struct act_node *n; (n = fifo_pop(&self->control));) {
        struct act_p_down *d = act_p_down(&n->msg);
        if (n->msg.type == ACT_DOWN && d->tag == tag && act_addr_equal(d->who, who)) {
            node_free(self->worker, n);
            self->waiting--;
            COUNT_ADD(self->shown_waiting, -1);
        } else {
            fifo_push(&keep, n);
        }
    }
    self->control = keep;
}

int act_link(struct act_self *self, struct act_addr who)
{
    struct act_watch *back = make_watch(who, actor_addr(self), WATCH_LINK, 0);
    if (!back)
        return -ENOMEM;
    int rc = watch(self, who, WATCH_LINK, 0);
    if (rc != 0) {
        free(back);
        return rc;
    }
    link_watch(self, back);
    return 0;
}

void control_drop(struct act_ctl *c)
{
    if (c->kind == CTL_MESSAGE)
        act_msg_drop(&c->msg);
    free(c);
}
