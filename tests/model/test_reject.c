/* Rejection sampling gives the target's distribution: on small made-up distributions, and on a model's own through the
 * decoder. Seeds are fixed; the bounds are chi-square quantiles that a right implementation misses once in 10,000. */
#include "tests/harness.h"

#include <errno.h>

#include "model/reject.h"
#include "model/sampler.h"
#include "tests/support/chi_square.h"
#include "tests/support/model.h"

enum { TOY = 8, DRAWS = 60000 };

static void random_weights(float *w, uint64_t seed, bool holes)
{
    double scale = 0.1 + 10 * mdl_random_unit(seed, 1000, 0);
    for (int i = 0; i < TOY; i++) {
        double u = mdl_random_unit(seed, (uint64_t)i, 0);
        w[i] = holes && u < 0.3 ? 0 : (float)(scale * u * u);
    }
    w[seed % TOY] += 0.1f;
}

static double shares_of(const float *w, double *share)
{
    double sum = 0;
    for (int i = 0; i < TOY; i++)
        sum += (double)w[i];
    for (int i = 0; i < TOY; i++)
        share[i] = (double)w[i] / sum;
    return sum;
}

Test(reject, keeps_the_distribution)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        float p[TOY], q[TOY];
        double ps[TOY], qs[TOY], overlap = 0;
        int count[TOY] = {0}, kept = 0, drafts[TOY] = {0};
        char what[64];
        random_weights(p, seed, seed % 2);
        random_weights(q, seed + 100, seed % 3 == 0);
        if (seed == 12)
            memcpy(q, p, sizeof q);
        shares_of(p, ps);
        shares_of(q, qs);
        for (int i = 0; i < TOY; i++)
            overlap += ps[i] < qs[i] ? ps[i] : qs[i];
        for (int i = 0; i < DRAWS; i++) {
            int32_t draft = mdl_reject_draft(q, TOY, seed, i, 0), id = mdl_reject_choose(p, q, draft, TOY, seed, i);
            cr_assert(id >= 0 && id < TOY && p[id] > 0 && q[draft] > 0);
            drafts[draft]++;
            count[id]++;
            kept += id == draft;
        }
        snprintf(what, sizeof what, "drafts of pair %d", (int)seed);
        ts_chi_square_check(drafts, qs, TOY, DRAWS, what);
        snprintf(what, sizeof what, "pair %d", (int)seed);
        ts_chi_square_check(count, ps, TOY, DRAWS, what);
        /* As often as any method can: the overlap of the two. */
        cr_assert_float_eq((double)kept / DRAWS, overlap, 0.01, "pair %d keeps %.4f of %.4f", (int)seed,
                           (double)kept / DRAWS, overlap);
    }
}

Test(reject, draws_from_the_target_where_nothing_was_offered)
{
    float p[TOY];
    double ps[TOY];
    int count[TOY] = {0};
    random_weights(p, 5, true);
    shares_of(p, ps);
    for (int i = 0; i < DRAWS; i++)
        count[mdl_reject_choose(p, NULL, 0, TOY, 9, i)]++;
    ts_chi_square_check(count, ps, TOY, DRAWS, "no draft");
}

/* A draft that the target cannot say is never kept, one that is certain always. */
Test(reject, extremes)
{
    const float never[] = {0, 1, 0}, sure[] = {0, 0, 2}, q[] = {1, 0, 1};
    for (int i = 0; i < 1000; i++) {
        cr_expect_eq(mdl_reject_choose(never, q, 2, 3, 1, i), 1);
        cr_expect_eq(mdl_reject_choose(sure, q, 0, 3, 1, i), 2);
        cr_expect_eq(mdl_reject_choose(sure, sure, 2, 3, 1, i), 2);
    }
}

/* What the sampler draws is distributed as the weights that it gives. */
Test(reject, weights_are_those_of_the_sampler)
{
    enum { VOCAB = 12, N = 20000 };
    struct mdl_sampler *b = mdl_sampler_new(VOCAB);
    struct cfg_error err;
    for (int kind = 0; kind < 5; kind++) {
        struct mdl_sampling s;
        float logits[VOCAB], w[VOCAB];
        double share[VOCAB], sum = 0;
        int count[VOCAB] = {0};
        const int32_t history[] = {1, 2, 2, 3, 5};
        mdl_sampling_init(&s);
        s.temperature = kind == 0 ? 0 : 0.8;
        s.top_k = kind == 2 ? 5 : 0;
        s.top_p = kind == 3 ? 0.8 : 1;
        s.min_p = kind == 4 ? 0.2 : 0;
        s.frequency_penalty = 0.3;
        s.repetition_penalty = 1.3;
        for (int i = 0; i < VOCAB; i++)
            logits[i] = (float)(3 * mdl_random_unit(3, (uint64_t)i, 0));
        cr_assert_eq(mdl_sampler_distribution(b, &s, logits, VOCAB, history, 5, 2, w, &err), 0);
        for (int i = 0; i < VOCAB; i++)
            sum += (double)w[i];
        for (int i = 0; i < VOCAB; i++)
            share[i] = (double)w[i] / sum;
        for (int i = 0; i < N; i++) {
            int32_t id;
            cr_assert_eq(mdl_sampler_sample(b, &s, logits, VOCAB, history, 5, 2, i, &id, NULL, &err), 0);
            cr_assert_gt(w[id], 0);
            count[id]++;
        }
        if (kind)
            ts_chi_square_check(count, share, VOCAB, N, "sampler");
    }
    struct mdl_sampling s;
    mdl_sampling_init(&s);
    float bad[] = {1, NAN}, w[2];
    cr_expect_eq(mdl_sampler_distribution(b, &s, bad, 2, NULL, 0, 0, w, &err), -EDOM);
    struct mdl_logprobs lp;
    cr_expect_eq(mdl_sampler_logprobs(b, bad, 2, 0, 0, &lp, &err), -EDOM);
    cr_expect_eq(mdl_sampler_distribution(b, &s, bad, 99, NULL, 0, 0, w, &err), -EINVAL);
    mdl_sampler_free(b);
}

/* ---- through the decoder ---- */

enum { PROMPT = 13, ROUNDS = 1200, DRAFTS = 3 };

struct walker {
    struct mdl_model *m;
    struct mdl_sampler *sampler;
    struct mdl_sampling recipe;
    struct mdl_stream stream;
    float *q, *p; /* [DRAFTS][vocab], [vocab] */
    int offer;
};

static int32_t pick(void *ctx, int pos, float *logits, bool draft)
{
    struct walker *w = ctx;
    struct cfg_error err;
    int vocab = w->m->cfg->vocab_size, place = pos - w->stream.seq->len - 1;
    float *to = draft ? w->q + (size_t)place * (size_t)vocab : w->p;
    cr_assert_eq(mdl_sampler_distribution(w->sampler, &w->recipe, logits, vocab, NULL, 0, 0, to, &err), 0);
    if (draft)
        return mdl_reject_draft(to, vocab, w->recipe.seed, pos, place);
    bool offered = place < w->stream.offer;
    return mdl_reject_choose(w->p, offered ? w->q + (size_t)place * (size_t)vocab : NULL,
                             offered ? w->stream.guess.ids[place] : 0, vocab, w->recipe.seed, pos);
}

static void offer_some(void *ctx, struct mdl_stream *const *streams, int n)
{
    cr_assert_eq(n, 1);
    streams[0]->offer = ((struct walker *)ctx)->offer;
}

/* The first token of rounds from one state over many seeds, and the second one after the most frequent first: each is
 * distributed as the target says, whether 0, 1 or 3 drafts are offered. */
Test(reject, through_the_decoder)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    int vocab = m->cfg->vocab_size, *first = calloc((size_t)vocab, sizeof(int)),
        *second = calloc((size_t)vocab, sizeof(int));
    double *share = calloc((size_t)vocab, sizeof *share);
    struct mdl_step *step = ts_step(m, PROMPT, 40);
    struct cfg_error err;
    struct ts_run r = ts_run_new(m, (struct mdl_seq_params){.rollback = 8, .max_tokens = 40}, 3, PROMPT + 2);
    ts_run_prefill(&r, step, PROMPT, &(struct mdl_prefill_params){.exact = true}, NULL);
    struct walker w = {.m = m, .sampler = mdl_sampler_new(vocab)};
    w.q = malloc((size_t)(DRAFTS * vocab) * sizeof *w.q);
    w.p = malloc((size_t)vocab * sizeof *w.p);
    mdl_sampling_init(&w.recipe);
    w.recipe.temperature = 0.35;
    struct mdl_decoder *d;
    cr_assert_eq(mdl_decoder_new(m, 1, DRAFTS, 40, &d, &err), 0);
    mdl_decoder_set_plan(d, offer_some, &w);
    int32_t start = r.ids[PROMPT];
    for (int offer = 0; offer <= DRAFTS; offer += offer ? 2 : 1) {
        int kept = 0, pairs = 0;
        int32_t often = 0;
        memset(first, 0, (size_t)vocab * sizeof *first);
        memset(second, 0, (size_t)vocab * sizeof *second);
        w.offer = offer;
        w.stream = (struct mdl_stream){.seq = r.seq, .draft = DRAFTS, .limit = 4, .pick = pick, .pick_ctx = &w};
        struct mdl_stream *list = &w.stream;
        for (int pass = 0; pass < 2; pass++) {
            for (int i = 0; i < ROUNDS; i++) {
                w.recipe.seed = (uint64_t)i;
                w.stream.next = start;
                cr_assert_eq(mdl_decoder_round(d, &list, 1, &err), 0);
                kept += pass == 0 ? w.stream.n_emitted - 1 : 0;
                if (pass == 0)
                    first[w.stream.emitted[0]]++;
                else if (w.stream.emitted[0] == often && w.stream.n_emitted > 1) {
                    second[w.stream.emitted[1]]++;
                    pairs++;
                }
                cr_assert_eq(mdl_seq_truncate(r.seq, PROMPT, &err), 0, "%s", err.msg);
            }
            for (int i = 0; i < vocab; i++)
                often = first[i] > first[often] ? i : often;
        }
        char what[64];
        for (int place = 0; place < 2; place++) {
            /* The target's distribution, from a plain row. */
            double sum = 0;
            struct mdl_stream plain = {.seq = r.seq, .limit = 1, .pick = pick, .pick_ctx = &w, .next = start};
            struct mdl_stream *plain_list = &plain;
            w.offer = 0;
            w.stream = plain;
            cr_assert_eq(mdl_decoder_round(d, &plain_list, 1, &err), 0);
            if (place) {
                plain.next = often;
                cr_assert_eq(mdl_decoder_round(d, &plain_list, 1, &err), 0);
            }
            cr_assert_eq(mdl_seq_truncate(r.seq, PROMPT, &err), 0);
            for (int i = 0; i < vocab; i++)
                sum += (double)w.p[i];
            for (int i = 0; i < vocab; i++)
                share[i] = (double)w.p[i] / sum;
            snprintf(what, sizeof what, "%d drafts offered, token %d", offer, place + 1);
            if (!place)
                ts_chi_square_check(first, share, vocab, ROUNDS, what);
            else if (offer > 1 && pairs > 200)
                ts_chi_square_check(second, share, vocab, pairs, what);
        }
        cr_assert(offer ? kept > 10 : kept == 0, "%d drafts kept of %d offered", kept, offer * ROUNDS);
    }
    mdl_decoder_free(d);
    mdl_sampler_free(w.sampler);
    free(w.q);
    free(w.p);
    free(first);
    free(second);
    free(share);
    ts_run_free(&r);
    mdl_step_free(step);
    mdl_model_close(m);
}
