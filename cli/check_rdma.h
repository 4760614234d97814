/* The part of `weft check` about RDMA: devices, ports, GIDs, the choice that would be made, limits. */
#ifndef WEFT_CLI_CHECK_RDMA_H
#define WEFT_CLI_CHECK_RDMA_H

#include "config/config.h"
#include "transport/rdma.h"

/* Looks at this machine for a node of the configuration and calls say for every finding. slot_bytes: of its windows for
 * the exchange with experts, 0 if the model is not known. known: another node of this machine was looked at, so what
 * the machine has, or lacks, was said. Opens and closes devices, changes nothing. */
void cli_check_rdma(const struct cfg_config *c, const struct cfg_node *node, int64_t slot_bytes, bool known,
                    void (*say)(void *ctx, enum tp_rdma_finding how, const char *text), void *ctx);

#endif
