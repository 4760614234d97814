/* `weft bench kv`: what the tiers deliver, each beside what its medium gives without them, in one run: memcpy for the
 * device and host tiers; for the ssd and shared tiers fio, given the very requests that the tier has made (file, place,
 * size, order, how many at a time), and fio on places drawn at random. The first shows what the tier costs; the second
 * can differ from it in either direction, because requests that are neighbours on the device are faster or slower than
 * others there. The host and ssd tiers are also read through a kv node, over tcp on loopback, beside the same reads on
 * the node itself. */
#include "cli/bench_kv.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/bench_kv_fio.h"
#include "cli/bench_kv_node.h"
#include "cli/bench_kv_rows.h"
#include "cli/cli.h"
#include "cli/kv_trace.h"
#include "cli/options.h"
#include "kvtiers/device.h"
#include "kvtiers/host.h"
#include "kvtiers/memory.h"
#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"

enum { SEGMENT_BYTES = 64 << 20 };
enum { RUN = 16, OPS_MAX = 16, DEPTH = 192, POOL_RUNS = 16, ROUNDS_MAX = 99, TICK_MS = 20, PATIENCE_S = 60 };
enum { SPARE_BLOCKS = 6 * 48, FILL_PASSES = 4 };

static struct {
    const char *path, *trace, *plot;
    int blocks, rounds, ops;
    double seconds;
    bool json;
} options = {.path = ".", .blocks = 2048, .rounds = 3, .ops = 8, .seconds = 3};

/* What a tier on files reads, beside fio: medians of the rounds; bytes per second, 0: not measured. */
struct files_read {
    double tier, replay, random;
    double replay_ratio, random_ratio; /* medians of those of the rounds */
};

struct bench {
    struct kv_layout layout;
    struct kv_storage *storage, *recorder; /* the second hands on to the first */
    uint8_t *pool;                         /* POOL_RUNS * RUN blocks */
    size_t pool_bytes;
    uint8_t *node_pool; /* of the kv node, BENCH_KV_NODE_BLOCKS blocks */
    size_t node_pool_bytes;
    char folder[1024];
    /* bytes per second; 0: not measured */
    double device_read, device_copy, host_read, copy, ssd_write, ssd_first_write, shared_write, fio_write,
        fio_first_write;
    struct files_read ssd, shared;
    struct bench_kv_node host_node, ssd_node;
    struct bench_kv_rows rows;
};

static double now(void)
{
    return 1e-9 * (double)kv_clock_system.now(NULL);
}

/* The published model's block of 256 tokens: three sources of ratio 2, one of ratio 1. */
static void real_layout(struct kv_layout *out)
{
    static const size_t bytes[] = {49152, 49152, 49152, 94208};
    struct cfg_error err;
    kv_layout_init(KV_FORMAT_ROWS, 256, bytes, 4, out, &err);
}

static struct kv_key key_of(int n)
{
    struct kv_key key;
    const int32_t id = n;
    kv_key_root(&(struct kv_identity){.numerics = "bench", .block_tokens = 256, .format = KV_FORMAT_ROWS}, &key);
    kv_key_extend(&key, &id, 1, &key);
    return key;
}

/* ---- many operations at a time ---- */

struct flight {
    struct kv_tier_op op;
    struct kv_tier_block block[RUN];
    bool busy;
    int *left, *good;
};

static void on_done(struct kv_tier_op *op)
{
    struct flight *f = op->ctx;
    f->busy = false;
    (*f->left)--;
    *f->good += op->count;
}

/* `runs` of them in the given order, `ops` at a time. Seconds; *good: blocks that came. */
static double drive(struct bench *b, struct kv_tier *t, bool store, const int *order, int runs, int ops, int *good)
{
    static struct flight flight[OPS_MAX];
    int next = 0, left = runs;
    double began = now();
    *good = 0;
    memset(flight, 0, sizeof flight);
    while (left) {
        for (int i = 0; i < ops && next < runs; i++) {
            struct flight *f = &flight[i];
            if (f->busy)
                continue;
            int run = order[next++];
            for (int k = 0; k < RUN; k++)
                f->block[k] = (struct kv_tier_block){
                    .key = key_of(run * RUN + k),
                    .bytes = b->pool + (size_t)((store ? run % POOL_RUNS : i) * RUN + k) * b->layout.block_bytes};
            f->op = (struct kv_tier_op){.block = f->block, .n = RUN, .done = on_done, .ctx = f};
            f->busy = true;
            f->left = &left;
            f->good = good;
            (store ? t->ops->store : t->ops->read)(t, &f->op);
        }
        if (left && b->storage)
            b->storage->ops->wait(b->storage, TICK_MS);
        t->ops->tick(t);
    }
    return now() - began;
}

static int *shuffled(int n, unsigned seed)
{
    int *order = malloc((size_t)n * sizeof *order);
    srand(seed);
    for (int i = 0; order && i < n; i++)
        order[i] = i;
    for (int i = n - 1; order && i > 0; i--) {
        int k = rand() % (i + 1), v = order[i];
        order[i] = order[k];
        order[k] = v;
    }
    return order;
}

/* ---- through a kv node ---- */

/* The tier has the runs 0..runs-1. storage: of the ssd tier; NULL: it is a host tier. */
static int bench_node(struct bench *b, struct kv_tier *t, struct kv_storage *storage, const int *order, int runs,
                      struct bench_kv_node *out, struct cfg_error *err)
{
    struct kv_key *key = malloc((size_t)runs * RUN * sizeof *key);
    if (!key)
        return cfg_error_set(err, ENOMEM, "out of memory");
    for (int i = 0; i < runs * RUN; i++)
        key[i] = key_of(i);
    const struct bench_kv_node_arg a = {.layout = &b->layout,
                                        .tier = t,
                                        .durable = storage != NULL,
                                        .storage = storage,
                                        .key = key,
                                        .order = order,
                                        .runs = runs,
                                        .run = RUN,
                                        .ops = options.ops,
                                        .memory = b->pool,
                                        .pool = b->node_pool,
                                        .rounds = options.rounds,
                                        .seconds = options.seconds};
    int r = bench_kv_node(&a, out, err);
    free(key);
    return r;
}

/* ---- host ---- */

/* Passes over the runs of a tier in memory, one at a time, beside memcpy of the same bytes from where they lie, in
 * turn. The best of each. */
static void beside_copy(struct bench *b, struct kv_tier *t, const uint8_t *base, const int *order, int runs,
                        double *read, double *copy)
{
    const size_t run = RUN * b->layout.block_bytes;
    const double bytes = (double)runs * (double)run;
    struct kv_storage *storage = b->storage;
    int good;
    b->storage = NULL; /* nothing is waited for */
    drive(b, t, true, order, runs, 1, &good);
    for (int k = 0; k < options.rounds; k++) {
        double s = drive(b, t, false, order, runs, 1, &good);
        *read = good == runs * RUN && bytes / s > *read ? bytes / s : *read;
        double began = now();
        for (int i = 0; i < runs; i++)
            memcpy(b->pool, base + (size_t)order[i] * run, run);
        s = now() - began;
        *copy = bytes / s > *copy ? bytes / s : *copy;
    }
    b->storage = storage;
}

static int runs_in_memory(void)
{
    return options.blocks / RUN < 64 ? options.blocks / RUN : 64;
}

/* Pages of the pool on which the engine computes, copied out by the tier and by memcpy. The engine itself reads them in
 * place. */
static int bench_device(struct bench *b, struct cfg_error *err)
{
    struct kv_device *d = NULL;
    struct kv_tier *t = NULL;
    int runs = runs_in_memory(), *order = shuffled(runs, 4);
    int r = order ? kv_device_new(runs * RUN, b->layout.block_bytes, 0, &d, err) : -ENOMEM;
    if (!r)
        r = kv_device_tier(d, &b->layout, &t, err);
    if (!r) {
        beside_copy(b, t, kv_device_bytes(d, 0), order, runs, &b->device_read, &b->device_copy);
        t->ops->free(t);
    }
    kv_device_free(d);
    free(order);
    return r;
}

static int bench_host(struct bench *b, struct cfg_error *err)
{
    struct kv_tier *t;
    int runs = runs_in_memory();
    const struct kv_host_params p = {.layout = b->layout,
                                     .bytes = (int64_t)runs * RUN * (int64_t)b->layout.block_bytes,
                                     .clock = kv_clock_system,
                                     .verify = true};
    int r = kv_host_new(&p, &t, err), *order = shuffled(runs, 1);
    void *base;
    size_t len;
    if (r || !order) {
        free(order);
        return r ? r : -ENOMEM;
    }
    kv_host_memory(t, &base, &len);
    beside_copy(b, t, base, order, runs, &b->host_read, &b->copy);
    r = bench_node(b, t, NULL, order, runs, &b->host_node, err);
    t->ops->free(t);
    free(order);
    return r;
}

/* ---- ssd ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_bench_kv_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return n ? v[n / 2] : 0;
}

/* Passes over all runs until `seconds` are over; what the tier asks of the files goes to the log. Bytes per second. */
static double read_for(struct bench *b, struct kv_tier *t, const int *order, const char *log, struct cfg_error *err)
{
    int runs = options.blocks / RUN, good, passes = 0;
    double took = 0;
    int r = bench_kv_record(b->recorder, log);
    while (!r && took < options.seconds) {
        took += drive(b, t, false, order, runs, options.ops, &good);
        passes++;
        if (good != runs * RUN)
            r = -EIO;
    }
    if (!r)
        r = bench_kv_record_end(b->recorder);
    if (r) {
        cfg_error_set(err, -r, r == -EIO ? "some blocks did not come back" : "%s: %s", log, strerror(-r));
        return 0;
    }
    return (double)passes * runs * RUN * (double)b->layout.block_bytes / took;
}

/* file: of random reads; NULL: there are none. */
static int read_rounds(struct bench *b, struct kv_tier *t, const int *order, const char *file, struct files_read *out,
                       struct cfg_error *err)
{
    double tier[ROUNDS_MAX], replay[ROUNDS_MAX], draw[ROUNDS_MAX], same[ROUNDS_MAX], drawn[ROUNDS_MAX];
    bool beside = bench_kv_fio_available();
    char log[1100];
    int n = options.rounds;
    long long size = (long long)options.blocks * (long long)b->layout.block_bytes;
    snprintf(log, sizeof log, "%s/requests", b->folder);
    for (int k = 0; k < n; k++) {
        tier[k] = read_for(b, t, order, log, err);
        if (!(tier[k] > 0))
            return -EIO;
        replay[k] = beside ? bench_kv_fio_replay(log, DEPTH) : 0;
        draw[k] = beside && file ? bench_kv_fio(file, BENCH_FIO_READ, size, DEPTH, options.seconds) : 0;
        same[k] = replay[k] > 0 ? tier[k] / replay[k] : 0;
        drawn[k] = draw[k] > 0 ? tier[k] / draw[k] : 0;
    }
    *out =
        (struct files_read){cli_bench_kv_median(tier, n), cli_bench_kv_median(replay, n), cli_bench_kv_median(draw, n),
                            cli_bench_kv_median(same, n), cli_bench_kv_median(drawn, n)};
    return 0;
}

/* Stores all runs under keys of their own for each set; those of set 0 are read later. Bytes per second. */
static double store_pass(struct bench *b, struct kv_tier *t, const int *order, int set)
{
    int runs = options.blocks / RUN, good, *keys = malloc((size_t)runs * sizeof *keys);
    if (!keys)
        return 0;
    for (int i = 0; i < runs; i++)
        keys[i] = order[i] + set * runs;
    double took = drive(b, t, true, keys, runs, options.ops, &good);
    free(keys);
    return (double)good * (double)b->layout.block_bytes / took;
}

/* Room in which the runs of one set stay whole: the tier keeps two slabs empty, one is being filled, one may hold the
 * end of the set before, and the next to go may be in use. */
static int64_t ssd_room(const struct bench *b)
{
    int more = options.blocks / 5 < SPARE_BLOCKS ? SPARE_BLOCKS : options.blocks / 5;
    return (int64_t)(options.blocks + more) * (int64_t)b->layout.block_bytes;
}

static int bench_ssd(struct bench *b, struct cfg_error *err)
{
    struct kv_tier *t;
    int runs = options.blocks / RUN, *order = shuffled(runs, 2);
    const struct kv_ssd_params p = {.storage = b->recorder,
                                    .folder = b->folder,
                                    .layout = b->layout,
                                    .bytes = ssd_room(b),
                                    .direct = true,
                                    .clock = kv_clock_system};
    int r = order ? kv_ssd_new(&p, &t, err) : -ENOMEM;
    if (r) {
        free(order);
        return r;
    }
    struct kv_tier_stats s = {.rebuilding = true};
    while (s.rebuilding) {
        t->ops->tick(t);
        b->storage->ops->wait(b->storage, 100);
        t->ops->stat(t, &s);
    }
    double stored[ROUNDS_MAX];
    int n = options.rounds;
    b->ssd_first_write = store_pass(b, t, order, n);
    for (int set = n + 1; set < n + FILL_PASSES && !s.evicted; set++) { /* every place has been written once */
        store_pass(b, t, order, set);
        t->ops->stat(t, &s);
    }
    for (int k = 0; k < n; k++)
        stored[k] = store_pass(b, t, order, n - 1 - k);
    b->ssd_write = cli_bench_kv_median(stored, n);
    char file[1100];
    snprintf(file, sizeof file, "%s/weft-kv.000", b->folder);
    r = read_rounds(b, t, order, file, &b->ssd, err);
    if (!r)
        r = bench_node(b, t, b->recorder, order, runs, &b->ssd_node, err);
    t->ops->free(t);
    if (bench_kv_fio_available()) { /* its blocks are not wanted any more */
        char new_file[1100];
        long long size = (long long)options.blocks * (long long)b->layout.block_bytes;
        snprintf(new_file, sizeof new_file, "%s/new", b->folder);
        double first[ROUNDS_MAX];
        b->fio_write = bench_kv_fio(file, BENCH_FIO_WRITE, size, DEPTH, options.seconds);
        for (int k = 0; k < n; k++)
            first[k] = bench_kv_fio(new_file, BENCH_FIO_WRITE_NEW, size, DEPTH, options.seconds);
        b->fio_first_write = cli_bench_kv_median(first, n);
    }
    free(order);
    return r;
}

/* ---- shared ---- */

/* Until every one of so many blocks is in a sealed segment and found. */
static int wait_sealed(struct bench *b, struct kv_tier *t, int blocks, struct cfg_error *err)
{
    struct kv_tier_stats s = {.rebuilding = true};
    for (double end = now() + PATIENCE_S; s.rebuilding || s.blocks < (uint64_t)blocks;) {
        if (now() > end)
            return cfg_error_set(err, ETIMEDOUT, "%d of %d blocks were found in the shared folder after %d s",
                                 (int)s.blocks, blocks, PATIENCE_S);
        t->ops->tick(t);
        b->storage->ops->wait(b->storage, TICK_MS);
        t->ops->stat(t, &s);
    }
    return 0;
}

/* One process alone in its folder: what the form of the files costs, not what a shared file system does. */
static int bench_shared(struct bench *b, struct cfg_error *err)
{
    struct kv_tier *t;
    int runs = options.blocks / RUN, n = options.rounds, *order = shuffled(runs, 3);
    double stored[ROUNDS_MAX];
    const struct kv_shared_params p = {.storage = b->recorder,
                                       .folder = b->folder,
                                       .node = "bench",
                                       .layout = b->layout,
                                       .bytes = (n + 1) * (int64_t)options.blocks * (int64_t)b->layout.block_bytes,
                                       .segment_bytes = SEGMENT_BYTES,
                                       .seal_ns = 100000000,
                                       .poll_ns = 10000000,
                                       .orphan_ns = INT64_MAX / 2,
                                       .removals_per_s = 1,
                                       .direct = true,
                                       .clock = kv_clock_system};
    int r = order ? kv_shared_new(&p, &t, err) : -ENOMEM;
    if (r) {
        free(order);
        return r;
    }
    for (int k = 0; k < n; k++)
        stored[k] = store_pass(b, t, order, n - 1 - k);
    b->shared_write = cli_bench_kv_median(stored, n);
    r = wait_sealed(b, t, n * options.blocks, err);
    if (!r)
        r = read_rounds(b, t, order, NULL, &b->shared, err);
    t->ops->free(t);
    free(order);
    return r;
}

/* ---- the command ---- */

static void print_one(const char *name, double v, const char *beside, double w, double ratio)
{
    printf("  %-28s %8.2f GB/s", name, v * 1e-9);
    if (w > 0)
        printf("   %-24s %8.2f GB/s   ratio %.2f", beside, w * 1e-9, ratio > 0 ? ratio : v / w);
    else
        printf("   (%s: not measured)", beside);
    putchar('\n');
}

static void json_node(const char *name, const struct bench_kv_node *n)
{
    printf("\"%s\":{\"read\":%.0f,\"local\":%.0f,\"ratio\":%.3f,\"one_ms\":%.3f,\"local_one_ms\":%.3f}", name,
           n->remote, n->local, n->ratio, n->remote_ms, n->local_ms);
}

static void print_node(const char *name, const struct bench_kv_node *n)
{
    print_one(name, n->remote, "the node itself", n->local, n->ratio);
    printf("  %-28s %8.2f ms     %-24s %8.2f ms\n", "  one read of 16 blocks alone", n->remote_ms, "the node itself",
           n->local_ms);
}

static void json_rows(const struct bench_kv_rows *r)
{
    static const char *const name[] = {"mapped", "mapped_cold", "cached", "read"};
    const struct bench_kv_rows_one *one[] = {&r->mapped, &r->mapped_cold, &r->cached, &r->read};
    printf(",\"rows\":{\"fio_pages\":%.0f", r->fio);
    for (int i = 0; i < 4; i++)
        printf(",\"%s\":{\"token_us\":%.2f,\"rows\":%.0f}", name[i], one[i]->us, one[i]->many);
    putchar('}');
}

static void print_rows(const struct bench_kv_rows *r)
{
    static const char *const name[] = {"mapped, in memory", "mapped, not in memory", "row cache", "from the device"};
    const struct bench_kv_rows_one *one[] = {&r->mapped, &r->mapped_cold, &r->cached, &r->read};
    printf("rows of one table, %d per token, each of %d and of %d bytes at two places:\n", BENCH_ROWS_TOKEN,
           BENCH_ROWS_A, BENCH_ROWS_B);
    for (int i = 0; i < 4; i++)
        printf("  %-28s %8.1f us for one token alone   %8.3f million rows/s, %d tokens at a time\n", name[i],
               one[i]->us, one[i]->many * 1e-6, BENCH_ROWS_MANY);
    if (r->fio > 0)
        printf("  %-28s %8.3f million pages/s\n", "fio, 4 KiB, random places", r->fio * 1e-6);
}

static void print_all(const struct bench *b)
{
    if (options.json) {
        printf("{\"block_bytes\":%zu,\"blocks\":%d,\"ops\":%d,\"depth\":%d,\"device_read\":%.0f,\"device_memcpy\":%.0f,"
               "\"host_read\":%.0f,\"memcpy\":%.0f,"
               "\"ssd_write\":%.0f,\"ssd_first_write\":%.0f,\"fio_write\":%.0f,\"fio_first_write\":%.0f,\"ssd_read\":%."
               "0f,\"fio_replay\":%.0f,"
               "\"fio_random\":%.0f,"
               "\"replay_ratio\":%.3f,\"random_ratio\":%.3f,\"shared_write\":%.0f,\"shared_read\":%.0f,"
               "\"shared_fio_replay\":%.0f,\"shared_replay_ratio\":%.3f,",
               b->layout.block_bytes, options.blocks, options.ops, DEPTH, b->device_read, b->device_copy, b->host_read,
               b->copy, b->ssd_write, b->ssd_first_write, b->fio_write, b->fio_first_write, b->ssd.tier, b->ssd.replay,
               b->ssd.random, b->ssd.replay_ratio, b->ssd.random_ratio, b->shared_write, b->shared.tier,
               b->shared.replay, b->shared.replay_ratio);
        json_node("node_host", &b->host_node);
        putchar(',');
        json_node("node_ssd", &b->ssd_node);
        json_rows(&b->rows);
        puts("}");
        return;
    }
    printf("blocks of %zu bytes in four extents, %d of them, runs of %d, %d operations at a time, at most %d requests "
           "in the kernel;\n%d rounds, tier and fio in turn, medians; folder %s\n",
           b->layout.block_bytes, options.blocks, RUN, options.ops, DEPTH, options.rounds, options.path);
    print_one("device, pages copied out", b->device_read, "memcpy", b->device_copy, 0);
    print_one("host, read and verified", b->host_read, "memcpy", b->copy, 0);
    print_one("ssd, read and verified", b->ssd.tier, "fio, the same requests", b->ssd.replay, b->ssd.replay_ratio);
    print_one("", b->ssd.tier, "fio, random places", b->ssd.random, b->ssd.random_ratio);
    print_one("ssd, stored durably", b->ssd_write, "fio, writes, no flush", b->fio_write, 0);
    print_one("  in places never written", b->ssd_first_write, "fio, the same", b->fio_first_write, 0);
    print_one("shared, read and verified", b->shared.tier, "fio, the same requests", b->shared.replay,
              b->shared.replay_ratio);
    print_one("shared, stored durably", b->shared_write, "fio, places never written", b->fio_first_write, 0);
    printf("through a kv node, over tcp on 127.0.0.1:\n");
    print_node("its host tier", &b->host_node);
    print_node("its ssd tier", &b->ssd_node);
    print_rows(&b->rows);
}

static void clean_up(const struct bench *b)
{
    DIR *d = opendir(b->folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[1400];
        snprintf(path, sizeof path, "%s/%s", b->folder, e->d_name);
        unlink(path); /* not of the folder itself and the one above it */
    }
    if (d)
        closedir(d);
    rmdir(b->folder);
}

int cli_bench_kv_run(int argc, char **argv)
{
    const struct cli_option table[] = {
        {CLI_TEXT, "path", 'p', &options.path, "DIR", "folder on the device to measure; a folder is made in it"},
        {CLI_INT, "blocks", 'n', &options.blocks, "N",
         "blocks of the published model's size (236 KiB), in runs of 16: rounded up", 256, 4096},
        {CLI_INT, "ops", 0, &options.ops, "N", "reads or stores of 16 blocks at a time", 1, OPS_MAX},
        {CLI_INT, "rounds", 'r', &options.rounds, "N", "repetitions; the median counts", 1, ROUNDS_MAX},
        {CLI_DOUBLE, "seconds", 's', &options.seconds, "S",
         "how long each measurement of the tier and of fio takes, about", 1, 600},
        {CLI_INPUT, "trace", 0, &options.trace, "FILE",
         "measure nothing: replay a server's request trace (log.trace) against tiers of\nseveral sizes and times to "
         "live"},
        {CLI_PLOT, "plot", 0, &options.plot, "FILE", "with --trace: draw FILE.svg or FILE.png too (needs gnuplot)"},
        {CLI_FLAG, "json", 0, &options.json, NULL, "one JSON object instead of text"},
        {.kind = CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_NEEDS, "plot", "trace"},
        {CLI_ALLOWS, "trace", "plot", "it measures nothing"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .synopsis = "bench kv [OPTIONS]\nbench kv --trace FILE [--plot FILE]",
        .rules = rules,
        .intro = "Measures the device, host, ssd and shared tiers beside memcpy and fio (where it is "
                 "installed) on the same memory and file,\neach read through a kv node "
                 "beside the node's own reads, and rows of Engram tables.",
        .options = table};
    int r = cli_options_parse(&usage, argc, argv, NULL);
    struct bench b = {0};
    struct cfg_error err = {{0}};
    if (r != CLI_GO_ON)
        return r;
    if (options.trace)
        return cli_kv_trace_replay(options.trace, options.plot);
    options.blocks = (options.blocks + RUN - 1) / RUN * RUN;
    real_layout(&b.layout);
    b.pool_bytes = (size_t)POOL_RUNS * RUN * b.layout.block_bytes;
    b.pool = kv_memory_new(b.pool_bytes);
    b.node_pool_bytes = (size_t)BENCH_KV_NODE_BLOCKS * b.layout.block_bytes;
    b.node_pool = kv_memory_new(b.node_pool_bytes);
    snprintf(b.folder, sizeof b.folder, "%s/weft-bench-XXXXXX", options.path);
    if (!b.pool || !b.node_pool || !mkdtemp(b.folder)) {
        kv_memory_free(b.pool, b.pool_bytes);
        kv_memory_free(b.node_pool, b.node_pool_bytes);
        return cli_error(CLI_FAILED, "%s: %s", options.path, strerror(errno));
    }
    for (size_t i = 0; i < b.pool_bytes; i++)
        b.pool[i] = (uint8_t)(i * 2654435761u >> 13);
    r = kv_storage_uring_new(b.folder, DEPTH, &b.storage, &err);
    if (!r && (b.storage->ops->register_memory(b.storage, b.pool, b.pool_bytes) ||
               b.storage->ops->register_memory(b.storage, b.node_pool, b.node_pool_bytes)))
        fprintf(stderr, "weft: memory is not registered; raise the limit of locked memory (ulimit -l)\n");
    if (!r && !(b.recorder = bench_kv_recorder_new(b.storage)))
        r = -ENOMEM;
    if (!r)
        r = bench_device(&b, &err);
    if (!r)
        r = bench_host(&b, &err);
    if (!r)
        r = bench_ssd(&b, &err);
    if (!r)
        r = bench_shared(&b, &err);
    const struct bench_kv_rows_arg rows = {
        .storage = b.storage, .folder = b.folder, .rounds = options.rounds, .seconds = options.seconds, .depth = DEPTH};
    if (!r)
        r = bench_kv_rows(&rows, &b.rows, &err);
    if (!r)
        print_all(&b);
    kv_storage_free(b.recorder);
    kv_storage_free(b.storage);
    clean_up(&b);
    kv_memory_free(b.pool, b.pool_bytes);
    kv_memory_free(b.node_pool, b.node_pool_bytes);
    return r ? cli_error(CLI_FAILED, "%s", err.msg[0] ? err.msg : "out of memory") : CLI_OK;
}
