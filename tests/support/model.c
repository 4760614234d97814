/* Implementation of tests/support/model.h. */
#include "tests/support/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

struct mdl_model *ts_model_cpu(const char *dir, int threads, const char *cpu)
{
    struct mdl_model *m;
    struct cfg_error err;
    if (mdl_model_open(dir, threads, cpu, &m, &err))
        cr_assert_fail("%s", err.msg);
    return m;
}

struct mdl_model *ts_model(const char *dir, int threads)
{
    return ts_model_cpu(dir, threads, NULL);
}

struct mdl_step *ts_step(struct mdl_model *m, int rows, int max_tokens)
{
    struct mdl_step *s;
    struct cfg_error err;
    if (mdl_step_new(m, rows, max_tokens, &s, &err))
        cr_assert_fail("%s", err.msg);
    return s;
}

struct mdl_seq *ts_seq(const struct mdl_model *m, struct mdl_seq_params params)
{
    struct mdl_seq *s;
    struct cfg_error err;
    if (mdl_seq_new(m->cfg, &params, &s, &err))
        cr_assert_fail("%s", err.msg);
    return s;
}

uint32_t ts_random(uint64_t *state, uint32_t n)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32) % n;
}

int32_t *ts_ids(const struct mdl_model *m, uint64_t seed, int n)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)ts_random(&seed, (uint32_t)m->cfg->vocab_size);
    return ids;
}

/* ---- runs ---- */

struct ts_run ts_run_new(struct mdl_model *m, struct mdl_seq_params params, uint64_t seed, int n)
{
    struct ts_run r = {.m = m, .n = n, .ids = ts_ids(m, seed, n)};
    if (!params.max_tokens)
        params.max_tokens = n;
    r.seq = ts_seq(m, params);
    r.logits = calloc((size_t)n * (size_t)m->cfg->vocab_size, sizeof *r.logits);
    r.seen = calloc((size_t)n, 1);
    return r;
}

void ts_run_free(struct ts_run *r)
{
    mdl_seq_free(r->seq);
    free(r->ids);
    free(r->logits);
    free(r->seen);
    *r = (struct ts_run){0};
}

void ts_run_note(struct ts_run *r, const struct mdl_step *step, int segment)
{
    const struct mdl_segment *seg = &step->segment[segment];
    size_t vocab = (size_t)r->m->cfg->vocab_size;
    for (int i = 0; i < seg->n; i++) {
        const float *row = mdl_step_logits(step, segment, i);
        if (!row)
            continue;
        memcpy(r->logits + (size_t)(seg->start + i) * vocab, row, vocab * sizeof *row);
        r->seen[seg->start + i] = 1;
    }
}

static void run_segment(struct ts_run *r, struct mdl_step *step, const struct mdl_segment *seg)
{
    struct cfg_error err;
    mdl_step_begin(step, r->late ? &r->late->providers : NULL);
    if (mdl_step_add(step, seg, &err))
        cr_assert_fail("%s", err.msg);
    int status = ts_finish(step, r->late);
    cr_assert_eq(status, MDL_STEP_DONE, "rows %d..%d: status %d", seg->start, seg->start + seg->n - 1, status);
    ts_run_note(r, step, 0);
    mdl_step_commit(step, 0, seg->n);
}

void ts_run_prefill(struct ts_run *r, struct mdl_step *step, int n_prompt, const struct mdl_prefill_params *params,
                    const int *chunks)
{
    struct cfg_error err;
    struct mdl_segment seg;
    if (mdl_prefill_begin(&r->plan, r->seq, r->ids, n_prompt, params, &err))
        cr_assert_fail("%s", err.msg);
    for (int i = 0; mdl_prefill_next(&r->plan, chunks ? chunks[i] : step->capacity, &seg);) {
        run_segment(r, step, &seg);
        mdl_prefill_advance(&r->plan, &seg);
        i = chunks && chunks[i + 1] ? i + 1 : 0;
    }
}

struct mdl_segment ts_segment(const struct ts_run *r, int start, int n)
{
    return (struct mdl_segment){
        .seq = r->seq, .start = start, .n = n, .ids = r->ids + start, .layer_end = r->m->cfg->n_layers};
}

void ts_run_decode(struct ts_run *r, struct mdl_step *step, int to, int rows)
{
    while (r->seq->len < to) {
        int n = to - r->seq->len < rows ? to - r->seq->len : rows;
        struct mdl_segment seg = ts_segment(r, r->seq->len, n);
        run_segment(r, step, &seg);
    }
}

void ts_same_logits(const struct ts_run *a, const struct ts_run *b, int from, int to, const char *what)
{
    size_t vocab = (size_t)a->m->cfg->vocab_size;
    for (int i = from; i < to; i++) {
        cr_assert(a->seen[i] && b->seen[i], "%s: no logits of position %d (%d, %d)", what, i, a->seen[i], b->seen[i]);
        cr_assert_arr_eq(a->logits + (size_t)i * vocab, b->logits + (size_t)i * vocab, vocab * sizeof(float),
                         "%s: logits of position %d", what, i);
    }
}

/* ---- state ---- */

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static void same_global_rows(const struct mdl_seq *a, const struct mdl_seq *b, int from, const char *what)
{
    const struct mdl_kv_layout *l = &a->layout;
    for (int k = 0; k < a->cfg->n_kv_sources; k++) {
        int ratio = a->cfg->kv_source_ratio[k];
        for (int j = from / ratio; j < a->encoded / ratio; j++) {
            cr_assert_arr_eq(mdl_seq_main_row(a, k, j), mdl_seq_main_row(b, k, j), l->main_row,
                             "%s: main row %d of source %d", what, j, k);
            cr_assert_arr_eq(mdl_seq_index_codes(a, k, j), mdl_seq_index_codes(b, k, j), l->index_code_row,
                             "%s: index codes %d of source %d", what, j, k);
            cr_assert_arr_eq(mdl_seq_index_scales(a, k, j), mdl_seq_index_scales(b, k, j), l->index_scale_row,
                             "%s: index scales %d of source %d", what, j, k);
        }
    }
}

/* First position of a ring that both keep, after checking that the next row sees as far back in both. */
static int ring_from(int lo_a, int lo_b, int rows, int end, int window, struct ts_scope scope, const char *what,
                     int layer)
{
    int first = max_int(0, end - window + 1);
    cr_assert_eq(max_int(lo_a, first), max_int(lo_b, first), "%s: window bounds %d and %d of layer %d at %d", what,
                 lo_a, lo_b, layer, end);
    if (!scope.visible)
        cr_assert_eq(lo_a, lo_b, "%s: window bounds of layer %d", what, layer);
    int from = scope.visible ? first : max_int(0, end - rows);
    return max_int(max_int(from, scope.from), max_int(lo_a, lo_b));
}

static void same_rings(const struct mdl_seq *a, const struct mdl_seq *b, struct ts_scope scope, const char *what)
{
    const struct mdl_config *cfg = a->cfg;
    size_t row = a->layout.swa_row;
    for (int l = 0; l < cfg->n_layers; l++) {
        int end = cfg->cut < 0 || l < cfg->cut ? a->encoded : a->len;
        int from = ring_from(a->window_lo[l], b->window_lo[l], min_int(a->ring_rows[l], b->ring_rows[l]), end,
                             cfg->window, scope, what, l);
        for (int p = from; p < end; p++)
            cr_assert_arr_eq(mdl_seq_ring_row(a, l, p), mdl_seq_ring_row(b, l, p), row,
                             "%s: window row of position %d, layer %d", what, p, l);
    }
    for (int k = 0; k < cfg->n_draft; k++) {
        int from = ring_from(a->draft_lo, b->draft_lo, min_int(a->draft_ring_rows, b->draft_ring_rows), a->len,
                             cfg->window, scope, what, cfg->n_layers + k);
        for (int p = from; p < a->len; p++)
            cr_assert_arr_eq(mdl_seq_draft_row(a, k, p), mdl_seq_draft_row(b, k, p), row,
                             "%s: drafter row of position %d, stage %d", what, p, k);
    }
}

static void same_tails(const struct mdl_seq *a, const struct mdl_seq *b, struct ts_scope scope, const char *what)
{
    size_t bytes = 2 * (size_t)a->cfg->head_dim * sizeof(float);
    int keep = scope.visible ? 1 : min_int(a->tail_rows, b->tail_rows);
    for (int k = 0; k < a->cfg->n_kv_sources; k++)
        for (int p = max_int(scope.from, max_int(0, a->encoded - keep)); a->tail[k] && p < a->encoded; p++)
            cr_assert_arr_eq(mdl_seq_tail(a, k, p), mdl_seq_tail(b, k, p), bytes, "%s: tail of position %d, source %d",
                             what, p, k);
}

static void same_bridge(const struct mdl_seq *a, const struct mdl_seq *b, struct ts_scope scope, const char *what)
{
    size_t streams = MDL_HC * (size_t)a->cfg->hidden;
    int keep = min_int(a->params.replay, b->params.replay);
    int from = max_int(max_int(a->bridge_lo, b->bridge_lo), max_int(scope.from, a->encoded - keep));
    for (int p = from; p < a->encoded; p++) {
        size_t sa = (size_t)(p % a->params.replay), sb = (size_t)(p % b->params.replay);
        cr_assert_arr_eq(a->bridge_x + sa * streams, b->bridge_x + sb * streams, streams * sizeof *a->bridge_x,
                         "%s: bridge row of position %d", what, p);
        cr_assert_arr_eq(a->bridge_pre + sa * MDL_HC, b->bridge_pre + sb * MDL_HC, MDL_HC * sizeof(float),
                         "%s: bridge weights of position %d", what, p);
    }
}

void ts_same_state(const struct mdl_seq *a, const struct mdl_seq *b, struct ts_scope scope, const char *what)
{
    cr_assert_eq(a->encoded, b->encoded, "%s: encoded %d, %d", what, a->encoded, b->encoded);
    cr_assert_eq(a->len, b->len, "%s: length %d, %d", what, a->len, b->len);
    cr_assert_arr_eq(a->ids, b->ids, (size_t)a->encoded * sizeof *a->ids, "%s: ids", what);
    same_global_rows(a, b, scope.from, what);
    same_rings(a, b, scope, what);
    same_tails(a, b, scope, what);
    if (scope.bridge)
        same_bridge(a, b, scope, what);
}

/* Calls fn for every piece of raw state but the global rows. */
static void raw_pieces(const struct mdl_seq *s, void (*fn)(void *ctx, void *at, size_t len), void *ctx)
{
    const struct mdl_config *cfg = s->cfg;
    size_t row = s->layout.swa_row;
    for (int l = 0; l < cfg->n_layers; l++)
        fn(ctx, s->ring[l], row * (size_t)s->ring_rows[l]);
    for (int k = 0; k < cfg->n_draft; k++)
        fn(ctx, s->draft_ring[k], row * (size_t)s->draft_ring_rows);
    for (int k = 0; k < cfg->n_kv_sources; k++)
        if (s->tail[k])
            fn(ctx, s->tail[k], 2 * (size_t)cfg->head_dim * sizeof(float) * (size_t)s->tail_rows);
    if (s->params.replay) {
        fn(ctx, s->bridge_x, (size_t)s->params.replay * MDL_HC * (size_t)cfg->hidden * sizeof(uint16_t));
        fn(ctx, s->bridge_pre, (size_t)s->params.replay * MDL_HC * sizeof(float));
    }
    fn(ctx, s->ids, (size_t)s->params.max_tokens * sizeof(int32_t));
}

static void image_piece(void *ctx, void *at, size_t len)
{
    struct ts_image *i = ctx;
    uint8_t *data = realloc(i->data, i->len + len);
    cr_assert_not_null(data);
    memcpy(data + i->len, at, len);
    i->data = data;
    i->len += len;
}

struct ts_image ts_image_take(const struct mdl_seq *s, int tokens)
{
    struct ts_image i = {0};
    int numbers[] = {s->len, s->encoded, s->highest, s->draft_lo, s->bridge_lo};
    image_piece(&i, numbers, sizeof numbers);
    image_piece(&i, (void *)s->window_lo, (size_t)s->cfg->n_layers * sizeof *s->window_lo);
    raw_pieces(s, image_piece, &i);
    tokens = max_int(tokens, s->encoded);
    for (int k = 0; k < s->cfg->n_kv_sources; k++)
        for (int j = 0; j < tokens / s->cfg->kv_source_ratio[k]; j++) {
            image_piece(&i, mdl_seq_main_row(s, k, j), s->layout.main_row);
            image_piece(&i, mdl_seq_index_codes(s, k, j), s->layout.index_code_row);
            image_piece(&i, mdl_seq_index_scales(s, k, j), s->layout.index_scale_row);
        }
    return i;
}

bool ts_image_same(const struct ts_image *a, const struct ts_image *b)
{
    return a->len == b->len && !memcmp(a->data, b->data, a->len);
}

void ts_image_free(struct ts_image *i)
{
    free(i->data);
    *i = (struct ts_image){0};
}

struct piece_list {
    int n;
    void *at[MDL_MAX_LAYERS + MDL_MAX_DRAFT + MDL_MAX_SOURCES + 3];
};

static void list_piece(void *ctx, void *at, size_t len)
{
    struct piece_list *l = ctx;
    (void)len;
    l->at[l->n++] = at;
}

static void copy_piece(void *ctx, void *at, size_t len)
{
    struct piece_list *l = ctx;
    memcpy(l->at[l->n++], at, len);
}

struct mdl_seq *ts_seq_clone(const struct mdl_seq *s)
{
    struct mdl_seq *c;
    struct cfg_error err;
    if (mdl_seq_new(s->cfg, &s->params, &c, &err))
        cr_assert_fail("%s", err.msg);
    struct piece_list to = {0};
    raw_pieces(c, list_piece, &to);
    to.n = 0;
    raw_pieces(s, copy_piece, &to);
    for (int b = 0; b < s->n_blocks; b++)
        if (s->blocks[b]) {
            if (mdl_seq_reserve(c, min_int((b + 1) * s->layout.block_tokens, s->params.max_tokens), &err))
                cr_assert_fail("%s", err.msg);
            memcpy(c->blocks[b], s->blocks[b], s->layout.block_bytes);
        }
    memcpy(c->window_lo, s->window_lo, sizeof c->window_lo);
    c->len = s->len;
    c->encoded = s->encoded;
    c->highest = s->highest;
    c->draft_lo = s->draft_lo;
    c->bridge_lo = s->bridge_lo;
    return c;
}
