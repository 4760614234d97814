#include "tests/support/ssd_rig.h"

#include "tests/harness.h"
#include "tests/support/kv_blocks.h"

static void on_log(void *ctx, bool warning, const char *text)
{
    (void)text;
    ((struct ts_ssd *)ctx)->warnings += warning;
}

int ts_ssd_try(struct ts_ssd *r, struct cfg_error *err)
{
    r->storage = kv_storage_sim_new(r->disk);
    cr_assert_not_null(r->storage);
    return kv_ssd_new(&(struct kv_ssd_params){.storage = r->storage,
                                              .folder = "disk",
                                              .layout = r->layout,
                                              .bytes = (int64_t)r->blocks * (int64_t)r->layout.block_bytes,
                                              .ttl_s = r->ttl,
                                              .write_bytes_per_day = r->per_day,
                                              .reserve = r->reserve,
                                              .file_bytes = r->file_bytes,
                                              .direct = true,
                                              .clock = ts_clock,
                                              .log = on_log,
                                              .log_ctx = r},
                      &r->tier, err);
}

void ts_ssd_settle(struct ts_ssd *r)
{
    for (int i = 0; i < 64; i++) {
        r->tier->ops->tick(r->tier);
        ts_turn(r->storage);
    }
}

void ts_ssd_open(struct ts_ssd *r)
{
    struct cfg_error err;
    cr_assert_eq(ts_ssd_try(r, &err), 0, "%s", err.msg);
    ts_ssd_settle(r);
}

void ts_ssd_new(struct ts_ssd *r, uint64_t seed, int blocks)
{
    *r = (struct ts_ssd){.disk = kv_disk_new(seed), .layout = ts_layout(256), .blocks = blocks};
    ts_ssd_open(r);
}

void ts_ssd_close(struct ts_ssd *r)
{
    if (r->tier)
        r->tier->ops->free(r->tier);
    r->tier = NULL;
    kv_storage_free(r->storage);
    r->storage = NULL;
}

void ts_ssd_free(struct ts_ssd *r)
{
    ts_ssd_close(r);
    kv_disk_free(r->disk);
}

void ts_ssd_crash(struct ts_ssd *r, enum kv_crash how)
{
    ts_ssd_close(r); /* its memory; a stopped storage completes nothing any more */
    kv_disk_crash(r->disk, how);
}

struct kv_tier_stats ts_ssd_stat(struct ts_ssd *r)
{
    struct kv_tier_stats s;
    r->tier->ops->stat(r->tier, &s);
    return s;
}

bool ts_ssd_store(struct ts_ssd *r, int n)
{
    return ts_store_one(r->tier, r->storage, &r->layout, n);
}

bool ts_ssd_has(struct ts_ssd *r, int n)
{
    return ts_has(r->tier, r->storage, &r->layout, n);
}

bool ts_ssd_read_back(struct ts_ssd *r, int n)
{
    return ts_read_one(r->tier, r->storage, &r->layout, n);
}
