/* Implementation of wire.h: one encoder and one decoder per type, made from messages.def. */
#include "actors/runtime/wire.h"

#include <errno.h>
#include <string.h>

enum {
    ADDR_BYTES = 18,
    LENGTH_BYTES = 4,
    HEAD_BYTES = 8 + 8 + 8 + 2 * ADDR_BYTES,     /* after the length */
    FIXED_BYTES = LENGTH_BYTES + HEAD_BYTES + 4, /* with the buffer's length, without fields and tail */
};

/* What crosses with a message; the other flags belong to one process. */
enum {
    WIRE_FLAGS = 0xffff & ~(ACT_MSG_CONTROL | ACT_MSG_RETURNED | ACT_MSG_ABANDONED | ACT_MSG_COPY | ACT_MSG_LATE |
                            ACT_MSG_RESTARTS)
};

/* ---- sizes ----------------------------------------------------------------------------------- */

enum {
    SIZE_u8 = 1,
    SIZE_u16 = 2,
    SIZE_u32 = 4,
    SIZE_u64 = 8,
    SIZE_i32 = 4,
    SIZE_i64 = 8,
    SIZE_f32 = 4,
    SIZE_f64 = 8,
    SIZE_addr = ADDR_BYTES,
    SIZE_key = 32,
};

#define ACT_F(type, name) +SIZE_##type
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields) [number] = 0 fields,
static const uint16_t inline_wire[ACT_TYPES] = {
#include "actors/runtime/messages.def"
};
#undef ACT_MESSAGE
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields) [number] = 0 body_fields,
static const uint16_t body_wire[ACT_TYPES] = {
#include "actors/runtime/messages.def"
};
#undef ACT_MESSAGE
#undef ACT_F

size_t act_wire_size(const struct act_msg *m)
{
    const struct act_type_info *t = act_type_info(m->type);
    if (t->scope != ACT_SCOPE_CROSSES || act_msg_check(m))
        return 0;
    size_t n = FIXED_BYTES + inline_wire[m->type];
    if (m->buf)
        n += body_wire[m->type] + (m->buf->size - t->body_size);
    return n <= ACT_WIRE_MAX ? n : 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct writer {
    struct act_runtime *rt;
    uint8_t *at;
    int rc;
};

static void put_bytes(struct writer *w, const void *data, size_t n)
{
    if (n)
        memcpy(w->at, data, n);
    w->at += n;
}

static void put_uint(struct writer *w, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *w->at++ = (uint8_t)(v >> (8 * i));
}

static void put_u8(struct writer *w, const uint8_t *v)
{
    put_uint(w, *v, 1);
}
static void put_u16(struct writer *w, const uint16_t *v)
{
    put_uint(w, *v, 2);
}
static void put_u32(struct writer *w, const uint32_t *v)
{
    put_uint(w, *v, 4);
}
static void put_u64(struct writer *w, const uint64_t *v)
{
    put_uint(w, *v, 8);
}
static void put_i32(struct writer *w, const int32_t *v)
{
    put_uint(w, (uint32_t)*v, 4);
}
static void put_i64(struct writer *w, const int64_t *v)
{
    put_uint(w, (uint64_t)*v, 8);
}

static void put_f32(struct writer *w, const float *v)
{
    uint32_t bits;
    memcpy(&bits, v, sizeof bits);
    put_uint(w, bits, 4);
}

static void put_f64(struct writer *w, const double *v) __attribute__((unused));
static void put_f64(struct writer *w, const double *v)
{
    uint64_t bits;
    memcpy(&bits, v, sizeof bits);
    put_uint(w, bits, 8);
}

static void put_key(struct writer *w, const struct act_key *v) __attribute__((unused));
static void put_key(struct writer *w, const struct act_key *v)
{
    put_bytes(w, v->byte, sizeof v->byte);
}

static void put_addr(struct writer *w, const struct act_addr *a)
{
    uint16_t node = 0;
    uint64_t epoch = 0;
    if (!act_addr_is_nobody(*a) && act_peer_identity(w->rt, (uint16_t)a->peer, &node, &epoch) != 0)
        w->rc = -ENOENT;
    bool nobody = act_addr_is_nobody(*a);
    put_uint(w, node, 2);
    put_uint(w, epoch, 8);
    put_uint(w, nobody ? 0 : a->index, 4);
    put_uint(w, a->generation, 4);
}

#define ACT_F(type, name) put_##type(w, &p->name);
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    static void encode_p_##name(struct writer *w, const struct act_p_##name *p)                                        \
    {                                                                                                                  \
        (void)w, (void)p;                                                                                              \
        fields                                                                                                         \
    }                                                                                                                  \
    static void encode_b_##name(struct writer *w, const struct act_b_##name *p)                                        \
    {                                                                                                                  \
        (void)w, (void)p;                                                                                              \
        body_fields                                                                                                    \
    }
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F

static void encode_fields(struct writer *w, unsigned type, const void *p)
{
    switch (type) {
#define ACT_F(t, n)
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    case number:                                                                                                       \
        encode_p_##name(w, p);                                                                                         \
        return;
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
    }
}

static void encode_body(struct writer *w, unsigned type, const void *p)
{
    switch (type) {
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    case number:                                                                                                       \
        encode_b_##name(w, p);                                                                                         \
        return;
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F
    }
}

int act_wire_encode(struct act_runtime *rt, const struct act_msg *m, int64_t now, uint8_t *out, size_t *written)
{
    size_t size = act_wire_size(m);
    if (size == 0)
        return m->buf && m->buf->size > ACT_WIRE_MAX / 2 ? -EMSGSIZE : -EINVAL;
    struct writer w = {.rt = rt, .at = out};
    put_uint(&w, size - LENGTH_BYTES, 4);
    put_uint(&w, m->type, 2);
    put_uint(&w, m->flags & WIRE_FLAGS, 2);
    put_uint(&w, m->attempt, 2);
    put_uint(&w, 0, 2);
    put_uint(&w, m->request, 8);
    put_uint(&w, (uint64_t)(m->deadline == ACT_NEVER ? ACT_NEVER : m->deadline > now ? m->deadline - now : 0), 8);
    put_addr(&w, &m->src);
    put_addr(&w, &m->dst);
    encode_fields(&w, m->type, m->data);
    if (m->buf) {
        size_t body = act_type_info(m->type)->body_size, tail = m->buf->size - body;
        put_uint(&w, body_wire[m->type] + tail + 1, 4);
        encode_body(&w, m->type, m->buf->data);
        put_bytes(&w, m->buf->data + body, tail);
    } else {
        put_uint(&w, 0, 4);
    }
    *written = size;
    return w.rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct reader {
    struct act_runtime *rt;
    const uint8_t *at, *end;
    int rc; /* the first error */
};

static uint64_t get_uint(struct reader *r, int bytes)
{
    if (r->end - r->at < bytes) {
        r->rc = r->rc ? r->rc : -EPROTO;
        return 0;
    }
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)*r->at++ << (8 * i);
    return v;
}

static void get_u8(struct reader *r, uint8_t *v)
{
    *v = (uint8_t)get_uint(r, 1);
}
static void get_u16(struct reader *r, uint16_t *v)
{
    *v = (uint16_t)get_uint(r, 2);
}
static void get_u32(struct reader *r, uint32_t *v)
{
    *v = (uint32_t)get_uint(r, 4);
}
static void get_u64(struct reader *r, uint64_t *v)
{
    *v = get_uint(r, 8);
}
static void get_i32(struct reader *r, int32_t *v)
{
    *v = (int32_t)get_uint(r, 4);
}
static void get_i64(struct reader *r, int64_t *v)
{
    *v = (int64_t)get_uint(r, 8);
}

static void get_f32(struct reader *r, float *v)
{
    uint32_t bits = (uint32_t)get_uint(r, 4);
    memcpy(v, &bits, sizeof bits);
}

static void get_f64(struct reader *r, double *v) __attribute__((unused));
static void get_f64(struct reader *r, double *v)
{
    uint64_t bits = get_uint(r, 8);
    memcpy(v, &bits, sizeof bits);
}

static void get_key(struct reader *r, struct act_key *v) __attribute__((unused));
static void get_key(struct reader *r, struct act_key *v)
{
    for (size_t i = 0; i < sizeof v->byte; i++)
        v->byte[i] = (uint8_t)get_uint(r, 1);
}

static void get_addr(struct reader *r, struct act_addr *a)
{
    uint16_t node = (uint16_t)get_uint(r, 2), peer = 0;
    uint64_t epoch = get_uint(r, 8);
    uint32_t index = (uint32_t)get_uint(r, 4), generation = (uint32_t)get_uint(r, 4);
    *a = ACT_NOBODY;
    if (r->rc)
        return;
    if (generation == 0) {
        if (node || epoch || index)
            r->rc = -EPROTO;
        return;
    }
    if (index >= ACT_INDEX_MAX || epoch == 0) {
        r->rc = -EPROTO;
        return;
    }
    r->rc = act_peer_number(r->rt, node, epoch, &peer);
    *a = (struct act_addr){.generation = generation, .peer = peer & (ACT_PEERS_MAX - 1), .index = index};
}

#define ACT_F(type, name) get_##type(r, &p->name);
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    static void decode_p_##name(struct reader *r, struct act_p_##name *p)                                              \
    {                                                                                                                  \
        (void)r, (void)p;                                                                                              \
        fields                                                                                                         \
    }                                                                                                                  \
    static void decode_b_##name(struct reader *r, struct act_b_##name *p)                                              \
    {                                                                                                                  \
        (void)r, (void)p;                                                                                              \
        body_fields                                                                                                    \
    }
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F

static void decode_fields(struct reader *r, unsigned type, void *p)
{
    switch (type) {
#define ACT_F(t, n)
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    case number:                                                                                                       \
        decode_p_##name(r, p);                                                                                         \
        return;
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
    }
}

static void decode_body(struct reader *r, unsigned type, void *p)
{
    switch (type) {
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    case number:                                                                                                       \
        decode_b_##name(r, p);                                                                                         \
        return;
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F
    }
}

/* The buffer, which is all that is left of the message. */
static int decode_buffer(struct reader *r, struct act_msg *m, struct cfg_error *err)
{
    uint32_t coded = (uint32_t)get_uint(r, 4);
    size_t left = (size_t)(r->end - r->at), fields = body_wire[m->type], body = act_type_info(m->type)->body_size;
    if (r->rc)
        return cfg_error_set(err, EPROTO, "a %s message ends before its buffer", act_type_name(m->type));
    if (coded == 0)
        return left == 0 ? 0
                         : cfg_error_set(err, EPROTO, "%zu bytes behind a %s message without buffer", left,
                                         act_type_name(m->type));
    if (act_type_info(m->type)->body == ACT_BODY_NONE || coded - 1 != left || left < fields)
        return cfg_error_set(err, EPROTO, "a %s message whose buffer has %u bytes, with %zu there",
                             act_type_name(m->type), coded - 1, left);
    m->buf = act_buf_new(body + left - fields);
    if (!m->buf)
        return cfg_error_set(err, ENOMEM, "no memory for the buffer of a %s message", act_type_name(m->type));
    memset(m->buf->data, 0, body);
    decode_body(r, m->type, m->buf->data);
    size_t tail = (size_t)(r->end - r->at);
    if (tail)
        memcpy(m->buf->data + body, r->at, tail);
    r->at = r->end;
    return 0;
}

static int decode_message(struct reader *r, int64_t now, struct act_msg *m, struct cfg_error *err)
{
    unsigned type = (unsigned)get_uint(r, 2);
    const struct act_type_info *t = act_type_info(type);
    if (r->rc || !t->name || t->scope != ACT_SCOPE_CROSSES)
        return cfg_error_set(err, EPROTO, "message type %u is unknown here or does not cross nodes", type);
    *m = act_msg_make(type, ACT_NOBODY);
    m->flags = (uint16_t)get_uint(r, 2);
    m->attempt = (uint16_t)get_uint(r, 2);
    unsigned zero = (unsigned)get_uint(r, 2);
    m->request = get_uint(r, 8);
    int64_t left = (int64_t)get_uint(r, 8);
    get_addr(r, &m->src);
    get_addr(r, &m->dst);
    decode_fields(r, type, m->data);
    if (r->rc == -ESTALE || r->rc == -ENOSPC)
        return cfg_error_set(err, -r->rc, "a %s message names an actor of a process that has ended", t->name);
    if (r->rc || zero || left < 0 || (m->flags & ~WIRE_FLAGS))
        return cfg_error_set(err, EPROTO, "the head or the fields of a %s message are malformed", t->name);
    m->deadline = left > ACT_NEVER - now ? ACT_NEVER : now + left;
    int rc = decode_buffer(r, m, err);
    if (rc == 0 && r->rc)
        rc = r->rc == -ESTALE || r->rc == -ENOSPC
                 ? cfg_error_set(err, -r->rc, "a %s message names an actor of a process that has ended", t->name)
                 : cfg_error_set(err, EPROTO, "the body of a %s message is malformed", t->name);
    const char *wrong = rc == 0 ? act_msg_check(m) : NULL;
    return wrong ? cfg_error_set(err, EPROTO, "a %s message: %s", t->name, wrong) : rc;
}

int act_wire_decode(struct act_runtime *rt, const uint8_t *bytes, size_t size, int64_t now, struct act_msg *out,
                    size_t *used, struct cfg_error *err)
{
    *out = (struct act_msg){0};
    *used = LENGTH_BYTES;
    if (size < LENGTH_BYTES)
        return -EAGAIN;
    struct reader r = {.rt = rt, .at = bytes, .end = bytes + LENGTH_BYTES};
    size_t length = (size_t)get_uint(&r, 4);
    if (length < FIXED_BYTES - LENGTH_BYTES || length > ACT_WIRE_MAX - LENGTH_BYTES)
        return cfg_error_set(err, EPROTO, "a message of %zu bytes; %d to %d are possible", length,
                             (int)FIXED_BYTES - LENGTH_BYTES, (int)ACT_WIRE_MAX - LENGTH_BYTES);
    *used = length + LENGTH_BYTES;
    if (size < *used)
        return -EAGAIN;
    r.end = bytes + *used;
    int rc = decode_message(&r, now, out, err);
    if (rc != 0)
        act_buf_free(act_msg_take(out));
    return rc;
}
