/* A thousand streams at a time, and clients that leave at any moment: nothing is left behind.
 * WEFT_SOAK=N: so many cancels instead of 10,000 (make soak). */
#include "tests/harness.h"

#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/server.h"

#define RUNNING "weft_num_requests_running"
#define WAITING "weft_num_requests_waiting"

enum { LEASE = 8 };

static struct ts_server server;

static void stop(void)
{
    ts_server_free(&server);
}

static void raise_limit(void)
{
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    if (r.rlim_cur < 2500)
        cr_skip_test("needs 2,500 open files, and the limit is %ld", (long)r.rlim_cur);
}

TestSuite(crowd, .init = raise_limit, .fini = stop, .timeout = 1200);

Test(crowd, a_thousand_streams_stay_alive)
{
    enum { N = 1000 / TS_LESS, TOKENS = 4 };
    static struct ts_flow f[N];
    ts_server_start(&server, NULL, "limits = { requests = 1024; };\nlog = { level = \"warning\"; };\n");
    int fds = ts_server_fds(&server);
    for (int i = 0; i < N; i++) {
        char more[64], prompt[64];
        snprintf(more, sizeof more, "\"seed\":%d", i % 10);
        snprintf(prompt, sizeof prompt, "In the beginning, number %d", i % 10);
        char *body = ts_body(TS_COMPLETIONS, prompt, TOKENS, true, more);
        cr_assert(ts_flow_open(&f[i], server.port, ts_path(TS_COMPLETIONS), body), "stream %d", i);
        free(body);
        if (i % 50 == 0)
            ts_flows_turn(f, i + 1, 0);
    }
    while (ts_flows_turn(f, N, 1000))
        ;
    char *first[10] = {0};
    for (int i = 0; i < N; i++) {
        char *body = ts_flow_body(&f[i]);
        cr_assert_eq(ts_flow_status(&f[i]), 200, "stream %d: %d %s", i, ts_flow_status(&f[i]), body);
        struct ts_answer a = ts_answer_of(TS_COMPLETIONS, body, true);
        cr_expect(a.output == TOKENS || !strcmp(a.finish, "stop"), "stream %d: %d tokens, %s", i, a.output, a.finish);
        cr_expect(strstr(body, "[DONE]"));
        if (!first[i % 10])
            first[i % 10] = strdup(a.text);
        cr_expect_str_eq(a.text, first[i % 10], "stream %d", i);
        ts_answer_free(&a);
        free(body);
        ts_flow_close(&f[i]);
    }
    for (int i = 0; i < 10; i++)
        free(first[i]);
    ts_until_metric(&server, RUNNING, 0);
    ts_until_metric(&server, WAITING, 0);
    ts_until_metric(&server, "weft_kv_pages_held", LEASE);
    ts_until_fds(&server, fds);
}

/* Not queued: all of them decode, each goes on, and all leave at once. */
Test(crowd, a_thousand_streams_decode_together)
{
    enum { N = 1000 / TS_LESS };
    static struct ts_flow f[N];
    static size_t seen[N];
    char config[400];
    snprintf(config, sizeof config,
             "limits = { requests = 1024; };\nengine = { decode_streams = %d; prefill_streams = 64; };\n"
             "kv = { memory = \"64MiB\"; block_tokens = 32; snapshots = \"0B\"; };\n"
             "speculation = { mode = \"off\"; };\nlog = { level = \"warning\"; };\n",
             N);
    ts_server_start(&server, NULL, config);
    int fds = ts_server_fds(&server);
    for (int i = 0; i < N; i++) {
        char *body = ts_body(TS_COMPLETIONS, "In", 1000, true, "\"ignore_eos\":true");
        cr_assert(ts_flow_open(&f[i], server.port, ts_path(TS_COMPLETIONS), body), "stream %d", i);
        free(body);
        if (i % 50 == 0)
            ts_flows_turn(f, i + 1, 0);
    }
    do
        if (ts_flows_turn(f, N, 100) < N)
            for (int i = 0; i < N; i++)
                cr_assert_not(f[i].ended, "stream %d has ended: %s", i, f[i].data);
    while (ts_metric(&server, "weft_num_sequences_decoding") < N);
    for (int i = 0; i < N; i++)
        seen[i] = f[i].len;
    for (int behind = N; behind;) {
        cr_assert_eq(ts_flows_turn(f, N, 1000), N, "a stream has ended");
        behind = 0;
        for (int i = 0; i < N; i++)
            behind += f[i].len < seen[i] + 400;
    }
    for (int i = 0; i < N; i++)
        ts_flow_close(&f[i]);
    ts_until_metric(&server, RUNNING, 0);
    ts_until_metric(&server, "weft_num_sequences_decoding", 0);
    ts_until_metric(&server, "weft_kv_pages_held", LEASE);
    ts_until_fds(&server, fds);
}

/* ---- cancels ---- */

static unsigned next_random(unsigned *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    *x ^= *x << 5;
    return *x;
}

/* Requests of all kinds; each is left after a random number of bytes of its answer, or at once. */
static void cancel_many(int n, unsigned *seed)
{
    enum { AT_A_TIME = 24 };
    struct ts_flow f[AT_A_TIME];
    size_t leave[AT_A_TIME];
    for (int i = 0; i < AT_A_TIME; i++)
        f[i] = (struct ts_flow){.fd = -1, .ended = true};
    for (int started = 0, open = 0; started < n || open;) {
        open = 0;
        for (int i = 0; i < AT_A_TIME; i++) {
            if (f[i].fd >= 0 && (f[i].ended || f[i].len >= leave[i]))
                ts_flow_close(&f[i]);
            if (f[i].fd < 0 && started < n) {
                char prompt[200], more[64];
                enum ts_protocol p = next_random(seed) % TS_PROTOCOLS;
                snprintf(prompt, sizeof prompt, "number %u %.*s", next_random(seed) % 50, (int)(next_random(seed) % 40),
                         "In the beginning God created the heaven and the earth");
                snprintf(more, sizeof more, "\"temperature\":1");
                char *body = ts_body(p, prompt, 1 + (int)(next_random(seed) % 12), next_random(seed) % 4, more);
                cr_assert(ts_flow_open(&f[i], server.port, ts_path(p), body));
                free(body);
                /* Nothing: while it is read, queued or computed. Some bytes: in mid-stream. Many: some come to their
                 * end. */
                leave[i] = next_random(seed) % 3 ? next_random(seed) % 1600 : 0;
                started++;
            }
            open += f[i].fd >= 0;
        }
        ts_flows_turn(f, AT_A_TIME, 1);
    }
}

static void check_rest(int fds)
{
    ts_until_metric(&server, RUNNING, 0);
    ts_until_metric(&server, WAITING, 0);
    ts_until_metric(&server, "weft_http_connections", 1);
    ts_until_metric(&server, "weft_kv_pages_held", LEASE);
    ts_until_fds(&server, fds);
}

/* Replaces whatever the cancelled requests left in the cache by the same again and again, so that what is kept is
 * equally large each time. */
static void wash(int round)
{
    enum { REQUESTS = 64 };
    for (int i = 0; i < REQUESTS; i++) {
        char more[64];
        snprintf(more, sizeof more, "\"seed\":1,\"ignore_eos\":true,\"cache_salt\":\"%d.%d\"", round, i);
        struct ts_answer a = ts_ask(&server, TS_CHAT, "Hello", 4, false, more);
        ts_answer_free(&a);
    }
}

/* The widest batch once, with every place taken and long answers: its buffers stay. */
static void widen(void)
{
    enum { N = 16 };
    struct ts_flow f[N];
    for (int i = 0; i < N; i++) {
        char *body = ts_body(TS_COMPLETIONS, "In the beginning", 80, true, "\"ignore_eos\":true,\"temperature\":0");
        cr_assert(ts_flow_open(&f[i], server.port, ts_path(TS_COMPLETIONS), body));
        free(body);
    }
    while (ts_flows_turn(f, N, 1000))
        ;
    for (int i = 0; i < N; i++)
        ts_flow_close(&f[i]);
}

Test(crowd, clients_that_leave_at_any_moment_leave_nothing)
{
    enum { PARTS = 4 };
    const char *soak = getenv("WEFT_SOAK");
    int n = soak ? atoi(soak) : 10000 / TS_LESS;
    unsigned seed = 20260117;
    double heap[PARTS];
    /* Without the C library's caches per thread its figure counts exactly what is allocated. */
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
    ts_server_start(
        &server, NULL,
        "kv = { memory = \"1MiB\"; block_tokens = 32; snapshots = \"1MiB\"; };\nlog = { level = \"warning\"; };\n"
        "compute = { prefill_chunk = 16; threads = 1; };\nengine = { decode_streams = 8; };\n");
    unsetenv("GLIBC_TUNABLES");
    int fds = ts_server_fds(&server);
    struct ts_answer want = ts_ask(&server, TS_CHAT, "Hello", 20, false, "\"seed\":1,\"cache_salt\":\"0\"");
    widen();
    for (int i = 0; i < PARTS; i++) {
        cancel_many(n / PARTS, &seed);
        wash(i);
        check_rest(fds);
        heap[i] = ts_metric(&server, "weft_heap_bytes");
        char more[64];
        snprintf(more, sizeof more, "\"seed\":1,\"cache_salt\":\"%d\"", i + 1);
        struct ts_answer a = ts_ask(&server, TS_CHAT, "Hello", 20, true, more);
        cr_expect_str_eq(a.text, want.text);
        ts_answer_free(&a);
    }
    printf("%d cancels: %.0f seen as disconnects; on the heap after each quarter: %.0f %.0f %.0f %.0f bytes\n", n,
           ts_metric(&server, "weft_disconnected_clients_total"), heap[0], heap[1], heap[2], heap[3]);
    cr_expect_gt(ts_metric(&server, "weft_disconnected_clients_total"), (double)n / 4);
    /* A leak grows from quarter to quarter; the smallest one takes 32 bytes, and one per request is found. What may
     * grow once: buffers that wider batches than those of `widen` need, and the prefix cache's lists. */
    if (TS_LESS == 1)
        cr_expect_lt(heap[3] - heap[1], 15.0 * n, "%.0f %.0f %.0f %.0f bytes", heap[0], heap[1], heap[2], heap[3]);
    ts_answer_free(&want);
}
