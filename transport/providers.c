/* Implementation of providers.h. */
#include "transport/providers.h"
#include "transport/names.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "transport/tcp.h"

int tp_node_address(const struct cfg_node *node, uint8_t out[16], struct cfg_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
    struct addrinfo *ai;
    int r = getaddrinfo(node->host, NULL, &hints, &ai);
    memset(out, 0, 16);
    if (r)
        return cfg_error_set(err, EINVAL, "host \"%s\" of node \"%s\": %s; give a name or an address that it has",
                             node->host, node->name, gai_strerror(r));
    const struct addrinfo *at = tp_name_address(ai);
    if (at->ai_family == AF_INET) {
        const struct in_addr a = ((const struct sockaddr_in *)(const void *)at->ai_addr)->sin_addr;
        out[10] = out[11] = 0xff;
        memcpy(out + 12, &a, 4);
    } else {
        memcpy(out, &((const struct sockaddr_in6 *)(const void *)at->ai_addr)->sin6_addr, 16);
    }
    freeaddrinfo(ai);
    return 0;
}

bool tp_address_is_loopback(const uint8_t address[16])
{
    static const uint8_t v4[13] = {[10] = 0xff, [11] = 0xff, [12] = 127}, v6[16] = {[15] = 1};
    return memcmp(address, v4, sizeof v4) == 0 || memcmp(address, v6, sizeof v6) == 0;
}

int tp_provider_of(const struct cfg_config *c, const struct cfg_node *node, struct tp_provider *out,
                   struct cfg_error *err)
{
    const struct tp_rdma_plugin *plugin;
    uint8_t address[16];
    *out = (struct tp_provider){.ops = &tp_tcp};
    if (c->transport.provider == CFG_PROVIDER_TCP)
        return 0;
    int rc = tp_rdma_load(&plugin, err);
    if (rc == 0)
        rc = tp_node_address(node, address, err);
    if (rc)
        return rc;
    tp_rdma_address_text(address, out->address);
    snprintf(out->devices, sizeof out->devices, "%s", c->transport.rdma.devices);
    out->rdma = (struct tp_rdma_config){.devices = out->devices,
                                        .address = out->address,
                                        .traffic_class = {[TP_CLASS_CONTROL] = c->transport.rdma.class_control,
                                                          [TP_CLASS_KV] = c->transport.rdma.class_kv,
                                                          [TP_CLASS_EXPERT] = c->transport.rdma.class_expert},
                                        .register_max = (uint64_t)c->transport.rdma.register_max,
                                        .stripe_min = (uint64_t)c->transport.rdma.stripe_min};
    out->ops = plugin->ops;
    out->config = &out->rdma;
    return 0;
}
