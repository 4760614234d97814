/* Bounded replay: cold prompts and prefix hits, free and with golden inputs for every layer. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/golden_model.h"

struct replay {
    struct gold_case *c;
    const struct gold_run *base, *run;
    struct mdl_step *step;
    struct mdl_prefill_params params;
    int rows; /* longest sequence */
};

static struct mdl_seq *sequence(struct replay *r)
{
    return gold_seq(r->c, r->rows, r->params.replay, r->params.full_bridge);
}

/* What a cold prefill of exactly the first H tokens leaves. */
static bool cold_prefix(struct replay *r, struct mdl_seq *seq)
{
    struct mdl_prefill_params p = {.replay = r->params.replay, .full_bridge = r->params.full_bridge};
    mdl_seq_reset(seq);
    return gold_prefill(r->c, r->step, seq, r->run->ids, r->params.hit, &p, 0, r->params.hit, NULL);
}

static bool copy_prefix(struct replay *r, struct mdl_seq *to, const struct mdl_seq *from)
{
    struct cfg_error err = {{0}};
    mdl_seq_reset(to);
    return !r->params.hit || gold_ok(r->c, mdl_seq_copy_prefix(to, from, r->params.hit, r->params.hit_window, &err),
                                     &err, "%s: prefix of %d tokens", r->run->name, r->params.hit);
}

/* Cached global rows are still those of the prefix. */
static bool prefix_untouched(const struct replay *r, const struct mdl_seq *seq, const struct mdl_seq *from)
{
    const struct mdl_config *cfg = seq->cfg;
    bool same = true;
    for (int s = 0; s < cfg->n_kv_sources; s++)
        for (int row = 0; same && row < r->params.hit / cfg->kv_source_ratio[s]; row++)
            same = !memcmp(mdl_seq_main_row(seq, s, row), mdl_seq_main_row(from, s, row), seq->layout.main_row) &&
                   !memcmp(mdl_seq_index_codes(seq, s, row), mdl_seq_index_codes(from, s, row),
                           seq->layout.index_code_row) &&
                   !memcmp(mdl_seq_index_scales(seq, s, row), mdl_seq_index_scales(from, s, row),
                           seq->layout.index_scale_row);
    return same;
}

/* ---- golden inputs ---- */

/* The encoder pass and the decoder pass of one prefill have their own tensors. */
struct two_passes {
    struct gold_force encoder, decoder;
};

static void replay_hook(void *ctx, struct mdl_step *s, enum mdl_hook_point at, int layer)
{
    struct two_passes *p = ctx;
    gold_force_hook(s->segment[0].layer_begin ? &p->decoder : &p->encoder, s, at, layer);
}

static void forced(struct replay *r)
{
    struct gold_case *c = r->c;
    struct mdl_seq *seq = sequence(r), *prefix = r->params.hit ? sequence(r) : NULL;
    int encoder_base = r->params.hit ? gold_int(r->run->json, "enc_rows_start", 0) : 0;
    struct gold_force cold = {.c = c, .limit = &r->run->limit, .prefix = r->base->name, .infix = ""};
    struct two_passes p = {.encoder = cold, .decoder = cold};
    p.decoder.prefix = r->run->name;
    p.decoder.base = gold_int(r->run->json, "decoder_replay_start", 0);
    if (r->params.hit)
        p.encoder = (struct gold_force){
            .c = c, .limit = &r->run->limit, .prefix = r->run->name, .infix = "enc.", .base = encoder_base};
    /* The prefix comes from a cold pass with golden inputs; only its encoder has some, and only that is kept. */
    struct two_passes warm = {.encoder = cold, .decoder = cold};
    warm.decoder.prefix = "";
    r->step->hooks = (struct mdl_hooks){.ctx = &warm, .want_scores = true, .point = replay_hook};
    if (!seq || (prefix && !cold_prefix(r, prefix)) || (prefix && !copy_prefix(r, seq, prefix)))
        goto out;
    r->step->hooks.ctx = &p;
    size_t vocab = (size_t)c->m->cfg->vocab_size;
    float *last = gold_alloc(c, vocab, sizeof *last);
    if (!gold_prefill(c, r->step, seq, r->run->ids, r->run->n, &r->params, 0, r->run->n - 1, last))
        goto out;
    const struct mdl_tensor *t = gold_get(c, "%s/logits", r->run->name);
    if (t)
        gold_limit(c, gold_logits_error(last, gold_floats(c, t), vocab), 1e-5, "%s/logits: error from golden streams",
                   r->run->name);
    gold_compare_state(c, seq, r->run->name, r->run->n, r->params.hit, 0.02, 0.05);
    if (prefix)
        gold_check(c, prefix_untouched(r, seq, prefix), "%s: cached global rows keep their bits", r->run->name);
out:
    mdl_seq_free(prefix);
    mdl_seq_free(seq);
}

/* ---- free ---- */

/* Streams that leave the last layer, of every row of the decoder pass. */
struct final_rows {
    int base;
    uint16_t *x;
    size_t width;
};

static void final_hook(void *ctx, struct mdl_step *s, enum mdl_hook_point at, int layer)
{
    struct final_rows *f = ctx;
    if (at != MDL_HOOK_LEFT || layer != s->m->cfg->n_layers)
        return;
    for (int row = 0; row < s->n_rows; row++)
        if (s->row_pos[row] >= f->base)
            memcpy(f->x + (size_t)(s->row_pos[row] - f->base) * f->width, s->x + (size_t)row * f->width,
                   f->width * sizeof *f->x);
}

/* The last row hardly tells the variants apart, the first replayed ones do: where they are far from exact mode, the
 * step's must for the most part be nearer to the golden replay than to the golden exact run. */
static void check_variant(struct replay *r, const struct final_rows *f)
{
    struct gold_case *c = r->c;
    int layers = c->m->cfg->n_layers, n = r->run->n - f->base, nearer = 0, far = 0;
    const struct mdl_tensor *replay = gold_get(c, "%s/x.%d", r->run->name, layers);
    const struct mdl_tensor *exact = gold_get(c, "%s/x.%d", r->base->name, layers);
    if (!replay || !exact ||
        !gold_check(c, gold_rows(replay) == n, "%s/x.%d: %d rows, golden %d", r->run->name, layers, n,
                    gold_rows(replay)))
        return;
    struct gold_stat e = {0};
    for (int i = 0; i < n; i++) {
        const uint16_t *want = (const uint16_t *)gold_data(c, replay) + (size_t)i * f->width;
        const uint16_t *other = (const uint16_t *)gold_data(c, exact) + (size_t)(f->base + i) * f->width;
        const uint16_t *got = f->x + (size_t)i * f->width;
        double error = gold_row_error_bf16(got, want, f->width);
        gold_add(&e, error);
        if (gold_row_error_bf16(other, want, f->width) < 0.3)
            continue;
        far++;
        nearer += error < gold_row_error_bf16(got, other, f->width);
    }
    gold_limit(c, gold_quantile(&e, 0.5), 2.0 * r->run->limit.rel_median, "%s/x.%d: median row error", r->run->name,
               layers);
    gold_limit(c, far - nearer, far / 2, "%s/x.%d: of %d rows far from exact mode, those nearer to it", r->run->name,
               layers, far);
    gold_stat_free(&e);
}

struct again {
    struct replay *r;
    const struct mdl_seq *prefix;
};

static bool rewind_replay(void *ctx, struct mdl_seq *seq, float *last)
{
    struct again *a = ctx;
    struct replay *r = a->r;
    return copy_prefix(r, seq, a->prefix) &&
           gold_prefill(r->c, r->step, seq, r->run->ids, r->run->n, &r->params, 0, r->run->n - 1, last);
}

static void check_plan(struct replay *r, struct mdl_seq *seq)
{
    struct gold_case *c = r->c;
    struct cfg_error err = {{0}};
    struct mdl_prefill p;
    const json_t *j = r->run->json;
    if (!gold_ok(c, mdl_prefill_begin(&p, seq, r->run->ids, r->run->n, &r->params, &err), &err, "%s", r->run->name))
        return;
    int decoder = gold_int(j, "decoder_replay_start", p.decoder_start), hit = r->params.hit;
    int encoder = gold_int(j, "encoder_replay_start", hit && r->params.hit_window ? hit : 0);
    gold_check(c, p.decoder_start == decoder, "%s: decoder replay starts at %d, golden %d", r->run->name,
               p.decoder_start, decoder);
    gold_check(c, p.encoder_start == encoder, "%s: encoder starts at %d, golden %d", r->run->name, p.encoder_start,
               encoder);
}

static void free_run(struct replay *r)
{
    struct gold_case *c = r->c;
    const struct mdl_config *cfg = c->m->cfg;
    size_t vocab = (size_t)cfg->vocab_size;
    struct mdl_seq *seq = sequence(r), *other = sequence(r), *prefix = r->params.hit ? sequence(r) : NULL;
    float *last = gold_alloc(c, vocab, sizeof *last), *again = gold_alloc(c, vocab, sizeof *again);
    struct final_rows f = {.base = gold_int(r->run->json, "decoder_replay_start", 0)};
    f.width = MDL_HC * (size_t)cfg->hidden;
    f.x = gold_alloc(c, (size_t)r->run->n * f.width, sizeof *f.x);
    struct again a = {r, prefix};
    if (!seq || !other || (r->params.hit && (!prefix || !cold_prefix(r, prefix))))
        goto out;
    if (!copy_prefix(r, other, prefix))
        goto out;
    check_plan(r, other);
    r->step->hooks = (struct mdl_hooks){.ctx = &f, .point = final_hook};
    bool ran = rewind_replay(&a, seq, last);
    r->step->hooks = (struct mdl_hooks){0};
    if (!ran)
        goto out;
    const struct mdl_tensor *t = gold_get(c, "%s/logits", r->run->name);
    if (t) {
        char what[300];
        snprintf(what, sizeof what, "%s/logits", r->run->name);
        gold_compare_logits(c, last, gold_floats(c, t), 1, &r->run->limit, what);
    }
    check_variant(r, &f);
    gold_compare_state(c, seq, r->run->name, r->run->n, r->params.hit, 1.0, 0.3);
    if (prefix)
        gold_check(c, prefix_untouched(r, seq, prefix), "%s: cached global rows keep their bits", r->run->name);
    const int chunks[] = {1, 3, cfg->window, cfg->window + 1};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        if (!copy_prefix(r, other, prefix) ||
            !gold_prefill(c, r->step, other, r->run->ids, r->run->n, &r->params, chunks[i], r->run->n - 1, again))
            continue;
        gold_check(c, !memcmp(last, again, vocab * sizeof *last) && gold_same_state(seq, other),
                   "%s in chunks of %d: logits and state have the same bits", r->run->name, chunks[i]);
    }
    /* The limits of a replay are for its last row; decoded rows scatter like those of the exact run. */
    struct gold_limits limit = r->run->limit;
    limit.rel_p95 = fmax(limit.rel_p95, r->base->limit.rel_p95);
    limit.top1_gap = fmax(limit.top1_gap, r->base->limit.top1_gap);
    struct gold_decode d = {.c = c,
                            .limit = &limit,
                            .step = r->step,
                            .seq = seq,
                            .rewind = rewind_replay,
                            .ctx = &a,
                            .greedy = gold_json(r->run->json, "greedy"),
                            .spec = gold_json(r->run->json, "spec")};
    snprintf(d.logits, sizeof d.logits, "%s/greedy.logits", r->run->name);
    snprintf(d.drafts, sizeof d.drafts, "%s/spec.draft_logits", r->run->name);
    gold_decode(&d);
out:
    mdl_seq_free(prefix);
    mdl_seq_free(other);
    mdl_seq_free(seq);
}

void gold_replay(struct gold_case *c, const struct gold_run *base_run, const struct gold_run *replay_run)
{
    struct gold_run base = *base_run, run = *replay_run;
    static const struct {
        const char *name;
        void (*run)(struct replay *);
    } suites[] = {{"layers", forced}, {"free", free_run}};
    struct replay r = {.c = c, .base = &base, .run = &run, .rows = gold_longest(c)};
    r.params.replay = gold_int(run.json, "R", 0);
    r.params.full_bridge = !strcmp(gold_string(run.json, "l20_window"), "full");
    r.params.hit = gold_int(run.json, "H", 0);
    r.params.hit_window = json_is_true(gold_json(run.json, "encoder_swa_available"));
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        if (!gold_begin(c, "%s %s", run.name, suites[i].name))
            continue;
        /* Ids may be a copy that lives as long as a suite. */
        base.ids = run.ids = gold_run_ids(c, base.name);
        int rows = run.n > gold_decode_rows(c) ? run.n : gold_decode_rows(c);
        if (gold_check(c, run.ids && run.n >= 1 && run.n <= base.n, "%s: N of %d lies in the exact run", run.name,
                       run.n) &&
            (r.step = gold_step(c, rows, r.rows)))
            suites[i].run(&r);
        mdl_step_free(r.step);
        r.step = NULL;
        gold_end(c);
    }
}
