#include "actors/gateway/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { HELD_MOST = 4 << 20, END_S = 2 };

/* A line, or the file in which the lines behind it go on. */
struct item {
    struct item *next;
    int file; /* -1: a line */
    size_t len;
    char text[];
};

struct gw_trace {
    char *path;
    uint64_t salt;
    int64_t first; /* ns; 0: nothing yet */
    int block_tokens;
    size_t block_bytes;
    pthread_t writer;
    /* under lock, which is held over no call that waits */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct act_log *log; /* NULL: none, or the trace has been left by its owner */
    struct item *queue, **queue_end;
    size_t held; /* bytes in the queue */
    uint64_t lost;
    bool failing, stop, ended, left;
    /* the writer's */
    int file;
    bool half; /* the file ends with a part of a line that could not be taken back */
};

/* ---- the writer ---- */

/* All of the line or, as far as the file can be cut, nothing of it. 0, or a negative errno. */
static int write_line(struct gw_trace *t, const struct item *x)
{
    struct stat st;
    const bool regular = !fstat(t->file, &st) && S_ISREG(st.st_mode);
    size_t done = 0;
    int r = 0;
    if (t->half && write(t->file, "\n", 1) == 1)
        t->half = false;
    if (t->half)
        return -errno;
    while (done < x->len && !r) {
        ssize_t n = write(t->file, x->text + done, x->len - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            r = n == 0 ? -EIO : -errno;
    }
    if (r && done)
        t->half = !regular || ftruncate(t->file, st.st_size);
    return r;
}

/* Said once when lines begin to be lost, and once when all that came after that are written. */
static void note(struct gw_trace *t, bool lost, const char *why)
{
    t->lost += lost;
    if (lost && !t->failing)
        act_log_event(t->log, ACT_LOG_ERROR, "gateway", 0, "trace_lines_lost", "reason=%s", why);
    else if (!lost && t->failing && !t->queue)
        act_log_event(t->log, ACT_LOG_INFO, "gateway", 0, "trace_goes_on", "lost=%llu", (unsigned long long)t->lost);
    t->failing = lost || (t->failing && t->queue);
}

static const char *reason(int error)
{
    return error == ENOSPC ? "no_space" : error == EDQUOT ? "quota" : error == EFBIG ? "file_too_big" : "write_failed";
}

static void trace_release(struct gw_trace *t)
{
    while (t->queue) {
        struct item *x = t->queue;
        t->queue = x->next;
        if (x->file >= 0)
            close(x->file);
        free(x);
    }
    if (t->file >= 0)
        close(t->file);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t->path);
    free(t);
}

static void *writer_main(void *arg)
{
    struct gw_trace *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        struct item *x = t->queue;
        if (!x && t->stop)
            break;
        if (!x) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        t->queue = x->next;
        if (!x->next)
            t->queue_end = &t->queue;
        t->held -= x->len;
        pthread_mutex_unlock(&t->lock);
        int r = 0;
        if (x->file >= 0) {
            close(t->file);
            t->file = x->file;
            t->half = false;
        } else {
            r = write_line(t, x);
        }
        pthread_mutex_lock(&t->lock);
        if (x->file < 0)
            note(t, r != 0, reason(-r));
        free(x);
    }
    t->ended = true;
    bool left = t->left;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (left)
        trace_release(t);
    return NULL;
}

static void hand_over(struct gw_trace *t, struct item *x)
{
    pthread_mutex_lock(&t->lock);
    if (x->file < 0 && t->held + x->len > HELD_MOST) {
        note(t, true, "too_slow");
        pthread_mutex_unlock(&t->lock);
        free(x);
        return;
    }
    x->next = NULL;
    t->held += x->len;
    *t->queue_end = x;
    t->queue_end = &x->next;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* ---- the io worker's side ---- */

static int open_file(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
}

int gw_trace_open(const char *path, int block_tokens, size_t block_bytes, struct act_log *log, struct gw_trace **out,
                  struct cfg_error *err)
{
    struct gw_trace *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return cfg_error_set(err, ENOMEM, "trace: out of memory");
    *t = (struct gw_trace){
        .path = strdup(path), .block_tokens = block_tokens, .block_bytes = block_bytes, .log = log, .file = -1};
    t->queue_end = &t->queue;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    t->file = open_file(path);
    int e = t->file < 0 ? errno : t->path ? 0 : ENOMEM;
    if (!e)
        e = pthread_create(&t->writer, NULL, writer_main, t);
    if (e) {
        trace_release(t);
        return cfg_error_set(err, e, "%s: %s; log.trace names a file that can be written", path, strerror(e));
    }
    while (getrandom(&t->salt, sizeof t->salt, 0) != (ssize_t)sizeof t->salt)
        ;
    *out = t;
    return 0;
}

void gw_trace_add(struct gw_trace *t, int64_t now_ns, int prompt, int output, const struct kv_key *chain, int n_chain)
{
    enum { HEAD = 192, BLOCK = 20 };
    if (!t)
        return;
    int blocks = 0;
    while (blocks + 1 < n_chain && (blocks + 1) * t->block_tokens <= prompt)
        blocks++;
    size_t room = HEAD + (size_t)blocks * BLOCK;
    struct item *x = malloc(sizeof *x + room);
    if (!x) {
        pthread_mutex_lock(&t->lock);
        note(t, true, "out_of_memory");
        pthread_mutex_unlock(&t->lock);
        return;
    }
    t->first = t->first ? t->first : now_ns;
    *x = (struct item){.file = -1};
    size_t n = (size_t)snprintf(
        x->text, room, "{\"t\":%.6f,\"prompt\":%d,\"output\":%d,\"block_tokens\":%d,\"block_bytes\":%zu,\"blocks\":[",
        1e-9 * (double)(now_ns - t->first), prompt, output, t->block_tokens, t->block_bytes);
    for (int i = 1; i <= blocks; i++)
        n += (size_t)snprintf(x->text + n, room - n, "%s\"%016" PRIx64 "\"", i > 1 ? "," : "",
                              XXH3_64bits_withSeed(&chain[i], sizeof chain[i], t->salt));
    n += (size_t)snprintf(x->text + n, room - n, "]}\n");
    x->len = n;
    hand_over(t, x);
}

int gw_trace_reopen(struct gw_trace *t, struct cfg_error *err)
{
    if (!t)
        return 0;
    int file = open_file(t->path);
    struct item *x = file < 0 ? NULL : malloc(sizeof *x);
    if (!x) {
        int e = file < 0 ? errno : ENOMEM;
        if (file >= 0)
            close(file);
        return cfg_error_set(err, e, "%s: %s; the trace goes on in the file that was open", t->path, strerror(e));
    }
    *x = (struct item){.file = file};
    hand_over(t, x);
    return 0;
}

uint64_t gw_trace_lost(struct gw_trace *t)
{
    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    uint64_t n = t->lost;
    pthread_mutex_unlock(&t->lock);
    return n;
}

void gw_trace_free(struct gw_trace *t)
{
    struct timespec until;
    if (!t)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += END_S;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->changed);
    while (!t->ended && pthread_cond_timedwait(&t->changed, &t->lock, &until) == 0)
        ;
    t->log = NULL;
    t->left = !t->ended;
    const bool left = t->left;
    const pthread_t writer = t->writer;
    pthread_mutex_unlock(&t->lock);
    if (left) { /* its file hangs: the writer frees the rest when it ends, or the process does */
        pthread_detach(writer);
        return;
    }
    pthread_join(writer, NULL);
    trace_release(t);
}
