/* The order in which the ssd and shared tiers, and the rows of tables, ask the storage for what they want: what
 * somebody waits for, what is read ahead, what is stored; and that nothing waits for ever. A storage that completes
 * nothing until it is told shows the order; a clock that stands still until it is told shows the bounds. */
#include "tests/harness.h"

#include "kvtiers/rows.h"
#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"
#include "kvtiers/storage_sim.h"
#include "tests/support/kv_blocks.h"

/* ---- a storage that holds reads and writes ---- */

enum { HELD_MAX = 4096 };

struct gate {
    struct kv_storage base;
    struct kv_storage *inner;
    bool shut;
    struct kv_io *held[HELD_MAX]; /* in the order in which they were asked */
    int n;
};

static void gate_submit(struct kv_storage *s, struct kv_io *io)
{
    struct gate *g = (struct gate *)s;
    if (!g->shut || (io->op != KV_IO_READ && io->op != KV_IO_WRITE)) {
        g->inner->ops->submit(g->inner, io);
        return;
    }
    cr_assert_lt(g->n, HELD_MAX);
    g->held[g->n++] = io;
}

static int gate_poll(struct kv_storage *s)
{
    struct gate *g = (struct gate *)s;
    return g->inner->ops->poll(g->inner);
}

static int gate_wait(struct kv_storage *s, int timeout_ms)
{
    struct gate *g = (struct gate *)s;
    return g->inner->ops->wait(g->inner, timeout_ms);
}

static int gate_descriptor(struct kv_storage *s)
{
    (void)s;
    return -1;
}

static int gate_register(struct kv_storage *s, void *base, size_t len)
{
    struct gate *g = (struct gate *)s;
    return g->inner->ops->register_memory(g->inner, base, len);
}

static void gate_stat(struct kv_storage *s, struct kv_storage_stats *out)
{
    struct gate *g = (struct gate *)s;
    g->inner->ops->stat(g->inner, out);
}

static const struct kv_storage_ops gate_ops = {
    .name = "gate",
    .submit = gate_submit,
    .poll = gate_poll,
    .wait = gate_wait,
    .descriptor = gate_descriptor,
    .register_memory = gate_register,
    .stat = gate_stat,
};

/* Completes the oldest request that is held. */
static void let_one(struct gate *g)
{
    struct kv_io *io = g->held[0];
    cr_assert_gt(g->n, 0);
    memmove(g->held, g->held + 1, (size_t)--g->n * sizeof *g->held);
    g->inner->ops->submit(g->inner, io);
    ts_turn(g->inner);
}

static void let_all(struct gate *g)
{
    g->shut = false;
    while (g->n)
        let_one(g);
    ts_turn(g->inner);
}

/* ---- the two tiers ---- */

struct rig {
    struct gate gate;
    struct kv_disk *disk;
    struct kv_layout layout;
    struct kv_tier *tier;
    int requests, kept; /* reads at a time; of these for what is waited for */
};

enum { BLOCKS = 500, RUN = 100 };

static void open_tier(struct rig *r, bool shared)
{
    struct cfg_error err;
    *r = (struct rig){.disk = kv_disk_new(1), .layout = ts_layout(256)};
    r->gate = (struct gate){.base = {&gate_ops}, .inner = kv_storage_sim_new(r->disk)};
    int e;
    if (shared) {
        e = kv_shared_new(&(struct kv_shared_params){.storage = &r->gate.base,
                                                     .folder = "disk",
                                                     .node = "a",
                                                     .layout = r->layout,
                                                     .bytes = 1 << 30,
                                                     .segment_bytes = 1 << 28,
                                                     .seal_ns = 100000000,
                                                     .poll_ns = 50000000,
                                                     .orphan_ns = INT64_C(60000000000),
                                                     .removals_per_s = 10,
                                                     .direct = true,
                                                     .clock = ts_clock},
                          &r->tier, &err);
    } else {
        e = kv_ssd_new(&(struct kv_ssd_params){.storage = &r->gate.base,
                                               .folder = "disk",
                                               .layout = r->layout,
                                               .bytes = 2 * BLOCKS * (int64_t)r->layout.block_bytes,
                                               .direct = true,
                                               .clock = ts_clock},
                       &r->tier, &err);
    }
    cr_assert_eq(e, 0, "%s", err.msg);
    r->requests = shared ? 128 : 192;
    r->kept = 16;
}

/* Blocks 0..BLOCKS-1 are there and found. */
static void fill(struct rig *r)
{
    static struct ts_op o;
    int n[RUN];
    for (int i = 0; i < BLOCKS; i += RUN) {
        for (int k = 0; k < RUN; k++)
            n[k] = i + k;
        ts_op_begin(&o, r->tier, &r->layout, TS_STORE, n, RUN);
        for (int k = 0; k < 1000 && !o.done; k++) {
            r->tier->ops->tick(r->tier);
            ts_turn(r->gate.inner);
        }
        cr_assert_eq(o.op.count, RUN);
        ts_op_free(&o);
    }
    for (int i = 0; i < 1000 && !ts_has(r->tier, r->gate.inner, &r->layout, BLOCKS - 1); i++) {
        ts_clock_ns += 20000000;
        r->tier->ops->tick(r->tier);
        ts_turn(r->gate.inner);
    }
    cr_assert(ts_has(r->tier, r->gate.inner, &r->layout, 0));
}

static void open_full(struct rig *r, bool shared)
{
    open_tier(r, shared);
    fill(r);
    r->gate.shut = true;
}

static void close_tier(struct rig *r)
{
    let_all(&r->gate);
    r->tier->ops->free(r->tier);
    kv_storage_free(r->gate.inner);
    kv_disk_free(r->disk);
}

static void read_begin(struct rig *r, struct ts_op *o, int first, int n)
{
    int number[TS_BLOCKS_MAX];
    for (int i = 0; i < n; i++)
        number[i] = first + i;
    ts_op_begin(o, r->tier, &r->layout, TS_READ, number, n);
}

static void want(struct rig *r, struct ts_op *o, int sources)
{
    kv_tier_want(r->tier, &o->op, sources);
}

static void check_read(struct rig *r, struct ts_op *o)
{
    cr_assert_eq(o->done, 1);
    cr_assert_eq(o->op.count, o->op.n);
    for (int i = 0; i < o->op.n; i++)
        cr_assert(ts_block_good(&r->layout, o->number[i], o->block[i].bytes));
    ts_op_free(o);
}

/* Which of a request's sources a held request brings; -1: it is another op's. */
static int source_of(const struct rig *r, const struct ts_op *o, const struct kv_io *io)
{
    const uint8_t *at = io->bytes;
    if (at < o->memory || at >= o->memory + (size_t)o->op.n * r->layout.block_bytes)
        return -1;
    size_t in = (size_t)(at - o->memory) % r->layout.block_bytes;
    return in >= r->layout.offset[1];
}

/* Of the held requests from `from` on. */
static int count(const struct rig *r, const struct ts_op *o, int source, int from)
{
    int n = 0;
    for (int i = from; i < r->gate.n; i++)
        n += source_of(r, o, r->gate.held[i]) == source;
    return n;
}

/* ---- */

/* 256 extents are read ahead, more than go at once. What a pass waits for does not stand behind them: it finds requests
 * that were kept for it, source by source, and no more of it than is waited for. */
static void wanted_first(bool shared)
{
    struct rig r;
    static struct ts_op ahead, other, pass;
    open_full(&r, shared);
    read_begin(&r, &ahead, 0, 128);
    read_begin(&r, &other, 128, 8);
    read_begin(&r, &pass, 136, 8);
    int full = r.requests - r.kept;
    cr_assert_eq(r.gate.n, full, "%d requests", r.gate.n);
    cr_assert_eq(count(&r, &ahead, 0, 0) + count(&r, &ahead, 1, 0), full, "the oldest read goes first");
    want(&r, &pass, 1);
    cr_assert_eq(count(&r, &pass, 0, full), 8, "what a pass waits for goes at once");
    cr_assert_eq(r.gate.n, full + 8, "and nothing else");
    for (int i = 0; i < 8; i++) {
        let_one(&r.gate); /* there are more than without it: nothing follows */
        cr_assert_eq(r.gate.n, full + 7 - i);
    }
    let_one(&r.gate);
    cr_assert_geq(source_of(&r, &ahead, r.gate.held[r.gate.n - 1]), 0, "then the oldest one goes on");
    want(&r, &pass, 2);
    cr_assert_eq(count(&r, &pass, 1, 0), 8);
    cr_assert_eq(count(&r, &other, 0, 0), 0);
    let_all(&r.gate);
    check_read(&r, &ahead);
    check_read(&r, &other);
    check_read(&r, &pass);
    close_tier(&r);
}

Test(order, what_a_pass_waits_for_goes_first)
{
    wanted_first(false);
    wanted_first(true);
}

/* A pass that says so with its read. */
static void wanted_from_the_beginning(bool shared)
{
    struct rig r;
    static struct ts_op ahead, pass;
    open_full(&r, shared);
    read_begin(&r, &ahead, 0, 128);
    int full = r.gate.n;
    pass = (struct ts_op){.memory = ts_block_memory(&r.layout, 4)};
    for (int i = 0; i < 4; i++) {
        pass.number[i] = 200 + i;
        pass.block[i] =
            (struct kv_tier_block){.key = ts_key(200 + i), .bytes = pass.memory + (size_t)i * r.layout.block_bytes};
    }
    pass.op = (struct kv_tier_op){.block = pass.block, .n = 4, .done = ts_op_done, .ctx = &pass, .wanted = 1};
    r.tier->ops->read(r.tier, &pass.op);
    cr_assert_eq(count(&r, &pass, 0, full), 4);
    cr_assert_eq(r.gate.n, full + 4);
    let_all(&r.gate);
    check_read(&r, &ahead);
    check_read(&r, &pass);
    close_tier(&r);
}

Test(order, a_read_can_say_from_the_beginning_that_it_is_waited_for)
{
    wanted_from_the_beginning(false);
    wanted_from_the_beginning(true);
}

/* However many passes wait: a read that has waited for KV_AGE_NS goes before what came later. */
static void read_ages(bool shared)
{
    struct rig r;
    static struct ts_op ahead, pass[2];
    open_full(&r, shared);
    read_begin(&r, &ahead, 0, 128);
    for (int i = 0; i < 2; i++) {
        read_begin(&r, &pass[i], 128 * (i + 1), 128);
        want(&r, &pass[i], 2);
    }
    cr_assert_eq(r.gate.n, r.requests);
    ts_clock_ns += KV_AGE_NS - 1;
    let_one(&r.gate);
    cr_assert_geq(source_of(&r, &pass[0], r.gate.held[r.gate.n - 1]), 0, "a pass waits");
    ts_clock_ns += 1;
    for (int i = 0; i < 8; i++) {
        let_one(&r.gate);
        cr_assert_geq(source_of(&r, &ahead, r.gate.held[r.gate.n - 1]), 0, "it has waited long enough");
    }
    let_all(&r.gate);
    check_read(&r, &ahead);
    check_read(&r, &pass[0]);
    check_read(&r, &pass[1]);
    close_tier(&r);
}

Test(order, reads_do_not_wait_for_ever)
{
    read_ages(false);
    read_ages(true);
}

static int writes_held(const struct rig *r)
{
    int n = 0;
    for (int i = 0; i < r->gate.n; i++)
        n += r->gate.held[i]->op == KV_IO_WRITE;
    return n;
}

/* A store begins no write while reads wait for their turn, until it has waited for KV_AGE_NS; then it comes to its end
 * beside reads that never do. */
static void stores_last(bool shared)
{
    struct rig r;
    static struct ts_op read[4], keep;
    const int some[] = {900, 901, 902};
    int next = 3;
    open_full(&r, shared);
    for (int i = 0; i < 3; i++)
        read_begin(&r, &read[i], 120 * i, 120);
    ts_op_begin(&keep, r.tier, &r.layout, TS_STORE, some, 3);
    ts_turn(r.gate.inner); /* of the shared tier: its segment is made */
    cr_assert_eq(writes_held(&r), 0, "a store goes before reads");
    for (int i = 0; i < 30; i++) {
        let_one(&r.gate);
        cr_assert_eq(writes_held(&r), 0, "a store goes before reads");
    }
    ts_clock_ns += KV_AGE_NS;
    let_one(&r.gate);
    cr_assert_gt(writes_held(&r), 0, "a store waits for ever");
    for (int i = 0; i < 2000 && !keep.done; i++) {
        let_one(&r.gate);
        for (int k = 0; k < 4; k++) /* reads go on and on */
            if (k < next && read[k].done) {
                check_read(&r, &read[k]);
                read_begin(&r, &read[k], 120 * k, 120);
            }
        if (next == 3) {
            read_begin(&r, &read[3], 360, 120);
            next = 4;
        }
        cr_assert_gt(r.gate.n, r.requests / 2, "reads are always waiting");
    }
    cr_assert_eq(keep.done, 1, "a store never ends beside reads");
    cr_assert_eq(keep.op.count, 3);
    ts_op_free(&keep);
    let_all(&r.gate);
    for (int k = 0; k < next; k++)
        check_read(&r, &read[k]);
    close_tier(&r);
}

Test(order, stores_go_behind_reads_and_not_for_ever)
{
    stores_last(false);
    stores_last(true);
}

/* ---- rows of tables ---- */

enum { ROW = 4096, ROWS = 3000 };

struct question {
    struct kv_rows_op op;
    uint64_t row[2000];
    int done;
};

static void on_rows(struct kv_rows_op *op)
{
    ((struct question *)op->ctx)->done++;
    cr_assert_eq(op->failed, 0);
}

static void ask(struct kv_rows *rows, struct question *q, int first, int n, uint8_t *out)
{
    *q = (struct question){.done = 0};
    for (int i = 0; i < n; i++)
        q->row[i] = (uint64_t)(first + i);
    q->op = (struct kv_rows_op){.row = q->row, .n = n, .out = out, .done = on_rows, .ctx = q};
    kv_rows_read(rows, &q->op);
}

static int row_held(const struct gate *g, int at)
{
    return (int)(g->held[at]->offset / ROW);
}

/* Rows that are read ahead fill all requests; a pass's rows go next, until the others have waited for KV_AGE_NS. */
Test(order, rows_that_a_pass_waits_for_go_before_those_read_ahead)
{
    struct kv_disk *disk = kv_disk_new(2);
    struct gate g = {.base = {&gate_ops}, .inner = kv_storage_sim_new(disk)};
    struct cfg_error err;
    struct kv_rows *rows;
    static struct question ahead, pass, later;
    uint8_t *out = malloc((size_t)ROWS * ROW);
    struct kv_io io = {.op = KV_IO_OPEN, .path = "weights", .flags = KV_OPEN_WRITE | KV_OPEN_CREATE};
    int f = (int)kv_io_run(g.inner, &io);
    memset(out, 7, (size_t)ROWS * ROW);
    io = (struct kv_io){.op = KV_IO_WRITE, .file = f, .bytes = out, .len = (size_t)ROWS * ROW};
    cr_assert_eq(kv_io_run(g.inner, &io), (int64_t)ROWS * ROW);
    const struct kv_rows_params p = {
        .storage = &g.base,
        .folder = "disk",
        .table = {{.part = {{"weights", 0, ROW}}, .n_parts = 1, .rows = ROWS}},
        .n_tables = 1,
        .cache_bytes = 1 << 20,
        .clock = ts_clock,
    };
    cr_assert_eq(kv_rows_new(&p, &rows, &err), 0, "%s", err.msg);
    g.shut = true;
    ask(rows, &ahead, 0, 1500, NULL);
    int full = g.n;
    cr_assert_lt(full, 1500);
    ask(rows, &pass, 2000, 4, out);
    ask(rows, &later, 2100, 4, out + 4 * ROW);
    for (int i = 0; i < 4; i++) {
        let_one(&g);
        cr_assert_eq(row_held(&g, full - 1), 2000 + i, "rows of a pass go next");
    }
    ts_clock_ns += KV_AGE_NS;
    let_one(&g);
    cr_assert_eq(row_held(&g, full - 1), full, "they have waited long enough");
    let_all(&g);
    cr_assert_eq(ahead.done + pass.done + later.done, 3);
    kv_rows_free(rows);
    kv_storage_free(g.inner);
    kv_disk_free(disk);
    free(out);
}
