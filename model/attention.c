/* The attention half of a block: queries, window rows, compressor, selection, attention itself, output projection. */
#include <math.h>
#include <string.h>

#include "model/modules.h"
#include "model/numerics.h"

static const struct mdl_layer_role draft_role = {
    .mode = MDL_LAYER_SWA, .kv_source = -1, .index_source = -1, .engram = -1};

static const struct mdl_layer_role *role_of(const struct mdl_step *s, int layer)
{
    return layer < s->m->cfg->n_layers ? &s->m->cfg->layer[layer] : &draft_role;
}

static const struct mdl_rope_angle *angle_of(const struct mdl_step *s, int layer, int row)
{
    return &s->angle[role_of(s, layer)->ratio > 0 ? MDL_ROPE_YARN : MDL_ROPE_PLAIN][row];
}

static uint8_t *window_row(const struct mdl_step *s, int layer, int row)
{
    return s->window + ((size_t)layer * (size_t)s->capacity + (size_t)row) * s->swa_row;
}

static float *tail_row(const struct mdl_step *s, int source, int row)
{
    return s->tail + ((size_t)source * (size_t)s->capacity + (size_t)row) * 2 * (size_t)s->m->cfg->head_dim;
}

struct attn_job {
    struct mdl_step *s;
    int layer;
    const int *rows; /* step rows */
    const struct mdl_block *b;
    int head_group; /* heads per item of the attention loop */
};

/* ---- projections ---- */

static void rope_query_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct attn_job *j = ctx;
    struct mdl_step *s = j->s;
    const struct mdl_config *cfg = s->m->cfg;
    for (int i = begin; i < end; i++)
        for (int h = 0; h < cfg->n_heads; h++)
            mdl_rope_rotate(&s->m->rope, angle_of(s, j->layer, j->rows[i]), false, cfg->head_dim,
                            s->q + ((size_t)i * (size_t)cfg->n_heads + (size_t)h) * (size_t)cfg->head_dim);
}

static void window_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct attn_job *j = ctx;
    struct mdl_step *s = j->s;
    int d = s->m->cfg->head_dim;
    for (int i = begin; i < end; i++) {
        uint16_t *kv = s->kv + (size_t)i * (size_t)d;
        uint8_t *row = window_row(s, j->layer, j->rows[i]);
        mdl_rms_row(s->m->exec.be, kv, j->b->kv_norm, d, s->m->cfg->rms_eps, kv);
        mdl_rope_rotate(&s->m->rope, angle_of(s, j->layer, j->rows[i]), false, d, kv);
        s->m->exec.be->quant_q8(kv, d, row, row + d);
    }
}

/* Window rows of a layer from its fake-quantised input s->xq. */
static void project_window(struct mdl_step *s, int layer, const struct mdl_block *b, const int *rows, int n)
{
    const struct mdl_config *cfg = s->m->cfg;
    mdl_linear_bf16(&s->m->exec, &b->wkv, s->xq, (size_t)b->wkv.k, n, s->kv, (size_t)cfg->head_dim);
    mdl_team_run(s->m->team, n, 4, window_items, &(struct attn_job){s, layer, rows, b, 0});
}

void mdl_draft_ring_rows(struct mdl_step *s, const int *rows, int n)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_checkpoint *ck = s->m->ck;
    size_t width = (size_t)ck->main_proj.k, d = (size_t)cfg->hidden;
    for (int i = 0; i < n; i++)
        s->m->exec.be->fakequant_q8(s->taps + (size_t)rows[i] * width, (int)width, s->xq + (size_t)i * width);
    mdl_linear_bf16(&s->m->exec, &ck->main_proj, s->xq, width, n, s->u, d);
    mdl_rms_rows(&s->m->exec, s->u, d, ck->main_norm, cfg->hidden, n, s->u, d);
    mdl_fakequant_q8_rows(&s->m->exec, s->u, d, cfg->hidden, n, s->xq, d);
    for (int k = 0; k < cfg->n_draft; k++)
        project_window(s, cfg->n_layers + k, &ck->draft[k], rows, n);
}

/* ---- compressor ---- */

/* The raw (kv, gate) of the token before the row: in this step, or kept by the sequence. */
static const float *partner_of(const struct mdl_step *s, int source, int row)
{
    const struct mdl_segment *seg = &s->segment[s->row_segment[row]];
    int pos = s->row_pos[row];
    return pos > seg->start ? tail_row(s, source, row - 1) : mdl_seq_tail(seg->seq, source, pos - 1);
}

static void pool_pair(const float *a, const float *b, int d, uint16_t *out)
{
    for (int c = 0; c < d; c++) {
        float ga = a[d + c], gb = b[d + c], top = ga > gb ? ga : gb;
        float ea = mdl_expf(ga - top), eb = mdl_expf(gb - top), sum = ea + eb;
        out[c] = mdl_to_bf16(ea / sum * a[c] + eb / sum * b[c]);
    }
}

/* Stores row j of the source: the index key from the plain latent, the main row from a rotated copy of it. */
static void store_global_row(struct mdl_step *s, const struct mdl_block *b, const struct mdl_seq *seq, int source,
                             int j, int ratio, const uint16_t *latent, uint16_t *key)
{
    const struct mdl_config *cfg = s->m->cfg;
    struct mdl_rope_angle angle;
    mdl_rope_angle_at(&s->m->rope, MDL_ROPE_YARN, (int64_t)j * ratio, &angle);
    mdl_rms_row(s->m->exec.be, key, b->idx_k_norm, cfg->index_dim, cfg->rms_eps, key);
    mdl_rope_rotate(&s->m->rope, &angle, false, cfg->index_dim, key);
    mdl_quant_q4i(key, cfg->index_dim, mdl_seq_index_codes(seq, source, j), mdl_seq_index_scales(seq, source, j));
    uint16_t *rotated = s->scratch[0].keys;
    memcpy(rotated, latent, (size_t)cfg->head_dim * sizeof *rotated);
    mdl_rope_rotate(&s->m->rope, &angle, false, cfg->head_dim, rotated);
    uint8_t *main = mdl_seq_main_row(seq, source, j);
    mdl_quant_q4k(rotated, cfg->head_dim, main, main + cfg->head_dim / 2);
}

/* Global rows of a source layer for step rows; s->u holds their normed attention input (bf16, not quantised). */
static void compress(struct mdl_step *s, int layer, const struct mdl_block *b, const int *rows, int n)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_exec *ex = &s->m->exec;
    const struct mdl_layer_role *role = role_of(s, layer);
    int source = role->kv_source, ratio = role->ratio, d = cfg->head_dim, groups = 0, writes = 0;
    for (int i = 0; i < n; i++)
        writes += s->row_pos[rows[i]] >= s->segment[s->row_segment[rows[i]]].write_from;
    if (ratio == 1 && !writes)
        return; /* a replayed tail: its rows were written by the bridge */
    if (ratio > 1) {
        float *raw = tail_row(s, source, 0);
        size_t ld = 2 * (size_t)d;
        /* Active rows are not always consecutive, so each run of them gets its own call. */
        for (int i = 0; i < n;) {
            int run = 1;
            while (i + run < n && rows[i + run] == rows[i] + run)
                run++;
            const uint16_t *x = s->u + (size_t)i * (size_t)cfg->hidden;
            mdl_linear_f32(ex, &b->comp_wkv, x, (size_t)cfg->hidden, run, raw + (size_t)rows[i] * ld, ld);
            mdl_linear_f32(ex, &b->comp_wgate, x, (size_t)cfg->hidden, run, raw + (size_t)rows[i] * ld + d, ld);
            i += run;
        }
    } else {
        mdl_linear_bf16(ex, &b->comp_wkv, s->u, (size_t)cfg->hidden, n, s->latent, (size_t)d);
    }
    int *of = s->group_row;
    for (int i = 0; i < n; i++) {
        int pos = s->row_pos[rows[i]];
        if (pos < s->segment[s->row_segment[rows[i]]].write_from || (pos + 1) % ratio)
            continue;
        uint16_t *latent = s->latent + (size_t)groups * (size_t)d;
        if (ratio > 1)
            pool_pair(partner_of(s, source, rows[i]), tail_row(s, source, rows[i]), d, latent);
        else
            memmove(latent, s->latent + (size_t)i * (size_t)d, (size_t)d * sizeof *latent);
        of[groups++] = rows[i];
    }
    mdl_rms_rows(ex, s->latent, (size_t)d, b->comp_norm, d, groups, s->latent, (size_t)d);
    mdl_linear_bf16(ex, &b->idx_wk, s->latent, (size_t)d, groups, s->kv, (size_t)cfg->index_dim);
    for (int g = 0; g < groups; g++)
        store_global_row(s, b, s->segment[s->row_segment[of[g]]].seq, source, s->row_pos[of[g]] / ratio, ratio,
                         s->latent + (size_t)g * (size_t)d, s->kv + (size_t)g * (size_t)cfg->index_dim);
}

void mdl_attn_bridge(struct mdl_step *s, int layer, const int *rows, int n)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_block *b = mdl_step_block(s, layer);
    mdl_fakequant_q8_rows(&s->m->exec, s->u, (size_t)cfg->hidden, cfg->hidden, n, s->xq, (size_t)cfg->hidden);
    project_window(s, layer, b, rows, n);
    compress(s, layer, b, rows, n);
}

static void index_query_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct attn_job *j = ctx;
    struct mdl_step *s = j->s;
    const struct mdl_config *cfg = s->m->cfg;
    float scale = (float)(1.0 / sqrt((double)cfg->index_dim) / sqrt((double)cfg->index_heads));
    for (int i = begin; i < end; i++) {
        for (int h = 0; h < cfg->index_heads; h++) {
            uint16_t *q = s->qi + ((size_t)i * (size_t)cfg->index_heads + (size_t)h) * (size_t)cfg->index_dim;
            uint8_t codes[MDL_MAX_INDEX_DIM / 2], scales[MDL_MAX_INDEX_DIM / 32];
            mdl_rope_rotate(&s->m->rope, angle_of(s, j->layer, j->rows[i]), false, cfg->index_dim, q);
            mdl_quant_q4i(q, cfg->index_dim, codes, scales);
            mdl_dequant_q4i(codes, scales, cfg->index_dim, q);
        }
        for (int h = 0; h < cfg->index_heads; h++) {
            float *w = &s->wt[(size_t)i * (size_t)cfg->index_heads + (size_t)h];
            *w = mdl_round_bf16(*w) * scale;
        }
    }
}

void mdl_attn_project(struct mdl_step *s, int layer)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_exec *ex = &s->m->exec;
    const struct mdl_block *b = mdl_step_block(s, layer);
    int n = s->n_active;
    size_t d = (size_t)cfg->hidden, ql = (size_t)cfg->q_lora, qw = (size_t)cfg->n_heads * (size_t)cfg->head_dim;
    struct attn_job job = {s, layer, s->active, b, 0};
    mdl_fakequant_q8_rows(ex, s->u, d, cfg->hidden, n, s->xq, d);
    mdl_linear_bf16(ex, &b->wq_a, s->xq, d, n, s->qr, ql);
    project_window(s, layer, b, s->active, n);
    mdl_rms_rows(ex, s->qr, ql, b->q_norm, cfg->q_lora, n, s->qr, ql);
    mdl_fakequant_q8_rows(ex, s->qr, ql, cfg->q_lora, n, s->xq, ql);
    mdl_linear_bf16(ex, &b->wq_b, s->xq, ql, n, s->q, qw);
    mdl_team_run(s->m->team, n, 1, rope_query_items, &job);
    if (b->idx_wq_b.data) {
        size_t iw = (size_t)cfg->index_heads * (size_t)cfg->index_dim;
        mdl_linear_bf16(ex, &b->idx_wq_b, s->xq, ql, n, s->qi, iw);
        mdl_linear_f32(ex, &b->idx_weights, s->u, d, n, s->wt, (size_t)cfg->index_heads);
        mdl_team_run(s->m->team, n, 1, index_query_items, &job);
    }
    if (b->comp_wkv.data)
        compress(s, layer, b, s->active, n);
}

/* ---- attention ---- */

void mdl_attn_core(const struct mdl_backend *be, const uint16_t *q, const uint16_t *keys, int n, int dim,
                   const float *sink, int h0, int h1, float *prob, uint16_t *o)
{
    float scale = (float)(1.0 / sqrt((double)dim)), den[MDL_ATTN_HEADS];
    for (int h = h0; h < h1; h += MDL_ATTN_HEADS) {
        int heads = h1 - h < MDL_ATTN_HEADS ? h1 - h : MDL_ATTN_HEADS;
        be->dots(q + (size_t)h * (size_t)dim, heads, keys, n, dim, prob, (size_t)n);
        for (int i = 0; i < heads; i++) {
            float top;
            den[i] = be->softmax(prob + (size_t)i * (size_t)n, n, scale, &top);
            den[i] += mdl_expf(sink[h + i] - top);
        }
        be->values(prob, (size_t)n, den, heads, keys, n, dim, o + (size_t)h * (size_t)dim);
    }
}

/* Window keys of a row, in position order: from the sequence's ring below the segment, from this step inside it. A
 * draft row sees the whole ring of committed positions and every row of its own block. */
static int gather_window(const struct mdl_step *s, int layer, int row, uint16_t *keys)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_segment *seg = &s->segment[s->row_segment[row]];
    int d = cfg->head_dim, n = 0;
    int last = seg->draft ? seg->start - 1 : s->row_pos[row];
    int lo = seg->draft ? seg->seq->draft_lo : seg->seq->window_lo[layer];
    lo = last - cfg->window + 1 > lo ? last - cfg->window + 1 : lo;
    int end = seg->draft ? seg->start + seg->n - 1 : last;
    for (int p = lo; p <= end; p++, n++) {
        const uint8_t *kv = p >= seg->start ? window_row(s, layer, seg->first_row + p - seg->start)
                            : seg->draft    ? mdl_seq_draft_row(seg->seq, layer - cfg->n_layers, p)
                                            : mdl_seq_ring_row(seg->seq, layer, p);
        s->m->exec.be->dequant_q8(kv, kv + d, d, keys + (size_t)n * (size_t)d);
    }
    return n;
}

static int gather_selected(const struct mdl_step *s, int layer, int row, uint16_t *keys)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_seq *seq = s->segment[s->row_segment[row]].seq;
    int source = role_of(s, layer)->kv_source, d = cfg->head_dim;
    if (source < 0)
        return 0;
    const int32_t *sel = s->sel + (size_t)row * (size_t)cfg->index_topk;
    for (int i = 0; i < s->sel_n[row]; i++) {
        const uint8_t *kv = mdl_seq_main_row(seq, source, sel[i]);
        s->m->exec.be->dequant_q4k(kv, kv + d / 2, d, keys + (size_t)i * (size_t)d);
    }
    return s->sel_n[row];
}

static void attend_items(void *ctx, int begin, int end, int thread)
{
    const struct attn_job *j = ctx;
    struct mdl_step *s = j->s;
    const struct mdl_config *cfg = s->m->cfg;
    struct mdl_scratch *t = &s->scratch[thread];
    int groups = (cfg->n_heads + j->head_group - 1) / j->head_group, have = -1, n = 0;
    for (int item = begin; item < end; item++) {
        int i = item / groups, h0 = item % groups * j->head_group;
        int h1 = h0 + j->head_group < cfg->n_heads ? h0 + j->head_group : cfg->n_heads;
        int row = j->rows[i];
        if (have != i) {
            n = gather_window(s, j->layer, row, t->keys);
            n += gather_selected(s, j->layer, row, t->keys + (size_t)n * (size_t)cfg->head_dim);
            have = i;
        }
        uint16_t *q = s->q + (size_t)i * (size_t)cfg->n_heads * (size_t)cfg->head_dim;
        mdl_attn_core(s->m->exec.be, q, t->keys, n, cfg->head_dim, j->b->attn_sink, h0, h1, t->prob, q);
        for (int h = h0; h < h1; h++)
            mdl_rope_rotate(&s->m->rope, angle_of(s, j->layer, row), true, cfg->head_dim,
                            q + (size_t)h * (size_t)cfg->head_dim);
    }
}

/* Grouped low-rank output: wo_a takes bf16 input as it is, whatever its storage; wo_b quantises. */
static void project_output(struct mdl_step *s, const struct mdl_block *b)
{
    const struct mdl_config *cfg = s->m->cfg;
    size_t width = (size_t)cfg->n_heads * (size_t)cfg->head_dim, inner = (size_t)cfg->o_groups * (size_t)cfg->o_lora;
    for (int g = 0; g < cfg->o_groups; g++) {
        struct mdl_linear part = b->wo_a;
        size_t rows = (size_t)g * (size_t)cfg->o_lora, unit = part.kind == MDL_W_FP8 ? 1 : sizeof(uint16_t);
        part.n = cfg->o_lora;
        part.data = (const uint8_t *)part.data + rows * (size_t)part.k * unit;
        if (part.scale)
            part.scale += rows / 32 * ((size_t)part.k / 32);
        mdl_linear_bf16(&s->m->exec, &part, s->q + (size_t)g * (size_t)part.k, width, s->n_active, s->wide + rows,
                        inner);
    }
    mdl_fakequant_q8_rows(&s->m->exec, s->wide, inner, (int)inner, s->n_active, s->xq, inner);
    mdl_linear_bf16(&s->m->exec, &b->wo_b, s->xq, inner, s->n_active, s->out, (size_t)cfg->hidden);
}

void mdl_attn_attend(struct mdl_step *s, int layer)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_block *b = mdl_step_block(s, layer);
    if (b->idx_wq_b.data) {
        mdl_index_select(s, layer);
        if (s->hooks.point)
            s->hooks.point(s->hooks.ctx, s, MDL_HOOK_SELECTED, layer);
    }
    int team = mdl_team_size(s->m->team);
    int group = s->n_active >= 2 * team ? cfg->n_heads : (cfg->n_heads + team - 1) / team;
    int groups = (cfg->n_heads + group - 1) / group;
    mdl_team_run(s->m->team, s->n_active * groups, 1, attend_items, &(struct attn_job){s, layer, s->active, b, group});
    project_output(s, b);
}
