/* Clients that do not read: their streams hold up neither a step nor another stream, the memory that waits for them is
 * bounded, and they are cut off. Real sockets with small buffers; counted, not timed. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/server.h"

#define RUNNING "weft_num_requests_running"
#define UNSENT "weft_http_unsent_bytes"
#define STUCK "weft_stuck_clients_total"

enum { SLOW = 6, TOKENS = 400, LEASE = 8 };

static struct ts_server server;

static void stop(void)
{
    ts_server_free(&server);
}

TestSuite(slow_readers, .fini = stop);

/* A client whose kernel takes little for it, asks for a stream and reads no byte of it. */
static int silent_client(const char *more)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)server.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), least = 8192;
    cr_assert(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least) == 0);
    cr_assert_eq(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    char *body = ts_body(TS_CHAT, "Tell me of the sea.", TOKENS, true, more);
    cr_assert(ts_send_request(fd, "POST", ts_path(TS_CHAT), body));
    free(body);
    return fd;
}

/* All that comes until the server closes; *reset: in the hard way. Freed by the caller. */
static char *rest_of(int fd, bool *reset)
{
    size_t n = 0, cap = 1 << 22;
    char *s = malloc(cap + 1);
    ssize_t got = 0;
    cr_assert_not_null(s);
    while (n < cap && poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 120000) == 1 &&
           (got = recv(fd, s + n, cap - n, 0)) > 0)
        n += (size_t)got;
    *reset = got < 0;
    s[n] = 0;
    close(fd);
    return s;
}

static int times(const char *s, const char *what)
{
    int n = 0;
    for (; (s = strstr(s, what)); s += strlen(what))
        n++;
    return n;
}

static void check_rest(int fds)
{
    ts_until_metric(&server, RUNNING, 0);
    ts_until_metric(&server, "weft_num_requests_waiting", 0);
    ts_until_metric(&server, UNSENT, 0);
    ts_until_metric(&server, "weft_http_connections", 1);
    ts_until_metric(&server, "weft_kv_pages_held", LEASE);
    ts_until_fds(&server, fds);
}

/* With room for all their bytes, streams that nobody reads come to their ends beside one that is read; then everything
 * is there for those who read late. */
Test(slow_readers, hold_up_neither_steps_nor_streams)
{
    int fd[SLOW];
    ts_server_start(&server, NULL, "limits = { unread_bytes = \"64MiB\"; unread_time = \"1h\"; };");
    int fds = ts_server_fds(&server);
    for (int i = 0; i < SLOW; i++)
        fd[i] = silent_client("\"ignore_eos\":true,\"stream_options\":{\"include_usage\":true}");
    ts_until_metric(&server, "weft_num_requests_waiting", 0);
    struct ts_answer a = ts_ask(&server, TS_CHAT, "Tell me of the sea.", TOKENS, true, "\"ignore_eos\":true");
    cr_expect_eq(a.output, TOKENS, "%d", a.output);
    ts_answer_free(&a);
    ts_until_metric(&server, RUNNING, 0);
    cr_expect_float_eq(ts_metric(&server, "weft_generation_tokens_total"), (SLOW + 1) * TOKENS, 0.1);
    ts_until_metric(&server, "weft_kv_pages_held", LEASE); /* none waits for a reader */
    cr_expect_gt(ts_metric(&server, UNSENT), SLOW * TOKENS * 60, "nothing waited: the sockets are too large");
    for (int i = 0; i < SLOW; i++) {
        bool reset;
        shutdown(fd[i], SHUT_WR);
        char *s = rest_of(fd[i], &reset);
        cr_expect(!reset && strstr(s, "\"completion_tokens\":400") && strstr(s, "data: [DONE]"), "stream %d is cut", i);
        free(s);
    }
    cr_expect_float_eq(ts_metric(&server, STUCK), 0, 0);
    check_rest(fds);
}

/* With little room they are cut off long before their end, one by one, and no byte more is kept for them. */
Test(slow_readers, are_cut_off_when_they_are_far_behind)
{
    enum { UNREAD = 16384 };
    int fd[SLOW];
    ts_server_start(&server, NULL, "limits = { unread_bytes = \"16KiB\"; unread_time = \"1h\"; };");
    int fds = ts_server_fds(&server);
    for (int i = 0; i < SLOW; i++)
        fd[i] = silent_client("\"ignore_eos\":true");
    int beside = ts_connect(server.port);
    char *body = ts_body(TS_COMPLETIONS, "One", TOKENS, true, "\"ignore_eos\":true");
    cr_assert(ts_send_request(beside, "POST", ts_path(TS_COMPLETIONS), body));
    free(body);
    double most = 0;
    while (ts_metric(&server, STUCK) < SLOW) {
        double unsent = ts_metric(&server, UNSENT);
        most = unsent > most ? unsent : most;
    }
    cr_expect_le(most, (SLOW + 1) * (UNREAD + 4096), "%.0f bytes waited", most);
    cr_expect(ts_read_until(beside, "[DONE]"), "the client that read was cut off too");
    close(beside);
    check_rest(fds);
    cr_expect_float_eq(ts_metric(&server, "weft_request_success_total{finished_reason=\"cancelled\"}"), SLOW, 0.1);
    cr_expect_lt(ts_metric(&server, "weft_generation_tokens_total"), (SLOW + 1) * TOKENS,
                 "they were computed all the same");
    for (int i = 0; i < SLOW; i++) {
        bool reset;
        char *s = rest_of(fd[i], &reset);
        cr_expect(reset, "a cut must not look like an end");
        cr_expect_lt(times(s, "data: "), TOKENS);
        cr_expect_not(strstr(s, "[DONE]"));
        free(s);
    }
}

/* A client that is not far behind and takes nothing is cut off as well, streamed or whole. */
Test(slow_readers, are_cut_off_when_they_take_nothing)
{
    ts_server_start(&server, NULL, "limits = { unread_bytes = \"64MiB\"; unread_time = \"50ms\"; };");
    int fds = ts_server_fds(&server);
    int fd = silent_client("\"ignore_eos\":true");
    ts_until_metric(&server, STUCK, 1);
    struct ts_answer a = ts_ask(&server, TS_CHAT, "Tell me of the sea.", 50, true, "\"ignore_eos\":true");
    cr_expect_eq(a.output, 50);
    ts_answer_free(&a);
    close(fd);
    check_rest(fds);
    cr_expect_float_eq(ts_metric(&server, STUCK), 1, 0);
}
