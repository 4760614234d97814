/* Implementation of buffer.h. Owns the quarantine of freed heads and the process-wide counts. */
#include "actors/runtime/buffer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_LIVE = 0x4c495645, STATE_SHARED = 0x53485244, STATE_DEAD = 0x44454144 };
enum { QUARANTINE_MAX = 4096 };

static atomic_long live, faults;
static struct {
    pthread_mutex_t lock;
    struct act_buf *head[QUARANTINE_MAX]; /* a ring of the last `size` freed heads */
    int size, at;
    atomic_int on; /* size != 0; lets a free without quarantine go past the lock */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct act_buf *make_head(void)
{
    struct act_buf *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    atomic_init(&b->refs, 1);
    atomic_init(&b->state, STATE_LIVE);
    /* Only a count for tests and metrics; no partner. */
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return b;
}

static void free_own_data(void *ctx, void *data, size_t capacity)
{
    (void)ctx;
    (void)capacity;
    free(data);
}

struct act_buf *act_buf_new(size_t size)
{
    size_t capacity = (size + ACT_BUF_ALIGN - 1) / ACT_BUF_ALIGN * ACT_BUF_ALIGN;
    if (capacity < size)
        return NULL;
    void *data = aligned_alloc(ACT_BUF_ALIGN, capacity ? capacity : ACT_BUF_ALIGN);
    struct act_buf *b = data ? act_buf_wrap(data, size, free_own_data, NULL) : NULL;
    if (!b) {
        free(data);
        return NULL;
    }
    b->capacity = capacity ? capacity : ACT_BUF_ALIGN;
    return b;
}

struct act_buf *act_buf_copy(const void *data, size_t size)
{
    struct act_buf *b = act_buf_new(size);
    if (b && size)
        memcpy(b->data, data, size);
    return b;
}

struct act_buf *act_buf_wrap(void *data, size_t size, act_buf_release_fn *release, void *ctx)
{
    struct act_buf *b = make_head();
    if (!b)
        return NULL;
    b->data = data;
    b->size = b->capacity = size;
    b->release = release;
    b->ctx = ctx;
    return b;
}

struct act_buf *act_buf_share(struct act_buf *buf)
{
    /* Relaxed: the caller owns buf, so nobody else can free it meanwhile; the message that carries the new owner's
     * pointer orders the bytes. */
    atomic_store_explicit(&buf->state, STATE_SHARED, memory_order_relaxed);
    atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
    return buf;
}

bool act_buf_is_shared(const struct act_buf *buf)
{
    /* Relaxed: see act_buf_share. */
    return atomic_load_explicit(&buf->state, memory_order_relaxed) == STATE_SHARED;
}

/* The head goes into quarantine, and the one that it pushes out is freed. */
static void free_head(struct act_buf *b)
{
    /* Relaxed: a hint; the size is read again under the lock. Pairs with the store in act_buf_quarantine. */
    if (!atomic_load_explicit(&kept.on, memory_order_relaxed)) {
        free(b);
        return;
    }
    pthread_mutex_lock(&kept.lock);
    struct act_buf *out = b;
    if (kept.size) {
        out = kept.head[kept.at];
        kept.head[kept.at] = b;
        kept.at = (kept.at + 1) % kept.size;
    }
    pthread_mutex_unlock(&kept.lock);
    free(out);
}

int act_buf_free(struct act_buf *buf)
{
    if (!buf)
        return 0;
    /* Relaxed: DEAD is seen by a second free of the same owner, which is ordered after the first by whatever gave that
     * caller the pointer; a free that races with it is found by ThreadSanitizer and by the count below. */
    if (atomic_load_explicit(&buf->state, memory_order_relaxed) == STATE_DEAD) {
        atomic_fetch_add_explicit(&faults, 1, memory_order_relaxed);
        return -EALREADY;
    }
    /* Release: this owner's reads of the bytes come before the free. Acquire: the last owner frees after all of them.
     * Partner: the same operation of the other owners. */
    if (atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel) != 1)
        return 0;
    if (buf->release)
        buf->release(buf->ctx, buf->data, buf->capacity);
    buf->data = NULL;
    buf->size = buf->capacity = 0;
    /* Relaxed: see the load above. */
    atomic_store_explicit(&buf->state, STATE_DEAD, memory_order_relaxed);
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    free_head(buf);
    return 0;
}

long act_buf_live(void)
{
    /* Relaxed: a count. */
    return atomic_load_explicit(&live, memory_order_relaxed);
}

long act_buf_faults(void)
{
    /* Relaxed: a count. */
    return atomic_load_explicit(&faults, memory_order_relaxed);
}

int act_buf_quarantine(int n)
{
    n = n < 0 ? 0 : n > QUARANTINE_MAX ? QUARANTINE_MAX : n;
    pthread_mutex_lock(&kept.lock);
    int old = kept.size;
    for (int i = 0; i < old; i++)
        free(kept.head[i]);
    memset(kept.head, 0, sizeof kept.head);
    kept.size = n;
    kept.at = 0;
    /* Relaxed: see free_head. */
    atomic_store_explicit(&kept.on, n != 0, memory_order_relaxed);
    pthread_mutex_unlock(&kept.lock);
    return old;
}
