#include "tests/support/http_peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GUARD_SECONDS = 20 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* ---- the handler ---- */

static void on_request(void *ctx, struct gw_exchange *x)
{
    struct http_server *s = ctx;
    const struct gw_http_request *r = gw_exchange_request(x);
    char line[512];
    s->requests++;
    if (!strcmp(r->path, "/hold") || !strcmp(r->path, "/stream")) {
        if (s->n_held == HTTP_HELD)
            fail("too many held exchanges");
        s->held[s->n_held++] = x;
        if (!strcmp(r->path, "/stream"))
            gw_exchange_begin(x, 200, "text/event-stream", NULL, 0);
    } else if (!strncmp(r->path, "/big/", 5)) {
        size_t n = strtoul(r->path + 5, NULL, 10);
        char *body = malloc(n + 1);
        if (!body)
            fail("malloc");
        memset(body, 'b', n);
        gw_exchange_reply(x, 200, "text/plain", NULL, 0, body, n);
        free(body);
    } else {
        int n = snprintf(line, sizeof line, "%s %.200s?%.100s %d %zu %.100s\n", r->method, r->path, r->query,
                         r->n_headers, r->len, r->body);
        gw_exchange_reply(x, 200, "text/plain", NULL, 0, line, (size_t)n);
    }
}

static void on_refuse(void *ctx, struct gw_exchange *x, int status, const char *reason)
{
    struct http_server *s = ctx;
    const struct gw_http_request *r = gw_exchange_request(x);
    s->refusals++;
    s->last_status = status;
    /* A real handler looks at all of these to choose the shape of its answer. */
    snprintf(s->last_reason, sizeof s->last_reason, "%s", reason);
    if (!r->method || !r->path || !r->query || !r->body || !r->peer || r->body[r->len])
        fail("a refused request with a missing text");
    gw_exchange_reply(x, status, "text/plain", NULL, 0, reason, strlen(reason));
}

static void on_gone(void *ctx, struct gw_exchange *x, enum gw_gone why)
{
    struct http_server *s = ctx;
    s->gone++;
    s->why = why;
    for (int i = 0; i < s->n_held; i++)
        if (s->held[i] == x) {
            s->held[i] = NULL;
            return;
        }
    s->unknown_gone = true;
}

/* ---- the server ---- */

struct gw_http_limits http_limits(void)
{
    return (struct gw_http_limits){.connections = 2000,
                                   .header_bytes = 4096,
                                   .body_bytes = 1 << 20,
                                   .pending_bytes = 1 << 20,
                                   .header_ms = 600000,
                                   .body_ms = 600000,
                                   .idle_ms = 600000,
                                   .stuck_ms = 600000};
}

static void on_guard(evutil_socket_t fd, short what, void *arg)
{
    struct http_server *s = arg;
    (void)fd;
    (void)what;
    s->late = true;
}

void http_server_start(struct http_server *s, const struct gw_http_limits *limits, struct ssl_ctx_st *tls)
{
    const struct gw_http_handler handler = {s, on_request, on_refuse, on_gone};
    const struct timeval long_time = {GUARD_SECONDS, 0};
    struct cfg_error err;
    memset(s, 0, sizeof *s);
    s->base = event_base_new();
    if (gw_http_new(s->base, limits, &handler, &s->http, &err) ||
        gw_http_listen(s->http, "127.0.0.1", 0, tls, &s->port, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    s->guard = evtimer_new(s->base, on_guard, s);
    evtimer_add(s->guard, &long_time);
}

void http_server_stop(struct http_server *s)
{
    event_free(s->guard);
    gw_http_free(s->http);
    event_base_free(s->base);
}

struct gw_http_stats http_stats(const struct http_server *s)
{
    struct gw_http_stats st;
    gw_http_stat(s->http, &st);
    return st;
}

bool http_step(struct http_server *s)
{
    if (!s->late)
        event_base_loop(s->base, EVLOOP_ONCE);
    return !s->late;
}

/* ---- a client ---- */

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct http_client *c = arg;
    (void)what;
    for (;;) {
        if (c->cap - c->len < 65536) {
            c->cap = 2 * c->cap + 65536 + 1;
            c->data = realloc(c->data, c->cap);
            if (!c->data)
                fail("realloc");
        }
        ssize_t n = read(fd, c->data + c->len, c->cap - c->len - 1);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            c->eof = true;
            c->reset = n < 0;
            event_del(c->readable);
            return;
        }
        c->len += (size_t)n;
        c->data[c->len] = 0;
    }
}

void http_client_open(struct http_client *c, struct http_server *s)
{
    const struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((unsigned short)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memset(c, 0, sizeof *c);
    c->server = s;
    c->data = calloc(1, 1);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&sa, sizeof sa))
        fail("connect");
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->readable = event_new(s->base, c->fd, EV_READ | EV_PERSIST, on_readable, c);
    event_add(c->readable, NULL);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg; /* the loop's turn is what was wanted */
}

void http_client_send(struct http_client *c, const void *data, size_t len)
{
    for (size_t at = 0; at < len && !c->eof;) {
        ssize_t n = send(c->fd, (const char *)data + at, len - at, MSG_NOSIGNAL);
        if (n > 0) {
            at += (size_t)n;
            continue;
        }
        if (errno != EAGAIN || event_base_once(c->server->base, c->fd, EV_WRITE, on_writable, NULL, NULL) ||
            !http_step(c->server))
            return;
    }
}

void http_client_puts(struct http_client *c, const char *text)
{
    http_client_send(c, text, strlen(text));
}

void http_client_stop_reading(struct http_client *c)
{
    event_del(c->readable);
}

void http_client_close(struct http_client *c, bool reset)
{
    event_free(c->readable);
    if (reset) {
        const struct linger at_once = {.l_onoff = 1};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    close(c->fd);
    free(c->data);
    c->data = NULL;
}

int http_client_count(const struct http_client *c, const char *text)
{
    int n = 0;
    for (const char *p = c->data; (p = strstr(p, text)); p++)
        n++;
    return n;
}

void http_client_drop_dates(struct http_client *c)
{
    for (char *p; (p = strstr(c->data, "Date: "));) {
        char *end = strstr(p, "\r\n") + 2;
        memmove(p, end, (size_t)(c->data + c->len - end) + 1);
        c->len -= (size_t)(end - p);
    }
}
