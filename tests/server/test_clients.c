/* The official clients of each protocol against a real server: tests/js/clients.mjs, under Node. Skipped, saying what
 * is missing, without Node 20 or without the packages. */
#include "tests/harness.h"

#include <unistd.h>

#include "model/chat.h"
#include "model/tokenizer.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

#define D MDL_CHAT_DSML

static struct ts_server server;
static char *dir;

static void stop(void)
{
    ts_server_free(&server);
    if (dir)
        ts_remove_dir(dir);
    free(dir);
    dir = NULL;
}

TestSuite(clients, .fini = stop, .timeout = 600);

static void run_clients(const char *script, const char *calls)
{
    char base[64];
    snprintf(base, sizeof base, "http://127.0.0.1:%d", server.port);
    const char *node = getenv("WEFT_NODE");
    struct ts_result r = ts_run(node ? node : "node", "tests/js/clients.mjs", base, script, calls);
    if (r.status == 127 || r.status == 77) {
        static char why[512]; /* a skipped test does not come back here */
        snprintf(why, sizeof why, "%s", r.status == 77 ? r.err : "needs Node 20 or newer and packages: make deps");
        ts_result_free(&r);
        cr_skip_test("%s", why);
    }
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "ok    "), "%s%s", r.out, r.err);
    ts_result_free(&r);
}

Test(clients, chats_streams_errors_and_aborts)
{
    ts_server_start(&server, NULL, "log = { level = \"warning\"; };\n");
    run_clients(NULL, NULL);
}

Test(clients, tool_calls)
{
    static const char text[] =
        "Hm.</think>I look.\n\n<" D " calls>\n<" D " invoke name=\"weather\">\n"
        "<" D " parameter name=\"city\" string=\"true\">K\xc3\xb6ln</" D " parameter>\n"
        "<" D " parameter name=\"days\" string=\"false\">3</" D " parameter>\n</" D " invoke>\n"
        "<" D " invoke name=\"run\">\n<" D " parameter name=\"command\" string=\"true\">ls 2>&1</" D " parameter>\n"
        "</" D " invoke>\n</" D " calls>";
    struct mdl_tokenizer *tok;
    struct mdl_tok_encoder *enc;
    struct mdl_ids ids = {0};
    struct cfg_error err;
    char *lines = calloc(1, 1), script[4200], calls[4200];
    dir = ts_temp_dir();
    snprintf(script, sizeof script, "%s/script", dir);
    setenv("WEFT_SCRIPT", script, 1);
    ts_server_start(&server, ts_program("tests/server/weft_scripted"), "log = { level = \"warning\"; };\n");
    cr_assert_eq(mdl_tokenizer_load("samples/tiny", &tok, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_tok_encoder_new(tok, &enc, &err), 0);
    cr_assert_eq(mdl_tok_encode(enc, text, strlen(text), MDL_ENCODE_ADDED, &ids, &err), 0);
    for (size_t i = 0; i < ids.n; i++) {
        char *more = NULL;
        cr_assert(asprintf(&more, "%s%s%d\n", lines, i % 7 ? "" : "!", ids.v[i]) > 0);
        free(lines);
        lines = more;
    }
    free(ts_write_file(dir, "calls", lines));
    snprintf(calls, sizeof calls, "%s/calls", dir);
    free(lines);
    mdl_ids_free(&ids);
    mdl_tok_encoder_free(enc);
    mdl_tokenizer_free(tok);
    run_clients(script, calls);
}
