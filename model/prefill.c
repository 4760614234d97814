#include "model/prefill.h"

#include <errno.h>
#include <string.h>

int mdl_prefill_exact_reach(const struct mdl_config *cfg)
{
    return cfg->n_layers * (cfg->window - 1) + cfg->window;
}

/* From here on the encoder's last rows are those of the run, R rows before the hit and the window of the cut layer
 * before them: each of its layers drops W-1 rows. */
static int run_reach(const struct mdl_config *cfg, int replay)
{
    return (cfg->cut + 1) * (cfg->window - 1) + replay;
}

int mdl_prefill_run_least(const struct mdl_config *cfg)
{
    return run_reach(cfg, 0);
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static void begin_exact(struct mdl_prefill *p)
{
    const struct mdl_config *cfg = p->seq->cfg;
    int reach = mdl_prefill_exact_reach(cfg);
    p->hit = p->params.hit >= reach ? p->params.hit : 0;
    p->encoder_start = p->hit ? p->hit - reach : 0;
    p->decoder_start = p->encoder_start;
    p->continued = true;
    for (int l = 0; l < cfg->n_layers; l++)
        p->seq->window_lo[l] = p->encoder_start ? p->encoder_start + l * (cfg->window - 1) : 0;
    p->seq->draft_lo = p->encoder_start ? p->encoder_start + (cfg->n_layers - 1) * (cfg->window - 1) : 0;
}

static void begin_replay(struct mdl_prefill *p)
{
    const struct mdl_config *cfg = p->seq->cfg;
    int hit = p->params.hit, r = p->params.replay;
    p->two_passes = true;
    p->hit = hit;
    int restart = p->n - hit >= r ? hit : max_int(0, p->n - r);
    int clean = p->params.hit_clean ? p->params.hit_clean : hit, began = max_int(0, clean - max_int(cfg->window, r));
    bool go_on = hit && clean == hit && p->params.hit_window && hit - restart <= p->params.hit_extra;
    p->encoder_start = go_on ? restart : clean < hit ? max_int(began, hit - run_reach(cfg, r)) : began;
    p->decoder_start = max_int(0, p->n - r);
    p->continued = go_on || !began;
    p->behind = p->continued ? 0 : clean;
    /* A layer whose run began earlier drops the rows that saw a short window here and did not there. */
    int drop = !go_on && p->encoder_start > began ? cfg->window - 1 : 0;
    for (int l = 0; l < cfg->cut; l++)
        if (!go_on)
            p->seq->window_lo[l] = p->encoder_start + l * drop;
    for (int l = cfg->cut; l < cfg->n_layers; l++)
        p->seq->window_lo[l] = p->decoder_start;
    p->seq->bridge_lo = p->encoder_start + cfg->cut * drop;
    if (p->params.full_bridge)
        p->seq->window_lo[cfg->cut] = p->seq->bridge_lo;
    p->seq->draft_lo = p->decoder_start;
}

int mdl_prefill_begin(struct mdl_prefill *p, struct mdl_seq *seq, const int32_t *ids, int n,
                      const struct mdl_prefill_params *params, struct cfg_error *err)
{
    const struct mdl_config *cfg = seq->cfg;
    *p = (struct mdl_prefill){.seq = seq, .ids = ids, .n = n, .params = *params};
    bool exact = params->exact || cfg->cut < 0;
    if (n < 1)
        return cfg_error_set(err, EINVAL, "prompt is empty; give at least one token");
    if (params->hit < 0 || params->hit % 2 || params->hit >= n)
        return cfg_error_set(err, EINVAL,
                             "prefix hit of %d tokens in a prompt of %d: it must be even and shorter than the "
                             "prompt",
                             params->hit, n);
    if (params->hit_clean < 0 || params->hit_clean % 2 || params->hit_clean > params->hit ||
        (exact && params->hit_clean && params->hit_clean < params->hit))
        return cfg_error_set(
            err, EINVAL,
            "the first %d tokens of a prefix hit of %d are clean: that must be even and within the hit, "
            "and in exact mode all of it",
            params->hit_clean, params->hit);
    if (!exact && (params->replay < cfg->window || params->replay > seq->params.replay))
        return cfg_error_set(err, EINVAL, "replay of %d rows: use %d (the window) to %d (what the sequence keeps)",
                             params->replay, cfg->window, seq->params.replay);
    if (!exact && params->full_bridge && !seq->params.full_bridge)
        return cfg_error_set(err, EINVAL,
                             "bridge window \"full\" needs a sequence that keeps the cut layer's window rows");
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= cfg->vocab_size)
            return cfg_error_set(err, EINVAL, "token %d of the prompt is id %d, outside the vocabulary of %d", i,
                                 ids[i], cfg->vocab_size);
    if (exact)
        begin_exact(p);
    else
        begin_replay(p);
    p->encoder_at = p->encoder_start;
    p->decoder_at = p->decoder_start;
    /* Ids below the first row are known from the prompt; the n-gram history looks back over them. */
    int r = mdl_seq_reserve(seq, n, err);
    if (r)
        return r;
    memcpy(seq->ids, ids, (size_t)p->encoder_start * sizeof *ids);
    return 0;
}

int mdl_prefill_resume(struct mdl_prefill *p, struct mdl_seq *seq, const int32_t *ids, int n,
                       const struct mdl_prefill_params *params, struct cfg_error *err)
{
    const struct mdl_config *cfg = seq->cfg;
    *p = (struct mdl_prefill){.seq = seq, .ids = ids, .n = n, .params = *params, .two_passes = true};
    p->encoder_at = n;
    p->decoder_at = p->decoder_start = max_int(0, n - params->replay);
    if (cfg->cut < 0 || seq->encoded != n || params->replay < cfg->window || params->replay > seq->params.replay ||
        seq->bridge_lo > p->decoder_start)
        return cfg_error_set(err, EINVAL, "a replay of %d rows cannot go on behind %d encoded tokens", params->replay,
                             seq->encoded);
    for (int l = cfg->cut + params->full_bridge; l < cfg->n_layers; l++)
        seq->window_lo[l] = p->decoder_start;
    seq->draft_lo = p->decoder_start;
    return mdl_seq_reserve(seq, n, err);
}

/* Rows that an exact restart runs again only lead up to the hit; they saw short windows. */
static int first_exact(const struct mdl_prefill *p, const struct mdl_segment *seg)
{
    int before = p->two_passes ? 0 : p->hit - seg->start;
    return before < 0 ? 0 : before < seg->n ? before : seg->n;
}

bool mdl_prefill_next(struct mdl_prefill *p, int max_rows, struct mdl_segment *out)
{
    const struct mdl_config *cfg = p->seq->cfg;
    *out = (struct mdl_segment){.seq = p->seq, .write_from = p->hit, .layer_end = cfg->n_layers};
    bool encoding = p->encoder_at < p->n;
    if (encoding) {
        out->start = p->encoder_at;
        out->ids = p->ids + out->start;
        if (p->two_passes)
            out->layer_end = cfg->cut;
    } else if (p->two_passes && p->decoder_at < p->n) {
        out->start = p->decoder_at;
        out->layer_begin = cfg->cut;
        out->write_from = p->n; /* the bridge wrote them */
    } else {
        return false;
    }
    out->n = p->n - out->start < max_rows ? p->n - out->start : max_rows;
    out->logits_from = out->n;
    if (out->layer_end == cfg->n_layers)
        out->logits_from = p->params.all_logits          ? first_exact(p, out)
                           : out->start + out->n == p->n ? out->n - 1
                                                         : out->n;
    return true;
}

void mdl_prefill_advance(struct mdl_prefill *p, const struct mdl_segment *seg)
{
    if (seg->layer_begin == 0)
        p->encoder_at = seg->start + seg->n;
    if (seg->layer_end == p->seq->cfg->n_layers)
        p->decoder_at = seg->start + seg->n;
}

int mdl_prefill_run(struct mdl_prefill *p, struct mdl_step *step, int chunk, mdl_prefill_chunk_fn *on_chunk, void *ctx,
                    struct cfg_error *err)
{
    struct mdl_segment seg;
    while (mdl_prefill_next(p, chunk > 0 && chunk < step->capacity ? chunk : step->capacity, &seg)) {
        mdl_step_begin(step, NULL);
        int r = mdl_step_add(step, &seg, err);
        if (r)
            return r;
        r = mdl_step_run(step);
        if (r != MDL_STEP_DONE)
            return cfg_error_set(err, r < 0 ? -r : EPROTO, "prefill of rows %d..%d failed: %s", seg.start,
                                 seg.start + seg.n - 1, strerror(r < 0 ? -r : EPROTO));
        if (on_chunk)
            on_chunk(ctx, step, &step->segment[0]);
        mdl_step_commit(step, 0, seg.n);
        mdl_prefill_advance(p, &seg);
    }
    return 0;
}
