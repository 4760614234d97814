/* The state of a sequence: the layout of its blocks, and taking tokens back, compared bit for bit with a twin that
 * never saw them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/model.h"

static const char *const folders[] = {TS_MINI8, TS_EDGE};

/* ---- layout ---- */

Test(kv, layout_of_the_real_config)
{
    struct mdl_config *cfg = malloc(sizeof *cfg);
    struct mdl_kv_layout l;
    struct cfg_error err = {0};
    cr_assert_eq(mdl_config_load("tests/fixtures/real-config", cfg, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_kv_layout_init(cfg, 0, &l, &err), 0);
    cr_expect_eq(l.block_tokens, 256);
    cr_expect_eq(l.main_row, 288u);
    cr_expect_eq(l.index_code_row + l.index_scale_row, 68u);
    cr_expect_eq(l.swa_row, 528u);
    cr_expect_eq(l.block_bytes, 241664u, "%zu bytes a block", l.block_bytes);
    const int ratio[] = {2, 2, 2, 1};
    size_t at = 0, data = 0;
    cr_assert_eq(cfg->n_kv_sources, 4);
    for (int k = 0; k < 4; k++) {
        const struct mdl_kv_extent *e = &l.source[k];
        cr_expect_eq(e->rows, 256 / ratio[k]);
        cr_expect_eq(e->offset, at, "source %d", k);
        cr_expect_eq(e->offset % 4096, 0u);
        cr_expect_eq(e->bytes % 4096, 0u);
        cr_expect_eq(e->index_codes, (size_t)e->rows * 288);
        cr_expect_eq(e->index_scales, (size_t)e->rows * (288 + 64));
        cr_expect_ge(e->bytes, (size_t)e->rows * 356);
        cr_expect_lt(e->bytes, (size_t)e->rows * 356 + 4096);
        at += e->bytes;
        data += (size_t)e->rows * 356;
    }
    cr_expect_eq(at, l.block_bytes);
    cr_expect_eq(data, 256u * 890u, "890 bytes of global KV a token");
    size_t window, rollback;
    mdl_seq_fixed_bytes(cfg, 0, &window, &rollback);
    cr_expect_eq(window, 2918400u, "%zu fixed bytes", window);
    mdl_seq_fixed_bytes(cfg, 12, &window, &rollback);
    cr_expect_eq(window, 2918400u, "rollback is counted apart");
    cr_expect_ge(rollback, 12u * 43u * 528u);
    free(cfg);
}

Test(kv, refuses_bad_sizes)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_kv_layout l;
    const int blocks[] = {1, 3, 255, -2};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        struct cfg_error err = {0};
        cr_expect_eq(mdl_kv_layout_init(m->cfg, blocks[i], &l, &err), -EINVAL, "%d", blocks[i]);
        cr_expect_not_null(strstr(err.msg, "even"), "%s", err.msg);
    }
    const struct mdl_seq_params bad[] = {
        {.max_tokens = 0},
        {.max_tokens = -4},
        {.max_tokens = 8, .rollback = -1},
        {.max_tokens = 8, .replay = -1},
        {.max_tokens = 8, .replay = m->cfg->window - 1},
        {.max_tokens = 8, .block_tokens = 7},
        {.max_tokens = 8, .window_extra = -20},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mdl_seq *s = (struct mdl_seq *)&l;
        struct cfg_error err = {0};
        cr_expect_eq(mdl_seq_new(m->cfg, &bad[i], &s, &err), -EINVAL, "case %zu", i);
        cr_expect_null(s);
        cr_expect_neq(err.msg[0], 0);
    }
    mdl_model_close(m);
}

Test(kv, rows_do_not_overlap)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_seq *s = ts_seq(m, (struct mdl_seq_params){.max_tokens = 21, .block_tokens = 6});
        struct cfg_error err = {0};
        cr_assert_eq(mdl_seq_reserve(s, 21, &err), 0);
        for (int b = 0; b < s->n_blocks; b++)
            memset(s->blocks[b], 0, s->layout.block_bytes);
        for (int pass = 0; pass < 2; pass++)
            for (int k = 0; k < m->cfg->n_kv_sources; k++)
                for (int j = 0; j < 21 / m->cfg->kv_source_ratio[k]; j++) {
                    uint8_t *piece[] = {mdl_seq_main_row(s, k, j), mdl_seq_index_codes(s, k, j),
                                        mdl_seq_index_scales(s, k, j)};
                    size_t len[] = {s->layout.main_row, s->layout.index_code_row, s->layout.index_scale_row};
                    for (int i = 0; i < 3; i++) {
                        uint8_t mark = (uint8_t)(1 + (k * 100 + j * 3 + i) % 250);
                        for (size_t b = 0; b < len[i]; b++)
                            if (pass)
                                cr_assert_eq(piece[i][b], mark, "row %d of source %d, part %d", j, k, i);
                        memset(piece[i], mark, len[i]);
                    }
                }
        mdl_seq_free(s);
        mdl_model_close(m);
    }
}

Test(kv, reserve)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_seq *s = ts_seq(m, (struct mdl_seq_params){.max_tokens = 33, .block_tokens = 16});
    struct cfg_error err = {0};
    cr_assert_eq(s->n_blocks, 3);
    cr_assert_null(s->blocks[0], "nothing is there before it is needed");
    cr_assert_eq(mdl_seq_reserve(s, 0, &err), 0);
    cr_assert_null(s->blocks[0]);
    cr_assert_eq(mdl_seq_reserve(s, 16, &err), 0);
    cr_assert(s->blocks[0] && !s->blocks[1]);
    uint8_t *first = s->blocks[0];
    cr_assert_eq(mdl_seq_reserve(s, 17, &err), 0);
    cr_assert(s->blocks[0] == first && s->blocks[1] && !s->blocks[2]);
    cr_assert_eq(mdl_seq_reserve(s, 33, &err), 0);
    cr_assert_not_null(s->blocks[2]);
    cr_assert_eq((uintptr_t)s->blocks[2] % 4096, 0u, "blocks are aligned for direct I/O");
    cr_assert_eq(mdl_seq_reserve(s, 34, &err), -ENOSPC);
    cr_assert_not_null(strstr(err.msg, "33"), "%s", err.msg);
    mdl_seq_free(s);
    mdl_seq_free(NULL);
    mdl_model_close(m);
}

/* ---- taking tokens back ---- */

enum { ROLLBACK = 7, KEEP_TO = 64 };

/* Tokens up to `base`, then `drop` wrong ones in segments of `rows`, taken back, then right ones again. */
static void check_rollback(struct mdl_step *step, const struct ts_run *twin, int base, int drop, int rows, bool exact)
{
    struct mdl_model *m = twin->m;
    struct cfg_error err = {0};
    char what[96];
    snprintf(what, sizeof what, "%d tokens back at %d, %d at a time", drop, base, rows);
    struct ts_run r = ts_run_new(m, twin->seq->params, 90, twin->n);
    if (exact)
        ts_run_decode(&r, step, base, base);
    else
        ts_run_prefill(&r, step, base, &(struct mdl_prefill_params){.replay = twin->seq->params.replay}, NULL);
    int32_t *right = r.ids;
    r.ids = ts_ids(m, 1234, twin->n);
    memcpy(r.ids, right, (size_t)base * sizeof *right);
    ts_run_decode(&r, step, base + drop, rows);
    cr_assert_eq(mdl_seq_truncate(r.seq, base, &err), 0, "%s: %s", what, err.msg);
    cr_assert(r.seq->len == base && r.seq->encoded == base);
    free(r.ids);
    r.ids = right;
    memset(r.seen, 0, (size_t)r.n);
    ts_run_decode(&r, step, twin->n, rows);
    ts_same_logits(twin, &r, base, twin->n, what);
    ts_same_state(twin->seq, r.seq, (struct ts_scope){.visible = true}, what);
    ts_run_free(&r);
}

Test(kv, truncate_equals_never_seen)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, KEEP_TO, KEEP_TO + ROLLBACK);
        struct ts_run twin =
            ts_run_new(m, (struct mdl_seq_params){.rollback = ROLLBACK, .max_tokens = KEEP_TO}, 90, 44);
        ts_run_decode(&twin, step, 44, 1);
        int ring = m->cfg->window + ROLLBACK;
        /* Even and odd ends of a pair, and the places where rings of the window and of window + rollback begin anew. */
        const int bases[] = {1,        2,    m->cfg->window - 1, m->cfg->window,
                             ring - 1, ring, ring + 1,           2 * m->cfg->window + 1};
        for (size_t b = 0; b < sizeof bases / sizeof *bases; b++)
            for (int drop = 1; drop <= ROLLBACK; drop += drop == 3 ? 3 : 1)
                check_rollback(step, &twin, bases[b], drop, 1 + drop % 4, true);
        ts_run_free(&twin);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* After a replayed prompt the decoder's rows begin late; what came behind the prompt can be taken back all the same. */
Test(kv, truncate_after_replay)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, KEEP_TO, KEEP_TO);
        struct mdl_seq_params params = {.rollback = ROLLBACK, .max_tokens = KEEP_TO, .replay = m->cfg->window + 3};
        for (int base = 36; base < 39; base++) {
            struct ts_run twin = ts_run_new(m, params, 90, 50);
            ts_run_prefill(&twin, step, base, &(struct mdl_prefill_params){.replay = params.replay}, NULL);
            ts_run_decode(&twin, step, 50, 1);
            check_rollback(step, &twin, base, ROLLBACK, 4, false);
            ts_run_free(&twin);
        }
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* Verification that keeps some rows of a segment: the rest leaves nothing behind. */
Test(kv, partial_commit_equals_never_seen)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, KEEP_TO, KEEP_TO);
        struct ts_run twin = ts_run_new(m, (struct mdl_seq_params){0}, 90, 46);
        struct ts_run r = ts_run_new(m, (struct mdl_seq_params){0}, 90, 46);
        uint64_t random = 5;
        while (r.seq->len < 46) {
            int start = r.seq->len, n = 1 + (int)ts_random(&random, 6), keep;
            int32_t ids[8];
            n = n < 46 - start ? n : 46 - start;
            keep = 1 + (int)ts_random(&random, (uint32_t)n);
            for (int i = 0; i < n; i++)
                ids[i] = i < keep ? r.ids[start + i] : (r.ids[start + i] + 1) % m->cfg->vocab_size;
            struct mdl_segment seg = ts_segment(&r, start, n);
            seg.ids = ids;
            mdl_step_begin(step, NULL);
            cr_assert_eq(mdl_step_add(step, &seg, NULL), 0);
            cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
            ts_run_note(&r, step, 0);
            mdl_step_commit(step, 0, keep);
            cr_assert_eq(r.seq->len, start + keep);
            ts_run_decode(&twin, step, start + keep, 1);
            ts_same_state(twin.seq, r.seq, (struct ts_scope){0}, folders[f]);
        }
        ts_same_logits(&twin, &r, 45, 46, folders[f]);
        ts_run_free(&twin);
        ts_run_free(&r);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

Test(kv, truncate_refuses)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, 40, 40);
    struct cfg_error err = {0};
    struct ts_run r = ts_run_new(m, (struct mdl_seq_params){.rollback = 4, .replay = m->cfg->window}, 1, 40);
    ts_run_decode(&r, step, 20, 20);
    struct ts_image before = ts_image_take(r.seq, 20);
    const int bad[] = {15, 0, -1, 21};
    for (size_t i = 0; i < 4; i++) {
        cr_expect_eq(mdl_seq_truncate(r.seq, bad[i], &err), -EINVAL, "to %d", bad[i]);
        cr_expect_not_null(strstr(err.msg, "only the last 4"), "%s", err.msg);
    }
    struct ts_image now = ts_image_take(r.seq, 20);
    cr_expect(ts_image_same(&before, &now));
    cr_expect_eq(mdl_seq_truncate(r.seq, 20, &err), 0);
    cr_expect_eq(mdl_seq_truncate(r.seq, 16, &err), 0);
    cr_expect_eq(r.seq->len, 16);
    /* In the middle of a two-pass prefill there is nothing to take back. */
    mdl_seq_reset(r.seq);
    cr_expect(r.seq->len == 0 && r.seq->encoded == 0);
    struct mdl_segment seg;
    cr_assert_eq(
        mdl_prefill_begin(&r.plan, r.seq, r.ids, 30, &(struct mdl_prefill_params){.replay = m->cfg->window}, &err), 0);
    cr_assert(mdl_prefill_next(&r.plan, 40, &seg));
    mdl_step_begin(step, NULL);
    cr_assert_eq(mdl_step_add(step, &seg, &err), 0);
    cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
    mdl_step_commit(step, 0, seg.n);
    cr_expect_eq(mdl_seq_truncate(r.seq, 0, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "unfinished"), "%s", err.msg);
    ts_image_free(&before);
    ts_image_free(&now);
    ts_run_free(&r);
    mdl_step_free(step);
    mdl_model_close(m);
}

/* A tail that was taken back may not be taken back again further than the rows that are kept. */
Test(kv, truncate_twice_counts_from_the_highest)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, 60, 60);
    struct cfg_error err = {0};
    struct ts_run twin = ts_run_new(m, (struct mdl_seq_params){.rollback = 4}, 1, 60);
    struct ts_run r = ts_run_new(m, (struct mdl_seq_params){.rollback = 4}, 1, 60);
    ts_run_decode(&twin, step, 60, 60);
    ts_run_decode(&r, step, 50, 50);
    cr_expect_eq(mdl_seq_truncate(r.seq, 48, &err), 0);
    cr_expect_eq(mdl_seq_truncate(r.seq, 46, &err), 0);
    cr_expect_eq(mdl_seq_truncate(r.seq, 45, &err), -EINVAL, "five tokens in all");
    cr_expect_eq(r.seq->len, 46);
    ts_run_decode(&r, step, 48, 1);
    cr_expect_eq(mdl_seq_truncate(r.seq, 45, &err), -EINVAL, "new tokens below the highest do not help");
    ts_run_decode(&r, step, 60, 3);
    ts_same_logits(&twin, &r, 46, 60, "two steps back");
    ts_same_state(twin.seq, r.seq, (struct ts_scope){.visible = true}, "two steps back");
    ts_run_free(&twin);
    ts_run_free(&r);
    mdl_step_free(step);
    mdl_model_close(m);
}

/* ---- reuse and prefixes ---- */

Test(kv, reset_forgets_everything)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, 60, 60);
        struct mdl_seq_params params = {.replay = m->cfg->window, .rollback = 2};
        struct mdl_prefill_params plan = {.replay = m->cfg->window, .all_logits = true};
        struct ts_run fresh = ts_run_new(m, params, 6, 50), used = ts_run_new(m, params, 6, 50);
        int32_t *right = used.ids;
        used.ids = ts_ids(m, 77, 50);
        ts_run_prefill(&used, step, 47, &plan, NULL);
        ts_run_decode(&used, step, 50, 1);
        free(used.ids);
        used.ids = right;
        mdl_seq_reset(used.seq);
        memset(used.seen, 0, 50);
        ts_run_prefill(&fresh, step, 41, &plan, NULL);
        ts_run_prefill(&used, step, 41, &plan, NULL);
        ts_same_logits(&fresh, &used, fresh.plan.decoder_start, 41, folders[f]);
        ts_same_state(fresh.seq, used.seq, (struct ts_scope){.bridge = true}, folders[f]);
        ts_run_free(&fresh);
        ts_run_free(&used);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

Test(kv, copy_prefix_refuses)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, 60, 60);
    struct cfg_error err = {0};
    struct ts_run src = ts_run_new(m, (struct mdl_seq_params){.replay = m->cfg->window, .rollback = 3}, 6, 50);
    struct mdl_seq *dst = ts_seq(m, (struct mdl_seq_params){.max_tokens = 60});
    struct mdl_seq *small = ts_seq(m, (struct mdl_seq_params){.max_tokens = 20});
    ts_run_prefill(&src, step, 41, &(struct mdl_prefill_params){.replay = m->cfg->window}, NULL);
    struct ts_image before = ts_image_take(src.seq, 41);
    const int bad[] = {-2, 7, 41, 42};
    for (size_t i = 0; i < 4; i++) {
        cr_expect_eq(mdl_seq_copy_prefix(dst, src.seq, bad[i], false, &err), -EINVAL, "%d", bad[i]);
        cr_expect_not_null(strstr(err.msg, "even"), "%s", err.msg);
    }
    cr_expect_eq(mdl_seq_copy_prefix(dst, src.seq, 20, true, &err), -EINVAL, "the rings have moved on");
    cr_expect_not_null(strstr(err.msg, "window rows"), "%s", err.msg);
    cr_expect_eq(mdl_seq_copy_prefix(dst, src.seq, 36, true, &err), -EINVAL);
    cr_expect_eq(mdl_seq_copy_prefix(dst, src.seq, 38, true, &err), 0, "as far back as rollback keeps: %s", err.msg);
    cr_expect_eq(mdl_seq_copy_prefix(small, src.seq, 30, false, &err), -ENOSPC);
    cr_expect_eq(small->encoded, 0);
    cr_expect_eq(mdl_seq_copy_prefix(dst, src.seq, 20, false, &err), 0);
    cr_expect(dst->encoded == 20 && dst->len == 0);
    cr_expect_eq(mdl_seq_copy_prefix(dst, src.seq, 0, false, &err), 0, "an empty hit is none");
    struct ts_image now = ts_image_take(src.seq, 41);
    cr_expect(ts_image_same(&before, &now), "the source changed");
    ts_image_free(&before);
    ts_image_free(&now);
    ts_run_free(&src);
    mdl_seq_free(dst);
    mdl_seq_free(small);
    mdl_step_free(step);
    mdl_model_close(m);
}
