/* Prefill and decode as processes of their own over tcp: the tokens of one process in every form of hand-off, through
 * the death, the silence and the return of each node. */
#include <signal.h>

#include "tests/harness.h"
#include "tests/support/cluster.h"

TestSuite(cluster, .fini = ts_cluster_end, .timeout = 300);

enum { GATEWAY, P0, P1, D0, D1, NODES };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [P1] = {.name = "p1", .roles = "\"prefill\", \"expert\"", .group = "p1"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    [D1] = {.name = "d1", .roles = "\"decode\", \"expert\"", .group = "d1"},
};

/* In exact mode, where a request that goes on elsewhere has the same tokens. */
Test(cluster, every_node_may_die_stand_still_and_come_back)
{
    char *want[TS_CLUSTER_PROMPTS];
    ts_cluster_ask_alone("replay = { exact = true; };\n", want);
    ts_cluster_start(nodes, NODES, "", "replay = { exact = true; };\n");
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    ts_cluster_check(s, want, "all there");
    for (int i = P0; i < NODES; i++) {
        struct ts_node *n = &ts_cluster.node[i];
        kill(n->pid, SIGSTOP);
        ts_cluster_check(s, want, "one stands still");
        kill(n->pid, SIGCONT);
        ts_node_kill(n);
        ts_cluster_check(s, want, "one is dead");
        ts_node_start(n);
        ts_cluster_check(s, want, "it is back");
    }
    ts_node_kill(&ts_cluster.node[D0]);
    ts_node_kill(&ts_cluster.node[D1]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 503);
    ts_node_start(&ts_cluster.node[D1]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    ts_cluster_check(s, want, "one of two is back");
    ts_cluster_forget(want);
}

/* full and encoder give what one process says. global is the approximation of a prefix hit: every request is served,
 * and a repetition says the same. */
Test(cluster, forms_of_hand_off)
{
    char *want[TS_CLUSTER_PROMPTS];
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    ts_cluster_ask_alone("", want);
    ts_cluster_start(nodes, NODES, "handoff = \"full\";", "");
    ts_cluster_check(s, want, "full");
    ts_cluster_end();
    ts_cluster_start(nodes, NODES, "handoff = \"encoder\";", "");
    ts_cluster_check(s, want, "encoder");
    ts_cluster_end();
    ts_cluster_forget(want);
    ts_cluster_start(nodes, NODES, "handoff = \"global\";", "");
    for (int i = 0; i < TS_CLUSTER_PROMPTS; i++)
        want[i] = ts_cluster_complete(s, ts_cluster_prompts[i]);
    ts_cluster_check(s, want, "global");
    ts_cluster_forget(want);
}
