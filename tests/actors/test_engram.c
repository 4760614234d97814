/* Engram rows from a row store instead of mapped tables: the same tokens, read under earlier layers and ahead of need,
 * whatever becomes of the disk or of the store. On the engine's actors in the simulation. */
#include "tests/harness.h"

#include <errno.h>

#include "kvtiers/storage_sim.h"
#include "tests/support/engine_world.h"

#define MS INT64_C(1000000)

struct rig {
    struct ts_world w;
    struct kv_disk *disk;
    struct act_engram_store store;
};

static int64_t world_ns(void *ctx)
{
    struct ts_world *w = ctx;
    return w->sim ? act_sim_now(w->sim) + 1 : 1;
}

static int64_t world_s(void *ctx)
{
    return 1 + world_ns(ctx) / (1000 * MS);
}

static void write_part(struct kv_storage *s, int file, const void *bytes, size_t len, uint64_t *at)
{
    struct kv_io io = {.op = KV_IO_WRITE, .file = file, .bytes = (void *)(uintptr_t)bytes, .len = len, .offset = *at};
    cr_assert_eq(kv_io_run(s, &io), (int64_t)len);
    *at += len;
}

/* The model's tables as a file on the simulated disk. */
static void open_rig(struct rig *r, int requests, int64_t cache)
{
    struct cfg_error err;
    memset(r, 0, sizeof *r);
    ts_world_open(&r->w, 120, 2);
    ts_world_requests(&r->w, requests, 11);
    const struct mdl_config *cfg = r->w.m->cfg;
    cr_assert_gt(cfg->n_engram, 1);
    r->disk = kv_disk_new(3);
    r->store = (struct act_engram_store){.storage = kv_storage_sim_new(r->disk), .clock = {world_ns, world_s, &r->w}};
    struct kv_rows_params p = {.storage = r->store.storage,
                               .folder = "disk",
                               .n_tables = cfg->n_engram,
                               .cache_bytes = cache,
                               .direct = true,
                               .clock = r->store.clock};
    static const char *const name[KV_ROWS_TABLES] = {"table0", "table1", "table2"};
    for (int e = 0; e < cfg->n_engram; e++) {
        const struct mdl_engram *t = &r->w.m->ck->engram[e];
        struct kv_io io = {.op = KV_IO_OPEN, .path = name[e], .flags = KV_OPEN_WRITE | KV_OPEN_CREATE};
        int file = (int)kv_io_run(r->store.storage, &io);
        size_t dim = (size_t)cfg->engram_dim, rows = (size_t)t->rows;
        uint64_t at = 0;
        p.table[e] = (struct kv_rows_table){.n_parts = 2, .rows = rows};
        p.table[e].part[0] = (struct kv_rows_part){name[e], at, (uint32_t)dim};
        write_part(r->store.storage, file, t->table, rows * dim, &at);
        p.table[e].part[1] = (struct kv_rows_part){name[e], at, (uint32_t)(dim / 32)};
        write_part(r->store.storage, file, t->table_scale, rows * dim / 32, &at);
    }
    cr_assert_eq(kv_rows_new(&p, &r->store.rows, &err), 0, "%s", err.msg);
    r->w.engram = &r->store;
}

static struct kv_rows_stats close_rig(struct rig *r)
{
    struct kv_rows_stats s;
    ts_world_check_baseline(&r->w);
    act_sim_free(r->w.sim);
    r->w.sim = NULL;
    kv_rows_stat(r->store.rows, &s);
    cr_assert_eq(s.queue, 0);
    kv_rows_free(r->store.rows);
    kv_storage_free(r->store.storage);
    kv_disk_free(r->disk);
    kv_device_free(r->w.e.device);
    act_map_free(r->w.map);
    mdl_model_close(r->w.m);
    return s;
}

static void check_all(struct rig *r)
{
    for (int i = 0; i < r->w.n; i++)
        ts_world_check_same(&r->w, i);
}

Test(engram, rows_of_the_store_give_the_tokens_of_mapped_tables)
{
    static struct rig r;
    static const int64_t cache[] = {1, 1 << 14, 1 << 20};
    for (int c = 0; c < 3; c++) {
        open_rig(&r, 12, cache[c]);
        ts_world_run(&r.w, (uint64_t)c + 1);
        check_all(&r);
        struct kv_rows_stats s = close_rig(&r);
        cr_assert_gt(s.rows, 1000u);
        cr_assert_gt(s.reads, 0u);
        cr_assert_gt(s.ahead, 0u, "prompts name what they will need");
        cr_assert_lt(s.reads, s.rows, "rows of a page and of several requests are read together");
    }
}

struct held {
    struct kv_disk *disk;
    int64_t until;     /* virtual ns */
    int first_late;    /* layer of the table that is held back */
    int before, after; /* dispatches of layers before it, and of others, while it is */
};

static bool hold_disk(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                      int *fail)
{
    struct held *h = w->before_ctx;
    (void)fail;
    if (who->part == TS_PART_EXPERT && m->type == ACT_EXPERT_DISPATCH && act_now(self) < h->until) {
        h->before += act_p_expert_dispatch(m)->layer < h->first_late;
        h->after += act_p_expert_dispatch(m)->layer >= h->first_late;
    }
    return false;
}

static void let_go(void *ctx)
{
    kv_disk_hold(((struct held *)ctx)->disk, KV_IO_READ, "table1", false);
}

/* Rows of the later table are held back: the layers before it run meanwhile, and it does not run without them. */
Test(engram, layers_run_while_rows_of_later_ones_are_read)
{
    static struct rig r;
    static struct held h;
    open_rig(&r, 4, 1 << 20);
    kv_disk_hold(r.disk, KV_IO_READ, "table1", true);
    h = (struct held){.disk = r.disk, .until = 300 * MS, .first_late = r.w.m->cfg->engram_layers[1]};
    r.w.before = hold_disk;
    r.w.before_ctx = &h;
    r.w.at = let_go;
    r.w.at_ns = h.until;
    ts_world_run(&r.w, 5);
    check_all(&r);
    cr_assert_gt(h.before, 0);
    cr_assert_eq(h.after, 0, "%d dispatches without the rows", h.after);
    close_rig(&r);
}

/* The disk answers nothing for long: rows come from the mapped checkpoint after a while. */
Test(engram, a_disk_that_hangs_holds_nobody_up)
{
    static struct rig r;
    static struct held h;
    open_rig(&r, 6, 1 << 20);
    kv_disk_hold(r.disk, KV_IO_READ, "table1", true);
    h = (struct held){.disk = r.disk};
    r.w.at = let_go;
    r.w.at_ns = 50000 * MS;
    r.w.before_ctx = &h;
    ts_world_run(&r.w, 5);
    check_all(&r);
    for (int i = 0; i < r.w.n; i++)
        cr_assert_lt(r.w.got[i].ended, 50000 * MS);
    close_rig(&r);
}

Test(engram, a_disk_that_fails_costs_nothing)
{
    static struct rig r;
    for (int kind = 0; kind < 2; kind++) {
        open_rig(&r, 6, 1 << 12);
        kv_disk_fail(r.disk, KV_IO_READ, "table0", 5, 40, kind ? 100 : -EIO);
        ts_world_run(&r.w, 6);
        check_all(&r);
        struct kv_rows_stats s = close_rig(&r);
        cr_assert(kind || s.errors > 0);
    }
}

static bool kill_engram(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                        int *fail)
{
    int *dispatches = w->before_ctx;
    (void)fail;
    if (who->part == TS_PART_EXPERT && m->type == ACT_EXPERT_DISPATCH && ++*dispatches == 20)
        act_exit(self, w->e.experts.engram, -EIO);
    return false;
}

Test(engram, without_the_store_rows_come_from_the_mapped_tables)
{
    static struct rig r;
    int dispatches = 0;
    open_rig(&r, 6, 1 << 12);
    r.w.before = kill_engram;
    r.w.before_ctx = &dispatches;
    ts_world_run(&r.w, 7);
    check_all(&r);
    cr_assert_ge(dispatches, 20);
    close_rig(&r);
}
