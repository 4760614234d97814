/* `weft status`: every node of a deployment, as it describes itself. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/nodes.h"
#include "cli/options.h"

enum { COLUMNS = 10, CELL = 320, DEFAULT_TIMEOUT_S = 3 };

struct table {
    char (*row)[COLUMNS][CELL];
    int rows;
};

static const char *text_of(const json_t *j, const char *key)
{
    const char *t = json_string_value(json_object_get(j, key));
    return t ? t : "";
}

static long long number_of(const json_t *j, const char *key)
{
    return (long long)json_integer_value(json_object_get(j, key));
}

/* Tiers that are kept for other nodes; "": none. A block that the first one has not is looked for in the next. */
static void kept_text(const json_t *tiers, char out[CELL])
{
    size_t i, at = 0;
    json_t *t;
    long long found = 0, asked = -1;
    out[0] = 0;
    json_array_foreach (tiers, i, t) {
        if (!json_is_true(json_object_get(t, "served")) || at >= CELL)
            continue;
        at += (size_t)snprintf(out + at, CELL - at, "%s%s %.1f of %.1f MiB%s", at ? ", " : "keeps ", text_of(t, "tier"),
                               (double)number_of(t, "bytes") / (1 << 20), (double)number_of(t, "capacity") / (1 << 20),
                               json_is_true(json_object_get(t, "read_only")) ? " (read-only)" : "");
        asked = asked < 0 ? number_of(t, "hits") + number_of(t, "misses") : asked;
        found += number_of(t, "hits");
    }
    if (at && at < CELL)
        snprintf(out + at, CELL - at, ", %lld of %lld found", found, asked);
}

static void load_cell(const json_t *load, const json_t *tiers, char cell[CELL])
{
    const json_t *g = json_object_get(load, "gateway"), *p = json_object_get(load, "prefill"),
                 *d = json_object_get(load, "decode");
    size_t at = 0;
    char kept[CELL];
    cell[0] = 0;
    if (g)
        at += (size_t)snprintf(cell, CELL, "%lld of %lld requests", number_of(g, "requests"), number_of(g, "limit"));
    if (p && at < CELL)
        at += (size_t)snprintf(cell + at, CELL - at, "%sprefill %lld+%lld, %lld tokens", at ? "; " : "",
                               number_of(p, "running"), number_of(p, "waiting"), number_of(p, "tokens"));
    if (d && at < CELL && !number_of(d, "pages"))
        at += (size_t)snprintf(cell + at, CELL - at, "%sdecode starts", at ? "; " : ""); /* no report yet */
    else if (d && at < CELL)
        at += (size_t)snprintf(cell + at, CELL - at, "%sdecode %lld+%lld, %lld of %lld pages free", at ? "; " : "",
                               number_of(d, "running"), number_of(d, "waiting"), number_of(d, "pages_free"),
                               number_of(d, "pages"));
    kept_text(tiers, kept);
    if (kept[0] && at < CELL)
        snprintf(cell + at, CELL - at, "%s%s", at ? "; " : "", kept);
    if (!cell[0])
        snprintf(cell, CELL, "-");
}

/* What the node's connections take of the adapter: these do not grow with requests. */
static void held_cell(const json_t *held, char cell[CELL])
{
    if (held)
        snprintf(cell, CELL, "%lld ch, %lld qp, %lld mr, %.1f MiB", number_of(held, "channels"),
                 number_of(held, "queue_pairs"), number_of(held, "regions"),
                 (double)number_of(held, "region_bytes") / (1 << 20));
}

/* "45s", "12m", "7h", "3d". */
static void time_text(long long s, char cell[CELL])
{
    static const struct {
        long long seconds;
        char unit;
    } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (s >= 2 * units[i].seconds) {
            snprintf(cell, CELL, "%lld%c", s / units[i].seconds, units[i].unit);
            return;
        }
    snprintf(cell, CELL, "%llds", s);
}

static void fill_row(const struct cfg_node *n, const struct cli_answer *a, char row[COLUMNS][CELL])
{
    size_t i;
    json_t *p, *peers = json_object_get(a->json, "peers");
    int up = 0;
    json_array_foreach (peers, i, p)
        up += json_is_true(json_object_get(p, "up"));
    snprintf(row[0], CELL, "%s", n->name);
    snprintf(row[1], CELL, "%s", a->address);
    cfg_roles_text(n->roles, row[2], CELL);
    for (int k = 3; k < COLUMNS; k++)
        snprintf(row[k], CELL, "-");
    if (a->status) {
        snprintf(row[3], CELL, "unreachable");
        return;
    }
    snprintf(row[3], CELL, "%s", text_of(a->json, "health"));
    snprintf(row[4], CELL, "%.1f s", json_real_value(json_object_get(a->json, "progress_age_s")));
    if (peers) {
        time_text(number_of(a->json, "uptime_s"), row[5]);
        snprintf(row[6], CELL, "%lld", number_of(a->json, "epoch"));
        snprintf(row[7], CELL, "%d/%zu", up, json_array_size(peers));
    }
    held_cell(json_object_get(json_object_get(a->json, "transport"), "held"), row[8]);
    load_cell(json_object_get(a->json, "load"), json_object_get(a->json, "tiers"), row[9]);
}

static void print_table(const struct table *t)
{
    static const char *const head[COLUMNS] = {"NODE", "ADDRESS", "ROLES", "HEALTH", "PROGRESS",
                                              "UP",   "EPOCH",   "PEERS", "HOLDS",  "LOAD"};
    int width[COLUMNS];
    for (int k = 0; k < COLUMNS; k++) {
        width[k] = (int)strlen(head[k]);
        for (int i = 0; i < t->rows; i++)
            width[k] = (int)strlen(t->row[i][k]) > width[k] ? (int)strlen(t->row[i][k]) : width[k];
    }
    for (int i = -1; i < t->rows; i++)
        for (int k = 0; k < COLUMNS; k++)
            printf("%-*s%s", k + 1 < COLUMNS ? width[k] : 0, i < 0 ? head[k] : t->row[i][k],
                   k + 1 < COLUMNS ? "  " : "\n");
}

/* ---- what does not fit together ---- */

struct findings {
    const struct cfg_config *c;
    const int *which;
    int n;
    struct cli_answer *answer;
    json_t *list; /* of texts */
    int well;
};

static void find(struct findings *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void find(struct findings *f, const char *fmt, ...)
{
    char text[2 * CFG_ERROR_MAX + CFG_NAME_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_array_append_new(f->list, json_string(text));
}

static bool was_reached(const struct findings *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->c->nodes[f->which[i]].name, name))
            return f->answer[i].status == 0;
    return true; /* it was not asked */
}

/* A node that cannot be reached from here explains by itself why others cannot reach it either. */
static bool look_at_peers(struct findings *f, const char *name, const json_t *peers)
{
    size_t i;
    json_t *p;
    bool well = true;
    json_array_foreach (peers, i, p) {
        const char *other = text_of(p, "name"), *why = text_of(p, "reason");
        if (json_is_true(json_object_get(p, "up")) || !was_reached(f, other))
            continue;
        find(f, "%s: not connected to %s%s%s", name, other, why[0] ? ": " : "", why);
        well = false;
    }
    return well;
}

static void look_at(struct findings *f, int i)
{
    const struct cfg_node *n = &f->c->nodes[f->which[i]];
    const struct cli_answer *a = &f->answer[i];
    const char *health = text_of(a->json, "health"), *version = text_of(a->json, "version");
    char roles[128];
    size_t k;
    json_t *line;
    if (a->status) {
        find(f, "%s: %s", n->name, a->why);
        return;
    }
    cfg_roles_text(n->roles, roles, sizeof roles);
    bool well = !strcmp(health, "ok");
    if (!strcmp(health, "lost"))
        find(f, "%s: takes no requests, as no %s node is connected", n->name, text_of(a->json, "lacks"));
    if (!strcmp(health, "no-experts"))
        find(f, "%s: some of its experts are computed by nobody; its log says which expert shards are left out and why",
             n->name);
    if (!strcmp(health, "stuck"))
        find(f, "%s: has had work without progress for %.0f s; its log and /debug/actors say where", n->name,
             json_real_value(json_object_get(a->json, "progress_age_s")));
    if (strcmp(text_of(a->json, "roles"), roles)) {
        find(f, "%s: runs as %s, the file says %s; it was started with another file: restart it", n->name,
             text_of(a->json, "roles"), roles);
        well = false;
    }
    if (version[0] && strcmp(version, WEFT_VERSION))
        find(f, "%s: is version %s, this command is %s", n->name, version, WEFT_VERSION);
    json_array_foreach (json_object_get(a->json, "stale"), k, line)
        find(f, "%s: does not know before its next start: %s", n->name, json_string_value(line));
    well &= look_at_peers(f, n->name, json_object_get(a->json, "peers"));
    f->well += well;
}

/* ---- the command ---- */

static void print_json(const struct findings *f)
{
    json_t *nodes = json_array(), *all;
    for (int i = 0; i < f->n; i++) {
        const struct cfg_node *n = &f->c->nodes[f->which[i]];
        const struct cli_answer *a = &f->answer[i];
        char roles[128];
        cfg_roles_text(n->roles, roles, sizeof roles);
        json_t *j = json_pack("{s:s, s:s, s:s, s:b}", "name", n->name, "address", a->address, "roles", roles,
                              "reachable", a->status == 0);
        if (a->status)
            json_object_set_new(j, "reason", json_string(a->why));
        else
            json_object_set_new(j, "connect_us", json_real((double)a->connect_ns / 1e3));
        json_object_update_missing(j, a->json ? a->json : json_null());
        json_array_append_new(nodes, j);
    }
    all = json_pack("{s:b, s:o, s:O}", "ok", f->well == f->n, "nodes", nodes, "findings", f->list);
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

static void print_text(const struct findings *f, struct table *t)
{
    size_t i;
    json_t *text;
    for (int k = 0; k < f->n; k++)
        fill_row(&f->c->nodes[f->which[k]], &f->answer[k], t->row[k]);
    print_table(t);
    json_array_foreach (f->list, i, text)
        printf("%s%s\n", i ? "" : "\n", json_string_value(text));
    printf("\n%d of %d node%s well\n", f->well, f->n, f->n == 1 ? "" : "s");
}

static int show(const struct cli_nodes *nodes, const int *which, int n, int timeout_s, bool as_json)
{
    struct table t = {.row = calloc((size_t)n, sizeof *t.row), .rows = n};
    struct findings f = {
        .c = nodes->c, .which = which, .n = n, .answer = calloc((size_t)n, sizeof *f.answer), .list = json_array()};
    bool well = false;
    if (t.row && f.answer && f.list) {
        cli_nodes_ask(nodes, which, n, "weft status", "status", (int64_t)timeout_s * 1000000000, f.answer);
        for (int i = 0; i < n; i++)
            look_at(&f, i);
        if (as_json)
            print_json(&f);
        else
            print_text(&f, &t);
        for (int i = 0; i < n; i++)
            cli_answer_clear(&f.answer[i]);
        well = f.well == n;
    } else {
        cli_error(CLI_FAILED, "out of memory");
    }
    json_decref(f.list);
    free(f.answer);
    free(t.row);
    return well ? CLI_OK : CLI_FAILED;
}

int cli_status_run(int argc, char **argv)
{
    static struct cfg_config config;
    static int which[CFG_NODES_MAX];
    struct cli_nodes nodes;
    struct cfg_error err;
    bool as_json = false;
    int timeout_s = DEFAULT_TIMEOUT_S, first, n = 0;
    const struct cli_option options[] = {
        {CLI_FLAG, "json", 0, &as_json, NULL, "as JSON: ok, nodes, findings"},
        {CLI_INT, "timeout", 0, &timeout_s, "SECONDS", "how long a node may take to answer (3)", 1, 600},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "status [--json] [--timeout SECONDS] FILE.conf [NODE...]",
        .intro =
            "Asks every node of a deployment, or those that are named, all at a time, and prints a line for each:\n"
            "health (ok; draining, drained; lost: a gateway without prefill or decode nodes; no-experts: some\n"
            "of its experts are computed by nobody; stuck: work without progress for limits.stuck; failed), seconds\n"
            "since the last progress (0 when idle), boot epoch, connected peers, and load (running+waiting). Below "
            "it:\n"
            "what is wrong, and what to do. It needs cluster.secret_file.\n"
            "Exit status 0: every node asked is ok and connected to the others; 1: not so; 2: the file is wrong.",
        .options = options,
        .min_args = 1,
        .max_args = -1,
    };
    int r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    if (cli_nodes_config(argv[first], &config))
        return CLI_USAGE;
    for (int i = first + 1; i < argc && n < CFG_NODES_MAX; i++) {
        const struct cfg_node *one = cli_nodes_find(&config, argv[first], "status", argv[i]);
        if (!one)
            return CLI_USAGE;
        which[n++] = (int)(one - config.nodes);
    }
    for (int i = 0; argc == first + 1 && i < config.n_nodes; i++)
        which[n++] = i;
    r = cli_nodes_open(&config, argv[first], &nodes, &err);
    if (r)
        return cli_error(r == -EINVAL ? CLI_USAGE : CLI_FAILED, "status: %s", err.msg);
    return show(&nodes, which, n, timeout_s, as_json);
}
