/* Whole models: layer-forced passes, free runs in one piece and in chunks, and the state they leave. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/modules.h"
#include "model/numerics.h"
#include "tests/golden_model.h"

/* ---- golden inputs for every layer ---- */

static const struct mdl_tensor *tensor_of(struct gold_force *f, const char *name, int layer)
{
    return layer < 0 ? gold_get(f->c, "%s/%s%s", f->prefix, f->infix, name)
                     : gold_get(f->c, "%s/%s%s.%d", f->prefix, f->infix, name, layer);
}

/* Row of the tensor that belongs to a step row, or -1. */
static int golden_row(const struct gold_force *f, const struct mdl_step *s, int row, const struct mdl_tensor *t)
{
    int at = s->row_pos[row] - f->base;
    return at < 0 || at >= gold_rows(t) ? -1 : at;
}

static void limit_rows(struct gold_force *f, struct gold_stat *e, double median, double p95, const char *name,
                       int layer)
{
    char suffix[16] = "";
    if (layer >= 0)
        snprintf(suffix, sizeof suffix, ".%d", layer);
    if (median >= 0.0)
        gold_limit(f->c, gold_quantile(e, 0.5), median, "%s/%s%s%s: median row error", f->prefix, f->infix, name,
                   suffix);
    gold_limit(f->c, gold_quantile(e, 0.95), p95, "%s/%s%s%s: 95th percentile of row errors", f->prefix, f->infix, name,
               suffix);
    gold_stat_free(e);
}

/* got: bf16 rows, compact by active row or by step row. */
static void compare_rows(struct gold_force *f, struct mdl_step *s, const char *name, int layer, const uint16_t *got,
                         bool compact)
{
    const struct mdl_tensor *t = tensor_of(f, name, layer);
    if (!t)
        return;
    size_t width = (size_t)gold_cols(t);
    const uint16_t *want = gold_data(f->c, t);
    struct gold_stat e = {0};
    for (int i = 0; i < s->n_active; i++) {
        int row = s->active[i], at = golden_row(f, s, row, t);
        gold_add(&e, at < 0 ? INFINITY
                            : gold_row_error_bf16(got + (size_t)(compact ? i : row) * width, want + (size_t)at * width,
                                                  width));
    }
    limit_rows(f, &e, f->limit->x_median, f->limit->x_p95, name, layer);
}

static void compare_pre(struct gold_force *f, struct mdl_step *s, int layer)
{
    const struct mdl_tensor *t = tensor_of(f, "pre", layer);
    if (!t)
        return;
    const float *want = gold_floats(f->c, t);
    struct gold_stat e = {0};
    for (int i = 0; i < s->n_active; i++) {
        int row = s->active[i], at = golden_row(f, s, row, t);
        gold_add(&e, at < 0 ? INFINITY : gold_row_error(s->pre + row * MDL_HC, want + at * MDL_HC, MDL_HC));
    }
    limit_rows(f, &e, -1.0, f->limit->pre_p95, "pre", layer);
}

static void force_streams(struct gold_force *f, struct mdl_step *s, int layer)
{
    const struct mdl_tensor *tx = tensor_of(f, "x", layer), *tp = tensor_of(f, "pre", layer);
    if (!tx || !tp)
        return;
    size_t width = (size_t)gold_cols(tx);
    const uint16_t *x = gold_data(f->c, tx);
    const float *pre = gold_floats(f->c, tp);
    for (int row = 0; row < s->n_rows; row++) {
        int at = golden_row(f, s, row, tx);
        if (at < 0)
            continue;
        memcpy(s->x + (size_t)row * width, x + (size_t)at * width, width * sizeof *x);
        memcpy(s->pre + row * MDL_HC, pre + at * MDL_HC, MDL_HC * sizeof *pre);
    }
}

static void force_selection(struct gold_force *f, struct mdl_step *s, int source)
{
    const struct mdl_tensor *t = tensor_of(f, "sel", source);
    if (!t || gold_cols(t) > s->m->cfg->index_topk)
        return;
    for (int row = 0; row < s->n_rows; row++) {
        int at = golden_row(f, s, row, t), n = 0, width = gold_cols(t);
        if (at < 0)
            continue;
        const int32_t *sel = (const int32_t *)gold_data(f->c, t) + at * width;
        while (n < width && sel[n] >= 0)
            n++;
        memcpy(s->sel + (size_t)row * (size_t)s->m->cfg->index_topk, sel, (size_t)n * sizeof *sel);
        s->sel_n[row] = n;
    }
}

static void force_candidates(struct gold_force *f, struct mdl_step *s, int source)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_tensor *t = tensor_of(f, "cand", source);
    for (int row = 0; t && row < s->n_rows; row++) {
        int at = golden_row(f, s, row, t), n = 0;
        if (at < 0)
            continue;
        const uint8_t *kept = (const uint8_t *)gold_data(f->c, t) + at * gold_cols(t);
        for (int b = 0; b < gold_cols(t) && n < cfg->candidate_blocks; b++)
            if (kept[b])
                s->cand[(size_t)row * (size_t)cfg->candidate_blocks + (size_t)n++] = b;
        s->cand_n[row] = n;
    }
}

/* Own choice against the golden one, in rows whose margin is clear: as stated, or that of the step's own scores. */
static void compare_selected(struct gold_force *f, struct mdl_step *s, int layer)
{
    struct gold_case *c = f->c;
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_layer_role *role = &cfg->layer[layer];
    const struct mdl_tensor *ts = tensor_of(f, "sel", layer), *tm = tensor_of(f, "sel_margin", layer);
    const struct mdl_tensor *tc = role->candidate_source ? tensor_of(f, "cand", layer) : NULL;
    const struct mdl_tensor *tcm = role->candidate_source ? tensor_of(f, "cand_margin", layer) : NULL;
    const struct mdl_tensor *tv = tensor_of(f, "score", layer);
    const float *margin = tm ? gold_floats(c, tm) : NULL, *cand_margin = tcm ? gold_floats(c, tcm) : NULL;
    const float *score = tv ? gold_floats(c, tv) : NULL;
    int differ = 0, cand_differ = 0, compared = 0;
    struct gold_stat e = {0};
    for (int i = 0; ts && i < s->n_active; i++) {
        int row = s->active[i], at = golden_row(f, s, row, ts), visible = (s->row_pos[row] + 1) / role->ratio;
        const float *own = s->score_dump + (size_t)row * (size_t)s->score_stride;
        if (at < 0) {
            differ++;
            continue;
        }
        const float *want = tv && visible <= gold_cols(tv) ? score + (size_t)at * (size_t)gold_cols(tv) : NULL;
        /* The same scores have the same ties. */
        bool clear = want && !gold_floats_differ(own, want, (size_t)visible);
        if (want)
            gold_add(&e, gold_score_error(own, want, visible));
        double m = tm                 ? margin[at]
                   : role->restricted ? 0.0
                                      : gold_cut_margin(c, own, visible, cfg->index_topk, gold_sd(own, visible), NULL);
        if (clear || m > f->limit->sel_margin_skip) {
            compared++;
            differ += !gold_same_selection(s->sel + (size_t)row * (size_t)cfg->index_topk, s->sel_n[row],
                                           (const int32_t *)gold_data(c, ts) + at * gold_cols(ts), gold_cols(ts));
        }
        if (tc && (clear || !tcm || cand_margin[at] > f->limit->sel_margin_skip))
            cand_differ += !gold_same_blocks(s->cand + (size_t)row * (size_t)cfg->candidate_blocks, s->cand_n[row],
                                             (const uint8_t *)gold_data(c, tc) + at * gold_cols(tc), gold_cols(tc));
    }
    if (ts)
        gold_limit(c, differ, 0, "%s/%ssel.%d: rows that differ (%d compared)", f->prefix, f->infix, layer, compared);
    if (tc)
        gold_limit(c, cand_differ, 0, "%s/%scand.%d: rows that differ", f->prefix, f->infix, layer);
    if (tv)
        limit_rows(f, &e, 1e-4, f->limit->sel_margin_skip, "score", layer);
    gold_stat_free(&e);
}

static void compare_experts(struct gold_force *f, struct mdl_step *s, int layer)
{
    struct gold_case *c = f->c;
    const struct mdl_tensor *t = tensor_of(f, "experts", layer), *tm = tensor_of(f, "expert_margin", layer);
    const struct mdl_tensor *tw = tensor_of(f, "expert_w", layer);
    int k = s->exchange.k, differ = 0;
    if (!t || gold_cols(t) != k)
        return;
    const float *margin = tm ? gold_floats(c, tm) : NULL, *weight = tw ? gold_floats(c, tw) : NULL;
    struct gold_stat e = {0};
    for (int i = 0; i < s->n_active; i++) {
        int at = golden_row(f, s, s->active[i], t);
        bool same = at >= 0 && !memcmp(s->ex_expert + i * k, (const int32_t *)gold_data(c, t) + at * k,
                                       (size_t)k * sizeof(int32_t));
        differ += !same && (at < 0 || !tm || margin[at] > f->limit->expert_margin_skip);
        if (tw && same)
            gold_add(&e, gold_row_error(s->ex_weight + i * k, weight + at * k, (size_t)k));
    }
    gold_limit(c, differ, 0, "%s/%sexperts.%d: rows with a clear margin that differ", f->prefix, f->infix, layer);
    if (tw)
        limit_rows(f, &e, 1e-5, f->limit->x_p95, "expert_w", layer);
    gold_stat_free(&e);
}

static void compare_engram_rows(struct gold_force *f, struct mdl_step *s, int layer)
{
    const struct mdl_tensor *t = tensor_of(f, "engram_rows", layer);
    const struct mdl_engram_fetch *e = &s->fetch[s->m->cfg->layer[layer].engram];
    int differ = 0;
    if (!t || gold_cols(t) != e->columns)
        return;
    for (int i = 0; i < s->n_active; i++) {
        int row = s->active[i], at = golden_row(f, s, row, t);
        for (int k = 0; at >= 0 && k < e->columns; k++)
            differ += e->row_ids[(size_t)row * (size_t)e->columns + (size_t)k] !=
                      ((const int32_t *)gold_data(f->c, t))[at * e->columns + k];
        differ += at < 0;
    }
    gold_limit(f->c, differ, 0, "%s/engram_rows.%d: rows that differ", f->prefix, layer);
}

/* Streams that enter `layer`: those the step has, then the golden ones. */
static void enter_layer(struct gold_force *f, struct mdl_step *s, int layer)
{
    const struct mdl_config *cfg = s->m->cfg;
    compare_rows(f, s, "x", layer, s->x, false);
    compare_pre(f, s, layer);
    force_streams(f, s, layer);
    if (layer >= cfg->n_layers || layer >= s->segment[0].layer_end)
        return;
    const struct mdl_layer_role *role = &cfg->layer[layer];
    if (role->mode == MDL_LAYER_REUSE && role->index_source >= 0)
        force_selection(f, s, role->index_source);
    if (role->restricted && cfg->candidate_layer >= 0)
        force_candidates(f, s, cfg->candidate_layer);
}

void gold_force_hook(void *ctx, struct mdl_step *s, enum mdl_hook_point at, int layer)
{
    struct gold_force *f = ctx;
    switch (at) {
    case MDL_HOOK_LAYER:
        enter_layer(f, s, layer);
        break;
    case MDL_HOOK_ENGRAM:
        compare_engram_rows(f, s, layer);
        break;
    case MDL_HOOK_ATTN_IN:
        compare_rows(f, s, "attn_in", layer, s->u, true);
        break;
    case MDL_HOOK_SELECTED:
        compare_selected(f, s, layer);
        force_selection(f, s, layer);
        break;
    case MDL_HOOK_ATTN_OUT:
        compare_rows(f, s, "attn_out", layer, s->out, true);
        break;
    case MDL_HOOK_MID:
        compare_rows(f, s, "x_mid", layer, s->x, false);
        break;
    case MDL_HOOK_ROUTED:
        compare_experts(f, s, layer);
        break;
    case MDL_HOOK_FFN_OUT:
        compare_rows(f, s, "ffn_out", layer, s->out, true);
        break;
    case MDL_HOOK_LEFT:
        enter_layer(f, s, layer);
        if (f->whole)
            compare_rows(f, s, "taps", -1, s->taps, false);
        break;
    case MDL_HOOK_TAPS:
        break;
    }
}

/* ---- prefill ---- */

struct collect {
    struct mdl_step *step;
    int from;
    size_t vocab;
    float *to;
};

static void collect_logits(void *ctx, struct mdl_step *step, const struct mdl_segment *seg)
{
    struct collect *k = ctx;
    for (int i = 0; k->to && i < seg->n; i++) {
        const float *row = mdl_step_logits(step, 0, i);
        if (row && seg->start + i >= k->from)
            memcpy(k->to + (size_t)(seg->start + i - k->from) * k->vocab, row, k->vocab * sizeof *row);
    }
}

bool gold_prefill(struct gold_case *c, struct mdl_step *s, struct mdl_seq *seq, const int32_t *ids, int n,
                  const struct mdl_prefill_params *params, int chunk, int logits_from, float *logits)
{
    struct cfg_error err = {{0}};
    struct mdl_prefill p;
    struct collect k = {s, logits_from, (size_t)c->m->cfg->vocab_size, logits};
    return gold_ok(c, mdl_prefill_begin(&p, seq, ids, n, params, &err), &err, "prefill of %d tokens", n) &&
           gold_ok(c, mdl_prefill_run(&p, s, chunk, collect_logits, &k, &err), &err, "prefill of %d tokens", n);
}

/* ---- state ---- */

struct diff {
    size_t codes, scales, differ_codes, differ_scales;
    double square, golden;
};

/* One packed row: head of n code bytes, then its scales. kind 0: q8, 1: q4k, 2: q4i. */
static void diff_row(struct diff *d, int kind, int n, const uint8_t *codes, const uint8_t *scales,
                     const uint8_t *want_codes, const uint8_t *want_scales)
{
    static const int group[] = {32, 16, 32};
    uint16_t a[64], b[64];
    bool packed = kind > 0;
    d->codes += (size_t)n;
    d->scales += (size_t)(n / group[kind]);
    d->differ_codes += gold_codes_differ(codes, want_codes, (size_t)(packed ? n / 2 : n), packed, true);
    d->differ_scales += gold_codes_differ(scales, want_scales, (size_t)(n / group[kind]), false, kind == 1);
    for (int g = 0; g < n / group[kind]; g++) {
        int w = group[kind], at = g * (packed ? w / 2 : w);
        (kind == 0 ? mdl_dequant_q8 : kind == 1 ? mdl_dequant_q4k : mdl_dequant_q4i)(codes + at, scales + g, w, a);
        (kind == 0   ? mdl_dequant_q8
         : kind == 1 ? mdl_dequant_q4k
                     : mdl_dequant_q4i)(want_codes + at, want_scales + g, w, b);
        for (int i = 0; i < w; i++) {
            double x = mdl_from_bf16(a[i]), y = mdl_from_bf16(b[i]);
            d->square += (x - y) * (x - y);
            d->golden += y * y;
        }
    }
}

static void limit_diff(struct gold_case *c, const struct diff *d, const char *what, const char *prefix, int which,
                       double share, double rms)
{
    if (share < 1.0) {
        gold_limit(c, d->codes ? (double)d->differ_codes / (double)d->codes : 0.0, share,
                   "%s/%s.codes.%d: share that differs", prefix, what, which);
        gold_limit(c, d->scales ? (double)d->differ_scales / (double)d->scales : 0.0, share,
                   "%s/%s.scales.%d: share that differs", prefix, what, which);
    }
    gold_limit(c, d->square > 0.0 ? sqrt(d->square / d->golden) : 0.0, rms, "%s/%s.%d: rms difference over golden rms",
               prefix, what, which);
}

static void compare_global(struct gold_case *c, const struct mdl_seq *seq, const char *prefix, int T, int hit,
                           double share, double rms)
{
    const struct mdl_config *cfg = seq->cfg;
    for (int s = 0; s < cfg->n_kv_sources; s++) {
        int layer = cfg->kv_sources[s], ratio = cfg->kv_source_ratio[s], first = hit / ratio, rows = T / ratio - first;
        const struct mdl_tensor *mc = gold_get(c, "%s/kv.main.codes.%d", prefix, layer);
        const struct mdl_tensor *ms = gold_get(c, "%s/kv.main.scales.%d", prefix, layer);
        const struct mdl_tensor *ic = gold_get(c, "%s/kv.index.codes.%d", prefix, layer);
        const struct mdl_tensor *is = gold_get(c, "%s/kv.index.scales.%d", prefix, layer);
        struct diff m = {0}, x = {0};
        if (mc && ms &&
            gold_check(c, gold_rows(mc) == rows, "%s/kv.main.codes.%d: %d rows, golden %d", prefix, layer, rows,
                       gold_rows(mc)))
            for (int r = 0; r < rows; r++) {
                const uint8_t *row = mdl_seq_main_row(seq, s, first + r);
                diff_row(&m, 1, cfg->head_dim, row, row + cfg->head_dim / 2,
                         (const uint8_t *)gold_data(c, mc) + r * gold_cols(mc),
                         (const uint8_t *)gold_data(c, ms) + r * gold_cols(ms));
            }
        if (ic && is &&
            gold_check(c, gold_rows(ic) == rows, "%s/kv.index.codes.%d: %d rows, golden %d", prefix, layer, rows,
                       gold_rows(ic)))
            for (int r = 0; r < rows; r++)
                diff_row(&x, 2, cfg->index_dim, mdl_seq_index_codes(seq, s, first + r),
                         mdl_seq_index_scales(seq, s, first + r), (const uint8_t *)gold_data(c, ic) + r * gold_cols(ic),
                         (const uint8_t *)gold_data(c, is) + r * gold_cols(is));
        limit_diff(c, &m, "kv.main", prefix, layer, share, rms);
        limit_diff(c, &x, "kv.index", prefix, layer, share, rms);
        const struct mdl_tensor *tk = gold_get(c, "%s/kv.tail.kv.%d", prefix, layer);
        const struct mdl_tensor *tg = gold_get(c, "%s/kv.tail.gate.%d", prefix, layer);
        if (tk && tg &&
            gold_check(c, ratio > 1 && T % ratio, "%s/kv.tail.%d: an unfinished group exists", prefix, layer)) {
            const float *tail = mdl_seq_tail(seq, s, T - 1);
            size_t d = (size_t)cfg->head_dim;
            gold_limit(c, gold_row_error(tail, gold_floats(c, tk), d), share < 1.0 ? 1e-2 : rms,
                       "%s/kv.tail.kv.%d: row error", prefix, layer);
            gold_limit(c, gold_row_error(tail + d, gold_floats(c, tg), d), share < 1.0 ? 1e-2 : rms,
                       "%s/kv.tail.gate.%d: row error", prefix, layer);
        }
    }
}

static void compare_ring(struct gold_case *c, const struct mdl_seq *seq, const char *prefix, const char *kind,
                         int which, int T, double share, double rms)
{
    const struct mdl_config *cfg = seq->cfg;
    bool draft = !strcmp(kind, "ring");
    const struct mdl_tensor *tp = gold_get(c, "%s/kv.%s.pos.%d", prefix, kind, which);
    const struct mdl_tensor *tc = gold_get(c, "%s/kv.%s.codes.%d", prefix, kind, which);
    const struct mdl_tensor *ts = gold_get(c, "%s/kv.%s.scales.%d", prefix, kind, which);
    if (!tp || !tc || !ts)
        return;
    int lo = draft ? seq->draft_lo : seq->window_lo[which], n = gold_rows(tp);
    lo = T - cfg->window > lo ? T - cfg->window : lo;
    const int32_t *pos = gold_data(c, tp);
    bool same = n == T - lo;
    for (int i = 0; i < n && same; i++)
        same = pos[i] == lo + i;
    if (!gold_check(c, same, "%s/kv.%s.pos.%d: rows %d..%d, golden %d..%d", prefix, kind, which, lo, T - 1,
                    n ? pos[0] : -1, n ? pos[n - 1] : -1))
        return;
    struct diff d = {0};
    for (int i = 0; i < n; i++) {
        const uint8_t *row = draft ? mdl_seq_draft_row(seq, which, lo + i) : mdl_seq_ring_row(seq, which, lo + i);
        diff_row(&d, 0, cfg->head_dim, row, row + cfg->head_dim, (const uint8_t *)gold_data(c, tc) + i * gold_cols(tc),
                 (const uint8_t *)gold_data(c, ts) + i * gold_cols(ts));
    }
    char what[32];
    snprintf(what, sizeof what, "kv.%s", kind);
    limit_diff(c, &d, what, prefix, which, share, rms);
}

void gold_compare_state(struct gold_case *c, const struct mdl_seq *seq, const char *prefix, int T, int hit,
                        double share, double rms)
{
    gold_check(c, seq->len == T && seq->encoded == T, "%s: %d tokens committed, %d encoded, of %d", prefix, seq->len,
               seq->encoded, T);
    compare_global(c, seq, prefix, T, hit, share, rms);
    for (int l = 0; l < seq->cfg->n_layers; l++)
        compare_ring(c, seq, prefix, "swa", l, T, share, rms);
    for (int k = 0; k < seq->cfg->n_draft; k++)
        compare_ring(c, seq, prefix, "ring", k, T, share, rms);
}

bool gold_same_state(const struct mdl_seq *a, const struct mdl_seq *b)
{
    const struct mdl_config *cfg = a->cfg;
    const struct mdl_kv_layout *l = &a->layout;
    bool same = a->len == b->len && a->encoded == b->encoded && a->draft_lo == b->draft_lo &&
                !memcmp(a->window_lo, b->window_lo, sizeof a->window_lo) &&
                !memcmp(a->ids, b->ids, (size_t)a->len * sizeof *a->ids);
    for (int s = 0; s < cfg->n_kv_sources; s++) {
        int ratio = cfg->kv_source_ratio[s];
        for (int r = 0; same && r < a->len / ratio; r++)
            same = !memcmp(mdl_seq_main_row(a, s, r), mdl_seq_main_row(b, s, r), l->main_row) &&
                   !memcmp(mdl_seq_index_codes(a, s, r), mdl_seq_index_codes(b, s, r), l->index_code_row) &&
                   !memcmp(mdl_seq_index_scales(a, s, r), mdl_seq_index_scales(b, s, r), l->index_scale_row);
        if (same && ratio > 1 && a->len % ratio)
            same = !memcmp(mdl_seq_tail(a, s, a->len - 1), mdl_seq_tail(b, s, a->len - 1),
                           2 * (size_t)cfg->head_dim * sizeof(float));
    }
    for (int i = 0; i < cfg->n_layers + cfg->n_draft; i++) {
        bool draft = i >= cfg->n_layers;
        int lo = draft ? a->draft_lo : a->window_lo[i];
        for (int p = a->len - cfg->window > lo ? a->len - cfg->window : lo; same && p < a->len; p++)
            same = draft ? !memcmp(mdl_seq_draft_row(a, i - cfg->n_layers, p),
                                   mdl_seq_draft_row(b, i - cfg->n_layers, p), l->swa_row)
                         : !memcmp(mdl_seq_ring_row(a, i, p), mdl_seq_ring_row(b, i, p), l->swa_row);
    }
    return same;
}

/* ---- exact runs ---- */

void gold_compare_logits(struct gold_case *c, const float *got, const float *want, int rows,
                         const struct gold_limits *l, const char *what)
{
    size_t vocab = (size_t)c->m->cfg->vocab_size;
    struct gold_stat e = {0};
    double gap = 0.0;
    for (int r = 0; r < rows; r++, got += vocab, want += vocab) {
        gold_add(&e, gold_logits_error(got, want, vocab));
        if (mdl_argmax(got, (int)vocab) != mdl_argmax(want, (int)vocab)) {
            double g = gold_gap(want, (int)vocab);
            gap = g > gap ? g : gap;
        }
    }
    gold_limit(c, gold_quantile(&e, 0.5), l->rel_median, "%s: median error of logits rows", what);
    gold_limit(c, gold_quantile(&e, 0.95), l->rel_p95, "%s: 95th percentile of the error of logits rows", what);
    gold_limit(c, gap, l->top1_gap, "%s: largest golden gap where the top token differs", what);
    gold_stat_free(&e);
}

static void exact_forced(struct gold_case *c, const struct gold_run *run)
{
    const struct mdl_config *cfg = c->m->cfg;
    size_t vocab = (size_t)cfg->vocab_size;
    struct mdl_seq *seq = gold_seq(c, run->n, 0, false);
    struct mdl_step *s = gold_step(c, run->n, run->n);
    float *logits = gold_alloc(c, (size_t)run->n * vocab, sizeof *logits);
    struct gold_force f = {.c = c, .limit = &run->limit, .prefix = run->name, .infix = "", .whole = true};
    if (seq && s) {
        s->hooks = (struct mdl_hooks){.ctx = &f, .want_scores = true, .point = gold_force_hook};
        struct mdl_prefill_params p = {.exact = true, .all_logits = true};
        if (gold_prefill(c, s, seq, run->ids, run->n, &p, 0, 0, logits)) {
            const struct mdl_tensor *t = gold_get(c, "%s/logits", run->name);
            double worst = 0.0;
            for (int r = 0; t && r < run->n; r++) {
                double e = gold_logits_error(logits + (size_t)r * vocab, gold_floats(c, t) + (size_t)r * vocab, vocab);
                worst = e > worst ? e : worst;
            }
            if (t)
                gold_limit(c, worst, 1e-5, "%s/logits: largest error of a row from golden streams", run->name);
            gold_compare_state(c, seq, run->name, run->n, 0, 0.02, 0.05);
        }
    }
    mdl_step_free(s);
    mdl_seq_free(seq);
}

static bool exact_pass(struct gold_case *c, const struct gold_run *run, struct mdl_step *s, struct mdl_seq *seq,
                       int chunk, float *logits)
{
    struct mdl_prefill_params p = {.exact = true, .all_logits = true};
    return gold_prefill(c, s, seq, run->ids, run->n, &p, chunk, 0, logits);
}

static void exact_free(struct gold_case *c, const struct gold_run *run)
{
    const struct mdl_config *cfg = c->m->cfg;
    size_t count = (size_t)run->n * (size_t)cfg->vocab_size;
    const int chunks[] = {1, 2, 3, 7, cfg->window, cfg->window + 1, gold_int(run->json, "prompt_tokens", 1)};
    struct mdl_seq *seq = gold_seq(c, run->n, 0, false), *other = gold_seq(c, run->n, 0, false);
    struct mdl_step *s = gold_step(c, run->n, run->n);
    float *logits = gold_alloc(c, count, sizeof *logits), *again = gold_alloc(c, count, sizeof *again);
    if (seq && other && s && exact_pass(c, run, s, seq, 0, logits)) {
        const struct mdl_tensor *t = gold_get(c, "%s/logits", run->name);
        char what[300];
        snprintf(what, sizeof what, "%s/logits", run->name);
        if (t)
            gold_compare_logits(c, logits, gold_floats(c, t), run->n, &run->limit, what);
        gold_compare_state(c, seq, run->name, run->n, 0, 1.0, 0.3);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            mdl_seq_reset(other);
            memset(again, 0xff, count * sizeof *again);
            if (chunks[i] < 1 || chunks[i] >= run->n || !exact_pass(c, run, s, other, chunks[i], again))
                continue;
            gold_check(c, !memcmp(logits, again, count * sizeof *again),
                       "%s in chunks of %d: logits have the same bits", run->name, chunks[i]);
            gold_check(c, gold_same_state(seq, other), "%s in chunks of %d: the state has the same bits", run->name,
                       chunks[i]);
        }
    }
    mdl_step_free(s);
    mdl_seq_free(other);
    mdl_seq_free(seq);
}

static struct gold_limits limits_of(const json_t *run)
{
    const json_t *t = gold_json(gold_json(run, "tolerance"), "f32"),
                 *f = gold_json(gold_json(run, "forced_tolerance"), "f32");
    return (struct gold_limits){
        .rel_median = gold_number(t, "rel_median", 0),
        .rel_p95 = gold_number(t, "rel_p95", 0),
        .top1_gap = gold_number(t, "top1_gap", 0),
        .x_median = gold_number(f, "x_median", 0),
        .x_p95 = gold_number(f, "x_p95", 0),
        .pre_p95 = gold_number(f, "pre_p95", 0),
        .sel_margin_skip = gold_number(f, "sel_margin_skip", 0),
        .expert_margin_skip = gold_number(f, "expert_margin_skip", 0),
    };
}

const int32_t *gold_run_ids(struct gold_case *c, const char *name)
{
    const struct mdl_tensor *t = gold_get(c, "%s/ids", name);
    return t ? gold_data(c, t) : NULL;
}

static bool run_of(struct gold_case *c, const char *name, const json_t *json, struct gold_run *out)
{
    const struct mdl_tensor *t = gold_get(c, "%s/ids", name);
    *out = (struct gold_run){.name = name, .json = json, .limit = limits_of(json)};
    if (!t)
        return gold_check(c, false, "%s/ids: the tensor is there", name);
    out->n = gold_rows(t);
    out->ids = gold_data(c, t);
    return true;
}

static void exact_run(struct gold_case *c, const char *name, const json_t *json)
{
    struct gold_run run;
    if (gold_begin(c, "%s layers", name)) {
        if (run_of(c, name, json, &run))
            exact_forced(c, &run);
        gold_end(c);
    }
    if (gold_begin(c, "%s free", name)) {
        if (run_of(c, name, json, &run))
            exact_free(c, &run);
        gold_end(c);
    }
    if (gold_begin(c, "%s decode", name)) {
        if (run_of(c, name, json, &run))
            gold_exact_decode(c, &run);
        gold_end(c);
    }
    if (gold_begin(c, "%s drafts", name)) {
        if (run_of(c, name, json, &run))
            gold_drafts(c, &run);
        gold_end(c);
    }
}

static void replay_run(struct gold_case *c, const char *name, const json_t *json)
{
    struct gold_run base, run;
    const char *of = gold_string(json, "run");
    if (!run_of(c, of, gold_json(gold_json(c->json, "runs"), of), &base))
        return;
    /* Ids and the limits of forced passes are those of the exact run. */
    run = base;
    run.name = name;
    run.json = json;
    run.n = gold_int(json, "N", 0);
    struct gold_limits own = limits_of(json);
    run.limit.rel_median = own.rel_median;
    run.limit.rel_p95 = own.rel_p95;
    run.limit.top1_gap = own.top1_gap;
    gold_replay(c, &base, &run);
}

void gold_models(struct gold_case *c)
{
    const char *name;
    json_t *json;
    json_object_foreach ((json_t *)gold_json(c->json, "runs"), name, json) {
        if (!strcmp(gold_string(json, "kind"), "exact"))
            exact_run(c, name, json);
        else
            replay_run(c, name, json);
    }
}
