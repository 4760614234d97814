/* Implementation of config/check.h, and of the checks that need the model. */
#include "config/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/keys.h"

/* The place of the last of the given keys that stands in a file: the one to look at. line 0 when all are defaults. */
static struct cfg_place place_of(const struct cfg_config *c, const char *key, const char *other)
{
    struct cfg_place at = {0, 0};
    const char *keys[] = {key, other};
    for (int i = 0; i < 2; i++) {
        int k = keys[i] ? cfg_key_find(keys[i]) : -1;
        if (k >= 0 && c->places[k].line > 0 && at.line == 0)
            at = c->places[k];
    }
    return at;
}

#define REPORT_AT(report, c, at, remedy, ...)                                                                          \
    cfg_report_add(report, (c)->files[(at).file], (at).line, remedy, __VA_ARGS__)

static void check_compute(const struct cfg_config *c, struct cfg_report *report)
{
    if (c->compute.prefill_chunk > c->compute.max_batch_rows) {
        struct cfg_place at = place_of(c, "compute.prefill_chunk", "compute.max_batch_rows");
        REPORT_AT(report, c, at, "Lower compute.prefill_chunk or raise compute.max_batch_rows.",
                  "compute.prefill_chunk = %d is more than compute.max_batch_rows = %d", c->compute.prefill_chunk,
                  c->compute.max_batch_rows);
    }
    if (c->speculation.draft_length + 1 > c->compute.max_batch_rows) {
        struct cfg_place at = place_of(c, "speculation.draft_length", "compute.max_batch_rows");
        REPORT_AT(report, c, at, "Lower speculation.draft_length or raise compute.max_batch_rows.",
                  "verifying speculation.draft_length = %d needs %d rows; compute.max_batch_rows = %d",
                  c->speculation.draft_length, c->speculation.draft_length + 1, c->compute.max_batch_rows);
    }
}

static void check_replay(const struct cfg_config *c, struct cfg_report *report)
{
    if (c->replay.exact && c->replay.rows > 0) {
        struct cfg_place at = place_of(c, "replay.rows", "replay.exact");
        REPORT_AT(report, c, at, "Take replay.rows out, or set replay.exact = false.",
                  "replay.rows = %d has no meaning with replay.exact = true", c->replay.rows);
    }
    if (c->speculation.draft_length > c->replay.rollback) {
        struct cfg_place at = place_of(c, "speculation.draft_length", "replay.rollback");
        REPORT_AT(report, c, at, "Lower speculation.draft_length or raise replay.rollback.",
                  "speculation.draft_length = %d is more than replay.rollback = %d, so rejected drafts could not be "
                  "taken back",
                  c->speculation.draft_length, c->replay.rollback);
    }
    if (!c->replay.exact && c->replay.rows > 0 && c->replay.rows <= c->replay.rollback) {
        struct cfg_place at = place_of(c, "replay.rows", "replay.rollback");
        REPORT_AT(report, c, at, "Raise replay.rows, or leave it out.",
                  "replay.rows = %d is not more than replay.rollback = %d; it must be at least the sliding window of "
                  "the model plus that",
                  c->replay.rows, c->replay.rollback);
    }
}

static void check_model(const struct cfg_config *c, struct cfg_report *report)
{
    size_t digits = strspn(c->model.revision, "0123456789abcdefABCDEF"), len = strlen(c->model.revision);
    if (len && (len != 16 || digits != len)) {
        struct cfg_place at = place_of(c, "model.revision", NULL);
        REPORT_AT(report, c, at, "Write the 16 hex digits that weft check prints, or leave it out.",
                  "model.revision = \"%s\" is not a revision", c->model.revision);
    }
    if (c->model.context > 0 && c->sampling.max_tokens > c->model.context) {
        struct cfg_place at = place_of(c, "sampling.max_tokens", "model.context");
        REPORT_AT(report, c, at, "Lower sampling.max_tokens or raise model.context.",
                  "sampling.max_tokens = %d is more than model.context = %d", c->sampling.max_tokens, c->model.context);
    }
}

static void check_security(const struct cfg_config *c, struct cfg_report *report)
{
    bool cert = c->security.tls_cert[0], key = c->security.tls_key[0];
    if (cert == key)
        return;
    struct cfg_place at = place_of(c, "security.tls_cert", "security.tls_key");
    REPORT_AT(report, c, at, "TLS needs both, the certificate chain and its private key; give the other one too.",
              "security.%s is given without security.%s", cert ? "tls_cert" : "tls_key", cert ? "tls_key" : "tls_cert");
}

static bool is_name(const char *name)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t n = strspn(name, first);
    return n && !name[n + strspn(name + n, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")];
}

/* Port 0: the kernel chooses one that is free. */
static bool is_any_port(const char *address)
{
    const char *colon = strrchr(address, ':');
    return colon && !strcmp(colon, ":0");
}

static void check_node(const struct cfg_config *c, const struct cfg_node *n, struct cfg_report *report)
{
    bool gateway = n->roles & CFG_ROLE_GATEWAY;
    if (n->name[0] && !is_name(n->name))
        REPORT_AT(report, c, n->place, "Use letters, digits, '-', '_' and '.', and begin with a letter or a digit.",
                  "node name \"%s\": files are named after it", n->name);
    if (gateway && !n->listen[0])
        REPORT_AT(report, c, n->place, "Add listen = \"HOST:PORT\", such as \"0.0.0.0:8000\".",
                  "node \"%s\" has the role gateway but no listen", n->name);
    if (n->roles && !gateway && n->listen[0])
        REPORT_AT(report, c, n->place, "Take listen out or add the role gateway.",
                  "node \"%s\" has listen but not the role gateway", n->name);
    if (gateway && n->metrics[0])
        REPORT_AT(report, c, n->place, "Take metrics out.",
                  "node \"%s\" has metrics, and is a gateway, which answers /metrics where it listens: %s", n->name,
                  n->listen);
    bool served = !(n->roles & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE));
    for (int i = 0; i < c->n_nodes && !served; i++)
        served = c->nodes[i].roles & CFG_ROLE_EXPERT && strcmp(c->nodes[i].experts, n->experts) == 0;
    if (!served && n->experts[0])
        REPORT_AT(report, c, n->place, "Give an expert node the same name in experts.",
                  "node \"%s\" uses the expert group \"%s\", and no node with the role expert is in it", n->name,
                  n->experts);
    for (const struct cfg_node *o = c->nodes; o < n; o++) {
        if (n->name[0] && strcmp(o->name, n->name) == 0)
            REPORT_AT(report, c, n->place, "Give each node a name of its own.",
                      "the node name \"%s\" is taken by the node at %s:%d", n->name, c->files[o->place.file],
                      o->place.line);
        const char *mine = gateway ? n->listen : n->metrics,
                   *other = o->roles & CFG_ROLE_GATEWAY ? o->listen : o->metrics;
        if (mine[0] && strcmp(mine, other) == 0 && strcmp(o->host, n->host) == 0 && !is_any_port(mine))
            REPORT_AT(report, c, n->place, "Give each an address of its own.",
                      "node \"%s\" listens at %s on host %s, as node \"%s\" does", n->name, mine, n->host, o->name);
    }
}

/* Nodes that keep blocks for the others. */
static void check_kv(const struct cfg_config *c, struct cfg_report *report)
{
    int n = 0;
    if (c->n_nodes < 2)
        return;
    for (int i = 0; i < c->n_nodes; i++) {
        n += (c->nodes[i].roles & CFG_ROLE_KV) != 0;
        if (n == CFG_KV_NODES_MAX + 1 && c->nodes[i].roles & CFG_ROLE_KV)
            REPORT_AT(report, c, c->nodes[i].place, "Take the role from some, and give the others more room.",
                      "node \"%s\" is the %dth node with the role kv; there may be %d", c->nodes[i].name, n,
                      CFG_KV_NODES_MAX);
    }
    if (n && c->kv.nodes.quiet_us < c->kv.nodes.find_us)
        REPORT_AT(report, c, place_of(c, "kv.nodes.find_timeout", "kv.nodes.quiet_timeout"),
                  "Lower kv.nodes.find_timeout or raise kv.nodes.quiet_timeout.",
                  "kv.nodes.find_timeout is longer than kv.nodes.quiet_timeout: a prompt would wait longer to learn "
                  "what a kv node has than for the bytes");
}

/* What only a deployment of several nodes needs. */
static void check_cluster(const struct cfg_config *c, struct cfg_report *report)
{
    struct cfg_place list = c->places[cfg_key_find("nodes")];
    if (c->cluster.silence_us < c->cluster.ping_us)
        REPORT_AT(report, c, place_of(c, "cluster.silence", "cluster.ping"), "Raise cluster.silence.",
                  "cluster.silence is shorter than cluster.ping, so that every idle node would be lost");
    if (c->n_nodes < 2)
        return;
    for (int i = 0; i < c->n_nodes; i++) {
        const struct cfg_node *n = &c->nodes[i];
        if (!n->port)
            REPORT_AT(report, c, n->place, "Add port = NUMBER.", "node \"%s\" has no port where the others reach it",
                      n->name);
        for (const struct cfg_node *o = c->nodes; o < n; o++)
            if (n->port && o->port == n->port && strcmp(o->host, n->host) == 0)
                REPORT_AT(report, c, n->place, "Give each node an address of its own.",
                          "node \"%s\" is reached at %s:%d, as node \"%s\" is", n->name, n->host, n->port, o->name);
    }
    if (!c->cluster.secret_file[0])
        REPORT_AT(report, c, list, "Add cluster = { secret_file = \"FILE\"; }; `openssl rand -hex 32` makes one.",
                  "several nodes need cluster.secret_file");
    if (!c->cluster.state[0])
        REPORT_AT(report, c, list, "Add cluster = { state = \"FOLDER\"; }.", "several nodes need cluster.state");
}

static void check_nodes(const struct cfg_config *c, struct cfg_report *report)
{
    int list = cfg_key_find("nodes");
    if (c->places[list].line == 0)
        return;
    unsigned roles = 0;
    bool all_known = c->n_nodes > 0; /* a node whose roles were refused may have had any */
    for (int i = 0; i < c->n_nodes; i++) {
        check_node(c, &c->nodes[i], report);
        roles |= c->nodes[i].roles;
        all_known &= c->nodes[i].roles != 0;
    }
    const char *const *names = cfg_keys[cfg_key_find("nodes[].roles")].values;
    for (int r = 0; all_known && names[r]; r++)
        if (!(roles >> r & 1) && 1u << r != CFG_ROLE_KV)
            REPORT_AT(report, c, c->places[list], "Give the role to a node.", "no node has the role \"%s\"", names[r]);
}

void cfg_check_combinations(const struct cfg_config *c, struct cfg_report *report)
{
    check_compute(c, report);
    check_replay(c, report);
    check_model(c, report);
    check_security(c, report);
    check_nodes(c, report);
    check_cluster(c, report);
    check_kv(c, report);
}

bool cfg_node_is_encoder(const struct cfg_config *c, const struct cfg_node *n)
{
    return n && n->roles == CFG_ROLE_PREFILL && c->engine.handoff != CFG_HANDOFF_FULL && !c->replay.exact;
}

uint64_t cfg_model_revision(const struct cfg_config *c)
{
    return strtoull(c->model.revision, NULL, 16);
}

int cfg_replay_rows(const struct cfg_config *c, int window)
{
    return c->replay.rows > 0 ? c->replay.rows : window + c->replay.rollback;
}

void cfg_replay_text(const struct cfg_config *c, int window, bool cut, char *out, size_t size)
{
    if (c->replay.exact || !cut)
        snprintf(out, size, "exact = true");
    else
        snprintf(out, size, "rows = %d, bridge_window = %s", cfg_replay_rows(c, window),
                 c->replay.bridge_window == CFG_BRIDGE_FULL ? "full" : "truncate");
}

int cfg_config_check_model(const struct cfg_config *c, int window, int max_position, int draft_block,
                           struct cfg_report *report)
{
    size_t before = report->count + report->dropped;
    if (!c->replay.exact && cfg_replay_rows(c, window) < window + c->replay.rollback) {
        struct cfg_place at = place_of(c, "replay.rows", "replay.rollback");
        REPORT_AT(report, c, at, "Raise replay.rows, lower replay.rollback, or leave replay.rows out.",
                  "replay.rows = %d is less than the sliding window of the model, %d, plus replay.rollback = %d",
                  c->replay.rows, window, c->replay.rollback);
    }
    if (c->model.context > max_position) {
        struct cfg_place at = place_of(c, "model.context", NULL);
        REPORT_AT(report, c, at, "Lower it, or set 0 for the longest possible.",
                  "model.context = %d is more than the %d tokens that the model allows", c->model.context,
                  max_position);
    }
    int draft_key = cfg_key_find("speculation.draft_length");
    if (c->speculation.draft_length > draft_block && c->places[draft_key].line > 0)
        REPORT_AT(report, c, c->places[draft_key], "Lower it; 0 turns speculation off.",
                  "speculation.draft_length = %d is more than the %d tokens that the drafter of the model drafts",
                  c->speculation.draft_length, draft_block);
    return report->count + report->dropped > before ? -EINVAL : 0;
}

struct cfg_place cfg_config_place(const struct cfg_config *c, const char *key)
{
    return place_of(c, key, NULL);
}

const struct cfg_node *cfg_config_node(const struct cfg_config *c, const char *name)
{
    for (int i = 0; i < c->n_nodes; i++)
        if (strcmp(c->nodes[i].name, name) == 0)
            return &c->nodes[i];
    return NULL;
}
