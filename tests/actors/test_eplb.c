/* Placement of experts: the published algorithm, moving little, hysteresis, the form that travels, and the choice of
 * a replica per token. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/eplb.h"
#include "tests/support/model.h"

static const struct act_shard_set nobody;

/* The example of the algorithm's description: 2 layers, 12 experts in 4 groups, 16 copies, 2 nodes, 8 shards. */
Test(eplb, published_example)
{
    static const float load[2][12] = {{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
                                      {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
    static const int32_t want[2][16] = {{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1},
                                        {7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}};
    const struct act_eplb_shape shape = {
        .layers = 2, .experts = 12, .copies = 16, .groups = 4, .nodes = 2, .shards = 8};
    int32_t got[2][16], count[2][12];
    cr_assert_eq(act_eplb_plan(&shape, &load[0][0], &got[0][0], &count[0][0]), 0);
    cr_assert_arr_eq(got, want, sizeof want);
    for (int l = 0; l < 2; l++)
        for (int e = 0; e < 12; e++) {
            int n = 0;
            for (int i = 0; i < 16; i++)
                n += got[l][i] == e;
            cr_assert_eq(count[l][e], n);
        }
}

Test(eplb, shapes_that_do_not_divide_are_refused)
{
    float load[12] = {0};
    int32_t out[24];
    const struct act_eplb_shape bad[] = {
        {1, 12, 15, 1, 1, 8}, {1, 12, 8, 1, 1, 8}, {1, 12, 16, 5, 1, 8}, {1, 12, 16, 4, 3, 8}, {0, 12, 16, 1, 1, 8},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(act_eplb_plan(&bad[i], load, out, NULL), -EINVAL, "shape %zu", i);
}

static void random_load(uint64_t *r, int n, float *load)
{
    for (int i = 0; i < n; i++)
        load[i] = (float)(ts_random(r, 1000) * (ts_random(r, 8) ? 1 : 20));
}

static double busiest(const int32_t *expert, const float *load, const int32_t *count, int shards, int each)
{
    double most = 0;
    for (int s = 0; s < shards; s++) {
        double sum = 0;
        for (int i = 0; i < each; i++)
            sum += (double)load[expert[s * each + i]] / count[expert[s * each + i]];
        most = sum > most ? sum : most;
    }
    return most;
}

Test(eplb, every_expert_has_a_copy_and_copies_make_the_busiest_shard_less_busy)
{
    uint64_t r = 1;
    for (int round = 0; round < 200; round++) {
        int shards = 1 << ts_random(&r, 5), nodes = 1 << ts_random(&r, 2), each = 1 + (int)ts_random(&r, 6);
        nodes = nodes < shards ? nodes : shards;
        int groups = nodes * (1 + (int)ts_random(&r, 3)), experts = groups * (1 + (int)ts_random(&r, 4));
        while (each * shards < experts)
            each++;
        const struct act_eplb_shape shape = {1, experts, each * shards, groups, nodes, shards};
        float load[512];
        int32_t expert[512], count[512];
        random_load(&r, experts, load);
        cr_assert_eq(act_eplb_plan(&shape, load, expert, count), 0);
        int sum = 0;
        double mean = 0, hottest = 0;
        for (int e = 0; e < experts; e++) {
            cr_assert_ge(count[e], 1);
            sum += count[e];
            mean += (double)load[e] / shards;
            hottest = (double)load[e] > hottest ? (double)load[e] : hottest;
        }
        cr_assert_eq(sum, each * shards);
        /* No worse than the bound of greedy packing: a mean and the heaviest thing that had to go somewhere, for one
         * node; nodes are packed by the same rule before. */
        double heaviest = 0;
        for (int e = 0; e < experts; e++) {
            double one = (double)load[e] / count[e];
            heaviest = one > heaviest ? one : heaviest;
        }
        if (nodes == 1 && each * shards > 2 * experts)
            cr_assert_le(busiest(expert, load, count, shards, each), mean + each * heaviest + 1e-3);
        cr_assert_le(heaviest, hottest);
        /* Hierarchical: a group's copies stay on one node. */
        for (int g = 0; g < groups; g++) {
            int node = -1;
            for (int i = 0; i < each * shards; i++) {
                if (expert[i] / (experts / groups) != g)
                    continue;
                int here = i / (each * shards / nodes);
                cr_assert(node < 0 || node == here, "group %d is on nodes %d and %d", g, node, here);
                node = here;
            }
        }
    }
}

static void check_placement(const struct act_map *p, const struct act_shard_set *gone)
{
    for (int l = 0; l < p->layers; l++) {
        for (int e = 0; e < p->experts; e++) {
            int n;
            const uint16_t *o = act_map_owners(p, l, e, &n);
            cr_assert_gt(n, 0, "layer %d: expert %d is nowhere", l, e);
            for (int i = 0; i < n; i++) {
                cr_assert(!act_shard_in(gone, o[i]), "layer %d: expert %d on shard %d, which is gone", l, e, o[i]);
                cr_assert(i == 0 || o[i] > o[i - 1]);
            }
        }
    }
}

/* Least number of experts to load, over every assignment of planned shards to real ones. */
static int least_moves(const struct act_map *before, const int32_t *expert, int shards, int slots)
{
    int order[6] = {0, 1, 2, 3, 4, 5}, best = 1 << 30, c[6] = {0};
    for (int i = 0;;) {
        int moves = 0;
        for (int s = 0; s < shards; s++)
            for (int k = 0; k < slots; k++) {
                int32_t e = expert[order[s] * slots + k];
                bool copy = false;
                for (int j = 0; j < k; j++)
                    copy |= expert[order[s] * slots + j] == e;
                moves += !copy && !act_map_holds(before, 0, s, e);
            }
        best = moves < best ? moves : best;
        while (i < shards && c[i] >= i) /* Heap's algorithm */
            c[i++] = 0;
        if (i >= shards)
            return best;
        int a = i % 2 ? c[i] : 0, t = order[a];
        order[a] = order[i];
        order[i] = t;
        c[i]++;
        i = 1;
    }
}

Test(eplb, a_new_plan_moves_less_than_renaming_shards_and_is_about_as_good)
{
    uint64_t r = 2;
    int least = 0, moves = 0;
    for (int round = 0; round < 100; round++) {
        int shards = 2 + (int)ts_random(&r, 4), experts = 4 + (int)ts_random(&r, 20);
        int slots = (experts + shards - 1) / shards + (int)ts_random(&r, 3);
        slots = slots < experts ? slots : experts;
        float load[64];
        int32_t expert[512];
        struct act_map *a, *b, *c, *plan;
        random_load(&r, experts, load);
        cr_assert_eq(act_eplb_place(2, 1, experts, shards, slots, &nobody, load, NULL, &a), 0);
        check_placement(a, &nobody);
        cr_assert_eq(act_eplb_place(3, 1, experts, shards, slots, &nobody, load, a, &b), 0);
        cr_assert_eq(act_eplb_moves(a, b), 0, "the same load moves nothing");
        cr_assert_arr_eq(a->slot, b->slot, (size_t)shards * (size_t)slots * sizeof *a->slot);
        for (int e = 0; e < experts; e++)
            load[e] = ts_random(&r, 4) ? load[e] : (float)ts_random(&r, 5000);
        cr_assert_eq(act_eplb_place(4, 1, experts, shards, slots, &nobody, load, b, &c), 0);
        check_placement(c, &nobody);
        const struct act_eplb_shape shape = {1, experts, slots * shards, 1, 1, shards};
        cr_assert_eq(act_eplb_plan(&shape, load, expert, NULL), 0);
        cr_assert_le(act_eplb_moves(b, c), least_moves(b, expert, shards, slots));
        cr_assert_eq(act_eplb_place(4, 1, experts, shards, slots, &nobody, load, NULL, &plan), 0);
        cr_assert_le(act_eplb_imbalance(c, &nobody, load), act_eplb_imbalance(plan, &nobody, load) * 1.031);
        least += least_moves(b, expert, shards, slots);
        moves += act_eplb_moves(b, c);
        act_map_free(plan);
        act_map_free(a);
        act_map_free(b);
        act_map_free(c);
    }
    cr_assert_lt(moves, least * 3 / 4, "%d experts loaded, renaming alone would have loaded %d", moves, least);
}

Test(eplb, a_shard_that_is_gone_leaves_its_experts_to_the_others)
{
    uint64_t r = 3;
    float load[3 * 24];
    struct act_map *a, *b;
    struct act_shard_set gone = nobody;
    random_load(&r, 3 * 24, load);
    cr_assert_eq(act_eplb_place(1, 3, 24, 4, 8, &gone, load, NULL, &a), 0);
    act_shard_add(&gone, 2);
    cr_assert_eq(act_eplb_place(2, 3, 24, 4, 8, &gone, load, a, &b), 0);
    check_placement(b, &gone);
    act_shard_add(&gone, 0);
    act_map_free(a);
    cr_assert_eq(act_eplb_place(3, 3, 24, 4, 8, &gone, load, b, &a), 0);
    check_placement(a, &gone);
    cr_assert_eq(a->slots, 12, "two shards hold what four did");
    act_map_free(b);
    cr_assert_eq(act_eplb_place(4, 3, 24, 4, 8, &nobody, load, a, &b), 0);
    check_placement(b, &nobody);
    cr_assert_eq(b->slots, 8, "and give it back");
    act_map_free(a);
    act_map_free(b);
    for (int s = 0; s < 4; s++)
        act_shard_add(&gone, s);
    cr_assert_eq(act_eplb_place(4, 3, 24, 4, 8, &gone, load, NULL, &a), -EHOSTDOWN);
}

Test(eplb, a_plan_that_gains_little_is_not_worth_loading)
{
    uint64_t r = 4;
    float load[2 * 32];
    struct act_map *even, *plan;
    for (int i = 0; i < 64; i++)
        load[i] = 100.0f + (float)ts_random(&r, 4);
    cr_assert_eq(act_map_even(1, 2, 32, 4, &even), 0);
    cr_assert_eq(act_eplb_place(2, 2, 32, 4, 10, &nobody, load, even, &plan), 0);
    cr_assert(!act_eplb_worth(even, plan, &nobody, load, 0.1));
    act_map_free(plan);
    for (int l = 0; l < 2; l++)
        for (int e = 0; e < 4; e++)
            load[l * 32 + e] = 2000.0f;
    cr_assert_eq(act_eplb_place(2, 2, 32, 4, 10, &nobody, load, even, &plan), 0);
    double before = act_eplb_imbalance(even, &nobody, load), after = act_eplb_imbalance(plan, &nobody, load);
    cr_assert_gt(before, 2.5, "%.3f", before);
    cr_assert_lt(after, 1.05, "%.3f", after);
    cr_assert(act_eplb_worth(even, plan, &nobody, load, 0.1));
    act_map_free(plan);
    act_map_free(even);
}

/* ---- placement ---- */

Test(expert_map, the_form_that_travels_comes_back_and_anything_else_is_refused)
{
    uint64_t r = 5;
    float load[2 * 12];
    struct act_map *a, *b;
    random_load(&r, 24, load);
    cr_assert_eq(act_eplb_place(7, 2, 12, 3, 6, &nobody, load, NULL, &a), 0);
    size_t n = act_map_bytes(a);
    uint8_t *bytes = malloc(n + 1);
    act_map_write(a, bytes);
    cr_assert_eq(act_map_read(bytes, n, &b), 0);
    cr_assert_eq(b->version, 7);
    cr_assert_arr_eq(a->slot, b->slot, (size_t)2 * 3 * 6 * sizeof *a->slot);
    act_map_free(b);
    for (size_t cut = 0; cut <= n + 1; cut++)
        if (cut != n)
            cr_assert_eq(act_map_read(bytes, cut, &b), -EBADMSG, "%zu bytes", cut);
    for (int round = 0; round < 20000; round++) {
        uint8_t *bad = malloc(n);
        memcpy(bad, bytes, n);
        for (int k = 0; k < 1 + (int)ts_random(&r, 3); k++)
            bad[ts_random(&r, (uint32_t)n)] = (uint8_t)ts_random(&r, 256);
        if (act_map_read(bad, n, &b) == 0) {
            check_placement(b, &nobody);
            act_map_free(b);
        }
        free(bad);
    }
    act_map_free(a);
    free(bytes);
}

/* Random rows of k different experts, hot ones more often. */
static void random_rows(uint64_t *r, int rows, int k, int experts, int32_t *out)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < k; j++) {
            int32_t e;
            bool again;
            do {
                uint32_t x = ts_random(r, 1 << 16);
                e = (int32_t)((uint64_t)x * x % 65536 * x / 65536 * (uint64_t)experts / 65536);
                again = false;
                for (int m = 0; m < j; m++)
                    again |= out[i * k + m] == e;
            } while (again);
            out[i * k + j] = e;
        }
}

Test(expert_map, tokens_are_spread_over_replicas_and_never_go_astray)
{
    enum { EXPERTS = 32, SHARDS = 8, K = 4, ROWS = 64 };
    uint64_t r = 6;
    int32_t expert[ROWS * K];
    int16_t shard[ROWS * K];
    float load[EXPERTS] = {0};
    struct act_map *p;
    for (int i = 0; i < 50; i++) {
        random_rows(&r, ROWS, K, EXPERTS, expert);
        for (int j = 0; j < ROWS * K; j++)
            load[expert[j]] += 1;
    }
    cr_assert_eq(act_eplb_place(1, 1, EXPERTS, SHARDS, 6, &nobody, load, NULL, &p), 0);
    double first = 0, chosen = 0;
    for (int round = 0; round < 50; round++) {
        int at_first[SHARDS] = {0}, at[SHARDS] = {0}, most_first = 0, most = 0;
        random_rows(&r, ROWS, K, EXPERTS, expert);
        cr_assert_eq(act_map_choose(p, 0, expert, ROWS, K, &nobody, false, (uint32_t)round, shard), 0);
        for (int i = 0; i < ROWS * K; i++) {
            int n;
            cr_assert(act_map_holds(p, 0, shard[i], expert[i]));
            at[shard[i]]++;
            at_first[act_map_owners(p, 0, expert[i], &n)[0]]++;
        }
        for (int s = 0; s < SHARDS; s++) {
            most = at[s] > most ? at[s] : most;
            most_first = at_first[s] > most_first ? at_first[s] : most_first;
        }
        first += most_first;
        chosen += most;
    }
    double mean = 50.0 * ROWS * K / SHARDS;
    cr_assert_lt(chosen / mean, 1.15, "busiest shard: %.3f of the mean", chosen / mean);
    cr_assert_gt(first / mean, chosen / mean + 0.3, "always the first replica: %.3f", first / mean);
    act_map_free(p);
}

Test(expert_map, a_shard_out_of_service_is_replaced_by_replicas_then_by_stand_ins_or_by_nobody)
{
    enum { EXPERTS = 16, SHARDS = 4, K = 2, ROWS = 16 };
    uint64_t r = 7;
    int32_t expert[ROWS * K];
    int16_t shard[ROWS * K], again[ROWS * K];
    struct act_map *p;
    struct act_shard_set out = nobody;
    cr_assert_eq(act_map_even(1, 1, EXPERTS, SHARDS, &p), 0);
    random_rows(&r, ROWS, K, EXPERTS, expert);
    act_shard_add(&out, 0);
    int lost = 0;
    for (int i = 0; i < ROWS * K; i++)
        lost += expert[i] < 4;
    cr_assert_gt(lost, 0);
    cr_assert_eq(act_map_choose(p, 0, expert, ROWS, K, &out, false, 0, shard), lost);
    for (int i = 0; i < ROWS * K; i++)
        cr_assert_eq(shard[i] == -1, expert[i] < 4);
    cr_assert_eq(act_map_choose(p, 0, expert, ROWS, K, &out, true, 0, shard), 0);
    cr_assert_eq(act_map_choose(p, 0, expert, ROWS, K, &out, true, 5, again), 0);
    for (int i = 0; i < ROWS * K; i++) {
        cr_assert_gt(shard[i], 0);
        cr_assert(expert[i] >= 4 || shard[i] == again[i], "sources agree on who stands in");
    }
    for (int s = 1; s < SHARDS; s++)
        act_shard_add(&out, s);
    cr_assert_eq(act_map_choose(p, 0, expert, ROWS, K, &out, true, 0, shard), ROWS * K);
    act_map_free(p);
}
