/* weft bench serve: both loops against a server of its own, and its files. */
#include "tests/harness.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench_serve_report.h"
#include "tests/support/plots.h"
#include "tests/support/process.h"

static const char recorded[] = "tests/fixtures/bench/serve-recorded.json";

static size_t fields(const char *line)
{
    size_t n = 1;
    for (; *line && *line != '\n'; line++)
        n += *line == ',';
    return n;
}

Test(bench_serve, both_loops_with_json_and_csv)
{
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    char *dir = ts_temp_dir(), json[4200], csv[4200];
    cr_assert_not_null(dir);
    snprintf(json, sizeof json, "%s/out.json", dir);
    snprintf(csv, sizeof csv, "%s/out.csv", dir);
    struct ts_result r =
        ts_run(ts_weft(), "bench", "serve", "--gateway", "-c", "1,3", "-r", "50", "-n", "5", "--warmup", "1",
               "--prompt-tokens", "40", "--max-tokens", "6", "--json", json, "--csv", csv);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "3 at once") && strstr(r.out, "50 /s"), "%s", r.out);
    ts_result_free(&r);
    json_t *j = json_load_file(json, 0, NULL), *p;
    cr_assert_not_null(j);
    json_t *points = json_object_get(j, "points"), *conditions = json_object_get(j, "conditions");
    cr_expect_str_eq(json_string_value(json_object_get(json_object_get(conditions, "server"), "model")), "tiny");
    const json_t *version = json_object_get(conditions, "server");
    cr_expect_str_eq(json_string_value(json_object_get(version, "speculation")), "fixed: 3 a step, acceptance match");
    cr_expect_eq(json_array_size(points), 3);
    size_t i;
    json_array_foreach (points, i, p) {
        cr_expect_str_eq(json_string_value(json_object_get(p, "loop")), i < 2 ? "closed" : "open");
        cr_expect_eq(json_integer_value(json_object_get(p, "whole")), 5);
        cr_expect_eq(json_integer_value(json_object_get(p, "output_tokens")), 30, "five times six tokens");
        cr_expect_eq(json_integer_value(json_object_get(p, "prompt_tokens")), 200, "five times forty");
        static const char *const columns[] = {"first_token", "inter_token",    "end_to_end", "queue",
                                              "prefill",     "first_delivery", "delivery",   "user_token"};
        for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
            char key[64];
            snprintf(key, sizeof key, "%s_seconds", columns[k]);
            const json_t *c = json_object_get(p, key);
            double p50 = json_real_value(json_object_get(c, "p50")), p99 = json_real_value(json_object_get(c, "p99"));
            cr_expect(json_is_real(json_object_get(c, "p50")) && p50 >= 0 && p99 >= p50, "%s: %f %f", key, p50, p99);
        }
        double first = json_real_value(json_object_get(json_object_get(p, "first_token_seconds"), "p99"));
        double end = json_real_value(json_object_get(json_object_get(p, "end_to_end_seconds"), "p99"));
        cr_expect_le(first, end);
        double user = json_real_value(json_object_get(json_object_get(p, "user_token_seconds"), "p50"));
        cr_expect(user > 0 && 5 * user <= end, "five tokens behind the first take %f s each, the whole %f", user, end);
    }
    json_decref(j);
    char *text = ts_read_file(csv, NULL), *line = text;
    size_t lines = 0, n = fields(text);
    for (; *line; lines++) {
        cr_expect_eq(fields(line), n, "a row has another number of fields");
        line = strchr(line, '\n') + 1;
    }
    cr_expect_eq(lines, 4);
    free(text);
    ts_remove_dir(dir);
    free(dir);
}

Test(bench_serve, prompts_from_a_file)
{
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    char *dir = ts_temp_dir(), *prompts = ts_write_file(dir, "prompts", "Once upon a time\n\nThe river\n");
    struct ts_result r =
        ts_run(ts_weft(), "bench", "serve", "--prompts", prompts, "-c", "2", "-n", "4", "--max-tokens", "3");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "4/4"), "%s", r.out);
    ts_result_free(&r);
    free(prompts);
    prompts = ts_write_file(dir, "empty", "\n");
    r = ts_run(ts_weft(), "bench", "serve", "--prompts", prompts);
    cr_expect_eq(r.status, 2);
    cr_expect(strstr(r.err, "holds no prompt"), "%s", r.err);
    ts_result_free(&r);
    free(prompts);
    ts_remove_dir(dir);
    free(dir);
}

Test(bench_serve, what_cannot_be_measured)
{
    struct ts_result r = ts_run(ts_weft(), "bench", "serve", "--url", "http://127.0.0.1:1");
    cr_expect_eq(r.status, 1);
    cr_expect(strstr(r.err, "is a server running there?"), "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "bench", "serve", "--url", "https://127.0.0.1:1");
    cr_expect_eq(r.status, 2);
    cr_expect(strstr(r.err, "plain HTTP only"), "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "bench", "serve", "-m", "/nowhere");
    cr_expect_eq(r.status, 1);
    cr_expect(strstr(r.err, "the server did not start; `weft serve -m /nowhere` says why"), "%s", r.err);
    ts_result_free(&r);
}

/* A user's speed is of the tokens behind the first one, from first to last text, and of whole answers only; throughput
 * is of all output tokens of whole answers over the whole run. */
Test(bench_serve, figures_of_samples)
{
    struct load_sample sample[] = {
        {.start = 0,
         .first = 1,
         .last = 3,
         .end = 3.5,
         .status = 200,
         .prompt_tokens = 7,
         .output_tokens = 11,
         .whole = 1},
        {.start = 1,
         .first = 3,
         .last = 4,
         .end = 4.5,
         .status = 200,
         .prompt_tokens = 7,
         .output_tokens = 2,
         .whole = 1},
        {.start = 2, .first = 5, .last = 9, .end = 9, .status = 200, .output_tokens = 3}, /* cut off */
        {.start = 2, .status = 429},
        {.start = 2,
         .first = 4,
         .last = 4,
         .end = 4,
         .status = 200,
         .prompt_tokens = 7,
         .output_tokens = 1,
         .whole = 1},
    };
    for (size_t i = 0; i < sizeof sample / sizeof *sample; i++)
        sample[i].queue = sample[i].prefill = -1;
    struct load_run run = {.sample = sample, .began = 0, .ended = 10};
    struct bs_point p = {.load = 2};
    bs_take(&p, &run, 5);
    cr_expect(p.requests == 5 && p.whole == 3 && p.refused == 1 && p.failed == 1);
    cr_expect(p.prompt_tokens == 21 && p.output_tokens == 14);
    cr_expect_float_eq(p.seconds, 10, 1e-12);
    cr_expect_float_eq(p.value[BS_USER_TOKEN][0], 0.2, 1e-12, "2 s for the 10 tokens behind the first");
    cr_expect_float_eq(p.value[BS_USER_TOKEN][2], 1, 1e-12, "1 s for one");
    cr_expect_float_eq(p.value[BS_FIRST_TOKEN][0], 2, 1e-12);
    cr_expect_float_eq(p.mean[BS_FIRST_TOKEN], 2, 1e-12, "of 1, 2, 3 and 2: also of the answer that was cut off");
    cr_expect_float_eq(p.value[BS_END_TO_END][2], 3.5, 1e-12);
    cr_expect(isnan(p.value[BS_QUEUE][0]));
}

/* The picture is of the file's figures, loop by loop and by rising load, under conditions that name the model, how it
 * drafts, machine, context and sizes. */
Test(bench_serve, plots_show_the_file)
{
    char *dir = ts_temp_dir(), svg[4200];
    struct bs_results got = {0};
    struct cfg_error err;
    double at[8][8];
    static const char *const loops[] = {"closed", "open"};
    snprintf(svg, sizeof svg, "%s/out.svg", dir);
    ts_plots_record(dir);
    struct ts_result r = ts_run(ts_weft(), "bench", "serve", "--from", recorded, "--plot", svg);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_expect_not_null(strstr(r.out, "tok/s/user"), "%s", r.out);
    ts_result_free(&r);
    char *told = ts_plots_told(dir);
    cr_assert_not_null(told);
    cr_assert_eq(bs_read_json(recorded, &got, &err), 0, "%s", err.msg);
    for (int open = 0, i = 0; open < 2; open++) {
        int n = ts_plots_data(told, loops[open], 8, 8, at);
        cr_assert_eq(n, open ? 2 : 3, "%s", told);
        for (int k = 0; k < n; k++, i++) {
            const struct bs_point *p = &got.point[i];
            const double want[] = {p->load,
                                   (double)p->output_tokens / p->seconds,
                                   1 / p->value[BS_USER_TOKEN][0],
                                   1 / p->value[BS_USER_TOKEN][1],
                                   1e3 * p->value[BS_FIRST_TOKEN][0],
                                   1e3 * p->value[BS_FIRST_TOKEN][1],
                                   1e3 * p->value[BS_FIRST_TOKEN][2],
                                   1e3 * p->value[BS_INTER_TOKEN][0]};
            for (int c = 0; c < 8; c++)
                cr_expect_float_eq(at[k][c], want[c], 1e-6 * want[c], "%s, row %d, column %d: %g, not %g", loops[open],
                                   k, c, at[k][c], want[c]);
        }
    }
    static const char *const says[] = {
        "tiny, revision f09753a93c3b1b51, cpu/avx512, 2 threads, context of 1024 tokens",
        "drafts: fixed: 3 a step, acceptance match",
        "machine: recorded on a busy machine",
        "prompts of 128 tokens, answers of 64",
        "160 of 160 whole, 0 refused, 0 failed",
        "started for this run on the same machine",
        "sent to first text at the client, ms",
        "between two pieces of one answer, ms",
        "tokens per second and user, behind the first token",
        "requests at a time (closed loop)",
        "requests per second, arriving at random (open loop)",
        "$closed using 1:7",
        "$closed using 1:10",
        "$open using 3:2",
    };
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        cr_expect_not_null(strstr(told, says[i]), "\"%s\" is missing: %s", says[i], told);
    free(told);
    json_decref(got.conditions);
    ts_remove_dir(dir);
    free(dir);
}

Test(bench_serve, plots_are_pictures)
{
    if (system("command -v gnuplot >/dev/null 2>&1"))
        cr_skip_test("needs gnuplot");
    char *dir = ts_temp_dir(), file[4200];
    static const char *const suffix[] = {"png", "svg"};
    for (int i = 0; i < 2; i++) {
        size_t len;
        snprintf(file, sizeof file, "%s/out.%s", dir, suffix[i]);
        struct ts_result r = ts_run(ts_weft(), "bench", "serve", "--from", recorded, "--plot", file);
        cr_assert_eq(r.status, 0, "%s", r.err);
        cr_expect_null(strstr(r.err, "warning"), "gnuplot complains: %s", r.err);
        ts_result_free(&r);
        char *text = ts_read_file(file, &len);
        cr_expect(i ? strstr(text, "Speed per user against throughput") != NULL
                    : len > 10000 && !memcmp(text, "\x89PNG", 4));
        free(text);
    }
    ts_remove_dir(dir);
    free(dir);
}

/* Loads at which nothing was answered in full, or answers of one token: there is a picture all the same, and it says
 * so. */
Test(bench_serve, plots_of_next_to_nothing)
{
    if (system("command -v gnuplot >/dev/null 2>&1"))
        cr_skip_test("needs gnuplot");
    static struct bs_results made;
    char *dir = ts_temp_dir(), in[4200], svg[4200];
    struct cfg_error err;
    snprintf(in, sizeof in, "%s/in.json", dir);
    snprintf(svg, sizeof svg, "%s/out.svg", dir);
    json_t *of_run = json_load_file(recorded, 0, NULL);
    made.conditions = json_incref(json_object_get(of_run, "conditions"));
    json_decref(of_run);
    json_object_set_new(made.conditions, "requests_per_point", json_integer(4));
    json_object_set_new(made.conditions, "started_here", json_false());
    made.n = 1;
    for (int i = 0; i < 6; i++) {
        struct bs_point *p = &made.point[0];
        int kind = i % 3; /* nothing whole; answers of one token; of three */
        *p = (struct bs_point){.open = i >= 3, .load = 2, .requests = 4, .seconds = 8};
        p->whole = kind ? 3 : 0;
        p->refused = 4 - p->whole;
        p->output_tokens = kind == 2 ? 9 : p->whole;
        for (int c = 0; c < BS_COLUMNS; c++) {
            bool has = c == BS_FIRST_TOKEN || c == BS_END_TO_END   ? kind > 0
                       : c == BS_USER_TOKEN || c == BS_INTER_TOKEN ? kind == 2
                                                                   : false;
            for (int q = 0; q < BS_QUANTILES; q++)
                p->value[c][q] = has ? 1 + (q > 0) : NAN;
            p->mean[c] = has ? 1.5 : NAN;
        }
        cr_assert_eq(bs_write_json(&made, in, &err), 0, "%s", err.msg);
        struct ts_result r = ts_run(ts_weft(), "bench", "serve", "--from", in, "--plot", svg);
        cr_assert_eq(r.status, 0, "case %d: %s", i, r.err);
        cr_expect_null(strstr(r.err, "warning"), "case %d: gnuplot complains: %s", i, r.err);
        ts_result_free(&r);
        char *drawn = ts_read_file(svg, NULL);
        int empty = 0;
        for (const char *at = drawn; (at = strstr(at, "no answer has one")); at++)
            empty++;
        cr_expect_eq(empty, kind == 0 ? 3 : kind == 1 ? 2 : 0, "case %d: %d panels are empty", i, empty);
        cr_expect(kind != 2 || strstr(drawn, "1 not whole"), "case %d", i);
        free(drawn);
    }
    json_decref(made.conditions);
    ts_remove_dir(dir);
    free(dir);
}

/* Before anything is measured. */
Test(bench_serve, a_plot_that_cannot_be_drawn_is_refused_at_once)
{
    static const char *const bench[] = {"serve", "prefill", "decode"};
    for (int i = 0; i < 3; i++) {
        struct ts_result r = ts_run(ts_weft(), "bench", bench[i], "-m", "/nowhere", "--plot", "x.jpg");
        cr_expect(r.status == 2 && strstr(r.err, "ends in .svg or .png"), "%s: %s", bench[i], r.err);
        ts_result_free(&r);
    }
}

/* A run in which nobody got an answer is no measurement. */
Test(bench_serve, a_run_without_an_answer_fails_with_a_reason)
{
    struct ts_result r = ts_run(ts_weft(), "bench", "serve", "-m", "samples/tiny", "-c", "1", "-n", "2", "--warmup",
                                "0", "--prompt-tokens", "2000");
    cr_expect_eq(r.status, 1, "%s", r.out);
    cr_expect_not_null(strstr(r.err, "no request was answered in full"), "%s", r.err);
    ts_result_free(&r);
}
