/* Implementation of peers.h. Owns the entries 1.. of act_runtime.peer. When all are in use, the entry of an incarnation
 * that is long over is used again: the one that was made first among those of a node that has a newer one and to which
 * nothing leads. So an address that somebody has kept goes astray after some 4,000 incarnations, not before. */
#include "actors/runtime/peers.h"

#include <errno.h>

#include "actors/runtime/internal.h"

/* Under the lock. */
static bool is_over(const struct act_runtime *rt, int n, int i)
{
    /* Relaxed: it leads to the newest incarnation only, which is not over, or to nobody. */
    if (atomic_load_explicit(&rt->peer[i].route, memory_order_relaxed))
        return false;
    for (int k = 1; k < n; k++)
        if (rt->peer[k].node == rt->peer[i].node && rt->peer[k].epoch > rt->peer[i].epoch)
            return true;
    return false;
}

/* Under the lock: an entry for a new incarnation; -1: all are of nodes that may live. */
static int take_entry(struct act_runtime *rt, int n)
{
    int best = -1;
    if (n < ACT_PEERS_MAX)
        return n;
    for (int i = 1; i < n; i++)
        if ((best < 0 || rt->peer[i].order < rt->peer[best].order) && is_over(rt, n, i))
            best = i;
    return best;
}

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
        found = take_entry(rt, n);
        if (found < 0) {
            rc = -ENOSPC;
        } else {
            rt->peer[found].node = node;
            rt->peer[found].epoch = epoch;
            rt->peer[found].order = ++rt->peer_order;
        }
        if (found == n) {
            atomic_init(&rt->peer[n].route, 0);
            /* Release: the entry is complete. Partner: actor.c and act_peer_route. */
            atomic_store_explicit(&rt->peers, n + 1, memory_order_release);
        }
    }
    pthread_mutex_unlock(&rt->peer_lock);
    if (rc == 0)
        *out = (uint16_t)found;
    return rc;
}

int act_peer_identity(struct act_runtime *rt, uint16_t number, uint16_t *node, uint64_t *epoch)
{
    pthread_mutex_lock(&rt->peer_lock);
    /* Relaxed: written under the lock only. */
    bool there = number < atomic_load_explicit(&rt->peers, memory_order_relaxed);
    *node = there ? rt->peer[number].node : 0;
    *epoch = there ? rt->peer[number].epoch : 0;
    pthread_mutex_unlock(&rt->peer_lock);
    return there ? 0 : -ENOENT;
}

int act_peer_latest(struct act_runtime *rt, uint16_t node, uint16_t *out)
{
    int best = -1;
    pthread_mutex_lock(&rt->peer_lock);
    /* Relaxed: written under the lock only. */
    int n = atomic_load_explicit(&rt->peers, memory_order_relaxed);
    for (int i = 0; i < n; i++)
        if (rt->peer[i].node == node && (best < 0 || rt->peer[i].epoch > rt->peer[best].epoch))
            best = i;
    pthread_mutex_unlock(&rt->peer_lock);
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
