/* A decoding round's plan on real streams: what lies between the planner (plan.h), which knows requests and numbers,
 * and the decoder (model/decode.h), which knows sequences and logits. Used by the Decode actor and by `weft bench
 * decode`, one object per decoder, same owner; clocks stay with the caller. */
#ifndef WEFT_ACTORS_SPECULATE_H
#define WEFT_ACTORS_SPECULATE_H

#include "actors/plan.h"
#include "model/calibration.h"
#include "model/decode.h"

/* Belongs to a request; zero at its start. */
struct act_spec_stream {
    struct act_plan_memory memory;
    enum mdl_choice choice;
    int room; /* drafts that its KV pages have room for */
};

struct act_speculation {
    struct act_plan plan;
    struct act_steptime table; /* own copy, refreshed */
    const struct mdl_calibration *calibration;
    struct act_plan_request *request; /* [max_requests] of the round */
    const struct act_spec_stream **spec;
    int n;
};

/* table may be NULL outside dynamic mode; it is copied. calibration is borrowed. -EINVAL, -ENOMEM. */
int act_speculation_init(struct act_speculation *s, const struct act_plan_options *options, int block, int max_requests,
                         const struct act_steptime *table, const struct mdl_calibration *calibration);
void act_speculation_free(struct act_speculation *s);

/* Before mdl_decoder_begin: sets `draft` of every stream. spec[i] belongs to streams[i]. */
void act_speculation_begin(struct act_speculation *s, struct mdl_stream *const *streams,
                           struct act_spec_stream *const *spec, int n, int other_rows);
/* From the decoder's plan (mdl_plan_fn): sets `offer` of every stream, which are those of the last begin. */
void act_speculation_split(struct act_speculation *s, struct mdl_stream *const *streams, int n);
/* After the round. refresh: nothing else had the machine, the times may go into the table. */
void act_speculation_end(struct act_speculation *s, double draft_ns, double verify_ns, bool refresh);

#endif
