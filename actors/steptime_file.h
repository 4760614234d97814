/* Step-time tables in files, and where a table comes from when an engine starts: the file when it fits this model,
 * machine and build, else a measurement, which then becomes the file. Main thread, before the engine's actors start:
 * measuring uses the model's compute team. */
#ifndef WEFT_ACTORS_STEPTIME_FILE_H
#define WEFT_ACTORS_STEPTIME_FILE_H

#include <stdint.h>

#include "actors/steptime.h"
#include "config/error.h"
#include "config/version.h"
#include "model/model.h"

enum { ACT_STEPTIME_CONTEXT = 16 }; /* tokens of a sequence, where an engine measures; longer ones are learned */

/* What a table was measured on; every part has to be the same for it to be used again. */
struct act_steptime_identity {
    uint64_t revision; /* of the model */
    char machine[160]; /* processor, threads */
    char build[96];    /* version, CPU path, compiler */
    char build_id[CFG_BUILD_ID_TEXT];
    int streams; /* sequences at a time that it has to cover */
    int context; /* tokens that each of them has */
};
/* streams, context: as the table is measured (act_steptime_measure). */
void act_steptime_identity(const struct mdl_model *m, int streams, int context, struct act_steptime_identity *out);

/* -ENOENT: there is no file. -EINVAL: damaged, measured elsewhere, for fewer sequences at a time, or cut short of them;
 * err says what differs. A program without a build id has no table that is known to be its own. */
int act_steptime_read(const char *path, const struct act_steptime_identity *id, int block, struct act_steptime *out,
                      struct cfg_error *err);
/* Complete or not at all: written beside and renamed. */
int act_steptime_write(const char *path, const struct act_steptime_identity *id, const struct act_steptime *t,
                       struct cfg_error *err);

struct act_steptime_measure {
    int streams;               /* sequences at a time, at most */
    int block;                 /* drafts per request, at most; 0: no drafter */
    int context;               /* tokens that the sequences have */
    int64_t limit_ns;          /* no larger batch is begun after this long */
    int64_t (*now)(void *ctx); /* monotonic, ns */
    void *ctx;
};
/* Rounds on made-up tokens that commit nothing: per batch size several numbers of drafts, in turn. */
int act_steptime_measure(struct mdl_model *m, const struct act_steptime_measure *how, struct act_steptime *out,
                         struct cfg_error *err);

#endif
