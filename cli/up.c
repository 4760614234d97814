/* `weft up`: the nodes of a configuration that belong to this machine, each as a process, under a supervisor. */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/supervisor.h"

enum { DEFAULT_WAIT_S = 120, ARGS_MAX = 3 };

struct arguments {
    const char *model, *run;
    struct cli_list names;
    int wait_s;
    bool detach, once;
};

/* Nodes that an earlier supervisor left behind: it was killed, they were not. */
static int look_for_others(const struct supervisor *s)
{
    struct run_process p;
    for (int i = 0; i < s->n; i++) {
        const char *name = s->node[i].what.name;
        int fd = run_file_read(s->dir, name, &p) == 0 ? run_process_open(&p) : -ESRCH;
        if (fd < 0) {
            run_file_remove(s->dir, name);
            continue;
        }
        close(fd);
        return cli_error(CLI_FAILED,
                         "up: node %s runs already (pid %d), and the supervisor that started it is gone; `weft down "
                         "%s` first",
                         name, (int)p.pid, s->given);
    }
    return CLI_OK;
}

static int find_program(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    if (n < 0)
        return cli_error(CLI_FAILED, "up: /proc/self/exe: %s", strerror(errno));
    out[n] = 0;
    char *gone = strstr(out, " (deleted)"); /* it was replaced: nodes start from the new one */
    if (gone)
        *gone = 0;
    return CLI_OK;
}

static int take_names(struct supervisor *s, const struct cli_list *names, struct cfg_error *err)
{
    int which[CFG_NODES_MAX], r = 0;
    for (int i = 0; i < names->count && s->n < CFG_NODES_MAX; i++) {
        const struct cfg_node *n = cfg_config_node(s->c, names->item[i]);
        if (!n)
            return cfg_error_set(err, EINVAL, "there is no node \"%s\" in %s", names->item[i], s->file);
        which[s->n++] = (int)(n - s->c->nodes);
    }
    s->all = !names->count;
    if (s->all)
        r = sup_local(s->c, which, &s->n, err);
    for (int i = 0; i < s->n; i++)
        s->node[i] = (struct sup_node){.what = s->c->nodes[which[i]], .fd = -1, .out = -1};
    return r;
}

/* Signals come through a descriptor from here on. */
static int take_signals(struct supervisor *s)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? cli_error(CLI_FAILED, "up: signalfd: %s", strerror(errno)) : CLI_OK;
}

/* In the background: what the parent prints comes through the pipe, ended by the exit status as one byte; from then on
 * events go to the supervisor's log. */
static int go_on_alone(struct supervisor *s, int *report)
{
    char path[RUN_PATH_TEXT];
    int p[2];
    run_dir_path(s->dir, RUN_SUPERVISOR, ".log", path);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0 || pipe2(p, O_CLOEXEC))
        return cli_error(CLI_FAILED, "up: %s: %s", path, strerror(errno));
    pid_t pid = fork();
    if (pid < 0)
        return cli_error(CLI_FAILED, "up: fork: %s", strerror(errno));
    if (pid > 0) {
        char text[4096];
        int status = CLI_FAILED;
        close(p[1]);
        for (ssize_t k; (k = read(p[0], text, sizeof text)) > 0;) {
            bool last = text[k - 1] >= 0 && text[k - 1] <= CLI_USAGE;
            status = last ? text[k - 1] : status;
            fwrite(text, 1, (size_t)k - last, stdout);
            fflush(stdout);
        }
        exit(status);
    }
    setsid();
    close(p[0]);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 0);
    dup2(null, 1);
    dup2(log, 2);
    close(log);
    close(null);
    s->say = fdopen(p[1], "w");
    *report = p[1];
    return s->say ? CLI_OK : CLI_FAILED;
}

static void report_start(struct supervisor *s, int report, int status)
{
    if (report >= 0) {
        char byte = (char)status;
        fflush(s->say);
        if (write(report, &byte, 1) != 1)
            fprintf(stderr, "weft: up: nobody waits for the start\n");
        fclose(s->say);
        s->say = stderr;
    }
    fflush(s->say);
    s->stamped = true;
}

/* With the lock held. */
static int supervise(struct supervisor *s, const struct arguments *a)
{
    struct run_process self;
    struct cfg_error err = {"no such process"};
    int report = -1, r = look_for_others(s);
    if (!r && a->detach)
        r = go_on_alone(s, &report);
    if (!r)
        r = take_signals(s);
    if (!r && (run_process_of(getpid(), &self) || run_file_write(s->dir, RUN_SUPERVISOR, &self, &err)))
        r = cli_error(CLI_FAILED, "up: %s", err.msg);
    if (!r)
        r = sup_start(s, 1000 * (int64_t)a->wait_s);
    if (!r)
        fprintf(s->say, "weft status %s shows them, weft down %s ends them%s\n", s->file, s->given,
                a->detach ? "" : "; so does Ctrl-C");
    if (r)
        run_file_remove(s->dir, RUN_SUPERVISOR); /* before anybody hears of it */
    report_start(s, report, r);
    if (r)
        return r;
    r = sup_run(s);
    run_file_remove(s->dir, RUN_SUPERVISOR);
    return r;
}

/* Where the whole deployment is on loopback, nobody else has to know the secret: the first start makes it. Where other
 * machines may reach a node, somebody has to decide who gets it. */
static int make_secret(const struct cfg_config *c, struct cfg_error *err)
{
    const char *path = c->cluster.secret_file, *slash = strrchr(path, '/');
    char folder[CFG_PATH_TEXT], text[2 * TP_SECRET + 2];
    uint8_t bytes[TP_SECRET];
    if (c->n_nodes < 2 || access(path, F_OK) == 0 || sup_not_loopback(c))
        return 0; /* whoever reads it says what is wrong */
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 0, path);
    int r = folder[0] ? cli_file_make_dir(folder, err) : 0;
    if (r)
        return r;
    randombytes_buf(bytes, sizeof bytes);
    sodium_bin2hex(text, sizeof text, bytes, sizeof bytes);
    strcat(text, "\n");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool well = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (!well)
        r = cfg_error_set(err, errno, "cluster.secret_file: %s: %s", path, strerror(errno));
    else
        printf("%s made: the secret of this deployment, all of whose nodes are on loopback\n", path);
    if (fd >= 0)
        close(fd);
    sodium_memzero(bytes, sizeof bytes);
    sodium_memzero(text, sizeof text);
    return r;
}

/* A supervisor runs already: it starts what is away. */
static int up_again(struct supervisor *s, const struct arguments *a)
{
    static struct sup_node missing[CFG_NODES_MAX];
    struct run_process other;
    int n = 0, r = sup_start_missing(s, 1000 * (int64_t)a->wait_s, missing, &n);
    bool known = run_file_read(s->dir, RUN_SUPERVISOR, &other) == 0;
    if (!n && !r)
        return cli_error(
            a->detach ? CLI_OK : CLI_FAILED,
            "up: %s is up already (supervisor: pid %d, folder %s), which reads the file again: weft status "
            "%s shows what waits for a restart, weft down %s ends it",
            s->file, known ? (int)other.pid : 0, s->dir, s->file, s->given);
    for (int i = 0; i < n && !r; i++)
        printf("node %s is up, too\n", missing[i].what.name);
    return r;
}

static int up(const struct cfg_config *c, struct cfg_config *other, const char *file, const struct arguments *a)
{
    static struct supervisor s;
    char *more[ARGS_MAX] = {(char *)"-m", (char *)(uintptr_t)a->model, NULL};
    struct cfg_error err;
    int lock = -1;
    s = (struct supervisor){.c = c,
                            .other = other,
                            .file = file,
                            .more = a->model ? more : NULL,
                            .restart = !a->once,
                            .say = stdout,
                            .signals = -1};
    snprintf(s.given, sizeof s.given, "%s%s%s%s", a->run ? "--run " : "", a->run ? a->run : "", a->run ? " " : "",
             file);
    int r = make_secret(c, &err);
    if (!r)
        r = cli_nodes_open(c, file, &s.nodes, &err);
    if (!r)
        r = take_names(&s, &a->names, &err);
    if (!r)
        r = run_dir_of(c, file, a->run, s.dir, &err);
    if (!r)
        r = cli_file_make_dir(s.dir, &err);
    if (!r)
        r = run_dir_lock(s.dir, &lock, &err);
    if (r == -EEXIST)
        return up_again(&s, a);
    if (r)
        return cli_error(r == -EINVAL ? CLI_USAGE : CLI_FAILED, "up: %s", err.msg);
    r = find_program(s.program, sizeof s.program);
    return r ? r : supervise(&s, a);
}

int cli_up_run(int argc, char **argv)
{
    static struct cfg_config config, other;
    struct arguments a = {.wait_s = DEFAULT_WAIT_S};
    int first;
    const struct cli_option options[] = {
        {CLI_FLAG, "detach", 'd', &a.detach, NULL, "go on in the background once everything is ready"},
        {CLI_LIST, "node", 0, &a.names, "NAME",
         "only this node; may be given several times (those whose host is here)"},
        {CLI_TEXT, "model", 'm', &a.model, "DIR", "serve this model instead of model.path"},
        {CLI_INT, "wait", 0, &a.wait_s, "SECONDS", "for all of them to be ready (120)", 1, 86400},
        {CLI_FLAG, "no-restart", 0, &a.once, NULL, "leave a node that fails as it is"},
        {CLI_TEXT, "run", 0, &a.run, "DIR", "folder for logs and pid files (\"up\" in cluster.state, else FILE.run)"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "up [options] FILE.conf",
        .intro =
            "Starts every node of the file whose host is an address of this machine, each as a process with a log of\n"
            "its own, and waits until all accept and are connected to each other; or says which one failed and why,\n"
            "and stops the others. A deployment that is on loopback alone gets its cluster.secret_file made.\n"
            "Then it watches them: a node that fails begins again, after 0.5 s and then ever longer, up to 30 s;\n"
            "one that was drained, or whose configuration is wrong, does not, until `weft up` is called again while\n"
            "the others run: it starts those that are away. SIGHUP is passed on to the nodes, and starts those that\n"
            "are new in the file; those that are in it no more drain and end.\n"
            "SIGTERM and Ctrl-C drain: gateways first, then prefill and decode, then the rest; a second one cuts\n"
            "requests off. Exit status 0: all ended as they were asked to; 1: not so; 2: the file or the\n"
            "configuration of a node is wrong.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    int r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    if (cli_nodes_config(argv[first], &config))
        return CLI_USAGE;
    return up(&config, &other, argv[first], &a);
}
