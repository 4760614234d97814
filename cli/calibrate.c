/* weft calibrate: fits the drafter's confidences to what is really kept, from blocks that are verified whole, and says
 * on other blocks what that brings. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/conditions.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/plot.h"
#include "cli/progress.h"
#include "model/calibration.h"
#include "model/decode.h"
#include "model/model.h"
#include "model/prefill.h"
#include "model/reject.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

enum { KINDS = 3 }; /* the head as it is, temperature, temperature and shift */
static const char *const kind_names[KINDS] = {"as it is", "temperature", "with a shift"};

/* Whole blocks of one way of choosing; `group` is the prompt they come from. */
struct probes {
    int n, cap;
    float *logit; /* [n][block] */
    int *kept, *group;
};

struct calibrate {
    const char *model_dir, *text_file, *log_file, *out_file, *probes_file, *plot_file, *choices;
    char beside[4096];   /* the model, where out_file is when none is given */
    bool draws_given[2]; /* --temperature, --seed */
    int prompts, length, tokens, threads, seed;
    double temperature;
    bool dry_run;
    struct mdl_model *m;
    struct mdl_ids text;
    int block;
    bool wanted[MDL_CHOICES];
    struct probes probes[MDL_CHOICES];
    struct mdl_calibration result;
    struct mdl_calibration_place judged[MDL_CHOICES][MDL_MAX_BLOCK]; /* of one half, as judged on the other */
    int drawn[MDL_CHOICES];                                          /* blocks that judged; 0: was not fitted */
    struct cli_progress progress;
    struct cfg_error err;
};

static int add_probe(struct calibrate *c, enum mdl_choice choice, const float *logit, int kept, int group)
{
    struct probes *p = &c->probes[choice];
    size_t block = (size_t)c->block;
    if (p->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 1024;
        float *l = realloc(p->logit, (size_t)cap * block * sizeof *l);
        p->logit = l ? l : p->logit;
        int *k = realloc(p->kept, (size_t)cap * sizeof *k), *g = realloc(p->group, (size_t)cap * sizeof *g);
        p->kept = k ? k : p->kept;
        p->group = g ? g : p->group;
        if (!l || !k || !g)
            return cfg_error_set(&c->err, ENOMEM, "out of memory");
        p->cap = cap;
    }
    memcpy(p->logit + (size_t)p->n * block, logit, block * sizeof *logit);
    p->kept[p->n] = kept;
    p->group[p->n++] = group;
    return 0;
}

/* ---- collecting: one prompt ---- */

struct run {
    struct calibrate *c;
    enum mdl_choice choice;
    struct mdl_sampler *sampler;
    struct mdl_sampling recipe;
    struct mdl_stream stream;
    float *p, *q; /* by rejection: [vocab], [block][vocab] */
};

static int32_t pick_by_rejection(struct run *r, int pos, const float *logits, bool draft)
{
    int vocab = r->c->m->cfg->vocab_size, place = pos - r->stream.seq->len - 1;
    float *to = draft ? r->q + (size_t)place * (size_t)vocab : r->p;
    int bad = mdl_sampler_distribution(r->sampler, &r->recipe, logits, vocab, NULL, 0, 0, to, &r->c->err);
    if (bad)
        return bad;
    if (draft)
        return mdl_reject_draft(to, vocab, r->recipe.seed, pos, place);
    bool offered = place >= 0 && place < r->stream.offer;
    return mdl_reject_choose(to, offered ? r->q + (size_t)place * (size_t)vocab : NULL,
                             offered ? r->stream.guess.ids[place] : 0, vocab, r->recipe.seed, pos);
}

static int32_t choose(struct run *r, int pos, const float *logits, bool draft)
{
    int vocab = r->c->m->cfg->vocab_size;
    int32_t id;
    if (r->choice == MDL_CHOICE_GREEDY)
        return mdl_argmax(logits, vocab);
    if (r->choice == MDL_CHOICE_REJECT)
        return pick_by_rejection(r, pos, logits, draft);
    int bad = mdl_sampler_sample(r->sampler, &r->recipe, logits, vocab, NULL, 0, 0, pos, &id, NULL, &r->c->err);
    return bad ? bad : id;
}

/* An end token ends a prompt's text, as it would a request's. */
static int32_t pick(void *ctx, int pos, float *logits, bool draft)
{
    struct run *r = ctx;
    int32_t id = choose(r, pos, logits, draft);
    r->stream.finished = !draft && id == r->c->m->cfg->eos_id;
    return id;
}

/* Generates behind the prompt, every block whole. The block in which the text ends counts too: nothing behind the end
 * was kept. */
static int run_prompt(struct run *r, int group, struct mdl_decoder *d, struct mdl_step *step)
{
    struct calibrate *c = r->c;
    const struct mdl_config *cfg = c->m->cfg;
    size_t from = (c->text.n - (size_t)c->length) * (size_t)group / (size_t)c->prompts;
    struct mdl_seq *seq;
    struct mdl_prefill plan;
    int limit = c->length + c->tokens;
    int bad = mdl_seq_new(cfg, &(struct mdl_seq_params){.max_tokens = limit + 2 * c->block + 2}, &seq, &c->err);
    if (bad)
        return bad;
    bad = mdl_prefill_begin(&plan, seq, c->text.v + from, c->length, &(struct mdl_prefill_params){.exact = true},
                            &c->err);
    if (!bad)
        bad = mdl_prefill_run(&plan, step, 0, NULL, NULL, &c->err);
    r->recipe.seed = (uint64_t)c->seed * 1000003 + (uint64_t)group;
    r->stream = (struct mdl_stream){.seq = seq, .draft = c->block, .limit = MDL_ROUND_MAX, .pick = pick, .pick_ctx = r};
    if (!bad) {
        int32_t id = pick(r, c->length, (float *)mdl_step_logits(step, 0, step->segment[0].n - 1), false);
        r->stream.next = id;
        bad = id < 0 ? id : 0;
    }
    struct mdl_stream *list = &r->stream;
    while (!bad && !r->stream.finished && seq->len < limit) {
        bad = mdl_decoder_round(d, &list, 1, &c->err);
        if (!bad)
            bad = r->stream.status;
        if (!bad && r->stream.guess.n == c->block)
            bad = add_probe(c, r->choice, r->stream.guess.confidence, r->stream.n_accepted, group);
    }
    mdl_seq_free(seq);
    return bad;
}

static int collect(struct calibrate *c, enum mdl_choice choice)
{
    struct run r = {.c = c, .choice = choice};
    struct mdl_decoder *d = NULL;
    struct mdl_step *step = NULL;
    size_t vocab = (size_t)c->m->cfg->vocab_size;
    int tokens = c->length + c->tokens + 2 * c->block + 2;
    mdl_sampling_init(&r.recipe);
    r.recipe.temperature = c->temperature;
    r.sampler = mdl_sampler_new((int)vocab);
    r.p = malloc(vocab * sizeof *r.p);
    r.q = malloc((size_t)c->block * vocab * sizeof *r.q);
    int bad = r.sampler && r.p && r.q ? 0 : cfg_error_set(&c->err, ENOMEM, "out of memory");
    if (!bad)
        bad = mdl_decoder_new(c->m, 1, c->block, tokens, &d, &c->err);
    if (!bad)
        bad = mdl_step_new(c->m, c->length < 512 ? c->length : 512, tokens, &step, &c->err);
    cli_progress_start(&c->progress, mdl_choice_names[choice], "prompts", c->prompts);
    for (int i = 0; i < c->prompts && !bad; i++) {
        bad = run_prompt(&r, i, d, step);
        cli_progress_update(&c->progress, i + 1);
    }
    cli_progress_end(&c->progress);
    mdl_decoder_free(d);
    mdl_step_free(step);
    mdl_sampler_free(r.sampler);
    free(r.p);
    free(r.q);
    return bad;
}

/* ---- collecting: from a log ---- */

static int choice_of(const char *name)
{
    for (int m = 0; m < MDL_CHOICES; m++)
        if (name && !strcmp(name, mdl_choice_names[m]))
            return m;
    return -1;
}

/* "0.5,-1.25,..." of exactly a block. */
static bool read_logits(const struct calibrate *c, const char *text, float *out)
{
    for (int k = 0; k < c->block; k++) {
        char *end;
        out[k] = strtof(text, &end);
        if (end == text || !isfinite(out[k]) || *end != (k + 1 < c->block ? ',' : 0))
            return false;
        text = end + 1;
    }
    return true;
}

/* A probe event of the server, as a text line or as JSON; other lines are none of ours. Blocks of one request stay
 * together. */
static int read_log_line(struct calibrate *c, char *line)
{
    float logit[MDL_MAX_BLOCK];
    char choice[16] = "", logits[400] = "";
    int kept = -1, group;
    unsigned request = 0;
    if (line[0] == '{') {
        json_t *j = json_loads(line, 0, NULL);
        const char *event = json_string_value(json_object_get(j, "event"));
        if (event && !strcmp(event, "probe")) {
            const char *text = json_string_value(json_object_get(j, "logits"));
            snprintf(logits, sizeof logits, "%s", text ? text : "");
            const char *name = json_string_value(json_object_get(j, "choice"));
            snprintf(choice, sizeof choice, "%s", name ? name : "");
            kept = (int)json_integer_value(json_object_get(j, "kept"));
            request = (unsigned)json_integer_value(json_object_get(j, "number"));
        }
        json_decref(j);
    } else {
        const char *at = strstr(line, " probe number=");
        if (!at ||
            sscanf(at, " probe number=%u choice=%15s kept=%d logits=%399s", &request, choice, &kept, logits) != 4)
            return 0;
    }
    group = (int)(request & 0x7fffffff);
    int m = choice_of(choice);
    if (m < 0 || !c->wanted[m] || kept < 0 || kept > c->block || !read_logits(c, logits, logit))
        return 0;
    return add_probe(c, (enum mdl_choice)m, logit, kept, group);
}

static int read_log(struct calibrate *c)
{
    char *text, *save;
    size_t len;
    int bad = cli_file_read(c->log_file, &text, &len, &c->err);
    if (bad)
        return bad;
    for (char *line = strtok_r(text, "\n", &save); line && !bad; line = strtok_r(NULL, "\n", &save))
        bad = read_log_line(c, line);
    free(text);
    return bad;
}

/* ---- fitting ---- */

/* The blocks of every other prompt. */
static int half_of(const struct calibrate *c, const struct probes *p, int which, struct mdl_probes *out, float *logit,
                   int *kept)
{
    int n = 0;
    for (int i = 0; i < p->n; i++)
        if (p->group[i] % 2 == which) {
            memcpy(logit + (size_t)n * (size_t)c->block, p->logit + (size_t)i * (size_t)c->block,
                   (size_t)c->block * sizeof *logit);
            kept[n++] = p->kept[i];
        }
    *out = (struct mdl_probes){.n = n, .places = c->block, .logit = logit, .kept = kept};
    return n;
}

static double mean_error(const struct mdl_probes *p, const struct mdl_calibration_place *at)
{
    double sum = 0;
    for (int k = 0; k < p->places; k++)
        sum += mdl_calibration_error(p, at, k);
    return sum / p->places;
}

static void print_errors(const struct mdl_probes *held, struct mdl_calibration_place at[KINDS][MDL_MAX_BLOCK], int best)
{
    printf("%-14s", "position");
    for (int k = 0; k < held->places; k++)
        printf(" %7d", k + 1);
    printf("    mean\n%-14s", "kept");
    for (int k = 0; k < held->places; k++) {
        int n = 0;
        for (int i = 0; i < held->n; i++)
            n += held->kept[i] > k;
        printf(" %6.1f%%", 100.0 * n / held->n);
    }
    putchar('\n');
    for (int kind = 0; kind < KINDS; kind++) {
        printf("%-14s", kind_names[kind]);
        for (int k = 0; k < held->places; k++)
            printf(" %7.4f", mdl_calibration_error(held, at[kind], k));
        printf(" %7.4f%s\n", mean_error(held, at[kind]), kind == best ? "  kept" : "");
    }
}

/* Both fits from one half, judged on the other; what is kept is then fitted to all blocks. -ENODATA: there are too few.
 */
static int fit(struct calibrate *c, enum mdl_choice choice)
{
    const struct probes *p = &c->probes[choice];
    struct mdl_calibration_place at[KINDS][MDL_MAX_BLOCK];
    struct mdl_probes train, held, all = {p->n, c->block, p->logit, p->kept};
    size_t values = (size_t)p->n * (size_t)c->block;
    float *logit = malloc(2 * (values + 1) * sizeof *logit);
    int *kept = malloc(2 * ((size_t)p->n + 1) * sizeof *kept), best = 0, bad = 0;
    if (!logit || !kept)
        bad = cfg_error_set(&c->err, ENOMEM, "out of memory");
    if (!bad) {
        half_of(c, p, 0, &train, logit, kept);
        half_of(c, p, 1, &held, logit + values, kept + p->n);
        for (int k = 0; k < MDL_MAX_BLOCK; k++)
            at[0][k] = (struct mdl_calibration_place){1, 0};
        if (held.n < 50 || mdl_calibration_fit(&train, MDL_FIT_TEMPERATURE, at[1]) ||
            mdl_calibration_fit(&train, MDL_FIT_SHIFT, at[2]))
            bad = cfg_error_set(&c->err, ENODATA,
                                "%s: %d blocks from one half of the prompts and %d from the other; at least 50 each "
                                "are needed",
                                mdl_choice_names[choice], train.n, held.n);
    }
    if (!bad) {
        for (int kind = 1; kind < KINDS; kind++)
            best = mean_error(&held, at[kind]) < mean_error(&held, at[best]) ? kind : best;
        printf(
            "\n%s: calibration error of the survival by position, on %d blocks of prompts that no fit saw (fitted on "
            "%d)\n",
            mdl_choice_names[choice], held.n, train.n);
        print_errors(&held, at, best);
        memcpy(c->judged[choice], at[best], sizeof at[best]);
        if (best)
            mdl_calibration_fit(&all, best == 1 ? MDL_FIT_TEMPERATURE : MDL_FIT_SHIFT, at[best]);
        memcpy(c->result.at[choice], at[best], sizeof at[best]);
        c->result.fitted[choice] = true;
        c->drawn[choice] = held.n;
    }
    free(logit);
    free(kept);
    return bad;
}

/* ---- output ---- */

static int write_probes(struct calibrate *c)
{
    struct cli_output out;
    int bad = cli_output_begin(&out, c->probes_file, &c->err);
    if (bad)
        return bad;
    FILE *f = out.to;
    for (int m = 0; m < MDL_CHOICES; m++)
        for (int i = 0; i < c->probes[m].n; i++) {
            fprintf(f, "{\"event\":\"probe\",\"number\":%d,\"choice\":\"%s\",\"kept\":%d,\"logits\":\"",
                    c->probes[m].group[i], mdl_choice_names[m], c->probes[m].kept[i]);
            for (int k = 0; k < c->block; k++)
                fprintf(f, "%s%.6g", k ? "," : "", (double)c->probes[m].logit[i * c->block + k]);
            fputs("\"}\n", f);
        }
    return cli_output_end(&out, 0, &c->err);
}

static void plot_series(struct cli_plot *p, const struct mdl_probes *held, const struct mdl_calibration_place *at,
                        const char *choice, const char *name)
{
    cli_plot_printf(p, "$%s_%s << EOD\n", choice, name);
    for (int k = 0; k < held->places; k++) {
        struct mdl_reliability r;
        mdl_calibration_reliability(held, at, k, &r);
        for (int b = 0; b < MDL_CALIBRATION_BINS; b++)
            if (r.n[b] >= 10)
                cli_plot_printf(p, "%.6g %.6g %d %d\n", r.survival[b], r.kept[b], k + 1, r.n[b]);
        cli_plot_printf(p, "\n\n");
    }
    cli_plot_printf(p, "EOD\n");
}

static void plot_panel(const struct calibrate *c, struct cli_plot *p, const char *choice, const char *name,
                       double error)
{
    cli_plot_printf(p, "set title '%s, %s: mean error %.3f'\nplot x lc rgb '#888888' notitle", choice, name, error);
    for (int k = 0; k < c->block; k++)
        cli_plot_printf(p,
                        ", $%s_%s index %d using 1:2 with linespoints pt 7 ps 0.7 lw 1.5 lc rgb '%s' title 'draft %d'",
                        choice, name, k, cli_plot_colour(k), k + 1);
    cli_plot_printf(p, "\nunset label\nunset key\n"); /* one for all panels */
}

/* A row of two panels, before and after, on the half that the fit behind it did not see. */
static int plot_choice(struct calibrate *c, struct cli_plot *p, enum mdl_choice choice, double bottom, double top)
{
    const struct probes *all = &c->probes[choice];
    const char *name = mdl_choice_names[choice];
    struct mdl_calibration_place raw[MDL_MAX_BLOCK];
    struct mdl_probes held;
    float *logit = malloc(((size_t)all->n * (size_t)c->block + 1) * sizeof *logit);
    int *kept = malloc(((size_t)all->n + 1) * sizeof *kept);
    int bad = logit && kept ? 0 : cfg_error_set(&c->err, ENOMEM, "out of memory");
    if (!bad) {
        half_of(c, all, 1, &held, logit, kept);
        for (int k = 0; k < MDL_MAX_BLOCK; k++)
            raw[k] = (struct mdl_calibration_place){1, 0};
        plot_series(p, &held, raw, name, "before");
        plot_series(p, &held, c->judged[choice], name, "after");
        cli_plot_printf(p,
                        "set bmargin at screen %g\nset tmargin at screen %g\nset lmargin at screen 0.08\n"
                        "set rmargin at screen 0.5\n",
                        bottom, top);
        plot_panel(c, p, name, "before", mean_error(&held, raw));
        cli_plot_printf(p, "set lmargin at screen 0.57\nset rmargin at screen 0.98\n");
        plot_panel(c, p, name, "after", mean_error(&held, c->judged[choice]));
    }
    free(logit);
    free(kept);
    return bad;
}

static json_t *plot_conditions(const struct calibrate *c)
{
    json_t *t = json_object();
    char list[200] = "";
    size_t n = 0;
    cli_condition_set(t, "model", "%s, revision %016llx, blocks of %d drafts", c->model_dir,
                      (unsigned long long)c->m->ck->revision, c->block);
    for (int m = 0; m < MDL_CHOICES; m++)
        if (c->drawn[m])
            n +=
                (size_t)snprintf(list + n, sizeof list - n, "%s%d %s", n ? ", " : "", c->drawn[m], mdl_choice_names[m]);
    cli_condition_set(t, "blocks", "%s; all verified whole, none seen by the fit that is drawn", list);
    if (c->log_file)
        cli_condition_set(t, "source", "a server's log");
    else
        cli_condition_set(t, "source",
                          "%d prompts of %d tokens from a text, %d tokens each, temperature %g where not greedy",
                          c->prompts, c->length, c->tokens, c->temperature);
    cli_condition_set(t, "bins", "%d of stated survival, drawn where they have 10 blocks and more",
                      MDL_CALIBRATION_BINS);
    return t;
}

/* Reliability before and after, a row for each choice that was fitted. */
static int plot(struct calibrate *c)
{
    enum { WIDTH = 1100, ROW = 520, CONDITIONS = 120 };
    struct cli_plot *p;
    int rows = 0;
    for (int m = 0; m < MDL_CHOICES; m++)
        rows += c->drawn[m] > 0;
    int height = CONDITIONS + rows * ROW, bad = cli_plot_begin_sized(c->plot_file, WIDTH, height, &p, &c->err);
    if (bad)
        return bad;
    json_t *conditions = plot_conditions(c);
    double low = cli_plot_conditions(p, conditions) + 25.0 / height, row = (1 - low) / rows;
    json_decref(conditions);
    cli_plot_printf(p,
                    "set multiplot\nset xrange [0:1]\nset yrange [0:1]\nset grid lt 1 lw 0.7 lc rgb '#e0e0e0'\n"
                    "set key at screen 0.98,%g right horizontal maxrows 1\nset xlabel 'stated survival'\n"
                    "set ylabel 'share kept'\n",
                    low);
    for (int m = 0, k = rows - 1; m < MDL_CHOICES && !bad; m++)
        if (c->drawn[m]) {
            double bottom = low + k-- * row;
            bad = plot_choice(c, p, (enum mdl_choice)m, bottom + 60.0 / height, bottom + row - 40.0 / height);
        }
    cli_plot_printf(p, "unset multiplot\n");
    int end = cli_plot_end(p, &c->err);
    return bad ? bad : end;
}

/* ---- the command ---- */

static int load(struct calibrate *c)
{
    struct mdl_tokenizer *tok = NULL;
    struct mdl_tok_encoder *enc = NULL;
    char *text = NULL;
    size_t len;
    int bad = mdl_model_open(c->model_dir, c->threads, NULL, &c->m, &c->err);
    if (!bad && !c->m->cfg->n_draft)
        bad = cfg_error_set(&c->err, EINVAL, "this model has no drafter, so there is nothing to calibrate");
    if (!bad)
        c->block = c->m->cfg->draft_block;
    if (bad || c->log_file)
        return bad;
    bad = mdl_tokenizer_load(c->model_dir, &tok, &c->err);
    if (!bad)
        bad = mdl_tok_encoder_new(tok, &enc, &c->err);
    if (!bad)
        bad = cli_file_read(c->text_file, &text, &len, &c->err);
    if (!bad)
        bad = mdl_tok_encode(enc, text, len, 0, &c->text, &c->err);
    if (!bad && c->text.n < (size_t)c->length)
        bad = cfg_error_set(&c->err, EINVAL, "%s has %zu tokens, fewer than --length %d", c->text_file, c->text.n,
                            c->length);
    if (!bad && c->length + c->tokens + 2 * c->block + 2 > c->m->cfg->max_position)
        bad = cfg_error_set(&c->err, EINVAL, "--length %d and --tokens %d are more than the %d tokens of the model",
                            c->length, c->tokens, c->m->cfg->max_position);
    free(text);
    mdl_tok_encoder_free(enc);
    mdl_tokenizer_free(tok);
    return bad;
}

static int read_choices(struct calibrate *c)
{
    char list[128], *save;
    snprintf(list, sizeof list, "%s", c->choices);
    for (char *at = strtok_r(list, ",", &save); at; at = strtok_r(NULL, ",", &save)) {
        int m = choice_of(at);
        if (m < 0)
            return cfg_error_set(&c->err, EINVAL, "--choices: \"%s\" is not greedy, match or reject", at);
        c->wanted[m] = true;
    }
    if (!c->wanted[MDL_CHOICE_GREEDY] && !c->wanted[MDL_CHOICE_MATCH] && !c->wanted[MDL_CHOICE_REJECT])
        return cfg_error_set(&c->err, EINVAL, "--choices names none of greedy, match, reject");
    if ((c->draws_given[0] || c->draws_given[1]) && !c->wanted[MDL_CHOICE_MATCH] && !c->wanted[MDL_CHOICE_REJECT])
        return cfg_error_set(&c->err, EINVAL, "--%s has no effect with --choices %s: only match and reject draw",
                             c->draws_given[0] ? "temperature" : "seed", c->choices);
    return 0;
}

/* Where the calibration goes, which the options do not check when it is not named. */
static int choose_out(struct calibrate *c)
{
    const char *const others[] = {c->probes_file, c->plot_file, c->log_file, c->text_file};
    static const char *const names[] = {"probes", "plot", "log", "text"};
    if (c->out_file || c->dry_run)
        return 0;
    if ((size_t)snprintf(c->beside, sizeof c->beside, "%s/" MDL_CALIBRATION_FILE, c->model_dir) >= sizeof c->beside)
        return cfg_error_set(&c->err, EINVAL, "-m: the name is too long");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] && cli_output_same(others[i], c->beside))
            return cfg_error_set(&c->err, EINVAL, "--%s is the file of the calibration, %s", names[i], c->beside);
    c->out_file = c->beside;
    return cli_output_check(c->out_file, &c->err);
}

/* Every choice that has blocks. One with too few keeps what it has, with a word about it: little traffic of one kind
 * must not be in the way of the others. -ENODATA: none was fitted. */
static int fit_all(struct calibrate *c)
{
    bool few = false, any = false;
    for (int m = 0; m < MDL_CHOICES; m++) {
        int bad = c->probes[m].n ? fit(c, (enum mdl_choice)m) : 0;
        if (bad && bad != -ENODATA)
            return bad;
        if (bad)
            fprintf(stderr, "calibrate: left as it was: %s\n", c->err.msg);
        any |= c->drawn[m] > 0;
        few |= bad != 0;
    }
    if (any)
        return 0;
    return few ? cfg_error_set(&c->err, ENODATA, "no way of choosing has enough blocks to fit to")
               : cfg_error_set(&c->err, ENODATA, "there is no whole block to fit to%s",
                               c->log_file
                                   ? "; a server that drafts as many tokens as the model does at once logs them at "
                                     "level debug"
                                   : "");
}

static int work(struct calibrate *c)
{
    int bad = read_choices(c);
    if (!bad)
        bad = load(c);
    if (!bad)
        bad = choose_out(c);
    if (bad)
        return bad;
    if (c->out_file) /* vectors of other choices stay */
        mdl_calibration_read(c->out_file, c->m->ck->revision, c->block, &c->result, &c->err);
    if (c->log_file)
        bad = read_log(c);
    for (int m = 0; m < MDL_CHOICES && !bad; m++)
        if (c->wanted[m] && !c->log_file)
            bad = collect(c, (enum mdl_choice)m);
    if (!bad)
        bad = fit_all(c);
    if (!bad && c->probes_file)
        bad = write_probes(c);
    if (!bad && c->plot_file)
        bad = plot(c);
    if (!bad && !c->dry_run) {
        bad = mdl_calibration_write(c->out_file, c->m->ck->revision, &c->result, &c->err);
        if (!bad)
            printf("\nwritten to %s\n", c->out_file);
    }
    return bad;
}

int cli_calibrate_run(int argc, char **argv)
{
    struct calibrate c = {
        .choices = "greedy,match,reject", .prompts = 128, .length = 64, .tokens = 96, .temperature = 1, .seed = 1};
    const struct cli_option options[] = {
        {CLI_TEXT, "model", 'm', &c.model_dir, "DIR", "folder of the checkpoint (required)"},
        {CLI_INPUT, "text", 0, &c.text_file, "FILE", "text that prompts are cut from"},
        {CLI_INPUT, "log", 0, &c.log_file, "FILE", "instead: probes that a server logged at level debug, or --probes"},
        {CLI_TEXT, "choices", 0, &c.choices, "LIST", "of greedy, match, reject; with --log too (default: all)"},
        {CLI_DOUBLE, "temperature", 't', &c.temperature, "T", "of match and reject (default 1)", 0.01, 100,
         .given = &c.draws_given[0]},
        {CLI_INT, "prompts", 0, &c.prompts, "N", "prompts, spread evenly over the text (default 128)", 2, 1 << 20},
        {CLI_INT, "length", 0, &c.length, "N", "tokens of a prompt (default 64)", 4, 1 << 20},
        {CLI_INT, "tokens", 'n', &c.tokens, "N", "tokens generated behind each (default 96)", 1, 1 << 20},
        {CLI_INT, "seed", 0, &c.seed, "N", "of the draws (default 1)", 0, 1 << 30, .given = &c.draws_given[1]},
        {CLI_INT, "threads", 0, &c.threads, "N", "compute threads (default: one per usable CPU)", 1, 1024},
        {CLI_OUTPUT, "out", 'o', &c.out_file, "FILE",
         "write here (default: " MDL_CALIBRATION_FILE " beside the model)"},
        {CLI_FLAG, "dry-run", 0, &c.dry_run, NULL, "write no calibration"},
        {CLI_OUTPUT, "probes", 0, &c.probes_file, "FILE", "also write the blocks, one JSON object a line"},
        {CLI_PLOT, "plot", 0, &c.plot_file, "FILE",
         "draw reliability before and after, a row for each choice (.svg or .png, needs gnuplot)"},
        {.kind = CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_EXCLUDES, "log", "text", "blocks come from one of them"},
        {CLI_ALLOWS, "log", "model choices out dry-run probes plot", "nothing is generated"},
        {CLI_EXCLUDES, "dry-run", "out"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .rules = rules,
        .synopsis = "calibrate -m DIR --text FILE [options]\ncalibrate -m DIR --log FILE [options]",
        .intro =
            "Fits the drafter's confidences to what is really kept, per way of choosing tokens, from blocks that are\n"
            "verified whole. Half of the prompts fit, the other half judges; the better fit is kept.",
        .options = options,
    };
    int r = cli_options_parse(&usage, argc, argv, NULL);
    if (r != CLI_GO_ON)
        return r;
    if (!c.model_dir || !c.text_file == !c.log_file)
        return cli_error(CLI_USAGE, "calibrate needs -m DIR and either --text FILE or --log FILE; see `weft calibrate "
                                    "--help`");
    r = work(&c);
    if (r)
        cli_error(CLI_FAILED, "calibrate: %s", c.err.msg);
    for (int m = 0; m < MDL_CHOICES; m++) {
        free(c.probes[m].logit);
        free(c.probes[m].kept);
        free(c.probes[m].group);
    }
    mdl_ids_free(&c.text);
    mdl_model_close(c.m);
    return r == -EINVAL ? CLI_USAGE : r ? CLI_FAILED : CLI_OK;
}
