#include "model/sampler.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NEGLIGIBLE (-64.0) /* exponents below this weigh nothing */

enum { BLOCK = 64 };

struct mdl_sampler {
    int cap;
    float *logit;   /* after penalties and bias */
    double *weight; /* exp of the scaled logits, the best is 1 */
    uint64_t *key;  /* candidates: falling keys are falling logits, then rising ids */
    int32_t *count; /* per id; all zero between calls */
};

void mdl_random(uint64_t seed, uint64_t position, uint32_t stream, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), stream, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof c);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    memcpy(out, c, sizeof c);
}

double mdl_random_unit(uint64_t seed, uint64_t position, uint32_t stream)
{
    uint32_t r[4];
    mdl_random(seed, position, stream, r);
    return (double)(((uint64_t)r[0] << 32 | r[1]) >> 11) * 0x1p-53;
}

/* x becomes exp(x), for x <= 0; 0 below NEGLIGIBLE. Within two units of the last place. Multiplications and additions
 * in the order written, so the same bits everywhere, which the C library does not promise. BLOCK values at a time,
 * which compilers turn into vector code; lanes do not depend on each other. */
static void exp_block(double x[BLOCK])
{
    static const double inverse[] = {
        1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
    const double round = 0x1.8p52; /* added: the fraction is rounded off and the low bits are the whole number */
    double r[BLOCK], p[BLOCK];
    uint64_t scale[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        double y = x[i] >= NEGLIGIBLE ? x[i] : NEGLIGIBLE;
        double k = y * 1.4426950408889634 + round, n = k - round;
        memcpy(&scale[i], &k, sizeof k);
        r[i] = (y - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33; /* ln 2 in two parts; |r| <= ln 2 / 2 */
        p[i] = 1.0 / 6227020800;
    }
    for (size_t c = 0; c < sizeof inverse / sizeof *inverse; c++)
        for (int i = 0; i < BLOCK; i++)
            p[i] = p[i] * r[i] + inverse[c];
    for (int i = 0; i < BLOCK; i++) {
        uint64_t bits = (scale[i] << 52) + ((uint64_t)1023 << 52);
        double two_n;
        memcpy(&two_n, &bits, sizeof bits);
        x[i] = x[i] >= NEGLIGIBLE ? p[i] * two_n : 0;
    }
}

/* Natural logarithm of x >= 1, to about 1e-15; the same bits everywhere. */
static double log_fixed(double x)
{
    int n;
    double m = frexp(x, &n);
    if (m < 0.70710678118654752) {
        m *= 2;
        n--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int k = 21; k >= 1; k -= 2)
        sum = sum * s2 + 1.0 / k;
    return n * 0.69314718055994531 + 2 * s * sum;
}

void mdl_sampling_init(struct mdl_sampling *s)
{
    *s = (struct mdl_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

static int out_of_range(struct cfg_error *err, const char *field, double value, const char *range)
{
    return cfg_error_set(err, EINVAL, "%s is %g; it must be %s", field, value, range);
}

static int check_bias(const struct mdl_sampling *s, int vocab, struct cfg_error *err)
{
    if (s->n_bias < 0 || s->n_bias > MDL_MAX_LOGIT_BIAS)
        return cfg_error_set(err, EINVAL, "logit_bias has %d entries; at most %d are allowed", s->n_bias,
                             MDL_MAX_LOGIT_BIAS);
    for (int i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= vocab)
            return cfg_error_set(err, EINVAL, "logit_bias names token %d; ids go from 0 to %d", s->bias[i].id,
                                 vocab - 1);
        if (!(s->bias[i].bias >= -100 && s->bias[i].bias <= 100))
            return cfg_error_set(err, EINVAL, "logit_bias of token %d is %g; it must be from -100 to 100",
                                 s->bias[i].id, (double)s->bias[i].bias);
        for (int k = 0; k < i; k++)
            if (s->bias[k].id == s->bias[i].id)
                return cfg_error_set(err, EINVAL, "logit_bias names token %d twice", s->bias[i].id);
    }
    return 0;
}

int mdl_sampling_check(const struct mdl_sampling *s, int vocab, struct cfg_error *err)
{
    if (!(s->temperature >= 0 && s->temperature <= 100))
        return out_of_range(err, "temperature", s->temperature, "from 0 to 100");
    if (s->top_k < 0)
        return out_of_range(err, "top_k", s->top_k, "0 (all tokens) or above");
    if (!(s->top_p > 0 && s->top_p <= 1))
        return out_of_range(err, "top_p", s->top_p, "above 0 and at most 1");
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return out_of_range(err, "min_p", s->min_p, "from 0 to 1");
    if (!(s->repetition_penalty > 0 && s->repetition_penalty <= 10))
        return out_of_range(err, "repetition_penalty", s->repetition_penalty, "above 0 and at most 10");
    if (!(s->presence_penalty >= -2 && s->presence_penalty <= 2))
        return out_of_range(err, "presence_penalty", s->presence_penalty, "from -2 to 2");
    if (!(s->frequency_penalty >= -2 && s->frequency_penalty <= 2))
        return out_of_range(err, "frequency_penalty", s->frequency_penalty, "from -2 to 2");
    if (s->top_logprobs < 0 || s->top_logprobs > MDL_MAX_TOP_LOGPROBS)
        return out_of_range(err, "top_logprobs", s->top_logprobs, "from 0 to 20");
    return check_bias(s, vocab, err);
}

struct mdl_sampler *mdl_sampler_new(int max_vocab)
{
    struct mdl_sampler *b = calloc(1, sizeof *b);
    size_t n = (size_t)max_vocab;
    if (!b || max_vocab < 1)
        goto fail;
    b->cap = max_vocab;
    b->logit = malloc(n * sizeof *b->logit);
    b->weight = malloc(n * sizeof *b->weight);
    b->key = malloc(n * sizeof *b->key);
    b->count = calloc(n, sizeof *b->count);
    if (b->logit && b->weight && b->key && b->count)
        return b;
fail:
    mdl_sampler_free(b);
    return NULL;
}

void mdl_sampler_free(struct mdl_sampler *b)
{
    if (!b)
        return;
    free(b->logit);
    free(b->weight);
    free(b->key);
    free(b->count);
    free(b);
}

/* Steps 1 and 2. Counts are of the output; an id that only the prompt has counts as seen with count 0. */
static void apply_penalties(struct mdl_sampler *b, const struct mdl_sampling *s, int vocab, const int32_t *history,
                            int n_history, int n_prompt)
{
    enum { SEEN = 1 << 30 };
    for (int i = 0; i < n_history; i++)
        if (history[i] >= 0 && history[i] < vocab)
            b->count[history[i]] = (b->count[history[i]] | SEEN) + (i >= n_prompt);
    for (int i = 0; i < n_history; i++) {
        int32_t id = history[i];
        if (id < 0 || id >= vocab || !b->count[id])
            continue;
        int n = b->count[id] & ~SEEN;
        double l = b->logit[id];
        l = l > 0 ? l / s->repetition_penalty : l * s->repetition_penalty;
        l -= s->frequency_penalty * n;
        if (n)
            l -= s->presence_penalty;
        b->logit[id] = (float)l;
        b->count[id] = 0;
    }
}

int mdl_logits_check(const float *logits, int vocab, struct cfg_error *err)
{
    for (int i = 0; i < vocab; i++)
        if (!(logits[i] < INFINITY))
            return cfg_error_set(err, EDOM, "the logit of token %d is %s; the model's numbers are broken", i,
                                 isnan(logits[i]) ? "not a number" : "infinite");
    return 0;
}

/* Best id (lowest of equals) and a check of all; -1: no usable logit. */
static int32_t best_of(const float *logit, int vocab, struct cfg_error *err)
{
    float top[8] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    bool good = true;
    int32_t best = 0;
    for (int i = 0; i < vocab; i++) {
        float x = logit[i], *t = &top[i % 8];
        good &= x < INFINITY; /* false for NaN too */
        *t = x > *t ? x : *t;
    }
    if (!good) {
        mdl_logits_check(logit, vocab, err);
        return -1;
    }
    for (int i = 1; i < 8; i++)
        top[0] = top[i] > top[0] ? top[i] : top[0];
    if (isinf(top[0])) {
        cfg_error_set(err, EDOM, "every token is masked (all logits are -infinity)");
        return -1;
    }
    while (logit[best] != top[0])
        best++;
    return best;
}

/* weight[i] = exp((logit[i] - best) / temperature) for n logits. */
static void weigh(const float *logit, int n, double best, double temperature, double *weight)
{
    double block[BLOCK];
    for (int i = 0; i < n; i += BLOCK) {
        int m = n - i < BLOCK ? n - i : BLOCK;
        for (int k = 0; k < BLOCK; k++)
            block[k] = k < m ? (logit[i + k] - best) / temperature : 0;
        exp_block(block);
        memcpy(weight + i, block, (size_t)m * sizeof *block);
    }
}

static uint64_t key_of(float logit, int32_t id)
{
    uint32_t u;
    logit += 0.0f; /* -0 equals 0 */
    memcpy(&u, &logit, sizeof u);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

static int32_t id_of(uint64_t key)
{
    return (int32_t) ~(uint32_t)key;
}

/* Moves the k greatest of n different keys to the front, in no order. */
static void select_front(uint64_t *key, size_t n, size_t k)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1 && k > lo && k < hi) {
        uint64_t a = key[lo], m = key[lo + (hi - lo) / 2], z = key[hi - 1];
        uint64_t pivot = a > m ? (m > z ? m : a > z ? z : a) : (a > z ? a : m > z ? z : m);
        size_t i = lo, j = hi - 1;
        for (;;) {
            while (key[i] > pivot)
                i++;
            while (key[j] < pivot)
                j--;
            if (i >= j)
                break;
            uint64_t t = key[i];
            key[i++] = key[j];
            key[j--] = t;
        }
        size_t cut = j + 1; /* [lo, cut) >= pivot >= [cut, hi) */
        if (cut == hi)
            cut--;
        if (k <= cut)
            hi = cut;
        else
            lo = cut;
    }
}

static int falling(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Step 6 on n candidates: sorts just as many of the greatest keys as are needed. Returns how many stay. */
static size_t cut_top_p(struct mdl_sampler *b, size_t n, double top_p)
{
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        total += b->weight[id_of(b->key[i])];
    size_t done = 0;
    for (size_t chunk = 64; done < n; chunk *= 8) {
        size_t end = chunk < n ? chunk : n;
        select_front(b->key + done, n - done, end - done);
        qsort(b->key + done, end - done, sizeof *b->key, falling);
        for (; done < end; done++) {
            sum += b->weight[id_of(b->key[done])];
            if (sum >= top_p * total)
                return done + 1;
        }
    }
    return n;
}

/* Steps 5 to 7 by falling probability; top_k or top_p is in force. Returns how many stay, at the front of key, and
 * their mass. */
static size_t keep_sorted(struct mdl_sampler *b, const struct mdl_sampling *s, int vocab, double *mass)
{
    size_t n = (size_t)vocab;
    for (int i = 0; i < vocab; i++)
        b->key[i] = key_of(b->logit[i], i);
    if (s->top_k && (size_t)s->top_k < n) {
        select_front(b->key, n, (size_t)s->top_k);
        n = (size_t)s->top_k;
        qsort(b->key, n, sizeof *b->key, falling);
    }
    if (s->top_p < 1)
        n = cut_top_p(b, n, s->top_p);
    size_t kept = 0;
    *mass = 0;
    for (; kept < n && (kept == 0 || b->weight[id_of(b->key[kept])] >= s->min_p); kept++)
        *mass += b->weight[id_of(b->key[kept])];
    return kept;
}

static int32_t draw_sorted(struct mdl_sampler *b, const struct mdl_sampling *s, int vocab, double u)
{
    double total, sum = 0;
    size_t kept = keep_sorted(b, s, vocab, &total);
    for (size_t i = 0; i < kept; i++) {
        sum += b->weight[id_of(b->key[i])];
        if (sum > u * total)
            return id_of(b->key[i]);
    }
    return id_of(b->key[0]);
}

/* Step 7; returns the mass. */
static double keep_plain(struct mdl_sampler *b, const struct mdl_sampling *s, int vocab)
{
    double total = 0;
    for (int i = 0; i < vocab; i++) {
        if (b->weight[i] < s->min_p)
            b->weight[i] = 0;
        total += b->weight[i];
    }
    return total;
}

/* Step 8 by rising id. */
static int32_t draw_plain(struct mdl_sampler *b, const struct mdl_sampling *s, int vocab, int32_t best, double u)
{
    double total = keep_plain(b, s, vocab), sum = 0;
    for (int i = 0; i < vocab; i++) {
        sum += b->weight[i];
        if (sum > u * total)
            return i;
    }
    return best;
}

static void fill_logprobs(struct mdl_sampler *b, const float *logit, int vocab, int32_t best, int32_t id, int n_top,
                          struct mdl_logprobs *lp)
{
    double sum = 0;
    uint64_t top[MDL_MAX_TOP_LOGPROBS + 1];
    int n = 0;
    weigh(logit, vocab, logit[best], 1, b->weight);
    for (int i = 0; i < vocab; i++) {
        sum += b->weight[i];
        uint64_t key = key_of(logit[i], i);
        if (n == n_top && (n == 0 || key < top[n - 1]))
            continue;
        int at = n < n_top ? n++ : n - 1;
        for (; at > 0 && top[at - 1] < key; at--)
            top[at] = top[at - 1];
        top[at] = key;
    }
    double norm = logit[best] + log_fixed(sum);
    lp->logprob = logit[id] - norm;
    lp->n_top = n;
    for (int i = 0; i < n; i++) {
        lp->top[i].id = id_of(top[i]);
        lp->top[i].logprob = logit[lp->top[i].id] - norm;
    }
}

/* Steps 1 to 3 into b->logit. The best of them, or -EINVAL, -EDOM; *raw_best: the best of the logits as given. */
static int32_t prepare(struct mdl_sampler *b, const struct mdl_sampling *s, const float *logits, int vocab,
                       const int32_t *history, int n_history, int n_prompt, int32_t *raw_best, struct cfg_error *err)
{
    if (vocab < 1 || vocab > b->cap)
        return cfg_error_set(err, EINVAL, "a vocabulary of %d ids; this sampler was made for 1 to %d", vocab, b->cap);
    *raw_best = best_of(logits, vocab, err);
    if (*raw_best < 0)
        return -EDOM;
    memcpy(b->logit, logits, (size_t)vocab * sizeof *logits);
    bool penalised = s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
    if (penalised)
        apply_penalties(b, s, vocab, history, n_history, n_prompt);
    for (int i = 0; i < s->n_bias; i++)
        b->logit[s->bias[i].id] += s->bias[i].bias;
    int32_t best = penalised || s->n_bias ? best_of(b->logit, vocab, err) : *raw_best;
    return best < 0 ? -EDOM : best;
}

/* Step 4 to 7 begin with these. */
static bool weigh_for_draw(struct mdl_sampler *b, const struct mdl_sampling *s, int vocab, int32_t best)
{
    weigh(b->logit, vocab, b->logit[best], s->temperature, b->weight);
    return s->top_p < 1 || (s->top_k > 0 && s->top_k < vocab);
}

int mdl_sampler_distribution(struct mdl_sampler *b, const struct mdl_sampling *s, const float *logits, int vocab,
                             const int32_t *history, int n_history, int n_prompt, float *weight, struct cfg_error *err)
{
    int32_t raw_best, best = prepare(b, s, logits, vocab, history, n_history, n_prompt, &raw_best, err);
    if (best < 0)
        return best;
    memset(weight, 0, (size_t)vocab * sizeof *weight);
    if (s->temperature <= 0) {
        weight[best] = 1;
    } else if (weigh_for_draw(b, s, vocab, best)) {
        double mass;
        size_t kept = keep_sorted(b, s, vocab, &mass);
        for (size_t i = 0; i < kept; i++)
            weight[id_of(b->key[i])] = (float)b->weight[id_of(b->key[i])];
    } else {
        keep_plain(b, s, vocab);
        for (int i = 0; i < vocab; i++)
            weight[i] = (float)b->weight[i];
    }
    return 0;
}

int mdl_sampler_logprobs(struct mdl_sampler *b, const float *logits, int vocab, int32_t id, int n_top,
                         struct mdl_logprobs *lp, struct cfg_error *err)
{
    int32_t best = vocab < 1 || vocab > b->cap ? -1 : best_of(logits, vocab, err);
    if (best < 0 || id < 0 || id >= vocab)
        return -EDOM;
    fill_logprobs(b, logits, vocab, best, id, n_top < vocab ? n_top : vocab, lp);
    return 0;
}

int mdl_sampler_sample(struct mdl_sampler *b, const struct mdl_sampling *s, const float *logits, int vocab,
                       const int32_t *history, int n_history, int n_prompt, int64_t position, int32_t *id,
                       struct mdl_logprobs *lp, struct cfg_error *err)
{
    int32_t raw_best, best = prepare(b, s, logits, vocab, history, n_history, n_prompt, &raw_best, err);
    if (best < 0)
        return best;
    int32_t chosen = best;
    if (s->temperature > 0) {
        double u = mdl_random_unit(s->seed, (uint64_t)position, 0);
        bool sorted = weigh_for_draw(b, s, vocab, best);
        chosen = sorted ? draw_sorted(b, s, vocab, u) : draw_plain(b, s, vocab, best, u);
    }
    *id = chosen;
    if (lp)
        fill_logprobs(b, logits, vocab, raw_best, chosen, s->top_logprobs < vocab ? s->top_logprobs : vocab, lp);
    return 0;
}
