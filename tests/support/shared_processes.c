/* Cases of shared_cases.def with processes and clocks of their own: writers that are killed again and again, a reader
 * that stands still while files that it knows are deleted and their room is used again; and what is durable over the
 * faults of a file system, for a later process. */
#include "tests/harness.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvtiers/shared.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/process.h"
#include "tests/support/shared_world.h"

#define MS INT64_C(1000000)

struct node {
    struct kv_layout layout;
    struct kv_storage *storage;
    struct kv_tier *tier;
};

enum { WRITERS = 3, READERS = 2, KEYS = 60 };

/* A folder as two clients of its file system see it. */
struct place {
    const struct sw_kind *kind;
    char path[2][4400];
};

static void place_make(struct place *p, const struct sw_kind *kind)
{
    if (kind->io == SW_MEMORY)
        cr_skip_test("processes do not share the memory of one of them");
    p->kind = kind;
    snprintf(p->path[0], sizeof p->path[0], "%s/weft-shared-XXXXXX", sw_parent(kind, 0));
    cr_assert_not_null(mkdtemp(p->path[0]));
    snprintf(p->path[1], sizeof p->path[1], "%s%s", sw_parent(kind, 1), strrchr(p->path[0], '/'));
}

/* A run on another file system (make test-shared) takes longer. */
static int64_t case_ms(const struct sw_kind *kind)
{
    const char *s = getenv("WEFT_SHARED_SECONDS");
    return s ? 1000 * (int64_t)atoi(s) : kind->io == SW_USRBIO ? 400 : 3000;
}

static int64_t real_ns(void *ctx)
{
    return kv_clock_system.now(ctx);
}

/* Room for so few blocks that files come and go all the time. */
enum { FEW = 50, ALL = 50000 };

/* Nodes of one name see the folder as the same client does. False: no tier. */
static bool open_real(struct node *n, const struct place *at, const char *name, int blocks)
{
    struct cfg_error err;
    uint64_t seed = sw_round() + 1;
    for (const char *c = name; *c; c++)
        seed = seed * 31 + (uint64_t)*c;
    const char *folder = at->path[name[strlen(name) - 1] & 1];
    *n = (struct node){.layout = ts_layout(256)};
    if (sw_process_storage(at->kind, seed, folder, &n->storage, &err))
        return false;
    const struct kv_shared_params p = {.storage = n->storage,
                                       .folder = folder,
                                       .node = name,
                                       .layout = n->layout,
                                       .bytes = blocks * (int64_t)n->layout.block_bytes,
                                       .segment_bytes = 20 * (int64_t)n->layout.block_bytes,
                                       .seal_ns = 20 * MS,
                                       .poll_ns = 10 * MS,
                                       .orphan_ns = 1000 * MS,
                                       .removals_per_s = 10,
                                       .clock = {real_ns, kv_clock_system.wall, NULL}};
    return kv_shared_new(&p, &n->tier, &err) == 0;
}

static void close_node(struct node *n)
{
    n->tier->ops->free(n->tier);
    kv_storage_free(n->storage);
}

enum { PATIENCE_S = 60 };

static void turn_real(struct node *n)
{
    struct kv_storage_stats s;
    n->storage->ops->stat(n->storage, &s);
    if (!s.in_flight)
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    n->storage->ops->wait(n->storage, 20);
    n->tier->ops->tick(n->tier);
}

/* False: it does not end. */
static bool finish_real(struct node *n, const struct ts_op *o)
{
    int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
    while (!o->done && real_ns(NULL) < end)
        turn_real(n);
    return o->done;
}

/* Readers live for the time of the case and until they have read something, writers until the readers are done. Exit
 * status: 0; 1: wrong bytes; 2 and more: something has no end. */
static void live(const struct place *at, int number, bool writes, _Atomic bool *over)
{
    struct node n;
    char name[16];
    snprintf(name, sizeof name, "p%d", number);
    if (!open_real(&n, at, name, FEW))
        _exit(2);
    srand((unsigned)number);
    int64_t begin = real_ns(NULL), end = begin + case_ms(at->kind) * MS, good = 0;
    /* relaxed: says only that it is time to go */
    while (writes ? !atomic_load_explicit(over, memory_order_relaxed) : good < 20 || real_ns(NULL) < end) {
        static struct ts_op o;
        int k = rand() % KEYS;
        enum ts_verb verb = !writes || rand() % 3 == 0 ? TS_READ : rand() % 16 == 0 ? TS_DROP : TS_STORE;
        ts_op_begin(&o, n.tier, &n.layout, verb, &k, 1);
        if (!finish_real(&n, &o))
            _exit(5);
        if (verb == TS_READ && o.op.count == 1 && !ts_block_good(&n.layout, k, o.block[0].bytes))
            _exit(1);
        good += verb == TS_READ && o.op.count == 1;
        ts_op_free(&o);
        n.tier->ops->tick(n.tier);
        n.storage->ops->poll(n.storage);
        if (!writes && real_ns(NULL) > end + PATIENCE_S * 1000 * MS)
            _exit(4);
    }
    close_node(&n);
    _exit(0);
}

void sc_case_many_processes_and_killed_writers_in_one_folder(const struct sw_kind *kind)
{
    struct place at;
    pid_t pid[WRITERS + READERS];
    int status;
    place_make(&at, kind);
    _Atomic bool *over = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)over, MAP_FAILED);
    for (int i = 0; i < WRITERS + READERS; i++) {
        pid[i] = fork();
        if (pid[i] == 0)
            live(&at, i, i < WRITERS, over);
    }
    /* The first writer dies again and again, wherever it is; the first reader stands still while files that it knows
     * go. */
    for (int k = 0; k < 8 * case_ms(kind) / 3000 + 1; k++) {
        nanosleep(&(struct timespec){0, 150000000 + 7000000 * (k % 16)}, NULL);
        kill(pid[WRITERS], k % 4 == 1 ? SIGSTOP : SIGCONT);
        kill(pid[0], SIGKILL);
        waitpid(pid[0], &status, 0);
        pid[0] = fork();
        if (pid[0] == 0)
            live(&at, 0, true, over);
    }
    kill(pid[WRITERS], SIGCONT);
    for (int i = WRITERS + READERS - 1; i >= 0; i--) {
        if (i == WRITERS - 1)
            atomic_store_explicit(over, true, memory_order_relaxed); /* live() */
        waitpid(pid[i], &status, 0);
        cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d: %x", i, (unsigned)status);
    }
    munmap((void *)over, 4096);
    ts_remove_dir(at.path[0]);
}

/* One op of a process to its end: how many blocks (0, 1). Negative: -1: it does not end; else its status. */
static int count_real(struct node *n, enum ts_verb verb, int block, bool *good)
{
    static struct ts_op o;
    ts_op_begin(&o, n->tier, &n->layout, verb, &block, 1);
    if (!finish_real(n, &o))
        return -1;
    int count = o.op.status && verb == TS_DROP ? o.op.status : o.op.count;
    *good = verb != TS_READ || !count || ts_block_good(&n->layout, block, o.block[0].bytes);
    ts_op_free(&o);
    return count;
}

/* Until a lookup finds the block, or finds it no more. */
static bool wait_real(struct node *n, int block, bool there)
{
    int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
    bool good;
    while (real_ns(NULL) < end) {
        int count = count_real(n, TS_LOOKUP, block, &good);
        if (count < 0 || (count == 1) == there)
            return count >= 0;
        turn_real(n);
    }
    return false;
}

/* Knows where block 7 lies, stands still until others are done with it, and reads it. Exit status: 0; 1: wrong bytes;
 * 2 and more: it did not get that far. */
static void stand_still(const struct place *at)
{
    struct node n;
    bool good = true;
    if (!open_real(&n, at, "still", FEW))
        _exit(2);
    if (!wait_real(&n, 7, true))
        _exit(3);
    raise(SIGSTOP);
    for (int k = 0; k < 3; k++) /* with what it knew, and when it has looked again */
        if (count_real(&n, TS_READ, 7, &good) < 0 || !good)
            _exit(good ? 4 : 1);
    if (!wait_real(&n, 7, false))
        _exit(5);
    close_node(&n);
    _exit(0);
}

static bool stopped(pid_t pid)
{
    int status = 0;
    int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
    while (real_ns(NULL) < end) {
        pid_t r = waitpid(pid, &status, WUNTRACED | WNOHANG);
        if (r)
            return r == pid && WIFSTOPPED(status);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    return false;
}

/* A tier that had an error takes nothing for a while. */
static bool store_all(struct node *n, int first, int blocks)
{
    bool good, all = true;
    for (int i = first; all && i < first + blocks; i++) {
        int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
        int count;
        while ((count = count_real(n, TS_STORE, i, &good)) == 0 && real_ns(NULL) < end)
            turn_real(n);
        all = count == 1;
    }
    return all;
}

/* What a tier has taken is there for good when its segment is sealed, which an error may prevent. */
static bool store_for_good(struct node *n, int block)
{
    int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
    bool good;
    while (real_ns(NULL) < end && store_all(n, block, 1))
        for (int64_t soon = real_ns(NULL) + 200 * MS; real_ns(NULL) < soon; turn_real(n))
            if (count_real(n, TS_LOOKUP, block, &good) == 1)
                return true;
    return false;
}

static bool drop_for_good(struct node *n, int block)
{
    bool good;
    for (int tries = 0; tries < 3; tries++) {
        int count = count_real(n, TS_DROP, block, &good);
        if (count == 1)
            return true;
        if (count == 0 || count == -1 || !store_for_good(n, block))
            return false;
    }
    return false;
}

enum { NAMES_MAX = 64 };

/* Names of sealed segments; returns how many. */
static int segments(const struct place *at, char names[NAMES_MAX][256])
{
    DIR *d = opendir(at->path[0]);
    int n = 0;
    cr_assert_not_null(d);
    for (struct dirent *e; n < NAMES_MAX && (e = readdir(d));)
        if (!strncmp(e->d_name, "seg-", 4))
            snprintf(names[n++], 256, "%s", e->d_name);
    closedir(d);
    return n;
}

/* Until none of these files is there any more. */
static bool wait_gone(struct node *n, const struct place *at, char names[NAMES_MAX][256], int count)
{
    int64_t end = real_ns(NULL) + PATIENCE_S * 1000 * MS;
    char path[4700];
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%.255s", at->path[0], names[i]);
        while (!access(path, F_OK)) {
            if (real_ns(NULL) > end)
                return false;
            turn_real(n);
        }
    }
    return true;
}

/* A reader stands still while the block that it knows is dropped and its room is used again by others; a later process
 * and one that was there all the time see the drop. Nobody ever gets wrong bytes. */
void sc_case_many_drops_reach_all_and_a_reader_that_stands_still_gets_no_wrong_bytes(const struct sw_kind *kind)
{
    struct place at;
    struct node a, b;
    bool good;
    place_make(&at, kind);
    pid_t reader = fork(); /* before this process has threads */
    if (reader == 0)
        stand_still(&at);
    cr_assert(open_real(&a, &at, "a", FEW) && open_real(&b, &at, "b", FEW));
    cr_assert(store_all(&a, 0, 20));
    cr_assert(store_for_good(&a, 7));
    cr_assert(stopped(reader), "the reader has not found the block");
    static char known[NAMES_MAX][256];
    int count = segments(&at, known);
    cr_assert_gt(count, 0);
    cr_assert(wait_real(&b, 7, true));
    cr_assert(drop_for_good(&b, 7), "any node may drop");
    cr_assert(wait_real(&a, 7, false), "the drop reaches the writer");
    /* The room that its segment had is wanted for others. */
    for (int round = 0; round < 4; round++)
        cr_assert(store_all(&a, 100 + 40 * round, 40));
    cr_assert(wait_gone(&a, &at, known, count), "a segment that the reader knows is still there");
    kill(reader, SIGCONT);
    int status = 0;
    cr_assert_eq(waitpid(reader, &status, 0), reader);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", (unsigned)status);
    close_node(&a);
    close_node(&b);
    cr_assert(open_real(&a, &at, "later", FEW));
    for (int64_t end = real_ns(NULL) + 200 * MS; real_ns(NULL) < end;)
        turn_real(&a);
    cr_assert_eq(count_real(&a, TS_LOOKUP, 7, &good), 0, "a later process sees the drop");
    close_node(&a);
    ts_remove_dir(at.path[0]);
}

/* ---- durable over the faults of a file system ---- */

static struct place kept_place(const struct sw_kind *kind, const char *folder)
{
    struct place at = {.kind = kind};
    for (int view = 0; view < 2; view++)
        snprintf(at.path[view], sizeof at.path[view], "%s/%s", sw_parent(kind, view), folder);
    return at;
}

int sw_keep(const struct sw_kind *kind, const char *folder, const char *list, int least)
{
    enum { TOGETHER = 5 };
    const struct place at = kept_place(kind, folder);
    struct node n;
    char end[4400];
    int block = 0;
    FILE *f = fopen(list, "w");
    snprintf(end, sizeof end, "%s.end", list);
    cr_assert(f && open_real(&n, &at, "writer0", ALL));
    for (; block < least || (getenv("WEFT_SHARED_KEPT") && access(end, F_OK) && block < ALL / 2); block += TOGETHER) {
        cr_assert(store_all(&n, block, TOGETHER), "block %d", block);
        for (int i = block; i < block + TOGETHER; i++) {
            cr_assert(store_for_good(&n, i), "block %d", i);
            fprintf(f, "%d\n", i);
        }
        /* Others want the file system, too. */
        for (int64_t soon = real_ns(NULL) + 150 * MS; block >= least && real_ns(NULL) < soon;)
            turn_real(&n);
    }
    fclose(f);
    close_node(&n);
    return block;
}

int sw_check_kept(const struct sw_kind *kind, const char *folder, const char *list)
{
    const struct place at = kept_place(kind, folder);
    int count = 0;
    for (int view = 0; view < 2; view++) {
        struct node n;
        bool good;
        FILE *f = fopen(list, "r");
        cr_assert(f && open_real(&n, &at, view ? "reader1" : "reader0", ALL));
        count = 0;
        for (int block; fscanf(f, "%d", &block) == 1; count++) {
            cr_assert(wait_real(&n, block, true), "block %d was reported durable and is not found", block);
            cr_assert_eq(count_real(&n, TS_READ, block, &good), 1, "block %d was reported durable and is lost", block);
            cr_assert(good, "block %d has wrong bytes", block);
        }
        fclose(f);
        close_node(&n);
    }
    return count;
}
