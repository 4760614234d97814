/* Nodes over a provider: who is connected, in which incarnation, and messages and puts to them. The same code for
 * every provider (transport.h).
 *
 * A net has a list of peers from the configuration. Of two nodes the one with the smaller number dials, one channel per
 * class; control first, the others when it is up. Every channel begins with the handshake (handshake.h). A channel that
 * fails is dialled again, after a delay that doubles up to a limit; after some failures in a row the breaker is open
 * and tries come at the limit only. One line per episode is logged: when it begins, when it ends.
 *
 * Incarnations. A peer's incarnation is its (node, epoch). A lower epoch than one already seen is refused. A higher one
 * retires the old incarnation first: its channels are aborted and their ends reported before the new one is up. When
 * the old one still answers, the new one is a second process under the same name and is refused by name.
 *
 * Thread: everything happens on the one thread that owns the provider's endpoint, in tp_net_poll, tp_net_look,
 * tp_net_arm or its event loop. Callbacks never come from inside another function of this header, and may call all of
 * them but these and tp_net_free. */
#ifndef WEFT_TRANSPORT_NET_H
#define WEFT_TRANSPORT_NET_H

#include "transport/handshake.h"
#include "transport/transport.h"

struct tp_net;

enum {
    TP_PEERS_MAX = 256,        /* at a time */
    TP_MESSAGE_MAX = 64 << 20, /* bytes of one message */
    TP_QUEUE_MAX = 256 << 20,  /* bytes of messages that wait for room, per peer and class */
};

enum tp_log_level { TP_LOG_ERROR, TP_LOG_WARNING, TP_LOG_INFO };

/* A peer as the net sees it; constant while the peer is in the list, except what is marked. */
struct tp_peer_info {
    char name[TP_NAME_TEXT];
    uint16_t number;
    char address[TP_ADDRESS_TEXT];
    /* Of the incarnation that is up (changes): */
    bool up;
    uint64_t epoch;
    uint32_t roles;
    uint32_t generation[TP_CLASSES];
    bool class_up[TP_CLASSES];
    struct tp_window windows[TP_WINDOWS_MAX];
    int n_windows;
    /* Of the connection (changes): */
    int failures;              /* in a row */
    bool breaker;              /* open: tried seldom */
    char last[TP_REASON_TEXT]; /* why it is down; "" when it is up or was never tried */
    int64_t rtt_ns;            /* of the last ping; 0: none yet */
};

/* What the channels of one class have carried, those that have ended included. put_bytes_in: see struct tp_channel. */
struct tp_traffic {
    uint64_t frames_out, frames_in, bytes_out, bytes_in, puts_out, put_bytes_out, put_bytes_in;
};

/* What a net calls. peer: its index, from tp_net_add_peer. */
struct tp_net_sink {
    /* The control class of an incarnation is up; messages may be sent. */
    void (*up)(void *ctx, int peer, uint64_t epoch);
    /* That incarnation is lost: nothing more comes from it, on any class. reason: negative errno. */
    void (*down)(void *ctx, int peer, uint64_t epoch, int reason, const char *why);
    /* A class other than control is up or down, under this generation. Down also means the fence: nothing that this
     * generation wrote can land any more. For classes that are up, it comes before the peer's down. */
    void (*class_up)(void *ctx, int peer, enum tp_class class, uint32_t generation);
    void (*class_down)(void *ctx, int peer, enum tp_class class, uint32_t generation, int reason);
    /* The bytes are valid during the call. */
    void (*message)(void *ctx, int peer, enum tp_class class, const uint8_t *bytes, size_t size);
    void (*immediate)(void *ctx, int peer, enum tp_class class, uint32_t immediate);
    /* The end of a put, exactly once for each that was accepted. */
    void (*put_done)(void *ctx, int peer, enum tp_class class, uint64_t cookie, int status);
    /* tp_net_put returned -EAGAIN and is worth another try. */
    void (*room)(void *ctx, int peer, enum tp_class class);
    /* A tool asks. The callee answers with tp_net_answer, now or later, or never. */
    void (*asked)(void *ctx, uint64_t tool, const uint8_t *bytes, size_t size);
    void (*log)(void *ctx, enum tp_log_level level, const char *text);
};

struct tp_net_config {
    const struct tp_ops *ops;
    /* Its host's sink is not used (the net has its own); ctx, now, random, wake and base are, and ctx is that of the
     * net's sink too. */
    struct tp_endpoint_config endpoint;
    const struct tp_net_sink *sink;
    struct tp_hello self; /* kind, name, number, epoch, roles, model, formats; the rest is filled in */
    uint8_t secret[TP_SECRET];
    int64_t retry_min_ns, retry_max_ns; /* 0: 50 ms, 5 s */
    int breaker;                        /* failures in a row that open it; 0: 8 */
    int64_t handshake_ns;               /* 0: 5 s */
    int64_t ping_ns;                    /* a channel over which nothing went for this long is asked; 0: 1 s */
    int64_t silence_ns;                 /* one that does not answer for this long is lost; 0: 5 s */
};

/* Opens the provider's endpoint. config is copied, except what sink points to. */
int tp_net_new(const struct tp_net_config *config, struct tp_net **out, struct cfg_error *err);
/* Aborts everything without callbacks, and closes the endpoint. NULL is allowed. */
void tp_net_free(struct tp_net *net);
int tp_net_listen(struct tp_net *net, const char *address, char bound[TP_ADDRESS_TEXT], struct cfg_error *err);
/* Memory that peers may write, under an id that both sides know; before the first peer. It stays the caller's and is
 * the source of puts, too. */
int tp_net_add_window(struct tp_net *net, uint32_t id, void *base, size_t size, struct cfg_error *err);
/* A node of the configuration; returns its index (>= 0). -EEXIST, -ENOSPC, -ENOMEM. It may be called at any time. */
int tp_net_add_peer(struct tp_net *net, const char *name, uint16_t number, const char *address, struct cfg_error *err);
/* The peer leaves: its channels end (down follows), it is not dialled and refused from now on. Its index is
 * used again, after its down. */
void tp_net_remove_peer(struct tp_net *net, int peer);
int tp_net_peers(const struct tp_net *net); /* indices are below this */
/* NULL: removed or never there. */
const struct tp_peer_info *tp_net_peer(const struct tp_net *net, int peer);

/* A message of the n parts together; copied where it has to wait. Messages of one class arrive in order, once, or not
 * at all when the incarnation or the class goes down. 0; -ENOTCONN: the class is down; -EAGAIN: TP_QUEUE_MAX bytes wait
 * already; -EMSGSIZE; -ENOMEM. */
int tp_net_send(struct tp_net *net, int peer, enum tp_class class, const struct iovec *part, int n);
struct tp_net_put {
    uint32_t from_window; /* own */
    uint64_t from;        /* offset there; the bytes must not change until put_done */
    uint32_t to_window;   /* the peer's */
    uint64_t to;
    size_t size;
    bool with_immediate;
    uint32_t immediate;
    uint64_t cookie;
};
/* 0; -EAGAIN: room follows; -ENOTCONN; -EINVAL: not within the windows of both sides. Puts and messages of one class
 * keep their order, except that a message which waits for room is passed by puts. */
int tp_net_put(struct tp_net *net, int peer, enum tp_class class, const struct tp_net_put *put);
/* Ends the class's channel: class_down follows when nothing of the peer's can land any more; then it is dialled again.
 * For control: the whole incarnation is given up. */
void tp_net_fence(struct tp_net *net, int peer, enum tp_class class);
/* -ENOENT: the tool has gone. */
int tp_net_answer(struct tp_net *net, uint64_t tool, const void *bytes, size_t size);

/* As tp_ops.look and arm, for a host that said that it looks; false where the provider has none. */
bool tp_net_look(struct tp_net *net);
bool tp_net_arm(struct tp_net *net);
/* Does what is due. Returns when it wants to be called again, as tp_ops.poll does. */
int64_t tp_net_poll(struct tp_net *net);

/* Channels of the provider that have not ended, handshakes included. For leak checks. */
int tp_net_channels(const struct tp_net *net);
/* The same and what else the provider holds now, for metrics. regions: the windows. */
struct tp_held {
    int channels, queue_pairs, regions;
    size_t region_bytes;
};
void tp_net_held(const struct tp_net *net, struct tp_held *out);
/* Of all nodes together, since the net was made; tools are not counted. */
void tp_net_traffic(const struct tp_net *net, enum tp_class class, struct tp_traffic *out);

/* ---- asking a node from outside (weft status, check, drain) ------------------------------------- */

struct tp_ask {
    const struct tp_ops *ops;
    const void *provider; /* tp_endpoint_config.provider */
    const uint8_t *secret;
    const char *tool;    /* "weft status" */
    const char *address; /* of the node */
    const char *name;    /* of the node; checked */
    uint16_t number;
    const void *question;
    size_t size;
    int64_t timeout_ns;
};

struct tp_answer {
    struct tp_hello node; /* what it says about itself */
    int64_t connect_ns;   /* until the handshake was done */
    int64_t answer_ns;    /* from then until the answer */
    uint8_t *bytes;       /* the caller frees them */
    size_t size;
};

/* Connects as a tool, asks, waits for the answer in an event loop of its own. 0, or a negative errno with a sentence
 * that says what to do about it. Any thread that owns no loop. */
int tp_net_ask(const struct tp_ask *ask, struct tp_answer *out, struct cfg_error *err);

#endif
