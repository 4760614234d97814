/* Inside of the shared tier: shared.c (verbs, reading), shared_files.c (open files), shared_write.c (the open segment),
 * shared_folder.c (listing), shared_load.c (indexes of segments), shared_room.c (what is removed), shared_drop.c (drops
 * that outlive the process), shared_table.c (lookups). */
#ifndef WEFT_KVTIERS_SHARED_IMPL_H
#define WEFT_KVTIERS_SHARED_IMPL_H

#include <stddef.h>

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
    SHARED_TRIES = 4,      /* to read what cannot be read now, before nobody waits for it any more */
};

enum shared_kind { SHARED_SEGMENTS, SHARED_OPENS, SHARED_DROPS, SHARED_KINDS };

/* A table of chains, which grows; a link is part of what it finds. */
struct shared_link {
    struct shared_link *next;
    uint64_t hash;
};

struct shared_table {
    struct shared_link **bucket;
    size_t n_buckets, n; /* a power of two */
};

#define SHARED_OF(link, type, member) ((type *)(void *)((uint8_t *)(link)-offsetof(type, member)))

struct shared;
struct shared_segment;

struct shared_entry {
    struct shared_link by_key;
    struct shared_segment *segment;
    bool listed;    /* in the table */
    uint8_t tries;  /* to read it that failed one after the other */
    int64_t try_at; /* ns: not found before; 0: nothing failed */
    struct kv_key key;
    struct kv_block_info info;
    uint64_t offset; /* of its run */
    uint32_t run_len, run_at;
    int64_t stored_s;
    uint64_t sum[]; /* [n_sources] */
};

enum shared_state {
    SEGMENT_NEW,   /* seen in the folder; its index is read as soon as may be */
    SEGMENT_READY, /* its index is in memory */
    SEGMENT_BAD,   /* of no use now (kind); looked at again at try_at */
    SEGMENT_GONE,  /* not in the folder any more, or about to go; freed when nobody reads from it */
};

enum shared_file { FILE_CLOSED, FILE_WAITS /* for its turn */, FILE_OPENING, FILE_OPEN, FILE_CLOSING };

/* Who writes under a name. */
struct shared_owner {
    struct shared_link by_name;
    struct shared_owner *next;
    char name[SHARED_NODE];
    int64_t active; /* ns: when a file of its was seen first, the last time */
};

struct shared_segment {
    struct shared_link by_name, by_id; /* by_id: READY ones */
    struct shared *t;
    const struct shared_owner *owner; /* NULL: no memory */
    struct shared_segment *next, **link;
    struct shared_segment *next_load, *next_gone; /* with queued; with GONE */
    char name[SHARED_NAME];
    enum shared_state state;
    enum kv_unusable kind; /* BAD */
    bool own, removing, queued;
    uint64_t seen; /* the listing that had it last */
    uint64_t id, size;
    int pins;
    int tries;        /* to read its index that failed */
    int64_t try_at;   /* ns: not before; 0: not again */
    int64_t since_s;  /* second at which it was seen first */
    int n, listed;    /* entries, and how many of them can be found */
    int dropped;      /* entries that drops took out */
    uint8_t *entries; /* [n] of shared_entry_bytes */
    double worth;
    uint32_t uses;
    int64_t newest_s; /* second at which its last block was stored, about; 0: not known */
    /* room: see shared_room.c */
    int64_t due_since, spared_until; /* ns; 0: is not among those that have to go; is not spared */
    bool helped;
    /* file */
    enum shared_file file_state;
    int file, users;                               /* reads and loads that have it, or wait for it */
    bool doubtful;                                 /* reading failed: it is opened anew */
    bool load_waits;                               /* for the file, */
    struct shared_read *waiting;                   /* and so do these */
    struct shared_segment *next_file, **file_link; /* waits for its turn, or is open and idle */
    struct kv_io file_io;
};

/* Segments that wait for a file, or whose file is open and used by nobody; in order. */
struct shared_queue {
    struct shared_segment *head, **tail;
    int n;
};

/* An unfinished segment in the folder, as this process has watched it. */
struct shared_open {
    struct shared_link by_name;
    struct shared_open *next;
    char name[SHARED_NAME];
    bool removing;
    uint64_t seen; /* the listing that had it last */
    int64_t since; /* ns: first seen, or last tried to remove */
};

enum shared_drop_state {
    DROP_NEW,  /* segments that are not known yet wait for it */
    DROP_LATE, /* cannot be read now; nobody waits for it any more */
    DROP_READY,
    DROP_BAD, /* no sense in it, for this process */
};

struct shared_drop_pair {
    struct shared_link by_block; /* of a READY file */
    uint64_t segment;
    struct kv_key key;
};

/* A file of drops in the folder. */
struct shared_drop {
    struct shared_link by_name;
    struct shared_drop *next;
    char name[SHARED_NAME];
    enum shared_drop_state state;
    int64_t done_at;      /* ns: since then nothing needs it; 0: something does */
    int tries;            /* to read it that failed */
    int64_t try_at;       /* ns: not before */
    uint64_t seen;        /* the listing that had it last */
    int64_t since_s;      /* second at which it was seen first */
    bool own, foreign;    /* foreign: of another layout */
    bool removing, fresh; /* fresh: written here, no listing since */
    int n;
    struct shared_drop_pair *pair; /* [n] */
};

struct shared_read {
    struct kv_io io;
    struct shared *t;
    struct kv_tier_op *op;
    struct shared_entry *entry;
    int block, source;
    struct shared_read *next; /* free, or waiting for a file */
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
    struct shared_table keys, names[SHARED_KINDS], ids, dropped, owner_names;
    struct shared_owner *owners;
    size_t sweep_at; /* next bucket of keys that is looked at for blocks too old */
    struct shared_segment *segments, *gone;
    int n_new;    /* segments whose index is waited for: the view of the folder is not whole */
    int n_unread; /* segments of which only the file system's errors are known */
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
    uint64_t listings; /* so far */
    int64_t listed_at; /* ns; 0: never */
    struct shared_segment *to_load, **to_load_end, *later; /* NEW ones; BAD ones that are looked at again, */
    int64_t later_at;                                      /* ns: at least one of them then */
    struct shared_segment *loading;
    uint8_t *footer;
    /* files */
    int files, files_closing, files_most; /* open, opening or closing; of these, closing; as many may be open */
    struct shared_queue files_wanted, files_idle;
    /* room */
    double removals;              /* that may happen now */
    int64_t removals_at, look_at; /* look_at, ns: nothing can be removed before */
    char remove_name[SHARED_NAME];
    uint64_t *remove_count, remove_blocks; /* what the removal adds to which figure */
    bool plan_due;
    int64_t planned_at;
    uint64_t share; /* bytes of own segments that shall go still */
    /* drops */
    struct shared_drop *drops, *drop_loading;
    int n_new_drops;                                          /* of the state NEW */
    int64_t drops_at;                                         /* ns: none is to be read before */
    struct kv_tier_op *drop_ops, **drop_ops_end, *drop_batch; /* waiting; in the file being written */
    struct shared_drop_pair *drop_pair;                       /* of that file */
    int n_drop_pairs, drop_pair_cap;
    bool drop_writing;
    int64_t drop_result; /* of reading one; 0 and more: the bytes are there */
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

/* ---- shared_table.c ---- */

bool shared_table_new(struct shared_table *a); /* false: no memory */
void shared_table_add(struct shared_table *a, struct shared_link *l, uint64_t hash);
void shared_table_remove(struct shared_table *a, struct shared_link *l);
/* The first link with this hash, and the one after it; NULL: there is none. */
struct shared_link *shared_table_first(const struct shared_table *a, uint64_t hash);
struct shared_link *shared_table_next(const struct shared_link *l);
void shared_table_free(struct shared_table *a); /* the buckets; links are their owners' */

/* ---- shared.c ---- */

void shared_pump(struct shared *t);
/* A block that can be read now; NULL: none. */
struct shared_entry *shared_find(const struct shared *t, const struct kv_key *key);
/* The first entry with the key, or the one after e, whatever its age or state; NULL: none. */
struct shared_entry *shared_entry_of(const struct shared *t, const struct kv_key *key, const struct shared_entry *e);
void shared_list(struct shared *t, struct shared_entry *e);
void shared_unlist(struct shared *t, struct shared_entry *e);
void shared_say(const struct shared *t, bool warning, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int64_t shared_now(const struct shared *t);
int64_t shared_wall(const struct shared *t);
void shared_submit(struct shared *t, struct kv_io *io, void (*done)(struct kv_io *));
/* When what failed for the `tries`th time is tried again. */
int64_t shared_later(const struct shared *t, int tries);
/* x waited for its file, which is open now, or cannot be opened: status. */
void shared_read_go_on(struct shared *t, struct shared_read *x, int status);

/* ---- shared_files.c ---- */

/* One more reads from the segment, until it leaves. True: its file is open. False: whoever waits (waiting, load_waits)
 * is told when it is, or cannot be. */
bool shared_file_use(struct shared *t, struct shared_segment *s);
void shared_file_leave(struct shared *t, struct shared_segment *s);
/* Closes the file when nobody uses it; true: it is closed. */
bool shared_file_close(struct shared *t, struct shared_segment *s);
/* The result of opening any file: whether there were too few descriptors. From now on fewer files are open. */
bool shared_files_fewer(struct shared *t, int64_t result);
/* Opens what is wanted as far as it may, closing what was not used for longest. */
void shared_files_turn(struct shared *t);

/* ---- shared_folder.c ---- */

/* Begins a listing when it is due. */
void shared_folder_turn(struct shared *t);
/* KIND-NODE-EPOCH-NUMBER taken apart; false: it is no such name. */
bool shared_name_parse(const char *name, const char *kind, char node[SHARED_NODE], uint64_t *epoch);
struct shared_link *shared_name_find(const struct shared *t, enum shared_kind kind, const char *name);
void shared_name_add(struct shared *t, enum shared_kind kind, struct shared_link *l, const char *name);
/* Changes what a segment is, with all accounts. */
void shared_segment_set(struct shared *t, struct shared_segment *s, enum shared_state state, enum kv_unusable kind);
/* Frees what is gone and read by nobody. */
void shared_segments_sweep(struct shared *t);
void shared_segments_free(struct shared *t);

/* ---- shared_load.c ---- */

/* Reads the index of the next segment. */
void shared_load_turn(struct shared *t);
void shared_load_ask(struct shared *t, struct shared_segment *s);
/* The file of the segment that is being loaded is open, or cannot be opened: status. */
void shared_load_go_on(struct shared *t, int status);

/* ---- shared_room.c ---- */

/* Removes the next file that has to go. */
void shared_room_turn(struct shared *t);

/* ---- shared_drop.c ---- */

void shared_drop_ask(struct shared *t, struct kv_tier_op *op);
/* Reads the next file of drops, or writes one of what waits. */
void shared_drop_turn(struct shared *t);
/* A listing has a file of drops; has ended. */
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
/* Whether the last two pages are those of a segment of another version or layout; newest: the second at which one of
 * its last blocks was stored, 0: not known. */
bool shared_trailer_foreign(const struct shared *t, const uint8_t *pages, int64_t *newest);
/* Entries of a footer into memory of shared_entry_bytes each. Their number, -EBADMSG: no sense in it, -ENOMEM. */
int shared_footer_read(const struct shared *t, const uint8_t *footer, uint64_t pages, uint64_t id, uint64_t end,
                       uint8_t **entries);

#endif
