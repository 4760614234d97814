/* Inside of the shared tier: shared.c (verbs, reading), shared_write.c (the open segment), shared_folder.c (listing,
 * loading, removing), shared_drop.c (drops that outlive the process). */
#ifndef WEFT_KVTIERS_SHARED_IMPL_H
#define WEFT_KVTIERS_SHARED_IMPL_H

#include "kvtiers/shared.h"

enum {
    SHARED_NAME = 128,
    SHARED_NODE = 48,
    SHARED_RUN_MAX = 16,
    SHARED_READS = 128,
    SHARED_WRITES = 64,    /* below so many another run begins, */
    SHARED_FEW_WRITES = 8, /* and below so many while reads are under way */
    SHARED_KEPT = 16,      /* of the reads, for what somebody waits for */
    SHARED_OLD_WRITES = 4, /* beside reads that have not begun, when a store has waited for long */
    SHARED_HEAD = 64,      /* bytes of a footer page before its entries */
    SHARED_ENTRY = 64,     /* of an entry before its checksums */
    SHARED_TRIES = 4,      /* to read what the file system says that it cannot read now */
};

struct shared_segment;

struct shared_entry {
    struct shared_entry *chain; /* next in the bucket */
    struct shared_segment *segment;
    bool listed; /* in its bucket */
    struct kv_key key;
    struct kv_block_info info;
    uint64_t offset; /* of its run */
    uint32_t run_len, run_at;
    int64_t stored_s;
    uint64_t sum[]; /* [n_sources] */
};

enum shared_state {
    SEGMENT_NEW,   /* seen in the folder */
    SEGMENT_READY, /* its index is in memory */
    SEGMENT_BAD,   /* no sense in it; not looked at again */
    SEGMENT_GONE,  /* not in the folder any more, or about to go; freed when nobody reads from it */
};

struct shared_segment {
    struct shared_segment *next;
    char name[SHARED_NAME];
    enum shared_state state;
    bool own, seen, removing;
    uint64_t id, size;
    int file, pins, errors;
    int tries;        /* to read its index that failed */
    int64_t try_at;   /* ns: not before */
    int n, listed;    /* entries, and how many of them can be found */
    uint8_t *entries; /* [n] of shared_entry_bytes */
    double worth;
    uint32_t uses;
    int64_t newest_s;
};

/* An unfinished segment in the folder, as this process has watched it. */
struct shared_open {
    struct shared_open *next;
    char name[SHARED_NAME];
    bool seen, removing;
    int64_t since; /* ns: first seen, or last tried to remove */
};

enum shared_drop_state { DROP_NEW, DROP_READY, DROP_BAD };

struct shared_drop_pair {
    uint64_t segment;
    struct kv_key key;
};

/* A file of drops in the folder. */
struct shared_drop {
    struct shared_drop *next;
    char name[SHARED_NAME];
    enum shared_drop_state state;
    int64_t done_at;            /* ns: since then nothing needs it; 0: something does */
    int tries;                  /* to read it that failed */
    int64_t try_at;             /* ns: not before */
    bool seen, removing, fresh; /* fresh: written here, no listing since */
    int n;
    struct shared_drop_pair *pair; /* [n] */
};

struct shared_read {
    struct kv_io io;
    struct shared *t;
    struct kv_tier_op *op;
    struct shared_entry *entry;
    int block, source;
    struct shared_read *next_free;
};

struct shared_work {
    struct shared_work *next;
    struct kv_tier_op *op;
    int source, block, n;
    struct shared_entry *entry[];
};

/* Creating: the file, and its room where that can be had before. */
enum shared_writer { WRITER_NONE, WRITER_CREATING, WRITER_OPEN, WRITER_SEALING, WRITER_ENDING };

/* One extent on its way into the open segment. */
struct shared_write {
    struct kv_io io;
    struct shared *t;
    struct kv_tier_op *op;
    struct shared_write *next, **link;
};

struct shared {
    struct kv_tier base;
    struct kv_shared_params p;
    char node[SHARED_NODE];
    int lock_file; /* that claims the name; -1: none */
    uint64_t layout_id, epoch;
    size_t entry_bytes;
    struct shared_entry **bucket;
    int sweep_at; /* next bucket that is looked at for blocks too old */
    struct shared_segment *segments;
    struct shared_open *opens;
    double floor;
    /* reading */
    struct shared_read *read, *free_read;
    int reads; /* under way */
    struct shared_work *works, **works_end;
    /* folder */
    struct kv_io list_io, load_io, remove_io;
    bool listing, removing;
    bool list_again;   /* a segment got its name while the listing ran, which may lack it */
    int64_t listed_at; /* ns; 0: never */
    double removals;   /* that may happen now */
    int64_t removals_at;
    char remove_name[SHARED_NAME];
    struct shared_segment *loading;
    uint8_t *footer;
    size_t footer_len;
    /* drops */
    struct shared_drop *drops, *drop_loading;
    struct kv_tier_op *drop_ops, **drop_ops_end, *drop_batch; /* waiting; in the file being written */
    struct shared_drop_pair *drop_pair;                       /* of that file */
    int n_drop_pairs, drop_pair_cap;
    bool drop_writing, drop_good, drop_retry;
    int drop_phase, drop_status, drop_file;
    struct kv_io drop_io;
    uint8_t *drop_bytes;
    size_t drop_len;
    char drop_open_name[SHARED_NAME], drop_name[SHARED_NAME];
    /* writing */
    enum shared_writer writer;
    char open_name[SHARED_NAME], seal_name[SHARED_NAME];
    uint32_t sequence;
    uint64_t segment_id, offset;
    int file, writes, write_status, folder_file;
    struct shared_write *running;
    int64_t writer_since;
    uint8_t *written; /* [n_written] shared_entry_bytes of the open segment */
    int n_written, written_cap;
    struct kv_tier_op *stores, **stores_end;
    int store_block;
    struct kv_io seal_io;
    uint8_t *seal_bytes;
    bool want_seal, ending;
    int failures;             /* segments that will not be, so far: what was placed in one is lost */
    bool allocated, no_alloc; /* the open segment has its room; the file system gives none before */
    bool read_only;
    int64_t retry_at, backoff;
    bool pumping, again;
    int in_flight;
    struct kv_tier_stats stats;
};

static inline struct shared_entry *shared_entry_at(const struct shared *t, uint8_t *entries, int i)
{
    return (struct shared_entry *)(void *)(entries + (size_t)i * t->entry_bytes);
}

/* ---- shared.c ---- */

void shared_pump(struct shared *t);
struct shared_entry *shared_find(const struct shared *t, const struct kv_key *key);
void shared_list(struct shared *t, struct shared_entry *e);
void shared_unlist(struct shared *t, struct shared_entry *e);
void shared_say(const struct shared *t, bool warning, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int64_t shared_now(const struct shared *t);
int64_t shared_wall(const struct shared *t);
void shared_submit(struct shared *t, struct kv_io *io, void (*done)(struct kv_io *));

/* ---- shared_folder.c ---- */

/* Begins what is due: a listing, a segment's index, a removal. */
void shared_folder_turn(struct shared *t);
void shared_segment_lose(struct shared *t, struct shared_segment *s, enum shared_state state);
/* Frees what is gone and read by nobody. */
void shared_segments_sweep(struct shared *t);
void shared_segments_free(struct shared *t);
/* Whether what the file system could not read shall be tried again, and when; false: given up. */
bool shared_try_again(const struct shared *t, int64_t result, int *tries, int64_t *try_at);

/* ---- shared_drop.c ---- */

void shared_drop_ask(struct shared *t, struct kv_tier_op *op);
/* Reads the next file of drops, or writes one of what waits. */
void shared_drop_turn(struct shared *t);
/* A listing begins; has a file of drops; has ended. */
void shared_drops_unsee(struct shared *t);
void shared_drop_see(struct shared *t, const char *name);
void shared_drops_forget(struct shared *t);
bool shared_drops_pending(const struct shared *t);
bool shared_dropped(const struct shared *t, uint64_t segment, const struct kv_key *key);
/* A file of drops that can go, marked as going; NULL: none. */
const char *shared_drop_done(struct shared *t);
void shared_drops_free(struct shared *t);

/* ---- shared_write.c ---- */

/* Takes a block out of the open segment, if it is there. */
bool shared_unwrite(struct shared *t, const struct kv_key *key);

/* Takes stores, seals what is due. */
void shared_write_turn(struct shared *t);
/* The pages at a segment's end: its entries, then the page that says where they begin. Little-endian. */
int shared_footer_entries(const struct shared *t);
bool shared_trailer_read(const struct shared *t, const uint8_t *page, uint64_t size, uint64_t *id, uint64_t *offset,
                         uint64_t *pages);
/* Entries of a footer into memory of shared_entry_bytes each; -1: no sense in it. */
int shared_footer_read(const struct shared *t, const uint8_t *footer, uint64_t pages, uint64_t id, uint64_t end,
                       uint8_t **entries);

#endif
