/* The status page in a real browser, against a server with streams running. Skipped, saying so, without Chromium
 * (Debian's package chromium). WEFT_SCREENSHOT=FILE.png keeps the picture. */
#include "tests/harness.h"

#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

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

TestSuite(page, .fini = stop, .timeout = 300);

static struct ts_result browse(const char *what)
{
    char profile[4200], url[64];
    snprintf(profile, sizeof profile, "--user-data-dir=%s/profile", dir);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", server.port);
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

Test(page, shows_what_the_server_does)
{
    struct ts_flow f[3];
    char text[128], shot[4300];
    ts_server_start(
        &server, NULL,
        "sampling = { temperature = 0.0; };\nkv = { block_tokens = 32; memory = \"1MiB\"; host = \"96MiB\"; };\n");
    dir = ts_temp_dir();
    struct ts_result r = ts_run("chromium", "--version");
    bool there = r.status == 0;
    ts_result_free(&r);
    if (!there)
        cr_skip_test("needs Chromium: make deps");
    struct ts_answer a = ts_ask(&server, TS_CHAT, "In the beginning", 40, false, "");
    ts_answer_free(&a);
    for (int i = 0; i < 3; i++) {
        char *body = ts_body(TS_CHAT, "In the beginning", 0, true, "\"ignore_eos\":true");
        cr_assert(ts_flow_open(&f[i], server.port, ts_path(TS_CHAT), body));
        free(body);
    }
    r = browse("--dump-dom");
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
    ts_result_free(&r);
    const char *keep = getenv("WEFT_SCREENSHOT");
    snprintf(shot, sizeof shot, "--screenshot=%s/page.png", dir);
    if (keep)
        snprintf(shot, sizeof shot, "--screenshot=%s", keep);
    r = browse(shot);
    size_t len = 0;
    char *png = ts_read_file(strchr(shot, '=') + 1, &len);
    cr_expect(png && len > 10000 && !memcmp(png, "\x89PNG", 4), "no picture: %s", r.err);
    free(png);
    ts_result_free(&r);
    for (int i = 0; i < 3; i++)
        ts_flow_close(&f[i]);
}
