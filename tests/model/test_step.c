/* The equality properties of a model step, all bit for bit: chunking, company, threads, block size, abandonment, and
 * providers that answer late. Golden values are checked elsewhere; these tests say that nothing but the tokens counts.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/model.h"

static const char *const folders[] = {TS_MINI8, TS_EDGE};

/* Exact, replay with the shortest R, replay with a longer one and the cut layer's own window. */
struct mode {
    const char *name;
    struct mdl_prefill_params plan;
    struct mdl_seq_params seq;
};

static struct mode mode_of(const struct mdl_config *cfg, int which)
{
    int w = cfg->window;
    switch (which) {
    case 0:
        return (struct mode){"exact", {.exact = true, .all_logits = true}, {.rollback = 0}};
    case 1:
        return (struct mode){"replay", {.replay = w, .all_logits = true}, {.replay = w, .rollback = 3}};
    default:
        return (struct mode){"replay full",
                             {.replay = w + 12, .full_bridge = true, .all_logits = true},
                             {.replay = w + 12, .full_bridge = true, .rollback = 6}};
    }
}

enum { MODES = 3, PROMPT = 53, TOTAL = 60 };

/* A prompt in chunks, then tokens in segments of `verify` rows. */
static struct ts_run run_all(struct mdl_model *m, const struct mode *mode, struct mdl_step *step, const int *chunks,
                             int verify, struct ts_late *late)
{
    struct ts_run r = ts_run_new(m, mode->seq, 11, TOTAL);
    r.late = late;
    ts_run_prefill(&r, step, PROMPT, &mode->plan, chunks);
    ts_run_decode(&r, step, TOTAL, verify);
    return r;
}

static void same_run(const struct ts_run *a, const struct ts_run *b, const char *what)
{
    ts_same_logits(a, b, a->plan.decoder_start, TOTAL, what);
    ts_same_state(a->seq, b->seq, (struct ts_scope){.bridge = false}, what);
}

/* The first n_sizes of the chunk sizes below. */
static void check_chunks(const char *folder, const char *cpu, size_t n_sizes)
{
    static const int sizes[][4] = {{5, 1, 8}, {1}, {2}, {3}, {16}, {29}, {7, 30, 2}};
    struct mdl_model *m = ts_model_cpu(folder, 1, cpu);
    struct mdl_step *step = ts_step(m, TOTAL, TOTAL);
    for (int k = 0; k < MODES; k++) {
        struct mode mode = mode_of(m->cfg, k);
        struct ts_run whole = run_all(m, &mode, step, NULL, 1, NULL);
        for (size_t i = 0; i < n_sizes; i++) {
            char what[128];
            snprintf(what, sizeof what, "%s, %s, %s, chunks of %d", folder, m->exec.be->name, mode.name, sizes[i][0]);
            struct ts_run r = run_all(m, &mode, step, sizes[i], 1 + (int)i % 4, NULL);
            same_run(&whole, &r, what);
            ts_run_free(&r);
        }
        ts_run_free(&whole);
    }
    mdl_step_free(step);
    mdl_model_close(m);
}

Test(step, chunks_mini8)
{
    check_chunks(TS_MINI8, NULL, 7);
}

Test(step, chunks_edge)
{
    check_chunks(TS_EDGE, NULL, 7);
}

Test(step, chunks_trained)
{
    if (access(TS_TINY "/config.json", R_OK))
        cr_skip_test("%s is not there: no trained model to run", TS_TINY);
    check_chunks(TS_TINY, NULL, 2);
}

/* The scalar path where the machine's best one is another. */
Test(step, chunks_scalar)
{
    struct mdl_model *m = ts_model(TS_EDGE, 1);
    bool scalar = m->exec.be == &mdl_backend_scalar;
    mdl_model_close(m);
    if (scalar)
        cr_skip_test("the scalar path is the one that all other tests ran");
    check_chunks(TS_EDGE, "scalar", 7);
}

/* What the encoder leaves in the middle of a prompt, bridge rows included, before any decoder row has run. */
Test(step, encoder_state_in_any_chunks)
{
    static const int odd[] = {1, 6, 3, 0}, pairs[] = {4, 0};
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, TOTAL, TOTAL);
        const int *chunks[] = {NULL, odd, pairs};
        struct ts_run r[3];
        for (int i = 0; i < 3; i++) {
            struct mode mode = mode_of(m->cfg, 2);
            struct mdl_segment seg;
            struct cfg_error err;
            r[i] = ts_run_new(m, mode.seq, 5, TOTAL);
            cr_assert_eq(mdl_prefill_begin(&r[i].plan, r[i].seq, r[i].ids, TOTAL, &mode.plan, &err), 0);
            for (int c = 0; r[i].seq->encoded < TOTAL; c = chunks[i] && chunks[i][c + 1] ? c + 1 : 0) {
                cr_assert(mdl_prefill_next(&r[i].plan, chunks[i] ? chunks[i][c] : TOTAL, &seg));
                cr_assert_eq(seg.layer_end, m->cfg->cut);
                mdl_step_begin(step, NULL);
                cr_assert_eq(mdl_step_add(step, &seg, &err), 0);
                cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
                mdl_step_commit(step, 0, seg.n);
                mdl_prefill_advance(&r[i].plan, &seg);
            }
            cr_assert_eq(r[i].seq->len, 0);
            ts_same_state(r[0].seq, r[i].seq, (struct ts_scope){.bridge = true}, folders[f]);
        }
        for (int i = 0; i < 3; i++)
            ts_run_free(&r[i]);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* No plan at all: every token a step of its own from the first one on, and a plan driven by mdl_prefill_run. */
Test(step, token_by_token_equals_prefill_run)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, TOTAL, TOTAL);
        struct ts_run a = ts_run_new(m, (struct mdl_seq_params){0}, 3, TOTAL);
        struct ts_run b = ts_run_new(m, (struct mdl_seq_params){0}, 3, TOTAL);
        struct cfg_error err;
        ts_run_decode(&a, step, TOTAL, 1);
        cr_assert_eq(mdl_prefill_begin(&b.plan, b.seq, b.ids, TOTAL, &(struct mdl_prefill_params){.exact = true}, &err),
                     0);
        cr_assert_eq(mdl_prefill_run(&b.plan, step, 9, NULL, NULL, &err), 0);
        ts_run_note(&b, step, 0);
        for (int i = 0; i < TOTAL; i++)
            cr_assert_eq(b.seen[i], i == TOTAL - 1, "only the last row was asked for, not %d", i);
        ts_same_logits(&a, &b, TOTAL - 1, TOTAL, folders[f]);
        ts_same_state(a.seq, b.seq, (struct ts_scope){0}, folders[f]);
        ts_run_free(&a);
        ts_run_free(&b);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

Test(step, threads)
{
    static const int chunks[] = {11, 0};
    for (size_t f = 0; f < 2; f++)
        for (int k = 0; k < MODES; k++) {
            struct mdl_model *m[3];
            struct mdl_step *step[3];
            struct ts_run r[3];
            for (int t = 0; t < 3; t++) {
                m[t] = ts_model(folders[f], t + 1);
                step[t] = ts_step(m[t], TOTAL, TOTAL);
                struct mode mode = mode_of(m[t]->cfg, k);
                r[t] = run_all(m[t], &mode, step[t], t == 1 ? NULL : chunks, 1 + t, NULL);
                same_run(&r[0], &r[t], mode.name);
            }
            for (int t = 0; t < 3; t++) {
                ts_run_free(&r[t]);
                mdl_step_free(step[t]);
                mdl_model_close(m[t]);
            }
        }
}

Test(step, block_sizes)
{
    static const int tokens[] = {256, 2, 6, 16};
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, TOTAL, TOTAL);
        for (int k = 0; k < 2; k++) {
            struct ts_run r[4];
            for (int i = 0; i < 4; i++) {
                struct mode mode = mode_of(m->cfg, k);
                mode.seq.block_tokens = tokens[i];
                r[i] = run_all(m, &mode, step, NULL, 1, NULL);
                same_run(&r[0], &r[i], mode.name);
            }
            for (int i = 0; i < 4; i++)
                ts_run_free(&r[i]);
        }
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* ---- company ---- */

/* A sequence on the way, and the segment that is due. */
struct guest {
    struct ts_run before; /* its seq is never changed */
    struct mdl_segment seg;
    struct ts_run alone; /* the segment's logits and the sequence after commit */
};

enum { CHUNK, TOKEN, VERIFY, TAIL, ENCODE, RESTART, ENCODE_AFTER_HIT, GUESTS };

static struct ts_run after(const struct guest *g)
{
    struct ts_run r = g->before;
    size_t vocab = (size_t)r.m->cfg->vocab_size;
    r.seq = ts_seq_clone(g->before.seq);
    r.ids = malloc((size_t)r.n * sizeof *r.ids);
    memcpy(r.ids, g->before.ids, (size_t)r.n * sizeof *r.ids);
    r.logits = calloc((size_t)r.n * vocab, sizeof *r.logits);
    r.seen = calloc((size_t)r.n, 1);
    return r;
}

static void add_guest(struct mdl_step *step, const struct guest *g, const struct ts_run *r)
{
    struct mdl_segment seg = g->seg;
    struct cfg_error err;
    seg.seq = r->seq;
    if (mdl_step_add(step, &seg, &err))
        cr_assert_fail("%s", err.msg);
}

static void check_guest(const struct guest *g, const struct ts_run *r, const char *what)
{
    for (int i = g->seg.logits_from; i < g->seg.n; i++)
        ts_same_logits(&g->alone, r, g->seg.start + i, g->seg.start + i + 1, what);
    ts_same_state(g->alone.seq, r->seq, (struct ts_scope){.bridge = g->seg.layer_end == r->m->cfg->cut}, what);
}

/* Cold run of `hit` tokens whose prefix goes to the guest, and its plan up to the first segment. */
static void after_hit(struct guest *g, struct mdl_step *step, int hit, const struct mdl_prefill_params *params,
                      int rows)
{
    struct ts_run cold = after(g);
    struct mdl_prefill_params plan = *params;
    struct cfg_error err;
    ts_run_prefill(&cold, step, hit, params, NULL);
    cr_assert_eq(mdl_seq_copy_prefix(g->before.seq, cold.seq, hit, false, &err), 0);
    plan.hit = hit;
    cr_assert_eq(mdl_prefill_begin(&g->before.plan, g->before.seq, g->before.ids, g->before.n, &plan, &err), 0);
    cr_assert(mdl_prefill_next(&g->before.plan, rows, &g->seg));
    ts_run_free(&cold);
}

static void make_guest(struct guest *g, struct mdl_model *m, struct mdl_step *step, int kind)
{
    const struct mdl_config *cfg = m->cfg;
    int w = cfg->window, reach = mdl_prefill_exact_reach(cfg);
    const struct mdl_prefill_params exact = {.exact = true, .all_logits = true},
                                    replay = {.replay = w, .all_logits = true};
    int n[GUESTS] = {40, 40, 40, 40, 40, reach + reach % 2 + 12, 60};
    *g = (struct guest){0};
    g->before = ts_run_new(m, (struct mdl_seq_params){.rollback = kind, .replay = kind >= TAIL ? w : 0},
                           (uint64_t)kind + 40, n[kind]);
    switch (kind) {
    case CHUNK:
        ts_run_decode(&g->before, step, 20, 20);
        g->seg = ts_segment(&g->before, 20, 9);
        break;
    case TOKEN:
        ts_run_decode(&g->before, step, 33, 33);
        g->seg = ts_segment(&g->before, 33, 1);
        break;
    case VERIFY:
        ts_run_decode(&g->before, step, 22, 22);
        g->seg = ts_segment(&g->before, 22, 4);
        break;
    case TAIL:
        cr_assert_eq(mdl_prefill_begin(&g->before.plan, g->before.seq, g->before.ids, 39, &replay, NULL), 0);
        while (mdl_prefill_next(&g->before.plan, 40, &g->seg) && g->seg.layer_begin == 0) {
            mdl_step_begin(step, NULL);
            cr_assert_eq(mdl_step_add(step, &g->seg, NULL), 0);
            cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
            mdl_step_commit(step, 0, g->seg.n);
            mdl_prefill_advance(&g->before.plan, &g->seg);
        }
        cr_assert_eq(g->seg.n, w);
        break;
    case ENCODE:
        cr_assert_eq(mdl_prefill_begin(&g->before.plan, g->before.seq, g->before.ids, 40, &replay, NULL), 0);
        cr_assert(mdl_prefill_next(&g->before.plan, 17, &g->seg));
        break;
    case RESTART:
        after_hit(g, step, n[kind] - 10, &exact, 2 * w);
        g->seg.logits_from = g->seg.n;
        break;
    default:
        after_hit(g, step, 34, &replay, 23);
    }
    g->alone = after(g);
    mdl_step_begin(step, NULL);
    add_guest(step, g, &g->alone);
    cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
    ts_run_note(&g->alone, step, 0);
    mdl_step_commit(step, 0, g->seg.n);
}

static void check_party(struct mdl_step *step, const struct guest *guests, const int *order, int n,
                        struct ts_late *late, const char *what)
{
    struct ts_run r[GUESTS];
    mdl_step_begin(step, late ? &late->providers : NULL);
    for (int i = 0; i < n; i++) {
        r[i] = after(&guests[order[i]]);
        add_guest(step, &guests[order[i]], &r[i]);
    }
    cr_assert_eq(ts_finish(step, late), MDL_STEP_DONE);
    for (int i = 0; i < n; i++)
        ts_run_note(&r[i], step, i);
    /* Commits in any order too. */
    for (int i = n - 1; i >= 0; i--)
        mdl_step_commit(step, i, guests[order[i]].seg.n);
    for (int i = 0; i < n; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s, guest %d at place %d of %d", what, order[i], i, n);
        check_guest(&guests[order[i]], &r[i], name);
        ts_run_free(&r[i]);
    }
}

Test(step, any_company)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 2);
        int most = mdl_prefill_exact_reach(m->cfg) + 20;
        struct mdl_step *step = ts_step(m, most, most);
        struct guest guests[GUESTS];
        struct ts_late late;
        uint64_t random = 77;
        int order[GUESTS];
        ts_late_init(&late, 9);
        for (int k = 0; k < GUESTS; k++)
            make_guest(&guests[k], m, step, k);
        for (int round = 0; round < 12; round++) {
            for (int i = 0; i < GUESTS; i++) {
                int j = (int)ts_random(&random, (uint32_t)i + 1);
                order[i] = order[j];
                order[j] = i;
            }
            check_party(step, guests, order, 2 + round % (GUESTS - 1), round % 3 ? NULL : &late, folders[f]);
        }
        for (int k = 0; k < GUESTS; k++) {
            ts_run_free(&guests[k].before);
            ts_run_free(&guests[k].alone);
        }
        ts_late_free(&late);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* ---- abandonment ---- */

/* Leaves the step at its `at`-th phase with other tokens; returns false when the step was done before that. */
static bool abandon(struct mdl_step *step, const struct guest *g, struct mdl_seq *seq, int at, struct ts_late *late)
{
    struct mdl_segment seg = g->seg;
    int32_t other[64];
    cr_assert_le(seg.n, 64);
    seg.seq = seq;
    for (int i = 0; seg.ids && i < seg.n; i++)
        other[i] = (seg.ids[i] + 1) % g->before.m->cfg->vocab_size;
    if (seg.ids)
        seg.ids = other;
    mdl_step_begin(step, &late->providers);
    cr_assert_eq(mdl_step_add(step, &seg, NULL), 0);
    int r = MDL_STEP_MORE;
    while (at > 0 && r != MDL_STEP_DONE) {
        r = mdl_step_advance(step);
        cr_assert_ge(r, 0);
        at -= r != MDL_STEP_WAIT;
        if (r == MDL_STEP_WAIT)
            ts_late_deliver(late);
    }
    ts_late_drop(late);
    return r != MDL_STEP_DONE;
}

Test(step, abandoned_anywhere)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        int most = mdl_prefill_exact_reach(m->cfg) + 20;
        struct mdl_step *step = ts_step(m, most, most);
        struct ts_late late;
        ts_late_init(&late, 21);
        for (int kind = 0; kind < GUESTS; kind++) {
            struct guest g;
            make_guest(&g, m, step, kind);
            struct ts_run r = after(&g);
            int cached = r.plan.hit; /* global rows that exist although nothing is committed */
            struct ts_image before = ts_image_take(r.seq, cached);
            bool more = true;
            int at = 0;
            for (; more; at++) {
                more = abandon(step, &g, r.seq, at, &late);
                struct ts_image now = ts_image_take(r.seq, cached);
                cr_assert(ts_image_same(&before, &now), "%s: guest %d abandoned at %d left a trace", folders[f], kind,
                          at);
                ts_image_free(&now);
                /* Every third time the step is run to its end, without commit. */
                if (at % 3 == 0) {
                    mdl_step_begin(step, NULL);
                    add_guest(step, &g, &r);
                    cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
                    ts_run_note(&r, step, 0);
                    for (int i = g.seg.logits_from; i < g.seg.n; i++)
                        ts_same_logits(&g.alone, &r, g.seg.start + i, g.seg.start + i + 1, folders[f]);
                }
            }
            cr_assert_gt(at, 5 * (g.seg.layer_end - g.seg.layer_begin), "only %d phases", at);
            mdl_step_begin(step, NULL);
            add_guest(step, &g, &r);
            cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
            ts_run_note(&r, step, 0);
            mdl_step_commit(step, 0, g.seg.n);
            check_guest(&g, &r, folders[f]);
            ts_image_free(&before);
            ts_run_free(&r);
            ts_run_free(&g.before);
            ts_run_free(&g.alone);
        }
        ts_late_free(&late);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* ---- providers ---- */

Test(step, late_answers)
{
    static const int chunks[] = {13, 4, 0};
    for (size_t f = 0; f < 2; f++)
        for (int k = 0; k < MODES; k++) {
            struct mdl_model *m = ts_model(folders[f], 1);
            struct mdl_step *step = ts_step(m, TOTAL, TOTAL);
            struct mode mode = mode_of(m->cfg, k);
            struct ts_run whole = run_all(m, &mode, step, NULL, 1, NULL);
            for (uint64_t seed = 0; seed < 3; seed++) {
                struct ts_late late;
                ts_late_init(&late, seed);
                struct ts_run r = run_all(m, &mode, step, seed ? chunks : NULL, 3, &late);
                same_run(&whole, &r, mode.name);
                cr_expect_gt(late.waits, 2 * m->cfg->n_layers, "the step hardly had to wait: %d times", late.waits);
                for (int i = 0; i < 3; i++)
                    cr_expect_gt(late.calls[i], 0, "provider %d was never asked", i);
                cr_expect_eq(late.n, 0, "%d answers were not needed", late.n);
                ts_run_free(&r);
                ts_late_free(&late);
            }
            ts_run_free(&whole);
            mdl_step_free(step);
            mdl_model_close(m);
        }
}

/* The drafter's experts go through the same exchange. */
Test(step, late_answers_of_drafts)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, TOTAL, TOTAL);
        struct ts_run r = ts_run_new(m, (struct mdl_seq_params){.max_tokens = TOTAL}, 8, 30);
        struct ts_late late;
        struct mdl_draft draft[3];
        ts_late_init(&late, 4);
        ts_run_decode(&r, step, 30, 30);
        struct ts_image before = ts_image_take(r.seq, 30);
        for (int i = 0; i < 3; i++) {
            mdl_step_begin(step, i ? &late.providers : NULL);
            cr_assert_eq(mdl_draft_add(step, r.seq, 7, NULL), 0);
            cr_assert_eq(ts_finish(step, &late), MDL_STEP_DONE);
            memset(&draft[i], 0, sizeof draft[i]);
            cr_assert_eq(mdl_draft_pick(step, 0, m->cfg->draft_block, NULL, NULL, &draft[i], NULL), 0);
            mdl_step_commit(step, 0, m->cfg->draft_block);
            cr_assert_arr_eq(&draft[0], &draft[i], sizeof draft[0], "%s: draft %d", folders[f], i);
        }
        cr_assert_gt(late.waits, 0);
        struct ts_image now = ts_image_take(r.seq, 30);
        cr_assert(ts_image_same(&before, &now), "a draft changed its sequence");
        ts_image_free(&before);
        ts_image_free(&now);
        ts_late_free(&late);
        ts_run_free(&r);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

Test(step, provider_errors_are_the_status)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, TOTAL, TOTAL);
    struct ts_run r = ts_run_new(m, (struct mdl_seq_params){0}, 2, 30);
    ts_run_decode(&r, step, 21, 21);
    struct ts_image before = ts_image_take(r.seq, 21);
    for (enum ts_fault fault = TS_FAULT_EXPERTS; fault <= TS_FAULT_KV; fault++)
        for (int at = 0; at < 2; at++) {
            struct ts_late late;
            ts_late_init(&late, 1);
            late.fault = fault;
            late.fault_at = at;
            mdl_step_begin(step, &late.providers);
            struct mdl_segment seg = ts_segment(&r, 21, 5);
            cr_assert_eq(mdl_step_add(step, &seg, NULL), 0);
            cr_assert_eq(ts_finish(step, &late), -EIO, "provider %d", fault);
            cr_assert_eq(mdl_step_run(step), -EIO, "a failed step stays failed");
            cr_assert_eq(mdl_step_advance(step), -EIO);
            struct ts_image now = ts_image_take(r.seq, 21);
            cr_assert(ts_image_same(&before, &now));
            ts_image_free(&now);
            ts_late_free(&late);
        }
    ts_image_free(&before);
    ts_run_decode(&r, step, 30, 9);
    struct ts_run whole = ts_run_new(m, (struct mdl_seq_params){0}, 2, 30);
    ts_run_decode(&whole, step, 30, 30);
    ts_same_logits(&whole, &r, 0, 30, "after failures");
    ts_same_state(whole.seq, r.seq, (struct ts_scope){0}, "after failures");
    ts_run_free(&whole);
    ts_run_free(&r);
    mdl_step_free(step);
    mdl_model_close(m);
}

/* ---- experts in shards ---- */

struct shards {
    int end[64]; /* shard i owns the experts end[i-1] .. end[i]-1 */
    int n, exchanges;
};

static int sharded_experts(void *ctx, struct mdl_step *step, struct mdl_exchange *x)
{
    struct shards *s = ctx;
    int experts = mdl_step_block(step, x->layer)->n_experts;
    s->exchanges++;
    /* The last shard first, and the first one twice. */
    for (int i = s->n - 1; i >= 0; i--) {
        int first = i ? s->end[i - 1] : 0;
        int r = mdl_experts_compute(step->m, x, first, s->end[i] - first);
        if (r)
            return r;
    }
    cr_assert_eq(x->pending, 0, "%d of %d results are missing with %d experts", x->pending, x->rows * x->k, experts);
    return mdl_experts_compute(step->m, x, 0, s->end[0]);
}

Test(step, any_partition_of_experts)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, TOTAL, TOTAL);
        struct ts_run whole = ts_run_new(m, (struct mdl_seq_params){0}, 6, 24);
        int experts = m->cfg->n_experts > m->cfg->draft_experts ? m->cfg->n_experts : m->cfg->draft_experts;
        ts_run_decode(&whole, step, 24, 24);
        for (int parts = 1; parts <= experts; parts++) {
            struct shards s = {.n = parts};
            struct mdl_providers p = mdl_providers_local;
            struct ts_run r = ts_run_new(m, (struct mdl_seq_params){0}, 6, 24);
            struct mdl_segment seg = ts_segment(&r, 0, 24);
            for (int i = 0; i < parts; i++)
                s.end[i] = (i + 1) * experts / parts;
            p.ctx = &s;
            p.experts = sharded_experts;
            mdl_step_begin(step, &p);
            cr_assert_eq(mdl_step_add(step, &seg, NULL), 0);
            cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
            cr_assert_eq(s.exchanges, m->cfg->n_layers);
            ts_run_note(&r, step, 0);
            mdl_step_commit(step, 0, 24);
            ts_same_logits(&whole, &r, 0, 24, folders[f]);
            ts_run_free(&r);
        }
        ts_run_free(&whole);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* ---- what a step refuses ---- */

static void refused(struct mdl_step *step, struct mdl_segment seg, int want, const char *part)
{
    struct cfg_error err = {0};
    int segments = step->n_segments, rows = step->n_rows, logits = step->n_logits;
    int r = mdl_step_add(step, &seg, &err);
    cr_expect_eq(r, want, "%s: %d", part, r);
    cr_expect_not_null(strstr(err.msg, part), "\"%s\" does not say \"%s\"", err.msg, part);
    cr_expect(step->n_segments == segments && step->n_rows == rows && step->n_logits == logits, "%s: half added", part);
}

Test(step, refuses_bad_segments)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    const struct mdl_config *cfg = m->cfg;
    struct mdl_step *step = ts_step(m, 12, 30);
    struct ts_run r = ts_run_new(m, (struct mdl_seq_params){.max_tokens = 25}, 2, 40);
    struct ts_run other = ts_run_new(m, (struct mdl_seq_params){.max_tokens = 40, .replay = cfg->window}, 2, 40);
    struct mdl_segment seg = ts_segment(&r, 0, 4), bad;
    cr_assert_eq(mdl_step_add(step, &seg, NULL), 0);
    struct mdl_segment second = ts_segment(&other, 0, 4);

    int ranges[][2] = {
        {0, 0},         {1, cfg->n_layers},     {0, cfg->n_layers + 1},       {0, 2}, {cfg->cut, cfg->cut},
        {-1, cfg->cut}, {0, cfg->n_layers - 1}, {cfg->cut + 1, cfg->n_layers}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        bad = second;
        bad.layer_begin = ranges[i][0];
        bad.layer_end = ranges[i][1];
        refused(step, bad, -EINVAL, "layers");
    }
    int32_t ids[] = {1, 2, cfg->vocab_size, 3};
    bad = second;
    bad.ids = ids;
    refused(step, bad, -EINVAL, "outside the vocabulary");
    ids[2] = -1;
    refused(step, bad, -EINVAL, "outside the vocabulary");
    bad = second;
    bad.ids = NULL;
    refused(step, bad, -EINVAL, "ids");
    bad = second;
    bad.layer_begin = cfg->cut;
    refused(step, bad, -EINVAL, "ids");
    bad.ids = NULL; /* bridge rows that no encoder left */
    refused(step, bad, -EINVAL, "bridge");
    bad = second;
    bad.n = 9;
    refused(step, bad, -ENOSPC, "does not fit");
    bad.n = 0;
    refused(step, bad, -EINVAL, "rows");
    refused(step, ts_segment(&r, 23, 4), -EINVAL, "twice");
    bad = second;
    bad.start = -1;
    refused(step, bad, -EINVAL, "position");
    refused(step, ts_segment(&other, 1, 4), -EINVAL, "position");
    bad = second;
    bad.draft = true;
    bad.layer_begin = cfg->n_layers;
    bad.layer_end = cfg->n_layers + cfg->n_draft;
    refused(step, bad, -EINVAL, "cannot share");

    mdl_step_begin(step, NULL);
    bad.n = cfg->draft_block + 1;
    refused(step, bad, -EINVAL, "longer than the model's");
    bad.n = cfg->draft_block;
    bad.layer_begin = 0;
    refused(step, bad, -EINVAL, "layers");
    struct ts_run full = ts_run_new(m, (struct mdl_seq_params){.max_tokens = 10}, 2, 40);
    struct mdl_step *wide = ts_step(m, 12, 30);
    ts_run_decode(&full, wide, 9, 9);
    ts_run_decode(&other, wide, 24, 12);
    refused(step, ts_segment(&other, 24, 7), -ENOSPC, "beyond the step");
    refused(step, ts_segment(&full, 9, 2), -ENOSPC, "longer than its limit");
    mdl_step_free(wide);

    /* An empty step is done at once. */
    mdl_step_begin(step, NULL);
    cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
    struct mdl_step *none;
    struct cfg_error err = {0};
    cr_assert_eq(mdl_step_new(m, 0, 10, &none, &err), -EINVAL);
    cr_assert_null(none);
    cr_assert_eq(mdl_step_new(m, 4, 0, &none, &err), -EINVAL);
    ts_run_free(&full);
    ts_run_free(&r);
    ts_run_free(&other);
    mdl_step_free(step);
    mdl_model_close(m);
}

Test(step, logits_of_wanted_rows_only)
{
    struct mdl_model *m = ts_model(TS_EDGE, 1);
    struct mdl_step *step = ts_step(m, 20, 20);
    struct ts_run r = ts_run_new(m, (struct mdl_seq_params){0}, 2, 20);
    struct ts_run all = ts_run_new(m, (struct mdl_seq_params){0}, 2, 20);
    ts_run_decode(&all, step, 20, 20);
    mdl_step_begin(step, NULL);
    struct mdl_segment seg = ts_segment(&r, 0, 20);
    seg.logits_from = 17;
    cr_assert_eq(mdl_step_add(step, &seg, NULL), 0);
    cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
    for (int i = 0; i < 20; i++)
        cr_assert_eq(mdl_step_logits(step, 0, i) != NULL, i >= 17, "row %d", i);
    ts_run_note(&r, step, 0);
    ts_same_logits(&all, &r, 17, 20, "wanted rows");
    ts_run_free(&all);
    ts_run_free(&r);
    mdl_step_free(step);
    mdl_model_close(m);
}
