/* HTTP requests from bytes: what is understood, what is refused, and that cuts make no difference. */
#include "actors/gateway/http_parse.h"
#include "tests/harness.h"

#define HOST "Host: a\r\n"
#define POST "POST /p HTTP/1.1\r\n" HOST
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define BYTES(s) s, sizeof(s) - 1

struct input {
    const char *name, *bytes;
    size_t len;
    int status;       /* 0: accepted; -1: more is needed */
    const char *want; /* "METHOD path?query body" of accepted ones */
};

static const struct gw_http_limits limits = {.header_bytes = 1000, .body_bytes = 2000};

/* All that a request consists of, as text, so that two ways of reading it can be compared. */
static void describe(const struct gw_parser *p, char *out, size_t size)
{
    const struct gw_http_request *r = &p->request;
    size_t n = (size_t)snprintf(out, size, "%s %s?%s %.*s|%d %d %d %d", r->method, r->path, r->query, (int)r->len,
                                r->body, p->keep_alive, p->head_method, p->expects_continue, r->http_1_0);
    for (int i = 0; i < r->n_headers && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "|%s=%s", r->header[i].name, r->header[i].value);
}

/* Feeds until the request is complete or bad. step: how many bytes at a time; 0: all. Returns the status, 0 for a
 * request, -1 when more is needed. */
static int feed_all(struct gw_parser *p, const char *bytes, size_t len, size_t step, size_t *consumed)
{
    size_t at = 0;
    while (at < len) {
        size_t used, n = step && step < len - at ? step : len - at;
        char *exact = malloc(n);
        memcpy(exact, bytes + at, n);
        enum gw_parse r = gw_parser_feed(p, exact, n, &used);
        free(exact);
        cr_assert_le(used, n);
        cr_assert(used == n || r != GW_PARSE_MORE);
        at += used;
        *consumed = at;
        if (r == GW_PARSE_BAD) {
            cr_assert(p->status >= 400 && p->reason[0]);
            return p->status;
        }
        if (r == GW_PARSE_REQUEST)
            return 0;
    }
    return -1;
}

static void check_input(const struct input *in)
{
    char whole[4096], cut[4096];
    size_t used = 0;
    struct gw_parser p;
    gw_parser_init(&p, &limits);
    int status = feed_all(&p, in->bytes, in->len, 0, &used);
    cr_expect_eq(status, in->status, "%s: %d instead of %d (%s)", in->name, status, in->status, p.reason);
    describe(&p, whole, sizeof whole);
    if (!in->status && in->want) {
        size_t n = strlen(in->want);
        cr_expect(!strncmp(whole, in->want, n) && whole[n] == '|', "%s: %s", in->name, whole);
    }
    for (size_t step = 1; step < 12; step++) {
        struct gw_parser q;
        size_t used_cut = 0;
        gw_parser_init(&q, &limits);
        int again = feed_all(&q, in->bytes, in->len, step, &used_cut);
        describe(&q, cut, sizeof cut);
        cr_expect_eq(again, status, "%s in pieces of %zu: %d instead of %d", in->name, step, again, status);
        cr_expect_str_eq(p.reason, q.reason);
        if (!status) {
            cr_expect_str_eq(whole, cut);
            cr_expect_eq(used, used_cut);
        }
        gw_parser_free(&q);
    }
    gw_parser_free(&p);
}

Test(http_parse, accepted)
{
    static const struct input table[] = {
        {"plain", BYTES("GET / HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /? "},
        {"query", BYTES("GET /a/b?c=d&e=%20 HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /a/b?c=d&e=%20 "},
        {"empty query", BYTES("GET /a? HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /a? "},
        {"two question marks", BYTES("GET /a?b?c HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /a?b?c "},
        {"percent", BYTES("GET /%2e%2e/%00 HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /%2e%2e/%00? "},
        {"dots", BYTES("GET /../../etc/passwd HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /../../etc/passwd? "},
        {"slashes", BYTES("GET //a//b HTTP/1.1\r\n" HOST "\r\n"), 0, "GET //a//b? "},
        {"absolute", BYTES("GET http://a:80/x?y HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /x?y "},
        {"absolute without path", BYTES("GET http://a HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /? "},
        {"absolute with only a query", BYTES("GET http://a?q HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /?q "},
        {"asterisk", BYTES("OPTIONS * HTTP/1.1\r\n" HOST "\r\n"), 0, "OPTIONS *? "},
        {"1.0", BYTES("GET / HTTP/1.0\r\n\r\n"), 0, "GET /? "},
        {"blank lines before", BYTES("\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n"), 0, "GET /? "},
        {"length", BYTES(POST "Content-Length: 5\r\n\r\nhello"), 0, "POST /p? hello"},
        {"length with zeros", BYTES(POST "Content-Length: 0005\r\n\r\nhello"), 0, "POST /p? hello"},
        {"length 0", BYTES(POST "Content-Length: 0\r\n\r\n"), 0, "POST /p? "},
        {"no length", BYTES(POST "\r\n"), 0, "POST /p? "},
        {"header case", BYTES(POST "cOnTeNt-lEnGtH:2\r\n\r\nab"), 0, "POST /p? ab"},
        {"blanks around a value", BYTES(POST "Expect:\t 100-continue \t\r\nContent-Length:  2 \r\n\r\nab"), 0,
         "POST /p? ab"},
        {"chunked", BYTES(CHUNKED "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), 0, "POST /p? abcde"},
        {"chunked, extensions", BYTES(CHUNKED "3;x=y\r\nabc\r\n0;z\r\n\r\n"), 0, "POST /p? abc"},
        {"chunked, trailers", BYTES(CHUNKED "3\r\nabc\r\n0\r\nA: b\r\nContent-Length: 99\r\n\r\n"), 0, "POST /p? abc"},
        {"chunked, hex", BYTES(CHUNKED "A\r\n0123456789\r\n0\r\n\r\n"), 0, "POST /p? 0123456789"},
        {"chunked, empty", BYTES(CHUNKED "0\r\n\r\n"), 0, "POST /p? "},
        {"chunked, leading zeros", BYTES(CHUNKED "0003\r\nabc\r\n000\r\n\r\n"), 0, "POST /p? abc"},
        {"continue", BYTES(POST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\nx"), 0, "POST /p? x"},
        {"upgrade offered",
         BYTES(POST "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
                    "Content-Length: 2\r\n\r\nhi"),
         0, "POST /p? hi"},
        {"websocket offered", BYTES("GET /w HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), 0,
         "GET /w? "},
        {"empty value", BYTES("GET / HTTP/1.1\r\n" HOST "X:\r\n\r\n"), 0, "GET /? "},
        {"empty host", BYTES("GET / HTTP/1.1\r\nHost:\r\n\r\n"), 0, "GET /? "},
        {"bytes above 127 in a value", BYTES("GET / HTTP/1.1\r\n" HOST "X: \xc3\xa9\r\n\r\n"), 0, "GET /? "},
        {"delete", BYTES("DELETE /x HTTP/1.1\r\n" HOST "\r\n"), 0, "DELETE /x? "},
        {"1.2 is answered as 1.1", BYTES("GET / HTTP/1.2\r\n" HOST "\r\n"), 0, "GET /? "},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check_input(&table[i]);
}

Test(http_parse, hostile)
{
    static const struct input table[] = {
        {"bare LF in the request line", BYTES("GET / HTTP/1.1\n" HOST "\r\n"), 400, 0},
        {"bare LF after a header", BYTES("GET / HTTP/1.1\r\nHost: a\n\r\n"), 400, 0},
        {"bare LF at the end", BYTES("GET / HTTP/1.1\r\n" HOST "\n"), 400, 0},
        {"bare CR in a value", BYTES("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n"), 400, 0},
        {"bare CR at the end", BYTES("GET / HTTP/1.1\r\n" HOST "\rX"), 400, 0},
        {"two blanks before the target", BYTES("GET  / HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"two blanks behind the target", BYTES("GET /  HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"tab in the request line", BYTES("GET\t/ HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"blank in the target", BYTES("GET /a b HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"blank at the end of the request line", BYTES("GET / HTTP/1.1 \r\n" HOST "\r\n"), 400, 0},
        {"blank at the beginning", BYTES(" GET / HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"blank in a header name", BYTES("GET / HTTP/1.1\r\n" HOST "A B: c\r\n\r\n"), 400, 0},
        {"blank before the colon", BYTES(POST "Content-Length : 5\r\n\r\nhello"), 400, 0},
        {"blank before the colon of Transfer-Encoding", BYTES(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400,
         0},
        {"folded header", BYTES("GET / HTTP/1.1\r\n" HOST "X: a\r\n b\r\n\r\n"), 400, 0},
        {"folded first header", BYTES("GET / HTTP/1.1\r\n Host: a\r\n\r\n"), 400, 0},
        {"folded Transfer-Encoding", BYTES(POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"), 400, 0},
        {"header without colon", BYTES("GET / HTTP/1.1\r\n" HOST "nonsense\r\n\r\n"), 400, 0},
        {"empty header name", BYTES("GET / HTTP/1.1\r\n" HOST ": x\r\n\r\n"), 400, 0},
        {"NUL in the target", BYTES("GET /a\0b HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"NUL in a header name", BYTES("GET / HTTP/1.1\r\n" HOST "A\0B: c\r\n\r\n"), 400, 0},
        {"NUL in a header value", BYTES("GET / HTTP/1.1\r\n" HOST "A: b\0c\r\n\r\n"), 400, 0},
        {"NUL at the beginning", BYTES("\0\0\0\0"), 400, 0},
        {"escape character in a value", BYTES("GET / HTTP/1.1\r\n" HOST "A: \x1b[2J\r\n\r\n"), 400, 0},
        {"no Host", BYTES("GET / HTTP/1.1\r\n\r\n"), 400, 0},
        {"two Hosts", BYTES("GET / HTTP/1.1\r\n" HOST HOST "\r\n"), 400, 0},
        {"two Content-Lengths", BYTES(POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), 400, 0},
        {"two equal Content-Lengths", BYTES(POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400, 0},
        {"a list as Content-Length", BYTES(POST "Content-Length: 5, 5\r\n\r\nhello"), 400, 0},
        {"negative Content-Length", BYTES(POST "Content-Length: -1\r\n\r\n"), 400, 0},
        {"signed Content-Length", BYTES(POST "Content-Length: +5\r\n\r\nhello"), 400, 0},
        {"hex Content-Length", BYTES(POST "Content-Length: 0x5\r\n\r\nhello"), 400, 0},
        {"empty Content-Length", BYTES(POST "Content-Length: \r\n\r\n"), 400, 0},
        {"Content-Length with a blank inside", BYTES(POST "Content-Length: 1 0\r\n\r\nhello"), 400, 0},
        {"both framings", BYTES(POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 0},
        {"both framings, other order", BYTES(POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
         400, 0},
        {"Transfer-Encoding twice",
         BYTES(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"), 400, 0},
        {"Transfer-Encoding in 1.0", BYTES("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 0},
        {"Transfer-Encoding: gzip", BYTES(POST "Transfer-Encoding: gzip\r\n\r\n"), 501, 0},
        {"Transfer-Encoding: gzip, chunked", BYTES(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501, 0},
        {"Transfer-Encoding: chunked, identity", BYTES(POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
         501, 0},
        {"Transfer-Encoding: xchunked", BYTES(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), 501, 0},
        {"empty Transfer-Encoding", BYTES(POST "Transfer-Encoding:\r\n\r\n"), 501, 0},
        {"huge chunk size", BYTES(CHUNKED "FFFFFFFFFFFFFFFFF\r\n"), 400, 0},
        {"wrapping chunk size", BYTES(CHUNKED "10000000000000005\r\nhello\r\n0\r\n\r\n"), 400, 0},
        {"chunk size beyond the limit", BYTES(CHUNKED "7FFFFFFFFFFFFFF\r\n"), 413, 0},
        {"second chunk beyond the limit", BYTES(CHUNKED "1\r\nx\r\n7d0\r\n"), 413, 0},
        {"negative chunk size", BYTES(CHUNKED "-1\r\n"), 400, 0},
        {"chunk size with 0x", BYTES(CHUNKED "0x5\r\nhello\r\n0\r\n\r\n"), 400, 0},
        {"empty chunk size", BYTES(CHUNKED "\r\n"), 400, 0},
        {"blank in the chunk size", BYTES(CHUNKED "5 \r\nhello\r\n0\r\n\r\n"), 400, 0},
        {"bare LF after the chunk size", BYTES(CHUNKED "5\nhello\r\n0\r\n\r\n"), 400, 0},
        {"bare CR after the chunk size", BYTES(CHUNKED "5\rhello\r\n0\r\n\r\n"), 400, 0},
        {"bare LF after a chunk", BYTES(CHUNKED "5\r\nhello\n0\r\n\r\n"), 400, 0},
        {"longer chunk than announced", BYTES(CHUNKED "4\r\nhello\r\n0\r\n\r\n"), 400, 0},
        {"other bytes behind a chunk", BYTES(CHUNKED "5\r\nhelloXX0\r\n\r\n"), 400, 0},
        {"bare LF in an extension", BYTES(CHUNKED "5;a\nhello\r\n0\r\n\r\n"), 400, 0},
        {"bare LF in a trailer", BYTES(CHUNKED "0\r\nA: b\n\r\n"), 400, 0},
        {"NUL in a trailer", BYTES(CHUNKED "0\r\nA: \0\r\n\r\n"), 400, 0},
        {"bad end of chunks", BYTES(CHUNKED "0\r\n\rX"), 400, 0},
        {"Content-Length beyond the limit", BYTES(POST "Content-Length: 2001\r\n\r\n"), 413, 0},
        {"Content-Length beyond 64 bits", BYTES(POST "Content-Length: 99999999999999999999999999\r\n\r\n"), 400, 0},
        {"Content-Length of 19 digits", BYTES(POST "Content-Length: 9223372036854775807\r\n\r\n"), 413, 0},
        {"unknown method", BYTES("FROB / HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"lower-case method", BYTES("get / HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"HTTP/2 preface", BYTES("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 400, 0},
        {"HTTP/2", BYTES("GET / HTTP/2.0\r\n" HOST "\r\n"), 505, 0},
        {"HTTP/0.9", BYTES("GET /\r\n\r\n"), 505, 0},
        {"not HTTP", BYTES("GET / SPDY/1\r\n\r\n"), 400, 0},
        {"version without digits", BYTES("GET / HTTP/x.y\r\n\r\n"), 400, 0},
        {"relative target", BYTES("GET index.html HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"bad authority", BYTES("GET http:/// HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"CONNECT", BYTES("CONNECT a:443 HTTP/1.1\r\n" HOST "\r\n"), 400, 0},
        {"unknown expectation", BYTES(POST "Expect: miracles\r\nContent-Length: 1\r\n\r\nx"), 417, 0},
        {"TLS on a plain port", BYTES("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), 400, 0},
        {"SSH", BYTES("SSH-2.0-OpenSSH_9.2\r\n"), 400, 0},
        {"a response", BYTES("HTTP/1.1 200 OK\r\n\r\n"), 400, 0},
        {"JSON", BYTES("{\"model\": \"x\"}\r\n"), 400, 0},
        {"cut in the request line", BYTES("GET / HT"), -1, 0},
        {"cut in a header", BYTES("GET / HTTP/1.1\r\nHo"), -1, 0},
        {"cut in a body", BYTES(POST "Content-Length: 5\r\n\r\nhell"), -1, 0},
        {"cut in a chunk", BYTES(CHUNKED "5\r\nhell"), -1, 0},
        {"cut in the last chunk", BYTES(CHUNKED "0\r\n\r"), -1, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check_input(&table[i]);
}

static void check_long(const char *name, const char *begin, char fill, size_t n, const char *end, int status)
{
    static char bytes[8000];
    size_t at = (size_t)snprintf(bytes, sizeof bytes, "%s", begin);
    memset(bytes + at, fill, n);
    at += n;
    memcpy(bytes + at, end, strlen(end));
    at += strlen(end);
    check_input(&(struct input){name, bytes, at, status, NULL});
}

Test(http_parse, limits)
{
    static const char get[] = "GET / HTTP/1.1\r\n" HOST "X:", tail[] = "\r\n\r\n";
    size_t room = limits.header_bytes - strlen(get) - strlen(tail);
    check_long("head at the limit", get, 'x', room, tail, 0);
    check_long("head one byte beyond", get, 'x', room + 1, tail, 431);
    check_long("blanks count too", get, ' ', room, tail, 0);
    check_long("one blank too many", get, ' ', room + 1, tail, 431);
    check_long("endless target", "GET /", 'a', 5000, "", 431);
    check_long("endless name", "GET / HTTP/1.1\r\n", 'n', 5000, "", 431);
    check_long("endless value", get, 'v', 5000, "", 431);
    check_long("body at the limit", POST "Content-Length: 2000\r\n\r\n", 'b', 2000, "", 0);
    check_long("chunk at the limit", CHUNKED "7d0\r\n", 'b', 2000, "\r\n0\r\n\r\n", 0);
    check_long("endless extension", CHUNKED "1;", 'e', 5000, "", 431);
    check_long("endless trailer", CHUNKED "0\r\n", 't', 5000, "", 431);

    char many[2000];
    for (int extra = 0; extra < 2; extra++) {
        size_t at = (size_t)snprintf(many, sizeof many, "GET / HTTP/1.1\r\n" HOST);
        for (int i = 1; i < GW_HTTP_MAX_HEADERS + extra; i++)
            at += (size_t)snprintf(many + at, sizeof many - at, "a:b\r\n");
        at += (size_t)snprintf(many + at, sizeof many - at, "\r\n");
        check_input(&(struct input){"many headers", many, at, extra ? 431 : 0, NULL});
    }
}

Test(http_parse, one_after_the_other)
{
    static const char bytes[] = POST "Content-Length: 2\r\n\r\nab" CHUNKED "1\r\nc\r\n0\r\n\r\n"
                                     "\r\nGET /q HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    static const char *const want[] = {"POST /p? ab|", "POST /p? c|", "GET /q? |1 0 0 1|Connection=keep-alive"};
    for (size_t step = 0; step < 9; step++) {
        struct gw_parser p;
        char text[1000];
        size_t at = 0, used;
        gw_parser_init(&p, &limits);
        for (int i = 0; i < 3; i++) {
            cr_assert_eq(feed_all(&p, bytes + at, sizeof bytes - 1 - at, step, &used), 0, "%s", p.reason);
            at += used;
            describe(&p, text, sizeof text);
            cr_expect(!strncmp(text, want[i], strlen(want[i])), "%s", text);
            gw_parser_next(&p);
            cr_expect_not(gw_parser_begun(&p));
        }
        cr_expect_eq(at, sizeof bytes - 1);
        gw_parser_free(&p);
    }
}

Test(http_parse, connection)
{
    static const struct {
        const char *bytes;
        bool keep;
    } table[] = {
        {"GET / HTTP/1.1\r\n" HOST "\r\n", true},
        {"GET / HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\n" HOST "Connection: x, Close\r\n\r\n", false},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct gw_parser p;
        size_t used;
        gw_parser_init(&p, &limits);
        cr_assert_eq(feed_all(&p, table[i].bytes, strlen(table[i].bytes), 0, &used), 0);
        cr_expect_eq(p.keep_alive, table[i].keep, "%s", table[i].bytes);
        gw_parser_free(&p);
    }
}
