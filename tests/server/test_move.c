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

static void begin_some(int port, int from, int to)
{
    for (int i = from; i < to; i++) {
        char *body = body_of(i);
        cr_assert(ts_flow_open(&flow[i], port, ts_path(TS_CHAT), body));
        free(body);
    }
}

static void begin(int port)
{
    begin_some(port, 0, STREAMS);
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

static double moved_at(const struct ts_server *s)
{
    return ts_metric(s, "weft_requests_moved_total");
}

static double moved(void)
{
    return moved_at(&ts_cluster.node[GATEWAY].http);
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

/* One of the two dies while sequences move, or both do. In exact mode, where those that have to be placed again say the
 * same. */
Test(move, a_node_dies_while_it_is_drained)
{
    const char *exact = "replay = { exact = true; };\n";
    ask_alone(exact);
    ts_cluster_start(nodes, NODES, "", exact);
    for (int k = 0; k < 3; k++) {
        struct ts_node *left = &ts_cluster.node[D0], *dies = &ts_cluster.node[k == 1 ? D1 : D0],
                       *too = k == 2 ? &ts_cluster.node[D1] : NULL;
        double before = moved();
        begin(ts_cluster.node[GATEWAY].http.port);
        while (!all_speak())
            ts_flows_turn(flow, STREAMS, 1000);
        kill(left->pid, SIGTERM);
        for (int turn = 0; turn < 20 && moved() == before; turn++) /* now, or when the first one has left */
            ts_flows_turn(flow, STREAMS, 5);
        ts_node_kill(dies);
        if (too)
            ts_node_kill(too);
        ts_node_start(dies);
        if (too)
            ts_node_start(too);
        finish_and_compare(too ? "both die" : "one dies");
        if (left != dies)
            wait_end(left);
        if (left != dies)
            ts_node_start(left);
        ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    }
    forget_answers();
}

/* ---- nodes that are gateway and decode in one ---- */

enum { BOTH_P, BOTH_A, BOTH_B, BOTH };

static const struct ts_node both[BOTH] = {
    [BOTH_P] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [BOTH_A] = {.name = "a", .roles = "\"gateway\", \"decode\", \"expert\"", .group = "a"},
    [BOTH_B] = {.name = "b", .roles = "\"gateway\", \"decode\", \"expert\"", .group = "b"},
};

static void expect_status(const struct ts_server *s, int status)
{
    struct ts_reply r = ts_post(s, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":2}");
    cr_assert_eq(r.status, status, "%d %s", r.status, r.body ? r.body : "");
    ts_reply_free(&r);
}

/* Clients of the node that leaves have their streams to the end, one of them even a prompt that waits while the prefill
 * node stands still, which holds the drain where it can be looked at. What the node decodes for clients of the other
 * gateway goes over there, and so do its own clients' streams; new requests are told 503 here and served there. */
Test(move, a_gateway_that_decodes_is_drained_under_load)
{
    ask_alone("");
    ts_cluster_start(both, BOTH, "", "limits = { drain = \"2min\"; };\n");
    struct ts_node *a = &ts_cluster.node[BOTH_A], *b = &ts_cluster.node[BOTH_B], *p = &ts_cluster.node[BOTH_P];
    /* The actor that finishes prompts on a decode node is none of the places where prompts are computed. */
    ts_node_kill(p);
    ts_node_wait_ready(a, 503);
    ts_node_wait_ready(b, 503);
    ts_node_start(p);
    ts_node_wait_ready(a, 200);
    ts_node_wait_ready(b, 200);
    for (int k = 0; k < ROUNDS && (k < 2 || moved_at(&b->http) < 1); k++) {
        double replaced = ts_metric(&b->http, "weft_requests_replaced_total");
        begin_some(a->http.port, 0, STREAMS / 2);
        begin_some(b->http.port, STREAMS / 2, STREAMS);
        while (!all_speak())
            ts_flows_turn(flow, STREAMS, 1000);
        kill(p->pid, SIGSTOP);
        int waits = ts_connect(a->http.port);
        cr_assert(ts_send_request(waits, "POST", "/v1/completions",
                                  "{\"prompt\":\"It waits\",\"max_tokens\":30,\"ignore_eos\":true,\"stream\":true,"
                                  "\"stream_options\":{\"include_usage\":true}}"));
        ts_until_metric(&a->http, "weft_num_requests_waiting", 1);
        kill(a->pid, SIGTERM);
        ts_node_wait_ready(a, 503);
        expect_status(&a->http, 503);
        kill(p->pid, SIGCONT);
        cr_assert(ts_read_until(waits, "\"completion_tokens\":30"), "the stream that waited was cut off");
        close(waits);
        finish_and_compare("gateway and decode");
        int end = wait_end(a);
        if (end)
            ts_cluster_show_logs();
        cr_assert_eq(end, 0, "it ended with status %d", end);
        cr_assert_eq(ts_metric(&b->http, "weft_requests_replaced_total"), replaced);
        expect_status(&b->http, 200);
        ts_node_start(a);
        ts_node_wait_ready(a, 200);
    }
    cr_expect_gt(moved_at(&b->http), 0, "nothing was there to be moved, in %d rounds", ROUNDS);
    forget_answers();
}
