/* An ssd tier on a disk in memory, for suites about what it does there. Failures end the running test. */
#ifndef WEFT_TESTS_SUPPORT_SSD_RIG_H
#define WEFT_TESTS_SUPPORT_SSD_RIG_H

#include "kvtiers/ssd.h"
#include "kvtiers/storage_sim.h"

struct ts_ssd {
    struct kv_disk *disk;
    struct kv_storage *storage;
    struct kv_layout layout;
    struct kv_tier *tier;
    int blocks; /* of the tier */
    int64_t ttl, per_day, reserve;
    size_t file_bytes;
    int warnings;
};

/* A new disk, and the tier on it. */
void ts_ssd_new(struct ts_ssd *r, uint64_t seed, int blocks);
/* The tier on the disk that is there, as blocks and the other members say. try: 0 or a negative errno. */
int ts_ssd_try(struct ts_ssd *r, struct cfg_error *err);
void ts_ssd_open(struct ts_ssd *r);
/* Until nothing is under way. */
void ts_ssd_settle(struct ts_ssd *r);
void ts_ssd_close(struct ts_ssd *r);
void ts_ssd_crash(struct ts_ssd *r, enum kv_crash how);
void ts_ssd_free(struct ts_ssd *r);

struct kv_tier_stats ts_ssd_stat(struct ts_ssd *r);
/* Block n of kv_blocks.h. */
bool ts_ssd_store(struct ts_ssd *r, int n);
bool ts_ssd_has(struct ts_ssd *r, int n);
bool ts_ssd_read_back(struct ts_ssd *r, int n);

#endif
