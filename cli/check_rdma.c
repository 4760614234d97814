/* Implementation of check_rdma.h. */
#include "cli/check_rdma.h"

#include <stdio.h>
#include <string.h>

#include "transport/providers.h"

void cli_check_rdma(const struct cfg_config *c, const struct cfg_node *node,
                    void (*say)(void *ctx, enum tp_rdma_finding how, const char *text), void *ctx)
{
    static struct tp_rdma_facts facts;
    const struct tp_rdma_plugin *plugin;
    struct cfg_error err;
    struct tp_rdma_want want = {.devices = c->transport.rdma.devices, .channels = TP_CLASSES * (c->n_nodes - 1)};
    want.register_bytes =
        (uint64_t)c->kv.memory + (uint64_t)want.channels * TP_RDMA_CHANNEL_BYTES + TP_RDMA_CHANNEL_BYTES;
    if (tp_rdma_load(&plugin, &err) || plugin->inspect(&facts, &err)) {
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
}
