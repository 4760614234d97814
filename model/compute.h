/* Who computes the steps of a model when its kernels do not: a simulation of a machine that is not here. Everything
 * around the numbers stays the model's own code: rows, segments, sequences, drafts, acceptance, commit. Only what the
 * kernels would have computed is missing: how long it takes, and the logits, are the other's to say.
 *
 * Such a model (struct mdl_model with compute set) has a configuration and nothing else: no checkpoint, no tables, no
 * team. The object belongs to the owner of the model and is called on the thread that owns the step. */
#ifndef WEFT_MODEL_COMPUTE_H
#define WEFT_MODEL_COMPUTE_H

struct mdl_step;
struct mdl_draft;

struct mdl_compute {
    void *ctx;
    /* As mdl_step_advance: s->phase is MDL_PHASE_START at first, and whatever this sets it to afterwards. When it
     * returns MDL_STEP_DONE, the logits of the rows that asked for some are filled in. */
    int (*advance)(void *ctx, struct mdl_step *s);
    /* As mdl_draft_pick for a finished draft step: n guesses of a segment and their confidences. */
    void (*draft)(void *ctx, const struct mdl_step *s, int segment, int n, struct mdl_draft *out);
};

#endif
