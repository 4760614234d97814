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
    bool told;      /* it has said what became of what it had */
    long long cut;  /* of that */
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

/* What a node has, by what it calls it; where it goes when it is cut off. */
static const struct {
    const char *what, *one, *elsewhere;
} kinds[] = {
    {"requests", "request", "their clients got an error"},
    {"prompts", "prompt", "other nodes compute them again"},
    {"sequences", "sequence", "other nodes go on with them, from their tokens"},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

static void print_left(struct draining *d, const json_t *drain)
{
    char line[256];
    int n = snprintf(line, sizeof line, "%s:", d->name), was = n;
    for (int i = 0; i < KINDS && n < (int)sizeof line; i++) {
        long long open = member(drain, kinds[i].what, "open");
        if (json_object_get(drain, kinds[i].what))
            n += snprintf(line + n, sizeof line - (size_t)n, "%s %lld %s", n > was ? "," : "", open,
                          open == 1 ? kinds[i].one : kinds[i].what);
    }
    if (n == was || !strcmp(line, d->last))
        return;
    snprintf(d->last, sizeof d->last, "%s", line);
    printf("%s left\n", line);
    fflush(stdout);
}

/* "d0: of 3 sequences 1 finished here, 2 moved to other nodes, 0 cut off" */
static void print_end(struct draining *d, const json_t *drain)
{
    for (int i = 0; i < KINDS; i++) {
        const char *what = kinds[i].what;
        long long had = member(drain, what, "had"), moved = member(drain, what, "moved"),
                  left = member(drain, what, "left"), cut = member(drain, what, "open");
        if (!had)
            continue;
        d->cut += cut;
        printf("%s: of %lld %s %lld finished here", d->name, had, had == 1 ? kinds[i].one : what,
               member(drain, what, "finished"));
        if (moved)
            printf(", %lld moved to other nodes", moved);
        if (left)
            printf(", %lld cancelled or failed", left);
        printf(", %lld cut off%s%s%s\n", cut, cut ? " (" : "", cut ? kinds[i].elsewhere : "", cut ? ")" : "");
    }
    d->told = true;
}

/* 1: it has gone, or another process has taken its place. */
static int look(struct draining *d)
{
    struct cli_answer a;
    cli_nodes_ask(&d->nodes, &d->which, 1, "weft drain", d->told ? "status" : "drained", (int64_t)ANSWER_S * 1000000000,
                  &a);
    const json_t *drain = json_object_get(a.json, "drain");
    bool gone = a.status == -ECONNREFUSED || (a.status == 0 && a.hello.epoch != d->epoch);
    if (!gone && json_is_true(json_object_get(drain, "ended")) && !d->told)
        print_end(d, drain);
    else if (!gone && drain && !d->told)
        print_left(d, drain);
    cli_answer_clear(&a);
    return gone;
}

static int end(const struct draining *d)
{
    if (!d->told)
        return cli_error(CLI_FAILED,
                         "drain: node %s has ended and did not say what became of its requests: it was ended by "
                         "somebody else, or has failed; its log says more",
                         d->name);
    printf("%s: has ended, and stays away until it is started again (weft up --node %s %s, or systemctl)\n", d->name,
           d->name, d->nodes.file);
    return d->cut ? CLI_CUT_OFF : CLI_OK;
}

static int drain(struct draining *d, int wait_s)
{
    struct cli_answer a;
    cli_nodes_ask(&d->nodes, &d->which, 1, "weft drain", wait_s ? "drain watched" : "drain",
                  (int64_t)ANSWER_S * 1000000000, &a);
    if (a.status)
        return cli_error(CLI_FAILED, "drain: node %s at %s: %s", d->name, a.address, a.why);
    d->epoch = a.hello.epoch;
    cli_answer_clear(&a);
    printf("%s: draining\n", d->name);
    fflush(stdout);
    if (!wait_s)
        return CLI_OK;
    for (int64_t until = now_ms() + 1000 * (int64_t)wait_s; now_ms() < until;) {
        if (look(d))
            return end(d);
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
            "gateway answers 503 to new requests; what runs goes on for at most limits.drain, or moves to other\n"
            "nodes, and is cut off then. Prints what is left, and in the end what became of it. A service manager\n"
            "leaves a node alone that ended so.\n"
            "Exit status 0: it has ended, and nothing was cut off; 3: it has ended, and something was (requests of a\n"
            "gateway fail; prompts and sequences go on at other nodes, if there are any); 1: it could not be asked,\n"
            "has not ended in time, or ended without a word; 2: the file is wrong. With --wait 0, 0: it was asked.",
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
