/* What the files of the runtime share; nobody else includes this.
 *
 *   runtime.c  makes, starts, stops          lane.c    messages between workers, room, sending
 *   worker.c   the loop, batches, timers     actor.c   spawning, ending, restarts, promises
 *   watch.c    monitors, links, supervisors  sim.c     the loop of the simulation
 *
 * Everything in a worker belongs to its thread, except what is marked _Atomic; each such field names who writes it. */
#ifndef WEFT_ACTORS_RUNTIME_INTERNAL_H
#define WEFT_ACTORS_RUNTIME_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "actors/runtime/log.h"
#include "actors/runtime/ring.h"
#include "actors/runtime/runtime.h"
#include "actors/runtime/wheel.h"

struct act_worker;
struct act_slab;
struct sim_hold;

/* A message in a mailbox or in an outbox. */
struct act_node {
    struct act_node *next;
    struct act_self *owner; /* in an outbox: whose; NULL when it has ended */
    uint32_t worker;        /* where it came from; in an outbox: nothing */
    struct act_msg msg;
};

struct act_fifo {
    struct act_node *head, *tail;
};

/* ---- control: past the lanes, one list per worker that anybody may push to ------------------- */

enum act_ctl_kind {
    CTL_MESSAGE, /* msg goes to the actor's control mailbox (or, posted, to its mailbox) */
    CTL_EXIT,    /* the actor is to end */
    CTL_WATCH,   /* struct act_watch arrives at its target */
    CTL_UNWATCH, /* struct act_watching arrives at its target: remove the watch */
    CTL_DOWN,    /* struct act_watch comes back to its watcher: the target has ended */
};

struct act_ctl {
    struct act_ctl *next;
    enum act_ctl_kind kind;
    struct act_msg msg;
};

enum act_watch_kind {
    WATCH_MONITOR,    /* DOWN for the watcher */
    WATCH_LINK,       /* the watcher fails when the target fails */
    WATCH_CHILD,      /* the watcher is a child of the target and ends with it */
    WATCH_SUPERVISOR, /* the watcher supervises the target: DOWN, or escalation */
};

/* One side of a watch: in the target's list until the target ends or the watch is withdrawn. It carries its own DOWN,
 * so that an end can always be reported. */
struct act_watch {
    struct act_ctl ctl; /* first */
    struct act_watch *next, **link;
    struct act_addr watcher, target;
    uint64_t id; /* unique within the watcher's worker */
    enum act_watch_kind kind;
    uint32_t tag;
    bool restarts; /* the target will be back */
    int reason;
    bool escalate; /* WATCH_SUPERVISOR: the supervisor shall fail */
};

/* The other side: in the watcher's list, so that a watcher that ends withdraws its watches. */
struct act_watching {
    struct act_ctl ctl; /* first */
    struct act_watching *next;
    struct act_watch *watch; /* belongs to the target's worker: only handed back to it */
    struct act_addr target;
    uint64_t id;
    enum act_watch_kind kind;
    uint32_t tag;
};

/* ---- lanes ----------------------------------------------------------------------------------- */

/* One direction between two workers. Room: every message that is on its way uses one of two accounts of some lane.
 *
 *   act_send, act_request   `sent` of this lane, until the receiver has taken it
 *   act_request also        `requests` of this lane, until its end has been taken
 *   act_reply               the requester's `requests`; the lane back has a slot for each
 *   coming back             what the original message used; each lane has slots for that too
 *
 * So a lane from A to B never holds more than A's sends + B's sends that come back + B's requests (replies to them) +
 * A's requests (replies that come back), which is its size: putting a reply or a return into it cannot fail. */
struct act_lane {
    /* the producer's */
    int from, to;
    int64_t limit_sent, limit_requests;
    int64_t sent;           /* ever */
    int64_t sent_back;      /* of these, came back and were taken here */
    int64_t sent_taken;     /* the consumer's count, as last read */
    int64_t requests;       /* without end */
    int64_t requests_taken; /* of consumer_requests, how many were subtracted */
    struct act_fifo outbox; /* waits for room, in order */
    bool send_wanted;       /* an actor waits for more than the room of a request */
    unsigned hidden;        /* messages in the ring that the consumer cannot see yet */
    struct act_ring_producer producer;
    struct act_msg *put_slots; /* NULL: within one worker, messages go straight to mailboxes */
    /* Set by the producer when it has found no room, taken back by the consumer when it wakes the producer for it. */
    alignas(64) _Atomic uint32_t starved;
    /* Written by the consumer: messages of this lane that were taken; requests whose returned reply was taken. */
    alignas(64) _Atomic int64_t consumer_sent;
    _Atomic int64_t consumer_requests;
    /* the consumer's */
    int64_t taken_sent, taken_requests; /* ever */
    struct sim_hold *hold;              /* simulation: what the link does to messages; NULL: nothing */
    struct act_msg *take_slots;         /* the same as put_slots: a side never reads a line that the other one writes */
    uint32_t take_from;                 /* likewise */
    alignas(64) ck_ring_t ring;
};

/* ---- actors ---------------------------------------------------------------------------------- */

struct act_owed {
    bool used;
    uint8_t worker; /* where the request came from */
    uint8_t type;
    uint16_t attempt;
    uint16_t call; /* goes back with the reply */
    uint16_t next_free;
    struct act_addr to;
    uint64_t request;
    int64_t deadline;
};

enum act_state { ACTOR_FREE, ACTOR_ALIVE, ACTOR_RESTARTING };

struct act_self {
    struct act_runtime *rt;
    struct act_worker *worker;
    uint32_t index, generation;
    /* Generation with which it was spawned: those from then on are the same actor, restarted. Written by the worker. */
    _Atomic uint32_t first;
    enum act_state state;
    struct act_spawn spec;
    void *memory;
    /* what waits */
    struct act_fifo mail, control;
    struct act_timer *due, *timers;                   /* fired and not delivered; pending (by own_next) */
    uint64_t send_wanted, request_wanted, room_given; /* bit per worker: refused for want of which room; has room now */
    int waiting, outbox;
    bool queued, again, ending, begun; /* begun: start has returned 0 and stop was not called */
    int reason;
    struct act_self *run_next;
    int64_t run_since;
    /* duties */
    struct act_owed *owed;         /* index = number of the promise - 1 */
    uint16_t owed_size, owed_free; /* 0: none free */
    struct act_watch *watchers;
    struct act_watching *watching;
    /* restarts */
    struct act_timer restart;
    int restarts;
    int64_t window_start;
    struct act_self *free_next;
    /* Written by the actor's worker, read by anybody. live: generation while alive, else 0. */
    _Atomic uint32_t live;
    _Atomic(const struct act_behaviour *) shown;
    _Atomic uint64_t batches, messages;
    _Atomic int shown_waiting, shown_outbox, shown_watchers;
    _Atomic bool shown_bulk;
    _Atomic bool working;
    _Atomic int64_t progress_at;
};

struct act_counters {
    _Atomic uint64_t turns, batches, messages, sent, refused, returned, timers, sleeps, wakes, failures, restarts,
        escalations;
    _Atomic int actors, runnable;
    _Atomic int64_t turn_at;
};

struct act_run_queue {
    struct act_self *head, *tail;
    int count;
};

struct act_worker {
    struct act_runtime *rt;
    int index;
    struct act_worker_config config;
    const struct act_source_ops *source_ops;
    void *source;
    pthread_t thread;
    bool started;
    uint64_t random[2];
    int64_t now;                 /* as of this turn */
    struct act_looked_at looked; /* .look NULL: nothing */
    int64_t look_ns;             /* how long looking pays, at most looked.spin_ns */
    int64_t idle_since;          /* begin of the wait that is going on, or has just ended; 0: neither */
    struct act_lane **in, **out; /* by worker */
    uint64_t touched;            /* workers to which something went since the last flush */
    uint64_t starved;            /* lanes out that somebody waits for */
    uint64_t taken;              /* lanes in with counts not yet written back */
    uint64_t told;               /* lanes in whose counts were written back without being sure */
    struct act_run_queue run[2]; /* by act_class */
    struct act_wheel wheel;
    struct act_self *actors;
    int actor_count;
    uint32_t first_index;
    struct act_self *free_head, *free_tail;
    struct act_node *free_nodes;
    struct act_slab *slabs;
    struct act_msg *batch;
    uint64_t watch_id;
    int64_t busy_until; /* simulation */
    struct act_counters count;
    /* Set by the worker before it sleeps; taken back by itself or by whoever wakes it. */
    alignas(64) _Atomic uint32_t sleeping;
    /* Anybody pushes, the worker takes all. */
    alignas(64) _Atomic(struct act_ctl *) control;
};

struct act_peer {
    /* Under the lock. */
    uint16_t node;
    uint64_t epoch, order;
    /* Written under the lock of peers.c, read by any worker. An address as a number with peer 0; 0: none. */
    _Atomic uint64_t route;
};

struct act_runtime {
    struct act_config config;
    struct act_worker *worker;
    int workers;
    struct act_lane *lanes; /* [from * workers + to] */
    const struct act_world_ops *world;
    void *world_ctx;
    int64_t spin_ns;
    bool crowded; /* more workers than CPUs: nobody spins */
    bool started;
    /* Set by act_runtime_stop, read by workers. */
    _Atomic bool stopping;
    pthread_mutex_t peer_lock;
    struct act_peer *peer; /* ACT_PEERS_MAX; [0] is this process */
    uint64_t peer_order;   /* of the newest entry */
    /* Written under the lock, read by any worker: entries below are complete. */
    _Atomic int peers;
    uint8_t *worker_of; /* by actor index */
    uint32_t indices;
    /* Simulation: sees every batch. */
    void (*on_batch)(void *ctx, struct act_self *self, const struct act_msg *m, int count);
    void *on_batch_ctx;
};

/* One writer: plain load and store, relaxed, since readers only want each number whole. Partner: stats.c. */
#define COUNT_ADD(field, n)                                                                                            \
    atomic_store_explicit(&(field), atomic_load_explicit(&(field), memory_order_relaxed) + (n), memory_order_relaxed)

/* lane.c */
int lane_init(struct act_lane *l, int from, int to, int64_t sent, int64_t requests, int64_t back_sent,
              int64_t back_requests);
void lane_destroy(struct act_lane *l);
struct act_node *node_new(struct act_worker *w);
void node_free(struct act_worker *w, struct act_node *n);
void nodes_destroy(struct act_worker *w);
void fifo_push(struct act_fifo *f, struct act_node *n);
struct act_node *fifo_pop(struct act_fifo *f);
/* Takes up to max messages out of the lane and gives them to their mailboxes. Returns how many. */
int lane_drain(struct act_worker *w, struct act_lane *l, int max);
/* Hands one message that has arrived at w from worker `from` to its actor, or sends it back. n is the worker's. */
void worker_deliver(struct act_worker *w, struct act_node *n);
/* m was taken by its receiver on w (or is given up there): its room is free again. */
void worker_release(struct act_worker *w, const struct act_msg *m, int from);
/* Writes the counts of released room where the producers see them, and wakes those that wait for it. Without `sure` it
 * may miss one that begins to wait at this very moment: it finds it in the next turn, or before it sleeps. */
void worker_publish(struct act_worker *w, bool sure);
/* Sends m, which arrived at w from worker `from` and has no receiver, back; consumes m. */
void worker_bounce(struct act_worker *w, struct act_msg *m, int from);
/* Puts a message for which room was held into the lane to worker `to`. */
void worker_put(struct act_worker *w, int to, const struct act_msg *m);
/* Lanes somebody waits for: moves outboxes, and tells actors. True when anything moved. */
bool worker_room(struct act_worker *w, bool look_only);
/* Shows what was sent to its receivers, and wakes them. */
void worker_flush(struct act_worker *w);
void worker_wake(struct act_worker *w);
/* Puts c on w's control list and wakes it. Any thread. */
void worker_control(struct act_worker *w, struct act_ctl *c);

/* worker.c */
void *worker_main(void *arg);
void worker_run_actor(struct act_worker *w, struct act_self *a);
/* a has something to do: puts it on its run queue. */
void worker_ready(struct act_self *a);
/* The queue whose turn it is, and its actor behind `skip` others, taken off; NULL: there is none. */
struct act_run_queue *worker_queue(struct act_worker *w);
struct act_self *worker_take(struct act_worker *w, struct act_run_queue *q, int skip);
void worker_take_control(struct act_worker *w);
void worker_timers(struct act_worker *w);
bool worker_has_input(struct act_worker *w);
/* Ends all actors of w with this reason, without restarts. */
void worker_end_actors(struct act_worker *w, int reason);

/* actor.c */
struct act_self *actor_find(struct act_worker *w, struct act_addr addr);
/* Whether the actor of this address, which is dead, was or will be started again by its policy. On its worker. */
bool actor_lives_on(const struct act_worker *w, struct act_addr addr);
struct act_addr actor_addr(const struct act_self *a);
/* The worker whose thread may touch dst's actor: its own, or the one of the route to dst's peer; -1: none. */
int actor_worker(const struct act_runtime *rt, struct act_addr dst);
int actor_spawn(struct act_worker *w, const struct act_spawn *spec, struct act_addr *out, struct cfg_error *err);
/* restart: whether the policy may start it again. */
void actor_end(struct act_self *a, int reason, bool restart);
void actor_restart(struct act_self *a);
/* Notes that the request is owed a reply; 0: no memory. */
uint16_t actor_owe(struct act_self *a, const struct act_msg *m, int worker);
void actor_fail_later(struct act_self *a, int reason);

/* watch.c */
int watch_supervisor(struct act_self *a);
void watch_arrived(struct act_worker *w, struct act_watch *x);
void watch_withdrawn(struct act_worker *w, struct act_watching *x);
void watch_came_back(struct act_worker *w, struct act_watch *x);
/* a has ended: tells its watchers and withdraws its own watches. final: it does not come back in this slot; escalate:
 * its supervisor shall fail. Returns whether there was a supervisor to tell. */
bool watch_end(struct act_self *a, int reason, bool final, bool escalate);
/* Frees what a control message owns; when the runtime goes away. */
void control_drop(struct act_ctl *c);

/* sim.c */
/* Takes n over when the link of l holds, loses or copies it; false: deliver it now. */
bool sim_hold(struct act_worker *w, struct act_lane *l, struct act_node *n);

/* runtime.c */
/* Zeroed memory in cache lines of its own, so that what one worker writes is in no line that another one reads. */
void *line_alloc(size_t size);
int runtime_make(const struct act_config *config, bool simulated, struct act_runtime **out, struct cfg_error *err);
void runtime_end_actors(struct act_runtime *rt, int reason);

#endif
