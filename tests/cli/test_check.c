/* weft check: findings and exit status. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/process.h"

static void need_model(void)
{
    if (access("samples/tiny/config.json", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
}

static struct ts_result check(const char *config, const char *node)
{
    char *dir = ts_temp_dir(), *path = ts_write_file(dir, "t.conf", config);
    cr_assert(dir && path);
    struct ts_result r = node ? ts_run(ts_weft(), "check", "--node", node, path) : ts_run(ts_weft(), "check", path);
    free(path);
    ts_remove_dir(dir);
    free(dir);
    return r;
}

static void expect(const char *config, int status, const char *want)
{
    struct ts_result r = check(config, NULL);
    cr_expect_eq(r.status, status, "%s\ngave %d:\n%s%s", config, r.status, r.out, r.err);
    cr_expect(strstr(r.out, want) || strstr(r.err, want), "%s\nshould say: %s\nsaid:\n%s%s", config, want, r.out,
              r.err);
    ts_result_free(&r);
}

#define NODE(listen)                                                                                                   \
    "nodes = ({ name = \"local\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\", \"kv\"]; listen = "       \
    "\"" listen "\"; });\n"

Test(check, a_configuration_that_can_be_served)
{
    need_model();
    struct ts_result r = check(NODE("127.0.0.1:0") "kv = { memory = \"4MiB\"; block_tokens = 16; };", "local");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    static const char *const parts[] = {"ok       model", "ok       memory", "ok       cpu",
                                        "ok       files", "ok       port",   "0 problems, 0 warnings"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect(strstr(r.out, parts[i]), "%s is missing in\n%s", parts[i], r.out);
    ts_result_free(&r);
}

Test(check, where_engram_rows_will_come_from)
{
    need_model();
    static const char *const store[] = {"mapped", "host", "ssd"}, *const said[] = {
                                                                      "from the mapped checkpoint",
                                                                      "are read ahead from the checkpoint's files;",
                                                                      "past the page cache"};
    for (int i = 0; i < 3; i++) {
        char text[512];
        snprintf(text, sizeof text, NODE("127.0.0.1:0") "engram = { store = \"%s\"; cache = \"1MiB\"; };", store[i]);
        struct ts_result r = check(text, NULL);
        bool cannot = strstr(r.out, "io_uring") || strstr(r.out, "no direct I/O");
        cr_expect(cannot || strstr(r.out, said[i]), "%s: %s\n%s", store[i], r.out, r.err);
        ts_result_free(&r);
    }
}

Test(check, what_is_wrong_with_the_file)
{
    expect("kv = { memory = 1; };", 2, "kv.memory");
    expect("nodes = ();", 2, "nodes");
    struct ts_result r = check(NODE("127.0.0.1:0"), "other");
    cr_expect_eq(r.status, 2);
    cr_expect(strstr(r.err, "no node \"other\""), "%s", r.err);
    ts_result_free(&r);
}

Test(check, what_does_not_fit_the_model)
{
    need_model();
    expect(NODE("127.0.0.1:0") "model = { context = 16000000; };", 2, "model.context = 16000000 is more than");
    expect(NODE("127.0.0.1:0") "kv = { memory = \"1MiB\"; block_tokens = 65536; };", 2,
           "raise it, or lower kv.block_tokens");
}

Test(check, what_the_machine_lacks)
{
    need_model();
    expect("model = { path = \"/nowhere\"; };" NODE("127.0.0.1:0"), 1, "problem  model");
    expect(NODE("127.0.0.1:0") "kv = { memory = \"15TiB\"; };", 1, "problem  memory");
    expect(NODE("203.0.113.77:0"), 1, "give an address of this machine");
    expect(NODE("127.0.0.1:0") "security = { keys_file = \"/nowhere/keys\"; };", 1, "problem  security");
    expect(NODE("127.0.0.1:0") "security = { tls_cert = \"/nowhere/c\"; tls_key = \"/nowhere/k\"; };", 1,
           "problem  security");
    expect(NODE("127.0.0.1:0") "log = { file = \"/nowhere/log\"; };", 1, "problem  log");
    expect(NODE("0.0.0.0:0"), 0, "no API key is asked for");
}

Test(check, a_port_that_is_taken)
{
    need_model();
    char config[400];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0);
    getsockname(fd, (struct sockaddr *)&a, &len);
    snprintf(config, sizeof config, NODE("127.0.0.1:%d"), ntohs(a.sin_port));
    expect(config, 1, "Address already in use; stop the program that has it");
    close(fd);
}

Test(check, secrets_that_others_can_read)
{
    need_model();
    char *dir = ts_temp_dir(), *keys = ts_write_file(dir, "keys", "sk-secret-1\n"), config[4500];
    cr_assert(dir && keys);
    snprintf(config, sizeof config, NODE("127.0.0.1:0") "security = { keys_file = \"%s\"; };", keys);
    chmod(keys, 0644);
    expect(config, 0, "can be read or written by others (mode 644)");
    chmod(keys, 0600);
    expect(config, 0, "0 problems, 0 warnings");
    free(keys);
    ts_remove_dir(dir);
    free(dir);
}
