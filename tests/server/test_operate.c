/* What an operator relies on: keys, TLS, ids, logs, metrics, debug pages, start errors. Real processes, real sockets.
 */
#include "tests/harness.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/process.h"
#include "tests/support/server.h"

static struct ts_server server;
static char *dir;

static void make_dir(void)
{
    dir = ts_temp_dir();
    cr_assert_not_null(dir);
}

static void remove_all(void)
{
    ts_server_free(&server);
    if (dir)
        ts_remove_dir(dir);
    free(dir);
    dir = NULL;
}

TestSuite(operate, .init = make_dir, .fini = remove_all);

/* A request with further header lines. */
static struct ts_reply ask(const char *method, const char *path, const char *headers, const char *body)
{
    char *text = NULL;
    int fd = ts_connect(server.port);
    struct ts_reply r = {0};
    int n = asprintf(&text, "%s %s HTTP/1.1\r\nHost: test\r\n%sContent-Length: %zu\r\n\r\n%s", method, path, headers,
                     strlen(body), body);
    cr_assert(fd >= 0 && n > 0 && send(fd, text, (size_t)n, MSG_NOSIGNAL) == n);
    r = ts_read_reply(fd);
    close(fd);
    free(text);
    return r;
}

static int status_of(const char *method, const char *path, const char *headers, const char *body)
{
    struct ts_reply r = ask(method, path, headers, body);
    int status = r.status;
    ts_reply_free(&r);
    return status;
}

static json_t *json_of(const struct ts_reply *r)
{
    json_t *j = json_loads(r->body, 0, NULL);
    cr_assert_not_null(j, "%s", r->body);
    return j;
}

static const char short_chat[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"the secret of the prompt\"}],\"max_tokens\":3}";

static char *config_with_keys(const char *keys)
{
    char *path = ts_write_file(dir, "keys", keys), *config = NULL;
    cr_assert(path && asprintf(&config, "security = { keys_file = \"%s\"; };", path) > 0);
    free(path);
    return config;
}

/* ---- keys ---- */

Test(operate, keys_are_asked_for_in_each_protocols_shape)
{
    char *config = config_with_keys("sk-right-key-1 alice\n");
    ts_server_start(&server, NULL, config);
    free(config);
    static const struct {
        const char *path, *type;
    } openai[] = {{"/v1/chat/completions", "authentication_error"},
                  {"/v1/completions", "authentication_error"},
                  {"/v1/responses", "authentication_error"}};
    for (size_t i = 0; i < 3; i++) {
        struct ts_reply r = ask("POST", openai[i].path, "", short_chat);
        json_t *j = json_of(&r), *e = json_object_get(j, "error");
        cr_expect_eq(r.status, 401, "%s gave %d", openai[i].path, r.status);
        cr_expect(strcasestr(r.head, "\r\nWWW-Authenticate: Bearer"));
        cr_expect_str_eq(json_string_value(json_object_get(e, "type")), openai[i].type);
        cr_expect_str_eq(json_string_value(json_object_get(e, "code")), "invalid_api_key");
        json_decref(j);
        ts_reply_free(&r);
    }
    struct ts_reply r = ask("POST", "/v1/messages", "x-api-key: sk-wrong-key-1\r\n", short_chat);
    json_t *j = json_of(&r);
    cr_expect_eq(r.status, 401);
    cr_expect_str_eq(json_string_value(json_object_get(j, "type")), "error");
    cr_expect_str_eq(json_string_value(json_object_get(json_object_get(j, "error"), "type")), "authentication_error");
    cr_expect_not(strstr(r.body, "wrong-key"), "a key is repeated: %s", r.body);
    json_decref(j);
    ts_reply_free(&r);
    cr_expect_eq(status_of("GET", "/v1/models", "", ""), 401);
    cr_expect_eq(status_of("POST", "/tokenize", "", "{\"prompt\":\"a\"}"), 401);
    cr_expect_eq(status_of("GET", "/health/ready", "", ""), 200, "probes need no key");
    cr_expect_eq(status_of("GET", "/metrics", "", ""), 200, "figures need none on this machine");
    cr_expect_eq(status_of("GET", "/v1/models", "Authorization: Bearer sk-right-key-1\r\n", ""), 200);
    cr_expect_eq(status_of("GET", "/v1/models", "authorization: bearer  sk-right-key-1\r\n", ""), 200);
    cr_expect_eq(status_of("POST", "/v1/chat/completions", "x-api-key: sk-right-key-1\r\n", short_chat), 200);
    cr_expect_float_eq(ts_metric(&server, "weft_requests_refused_total{cause=\"api_key\"}"), 6, 0.1);
    kill(server.pid, SIGTERM);
    cr_expect_eq(ts_server_wait(&server), 0);
    char *log = ts_server_log(&server);
    cr_expect(strstr(log, "key=alice"), "%s", log);
    cr_expect_not(strstr(log, "sk-right-key-1") || strstr(log, "sk-wrong-key-1"), "a key is in the log:\n%s", log);
    free(log);
}

Test(operate, a_key_has_so_many_requests_at_a_time)
{
    char *config = config_with_keys("sk-limited-1 one 1\nsk-other-22\n");
    ts_server_start(&server, NULL, config);
    free(config);
    static const char endless[] = "{\"prompt\":\"a\",\"max_tokens\":900,\"ignore_eos\":true,\"stream\":true}";
    static const char limited[] = "Authorization: Bearer sk-limited-1\r\n";
    char head[1024];
    int fd = ts_connect(server.port);
    snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: t\r\n%sContent-Length: %zu\r\n\r\n%s", limited,
             strlen(endless), endless);
    cr_assert(fd >= 0 && send(fd, head, strlen(head), MSG_NOSIGNAL) == (ssize_t)strlen(head));
    cr_assert(ts_read_until(fd, "data: "));
    struct ts_reply r = ask("POST", "/v1/chat/completions", limited, short_chat);
    cr_expect_eq(r.status, 429);
    cr_expect(strstr(r.body, "this API key has as many requests"), "%s", r.body);
    cr_expect(strcasestr(r.head, "\r\nRetry-After: "));
    ts_reply_free(&r);
    cr_expect_eq(status_of("POST", "/v1/chat/completions", "Authorization: Bearer sk-other-22\r\n", short_chat), 200);
    close(fd);
    ts_until_metric(&server, "weft_num_requests_running", 0);
    cr_expect_eq(status_of("POST", "/v1/chat/completions", limited, short_chat), 200, "the place is free again");
}

Test(operate, sighup_reads_keys_and_opens_the_log_again)
{
    char *config = NULL, *keys = ts_write_file(dir, "keys", "sk-old-key-1\n");
    char log[4200], moved[4200];
    snprintf(log, sizeof log, "%s/weft.log", dir);
    snprintf(moved, sizeof moved, "%s/weft.log.1", dir);
    cr_assert(asprintf(&config, "log = { file = \"%s\"; format = \"json\"; };\nsecurity = { keys_file = \"%s\"; };",
                       log, keys) > 0);
    ts_server_start(&server, NULL, config);
    free(config);
    free(keys);
    cr_expect_eq(status_of("GET", "/v1/models", "x-api-key: sk-old-key-1\r\n", ""), 200);
    cr_assert_eq(rename(log, moved), 0);
    free(ts_write_file(dir, "keys", "sk-new-key-1\nsk-new-key-2\n"));
    kill(server.pid, SIGHUP);
    ts_until_metric(&server, "weft_api_keys", 2);
    cr_expect_eq(status_of("GET", "/v1/models", "x-api-key: sk-old-key-1\r\n", ""), 401);
    cr_expect_eq(status_of("GET", "/v1/models", "x-api-key: sk-new-key-2\r\n", ""), 200);
    free(ts_write_file(dir, "keys", "bad\n"));
    kill(server.pid, SIGHUP);
    kill(server.pid, SIGTERM);
    cr_expect_eq(ts_server_wait(&server), 0);
    char *old = ts_read_file(moved, NULL), *new = ts_read_file(log, NULL);
    cr_expect(old && strstr(old, "\"event\":\"accepting\""), "%s", old ? old : "no old log");
    cr_expect(new &&strstr(new, "\"event\":\"ended\""), "%s", new ? new : "no new log");
    free(old);
    free(new);
}

/* ---- ids and logs ---- */

Test(operate, a_request_has_an_id_and_one_line_in_the_log)
{
    ts_server_start(&server, NULL, "log = { format = \"json\"; };");
    struct ts_reply r = ask("POST", "/v1/chat/completions", "X-Request-Id: my-id.1:a_b\r\n", short_chat);
    cr_expect(strcasestr(r.head, "\r\nX-Request-Id: my-id.1:a_b\r\n"), "%s", r.head);
    cr_expect(strcasestr(r.head, "\r\nServer-Timing: queue;dur="), "%s", r.head);
    ts_reply_free(&r);
    r = ask("POST", "/v1/chat/completions", "X-Request-Id: <not one>\r\n", short_chat);
    const char *id = strcasestr(r.head, "\r\nX-Request-Id: ");
    cr_expect(id && strspn(id + 16, "0123456789abcdef") == 16 && !strncmp(id + 32, "\r\n", 2), "%s", r.head);
    ts_reply_free(&r);
    r = ask("POST", "/v1/chat/completions", "X-Request-Id: bad-one\r\n", "{}");
    cr_expect_eq(r.status, 400);
    cr_expect(strcasestr(r.head, "\r\nX-Request-Id: bad-one\r\n"), "errors have it too: %s", r.head);
    ts_reply_free(&r);
    r = ask("GET", "/v1/models", "X-Request-Id: list-1\r\n", "");
    cr_expect(strcasestr(r.head, "\r\nX-Request-Id: list-1\r\n"), "%s", r.head);
    ts_reply_free(&r);
    kill(server.pid, SIGTERM);
    cr_expect_eq(ts_server_wait(&server), 0);
    char *log = ts_server_log(&server), *line = strstr(log, "\"id\":\"my-id.1:a_b\"");
    cr_assert_not_null(line, "%s", log);
    cr_expect_not(strstr(log, "secret"), "the prompt is in the log:\n%s", log);
    while (line > log && line[-1] != '\n')
        line--;
    line[strcspn(line, "\n")] = 0;
    json_t *j = json_loads(line, 0, NULL);
    cr_assert_not_null(j, "%s", line);
    cr_expect_str_eq(json_string_value(json_object_get(j, "event")), "request_end");
    cr_expect_str_eq(json_string_value(json_object_get(j, "protocol")), "chat");
    cr_expect_str_eq(json_string_value(json_object_get(j, "outcome")), "length");
    cr_expect_eq(json_integer_value(json_object_get(j, "status")), 200);
    cr_expect_eq(json_integer_value(json_object_get(j, "output")), 3);
    double sum = 0;
    static const char *const stages[] = {"queue", "prefill", "first_token", "decode"};
    for (size_t i = 0; i < 4; i++) {
        cr_expect(json_is_real(json_object_get(j, stages[i])), "%s is missing in %s", stages[i], line);
        sum += json_real_value(json_object_get(j, stages[i]));
    }
    cr_expect_float_eq(sum, json_real_value(json_object_get(j, "total")), 1e-4, "the stages do not add up: %s", line);
    json_decref(j);
    free(log);
}

/* The head of a stream leaves with the first keep-alive, before anybody knows how long it queues. */
Test(operate, a_stream_that_queued_long_says_so)
{
    ts_server_start(&server, NULL, "engine = { decode_streams = 1; };\nlimits = { keepalive = \"100ms\"; };");
    int fd = ts_connect(server.port);
    cr_assert(ts_send_request(fd, "POST", "/v1/completions",
                              "{\"prompt\":\"a\",\"max_tokens\":1000,\"ignore_eos\":true,\"stream\":true}"));
    cr_assert(ts_read_until(fd, "data: "));
    int other = ts_connect(server.port);
    cr_assert(ts_send_request(other, "POST", "/v1/completions", "{\"prompt\":\"b\",\"max_tokens\":2,\"stream\":true}"));
    cr_assert(ts_read_until(other, "\r\n\r\n"));
    close(fd);
    cr_expect(ts_read_until(other, ": Server-Timing: queue;dur="));
    close(other);
}

/* ---- metrics ---- */

/* Series without values, sorted: what a dashboard finds. */
static char *series(void)
{
    struct ts_reply r = ts_get(&server, "/metrics");
    cr_assert_eq(r.status, 200);
    char *names = calloc(1, strlen(r.body) + 1);
    for (char *line = strtok(r.body, "\n"); line; line = strtok(NULL, "\n"))
        if (line[0] != '#') {
            strncat(names, line, (size_t)(strrchr(line, ' ') - line));
            strcat(names, "\n");
        }
    ts_reply_free(&r);
    return names;
}

Test(operate, every_series_is_there_from_the_start)
{
    ts_server_start(&server, NULL, "");
    char *before = series();
    static const char *const wanted[] = {"weft_num_requests_running\n",
                                         "weft_time_to_first_token_seconds_bucket{le=\"+Inf\"}",
                                         "weft_request_queue_time_seconds_count",
                                         "weft_decode_batch_size",
                                         "weft_prefix_cache_hits_total",
                                         "weft_spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}",
                                         "weft_request_success_total{finished_reason=\"error\"}",
                                         "weft_worker_progress_age_seconds{worker=\"engine\"}",
                                         "weft_prompt_tokens_by_source_total{source=\"below\"}",
                                         "weft_kv_block_lifetime_seconds_bucket{le=\"+Inf\"}",
                                         "weft_kv_block_idle_before_evict_seconds_count",
                                         "weft_kv_block_reuse_gap_seconds_sum",
                                         "weft_landing_sequences_total",
                                         "weft_landing_tickets_open",
                                         "weft_expert_dispatches_total{source=\"prefill\"}",
                                         "weft_expert_deadlines_passed_total{source=\"decode\"}",
                                         "weft_build_info{version=",
                                         "process_open_fds"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        cr_expect(strstr(before, wanted[i]), "%s is missing", wanted[i]);
    cr_expect_float_eq(ts_metric(&server, "weft_generation_tokens_total"), 0, 0);
    cr_expect_eq(status_of("POST", "/v1/chat/completions", "", short_chat), 200);
    cr_expect_eq(status_of("POST", "/v1/chat/completions", "", "{}"), 400);
    cr_expect_float_eq(ts_metric(&server, "weft_generation_tokens_total"), 3, 0);
    cr_expect_float_eq(ts_metric(&server, "weft_request_queue_time_seconds_count"), 1, 0);
    cr_expect_float_eq(ts_metric(&server, "weft_requests_refused_total{cause=\"bad_request\"}"), 1, 0);
    cr_expect_gt(ts_metric(&server, "weft_decode_steps_total"), 0);
    char *after = series();
    cr_expect_str_eq(before, after, "series came or went with the first requests");
    free(before);
    free(after);
}

static void until_more(const char *name, double than)
{
    for (int i = 0; i < 20000 && !(ts_metric(&server, name) > than); i++)
        ;
    cr_expect_gt(ts_metric(&server, name), than, "%s", name);
}

/* What the engine's actors report: sources of prompts' tokens, lives of blocks, the exchange. */
Test(operate, figures_of_the_engine_follow_the_requests)
{
    char body[1200], prompt[900];
    memset(prompt, 'a', sizeof prompt);
    for (size_t i = 0; i < sizeof prompt; i++)
        prompt[i] = (char)("abc defgh "[i * i % 10]);
    prompt[sizeof prompt - 1] = 0;
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":4}", prompt);
    ts_server_start(&server, NULL, "kv = { block_tokens = 32; snapshots = \"0B\"; };");
    cr_expect_eq(status_of("POST", "/v1/completions", "", body), 200);
    double prompt_tokens = ts_metric(&server, "weft_prompt_tokens_total");
    cr_expect_eq(ts_metric(&server, "weft_prompt_tokens_by_source_total{source=\"computed\"}"), prompt_tokens);
    cr_expect_eq(ts_metric(&server, "weft_prompt_tokens_by_source_total{source=\"device\"}"), 0);
    cr_expect_eq(status_of("POST", "/v1/completions", "", body), 200);
    double hits = ts_metric(&server, "weft_prefix_cache_hits_total");
    cr_expect_gt(hits, 32);
    cr_expect_eq(ts_metric(&server, "weft_prompt_tokens_by_source_total{source=\"device\"}"), hits);
    cr_expect_eq(ts_metric(&server, "weft_prompt_tokens_by_source_total{source=\"below\"}"), 0);
    until_more("weft_kv_block_reuse_gap_seconds_count", 0);
    until_more("weft_expert_exchanges_total{source=\"prefill\"}", 0);
    until_more("weft_expert_results_total{source=\"decode\"}", 0);
    cr_expect_eq(ts_metric(&server, "weft_expert_deadlines_passed_total{source=\"decode\"}"), 0);
}

Test(operate, promtool_accepts_the_metrics)
{
    struct ts_result t = ts_run("promtool", "--version");
    bool there = t.status == 0;
    ts_result_free(&t);
    if (!there)
        cr_skip_test("needs promtool: make deps");
    ts_server_start(&server, NULL, "model = { path = \"samples/tiny\"; name = \"a \\\"quoted\\\" \\\\ name\"; };");
    cr_expect_eq(status_of("POST", "/v1/chat/completions", "", short_chat), 200);
    struct ts_reply r = ts_get(&server, "/metrics");
    t = ts_run_input(r.body, "promtool", "check", "metrics");
    cr_expect_eq(t.status, 0, "%s%s", t.out, t.err);
    ts_result_free(&t);
    ts_reply_free(&r);
}

/* ---- debug ---- */

Test(operate, debug_is_there_when_it_is_enabled)
{
    ts_server_start(&server, NULL, "security = { debug = true; };");
    struct ts_reply r = ts_get(&server, "/debug/actors");
    json_t *j = json_of(&r), *a;
    size_t i, seen = 0;
    cr_expect_eq(r.status, 200);
    json_array_foreach (json_object_get(j, "actors"), i, a) {
        const char *name = json_string_value(json_object_get(a, "name"));
        seen += !strcmp(name, "gateway") || !strcmp(name, "decode") || !strcmp(name, "prefill");
        /* Prompts give way to running streams, whatever worker they share. */
        cr_expect_eq(json_boolean_value(json_object_get(a, "bulk")), !strcmp(name, "prefill"), "%s", name);
    }
    cr_expect_eq(seen, 3);
    json_decref(j);
    ts_reply_free(&r);
    r = ask("POST", "/v1/completions", "X-Weft-Trace: 1\r\n",
            "{\"prompt\":\"a\",\"max_tokens\":4,\"stream\":true,\"ignore_eos\":true}");
    cr_expect(strstr(r.body, ": made "), "%s", r.body);
    ts_reply_free(&r);
}

Test(operate, debug_is_not_there_otherwise)
{
    ts_server_start(&server, NULL, "");
    cr_expect_eq(status_of("GET", "/debug/actors", "", ""), 404);
    struct ts_reply r =
        ask("POST", "/v1/completions", "X-Weft-Trace: 1\r\n", "{\"prompt\":\"a\",\"max_tokens\":4,\"stream\":true}");
    cr_expect_eq(r.status, 200);
    cr_expect_not(strstr(r.body, ": made "), "%s", r.body);
    ts_reply_free(&r);
}

/* ---- health ---- */

static bool ready_says(const char *status, int code)
{
    struct ts_reply r = ts_get(&server, "/health/ready");
    bool is = r.status == code && strstr(r.body, status);
    ts_reply_free(&r);
    return is;
}

static void until_ready_says(const char *status, int code)
{
    for (int i = 0; i < 20000; i++) {
        if (ready_says(status, code))
            return;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    cr_assert_fail("/health/ready never says %s", status);
}

/* The engine's thread is held while a stream runs; the gateway's goes on. */
Test(operate, a_stuck_engine_is_live_and_not_ready)
{
    ts_server_start(&server, NULL, "limits = { stuck = \"300ms\"; };");
    cr_expect(ready_says("\"ok\"", 200));
    int fd = ts_connect(server.port);
    cr_assert(ts_send_request(fd, "POST", "/v1/completions",
                              "{\"prompt\":\"a\",\"max_tokens\":1000,\"ignore_eos\":true,\"stream\":true}"));
    cr_assert(ts_read_until(fd, "data: "));
    pid_t engine = ts_server_hold(&server, "engine");
    if (!engine) {
        close(fd);
        cr_skip_test("a thread cannot be held here: ptrace is not allowed");
    }
    until_ready_says("\"stuck\"", 503);
    cr_expect_gt(ts_metric(&server, "weft_worker_progress_age_seconds{worker=\"engine\"}"), 0.3);
    cr_expect_float_eq(ts_metric(&server, "weft_worker_progress_age_seconds{worker=\"io\"}"), 0, 0);
    cr_expect_eq(status_of("GET", "/health/live", "", ""), 200);
    cr_expect(ts_server_let_go(engine));
    until_ready_says("\"ok\"", 200);
    close(fd);
    ts_until_metric(&server, "weft_num_requests_running", 0);
    ts_until_metric(&server, "weft_worker_progress_age_seconds{worker=\"engine\"}", 0);
}

/* ---- TLS and start ---- */

static bool make_certificate(const char *cert, const char *key)
{
    struct ts_result t = ts_run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                                "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days",
                                "2", "-keyout", key, "-out", cert);
    bool made = t.status == 0;
    ts_result_free(&t);
    t = ts_run("curl", "--version");
    bool curl = t.status == 0;
    ts_result_free(&t);
    return made && curl;
}

static bool trusted(const char *cert)
{
    char url[100];
    snprintf(url, sizeof url, "https://127.0.0.1:%d/health/live", server.port);
    struct ts_result t = ts_run("curl", "-sS", "-m", "60", "--cacert", cert, url);
    bool is = t.status == 0 && strstr(t.out, "\"ok\"");
    ts_result_free(&t);
    return is;
}

Test(operate, tls)
{
    char cert[4200], key[4200], url[100], *config = NULL;
    snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
    if (!make_certificate(cert, key))
        cr_skip_test("needs openssl and curl");
    cr_assert(asprintf(&config, "security = { tls_cert = \"%s\"; tls_key = \"%s\"; };", cert, key) > 0);
    ts_server_start(&server, NULL, config);
    free(config);
    snprintf(url, sizeof url, "https://127.0.0.1:%d/v1/chat/completions", server.port);
    struct ts_result t =
        ts_run("curl", "-sS", "--cacert", cert, "-H", "Content-Type: application/json", "-d", short_chat, url);
    cr_expect(t.status == 0 && strstr(t.out, "\"chat.completion\""), "%d %s%s", t.status, t.out, t.err);
    ts_result_free(&t);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/health/live", server.port);
    t = ts_run("curl", "-sS", "-m", "20", url);
    cr_expect_neq(t.status, 0, "plain HTTP on a TLS port: %s", t.out);
    ts_result_free(&t);
    ts_server_wait_log(&server, "url=https://127.0.0.1:"); /* lines are written behind what they tell of */
}

Test(operate, sighup_reads_the_certificate)
{
    char cert[4200], key[4200], old[4200], new[4200], *config = NULL;
    snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
    snprintf(old, sizeof old, "%s/old.pem", dir);
    snprintf(new, sizeof new, "%s/new.pem", dir);
    if (!make_certificate(cert, key))
        cr_skip_test("needs openssl and curl");
    char *text = ts_read_file(cert, NULL);
    free(ts_write_file(dir, "old.pem", text));
    free(text);
    cr_assert(asprintf(&config, "security = { tls_cert = \"%s\"; tls_key = \"%s\"; };", cert, key) > 0);
    ts_server_start(&server, NULL, config);
    free(config);
    cr_expect(trusted(old));
    cr_assert(make_certificate(cert, key));
    text = ts_read_file(cert, NULL);
    free(ts_write_file(dir, "new.pem", text));
    free(text);
    cr_expect(trusted(old), "the new files are not asked for yet");
    kill(server.pid, SIGHUP);
    ts_server_wait_log(&server, "certificate_read until=20");
    cr_expect(trusted(new));
    cr_expect_not(trusted(old));
    free(ts_write_file(dir, "cert.pem", "broken\n"));
    kill(server.pid, SIGHUP);
    ts_server_wait_log(&server, "the certificate stays as it was");
    cr_expect(trusted(new));
}

static void expect_no_start(const char *config, int status, const char *want)
{
    char *path = ts_write_file(dir, "bad.conf", config);
    struct ts_result t = ts_run(ts_weft(), "serve", path);
    cr_expect_eq(t.status, status, "%s\ngave %d: %s%s", config, t.status, t.out, t.err);
    cr_expect(strstr(t.err, want), "%s\nshould say: %s\nsaid: %s", config, want, t.err);
    cr_expect_str_eq(t.out, "", "no address is printed");
    ts_result_free(&t);
    free(path);
}

Test(operate, what_keeps_a_server_from_starting)
{
    char config[400];
    ts_server_start(&server, NULL, "");
    snprintf(config, sizeof config,
             "nodes = ({ name = \"a\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; "
             "listen = \"127.0.0.1:%d\"; });",
             server.port);
    expect_no_start(config, 1, "Address already in use; stop the other program or choose another port");
    expect_no_start("model = { path = \"/nowhere\"; };", 1, "/nowhere/config.json: No such file");
    expect_no_start("model = { context = 16000000; };", 2, "model.context = 16000000 is more than");
    expect_no_start("kv = { memory = \"1MiB\"; block_tokens = 65536; };", 2, "give room for at least 2");
    expect_no_start("kv = { memory = \"15TiB\"; block_tokens = 65536; };", 1, "are not available");
    expect_no_start("security = { keys_file = \"/nowhere/keys\"; };", 1, "security.keys_file");
    expect_no_start("security = { tls_cert = \"/nowhere/c\"; tls_key = \"/nowhere/k\"; };", 2,
                    "TLS: the certificate chain");
    expect_no_start("log = { file = \"/nowhere/log\"; };", 1, "cannot write the log");
}

/* samples/tiny in the test's folder, with another name for one added token. */
static void make_renamed(const char *token, const char *name)
{
    static const char *const linked[] = {"config.json", "engram.safetensors", "model.safetensors"};
    char path[4200], *cwd = getcwd(NULL, 0), *from = NULL;
    for (size_t i = 0; i < sizeof linked / sizeof *linked; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, linked[i]);
        cr_assert(asprintf(&from, "%s/samples/tiny/%s", cwd, linked[i]) > 0 && symlink(from, path) == 0, "%s", path);
        free(from);
    }
    free(cwd);
    json_t *tokenizer = json_load_file("samples/tiny/tokenizer.json", 0, NULL), *added;
    size_t i, renamed = 0;
    json_array_foreach (json_object_get(tokenizer, "added_tokens"), i, added)
        if (!strcmp(json_string_value(json_object_get(added, "content")), token))
            renamed += json_object_set_new(added, "content", json_string(name)) == 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    cr_assert(renamed == 1 && json_dump_file(tokenizer, path, 0) == 0, "%s", token);
    json_decref(tokenizer);
}

/* The whole log, when the server has ended. */
static char *log_at_end(void)
{
    kill(server.pid, SIGTERM);
    cr_expect_eq(ts_server_wait(&server), 0);
    return ts_server_log(&server);
}

Test(operate, a_model_without_the_chats_markers_is_said_so_and_completes)
{
    char *config = NULL;
    ts_server_start(&server, NULL, "");
    char *log = log_at_end();
    cr_expect_not(strstr(log, "refused"), "%s", log);
    free(log);
    ts_server_free(&server);
    make_renamed("<｜User｜>", "<Mensch>");
    cr_assert(asprintf(&config, "model = { path = \"%s\"; name = \"tiny\"; };", dir) > 0);
    ts_server_start(&server, NULL, config);
    free(config);
    struct ts_reply r = ask("POST", "/v1/chat/completions", "", short_chat);
    cr_expect_eq(r.status, 400, "%d %s", r.status, r.body);
    cr_expect(strstr(r.body, "made for another prompt form"), "%s", r.body);
    ts_reply_free(&r);
    cr_expect_eq(status_of("POST", "/v1/completions", "", "{\"prompt\":\"one\",\"max_tokens\":3}"), 200);
    log = log_at_end();
    cr_expect(strstr(log, "chats will be refused: the tokenizer has no added token <｜User｜>"), "%s", log);
    free(log);
}
