#include "cli/dump.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dump_tensor {
    char name[64];
    enum mdl_dtype dtype;
    int ndim;
    int64_t shape[MDL_ST_MAX_DIMS]; /* shape[0] counts rows */
    int first;                      /* position of row 0 */
    size_t row_bytes, capacity;
    uint8_t *data;
};

struct cli_dump {
    const struct mdl_config *cfg;
    int what, tokens, status;
    bool two_passes, paused;
    int draft_pos; /* -1: backbone */
    struct dump_tensor *tensor;
    size_t n, capacity;
};

struct cli_dump *cli_dump_new(const struct mdl_config *cfg, int what, int tokens, bool two_passes)
{
    struct cli_dump *d = calloc(1, sizeof *d);
    if (d)
        *d = (struct cli_dump){.cfg = cfg, .what = what, .tokens = tokens, .two_passes = two_passes, .draft_pos = -1};
    return d;
}

void cli_dump_free(struct cli_dump *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++)
        free(d->tensor[i].data);
    free(d->tensor);
    free(d);
}

int cli_dump_parse(const char *list, int *what, struct cfg_error *err)
{
    static const char *const names[] = {"layers", "select", "experts", "kv", "draft"};
    *what = 0;
    while (*list) {
        size_t len = strcspn(list, ","), i = 0;
        while (i < 5 && (strlen(names[i]) != len || strncmp(names[i], list, len)))
            i++;
        if (i == 5)
            return cfg_error_set(err, EINVAL, "--dump: \"%.*s\" is unknown; use layers, select, experts, kv, draft",
                                 (int)len, list);
        *what |= 1 << i;
        list += len + (list[len] == ',');
    }
    return 0;
}

void cli_dump_begin_draft(struct cli_dump *d, int pos)
{
    d->draft_pos = pos;
}

void cli_dump_pause(struct cli_dump *d, bool paused)
{
    d->paused = paused;
}

static struct dump_tensor *find_tensor(struct cli_dump *d, const char *name)
{
    for (size_t i = d->n; i-- > 0;)
        if (!strcmp(d->tensor[i].name, name))
            return &d->tensor[i];
    return NULL;
}

static struct dump_tensor *add_tensor(struct cli_dump *d, const char *name, enum mdl_dtype dtype, int pos, int ndim,
                                      const int64_t *shape)
{
    if (d->n == d->capacity) {
        size_t capacity = d->capacity ? 2 * d->capacity : 64;
        struct dump_tensor *p = realloc(d->tensor, capacity * sizeof *p);
        if (!p)
            return NULL;
        d->tensor = p;
        d->capacity = capacity;
    }
    struct dump_tensor *t = &d->tensor[d->n++];
    *t = (struct dump_tensor){.dtype = dtype, .ndim = ndim + 1, .first = pos, .row_bytes = mdl_dtype_size(dtype)};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (int i = 0; i < ndim; i++) {
        t->shape[i + 1] = shape[i];
        t->row_bytes *= (size_t)shape[i];
    }
    return t;
}

/* The tensor of that name; a new one has no row yet. */
static struct dump_tensor *need_tensor(struct cli_dump *d, const char *name, enum mdl_dtype dtype, int pos, int ndim,
                                       const int64_t *shape)
{
    struct dump_tensor *t = find_tensor(d, name);
    if (!t)
        t = add_tensor(d, name, dtype, pos, ndim, shape);
    if (!t)
        d->status = -ENOMEM;
    return t;
}

void cli_dump_row(struct cli_dump *d, const char *name, enum mdl_dtype dtype, int pos, int ndim, const int64_t *shape,
                  const void *data)
{
    struct dump_tensor *t = need_tensor(d, name, dtype, pos, ndim, shape);
    if (!t)
        return;
    if (pos < t->first) {
        d->status = -EINVAL;
        return;
    }
    size_t row = (size_t)(pos - t->first);
    if (row >= t->capacity) {
        size_t capacity = 2 * t->capacity > row + 1 ? 2 * t->capacity : row + 16;
        uint8_t *p = realloc(t->data, capacity * t->row_bytes + 1);
        if (!p) {
            d->status = -ENOMEM;
            return;
        }
        memset(p + t->capacity * t->row_bytes, 0, (capacity - t->capacity) * t->row_bytes);
        t->data = p;
        t->capacity = capacity;
    }
    memcpy(t->data + row * t->row_bytes, data, t->row_bytes);
    if ((int64_t)row + 1 > t->shape[0])
        t->shape[0] = (int64_t)row + 1;
}

/* ---- hooks ---- */

/* A tensor of the layer for every active row; stride is in bytes, by_row says how the source array is indexed. */
struct row_source {
    const char *what;
    enum mdl_dtype dtype;
    const void *data;
    bool by_row;
    int ndim;
    int64_t shape[2];
};

static void layer_name(const struct cli_dump *d, const char *what, int layer, char name[64])
{
    if (d->draft_pos >= 0)
        snprintf(name, 64, "draft.%d.%.24s.%d", d->draft_pos, what, layer - d->cfg->n_layers);
    else
        snprintf(name, 64, "%.24s.%d", what, layer);
}

/* Rows in the encoder's pass of a two-pass run, and the streams that leave it, are named enc. */
static bool is_encoder_row(const struct cli_dump *d, const struct mdl_step *s, int row)
{
    return d->two_passes && d->draft_pos < 0 && s->segment[s->row_segment[row]].layer_end == d->cfg->cut;
}

static void dump_rows(struct cli_dump *d, const struct mdl_step *s, int layer, const struct row_source *src,
                      const int *rows, int n)
{
    char name[64], what[24];
    size_t bytes = mdl_dtype_size(src->dtype);
    for (int i = 0; i < src->ndim; i++)
        bytes *= (size_t)src->shape[i];
    for (int i = 0; i < n; i++) {
        int row = rows ? rows[i] : i;
        snprintf(what, sizeof what, "%s%.16s", is_encoder_row(d, s, row) ? "enc." : "", src->what);
        layer_name(d, what, layer, name);
        cli_dump_row(d, name, src->dtype, d->draft_pos < 0 ? s->row_pos[row] : row - s->segment[0].first_row, src->ndim,
                     src->shape, (const uint8_t *)src->data + bytes * (size_t)(src->by_row ? row : i));
    }
}

static void dump_streams(struct cli_dump *d, const struct mdl_step *s, int layer, const char *what, bool pre,
                         const int *rows, int n)
{
    int64_t hidden = d->cfg->hidden;
    dump_rows(d, s, layer, &(struct row_source){what, MDL_BF16, s->x, true, 2, {MDL_HC, hidden}}, rows, n);
    if (pre)
        dump_rows(d, s, layer, &(struct row_source){"pre", MDL_F32, s->pre, true, 1, {MDL_HC}}, rows, n);
}

static void dump_scores(struct cli_dump *d, const struct mdl_step *s, int layer)
{
    int ratio = d->cfg->layer[layer].ratio;
    int64_t columns = d->tokens / ratio;
    float *row = malloc(((size_t)columns + 1) * sizeof *row);
    if (!row) {
        d->status = -ENOMEM;
        return;
    }
    char name[64];
    for (int i = 0; i < s->n_active; i++) {
        int r = s->active[i], visible = (s->row_pos[r] + 1) / ratio;
        for (int64_t j = 0; j < columns; j++)
            row[j] = j < visible ? s->score_dump[(size_t)r * (size_t)s->score_stride + (size_t)j] : NAN;
        layer_name(d, is_encoder_row(d, s, r) ? "enc.score" : "score", layer, name);
        cli_dump_row(d, name, MDL_F32, s->row_pos[r], 1, &columns, row);
    }
    free(row);
}

static void dump_candidates(struct cli_dump *d, const struct mdl_step *s, int layer)
{
    int block = d->cfg->candidate_block_size, ratio = d->cfg->layer[layer].ratio;
    int64_t columns = (d->tokens / ratio + block - 1) / block;
    uint8_t *row = malloc((size_t)columns + 1);
    if (!row) {
        d->status = -ENOMEM;
        return;
    }
    char name[64];
    for (int i = 0; i < s->n_active; i++) {
        int r = s->active[i];
        memset(row, 0, (size_t)columns);
        for (int k = 0; k < s->cand_n[r]; k++)
            row[s->cand[(size_t)r * (size_t)d->cfg->candidate_blocks + (size_t)k]] = 1;
        layer_name(d, is_encoder_row(d, s, r) ? "enc.cand" : "cand", layer, name);
        cli_dump_row(d, name, MDL_U8, s->row_pos[r], 1, &columns, row);
    }
    free(row);
}

static void dump_selection(struct cli_dump *d, const struct mdl_step *s, int layer)
{
    const struct mdl_layer_role *role = &d->cfg->layer[layer];
    if (role->index_source != layer)
        return;
    dump_rows(d, s, layer, &(struct row_source){"sel", MDL_I32, s->sel, true, 1, {d->cfg->index_topk}}, s->active,
              s->n_active);
    if (s->score_dump)
        dump_scores(d, s, layer);
    if (role->candidate_source)
        dump_candidates(d, s, layer);
}

static void dump_engram(struct cli_dump *d, const struct mdl_step *s, int layer)
{
    const struct mdl_engram_fetch *f = &s->fetch[d->cfg->layer[layer].engram];
    int64_t columns = f->columns;
    char name[64];
    int32_t *ids = malloc((size_t)columns * sizeof *ids);
    if (!ids)
        d->status = -ENOMEM;
    for (int i = 0; i < s->n_active && ids; i++) {
        int r = s->active[i];
        for (int64_t k = 0; k < columns; k++)
            ids[k] = (int32_t)f->row_ids[(size_t)r * (size_t)columns + (size_t)k];
        layer_name(d, is_encoder_row(d, s, r) ? "enc.engram_rows" : "engram_rows", layer, name);
        cli_dump_row(d, name, MDL_I32, s->row_pos[r], 1, &columns, ids);
    }
    free(ids);
}

static void dump_taps(struct cli_dump *d, const struct mdl_step *s, int layer)
{
    if (layer != d->cfg->tap_layers[d->cfg->n_taps - 1])
        return;
    int64_t width = (int64_t)d->cfg->n_taps * d->cfg->hidden;
    for (int i = 0; i < s->n_active; i++)
        cli_dump_row(d, "taps", MDL_BF16, s->row_pos[s->active[i]], 1, &width,
                     s->taps + (size_t)s->active[i] * (size_t)width);
}

/* Streams after the last layer of each segment: x.<n>, or enc.x.<cut> for rows that stop at the cut. */
static void dump_left(struct cli_dump *d, const struct mdl_step *s)
{
    for (int row = 0; row < s->n_rows; row++) {
        const struct mdl_segment *seg = &s->segment[s->row_segment[row]];
        if (!seg->draft && s->row_pos[row] < seg->seq->window_lo[seg->layer_end - 1])
            continue;
        dump_streams(d, s, seg->layer_end, "x", true, &row, 1);
    }
}

static void on_hook(void *ctx, struct mdl_step *s, enum mdl_hook_point at, int layer)
{
    struct cli_dump *d = ctx;
    bool draft = d->draft_pos >= 0;
    int64_t hidden = d->cfg->hidden, k = layer < d->cfg->n_layers ? d->cfg->topk_experts : d->cfg->draft_topk;
    bool layers = d->what & CLI_DUMP_LAYERS, select = d->what & CLI_DUMP_SELECT, experts = d->what & CLI_DUMP_EXPERTS;
    if (d->paused)
        return;
    if (draft) {
        layers = true;
        experts = select = false;
    }
    if (at == MDL_HOOK_LAYER && layers)
        dump_streams(d, s, layer, "x", true, s->active, s->n_active);
    else if (at == MDL_HOOK_LEFT && layers)
        dump_left(d, s);
    else if (at == MDL_HOOK_ATTN_IN && layers && !draft)
        dump_rows(d, s, layer, &(struct row_source){"attn_in", MDL_BF16, s->u, false, 1, {hidden}}, s->active,
                  s->n_active);
    else if (at == MDL_HOOK_ATTN_OUT && layers && !draft)
        dump_rows(d, s, layer, &(struct row_source){"attn_out", MDL_BF16, s->out, false, 1, {hidden}}, s->active,
                  s->n_active);
    else if (at == MDL_HOOK_MID && layers && !draft)
        dump_streams(d, s, layer, "x_mid", false, s->active, s->n_active);
    else if (at == MDL_HOOK_FFN_OUT && layers && !draft)
        dump_rows(d, s, layer, &(struct row_source){"ffn_out", MDL_BF16, s->out, false, 1, {hidden}}, s->active,
                  s->n_active);
    else if (at == MDL_HOOK_SELECTED && select)
        dump_selection(d, s, layer);
    else if (at == MDL_HOOK_ROUTED && experts) {
        dump_rows(d, s, layer, &(struct row_source){"experts", MDL_I32, s->exchange.expert, false, 1, {k}}, s->active,
                  s->n_active);
        dump_rows(d, s, layer, &(struct row_source){"expert_w", MDL_F32, s->exchange.weight, false, 1, {k}}, s->active,
                  s->n_active);
    } else if (at == MDL_HOOK_ENGRAM && experts)
        dump_engram(d, s, layer);
    else if (at == MDL_HOOK_TAPS && d->what & CLI_DUMP_DRAFT)
        dump_taps(d, s, layer);
}

struct mdl_hooks cli_dump_hooks(struct cli_dump *d)
{
    return (struct mdl_hooks){.ctx = d, .want_scores = d->what & CLI_DUMP_SELECT, .point = on_hook};
}

/* ---- caches ---- */

/* The rows of a source are there even when there are none: a prompt may end before the first pair does. */
static void dump_global(struct cli_dump *d, const struct mdl_seq *seq, int source, int from)
{
    const struct mdl_config *cfg = d->cfg;
    int ratio = cfg->kv_source_ratio[source], layer = cfg->kv_sources[source], first = from / ratio;
    const struct {
        const char *what;
        enum mdl_dtype dtype;
        int64_t width;
    } part[] = {{"main.codes", MDL_U8, cfg->head_dim / 2},
                {"main.scales", MDL_F8_E4M3, cfg->head_dim / 16},
                {"index.codes", MDL_U8, cfg->index_dim / 2},
                {"index.scales", MDL_F8_E8M0, cfg->index_dim / 32}};
    char name[64];
    for (int k = 0; k < 4; k++) {
        snprintf(name, sizeof name, "kv.%s.%d", part[k].what, layer);
        need_tensor(d, name, part[k].dtype, first, 1, &part[k].width);
        for (int j = first; j < seq->encoded / ratio; j++) {
            const uint8_t *main = mdl_seq_main_row(seq, source, j);
            const uint8_t *row[] = {main, main + part[0].width, mdl_seq_index_codes(seq, source, j),
                                    mdl_seq_index_scales(seq, source, j)};
            cli_dump_row(d, name, part[k].dtype, j, 1, &part[k].width, row[k]);
        }
    }
    if (ratio > 1 && seq->encoded % ratio) {
        const float *tail = mdl_seq_tail(seq, source, seq->encoded - 1);
        int64_t width = cfg->head_dim;
        snprintf(name, sizeof name, "kv.tail.kv.%d", layer);
        cli_dump_row(d, name, MDL_F32, 0, 1, &width, tail);
        snprintf(name, sizeof name, "kv.tail.gate.%d", layer);
        cli_dump_row(d, name, MDL_F32, 0, 1, &width, tail + width);
    }
}

static void dump_ring(struct cli_dump *d, const char *kind, int index, int pos, const uint8_t *row)
{
    char name[64];
    int64_t codes = d->cfg->head_dim, scales = d->cfg->head_dim / 32, none = 1;
    int32_t p = pos;
    snprintf(name, sizeof name, "kv.%s.pos.%d", kind, index);
    cli_dump_row(d, name, MDL_I32, pos, 0, &none, &p);
    snprintf(name, sizeof name, "kv.%s.codes.%d", kind, index);
    cli_dump_row(d, name, MDL_F8_E4M3, pos, 1, &codes, row);
    snprintf(name, sizeof name, "kv.%s.scales.%d", kind, index);
    cli_dump_row(d, name, MDL_F8_E8M0, pos, 1, &scales, row + codes);
}

void cli_dump_kv(struct cli_dump *d, const struct mdl_seq *seq, int from)
{
    const struct mdl_config *cfg = d->cfg;
    if (!(d->what & CLI_DUMP_KV))
        return;
    for (int s = 0; s < cfg->n_kv_sources; s++)
        dump_global(d, seq, s, from);
    int first = seq->len > cfg->window ? seq->len - cfg->window : 0;
    for (int l = 0; l < cfg->n_layers; l++)
        for (int p = first > seq->window_lo[l] ? first : seq->window_lo[l]; p < seq->len; p++)
            dump_ring(d, "swa", l, p, mdl_seq_ring_row(seq, l, p));
    for (int k = 0; k < cfg->n_draft; k++)
        for (int p = first > seq->draft_lo ? first : seq->draft_lo; p < seq->len; p++)
            dump_ring(d, "ring", k, p, mdl_seq_draft_row(seq, k, p));
}

int cli_dump_save(struct cli_dump *d, const char *path, struct cfg_error *err)
{
    if (d->status)
        return cfg_error_set(err, -d->status, "collecting the dump failed: %s", strerror(-d->status));
    struct mdl_st_writer *w = mdl_st_writer_new();
    int r = w ? 0 : cfg_error_set(err, ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; i < d->n && !r; i++)
        r = mdl_st_writer_add(w, d->tensor[i].name, d->tensor[i].dtype, d->tensor[i].ndim, d->tensor[i].shape,
                              d->tensor[i].data);
    if (!r)
        r = mdl_st_writer_save(w, path, err);
    mdl_st_writer_free(w);
    return r;
}
