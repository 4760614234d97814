/* `weft drain`: a node finishes what it has and ends, while the others go on. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/nodes.h"
#include "cli/options.h"

enum { LOOK_MS = 200, ANSWER_S = 3, MARGIN_S = 10 };

struct draining {
    struct cli_nodes nodes;
    int which;
    const char *name;
    uint64_t epoch;
    char last[256]; /* what was printed last */
};

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static long long member(const json_t *load, const char *role, const char *key)
{
    return (long long)json_integer_value(json_object_get(json_object_get(load, role), key));
}

static void print_left(struct draining *d, const json_t *status)
{
    const json_t *load = json_object_get(status, "load");
    char line[256];
    snprintf(line, sizeof line, "%s: %lld requests, %lld prompts, %lld sequences left", d->name,
             member(load, "gateway", "requests"),
             member(load, "prefill", "running") + member(load, "prefill", "waiting"),
             member(load, "decode", "running") + member(load, "decode", "waiting"));
    if (strcmp(line, d->last)) {
        snprintf(d->last, sizeof d->last, "%s", line);
        printf("%s\n", line);
        fflush(stdout);
    }
}

/* 1: it has gone, or another process has taken its place. */
static int look(struct draining *d)
{
    struct cli_answer a;
    cli_nodes_ask(&d->nodes, &d->which, 1, "weft drain", "status", (int64_t)ANSWER_S * 1000000000, &a);
    bool gone = a.status == -ECONNREFUSED || (a.status == 0 && a.hello.epoch != d->epoch);
    if (!gone && a.status == 0)
        print_left(d, a.json);
    cli_answer_clear(&a);
    return gone;
}

static int drain(struct draining *d, int wait_s)
{
    struct cli_answer a;
    cli_nodes_ask(&d->nodes, &d->which, 1, "weft drain", "drain", (int64_t)ANSWER_S * 1000000000, &a);
    if (a.status)
        return cli_error(CLI_FAILED, "drain: node %s at %s: %s", d->name, a.address, a.why);
    d->epoch = a.hello.epoch;
    cli_answer_clear(&a);
    printf("%s: draining\n", d->name);
    fflush(stdout);
    if (!wait_s)
        return CLI_OK;
    for (int64_t end = now_ms() + 1000 * (int64_t)wait_s; now_ms() < end;) {
        if (look(d)) {
            printf("%s: has ended, and stays away until it is started again (weft up --node %s %s, or systemctl)\n",
                   d->name, d->name, d->nodes.file);
            return CLI_OK;
        }
        nanosleep(&(struct timespec){0, LOOK_MS * 1000000L}, NULL);
    }
    return cli_error(CLI_FAILED, "drain: node %s has not ended within %d s; it goes on draining: `weft status %s %s`",
                     d->name, wait_s, d->nodes.file, d->name);
}

int cli_drain_run(int argc, char **argv)
{
    static struct cfg_config config;
    struct draining d = {0};
    struct cfg_error err;
    int wait_s = -1, first;
    const struct cli_option options[] = {
        {CLI_INT, "wait", 0, &wait_s, "SECONDS",
         "how long to wait for its end; 0: not at all (limits.drain and 10 s more)", 0, 86400},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "drain [--wait SECONDS] FILE.conf NODE",
        .intro =
            "Asks a node of a deployment to finish and end. From then on the gateways give it nothing new, and a\n"
            "gateway answers 503 to new requests; what runs goes on for at most limits.drain. What is cut off then "
            "goes\n"
            "on at another node. A service manager leaves a node alone that ended well.\n"
            "Exit status 0: it has ended; 1: it could not be asked, or has not ended in time; 2: the file is wrong.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };
    int r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    if (cli_nodes_config(argv[first], &config))
        return CLI_USAGE;
    const struct cfg_node *n = cli_nodes_find(&config, argv[first], "drain", argv[first + 1]);
    if (!n)
        return CLI_USAGE;
    if (config.n_nodes < 2)
        return cli_error(CLI_USAGE,
                         "drain: the only node of %s has no other to go on without it; end it with SIGTERM, "
                         "which drains too",
                         argv[first]);
    d.which = (int)(n - config.nodes);
    d.name = n->name;
    r = cli_nodes_open(&config, argv[first], &d.nodes, &err);
    if (r)
        return cli_error(r == -EINVAL ? CLI_USAGE : CLI_FAILED, "drain: %s", err.msg);
    return drain(&d, wait_s < 0 ? (int)(config.limits.drain_us / 1000000) + MARGIN_S : wait_s);
}
