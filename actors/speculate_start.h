/* What the speculation of an engine starts with: options from the configuration, the calibration beside the model, and
 * the step-time table of this machine, from its file or measured now. Main thread, before the engine's actors start. */
#ifndef WEFT_ACTORS_SPECULATE_START_H
#define WEFT_ACTORS_SPECULATE_START_H

#include "actors/engine.h"
#include "config/config.h"

struct act_log;

/* Fills e->plan, e->calibration and e->steptime for e->limits (set before). What it decided goes to the log in one
 * line. A calibration or table that does not fit is a warning, not an error: the head is then used as it is, the table
 * measured. decodes: this process has a Decode actor; otherwise only the lengths are filled in. */
int act_speculation_prepare(const struct cfg_config *c, struct act_log *log, bool decodes, struct act_engine *e,
                            struct cfg_error *err);

/* How an engine drafts, in words for people: "off", "fixed: 3 a step, acceptance match". After prepare. */
void act_speculation_describe(const struct act_engine *e, char *out, size_t size);

#endif
