/* Bounded replays of several requests share passes over the layers: fewer passes, and for every request the bits that
 * it has alone. On the engine's actors in the simulation, in the default mode. */
#include "tests/harness.h"

#include "tests/support/tier_world.h"

enum { HITS = 5, LONG = HITS + 1 };

struct passes {
    int n; /* passes of Prefill over the first layer with experts */
    uint64_t sequence;
    int64_t since;
};

static bool count_passes(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                         int *fail)
{
    struct passes *p = w->before_ctx;
    (void)fail;
    if (who->part != TS_PART_EXPERT || who->index || m->type != ACT_EXPERT_DISPATCH || act_now(self) < p->since)
        return false;
    const struct act_p_expert_dispatch *d = act_p_expert_dispatch(m);
    p->n += m->src.index == w->e.prefill[0].index && d->layer == 0;
    return false;
}

/* Request 0 is cold; 1 .. 5 begin like it and go on differently, together or one by one; the last one is long and cold.
 */
static void run(struct ts_tiers *r, struct passes *p, int chunk, bool together, bool with_long)
{
    memset(r, 0, sizeof *r);
    ts_tiers_open(r, 120, false);
    r->w.e.limits.chunk = chunk;
    r->w.e.limits.prefills = r->w.e.limits.streams = 8;
    r->w.e.limits.context = TS_WORLD_IDS;
    r->w.e.snapshots = false; /* every hit is replayed */
    ts_tiers_host(r, 8);
    ts_tiers_prompts(r, 1 + HITS + with_long);
    r->w.cost[TS_PART_PREFILL] = MS;
    for (int i = 1; i <= HITS; i++) {
        struct ts_wanted *q = &r->w.wanted[i];
        q->start = (3000 + (together ? 0 : 1000 * i)) * MS;
        q->n_prompt = 150 + 2 * i;
        for (int k = 145; k < q->n_prompt; k++)
            q->prompt[k] = (k * (11 + i) + 5 * i) % r->w.m->cfg->vocab_size;
    }
    if (with_long) {
        struct ts_wanted *q = &r->w.wanted[LONG];
        q->n_prompt = 240;
        q->start = 2990 * MS;
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = (k * 23 + 9) % r->w.m->cfg->vocab_size;
    }
    *p = (struct passes){.since = 2900 * MS};
    r->w.before = count_passes;
    r->w.before_ctx = p;
    ts_world_run(&r->w, 5);
    ts_world_check_same(&r->w, 0);
    for (int i = 1; i <= HITS; i++) {
        cr_assert_eq(r->w.got[i].terminal, 1);
        cr_assert_eq(r->w.got[i].cached, 144, "request %d: %d", i, r->w.got[i].cached);
    }
    ts_world_check_baseline(&r->w);
}

static void same(const struct ts_tiers *a, const struct ts_tiers *b)
{
    for (int i = 1; i <= HITS; i++) {
        cr_assert_eq(a->w.got[i].n, b->w.got[i].n);
        for (int k = 0; k < a->w.got[i].n; k++)
            cr_assert_eq(a->w.got[i].ids[k], b->w.got[i].ids[k], "request %d, token %d", i, k);
    }
}

Test(replay, requests_together_have_the_bits_of_one_by_one_in_fewer_passes)
{
    static struct ts_tiers alone, together;
    struct passes one, all;
    run(&alone, &one, 96, false, false);
    run(&together, &all, 256, true, false);
    same(&alone, &together);
    cr_assert_ge(one.n, HITS, "%d passes one by one", one.n);
    cr_assert_lt(all.n, one.n - 1, "%d passes together, %d one by one", all.n, one.n);
    ts_tiers_close(&alone, false);
    ts_tiers_close(&together, false);
}

Test(replay, requests_share_the_passes_of_a_long_prompt)
{
    static struct ts_tiers alone, beside;
    struct passes one, all;
    run(&alone, &one, 96, false, false);
    run(&beside, &all, 96, true, true);
    same(&alone, &beside);
    ts_world_check_same(&beside.w, LONG);
    int before = 0;
    for (int i = 1; i <= HITS; i++)
        before += beside.w.got[i].ended < beside.w.got[LONG].ended;
    cr_assert_ge(before, HITS / 2, "%d of %d short prompts were done before a long one that came first", before, HITS);
    ts_tiers_close(&alone, false);
    ts_tiers_close(&beside, false);
}
