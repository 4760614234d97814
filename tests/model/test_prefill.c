/* How a prompt enters a sequence: prefix hits against cold runs, bit for bit, in exact and replay mode. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/model.h"
#include "tests/support/process.h"

static const char *const folders[] = {TS_MINI8, TS_EDGE};

/* A sequence that starts from the first `hit` tokens of `cold`, and the same prompt. */
static struct ts_run start_from(const struct ts_run *cold, struct mdl_seq_params params, uint64_t seed, int hit,
                                bool window)
{
    struct ts_run r = ts_run_new(cold->m, params, seed, cold->n);
    struct cfg_error err = {0};
    if (mdl_seq_copy_prefix(r.seq, cold->seq, hit, window, &err))
        cr_assert_fail("%s", err.msg);
    return r;
}

/* The global rows of the first `tokens` tokens filled with a byte, which an honest run never reads or writes. */
static void poison(struct mdl_seq *s, int tokens, int byte)
{
    for (int k = 0; k < s->cfg->n_kv_sources; k++)
        for (int j = 0; j < tokens / s->cfg->kv_source_ratio[k]; j++) {
            memset(mdl_seq_main_row(s, k, j), byte, s->layout.main_row);
            memset(mdl_seq_index_codes(s, k, j), byte, s->layout.index_code_row);
            memset(mdl_seq_index_scales(s, k, j), byte, s->layout.index_scale_row);
        }
}

/* ---- exact mode ---- */

static int even_reach(const struct mdl_config *cfg)
{
    int reach = mdl_prefill_exact_reach(cfg);
    return reach + reach % 2;
}

/* What a restart needs, by layers and window: 8 (16 - 1) + 16 and 5 (16 - 1) + 16. */
Test(prefill, exact_reach)
{
    static const int want[] = {136, 91};
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        cr_expect_eq(mdl_prefill_exact_reach(m->cfg), want[f], "%s", folders[f]);
        mdl_model_close(m);
    }
}

Test(prefill, exact_hit_equals_cold)
{
    static const int chunks[] = {23, 40, 0}, small[] = {5, 0};
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 2);
        int least = even_reach(m->cfg), n = least + 45;
        const int hits[] = {least, least + 2, least + 20, least + 44, least};
        struct mdl_step *step = ts_step(m, n, n);
        struct mdl_prefill_params params = {.exact = true, .all_logits = true};
        struct mdl_seq_params keep = {.block_tokens = 16, .rollback = n};
        struct ts_run cold = ts_run_new(m, keep, 31, n);
        ts_run_prefill(&cold, step, n - 3, &params, NULL);
        ts_run_decode(&cold, step, n, 1);
        for (size_t i = 0; i < 5; i++) {
            char what[96];
            bool window = i == 1;
            snprintf(what, sizeof what, "%s, hit %d", folders[f], hits[i]);
            /* Also from a cold run that ended exactly at the hit, which is where window rows exist. */
            struct ts_run half = ts_run_new(m, (struct mdl_seq_params){.rollback = 2}, 31, n);
            ts_run_prefill(&half, step, hits[i], &params, NULL);
            struct ts_run r = start_from(
                window ? &half : &cold, (struct mdl_seq_params){.rollback = 4, .block_tokens = 6}, 31, hits[i], window);
            params.hit = hits[i];
            params.hit_window = window;
            int prompt = hits[i] < n - 3 ? n - 3 : n;
            ts_run_prefill(&r, step, prompt, &params, i == 0 ? NULL : i == 4 ? small : chunks);
            cr_assert_eq(r.plan.hit, hits[i]);
            cr_assert_eq(r.plan.encoder_start, hits[i] - mdl_prefill_exact_reach(m->cfg));
            for (int k = 0; k < hits[i]; k++)
                cr_assert_not(r.seen[k], "%s: logits of position %d, which is not exact", what, k);
            ts_run_decode(&r, step, n, 2);
            ts_same_logits(&cold, &r, hits[i], n, what);
            /* From the first row whose window was whole: W rows before the hit, so that a window is there at once. */
            ts_same_state(cold.seq, r.seq, (struct ts_scope){.from = hits[i] - m->cfg->window, .visible = true}, what);
            ts_same_state(cold.seq, r.seq, (struct ts_scope){.from = 0, .visible = true}, what);
            params.hit = 0;
            ts_run_free(&half);
            ts_run_free(&r);
        }
        ts_run_free(&cold);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* Layers owe the rows from the hit on to nothing but cached global rows and the rerun tokens: window rows before the
 * restart are unreadable, and the cached rows stay as they are. */
Test(prefill, exact_hit_leaves_cached_rows)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        int hit = even_reach(m->cfg) + 6, n = hit + 9;
        struct mdl_step *step = ts_step(m, n, n);
        struct mdl_prefill_params params = {.exact = true};
        struct ts_run cold = ts_run_new(m, (struct mdl_seq_params){.rollback = n}, 8, n);
        ts_run_prefill(&cold, step, n, &params, NULL);
        struct ts_run r = start_from(&cold, (struct mdl_seq_params){0}, 8, hit, false);
        /* The selection reads cached rows, so poison would change results; their bytes are compared after the run. */
        poison(r.seq, hit, 0x33);
        params.hit = hit;
        ts_run_prefill(&r, step, n, &params, (const int[]){31, 0});
        for (int k = 0; k < m->cfg->n_kv_sources; k++)
            for (int j = 0; j < hit / m->cfg->kv_source_ratio[k]; j++) {
                const uint8_t *row = mdl_seq_main_row(r.seq, k, j), *codes = mdl_seq_index_codes(r.seq, k, j);
                for (size_t b = 0; b < r.seq->layout.main_row; b++)
                    cr_assert_eq(row[b], 0x33, "row %d of source %d was written", j, k);
                for (size_t b = 0; b < r.seq->layout.index_code_row; b++)
                    cr_assert_eq(codes[b], 0x33, "index row %d of source %d was written", j, k);
            }
        ts_run_free(&cold);
        ts_run_free(&r);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

Test(prefill, exact_short_hit_is_a_miss)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 2);
        int reach = mdl_prefill_exact_reach(m->cfg), n = reach + 10;
        const int hits[] = {2, 40, (reach - 1) / 2 * 2};
        struct mdl_step *step = ts_step(m, n, n);
        struct mdl_prefill_params params = {.exact = true, .all_logits = true};
        struct ts_run cold = ts_run_new(m, (struct mdl_seq_params){.rollback = n}, 31, n);
        ts_run_prefill(&cold, step, n, &params, NULL);
        for (size_t i = 0; i < 3; i++) {
            struct ts_run r = start_from(&cold, (struct mdl_seq_params){.rollback = n}, 31, hits[i], false);
            params.hit = hits[i];
            ts_run_prefill(&r, step, n, &params, NULL);
            cr_assert_eq(r.plan.hit, 0, "hit %d of at least %d counts as a miss", hits[i], reach);
            ts_same_logits(&cold, &r, 0, n, folders[f]);
            ts_same_state(cold.seq, r.seq, (struct ts_scope){0}, folders[f]);
            ts_run_free(&r);
        }
        ts_run_free(&cold);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* ---- bounded replay ---- */

Test(prefill, replay_of_a_short_prompt_is_exact)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        int w = m->cfg->window, more = w + 12;
        struct mdl_step *step = ts_step(m, more + 8, more + 8);
        const int prompts[] = {1, 2, 3, w, w + 1, more - 1, more};
        for (size_t i = 0; i < 2 * sizeof prompts / sizeof *prompts; i++) {
            int n = prompts[i / 2];
            bool full = i % 2;
            struct mdl_seq_params params = {.replay = more, .full_bridge = full, .rollback = 1};
            struct ts_run a = ts_run_new(m, params, 12, n + 6), b = ts_run_new(m, params, 12, n + 6);
            ts_run_prefill(&a, step, n, &(struct mdl_prefill_params){.exact = true, .all_logits = true}, NULL);
            ts_run_prefill(&b, step, n,
                           &(struct mdl_prefill_params){.replay = more, .full_bridge = full, .all_logits = true}, NULL);
            ts_run_decode(&a, step, n + 6, 1);
            ts_run_decode(&b, step, n + 6, 4);
            ts_same_logits(&a, &b, 0, n + 6, folders[f]);
            ts_same_state(a.seq, b.seq, (struct ts_scope){0}, folders[f]);
            ts_run_free(&a);
            ts_run_free(&b);
        }
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

static bool same_row(const struct ts_run *a, const struct ts_run *b, int pos)
{
    size_t vocab = (size_t)a->m->cfg->vocab_size;
    return !memcmp(a->logits + (size_t)pos * vocab, b->logits + (size_t)pos * vocab, vocab * sizeof(float));
}

Test(prefill, replay_is_an_approximation_that_full_refines)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    int w = m->cfg->window, n = 70, r = w + 12;
    struct mdl_step *step = ts_step(m, n, n);
    struct mdl_seq_params params = {.replay = r, .full_bridge = true};
    struct ts_run run[3];
    for (int i = 0; i < 3; i++) {
        struct mdl_prefill_params plan = {.exact = i == 0, .replay = r, .full_bridge = i == 2, .all_logits = true};
        run[i] = ts_run_new(m, params, 71, n);
        ts_run_prefill(&run[i], step, n, &plan, NULL);
    }
    /* Global rows depend on the encoder alone. */
    for (int i = 1; i < 3; i++) {
        cr_assert_eq(run[i].plan.decoder_start, n - r);
        cr_assert(run[i].seen[n - r] && !run[i].seen[n - r - 1]);
        for (int k = 0; k < m->cfg->n_kv_sources; k++)
            for (int j = 0; j < n / m->cfg->kv_source_ratio[k]; j++)
                cr_assert_arr_eq(mdl_seq_main_row(run[0].seq, k, j), mdl_seq_main_row(run[i].seq, k, j),
                                 run[0].seq->layout.main_row);
        cr_assert_not(same_row(&run[0], &run[i], n - r), "the first replayed row saw a short window and must differ");
    }
    cr_assert_not(same_row(&run[1], &run[2], n - r), "full and truncate must differ in the first replayed row");
    /* With full, the cut layer's window rows before the replay are those of the exact run; with truncate there are
     * none. */
    int cut = m->cfg->cut;
    cr_assert_eq(run[1].seq->window_lo[cut], n - r);
    cr_assert_eq(run[2].seq->window_lo[cut], 0);
    cr_assert_eq(run[2].seq->window_lo[cut + 1], n - r);
    for (int p = n - r - w + 1; p < n; p++)
        if (p >= n - run[0].seq->ring_rows[cut])
            cr_assert_arr_eq(mdl_seq_ring_row(run[0].seq, cut, p), mdl_seq_ring_row(run[2].seq, cut, p),
                             run[0].seq->layout.swa_row, "cut layer's window row of position %d", p);
    /* The cut layer itself is exact with full: its output feeds the next layer's window row. */
    int next = cut + 1;
    cr_assert_arr_eq(mdl_seq_ring_row(run[0].seq, next, n - 1), mdl_seq_ring_row(run[2].seq, next, n - 1),
                     run[0].seq->layout.swa_row, "full: the layer behind the cut has exact window rows");
    for (int i = 0; i < 3; i++)
        ts_run_free(&run[i]);
    mdl_step_free(step);
    mdl_model_close(m);
}

/* Encoder at the end of the first pass: the plan is run until the decoder's turn. */
static void run_encoder(struct ts_run *r, struct mdl_step *step, int n, const struct mdl_prefill_params *params,
                        int chunk)
{
    struct mdl_segment seg;
    struct cfg_error err = {0};
    if (mdl_prefill_begin(&r->plan, r->seq, r->ids, n, params, &err))
        cr_assert_fail("%s", err.msg);
    while (mdl_prefill_next(&r->plan, chunk, &seg) && seg.layer_begin == 0) {
        mdl_step_begin(step, NULL);
        cr_assert_eq(mdl_step_add(step, &seg, NULL), 0);
        cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
        mdl_step_commit(step, 0, seg.n);
        mdl_prefill_advance(&r->plan, &seg);
    }
}

Test(prefill, replay_hit_with_window_equals_cold)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        int w = m->cfg->window, n = 66, r = w + 4;
        const int hits[] = {2, w, w + 2, 40, n - r};
        struct mdl_step *step = ts_step(m, n + 5, n + 5);
        struct mdl_seq_params keep = {.replay = r, .full_bridge = true, .rollback = 5, .block_tokens = 16};
        for (size_t i = 0; i < 5; i++)
            for (int full = 0; full < (hits[i] == n - r ? 1 : 2); full++) {
                int hit = hits[i];
                char what[96];
                struct mdl_prefill_params params = {.replay = r, .full_bridge = full, .all_logits = true};
                snprintf(what, sizeof what, "%s, hit %d, %s", folders[f], hit, full ? "full" : "truncate");
                struct ts_run cold = ts_run_new(m, keep, 5, n + 5), half = ts_run_new(m, keep, 5, n + 5);
                run_encoder(&cold, step, n, &params, n);
                ts_run_prefill(&half, step, hit, &params, NULL);
                struct ts_run hot = start_from(&half, keep, 5, hit, true);
                params.hit = hit;
                params.hit_window = true;
                run_encoder(&hot, step, n, &params, 7);
                cr_assert_eq(hot.plan.encoder_start, hit, "%s: the encoder goes on", what);
                for (int p = hit > n - r ? hit : n - r; p < n; p++)
                    cr_assert_arr_eq(cold.seq->bridge_x + (size_t)(p % r) * MDL_HC * (size_t)m->cfg->hidden,
                                     hot.seq->bridge_x + (size_t)(p % r) * MDL_HC * (size_t)m->cfg->hidden,
                                     MDL_HC * (size_t)m->cfg->hidden * sizeof(uint16_t), "%s: bridge row %d", what, p);
                ts_run_free(&cold);
                ts_run_free(&hot);
                /* To the end and on. With full the cut layer's window begins at the hit, which a cold run's does not.
                 */
                struct ts_run a = ts_run_new(m, keep, 5, n + 5), b = start_from(&half, keep, 5, hit, true);
                ts_run_prefill(&b, step, n, &params, (const int[]){9, 0});
                params.hit = 0;
                ts_run_prefill(&a, step, n, &params, NULL);
                ts_run_decode(&a, step, n + 5, 1);
                ts_run_decode(&b, step, n + 5, 5);
                bool same = !full || hit <= n - r - w + 1;
                if (same) {
                    ts_same_logits(&a, &b, n - r, n + 5, what);
                    ts_same_state(a.seq, b.seq, (struct ts_scope){.visible = true}, what);
                } else {
                    cr_assert_not(same_row(&a, &b, n - r), "%s: the cut layer saw fewer rows", what);
                }
                ts_run_free(&a);
                ts_run_free(&b);
                ts_run_free(&half);
            }
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* A sequence that keeps more encoder window rows than the window serves hits that lie behind its end. */
Test(prefill, replay_hit_from_extra_window_rows)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        int n = 66, r = m->cfg->window, extra = 13;
        struct mdl_step *step = ts_step(m, n, n);
        struct mdl_seq_params keep = {.replay = r}, more = {.replay = r, .window_extra = extra};
        struct mdl_prefill_params params = {.replay = r, .all_logits = true};
        struct ts_run cold = ts_run_new(m, keep, 5, n), src = ts_run_new(m, more, 5, n);
        struct cfg_error err = {0};
        ts_run_prefill(&cold, step, n, &params, NULL);
        ts_run_prefill(&src, step, 47, &params, (const int[]){10, 0});
        struct mdl_seq *late = ts_seq(m, (struct mdl_seq_params){.max_tokens = n});
        cr_expect_eq(mdl_seq_copy_prefix(late, src.seq, 47 - extra - 2, true, &err), -EINVAL,
                     "that far back nothing is kept");
        for (int hit = 47 - extra; hit < 47; hit += 6) {
            struct ts_run b = start_from(&src, hit % 4 ? keep : more, 5, hit, true);
            params.hit = hit;
            params.hit_window = true;
            ts_run_prefill(&b, step, n, &params, (const int[]){9, 0});
            cr_assert_eq(b.plan.encoder_start, hit);
            ts_same_logits(&cold, &b, n - r, n, folders[f]);
            ts_same_state(cold.seq, b.seq, (struct ts_scope){.visible = true}, folders[f]);
            ts_run_free(&b);
        }
        mdl_seq_free(late);
        ts_run_free(&cold);
        ts_run_free(&src);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

Test(prefill, replay_hit_without_window)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        int w = m->cfg->window, n = 66, r = w + 4;
        const int hits[] = {2, w, w + 2, w + 6, 40, 64};
        struct mdl_step *step = ts_step(m, n, n);
        struct mdl_seq_params keep = {.replay = r, .rollback = 3};
        struct ts_run cold = ts_run_new(m, keep, 5, n);
        ts_run_prefill(&cold, step, n, &(struct mdl_prefill_params){.replay = r, .all_logits = true}, NULL);
        for (size_t i = 0; i < 6; i++)
            for (int window = 0; window < 2; window++) {
                /* Window rows that are there are not used when N - H < R. */
                if (window && n - hits[i] >= r)
                    continue;
                int hit = hits[i];
                struct mdl_prefill_params params = {.replay = r, .all_logits = true};
                struct ts_run half = ts_run_new(m, keep, 5, n);
                ts_run_prefill(&half, step, hit, &params, NULL);
                params.hit = hit;
                params.hit_window = window;
                struct ts_run a = start_from(&half, keep, 5, hit, window), b = start_from(&half, keep, 5, hit, false);
                struct ts_image cached = ts_image_take(half.seq, hit), now;
                ts_run_prefill(&a, step, n, &params, NULL);
                ts_run_prefill(&b, step, n, &params, (const int[]){3, 8, 0});
                int start = hit - (w > r ? w : r) > 0 ? hit - (w > r ? w : r) : 0;
                cr_assert_eq(a.plan.encoder_start, start);
                cr_assert_eq(a.seq->window_lo[0], start, "rows before the replay are not seen");
                ts_same_logits(&a, &b, n - r, n, folders[f]);
                ts_same_state(a.seq, b.seq, (struct ts_scope){.bridge = true}, folders[f]);
                /* Cached rows are as the cold run of the hit left them. */
                for (int k = 0; k < m->cfg->n_kv_sources; k++)
                    for (int j = 0; j < hit / m->cfg->kv_source_ratio[k]; j++) {
                        cr_assert_arr_eq(mdl_seq_main_row(half.seq, k, j), mdl_seq_main_row(a.seq, k, j),
                                         a.seq->layout.main_row, "hit %d: row %d of source %d", hit, j, k);
                        cr_assert_arr_eq(mdl_seq_index_codes(half.seq, k, j), mdl_seq_index_codes(a.seq, k, j),
                                         a.seq->layout.index_code_row);
                    }
                now = ts_image_take(half.seq, hit);
                cr_assert(ts_image_same(&cached, &now), "the source of the hit changed");
                /* From the very beginning the encoder is exact, whatever the hit. */
                if (start == 0) {
                    ts_same_logits(&cold, &a, n - r, n, "encoder from 0");
                    ts_same_state(cold.seq, a.seq, (struct ts_scope){.visible = true}, "encoder from 0");
                } else {
                    cr_assert_not(same_row(&cold, &a, n - r), "hit %d: the encoder saw a short window", hit);
                }
                ts_image_free(&cached);
                ts_image_free(&now);
                ts_run_free(&half);
                ts_run_free(&a);
                ts_run_free(&b);
            }
        ts_run_free(&cold);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* Poisoned rows stay poisoned: nothing below the hit is ever written, odd chunk sizes included. */
Test(prefill, replay_hit_never_writes_below)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        int r = m->cfg->window, n = 60;
        struct mdl_step *step = ts_step(m, n, n);
        struct mdl_seq_params keep = {.replay = r};
        struct ts_run half = ts_run_new(m, keep, 5, n);
        ts_run_prefill(&half, step, 38, &(struct mdl_prefill_params){.replay = r}, NULL);
        for (int chunk = 1; chunk < 9; chunk += 2) {
            struct ts_run a = start_from(&half, keep, 5, 38, false);
            poison(a.seq, 38, 0x21);
            ts_run_prefill(&a, step, n, &(struct mdl_prefill_params){.replay = r, .hit = 38}, (const int[]){chunk, 0});
            for (int k = 0; k < m->cfg->n_kv_sources; k++)
                for (int j = 0; j < 38 / m->cfg->kv_source_ratio[k]; j++) {
                    const uint8_t *row = mdl_seq_main_row(a.seq, k, j), *scale = mdl_seq_index_scales(a.seq, k, j);
                    cr_assert(row[0] == 0x21 && !memcmp(row, row + 1, a.seq->layout.main_row - 1), "row %d, source %d",
                              j, k);
                    cr_assert(scale[0] == 0x21, "index row %d, source %d", j, k);
                }
            ts_run_free(&a);
        }
        ts_run_free(&half);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* Rows of tokens from .. n-1 that differ between two sequences. */
static int rows_that_differ(const struct mdl_seq *a, const struct mdl_seq *b, int from, int n)
{
    int differ = 0;
    for (int k = 0; k < a->cfg->n_kv_sources; k++)
        for (int j = from / a->cfg->kv_source_ratio[k]; j < n / a->cfg->kv_source_ratio[k]; j++)
            differ += memcmp(mdl_seq_main_row(a, k, j), mdl_seq_main_row(b, k, j), a->layout.main_row) ||
                      memcmp(mdl_seq_index_codes(a, k, j), mdl_seq_index_codes(b, k, j), a->layout.index_code_row) ||
                      memcmp(mdl_seq_index_scales(a, k, j), mdl_seq_index_scales(b, k, j), a->layout.index_scale_row);
    return differ;
}

/* A run behind a replayed hit of C tokens whose rows were kept up to H goes on at any H as if it had never stopped: all
 * bits depend on C alone. A second replay at H would give other ones. */
Test(prefill, a_run_behind_a_replayed_hit_goes_on_with_its_bits)
{
    static const int chunks[] = {7, 30, 0};
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 2);
        int w = m->cfg->window, n = 180, r = w + 4, clean = 40, least = mdl_prefill_run_least(m->cfg);
        const int hits[] = {clean + 2, clean + least / 2 * 2, clean + least / 2 * 2 + 2, 150, n - 2};
        struct mdl_step *step = ts_step(m, n + 6, n + 6);
        for (int full = 0; full < 2; full++) {
            struct mdl_seq_params keep = {.replay = r, .full_bridge = full, .rollback = 5, .block_tokens = 16};
            struct mdl_prefill_params params = {.replay = r, .full_bridge = full, .all_logits = true};
            struct ts_run half = ts_run_new(m, keep, 5, n + 6);
            ts_run_prefill(&half, step, clean, &params, NULL);
            struct ts_run run = start_from(&half, keep, 5, clean, false);
            params.hit = clean;
            ts_run_prefill(&run, step, n, &params, NULL);
            cr_assert_eq(run.plan.behind, clean);
            ts_run_decode(&run, step, n + 6, 1);
            for (size_t i = 0; i < sizeof hits / sizeof *hits; i++) {
                char what[96];
                int hit = hits[i], late = hit - least - r, began = clean - r;
                snprintf(what, sizeof what, "%s, hit %d, %s", folders[f], hit, full ? "full" : "truncate");
                struct ts_run again = start_from(&run, keep, 5, hit, false);
                params.hit = hit;
                params.hit_clean = clean;
                ts_run_prefill(&again, step, n, &params, i % 2 ? chunks : NULL);
                cr_assert_eq(again.plan.hit, hit);
                cr_assert_eq(again.plan.encoder_start, late > began ? late : began, "%s", what);
                cr_assert_eq(late > began, hit - clean > least, "%s", what);
                cr_assert(again.plan.behind == clean && !again.plan.continued, "%s", what);
                ts_run_decode(&again, step, n + 6, 3);
                ts_same_logits(&run, &again, n - r, n + 6, what);
                ts_same_state(run.seq, again.seq, (struct ts_scope){.visible = true, .bridge = true}, what);
                cr_assert_eq(rows_that_differ(run.seq, again.seq, 0, n + 6), 0, "%s", what);
                struct ts_run twice = start_from(&run, keep, 5, hit, false);
                params.hit_clean = 0;
                ts_run_prefill(&twice, step, n, &params, NULL);
                cr_assert_eq(twice.plan.behind, hit);
                cr_assert(hit > 150 || rows_that_differ(run.seq, twice.seq, hit, n), "%s: a second replay", what);
                ts_run_free(&twice);
                ts_run_free(&again);
            }
            ts_run_free(&run);
            ts_run_free(&half);
        }
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* Rows below the hit stay as they were stored, those of the run among them. */
Test(prefill, a_run_that_goes_on_writes_nothing_below)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        int r = m->cfg->window, n = 160, hit = 150;
        struct mdl_step *step = ts_step(m, n, n);
        struct mdl_seq_params keep = {.replay = r};
        struct ts_run half = ts_run_new(m, keep, 5, n);
        ts_run_prefill(&half, step, n - 2, &(struct mdl_prefill_params){.replay = r}, NULL);
        struct ts_run a = start_from(&half, keep, 5, hit, false);
        poison(a.seq, hit, 0x21);
        ts_run_prefill(&a, step, n, &(struct mdl_prefill_params){.replay = r, .hit = hit, .hit_clean = 38},
                       (const int[]){9, 0});
        for (int k = 0; k < m->cfg->n_kv_sources; k++)
            for (int j = 0; j < hit / m->cfg->kv_source_ratio[k]; j++) {
                const uint8_t *row = mdl_seq_main_row(a.seq, k, j);
                cr_assert(row[0] == 0x21 && !memcmp(row, row + 1, a.seq->layout.main_row - 1), "row %d, source %d", j,
                          k);
            }
        ts_run_free(&a);
        ts_run_free(&half);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* ---- what a plan refuses ---- */

static void refused(struct mdl_seq *seq, const int32_t *ids, int n, struct mdl_prefill_params params, const char *part)
{
    struct mdl_prefill p;
    struct cfg_error err = {0};
    struct ts_image before = ts_image_take(seq, 0);
    cr_expect_eq(mdl_prefill_begin(&p, seq, ids, n, &params, &err), -EINVAL, "%s", part);
    cr_expect_not_null(strstr(err.msg, part), "\"%s\" does not say \"%s\"", err.msg, part);
    struct ts_image now = ts_image_take(seq, 0);
    cr_expect(ts_image_same(&before, &now), "%s: the sequence changed", part);
    ts_image_free(&before);
    ts_image_free(&now);
}

Test(prefill, refuses)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    int w = m->cfg->window;
    struct mdl_seq *seq = ts_seq(m, (struct mdl_seq_params){.max_tokens = 50, .replay = w + 4});
    int32_t *ids = ts_ids(m, 1, 60);
    refused(seq, ids, 0, (struct mdl_prefill_params){.exact = true}, "empty");
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w, .hit = 7}, "even");
    refused(seq, ids, 30, (struct mdl_prefill_params){.exact = true, .hit = 7}, "even");
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w, .hit = -2}, "even");
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w, .hit = 30}, "shorter than the prompt");
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w, .hit = 20, .hit_clean = 22}, "within the hit");
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w, .hit = 20, .hit_clean = 7}, "even");
    refused(seq, ids, 30, (struct mdl_prefill_params){.exact = true, .hit = 20, .hit_clean = 18}, "exact mode");
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w - 1}, "replay of 15 rows");
    refused(seq, ids, 30, (struct mdl_prefill_params){0}, "replay of 0 rows");
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w + 5}, "what the sequence keeps");
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w, .full_bridge = true}, "full");
    ids[9] = m->cfg->vocab_size;
    refused(seq, ids, 30, (struct mdl_prefill_params){.replay = w}, "token 9");
    ids[9] = 0;
    struct mdl_prefill p;
    struct cfg_error err = {0};
    cr_assert_eq(mdl_prefill_begin(&p, seq, ids, 51, &(struct mdl_prefill_params){.exact = true}, &err), -ENOSPC);
    cr_assert_not_null(strstr(err.msg, "51"), "%s", err.msg);
    mdl_seq_free(seq);
    free(ids);
    mdl_model_close(m);
}

/* ---- models without a cut ---- */

static void link_file(const char *dir, const char *name)
{
    char from[4096], to[4096], cwd[2048];
    cr_assert_not_null(getcwd(cwd, sizeof cwd));
    snprintf(from, sizeof from, "%s/%s/%s", cwd, TS_MINI8, name);
    snprintf(to, sizeof to, "%s/%s", dir, name);
    cr_assert_eq(symlink(from, to), 0, "%s", to);
}

/* mini8 whose last layer reads no global rows: its tensors fit, but the layers behind the last source no longer share
 * one ratio, so there is no place to cut. */
Test(prefill, model_without_cut_is_exact_only)
{
    char *dir = ts_temp_dir();
    json_t *j = json_load_file(TS_MINI8 "/config.json", 0, NULL);
    cr_assert(dir && j);
    json_array_set_new(json_object_get(json_object_get(j, "text_config"), "compress_ratios"), 7, json_integer(0));
    char *text = json_dumps(j, 0), *path = ts_write_file(dir, "config.json", text);
    link_file(dir, "model.safetensors");
    link_file(dir, "engram.safetensors");
    struct mdl_model *m = ts_model(dir, 1);
    cr_assert_lt(m->cfg->cut, 0, "cut %d", m->cfg->cut);
    cr_assert_neq(m->cfg->cut_reason[0], 0);
    struct mdl_step *step = ts_step(m, 60, 60);
    struct ts_run whole = ts_run_new(m, (struct mdl_seq_params){0}, 4, 50),
                  r = ts_run_new(m, (struct mdl_seq_params){0}, 4, 50);
    ts_run_prefill(&whole, step, 50, &(struct mdl_prefill_params){.exact = true, .all_logits = true}, NULL);
    /* Asking for replay changes nothing. */
    ts_run_prefill(&r, step, 45, &(struct mdl_prefill_params){.replay = 3, .all_logits = true}, (const int[]){7, 4, 0});
    cr_assert_not(r.plan.two_passes);
    ts_run_decode(&r, step, 50, 2);
    ts_same_logits(&whole, &r, 0, 50, "no cut");
    ts_same_state(whole.seq, r.seq, (struct ts_scope){0}, "no cut");
    struct mdl_segment seg = ts_segment(&r, 50, 1);
    struct cfg_error err = {0};
    seg.start = 40;
    seg.ids = NULL;
    seg.layer_begin = m->cfg->cut;
    mdl_step_begin(step, NULL);
    cr_assert_eq(mdl_step_add(step, &seg, &err), -EINVAL, "layers from %d", m->cfg->cut);
    seg = ts_segment(&r, 40, 1);
    seg.layer_end = m->cfg->cut;
    cr_assert_eq(mdl_step_add(step, &seg, &err), -EINVAL);
    ts_run_free(&whole);
    ts_run_free(&r);
    mdl_step_free(step);
    mdl_model_close(m);
    json_decref(j);
    free(text);
    free(path);
    ts_remove_dir(dir);
    free(dir);
}
