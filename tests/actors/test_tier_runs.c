/* Blocks that were written behind a replayed hit, on the engine's actors in the simulation: they are kept below the
 * device under names of their own, what is found of them goes on with the bits of the run that wrote them, and who
 * wants rows of a cold run never gets them. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "actors/recipe.h"
#include "actors/tier_device.h"
#include "tests/support/tier_world.h"

/* Turns of one conversation, each the beginning of the next, and the full blocks of each in tokens. */
enum { FIRST = 100, SECOND = 190, THIRD = 232, FOURTH = 240, NEW = 8 };
enum { CLEAN = FIRST / TS_WORLD_BLOCK * TS_WORLD_BLOCK, RUN = SECOND / TS_WORLD_BLOCK * TS_WORLD_BLOCK };

static void say(struct ts_tiers *r, int n, const int *tokens)
{
    r->w.e.limits.context = TS_WORLD_IDS;
    ts_tiers_prompts(r, n);
    for (int i = 0; i < n; i++) {
        r->w.wanted[i].n_prompt = tokens[i];
        r->w.wanted[i].max_new = NEW;
        r->w.wanted[i].logprobs = true;
        r->w.wanted[i].temperature = 0;
        r->w.wanted[i].start = 3000 * i * MS;
        for (int k = 0; k < tokens[i]; k++)
            r->w.wanted[i].prompt[k] = (k * 31 + 7) % r->w.m->cfg->vocab_size;
    }
}

/* What is on the device has the bytes that were stored below. Returns how many blocks behind a replay. */
static int check_restored(struct ts_tiers *r)
{
    int tainted = 0;
    for (int i = 0; i < r->script.n; i++) {
        struct kv_block_info info;
        int page = kv_device_find(r->w.e.device, &r->script.block[i].key, &info);
        if (page < 0)
            continue;
        cr_assert_eq(info.taint, r->script.block[i].info.taint);
        cr_assert_eq(info.hit, r->script.block[i].info.hit);
        for (int s = 0; s < r->layout.n_sources; s++)
            cr_assert_arr_eq(kv_device_bytes(r->w.e.device, page) + r->layout.offset[s],
                             r->script.block[i].bytes + r->layout.offset[s], r->w.e.layout.source[s].bytes,
                             "block %d, source %d", i, s);
        tainted += info.taint == KV_TAINTED;
        kv_device_release(r->w.e.device, page);
    }
    return tainted;
}

/* A process that knows nothing but what the script has answers a prompt of so many tokens. */
static struct ts_outcome ask(struct ts_tiers *r, bool exact, int tokens)
{
    ts_tiers_open(r, 64, exact);
    ts_tiers_host(r, 4);
    ts_tiers_script(r);
    say(r, 1, &tokens);
    ts_world_run(&r->w, (uint64_t)tokens);
    struct ts_outcome got = r->w.got[0];
    cr_assert_eq(got.terminal, 1);
    cr_assert_eq(got.status, 0);
    if (exact)
        ts_world_check_same(&r->w, 0);
    cr_assert_eq(check_restored(r) > 0,
                 !exact && got.cached && tokens > FIRST && tokens / TS_WORLD_BLOCK * TS_WORLD_BLOCK > got.cached);
    ts_tiers_close(r, true);
    return got;
}

static void begin(struct ts_tiers *r)
{
    memset(r, 0, sizeof *r);
    r->script.ok = -1;
}

static void same(const struct ts_outcome *a, const struct ts_outcome *b, const char *what)
{
    cr_assert_eq(a->n, b->n, "%s", what);
    for (int i = 0; i < a->n; i++) {
        cr_assert_eq(a->ids[i], b->ids[i], "%s, token %d", what, i);
        cr_assert_eq(memcmp(&a->logprob[i], &b->logprob[i], sizeof *a->logprob), 0, "%s, log-probability %d", what, i);
    }
}

static bool same_logprobs(const struct ts_outcome *a, const struct ts_outcome *b)
{
    return a->n == b->n && !memcmp(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob);
}

static const struct kv_tier_block *stored(const struct ts_tiers *r, const struct kv_key *key)
{
    for (int i = 0; i < r->script.n; i++)
        if (!memcmp(&r->script.block[i].key, key, sizeof *key))
            return &r->script.block[i];
    return NULL;
}

/* Blocks that both have a name for have the same bytes; how many of those behind a replay. */
static int check_equal_names(const struct ts_tiers *a, const struct ts_tiers *b)
{
    int tainted = 0;
    for (int i = 0; i < a->script.n; i++) {
        const struct kv_tier_block *x = &a->script.block[i], *y = stored(b, &x->key);
        if (!y)
            continue;
        for (int s = 0; s < a->layout.n_sources; s++)
            cr_assert_arr_eq(x->bytes + a->layout.offset[s], y->bytes + a->layout.offset[s], a->layout.bytes[s],
                             "block %d, source %d", i, s);
        tainted += x->info.taint == KV_TAINTED;
    }
    return tainted;
}

/* Each turn comes to a process that knows nothing: what is kept grows with each, though only the first was computed
 * from its beginning. What a turn says and stores is what it would have said and stored right behind the first one. */
Test(tier_runs, what_is_kept_of_a_conversation_grows)
{
    static struct ts_tiers r, direct, cold;
    static const int turns[] = {FIRST, SECOND, THIRD, FOURTH}, cached[] = {0, CLEAN, RUN, 224};
    struct ts_outcome got[4];
    begin(&r);
    for (int i = 0; i < 4; i++) {
        got[i] = ask(&r, false, turns[i]);
        cr_assert_eq(got[i].cached, cached[i], "turn %d: %d tokens", i + 1, got[i].cached);
    }
    for (int i = 1; i < 4; i++) {
        begin(&direct);
        ask(&direct, false, FIRST);
        struct ts_outcome d = ask(&direct, false, turns[i]);
        cr_assert_eq(d.cached, CLEAN);
        same(&d, &got[i], "right behind the first turn");
        cr_assert_geq(check_equal_names(&direct, &r), (turns[i] - CLEAN) / TS_WORLD_BLOCK, "turn %d", i + 1);
        ts_tiers_forget(&direct);
    }
    /* The test would see it if the rows were not those: a cold run has other ones. */
    begin(&cold);
    struct ts_outcome c = ask(&cold, false, THIRD);
    cr_assert_not(same_logprobs(&c, &got[2]), "a replayed hit is no cold run");
    cr_assert_eq(check_equal_names(&cold, &r), 0);
    ts_tiers_forget(&cold);
    ts_tiers_forget(&r);
}

/* Exact mode and a lookup for clean rows find the clean beginning only; what exact mode then stores is preferred. */
Test(tier_runs, exact_mode_reads_none_and_clean_blocks_are_preferred)
{
    enum { BEGIN = 150, BEHIND = 236, AGAIN = 240, LATER = 244 };
    static struct ts_tiers r, clean;
    begin(&r);
    cr_assert_eq(ask(&r, false, BEGIN).cached, 0);
    cr_assert_eq(ask(&r, false, BEHIND).cached, 144);
    cr_assert_eq(ask(&r, false, AGAIN).cached, 224, "the default mode uses them");
    cr_assert_eq(ask(&r, true, AGAIN).cached, 144, "exact mode does not"); /* and has the tokens of a plain run */
    struct ts_outcome got = ask(&r, false, LATER);
    cr_assert_eq(got.cached, 240);
    begin(&clean);
    ask(&clean, true, AGAIN);
    struct ts_outcome want = ask(&clean, false, LATER);
    cr_assert_eq(want.cached, 240);
    same(&want, &got, "behind clean blocks");
    ts_tiers_forget(&clean);
    ts_tiers_forget(&r);
}

/* A request that wants to be exact, where the others are not. */
static bool make_exact(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                       int *fail)
{
    (void)w, (void)self, (void)fail;
    if (who->part == TS_PART_PREFILL && m->type == ACT_PREFILL)
        act_b_prefill(m)->flags |= ACT_RECIPE_EXACT;
    return false;
}

Test(tier_runs, an_exact_request_reads_none_where_others_do)
{
    static const int again = FOURTH;
    static struct ts_tiers r;
    begin(&r);
    ask(&r, false, 150);
    ask(&r, false, 236);
    struct ts_outcome want = ask(&r, true, 236);
    ts_tiers_forget(&r);
    begin(&r);
    ask(&r, false, 150);
    ask(&r, false, 236);
    ts_tiers_open(&r, 64, false);
    ts_tiers_host(&r, 4);
    ts_tiers_script(&r);
    say(&r, 1, &again);
    r.w.wanted[0].n_prompt = 236;
    r.w.before = make_exact;
    ts_world_run(&r.w, 3);
    cr_assert_eq(r.w.got[0].cached, 144, "%d tokens", r.w.got[0].cached);
    same(&want, &r.w.got[0], "exact");
    ts_tiers_close(&r, true);
    ts_tiers_forget(&r);
}

/* Rows behind a hit of another length are not those: when more clean blocks are there by now, they are not used. */
Test(tier_runs, rows_behind_another_hit_are_not_taken)
{
    static struct ts_tiers r, clean;
    begin(&r);
    ask(&r, false, FIRST);
    cr_assert_eq(ask(&r, false, FOURTH).cached, CLEAN);
    ask(&r, true, 150);
    struct ts_outcome got = ask(&r, false, 244);
    cr_assert_eq(got.cached, 144, "%d tokens", got.cached);
    begin(&clean);
    ask(&clean, true, 150);
    struct ts_outcome want = ask(&clean, false, 244);
    cr_assert_eq(want.cached, 144);
    same(&want, &got, "behind more clean blocks");
    ts_tiers_forget(&clean);
    ts_tiers_forget(&r);
}

/* Blocks that do not come shorten the hit: to fewer of those behind the clean ones, which changes no bit, or to fewer
 * clean ones. */
Test(tier_runs, a_hit_that_gets_shorter_gives_the_same)
{
    static struct ts_tiers r;
    begin(&r);
    ask(&r, false, FIRST);
    struct ts_outcome direct = ask(&r, false, SECOND), got;
    static const int turn = THIRD;
    struct ts_outcome want = {0};
    for (int ok = RUN / TS_WORLD_BLOCK; ok >= 0; ok--) {
        ts_tiers_open(&r, 64, false);
        ts_tiers_host(&r, 4);
        ts_tiers_script(&r);
        int n = r.script.n;
        say(&r, 1, &turn);
        r.script.ok = ok;
        ts_world_run(&r.w, 9);
        got = r.w.got[0];
        cr_assert_eq(got.terminal, 1);
        cr_assert_eq(got.cached, ok * TS_WORLD_BLOCK, "%d blocks come, %d tokens", ok, got.cached);
        if (ok == RUN / TS_WORLD_BLOCK)
            want = got;
        if (ok >= CLEAN / TS_WORLD_BLOCK)
            same(&want, &got, "a shorter hit");
        while (r.script.n > n) /* the next one begins with the same */
            free(r.script.block[--r.script.n].bytes);
        r.script.ok = -1;
        ts_tiers_close(&r, true);
    }
    cr_assert_gt(direct.n, 0);
    ts_tiers_forget(&r);
}

/* Several ask for the same at a time: one read brings it, the clean blocks and those behind them. */
Test(tier_runs, one_read_for_all_who_ask)
{
    static struct ts_tiers r;
    static const int turns[] = {THIRD, THIRD, THIRD};
    begin(&r);
    ask(&r, false, FIRST);
    ask(&r, false, SECOND);
    ts_tiers_open(&r, 64, false);
    ts_tiers_host(&r, 4);
    ts_tiers_script(&r);
    say(&r, 3, turns);
    r.w.e.limits.prefills = 3;
    for (int i = 0; i < 3; i++)
        r.w.wanted[i].start = 0;
    r.script.reads = 0;
    r.script.at[0] = 200 * MS;
    ts_world_run(&r.w, 5);
    cr_assert_eq(r.script.reads, 1);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(r.w.got[i].cached, RUN, "%d tokens", r.w.got[i].cached);
        same(&r.w.got[0], &r.w.got[i], "at the same time");
    }
    ts_tiers_close(&r, true);
    ts_tiers_forget(&r);
}

struct names {
    int clean, run, odd;
};

static bool note_names(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                       int *fail)
{
    struct names *n = w->before_ctx;
    (void)self, (void)fail;
    if (who->part != TS_PART_TIER || m->type != ACT_KV_STORE)
        return false;
    size_t bytes;
    const struct act_tier_block *b = act_msg_tail(m, &bytes);
    for (uint32_t i = 0; i < act_p_kv_store(m)->blocks; i++) {
        n->clean += !b[i].replayed;
        n->run += b[i].replayed && b[i].hit == CLEAN;
        n->odd += b[i].replayed && b[i].hit != CLEAN;
    }
    return false;
}

/* Without any tier below, in one process and with Decode in another one, in each form of the hand-off. With the form
 * global the decoder replays once more, so its own rows have no name. */
Test(tier_runs, hits_on_the_device_in_one_process_and_in_two)
{
    static const enum mdl_handoff_form forms[] = {MDL_HANDOFF_FORMS, MDL_HANDOFF_FULL, MDL_HANDOFF_ENCODER,
                                                  MDL_HANDOFF_GLOBAL};
    static const int turns[] = {FIRST, SECOND, THIRD, FOURTH}, cached[] = {0, CLEAN, RUN, 224};
    struct ts_outcome got[4];
    for (int f = 0; f < 4; f++) {
        static struct ts_tiers r;
        struct names names = {0};
        memset(&r, 0, sizeof r);
        ts_tiers_open(&r, 64, false);
        r.w.store = NULL;
        say(&r, 4, turns);
        if (forms[f] == MDL_HANDOFF_GLOBAL) { /* the decoder's replay begins with a block, and fills that block */
            r.w.wanted[2].n_prompt = 226;
            r.w.wanted[2].max_new = 24;
        }
        r.w.before = note_names;
        r.w.before_ctx = &names;
        if (forms[f] < MDL_HANDOFF_FORMS)
            ts_world_split(&r.w, 64, forms[f]);
        ts_world_run(&r.w, 7);
        for (int i = 0; i < 4; i++) {
            cr_assert_eq(r.w.got[i].terminal, 1);
            cr_assert_eq(r.w.got[i].status, 0);
            cr_assert_eq(r.w.got[i].cached, cached[i], "form %d, turn %d: %d tokens", f, i + 1, r.w.got[i].cached);
            if (!f)
                got[i] = r.w.got[i];
            else if (forms[f] != MDL_HANDOFF_GLOBAL)
                same(&got[i], &r.w.got[i], "in two processes");
        }
        cr_assert(names.clean && names.run);
        cr_assert_eq(names.odd, 0, "form %d: %d blocks", f, names.odd);
        ts_tiers_close(&r, false);
    }
}

/* Window rows that go on exactly are better than blocks behind a replay, and what comes of them is as if it were cold.
 */
Test(tier_runs, a_snapshot_is_preferred)
{
    static struct ts_tiers r;
    static const int turns[] = {FIRST, SECOND};
    begin(&r);
    ask(&r, false, FIRST);
    ask(&r, false, SECOND);
    ts_tiers_open(&r, 64, false);
    ts_tiers_host(&r, 4);
    ts_tiers_script(&r);
    say(&r, 2, turns);
    r.w.e.snapshots = true;
    r.script.lookups_at = 3000 * MS; /* the first turn is computed before the tiers say anything */
    r.w.wanted[1].start = 5000 * MS;
    ts_world_run(&r.w, 3);
    cr_assert_eq(r.w.got[0].cached, 0);
    cr_assert_eq(r.w.got[1].cached, FIRST - 2, "%d tokens", r.w.got[1].cached);
    for (int i = 0; i < 2; i++)
        ts_world_check_same(&r.w, i);
    ts_tiers_close(&r, true);
    ts_tiers_forget(&r);
}

/* Of what is clean the device of Prefill gets no more than the first turn's blocks. */
static bool forget_later_blocks(struct ts_world *w, const struct ts_inner *who, struct act_self *self,
                                struct act_msg *m, int *fail)
{
    size_t bytes;
    (void)w, (void)self, (void)fail;
    if (who->part != TS_PART_TIER || who->index >= TS_FAR || m->type != ACT_KV_STORE)
        return false;
    const struct act_tier_block *b = act_msg_tail(m, &bytes);
    if (!b->replayed && act_p_kv_store(m)->blocks > CLEAN / TS_WORLD_BLOCK)
        act_p_kv_store(m)->blocks = CLEAN / TS_WORLD_BLOCK;
    return false;
}

/* The decoder has more clean blocks than Prefill: they stand for the clean ones of its hit, not for those behind. */
Test(tier_runs, clean_blocks_of_a_decoder_stand_for_clean_ones_only)
{
    static const int turns[] = {THIRD, 200, FOURTH}, cached[] = {0, CLEAN, 192};
    struct ts_outcome got[3];
    for (int split = 0; split < 2; split++) {
        static struct ts_tiers r;
        memset(&r, 0, sizeof r);
        ts_tiers_open(&r, 64, false);
        r.w.store = NULL;
        say(&r, 3, turns);
        r.w.before = forget_later_blocks;
        if (split)
            ts_world_split(&r.w, 64, MDL_HANDOFF_FULL);
        ts_world_run(&r.w, 7);
        for (int i = 0; i < 3; i++) {
            cr_assert_eq(r.w.got[i].place.replaced, 0);
            cr_assert_eq(r.w.got[i].cached, cached[i], "split %d, turn %d: %d tokens", split, i, r.w.got[i].cached);
            if (!split)
                got[i] = r.w.got[i];
            else
                same(&got[i], &r.w.got[i], "in two processes");
        }
        cr_assert(!split || r.w.far.stats.held >= CLEAN / TS_WORLD_BLOCK, "%d blocks were held",
                  (int)r.w.far.stats.held);
        ts_tiers_close(&r, false);
    }
}

/* Nothing that came to the decoder's process from a run is published there as clean. */
static bool note_clean_there(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                             int *fail)
{
    int *clean = w->before_ctx;
    (void)fail;
    size_t bytes;
    if (who->part != TS_PART_TIER || who->index < TS_FAR || m->type != ACT_KV_STORE || act_now(self) < 3000 * MS)
        return false;
    const struct act_tier_block *b = act_msg_tail(m, &bytes);
    for (uint32_t i = 0; i < act_p_kv_store(m)->blocks; i++)
        *clean += !b[i].replayed;
    return false;
}

/* The decoder replays more rows than the one that computed the prompt: for it the prompt begins within its replay, and
 * its own rows would be clean if those before them were. */
Test(tier_runs, a_decoder_with_a_longer_replay_takes_no_run_for_clean)
{
    static const int turns[] = {FIRST, SECOND};
    static struct ts_tiers r;
    int clean = 0;
    memset(&r, 0, sizeof r);
    ts_tiers_open(&r, 64, false);
    r.w.store = NULL;
    say(&r, 2, turns);
    r.w.before = note_clean_there;
    r.w.before_ctx = &clean;
    ts_world_split(&r.w, 64, MDL_HANDOFF_GLOBAL);
    r.w.far.e.limits.replay = TS_WORLD_IDS;
    ts_world_run(&r.w, 7);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(r.w.got[i].status, 0);
    cr_assert_eq(r.w.got[1].cached, CLEAN, "%d tokens", r.w.got[1].cached);
    cr_assert_eq(clean, 0, "%d blocks", clean);
    ts_tiers_close(&r, false);
}

/* What a peer says of how its rows came about, one field of it out of what can be. */
enum lie { LIE_CLEAN, LIE_BEFORE, LIE_BEHIND, LIE_FOUND, LIE_START, LIES };

struct liar {
    enum lie lie;
    int told;
};

static bool tell_lies(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                      int *fail)
{
    struct liar *l = w->before_ctx;
    (void)self, (void)fail;
    if (who->part != TS_PART_LANDING || m->type != ACT_KV_READY || !act_b_kv_ready(m)->hit)
        return false;
    struct act_b_kv_ready *b = act_b_kv_ready(m);
    b->replayed = l->lie == LIE_CLEAN ? 0 : b->replayed;
    b->hit = l->lie == LIE_BEFORE ? ACT_HIT_MIXED - 1 : l->lie == LIE_BEHIND ? SECOND + 1 : b->hit;
    b->cached = l->lie == LIE_FOUND ? SECOND + 1 : b->cached;
    b->decoder_start = l->lie == LIE_START ? SECOND + 1 : b->decoder_start;
    l->told++;
    return false;
}

Test(tier_runs, what_cannot_be_said_of_rows_is_refused)
{
    static const int turns[] = {FIRST, SECOND};
    for (int lie = 0; lie < LIES; lie++) {
        static struct ts_tiers r;
        struct liar liar = {.lie = (enum lie)lie};
        memset(&r, 0, sizeof r);
        ts_tiers_open(&r, 64, false);
        r.w.store = NULL;
        say(&r, 2, turns);
        r.w.before = tell_lies;
        r.w.before_ctx = &liar;
        ts_world_split(&r.w, 64, lie % 2 ? MDL_HANDOFF_FULL : MDL_HANDOFF_ENCODER);
        ts_world_run(&r.w, 7);
        cr_assert_gt(liar.told, 0);
        cr_assert_eq(r.w.got[0].status, 0);
        cr_assert_eq(r.w.got[1].terminal, 1);
        cr_assert_neq(r.w.got[1].status, 0, "lie %d", lie);
        ts_tiers_close(&r, false);
    }
}
