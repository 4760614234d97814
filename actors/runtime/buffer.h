/* Owned buffers: the bytes that a message carries beside its inline payload.
 *
 * A buffer has exactly one owner; sending the message moves it. Only a buffer that was declared shared has a count, and
 * then nobody may write to it any more. Any thread may create and free buffers. Buffers that change or are counted on
 * one worker only (pages of a tier) are lent as messages instead. */
#ifndef WEFT_ACTORS_RUNTIME_BUFFER_H
#define WEFT_ACTORS_RUNTIME_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ACT_BUF_ALIGN = 64 };

/* What act_buf_wrap calls when the last owner is gone; on the thread that freed the buffer. */
typedef void act_buf_release_fn(void *ctx, void *data, size_t capacity);

struct act_buf {
    uint8_t *data; /* aligned to ACT_BUF_ALIGN unless wrapped */
    size_t size;   /* bytes in use; the owner changes it, up to capacity */
    size_t capacity;
    _Atomic uint32_t refs;  /* private to buffer.c */
    _Atomic uint32_t state; /* private to buffer.c */
    act_buf_release_fn *release;
    void *ctx;
    struct act_buf *next; /* for the owner's lists; undefined after the buffer has moved */
};

/* A buffer of size bytes (0 is allowed), owned by the caller, contents undefined. NULL: no memory. */
struct act_buf *act_buf_new(size_t size);
/* The same with a copy of size bytes. */
struct act_buf *act_buf_copy(const void *data, size_t size);
/* A buffer over memory of somebody else; release (may be NULL) is called once, when it is freed. NULL: no memory, and
 * release is not called. */
struct act_buf *act_buf_wrap(void *data, size_t size, act_buf_release_fn *release, void *ctx);
/* Declares buf read-only, if it is not yet, and returns it once more: one act_buf_free per owner. The caller must own
 * buf. The bytes must have been written before; nobody writes afterwards. */
struct act_buf *act_buf_share(struct act_buf *buf);
bool act_buf_is_shared(const struct act_buf *buf);
/* Gives up one ownership. NULL is allowed. A second free of the same buffer is a defect of the caller: it is counted
 * (act_buf_faults), changes nothing, and returns -EALREADY; it is caught as long as the buffer is in quarantine, and
 * always under AddressSanitizer. Otherwise 0. */
int act_buf_free(struct act_buf *buf);

/* Live buffers of the process: created and not yet freed. */
long act_buf_live(void);
/* Double frees that were caught since the process started. */
long act_buf_faults(void);
/* Keeps the heads (not the data) of the last n freed buffers, 0..4096, so that a double free is caught; 0, the default,
 * frees at once. Lowering n frees what is kept. Returns the old value. */
int act_buf_quarantine(int n);

#endif
