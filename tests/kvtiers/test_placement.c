/* Placement of blocks on nodes, as properties over many keys. */
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

#include "kvtiers/placement.h"

enum { KEYS = 20000, NODES = 8 };

static struct kv_key key_of(int i)
{
    struct kv_key root, key;
    kv_key_root(&(struct kv_identity){.block_tokens = 2, .numerics = "test"}, &root);
    kv_key_extend(&root, &(int32_t){i}, 1, &key);
    return key;
}

static void make_ids(uint64_t *id, int n)
{
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "kv-%d", i);
        id[i] = kv_place_id(name);
    }
}

static const bool all[NODES] = {true, true, true, true, true, true, true, true};

Test(placement, every_node_gets_its_share)
{
    uint64_t id[NODES];
    make_ids(id, NODES);
    for (int n = 1; n <= NODES; n++) {
        int has[NODES] = {0};
        for (int i = 0; i < KEYS; i++) {
            struct kv_key key = key_of(i);
            int at = kv_place(&key, id, all, n);
            cr_assert(at >= 0 && at < n);
            has[at]++;
        }
        /* More than ten standard deviations of a fair draw. */
        for (int i = 0; i < n; i++)
            cr_assert(has[i] > KEYS / n * 4 / 5 && has[i] < KEYS / n * 6 / 5 + 1, "%d nodes: node %d has %d of %d", n,
                      i, has[i], KEYS);
    }
}

/* A node that leaves takes nobody else's blocks along; what it had is spread over all others; when it is back, all is
 * as it was. A node that joins is the same, seen from the other side. */
Test(placement, only_the_blocks_of_a_node_that_leaves_move)
{
    uint64_t id[NODES];
    make_ids(id, NODES);
    for (int gone = 0; gone < NODES; gone++) {
        bool there[NODES];
        int moved = 0, got[NODES] = {0};
        memcpy(there, all, sizeof there);
        there[gone] = false;
        for (int i = 0; i < KEYS; i++) {
            struct kv_key key = key_of(i);
            int before = kv_place(&key, id, all, NODES), after = kv_place(&key, id, there, NODES);
            cr_assert_neq(after, gone);
            if (before != gone) {
                cr_assert_eq(after, before, "key %d moved from %d to %d when %d left", i, before, after, gone);
                continue;
            }
            moved++;
            got[after]++;
        }
        for (int i = 0; i < NODES; i++)
            cr_assert(i == gone || (got[i] > moved / 14 && got[i] < moved / 4), "node %d took %d of %d", i, got[i],
                      moved);
    }
}

/* Nodes are known by name: a list in another order, or with another node in the middle, places blocks alike. */
Test(placement, the_order_of_the_list_does_not_matter)
{
    uint64_t id[NODES], turned[NODES];
    make_ids(id, NODES);
    for (int i = 0; i < NODES; i++)
        turned[i] = id[(i * 3 + 5) % NODES];
    for (int i = 0; i < KEYS; i++) {
        struct kv_key key = key_of(i);
        cr_assert_eq(id[kv_place(&key, id, all, NODES)], turned[kv_place(&key, turned, all, NODES)]);
    }
}

Test(placement, nobody_is_there)
{
    uint64_t id[2];
    bool there[2] = {false, false};
    struct kv_key key = key_of(1);
    make_ids(id, 2);
    cr_assert_eq(kv_place(&key, id, there, 2), -1);
    cr_assert_eq(kv_place(&key, id, there, 0), -1);
    there[1] = true;
    cr_assert_eq(kv_place(&key, id, there, 2), 1);
}
