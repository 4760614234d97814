/* `weft bench serve`: puts load on a running server, or on one that it starts, and reports what the clients saw. Closed
 * loop: so many requests at a time, one after another. Open loop: arrivals at a mean rate, whatever the server does. */
#include "cli/bench_serve.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/bench_serve_report.h"
#include "cli/cli.h"
#include "cli/load_client.h"
#include "cli/options.h"
#include "cli/progress.h"

enum { PROMPTS_MAX = 100000 };

struct arguments {
    const char *url, *model, *config, *prompts, *concurrency, *rate, *json, *csv, *plot, *from;
    int requests, warmup, prompt_tokens, max_tokens, seed;
    double limit;
    bool gateway;
};

struct bench {
    struct arguments a;
    struct load_target target;
    pid_t server; /* started here; 0: none */
    char url[320];
    char **body; /* [n_bodies] */
    int n_bodies;
    uint64_t random;
    struct {
        bool open;
        double load;
    } load[BS_POINTS_MAX];
    int n_loads;
    struct bs_results results;
};

static double uniform(struct bench *b)
{
    b->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = b->random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* ---- a server of its own ---- */

static int start_server(struct bench *b, struct cfg_error *err)
{
    int out[2];
    char *args[12] = {"weft", "serve", "--listen", "127.0.0.1:0", "-m", (char *)b->a.model}, self[4096];
    int n = 6;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (b->a.gateway)
        args[n++] = "--debug";
    if (b->a.config)
        args[n++] = (char *)b->a.config;
    if (len < 0 || pipe(out))
        return cfg_error_set(err, errno, "the server cannot be started: %s", strerror(errno));
    self[len] = 0;
    b->server = fork();
    if (b->server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* the server goes with the bench, however that ends */
        close(out[0]);
        dup2(out[1], 1);
        FILE *quiet = freopen("/dev/null", "w", stderr);
        (void)quiet;
        execv(self, args);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    bool up = f && fgets(b->url, sizeof b->url, f);
    if (f)
        fclose(f);
    b->url[strcspn(b->url, "\n")] = 0;
    if (up)
        return 0;
    int status;
    waitpid(b->server, &status, 0);
    b->server = 0;
    return cfg_error_set(err, EIO, "the server did not start; `weft serve -m %s%s%s` says why", b->a.model,
                         b->a.config ? " " : "", b->a.config ? b->a.config : "");
}

static void stop_server(struct bench *b)
{
    if (b->server > 0) {
        kill(b->server, SIGTERM);
        waitpid(b->server, NULL, 0);
    }
}

/* ---- prompts ---- */

const char bench_serve_filler[] =
    "The weaver sat by the window and looked at the river. Boats went by, slow in the morning light, and each of them "
    "carried something that somebody far away was waiting for: salt, wool, letters, a clock. She counted the threads "
    "once "
    "more, from left to right, and the shuttle began to move. In the next room the children were learning to read. One "
    "of "
    "them asked why the moon is cold, another what a number is for, and nobody had an answer that was short enough.";

static json_t *fetch_json(struct bench *b, const char *method, const char *path, json_t *send, struct cfg_error *err)
{
    char *body, *text = send ? json_dumps(send, JSON_COMPACT) : NULL;
    json_error_t je;
    json_decref(send);
    int status = load_fetch(&b->target, method, path, text, &body, err);
    free(text);
    json_t *j = status == 200 ? json_loads(body, 0, &je) : NULL;
    if (status > 0 && !j)
        cfg_error_set(err, EPROTO, "%s%s answered %d: %.200s", b->url, path, status, body ? body : "");
    free(body);
    return j;
}

static int add_body(struct bench *b, json_t *prompt)
{
    char **more = realloc(b->body, (size_t)(b->n_bodies + 1) * sizeof *more);
    json_t *j = json_pack("{s:o,s:i,s:b,s:b,s:i,s:{s:b}}", "prompt", prompt, "max_tokens", b->a.max_tokens, "stream", 1,
                          "ignore_eos", 1, "seed", b->a.seed + b->n_bodies, "stream_options", "include_usage", 1);
    if (more)
        b->body = more;
    char *text = more && j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (!text)
        return -ENOMEM;
    b->body[b->n_bodies++] = text;
    return 0;
}

/* Prompts of an exact length in tokens, no two alike: ids of the filler in random order. */
static int make_prompts(struct bench *b, int count, struct cfg_error *err)
{
    json_t *j = fetch_json(b, "POST", "/tokenize", json_pack("{s:s}", "prompt", bench_serve_filler), err),
           *ids = json_object_get(j, "tokens");
    size_t n = json_array_size(ids);
    int r = n ? 0 : -EPROTO;
    for (int i = 0; i < count && !r; i++) {
        json_t *prompt = json_array();
        for (int k = 0; k < b->a.prompt_tokens; k++)
            json_array_append(prompt, json_array_get(ids, (size_t)(uniform(b) * (double)n)));
        r = add_body(b, prompt);
    }
    json_decref(j);
    return r == -ENOMEM ? cfg_error_set(err, ENOMEM, "out of memory") : r;
}

/* One per line; empty lines are left out. */
static int read_prompts(struct bench *b, struct cfg_error *err)
{
    FILE *f = fopen(b->a.prompts, "re");
    char *line = NULL;
    size_t cap = 0;
    int r = 0;
    if (!f)
        return cfg_error_set(err, errno, "%s: %s", b->a.prompts, strerror(errno));
    while (!r && b->n_bodies < PROMPTS_MAX && getline(&line, &cap, f) > 0) {
        line[strcspn(line, "\r\n")] = 0;
        json_t *prompt = line[0] ? json_string(line) : NULL;
        if (line[0] && !prompt)
            r = cfg_error_set(err, EILSEQ, "%s: line %d is not UTF-8", b->a.prompts, b->n_bodies + 1);
        else if (prompt && add_body(b, prompt))
            r = cfg_error_set(err, ENOMEM, "out of memory");
    }
    free(line);
    fclose(f);
    return r || b->n_bodies ? r : cfg_error_set(err, EINVAL, "%s holds no prompt; write one per line", b->a.prompts);
}

/* ---- runs ---- */

static void show_progress(void *ctx, int done)
{
    cli_progress_update(ctx, done);
}

static int run_load(struct bench *b, bool open, double load, int requests, int first_body, struct bs_point *p,
                    struct cfg_error *err)
{
    struct cli_progress progress;
    struct load_run run;
    double *arrival = calloc((size_t)requests, sizeof *arrival), at = 0;
    const char **body = calloc((size_t)requests, sizeof *body);
    int r = arrival && body ? 0 : cfg_error_set(err, ENOMEM, "out of memory");
    for (int i = 0; i < requests && !r; i++) {
        body[i] = b->body[(first_body + i) % b->n_bodies];
        if (open)
            arrival[i] = at += -log1p(-uniform(b)) / load;
    }
    if (!r) {
        cli_progress_start(&progress, open ? "open loop" : "closed loop", "requests", requests);
        const struct load_plan plan = {.requests = requests,
                                       .concurrency = open ? 0 : (int)load,
                                       .arrival = arrival,
                                       .body = body,
                                       .limit = b->a.limit,
                                       .progress = show_progress,
                                       .ctx = &progress};
        r = load_run(&b->target, &plan, &run, err);
        cli_progress_end(&progress);
        *p = (struct bs_point){.open = open, .load = load};
        if (!r)
            bs_take(p, &run, requests);
        load_run_free(&run);
    }
    free(arrival);
    free(body);
    return r;
}

static int run_points(struct bench *b, struct cfg_error *err)
{
    int r = 0;
    for (int i = 0; i < b->n_loads && !r; i++) {
        r = run_load(b, b->load[i].open, b->load[i].load, b->a.requests, b->a.warmup + i * b->a.requests,
                     &b->results.point[i], err);
        b->results.n += !r;
    }
    return r;
}

/* ---- conditions ---- */

static void cpu_model(char *out, size_t size)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "unknown");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10)) {
            const char *v = strchr(line, ':');
            snprintf(out, size, "%.*s", v ? (int)strcspn(v + 2, "\n") : 0, v ? v + 2 : "");
            break;
        }
    if (f)
        fclose(f);
}

static json_t *gather_conditions(struct bench *b, struct cfg_error *err)
{
    struct utsname u;
    char cpu[256], when[40];
    double load[3] = {0};
    time_t now = time(NULL);
    struct tm tm;
    json_t *server = fetch_json(b, "GET", "/version", NULL, err);
    if (!server)
        return NULL;
    cpu_model(cpu, sizeof cpu);
    uname(&u);
    if (getloadavg(load, 3) < 1)
        load[0] = 0;
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return json_pack("{s:o,s:s,s:b,s:s,s:s,s:s,s:s,s:i,s:f,s:i,s:i,s:i,s:i,s:i}", "server", server, "url", b->url,
                     "started_here", b->server > 0, "config", b->a.config ? b->a.config : "", "time", when, "system",
                     u.release, "cpu", cpu, "cpus", (int)sysconf(_SC_NPROCESSORS_ONLN), "load_average_before", load[0],
                     "requests_per_point", b->a.requests, "prompt_tokens", b->a.prompts ? 0 : b->a.prompt_tokens,
                     "max_tokens", b->a.max_tokens, "warmup", b->a.warmup, "seed", b->a.seed);
}

/* ---- the command ---- */

/* "1,2,4": every number is one more point. */
static int read_loads(struct bench *b, const char *list, bool open, struct cfg_error *err)
{
    for (const char *at = list; at;) {
        char *end;
        double v = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(v > 0) || v > BS_LOAD_MAX || (!open && v != floor(v)))
            return cfg_error_set(err, EINVAL, "--%s \"%s\": give %s above 0 and up to %g, separated by commas",
                                 open ? "rate" : "concurrency", list, open ? "numbers" : "integers", BS_LOAD_MAX);
        if (!open && v > b->a.requests)
            return cfg_error_set(err, EINVAL, "--concurrency %g is never reached with --requests %d", v, b->a.requests);
        if (b->n_loads == BS_POINTS_MAX)
            return cfg_error_set(err, EINVAL, "--concurrency and --rate are more than %d points; give fewer",
                                 BS_POINTS_MAX);
        b->load[b->n_loads].open = open;
        b->load[b->n_loads++].load = v;
        at = *end ? end + 1 : NULL;
    }
    return 0;
}

static int none_whole(const struct bench *b, const char *which, struct cfg_error *err)
{
    return cfg_error_set(err, EPROTO,
                         "no request %swas answered in full; is the model's context long enough for %d and %d tokens, "
                         "and WEFT_API_KEY set where keys are asked for?",
                         which, b->a.prompt_tokens, b->a.max_tokens);
}

static int work(struct bench *b, struct cfg_error *err)
{
    struct bs_point warm;
    int r = read_loads(b, b->a.concurrency, false, err);
    if (!r)
        r = read_loads(b, b->a.rate, true, err);
    if (!r && !b->a.url)
        r = start_server(b, err);
    if (b->a.url)
        snprintf(b->url, sizeof b->url, "%s", b->a.url);
    if (!r)
        r = load_target_set(&b->target, b->url, err);
    b->target.key = getenv("WEFT_API_KEY");
    b->target.trace = b->a.gateway;
    if (!r)
        r = b->a.prompts ? read_prompts(b, err) : make_prompts(b, b->a.warmup + b->n_loads * b->a.requests, err);
    if (!r && !(b->results.conditions = gather_conditions(b, err)))
        r = -EPROTO;
    if (!r && b->a.warmup)
        r = run_load(b, false, 1, b->a.warmup, 0, &warm, err);
    if (!r && b->a.warmup && !warm.whole)
        r = none_whole(b, "of the warm-up ", err);
    return r ? r : run_points(b, err);
}

static int report(const struct bench *b, struct cfg_error *err)
{
    const struct arguments *a = &b->a;
    int whole = 0;
    bs_print(&b->results, a->gateway);
    for (int i = 0; i < b->results.n; i++)
        whole += b->results.point[i].whole;
    if (!whole && !a->from)
        return none_whole(b, "", err);
    int r = a->json ? bs_write_json(&b->results, a->json, err) : 0;
    if (!r && a->csv)
        r = bs_write_csv(&b->results, a->csv, err);
    return !r && a->plot ? bs_plot(&b->results, a->plot, err) : r;
}

int cli_bench_serve_run(int argc, char **argv)
{
    static struct bench b;
    struct arguments *a = &b.a;
    struct cfg_error err = {{0}};
    *a = (struct arguments){.model = "samples/tiny",
                            .requests = 64,
                            .warmup = 4,
                            .prompt_tokens = 128,
                            .max_tokens = 64,
                            .seed = 1,
                            .limit = 600};
    const struct cli_option options[] = {
        {CLI_TEXT, "url", 0, &a->url, "URL", "a running server; without it one is started on a free port"},
        {CLI_TEXT, "model", 'm', &a->model, "DIR", "model of the server that is started (default: samples/tiny)"},
        {CLI_INPUT, "config", 0, &a->config, "FILE", "configuration of the server that is started"},
        {CLI_TEXT, "concurrency", 'c', &a->concurrency, "N,N,...",
         "closed loop: so many requests at a time (default: 1,2,4,8)"},
        {CLI_TEXT, "rate", 'r', &a->rate, "R,R,...", "open loop: so many requests per second, arriving at random"},
        {CLI_INT, "requests", 'n', &a->requests, "N", "requests of each point (default: 64)", 1, BS_REQUESTS_MAX},
        {CLI_INT, "warmup", 0, &a->warmup, "N", "requests before, one at a time, that do not count (default: 4)", 0,
         1000},
        {CLI_INPUT, "prompts", 0, &a->prompts, "FILE", "prompts, one per line, over and over; else they are made up"},
        {CLI_INT, "prompt-tokens", 0, &a->prompt_tokens, "N", "length of the made up ones (default: 128)", 1, 1 << 20},
        {CLI_INT, "max-tokens", 0, &a->max_tokens, "N", "tokens of each answer (default: 64)", 1, 1 << 20},
        {CLI_INT, "seed", 0, &a->seed, "N", "of prompts and arrivals (default: 1)", 0, 1 << 30},
        {CLI_DOUBLE, "limit", 0, &a->limit, "S", "give a point up after this many seconds (default: 600)", 1, 86400},
        {CLI_FLAG, "gateway", 0, &a->gateway, NULL,
         "also measure from the making of a token to its arrival; a server that\n"
         "runs already needs security.debug = true and the same machine"},
        {CLI_OUTPUT, "json", 0, &a->json, "FILE", "write conditions and figures"},
        {CLI_OUTPUT, "csv", 0, &a->csv, "FILE", "write the figures, one row per point"},
        {CLI_PLOT, "plot", 0, &a->plot, "FILE",
         "draw FILE.svg or FILE.png: first token, time between pieces, speed per user against\n"
         "throughput (needs gnuplot)"},
        {CLI_INPUT, "from", 0, &a->from, "FILE", "measure nothing: report on a --json file of an earlier run"},
        {.kind = CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_ALLOWS, "from", "gateway json csv plot", "it measures nothing"},
        {CLI_EXCLUDES, "url", "model config", "that server runs already"},
        {CLI_EXCLUDES, "prompts", "prompt-tokens", "that is the length of made up ones"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .rules = rules,
        .synopsis = "bench serve [options]\nbench serve --from FILE.json [options]",
        .intro = "Puts load on a server and reports what its clients see: time to the first token, between pieces of "
                 "text, to\n"
                 "the end; the server's own time of queueing; tokens per second. WEFT_API_KEY: the key to send.",
        .options = options,
    };
    int status = cli_options_parse(&usage, argc, argv, NULL);
    if (status != CLI_GO_ON)
        return status;
    if (!a->concurrency && !a->rate)
        a->concurrency = "1,2,4,8";
    b.random = (uint64_t)a->seed;
    int r = a->from ? bs_read_json(a->from, &b.results, &err) : work(&b, &err);
    if (!r)
        r = report(&b, &err);
    stop_server(&b);
    load_target_clear(&b.target);
    for (int i = 0; i < b.n_bodies; i++)
        free(b.body[i]);
    free(b.body);
    json_decref(b.results.conditions);
    return r ? cli_error(r == -EINVAL ? CLI_USAGE : CLI_FAILED, "bench serve: %s", err.msg) : CLI_OK;
}
