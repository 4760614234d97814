/* Implementation of check_rdma.h. */
#include "cli/check_rdma.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "actors/server.h"
#include "transport/providers.h"

/* What the node offers to others' writes or has others written from (server_link.c): the device tier's pages, a kv
 * node's buffers, and the memory that kv nodes put into. Slots of the expert exchange come on top. */
static uint64_t window_bytes(const struct cfg_config *c, const struct cfg_node *node)
{
    bool pages = node->roles & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE), kv = false;
    for (int i = 0; i < c->n_nodes; i++)
        kv |= c->n_nodes > 1 && c->nodes[i].roles & CFG_ROLE_KV;
    return (pages ? (uint64_t)c->kv.memory : 0) + (pages && kv ? (uint64_t)c->kv.nodes.buffer : 0) +
           (node->roles & CFG_ROLE_KV && c->n_nodes > 1 ? (uint64_t)c->kv.nodes.buffer : 0);
}

static int cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void judge_polling(const struct cfg_config *c,
                          void (*say)(void *ctx, enum tp_rdma_finding how, const char *text), void *ctx)
{
    char text[256];
    long long us = (long long)c->transport.rdma.spin_us;
    int n = cpus();
    if (!us)
        snprintf(text, sizeof text, "completions are waited for asleep (transport.rdma.spin is 0)");
    else if (n < ACT_SERVER_WORKERS)
        snprintf(text, sizeof text,
                 "completions are waited for asleep: a node has %d workers, and this one may use %d CPUs; with as many "
                 "it would poll for up to %lld us (transport.rdma.spin)",
                 ACT_SERVER_WORKERS, n, us);
    else
        snprintf(text, sizeof text, "completions are polled for up to %lld us, less while that does not pay", us);
    say(ctx, TP_RDMA_FINE, text);
}

void cli_check_rdma(const struct cfg_config *c, const struct cfg_node *node, int64_t slot_bytes, bool known,
                    void (*say)(void *ctx, enum tp_rdma_finding how, const char *text), void *ctx)
{
    static struct tp_rdma_facts facts;
    const struct tp_rdma_plugin *plugin;
    struct cfg_error err;
    struct tp_rdma_want want = {.devices = c->transport.rdma.devices,
                                .window_bytes = window_bytes(c, node) + (uint64_t)slot_bytes,
                                .peers = c->n_nodes - 1,
                                .known = known};
    if (tp_rdma_load(&plugin, &err) || plugin->inspect(&facts, &err)) {
        if (!known)
            say(ctx, TP_RDMA_PROBLEM, err.msg);
        return;
    }
    /* A node that others reach by loopback only is not held to its address. */
    if (tp_node_address(node, want.address, &err)) {
        say(ctx, TP_RDMA_PROBLEM, err.msg);
        return;
    }
    if (tp_address_is_loopback(want.address))
        memset(want.address, 0, sizeof want.address);
    tp_rdma_judge(&facts, &want, say, ctx);
    if (!known)
        judge_polling(c, say, ctx);
}
