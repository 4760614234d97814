/* An HTTP/1.1 server on a libevent base: connections, parsing, limits and replies. Knows no paths and no JSON.
 *
 * One request of a connection is handled at a time; pipelined ones wait their turn. While one is in progress the
 * connection is watched, so a client that goes away is noticed at once, whether or not anything is being sent. A client
 * that closes its sending side counts as gone.
 *
 * Requests are read strictly: what another HTTP program could read differently is refused, not guessed.
 *
 * Everything runs on the thread of the base. An exchange belongs to the server; its handler may use it until it has
 * ended it, or until `gone` was called. */
#ifndef WEFT_GATEWAY_HTTP_H
#define WEFT_GATEWAY_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/error.h"

struct event_base;
struct ssl_ctx_st;
struct gw_http;
struct gw_exchange;

struct gw_http_limits {
    int connections;     /* open at a time; one more gets 503 and is closed */
    size_t header_bytes; /* request line and headers with all that separates them; trailers once more */
    size_t body_bytes;
    size_t pending_bytes;   /* unsent output of a stream beyond which its client counts as stuck; with that much of
                               earlier replies unsent, further requests of the connection wait */
    int header_ms, body_ms; /* from the first byte of a request to the end of its head; between bytes of its body */
    int idle_ms;            /* before the first request (with the TLS handshake) and between requests */
    int stuck_ms;           /* output waits without one byte leaving */
};

struct gw_header {
    const char *name, *value;
};

struct gw_http_request {
    const char *method, *path, *query; /* path without query, not decoded; query may be "" */
    const struct gw_header *header;
    int n_headers;
    const char *body; /* NUL-terminated behind len bytes */
    size_t len;
    const char *peer; /* numeric address */
    bool loopback;    /* peer is on this machine */
    bool http_1_0;
};

enum gw_gone { GW_GONE_CLIENT, GW_GONE_STUCK };

struct gw_http_handler {
    void *ctx;
    /* A complete request. Answers at once or later. */
    void (*request)(void *ctx, struct gw_exchange *x);
    /* The server refuses a request (malformed, too large, too slow): answer with this status and a body that says so.
     */
    void (*refuse)(void *ctx, struct gw_exchange *x, int status, const char *reason);
    /* The client went away before the exchange was ended; x is dead after this call. */
    void (*gone)(void *ctx, struct gw_exchange *x, enum gw_gone why);
};

/* Counters since start; connections and unsent: as of now. */
struct gw_http_stats {
    int connections;
    uint64_t accepted, refused_connections; /* the latter beyond the limit */
    uint64_t requests, refused;             /* complete requests, and those that the server refused itself */
    uint64_t gone, stuck;                   /* exchanges whose client went away, or did not read */
    uint64_t bytes_in, bytes_out;           /* without those of TLS itself */
    uint64_t unsent;                        /* bytes that wait for their clients now */
};

/* base must outlive it. Ignores SIGPIPE for the process, unless the process has its own handler. */
int gw_http_new(struct event_base *base, const struct gw_http_limits *limits, const struct gw_http_handler *handler,
                struct gw_http **out, struct cfg_error *err);
/* Closes everything at once; exchanges in progress are reported gone. */
void gw_http_free(struct gw_http *h);
/* host: numeric address or name (its first address that can be bound); port 0: any free one. tls may be NULL and must
 * outlive the connections. *bound receives the port. */
int gw_http_listen(struct gw_http *h, const char *host, int port, struct ssl_ctx_st *tls, int *bound,
                   struct cfg_error *err);
/* No new connections; idle ones are closed, busy ones when their exchange ends. */
void gw_http_stop_listening(struct gw_http *h);
void gw_http_stat(const struct gw_http *h, struct gw_http_stats *out);

/* A server certificate with its chain, and its key, in PEM files. */
int gw_http_tls_new(const char *cert_file, const char *key_file, struct ssl_ctx_st **out, struct cfg_error *err);
void gw_http_tls_free(struct ssl_ctx_st *tls);
/* Connections that are accepted from now on use this certificate, on every address that was given one; those that are
 * open keep theirs, and what belongs to it. */
void gw_http_set_tls(struct gw_http *h, struct ssl_ctx_st *tls);
/* The certificate's last moment, "2027-01-31T23:59:59Z". */
void gw_http_tls_until(struct ssl_ctx_st *tls, char out[32]);

const struct gw_http_request *gw_exchange_request(const struct gw_exchange *x);
/* The body, NUL-terminated; the caller frees it with free(), and the request has none any more. NULL: out of memory. */
char *gw_exchange_take_body(struct gw_exchange *x, size_t *len);
/* Case-insensitive; NULL when absent. */
const char *gw_exchange_header(const struct gw_exchange *x, const char *name);
/* The handler's own pointer. */
void gw_exchange_set_user(struct gw_exchange *x, void *user);
void *gw_exchange_user(const struct gw_exchange *x);

/* A whole reply; ends the exchange. type may be NULL. headers: n more header lines. */
void gw_exchange_reply(struct gw_exchange *x, int status, const char *type, const struct gw_header *headers, int n,
                       const void *body, size_t len);
/* A reply in pieces: chunked for HTTP/1.1, until close for 1.0. */
void gw_exchange_begin(struct gw_exchange *x, int status, const char *type, const struct gw_header *headers, int n);
void gw_exchange_write(struct gw_exchange *x, const void *data, size_t len);
void gw_exchange_end(struct gw_exchange *x);
/* Ends the exchange, begun or not, without its proper end: the client sees that it was cut off. */
void gw_exchange_abort(struct gw_exchange *x);
bool gw_exchange_begun(const struct gw_exchange *x);
/* Bytes accepted for sending that have not left yet. */
size_t gw_exchange_pending(const struct gw_exchange *x);

const char *gw_http_reason(int status);

#endif
