/* The actor runtime: workers, actors, sending, timers, supervision.
 *
 * A worker is a thread; an actor lives on one worker, is called there by one thread at a time, and owns its state.
 * Actors exchange messages and nothing else. The same actors run in the simulation (sim.h).
 *
 *     static int echo(struct act_self *self, void *state, struct act_msg *m, int count)
 *     {
 *         for (int i = 0; i < count; i++) {
 *             if (m[i].type != ACT_PING)
 *                 continue;
 *             struct act_promise p = act_promise_of(&m[i]);
 *             struct act_msg r = act_msg_make(ACT_PONG, ACT_NOBODY);
 *             act_p_pong(&r)->a = act_p_ping(&m[i])->a;
 *             act_reply(self, &p, &r);
 *         }
 *         return 0;
 *     }
 *     static const struct act_behaviour echo_behaviour = {.name = "echo", .receive = echo};
 *
 * Threads: functions that take a struct act_self are for that actor's callbacks and for event callbacks on its worker's
 * thread. The others say where they may be called. Errors are negative errno. */
#ifndef WEFT_ACTORS_RUNTIME_RUNTIME_H
#define WEFT_ACTORS_RUNTIME_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "actors/runtime/message.h"
#include "actors/runtime/world.h"
#include "config/error.h"

struct act_runtime;
struct act_self; /* an actor, as it sees itself; valid from start to stop */
struct act_log;  /* log.h */
struct act_stats_actor;

/* ---- the runtime ----------------------------------------------------------------------------- */

enum { ACT_WORKERS_MAX = 64, ACT_NAME_TEXT = 32, ACT_BATCH_LIMIT = 1024 };

enum act_worker_kind {
    ACT_WORKER_IO,     /* libevent loop */
    ACT_WORKER_ENGINE, /* runs model steps */
    ACT_WORKER_TIER,   /* storage; brings its own source */
    ACT_WORKER_HELPER, /* blocking and long work (job.h) */
};

struct act_worker_config {
    char name[ACT_NAME_TEXT];
    enum act_worker_kind kind;
    int actors_max;                      /* slots; 0: 64 */
    int cpu;                             /* pinned to this CPU; -1: not pinned. 0 in a zeroed struct is CPU 0 */
    const struct act_source_ops *source; /* NULL: act_source_libevent for io, act_source_eventfd for the others */
    void *source_arg;
};

struct act_config {
    uint16_t node;  /* this node's number */
    uint64_t epoch; /* this boot, see act_epoch_next; at least 1 */
    int workers;    /* 1..ACT_WORKERS_MAX */
    struct act_worker_config worker[ACT_WORKERS_MAX];
    /* Per ordered pair of workers: messages that were sent and not yet taken by their receivers. 0: 256. */
    int lane_slots;
    /* Per ordered pair: requests whose reply has not been taken. 0: 256. */
    int reply_slots;
    /* The same two within one worker. 0: 65536. */
    int local_slots;
    /* A worker without work looks for more for this long before it sleeps. Not used when there are more workers than
     * CPUs. -1: 20 us; in a zeroed struct it never spins. */
    int spin_us;
    /* Bulk actors that waited this long go before urgent ones. 0: 20 ms. */
    int64_t age_ns;
    const struct act_world_ops *world; /* NULL: act_world_system */
    void *world_ctx;
    struct act_log *log; /* NULL: no log. Outlives the runtime. */
    /* Called on a worker's thread when a failure was escalated past the last supervisor; may be NULL. The process goes
     * on; the failure is in the statistics. */
    void (*escalated)(void *ctx, struct act_addr who, int reason);
    void *escalated_ctx;
};

/* Checks the configuration and makes workers and lanes, without threads yet. Main thread. */
int act_runtime_new(const struct act_config *config, struct act_runtime **out, struct cfg_error *err);
/* Starts the threads. Actors that were spawned before begin now. Main thread. */
int act_runtime_start(struct act_runtime *rt, struct cfg_error *err);
/* Ends every actor (stop callback with -ESHUTDOWN), then the threads. Nothing is drained: who wants that asks the
 * actors first. Main thread; no effect when not started. */
void act_runtime_stop(struct act_runtime *rt);
/* Stops if needed and frees all, including messages and buffers on the way. NULL is allowed. */
void act_runtime_free(struct act_runtime *rt);

/* Any thread: sends a message from outside (m->src becomes nobody). It needs no room and takes m's buffer when it
 * returns 0; -ENOMEM, or -ESHUTDOWN when the runtime has stopped, leave it. For the main program, signal handling and
 * tests; actors use act_send. */
int act_runtime_post(struct act_runtime *rt, struct act_msg *m);
int act_runtime_workers(const struct act_runtime *rt);
uint16_t act_runtime_node(const struct act_runtime *rt);
uint64_t act_runtime_epoch(const struct act_runtime *rt);
int64_t act_runtime_now(const struct act_runtime *rt);

/* max(last epoch in the file + 1, wall_ns), written back durably before it is returned; a missing file counts as 0.
 * Any thread. */
int act_epoch_next(const char *path, int64_t wall_ns, uint64_t *out, struct cfg_error *err);

/* ---- actors ---------------------------------------------------------------------------------- */

enum act_class {
    ACT_CLASS_URGENT, /* decode; everything that is short */
    ACT_CLASS_BULK,   /* prefill; runs when no urgent actor can, or when it has waited age_ns */
};

enum act_policy {
    ACT_POLICY_STOP,     /* ends; its supervisor gets DOWN */
    ACT_POLICY_RESTART,  /* begins again in the same slot under the next generation; above the limit: escalate */
    ACT_POLICY_ESCALATE, /* its supervisor fails too */
};

struct act_behaviour {
    const char *name;
    size_t state_size; /* zeroed memory, aligned to 64, owned by the runtime from before start until after stop */
    /* Makes the state. A negative errno: the actor never was. May be NULL. arg is the one of struct act_spawn. */
    int (*start)(struct act_self *self, void *state, const void *arg);
    /* Everything that waits, up to the batch limit, in order of arrival per sender; CANCEL, DOWN and TIMER come first.
     * count is 0 when act_yield or an event callback asked for the call. The messages are the callee's until it
     * returns; buffers that it did not take are freed then. It returns soon (about 10 ms at most) and asks for more
     * with act_yield. 0, or a negative errno: the actor has failed and its policy applies. */
    int (*receive)(struct act_self *self, void *state, struct act_msg *m, int count);
    /* Gives everything back that start and receive took: memory, event registrations. Sends are possible. reason: 0 for
     * a normal end, a negative errno otherwise. May be NULL. */
    void (*stop)(struct act_self *self, void *state, int reason);
};

struct act_spawn {
    const struct act_behaviour *behaviour; /* outlives the actor */
    int worker;                            /* act_runtime_spawn only */
    const void *arg;                       /* outlives the actor, because of restarts */
    enum act_class run_class;
    int batch;  /* messages per call at most; 0: 64; up to ACT_BATCH_LIMIT */
    int outbox; /* messages that act_send may keep while there is no room, per actor; 0: none, act_send returns -EAGAIN
                 */
    enum act_policy policy;
    struct act_addr supervisor; /* gets DOWN, receives escalations; when it ends, so does this actor. Nobody: none */
    int restarts;               /* more than this within restart_window_ns: escalate. 0: 3 */
    int64_t restart_window_ns;  /* 0: 10 s */
    int64_t restart_delay_ns;   /* before a restart; doubled by each further one within the window. 0: at once */
};

/* Before act_runtime_start, main thread: an actor on spec->worker. Its start callback runs in this call.
 * -EINVAL; -EAGAIN: all slots are taken; -ENOMEM; or what start returned. */
int act_runtime_spawn(struct act_runtime *rt, const struct act_spawn *spec, struct act_addr *out,
                      struct cfg_error *err);
/* A new actor on the worker of self, from a slot of that worker's pool. Errors as above. */
int act_spawn(struct act_self *self, const struct act_spawn *spec, struct act_addr *out, struct cfg_error *err);
/* self ends when its callback has returned; waiting messages go back to their senders. reason 0: a normal end, no
 * policy. Negative: a failure, the policy applies. Also from event callbacks. */
void act_stop(struct act_self *self, int reason);
/* Asks another actor to end in the same way. Needs no room. -ENOMEM. */
int act_exit(struct act_self *self, struct act_addr who, int reason);
/* The receive function is called (again), after the others that wait and after timers, cancels and messages have been
 * looked at: the way to do long work in pieces, and the way for an event callback to get the actor going. */
void act_yield(struct act_self *self);
/* The present address of who, after restarts; nobody when it is dead. Of this process only. A restart may happen at any
 * time, so this is good for reconnecting, not for tests of liveness. Any thread. */
struct act_addr act_current(const struct act_runtime *rt, struct act_addr who);

struct act_addr act_self_addr(const struct act_self *self);
struct act_runtime *act_self_runtime(const struct act_self *self);
int act_self_worker(const struct act_self *self);
void *act_self_state(const struct act_self *self);
/* The loop of an io worker; NULL elsewhere and in the simulation. */
struct event_base *act_self_event_base(const struct act_self *self);

/* Something beside the event loop that an io worker looks at: an adapter's completion queue. Called on the worker's
 * thread, between actors; they may do what event callbacks may. */
struct act_looked_at {
    /* Takes what is there. Returns whether there was anything. Costs next to nothing when there was not. */
    bool (*look)(void *ctx);
    /* The worker is about to sleep: from now on what comes shows in its event loop. Returns whether anything was there
     * before; then it does not sleep. */
    bool (*arm)(void *ctx);
    void *ctx;
    /* A worker without work looks for this long before it sleeps; less when that has not helped (spin.h). Never when
     * there are more workers than CPUs. */
    int64_t spin_ns;
};

/* The worker of self looks at this from now on; it is copied. NULL: no more; whoever began it says so before it ends.
 * -EBUSY: it looks at something already; -ENOTSUP: it has no event loop. */
int act_look_at(struct act_self *self, const struct act_looked_at *what);

/* ns on the seam's clock. */
int64_t act_now(struct act_self *self);
/* ns since 1970, for logs only. */
int64_t act_wall(struct act_self *self);
/* 64 random bits from the worker's generator. */
uint64_t act_random(struct act_self *self);
/* What the callback just did counts as ns of work in virtual time. Nothing in real time. */
void act_busy(struct act_self *self, int64_t ns);

/* ---- sending -------------------------------------------------------------------------------- */

/* Order: from one actor to another, messages of act_send, act_request and act_reply arrive in the order in which they
 * were sent, except that a reply goes past what is still in an outbox. CANCEL, DOWN and what act_return sends back may
 * overtake others.
 *
 * Room: there is a limited number of messages on their way between two workers. act_send and act_request need room and
 * return -EAGAIN when there is none; m is then unchanged and still the caller's, and a ROOM message comes when it is
 * worth trying again. Wait for it without holding up anything else: an actor goes on receiving, so two workers that
 * flood each other never wait for each other. An actor with an outbox has messages kept for it first (in order) and
 * gets -EAGAIN when that is full. A reply uses room that was held since its request was sent, and never waits. Neither
 * do CANCEL, DOWN and messages that come back.
 *
 * On success the buffer has moved and m->buf is NULL. m->src is set. Errors other than -EAGAIN: -EINVAL, type and
 * buffer do not fit the list (a defect of the caller; logged). An address that is dead is no error: the message comes
 * back. */

/* Sends m to m->dst. */
int act_send(struct act_self *self, struct act_msg *m);
/* The same, and holds room for one reply. Exactly one message ends it: the reply, or UNDELIVERABLE, also when the
 * receiver dies later without having replied (ACT_MSG_ABANDONED), and when a receiver of another node has not replied
 * by m->deadline, or within minutes without one (ACT_MSG_LATE too). */
int act_request(struct act_self *self, struct act_msg *m);

/* The duty to answer one request; plain memory, may be kept and used later, once. */
struct act_promise {
    struct act_addr to;
    uint64_t request;
    uint16_t attempt;
    uint16_t number; /* 0: no reply is wanted */
};

/* The promise of a message, number 0 unless its sender used act_request. */
static inline struct act_promise act_promise_of(const struct act_msg *m)
{
    bool wanted = (m->flags & ACT_MSG_WANTS_REPLY) != 0;
    return (struct act_promise){
        .to = m->src, .request = m->request, .attempt = m->attempt, .number = wanted ? m->promise : (uint16_t)0};
}

/* Answers p with m: dst, request and attempt are filled in from p, p->number becomes 0. Never waits. -ENOENT: no reply
 * is wanted, or p was used before; m is unchanged. */
int act_reply(struct act_self *self, struct act_promise *p, struct act_msg *m);
/* Sends m back where it came from as UNDELIVERABLE, with its buffer, as if this actor were not there. Ends the promise
 * of m, if any. Never waits. */
void act_return(struct act_self *self, struct act_msg *m);
/* Sends m on with its source (a transport that delivers for another node); otherwise as act_send, or as act_request
 * when the flag ACT_MSG_WANTS_REPLY is set: then the reply goes to m->src by way of its peer's route, and its promise
 * is what m->promise was, so that a transport can tell requests apart that are equal else. */
int act_forward(struct act_self *self, struct act_msg *m);
/* As act_reply, with m->src as it is: a transport answers with what came from another node. */
int act_forward_reply(struct act_self *self, struct act_promise *p, struct act_msg *m);
/* CANCEL{reason} for request and attempt to dst. Never waits; may overtake. -ENOMEM: try again later. */
int act_cancel(struct act_self *self, struct act_addr dst, uint64_t request, uint16_t attempt, int reason);
/* Messages to other workers become visible, at the latest, when the callback returns. This shows them and wakes their
 * receivers now: before long work. */
void act_flush(struct act_self *self);
/* Messages that self has in its outbox. */
int act_outbox(const struct act_self *self);

/* ---- timers ---------------------------------------------------------------------------------- */

/* Lives in the actor's state, zeroed before first use; a pending timer must not move. The runtime cancels what is
 * pending when the actor ends. */
struct act_timer {
    struct act_timer *next, **link; /* the wheel's */
    struct act_timer *own_next, **own_link;
    struct act_self *owner;
    int64_t at;
    uint64_t tag;
    uint64_t sequence;
    uint8_t level, slot, state;
};

/* TIMER{tag} at this time, or as soon as possible when it has passed; never earlier, and later by at most about 0.13 ms
 * plus whatever runs then. Replaces what was pending. */
void act_timer_at(struct act_self *self, struct act_timer *t, int64_t at, uint64_t tag);
/* The same, from now on. */
void act_timer_after(struct act_self *self, struct act_timer *t, int64_t ns, uint64_t tag);
/* After this no TIMER of t comes, even when it had fired, except one that is in the batch right now. Not pending:
 * nothing. */
void act_timer_cancel(struct act_self *self, struct act_timer *t);
bool act_timer_pending(const struct act_timer *t);

/* ---- supervision ----------------------------------------------------------------------------- */

/* DOWN{who, reason, tag} once, when who ends; at once (-ESRCH) when it is not alive. ACT_MSG_RESTARTS in its flags: its
 * policy has started the actor again, or will. -ENOMEM; -ENOTSUP for an actor of another process, whose end the
 * transport reports. */
int act_monitor(struct act_self *self, struct act_addr who, uint32_t tag);
/* No DOWN with this tag for who comes any more, except one that is in the batch right now. */
void act_demonitor(struct act_self *self, struct act_addr who, uint32_t tag);
/* When one of the two fails (reason other than 0), so does the other, with the same reason. Errors as above. */
int act_link(struct act_self *self, struct act_addr who);

/* ---- health ---------------------------------------------------------------------------------- */

/* Whether the actor has work to do, as far as health is concerned: while it has, the age of its progress grows;
 * act_progress sets it to 0 again. An actor that waits for an answer is working; one without requests is not. */
void act_working(struct act_self *self, bool working);
void act_progress(struct act_self *self);

#endif
