#include "cli/supervisor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/stale.h"
#include "transport/providers.h"

enum {
    PAUSE_MIN_MS = 500,
    PAUSE_MAX_MS = 30000,
    STEADY_MS = 60000, /* a node that has run for so long begins again at once as if it never failed */
    KILL_MS = 5000,    /* beyond the limit of a drain */
    TURN_MS = 200,
    TAIL_LINES = 10,
    ASK_NS = 1000000000,
};

int64_t sup_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void say(struct supervisor *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct supervisor *s, const char *fmt, ...)
{
    va_list ap;
    if (s->stamped) {
        char text[32];
        time_t now = time(NULL);
        struct tm tm;
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
        fprintf(s->say, "%s ", text);
    }
    va_start(ap, fmt);
    vfprintf(s->say, fmt, ap);
    va_end(ap);
    fputc('\n', s->say);
    fflush(s->say);
}

/* The last lines that a node wrote since it began. */
static void say_tail(struct supervisor *s, const struct sup_node *n, int lines)
{
    char path[RUN_PATH_TEXT], text[8192];
    run_dir_path(s->dir, n->what.name, ".log", path);
    FILE *f = fopen(path, "re");
    long size = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    long from = size - (long)sizeof text + 1 > n->log_at ? size - (long)sizeof text + 1 : n->log_at;
    size_t len = size > from && fseek(f, from, SEEK_SET) == 0 ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    while (len && text[len - 1] == '\n')
        len--;
    text[len] = 0;
    if (!len) {
        say(s, "    (%s has nothing of it)", path);
        return;
    }
    const char *at = text + len;
    for (int k = 0; at > text && k < lines; at--)
        k += at[-1] == '\n';
    at += at > text ? 1 : 0;
    say(s, "    %s:", path);
    for (char *line = strtok((char *)(uintptr_t)at, "\n"); line; line = strtok(NULL, "\n"))
        say(s, "    %s", line);
}

static const char *end_text(int end, char out[128])
{
    if (WIFSIGNALED(end))
        snprintf(out, 128, "signal %d, %s", WTERMSIG(end), strsignal(WTERMSIG(end)));
    else
        snprintf(out, 128, "exit status %d", WEXITSTATUS(end));
    return out;
}

/* ---- one process ---- */

static void become(const struct supervisor *s, const struct sup_node *n, int out, int err)
{
    const char *args[64] = {"weft", "serve", "--node", n->what.name};
    int k = 4;
    for (int i = 0; s->more && s->more[i] && k < 62; i++)
        args[k++] = s->more[i];
    args[k++] = s->file;
    sigset_t none;
    sigemptyset(&none);
    sigaddset(&none, SIGHUP); /* until it takes it; else one that comes early would end it */
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
    dup2(out, 1);
    dup2(err, 2);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(s->program, (char *const *)(uintptr_t)args);
    dprintf(2, "weft: %s: %s\n", s->program, strerror(errno));
    _exit(127);
}

/* Its state becomes SUP_STARTING; or SUP_ENDED with the reason said. */
static void begin(struct supervisor *s, struct sup_node *n)
{
    char path[RUN_PATH_TEXT];
    int out[2] = {-1, -1};
    struct run_process who;
    struct cfg_error err = {"no process"};
    struct stat st;
    run_dir_path(s->dir, n->what.name, ".log", path);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), r = 0;
    if (log < 0 || pipe2(out, O_CLOEXEC))
        r = cfg_error_set(&err, errno, "%s: %s", path, strerror(errno));
    n->state = SUP_ENDED;
    n->end = CLI_FAILED << 8; /* as of waitpid, when there is no process at all */
    n->line_size = 0;
    n->told = false;
    n->log_at = log >= 0 && fstat(log, &st) == 0 ? (long)st.st_size : 0;
    n->began = sup_now_ms();
    n->pid = r ? -1 : fork();
    if (n->pid == 0)
        become(s, n, out[1], log);
    if (!r && n->pid < 0)
        r = cfg_error_set(&err, errno, "fork: %s", strerror(errno));
    if (log >= 0)
        close(log);
    if (out[1] >= 0)
        close(out[1]);
    if (!r)
        r = run_process_of(n->pid, &who);
    if (!r)
        r = run_file_write(s->dir, n->what.name, &who, &err);
    n->fd = r ? -1 : pidfd_open(n->pid, 0);
    if (!r && n->fd < 0)
        r = cfg_error_set(&err, errno, "pidfd_open: %s", strerror(errno));
    if (!r) {
        n->out = out[0];
        n->state = SUP_STARTING;
        return;
    }
    say(s, "node %s cannot be started: %s", n->what.name, err.msg);
    if (out[0] >= 0)
        close(out[0]);
    if (n->pid > 0) {
        kill(n->pid, SIGKILL);
        waitpid(n->pid, &n->end, 0);
    }
    n->pid = 0;
}

static void close_out(struct sup_node *n)
{
    if (n->out >= 0)
        close(n->out);
    n->out = -1;
}

/* Its first line: it accepts. */
static void read_out(struct sup_node *n)
{
    ssize_t k = read(n->out, n->line + n->line_size, sizeof n->line - 1 - n->line_size);
    if (k > 0)
        n->line_size += (size_t)k;
    n->line[n->line_size] = 0;
    char *end = strchr(n->line, '\n');
    if (!end && k > 0 && n->line_size < sizeof n->line - 1)
        return;
    close_out(n);
    if (!end)
        return; /* it has closed it: its end follows */
    *end = 0;
    n->state = SUP_RUNNING;
}

static void reap(struct supervisor *s, struct sup_node *n)
{
    if (n->pid <= 0 || waitpid(n->pid, &n->end, WNOHANG) != n->pid)
        return;
    run_file_remove(s->dir, n->what.name);
    close_out(n);
    close(n->fd);
    n->fd = -1;
    n->pid = 0;
    n->state = SUP_ENDED;
}

/* Waits for at most ms and takes what has come. The signal that the supervisor got, or 0. */
static int turn(struct supervisor *s, int ms)
{
    struct pollfd p[1 + 2 * CFG_NODES_MAX] = {{s->signals, POLLIN, 0}};
    struct signalfd_siginfo info;
    for (int i = 0; i < s->n; i++) {
        p[1 + 2 * i] = (struct pollfd){s->node[i].fd, POLLIN, 0};
        p[2 + 2 * i] = (struct pollfd){s->node[i].out, POLLIN, 0};
    }
    if (poll(p, (nfds_t)(1 + 2 * s->n), ms) < 0)
        return 0;
    for (int i = 0; i < s->n; i++) {
        if (p[2 + 2 * i].revents)
            read_out(&s->node[i]);
        if (p[1 + 2 * i].revents)
            reap(s, &s->node[i]);
    }
    return p[0].revents && read(s->signals, &info, sizeof info) == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

/* ---- the end ---- */

static int order_of(const struct cfg_node *n)
{
    return n->roles & CFG_ROLE_GATEWAY ? 0 : n->roles & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE) ? 1 : 2;
}

/* Once in the life of a process, as a second SIGTERM cuts off. The run folder remembers it for whoever ends the node
 * when this process is gone; where it cannot be written, that one may cut. */
static void tell(const char *dir, struct sup_node *n)
{
    struct run_process who;
    struct cfg_error err;
    if (n->told || pidfd_send_signal(n->fd, SIGTERM, NULL, 0))
        return;
    n->told = true;
    if (run_process_of(n->pid, &who))
        return;
    who.draining = true;
    run_file_write(dir, n->what.name, &who, &err);
}

static void tell_order(const struct sup_stop *t, int order)
{
    for (int i = 0; i < t->n; i++)
        if (t->node[i].fd >= 0 && order_of(&t->node[i].what) == order)
            tell(t->dir, &t->node[i]);
}

static void signal_order(const struct sup_stop *t, int order, int sig)
{
    for (int i = 0; i < t->n; i++)
        if (t->node[i].fd >= 0 && order_of(&t->node[i].what) == order)
            pidfd_send_signal(t->node[i].fd, sig, NULL, 0);
}

bool sup_stop_turn(struct sup_stop *t, int64_t now)
{
    int order = INT32_MAX;
    for (int i = 0; i < t->n; i++) {
        int o = order_of(&t->node[i].what);
        if (t->node[i].fd >= 0 && o < order)
            order = o;
    }
    if (order == INT32_MAX)
        return true;
    if (order != t->order) {
        tell_order(t, order);
        t->order = order;
        t->cut = t->killed = false;
        t->until = now + t->c->limits.drain_us / 1000 + KILL_MS;
    }
    if (t->now) {
        /* From the second one on it does not wait for requests; two at once may be taken for one, and after weft drain
         * the first one changes nothing. */
        t->until = t->cut ? t->until : now + KILL_MS;
        t->cut = true;
        signal_order(t, order, SIGTERM);
    }
    if (now >= t->until && !t->killed) {
        signal_order(t, order, SIGKILL);
        t->killed = true;
    }
    return false;
}

static bool was_cut_off(const struct sup_node *n)
{
    return WIFEXITED(n->end) && WEXITSTATUS(n->end) == CLI_CUT_OFF;
}

/* CLI_OK: every node ended by itself. */
static int stop(struct supervisor *s)
{
    struct sup_stop t = {.c = s->c, .dir = s->dir, .node = s->node, .n = s->n, .order = -1};
    bool killed = false;
    while (!sup_stop_turn(&t, sup_now_ms())) {
        int sig = turn(s, TURN_MS);
        t.now |= sig == SIGTERM || sig == SIGINT;
        killed |= t.killed;
    }
    for (int i = 0; i < s->n; i++)
        if (s->node[i].state == SUP_ENDED && was_cut_off(&s->node[i]))
            say(s, "node %s has ended; what still ran there was cut off", s->node[i].what.name);
    if (killed)
        say(s, "some nodes did not end in time and were killed");
    return killed ? CLI_FAILED : CLI_OK;
}

/* ---- the beginning ---- */

int sup_local(const struct cfg_config *c, int which[CFG_NODES_MAX], int *n_which, struct cfg_error *err)
{
    struct ifaddrs *all, *a;
    *n_which = 0;
    if (getifaddrs(&all))
        return cfg_error_set(err, errno, "the addresses of this machine: %s", strerror(errno));
    for (int i = 0; i < c->n_nodes; i++) {
        uint8_t want[16];
        struct cfg_error unknown; /* a name that has no address here is of another machine */
        bool here = c->n_nodes < 2;
        if (!here && tp_node_address(&c->nodes[i], want, &unknown) == 0) {
            here = tp_address_is_loopback(want);
            for (a = all; a && !here; a = a->ifa_next) {
                uint8_t own[16] = {[10] = 0xff, [11] = 0xff};
                if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET)
                    memcpy(own + 12, &((struct sockaddr_in *)(void *)a->ifa_addr)->sin_addr, 4);
                else if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET6)
                    memcpy(own, &((struct sockaddr_in6 *)(void *)a->ifa_addr)->sin6_addr, 16);
                else
                    continue;
                here = memcmp(own, want, 16) == 0;
            }
        }
        if (here)
            which[(*n_which)++] = i;
    }
    freeifaddrs(all);
    return *n_which ? 0
                    : cfg_error_set(err, ENOENT,
                                    "no node of the file has an address of this machine as its host; name those that "
                                    "are to run here with --node");
}

const struct cfg_node *sup_not_loopback(const struct cfg_config *c)
{
    for (int i = 0; i < c->n_nodes; i++) {
        uint8_t a[16];
        struct cfg_error unknown;
        if (tp_node_address(&c->nodes[i], a, &unknown) || !tp_address_is_loopback(a))
            return &c->nodes[i];
    }
    return NULL;
}

static bool is_here(const struct supervisor *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->node[i].what.name, name))
            return true;
    return false;
}

/* What the answers lack, in words; "": nothing that concerns this machine alone. lost: a gateway waits for nodes. */
static void judge(const struct supervisor *s, const struct cli_answer *a, char lacks[512], char lost[128])
{
    lacks[0] = lost[0] = 0;
    for (int i = 0; i < s->n && !lacks[0]; i++) {
        const char *name = s->node[i].what.name, *health = json_string_value(json_object_get(a[i].json, "health"));
        size_t k;
        json_t *p;
        if (a[i].status)
            snprintf(lacks, 512, "node %s: %.400s", name, a[i].why);
        else if (health && !strcmp(health, "lost"))
            snprintf(lost, 128, "%s", json_string_value(json_object_get(a[i].json, "lacks")));
        else if (!health || strcmp(health, "ok"))
            snprintf(lacks, 512, "node %s is %s", name, health ? health : "of another version");
        json_array_foreach (json_object_get(a[i].json, "peers"), k, p) {
            const char *other = json_string_value(json_object_get(p, "name"));
            if (!lacks[0] && other && is_here(s, other) && !json_is_true(json_object_get(p, "up")))
                snprintf(lacks, 512, "node %s is not connected to %s: %.300s", name, other,
                         json_string_value(json_object_get(p, "reason")));
        }
    }
    if (!lacks[0] && lost[0] && s->n == s->c->n_nodes)
        snprintf(lacks, 512, "a gateway finds no %s node", lost);
}

/* Whether the nodes have found each other. */
static bool have_settled(const struct supervisor *s, char lacks[512], char lost[128])
{
    static struct cli_answer answer[CFG_NODES_MAX];
    int which[CFG_NODES_MAX];
    lacks[0] = lost[0] = 0;
    if (s->c->n_nodes < 2)
        return true;
    for (int i = 0; i < s->n; i++)
        which[i] = (int)(cfg_config_node(s->c, s->node[i].what.name) - s->c->nodes);
    cli_nodes_ask(&s->nodes, which, s->n, "weft up", "status", ASK_NS, answer);
    judge(s, answer, lacks, lost);
    for (int i = 0; i < s->n; i++)
        cli_answer_clear(&answer[i]);
    return !lacks[0];
}

static void say_up(struct supervisor *s, const char *lost)
{
    for (int i = 0; i < s->n; i++)
        say(s, "%-12s %s", s->node[i].what.name, s->node[i].line);
    if (lost[0])
        say(s, "gateways here take no requests until a %s node of another machine is connected", lost);
    say(s, "%d node%s up; logs: %s/*.log", s->n, s->n == 1 ? " is" : "s are", s->dir);
}

int sup_start(struct supervisor *s, int64_t limit_ms)
{
    int64_t end = sup_now_ms() + limit_ms;
    char lacks[512] = "", lost[128] = "", text[128];
    int sig = 0, result = CLI_OK;
    bool settled = false;
    for (int i = 0; i < s->n; i++)
        begin(s, &s->node[i]);
    while (!settled && !sig && result == CLI_OK) {
        int running = 0;
        sig = turn(s, TURN_MS);
        if (sig == SIGHUP || sig == SIGUSR1) {
            say(s, "%s is read again when the nodes are up", s->file);
            s->later = s->later == SIGUSR1 ? SIGUSR1 : sig; /* which means SIGHUP too */
            sig = 0;
        }
        for (int i = 0; i < s->n && result == CLI_OK; i++) {
            struct sup_node *n = &s->node[i];
            running += n->state == SUP_RUNNING;
            if (n->state != SUP_ENDED)
                continue;
            result = WIFEXITED(n->end) && WEXITSTATUS(n->end) == CLI_USAGE ? CLI_USAGE : CLI_FAILED;
            say(s, "node %s has ended instead of accepting (%s); the end of its log:", n->what.name,
                end_text(n->end, text));
            say_tail(s, n, TAIL_LINES);
        }
        if (running == s->n)
            settled = have_settled(s, lacks, lost);
        if (settled || result != CLI_OK || sup_now_ms() < end)
            continue;
        result = CLI_FAILED;
        say(s, "the nodes are not ready after %lld s: %s", (long long)(limit_ms / 1000),
            lacks[0] ? lacks : "not all accept");
        for (int i = 0; i < s->n; i++)
            if (s->node[i].state == SUP_STARTING) {
                say(s, "node %s does not accept yet; the end of its log:", s->node[i].what.name);
                say_tail(s, &s->node[i], TAIL_LINES);
            }
    }
    if (settled && !sig) {
        say_up(s, lost);
        return CLI_OK;
    }
    if (sig)
        say(s, "stopped while the nodes were starting");
    stop(s);
    return result == CLI_OK ? CLI_FAILED : result;
}

/* ---- in between ---- */

/* A node that ended while it was wanted. */
static void decide(struct supervisor *s, struct sup_node *n)
{
    char text[128];
    int64_t now = sup_now_ms(), ran = now - n->began;
    end_text(n->end, text);
    if (n->leaving) {
        say(s, "node %s has left (%s)", n->what.name, text);
        n->state = SUP_OFF;
        return;
    }
    if (was_cut_off(n) || (WIFEXITED(n->end) && WEXITSTATUS(n->end) == CLI_OK)) {
        say(s, "node %s has ended as it was asked to%s, and stays away; weft up --node %s %s starts it again",
            n->what.name, was_cut_off(n) ? ", what still ran there was cut off" : "", n->what.name, s->given);
        n->state = SUP_OFF;
        return;
    }
    if (!s->restart || (WIFEXITED(n->end) && WEXITSTATUS(n->end) == CLI_USAGE)) {
        say(s, "node %s has ended (%s) and is not started again%s", n->what.name, text,
            s->restart ? ": its configuration is wrong" : "");
        say_tail(s, n, TAIL_LINES);
        n->state = SUP_OFF;
        return;
    }
    n->pause = ran >= STEADY_MS || !n->pause ? PAUSE_MIN_MS : 2 * n->pause < PAUSE_MAX_MS ? 2 * n->pause : PAUSE_MAX_MS;
    n->again = now + n->pause;
    n->restarts++;
    n->state = SUP_WAITING;
    say(s, "node %s has ended (%s) after %.1f s; restart %d in %.1f s; the end of its log:", n->what.name, text,
        1e-3 * (double)ran, n->restarts, 1e-3 * (double)n->pause);
    say_tail(s, n, 2);
}

static int count(const struct supervisor *s, enum sup_state state)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += s->node[i].state == state;
    return n;
}

/* ---- other nodes than before ---- */

static struct sup_node *find(struct supervisor *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->node[i].what.name, name))
            return &s->node[i];
    return NULL;
}

static void count_change(void *ctx, const char *key, const char *was, const char *is)
{
    (void)key;
    (void)was;
    (void)is;
    ++*(int *)ctx;
}

/* Its entry in a file that was read again. */
static void compare(struct supervisor *s, struct sup_node *n, const struct cfg_config *fresh)
{
    const struct cfg_node *now = cfg_config_node(fresh, n->what.name), *was = &n->what;
    if (now && n->leaving && n->state != SUP_OFF) {
        say(s, "node %s is in %s again; weft up starts it when it has ended", was->name, s->file);
        n->leaving = false;
    } else if (!now && !n->leaving) {
        say(s, "node %s is in %s no more: it drains and ends", was->name, s->file);
        n->leaving = true;
        if (n->fd >= 0)
            tell(s->dir, n);
        else
            n->state = SUP_OFF;
    } else if (now) {
        int changes = 0;
        cfg_node_compare(was, now, count_change, &changes);
        if (changes)
            say(s,
                "the entry of node %s has changed, which takes effect when it is started again: weft drain %s %s, then "
                "weft up --node %s %s",
                was->name, s->file, was->name, was->name, s->given);
        n->what = *now;
    }
}

/* What all nodes are told about, and none takes up. */
static void say_stale(struct supervisor *s, const struct cfg_config *was, const struct cfg_config *is)
{
    char *stale = cli_stale(was, NULL, is);
    for (char *at = stale, *end; at && (end = strchr(at, '\n')); at = end + 1)
        say(s, "it has %.*s, which takes effect when nodes are started again", (int)(end - at), at);
    free(stale);
}

/* A node that was not among those of this supervisor, or went. NULL: there is nothing to start. */
static struct sup_node *adopt(struct supervisor *s, const struct cfg_node *what)
{
    struct sup_node *n = find(s, what->name);
    if (n ? !n->leaving || n->state != SUP_OFF : s->n == CFG_NODES_MAX)
        return NULL;
    n = n ? n : &s->node[s->n++];
    *n = (struct sup_node){.what = *what, .fd = -1, .out = -1};
    return n;
}

static void take_new(struct supervisor *s)
{
    int which[CFG_NODES_MAX], n = 0;
    struct cfg_error nobody;
    if (!s->all || sup_local(s->c, which, &n, &nobody))
        return;
    for (int i = 0; i < n; i++) {
        struct sup_node *fresh = adopt(s, &s->c->nodes[which[i]]);
        if (!fresh)
            continue;
        say(s, "node %s is new in %s: it is started", fresh->what.name, s->file);
        begin(s, fresh);
    }
}

/* A node of the list that has another number in the fresh one. NULL: none. */
static const struct cfg_node *find_moved(const struct cfg_config *was, const struct cfg_config *fresh)
{
    for (int i = 0; i < was->n_nodes; i++) {
        const struct cfg_node *now = cfg_config_node(fresh, was->nodes[i].name);
        if (now && now - fresh->nodes != i)
            return now;
    }
    return NULL;
}

/* What is wrong with it changes nothing here; the nodes judge for themselves. */
static void read_again(struct supervisor *s)
{
    struct cfg_report report = {0};
    struct cfg_config *fresh = s->other;
    const struct cfg_node *moved;
    const struct cfg_problem *p;
    int r = cfg_config_load(s->file, fresh, &report);
    if (!r && (moved = find_moved(s->c, fresh))) {
        say(s,
            "the nodes stay as they are, as node %s has another place in %s than they were started with: add and take "
            "off nodes at the end only",
            moved->name, s->file);
        r = -EINVAL;
    } else if (r) {
        p = report.count ? &report.problems[0] : NULL;
        say(s, "the nodes stay as they are, as %s is wrong: %s:%d: %s", s->file, p ? p->file : s->file, p ? p->line : 0,
            p ? p->message : strerror(-r));
    } else {
        s->other = (struct cfg_config *)(uintptr_t)s->c;
        s->c = s->nodes.c = fresh;
        say(s, "read %s again: %d node%s", s->file, fresh->n_nodes, fresh->n_nodes == 1 ? "" : "s");
        for (int i = 0; i < s->n; i++)
            compare(s, &s->node[i], fresh);
        say_stale(s, s->other, fresh);
    }
    cfg_report_free(&report);
    for (int i = 0; i < s->n; i++)
        if (s->node[i].fd >= 0 && !s->node[i].leaving)
            pidfd_send_signal(s->node[i].fd, SIGHUP, NULL, 0);
    if (!r)
        take_new(s);
}

static void start_asked(struct supervisor *s)
{
    char path[RUN_PATH_TEXT];
    for (int i = 0; i < s->c->n_nodes; i++) {
        const struct cfg_node *what = &s->c->nodes[i];
        run_dir_path(s->dir, what->name, ".start", path);
        if (access(path, F_OK))
            continue;
        struct sup_node *n = adopt(s, what);
        n = n ? n : find(s, what->name);
        if (n && (n->state == SUP_OFF || n->state == SUP_WAITING)) {
            say(s, "node %s is started, as weft up asks for it", what->name);
            n->pause = 0;
            begin(s, n);
        }
        unlink(path); /* after its pid file is there: whoever waits sees either */
    }
}

static bool lives(const struct supervisor *s, const char *name)
{
    struct run_process p;
    int fd = run_file_read(s->dir, name, &p) == 0 ? run_process_open(&p) : -ESRCH;
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Those that another supervisor runs on this machine. */
static void list_living(struct supervisor *s)
{
    s->n = 0;
    for (int i = 0; i < s->c->n_nodes; i++)
        if (lives(s, s->c->nodes[i].name))
            s->node[s->n++] = (struct sup_node){.what = s->c->nodes[i], .fd = -1, .out = -1};
}

/* The supervisor has got what was asked of it. -1: a node has ended instead of accepting; 1: not yet. */
static int look_at_missing(struct supervisor *s, const struct sup_node *missing, int n, char lacks[512])
{
    char path[RUN_PATH_TEXT], lost[128];
    for (int i = 0; i < n; i++) {
        const char *name = missing[i].what.name;
        run_dir_path(s->dir, name, ".start", path);
        if (access(path, F_OK) == 0) {
            snprintf(lacks, 512, "the supervisor has not started node %s", name);
            return 1;
        }
        if (!lives(s, name)) {
            say(s, "node %s has ended instead of accepting; the end of its log:", name);
            say_tail(s, &missing[i], TAIL_LINES);
            return -1;
        }
    }
    list_living(s);
    return have_settled(s, lacks, lost) ? 0 : 1;
}

/* Leaves word for the supervisor. */
static int ask_for(struct supervisor *s, struct sup_node *missing, int n)
{
    char path[RUN_PATH_TEXT];
    struct run_process other;
    struct stat st;
    for (int i = 0; i < n; i++) {
        run_dir_path(s->dir, missing[i].what.name, ".log", path);
        missing[i].log_at = stat(path, &st) == 0 ? (long)st.st_size : 0;
        run_dir_path(s->dir, missing[i].what.name, ".start", path);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0)
            return cli_error(CLI_FAILED, "up: %s: %s", path, strerror(errno));
        close(fd);
    }
    int fd = run_file_read(s->dir, RUN_SUPERVISOR, &other) == 0 ? run_process_open(&other) : -ESRCH;
    bool told = fd >= 0 && pidfd_send_signal(fd, SIGUSR1, NULL, 0) == 0;
    if (fd >= 0)
        close(fd);
    return told ? CLI_OK
                : cli_error(CLI_FAILED,
                            "up: the supervisor of %s has just ended, or belongs to somebody else; try again", s->dir);
}

int sup_start_missing(struct supervisor *s, int64_t limit_ms, struct sup_node *missing, int *n_missing)
{
    char path[RUN_PATH_TEXT], lacks[512] = "";
    int64_t end = sup_now_ms() + limit_ms;
    int n = 0, r;
    for (int i = 0; i < s->n; i++)
        if (!lives(s, s->node[i].what.name))
            missing[n++] = s->node[i];
    *n_missing = n;
    r = ask_for(s, missing, n); /* it reads the file again in any case */
    if (!n)
        return r;
    while (!r && (r = look_at_missing(s, missing, n, lacks)) > 0 && sup_now_ms() < end) {
        r = 0;
        poll(NULL, 0, TURN_MS);
    }
    if (r > 0 && lacks[0])
        say(s, "not ready after %lld s: %s", (long long)(limit_ms / 1000), lacks);
    for (int i = 0; i < n; i++) {
        run_dir_path(s->dir, missing[i].what.name, ".start", path);
        unlink(path);
    }
    return r ? CLI_FAILED : CLI_OK;
}

/* ---- the supervisor's life ---- */

int sup_run(struct supervisor *s)
{
    if (s->say != stdout)
        say(s, "watching %d node%s of %s", s->n, s->n == 1 ? "" : "s", s->file);
    while (count(s, SUP_OFF) < s->n) {
        enum sup_state before[CFG_NODES_MAX];
        for (int i = 0; i < s->n; i++)
            before[i] = s->node[i].state;
        int sig = s->later ? s->later : turn(s, TURN_MS);
        s->later = 0;
        if (sig == SIGTERM || sig == SIGINT) {
            say(s, "stopping: gateways first, for at most %.0f s each step; again: at once",
                1e-6 * (double)s->c->limits.drain_us);
            int r = stop(s);
            say(s, "all nodes have ended");
            return r;
        }
        if (sig == SIGHUP || sig == SIGUSR1)
            read_again(s);
        if (sig == SIGUSR1)
            start_asked(s);
        for (int i = 0; i < s->n; i++) {
            struct sup_node *n = &s->node[i];
            if (n->state == SUP_ENDED)
                decide(s, n);
            else if (n->state == SUP_WAITING && sup_now_ms() >= n->again)
                begin(s, n);
            else if (n->state == SUP_RUNNING && before[i] == SUP_STARTING)
                say(s, "node %s is up: %s", n->what.name, n->line);
        }
    }
    say(s, "no node is left");
    for (int i = 0; i < s->n; i++)
        if (!WIFEXITED(s->node[i].end) || WEXITSTATUS(s->node[i].end))
            return CLI_FAILED;
    return CLI_OK;
}
