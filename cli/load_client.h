/* A client that puts load on a server: many streamed completions at a time over plain sockets, each on a connection of
 * its own, with the time of everything that arrives. One thread; times are seconds of CLOCK_MONOTONIC. */
#ifndef WEFT_CLI_LOAD_CLIENT_H
#define WEFT_CLI_LOAD_CLIENT_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/error.h"

struct load_target {
    char host[256], port[8];
    const char *key; /* API key, NULL: none */
    bool trace;      /* ask for time stamps of tokens */
    struct addrinfo *address;
};

/* A growing list of numbers. failed: out of memory, values are missing. */
struct load_list {
    double *v;
    size_t n, cap;
    bool failed;
};

/* What became of one request. */
struct load_sample {
    double start, first, last, end; /* sent, first and last text, end of the answer; 0: did not come */
    double queue, prefill;          /* the server's own figures, s; negative: not given */
    int status;                     /* HTTP status; 0: the connection failed or was cut off */
    int prompt_tokens, output_tokens;
    bool whole;
};

struct load_run {
    struct load_sample *sample; /* [requests] */
    struct load_list gap;       /* between pieces of text of one stream */
    struct load_list first_delivery,
        delivery; /* from a token's making to its arrival here; the latter: behind the first */
    double began, ended;
};

struct load_plan {
    int requests;
    int concurrency;         /* closed loop: this many at a time; 0: open loop */
    const double *arrival;   /* open loop: [requests] seconds from the beginning, ascending */
    const char *const *body; /* [requests] JSON of /v1/completions with "stream": true */
    double limit;            /* seconds after which the run is given up */
    void (*progress)(void *ctx, int done);
    void *ctx;
};

/* "http://HOST[:PORT]" into out->host and port, looked up. */
int load_target_set(struct load_target *out, const char *url, struct cfg_error *err);
void load_target_clear(struct load_target *t);

/* One whole answer. *body is freed by the caller, also on errors (may be NULL). Returns the HTTP status or a negative
 * errno. */
int load_fetch(const struct load_target *t, const char *method, const char *path, const char *json, char **body,
               struct cfg_error *err);

/* 0 when every request has ended, well or not; -ETIMEDOUT beyond the limit. *out is released with load_run_free. */
int load_run(const struct load_target *t, const struct load_plan *plan, struct load_run *out, struct cfg_error *err);
void load_run_free(struct load_run *r);

double load_now(void);
void load_list_add(struct load_list *l, double v);
/* Sorts it and gives the value below which the share q of it lies (nearest rank); NAN when it is empty. */
double load_list_quantile(struct load_list *l, double q);

#endif
