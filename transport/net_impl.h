/* What net.c (peers, dialling, the public functions) and net_conn.c (one channel: handshake, messages, pings) share.
 * One thread, see net.h. */
#ifndef WEFT_TRANSPORT_NET_IMPL_H
#define WEFT_TRANSPORT_NET_IMPL_H

#include "transport/net.h"

enum net_step {
    NET_DIALLING,  /* the provider connects */
    NET_ACCEPTED,  /* waiting for HELLO */
    NET_HELLO,     /* HELLO sent, waiting for CHALLENGE */
    NET_CHALLENGE, /* CHALLENGE sent, waiting for PROOF */
    NET_HELD,      /* PROOF was right; an older channel or incarnation has to end first */
    NET_PROOF,     /* PROOF sent, waiting for WELCOME */
    NET_UP,
    NET_ENDING, /* refused, aborted or finished; waiting for the provider's last word */
};

/* A message that waits for room. */
struct net_blob {
    struct net_blob *next;
    size_t size, sent;
    uint8_t bytes[];
};

struct net_conn {
    struct net_conn *next;
    struct tp_net *net;
    struct tp_channel *channel;
    enum net_step step;
    int peer; /* -1: not known yet, or a tool */
    enum tp_class class;
    uint32_t generation;
    uint64_t epoch;                /* of the other side, once known */
    uint64_t tool;                 /* a tool's number; 0: a node */
    int64_t deadline;              /* of the handshake; of the end, when `leaving` */
    int64_t heard, spoken, pinged; /* times; pinged 0: no answer is awaited */
    struct tp_hello other;
    uint8_t said[3 * TP_HANDSHAKE_MAX];
    size_t said_size;
    struct tp_window windows[TP_WINDOWS_MAX]; /* of the other side, until it is up */
    int n_windows;
    bool leaving;             /* NET_ENDING: it was told the end and has to say its own */
    bool retry_soon;          /* its end is no fault of the peer */
    bool hopeless;            /* refused for a reason that time alone does not mend */
    char why[TP_REASON_TEXT]; /* why it ends, when this side knows better than the provider */
    int64_t up_at;
    struct net_blob *queue, **queue_tail;
    size_t queued;
    int64_t pump_at; /* a send had no memory, so that no ROOM follows: when to try again; 0: not the case */
    bool put_starved;
    uint8_t *in; /* a message that has not come whole yet */
    size_t in_size, in_have;
};

struct net_peer {
    struct tp_peer_info info;
    bool there; /* false: removed */
    struct net_conn *conn[TP_CLASSES];
    uint64_t seen;                   /* highest epoch that proved itself */
    uint32_t generation[TP_CLASSES]; /* of the last attempt */
    int64_t next_try[TP_CLASSES];
    int64_t probe_until; /* 0: the incarnation that is up is not being asked whether it lives */
    int64_t probe_from;
    int dying; /* reason of a down that waits for the channels to end; 0: none */
    char dying_why[TP_REASON_TEXT];
    bool episode;                 /* a failure has been logged and no success since */
    char refused[TP_REASON_TEXT]; /* last reason logged for what came from it */
};

struct net_window {
    uint32_t id;
    uint8_t *base;
    size_t size;
    struct tp_region *region;
    struct tp_key key;
};

struct tp_net {
    struct tp_net_config config;
    struct tp_endpoint *ep;
    struct net_peer *peer; /* TP_PEERS_MAX, so that they never move */
    int peers;
    struct net_conn *conns;
    struct net_window window[TP_WINDOWS_MAX];
    int n_windows;
    struct tp_traffic ended[TP_CLASSES]; /* of channels that are no more */
    uint64_t tools;
    char stranger[TP_REASON_TEXT]; /* last reason logged for somebody unknown */
    int64_t stranger_at;
    int64_t refusals_since; /* lines about refused connections are rationed, as anybody can connect */
    int refusals_told;      /* since then */
    uint64_t refusals_untold;
    /* Where tp_net_ask listens in; NULL otherwise. */
    void (*on_tool_up)(void *ctx, struct net_conn *c);
    void (*on_tool_end)(void *ctx, int reason, const char *why);
};

static inline int64_t net_now(const struct tp_net *net)
{
    return net->config.endpoint.host.now(net->config.endpoint.host.ctx);
}

static inline void net_wake(struct tp_net *net)
{
    net->config.endpoint.host.wake(net->config.endpoint.host.ctx);
}

void net_log(struct tp_net *net, enum tp_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* net_conn.c */
extern const struct tp_sink net_conn_sink;
/* Dials; the channel's end comes as a call of net_conn_ended. hello_class: what it is for. */
int net_conn_dial(struct tp_net *net, int peer, const char *address, enum tp_class class, uint32_t generation,
                  const char *wanted, uint16_t wanted_number, struct net_conn **out, struct cfg_error *err);
void net_conn_free(struct net_conn *c);
/* Ends it now, with this as the reason that is reported. */
void net_conn_abort(struct net_conn *c, const char *why);
/* Tells the other side why and ends it. */
void net_conn_refuse(struct net_conn *c, enum tp_refusal code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* WELCOME: both are up from now on. */
void net_conn_welcome(struct net_conn *c);
int net_conn_send(struct net_conn *c, const struct iovec *part, int n);
/* Sends of what waits for room as much as there is room for. */
void net_conn_pump(struct net_conn *c);
void net_conn_ping(struct net_conn *c);

/* net.c */
/* The other side has proved who it is: welcome, refuse or hold. */
void net_decide(struct net_conn *c);
/* Whether the other side of a handshake may be talked to at all; refuses it otherwise. Before any proof. */
bool net_acceptable(struct net_conn *c);
void net_conn_is_up(struct net_conn *c);
void net_conn_ended(struct net_conn *c, int reason, const char *why);

#endif
