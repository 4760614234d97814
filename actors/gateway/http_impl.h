/* Inside of the HTTP server, shared by its files and its tests. */
#ifndef WEFT_GATEWAY_HTTP_IMPL_H
#define WEFT_GATEWAY_HTTP_IMPL_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <sys/socket.h>

#include "actors/gateway/http.h"
#include "actors/gateway/http_parse.h"

enum {
    GW_HTTP_PIPELINE = 64 << 10, /* bytes of later requests that are read while one is in progress */
    GW_HTTP_KERNEL = 16 << 10,   /* bytes that the kernel keeps for a client beyond those on their way */
    GW_HTTP_LISTENERS = 8,
    GW_HTTP_TURNED_AWAY = 64, /* connections beyond the limit that are being told so; more are just closed */
    GW_HTTP_LINGER_MS = 5000, /* a client that is still sending has this long to read the last reply */
    GW_HTTP_RETRY_MS = 100,   /* accepting again after the process ran out of descriptors */
};

enum gw_reply_state { GW_REPLY_NONE, GW_REPLY_STREAM, GW_REPLY_ENDED };

/* One request and its reply. Part of its connection and used again for the next request. */
struct gw_exchange {
    struct gw_conn *conn;
    struct gw_http_request request;
    enum gw_reply_state state;
    bool keep_alive, chunked, head;
    void *user;
};

struct gw_conn {
    struct gw_http *http;
    struct gw_conn *prev, *next;
    struct bufferevent *bev;
    int fd; /* of bev */
    bool tls;
    struct event *timer; /* one deadline at a time: head, body, idle, stuck output or linger */
    bool held_back;      /* reading is off: there is much input that cannot be used yet */
    struct event *watch; /* on a copy of fd: sees the client go while reading is held back */
    struct gw_parser parser;
    char peer[64];
    bool loopback;
    bool active;              /* an exchange is in progress: parsing waits */
    bool turned_away;         /* beyond the limit of connections */
    bool closing;             /* close when the output is sent */
    bool lingering;           /* sent and shut down: input is thrown away until the client closes */
    bool peer_closed;         /* the client will send no more */
    bool cut_off;             /* close without a proper end */
    bool overflow;            /* a stream's client lags too far behind */
    bool dead;                /* freed at the end of the current callback */
    int busy;                 /* callbacks that still use this connection */
    uint64_t sent, sent_mark; /* bytes that left, and how many had when the stuck deadline was set */
    struct gw_exchange x;
};

struct gw_http {
    struct event_base *base;
    struct gw_http_limits limits;
    struct gw_http_handler handler;
    struct evconnlistener *listener[GW_HTTP_LISTENERS];
    struct ssl_ctx_st *tls[GW_HTTP_LISTENERS];
    int n_listeners;
    struct event *retry; /* to accept again */
    bool draining;
    struct gw_conn *conns;
    int turned_away; /* of conns */
    struct gw_http_stats stats;
};

/* The exchange has ended: go on with the connection or close it. May free the connection. */
void gw_conn_exchange_ended(struct gw_conn *c);
/* Output was added: its client has stuck_ms to take some of it. */
void gw_conn_output_waits(struct gw_conn *c);
/* A stream's client lags too far behind; it is reported gone from the loop, not from inside the write. */
void gw_conn_overflow(struct gw_conn *c);
/* A connected socket; it belongs to the server from now on, also when there is no room for it. */
void gw_http_adopt(struct gw_http *h, int fd, const struct sockaddr *peer, struct ssl_ctx_st *tls);

#endif
