/* Implementation of log.h. Owns the rings and the writer thread. */
#define _GNU_SOURCE
#include "actors/runtime/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RINGS = 65, RING_RECORDS = 256, WRITE_EVERY_MS = 20 };

struct record {
    int64_t wall;
    uint64_t request;
    const char *who, *event; /* event: NULL, or text is fields */
    enum act_log_level level;
    char text[ACT_LOG_TEXT_MAX];
};

/* A ring with one writer (its thread, or under the lock for the last one) and one reader (the log's thread). */
struct ring {
    _Atomic uint64_t put, taken; /* counts; put by the owner, taken by the reader */
    struct record record[RING_RECORDS];
};

struct act_log {
    struct act_log_config config;
    uint64_t id; /* of all logs of the process; tells a thread's ring of an older log from one of this */
    FILE *file;
    pthread_mutex_t lock; /* the file, the shared ring, the condition */
    pthread_cond_t more;
    pthread_t thread;
    bool threaded, closing, reopen;
    _Atomic int rings; /* taken so far */
    _Atomic uint64_t dropped;
    uint64_t told; /* of dropped, how many the file says */
    _Atomic(struct ring *) ring[RINGS];
};

static _Atomic uint64_t logs;
static _Thread_local struct {
    uint64_t log;
    struct ring *ring; /* NULL: the shared one */
} mine;

static const char *const level_name[] = {"error", "warning", "info", "debug"};

static int64_t wall(const struct act_log *log)
{
    if (log->config.wall)
        return log->config.wall(log->config.wall_ctx);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void print_json_bytes(FILE *f, const char *s, size_t n)
{
    fputc('"', f);
    for (const char *end = s + n; s < end; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

static void print_json_text(FILE *f, const char *s)
{
    print_json_bytes(f, s, strlen(s));
}

/* Whether these n bytes are a number as JSON writes one. */
static bool is_number(const char *s, size_t n)
{
    size_t i = n && s[0] == '-', digits = strspn(s + i, "0123456789"), more = 0;
    if (!digits || (digits > 1 && s[i] == '0'))
        return false;
    i += digits;
    if (i < n && s[i] == '.') {
        more = strspn(s + i + 1, "0123456789");
        if (!more)
            return false;
        i += 1 + more;
    }
    return i == n;
}

/* "key=value key=value" as members of the object at hand; a word without = is left out. */
static void print_fields(FILE *f, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, " ");
        const char *eq = memchr(text, '=', n);
        if (eq && eq > text) {
            size_t key = (size_t)(eq - text);
            fputc(',', f);
            print_json_bytes(f, text, key);
            fputc(':', f);
            if (is_number(eq + 1, n - key - 1))
                fwrite(eq + 1, 1, n - key - 1, f);
            else
                print_json_bytes(f, eq + 1, n - key - 1);
        }
        text += n;
        text += strspn(text, " ");
    }
}

static void print(const struct act_log *log, const struct record *r)
{
    char when[40];
    struct tm tm;
    time_t s = (time_t)(r->wall / 1000000000);
    gmtime_r(&s, &tm);
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof when - n, ".%06dZ", (int)(r->wall % 1000000000 / 1000));
    FILE *f = log->file;
    if (!log->config.json) {
        fprintf(f, "%s %-7s %s", when, level_name[r->level], r->who);
        if (r->request)
            fprintf(f, " %016llx", (unsigned long long)r->request);
        fprintf(f, ": %s%s", r->event ? r->event : "", r->event && r->text[0] ? " " : "");
        for (const char *p = r->text; *p; p++)
            fputc((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p, f);
        fputc('\n', f);
        return;
    }
    fprintf(f, "{\"time\":\"%s\",\"level\":\"%s\",\"who\":", when, level_name[r->level]);
    print_json_text(f, r->who);
    if (r->request)
        fprintf(f, ",\"request\":\"%016llx\"", (unsigned long long)r->request);
    fputs(r->event ? ",\"event\":" : ",\"message\":", f);
    print_json_text(f, r->event ? r->event : r->text);
    if (r->event)
        print_fields(f, r->text);
    fputs("}\n", f);
}

/* ---- the writer ------------------------------------------------------------------------------ */

static void drain(struct act_log *log)
{
    for (int i = 0; i < RINGS; i++) {
        /* Acquire: the ring was zeroed. Partner: own_ring. */
        struct ring *r = atomic_load_explicit(&log->ring[i], memory_order_acquire);
        if (!r)
            continue;
        /* Relaxed: only this thread writes it. Acquire: the records; partner is put_record. */
        uint64_t at = atomic_load_explicit(&r->taken, memory_order_relaxed);
        uint64_t end = atomic_load_explicit(&r->put, memory_order_acquire);
        for (; at != end; at++)
            print(log, &r->record[at % RING_RECORDS]);
        /* Release: they were read. Partner: put_record. */
        atomic_store_explicit(&r->taken, at, memory_order_release);
    }
    uint64_t dropped = act_log_dropped(log);
    if (dropped != log->told) {
        struct record r = {.wall = wall(log), .who = "log", .level = ACT_LOG_WARNING};
        snprintf(r.text, sizeof r.text, "%llu records were lost: they came faster than they could be written",
                 (unsigned long long)(dropped - log->told));
        print(log, &r);
        log->told = dropped;
    }
    fflush(log->file);
}

static void open_again(struct act_log *log)
{
    if (!log->config.path)
        return;
    FILE *f = fopen(log->config.path, "ae");
    if (!f) /* the old file is better than none */
        return;
    fclose(log->file);
    log->file = f;
}

static void *writer(void *arg)
{
    struct act_log *log = arg;
    pthread_mutex_lock(&log->lock);
    while (!log->closing) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += WRITE_EVERY_MS * 1000000L;
        if (t.tv_nsec >= 1000000000L) {
            t.tv_sec++;
            t.tv_nsec -= 1000000000L;
        }
        pthread_cond_timedwait(&log->more, &log->lock, &t);
        bool reopen = log->reopen;
        log->reopen = false;
        pthread_mutex_unlock(&log->lock);
        drain(log);
        if (reopen)
            open_again(log);
        pthread_mutex_lock(&log->lock);
    }
    pthread_mutex_unlock(&log->lock);
    return NULL;
}

/* ---- writing a record ------------------------------------------------------------------------ */

/* This thread's ring; NULL: it has none, the shared one is to be used. */
static struct ring *own_ring(struct act_log *log)
{
    if (mine.log == log->id)
        return mine.ring;
    mine.log = log->id;
    mine.ring = NULL;
    /* Relaxed: only numbers are given out. */
    int i = atomic_load_explicit(&log->rings, memory_order_relaxed);
    while (i < RINGS - 1 &&
           !atomic_compare_exchange_weak_explicit(&log->rings, &i, i + 1, memory_order_relaxed, memory_order_relaxed))
        ;
    if (i < RINGS - 1 && (mine.ring = calloc(1, sizeof *mine.ring)))
        /* Release: the ring is zeroed. Partner: drain. */
        atomic_store_explicit(&log->ring[i], mine.ring, memory_order_release);
    return mine.ring;
}

static bool put_record(struct ring *r, const struct record *x)
{
    /* Relaxed: only the owner writes it. Acquire: the slot was read; partner is drain. */
    uint64_t at = atomic_load_explicit(&r->put, memory_order_relaxed);
    if (at - atomic_load_explicit(&r->taken, memory_order_acquire) >= RING_RECORDS)
        return false;
    r->record[at % RING_RECORDS] = *x;
    /* Release: the record. Partner: drain. */
    atomic_store_explicit(&r->put, at + 1, memory_order_release);
    return true;
}

bool act_log_on(const struct act_log *log, enum act_log_level level)
{
    return log && level <= log->config.level;
}

static void put(struct act_log *log, const struct record *x)
{
    if (log->config.direct) {
        pthread_mutex_lock(&log->lock);
        print(log, x);
        fflush(log->file);
        pthread_mutex_unlock(&log->lock);
        return;
    }
    struct ring *r = own_ring(log);
    bool ok;
    if (r) {
        ok = put_record(r, x);
    } else {
        pthread_mutex_lock(&log->lock);
        /* Relaxed: made in act_log_open. */
        ok = put_record(atomic_load_explicit(&log->ring[RINGS - 1], memory_order_relaxed), x);
        pthread_mutex_unlock(&log->lock);
    }
    if (!ok)
        /* Relaxed: a count. */
        atomic_fetch_add_explicit(&log->dropped, 1, memory_order_relaxed);
}

void act_log_write(struct act_log *log, enum act_log_level level, const char *who, uint64_t request, const char *fmt,
                   ...)
{
    if (!act_log_on(log, level))
        return;
    struct record x = {.wall = wall(log), .request = request, .who = who, .level = level};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x.text, sizeof x.text, fmt, ap);
    va_end(ap);
    put(log, &x);
}

void act_log_event(struct act_log *log, enum act_log_level level, const char *who, uint64_t request, const char *event,
                   const char *fmt, ...)
{
    if (!act_log_on(log, level))
        return;
    struct record x = {.wall = wall(log), .request = request, .who = who, .event = event, .level = level};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x.text, sizeof x.text, fmt, ap);
    va_end(ap);
    put(log, &x);
}

/* ---- opening and closing --------------------------------------------------------------------- */

int act_log_open(const struct act_log_config *config, struct act_log **out, struct cfg_error *err)
{
    *out = NULL;
    struct act_log *log = calloc(1, sizeof *log);
    struct ring *shared = calloc(1, sizeof *shared);
    if (!log || !shared) {
        free(log);
        free(shared);
        return cfg_error_set(err, ENOMEM, "no memory for the log");
    }
    log->config = *config;
    /* Relaxed: a number. */
    log->id = atomic_fetch_add_explicit(&logs, 1, memory_order_relaxed) + 1;
    atomic_init(&log->ring[RINGS - 1], shared);
    pthread_mutex_init(&log->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&log->more, &attr);
    pthread_condattr_destroy(&attr);
    log->file = config->path ? fopen(config->path, "ae") : stderr;
    int rc = log->file ? 0 : errno;
    if (rc)
        cfg_error_set(err, rc, "cannot write the log %s: %s", config->path, strerror(rc));
    if (!rc && !config->direct) {
        rc = pthread_create(&log->thread, NULL, writer, log);
        if (rc)
            cfg_error_set(err, rc, "cannot start the log's writer: %s", strerror(rc));
        log->threaded = rc == 0;
    }
    if (rc) {
        act_log_close(log);
        return -rc;
    }
    *out = log;
    return 0;
}

void act_log_close(struct act_log *log)
{
    if (!log)
        return;
    if (log->threaded) {
        pthread_mutex_lock(&log->lock);
        log->closing = true;
        pthread_cond_signal(&log->more);
        pthread_mutex_unlock(&log->lock);
        pthread_join(log->thread, NULL);
    }
    if (log->file) {
        drain(log);
        if (log->config.path)
            fclose(log->file);
    }
    for (int i = 0; i < RINGS; i++)
        /* Relaxed: no thread uses the log any more. */
        free(atomic_load_explicit(&log->ring[i], memory_order_relaxed));
    pthread_cond_destroy(&log->more);
    pthread_mutex_destroy(&log->lock);
    free(log);
}

void act_log_reopen(struct act_log *log)
{
    pthread_mutex_lock(&log->lock);
    if (log->config.direct)
        open_again(log);
    else
        log->reopen = true;
    pthread_cond_signal(&log->more);
    pthread_mutex_unlock(&log->lock);
}

uint64_t act_log_dropped(const struct act_log *log)
{
    /* Relaxed: a count. */
    return atomic_load_explicit(&log->dropped, memory_order_relaxed);
}

const char *act_reason_name(int reason)
{
    switch (-reason) {
    case 0:
        return "ordinary";
    case EAGAIN:
        return "no_room";
    case ENOMEM:
        return "no_memory";
    case E2BIG:
        return "too_large";
    case ECANCELED:
        return "cancelled";
    case ESHUTDOWN:
        return "draining";
    case EHOSTDOWN:
        return "ended";
    case ETIMEDOUT:
        return "silent";
    case ECONNRESET:
    case ENOTCONN:
        return "connection_lost";
    case ESTALE:
        return "restarted";
    case ENOLINK:
        return "experts_missing";
    case EBADMSG:
    case EPROTO:
    case EINVAL:
        return "not_understood";
    default: {
        const char *name = strerrorname_np(reason < 0 ? -reason : reason);
        return name ? name : "unknown";
    }
    }
}
