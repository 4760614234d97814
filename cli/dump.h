/* Tensors of a run, collected row by row through the step's hooks and written as one safetensors file.
 *
 * Names follow tests/golden/README.md without the run's prefix. Rows of a tensor are consecutive positions from the
 * first one seen. Owned by the command that dumps; the thread that runs the step. */
#ifndef WEFT_CLI_DUMP_H
#define WEFT_CLI_DUMP_H

#include <stdbool.h>

#include "model/step.h"

enum {
    CLI_DUMP_LAYERS = 1,
    CLI_DUMP_SELECT = 2,
    CLI_DUMP_EXPERTS = 4,
    CLI_DUMP_KV = 8,
    CLI_DUMP_DRAFT = 16,
};

struct cli_dump;

/* what: CLI_DUMP_* bits; tokens: length of the run, prompt and continuation. two_passes: layers below the cut get the
 * prefix "enc.". */
struct cli_dump *cli_dump_new(const struct mdl_config *cfg, int what, int tokens, bool two_passes);
void cli_dump_free(struct cli_dump *d);

/* Comma-separated names to bits. -EINVAL names the unknown part. */
int cli_dump_parse(const char *list, int *what, struct cfg_error *err);

/* Hooks that feed the dump; install in the step before it runs. */
struct mdl_hooks cli_dump_hooks(struct cli_dump *d);
/* The draft step: tensors get the prefix "draft.<pos>.". */
void cli_dump_begin_draft(struct cli_dump *d, int pos);
/* From now on nothing is recorded (continuation of a replay run), or again. */
void cli_dump_pause(struct cli_dump *d, bool paused);

/* One row (position pos) of a tensor; shape is that of a row. 0 or -ENOMEM (kept until save). */
void cli_dump_row(struct cli_dump *d, const char *name, enum mdl_dtype dtype, int pos, int ndim, const int64_t *shape,
                  const void *data);
/* Caches as they stand: global rows from `from` on, window rows, drafter rows, tails. */
void cli_dump_kv(struct cli_dump *d, const struct mdl_seq *seq, int from);

int cli_dump_save(struct cli_dump *d, const char *path, struct cfg_error *err);

#endif
