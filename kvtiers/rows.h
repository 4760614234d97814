/* Tables of small rows in files that are never written: rows by number, through a cache in memory and the storage seam.
 * The model's Engram tables are read this way when they are not to be mapped.
 *
 * A row has one or two parts, each at a fixed distance from the one of the row before. Files are read in pages of 4
 * KiB; rows of one page, and the same row asked for by several, share a read while it is under way. Rows that somebody
 * waits for go before rows that are only to be in the cache, unless these have waited for KV_AGE_NS. One thread (that
 * of the storage); nothing here waits except kv_rows_new. */
#ifndef WEFT_KVTIERS_ROWS_H
#define WEFT_KVTIERS_ROWS_H

#include "kvtiers/storage.h"
#include "kvtiers/tier.h"

enum { KV_ROWS_TABLES = 8, KV_ROWS_PARTS = 2 };

struct kv_rows_part {
    const char *file; /* below the storage's folder */
    uint64_t offset;  /* of row 0 */
    uint32_t bytes;   /* of one row; at most 4096 */
};

struct kv_rows_table {
    struct kv_rows_part part[KV_ROWS_PARTS];
    int n_parts;
    uint64_t rows;
};

struct kv_rows_params {
    struct kv_storage *storage;                 /* borrowed, outlives the rows */
    const char *folder;                         /* for messages */
    struct kv_rows_table table[KV_ROWS_TABLES]; /* rows of all tables have the same size */
    int n_tables;
    int64_t cache_bytes; /* of rows in memory; at least one */
    bool direct;         /* past the page cache */
    struct kv_clock clock;
};

struct kv_rows_op {
    int table;
    const uint64_t *row; /* [n] */
    int n;
    uint8_t *out; /* [n][kv_rows_bytes]; NULL: into the cache only */
    void (*done)(struct kv_rows_op *op);
    void *ctx;
    int failed; /* out: rows that could not be read; out is undefined then */
    /* the rows' */
    struct kv_rows_op *next;
    struct kv_rows_wait *wait;
    uint8_t *left, *own;
    int at, pending;
    int64_t began;
};

struct kv_rows_stats {
    uint64_t rows, cached, shared; /* asked for; of these from the cache, and with a read that was under way */
    uint64_t ahead;                /* asked for into the cache only */
    uint64_t reads, read_bytes, errors, evicted;
    uint64_t slots, used; /* rows that the cache can hold, and holds */
    int queue;            /* reads under way */
};

struct kv_rows;

/* Opens the files; waits for the disk. -EINVAL: no direct I/O there; -ENOENT... name the file. */
int kv_rows_new(const struct kv_rows_params *params, struct kv_rows **out, struct cfg_error *err);
size_t kv_rows_bytes(const struct kv_rows *r);
/* Begins op; done may be called inside the call. Numbers beyond the table count as failed. */
void kv_rows_read(struct kv_rows *r, struct kv_rows_op *op);
void kv_rows_stat(const struct kv_rows *r, struct kv_rows_stats *out);
/* Waits for what is under way (done is called). What hangs is left, with all memory that it may yet fill. */
void kv_rows_free(struct kv_rows *r);

#endif
