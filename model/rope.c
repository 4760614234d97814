#include "model/rope.h"

#include <math.h>

#include "model/numerics.h"

static double yarn_dim(const struct mdl_config *c, double rotations)
{
    return c->rope_dim * log(c->yarn_original_len / (2.0 * M_PI * rotations)) / (2.0 * log(c->compress_rope_theta));
}

void mdl_rope_init(const struct mdl_config *c, struct mdl_rope *out)
{
    out->half = c->rope_dim / 2;
    bool scaled = c->yarn_original_len > 0 && c->yarn_factor != 1.0;
    float lo = 0, hi = 0;
    if (scaled) {
        lo = (float)fmax(floor(yarn_dim(c, c->yarn_beta_fast)), 0.0);
        hi = (float)fmin(ceil(yarn_dim(c, c->yarn_beta_slow)), c->rope_dim - 1.0);
    }
    for (int i = 0; i < out->half; i++) {
        float f = (float)(1.0 / pow(c->compress_rope_theta, 2.0 * i / c->rope_dim));
        out->freq[MDL_ROPE_PLAIN][i] = (float)(1.0 / pow(c->rope_theta, 2.0 * i / c->rope_dim));
        if (scaled) {
            float ramp = ((float)i - lo) / fmaxf(hi - lo, 1e-3f);
            ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
            f = f / (float)c->yarn_factor * ramp + f * (1.0f - ramp);
        }
        out->freq[MDL_ROPE_YARN][i] = f;
    }
}

void mdl_rope_angle_at(const struct mdl_rope *r, enum mdl_rope_table table, int64_t pos, struct mdl_rope_angle *out)
{
    for (int i = 0; i < r->half; i++) {
        float angle = (float)pos * r->freq[table][i];
        out->cos[i] = (float)cos((double)angle);
        out->sin[i] = (float)sin((double)angle);
    }
}

void mdl_rope_rotate(const struct mdl_rope *r, const struct mdl_rope_angle *a, bool inverse, int dim, uint16_t *x)
{
    uint16_t *p = x + dim - 2 * r->half;
    for (int i = 0; i < r->half; i++) {
        float re = mdl_from_bf16(p[2 * i]), im = mdl_from_bf16(p[2 * i + 1]);
        float c = a->cos[i], s = inverse ? -a->sin[i] : a->sin[i];
        p[2 * i] = mdl_to_bf16(re * c - im * s);
        p[2 * i + 1] = mdl_to_bf16(re * s + im * c);
    }
}
