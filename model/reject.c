#include "model/reject.h"

#include "model/sampler.h"

enum { STREAM_DRAFT = 1, STREAM_COIN, STREAM_FINAL, STREAM_KEY, PLACE_SHIFT = 8 };

/* Residual mass below this share is rounding of two equal distributions. */
static const double RESIDUAL_MIN = 1e-8;

static double mass_of(const float *w, int vocab)
{
    double sum = 0;
    for (int i = 0; i < vocab; i++)
        sum += (double)w[i];
    return sum;
}

static int32_t draw(const float *w, int vocab, double u)
{
    double total = mass_of(w, vocab), sum = 0;
    int32_t last = 0;
    for (int i = 0; i < vocab; i++) {
        sum += (double)w[i];
        if (sum > u * total)
            return i;
        last = w[i] > 0 ? i : last;
    }
    return last;
}

uint64_t mdl_reject_key(uint64_t seed, uint64_t request)
{
    uint32_t r[4];
    mdl_random(seed, request, STREAM_KEY, r);
    return (uint64_t)r[0] << 32 | r[1];
}

int32_t mdl_reject_draft(const float *q, int vocab, uint64_t key, int64_t position, int place)
{
    uint32_t stream = STREAM_DRAFT | (uint32_t)place << PLACE_SHIFT;
    return draw(q, vocab, mdl_random_unit(key, (uint64_t)position, stream));
}

/* From max(p - q, 0). */
static int32_t draw_residual(const float *p, double p_mass, const float *q, double q_mass, int vocab, double u)
{
    double total = 0, sum = 0;
    int32_t last = 0;
    for (int i = 0; i < vocab; i++) {
        double r = (double)p[i] / p_mass - (double)q[i] / q_mass;
        total += r > 0 ? r : 0;
    }
    if (total < RESIDUAL_MIN)
        return draw(p, vocab, u);
    for (int i = 0; i < vocab; i++) {
        double r = (double)p[i] / p_mass - (double)q[i] / q_mass;
        if (r <= 0)
            continue;
        sum += r;
        last = i;
        if (sum > u * total)
            return i;
    }
    return last;
}

int32_t mdl_reject_choose(const float *p, const float *q, int32_t draft, int vocab, uint64_t key, int64_t position)
{
    double u = mdl_random_unit(key, (uint64_t)position, STREAM_FINAL);
    if (!q)
        return draw(p, vocab, u);
    double coin = mdl_random_unit(key, (uint64_t)position, STREAM_COIN);
    double p_mass = mass_of(p, vocab), q_mass = mass_of(q, vocab);
    if (coin * ((double)q[draft] / q_mass) < (double)p[draft] / p_mass)
        return draft;
    return draw_residual(p, p_mass, q, q_mass, vocab, u);
}
