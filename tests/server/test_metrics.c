/* /metrics of nodes without a gateway, as processes: each tells its own figures, what its roles have and no more, and
 * whom it is connected to; its readiness follows a drain. */
#include "tests/harness.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/process.h"

TestSuite(metrics, .fini = ts_cluster_end, .timeout = 300);

enum { GATEWAY, P0, D0, E0, KV, NODES };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\"", .metrics = true},
    [D0] = {.name = "d0", .roles = "\"decode\"", .metrics = true},
    [E0] = {.name = "e0", .roles = "\"expert\"", .metrics = true},
    [KV] = {.name = "kv-0", .roles = "\"kv\"", .metrics = true},
};

static void start(void)
{
    ts_cluster_start(
        nodes, NODES, "",
        "kv = { memory = \"4MiB\"; snapshots = \"0B\"; block_tokens = 32; nodes = { memory = \"8MiB\"; }; };\n"
        "limits = { drain = \"5min\"; };\n"); /* a slow machine takes long for what a drained node has */
}

static const struct ts_server *at(int node)
{
    return &ts_cluster.node[node].http;
}

static void until(int node, const char *name, double least)
{
    for (int i = 0; i < 300 && !(ts_metric(at(node), name) >= least); i++)
        usleep(100000);
    cr_expect_geq(ts_metric(at(node), name), least, "%s of %s", name, ts_cluster.node[node].name);
}

/* Names of all series with their labels, in order. */
static char *series(int node)
{
    struct ts_reply r = ts_get(at(node), "/metrics");
    char *out = calloc(1, r.len + 1), *to = out;
    for (char *line = strtok(r.body, "\n"); line; line = strtok(NULL, "\n"))
        if (*line != '#' && !strstr(line, "_round_trip_")) {
            size_t n = (size_t)(strrchr(line, ' ') - line);
            memcpy(to, line, n);
            to += n;
            *to++ = '\n';
        }
    ts_reply_free(&r);
    return out;
}

static void expect_series(int node, const char *text, bool there)
{
    char *all = series(node);
    cr_expect_eq(strstr(all, text) != NULL, there, "%s: %s is %s", ts_cluster.node[node].name, text,
                 there ? "missing" : "there");
    free(all);
}

/* weft status says of a node what its metrics say; the connection of the tool itself is one more. */
static void expect_held(int node)
{
    char conf[4300], start[64], holds[128];
    snprintf(conf, sizeof conf, "%s/weft.conf", ts_cluster.dir);
    struct ts_result r = ts_run(ts_weft(), "status", "--json", conf, ts_cluster.node[node].name);
    json_t *j = json_loads(r.out, 0, NULL), *n = json_array_get(json_object_get(j, "nodes"), 0),
           *held = json_object_get(json_object_get(n, "transport"), "held");
    long long regions = json_integer_value(json_object_get(held, "regions")),
              bytes = json_integer_value(json_object_get(held, "region_bytes"));
    cr_expect_geq(json_integer_value(json_object_get(held, "channels")), 3 * (NODES - 1), "%s", r.out);
    cr_expect(json_is_integer(json_object_get(held, "queue_pairs")) &&
                  !json_integer_value(json_object_get(held, "queue_pairs")),
              "%s", r.out);
    cr_expect_eq(regions, (long long)ts_metric(at(node), "weft_transport_regions"), "%s", r.out);
    cr_expect_eq(bytes, (long long)ts_metric(at(node), "weft_transport_region_bytes"), "%s", r.out);
    json_decref(j);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "status", conf);
    snprintf(start, sizeof start, "\n%s ", ts_cluster.node[node].name);
    snprintf(holds, sizeof holds, " ch, 0 qp, %lld mr, %.1f MiB  ", regions, (double)bytes / (1 << 20));
    char *line = strstr(r.out, start), *end = line ? strchr(line + 1, '\n') : NULL;
    cr_assert(end, "%s", r.out);
    *end = 0;
    cr_expect(strstr(line, holds), "\"%s\" is not in %s", holds, line);
    ts_result_free(&r);
}

Test(metrics, each_node_tells_its_own_figures)
{
    char *before[NODES], prompt[1600] = "";
    start();
    for (int i = P0; i < NODES; i++)
        before[i] = series(i);
    while (strlen(prompt) < 1300)
        strcat(prompt, "In the beginning God created the heaven and the earth. ");
    free(ts_cluster_complete(at(GATEWAY), prompt));
    until(P0, "weft_expert_exchanges_total{source=\"prefill\"}", 1);
    until(P0, "weft_kv_tier_stored_blocks_total{tier=\"kv\"}", 1);
    until(D0, "weft_decode_steps_total", 1);
    until(D0, "weft_landing_sequences_total", 1);
    until(E0, "weft_expert_shard_dispatches_total", 1);
    until(E0, "weft_expert_shard_pairs_total", ts_metric(at(E0), "weft_expert_shard_rows_total"));
    until(KV, "weft_kv_node_stores_total", 1);
    until(KV, "weft_kv_tier_stored_blocks_total{tier=\"served_host\"}", 1);
    until(KV, "weft_kv_tier_store_latency_seconds_count{tier=\"served_host\"}", 1);
    until(KV, "weft_transport_message_bytes_total{class=\"kv\",direction=\"in\"}", 32 * 384);
    cr_expect_float_eq(ts_metric(at(KV), "weft_kv_node_failed_total"), 0, 0);
    until(KV, "weft_transport_channels", 3 * (NODES - 1)); /* control, rows, experts */
    until(KV, "weft_transport_regions", 1);
    until(D0, "weft_transport_region_bytes", 4 << 20);
    cr_expect_float_eq(ts_metric(at(KV), "weft_transport_queue_pairs"), 0, 0);
    expect_held(KV);
    expect_held(D0);
    for (int i = P0; i < NODES; i++) {
        char *after = series(i);
        cr_expect_str_eq(before[i], after, "series of %s came or went with the first request", ts_cluster.node[i].name);
        free(before[i]);
        free(after);
    }
    /* What a role has not is not there at zero either. */
    expect_series(P0, "weft_decode_steps_total", false);
    expect_series(E0, "weft_kv_", false);
    expect_series(KV, "tier=\"device\"", false);
    expect_series(KV, "weft_num_requests_", false);
    expect_series(GATEWAY, "served_host", false);
    expect_series(GATEWAY, "weft_peer_info{peer=\"kv-0\",roles=\"kv\"}", true);
    expect_series(GATEWAY, "weft_node_info{node=\"gateway\",roles=\"gateway\"}", true);
    expect_series(KV, "weft_node_info{node=\"kv-0\",roles=\"kv\"}", true);
}

/* Every name of ours in the text is the name of a series. How many there are. */
static int expect_names(const char *text, const char *all, const char *where)
{
    int found = 0;
    for (const char *at = text; (at = strpbrk(at, "wp"));) {
        size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789");
        char name[2][128];
        if (strncmp(at, "weft_", 5) && strncmp(at, "process_", 8)) {
            at += n;
            continue;
        }
        snprintf(name[0], sizeof name[0], "\n%.*s{", (int)n, at);
        snprintf(name[1], sizeof name[1], "\n%.*s\n", (int)n, at);
        cr_expect(strstr(all, name[0]) || strstr(all, name[1]), "%s: there is no series %.*s", where, (int)n, at);
        found++;
        at += n;
    }
    return found;
}

/* What people import asks for series that some node of a deployment has. */
Test(metrics, dashboard_and_alert_rules_ask_for_series_that_exist)
{
    json_t *j = json_load_file("contrib/grafana-weft.json", 0, NULL), *panel, *target;
    cr_assert_not_null(j);
    start();
    char *all = NULL;
    size_t size, i, k;
    FILE *f = open_memstream(&all, &size);
    for (int n = 0; n < NODES; n++) {
        char *own = series(n);
        fprintf(f, "\n%s", own);
        free(own);
    }
    fprintf(f, "weft_peer_round_trip_seconds{}\n"); /* series() leaves it out */
    fclose(f);
    int found = 0, kv = 0;
    json_array_foreach (json_object_get(j, "panels"), i, panel)
        json_array_foreach (json_object_get(panel, "targets"), k, target) {
            const char *expr = json_string_value(json_object_get(target, "expr"));
            found += expect_names(expr, all, json_string_value(json_object_get(panel, "title")));
            kv += strstr(expr, "weft_kv_node_") != NULL;
        }
    cr_expect_gt(found, 60);
    cr_expect_gt(kv, 5, "kv nodes are on it");
    char *rules = ts_read_file("contrib/prometheus-weft.yml", NULL);
    cr_assert_not_null(rules);
    found = 0;
    for (char *line = strtok(rules, "\n"); line; line = strtok(NULL, "\n"))
        if (strstr(line, "expr:"))
            found += expect_names(strstr(line, "expr:"), all, "contrib/prometheus-weft.yml");
    cr_expect_gt(found, 15);
    free(rules);
    free(all);
    json_decref(j);
}

static void need_promtool(void)
{
    struct ts_result t = ts_run("promtool", "--version");
    bool there = t.status == 0;
    ts_result_free(&t);
    if (!there)
        cr_skip_test("needs promtool: make deps");
}

Test(metrics, promtool_accepts_the_alert_rules)
{
    need_promtool();
    struct ts_result t = ts_run("promtool", "check", "rules", "contrib/prometheus-weft.yml");
    cr_expect_eq(t.status, 0, "%s%s", t.out, t.err);
    ts_result_free(&t);
}

Test(metrics, promtool_accepts_those_of_every_role)
{
    struct ts_result t;
    need_promtool();
    start();
    free(ts_cluster_complete(at(GATEWAY), ts_cluster_prompts[0]));
    for (int i = 0; i < NODES; i++) {
        struct ts_reply r = ts_get(at(i), "/metrics");
        t = ts_run_input(r.body, "promtool", "check", "metrics");
        cr_expect_eq(t.status, 0, "%s: %s%s", ts_cluster.node[i].name, t.out, t.err);
        ts_result_free(&t);
        ts_reply_free(&r);
    }
}

Test(metrics, a_peer_that_dies_is_down)
{
    start();
    until(P0, "weft_peer_up{peer=\"kv-0\"}", 1);
    until(P0, "weft_peer_round_trip_seconds{peer=\"kv-0\"}", 1e-9);
    ts_node_kill(&ts_cluster.node[KV]);
    ts_until_metric(at(P0), "weft_peer_up{peer=\"kv-0\"}", 0);
    until(P0, "weft_peer_failures{peer=\"kv-0\"}", 1);
    cr_expect_float_eq(ts_metric(at(P0), "weft_peer_up{peer=\"d0\"}"), 1, 0);
    ts_node_start(&ts_cluster.node[KV]);
    until(P0, "weft_peer_up{peer=\"kv-0\"}", 1);
}

static int status_of(int node, const char *method, const char *path)
{
    int fd = ts_connect(at(node)->port);
    cr_assert(fd >= 0 && ts_send_request(fd, method, path, ""));
    struct ts_reply r = ts_read_reply(fd);
    int status = r.status;
    ts_reply_free(&r);
    close(fd);
    return status;
}

/* It answers nothing that would need a gateway, and is not ready while it drains. */
Test(metrics, health_without_a_gateway)
{
    start();
    cr_expect_eq(status_of(D0, "GET", "/health/live"), 200);
    cr_expect_eq(status_of(D0, "GET", "/version"), 200);
    cr_expect_eq(status_of(D0, "POST", "/metrics"), 405);
    static const char *const none[][2] = {{"POST", "/v1/chat/completions"},
                                          {"POST", "/v1/completions"},
                                          {"GET", "/v1/models"},
                                          {"GET", "/"},
                                          {"POST", "/tokenize"},
                                          {"GET", "/debug/actors"}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cr_expect_eq(status_of(D0, none[i][0], none[i][1]), 404, "%s", none[i][1]);
    int fd = ts_connect(at(GATEWAY)->port), status;
    cr_assert(ts_send_request(fd, "POST", "/v1/completions",
                              "{\"prompt\":\"Once\",\"max_tokens\":900,\"ignore_eos\":true,\"stream\":true,"
                              "\"stream_options\":{\"include_usage\":true}}"));
    cr_assert(ts_read_until(fd, "data: "));
    until(D0, "weft_num_sequences_decoding", 1);
    kill(ts_cluster.node[E0].pid, SIGSTOP); /* so that the stream does not end before anybody looks */
    kill(ts_cluster.node[D0].pid, SIGTERM);
    bool seen = false;
    for (int i = 0; i < 3000 && !seen; i++) {
        int probe = ts_connect(at(D0)->port);
        if (probe < 0)
            break; /* it has ended */
        struct ts_reply r = {0};
        if (ts_send_request(probe, "GET", "/health/ready", ""))
            r = ts_read_reply(probe);
        seen = r.status == 503 && strstr(r.body, "\"draining\"");
        ts_reply_free(&r);
        close(probe);
    }
    kill(ts_cluster.node[E0].pid, SIGCONT);
    cr_expect(seen, "it never says that it drains");
    cr_expect(ts_read_until(fd, "\"completion_tokens\":900"), "the stream was cut off");
    close(fd);
    cr_assert_eq(waitpid(ts_cluster.node[D0].pid, &status, 0), ts_cluster.node[D0].pid);
    ts_cluster.node[D0].pid = 0;
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", status);
}
