/* A running `weft serve` for a test, and a plain HTTP client for it. One thread. Everything waits for events with long
 * deadlines; none of the functions sleeps for a fixed time. A server dies with the test that started it. */
#ifndef WEFT_TESTS_SUPPORT_SERVER_H
#define WEFT_TESTS_SUPPORT_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "tests/support/less.h"

struct ts_server {
    pid_t pid; /* 0: not running */
    int port;
    int out;   /* its standard output */
    char *dir; /* temporary folder with weft.conf and log */
};

/* What a test's configuration adds to a small one for samples/tiny: further groups, or another model
 * group.
 * program: NULL means the weft program. Ends the test when the server does not come up; skips it without samples/tiny.
 */
void ts_server_start(struct ts_server *s, const char *program, const char *config);
/* Starts it again in the same folder on the given port. False: it did not come up. */
bool ts_server_again(struct ts_server *s, const char *program, int port);
/* Waits for its end: exit status, 128 + signal, or -1 when it does not end. */
int ts_server_wait(struct ts_server *s);
/* SIGKILL, if it still runs, and removal of the folder. */
void ts_server_free(struct ts_server *s);
/* What it has written to standard error; freed by the caller. */
char *ts_server_log(const struct ts_server *s);
/* Waits until that, which is written in the background, has the text; ends the test when it does not come to that. */
void ts_server_wait_log(const struct ts_server *s, const char *text);

/* Stops the server's thread of this name where it is, and lets it go on. The thread, 0: not allowed here (the caller
 * skips its test). No thread of this name ends the test. */
pid_t ts_server_hold(const struct ts_server *s, const char *name);
bool ts_server_let_go(pid_t thread);

/* An answer, as far as it was read. body is zero-terminated, chunks are put together. */
struct ts_reply {
    int status; /* 0: no head came */
    char *head;
    char *body;
    size_t len;
    bool whole; /* the end was seen; false: cut off, or the deadline passed */
};

int ts_connect(int port); /* -1: refused */
bool ts_send_request(int fd, const char *method, const char *path, const char *body);
/* Reads one answer to its end. The connection stays open. */
struct ts_reply ts_read_reply(int fd);
/* Reads until the answer's body holds `text` (false: it ended or the deadline passed before). Not followed by
 * ts_read_reply. */
bool ts_read_until(int fd, const char *text);
void ts_reply_free(struct ts_reply *r);

/* One request on a connection of its own. */
struct ts_reply ts_get(const struct ts_server *s, const char *path);
struct ts_reply ts_post(const struct ts_server *s, const char *path, const char *body);
struct ts_reply ts_postf(const struct ts_server *s, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A series of /metrics by its whole name with labels; NAN when it is not there. */
double ts_metric(const struct ts_server *s, const char *name);
/* Waits until the series has this value; ends the test when it does not come to that. */
void ts_until_metric(const struct ts_server *s, const char *name, double value);
/* Entries of /proc/PID/fd. */
int ts_server_fds(const struct ts_server *s);
/* Waits until there are n entries; ends the test when it does not come to that. */
void ts_until_fds(const struct ts_server *s, int n);

/* Many answers at a time: open connections whose bytes are collected as they come. */
struct ts_flow {
    int fd; /* -1: ended */
    char *data;
    size_t len, cap;
    bool ended; /* the server closed it or the answer is complete */
};

bool ts_flow_open(struct ts_flow *f, int port, const char *path, const char *body);
/* Waits at most ms for bytes on any of them and takes them. Returns how many are still open. */
int ts_flows_turn(struct ts_flow *f, int n, int ms);
/* Body of what came, chunks put together; freed by the caller. */
char *ts_flow_body(const struct ts_flow *f);
int ts_flow_status(const struct ts_flow *f);
void ts_flow_close(struct ts_flow *f);

#endif
