/* The sampler: each step of the order in model/sampler.h, exact reproducibility, and frequencies against
 * probabilities. */
#include "tests/harness.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/sampler.h"

enum { N = 8, DRAWS = 20000 };
static const float eight[N] = {1.0f, 0.5f, 2.0f, -1.0f, 0.0f, 1.5f, -3.0f, 0.25f};

static int32_t sample(const struct mdl_sampling *s, const float *logits, int vocab, const int32_t *history,
                      int n_history, int n_prompt, int64_t position, struct mdl_logprobs *lp)
{
    struct cfg_error err = {0};
    struct mdl_sampler *b = mdl_sampler_new(vocab);
    int32_t id = -1;
    cr_assert(b != NULL);
    cr_assert(mdl_sampling_check(s, vocab, &err) == 0, "%s", err.msg);
    cr_assert(mdl_sampler_sample(b, s, logits, vocab, history, n_history, n_prompt, position, &id, lp, &err) == 0, "%s",
              err.msg);
    mdl_sampler_free(b);
    return id;
}

/* How often each of n tokens is drawn at positions 0..DRAWS-1. */
static void count_draws(const struct mdl_sampling *s, const float *logits, int n, const int32_t *history, int n_history,
                        int n_prompt, int *count)
{
    struct cfg_error err = {0};
    struct mdl_sampler *b = mdl_sampler_new(n);
    cr_assert(mdl_sampling_check(s, n, &err) == 0, "%s", err.msg);
    memset(count, 0, (size_t)n * sizeof *count);
    for (int64_t pos = 0; pos < DRAWS; pos++) {
        int32_t id;
        cr_assert(mdl_sampler_sample(b, s, logits, n, history, n_history, n_prompt, pos, &id, NULL, &err) == 0);
        count[id]++;
    }
    mdl_sampler_free(b);
}

/* weight: relative probabilities, 0 for tokens that must never come. Five standard deviations; the seed is fixed. */
static void expect_frequencies(const int *count, const double *weight, int n)
{
    double total = 0;
    for (int i = 0; i < n; i++)
        total += weight[i];
    for (int i = 0; i < n; i++) {
        double p = weight[i] / total, want = p * DRAWS, sigma = sqrt(DRAWS * p * (1 - p));
        cr_expect(p == 0 ? count[i] == 0 : fabs(count[i] - want) <= 5 * sigma,
                  "token %d: %d draws, expected %.1f +- %.1f", i, count[i], want, sigma);
    }
}

static struct mdl_sampling recipe(void)
{
    struct mdl_sampling s;
    mdl_sampling_init(&s);
    s.seed = 42;
    return s;
}

Test(sampler, generator_is_philox)
{
    /* known answers of Philox 4x32-10 */
    static const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    uint32_t r[4], again[4];
    mdl_random(0, 0, 0, r);
    cr_expect(memcmp(r, zero, sizeof r) == 0, "%08x %08x %08x %08x", r[0], r[1], r[2], r[3]);
    mdl_random(1, 2, 3, r);
    mdl_random(1, 2, 3, again);
    cr_expect(memcmp(r, again, sizeof r) == 0);
    mdl_random(1, 2, 4, again);
    cr_expect(memcmp(r, again, sizeof r) != 0);
    mdl_random(1, 3, 3, again);
    cr_expect(memcmp(r, again, sizeof r) != 0);
    double sum = 0;
    for (uint64_t i = 0; i < 4096; i++) {
        double u = mdl_random_unit(7, i, 0);
        cr_assert(u >= 0 && u < 1);
        sum += u;
    }
    cr_expect(fabs(sum / 4096 - 0.5) < 0.02, "%f", sum / 4096);
}

Test(sampler, temperature_zero_takes_the_best_and_the_lowest_of_equals)
{
    struct mdl_sampling s = recipe();
    s.temperature = 0;
    cr_expect(sample(&s, eight, N, NULL, 0, 0, 0, NULL) == 2);
    float equal[4] = {1, 3, 3, 3};
    for (int64_t pos = 0; pos < 20; pos++)
        cr_expect(sample(&s, equal, 4, NULL, 0, 0, pos, NULL) == 1);
    float zeros[3] = {-0.0f, 0.0f, -1};
    cr_expect(sample(&s, zeros, 3, NULL, 0, 0, 0, NULL) == 0);
}

Test(sampler, frequencies_follow_the_softmax)
{
    struct mdl_sampling s = recipe();
    int count[N];
    double weight[N];
    for (int t = 0; t < 3; t++) {
        s.temperature = (double[]){1, 0.5, 2}[t];
        for (int i = 0; i < N; i++)
            weight[i] = exp(eight[i] / s.temperature);
        count_draws(&s, eight, N, NULL, 0, 0, count);
        expect_frequencies(count, weight, N);
    }
}

Test(sampler, top_k_keeps_k_and_of_equals_the_lower_ids)
{
    struct mdl_sampling s = recipe();
    int count[N];
    s.top_k = 3;
    count_draws(&s, eight, N, NULL, 0, 0, count);
    expect_frequencies(count, (double[N]){exp(1), 0, exp(2), 0, 0, exp(1.5)}, N);
    float equal[N] = {1, 1, 1, 1, 1, 1, 1, 1};
    count_draws(&s, equal, N, NULL, 0, 0, count);
    expect_frequencies(count, (double[N]){1, 1, 1}, N);
    s.top_k = 1;
    count_draws(&s, eight, N, NULL, 0, 0, count);
    cr_expect(count[2] == DRAWS);
    s.top_k = 1000;
    count_draws(&s, equal, N, NULL, 0, 0, count);
    expect_frequencies(count, (double[N]){1, 1, 1, 1, 1, 1, 1, 1}, N);
}

Test(sampler, top_p_keeps_the_fewest_that_reach_the_mass)
{
    struct mdl_sampling s = recipe();
    float logits[4] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    int count[4];
    s.top_p = 0.65; /* 0.4 + 0.3 */
    count_draws(&s, logits, 4, NULL, 0, 0, count);
    expect_frequencies(count, (double[4]){0, 0.4, 0, 0.3}, 4);
    s.top_p = 0.75; /* one more */
    count_draws(&s, logits, 4, NULL, 0, 0, count);
    expect_frequencies(count, (double[4]){0, 0.4, 0.2, 0.3}, 4);
    s.top_p = 1e-9; /* never none */
    count_draws(&s, logits, 4, NULL, 0, 0, count);
    cr_expect(count[1] == DRAWS);
    s.top_p = 0.9; /* of the mass that top_k left: 0.4 and 0.3 are all of it */
    s.top_k = 2;
    count_draws(&s, logits, 4, NULL, 0, 0, count);
    expect_frequencies(count, (double[4]){0, 0.4, 0, 0.3}, 4);
    s.top_p = 0.5; /* 0.4 of 0.7 is enough */
    count_draws(&s, logits, 4, NULL, 0, 0, count);
    cr_expect(count[1] == DRAWS);
}

Test(sampler, min_p_is_relative_to_the_best)
{
    struct mdl_sampling s = recipe();
    float logits[4] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    int count[4];
    for (int k = 0; k < 2; k++) { /* both ways of drawing */
        s.top_k = k ? 3 : 0;
        s.min_p = 0.6;
        count_draws(&s, logits, 4, NULL, 0, 0, count);
        expect_frequencies(count, (double[4]){0, 0.4, 0, 0.3}, 4);
        s.min_p = 1;
        count_draws(&s, logits, 4, NULL, 0, 0, count);
        cr_expect(count[1] == DRAWS);
    }
}

Test(sampler, penalties_and_bias)
{
    struct mdl_sampling s = recipe();
    const int32_t history[] = {0, 6, 2, 2, 5, -1, 99}; /* prompt 0 6; output 2 2 5 and ids that are none */
    s.temperature = 0;
    struct {
        double repetition, presence, frequency;
        float bias;
        int32_t want;
    } cases[] = {
        {1, 0, 0, 0, 2},    {2.1, 0, 0, 0, 7}, /* 2/2.1, 1/2.1, 1.5/2.1 below ... */
        {1, 0.8, 0, 0, 2},                     /* 1.2 is still the best */
        {1, 1.2, 0, 0, 0},                     /* 2: 0.8, 5: 0.3; 0 is of the prompt only */
        {1, 0, 0.7, 0, 0},                     /* 2: 0.6, 5: 0.8 */
        {1, 0, 0, 1.5f, 1},                    /* bias on 1 */
        {1, 0, 0, -100, 2},
    };
    static const float logits[N] = {1.0f, 0.6f, 2.0f, -1.0f, 0.0f, 1.5f, -3.0f, 0.96f};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mdl_logit_bias bias = {1, cases[i].bias};
        s.repetition_penalty = cases[i].repetition;
        s.presence_penalty = cases[i].presence;
        s.frequency_penalty = cases[i].frequency;
        s.bias = &bias;
        s.n_bias = 1;
        int32_t got = sample(&s, logits, N, history, 7, 2, 0, NULL);
        cr_expect(got == cases[i].want, "case %zu: %d, not %d", i, got, cases[i].want);
    }
    /* a negative logit is multiplied */
    s = recipe();
    s.temperature = 0;
    s.repetition_penalty = 2;
    float negative[3] = {-1, -1.5f, -9};
    cr_expect(sample(&s, negative, 3, (int32_t[]){0}, 1, 1, 0, NULL) == 1);
}

Test(sampler, penalties_shift_frequencies_exactly)
{
    struct mdl_sampling s = recipe();
    int count[N];
    const int32_t history[] = {0, 2, 2, 5};
    double weight[N];
    s.frequency_penalty = 0.5;
    s.presence_penalty = 0.25;
    for (int i = 0; i < N; i++)
        weight[i] = exp(eight[i]);
    weight[2] = exp(eight[2] - 2 * 0.5 - 0.25);
    weight[5] = exp(eight[5] - 0.5 - 0.25);
    count_draws(&s, eight, N, history, 4, 1, count);
    expect_frequencies(count, weight, N);
    /* and the scratch is clean afterwards */
    count_draws(&s, eight, N, NULL, 0, 0, count);
    weight[2] = exp(eight[2]);
    weight[5] = exp(eight[5]);
    expect_frequencies(count, weight, N);
}

Test(sampler, result_depends_on_arguments_only)
{
    enum { V = 5000 };
    static float logits[V];
    struct cfg_error err = {0};
    struct mdl_sampler *shared = mdl_sampler_new(V);
    int32_t history[64];
    int differ = 0;
    for (int i = 0; i < V; i++)
        logits[i] = (float)(8 * mdl_random_unit(1, (uint64_t)i, 9));
    for (int i = 0; i < 64; i++)
        history[i] = i * 7;
    for (int64_t pos = 0; pos < 100; pos++) {
        struct mdl_sampling s = recipe();
        s.seed = (uint64_t)pos % 3;
        s.temperature = 0.8;
        s.top_k = pos % 2 ? 700 : 0;
        s.top_p = pos % 3 ? 0.9 : 1;
        s.presence_penalty = pos % 5 ? 0.5 : 0;
        int32_t one, two, other;
        one = sample(&s, logits, V, history, 64, 10, pos, NULL);
        cr_assert(mdl_sampler_sample(shared, &s, logits, V, history, 64, 10, pos, &two, NULL, &err) == 0);
        cr_expect(one == two);
        s.seed += 1000;
        cr_assert(mdl_sampler_sample(shared, &s, logits, V, history, 64, 10, pos, &other, NULL, &err) == 0);
        differ += other != one;
    }
    cr_expect(differ > 90, "%d", differ);
    mdl_sampler_free(shared);
}

/* Pinned tokens: a change of the arithmetic or the generator is a change of what users get for a seed. */
Test(sampler, pinned_tokens)
{
    enum { V = 1000 };
    static float logits[V];
    static const int32_t want_plain[6] = {609, 990, 825, 733, 325, 311}, want_sorted[6] = {205, 641, 390, 680, 574, 53};
    struct mdl_sampling s = recipe();
    for (int i = 0; i < V; i++)
        logits[i] = (float)((i * 7919) % 1009) / 128;
    for (int64_t pos = 0; pos < 6; pos++) {
        s.top_p = 1;
        int32_t got = sample(&s, logits, V, NULL, 0, 0, pos, NULL);
        cr_expect(got == want_plain[pos], "plain, position %d: %d", (int)pos, got);
        s.top_p = 0.8;
        got = sample(&s, logits, V, NULL, 0, 0, pos, NULL);
        cr_expect(got == want_sorted[pos], "sorted, position %d: %d", (int)pos, got);
    }
}

static int by_falling_logit(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Partial selection against a full sort, on sizes and shapes that trouble quickselects. */
Test(sampler, selection_equals_a_full_sort)
{
    static float logits[3000], sorted[3000];
    static const int sizes[] = {1, 2, 3, 5, 63, 64, 65, 600, 3000};
    for (int shape = 0; shape < 5; shape++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            int n = sizes[k];
            for (int i = 0; i < n; i++) {
                double r = mdl_random_unit(3, (uint64_t)i, (uint32_t)shape);
                logits[i] = shape == 0   ? (float)(r * 4)
                            : shape == 1 ? (float)i / (float)n
                            : shape == 2 ? -(float)i / (float)n
                            : shape == 3 ? (float)(int)(r * 3)
                                         : (float)(i % 2 ? i : -i) / (float)n;
            }
            memcpy(sorted, logits, (size_t)n * sizeof *sorted);
            qsort(sorted, (size_t)n, sizeof *sorted, by_falling_logit);
            for (int t = 0; t < 20; t++) {
                struct mdl_sampling s = recipe();
                s.top_k = 1 + (int)(mdl_random_unit(4, (uint64_t)t, 0) * n);
                int32_t id = sample(&s, logits, n, NULL, 0, 0, t, NULL);
                cr_expect(logits[id] >= sorted[(s.top_k < n ? s.top_k : n) - 1]);
                /* the same set of tokens by top_p alone draws the same token */
                double mass = 0, kept = 0;
                for (int i = 0; i < n; i++) {
                    double w = exp((double)sorted[i] - (double)sorted[0]);
                    mass += w;
                    kept += i < s.top_k ? w : 0;
                }
                struct mdl_sampling p = recipe();
                p.top_p = kept / mass - 1e-9;
                if (s.top_k < n && p.top_p > 0)
                    cr_expect(sample(&p, logits, n, NULL, 0, 0, t, NULL) == id, "shape %d, %d of %d", shape, s.top_k,
                              n);
            }
        }
}

Test(sampler, logprobs_are_of_the_model)
{
    struct mdl_sampling s = recipe();
    struct mdl_logprobs lp;
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += exp(eight[i]);
    s.temperature = 0.3;
    s.top_logprobs = 3;
    s.presence_penalty = 2;
    int32_t id = sample(&s, eight, N, (int32_t[]){2, 2}, 2, 0, 5, &lp);
    cr_expect(fabs(lp.logprob - (eight[id] - log(sum))) < 1e-12, "%.17g", lp.logprob);
    cr_assert(lp.n_top == 3);
    const int32_t want[3] = {2, 5, 0};
    for (int i = 0; i < 3; i++) {
        cr_expect(lp.top[i].id == want[i]);
        cr_expect(fabs(lp.top[i].logprob - (eight[want[i]] - log(sum))) < 1e-12);
    }
    s.top_logprobs = 20;
    sample(&s, eight, N, NULL, 0, 0, 5, &lp);
    cr_expect(lp.n_top == N);
    s.top_logprobs = 0;
    sample(&s, eight, N, NULL, 0, 0, 5, &lp);
    cr_expect(lp.n_top == 0);
    float equal[4] = {1, 1, 1, 1};
    s.top_logprobs = 2;
    sample(&s, equal, 4, NULL, 0, 0, 5, &lp);
    cr_expect(lp.top[0].id == 0 && lp.top[1].id == 1 && fabs(lp.logprob + log(4)) < 1e-12);
}

Test(sampler, masked_tokens_never_come)
{
    struct mdl_sampling s = recipe();
    float logits[4] = {0, -INFINITY, 0, -INFINITY};
    int count[4];
    count_draws(&s, logits, 4, NULL, 0, 0, count);
    expect_frequencies(count, (double[4]){1, 0, 1, 0}, 4);
    s.top_k = 3;
    count_draws(&s, logits, 4, NULL, 0, 0, count);
    expect_frequencies(count, (double[4]){1, 0, 1, 0}, 4);
}

Test(sampler, broken_logits_are_an_error)
{
    struct mdl_sampling s = recipe();
    struct mdl_sampler *b = mdl_sampler_new(3);
    struct cfg_error err = {0};
    int32_t id = 7;
    float nan_[3] = {0, NAN, 1}, inf_[3] = {0, 1, INFINITY}, none[3] = {-INFINITY, -INFINITY, -INFINITY};
    cr_expect(mdl_sampler_sample(b, &s, nan_, 3, NULL, 0, 0, 0, &id, NULL, &err) == -EDOM);
    cr_expect(strstr(err.msg, "token 1") != NULL, "%s", err.msg);
    cr_expect(mdl_sampler_sample(b, &s, inf_, 3, NULL, 0, 0, 0, &id, NULL, &err) == -EDOM);
    cr_expect(strstr(err.msg, "token 2") != NULL, "%s", err.msg);
    cr_expect(mdl_sampler_sample(b, &s, none, 3, NULL, 0, 0, 0, &id, NULL, &err) == -EDOM);
    cr_expect(strstr(err.msg, "masked") != NULL, "%s", err.msg);
    cr_expect(mdl_sampler_sample(b, &s, none, 4, NULL, 0, 0, 0, &id, NULL, &err) == -EINVAL);
    cr_expect(id == 7);
    mdl_sampler_free(b);
}

static void expect_refused(struct mdl_sampling s, const char *field)
{
    struct cfg_error err = {0};
    cr_expect(mdl_sampling_check(&s, 100, &err) == -EINVAL && strstr(err.msg, field), "%s: %s", field, err.msg);
}

Test(sampler, ranges_are_checked_by_name)
{
    struct mdl_logit_bias bias[2] = {{5, 0}, {5, 1}};
#define REFUSE(field, value)                                                                                           \
    do {                                                                                                               \
        struct mdl_sampling s = recipe();                                                                              \
        s.field = value;                                                                                               \
        expect_refused(s, #field);                                                                                     \
    } while (0)
    REFUSE(temperature, -0.1);
    REFUSE(temperature, NAN);
    REFUSE(temperature, 101);
    REFUSE(top_k, -1);
    REFUSE(top_p, 0);
    REFUSE(top_p, 1.01);
    REFUSE(min_p, -0.01);
    REFUSE(min_p, 2);
    REFUSE(repetition_penalty, 0);
    REFUSE(repetition_penalty, 11);
    REFUSE(presence_penalty, 2.5);
    REFUSE(frequency_penalty, -2.5);
    REFUSE(top_logprobs, 21);
    struct mdl_sampling s = recipe();
    s.bias = bias;
    s.n_bias = 2;
    expect_refused(s, "logit_bias names token 5 twice");
    bias[1].id = 100;
    expect_refused(s, "logit_bias names token 100");
    bias[1] = (struct mdl_logit_bias){6, 101};
    expect_refused(s, "logit_bias of token 6");
    s.n_bias = MDL_MAX_LOGIT_BIAS + 1;
    expect_refused(s, "logit_bias has");
    s = recipe();
    struct cfg_error err;
    cr_expect(mdl_sampling_check(&s, 100, &err) == 0);
}
