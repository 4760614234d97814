/* What a figure holds for: an object of texts that benchmarks print above their tables, keep in their files and draw
 * into their plots, so that no picture goes without them. Main thread. */
#ifndef WEFT_CLI_CONDITIONS_H
#define WEFT_CLI_CONDITIONS_H

#include <jansson.h>

#include "config/error.h"
#include "model/model.h"

/* Sets or replaces one. */
void cli_condition_set(json_t *to, const char *key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "model" (name, revision, experts) and "machine" (processor, threads, build, load average before): to be called before
 * the run. dir: the model's folder as the user gave it. */
void cli_condition_model(json_t *to, const struct mdl_model *m, const char *dir);
/* One line each, on standard output. */
void cli_conditions_print(const json_t *conditions);
/* Of a file: every value is a text. -EINVAL names the one that is none. What a terminal would act on is replaced. */
int cli_conditions_check(json_t *conditions, const char *path, struct cfg_error *err);

#endif
