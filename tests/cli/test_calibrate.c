/* weft calibrate: collecting blocks, fitting, its files and refusals. */
#include "tests/harness.h"

#include <math.h>
#include <unistd.h>

#include "model/calibration.h"
#include "model/sampler.h"
#include "tests/support/plots.h"
#include "tests/support/process.h"

static char *dir;

static void make_dir(void)
{
    dir = ts_temp_dir();
}

static void remove_dir(void)
{
    ts_remove_dir(dir);
    free(dir);
}

TestSuite(calibrate, .init = make_dir, .fini = remove_dir);

static void need_model(void)
{
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
}

Test(calibrate, text_then_its_own_blocks)
{
    need_model();
    char out[4200], probes[4200], again[4200];
    snprintf(out, sizeof out, "%s/calibration.json", dir);
    snprintf(again, sizeof again, "%s/again.json", dir);
    snprintf(probes, sizeof probes, "%s/probes.jsonl", dir);
    struct ts_result r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--text", "samples/tiny/heldout.txt",
                                "--prompts", "10", "--length", "24", "-n", "40", "-o", out, "--probes", probes);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    for (int m = 0; m < MDL_CHOICES; m++)
        cr_expect_not_null(strstr(r.out, mdl_choice_names[m]), "%s", r.out);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--log", probes, "-o", again);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    char *a = ts_read_file(out, NULL), *b = ts_read_file(again, NULL);
    cr_expect_str_eq(a, b, "blocks written and read again give the same fit");
    free(a);
    free(b);
    /* One choice alone leaves the others in the file. */
    r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--text", "samples/tiny/heldout.txt", "--prompts", "10",
               "--length", "24", "-n", "60", "-o", out, "--choices", "greedy");
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    a = ts_read_file(out, NULL);
    cr_expect(strstr(a, "greedy") && strstr(a, "match") && strstr(a, "reject"), "%s", a);
    free(a);
}

Test(calibrate, refuses)
{
    need_model();
    static const struct {
        const char *argument[8], *says;
        int status;
    } bad[] = {
        {{NULL}, "-m DIR", 2},
        {{"-m", "samples/tiny"}, "either", 2},
        {{"-m", "samples/tiny", "--text", "a", "--log", "b"}, "--log and --text do not go together", 2},
        {{"-m", "samples/tiny", "--text", "samples/tiny/none.txt"}, "none.txt", 1},
        {{"-m", "samples/tiny", "--text", "samples/tiny/heldout.txt", "--choices", "guess"}, "guess", 2},
        {{"-m", "samples/tiny", "--text", "samples/tiny/README.md", "--length", "100000"}, "fewer", 2},
        {{"-m", "samples/tiny", "--log", "samples/tiny/config.json"}, "no whole block", 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *argv[12] = {ts_weft(), "calibrate"};
        for (int k = 0; k < 8 && bad[i].argument[k]; k++)
            argv[2 + k] = bad[i].argument[k];
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, bad[i].status, "case %zu: %d %s", i, r.status, r.err);
        cr_expect_not_null(strstr(r.err, bad[i].says), "case %zu: %s", i, r.err);
        ts_result_free(&r);
    }
    struct ts_result r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--text", "samples/tiny/heldout.txt",
                                "--prompts", "2", "--length", "8", "-n", "4", "--choices", "greedy", "--dry-run");
    cr_expect_eq(r.status, 1, "two blocks are no basis");
    cr_expect_not_null(strstr(r.err, "at least 50"), "%s", r.err);
    ts_result_free(&r);
}

enum { PLACES = 5, BLOCKS = 3000 };

/* Appends n made-up blocks of a way of choosing, of 8 for each prompt: draft k is kept with the chance
 * sigmoid(logit / 1.5 - 1). */
static void add_blocks(FILE *f, const char *choice, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        double logit[PLACES];
        int kept = 0;
        bool on = true;
        for (int k = 0; k < PLACES; k++) {
            uint64_t at = (uint64_t)(i * PLACES + k);
            logit[k] = 8 * mdl_random_unit(seed, at, 0) - 3;
            on = on && mdl_random_unit(seed, at, 1) < 1 / (1 + exp(1 - logit[k] / 1.5));
            kept += on;
        }
        fprintf(f,
                "{\"event\":\"probe\",\"number\":%d,\"choice\":\"%s\",\"kept\":%d,\"logits\":\"%.5f,%.5f,%.5f,%.5f,%."
                "5f\"}\n",
                i / 8, choice, kept, logit[0], logit[1], logit[2], logit[3], logit[4]);
    }
}

/* A log with so many greedy blocks and so many that were sampled. */
static char *made_up_log(int greedy, int match)
{
    char *path = ts_write_file(dir, "probes.jsonl", "");
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    add_blocks(f, "greedy", greedy, 1);
    add_blocks(f, "match", match, 2);
    cr_assert_eq(fclose(f), 0);
    return path;
}

static uint64_t revision_of_tiny(void)
{
    struct ts_result r = ts_run(ts_weft(), "model", "info", "samples/tiny", "--json");
    const char *at = strstr(r.out, "\"revision\"");
    cr_assert(r.status == 0 && at, "%s%s", r.out, r.err);
    uint64_t revision = strtoull(strpbrk(at + 11, "0123456789abcdef"), NULL, 16);
    ts_result_free(&r);
    return revision;
}

/* A little traffic of one kind is not in the way of the rest, and keeps the vector that it has. */
Test(calibrate, a_choice_with_few_blocks_is_left_as_it_was)
{
    need_model();
    char *log = made_up_log(BLOCKS, 40), out[4200];
    uint64_t revision = revision_of_tiny();
    struct mdl_calibration c;
    struct cfg_error err;
    snprintf(out, sizeof out, "%s/calibration.json", dir);
    mdl_calibration_identity(&c, PLACES);
    c.fitted[MDL_CHOICE_MATCH] = true;
    c.at[MDL_CHOICE_MATCH][2].shift = 0.75;
    cr_assert_eq(mdl_calibration_write(out, revision, &c, &err), 0, "%s", err.msg);
    struct ts_result r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--log", log, "-o", out);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_expect(strstr(r.err, "left as it was: match: 24 blocks from one half of the prompts and 16"), "%s", r.err);
    ts_result_free(&r);
    cr_assert_eq(mdl_calibration_read(out, revision, PLACES, &c, &err), 0, "%s", err.msg);
    cr_expect(c.fitted[MDL_CHOICE_GREEDY] && c.fitted[MDL_CHOICE_MATCH] && !c.fitted[MDL_CHOICE_REJECT]);
    cr_expect_float_eq(c.at[MDL_CHOICE_MATCH][2].shift, 0.75, 1e-9);
    cr_expect(c.at[MDL_CHOICE_GREEDY][0].shift < -0.5, "%g", c.at[MDL_CHOICE_GREEDY][0].shift);
    /* --choices says what of a log counts, and what was written before is not touched when none of that is enough. */
    char *before = ts_read_file(out, NULL);
    r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--log", log, "-o", out, "--choices", "match");
    cr_expect_eq(r.status, 1, "%s", r.out);
    cr_expect(strstr(r.err, "at least 50") && strstr(r.err, "no way of choosing has enough"), "%s", r.err);
    cr_expect_null(strstr(r.out, "greedy"), "%s", r.out);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--log", log, "-o", out, "--choices", "greedy");
    cr_expect(r.status == 0 && !r.err[0], "%s", r.err);
    ts_result_free(&r);
    char *after = ts_read_file(out, NULL);
    cr_expect_str_eq(before, after, "the same blocks of greedy, and match as it was");
    free(before);
    free(after);
    free(log);
}

/* The mean error and whether it is marked as the one that is kept, in the row of this name. */
static double row(const char *text, const char *name, bool *kept)
{
    char head[40];
    double v = NAN;
    snprintf(head, sizeof head, "\n%-14s", name);
    const char *at = strstr(text, head);
    cr_assert_not_null(at, "no row \"%s\": %s", name, text);
    char *next = (char *)at + 15;
    for (int k = 0; k <= PLACES; k++)
        v = strtod(next, &next);
    *kept = !strncmp(next, "  kept", 6);
    return v;
}

/* What is off by a shift is mended by the fit that has one: the fit with the least error on the other half is kept,
 * written and drawn. */
Test(calibrate, the_better_fit_is_kept_and_drawn)
{
    need_model();
    char *log = made_up_log(BLOCKS, 0), out[4200], plot[4200];
    struct mdl_calibration c;
    struct cfg_error err;
    bool kept[3];
    snprintf(out, sizeof out, "%s/calibration.json", dir);
    snprintf(plot, sizeof plot, "%s/plot.svg", dir);
    ts_plots_record(dir);
    struct ts_result r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--log", log, "-o", out, "--plot", plot);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    double raw = row(r.out, "as it is", &kept[0]), temperature = row(r.out, "temperature", &kept[1]),
           shift = row(r.out, "with a shift", &kept[2]);
    cr_expect(shift < temperature && shift < raw && raw > 0.08 && shift < 0.03, "%s", r.out);
    cr_expect(!kept[0] && !kept[1] && kept[2], "%s", r.out);
    cr_assert_eq(mdl_calibration_read(out, revision_of_tiny(), PLACES, &c, &err), 0, "%s", err.msg);
    cr_expect_float_eq(c.at[MDL_CHOICE_GREEDY][0].temperature, 1.5, 0.2);
    cr_expect_float_eq(c.at[MDL_CHOICE_GREEDY][0].shift, -1, 0.15);
    /* The plot: stated survival against what was kept, far from the diagonal before and near it behind, in all places.
     */
    static double at[2][PLACES * MDL_CALIBRATION_BINS][8];
    static const char *const series[] = {"greedy_before", "greedy_after"};
    char *told = ts_plots_told(dir), title[64];
    double off[2] = {0};
    cr_assert_not_null(told);
    for (int s = 0; s < 2; s++) {
        int n = ts_plots_data(told, series[s], 4, PLACES * MDL_CALIBRATION_BINS, at[s]), blocks = 0;
        cr_assert_gt(n, 2 * PLACES);
        cr_expect_float_eq(at[s][0][2], 1, 0.1);
        cr_expect_float_eq(at[s][n - 1][2], PLACES, 0.1);
        for (int i = 0; i < n; i++) {
            off[s] += at[s][i][3] * fabs(at[s][i][0] - at[s][i][1]);
            blocks += (int)at[s][i][3];
        }
        off[s] /= blocks;
        snprintf(title, sizeof title, "'greedy, %s: mean error %.3f'", s ? "after" : "before", s ? shift : raw);
        cr_expect_not_null(strstr(told, title), "%s: %s", title, told);
    }
    cr_expect_float_eq(off[0], raw, 0.01, "%g drawn, %g printed", off[0], raw);
    cr_expect_float_eq(off[1], shift, 0.01, "%g drawn, %g printed", off[1], shift);
    cr_expect(strstr(told, "1496 greedy; all verified whole, none seen by the fit") && strstr(told, "title 'draft 5'"),
              "%s", told);
    cr_expect_null(strstr(told, "$match"), "nothing of it was fitted: %s", told);
    ts_result_free(&r);
    free(told);
    free(log);
    /* Of several choices each has a row. */
    log = made_up_log(BLOCKS, BLOCKS);
    r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--log", log, "-o", out, "--plot", plot);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    told = ts_plots_told(dir);
    for (int s = 0; s < 2; s++)
        cr_expect_gt(ts_plots_data(told, s ? "match_after" : "greedy_after", 4, PLACES * MDL_CALIBRATION_BINS, at[s]),
                     2 * PLACES);
    cr_expect(strstr(told, "1496 greedy, 1496 match;") &&
                  strstr(told, "plot x lc rgb '#888888' notitle, $match_before"),
              "%s", told);
    free(told);
    free(log);
}

/* The calibration that is shipped belongs to the model that is shipped. */
Test(calibrate, the_sample_models_own)
{
    need_model();
    struct mdl_calibration c;
    struct cfg_error err;
    cr_expect_eq(mdl_calibration_read("samples/tiny/" MDL_CALIBRATION_FILE, revision_of_tiny(), PLACES, &c, &err), 0,
                 "%s", err.msg);
    for (int m = 0; m < MDL_CHOICES; m++)
        cr_expect(c.fitted[m], "%s", mdl_choice_names[m]);
}
