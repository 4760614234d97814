/* Engram: n-gram hashing, table rows, and the gate that adds them to the streams. */
#include <math.h>
#include <string.h>

#include "model/modules.h"
#include "model/numerics.h"

void mdl_engram_rows(const struct mdl_config *cfg, const struct mdl_engram *e, const int32_t *map,
                     const int32_t *history, int64_t *row_ids)
{
    int64_t pad = map[cfg->engram_pad_id], hash = map[history[0]] * e->multipliers[0], offset = 0;
    for (int s = 1; s < cfg->engram_ngram; s++) {
        hash ^= (history[s] < 0 ? pad : map[history[s]]) * e->multipliers[s];
        for (int h = 0; h < cfg->engram_heads; h++) {
            int64_t prime = e->primes[(s - 1) * cfg->engram_heads + h];
            *row_ids++ = offset + hash % prime;
            offset += prime;
        }
    }
}

void mdl_engram_deliver(struct mdl_engram_fetch *f, int row, int column, int dim, const uint8_t *codes,
                        const uint8_t *scales)
{
    int at = row * f->columns + column;
    if (f->have[at])
        return;
    f->have[at] = 1;
    f->pending--;
    memcpy(f->codes + (size_t)at * (size_t)dim, codes, (size_t)dim);
    memcpy(f->scales + (size_t)at * (size_t)(dim / 32), scales, (size_t)(dim / 32));
}

struct gate_job {
    const struct mdl_exec *ex;
    const struct mdl_engram *e;
    const int *idx;
    const uint16_t *kv;
    float *dot, *gate;
    uint16_t *x;
};

static void gate_row(const struct gate_job *j, int i)
{
    const struct mdl_config *cfg = j->ex->cfg;
    int d = cfg->hidden;
    const uint16_t *kv = j->kv + (size_t)i * 5 * (size_t)d, *value = kv + 4 * (size_t)d;
    uint16_t *x = j->x + (size_t)(j->idx ? j->idx[i] : i) * MDL_HC * (size_t)d;
    for (int c = 0; c < 4; c++, x += d, kv += d) {
        const uint16_t *qw = j->e->q_weight + (size_t)c * (size_t)d, *kw = j->e->k_weight + (size_t)c * (size_t)d;
        float rs = (float)(1.0 / sqrt(j->ex->be->mean_square(x, d) + (double)cfg->rms_eps)) *
                   (float)(1.0 / sqrt(j->ex->be->mean_square(kv, d) + (double)cfg->rms_eps));
        double sum[8] = {0};
        for (int k = 0; k < d; k++) {
            float w = mdl_from_bf16(qw[k]) * mdl_from_bf16(kw[k]);
            sum[k & 7] += (double)(mdl_from_bf16(x[k]) * w) * (double)mdl_from_bf16(kv[k]);
        }
        double total = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
        float dot = (float)total * rs * (float)(1.0 / sqrt((double)d));
        float gate = mdl_sigmoid(copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot));
        if (j->dot)
            j->dot[i * 4 + c] = dot;
        if (j->gate)
            j->gate[i * 4 + c] = gate;
        for (int k = 0; k < d; k++)
            x[k] = mdl_to_bf16(mdl_from_bf16(x[k]) + gate * mdl_from_bf16(value[k]));
    }
}

static void gate_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    for (int i = begin; i < end; i++)
        gate_row(ctx, i);
}

void mdl_engram_apply(const struct mdl_exec *ex, const struct mdl_engram *e, const uint16_t *values, const int *idx,
                      int n, uint16_t *quantised, uint16_t *kv, float *dot, float *gate, uint16_t *x)
{
    size_t width = (size_t)e->wkv.k;
    mdl_fakequant_q8_rows(ex, values, width, e->wkv.k, n, quantised, width);
    mdl_linear_bf16(ex, &e->wkv, quantised, width, n, kv, (size_t)e->wkv.n);
    mdl_team_run(ex->team, n, 1, gate_items, &(struct gate_job){ex, e, idx, kv, dot, gate, x});
}
