#include "actors/gateway/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/http_impl.h"

static void try_parse(struct gw_conn *c);

/* ---- a connection's life ---- */

static void conn_free(struct gw_conn *c)
{
    struct gw_http *h = c->http;
    if (c->prev)
        c->prev->next = c->next;
    else
        h->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    h->stats.connections--;
    if (c->closed)
        event_free(c->closed);
    if (c->timer)
        event_free(c->timer);
    if (c->bev)
        bufferevent_free(c->bev);
    free(c->head);
    free(c->body);
    free(c);
}

/* A callback of this connection begins or ends; the memory goes when the last one has ended. */
static void enter(struct gw_conn *c)
{
    c->busy++;
}

static void leave(struct gw_conn *c)
{
    if (--c->busy == 0 && c->dead)
        conn_free(c);
}

static void conn_kill(struct gw_conn *c, enum gw_gone why)
{
    if (c->dead)
        return;
    c->dead = true;
    if (c->active && c->x.state != GW_REPLY_ENDED) {
        c->active = false;
        c->http->stats.gone += why == GW_GONE_CLIENT;
        c->http->stats.stuck += why == GW_GONE_STUCK;
        c->http->handler.gone(c->http->handler.ctx, &c->x, why);
    }
}

void gw_conn_set_deadline(struct gw_conn *c, int ms)
{
    const struct timeval tv = {ms / 1000, ms % 1000 * 1000};
    evtimer_add(c->timer, &tv);
}

static void reset_request(struct gw_conn *c)
{
    c->head_len = c->body_len = c->line_bytes = 0;
    c->n_headers = 0;
    c->head_done = c->saw_byte = c->in_value = c->too_large = false;
    memset(&c->x, 0, sizeof c->x);
    c->x.conn = c;
    c->active = false;
}

void gw_conn_exchange_ended(struct gw_conn *c)
{
    event_del(c->closed);
    c->active = false;
    if (!c->x.keep_alive || c->http->draining) {
        c->closing = true;
        c->stuck_mark = evbuffer_get_length(bufferevent_get_output(c->bev));
        gw_conn_set_deadline(c, c->http->limits.stuck_ms);
        bufferevent_disable(c->bev, EV_READ);
        if (!c->stuck_mark)
            c->dead = true;
        if (!c->busy && c->dead)
            conn_free(c);
        return;
    }
    reset_request(c);
    http_parser_pause(&c->parser, 0);
    gw_conn_set_deadline(c, c->http->limits.idle_ms);
    /* The next request may be here already; it is read from the loop, not from inside the handler's reply. */
    bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
}

static void start_exchange(struct gw_conn *c)
{
    c->active = true;
    evtimer_del(c->timer);
    event_add(c->closed, NULL);
}

static void refuse(struct gw_conn *c, int status, const char *reason)
{
    start_exchange(c);
    c->x.keep_alive = false;
    if (!c->x.request.method)
        c->x.request.method = c->x.request.path = c->x.request.query = "";
    c->x.request.peer = c->peer;
    c->http->stats.refused++;
    c->http->handler.refuse(c->http->handler.ctx, &c->x, status, reason);
}

/* ---- parsing ---- */

static struct gw_conn *conn_of(http_parser *p)
{
    return p->data;
}

static bool head_add(struct gw_conn *c, const char *s, size_t n, bool end)
{
    if (c->head_len + n + 1 > c->http->limits.header_bytes) {
        c->too_large = true;
        return false;
    }
    if (c->head_len + n + 1 > c->head_cap) {
        size_t cap = 2 * c->head_cap > c->head_len + n + 1 ? 2 * c->head_cap : c->head_len + n + 1024;
        char *p = realloc(c->head, cap);
        if (!p)
            return false;
        c->head = p;
        c->head_cap = cap;
    }
    memcpy(c->head + c->head_len, s, n);
    c->head_len += n;
    if (end)
        c->head[c->head_len++] = 0;
    else
        c->head[c->head_len] = 0;
    return true;
}

static int on_url(http_parser *p, const char *s, size_t n)
{
    return head_add(conn_of(p), s, n, false) ? 0 : -1;
}

static int on_field(http_parser *p, const char *s, size_t n)
{
    struct gw_conn *c = conn_of(p);
    if (c->head_done)
        return 0; /* trailers of a chunked body are not kept */
    /* The first piece of a new name: the text before it (target or value) ends here. */
    if (c->in_value || !c->n_headers) {
        if (c->n_headers == GW_HTTP_MAX_HEADERS) {
            c->too_large = true;
            return -1;
        }
        if (!head_add(c, "", 0, true))
            return -1;
        c->name_at[c->n_headers] = c->head_len;
        c->value_at[c->n_headers++] = 0;
        c->in_value = false;
    }
    return head_add(c, s, n, false) ? 0 : -1;
}

static int on_value(http_parser *p, const char *s, size_t n)
{
    struct gw_conn *c = conn_of(p);
    if (c->head_done)
        return 0;
    if (!c->in_value) {
        if (!head_add(c, "", 0, true))
            return -1;
        c->value_at[c->n_headers - 1] = c->head_len;
        c->in_value = true;
    }
    return head_add(c, s, n, false) ? 0 : -1;
}

/* Splits the request target; absolute forms lose scheme and authority. */
static bool set_target(struct gw_conn *c)
{
    struct http_parser_url u;
    static char empty[] = "";
    char *target = c->head;
    http_parser_url_init(&u);
    c->x.request.query = empty;
    if (!strcmp(target, "*")) {
        c->x.request.path = target;
        return true;
    }
    if (http_parser_parse_url(target, strlen(target), 0, &u) || !(u.field_set & (1 << UF_PATH)))
        return false;
    char *path = target + u.field_data[UF_PATH].off;
    if (u.field_set & (1 << UF_QUERY)) {
        char *query = target + u.field_data[UF_QUERY].off;
        query[u.field_data[UF_QUERY].len] = 0;
        c->x.request.query = query;
    }
    path[u.field_data[UF_PATH].len] = 0;
    c->x.request.path = path;
    return true;
}

static int on_head_done(http_parser *p)
{
    struct gw_conn *c = conn_of(p);
    struct gw_exchange *x = &c->x;
    if (!head_add(c, "", 0, true))
        return -1;
    for (int i = 0; i < c->n_headers; i++)
        x->header[i] = (struct gw_header){c->head + c->name_at[i], c->value_at[i] ? c->head + c->value_at[i] : ""};
    x->request.method = http_method_str((enum http_method)p->method);
    x->request.header = x->header;
    x->request.n_headers = c->n_headers;
    x->request.peer = c->peer;
    x->request.loopback = c->loopback;
    x->request.http_1_0 = p->http_major == 1 && p->http_minor == 0;
    x->head = p->method == HTTP_HEAD;
    x->keep_alive = http_should_keep_alive(p);
    c->head_done = true;
    if (!set_target(c))
        return -1;
    if (p->content_length != UINT64_MAX && p->content_length > c->http->limits.body_bytes) {
        c->too_large = true;
        return -1;
    }
    const char *expect = gw_exchange_header(x, "Expect");
    if (expect && !strcasecmp(expect, "100-continue") && !x->request.http_1_0)
        evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    gw_conn_set_deadline(c, c->http->limits.body_ms);
    return 0;
}

static int on_body(http_parser *p, const char *s, size_t n)
{
    struct gw_conn *c = conn_of(p);
    if (n > c->http->limits.body_bytes - c->body_len) {
        c->too_large = true;
        return -1;
    }
    if (c->body_len + n + 1 > c->body_cap) {
        size_t cap = 2 * c->body_cap > c->body_len + n + 1 ? 2 * c->body_cap : c->body_len + n + 4096;
        char *b = realloc(c->body, cap);
        if (!b)
            return -1;
        c->body = b;
        c->body_cap = cap;
    }
    memcpy(c->body + c->body_len, s, n);
    c->body_len += n;
    c->body[c->body_len] = 0;
    gw_conn_set_deadline(c, c->http->limits.body_ms);
    return 0;
}

static int on_complete(http_parser *p)
{
    struct gw_conn *c = conn_of(p);
    c->x.request.body = c->body_len ? c->body : "";
    c->x.request.len = c->body_len;
    http_parser_pause(p, 1); /* what follows is the next request */
    return 0;
}

static const http_parser_settings settings = {
    .on_url = on_url, .on_header_field = on_field, .on_header_value = on_value,
    .on_headers_complete = on_head_done, .on_body = on_body, .on_message_complete = on_complete,
};

static void parse_failed(struct gw_conn *c)
{
    enum http_errno e = HTTP_PARSER_ERRNO(&c->parser);
    char reason[160];
    if (c->too_large && c->head_done)
        refuse(c, 413, "the request body is larger than this server accepts");
    else if (c->too_large || e == HPE_HEADER_OVERFLOW)
        refuse(c, 431, "the request head is larger than this server accepts");
    else if (c->parser.upgrade)
        refuse(c, 400, "protocol upgrades are not supported");
    else {
        snprintf(reason, sizeof reason, "malformed HTTP request (%s)", http_errno_description(e));
        refuse(c, 400, reason);
    }
}

static void try_parse(struct gw_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    while (!c->active && !c->closing && !c->dead && evbuffer_get_length(in)) {
        if (!c->saw_byte) {
            c->saw_byte = true;
            gw_conn_set_deadline(c, c->http->limits.header_ms);
        }
        struct evbuffer_iovec piece;
        evbuffer_peek(in, -1, NULL, &piece, 1);
        size_t used = http_parser_execute(&c->parser, &settings, piece.iov_base, piece.iov_len);
        c->http->stats.bytes_in += used;
        /* The parser keeps its own count of header bytes only inside names and values; a flood of others is ours. */
        if (!c->head_done && (c->line_bytes += used) > c->http->limits.header_bytes + 1024)
            c->too_large = true;
        evbuffer_drain(in, used);
        enum http_errno e = HTTP_PARSER_ERRNO(&c->parser);
        if (e == HPE_PAUSED) {
            c->http->stats.requests++;
            start_exchange(c);
            c->http->handler.request(c->http->handler.ctx, &c->x);
        } else if (e != HPE_OK || c->parser.upgrade || (c->too_large && !c->active)) {
            parse_failed(c);
        }
    }
}

/* ---- events ---- */

static void on_read(struct bufferevent *bev, void *arg)
{
    struct gw_conn *c = arg;
    (void)bev;
    enter(c);
    try_parse(c);
    leave(c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct gw_conn *c = arg;
    if (evbuffer_get_length(bufferevent_get_output(bev)))
        return;
    if (c->closing) {
        enter(c);
        c->dead = true;
        leave(c);
    } else if (c->active) {
        evtimer_del(c->timer); /* everything left: the client is not stuck */
    }
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct gw_conn *c = arg;
    (void)bev;
    if (what & BEV_EVENT_CONNECTED)
        return;
    enter(c);
    conn_kill(c, GW_GONE_CLIENT);
    leave(c);
}

static void on_closed(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    on_event(NULL, BEV_EVENT_EOF, arg);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct gw_conn *c = arg;
    (void)fd;
    (void)what;
    enter(c);
    size_t unsent = evbuffer_get_length(bufferevent_get_output(c->bev));
    if (c->closing || c->active) {
        if (unsent && unsent >= c->stuck_mark) {
            conn_kill(c, GW_GONE_STUCK);
        } else if (unsent) {
            c->stuck_mark = unsent;
            gw_conn_set_deadline(c, c->http->limits.stuck_ms);
        } else if (c->closing) {
            c->dead = true;
        }
    } else if (c->saw_byte) {
        refuse(c, 408, "the request did not arrive in time");
    } else {
        c->dead = true; /* idle */
    }
    leave(c);
}

static void set_peer(struct gw_conn *c, const struct sockaddr *sa)
{
    c->peer[0] = 0;
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)sa;
        inet_ntop(AF_INET, &a->sin_addr, c->peer, sizeof c->peer);
        c->loopback = (ntohl(a->sin_addr.s_addr) >> 24) == 127;
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)sa;
        inet_ntop(AF_INET6, &a->sin6_addr, c->peer, sizeof c->peer);
        c->loopback = IN6_IS_ADDR_LOOPBACK(&a->sin6_addr);
    }
}

static struct bufferevent *new_bufferevent(struct gw_http *h, evutil_socket_t fd, SSL_CTX *tls)
{
    /* Deferred callbacks: a reply that fails to send must not call back into the code that is writing it. */
    int flags = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
    if (!tls)
        return bufferevent_socket_new(h->base, fd, flags);
    SSL *ssl = SSL_new(tls);
    struct bufferevent *bev = ssl ? bufferevent_openssl_socket_new(h->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, flags) : NULL;
    if (bev)
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int socklen, void *arg)
{
    struct gw_http *h = arg;
    (void)socklen;
    SSL_CTX *tls = NULL;
    for (int i = 0; i < h->n_listeners; i++)
        if (h->listener[i] == l)
            tls = h->tls[i];
    h->stats.accepted++;
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct gw_conn *c = calloc(1, sizeof *c);
    if (c) {
        c->http = h;
        c->bev = new_bufferevent(h, fd, tls);
        c->timer = c->bev ? evtimer_new(h->base, on_deadline, c) : NULL;
        c->closed = c->bev ? event_new(h->base, fd, EV_CLOSED, on_closed, c) : NULL;
    }
    if (!c || !c->bev || !c->timer || !c->closed) {
        if (c && c->timer)
            event_free(c->timer);
        if (c && c->closed)
            event_free(c->closed);
        if (c && c->bev)
            bufferevent_free(c->bev);
        else
            evutil_closesocket(fd);
        free(c);
        return;
    }
    c->next = h->conns;
    if (c->next)
        c->next->prev = c;
    h->conns = c;
    h->stats.connections++;
    set_peer(c, sa);
    reset_request(c);
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, GW_HTTP_PIPELINE);
    gw_conn_set_deadline(c, h->limits.idle_ms);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    if (h->stats.connections > h->limits.connections) {
        h->stats.refused_connections++;
        enter(c);
        refuse(c, 503, "too many open connections");
        leave(c);
    }
}

/* ---- the server ---- */

int gw_http_new(struct event_base *base, const struct gw_http_limits *limits, const struct gw_http_handler *handler,
                struct gw_http **out, struct cfg_error *err)
{
    struct gw_http *h = *out = calloc(1, sizeof *h);
    if (!h)
        return cfg_error_set(err, ENOMEM, "HTTP server: out of memory");
    *h = (struct gw_http){.base = base, .limits = *limits, .handler = *handler};
    return 0;
}

void gw_http_stop_listening(struct gw_http *h)
{
    h->draining = true;
    for (int i = 0; i < h->n_listeners; i++)
        evconnlistener_free(h->listener[i]);
    h->n_listeners = 0;
    for (struct gw_conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        enter(c);
        if (!c->active && !c->saw_byte)
            c->dead = true;
        leave(c);
    }
}

void gw_http_free(struct gw_http *h)
{
    if (!h)
        return;
    gw_http_stop_listening(h);
    while (h->conns) {
        struct gw_conn *c = h->conns;
        enter(c);
        conn_kill(c, GW_GONE_CLIENT);
        leave(c);
    }
    free(h);
}

int gw_http_listen(struct gw_http *h, const char *host, int port, struct ssl_ctx_st *tls, int *bound, struct cfg_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *ai;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    if (h->n_listeners == GW_HTTP_LISTENERS)
        return cfg_error_set(err, ENOSPC, "more than %d listening addresses", GW_HTTP_LISTENERS);
    int r = getaddrinfo(host, service, &hints, &ai);
    if (r)
        return cfg_error_set(err, EADDRNOTAVAIL, "listening address %s: %s", host, gai_strerror(r));
    struct evconnlistener *l = evconnlistener_new_bind(h->base, on_accept, h,
                                                       LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC,
                                                       1024, ai->ai_addr, (int)ai->ai_addrlen);
    int e = errno;
    freeaddrinfo(ai);
    if (!l)
        return cfg_error_set(err, e, "cannot listen on %s port %d: %s%s", host, port, strerror(e),
                             e == EADDRINUSE ? "; stop the other program or choose another port" : "");
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    getsockname(evconnlistener_get_fd(l), (struct sockaddr *)&ss, &len);
    *bound = ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port : ((struct sockaddr_in *)&ss)->sin_port);
    h->listener[h->n_listeners] = l;
    h->tls[h->n_listeners++] = tls;
    return 0;
}

void gw_http_stat(const struct gw_http *h, struct gw_http_stats *out)
{
    *out = h->stats;
}

int gw_http_tls_new(const char *cert_file, const char *key_file, struct ssl_ctx_st **out, struct cfg_error *err)
{
    SSL_CTX *ctx = *out = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return cfg_error_set(err, ENOMEM, "TLS: out of memory");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    const char *bad = NULL;
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1)
        bad = cert_file;
    else if (SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1)
        bad = key_file;
    if (!bad)
        return 0;
    char reason[256];
    ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
    ERR_clear_error();
    SSL_CTX_free(ctx);
    *out = NULL;
    return cfg_error_set(err, EINVAL, "TLS: %s: %s; give a PEM certificate chain and its private key", bad, reason);
}

void gw_http_tls_free(struct ssl_ctx_st *tls)
{
    SSL_CTX_free(tls);
}
