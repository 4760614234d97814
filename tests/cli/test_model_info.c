#include "tests/harness.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/model_info.h"

#define REAL "tests/fixtures/real-config"

/* Runs the command with standard output and error in text; freed by the caller. */
static int run(char **out, const char *a, const char *b, const char *c, const char *d, const char *e)
{
    char *argv[] = {"model", (char *)a, (char *)b, (char *)c, (char *)d, (char *)e, NULL};
    int argc = 1;
    while (argc < 6 && argv[argc])
        argc++;
    FILE *f = tmpfile();
    cr_assert_not_null(f);
    fflush(stdout);
    fflush(stderr);
    int keep_out = dup(1), keep_err = dup(2);
    dup2(fileno(f), 1);
    dup2(fileno(f), 2);
    int status = cli_model_run(argc, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(keep_out, 1);
    dup2(keep_err, 2);
    close(keep_out);
    close(keep_err);
    cr_assert_eq(fseek(f, 0, SEEK_END), 0);
    long len = ftell(f);
    rewind(f);
    *out = calloc(1, (size_t)len + 1);
    cr_assert_not_null(*out);
    cr_assert_eq(fread(*out, 1, (size_t)len, f), (size_t)len);
    fclose(f);
    return status;
}

static void expect_text(const char *text, const char *part)
{
    cr_expect_not_null(strstr(text, part), "expected \"%s\" in:\n%s", part, text);
}

Test(model_info, tables_from_a_config_alone)
{
    char *text;
    cr_expect_eq(run(&text, "info", REAL, NULL, NULL, NULL), 0, "%s", text);
    expect_text(text, "no weights here: sizes follow from config.json");
    expect_text(text, "encoder: layers 0-19, decoder: layers 20-39");
    expect_text(text, "288,777,830,400 B");
    expect_text(text, "95,819");
    expect_text(text, "global KV only, bytes per token");
    expect_text(text, "890  (main 720 + index keys 170)");
    expect_text(text, "2,918,400 B");
    expect_text(text, "253,440 B  (12 rows per layer, on top)");
    expect_text(text, "20 of 40 layers run for the last tokens of a prompt only");
    expect_text(text, "890 bytes per token instead of 10,324");
    free(text);
}

Test(model_info, json_has_the_figures)
{
    char *text;
    cr_expect_eq(run(&text, "info", "--json", "--role=decode", "--context=1000", REAL), 0, "%s", text);
    json_t *root = json_loads(text, 0, NULL);
    cr_assert_not_null(root, "%s", text);
    json_int_t kv, fixed, node_kv, tables, rollback;
    const char *role;
    cr_assert_eq(json_unpack(root, "{s:{s:I}, s:{s:I, s:I}, s:{s:s, s:I}, s:{s:{s:{s:I}}}}", "global_kv", "bytes_per_token", &kv,
                             "fixed_per_request", "bytes", &fixed, "rollback_bytes", &rollback, "node", "role", &role,
                             "global_kv", &node_kv, "weights", "classes", "engram_tables", "bytes", &tables), 0);
    cr_expect_eq(kv, 890);
    cr_expect_eq(fixed, 2918400);
    cr_expect_eq(rollback, 253440);
    cr_expect_eq(node_kv, 890000);
    cr_expect_eq(tables, 202758032400);
    cr_expect_str_eq(role, "decode");
    json_decref(root);
    free(text);
}

Test(model_info, checkpoint_with_weights)
{
    char *text;
    cr_expect_eq(run(&text, "info", "tests/golden/edge", "--role", "prefill", NULL), 0, "%s", text);
    expect_text(text, "weights present and checked, revision ");
    expect_text(text, "vision (not used)");
    expect_text(text, "a prefill node, 1 request of 1,024 tokens");
    expect_text(text, "79.5  (main 54 + index keys 25.5)");
    free(text);
}

Test(model_info, expert_node)
{
    char *text;
    cr_expect_eq(run(&text, "info", REAL, "--role=expert", "--ep=64", NULL), 0, "%s", text);
    expect_text(text, "an expert node: 6 of 384 experts of every layer");
    expect_text(text, "4,512,153,600 B");
    free(text);
}

Test(model_info, mistakes)
{
    static const struct {
        const char *args[3];
        int status;
        const char *message;
    } cases[] = {
        {{NULL}, 2, "expected a report"},
        {{"nonsense"}, 2, "model nonsense: expected a report"},
        {{"info"}, 2, "expected one model directory, got 0"},
        {{"info", REAL, "extra"}, 2, "expected one model directory, got 2"},
        {{"info", REAL, "--role=router"}, 2, "--role router: expected prefill, decode or expert"},
        {{"info", REAL, "--context=abc"}, 2, "--context abc: expected a whole number"},
        {{"info", REAL, "--requests=0"}, 2, "--requests 0: expected a whole number"},
        {{"info", REAL, "--context=2000000"}, 2, "context 2000000 is outside 1 to 1048576"},
        {{"info", REAL, "--ep=1000"}, 2, "ep 1000 is outside 0 to 384"},
        {{"info", "tests/no-such-model"}, 1, "tests/no-such-model/config.json: No such file"},
        {{"info", "--help"}, 0, "usage: weft model info DIR"},
        {{"--help"}, 0, "usage: weft model info DIR"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text;
        cr_expect_eq(run(&text, cases[i].args[0], cases[i].args[1], cases[i].args[2], NULL, NULL), cases[i].status, "case %zu: %s",
                     i, text);
        expect_text(text, cases[i].message);
        free(text);
    }
}
