/* Draining a decode node under load: its streams go on at the other one with the tokens and log-probabilities of one
 * process, and the node ends when the last one has left. */
#include "tests/harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/cluster.h"

TestSuite(move, .fini = ts_cluster_end, .timeout = 300);

enum { GATEWAY, P0, D0, D1, NODES, STREAMS = 6, TOKENS = 300, ROUNDS = 6 };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    [D1] = {.name = "d1", .roles = "\"decode\", \"expert\"", .group = "d1"},
};

/* Greedy and sampled, with penalties, which count all that was said before. */
static char *body_of(int i)
{
    char more[160], prompt[64];
    snprintf(more, sizeof more,
             "\"seed\":%d,\"temperature\":%d,\"logprobs\":true,\"top_logprobs\":2,\"ignore_eos\":true,"
             "\"frequency_penalty\":0.%d",
             i, i % 2, i % 3);
    snprintf(prompt, sizeof prompt, "Tell the tale of number %d", i);
    return ts_body(TS_CHAT, prompt, TOKENS, true, more);
}

static struct ts_flow flow[STREAMS];
static struct ts_answer want[STREAMS];

static void forget_flows(void)
{
    for (int i = 0; i < STREAMS; i++)
        ts_flow_close(&flow[i]);
}

static void begin(int port)
{
    for (int i = 0; i < STREAMS; i++) {
        char *body = body_of(i);
        cr_assert(ts_flow_open(&flow[i], port, ts_path(TS_CHAT), body));
        free(body);
    }
}

static struct ts_answer answer(int i)
{
    char *body = ts_flow_body(&flow[i]);
    cr_assert_eq(ts_flow_status(&flow[i]), 200, "stream %d: %d %s", i, ts_flow_status(&flow[i]), body);
    struct ts_answer a = ts_answer_of(TS_CHAT, body, true);
    free(body);
    return a;
}

static void ask_alone(const char *more)
{
    struct ts_server alone;
    char keys[256];
    snprintf(keys, sizeof keys, "compute = { threads = 1; };\n%s", more);
    ts_server_start(&alone, NULL, keys);
    begin(alone.port);
    while (ts_flows_turn(flow, STREAMS, 1000))
        ;
    for (int i = 0; i < STREAMS; i++)
        want[i] = answer(i);
    forget_flows();
    ts_server_free(&alone);
}

/* Every stream says something. */
static bool all_speak(void)
{
    for (int i = 0; i < STREAMS; i++)
        if (!flow[i].ended && flow[i].len < 2000)
            return false;
    return true;
}

static void finish_and_compare(const char *when)
{
    while (ts_flows_turn(flow, STREAMS, 1000))
        ;
    for (int i = 0; i < STREAMS; i++) {
        struct ts_answer a = answer(i);
        if (strcmp(a.text, want[i].text))
            ts_cluster_show_logs();
        cr_assert_str_eq(a.text, want[i].text, "%s, stream %d", when, i);
        cr_assert_eq(a.output, want[i].output, "%s, stream %d: %d tokens", when, i, a.output);
        cr_assert(json_equal(a.logprobs, want[i].logprobs), "%s, stream %d: other log-probabilities", when, i);
        ts_answer_free(&a);
    }
    forget_flows();
}

static void forget_answers(void)
{
    for (int i = 0; i < STREAMS; i++)
        ts_answer_free(&want[i]);
}

static double moved(void)
{
    return ts_metric(&ts_cluster.node[GATEWAY].http, "weft_requests_moved_total");
}

static int wait_end(struct ts_node *n)
{
    int status;
    cr_assert_eq(waitpid(n->pid, &status, 0), n->pid);
    n->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* In the default mode, where only a move keeps the bits. */
Test(move, a_node_is_drained_under_load)
{
    ask_alone("");
    ts_cluster_start(nodes, NODES, "", "");
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    for (int k = 0; k < ROUNDS && (k < 2 || moved() < 1); k++) {
        struct ts_node *n = &ts_cluster.node[k % 2 ? D1 : D0];
        begin(s->port);
        while (!all_speak())
            ts_flows_turn(flow, STREAMS, 1000);
        kill(n->pid, SIGTERM);
        int end = wait_end(n);
        finish_and_compare(n->name);
        if (end)
            ts_cluster_show_logs();
        cr_assert_eq(end, 0, "%s ended with status %d", n->name, end);
        cr_assert_eq(ts_metric(s, "weft_requests_replaced_total"), 0);
        ts_node_start(n);
        ts_node_wait_log(&ts_cluster.node[P0], "node_up");
    }
    cr_expect_gt(moved(), 0, "nothing was there to be moved, in %d rounds", ROUNDS);
    forget_answers();
}

/* One of the two dies while sequences move. In exact mode, where those that have to be placed again say the same. */
Test(move, a_node_dies_while_it_is_drained)
{
    const char *exact = "replay = { exact = true; };\n";
    ask_alone(exact);
    ts_cluster_start(nodes, NODES, "", exact);
    for (int k = 0; k < 2; k++) {
        struct ts_node *left = &ts_cluster.node[D0], *dies = &ts_cluster.node[k ? D1 : D0];
        double before = moved();
        begin(ts_cluster.node[GATEWAY].http.port);
        while (!all_speak())
            ts_flows_turn(flow, STREAMS, 1000);
        kill(left->pid, SIGTERM);
        for (int turn = 0; turn < 20 && moved() == before; turn++) /* now, or when the first one has left */
            ts_flows_turn(flow, STREAMS, 5);
        ts_node_kill(dies);
        ts_node_start(dies);
        finish_and_compare("one dies");
        if (left != dies)
            wait_end(left);
        if (left != dies)
            ts_node_start(left);
        ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    }
    forget_answers();
}
