/* Decoding: plain greedy, speculative greedy, and draft blocks from golden taps. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/modules.h"
#include "tests/golden_model.h"

int gold_decode_rows(const struct gold_case *c)
{
    return c->m->cfg->draft_block + 1;
}

/* One committed or partly committed segment over all layers; every row has logits. */
static bool forward(struct gold_case *c, struct mdl_step *s, struct mdl_seq *seq, const int32_t *ids, int n)
{
    struct cfg_error err = {{0}};
    struct mdl_segment seg = {.seq = seq, .start = seq->len, .n = n, .ids = ids, .layer_end = c->m->cfg->n_layers};
    mdl_step_begin(s, NULL);
    return gold_ok(c, mdl_step_add(s, &seg, &err), &err, "tokens at %d", seq->len) &&
           gold_check(c, mdl_step_run(s) == MDL_STEP_DONE, "tokens at %d: the step runs", seq->len);
}

/* ids[0..n-1], and rows [n][vocab] of logits when given. */
static bool plain(struct gold_decode *d, int n, int32_t *ids, float *rows)
{
    struct gold_case *c = d->c;
    size_t vocab = (size_t)c->m->cfg->vocab_size;
    float *last = gold_alloc(c, vocab, sizeof *last);
    if (!d->rewind(d->ctx, d->seq, last))
        return false;
    for (int i = 0; i < n; i++) {
        ids[i] = mdl_argmax(last, (int)vocab);
        memcpy(rows + (size_t)i * vocab, last, vocab * sizeof *last);
        if (i + 1 == n)
            break;
        if (!forward(c, d->step, d->seq, &ids[i], 1))
            return false;
        memcpy(last, mdl_step_logits(d->step, 0, 0), vocab * sizeof *last);
        mdl_step_commit(d->step, 0, 1);
    }
    return true;
}

static void check_greedy(struct gold_decode *d, const int32_t *own, const float *rows, const int32_t *want, int n)
{
    struct gold_case *c = d->c;
    size_t vocab = (size_t)c->m->cfg->vocab_size;
    int must = gold_int(gold_json(d->greedy, "must_agree"), "f32", 0), agree = 0;
    while (agree < n && own[agree] == want[agree])
        agree++;
    gold_check(c, agree >= must, "%s: greedy ids agree in the first %d, must in %d", d->logits, agree, must);
    const struct mdl_tensor *t = gold_get(c, "%s", d->logits);
    if (!t)
        return;
    /* The row after the last common id is the first that may go another way. */
    int compared = agree < n ? agree + 1 : n;
    struct gold_stat e = {0};
    for (int i = 0; i < compared && i < gold_rows(t); i++)
        gold_add(&e, gold_logits_error(rows + (size_t)i * vocab, gold_floats(c, t) + (size_t)i * vocab, vocab));
    gold_limit(c, gold_quantile(&e, 0.5), d->limit->rel_p95, "%s: median error of %d rows", d->logits, compared);
    /* A single row moves by up to 0.44 when only the order of float32 additions changes. */
    gold_limit(c, gold_quantile(&e, 1.0), fmax(0.6, 2.0 * d->limit->rel_p95 + 0.1), "%s: largest error of %d rows",
               d->logits, compared);
    gold_stat_free(&e);
}

/* A draft against that of the golden step i, both made from the same ids. */
static void check_draft(struct gold_decode *d, int i, const json_t *step, const struct mdl_draft *own,
                        const float *logits)
{
    struct gold_case *c = d->c;
    size_t vocab = (size_t)c->m->cfg->vocab_size;
    const struct mdl_tensor *t = gold_get(c, "%s.%d", d->drafts, i);
    const json_t *confidence = gold_json(step, "confidence");
    int n;
    int32_t *want = gold_ids(c, gold_json(step, "draft"), &n);
    if (!t || !gold_check(c, n == own->n && n == gold_rows(t), "%s.%d: a block of %d drafts, golden %d", d->drafts, i,
                          own->n, n))
        return;
    const float *rows = gold_floats(c, t);
    struct gold_stat e = {0};
    double moved = 0.0;
    /* Each guess is conditioned on the one before, so the first difference ends the comparison. */
    for (int j = 0; j < n; j++) {
        double error = gold_logits_error(logits + (size_t)j * vocab, rows + (size_t)j * vocab, vocab);
        double off = fabs((double)own->confidence[j] - json_number_value(json_array_get(confidence, (size_t)j)));
        /* A state that a rounding has moved moves the confidence too, measured as up to 4.5 times as far. */
        double allowed = error < 1e-3 ? 0.02 : 0.02 + 6.0 * error;
        moved = off / allowed > moved ? off / allowed : moved;
        gold_add(&e, error);
        if (own->ids[j] == want[j])
            continue;
        gold_limit(c, gold_gap(rows + (size_t)j * vocab, (int)vocab), d->limit->top1_gap,
                   "%s.%d: golden gap of draft %d, which differs", d->drafts, i, j);
        break;
    }
    gold_limit(c, gold_quantile(&e, 0.5), 2.0 * d->limit->rel_p95 + 0.1, "%s.%d: median error of draft logits",
               d->drafts, i);
    gold_limit(c, moved, 1.0, "%s.%d: confidence, difference over what is allowed", d->drafts, i);
    gold_stat_free(&e);
}

static bool draft_block(struct gold_decode *d, int32_t token, struct mdl_draft *draft, float *logits)
{
    struct gold_case *c = d->c;
    struct cfg_error err = {{0}};
    mdl_step_begin(d->step, NULL);
    return gold_ok(c, mdl_draft_add(d->step, d->seq, token, &err), &err, "%s: block at %d", d->drafts, d->seq->len) &&
           gold_check(c, mdl_step_run(d->step) == MDL_STEP_DONE, "%s: block at %d runs", d->drafts, d->seq->len) &&
           gold_check(c, mdl_draft_pick(d->step, 0, c->m->cfg->draft_block, NULL, NULL, draft, logits) == 0,
                      "%s: tokens at %d are picked", d->drafts, d->seq->len);
}

/* The golden steps, each from the golden ids before it: the draft, and what verification makes of the golden draft
 * where the golden gap is clear. */
static void golden_steps(struct gold_decode *d)
{
    struct gold_case *c = d->c;
    const struct mdl_config *cfg = c->m->cfg;
    size_t vocab = (size_t)cfg->vocab_size, i;
    const json_t *gaps = gold_json(d->greedy, "gaps");
    float *last = gold_alloc(c, vocab, sizeof *last),
          *logits = gold_alloc(c, (size_t)cfg->draft_block * vocab, sizeof *logits);
    int n_ids;
    int32_t *ids = gold_ids(c, gold_json(d->spec, "ids"), &n_ids);
    json_t *step;
    if (!d->rewind(d->ctx, d->seq, last))
        return;
    int begin = d->seq->len;
    json_array_foreach ((json_t *)gold_json(d->spec, "steps"), i, step) {
        int at = d->seq->len - begin, accepted = gold_int(step, "accepted", 0), n;
        int32_t token = gold_int(step, "token", -1), block[MDL_MAX_BLOCK + 1] = {token};
        int32_t *golden = gold_ids(c, gold_json(step, "draft"), &n);
        struct mdl_draft draft;
        if (!gold_check(c,
                        gold_int(step, "pos", -1) == d->seq->len - 1 && at < n_ids && ids[at] == token &&
                            n == cfg->draft_block && accepted <= n,
                        "%s.%zu: the golden step follows the one before", d->drafts, i) ||
            !draft_block(d, token, &draft, logits))
            return;
        check_draft(d, (int)i, step, &draft, logits);
        memcpy(block + 1, golden, (size_t)n * sizeof *block);
        if (!forward(c, d->step, d->seq, block, n + 1))
            return;
        for (int r = 0; r <= accepted; r++) {
            int32_t own = mdl_argmax(mdl_step_logits(d->step, 0, r), (int)vocab);
            int32_t want = r < accepted ? golden[r] : gold_int(step, "bonus", -1);
            const json_t *gap = json_array_get(gaps, (size_t)(at + 1 + r));
            gold_check(c, own == want || !gap || json_number_value(gap) <= d->limit->top1_gap,
                       "%s.%zu: row %d of the verification gives %d, golden %d with gap %g", d->drafts, i, r, own, want,
                       json_number_value(gap));
        }
        mdl_step_commit(d->step, 0, accepted + 1);
    }
}

/* Emits tokens until there are `want`; returns how many, 0 after a failure. */
static int speculative(struct gold_decode *d, int want, int32_t *out)
{
    struct gold_case *c = d->c;
    size_t vocab = (size_t)c->m->cfg->vocab_size;
    float *last = gold_alloc(c, vocab, sizeof *last);
    int n = 0;
    if (!d->rewind(d->ctx, d->seq, last))
        return 0;
    out[n++] = mdl_argmax(last, (int)vocab);
    while (n < want) {
        struct mdl_draft draft;
        int32_t ids[MDL_MAX_BLOCK + 1] = {out[n - 1]};
        if (!draft_block(d, out[n - 1], &draft, NULL))
            return 0;
        memcpy(ids + 1, draft.ids, (size_t)draft.n * sizeof *ids);
        if (!forward(c, d->step, d->seq, ids, draft.n + 1))
            return 0;
        int accepted = 0;
        int32_t next = mdl_argmax(mdl_step_logits(d->step, 0, 0), (int)vocab);
        while (accepted < draft.n && draft.ids[accepted] == next) {
            out[n++] = next;
            next = mdl_argmax(mdl_step_logits(d->step, 0, ++accepted), (int)vocab);
        }
        out[n++] = next;
        mdl_step_commit(d->step, 0, accepted + 1);
    }
    return n;
}

void gold_decode(struct gold_decode *d)
{
    struct gold_case *c = d->c;
    size_t vocab = (size_t)c->m->cfg->vocab_size;
    int n, most, spec_n;
    int32_t *want = gold_ids(c, gold_json(d->greedy, "ids"), &n);
    gold_ids(c, gold_json(d->spec, "ids"), &spec_n);
    n = n > spec_n ? n : spec_n;
    most = n + c->m->cfg->draft_block + 1;
    int32_t *own = gold_alloc(c, (size_t)most, sizeof *own), *out = gold_alloc(c, (size_t)most, sizeof *out);
    float *rows = gold_alloc(c, (size_t)most * vocab, sizeof *rows);
    if (!n || !plain(d, most, own, rows))
        return;
    check_greedy(d, own, rows, want, (int)json_array_size(gold_json(d->greedy, "ids")));
    if (!c->m->cfg->n_draft)
        return;
    golden_steps(d);
    int emitted = speculative(d, n, out), same = 0;
    while (same < emitted && out[same] == own[same])
        same++;
    gold_check(c, emitted >= n && same == emitted, "%s: speculative ids equal plain greedy ones in the first %d of %d",
               d->drafts, same, emitted);
}

/* ---- exact runs ---- */

struct prefix {
    struct gold_case *c;
    const struct gold_run *run;
    struct mdl_step *step;
    int n;
};

static bool rewind_exact(void *ctx, struct mdl_seq *seq, float *last)
{
    struct prefix *p = ctx;
    struct mdl_prefill_params params = {.exact = true};
    mdl_seq_reset(seq);
    return gold_prefill(p->c, p->step, seq, p->run->ids, p->n, &params, 0, p->n - 1, last);
}

void gold_exact_decode(struct gold_case *c, const struct gold_run *run)
{
    const json_t *greedy = gold_json(run->json, "greedy");
    const char *key;
    json_t *one;
    int rows = run->n > gold_decode_rows(c) ? run->n : gold_decode_rows(c), longest = gold_longest(c);
    struct mdl_step *s = gold_step(c, rows, longest);
    struct mdl_seq *seq = gold_seq(c, longest, 0, false);
    json_object_foreach ((json_t *)greedy, key, one) {
        struct prefix p = {c, run, s, 0};
        struct gold_decode d = {.c = c,
                                .limit = &run->limit,
                                .step = s,
                                .seq = seq,
                                .rewind = rewind_exact,
                                .ctx = &p,
                                .greedy = one,
                                .spec = gold_json(gold_json(run->json, "spec"), key)};
        if (!s || !seq || sscanf(key, "%d", &p.n) != 1 ||
            !gold_check(c, p.n >= 1 && p.n <= run->n, "%s/greedy.%s: the run has that many tokens", run->name, key))
            continue;
        snprintf(d.logits, sizeof d.logits, "%s/greedy.%s.logits", run->name, key);
        snprintf(d.drafts, sizeof d.drafts, "%s/%s/spec.draft_logits", run->name, key);
        gold_decode(&d);
    }
    mdl_step_free(s);
    mdl_seq_free(seq);
}

/* ---- drafts from golden taps ---- */

struct stages {
    struct gold_case *c;
    const struct gold_run *run;
    int pos;
    struct gold_stat x, pre; /* row errors of all drafts and stages */
};

/* Median over the rows of a block; all rows see each other, so a rounding may move several. */
static void limit_block(struct stages *g, struct gold_stat *e, double limit, const char *name, int stage,
                        struct gold_stat *pool)
{
    for (size_t i = 0; pool && i < e->n; i++)
        gold_add(pool, e->v[i]);
    char suffix[16] = "";
    if (stage >= 0)
        snprintf(suffix, sizeof suffix, ".%d", stage);
    gold_limit(g->c, gold_quantile(e, 0.5), limit, "%s/draft.%d.%s%s: median row error", g->run->name, g->pos, name,
               suffix);
    gold_stat_free(e);
}

static void block_rows(struct stages *g, const uint16_t *got, int rows, const char *name, int stage,
                       const struct mdl_tensor *t, struct gold_stat *pool)
{
    struct gold_stat e = {0};
    size_t width = t ? (size_t)gold_cols(t) : 0;
    const uint16_t *want = t ? gold_data(g->c, t) : NULL;
    for (int r = 0; t && r < rows; r++, got += width, want += width)
        gold_add(&e, r < gold_rows(t) ? gold_row_error_bf16(got, want, width) : INFINITY);
    if (t)
        limit_block(g, &e, g->run->limit.x_p95, name, stage, pool);
}

static void stage_rows(struct stages *g, struct mdl_step *s, int stage)
{
    struct gold_case *c = g->c;
    const struct mdl_tensor *tx = gold_get(c, "%s/draft.%d.x.%d", g->run->name, g->pos, stage);
    const struct mdl_tensor *tp = gold_get(c, "%s/draft.%d.pre.%d", g->run->name, g->pos, stage);
    struct gold_stat e = {0};
    block_rows(g, s->x, s->n_rows, "x", stage, tx, &g->x);
    for (int r = 0; tp && r < s->n_rows; r++)
        gold_add(&e, r < gold_rows(tp) ? gold_row_error(s->pre + r * MDL_HC, gold_floats(c, tp) + r * MDL_HC, MDL_HC)
                                       : INFINITY);
    if (tp)
        limit_block(g, &e, 1e-3, "pre", stage, &g->pre);
}

static void stage_hook(void *ctx, struct mdl_step *s, enum mdl_hook_point at, int layer)
{
    if (at == MDL_HOOK_LAYER || at == MDL_HOOK_LEFT)
        stage_rows(ctx, s, layer - s->m->cfg->n_layers);
}

/* Fills the rings from taps of positions 0..pos. */
static bool ring_from_taps(struct gold_case *c, const struct gold_run *run, struct mdl_step *s, struct mdl_seq *seq,
                           int pos)
{
    struct cfg_error err = {{0}};
    const struct mdl_tensor *t = gold_get(c, "%s/taps", run->name);
    struct mdl_segment seg = {
        .seq = seq, .n = pos + 1, .ids = run->ids, .layer_end = c->m->cfg->n_layers, .logits_from = pos + 1};
    int *rows = gold_alloc(c, (size_t)pos + 1, sizeof *rows);
    if (!gold_check(c, t && gold_rows(t) > pos && pos < run->n, "%s/taps: rows up to position %d", run->name, pos))
        return false;
    s->hooks = (struct mdl_hooks){0};
    mdl_step_begin(s, NULL);
    mdl_seq_reset(seq);
    if (!gold_ok(c, mdl_step_add(s, &seg, &err), &err, "%s: rows of taps", run->name))
        return false;
    for (int i = 0; i <= pos; i++)
        rows[i] = i;
    size_t width = (size_t)gold_cols(t);
    memcpy(s->taps, gold_data(c, t), ((size_t)pos + 1) * width * sizeof *s->taps);
    mdl_draft_ring_rows(s, rows, pos + 1);
    mdl_step_commit(s, 0, pos + 1);
    return true;
}

static void one_draft(struct stages *g, struct mdl_step *s, struct mdl_seq *seq, const json_t *json)
{
    const char *name = g->run->name;
    struct gold_stat e = {0};
    struct gold_case *c = g->c;
    const struct mdl_config *cfg = c->m->cfg;
    struct cfg_error err = {{0}};
    size_t vocab = (size_t)cfg->vocab_size, d = (size_t)cfg->hidden;
    struct mdl_draft draft;
    float *logits = gold_alloc(c, (size_t)cfg->draft_block * vocab, sizeof *logits);
    uint16_t *y = gold_alloc(c, (size_t)cfg->draft_block * d, sizeof *y);
    s->hooks = (struct mdl_hooks){.ctx = g, .point = stage_hook};
    mdl_step_begin(s, NULL);
    if (!gold_ok(c, mdl_draft_add(s, seq, gold_int(json, "token", 0), &err), &err, "%s/draft.%d", name, g->pos) ||
        !gold_check(c, mdl_step_run(s) == MDL_STEP_DONE, "%s/draft.%d: the block runs", name, g->pos) ||
        !gold_check(c, !mdl_draft_pick(s, 0, cfg->draft_block, NULL, NULL, &draft, logits),
                    "%s/draft.%d: tokens are picked", name, g->pos))
        return;
    mdl_mhc_collapse(&c->m->exec, s->x, s->pre, true, NULL, cfg->draft_block, y);
    int n;
    int32_t *ids = gold_ids(c, gold_json(json, "ids"), &n);
    const json_t *gaps = gold_json(json, "gaps"), *confidence = gold_json(json, "confidence");
    const struct mdl_tensor *tl = gold_get(c, "%s/draft.%d.logits", name, g->pos);
    block_rows(g, y, cfg->draft_block, "y", -1, gold_get(c, "%s/draft.%d.y", name, g->pos), NULL);
    if (!gold_check(c, n == draft.n, "%s/draft.%d: a block of %d drafts, golden %d", name, g->pos, draft.n, n))
        return;
    double off = 0.0;
    for (int j = 0; j < n; j++) {
        double diff = fabs((double)draft.confidence[j] - json_number_value(json_array_get(confidence, (size_t)j)));
        off = diff > off ? diff : off;
        if (tl && j < gold_rows(tl))
            gold_add(&e, gold_logits_error(logits + (size_t)j * vocab, gold_floats(c, tl) + (size_t)j * vocab, vocab));
        if (draft.ids[j] == ids[j])
            continue;
        /* Everything after an unclear guess is conditioned on it. */
        gold_check(c, json_number_value(json_array_get(gaps, (size_t)j)) < 0.05,
                   "%s/draft.%d: guess %d is %d, golden %d", name, g->pos, j, draft.ids[j], ids[j]);
        break;
    }
    if (tl)
        limit_block(g, &e, 1e-3, "logits", -1, NULL);
    gold_limit(c, off, 0.02, "%s/draft.%d: largest difference of a confidence", name, g->pos);
}

void gold_drafts(struct gold_case *c, const struct gold_run *run)
{
    const struct mdl_config *cfg = c->m->cfg;
    const json_t *drafts = gold_json(run->json, "drafts");
    struct stages g = {.c = c, .run = run};
    const char *key;
    json_t *one;
    if (!json_object_size(drafts))
        return;
    int longest = run->n + cfg->draft_block + 1, rows = run->n > cfg->draft_block ? run->n : cfg->draft_block;
    struct mdl_step *s = gold_step(c, rows, longest);
    struct mdl_seq *seq = gold_seq(c, longest, 0, false);
    json_object_foreach ((json_t *)drafts, key, one) {
        if (s && seq && sscanf(key, "%d", &g.pos) == 1 && ring_from_taps(c, run, s, seq, g.pos))
            one_draft(&g, s, seq, one);
    }
    gold_limit(c, gold_quantile(&g.x, 0.5), run->limit.x_median, "%s/draft.*.x: median row error", run->name);
    gold_limit(c, gold_quantile(&g.x, 0.95), 0.05, "%s/draft.*.x: 95th percentile of row errors", run->name);
    gold_limit(c, gold_quantile(&g.pre, 0.5), run->limit.pre_p95, "%s/draft.*.pre: median row error", run->name);
    gold_limit(c, gold_quantile(&g.pre, 0.95), 0.01, "%s/draft.*.pre: 95th percentile of row errors", run->name);
    gold_stat_free(&g.x);
    gold_stat_free(&g.pre);
    mdl_step_free(s);
    mdl_seq_free(seq);
}
