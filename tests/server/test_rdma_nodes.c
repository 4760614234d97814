/* What becomes of deployments over the provider rdma, in the guest of tests/rdma/guest.sh (`make test-rdma`): a decode
 * node is drained, the node with the balancer dies. test_forms.c has what they say while all is well. */
#include <jansson.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/deployment.h"
#include "tests/support/process.h"
#include "tests/support/rdma_rig.h"

TestSuite(rdma_nodes, .fini = ts_cluster_end, .timeout = 600);

#define HOST "10.77.0.1" /* rxe0 */
enum { TOKENS = 4, WAIT = 600 };

/* ---- a drained node ---------------------------------------------------------------------------------------------- */

enum { FRONT, D0, D1, DRAIN_NODES, STREAMS = 2, LONG = 48 };

static const struct ts_node drain_nodes[DRAIN_NODES] = {
    [FRONT] = {.name = "front", .roles = "\"gateway\", \"prefill\", \"expert\"", .group = "f", .host = HOST},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0", .host = HOST},
    [D1] = {.name = "d1", .roles = "\"decode\", \"expert\"", .group = "d1", .host = HOST},
};

static struct ts_flow flow[STREAMS];

static void begin_streams(void)
{
    for (int i = 0; i < STREAMS; i++) {
        char more[64];
        snprintf(more, sizeof more, "\"seed\":%d,\"temperature\":%d,\"ignore_eos\":true", i, i % 2);
        char *body = ts_body(TS_CHAT, i ? "It was a dark and stormy night" : "Once upon a time", LONG, true, more);
        cr_assert(ts_flow_open(&flow[i], ts_cluster.node[FRONT].http.port, ts_path(TS_CHAT), body));
        free(body);
    }
}

/* To the end of all streams; their texts, freed by the caller. */
static void end_streams(char *text[STREAMS])
{
    while (ts_flows_turn(flow, STREAMS, 1000))
        ;
    for (int i = 0; i < STREAMS; i++) {
        char *body = ts_flow_body(&flow[i]);
        cr_assert_eq(ts_flow_status(&flow[i]), 200, "stream %d: %d %s", i, ts_flow_status(&flow[i]), body);
        struct ts_answer a = ts_answer_of(TS_CHAT, body, true);
        cr_expect_eq(a.output, LONG, "stream %d", i);
        text[i] = strdup(a.text);
        ts_answer_free(&a);
        free(body);
        ts_flow_close(&flow[i]);
    }
}

static long long running_at(int node)
{
    json_t *j = ts_status_of(node), *load = json_object_get(j, "load");
    long long n = json_integer_value(json_object_get(json_object_get(load, "decode"), "running"));
    json_decref(j);
    return n;
}

/* `weft drain`: the streams of the node go over to the other one, state and all, by rdma alone, and say what they say
 * there when nobody moves them. */
Test(rdma_nodes, a_drained_decode_node_hands_its_streams_over_without_tcp)
{
    char *moved[STREAMS], *stayed[STREAMS], path[4200];
    rr_need_guest();
    /* Emulated, on a busy host, under a sanitizer: nothing is late. */
    ts_cluster_start(drain_nodes, DRAIN_NODES, "ticket_lease = \"600s\";",
                     "transport = { provider = \"rdma\"; };\nreplay = { exact = true; };\n"
                     "speculation = { draft_length = 1; };\n"
                     "experts = { deadline = \"120s\"; };\nlimits = { stuck = \"120s\"; drain = \"10min\"; };\n");
    const struct ts_server *s = &ts_cluster.node[FRONT].http;
    begin_streams();
    while (flow[0].len < 600 || flow[1].len < 600) /* both have begun */
        cr_assert_eq(ts_flows_turn(flow, STREAMS, 1000), STREAMS, "a stream has ended");
    int leaves = 0;
    for (int i = 0; i < WAIT && !leaves; i++)
        leaves = running_at(D0) ? D0 : running_at(D1) ? D1 : 0;
    cr_assert(leaves, "nobody says that a stream runs");
    int other = D0 + D1 - leaves;
    cr_expect_eq(ts_tcp_sockets(ts_cluster.node[leaves].pid, 0), 0);
    snprintf(path, sizeof path, "%s/weft.conf", ts_cluster.dir);
    struct ts_result r = ts_run(ts_weft(), "drain", path, drain_nodes[leaves].name);
    printf("%s", r.out);
    end_streams(moved);
    if (r.status || !strstr(r.out, " moved to other nodes, 0 cut off"))
        ts_cluster_show_logs();
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, " moved to other nodes, 0 cut off"), "%s", r.out);
    ts_result_free(&r);
    cr_expect_geq(ts_metric(s, "weft_requests_moved_total"), 1);
    cr_expect_eq(ts_metric(s, "weft_requests_replaced_total"), 0);
    json_t *j = ts_status_of(other), *t = json_object_get(j, "transport");
    char *text = json_dumps(t, JSON_COMPACT);
    printf("%s: %s\n", drain_nodes[other].name, text);
    cr_expect_str_eq(json_string_value(json_object_get(t, "provider")), "rdma");
    cr_expect_eq(ts_tcp_sockets(ts_cluster.node[other].pid, 0), 0);
    free(text);
    json_decref(j);
    begin_streams();
    end_streams(stayed);
    for (int i = 0; i < STREAMS; i++) {
        cr_expect_str_eq(moved[i], stayed[i], "stream %d", i);
        free(moved[i]);
        free(stayed[i]);
    }
}

/* ---- the balancer's successor ------------------------------------------------------------------------------------ */

/* The node with the balancer in charge dies, and nobody stands in for its experts: the next request is answered when
 * the other node's balancer has taken over and has had its own shard load them, all by messages over rdma. */
Test(rdma_nodes, when_the_node_with_the_balancer_dies_the_next_one_has_its_experts_loaded)
{
    enum { MAIN, E0, E1, ALL };
    static const struct ts_node experts[ALL] = {
        [MAIN] = {.name = "main", .roles = "\"gateway\", \"prefill\", \"decode\"", .host = HOST},
        [E0] = {.name = "e0", .roles = "\"expert\"", .host = HOST},
        [E1] = {.name = "e1", .roles = "\"expert\"", .host = HOST},
    };
    struct ts_server alone;
    const struct ts_server *s = &ts_cluster.node[MAIN].http;
    rr_need_guest();
    ts_server_start(&alone, NULL, "compute = { threads = 1; };\nkv = { memory = \"64MiB\"; snapshots = \"8MiB\"; };\n");
    char *want = ts_cluster_complete_to(&alone, "Once upon a time", TOKENS);
    ts_server_free(&alone);
    /* Emulated, on a busy host, under a sanitizer: nothing is late. */
    ts_cluster_start(experts, ALL, "",
                     "transport = { provider = \"rdma\"; };\nlimits = { stuck = \"120s\"; };\n"
                     "experts = { deadline = \"120s\"; patience = \"300s\"; lost = \"wait\"; balance = \"1s\"; };\n");
    for (int dead = 0; dead < 2; dead++) {
        if (dead)
            ts_node_kill(&ts_cluster.node[E0]);
        char *got = ts_cluster_complete_to(s, "Once upon a time", TOKENS);
        if (strcmp(got, want))
            ts_cluster_show_logs();
        cr_expect_str_eq(got, want, "%s", dead ? "without the first node" : "all there");
        free(got);
    }
    for (int i = MAIN; i < ALL; i++)
        cr_expect(i == E0 || ts_tcp_sockets(ts_cluster.node[i].pid, ts_cluster.node[i].http.port) == 0, "%s",
                  experts[i].name);
    free(want);
}
