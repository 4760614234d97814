#include "tests/harness.h"

#include <jansson.h>

#include "tests/support/process.h"

#define REAL "tests/fixtures/real-config"

#define RUN(...) ts_run(ts_weft(), "model", __VA_ARGS__)

static void expect_text(const char *text, const char *part)
{
    cr_expect_not_null(strstr(text, part), "expected \"%s\" in:\n%s", part, text);
}

Test(model_info, tables_from_a_config_alone)
{
    struct ts_result r = RUN("info", REAL);
    cr_expect_eq(r.status, 0, "%s", r.err);
    expect_text(r.out, "no weights here: sizes follow from config.json");
    expect_text(r.out, "encoder: layers 0-19, decoder: layers 20-39");
    expect_text(r.out, "288,777,830,400 B");
    expect_text(r.out, "95,819");
    expect_text(r.out, "global KV only, bytes per token");
    expect_text(r.out, "890  (main 720 + index keys 170)");
    expect_text(r.out, "2,918,400 B");
    expect_text(r.out, "253,440 B  (12 rows per layer, on top)");
    expect_text(r.out, "20 of 40 layers run for the last tokens of a prompt only");
    expect_text(r.out, "890 bytes per token instead of 10,324");
    ts_result_free(&r);
}

Test(model_info, json_has_the_figures)
{
    struct ts_result r = RUN("info", "--json", "--role=decode", "--context=1000", REAL);
    cr_expect_eq(r.status, 0, "%s", r.err);
    json_t *root = json_loads(r.out, 0, NULL);
    cr_assert_not_null(root, "%s", r.out);
    json_int_t kv, fixed, node_kv, tables, rollback;
    const char *role;
    cr_assert_eq(json_unpack(root, "{s:{s:I}, s:{s:I, s:I}, s:{s:s, s:I}, s:{s:{s:{s:I}}}}", "global_kv",
                             "bytes_per_token", &kv, "fixed_per_request", "bytes", &fixed, "rollback_bytes", &rollback,
                             "node", "role", &role, "global_kv", &node_kv, "weights", "classes", "engram_tables",
                             "bytes", &tables),
                 0);
    cr_expect_eq(kv, 890);
    cr_expect_eq(fixed, 2918400);
    cr_expect_eq(rollback, 253440);
    cr_expect_eq(node_kv, 890000);
    cr_expect_eq(tables, 202758032400);
    cr_expect_str_eq(role, "decode");
    json_decref(root);
    ts_result_free(&r);
}

Test(model_info, checkpoint_with_weights)
{
    struct ts_result r = RUN("info", "tests/golden/edge", "--role", "prefill");
    cr_expect_eq(r.status, 0, "%s", r.err);
    expect_text(r.out, "weights present and checked, revision ");
    expect_text(r.out, "vision (not used)");
    expect_text(r.out, "a prefill node, 1 request of 1,024 tokens");
    expect_text(r.out, "79.5  (main 54 + index keys 25.5)");
    ts_result_free(&r);
}

Test(model_info, expert_node)
{
    struct ts_result r = RUN("info", REAL, "--role=expert", "--ep=64");
    cr_expect_eq(r.status, 0, "%s", r.err);
    expect_text(r.out, "an expert node: 6 of 384 experts of every layer");
    expect_text(r.out, "4,512,153,600 B");
    ts_result_free(&r);
}

Test(model_info, help)
{
    struct ts_result r = RUN("info", "--help");
    cr_expect_eq(r.status, 0);
    expect_text(r.out, "usage: weft model info DIR");
    expect_text(r.out, "--role ROLE");
    ts_result_free(&r);
    r = RUN("--help");
    cr_expect_eq(r.status, 0);
    expect_text(r.out, "usage: weft model info DIR");
    ts_result_free(&r);
}

Test(model_info, mistakes)
{
    static const struct {
        const char *args[4];
        int status;
        const char *message;
    } cases[] = {
        {{NULL}, 2, "expected a report"},
        {{"nonsense"}, 2, "expected a report"},
        {{"info"}, 2, "model info: an argument is missing"},
        {{"info", REAL, "extra"}, 2, "unexpected argument \"extra\""},
        {{"info", REAL, "--role=router"}, 2, "router"},
        {{"info", REAL, "--context=abc"}, 2, "--context"},
        {{"info", REAL, "--requests=0"}, 2, "--requests"},
        {{"info", REAL, "--context=2000000"}, 2, "context 2000000 is outside 1 to 1048576"},
        {{"info", REAL, "--ep=1000"}, 2, "ep 1000 is outside 0 to 384"},
        {{"info", "tests/no-such-model"}, 1, "tests/no-such-model/config.json: No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *argv[8] = {ts_weft(), "model"};
        for (int k = 0; k < 4; k++)
            argv[2 + k] = cases[i].args[k];
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, cases[i].status, "case %zu: %s", i, r.err);
        cr_expect_str_eq(r.out, "");
        expect_text(r.err, cases[i].message);
        ts_result_free(&r);
    }
}
