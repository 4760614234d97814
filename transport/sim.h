/* The provider sim: endpoints on a network that exists in one thread and in virtual time, with every fault drawn from
 * one seed. What it promises is what every provider promises (transport.h); within that it does what networks do:
 *
 *   delay       each frame and put takes its own time; on one channel they keep their order, between channels none
 *   loss        what is lost is sent again after a pause that doubles; after some losses in a row the channel ends on
 *               both sides, with -ETIMEDOUT where it was sent
 *   disconnect  a channel ends at any frame or put; what was under way is lost
 *   partial     a put lands in pieces, in any order; when the channel ends in between, some have landed and some have
 * not partition   between two endpoints nothing arrives, not even the news of an end, until it is mended; channels with
 *               something under way end after silence_ns
 *
 * The bytes of a put are taken when it is accepted and land while its channel lives at the receiving side, also when
 * the sender has died meanwhile. Whoever has the endpoints calls poll at the times that it returns, with
 * tp_host.now at least that; the same seed and the same calls give the same run.
 *
 * Thread: one for all endpoints of a network. */
#ifndef WEFT_TRANSPORT_SIM_H
#define WEFT_TRANSPORT_SIM_H

#include "transport/transport.h"

struct tp_sim_net;

/* What a direction between two endpoints does. Probabilities are per million frames, puts and acknowledgements. */
struct tp_sim_fault {
    int64_t delay_min, delay_max; /* ns on the way */
    uint32_t lose;
    int64_t retry_ns; /* the pause before the first retry; 0: 1 ms */
    int retries;      /* losses in a row that a channel survives; 0: 6 */
    uint32_t disconnect;
    uint32_t refuse; /* of connects: nobody answers */
    size_t piece;    /* bytes of a put that land at a time; 0: 4 KiB */
};

/* tp_endpoint_config.provider. */
struct tp_sim_end {
    struct tp_sim_net *net;
    char name[TP_ADDRESS_TEXT]; /* for tp_sim_net_link and tp_sim_net_cut */
};

/* What happened so far. */
struct tp_sim_stats {
    uint64_t items; /* frames, puts, acknowledgements and ends that were sent */
    uint64_t lost, given_up, disconnected, refused;
    uint64_t partial; /* puts that had landed in part when their channel ended */
};

/* Outlives its endpoints. NULL: no memory. */
struct tp_sim_net *tp_sim_net_new(uint64_t seed);
void tp_sim_net_free(struct tp_sim_net *net);
/* What every direction does from now on that tp_sim_net_link says nothing else of. At first: no delay, no faults. */
void tp_sim_net_fault(struct tp_sim_net *net, const struct tp_sim_fault *fault);
/* What the direction from one endpoint to another does from now on. -ENOMEM. */
int tp_sim_net_link(struct tp_sim_net *net, const char *from, const char *to, const struct tp_sim_fault *fault);
/* Parts two endpoints, in both directions, or mends it. -ENOMEM. */
int tp_sim_net_cut(struct tp_sim_net *net, const char *a, const char *b, bool cut);
void tp_sim_net_stat(const struct tp_sim_net *net, struct tp_sim_stats *out);

extern const struct tp_ops tp_sim;

#endif
