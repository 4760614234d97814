/* Sizes of a model and of the nodes that serve it. See info.h. */
#include "model/info.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "model/checkpoint.h"

const char *mdl_class_name(enum mdl_class cls)
{
    static const char *const names[MDL_CLASS_COUNT] = {
        [MDL_CLASS_EXPERT] = "experts",
        [MDL_CLASS_DENSE] = "dense",
        [MDL_CLASS_ENGRAM_TABLE] = "engram tables",
        [MDL_CLASS_ENGRAM] = "engram projections",
        [MDL_CLASS_DRAFT_EXPERT] = "drafter experts",
        [MDL_CLASS_DRAFT] = "drafter other",
    };
    return names[cls];
}

struct tally {
    const struct mdl_config *c;
    struct mdl_info *info;
};

/* Bytes of a tensor that one decoded token reads. Of the embedding it is one row, of the tables a row per lookup. */
static int64_t read_bytes(const struct mdl_config *c, const struct mdl_want *w)
{
    int64_t bytes = (int64_t)mdl_want_bytes(w);
    if (w->bind == MDL_BIND_NONE)
        return 0;
    switch (w->cls) {
    case MDL_CLASS_EXPERT:
        return w->expert < c->topk_experts ? bytes : 0;
    case MDL_CLASS_ENGRAM_TABLE:
        return bytes / w->shape[0] * (c->engram_ngram - 1) * c->engram_heads;
    case MDL_CLASS_DENSE:
        return strcmp(w->name, "embed.weight") ? bytes : bytes / w->shape[0];
    case MDL_CLASS_ENGRAM:
        return bytes;
    default:
        return 0;
    }
}

static int add_tensor(void *arg, const struct mdl_want *w)
{
    struct tally *t = arg;
    int64_t bytes = (int64_t)mdl_want_bytes(w);
    t->info->tensors[w->cls]++;
    t->info->bytes[w->cls] += bytes;
    t->info->total_tensors++;
    t->info->total_bytes += bytes;
    t->info->read_per_token += read_bytes(t->c, w);
    return 0;
}

static void compute_kv(const struct mdl_config *c, struct mdl_info *out)
{
    int64_t main_row = c->n_kv_sources ? (int64_t)mdl_main_row_bytes(c) : 0;
    int64_t index_row = c->n_kv_sources ? (int64_t)mdl_index_row_bytes(c) : 0;
    out->n_sources = c->n_kv_sources;
    for (int s = 0; s < c->n_kv_sources; s++) {
        int ratio = c->kv_source_ratio[s];
        out->source[s] = (struct mdl_info_source){c->kv_sources[s], ratio, main_row, index_row};
        out->kv_main_per_2_tokens += main_row * 2 / ratio;
        out->kv_index_per_2_tokens += index_row * 2 / ratio;
        if (ratio > 1)
            out->tail_bytes += 2 * (int64_t)c->head_dim * (int64_t)sizeof(float);
    }
    out->kv_per_2_tokens = out->kv_main_per_2_tokens + out->kv_index_per_2_tokens;
    for (int l = 0; l < c->n_layers; l++)
        if (c->layer[l].ratio)
            out->kv_unshared_per_2_tokens += (main_row + index_row) * 2 / c->layer[l].ratio;
}

void mdl_info_compute(const struct mdl_config *c, struct mdl_info *out)
{
    struct tally t = {c, out};
    memset(out, 0, sizeof *out);
    mdl_layout_each(c, add_tensor, &t);
    compute_kv(c, out);
    int64_t row = (int64_t)mdl_swa_row_bytes(c), window = row * c->window;
    out->window_bytes = window * c->n_layers;
    out->draft_ring_bytes = window * c->n_draft;
    out->fixed_bytes = out->window_bytes + out->draft_ring_bytes + out->tail_bytes;
    out->rollback_rows = c->n_draft ? 2 * (c->draft_block + 1) : 0;
    out->rollback_bytes = row * out->rollback_rows * c->n_layers;
    if (c->cut >= 0) {
        out->encoder_window_bytes = window * c->cut;
        out->skipped_layers = c->n_layers - c->cut;
        out->bridge_row_bytes = (int64_t)MDL_HC * c->hidden * 2 + MDL_HC * (int64_t)sizeof(float);
    }
}

/* The tensors with which a prefill node forms the cut layer's global rows from the state that leaves the encoder. */
static bool is_bridge(const struct mdl_config *c, const struct mdl_want *w)
{
    static const size_t offsets[] = {
        offsetof(struct mdl_block, attn_norm),  offsetof(struct mdl_block, comp_wkv),
        offsetof(struct mdl_block, comp_wgate), offsetof(struct mdl_block, comp_norm),
        offsetof(struct mdl_block, idx_wk),     offsetof(struct mdl_block, idx_k_norm),
    };
    if (w->block != c->cut || w->bind == MDL_BIND_NONE)
        return false;
    for (size_t i = 0; w->place == MDL_PLACE_BLOCK && i < sizeof offsets / sizeof offsets[0]; i++)
        if (w->offset == offsets[i])
            return true;
    return false;
}

/* The drafter tensors that fill its rings from the backbone's taps; drafting itself belongs to decode. */
static bool seeds_rings(const struct mdl_want *w)
{
    if (w->place == MDL_PLACE_CHECKPOINT)
        return w->offset == offsetof(struct mdl_checkpoint, main_proj) ||
               w->offset == offsetof(struct mdl_checkpoint, main_norm);
    return w->place == MDL_PLACE_BLOCK &&
           (w->offset == offsetof(struct mdl_block, wkv) || w->offset == offsetof(struct mdl_block, kv_norm));
}

struct share {
    const struct mdl_config *c;
    const struct mdl_info_ask *ask;
    struct mdl_info_node *node;
};

static bool is_draft(const struct mdl_want *w)
{
    return w->cls == MDL_CLASS_DRAFT || w->cls == MDL_CLASS_DRAFT_EXPERT;
}

/* A prefill node always runs the encoder and the bridge; what the tail of a prompt needs beyond that is told apart,
 * because the decode node can do that part. */
static bool is_encoder(const struct mdl_config *c, const struct mdl_want *w)
{
    if (c->cut < 0)
        return !is_draft(w);
    if (w->block < 0)
        return w->place == MDL_PLACE_CHECKPOINT && w->offset == offsetof(struct mdl_checkpoint, embed);
    return w->block < c->cut || is_bridge(c, w);
}

static int add_share(void *arg, const struct mdl_want *w)
{
    const struct share *s = arg;
    struct mdl_info_node *node = s->node;
    int64_t bytes = (int64_t)mdl_want_bytes(w);
    bool remote = s->ask->ep && w->cls == MDL_CLASS_EXPERT;
    switch (s->ask->role) {
    case MDL_ROLE_ALL:
    case MDL_ROLE_DECODE:
        if (!remote)
            node->weights[w->cls] += bytes;
        break;
    case MDL_ROLE_PREFILL:
        if (remote)
            break;
        if (is_encoder(s->c, w))
            node->weights[w->cls] += bytes;
        else if (!is_draft(w) || seeds_rings(w))
            node->decoder_tail_weights += bytes;
        break;
    case MDL_ROLE_EXPERT:
        if (w->cls == MDL_CLASS_EXPERT && w->expert < node->experts_per_layer)
            node->weights[w->cls] += bytes;
        break;
    }
    return 0;
}

static int times(int64_t a, int64_t b, int64_t *sum, int64_t *out, struct cfg_error *err)
{
    int64_t total;
    if (__builtin_mul_overflow(a, b, out) || __builtin_add_overflow(*sum, *out, &total))
        return cfg_error_set(err, ERANGE, "the state of that many requests does not fit 64 bits; ask for fewer");
    *sum = total;
    return 0;
}

static int add_state(const struct mdl_config *c, const struct mdl_info_ask *ask, struct mdl_info_node *node,
                     struct cfg_error *err)
{
    struct mdl_info info;
    bool encoder = ask->role == MDL_ROLE_PREFILL && c->cut >= 0;
    int64_t n = ask->requests, kv = 0;
    int rc;
    mdl_info_compute(c, &info);
    for (int s = 0; s < info.n_sources; s++)
        kv += ask->context / info.source[s].ratio * (info.source[s].main_row + info.source[s].index_row);
    if ((rc = times(kv, n, &node->memory, &node->global_kv, err)) ||
        (rc = times(encoder ? info.encoder_window_bytes : info.window_bytes, n, &node->memory, &node->windows, err)) ||
        (rc = times(info.tail_bytes, n, &node->memory, &node->tails, err)))
        return rc;
    if (encoder)
        return times(info.bridge_row_bytes * (c->window + info.rollback_rows), n, &node->memory, &node->bridge_rows,
                     err);
    if ((rc = times(info.draft_ring_bytes, n, &node->memory, &node->draft_rings, err)))
        return rc;
    return times(info.rollback_bytes, n, &node->memory, &node->rollback, err);
}

int mdl_info_node(const struct mdl_config *c, const struct mdl_info_ask *ask, struct mdl_info_node *out,
                  struct cfg_error *err)
{
    struct share s = {c, ask, out};
    memset(out, 0, sizeof *out);
    if (ask->context < 1 || ask->context > c->max_position)
        return cfg_error_set(err, EINVAL, "context %" PRId64 " is outside 1 to %d, the positions of this model",
                             ask->context, c->max_position);
    if (ask->requests < 1)
        return cfg_error_set(err, EINVAL, "requests %" PRId64 " is below 1", ask->requests);
    if (ask->ep < 0 || ask->ep > c->n_experts)
        return cfg_error_set(err, EINVAL, "ep %d is outside 0 to %d, the experts of a layer", ask->ep, c->n_experts);
    int shards = ask->ep ? ask->ep : 1;
    if (ask->role == MDL_ROLE_EXPERT)
        out->experts_per_layer = (c->n_experts + shards - 1) / shards;
    else
        out->experts_per_layer = ask->ep ? 0 : c->n_experts;
    mdl_layout_each(c, add_share, &s);
    out->tables = out->weights[MDL_CLASS_ENGRAM_TABLE];
    for (int k = 0; k < MDL_CLASS_COUNT; k++)
        if (k != MDL_CLASS_ENGRAM_TABLE)
            out->memory += out->weights[k];
    return ask->role == MDL_ROLE_EXPERT ? 0 : add_state(c, ask, out, err);
}
