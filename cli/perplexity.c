/* weft perplexity: how well the model predicts a text, in bits per byte and nats per token, exact mode. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "model/prefill.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

struct perplexity {
    const char *model_dir, *text_file;
    int window, threads, limit;
    struct mdl_model *m;
    struct mdl_tokenizer *tok;
    struct mdl_ids ids;
    struct mdl_seq *seq;
    struct mdl_step *step;
    int32_t *rows; /* the token before a window, and the window */
    double nats;
    long tokens, bytes; /* predicted so far */
    int broken;         /* -EDOM: some logit was none */
    struct cli_progress progress;
    struct cfg_error err;
};

/* -log p(id) in nats. */
static double surprise(const float *logits, int vocab, int32_t id)
{
    double top = logits[0], sum = 0;
    for (int i = 1; i < vocab; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int i = 0; i < vocab; i++)
        sum += exp(logits[i] - top);
    return top + log(sum) - logits[id];
}

static void on_chunk(void *ctx, struct mdl_step *step, const struct mdl_segment *seg)
{
    struct perplexity *p = ctx;
    for (int i = 0; i < seg->n; i++) {
        int32_t next = p->rows[seg->start + i + 1];
        const char *bytes;
        size_t n = 0;
        const float *logits = mdl_step_logits(step, 0, i);
        if (!p->broken)
            p->broken = mdl_logits_check(logits, p->m->cfg->vocab_size, &p->err);
        p->nats += surprise(logits, p->m->cfg->vocab_size, next);
        mdl_tokenizer_bytes(p->tok, next, &bytes, &n);
        p->tokens++;
        p->bytes += (long)n;
    }
}

/* Each window starts over with the token before it (the first one with the begin token), so every token is predicted
 * once, from at most window tokens. */
static int run_window(struct perplexity *p, size_t at, int n)
{
    struct mdl_prefill plan;
    const struct mdl_prefill_params params = {.exact = true, .all_logits = true};
    p->rows[0] = at ? p->ids.v[at - 1] : p->m->cfg->bos_id;
    memcpy(p->rows + 1, p->ids.v + at, (size_t)n * sizeof *p->rows);
    mdl_seq_reset(p->seq);
    int r = mdl_prefill_begin(&plan, p->seq, p->rows, n, &params, &p->err);
    if (!r)
        r = mdl_prefill_run(&plan, p->step, 0, on_chunk, p, &p->err);
    return r ? r : p->broken;
}

static int load(struct perplexity *p)
{
    char *text = NULL;
    size_t len = 0;
    struct mdl_tok_encoder *enc = NULL;
    int r = mdl_model_open(p->model_dir, p->threads, NULL, &p->m, &p->err);
    if (!r && p->m->cfg->bos_id < 0)
        r = cfg_error_set(&p->err, EINVAL, "%s has no begin token (bos_token_id in config.json)", p->model_dir);
    if (!r)
        r = mdl_tokenizer_load(p->model_dir, &p->tok, &p->err);
    if (!r)
        r = mdl_tok_encoder_new(p->tok, &enc, &p->err);
    if (!r)
        r = cli_file_read(p->text_file, &text, &len, &p->err);
    if (!r)
        r = mdl_tok_encode(enc, text, len, 0, &p->ids, &p->err);
    free(text);
    mdl_tok_encoder_free(enc);
    if (!r && !p->ids.n)
        r = cfg_error_set(&p->err, EINVAL, "%s is empty", p->text_file);
    for (size_t i = 0; i < p->ids.n && !r; i++)
        if (p->ids.v[i] >= p->m->cfg->vocab_size)
            r = cfg_error_set(&p->err, EINVAL,
                              "%s: token id %d of its tokenizer is outside the model's vocabulary of %d", p->model_dir,
                              p->ids.v[i], p->m->cfg->vocab_size);
    if (r)
        return r;
    if (p->limit && p->ids.n > (size_t)p->limit)
        p->ids.n = (size_t)p->limit;
    p->rows = malloc((size_t)(p->window + 1) * sizeof *p->rows);
    if (!p->rows)
        return cfg_error_set(&p->err, ENOMEM, "perplexity: out of memory");
    r = mdl_seq_new(p->m->cfg, &(struct mdl_seq_params){.max_tokens = p->window}, &p->seq, &p->err);
    return r ? r : mdl_step_new(p->m, p->window < 256 ? p->window : 256, p->window, &p->step, &p->err);
}

int cli_perplexity_run(int argc, char **argv)
{
    struct perplexity p = {.window = 256};
    const struct cli_option options[] = {
        {CLI_TEXT, "model", 'm', &p.model_dir, "DIR", "folder of the checkpoint (required)"},
        {CLI_TEXT, "text", 0, &p.text_file, "FILE", "text to predict (required)"},
        {CLI_INT, "window", 0, &p.window, "N", "most tokens that a prediction sees (default 256)", 2, 1 << 20},
        {CLI_INT, "limit", 0, &p.limit, "N", "only the first N tokens of the text", 1, 1 << 30},
        {CLI_INT, "threads", 0, &p.threads, "N", "compute threads (default: one per usable CPU)", 1, 1024},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "perplexity -m DIR --text FILE [options]",
        .intro = "Measures how well the model predicts a text: exact mode, in windows that start over.",
        .options = options,
    };
    int r = cli_options_parse(&usage, argc, argv, NULL);
    if (r != CLI_GO_ON)
        return r;
    if (!p.model_dir || !p.text_file)
        return cli_error(CLI_USAGE, "perplexity needs -m DIR and --text FILE; see `weft perplexity --help`");
    r = load(&p);
    cli_progress_start(&p.progress, "predicting", "tokens", (double)p.ids.n);
    for (size_t at = 0; at < p.ids.n && !r; at += (size_t)p.window) {
        r = run_window(&p, at, p.ids.n - at < (size_t)p.window ? (int)(p.ids.n - at) : p.window);
        cli_progress_update(&p.progress, (double)p.tokens);
    }
    cli_progress_end(&p.progress);
    if (r)
        cli_error(CLI_FAILED, "%s", p.err.msg);
    else
        printf("%ld tokens, %ld bytes, windows of %d tokens, exact mode, cpu path %s\n"
               "bits per byte   %.4f\nnats per token  %.4f\nperplexity      %.2f\n",
               p.tokens, p.bytes, p.window, p.m->exec.be->name, p.nats / log(2.0) / (double)p.bytes,
               p.nats / (double)p.tokens, exp(p.nats / (double)p.tokens));
    mdl_step_free(p.step);
    mdl_seq_free(p.seq);
    mdl_ids_free(&p.ids);
    mdl_tokenizer_free(p.tok);
    mdl_model_close(p.m);
    free(p.rows);
    return r ? CLI_FAILED : CLI_OK;
}
