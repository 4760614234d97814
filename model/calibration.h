/* From what the confidence head says to how likely a draft is kept.
 *
 * The head was trained on the overlap of two distributions; what counts is whether the draft is accepted, which depends
 * on how tokens are chosen. So there is one vector per way of choosing, and per draft position k
 *
 *     c_k = sigmoid(logit_k / temperature_k + shift_k)
 *
 * fitted by `weft calibrate` from blocks that were verified whole. The file calibration.json beside a model holds the
 * vectors and the revision of the model that they were fitted for.
 *
 * Immutable after reading; any thread. */
#ifndef WEFT_MODEL_CALIBRATION_H
#define WEFT_MODEL_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "config/error.h"
#include "model/config.h"

#define MDL_CALIBRATION_FILE "calibration.json"

/* How the target's token is chosen and a draft compared with it. */
enum mdl_choice {
    MDL_CHOICE_GREEDY, /* temperature 0 */
    MDL_CHOICE_MATCH,  /* drawn; a draft is kept when it is the token drawn */
    MDL_CHOICE_REJECT, /* rejection sampling */
    MDL_CHOICES
};
extern const char *const mdl_choice_names[MDL_CHOICES + 1]; /* NULL at the end */

struct mdl_calibration_place {
    double temperature, shift; /* 1 and 0: the head as it is */
};

struct mdl_calibration {
    int places;
    bool fitted[MDL_CHOICES];
    struct mdl_calibration_place at[MDL_CHOICES][MDL_MAX_BLOCK];
};

/* The head as it is. */
void mdl_calibration_identity(struct mdl_calibration *c, int places);
/* 0..1; NaN gives 0. A choice without a vector of its own uses the head as it is: how often drafts are kept differs
 * between choices by more than the head is wrong. */
float mdl_calibrated(const struct mdl_calibration *c, enum mdl_choice choice, int position, float logit);

/* -ENOENT: there is no file. -EINVAL: damaged, or for another model or block length; err says which and what to do. *c
 * is the identity then. */
int mdl_calibration_read(const char *path, uint64_t revision, int places, struct mdl_calibration *c,
                         struct cfg_error *err);
int mdl_calibration_write(const char *path, uint64_t revision, const struct mdl_calibration *c, struct cfg_error *err);

/* ---- fitting ---- */

/* Blocks that were verified whole: logit f32 [n][places] and how many drafts of each were kept. */
struct mdl_probes {
    int n, places;
    const float *logit;
    const int *kept;
};

/* Expected calibration error of the survival of draft k (the product of confidences up to it): |mean survival - share
 * kept| over 20 equal bins, weighted by blocks. */
double mdl_calibration_error(const struct mdl_probes *p, const struct mdl_calibration_place *at, int k);
/* For a reliability plot: per bin the blocks, their mean survival, and the share kept. */
enum { MDL_CALIBRATION_BINS = 20 };
struct mdl_reliability {
    int n[MDL_CALIBRATION_BINS];
    double survival[MDL_CALIBRATION_BINS], kept[MDL_CALIBRATION_BINS];
};
void mdl_calibration_reliability(const struct mdl_probes *p, const struct mdl_calibration_place *at, int k,
                                 struct mdl_reliability *out);

enum mdl_fit {
    MDL_FIT_TEMPERATURE, /* sequential temperature scaling: least calibration error of the product up to k */
    MDL_FIT_SHIFT,       /* temperature and shift: least log loss of the same product */
};
/* Position after position, those before it fixed. at: [places]. -ENODATA: fewer than 50 blocks. */
int mdl_calibration_fit(const struct mdl_probes *p, enum mdl_fit how, struct mdl_calibration_place *at);

#endif
