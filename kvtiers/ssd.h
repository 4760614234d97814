/* The ssd tier: blocks in preallocated files of one folder, with an index that survives any crash.
 *
 * The room is divided into slabs of some tens of blocks. A slab is filled from its beginning, and emptied as a whole
 * when room is wanted. Each slab has two index pages that are written in turn (docs/FORMATS.md has the bytes). What a
 * lookup can see was made so in this order: extents written, data files flushed, index page written, index flushed.
 * Before a slab is filled again, an empty page with a new generation is durable. Extents prove themselves by a checksum
 * seeded with key, source and generation, so an index that is older than the data can only miss.
 *
 * A failed write or flush ends everything since the last good flush (nobody was told that it was kept), and the tier
 * takes no blocks for a while; reads go on. So it is while the file system has less room than the reserve, where files
 * cannot be made in full length and grow as they are written. The order of tier.h holds. After a restart the index is
 * read while the tier already serves. One thread; a folder has one owner at a time (a lock). */
#ifndef WEFT_KVTIERS_SSD_H
#define WEFT_KVTIERS_SSD_H

#include "kvtiers/storage.h"
#include "kvtiers/tier.h"

struct kv_ssd_params {
    struct kv_storage *storage; /* of the folder; borrowed, outlives the tier */
    const char *folder;         /* for messages */
    struct kv_layout layout;
    int64_t bytes;               /* room for blocks; rounded down */
    int64_t reserve;             /* bytes of the file system that stay free for others */
    size_t file_bytes;           /* of a data file, about; 0: 1 GiB */
    int64_t ttl_s;               /* 0: none */
    int64_t write_bytes_per_day; /* wear limit; 0: none */
    /* A tool opens: the tier is as large as its files are, no room is taken or given back, an index that is not used
     * stays (-EBADMSG), and nothing is made where there is none (-ENOENT). */
    bool keep_room;
    bool direct; /* O_DIRECT; off only for file systems that cannot */
    struct kv_clock clock;
    /* One line for people, when the tier is opened or changes its state; may be NULL. */
    void (*log)(void *ctx, bool warning, const char *text);
    void *log_ctx;
};

/* Opens or makes the files; waits for the disk. An index that cannot be read at the moment is an error, one that is
 * damaged or of another layout is replaced. What files are longer than the tier shall be, and files too many, goes
 * back to the file system, with the blocks there. -EWOULDBLOCK: another process owns the folder. */
int kv_ssd_new(const struct kv_ssd_params *params, struct kv_tier **out, struct cfg_error *err);

#endif
