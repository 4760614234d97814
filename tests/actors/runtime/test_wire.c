/* Wire form: every type round trips, nothing malformed gets through. */
#include "actors/runtime/wire.h"

#include <errno.h>

#include "tests/harness.h"

static struct act_runtime *rt;
static uint64_t state = 1;

static uint8_t draw(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint8_t)(state >> 40);
}

static void open_runtime(void)
{
    static struct act_config c = {.node = 3, .epoch = 1000, .workers = 1};
    c.worker[0].kind = ACT_WORKER_ENGINE;
    c.worker[0].cpu = -1;
    struct cfg_error err;
    cr_assert_eq(act_runtime_new(&c, &rt, &err), 0, "%s", err.msg);
}

static void close_runtime(void)
{
    act_runtime_free(rt);
    rt = NULL;
}

TestSuite(wire, .init = open_runtime, .fini = close_runtime);

static struct act_addr some_addr(void)
{
    uint16_t peer = 0;
    switch (draw() % 4) {
    case 0:
        return ACT_NOBODY;
    case 1:
        return (struct act_addr){.generation = 1u + draw(), .peer = 0, .index = draw()};
    case 2:
        act_peer_number(rt, 9, 77, &peer);
        return (struct act_addr){.generation = UINT32_MAX, .peer = peer, .index = ACT_INDEX_MAX - 1};
    default:
        act_peer_number(rt, 4, 5000, &peer);
        return (struct act_addr){.generation = 1u + draw(), .peer = peer, .index = draw()};
    }
}

static void fill(void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] = draw();
}

/* Fields by type, so that addresses are real ones and padding stays zero. */
#define FILL_u8(p) fill(p, 1)
#define FILL_u16(p) fill(p, 2)
#define FILL_u32(p) fill(p, 4)
#define FILL_u64(p) fill(p, 8)
#define FILL_i32(p) fill(p, 4)
#define FILL_i64(p) fill(p, 8)
#define FILL_f32(p) (*(p) = (float)draw() / 7)
#define FILL_f64(p) (*(p) = (double)draw() / 7)
#define FILL_addr(p) (*(p) = some_addr())
#define FILL_key(p) fill(p, 32)

#define ACT_F(type, name) FILL_##type(&p->name);
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    static void fill_p_##name(struct act_p_##name *p)                                                                  \
    {                                                                                                                  \
        (void)p;                                                                                                       \
        fields                                                                                                         \
    }                                                                                                                  \
    static void fill_b_##name(struct act_b_##name *p)                                                                  \
    {                                                                                                                  \
        (void)p;                                                                                                       \
        body_fields                                                                                                    \
    }
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F

static void fill_message(struct act_msg *m)
{
    switch (m->type) {
#define ACT_F(type, name)
#define ACT_MESSAGE(number, NAME, name, scope, body, fields, body_fields)                                              \
    case number:                                                                                                       \
        fill_p_##name(act_p_##name(m));                                                                                \
        if (m->buf)                                                                                                    \
            fill_b_##name(act_b_##name(m));                                                                            \
        break;
#include "actors/runtime/messages.def"
#undef ACT_MESSAGE
#undef ACT_F
    default:
        break;
    }
}

static struct act_msg some_message(unsigned type, bool with_buffer)
{
    const struct act_type_info *t = act_type_info(type);
    struct act_msg m;
    size_t tail = t->body == ACT_BODY_FIXED ? 0 : draw() % 70;
    if (with_buffer)
        cr_assert_eq(act_msg_new((enum act_type)type, ACT_NOBODY, tail, &m), 0);
    else
        m = act_msg_make((enum act_type)type, ACT_NOBODY);
    m.src = some_addr();
    m.dst = some_addr();
    m.request = state;
    m.attempt = draw();
    m.flags = ACT_MSG_USER | ACT_MSG_REPLY;
    m.deadline = draw() % 3 ? 500 + draw() : ACT_NEVER;
    fill_message(&m);
    size_t n;
    void *p = act_msg_tail(&m, &n);
    fill(p, n);
    return m;
}

static void check_round_trip(struct act_msg *m)
{
    const char *name = act_type_name(m->type);
    size_t size = act_wire_size(m), written = 0, used = 0;
    cr_assert_gt(size, 0, "%s", name);
    uint8_t *bytes = malloc(size);
    cr_assert_eq(act_wire_encode(rt, m, 100, bytes, &written), 0, "%s", name);
    cr_assert_eq(written, size, "%s", name);
    struct act_msg back;
    struct cfg_error err;
    cr_assert_eq(act_wire_decode(rt, bytes, size, 1100, &back, &used, &err), 0, "%s: %s", name, err.msg);
    cr_assert_eq(used, size, "%s", name);
    cr_assert_eq(back.type, m->type, "%s", name);
    cr_assert(act_addr_equal(back.src, m->src) && act_addr_equal(back.dst, m->dst), "%s", name);
    cr_assert(back.request == m->request && back.attempt == m->attempt && back.flags == m->flags, "%s", name);
    cr_assert_eq(back.deadline, m->deadline == ACT_NEVER ? ACT_NEVER : m->deadline + 1000, "%s", name);
    cr_assert_arr_eq(back.data, m->data, ACT_INLINE_MAX, "%s", name);
    cr_assert_eq(back.buf == NULL, m->buf == NULL, "%s", name);
    if (m->buf) {
        cr_assert_eq(back.buf->size, m->buf->size, "%s", name);
        cr_assert_arr_eq(back.buf->data, m->buf->data, m->buf->size, "%s", name);
    }
    act_msg_drop(&back);
    /* Cut anywhere it asks for more; it never reads past the end (the copy has exactly the size). */
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *part = malloc(cut ? cut : 1);
        memcpy(part, bytes, cut);
        cr_assert_eq(act_wire_decode(rt, part, cut, 0, &back, &used, &err), -EAGAIN, "%s cut at %zu", name, cut);
        cr_assert_eq(used, cut < 4 ? 4 : size, "%s cut at %zu", name, cut);
        free(part);
    }
    /* With a length that lies, it is refused. */
    for (size_t cut = 4; cut < size; cut++) {
        uint32_t length = (uint32_t)(cut - 4);
        memcpy(bytes, &length, 4);
        cr_assert_eq(act_wire_decode(rt, bytes, cut, 0, &back, &used, &err), -EPROTO, "%s with length %zu", name, cut);
    }
    free(bytes);
}

Test(wire, every_type_that_crosses_round_trips)
{
    long before = act_buf_live();
    int types = 0;
    for (unsigned type = 1; type < ACT_TYPES; type++) {
        const struct act_type_info *t = act_type_info(type);
        if (!t->name || t->scope != ACT_SCOPE_CROSSES)
            continue;
        types++;
        for (int i = 0; i < 12; i++) {
            bool with = t->body == ACT_BODY_MUST || t->body == ACT_BODY_FIXED || (t->body == ACT_BODY_MAY && i % 2);
            struct act_msg m = some_message(type, with);
            check_round_trip(&m);
            act_msg_drop(&m);
        }
    }
    cr_assert_gt(types, 40, "only %d types", types);
    cr_assert_eq(act_buf_live(), before);
}

Test(wire, local_types_do_not_cross)
{
    for (unsigned type = 0; type < ACT_TYPES; type++) {
        const struct act_type_info *t = act_type_info(type);
        if (t->scope == ACT_SCOPE_CROSSES)
            continue;
        struct act_msg m = act_msg_make((enum act_type)type, ACT_NOBODY);
        cr_expect_eq(act_wire_size(&m), 0, "%s", act_type_name(type));
    }
}

/* A number of a page means nothing elsewhere, and a peer must not name blocks of this process. */
Test(wire, nothing_that_names_pages_crosses)
{
    static const enum act_type local[] = {ACT_KV_LOOKUP, ACT_KV_FOUND,    ACT_KV_ROWS,    ACT_KV_WANT, ACT_KV_STORE,
                                          ACT_SNAPSHOT,  ACT_PAGES_GIVEN, ACT_PAGES_BACK, ACT_HANDOFF, ACT_REPLAY};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        cr_expect_eq(act_type_info(local[i])->scope, ACT_SCOPE_LOCAL, "%s", act_type_name(local[i]));
}

Test(wire, refuses_what_does_not_fit)
{
    struct act_msg m = some_message(ACT_LOAD, true), back;
    memset(&back, 0xff, sizeof back); /* a decoder that leaves it alone would free this */
    uint8_t bytes[512], changed[512];
    size_t size, used;
    struct cfg_error err;
    cr_assert_eq(act_wire_encode(rt, &m, 0, bytes, &size), 0);
    act_msg_drop(&m);
    static const struct {
        size_t at;
        uint8_t value;
        const char *what;
    } table[] = {
        {3, 0xff, "a length beyond the limit"},        {4, 1, "a local type"},    {4, 127, "an unknown type"},
        {6, ACT_MSG_CONTROL, "a flag of the runtime"}, {10, 1, "the zero field"}, {27, 0x80, "a negative deadline"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        memcpy(changed, bytes, size);
        changed[table[i].at] = table[i].value;
        cr_expect_eq(act_wire_decode(rt, changed, size, 0, &back, &used, &err), -EPROTO, "%s", table[i].what);
        cr_expect_neq(err.msg[0], 0);
    }
    /* An address of an incarnation that is over. */
    uint16_t peer;
    cr_assert_eq(act_peer_number(rt, 50, 10, &peer), 0);
    m = act_msg_make(ACT_PING, (struct act_addr){.generation = 1, .peer = peer, .index = 1});
    cr_assert_eq(act_wire_encode(rt, &m, 0, bytes, &size), 0);
    cr_assert_eq(act_peer_number(rt, 50, 11, &peer), 0);
    cr_assert_eq(act_wire_decode(rt, bytes, size, 0, &back, &used, &err), -ESTALE);
}

Test(wire, incarnations)
{
    uint16_t a, b, c, node;
    uint64_t epoch;
    cr_assert_eq(act_peer_number(rt, 3, 1000, &a), 0);
    cr_assert_eq(a, 0, "this process is number 0");
    cr_assert_eq(act_peer_number(rt, 6, 20, &a), 0);
    cr_assert_eq(act_peer_number(rt, 6, 20, &b), 0);
    cr_assert_eq(a, b);
    cr_assert_eq(act_peer_number(rt, 6, 21, &b), 0);
    cr_assert_neq(a, b);
    cr_assert_eq(act_peer_number(rt, 6, 20, &c), -ESTALE, "a lower epoch than one that was seen");
    cr_assert_eq(act_peer_latest(rt, 6, &c), 0);
    cr_assert_eq(c, b);
    cr_assert_eq(act_peer_identity(rt, b, &node, &epoch), 0);
    cr_assert(node == 6 && epoch == 21);
    cr_assert_eq(act_peer_identity(rt, 4000, &node, &epoch), -ENOENT);
    cr_assert_eq(act_peer_number(rt, 6, 0, &c), -EINVAL);
    cr_assert_eq(act_peer_latest(rt, 60, &c), -ENOENT);
}

/* A node that comes back for ever uses up nothing; what others have been given stays theirs. */
Test(wire, more_incarnations_than_numbers)
{
    uint16_t stable, last = 0, number, node;
    uint64_t epoch;
    cr_assert_eq(act_peer_number(rt, 5, 7, &stable), 0);
    for (uint64_t i = 1; i <= 3 * ACT_PEERS_MAX; i++) {
        cr_assert_eq(act_peer_number(rt, (uint16_t)(6 + i % 3), i, &number), 0, "incarnation %llu",
                     (unsigned long long)i);
        cr_assert_eq(act_peer_identity(rt, number, &node, &epoch), 0);
        cr_assert(node == 6 + i % 3 && epoch == i);
        cr_assert(number != stable && number != last);
        last = number;
    }
    cr_assert_eq(act_peer_number(rt, 5, 7, &number), 0);
    cr_assert_eq(number, stable);
    cr_assert_eq(act_peer_number(rt, 6, 1, &number), -ESTALE);
    /* Living nodes alone may be too many. */
    int n = 0;
    while (n < ACT_PEERS_MAX && act_peer_number(rt, (uint16_t)(100 + n), 1, &number) == 0)
        n++;
    cr_assert(n < ACT_PEERS_MAX && n > ACT_PEERS_MAX - 10, "%d", n);
    cr_assert_eq(act_peer_number(rt, 99, 1, &number), -ENOSPC);
    cr_assert_eq(act_peer_identity(rt, last, &node, &epoch), 0);
    cr_assert_eq(epoch, 3 * ACT_PEERS_MAX);
}
