/* Each module on its own: the groups of the modules case, called directly through model/modules.h. */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/modules.h"
#include "model/numerics.h"
#include "tests/golden_common.h"

/* Selections are compared in rows whose margin is above what float32 summation can move, and in exact ties at zero. */
static const double clear_margin = 2e-4;

/* ---- comparing by the limits that the case states ---- */

static bool is_exact(struct gold_case *c, const char *name)
{
    size_t i;
    json_t *pattern;
    json_array_foreach ((json_t *)gold_json(c->json, "tolerance_exact"), i, pattern) {
        if (json_is_string(pattern) && !fnmatch(json_string_value(pattern), name, 0))
            return true;
    }
    return false;
}

static const json_t *limits_of(struct gold_case *c, const char *name)
{
    const json_t *t = gold_json(gold_json(gold_json(c->json, "tolerance"), name), "f32");
    if (!t)
        gold_check(c, false, "%s: golden.json states no limit", name);
    return t;
}

/* got holds as many values as out/name; absent tensors are skipped. */
static void compare_floats(struct gold_case *c, const char *name, const float *got)
{
    const struct mdl_tensor *t = gold_get(c, "out/%s", name);
    if (!t)
        return;
    const float *want = gold_floats(c, t);
    size_t n = (size_t)gold_count(t), width = t->ndim ? (size_t)t->shape[t->ndim - 1] : 1;
    size_t differ = gold_floats_differ(got, want, n);
    if (is_exact(c, name)) {
        gold_limit(c, (double)differ, 0, "%s: values that differ", name);
        return;
    }
    const json_t *limit = limits_of(c, name);
    if (!limit)
        return;
    double worst = 0.0;
    for (size_t r = 0; width && r < n / width; r++) {
        double e = gold_row_error(got + r * width, want + r * width, width);
        worst = e > worst ? e : worst;
    }
    if (gold_json(limit, "max_rel_to_row"))
        gold_limit(c, worst, gold_number(limit, "max_rel_to_row", 0),
                   "%s: largest difference over the row's largest value", name);
    double share = n ? (double)differ / (double)n : 0.0;
    double allowed = gold_number(limit, "elements_changed", gold_number(limit, "changed", 1.0));
    if (allowed < 1.0)
        gold_limit(c, share, allowed, "%s: share of values that differ", name);
}

static void compare_bf16(struct gold_case *c, const char *name, const uint16_t *got)
{
    const struct mdl_tensor *t = gold_get(c, "out/%s", name);
    if (t)
        compare_floats(c, name, gold_from_bf16(c, got, (size_t)gold_count(t)));
}

static void compare_ints(struct gold_case *c, const char *name, const int32_t *got)
{
    const struct mdl_tensor *t = gold_get(c, "out/%s", name);
    if (!t)
        return;
    const int32_t *want = gold_data(c, t);
    int64_t n = gold_count(t), differ = 0;
    for (int64_t i = 0; i < n; i++)
        differ += got[i] != want[i];
    double allowed = is_exact(c, name) ? 0.0 : gold_number(limits_of(c, name), "changed", 0.0);
    gold_limit(c, n ? (double)differ / (double)n : 0.0, allowed, "%s: share of entries that differ", name);
}

/* One of name.codes, name.scales, or a table of codes. */
static void compare_codes(struct gold_case *c, const char *name, const char *part, const uint8_t *got, bool packed)
{
    const struct mdl_tensor *t = *part ? gold_get(c, "out/%s.%s", name, part) : gold_get(c, "out/%s", name);
    if (!t)
        return;
    bool scales = !strcmp(part, "scales");
    size_t differ = gold_codes_differ(got, gold_data(c, t), t->bytes, packed, !scales && t->dtype != MDL_F8_E8M0);
    size_t n = t->bytes * (packed ? 2 : 1);
    char full[300];
    snprintf(full, sizeof full, "%s%s%s", name, *part ? "." : "", part);
    double allowed =
        is_exact(c, full) ? 0.0 : gold_number(limits_of(c, name), scales ? "scales_changed" : "codes_changed", 0.0);
    gold_limit(c, n ? (double)differ / (double)n : 0.0, allowed, "%s: share that differs", full);
}

/* Names of the groups below out/prefix that end in suffix: the part between, one after the other. NULL at the end. */
static const char *next_group(struct gold_case *c, const char *prefix, const char *suffix, size_t *at, char name[256])
{
    while (*at < mdl_st_count(c->st)) {
        const char *s = mdl_st_at(c->st, (*at)++)->name;
        size_t p = strlen(prefix), e = strlen(suffix), n = strlen(s);
        if (n > p + e && !strncmp(s, prefix, p) && !strcmp(s + n - e, suffix)) {
            snprintf(name, 256, "%.*s", (int)(n - p - e), s + p);
            return name;
        }
    }
    return NULL;
}

static char *join(struct gold_case *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static char *join(struct gold_case *c, const char *fmt, ...)
{
    char *s = gold_alloc(c, 300, 1);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s, 300, fmt, ap);
    va_end(ap);
    return s;
}

/* A block by its published prefix: "layers.3..." or "mtp.0...". rest: what follows the number and a dot. */
static const struct mdl_block *block_of(struct gold_case *c, const char *name, const char **rest)
{
    const struct mdl_config *cfg = c->m->cfg;
    bool draft = !strncmp(name, "mtp.", 4);
    if (!draft && strncmp(name, "layers.", 7))
        return NULL;
    char *end;
    long n = strtol(name + (draft ? 4 : 7), &end, 10);
    if (n < 0 || n >= (draft ? cfg->n_draft : cfg->n_layers))
        return NULL;
    *rest = *end == '.' ? end + 1 : end;
    return draft ? &c->m->ck->draft[n] : &c->m->ck->layers[n];
}

/* ---- formats ---- */

static void formats(struct gold_case *c)
{
    static const struct {
        const char *name;
        int group;
        bool packed;
        void (*quant)(const uint16_t *, int, uint8_t *, uint8_t *);
        void (*dequant)(const uint8_t *, const uint8_t *, int, uint16_t *);
    } kinds[] = {{"quant.q8", 32, false, mdl_quant_q8, mdl_dequant_q8},
                 {"quant.q4k", 16, true, mdl_quant_q4k, mdl_dequant_q4k},
                 {"quant.q4i", 32, true, mdl_quant_q4i, mdl_dequant_q4i}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const struct mdl_tensor *t = gold_get(c, "in/%s.x", kinds[k].name);
        if (!t)
            continue;
        int rows = gold_rows(t), n = gold_cols(t), bytes = kinds[k].packed ? n / 2 : n, groups = n / kinds[k].group;
        const uint16_t *x = gold_data(c, t);
        uint8_t *codes = gold_alloc(c, (size_t)rows * (size_t)bytes, 1);
        uint8_t *scales = gold_alloc(c, (size_t)rows * (size_t)groups, 1);
        uint16_t *y = gold_alloc(c, (size_t)rows * (size_t)n, sizeof *y);
        for (int r = 0; r < rows; r++) {
            kinds[k].quant(x + r * n, n, codes + r * bytes, scales + r * groups);
            kinds[k].dequant(codes + r * bytes, scales + r * groups, n, y + r * n);
        }
        compare_codes(c, kinds[k].name, "codes", codes, kinds[k].packed);
        compare_codes(c, kinds[k].name, "scales", scales, false);
        compare_bf16(c, join(c, "%s.dequant", kinds[k].name), y);
        /* The CPU path has its own decoders. */
        void (*fast)(const uint8_t *, const uint8_t *, int, uint16_t *) = k == 0   ? c->m->exec.be->dequant_q8
                                                                          : k == 1 ? c->m->exec.be->dequant_q4k
                                                                                   : NULL;
        for (int r = 0; fast && r < rows; r++)
            fast(codes + r * bytes, scales + r * groups, n, y + r * n);
        if (fast)
            compare_bf16(c, join(c, "%s.dequant", kinds[k].name), y);
    }
    const struct mdl_tensor *t = gold_get(c, "in/cast.x");
    if (t) {
        const float *x = gold_floats(c, t);
        uint8_t *e4m3 = gold_alloc(c, (size_t)gold_count(t), 1), *e2m1 = gold_alloc(c, (size_t)gold_count(t), 1);
        for (int64_t i = 0; i < gold_count(t); i++) {
            e4m3[i] = mdl_to_e4m3(x[i]);
            e2m1[i] = mdl_to_e2m1(x[i]);
        }
        compare_codes(c, "cast.e4m3", "", e4m3, false);
        const struct mdl_tensor *w = gold_get(c, "out/cast.e2m1");
        if (w)
            gold_limit(c, (double)gold_codes_differ(e2m1, gold_data(c, w), w->bytes, true, true), 0,
                       "cast.e2m1: codes that differ");
    }
    if ((t = gold_get(c, "in/p2ceil.x"))) {
        const float *x = gold_floats(c, t);
        uint8_t *code = gold_alloc(c, (size_t)gold_count(t), 1);
        for (int64_t i = 0; i < gold_count(t); i++)
            code[i] = mdl_p2ceil_code(x[i]);
        compare_codes(c, "p2ceil.code", "", code, false);
    }
    if ((t = gold_get(c, "in/bf16.x"))) {
        const float *x = gold_floats(c, t);
        uint16_t *y = gold_alloc(c, (size_t)gold_count(t), sizeof *y);
        for (int64_t i = 0; i < gold_count(t); i++)
            y[i] = mdl_to_bf16(x[i]);
        compare_bf16(c, "bf16.y", y);
    }
    float e8m0[256];
    for (int i = 0; i < 256; i++)
        e8m0[i] = mdl_from_e8m0((uint8_t)i);
    compare_floats(c, "decode.e4m3", mdl_e4m3_table);
    compare_floats(c, "decode.e2m1", mdl_e2m1_table);
    compare_floats(c, "decode.e8m0", e8m0);
}

static void selection(struct gold_case *c)
{
    const struct mdl_config *cfg = c->m->cfg;
    const struct mdl_tensor *ts = gold_get(c, "in/select.score"), *tv = gold_get(c, "in/select.visible");
    const struct mdl_tensor *tk = gold_get(c, "out/select.topk"), *tb = gold_get(c, "out/select.blocks");
    if (!ts || !tv || !tk || !tb ||
        !gold_check(c, cfg->candidate_block_size > 0, "select: the config has candidate blocks"))
        return;
    const float *score = gold_floats(c, ts);
    const int32_t *visible = gold_data(c, tv);
    int rows = gold_rows(ts), n = gold_cols(ts), k = gold_cols(tk), blocks = gold_cols(tb),
        size = cfg->candidate_block_size;
    int32_t *top = gold_alloc(c, (size_t)(rows * k), sizeof *top),
            *inside = gold_alloc(c, (size_t)(rows * k), sizeof *inside);
    uint8_t *kept = gold_alloc(c, (size_t)(rows * blocks), 1);
    uint64_t *order = gold_alloc(c, (size_t)n + 1, sizeof *order);
    float *best = gold_alloc(c, (size_t)n + 1, sizeof *best), *row = gold_alloc(c, (size_t)n, sizeof *row);
    int32_t *list = gold_alloc(c, (size_t)n, sizeof *list);
    for (int r = 0; r < rows; r++) {
        memcpy(row, score + r * n, (size_t)n * sizeof *row);
        int m = mdl_select_topk(row, visible[r], k, order, top + r * k);
        for (; m < k; m++)
            top[r * k + m] = -1;
        int nb = mdl_select_blocks(row, visible[r], size, cfg->candidate_blocks, best, order, list);
        for (int i = 0; i < nb; i++)
            kept[r * blocks + list[i]] = 1;
        mdl_select_restrict(row, visible[r], size, list, nb);
        m = mdl_select_topk(row, visible[r], k, order, inside + r * k);
        for (; m < k; m++)
            inside[r * k + m] = -1;
    }
    compare_ints(c, "select.topk", top);
    compare_codes(c, "select.blocks", "", kept, false);
    compare_ints(c, "select.topk_in_candidates", inside);
}

/* ---- norm, rope, linears, mixing, attention core ---- */

static void norm_and_rope(struct gold_case *c)
{
    const struct mdl_tensor *t = gold_get(c, "in/rms.x");
    const struct mdl_tensor *w = mdl_checkpoint_tensor(c->m->ck, "layers.0.ffn_norm.weight");
    if (t && w) {
        int rows = gold_rows(t), n = gold_cols(t);
        uint16_t *y = gold_alloc(c, (size_t)rows * (size_t)n, sizeof *y);
        mdl_rms_rows(&c->m->exec, gold_data(c, t), (size_t)n, c->m->ck->layers[0].ffn_norm, n, rows, y, (size_t)n);
        compare_bf16(c, "rms.y", y);
    }
    const struct mdl_tensor *tp = gold_get(c, "in/rope.pos"), *tx = gold_get(c, "in/rope.x");
    char name[256];
    size_t at = 0;
    while (tp && tx && next_group(c, "out/rope.", ".y", &at, name)) {
        int layer = atoi(name), rows = gold_rows(tx), dim = (int)tx->shape[tx->ndim - 1], heads = gold_cols(tx) / dim;
        enum mdl_rope_table table =
            layer < c->m->cfg->n_layers && c->m->cfg->layer[layer].ratio > 0 ? MDL_ROPE_YARN : MDL_ROPE_PLAIN;
        const int32_t *pos = gold_data(c, tp);
        for (int inverse = 0; inverse < 2; inverse++) {
            uint16_t *x = gold_alloc(c, (size_t)gold_count(tx), sizeof *x);
            memcpy(x, gold_data(c, tx), (size_t)gold_count(tx) * sizeof *x);
            for (int i = 0; i < rows * heads; i++) {
                struct mdl_rope_angle a;
                mdl_rope_angle_at(&c->m->rope, table, pos[i / heads], &a);
                mdl_rope_rotate(&c->m->rope, &a, inverse, dim, x + i * dim);
            }
            compare_bf16(c, join(c, "rope.%s.%s", name, inverse ? "inv" : "y"), x);
        }
        compare_floats(c, join(c, "rope.%s.freq", name), c->m->rope.freq[table]);
    }
}

static bool linear_of(struct gold_case *c, const char *name, struct mdl_linear *out)
{
    char path[300];
    snprintf(path, sizeof path, "%s.weight", name);
    const struct mdl_tensor *w = mdl_checkpoint_tensor(c->m->ck, path);
    snprintf(path, sizeof path, "%s.scale", name);
    const struct mdl_tensor *s = mdl_checkpoint_tensor(c->m->ck, path);
    if (!w || w->ndim != 2)
        return false;
    *out = (struct mdl_linear){.n = (int)w->shape[0], .k = (int)w->shape[1], .data = gold_data(c, w)};
    out->scale = s ? gold_data(c, s) : NULL;
    out->kind = w->dtype == MDL_BF16 ? MDL_W_BF16 : w->dtype == MDL_F32 ? MDL_W_F32 : MDL_W_FP8;
    if (w->dtype == MDL_I8 || w->dtype == MDL_U8) {
        out->kind = MDL_W_FP4;
        out->k *= 2;
    }
    return true;
}

static void linears(struct gold_case *c)
{
    const struct mdl_tensor *t = gold_get(c, "in/lin.x");
    char name[256];
    size_t at = 0;
    while (t && next_group(c, "out/lin.", ".f32", &at, name)) {
        struct mdl_linear w;
        int rows = gold_rows(t);
        size_t k = (size_t)gold_cols(t), n;
        if (!gold_check(c, linear_of(c, name, &w) && (size_t)w.k == k, "lin.%s: weight of %zu columns exists", name, k))
            continue;
        n = (size_t)w.n;
        const uint16_t *x = gold_data(c, t);
        if (w.kind == MDL_W_FP8 || w.kind == MDL_W_FP4) {
            uint16_t *q = gold_alloc(c, (size_t)rows * k, sizeof *q);
            mdl_fakequant_q8_rows(&c->m->exec, x, k, (int)k, rows, q, k);
            x = q;
        }
        float *f = gold_alloc(c, (size_t)rows * n, sizeof *f);
        uint16_t *y = gold_alloc(c, (size_t)rows * n, sizeof *y);
        mdl_linear_f32(&c->m->exec, &w, x, k, rows, f, n);
        compare_floats(c, join(c, "lin.%s.f32", name), f);
        mdl_linear_bf16(&c->m->exec, &w, x, k, rows, y, n);
        compare_bf16(c, join(c, "lin.%s.y", name), y);
    }
}

static void mixing(struct gold_case *c)
{
    const struct mdl_exec *ex = &c->m->exec;
    const struct mdl_tensor *tx = gold_get(c, "in/mhc.X"), *tv = gold_get(c, "in/mhc.v");
    const struct mdl_tensor *tp = gold_get(c, "in/mhc.collapse_pre");
    char name[256];
    size_t at = 0;
    if (!tx)
        return;
    int n = gold_rows(tx);
    while (next_group(c, "out/mhc.", ".pre", &at, name)) {
        const char *rest = "";
        const struct mdl_block *b = block_of(c, name, &rest);
        if (!gold_check(c, b != NULL, "mhc.%s: block exists", name))
            continue;
        const struct mdl_hc *hc = !strcmp(rest, "hc_attn") ? &b->hc_attn : &b->hc_ffn;
        float *pre = gold_alloc(c, (size_t)n * 4, sizeof *pre), *post = gold_alloc(c, (size_t)n * 4, sizeof *post);
        float *comb = gold_alloc(c, (size_t)n * 16, sizeof *comb);
        mdl_mhc_mix(ex, hc, gold_data(c, tx), NULL, n, pre, post, comb);
        compare_floats(c, join(c, "mhc.%s.pre", name), pre);
        compare_floats(c, join(c, "mhc.%s.post", name), post);
        compare_floats(c, join(c, "mhc.%s.comb", name), comb);
        if (!tv)
            continue;
        uint16_t *x = gold_alloc(c, (size_t)gold_count(tx), sizeof *x);
        memcpy(x, gold_data(c, tx), tx->bytes);
        mdl_mhc_expand(ex, gold_data(c, tv), post, comb, NULL, n, x);
        compare_bf16(c, join(c, "mhc.%s.expand", name), x);
    }
    if (tp) {
        uint16_t *u = gold_alloc(c, (size_t)(gold_count(tx) / MDL_HC), sizeof *u);
        mdl_mhc_collapse(ex, gold_data(c, tx), gold_floats(c, tp), true, NULL, n, u);
        compare_bf16(c, "mhc.collapse", u);
    }
}

static void attention_core(struct gold_case *c)
{
    const struct mdl_tensor *tq = gold_get(c, "in/sdpa.q"), *ts = gold_get(c, "in/sdpa.sink");
    char name[256];
    size_t at = 0;
    while (tq && ts && next_group(c, "in/sdpa.K.", "", &at, name)) {
        const struct mdl_tensor *tk = gold_get(c, "in/sdpa.K.%s", name);
        int i = atoi(name), heads = (int)tq->shape[1], dim = (int)tq->shape[2], n = gold_rows(tk);
        uint16_t *o = gold_alloc(c, (size_t)(heads * dim), sizeof *o);
        float *prob = gold_alloc(c, (size_t)(heads < 8 ? heads : 8) * (size_t)n, sizeof *prob);
        const uint16_t *q = (const uint16_t *)gold_data(c, tq) + i * heads * dim;
        mdl_attn_core(c->m->exec.be, q, gold_data(c, tk), n, dim, gold_floats(c, ts) + i * heads, 0, heads, prob, o);
        compare_bf16(c, join(c, "sdpa.o.%s", name), o);
    }
}

/* ---- attention half of a layer ---- */

struct attn_test {
    struct gold_case *c;
    int layer, first; /* position of the step's first row */
    int32_t *own, *cand;
    int *own_n, *cand_n;
};

static const int32_t *golden_selection(struct gold_case *c, int layer, int row, int *n)
{
    const struct mdl_tensor *t = gold_get(c, "out/attn.%d.sel", layer);
    if (!t)
        return NULL;
    const int32_t *sel = (const int32_t *)gold_data(c, t) + row * gold_cols(t);
    *n = 0;
    while (*n < gold_cols(t) && sel[*n] >= 0)
        (*n)++;
    return sel;
}

static void inject_selection(struct attn_test *a, struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    for (int i = 0; i < s->n_active; i++) {
        int row = s->active[i], n;
        const int32_t *sel = golden_selection(a->c, a->layer, a->first + row, &n);
        if (!sel || n > cfg->index_topk)
            continue;
        memcpy(s->sel + (size_t)row * (size_t)cfg->index_topk, sel, (size_t)n * sizeof *sel);
        s->sel_n[row] = n;
    }
}

static void inject_candidates(struct attn_test *a, struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_tensor *t = gold_get(a->c, "out/cand");
    for (int row = 0; row < s->n_rows; row++) {
        s->cand_n[row] = t ? 0 : -1;
        const uint8_t *kept = t ? (const uint8_t *)gold_data(a->c, t) + (a->first + row) * gold_cols(t) : NULL;
        for (int b = 0; t && b < gold_cols(t); b++)
            if (kept[b] && s->cand_n[row] < cfg->candidate_blocks)
                s->cand[(size_t)row * (size_t)cfg->candidate_blocks + (size_t)s->cand_n[row]++] = b;
    }
}

static void at_hook(void *ctx, struct mdl_step *s, enum mdl_hook_point at, int layer)
{
    (void)layer;
    struct attn_test *a = ctx;
    const struct mdl_config *cfg = s->m->cfg;
    if (at != MDL_HOOK_SELECTED)
        return;
    if (a->own) {
        memcpy(a->own, s->sel, (size_t)s->n_rows * (size_t)cfg->index_topk * sizeof *a->own);
        memcpy(a->own_n, s->sel_n, (size_t)s->n_rows * sizeof *a->own_n);
        memcpy(a->cand, s->cand, (size_t)s->n_rows * (size_t)cfg->candidate_blocks * sizeof *a->cand);
        memcpy(a->cand_n, s->cand_n, (size_t)s->n_rows * sizeof *a->cand_n);
    }
    inject_selection(a, s);
}

/* Makes the step hold positions first..T-1, all active in `layer`, with their normed input in u. */
static bool set_up(struct attn_test *a, struct mdl_step *s, struct mdl_seq *seq, const struct mdl_tensor *tx,
                   int write_from)
{
    struct cfg_error err = {{0}};
    int rows = gold_rows(tx) - a->first;
    size_t d = (size_t)gold_cols(tx);
    s->hooks = (struct mdl_hooks){.ctx = a, .want_scores = true, .point = at_hook};
    mdl_step_begin(s, NULL);
    int32_t *ids = gold_alloc(a->c, (size_t)rows, sizeof *ids);
    struct mdl_segment seg = {.seq = seq,
                              .start = a->first,
                              .n = rows,
                              .ids = ids,
                              .layer_end = s->m->cfg->n_layers,
                              .write_from = write_from,
                              .logits_from = rows};
    if (!gold_ok(a->c, mdl_step_add(s, &seg, &err), &err, "rows of attn"))
        return false;
    s->layer = a->layer;
    s->n_active = rows;
    for (int i = 0; i < rows; i++)
        s->active[i] = i;
    memcpy(s->u, (const uint16_t *)gold_data(a->c, tx) + (size_t)a->first * d, (size_t)rows * d * sizeof *s->u);
    return true;
}

static void check_projections(struct gold_case *c, struct mdl_step *s, struct mdl_seq *seq, int layer)
{
    const struct mdl_config *cfg = s->m->cfg;
    int T = s->n_rows, hd = cfg->head_dim;
    compare_bf16(c, join(c, "attn.%d.qr", layer), s->qr);
    compare_bf16(c, join(c, "attn.%d.q", layer), s->q);
    uint8_t *codes = gold_alloc(c, (size_t)T * (size_t)hd, 1), *scales = gold_alloc(c, (size_t)T * (size_t)hd / 32, 1);
    for (int r = 0; r < T; r++) {
        const uint8_t *row = s->window + ((size_t)layer * (size_t)s->capacity + (size_t)r) * s->swa_row;
        memcpy(codes + r * hd, row, (size_t)hd);
        memcpy(scales + r * (hd / 32), row + hd, (size_t)hd / 32);
    }
    compare_codes(c, join(c, "attn.%d.swa", layer), "codes", codes, false);
    compare_codes(c, join(c, "attn.%d.swa", layer), "scales", scales, false);
    const struct mdl_tensor *tc = gold_get(c, "out/attn.%d.qi.codes", layer),
                            *ts = gold_get(c, "out/attn.%d.qi.scales", layer);
    if (tc && ts) {
        int n = (int)gold_count(tc) * 2;
        uint16_t *want = gold_alloc(c, (size_t)n, sizeof *want);
        mdl_dequant_q4i(gold_data(c, tc), gold_data(c, ts), n, want);
        size_t differ =
            gold_floats_differ(gold_from_bf16(c, s->qi, (size_t)n), gold_from_bf16(c, want, (size_t)n), (size_t)n);
        const json_t *limit = limits_of(c, join(c, "attn.%d.qi", layer));
        gold_limit(c, (double)differ / n, gold_number(limit, "codes_changed", 0),
                   "attn.%d.qi: share of values that differ", layer);
        compare_floats(c, join(c, "attn.%d.wt", layer), s->wt);
    }
    const struct mdl_tensor *tm = gold_get(c, "out/attn.%d.main.codes", layer);
    if (!tm)
        return;
    int source = cfg->layer[layer].kv_source, rows = gold_rows(tm), mc = hd / 2, ms = hd / 16;
    int ic = cfg->index_dim / 2, is = cfg->index_dim / 32;
    uint8_t *m = gold_alloc(c, (size_t)(rows * (mc + ms)), 1), *x = gold_alloc(c, (size_t)(rows * (ic + is)), 1);
    for (int r = 0; r < rows; r++) {
        memcpy(m + r * mc, mdl_seq_main_row(seq, source, r), (size_t)mc);
        memcpy(m + rows * mc + r * ms, mdl_seq_main_row(seq, source, r) + mc, (size_t)ms);
        memcpy(x + r * ic, mdl_seq_index_codes(seq, source, r), (size_t)ic);
        memcpy(x + rows * ic + r * is, mdl_seq_index_scales(seq, source, r), (size_t)is);
    }
    compare_codes(c, join(c, "attn.%d.main", layer), "codes", m, true);
    compare_codes(c, join(c, "attn.%d.main", layer), "scales", m + rows * mc, false);
    compare_codes(c, join(c, "attn.%d.index", layer), "codes", x, true);
    compare_codes(c, join(c, "attn.%d.index", layer), "scales", x + rows * ic, false);
    compare_bf16(c, join(c, "attn.%d.latent", layer), s->latent);
    const float *tail = s->tail + ((size_t)source * (size_t)s->capacity + (size_t)T - 1) * 2 * (size_t)hd;
    compare_floats(c, join(c, "attn.%d.tail_kv", layer), tail);
    compare_floats(c, join(c, "attn.%d.tail_gate", layer), tail + hd);
}

/* Scores, margins and the step's own choice, against the golden ones. */
static void check_selection(struct attn_test *a, struct mdl_step *s)
{
    struct gold_case *c = a->c;
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_layer_role *role = &cfg->layer[a->layer];
    const struct mdl_tensor *ts = gold_get(c, "out/attn.%d.score", a->layer);
    const struct mdl_tensor *to = gold_get(c, "out/attn.%d.own_sel", a->layer);
    const struct mdl_tensor *tc = role->candidate_source ? gold_get(c, "out/cand") : NULL;
    if (!ts)
        return;
    int T = s->n_rows, cols = gold_cols(ts), size = cfg->candidate_block_size, differ = 0, blocks_differ = 0;
    const float *score = gold_floats(c, ts);
    float *margin = gold_alloc(c, (size_t)T, sizeof *margin),
          *cand_margin = gold_alloc(c, (size_t)T, sizeof *cand_margin);
    double worst = 0.0;
    for (int r = 0; r < T; r++) {
        int visible = (r + 1) / role->ratio;
        const float *want = score + r * cols, *got = s->score_dump + (size_t)r * (size_t)s->score_stride;
        double error = gold_score_error(got, want, visible);
        worst = error > worst ? error : worst;
        float *masked = gold_alloc(c, (size_t)visible, sizeof *masked), lowest = 1.0f, low_block = 1.0f;
        memcpy(masked, got, (size_t)visible * sizeof *masked);
        if (role->restricted)
            mdl_select_restrict(masked, visible, size, s->cand + (size_t)r * (size_t)cfg->candidate_blocks,
                                s->cand_n[r]);
        int open = 0;
        for (int j = 0; j < visible; j++)
            if (masked[j] > -INFINITY)
                masked[open++] = masked[j];
        margin[r] = (float)gold_cut_margin(c, masked, open, cfg->index_topk, gold_sd(masked, open), &lowest);
        if (to && (margin[r] > clear_margin || lowest == 0.0f))
            differ += !gold_same_selection(a->own + r * cfg->index_topk, a->own_n[r],
                                           (const int32_t *)gold_data(c, to) + r * gold_cols(to), gold_cols(to));
        if (!tc)
            continue;
        int blocks = (visible + size - 1) / size;
        float *best = gold_alloc(c, (size_t)blocks + 1, sizeof *best);
        for (int j = 0; j < visible; j++)
            best[j / size] = j % size == 0 || got[j] > best[j / size] ? got[j] : best[j / size];
        if (blocks)
            best[blocks - 1] = INFINITY;
        cand_margin[r] =
            (float)gold_cut_margin(c, best, blocks, cfg->candidate_blocks, gold_sd(got, visible), &low_block);
        const uint8_t *kept = (const uint8_t *)gold_data(c, tc) + r * gold_cols(tc);
        if (cand_margin[r] > clear_margin || low_block == 0.0f)
            blocks_differ += !gold_same_blocks(a->cand + r * cfg->candidate_blocks, a->cand_n[r], kept, gold_cols(tc));
    }
    gold_limit(c, worst, gold_number(limits_of(c, join(c, "attn.%d.score", a->layer)), "max_in_sd", 0),
               "attn.%d.score: largest difference in standard deviations", a->layer);
    if (to)
        gold_limit(c, differ,
                   gold_number(limits_of(c, join(c, "attn.%d.own_sel", a->layer)), "rows_changed_with_clear_margin", 0),
                   "attn.%d.own_sel: rows with a clear margin that differ", a->layer);
    compare_floats(c, join(c, "attn.%d.sel_margin", a->layer), margin);
    if (!tc)
        return;
    gold_limit(c, blocks_differ, gold_number(limits_of(c, "cand"), "rows_changed_with_clear_margin", 0),
               "cand: rows with a clear margin that differ");
    compare_floats(c, "cand_margin", cand_margin);
}

/* The golden output is the one before the inverse rotation; the step's is the one after it. differs[row]: some value of
 * the row is another one. */
static void check_output(struct gold_case *c, struct mdl_step *s, int layer, bool *differs)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_tensor *t = gold_get(c, "out/attn.%d.o", layer);
    if (!t)
        return;
    size_t n = (size_t)gold_count(t), changed = 0, dim = (size_t)cfg->head_dim, heads = (size_t)cfg->n_heads;
    double worst = 0.0;
    uint16_t *o = gold_alloc(c, n, sizeof *o);
    memcpy(o, gold_data(c, t), n * sizeof *o);
    enum mdl_rope_table table = cfg->layer[layer].ratio > 0 ? MDL_ROPE_YARN : MDL_ROPE_PLAIN;
    for (size_t i = 0; i < n / dim; i++) {
        mdl_rope_rotate(&s->m->rope, &s->angle[table][i / heads], true, cfg->head_dim, o + i * dim);
        double e = gold_row_error_bf16(s->q + i * dim, o + i * dim, dim);
        worst = e > worst ? e : worst;
        differs[i / heads] |= e > 0.0;
        for (size_t k = 0; k < dim; k++)
            changed += mdl_from_bf16(s->q[i * dim + k]) != mdl_from_bf16(o[i * dim + k]);
    }
    const json_t *limit = limits_of(c, join(c, "attn.%d.o", layer));
    gold_limit(c, worst, gold_number(limit, "max_rel_to_row", 0),
               "attn.%d.o: largest difference over the row's largest value", layer);
    gold_limit(c, (double)changed / (double)n, gold_number(limit, "elements_changed", 0),
               "attn.%d.o: share of values that differ", layer);
}

/* The result behind the FP8 rounding of the output projection. A last-bit difference in a row's o, which o's own limits
 * allow, may move a code there and then most of the row: such rows are held to one FP8 step, all others to the limits.
 */
static void check_result(struct gold_case *c, const char *name, const uint16_t *got, const bool *differs)
{
    const struct mdl_tensor *t = gold_get(c, "out/%s", name);
    const json_t *limit = t ? limits_of(c, name) : NULL;
    if (!limit)
        return;
    const uint16_t *want = gold_data(c, t);
    size_t width = (size_t)gold_cols(t), changed = 0, total = 0;
    double worst = 0.0, loose = 0.0;
    for (int r = 0; r < gold_rows(t); r++, got += width, want += width) {
        double e = gold_row_error_bf16(got, want, width), *to = differs[r] ? &loose : &worst;
        *to = e > *to ? e : *to;
        for (size_t k = 0; k < width && !differs[r]; k++, total++)
            changed += mdl_from_bf16(got[k]) != mdl_from_bf16(want[k]);
    }
    gold_limit(c, worst, gold_number(limit, "max_rel_to_row", 0), "%s: largest difference over the row's largest value",
               name);
    gold_limit(c, loose, 0.0625, "%s: the same in rows whose attention output differs in the last bit", name);
    gold_limit(c, total ? (double)changed / (double)total : 0.0, gold_number(limit, "elements_changed", 0),
               "%s: share of values that differ", name);
}

static void attention_layer(struct gold_case *c, struct mdl_step *s, struct mdl_seq *seq, int layer)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_tensor *tx = gold_get(c, "in/attn.x");
    int T = gold_rows(tx);
    struct attn_test a = {.c = c, .layer = layer};
    a.own = gold_alloc(c, (size_t)(T * cfg->index_topk) + 1, sizeof *a.own);
    a.own_n = gold_alloc(c, (size_t)T, sizeof *a.own_n);
    a.cand = gold_alloc(c, (size_t)(T * cfg->candidate_blocks) + 1, sizeof *a.cand);
    a.cand_n = gold_alloc(c, (size_t)T, sizeof *a.cand_n);
    if (!set_up(&a, s, seq, tx, 0))
        return;
    mdl_attn_project(s, layer);
    check_projections(c, s, seq, layer);
    inject_candidates(&a, s);
    inject_selection(&a, s);
    mdl_attn_attend(s, layer);
    check_selection(&a, s);
    bool *differs = gold_alloc(c, (size_t)T, sizeof *differs);
    check_output(c, s, layer, differs);
    check_result(c, join(c, "attn.%d.y", layer), s->out, differs);
    a = (struct attn_test){.c = c, .layer = layer, .first = gold_int(c->json, "segment_start", 0)};
    if (!gold_get(c, "out/attn.%d.segment.y", layer) || !set_up(&a, s, seq, tx, T))
        return;
    seq->window_lo[layer] = a.first;
    mdl_attn_project(s, layer);
    inject_candidates(&a, s);
    inject_selection(&a, s);
    mdl_attn_attend(s, layer);
    /* Rows far enough from the start of the segment see the same keys as in the full run. */
    for (int r = a.first; r < a.first + cfg->window - 1 && r < T; r++)
        differs[r] = false;
    check_result(c, join(c, "attn.%d.segment.y", layer), s->out, differs + a.first);
}

static void attention(struct gold_case *c)
{
    const struct mdl_tensor *tx = gold_get(c, "in/attn.x");
    if (!tx)
        return;
    struct mdl_seq *seq = gold_seq(c, gold_rows(tx), 0, false);
    struct mdl_step *s = gold_step(c, gold_rows(tx), gold_rows(tx));
    for (int l = 0; seq && s && l < c->m->cfg->n_layers; l++)
        attention_layer(c, s, seq, l);
    mdl_step_free(s);
    mdl_seq_free(seq);
}

/* ---- experts ---- */

static void experts_of(struct gold_case *c, const char *name, const struct mdl_block *b, int layer, int k)
{
    const struct mdl_exec *ex = &c->m->exec;
    const struct mdl_tensor *tx = gold_get(c, "in/moe.x");
    int n = gold_rows(tx), e = b->n_experts, differ = 0;
    size_t d = (size_t)gold_cols(tx), rows = (size_t)n;
    const uint16_t *x = gold_data(c, tx);
    float *z = gold_alloc(c, rows * (size_t)e, sizeof *z), *score = gold_alloc(c, rows * (size_t)e, sizeof *score);
    float *weight = gold_alloc(c, rows * (size_t)k, sizeof *weight), *margin = gold_alloc(c, rows, sizeof *margin);
    int32_t *expert = gold_alloc(c, rows * (size_t)k, sizeof *expert);
    mdl_moe_route(ex, b, x, n, k, z, expert, weight);
    compare_floats(c, join(c, "moe.%s.z", name), z);
    float *biased = gold_alloc(c, (size_t)e, sizeof *biased);
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < e; i++) {
            score[r * e + i] = sqrtf(mdl_softplus(z[r * e + i]));
            biased[i] = score[r * e + i] + b->gate_bias[i];
        }
        margin[r] = (float)gold_cut_margin(c, biased, e, k, 1.0, NULL);
    }
    compare_floats(c, join(c, "moe.%s.score", name), score);
    compare_floats(c, join(c, "moe.%s.margin", name), margin);
    compare_ints(c, join(c, "moe.%s.experts", name), expert);
    compare_floats(c, join(c, "moe.%s.weights", name), weight);

    uint16_t *q = gold_alloc(c, rows * d, sizeof *q), *y = gold_alloc(c, rows * d, sizeof *y);
    uint16_t *shared = gold_alloc(c, rows * d, sizeof *shared);
    float *w = gold_alloc(c, rows, sizeof *w);
    mdl_fakequant_q8_rows(ex, x, d, (int)d, n, q, d);
    gold_check(c, mdl_moe_expert(ex, &b->shared, q, n, NULL, shared) == 0, "moe.%s.shared: runs", name);
    compare_bf16(c, join(c, "moe.%s.shared", name), shared);
    for (int r = 0; r < n; r++)
        w[r] = 0.75f;
    gold_check(c, mdl_moe_expert(ex, &b->experts[0], q, n, w, y) == 0, "moe.%s.expert0: runs", name);
    compare_bf16(c, join(c, "moe.%s.expert0", name), y);

    /* The whole: through an exchange, as a step does it. */
    uint8_t *codes = gold_alloc(c, rows * d, 1), *scales = gold_alloc(c, rows * d / 32, 1);
    for (size_t r = 0; r < rows; r++)
        mdl_quant_q8(x + r * d, (int)d, codes + r * d, scales + r * d / 32);
    struct mdl_exchange ex_ = {.layer = layer,
                               .rows = n,
                               .k = k,
                               .codes = codes,
                               .scales = scales,
                               .expert = expert,
                               .weight = weight,
                               .pending = n * k};
    ex_.result = gold_alloc(c, rows * (size_t)k * d, sizeof *ex_.result);
    ex_.have = gold_alloc(c, rows * (size_t)k, 1);
    gold_check(c, mdl_experts_compute(c->m, &ex_, 0, e) == 0, "moe.%s: exchange runs", name);
    for (int i = 0; i < n * k; i++)
        differ += !ex_.have[i];
    gold_limit(c, differ + ex_.pending, 0, "moe.%s: results that are missing", name);
    mdl_moe_combine(ex, ex_.result, shared, n, k, y);
    compare_bf16(c, join(c, "moe.%s.y", name), y);
}

static void experts(struct gold_case *c)
{
    const struct mdl_config *cfg = c->m->cfg;
    char name[256];
    size_t at = 0;
    while (gold_get(c, "in/moe.x") && next_group(c, "out/moe.", ".z", &at, name)) {
        const char *rest = "";
        const struct mdl_block *b = block_of(c, name, &rest);
        if (!gold_check(c, b != NULL, "moe.%s: block exists", name))
            continue;
        bool draft = !strncmp(name, "mtp.", 4);
        int layer = draft ? cfg->n_layers + (int)(b - c->m->ck->draft) : (int)(b - c->m->ck->layers);
        experts_of(c, name, b, layer, draft ? cfg->draft_topk : cfg->topk_experts);
    }
}

/* ---- Engram, head, drafter ---- */

static void engram(struct gold_case *c)
{
    const struct mdl_config *cfg = c->m->cfg;
    const struct mdl_tensor *ti = gold_get(c, "in/engram.ids"), *tx = gold_get(c, "in/mhc.X");
    for (int slot = 0; ti && tx && slot < cfg->n_engram; slot++) {
        int layer = cfg->engram_layers[slot], n = gold_rows(ti), columns = (cfg->engram_ngram - 1) * cfg->engram_heads;
        const struct mdl_engram *e = &c->m->ck->engram[slot];
        size_t width = (size_t)columns * (size_t)cfg->engram_dim, d = (size_t)cfg->hidden,
               dim = (size_t)cfg->engram_dim;
        const int32_t *ids = gold_data(c, ti);
        int32_t *rows = gold_alloc(c, (size_t)(n * columns), sizeof *rows);
        uint16_t *values = gold_alloc(c, (size_t)n * width, sizeof *values);
        int64_t *row_ids = gold_alloc(c, (size_t)columns, sizeof *row_ids);
        for (int p = 0; p < n; p++) {
            int32_t history[MDL_MAX_ENGRAM];
            for (int k = 0; k < cfg->engram_ngram; k++)
                history[k] = p - k < 0 ? -1 : ids[p - k];
            mdl_engram_rows(cfg, e, c->m->ck->engram_map, history, row_ids);
            for (int k = 0; k < columns; k++) {
                rows[p * columns + k] = (int32_t)row_ids[k];
                mdl_dequant_q8(e->table + (size_t)row_ids[k] * dim, e->table_scale + (size_t)row_ids[k] * (dim / 32),
                               (int)dim, values + (size_t)p * width + (size_t)k * dim);
            }
        }
        compare_ints(c, join(c, "engram.%d.rows", layer), rows);
        compare_bf16(c, join(c, "engram.%d.e", layer), values);
        uint16_t *q = gold_alloc(c, (size_t)n * width, sizeof *q), *kv = gold_alloc(c, (size_t)n * 5 * d, sizeof *kv);
        uint16_t *x = gold_alloc(c, (size_t)gold_count(tx), sizeof *x);
        float *dot = gold_alloc(c, (size_t)n * 4, sizeof *dot), *gate = gold_alloc(c, (size_t)n * 4, sizeof *gate);
        memcpy(x, gold_data(c, tx), tx->bytes);
        mdl_engram_apply(&c->m->exec, e, values, NULL, n, q, kv, dot, gate, x);
        compare_bf16(c, join(c, "engram.%d.kv", layer), kv);
        compare_floats(c, join(c, "engram.%d.dot", layer), dot);
        compare_floats(c, join(c, "engram.%d.gate", layer), gate);
        compare_bf16(c, join(c, "engram.%d.X", layer), x);
    }
}

static void head(struct gold_case *c)
{
    const struct mdl_config *cfg = c->m->cfg;
    const struct mdl_tensor *tx = gold_get(c, "in/mhc.X"), *tp = gold_get(c, "in/head.pre");
    if (!tx || !tp)
        return;
    int n = gold_rows(tx);
    size_t d = (size_t)cfg->hidden;
    uint16_t *y = gold_alloc(c, (size_t)n * d, sizeof *y), *normed = gold_alloc(c, (size_t)n * d, sizeof *normed);
    float *logits = gold_alloc(c, (size_t)n * (size_t)cfg->vocab_size, sizeof *logits);
    mdl_mhc_collapse(&c->m->exec, gold_data(c, tx), gold_floats(c, tp), true, NULL, n, y);
    mdl_head_logits(&c->m->exec, c->m->ck, c->m->ck->norm, y, n, normed, logits);
    compare_bf16(c, "head.y", y);
    compare_floats(c, "head.logits", logits);
}

static void drafter_hook(void *ctx, struct mdl_step *s, enum mdl_hook_point at, int layer)
{
    struct gold_case *c = ctx;
    int stage = layer - s->m->cfg->n_layers;
    if ((at != MDL_HOOK_LAYER && at != MDL_HOOK_LEFT) || stage < 0)
        return;
    compare_bf16(c, join(c, "drafter.x.%d", stage), s->x);
    compare_floats(c, join(c, "drafter.pre.%d", stage), s->pre);
}

static void drafter_block(struct gold_case *c, struct mdl_step *s, struct mdl_seq *seq)
{
    const struct mdl_config *cfg = c->m->cfg;
    struct cfg_error err = {{0}};
    int32_t token = (int32_t)gold_int(gold_json(c->json, "draft"), "token", 0);
    s->hooks = (struct mdl_hooks){.ctx = c, .point = drafter_hook};
    mdl_step_begin(s, NULL);
    if (!gold_ok(c, mdl_draft_add(s, seq, token, &err), &err, "draft block") ||
        !gold_check(c, mdl_step_run(s) == MDL_STEP_DONE, "drafter: the block runs"))
        return;
    int n = cfg->draft_block;
    float *logits = gold_alloc(c, (size_t)n * (size_t)cfg->vocab_size, sizeof *logits);
    struct mdl_draft draft;
    gold_check(c, mdl_draft_pick(s, 0, n, NULL, NULL, &draft, logits) == 0, "drafter: tokens are picked");
    uint16_t *y = gold_alloc(c, (size_t)n * (size_t)cfg->hidden, sizeof *y);
    mdl_mhc_collapse(&c->m->exec, s->x, s->pre, true, NULL, n, y);
    compare_bf16(c, "drafter.y", y);
    compare_floats(c, "drafter.logits", logits);
    compare_floats(c, "drafter.confidence", draft.confidence);
    compare_ints(c, "drafter.ids", draft.ids);
}

static void drafter(struct gold_case *c)
{
    const struct mdl_config *cfg = c->m->cfg;
    const struct mdl_tensor *tt = gold_get(c, "in/drafter.taps");
    if (!tt || !cfg->n_draft)
        return;
    int n = gold_rows(tt), hd = cfg->head_dim;
    gold_check(c, n == gold_int(gold_json(c->json, "draft"), "last_position", n - 1) + 1, "drafter: %d rows of taps",
               n);
    struct mdl_seq *seq = gold_seq(c, n + cfg->draft_block + 1, 0, false);
    struct mdl_step *s = gold_step(c, n > cfg->draft_block ? n : cfg->draft_block, n + cfg->draft_block + 1);
    if (!seq || !s)
        goto out;
    struct cfg_error err = {{0}};
    int32_t *ids = gold_alloc(c, (size_t)n, sizeof *ids);
    int *rows = gold_alloc(c, (size_t)n, sizeof *rows);
    struct mdl_segment seg = {.seq = seq, .n = n, .ids = ids, .layer_end = cfg->n_layers, .logits_from = n};
    if (!gold_ok(c, mdl_step_add(s, &seg, &err), &err, "rows of taps"))
        goto out;
    for (int i = 0; i < n; i++)
        rows[i] = i;
    memcpy(s->taps, gold_data(c, tt), tt->bytes);
    mdl_draft_ring_rows(s, rows, n);
    compare_bf16(c, "drafter.main", s->u);
    uint8_t *codes = gold_alloc(c, (size_t)(n * hd), 1), *scales = gold_alloc(c, (size_t)(n * hd / 32), 1);
    for (int k = 0; k < cfg->n_draft; k++) {
        for (int r = 0; r < n; r++) {
            const uint8_t *row =
                s->window + ((size_t)(cfg->n_layers + k) * (size_t)s->capacity + (size_t)r) * s->swa_row;
            memcpy(codes + r * hd, row, (size_t)hd);
            memcpy(scales + r * (hd / 32), row + hd, (size_t)hd / 32);
        }
        compare_codes(c, join(c, "drafter.ring.%d", k), "codes", codes, false);
        compare_codes(c, join(c, "drafter.ring.%d", k), "scales", scales, false);
    }
    mdl_step_commit(s, 0, n);
    drafter_block(c, s, seq);
out:
    mdl_step_free(s);
    mdl_seq_free(seq);
}

void gold_modules(struct gold_case *c)
{
    static const struct {
        const char *name;
        void (*run)(struct gold_case *);
    } suites[] = {{"formats", formats},     {"select", selection}, {"norm and rope", norm_and_rope},
                  {"linears", linears},     {"mixing", mixing},    {"attention core", attention_core},
                  {"attention", attention}, {"experts", experts},  {"engram", engram},
                  {"head", head},           {"drafter", drafter}};
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        if (!gold_begin(c, "%s", suites[i].name))
            continue;
        suites[i].run(c);
        gold_end(c);
    }
}
