/* Exchanges of the HTTP server: what a handler reads of its request and how it answers. Interface: http.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "actors/gateway/http_impl.h"

const char *gw_http_reason(int status)
{
    switch (status) {
#define XX(num, name, text)                                                                                            \
    case num:                                                                                                          \
        return #text;
        HTTP_STATUS_MAP(XX)
#undef XX
    default:
        return "Unknown";
    }
}

const struct gw_http_request *gw_exchange_request(const struct gw_exchange *x)
{
    return &x->request;
}

char *gw_exchange_take_body(struct gw_exchange *x, size_t *len)
{
    char *body = gw_parser_take_body(&x->conn->parser, len);
    x->request.body = "";
    x->request.len = 0;
    return body ? body : calloc(1, 1);
}

const char *gw_exchange_header(const struct gw_exchange *x, const char *name)
{
    for (int i = 0; i < x->request.n_headers; i++)
        if (!strcasecmp(x->request.header[i].name, name))
            return x->request.header[i].value;
    return NULL;
}

void gw_exchange_set_user(struct gw_exchange *x, void *user)
{
    x->user = user;
}

void *gw_exchange_user(const struct gw_exchange *x)
{
    return x->user;
}

bool gw_exchange_begun(const struct gw_exchange *x)
{
    return x->state != GW_REPLY_NONE;
}

size_t gw_exchange_pending(const struct gw_exchange *x)
{
    return evbuffer_get_length(bufferevent_get_output(x->conn->bev));
}

enum { IN_PIECES = -1, NO_BODY = -2 }; /* instead of a length */

static void write_head(struct gw_exchange *x, int status, const char *type, const struct gw_header *headers, int n,
                       long long length)
{
    struct evbuffer *out = bufferevent_get_output(x->conn->bev);
    char date[64];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, gw_http_reason(status), date);
    if (type)
        evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
    for (int i = 0; i < n; i++)
        evbuffer_add_printf(out, "%s: %s\r\n", headers[i].name, headers[i].value);
    if (length >= 0)
        evbuffer_add_printf(out, "Content-Length: %lld\r\n", length);
    else if (length == IN_PIECES && x->chunked)
        evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
    if (!x->keep_alive)
        evbuffer_add_printf(out, "Connection: close\r\n");
    else if (x->request.http_1_0)
        evbuffer_add_printf(out, "Connection: keep-alive\r\n");
    evbuffer_add(out, "\r\n", 2);
}

static void ended(struct gw_exchange *x)
{
    x->state = GW_REPLY_ENDED;
    gw_conn_exchange_ended(x->conn);
}

/* These statuses have no body and say nothing about one. */
static bool bodiless(int status)
{
    return status == 204 || status == 304;
}

void gw_exchange_reply(struct gw_exchange *x, int status, const char *type, const struct gw_header *headers, int n,
                       const void *body, size_t len)
{
    if (x->state != GW_REPLY_NONE)
        return;
    if (x->conn->http->draining)
        x->keep_alive = false;
    write_head(x, status, type, headers, n, bodiless(status) ? NO_BODY : (long long)len);
    if (!x->head && len && !bodiless(status))
        bufferevent_write(x->conn->bev, body, len);
    ended(x);
}

void gw_exchange_begin(struct gw_exchange *x, int status, const char *type, const struct gw_header *headers, int n)
{
    if (x->state != GW_REPLY_NONE)
        return;
    x->chunked = !x->request.http_1_0;
    if (!x->chunked || x->conn->http->draining)
        x->keep_alive = false;
    x->state = GW_REPLY_STREAM;
    write_head(x, status, type, headers, n, IN_PIECES);
    gw_conn_output_waits(x->conn);
}

void gw_exchange_write(struct gw_exchange *x, const void *data, size_t len)
{
    struct evbuffer *out = bufferevent_get_output(x->conn->bev);
    if (!len || x->head || x->state != GW_REPLY_STREAM || x->conn->overflow)
        return;
    if (x->chunked)
        evbuffer_add_printf(out, "%zx\r\n", len);
    evbuffer_add(out, data, len);
    if (x->chunked)
        evbuffer_add(out, "\r\n", 2);
    gw_conn_output_waits(x->conn);
    if (gw_exchange_pending(x) > x->conn->http->limits.pending_bytes)
        gw_conn_overflow(x->conn);
}

void gw_exchange_end(struct gw_exchange *x)
{
    if (x->state == GW_REPLY_STREAM && x->chunked && !x->head)
        evbuffer_add(bufferevent_get_output(x->conn->bev), "0\r\n\r\n", 5);
    ended(x);
}

void gw_exchange_abort(struct gw_exchange *x)
{
    x->keep_alive = false;
    /* The missing last chunk shows it; where the close itself is the end, only a reset does. */
    x->conn->cut_off = x->state != GW_REPLY_STREAM || !x->chunked;
    ended(x);
}
