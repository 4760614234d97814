/* Single-pass manifold-constrained hyper-connections: how four residual streams are read, mixed and written. */
#include <math.h>

#include "model/modules.h"
#include "model/numerics.h"

enum { OUT = 24, CHUNK = 8 };

struct mhc_job {
    const struct mdl_exec *ex;
    const struct mdl_hc *hc;
    const uint16_t *x, *v;
    const int *idx;
    float *pre, *post, *comb;
    bool by_row;
    uint16_t *out;
};

static size_t row_of(const int *idx, int i)
{
    return idx ? (size_t)idx[i] : (size_t)i;
}

/* comb: softmax over destinations, then alternate column and row normalisation, ending on columns. */
static void sinkhorn(const struct mdl_config *cfg, float c[4][4])
{
    for (int i = 0; i < 4; i++) {
        float top = c[i][0], sum = 0.0f;
        for (int j = 1; j < 4; j++)
            top = c[i][j] > top ? c[i][j] : top;
        for (int j = 0; j < 4; j++)
            sum += c[i][j] = (float)mdl_exp((double)(c[i][j] - top));
        for (int j = 0; j < 4; j++)
            c[i][j] = c[i][j] / sum + cfg->hc_eps;
    }
    for (int it = 0; it < cfg->hc_sinkhorn_iters; it++) {
        for (int i = 0; it > 0 && i < 4; i++) {
            float sum = (c[i][0] + c[i][1] + c[i][2] + c[i][3]) + cfg->hc_eps;
            for (int j = 0; j < 4; j++)
                c[i][j] /= sum;
        }
        for (int j = 0; j < 4; j++) {
            float sum = (c[0][j] + c[1][j] + c[2][j] + c[3][j]) + cfg->hc_eps;
            for (int i = 0; i < 4; i++)
                c[i][j] /= sum;
        }
    }
}

static void mix_row(const struct mhc_job *j, const float *proj, size_t row, int i)
{
    const struct mdl_config *cfg = j->ex->cfg;
    const struct mdl_hc *hc = j->hc;
    double ms = j->ex->be->mean_square(j->x + row * MDL_HC * (size_t)cfg->hidden, MDL_HC * cfg->hidden);
    float inv = (float)(1.0 / sqrt(ms + (double)cfg->rms_eps)), m[OUT];
    for (int n = 0; n < OUT; n++)
        m[n] = proj[n] * inv;
    float c[4][4];
    for (int k = 0; k < 4; k++) {
        j->pre[i * 4 + k] = mdl_sigmoid(m[k] * hc->scale[0] + hc->base[k]) + cfg->hc_eps;
        j->post[i * 4 + k] = 2.0f * mdl_sigmoid(m[4 + k] * hc->scale[1] + hc->base[4 + k]);
        for (int d = 0; d < 4; d++)
            c[k][d] = m[8 + 4 * k + d] * hc->scale[2] + hc->base[8 + 4 * k + d];
    }
    sinkhorn(cfg, c);
    for (int k = 0; k < 16; k++)
        j->comb[i * 16 + k] = c[k / 4][k % 4];
}

static void mix_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct mhc_job *j = ctx;
    size_t width = MDL_HC * (size_t)j->ex->cfg->hidden;
    const struct mdl_linear fn = {.kind = MDL_W_F32, .n = OUT, .k = (int)width, .data = j->hc->fn};
    for (int i = begin; i < end;) {
        int n = 1;
        while (i + n < end && n < CHUNK && row_of(j->idx, i + n) == row_of(j->idx, i) + (size_t)n)
            n++;
        float proj[CHUNK * OUT];
        j->ex->be->linear(&fn, j->x + row_of(j->idx, i) * width, width, n, 0, OUT, proj, OUT);
        for (int r = 0; r < n; r++)
            mix_row(j, proj + r * OUT, row_of(j->idx, i + r), i + r);
        i += n;
    }
}

void mdl_mhc_mix(const struct mdl_exec *ex, const struct mdl_hc *hc, const uint16_t *x, const int *idx, int n,
                 float *pre, float *post, float *comb)
{
    struct mhc_job j = {.ex = ex, .hc = hc, .x = x, .idx = idx, .pre = pre, .post = post, .comb = comb};
    mdl_team_run(ex->team, n, CHUNK, mix_items, &j);
}

static void collapse_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct mhc_job *j = ctx;
    size_t d = (size_t)j->ex->cfg->hidden;
    for (int i = begin; i < end; i++) {
        size_t row = row_of(j->idx, i);
        const float *p = j->pre + (j->by_row ? row : (size_t)i) * 4;
        j->ex->be->collapse(j->x + row * MDL_HC * d, p, (int)d, j->out + (size_t)i * d);
    }
}

void mdl_mhc_collapse(const struct mdl_exec *ex, const uint16_t *x, const float *pre, bool by_row, const int *idx,
                      int n, uint16_t *u)
{
    struct mhc_job j = {.ex = ex, .x = x, .pre = (float *)pre, .by_row = by_row, .idx = idx, .out = u};
    mdl_team_run(ex->team, n, 4, collapse_items, &j);
}

static void expand_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct mhc_job *j = ctx;
    size_t d = (size_t)j->ex->cfg->hidden;
    for (int i = begin; i < end; i++)
        j->ex->be->expand(j->v + (size_t)i * d, j->post + i * 4, j->comb + i * 16, (int)d,
                          j->out + row_of(j->idx, i) * MDL_HC * d);
}

void mdl_mhc_expand(const struct mdl_exec *ex, const uint16_t *v, const float *post, const float *comb, const int *idx,
                    int n, uint16_t *x)
{
    struct mhc_job j = {.ex = ex, .v = v, .post = (float *)post, .comb = (float *)comb, .idx = idx, .out = x};
    mdl_team_run(ex->team, n, 4, expand_items, &j);
}
