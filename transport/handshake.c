/* Implementation of handshake.h. A frame is u8 type, u8 version, u16 zero, then fields; a CHALLENGE, PROOF or WELCOME
 * ends with its proof, which is over everything before it. */
#include "transport/handshake.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "transport/bytes.h"

enum { HEAD = 4, SECRET_FILE_MAX = 4096, SECRET_FILE_MIN = 16 };

/* ---- writing ------------------------------------------------------------------------------------ */

struct writer {
    uint8_t *at;
};

static void put(struct writer *w, uint64_t v, int bytes)
{
    tp_put_uint(w->at, v, bytes);
    w->at += bytes;
}

static void put_bytes(struct writer *w, const void *bytes, size_t n)
{
    memcpy(w->at, bytes, n);
    w->at += n;
}

static void put_text(struct writer *w, const char *text, size_t room)
{
    size_t n = strnlen(text, room - 1);
    put(w, n, 2);
    put_bytes(w, text, n);
}

static void put_head(struct writer *w, enum tp_frame type)
{
    put(w, type, 1);
    put(w, TP_PROTOCOL, 1);
    put(w, 0, 2);
}

static void put_self(struct writer *w, const struct tp_hello *h)
{
    put(w, h->kind, 1);
    put(w, h->class, 1);
    put(w, h->number, 2);
    put(w, h->wanted_number, 2);
    put(w, h->epoch, 8);
    put(w, h->roles, 4);
    put(w, h->model, 8);
    put(w, h->kv_format, 4);
    put(w, h->block_tokens, 4);
    put(w, h->generation, 4);
    put_text(w, h->name, sizeof h->name);
    put_text(w, h->wanted, sizeof h->wanted);
    put_text(w, h->numerics, sizeof h->numerics);
    put_text(w, h->replay, sizeof h->replay);
    put_bytes(w, h->nonce, sizeof h->nonce);
}

/* The proof of a step over what was said before it and what stands before it in its own frame. */
static void prove(enum tp_frame step, const uint8_t *secret, const uint8_t *said, size_t said_size, const uint8_t *own,
                  size_t own_size, uint8_t out[TP_PROOF])
{
    crypto_generichash_state s;
    uint8_t head[16] = "weft handshake";
    head[15] = (uint8_t)step;
    crypto_generichash_init(&s, secret, TP_SECRET, TP_PROOF);
    crypto_generichash_update(&s, head, sizeof head);
    tp_put_uint(head, said_size, 8);
    crypto_generichash_update(&s, head, 8);
    crypto_generichash_update(&s, said, said_size);
    crypto_generichash_update(&s, own, own_size);
    crypto_generichash_final(&s, out, TP_PROOF);
}

static size_t close_frame(struct writer *w, uint8_t *out, const uint8_t *secret, const uint8_t *said, size_t said_size)
{
    size_t n = (size_t)(w->at - out);
    prove((enum tp_frame)out[0], secret, said, said_size, out, n, w->at);
    return n + TP_PROOF;
}

size_t tp_hello_encode(const struct tp_hello *h, uint8_t out[TP_HANDSHAKE_MAX])
{
    struct writer w = {out};
    put_head(&w, TP_FRAME_HELLO);
    put_self(&w, h);
    return (size_t)(w.at - out);
}

size_t tp_challenge_encode(const struct tp_hello *h, const uint8_t secret[TP_SECRET], const uint8_t *hello,
                           size_t hello_size, uint8_t out[TP_HANDSHAKE_MAX])
{
    struct writer w = {out};
    put_head(&w, TP_FRAME_CHALLENGE);
    put_self(&w, h);
    return close_frame(&w, out, secret, hello, hello_size);
}

size_t tp_proof_encode(enum tp_frame step, const uint8_t secret[TP_SECRET], const uint8_t *said, size_t said_size,
                       const struct tp_window *windows, int n, uint8_t out[TP_HANDSHAKE_MAX])
{
    struct writer w = {out};
    put_head(&w, step);
    put(&w, (uint64_t)n, 2);
    for (int i = 0; i < n; i++) {
        put(&w, windows[i].id, 4);
        put(&w, windows[i].size, 8);
        put(&w, windows[i].key.size, 1);
        put_bytes(&w, windows[i].key.byte, windows[i].key.size);
    }
    return close_frame(&w, out, secret, said, said_size);
}

size_t tp_refuse_encode(enum tp_refusal code, const char *reason, uint8_t out[TP_HANDSHAKE_MAX])
{
    struct writer w = {out};
    put_head(&w, TP_FRAME_REFUSE);
    put(&w, code, 2);
    put_text(&w, reason, TP_REASON_TEXT);
    return (size_t)(w.at - out);
}

/* ---- reading ------------------------------------------------------------------------------------ */

struct reader {
    const uint8_t *at, *end;
    bool bad;
};

static uint64_t get(struct reader *r, int bytes)
{
    if (r->end - r->at < bytes) {
        r->bad = true;
        return 0;
    }
    uint64_t v = tp_get_uint(r->at, bytes);
    r->at += bytes;
    return v;
}

static void get_bytes(struct reader *r, void *out, size_t n)
{
    if ((size_t)(r->end - r->at) < n) {
        r->bad = true;
        return;
    }
    memcpy(out, r->at, n);
    r->at += n;
}

/* A text of printable ASCII, shorter than room. */
static void get_text(struct reader *r, char *out, size_t room)
{
    size_t n = (size_t)get(r, 2);
    if (n >= room) {
        r->bad = true;
        return;
    }
    get_bytes(r, out, n);
    out[n] = 0;
    for (size_t i = 0; !r->bad && i < n; i++)
        r->bad |= out[i] < 0x20 || out[i] > 0x7e;
}

static int get_head(struct reader *r, const uint8_t *frame, size_t size, unsigned first, unsigned second,
                    struct cfg_error *err)
{
    *r = (struct reader){.at = frame, .end = frame + size};
    unsigned type = (unsigned)get(r, 1), version = (unsigned)get(r, 1), zero = (unsigned)get(r, 2);
    if (r->bad || size > TP_HANDSHAKE_MAX || (type != first && type != second) || zero)
        return cfg_error_set(err, EPROTO, "a frame of type %u, %zu bytes, where the handshake has another one", type,
                             size);
    if (version != TP_PROTOCOL)
        return cfg_error_set(err, EPROTONOSUPPORT,
                             "the other side speaks version %u of the node protocol, this one version %d; run the same "
                             "release on all nodes",
                             version, TP_PROTOCOL);
    return 0;
}

int tp_hello_decode(const uint8_t *frame, size_t size, struct tp_hello *out, struct cfg_error *err)
{
    struct reader r;
    int rc = get_head(&r, frame, size, TP_FRAME_HELLO, TP_FRAME_CHALLENGE, err);
    if (rc)
        return rc;
    *out = (struct tp_hello){.kind = (uint8_t)get(&r, 1)};
    out->class = (uint8_t)get(&r, 1);
    out->number = (uint16_t)get(&r, 2);
    out->wanted_number = (uint16_t)get(&r, 2);
    out->epoch = get(&r, 8);
    out->roles = (uint32_t)get(&r, 4);
    out->model = get(&r, 8);
    out->kv_format = (uint32_t)get(&r, 4);
    out->block_tokens = (uint32_t)get(&r, 4);
    out->generation = (uint32_t)get(&r, 4);
    get_text(&r, out->name, sizeof out->name);
    get_text(&r, out->wanted, sizeof out->wanted);
    get_text(&r, out->numerics, sizeof out->numerics);
    get_text(&r, out->replay, sizeof out->replay);
    get_bytes(&r, out->nonce, sizeof out->nonce);
    size_t proof = frame[0] == TP_FRAME_CHALLENGE ? TP_PROOF : 0;
    if (r.bad || (size_t)(r.end - r.at) != proof || out->class >= TP_CLASSES || !out->name[0] ||
        (out->kind != TP_KIND_NODE && out->kind != TP_KIND_TOOL) || (out->kind == TP_KIND_NODE && !out->epoch))
        return cfg_error_set(err, EPROTO, "a malformed handshake");
    return 0;
}

int tp_proof_decode(const uint8_t *frame, size_t size, struct tp_window windows[TP_WINDOWS_MAX], int *n,
                    struct cfg_error *err)
{
    struct reader r;
    int rc = get_head(&r, frame, size, TP_FRAME_PROOF, TP_FRAME_WELCOME, err);
    if (rc)
        return rc;
    unsigned count = (unsigned)get(&r, 2);
    if (count > TP_WINDOWS_MAX)
        return cfg_error_set(err, EPROTO, "%u windows; %d are possible", count, TP_WINDOWS_MAX);
    *n = 0;
    for (unsigned i = 0; i < count && !r.bad; i++) {
        struct tp_window *w = &windows[(*n)++];
        *w = (struct tp_window){.id = (uint32_t)get(&r, 4)};
        w->size = get(&r, 8);
        w->key.size = (uint8_t)get(&r, 1);
        if (w->key.size > TP_KEY_MAX)
            r.bad = true;
        else
            get_bytes(&r, w->key.byte, w->key.size);
    }
    if (r.bad || r.end - r.at != TP_PROOF)
        return cfg_error_set(err, EPROTO, "a malformed handshake");
    return 0;
}

int tp_refuse_decode(const uint8_t *frame, size_t size, enum tp_refusal *code, char reason[TP_REASON_TEXT])
{
    struct reader r;
    struct cfg_error err;
    int rc = get_head(&r, frame, size, TP_FRAME_REFUSE, TP_FRAME_REFUSE, &err);
    if (rc == -EPROTO)
        return rc;
    *code = (enum tp_refusal)get(&r, 2);
    get_text(&r, reason, TP_REASON_TEXT);
    return r.bad || r.at != r.end ? -EPROTO : 0;
}

bool tp_proof_check(const uint8_t secret[TP_SECRET], const uint8_t *said, size_t said_size, const uint8_t *frame,
                    size_t size)
{
    uint8_t want[TP_PROOF];
    if (size < HEAD + TP_PROOF)
        return false;
    prove((enum tp_frame)frame[0], secret, said, said_size, frame, size - TP_PROOF, want);
    return sodium_memcmp(want, frame + size - TP_PROOF, TP_PROOF) == 0;
}

/* ---- the secret ---------------------------------------------------------------------------------- */

static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

int tp_secret_load(const char *path, uint8_t out[TP_SECRET], struct cfg_error *err)
{
    uint8_t text[SECRET_FILE_MAX + 1];
    FILE *f = fopen(path, "re");
    if (!f)
        return cfg_error_set(err, errno, "the cluster's secret %s: %s%s", path, strerror(errno),
                             errno == ENOENT
                                 ? "; `openssl rand -hex 32 > FILE; chmod 600 FILE` makes one, all nodes need "
                                   "the same"
                                 : "");
    size_t n = fread(text, 1, sizeof text, f), at = 0;
    int failed = ferror(f);
    fclose(f);
    if (failed || n > SECRET_FILE_MAX)
        return cfg_error_set(err, failed ? EIO : EFBIG, "the cluster's secret %s: %s", path,
                             failed ? "it cannot be read" : "longer than 4096 bytes");
    while (n > at && is_space(text[n - 1]))
        n--;
    while (at < n && is_space(text[at]))
        at++;
    if (n - at < SECRET_FILE_MIN)
        return cfg_error_set(err, EINVAL,
                             "the cluster's secret %s has %zu bytes; at least %d are needed, for example from `openssl "
                             "rand -hex 32`",
                             path, n - at, SECRET_FILE_MIN);
    crypto_generichash(out, TP_SECRET, text + at, n - at, (const uint8_t *)"weft cluster secret", 19);
    sodium_memzero(text, sizeof text);
    return 0;
}
