/* Nodes with the role kv as processes: what one prefill node computed, another one that never saw it reads from them,
 * with the text of exact mode; through the death, the silence and the return of a kv node. */
#include <jansson.h>
#include <signal.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

TestSuite(kv_nodes, .fini = ts_cluster_end, .timeout = 300);

enum { GATEWAY, P0, P1, D0, K0, K1, NODES, WAIT = 600, TOKENS = 12 };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [P1] = {.name = "p1", .roles = "\"prefill\", \"expert\"", .group = "p1"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    [K0] = {.name = "kv-0", .roles = "\"kv\""},
    [K1] = {.name = "kv-1", .roles = "\"kv\""},
};

/* Blocks of 32 tokens of the sample model take 12 KiB. */
static void start(const char *nodes_keys)
{
    char *more = NULL;
    cr_assert_gt(asprintf(&more,
                          "replay = { exact = true; };\nsampling = { temperature = 0.0; };\n"
                          "kv = { memory = \"4MiB\"; snapshots = \"0B\"; block_tokens = 32; ssd = { reserve = "
                          "\"1MiB\"; }; nodes = { memory = \"8MiB\"; size = \"16MiB\"; %s }; };\n",
                          nodes_keys),
                 0);
    ts_cluster_start(nodes, NODES, "", more);
    free(more);
}

/* Some hundred tokens; prompts differ from their beginning on. */
static struct ts_answer ask(int which)
{
    char prompt[2048];
    int n = snprintf(prompt, sizeof prompt, "%d. ", which);
    while (n < 1300)
        n += snprintf(prompt + n, sizeof prompt - (size_t)n, "In the beginning God created the heaven and the earth. ");
    char *body = ts_body(TS_COMPLETIONS, prompt, TOKENS, false, "");
    struct ts_reply r = ts_post(&ts_cluster.node[GATEWAY].http, ts_path(TS_COMPLETIONS), body);
    if (r.status != 200)
        ts_cluster_show_logs();
    cr_assert_eq(r.status, 200, "%d %s", r.status, r.body ? r.body : "");
    struct ts_answer a = ts_answer_of(TS_COMPLETIONS, r.body, false);
    ts_reply_free(&r);
    free(body);
    return a;
}

/* A figure of the node's tiers of that name, added up; -1: the node does not answer. */
static json_int_t figure(int node, const char *tier, const char *key)
{
    char *text = ts_node_ask(&ts_cluster.node[node], "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL, *t;
    json_int_t sum = j ? 0 : -1;
    size_t i;
    json_array_foreach (json_object_get(j, "tiers"), i, t) {
        if (!strcmp(json_string_value(json_object_get(t, "tier")), tier))
            sum += json_integer_value(json_object_get(t, key));
    }
    json_decref(j);
    free(text);
    return sum;
}

static void until(int node, const char *tier, const char *key, json_int_t least)
{
    json_int_t now = -1;
    for (int i = 0; i < WAIT && now < least; i++) {
        now = figure(node, tier, key);
        if (now < least)
            usleep(100000);
    }
    if (now < least)
        ts_cluster_show_logs();
    cr_assert_geq(now, least, "%s: %s of tier %s is %lld", ts_cluster.node[node].name, key, tier, (long long)now);
}

/* From now on this prefill node, in a new process, has all the work, and it knows both kv nodes. */
static void only_prefill(int on)
{
    char log[4300];
    for (int i = P0; i <= P1; i++)
        if (ts_cluster.node[i].pid)
            ts_node_kill(&ts_cluster.node[i]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 503);
    snprintf(log, sizeof log, "%s/%s.log", ts_cluster.dir, ts_cluster.node[on].name);
    unlink(log);
    ts_node_start(&ts_cluster.node[on]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    ts_node_wait_log(&ts_cluster.node[on], "node_up node=d0");
    for (int k = K0; k <= K1; k++) {
        char up[64];
        snprintf(up, sizeof up, "node_up node=%s", ts_cluster.node[k].name);
        if (ts_cluster.node[k].pid)
            ts_node_wait_log(&ts_cluster.node[on], up);
    }
}

Test(kv_nodes, what_one_prefill_node_computed_another_reads)
{
    start("");
    only_prefill(P0);
    struct ts_answer cold = ask(1);
    cr_assert_eq(cold.cached, 0);
    until(P0, "kv", "stored", 8);
    only_prefill(P1);
    struct ts_answer hit = ask(1);
    cr_assert_str_eq(hit.text, cold.text);
    cr_assert_gt(hit.cached, 200, "%d tokens cached", hit.cached);
    until(P1, "kv", "read", 7);
    /* Both nodes had their share. */
    until(K0, "host", "read", 1);
    until(K1, "host", "read", 1);
    ts_answer_free(&hit);
    ts_answer_free(&cold);
}
