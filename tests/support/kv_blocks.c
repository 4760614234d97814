/* Implementation of tests/support/kv_blocks.h. */
#include "tests/support/kv_blocks.h"

#include "tests/harness.h"

int64_t ts_clock_ns = 1, ts_clock_s = 1000000;

static int64_t clock_ns(void *ctx)
{
    (void)ctx;
    return ts_clock_ns;
}

static int64_t clock_s(void *ctx)
{
    (void)ctx;
    return ts_clock_s;
}

const struct kv_clock ts_clock = {clock_ns, clock_s, NULL};

struct kv_layout ts_layout(uint32_t block_tokens)
{
    const size_t bytes[] = {8192, 4096};
    struct kv_layout l;
    struct cfg_error err;
    cr_assert_eq(kv_layout_init(KV_FORMAT_ROWS, block_tokens, bytes, 2, &l, &err), 0, "%s", err.msg);
    return l;
}

struct kv_key ts_key(int n)
{
    struct kv_key root, key;
    const int32_t id = n;
    kv_key_root(&(struct kv_identity){.revision = 7, .format = KV_FORMAT_ROWS, .block_tokens = 256, .numerics = "test"},
                &root);
    kv_key_extend(&root, &id, 1, &key);
    return key;
}

static uint32_t word(int n, size_t i)
{
    uint32_t v = (uint32_t)n * 2654435761u ^ (uint32_t)i * 40503u;
    return v ^ v >> 13;
}

void ts_block_fill(const struct kv_layout *l, int n, uint8_t *bytes)
{
    for (size_t i = 0; i < l->block_bytes / 4; i++) {
        uint32_t v = word(n, i);
        memcpy(bytes + 4 * i, &v, 4);
    }
}

bool ts_block_good(const struct kv_layout *l, int n, const uint8_t *bytes)
{
    for (size_t i = 0; i < l->block_bytes / 4; i++) {
        uint32_t v = word(n, i);
        if (memcmp(bytes + 4 * i, &v, 4))
            return false;
    }
    return true;
}

uint8_t *ts_block_memory(const struct kv_layout *l, int blocks)
{
    uint8_t *p = aligned_alloc(KV_PAGE, (size_t)(blocks ? blocks : 1) * l->block_bytes);
    cr_assert_not_null(p);
    return p;
}

static void on_rows(struct kv_tier_op *op, int source, int ok)
{
    struct ts_op *o = op->ctx;
    cr_assert_eq(source, o->n_rows, "sources are reported in order");
    cr_assert_eq(o->done, 0);
    o->rows[o->n_rows++] = ok;
}

void ts_op_done(struct kv_tier_op *op)
{
    ((struct ts_op *)op->ctx)->done++;
}

void ts_op_begin(struct ts_op *o, struct kv_tier *t, const struct kv_layout *l, enum ts_verb verb, const int *number,
                 int n)
{
    memset(o, 0, sizeof *o);
    o->memory = ts_block_memory(l, n);
    memset(o->memory, 0xee, (size_t)n * l->block_bytes);
    for (int i = 0; i < n; i++) {
        o->number[i] = number[i];
        o->block[i] = (struct kv_tier_block){.key = ts_key(number[i]), .bytes = o->memory + (size_t)i * l->block_bytes};
        if (verb == TS_STORE)
            ts_block_fill(l, number[i], o->block[i].bytes);
    }
    o->op = (struct kv_tier_op){.block = o->block, .n = n, .rows = on_rows, .done = ts_op_done, .ctx = o};
    void (*const call[])(struct kv_tier *, struct kv_tier_op *) = {t->ops->lookup, t->ops->read, t->ops->store,
                                                                   t->ops->drop};
    call[verb](t, &o->op);
}

void ts_turn(struct kv_storage *s)
{
    struct kv_storage_stats st;
    while (s) {
        if (s->ops->poll(s))
            continue;
        s->ops->stat(s, &st);
        if (!st.in_flight || !s->ops->wait(s, 10000))
            break;
    }
}

void ts_op_run(struct ts_op *o, struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l, enum ts_verb verb,
               const int *number, int n)
{
    ts_op_begin(o, t, l, verb, number, n);
    while (!o->done && s && (s->ops->poll(s) || s->ops->wait(s, 10000)))
        ;
}

void ts_op_free(struct ts_op *o)
{
    free(o->memory);
    o->memory = NULL;
}

bool ts_store_one(struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l, int n)
{
    static struct ts_op o;
    ts_op_run(&o, t, s, l, TS_STORE, &n, 1);
    bool ok = o.done && o.op.count == 1;
    ts_op_free(&o);
    return ok;
}

bool ts_has(struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l, int n)
{
    static struct ts_op o;
    ts_op_run(&o, t, s, l, TS_LOOKUP, &n, 1);
    ts_op_free(&o);
    return o.done && o.op.count == 1;
}

bool ts_read_one(struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l, int n)
{
    static struct ts_op o;
    ts_op_run(&o, t, s, l, TS_READ, &n, 1);
    bool ok = o.done && o.op.count == 1;
    if (ok)
        cr_assert(ts_block_good(l, n, o.block[0].bytes), "block %d was delivered with wrong bytes", n);
    ts_op_free(&o);
    return ok;
}
