/* Folders for the cases of the shared tier (shared_cases.def): in memory, on a real file system through io_uring, or
 * there through USRBIO's double with faults of its own. All can stop a process at any write, hold requests up, fail
 * them, and have their files damaged. A folder outlives the storages opened on it. One thread.
 *
 * A suite describes itself with a struct sw_kind and lists the cases:
 *
 *     #define SHARED_CASE(name) Test(shared_local, name, .timeout = 3600) { sw_run(&kind, sc_case_##name); }
 *     #include "tests/support/shared_cases.def"
 */
#ifndef WEFT_TESTS_SUPPORT_SHARED_WORLD_H
#define WEFT_TESTS_SUPPORT_SHARED_WORLD_H

#include "kvtiers/storage_sim.h"
#include "tests/doubles/usrbio_faults.h"

enum sw_io { SW_MEMORY, SW_URING, SW_USRBIO };

struct sw_kind {
    enum sw_io io;
    struct usrbio_faults faults;
    /* Hard errors come at random: until one has come everything holds; afterwards no bytes are wrong, every request
     * ends, what was dropped stays dropped, and the folder can be used on. */
    bool errors;
    int seeds, many_seeds; /* how often a case runs in make test, in make test-long; 0: once */
    int fewer;             /* places of a sweep left out: by this factor; 0: none */
};

struct sw_disk;
typedef void sw_case(const struct sw_kind *kind);

/* Calls the case for each seed. Skips the test where the kind cannot be. */
void sw_run(const struct sw_kind *kind, sw_case *test);
/* The seed of the present round, for more seeds than one. */
uint64_t sw_round(void);

/* A new empty folder. */
struct sw_disk *sw_disk_new(const struct sw_kind *kind, uint64_t seed);
void sw_disk_free(struct sw_disk *d);
/* A storage on it; several at a time are several processes. */
struct kv_storage *sw_storage(struct sw_disk *d);
/* Files of segments that were open at a time at most; 0 in memory. */
int sw_most_open(struct kv_storage *s);
/* Past the page cache, where the file system has that. */
bool sw_direct(const struct sw_disk *d);
/* A hard error has been given out on this disk. */
bool sw_error_came(const struct sw_disk *d);
/* From now on faults do not happen any more (the USRBIO double's). */
void sw_faults_end(struct sw_disk *d);

/* As the functions of storage_sim.h. On a real file system a crash is always the end of the process: requests on their
 * way may or may not happen, of writes any sectors. */
void sw_stop_after(struct sw_disk *d, int64_t n);
bool sw_stopped(const struct sw_disk *d);
void sw_crash(struct sw_disk *d, enum kv_crash how);
void sw_fail(struct sw_disk *d, enum kv_io_op op, const char *name, int skip, int times, int64_t result);
void sw_hold(struct sw_disk *d, enum kv_io_op op, const char *name, bool hold);
int64_t sw_size(const struct sw_disk *d, const char *name);
void sw_truncate(struct sw_disk *d, const char *name, int64_t len);
/* Bytes of a file that is at rest. */
void sw_peek(const struct sw_disk *d, const char *name, int64_t at, void *bytes, size_t len);
void sw_poke(struct sw_disk *d, const char *name, int64_t at, const void *bytes, size_t len);

/* The folder below which all is made: $WEFT_SHARED_DIR, or a local one. View 1: the same one as another client of its
 * file system sees it, $WEFT_SHARED_DIR2 if set. */
const char *sw_parent(const struct sw_kind *kind, int view);
/* A bare storage in a folder, as a process has it. Returns as kv_storage_uring_new does. */
int sw_process_storage(const struct sw_kind *kind, uint64_t seed, const char *folder, struct kv_storage **out,
                       struct cfg_error *err);

/* Stores blocks in that folder below sw_parent, at least so many, and with $WEFT_SHARED_KEPT set until there is a file
 * LIST.end; the number of each that was reported durable goes to the file `list`. Returns how many. */
int sw_keep(const struct sw_kind *kind, const char *folder, const char *list, int least);
/* Reads all of these in processes' lives that begin now, through both views. Returns how many. */
int sw_check_kept(const struct sw_kind *kind, const char *folder, const char *list);

#define SHARED_CASE(name) sw_case sc_case_##name;
#include "tests/support/shared_cases.def"
#undef SHARED_CASE

#endif
