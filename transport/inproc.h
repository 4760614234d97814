/* The provider inproc: endpoints of one process that meet at a hub. Frames are copied once, puts straight from memory
 * to memory by the receiving side. For tests, for several runtimes in one process, and as the plainest example of a
 * provider. Endpoints may be on different threads.
 *
 * Addresses are names that listeners chose ("node-a:0" is one; ports have no meaning here). */
#ifndef WEFT_TRANSPORT_INPROC_H
#define WEFT_TRANSPORT_INPROC_H

#include "transport/transport.h"

struct tp_inproc_hub;

/* Where endpoints find each other: tp_endpoint_config.provider. Outlives them. NULL: no memory. Any thread. */
struct tp_inproc_hub *tp_inproc_hub_new(void);
void tp_inproc_hub_free(struct tp_inproc_hub *hub);

#endif
