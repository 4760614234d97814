/* Defects that caches of this kind have had elsewhere, each brought about on purpose (tests/README.md has the list), on
 * the engine's actors in the simulation. Finished blocks carry a canary in all of these worlds. */
#include "tests/harness.h"

#include <xxhash.h>

#include "actors/tier_device.h"
#include "tests/support/tier_world.h"

/* ---- 40: a block is found only when it is computed ---- */

struct early {
    struct kv_device *device;
    size_t bytes;
    struct {
        int page;
        struct kv_key key;
        uint64_t sum;
    } block[512];
    int n, computing, during; /* dispatches without their result; blocks that were published meanwhile */
};

static bool note_published(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                           int *fail)
{
    struct early *e = w->before_ctx;
    (void)self;
    (void)fail;
    if (who->part == TS_PART_EXPERT)
        e->computing += m->type == ACT_EXPERT_DISPATCH;
    if (who->part == TS_PART_PREFILL || who->part == TS_PART_DECODE)
        e->computing -= m->type == ACT_EXPERT_RESULT;
    if (who->part == TS_PART_TIER && m->type == ACT_KV_STORE) {
        size_t bytes;
        const struct act_tier_block *b = act_msg_tail(m, &bytes);
        for (uint32_t i = 0; i < act_p_kv_store(m)->blocks && e->n < 512; i++, e->n++) {
            e->block[e->n].page = (int)b[i].page;
            kv_key_block((const struct kv_key *)&b[i].chain, &e->block[e->n].key);
            e->block[e->n].sum = XXH3_64bits(kv_device_bytes(e->device, (int)b[i].page), e->bytes);
            e->during += e->computing > 0;
        }
    }
    return false;
}

/* Computing takes long, with other prompts of the same beginning at every moment of it. A block that is published has
 * the bytes that it keeps, and who finds it has the tokens of a plain run. */
Test(tier_faults, row_40_a_block_is_published_when_it_is_computed)
{
    static struct ts_tiers r;
    static struct early e;
    memset(&r, 0, sizeof r);
    memset(&e, 0, sizeof e);
    ts_tiers_open(&r, 200, true);
    ts_tiers_host(&r, 64);
    ts_tiers_prompts(&r, 8);
    r.w.apart = true;
    r.w.link = (struct act_sim_fault){.delay_min = MS, .delay_max = 20 * MS};
    for (int i = 1; i < 8; i++)
        r.w.wanted[i].start = (60 + 97 * i) * MS;
    e.device = r.w.e.device;
    e.bytes = r.w.e.layout.block_bytes;
    r.w.before = note_published;
    r.w.before_ctx = &e;
    ts_world_run(&r.w, 40);
    int hits = 0;
    for (int i = 0; i < 8; i++) {
        ts_world_check_same(&r.w, i);
        hits += r.w.got[i].cached > 0;
    }
    cr_assert_gt(hits, 0);
    cr_assert_lt(hits, 7, "some came while the first was being computed");
    cr_assert_ge(e.n, 9);
    cr_assert_gt(e.during, 0, "others were computing when blocks were published");
    int checked = 0;
    for (int i = 0; i < e.n; i++) {
        struct kv_block_info info;
        int page = kv_device_find(e.device, &e.block[i].key, &info);
        if (page == e.block[i].page) { /* else another page had that block before, and this one went its way */
            cr_assert_eq(XXH3_64bits(kv_device_bytes(e.device, page), e.bytes), e.block[i].sum,
                         "page %d was published before it was finished", page);
            checked++;
        }
        if (page >= 0)
            kv_device_release(e.device, page);
    }
    cr_assert_ge(checked, 9);
    ts_tiers_close(&r, false);
}

/* ---- 45, 47: a hit is as long as the shortest of its parts ---- */

enum { LONG = 232, BLOCKS = 14 }; /* tokens of a prompt, and its full blocks */

static void prepare_long(struct ts_tiers *r)
{
    memset(r, 0, sizeof *r);
    r->script.ok = -1;
    ts_tiers_open(r, 64, true);
    r->w.e.limits.context = TS_WORLD_IDS;
    ts_tiers_host(r, 32);
    ts_tiers_script(r);
    ts_tiers_prompts(r, 1);
    r->w.wanted[0].n_prompt = LONG;
    for (int k = 0; k < LONG; k++)
        r->w.wanted[0].prompt[k] = (k * 31 + 7) % r->w.m->cfg->vocab_size;
    ts_world_run(&r->w, 1);
    cr_assert_ge(r->script.n, BLOCKS);
    ts_tiers_close(r, true);
}

static int hit_of(struct ts_tiers *r, uint64_t seed)
{
    ts_tiers_second(r, 64);
    r->w.e.limits.context = TS_WORLD_IDS;
    ts_tiers_prompts(r, 1);
    r->w.wanted[0].n_prompt = LONG;
    for (int k = 0; k < LONG; k++)
        r->w.wanted[0].prompt[k] = (k * 31 + 7) % r->w.m->cfg->vocab_size;
    ts_world_run(&r->w, seed);
    ts_world_check_same(&r->w, 0);
    int cached = r->w.got[0].cached;
    ts_tiers_close(r, true);
    return cached;
}

/* Every source has its own number of blocks that can be read. */
Test(tier_faults, row_45_a_hit_is_as_long_as_its_shortest_source)
{
    static struct ts_tiers r;
    prepare_long(&r);
    cr_assert_eq(hit_of(&r, 1), 16 * BLOCKS);
    const int sources = r.layout.n_sources;
    for (int s = 0; s < sources; s++)
        for (int ok = 9; ok < BLOCKS; ok += 2) {
            for (int k = 0; k < sources; k++)
                r.script.ok_of[k] = k == s ? ok : BLOCKS;
            r.script.garbage = true;
            cr_assert_eq(hit_of(&r, (uint64_t)ok), 16 * ok, "source %d has %d blocks", s, ok);
        }
    ts_tiers_forget(&r);
}

struct evict {
    struct ts_tiers *r;
    int block; /* of the script */
};

/* When the answer to a lookup is on its way, the block goes. */
static bool evict_after_lookup(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                               int *fail)
{
    struct evict *e = w->before_ctx;
    (void)self;
    (void)fail;
    if (who->part == TS_PART_TIER && m->type == ACT_TIER_FOUND)
        e->r->script.block[e->block].key = (struct kv_key){{1}};
    return false;
}

/* One of two tiers that hold parts of a prefix evicts in between. */
Test(tier_faults, row_45_a_tier_that_evicts_after_the_lookup_shortens_the_hit)
{
    static struct ts_tiers r;
    for (int gone = 9; gone < BLOCKS; gone += 2) {
        prepare_long(&r);
        struct evict e = {&r, -1};
        ts_tiers_second(&r, 64);
        r.w.e.limits.context = TS_WORLD_IDS;
        ts_tiers_prompts(&r, 2);
        r.w.wanted[1].start = 5000 * MS;
        for (int i = 0; i < 2; i++) {
            r.w.wanted[i].n_prompt = LONG;
            for (int k = 0; k < LONG; k++)
                r.w.wanted[i].prompt[k] = (k * 31 + 7) % r.w.m->cfg->vocab_size;
        }
        e.block = gone; /* stored in the order of the prompt */
        r.w.before = evict_after_lookup;
        r.w.before_ctx = &e;
        ts_world_run(&r.w, 45);
        for (int i = 0; i < 2; i++)
            ts_world_check_same(&r.w, i);
        cr_assert_eq(r.w.got[0].cached, 16 * gone, "%d tokens instead of %d", r.w.got[0].cached, 16 * gone);
        cr_assert_eq(r.w.got[1].cached, 16 * BLOCKS, "what was computed instead is found");
        ts_tiers_close(&r, false);
    }
}

/* The same where the prefix is in two tiers, and the first of them brings less than it has promised: what the second
 * one brings behind that is of no use. */
Test(tier_faults, row_47_blocks_behind_a_gap_are_no_hit)
{
    static struct ts_tiers r;
    memset(&r, 0, sizeof r);
    r.script.ok = -1;
    r.disk = kv_disk_new(47);
    for (int second = 0; second < 2; second++) {
        ts_tiers_open(&r, 64, true);
        r.w.e.limits.context = TS_WORLD_IDS;
        ts_tiers_host(&r, second ? 4 : 32);
        ts_tiers_script(&r);
        ts_tiers_ssd(&r, 240);
        ts_tiers_prompts(&r, 1);
        r.w.wanted[0].start = 500 * MS; /* the index has been read */
        r.w.wanted[0].n_prompt = LONG;
        for (int k = 0; k < LONG; k++)
            r.w.wanted[0].prompt[k] = (k * 31 + 7) % r.w.m->cfg->vocab_size;
        if (second) { /* the first tier has eleven and brings nine, the other one has them all */
            for (int i = 11; i < r.script.n; i++)
                memset(&r.script.block[i].key, i, sizeof r.script.block[i].key);
            r.script.ok = 9;
            r.script.garbage = true;
        }
        ts_world_run(&r.w, 47);
        ts_world_check_same(&r.w, 0);
        cr_assert_eq(r.w.got[0].cached, second ? 16 * 9 : 0, "%d", r.w.got[0].cached);
        ts_tiers_close(&r, !second);
    }
    kv_disk_free(r.disk);
}

/* ---- 49: a hit that is not read is not told ---- */

Test(tier_faults, row_49_a_read_that_is_not_begun_leaves_no_hit)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    ts_tiers_second(&r, 64);
    ts_tiers_prompts(&r, 3);
    r.script.refuse = 1;
    ts_tiers_other(&r, 1);
    r.w.wanted[1].start = 1000 * MS;
    r.w.wanted[2].start = 3000 * MS;
    ts_world_run(&r.w, 49);
    for (int i = 0; i < 3; i++)
        ts_world_check_same(&r.w, i);
    cr_assert_eq(r.w.got[0].cached, 0, "%d tokens are told that were computed", r.w.got[0].cached);
    cr_assert_eq(r.w.got[1].cached, 0, "and the next prompt knows nothing of them");
    cr_assert_eq(r.w.got[2].cached, 144);
    ts_tiers_close(&r, false);
}

/* ---- 48, 51: window rows ---- */

/* In the default mode a prompt goes on from window rows of the pool, or replays them. The same prompt, again and again,
 * from the device, from a host tier that keeps few blocks, from a disk, with other prompts in between that take all the
 * room: the same hit and the same tokens each time. */
static void again_and_again(bool pool)
{
    static struct ts_tiers r;
    enum { TIMES = 8 };
    memset(&r, 0, sizeof r);
    r.disk = kv_disk_new(51);
    ts_tiers_open(&r, 26, false);
    r.w.e.snapshots = pool;
    r.w.cost[TS_PART_PREFILL] = MS; /* computing is not for nothing */
    ts_tiers_host(&r, 5);
    ts_tiers_ssd(&r, 240);
    ts_tiers_prompts(&r, 3 * TIMES);
    for (int i = 0; i < 3 * TIMES; i++) {
        r.w.wanted[i].start = 500 * i * MS;
        r.w.wanted[i].temperature = 0;
        if (i % 3)
            ts_tiers_other(&r, i);
    }
    ts_world_run(&r.w, pool);
    for (int i = 3; i < 3 * TIMES; i += 3) {
        cr_assert_eq(r.w.got[i].n, 8);
        cr_assert_gt(r.w.got[i].cached, 0, "time %d", i / 3);
        cr_assert_eq(r.w.got[i].cached, r.w.got[3].cached, "time %d: %d instead of %d tokens", i / 3, r.w.got[i].cached,
                     r.w.got[3].cached);
        for (int k = 0; k < 8; k++)
            cr_assert_eq(r.w.got[i].ids[k], r.w.got[3].ids[k], "time %d, token %d", i / 3, k);
    }
    struct kv_tier_stats s;
    r.store.tier[1]->ops->stat(r.store.tier[1], &s);
    cr_assert_gt(s.read, 0u, "nothing came from the disk");
    ts_tiers_close(&r, false);
    kv_disk_free(r.disk);
}

Test(tier_faults, row_48_one_prompt_again_and_again_from_window_rows_of_the_pool)
{
    again_and_again(true);
}

Test(tier_faults, row_51_one_prompt_again_and_again_with_replayed_window_rows)
{
    again_and_again(false);
}

/* Two prompts that end alike and begin differently, both of which have left window rows in the pool: each goes on from
 * its own. */
Test(tier_faults, row_51_window_rows_of_a_prompt_that_begins_differently)
{
    static struct ts_tiers r;
    memset(&r, 0, sizeof r);
    ts_tiers_open(&r, 200, false);
    r.w.e.snapshots = true;
    ts_tiers_host(&r, 64);
    ts_tiers_prompts(&r, 6);
    for (int i = 0; i < 6; i++) {
        r.w.wanted[i].start = 500 * i * MS;
        r.w.wanted[i].temperature = 0;
        r.w.wanted[i].prompt[0] = 40 + i % 2;
    }
    ts_world_run(&r.w, 51);
    for (int i = 0; i < 6; i++) {
        ts_world_check_same(&r.w, i);
        cr_assert_eq(r.w.got[i].cached > 0, i >= 2, "request %d: %d", i, r.w.got[i].cached);
    }
    ts_tiers_close(&r, false);
}

/* Rows that an interrupted prompt has computed behind a replayed hit are not what a cold run writes. The next prompt of
 * the same text goes on from them, with the tokens that it has right behind the clean ones. */
static struct ts_outcome behind_an_interrupted_prompt(bool interrupted)
{
    static struct ts_tiers r;
    memset(&r, 0, sizeof r);
    ts_tiers_open(&r, 200, false);
    r.w.e.limits.context = TS_WORLD_IDS;
    ts_tiers_host(&r, 64);
    ts_tiers_prompts(&r, 3);
    r.w.cost[TS_PART_PREFILL] = MS;
    for (int i = 0; i < 3; i++) {
        r.w.wanted[i].start = 3000 * i * MS;
        r.w.wanted[i].n_prompt = i ? LONG : 100;
        r.w.wanted[i].max_new = 1;
        for (int k = 0; k < LONG; k++)
            r.w.wanted[i].prompt[k] = (k * 31 + 7) % r.w.m->cfg->vocab_size;
    }
    r.w.wanted[2].max_new = 8;
    r.w.wanted[2].logprobs = true;
    r.w.wanted[1].cancel = interrupted ? 3150 * MS : 1;
    ts_world_run(&r.w, 51);
    cr_assert_eq(r.w.got[1].n, 0, "it was cancelled before its first token");
    struct ts_outcome got = r.w.got[2];
    ts_tiers_close(&r, false);
    return got;
}

Test(tier_faults, row_51_what_was_computed_behind_a_replayed_hit_is_not_clean)
{
    struct ts_outcome clean = behind_an_interrupted_prompt(false), more = behind_an_interrupted_prompt(true);
    cr_assert_eq(clean.cached, 96, "%d tokens", clean.cached);
    cr_assert_gt(more.cached, 96, "%d tokens", more.cached);
    cr_assert_eq(more.n, clean.n);
    for (int i = 0; i < clean.n; i++) {
        cr_assert_eq(more.ids[i], clean.ids[i], "token %d", i);
        cr_assert_eq(memcmp(&more.logprob[i], &clean.logprob[i], sizeof(float)), 0, "token %d", i);
    }
}
