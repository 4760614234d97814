/* The engine's actors over an ssd tier whose disk stops at any of its write points, as that of a process that is killed
 * or of a machine that loses its power. Every request of the process that still runs is served with the tokens of a
 * plain run, and so is every request of the next one, on what the crash has left; a block that was reported durable is
 * there. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/less.h"
#include "tests/support/tier_world.h"

enum { KEYS_MAX = 128 };

struct seen {
    struct kv_key key[KEYS_MAX];
    int n;
};

static void note(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s)
{
    struct seen *s = ctx;
    (void)info;
    (void)age_s;
    if (s->n < KEYS_MAX)
        s->key[s->n++] = *key;
}

static void on_done(struct kv_tier_op *op)
{
    *(bool *)op->ctx = true;
}

static bool found(struct kv_tier *t, const struct kv_key *key)
{
    bool done = false;
    struct kv_tier_block block = {.key = *key};
    struct kv_tier_op op = {.block = &block, .n = 1, .done = on_done, .ctx = &done};
    t->ops->lookup(t, &op);
    return done && op.count == 1;
}

/* blocks: of the ssd tier. */
static void open_process(struct ts_tiers *r, int blocks)
{
    ts_tiers_open(r, 64, true);
    ts_tiers_host(r, 32);
    ts_tiers_ssd(r, blocks);
    ts_tiers_prompts(r, 2);
    ts_tiers_other(r, 1);
}

static void check_served(struct ts_tiers *r, const char *which, int64_t point)
{
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(r->w.got[i].terminal, 1, "%s, point %d: request %d has no end", which, (int)point, i);
        ts_world_check_same(&r->w, i);
    }
}

/* Whether the disk has stopped before everything was kept. room: the ssd tier keeps everything, so nothing may be lost.
 */
static bool stops_at(int64_t point, enum kv_crash how, bool room, int *hits)
{
    static struct ts_tiers r;
    static struct seen before;
    memset(&r, 0, sizeof r);
    before.n = 0;
    r.disk = kv_disk_new((uint64_t)point + 77);
    open_process(&r, room ? 240 : 16);
    kv_disk_stop_after(r.disk, point);
    ts_world_run(&r.w, (uint64_t)point + 1);
    check_served(&r, "first process", point);
    r.store.tier[1]->ops->each(r.store.tier[1], note, &before);
    bool stopped = kv_disk_stopped(r.disk);
    ts_tiers_close(&r, false);
    kv_disk_crash(r.disk, how);
    kv_disk_stop_after(r.disk, -1);
    open_process(&r, room ? 240 : 16);
    for (int i = 0; i < 2; i++)
        r.w.wanted[i].start += 500 * MS; /* the index is in memory by then */
    ts_world_run(&r.w, (uint64_t)point + 2);
    check_served(&r, "next process", point);
    for (int i = 0; i < before.n && room; i++)
        cr_assert(found(r.store.tier[1], &before.key[i]), "point %d: block %d of %d is lost", (int)point, i, before.n);
    *hits += r.w.got[0].cached > 0;
    if (!stopped && room)
        cr_assert_eq(r.w.got[0].cached, 144, "all was kept");
    ts_tiers_close(&r, false);
    kv_disk_free(r.disk);
    return stopped;
}

static void every_point(enum kv_crash how, bool room)
{
    int hits = 0;
    int64_t point = 0, step = ts_more(7 + TS_LESS, 1); /* every one in make test-long */
    while (stops_at(point, how, room, &hits))
        point += step;
    cr_assert_gt(point, 40, "%d write points", (int)point);
    cr_assert_gt(hits, room, "%d hits after %d crashes", hits, (int)(point / step));
}

Test(tier_crash, a_process_that_is_killed_at_any_write_loses_no_request, .timeout = 3600)
{
    every_point(KV_CRASH_KILL, true);
}

Test(tier_crash, a_power_cut_at_any_write_loses_no_request, .timeout = 3600)
{
    every_point(KV_CRASH_POWER, true);
}

/* So little room that blocks of one prompt make way for those of another one. */
Test(tier_crash, a_crash_while_blocks_make_way_loses_no_request, .timeout = 3600)
{
    every_point(KV_CRASH_POWER, false);
}
