/* Which rows of the global KV a query attends to: exact top-k and the candidate blocks, ties to the lower index. */
#include <math.h>
#include <stdlib.h>

#include "model/modules.h"
#include "model/numerics.h"

/* Larger key = better: monotone image of the score, then the lower index. Both zeros are one score. */
static uint64_t order_key(float score, uint32_t index)
{
    uint32_t u = score == 0.0f ? 0 : mdl_bits(score);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (0xffffffffu - index);
}

/* Partially sorts so that the k largest keys come first (Hoare's selection; median of three keeps it from degrading on
 * ordered input). Keys are distinct, so the set that results does not depend on the pivots. */
static void keep_largest(uint64_t *a, int n, int k)
{
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        uint64_t x = a[lo], y = a[lo + (hi - lo) / 2], z = a[hi];
        uint64_t pivot = x < y ? (y < z ? y : (x < z ? z : x)) : (x < z ? x : (y < z ? z : y));
        int i = lo, j = hi;
        while (i <= j) {
            while (a[i] > pivot)
                i++;
            while (a[j] < pivot)
                j--;
            if (i <= j) {
                uint64_t t = a[i];
                a[i++] = a[j];
                a[j--] = t;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int mdl_select_topk(const float *score, int n, int k, uint64_t *order, int32_t *sel)
{
    int m = 0;
    for (int j = 0; j < n; j++)
        if (score[j] > -INFINITY)
            order[m++] = order_key(score[j], (uint32_t)j);
    if (m > k) {
        keep_largest(order, m, k);
        m = k;
    }
    for (int i = 0; i < m; i++)
        sel[i] = (int32_t)(0xffffffffu - (uint32_t)order[i]);
    qsort(sel, (size_t)m, sizeof *sel, ascending);
    return m;
}

int mdl_select_blocks(const float *score, int n, int block, int keep, float *block_score, uint64_t *order,
                      int32_t *blocks)
{
    if (n <= 0)
        return 0;
    int n_blocks = (n + block - 1) / block;
    for (int b = 0; b < n_blocks; b++) {
        int end = (b + 1) * block < n ? (b + 1) * block : n;
        float best = -INFINITY;
        for (int j = b * block; j < end; j++)
            best = score[j] > best ? score[j] : best;
        block_score[b] = best;
    }
    block_score[(n - 1) / block] = INFINITY;
    return mdl_select_topk(block_score, n_blocks, keep, order, blocks);
}

void mdl_select_restrict(float *score, int n, int block, const int32_t *blocks, int n_blocks)
{
    int next = 0;
    for (int b = 0; b * block < n; b++) {
        if (next < n_blocks && blocks[next] == b) {
            next++;
            continue;
        }
        int end = (b + 1) * block < n ? (b + 1) * block : n;
        for (int j = b * block; j < end; j++)
            score[j] = -INFINITY;
    }
}
