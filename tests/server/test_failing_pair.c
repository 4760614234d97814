/* One node of each pair is stable, the other one fails again and again under load: what goes through the gateway never
 * fails, in exact mode with the same tokens. For each role. */
#include <jansson.h>
#include <signal.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

TestSuite(failing_pair, .fini = ts_cluster_end, .timeout = 300);

/* Long enough that no stream has ended when the nodes fail that it is for. */
enum { STREAMS = 4, TOKENS = 240 };

#define EXACT "replay = { exact = true; };\n"
#define RECIPE "\"temperature\":0,\"ignore_eos\":true"

static char *complete(const struct ts_server *s, int prompt)
{
    struct ts_answer a = ts_ask(s, TS_COMPLETIONS, ts_cluster_prompts[prompt], TOKENS, false, RECIPE);
    char *text = strdup(a.text);
    cr_assert_eq(a.output, TOKENS);
    ts_answer_free(&a);
    return text;
}

/* What a single process says. */
static void ask_alone(char *want[TS_CLUSTER_PROMPTS])
{
    struct ts_server alone;
    ts_server_start(&alone, NULL, "compute = { threads = 1; };\n" EXACT);
    for (int i = 0; i < TS_CLUSTER_PROMPTS; i++)
        want[i] = complete(&alone, i);
    ts_server_free(&alone);
}

/* Streams that are under way while nodes fail. */
struct load {
    struct ts_flow flow[STREAMS];
};

static void begin(struct load *l, const struct ts_server *s)
{
    for (int i = 0; i < STREAMS; i++) {
        char *body = ts_body(TS_COMPLETIONS, ts_cluster_prompts[i % TS_CLUSTER_PROMPTS], TOKENS, true, RECIPE);
        cr_assert(ts_flow_open(&l->flow[i], s->port, ts_path(TS_COMPLETIONS), body));
        free(body);
    }
}

/* Until each stream has answered something, or is over. */
static void until_under_way(struct load *l)
{
    for (int t = 0; t < 600; t++) {
        int begun = 0;
        ts_flows_turn(l->flow, STREAMS, 50);
        for (int i = 0; i < STREAMS; i++)
            begun += l->flow[i].ended || (l->flow[i].data && strstr(l->flow[i].data, "data: "));
        if (begun == STREAMS)
            return;
    }
    ts_cluster_show_logs();
    cr_assert_fail("the streams do not begin");
}

static void end(struct load *l, char *const want[TS_CLUSTER_PROMPTS], const char *when)
{
    for (int t = 0; t < 1200 && ts_flows_turn(l->flow, STREAMS, 100); t++)
        ;
    for (int i = 0; i < STREAMS; i++) {
        char *body = ts_flow_body(&l->flow[i]);
        if (!l->flow[i].ended || ts_flow_status(&l->flow[i]) != 200 || strstr(body, "\"error\""))
            ts_cluster_show_logs();
        cr_assert(l->flow[i].ended, "%s: stream %d does not end: %s", when, i, body);
        cr_assert_eq(ts_flow_status(&l->flow[i]), 200, "%s: stream %d: %s", when, i, body);
        struct ts_answer a = ts_answer_of(TS_COMPLETIONS, body, true);
        cr_assert_str_eq(a.text, want[i % TS_CLUSTER_PROMPTS], "%s: stream %d", when, i);
        ts_answer_free(&a);
        free(body);
        ts_flow_close(&l->flow[i]);
    }
}

/* The nodes from..to fail together while streams run: dead, standing still, dead again while they come back. hit: a
 * figure that grows when requests were at them; NULL: there is none. */
static void go_through_fates(const struct ts_server *s, int from, int to, const char *hit,
                             char *const want[TS_CLUSTER_PROMPTS])
{
    struct load l;
    for (int round = 0, in_vain = 0; round < 3;) {
        double before = hit ? ts_metric(s, hit) : 0;
        begin(&l, s);
        until_under_way(&l);
        for (int i = from; i <= to; i++) {
            if (round == 1)
                kill(ts_cluster.node[i].pid, SIGSTOP);
            else
                ts_node_kill(&ts_cluster.node[i]);
        }
        end(&l, want, round == 1 ? "standing still" : "dead");
        bool was_hit = !hit || ts_metric(s, hit) > before;
        begin(&l, s);
        for (int i = from; i <= to; i++) {
            if (round == 1)
                kill(ts_cluster.node[i].pid, SIGCONT);
            else
                ts_node_start(&ts_cluster.node[i]);
        }
        end(&l, want, "coming back");
        round += was_hit; /* nodes that had not been found again yet have had nothing to lose */
        in_vain += !was_hit;
        cr_assert_lt(in_vain, 30, "round %d: nothing is ever under way at the nodes that fail", round);
    }
}

Test(failing_pair, of_prefill_and_of_decode_nodes)
{
    static const struct ts_node nodes[] = {
        {.name = "gateway", .roles = "\"gateway\""},
        {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
        {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
        {.name = "p1", .roles = "\"prefill\", \"expert\"", .group = "p1"},
        {.name = "d1", .roles = "\"decode\", \"expert\"", .group = "d1"},
    };
    char *want[TS_CLUSTER_PROMPTS];
    ask_alone(want);
    ts_cluster_start(nodes, 5, "", EXACT);
    go_through_fates(&ts_cluster.node[0].http, 3, 4, "weft_requests_replaced_total", want);
    ts_cluster_forget(want);
}

Test(failing_pair, of_expert_nodes)
{
    static const struct ts_node nodes[] = {{.name = "main", .roles = "\"gateway\", \"prefill\", \"decode\""},
                                           {.name = "e0", .roles = "\"expert\""},
                                           {.name = "e1", .roles = "\"expert\""}};
    char *want[TS_CLUSTER_PROMPTS];
    ask_alone(want);
    ts_cluster_start(nodes, 3, "", EXACT "experts = { deadline = \"500ms\"; };");
    go_through_fates(&ts_cluster.node[0].http, 2, 2, NULL, want);
    ts_cluster_forget(want);
}

static void until_idle(const char *conf, const char *node, const char *part)
{
    for (int t = 0;; t++) {
        struct ts_result r = ts_run(ts_weft(), "status", "--json", conf, node);
        json_t *j = json_loads(r.out, 0, NULL), *n = json_array_get(json_object_get(j, "nodes"), 0);
        json_t *l = json_object_get(json_object_get(n, "load"), part);
        json_int_t left =
            l ? json_integer_value(json_object_get(l, "running")) + json_integer_value(json_object_get(l, "waiting"))
              : 1;
        json_decref(j);
        ts_result_free(&r);
        if (!left)
            return;
        cr_assert_lt(t, 300, "what the dead gateway asked for goes on at %s", node);
        usleep(100000);
    }
}

/* What a gateway had asked for ends with it everywhere; another gateway's clients notice nothing. */
Test(failing_pair, of_gateways)
{
    static const struct ts_node nodes[] = {{.name = "g0", .roles = "\"gateway\""},
                                           {.name = "p", .roles = "\"prefill\", \"expert\"", .group = "p"},
                                           {.name = "d", .roles = "\"decode\", \"expert\"", .group = "d"},
                                           {.name = "g1", .roles = "\"gateway\""}};
    enum { G0, P, D, G1, ALL };
    char *want[TS_CLUSTER_PROMPTS], conf[4300];
    ask_alone(want);
    ts_cluster_start(nodes, ALL, "", EXACT);
    snprintf(conf, sizeof conf, "%s/weft.conf", ts_cluster.dir);
    for (int round = 0; round < 2; round++) {
        struct load stable, failing;
        begin(&failing, &ts_cluster.node[G1].http);
        begin(&stable, &ts_cluster.node[G0].http);
        until_under_way(&failing);
        ts_node_kill(&ts_cluster.node[G1]);
        end(&stable, want, "the other gateway is dead");
        for (int i = 0; i < STREAMS; i++)
            ts_flow_close(&failing.flow[i]);
        for (int i = P; i <= D; i++) /* nothing of it goes on anywhere */
            until_idle(conf, ts_cluster.node[i].name, i == P ? "prefill" : "decode");
        ts_node_start(&ts_cluster.node[G1]);
        ts_node_wait_ready(&ts_cluster.node[G1], 200);
        for (int i = 0; i < TS_CLUSTER_PROMPTS; i++) {
            char *got = complete(&ts_cluster.node[G1].http, i);
            cr_assert_str_eq(got, want[i], "it is back");
            free(got);
        }
    }
    ts_cluster_forget(want);
}
