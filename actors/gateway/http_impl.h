/* Inside of the HTTP server, shared by its two files. */
#ifndef WEFT_GATEWAY_HTTP_IMPL_H
#define WEFT_GATEWAY_HTTP_IMPL_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <http_parser.h>

#include "actors/gateway/http.h"

enum { GW_HTTP_MAX_HEADERS = 100, GW_HTTP_PIPELINE = 64 << 10, GW_HTTP_LISTENERS = 8 };

enum gw_reply_state { GW_REPLY_NONE, GW_REPLY_STREAM, GW_REPLY_ENDED };

/* One request and its reply. Part of its connection and used again for the next request. */
struct gw_exchange {
    struct gw_conn *conn;
    struct gw_http_request request;
    struct gw_header header[GW_HTTP_MAX_HEADERS];
    enum gw_reply_state state;
    bool keep_alive, chunked, head;
    void *user;
};

struct gw_conn {
    struct gw_http *http;
    struct gw_conn *prev, *next;
    struct bufferevent *bev;
    struct event *closed;  /* the peer's end of input while an exchange runs and reading is held back */
    struct event *timer;   /* one deadline at a time: head, body, idle or stuck output */
    http_parser parser;
    char peer[64];
    bool loopback;
    bool active;           /* an exchange is in progress: parsing waits */
    bool closing;          /* close when the output is sent */
    bool dead;             /* freed at the end of the current callback */
    int busy;              /* callbacks that still use this connection */
    bool head_done, saw_byte, in_value, too_large;
    char *head;            /* request target and header texts, NUL-separated */
    size_t head_len, head_cap, line_bytes;
    size_t name_at[GW_HTTP_MAX_HEADERS], value_at[GW_HTTP_MAX_HEADERS];
    int n_headers;
    char *body;
    size_t body_len, body_cap;
    size_t stuck_mark;     /* unsent bytes when the stuck deadline was set */
    struct gw_exchange x;
};

struct gw_http {
    struct event_base *base;
    struct gw_http_limits limits;
    struct gw_http_handler handler;
    struct evconnlistener *listener[GW_HTTP_LISTENERS];
    struct ssl_ctx_st *tls[GW_HTTP_LISTENERS];
    int n_listeners;
    bool draining;
    struct gw_conn *conns;
    struct gw_http_stats stats;
};

/* The exchange has ended: go on with the connection or close it. */
void gw_conn_exchange_ended(struct gw_conn *c);
void gw_conn_set_deadline(struct gw_conn *c, int ms);

#endif
