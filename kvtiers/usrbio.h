/* Storage through USRBIO, the user-space ring of the 3FS file system: reads and writes go through shared memory to the
 * file system's own process; everything else goes the usual way (io_uring on the mounted folder).
 *
 * The library is loaded at run time; programs start where it is absent. Requests pass through a piece of memory that
 * the file system has registered, so their bytes are copied once. The interface, as far as it is used, is declared in
 * usrbio_api.h. It has no descriptor to wait on: poll by turns. */
#ifndef WEFT_KVTIERS_USRBIO_H
#define WEFT_KVTIERS_USRBIO_H

#include "kvtiers/storage.h"
#include "kvtiers/tier.h"

struct kv_usrbio_params {
    const char *folder;  /* in a mounted 3FS */
    const char *library; /* what dlopen takes; "": libhf3fs_api_shared.so */
    int depth;           /* requests in each of the two rings */
    struct kv_clock clock;
    int64_t timeout_ns; /* of a read or write in a ring; 0: 30 s */
    /* One line for people when a ring fails and when it is open again; may be NULL. */
    void (*log)(void *ctx, bool warning, const char *text);
    void *log_ctx;
};

/* A read or write that a ring has not ended in time ends with -ETIMEDOUT, and so does everything else in that ring,
 * which is given up with its memory and opened again by a thread, with growing pauses; until then requests for it end
 * with -ENOTCONN. Errors name what is missing. */
int kv_storage_usrbio_new(const struct kv_usrbio_params *params, struct kv_storage **out, struct cfg_error *err);

#endif
