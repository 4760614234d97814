#include "model/handoff.h"

#include <errno.h>
#include <string.h>

/* Everything before the rows. Then one struct ring per layer and one for all drafter stages. */
struct head {
    uint32_t form, tokens;
    uint32_t layers, stages; /* whose window rows follow */
    uint32_t swa_row, head_dim, hidden, sources;
    uint32_t tail_from, bridge_from; /* first positions sent */
    int32_t bridge_lo;
    uint32_t zero;
    uint64_t bytes;
};

struct ring {
    int32_t lo;    /* rows below do not exist for a query */
    uint32_t from; /* first position sent */
};

const char *mdl_handoff_name(enum mdl_handoff_form form)
{
    static const char *const name[] = {"full", "encoder", "global"};
    return form < MDL_HANDOFF_FORMS ? name[form] : "?";
}

/* ---- global rows ---- */

/* Adds a range, joined to the one before it where they touch. */
static int add_range(struct mdl_handoff_range *out, int n, size_t offset, size_t size)
{
    if (n && out[n - 1].offset + out[n - 1].size == offset) {
        out[n - 1].size += size;
        return n;
    }
    out[n] = (struct mdl_handoff_range){offset, size};
    return n + (size > 0);
}

int mdl_handoff_ranges(const struct mdl_kv_layout *l, int sources, int from, int to,
                       struct mdl_handoff_range out[MDL_HANDOFF_RANGES])
{
    int n = 0;
    if (to - from == l->block_tokens) {
        *out = (struct mdl_handoff_range){0, l->block_bytes};
        return 1;
    }
    for (int k = 0; k < sources; k++) {
        const struct mdl_kv_extent *x = &l->source[k];
        int ratio = l->block_tokens / x->rows;
        size_t first = (size_t)(from / ratio), rows = (size_t)(to / ratio) - first;
        n = add_range(out, n, x->offset + first * l->main_row, rows * l->main_row);
        n = add_range(out, n, x->offset + x->index_codes + first * l->index_code_row, rows * l->index_code_row);
        n = add_range(out, n, x->offset + x->index_scales + first * l->index_scale_row, rows * l->index_scale_row);
    }
    return n;
}

int mdl_handoff_tokens(enum mdl_handoff_form form, int n)
{
    return form == MDL_HANDOFF_GLOBAL ? (n - 1) & ~1 : n;
}

/* ---- state ---- */

static void move(void *row, uint8_t **at, size_t n, bool load)
{
    memcpy(load ? row : *at, load ? *at : row, n);
    *at += n;
}

static int at_least(int a, int b)
{
    return a > b ? a : b;
}

static int sent_layers(const struct mdl_seq *s, enum mdl_handoff_form form)
{
    return form == MDL_HANDOFF_FULL      ? s->cfg->n_layers
           : form == MDL_HANDOFF_ENCODER ? s->cfg->cut + s->params.full_bridge
                                         : 0;
}

/* First position whose row is still there. */
static struct ring ring_of(const struct mdl_seq *s, int layer)
{
    bool draft = layer >= s->cfg->n_layers;
    int lo = draft ? s->draft_lo : s->window_lo[layer], rows = draft ? s->draft_ring_rows : s->ring_rows[layer];
    return (struct ring){.lo = lo, .from = (uint32_t)at_least(lo, s->encoded - rows)};
}

static size_t tail_bytes(const struct mdl_seq *s)
{
    return 2 * (size_t)s->cfg->head_dim * sizeof(float);
}

static size_t bridge_bytes(const struct mdl_seq *s)
{
    return MDL_HC * ((size_t)s->cfg->hidden * sizeof(uint16_t) + sizeof(float));
}

static int tails(const struct mdl_seq *s)
{
    int n = 0;
    for (int k = 0; k < s->cfg->n_kv_sources; k++)
        n += s->tail[k] != NULL;
    return n;
}

static struct head head_of(const struct mdl_seq *s, enum mdl_handoff_form form)
{
    int n = s->encoded;
    bool state = form != MDL_HANDOFF_GLOBAL, bridge = form == MDL_HANDOFF_ENCODER;
    return (struct head){
        .form = form,
        .tokens = (uint32_t)n,
        .layers = (uint32_t)sent_layers(s, form),
        .stages = form == MDL_HANDOFF_FULL ? (uint32_t)s->cfg->n_draft : 0,
        .swa_row = (uint32_t)s->layout.swa_row,
        .head_dim = (uint32_t)s->cfg->head_dim,
        .hidden = (uint32_t)s->cfg->hidden,
        .sources = (uint32_t)s->cfg->n_kv_sources,
        .tail_from = (uint32_t)(state ? at_least(0, n - s->tail_rows) : n),
        .bridge_from = (uint32_t)(bridge ? at_least(s->bridge_lo, n - s->params.replay) : n),
        .bridge_lo = s->bridge_lo,
    };
}

/* Of a state with this head and these rings [h->layers + 1]. */
static uint64_t bytes_of(const struct mdl_seq *s, const struct head *h, const struct ring *ring)
{
    uint64_t n = sizeof *h + ((uint64_t)h->layers + 1) * sizeof *ring;
    for (uint32_t l = 0; l < h->layers; l++)
        n += (uint64_t)(h->tokens - ring[l].from) * h->swa_row;
    n += (uint64_t)(h->tokens - ring[h->layers].from) * h->swa_row * h->stages;
    n += (uint64_t)(h->tokens - h->tail_from) * (uint64_t)tails(s) * tail_bytes(s);
    return n + (uint64_t)(h->tokens - h->bridge_from) * bridge_bytes(s);
}

/* The layers' rings, then the one of the drafter's stages, which are alike. */
static void rings_of(const struct mdl_seq *s, const struct head *h, struct ring *ring)
{
    for (uint32_t l = 0; l < h->layers; l++)
        ring[l] = ring_of(s, (int)l);
    ring[h->layers] = h->stages ? ring_of(s, s->cfg->n_layers) : (struct ring){0, h->tokens};
}

size_t mdl_handoff_state_bytes(const struct mdl_seq *s, enum mdl_handoff_form form)
{
    struct head h = head_of(s, form);
    struct ring ring[MDL_MAX_LAYERS + 1];
    rings_of(s, &h, ring);
    return (size_t)bytes_of(s, &h, ring);
}

static void move_bridge(const struct mdl_seq *s, const struct head *h, uint8_t *at, bool load)
{
    size_t streams = MDL_HC * (size_t)s->cfg->hidden;
    for (uint32_t p = h->bridge_from; p < h->tokens; p++) {
        size_t slot = p % (uint32_t)s->params.replay;
        move(s->bridge_x + slot * streams, &at, streams * sizeof *s->bridge_x, load);
        move(s->bridge_pre + slot * MDL_HC, &at, MDL_HC * sizeof *s->bridge_pre, load);
    }
}

/* Rows of one ring: all of the sender's, of which a shorter ring takes the newest. */
static void move_ring(const struct mdl_seq *s, const struct head *h, int layer, uint32_t from, uint8_t **at, bool load)
{
    bool draft = layer >= s->cfg->n_layers;
    uint32_t rows = (uint32_t)(draft ? s->draft_ring_rows : s->ring_rows[layer]);
    for (uint32_t p = from; p < h->tokens; p++) {
        if (h->tokens - p > rows) {
            *at += s->layout.swa_row;
            continue;
        }
        uint8_t *row =
            draft ? mdl_seq_draft_row(s, layer - s->cfg->n_layers, (int)p) : mdl_seq_ring_row(s, layer, (int)p);
        move(row, at, s->layout.swa_row, load);
    }
}

static void move_state(const struct mdl_seq *s, const struct head *h, const struct ring *ring, uint8_t *at, bool load)
{
    for (uint32_t l = 0; l < h->layers; l++)
        move_ring(s, h, (int)l, ring[l].from, &at, load);
    for (uint32_t k = 0; k < h->stages; k++)
        move_ring(s, h, s->cfg->n_layers + (int)k, ring[h->layers].from, &at, load);
    for (int k = 0; k < s->cfg->n_kv_sources; k++)
        for (uint32_t p = h->tail_from; s->tail[k] && p < h->tokens; p++) {
            if (h->tokens - p > (uint32_t)s->tail_rows)
                at += tail_bytes(s);
            else
                move(mdl_seq_tail(s, k, (int)p), &at, tail_bytes(s), load);
        }
    move_bridge(s, h, at, load);
}

void mdl_handoff_state_save(const struct mdl_seq *s, enum mdl_handoff_form form, uint8_t *out)
{
    struct head h = head_of(s, form);
    struct ring ring[MDL_MAX_LAYERS + 1];
    rings_of(s, &h, ring);
    h.bytes = bytes_of(s, &h, ring);
    memcpy(out, &h, sizeof h);
    out += sizeof h;
    memcpy(out, ring, (h.layers + 1) * sizeof *ring);
    move_state(s, &h, ring, out + (h.layers + 1) * sizeof *ring, false);
}

/* What is wrong with a head for this sequence and prompt; NULL: nothing. */
static const char *check_head(const struct mdl_seq *s, enum mdl_handoff_form form, int n, const struct head *h)
{
    struct head want = head_of(s, form);
    int kept = at_least(0, n - s->params.replay);
    if (h->form != form || h->tokens != (uint32_t)n)
        return "it is of another form or another prompt";
    if (h->layers != want.layers || h->stages != want.stages || h->swa_row != want.swa_row ||
        h->head_dim != want.head_dim || h->hidden != want.hidden || h->sources != want.sources)
        return "it is of another model";
    if (h->tail_from > h->tokens || h->bridge_from > h->tokens || h->bridge_lo < 0 || h->bridge_lo > n || h->zero)
        return "its numbers do not fit each other";
    if (form != MDL_HANDOFF_ENCODER && h->bridge_from != h->tokens)
        return "it has bridge rows, which only the form encoder has";
    if (form == MDL_HANDOFF_ENCODER && (!s->params.replay || s->cfg->cut < 0))
        return "this side keeps no bridge rows; both sides need the same replay settings";
    if (form == MDL_HANDOFF_ENCODER && (int)h->bridge_from != at_least(h->bridge_lo, kept))
        return "it has bridge rows for another replay; both sides need the same replay settings";
    return NULL;
}

static const char *check_rings(const struct mdl_seq *s, const struct head *h, const struct ring *ring)
{
    for (uint32_t l = 0; l <= h->layers; l++) {
        uint32_t seen = h->tokens > (uint32_t)s->cfg->window ? h->tokens - (uint32_t)s->cfg->window + 1 : 0;
        if (ring[l].lo < 0 || (uint32_t)ring[l].lo > h->tokens || ring[l].from > h->tokens ||
            ring[l].from < (uint32_t)ring[l].lo)
            return "its window bounds do not fit the prompt";
        if ((l < h->layers || h->stages) && ring[l].from > seen && ring[l].from != (uint32_t)ring[l].lo)
            return "window rows are missing";
    }
    return NULL;
}

/* A ring that could hold more than the sender had begins where its rows begin. */
static int loaded_lo(const struct ring *r, int n, int rows)
{
    return n - (int)r->from < rows ? (int)r->from : r->lo;
}

int mdl_handoff_state_load(struct mdl_seq *s, enum mdl_handoff_form form, const int32_t *ids, int n,
                           const uint8_t *bytes, size_t len, struct cfg_error *err)
{
    struct head h;
    struct ring ring[MDL_MAX_LAYERS + 1];
    mdl_seq_reset(s);
    if (len < sizeof h)
        return cfg_error_set(err, EINVAL, "hand-off: %zu bytes are no state", len);
    memcpy(&h, bytes, sizeof h);
    const char *wrong =
        n < 1 || n > s->params.max_tokens ? "the prompt does not fit the sequence" : check_head(s, form, n, &h);
    if (!wrong && len < sizeof h + (h.layers + 1) * sizeof *ring)
        wrong = "it is cut off";
    if (!wrong) {
        memcpy(ring, bytes + sizeof h, (h.layers + 1) * sizeof *ring);
        wrong = check_rings(s, &h, ring);
    }
    if (!wrong && (h.bytes != len || bytes_of(s, &h, ring) != len))
        wrong = "it is cut off";
    if (wrong)
        return cfg_error_set(err, EINVAL, "hand-off of %d tokens in form %s: %s", n, mdl_handoff_name(form), wrong);
    if (form == MDL_HANDOFF_GLOBAL) {
        mdl_seq_adopt(s, ids, mdl_handoff_tokens(form, n));
        return 0;
    }
    move_state(s, &h, ring, (uint8_t *)bytes + sizeof h + (h.layers + 1) * sizeof *ring, true);
    memcpy(s->ids, ids, (size_t)n * sizeof *ids);
    for (uint32_t l = 0; l < h.layers; l++)
        s->window_lo[l] = loaded_lo(&ring[l], n, s->ring_rows[l]);
    s->draft_lo = h.stages ? loaded_lo(&ring[h.layers], n, s->draft_ring_rows) : 0;
    s->bridge_lo = form == MDL_HANDOFF_ENCODER ? h.bridge_lo : n;
    s->encoded = s->highest = n;
    s->len = form == MDL_HANDOFF_FULL ? n : 0;
    return 0;
}
