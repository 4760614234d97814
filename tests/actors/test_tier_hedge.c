/* Reads that go on at another tier: whoever is first is used, once, and nothing of who lost reaches the caller. Two ssd
 * tiers on simulated disks that hold back, tear and damage; then the engine's actors on top. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/tier_hedge.h"
#include "kvtiers/host.h"
#include "kvtiers/ssd.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/tier_world.h"

enum { BLOCKS = 24, FIRST = 1, SECOND = 2 };

struct two {
    struct kv_layout layout;
    struct kv_disk *disk[3];
    struct kv_storage *storage[3];
    struct kv_tier *tier[3]; /* [0] is never asked */
    struct act_hedger h;
    int began, ended;
};

static void note_begin(void *ctx, int tier, int n)
{
    (void)tier;
    ((struct two *)ctx)->began += n > 0;
}

static void note_end(void *ctx, int tier, int n, int ok, int status, int64_t ns)
{
    (void)tier;
    (void)n;
    (void)ns;
    cr_assert(ok == n || status);
    ((struct two *)ctx)->ended++;
}

static void open_two(struct two *t)
{
    struct cfg_error err;
    *t = (struct two){.layout = ts_layout(256)};
    for (int i = FIRST; i <= SECOND; i++) {
        t->disk[i] = kv_disk_new((uint64_t)i);
        t->storage[i] = kv_storage_sim_new(t->disk[i]);
        const struct kv_ssd_params p = {.storage = t->storage[i],
                                        .folder = "disk",
                                        .layout = t->layout,
                                        .bytes = 64 * (int64_t)t->layout.block_bytes,
                                        .direct = true,
                                        .clock = ts_clock};
        cr_assert_eq(kv_ssd_new(&p, &t->tier[i], &err), 0, "%s", err.msg);
        for (int k = 0; k < 16; k++) {
            t->tier[i]->ops->tick(t->tier[i]);
            ts_turn(t->storage[i]);
        }
        for (int k = 0; k < BLOCKS; k++)
            cr_assert(ts_store_one(t->tier[i], t->storage[i], &t->layout, k));
    }
    t->h = (struct act_hedger){.layout = t->layout,
                               .clock = ts_clock,
                               .tier = t->tier,
                               .n_tiers = 3,
                               .after_ns = 1000,
                               .limit = 16 << 20,
                               .began = note_begin,
                               .ended = note_end,
                               .ctx = t};
}

static void turn(struct two *t)
{
    act_hedge_turn(&t->h);
    for (int i = FIRST; i <= SECOND; i++)
        ts_turn(t->storage[i]);
}

static void close_two(struct two *t)
{
    for (int i = FIRST; i <= SECOND; i++)
        kv_disk_hold(t->disk[i], KV_IO_READ, "weft-kv.000", false);
    turn(t);
    cr_assert_null(t->h.first, "a read is left over");
    cr_assert_eq(t->h.used, 0u, "%zu bytes are left over", t->h.used);
    cr_assert_eq(t->h.live, 0);
    cr_assert_eq(t->began, t->ended);
    for (int i = FIRST; i <= SECOND; i++) {
        t->tier[i]->ops->free(t->tier[i]);
        kv_storage_free(t->storage[i]);
        kv_disk_free(t->disk[i]);
    }
}

static void rows(struct kv_tier_op *op, int source, int ok)
{
    struct ts_op *o = op->ctx;
    cr_assert_eq(source, o->n_rows, "sources come in order, once each");
    cr_assert_eq(o->done, 0);
    o->rows[o->n_rows++] = ok;
}

/* Blocks 0 .. n - 1, into memory that is watched until close. */
static void begin(struct two *t, struct ts_op *o, int n)
{
    *o = (struct ts_op){.memory = ts_block_memory(&t->layout, n)};
    for (int i = 0; i < n; i++)
        o->block[i] = (struct kv_tier_block){.key = ts_key(i), .bytes = o->memory + (size_t)i * t->layout.block_bytes};
    o->op = (struct kv_tier_op){.block = o->block, .n = n, .rows = rows, .done = ts_op_done, .ctx = o};
    act_hedge_read(&t->h, FIRST, &o->op);
}

static void check(struct two *t, struct ts_op *o, int count)
{
    cr_assert_eq(o->done, 1, "done %d times", o->done);
    cr_assert_eq(o->op.count, count, "%d blocks instead of %d", o->op.count, count);
    cr_assert_eq(o->n_rows, t->layout.n_sources);
    for (int i = 0; i < count; i++)
        cr_assert(ts_block_good(&t->layout, i, o->block[i].bytes), "block %d", i);
}

/* Tiers that note what somebody waits for. */
static const struct kv_tier_ops *real_ops;
static struct kv_tier *asked[2];
static int told[2];

static void note_read(struct kv_tier *t, struct kv_tier_op *op)
{
    told[t == asked[1]] = op->wanted;
    real_ops->read(t, op);
}

static void note_want(struct kv_tier *t, struct kv_tier_op *op, int sources)
{
    told[t == asked[1]] = sources;
    real_ops->want(t, op, sources);
}

/* What somebody waits for, each tier that is asked knows. */
Test(hedge, every_tier_is_told_what_is_waited_for)
{
    struct two t;
    struct ts_op o;
    open_two(&t);
    struct kv_tier_ops ops = *t.tier[FIRST]->ops;
    real_ops = t.tier[FIRST]->ops;
    ops.read = note_read;
    ops.want = note_want;
    for (int i = FIRST; i <= SECOND; i++) {
        kv_disk_hold(t.disk[i], KV_IO_READ, "weft-kv.000", true);
        asked[i - FIRST] = t.tier[i];
        t.tier[i]->ops = &ops;
        told[i - FIRST] = -1;
    }
    begin(&t, &o, BLOCKS);
    cr_assert_eq(told[0], 0);
    act_hedge_want(&t.h, FIRST, &o.op, 1);
    cr_assert_eq(told[0], 1);
    ts_clock_ns += 2000;
    turn(&t);
    cr_assert_eq(told[1], 1, "a tier that is asked later");
    act_hedge_want(&t.h, FIRST, &o.op, 2);
    cr_assert_eq(told[0], 2);
    cr_assert_eq(told[1], 2);
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", false);
    turn(&t);
    check(&t, &o, BLOCKS);
    ts_op_free(&o);
    close_two(&t);
}

static void damage(struct two *t, int tier)
{
    uint8_t *b = kv_disk_bytes(t->disk[tier], "weft-kv.000");
    for (int64_t at = 100; at < kv_disk_size(t->disk[tier], "weft-kv.000"); at += 512)
        b[at] ^= 0xff;
}

Test(hedge, a_read_in_time_asks_nobody_else)
{
    struct two t;
    struct ts_op o;
    open_two(&t);
    begin(&t, &o, BLOCKS);
    turn(&t);
    check(&t, &o, BLOCKS);
    cr_assert_eq(t.began, 1);
    ts_op_free(&o);
    close_two(&t);
}

/* The first tier is held back for ever: the second one is used. Its bytes come at last, damaged: nothing changes. */
Test(hedge, a_late_read_comes_from_the_second_tier_and_the_loser_touches_nothing)
{
    struct two t;
    struct ts_op o;
    open_two(&t);
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", true);
    begin(&t, &o, BLOCKS);
    turn(&t);
    cr_assert_eq(o.done, 0);
    cr_assert_eq(t.began, 1, "it is not late yet");
    ts_clock_ns += 1001;
    turn(&t);
    check(&t, &o, BLOCKS);
    cr_assert_eq(t.h.stats.asked[SECOND], (uint64_t)BLOCKS);
    cr_assert_eq(t.h.stats.won[SECOND], (uint64_t)BLOCKS);
    cr_assert_eq(t.h.live, 1, "the loser is still under way");
    cr_assert_eq(t.h.used, BLOCKS * t.layout.block_bytes, "with memory of its own");
    damage(&t, FIRST);
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", false);
    turn(&t);
    check(&t, &o, BLOCKS);
    ts_op_free(&o);
    close_two(&t);
}

/* The second one is asked and late too: the first one wins after all, and the second is the loser. */
Test(hedge, the_first_tier_may_still_win)
{
    struct two t;
    struct ts_op o;
    open_two(&t);
    for (int i = FIRST; i <= SECOND; i++)
        kv_disk_hold(t.disk[i], KV_IO_READ, "weft-kv.000", true);
    begin(&t, &o, BLOCKS);
    ts_clock_ns += 1001;
    turn(&t);
    cr_assert_eq(t.began, 2);
    ts_clock_ns += 1000000;
    turn(&t);
    cr_assert_eq(t.began, 2, "nobody is left to ask");
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", false);
    turn(&t);
    check(&t, &o, BLOCKS);
    cr_assert_eq(t.h.stats.won[SECOND], 0u);
    damage(&t, SECOND);
    kv_disk_hold(t.disk[SECOND], KV_IO_READ, "weft-kv.000", false);
    turn(&t);
    check(&t, &o, BLOCKS);
    ts_op_free(&o);
    close_two(&t);
}

/* What is bad at the first is asked of the second at once; what is bad at both ends the hit. */
Test(hedge, a_failed_read_goes_on_at_the_second_tier)
{
    for (int both = 0; both < 2; both++) {
        struct two t;
        struct ts_op o;
        open_two(&t);
        damage(&t, FIRST);
        if (both)
            kv_disk_fail(t.disk[SECOND], KV_IO_READ, "weft-kv.000", 10, 1000, -EIO);
        begin(&t, &o, BLOCKS);
        turn(&t);
        cr_assert_eq(t.began, 2);
        cr_assert_eq(o.done, 1);
        if (!both)
            check(&t, &o, BLOCKS);
        else
            cr_assert(o.op.count < BLOCKS && o.op.status);
        ts_op_free(&o);
        close_two(&t);
    }
}

/* A loser that has hardly begun stops: the disk is for others. */
Test(hedge, what_has_not_begun_is_cancelled)
{
    struct two t;
    struct ts_op o, more[12];
    struct kv_storage_stats s;
    open_two(&t);
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", true);
    for (int i = 0; i < 12; i++) /* more than the tier has requests at a time */
        begin(&t, &more[i], BLOCKS);
    begin(&t, &o, BLOCKS);
    t.storage[FIRST]->ops->stat(t.storage[FIRST], &s);
    uint64_t before = s.submitted;
    cr_assert_lt(before, 13u * BLOCKS * 2 + 200);
    ts_clock_ns += 1001;
    turn(&t);
    check(&t, &o, BLOCKS);
    for (int i = 0; i < 12; i++)
        check(&t, &more[i], BLOCKS);
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", false);
    turn(&t);
    t.storage[FIRST]->ops->stat(t.storage[FIRST], &s);
    cr_assert_eq(s.submitted, before, "%d reads were begun for nobody", (int)(s.submitted - before));
    for (int i = 0; i < 12; i++)
        ts_op_free(&more[i]);
    ts_op_free(&o);
    close_two(&t);
}

/* A tier whose reads the test answers. */
static struct kv_tier_op *teller_op, *telling;

static void teller_read(struct kv_tier *t, struct kv_tier_op *op)
{
    (void)t;
    teller_op = op;
}

static void teller_cancel(struct kv_tier *t, struct kv_tier_op *op)
{
    (void)t;
    cr_assert(op != telling, "cancelled by what it tells");
}

/* Tiers end a read inside cancel, so the one that brings the last source isn't cancelled from inside its call. */
Test(hedge, who_brings_the_last_source_is_not_cancelled_meanwhile)
{
    static const struct kv_tier_ops teller_ops = {.name = "teller", .read = teller_read, .cancel = teller_cancel};
    struct kv_tier teller = {.ops = &teller_ops}, *real;
    struct two t;
    struct ts_op o;
    open_two(&t);
    real = t.tier[SECOND];
    t.tier[SECOND] = &teller;
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", true);
    begin(&t, &o, BLOCKS);
    ts_clock_ns += 1001;
    turn(&t);
    cr_assert_not_null(teller_op);
    telling = teller_op;
    for (int source = 0; source < t.layout.n_sources; source++)
        teller_op->rows(teller_op, source, BLOCKS);
    telling = NULL;
    cr_assert_eq(o.done, 1);
    teller_op->count = BLOCKS;
    teller_op->done(teller_op);
    cr_assert_eq(o.done, 1);
    t.tier[SECOND] = real;
    ts_op_free(&o);
    close_two(&t);
}

/* Beyond its memory a read is an ordinary one. */
Test(hedge, memory_is_bounded)
{
    struct two t;
    struct ts_op o[3];
    open_two(&t);
    t.h.limit = 2 * BLOCKS * t.layout.block_bytes;
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", true);
    for (int i = 0; i < 3; i++)
        begin(&t, &o[i], BLOCKS);
    cr_assert_eq(t.h.stats.blind, 1u);
    ts_clock_ns += 1001;
    turn(&t);
    cr_assert_eq(t.began, 2, "there is no memory to ask a second one");
    kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", false);
    turn(&t);
    for (int i = 0; i < 3; i++) {
        check(&t, &o[i], BLOCKS);
        ts_op_free(&o[i]);
    }
    close_two(&t);
}

/* Who hedges has ended, and its memory and the callers' are gone, when tiers end what they were asked: both tiers late,
 * one of them, and one that has won a source already. */
Test(hedge, what_ends_after_the_end_touches_nothing)
{
    for (int how = 0; how < 3; how++) {
        struct two t;
        struct ts_op *o = malloc(2 * sizeof *o);
        cr_assert_not_null(o);
        open_two(&t);
        kv_disk_hold(t.disk[FIRST], KV_IO_READ, "weft-kv.000", true);
        kv_disk_hold(t.disk[SECOND], KV_IO_READ, "weft-kv.000", how != 1);
        for (int i = 0; i < 2; i++)
            begin(&t, &o[i], 8 + i);
        ts_clock_ns += 1001;
        act_hedge_turn(&t.h);
        if (how == 2) { /* some of it has come */
            kv_disk_hold(t.disk[SECOND], KV_IO_READ, "weft-kv.000", false);
            for (int k = 0; k < 5; k++)
                t.storage[SECOND]->ops->poll(t.storage[SECOND]);
        } else if (how == 1) {
            turn(&t);
        }
        cr_assert_gt(t.h.live, 0);
        const int done[] = {o[0].done, o[1].done}, ended = t.ended;
        act_hedge_stop(&t.h);
        cr_assert_null(t.h.first);
        cr_assert_eq(t.h.live, 0);
        memset(&t.h, 0xff, sizeof t.h);
        for (int i = 0; i < 2; i++) {
            cr_assert_eq(o[i].done, done[i]);
            ts_op_free(&o[i]);
        }
        free(o);
        for (int i = FIRST; i <= SECOND; i++) {
            kv_disk_hold(t.disk[i], KV_IO_READ, "weft-kv.000", false);
            ts_turn(t.storage[i]);
        }
        cr_assert_eq(t.ended, ended, "figures are nobody's any more");
        t.h = (struct act_hedger){0};
        t.began = t.ended;
        close_two(&t);
    }
}

/* The engine: the scripted tier is late or bad, a disk has the same blocks. */
static void engine(bool late, bool hedge)
{
    static struct ts_tiers r;
    memset(&r, 0, sizeof r);
    r.script.ok = -1;
    r.disk = kv_disk_new(9);
    for (int life = 0; life < 2; life++) {
        ts_tiers_open(&r, 64, true);
        ts_tiers_host(&r, 4);
        ts_tiers_script(&r);
        ts_tiers_ssd(&r, 128);
        ts_tiers_prompts(&r, life + 1);
        r.store.hedge_ns = hedge ? 50 * MS : 0;
        r.store.hedge_bytes = 16 << 20;
        if (life) {
            r.w.wanted[0].start = 1500 * MS; /* the disk's index has been read */
            r.w.wanted[1].start = 6000 * MS;
            r.script.garbage = true;
            r.script.ok = late ? -1 : 3;
            for (int s = 0; s < r.layout.n_sources && late; s++)
                r.script.at[s] = 4000 * MS;
            r.w.e.read_timeout_ns = 3000 * MS;
        }
        ts_world_run(&r.w, 3);
        for (int i = 0; i <= life; i++)
            ts_world_check_same(&r.w, i);
        if (life) {
            cr_assert_eq(r.w.got[0].cached, hedge || late ? 144 : 0, "%d", r.w.got[0].cached);
            cr_assert_eq(r.w.got[0].ended < 4000 * MS, hedge || !late);
        }
        ts_tiers_close(&r, !life);
    }
    kv_disk_free(r.disk);
}

Test(hedge, a_late_tier_does_not_hold_up_a_prompt)
{
    engine(true, true);
    engine(true, false);
}

/* The actor ends while both tiers have its reads, and they end them when it is gone. */
Test(hedge, reads_that_outlive_the_actor)
{
    static struct ts_tiers r;
    for (int hedge = 0; hedge < 2; hedge++) {
        memset(&r, 0, sizeof r);
        r.script.ok = -1;
        r.disk = kv_disk_new(9);
        for (int life = 0; life < 2; life++) {
            ts_tiers_open(&r, 64, true);
            ts_tiers_host(&r, 4);
            ts_tiers_ssd(&r, 128);
            ts_tiers_script(&r);
            ts_tiers_prompts(&r, 1);
            r.store.hedge_ns = hedge ? 50 * MS : 0;
            r.store.hedge_bytes = 16 << 20;
            r.w.wanted[0].start = 1500 * MS;
            r.w.e.read_timeout_ns = 500 * MS;
            if (life) {
                r.script.refuse = 1 << 20; /* the second one fails, the first one hangs */
                kv_disk_hold(r.disk, KV_IO_READ, "weft-kv.000", true);
            }
            ts_world_run(&r.w, 3);
            ts_world_check_same(&r.w, 0);
            cr_assert_eq(r.w.got[0].cached, 0);
            if (life) {
                struct kv_tier_stats s;
                r.store.tier[1]->ops->stat(r.store.tier[1], &s);
                cr_assert_gt(s.queue, 0, "nothing is being read");
                act_sim_free(r.w.sim); /* with pages in the hands of the tier */
                r.w.sim = NULL;
                kv_disk_hold(r.disk, KV_IO_READ, "weft-kv.000", false);
            } else {
                ts_world_check_baseline(&r.w);
            }
            ts_tiers_end(&r, !life);
        }
        kv_disk_free(r.disk);
    }
}

Test(hedge, a_bad_tier_costs_no_hit)
{
    engine(false, true);
    engine(false, false);
}
