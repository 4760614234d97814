/* Clients that go away, servers that end: what is freed, what is answered, what the process says with its exit. */
#include "tests/harness.h"

#include <signal.h>
#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

#define GREEDY "sampling = { temperature = 0.0; };\n"
/* Slow enough that an answer without a limit outlasts any test. */
#define SLOW GREEDY "compute = { cpu = \"scalar\"; threads = 1; };\nspeculation = { draft_length = 0; };\n"
#define PROMPT "In the beginning God created the heaven and the earth"
#define ENDLESS "\"ignore_eos\":true"
#define RUNNING "weft_num_requests_running"
#define WAITING "weft_num_requests_waiting"
#define BATCH "weft_decode_batch_size"
#define HELD "weft_kv_pages_held"
#define CANCELLED "weft_request_success_total{finished_reason=\"cancelled\"}"

enum { LEASE = 8 };

static struct ts_server server;

static void stop(void)
{
    ts_server_free(&server);
}

TestSuite(lifecycle, .fini = stop, .timeout = 300);

/* One request, so that everything that is made on first use is there; then the pages held at rest. */
static double warm_up(void)
{
    struct ts_answer a = ts_ask(&server, TS_CHAT, "Hello", 4, false, "");
    ts_answer_free(&a);
    ts_until_metric(&server, RUNNING, 0);
    /* At rest Decode holds its lease of free pages and nothing else. */
    ts_until_metric(&server, HELD, LEASE);
    return LEASE;
}

static int open_request(bool stream, int limit, const char *prompt)
{
    char *body = ts_body(TS_CHAT, prompt, limit, stream, ENDLESS);
    int fd = ts_connect(server.port);
    cr_assert(fd >= 0 && ts_send_request(fd, "POST", ts_path(TS_CHAT), body));
    free(body);
    return fd;
}

static void check_free(double held, int cancelled)
{
    ts_until_metric(&server, RUNNING, 0);
    ts_until_metric(&server, WAITING, 0);
    ts_until_metric(&server, CANCELLED, cancelled);
    /* The engine has stopped too, long before the answer's end: that would take some 900 steps. */
    ts_until_metric(&server, BATCH, 0);
    cr_expect_lt(ts_metric(&server, "weft_decode_steps_total"), 600.0);
    ts_until_metric(&server, HELD, held);
    ts_until_metric(&server, "weft_http_connections", 1); /* the one that asks */
}

Test(lifecycle, a_client_that_leaves_frees_everything)
{
    ts_server_start(&server, NULL, SLOW);
    int fds = ts_server_fds(&server);
    double held = warm_up();
    for (int stream = 0; stream < 2; stream++) {
        int fd = open_request(stream, 0, PROMPT);
        if (stream)
            cr_assert(ts_read_until(fd, "data: "));
        ts_until_metric(&server, RUNNING, 1);
        ts_until_metric(&server, BATCH, 1);
        close(fd);
        check_free(held, stream + 1);
    }
    cr_expect_eq(ts_metric(&server, "weft_disconnected_clients_total"), 2.0);
    ts_until_fds(&server, fds);
}

Test(lifecycle, a_client_that_leaves_the_queue_frees_its_place)
{
    ts_server_start(&server, NULL, SLOW "engine = { decode_streams = 1; };\n");
    double held = warm_up();
    int first = open_request(true, 0, PROMPT);
    ts_until_metric(&server, RUNNING, 1);
    for (int stream = 0; stream < 2; stream++) {
        int fd = open_request(stream, 4, PROMPT);
        ts_until_metric(&server, WAITING, 1);
        close(fd);
        ts_until_metric(&server, WAITING, 0);
        ts_until_metric(&server, CANCELLED, stream + 1);
    }
    close(first);
    check_free(held, 3);
    struct ts_answer a = ts_ask(&server, TS_CHAT, PROMPT, 4, true, "");
    cr_expect_eq(a.output, 4);
    ts_answer_free(&a);
}

Test(lifecycle, a_client_that_leaves_during_its_prompt_frees_it)
{
    ts_server_start(&server, NULL, GREEDY "compute = { cpu = \"scalar\"; threads = 1; prefill_chunk = 2; };\n");
    double held = warm_up();
    char prompt[4000] = "";
    for (int i = 0; i < 300; i++)
        strcat(prompt, i % 3 ? "the LORD " : "unto Moses ");
    int fd = open_request(true, 4, prompt);
    ts_until_metric(&server, WAITING, 1);
    close(fd);
    check_free(held, 1);
    cr_expect_eq(ts_metric(&server, "weft_generation_tokens_total"), 4.0); /* of the warm-up */
}

Test(lifecycle, more_than_the_limit_is_told_to_come_back)
{
    ts_server_start(&server, NULL, SLOW "limits = { requests = 2; };\n");
    int fd[2] = {open_request(true, 0, PROMPT), open_request(false, 0, PROMPT)};
    ts_until_metric(&server, RUNNING, 2);
    for (int p = 0; p < TS_PROTOCOLS; p++) {
        char *body = ts_body(p, PROMPT, 4, p % 2, "");
        struct ts_reply r = ts_post(&server, ts_path(p), body);
        cr_expect_eq(r.status, 429, "%s: %d %s", ts_path(p), r.status, r.body);
        cr_expect(strcasestr(r.head, "\r\nRetry-After: "), "%s", r.head);
        cr_expect(strstr(r.body, "\"error\""), "%s", r.body);
        ts_reply_free(&r);
        free(body);
    }
    cr_expect_eq(ts_metric(&server, "weft_requests_refused_total{cause=\"busy\"}"), 4.0);
    close(fd[0]);
    ts_until_metric(&server, RUNNING, 1);
    struct ts_answer a = ts_ask(&server, TS_CHAT, PROMPT, 4, false, "");
    cr_expect_eq(a.output, 4);
    ts_answer_free(&a);
    close(fd[1]);
}

/* ---- the end of the process ---- */

Test(lifecycle, sigterm_lets_streams_finish_and_refuses_new_ones)
{
    enum { N = 4, TOKENS = 500 }; /* many enough that all are seen running */
    int fd[N];
    ts_server_start(&server, NULL, SLOW "limits = { drain = \"10min\"; };\n");
    for (int i = 0; i < N; i++)
        fd[i] = open_request(i % 2, TOKENS, PROMPT);
    ts_until_metric(&server, RUNNING, N);
    kill(server.pid, SIGTERM);
    /* Requests that came before the signal was seen are still answered. */
    struct ts_reply r = {.status = 200};
    for (int i = 0; i < 100 && r.status == 200; i++) {
        ts_reply_free(&r);
        r = ts_postf(&server, ts_path(TS_CHAT),
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1}");
    }
    cr_expect_eq(r.status, 503, "%d %s", r.status, r.body);
    cr_expect(strstr(r.body, "shutting down"), "%s", r.body);
    ts_reply_free(&r);
    r = ts_get(&server, "/health/ready");
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body, "draining"), "%s", r.body);
    ts_reply_free(&r);
    for (int i = 0; i < N; i++) {
        r = ts_read_reply(fd[i]);
        if (!r.whole) {
            char *log = ts_server_log(&server);
            cr_assert_fail("stream %d was cut off: %s%s", i, r.body, log);
        }
        cr_expect_eq(r.status, 200);
        struct ts_answer a = ts_answer_of(TS_CHAT, r.body, i % 2);
        cr_expect_eq(a.output, TOKENS, "%d", a.output);
        cr_expect_str_eq(a.finish, "length");
        ts_answer_free(&a);
        ts_reply_free(&r);
        close(fd[i]);
    }
    cr_expect_eq(ts_server_wait(&server), 0);
}

Test(lifecycle, sigterm_at_rest_ends_at_once)
{
    ts_server_start(&server, NULL, "");
    int idle = ts_connect(server.port);
    ts_until_metric(&server, "weft_http_connections", 2);
    kill(server.pid, SIGTERM);
    cr_expect_eq(ts_server_wait(&server), 0);
    close(idle);
}

/* The answer that is cut off must not look like one that has ended. */
static void check_cut_off(int fd)
{
    struct ts_reply r = ts_read_reply(fd);
    cr_expect_not(r.whole, "%s", r.body);
    cr_expect_null(strstr(r.body, "[DONE]"));
    cr_expect_null(strstr(r.body, "\"finish_reason\":\""));
    ts_reply_free(&r);
    close(fd);
}

/* A server that ends says so to its clients, in the form of their protocol, and not as if the answer had ended. */
static void check_told(enum ts_protocol p, bool stream, int fd)
{
    struct ts_reply r = ts_read_reply(fd);
    cr_expect(r.whole, "%s", r.body);
    cr_expect_eq(r.status, stream ? 200 : 503);
    cr_expect(strstr(r.body, p == TS_RESPONSES && stream ? "response.failed" : "\"error\""), "%s", r.body);
    cr_expect(strstr(r.body, "the server is stopping"), "%s", r.body);
    cr_expect_null(strstr(r.body, "[DONE]"));
    cr_expect_null(strstr(r.body, "\"finish_reason\":\""));
    cr_expect_null(strstr(r.body, "message_stop"));
    ts_reply_free(&r);
    close(fd);
}

static int open_endless(enum ts_protocol p, bool stream)
{
    int fd = ts_connect(server.port);
    char *body = ts_body(p, PROMPT, 10000, stream, "");
    cr_assert(ts_send_request(fd, "POST", ts_path(p), body));
    free(body);
    return fd;
}

Test(lifecycle, a_second_sigterm_ends_at_once)
{
    int fds[TS_PROTOCOLS][2];
    ts_server_start(&server, NULL, SLOW);
    for (int p = 0; p < TS_PROTOCOLS; p++)
        for (int stream = 0; stream < 2; stream++)
            fds[p][stream] = open_endless(p, stream);
    ts_until_metric(&server, "weft_num_requests_running", 2 * TS_PROTOCOLS);
    kill(server.pid, SIGTERM);
    struct ts_reply r = {0};
    do {
        ts_reply_free(&r);
        r = ts_get(&server, "/health/ready");
    } while (r.status == 200);
    ts_reply_free(&r);
    kill(server.pid, SIGTERM);
    cr_expect_eq(ts_server_wait(&server), 3);
    for (int p = 0; p < TS_PROTOCOLS; p++)
        for (int stream = 0; stream < 2; stream++)
            check_told(p, stream, fds[p][stream]);
}

Test(lifecycle, the_drain_limit_ends_it)
{
    ts_server_start(&server, NULL, SLOW "limits = { drain = \"100ms\"; };\n");
    int fd = open_endless(TS_CHAT, true);
    ts_until_metric(&server, RUNNING, 1);
    kill(server.pid, SIGTERM);
    cr_expect_eq(ts_server_wait(&server), 3);
    char *log = ts_server_log(&server);
    cr_expect(strstr(log, "cut off"), "%s", log);
    free(log);
    check_told(TS_CHAT, true, fd);
}

Test(lifecycle, killed_and_started_again_on_the_same_port)
{
    ts_server_start(&server, NULL, SLOW);
    struct ts_answer before = ts_ask(&server, TS_CHAT, PROMPT, 5, true, "");
    for (int i = 0; i < 3; i++) {
        int port = server.port, fd = open_request(true, 0, PROMPT);
        cr_assert(ts_read_until(fd, "data: "));
        kill(server.pid, SIGKILL);
        cr_expect_eq(ts_server_wait(&server), 128 + SIGKILL);
        check_cut_off(fd);
        cr_assert(ts_server_again(&server, NULL, port));
        cr_expect_eq(server.port, port);
        struct ts_answer after = ts_ask(&server, TS_CHAT, PROMPT, 5, true, "");
        cr_expect_str_eq(after.text, before.text);
        ts_answer_free(&after);
    }
    ts_answer_free(&before);
}

Test(lifecycle, a_port_in_use_is_said_so)
{
    ts_server_start(&server, NULL, "");
    char conf[4200], port[16];
    char *again = NULL;
    snprintf(conf, sizeof conf, "%s/weft.conf", server.dir);
    snprintf(port, sizeof port, ":%d\"", server.port);
    char *text = ts_read_file(conf, NULL), *at = strstr(text, ":0\"");
    cr_assert(at && asprintf(&again, "%.*s%s%s", (int)(at - text), text, port, at + 3) > 0);
    char *path = ts_write_file(server.dir, "again.conf", again);
    struct ts_result r = ts_run(ts_weft(), "serve", path);
    snprintf(port, sizeof port, "%d", server.port);
    cr_expect_eq(r.status, 1, "%d", r.status);
    cr_expect(strstr(r.err, port) && strstr(r.err, "in use"), "%s", r.err);
    cr_expect_str_eq(r.out, "");
    ts_result_free(&r);
    free(path);
    free(again);
    free(text);
}

Test(lifecycle, sighup_changes_nothing_for_streams)
{
    ts_server_start(&server, NULL, GREEDY);
    int fd = open_request(true, 200, PROMPT);
    cr_assert(ts_read_until(fd, "data: "));
    kill(server.pid, SIGHUP);
    cr_assert(ts_read_until(fd, "[DONE]"));
    close(fd);
    kill(server.pid, SIGINT);
    cr_expect_eq(ts_server_wait(&server), 0);
}
