#include "model/draft.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/modules.h"
#include "model/numerics.h"

int mdl_draft_add(struct mdl_step *step, struct mdl_seq *seq, int32_t token, struct cfg_error *err)
{
    const struct mdl_config *cfg = step->m->cfg;
    if (!cfg->n_draft)
        return cfg_error_set(err, EINVAL, "this model has no drafter");
    if (step->n_segments >= step->capacity)
        return cfg_error_set(err, ENOSPC, "the step is full");
    int32_t *ids = step->draft_ids + (size_t)step->n_segments * MDL_MAX_BLOCK;
    for (int i = 0; i < cfg->draft_block; i++)
        ids[i] = i ? cfg->draft_noise_id : token;
    struct mdl_segment seg = {.seq = seq,
                              .start = seq->len,
                              .n = cfg->draft_block,
                              .ids = ids,
                              .draft = true,
                              .layer_begin = cfg->n_layers,
                              .layer_end = cfg->n_layers + cfg->n_draft};
    return mdl_step_add(step, &seg, err);
}

int32_t mdl_argmax(const float *x, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

int mdl_draft_pick(struct mdl_step *step, int segment, int n, mdl_draft_choose_fn *choose, void *ctx,
                   struct mdl_draft *out, float *logits)
{
    if (step->m->compute) {
        step->m->compute->draft(step->m->compute->ctx, step, segment, n, out);
        return 0;
    }
    const struct mdl_config *cfg = step->m->cfg;
    const struct mdl_checkpoint *ck = step->m->ck;
    const struct mdl_exec *ex = &step->m->exec;
    const struct mdl_segment *seg = &step->segment[segment];
    size_t vocab = (size_t)cfg->vocab_size, d = (size_t)cfg->hidden, rank = (size_t)cfg->markov_rank;
    float *bias = malloc(2 * vocab * sizeof *bias);
    uint16_t *joined = malloc((d + rank) * sizeof *joined);
    if (!bias || !joined) {
        free(bias);
        free(joined);
        return -ENOMEM;
    }
    float *sum = bias + vocab;
    int32_t cur = seg->ids[0];
    out->n = n;
    for (int j = 0; j < n; j++) {
        const uint16_t *markov = ck->markov_embed + (size_t)cur * rank;
        const float *base = mdl_step_logits(step, segment, j);
        int row = seg->first_row + j;
        mdl_linear_f32(ex, &ck->markov_head, markov, rank, 1, bias, vocab);
        for (size_t v = 0; v < vocab; v++)
            sum[v] = base[v] + bias[v];
        if (logits)
            memcpy(logits + (size_t)j * vocab, sum, vocab * sizeof *sum);
        mdl_mhc_collapse(ex, step->x, step->pre, true, &row, 1, joined);
        memcpy(joined + d, markov, rank * sizeof *joined);
        mdl_linear_f32(ex, &ck->confidence, joined, d + rank, 1, &out->confidence[j], 1);
        cur = choose ? choose(ctx, segment, seg->start + 1 + j, sum) : mdl_argmax(sum, cfg->vocab_size);
        if (cur < 0) {
            out->n = j;
            break;
        }
        out->ids[j] = cur;
    }
    free(joined);
    free(bias);
    return 0;
}
