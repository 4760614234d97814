/* Implementation of tests/support/process.h: child processes with pipes and a deadline, and temporary files. */
#define _GNU_SOURCE
#include "tests/support/process.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct sink {
    char *data;
    size_t len, cap;
    int fd; /* -1: ended */
};

static void sink_read(struct sink *s)
{
    if (s->cap - s->len < 4097) {
        size_t cap = s->cap ? s->cap * 2 : 16384;
        char *data = realloc(s->data, cap);
        if (!data)
            abort();
        s->data = data;
        s->cap = cap;
    }
    ssize_t n = read(s->fd, s->data + s->len, s->cap - s->len - 1);
    if (n > 0) {
        s->len += (size_t)n;
    } else if (n == 0 || errno != EINTR) {
        close(s->fd);
        s->fd = -1;
    }
    s->data[s->len] = 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A file that holds the input: the child may read it or not, and no pipe has to be fed. */
static int input_fd(const char *input)
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    size_t len = input ? strlen(input) : 0;
    if (fd >= 0 && len && write(fd, input, len) != (ssize_t)len) {
        close(fd);
        return -1;
    }
    if (fd >= 0)
        lseek(fd, 0, SEEK_SET);
    return fd;
}

static void collect(struct sink *out, struct sink *err, double end)
{
    while (out->fd >= 0 || err->fd >= 0) {
        struct pollfd p[2] = {{out->fd, POLLIN, 0}, {err->fd, POLLIN, 0}};
        double left = end - now();
        if (left <= 0)
            return;
        if (poll(p, 2, (int)(left * 1000) + 1) <= 0)
            continue;
        if (p[0].revents)
            sink_read(out);
        if (p[1].revents)
            sink_read(err);
    }
}

static int reap(pid_t pid, double end)
{
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (now() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct ts_result ts_run_argv(const char *input, const char *const argv[])
{
    struct sink out = {.fd = -1}, err = {.fd = -1};
    struct ts_result r = {.status = -1};
    int po[2] = {-1, -1}, pe[2] = {-1, -1}, in = input_fd(input);
    char *args[TS_ARGS_MAX + 1];
    int n = 0;
    for (; argv[n] && n < TS_ARGS_MAX; n++)
        args[n] = strdup(argv[n]);
    args[n] = NULL;
    if (n > 0 && in >= 0 && pipe2(po, O_CLOEXEC) == 0 && pipe2(pe, O_CLOEXEC) == 0) {
        pid_t pid = fork();
        if (pid == 0) {
            dup2(in, 0);
            dup2(po[1], 1);
            dup2(pe[1], 2);
            execvp(args[0], args);
            dprintf(2, "%s: %s\n", args[0], strerror(errno));
            _exit(127);
        }
        close(po[1]);
        close(pe[1]);
        out.fd = po[0];
        err.fd = pe[0];
        double end = now() + TS_DEADLINE_S;
        if (pid > 0) {
            collect(&out, &err, end);
            r.status = reap(pid, end);
        }
    }
    for (int i = 0; i < 2; i++)
        if (i == 0 ? out.fd >= 0 : err.fd >= 0)
            close(i == 0 ? out.fd : err.fd);
    if (in >= 0)
        close(in);
    for (int i = 0; i < n; i++)
        free(args[i]);
    r.out = out.data ? out.data : calloc(1, 1);
    r.err = err.data ? err.data : calloc(1, 1);
    r.out_len = out.len;
    r.err_len = err.len;
    return r;
}

void ts_result_free(struct ts_result *r)
{
    free(r->out);
    free(r->err);
    *r = (struct ts_result){0};
}

const char *ts_weft(void)
{
    const char *path = getenv("WEFT_BIN");
    return path && *path ? path : "build/weft";
}

const char *ts_program(const char *name)
{
    static _Thread_local char path[4096];
    const char *weft = ts_weft();
    const char *slash = strrchr(weft, '/');
    snprintf(path, sizeof path, "%.*s/%s", slash ? (int)(slash - weft) : 1, slash ? weft : ".", name);
    return path;
}

char *ts_temp_dir(void)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;
    if (asprintf(&path, "%s/weft-test-XXXXXX", base && *base ? base : "/tmp") < 0)
        return NULL;
    if (!mkdtemp(path)) {
        free(path);
        return NULL;
    }
    return path;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    return remove(path);
}

void ts_remove_dir(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

char *ts_write_file(const char *dir, const char *name, const char *text)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return NULL;
    FILE *f = fopen(path, "wb");
    bool ok = f && fputs(text, f) >= 0;
    if (f)
        ok = fclose(f) == 0 && ok;
    if (!ok) {
        free(path);
        return NULL;
    }
    return path;
}

char *ts_read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    size_t cap = 16384, n = 0;
    char *data = malloc(cap);
    while (data) {
        n += fread(data + n, 1, cap - n - 1, f);
        if (n < cap - 1)
            break;
        char *more = realloc(data, cap *= 2);
        if (!more)
            free(data);
        data = more;
    }
    if (data && ferror(f)) {
        free(data);
        data = NULL;
    }
    fclose(f);
    if (!data)
        return NULL;
    data[n] = 0;
    if (len)
        *len = n;
    return data;
}
