/* Expert shards as processes of their own over tcp: the tokens of one process, through their death, silence and return;
 * and a deployment in which every node decodes and is a shard too. */
#include <jansson.h>
#include <signal.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"

TestSuite(experts, .fini = ts_cluster_end, .timeout = 300);

static const struct ts_node apart[] = {{.name = "main", .roles = "\"gateway\", \"prefill\", \"decode\""},
                                       {.name = "e0", .roles = "\"expert\""},
                                       {.name = "e1", .roles = "\"expert\""},
                                       {.name = "e2", .roles = "\"expert\""}};

static long long carried(int node, const char *what)
{
    char *text = ts_node_ask(&ts_cluster.node[node], "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    cr_assert_not_null(j, "node %d: %s", node, text ? text : "no answer");
    json_t *class = json_object_get(json_object_get(j, "transport"), "expert");
    long long n = json_integer_value(json_object_get(class, what));
    json_decref(j);
    free(text);
    return n;
}

/* Dispatches and results are written into the other's slots: what goes as messages beside them is small. */
static void check_slots(int source, int shard, bool used)
{
    const int node[] = {source, shard};
    for (int i = 0; i < 2; i++) {
        long long puts = carried(node[i], "put_bytes_out"), messages = carried(node[i], "message_bytes_out");
        cr_assert(used ? puts > 100000 && puts > 20 * messages : puts == 0 && messages > 100000,
                  "%s: %lld bytes in slots, %lld as messages", ts_cluster.node[node[i]].name, puts, messages);
    }
}

Test(experts, shards_in_processes_give_the_tokens_of_one_process_through_every_fate)
{
    char *want[TS_CLUSTER_PROMPTS];
    ts_cluster_ask_alone("", want);
    ts_cluster_start(apart, 4, "", "experts = { deadline = \"500ms\"; balance = \"1s\"; spare = 2; };");
    const struct ts_server *s = &ts_cluster.node[0].http;
    ts_cluster_check(s, want, "all there");
    for (int i = 1; i < 4; i++)
        check_slots(0, i, true);
    ts_node_kill(&ts_cluster.node[2]);
    ts_cluster_check(s, want, "one is dead");
    kill(ts_cluster.node[3].pid, SIGSTOP);
    ts_cluster_check(s, want, "one is dead, one stands still");
    ts_node_wait_log(&ts_cluster.node[0], "has not answered in time");
    kill(ts_cluster.node[3].pid, SIGCONT);
    ts_node_start(&ts_cluster.node[2]);
    ts_cluster_check(s, want, "both are back");
    ts_node_kill(&ts_cluster.node[1]); /* the one with the balancer */
    ts_node_kill(&ts_cluster.node[2]);
    ts_cluster_check(s, want, "one of three is left");
    ts_cluster_forget(want);
}

/* Slots so small that prompts take many waves, and none. */
Test(experts, tokens_do_not_depend_on_slots)
{
    static const char *const more[] = {"experts = { slot_rows = 7; };", "experts = { slot_rows = 0; };"};
    char *want[TS_CLUSTER_PROMPTS];
    ts_cluster_ask_alone("", want);
    for (int i = 0; i < 2; i++) {
        ts_cluster_start(apart, 3, "", more[i]);
        ts_cluster_check(&ts_cluster.node[0].http, want, more[i]);
        check_slots(0, 1, i == 0);
        ts_cluster_end();
    }
    ts_cluster_forget(want);
}

/* Whatever becomes of the experts, a request ends. */
Test(experts, without_any_shard_requests_fail_after_the_patience)
{
    ts_cluster_start(apart, 2, "", "experts = { deadline = \"300ms\"; patience = \"500ms\"; };");
    const struct ts_server *s = &ts_cluster.node[0].http;
    free(ts_cluster_complete(s, ts_cluster_prompts[0]));
    ts_node_kill(&ts_cluster.node[1]);
    char *body = ts_body(TS_COMPLETIONS, ts_cluster_prompts[1], TS_CLUSTER_TOKENS, false, "\"temperature\":0");
    struct ts_reply r = ts_post(s, ts_path(TS_COMPLETIONS), body);
    cr_assert_eq(r.status, 503, "%d %s", r.status, r.body ? r.body : "");
    cr_expect(strstr(r.body, "nobody computes some of the experts"), "%s", r.body);
    ts_reply_free(&r);
    free(body);
    ts_node_wait_log(&ts_cluster.node[0], "request_failed");
    ts_node_start(&ts_cluster.node[1]);
    for (int i = 0;; i++) { /* the link tries again by itself */
        body = ts_body(TS_COMPLETIONS, ts_cluster_prompts[1], TS_CLUSTER_TOKENS, false, "\"temperature\":0");
        r = ts_post(s, ts_path(TS_COMPLETIONS), body);
        bool well = r.status == 200;
        ts_reply_free(&r);
        free(body);
        if (well)
            break;
        cr_assert_lt(i, 300, "the shard is back and is not used");
        usleep(100000);
    }
}

Test(experts, every_node_decodes_and_is_a_shard)
{
    static const struct ts_node nodes[] = {{.name = "n0", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""},
                                           {.name = "n1", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""},
                                           {.name = "n2", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""},
                                           {.name = "n3", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""}};
    char *want[TS_CLUSTER_PROMPTS];
    ts_cluster_ask_alone("", want);
    ts_cluster_start(nodes, 4, "", "experts = { deadline = \"1s\"; };");
    for (int i = 0; i < 4; i++)
        ts_cluster_check(&ts_cluster.node[i].http, want, ts_cluster.node[i].name);
    ts_node_kill(&ts_cluster.node[3]);
    for (int i = 0; i < 3; i++)
        ts_cluster_check(&ts_cluster.node[i].http, want, "one of four is dead");
    ts_cluster_forget(want);
}

/* Groups of two and of three shards beside each other; neither uses the other's, so one outlives a death in the other.
 */
Test(experts, groups_of_different_sizes_in_one_deployment_give_the_same_tokens)
{
    static const struct ts_node nodes[] = {
        {.name = "a", .roles = "\"gateway\", \"prefill\", \"decode\"", .group = "two"},
        {.name = "b", .roles = "\"gateway\", \"prefill\", \"decode\"", .group = "three"},
        {.name = "two0", .roles = "\"expert\"", .group = "two"},
        {.name = "two1", .roles = "\"expert\"", .group = "two"},
        {.name = "three0", .roles = "\"expert\"", .group = "three"},
        {.name = "three1", .roles = "\"expert\"", .group = "three"},
        {.name = "three2", .roles = "\"expert\"", .group = "three"},
    };
    char *want[TS_CLUSTER_PROMPTS];
    ts_cluster_ask_alone("", want);
    ts_cluster_start(nodes, 7, "", "experts = { deadline = \"1s\"; lost = \"wait\"; };");
    ts_cluster_check(&ts_cluster.node[0].http, want, "group of two");
    ts_cluster_check(&ts_cluster.node[1].http, want, "group of three");
    ts_node_kill(&ts_cluster.node[2]);
    ts_cluster_check(&ts_cluster.node[1].http, want, "a shard of the other group is dead");
    /* Nobody stands in for it here, and the balancer that was in charge is gone with it: requests wait until that of the
     * survivor has had its own shards load the experts. */
    ts_cluster_check(&ts_cluster.node[0].http, want, "one of two is dead");
    ts_cluster_forget(want);
}

/* The shape of large deployments: prefill nodes that are expert-parallel over two, decode nodes over four. */
Test(experts, prefill_over_two_and_decode_over_four_give_the_tokens_of_one_process)
{
    static const struct ts_node nodes[] = {
        {.name = "gateway", .roles = "\"gateway\""},
        {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "ep2"},
        {.name = "p1", .roles = "\"prefill\", \"expert\"", .group = "ep2"},
        {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "ep4"},
        {.name = "d1", .roles = "\"decode\", \"expert\"", .group = "ep4"},
        {.name = "d2", .roles = "\"decode\", \"expert\"", .group = "ep4"},
        {.name = "d3", .roles = "\"decode\", \"expert\"", .group = "ep4"},
    };
    char *want[TS_CLUSTER_PROMPTS];
    ts_cluster_ask_alone("", want);
    for (int form = 0; form < 2; form++) {
        ts_cluster_start(nodes, 7, form ? "handoff = \"encoder\";" : "handoff = \"full\";", "");
        ts_cluster_check(&ts_cluster.node[0].http, want, form ? "encoder" : "full");
        ts_cluster_check(&ts_cluster.node[0].http, want, "again");
        ts_cluster_end();
    }
    ts_cluster_forget(want);
}
