/* Any bytes as what an HTTP client sends.
 *
 * First the parser alone: the same bytes in other pieces give the same requests and the same refusal. Then the server,
 * through a socket pair: with a handler that answers at once, streams, answers later, aborts, or is left alone when the
 * client goes, chosen by the input. Whatever happens, every exchange ends exactly once and nothing is left over. */
#include <event2/event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "actors/gateway/http_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 60000, MAX_TURNS = 200 };

static const struct gw_http_limits limits = {.connections = 4,
                                             .header_bytes = 500,
                                             .body_bytes = 1000,
                                             .pending_bytes = 2000,
                                             .header_ms = 60000,
                                             .body_ms = 60000,
                                             .idle_ms = 60000,
                                             .stuck_ms = 60000};

/* ---- the parser ---- */

static uint64_t mix(uint64_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return (h ^ n) * 1099511628211u;
}

static uint64_t mix_request(uint64_t h, const struct gw_parser *p)
{
    const struct gw_http_request *r = &p->request;
    h = mix(h, r->method, strlen(r->method));
    h = mix(h, r->path, strlen(r->path));
    h = mix(h, r->query, strlen(r->query));
    for (int i = 0; i < r->n_headers; i++) {
        h = mix(h, r->header[i].name, strlen(r->header[i].name));
        h = mix(h, r->header[i].value, strlen(r->header[i].value));
    }
    if (r->body[r->len])
        __builtin_trap();
    return mix(h, r->body, r->len) + p->keep_alive * 3u + p->head_method * 5u + p->expects_continue * 7u;
}

/* A number for everything that was read. seed 0: in one piece. */
static uint64_t parse_in_pieces(const uint8_t *data, size_t size, uint32_t seed)
{
    struct gw_parser p;
    uint64_t h = 1;
    size_t at = 0;
    gw_parser_init(&p, &limits);
    while (at < size) {
        size_t n = size - at, used;
        if (seed) {
            seed = seed * 1664525u + 1013904223u;
            size_t most = 1 + (seed >> 24) % 40;
            n = n < most ? n : most;
        }
        char *piece = malloc(n);
        if (!piece)
            break;
        memcpy(piece, data + at, n);
        enum gw_parse r = gw_parser_feed(&p, piece, n, &used);
        free(piece);
        if (used > n || (r == GW_PARSE_MORE && used < n) || p.body_len > limits.body_bytes)
            __builtin_trap();
        at += used;
        if (r == GW_PARSE_BAD) {
            h = mix(h, p.reason, strlen(p.reason)) + (unsigned)p.status;
            break;
        }
        if (r == GW_PARSE_REQUEST) {
            h = mix_request(h, &p);
            gw_parser_next(&p);
        }
    }
    gw_parser_free(&p);
    return h;
}

/* ---- the server ---- */

struct scene {
    struct gw_exchange *waiting; /* in progress, to be answered from the loop */
    int open;                    /* exchanges in progress */
    uint32_t choice;
};

static void on_request(void *ctx, struct gw_exchange *x)
{
    struct scene *s = ctx;
    static const char text[700] = "text";
    s->open++;
    s->choice = s->choice * 1664525u + 1013904223u;
    switch (s->choice >> 29) {
    case 0:
        s->waiting = x;
        return;
    case 1:
        gw_exchange_begin(x, 200, "text/event-stream", NULL, 0);
        gw_exchange_write(x, text, sizeof text);
        s->waiting = x;
        return;
    case 2:
        gw_exchange_begin(x, 200, NULL, NULL, 0);
        for (int i = 0; i < 5; i++)
            gw_exchange_write(x, text, sizeof text); /* more than may be pending */
        gw_exchange_end(x);
        break;
    case 3:
        gw_exchange_abort(x);
        break;
    case 4:
        gw_exchange_reply(x, 204, NULL, NULL, 0, NULL, 0);
        break;
    default:
        gw_exchange_reply(x, 200, "text/plain", NULL, 0, text, sizeof text);
        break;
    }
    s->open--;
}

static void on_refuse(void *ctx, struct gw_exchange *x, int status, const char *reason)
{
    (void)ctx;
    gw_exchange_reply(x, status, "text/plain", NULL, 0, reason, strlen(reason));
}

static void on_gone(void *ctx, struct gw_exchange *x, enum gw_gone why)
{
    struct scene *s = ctx;
    (void)why;
    if (x != s->waiting || --s->open < 0)
        __builtin_trap();
    s->waiting = NULL;
}

static void answer(struct scene *s)
{
    struct gw_exchange *x = s->waiting;
    if (!x)
        return;
    s->waiting = NULL;
    s->open--;
    if (gw_exchange_begun(x)) {
        gw_exchange_write(x, "more", 4);
        gw_exchange_end(x);
    } else {
        gw_exchange_reply(x, 200, "text/plain", NULL, 0, "late", 4);
    }
}

static void serve(const uint8_t *data, size_t size, uint32_t seed)
{
    struct scene s = {.choice = seed};
    const struct gw_http_handler handler = {&s, on_request, on_refuse, on_gone};
    const struct sockaddr peer = {.sa_family = AF_UNIX};
    struct event_base *base = event_base_new();
    struct gw_http *http;
    struct gw_http_stats st;
    int pair[2];
    char sink[4096];
    if (!base || gw_http_new(base, &limits, &handler, &http, NULL) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair))
        abort();
    gw_http_adopt(http, pair[0], &peer, NULL);
    size_t at = 0;
    for (int turn = 0; turn < MAX_TURNS && at < size; turn++) {
        seed = seed * 1664525u + 1013904223u;
        size_t n = size - at, most = 1 + (seed >> 20);
        ssize_t sent = send(pair[1], data + at, n < most ? n : most, MSG_NOSIGNAL);
        at += sent > 0 ? (size_t)sent : 0;
        event_base_loop(base, EVLOOP_NONBLOCK);
        if (seed >> 16 & 1)
            answer(&s);
        while (seed >> 17 & 1 && read(pair[1], sink, sizeof sink) > 0)
            ;
    }
    if (seed & 256)
        answer(&s);
    if (seed & 512)
        gw_http_stop_listening(http);
    if (seed & 1024)
        shutdown(pair[1], SHUT_WR);
    else
        close(pair[1]);
    for (int i = 0; i < 3; i++)
        event_base_loop(base, EVLOOP_NONBLOCK);
    gw_http_stat(http, &st);
    if (s.open != (s.waiting != NULL) || (s.waiting && st.connections != 1))
        __builtin_trap();
    gw_http_free(http);
    if (s.open || s.waiting)
        __builtin_trap();
    if (seed & 1024)
        close(pair[1]);
    event_base_free(base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT)
        return 0;
    uint32_t seed = 1 + (uint32_t)size;
    for (size_t i = 0; i < size && i < 64; i++)
        seed = seed * 31 + data[i];
    uint64_t whole = parse_in_pieces(data, size, 0);
    for (uint32_t i = 1; i < 4; i++)
        if (parse_in_pieces(data, size, seed * i | 1) != whole)
            __builtin_trap();
    serve(data, size, seed);
    return 0;
}
