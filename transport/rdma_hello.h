/* What two rdma endpoints tell each other while they connect, in the private data of the connection manager's messages,
 * and the keys of registered memory. Bytes from outside are parsed here. Layouts: docs/FORMATS.md ("RDMA channels").
 * Pure functions, any thread. */
#ifndef WEFT_TRANSPORT_RDMA_HELLO_H
#define WEFT_TRANSPORT_RDMA_HELLO_H

#include "transport/rdma.h"
#include "transport/transport.h"

enum {
    TP_RDMA_VERSION = 1,
    TP_RDMA_ASK = 28,                            /* bytes; the connection manager leaves 56 */
    TP_RDMA_REPLY = 16 + 16 * TP_RDMA_RAILS_MAX, /* bytes; it leaves 196 */
    TP_RDMA_REFUSAL = 120,                       /* bytes; it leaves 148 */
    TP_RDMA_KEY_HEAD = 24,
    TP_RDMA_RKEYS_MAX = (TP_KEY_MAX - TP_RDMA_KEY_HEAD) / 4, /* pieces times rails of one region */
};

/* The request of a connection: the first one of a channel, or one more lane of it. */
struct tp_rdma_ask {
    uint8_t lane;       /* 0: the channel itself */
    uint8_t lanes;      /* that this side could use */
    uint8_t class;      /* enum tp_class */
    uint32_t frame_max; /* bytes */
    uint16_t depth;     /* receives that this side has for the other */
    uint16_t mtu;       /* bytes, of this side's port */
    uint64_t channel;   /* what lanes of one channel have in common */
};

/* The reply: the smaller of both sides in everything, and where further lanes go. */
struct tp_rdma_reply {
    uint8_t lanes;
    uint32_t frame_max;
    uint16_t depth, mtu;
    uint8_t address[TP_RDMA_RAILS_MAX][16]; /* of rail i; the port is that of the first */
};

void tp_rdma_ask_write(const struct tp_rdma_ask *a, uint8_t out[TP_RDMA_ASK]);
void tp_rdma_reply_write(const struct tp_rdma_reply *r, uint8_t out[TP_RDMA_REPLY]);
/* -EPROTO with a sentence: not one, of another version, or with numbers that cannot be. size may be more than what is
 * read: the connection manager pads. */
int tp_rdma_ask_read(const uint8_t *bytes, size_t size, struct tp_rdma_ask *out, struct cfg_error *err);
int tp_rdma_reply_read(const uint8_t *bytes, size_t size, struct tp_rdma_reply *out, struct cfg_error *err);

/* A refusal carries its reason as text. */
void tp_rdma_refusal_write(const char *why, uint8_t out[TP_RDMA_REFUSAL]);
/* "" when there is none. */
void tp_rdma_refusal_read(const uint8_t *bytes, size_t size, char why[TP_RDMA_REFUSAL]);

/* A registered memory as the other side sees it: pieces of equal size (the last may be shorter), each registered with
 * every rail. */
struct tp_rdma_window {
    uint64_t base, size, piece; /* bytes; piece is a multiple of 4096 */
    int pieces, rails;
    uint32_t rkey[TP_RDMA_RKEYS_MAX]; /* [piece * rails + rail] */
};

void tp_rdma_window_write(const struct tp_rdma_window *w, struct tp_key *out);
/* Returns 0, or -EINVAL: not such a key. */
int tp_rdma_window_read(const struct tp_key *key, struct tp_rdma_window *out);

#endif
