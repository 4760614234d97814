/* Implementation of message.h: the table of types, made from the list. */
#include "actors/runtime/message.h"

#include <errno.h>
#include <string.h>

#include "actors/runtime/job.h"

enum { TAIL_ALIGN = 16 };

#define ALIGNED(n) (((n) + TAIL_ALIGN - 1) / TAIL_ALIGN * TAIL_ALIGN)

static const struct act_type_info table[ACT_TYPES] = {
#define ACT_F(type, name)
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    [number] = {#NAME, ACT_SCOPE_##scope, ACT_BODY_##body, sizeof(struct act_p_##name),                                \
                ALIGNED(sizeof(struct act_b_##name))},
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F
};

const struct act_type_info *act_type_info(unsigned type)
{
    return &table[type < ACT_TYPES ? type : 0];
}

const char *act_type_name(unsigned type)
{
    const char *name = act_type_info(type)->name;
    return name ? name : "?";
}

struct act_msg act_msg_make(enum act_type type, struct act_addr dst)
{
    return (struct act_msg){
        .type = (uint8_t)type, .length = act_type_info(type)->inline_size, .dst = dst, .deadline = ACT_NEVER};
}

int act_msg_new(enum act_type type, struct act_addr dst, size_t tail, struct act_msg *out)
{
    *out = act_msg_make(type, dst);
    size_t body = act_type_info(type)->body_size;
    out->buf = body + tail >= tail ? act_buf_new(body + tail) : NULL;
    if (!out->buf)
        return -ENOMEM;
    memset(out->buf->data, 0, body);
    return 0;
}

/* An UNDELIVERABLE has the buffer of its original type. */
static const struct act_type_info *info_of_buffer(const struct act_msg *m)
{
    return act_type_info(m->type == ACT_UNDELIVERABLE ? m->returned : m->type);
}

void *act_msg_tail(const struct act_msg *m, size_t *bytes)
{
    size_t body = info_of_buffer(m)->body_size;
    if (!m->buf || m->buf->size < body) {
        *bytes = 0;
        return NULL;
    }
    *bytes = m->buf->size - body;
    return m->buf->data + body;
}

struct act_buf *act_msg_take(struct act_msg *m)
{
    struct act_buf *b = m->buf;
    m->buf = NULL;
    return b;
}

void act_msg_drop(struct act_msg *m)
{
    struct act_job *job = act_job_take(m);
    if (job && job->release)
        job->release(job);
    act_buf_free(act_msg_take(m));
}

const char *act_msg_check(const struct act_msg *m)
{
    const struct act_type_info *t = act_type_info(m->type);
    if (!t->name)
        return "there is no such type";
    if (m->length != t->inline_size)
        return "the length is not the one of its type";
    if (!m->buf)
        return t->body == ACT_BODY_MUST || t->body == ACT_BODY_FIXED ? "its type needs a buffer" : NULL;
    if (t->body == ACT_BODY_NONE)
        return "its type has no buffer";
    if (m->buf->size < t->body_size)
        return "its buffer is shorter than the body fields";
    if (t->body == ACT_BODY_FIXED && m->buf->size != t->body_size)
        return "its buffer is longer than the body fields";
    return NULL;
}
