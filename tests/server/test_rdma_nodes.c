/* Deployments over the provider rdma, in the guest of tests/rdma/guest.sh (`make test-rdma`), with the counters of each
 * process that show what carried history and experts: gateway, prefill, decode and expert as processes of their own,
 * with the tokens of one process; a decode node that is drained; and a node that reads from a kv node what another one
 * has computed. */
#include <ctype.h>
#include <dirent.h>
#include <jansson.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"
#include "tests/support/rdma_rig.h"
#include "transport/net.h"

TestSuite(rdma_nodes, .fini = ts_cluster_end, .timeout = 600);

#define HOST "10.77.0.1" /* rxe0 */
enum { GATEWAY, PREFILL, DECODE, EXPERT, NODES, TOKENS = 12, PROMPTS = 2, WAIT = 600 };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\"", .host = HOST},
    [PREFILL] = {.name = "prefill", .roles = "\"prefill\"", .host = HOST},
    [DECODE] = {.name = "decode", .roles = "\"decode\"", .host = HOST},
    [EXPERT] = {.name = "expert", .roles = "\"expert\"", .host = HOST},
};
static const char *const prompts[PROMPTS] = {
    "Once upon a time",
    "It was a dark and stormy night, and the rain fell in torrents upon the roofs of the city and upon "
    "the long road that led from it; nobody was abroad but the watchman with his lamp, who counted the hours"};

/* A node's answer to `weft status`, asked over rdma. */
static json_t *status_of(int node)
{
    struct cfg_error err = {""};
    struct tp_rdma_config config = {.address = HOST};
    struct tp_answer answer;
    char address[64], path[4200];
    uint8_t secret[TP_SECRET];
    snprintf(path, sizeof path, "%s/secret", ts_cluster.dir);
    cr_assert_eq(tp_secret_load(path, secret, &err), 0, "%s", err.msg);
    snprintf(address, sizeof address, "%s:%d", HOST, ts_cluster.node[node].port);
    struct tp_ask ask = {.ops = rr_ops(),
                         .provider = &config,
                         .secret = secret,
                         .tool = "a test",
                         .address = address,
                         .name = ts_cluster.node[node].name,
                         .number = (uint16_t)(node + 1),
                         .question = "status",
                         .size = 6,
                         .timeout_ns = INT64_C(60000000000)};
    cr_assert_eq(tp_net_ask(&ask, &answer, &err), 0, "%s", err.msg);
    json_t *j = json_loadb((const char *)answer.bytes, answer.size, 0, NULL);
    cr_assert_not_null(j, "%.*s", (int)answer.size, (const char *)answer.bytes);
    free(answer.bytes);
    return j;
}

static long long carried(const json_t *transport, const char *class, const char *what)
{
    return json_integer_value(json_object_get(json_object_get(transport, class), what));
}

/* Whether a table of the kernel has a socket with this inode and another local port. */
static bool has_socket(const char *table, unsigned long inode, int port)
{
    for (const char *line = table ? strchr(table, '\n') : NULL; line && line[1]; line = strchr(line + 1, '\n')) {
        unsigned local;
        unsigned long found;
        /* Number, local address and port, remote ones, state, queues, timer, retransmits, user, timeout, inode. */
        if (sscanf(line, " %*d: %*[0-9A-F]:%x %*s %*s %*s %*s %*s %*s %*s %lu", &local, &found) == 2 && found == inode)
            return local != (unsigned)port;
    }
    return false;
}

/* Sockets of TCP that a process has beside those of its HTTP port (0: none): of its descriptors, those that the
 * kernel's tables of TCP know. */
static int tcp_sockets(pid_t pid, int port)
{
    char path[64], link[128];
    int n = 0;
    char *table = ts_read_file("/proc/net/tcp", NULL), *table6 = ts_read_file("/proc/net/tcp6", NULL);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    cr_assert(d && table, "%s", path);
    for (struct dirent *e; (e = readdir(d));) {
        char at[400];
        unsigned long inode;
        snprintf(at, sizeof at, "%s/%s", path, e->d_name);
        ssize_t len = readlink(at, link, sizeof link - 1);
        link[len > 0 ? len : 0] = 0;
        if (sscanf(link, "socket:[%lu]", &inode) != 1)
            continue;
        n += has_socket(table, inode, port) || has_socket(table6, inode, port);
    }
    closedir(d);
    free(table);
    free(table6);
    return n;
}

Test(rdma_nodes, a_deployment_over_rdma_says_what_one_process_says_and_uses_no_tcp)
{
    struct ts_server alone;
    char *want[PROMPTS];
    rr_need_guest();
    ts_server_start(&alone, NULL, "compute = { threads = 1; };\nkv = { memory = \"64MiB\"; snapshots = \"8MiB\"; };\n");
    for (int i = 0; i < PROMPTS; i++)
        want[i] = ts_cluster_complete_to(&alone, prompts[i], TOKENS);
    ts_server_free(&alone);
    long before = rr_counter("rxe0", "sent_pkts");
    ts_cluster_start(nodes, NODES, "", "transport = { provider = \"rdma\"; };\n");
    for (int i = 0; i < PROMPTS; i++) {
        char *got = ts_cluster_complete_to(&ts_cluster.node[GATEWAY].http, prompts[i], TOKENS);
        if (strcmp(got, want[i]))
            ts_cluster_show_logs();
        cr_expect_str_eq(got, want[i], "\"%s\"", prompts[i]);
        free(got);
        free(want[i]);
    }
    for (int i = 0; i < NODES; i++) {
        json_t *j = status_of(i), *t = json_object_get(j, "transport");
        char *text = json_dumps(t, JSON_COMPACT);
        printf("%s: %s\n", nodes[i].name, text);
        cr_expect_str_eq(json_string_value(json_object_get(t, "provider")), "rdma");
        if (i == PREFILL) { /* rows are put into the decoder's pages, the state goes as a message */
            cr_expect_ge(carried(t, "kv", "puts_out"), PROMPTS, "%s", text);
            cr_expect_gt(carried(t, "kv", "put_bytes_out"), 5000, "%s", text);
            cr_expect_gt(carried(t, "kv", "message_bytes_out"), 20000, "%s", text);
        }
        if (i == DECODE)
            cr_expect_gt(carried(t, "kv", "message_bytes_in"), 20000, "%s", text);
        if (i == PREFILL || i == DECODE || i == EXPERT) { /* rows of experts are put into slots, both ways */
            long long puts = carried(t, "expert", "put_bytes_out");
            cr_expect_gt(puts, 20000, "%s", text);
            cr_expect_gt(puts, 20 * carried(t, "expert", "message_bytes_out"), "%s", text);
            cr_expect_ge(carried(t, "expert", "puts_out"), 20, "%s", text);
        }
        /* A queue pair per node and class: this is what must not grow when nodes come and go. */
        cr_expect_ge(carried(t, "held", "queue_pairs"), 3 * (NODES - 1), "%s", text);
        cr_expect_ge(carried(t, "held", "regions"), i == GATEWAY ? 0 : 1, "%s", text);
        /* The gateway serves HTTP; nobody else has anything that could carry a byte over tcp. */
        cr_expect_eq(tcp_sockets(ts_cluster.node[i].pid, 0) > 0, i == GATEWAY, "%s", nodes[i].name);
        cr_expect_eq(tcp_sockets(ts_cluster.node[i].pid, ts_cluster.node[i].http.port), 0, "%s", nodes[i].name);
        free(text);
        json_decref(j);
    }
    cr_expect_gt(rr_counter("rxe0", "sent_pkts") - before, 100);
}

/* ---- a drained node ---------------------------------------------------------------------------------------------- */

enum { FRONT, D0, D1, DRAIN_NODES, STREAMS = 2, LONG = 80 };

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
        char *body = ts_body(TS_CHAT, prompts[i], LONG, true, more);
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
    json_t *j = status_of(node), *load = json_object_get(j, "load");
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
    cr_expect_eq(tcp_sockets(ts_cluster.node[leaves].pid, 0), 0);
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
    json_t *j = status_of(other), *t = json_object_get(j, "transport");
    char *text = json_dumps(t, JSON_COMPACT);
    printf("%s: %s\n", drain_nodes[other].name, text);
    cr_expect_str_eq(json_string_value(json_object_get(t, "provider")), "rdma");
    cr_expect_eq(tcp_sockets(ts_cluster.node[other].pid, 0), 0);
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
    char *want = ts_cluster_complete_to(&alone, prompts[0], TOKENS);
    ts_server_free(&alone);
    /* Emulated, on a busy host, under a sanitizer: nothing is late. */
    ts_cluster_start(experts, ALL, "",
                     "transport = { provider = \"rdma\"; };\nlimits = { stuck = \"120s\"; };\n"
                     "experts = { deadline = \"120s\"; patience = \"300s\"; lost = \"wait\"; balance = \"1s\"; };\n");
    for (int dead = 0; dead < 2; dead++) {
        if (dead)
            ts_node_kill(&ts_cluster.node[E0]);
        char *got = ts_cluster_complete_to(s, prompts[0], TOKENS);
        if (strcmp(got, want))
            ts_cluster_show_logs();
        cr_expect_str_eq(got, want, "%s", dead ? "without the first node" : "all there");
        free(got);
    }
    for (int i = MAIN; i < ALL; i++)
        cr_expect(i == E0 || tcp_sockets(ts_cluster.node[i].pid, ts_cluster.node[i].http.port) == 0, "%s",
                  experts[i].name);
    free(want);
}

/* ---- a kv node --------------------------------------------------------------------------------------------------- */

enum { A, B, KV, KV_NODES, BLOCK_BYTES = 12288, BLOCKS = 7 };

static const struct ts_node kv_nodes[KV_NODES] = {
    [A] = {.name = "a", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\"", .group = "a", .host = HOST},
    [B] = {.name = "b", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\"", .group = "b", .host = HOST},
    [KV] = {.name = "kv", .roles = "\"kv\"", .host = HOST},
};

/* A figure of the node's tier of that name. */
static long long figure(const json_t *status, const char *tier, const char *key)
{
    json_t *t;
    size_t i;
    json_array_foreach (json_object_get(status, "tiers"), i, t) {
        if (!strcmp(json_string_value(json_object_get(t, "tier")), tier))
            return json_integer_value(json_object_get(t, key));
    }
    return 0;
}

/* Waits for a figure of a node's tier; returns the node's answer that has it. */
static json_t *until(int node, const char *tier, const char *key, long long least)
{
    for (int i = 0; i < WAIT; i++) {
        json_t *j = status_of(node);
        if (figure(j, tier, key) >= least)
            return j;
        json_decref(j);
        usleep(100000);
    }
    ts_cluster_show_logs();
    cr_assert_fail("%s: %s of tier %s stays below %lld", ts_cluster.node[node].name, key, tier, least);
    return NULL;
}

/* Bytes that a process has registered, as the kernel counts them. */
static long long registered_by(pid_t pid)
{
    struct ts_result r = ts_run("rdma", "-j", "resource", "show", "mr");
    json_t *list = json_loads(r.out, 0, NULL), *mr;
    long long sum = 0;
    size_t i;
    cr_assert_not_null(list, "%s%s", r.out, r.err);
    json_array_foreach (list, i, mr) {
        if (json_integer_value(json_object_get(mr, "pid")) == pid)
            sum += json_integer_value(json_object_get(mr, "mrlen"));
    }
    json_decref(list);
    ts_result_free(&r);
    return sum;
}

/* What weft check says a node will register is what it registers: not less, and not more than for connections that it
 * does not have now. */
static void expect_registered(int node)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/weft.conf", ts_cluster.dir);
    struct ts_result r =
        ts_run(ts_weft(), "check", "--rdma", "--timeout", "60", "--node", ts_cluster.node[node].name, path);
    const char *at = strstr(r.out, "locked memory: ");
    long long said = at ? atoll(at + 15) << 20 : 0, has = registered_by(ts_cluster.node[node].pid);
    cr_expect_geq(said, has, "%s\n%s", ts_cluster.node[node].name, r.out);
    cr_expect_leq(said, has + (32 << 20), "%s\n%s", ts_cluster.node[node].name, r.out);
    ts_result_free(&r);
}

/* Node a computes a prompt and stores it. When it is gone, b, which never saw the prompt, reads it from the kv node,
 * which puts the bytes into b's memory. */
Test(rdma_nodes, what_a_node_stored_another_one_reads_from_the_kv_node_without_tcp)
{
    rr_need_guest();
    /* Emulated, on a busy host, under a sanitizer: nothing is late. */
    ts_cluster_write(
        kv_nodes, KV_NODES, "ticket_lease = \"600s\";",
        "transport = { provider = \"rdma\"; };\nreplay = { exact = true; };\nsampling = { temperature = 0.0; };\n"
        "kv = { memory = \"4MiB\"; snapshots = \"0B\"; block_tokens = 32; read_timeout = \"120s\";\n"
        "       nodes = { memory = \"8MiB\"; find_timeout = \"60s\"; quiet_timeout = \"120s\"; }; };\n"
        "experts = { deadline = \"120s\"; };\nlimits = { stuck = \"120s\"; };\n");
    ts_node_start(&ts_cluster.node[KV]);
    ts_node_start(&ts_cluster.node[A]);
    ts_node_wait_ready(&ts_cluster.node[A], 200);
    ts_node_wait_log(&ts_cluster.node[A], "node_up node=kv");
    struct ts_answer cold = ts_cluster_ask(&ts_cluster.node[A], 1, TOKENS);
    cr_expect_eq(cold.cached, 0);
    json_decref(until(A, "kv", "stored", BLOCKS));
    json_t *j = status_of(KV);
    cr_expect_eq(carried(json_object_get(j, "transport"), "kv", "put_bytes_out"), 0);
    json_decref(j);
    ts_node_kill(&ts_cluster.node[A]);
    ts_node_start(&ts_cluster.node[B]);
    ts_node_wait_ready(&ts_cluster.node[B], 200);
    ts_node_wait_log(&ts_cluster.node[B], "node_up node=kv");
    struct ts_answer hit = ts_cluster_ask(&ts_cluster.node[B], 1, TOKENS);
    cr_expect_str_eq(hit.text, cold.text);
    cr_expect_geq(hit.cached, BLOCKS * 32, "%d tokens cached", hit.cached);
    json_decref(until(B, "kv", "read", BLOCKS));
    json_t *status = until(KV, "host", "read", BLOCKS), *t = json_object_get(status, "transport");
    char *text = json_dumps(t, JSON_COMPACT);
    printf("kv: %s\n", text);
    cr_expect_str_eq(json_string_value(json_object_get(t, "provider")), "rdma");
    /* The rows came to it as messages, and went from it as puts. */
    cr_expect_geq(carried(t, "kv", "message_bytes_in"), BLOCKS * BLOCK_BYTES, "%s", text);
    cr_expect_geq(carried(t, "kv", "put_bytes_out"), BLOCKS * BLOCK_BYTES, "%s", text);
    cr_expect_eq(tcp_sockets(ts_cluster.node[KV].pid, 0), 0);
    cr_expect_eq(tcp_sockets(ts_cluster.node[B].pid, ts_cluster.node[B].http.port), 0, "b has HTTP alone over tcp");
    cr_expect_gt(tcp_sockets(ts_cluster.node[B].pid, 0), 0, "its HTTP is seen");
    expect_registered(KV);
    expect_registered(B);
    free(text);
    json_decref(status);
    ts_answer_free(&hit);
    ts_answer_free(&cold);
}
