/* The Prefill actor: prompts become sequences.
 *
 * A prompt waits in line without holding anything. At its turn Prefill reserves a place at Decode, looks its blocks up
 * in the device tier, takes pages for the rest, runs the plan of model/prefill.h in steps that several prompts share,
 * and hands the sequence over. It yields after every phase of a step. */
#ifndef WEFT_ACTORS_PREFILL_H
#define WEFT_ACTORS_PREFILL_H

#include "actors/engine.h"

/* arg: struct act_engine *. */
extern const struct act_behaviour act_prefill_behaviour;

#endif
