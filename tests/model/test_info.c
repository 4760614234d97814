#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model/info.h"

#define REAL "tests/fixtures/real-config"

static void load(const char *dir, struct mdl_config *c)
{
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_config_load(dir, c, &err), 0, "%s", err.msg);
}

Test(info, real_weights)
{
    struct mdl_config c;
    struct mdl_info i;
    load(REAL, &c);
    mdl_info_compute(&c, &i);
    cr_expect_eq(i.total_tensors, 95819);
    cr_expect_eq(i.tensors[MDL_CLASS_EXPERT], 40 * 384 * 6);
    cr_expect_eq(i.tensors[MDL_CLASS_DENSE], 40 * 30 + 43 + 3);
    cr_expect_eq(i.tensors[MDL_CLASS_ENGRAM_TABLE] + i.tensors[MDL_CLASS_ENGRAM], 12);
    cr_expect_eq(i.tensors[MDL_CLASS_DRAFT] + i.tensors[MDL_CLASS_DRAFT_EXPERT], 2401);
    int64_t draft = i.bytes[MDL_CLASS_DRAFT] + i.bytes[MDL_CLASS_DRAFT_EXPERT];
    cr_expect_eq((draft + 5000000) / 10000000, 793, "7.93 GB, got %lld", (long long)draft);
    cr_expect_eq(i.bytes[MDL_CLASS_EXPERT], 40ll * 384 * 3 * (2304 * 2560 + 2304 * 160));
    cr_expect_eq(i.bytes[MDL_CLASS_ENGRAM_TABLE], (384006168ll + 384016682) * 264);
    int64_t sum = 0;
    for (int k = 0; k < MDL_CLASS_COUNT; k++)
        sum += i.bytes[k];
    cr_expect_eq(sum, i.total_bytes);
    /* The published files hold this, a vision half of about 1 GB, and headers. */
    cr_expect_lt(i.total_bytes, 510286023000ll);
    cr_expect_gt(i.total_bytes, 510286023000ll - 1000000000);
}

Test(info, real_global_kv)
{
    struct mdl_config c;
    struct mdl_info i;
    load(REAL, &c);
    mdl_info_compute(&c, &i);
    cr_expect_eq(i.kv_per_2_tokens, 2 * 890);
    cr_expect_eq(i.kv_main_per_2_tokens, 2 * (432 + 288));
    cr_expect_eq(i.kv_index_per_2_tokens, 2 * (102 + 68));
    cr_assert_eq(i.n_sources, 4);
    cr_expect_eq(i.source[0].main_row, 288);
    cr_expect_eq(i.source[3].index_row, 68);
    cr_expect_eq(i.source[3].layer, 20);
    cr_expect_eq(i.source[3].ratio, 1);
    cr_expect_eq(i.kv_unshared_per_2_tokens, 2 * (18 * 178 + 20 * 356));
    cr_expect_eq(i.skipped_layers, 20);
}

Test(info, real_fixed_per_request)
{
    struct mdl_config c;
    struct mdl_info i;
    load(REAL, &c);
    mdl_info_compute(&c, &i);
    cr_expect_eq(i.window_bytes, 2703360);
    cr_expect_eq(i.draft_ring_bytes, 202752);
    cr_expect_eq(i.tail_bytes, 12288);
    cr_expect_eq(i.fixed_bytes, 2918400);
    cr_expect_eq(i.encoder_window_bytes, 1351680);
    cr_expect_eq(i.rollback_rows, 12);
    cr_expect_eq(i.rollback_bytes, 12 * 528 * 40);
    cr_expect_eq(i.bridge_row_bytes, 4 * 5120 * 2 + 16);
}

static void node(const struct mdl_config *c, enum mdl_role role, int ep, int64_t context, int64_t requests,
                 struct mdl_info_node *out)
{
    struct mdl_info_ask ask = {role, ep, context, requests};
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_info_node(c, &ask, out, &err), 0, "%s", err.msg);
}

Test(info, nodes_by_role)
{
    struct mdl_config c;
    struct mdl_info i;
    struct mdl_info_node all, prefill, decode, expert;
    load(REAL, &c);
    mdl_info_compute(&c, &i);
    node(&c, MDL_ROLE_ALL, 0, 1048576, 1, &all);
    cr_expect_eq(all.global_kv, 933232640);
    cr_expect_eq(all.windows + all.draft_rings + all.tails, 2918400);
    cr_expect_eq(all.tables, i.bytes[MDL_CLASS_ENGRAM_TABLE]);
    cr_expect_eq(all.memory, i.total_bytes - all.tables + all.global_kv + 2918400 + i.rollback_bytes);
    cr_expect_eq(all.decoder_tail_weights, 0);

    node(&c, MDL_ROLE_DECODE, 64, 100000, 8, &decode);
    cr_expect_eq(decode.weights[MDL_CLASS_EXPERT], 0);
    cr_expect_eq(decode.weights[MDL_CLASS_DENSE], i.bytes[MDL_CLASS_DENSE]);
    cr_expect_eq(decode.weights[MDL_CLASS_DRAFT_EXPERT], i.bytes[MDL_CLASS_DRAFT_EXPERT]);
    cr_expect_eq(decode.global_kv, 8ll * 89000000);
    cr_expect_eq(decode.windows, 8 * i.window_bytes);

    /* Six of 384 experts of 40 layers, 18.8 MB each, and nothing else. */
    node(&c, MDL_ROLE_EXPERT, 64, 1, 1, &expert);
    cr_expect_eq(expert.experts_per_layer, 6);
    cr_expect_eq(expert.memory, 6ll * 40 * 18800640);
    cr_expect_eq(expert.memory, expert.weights[MDL_CLASS_EXPERT]);
    node(&c, MDL_ROLE_EXPERT, 100, 1, 1, &expert);
    cr_expect_eq(expert.experts_per_layer, 4, "the fullest of 100 shards");

    /* Prefill: half the experts, the encoder's windows, no drafting; the decoder only for the tail. */
    node(&c, MDL_ROLE_PREFILL, 0, 2, 1, &prefill);
    cr_expect_eq(prefill.weights[MDL_CLASS_EXPERT], i.bytes[MDL_CLASS_EXPERT] / 2);
    cr_expect_eq(prefill.weights[MDL_CLASS_ENGRAM], i.bytes[MDL_CLASS_ENGRAM]);
    cr_expect_eq(prefill.weights[MDL_CLASS_DRAFT] + prefill.weights[MDL_CLASS_DRAFT_EXPERT], 0);
    cr_expect_eq(prefill.windows, 1351680);
    cr_expect_eq(prefill.draft_rings + prefill.rollback, 0);
    cr_expect_eq(prefill.bridge_rows, 140 * 40976);
    /* Encoder and tail together are the backbone and what seeds the rings. */
    int64_t backbone = i.bytes[MDL_CLASS_EXPERT] + i.bytes[MDL_CLASS_DENSE] + i.bytes[MDL_CLASS_ENGRAM];
    int64_t seeds = 5120 * 15360 + 160 * 480 + 5120 * 2 + 3 * (512 * 5120 + 16 * 160 + 512 * 2);
    cr_expect_eq(prefill.weights[MDL_CLASS_EXPERT] + prefill.weights[MDL_CLASS_DENSE] +
                     prefill.weights[MDL_CLASS_ENGRAM] + prefill.decoder_tail_weights,
                 backbone + seeds);
}

Test(info, odd_contexts_count_whole_rows)
{
    struct mdl_config c;
    struct mdl_info_node n;
    load(REAL, &c);
    node(&c, MDL_ROLE_DECODE, 0, 3, 1, &n);
    cr_expect_eq(n.global_kv, 3 * 356 + 356 * 3);
}

Test(info, impossible_questions)
{
    static const struct {
        struct mdl_info_ask ask;
        int code;
        const char *message;
    } cases[] = {
        {{MDL_ROLE_ALL, 0, 0, 1}, -EINVAL, "context 0 is outside 1 to 1048576"},
        {{MDL_ROLE_ALL, 0, 1048577, 1}, -EINVAL, "context 1048577 is outside"},
        {{MDL_ROLE_ALL, 0, 1, 0}, -EINVAL, "requests 0 is below 1"},
        {{MDL_ROLE_EXPERT, 385, 1, 1}, -EINVAL, "ep 385 is outside 0 to 384"},
        {{MDL_ROLE_ALL, 0, 1048576, INT64_MAX}, -ERANGE, "does not fit 64 bits"},
    };
    struct mdl_config c;
    load(REAL, &c);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mdl_info_node n;
        struct cfg_error err = {{0}};
        cr_expect_eq(mdl_info_node(&c, &cases[i].ask, &n, &err), cases[i].code);
        cr_expect_not_null(strstr(err.msg, cases[i].message), "%s", err.msg);
    }
}

struct real_sizes {
    int64_t tensors, bytes;
};

static int add_text(void *arg, const struct mdl_tensor *t)
{
    struct real_sizes *s = arg;
    if (strncmp(t->name, "vision.", 7) != 0 && strncmp(t->name, "aligner.", 8) != 0 &&
        strncmp(t->name, "image_", 6) != 0) {
        s->tensors++;
        s->bytes += (int64_t)t->bytes;
    }
    return 0;
}

Test(info, computed_sizes_are_those_of_the_files)
{
    static const char *const dirs[] = {"tests/golden/mini8", "tests/golden/edge", "tests/golden/modules"};
    for (size_t d = 0; d < 3; d++) {
        struct mdl_checkpoint *ck;
        struct mdl_info i;
        struct real_sizes real = {0, 0};
        struct cfg_error err = {{0}};
        cr_assert_eq(mdl_checkpoint_open(dirs[d], &ck, &err), 0, "%s", err.msg);
        mdl_info_compute(&ck->config, &i);
        mdl_checkpoint_each(ck, add_text, &real);
        cr_expect_eq(i.total_tensors, real.tensors, "%s", dirs[d]);
        cr_expect_eq(i.total_bytes, real.bytes, "%s", dirs[d]);
        mdl_checkpoint_close(ck);
    }
}

Test(info, a_model_without_a_cut_saves_nothing)
{
    struct mdl_config c;
    struct mdl_info i;
    struct mdl_info_node n;
    load(REAL, &c);
    c.cut = -1;
    mdl_info_compute(&c, &i);
    cr_expect_eq(i.skipped_layers, 0);
    cr_expect_eq(i.encoder_window_bytes, 0);
    node(&c, MDL_ROLE_PREFILL, 0, 2, 1, &n);
    cr_expect_eq(n.weights[MDL_CLASS_EXPERT], i.bytes[MDL_CLASS_EXPERT]);
    cr_expect_eq(n.windows, i.window_bytes);
}
