/* Messages: one cache line each, made from actors/runtime/messages.def.
 *
 * A message is plain memory that its holder owns, together with the buffer it may carry; sending moves both. These
 * functions touch only their arguments and may be used on any thread. */
#ifndef WEFT_ACTORS_RUNTIME_MESSAGE_H
#define WEFT_ACTORS_RUNTIME_MESSAGE_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "actors/runtime/buffer.h"

/* The address of an actor, 8 bytes. peer is this process's number for one incarnation (node, boot epoch) of a process:
 * 0 is this process as it runs now (peers.h has the rest). A slot is used again under the next generation; generation 0
 * is never alive, so a zeroed address is nobody. */
struct act_addr {
    uint32_t generation;
    uint32_t peer : 12;
    uint32_t index : 20;
};

enum { ACT_INDEX_MAX = 1 << 20, ACT_PEERS_MAX = 1 << 12 };

/* The key of a block of history. */
struct act_key {
    uint8_t byte[32];
};

/* Nobody. */
#define ACT_NOBODY ((struct act_addr){0})

static inline bool act_addr_equal(struct act_addr a, struct act_addr b)
{
    return a.generation == b.generation && a.peer == b.peer && a.index == b.index;
}

static inline bool act_addr_is_nobody(struct act_addr a)
{
    return a.generation == 0;
}

/* A number that is equal for equal addresses and never 0 for a live one; for tables and logs. It is the same in every
 * run with the same order of events. */
static inline uint64_t act_addr_number(struct act_addr a)
{
    return (uint64_t)a.generation << 32 | (uint64_t)a.peer << 20 | a.index;
}

enum act_scope { ACT_SCOPE_LOCAL, ACT_SCOPE_CROSSES };
enum act_body { ACT_BODY_NONE, ACT_BODY_MAY, ACT_BODY_MUST, ACT_BODY_FIXED };

enum act_type {
    ACT_NONE = 0,
#define ACT_F(type, name)
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields) ACT_##NAME = (number),
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F
    ACT_TYPES = 128, /* all numbers are below */
};

/* Bits of act_msg.flags. The low ones belong to the runtime, those from ACT_MSG_USER on to the sender. */
enum {
    ACT_MSG_WANTS_REPLY = 1 << 0, /* sent by act_request: room for one reply is held */
    ACT_MSG_REPLY = 1 << 1,       /* sent by act_reply */
    ACT_MSG_CONTROL = 1 << 2,     /* came past the lanes: CANCEL, DOWN */
    ACT_MSG_RETURNED = 1 << 3,    /* UNDELIVERABLE */
    ACT_MSG_ABANDONED = 1 << 4,   /* UNDELIVERABLE, and the receiver had already taken the payload */
    ACT_MSG_COPY = 1 << 5,        /* a link delivered it twice (simulation, networks): holds no room for a reply */
    ACT_MSG_LATE = 1 << 7,     /* ABANDONED, because its time was over: another node has it still and may act on it */
    ACT_MSG_RESTARTS = 1 << 6, /* DOWN: its supervision starts the actor again, under its next address */
    ACT_MSG_USER = 1 << 8,
};

enum { ACT_INLINE_MAX = 16 };

/* act_msg.deadline when there is none. */
#define ACT_NEVER INT64_MAX

struct act_msg {
    uint8_t type;   /* enum act_type */
    uint8_t length; /* bytes of data in use: the size of struct act_p_NAME */
    uint16_t flags;
    uint16_t attempt; /* of the request, counted by its owner */
    union {
        /* Set at delivery when a reply is wanted; see act_promise_of. Before that, and in replies, what act_forward
         * gave the request. */
        uint16_t promise;
        uint16_t returned; /* UNDELIVERABLE: the original type */
    };
    struct act_addr src; /* set by the runtime */
    struct act_addr dst;
    uint64_t request;    /* id of the request it belongs to; chosen by its owner, 0: none */
    int64_t deadline;    /* ns on the runtime's clock, for actors to look at; ACT_NEVER; crosses as what remains */
    struct act_buf *buf; /* NULL: none; moves with the message */
    union {
        uint8_t data[ACT_INLINE_MAX];
        uint64_t aligned;
    };
};

_Static_assert(sizeof(struct act_addr) == 8, "two addresses leave room for a payload");
_Static_assert(sizeof(struct act_msg) == 64, "a message is one cache line");

/* ---- payload structs, from the list ---------------------------------------------------------- */

typedef uint8_t act_t_u8;
typedef uint16_t act_t_u16;
typedef uint32_t act_t_u32;
typedef uint64_t act_t_u64;
typedef int32_t act_t_i32;
typedef int64_t act_t_i64;
typedef float act_t_f32;
typedef double act_t_f64;
typedef struct act_addr act_t_addr;
typedef struct act_key act_t_key;

/* struct act_p_NAME: the inline payload. struct act_b_NAME: the start of the buffer; the tail follows at act_b_NAME's
 * size rounded up to 16. */
#define ACT_F(type, name) act_t_##type name;
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    struct act_p_##name {                                                                                              \
        fields                                                                                                         \
    };                                                                                                                 \
    struct act_b_##name {                                                                                              \
        body_fields                                                                                                    \
    };                                                                                                                 \
    _Static_assert(sizeof(struct act_p_##name) <= ACT_INLINE_MAX, #NAME ": inline fields take more than 16 bytes");
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F

/* The start of m's buffer, NULL when it has not this many bytes. */
static inline void *act_msg_body(const struct act_msg *m, size_t bytes)
{
    return m->buf && m->buf->size >= bytes ? m->buf->data : NULL;
}

/* act_p_NAME(m): the inline payload of m. act_b_NAME(m): the body fields, NULL when there is no buffer or it is too
 * short (a buffer that a decoder accepted is never too short). Both point into m and its buffer. */
#define ACT_F(type, name)
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    static inline struct act_p_##name *act_p_##name(struct act_msg *m)                                                 \
    {                                                                                                                  \
        return (struct act_p_##name *)(void *)m->data;                                                                 \
    }                                                                                                                  \
    static inline struct act_b_##name *act_b_##name(struct act_msg *m)                                                 \
    {                                                                                                                  \
        return act_msg_body(m, sizeof(struct act_b_##name));                                                           \
    }
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F

/* ---- the table ------------------------------------------------------------------------------- */

struct act_type_info {
    const char *name; /* "KV_LOOKUP"; NULL: there is no such type */
    enum act_scope scope;
    enum act_body body;
    uint8_t inline_size; /* sizeof(struct act_p_NAME) */
    uint16_t body_size;  /* sizeof(struct act_b_NAME), rounded up to 16: where the tail starts */
};

/* Never NULL; an unknown type has the name NULL. */
const struct act_type_info *act_type_info(unsigned type);
/* "KV_LOOKUP", or "?" */
const char *act_type_name(unsigned type);

/* ---- making and taking apart ----------------------------------------------------------------- */

/* A message of this type to dst: payload zeroed, no deadline, no buffer. */
struct act_msg act_msg_make(enum act_type type, struct act_addr dst);
/* The same with a buffer: the body fields, zeroed, and tail bytes, undefined. -ENOMEM, and *out has no buffer then. */
int act_msg_new(enum act_type type, struct act_addr dst, size_t tail, struct act_msg *out);
/* The tail of m's buffer and its length in bytes; NULL and 0 without buffer or with a buffer that is too short. */
void *act_msg_tail(const struct act_msg *m, size_t *bytes);
/* Takes the buffer out of m: the caller owns it from now on. NULL when there was none. */
struct act_buf *act_msg_take(struct act_msg *m);
/* Frees what m owns. */
void act_msg_drop(struct act_msg *m);
/* Whether type, length and buffer of m fit the list. Returns NULL, or what is wrong. */
const char *act_msg_check(const struct act_msg *m);
/* The original type of a message that came back. */
static inline enum act_type act_msg_returned_type(const struct act_msg *m)
{
    return (enum act_type)m->returned;
}

#endif
