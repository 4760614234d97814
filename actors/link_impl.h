/* What link.c (peers, directory, watches, tools), link_messages.c (messages and what was asked) and link_puts.c share.
 */
#ifndef WEFT_ACTORS_LINK_IMPL_H
#define WEFT_ACTORS_LINK_IMPL_H

#include <stdatomic.h>

#include "actors/link.h"
#include "actors/runtime/peers.h"
#include "actors/runtime/wire.h"

enum {
    LINK_BUCKETS = 1024,
    LINK_HEAD = 4,
    LINK_TAG_CALLS = 2,
    LINK_SUBSCRIBERS = 128, /* every Prefill of a process, and one each of a dozen others */
};

/* First byte of a message between links. */
enum link_kind {
    LINK_MESSAGE = 1,
    LINK_RETURNED = 2,  /* the message could not be delivered; it follows as it was sent */
    LINK_ABANDONED = 3, /* the same without its payload: a PING with its addresses, byte 1 is its type */
    LINK_DIRECTORY = 4,
};

/* A request of this process that is at another node. */
struct link_call {
    struct link_call *next;
    struct act_addr from, to;
    uint64_t request;
    int64_t deadline; /* of the message */
    int64_t until;    /* it ends by itself then */
    uint16_t attempt, promise;
    uint16_t number; /* of the call, not 0; its reply says it again, so that a late one is not taken for another's */
    uint8_t type;
};

struct link_watch {
    struct link_watch *next;
    struct act_addr watcher, who;
    uint32_t tag;
};

/* A put of several ranges: given to the net one by one, answered once. */
struct link_put {
    struct link_put *next;
    uint64_t cookie;
    struct act_promise promise;
    uint16_t peer; /* in addresses */
    int index;
    enum tp_class class;
    uint32_t wanted, generation; /* of the connection; wanted 0: any. generation 0: nothing was given yet */
    int n, given, done;          /* ranges; once it has failed, n is given */
    int status;
    struct tp_net_put put; /* of all ranges */
    struct act_put_range range[];
};

struct link_fence {
    struct link_fence *next;
    struct act_promise promise;
    int index;
    enum tp_class class;
    uint16_t peer;
    uint32_t generation;
};

struct link_subscriber {
    struct act_addr who;
    bool classes;
};

struct link_peer {
    uint16_t number; /* in addresses; 0: not up */
    uint16_t node;
    uint32_t roles;
    bool listed; /* its directory has come */
    bool shown;  /* NODE_UP was sent */
    struct act_node_actor actor[ACT_LINK_ACTORS_MAX];
    int n_actors;
    int calls;
    int64_t said_late; /* when a call without an answer was last told of; 0: never */
    int late;          /* since then */
};

struct link {
    struct act_self *self;
    struct act_link_arg *arg;
    struct tp_net *net;
    struct act_timer timer, look; /* look: for own actors that are being started again */
    struct act_timer calls;       /* the first call that may be over by then */
    _Atomic int awake;            /* a wake-up is under way */
    bool looks;                   /* the worker looks at the net's completions */
    bool begun;                   /* the directory is watched */
    struct link_peer peer[ACT_LINK_PEERS_MAX];
    int64_t leave_at[ACT_LINK_PEERS_MAX]; /* ns; it is in the list no more and let go then; 0: it stays */
    int leaving;                          /* of them */
    int16_t index_of[ACT_PEERS_MAX];      /* number in addresses to index + 1 */
    struct link_call *call[LINK_BUCKETS];
    struct link_watch *watches;
    struct link_put *puts, **puts_tail;
    struct link_fence *fences;
    uint64_t cookies;
    uint16_t numbers; /* of calls */
    struct link_subscriber subscriber[LINK_SUBSCRIBERS];
    int subscribers;
    uint8_t *scratch;
    size_t scratch_size;
    uint64_t dropped_immediates, late_replies, bounced;
};

/* link_messages.c */
/* A message for another node: sends it, or gives it back. */
void link_send(struct link *l, struct act_msg *m);
/* A message from another node. -EPROTO: nonsense; the node is cut off. */
int link_take(struct link *l, int index, const uint8_t *bytes, size_t size, struct cfg_error *err);
/* Every request that is at this incarnation comes back; class -1: of all, else of those whose messages go over it. */
void link_give_back(struct link *l, uint16_t number, int class);
/* Requests whose time is over end (ACT_MSG_LATE), whether their node is heard of or not. */
void link_expire(struct link *l);
enum tp_class link_class(unsigned type);

/* link_puts.c */
/* LINK_PUT, LINK_FENCE. */
void link_take_put(struct link *l, struct act_msg *m);
void link_take_fence(struct link *l, struct act_msg *m);
/* Gives the net what it takes. */
void link_give_puts(struct link *l);
/* A range has ended. */
void link_put_done(struct link *l, uint64_t cookie, int status);
/* What waits for this node (index) ends; class -1: on every class. */
void link_end_puts(struct link *l, int index, int status);
void link_end_fences(struct link *l, int index, int class);
/* Everything ends, with the link. */
void link_drop_puts(struct link *l);

/* link.c */
/* The number in addresses as an index of the net; -1: no such node. */
int link_index_of(const struct link *l, uint16_t number);
/* The watcher has had its DOWN from there. */
void link_watch_done(struct link *l, struct act_addr watcher, struct act_addr who);

#endif
