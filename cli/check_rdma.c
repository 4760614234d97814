/* Implementation of check_rdma.h. */
#include "cli/check_rdma.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "transport/transport.h"

/* The node's address as an IPv6 or mapped one; all zero when it has none that others could use. Returns 0 or the error
 * of getaddrinfo. */
static int node_address(const struct cfg_node *node, uint8_t out[16])
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
    struct addrinfo *ai;
    memset(out, 0, 16);
    if (!node->host[0])
        return 0;
    int r = getaddrinfo(node->host, NULL, &hints, &ai);
    if (r)
        return r;
    if (ai->ai_family == AF_INET) {
        const struct in_addr a = ((const struct sockaddr_in *)(const void *)ai->ai_addr)->sin_addr;
        out[10] = out[11] = 0xff;
        memcpy(out + 12, &a, 4);
        if (out[12] == 127)
            memset(out, 0, 16);
    } else {
        memcpy(out, &((const struct sockaddr_in6 *)(const void *)ai->ai_addr)->sin6_addr, 16);
        if (IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)out))
            memset(out, 0, 16);
    }
    freeaddrinfo(ai);
    return 0;
}

void cli_check_rdma(const struct cfg_config *c, const struct cfg_node *node,
                    void (*say)(void *ctx, enum tp_rdma_finding how, const char *text), void *ctx)
{
    static struct tp_rdma_facts facts;
    const struct tp_rdma_plugin *plugin;
    struct cfg_error err;
    struct tp_rdma_want want = {.devices = "", .channels = TP_CLASSES * (c->n_nodes - 1)};
    want.register_bytes =
        (uint64_t)c->kv.memory + (uint64_t)want.channels * TP_RDMA_CHANNEL_BYTES + TP_RDMA_CHANNEL_BYTES;
    if (tp_rdma_load(&plugin, &err) || plugin->inspect(&facts, &err)) {
        say(ctx, TP_RDMA_PROBLEM, err.msg);
        return;
    }
    int r = node_address(node, want.address);
    if (r) {
        char text[CFG_ADDRESS_TEXT + 128];
        snprintf(text, sizeof text, "%s: %s; host must be a name or an address of this machine", node->host,
                 gai_strerror(r));
        say(ctx, TP_RDMA_PROBLEM, text);
        return;
    }
    tp_rdma_judge(&facts, &want, say, ctx);
}
