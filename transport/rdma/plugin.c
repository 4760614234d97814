/* What weft-rdma.so exports. */
#include "transport/rdma/rdma.h"

__attribute__((visibility("default"))) extern const struct tp_rdma_plugin tp_rdma_plugin;
const struct tp_rdma_plugin tp_rdma_plugin = {
    .abi = TP_RDMA_ABI,
    .inspect = tp_rdma_inspect,
    .ops = &tp_rdma_ops,
};
