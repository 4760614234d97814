/* A loaded model: checkpoint, tables, CPU path and compute team in one object.
 *
 * Everything in it is immutable after open and may be shared, except the team, which serves one caller at a time; so
 * one struct mdl_model belongs to one engine thread. */
#ifndef WEFT_MODEL_MODEL_H
#define WEFT_MODEL_MODEL_H

#include "model/backend.h"
#include "model/checkpoint.h"
#include "model/compute.h"
#include "model/rope.h"

struct mdl_model {
    struct mdl_checkpoint *ck;
    const struct mdl_config *cfg; /* = &ck->config */
    struct mdl_rope rope;
    struct mdl_exec exec;
    struct mdl_team *team;
    const struct mdl_compute *compute; /* NULL: this machine; else cfg is all that there is (compute.h) */
};

/* threads 0: one per usable CPU. cpu NULL: environment WEFT_CPU, else the machine's best path. part, revision: as in
 * checkpoint.h.
 */
int mdl_model_open_part(const char *dir, enum mdl_part part, uint64_t revision, int threads, const char *cpu,
                        struct mdl_model **out, struct cfg_error *err);
/* All of it, whatever its revision. */
int mdl_model_open(const char *dir, int threads, const char *cpu, struct mdl_model **out, struct cfg_error *err);
void mdl_model_close(struct mdl_model *m);

#endif
