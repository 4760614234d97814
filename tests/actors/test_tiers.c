/* The engine's actors with tiers below the device, in the simulation: reads under compute, failures, crowds. In exact
 * mode every request must have the tokens of a plain run, wherever its rows came from. */
#include "tests/harness.h"

#include <errno.h>

#include "tests/support/less.h"
#include "tests/support/tier_world.h"

static void stored(struct kv_tier_op *op)
{
    (void)op;
}

Test(tiers, blocks_come_back_from_below)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    ts_tiers_second(&r, 64);
    ts_tiers_prompts(&r, 1);
    ts_world_run(&r.w, 2);
    ts_world_check_same(&r.w, 0);
    cr_assert_eq(r.w.got[0].cached, 144, "%d", r.w.got[0].cached);
    cr_assert_eq(r.script.reads, 1);
    ts_tiers_close(&r, false);
}

/* Each block comes from the first tier that has it, also where that one lacks some before: what is in memory is not
 * read from below because something before it was. */
Test(tiers, blocks_come_from_the_first_tier_that_has_them)
{
    static struct ts_tiers r;
    static struct ts_script last; /* has everything, too */
    struct kv_tier_stats before, after;
    ts_tiers_prepare(&r);
    ts_tiers_second(&r, 64);
    last = r.script;
    last.reads = 0;
    r.store.tier[r.store.n_tiers++] = &last.base;
    for (int i = 1; i < 6; i += 2) {
        struct kv_tier_op op = {.block = &r.script.block[i], .n = 1, .done = stored};
        r.store.tier[0]->ops->store(r.store.tier[0], &op);
        cr_assert_eq(op.count, 1);
    }
    r.store.tier[0]->ops->stat(r.store.tier[0], &before);
    r.script.bytes = 0;
    ts_tiers_prompts(&r, 1);
    ts_world_run(&r.w, 2);
    ts_world_check_same(&r.w, 0);
    cr_assert_eq(r.w.got[0].cached, 144, "%d", r.w.got[0].cached);
    r.store.tier[0]->ops->stat(r.store.tier[0], &after);
    cr_assert_eq(after.read - before.read, 3u, "%d blocks came from memory", (int)(after.read - before.read));
    cr_assert_eq(r.script.reads, 4, "%d reads", r.script.reads);
    cr_assert_eq(r.script.bytes, 6 * (uint64_t)r.layout.block_bytes);
    cr_assert_eq(last.reads, 0);
    last.n = 0; /* its blocks are those of the other */
    ts_tiers_close(&r, false);
}

/* ---- overlap ---- */

/* Each source's rows are held back for a long time: the layers before it have run by then, and it has not. The tier
 * knows by then that the pass waits for that source, and for no later one. */
Test(tiers, layers_run_while_rows_of_later_ones_are_held_back)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    const int sources = r.layout.n_sources;
    for (int held = 0; held < sources; held++) {
        static struct ts_trace t;
        memset(&t, 0, sizeof t);
        ts_tiers_second(&r, 64);
        ts_tiers_prompts(&r, 1);
        r.w.before = ts_note_layers;
        r.w.before_ctx = &t;
        for (int s = 0; s < sources; s++)
            r.script.at[s] = s >= held ? 1000 * MS : 0;
        r.script.wanted = 0;
        ts_world_run(&r.w, 3);
        cr_assert_eq(r.script.wanted, held + 1, "%d sources instead of %d are waited for", r.script.wanted, held + 1);
        ts_world_check_same(&r.w, 0);
        cr_assert_eq(r.w.got[0].cached, 144);
        int layer = r.w.m->cfg->kv_sources[held];
        cr_assert_gt(layer, 0);
        for (int l = 0; l < layer; l++)
            cr_assert_lt(t.first[l], 500 * MS, "layer %d waited for the rows of layer %d", l, layer);
        cr_assert_ge(t.first[layer], 1000 * MS, "layer %d ran without its rows", layer);
        ts_tiers_close(&r, true);
        memset(r.script.at, 0, sizeof r.script.at);
    }
    ts_tiers_forget(&r);
}

/* A node that computes a prompt up to the cut sends all rows of its hit, also of sources that no layer before the cut
 * reads, and that arrive when the rest has long been computed. Nor does it publish their blocks before. */
Test(tiers, rows_that_no_layer_here_reads_are_sent_when_they_have_come)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    const int sources = r.layout.n_sources;
    int32_t ids[8];
    for (int held = sources; held >= 0; held--) {
        ts_tiers_open(&r, 64, false);
        ts_tiers_host(&r, 4);
        ts_tiers_script(&r);
        ts_world_split(&r.w, 64, MDL_HANDOFF_ENCODER);
        ts_tiers_prompts(&r, 1);
        r.w.wanted[0].temperature = 0;
        for (int s = 0; s < sources; s++)
            r.script.at[s] = s >= held ? 1000 * MS : 0;
        r.script.garbage = true;
        ts_world_run(&r.w, 11);
        cr_assert_eq(r.w.got[0].cached, 144, "%d", r.w.got[0].cached);
        cr_assert_eq(r.w.got[0].n, 8);
        if (held < sources)
            cr_assert_ge(r.w.got[0].ended, 1000 * MS, "answered before source %d has come", held);
        else
            memcpy(ids, r.w.got[0].ids, sizeof ids);
        for (int k = 0; k < 8; k++)
            cr_assert_eq(r.w.got[0].ids[k], ids[k], "source %d late: another text, from token %d on", held, k);
        ts_tiers_close(&r, true);
    }
    ts_tiers_forget(&r);
}

/* Nobody says what is below: the prompt is computed after the time that rows would have had, with nobody else there who
 * gives the device tier a turn. What is said long after is for nobody. */
Test(tiers, tiers_below_that_do_not_answer_are_done_without)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    for (int answered = 0; answered < 2; answered++) {
        ts_tiers_second(&r, 64);
        ts_tiers_prompts(&r, 1);
        r.script.lookups_at = answered ? 2500 * MS : 50000 * MS;
        ts_world_run(&r.w, 2);
        ts_world_check_same(&r.w, 0);
        cr_assert_eq(r.w.got[0].cached, 0);
        cr_assert_ge(r.w.got[0].ended, 2000 * MS);
        cr_assert_lt(r.w.got[0].ended, 2400 * MS, "it waited until %d ms", (int)(r.w.got[0].ended / MS));
        cr_assert_eq(r.script.n_lookups, 0);
        ts_tiers_close(&r, true);
    }
    ts_tiers_forget(&r);
}

/* A prompt that waits for rows holds up nobody. */
Test(tiers, others_go_on_while_a_prompt_waits_for_rows)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    ts_tiers_second(&r, 64);
    ts_tiers_prompts(&r, 2);
    r.w.wanted[1].start = 100 * MS;
    for (int k = 0; k < 160; k++)
        r.w.wanted[1].prompt[k] = (k * 17 + 3) % r.w.m->cfg->vocab_size;
    r.script.at[0] = r.script.at[1] = 1500 * MS;
    ts_world_run(&r.w, 4);
    for (int i = 0; i < 2; i++)
        ts_world_check_same(&r.w, i);
    cr_assert_lt(r.w.got[1].ended, 1000 * MS, "it ended at %d ms", (int)(r.w.got[1].ended / MS));
    cr_assert_ge(r.w.got[0].ended, 1500 * MS);
    cr_assert_eq(r.w.got[0].cached, 144);
    ts_tiers_close(&r, false);
}

/* ---- failures ---- */

/* Rows 44, 47, 86: what cannot be read is computed; any number of leading blocks may have come. */
Test(tiers, a_failed_read_is_computed)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    for (int ok = 0; ok <= 8; ok++) {
        ts_tiers_second(&r, 64);
        ts_tiers_prompts(&r, 2); /* the second one comes when all is over */
        r.script.ok = ok;
        r.script.garbage = true;
        r.w.wanted[1].start = 5000 * MS;
        ts_world_run(&r.w, (uint64_t)ok + 5);
        for (int i = 0; i < 2; i++)
            ts_world_check_same(&r.w, i);
        cr_assert_eq(r.w.got[0].cached, 0, "an exact restart needs more than %d blocks", ok);
        cr_assert_eq(r.w.got[1].cached, 144, "computed blocks are found afterwards");
        ts_tiers_close(&r, true);
    }
    ts_tiers_forget(&r);
}

/* A tier that does not answer, from the first source on or from a later one: the prompt waits until the deadline and no
 * longer. */
Test(tiers, a_read_that_does_not_come_is_computed_after_its_deadline)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    for (int held = 0; held < r.layout.n_sources; held++) {
        ts_tiers_second(&r, 64);
        ts_tiers_prompts(&r, 1);
        r.w.e.read_timeout_ns = 50 * MS;
        for (int s = 0; s < r.layout.n_sources; s++)
            r.script.at[s] = s >= held ? 20000 * MS : 0;
        ts_world_run(&r.w, 5);
        ts_world_check_same(&r.w, 0);
        cr_assert_eq(r.w.got[0].terminal, 1);
        cr_assert_lt(r.w.got[0].ended, 5000 * MS, "it ended at %d ms", (int)(r.w.got[0].ended / MS));
        ts_tiers_close(&r, true);
    }
    ts_tiers_forget(&r);
}

/* A read that comes after its deadline finds no page of anybody: its bytes must do no harm. */
Test(tiers, a_late_read_writes_into_nobodys_pages)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    for (int seed = 0; seed < 4; seed++) {
        ts_tiers_second(&r, 64);
        ts_tiers_prompts(&r, 4);
        r.w.e.read_timeout_ns = 50 * MS;
        r.script.ok = 0;
        r.script.garbage = true;
        r.script.at[0] = 120 * MS;
        r.script.at[1] = (200 + 300 * seed) * MS;
        for (int i = 1; i < 4; i++) { /* others want pages all the while */
            r.w.wanted[i].start = (40 + 30 * i) * MS;
            for (int k = 0; k < 160 && i < 3; k++)
                r.w.wanted[i].prompt[k] = (k * (17 + i) + 3) % r.w.m->cfg->vocab_size;
        }
        r.w.wanted[3].start = 3000 * MS; /* finds what the first one computed */
        r.w.cost[TS_PART_PREFILL] = MS;
        ts_world_run(&r.w, (uint64_t)seed + 1);
        cr_assert_eq(r.w.got[3].cached, 144);
        for (int i = 0; i < 4; i++)
            ts_world_check_same(&r.w, i);
        ts_tiers_close(&r, true);
    }
    ts_tiers_forget(&r);
}

/* A cancelled prompt is gone at once, not when its rows have come; its pages stay out of use until then. */
Test(tiers, a_cancelled_prompt_does_not_wait_for_its_rows)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    ts_tiers_second(&r, 24);
    ts_tiers_prompts(&r, 3);
    r.script.ok = 0;
    r.script.garbage = true;
    r.script.at[0] = r.script.at[1] = 900 * MS;
    r.w.wanted[0].cancel = 50 * MS;
    for (int i = 1; i < 3; i++) {
        r.w.wanted[i].start = (60 + 300 * i) * MS;
        for (int k = 0; k < 160; k++)
            r.w.wanted[i].prompt[k] = (k * (17 + i) + 3) % r.w.m->cfg->vocab_size;
    }
    ts_world_run(&r.w, 1);
    for (int i = 1; i < 3; i++)
        ts_world_check_same(&r.w, i);
    cr_assert_lt(r.w.got[1].ended, 900 * MS);
    ts_tiers_close(&r, false);
}

/* An interrupted prompt keeps what was computed of it. */
Test(tiers, blocks_of_a_cancelled_prompt_are_found)
{
    static struct ts_tiers r;
    memset(&r, 0, sizeof r);
    ts_tiers_open(&r, 64, false);
    ts_tiers_host(&r, 32);
    ts_tiers_prompts(&r, 2);
    r.w.cost[TS_PART_PREFILL] = MS;
    r.w.wanted[0].cancel = 100 * MS;
    r.w.wanted[1].start = 2000 * MS;
    ts_world_run(&r.w, 1);
    cr_assert_eq(r.w.got[0].n, 0, "it was cancelled before its first token");
    cr_assert_gt(r.w.got[1].cached, 0);
    cr_assert_lt(r.w.got[1].cached, 144);
    cr_assert_eq(r.w.got[1].terminal, 1);
    ts_tiers_close(&r, false);
}

/* Two prompts that want the same blocks share one read. */
Test(tiers, one_read_serves_two_prompts)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    for (int ok = -1; ok < 3; ok += 3) {
        ts_tiers_second(&r, 64);
        ts_tiers_prompts(&r, 2);
        r.w.wanted[1].start = 10 * MS;
        r.script.ok = ok;
        r.script.reads = 0;
        r.script.at[1] = 500 * MS;
        ts_world_run(&r.w, 6);
        for (int i = 0; i < 2; i++) {
            ts_world_check_same(&r.w, i);
            cr_assert_eq(r.w.got[i].cached, ok < 0 ? 144 : 0);
        }
        cr_assert_eq(r.script.reads, 1, "%d reads", r.script.reads);
        ts_tiers_close(&r, true);
    }
    ts_tiers_forget(&r);
}

/* Row 50: a hit is not cut short because pages are: it waits for them, and is whole then; but not for ever. */
static void short_of_pages(int64_t timeout, int cached)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    ts_tiers_second(&r, 18);
    ts_tiers_prompts(&r, 2);
    if (timeout)
        r.w.e.read_timeout_ns = timeout;
    r.w.e.limits.lease = 1;
    r.w.wanted[0].max_new = 24;
    for (int k = 0; k < 160; k++)
        r.w.wanted[0].prompt[k] = (k * 17 + 3) % r.w.m->cfg->vocab_size;
    r.w.wanted[1].start = 20 * MS;
    r.w.cost[TS_PART_PREFILL] = r.w.cost[TS_PART_DECODE] = MS;
    ts_world_run(&r.w, 12);
    for (int i = 0; i < 2; i++)
        ts_world_check_same(&r.w, i);
    cr_assert_eq(r.w.got[1].cached, cached, "%d", r.w.got[1].cached);
    cr_assert_gt(r.w.got[1].ended, r.w.got[0].ended);
    ts_tiers_close(&r, false);
}

Test(tiers, a_hit_waits_for_its_pages)
{
    short_of_pages(0, 144);
}

Test(tiers, a_hit_waits_for_its_pages_until_its_deadline)
{
    short_of_pages(2 * MS, 0);
}

/* What is on the device needs no page: at the deadline the answer has it all the same. The prompt, which needs pages
 * for its other blocks, then gets the whole hit as soon as they come. */
Test(tiers, a_hit_that_waited_too_long_for_pages_keeps_what_is_on_the_device)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    ts_tiers_open(&r, 18, false);
    ts_tiers_host(&r, 4);
    ts_tiers_script(&r);
    ts_tiers_prompts(&r, 3);
    r.w.e.read_timeout_ns = 2 * MS;
    r.w.e.limits.lease = 1;
    r.w.wanted[0].n_prompt = 80; /* five of the blocks */
    r.w.wanted[0].max_new = 1;
    ts_tiers_other(&r, 1);
    r.w.wanted[1].max_new = 24;
    r.w.wanted[2].start = r.w.wanted[1].start + 20 * MS;
    r.w.cost[TS_PART_PREFILL] = r.w.cost[TS_PART_DECODE] = MS;
    ts_world_run(&r.w, 12);
    cr_assert_eq(r.w.got[1].terminal, 1);
    cr_assert_eq(r.w.got[2].terminal, 1);
    cr_assert_gt(r.w.got[2].ended, r.w.got[1].ended);
    cr_assert_eq(r.w.got[2].cached, 144, "%d", r.w.got[2].cached);
    ts_tiers_close(&r, false);
}

static bool kill_store(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                       int *fail)
{
    (void)fail;
    if (who->part == TS_PART_TIER && m->type == *(const enum act_type *)w->before_ctx)
        act_exit(self, w->e.store, -EIO);
    return false;
}

/* Row 57: the tiers below end, before a lookup or between lookup and read: everybody is served from what is left. */
Test(tiers, requests_are_served_when_the_tiers_below_are_gone)
{
    static struct ts_tiers r;
    static const enum act_type when[] = {ACT_KV_LOOKUP, ACT_TIER_FOUND};
    ts_tiers_prepare(&r);
    for (int i = 0; i < 2; i++) {
        ts_tiers_second(&r, 64);
        ts_tiers_prompts(&r, 3);
        r.w.before = kill_store;
        r.w.before_ctx = (void *)&when[i];
        ts_world_run(&r.w, 13);
        for (int k = 0; k < 3; k++)
            ts_world_check_same(&r.w, k);
        cr_assert_eq(r.w.got[0].cached, 0);
        cr_assert_eq(r.w.got[2].cached, 144, "the pages go on as a cache");
        ts_tiers_close(&r, true);
    }
    ts_tiers_forget(&r);
}

/* Six prompts that differ, whose blocks the script has. */
static void six_kept(struct ts_tiers *r)
{
    ts_tiers_prepare(r);
    ts_tiers_second(r, 80);
    ts_tiers_prompts(r, 6);
    for (int i = 1; i < 6; i++)
        ts_tiers_other(r, i);
    ts_world_run(&r->w, 3);
    cr_assert_ge(r->script.n, 54);
    ts_tiers_close(r, true);
}

/* A disk or file system that hangs keeps the pages of what was begun: at most half of all, also before it is known to
 * hang (late_ns 0: never). So everybody is computed; when it is back, what comes later is read again. */
static void reads_hang(struct ts_tiers *r, int64_t late_ns)
{
    ts_tiers_second(r, 34); /* three prompts and a little */
    ts_tiers_prompts(r, 7);
    r->w.e.read_timeout_ns = 500 * MS;
    r->store.late_ns = late_ns;
    for (int i = 1; i < 7; i++) {
        if (i < 6)
            ts_tiers_other(r, i);
        r->w.wanted[i].start = (i < 6 ? 50 * i : 42000) * MS;
    }
    r->w.cost[TS_PART_PREFILL] = MS;
    r->script.at[0] = 40000 * MS;
    r->script.reads = 0;
    ts_world_run(&r->w, 14);
    for (int i = 0; i < 7; i++)
        ts_world_check_same(&r->w, i);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(r->w.got[i].cached, 0);
        cr_assert_lt(r->w.got[i].ended, 30000 * MS, "request %d", i);
    }
    if (late_ns)
        cr_assert_eq(r->w.got[6].cached, 144, "it is back");
    cr_assert_le(r->script.reads, 3, "%d reads", r->script.reads);
    ts_tiers_close(r, true);
}

Test(tiers, a_tier_whose_reads_hang_costs_its_pages_and_no_more)
{
    static struct ts_tiers r;
    six_kept(&r);
    reads_hang(&r, 125 * MS);
    reads_hang(&r, 0);
    ts_tiers_forget(&r);
}

/* A tier that takes no store to its end neither keeps blocks from the others nor the host tier to itself. */
Test(tiers, a_tier_whose_stores_hang_holds_up_no_other)
{
    static struct ts_tiers r;
    struct kv_tier_stats s;
    ts_tiers_prepare(&r);
    r.disk = kv_disk_new(5);
    ts_tiers_open(&r, 80, true);
    ts_tiers_host(&r, 12);
    ts_tiers_script(&r);
    ts_tiers_ssd(&r, 240);
    ts_tiers_prompts(&r, 6);
    for (int i = 1; i < 6; i++)
        ts_tiers_other(&r, i);
    r.store.late_ns = 125 * MS;
    r.script.stores_at = INT64_MAX;
    ts_world_run(&r.w, 15);
    r.store.tier[2]->ops->stat(r.store.tier[2], &s);
    cr_assert_ge(s.stored, 54u, "%d blocks reached the disk", (int)s.stored);
    r.store.tier[0]->ops->stat(r.store.tier[0], &s);
    cr_assert_ge(s.stored, 54u);
    ts_tiers_close(&r, false);
    kv_disk_free(r.disk);
}

/* A prefix that costs more to read than to compute is computed, by what both were measured to cost; and a tier that was
 * slow is not given up for ever. */
Test(tiers, what_is_cheaper_to_compute_is_not_read)
{
    static struct ts_tiers r;
    ts_tiers_prepare(&r);
    for (int dear = 0; dear < 2; dear++) {
        ts_tiers_second(&r, 24); /* small, so that the other prompts push the blocks out of it */
        ts_tiers_prompts(&r, 9);
        for (int i = 1; i < 8; i++)
            if (i != 4)
                ts_tiers_other(&r, i);
        for (int i = 5; i < 9; i++)
            r.w.wanted[i].start = (50000 + 200 * i) * MS; /* much later */
        r.w.cost[TS_PART_PREFILL] = MS;                   /* tens of milliseconds for a prompt */
        r.script.byte_ns = dear ? 7000 : 0;
        r.script.cheap_at = 30000 * MS;
        r.script.reads = 0;
        ts_world_run(&r.w, 9);
        for (int i = 0; i < 9; i++)
            ts_world_check_same(&r.w, i);
        cr_assert_eq(r.w.got[0].cached, 144, "nothing is known yet");
        cr_assert_eq(r.w.got[4].cached, dear ? 0 : 144);
        cr_assert_eq(r.w.got[8].cached, 144, "it is tried again");
        cr_assert_eq(r.script.reads, dear ? 5 : 3, "%d reads",
                     r.script.reads); /* the other prompts are there by now, too */
        ts_tiers_close(&r, true);
    }
    ts_tiers_forget(&r);
}

/* Pages that another prompt needs are taken from the end of a prefix that nobody uses. */
Test(tiers, an_evicted_prefix_loses_its_end_first)
{
    static struct ts_tiers r;
    memset(&r, 0, sizeof r);
    ts_tiers_open(&r, 14, false);
    ts_tiers_prompts(&r, 3);
    ts_tiers_other(&r, 1);
    r.w.e.limits.lease = 1;
    r.w.wanted[1].n_prompt = 90;
    r.w.store = NULL;
    ts_world_run(&r.w, 5);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(r.w.got[i].terminal, 1);
    cr_assert_gt(r.w.got[2].cached, 0);
    cr_assert_lt(r.w.got[2].cached, 144, "%d: nothing was evicted", r.w.got[2].cached);
    ts_tiers_close(&r, false);
}

/* What leaves the device and comes back from memory went to the kv nodes when it was computed, and not once more. The
 * last block of a prompt is computed in every turn. */
Test(tiers, what_comes_back_from_memory_is_not_sent_to_the_nodes_again)
{
    enum { TURNS = 8 };
    static struct ts_tiers r;
    struct kv_tier_stats host;
    memset(&r, 0, sizeof r);
    r.script.ok = -1;
    ts_tiers_open(&r, 14, true);
    ts_tiers_host(&r, 64);
    ts_tiers_script(&r);
    r.store.nodes = &r.script.base;
    ts_tiers_prompts(&r, TURNS);
    for (int i = 1; i < TURNS; i += 2)
        ts_tiers_other(&r, i);
    for (int i = 3; i < TURNS; i += 2)
        memcpy(r.w.wanted[i].prompt, r.w.wanted[1].prompt, sizeof r.w.wanted[i].prompt);
    ts_world_run(&r.w, 6);
    for (int i = 0; i < TURNS; i++)
        ts_world_check_same(&r.w, i);
    r.store.tier[0]->ops->stat(r.store.tier[0], &host);
    cr_assert_geq(host.read, 3 * 9u, "%d blocks came back from memory", (int)host.read);
    cr_assert_eq(r.script.reads, 0);
    cr_assert_geq(r.script.n, 18, "%d blocks", r.script.n);
    cr_assert_leq(r.script.offered, r.script.n + TURNS - 2, "%d blocks were sent %d times", r.script.n,
                  r.script.offered);
    ts_tiers_close(&r, false);
}

/* ---- crowds ---- */

/* Row 39, 51: 96 clients with few different prompts in tiny pools, on a disk that fails now and then: everybody gets
 * the tokens of a plain run. */
static void crowd(uint64_t seed, bool faults)
{
    static struct ts_tiers r;
    enum { CLIENTS = 96 };
    int cached = 0, cancelled = 0;
    memset(&r, 0, sizeof r);
    r.disk = kv_disk_new(seed);
    ts_tiers_open(&r, 44, true);
    r.w.cost[TS_PART_PREFILL] = MS; /* computing is not for nothing */
    ts_tiers_host(&r, 40);
    ts_tiers_ssd(&r, 240);
    ts_world_requests(&r.w, CLIENTS, (unsigned)seed);
    for (int i = 0; i < CLIENTS; i++) {
        struct ts_wanted *q = &r.w.wanted[i];
        int which = i % 5;
        q->n_prompt = 150 + i % 20;
        q->max_new = 1 + i % 6;
        q->start = (i / 4) * 40 * MS;
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = k < 146 ? (k * (13 + which) + which) % r.w.m->cfg->vocab_size : (k * 7 + i) % 200;
        if (i % 11 == 10)
            q->cancel = q->start + (int64_t)(seed * 7919 + (uint64_t)i * 104729) % (60 * MS);
    }
    if (faults) {
        kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.000", 20, 3, -EIO);
        kv_disk_fail(r.disk, KV_IO_READ, "weft-kv.000", 60, 2, 4096);
        kv_disk_fail(r.disk, KV_IO_WRITE, "weft-kv.000", 50, 1, -ENOSPC);
        kv_disk_fail(r.disk, KV_IO_SYNC, NULL, 9, 1, -EIO);
    }
    ts_world_run(&r.w, seed);
    for (int i = 0; i < CLIENTS; i++) {
        cancelled += r.w.wanted[i].cancel != 0;
        if (r.w.wanted[i].cancel)
            continue;
        ts_world_check_same(&r.w, i);
        cached += r.w.got[i].cached > 0;
    }
    struct kv_tier_stats host, s;
    r.store.tier[0]->ops->stat(r.store.tier[0], &host);
    r.store.tier[1]->ops->stat(r.store.tier[1], &s);
    cr_assert_gt(cached, CLIENTS / 3, "%d hits", cached);
    cr_assert_gt(host.read, 50u, "%d blocks were read from memory", (int)host.read);
    cr_assert_gt(s.read, 50u, "%d blocks were read from the disk", (int)s.read);
    cr_assert_eq(s.errors > 0, faults);
    cr_assert_eq(s.bad, 0u);
    ts_tiers_close(&r, false);
    kv_disk_free(r.disk);
}

Test(tiers, ninety_six_clients_in_tiny_pools, .timeout = 3600)
{
    for (int i = 0; i < ts_more(1, 20); i++) {
        crowd((uint64_t)(2 * i + 1), false);
        crowd((uint64_t)(2 * i + 2), true);
    }
}
