/* weft bench prefill: figures from counters, runs, reports on recorded counters. */
#include "tests/harness.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "cli/bench_prefill.h"
#include "tests/support/plots.h"
#include "tests/support/process.h"

static const char recorded[] = "tests/fixtures/bench/prefill-recorded.json";

static void add(struct bp_results *r, bool exact, int repeat, double seconds, double longest)
{
    const struct bp_point p = {.exact = exact,
                               .tokens = 100,
                               .chunk = 32,
                               .repeat = repeat,
                               .seconds = seconds,
                               .longest = longest,
                               .shortest = longest / 2,
                               .steps = exact ? 4 : 6,
                               .layer_rows = exact ? 800 : 576};
    struct cfg_error err;
    cr_assert_eq(bp_add(r, &p, &err), 0);
}

/* 400 tokens in 8 seconds are 50 a second, though the mean of the rates is 80; the longest step is the median one. */
Test(bench_prefill, figures)
{
    static const double seconds[] = {1, 1, 1, 5}, longest[] = {0.5, 0.4, 0.6, 4};
    struct bp_results r = {0};
    struct bp_figures f;
    for (int i = 0; i < 4; i++) {
        add(&r, true, i, seconds[i], longest[i]);
        add(&r, false, i, 0.8 * seconds[i], longest[i] / 2);
    }
    cr_expect_not(bp_figures(&r, true, 100, 64, &f), "no such chunk");
    cr_assert(bp_figures(&r, true, 100, 32, &f));
    cr_expect(f.repeats == 4 && f.steps == 4);
    cr_expect_float_eq(f.rate, 50, 1e-9);
    cr_expect_float_eq(f.seconds, 2, 1e-9);
    cr_expect_float_eq(f.half / f.seconds, f.rate_half / f.rate, 1e-9);
    cr_expect_float_eq(f.longest, 0.55, 1e-9);
    cr_expect_float_eq(f.layers, 8, 1e-9);
    cr_expect(isnan(f.change), "exact is what the other is compared with");
    cr_assert(bp_figures(&r, false, 100, 32, &f));
    cr_expect_float_eq(f.rate, 62.5, 1e-9);
    cr_expect_float_eq(f.layers, 5.76, 1e-9);
    cr_expect_float_eq(f.change, 25, 1e-9);
    cr_expect_lt(f.change_half, 1e-6, "what slows both of a pair leaves their comparison alone");
    bp_free(&r);
}

/* ---- runs ---- */

/* The counters follow from lengths, chunks, cut and tail alone: samples/tiny has 4 of 8 layers before its cut and a
 * tail of 44. */
Test(bench_prefill, counts_what_it_ran)
{
    enum { LAYERS = 8, CUT = 4, TAIL = 44 };
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    char *dir = ts_temp_dir(), json[4200], csv[4200];
    struct bp_results got = {0};
    struct cfg_error err;
    snprintf(json, sizeof json, "%s/out.json", dir);
    snprintf(csv, sizeof csv, "%s/out.csv", dir);
    struct ts_result r = ts_run(ts_weft(), "bench", "prefill", "-m", "samples/tiny/", "-p", "40,100", "-c", "16,64",
                                "--repeats", "2", "--json", json, "--csv", csv);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "which is no time to first token") && strstr(r.out, "model       tiny, revision"), "%s",
              r.out);
    ts_result_free(&r);
    cr_assert_eq(bp_read_json(json, &got, &err), 0, "%s", err.msg);
    cr_expect_eq(got.n, 2 * 2 * 2 * 2);
    for (int i = 0; i < got.n; i++) {
        const struct bp_point *p = &got.point[i];
        int tail = p->tokens < TAIL ? p->tokens : TAIL, whole = (p->tokens + p->chunk - 1) / p->chunk;
        cr_expect_eq(p->steps, whole + (!p->exact ? (tail + p->chunk - 1) / p->chunk : 0),
                     "%d tokens, chunks of %d: %d steps", p->tokens, p->chunk, (int)p->steps);
        cr_expect_eq(p->layer_rows, !p->exact ? p->tokens * CUT + tail * (LAYERS - CUT) : p->tokens * LAYERS);
        cr_expect(p->longest + (double)(p->steps - 1) * p->shortest <= p->seconds * (1 + 1e-6),
                  "steps are parts of it");
    }
    bp_free(&got);
    char *text = ts_read_file(csv, NULL);
    int lines = 0;
    for (char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    cr_expect_eq(lines, 17);
    free(text);
    ts_remove_dir(dir);
    free(dir);
}

Test(bench_prefill, refuses)
{
    static const struct {
        const char *argument[6], *says;
    } bad[] = {
        {{NULL}, "either"},
        {{"-m", "samples/tiny", "--from", "x"}, "--from and --model do not go together"},
        {{"-m", "samples/tiny", "-p", "0"}, "--prompt-tokens"},
        {{"-m", "samples/tiny", "-p", "64,99999999"}, "--prompt-tokens"},
        {{"-m", "samples/tiny", "-p", "64,,128"}, "--prompt-tokens"},
        {{"-m", "samples/tiny", "-c", "1,2,3,4,5,6,7,8,9"}, "at most 8"},
        {{"-m", "samples/tiny", "--replay", "8"}, "window of 32"},
        {{"--from", "tests/fixtures/bench/none.json"}, "none.json"},
        {{"--from", "tests/fixtures/bench/decode-recorded.json"},
         "not a result of `weft bench prefill --json`: it is a result of `weft bench decode"},
    };
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *argv[12] = {ts_weft(), "bench", "prefill"};
        for (int k = 0; k < 6 && bad[i].argument[k]; k++)
            argv[3 + k] = bad[i].argument[k];
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, 2, "case %zu: %d %s", i, r.status, r.err);
        cr_expect_not_null(strstr(r.err, bad[i].says), "case %zu: %s", i, r.err);
        ts_result_free(&r);
    }
}

/* ---- recorded counters ---- */

Test(bench_prefill, contradicting_counters_are_refused)
{
    /* A step that is longer than the whole; 96 rows for 100 tokens; less than a layer each; steps of 1.1 s together; no
     * time; no steps; no longest step. */
    static const char *const point[] = {
        "1,\"longest_step_seconds\":2,\"shortest_step_seconds\":0.1,\"steps\":4,\"layer_rows\":800",
        "1,\"longest_step_seconds\":0.5,\"shortest_step_seconds\":0.1,\"steps\":3,\"layer_rows\":800",
        "1,\"longest_step_seconds\":0.5,\"shortest_step_seconds\":0.1,\"steps\":4,\"layer_rows\":99",
        "1,\"longest_step_seconds\":0.5,\"shortest_step_seconds\":0.2,\"steps\":4,\"layer_rows\":800",
        "0,\"longest_step_seconds\":0.5,\"shortest_step_seconds\":0.1,\"steps\":4,\"layer_rows\":800",
        "1,\"longest_step_seconds\":0.5,\"shortest_step_seconds\":0.1,\"layer_rows\":800",
        "1,\"steps\":4,\"layer_rows\":800",
    };
    char *dir = ts_temp_dir(), text[1024];
    for (size_t i = 0; i < sizeof point / sizeof *point; i++) {
        struct bp_results got = {0};
        struct cfg_error err = {0};
        snprintf(text, sizeof text,
                 "{\"format\":1,\"kind\":\"prefill\",\"conditions\":{\"model\":\"x\"},\"points\":[{\"form\":\"exact\","
                 "\"prompt_tokens\":100,\"chunk\":32,\"repeat\":0,\"seconds\":%s}]}",
                 point[i]);
        char *path = ts_write_file(dir, "bad.json", text);
        cr_expect_eq(bp_read_json(path, &got, &err), -EINVAL, "case %zu", i);
        cr_expect_not_null(strstr(err.msg, "point 1"), "%s", err.msg);
        bp_free(&got);
        free(path);
    }
    ts_remove_dir(dir);
    free(dir);
}

/* Every figure that the table has is drawn, with its interval, under the conditions; and nothing in the picture can be
 * taken for a time to first token. */
Test(bench_prefill, plots_show_the_table)
{
    static const int lengths[] = {64, 256, 512}, chunks[] = {64, 256};
    char *dir = ts_temp_dir(), svg[4200], name[16];
    struct bp_results got = {0};
    struct cfg_error err;
    double at[8][8];
    snprintf(svg, sizeof svg, "%s/out.svg", dir);
    ts_plots_record(dir);
    struct ts_result r = ts_run(ts_weft(), "bench", "prefill", "--from", recorded, "--plot", svg);
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    char *told = ts_plots_told(dir);
    cr_assert_not_null(told);
    cr_assert_eq(bp_read_json(recorded, &got, &err), 0, "%s", err.msg);
    for (int c = 0; c < 2; c++)
        for (int replay = 0; replay < 2; replay++) {
            snprintf(name, sizeof name, "l%d", 2 * c + replay);
            cr_assert_eq(ts_plots_data(told, name, 6, 8, at), 3, "%s: %s", name, told);
            for (int l = 0; l < 3; l++) {
                struct bp_figures f;
                cr_assert(bp_figures(&got, !replay, lengths[l], chunks[c], &f));
                const double want[] = {lengths[l], 1e3 * f.seconds, 1e3 * f.half, f.rate, f.rate_half, 1e3 * f.longest};
                for (int k = 0; k < 6; k++)
                    cr_expect_float_eq(at[l][k], want[k], 1e-4 * want[k], "%s, %d tokens, column %d: %g, not %g", name,
                                       lengths[l], k, at[l][k], want[k]);
            }
            snprintf(name, sizeof name, "$l%d using 1:6", 2 * c + replay);
            cr_expect_not_null(strstr(told, name), "%s", told);
        }
    static const char *const says[] = {"Step time of a prompt (not time to first token)",
                                       "step time of the whole prompt, ms",
                                       "prompt tokens per second of step time",
                                       "step time of the longest step, ms",
                                       "'exact, chunks of 64'",
                                       "'replay, chunks of 256'",
                                       "$l0 using 1:2:3 with yerrorbars",
                                       "$l3 using 1:4:5 with yerrorbars"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        cr_expect_not_null(strstr(told, says[i]), "\"%s\" is missing: %s", says[i], told);
    const char *key;
    json_t *value;
    json_object_foreach (got.conditions, key, value)
        cr_expect_not_null(strstr(told, json_string_value(value)), "the plot does not say %s", key);
    free(told);
    bp_free(&got);
    ts_remove_dir(dir);
    free(dir);
}

Test(bench_prefill, plots_are_pictures)
{
    if (system("command -v gnuplot >/dev/null 2>&1"))
        cr_skip_test("needs gnuplot");
    char *dir = ts_temp_dir(), file[4200];
    static const char *const suffix[] = {"png", "svg"};
    for (int i = 0; i < 2; i++) {
        size_t len;
        snprintf(file, sizeof file, "%s/out.%s", dir, suffix[i]);
        struct ts_result r = ts_run(ts_weft(), "bench", "prefill", "--from", recorded, "--plot", file);
        cr_assert_eq(r.status, 0, "%s", r.err);
        cr_expect_null(strstr(r.err, "warning"), "gnuplot complains: %s", r.err);
        ts_result_free(&r);
        char *text = ts_read_file(file, &len);
        cr_expect(i ? strstr(text, "not times to first token") != NULL : len > 10000 && !memcmp(text, "\x89PNG", 4));
        free(text);
    }
    ts_remove_dir(dir);
    free(dir);
}

/* A file of figures may come from anywhere: what it says is text, also for the program that draws. */
Test(bench_prefill, no_text_of_a_file_is_run)
{
    if (system("command -v gnuplot >/dev/null 2>&1"))
        cr_skip_test("needs gnuplot");
    char *dir = ts_temp_dir(), in[4200], out[4200], mark[4200], evil[8500];
    snprintf(in, sizeof in, "%s/in.json", dir);
    snprintf(out, sizeof out, "%s/out.svg", dir);
    snprintf(mark, sizeof mark, "%s/mark", dir);
    json_t *all = json_load_file(recorded, 0, NULL), *conditions = json_object_get(all, "conditions");
    static const char *const form[] = {"`touch %s`", "\"; system('touch %s') #", "\\\"; ! touch %s"};
    for (int i = 0; i < 3; i++) {
        snprintf(evil, sizeof evil, form[i], mark);
        json_object_set_new(conditions, "model", json_string(evil));
        cr_assert_eq(json_dump_file(all, in, 0), 0);
        struct ts_result r = ts_run(ts_weft(), "bench", "prefill", "--from", in, "--plot", out);
        cr_expect_eq(r.status, 0, "%s", r.err);
        cr_expect(access(mark, F_OK), "%s was run", form[i]);
        ts_result_free(&r);
    }
    json_decref(all);
    ts_remove_dir(dir);
    free(dir);
}
