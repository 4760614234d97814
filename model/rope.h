/* Rotary position tables: one plain (layers without global KV, drafter) and one YaRN-scaled (all other layers).
 * Adjacent channel pairs (2i, 2i+1) of the last rope_dim channels are rotated, float32 maths, bf16 result. Immutable
 * after init; any thread. */
#ifndef WEFT_MODEL_ROPE_H
#define WEFT_MODEL_ROPE_H

#include <stdbool.h>

#include "model/config.h"

enum { MDL_ROPE_MAX_HALF = 256 };

enum mdl_rope_table { MDL_ROPE_PLAIN, MDL_ROPE_YARN };

struct mdl_rope {
    int half; /* pairs */
    float freq[2][MDL_ROPE_MAX_HALF];
};

/* cos and sin of one position, [half] each. */
struct mdl_rope_angle {
    float cos[MDL_ROPE_MAX_HALF], sin[MDL_ROPE_MAX_HALF];
};

void mdl_rope_init(const struct mdl_config *cfg, struct mdl_rope *out);
/* The angle is the float32 product position x frequency, as in the published tables. */
void mdl_rope_angle_at(const struct mdl_rope *r, enum mdl_rope_table table, int64_t pos, struct mdl_rope_angle *out);
/* Rotates the last 2*half of dim channels in place; inverse = conjugate. */
void mdl_rope_rotate(const struct mdl_rope *r, const struct mdl_rope_angle *a, bool inverse, int dim, uint16_t *x);

#endif
