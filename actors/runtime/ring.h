/* Concurrency Kit's single-producer single-consumer ring of messages, so that ThreadSanitizer understands it. Only
 * lane.c and the benchmark of lanes include this.
 *
 * ck orders its accesses with inline assembly, which ThreadSanitizer does not see. Its fences stand exactly where the
 * two sides hand a slot over, so in a sanitizer build they also tell it: the producer releases p_tail after it has
 * written a slot and the consumer acquires it before it reads one; the consumer releases c_head after it has read a
 * slot and the producer acquires it before it writes there again. Nothing is suppressed: an access to a slot outside of
 * that order is still reported. */
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

#include <ck_pr.h>
#ifdef ACT_TSAN
#include <sanitizer/tsan_interface.h>
/* `ring` is the parameter of every ck function that these two stand in. The enqueue path has the store fence between
 * slot and p_tail; the dequeue path has the load fence between p_tail and slot, the store fence between slot and
 * c_head. */
#define ck_pr_fence_load() (__tsan_acquire(&((struct ck_ring *)(uintptr_t)ring)->p_tail), (ck_pr_fence_load)())
#define ck_pr_fence_store()                                                                                            \
    (__tsan_release(&((struct ck_ring *)(uintptr_t)ring)->p_tail),                                                     \
     __tsan_release(&((struct ck_ring *)(uintptr_t)ring)->c_head), (ck_pr_fence_store)())
#endif
#include <ck_ring.h>
#ifdef ACT_TSAN
#undef ck_pr_fence_load
#undef ck_pr_fence_store
#endif

CK_RING_PROTOTYPE(act_msg, act_msg)

/* Producer only. False: full. */
static inline bool act_ring_put(ck_ring_t *ring, struct act_msg *slots, const struct act_msg *m)
{
    struct act_msg *slot = ck_ring_enqueue_reserve_spsc_act_msg(ring, slots);
    if (!slot)
        return false;
#ifdef ACT_TSAN
    __tsan_acquire(&ring->c_head);
#endif
    *slot = *m;
    ck_ring_enqueue_commit_spsc(ring);
    return true;
}

/* Consumer only. False: empty. */
static inline bool act_ring_take(ck_ring_t *ring, struct act_msg *slots, struct act_msg *out)
{
    return ck_ring_dequeue_spsc_act_msg(ring, slots, out);
}

/* Consumer only: whether there is something to take. A hint: says nothing about the contents of slots. */
static inline bool act_ring_any(ck_ring_t *ring)
{
    return ck_pr_load_uint(&ring->p_tail) != ck_pr_load_uint(&ring->c_head);
}

#endif
