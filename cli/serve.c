/* weft serve: a node of the configuration as a long-running process. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actors/runtime/log.h"
#include "actors/server.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "config/config.h"

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

/* 0: everything ended by itself; 1: the limit passed or a second signal came. */
static int drain(struct act_server *s, const sigset_t *set, int64_t limit_ms)
{
    enum { STEP_MS = 50 };
    act_server_drain(s);
    for (int64_t waited = 0; waited <= limit_ms; waited += STEP_MS) {
        if (act_server_drained(s, 0))
            return 0;
        int sig = next_signal(set, STEP_MS);
        if (sig == SIGTERM || sig == SIGINT)
            return 1;
    }
    return 1;
}

static int serve(const struct cfg_config *c, const char *node, struct cfg_error *err)
{
    struct act_log *log = NULL;
    struct act_server *s = NULL;
    sigset_t set;
    int port;
    block_signals(&set);
    const struct act_log_config lc = {.level = (enum act_log_level)c->log.level, .json = c->log.format == CFG_LOG_JSON};
    int r = act_log_open(&lc, &log, err);
    if (!r)
        r = act_server_new(c, node, log, &s, err);
    if (!r)
        r = act_server_start(s, &port, err);
    if (!r) {
        char host[256];
        const struct cfg_node *n = node ? cfg_config_node(c, node) : &c->nodes[0];
        snprintf(host, sizeof host, "%.*s", (int)(strrchr(n->listen, ':') - n->listen), n->listen);
        printf("http://%s:%d\n", host, port);
        fflush(stdout);
        int sig;
        while ((sig = next_signal(&set, -1)) == SIGHUP)
            act_log_reopen(log);
        act_log_write(log, ACT_LOG_INFO, "serve", 0, "signal %d: draining, at most %lld ms; again to stop at once", sig,
                      (long long)(c->limits.drain_us / 1000));
        if (drain(s, &set, c->limits.drain_us / 1000))
            r = cfg_error_set(err, EINTR, "requests were cut off");
    }
    act_server_free(s);
    act_log_close(log);
    return r;
}

int cli_serve_run(int argc, char **argv)
{
    static struct cfg_config config;
    const char *node = NULL;
    struct cfg_report report = {0};
    struct cfg_error err;
    const struct cli_option options[] = {
        {CLI_TEXT, "node", 0, &node, "NAME", "which node of the configuration this process is"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "serve [--node NAME] [FILE.conf]",
        .intro = "Serves a model over HTTP until SIGTERM. Prints its base address when it accepts requests. Without a file:\n"
                 "the defaults, as `weft config --explain` gives them.",
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
    r = serve(&config, node, &err);
    return r ? cli_error(CLI_FAILED, "%s", err.msg) : CLI_OK;
}
