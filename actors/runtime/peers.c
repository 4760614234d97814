/* Implementation of peers.h. Owns the entries 1.. of act_runtime.peer; an entry never changes once it is counted,
 * except for its route. */
#include "actors/runtime/peers.h"

#include <errno.h>

#include "actors/runtime/internal.h"

int act_peer_number(struct act_runtime *rt, uint16_t node, uint64_t epoch, uint16_t *out)
{
    if (epoch == 0)
        return -EINVAL;
    int rc = 0, found = -1;
    pthread_mutex_lock(&rt->peer_lock);
    /* Relaxed: written under the lock only. */
    int n = atomic_load_explicit(&rt->peers, memory_order_relaxed);
    for (int i = 0; i < n; i++) {
        if (rt->peer[i].node != node)
            continue;
        if (rt->peer[i].epoch == epoch)
            found = i;
        else if (rt->peer[i].epoch > epoch)
            rc = -ESTALE;
    }
    if (rc == 0 && found < 0) {
        if (n == ACT_PEERS_MAX) {
            rc = -ENOSPC;
        } else {
            rt->peer[n].node = node;
            rt->peer[n].epoch = epoch;
            atomic_init(&rt->peer[n].route, 0);
            found = n;
            /* Release: the entry is complete. Partner: actor.c and act_peer_identity. */
            atomic_store_explicit(&rt->peers, n + 1, memory_order_release);
        }
    }
    pthread_mutex_unlock(&rt->peer_lock);
    if (rc == 0)
        *out = (uint16_t)found;
    return rc;
}

int act_peer_identity(const struct act_runtime *rt, uint16_t number, uint16_t *node, uint64_t *epoch)
{
    /* Acquire: partner is act_peer_number. */
    if (number >= atomic_load_explicit(&rt->peers, memory_order_acquire))
        return -ENOENT;
    *node = rt->peer[number].node;
    *epoch = rt->peer[number].epoch;
    return 0;
}

int act_peer_latest(const struct act_runtime *rt, uint16_t node, uint16_t *out)
{
    /* Acquire: partner is act_peer_number. */
    int n = atomic_load_explicit(&rt->peers, memory_order_acquire), best = -1;
    for (int i = 0; i < n; i++)
        if (rt->peer[i].node == node && (best < 0 || rt->peer[i].epoch > rt->peer[best].epoch))
            best = i;
    if (best < 0)
        return -ENOENT;
    *out = (uint16_t)best;
    return 0;
}

int act_peer_route(struct act_runtime *rt, uint16_t number, struct act_addr by)
{
    /* Acquire: partner is act_peer_number. */
    if (number == 0 || number >= atomic_load_explicit(&rt->peers, memory_order_acquire) || by.peer)
        return -ENOENT;
    /* Release: after the actor was made. Partner: route_of in actor.c. */
    atomic_store_explicit(&rt->peer[number].route, act_addr_number(by), memory_order_release);
    return 0;
}
