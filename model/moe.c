/* Mixture of experts: router, one expert's arithmetic, and the local answer to an expert exchange. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <math.h>

#include "model/modules.h"
#include "model/numerics.h"

struct route_job {
    const struct mdl_exec *ex;
    const struct mdl_block *b;
    int k;
    const float *z;
    int32_t *expert;
    float *weight;
};

/* The k best of s + bias, ties to the lower id; ids ascending. */
static void route_row(const struct route_job *j, int row)
{
    int n = j->b->n_experts;
    const float *z = j->z + (size_t)row * (size_t)n;
    int32_t *id = j->expert + row * j->k;
    float *w = j->weight + row * j->k, best[MDL_MAX_TOPK];
    int have = 0;
    for (int e = 0; e < n; e++) {
        float biased = sqrtf(mdl_softplus(z[e])) + j->b->gate_bias[e];
        int at = have;
        while (at > 0 && biased > best[at - 1])
            at--;
        if (at == j->k)
            continue;
        int last = have < j->k ? have++ : j->k - 1;
        for (int i = last; i > at; i--) {
            best[i] = best[i - 1];
            id[i] = id[i - 1];
        }
        best[at] = biased;
        id[at] = e;
    }
    float sum = 0.0f;
    for (int i = 0; i < j->k; i++) {
        for (int m = i; m > 0 && id[m] < id[m - 1]; m--) {
            int32_t t = id[m];
            id[m] = id[m - 1];
            id[m - 1] = t;
        }
    }
    for (int i = 0; i < j->k; i++)
        sum += w[i] = sqrtf(mdl_softplus(z[id[i]]));
    for (int i = 0; i < j->k; i++)
        w[i] = (j->k > 1 ? w[i] / (sum + 1e-20f) : w[i]) * j->ex->cfg->route_scale;
}

static void route_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    for (int r = begin; r < end; r++)
        route_row(ctx, r);
}

void mdl_moe_route(const struct mdl_exec *ex, const struct mdl_block *b, const uint16_t *xin, int n, int k, float *z,
                   int32_t *expert, float *weight)
{
    mdl_linear_f32(ex, &b->gate, xin, (size_t)ex->cfg->hidden, n, z, (size_t)b->n_experts);
    mdl_team_run(ex->team, n, 4, route_items, &(struct route_job){ex, b, k, z, expert, weight});
}

struct act_job {
    const struct mdl_exec *ex;
    const uint16_t *a, *b;
    const float *weight;
    int inter;
    uint16_t *h;
};

static void act_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct act_job *j = ctx;
    const struct mdl_backend *be = j->ex->be;
    float limit = j->ex->cfg->swiglu_limit;
    for (int r = begin; r < end; r++) {
        size_t base = (size_t)r * (size_t)j->inter;
        be->swiglu(j->a + base, j->b + base, limit, j->weight ? j->weight[r] : 1.0f, j->inter, j->h + base);
        be->fakequant_q8(j->h + base, j->inter, j->h + base);
    }
}

int mdl_moe_expert(const struct mdl_exec *ex, const struct mdl_expert *e, const uint16_t *x, int n, const float *weight,
                   uint16_t *y)
{
    size_t inter = (size_t)e->w1.n, hidden = (size_t)ex->cfg->hidden;
    uint16_t *a = malloc(2 * (size_t)n * inter * sizeof *a);
    if (!a)
        return -ENOMEM;
    uint16_t *b = a + (size_t)n * inter;
    mdl_linear_bf16(ex, &e->w1, x, hidden, n, a, inter);
    mdl_linear_bf16(ex, &e->w3, x, hidden, n, b, inter);
    mdl_team_run(ex->team, n, 1, act_items, &(struct act_job){ex, a, b, weight, (int)inter, a});
    mdl_linear_bf16(ex, &e->w2, a, inter, n, y, hidden);
    free(a);
    return 0;
}

struct combine_job {
    size_t hidden, k;
    const uint16_t *result, *shared;
    uint16_t *out;
};

static void combine_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct combine_job *j = ctx;
    for (size_t i = (size_t)begin; i < (size_t)end; i++)
        for (size_t c = 0; c < j->hidden; c++) {
            float sum = 0.0f;
            for (size_t e = 0; e < j->k; e++)
                sum += mdl_from_bf16(j->result[(i * j->k + e) * j->hidden + c]);
            j->out[i * j->hidden + c] = mdl_to_bf16(sum + mdl_from_bf16(j->shared[i * j->hidden + c]));
        }
}

void mdl_moe_combine(const struct mdl_exec *ex, const uint16_t *result, const uint16_t *shared, int n, int k,
                     uint16_t *out)
{
    struct combine_job j = {(size_t)ex->cfg->hidden, (size_t)k, result, shared, out};
    mdl_team_run(ex->team, n, 4, combine_items, &j);
}

void mdl_exchange_deliver(struct mdl_exchange *x, int row, int slot, int hidden, const uint16_t *result)
{
    int at = row * x->k + slot;
    if (x->have[at])
        return;
    x->have[at] = 1;
    x->pending--;
    memcpy(x->result + (size_t)at * (size_t)hidden, result, (size_t)hidden * sizeof *result);
}

static int compute_one_expert(const struct mdl_model *m, struct mdl_exchange *x, const struct mdl_expert *e, int id,
                              int *at, uint16_t *in, uint16_t *out, float *weight)
{
    int hidden = m->cfg->hidden, n = 0;
    for (int i = 0; i < x->rows * x->k; i++) {
        if (x->expert[i] != id || x->have[i])
            continue;
        at[n] = i;
        weight[n] = x->weight[i];
        size_t row = (size_t)(i / x->k);
        mdl_dequant_q8(x->codes + row * (size_t)hidden, x->scales + row * (size_t)(hidden / 32), hidden,
                       in + (size_t)n * (size_t)hidden);
        n++;
    }
    int r = n ? mdl_moe_expert(&m->exec, e, in, n, weight, out) : 0;
    for (int i = 0; i < n && !r; i++)
        mdl_exchange_deliver(x, at[i] / x->k, at[i] % x->k, hidden, out + (size_t)i * (size_t)hidden);
    return r;
}

int mdl_experts_compute(const struct mdl_model *m, struct mdl_exchange *x, int first, int count)
{
    const struct mdl_block *b =
        x->layer < m->cfg->n_layers ? &m->ck->layers[x->layer] : &m->ck->draft[x->layer - m->cfg->n_layers];
    /* A row takes an expert at most once, so an expert never has more than rows entries. */
    size_t rows = (size_t)x->rows, hidden = (size_t)m->cfg->hidden;
    uint16_t *in = malloc(2 * rows * hidden * sizeof *in);
    int *at = malloc(rows * sizeof *at);
    float *weight = malloc(rows * sizeof *weight);
    uint8_t *used = calloc((size_t)b->n_experts, 1);
    int r = in && at && weight && used ? 0 : -ENOMEM;
    for (int i = 0; !r && i < x->rows * x->k; i++)
        if (!x->have[i])
            used[x->expert[i]] = 1;
    for (int e = first; !r && e < first + count && e < b->n_experts; e++)
        if (used[e])
            r = compute_one_expert(m, x, &b->experts[e], e, at, in, in + rows * hidden, weight);
    free(used);
    free(weight);
    free(at);
    free(in);
    return r;
}
