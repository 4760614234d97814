/* weft generate: text from a prompt, a conversation or a file of many, offline. */
#define _GNU_SOURCE
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/engine.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/stops.h"
#include "model/chat.h"
#include "model/utf8.h"

static const char *const bridge_names[] = {"truncate", "full", NULL};

struct generate {
    struct cli_engine_options engine_options;
    const char *prompt, *chat_file, *batch_file, *out_file;
    bool from_stdin;
    bool no_spec, json, stats, ignore_eos, logprobs_given;
    int max_new, bridge, top_logprobs;
    struct mdl_sampling sampling;
    struct cli_list stops;
    struct cli_engine e;
    struct cli_progress progress;
    struct cfg_error err;
};

/* One request with its text. */
struct request {
    struct generate *g;
    struct cli_job job;
    struct mdl_ids ids;
    struct cli_stops stops; /* text so far, stop strings taken out */
    struct mdl_tok_stream decode;
    struct mdl_text piece;
    json_t *logprobs; /* list, when asked for */
    bool chat, thinking, print;
    bool begun;    /* printing: the prompt is out, the progress display gone */
    int64_t index; /* line of the batch */
    json_t *id;    /* its own name, borrowed from the line; owned */
};

static bool text_failed(struct request *q, int r)
{
    if (r) {
        cfg_error_set(&q->job.err, -r, "text: %s", strerror(-r));
        q->job.finish = CLI_FINISH_ERROR;
    }
    return r != 0;
}

/* The prompt waits for the first token, because the progress display clears the line it is drawn on. */
static void begin_text(struct request *q)
{
    const struct generate *g = q->g;
    if (q->begun)
        return;
    q->begun = true;
    cli_progress_end(&q->g->progress);
    if (!q->chat && g->prompt)
        fwrite(g->prompt, 1, strlen(g->prompt), stdout);
}

static void record_logprobs(struct request *q, int32_t id, const struct mdl_logprobs *lp)
{
    json_t *top = json_array();
    for (int i = 0; i < lp->n_top; i++)
        json_array_append_new(top, json_pack("{s:i,s:f}", "id", lp->top[i].id, "logprob", lp->top[i].logprob));
    json_array_append_new(q->logprobs, json_pack("{s:i,s:f,s:o}", "id", id, "logprob", lp->logprob, "top", top));
}

static bool on_token(void *ctx, struct cli_job *job, int32_t id, const struct mdl_logprobs *lp)
{
    struct request *q = ctx;
    (void)job;
    if (q->logprobs)
        record_logprobs(q, id, lp);
    q->piece.n = 0;
    if (text_failed(q, mdl_tok_stream_push(&q->decode, id, &q->piece)))
        return false;
    if (text_failed(q, cli_stops_push(&q->stops, q->piece.s, q->piece.n)))
        return false;
    if (q->print) {
        begin_text(q);
        cli_stops_print(&q->stops, stdout);
        fflush(stdout);
    } else if (!q->g->batch_file) {
        cli_progress_update(&q->g->progress, q->job.n_new);
    }
    return !q->stops.hit;
}

static void on_prompt(void *ctx, struct cli_job *job, int done)
{
    struct request *q = ctx;
    cli_progress_update(&q->g->progress, done);
}

static void finish_text(struct request *q)
{
    q->piece.n = 0;
    if (!text_failed(q, mdl_tok_stream_end(&q->decode, &q->piece)))
        text_failed(q, cli_stops_push(&q->stops, q->piece.s, q->piece.n));
    cli_stops_end(&q->stops);
    if (q->print) {
        begin_text(q);
        cli_stops_print(&q->stops, stdout);
        putchar('\n');
        fflush(stdout);
    }
}

static void request_free(struct request *q)
{
    cli_job_free(&q->job);
    mdl_ids_free(&q->ids);
    mdl_text_free(&q->piece);
    cli_stops_free(&q->stops);
    json_decref(q->logprobs);
    json_decref(q->id);
}

static int encode_text(struct request *q, const char *text, size_t len)
{
    struct cli_engine *e = &q->g->e;
    int r = e->m->cfg->bos_id >= 0 ? mdl_ids_add(&q->ids, e->m->cfg->bos_id) : 0;
    return r ? cfg_error_set(&q->g->err, -r, "out of memory")
             : mdl_tok_encode(e->enc, text, len, 0, &q->ids, &q->g->err);
}

static int encode_chat(struct request *q, const json_t *conversation)
{
    struct mdl_chat_prompt p = {0};
    const struct mdl_chat_options options = {.chat_mode = true};
    int r = mdl_chat_render(conversation, &options, &p, &q->g->err);
    if (!r)
        r = mdl_chat_encode(q->g->e.tok, q->g->e.enc, &p, &q->ids, &q->g->err);
    q->chat = true;
    q->thinking = p.thinking;
    mdl_chat_prompt_free(&p);
    return r;
}

/* Everything but the prompt, which is encoded already. */
static int request_ready(struct request *q, int max_new)
{
    struct generate *g = q->g;
    int limit = g->e.m->cfg->max_position;
    if (!q->ids.n)
        return cfg_error_set(&g->err, EINVAL, "the prompt has no token; write some text");
    if (q->ids.n >= (size_t)limit)
        return cfg_error_set(&g->err, E2BIG, "the prompt has %zu tokens, the model's context is %d", q->ids.n, limit);
    if (max_new > limit - (int)q->ids.n)
        max_new = limit - (int)q->ids.n;
    q->job = (struct cli_job){.prompt = q->ids.v,
                              .n_prompt = (int)q->ids.n,
                              .max_new = max_new,
                              .sampling = g->sampling,
                              .ignore_eos = g->ignore_eos,
                              .on_token = on_token,
                              .ctx = q};
    mdl_tok_stream_init(&q->decode, g->e.tok, 0);
    if (g->logprobs_given)
        q->logprobs = json_array();
    return cli_stops_init(&q->stops, g->stops.item, g->stops.count) ? cfg_error_set(&g->err, ENOMEM, "out of memory")
                                                                    : 0;
}

/* ---- reports ---- */

static json_t *counters_json(const struct mdl_counters *c, int draft)
{
    json_t *offered = json_array(), *accepted = json_array();
    for (int i = 0; i < draft; i++) {
        json_array_append_new(offered, json_integer(c->offered_at[i]));
        json_array_append_new(accepted, json_integer(c->accepted_at[i]));
    }
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "steps", (json_int_t)c->steps, "drafted", (json_int_t)c->drafted,
                     "offered", (json_int_t)c->offered, "accepted", (json_int_t)c->accepted, "emitted",
                     (json_int_t)c->emitted, "offered_by_position", offered, "accepted_by_position", accepted);
}

static json_t *text_json(const char *s, size_t n)
{
    json_t *t = json_stringn(s, n);
    return t ? t : json_null(); /* cannot happen: the decoder emits whole characters only */
}

/* Splits a chat answer at the marker that ends the reasoning. */
static void answer_json(const struct request *q, json_t *out)
{
    const char *text = q->stops.text.s ? q->stops.text.s : "";
    size_t n = q->stops.done, skip = 0;
    if (q->chat && q->thinking) {
        const char *end = n ? memmem(text, n, MDL_CHAT_END_THINK, strlen(MDL_CHAT_END_THINK)) : NULL;
        size_t reasoning = end ? (size_t)(end - text) : n;
        json_object_set_new(out, "reasoning_content", text_json(text, reasoning));
        skip = end ? reasoning + strlen(MDL_CHAT_END_THINK) : n;
    }
    json_object_set_new(out, q->chat ? "content" : "text", text_json(text + skip, n - skip));
}

static json_t *result_json(const struct request *q)
{
    const struct cli_engine_options *o = &q->g->e.options;
    const struct cli_job *job = &q->job;
    char revision[17];
    snprintf(revision, sizeof revision, "%016llx", (unsigned long long)q->g->e.m->ck->revision);
    json_t *out = json_object(), *ids = json_array();
    if (q->g->batch_file)
        json_object_set_new(out, "index", json_integer(q->index));
    if (q->id)
        json_object_set(out, "id", q->id);
    answer_json(q, out);
    json_object_set_new(out, "finish_reason", json_string(cli_finish_name(job->finish)));
    if (job->finish == CLI_FINISH_ERROR)
        json_object_set_new(out, "error", json_string(job->err.msg));
    for (int i = job->n_prompt; i < job->n_ids; i++)
        json_array_append_new(ids, json_integer(job->ids[i]));
    json_object_set_new(out, "ids", ids);
    if (q->logprobs)
        json_object_set(out, "logprobs", q->logprobs);
    json_object_set_new(out, "usage",
                        json_pack("{s:i,s:i}", "prompt_tokens", job->n_prompt, "completion_tokens", job->n_new));
    json_object_set_new(out, "counters", counters_json(&job->counters, o->draft));
    json_t *recipe =
        json_pack("{s:s,s:s,s:I,s:f,s:i,s:f,s:f}", "model_revision", revision, "cpu_path", q->g->e.m->exec.be->name,
                  "seed", (json_int_t)job->sampling.seed, "temperature", job->sampling.temperature, "top_k",
                  job->sampling.top_k, "top_p", job->sampling.top_p, "min_p", job->sampling.min_p);
    json_object_set_new(recipe, "repetition_penalty", json_real(job->sampling.repetition_penalty));
    json_object_set_new(recipe, "presence_penalty", json_real(job->sampling.presence_penalty));
    json_object_set_new(recipe, "frequency_penalty", json_real(job->sampling.frequency_penalty));
    json_object_set_new(recipe, "mode", json_string(o->exact ? "exact" : "replay"));
    if (!o->exact) {
        json_object_set_new(recipe, "replay", json_integer(o->replay));
        json_object_set_new(recipe, "bridge_window", json_string(bridge_names[o->full_bridge]));
    }
    json_object_set_new(out, "recipe", recipe);
    return out;
}

static void print_json(json_t *j, FILE *to)
{
    json_dumpf(j, to, JSON_COMPACT | JSON_PRESERVE_ORDER);
    fputc('\n', to);
    fflush(to);
    json_decref(j);
}

static void print_counters(const struct mdl_counters *c, const struct cli_engine *e, int parallel)
{
    fprintf(stderr, "steps         %lld, %.2f tokens emitted per step\n", (long long)c->steps,
            c->steps ? (double)c->emitted / (double)c->steps : 0.0);
    if (e->options.draft) {
        fprintf(stderr, "drafts        %lld drafted, %lld offered, %lld accepted (%.1f %% of offered, %.2f per step)\n",
                (long long)c->drafted, (long long)c->offered, (long long)c->accepted,
                c->offered ? 100.0 * (double)c->accepted / (double)c->offered : 0.0,
                c->steps ? (double)c->accepted / (double)c->steps : 0.0);
        fprintf(stderr, "by position  ");
        for (int i = 0; i < e->options.draft; i++)
            fprintf(stderr, " %lld/%lld", (long long)c->accepted_at[i], (long long)c->offered_at[i]);
        fprintf(stderr, "  (accepted/offered)\n");
    }
    fprintf(stderr, "conditions    cpu path %s, %d threads, up to %d requests at a time\n", e->m->exec.be->name,
            mdl_team_size(e->m->team), parallel);
}

static void print_stats(const struct cli_job *job, const struct cli_engine *e)
{
    const struct mdl_counters *c = &job->counters;
    fprintf(stderr, "prompt        %d tokens in %.3f s (%.1f tokens/s, %s)\n", job->n_prompt, job->prefill_seconds,
            job->n_prompt / job->prefill_seconds, e->options.exact ? "exact" : "bounded replay");
    fprintf(stderr, "first token   %.3f s\n", job->first_token_seconds);
    fprintf(stderr, "output        %d tokens, decoding %.3f s (%.1f tokens/s)\n", job->n_new, job->decode_seconds,
            job->decode_seconds > 0 ? (double)c->emitted / job->decode_seconds : 0.0);
    print_counters(c, e, 1);
}

/* ---- one prompt ---- */

static int read_conversation(const char *path, json_t **out, struct cfg_error *err)
{
    char *text;
    size_t len;
    json_error_t je;
    int r = cli_file_read(path, &text, &len, err);
    if (r)
        return r;
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    free(text);
    return *out ? 0 : cfg_error_set(err, EINVAL, "%s:%d: %s", path, je.line, je.text);
}

static int encode_single(struct generate *g, struct request *q)
{
    if (g->chat_file) {
        json_t *conversation;
        int r = read_conversation(g->chat_file, &conversation, &g->err);
        if (r)
            return r;
        r = encode_chat(q, conversation);
        json_decref(conversation);
        return r;
    }
    if (!g->from_stdin)
        return encode_text(q, g->prompt, strlen(g->prompt));
    char *text;
    size_t len;
    int r = cli_file_read("-", &text, &len, &g->err);
    if (!r)
        r = encode_text(q, text, len);
    free(text);
    return r;
}

static int run_single(struct generate *g)
{
    struct request q = {.g = g, .print = !g->json};
    int r = encode_single(g, &q);
    if (!r)
        r = request_ready(&q, g->max_new);
    if (!r)
        r = cli_engine_prepare(&g->e, q.job.n_prompt + q.job.max_new, q.job.n_prompt, &g->err);
    if (!r) {
        struct cli_job *job = &q.job;
        cli_progress_start(&g->progress, "reading the prompt", "tokens", q.job.n_prompt);
        job->on_prompt = on_prompt;
        cli_job_start(&g->e, job);
        cli_progress_end(&g->progress);
        cli_progress_start(&g->progress, "generating", "tokens", q.job.max_new);
        while (!r && job->finish == CLI_FINISH_NONE)
            r = cli_jobs_round(&g->e, &job, 1, &g->err);
        cli_progress_end(&g->progress);
        finish_text(&q);
        if (!r && job->finish == CLI_FINISH_ERROR)
            r = cfg_error_set(&g->err, EIO, "%s", job->err.msg);
        if (!r && g->json)
            print_json(result_json(&q), stdout);
        if (!r && g->stats)
            print_stats(job, &g->e);
    }
    request_free(&q);
    return r;
}

/* ---- many prompts ---- */

struct batch {
    struct generate *g;
    char *text; /* the input file */
    size_t len, at;
    int64_t line, skip; /* next line; lines that the output file has already */
    int64_t total;      /* lines that hold a prompt */
    FILE *out;
    struct mdl_counters counters; /* of the requests of this run */
    int64_t failed;               /* of these, lines that could not be run */
    int64_t tokens;
    double seconds; /* wall time of all of it, prefill included */
};

/* Lines of an earlier run: results come out in input order, so counting them says where to go on. A last line without
 * its end was being written when that run died and is cut off; a file that begins otherwise is somebody else's. */
static int open_output(struct batch *b)
{
    static const char head[] = "{\"index\":0,";
    struct generate *g = b->g;
    struct stat st;
    if (!g->out_file) {
        b->out = stdout;
        return 0;
    }
    b->out = fopen(g->out_file, "a+b");
    if (!b->out)
        return cfg_error_set(&g->err, errno, "%s: %s", g->out_file, strerror(errno));
    if (fstat(fileno(b->out), &st) || !S_ISREG(st.st_mode))
        return cfg_error_set(&g->err, EINVAL,
                             "%s is no regular file, which --out needs to go on after an interruption; "
                             "redirect standard output instead",
                             g->out_file);
    int c;
    long end = 0, at = 0;
    rewind(b->out);
    while ((c = getc(b->out)) != EOF) {
        if (at < (long)sizeof head - 1 && c != head[at])
            return cfg_error_set(&g->err, EEXIST,
                                 "%s holds something else than results of an earlier run; name another "
                                 "file or remove this one",
                                 g->out_file);
        at++;
        if (c == '\n') {
            b->skip++;
            end = at;
        }
    }
    if (b->skip > b->total)
        return cfg_error_set(&g->err, EEXIST,
                             "%s holds %lld results, more than the %lld prompts of %s; name another file", g->out_file,
                             (long long)b->skip, (long long)b->total, g->batch_file);
    if (ftruncate(fileno(b->out), end))
        return cfg_error_set(&g->err, errno, "%s: %s", g->out_file, strerror(errno));
    fseek(b->out, 0, SEEK_END);
    if (b->skip)
        fprintf(stderr, "weft: %s holds %lld results, going on behind them\n", g->out_file, (long long)b->skip);
    return 0;
}

/* The next line with a prompt: a pointer into the text, NULL at the end. */
static const char *next_line(struct batch *b, size_t *len)
{
    while (b->at < b->len) {
        const char *line = b->text + b->at, *end = memchr(line, '\n', b->len - b->at);
        *len = end ? (size_t)(end - line) : b->len - b->at;
        b->at += *len + 1;
        for (size_t i = 0; i < *len; i++)
            if (!strchr(" \t\r", line[i]))
                return line;
    }
    return NULL;
}

static int parse_line(struct batch *b, const char *line, size_t len, struct request *q)
{
    struct generate *g = b->g;
    json_error_t je;
    json_t *j = json_loadb(line, len, JSON_REJECT_DUPLICATES, &je);
    if (!j)
        return cfg_error_set(&g->err, EINVAL, "column %d: %s", je.column, je.text);
    json_t *prompt = json_object_get(j, "prompt"), *n = json_object_get(j, "max_tokens");
    int r, max_new = g->max_new;
    q->id = json_incref(json_object_get(j, "id"));
    if (n && (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > INT32_MAX))
        r = cfg_error_set(&g->err, EINVAL, "max_tokens: give a positive whole number");
    else if (json_is_string(prompt))
        r = encode_text(q, json_string_value(prompt), json_string_length(prompt));
    else if (json_is_object(j) && json_object_get(j, "messages"))
        r = encode_chat(q, j);
    else
        r = cfg_error_set(&g->err, EINVAL, "give an object with \"prompt\" (text) or \"messages\"");
    if (n && !r)
        max_new = (int)json_integer_value(n);
    json_decref(j);
    return r ? r : request_ready(q, max_new);
}

/* A line that cannot be run is a result too, so that one bad line costs one line. */
static struct request *take_request(struct batch *b)
{
    size_t len;
    const char *line = next_line(b, &len);
    struct request *q = line ? calloc(1, sizeof *q) : NULL;
    if (!q)
        return NULL;
    q->g = b->g;
    q->index = b->line++;
    if (parse_line(b, line, len, q)) {
        q->job.finish = CLI_FINISH_ERROR;
        q->job.err = b->g->err;
    } else if (q->job.n_prompt + q->job.max_new > b->g->e.options.max_tokens) {
        q->job.finish = CLI_FINISH_ERROR;
        cfg_error_set(&q->job.err, E2BIG, "%d prompt tokens and %d new ones exceed --context %d", q->job.n_prompt,
                      q->job.max_new, b->g->e.options.max_tokens);
    } else {
        cli_job_start(&b->g->e, &q->job);
    }
    return q;
}

static int put_result(struct batch *b, struct request *q)
{
    struct generate *g = b->g;
    if (q->job.finish != CLI_FINISH_ERROR)
        finish_text(q);
    errno = 0;
    print_json(result_json(q), b->out);
    int e = ferror(b->out) ? errno ? errno : EIO : 0;
    b->failed += q->job.finish == CLI_FINISH_ERROR;
    mdl_counters_add(&b->counters, &q->job.counters);
    b->tokens += q->job.n_new;
    request_free(q);
    free(q);
    return e ? cfg_error_set(&g->err, e, "%s could not be written completely: %s",
                             g->out_file ? g->out_file : "standard output", strerror(e))
             : 0;
}

/* A window of requests in input order: finished ones leave at the front only, so that the output keeps the order and an
 * interrupted run knows where it was. */
static int run_window(struct batch *b)
{
    struct generate *g = b->g;
    int parallel = g->e.options.parallel, n = 0, r = 0;
    struct request **window = calloc((size_t)parallel, sizeof(struct request *));
    struct cli_job **jobs = calloc((size_t)parallel, sizeof(struct cli_job *));
    if (!window || !jobs)
        r = cfg_error_set(&g->err, ENOMEM, "batch: out of memory");
    while (!r) {
        while (n < parallel && (window[n] = take_request(b)))
            n++;
        if (!n)
            break;
        for (int i = 0; i < n; i++)
            jobs[i] = &window[i]->job;
        r = cli_jobs_round(&g->e, jobs, n, &g->err);
        int done = 0;
        for (int i = 0; i < n; i++)
            if (window[i]->job.finish != CLI_FINISH_NONE)
                cli_job_end(&window[i]->job);
        while (!r && done < n && window[done]->job.finish != CLI_FINISH_NONE)
            r = put_result(b, window[done++]);
        memmove(window, window + done, (size_t)(n - done) * sizeof *window);
        n -= done;
        cli_progress_update(&g->progress, (double)(b->line - b->skip - n));
    }
    for (int i = 0; i < n; i++) {
        request_free(window[i]);
        free(window[i]);
    }
    free(window);
    free(jobs);
    return r;
}

static int run_batch(struct generate *g)
{
    struct batch b = {.g = g};
    int r = cli_file_read(g->batch_file, &b.text, &b.len, &g->err);
    size_t len;
    while (!r && next_line(&b, &len))
        b.total++;
    b.at = 0;
    if (!r)
        r = open_output(&b);
    if (!r) {
        while (b.line < b.skip && next_line(&b, &len))
            b.line++;
        int context = g->e.options.max_tokens ? g->e.options.max_tokens : 4096;
        if (context > g->e.m->cfg->max_position)
            context = g->e.m->cfg->max_position;
        r = cli_engine_prepare(&g->e, context, context, &g->err);
    }
    if (!r) {
        cli_progress_start(&g->progress, "generating", "prompts", (double)(b.total - b.skip));
        b.seconds = -cli_seconds();
        r = run_window(&b);
        b.seconds += cli_seconds();
        cli_progress_end(&g->progress);
    }
    if (b.failed)
        fprintf(stderr, "weft: %lld of %lld prompts failed; their results say why\n", (long long)b.failed,
                (long long)b.total);
    if (!r && g->stats) {
        fprintf(stderr, "output        %lld tokens in %.3f s, prompts included (%.1f tokens/s)\n", (long long)b.tokens,
                b.seconds, (double)b.tokens / b.seconds);
        print_counters(&b.counters, &g->e, g->e.options.parallel);
    }
    bool bad = b.out && ferror(b.out);
    if (b.out && b.out != stdout)
        bad |= fclose(b.out) != 0;
    if (!r && bad)
        r = cfg_error_set(&g->err, EIO, "%s could not be written completely",
                          g->out_file ? g->out_file : "standard output");
    free(b.text);
    return r;
}

/* ---- the command ---- */

static int check_options(struct generate *g, int first, int argc, char **argv)
{
    int sources = !!g->prompt + !!g->chat_file + !!g->batch_file;
    if (first < argc) {
        if (strcmp(argv[first], "-"))
            return cli_error(CLI_USAGE, "\"%s\" is no option of generate; a prompt is given as -p TEXT", argv[first]);
        g->from_stdin = true;
        sources++;
    }
    if (!g->engine_options.model_dir)
        return cli_error(CLI_USAGE, "generate needs -m DIR, the folder of a checkpoint");
    if (sources != 1)
        return cli_error(CLI_USAGE, "give exactly one of -p TEXT, --chat FILE, --batch FILE or - (standard input)");
    if (g->engine_options.exact && g->engine_options.replay)
        return cli_error(CLI_USAGE, "--exact and --replay exclude each other");
    if (g->no_spec && g->engine_options.draft > 0)
        return cli_error(CLI_USAGE, "--no-spec and --draft exclude each other");
    if (g->out_file && !g->batch_file)
        return cli_error(CLI_USAGE, "--out belongs to --batch; redirect standard output instead");
    for (int i = 0; i < g->stops.count; i++)
        if (!*g->stops.item[i] || !mdl_utf8_valid(g->stops.item[i], strlen(g->stops.item[i])))
            return cli_error(CLI_USAGE, "--stop: give some text in UTF-8; \"%s\" is none", g->stops.item[i]);
    if (g->sampling.seed > INT64_MAX)
        return cli_error(CLI_USAGE, "--seed: %llu is above %lld, the largest number that results can name",
                         (unsigned long long)g->sampling.seed, (long long)INT64_MAX);
    if (g->no_spec)
        g->engine_options.draft = 0;
    g->engine_options.full_bridge = g->bridge == 1;
    g->sampling.top_logprobs = g->top_logprobs;
    return CLI_GO_ON;
}

int cli_generate_run(int argc, char **argv)
{
    struct generate g = {.max_new = 256, .engine_options = {.draft = -1, .parallel = 8}};
    mdl_sampling_init(&g.sampling);
    g.sampling.top_p = 0.95;
    struct cli_engine_options *o = &g.engine_options;
    const struct cli_option options[] = {
        {CLI_TEXT, "model", 'm', &o->model_dir, "DIR", "folder of the checkpoint (required)"},
        {CLI_TEXT, "prompt", 'p', &g.prompt, "TEXT", "go on from this text"},
        {CLI_TEXT, "chat", 0, &g.chat_file, "FILE",
         "answer a conversation: JSON with \"messages\" (and \"tools\", \"thinking\",\n"
         "\"reasoning_effort\") as in the OpenAI API"},
        {CLI_TEXT, "batch", 0, &g.batch_file, "FILE",
         "many prompts, one JSON object a line: \"prompt\" or \"messages\", and\n"
         "\"id\", \"max_tokens\" if wanted; results are JSON lines in the same order"},
        {CLI_TEXT, "out", 0, &g.out_file, "FILE", "with --batch: where results go; an interrupted run is resumed"},
        {CLI_INT, "tokens", 'n', &g.max_new, "N", "most tokens to generate (default 256)", 1, 1 << 20},
        {CLI_DOUBLE, "temperature", 't', &g.sampling.temperature, "T", "0: greedy (default 1)", 0, 100},
        {CLI_INT, "top-k", 0, &g.sampling.top_k, "K", "only the K most probable tokens (default 0: all)", 0, 1 << 30},
        {CLI_DOUBLE, "top-p", 0, &g.sampling.top_p, "P", "only the most probable tokens of total mass P (default 0.95)",
         1e-9, 1},
        {CLI_DOUBLE, "min-p", 0, &g.sampling.min_p, "P", "only tokens at least P times as probable as the best", 0, 1},
        {CLI_DOUBLE, "repetition-penalty", 0, &g.sampling.repetition_penalty, "X",
         "divide logits of tokens seen (default 1: off)", 1e-6, 10},
        {CLI_DOUBLE, "presence-penalty", 0, &g.sampling.presence_penalty, "X", "subtract from tokens generated before",
         -2, 2},
        {CLI_DOUBLE, "frequency-penalty", 0, &g.sampling.frequency_penalty, "X",
         "subtract per occurrence in the output", -2, 2},
        {CLI_UINT64, "seed", 0, &g.sampling.seed, "N", "key of the random numbers (default 0); same seed, same text"},
        {CLI_LIST, "stop", 0, &g.stops, "TEXT", "end before this text appears (may be repeated)"},
        {CLI_FLAG, "ignore-eos", 0, &g.ignore_eos, NULL, "do not stop at the end-of-text token"},
        {CLI_INT, "logprobs", 0, &g.top_logprobs, "N", "with --json: log-probabilities, with N alternatives", 0,
         MDL_MAX_TOP_LOGPROBS, .given = &g.logprobs_given},
        {CLI_FLAG, "exact", 0, &o->exact, NULL, "prompt through every layer instead of bounded replay"},
        {CLI_INT, "replay", 0, &o->replay, "R", "rows of the bounded replay (default: window + 12)", 1, 1 << 20},
        {CLI_CHOICE, "bridge-window", 0, &g.bridge, "KIND", "truncate (default) or full", .choices = bridge_names},
        {CLI_FLAG, "no-spec", 0, &g.no_spec, NULL, "no speculative decoding; the text is the same"},
        {CLI_INT, "draft", 0, &o->draft, "K", "tokens drafted and verified per step (default: the model's block)", 0,
         MDL_MAX_BLOCK},
        {CLI_INT, "parallel", 0, &o->parallel, "N", "with --batch: prompts at a time (default 8)", 1, 1024},
        {CLI_INT, "context", 0, &o->max_tokens, "N", "with --batch: longest prompt and output together (default 4096)",
         2, 1 << 30},
        {CLI_INT, "threads", 0, &o->threads, "N", "compute threads (default: one per usable CPU)", 1, 1024},
        {CLI_FLAG, "json", 0, &g.json, NULL, "one JSON object instead of text"},
        {CLI_FLAG, "stats", 0, &g.stats, NULL, "times and raw draft counters on standard error"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "generate -m DIR (-p TEXT | --chat FILE | --batch FILE | -) [options]",
        .intro = "Generates text on this machine, without a server.",
        .options = options,
        .max_args = 1,
    };
    int first, r = cli_options_parse(&usage, argc, argv, &first);
    if (r == CLI_GO_ON)
        r = check_options(&g, first, argc, argv);
    if (r != CLI_GO_ON)
        return r;
    r = cli_engine_open(o, &g.e, &g.err);
    if (!r)
        r = mdl_sampling_check(&g.sampling, g.e.vocab, &g.err);
    if (!r)
        r = g.batch_file ? run_batch(&g) : run_single(&g);
    if (r)
        cli_error(CLI_FAILED, "%s", g.err.msg);
    cli_engine_close(&g.e);
    return r ? CLI_FAILED : CLI_OK;
}
