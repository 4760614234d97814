/* Storage in memory for tests and the simulation: the same table as storage.h, with a disk that can lose its power.
 *
 * A disk (struct kv_disk) outlives the storages opened on it, as files outlive a process. Everything that a request
 * changes counts as a write point. At a chosen point the process stops: that request and all later ones never complete.
 * kv_disk_crash then decides, by its seed, sector by sector, what of the unflushed and unfinished writes reached the
 * disk, and which of the unflushed names exist; the next storage sees that. One thread. */
#ifndef WEFT_KVTIERS_STORAGE_SIM_H
#define WEFT_KVTIERS_STORAGE_SIM_H

#include "kvtiers/storage.h"

struct kv_disk;

enum kv_crash {
    KV_CRASH_KILL,  /* the process died: what completed is there, what had not is there in part */
    KV_CRASH_POWER, /* the power failed: only what was flushed is sure */
};

struct kv_disk *kv_disk_new(uint64_t seed); /* NULL: no memory */
void kv_disk_free(struct kv_disk *d);
/* A storage on the disk. Order of completion comes from the disk's seed; several at a time are several processes. */
struct kv_storage *kv_storage_sim_new(struct kv_disk *d);

/* The n-th write point from now stops every storage of the disk (0: the next one); negative: never. */
void kv_disk_stop_after(struct kv_disk *d, int64_t n);
bool kv_disk_stopped(const struct kv_disk *d);
/* Write points so far. */
int64_t kv_disk_points(const struct kv_disk *d);
/* Settles what the disk holds. The storages opened before are dead: only free them. */
void kv_disk_crash(struct kv_disk *d, enum kv_crash how);

/* The next `times` requests of this kind (of files whose name holds `name`, NULL: all), after `skip` of them, end with
 * `result`: a negative errno, or for reads and writes fewer bytes than asked for (then that many are moved). */
void kv_disk_fail(struct kv_disk *d, enum kv_io_op op, const char *name, int skip, int times, int64_t result);
/* Requests of this kind wait until it is called with hold = false. */
void kv_disk_hold(struct kv_disk *d, enum kv_io_op op, const char *name, bool hold);
/* Size of a file, -ENOENT. */
int64_t kv_disk_size(const struct kv_disk *d, const char *name);
/* The bytes of a file, to be looked at or damaged; valid until the file grows or goes. NULL: there is none. */
uint8_t *kv_disk_bytes(const struct kv_disk *d, const char *name);
int kv_disk_truncate(struct kv_disk *d, const char *name, size_t len);
/* Bytes that writes and ALLOC may still take; -1: any. */
void kv_disk_room(struct kv_disk *d, int64_t bytes);

#endif
