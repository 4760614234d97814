/* Bytes as files of the durable tiers: the index of an ssd folder, a sealed segment and drops of a shared one. Whatever
 * they hold, the tiers open, and what they deliver has passed its checksum. Once as they are, and once with the
 * checksums of their pages made right, so that what is behind these is reached too. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kvtiers/bytes.h"
#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"
#include "kvtiers/storage_sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 20 };

static int64_t still(void *ctx)
{
    (void)ctx;
    return 1000000;
}

static void write_file(struct kv_storage *s, const char *name, const uint8_t *data, size_t size)
{
    struct kv_io io = {.op = KV_IO_OPEN, .path = name, .flags = KV_OPEN_WRITE | KV_OPEN_CREATE};
    int64_t f = kv_io_run(s, &io);
    io = (struct kv_io){.op = KV_IO_WRITE, .file = (int)f, .bytes = (void *)(uintptr_t)data, .len = size};
    if (f >= 0 && size)
        kv_io_run(s, &io);
    io = (struct kv_io){.op = KV_IO_CLOSE, .file = (int)f};
    if (f >= 0)
        kv_io_run(s, &io);
}

static void on_done(struct kv_tier_op *op)
{
    *(int *)op->ctx = 1;
}

struct first {
    struct kv_key key;
    int n;
};

static void on_key(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s)
{
    struct first *f = ctx;
    (void)info;
    (void)age_s;
    if (!f->n++)
        f->key = *key;
}

static void use(struct kv_tier *t, struct kv_storage *s, const struct kv_layout *l)
{
    struct first first = {.n = 0};
    for (int i = 0; i < 16; i++) {
        t->ops->tick(t);
        while (s->ops->poll(s))
            ;
    }
    t->ops->each(t, on_key, &first);
    if (first.n) {
        int done = 0;
        struct kv_tier_block block = {.key = first.key, .bytes = aligned_alloc(KV_PAGE, l->block_bytes)};
        struct kv_tier_op op = {.block = &block, .n = 1, .done = on_done, .ctx = &done};
        t->ops->read(t, &op);
        while (!done && s->ops->poll(s))
            ;
        free(block.bytes);
    }
    t->ops->free(t);
}

static void serve(const uint8_t *data, size_t size)
{
    static const size_t bytes[] = {8192, 4096};
    const struct kv_clock clock = {still, still, NULL};
    struct kv_layout l;
    struct cfg_error err;
    struct kv_tier *t;
    struct kv_disk *disk = kv_disk_new(1);
    struct kv_storage *s = disk ? kv_storage_sim_new(disk) : NULL;
    if (s && !kv_layout_init(KV_FORMAT_ROWS, 256, bytes, 2, &l, &err)) {
        const struct kv_ssd_params ssd = {.storage = s,
                                          .folder = "f",
                                          .layout = l,
                                          .bytes = 64 * (int64_t)l.block_bytes,
                                          .direct = true,
                                          .clock = clock};
        const struct kv_shared_params shared = {.storage = s,
                                                .folder = "f",
                                                .node = "b",
                                                .layout = l,
                                                .bytes = 1 << 30,
                                                .segment_bytes = 1 << 20,
                                                .seal_ns = 1,
                                                .poll_ns = INT64_MAX / 2,
                                                .orphan_ns = INT64_MAX / 2,
                                                .clock = clock};
        write_file(s, "weft-kv.index", data, size);
        write_file(s, "seg-a-0000000000000001-00000000", data, size);
        write_file(s, "drop-a-0000000000000001-00000001", data, size);
        if (!kv_ssd_new(&ssd, &t, &err))
            use(t, s, &l);
        if (!kv_shared_new(&shared, &t, &err))
            use(t, s, &l);
    }
    if (s)
        kv_storage_free(s);
    kv_disk_free(disk);
}

/* The checksum at the end of each page; those of a segment are seeded with its number, which is in its last. */
static void repair(uint8_t *bytes, size_t size)
{
    const uint64_t segment = size >= KV_PAGE ? kv_get_uint(bytes + size / KV_PAGE * KV_PAGE - KV_PAGE + 16, 8) : 0;
    for (size_t at = 0; at + KV_PAGE <= size; at += KV_PAGE) {
        uint8_t *p = bytes + at;
        bool sealed = !memcmp(p, "WEFTKVSI", 8) || !memcmp(p, "WEFTKVSE", 8);
        if (!memcmp(p, "WEFTKV", 6))
            kv_put_uint(p + KV_PAGE - 8, XXH3_64bits_withSeed(p, KV_PAGE - 8, sealed ? segment : 0), 8);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = size && size <= MOST ? malloc(size) : NULL;
    if (size > MOST)
        return 0;
    serve(data, size);
    if (copy) {
        memcpy(copy, data, size);
        repair(copy, size);
        serve(copy, size);
    }
    free(copy);
    return 0;
}
