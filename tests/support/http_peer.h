/* An HTTP server under test and its clients on one event loop, for the suites of actors/gateway.
 *
 * Nothing sleeps: a test says what it waits for and the loop runs until that is so, or until it has waited for so long
 * that the test fails. One thread; one server at a time. */
#ifndef WEFT_TESTS_HTTP_PEER_H
#define WEFT_TESTS_HTTP_PEER_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>

#include "actors/gateway/http.h"

enum { HTTP_HELD = 1100 };

/* The server's handler answers by path:
 *   /hold       keeps the exchange in held[]
 *   /stream     begins a reply and keeps it
 *   /big/N      N bytes
 *   others      one line "METHOD path?query n_headers body-length body" */
struct http_server {
    struct event_base *base;
    struct gw_http *http;
    int port;
    struct gw_exchange *held[HTTP_HELD]; /* NULL after it went */
    int n_held;
    int requests, refusals, gone;
    int last_status; /* of a refusal */
    char last_reason[200];
    enum gw_gone why;  /* of the last one gone */
    bool unknown_gone; /* gone was called for an exchange that was not in progress */
    bool late;         /* a wait took too long */
    struct event *guard;
};

struct http_client {
    struct http_server *server;
    int fd;
    struct event *readable;
    char *data; /* received, NUL-terminated */
    size_t len, cap;
    bool eof, reset;
};

/* Limits that no test reaches by accident. */
struct gw_http_limits http_limits(void);
void http_server_start(struct http_server *s, const struct gw_http_limits *limits, struct ssl_ctx_st *tls);
void http_server_stop(struct http_server *s);
struct gw_http_stats http_stats(const struct http_server *s);
/* One turn of the loop; false after too long a wait. */
bool http_step(struct http_server *s);
#define HTTP_WAIT(server, condition)                                                                                   \
    do {                                                                                                               \
        while (!(condition))                                                                                           \
            cr_assert(http_step(server), "waited too long for " #condition);                                           \
    } while (0)

void http_client_open(struct http_client *c, struct http_server *s);
/* Runs the loop while the socket takes no more. Stops early when the server closed. */
void http_client_send(struct http_client *c, const void *data, size_t len);
void http_client_puts(struct http_client *c, const char *text);
/* Received text is kept but not read from the socket while stopped. */
void http_client_stop_reading(struct http_client *c);
/* reset: with a TCP reset instead of an orderly end. */
void http_client_close(struct http_client *c, bool reset);
/* Complete "HTTP/1.1 nnn" status lines so far, and how often a text was received. */
int http_client_count(const struct http_client *c, const char *text);
/* Without Date lines, so that two replies can be compared. */
void http_client_drop_dates(struct http_client *c);

#endif
