/* One node of each pair is stable, the other one fails again and again under load: what goes through the gateway never
 * fails, in exact mode with the same tokens. For each role. */
#include <jansson.h>
#include <signal.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

static char *folder; /* of the kv nodes' files */

static void fini(void)
{
    ts_cluster_end();
    if (folder)
        ts_remove_dir(folder);
    free(folder);
    folder = NULL;
}

TestSuite(failing_pair, .fini = fini, .timeout = 300);

/* Long enough that no stream has ended when the nodes fail that it is for. */
enum { STREAMS = TS_CLUSTER_PROMPTS, TOKENS = 240 };

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

static void begin(struct load *l, const struct ts_server *s, const char *const prompt[STREAMS])
{
    for (int i = 0; i < STREAMS; i++) {
        char *body = ts_body(TS_COMPLETIONS, prompt[i], TOKENS, true, RECIPE);
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

static void end(struct load *l, char *const want[STREAMS], const char *when)
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
        cr_assert_str_eq(a.text, want[i], "%s: stream %d", when, i);
        ts_answer_free(&a);
        free(body);
        ts_flow_close(&l->flow[i]);
    }
}

/* Whether it comes to be more: nodes report their figures twice a second. */
static bool grows(const struct ts_server *s, const char *figure, double before)
{
    bool more = false;
    for (int i = 0; i < 15 && !more; i++) {
        more = ts_metric(s, figure) > before;
        if (!more)
            usleep(100000);
    }
    return more;
}

/* The gateway is connected to these, and those of them that hold experts are asked for something. */
static void until_used(const struct ts_server *s, int from, int to)
{
    static const char dispatches[] = "weft_expert_shard_dispatches_total";
    for (int i = from; i <= to; i++) {
        const struct ts_node *n = &ts_cluster.node[i];
        char name[64];
        snprintf(name, sizeof name, "weft_peer_up{peer=\"%s\"}", n->name);
        ts_until_metric(s, name, 1);
        double before = n->metrics ? ts_metric(&n->http, dispatches) : 0;
        for (int t = 0; n->metrics && t < 60 && ts_metric(&n->http, dispatches) == before; t++)
            free(complete(s, 0));
    }
}

/* Dies at any moment; careful: when it has stood still for a little while, so that what streams need of it is under
 * way. */
static void die(struct ts_node *n, bool careful)
{
    if (careful) {
        kill(n->pid, SIGSTOP);
        usleep(100000);
    }
    ts_node_kill(n);
}

/* The nodes from..to fail together while streams run: dead, standing still, dead again while they come back. hit: a
 * figure of the gateway that grows when requests were at them. */
static void go_through_fates(const struct ts_server *s, int from, int to, const char *hit,
                             char *const want[TS_CLUSTER_PROMPTS])
{
    struct load l;
    for (int round = 0, in_vain = 0; round < 3;) {
        double before = ts_metric(s, hit);
        until_used(s, from, to);
        begin(&l, s, ts_cluster_prompts);
        until_under_way(&l);
        for (int i = from; i <= to; i++) {
            if (round == 1)
                kill(ts_cluster.node[i].pid, SIGSTOP);
            else
                die(&ts_cluster.node[i], in_vain > 0);
        }
        end(&l, want, round == 1 ? "standing still" : "dead");
        bool was_hit = grows(s, hit, before);
        begin(&l, s, ts_cluster_prompts);
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
                                           {.name = "e1", .roles = "\"expert\"", .metrics = true}};
    char *want[TS_CLUSTER_PROMPTS];
    ask_alone(want);
    ts_cluster_start(nodes, 3, "", EXACT "experts = { deadline = \"500ms\"; };");
    go_through_fates(&ts_cluster.node[0].http, 2, 2, "weft_expert_lost_exchanges_total{source=\"decode\"}", want);
    ts_cluster_forget(want);
}

/* All expert nodes of one group fail: what runs at its decode node goes on at the other group's, after the patience. */
Test(failing_pair, of_groups_of_experts)
{
    static const struct ts_node nodes[] = {{.name = "gateway", .roles = "\"gateway\""},
                                           {.name = "p", .roles = "\"prefill\", \"expert\"", .group = "p"},
                                           {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "stable"},
                                           {.name = "d1", .roles = "\"decode\"", .group = "failing"},
                                           {.name = "e0", .roles = "\"expert\"", .group = "failing"},
                                           {.name = "e1", .roles = "\"expert\"", .group = "failing"}};
    char *want[TS_CLUSTER_PROMPTS];
    ask_alone(want);
    ts_cluster_start(nodes, 6, "", EXACT "experts = { deadline = \"300ms\"; patience = \"300ms\"; };");
    go_through_fates(&ts_cluster.node[0].http, 4, 5, "weft_requests_replaced_total", want);
    ts_node_wait_log(&ts_cluster.node[3], "nobody computes some experts, experts.patience is over");
    ts_node_wait_log(&ts_cluster.node[0], "reason=experts_missing");
    ts_cluster_forget(want);
}

static void until_health(const char *conf, const struct ts_node *n, const char *health)
{
    char want[64];
    snprintf(want, sizeof want, "\"health\": \"%s\"", health);
    for (int t = 0;; t++) {
        struct ts_result r = ts_run(ts_weft(), "status", "--json", conf, n->name);
        bool is = strstr(r.out, want) != NULL;
        if (!is && t == 300) {
            ts_cluster_show_logs();
            cr_assert_fail("%s is not %s: %s", n->name, health, r.out);
        }
        ts_result_free(&r);
        if (is)
            return;
        usleep(100000);
    }
}

/* A decode node whose experts are gone gets nothing new, and what is drained does not move there, however long requests
 * there may wait. */
Test(failing_pair, a_decode_node_without_experts_is_left_alone)
{
    enum { GATE, P, D0, D1, E, NODES };
    static const struct ts_node nodes[] = {[GATE] = {.name = "gateway", .roles = "\"gateway\""},
                                           [P] = {.name = "p", .roles = "\"prefill\", \"expert\"", .group = "p"},
                                           [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
                                           [D1] = {.name = "d1", .roles = "\"decode\"", .group = "d1", .metrics = true},
                                           [E] = {.name = "e", .roles = "\"expert\"", .group = "d1"}};
    char *want[TS_CLUSTER_PROMPTS], conf[4300];
    const struct ts_server *s = &ts_cluster.node[GATE].http;
    struct load load;
    ask_alone(want);
    ts_cluster_start(nodes, NODES, "", EXACT "experts = { patience = \"1h\"; };");
    snprintf(conf, sizeof conf, "%s/weft.conf", ts_cluster.dir);
    until_health(conf, &ts_cluster.node[D1], "ok");
    ts_node_kill(&ts_cluster.node[E]);
    until_health(conf, &ts_cluster.node[D1], "no-experts");
    ts_node_wait_log(&ts_cluster.node[D1], "experts_missing");
    ts_until_metric(&ts_cluster.node[D1].http, "weft_expert_missing{source=\"decode\"}", 1);
    struct ts_result r = ts_run(ts_weft(), "status", conf, "d1");
    cr_expect(strstr(r.out, "d1: some of its experts are computed by nobody"), "%s", r.out);
    cr_expect_eq(r.status, 1);
    ts_result_free(&r);
    ts_node_wait_log(&ts_cluster.node[GATE], "part_without_experts part=decode");
    begin(&load, s, ts_cluster_prompts);
    until_under_way(&load);
    r = ts_run(ts_weft(), "drain", "--wait", "0", conf, "d0");
    ts_result_free(&r);
    end(&load, want, "the other decode node has no experts");
    r = ts_run(ts_weft(), "drain", conf, "d0");
    ts_result_free(&r);
    cr_expect_eq(ts_metric(s, "weft_requests_replaced_total"), 0);
    cr_expect_eq(ts_metric(s, "weft_requests_moved_total"), 0);
    ts_node_start(&ts_cluster.node[E]);
    until_health(conf, &ts_cluster.node[D1], "ok");
    ts_node_wait_log(&ts_cluster.node[D1], "experts_back");
    ts_until_metric(&ts_cluster.node[D1].http, "weft_expert_missing{source=\"decode\"}", 0);
    char *got = complete(s, 0);
    cr_assert_str_eq(got, want[0], "its experts are back");
    free(got);
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
        begin(&failing, &ts_cluster.node[G1].http, ts_cluster_prompts);
        begin(&stable, &ts_cluster.node[G0].http, ts_cluster_prompts);
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

/* ---- kv nodes ---- */

enum { GATEWAY, PREFILL, DECODE, STABLE, FAILING, KV_ALL, LONG = 12 };

/* A figure of the node's tiers of that name. */
static json_int_t tier_figure(int node, const char *tier, const char *key)
{
    char *text = ts_node_ask(&ts_cluster.node[node], "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL, *t;
    json_int_t sum = 0;
    size_t i;
    cr_assert(j, "%s does not answer", ts_cluster.node[node].name);
    json_array_foreach (json_object_get(j, "tiers"), i, t)
        if (!strcmp(json_string_value(json_object_get(t, "tier")), tier))
            sum += json_integer_value(json_object_get(t, key));
    json_decref(j);
    free(text);
    return sum;
}

/* How often the prefill node has found that a kv node does not do what it was asked. */
static int times_left_out(void)
{
    char path[4300];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s.log", ts_cluster.dir, ts_cluster.node[PREFILL].name);
    char *log = ts_read_file(path, NULL);
    for (const char *at = log; at && (at = strstr(at, "kv_node_left_out node=kv-1")); at++)
        n++;
    free(log);
    return n;
}

/* Every prompt once: its text. How many tokens were cached, in all. */
static int ask_long(char *want[LONG])
{
    int cached = 0;
    for (int i = 0; i < LONG; i++) {
        struct ts_answer a = ts_cluster_ask(&ts_cluster.node[GATEWAY], i, 2);
        cached += a.cached;
        if (want[i])
            cr_assert_str_eq(a.text, want[i], "prompt %d", i);
        else
            want[i] = strdup(a.text);
        ts_answer_free(&a);
    }
    return cached;
}

/* What the nodes that are there keep is all that can be kept: every prompt's cached tokens are `all`. What was lost is
 * computed once and stored at those that are left; a slow machine may take what is late for a miss, too. */
static void until_all_cached(char *want[LONG], int all, const char *when)
{
    int cached = 0;
    for (int i = 0; i < 60 && cached != all; i++)
        cached = ask_long(want);
    if (cached != all)
        ts_cluster_show_logs();
    cr_assert_eq(cached, all, "%s: %d of %d tokens are cached", when, cached, all);
}

/* Nothing is held for anybody, nothing under way. */
static void until_baseline(json_int_t decoder_holds)
{
    json_int_t held = -1, queue = -1, decoder = -1;
    for (int i = 0; i < 300 && (held || queue || decoder > decoder_holds); i++) {
        held = tier_figure(PREFILL, "device", "held");
        queue = tier_figure(PREFILL, "kv", "queue") + tier_figure(DECODE, "kv", "queue");
        decoder = tier_figure(DECODE, "device", "held");
        usleep(50000);
    }
    cr_assert(!held && !queue && decoder <= decoder_holds, "held: %lld and %lld (%lld before), under way: %lld",
              (long long)held, (long long)decoder, (long long)decoder_holds, (long long)queue);
}

static const char *fate_name[] = {"kill -9", "SIGSTOP", "kill -9 again"};

/* While streams are answered whose prompts are read from both, the failing one stands still, and is killed where that
 * is its fate, with what it was asked still unanswered. True: it was asked something. */
static bool fail_in_reads(int fate, const char *const prompt[STREAMS], char *const text[STREAMS])
{
    struct load l;
    int before = times_left_out();
    begin(&l, &ts_cluster.node[GATEWAY].http, prompt);
    kill(ts_cluster.node[FAILING].pid, SIGSTOP);
    if (fate != 1) {
        for (int begun = 0; begun < STREAMS && !tier_figure(PREFILL, "kv", "queue");) {
            begun = 0;
            ts_flows_turn(l.flow, STREAMS, 1);
            for (int i = 0; i < STREAMS; i++)
                begun += l.flow[i].data && strstr(l.flow[i].data, "data: ");
        }
        ts_node_kill(&ts_cluster.node[FAILING]);
    }
    end(&l, text, fate_name[fate]);
    return times_left_out() > before;
}

/* Both are read from, as the keys are spread over them. One fails again and again: no stream fails or says anything
 * else, the stable one keeps what there is meanwhile, and nothing stays held. */
Test(failing_pair, of_kv_nodes)
{
    static const struct ts_node nodes[KV_ALL] = {
        [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
        [PREFILL] = {.name = "p", .roles = "\"prefill\", \"expert\"", .group = "p"},
        [DECODE] = {.name = "d", .roles = "\"decode\", \"expert\"", .group = "d"},
        [STABLE] = {.name = "kv-0", .roles = "\"kv\""},
        [FAILING] = {.name = "kv-1", .roles = "\"kv\""},
    };
    static char prompts[LONG][TS_CLUSTER_LONG];
    const char *prompt[LONG];
    char *want[LONG] = {NULL}, *text[2 * STREAMS], *more = NULL;
    folder = ts_temp_dir();
    cr_assert_gt(asprintf(&more,
                          EXACT "sampling = { temperature = 0.0; };\n"
                                /* The device and what waits to be stored have room for two thirds of the prompts. */
                                "kv = { memory = \"1MiB\"; snapshots = \"0B\"; block_tokens = 32; write_behind = "
                                "\"256KiB\"; ssd = { reserve = "
                                "\"1MiB\"; }; nodes = { memory = \"1MiB\"; path = \"%s\"; size = \"32MiB\"; "
                                "find_timeout = \"1s\"; quiet_timeout = \"2s\"; }; };\n",
                          folder),
                 0);
    ts_cluster_start(nodes, KV_ALL, "", more);
    free(more);
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    for (int i = 0; i < LONG; i++) {
        ts_cluster_prompt(i, prompts[i]);
        prompt[i] = prompts[i];
    }
    cr_assert_eq(ask_long(want), 0, "they are new");
    for (int i = 0; i < 2 * STREAMS; i++) {
        struct ts_answer a = ts_ask(s, TS_COMPLETIONS, prompt[i], TOKENS, false, RECIPE);
        text[i] = strdup(a.text);
        ts_answer_free(&a);
    }
    struct ts_answer one = ts_cluster_ask(&ts_cluster.node[GATEWAY], 0, 1);
    int all = one.prompt / 32 * 32 * LONG;
    ts_answer_free(&one);
    until_all_cached(want, all, "both are there");
    json_int_t holds = tier_figure(DECODE, "device", "held");
    for (int round = 0, met = 0; met < 3; round++) {
        char log[4300];
        int fate = met;
        struct load l;
        cr_assert_lt(round, 40, "%s never meets a read", fate_name[fate]);
        json_int_t was_read = tier_figure(FAILING, "ssd", "read") + tier_figure(FAILING, "host", "read");
        met += fail_in_reads(fate, prompt, text); /* the first ones: it is longest ago that they were on the device */
        until_all_cached(want, all, fate_name[fate]);
        until_baseline(holds);
        begin(&l, s, prompt + STREAMS);
        if (fate == 1) {
            kill(ts_cluster.node[FAILING].pid, SIGCONT);
        } else {
            snprintf(log, sizeof log, "%s/kv-1.log", ts_cluster.dir);
            unlink(log);
            ts_node_start(&ts_cluster.node[FAILING]);
            ts_node_wait_log(&ts_cluster.node[FAILING], "node p is connected");
            was_read = 0;
        }
        end(&l, text + STREAMS, "coming back");
        for (int i = 0;; i++) { /* it has its share again */
            cr_assert_lt(i, 60, "%s: it is there again, and not read from", fate_name[fate]);
            ask_long(want);
            if (tier_figure(FAILING, "ssd", "read") + tier_figure(FAILING, "host", "read") > was_read)
                break;
        }
        until_all_cached(want, all, "it is back");
        until_baseline(holds);
    }
    for (int i = 0; i < LONG; i++)
        free(want[i]);
    for (int i = 0; i < 2 * STREAMS; i++)
        free(text[i]);
}
