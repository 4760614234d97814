/* Anchors of `weft bench transport` (bench_transport.h). Each starts and ends processes of its own. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/bench_transport.h"

enum { TRIES = 20, TRY_US = 250000, LIMIT_S = 40 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- sockets ------------------------------------------------------------------------------------------------- */

static bool move(int fd, char *bytes, int size, bool out)
{
    for (int done = 0; done < size;) {
        ssize_t n = out ? send(fd, bytes + done, (size_t)(size - done), MSG_NOSIGNAL)
                        : recv(fd, bytes + done, (size_t)(size - done), 0);
        if (n <= 0)
            return false;
        done += (int)n;
    }
    return true;
}

/* The other process: sends back what comes (echo), or takes it and answers once at the end. */
static void other_end(int listener, int size, int count, bool echo)
{
    char *bytes = malloc((size_t)size);
    int fd = accept(listener, NULL, NULL);
    if (!bytes || fd < 0)
        _exit(1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    for (int i = 0; i < count; i++)
        if (!move(fd, bytes, size, false) || (echo && !move(fd, bytes, size, true)))
            break;
    if (!echo)
        move(fd, bytes, 1, true);
    _exit(0);
}

static int connect_other(int size, int count, bool echo, pid_t *pid)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = -1;
    *pid = -1;
    if (listener >= 0 && bind(listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 1) == 0 &&
        getsockname(listener, (struct sockaddr *)&a, &len) == 0)
        *pid = fork();
    if (*pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        other_end(listener, size, count, echo);
    }
    if (*pid > 0) {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a)) {
            close(fd);
            fd = -1;
        }
    }
    if (listener >= 0)
        close(listener);
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

static void end_other(int fd, pid_t pid)
{
    if (fd >= 0)
        close(fd);
    if (pid > 0)
        waitpid(pid, NULL, 0);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_anchor_tcp_latency(int size, int n)
{
    pid_t pid;
    char *bytes = calloc(1, (size_t)size);
    double *took = malloc((size_t)n * sizeof *took), answer = NAN;
    int fd = bytes && took ? connect_other(size, n, true, &pid) : -1, i = 0;
    for (; fd >= 0 && i < n; i++) {
        double start = now_s();
        if (!move(fd, bytes, size, true) || !move(fd, bytes, size, false))
            break;
        took[i] = now_s() - start;
    }
    if (fd >= 0)
        end_other(fd, pid);
    if (i == n && n > 0) {
        qsort(took, (size_t)n, sizeof *took, compare);
        answer = took[n / 2] / 2 * 1e6;
    }
    free(bytes);
    free(took);
    return answer;
}

double cli_anchor_tcp_bandwidth(int size, int count)
{
    pid_t pid;
    char *bytes = calloc(1, (size_t)size);
    int fd = bytes ? connect_other(size, count, false, &pid) : -1, i = 0;
    double start = now_s();
    while (fd >= 0 && i < count && move(fd, bytes, size, true))
        i++;
    bool whole = fd >= 0 && i == count && move(fd, bytes, 1, false);
    double took = now_s() - start;
    if (fd >= 0)
        end_other(fd, pid);
    free(bytes);
    return whole ? (double)size * count / took / (1 << 20) : NAN;
}

double cli_anchor_copy_bandwidth(int size, int64_t bytes)
{
    enum { SPAN = 8 << 20 };
    size_t span = SPAN > 2 * size ? SPAN : 2 * (size_t)size;
    char *from = calloc(2, span), *to = from + span;
    if (!from)
        return NAN;
    memset(from, 1, 2 * span);
    double start = now_s();
    size_t at = 0;
    for (int64_t done = 0; done < bytes; done += size, at = at + 2 * (size_t)size <= span ? at + (size_t)size : 0) {
        memcpy(to + at, from + at, (size_t)size);
        __asm__ volatile("" ::: "memory");
    }
    double took = now_s() - start;
    free(from);
    return (double)bytes / took / (1 << 20);
}

/* ---- perftest -------------------------------------------------------------------------------------------------- */

static pid_t spawn(char *const argv[], int out)
{
    pid_t pid = fork();
    if (pid == 0) {
        int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(LIMIT_S); /* outlives exec and ends it */
        dup2(nowhere, 0);
        dup2(out >= 0 ? out : nowhere, 1);
        dup2(nowhere, 2);
        execvp(argv[0], argv);
        _exit(127);
    }
    return pid;
}

/* Runs the client until the server is there. *text gets what it printed. */
static bool run_client(char *const argv[], char *text, size_t size)
{
    int fd[2], status = -1;
    size_t have = 0;
    if (pipe(fd))
        return false;
    pid_t pid = spawn(argv, fd[1]);
    close(fd[1]);
    for (ssize_t n; have + 1 < size && (n = read(fd[0], text + have, size - 1 - have)) > 0;)
        have += (size_t)n;
    text[have] = 0;
    close(fd[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The column of the line that begins with the size, counted from 0. */
static double column(const char *text, int size, int index)
{
    char want[32];
    snprintf(want, sizeof want, "%d", size);
    for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL) {
        char copy[512];
        snprintf(copy, sizeof copy, "%.*s", (int)strcspn(line, "\n"), line);
        char *save, *word = strtok_r(copy, " \t", &save);
        if (!word || strcmp(word, want) != 0)
            continue;
        for (int i = 0; i < index && word; i++)
            word = strtok_r(NULL, " \t", &save);
        return word ? strtod(word, NULL) : NAN;
    }
    return NAN;
}

static double perftest(const char *program, const struct cli_rdma_place place[2], int size, int n, bool events,
                       int index)
{
    char gid[2][16], bytes[16], count[16], text[8192] = "";
    snprintf(gid[0], sizeof gid[0], "%d", place[0].gid);
    snprintf(gid[1], sizeof gid[1], "%d", place[1].gid);
    snprintf(bytes, sizeof bytes, "%d", size);
    snprintf(count, sizeof count, "%d", n);
#define COMMON(i)                                                                                                      \
    (char *)(uintptr_t)program, "-F", "-d", (char *)(uintptr_t)place[i].device, "-x", gid[i], "-s", bytes, "-n",       \
        count, events ? "-e" : "-F"
    char *server[] = {COMMON(1), NULL}, *client[] = {COMMON(0), (char *)(uintptr_t)place[1].address, NULL};
    pid_t pid = spawn(server, -1);
    bool ok = false, alive = pid > 0;
    for (int i = 0; i < TRIES && alive && !ok; i++) {
        usleep(TRY_US);
        ok = run_client(client, text, sizeof text);
        alive = ok || waitpid(pid, NULL, WNOHANG) == 0;
    }
    if (alive) {
        if (!ok)
            kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return ok ? column(text, size, index) : NAN;
}

double cli_anchor_rdma_latency(const struct cli_rdma_place place[2], int size, int n, bool events)
{
    return perftest("ib_send_lat", place, size, n, events, 4);
}

double cli_anchor_rdma_bandwidth(const struct cli_rdma_place place[2], int size, int count)
{
    return perftest("ib_write_bw", place, size, count, false, 3);
}
