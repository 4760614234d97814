/* The status page in a real browser, against a server with streams running. Skipped, saying so, without Chromium
 * (Debian's package chromium). WEFT_SCREENSHOT=FILE.png keeps the picture. */
#include "tests/harness.h"

#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

static struct ts_server server;
static char *dir;

static void stop(void)
{
    ts_server_free(&server);
    ts_cluster_end();
    if (dir)
        ts_remove_dir(dir);
    free(dir);
    dir = NULL;
}

TestSuite(page, .fini = stop, .timeout = 300);

static struct ts_result browse(int port, const char *what)
{
    char profile[4200], url[64];
    snprintf(profile, sizeof profile, "--user-data-dir=%s/profile", dir);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", port);
    return ts_run("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                  "--no-first-run", "--hide-scrollbars", "--window-size=1100,1150", "--timeout=60000",
                  "--virtual-time-budget=4000", profile, what, url);
}

/* The text of the first element behind `mark` in the page. */
static const char *text_behind(const char *page, const char *mark, char out[128])
{
    const char *at = strstr(page, mark), *from = at ? strchr(at + strlen(mark), '>') : NULL;
    const char *end = from ? strchr(from, '<') : NULL;
    snprintf(out, 128, "%.*s", from && end ? (int)(end - from - 1) : 0, from ? from + 1 : "");
    return out;
}

static void need_chromium(void)
{
    struct ts_result r = ts_run("chromium", "--version");
    bool there = r.status == 0;
    ts_result_free(&r);
    if (!there)
        cr_skip_test("needs Chromium: make deps");
    dir = ts_temp_dir();
}

static void take_picture(int port)
{
    char shot[4300];
    const char *keep = getenv("WEFT_SCREENSHOT");
    snprintf(shot, sizeof shot, "--screenshot=%s/page.png", dir);
    if (keep)
        snprintf(shot, sizeof shot, "--screenshot=%s", keep);
    struct ts_result r = browse(port, shot);
    size_t len = 0;
    char *png = ts_read_file(strchr(shot, '=') + 1, &len);
    cr_expect(png && len > 10000 && !memcmp(png, "\x89PNG", 4), "no picture: %s", r.err);
    free(png);
    ts_result_free(&r);
}

/* A gateway of a deployment: the other nodes with their roles, one of which is away, and nothing that it has not. */
Test(page, shows_the_other_nodes_of_a_deployment)
{
    static const struct ts_node nodes[] = {
        {.name = "front", .roles = "\"gateway\""},
        {.name = "back", .roles = "\"prefill\", \"decode\", \"expert\""},
        {.name = "kv-0", .roles = "\"kv\""},
        {.name = "kv-1", .roles = "\"kv\""},
    };
    need_chromium();
    ts_cluster_start(
        nodes, 4, "",
        "kv = { memory = \"4MiB\"; snapshots = \"0B\"; block_tokens = 32; nodes = { memory = \"8MiB\"; }; };\n");
    const struct ts_server *s = &ts_cluster.node[0].http;
    ts_node_kill(&ts_cluster.node[3]);
    ts_until_metric(s, "weft_peer_up{peer=\"kv-1\"}", 0);
    ts_until_metric(s, "weft_peer_up{peer=\"kv-0\"}", 1);
    free(ts_cluster_complete(s, ts_cluster_prompts[0]));
    struct ts_result r = browse(s->port, "--dump-dom");
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_expect(strstr(r.out, "<td>kv-0</td><td>kv</td><td>connected</td>"), "%s", r.out);
    cr_expect(strstr(r.out, "<td>kv-1</td><td>kv</td><td class=\"bad\">not connected</td>"), "%s", r.out);
    cr_expect(strstr(r.out, "<td>back</td><td>prefill, decode, expert</td><td>connected</td>"), "%s", r.out);
    cr_expect(strstr(r.out, "Node front (gateway). "), "%s", r.out);
    cr_expect(strstr(r.out, "requests that generate") && !strstr(r.out, "<span>sequences in the last step") &&
                  !strstr(r.out, " pages, by sequences</span>"),
              "tiles of what it has not: %s", r.out);
    cr_expect(strstr(r.out, "id=\"tiers-part\" hidden"), "tiers that it has not");
    cr_expect_null(strstr(r.out, "NaN"));
    cr_expect_null(strstr(r.out, "undefined</"));
    ts_result_free(&r);
    take_picture(s->port);
}

Test(page, shows_what_the_server_does)
{
    struct ts_flow f[3];
    char text[128];
    need_chromium();
    ts_server_start(
        &server, NULL,
        "sampling = { temperature = 0.0; };\nkv = { block_tokens = 32; memory = \"1MiB\"; host = \"96MiB\"; };\n");
    struct ts_result r;
    struct ts_answer a = ts_ask(&server, TS_CHAT, "In the beginning", 40, false, "");
    ts_answer_free(&a);
    for (int i = 0; i < 3; i++) {
        char *body = ts_body(TS_CHAT, "In the beginning", 0, true, "\"ignore_eos\":true");
        cr_assert(ts_flow_open(&f[i], server.port, ts_path(TS_CHAT), body));
        free(body);
    }
    r = browse(server.port, "--dump-dom");
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_expect_str_eq(text_behind(r.out, "id=\"health\"", text), "ok");
    cr_expect(!strncmp(text_behind(r.out, "id=\"model\"", text), "tiny ", 5), "%s", text);
    cr_expect(strstr(r.out, "requests that generate"), "the tiles are missing");
    cr_expect(strstr(r.out, "sequences in the last step, "), "the batch is missing");
    cr_expect(strstr(r.out, "<td>device</td>") && strstr(r.out, " of 96 MiB</td>"), "the tiers are missing");
    cr_expect_not_null(strstr(r.out, "<td>snapshots</td>"), "so is what they keep for next turns");
    cr_expect_null(strstr(r.out, "<td>ssd</td>"), "a tier that is not there");
    cr_expect(strstr(r.out, "<td>engine</td>") && strstr(r.out, "<td>io</td>"), "the workers are missing");
    cr_expect(strstr(r.out, "points=\""), "the chart is missing");
    cr_expect_null(strstr(r.out, "NaN"));
    cr_expect_null(strstr(r.out, "undefined</"));
    cr_expect(strstr(r.out, "id=\"nodes-part\" hidden"), "there are no other nodes");
    ts_result_free(&r);
    take_picture(server.port);
    for (int i = 0; i < 3; i++)
        ts_flow_close(&f[i]);
}
