/* Opening a checkpoint: files, index, every tensor against the layout that the config implies, the Engram sidecar.
 * Owns the mappings and the few aligned copies; see checkpoint.h for who may call. */
#include "model/checkpoint.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/json_file.h"
#include "model/layout.h"
#include "model/nametab.h"

enum {
    SAMPLE_WHOLE = 4096, /* tensors up to this size enter the revision completely */
    SAMPLE_PART = 256,
    CLAIMED_BOUND = 2,
    SPARSE_READS = 2 << 20, /* tables from this size on are read row by row, so reading ahead is waste */
};

static const char sidecar_hint[] =
    "derive it with tools/train/engram_sidecar.py, which needs the model's tokenizer.json";

struct copy {
    struct copy *next;
    max_align_t data[];
};

struct files {
    struct mdl_st **st;
    size_t count, cap;
    struct mdl_st *sidecar;
    struct mdl_nametab names;
    uint8_t *claimed; /* by slot of names: the layout knows this tensor; CLAIMED_BOUND: and this part needs it */
    struct copy *copies;
};

struct opening {
    const char *dir;
    struct mdl_checkpoint *ck;
    struct files *files;
    XXH3_state_t *hash;
    struct cfg_error *err;
    enum mdl_part part;
    uint64_t revision; /* that it must have; 0: any */
    char lacks[96];    /* a tensor of the other part that is not there; "": none is */
};

static int out_of_memory(struct opening *o)
{
    return cfg_error_set(o->err, ENOMEM, "%s: out of memory", o->dir);
}

static int path_in(struct opening *o, const char *name, char path[PATH_MAX])
{
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", o->dir, name) >= PATH_MAX)
        return cfg_error_set(o->err, ENAMETOOLONG, "%s: the path is too long", o->dir);
    return 0;
}

static int open_file(struct opening *o, const char *name)
{
    struct files *f = o->files;
    char path[PATH_MAX];
    int rc = path_in(o, name, path);
    if (rc)
        return rc;
    if (f->count == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 8;
        struct mdl_st **st = realloc(f->st, cap * sizeof(struct mdl_st *));
        if (!st)
            return out_of_memory(o);
        f->st = st;
        f->cap = cap;
    }
    rc = mdl_st_open(path, &f->st[f->count], o->err);
    if (!rc)
        f->count++;
    return rc;
}

/* Shards lie in the model's own directory; an index that points elsewhere is refused. */
static int open_shards(struct opening *o, const char *path, json_t *map)
{
    const char *name;
    json_t *v, *seen = json_object();
    int rc = seen ? 0 : out_of_memory(o);
    if (!rc && json_object_size(map) == 0)
        rc = cfg_error_set(o->err, EINVAL,
                           "%s: weight_map is missing or empty, expected tensor names with their shards", path);
    json_object_foreach (map, name, v) {
        const char *file = json_string_value(v);
        if (rc)
            break;
        if (!file || !*file || *file == '.' || strchr(file, '/'))
            rc = cfg_error_set(o->err, EINVAL,
                               "%s: tensor %.200s: the shard is \"%.200s\", expected the name of a file in "
                               "the same directory",
                               path, name, file ? file : "not a string");
        else if (!json_object_get(seen, file)) {
            rc = open_file(o, file);
            if (!rc && json_object_set_new(seen, file, json_integer((json_int_t)o->files->count - 1)))
                rc = out_of_memory(o);
            if (rc == -ENOENT && o->part != MDL_PART_ALL) /* whether it is needed shows when tensors are bound */
                rc = json_object_set_new(seen, file, json_integer(-1)) ? out_of_memory(o) : 0;
            if (rc == -ENOENT)
                cfg_error_prefix(o->err, rc, "a shard named by %s", path);
        }
    }
    json_object_foreach (map, name, v) {
        if (rc)
            break;
        json_t *at = json_object_get(seen, json_string_value(v));
        if (json_integer_value(at) >= 0 && !mdl_st_find(o->files->st[json_integer_value(at)], name))
            rc = cfg_error_set(o->err, EINVAL,
                               "%s: tensor %.200s is not in its shard %.200s; index and shards are from "
                               "different checkpoints",
                               path, name, json_string_value(v));
    }
    json_decref(seen);
    return rc;
}

static int open_weights(struct opening *o)
{
    char single[PATH_MAX], index[PATH_MAX];
    int rc;
    if ((rc = path_in(o, "model.safetensors", single)) || (rc = path_in(o, "model.safetensors.index.json", index)))
        return rc;
    if (!access(single, F_OK))
        return open_file(o, "model.safetensors");
    if (access(index, F_OK))
        return cfg_error_set(o->err, ENOENT,
                             "%s: neither model.safetensors nor model.safetensors.index.json; expected the "
                             "weights beside config.json",
                             o->dir);
    json_t *root = NULL;
    rc = mdl_json_file(index, &root, o->err);
    if (!rc)
        rc = open_shards(o, index, json_object_get(root, "weight_map"));
    json_decref(root);
    return rc;
}

static int build_names(struct opening *o)
{
    struct files *f = o->files;
    size_t total = 0;
    for (size_t i = 0; i < f->count; i++)
        total += mdl_st_count(f->st[i]);
    if (mdl_nametab_init(&f->names, total) || !(f->claimed = calloc(f->names.mask + 1, 1)))
        return out_of_memory(o);
    for (size_t i = 0; i < f->count; i++) {
        for (size_t k = 0; k < mdl_st_count(f->st[i]); k++) {
            const struct mdl_tensor *t = mdl_st_at(f->st[i], k), *other = mdl_nametab_put(&f->names, t);
            if (other)
                return cfg_error_set(o->err, EINVAL, "tensor %.200s is in both %s and %s; keep one", t->name,
                                     other->file, t->file);
        }
    }
    return 0;
}

static void shape_text(int ndim, const int64_t *shape, char out[96])
{
    size_t n = (size_t)snprintf(out, 96, "[");
    for (int i = 0; i < ndim && n < 90; i++)
        n += (size_t)snprintf(out + n, 96 - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (n < 95)
        snprintf(out + n, 96 - n, "]");
}

static bool shape_is(const struct mdl_tensor *t, int ndim, const int64_t *shape)
{
    return t->ndim == ndim && !memcmp(t->shape, shape, (size_t)ndim * sizeof *shape);
}

static int check_tensor(struct opening *o, const struct mdl_tensor *t, enum mdl_dtype dtype, int ndim,
                        const int64_t *shape, const char *or_dtype)
{
    char found[96], expected[96];
    if (t->dtype == dtype && shape_is(t, ndim, shape))
        return 0;
    shape_text(t->ndim, t->shape, found);
    shape_text(ndim, shape, expected);
    return cfg_error_set(o->err, EINVAL, "%s: tensor %s is %.20s %s, expected %s%s %s as config.json implies", t->file,
                         t->name, t->dtype_name, found, mdl_dtype_name(dtype), or_dtype, expected);
}

/* The data where it lies, or an aligned copy when the file puts wide elements at an odd address. */
static int aligned_data(struct opening *o, const struct mdl_tensor *t, const void **out)
{
    size_t size = mdl_dtype_size(t->dtype);
    *out = t->data;
    if ((uintptr_t)t->data % size == 0)
        return 0;
    struct copy *c = malloc(sizeof *c + t->bytes);
    if (!c)
        return out_of_memory(o);
    c->next = o->files->copies;
    o->files->copies = c;
    *out = memcpy(c->data, t->data, t->bytes);
    return 0;
}

static void hash_i64(struct opening *o, int64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)((uint64_t)v >> 8 * i);
    XXH3_64bits_update(o->hash, b, sizeof b);
}

static void hash_real(struct opening *o, double v)
{
    int64_t bits;
    memcpy(&bits, &v, sizeof bits);
    hash_i64(o, bits);
}

/* Identity, dtype, shape and data; of large tensors one piece at a place that depends on the name. */
static void hash_tensor(struct opening *o, const struct mdl_tensor *t)
{
    size_t len = strlen(t->name);
    XXH3_64bits_update(o->hash, t->name, len + 1);
    hash_i64(o, t->dtype);
    for (int i = 0; i < t->ndim; i++)
        hash_i64(o, t->shape[i]);
    if (t->bytes <= SAMPLE_WHOLE)
        XXH3_64bits_update(o->hash, t->data, t->bytes);
    else
        XXH3_64bits_update(o->hash, (const uint8_t *)t->data + XXH3_64bits(t->name, len) % (t->bytes - SAMPLE_PART),
                           SAMPLE_PART);
}

static void hash_config(struct opening *o)
{
    const struct mdl_config *c = &o->ck->config;
    const int ints[] = {c->vocab_size,
                        c->hidden,
                        c->n_layers,
                        c->n_heads,
                        c->head_dim,
                        c->rope_dim,
                        c->q_lora,
                        c->o_lora,
                        c->o_groups,
                        c->window,
                        c->hc_sinkhorn_iters,
                        c->yarn_original_len,
                        c->index_heads,
                        c->index_dim,
                        c->index_topk,
                        c->candidate_blocks,
                        c->candidate_block_size,
                        c->candidate_layer,
                        c->n_experts,
                        c->topk_experts,
                        c->moe_inter,
                        c->n_engram,
                        c->engram_ngram,
                        c->engram_heads,
                        c->engram_dim,
                        c->engram_pad_id,
                        c->engram_compressed_vocab,
                        c->n_draft,
                        c->draft_block,
                        c->draft_noise_id,
                        c->draft_experts,
                        c->draft_topk,
                        c->markov_rank,
                        c->n_taps};
    const double reals[] = {c->rms_eps,     c->hc_eps,         c->swiglu_limit,   c->rope_theta, c->compress_rope_theta,
                            c->yarn_factor, c->yarn_beta_fast, c->yarn_beta_slow, c->route_scale};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        hash_i64(o, ints[i]);
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        hash_real(o, reals[i]);
    for (int l = 0; l < c->n_layers; l++) {
        const struct mdl_layer_role *r = &c->layer[l];
        const int role[] = {r->mode,      r->ratio, r->kv_source, r->index_source, r->engram, r->candidate_source,
                            r->restricted};
        for (size_t i = 0; i < sizeof role / sizeof role[0]; i++)
            hash_i64(o, role[i]);
    }
    for (int i = 0; i < c->n_taps; i++)
        hash_i64(o, c->tap_layers[i]);
}

/* A converted checkpoint with other names gets told so, instead of a list of missing tensors. */
static int missing(struct opening *o, const struct mdl_want *w)
{
    static const char *const renamed[] = {"self_attn.", ".mlp.", "weight_scale_inv", "e_score_correction_bias"};
    for (size_t i = 0; i <= o->files->names.mask; i++) {
        const struct mdl_tensor *t = o->files->names.slot[i];
        bool foreign = t && !strncmp(t->name, "model.", 6);
        for (size_t k = 0; t && k < sizeof renamed / sizeof renamed[0]; k++)
            foreign = foreign || strstr(t->name, renamed[k]);
        if (foreign)
            return cfg_error_set(o->err, EINVAL,
                                 "%s: tensor %s is missing, but %.100s is there: the checkpoint was converted to "
                                 "other names (transformers style); use the published files or convert the names back",
                                 o->dir, w->name, t->name);
    }
    return cfg_error_set(o->err, EINVAL,
                         "%s: tensor %s is missing, expected %s in a model of this config.json; the checkpoint is "
                         "incomplete or config.json is another model's",
                         o->dir, w->name, mdl_dtype_name(w->dtype));
}

static struct mdl_block *block_of(struct mdl_checkpoint *ck, int block)
{
    return block < ck->config.n_layers ? &ck->layers[block] : &ck->draft[block - ck->config.n_layers];
}

/* Experts are allocated when the first one of a block turns up. NULL: out of memory. */
static struct mdl_expert *expert_of(struct mdl_checkpoint *ck, int block, int expert)
{
    struct mdl_block *b = block_of(ck, block);
    if (!b->experts) {
        b->n_experts = block < ck->config.n_layers ? ck->config.n_experts : ck->config.draft_experts;
        b->experts = calloc((size_t)b->n_experts, sizeof *b->experts);
    }
    return b->experts ? &b->experts[expert] : NULL;
}

/* The struct that holds the tensor's pointer. NULL: out of memory. */
static void *place_base(struct mdl_checkpoint *ck, const struct mdl_want *w)
{
    switch (w->place) {
    case MDL_PLACE_BLOCK:
        return block_of(ck, w->block);
    case MDL_PLACE_ENGRAM:
        return &ck->engram[w->slot];
    case MDL_PLACE_EXPERT:
        return expert_of(ck, w->block, w->expert);
    case MDL_PLACE_CHECKPOINT:
        break;
    }
    return ck;
}

static void read_by_row(const struct mdl_tensor *t)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t skip = (page - (uintptr_t)t->data % page) % page, tail = ((uintptr_t)t->data + t->bytes) % page;
    if (t->bytes >= SPARSE_READS && skip + tail < t->bytes)
        madvise((char *)t->data + skip, t->bytes - skip - tail, MADV_RANDOM);
}

/* What computes the layers below the cut and the cut layer's global rows. */
static bool is_needed(const struct opening *o, const struct mdl_want *w)
{
    int cut = o->ck->config.cut;
    if (o->part == MDL_PART_ALL)
        return true;
    if (w->place == MDL_PLACE_CHECKPOINT)
        return w->offset == offsetof(struct mdl_checkpoint, embed);
    return w->place == MDL_PLACE_ENGRAM || w->block < cut || (w->block == cut && w->place == MDL_PLACE_BLOCK);
}

static int bind_tensor(struct opening *o, const struct mdl_want *w, const struct mdl_tensor *t)
{
    const void *data;
    if (w->bind == MDL_BIND_NONE || !is_needed(o, w))
        return 0;
    o->files->claimed[mdl_nametab_slot(&o->files->names, t->name) - o->files->names.slot] = CLAIMED_BOUND;
    int rc = aligned_data(o, t, &data);
    if (rc)
        return rc;
    char *base = place_base(o->ck, w);
    if (!base)
        return out_of_memory(o);
    if (w->bind == MDL_BIND_POINTER) {
        memcpy(base + w->offset, &data, sizeof data);
        if (w->cls == MDL_CLASS_ENGRAM_TABLE)
            read_by_row(t);
        return 0;
    }
    struct mdl_linear *lin = (struct mdl_linear *)(base + w->offset);
    if (w->bind == MDL_BIND_SCALE) {
        lin->scale = data;
        return 0;
    }
    lin->kind = t->dtype == MDL_BF16 ? MDL_W_BF16 : (enum mdl_wkind)w->kind;
    lin->n = (int)w->shape[0];
    lin->k = w->k;
    lin->data = data;
    return 0;
}

/* True when a weight that may come unquantised did so: then its scale is neither expected nor allowed. */
static bool is_unquantised(const struct opening *o, const struct mdl_want *w)
{
    char name[sizeof w->name];
    size_t stem = strlen(w->name) - strlen(w->bind == MDL_BIND_SCALE ? ".scale" : ".weight");
    snprintf(name, sizeof name, "%.*s.weight", (int)stem, w->name);
    const struct mdl_tensor *t = mdl_nametab_get(&o->files->names, name);
    return t && t->dtype == MDL_BF16;
}

static int bind_want(void *arg, const struct mdl_want *w)
{
    struct opening *o = arg;
    const struct mdl_tensor **slot = mdl_nametab_slot(&o->files->names, w->name), *t = *slot;
    bool plain = w->or_bf16 && is_unquantised(o, w);
    if (!t && (w->optional || (plain && w->bind == MDL_BIND_SCALE)))
        return 0;
    if (!t && !is_needed(o, w)) {
        snprintf(o->lacks, sizeof o->lacks, "%s", w->name);
        return 0;
    }
    if (!t)
        return missing(o, w);
    if (plain && w->bind == MDL_BIND_SCALE)
        return cfg_error_set(o->err, EINVAL,
                             "%s: tensor %s is a scale, but its weight is BF16; expected one or the other", t->file,
                             t->name);
    int rc = check_tensor(o, t, plain ? MDL_BF16 : w->dtype, w->ndim, w->shape, w->or_bf16 && !plain ? " or BF16" : "");
    if (rc)
        return rc;
    o->files->claimed[slot - o->files->names.slot] = 1;
    hash_tensor(o, t);
    return bind_tensor(o, w, t);
}

static bool starts(const char *s, const char *prefix)
{
    return !strncmp(s, prefix, strlen(prefix));
}

/* Names beyond the layout that published checkpoints may carry: the vision half, and the drafter's copies of embedding
 * and head, or the whole drafter when the config has none. */
static bool is_tolerated(const struct mdl_config *c, const char *name)
{
    int stage, used = 0;
    if (starts(name, "vision.") || starts(name, "aligner.") || starts(name, "image_"))
        return true;
    if (sscanf(name, "mtp.%d.%n", &stage, &used) < 1 || !used)
        return false;
    return !c->n_draft || starts(name + used, "embed.") || starts(name + used, "head.");
}

/* A text tensor that no part of the network reads means that config.json describes another model. */
static int check_unclaimed(struct opening *o)
{
    const struct files *f = o->files;
    for (size_t i = 0; i < f->count; i++) {
        for (size_t k = 0; k < mdl_st_count(f->st[i]); k++) {
            const struct mdl_tensor *t = mdl_st_at(f->st[i], k);
            size_t slot = (size_t)(mdl_nametab_slot(&f->names, t->name) - f->names.slot);
            if (!f->claimed[slot] && !is_tolerated(&o->ck->config, t->name))
                return cfg_error_set(o->err, EINVAL,
                                     "%s: tensor %.200s has no place in a model of this config.json, expected "
                                     "only tensors of its %d layers and %d drafter stages",
                                     t->file, t->name, o->ck->config.n_layers, o->ck->config.n_draft);
        }
    }
    return 0;
}

/* Runs of tensors that nobody here reads, with whatever lies between them. */
static void unmap_rest(struct opening *o)
{
    const struct files *f = o->files;
    for (size_t i = 0; i < f->count; i++) {
        const uint8_t *from = NULL, *to = NULL;
        o->ck->mapped += mdl_st_bytes(f->st[i]);
        for (size_t k = 0; o->part != MDL_PART_ALL && k <= mdl_st_count(f->st[i]); k++) {
            const struct mdl_tensor *t = mdl_st_at(f->st[i], k);
            size_t slot = t ? (size_t)(mdl_nametab_slot(&f->names, t->name) - f->names.slot) : 0;
            if (t && f->claimed[slot] != CLAIMED_BOUND) {
                from = from ? from : t->data;
                to = (const uint8_t *)t->data + t->bytes;
                continue;
            }
            if (from)
                o->ck->mapped -= mdl_st_unmap(f->st[i], from, to);
            from = NULL;
        }
    }
}

/* Of a part the other side's revision cannot be computed when the rest is not there. */
static int settle_revision(struct opening *o)
{
    uint64_t found = XXH3_64bits_digest(o->hash);
    o->ck->revision = o->lacks[0] ? o->revision : found;
    o->ck->revision_given = o->lacks[0] != 0;
    if (o->lacks[0] && !o->revision)
        return cfg_error_set(o->err, EINVAL,
                             "%s: tensor %s is not there; a node that needs only the layers up to the bridge can do "
                             "without it, but then model.revision must say which checkpoint this is: weft check prints "
                             "it where the checkpoint is whole",
                             o->dir, o->lacks);
    if (o->revision && o->ck->revision != o->revision)
        return cfg_error_set(o->err, EINVAL,
                             "%s: the checkpoint's revision is %016" PRIx64 ", but model.revision is %016" PRIx64
                             "; use the checkpoint that is meant, or correct the key",
                             o->dir, found, o->revision);
    return 0;
}

/* A tensor of the sidecar, aligned; NULL with the code in *rc when it is not there or not as it must be. */
static const void *sidecar_tensor(struct opening *o, const char *name, enum mdl_dtype dtype, int64_t n, int *rc)
{
    const struct mdl_tensor *t = mdl_st_find(o->files->sidecar, name);
    const void *data = NULL;
    if (!t) {
        *rc =
            cfg_error_set(o->err, EINVAL, "%s/engram.safetensors: tensor %s is missing, expected %s [%" PRId64 "]; %s",
                          o->dir, name, mdl_dtype_name(dtype), n, sidecar_hint);
        return NULL;
    }
    if ((*rc = check_tensor(o, t, dtype, 1, &n, "")) || (*rc = aligned_data(o, t, &data)))
        return NULL;
    XXH3_64bits_update(o->hash, t->data, t->bytes);
    return data;
}

static int check_engram_layer(struct opening *o, int slot)
{
    const struct mdl_config *c = &o->ck->config;
    struct mdl_engram *e = &o->ck->engram[slot];
    int layer = c->engram_layers[slot], n_primes = (c->engram_ngram - 1) * c->engram_heads, rc;
    char name[48];
    e->rows = c->engram_rows[slot];
    snprintf(name, sizeof name, "multipliers.%d", layer);
    if (!(e->multipliers = sidecar_tensor(o, name, MDL_I64, c->engram_ngram, &rc)))
        return rc;
    for (int i = 0; i < c->engram_ngram; i++)
        if (e->multipliers[i] < 1 || e->multipliers[i] > INT64_MAX / c->engram_compressed_vocab)
            return cfg_error_set(o->err, EINVAL,
                                 "%s/engram.safetensors: %s[%d] is %" PRId64 ", expected 1 to %" PRId64
                                 " so that no product with a compressed id overflows",
                                 o->dir, name, i, e->multipliers[i], INT64_MAX / c->engram_compressed_vocab);
    snprintf(name, sizeof name, "primes.%d", layer);
    if (!(e->primes = sidecar_tensor(o, name, MDL_I64, n_primes, &rc)))
        return rc;
    int64_t sum = 0;
    for (int i = 0; i < n_primes; i++) {
        if (e->primes[i] < 1 || e->primes[i] > e->rows)
            return cfg_error_set(o->err, EINVAL,
                                 "%s/engram.safetensors: %s[%d] is %" PRId64 ", expected 1 to %" PRId64
                                 ", the rows of the table",
                                 o->dir, name, i, e->primes[i], e->rows);
        if (__builtin_add_overflow(sum, e->primes[i], &sum))
            sum = INT64_MAX;
    }
    if (sum != e->rows)
        return cfg_error_set(o->err, EINVAL,
                             "%s/engram.safetensors: %s sum to %" PRId64 ", expected %" PRId64
                             ", the rows of layers.%d.engram.embed; the sidecar is another model's",
                             o->dir, name, sum, e->rows, layer);
    return 0;
}

static int open_sidecar(struct opening *o)
{
    const struct mdl_config *c = &o->ck->config;
    char path[PATH_MAX];
    int rc;
    if (!c->n_engram)
        return 0;
    if ((rc = path_in(o, "engram.safetensors", path)))
        return rc;
    rc = mdl_st_open(path, &o->files->sidecar, o->err);
    if (rc == -ENOENT)
        return cfg_error_set(o->err, ENOENT, "%s: the Engram sidecar is missing; %s", path, sidecar_hint);
    if (rc || !(o->ck->engram_map = sidecar_tensor(o, "compressed_ids", MDL_I32, c->vocab_size, &rc)))
        return rc;
    for (int i = 0; i < c->vocab_size; i++)
        if (o->ck->engram_map[i] < 0 || o->ck->engram_map[i] >= c->engram_compressed_vocab)
            return cfg_error_set(o->err, EINVAL,
                                 "%s: compressed_ids[%d] is %d, expected 0 to %d, below "
                                 "engram_compressed_vocab_size",
                                 path, i, o->ck->engram_map[i], c->engram_compressed_vocab - 1);
    for (int s = 0; !rc && s < c->n_engram; s++)
        rc = check_engram_layer(o, s);
    return rc;
}

static int open_all(struct opening *o)
{
    struct mdl_checkpoint *ck = o->ck;
    const struct mdl_config *c = &ck->config;
    int rc = mdl_config_load(o->dir, &ck->config, o->err);
    if (rc)
        return rc;
    if (c->cut < 0)
        o->part = MDL_PART_ALL;
    XXH3_64bits_reset(o->hash);
    hash_config(o);
    ck->layers = calloc((size_t)c->n_layers, sizeof *ck->layers);
    ck->draft = c->n_draft ? calloc((size_t)c->n_draft, sizeof *ck->draft) : NULL;
    if (!ck->layers || (c->n_draft && !ck->draft))
        return out_of_memory(o);
    if ((rc = open_weights(o)) || (rc = build_names(o)) || (rc = mdl_layout_each(c, bind_want, o)) ||
        (rc = check_unclaimed(o)) || (rc = open_sidecar(o)) || (rc = settle_revision(o)))
        return rc;
    unmap_rest(o);
    return 0;
}

int mdl_checkpoint_open(const char *dir, struct mdl_checkpoint **out, struct cfg_error *err)
{
    return mdl_checkpoint_open_part(dir, MDL_PART_ALL, 0, out, err);
}

int mdl_checkpoint_open_part(const char *dir, enum mdl_part part, uint64_t revision, struct mdl_checkpoint **out,
                             struct cfg_error *err)
{
    struct opening o = {.dir = dir,
                        .ck = calloc(1, sizeof(struct mdl_checkpoint)),
                        .files = calloc(1, sizeof(struct files)),
                        .hash = XXH3_createState(),
                        .err = err,
                        .part = part,
                        .revision = revision};
    *out = NULL;
    if (o.ck)
        o.ck->priv = o.files;
    else
        free(o.files);
    int rc = o.ck && o.files && o.hash ? open_all(&o) : out_of_memory(&o);
    XXH3_freeState(o.hash);
    if (rc)
        mdl_checkpoint_close(o.ck);
    else
        *out = o.ck;
    return rc;
}

static void close_files(struct files *f)
{
    for (size_t i = 0; i < f->count; i++)
        mdl_st_close(f->st[i]);
    mdl_st_close(f->sidecar);
    while (f->copies) {
        struct copy *next = f->copies->next;
        free(f->copies);
        f->copies = next;
    }
    mdl_nametab_free(&f->names);
    free(f->claimed);
    free(f->st);
    free(f);
}

void mdl_checkpoint_close(struct mdl_checkpoint *ck)
{
    if (!ck)
        return;
    for (int l = 0; ck->layers && l < ck->config.n_layers; l++)
        free(ck->layers[l].experts);
    for (int l = 0; ck->draft && l < ck->config.n_draft; l++)
        free(ck->draft[l].experts);
    free(ck->layers);
    free(ck->draft);
    if (ck->priv)
        close_files(ck->priv);
    free(ck);
}

const struct mdl_tensor *mdl_checkpoint_tensor(const struct mdl_checkpoint *ck, const char *name)
{
    const struct files *f = ck->priv;
    return mdl_nametab_get(&f->names, name);
}

int mdl_checkpoint_each(const struct mdl_checkpoint *ck, int (*visit)(void *arg, const struct mdl_tensor *t), void *arg)
{
    const struct files *f = ck->priv;
    for (size_t i = 0; i < f->count; i++) {
        for (size_t k = 0; k < mdl_st_count(f->st[i]); k++) {
            int rc = visit(arg, mdl_st_at(f->st[i], k));
            if (rc)
                return rc;
        }
    }
    return 0;
}
