/* weft bench decode: figures from counters, the conversion and its limits, runs, reports on recorded counters. */
#include "tests/harness.h"

#include <errno.h>
#include <jansson.h>
#include <unistd.h>

#include "cli/bench_decode.h"
#include "model/sampler.h"
#include "tests/support/plots.h"
#include "tests/support/process.h"

static bool has_gnuplot(void)
{
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

/* ---- figures ---- */

Test(spec_figures, conversion_of_a_fixed_length)
{
    struct cfg_error err = {0};
    double tokens;
    cr_expect_eq(cli_spec_convert(false, 3, 0.75, &tokens, &err), 0);
    cr_expect_float_eq(tokens, 3.25, 1e-12);
    cr_expect_eq(cli_spec_convert(false, 3, 1, &tokens, &err), 0);
    cr_expect_float_eq(tokens, 4, 1e-12, "every draft kept: what counting rows gives");
    cr_expect_eq(cli_spec_convert(false, 0, 0.75, &tokens, &err), 0);
    cr_expect_float_eq(tokens, 1, 1e-12);
    cr_expect_eq(cli_spec_convert(true, 3, 0.75, &tokens, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "fixed"), "%s", err.msg);
    cr_expect_eq(cli_spec_convert(false, 3, 1.1, &tokens, &err), -EINVAL);
    /* A rate of .75 per offered draft, positions together, is not a chance of .75 at every position in turn. */
    cr_expect_float_eq(1 + 0.75 + 0.75 * 0.75 + 0.75 * 0.75 * 0.75, 2.734375, 1e-12);
}

/* 100 steps of 3 drafts, of which 225 were kept: 3.25 tokens per step however they lie. Then trimmed: fewer offered. */
Test(spec_figures, denominators)
{
    struct mdl_counters c = {.steps = 100, .drafted = 300, .offered = 300, .accepted = 225, .emitted = 325};
    struct cli_spec_figures f = cli_spec_figures(&c);
    double converted;
    struct cfg_error err;
    cr_expect_eq(cli_spec_convert(false, 3, f.accepted_per_offered, &converted, &err), 0);
    cr_expect_float_eq(f.emitted_per_step, 3.25, 1e-12);
    cr_expect_float_eq(converted, f.emitted_per_step, 1e-12, "with the run's own rate the conversion is exact");
    c.offered = 240;
    c.accepted = 216;
    c.emitted = 316;
    f = cli_spec_figures(&c);
    cr_expect_float_eq(f.accepted_per_offered, 0.9, 1e-12);
    cr_expect_float_eq(f.accepted_per_drafted, 0.72, 1e-12);
    cr_expect_float_eq(f.rows_per_step, 3.4, 1e-12);
    cr_expect_float_eq(f.emitted_per_step, 3.16, 1e-12);
    cr_expect(fabs(1 + 3 * f.accepted_per_offered - f.emitted_per_step) > 0.5,
              "the conversion says nothing about a run with varying lengths");
    f = cli_spec_figures(&(struct mdl_counters){0});
    cr_expect(isnan(f.emitted_per_step) && isnan(f.accepted_per_offered));
}

Test(spec_figures, interval)
{
    const double v[] = {1, 2, 3, 4, 5, 6, 7};
    double mean, half;
    cli_spec_interval(v, 7, &mean, &half);
    cr_expect_float_eq(mean, 4, 1e-12);
    cr_expect_float_eq(half, 2.447 * sqrt(28.0 / 6 / 7), 1e-9);
    cli_spec_interval(v, 1, &mean, &half);
    cr_expect(mean == 1 && isnan(half), "one value says nothing about its spread");
}

/* Slow runs weigh as much as they last, and what slows both of a pair leaves their comparison alone. */
Test(spec_figures, rates_and_changes)
{
    const double tokens[] = {100, 100, 100, 100}, fast[] = {1, 1, 1, 5}, slow[] = {1.25, 1.25, 1.25, 6.25};
    double rate, half, percent;
    cli_spec_rate((struct cli_spec_runs){tokens, fast}, 4, &rate, &half);
    cr_expect_float_eq(rate, 50, 1e-9, "400 tokens in 8 seconds, though the mean of the rates is 80");
    cr_expect_gt(half, 10);
    cli_spec_change((struct cli_spec_runs){tokens, slow}, (struct cli_spec_runs){tokens, fast}, 4, &percent, &half);
    cr_expect_float_eq(percent, -20, 1e-9);
    cr_expect_lt(half, 1e-3, "the slow pair is slow for both");
    cli_spec_change((struct cli_spec_runs){tokens, slow}, (struct cli_spec_runs){tokens, fast}, 1, &percent, &half);
    cr_expect(fabs(percent + 20) < 1e-9 && isnan(half));
    cli_spec_rate((struct cli_spec_runs){tokens, slow}, 0, &rate, &half);
    cr_expect(isnan(rate) && isnan(half));
}

/* Seven ways that are equally fast but for noise: the luckiest of the others is ahead, and must not look faster for it.
 * A tenth slower than that is seen as a tenth. */
Test(bench_decode, a_lucky_best_is_not_taken_for_a_better_one)
{
    for (int slower = 0; slower < 2; slower++) {
        double sum = 0, naive = 0, half;
        int rounds = 60, below = 0;
        for (int k = 0; k < rounds; k++) {
            struct bd_results r = {0};
            struct cfg_error err;
            struct bd_verdict v;
            for (int repeat = 0; repeat < 20; repeat++)
                for (int mode = BD_DYNAMIC; mode < 6; mode++) {
                    uint64_t at = ((uint64_t)k << 16) + (uint64_t)(repeat * 8 + mode + 1);
                    struct bd_point p = {.mode = mode, .load = 4, .repeat = repeat, .expected = -1};
                    p.counters.emitted = 1000;
                    p.seconds = 1 + 0.2 * (mdl_random_unit(7, at, 1) - 0.5);
                    p.seconds *= slower && mode == BD_DYNAMIC ? 1 / 0.9 : 1;
                    cr_assert_eq(bd_add(&r, &p, &err), 0);
                }
            cr_assert(bd_judge(&r, 4, &v));
            sum += v.percent;
            below += v.percent - v.half < -2;
            cr_expect_leq(v.low, v.percent);
            double percent;
            cr_expect_eq(bd_change(&r, 4, BD_DYNAMIC, v.best, &percent, &half), 20);
            naive += percent;
            bd_free(&r);
        }
        cr_expect_float_eq(sum / rounds, slower ? -10 : 0, 0.6);
        cr_expect_lt(naive / rounds, sum / rounds - 1, "chosen and compared on the same runs it looks worse");
        cr_expect(!slower || below == rounds);
    }
}

/* ---- runs ---- */

Test(bench_decode, counts_what_it_ran)
{
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    char *dir = ts_temp_dir(), json[4200], csv[4200];
    snprintf(json, sizeof json, "%s/out.json", dir);
    snprintf(csv, sizeof csv, "%s/out.csv", dir);
    static const char *const accept[] = {"model", "stated", "all"};
    for (int a = 0; a < 3; a++) {
        struct ts_result r = ts_run(ts_weft(), "bench", "decode", "-m", "samples/tiny", "-c", "1,3", "--repeats", "2",
                                    "--seconds", "0.001", "--context", "24", "--grow", "16", "--modes",
                                    "off,2,5,dynamic", "--accept", accept[a], "--json", json, "--csv", csv);
        cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
        cr_expect_not_null(strstr(r.out, "dynamic against the best"), "%s", r.out);
        cr_expect_not_null(strstr(r.out, a == 1 ? " expected/s " : " emitted/s "), "%s", r.out);
        ts_result_free(&r);
        struct bd_results got = {0};
        struct cfg_error err;
        cr_assert_eq(bd_read_json(json, &got, &err), 0, "%s", err.msg);
        cr_expect_eq(got.n, 2 * 4 * 2);
        for (int i = 0; i < got.n; i++) {
            const struct bd_point *p = &got.point[i];
            const struct mdl_counters *c = &p->counters;
            cr_expect_eq(c->steps, p->rounds * p->load);
            cr_expect_eq(c->emitted, c->steps + c->accepted);
            cr_expect_eq(p->expected >= 0, a == 1, "luck is left out where the chances are known");
            if (a == 1)
                cr_expect(p->expected >= (double)c->steps && p->expected <= (double)(c->steps + c->offered));
            cr_expect(p->planning > 0 && p->planning < p->seconds);
            if (p->mode >= 0) {
                cr_expect_eq(c->offered, p->mode * c->steps, "a fixed length offers all that it drafts");
                cr_expect_eq(c->offered, c->drafted);
                cr_expect(a != 2 || c->accepted == c->offered);
            }
        }
        bd_free(&got);
    }
    char *text = ts_read_file(csv, NULL);
    cr_expect_not_null(strstr(text, ",expected,expected_per_second\n"), "%s", text);
    int lines = 0;
    for (char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    cr_expect_eq(lines, 17);
    free(text);
    ts_remove_dir(dir);
    free(dir);
}

/* A draft is kept if those before it are: what is expected of a block is what its coins give in the long run. */
Test(bench_decode, expected_is_what_coins_give_in_the_mean)
{
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    char *dir = ts_temp_dir(), json[4200];
    snprintf(json, sizeof json, "%s/out.json", dir);
    struct ts_result r =
        ts_run(ts_weft(), "bench", "decode", "-m", "samples/tiny", "-c", "64", "--repeats", "2", "--seconds", "0.001",
               "--context", "24", "--grow", "16", "--modes", "5", "--accept", "stated", "--json", json);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    struct bd_results got = {0};
    struct cfg_error err;
    double steps = 0, emitted = 0, expected = 0;
    cr_assert_eq(bd_read_json(json, &got, &err), 0, "%s", err.msg);
    for (int i = 0; i < got.n; i++) {
        steps += (double)got.point[i].counters.steps;
        emitted += (double)got.point[i].counters.emitted;
        expected += got.point[i].expected;
    }
    cr_expect(steps >= 256 && fabs(expected - emitted) < 0.4 * steps, "%g steps, %g came, %g were expected", steps,
              emitted, expected);
    bd_free(&got);
    ts_remove_dir(dir);
    free(dir);
}

Test(bench_decode, refuses)
{
    static const struct {
        const char *argument[6], *says;
        int status;
    } bad[] = {
        {{"-m", "samples/tiny", "--preset", "decode-131k"}, /* and not: drafts at once */
         "needs 64 devices in one group (EP64/DP64) (here: 1); 384 experts (here: 8); 64 redundant experts (here: 0); "
         "131072 tokens of context (here: 1024). This command decodes in one process",
         1},
        {{"-m", "samples/tiny", "--preset", "decode-131k"}, "drawn with --from FILE.json", 1},
        {{"--preset", "decode-131k", "--from", "tests/fixtures/bench/decode-recorded.json"}, "\"setup\"", 1},
        {{"-m", "samples/tiny", "--convert", "0.75"}, "fixed number of drafts", 2},
        {{"--convert", "0.75", "--from", "tests/fixtures/bench/decode-recorded.json"}, "fixed number of drafts", 2},
        {{"-m", "samples/tiny", "--modes", "6"}, "0 to 5", 2},
        {{"-m", "samples/tiny", "--modes", "often"}, "--modes", 2},
        {{"-m", "samples/tiny", "-c", "0"}, "--concurrency", 2},
        {{"-m", "samples/tiny", "--context", "100000000"}, "--context", 2},
        {{"-m", "samples/tiny", "--context", "9999999", "--grow", "65536"}, "tokens of the model", 2},
        {{"--from", "tests/fixtures/bench/none.json"}, "none.json", 2},
        {{"--from", "samples/tiny/config.json"}, "not a result of `weft bench decode --json`", 2},
        {{"-m", "samples/tiny", "--from", "x"}, "--from and --model do not go together", 2},
        {{NULL}, "either", 2},
    };
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *argv[12] = {ts_weft(), "bench", "decode"};
        for (int k = 0; k < 6 && bad[i].argument[k]; k++)
            argv[3 + k] = bad[i].argument[k];
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, bad[i].status, "case %zu: %d %s", i, r.status, r.err);
        cr_expect_not_null(strstr(r.err, bad[i].says), "case %zu: %s", i, r.err);
        ts_result_free(&r);
    }
}

/* ---- recorded counters; what is refused: test_result_file.c ---- */

/* The published curve's form, on made-up counters: raw counting says 4 tokens per step, the plot 3.25, and says so. */
Test(bench_decode, plots_of_recorded_counters)
{
    if (!has_gnuplot())
        cr_skip_test("needs gnuplot");
    char *dir = ts_temp_dir(), svg[4200], png[4200];
    snprintf(svg, sizeof svg, "%s/out.svg", dir);
    snprintf(png, sizeof png, "%s/out.png", dir);
    struct ts_result r =
        ts_run(ts_weft(), "bench", "decode", "--from", "tests/fixtures/bench/decode-131k.json", "--plot", svg);
    cr_assert_eq(r.status, 0, "%s", r.err);
    /* 16 sequences, 12.1 ms a step: 4 x 16 / 0.0121 and 3.25 x 16 / 0.0121. */
    cr_expect_not_null(strstr(r.out, "5289."), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "4297."), "%s", r.out);
    ts_result_free(&r);
    char *text = ts_read_file(svg, NULL);
    cr_assert_not_null(text);
    static const char *const shown[] = {"EP64/DP64", "384 + 64 experts", "131072 tokens", "CONVERTED",
                                        "0.75",      "assumed rate",     "fixed 3"};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        cr_expect_not_null(strstr(text, shown[i]), "the plot does not say \"%s\"", shown[i]);
    free(text);
    r = ts_run(ts_weft(), "bench", "decode", "--from", "tests/fixtures/bench/decode-recorded.json", "--plot", png);
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    size_t len;
    text = ts_read_file(png, &len);
    cr_expect(len > 10000 && !memcmp(text, "\x89PNG", 4));
    free(text);
    r = ts_run(ts_weft(), "bench", "decode", "--from", "tests/fixtures/bench/decode-recorded.json", "--plot", "x.jpg");
    cr_expect_eq(r.status, 2);
    ts_result_free(&r);
    ts_remove_dir(dir);
    free(dir);
}

/* One repeat has no interval, and says so. */
Test(bench_decode, a_single_repeat_has_no_interval)
{
    char *dir = ts_temp_dir(), path[4200];
    json_t *all = json_load_file("tests/fixtures/bench/decode-recorded.json", 0, NULL),
           *points = json_object_get(all, "points");
    cr_assert_not_null(points);
    for (size_t i = json_array_size(points); i--;)
        if (json_integer_value(json_object_get(json_array_get(points, i), "repeat")))
            json_array_remove(points, i);
    snprintf(path, sizeof path, "%s/one.json", dir);
    cr_assert_eq(json_dump_file(all, path, 0), 0);
    json_decref(all);
    struct ts_result r = ts_run(ts_weft(), "bench", "decode", "--from", path);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_expect_not_null(strstr(r.out, "dynamic"), "%s", r.out);
    cr_expect(!strstr(r.out, "nan") && !strstr(r.out, "inf "), "%s", r.out);
    ts_result_free(&r);
    ts_remove_dir(dir);
    free(dir);
}

/* A preset's curve needs all of its setup; what is missing is named, each by itself, and nothing else. */
Test(bench_decode, a_preset_lists_what_is_missing)
{
    const struct bd_preset_needs *p = bd_preset_needs(BD_PRESET_DECODE_131K);
    struct cfg_error err = {0};
    cr_expect(p->drafts == 3 && p->rate == 0.75);
    struct bd_setup have = p->setup;
    cr_expect_eq(bd_preset_check(BD_PRESET_DECODE_131K, &have, "here", &err), 0);
    have.context *= 2;
    have.drafts = 5;
    cr_expect_eq(bd_preset_check(BD_PRESET_DECODE_131K, &have, "here", &err), 0, "more of these does no harm");
    static const char *const says[] = {"64 devices in one group (EP64/DP64) (here: 63)", "384 experts (here: 383)",
                                       "64 redundant experts (here: 63)", "131072 tokens of context (here: 131071)",
                                       "3 drafts at once (here: 2)"};
    for (int i = 0; i < 5; i++) {
        char want[128];
        have = p->setup;
        int *const part[] = {&have.devices, &have.experts, &have.redundant, &have.context, &have.drafts};
        --*part[i];
        cr_expect_eq(bd_preset_check(BD_PRESET_DECODE_131K, &have, "here", &err), -ENOTSUP);
        snprintf(want, sizeof want, "preset decode-131k needs %s", says[i]);
        cr_expect_str_eq(err.msg, want);
    }
}

/* Recorded counters become the preset's curve where they are of its setup and its length: 3.25 tokens a step, whatever
 * the file asks for. */
Test(bench_decode, a_preset_is_drawn_from_counters_of_its_setup)
{
    static const struct {
        const char *drafts, *setup, *says; /* says NULL: is drawn */
        int status;
    } file[] = {
        {"fixed 3", "\"devices\":64,\"experts\":384,\"redundant\":64,\"context\":131072,\"drafts\":3", NULL, 0},
        {"fixed 3", "\"devices\":32,\"experts\":384,\"redundant\":64,\"context\":131072,\"drafts\":3",
         "needs 64 devices in one group (EP64/DP64) (recorded: 32)\n", 1},
        {"dynamic", "\"devices\":64,\"experts\":384,\"redundant\":64,\"context\":131072,\"drafts\":3",
         "3 drafts in every step (recorded: dynamic)", 1},
        {"fixed 2", "\"devices\":64,\"experts\":384,\"redundant\":64,\"context\":131072,\"drafts\":3",
         "3 drafts in every step (recorded: fixed 2)", 1},
        {"fixed 3", "\"devices\":64,\"experts\":384,\"redundant\":64,\"context\":1048576,\"drafts\":3",
         "131072 tokens of context (recorded: 1048576)", 1},
        {"fixed 3", "\"devices\":0,\"experts\":384,\"redundant\":64,\"context\":131072,\"drafts\":3", "\"setup\" needs",
         2},
        {"fixed 3", "\"devices\":64,\"experts\":384", "\"setup\" needs", 2},
    };
    char *dir = ts_temp_dir(), text[1200], svg[4200];
    double at[4][8];
    snprintf(svg, sizeof svg, "%s/out.svg", dir);
    ts_plots_record(dir);
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        bool two = !strcmp(file[i].drafts, "fixed 2");
        snprintf(text, sizeof text,
                 "{\"format\":1,\"conditions\":{\"parallel\":\"64 devices\"},\"setup\":{%s},\"points\":[{\"drafts\":"
                 "\"%s\",\"sequences\":4,\"repeat\":0,\"seconds\":0.5,\"rounds\":2,\"rounds_without_drafter\":0,"
                 "\"probes\":0,\"steps\":8,\"drafted\":%d,\"offered\":%d,\"accepted\":%d,\"emitted\":%d,"
                 "\"offered_by_position\":[8,8%s],\"accepted_by_position\":[8,8%s]}]}",
                 file[i].setup, file[i].drafts, two ? 16 : 24, two ? 16 : 24, two ? 16 : 24, two ? 24 : 32,
                 two ? "" : ",8", two ? "" : ",8");
        char *path = ts_write_file(dir, "in.json", text);
        struct ts_result r =
            ts_run(ts_weft(), "bench", "decode", "--preset", "decode-131k", "--from", path, "--plot", svg);
        cr_expect_eq(r.status, file[i].status, "case %zu: %s", i, r.err);
        cr_expect(!file[i].says || strstr(r.err, file[i].says), "case %zu: %s", i, r.err);
        ts_result_free(&r);
        free(path);
        if (file[i].says)
            continue;
        char *told = ts_plots_told(dir);
        cr_assert_eq(ts_plots_data(told, "m0", 4, 4, at), 1, "%s", told);
        cr_expect_float_eq(at[0][1], 8 * 3.25 / 0.5, 1e-6, "8 steps of 1 + 3 x 0.75 tokens, not of 4 rows: %g",
                           at[0][1]);
        cr_expect_float_eq(at[0][0], 8 * 3.25 / 0.5 / 4, 1e-6);
        cr_expect(strstr(told, "CONVERTED") && strstr(told, "1 + drafts x 0.75") && strstr(told, "64 devices"), "%s",
                  told);
        cr_expect_not_null(
            strstr(told, "preset: decode-131k: 131072 tokens of context, EP64/DP64, 384 + 64 experts, 3 drafts at "
                         "75 %\" at screen"),
            "%s", told);
        free(told);
    }
    ts_remove_dir(dir);
    free(dir);
}

/* With a conversion the plot shows what the table prints, steps x converted tokens: what was expected of the drafts, or
 * came of them, has no part in it. */
Test(bench_decode, a_converted_plot_shows_what_is_printed)
{
    static const char *const expected[] = {"", "\"expected\":7,", "\"expected\":2.5,"};
    if (!has_gnuplot())
        cr_skip_test("needs gnuplot");
    char *dir = ts_temp_dir(), text[1024], svg[3][4200], *plot[3];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text,
                 "{\"format\":1,\"conditions\":{\"model\":\"x\"},\"convert_rate\":0.75,\"points\":[{\"drafts\":\"fixed "
                 "3\",\"sequences\":1,\"repeat\":0,\"seconds\":0.5,\"rounds\":2,\"rounds_without_drafter\":0,"
                 "\"probes\":0,%s\"steps\":2,\"drafted\":6,"
                 "\"offered\":6,\"accepted\":1,\"emitted\":3,\"offered_by_position\":[2,2,2],"
                 "\"accepted_by_position\":[1,0,0]}]}",
                 expected[i]);
        char *path = ts_write_file(dir, "in.json", text);
        snprintf(svg[i], sizeof svg[i], "%s/out%d.svg", dir, i);
        struct ts_result r = ts_run(ts_weft(), "bench", "decode", "--from", path, "--plot", svg[i]);
        cr_assert_eq(r.status, 0, "%s", r.err);
        cr_expect_not_null(strstr(r.out, "13.0"), "2 steps of 3.25 tokens in 0.5 s: %s", r.out);
        ts_result_free(&r);
        free(path);
        plot[i] = ts_read_file(svg[i], NULL);
        cr_assert_not_null(plot[i]);
        cr_expect_str_eq(plot[i], plot[0], "%s", expected[i]);
    }
    for (int i = 0; i < 3; i++)
        free(plot[i]);
    ts_remove_dir(dir);
    free(dir);
}

/* The columns of the table and of the CSV, by hand: drafts that were not offered are in one denominator only, rows that
 * were saved are no speed, and rows are no tokens. */
Test(bench_decode, every_column_is_what_its_heading_says)
{
    static const char *const rows[] = {
        "2 off 40.0 - 20.0 40.0 1.000 0.000 - - 75.0 -44.44 - - -",
        "2 fixed 3 72.0 - 36.0 128.0 2.250 3.000 41.7 41.7 0.0 - - 80.00 -",
        "2 dynamic 60.0 - 30.0 90.0 1.667 1.500 44.4 26.7 37.5 -16.67 - 50.00 -",
        "2 best: fixed 3 dynamic -16.67 % +- - low - planning 4.00 % rounds 9, of these without the drafter 1, probes "
        "2",
    };
    static const char *const lines[] = {
        "off,2,0,0.500000000,10,10,0,20,0,0,0,20,40,40,1,,,,\n",
        "fixed 3,2,0,0.500000000,8,0,0,16,48,48,20,36,72,128,2.25,0.416667,0.416667,,\n",
        "dynamic,2,0,0.500000000,9,1,2,18,45,27,12,30,60,90,1.66667,0.444444,0.266667,,\n",
    };
    char *dir = ts_temp_dir(), csv[4200], *out;
    char *path = ts_write_file(
        dir, "in.json",
        "{\"format\":1,\"conditions\":{\"model\":\"x\"},\"points\":["
        "{\"drafts\":\"off\",\"sequences\":2,\"repeat\":0,\"seconds\":0.5,\"rounds\":10,\"rounds_without_drafter\":10,"
        "\"probes\":0,\"steps\":20,\"drafted\":0,\"offered\":0,\"accepted\":0,\"emitted\":20,"
        "\"offered_by_position\":[],\"accepted_by_position\":[]},"
        "{\"drafts\":\"fixed "
        "3\",\"sequences\":2,\"repeat\":0,\"seconds\":0.5,\"rounds\":8,\"rounds_without_drafter\":0,"
        "\"probes\":0,\"steps\":16,\"drafted\":48,\"offered\":48,\"accepted\":20,\"emitted\":36,"
        "\"offered_by_position\":[16,16,16],\"accepted_by_position\":[10,6,4]},"
        "{\"drafts\":\"dynamic\",\"sequences\":2,\"repeat\":0,\"seconds\":0.5,\"planning\":0.02,\"rounds\":9,"
        "\"rounds_without_drafter\":1,\"probes\":2,\"steps\":18,\"drafted\":45,\"offered\":27,\"accepted\":12,"
        "\"emitted\":30,\"offered_by_position\":[14,9,4],\"accepted_by_position\":[7,4,1]}]}");
    snprintf(csv, sizeof csv, "%s/out.csv", dir);
    struct ts_result r = ts_run(ts_weft(), "bench", "decode", "--from", path, "--csv", csv);
    cr_assert_eq(r.status, 0, "%s", r.err);
    size_t n = 0;
    for (const char *c = r.out; *c; c++) /* runs of spaces as one */
        if (*c != ' ' || (n && r.out[n - 1] != ' '))
            r.out[n++] = *c;
    r.out[n] = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_not_null(strstr(r.out, rows[i]), "%s: %s", rows[i], r.out);
    ts_result_free(&r);
    out = ts_read_file(csv, NULL);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect_not_null(strstr(out, lines[i]), "%s: %s", lines[i], out);
    free(out);
    free(path);
    ts_remove_dir(dir);
    free(dir);
}

/* Of one way what came out, of the other what was to be expected: no change of speed comes of that. */
Test(bench_decode, expected_tokens_are_in_all_points_or_in_none)
{
    json_t *all = json_load_file("tests/fixtures/bench/decode-recorded.json", 0, NULL),
           *points = json_object_get(all, "points"), *last = json_array_get(points, json_array_size(points) - 1);
    char *dir = ts_temp_dir(), path[4200], where[64];
    struct bd_results got = {0};
    struct cfg_error err;
    snprintf(path, sizeof path, "%s/mixed.json", dir);
    json_object_set_new(last, "expected", json_real((double)json_integer_value(json_object_get(last, "emitted"))));
    cr_assert_eq(json_dump_file(all, path, 0), 0);
    cr_expect_eq(bd_read_json(path, &got, &err), -EINVAL);
    snprintf(where, sizeof where, "point %zu: \"expected\" must be in all points", json_array_size(points));
    cr_expect_not_null(strstr(err.msg, where), "%s", err.msg);
    bd_free(&got);
    json_decref(all);
    ts_remove_dir(dir);
    free(dir);
}

/* Tokens that were to be expected are drawn where the chances are known, and called so. */
Test(bench_decode, the_plot_says_which_tokens_it_shows)
{
    char *dir = ts_temp_dir(), text[1024], svg[4200];
    double at[2][8];
    snprintf(svg, sizeof svg, "%s/out.svg", dir);
    ts_plots_record(dir);
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text,
                 "{\"format\":1,\"conditions\":{\"model\":\"x\"},\"points\":[{\"drafts\":\"fixed 3\",\"sequences\":1,"
                 "\"repeat\":0,\"seconds\":0.5,\"rounds\":2,\"rounds_without_drafter\":0,\"probes\":0,%s\"steps\":2,"
                 "\"drafted\":6,\"offered\":6,\"accepted\":1,"
                 "\"emitted\":3,\"offered_by_position\":[2,2,2],\"accepted_by_position\":[1,0,0]}]}",
                 i ? "\"expected\":2.5," : "");
        char *path = ts_write_file(dir, "in.json", text);
        struct ts_result r = ts_run(ts_weft(), "bench", "decode", "--from", path, "--plot", svg);
        cr_assert_eq(r.status, 0, "%s", r.err);
        ts_result_free(&r);
        char *told = ts_plots_told(dir);
        cr_assert_eq(ts_plots_data(told, "m0", 4, 2, at), 1, "%s", told);
        cr_expect_float_eq(at[0][1], i ? 5 : 6, 1e-6, "%g", at[0][1]);
        cr_expect_not_null(strstr(told, i ? "(tokens expected)" : "(tokens emitted)"), "%s", told);
        free(told);
        free(path);
    }
    ts_remove_dir(dir);
    free(dir);
}

/* Every change is drawn with its interval, those below zero like those above, on an axis that reaches them. */
Test(bench_decode, losses_are_drawn_like_gains)
{
    static const char recorded[] = "tests/fixtures/bench/decode-recorded.json";
    static const int modes[] = {0, 3, BD_DYNAMIC}, loads[] = {1, 4};
    char *dir = ts_temp_dir(), svg[4200], name[16];
    struct bd_results got = {0};
    struct cfg_error err;
    double at[8][8];
    int below = 0;
    snprintf(svg, sizeof svg, "%s/out.svg", dir);
    ts_plots_record(dir);
    struct ts_result r = ts_run(ts_weft(), "bench", "decode", "--from", recorded, "--plot", svg);
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    char *told = ts_plots_told(dir);
    cr_assert_not_null(told);
    cr_assert_eq(bd_read_json(recorded, &got, &err), 0, "%s", err.msg);
    for (int m = 0; m < 3; m++) {
        snprintf(name, sizeof name, "c%d", m);
        int n = ts_plots_data(told, name, 3, 8, at);
        cr_assert_eq(n, modes[m] ? 2 : 0, "%s has %d points: %s", name, n, told);
        for (int l = 0; l < n; l++) {
            double percent, half;
            bd_change(&got, loads[l], modes[m], 0, &percent, &half);
            cr_expect_float_eq(at[l][0], loads[l], 1e-9);
            cr_expect_float_eq(at[l][1], percent, 1e-3 * fabs(percent), "%s", told);
            cr_expect_float_eq(at[l][2], half, 1e-3 * half, "%s", told);
            below += at[l][1] < 0;
        }
    }
    cr_expect_geq(below, 3, "the recorded run has losses");
    cr_assert_eq(ts_plots_data(told, "best", 3, 8, at), 2);
    for (int l = 0; l < 2; l++) {
        struct bd_verdict v;
        cr_assert(bd_judge(&got, loads[l], &v));
        cr_expect_float_eq(at[l][1], v.percent, 1e-3 * fabs(v.percent));
    }
    cr_expect_lt(at[1][1], -5, "dynamic lost at 4 sequences");
    const char *changes = strstr(told, "set title 'Change of throughput to off'");
    cr_assert_not_null(changes);
    cr_expect(strstr(changes, "set yrange [*:*]") && strstr(changes, "set xzeroaxis"), "%s", changes);
    for (int m = 1; m < 3; m++) {
        snprintf(name, sizeof name, "$c%d using ($1*", m);
        cr_expect_not_null(strstr(changes, name), "%s", changes);
    }
    cr_expect_not_null(strstr(changes, "$best using 1:2:3 with yerrorbars"));
    free(told);
    bd_free(&got);
    ts_remove_dir(dir);
    free(dir);
}
