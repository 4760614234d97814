/* What comes from outside over TCP, before anybody believes it: preamble and heads of items. Touches only its
 * arguments; tests/fuzz/fuzz_tcp.c feeds it. */
#include <errno.h>
#include <string.h>

#include "transport/bytes.h"
#include "transport/tcp.h"

static const uint8_t magic[6] = {'W', 'E', 'F', 'T', 't', 'p'};

int tp_tcp_parse_preamble(const uint8_t bytes[TP_TCP_PREAMBLE], enum tp_class *class, uint32_t *frame_max,
                          uint32_t *depth, struct cfg_error *err)
{
    if (memcmp(bytes, magic, sizeof magic) != 0)
        return cfg_error_set(err, EPROTO, "the other side does not speak this protocol");
    if (bytes[6] != TP_TCP_VERSION)
        return cfg_error_set(err, EPROTO, "the other side speaks version %u of the protocol, this one %d", bytes[6],
                             TP_TCP_VERSION);
    *frame_max = tp_get32(bytes + 8);
    *depth = tp_get32(bytes + 12);
    if (bytes[7] >= TP_CLASSES || *frame_max < TP_FRAME_MIN || *depth < TP_CREDITS_MIN)
        return cfg_error_set(err, EPROTO, "class %u, frames of %u bytes, %u at a time: that cannot be", bytes[7],
                             *frame_max, *depth);
    *class = (enum tp_class)bytes[7];
    return 0;
}

int tp_tcp_parse_head(const uint8_t *bytes, size_t have, uint32_t frame_max, struct tp_tcp_item *out,
                      struct cfg_error *err)
{
    if (have < TP_TCP_HEAD)
        return -EAGAIN;
    *out = (struct tp_tcp_item){.kind = bytes[0], .flags = bytes[1], .size = tp_get32(bytes + 4)};
    bool put = out->kind == TP_TCP_PUT;
    if (out->kind < TP_TCP_FRAME || out->kind > TP_TCP_FIN || bytes[2] || bytes[3] ||
        (out->flags & ~(put ? TP_TCP_IMMEDIATE | TP_TCP_MORE : 0)))
        return cfg_error_set(err, EPROTO, "an item of kind %u with flags %u", out->kind, out->flags);
    if (out->kind == TP_TCP_FRAME && (out->size == 0 || out->size > frame_max))
        return cfg_error_set(err, EPROTO, "a frame of %u bytes; 1 to %u are possible", out->size, frame_max);
    if ((out->kind == TP_TCP_FIN || out->kind == TP_TCP_REFUSE) && out->size)
        return cfg_error_set(err, EPROTO, "an end with %u bytes", out->size);
    if (!put)
        return TP_TCP_HEAD;
    if (have < TP_TCP_HEAD + TP_TCP_PUT_HEAD)
        return -EAGAIN;
    out->region = tp_get64(bytes + 8);
    out->offset = tp_get64(bytes + 16);
    out->immediate = tp_get32(bytes + 24);
    if (out->size == 0 || tp_get32(bytes + 28) ||
        (out->flags & (TP_TCP_IMMEDIATE | TP_TCP_MORE)) == (TP_TCP_IMMEDIATE | TP_TCP_MORE))
        return cfg_error_set(err, EPROTO, "a malformed put");
    return TP_TCP_HEAD + TP_TCP_PUT_HEAD;
}
