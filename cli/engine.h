/* The offline engine behind generate and its relatives: a model, a tokenizer, and jobs that run through them in one
 * batch. Single-threaded towards its caller; the model's team computes. */
#ifndef WEFT_CLI_ENGINE_H
#define WEFT_CLI_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "model/decode.h"
#include "model/prefill.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

struct cli_engine_options {
    const char *model_dir;
    int threads; /* 0: all usable CPUs */
    bool exact;
    int replay; /* 0: window + 12 */
    bool full_bridge;
    int draft;      /* -1: the model's block */
    int parallel;   /* jobs at a time */
    int max_tokens; /* longest prompt + output of any job */
    int chunk;      /* prefill rows per step, 0: 512 */
};

enum cli_finish { CLI_FINISH_NONE, CLI_FINISH_STOP, CLI_FINISH_LENGTH, CLI_FINISH_ERROR };

struct cli_job {
    /* Set by the caller. */
    const int32_t *prompt;
    int n_prompt;
    int max_new;
    struct mdl_sampling sampling;
    bool ignore_eos;
    /* Sees every token as it is final (never the end token). Returns false to finish the job (stop string). */
    bool (*on_token)(void *ctx, struct cli_job *job, int32_t id, const struct mdl_logprobs *lp);
    /* When given, hears after each step of the prompt which of its tokens is done; with bounded replay its tail comes
     * twice. */
    void (*on_prompt)(void *ctx, struct cli_job *job, int done);
    void *ctx;
    /* Results. */
    enum cli_finish finish;
    struct cfg_error err; /* when finish is CLI_FINISH_ERROR */
    int32_t *ids;         /* prompt and output */
    int n_ids, n_new;
    double prefill_seconds, decode_seconds; /* decode: wall time of the rounds the job took part in */
    double first_token_seconds;             /* from the job's start to its first token */
    struct mdl_counters counters;
    int decoder_start; /* first row of the decoder replay; 0 in exact mode */
    /* The engine's. */
    struct mdl_seq *seq;
    struct mdl_stream stream;
    struct cli_engine *engine;
    double started;
};

struct cli_engine {
    struct cli_engine_options options;
    struct mdl_model *m;
    struct mdl_tokenizer *tok;
    struct mdl_tok_encoder *enc;
    struct mdl_step *prefill;
    struct mdl_decoder *decoder;
    struct mdl_sampler *sampler;
    int vocab; /* ids that may be picked */
};

/* Loads model and tokenizer; buffers wait for cli_engine_prepare, when the sizes are known. */
int cli_engine_open(const struct cli_engine_options *options, struct cli_engine *e, struct cfg_error *err);
int cli_engine_prepare(struct cli_engine *e, int max_tokens, int max_prompt, struct cfg_error *err);
void cli_engine_close(struct cli_engine *e);

/* Runs a job's prompt and picks its first token; on an error job->finish says so. */
void cli_job_start(struct cli_engine *e, struct cli_job *job);
/* One decoding round for the unfinished jobs of the list (at most options.parallel). */
int cli_jobs_round(struct cli_engine *e, struct cli_job **jobs, int n, struct cfg_error *err);
/* Frees what the engine holds for a job, keeps its results; cli_job_free also drops these. */
void cli_job_end(struct cli_job *job);
void cli_job_free(struct cli_job *job);

const char *cli_finish_name(enum cli_finish f);
double cli_seconds(void); /* monotonic */

#endif
