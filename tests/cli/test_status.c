/* weft status and weft drain without a deployment that runs: command lines, files, nodes that do not answer. What they
 * say about living nodes is in tests/server/test_deployment.c. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/process.h"

static char *dir, *conf;

static void fini(void)
{
    if (dir)
        ts_remove_dir(dir);
    free(dir);
    free(conf);
    dir = conf = NULL;
}

TestSuite(status, .fini = fini, .timeout = 120);

/* A socket that listens and answers nothing; *port is its port. */
static int listen_mute(int *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 8) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* Two nodes; the first has this port, nobody listens at the second's. */
static void make(int port)
{
    char *text = NULL, *secret;
    int closed, fd = listen_mute(&closed);
    close(fd);
    dir = ts_temp_dir();
    cr_assert_not_null(dir);
    secret = ts_write_file(dir, "secret", "0123456789abcdef0123456789abcdef");
    chmod(secret, 0600);
    cr_assert_gt(
        asprintf(&text,
                 "cluster = { secret_file = \"%s\"; state = \"%s\"; };\nnodes = (\n"
                 "{ name = \"mute\"; roles = [\"gateway\", \"prefill\"]; port = %d; listen = \"127.0.0.1:0\"; },\n"
                 "{ name = \"absent\"; roles = [\"decode\", \"expert\"]; port = %d; });\n",
                 secret, dir, port, closed),
        0);
    conf = ts_write_file(dir, "two.conf", text);
    free(text);
    free(secret);
}

static void expect(struct ts_result r, int status, const char *want)
{
    cr_expect_eq(r.status, status, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, want) || strstr(r.err, want), "should say: %s\nsaid:\n%s%s", want, r.out, r.err);
    ts_result_free(&r);
}

Test(status, wrong_command_lines)
{
    make(1);
    expect(ts_run(ts_weft(), "status"), 2, "an argument is missing");
    expect(ts_run(ts_weft(), "status", "/nowhere.conf"), 2, "/nowhere.conf");
    expect(ts_run(ts_weft(), "status", conf, "other"), 2, "there is no node \"other\"");
    expect(ts_run(ts_weft(), "status", "--help"), 0, "boot epoch");
    expect(ts_run(ts_weft(), "drain", conf), 2, "an argument is missing");
    expect(ts_run(ts_weft(), "drain", conf, "other"), 2, "there is no node \"other\"");
    expect(ts_run(ts_weft(), "drain", "config/single.conf", "local"), 2, "end it with SIGTERM");
    expect(ts_run(ts_weft(), "drain", "--help"), 0, "limits.drain");
}

Test(status, nodes_that_are_not_there_or_say_nothing_are_listed_with_the_reason)
{
    int port, fd = listen_mute(&port);
    make(port);
    struct ts_result r = ts_run(ts_weft(), "status", "--timeout", "1", conf);
    cr_expect_eq(r.status, 1);
    static const char *const parts[] = {"NODE ", "unreachable", "mute: no answer in time; its machine is off",
                                        "absent: Connection refused; nothing listens there", "0 of 2 nodes well"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect(strstr(r.out, parts[i]), "%s is missing in\n%s", parts[i], r.out);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "status", "--json", "--timeout", "1", conf, "absent");
    cr_expect_eq(r.status, 1);
    cr_expect(strstr(r.out, "\"ok\": false") && strstr(r.out, "\"reachable\": false") && !strstr(r.out, "mute"), "%s",
              r.out);
    ts_result_free(&r);
    expect(ts_run(ts_weft(), "drain", conf, "absent"), 1, "Connection refused");
    close(fd);
}

Test(status, a_secret_that_cannot_be_read)
{
    make(1);
    char path[4200];
    snprintf(path, sizeof path, "%s/secret", dir);
    unlink(path);
    expect(ts_run(ts_weft(), "status", conf), 1, path);
}

Test(status, a_single_node_is_asked_over_http)
{
    int port, fd = listen_mute(&port);
    char *text = NULL;
    close(fd);
    dir = ts_temp_dir();
    cr_assert_gt(asprintf(&text,
                          "nodes = ({ name = \"one\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; "
                          "listen = \"127.0.0.1:%d\"; });\n",
                          port),
                 0);
    conf = ts_write_file(dir, "one.conf", text);
    free(text);
    expect(ts_run(ts_weft(), "status", conf), 1, "is a server running there?");
}
