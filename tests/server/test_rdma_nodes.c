/* A deployment over the provider rdma, in the guest of tests/rdma/guest.sh (`make test-rdma`): gateway, prefill, decode
 * and expert as processes of their own, with the tokens of one process, and the counters of each that show what carried
 * history and experts. */
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
enum { GATEWAY, PREFILL, DECODE, EXPERT, NODES, TOKENS = 12, PROMPTS = 2 };

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
                         .name = nodes[node].name,
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

/* Sockets of TCP that a process has: of its descriptors, those that the kernel's table of TCP knows. */
static int tcp_sockets(pid_t pid)
{
    char path[64], link[128], wanted[64];
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
        snprintf(wanted, sizeof wanted, " %lu ", inode);
        n += strstr(table, wanted) || (table6 && strstr(table6, wanted));
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
            cr_expect_ge(carried(t, "expert", "puts_out"), 100, "%s", text);
        }
        /* The gateway serves HTTP; nobody else has anything that could carry a byte over tcp. */
        cr_expect_eq(tcp_sockets(ts_cluster.node[i].pid) > 0, i == GATEWAY, "%s has %d sockets of TCP", nodes[i].name,
                     tcp_sockets(ts_cluster.node[i].pid));
        free(text);
        json_decref(j);
    }
    cr_expect_gt(rr_counter("rxe0", "sent_pkts") - before, 100);
}
