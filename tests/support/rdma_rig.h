/* The provider rdma for suites that run in the guest of tests/rdma/guest.sh: its table, its devices, what they count.
 */
#ifndef WEFT_TESTS_SUPPORT_RDMA_RIG_H
#define WEFT_TESTS_SUPPORT_RDMA_RIG_H

#include "tests/support/transport_rig.h"
#include "transport/rdma.h"

/* Skips the test outside the guest. */
void rr_need_guest(void);
/* The provider's table; ends the test when the library cannot be loaded. */
const struct tp_ops *rr_ops(void);
/* Of the two sides; set anew by each set_up below and open to changes before tr_open. */
extern struct tp_rdma_config rr_config[2];
/* For struct tr_kind: both sides on rxe0, looped back; */
void rr_set_up_loop(struct tr_rig *r);
/* rxe1 and rxe2, with a wire between them; */
void rr_set_up_wire(struct tr_rig *r);
/* two devices on each side, with a wire between each pair: rxe1, rxe3 and rxe2, rxe4. */
void rr_set_up_rails(struct tr_rig *r);

/* A counter of a device's port, such as "sent_pkts"; -1: there is none. */
long rr_counter(const char *device, const char *name);
/* How many of "qp", "mr", "srq", "cq", "cm_id", "ctx" the kernel holds for a device. */
long rr_resources(const char *device, const char *what);
/* Places in all completion queues of this process on a device. */
long rr_completions(const char *device);
/* Runs a command with sh -c; ends the test when it fails. */
void rr_shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
