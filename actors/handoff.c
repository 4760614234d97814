#include "actors/handoff.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Lies before the message's bytes in one piece of memory. */
struct box {
    _Alignas(ACT_BUF_ALIGN) struct mdl_seq *seq; /* NULL: taken */
};

static void release(void *ctx, void *data, size_t capacity)
{
    struct box *b = ctx;
    (void)data;
    (void)capacity;
    mdl_seq_free(b->seq);
    free(b);
}

int act_handoff_new(enum act_type type, struct act_addr dst, struct mdl_seq *seq, size_t tail, struct act_msg *out)
{
    size_t bytes = act_type_info(type)->body_size + tail;
    size_t whole = (sizeof(struct box) + bytes + ACT_BUF_ALIGN - 1) / ACT_BUF_ALIGN * ACT_BUF_ALIGN;
    struct box *b = aligned_alloc(ACT_BUF_ALIGN, whole);
    *out = act_msg_make(type, dst);
    out->buf = b ? act_buf_wrap(b + 1, bytes, release, b) : NULL;
    if (!out->buf) {
        free(b);
        return -ENOMEM;
    }
    memset(b + 1, 0, bytes);
    b->seq = seq;
    act_p_handoff(out)->box = (uint64_t)(uintptr_t)b; /* the first field of both */
    return 0;
}

struct mdl_seq *act_handoff_take(struct act_msg *m)
{
    struct box *b = (struct box *)(uintptr_t)act_p_handoff(m)->box;
    struct mdl_seq *seq = b->seq;
    b->seq = NULL;
    return seq;
}
