/* The part of `weft check` about memory: what the node's roles need, line by line, and what is there. */
#include <stdio.h>
#include <string.h>

#include "actors/server.h"
#include "cli/check_impl.h"
#include "config/units.h"
#include "model/info.h"
#include "model/kv.h"

static int64_t number_in(const char *path, const char *name, int64_t scale)
{
    char line[256];
    long long v = -1;
    FILE *f = fopen(path, "re");
    size_t n = strlen(name);
    while (f && v < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, name, n) && sscanf(line + n, " %lld", &v) != 1)
            v = -1;
    if (f)
        fclose(f);
    return v < 0 ? -1 : (int64_t)v * scale;
}

/* Bytes that a new process could use: of the machine, or less where a control group says so. -1: not known. */
static int64_t memory_available(void)
{
    int64_t machine = number_in("/proc/meminfo", "MemAvailable:", 1024),
            group = number_in("/sys/fs/cgroup/memory.max", "", 1);
    int64_t used = number_in("/sys/fs/cgroup/memory.current", "", 1);
    if (group >= 0 && used >= 0 && group - used < machine)
        return group - used > 0 ? group - used : 0;
    return machine;
}

/* A line of the sum. */
static void add(struct check *k, int64_t *need, const char *what, int64_t bytes)
{
    char text[CFG_UNIT_TEXT_MAX];
    if (!bytes)
        return;
    snprintf(text, sizeof text, "%.1f MiB", (double)bytes / (1 << 20));
    cli_check_say(k, FINE, "memory", "%12s  %s", text, what);
    *need += bytes;
}

/* Shards of the node's group of experts; 0: its experts are in its own process alone. */
static int shards_of(const struct check *k, const struct mdl_config *m)
{
    const struct cfg_config *c = k->c;
    int nodes = 0, shards;
    for (int i = 0; i < c->n_nodes; i++)
        nodes += c->nodes[i].roles & CFG_ROLE_EXPERT && !strcmp(c->nodes[i].experts, k->node->experts);
    shards = nodes * c->engine.expert_shards;
    shards = shards < m->n_experts ? shards : m->n_experts;
    return nodes == 1 && k->node->roles & CFG_ROLE_EXPERT ? 0 : shards;
}

static int64_t context_of(const struct check *k, const struct mdl_config *m)
{
    int64_t context = k->c->model.context ? k->c->model.context : m->max_position;
    return context < m->max_position ? context : m->max_position;
}

/* Pages against the longest sequence. false: there cannot be any. */
static bool check_pages(struct check *k, const struct mdl_config *m)
{
    const struct cfg_config *c = k->c;
    int64_t pages = c->kv.memory / (int64_t)k->block_bytes,
            context = c->model.context ? c->model.context : m->max_position;
    if (pages < 2) {
        cli_check_say(k, PROBLEM, "kv", "kv.memory holds %lld pages of %zu bytes; raise it, or lower kv.block_tokens",
                      (long long)pages, k->block_bytes);
        k->config_wrong = true;
        return false;
    }
    bool tight = pages * c->kv.block_tokens < context;
    if (check_computes(k))
        cli_check_say(k, tight ? WARNING : FINE, "kv",
                      "%lld pages of %d tokens hold %lld tokens in all; a sequence may have %lld%s", (long long)pages,
                      c->kv.block_tokens, (long long)pages * c->kv.block_tokens, (long long)context,
                      tight ? ": the context is cut to what fits, raise kv.memory" : "");
    return true;
}

static int add_computing(struct check *k, const struct mdl_config *m, int64_t *need, struct cfg_error *err)
{
    const struct cfg_config *c = k->c;
    struct mdl_info_node n;
    const struct cfg_node *node = k->node;
    int64_t streams = (node->roles & CFG_ROLE_DECODE ? c->engine.decode_actors * c->engine.decode_streams : 0) +
                      (node->roles & CFG_ROLE_PREFILL ? c->engine.prefill_actors * c->engine.prefill_streams : 0);
    const struct mdl_info_ask ask = {
        .role = MDL_ROLE_ALL, .ep = shards_of(k, m), .context = context_of(k, m), .requests = streams};
    int r = mdl_info_node(m, &ask, &n, err);
    if (r)
        return r;
    bool below = c->kv.ssd.path[0] || c->kv.shared.path[0], nodes = false;
    for (int i = 0; i < c->n_nodes; i++)
        nodes |= c->n_nodes > 1 && c->nodes[i].roles & CFG_ROLE_KV;
    int64_t states = n.windows + n.draft_rings + n.tails + n.rollback + n.bridge_rows;
    int64_t host = (below || nodes) && c->kv.write_behind > c->kv.host ? c->kv.write_behind : c->kv.host, tables = 0;
    add(k, need, "weights (mapped from their files)", n.memory - states - n.global_kv);
    add(k, need, "pages of key-value rows (kv.memory)", c->kv.memory);
    add(k, need, "host tier (kv.host, at least kv.write_behind)", host);
    add(k, need, "what kv nodes send (kv.nodes.buffer)", nodes ? c->kv.nodes.buffer : 0);
    add(k, need, "windows and rings of all sequences (streams of all decode and prefill actors)", states);
    if (c->engram.store == CFG_ENGRAM_MAPPED)
        add(k, &tables, "Engram tables, read row by row from mapped files; not counted as needed", n.tables);
    add(k, need, "rows of Engram tables (engram.cache)",
        n.tables && c->engram.store == CFG_ENGRAM_HOST ? c->engram.cache : 0);
    return 0;
}

/* Experts that a shard keeps: its own, and room for copies of others. */
static int add_shards(struct check *k, const struct mdl_config *m, int64_t *need, struct cfg_error *err)
{
    const struct cfg_config *c = k->c;
    struct mdl_info_node n;
    int shards = shards_of(k, m), here = c->engine.expert_shards < shards ? c->engine.expert_shards : shards;
    const struct mdl_info_ask ask = {.role = MDL_ROLE_EXPERT, .ep = shards, .context = 1, .requests = 1};
    if (!shards) /* counted with the weights, or one shard that has all of them */
        return 0;
    int r = mdl_info_node(m, &ask, &n, err);
    if (r || !n.experts_per_layer)
        return r;
    int64_t own = n.memory * here;
    add(k, need, "experts of this node's shards (mapped from their files)", own);
    add(k, need, "copies of other experts (experts.spare)", own / n.experts_per_layer * c->experts.spare);
    return 0;
}

void cli_check_memory(struct check *k, const struct mdl_config *m)
{
    const struct cfg_config *c = k->c;
    struct mdl_kv_layout layout;
    struct cfg_error err;
    int64_t need = 0, have = memory_available();
    int r = 0;
    if (mdl_kv_layout_init(m, c->kv.block_tokens, &layout, &err)) {
        cli_check_say(k, PROBLEM, "kv", "%s", err.msg);
        return;
    }
    k->block_bytes = layout.block_bytes;
    if (!check_pages(k, m))
        return;
    if (check_computes(k))
        r = add_computing(k, m, &need, &err);
    if (!r && k->node->roles & CFG_ROLE_EXPERT)
        r = add_shards(k, m, &need, &err);
    if (!r)
        r = act_server_slots_check(c, k->node, m, &err);
    k->slot_bytes = r ? 0 : act_server_slot_bytes(c, k->node, m);
    add(k, &need, "slots of the exchange with experts (experts.slot_rows)", k->slot_bytes);
    if (check_keeps(k)) {
        add(k, &need, "blocks for other nodes (kv.nodes.memory)", c->kv.nodes.memory);
        add(k, &need, "blocks on their way to and from them (kv.nodes.buffer, twice)", 2 * c->kv.nodes.buffer);
    }
    if (r) {
        cli_check_say(k, PROBLEM, "memory", "%s", err.msg);
        return;
    }
    k->need += need;
    const char *what = check_computes(k) ? "kv.memory or engine.decode_streams"
                       : check_keeps(k)  ? "kv.nodes.memory or kv.nodes.buffer"
                                         : "experts.spare";
    if (have < 0)
        cli_check_say(k, WARNING, "memory", "how much is available cannot be told here; %.1f MiB are needed",
                      (double)need / (1 << 20));
    else if (need > have)
        cli_check_say(k, PROBLEM, "memory", "%.1f MiB needed, %.1f MiB available; lower %s, or use a larger machine",
                      (double)need / (1 << 20), (double)have / (1 << 20), what);
    else
        cli_check_say(k, FINE, "memory", "%.1f MiB needed, %.1f MiB available", (double)need / (1 << 20),
                      (double)have / (1 << 20));
}

void cli_check_memory_of_all(struct check *k, int nodes)
{
    int64_t have = memory_available();
    if (have >= 0 && k->need > have)
        cli_check_say(
            k, PROBLEM, "memory",
            "%.1f MiB needed by the %d nodes of this machine, %.1f MiB available; give them less, or move some to "
            "another machine",
            (double)k->need / (1 << 20), nodes, (double)have / (1 << 20));
    else
        cli_check_say(k, FINE, "memory", "%.1f MiB needed by the %d nodes of this machine", (double)k->need / (1 << 20),
                      nodes);
}
