#include "cli/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *cli_finish_name(enum cli_finish f)
{
    static const char *const names[] = {"none", "stop", "length", "error"};
    return names[f];
}

int cli_engine_open(const struct cli_engine_options *options, struct cli_engine *e, struct cfg_error *err)
{
    *e = (struct cli_engine){.options = *options};
    struct cli_engine_options *o = &e->options;
    int r = mdl_model_open(o->model_dir, o->threads, NULL, &e->m, err);
    if (!r)
        r = mdl_tokenizer_load(o->model_dir, &e->tok, err);
    if (!r)
        r = mdl_tok_encoder_new(e->tok, &e->enc, err);
    if (r)
        return r;
    const struct mdl_config *cfg = e->m->cfg;
    if (o->draft > cfg->draft_block)
        return cfg_error_set(err, EINVAL, "--draft %d: this model drafts at most %d tokens at a time", o->draft,
                             cfg->draft_block);
    if (o->draft < 0)
        o->draft = cfg->n_draft ? cfg->draft_block : 0;
    if (cfg->cut < 0)
        o->exact = true;
    if (!o->exact && !o->replay)
        o->replay = cfg->window + 12;
    if (!o->exact && o->replay < cfg->window)
        return cfg_error_set(err, EINVAL, "--replay %d is below the window of %d rows", o->replay, cfg->window);
    e->vocab = mdl_tokenizer_vocab_size(e->tok) < cfg->vocab_size ? mdl_tokenizer_vocab_size(e->tok) : cfg->vocab_size;
    e->sampler = mdl_sampler_new(e->vocab);
    return e->sampler ? 0 : cfg_error_set(err, ENOMEM, "sampler: out of memory");
}

int cli_engine_prepare(struct cli_engine *e, int max_tokens, int max_prompt, struct cfg_error *err)
{
    struct cli_engine_options *o = &e->options;
    int chunk = o->chunk ? o->chunk : 512;
    o->max_tokens = max_tokens;
    if (chunk > max_prompt)
        chunk = max_prompt;
    int r = mdl_step_new(e->m, chunk > 0 ? chunk : 1, max_tokens, &e->prefill, err);
    return r ? r : mdl_decoder_new(e->m, o->parallel, o->draft, max_tokens, &e->decoder, err);
}

void cli_engine_close(struct cli_engine *e)
{
    mdl_decoder_free(e->decoder);
    mdl_step_free(e->prefill);
    mdl_sampler_free(e->sampler);
    mdl_tok_encoder_free(e->enc);
    mdl_tokenizer_free(e->tok);
    mdl_model_close(e->m);
}

static void fail(struct cli_job *job)
{
    job->finish = CLI_FINISH_ERROR;
}

/* A final pick joins the job's ids at once, because the next pick's penalties count it. */
static int32_t pick(void *ctx, int pos, float *logits, bool draft)
{
    struct cli_job *job = ctx;
    struct cli_engine *e = job->engine;
    struct mdl_logprobs lp;
    int32_t id;
    bool want = !draft && job->sampling.top_logprobs >= 0 && job->on_token;
    int r = mdl_sampler_sample(e->sampler, &job->sampling, logits, e->vocab, job->ids, job->n_ids, job->n_prompt, pos,
                               &id, want ? &lp : NULL, &job->err);
    if (r)
        return r;
    if (draft)
        return id;
    job->ids[job->n_ids++] = id;
    job->n_new++;
    if (!job->ignore_eos && id == e->m->cfg->eos_id)
        job->finish = CLI_FINISH_STOP;
    else if (job->on_token && !job->on_token(job->ctx, job, id, &lp) && job->finish == CLI_FINISH_NONE)
        job->finish = CLI_FINISH_STOP;
    if (job->finish == CLI_FINISH_NONE && job->n_new == job->max_new)
        job->finish = CLI_FINISH_LENGTH;
    job->stream.finished = job->finish != CLI_FINISH_NONE;
    return id;
}

static void on_chunk(void *ctx, struct mdl_step *step, const struct mdl_segment *seg)
{
    struct cli_job *job = ctx;
    if (job->on_prompt)
        job->on_prompt(job->ctx, job, seg->start + seg->n);
}

static int start_job(struct cli_engine *e, struct cli_job *job)
{
    const struct cli_engine_options *o = &e->options;
    struct mdl_seq_params params = {
        .max_tokens = job->n_prompt + job->max_new, .replay = o->exact ? 0 : o->replay, .full_bridge = o->full_bridge};
    job->ids = malloc((size_t)(job->n_prompt + job->max_new + 1) * sizeof *job->ids);
    if (!job->ids)
        return cfg_error_set(&job->err, ENOMEM, "job: out of memory");
    memcpy(job->ids, job->prompt, (size_t)job->n_prompt * sizeof *job->ids);
    job->n_ids = job->n_prompt;
    struct mdl_prefill plan;
    int r = mdl_seq_new(e->m->cfg, &params, &job->seq, &job->err);
    if (!r)
        r = mdl_prefill_begin(
            &plan, job->seq, job->prompt, job->n_prompt,
            &(struct mdl_prefill_params){.exact = o->exact, .replay = o->replay, .full_bridge = o->full_bridge},
            &job->err);
    if (!r)
        r = mdl_prefill_run(&plan, e->prefill, 0, on_chunk, job, &job->err);
    if (r)
        return r;
    job->decoder_start = plan.decoder_start;
    job->prefill_seconds = cli_seconds() - job->started;
    const struct mdl_segment *last = &e->prefill->segment[0];
    job->stream = (struct mdl_stream){.seq = job->seq, .draft = o->draft, .pick = pick, .pick_ctx = job};
    float *logits = (float *)mdl_step_logits(e->prefill, 0, last->n - 1);
    int32_t id = pick(job, job->n_prompt, logits, false);
    job->first_token_seconds = cli_seconds() - job->started;
    job->stream.next = id;
    return id < 0 ? id : 0;
}

void cli_job_start(struct cli_engine *e, struct cli_job *job)
{
    job->engine = e;
    job->finish = CLI_FINISH_NONE;
    job->started = cli_seconds();
    if (start_job(e, job))
        fail(job);
}

int cli_jobs_round(struct cli_engine *e, struct cli_job **jobs, int n, struct cfg_error *err)
{
    struct mdl_stream **streams = malloc((size_t)n * sizeof(struct mdl_stream *));
    int active = 0;
    if (!streams)
        return cfg_error_set(err, ENOMEM, "round: out of memory");
    for (int i = 0; i < n; i++)
        if (jobs[i]->finish == CLI_FINISH_NONE) {
            jobs[i]->stream.limit = jobs[i]->max_new - jobs[i]->n_new;
            streams[active++] = &jobs[i]->stream;
        }
    double start = cli_seconds();
    int r = active ? mdl_decoder_round(e->decoder, streams, active, err) : 0;
    double took = cli_seconds() - start;
    for (int i = 0; i < active; i++) {
        struct cli_job *job = streams[i]->pick_ctx;
        job->decode_seconds += took;
        job->counters = streams[i]->counters;
        if (streams[i]->status)
            fail(job);
    }
    free(streams);
    return r;
}

void cli_job_end(struct cli_job *job)
{
    mdl_seq_free(job->seq);
    job->seq = NULL;
}

void cli_job_free(struct cli_job *job)
{
    cli_job_end(job);
    free(job->ids);
    job->ids = NULL;
}
