/* speculation.group_sync with real decode processes: one leads, two follow. The tables of step times that they start
 * with make the leader draft whole blocks and let the others, by themselves, never draft: what they draft is the
 * leader's budget. Tokens are those of one process throughout. */
#include "tests/harness.h"

#include <jansson.h>
#include <signal.h>
#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

static void end(void);

TestSuite(group, .fini = end, .timeout = 300);

enum { GATEWAY, P0, D0, D1, D2, NODES, STREAMS = 9, TOKENS = 80, BLOCK = 3, ROUNDS = 60, STEPS = 40 };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0", .metrics = true},
    [D1] = {.name = "d1", .roles = "\"decode\", \"expert\"", .group = "d1", .metrics = true},
    [D2] = {.name = "d2", .roles = "\"decode\", \"expert\"", .group = "d2", .metrics = true},
};

static char *folder;
static char *want[STREAMS];
static struct ts_flow flow[STREAMS];

static void end(void)
{
    ts_cluster_end();
    if (folder)
        ts_remove_dir(folder);
    free(folder);
    folder = NULL;
}

/* ---- the tables ---- */

static void set_times(json_t *root, const char *curve, double ns)
{
    json_t *point;
    size_t i;
    json_array_foreach (json_object_get(root, curve), i, point)
        json_array_set_new(point, 1, json_real(ns));
}

/* What the program itself has measured, with other times: a verification takes the same with and without drafts.
 * Whether drafting costs nothing, or more than it could ever bring: a planner that never drafts never learns otherwise.
 */
static void write_table(bool drafts)
{
    char from[4200], path[4200];
    snprintf(from, sizeof from, "%s/measured", folder);
    snprintf(path, sizeof path, "%s/table", folder);
    json_t *root = json_load_file(from, 0, NULL);
    cr_assert_not_null(root, "no table was measured");
    set_times(root, "plain", 1e6);
    set_times(root, "full", 1e6);
    set_times(root, "draft", drafts ? 100 : 1e12);
    json_object_set_new(root, "between", json_array());
    json_object_set_new(root, "pick_ns", json_real(0));
    cr_assert_eq(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

/* ---- the streams ---- */

static char *body_of(int i)
{
    char more[96];
    snprintf(more, sizeof more, "\"seed\":%d,\"temperature\":%d,\"ignore_eos\":true", i, i % 2);
    return ts_body(TS_COMPLETIONS, ts_cluster_prompts[i % TS_CLUSTER_PROMPTS], TOKENS, true, more);
}

static void begin(int port)
{
    for (int i = 0; i < STREAMS; i++) {
        char *body = body_of(i);
        cr_assert(ts_flow_open(&flow[i], port, ts_path(TS_COMPLETIONS), body));
        free(body);
    }
}

/* Until all have ended; the texts. */
static void finish(char *text[STREAMS])
{
    while (ts_flows_turn(flow, STREAMS, 1000))
        ;
    for (int i = 0; i < STREAMS; i++) {
        char *body = ts_flow_body(&flow[i]);
        int status = ts_flow_status(&flow[i]);
        if (status != 200)
            ts_cluster_show_logs();
        cr_assert_eq(status, 200, "stream %d: %d %s", i, status, body);
        struct ts_answer a = ts_answer_of(TS_COMPLETIONS, body, true);
        text[i] = strdup(a.text);
        ts_answer_free(&a);
        free(body);
        ts_flow_close(&flow[i]);
    }
}

/* One round of streams, which say what one process says. */
static void serve(const char *when)
{
    char *got[STREAMS];
    begin(ts_cluster.node[GATEWAY].http.port);
    finish(got);
    for (int i = 0; i < STREAMS; i++) {
        if (strcmp(got[i], want[i]))
            ts_cluster_show_logs();
        cr_assert_str_eq(got[i], want[i], "%s, stream %d", when, i);
        free(got[i]);
    }
}

static const char *speculation(const char *table)
{
    static char text[4400];
    snprintf(text, sizeof text,
             "replay = { exact = true; };\nspeculation = { mode = \"dynamic\"; draft_length = %d; min_gain = 1.0; "
             "probe_share = 0.0; group_sync = true; table_file = \"%s/%s\"; measure = \"30s\"; };\n",
             BLOCK, folder, table);
    return text;
}

/* The texts, and a table that this program takes for its own. */
static void ask_alone(void)
{
    struct ts_server alone;
    char keys[4600];
    snprintf(keys, sizeof keys, "compute = { threads = 1; };\nengine = { decode_streams = 4; };\n%s",
             speculation("measured"));
    ts_server_start(&alone, NULL, keys);
    begin(alone.port);
    finish(want);
    ts_server_free(&alone);
}

/* ---- what the members do ---- */

/* A member's counters, which its reports bring together. */
struct member {
    double drafted, steps; /* as first seen so */
    double now;            /* steps of the newest report */
};

static double counter(int node, const char *name)
{
    double x = ts_metric(&ts_cluster.node[node].http, name);
    return x >= 0 ? x : 0;
}

static void look(int node, struct member *m)
{
    double drafted = counter(node, "weft_spec_decode_num_drafted_tokens_total");
    m->now = counter(node, "weft_spec_decode_request_steps_total");
    if (drafted != m->drafted)
        *m = (struct member){drafted, m->now, m->now};
}

/* Rounds until both members have drafted (again), which they do for their leader alone. */
static void until_they_follow(const char *when)
{
    struct member d1 = {0}, d2 = {0};
    look(D1, &d1);
    look(D2, &d2);
    const double before1 = d1.drafted, before2 = d2.drafted;
    for (int round = 0; d1.drafted == before1 || d2.drafted == before2; round++) {
        if (round == ROUNDS)
            ts_cluster_show_logs();
        cr_assert_lt(round, ROUNDS, "%s: the members have drafted %g and %g", when, d1.drafted, d2.drafted);
        serve(when);
        look(D1, &d1);
        look(D2, &d2);
    }
}

/* Rounds until both have gone on for a while without a draft, by plans of their own. */
static void until_they_plan_alone(const char *when)
{
    struct member d1 = {0}, d2 = {0};
    look(D1, &d1);
    look(D2, &d2);
    for (int round = 0; d1.now < d1.steps + STEPS || d2.now < d2.steps + STEPS; round++) {
        if (round == ROUNDS)
            ts_cluster_show_logs();
        cr_assert_lt(round, ROUNDS, "%s: since their last draft the members made %g and %g steps", when,
                     d1.now - d1.steps, d2.now - d2.steps);
        serve(when);
        look(D1, &d1);
        look(D2, &d2);
    }
}

Test(group, members_use_the_leaders_budget_and_none_waits_for_it)
{
    if (access("samples/tiny/config.json", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    folder = ts_temp_dir();
    ask_alone();
    ts_cluster_write(nodes, NODES, "decode_streams = 4;", speculation("table"));
    write_table(false);
    ts_node_start(&ts_cluster.node[D2]);
    ts_node_start(&ts_cluster.node[D1]);
    write_table(true);
    ts_node_start(&ts_cluster.node[D0]);
    ts_node_start(&ts_cluster.node[P0]);
    ts_node_start(&ts_cluster.node[GATEWAY]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    for (int i = D0; i <= D2; i++)
        ts_node_wait_log(&ts_cluster.node[i], "source=file");

    until_they_follow("a leader");
    ts_node_kill(&ts_cluster.node[D0]);
    until_they_plan_alone("the leader is dead");
    ts_node_start(&ts_cluster.node[D0]);
    until_they_follow("the leader is back");
    kill(ts_cluster.node[D0].pid, SIGSTOP);
    until_they_plan_alone("the leader stands still");
    kill(ts_cluster.node[D0].pid, SIGCONT);
    until_they_follow("the leader goes on");
    for (int i = 0; i < STREAMS; i++)
        free(want[i]);
}
