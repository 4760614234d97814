#include "model/step.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/carve.h"
#include "model/modules.h"
#include "model/numerics.h"

/* ---- memory ---- */

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void carve_rows(struct mdl_step *s, struct mdl_carver *c)
{
    const struct mdl_config *cfg = s->m->cfg;
    size_t n = (size_t)s->capacity, d = (size_t)cfg->hidden;
    size_t layers = (size_t)(cfg->n_layers + cfg->n_draft);
    s->segment = mdl_carve(c, n, sizeof *s->segment);
    s->draft_ids = mdl_carve(c, n * MDL_MAX_BLOCK, sizeof(int32_t));
    s->row_segment = mdl_carve(c, n, sizeof(int));
    s->row_pos = mdl_carve(c, n, sizeof(int));
    s->active = mdl_carve(c, n, sizeof(int));
    s->group_row = mdl_carve(c, n, sizeof(int));
    s->logits_row = mdl_carve(c, n, sizeof(int));
    s->x = mdl_carve(c, n * MDL_HC * d, sizeof(uint16_t));
    s->pre = mdl_carve(c, n * MDL_HC, sizeof(float));
    s->sel = mdl_carve(c, n * (size_t)cfg->index_topk, sizeof(int32_t));
    s->sel_n = mdl_carve(c, n, sizeof(int));
    s->cand = mdl_carve(c, n * (size_t)cfg->candidate_blocks, sizeof(int32_t));
    s->cand_n = mdl_carve(c, n, sizeof(int));
    s->taps = mdl_carve(c, n * (size_t)cfg->n_taps * d, sizeof(uint16_t));
    s->window = mdl_carve(c, n * layers, s->swa_row);
    s->tail = mdl_carve(c, n * (size_t)cfg->n_kv_sources * 2 * (size_t)cfg->head_dim, sizeof(float));
}

static void carve_layer(struct mdl_step *s, struct mdl_carver *c)
{
    const struct mdl_config *cfg = s->m->cfg;
    size_t n = (size_t)s->capacity, d = (size_t)cfg->hidden;
    size_t qw = (size_t)cfg->n_heads * (size_t)cfg->head_dim, inner = (size_t)cfg->o_groups * (size_t)cfg->o_lora;
    size_t ngram = (size_t)((cfg->engram_ngram - 1) * cfg->engram_heads * cfg->engram_dim);
    size_t experts = (size_t)(cfg->n_experts > cfg->draft_experts ? cfg->n_experts : cfg->draft_experts);
    size_t k = (size_t)(cfg->topk_experts > cfg->draft_topk ? cfg->topk_experts : cfg->draft_topk);
    if (!cfg->n_engram)
        ngram = 0;
    for (int t = 0; t < 2; t++)
        s->angle[t] = mdl_carve(c, n, sizeof(struct mdl_rope_angle));
    s->mix_pre = mdl_carve(c, n * 4, sizeof(float));
    s->mix_post = mdl_carve(c, n * 4, sizeof(float));
    s->mix_comb = mdl_carve(c, n * 16, sizeof(float));
    s->u = mdl_carve(c, n * d, sizeof(uint16_t));
    s->xq = mdl_carve(
        c, n * max_size(max_size(max_size(d, (size_t)cfg->q_lora), max_size(inner, ngram)), (size_t)cfg->n_taps * d),
        sizeof(uint16_t));
    s->qr = mdl_carve(c, n * (size_t)cfg->q_lora, sizeof(uint16_t));
    s->q = mdl_carve(c, n * max_size(qw, cfg->n_engram ? 5 * d : 0), sizeof(uint16_t));
    s->kv = mdl_carve(c, n * max_size((size_t)cfg->head_dim, (size_t)cfg->index_dim), sizeof(uint16_t));
    s->latent = mdl_carve(c, n * (size_t)cfg->head_dim, sizeof(uint16_t));
    s->wide = mdl_carve(c, n * max_size(max_size(inner, ngram), d), sizeof(uint16_t));
    s->z = mdl_carve(c, n * experts, sizeof(float));
    s->qi = mdl_carve(c, n * (size_t)cfg->index_heads * (size_t)cfg->index_dim, sizeof(uint16_t));
    s->wt = mdl_carve(c, n * (size_t)cfg->index_heads, sizeof(float));
    s->out = mdl_carve(c, n * d, sizeof(uint16_t));
    s->shared = mdl_carve(c, n * d, sizeof(uint16_t));
    s->ex_codes = mdl_carve(c, n * d, 1);
    s->ex_scales = mdl_carve(c, n * d / 32, 1);
    s->ex_expert = mdl_carve(c, n * k, sizeof(int32_t));
    s->ex_weight = mdl_carve(c, n * k, sizeof(float));
    s->exchange.result = mdl_carve(c, n * k * d, sizeof(uint16_t));
    s->exchange.have = mdl_carve(c, n * k, 1);
    for (int e = 0; e < cfg->n_engram; e++) {
        struct mdl_engram_fetch *f = &s->fetch[e];
        f->slot = e;
        f->columns = (cfg->engram_ngram - 1) * cfg->engram_heads;
        f->row_ids = mdl_carve(c, n * (size_t)f->columns, sizeof(int64_t));
        f->codes = mdl_carve(c, n * ngram, 1);
        f->scales = mdl_carve(c, n * ngram / 32, 1);
        f->have = mdl_carve(c, n * (size_t)f->columns, 1);
    }
}

static void carve_scratch(struct mdl_step *s, struct mdl_carver *c)
{
    const struct mdl_config *cfg = s->m->cfg;
    size_t keys = (size_t)cfg->window + (size_t)cfg->draft_block + (size_t)cfg->index_topk;
    size_t blocks = (size_t)s->max_tokens / (size_t)(cfg->candidate_block_size ? cfg->candidate_block_size : 1) + 1;
    s->scores = mdl_carve(c, s->scores_cap, sizeof(float));
    for (int t = 0; t < mdl_team_size(s->m->team); t++) {
        s->scratch[t].keys = mdl_carve(c, keys * (size_t)cfg->head_dim, sizeof(uint16_t));
        s->scratch[t].prob = mdl_carve(c, MDL_ATTN_HEADS * keys, sizeof(float));
        s->scratch[t].order = mdl_carve(c, (size_t)s->max_tokens + 1, sizeof(uint64_t));
        s->scratch[t].block = mdl_carve(c, blocks, sizeof(float));
    }
}

static void carve_all(struct mdl_step *s, struct mdl_carver *c)
{
    carve_rows(s, c);
    if (s->m->compute) /* nobody computes in this memory */
        return;
    carve_layer(s, c);
    carve_scratch(s, c);
}

int mdl_step_new(struct mdl_model *m, int capacity, int max_tokens, struct mdl_step **out, struct cfg_error *err)
{
    *out = NULL;
    if (capacity < 1 || max_tokens < 1)
        return cfg_error_set(err, EINVAL, "a step of %d rows over %d tokens: both must be positive", capacity,
                             max_tokens);
    struct mdl_step *s = calloc(1, sizeof *s);
    if (!s)
        return cfg_error_set(err, ENOMEM, "step: out of memory");
    s->m = m;
    s->capacity = capacity;
    s->max_tokens = max_tokens;
    s->swa_row = mdl_swa_row_bytes(m->cfg);
    s->scores_cap = max_size((size_t)max_tokens, 1 << 18);
    s->scratch = calloc(m->compute ? 1 : (size_t)mdl_team_size(m->team), sizeof *s->scratch);
    struct mdl_carver c = {NULL, 0};
    if (s->scratch) {
        carve_all(s, &c);
        s->memory = aligned_alloc(MDL_CARVE_ALIGN, c.used);
    }
    if (!s->memory) {
        mdl_step_free(s);
        return cfg_error_set(err, ENOMEM, "step of %d rows needs %zu bytes, more than there are; use fewer rows",
                             capacity, c.used);
    }
    memset(s->memory, 0, c.used);
    c = (struct mdl_carver){s->memory, 0};
    carve_all(s, &c);
    mdl_step_begin(s, NULL);
    *out = s;
    return 0;
}

void mdl_step_free(struct mdl_step *s)
{
    if (!s)
        return;
    free(s->score_dump);
    free(s->logits);
    free(s->scratch);
    free(s->memory);
    free(s);
}

/* ---- building a step ---- */

void mdl_step_begin(struct mdl_step *s, const struct mdl_providers *providers)
{
    s->providers = providers ? providers : &mdl_providers_local;
    s->n_segments = s->n_rows = s->n_active = s->n_logits = 0;
    s->phase = MDL_PHASE_START;
    s->status = 0;
    s->exchange.pending = 0;
    for (int e = 0; e < s->m->cfg->n_engram; e++)
        s->fetch[e].pending = 0;
}

static int check_layers(const struct mdl_step *s, const struct mdl_segment *seg, struct cfg_error *err)
{
    const struct mdl_config *cfg = s->m->cfg;
    int begin = seg->draft ? cfg->n_layers : 0, end = seg->draft ? cfg->n_layers + cfg->n_draft : cfg->n_layers;
    bool at_cut = cfg->cut >= 0 && !seg->draft && seg->layer_begin == cfg->cut;
    bool range = seg->layer_end > seg->layer_begin && seg->layer_end <= end && (seg->layer_begin == begin || at_cut) &&
                 (seg->layer_end == end || seg->layer_end == cfg->cut || s->hooks.point);
    if (!range)
        return cfg_error_set(err, EINVAL,
                             "segment over layers %d to %d: it must begin at the first layer or the cut (%d) "
                             "and end at the cut or the last layer",
                             seg->layer_begin, seg->layer_end, cfg->cut);
    if (seg->n < 1)
        return cfg_error_set(err, EINVAL, "segment of %d rows: it needs at least one", seg->n);
    if (seg->n > s->capacity - s->n_rows)
        return cfg_error_set(err, ENOSPC, "segment of %d rows does not fit: %d of %d rows are taken", seg->n, s->n_rows,
                             s->capacity);
    if (seg->draft && seg->n > cfg->draft_block)
        return cfg_error_set(err, EINVAL, "draft block of %d rows is longer than the model's %d", seg->n,
                             cfg->draft_block);
    if (s->n_segments && s->segment[0].draft != seg->draft)
        return cfg_error_set(err, EINVAL, "draft blocks and backbone rows cannot share a step");
    for (int i = 0; i < s->n_segments; i++)
        if (s->segment[i].seq == seg->seq)
            return cfg_error_set(err, EINVAL, "a sequence cannot be twice in one step");
    return 0;
}

/* Rows go on where the sequence stands, or lie in its past. Hooks may put any state under them. */
static int check_rows(const struct mdl_step *s, const struct mdl_segment *seg, struct cfg_error *err)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_seq *q = seg->seq;
    bool bridge = !seg->draft && cfg->cut > 0 && seg->layer_begin == cfg->cut;
    if (bridge == !!seg->ids)
        return cfg_error_set(err, EINVAL, "segment from layer %d: %s", seg->layer_begin,
                             bridge ? "it takes bridge rows and no ids" : "its ids are missing");
    if (seg->start < 0 || (!bridge && seg->start > q->encoded && !s->hooks.point))
        return cfg_error_set(err, EINVAL, "segment at position %d of a sequence of %d tokens", seg->start, q->encoded);
    int lo = q->encoded - q->params.replay > q->bridge_lo ? q->encoded - q->params.replay : q->bridge_lo;
    if (bridge && (!q->params.replay || seg->start < lo || seg->start + seg->n > q->encoded))
        return cfg_error_set(err, EINVAL, "bridge rows %d to %d are asked for, the sequence holds %d to %d", seg->start,
                             seg->start + seg->n - 1, q->params.replay ? lo : 0,
                             q->params.replay ? q->encoded - 1 : -1);
    if (seg->start + seg->n > s->max_tokens)
        return cfg_error_set(err, ENOSPC, "position %d is beyond the step's %d tokens", seg->start + seg->n,
                             s->max_tokens);
    for (int i = 0; seg->ids && i < seg->n; i++)
        if (seg->ids[i] < 0 || seg->ids[i] >= cfg->vocab_size)
            return cfg_error_set(err, EINVAL, "token id %d is outside the vocabulary of %d", seg->ids[i],
                                 cfg->vocab_size);
    return 0;
}

static int grow_logits(struct mdl_step *s, int rows)
{
    if (rows <= s->logits_cap)
        return 0;
    size_t need = (size_t)rows * (size_t)s->m->cfg->vocab_size * sizeof(float);
    float *p = realloc(s->logits, need);
    if (!p)
        return -ENOMEM;
    s->logits = p;
    s->logits_cap = rows;
    return 0;
}

static int want_scores(struct mdl_step *s)
{
    if (!s->hooks.want_scores || s->score_dump)
        return 0;
    s->score_stride = s->max_tokens;
    s->score_dump = calloc((size_t)s->capacity * (size_t)s->score_stride, sizeof *s->score_dump);
    return s->score_dump ? 0 : -ENOMEM;
}

int mdl_step_add(struct mdl_step *s, const struct mdl_segment *seg, struct cfg_error *err)
{
    int r = check_layers(s, seg, err);
    if (!r)
        r = check_rows(s, seg, err);
    if (!r && want_scores(s))
        r = cfg_error_set(err, ENOMEM, "index scores of %d rows over %d tokens do not fit in memory", s->capacity,
                          s->max_tokens);
    if (!r && !seg->draft)
        r = mdl_seq_reserve(seg->seq, seg->start + seg->n, err);
    if (r)
        return r;
    int wanted = seg->logits_from < seg->n ? seg->n - seg->logits_from : 0;
    if (grow_logits(s, s->n_logits + wanted))
        return cfg_error_set(err, ENOMEM, "logits of %d rows do not fit in memory", s->n_logits + wanted);
    struct mdl_segment *to = &s->segment[s->n_segments];
    *to = *seg;
    to->first_row = s->n_rows;
    for (int i = 0; i < seg->n; i++) {
        int row = s->n_rows++;
        s->row_segment[row] = s->n_segments;
        s->row_pos[row] = seg->start + i;
        s->logits_row[row] = i >= seg->logits_from ? s->n_logits++ : -1;
        for (int t = 0; t < 2 && !s->m->compute; t++)
            mdl_rope_angle_at(&s->m->rope, t, seg->start + i, &s->angle[t][row]);
    }
    s->n_segments++;
    return 0;
}

const struct mdl_block *mdl_step_block(const struct mdl_step *s, int layer)
{
    int n = s->m->cfg->n_layers;
    return layer < n ? &s->m->ck->layers[layer] : &s->m->ck->draft[layer - n];
}

const float *mdl_step_logits(const struct mdl_step *s, int segment, int row)
{
    int at = s->logits_row[s->segment[segment].first_row + row];
    return at < 0 ? NULL : s->logits + (size_t)at * (size_t)s->m->cfg->vocab_size;
}

/* ---- phases ---- */

static void hook(struct mdl_step *s, enum mdl_hook_point at)
{
    if (s->hooks.point)
        s->hooks.point(s->hooks.ctx, s, at, s->layer);
}

static int last_layer(const struct mdl_step *s)
{
    int end = 0;
    for (int i = 0; i < s->n_segments; i++)
        end = s->segment[i].layer_end > end ? s->segment[i].layer_end : end;
    return end;
}

/* Rows that take part in s->layer. Window rows below window_lo do not exist by decree: after an exact restart the first
 * rows of each layer would be wrong, so they stop there. */
static void find_active(struct mdl_step *s)
{
    s->n_active = 0;
    for (int row = 0; row < s->n_rows; row++) {
        const struct mdl_segment *seg = &s->segment[s->row_segment[row]];
        if (s->layer < seg->layer_begin || s->layer >= seg->layer_end)
            continue;
        if (seg->draft || s->row_pos[row] >= seg->seq->window_lo[s->layer])
            s->active[s->n_active++] = row;
    }
}

static void enter_row(struct mdl_step *s, int row)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_segment *seg = &s->segment[s->row_segment[row]];
    size_t d = (size_t)cfg->hidden, streams = MDL_HC * d;
    uint16_t *x = s->x + (size_t)row * streams;
    float *pre = s->pre + (size_t)row * MDL_HC;
    if (!seg->ids) {
        size_t slot = (size_t)(s->row_pos[row] % seg->seq->params.replay);
        memcpy(x, seg->seq->bridge_x + slot * streams, streams * sizeof *x);
        memcpy(pre, seg->seq->bridge_pre + slot * MDL_HC, MDL_HC * sizeof *pre);
        return;
    }
    const uint16_t *embed = s->m->ck->embed + (size_t)seg->ids[row - seg->first_row] * d;
    for (size_t c = 0; c < MDL_HC; c++)
        memcpy(x + c * d, embed, d * sizeof *x);
    pre[0] = 1.0f;
    pre[1] = pre[2] = pre[3] = 0.0f;
}

/* The token at a position: from the segment, or committed; -1 before the beginning. */
static int32_t token_at(const struct mdl_segment *seg, int pos)
{
    return pos < 0 ? -1 : pos >= seg->start ? seg->ids[pos - seg->start] : seg->seq->ids[pos];
}

static int request_engram(struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    for (int e = 0; e < cfg->n_engram; e++) {
        struct mdl_engram_fetch *f = &s->fetch[e];
        f->rows = s->n_rows;
        for (int row = 0; row < s->n_rows; row++) {
            const struct mdl_segment *seg = &s->segment[s->row_segment[row]];
            bool part = !seg->draft && seg->ids && seg->layer_begin <= cfg->engram_layers[e];
            memset(f->have + (size_t)row * (size_t)f->columns, !part, (size_t)f->columns);
            if (!part)
                continue;
            int32_t history[MDL_MAX_ENGRAM];
            for (int k = 0; k < cfg->engram_ngram; k++)
                history[k] = token_at(seg, s->row_pos[row] - k);
            mdl_engram_rows(cfg, &s->m->ck->engram[e], s->m->ck->engram_map, history,
                            (int64_t *)f->row_ids + (size_t)row * (size_t)f->columns);
            f->pending += f->columns;
        }
        int r = f->pending ? s->providers->engram(s->providers->ctx, s, f) : 0;
        if (r)
            return r;
    }
    return 0;
}

static int phase_start(struct mdl_step *s)
{
    if (!s->n_rows)
        return MDL_PHASE_DONE;
    s->layer = s->segment[0].layer_begin;
    for (int i = 1; i < s->n_segments; i++)
        s->layer = s->segment[i].layer_begin < s->layer ? s->segment[i].layer_begin : s->layer;
    for (int row = 0; row < s->n_rows; row++)
        enter_row(s, row);
    int r = request_engram(s);
    if (r)
        return r;
    find_active(s);
    hook(s, MDL_HOOK_LAYER);
    return MDL_PHASE_ENGRAM;
}

static int phase_engram(struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    int slot = s->layer < cfg->n_layers ? cfg->layer[s->layer].engram : -1;
    if (slot < 0)
        return MDL_PHASE_PROJECT;
    struct mdl_engram_fetch *f = &s->fetch[slot];
    if (f->pending)
        return -EAGAIN;
    hook(s, MDL_HOOK_ENGRAM);
    size_t width = (size_t)f->columns * (size_t)cfg->engram_dim;
    for (int i = 0; i < s->n_active; i++) {
        size_t row = (size_t)s->active[i];
        mdl_dequant_q8(f->codes + row * width, f->scales + row * width / 32, (int)width, s->wide + (size_t)i * width);
    }
    mdl_engram_apply(&s->m->exec, &s->m->ck->engram[slot], s->wide, s->active, s->n_active, s->xq, s->q, NULL, NULL,
                     s->x);
    return MDL_PHASE_PROJECT;
}

/* taps: mean over the four streams entering the layer. */
static void take_taps(struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    size_t d = (size_t)cfg->hidden;
    for (int t = 0; t < cfg->n_taps; t++) {
        if (cfg->tap_layers[t] != s->layer)
            continue;
        for (int i = 0; i < s->n_active; i++) {
            size_t row = (size_t)s->active[i];
            const uint16_t *x = s->x + row * MDL_HC * d;
            uint16_t *to = s->taps + (row * (size_t)cfg->n_taps + (size_t)t) * d;
            for (size_t k = 0; k < d; k++) {
                float sum = (mdl_from_bf16(x[k]) + mdl_from_bf16(x[d + k])) + mdl_from_bf16(x[2 * d + k]);
                to[k] = mdl_to_bf16((sum + mdl_from_bf16(x[3 * d + k])) * 0.25f);
            }
        }
        hook(s, MDL_HOOK_TAPS);
    }
}

static int phase_project(struct mdl_step *s)
{
    const struct mdl_exec *ex = &s->m->exec;
    const struct mdl_block *b = mdl_step_block(s, s->layer);
    size_t d = (size_t)s->m->cfg->hidden;
    take_taps(s);
    mdl_mhc_mix(ex, &b->hc_attn, s->x, s->active, s->n_active, s->mix_pre, s->mix_post, s->mix_comb);
    mdl_mhc_collapse(ex, s->x, s->pre, true, s->active, s->n_active, s->u);
    mdl_rms_rows(ex, s->u, d, b->attn_norm, (int)d, s->n_active, s->u, d);
    hook(s, MDL_HOOK_ATTN_IN);
    mdl_attn_project(s, s->layer);
    return MDL_PHASE_ATTEND;
}

static int kv_present(struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    if (s->layer >= cfg->n_layers || cfg->layer[s->layer].kv_source < 0)
        return 1;
    const struct mdl_layer_role *role = &cfg->layer[s->layer];
    for (int i = 0; i < s->n_segments; i++) {
        const struct mdl_segment *seg = &s->segment[i];
        /* After an exact restart the first rows end before this layer; they need none of its rows. */
        if (s->layer < seg->layer_begin || s->layer >= seg->layer_end ||
            (!seg->draft && seg->start + seg->n <= seg->seq->window_lo[s->layer]))
            continue;
        int r = s->providers->kv(s->providers->ctx, s, seg->seq, role->kv_source, (seg->start + seg->n) / role->ratio);
        if (r <= 0)
            return r;
    }
    return 1;
}

static int phase_attend(struct mdl_step *s)
{
    const struct mdl_exec *ex = &s->m->exec;
    int r = kv_present(s);
    if (r <= 0)
        return r ? r : -EAGAIN;
    mdl_attn_attend(s, s->layer);
    hook(s, MDL_HOOK_ATTN_OUT);
    mdl_mhc_expand(ex, s->out, s->mix_post, s->mix_comb, s->active, s->n_active, s->x);
    hook(s, MDL_HOOK_MID);
    return MDL_PHASE_ROUTE;
}

static int phase_route(struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_exec *ex = &s->m->exec;
    const struct mdl_block *b = mdl_step_block(s, s->layer);
    size_t d = (size_t)cfg->hidden;
    int n = s->n_active;
    /* The collapse uses the attention half's pre; the FFN half's own is carried to the next layer. */
    mdl_mhc_collapse(ex, s->x, s->mix_pre, false, s->active, n, s->u);
    mdl_mhc_mix(ex, &b->hc_ffn, s->x, s->active, n, s->mix_pre, s->mix_post, s->mix_comb);
    for (int i = 0; i < n; i++)
        memcpy(s->pre + (size_t)s->active[i] * MDL_HC, s->mix_pre + i * 4, 4 * sizeof(float));
    mdl_rms_rows(ex, s->u, d, b->ffn_norm, cfg->hidden, n, s->u, d);
    struct mdl_exchange *x = &s->exchange;
    x->layer = s->layer;
    x->rows = n;
    x->k = s->layer < cfg->n_layers ? cfg->topk_experts : cfg->draft_topk;
    mdl_moe_route(ex, b, s->u, n, x->k, s->z, s->ex_expert, s->ex_weight);
    for (int i = 0; i < n; i++)
        ex->be->quant_q8(s->u + (size_t)i * d, cfg->hidden, s->ex_codes + (size_t)i * d,
                         s->ex_scales + (size_t)i * d / 32);
    x->codes = s->ex_codes;
    x->scales = s->ex_scales;
    x->expert = s->ex_expert;
    x->weight = s->ex_weight;
    x->pending = n * x->k;
    memset(x->have, 0, (size_t)x->pending);
    hook(s, MDL_HOOK_ROUTED);
    int r = x->pending ? s->providers->experts(s->providers->ctx, s, x) : 0;
    if (r)
        return r;
    mdl_fakequant_q8_rows(ex, s->u, d, cfg->hidden, n, s->xq, d);
    r = mdl_moe_expert(ex, &b->shared, s->xq, n, NULL, s->shared);
    return r ? r : MDL_PHASE_COMBINE;
}

static int phase_combine(struct mdl_step *s)
{
    if (s->exchange.pending)
        return -EAGAIN;
    mdl_moe_combine(&s->m->exec, s->exchange.result, s->shared, s->n_active, s->exchange.k, s->out);
    hook(s, MDL_HOOK_FFN_OUT);
    mdl_mhc_expand(&s->m->exec, s->out, s->mix_post, s->mix_comb, s->active, s->n_active, s->x);
    s->layer++;
    if (s->layer >= last_layer(s)) {
        hook(s, MDL_HOOK_LEFT);
        return MDL_PHASE_LEAVE;
    }
    find_active(s);
    hook(s, MDL_HOOK_LAYER);
    return MDL_PHASE_ENGRAM;
}

/* Rows that end at the cut still owe the cut layer's global rows. */
static int phase_leave(struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_exec *ex = &s->m->exec;
    size_t d = (size_t)cfg->hidden;
    int n = 0;
    for (int row = 0; row < s->n_rows; row++) {
        const struct mdl_segment *seg = &s->segment[s->row_segment[row]];
        if (!seg->draft && seg->layer_end == cfg->cut && cfg->cut < cfg->n_layers)
            s->group_row[n++] = row;
    }
    if (!n)
        return MDL_PHASE_HEAD;
    memcpy(s->active, s->group_row, (size_t)n * sizeof *s->active);
    s->n_active = n;
    mdl_mhc_collapse(ex, s->x, s->pre, true, s->active, n, s->u);
    mdl_rms_rows(ex, s->u, d, s->m->ck->layers[cfg->cut].attn_norm, cfg->hidden, n, s->u, d);
    mdl_attn_bridge(s, cfg->cut, s->active, n);
    return MDL_PHASE_HEAD;
}

static int phase_head(struct mdl_step *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    int n = 0;
    for (int i = 0; i < s->n_segments && cfg->n_draft; i++) {
        const struct mdl_segment *seg = &s->segment[i];
        if (seg->draft || seg->layer_end != cfg->n_layers)
            continue;
        int skip = seg->n > seg->seq->draft_ring_rows ? seg->n - seg->seq->draft_ring_rows : 0;
        for (int k = skip; k < seg->n; k++)
            s->group_row[n++] = seg->first_row + k;
    }
    if (n)
        mdl_draft_ring_rows(s, s->group_row, n);
    n = 0;
    for (int row = 0; row < s->n_rows; row++)
        if (s->logits_row[row] >= 0)
            s->group_row[n++] = row;
    if (n) {
        bool draft = s->segment[0].draft;
        mdl_mhc_collapse(&s->m->exec, s->x, s->pre, true, s->group_row, n, s->out);
        mdl_head_logits(&s->m->exec, s->m->ck, draft ? s->m->ck->draft_norm : s->m->ck->norm, s->out, n, s->u,
                        s->logits);
    }
    return MDL_PHASE_DONE;
}

void mdl_head_logits(const struct mdl_exec *ex, const struct mdl_checkpoint *ck, const uint16_t *norm,
                     const uint16_t *y, int n, uint16_t *normed, float *logits)
{
    size_t d = (size_t)ex->cfg->hidden;
    mdl_rms_rows(ex, y, d, norm, ex->cfg->hidden, n, normed, d);
    mdl_linear_f32(ex, &ck->head, normed, d, n, logits, (size_t)ex->cfg->vocab_size);
}

static int advance_elsewhere(struct mdl_step *s)
{
    int r = s->m->compute->advance(s->m->compute->ctx, s);
    if (r < 0)
        s->status = r;
    else if (r == MDL_STEP_DONE)
        s->phase = MDL_PHASE_DONE;
    return r;
}

int mdl_step_advance(struct mdl_step *s)
{
    static int (*const run[])(struct mdl_step *) = {
        [MDL_PHASE_START] = phase_start,   [MDL_PHASE_ENGRAM] = phase_engram, [MDL_PHASE_PROJECT] = phase_project,
        [MDL_PHASE_ATTEND] = phase_attend, [MDL_PHASE_ROUTE] = phase_route,   [MDL_PHASE_COMBINE] = phase_combine,
        [MDL_PHASE_LEAVE] = phase_leave,   [MDL_PHASE_HEAD] = phase_head,
    };
    if (s->status)
        return s->status;
    if (s->phase == MDL_PHASE_DONE)
        return MDL_STEP_DONE;
    if (s->m->compute)
        return advance_elsewhere(s);
    int r = run[s->phase](s);
    if (r == -EAGAIN)
        return MDL_STEP_WAIT;
    if (r < 0)
        return s->status = r;
    s->phase = (enum mdl_phase)r;
    return s->phase == MDL_PHASE_DONE ? MDL_STEP_DONE : MDL_STEP_MORE;
}

int mdl_step_run(struct mdl_step *s)
{
    int r;
    do
        r = mdl_step_advance(s);
    while (r == MDL_STEP_MORE);
    return r;
}

/* ---- commit ---- */

static void commit_window(struct mdl_step *s, const struct mdl_segment *seg, int layer, int accept)
{
    const struct mdl_config *cfg = s->m->cfg;
    bool draft = layer >= cfg->n_layers;
    int keep = draft ? seg->seq->draft_ring_rows : seg->seq->ring_rows[layer];
    int lo = draft ? 0 : seg->seq->window_lo[layer];
    for (int i = accept > keep ? accept - keep : 0; i < accept; i++) {
        int pos = seg->start + i;
        if (pos < lo)
            continue;
        const uint8_t *from =
            s->window + ((size_t)layer * (size_t)s->capacity + (size_t)(seg->first_row + i)) * s->swa_row;
        uint8_t *to =
            draft ? mdl_seq_draft_row(seg->seq, layer - cfg->n_layers, pos) : mdl_seq_ring_row(seg->seq, layer, pos);
        memcpy(to, from, s->swa_row);
    }
}

static void commit_tails(struct mdl_step *s, const struct mdl_segment *seg, int accept)
{
    const struct mdl_config *cfg = s->m->cfg;
    size_t width = 2 * (size_t)cfg->head_dim;
    for (int k = 0; k < cfg->n_kv_sources; k++) {
        if (cfg->kv_source_ratio[k] == 1 || cfg->kv_sources[k] < seg->layer_begin ||
            cfg->kv_sources[k] >= seg->layer_end)
            continue;
        for (int i = accept > seg->seq->tail_rows ? accept - seg->seq->tail_rows : 0; i < accept; i++)
            memcpy(mdl_seq_tail(seg->seq, k, seg->start + i),
                   s->tail + ((size_t)k * (size_t)s->capacity + (size_t)(seg->first_row + i)) * width,
                   width * sizeof(float));
    }
}

static void commit_bridge(struct mdl_step *s, const struct mdl_segment *seg, int accept)
{
    struct mdl_seq *q = seg->seq;
    size_t streams = MDL_HC * (size_t)s->m->cfg->hidden;
    for (int i = accept > q->params.replay ? accept - q->params.replay : 0; i < accept; i++) {
        size_t slot = (size_t)((seg->start + i) % q->params.replay), row = (size_t)(seg->first_row + i);
        memcpy(q->bridge_x + slot * streams, s->x + row * streams, streams * sizeof *q->bridge_x);
        memcpy(q->bridge_pre + slot * MDL_HC, s->pre + row * MDL_HC, MDL_HC * sizeof *q->bridge_pre);
    }
}

void mdl_step_commit(struct mdl_step *s, int segment, int accept)
{
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_segment *seg = &s->segment[segment];
    struct mdl_seq *q = seg->seq;
    if (seg->draft)
        return;
    bool bridge = seg->layer_end == cfg->cut;
    for (int l = seg->layer_begin; l < seg->layer_end; l++)
        commit_window(s, seg, l, accept);
    if (bridge && q->params.full_bridge)
        commit_window(s, seg, cfg->cut, accept);
    commit_tails(s, seg, accept);
    int end = seg->start + accept;
    q->highest = end > q->highest ? end : q->highest;
    if (seg->layer_begin == 0) {
        memcpy(q->ids + seg->start, seg->ids, (size_t)accept * sizeof *q->ids);
        q->encoded = end;
    }
    if (bridge && q->params.replay)
        commit_bridge(s, seg, accept);
    if (seg->layer_end == cfg->n_layers) {
        for (int k = 0; k < cfg->n_draft; k++)
            commit_window(s, seg, cfg->n_layers + k, accept);
        q->len = end;
    }
}

/* ---- local providers ---- */

static int local_experts(void *ctx, struct mdl_step *s, struct mdl_exchange *x)
{
    (void)ctx;
    return mdl_experts_compute(s->m, x, 0, mdl_step_block(s, x->layer)->n_experts);
}

static int local_engram(void *ctx, struct mdl_step *s, struct mdl_engram_fetch *f)
{
    (void)ctx;
    const struct mdl_engram *e = &s->m->ck->engram[f->slot];
    size_t dim = (size_t)s->m->cfg->engram_dim;
    for (int i = 0; i < f->rows * f->columns; i++)
        if (!f->have[i])
            mdl_engram_deliver(f, i / f->columns, i % f->columns, (int)dim, e->table + (size_t)f->row_ids[i] * dim,
                               e->table_scale + (size_t)f->row_ids[i] * (dim / 32));
    return 0;
}

static int local_kv(void *ctx, struct mdl_step *s, const struct mdl_seq *seq, int source, int rows)
{
    (void)ctx, (void)s, (void)seq, (void)source, (void)rows;
    return 1;
}

const struct mdl_providers mdl_providers_local = {NULL, local_experts, local_engram, local_kv};
