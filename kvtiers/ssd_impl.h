/* Inside of the ssd tier, shared by ssd.c (verbs, reads, writes, commits), ssd_index.c (pages, opening, rebuild) and
 * ssd_age.c (blocks too old, the oldest one). */
#ifndef WEFT_KVTIERS_SSD_IMPL_H
#define WEFT_KVTIERS_SSD_IMPL_H

#include "kvtiers/ssd.h"

enum {
    SSD_NONE = -1,
    SSD_RUN_MAX = 16,    /* blocks stored layer-major together */
    SSD_BATCH_MAX = 48,  /* blocks, and slabs, of one commit */
    SSD_SLAB_MAX = 48,   /* blocks of a slab */
    SSD_FILES_MAX = 256, /* data files */
    SSD_EXTENTS = 192,   /* requests for extents at a time */
    SSD_WRITES = 64,     /* of these, writes: what keeps a device busy, */
    SSD_FEW_WRITES = 24, /* and what does while it reads, too */
    SSD_KEPT = 16,       /* of these, free for what somebody waits for */
    SSD_OLD_WRITES = 4,  /* beside reads, when a store has waited for long */
    SSD_NAME = 32,
    SSD_AGE_SLABS = 4096, /* that one call for figures looks at */
    SSD_SWEEP = 512,      /* places that one tick looks at for blocks that are too old */
};

enum ssd_entry_state {
    ENTRY_EMPTY,
    ENTRY_WRITING,    /* bytes on their way; batch filling */
    ENTRY_COMMITTING, /* bytes there, index on its way */
    ENTRY_VISIBLE,
    ENTRY_DEAD, /* place used up */
};

/* One place for a block: number slab * slab_blocks + place. */
struct ssd_entry {
    uint8_t state;
    uint16_t run_first, run_len, run_at; /* place of its run, blocks of the run, number in it */
    struct kv_key key;
    struct kv_block_info info;
    int64_t stored_s;
    int chain;
};

enum ssd_slab_state {
    SLAB_UNKNOWN, /* its pages were not read yet */
    SLAB_FREE,
    SLAB_OPEN, /* being filled */
    SLAB_FULL,
    SLAB_RETIRING, /* invisible; its empty page is not durable yet */
};

struct ssd_slab {
    uint8_t state;
    uint8_t copy;      /* index page (0 or 1) that is durable; the other one is written next */
    bool dirty;        /* its page must be written, */
    uint64_t dirty_at; /* since this commit */
    bool writing;      /* its page is in the running commit */
    uint16_t used;     /* places taken */
    uint16_t busy;     /* entries on their way */
    uint16_t visible;
    int64_t first_s; /* second at which its first block was stored */
    int pins;        /* extents being read */
    uint64_t generation, sequence;
    double worth;
    uint32_t uses;
};

struct ssd_batch {
    struct kv_tier_op *ops;
    int entry[SSD_BATCH_MAX];
    int n;
    int writes; /* extents not written yet */
    int status; /* first error */
    bool file[SSD_FILES_MAX];
};

enum ssd_phase { PHASE_IDLE, PHASE_DATA_SYNC, PHASE_INDEX_WRITE, PHASE_INDEX_SYNC };

/* One extent on its way. */
struct ssd_extent {
    struct kv_io io;
    struct ssd *t;
    struct kv_tier_op *op; /* read */
    int block, source, entry;
    struct ssd_extent *next_free;
};

/* A read or store op that is being taken apart. */
struct ssd_work {
    struct ssd_work *next;
    struct kv_tier_op *op;
    int source, block; /* next extent */
    int first, n;      /* store: blocks of the run */
    int entry[];       /* by block of the op (read), of the run (store) */
};

/* Where files grow as they are written, what they may still grow by. */
struct ssd_room {
    bool grows, full, asking;
    int64_t left; /* bytes, as of the last look, less what was placed since */
    int64_t look_at;
    struct kv_io io;
};

struct ssd {
    struct kv_tier base;
    struct kv_ssd_params p;
    int index_file, lock_file;
    int data_file[SSD_FILES_MAX];
    int n_files;
    int n_slabs, slab_blocks, file_slabs;
    size_t slab_bytes;
    uint64_t layout_id, epoch, next_generation;
    struct ssd_slab *slab;
    struct ssd_entry *entry; /* [n_slabs * slab_blocks] */
    uint64_t *sum;           /* [n_slabs * slab_blocks][n_sources] */
    int *bucket, n_buckets;
    int open_slab;
    int n_free, n_retiring, n_dirty; /* there may be very many slabs: what every request asks is counted */
    double floor;
    /* work */
    struct ssd_extent *extent, *free_extent;
    int reads_running, writes_running;
    struct ssd_work *reads, **reads_end, *writes, **writes_end;
    struct kv_tier_op *stores, **stores_end; /* waiting for room or for a batch */
    int store_block;                         /* next block of the first of them */
    struct ssd_batch batch[2];
    int filling;      /* the other one commits */
    uint64_t commits; /* begun so far */
    enum ssd_phase phase;
    int phase_left, phase_status;
    struct kv_io sync_io[SSD_FILES_MAX], page_io[SSD_BATCH_MAX];
    int page_slab[SSD_BATCH_MAX], n_pages;
    uint8_t *page; /* [SSD_BATCH_MAX][KV_PAGE] */
    /* rebuild */
    int rebuild_at; /* next slab; n_slabs: done */
    bool rebuild_running;
    struct kv_io rebuild_io;
    uint8_t *rebuild_page;
    /* state */
    struct ssd_room room;
    bool read_only, pumping, pump_again;
    int64_t retry_at, backoff, opened_at;
    int in_flight;              /* requests of any kind */
    int age_at;                 /* next slab that the search for the oldest block looks at */
    int sweep_at;               /* next place that is looked at for a block too old */
    int64_t age_best, oldest_s; /* second of the oldest block so far, and of the last whole search; 0: none */
    struct kv_tier_stats stats;
};

/* ---- ssd_index.c ---- */

int ssd_open_files(struct ssd *t, struct cfg_error *err);
/* Entries that fit a page. */
int ssd_page_entries(const struct kv_layout *l);
/* The page of a slab as it is now: visible and committing entries. */
void ssd_page_make(const struct ssd *t, int slab, uint8_t *page);
uint64_t ssd_page_offset(int slab, int copy);
/* Reads the next part of the index, unless one is being read or all were. */
void ssd_rebuild(struct ssd *t);

/* ---- ssd_room.c ---- */

/* Looks how much room the file system has, now and then, if that matters. */
void ssd_room_look(struct ssd *t);
/* How many blocks may be placed. */
int ssd_room_blocks(struct ssd *t);
void ssd_room_taken(struct ssd *t, int blocks);

/* ---- ssd.c ---- */

int ssd_find(const struct ssd *t, const struct kv_key *key);
void ssd_table_add(struct ssd *t, int entry);
void ssd_pump(struct ssd *t);
/* Buries the block at this place if there is one and it is too old. */
bool ssd_expire(struct ssd *t, int entry);
void ssd_say(const struct ssd *t, bool warning, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The data file of a slab. The last one takes what a tier has grown beyond all files. */
static inline int ssd_file_of(const struct ssd *t, int slab)
{
    int file = slab / t->file_slabs;
    return file < SSD_FILES_MAX ? file : SSD_FILES_MAX - 1;
}

/* The slab's page must be written. */
static inline void ssd_mark(struct ssd *t, int slab)
{
    struct ssd_slab *s = &t->slab[slab];
    if (s->dirty)
        return;
    s->dirty = true;
    s->dirty_at = t->commits;
    t->n_dirty++;
}

/* ---- ssd_age.c ---- */

/* Blocks too old go though nobody asks for them: looks at some places, round and round. */
void ssd_sweep(struct ssd *t);
/* Age in seconds of the oldest block, about; 0: none. Looks at a part of a large tier per call. */
int64_t ssd_oldest(struct ssd *t);

#endif
