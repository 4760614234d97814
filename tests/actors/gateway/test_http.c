/* The HTTP server with real sockets: replies, streams, clients that are slow, hostile or gone, limits, draining. */
#include <event2/buffer.h>
#include <sys/resource.h>
#include <unistd.h>

#include "actors/gateway/http_impl.h"
#include "tests/harness.h"
#include "tests/support/http_peer.h"

#define HOST "Host: a\r\n"
#define GET(target) "GET " target " HTTP/1.1\r\n" HOST "\r\n"

static struct http_server S;

static void start(void)
{
    const struct gw_http_limits limits = http_limits();
    http_server_start(&S, &limits, NULL);
}

/* Every test ends with nothing left over: the server's own count agrees. */
static void stop(void)
{
    cr_expect_not(S.unknown_gone);
    http_server_stop(&S);
}

static void hold(struct http_client *c, const char *request)
{
    int before = S.n_held;
    http_client_open(c, &S);
    http_client_puts(c, request);
    HTTP_WAIT(&S, S.n_held > before);
}

static void all_closed(void)
{
    HTTP_WAIT(&S, http_stats(&S).connections == 0);
}

/* ---- replies ---- */

Test(http, keep_alive)
{
    struct http_client c;
    start();
    http_client_open(&c, &S);
    for (int i = 1; i <= 3; i++) {
        http_client_puts(&c, "POST /x?y=1 HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello");
        HTTP_WAIT(&S, http_client_count(&c, "POST /x?y=1 2 5 hello\n") == i);
    }
    cr_expect_eq(http_client_count(&c, "HTTP/1.1 200 OK\r\n"), 3);
    cr_expect_eq(http_client_count(&c, "Connection: close"), 0);
    cr_expect_eq(http_client_count(&c, "Content-Length: 22\r\n"), 3);
    cr_expect_eq(http_client_count(&c, "Content-Type: text/plain\r\n"), 3);
    http_client_puts(&c, "GET /z HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    HTTP_WAIT(&S, c.eof);
    cr_expect_not(c.reset);
    cr_expect_eq(http_client_count(&c, "Connection: close\r\n"), 1);
    struct gw_http_stats st = http_stats(&S);
    cr_expect_eq(st.accepted, 1);
    cr_expect_eq(st.requests, 4);
    cr_expect_eq(st.refused, 0);
    cr_expect_eq(st.gone, 0);
    cr_expect_eq(st.bytes_out, c.len);
    cr_expect_eq(st.bytes_in, 3 * strlen("POST /x?y=1 HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello") +
                                  strlen("GET /z HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"));
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, pipelined_answers_keep_their_order)
{
    struct http_client c;
    start();
    http_client_open(&c, &S);
    http_client_puts(&c, GET("/hold") GET("/2") "POST /3 HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nz" GET("/4"));
    HTTP_WAIT(&S, S.n_held == 1);
    cr_expect_eq(S.requests, 1); /* one at a time */
    gw_exchange_reply(S.held[0], 200, NULL, NULL, 0, "first", 5);
    HTTP_WAIT(&S, http_client_count(&c, "GET /4"));
    const char *first = strstr(c.data, "first"), *second = strstr(c.data, "GET /2"),
               *third = strstr(c.data, "POST /3? 2 1 z");
    cr_assert(first && second && third);
    cr_expect(first < second && second < third && third < strstr(c.data, "GET /4"));
    http_client_close(&c, false);
    all_closed();
    cr_expect_eq(S.gone, 0);
    stop();
}

Test(http, version_1_0)
{
    struct http_client c;
    start();
    http_client_open(&c, &S);
    http_client_puts(&c, "GET /a HTTP/1.0\r\n\r\n");
    HTTP_WAIT(&S, c.eof);
    cr_expect(strstr(c.data, "GET /a? 0 0 \n") && strstr(c.data, "Connection: close\r\n"));
    http_client_close(&c, false);

    http_client_open(&c, &S);
    http_client_puts(&c, "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    HTTP_WAIT(&S, http_client_count(&c, "GET /a") == 1);
    cr_expect(strstr(c.data, "Connection: keep-alive\r\n"));
    /* A stream has no length: its end is the end of the connection. */
    http_client_puts(&c, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    HTTP_WAIT(&S, S.n_held == 1);
    gw_exchange_write(S.held[0], "data", 4);
    gw_exchange_end(S.held[0]);
    HTTP_WAIT(&S, c.eof);
    cr_expect_not(c.reset);
    cr_expect_not(strstr(c.data, "chunked"));
    cr_expect_str_eq(c.data + c.len - 8, "\r\n\r\ndata");
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, head_has_no_body)
{
    struct http_client c;
    start();
    http_client_open(&c, &S);
    http_client_puts(&c, "HEAD /big/1000 HTTP/1.1\r\n" HOST "\r\n"
                         "HEAD /stream HTTP/1.1\r\n" HOST "\r\n");
    HTTP_WAIT(&S, S.n_held == 1);
    gw_exchange_write(S.held[0], "data", 4);
    gw_exchange_end(S.held[0]);
    http_client_puts(&c, "GET /hold HTTP/1.1\r\n" HOST "\r\n");
    HTTP_WAIT(&S, S.n_held == 2);
    gw_exchange_reply(S.held[1], 204, NULL, &(struct gw_header){"X-A", "b"}, 1, NULL, 0);
    HTTP_WAIT(&S, strstr(c.data, "X-A: b\r\n\r\n"));
    cr_expect_eq(http_client_count(&c, "Content-Length:"), 1);
    cr_expect(strstr(c.data, "Content-Length: 1000\r\n\r\nHTTP/1.1 200 OK\r\n"));
    cr_expect(strstr(c.data, "Transfer-Encoding: chunked\r\n\r\nHTTP/1.1 204 No Content\r\n"));
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, chunked_body_and_stream)
{
    struct http_client c;
    start();
    http_client_open(&c, &S);
    http_client_puts(&c, "POST /c HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nTrailer: T\r\n\r\n"
                         "3\r\nabc\r\n2;e\r\nde\r\n0\r\nT: v\r\n\r\n" GET("/stream"));
    HTTP_WAIT(&S, S.n_held == 1);
    gw_exchange_write(S.held[0], "hello", 5);
    gw_exchange_write(S.held[0], "", 0); /* nothing, not the end */
    HTTP_WAIT(&S, strstr(c.data, "5\r\nhello\r\n"));
    gw_exchange_write(S.held[0], "0123456789abcdefg", 17);
    gw_exchange_end(S.held[0]);
    HTTP_WAIT(&S, strstr(c.data, "5\r\nhello\r\n11\r\n0123456789abcdefg\r\n0\r\n\r\n"));
    cr_expect(strstr(c.data, "POST /c? 3 5 abcde\n"));
    cr_expect(strstr(c.data, "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"));
    http_client_puts(&c, GET("/after"));
    HTTP_WAIT(&S, strstr(c.data, "GET /after"));
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, expect_continue)
{
    struct http_client c;
    start();
    http_client_open(&c, &S);
    http_client_puts(&c, "POST /e HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    HTTP_WAIT(&S, c.len > 0);
    cr_expect_str_eq(c.data, "HTTP/1.1 100 Continue\r\n\r\n");
    cr_expect_eq(S.requests, 0);
    http_client_puts(&c, "abc");
    HTTP_WAIT(&S, strstr(c.data, "POST /e? 3 3 abc\n"));
    /* No invitation where the body is refused anyway, or where it is there already. */
    http_client_puts(&c, "POST /f HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx");
    HTTP_WAIT(&S, strstr(c.data, "POST /f? 3 1 x\n"));
    http_client_puts(&c, "POST /g HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 9999999\r\n\r\n");
    HTTP_WAIT(&S, c.eof);
    cr_expect(strstr(c.data, "HTTP/1.1 413 "));
    cr_expect_eq(http_client_count(&c, "100 Continue"), 1);
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, request_as_the_handler_sees_it)
{
    struct http_client c;
    start();
    hold(&c, "POST http://h/hold?q=%20 HTTP/1.1\r\n" HOST
             "X-Empty:\r\nX-Key: \t two  words \r\nContent-Length: 3\r\n\r\na\nb");
    const struct gw_http_request *r = gw_exchange_request(S.held[0]);
    cr_expect_str_eq(r->method, "POST");
    cr_expect_str_eq(r->path, "/hold");
    cr_expect_str_eq(r->query, "q=%20");
    cr_expect_str_eq(r->body, "a\nb");
    cr_expect_str_eq(r->peer, "127.0.0.1");
    cr_expect(r->loopback && !r->http_1_0);
    cr_expect_str_eq(gw_exchange_header(S.held[0], "x-key"), "two  words");
    cr_expect_str_eq(gw_exchange_header(S.held[0], "X-EMPTY"), "");
    cr_expect_null(gw_exchange_header(S.held[0], "X-Other"));
    gw_exchange_set_user(S.held[0], &S);
    cr_expect(gw_exchange_user(S.held[0]) == &S);
    cr_expect_not(gw_exchange_begun(S.held[0]));
    gw_exchange_begin(S.held[0], 200, NULL, NULL, 0);
    cr_expect(gw_exchange_begun(S.held[0]));
    gw_exchange_reply(S.held[0], 500, NULL, NULL, 0, "x", 1); /* too late: no effect */
    gw_exchange_end(S.held[0]);
    HTTP_WAIT(&S, strstr(c.data, "\r\n0\r\n\r\n"));
    cr_expect_null(strstr(c.data, "500"));
    http_client_close(&c, false);
    all_closed();
    stop();
}

/* ---- the same bytes, cut differently ---- */

Test(http, byte_by_byte_equals_one_piece)
{
    static const char *const table[] = {
        GET("/a") GET("/b") GET("/c"),
        "POST /p?q HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello" GET("/after"),
        "POST /p HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n" GET("/after"),
        "\r\n\r\nHEAD /h HTTP/1.1\r\n" HOST "\r\n\r\n" GET("/after"),
        "GET /o HTTP/1.0\r\n\r\n",
        "GET /o HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" GET("/after"),
        GET("/a") "GET / HTTP/1.1\nHost: a\r\n\r\n",
        GET("/a") "nonsense\r\n\r\n",
        "POST /p HTTP/1.1\r\n" HOST "Content-Length: 99999999\r\n\r\nhello",
        "POST /p HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n" GET("/smuggled"),
        "POST /p HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" GET("/smuggled"),
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct http_client c, d;
        start();
        http_client_open(&c, &S);
        http_client_puts(&c, table[i]);
        HTTP_WAIT(&S, http_stats(&S).bytes_in == strlen(table[i]));
        int requests = S.requests, refusals = S.refusals;
        http_client_open(&d, &S);
        for (size_t k = 0; table[i][k]; k++) {
            uint64_t before = http_stats(&S).bytes_in;
            http_client_send(&d, table[i] + k, 1);
            HTTP_WAIT(&S, d.eof || http_stats(&S).bytes_in > before);
        }
        HTTP_WAIT(&S, d.len == c.len && d.eof == c.eof);
        http_client_drop_dates(&c);
        http_client_drop_dates(&d);
        cr_expect_str_eq(c.data, d.data);
        cr_expect_eq(S.requests, 2 * requests);
        cr_expect_eq(S.refusals, 2 * refusals);
        cr_expect_null(strstr(c.data, "smuggled"));
        http_client_close(&c, false);
        http_client_close(&d, false);
        all_closed();
        stop();
    }
}

/* ---- refused ---- */

Test(http, refused_requests_are_answered_and_closed)
{
    static const struct {
        const char *bytes;
        int status;
    } table[] = {
        {"GET / HTTP/1.1\n\n", 400},
        {"\x16\x03\x01\x02\x01\x01\x01\xfc\x03\x03", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET /\r\n\r\n", 505},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: 99999999\r\n\r\n", 413},
        {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nFFFFFF\r\n", 413},
        {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\n", 501},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct http_client c;
        char line[40];
        start();
        http_client_open(&c, &S);
        http_client_puts(&c, table[i].bytes);
        HTTP_WAIT(&S, c.eof);
        snprintf(line, sizeof line, "HTTP/1.1 %d ", table[i].status);
        cr_expect(!strncmp(c.data, line, strlen(line)), "%s", c.data);
        cr_expect_not(c.reset);
        cr_expect(strstr(c.data, "Connection: close\r\n"));
        cr_expect(strstr(c.data, S.last_reason));
        cr_expect_eq(S.requests, 0);
        cr_expect_eq(http_stats(&S).refused, 1);
        http_client_close(&c, false);
        all_closed();
        stop();
    }
}

/* A client that sends its whole body before it reads must find the answer, not a reset connection. */
Test(http, refusal_reaches_a_client_that_is_still_sending)
{
    struct http_client c;
    char *body = calloc(1, 2 << 20);
    start();
    http_client_open(&c, &S);
    http_client_stop_reading(&c);
    http_client_puts(&c, "POST / HTTP/1.1\r\n" HOST "Content-Length: 2097152\r\n\r\n");
    http_client_send(&c, body, 2 << 20);
    HTTP_WAIT(&S, http_stats(&S).bytes_in > 2 << 20); /* all of it was taken */
    event_add(c.readable, NULL);
    HTTP_WAIT(&S, c.eof);
    cr_expect_not(c.reset);
    cr_expect(!strncmp(c.data, "HTTP/1.1 413 ", 13));
    http_client_close(&c, false);
    all_closed();
    free(body);
    stop();
}

Test(http, endless_head)
{
    struct http_client c;
    char line[1000];
    start();
    http_client_open(&c, &S);
    http_client_puts(&c, "GET / HTTP/1.1\r\n");
    memset(line, 'x', sizeof line);
    memcpy(line, "A: ", 3);
    memcpy(line + sizeof line - 2, "\r\n", 2);
    for (int i = 0; i < 5; i++)
        http_client_send(&c, line, sizeof line);
    HTTP_WAIT(&S, c.eof);
    cr_expect(!strncmp(c.data, "HTTP/1.1 431 ", 13));
    http_client_close(&c, false);
    all_closed();
    stop();
}

/* ---- slow clients ---- */

static void time_out(struct gw_http_limits limits, const char *bytes, const char *want)
{
    struct http_client c;
    http_server_start(&S, &limits, NULL);
    http_client_open(&c, &S);
    http_client_puts(&c, bytes);
    HTTP_WAIT(&S, c.eof);
    cr_expect(!strncmp(c.data, want, strlen(want)), "%s", c.data);
    cr_expect_eq(*want ? c.len > 0 : c.len == 0, true);
    cr_expect_eq(S.requests, 0);
    cr_expect_eq(S.gone, 0);
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, slow_head)
{
    struct gw_http_limits limits = http_limits();
    limits.header_ms = 30;
    time_out(limits, "GET / HTTP/1.1\r\n", "HTTP/1.1 408 ");
}

Test(http, slow_body)
{
    struct gw_http_limits limits = http_limits();
    limits.body_ms = 30;
    time_out(limits, "POST / HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nabc", "HTTP/1.1 408 ");
    time_out(limits, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n1;x", "HTTP/1.1 408 ");
    time_out(limits, "POST / HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\n", "HTTP/1.1 408 ");
}

Test(http, idle)
{
    struct gw_http_limits limits = http_limits();
    limits.idle_ms = 30;
    time_out(limits, "", "");
    time_out(limits, "\r\n\r\n", ""); /* no request has begun: nothing to be answered */
}

/* What is in progress is not idle, however long it takes; afterwards the connection is. */
Test(http, idle_only_between_requests)
{
    struct gw_http_limits limits = http_limits();
    limits.idle_ms = limits.header_ms = limits.body_ms = 20;
    struct http_client c, other;
    http_server_start(&S, &limits, NULL);
    hold(&c, GET("/hold"));
    http_client_open(&other, &S); /* its own time to be idle shows that the same time has passed for the first one */
    HTTP_WAIT(&S, other.eof);
    cr_expect_not(c.eof);
    cr_assert_not_null(S.held[0]);
    gw_exchange_reply(S.held[0], 200, NULL, NULL, 0, "done", 4);
    HTTP_WAIT(&S, c.eof);
    cr_expect(strstr(c.data, "done"));
    http_client_close(&c, false);
    http_client_close(&other, false);
    all_closed();
    stop();
}

Test(http, stuck_reader_by_bytes)
{
    struct gw_http_limits limits = http_limits();
    limits.pending_bytes = 100000;
    struct http_client c;
    static char block[10000];
    http_server_start(&S, &limits, NULL);
    hold(&c, GET("/stream"));
    http_client_stop_reading(&c);
    int blocks = 0;
    for (; S.held[0] && blocks < 100000; blocks++) {
        gw_exchange_write(S.held[0], block, sizeof block);
        cr_assert_le(gw_exchange_pending(S.held[0]), limits.pending_bytes + sizeof block + 20);
        event_base_loop(S.base, EVLOOP_NONBLOCK);
    }
    cr_expect_eq(S.gone, 1);
    cr_expect_eq(S.why, GW_GONE_STUCK);
    cr_expect_eq(http_stats(&S).stuck, 1);
    cr_expect_eq(http_stats(&S).gone, 0);
    http_client_close(&c, false);
    all_closed();
    stop();
}

/* The handler ends its stream in the same breath as it wrote too much: not reported, and not complete either. */
Test(http, stuck_reader_and_end)
{
    struct gw_http_limits limits = http_limits();
    limits.pending_bytes = 1000;
    struct http_client c;
    static char block[2000];
    http_server_start(&S, &limits, NULL);
    hold(&c, GET("/stream"));
    gw_exchange_write(S.held[0], block, sizeof block);
    gw_exchange_write(S.held[0], block, sizeof block);
    gw_exchange_end(S.held[0]);
    HTTP_WAIT(&S, c.eof);
    cr_expect_null(strstr(c.data, "0\r\n\r\n"));
    cr_expect_eq(S.gone, 0);
    cr_expect_eq(http_stats(&S).stuck, 1);
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, stuck_reader_by_time)
{
    struct gw_http_limits limits = http_limits();
    limits.pending_bytes = 64 << 20;
    limits.stuck_ms = 30;
    struct http_client c;
    char *block = calloc(1, 16 << 20);
    http_server_start(&S, &limits, NULL);
    hold(&c, GET("/stream"));
    http_client_stop_reading(&c);
    gw_exchange_write(S.held[0], block, 16 << 20);
    HTTP_WAIT(&S, S.gone);
    cr_expect_eq(S.gone, 1);
    cr_expect_eq(S.why, GW_GONE_STUCK);
    http_client_close(&c, false);
    /* The same for a complete reply: the exchange has ended, only the connection goes. */
    http_client_open(&c, &S);
    http_client_stop_reading(&c);
    http_client_puts(&c, GET("/big/16000000"));
    HTTP_WAIT(&S, S.requests == 2);
    all_closed();
    cr_expect_eq(S.gone, 1);
    cr_expect_eq(http_stats(&S).stuck, 1);
    http_client_close(&c, false);
    free(block);
    stop();
}

/* A large reply to a slow reader is complete, although it takes longer than the connection may be idle. */
Test(http, slow_reader_gets_everything)
{
    struct gw_http_limits limits = http_limits();
    limits.idle_ms = 20;
    struct http_client c, other;
    http_server_start(&S, &limits, NULL);
    http_client_open(&c, &S);
    http_client_stop_reading(&c);
    http_client_puts(&c, GET("/big/16000000"));
    HTTP_WAIT(&S, S.requests == 1);
    http_client_open(&other, &S);
    HTTP_WAIT(&S, other.eof);
    event_add(c.readable, NULL);
    HTTP_WAIT(&S, c.eof);
    cr_expect_gt(c.len, 16000000);
    http_client_close(&c, false);
    http_client_close(&other, false);
    all_closed();
    stop();
}

/* A client that asks again and again and never reads does not fill the memory. */
Test(http, pipelining_without_reading_is_held_back)
{
    struct gw_http_limits limits = http_limits();
    limits.pending_bytes = 200000;
    struct http_client c;
    http_server_start(&S, &limits, NULL);
    http_client_open(&c, &S);
    http_client_stop_reading(&c);
    for (int i = 0; i < 200; i++)
        http_client_puts(&c, GET("/big/100000"));
    int before;
    do {
        before = S.requests;
        for (int i = 0; i < 20; i++)
            event_base_loop(S.base, EVLOOP_NONBLOCK);
    } while (S.requests > before);
    cr_expect_lt(S.requests, 150);
    cr_expect_le(evbuffer_get_length(bufferevent_get_output(S.http->conns->bev)), limits.pending_bytes + 101000);
    event_add(c.readable, NULL);
    HTTP_WAIT(&S, c.len > 200 * 100000);
    HTTP_WAIT(&S, S.requests == 200);
    HTTP_WAIT(&S, http_client_count(&c, "HTTP/1.1 200 OK") == 200);
    http_client_close(&c, false);
    all_closed();
    stop();
}

/* ---- clients that go away ---- */

static void go_away(const char *request, const char *more, bool reset, bool half)
{
    struct http_client c;
    start();
    hold(&c, request);
    http_client_puts(&c, more);
    if (half)
        shutdown(c.fd, SHUT_WR);
    else
        http_client_close(&c, reset);
    HTTP_WAIT(&S, S.gone);
    cr_expect_eq(S.gone, 1);
    cr_expect_eq(S.why, GW_GONE_CLIENT);
    cr_expect_null(S.held[0]);
    if (half)
        http_client_close(&c, false);
    all_closed();
    cr_expect_eq(S.gone, 1);
    cr_expect_eq(S.requests, 1);
    cr_expect_eq(http_stats(&S).gone, 1);
    stop();
}

Test(http, gone_while_queued)
{
    go_away(GET("/hold"), "", false, false);
    go_away(GET("/hold"), "", true, false);
    go_away(GET("/hold"), "", false, true);
}

Test(http, gone_while_streaming)
{
    go_away(GET("/stream"), "", false, false);
    go_away(GET("/stream"), "", true, false);
    go_away(GET("/stream"), "", false, true);
}

Test(http, gone_with_pipelined_requests_pending)
{
    go_away(GET("/hold"), GET("/next") GET("/next"), false, false);
    go_away(GET("/hold"), GET("/next") "POST / HT", true, false);
    go_away(GET("/stream"), GET("/next"), false, true);
}

/* Reading is held back behind a running request; the end is noticed nevertheless, and a reset does not spin. */
Test(http, gone_while_reading_is_held_back)
{
    static char junk[1000];
    memset(junk, 'j', sizeof junk);
    for (int variant = 0; variant < 4; variant++) {
        struct http_client c;
        start();
        hold(&c, variant & 1 ? GET("/stream") : GET("/hold"));
        while (!S.http->conns->watch) {
            cr_assert_not(S.late);
            http_client_send(&c, junk, sizeof junk);
            event_base_loop(S.base, EVLOOP_NONBLOCK);
        }
        cr_expect_le(evbuffer_get_length(bufferevent_get_input(S.http->conns->bev)), GW_HTTP_PIPELINE + 16384);
        http_client_close(&c, variant & 2);
        HTTP_WAIT(&S, S.gone);
        cr_expect_eq(S.gone, 1);
        all_closed();
        stop();
    }
}

/* Held back and then read on: nothing is lost. */
Test(http, many_pipelined_requests_behind_one)
{
    struct http_client c;
    start();
    hold(&c, GET("/hold"));
    for (int i = 0; i < 5000; i++) {
        http_client_puts(&c, GET("/p"));
        event_base_loop(S.base, EVLOOP_NONBLOCK);
        if (S.http->conns->watch && S.held[0]) {
            gw_exchange_reply(S.held[0], 200, NULL, NULL, 0, NULL, 0);
            S.held[0] = NULL;
        }
    }
    cr_assert_null(S.held[0]);
    HTTP_WAIT(&S, S.requests == 5001);
    HTTP_WAIT(&S, http_client_count(&c, "GET /p? 1 0 \n") == 5000);
    cr_expect_null(S.http->conns->watch);
    http_client_close(&c, false);
    all_closed();
    cr_expect_eq(S.gone, 0);
    stop();
}

/* Writing to a client that is gone, in the same turn and before the loop could say so. */
Test(http, write_after_the_client_has_gone)
{
    struct http_client c;
    start();
    hold(&c, GET("/stream"));
    http_client_close(&c, true);
    for (int i = 0; i < 100; i++)
        gw_exchange_write(S.held[0], "data", 4);
    gw_exchange_end(S.held[0]);
    all_closed();
    cr_expect_eq(S.gone, 0);

    hold(&c, GET("/stream"));
    http_client_close(&c, true);
    gw_exchange_write(S.held[1], "data", 4);
    HTTP_WAIT(&S, S.gone);
    cr_expect_eq(S.gone, 1);
    all_closed();
    stop();
}

/* Only sending was closed, after a request that was answered at once: the answer arrives. */
Test(http, half_closed_after_the_answer)
{
    struct http_client c;
    start();
    http_client_open(&c, &S);
    http_client_stop_reading(&c);
    http_client_puts(&c, GET("/big/16000000"));
    HTTP_WAIT(&S, S.requests == 1);
    shutdown(c.fd, SHUT_WR);
    for (int i = 0; i < 20; i++)
        event_base_loop(S.base, EVLOOP_NONBLOCK);
    event_add(c.readable, NULL);
    HTTP_WAIT(&S, c.eof);
    cr_expect_gt(c.len, 16000000);
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, abort_is_seen)
{
    struct http_client c;
    start();
    hold(&c, GET("/stream"));
    gw_exchange_write(S.held[0], "part", 4);
    gw_exchange_abort(S.held[0]);
    HTTP_WAIT(&S, c.eof);
    cr_expect(strstr(c.data, "4\r\npart\r\n"));
    cr_expect_null(strstr(c.data, "0\r\n\r\n"));
    http_client_close(&c, false);
    hold(&c, "GET /stream HTTP/1.0\r\n\r\n");
    gw_exchange_write(S.held[1], "part", 4);
    gw_exchange_abort(S.held[1]);
    HTTP_WAIT(&S, c.eof);
    cr_expect(c.reset); /* an orderly end would mean a complete reply */
    http_client_close(&c, false);
    hold(&c, GET("/hold"));
    gw_exchange_abort(S.held[2]);
    HTTP_WAIT(&S, c.eof);
    cr_expect_eq(c.len, 0);
    http_client_close(&c, false);
    all_closed();
    cr_expect_eq(S.gone, 0);
    stop();
}

/* ---- the server as a whole ---- */

Test(http, drain)
{
    struct http_client idle, queued, streaming, half;
    int status;
    start();
    http_client_open(&idle, &S);
    http_client_puts(&idle, GET("/a"));
    HTTP_WAIT(&S, http_client_count(&idle, "GET /a"));
    hold(&queued, GET("/hold") GET("/later"));
    hold(&streaming, GET("/stream"));
    http_client_open(&half, &S);
    http_client_puts(&half, "GET /half HT");
    HTTP_WAIT(&S,
              http_stats(&S).bytes_in > 0 && http_stats(&S).connections == 4 && S.http->conns->parser.head_bytes > 0);
    gw_http_stop_listening(S.http);
    HTTP_WAIT(&S, idle.eof);
    cr_expect_not(queued.eof || streaming.eof || half.eof);
    /* What has begun is answered, and says that the connection ends. */
    gw_exchange_write(S.held[1], "last", 4);
    gw_exchange_end(S.held[1]);
    gw_exchange_reply(S.held[0], 200, NULL, NULL, 0, "ok", 2);
    http_client_puts(&half, "TP/1.1\r\n" HOST "\r\n");
    HTTP_WAIT(&S, queued.eof && streaming.eof && half.eof);
    cr_expect(strstr(queued.data, "Connection: close\r\n\r\nok"));
    cr_expect_null(strstr(queued.data, "later"));
    cr_expect(strstr(streaming.data, "4\r\nlast\r\n0\r\n\r\n"));
    cr_expect(strstr(half.data, "GET /half") && strstr(half.data, "Connection: close\r\n"));
    struct sockaddr_in sa;
    socklen_t len = sizeof sa;
    getpeername(queued.fd, (struct sockaddr *)&sa, &len);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sa.sin_port = (in_port_t)((S.port & 255) << 8 | S.port >> 8);
    sa.sin_family = AF_INET;
    sa.sin_addr.s_addr = htonl(0x7f000001);
    status = connect(fd, (const struct sockaddr *)&sa, sizeof sa);
    cr_expect_eq(status, -1);
    close(fd);
    http_client_close(&idle, false);
    http_client_close(&queued, false);
    http_client_close(&streaming, false);
    http_client_close(&half, false);
    all_closed();
    stop();
}

Test(http, free_reports_exchanges_in_progress)
{
    struct http_client a, b;
    start();
    hold(&a, GET("/hold"));
    hold(&b, GET("/stream"));
    http_client_stop_reading(&a);
    http_client_stop_reading(&b);
    event_free(S.guard);
    gw_http_free(S.http);
    cr_expect_eq(S.gone, 2);
    cr_expect_not(S.unknown_gone);
    http_client_close(&a, false);
    http_client_close(&b, false);
    event_base_free(S.base);
}

Test(http, connection_limit)
{
    struct gw_http_limits limits = http_limits();
    limits.connections = 2;
    struct http_client a, b, c;
    http_server_start(&S, &limits, NULL);
    hold(&a, GET("/hold"));
    hold(&b, GET("/hold"));
    http_client_open(&c, &S);
    HTTP_WAIT(&S, c.eof);
    cr_expect(!strncmp(c.data, "HTTP/1.1 503 ", 13));
    cr_expect_not(c.reset);
    cr_expect_eq(S.last_status, 503);
    cr_expect_eq(http_stats(&S).refused_connections, 1);
    cr_expect_eq(http_stats(&S).refused, 0);
    http_client_close(&c, false);
    HTTP_WAIT(&S, http_stats(&S).connections == 2);
    /* Room again. */
    http_client_close(&a, false);
    HTTP_WAIT(&S, http_stats(&S).connections == 1);
    hold(&c, GET("/hold"));
    /* A flood beyond the limit does not take descriptors without end, and does not keep others out afterwards. */
    enum { FLOOD = GW_HTTP_TURNED_AWAY + 50 };
    static struct http_client flood[FLOOD];
    for (int i = 0; i < FLOOD; i++)
        http_client_open(&flood[i], &S);
    HTTP_WAIT(&S, http_stats(&S).accepted == 4 + FLOOD);
    cr_expect_le(http_stats(&S).connections, 2 + GW_HTTP_TURNED_AWAY);
    http_client_close(&b, false);
    HTTP_WAIT(&S, S.gone == 2);
    hold(&a, GET("/hold"));
    for (int i = 0; i < FLOOD; i++)
        http_client_close(&flood[i], false);
    http_client_close(&a, false);
    http_client_close(&c, false);
    all_closed();
    stop();
}

Test(http, thousand_streams)
{
    enum { N = 1000 };
    static struct http_client c[N];
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < 2 * N + 100)
        cr_skip_test("the limit of open files is %llu", (unsigned long long)files.rlim_max);
    if (files.rlim_cur < 2 * N + 100) {
        files.rlim_cur = 2 * N + 100;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    start();
    for (int i = 0; i < N; i++) {
        http_client_open(&c[i], &S);
        http_client_puts(&c[i], GET("/stream"));
    }
    HTTP_WAIT(&S, S.n_held == N);
    cr_expect_eq(http_stats(&S).connections, N);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++)
            gw_exchange_write(S.held[i], ": alive\n\n", 9);
        for (int i = 0; i < N; i++)
            HTTP_WAIT(&S, http_client_count(&c[i], ": alive") == round + 1);
    }
    for (int i = 0; i < N; i++) {
        if (i % 3)
            gw_exchange_end(S.held[i]);
        else
            http_client_close(&c[i], i % 2);
    }
    HTTP_WAIT(&S, S.gone == (N + 2) / 3);
    for (int i = 0; i < N; i++)
        if (i % 3) {
            HTTP_WAIT(&S, strstr(c[i].data, "\r\n0\r\n\r\n"));
            http_client_close(&c[i], false);
        }
    all_closed();
    cr_expect_eq(S.gone, (N + 2) / 3);
    stop();
}

/* Out of descriptors the server waits with accepting and goes on when there are some again. */
Test(http, out_of_descriptors)
{
    struct http_client a, b;
    int spare[4096], n = 0;
    start();
    http_client_open(&a, &S);
    http_client_puts(&a, GET("/a"));
    HTTP_WAIT(&S, http_client_count(&a, "GET /a"));
    struct rlimit files, old;
    getrlimit(RLIMIT_NOFILE, &old);
    files = old;
    files.rlim_cur = 200 < old.rlim_cur ? 200 : old.rlim_cur;
    setrlimit(RLIMIT_NOFILE, &files);
    while (n < 4096 && (spare[n] = dup(0)) >= 0)
        n++;
    cr_assert(n > 0 && n < 4096);
    close(spare[--n]); /* for the client's own */
    http_client_open(&b, &S);
    http_client_puts(&b, GET("/b"));
    for (int i = 0; i < 20; i++)
        event_base_loop(S.base, EVLOOP_NONBLOCK);
    cr_expect(event_pending(S.http->retry, EV_TIMEOUT, NULL));
    http_client_puts(&a, GET("/a"));
    HTTP_WAIT(&S, http_client_count(&a, "GET /a") == 2);
    cr_expect_eq(S.requests, 2);
    while (n)
        close(spare[--n]);
    setrlimit(RLIMIT_NOFILE, &old);
    HTTP_WAIT(&S, http_client_count(&b, "GET /b"));
    http_client_close(&a, false);
    http_client_close(&b, false);
    all_closed();
    stop();
}

Test(http, listening_errors)
{
    struct cfg_error err = {{0}};
    int port = 0;
    start();
    cr_expect_lt(gw_http_listen(S.http, "127.0.0.1", S.port, NULL, &port, &err), 0);
    cr_expect(strstr(err.msg, "127.0.0.1") && strstr(err.msg, "another port"), "%s", err.msg);
    cr_expect_lt(gw_http_listen(S.http, "127.0.0.1", 70000, NULL, &port, &err), 0);
    cr_expect(strstr(err.msg, "65535"), "%s", err.msg);
    cr_expect_lt(gw_http_listen(S.http, "no.such.host.invalid", 0, NULL, &port, &err), 0);
    cr_expect(strstr(err.msg, "no.such.host.invalid"), "%s", err.msg);
    cr_expect_lt(gw_http_listen(S.http, "192.0.2.1", 0, NULL, &port, &err), 0);
    cr_expect(strstr(err.msg, "192.0.2.1") && strstr(err.msg, "of this machine"), "%s", err.msg);
    for (int i = 1; i < GW_HTTP_LISTENERS; i++)
        cr_expect_eq(gw_http_listen(S.http, "localhost", 0, NULL, &port, &err), 0, "%s", err.msg);
    cr_expect_neq(port, S.port);
    cr_expect_lt(gw_http_listen(S.http, "127.0.0.1", 0, NULL, &port, &err), 0);
    stop();
}
