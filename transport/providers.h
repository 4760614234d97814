/* From the configuration of a node to the provider that it uses. Blocks while a name is looked up; for start and for
 * tools, not for a running loop. */
#ifndef WEFT_TRANSPORT_PROVIDERS_H
#define WEFT_TRANSPORT_PROVIDERS_H

#include "config/config.h"
#include "transport/rdma.h"
#include "transport/transport.h"

struct tp_provider {
    const struct tp_ops *ops;
    const void *config; /* tp_endpoint_config.provider; points into this struct, or NULL */
    struct tp_rdma_config rdma;
    char address[64]; /* of the node, in numbers */
    char devices[CFG_ADDRESS_TEXT];
};

/* Finds the table and fills its own part of an endpoint's configuration. out must not move while config is used.
 * Returns 0; -ENOTSUP: rdma is asked for and weft-rdma.so or what it needs is missing; -EINVAL: the host has no
 * address. */
int tp_provider_of(const struct cfg_config *c, const struct cfg_node *node, struct tp_provider *out,
                   struct cfg_error *err);

/* The address of a node's host, IPv4 mapped into IPv6. -EINVAL: the name has none. */
int tp_node_address(const struct cfg_node *node, uint8_t out[16], struct cfg_error *err);
bool tp_address_is_loopback(const uint8_t address[16]);

#endif
