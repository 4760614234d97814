/* The fault decorator: a provider that is another one with faults on purpose, by index or by chance.
 *
 * A rule names operations and says what becomes of them. Some of it no provider may do by itself (transport.h: order,
 * every frame and every completion once); whoever is above has to end well all the same. What stays true: each put that
 * was accepted has its PUT_DONE before CLOSED, and CLOSED comes once.
 *
 *   LOSE    SEND, PUT: accepted, but nothing crosses. FRAME, IMMEDIATE: never seen here. PUT_DONE: comes with
 *           -ECONNRESET when the channel ends, those behind it as always
 *   DELAY   FRAME, IMMEDIATE, PUT_DONE: it and what comes behind it on its channel wait
 *   DOUBLE  FRAME, IMMEDIATE, PUT_DONE: seen twice
 *   REFUSE  CONNECT, REGISTER: an error. SEND, PUT: -EAGAIN, and ROOM at the next poll
 *   STARVE  SEND, PUT: -ENOMEM, and nothing follows
 *   KILL    the channel ends here with -ECONNRESET, as if the other side had died; SEND and PUT do not cross any more,
 *           what else it was is not seen. With delay_ns its end comes so much later, as with an adapter that drains its
 *           queues: until then it takes nothing (-ENOTCONN) and says nothing
 *   CRASH   all channels of the endpoint do
 *
 * Thread: as the endpoint below it. */
#ifndef WEFT_TRANSPORT_FAULT_H
#define WEFT_TRANSPORT_FAULT_H

#include "transport/transport.h"

enum tp_fault_on {
    TP_FAULT_CONNECT = 1 << 0,
    TP_FAULT_REGISTER = 1 << 1,
    TP_FAULT_SEND = 1 << 2,
    TP_FAULT_PUT = 1 << 3,
    TP_FAULT_FRAME = 1 << 4,
    TP_FAULT_IMMEDIATE = 1 << 5,
    TP_FAULT_PUT_DONE = 1 << 6,
};

enum tp_fault_do {
    TP_FAULT_LOSE,
    TP_FAULT_DELAY,
    TP_FAULT_DOUBLE,
    TP_FAULT_REFUSE,
    TP_FAULT_KILL,
    TP_FAULT_CRASH,
    TP_FAULT_STARVE,
};

enum { TP_FAULT_RULES = 8 };

struct tp_fault_rule {
    uint32_t on;      /* enum tp_fault_on, or-ed */
    uint32_t classes; /* 1 << class, or-ed; 0: all. REGISTER has none */
    enum tp_fault_do what;
    uint64_t at;     /* the operation of this number, from 1, of those that the rule fits; 0: by chance */
    uint64_t every;  /* and then each so-manieth one; 0: that one only */
    uint32_t chance; /* per million */
    int64_t delay_ns;
    /* What has happened so far: */
    uint64_t seen, done;
};

/* tp_endpoint_config.provider: the caller's, outlives the endpoints. Rules may change between two calls. Of the rules
 * that fit an operation the first one that strikes counts. */
struct tp_fault {
    const struct tp_ops *ops; /* the provider that does the work */
    const void *provider;     /* its own part of the configuration */
    uint64_t seed;
    struct tp_fault_rule rule[TP_FAULT_RULES];
    int rules;
    /* Called when a rule strikes, inside the operation: notes it, no more. NULL: nobody. */
    void (*struck)(void *ctx, const struct tp_fault_rule *rule);
    void *ctx;
};

extern const struct tp_ops tp_faulty;

#endif
