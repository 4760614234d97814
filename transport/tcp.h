/* The provider tcp: a socket per channel in the libevent loop of the endpoint's thread. Frames are copied when the
 * socket does not take them at once; puts are written from and read into the registered memory without a copy in
 * between. Its bytes are in docs/FORMATS.md ("TCP channels").
 *
 * Addresses are HOST:PORT, an IPv6 address in brackets; names are looked up without blocking. tp_endpoint_config.base
 * must be set; .provider is not used. */
#ifndef WEFT_TRANSPORT_TCP_H
#define WEFT_TRANSPORT_TCP_H

#include "transport/transport.h"

extern const struct tp_ops tp_tcp;

enum {
    TP_TCP_VERSION = 1,
    TP_TCP_PREAMBLE = 16, /* bytes with which each side begins */
    TP_TCP_HEAD = 8,      /* of every item */
    TP_TCP_PUT_HEAD = 24, /* more of a put */
};

enum tp_tcp_kind {
    TP_TCP_FRAME = 1,
    TP_TCP_PUT = 2,
    TP_TCP_DONE = 3,   /* size: number of puts whose bytes are in the window since the last one */
    TP_TCP_REFUSE = 4, /* the put after those done was refused; the sender of this reads nothing more */
    TP_TCP_FIN = 5,
};

enum { TP_TCP_IMMEDIATE = 1, TP_TCP_MORE = 2 }; /* flags of a put */

/* The head of an item, parsed. */
struct tp_tcp_item {
    uint8_t kind, flags;
    uint32_t size;
    uint64_t region, offset;
    uint32_t immediate;
};

/* Parses the preamble of the other side. -EPROTO with a sentence: it is not one, or of another version. */
int tp_tcp_parse_preamble(const uint8_t bytes[TP_TCP_PREAMBLE], enum tp_class *class, uint32_t *frame_max,
                          uint32_t *depth, struct cfg_error *err);
/* Parses the head of an item, of which `have` bytes are there. Returns the length of the head; -EAGAIN: more bytes are
 * needed; -EPROTO with a sentence. frame_max: the largest frame that was agreed. */
int tp_tcp_parse_head(const uint8_t *bytes, size_t have, uint32_t frame_max, struct tp_tcp_item *out,
                      struct cfg_error *err);

#endif
