/* How a node reaches the others: its incarnation, the link's plan, and its directory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "actors/runtime/log.h"
#include "actors/server_impl.h"

/* ---- the incarnation ------------------------------------------------------------------------------- */

static int make_folder(const char *path, struct cfg_error *err)
{
    char part[CFG_PATH_TEXT];
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i])
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0755) && errno != EEXIST)
            return cfg_error_set(err, errno, "cluster.state: folder %s: %s", part, strerror(errno));
    }
    return 0;
}

/* Holds the node's name on this machine: a second process under it is refused before it does anything. */
static int lock_name(struct act_server *s, struct cfg_error *err)
{
    char path[CFG_PATH_TEXT + CFG_NAME_TEXT + 8];
    snprintf(path, sizeof path, "%s/%s.lock", s->config->cluster.state, s->node->name);
    s->lock_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (s->lock_file < 0)
        return cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    if (flock(s->lock_file, LOCK_EX | LOCK_NB)) {
        if (errno == EWOULDBLOCK)
            return cfg_error_set(err, EEXIST, "another process runs node \"%s\" here (%s is locked); stop it first",
                                 s->node->name, path);
        return cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    }
    return 0;
}

int server_incarnation(struct act_server *s, uint64_t *epoch, struct cfg_error *err)
{
    char path[CFG_PATH_TEXT + CFG_NAME_TEXT + 8];
    struct timespec t;
    *epoch = 1;
    if (s->config->n_nodes < 2)
        return 0;
    int r = make_folder(s->config->cluster.state, err);
    if (!r)
        r = lock_name(s, err);
    clock_gettime(CLOCK_REALTIME, &t);
    snprintf(path, sizeof path, "%s/%s.epoch", s->config->cluster.state, s->node->name);
    if (!r)
        r = act_epoch_next(path, (int64_t)t.tv_sec * 1000000000 + t.tv_nsec, epoch, err);
    return r;
}

/* ---- the plan -------------------------------------------------------------------------------------- */

static void note_list(struct act_server *s, const struct cfg_config *c)
{
    for (s->n_listed = 0; s->n_listed < c->n_nodes; s->n_listed++) {
        snprintf(s->listed[s->n_listed].name, CFG_NAME_TEXT, "%s", c->nodes[s->n_listed].name);
        s->listed[s->n_listed].roles = c->nodes[s->n_listed].roles;
    }
}

static int peers_of(const struct cfg_config *c, const struct cfg_node *self, struct act_link_peer *out, int max)
{
    int n = 0;
    for (int i = 0; i < c->n_nodes && n < max; i++) {
        if (&c->nodes[i] == self)
            continue;
        struct act_link_peer *p = &out[n++];
        snprintf(p->name, sizeof p->name, "%s", c->nodes[i].name);
        p->number = (uint16_t)(i + 1);
        cfg_node_address(&c->nodes[i], p->address, sizeof p->address);
    }
    return n;
}

/* A node that stays in the list and has another number in it. NULL: none. */
static const struct cfg_node *find_moved(const struct act_server *s, const struct cfg_config *c)
{
    for (int i = 0; i < s->n_listed; i++) {
        const struct cfg_node *now = cfg_config_node(c, s->listed[i].name);
        if (now && now - c->nodes != i)
            return now;
    }
    return NULL;
}

/* Reads the node list again. Whoever stays in it keeps its number, the numbers being the order of the list: nodes
 * under other numbers would refuse each other for good. */
static int reload_peers(void *ctx, struct act_link_peer *out, int max)
{
    struct act_server *s = ctx;
    struct cfg_report report = {0};
    struct cfg_config *c = calloc(1, sizeof *c);
    int n = -1;
    if (c && cfg_config_load(s->config->files[0], c, &report) == 0) {
        const struct cfg_node *self = cfg_config_node(c, s->node->name), *moved = find_moved(s, c);
        if (!self || moved)
            act_log_write(s->log, ACT_LOG_ERROR, "link", 0,
                          "the node list was not read again: node \"%s\" %s; add and take off nodes at the end only",
                          self ? moved->name : s->node->name, self ? "has another place in it" : "itself is not in it");
        else
            n = peers_of(c, self, out, max);
        if (n >= 0)
            note_list(s, c);
    } else {
        const struct cfg_problem *p = report.count ? &report.problems[0] : NULL;
        act_log_write(s->log, ACT_LOG_ERROR, "link", 0, "the node list was not read again: %s:%d: %s",
                      p ? p->file : s->config->files[0], p ? p->line : 0, p ? p->message : "no memory");
    }
    cfg_report_free(&report);
    free(c);
    return n;
}

static void on_link_failed(void *ctx, int reason)
{
    struct act_server *s = ctx;
    act_log_write(s->log, ACT_LOG_ERROR, "link", 0, "the link has ended: %s", strerror(-reason));
    server_on_failed(s);
}

int server_plan_link(struct act_server *s, uint64_t epoch, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    if (c->n_nodes < 2)
        return 0;
    struct act_link_arg *a = s->link = calloc(1, sizeof *a);
    struct act_link_peer *peers = s->link_peers = calloc(ACT_LINK_PEERS_MAX, sizeof *peers);
    if (!a || !peers)
        return cfg_error_set(err, ENOMEM, "server: out of memory");
    int r = tp_provider_of(c, s->node, &s->provider, err);
    if (r)
        return cfg_error_prefix(err, -ENOTSUP, "transport.provider = \"rdma\"");
    a->net.ops = s->provider.ops;
    a->net.endpoint.provider = s->provider.config;
    a->spin_ns = c->transport.rdma.spin_us * 1000;
    a->leave_ns = c->limits.drain_us * 1000 + INT64_C(5000000000);
    r = tp_secret_load(c->cluster.secret_file, a->net.secret, err);
    if (r)
        return r == -EINVAL ? -EBADMSG : r;
    a->net.self = (struct tp_hello){.kind = TP_KIND_NODE,
                                    .number = (uint16_t)(s->node - c->nodes + 1),
                                    .epoch = epoch,
                                    .roles = s->node->roles,
                                    .model = s->m->ck->revision,
                                    .kv_format = KV_FORMAT_ROWS,
                                    .block_tokens = (uint32_t)c->kv.block_tokens};
    snprintf(a->net.self.name, sizeof a->net.self.name, "%s", s->node->name);
    snprintf(a->net.self.numerics, sizeof a->net.self.numerics, "cpu/%s", s->m->exec.be->name);
    /* A gateway has no rows, but chooses who works together on a prompt. */
    if (server_has(s, CFG_ROLE_GATEWAY | CFG_ROLE_PREFILL | CFG_ROLE_DECODE))
        cfg_replay_text(c, s->m->cfg->window, s->m->cfg->cut >= 0, a->net.self.replay, sizeof a->net.self.replay);
    a->net.handshake_ns = c->cluster.connect_us * 1000;
    a->net.ping_ns = c->cluster.ping_us * 1000;
    a->net.silence_ns = c->cluster.silence_us * 1000;
    a->net.retry_max_ns = c->cluster.retry_us * 1000;
    a->peer = peers;
    a->n_peers = peers_of(c, s->node, peers, ACT_LINK_PEERS_MAX);
    note_list(s, c);
    cfg_node_address(s->node, a->listen, sizeof a->listen);
    if (s->engine.device)
        a->window[a->n_windows++] =
            (struct act_link_window){.id = ACT_WINDOW_PAGES,
                                     .base = kv_device_bytes(s->engine.device, 0),
                                     .size = (size_t)kv_device_pages(s->engine.device) * s->engine.layout.block_bytes};
    if (s->kv.buffer)
        a->window[a->n_windows++] =
            (struct act_link_window){.id = ACT_WINDOW_POOL, .base = s->kv.buffer, .size = s->kv.buffer_bytes};
    if (s->kv.slots)
        a->window[a->n_windows++] =
            (struct act_link_window){.id = ACT_WINDOW_SLOTS, .base = s->kv.slots, .size = s->kv.slots_bytes};
    server_slots_windows(s, a);
    if (s->slots)
        s->slots->epoch = epoch;
    a->log = s->log;
    a->ctx = s;
    a->reload = c->files[0][0] ? reload_peers : NULL;
    a->asked = server_answer_tool;
    a->failed = on_link_failed;
    a->start_error = &s->gateway_error;
    return 0;
}

int server_spawn_link(struct act_server *s, struct cfg_error *err)
{
    if (!s->link)
        return 0;
    const struct act_spawn spec = {
        .behaviour = &act_link_behaviour, .worker = SERVER_WORKER_IO, .arg = s->link, .batch = 256, .outbox = 1 << 16};
    int r = act_runtime_spawn(s->rt, &spec, &s->engine.link, err);
    if (r && s->gateway_error.msg[0])
        *err = s->gateway_error;
    return r;
}

static void list(struct act_link_arg *a, enum act_node_kind kind, struct act_addr who, uint32_t first, uint32_t second)
{
    if (!act_addr_is_nobody(who) && a->n_own < ACT_LINK_ACTORS_MAX)
        a->own[a->n_own++] = (struct act_node_actor){.kind = kind, .a = first, .b = second, .addr = who};
}

void server_list_actors(struct act_server *s)
{
    struct act_link_arg *a = s->link;
    const struct act_engine *e = &s->engine;
    if (!a)
        return;
    list(a, ACT_NODE_LINK, e->link, 0, 0);
    list(a, ACT_NODE_GATEWAY, s->gateway_addr, 0, 0);
    list(a, ACT_NODE_ROUTER, e->router, 0, 0);
    list(a, ACT_NODE_TIER, e->tier, 0, 0);
    list(a, ACT_NODE_KV, s->kv.addr, 0, 0);
    list(a, ACT_NODE_BALANCER, s->balancer_addr, 0, 0);
    for (int i = 0; i < e->n_prefill; i++)
        list(a, ACT_NODE_PREFILL, e->prefill[i], (uint32_t)i, (uint32_t)e->n_prefill);
    list(a, ACT_NODE_DECODE, e->landing, 0, (uint32_t)e->n_decode);
    a->port[TP_CLASS_KV][ACT_PORT_LANDING] = e->landing;
    if (s->slots)
        list(a, ACT_NODE_SLOTS, e->link, (uint32_t)s->slots->fingerprint, (uint32_t)(s->slots->fingerprint >> 32));
    server_slots_ports(s, a);
    /* a: index of the shard in its group's map. */
    for (int i = 0; i < e->experts.n; i++)
        list(a, ACT_NODE_EXPERT, e->experts.shard[i], (uint32_t)i, (uint32_t)e->experts.n);
}
