/* weft score: logits (and anything inside) of given token ids, for comparison with other implementations. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/dump.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "model/draft.h"
#include "model/modules.h"
#include "model/prefill.h"
#include "model/sampler.h"

static const char *const bridge_names[] = {"truncate", "full", NULL};

struct score {
    const char *model_dir, *ids_file, *continue_file, *out_dir, *dump_list;
    bool exact, all_positions, drop_window;
    int replay, bridge, chunk, threads, hit;

    struct mdl_model *m;
    struct mdl_seq *seq;
    struct mdl_step *step;
    struct cli_dump *dump;
    int what;
    int32_t *ids, *more; /* prompt, continuation */
    int n, n_more;
    struct mdl_prefill plan;
    FILE *logits;
    int rows, first; /* rows written, position of the first */
    int32_t top;     /* best id after the prompt */
    int broken;      /* position of the first row of logits that is none, -1: all are sound */
    struct mdl_draft draft;
    struct cli_progress progress;
    struct cfg_error err;
};

static int max_tokens(const struct score *s)
{
    return s->n + s->n_more + 1;
}

static void write_logits(struct score *s, const float *row, int pos)
{
    struct cfg_error why;
    if (!s->rows++)
        s->first = pos;
    if (s->broken < 0 && mdl_logits_check(row, s->m->cfg->vocab_size, &why)) {
        s->broken = pos;
        cfg_error_set(&s->err, EDOM, "position %d: %.200s", pos, why.msg);
    }
    fwrite(row, sizeof *row, (size_t)s->m->cfg->vocab_size, s->logits);
}

static void on_chunk(void *ctx, struct mdl_step *step, const struct mdl_segment *seg)
{
    struct score *s = ctx;
    for (int i = 0; i < seg->n; i++) {
        const float *row = mdl_step_logits(step, 0, i);
        if (!row)
            continue;
        bool last = seg->start + i == s->n - 1;
        if (s->all_positions || last)
            write_logits(s, row, seg->start + i);
        if (last)
            s->top = mdl_argmax(row, s->m->cfg->vocab_size);
    }
    cli_progress_update(&s->progress, seg->start + seg->n);
}

static struct mdl_prefill_params plan_params(const struct score *s)
{
    return (struct mdl_prefill_params){
        .exact = s->exact, .replay = s->replay, .full_bridge = s->bridge == 1, .all_logits = s->all_positions};
}

/* A cold run of the first `hit` tokens in a sequence of its own, whose rows the scored sequence then starts from. */
static int prepare_hit(struct score *s)
{
    struct mdl_seq *cold = NULL;
    struct mdl_prefill plan;
    struct mdl_prefill_params params = plan_params(s);
    params.all_logits = false;
    int r = mdl_seq_new(s->m->cfg, &s->seq->params, &cold, &s->err);
    if (!r)
        r = mdl_prefill_begin(&plan, cold, s->ids, s->hit, &params, &s->err);
    if (!r)
        r = mdl_prefill_run(&plan, s->step, s->chunk, NULL, NULL, &s->err);
    if (!r)
        r = mdl_seq_copy_prefix(s->seq, cold, s->hit, !s->drop_window, &s->err);
    mdl_seq_free(cold);
    return r;
}

static int run_prompt(struct score *s)
{
    struct mdl_prefill_params params = plan_params(s);
    int r = s->hit ? prepare_hit(s) : 0;
    if (r)
        return r;
    params.hit = s->hit;
    params.hit_window = !s->drop_window;
    r = mdl_prefill_begin(&s->plan, s->seq, s->ids, s->n, &params, &s->err);
    if (r)
        return r;
    if (s->what) {
        s->dump = cli_dump_new(s->m->cfg, s->what, s->plan.two_passes ? s->n : s->n + s->n_more, s->plan.two_passes);
        if (!s->dump)
            return cfg_error_set(&s->err, ENOMEM, "dump: out of memory");
        s->step->hooks = cli_dump_hooks(s->dump);
    }
    return mdl_prefill_run(&s->plan, s->step, s->chunk, on_chunk, s, &s->err);
}

/* The token that a draft after the prompt starts from. */
static int32_t next_token(const struct score *s)
{
    return s->n_more ? s->more[0] : s->top;
}

/* One block after the prompt, as decoding would draft it. */
static int run_draft(struct score *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    if (!(s->what & CLI_DUMP_DRAFT) || !cfg->n_draft)
        return 0;
    int pos = s->n - 1;
    float *logits = malloc((size_t)cfg->draft_block * (size_t)cfg->vocab_size * sizeof *logits);
    if (!logits)
        return cfg_error_set(&s->err, ENOMEM, "draft: out of memory");
    cli_dump_begin_draft(s->dump, pos);
    mdl_step_begin(s->step, NULL);
    int r = mdl_draft_add(s->step, s->seq, next_token(s), &s->err);
    if (!r && mdl_step_run(s->step) != MDL_STEP_DONE)
        r = cfg_error_set(&s->err, EIO, "the draft step failed");
    if (!r && mdl_draft_pick(s->step, 0, cfg->draft_block, NULL, NULL, &s->draft, logits))
        r = cfg_error_set(&s->err, ENOMEM, "draft: out of memory");
    char name[64];
    int64_t vocab = cfg->vocab_size;
    snprintf(name, sizeof name, "draft.%d.logits", pos);
    for (int i = 0; i < cfg->draft_block && !r; i++)
        cli_dump_row(s->dump, name, MDL_F32, i, 1, &vocab, logits + (size_t)i * (size_t)vocab);
    uint16_t *y = malloc((size_t)cfg->hidden * sizeof *y);
    int64_t hidden = cfg->hidden;
    snprintf(name, sizeof name, "draft.%d.y", pos);
    for (int i = 0; i < cfg->draft_block && !r && y; i++) {
        mdl_mhc_collapse(&s->m->exec, s->step->x, s->step->pre, true, &i, 1, y);
        cli_dump_row(s->dump, name, MDL_BF16, i, 1, &hidden, y);
    }
    cli_dump_begin_draft(s->dump, -1);
    free(y);
    free(logits);
    return r;
}

static int run_continuation(struct score *s)
{
    /* The rows of a replay dump end with the prompt; an exact run goes on. */
    if (s->dump && s->plan.two_passes) {
        cli_dump_kv(s->dump, s->seq, s->plan.hit);
        cli_dump_pause(s->dump, true);
    }
    for (int i = 0; i < s->n_more; i++) {
        struct mdl_segment seg = {
            .seq = s->seq, .start = s->n + i, .n = 1, .ids = &s->more[i], .layer_end = s->m->cfg->n_layers};
        mdl_step_begin(s->step, NULL);
        int r = mdl_step_add(s->step, &seg, &s->err);
        if (r)
            return r;
        if (mdl_step_run(s->step) != MDL_STEP_DONE)
            return cfg_error_set(&s->err, EIO, "the step of position %d failed", seg.start);
        write_logits(s, mdl_step_logits(s->step, 0, 0), seg.start);
        mdl_step_commit(s->step, 0, 1);
        cli_progress_update(&s->progress, s->n + i + 1);
    }
    if (s->dump && !s->plan.two_passes)
        cli_dump_kv(s->dump, s->seq, s->plan.hit);
    return 0;
}

static json_t *draft_report(const struct score *s)
{
    json_t *ids = json_array(), *confidence = json_array();
    for (int i = 0; i < s->draft.n; i++) {
        json_array_append_new(ids, json_integer(s->draft.ids[i]));
        json_array_append_new(confidence, json_real((double)s->draft.confidence[i]));
    }
    return json_pack("{s:i,s:i,s:o,s:o}", "pos", s->n - 1, "token", next_token(s), "ids", ids, "confidence",
                     confidence);
}

static int write_report(struct score *s, const char *path)
{
    char revision[17];
    snprintf(revision, sizeof revision, "%016llx", (unsigned long long)s->m->ck->revision);
    json_t *j = json_pack("{s:s,s:s,s:i,s:s,s:i,s:i,s:i,s:i,s:i}", "model_revision", revision, "cpu_path",
                          s->m->exec.be->name, "threads", mdl_team_size(s->m->team), "mode",
                          s->plan.two_passes ? "replay" : "exact", "prompt_tokens", s->n, "continued_tokens", s->n_more,
                          "vocab_size", s->m->cfg->vocab_size, "rows", s->rows, "first_position", s->first);
    json_object_set_new(j, "hit", json_integer(s->plan.hit));
    json_object_set_new(j, "hit_asked", json_integer(s->hit));
    json_object_set_new(j, "top1_after_prompt", json_integer(s->top));
    if (s->plan.two_passes) {
        json_object_set_new(j, "replay", json_integer(s->replay));
        json_object_set_new(j, "bridge_window", json_string(bridge_names[s->bridge]));
        json_object_set_new(j, "encoder_start", json_integer(s->plan.encoder_start));
        json_object_set_new(j, "decoder_replay_start", json_integer(s->plan.decoder_start));
    }
    if (s->draft.n)
        json_object_set_new(j, "draft", draft_report(s));
    int r = json_dump_file(j, path, JSON_INDENT(1)) ? cfg_error_set(&s->err, EIO, "cannot write %s", path) : 0;
    json_decref(j);
    return r;
}

static int check_request(struct score *s)
{
    const struct mdl_config *cfg = s->m->cfg;
    if (cfg->cut < 0 && s->replay)
        return cfg_error_set(&s->err, EINVAL, "--replay: this model has no cut (%s); leave it out for exact mode",
                             cfg->cut_reason);
    if (cfg->cut < 0)
        s->exact = true;
    if (s->exact)
        s->replay = 0;
    else if (!s->replay)
        s->replay = cfg->window + 12;
    if (!s->exact && s->replay < cfg->window)
        return cfg_error_set(&s->err, EINVAL, "--replay %d is below the window of %d rows", s->replay, cfg->window);
    if (!s->n)
        return cfg_error_set(&s->err, EINVAL, "%s holds no token id", s->ids_file);
    if (s->hit && (s->hit % 2 || s->hit >= s->n))
        return cfg_error_set(&s->err, EINVAL, "--hit %d: give an even number below the %d prompt tokens", s->hit, s->n);
    for (int i = 0; i < s->n_more; i++)
        if (s->more[i] >= cfg->vocab_size)
            return cfg_error_set(&s->err, EINVAL, "%s: token id %d is outside the vocabulary of %d", s->continue_file,
                                 s->more[i], cfg->vocab_size);
    return 0;
}

static int open_all(struct score *s)
{
    int r = s->dump_list ? cli_dump_parse(s->dump_list, &s->what, &s->err) : 0;
    if (!r)
        r = cli_file_read_ids(s->ids_file, &s->ids, &s->n, &s->err);
    if (!r && s->continue_file)
        r = cli_file_read_ids(s->continue_file, &s->more, &s->n_more, &s->err);
    if (!r)
        r = mdl_model_open(s->model_dir, s->threads, NULL, &s->m, &s->err);
    if (!r)
        r = check_request(s);
    if (r)
        return r;
    /* Room for a draft block after the last token of the longest prompt. */
    int tokens = max_tokens(s) + s->m->cfg->draft_block, rows = s->chunk ? s->chunk : s->n < 512 ? s->n : 512;
    rows = rows > s->m->cfg->draft_block ? rows : s->m->cfg->draft_block;
    struct mdl_seq_params params = {
        .max_tokens = tokens, .replay = s->replay, .full_bridge = !s->exact && s->bridge == 1};
    r = mdl_seq_new(s->m->cfg, &params, &s->seq, &s->err);
    return r ? r : mdl_step_new(s->m, rows > 0 ? rows : 1, tokens, &s->step, &s->err);
}

static int run_score(struct score *s)
{
    char path[4096];
    int r = open_all(s);
    if (!r)
        r = cli_file_make_dir(s->out_dir, &s->err);
    if (r)
        return r;
    snprintf(path, sizeof path, "%s/logits.f32", s->out_dir);
    s->logits = fopen(path, "wb");
    if (!s->logits)
        return cfg_error_set(&s->err, errno, "%s: %s", path, strerror(errno));
    cli_progress_start(&s->progress, "scoring", "tokens", s->n + s->n_more);
    r = run_prompt(s);
    if (!r)
        r = run_draft(s);
    if (!r)
        r = run_continuation(s);
    cli_progress_end(&s->progress);
    int bad = ferror(s->logits) | fclose(s->logits);
    if (!r && bad)
        r = cfg_error_set(&s->err, EIO, "%s could not be written completely", path);
    snprintf(path, sizeof path, "%s/dump.safetensors", s->out_dir);
    if (!r && s->dump)
        r = cli_dump_save(s->dump, path, &s->err);
    snprintf(path, sizeof path, "%s/report.json", s->out_dir);
    if (!r)
        r = write_report(s, path);
    return r ? r : s->broken < 0 ? 0 : -EDOM; /* what there is is written, for those who look for the reason */
}

int cli_score_run(int argc, char **argv)
{
    struct score s = {.broken = -1};
    const struct cli_option options[] = {
        {CLI_TEXT, "model", 'm', &s.model_dir, "DIR", "folder of the checkpoint (required)"},
        {CLI_TEXT, "ids", 0, &s.ids_file, "FILE", "prompt: token ids, separated by white space (required)"},
        {CLI_TEXT, "continue", 0, &s.continue_file, "FILE", "token ids that follow, one decode step each"},
        {CLI_TEXT, "out", 0, &s.out_dir, "DIR", "where logits.f32, report.json and dump.safetensors go (required)"},
        {CLI_FLAG, "exact", 0, &s.exact, NULL, "every token through every layer"},
        {CLI_INT, "replay", 0, &s.replay, "R",
         "rows of the bounded decoder replay, at least the window\n"
         "(default: window + 12)",
         1, 1 << 20},
        {CLI_CHOICE, "bridge-window", 0, &s.bridge, "KIND",
         "whether replayed rows of the cut layer see window rows before\n"
         "the replay: truncate (default) or full",
         .choices = bridge_names},
        {CLI_INT, "chunk", 0, &s.chunk, "N", "rows per prefill step (default: up to 512)", 1, 1 << 16},
        {CLI_INT, "threads", 0, &s.threads, "N", "compute threads (default: one per usable CPU)", 1, 1024},
        {CLI_INT, "hit", 0, &s.hit, "H", "pretend that the first H tokens (even) come from a prefix cache", 0, 1 << 30},
        {CLI_FLAG, "drop-window", 0, &s.drop_window, NULL, "with --hit: the encoder's window rows are gone"},
        {CLI_FLAG, "all-positions", 0, &s.all_positions, NULL, "logits of every position that runs through all layers"},
        {CLI_TEXT, "dump", 0, &s.dump_list, "LIST", "also write tensors: layers,select,experts,kv,draft"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "score -m DIR --ids FILE --out DIR [options]",
        .intro =
            "Runs given token ids through the model and writes float32 logits: the row of the last prompt position\n"
            "(or of every position), then one row per continued token. report.json says which rows these are.",
        .options = options,
    };
    int r = cli_options_parse(&usage, argc, argv, NULL);
    if (r != CLI_GO_ON)
        return r;
    if (!s.model_dir || !s.ids_file || !s.out_dir)
        return cli_error(CLI_USAGE, "score needs -m DIR, --ids FILE and --out DIR; see `weft score --help`");
    if (s.exact && s.replay)
        return cli_error(CLI_USAGE, "--exact and --replay exclude each other");
    r = run_score(&s);
    if (r)
        cli_error(CLI_FAILED, "%s", s.err.msg);
    cli_dump_free(s.dump);
    mdl_step_free(s.step);
    mdl_seq_free(s.seq);
    mdl_model_close(s.m);
    free(s.ids);
    free(s.more);
    return r ? CLI_FAILED : CLI_OK;
}
