/* The device tier against a plain model of what it must do. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "kvtiers/device.h"
#include "kvtiers/extent.h"

static struct kv_device *new_device(int pages, size_t snapshots)
{
    struct kv_device *d;
    struct cfg_error err;
    cr_assert_eq(kv_device_new(pages, 4096, snapshots, &d, &err), 0, "%s", err.msg);
    return d;
}

static struct kv_key key_of(int n)
{
    struct kv_key root, key;
    const int32_t id = n;
    kv_key_root(&(struct kv_identity){.revision = 7, .format = KV_FORMAT_ROWS, .block_tokens = 256, .numerics = "test"},
                &root);
    kv_key_extend(&root, &id, 1, &key);
    return key;
}

Test(device, pages_come_back)
{
    struct kv_device *d = new_device(4, 0);
    int p[4];
    cr_assert_eq(kv_device_take(d, 4, p), 0);
    cr_assert_eq(kv_device_take(d, 1, p), -28, "a full tier has no page");
    for (int i = 0; i < 4; i++)
        kv_device_release(d, p[i]);
    cr_assert_eq(kv_device_available(d), 4);
    cr_assert_eq(kv_device_take(d, 5, p), -28, "all or none");
    cr_assert_eq(kv_device_available(d), 4);
    kv_device_free(d);
}

/* Whoever writes to a finished block is found out: when it is looked for, when its page goes, and when all are
 * verified. */
Test(device, a_canary_sees_a_finished_block_that_changes)
{
    struct kv_device *d = new_device(4, 1 << 16);
    struct kv_block_info clean = {KV_CLEAN, 0}, got;
    struct kv_device_stats s;
    size_t len;
    int p[4], again[4];
    cr_assert_eq(kv_device_canary(d), 0);
    kv_device_take(d, 4, p);
    for (int i = 0; i < 4; i++) {
        struct kv_key key = key_of(i);
        memset(kv_device_bytes(d, p[i]), i, 4096);
        cr_assert(kv_device_publish(d, p[i], &key, &clean));
        kv_device_release(d, p[i]);
    }
    for (int i = 0; i < 3; i++)
        kv_device_bytes(d, p[i])[4095 * i / 2] ^= 1;
    struct kv_key changed = key_of(1), good = key_of(3);
    cr_assert_eq(kv_device_find(d, &changed, &got), -1, "it is not delivered");
    cr_assert_eq(kv_device_find(d, &changed, &got), -1);
    cr_assert_eq(kv_device_find(d, &good, &got), p[3]);
    kv_device_release(d, p[3]);
    kv_device_stat(d, &s);
    cr_assert_eq(s.changed, 1u, "counted once");
    cr_assert_eq(kv_device_take(d, 2, again), 0, "one that was free, and the oldest");
    kv_device_stat(d, &s);
    cr_assert_eq(s.changed, 2u);
    cr_assert_eq(kv_device_canary_check(d), 1);
    cr_assert_eq(kv_device_canary_check(d), 0);
    cr_assert_eq(kv_device_available(d), 2, "no page is lost");
    cr_assert_eq(kv_device_snapshot_put(d, &good, &clean, "rows", 4), 0);
    *(char *)(uintptr_t)kv_device_snapshot_get(d, &good, &got, &len) = 'R';
    cr_assert_null(kv_device_snapshot_get(d, &good, &got, &len));
    kv_device_stat(d, &s);
    cr_assert_eq(s.changed, 4u);
    cr_assert_eq(s.snapshot_bytes, 0u);
    kv_device_free(d);
}

Test(device, finished_blocks_are_found_and_shared)
{
    struct kv_device *d = new_device(4, 0);
    struct kv_block_info info = {KV_TAINTED, 12}, got;
    struct kv_key key = key_of(1), other = key_of(2);
    int p[2];
    kv_device_take(d, 2, p);
    memset(kv_device_bytes(d, p[0]), 0x5a, 4096);
    cr_assert(kv_device_publish(d, p[0], &key, &info));
    cr_assert_not(kv_device_publish(d, p[1], &key, &info), "a second block under one key");
    cr_assert_eq(kv_device_find(d, &other, &got), -1);
    kv_device_release(d, p[0]);
    int found = kv_device_find(d, &key, &got);
    cr_assert_eq(found, p[0]);
    cr_assert_eq(got.taint, KV_TAINTED);
    cr_assert_eq(got.hit, 12);
    cr_assert_eq(kv_device_bytes(d, found)[4095], 0x5a);
    kv_device_release(d, found);
    kv_device_drop(d, &key);
    cr_assert_eq(kv_device_find(d, &key, &got), -1);
    kv_device_release(d, p[1]);
    cr_assert_eq(kv_device_available(d), 4);
    kv_device_free(d);
}

Test(device, the_oldest_unused_block_is_evicted)
{
    struct kv_device *d = new_device(3, 0);
    struct kv_block_info info = {0}, got;
    struct kv_key key[3] = {key_of(0), key_of(1), key_of(2)};
    int p[3], q;
    kv_device_take(d, 3, p);
    for (int i = 0; i < 3; i++)
        kv_device_publish(d, p[i], &key[i], &info);
    for (int i = 0; i < 3; i++)
        kv_device_release(d, p[i]);
    q = kv_device_find(d, &key[0], &got); /* a use makes it young */
    kv_device_release(d, q);
    kv_device_take(d, 1, &q);
    cr_assert_eq(q, p[1]);
    cr_assert_eq(kv_device_find(d, &key[1], &got), -1);
    cr_assert_eq(kv_device_find(d, &key[0], &got), p[0]);
    kv_device_free(d);
}

Test(device, how_long_blocks_live_is_counted)
{
    static const int64_t second = 1000000000;
    struct kv_device *d = new_device(2, 0);
    struct kv_block_info info = {0}, got;
    struct kv_key key = key_of(0);
    const struct kv_life_times *t = kv_device_lives(d);
    int p[2];
    kv_device_clock(d, 10 * second);
    kv_device_take(d, 2, p);
    kv_device_publish(d, p[0], &key, &info);
    kv_device_release(d, p[0]);
    kv_device_release(d, p[1]);
    kv_device_clock(d, 13 * second);
    cr_assert_eq(kv_device_find(d, &key, &got), p[0]); /* 3 s behind its last use */
    kv_device_clock(d, 14 * second);
    kv_device_release(d, p[0]);
    kv_device_clock(d, 34 * second);
    kv_device_take(d, 2, p); /* 24 s old, idle for 20 */
    cr_assert_eq(t[KV_LIFE_GAP].count, 1);
    cr_assert_eq(t[KV_LIFE_GAP].sum_ns, 3 * second);
    cr_assert_eq(t[KV_LIFE_GAP].bucket[2], 1, "more than 1 s and at most 5");
    cr_assert_eq(t[KV_LIFE_WHOLE].count, 1);
    cr_assert_eq(t[KV_LIFE_WHOLE].sum_ns, 24 * second);
    cr_assert_eq(t[KV_LIFE_IDLE].count, 1);
    cr_assert_eq(t[KV_LIFE_IDLE].sum_ns, 20 * second);
    kv_device_free(d);
}

/* Random operations; a table beside the tier says what each key and page must be. */
Test(device, agrees_with_a_model)
{
    enum { PAGES = 16, KEYS = 40 };
    struct kv_device *d = new_device(PAGES, 0);
    int held[PAGES] = {0}, key_page[KEYS];
    memset(key_page, -1, sizeof key_page);
    srand(1);
    for (int step = 0; step < 20000; step++) {
        struct kv_block_info info = {0};
        int k = rand() % KEYS, page = rand() % PAGES, op = rand() % 4;
        struct kv_key key = key_of(k);
        if (op == 0 && kv_device_available(d)) {
            int free_before = kv_device_available(d), p;
            cr_assert_eq(kv_device_take(d, 1, &p), 0);
            cr_assert_eq(held[p], 0, "a held page was handed out");
            cr_assert_eq(kv_device_available(d), free_before - 1);
            held[p] = 1;
            for (int i = 0; i < KEYS; i++)
                if (key_page[i] == p)
                    key_page[i] = -1; /* evicted */
        } else if (op == 1 && held[page]) {
            held[page]--;
            kv_device_release(d, page);
        } else if (op == 2 && held[page]) {
            bool has_key = false;
            for (int i = 0; i < KEYS; i++)
                has_key |= key_page[i] == page;
            cr_assert_eq(kv_device_publish(d, page, &key, &info), !has_key && key_page[k] < 0);
            if (!has_key && key_page[k] < 0)
                key_page[k] = page;
        } else if (op == 3) {
            int p = kv_device_find(d, &key, &info);
            cr_assert_eq(p, key_page[k]);
            if (p >= 0)
                held[p]++;
        }
        int used = 0;
        for (int i = 0; i < PAGES; i++)
            used += held[i] > 0;
        cr_assert_eq(kv_device_available(d), PAGES - used);
    }
    kv_device_free(d);
}

Test(device, snapshots_keep_to_their_budget)
{
    struct kv_device *d = new_device(1, 300);
    struct kv_key a = key_of(1), b = key_of(2), c = key_of(3);
    struct kv_block_info clean = {0}, tainted = {KV_TAINTED, 4}, got;
    char bytes[400] = "first";
    size_t len;
    cr_assert_eq(kv_device_snapshot_put(d, &a, &tainted, bytes, 100), 0);
    strcpy(bytes, "clean");
    cr_assert_eq(kv_device_snapshot_put(d, &a, &clean, bytes, 100), 0);
    cr_assert_str_eq(kv_device_snapshot_get(d, &a, &got, &len), "clean", "clean replaces tainted");
    strcpy(bytes, "late");
    cr_assert_eq(kv_device_snapshot_put(d, &a, &tainted, bytes, 100), 0);
    cr_assert_str_eq(kv_device_snapshot_get(d, &a, &got, &len), "clean", "tainted leaves clean in place");
    cr_assert_eq(got.taint, KV_CLEAN);
    cr_assert_eq(len, 100u);
    cr_assert_eq(kv_device_snapshot_put(d, &b, &clean, bytes, 200), 0);
    cr_assert_not_null(kv_device_snapshot_get(d, &a, &got, &len));
    cr_assert_eq(kv_device_snapshot_put(d, &c, &clean, bytes, 100), 0);
    cr_assert_null(kv_device_snapshot_get(d, &b, &got, &len), "least recently used goes first");
    cr_assert_not_null(kv_device_snapshot_get(d, &a, &got, &len));
    cr_assert_eq(kv_device_snapshot_put(d, &b, &clean, bytes, 301), -28);
    kv_device_free(d);
}

/* Virtual time: each lives as long as it is used, to the nanosecond, and its memory goes when it ends. */
Test(device, snapshots_live_for_minutes_after_their_last_use)
{
    const int64_t ttl = 900 * INT64_C(1000000000);
    struct kv_device *d = new_device(1, 300);
    struct kv_key a = key_of(1), b = key_of(2), c = key_of(3);
    struct kv_block_info clean = {0}, got;
    struct kv_device_stats s;
    char bytes[100] = "rows";
    size_t len;
    kv_device_ttl(d, 0, ttl);
    kv_device_clock(d, 5);
    cr_assert_eq(kv_device_snapshot_put(d, &a, &clean, bytes, 100), 0);
    cr_assert_eq(kv_device_snapshot_put(d, &b, &clean, bytes, 100), 0);
    kv_device_clock(d, 5 + ttl);
    cr_assert_str_eq(kv_device_snapshot_get(d, &a, &got, &len), "rows", "to its last nanosecond");
    cr_assert_eq(kv_device_snapshot_put(d, &c, &clean, bytes, 100), 0);
    kv_device_clock(d, 6 + ttl);
    kv_device_stat(d, &s);
    cr_assert_eq(s.snapshots, 2, "memory goes without anybody asking");
    cr_assert_eq(s.snapshot_bytes, 200u);
    cr_assert_eq(s.snapshots_expired, 1u);
    cr_assert_null(kv_device_snapshot_get(d, &b, &got, &len));
    cr_assert_eq(kv_device_snapshot_put(d, &c, &clean, bytes, 100), 0);
    kv_device_clock(d, 5 + 2 * ttl);
    cr_assert_not_null(kv_device_snapshot_get(d, &a, &got, &len), "its last use counts");
    kv_device_clock(d, 6 + 2 * ttl);
    cr_assert_not_null(kv_device_snapshot_get(d, &c, &got, &len), "and being stored once more does");
    kv_device_clock(d, 7 + 3 * ttl);
    kv_device_stat(d, &s);
    cr_assert_eq(s.snapshots, 0);
    cr_assert_eq(s.snapshot_bytes, 0u);
    cr_assert_eq(s.snapshots_expired, 3u);
    kv_device_ttl(d, 0, 0);
    cr_assert_eq(kv_device_snapshot_put(d, &a, &clean, bytes, 100), 0);
    kv_device_clock(d, 1000 * ttl);
    cr_assert_not_null(kv_device_snapshot_get(d, &a, &got, &len), "no time to live: no end");
    kv_device_free(d);
}

Test(device, finished_blocks_end_with_their_time_to_live)
{
    const int64_t ttl = 72 * 3600 * INT64_C(1000000000);
    struct kv_device *d = new_device(2, 0);
    struct kv_key a = key_of(1);
    struct kv_block_info clean = {0}, got;
    struct kv_device_stats s;
    int page, again;
    kv_device_ttl(d, ttl, 1);
    kv_device_clock(d, 7);
    cr_assert_eq(kv_device_take(d, 1, &page), 0);
    cr_assert(kv_device_publish(d, page, &a, &clean));
    kv_device_clock(d, 7 + ttl);
    cr_assert_eq(kv_device_find(d, &a, &got), page);
    kv_device_clock(d, 8 + ttl);
    cr_assert_eq(kv_device_find(d, &a, &got), -1, "use does not make rows younger");
    kv_device_stat(d, &s);
    cr_assert_eq(s.expired, 1u);
    cr_assert_eq(s.held, 1, "who has the page keeps it");
    cr_assert_eq(kv_device_take(d, 1, &again), 0);
    cr_assert(kv_device_publish(d, again, &a, &clean), "it may be computed again");
    cr_assert_eq(kv_device_find(d, &a, &got), again);
    kv_device_release(d, again);
    kv_device_release(d, again);
    kv_device_release(d, page);
    kv_device_release(d, page);
    kv_device_stat(d, &s);
    cr_assert_eq(s.held, 0);
    cr_assert_eq(s.free, 1);
    cr_assert_eq(s.cached, 1);
    kv_device_free(d);
}

Test(key, every_ingredient_counts)
{
    const int32_t ids[] = {5, 6, 7};
    const struct kv_identity base = {
        .revision = 1, .format = 1, .block_tokens = 256, .numerics = "cpu/scalar", .salt = "", .salt_len = 0};
    struct kv_identity v[7] = {base, base, base, base, base, base, base};
    v[1].revision = 2;
    v[2].format = 2;
    v[3].block_tokens = 128;
    v[4].numerics = "cpu/avx512";
    v[5].salt = "tenant";
    v[5].salt_len = 6;
    v[6].salt = "somebo";
    v[6].salt_len = 6;
    struct kv_key root[7], a, b;
    for (int i = 0; i < 7; i++) {
        kv_key_root(&v[i], &root[i]);
        for (int j = 0; j < i; j++)
            cr_assert_neq(memcmp(&root[i], &root[j], sizeof a), 0, "identities %d and %d share a root", i, j);
    }
    kv_key_extend(&root[0], ids, 3, &a);
    kv_key_extend(&root[0], ids, 2, &b);
    cr_assert_neq(memcmp(&a, &b, sizeof a), 0);
    kv_key_extend(&root[0], ids, 3, &b);
    cr_assert_eq(memcmp(&a, &b, sizeof a), 0);
    struct kv_key name[5];
    kv_key_block(&a, &name[0]);
    kv_key_behind(&a, 512, 140, &name[1]);
    kv_key_behind(&a, 256, 140, &name[2]);
    kv_key_behind(&a, 512, 128, &name[3]);
    kv_key_behind(&root[0], 512, 140, &name[4]);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            cr_assert_neq(memcmp(&name[i], &name[j], sizeof a), 0, "blocks %d and %d share a name", i, j);
    kv_key_behind(&a, 512, 140, &b);
    cr_assert_eq(memcmp(&b, &name[1], sizeof b), 0);
}

/* Sums of extents are bound to the block's name, the source and the use of the place. */
Test(extent, every_ingredient_of_a_sum_counts)
{
    const struct kv_key key = {{1}}, other = {{2}};
    const uint8_t bytes[64] = {3}, changed[64] = {4};
    uint64_t sum = kv_extent_sum(&key, 1, 5, bytes, sizeof bytes);
    cr_assert_eq(kv_extent_sum(&key, 1, 5, bytes, sizeof bytes), sum);
    cr_assert_neq(kv_extent_sum(&other, 1, 5, bytes, sizeof bytes), sum);
    cr_assert_neq(kv_extent_sum(&key, 2, 5, bytes, sizeof bytes), sum);
    cr_assert_neq(kv_extent_sum(&key, 1, 6, bytes, sizeof bytes), sum);
    cr_assert_neq(kv_extent_sum(&key, 1, 5, changed, sizeof bytes), sum);
    cr_assert_neq(kv_extent_sum(&key, 1, 5, bytes, sizeof bytes - 1), sum);
}
