/* Incarnations of processes: the small numbers that stand for (node, boot epoch) in addresses. Number 0 is this
 * process.
 *
 * A node that comes back has a new epoch and so a new number; addresses with the old number are dead. Any thread; a
 * lookup takes a lock, so hot paths keep the number. */
#ifndef WEFT_ACTORS_RUNTIME_PEERS_H
#define WEFT_ACTORS_RUNTIME_PEERS_H

#include "actors/runtime/runtime.h"

/* The number of this incarnation, made if it is new. -ESTALE: a higher epoch of this node was seen before;
 * -ENOSPC: more nodes than numbers (ACT_PEERS_MAX); -EINVAL: epoch 0. */
int act_peer_number(struct act_runtime *rt, uint16_t node, uint64_t epoch, uint16_t *out);
/* The other way. -ENOENT: there is no such number. */
int act_peer_identity(struct act_runtime *rt, uint16_t number, uint16_t *node, uint64_t *epoch);
/* The newest incarnation of a node that is known; -ENOENT: none. */
int act_peer_latest(struct act_runtime *rt, uint16_t node, uint16_t *out);
/* Messages to actors of this peer go to `by`, an actor of this process (the transport), unchanged; nobody: they come
 * back undeliverable, as before the first call. Takes effect for messages sent afterwards. -ENOENT. */
int act_peer_route(struct act_runtime *rt, uint16_t number, struct act_addr by);

#endif
