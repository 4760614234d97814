/* Snapshots of a sequence at a position: model/kv.h says what they are, docs/FORMATS.md gives the bytes. */
#include <errno.h>
#include <string.h>

#include "model/kv.h"

struct snapshot_head {
    uint32_t pos, first_token, first_row, layers; /* unfinished block from first_token; window rows from first_row */
    uint64_t bytes;
    uint64_t zero;
};

static int encoder_layers(const struct mdl_seq *s)
{
    return s->cfg->cut >= 0 ? s->cfg->cut : s->cfg->n_layers;
}

static struct snapshot_head head_of(const struct mdl_seq *s, int pos)
{
    int rows = s->cfg->window + s->params.window_extra;
    struct snapshot_head h = {.pos = (uint32_t)pos,
                              .first_token = (uint32_t)(pos / s->layout.block_tokens * s->layout.block_tokens),
                              .first_row = (uint32_t)(pos > rows ? pos - rows : 0),
                              .layers = (uint32_t)encoder_layers(s)};
    h.bytes = sizeof h + (uint64_t)(h.pos - h.first_row) * h.layers * s->layout.swa_row;
    for (int k = 0; k < s->cfg->n_kv_sources; k++)
        h.bytes += (uint64_t)(h.pos - h.first_token) / (uint64_t)s->cfg->kv_source_ratio[k] *
                   (s->layout.main_row + s->layout.index_code_row + s->layout.index_scale_row);
    return h;
}

size_t mdl_seq_snapshot_bytes(const struct mdl_seq *s, int pos)
{
    struct snapshot_head h = head_of(s, pos);
    if (pos < 2 || pos % 2 || pos > s->encoded)
        return 0;
    for (uint32_t l = 0; l < h.layers; l++)
        if ((int)h.first_row < s->window_lo[l] || s->encoded - (int)h.first_row > s->ring_rows[l])
            return 0;
    return h.bytes;
}

/* One row to or from the snapshot. */
static void move(uint8_t *row, uint8_t **at, size_t n, bool load)
{
    memcpy(load ? row : *at, load ? *at : row, n);
    *at += n;
}

static void move_rows(const struct mdl_seq *s, const struct snapshot_head *h, uint8_t *at, bool load)
{
    for (int k = 0; k < s->cfg->n_kv_sources; k++) {
        int ratio = s->cfg->kv_source_ratio[k];
        for (int j = (int)h->first_token / ratio; j < (int)h->pos / ratio; j++) {
            move(mdl_seq_main_row(s, k, j), &at, s->layout.main_row, load);
            move(mdl_seq_index_codes(s, k, j), &at, s->layout.index_code_row, load);
            move(mdl_seq_index_scales(s, k, j), &at, s->layout.index_scale_row, load);
        }
    }
    for (uint32_t l = 0; l < h->layers; l++)
        for (uint32_t p = h->first_row; p < h->pos; p++)
            move(mdl_seq_ring_row(s, (int)l, (int)p), &at, s->layout.swa_row, load);
}

void mdl_seq_snapshot_save(const struct mdl_seq *s, int pos, uint8_t *out)
{
    struct snapshot_head h = head_of(s, pos);
    memcpy(out, &h, sizeof h);
    move_rows(s, &h, out + sizeof h, false);
}

int mdl_seq_snapshot_load(struct mdl_seq *s, const int32_t *ids, int pos, const uint8_t *bytes, size_t len)
{
    struct snapshot_head want = head_of(s, pos), h;
    if (len < sizeof h)
        return -EINVAL;
    memcpy(&h, bytes, sizeof h);
    if (memcmp(&h, &want, sizeof h) || h.bytes != len)
        return -EINVAL;
    mdl_seq_adopt(s, ids, pos);
    move_rows(s, &h, (uint8_t *)bytes + sizeof h, true);
    for (uint32_t l = 0; l < h.layers; l++)
        s->window_lo[l] = (int)h.first_row;
    return 0;
}
