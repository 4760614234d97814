/* A gateway that dies with a long queue, or stands still until the others take it for lost and then goes on: what it
 * had asked for is not computed for nobody, and a client that comes then is answered. */
#include <jansson.h>
#include <signal.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"

TestSuite(lost_gateways, .fini = ts_cluster_end, .timeout = 300);

enum { G, P, D, NODES, QUEUE = 64, TOKENS = 5, WORDS = 240, LATER = 8 };

static struct ts_flow flow[QUEUE];

static void start(void)
{
    static const struct ts_node nodes[] = {
        {.name = "g", .roles = "\"gateway\""},
        {.name = "p", .roles = "\"prefill\", \"expert\"", .group = "p", .metrics = true},
        {.name = "d", .roles = "\"decode\", \"expert\"", .group = "d"}};
    ts_cluster_keys = "ping = \"200ms\"; silence = \"1s\"; retry = \"200ms\";";
    ts_cluster_start(nodes, NODES, "", "");
}

/* No two are alike, so that none is found in the history of another. */
static char *long_body(int which)
{
    static unsigned x = 7;
    char prompt[WORDS * 12];
    int at = snprintf(prompt, sizeof prompt, "%d", which);
    for (int i = 0; i < WORDS; i++) {
        x = x * 1664525 + 1013904223;
        at += snprintf(prompt + at, sizeof prompt - (size_t)at, " river%u", x >> 20 & 1023);
    }
    return ts_body(TS_COMPLETIONS, prompt, TOKENS, false, "\"ignore_eos\":true");
}

static void queue_all(int n)
{
    for (int i = 0; i < n; i++) {
        char *body = long_body(i);
        cr_assert(ts_flow_open(&flow[i], ts_cluster.node[G].http.port, ts_path(TS_COMPLETIONS), body));
        free(body);
    }
}

/* Prompts and sequences that a node has: of its `part`. */
static int open_at(int node, const char *part)
{
    char *text = ts_node_ask(&ts_cluster.node[node], "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    json_t *l = json_object_get(json_object_get(j, "load"), part);
    int n =
        l ? (int)(json_integer_value(json_object_get(l, "running")) + json_integer_value(json_object_get(l, "waiting")))
          : -1;
    json_decref(j);
    free(text);
    return n;
}

static void until_open(int node, const char *part, int least, int most, const char *when)
{
    int n = -1;
    for (int t = 0; t < 600; t++) {
        n = open_at(node, part);
        if (n >= least && n <= most)
            return;
        usleep(50000);
    }
    ts_cluster_show_logs();
    cr_assert_fail("%s: %d prompts or sequences at %s", when, n, ts_cluster.node[node].name);
}

/* Until the gateway has read them all: one that comes when no node is there is refused. */
static void until_taken(int n)
{
    const struct ts_server *s = &ts_cluster.node[G].http;
    for (int t = 0; t < 600; t++) {
        int open = ts_flows_turn(flow, n, 10);
        if (ts_metric(s, "weft_num_requests_running") + ts_metric(s, "weft_num_requests_waiting") >= open)
            return;
    }
    ts_cluster_show_logs();
    cr_assert_fail("the gateway does not read its requests");
}

/* What Prefill has done so far, as it has told by now. */
static double done(void)
{
    double n = ts_metric(&ts_cluster.node[P].http, "weft_expert_exchanges_total{source=\"prefill\"}");
    cr_assert(n >= 0, "no figures");
    return n;
}

static void answer_all(int n, const char *when)
{
    for (int t = 0; t < 1200 && ts_flows_turn(flow, n, 100); t++) {
        int now = t % 4 ? 0 : open_at(P, "prefill");
        cr_assert_leq(now, n, "%s: %d prompts for %d requests", when, now, n);
    }
    for (int i = 0; i < n; i++) {
        char *body = ts_flow_body(&flow[i]);
        if (ts_flow_status(&flow[i]) != 200)
            ts_cluster_show_logs();
        cr_assert_eq(ts_flow_status(&flow[i]), 200, "%s: request %d: %d %s", when, i, ts_flow_status(&flow[i]), body);
        free(body);
        ts_flow_close(&flow[i]);
    }
}

/* It is back under a new epoch. What is computed for it then is the measure of what was computed for the dead one. */
Test(lost_gateways, one_that_dies_with_a_queue_keeps_nobody_waiting)
{
    start();
    queue_all(QUEUE);
    until_open(P, "prefill", QUEUE / 2, QUEUE, "the queue");
    double before = done();
    ts_node_kill(&ts_cluster.node[G]);
    for (int i = 0; i < QUEUE; i++)
        ts_flow_close(&flow[i]);
    until_open(P, "prefill", 0, 0, "the gateway is dead");
    until_open(D, "decode", 0, 0, "the gateway is dead");
    double ghosts = done() - before;
    ts_node_start(&ts_cluster.node[G]);
    ts_node_wait_ready(&ts_cluster.node[G], 200);
    char *text = ts_cluster_complete_to(&ts_cluster.node[G].http, "Once upon a time", TOKENS);
    free(text);
    before = done();
    queue_all(LATER);
    answer_all(LATER, "the gateway is back");
    for (int t = 0; ghosts > 2 * (done() - before); t++) {
        cr_assert_lt(t, 600, "%.0f exchanges for the dead gateway, %.0f for %d prompts of the living one", ghosts,
                     done() - before, LATER);
        usleep(50000);
    }
}

/* It goes on in the same life, with the same clients: each has its answer, and each prompt is there once. */
Test(lost_gateways, one_that_stands_still_for_long_has_each_prompt_once)
{
    enum { CLIENTS = QUEUE / 2 };
    start();
    queue_all(CLIENTS);
    until_open(P, "prefill", CLIENTS / 2, CLIENTS, "the queue");
    until_taken(CLIENTS);
    kill(ts_cluster.node[G].pid, SIGSTOP);
    ts_node_wait_log(&ts_cluster.node[P], "is lost: it does not answer");
    ts_node_wait_log(&ts_cluster.node[D], "is lost: it does not answer");
    until_open(P, "prefill", 0, 0, "the gateway stands still");
    until_open(D, "decode", 0, 0, "the gateway stands still");
    kill(ts_cluster.node[G].pid, SIGCONT);
    answer_all(CLIENTS, "the gateway goes on");
    until_open(P, "prefill", 0, 0, "all are answered");
    until_open(D, "decode", 0, 0, "all are answered");
}
