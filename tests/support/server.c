/* Implementation of tests/support/server.h. */
#include "tests/support/server.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/process.h"

enum { DEADLINE_MS = 120000 };

static const char base_config[] =
    "%snodes = ({ name = \"local\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\", \"kv\"];\n"
    "           listen = \"127.0.0.1:%d\"; });\n%s";

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- the process ---- */

static bool read_port(struct ts_server *s)
{
    char line[256];
    size_t n = 0;
    long end = now_ms() + DEADLINE_MS;
    while (n + 1 < sizeof line) {
        struct pollfd p = {s->out, POLLIN, 0};
        if (poll(&p, 1, (int)(end - now_ms() > 0 ? end - now_ms() : 0)) <= 0 || read(s->out, line + n, 1) != 1)
            return false;
        if (line[n++] == '\n')
            break;
    }
    line[n] = 0;
    const char *colon = strrchr(line, ':');
    s->port = colon ? atoi(colon + 1) : 0;
    return s->port > 0;
}

static bool launch(struct ts_server *s, const char *program)
{
    int out[2];
    char conf[4200], log[4200];
    snprintf(conf, sizeof conf, "%s/weft.conf", s->dir);
    snprintf(log, sizeof log, "%s/log", s->dir);
    if (pipe2(out, O_CLOEXEC))
        return false;
    s->pid = fork();
    if (s->pid == 0) {
        int err = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600), null = open("/dev/null", O_RDONLY);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(null, 0);
        dup2(out[1], 1);
        dup2(err, 2);
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        execl(program, program, "serve", conf, NULL);
        _exit(127);
    }
    close(out[1]);
    s->out = out[0];
    return s->pid > 0 && read_port(s);
}

static bool write_config(struct ts_server *s, int port, const char *config)
{
    char *text = NULL, *path = NULL;
    const char *model = strstr(config, "model = ") ? "" : "model = { path = \"samples/tiny\"; name = \"tiny\"; };\n";
    if (asprintf(&text, base_config, model, port, config) < 0)
        return false;
    path = ts_write_file(s->dir, "weft.conf", text);
    free(text);
    bool ok = path != NULL;
    free(path);
    return ok;
}

void ts_server_start(struct ts_server *s, const char *program, const char *config)
{
    *s = (struct ts_server){.out = -1};
    if (access("samples/tiny/model.safetensors", R_OK) && access("samples/tiny/config.json", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    s->dir = ts_temp_dir();
    cr_assert(s->dir && write_config(s, 0, config), "no temporary folder");
    if (!launch(s, program ? program : ts_weft())) {
        char *log = ts_server_log(s);
        printf("%s\n", log ? log : "");
        free(log);
        ts_server_free(s);
        cr_assert_fail("the server did not start");
    }
}

bool ts_server_again(struct ts_server *s, const char *program, int port)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/weft.conf", s->dir);
    char *text = ts_read_file(path, NULL), *at = text ? strstr(text, "listen = \"127.0.0.1:") : NULL;
    bool ok = false;
    char *rest = at ? strstr(at, "\"; })") : NULL, *all = NULL;
    if (rest && asprintf(&all, "%.*slisten = \"127.0.0.1:%d%s", (int)(at - text), text, port, rest) > 0) {
        char *written = ts_write_file(s->dir, "weft.conf", all);
        ok = written != NULL;
        free(written);
    }
    free(all);
    free(text);
    if (s->out >= 0)
        close(s->out);
    return ok && launch(s, program ? program : ts_weft());
}

int ts_server_wait(struct ts_server *s)
{
    int status;
    long end = now_ms() + DEADLINE_MS;
    while (waitpid(s->pid, &status, WNOHANG) == 0) {
        if (now_ms() > end)
            return -1;
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    s->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ts_server_free(struct ts_server *s)
{
    if (s->pid > 0) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
    }
    if (s->out >= 0)
        close(s->out);
    if (s->dir)
        ts_remove_dir(s->dir);
    free(s->dir);
    *s = (struct ts_server){.out = -1};
}

char *ts_server_log(const struct ts_server *s)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/log", s->dir);
    return ts_read_file(path, NULL);
}

void ts_server_wait_log(const struct ts_server *s, const char *text)
{
    bool found = false;
    for (long end = now_ms() + DEADLINE_MS; !found;) {
        char *log = ts_server_log(s);
        found = log && strstr(log, text);
        if (!found && now_ms() > end)
            cr_assert_fail("the log never says \"%s\":\n%s", text, log ? log : "");
        free(log);
        if (!found)
            nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

int ts_server_fds(const struct ts_server *s)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)s->pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

void ts_until_fds(const struct ts_server *s, int n)
{
    long end = now_ms() + DEADLINE_MS;
    int have;
    while ((have = ts_server_fds(s)) != n) {
        if (now_ms() > end)
            cr_assert_fail("%d file descriptors do not become %d", have, n);
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
}

/* ---- bytes ---- */

int ts_connect(int port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

bool ts_send_request(int fd, const char *method, const char *path, const char *body)
{
    char *text = NULL;
    size_t len = body ? strlen(body) : 0;
    int n = asprintf(&text,
                     "%s %s HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     method, path, len, body ? body : "");
    bool ok = n > 0;
    for (int at = 0; ok && at < n;) {
        ssize_t w = send(fd, text + at, (size_t)(n - at), MSG_NOSIGNAL);
        ok = w > 0;
        at += ok ? (int)w : 0;
    }
    free(text);
    return ok;
}

static void flow_add(struct ts_flow *f)
{
    if (f->cap - f->len < 16385) {
        f->cap = f->cap ? f->cap * 2 : 32768;
        f->data = realloc(f->data, f->cap);
        if (!f->data)
            abort();
    }
    ssize_t n = recv(f->fd, f->data + f->len, f->cap - f->len - 1, MSG_DONTWAIT);
    if (n > 0)
        f->len += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        f->ended = true;
    f->data[f->len] = 0;
}

static const char *header_value(const char *head, const char *name)
{
    const char *at = strcasestr(head, name);
    return at ? at + strlen(name) : NULL;
}

/* Takes data apart. Returns whether the answer is complete. */
static bool parse(const char *data, size_t len, bool ended, struct ts_reply *r)
{
    const char *split = data ? strstr(data, "\r\n\r\n") : NULL;
    if (!split)
        return false;
    r->head = strndup(data, (size_t)(split + 4 - data));
    r->status = !strncmp(data, "HTTP/1.", 7) ? atoi(data + 9) : 0;
    r->body = malloc(len + 1);
    if (!r->head || !r->body)
        abort();
    const char *at = split + 4, *end = data + len, *length = header_value(r->head, "\r\nContent-Length:");
    bool whole = false;
    if (header_value(r->head, "\r\nTransfer-Encoding: chunked")) {
        for (;;) {
            char *digits;
            unsigned long n = strtoul(at, &digits, 16);
            if (digits == at || digits + 2 > end)
                break;
            if (!n) {
                whole = digits + 4 <= end;
                break;
            }
            at = digits + 2;
            size_t have = (size_t)(end - at) < n ? (size_t)(end - at) : n;
            memcpy(r->body + r->len, at, have);
            r->len += have;
            if (have < n || end - at < (long)n + 2)
                break;
            at += n + 2;
        }
    } else {
        r->len = (size_t)(end - at);
        memcpy(r->body, at, r->len);
        whole = length ? r->len >= (size_t)atol(length) : ended;
    }
    r->body[r->len] = 0;
    r->whole = whole;
    return whole;
}

void ts_reply_free(struct ts_reply *r)
{
    free(r->head);
    free(r->body);
    *r = (struct ts_reply){0};
}

struct ts_reply ts_read_reply(int fd)
{
    struct ts_flow f = {.fd = fd};
    struct ts_reply r = {0};
    long end = now_ms() + DEADLINE_MS;
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 1000) > 0)
            flow_add(&f);
        ts_reply_free(&r);
        if (parse(f.data, f.len, f.ended, &r) || f.ended || now_ms() > end)
            break;
    }
    free(f.data);
    if (!r.body)
        r.body = calloc(1, 1);
    if (!r.head)
        r.head = calloc(1, 1);
    return r;
}

bool ts_read_until(int fd, const char *text)
{
    struct ts_flow f = {.fd = fd};
    long end = now_ms() + DEADLINE_MS;
    bool found = false;
    while (!found && !f.ended && now_ms() < end) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 1000) > 0)
            flow_add(&f);
        found = f.data && strstr(f.data, text);
    }
    free(f.data);
    return found;
}

static struct ts_reply once(const struct ts_server *s, const char *method, const char *path, const char *body)
{
    int fd = ts_connect(s->port);
    struct ts_reply r = {0};
    if (fd >= 0 && ts_send_request(fd, method, path, body))
        r = ts_read_reply(fd);
    else {
        r.head = calloc(1, 1);
        r.body = calloc(1, 1);
    }
    if (fd >= 0)
        close(fd);
    return r;
}

struct ts_reply ts_get(const struct ts_server *s, const char *path)
{
    return once(s, "GET", path, NULL);
}

struct ts_reply ts_post(const struct ts_server *s, const char *path, const char *body)
{
    return once(s, "POST", path, body);
}

struct ts_reply ts_postf(const struct ts_server *s, const char *path, const char *fmt, ...)
{
    char *body = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&body, fmt, ap) < 0)
        abort();
    va_end(ap);
    struct ts_reply r = ts_post(s, path, body);
    free(body);
    return r;
}

double ts_metric(const struct ts_server *s, const char *name)
{
    struct ts_reply r = ts_get(s, "/metrics");
    double v = NAN;
    size_t n = strlen(name);
    for (const char *at = r.body; (at = strstr(at, name)); at += n)
        if ((at == r.body || at[-1] == '\n') && at[n] == ' ')
            v = strtod(at + n, NULL);
    ts_reply_free(&r);
    return v;
}

void ts_until_metric(const struct ts_server *s, const char *name, double value)
{
    long end = now_ms() + DEADLINE_MS;
    double v;
    while ((v = ts_metric(s, name)) != value) { // NOLINT: equality is meant
        if (now_ms() > end || v != v)
            cr_assert_fail("%s is %g and does not become %g", name, v, value);
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
}

/* ---- many at a time ---- */

bool ts_flow_open(struct ts_flow *f, int port, const char *path, const char *body)
{
    *f = (struct ts_flow){.fd = ts_connect(port)};
    f->ended = f->fd < 0;
    return f->fd >= 0 && ts_send_request(f->fd, "POST", path, body);
}

int ts_flows_turn(struct ts_flow *f, int n, int ms)
{
    struct pollfd *p = calloc((size_t)n + 1, sizeof *p);
    int open = 0;
    for (int i = 0; i < n; i++)
        p[i] = (struct pollfd){f[i].ended ? -1 : f[i].fd, POLLIN, 0};
    poll(p, (nfds_t)n, ms);
    for (int i = 0; i < n; i++) {
        if (p[i].revents) {
            flow_add(&f[i]);
            const char *tail = f[i].len >= 5 ? f[i].data + f[i].len - 5 : "";
            if (!strcmp(tail, "0\r\n\r\n"))
                f[i].ended = true;
            struct ts_reply r = {0};
            if (!f[i].ended && !strcasestr(f[i].data, "\r\nTransfer-Encoding: chunked") &&
                parse(f[i].data, f[i].len, false, &r))
                f[i].ended = true;
            ts_reply_free(&r);
        }
        open += !f[i].ended;
    }
    free(p);
    return open;
}

char *ts_flow_body(const struct ts_flow *f)
{
    struct ts_reply r = {0};
    parse(f->data, f->len, f->ended, &r);
    free(r.head);
    return r.body ? r.body : calloc(1, 1);
}

int ts_flow_status(const struct ts_flow *f)
{
    return f->data && !strncmp(f->data, "HTTP/1.", 7) ? atoi(f->data + 9) : 0;
}

void ts_flow_close(struct ts_flow *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->data);
    *f = (struct ts_flow){.fd = -1, .ended = true};
}

/* ---- threads ---- */

static pid_t thread_named(const struct ts_server *s, const char *name)
{
    char path[64];
    pid_t found = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)s->pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        char *comm = NULL, *text = NULL;
        if (asprintf(&comm, "%s/%.20s/comm", path, e->d_name) > 0)
            text = ts_read_file(comm, NULL);
        if (text && !strncmp(text, name, strlen(name)))
            found = (pid_t)atoi(e->d_name);
        free(comm);
        free(text);
    }
    if (d)
        closedir(d);
    return found;
}

pid_t ts_server_hold(const struct ts_server *s, const char *name)
{
    pid_t thread = thread_named(s, name);
    cr_assert_gt(thread, 0, "the server has no thread %s", name);
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) || ptrace(PTRACE_INTERRUPT, thread, 0, 0))
        return 0;
    cr_assert_eq(waitpid(thread, NULL, __WALL), thread);
    return thread;
}

bool ts_server_let_go(pid_t thread)
{
    return ptrace(PTRACE_DETACH, thread, 0, 0) == 0;
}
