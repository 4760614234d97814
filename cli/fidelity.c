/* weft fidelity: how far the approximations of the normal mode are from exact mode, on a text of the user's.
 *
 * For each prompt cut from the text, exact mode generates greedily; every variant then runs the same tokens after its
 * own prefill. So all rows compare like with like, and the first row at which a variant prefers another token is the
 * place where its own greedy text would have gone another way. */
#define _GNU_SOURCE
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/plot.h"
#include "cli/progress.h"
#include "model/draft.h"
#include "model/prefill.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

enum { MAX_VARIANTS = 64 };

struct variant {
    char name[80];
    int replay, hit;
    bool full, window;
    /* Sums over prompts and rows. */
    long rows, same;
    double kl_sum, kl_max;
    long prompts, identical, prefix_sum;
};

struct fidelity {
    const char *model_dir, *text_file, *json_file, *plot_file;
    int prompts, prompt_tokens, new_tokens, threads;
    struct mdl_model *m;
    struct mdl_tokenizer *tok;
    struct mdl_ids ids;
    struct mdl_step *step;
    struct mdl_seq *seq, *cold;
    float *exact;    /* [new_tokens][vocab] */
    int32_t *greedy; /* [new_tokens] exact mode's tokens */
    int32_t *prompt;
    struct variant variant[MAX_VARIANTS];
    int n_variants;
    struct cli_progress progress;
    int done;
    struct cfg_error err;
};

static int vocab_of(const struct fidelity *f)
{
    return f->m->cfg->vocab_size;
}

/* ---- what is compared ---- */

static void add_variant(struct fidelity *f, int replay, bool full, int hit, bool window)
{
    struct variant *v = &f->variant[f->n_variants];
    for (int i = 0; i < f->n_variants; i++)
        if (f->variant[i].replay == replay && f->variant[i].full == full && f->variant[i].hit == hit &&
            f->variant[i].window == window)
            return;
    if (f->n_variants == MAX_VARIANTS || hit < 0 || hit >= f->prompt_tokens)
        return;
    *v = (struct variant){.replay = replay, .full = full, .hit = hit, .window = window};
    if (hit)
        snprintf(v->name, sizeof v->name, "hit %d, R %d, %s", hit, replay,
                 window ? "window rows kept" : "encoder replay");
    else
        snprintf(v->name, sizeof v->name, "cold, R %d, bridge %s", replay, full ? "full" : "truncate");
    f->n_variants++;
}

static void list_variants(struct fidelity *f)
{
    int w = f->m->cfg->window, normal = w + 12;
    const int replays[] = {w, normal, 2 * w, 4 * w};
    for (size_t i = 0; i < sizeof replays / sizeof *replays; i++)
        for (int full = 0; full < 2; full++)
            add_variant(f, replays[i], full, 0, false);
    for (int q = 1; q <= 4; q++) {
        int hit = (q < 4 ? f->prompt_tokens * q / 4 : f->prompt_tokens - 2) & ~1;
        add_variant(f, normal, false, hit, true);
        add_variant(f, normal, false, hit, false);
        add_variant(f, 2 * w, false, hit, false);
    }
}

/* ---- runs ---- */

static int prefill(struct fidelity *f, struct mdl_seq *seq, const struct mdl_prefill_params *params, int n)
{
    struct mdl_prefill plan;
    int r = mdl_prefill_begin(&plan, seq, f->prompt, n, params, &f->err);
    return r ? r : mdl_prefill_run(&plan, f->step, 0, NULL, NULL, &f->err);
}

/* One decode step of a given token; logits of the row stay in the step. */
static int decode_one(struct fidelity *f, int32_t id)
{
    struct mdl_segment seg = {
        .seq = f->seq, .start = f->seq->len, .n = 1, .ids = &id, .layer_end = f->m->cfg->n_layers};
    mdl_step_begin(f->step, NULL);
    int r = mdl_step_add(f->step, &seg, &f->err);
    if (r)
        return r;
    if (mdl_step_run(f->step) != MDL_STEP_DONE)
        return cfg_error_set(&f->err, EIO, "the step of position %d failed", seg.start);
    mdl_step_commit(f->step, 0, 1);
    return 0;
}

static const float *last_logits(const struct fidelity *f)
{
    return mdl_step_logits(f->step, 0, f->step->segment[0].n - 1);
}

static int run_exact(struct fidelity *f)
{
    size_t vocab = (size_t)vocab_of(f);
    mdl_seq_reset(f->seq);
    int r = prefill(f, f->seq, &(struct mdl_prefill_params){.exact = true}, f->prompt_tokens);
    for (int i = 0; i < f->new_tokens && !r; i++) {
        r = mdl_logits_check(last_logits(f), (int)vocab, &f->err);
        memcpy(f->exact + (size_t)i * vocab, last_logits(f), vocab * sizeof(float));
        f->greedy[i] = mdl_argmax(last_logits(f), (int)vocab);
        if (!r && i + 1 < f->new_tokens)
            r = decode_one(f, f->greedy[i]);
    }
    return r;
}

/* KL(exact || variant) in nats. */
static double divergence(const float *p, const float *q, int n)
{
    double ptop = p[0], qtop = q[0], ps = 0, qs = 0, kl = 0;
    for (int i = 1; i < n; i++) {
        ptop = p[i] > ptop ? p[i] : ptop;
        qtop = q[i] > qtop ? q[i] : qtop;
    }
    for (int i = 0; i < n; i++) {
        ps += exp(p[i] - ptop);
        qs += exp(q[i] - qtop);
    }
    for (int i = 0; i < n; i++) {
        double lp = p[i] - ptop - log(ps), lq = q[i] - qtop - log(qs);
        kl += exp(lp) * (lp - lq);
    }
    return kl > 0 ? kl : 0;
}

static int run_variant(struct fidelity *f, struct variant *v)
{
    struct mdl_prefill_params params = {.replay = v->replay, .full_bridge = v->full};
    size_t vocab = (size_t)vocab_of(f);
    int r = 0, prefix = -1;
    mdl_seq_reset(f->seq);
    if (v->hit) {
        mdl_seq_reset(f->cold);
        r = prefill(f, f->cold, &params, v->hit);
        if (!r)
            r = mdl_seq_copy_prefix(f->seq, f->cold, v->hit, v->window, &f->err);
    }
    params.hit = v->hit;
    params.hit_window = v->window;
    if (!r)
        r = prefill(f, f->seq, &params, f->prompt_tokens);
    for (int i = 0; i < f->new_tokens && !r; i++) {
        const float *logits = last_logits(f), *exact = f->exact + (size_t)i * vocab;
        r = mdl_logits_check(logits, (int)vocab, &f->err);
        double kl = divergence(exact, logits, (int)vocab);
        bool same = mdl_argmax(logits, (int)vocab) == f->greedy[i];
        v->rows++;
        v->same += same;
        v->kl_sum += kl;
        v->kl_max = kl > v->kl_max ? kl : v->kl_max;
        if (!same && prefix < 0)
            prefix = i;
        if (!r && i + 1 < f->new_tokens)
            r = decode_one(f, f->greedy[i]);
    }
    v->prompts++;
    v->identical += prefix < 0;
    v->prefix_sum += prefix < 0 ? f->new_tokens : prefix;
    return r;
}

static int run_all(struct fidelity *f)
{
    const struct mdl_config *cfg = f->m->cfg;
    long spare = (long)f->ids.n - (f->prompt_tokens - 1);
    cli_progress_start(&f->progress, "comparing", "runs", (double)f->prompts * (f->n_variants + 1));
    for (int p = 0; p < f->prompts; p++) {
        long at = f->prompts > 1 ? spare * p / (f->prompts - 1) : 0;
        f->prompt[0] = cfg->bos_id >= 0 ? cfg->bos_id : f->ids.v[at];
        for (int i = 1; i < f->prompt_tokens; i++)
            f->prompt[i] = f->ids.v[at + i - 1];
        int r = run_exact(f);
        for (int i = 0; i < f->n_variants && !r; i++) {
            r = run_variant(f, &f->variant[i]);
            cli_progress_update(&f->progress, ++f->done);
        }
        if (r)
            return r;
        cli_progress_update(&f->progress, ++f->done);
    }
    cli_progress_end(&f->progress);
    return 0;
}

/* ---- results ---- */

static void print_table(const struct fidelity *f)
{
    printf("%d prompts of %d tokens from %s, %d tokens of exact greedy text after each, cpu path %s\n"
           "top-1: rows where the most probable token is exact mode's. KL: exact to variant, nats per row.\n"
           "prefix: tokens before the first different choice, of %d. same: prompts without one.\n\n",
           f->prompts, f->prompt_tokens, f->text_file, f->new_tokens, f->m->exec.be->name, f->new_tokens);
    printf("%-36s %8s %10s %10s %8s %6s\n", "variant", "top-1", "KL mean", "KL max", "prefix", "same");
    for (int i = 0; i < f->n_variants; i++) {
        const struct variant *v = &f->variant[i];
        printf("%-36s %7.2f%% %10.6f %10.5f %8.2f %3ld/%ld\n", v->name, 100.0 * (double)v->same / (double)v->rows,
               v->kl_sum / (double)v->rows, v->kl_max, (double)v->prefix_sum / (double)v->prompts, v->identical,
               v->prompts);
    }
}

static int write_json(struct fidelity *f)
{
    char revision[17];
    snprintf(revision, sizeof revision, "%016llx", (unsigned long long)f->m->ck->revision);
    json_t *list = json_array();
    for (int i = 0; i < f->n_variants; i++) {
        const struct variant *v = &f->variant[i];
        json_array_append_new(list,
                              json_pack("{s:s,s:i,s:i,s:s,s:b,s:I,s:f,s:f,s:f,s:f,s:f}", "name", v->name, "replay",
                                        v->replay, "hit", v->hit, "bridge_window", v->full ? "full" : "truncate",
                                        "hit_window_rows", v->window, "rows", (json_int_t)v->rows, "top1_agreement",
                                        (double)v->same / (double)v->rows, "kl_mean", v->kl_sum / (double)v->rows,
                                        "kl_max", v->kl_max, "prefix_mean", (double)v->prefix_sum / (double)v->prompts,
                                        "identical", (double)v->identical / (double)v->prompts));
    }
    json_t *j = json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:o}", "model_revision", revision, "cpu_path", f->m->exec.be->name,
                          "text", f->text_file, "prompts", f->prompts, "prompt_tokens", f->prompt_tokens, "new_tokens",
                          f->new_tokens, "variants", list);
    int r = json_dump_file(j, f->json_file, JSON_INDENT(1))
                ? cfg_error_set(&f->err, EIO, "%s could not be written", f->json_file)
                : 0;
    json_decref(j);
    return r;
}

static int write_plot(struct fidelity *f)
{
    struct cli_plot *p;
    int r = cli_plot_begin(f->plot_file, &p, &f->err);
    if (r)
        return r;
    cli_plot_printf(p,
                    "set title \"Distance of bounded replay and prefix hits from exact mode\\n"
                    "%d prompts of %d tokens, %d greedy tokens each, window %d, cpu path %s\" noenhanced\n",
                    f->prompts, f->prompt_tokens, f->new_tokens, f->m->cfg->window, f->m->exec.be->name);
    cli_plot_printf(
        p,
        "set xlabel 'mean KL divergence from exact mode (nats per row)'\nset logscale x\nset format x '10^{%%T}'\n"
        "set yrange [%d.5:-0.5]\nset grid x\nset key off\nset style fill solid 0.8\nset lmargin 36\n"
        "set rmargin 14\n",
        f->n_variants - 1);
    cli_plot_printf(p, "set ytics (");
    double least = 1;
    for (int i = 0; i < f->n_variants; i++) {
        double kl = f->variant[i].kl_sum / (double)f->variant[i].rows;
        least = kl > 0 && kl < least ? kl : least;
        cli_plot_printf(p, "%s'%s' %d", i ? ", " : "", f->variant[i].name, i);
    }
    /* A logarithmic axis has no zero: variants equal to exact mode get no bar and say so. */
    cli_plot_printf(p, ")\nset xrange [%g:*]\n$data << EOD\n", least / 3);
    for (int i = 0; i < f->n_variants; i++) {
        const struct variant *v = &f->variant[i];
        double kl = v->kl_sum / (double)v->rows;
        cli_plot_printf(p, "%d %g \"%s%.1f %% top-1\"\n", i, kl > 0 ? kl : least / 2.9, kl > 0 ? "" : "equal, ",
                        100.0 * (double)v->same / (double)v->rows);
    }
    cli_plot_printf(p,
                    "EOD\nplot $data using 2:1:(%g):2:($1-0.35):($1+0.35) with boxxyerror lc rgb '#4477aa', "
                    "$data using 2:1:3 with labels left offset 0.5,0\n",
                    least / 3);
    return cli_plot_end(p, &f->err);
}

/* ---- the command ---- */

static int load(struct fidelity *f)
{
    char *text = NULL;
    size_t len = 0;
    struct mdl_tok_encoder *enc = NULL;
    int r = mdl_model_open(f->model_dir, f->threads, NULL, &f->m, &f->err);
    if (!r && f->m->cfg->cut < 0)
        r = cfg_error_set(&f->err, ENOTSUP, "this model has no cut layer (%s), so it always runs exactly",
                          f->m->cfg->cut_reason);
    if (!r)
        r = mdl_tokenizer_load(f->model_dir, &f->tok, &f->err);
    if (!r)
        r = mdl_tok_encoder_new(f->tok, &enc, &f->err);
    if (!r)
        r = cli_file_read(f->text_file, &text, &len, &f->err);
    if (!r)
        r = mdl_tok_encode(enc, text, len, 0, &f->ids, &f->err);
    free(text);
    mdl_tok_encoder_free(enc);
    if (!r && f->ids.n < (size_t)f->prompt_tokens)
        r = cfg_error_set(&f->err, EINVAL,
                          "%s has %zu tokens, fewer than --length %d; give a longer text or shorter prompts",
                          f->text_file, f->ids.n, f->prompt_tokens);
    return r;
}

static int prepare(struct fidelity *f)
{
    int tokens = f->prompt_tokens + f->new_tokens, w = f->m->cfg->window;
    struct mdl_seq_params params = {
        .max_tokens = tokens, .replay = 4 * w > w + 12 ? 4 * w : w + 12, .full_bridge = true};
    f->exact = malloc((size_t)f->new_tokens * (size_t)vocab_of(f) * sizeof *f->exact);
    f->greedy = malloc((size_t)f->new_tokens * sizeof *f->greedy);
    f->prompt = malloc((size_t)f->prompt_tokens * sizeof *f->prompt);
    if (!f->exact || !f->greedy || !f->prompt)
        return cfg_error_set(&f->err, ENOMEM, "fidelity: out of memory");
    int r = mdl_seq_new(f->m->cfg, &params, &f->seq, &f->err);
    if (!r)
        r = mdl_seq_new(f->m->cfg, &params, &f->cold, &f->err);
    return r ? r : mdl_step_new(f->m, f->prompt_tokens < 512 ? f->prompt_tokens : 512, tokens, &f->step, &f->err);
}

int cli_fidelity_run(int argc, char **argv)
{
    struct fidelity f = {.prompts = 16, .prompt_tokens = 240, .new_tokens = 32};
    const struct cli_option options[] = {
        {CLI_TEXT, "model", 'm', &f.model_dir, "DIR", "folder of the checkpoint (required)"},
        {CLI_TEXT, "text", 0, &f.text_file, "FILE", "text that prompts are cut from (required)"},
        {CLI_INT, "prompts", 0, &f.prompts, "N", "prompts, spread evenly over the text (default 16)", 1, 100000},
        {CLI_INT, "length", 0, &f.prompt_tokens, "N", "tokens per prompt (default 240)", 4, 1 << 24},
        {CLI_INT, "tokens", 'n', &f.new_tokens, "N", "tokens of exact greedy text to compare (default 32)", 1, 1 << 20},
        {CLI_INT, "threads", 0, &f.threads, "N", "compute threads (default: one per usable CPU)", 1, 1024},
        {CLI_TEXT, "json", 0, &f.json_file, "FILE", "also write the figures as JSON"},
        {CLI_TEXT, "plot", 0, &f.plot_file, "FILE", "also draw them, to FILE.svg or FILE.png (needs gnuplot)"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "fidelity -m DIR --text FILE [options]",
        .intro = "Measures how far bounded replay and prefix hits are from exact mode on a text.",
        .options = options,
    };
    int r = cli_options_parse(&usage, argc, argv, NULL);
    if (r != CLI_GO_ON)
        return r;
    if (!f.model_dir || !f.text_file)
        return cli_error(CLI_USAGE, "fidelity needs -m DIR and --text FILE; see `weft fidelity --help`");
    r = load(&f);
    if (!r)
        r = prepare(&f);
    if (!r) {
        list_variants(&f);
        r = run_all(&f);
    }
    cli_progress_end(&f.progress);
    if (!r)
        print_table(&f);
    if (!r && f.json_file)
        r = write_json(&f);
    if (!r && f.plot_file)
        r = write_plot(&f);
    if (r)
        cli_error(CLI_FAILED, "%s", f.err.msg);
    mdl_step_free(f.step);
    mdl_seq_free(f.seq);
    mdl_seq_free(f.cold);
    mdl_ids_free(&f.ids);
    mdl_tokenizer_free(f.tok);
    mdl_model_close(f.m);
    free(f.exact);
    free(f.greedy);
    free(f.prompt);
    return r ? CLI_FAILED : CLI_OK;
}
