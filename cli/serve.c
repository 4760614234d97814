/* weft serve: a node of the configuration as a long-running process. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "actors/runtime/log.h"
#include "actors/server.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/stale.h"
#include "kvtiers/shared.h"

/* Signals are taken by this thread alone; the workers inherit the mask. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    sigprocmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* As many descriptors as the connections may need, where the hard limit allows it. */
static void raise_files(const struct cfg_config *c)
{
    struct rlimit limit;
    rlim_t need = 2 * (rlim_t)c->limits.connections + 64;
    if (c->kv.shared.path[0]) /* USRBIO has a second one of each */
        need += (rlim_t)(c->kv.shared.usrbio[0] ? 2 : 1) * KV_SHARED_FILES + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= need)
        return;
    limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < need)
        fprintf(stderr,
                "weft: warning: limits.connections = %d%s may need %llu descriptors, %llu are allowed; raise the limit "
                "(ulimit -n) or lower limits.connections\n",
                c->limits.connections, c->kv.shared.path[0] ? " and the segments of kv.shared" : "",
                (unsigned long long)need, (unsigned long long)limit.rlim_cur);
}

/* Clients whose requests are cut off have this long to be told so. */
enum { CUT_MS = 1000 };

/* What is left of the process after its last request has so long to go. */
enum { GONE_S = 30 };

/* Waits for the next signal, at most until `ms` have passed (-1: for ever). 0: none came. */
static int next_signal(const sigset_t *set, int ms)
{
    const struct timespec wait = {ms / 1000, ms % 1000 * 1000000L};
    int sig;
    do
        sig = ms < 0 ? sigwaitinfo(set, NULL) : sigtimedwait(set, NULL, &wait);
    while (sig < 0 && errno == EINTR);
    return sig > 0 ? sig : 0;
}

/* Other nodes need as long to hear that nothing more is to be placed here, and this one to know that nothing comes. */
enum { HEARD_MS = 500 };

/* A tool that asked for the drain and waits for its end has this long to hear of it. */
enum { FAREWELL_MS = 2000 };

/* NULL: everything ended by itself; else why it was not waited for any longer. asked: by a tool (weft drain), and not
 * by a signal; whoever ends all nodes afterwards says the same again with the first signal, which cuts nothing off. */
static const char *drain(struct act_server *s, struct act_log *log, const sigset_t *set, bool asked, int64_t limit_ms)
{
    enum { STEP_MS = 50 };
    act_server_drain(s);
    for (int64_t waited = 0; waited <= limit_ms; waited += STEP_MS) {
        if (act_server_drained(s, 0))
            return NULL;
        int sig = next_signal(set, STEP_MS);
        if (sig != SIGTERM && sig != SIGINT)
            continue;
        if (!asked)
            return "a second signal came";
        asked = false;
        act_log_event(log, ACT_LOG_INFO, "serve", 0, "drains_already", "signal=%d another one cuts off", sig);
    }
    return "limits.drain passed";
}

/* Whoever was asked to end ends. 0, or -ECANCELED: what still ran was cut off. */
static int leave(struct act_server *s, struct act_log *log, const sigset_t *set, int sig, int64_t least_ms,
                 int64_t limit_ms, struct cfg_error *err)
{
    act_log_event(log, ACT_LOG_INFO, "serve", 0, "draining", "signal=%d limit_ms=%lld", sig, (long long)limit_ms);
    const char *why = drain(s, log, set, !sig, limit_ms > least_ms ? limit_ms : least_ms);
    if (why) {
        act_server_cut(s);
        act_server_drained(s, CUT_MS);
    }
    act_server_farewell(s, FAREWELL_MS);
    if (!why)
        return 0;
    return cfg_error_set(err, ECANCELED, "requests were cut off: %s before they had ended", why);
}

struct arguments {
    const char *node, *model, *listen;
    bool hint, debug;
};

/* How to call it, for people who see it for the first time. */
static void print_hint(const struct cfg_config *c, const char *url)
{
    const char *slash = strrchr(c->model.path, '/');
    const char *name = c->model.name[0] ? c->model.name : slash && slash[1] ? slash + 1 : c->model.path;
    const char *key = c->security.keys_file[0] ? " -H 'Authorization: Bearer KEY'" : "";
    printf("\n"
           "Try it:\n"
           "  curl %s/v1/chat/completions%s -H 'Content-Type: application/json' \\\n"
           "    -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"max_tokens\": "
           "64}'\n"
           "OpenAI SDK:     base URL %s/v1%s\n"
           "Anthropic SDK:  base URL %s\n"
           "Status page:    %s/\n"
           "Ctrl-C ends it.\n",
           url, key, name, url, key[0] ? "" : ", any API key", url, url);
}

/* What the file says by now and this process does not take up: to the log, and to weft status. */
static void compare_file(struct act_server *s, const struct cfg_config *c, const struct arguments *a,
                         struct act_log *log)
{
    static struct cfg_config now;
    struct cfg_report report = {0};
    const struct cfg_node *self = a->node ? cfg_config_node(c, a->node) : &c->nodes[0];
    if (!c->files[0][0])
        return;
    if (cfg_config_load(c->files[0], &now, &report)) {
        const struct cfg_problem *p = report.count ? &report.problems[0] : NULL;
        if (c->n_nodes < 2) /* else the link says it */
            act_log_write(log, ACT_LOG_ERROR, "serve", 0, "%s:%d: %s; nothing of it was looked at",
                          p ? p->file : c->files[0], p ? p->line : 0, p ? p->message : "it cannot be read");
    } else {
        struct cfg_node *fresh = (struct cfg_node *)(uintptr_t)cfg_config_node(&now, self->name);
        if (fresh && a->listen)
            memcpy(fresh->listen, self->listen, sizeof fresh->listen);
        char *stale = cli_stale(c, self, &now);
        for (char *at = stale, *end; at && (end = strchr(at, '\n')); at = end + 1)
            act_log_write(log, ACT_LOG_WARNING, "serve", 0, "not taken up before the next start: %.*s", (int)(end - at),
                          at);
        act_server_set_stale(s, stale);
    }
    cfg_report_free(&report);
}

/* Until somebody asks for the end, *sig: the signal, 0: a tool; or nothing can be served any more, which is false. */
static bool run(struct act_server *s, const struct cfg_config *c, const struct arguments *a, struct act_log *log,
                const sigset_t *set, int *sig)
{
    enum { LOOK_MS = 500 };
    while (!act_server_failed(s)) {
        int came = next_signal(set, LOOK_MS);
        *sig = came == SIGTERM || came == SIGINT ? came : 0;
        if (*sig || act_server_drain_asked(s))
            return true;
        if (came == SIGHUP) {
            act_log_reopen(log);
            act_server_reload(s);
            compare_file(s, c, a, log);
        }
    }
    return false;
}

static void report_start(struct act_server *s, const struct cfg_config *c, struct act_log *log, bool hint)
{
    char url[320];
    const char *warning = act_server_warning(s);
    act_server_url(s, url, sizeof url);
    if (warning)
        fprintf(stderr, "weft: warning: %s: %s\n", url, warning);
    if (warning && c->log.file[0])
        act_log_write(log, ACT_LOG_WARNING, "serve", 0, "%s: %s", url, warning);
    bool gateway = !strncmp(url, "http", 4);
    act_log_event(log, ACT_LOG_INFO, "serve", 0, "accepting", "%s%s%s version=%s", gateway ? "url=" : "at=\"", url,
                  gateway ? "" : "\"", WEFT_VERSION);
    printf("%s\n", url);
    if (hint)
        print_hint(c, url);
    fflush(stdout);
}

/* Everything that was to be said has been said: what is left is to give memory and files back. A disk or file system
 * that hangs may keep threads and buffers in the kernel for ever, and must not keep the process. */
struct last_resort {
    struct act_log *log;
    int status;
};

static void *leave_anyhow(void *arg)
{
    const struct last_resort *l = arg;
    sleep(GONE_S);
    act_log_write(l->log, ACT_LOG_ERROR, "serve", 0,
                  "the process has not come to its end in %d s, as a disk or file system (kv.ssd.path, kv.shared.path) "
                  "does not answer; it ends without",
                  GONE_S);
    sleep(1); /* the log's thread writes it */
    _exit(l->status);
}

static void watch_the_end(struct last_resort *l)
{
    pthread_t thread;
    if (!pthread_create(&thread, NULL, leave_anyhow, l))
        pthread_detach(thread);
}

/* left: it was asked to end, and has. */
static int serve(const struct cfg_config *c, const struct arguments *a, bool *left, struct cfg_error *err)
{
    struct act_log *log = NULL;
    struct act_server *s = NULL;
    sigset_t set;
    int port;
    block_signals(&set);
    raise_files(c);
    const struct act_log_config lc = {.path = c->log.file[0] ? c->log.file : NULL,
                                      .level = (enum act_log_level)c->log.level,
                                      .json = c->log.format == CFG_LOG_JSON};
    int r = act_log_open(&lc, &log, err);
    if (!r)
        r = act_server_new(c, a->node, log, &s, err);
    if (!r)
        r = act_server_start(s, &port, err);
    if (!r) {
        report_start(s, c, log, a->hint);
        int sig;
        *left = run(s, c, a, log, &set, &sig);
        if (!*left)
            r = cfg_error_set(err, EIO,
                              "a part of the server has ended and nothing can be served any more; the log says which");
        else
            r = leave(s, log, &set, sig, c->n_nodes > 1 ? HEARD_MS : 0, c->limits.drain_us / 1000, err);
    }
    static struct last_resort resort;
    resort = (struct last_resort){log, !r ? CLI_OK : *left ? CLI_CUT_OFF : CLI_FAILED};
    if (log)
        watch_the_end(&resort);
    act_server_free(s);
    if (r && log && c->log.file[0])
        act_log_write(log, ACT_LOG_ERROR, "serve", 0, "%s", err->msg);
    if (!r)
        act_log_event(log, ACT_LOG_INFO, "serve", 0, "ended", "%s", "");
    act_log_close(log);
    return r;
}

/* What the command line says instead of the file. */
static int override(struct cfg_config *c, const struct arguments *a, struct cfg_error *err)
{
    if (a->model && strlen(a->model) >= sizeof c->model.path)
        return cfg_error_set(err, EINVAL, "--model is longer than %zu bytes", sizeof c->model.path - 1);
    if (a->model) {
        snprintf(c->model.path, sizeof c->model.path, "%s", a->model);
        cfg_config_overrides(c, "model.path");
    }
    if (a->debug) {
        c->security.debug = true;
        cfg_config_overrides(c, "security.debug");
    }
    if (!a->listen)
        return 0;
    struct cfg_node *n = &c->nodes[0];
    for (int i = 0; a->node && i < c->n_nodes; i++)
        if (!strcmp(c->nodes[i].name, a->node))
            n = &c->nodes[i];
    if (!cfg_address_valid(a->listen) || strlen(a->listen) >= sizeof n->listen)
        return cfg_error_set(err, EINVAL, "--listen %s is not HOST:PORT with a port of 0 (any free one) to 65535",
                             a->listen);
    snprintf(n->listen, sizeof n->listen, "%s", a->listen);
    return 0;
}

int cli_serve_run(int argc, char **argv)
{
    static struct cfg_config config;
    struct arguments a = {0};
    struct cfg_report report = {0};
    struct cfg_error err;
    bool left = false;
    const struct cli_option options[] = {
        {CLI_TEXT, "node", 0, &a.node, "NAME", "which node of the configuration this process is"},
        {CLI_TEXT, "model", 'm', &a.model, "DIR", "serve this model instead of model.path"},
        {CLI_TEXT, "listen", 0, &a.listen, "HOST:PORT",
         "accept here instead of the node's listen; port 0: any free one"},
        {CLI_FLAG, "debug", 0, &a.debug, NULL, "as security.debug = true"},
        {CLI_FLAG, "hint", 0, &a.hint, NULL, "print how to call it, too"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "serve [options] [FILE.conf]",
        .intro =
            "Serves a model over HTTP. Prints its base address when it accepts requests. SIGTERM ends it when running\n"
            "requests have ended (at most limits.drain), a second one at once; SIGHUP reads API keys and the "
            "certificate\n"
            "again and opens the log again. Without a file: the defaults, as `weft config --explain` gives them.\n"
            "Exit status 0: it was asked to end and everything had ended; 3: it was asked to end and cut requests "
            "off;\n"
            "1: it could not start, or a part of it has failed; 2: the configuration is wrong. A service manager "
            "should\n"
            "start it again after 1 and signals only.",
        .options = options,
        .max_args = 1,
    };
    int first, r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    cfg_config_default(&config);
    if (first < argc && cfg_config_load(argv[first], &config, &report)) {
        cfg_report_print(&report, stderr);
        cfg_report_free(&report);
        return CLI_USAGE;
    }
    cfg_report_free(&report);
    r = override(&config, &a, &err);
    if (!r)
        r = serve(&config, &a, &left, &err);
    return r ? cli_error(left ? CLI_CUT_OFF : r == -EINVAL ? CLI_USAGE : CLI_FAILED, "%s", err.msg) : CLI_OK;
}
