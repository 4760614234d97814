#include "model/kv.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "model/carve.h"

enum { DEFAULT_BLOCK = 256, PAGE = 4096 };

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

int mdl_kv_layout_init(const struct mdl_config *cfg, int block_tokens, struct mdl_kv_layout *out, struct cfg_error *err)
{
    *out = (struct mdl_kv_layout){.block_tokens = block_tokens ? block_tokens : DEFAULT_BLOCK};
    if (out->block_tokens < 2 || out->block_tokens % 2)
        return cfg_error_set(err, EINVAL, "block of %d tokens: use an even number of at least 2", out->block_tokens);
    out->main_row = mdl_main_row_bytes(cfg);
    out->index_code_row = (size_t)cfg->index_dim / 2;
    out->index_scale_row = (size_t)cfg->index_dim / 32;
    out->swa_row = mdl_swa_row_bytes(cfg);
    for (int s = 0; s < cfg->n_kv_sources; s++) {
        struct mdl_kv_extent *e = &out->source[s];
        size_t rows = (size_t)(out->block_tokens / cfg->kv_source_ratio[s]);
        e->rows = (int)rows;
        e->offset = out->block_bytes;
        e->index_codes = rows * out->main_row;
        e->index_scales = e->index_codes + rows * out->index_code_row;
        e->bytes = round_up(e->index_scales + rows * out->index_scale_row, PAGE);
        out->block_bytes += e->bytes;
    }
    return 0;
}

void mdl_seq_fixed_bytes(const struct mdl_config *cfg, int rollback, size_t *window_bytes, size_t *rollback_bytes)
{
    size_t per_row = mdl_swa_row_bytes(cfg) * (size_t)(cfg->n_layers + cfg->n_draft);
    size_t tail = 0;
    for (int s = 0; s < cfg->n_kv_sources; s++)
        if (cfg->kv_source_ratio[s] > 1)
            tail += 2 * (size_t)cfg->head_dim * sizeof(float);
    *window_bytes = per_row * (size_t)cfg->window + tail;
    *rollback_bytes = (per_row + tail) * (size_t)rollback + tail;
}

static void carve_all(struct mdl_seq *s, struct mdl_carver *c)
{
    const struct mdl_config *cfg = s->cfg;
    size_t row = s->layout.swa_row;
    for (int l = 0; l < cfg->n_layers; l++)
        s->ring[l] = mdl_carve(c, 1, row * (size_t)s->ring_rows[l]);
    for (int k = 0; k < cfg->n_draft; k++)
        s->draft_ring[k] = mdl_carve(c, 1, row * (size_t)s->draft_ring_rows);
    for (int k = 0; k < cfg->n_kv_sources; k++)
        if (cfg->kv_source_ratio[k] > 1)
            s->tail[k] = mdl_carve(c, 1, 2 * (size_t)cfg->head_dim * sizeof(float) * (size_t)s->tail_rows);
    if (s->params.replay) {
        s->bridge_x = mdl_carve(c, 1, (size_t)s->params.replay * MDL_HC * (size_t)cfg->hidden * sizeof(uint16_t));
        s->bridge_pre = mdl_carve(c, 1, (size_t)s->params.replay * MDL_HC * sizeof(float));
    }
    s->ids = mdl_carve(c, 1, (size_t)s->params.max_tokens * sizeof(int32_t));
    s->blocks = mdl_carve(c, 1, (size_t)s->n_blocks * sizeof(uint8_t *));
}

static atomic_long live;

long mdl_seq_live(void)
{
    /* Relaxed: a count. */
    return atomic_load_explicit(&live, memory_order_relaxed);
}

int mdl_seq_new(const struct mdl_config *cfg, const struct mdl_seq_params *params, struct mdl_seq **out,
                struct cfg_error *err)
{
    *out = NULL;
    if (params->max_tokens < 1 || params->rollback < 0 || params->replay < 0 || params->window_extra < 0)
        return cfg_error_set(err, EINVAL,
                             "sequence of %d tokens, rollback %d, replay %d, %d window rows more: sizes must be "
                             "positive",
                             params->max_tokens, params->rollback, params->replay, params->window_extra);
    if (params->replay && params->replay < cfg->window)
        return cfg_error_set(err, EINVAL, "replay of %d rows is shorter than the window of %d; use at least the window",
                             params->replay, cfg->window);
    struct mdl_seq *s = calloc(1, sizeof *s);
    if (!s)
        return cfg_error_set(err, ENOMEM, "sequence: out of memory");
    s->cfg = cfg;
    s->params = *params;
    int r = mdl_kv_layout_init(cfg, params->block_tokens, &s->layout, err);
    if (r) {
        free(s);
        return r;
    }
    s->n_blocks = (params->max_tokens + s->layout.block_tokens - 1) / s->layout.block_tokens;
    int encoder = cfg->cut >= 0 ? cfg->cut : cfg->n_layers;
    for (int l = 0; l < cfg->n_layers; l++)
        s->ring_rows[l] = cfg->window + params->rollback + (l < encoder ? params->window_extra : 0);
    if (params->full_bridge && cfg->cut >= 0)
        s->ring_rows[cfg->cut] += params->replay;
    s->draft_ring_rows = cfg->window + params->rollback;
    s->tail_rows = params->rollback + 2;
    struct mdl_carver c = {NULL, 0};
    carve_all(s, &c);
    s->memory = aligned_alloc(MDL_CARVE_ALIGN, c.used);
    if (!s->memory) {
        free(s);
        return cfg_error_set(err, ENOMEM, "sequence: %zu bytes of state do not fit in memory", c.used);
    }
    memset(s->memory, 0, c.used);
    c = (struct mdl_carver){s->memory, 0};
    carve_all(s, &c);
    mdl_seq_reset(s);
    /* Relaxed: a count. */
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    *out = s;
    return 0;
}

void mdl_seq_free(struct mdl_seq *s)
{
    if (!s)
        return;
    for (int b = 0; b < s->n_blocks && !s->params.external_blocks; b++)
        free(s->blocks[b]);
    free(s->memory);
    free(s);
    /* Relaxed: a count. */
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
}

void mdl_seq_reset(struct mdl_seq *s)
{
    s->len = s->encoded = s->highest = s->bridge_lo = s->draft_lo = 0;
    memset(s->window_lo, 0, sizeof s->window_lo);
}

uint8_t *mdl_seq_attach(struct mdl_seq *s, int block, uint8_t *bytes)
{
    uint8_t *old = s->blocks[block];
    s->blocks[block] = bytes;
    return old;
}

int mdl_seq_reserve(struct mdl_seq *s, int tokens, struct cfg_error *err)
{
    if (tokens > s->params.max_tokens)
        return cfg_error_set(err, ENOSPC, "sequence of %d tokens is longer than its limit of %d tokens", tokens,
                             s->params.max_tokens);
    int need = (tokens + s->layout.block_tokens - 1) / s->layout.block_tokens;
    for (int b = 0; b < need; b++) {
        if (s->blocks[b])
            continue;
        if (s->params.external_blocks)
            return cfg_error_set(err, ENOSPC, "sequence of %d tokens has no block %d", tokens, b);
        s->blocks[b] = aligned_alloc(PAGE, s->layout.block_bytes ? s->layout.block_bytes : PAGE);
        if (!s->blocks[b])
            return cfg_error_set(err, ENOMEM, "KV block of %zu bytes does not fit in memory", s->layout.block_bytes);
    }
    return 0;
}

int mdl_seq_truncate(struct mdl_seq *s, int len, struct cfg_error *err)
{
    if (s->encoded != s->len)
        return cfg_error_set(err, EINVAL, "cannot take tokens back while a prefill is unfinished");
    int kept = s->params.rollback - (s->highest - s->len);
    if (len < 0 || len > s->len || s->len - len > kept)
        return cfg_error_set(err, EINVAL, "cannot take %d of %d tokens back: only the last %d are kept", s->len - len,
                             s->len, kept);
    s->len = s->encoded = len;
    return 0;
}

void mdl_seq_adopt(struct mdl_seq *s, const int32_t *ids, int hit)
{
    mdl_seq_reset(s);
    memcpy(s->ids, ids, (size_t)hit * sizeof *ids);
    for (int l = 0; l < s->cfg->n_layers; l++)
        s->window_lo[l] = hit;
    s->draft_lo = s->bridge_lo = s->encoded = s->highest = hit;
}

static void copy_global_rows(struct mdl_seq *dst, const struct mdl_seq *src, int source, int rows)
{
    const struct mdl_kv_layout *l = &src->layout;
    for (int j = 0; j < rows; j++) {
        memcpy(mdl_seq_main_row(dst, source, j), mdl_seq_main_row(src, source, j), l->main_row);
        memcpy(mdl_seq_index_codes(dst, source, j), mdl_seq_index_codes(src, source, j), l->index_code_row);
        memcpy(mdl_seq_index_scales(dst, source, j), mdl_seq_index_scales(src, source, j), l->index_scale_row);
    }
}

int mdl_seq_copy_prefix(struct mdl_seq *dst, const struct mdl_seq *src, int hit, bool window, struct cfg_error *err)
{
    const struct mdl_config *cfg = dst->cfg;
    if (hit < 0 || hit % 2 || hit > src->encoded)
        return cfg_error_set(err, EINVAL, "prefix of %d tokens: use an even number of at most %d", hit, src->encoded);
    int r = mdl_seq_reserve(dst, hit, err);
    if (r)
        return r;
    int lo = hit > cfg->window ? hit - cfg->window : 0;
    int encoder = cfg->cut >= 0 ? cfg->cut : cfg->n_layers;
    for (int l = 0; window && l < encoder; l++)
        if (lo < src->window_lo[l] || src->encoded - lo > src->ring_rows[l])
            return cfg_error_set(err, EINVAL, "window rows before token %d are gone from layer %d", hit, l);
    mdl_seq_adopt(dst, src->ids, hit);
    for (int s = 0; s < cfg->n_kv_sources; s++)
        copy_global_rows(dst, src, s, hit / cfg->kv_source_ratio[s]);
    for (int l = 0; window && l < encoder; l++) {
        dst->window_lo[l] = lo;
        for (int p = lo; p < hit; p++)
            memcpy(mdl_seq_ring_row(dst, l, p), mdl_seq_ring_row(src, l, p), dst->layout.swa_row);
    }
    return 0;
}

static uint8_t *extent_of(const struct mdl_seq *s, int source, int row, int *in_block)
{
    const struct mdl_kv_extent *e = &s->layout.source[source];
    *in_block = row % e->rows;
    return s->blocks[row / e->rows] + e->offset;
}

uint8_t *mdl_seq_main_row(const struct mdl_seq *s, int source, int row)
{
    int i;
    uint8_t *p = extent_of(s, source, row, &i);
    return p + (size_t)i * s->layout.main_row;
}

uint8_t *mdl_seq_index_codes(const struct mdl_seq *s, int source, int row)
{
    int i;
    uint8_t *p = extent_of(s, source, row, &i);
    return p + s->layout.source[source].index_codes + (size_t)i * s->layout.index_code_row;
}

uint8_t *mdl_seq_index_scales(const struct mdl_seq *s, int source, int row)
{
    int i;
    uint8_t *p = extent_of(s, source, row, &i);
    return p + s->layout.source[source].index_scales + (size_t)i * s->layout.index_scale_row;
}

uint8_t *mdl_seq_ring_row(const struct mdl_seq *s, int layer, int pos)
{
    return s->ring[layer] + (size_t)(pos % s->ring_rows[layer]) * s->layout.swa_row;
}

uint8_t *mdl_seq_draft_row(const struct mdl_seq *s, int stage, int pos)
{
    return s->draft_ring[stage] + (size_t)(pos % s->draft_ring_rows) * s->layout.swa_row;
}

float *mdl_seq_tail(const struct mdl_seq *s, int source, int pos)
{
    return s->tail[source] + (size_t)(pos % s->tail_rows) * 2 * (size_t)s->cfg->head_dim;
}
