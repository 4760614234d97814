/* What the files of weft-rdma.so share. */
#ifndef WEFT_TRANSPORT_RDMA_RDMA_H
#define WEFT_TRANSPORT_RDMA_RDMA_H

#include "transport/rdma.h"

int tp_rdma_inspect(struct tp_rdma_facts *out, struct cfg_error *err);

#endif
