#include "cli/check_cluster.h"

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include "cli/nodes.h"
#include "cli/supervisor.h"
#include "kvtiers/key.h"
#include "transport/names.h"

static void say(const struct cli_check_cluster *k, enum cli_finding how, const char *part, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void say(const struct cli_check_cluster *k, enum cli_finding how, const char *part, const char *fmt, ...)
{
    char text[2 * CFG_ERROR_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    k->say(k->ctx, how, part, text);
}

/* ---- what every node has for itself ---- */

static void check_secret(const struct cli_check_cluster *k, const struct cfg_error *err)
{
    struct stat st;
    const char *path = k->c->cluster.secret_file;
    const struct cfg_node *out = sup_not_loopback(k->c);
    bool missing = err && access(path, F_OK);
    if (missing && k->peers == CLI_PEERS_NONE)
        return; /* once for the whole deployment is enough */
    if (missing && !out)
        say(k, CLI_WARNING, "secret", "%s is not there; `weft up` makes it, as all nodes are on loopback", path);
    else if (missing)
        say(k, CLI_PROBLEM, "secret", "%s; `weft up` makes none, as other machines may reach node %s at %s", err->msg,
            out->name, out->host);
    else if (err)
        say(k, CLI_PROBLEM, "secret", "%s", err->msg);
    else if (stat(path, &st) == 0 && st.st_mode & 077)
        say(k, CLI_WARNING, "secret", "%s can be read or written by others (mode %03o); chmod 600 it", path,
            (unsigned)st.st_mode & 0777);
    else
        say(k, CLI_FINE, "secret", "%s", path);
}

bool cli_node_runs(const struct cfg_config *c, const struct cfg_node *n, char path[CFG_PATH_TEXT + CFG_NAME_TEXT + 8])
{
    snprintf(path, CFG_PATH_TEXT + CFG_NAME_TEXT + 8, "%s/%s.lock", c->cluster.state, n->name);
    int fd = c->n_nodes > 1 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    bool runs = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return runs;
}

/* Where the boot epoch is kept. What is missing of the folder is made at the start. Returns whether the node runs. */
static bool check_state(const struct cli_check_cluster *k)
{
    char path[CFG_PATH_TEXT + CFG_NAME_TEXT + 8], above[CFG_PATH_TEXT];
    bool runs = cli_node_runs(k->c, k->node, path);
    snprintf(above, sizeof above, "%s", k->c->cluster.state);
    while (access(above, F_OK) && strrchr(above, '/') > above)
        *strrchr(above, '/') = 0;
    const char *folder = access(above, F_OK) ? "." : above;
    if (access(folder, W_OK | X_OK))
        say(k, CLI_PROBLEM, "state", "%s: %s; cluster.state names a folder that the node can write", folder,
            strerror(errno));
    else if (runs)
        say(k, CLI_WARNING, "state", "node \"%s\" runs here already (%s is locked); a second one would be refused",
            k->node->name, path);
    else
        say(k, CLI_FINE, "state", "boot epochs are kept in %s", k->c->cluster.state);
    return runs;
}

static void check_port(const struct cli_check_cluster *k)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *ai;
    char port[16];
    snprintf(port, sizeof port, "%d", k->node->port);
    int r = getaddrinfo(k->node->host, port, &hints, &ai), e = 0;
    if (r) {
        say(k, CLI_PROBLEM, "link", "host \"%s\": %s; give a name or an address of this machine", k->node->host,
            gai_strerror(r));
        return;
    }
    const struct addrinfo *at = tp_name_address(ai);
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, 1))
        e = errno;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(ai);
    if (e)
        say(k, CLI_PROBLEM, "link", "%s:%d: %s; %s", k->node->host, k->node->port, strerror(e),
            e == EADDRINUSE      ? "stop the program that has it, or choose another port for this node"
            : e == EADDRNOTAVAIL ? "the node's host is an address of another machine: is this the right --node?"
                                 : "choose a port that this user may take");
    else
        say(k, CLI_FINE, "link", "%s:%d is free for the other nodes", k->node->host, k->node->port);
}

/* ---- the others ---- */

/* Not there, which may be so before they are started; anything else is an answer that does not fit. */
static bool may_come(int status)
{
    return status == -ECONNREFUSED || status == -ETIMEDOUT || status == -EHOSTUNREACH || status == -ENETUNREACH;
}

/* What a kv node has for others. */
static const char *served_text(const json_t *status, char out[256])
{
    size_t i, at = 0;
    json_t *t;
    out[0] = 0;
    json_array_foreach (json_object_get(status, "tiers"), i, t)
        if (json_is_true(json_object_get(t, "served")) && at < 256)
            at += (size_t)snprintf(out + at, 256 - at, "%s %s %.1f of %.1f MiB%s",
                                   at ? "," : "; keeps:", json_string_value(json_object_get(t, "tier")),
                                   (double)json_integer_value(json_object_get(t, "bytes")) / (1 << 20),
                                   (double)json_integer_value(json_object_get(t, "capacity")) / (1 << 20),
                                   json_is_true(json_object_get(t, "read_only")) ? " (read-only)" : "");
    return out;
}

static void judge_peer(const struct cli_check_cluster *k, const struct cfg_node *n, const struct cli_answer *a)
{
    const struct tp_hello *h = &a->hello;
    char roles[128], theirs[128], served[256];
    cfg_roles_text(n->roles, roles, sizeof roles);
    cfg_roles_text(h->roles, theirs, sizeof theirs);
    if (a->status)
        say(k, may_come(a->status) ? CLI_WARNING : CLI_PROBLEM, "peer", "%s at %s: %s", n->name, a->address, a->why);
    else if (k->revision && h->model != k->revision)
        say(k, CLI_PROBLEM, "peer",
            "%s at %s has model revision %016llx, here it is %016llx; give all nodes the same checkpoint", n->name,
            a->address, (unsigned long long)h->model, (unsigned long long)k->revision);
    else if (k->numerics && strcmp(h->numerics, k->numerics))
        say(k, CLI_PROBLEM, "peer",
            "%s at %s computes with %s, this machine would with %s: other bits; set compute.cpu to a path that all "
            "machines have",
            n->name, a->address, h->numerics, k->numerics);
    else if (h->block_tokens != (uint32_t)k->c->kv.block_tokens)
        say(k, CLI_PROBLEM, "peer", "%s at %s has kv.block_tokens = %u, here it is %d; give all nodes the same file",
            n->name, a->address, h->block_tokens, k->c->kv.block_tokens);
    else if (k->replay[0] && h->replay[0] && strcmp(h->replay, k->replay))
        say(k, CLI_PROBLEM, "peer", "%s at %s has replay.%s, here it is replay.%s; give all nodes the same file",
            n->name, a->address, h->replay, k->replay);
    else if (h->kv_format != KV_FORMAT_ROWS)
        say(k, CLI_PROBLEM, "peer", "%s at %s keeps rows in format %u, here it is %u; run the same version everywhere",
            n->name, a->address, h->kv_format, (unsigned)KV_FORMAT_ROWS);
    else if (h->roles != n->roles)
        say(k, CLI_PROBLEM, "peer", "%s at %s runs as %s, the file says %s; restart it with this file", n->name,
            a->address, theirs, roles);
    else
        say(k, CLI_FINE, "peer", "%s at %s: connected in %.1f ms, answers in %.1f ms, epoch %llu%s", n->name,
            a->address, (double)a->connect_ns / 1e6, (double)a->answer_ns / 1e6, (unsigned long long)h->epoch,
            n->roles & CFG_ROLE_KV ? served_text(a->json, served) : "");
}

static void check_peers(const struct cli_check_cluster *k, const struct cli_nodes *nodes)
{
    static struct cli_answer answer[CFG_NODES_MAX];
    int which[CFG_NODES_MAX], here[CFG_NODES_MAX], n = 0, n_here = 0;
    struct cfg_error none;
    bool skip[CFG_NODES_MAX] = {false};
    if (k->peers == CLI_PEERS_ELSEWHERE && sup_local(k->c, here, &n_here, &none))
        n_here = 0;
    for (int i = 0; i < n_here; i++)
        skip[here[i]] = true;
    for (int i = 0; i < k->c->n_nodes; i++)
        if (&k->c->nodes[i] != k->node && !skip[i])
            which[n++] = i;
    cli_nodes_ask(nodes, which, n, "weft check", "status", (int64_t)k->timeout_s * 1000000000, answer);
    for (int i = 0; i < n; i++) {
        judge_peer(k, &k->c->nodes[which[i]], &answer[i]);
        cli_answer_clear(&answer[i]);
    }
}

void cli_check_cluster(const struct cli_check_cluster *k)
{
    struct cli_nodes nodes;
    struct cfg_error err;
    if (k->c->n_nodes < 2)
        return;
    int r = cli_nodes_open(k->c, k->file, &nodes, &err);
    bool provider = nodes.provider.ops != NULL; /* else the part about rdma says why */
    if (provider)
        check_secret(k, r ? &err : NULL);
    if (!check_state(k))
        check_port(k);
    if (!r && k->peers != CLI_PEERS_NONE)
        check_peers(k, &nodes);
}
