/* Concurrency Kit's single-producer single-consumer ring, holding messages. Only lane.c, worker.c and sim.c include
 * this.
 *
 * The ring is ck's and so are the accesses to its two counts; three things are different from ck_ring_enqueue_spsc and
 * ck_ring_dequeue_spsc, since on two CPUs the cost is the cache lines that travel. The producer shows several messages
 * at once. It remembers the consumer's count and reads it again only when the ring seems full. The consumer takes what
 * is there in one go, and writes its count once.
 *
 * ck orders its accesses with inline assembly, which ThreadSanitizer does not see; so it is told: the producer releases
 * p_tail after it has written a slot and the consumer acquires it before it reads; the consumer releases c_head after
 * it has read and the producer acquires it before it writes a slot again. Nothing is suppressed: an access to a slot
 * outside of that order is reported. */
#ifndef WEFT_ACTORS_RUNTIME_RING_H
#define WEFT_ACTORS_RUNTIME_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "actors/runtime/message.h"

#if defined(__SANITIZE_THREAD__)
#define ACT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ACT_TSAN 1
#endif
#endif

#include <ck_ring.h>
#ifdef ACT_TSAN
#include <sanitizer/tsan_interface.h>
#define ACT_RING_ACQUIRE(count) __tsan_acquire(count)
#define ACT_RING_RELEASE(count) __tsan_release(count)
#else
#define ACT_RING_ACQUIRE(count) ((void)0)
#define ACT_RING_RELEASE(count) ((void)0)
#endif

/* What the producer keeps beside the ring: where it writes next, and what it remembers of the consumer's count. */
struct act_ring_producer {
    unsigned tail, head;
};

/* Producer only. Writes m behind the others; the consumer sees it after act_ring_show. False: full. */
static inline bool act_ring_put(ck_ring_t *ring, struct act_msg *slots, const struct act_msg *m,
                                struct act_ring_producer *p)
{
    if (p->tail - p->head >= ring->mask) {
        p->head = ck_pr_load_uint(&ring->c_head);
        ACT_RING_ACQUIRE(&ring->c_head);
        if (p->tail - p->head >= ring->mask)
            return false;
    }
    slots[p->tail++ & ring->mask] = *m;
    return true;
}

/* Producer only: the consumer may see what was put. */
static inline void act_ring_show(ck_ring_t *ring, const struct act_ring_producer *p)
{
    ACT_RING_RELEASE(&ring->p_tail);
    ck_pr_fence_store();
    ck_pr_store_uint(&ring->p_tail, p->tail);
}

/* Consumer only: how many there are to take; the first is slots[*head & mask], and so on. */
static inline unsigned act_ring_look(ck_ring_t *ring, unsigned *head)
{
    *head = ring->c_head;
    unsigned count = ck_pr_load_uint(&ring->p_tail) - *head;
    ck_pr_fence_load();
    ACT_RING_ACQUIRE(&ring->p_tail);
    return count;
}

/* Consumer only: gives the slots before head back; they were read. */
static inline void act_ring_taken(ck_ring_t *ring, unsigned head)
{
    ACT_RING_RELEASE(&ring->c_head);
    ck_pr_fence_store();
    ck_pr_store_uint(&ring->c_head, head);
}

/* Consumer only: whether there is something to take. Says nothing about the contents of slots. */
static inline bool act_ring_any(ck_ring_t *ring)
{
    return ck_pr_load_uint(&ring->p_tail) != ck_pr_load_uint(&ring->c_head);
}

#endif
