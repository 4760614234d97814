/* The indexer of a layer: scores of every visible row, candidate blocks, and the selection that later layers reuse. */
#include <stdlib.h>
#include <string.h>

#include "model/modules.h"

enum { CHUNK = 512 };

struct index_job {
    struct mdl_step *s;
    int layer, source, ratio;
    int first, n;  /* active rows of this group */
    int chunks;    /* pieces per row */
    size_t stride; /* floats per row of the score buffer */
};

static int visible_rows(const struct index_job *j, int i)
{
    return (j->s->row_pos[j->s->active[i]] + 1) / j->ratio;
}

static void score_items(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    const struct index_job *j = ctx;
    struct mdl_step *s = j->s;
    const struct mdl_config *cfg = s->m->cfg;
    size_t iw = (size_t)cfg->index_heads * (size_t)cfg->index_dim;
    for (int item = begin; item < end; item++) {
        int i = j->first + item / j->chunks, row = item % j->chunks * CHUNK, visible = visible_rows(j, i);
        const struct mdl_seq *seq = s->segment[s->row_segment[s->active[i]]].seq;
        int per_block = seq->layout.source[j->source].rows, stop = row + CHUNK < visible ? row + CHUNK : visible;
        float *out = s->scores + (size_t)(i - j->first) * j->stride;
        while (row < stop) {
            int n = per_block - row % per_block < stop - row ? per_block - row % per_block : stop - row;
            s->m->exec.be->index_scores(s->qi + (size_t)i * iw, s->wt + (size_t)i * (size_t)cfg->index_heads,
                                        cfg->index_heads, cfg->index_dim, mdl_seq_index_codes(seq, j->source, row),
                                        mdl_seq_index_scales(seq, j->source, row), n, out + row);
            row += n;
        }
    }
}

static void select_items(void *ctx, int begin, int end, int thread)
{
    const struct index_job *j = ctx;
    struct mdl_step *s = j->s;
    const struct mdl_config *cfg = s->m->cfg;
    const struct mdl_layer_role *role = &cfg->layer[j->layer];
    struct mdl_scratch *t = &s->scratch[thread];
    for (int item = begin; item < end; item++) {
        int i = j->first + item, row = s->active[i], visible = visible_rows(j, i);
        float *score = s->scores + (size_t)item * j->stride;
        int32_t *cand = s->cand + (size_t)row * (size_t)cfg->candidate_blocks;
        int32_t *sel = s->sel + (size_t)row * (size_t)cfg->index_topk;
        if (s->hooks.want_scores)
            memcpy(s->score_dump + (size_t)row * (size_t)s->score_stride, score, (size_t)visible * sizeof *score);
        if (role->candidate_source)
            s->cand_n[row] = mdl_select_blocks(score, visible, cfg->candidate_block_size, cfg->candidate_blocks,
                                               t->block, t->order, cand);
        if (role->restricted && s->cand_n[row] >= 0)
            mdl_select_restrict(score, visible, cfg->candidate_block_size, cand, s->cand_n[row]);
        s->sel_n[row] = mdl_select_topk(score, visible, cfg->index_topk, t->order, sel);
        for (int k = s->sel_n[row]; k < cfg->index_topk; k++)
            sel[k] = -1;
    }
}

void mdl_index_select(struct mdl_step *s, int layer)
{
    struct index_job j = {.s = s, .layer = layer};
    j.source = s->m->cfg->layer[layer].kv_source;
    j.ratio = s->m->cfg->layer[layer].ratio;
    for (j.first = 0; j.first < s->n_active; j.first += j.n) {
        /* As many rows as the score buffer holds; one row always fits. */
        int widest = 0;
        for (j.n = 0; j.first + j.n < s->n_active; j.n++) {
            int v = visible_rows(&j, j.first + j.n), w = v > widest ? v : widest;
            if (j.n > 0 && (size_t)(j.n + 1) * (size_t)w > s->scores_cap)
                break;
            widest = w;
        }
        j.stride = (size_t)widest;
        j.chunks = (widest + CHUNK - 1) / CHUNK;
        mdl_team_run(s->m->team, j.n * j.chunks, 1, score_items, &j);
        mdl_team_run(s->m->team, j.n, 1, select_items, &j);
    }
}
