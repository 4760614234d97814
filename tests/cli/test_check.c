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

/* ---- a deployment ---- */

static int listen_somewhere(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 4) == 0);
    getsockname(fd, (struct sockaddr *)&a, &len);
    *port = ntohs(a.sin_port);
    return fd;
}

/* Secret, state folder, own port; peers that are absent or mute are warnings within a bounded time. */
Test(check, a_node_of_a_deployment_whose_peers_are_not_there)
{
    need_model();
    int mute, own, fd = listen_somewhere(&mute), other = listen_somewhere(&own);
    char *dir = ts_temp_dir(), *secret = ts_write_file(dir, "secret", "0123456789abcdef0123456789abcdef"), *text = NULL;
    cr_assert_gt(
        asprintf(&text,
                 "cluster = { secret_file = \"%s\"; state = \"%s/a/b\"; };\nkv = { memory = \"4MiB\"; "
                 "block_tokens = 16; };\nnodes = (\n"
                 "{ name = \"me\"; roles = [\"gateway\", \"prefill\"]; port = %d; listen = \"127.0.0.1:0\"; },\n"
                 "{ name = \"mute\"; roles = [\"decode\", \"expert\"]; port = %d; },\n"
                 "{ name = \"absent\"; roles = [\"decode\"]; port = 1; });\n",
                 secret, dir, own, mute),
        0);
    chmod(secret, 0644);
    struct ts_result r = check(text, "me");
    cr_expect_eq(r.status, 1, "its own port is taken");
    cr_expect(strstr(r.out, "problem  link") && strstr(r.out, "Address already in use"), "%s", r.out);
    cr_expect(strstr(r.out, "warning  secret") && strstr(r.out, "chmod 600"), "%s", r.out);
    ts_result_free(&r);
    close(other);
    chmod(secret, 0600);
    r = check(text, "me");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    static const char *const parts[] = {
        "ok       secret",    "ok       state",
        "ok       link",      "warning  peer      mute at 127.0.0.1:",
        "its machine is off", "warning  peer      absent at 127.0.0.1:1: Connection refused"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect(strstr(r.out, parts[i]), "%s is missing in\n%s", parts[i], r.out);
    ts_result_free(&r);
    unlink(secret);
    r = check(text, "me");
    cr_expect_eq(r.status, 0);
    cr_expect(strstr(r.out, "warning  secret") && strstr(r.out, "`weft up` makes it"), "%s", r.out);
    ts_result_free(&r);
    r = check(text, NULL); /* of all nodes: once */
    char *first = strstr(r.out, "`weft up` makes it");
    cr_expect(first && !strstr(first + 1, "`weft up` makes it"), "%s", r.out);
    ts_result_free(&r);
    /* Another machine may reach it. */
    char *at = strstr(text, "name = \"absent\"; "), *far = NULL;
    cr_assert(at && asprintf(&far, "%.*shost = \"192.0.2.1\"; %s", (int)(at - text), text, at) > 0);
    r = check(far, "me");
    cr_expect_eq(r.status, 1);
    cr_expect(strstr(r.out, "problem  secret") && strstr(r.out, "openssl rand -hex 32 > FILE") &&
                  strstr(r.out, "other machines may reach node absent at 192.0.2.1"),
              "%s", r.out);
    ts_result_free(&r);
    free(far);
    close(fd);
    free(text);
    free(secret);
    ts_remove_dir(dir);
    free(dir);
}

/* A deployment with kv nodes: what check says of the node `name` when kv and the kv nodes have these keys. */
static struct ts_result check_kv(const char *dir, const char *name, const char *kv, const char *kv_nodes)
{
    char *text = NULL;
    cr_assert_gt(
        asprintf(
            &text,
            "cluster = { secret_file = \"%s/secret\"; state = \"%s/state\"; };\n"
            "kv = { %s\n%s\n nodes = {\n%s\n}; };\nnodes = (\n"
            "{ name = \"all\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; port = 2; listen = "
            "\"127.0.0.1:0\"; },\n"
            "{ name = \"kv-0\"; roles = [\"kv\"]; port = 3; }, { name = \"kv-1\"; roles = [\"kv\"]; port = 4; });\n",
            dir, dir, strstr(kv, "block_tokens") ? "" : "memory = \"4MiB\"; block_tokens = 64;", kv, kv_nodes),
        0);
    struct ts_result r = check(text, name);
    free(text);
    return r;
}

static void expect_kv(const char *dir, const char *name, const char *kv, const char *kv_nodes, int status,
                      const char *want)
{
    struct ts_result r = check_kv(dir, name, kv, kv_nodes);
    bool cannot = strstr(r.out, "io_uring_setup") != NULL; /* not where the kernel allows no io_uring */
    cr_expect(cannot || r.status == status, "%s %s: %d\n%s%s", kv, kv_nodes, r.status, r.out, r.err);
    cr_expect(cannot || strstr(r.out, want), "%s %s should say: %s\nsaid:\n%s%s", kv, kv_nodes, want, r.out, r.err);
    ts_result_free(&r);
}

/* Slots between nodes count as memory; a node that is the only one with experts and with sources has none. */
Test(check, slots_of_the_expert_exchange_are_counted)
{
    need_model();
    static const struct {
        const char *node, *more, *other; /* roles of a beside those of a source, and of b */
        bool slots;
    } cases[] = {{"a", "", "expert", true}, {"b", "", "expert", true}, {"a", ", \"expert\"", "kv", false}};
    char *dir = ts_temp_dir(), *secret = ts_write_file(dir, "secret", "0123456789abcdef0123456789abcdef"), text[2000];
    cr_assert(dir && secret);
    chmod(secret, 0600);
    for (size_t i = 0; i < 3; i++) {
        snprintf(
            text, sizeof text,
            "cluster = { secret_file = \"%s/secret\"; state = \"%s/state\"; };\nnodes = (\n"
            "{ name = \"a\"; roles = [\"gateway\", \"decode\", \"prefill\"%s]; port = 2; listen = \"127.0.0.1:0\"; },\n"
            "{ name = \"b\"; roles = [\"%s\"]; port = 3; });\n",
            dir, dir, cases[i].more, cases[i].other);
        struct ts_result r = check(text, cases[i].node);
        bool has = strstr(r.out, "slots of the exchange with experts") != NULL;
        cr_expect(has == cases[i].slots && strstr(r.out, "MiB needed"), "case %zu: %s%s", i, r.out, r.err);
        ts_result_free(&r);
    }
    free(secret);
    ts_remove_dir(dir);
    free(dir);
}

/* Memory of the role, room on the disk for all kv nodes of the machine, blocks that find no room, folders. */
Test(check, nodes_that_keep_blocks_for_others)
{
    need_model();
    char *dir = ts_temp_dir(), *secret = ts_write_file(dir, "secret", "0123456789abcdef0123456789abcdef"), keys[4400];
    cr_assert(dir && secret);
    chmod(secret, 0600);
    expect_kv(dir, "kv-0", "", "memory = \"8MiB\"; buffer = \"1MiB\";", 0,
              "     8.0 MiB  blocks for other nodes (kv.nodes.memory)");
    expect_kv(dir, "kv-0", "", "memory = \"8MiB\"; buffer = \"1MiB\";", 0,
              "10.0 MiB needed"); /* no pages, no weights */
    expect_kv(dir, "kv-0", "", "memory = \"8MiB\";", 0, "nothing of it outlives the process");
    expect_kv(dir, "kv-0", "", "memory = \"15TiB\";", 1, "lower kv.nodes.memory or kv.nodes.buffer");
    expect_kv(dir, "kv-0", "", "memory = \"8MiB\"; path = \"/nowhere\";", 1,
              "t.conf:5: /nowhere: No such file or directory; kv.nodes.path");
    snprintf(keys, sizeof keys, "memory = \"8MiB\"; path = \"%s\";\nsize = \"4MiB\";", dir);
    expect_kv(dir, "kv-0", "ssd = { reserve = 0; };", keys, 0,
              "this and the other kv nodes of host 127.0.0.1 will take 8.0 MiB, 0.0 MiB of it are there");
    snprintf(keys, sizeof keys, "memory = \"8MiB\"; path = \"%s\";\nsize = \"900TiB\";", dir);
    expect_kv(dir, "kv-0", "ssd = { reserve = 0; };", keys, 1, "t.conf:6: ");
    expect_kv(dir, "kv-0", "ssd = { reserve = 0; };", keys, 1, "lower kv.nodes.size or make room");
    snprintf(keys, sizeof keys, "ssd = { path = \"%s\";\nsize = \"900TiB\"; };", dir);
    expect_kv(dir, "all", keys, "", 1, "lower kv.ssd.size or make room");
    static const char large[] = "block_tokens = 16384; memory = \"64MiB\"; write_behind = \"1MiB\";";
    expect_kv(dir, "all", large, "", 1, "none would ever be kept; raise kv.write_behind");
    expect_kv(dir, "kv-0", large, "memory = \"1MiB\";", 1, "has no room for a block of 16384 tokens");
    expect_kv(dir, "all", "", "", 0, "2 kv nodes keep finished blocks of this node");
    snprintf(keys, sizeof keys,
             NODE("127.0.0.1:0") "kv = { memory = \"4MiB\"; block_tokens = 16; nodes = {\npath = \"%s\"; }; };", dir);
    expect(keys, 0, "t.conf:3: kv.nodes.path has no effect");
    free(secret);
    ts_remove_dir(dir);
    free(dir);
}

/* Where all nodes are on this machine somebody makes the secret; on several machines nobody can. */
Test(check, a_secret_that_is_not_there)
{
    need_model();
    char *dir = ts_temp_dir(), text[9000];
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text,
                 "cluster = { secret_file = \"%s/secret\"; state = \"%s\"; };\n"
                 "kv = { memory = \"4MiB\"; block_tokens = 16; };\nnodes = (\n"
                 "{ name = \"me\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; port = 2; listen = "
                 "\"127.0.0.1:0\"; },\n"
                 "{ name = \"other\"; roles = [\"kv\"]; port = 3; host = \"%s\"; });\n",
                 dir, dir, i ? "203.0.113.77" : "127.0.0.1");
        struct ts_result r = check(text, "me");
        cr_expect_eq(r.status, i, "%s", r.out);
        cr_expect(strstr(r.out, i ? "problem  secret" : "warning  secret"), "%s", r.out);
        cr_expect(strstr(r.out, i ? "openssl rand" : "`weft up` makes it"), "%s", r.out);
        ts_result_free(&r);
    }
    ts_remove_dir(dir);
    free(dir);
}

/* Without --node: all that weft up would start, and what they need together. */
Test(check, all_nodes_of_this_machine)
{
    need_model();
    char *dir = ts_temp_dir(), text[9000];
    for (int i = 0; i < 3; i++) {
        snprintf(
            text, sizeof text,
            "cluster = { secret_file = \"%s/secret\"; state = \"%s\"; };\ncompute = { threads = 1000; };\n"
            "kv = { memory = \"4MiB\"; block_tokens = 16; nodes = { memory = \"%s\"; buffer = \"1MiB\"; }; };\n"
            "nodes = ({ name = \"me\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; port = 2; listen = "
            "\"127.0.0.1:0\"; },\n { name = \"kv-0\"; roles = [\"kv\"]; port = 3; host = \"%s\"; });\n",
            dir, dir, i == 1 ? "15TiB" : "2MiB", i == 2 ? "203.0.113.77" : "127.0.0.1");
        struct ts_result r = check(text, NULL);
        cr_expect_eq(r.status, i > 0, "%s", r.out);
        cr_expect(strstr(r.out, "node \"me\""), "%s", r.out);
        cr_expect_eq(strstr(r.out, "node \"kv-0\"") != NULL, i < 2, "%s", r.out);
        cr_expect(strstr(r.out, i == 2 ? "1000 threads of the 1 nodes" : "2000 threads of the 2 nodes"), "%s", r.out);
        cr_expect(strstr(r.out, i == 1 ? "MiB needed by the 2 nodes of this machine, " : "of this machine\n"), "%s",
                  r.out);
        cr_expect_eq(strstr(r.out, "peer ") != NULL, i == 2 && !strstr(r.out, "problem  secret"), "%s", r.out);
        ts_result_free(&r);
    }
    ts_remove_dir(dir);
    free(dir);
}

/* A node that is to use rdma uses it or does not start, whatever is missing: tcp is nothing to fall back to. */
Test(check, rdma_that_cannot_be_had_is_said_by_check_and_keeps_a_node_from_starting)
{
    need_model();
    static const struct {
        const char *library, *want;
    } lacking[] = {{"WEFT_RDMA_SO=/nowhere/weft-rdma.so", "/nowhere/weft-rdma.so"}, {"A=", "rdma"}};
    char *dir = ts_temp_dir(), *text = NULL;
    char *secret = ts_write_file(dir, "secret", "0123456789abcdef0123456789abcdef");
    chmod(secret, 0600);
    cr_assert_gt(
        asprintf(&text,
                 "cluster = { secret_file = \"%s\"; state = \"%s/state\"; };\n"
                 "transport = { provider = \"rdma\"; };\nkv = { memory = \"4MiB\"; block_tokens = 16; };\nnodes = (\n"
                 "{ name = \"me\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; port = 2; "
                 "host = \"192.0.2.77\"; listen = \"127.0.0.1:0\"; },\n"
                 "{ name = \"other\"; roles = [\"kv\"]; port = 3; host = \"192.0.2.78\"; });\n",
                 secret, dir),
        0);
    char *path = ts_write_file(dir, "t.conf", text);
    for (int i = 0; i < 2; i++) {
        struct ts_result r = ts_run("env", lacking[i].library, ts_weft(), "serve", "--node", "me", path);
        cr_expect_eq(r.status, 1, "%d: %s", r.status, r.err);
        cr_expect(strstr(r.err, lacking[i].want), "%s", r.err);
        cr_expect_str_eq(r.out, "");
        ts_result_free(&r);
        r = ts_run("env", lacking[i].library, ts_weft(), "check", "--node", "me", path);
        cr_expect_eq(r.status, 1, "%s", r.out);
        cr_expect(strstr(r.out, "problem  ") && strstr(r.out, lacking[i].want), "%s", r.out);
        ts_result_free(&r);
    }
    free(path);
    free(secret);
    free(text);
    ts_remove_dir(dir);
    free(dir);
}

/* As make install writes them. */
Test(check, the_systemd_units_are_well_formed)
{
    struct ts_result r = ts_run("systemd-analyze", "--version");
    bool there = r.status == 0;
    ts_result_free(&r);
    if (!there)
        cr_skip_test("needs systemd-analyze");
    static const char *const units[][2] = {
        {"weft.service", "weft.service"}, {"weft@.service", "weft@node-1.service"}, {"weft.target", "weft.target"}};
    char *dir = ts_temp_dir(), path[4300], *weft = realpath(ts_weft(), NULL);
    cr_assert(dir && weft);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        snprintf(path, sizeof path, "contrib/%s", units[i][0]);
        char *text = ts_read_file(path, NULL), *at = text, *next;
        cr_assert_not_null(text, "%s", path);
        snprintf(path, sizeof path, "%s/%s", dir, units[i][1]);
        FILE *f = fopen(path, "w");
        for (; (next = strstr(at, "@PREFIX@")); at = next + strlen("@PREFIX@")) {
            bool program = !strncmp(next, "@PREFIX@/bin/weft", strlen("@PREFIX@/bin/weft"));
            fprintf(f, "%.*s%s", (int)(next - at), at, program ? weft : "/usr/local");
            next += program ? strlen("/bin/weft") : 0;
        }
        fputs(at, f);
        fclose(f);
        free(text);
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, units[i][1]);
        r = ts_run("systemd-analyze", "verify", "--man=no", path);
        cr_expect_eq(r.status, 0, "%s: %s%s", units[i][1], r.out, r.err);
        cr_expect_not(strstr(r.err, "weft"), "%s: %s", units[i][1], r.err);
        ts_result_free(&r);
    }
    free(weft);
    ts_remove_dir(dir);
    free(dir);
}
