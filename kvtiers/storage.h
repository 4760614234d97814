/* The storage seam: everything that tiers ask of files goes through this table.
 *
 * A request is a struct kv_io that its issuer owns; submitting lends it (with its bytes and paths) to the storage until
 * done(io) is called, which happens inside poll or wait, on the thread that calls them, never inside submit. Requests
 * may complete in any order. A submit cannot fail: what is wrong comes back as a negative errno in result. A read or
 * write may move fewer bytes than asked for; kv_io_start repeats until all is moved.
 *
 * One instance belongs to one thread at a time. kv_storage_uring_new (storage_uring.c) is real: io_uring, and one
 * helper thread for the calls that io_uring does not have. kv_storage_sim_new (storage_sim.h) keeps files in memory and
 * can lose power, tear, reorder and fail at any point. */
#ifndef WEFT_KVTIERS_STORAGE_H
#define WEFT_KVTIERS_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/error.h"

enum kv_io_op {
    KV_IO_OPEN,   /* path, flags; result: file number */
    KV_IO_CLOSE,  /* file */
    KV_IO_READ,   /* file, bytes, len, offset; result: bytes moved, 0 at the end of the file */
    KV_IO_WRITE,  /* the same; result: bytes moved */
    KV_IO_SYNC,   /* file (or folder): all completed writes become durable; in a folder: its names */
    KV_IO_ALLOC,  /* file: makes [offset, offset + len) exist, so that later writes there find room */
    KV_IO_CUT,    /* file: ends at offset */
    KV_IO_SIZE,   /* file; result: bytes */
    KV_IO_RENAME, /* path to path2, replacing it */
    KV_IO_UNLINK, /* path */
    KV_IO_MKDIR,  /* path; -EEXIST */
    KV_IO_LIST,   /* path; result: number of names, names: "a\0b\0", malloced, the issuer frees it */
    KV_IO_SPACE,  /* result: bytes free for this user in the folder's file system */
    KV_IO_OPS,
};

enum kv_open_flags {
    KV_OPEN_WRITE = 1,  /* and read */
    KV_OPEN_CREATE = 2, /* when missing */
    KV_OPEN_EXCL = 4,   /* with CREATE: must be missing */
    KV_OPEN_DIRECT = 8, /* bytes go past the page cache; addresses, lengths, offsets are multiples of 4096 */
    KV_OPEN_FOLDER = 16,
    KV_OPEN_LOCK = 32, /* exclusively, until closed; -EWOULDBLOCK: another owner has it */
};

struct kv_io {
    enum kv_io_op op;
    int file;
    unsigned flags;
    const char *path, *path2; /* relative to the storage's folder */
    void *bytes;
    size_t len;
    uint64_t offset;
    void (*done)(struct kv_io *io);
    void *ctx; /* the issuer's */
    int64_t result;
    char *names;
    /* kv_io_start's */
    void (*whole_done)(struct kv_io *io);
    struct kv_storage *storage;
    size_t moved, asked;
    uint8_t *first;
    int retries;
    /* the storage's while it has the request; the issuer's otherwise */
    struct kv_io *next;
    uint64_t ticket;
};

struct kv_storage;

struct kv_storage_stats {
    uint64_t submitted, completed, failed, bytes_read, bytes_written, syncs;
    int in_flight;
    bool registered; /* memory given to register_memory is pinned once, not per request */
};

struct kv_storage_ops {
    const char *name;
    bool outlasts; /* a request that hangs may yet end, and move bytes, whoever waits for it */
    void (*submit)(struct kv_storage *s, struct kv_io *io);
    /* Calls done for what has completed; returns how many. */
    int (*poll)(struct kv_storage *s);
    /* As poll, but waits for one at most timeout_ms (needs something in flight). 0: nothing came. */
    int (*wait)(struct kv_storage *s, int timeout_ms);
    /* A descriptor that is readable when poll has work; -1: none, poll by turns. */
    int (*descriptor)(struct kv_storage *s);
    /* Memory that many requests will use; must stay until free. -errno: requests work all the same, each pinning its
     * pages anew. */
    int (*register_memory)(struct kv_storage *s, void *base, size_t len);
    void (*stat)(struct kv_storage *s, struct kv_storage_stats *out);
    /* Waits for what is in flight (done is called), then frees. */
    void (*free)(struct kv_storage *s);
};

struct kv_storage {
    const struct kv_storage_ops *ops;
    struct kv_io_run *left; /* of kv_io_run: requests for which nobody waits any more */
    bool hung;              /* kv_storage_leave: it is never polled again, nor freed */
};

/* Files below `folder`, which must exist. depth: requests at a time in the kernel, 1..4096; more wait inside. Errors
 * name what the kernel or the container lacks. */
int kv_storage_uring_new(const char *folder, int depth, struct kv_storage **out, struct cfg_error *err);

/* Submits io; a read or write is repeated until all bytes are moved, the file ends, or an error comes. result: bytes
 * moved (fewer than len only at the end of the file), or a negative errno. */
void kv_io_start(struct kv_storage *s, struct kv_io *io);
/* Runs one request to its end, calling done of others that complete meanwhile. For opening and tools, not for a
 * worker: what the request names is copied. -ETIMEDOUT when nothing completes for 60 s: the request stays with the
 * storage, and whenever it ends it touches nothing of the caller's (a file that it opens is closed again). Returns
 * io->result; io->done is not used. */
int64_t kv_io_run(struct kv_storage *s, struct kv_io *io);
/* For storages, before they are freed: requests that kv_io_run has left, and that can end no more. */
void kv_storage_forget(struct kv_storage *s);
/* Gives up waiting for what is in flight: done is never called for it. False: its memory, and that of all it moves, has
 * to stay until the process ends. */
bool kv_storage_leave(struct kv_storage *s);
/* NULL: nothing. */
void kv_storage_free(struct kv_storage *s);

#endif
