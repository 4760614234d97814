/* Implementation of deployment.h. */
#include "tests/support/deployment.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"
#include "tests/support/rdma_rig.h"
#include "transport/net.h"

enum { WAIT = 600 };

static json_t *over_rdma(int node)
{
    struct cfg_error err = {""};
    const struct ts_node *n = &ts_cluster.node[node];
    struct tp_rdma_config config = {.address = n->host};
    struct tp_answer answer;
    char address[64], path[4200];
    uint8_t secret[TP_SECRET];
    snprintf(path, sizeof path, "%s/secret", ts_cluster.dir);
    cr_assert_eq(tp_secret_load(path, secret, &err), 0, "%s", err.msg);
    snprintf(address, sizeof address, "%s:%d", n->host, n->port);
    struct tp_ask ask = {.ops = rr_ops(),
                         .provider = &config,
                         .secret = secret,
                         .tool = "a test",
                         .address = address,
                         .name = n->name,
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

json_t *ts_status_of(int node)
{
    if (ts_cluster.node[node].host)
        return over_rdma(node);
    char *text = ts_node_ask(&ts_cluster.node[node], "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    cr_assert_not_null(j, "%s: %s", ts_cluster.node[node].name, text ? text : "no answer");
    free(text);
    return j;
}

long long ts_carried(const json_t *status, const char *class, const char *what)
{
    return json_integer_value(json_object_get(json_object_get(json_object_get(status, "transport"), class), what));
}

long long ts_tier_figure(const json_t *status, const char *tier, const char *key)
{
    json_t *t;
    size_t i;
    json_array_foreach (json_object_get(status, "tiers"), i, t) {
        if (!strcmp(json_string_value(json_object_get(t, "tier")), tier))
            return json_integer_value(json_object_get(t, key));
    }
    return 0;
}

json_t *ts_until_figure(int node, const char *tier, const char *key, long long least)
{
    for (int i = 0; i < WAIT; i++) {
        json_t *j = ts_status_of(node);
        if (ts_tier_figure(j, tier, key) >= least)
            return j;
        json_decref(j);
        usleep(100000);
    }
    ts_cluster_show_logs();
    cr_assert_fail("%s: %s of tier %s stays below %lld", ts_cluster.node[node].name, key, tier, least);
    return NULL;
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

int ts_tcp_sockets(pid_t pid, int port)
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
