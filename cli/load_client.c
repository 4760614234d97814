/* Implementation of cli/load_client.h: a state machine per connection under one epoll loop. */
#include "cli/load_client.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1 << 20, EVENTS = 256, READ_BYTES = 65536, FETCH_MAX = 64 << 20, FETCH_SECONDS = 30 };

double load_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- lists ---- */

void load_list_add(struct load_list *l, double v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        double *more = realloc(l->v, cap * sizeof *more);
        if (!more) {
            l->failed = true;
            return;
        }
        l->v = more;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double load_list_quantile(struct load_list *l, double q)
{
    if (!l->n)
        return NAN;
    qsort(l->v, l->n, sizeof *l->v, compare);
    double rank = ceil(q * (double)l->n);
    size_t i = rank < 1 ? 0 : (size_t)rank - 1;
    return l->v[i < l->n ? i : l->n - 1];
}

/* ---- where to ---- */

int load_target_set(struct load_target *out, const char *url, struct cfg_error *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const char *at = url + 7;
    if (strncasecmp(url, "http://", 7))
        return cfg_error_set(err, EINVAL, "%s: give http://HOST:PORT; load is put on plain HTTP only", url);
    size_t n = strcspn(at, "/");
    const char *colon = memrchr(at, ':', n);
    if (colon && memchr(colon, ']', n - (size_t)(colon - at)))
        colon = NULL;
    size_t host = colon ? (size_t)(colon - at) : n;
    if (host > 2 && at[0] == '[' && at[host - 1] == ']') {
        at++;
        host -= 2;
    }
    if (!host || host >= sizeof out->host)
        return cfg_error_set(err, EINVAL, "%s: no host name in it", url);
    memcpy(out->host, at, host);
    out->host[host] = 0;
    snprintf(out->port, sizeof out->port, "%.*s", colon ? (int)strcspn(colon + 1, "/") : 2, colon ? colon + 1 : "80");
    int r = getaddrinfo(out->host, out->port, &hints, &out->address);
    if (r)
        return cfg_error_set(err, EADDRNOTAVAIL, "%s: %s", url, gai_strerror(r));
    return 0;
}

void load_target_clear(struct load_target *t)
{
    if (t->address)
        freeaddrinfo(t->address);
    t->address = NULL;
}

static char *request_text(const struct load_target *t, const char *method, const char *path, const char *json,
                          size_t *len)
{
    char *text = NULL;
    int n = asprintf(&text,
                     "%s %s HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n%s%s%s%sContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     method, path, t->host, t->port, t->key ? "Authorization: Bearer " : "", t->key ? t->key : "",
                     t->key ? "\r\n" : "", t->trace ? "X-Weft-Trace: 1\r\n" : "", json ? strlen(json) : 0,
                     json ? json : "");
    *len = n < 0 ? 0 : (size_t)n;
    return n < 0 ? NULL : text;
}

static int open_socket(const struct load_target *t, int flags)
{
    int fd = socket(t->address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (connect(fd, t->address->ai_addr, t->address->ai_addrlen) && errno != EINPROGRESS) {
        int e = errno;
        close(fd);
        return -e;
    }
    return fd;
}

/* ---- one connection ---- */

enum state { SENDING, HEAD, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE, DONE };

/* A line as far as it has come. */
struct line {
    char *text;
    size_t n, cap;
};

struct link {
    int fd, index;
    struct load_sample *sample;
    struct load_run *run;
    char *request;
    size_t sent, len;
    enum state state;
    bool chunked;
    size_t left;             /* of the chunk */
    double made;             /* time stamp of the token that comes next; 0: none */
    struct line frame, body; /* of the head and of the chunk form; of the stream */
};

static bool line_add(struct line *l, char ch)
{
    if (l->n + 1 >= l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        char *more = cap > LINE_MAX_BYTES ? NULL : realloc(l->text, cap);
        if (!more)
            return false;
        l->text = more;
        l->cap = cap;
    }
    l->text[l->n++] = ch;
    l->text[l->n] = 0;
    return true;
}

static void line_clear(struct line *l)
{
    l->n = 0;
    if (l->text)
        l->text[0] = 0;
}

static double timing_of(const char *header, const char *name)
{
    const char *at = strstr(header, name);
    double ms;
    return at && sscanf(at + strlen(name), ";dur=%lf", &ms) == 1 ? 1e-3 * ms : -1;
}

/* queue;dur=1.2, prefill;dur=3.4, in ms. */
static void take_timing(struct link *c, const char *text)
{
    c->sample->queue = timing_of(text, "queue");
    c->sample->prefill = timing_of(text, "prefill");
}

static void head_line(struct link *c)
{
    if (!strncmp(c->frame.text, "HTTP/1.", 7))
        sscanf(c->frame.text + 8, " %d", &c->sample->status);
    else if (!strncasecmp(c->frame.text, "transfer-encoding: chunked", 26))
        c->chunked = true;
    else if (!strncasecmp(c->frame.text, "server-timing:", 14))
        take_timing(c, c->frame.text);
}

static int number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? (int)strtol(at + strlen(name), NULL, 10) : -1;
}

/* A piece of text arrived. */
static void take_piece(struct link *c, double now)
{
    struct load_sample *s = c->sample;
    if (c->made > 0)
        load_list_add(s->first > 0 ? &c->run->delivery : &c->run->first_delivery, now - c->made);
    c->made = 0;
    if (s->first > 0)
        load_list_add(&c->run->gap, now - s->last);
    else
        s->first = now;
    s->last = now;
}

static void body_line(struct link *c, double now)
{
    const char *line = c->body.text ? c->body.text : "";
    long long ns;
    if (sscanf(line, ": made %lld", &ns) == 1)
        c->made = 1e-9 * (double)ns;
    if (!strncmp(line, ": Server-Timing: ", 17)) /* of a stream that began before its prompt's turn came */
        take_timing(c, line);
    if (strncmp(line, "data: ", 6))
        return;
    line += 6;
    if (!strncmp(line, "[DONE]", 6)) {
        c->sample->whole = true;
        return;
    }
    int output = number_behind(line, "\"completion_tokens\":");
    if (output >= 0) {
        c->sample->output_tokens = output;
        c->sample->prompt_tokens = number_behind(line, "\"prompt_tokens\":");
    }
    const char *text = strstr(line, "\"text\":\"");
    if (text && text[8] != '"')
        take_piece(c, now);
}

static void body_byte(struct link *c, char ch, double now)
{
    if (ch == '\n') {
        body_line(c, now);
        line_clear(&c->body);
    } else if (ch != '\r' && !line_add(&c->body, ch)) {
        c->state = DONE;
    }
}

/* A line of the head or of the chunk form has ended. */
static void frame_line(struct link *c)
{
    const char *line = c->frame.text ? c->frame.text : "";
    switch (c->state) {
    case HEAD:
        if (c->frame.n)
            head_line(c);
        else
            c->state = c->chunked ? CHUNK_SIZE : UNTIL_CLOSE;
        break;
    case CHUNK_SIZE:
        c->left = strtoul(line, NULL, 16);
        c->state = c->left ? CHUNK : TRAILER;
        break;
    case CHUNK_END:
        c->state = CHUNK_SIZE;
        break;
    default: /* TRAILER */
        if (!c->frame.n)
            c->state = DONE;
        break;
    }
    line_clear(&c->frame);
}

static void take(struct link *c, const char *data, size_t n, double now)
{
    for (size_t i = 0; i < n && c->state != DONE; i++) {
        if (c->state == UNTIL_CLOSE) {
            body_byte(c, data[i], now);
        } else if (c->state == CHUNK) {
            body_byte(c, data[i], now);
            if (--c->left == 0 && c->state != DONE)
                c->state = CHUNK_END;
        } else if (data[i] == '\n') {
            frame_line(c);
        } else if (data[i] != '\r' && !line_add(&c->frame, data[i])) {
            c->state = DONE;
        }
    }
}

/* Goes on with a connection; false: it has ended. */
static bool turn(struct link *c, int epoll)
{
    char data[READ_BYTES];
    if (c->state == SENDING) {
        ssize_t n = send(c->fd, c->request + c->sent, c->len - c->sent, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        c->sent += (size_t)n;
        if (c->sent == c->len) {
            c->state = HEAD;
            struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
            epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
        }
        return true;
    }
    ssize_t n = recv(c->fd, data, sizeof data, 0);
    double now = load_now();
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    take(c, data, (size_t)n, now);
    return c->state != DONE;
}

/* ---- a run ---- */

struct loop {
    const struct load_target *target;
    const struct load_plan *plan;
    struct load_run *run;
    struct link **link; /* [requests] those that are open */
    int epoll, begun, done, open;
};

static void link_free(struct link *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->request);
    free(c->frame.text);
    free(c->body.text);
    free(c);
}

static void finish(struct loop *l, struct link *c)
{
    c->sample->end = load_now();
    l->link[c->index] = NULL;
    link_free(c);
    l->open--;
    l->done++;
    if (l->plan->progress)
        l->plan->progress(l->plan->ctx, l->done);
}

static int begin(struct loop *l)
{
    struct link *c = calloc(1, sizeof *c);
    struct load_sample *s = &l->run->sample[l->begun];
    if (!c)
        return -ENOMEM;
    *s = (struct load_sample){.start = load_now(), .queue = -1, .prefill = -1};
    c->sample = s;
    c->run = l->run;
    c->index = l->begun;
    l->link[l->begun] = c;
    c->request = request_text(l->target, "POST", "/v1/completions", l->plan->body[l->begun], &c->len);
    l->begun++;
    l->open++;
    c->fd = c->request ? open_socket(l->target, SOCK_NONBLOCK) : -1;
    struct epoll_event e = {.events = EPOLLOUT, .data.ptr = c};
    if (c->fd < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &e))
        finish(l, c);
    return 0;
}

/* Begins what is due; how many ms until the next one is, at most. */
static int begin_due(struct loop *l, int *status)
{
    const struct load_plan *p = l->plan;
    while (l->begun < p->requests && !*status) {
        if (p->concurrency ? l->open >= p->concurrency : l->run->began + p->arrival[l->begun] > load_now())
            break;
        *status = begin(l);
    }
    if (p->concurrency || l->begun == p->requests)
        return 1000;
    double left = 1e3 * (l->run->began + p->arrival[l->begun] - load_now());
    return left > 1000 ? 1000 : left > 0 ? (int)ceil(left) : 0;
}

int load_run(const struct load_target *t, const struct load_plan *plan, struct load_run *out, struct cfg_error *err)
{
    struct epoll_event event[EVENTS];
    struct loop l = {
        .target = t, .plan = plan, .run = out, .link = calloc((size_t)plan->requests, sizeof(struct link *))};
    int status = 0;
    *out = (struct load_run){.sample = calloc((size_t)plan->requests, sizeof *out->sample), .began = load_now()};
    l.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!out->sample || !l.link || l.epoll < 0)
        status = -ENOMEM;
    while (!status && l.done < plan->requests) {
        int wait = begin_due(&l, &status);
        int n = epoll_wait(l.epoll, event, EVENTS, wait);
        for (int i = 0; i < n; i++)
            if (!turn(event[i].data.ptr, l.epoll))
                finish(&l, event[i].data.ptr);
        if (load_now() - out->began > plan->limit)
            status = -ETIMEDOUT;
    }
    out->ended = load_now();
    for (int i = 0; l.link && i < l.begun; i++)
        if (l.link[i])
            link_free(l.link[i]);
    free(l.link);
    if (l.epoll >= 0)
        close(l.epoll);
    if (status == -ETIMEDOUT)
        return cfg_error_set(err, ETIMEDOUT,
                             "%d of %d requests had ended after %.0f s; ask for fewer, or raise --limit", l.done,
                             plan->requests, plan->limit);
    return status ? cfg_error_set(err, -status, "the load cannot be put on: %s", strerror(-status)) : 0;
}

void load_run_free(struct load_run *r)
{
    free(r->sample);
    free(r->gap.v);
    free(r->first_delivery.v);
    free(r->delivery.v);
    *r = (struct load_run){0};
}

/* ---- one whole answer ---- */

/* Chunks put together, in place. */
static void join_chunks(char *body)
{
    char *to = body, *at = body, *end;
    for (;;) {
        size_t n = strtoul(at, &end, 16);
        char *data = strstr(end, "\r\n");
        if (!n || !data || strlen(data + 2) < n)
            break;
        memmove(to, data + 2, n);
        to += n;
        at = data + 2 + n + 2;
    }
    *to = 0;
}

int load_fetch(const struct load_target *t, const char *method, const char *path, const char *json, char **body,
               struct cfg_error *err)
{
    size_t len, n = 0, cap = READ_BYTES;
    char *text = request_text(t, method, path, json, &len), *in = malloc(cap + 1);
    int fd = text && in ? open_socket(t, 0) : -ENOMEM, status = fd < 0 ? fd : 0;
    *body = NULL;
    if (!status) {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){FETCH_SECONDS, 0}, sizeof(struct timeval));
        if (send(fd, text, len, MSG_NOSIGNAL) != (ssize_t)len)
            status = -EIO;
    }
    for (ssize_t k = 1; !status && k > 0;) {
        k = recv(fd, in + n, cap - n, 0);
        if (k < 0)
            status = -errno;
        n += k > 0 ? (size_t)k : 0;
        char *more = n == cap && cap < FETCH_MAX ? realloc(in, 2 * cap + 1) : in;
        if (!more || (n == cap && more == in && cap >= FETCH_MAX))
            status = -ENOMEM;
        else if (n == cap)
            cap *= 2;
        in = more ? more : in;
    }
    if (fd >= 0)
        close(fd);
    free(text);
    if (in)
        in[n] = 0;
    char *blank = !status ? strstr(in, "\r\n\r\n") : NULL;
    int code = 0;
    if (!status && (!blank || sscanf(in, "HTTP/1.%*c %d", &code) != 1))
        status = -EPROTO;
    if (status) {
        free(in);
        return cfg_error_set(err, -status, "%s:%s%s: %s; is a server running there?", t->host, t->port, path,
                             strerror(-status));
    }
    *blank = 0;
    bool chunked = strcasestr(in, "transfer-encoding: chunked");
    *body = strdup(blank + 4);
    if (*body && chunked)
        join_chunks(*body);
    free(in);
    return *body ? code : cfg_error_set(err, ENOMEM, "out of memory");
}
