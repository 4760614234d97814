#include "tests/harness.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/checkpoint.h"

#define MINI "tests/golden/mini8"
#define EDGE "tests/golden/edge"

/* ---- a scratch model: a copy of a golden one with something changed ---- */

struct scratch {
    char dir[48];
};

/* What rewrite does to one tensor of the copy. */
struct change {
    const char *name;     /* the tensor */
    const char *new_name; /* NULL: same */
    int drop;
    enum mdl_dtype dtype; /* MDL_DTYPE_COUNT: same */
    int ndim;             /* 0: same shape */
    int64_t shape[2];
};

static void path_of(const struct scratch *s, const char *name, char path[160])
{
    snprintf(path, 160, "%s/%s", s->dir, name);
}

static void copy_file(const char *from, const char *to)
{
    char buf[65536];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    cr_assert(in && out, "%s to %s", from, to);
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, in)) > 0)
        cr_assert_eq(fwrite(buf, 1, n, out), n);
    fclose(in);
    cr_assert_eq(fclose(out), 0);
}

static void scratch_new(struct scratch *s, const char *from)
{
    char a[160], b[160];
    snprintf(s->dir, sizeof s->dir, "/tmp/weft-ckpt-XXXXXX");
    cr_assert_not_null(mkdtemp(s->dir));
    static const char *const files[] = {"config.json",
                                        "engram.safetensors",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(a, sizeof a, "%s/%s", from, files[i]);
        path_of(s, files[i], b);
        if (!access(a, F_OK))
            copy_file(a, b);
    }
}

static void scratch_remove(const struct scratch *s, const char *name)
{
    char path[160];
    path_of(s, name, path);
    unlink(path);
}

static void scratch_free(struct scratch *s)
{
    static const char *const files[] = {"config.json",
                                        "engram.safetensors",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors",
                                        "extra.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        scratch_remove(s, files[i]);
    cr_expect_eq(rmdir(s->dir), 0, "%s", s->dir);
}

/* Writes one safetensors file of the scratch anew, from its golden original, with changes. add: a tensor more. */
static void rewrite_file(const struct scratch *s, const char *from, const char *file, const struct change *changes,
                         size_t n, const char *add)
{
    static const uint16_t zeros[8];
    char source[160], path[160];
    struct mdl_st *st;
    struct cfg_error err = {{0}};
    snprintf(source, sizeof source, "%s/%s", from, file);
    path_of(s, file, path);
    cr_assert_eq(mdl_st_open(source, &st, &err), 0, "%s", err.msg);
    struct mdl_st_writer *w = mdl_st_writer_new();
    for (size_t i = 0; i < mdl_st_count(st); i++) {
        const struct mdl_tensor *t = mdl_st_at(st, i);
        struct change c = {t->name, NULL, 0, MDL_DTYPE_COUNT, 0, {0}};
        for (size_t k = 0; k < n; k++)
            if (!strcmp(changes[k].name, t->name))
                c = changes[k];
        if (c.drop)
            continue;
        cr_assert_eq(mdl_st_writer_add(w, c.new_name ? c.new_name : t->name,
                                       c.dtype == MDL_DTYPE_COUNT ? t->dtype : c.dtype, c.ndim ? c.ndim : t->ndim,
                                       c.ndim ? c.shape : t->shape, t->data),
                     0, "%s", t->name);
    }
    const int64_t eight[] = {8};
    if (add)
        cr_assert_eq(mdl_st_writer_add(w, add, MDL_BF16, 1, eight, zeros), 0);
    cr_assert_eq(mdl_st_writer_save(w, path, &err), 0, "%s", err.msg);
    mdl_st_writer_free(w);
    mdl_st_close(st);
}

static void rewrite(const struct scratch *s, const struct change *change, const char *add)
{
    rewrite_file(s, MINI, "model.safetensors", change, change ? 1 : 0, add);
}

static void edit_json(const struct scratch *s, const char *file, void (*edit)(json_t *root))
{
    char path[160];
    path_of(s, file, path);
    json_t *root = json_load_file(path, 0, NULL);
    cr_assert_not_null(root);
    edit(root);
    cr_assert_eq(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

static void expect_refused(const struct scratch *s, int code, const char *message)
{
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    int rc = mdl_checkpoint_open(s->dir, &ck, &err);
    cr_expect_eq(rc, code, "%d: %s", rc, err.msg);
    cr_expect_null(ck);
    cr_expect_not_null(strstr(err.msg, message), "expected \"%s\", got \"%s\"", message, err.msg);
    mdl_checkpoint_close(ck);
}

static uint64_t revision_of(const char *dir)
{
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_checkpoint_open(dir, &ck, &err), 0, "%s", err.msg);
    uint64_t revision = ck->revision;
    mdl_checkpoint_close(ck);
    return revision;
}

/* ---- what opens ---- */

static void expect_linear(const struct mdl_linear *l, enum mdl_wkind kind, int n, int k, const char *name)
{
    cr_expect_eq(l->kind, kind, "%s", name);
    cr_expect_eq(l->n, n, "%s", name);
    cr_expect_eq(l->k, k, "%s", name);
    cr_expect_not_null(l->data, "%s", name);
    cr_expect_eq(l->scale != NULL, kind == MDL_W_FP8 || kind == MDL_W_FP4, "%s", name);
}

Test(checkpoint, binds_every_tensor_of_a_layer)
{
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_checkpoint_open(MINI, &ck, &err), 0, "%s", err.msg);
    const struct mdl_block *b = &ck->layers[1]; /* source with a gate, and Engram */
    expect_linear(&b->wq_a, MDL_W_FP8, 64, 128, "wq_a");
    expect_linear(&b->wq_b, MDL_W_FP8, 256, 64, "wq_b");
    expect_linear(&b->wkv, MDL_W_FP8, 64, 128, "wkv");
    expect_linear(&b->wo_a, MDL_W_FP8, 128, 128, "wo_a");
    expect_linear(&b->wo_b, MDL_W_FP8, 128, 128, "wo_b");
    expect_linear(&b->comp_wkv, MDL_W_BF16, 64, 128, "comp_wkv");
    expect_linear(&b->comp_wgate, MDL_W_BF16, 64, 128, "comp_wgate");
    expect_linear(&b->idx_wk, MDL_W_BF16, 64, 64, "idx_wk");
    expect_linear(&b->idx_wq_b, MDL_W_FP8, 256, 64, "idx_wq_b");
    expect_linear(&b->idx_weights, MDL_W_BF16, 4, 128, "idx_weights");
    expect_linear(&b->gate, MDL_W_BF16, 8, 128, "gate");
    expect_linear(&b->shared.w1, MDL_W_FP8, 64, 128, "shared w1");
    expect_linear(&b->shared.w2, MDL_W_FP8, 128, 64, "shared w2");
    cr_assert_eq(b->n_experts, 8);
    for (int e = 0; e < 8; e++) {
        expect_linear(&b->experts[e].w1, MDL_W_FP4, 64, 128, "w1");
        expect_linear(&b->experts[e].w2, MDL_W_FP4, 128, 64, "w2");
        expect_linear(&b->experts[e].w3, MDL_W_FP4, 64, 128, "w3");
    }
    const void *const vectors[] = {b->attn_norm,
                                   b->ffn_norm,
                                   b->hc_attn.fn,
                                   b->hc_attn.base,
                                   b->hc_attn.scale,
                                   b->hc_ffn.fn,
                                   b->hc_ffn.base,
                                   b->hc_ffn.scale,
                                   b->q_norm,
                                   b->kv_norm,
                                   b->attn_sink,
                                   b->comp_norm,
                                   b->idx_k_norm,
                                   b->gate_bias,
                                   ck->embed,
                                   ck->norm,
                                   ck->main_norm,
                                   ck->draft_norm,
                                   ck->markov_embed,
                                   ck->engram_map,
                                   ck->engram[1].table,
                                   ck->engram[1].table_scale,
                                   ck->engram[1].q_weight,
                                   ck->engram[1].k_weight,
                                   ck->engram[1].multipliers,
                                   ck->engram[1].primes};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        cr_expect_not_null(vectors[i], "%zu", i);
    expect_linear(&ck->head, MDL_W_BF16, 512, 128, "head");
    expect_linear(&ck->engram[1].wkv, MDL_W_FP8, 640, 192, "engram wkv");
    expect_linear(&ck->main_proj, MDL_W_FP8, 128, 384, "main_proj");
    expect_linear(&ck->markov_head, MDL_W_BF16, 512, 32, "markov_head");
    expect_linear(&ck->confidence, MDL_W_BF16, 1, 160, "confidence");
    cr_expect_eq(ck->engram[1].rows, 864);
    cr_expect_eq(ck->engram[1].primes[0], 131);
    cr_expect_eq(ck->draft[1].n_experts, 4);
    expect_linear(&ck->draft[1].wq_a, MDL_W_FP8, 64, 128, "drafter wq_a");
    mdl_checkpoint_close(ck);
}

Test(checkpoint, roles_decide_which_tensors_exist)
{
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_checkpoint_open(MINI, &ck, &err), 0, "%s", err.msg);
    cr_expect_not_null(ck->layers[4].comp_wkv.data);
    cr_expect_null(ck->layers[4].comp_wgate.data, "ratio 1 has no gate");
    cr_expect_null(ck->layers[2].comp_wkv.data, "a reuse layer owns nothing");
    cr_expect_null(ck->layers[2].idx_wq_b.data);
    cr_expect_null(ck->layers[6].idx_wk.data, "a reindexing layer reads its source's keys");
    cr_expect_not_null(ck->layers[6].idx_wq_b.data);
    mdl_checkpoint_close(ck);
}

Test(checkpoint, points_at_the_bytes_of_the_file)
{
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_checkpoint_open(MINI, &ck, &err), 0, "%s", err.msg);
    const struct {
        const char *name;
        const void *data;
    } cases[] = {
        {"embed.weight", ck->embed},
        {"layers.7.ffn.experts.7.w3.weight", ck->layers[7].experts[7].w3.data},
        {"layers.7.ffn.experts.7.w3.scale", ck->layers[7].experts[7].w3.scale},
        {"layers.0.engram.embed.weight", ck->engram[0].table},
        {"layers.1.engram.embed.scale", ck->engram[1].table_scale},
        {"mtp.0.ffn.experts.3.w2.weight", ck->draft[0].experts[3].w2.data},
        {"mtp.1.attn.wo_b.scale", ck->draft[1].wo_b.scale},
        {"layers.3.hc_ffn_scale", ck->layers[3].hc_ffn.scale},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct mdl_tensor *t = mdl_checkpoint_tensor(ck, cases[i].name);
        cr_assert_not_null(t, "%s", cases[i].name);
        cr_expect_eq(t->data, cases[i].data, "%s", cases[i].name);
    }
    cr_expect_null(mdl_checkpoint_tensor(ck, "layers.8.attn_norm.weight"));
    mdl_checkpoint_close(ck);
}

Test(checkpoint, shards_and_vision)
{
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_checkpoint_open(EDGE, &ck, &err), 0, "%s", err.msg);
    cr_expect_not_null(mdl_checkpoint_tensor(ck, "vision.patch_embed.weight"));
    cr_expect_eq(ck->config.n_layers, 5);
    cr_expect_not_null(ck->layers[4].experts[3].w2.scale);
    mdl_checkpoint_close(ck);
    cr_assert_eq(mdl_checkpoint_open("tests/golden/modules", &ck, &err), 0, "%s", err.msg);
    mdl_checkpoint_close(ck);
}

static int count_tensor(void *arg, const struct mdl_tensor *t)
{
    ++*(int *)arg;
    return strcmp(t->name, "embed.weight") ? 0 : 42;
}

Test(checkpoint, each_visits_all_files)
{
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    int n = 0;
    cr_assert_eq(mdl_checkpoint_open(EDGE, &ck, &err), 0, "%s", err.msg);
    cr_expect_eq(mdl_checkpoint_each(ck, count_tensor, &n), 42);
    cr_expect_lt(n, 358);
    mdl_checkpoint_close(ck);
}

/* One space more in the header moves all data to odd addresses. */
static void shift_data(const char *path)
{
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f);
    fseek(f, 0, SEEK_END);
    long len = ftell(f);
    rewind(f);
    uint8_t *p = malloc((size_t)len);
    cr_assert_not_null(p);
    cr_assert_eq(fread(p, 1, (size_t)len, f), (size_t)len);
    fclose(f);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | p[i];
    f = fopen(path, "wb");
    cr_assert_not_null(f);
    uint8_t size[8];
    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)((header + 1) >> 8 * i);
    fwrite(size, 1, 8, f);
    fwrite(p + 8, 1, header, f);
    fputc(' ', f);
    fwrite(p + 8 + header, 1, (size_t)len - 8 - header, f);
    cr_assert_eq(fclose(f), 0);
    free(p);
}

Test(checkpoint, misaligned_tensors_are_copied)
{
    struct scratch s;
    struct mdl_checkpoint *a, *b;
    struct cfg_error err = {{0}};
    char path[160];
    scratch_new(&s, MINI);
    path_of(&s, "model.safetensors", path);
    shift_data(path);
    path_of(&s, "engram.safetensors", path);
    shift_data(path);
    cr_assert_eq(mdl_checkpoint_open(MINI, &a, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_checkpoint_open(s.dir, &b, &err), 0, "%s", err.msg);
    cr_expect_neq((uintptr_t)mdl_checkpoint_tensor(b, "norm.weight")->data % 2, 0, "the file is not shifted");
    cr_expect_eq((uintptr_t)b->layers[0].hc_attn.fn % 4, 0);
    cr_expect_eq((uintptr_t)b->head.data % 2, 0);
    cr_expect_eq((uintptr_t)b->engram[0].primes % 8, 0);
    cr_expect_arr_eq(a->layers[0].hc_attn.fn, b->layers[0].hc_attn.fn, 24 * 512 * sizeof(float));
    cr_expect_eq(memcmp(a->head.data, b->head.data, 512 * 128 * 2), 0);
    cr_expect_eq(memcmp(a->engram[1].multipliers, b->engram[1].multipliers, 4 * 8), 0);
    cr_expect_eq(b->layers[0].wq_a.data, mdl_checkpoint_tensor(b, "layers.0.attn.wq_a.weight")->data,
                 "bytes stay in place");
    cr_expect_eq(a->revision, b->revision);
    mdl_checkpoint_close(a);
    mdl_checkpoint_close(b);
    scratch_free(&s);
}

Test(checkpoint, output_projection_in_bf16)
{
    struct scratch s;
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    scratch_new(&s, MINI);
    static const char weight[] = "layers.0.attn.wo_a.weight", scale_name[] = "layers.0.attn.wo_a.scale";
    static uint16_t plain[128 * 128];
    const int64_t square[] = {128, 128};
    struct mdl_st *st;
    char path[160];
    path_of(&s, "model.safetensors", path);
    cr_assert_eq(mdl_st_open(MINI "/model.safetensors", &st, &err), 0, "%s", err.msg);
    struct mdl_st_writer *w = mdl_st_writer_new();
    for (size_t i = 0; i < mdl_st_count(st); i++) {
        const struct mdl_tensor *t = mdl_st_at(st, i);
        if (strcmp(t->name, weight) != 0 && strcmp(t->name, scale_name) != 0)
            cr_assert_eq(mdl_st_writer_add(w, t->name, t->dtype, t->ndim, t->shape, t->data), 0);
    }
    cr_assert_eq(mdl_st_writer_add(w, weight, MDL_BF16, 2, square, plain), 0);
    cr_assert_eq(mdl_st_writer_save(w, path, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_checkpoint_open(s.dir, &ck, &err), 0, "%s", err.msg);
    expect_linear(&ck->layers[0].wo_a, MDL_W_BF16, 128, 128, "wo_a");
    expect_linear(&ck->layers[1].wo_a, MDL_W_FP8, 128, 128, "wo_a");
    mdl_checkpoint_close(ck);
    /* With a scale beside it nobody can tell which is meant. */
    const struct mdl_tensor *scale = mdl_st_find(st, scale_name);
    cr_assert_eq(mdl_st_writer_add(w, scale->name, scale->dtype, scale->ndim, scale->shape, scale->data), 0);
    cr_assert_eq(mdl_st_writer_save(w, path, &err), 0, "%s", err.msg);
    expect_refused(&s, -EINVAL, "layers.0.attn.wo_a.scale is a scale, but its weight is BF16");
    mdl_st_writer_free(w);
    mdl_st_close(st);
    scratch_free(&s);
}

Test(checkpoint, tolerated_names)
{
    static const char *const names[] = {"vision.blocks.0.x", "aligner.y", "image_newline", "mtp.0.embed.weight",
                                        "mtp.1.head.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct scratch s;
        struct mdl_checkpoint *ck;
        struct cfg_error err = {{0}};
        scratch_new(&s, MINI);
        rewrite(&s, NULL, names[i]);
        cr_expect_eq(mdl_checkpoint_open(s.dir, &ck, &err), 0, "%s: %s", names[i], err.msg);
        mdl_checkpoint_close(ck);
        scratch_free(&s);
    }
}

Test(checkpoint, optional_bias_may_be_absent)
{
    struct scratch s;
    struct change c = {"layers.3.ffn.gate.bias_vl", NULL, 1, MDL_DTYPE_COUNT, 0, {0}};
    scratch_new(&s, MINI);
    rewrite(&s, &c, NULL);
    revision_of(s.dir);
    scratch_free(&s);
}

Test(checkpoint, revision_names_the_content)
{
    struct scratch s;
    uint64_t original = revision_of(MINI);
    cr_expect_eq(original, revision_of(MINI));
    cr_expect_neq(original, revision_of("tests/golden/modules"));
    scratch_new(&s, MINI);
    rewrite(&s, NULL, NULL); /* same tensors in another order and place */
    cr_expect_eq(revision_of(s.dir), original);
    /* One small tensor under another's content. */
    struct change swap[] = {
        {"layers.0.attn_norm.weight", "layers.0.ffn_norm.weight", 0, MDL_DTYPE_COUNT, 0, {0}},
        {"layers.0.ffn_norm.weight", "layers.0.attn_norm.weight", 0, MDL_DTYPE_COUNT, 0, {0}},
    };
    rewrite_file(&s, MINI, "model.safetensors", swap, 2, NULL);
    cr_expect_neq(revision_of(s.dir), original);
    scratch_free(&s);
}

/* ---- what is refused ---- */

Test(checkpoint, wrong_tensors_are_named)
{
    static const struct {
        struct change change;
        const char *message;
    } cases[] = {
        {{"norm.weight", NULL, 1, MDL_DTYPE_COUNT, 0, {0}}, "tensor norm.weight is missing, expected BF16"},
        {{"layers.1.attn.compressor.wgate.weight", NULL, 1, MDL_DTYPE_COUNT, 0, {0}},
         "tensor layers.1.attn.compressor.wgate.weight is missing"},
        {{"layers.7.ffn.experts.7.w2.scale", NULL, 1, MDL_DTYPE_COUNT, 0, {0}},
         "tensor layers.7.ffn.experts.7.w2.scale is missing, expected F8_E8M0"},
        {{"mtp.1.markov_head.head.weight", NULL, 1, MDL_DTYPE_COUNT, 0, {0}},
         "tensor mtp.1.markov_head.head.weight is missing"},
        {{"embed.weight", NULL, 0, MDL_F16, 0, {0}}, "tensor embed.weight is F16 [512, 128], expected BF16 [512, 128]"},
        {{"embed.weight", NULL, 0, MDL_DTYPE_COUNT, 2, {128, 512}},
         "tensor embed.weight is BF16 [128, 512], expected BF16 [512, 128]"},
        {{"norm.weight", NULL, 0, MDL_DTYPE_COUNT, 2, {1, 128}},
         "tensor norm.weight is BF16 [1, 128], expected BF16 [128]"},
        {{"layers.0.attn.wq_a.weight", NULL, 0, MDL_I8, 0, {0}},
         "tensor layers.0.attn.wq_a.weight is I8 [64, 128], expected F8_E4M3 [64, 128]"},
        {{"layers.0.attn.wo_a.weight", NULL, 0, MDL_I8, 0, {0}},
         "tensor layers.0.attn.wo_a.weight is I8 [128, 128], expected F8_E4M3 or BF16 [128, 128]"},
        {{"layers.0.ffn.experts.0.w1.weight", NULL, 0, MDL_F8_E4M3, 0, {0}}, "expected I8 [64, 64]"},
        {{"layers.0.hc_attn_scale", NULL, 0, MDL_I32, 0, {0}}, "layers.0.hc_attn_scale is I32 [3], expected F32 [3]"},
        {{"layers.3.ffn.gate.bias_vl", NULL, 0, MDL_I32, 0, {0}},
         "layers.3.ffn.gate.bias_vl is I32 [8], expected F32 [8]"},
        {{"layers.0.attn_norm.weight", "layers.0.self_attn.norm.weight", 0, MDL_DTYPE_COUNT, 0, {0}},
         "converted to other names (transformers style)"},
        {{"embed.weight", "model.embed_tokens.weight", 0, MDL_DTYPE_COUNT, 0, {0}},
         "model.embed_tokens.weight is there"},
        {{"layers.0.attn.wq_a.scale", "layers.0.attn.wq_a.weight_scale_inv", 0, MDL_DTYPE_COUNT, 0, {0}},
         "tensor layers.0.attn.wq_a.scale is missing, but layers.0.attn.wq_a.weight_scale_inv is there"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scratch s;
        scratch_new(&s, MINI);
        rewrite(&s, &cases[i].change, NULL);
        expect_refused(&s, -EINVAL, cases[i].message);
        scratch_free(&s);
    }
}

Test(checkpoint, tensors_without_a_place)
{
    static const char *const names[] = {"layers.8.attn_norm.weight", "layers.2.attn.compressor.wkv.weight",
                                        "mtp.2.attn_norm.weight", "hc_head_fn", "mtp.x.embed.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct scratch s;
        char message[128];
        scratch_new(&s, MINI);
        rewrite(&s, NULL, names[i]);
        snprintf(message, sizeof message, "tensor %s has no place in a model of this config.json", names[i]);
        expect_refused(&s, -EINVAL, message);
        scratch_free(&s);
    }
}

Test(checkpoint, truncated_weights)
{
    struct scratch s;
    char path[160];
    scratch_new(&s, MINI);
    path_of(&s, "model.safetensors", path);
    cr_assert_eq(truncate(path, 3726243), 0);
    expect_refused(&s, -EINVAL, "the file is truncated");
    cr_assert_eq(truncate(path, 1000), 0);
    expect_refused(&s, -EINVAL, "the file is truncated");
    cr_assert_eq(truncate(path, 0), 0);
    expect_refused(&s, -EINVAL, "too short");
    scratch_remove(&s, "model.safetensors");
    expect_refused(&s, -ENOENT, "neither model.safetensors nor model.safetensors.index.json");
    scratch_remove(&s, "config.json");
    expect_refused(&s, -ENOENT, "config.json");
    scratch_free(&s);
}

/* ---- index files ---- */

static json_t *weight_map(json_t *root)
{
    return json_object_get(root, "weight_map");
}

static void no_map(json_t *root)
{
    json_object_del(root, "weight_map");
}

static void map_is_text(json_t *root)
{
    json_object_set_new(root, "weight_map", json_string("x"));
}

static void map_to_number(json_t *root)
{
    json_object_set_new(weight_map(root), "norm.weight", json_integer(1));
}

static void map_outside(json_t *root)
{
    json_object_set_new(weight_map(root), "norm.weight", json_string("../model.safetensors"));
}

static void map_absolute(json_t *root)
{
    json_object_set_new(weight_map(root), "norm.weight", json_string("/etc/passwd"));
}

static void map_to_parent(json_t *root)
{
    json_object_set_new(weight_map(root), "norm.weight", json_string(".."));
}

static void map_to_missing(json_t *root)
{
    json_object_set_new(weight_map(root), "norm.weight", json_string("model-00003-of-00003.safetensors"));
}

static void map_unknown_tensor(json_t *root)
{
    json_object_set_new(weight_map(root), "no.such.tensor", json_string("model-00001-of-00002.safetensors"));
}

Test(checkpoint, hostile_index)
{
    static const struct {
        void (*edit)(json_t *root);
        int code;
        const char *message;
    } cases[] = {
        {no_map, -EINVAL, "weight_map is missing or empty"},
        {map_is_text, -EINVAL, "weight_map is missing or empty"},
        {map_to_number, -EINVAL, "tensor norm.weight: the shard is \"not a string\""},
        {map_outside, -EINVAL,
         "tensor norm.weight: the shard is \"../model.safetensors\", expected the name of a file in the same"},
        {map_absolute, -EINVAL, "the shard is \"/etc/passwd\""},
        {map_to_parent, -EINVAL, "the shard is \"..\""},
        {map_to_missing, -ENOENT, "model-00003-of-00003.safetensors"},
        {map_unknown_tensor, -EINVAL, "tensor no.such.tensor is not in its shard model-00001-of-00002.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scratch s;
        scratch_new(&s, EDGE);
        edit_json(&s, "model.safetensors.index.json", cases[i].edit);
        expect_refused(&s, cases[i].code, cases[i].message);
        scratch_free(&s);
    }
}

Test(checkpoint, index_that_is_no_json)
{
    struct scratch s;
    char path[160];
    scratch_new(&s, EDGE);
    path_of(&s, "model.safetensors.index.json", path);
    cr_assert_eq(truncate(path, 100), 0);
    expect_refused(&s, -EINVAL, "not valid JSON");
    scratch_free(&s);
}

static void map_extra(json_t *root)
{
    json_object_set_new(weight_map(root), "vision.extra", json_string("extra.safetensors"));
}

Test(checkpoint, one_tensor_in_two_shards)
{
    struct scratch s;
    static const uint16_t zeros[96];
    const int64_t shape[] = {96};
    struct cfg_error err = {{0}};
    char path[160];
    scratch_new(&s, EDGE);
    edit_json(&s, "model.safetensors.index.json", map_extra);
    path_of(&s, "extra.safetensors", path);
    struct mdl_st_writer *w = mdl_st_writer_new();
    cr_assert_eq(mdl_st_writer_add(w, "vision.extra", MDL_BF16, 1, shape, zeros), 0);
    cr_assert_eq(mdl_st_writer_save(w, path, &err), 0, "%s", err.msg);
    revision_of(s.dir);
    cr_assert_eq(mdl_st_writer_add(w, "norm.weight", MDL_BF16, 1, shape, zeros), 0);
    cr_assert_eq(mdl_st_writer_save(w, path, &err), 0, "%s", err.msg);
    mdl_st_writer_free(w);
    expect_refused(&s, -EINVAL, "tensor norm.weight is in both");
    scratch_free(&s);
}

/* ---- the sidecar ---- */

Test(checkpoint, missing_sidecar_names_the_tool)
{
    struct scratch s;
    scratch_new(&s, MINI);
    scratch_remove(&s, "engram.safetensors");
    expect_refused(&s, -ENOENT, "derive it with tools/train/engram_sidecar.py");
    scratch_free(&s);
}

Test(checkpoint, sidecar_tensors_are_checked)
{
    static const struct {
        struct change change;
        const char *message;
    } cases[] = {
        {{"compressed_ids", NULL, 1, MDL_DTYPE_COUNT, 0, {0}}, "tensor compressed_ids is missing, expected I32 [512]"},
        {{"compressed_ids", NULL, 0, MDL_F32, 0, {0}}, "tensor compressed_ids is F32 [512], expected I32 [512]"},
        {{"compressed_ids", NULL, 0, MDL_DTYPE_COUNT, 1, {511}},
         "tensor compressed_ids is I32 [511], expected I32 [512]"},
        {{"multipliers.0", NULL, 1, MDL_DTYPE_COUNT, 0, {0}}, "tensor multipliers.0 is missing, expected I64 [4]"},
        {{"multipliers.1", "multipliers.2", 0, MDL_DTYPE_COUNT, 0, {0}}, "tensor multipliers.1 is missing"},
        {{"primes.1", NULL, 0, MDL_DTYPE_COUNT, 1, {5}}, "tensor primes.1 is I64 [5], expected I64 [6]"},
        {{"primes.0", "primes.1x", 0, MDL_DTYPE_COUNT, 0, {0}}, "tensor primes.0 is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scratch s;
        scratch_new(&s, MINI);
        rewrite_file(&s, MINI, "engram.safetensors", &cases[i].change, 1, NULL);
        expect_refused(&s, -EINVAL, cases[i].message);
        scratch_free(&s);
    }
    /* Each layer's primes must sum to its own table: exchanged, they do not. */
    struct scratch s;
    struct change swap[] = {
        {"primes.0", "primes.1", 0, MDL_DTYPE_COUNT, 0, {0}},
        {"primes.1", "primes.0", 0, MDL_DTYPE_COUNT, 0, {0}},
    };
    scratch_new(&s, MINI);
    rewrite_file(&s, MINI, "engram.safetensors", swap, 2, NULL);
    expect_refused(&s, -EINVAL, "primes.0 sum to 864, expected 660");
    scratch_free(&s);
}

/* Overwrites 8 or 4 bytes of a sidecar tensor in place. */
static void poke(const struct scratch *s, const char *name, int index, int64_t value)
{
    struct mdl_st *st;
    struct cfg_error err = {{0}};
    char path[160];
    path_of(s, "engram.safetensors", path);
    cr_assert_eq(mdl_st_open(path, &st, &err), 0, "%s", err.msg);
    const struct mdl_tensor *first = mdl_st_at(st, 0), *t = mdl_st_find(st, name);
    struct stat sb;
    cr_assert_eq(stat(path, &sb), 0);
    size_t data = 0, size = mdl_dtype_size(t->dtype);
    for (size_t i = 0; i < mdl_st_count(st); i++)
        data += mdl_st_at(st, i)->bytes;
    long at = (long)((size_t)sb.st_size - data + (size_t)((const char *)t->data - (const char *)first->data) +
                     size * (size_t)index);
    int32_t narrow = (int32_t)value;
    FILE *f = fopen(path, "r+b");
    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, at, SEEK_SET), 0);
    cr_assert_eq(fwrite(size == 8 ? (const void *)&value : &narrow, size, 1, f), 1);
    cr_assert_eq(fclose(f), 0);
    mdl_st_close(st);
}

Test(checkpoint, sidecar_values_are_checked)
{
    static const struct {
        const char *name;
        int index;
        int64_t value;
        const char *message;
    } cases[] = {
        {"compressed_ids", 511, 384, "compressed_ids[511] is 384, expected 0 to 383"},
        {"compressed_ids", 0, -1, "compressed_ids[0] is -1, expected 0 to 383"},
        {"multipliers.0", 3, -5, "multipliers.0[3] is -5, expected 1 to"},
        {"multipliers.1", 0, 0, "multipliers.1[0] is 0, expected 1 to"},
        {"multipliers.1", 2, INT64_MAX / 300, "so that no product with a compressed id overflows"},
        {"primes.1", 5, 0, "primes.1[5] is 0, expected 1 to 864"},
        {"primes.0", 0, -101, "primes.0[0] is -101"},
        {"primes.0", 0, INT64_MAX, "primes.0[0] is 9223372036854775807, expected 1 to 660"},
        {"primes.0", 1, 104, "primes.0 sum to 661, expected 660, the rows of layers.0.engram.embed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scratch s;
        scratch_new(&s, MINI);
        poke(&s, cases[i].name, cases[i].index, cases[i].value);
        expect_refused(&s, -EINVAL, cases[i].message);
        scratch_free(&s);
    }
}

static void fewer_layers(json_t *root)
{
    json_t *t = json_object_get(root, "text_config"), *ratios = json_object_get(t, "compress_ratios");
    json_object_set_new(t, "num_hidden_layers", json_integer(7));
    json_array_remove(ratios, 7);
    json_object_set_new(t, "dspark_target_layer_ids", json_pack("[i,i,i]", 4, 5, 6));
}

static void no_drafter(json_t *root)
{
    json_t *t = json_object_get(root, "text_config"), *ratios = json_object_get(t, "compress_ratios");
    json_object_set_new(t, "num_nextn_predict_layers", json_integer(0));
    json_array_remove(ratios, 9);
    json_array_remove(ratios, 8);
}

Test(checkpoint, config_of_another_model)
{
    struct scratch s;
    scratch_new(&s, MINI);
    edit_json(&s, "config.json", fewer_layers);
    expect_refused(&s, -EINVAL, "has no place in a model of this config.json, expected only tensors of its 7 layers");
    scratch_free(&s);
    /* A drafter that the config does not use is no contradiction. */
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    scratch_new(&s, MINI);
    edit_json(&s, "config.json", no_drafter);
    cr_assert_eq(mdl_checkpoint_open(s.dir, &ck, &err), 0, "%s", err.msg);
    cr_expect_null(ck->draft);
    cr_expect_null(ck->main_proj.data);
    mdl_checkpoint_close(ck);
    scratch_free(&s);
}
