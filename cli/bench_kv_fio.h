/* fio beside the ssd tier, for `weft bench kv`. Main thread. */
#ifndef WEFT_CLI_BENCH_KV_FIO_H
#define WEFT_CLI_BENCH_KV_FIO_H

#include <stdbool.h>

#include "kvtiers/storage.h"

/* A storage that hands everything on to another one, and can write down the reads that pass through it as a log that
 * fio replays. The inner one is borrowed. NULL: no memory. */
struct kv_storage *bench_kv_recorder_new(struct kv_storage *inner);
/* Reads go to a new log at path from here on. -errno. */
int bench_kv_record(struct kv_storage *recorder, const char *path);
/* The log is complete, with its last line. -errno. */
int bench_kv_record_end(struct kv_storage *recorder);

bool bench_kv_fio_available(void);
/* Bytes per second that fio reads when it is given the requests of a log in their order, `depth` of them at a time,
 * from registered memory, past the page cache. 0: fio failed. */
double bench_kv_fio_replay(const char *log, int depth);

enum bench_kv_fio_job {
    BENCH_FIO_READ,      /* places drawn at random, 48 KiB and 92 KiB in the proportion of a block's extents */
    BENCH_FIO_WRITE,     /* the same sizes, in order, over what was written before */
    BENCH_FIO_WRITE_NEW, /* the same into a new file that has its room but was never written; once over it */
    BENCH_FIO_PAGES,     /* reads of 4 KiB at random places */
};
/* Bytes per second in the first `size` bytes of file, for some seconds, without flush. */
double bench_kv_fio(const char *file, enum bench_kv_fio_job job, long long size, int depth, double seconds);

#endif
