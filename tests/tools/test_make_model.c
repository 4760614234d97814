#include "tests/harness.h"

#include <unistd.h>

#include "model/checkpoint.h"
#include "tests/support/process.h"

struct made {
    char *base, dir[128];
};

static void made_new(struct made *m)
{
    m->base = ts_temp_dir();
    cr_assert_not_null(m->base);
    snprintf(m->dir, sizeof m->dir, "%s/model", m->base);
}

static void made_free(struct made *m)
{
    ts_remove_dir(m->base);
    free(m->base);
}

/* Runs the generator with up to four arguments more; returns its exit status. */
static int make_with(const struct made *m, const char *a, const char *b, const char *c, const char *d)
{
    struct ts_result r = ts_run(ts_program("tools/make_model"), "--out", m->dir, a, b, c, d);
    int status = r.status;
    cr_expect_eq(status == 0, r.err_len == 0, "%s", r.err);
    ts_result_free(&r);
    return status;
}

static uint64_t open_made(const struct made *m, struct mdl_config *c)
{
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_checkpoint_open(m->dir, &ck, &err), 0, "%s", err.msg);
    *c = ck->config;
    uint64_t revision = ck->revision;
    mdl_checkpoint_close(ck);
    return revision;
}

Test(make_model, presets_open)
{
    static const struct {
        const char *preset;
        int layers, cut, draft, vision;
    } cases[] = {{"--preset=mini", 8, 4, 2, 0}, {"--preset=edge", 5, 3, 1, 1}};
    for (size_t i = 0; i < 2; i++) {
        struct made m;
        struct mdl_config c;
        made_new(&m);
        cr_assert_eq(make_with(&m, cases[i].preset, NULL, NULL, NULL), 0);
        open_made(&m, &c);
        cr_expect_eq(c.n_layers, cases[i].layers);
        cr_expect_eq(c.cut, cases[i].cut);
        cr_expect_eq(c.n_draft, cases[i].draft);
        cr_expect_eq(c.has_vision, cases[i].vision);
        cr_expect_eq(make_with(&m, cases[i].preset, NULL, NULL, NULL), 1, "a model is never overwritten");
        made_free(&m);
    }
}

Test(make_model, data_depends_on_the_seed_and_not_on_the_shards)
{
    struct made a, b, c;
    struct mdl_config config;
    made_new(&a);
    made_new(&b);
    made_new(&c);
    cr_assert_eq(make_with(&a, "--seed=7", NULL, NULL, NULL), 0);
    cr_assert_eq(make_with(&b, "--seed=7", "--shard-bytes=300000", NULL, NULL), 0);
    cr_assert_eq(make_with(&c, "--seed=8", NULL, NULL, NULL), 0);
    char path[192];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", b.dir);
    cr_expect_eq(access(path, F_OK), 0);
    uint64_t revision = open_made(&a, &config);
    cr_expect_eq(open_made(&b, &config), revision);
    cr_expect_neq(open_made(&c, &config), revision);
    made_free(&a);
    made_free(&b);
    made_free(&c);
}

Test(make_model, sizes_can_be_chosen)
{
    struct made m;
    struct mdl_config c;
    made_new(&m);
    cr_assert_eq(make_with(&m, "--hidden=64", "--engram-heads=0", "--draft=0", "--experts=3"), 0);
    open_made(&m, &c);
    cr_expect_eq(c.hidden, 64);
    cr_expect_eq(c.n_engram, 0);
    cr_expect_eq(c.n_draft, 0);
    cr_expect_eq(c.n_experts, 3);
    made_free(&m);
}

Test(make_model, impossible_sizes_are_refused)
{
    static const struct {
        const char *flag;
        int status;
    } cases[] = {{"--hidden=100", 1},  {"--cut=8", 2},        {"--layers=300", 2}, {"--topk=9", 1}, {"--hidden=x", 2},
                 {"--preset=huge", 2}, {"--no-such-flag", 2}, {"--share=0", 2},    {"stray", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct made m;
        made_new(&m);
        cr_expect_eq(make_with(&m, cases[i].flag, NULL, NULL, NULL), cases[i].status, "%s", cases[i].flag);
        made_free(&m);
    }
}

/* As many tensors and shards as the published model has, in little. */
Test(make_model, published_number_of_tensors_opens)
{
    struct made m;
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    made_new(&m);
    struct ts_result r = ts_run(ts_program("tools/make_model"), "--out", m.dir, "--layers=40", "--swa-layers=2",
                                "--cut=20", "--share=6", "--reindex=4", "--experts=384", "--topk=6", "--hidden=32",
                                "--inter=32", "--q-lora=32", "--heads=2", "--head-dim=32", "--o-lora=16",
                                "--index-dim=32", "--draft=3", "--draft-experts=128", "--shard-bytes=650000");
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_expect_not_null(strstr(r.out, "95819 tensors"), "%s", r.out);
    ts_result_free(&r);
    cr_assert_eq(mdl_checkpoint_open(m.dir, &ck, &err), 0, "%s", err.msg);
    cr_expect_eq(ck->config.cut, 20);
    cr_expect_not_null(ck->layers[39].experts[383].w2.scale);
    mdl_checkpoint_close(ck);
    made_free(&m);
}

/* The numbers have to look like weights: no NaN code anywhere, spread as asked, scales of several sizes. */
Test(make_model, values_are_well_conditioned)
{
    struct made m;
    struct mdl_checkpoint *ck;
    struct cfg_error err = {{0}};
    made_new(&m);
    cr_assert_eq(make_with(&m, NULL, NULL, NULL, NULL), 0);
    cr_assert_eq(mdl_checkpoint_open(m.dir, &ck, &err), 0, "%s", err.msg);
    const struct mdl_linear *l = &ck->layers[0].wq_b; /* 256 x 64 */
    double sum = 0;
    int nan_codes = 0, scales[256] = {0}, kinds = 0;
    for (int n = 0; n < l->n; n++) {
        for (int k = 0; k < l->k; k++) {
            uint8_t code = ((const uint8_t *)l->data)[n * l->k + k];
            int e = code >> 3 & 15, f = code & 7;
            double v = e ? ldexp(1 + f / 8.0, e - 7) : ldexp(f / 8.0, -6);
            nan_codes += (code & 0x7f) == 0x7f;
            v = ldexp(v, l->scale[n / 32 * (l->k / 32) + k / 32] - 127);
            sum += v * v;
        }
    }
    for (int i = 0; i < l->n / 32 * (l->k / 32); i++)
        kinds += !scales[l->scale[i]]++;
    cr_expect_eq(nan_codes, 0);
    cr_expect_eq(kinds, 3);
    double dev = sqrt(sum / (l->n * l->k)) * sqrt(l->k);
    cr_expect(dev > 0.6 && dev < 1.4, "wq_b spread %g, asked 0.95", dev);
    double mean = 0;
    for (int i = 0; i < 128; i++) {
        uint32_t bits = (uint32_t)ck->layers[0].attn_norm[i] << 16;
        float v;
        memcpy(&v, &bits, sizeof v);
        mean += v / 128;
    }
    cr_expect(mean > 0.023 && mean < 0.027, "%g", mean);
    mdl_checkpoint_close(ck);
    made_free(&m);
}
