/* Implementation of rdma_hello.h. */
#include "transport/rdma_hello.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/bytes.h"

enum { PAGE = 4096 };

static const char magic_ask[4] = "WFrq", magic_reply[4] = "WFrp", magic_refusal[4] = "WFrx";

static int check_head(const uint8_t *bytes, size_t size, size_t need, const char magic[4], struct cfg_error *err)
{
    if (size < need || memcmp(bytes, magic, 4) != 0)
        return cfg_error_set(err, EPROTO, "the other side is no endpoint of this program");
    if (bytes[4] != TP_RDMA_VERSION)
        return cfg_error_set(err, EPROTO,
                             "the other side speaks version %u of RDMA channels, this one %d; install the "
                             "same version on both",
                             bytes[4], TP_RDMA_VERSION);
    return 0;
}

static int check_sizes(int lanes, uint32_t frame_max, int depth, int mtu, struct cfg_error *err)
{
    if (lanes < 1 || lanes > TP_RDMA_RAILS_MAX || frame_max < TP_FRAME_MIN || depth < TP_CREDITS_MIN || mtu < 256)
        return cfg_error_set(err, EPROTO,
                             "the other side asks for what cannot be: %d lanes, frames of %u bytes, depth "
                             "%d, MTU %d",
                             lanes, frame_max, depth, mtu);
    return 0;
}

void tp_rdma_ask_write(const struct tp_rdma_ask *a, uint8_t out[TP_RDMA_ASK])
{
    memset(out, 0, TP_RDMA_ASK);
    memcpy(out, magic_ask, 4);
    out[4] = TP_RDMA_VERSION;
    out[5] = a->lane;
    out[6] = a->lanes;
    out[7] = a->class;
    tp_put_uint(out + 8, a->frame_max, 4);
    tp_put_uint(out + 12, a->depth, 2);
    tp_put_uint(out + 14, a->mtu, 2);
    tp_put_uint(out + 16, a->channel, 8);
}

int tp_rdma_ask_read(const uint8_t *bytes, size_t size, struct tp_rdma_ask *out, struct cfg_error *err)
{
    int rc = check_head(bytes, size, TP_RDMA_ASK, magic_ask, err);
    if (rc)
        return rc;
    *out = (struct tp_rdma_ask){.lane = bytes[5],
                                .lanes = bytes[6],
                                .class = bytes[7],
                                .frame_max = tp_get32(bytes + 8),
                                .depth = (uint16_t)tp_get_uint(bytes + 12, 2),
                                .mtu = (uint16_t)tp_get_uint(bytes + 14, 2),
                                .channel = tp_get64(bytes + 16)};
    if (out->class >= TP_CLASSES || out->lane >= TP_RDMA_RAILS_MAX)
        return cfg_error_set(err, EPROTO, "the other side asks for class %u, lane %u, which do not exist", out->class,
                             out->lane);
    return check_sizes(out->lanes, out->frame_max, out->depth, out->mtu, err);
}

void tp_rdma_reply_write(const struct tp_rdma_reply *r, uint8_t out[TP_RDMA_REPLY])
{
    memset(out, 0, TP_RDMA_REPLY);
    memcpy(out, magic_reply, 4);
    out[4] = TP_RDMA_VERSION;
    out[5] = r->lanes;
    tp_put_uint(out + 8, r->frame_max, 4);
    tp_put_uint(out + 12, r->depth, 2);
    tp_put_uint(out + 14, r->mtu, 2);
    memcpy(out + 16, r->address, sizeof r->address);
}

int tp_rdma_reply_read(const uint8_t *bytes, size_t size, struct tp_rdma_reply *out, struct cfg_error *err)
{
    int rc = check_head(bytes, size, TP_RDMA_REPLY, magic_reply, err);
    if (rc)
        return rc;
    *out = (struct tp_rdma_reply){.lanes = bytes[5],
                                  .frame_max = tp_get32(bytes + 8),
                                  .depth = (uint16_t)tp_get_uint(bytes + 12, 2),
                                  .mtu = (uint16_t)tp_get_uint(bytes + 14, 2)};
    memcpy(out->address, bytes + 16, sizeof out->address);
    return check_sizes(out->lanes, out->frame_max, out->depth, out->mtu, err);
}

void tp_rdma_refusal_write(const char *why, uint8_t out[TP_RDMA_REFUSAL])
{
    memset(out, 0, TP_RDMA_REFUSAL);
    memcpy(out, magic_refusal, 4);
    snprintf((char *)out + 4, TP_RDMA_REFUSAL - 4, "%s", why);
}

void tp_rdma_refusal_read(const uint8_t *bytes, size_t size, char why[TP_RDMA_REFUSAL])
{
    why[0] = '\0';
    if (size < 5 || memcmp(bytes, magic_refusal, 4) != 0)
        return;
    size_t n = strnlen((const char *)bytes + 4, (size < TP_RDMA_REFUSAL ? size : TP_RDMA_REFUSAL) - 4);
    for (size_t i = 0; i < n && i < TP_RDMA_REFUSAL - 1; i++)
        why[i] = bytes[4 + i] >= ' ' && bytes[4 + i] < 127 ? (char)bytes[4 + i] : '?';
    why[n < TP_RDMA_REFUSAL - 1 ? n : TP_RDMA_REFUSAL - 1] = '\0';
}

void tp_rdma_window_write(const struct tp_rdma_window *w, struct tp_key *out)
{
    *out = (struct tp_key){.size = (uint8_t)(TP_RDMA_KEY_HEAD + 4 * w->pieces * w->rails)};
    tp_put_uint(out->byte, w->base, 8);
    tp_put_uint(out->byte + 8, w->size, 8);
    tp_put_uint(out->byte + 16, w->piece / PAGE, 4);
    out->byte[20] = (uint8_t)w->pieces;
    out->byte[21] = (uint8_t)w->rails;
    tp_put_uint(out->byte + 22, 0x4b57, 2);
    for (int i = 0; i < w->pieces * w->rails; i++)
        tp_put_uint(out->byte + TP_RDMA_KEY_HEAD + 4 * i, w->rkey[i], 4);
}

int tp_rdma_window_read(const struct tp_key *key, struct tp_rdma_window *out)
{
    const uint8_t *b = key->byte;
    if (key->size < TP_RDMA_KEY_HEAD || key->size > TP_KEY_MAX || tp_get_uint(b + 22, 2) != 0x4b57)
        return -EINVAL;
    *out = (struct tp_rdma_window){.base = tp_get64(b),
                                   .size = tp_get64(b + 8),
                                   .piece = (uint64_t)tp_get32(b + 16) * PAGE,
                                   .pieces = b[20],
                                   .rails = b[21]};
    if (out->pieces < 1 || out->rails < 1 || out->rails > TP_RDMA_RAILS_MAX ||
        out->pieces * out->rails > TP_RDMA_RKEYS_MAX || key->size != TP_RDMA_KEY_HEAD + 4 * out->pieces * out->rails)
        return -EINVAL;
    /* Every byte lies in one of the pieces, and the range does not wrap. */
    if (out->size == 0 || out->base + out->size < out->base || out->piece == 0 ||
        (out->size - 1) / out->piece != (uint64_t)out->pieces - 1)
        return -EINVAL;
    for (int i = 0; i < out->pieces * out->rails; i++)
        out->rkey[i] = tp_get32(b + TP_RDMA_KEY_HEAD + 4 * i);
    return 0;
}
