/* The HTTP server: listeners, the life of connections, their deadlines and events. Interface: http.h. */
#include "actors/gateway/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actors/gateway/http_impl.h"

/* ---- a connection's life ---- */

static struct evbuffer *output(struct gw_conn *c)
{
    return bufferevent_get_output(c->bev);
}

static size_t unsent(struct gw_conn *c)
{
    return evbuffer_get_length(output(c));
}

static void on_sent(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg)
{
    struct gw_conn *c = arg;
    (void)buffer;
    c->sent += info->n_deleted;
    c->http->stats.bytes_out += info->n_deleted;
}

static void unwatch(struct gw_conn *c)
{
    if (!c->watch)
        return;
    int fd = event_get_fd(c->watch);
    event_free(c->watch);
    close(fd);
    c->watch = NULL;
}

static void read_again(struct gw_conn *c)
{
    if (!c->held_back)
        return;
    c->held_back = false;
    unwatch(c);
    bufferevent_enable(c->bev, EV_READ);
}

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
    h->turned_away -= c->turned_away;
    unwatch(c);
    event_free(c->timer);
    if (c->cut_off) {
        const struct linger at_once = {.l_onoff = 1};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    /* libevent frees it from the loop, later than this. */
    evbuffer_remove_cb(output(c), on_sent, c);
    bufferevent_free(c->bev);
    gw_parser_free(&c->parser);
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

/* Only between enter and leave. */
static void conn_kill(struct gw_conn *c, enum gw_gone why)
{
    if (c->dead)
        return;
    c->dead = true;
    c->cut_off |= why == GW_GONE_STUCK;
    if (c->active) {
        c->active = false;
        c->http->stats.gone += why == GW_GONE_CLIENT;
        c->http->stats.stuck += why == GW_GONE_STUCK;
        c->http->handler.gone(c->http->handler.ctx, &c->x, why);
    }
}

static void set_deadline(struct gw_conn *c, int ms)
{
    const struct timeval tv = {ms / 1000, ms % 1000 * 1000};
    evtimer_add(c->timer, &tv);
}

static void set_stuck_deadline(struct gw_conn *c)
{
    c->sent_mark = c->sent;
    set_deadline(c, c->http->limits.stuck_ms);
}

void gw_conn_output_waits(struct gw_conn *c)
{
    if (unsent(c) && !c->overflow && !event_pending(c->timer, EV_TIMEOUT, NULL))
        set_stuck_deadline(c);
}

void gw_conn_overflow(struct gw_conn *c)
{
    c->overflow = true;
    event_active(c->timer, EV_TIMEOUT, 0);
}

/* The last reply has left. The connection is not closed while the client may still be sending: that would reset it, and
 * a reset can overtake the reply. Only between enter and leave. */
static void linger(struct gw_conn *c)
{
    if (c->peer_closed || c->cut_off) {
        c->dead = true;
        return;
    }
    c->lingering = true;
    if (c->tls) {
        SSL *ssl = bufferevent_openssl_get_ssl(c->bev);
        if (SSL_is_init_finished(ssl))
            SSL_shutdown(ssl);
    }
    shutdown(c->fd, SHUT_WR);
    set_deadline(c, GW_HTTP_LINGER_MS < c->http->limits.stuck_ms ? GW_HTTP_LINGER_MS : c->http->limits.stuck_ms);
}

static void throw_input_away(struct gw_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    c->http->stats.bytes_in += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
}

static void close_when_sent(struct gw_conn *c)
{
    c->closing = true;
    throw_input_away(c);
    if (unsent(c))
        set_stuck_deadline(c);
    else
        linger(c);
}

static void reset_exchange(struct gw_conn *c)
{
    c->x = (struct gw_exchange){.conn = c};
    c->active = false;
}

void gw_conn_exchange_ended(struct gw_conn *c)
{
    enter(c);
    c->active = false;
    if (c->dead) {
        leave(c);
        return;
    }
    read_again(c);
    evtimer_del(c->timer);
    if (c->overflow) {
        /* The handler was faster than the report; what it wrote last was not kept, so nothing may look complete. */
        c->http->stats.stuck++;
        c->cut_off = c->dead = true;
    } else if (!c->x.keep_alive || c->http->draining) {
        close_when_sent(c);
    } else {
        gw_parser_next(&c->parser);
        reset_exchange(c);
        if (unsent(c))
            set_stuck_deadline(c);
        else
            set_deadline(c, c->http->limits.idle_ms);
        /* The next request may be here already; it is read from the loop, not from inside the handler's reply. */
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
    }
    leave(c);
}

static void start_exchange(struct gw_conn *c)
{
    c->active = true;
    c->x.request = c->parser.request;
    c->x.request.peer = c->peer;
    c->x.request.loopback = c->loopback;
    c->x.keep_alive = c->parser.keep_alive;
    c->x.head = c->parser.head_method;
    evtimer_del(c->timer);
    gw_conn_output_waits(c); /* of the exchange before */
}

static void refuse(struct gw_conn *c, int status, const char *reason)
{
    start_exchange(c);
    c->x.keep_alive = false;
    c->http->handler.refuse(c->http->handler.ctx, &c->x, status, reason);
}

static void refuse_request(struct gw_conn *c, int status, const char *reason)
{
    c->http->stats.refused++;
    refuse(c, status, reason);
}

/* ---- reading ---- */

/* Takes what the connection has, as far as it may go on. Returns whether it should be called again. */
static bool parse_piece(struct gw_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    /* A client that asks and does not read gets no further answers until it has taken what there is. */
    bool begun = gw_parser_begun(&c->parser);
    if (c->active || c->closing || c->dead || !evbuffer_get_length(in) ||
        (!begun && unsent(c) > c->http->limits.pending_bytes))
        return false;
    size_t n = evbuffer_get_contiguous_space(in), used;
    const char *data = (const char *)evbuffer_pullup(in, n ? (ssize_t)n : 1);
    size_t body = c->parser.body_len;
    enum gw_parse r = gw_parser_feed(&c->parser, data, n ? n : 1, &used);
    c->http->stats.bytes_in += used;
    evbuffer_drain(in, used);
    switch (r) {
    case GW_PARSE_MORE:
        if (!begun && gw_parser_begun(&c->parser))
            set_deadline(c, c->http->limits.header_ms);
        else if (c->parser.body_len > body)
            set_deadline(c, c->http->limits.body_ms);
        break;
    case GW_PARSE_HEAD:
        set_deadline(c, c->http->limits.body_ms);
        if (c->parser.expects_continue && !evbuffer_get_length(in))
            evbuffer_add_printf(output(c), "HTTP/1.1 100 Continue\r\n\r\n");
        break;
    case GW_PARSE_REQUEST:
        c->http->stats.requests++;
        start_exchange(c);
        c->http->handler.request(c->http->handler.ctx, &c->x);
        break;
    case GW_PARSE_BAD:
        refuse_request(c, c->parser.status, c->parser.reason);
        break;
    }
    return true;
}

/* libevent does not tell a closed or reset connection while its reading is held back, and only for that time, an
 * edge-triggered event on a copy of the descriptor does. (A second event on the same descriptor would have to be
 * level-triggered, and after a reset it would fire for ever without being told.) */
static void on_watch(evutil_socket_t fd, short what, void *arg)
{
    struct gw_conn *c = arg;
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    (void)what;
    if (poll(&p, 1, 0) != 1 || !(p.revents & (POLLRDHUP | POLLERR | POLLHUP)))
        return;
    enter(c);
    conn_kill(c, GW_GONE_CLIENT);
    leave(c);
}

/* Input that cannot be used yet has become much: the rest stays with the client. (Not done with libevent's high
 * watermark: with deferred callbacks and a handler that leaves the input alone, 2.1.12 calls it again for ever.) */
static void hold_back(struct gw_conn *c)
{
    if (c->held_back || evbuffer_get_length(bufferevent_get_input(c->bev)) < GW_HTTP_PIPELINE)
        return;
    c->held_back = true;
    bufferevent_disable(c->bev, EV_READ);
    int fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return; /* then the next write notices when the client goes */
    c->watch = event_new(c->http->base, fd, EV_READ | EV_ET | EV_PERSIST, on_watch, c);
    if (!c->watch)
        close(fd);
    else
        event_add(c->watch, NULL);
}

static void read_on(struct gw_conn *c)
{
    if (c->closing)
        throw_input_away(c);
    while (parse_piece(c))
        ;
    if (!c->dead && !c->closing)
        hold_back(c);
}

/* ---- events ---- */

static void on_read(struct bufferevent *bev, void *arg)
{
    struct gw_conn *c = arg;
    (void)bev;
    enter(c);
    read_on(c);
    leave(c);
}

/* Everything has left. */
static void on_write(struct bufferevent *bev, void *arg)
{
    struct gw_conn *c = arg;
    (void)bev;
    if (unsent(c) || c->lingering || c->overflow)
        return;
    enter(c);
    if (c->closing) {
        linger(c);
    } else if (c->active) {
        evtimer_del(c->timer);
    } else if (!gw_parser_begun(&c->parser)) {
        set_deadline(c, c->http->limits.idle_ms);
        read_again(c);
        read_on(c);
    }
    leave(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct gw_conn *c = arg;
    (void)bev;
    if (what & BEV_EVENT_CONNECTED)
        return;
    enter(c);
    /* Deferred reports are merged: an end can come together with an error. */
    if (what & BEV_EVENT_EOF && !(what & BEV_EVENT_ERROR) && !c->active && !c->lingering && unsent(c)) {
        /* The reply is complete: a client that only stopped sending still gets it. */
        c->peer_closed = true;
        if (!c->closing)
            close_when_sent(c);
    } else {
        conn_kill(c, GW_GONE_CLIENT);
    }
    leave(c);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct gw_conn *c = arg;
    (void)fd;
    (void)what;
    enter(c);
    if (c->lingering)
        c->dead = true;
    else if (c->overflow)
        conn_kill(c, GW_GONE_STUCK);
    else if (c->active || c->closing || !gw_parser_begun(&c->parser)) {
        if (!unsent(c) && !c->active)
            c->dead = true; /* idle */
        else if (unsent(c) && c->sent == c->sent_mark)
            conn_kill(c, GW_GONE_STUCK);
        else if (unsent(c))
            set_stuck_deadline(c);
    } else {
        refuse_request(c, 408, "the request did not arrive in time");
    }
    leave(c);
}

/* ---- accepting ---- */

static void set_ipv4_peer(struct gw_conn *c, const void *address)
{
    inet_ntop(AF_INET, address, c->peer, sizeof c->peer);
    c->loopback = *(const unsigned char *)address == 127;
}

static void set_peer(struct gw_conn *c, const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET) {
        set_ipv4_peer(c, &((const struct sockaddr_in *)sa)->sin_addr);
    } else if (sa->sa_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)sa)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(a)) {
            set_ipv4_peer(c, a->s6_addr + 12);
            return;
        }
        inet_ntop(AF_INET6, a, c->peer, sizeof c->peer);
        c->loopback = IN6_IS_ADDR_LOOPBACK(a);
    }
}

static struct bufferevent *new_bufferevent(struct gw_http *h, int fd, SSL_CTX *tls)
{
    /* Deferred callbacks: a reply that fails to send must not call back into the code that is writing it. */
    int flags = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
    if (!tls)
        return bufferevent_socket_new(h->base, fd, flags);
    SSL *ssl = SSL_new(tls);
    if (!ssl)
        return NULL;
    struct bufferevent *bev = bufferevent_openssl_socket_new(h->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, flags);
    if (bev)
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

static void set_options(int fd)
{
    /* Tokens leave one by one. What a client does not take waits here, where it is counted and bounded, not in the
     * kernel, which would keep some MiB for each. A client that vanished without a word is noticed within a minute. */
    const struct {
        int level, name, value;
    } option[] = {{IPPROTO_TCP, TCP_NODELAY, 1},    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, GW_HTTP_KERNEL},
                  {SOL_SOCKET, SO_KEEPALIVE, 1},    {IPPROTO_TCP, TCP_KEEPIDLE, 30},
                  {IPPROTO_TCP, TCP_KEEPINTVL, 10}, {IPPROTO_TCP, TCP_KEEPCNT, 3}};
    for (size_t i = 0; i < sizeof option / sizeof *option; i++)
        setsockopt(fd, option[i].level, option[i].name, &option[i].value, sizeof option[i].value);
}

static struct gw_conn *conn_new(struct gw_http *h, int fd, SSL_CTX *tls)
{
    struct gw_conn *c = calloc(1, sizeof *c);
    if (c)
        c->timer = evtimer_new(h->base, on_deadline, c);
    if (c && c->timer)
        c->bev = new_bufferevent(h, fd, tls);
    if (c && c->bev && evbuffer_add_cb(output(c), on_sent, c))
        return c;
    if (c && c->timer)
        event_free(c->timer);
    if (c && c->bev)
        bufferevent_free(c->bev);
    else
        close(fd);
    free(c);
    return NULL;
}

void gw_http_adopt(struct gw_http *h, int fd, const struct sockaddr *peer, struct ssl_ctx_st *tls)
{
    h->stats.accepted++;
    bool full = h->stats.connections - h->turned_away >= h->limits.connections;
    h->stats.refused_connections += full;
    if (full && h->turned_away >= GW_HTTP_TURNED_AWAY) {
        close(fd);
        return;
    }
    evutil_make_socket_nonblocking(fd);
    struct gw_conn *c = conn_new(h, fd, tls);
    if (!c)
        return;
    c->http = h;
    c->fd = fd;
    c->tls = tls != NULL;
    c->next = h->conns;
    if (c->next)
        c->next->prev = c;
    h->conns = c;
    h->stats.connections++;
    c->turned_away = full;
    h->turned_away += full;
    set_options(fd);
    set_peer(c, peer);
    gw_parser_init(&c->parser, &h->limits);
    reset_exchange(c);
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    set_deadline(c, h->limits.idle_ms);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    if (full) {
        enter(c);
        refuse(c, 503, "too many open connections");
        leave(c);
    }
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int socklen, void *arg)
{
    struct gw_http *h = arg;
    SSL_CTX *tls = NULL;
    (void)socklen;
    for (int i = 0; i < h->n_listeners; i++)
        if (h->listener[i] == l)
            tls = h->tls[i];
    gw_http_adopt(h, fd, sa, tls);
}

/* Out of descriptors or memory. The connection keeps waiting, so accepting again at once would only burn time. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    struct gw_http *h = arg;
    const struct timeval tv = {0, GW_HTTP_RETRY_MS * 1000};
    evconnlistener_disable(l);
    evtimer_add(h->retry, &tv);
}

static void on_retry(evutil_socket_t fd, short what, void *arg)
{
    struct gw_http *h = arg;
    (void)fd;
    (void)what;
    for (int i = 0; i < h->n_listeners; i++)
        evconnlistener_enable(h->listener[i]);
}

/* ---- the server ---- */

int gw_http_new(struct event_base *base, const struct gw_http_limits *limits, const struct gw_http_handler *handler,
                struct gw_http **out, struct cfg_error *err)
{
    struct sigaction pipe;
    struct gw_http *h = *out = calloc(1, sizeof *h);
    if (h)
        h->retry = evtimer_new(base, on_retry, h);
    if (!h || !h->retry) {
        free(h);
        *out = NULL;
        return cfg_error_set(err, ENOMEM, "HTTP server: out of memory");
    }
    h->base = base;
    h->limits = *limits;
    h->handler = *handler;
    /* libevent and OpenSSL write to sockets whose other end may be closed. */
    if (!sigaction(SIGPIPE, NULL, &pipe) && pipe.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);
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
        if (!c->active && !c->closing && !gw_parser_begun(&c->parser)) {
            if (unsent(c))
                close_when_sent(c);
            else
                c->dead = true;
        }
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
    event_free(h->retry);
    free(h);
}

static struct evconnlistener *listen_on(struct gw_http *h, const struct addrinfo *ai)
{
    int e = EADDRNOTAVAIL;
    for (; ai; ai = ai->ai_next) {
        struct evconnlistener *l = evconnlistener_new_bind(
            h->base, on_accept, h, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC, 1024, ai->ai_addr,
            (int)ai->ai_addrlen);
        if (l)
            return l;
        e = errno;
    }
    errno = e;
    return NULL;
}

int gw_http_listen(struct gw_http *h, const char *host, int port, struct ssl_ctx_st *tls, int *bound,
                   struct cfg_error *err)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *ai;
    char service[16];
    if (h->n_listeners == GW_HTTP_LISTENERS)
        return cfg_error_set(err, ENOSPC, "more than %d listening addresses; give fewer", GW_HTTP_LISTENERS);
    if (port < 0 || port > 65535)
        return cfg_error_set(err, EINVAL, "port %d: give one from 0 (any free one) to 65535", port);
    snprintf(service, sizeof service, "%d", port);
    int r = getaddrinfo(host, service, &hints, &ai);
    if (r)
        return cfg_error_set(err, EADDRNOTAVAIL, "listening address %s: %s; give an address of this machine", host,
                             gai_strerror(r));
    struct evconnlistener *l = listen_on(h, ai);
    int e = errno;
    freeaddrinfo(ai);
    if (!l)
        return cfg_error_set(err, e, "cannot listen on %s port %d: %s%s", host, port, strerror(e),
                             e == EADDRINUSE      ? "; stop the other program or choose another port"
                             : e == EADDRNOTAVAIL ? "; give an address of this machine"
                             : e == EACCES        ? "; ports below 1024 need a privilege, choose a higher one"
                                                  : "");
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    getsockname(evconnlistener_get_fd(l), (struct sockaddr *)&ss, &len);
    *bound = ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                            : ((struct sockaddr_in *)&ss)->sin_port);
    evconnlistener_set_error_cb(l, on_accept_error);
    h->listener[h->n_listeners] = l;
    h->tls[h->n_listeners++] = tls;
    return 0;
}

void gw_http_set_tls(struct gw_http *h, struct ssl_ctx_st *tls)
{
    for (int i = 0; i < h->n_listeners; i++)
        if (h->tls[i])
            h->tls[i] = tls;
}

void gw_http_stat(const struct gw_http *h, struct gw_http_stats *out)
{
    *out = h->stats;
    for (struct gw_conn *c = h->conns; c; c = c->next)
        out->unsent += unsent(c);
}
