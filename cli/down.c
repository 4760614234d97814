/* `weft down`: ends what `weft up` started from the same file on this machine, and nothing else. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "cli/supervisor.h"

enum { TURN_MS = 200, STEPS = 3, MARGIN_S = 30 };

struct ending {
    const struct cfg_config *c;
    const char *file;
    char dir[CFG_PATH_TEXT];
    struct sup_node node[CFG_NODES_MAX];
    int n;          /* that live */
    int supervisor; /* pidfd; -1: it is gone */
    pid_t pid;      /* of it */
    int stale;
    long log_at; /* size of the supervisor's log before it was asked */
};

/* Takes a descriptor of what the file names; a file about a process that has ended is removed. */
static int open_process(struct ending *e, const char *name, pid_t *pid, bool *told)
{
    struct run_process p;
    int r = run_file_read(e->dir, name, &p);
    if (r == -ENOENT)
        return r;
    int fd = r ? r : run_process_open(&p);
    *pid = p.pid;
    *told = p.draining;
    if (fd >= 0 || fd == -ENOSYS)
        return fd;
    run_file_remove(e->dir, name);
    e->stale++;
    return -ESRCH;
}

static void look(struct ending *e)
{
    bool told;
    e->supervisor = open_process(e, RUN_SUPERVISOR, &e->pid, &told);
    for (int i = 0; i < e->c->n_nodes; i++) {
        struct sup_node *n = &e->node[e->n];
        *n = (struct sup_node){.what = e->c->nodes[i], .out = -1};
        n->fd = open_process(e, e->c->nodes[i].name, &n->pid, &n->told);
        e->n += n->fd >= 0;
    }
}

static bool has_ended(int fd, int wait_ms)
{
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, wait_ms) > 0;
}

static int still_there(struct ending *e, const char *who)
{
    cli_error(CLI_FAILED, "down: %s has not ended in time; still there:", who);
    for (int i = 0; i < e->n; i++)
        if (e->node[i].fd >= 0 && !has_ended(e->node[i].fd, 0))
            fprintf(stderr, "  node %s, pid %d, log %s/%s.log\n", e->node[i].what.name, (int)e->node[i].pid, e->dir,
                    e->node[i].what.name);
    fprintf(stderr, "weft down --now --run %s %s does not wait for requests\n", e->dir, e->file);
    return CLI_FAILED;
}

static FILE *open_log(const struct ending *e)
{
    char path[RUN_PATH_TEXT];
    run_dir_path(e->dir, RUN_SUPERVISOR, ".log", path);
    return fopen(path, "re");
}

/* Prints what the supervisor's log says by now of nodes that did not end well. Whether there was something. */
static bool say_what_was_cut(const struct ending *e)
{
    FILE *f = open_log(e);
    char line[1024];
    bool cut = false;
    if (!f)
        return false;
    if (fseek(f, e->log_at, SEEK_SET) == 0)
        while (fgets(line, sizeof line, f)) {
            const char *at = strstr(line, "node ");
            bool says = strstr(line, " was cut off") || strstr(line, " were killed");
            if (says)
                fputs(at ? at : line, stdout);
            cut |= says;
        }
    fclose(f);
    return cut;
}

/* It stops its nodes itself. */
static int stop_supervisor(struct ending *e, int64_t limit_ms, bool now)
{
    int64_t end = sup_now_ms() + limit_ms;
    FILE *f = open_log(e);
    e->log_at = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : 0;
    if (f)
        fclose(f);
    pidfd_send_signal(e->supervisor, SIGTERM, NULL, 0);
    while (!has_ended(e->supervisor, TURN_MS)) {
        if (now)
            pidfd_send_signal(e->supervisor, SIGTERM, NULL, 0);
        if (sup_now_ms() >= end)
            return still_there(e, "the supervisor");
    }
    return CLI_OK;
}

/* The supervisor was killed: its nodes are stopped from here. */
static int stop_nodes(struct ending *e, int64_t limit_ms, bool now)
{
    struct sup_stop t = {.c = e->c, .dir = e->dir, .node = e->node, .n = e->n, .order = -1, .now = now};
    int64_t end = sup_now_ms() + limit_ms;
    while (!sup_stop_turn(&t, sup_now_ms())) {
        struct pollfd p[CFG_NODES_MAX];
        for (int i = 0; i < e->n; i++)
            p[i] = (struct pollfd){e->node[i].fd, POLLIN, 0};
        if (poll(p, (nfds_t)e->n, TURN_MS) <= 0 && sup_now_ms() >= end)
            return still_there(e, "a node");
        for (int i = 0; i < e->n; i++)
            if (p[i].revents) {
                close(e->node[i].fd);
                e->node[i].fd = -1;
                run_file_remove(e->dir, e->node[i].what.name);
            }
    }
    return CLI_OK;
}

static int down(struct ending *e, int wait_s, bool now)
{
    int64_t limit_ms =
        1000 * (int64_t)(wait_s >= 0 ? wait_s : STEPS * (int)(e->c->limits.drain_us / 1000000) + MARGIN_S);
    int n, r = CLI_OK;
    look(e);
    n = e->n;
    if (e->supervisor == -ENOSYS)
        return cli_error(CLI_FAILED, "down: this kernel has no pidfd_open, which is needed to end the right processes");
    if (e->stale)
        printf("%d stale pid file%s removed: those processes have ended\n", e->stale, e->stale == 1 ? "" : "s");
    if (e->supervisor < 0 && !n) {
        printf("nothing of %s is up here (folder %s)\n", e->file, e->dir);
        return CLI_OK;
    }
    printf("ending %d node%s%s\n", n, n == 1 ? "" : "s",
           e->supervisor < 0 ? "; their supervisor is gone"
           : now             ? ", at once"
                             : ", gateways first");
    fflush(stdout);
    if (e->supervisor >= 0)
        r = stop_supervisor(e, limit_ms, now);
    if (!r && e->n)
        r = stop_nodes(e, limit_ms, now); /* also what a supervisor that was killed meanwhile has left */
    if (r)
        return r;
    bool cut = e->supervisor >= 0 && say_what_was_cut(e);
    printf("%d node%s ended\n", n, n == 1 ? " has" : "s have");
    return cut && !now ? CLI_CUT_OFF : CLI_OK;
}

int cli_down_run(int argc, char **argv)
{
    static struct cfg_config config;
    static struct ending e;
    struct cfg_error err;
    const char *run = NULL;
    bool now = false;
    int wait_s = -1, first;
    const struct cli_option options[] = {
        {CLI_FLAG, "now", 0, &now, NULL, "cut running requests off"},
        {CLI_INT, "wait", 0, &wait_s, "SECONDS", "for everything to end (three times limits.drain, and 30 s)", 1,
         86400},
        {CLI_TEXT, "run", 0, &run, "DIR", "the folder that was given to weft up"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "down [options] FILE.conf",
        .intro =
            "Ends what `weft up` started from this file on this machine: gateways drain first, then prefill and\n"
            "decode, then the rest, each for at most limits.drain; what has not ended then is killed. It signals only\n"
            "processes that its pid files name by pid, start time and boot, so never another one that got the pid.\n"
            "Exit status 0: nothing is left, or nothing was there; 3: the same, but what still ran was cut off, as\n"
            "limits.drain passed; 1: something is left; 2: the file is wrong.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    int r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    if (cli_nodes_config(argv[first], &config))
        return CLI_USAGE;
    e = (struct ending){.c = &config, .file = argv[first], .supervisor = -1};
    if (run_dir_of(&config, argv[first], run, e.dir, &err))
        return cli_error(CLI_USAGE, "down: %s", err.msg);
    return down(&e, wait_s, now);
}
