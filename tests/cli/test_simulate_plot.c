/* weft simulate beside its figures: the picture and what it says, runs in which nothing ended, lengths that no context
 * holds, times in which nobody is served. */
#include "tests/harness.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/plots.h"
#include "tests/support/process.h"

/* Rounds of 10 ms, whatever is in them, and drafts that are never kept; fixed lengths cost a little planning. */
#define PROFILE(NAME, MORE)                                                                                            \
    "{\"name\":\"" NAME "\",\"block\":4,\"plan_us\":500,\"noise\":0,\"table_error\":0,\"price_per_device_hour\":3.6,"  \
    "\"accept\":{\"base\":-20,\"slope\":0,\"spread\":0,\"persist\":0},\"output_tokens\":21,"                           \
    "\"plain_us\":[[1,10000],[4096,10000]],\"full_us\":[[1,10500],[4096,10500]],\"prompt_tokens\":64,"                 \
    "\"prefill\":{\"encoder_us\":[[1,1000],[1000,9000]]}" MORE "}"

static char *dir, *profile, *out;

static void begin(const char *text)
{
    dir = ts_temp_dir();
    profile = ts_write_file(dir, "p.json", text);
    if (asprintf(&out, "%s/out.json", dir) < 0)
        abort();
}

static void end(void)
{
    if (dir)
        ts_remove_dir(dir);
    free(dir);
    free(profile);
    free(out);
    dir = profile = out = NULL;
}

TestSuite(simulate_plot, .fini = end);

static json_t *results(void)
{
    json_t *j = json_load_file(out, 0, NULL);
    cr_assert_not_null(j);
    return j;
}

static double figure(const json_t *all, size_t i, const char *name, const char *part)
{
    const json_t *v = json_object_get(json_array_get(json_object_get(all, "points"), i), name);
    return json_number_value(part ? json_object_get(v, part) : v);
}

Test(simulate_plot, draws_its_figures_losses_and_conditions)
{
    static const char *const says[] = {"profile: p.json: a name",
                                       "prompts of 64 and answers of 21 tokens",
                                       "blocks of 4 drafts",
                                       "3.6 for a device",
                                       "virtual",
                                       "at a time per decode rank",
                                       "3+2 decode + prefill",
                                       "prompts go by load"};
    begin(PROFILE("a name", ""));
    char *svg;
    cr_assert(asprintf(&svg, "%s/out.svg", dir) > 0);
    ts_plots_record(dir);
    struct ts_result r =
        ts_run(ts_weft(), "simulate", "--modes", "off,fixed", "--load", "2,4", "--fixed-lengths", "--seconds", "3",
               "--warm", "1", "--decode", "3", "--prefill", "2", "--json", out, "--plot", svg, profile);
    cr_assert_eq(r.status, 0, "%s", r.err);
    char *told = ts_plots_told(dir);
    cr_assert_not_null(told);
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        const char *colon = strstr(says[i], ": "), *value = colon ? colon + 2 : says[i];
        cr_expect_not_null(strstr(told, says[i]), "the plot does not say \"%s\"", says[i]);
        cr_expect_not_null(strstr(r.out, value), "nor the table \"%s\"", value);
    }
    json_t *all = results();
    double at[8][8];
    /* Points are load by load, mode by mode; a line is a mode. */
    for (size_t m = 0; m < 2; m++) {
        char name[8];
        snprintf(name, sizeof name, "s%zu", m);
        cr_assert_eq(ts_plots_data(told, name, 2, 8, at), 2, "%s", told);
        for (size_t l = 0; l < 2; l++) {
            cr_expect_float_eq(at[l][0], figure(all, 2 * l + m, "tokens_per_second_and_user", NULL), 0.01);
            cr_expect_float_eq(at[l][1], figure(all, 2 * l + m, "tokens_per_second_and_device", NULL), 0.01);
        }
        snprintf(name, sizeof name, "f%zu", m);
        cr_assert_eq(ts_plots_data(told, name, 2, 8, at), 2);
        for (size_t l = 0; l < 2; l++) {
            cr_expect_float_eq(at[l][0], 1e3 * figure(all, 2 * l + m, "first_token_seconds", "p99"), 0.01);
            cr_expect_float_eq(at[l][1], figure(all, 2 * l + m, "price_per_million_tokens", NULL), 0.01);
        }
    }
    cr_assert_eq(ts_plots_data(told, "c0", 2, 8, at), 0, "the first mode has no change");
    cr_assert_eq(ts_plots_data(told, "c1", 2, 8, at), 2);
    for (size_t l = 0; l < 2; l++) {
        double change = 100 * (figure(all, 2 * l + 1, "output_tokens_per_second", NULL) /
                                   figure(all, 2 * l, "output_tokens_per_second", NULL) -
                               1);
        cr_expect_lt(change, -2);
        cr_expect_float_eq(at[l][1], change, 0.01);
    }
    cr_expect_null(strstr(told, "nan"));
    cr_expect_eq(json_object_size(json_object_get(all, "conditions")), 7);
    json_decref(all);
    free(told);
    free(svg);
    ts_result_free(&r);
}

Test(simulate_plot, without_an_answer_there_is_no_picture)
{
    begin(PROFILE("a name", ""));
    char *svg;
    cr_assert(asprintf(&svg, "%s/out.svg", dir) > 0);
    ts_plots_record(dir);
    struct ts_result r = ts_run(ts_weft(), "simulate", "--modes", "off,fixed", "--load", "2", "--seconds", "0.02",
                                "--warm", "0", "--json", out, "--plot", svg, profile);
    cr_expect_eq(r.status, 1);
    cr_expect_not_null(strstr(r.err, "no request ended"), "%s", r.err);
    cr_expect_not_null(strstr(r.err, "--seconds"), "%s", r.err);
    cr_expect_null(strstr(r.out, "nan"), "%s", r.out);
    cr_expect_neq(access(svg, F_OK), 0, "a picture of nothing");
    ts_result_free(&r);
    /* Answers of one token have no speed, and are drawn all the same. */
    char *trace = ts_write_file(dir, "t.jsonl",
                                "{\"t\":0,\"prompt\":50,\"output\":1,\"block_tokens\":256,\"blocks\":[]}\n"
                                "{\"t\":1,\"prompt\":50,\"output\":1,\"block_tokens\":256,\"blocks\":[]}\n");
    r = ts_run(ts_weft(), "simulate", "--modes", "off", "--trace", trace, "--plot", svg, profile);
    cr_expect_eq(r.status, 0, "%s", r.err);
    cr_expect_null(strstr(r.out, "nan"), "%s", r.out);
    char *told = ts_plots_told(dir);
    cr_assert_not_null(told);
    cr_expect_not_null(strstr(told, "nothing to show"));
    cr_expect_null(strstr(told, "nan"), "%s", told);
    free(told);
    free(trace);
    free(svg);
    ts_result_free(&r);
}

/* 35 days between two requests: both are served, the time is counted, and not lived through. */
Test(simulate_plot, time_without_requests_is_left_out)
{
    begin(PROFILE("a name", ""));
    char *trace = ts_write_file(dir, "t.jsonl",
                                "{\"t\":3000000,\"prompt\":50,\"output\":11,\"block_tokens\":256,\"blocks\":[]}\n"
                                "{\"t\":0,\"prompt\":50,\"output\":11,\"block_tokens\":256,\"blocks\":[]}\n");
    struct ts_result r = ts_run(ts_weft(), "simulate", "--modes", "off", "--trace", trace, "--json", out, profile);
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    json_t *all = results();
    cr_expect_float_eq(figure(all, 0, "seconds", NULL), 3000000, 1);
    cr_expect_float_eq(figure(all, 0, "requests", NULL), 2, 0.1);
    cr_expect_float_eq(figure(all, 0, "end_to_end_seconds", "p99"), 0.1, 0.02);
    json_decref(all);
    /* A time that is counted goes on where nobody comes, too. */
    r = ts_run(ts_weft(), "simulate", "--modes", "off", "--rate", "0.0001", "--seconds", "1e6", "--warm", "1e5",
               "--fixed-lengths", "--json", out, profile);
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    all = results();
    cr_expect_float_eq(figure(all, 0, "seconds", NULL), 1e6, 1);
    cr_expect_float_eq(figure(all, 0, "requests", NULL), 100, 35);
    json_decref(all);
    /* More requests are asked for than the trace has. */
    r = ts_run(ts_weft(), "simulate", "--modes", "off", "--trace", trace, "--requests", "50", "--json", out, profile);
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    free(trace);
}

Test(simulate_plot, lengths_that_no_context_holds_are_refused)
{
    begin(PROFILE("short", ",\"decode\":{\"context\":128}"));
    char *trace = ts_write_file(dir, "t.jsonl",
                                "{\"t\":0,\"prompt\":50,\"output\":9,\"block_tokens\":256,\"blocks\":[]}\n"
                                "{\"t\":1,\"prompt\":120,\"output\":9,\"block_tokens\":256,\"blocks\":[]}\n"),
         *serve = ts_write_file(dir, "serve.json",
                                "{\"conditions\":{\"prompt_tokens\":120,\"max_tokens\":9},\"points\":[{\"loop\":"
                                "\"closed\",\"concurrency\":1,\"requests\":2}]}"),
         *small = ts_write_file(dir, "small.json", PROFILE("small", ",\"decode\":{\"context\":80}"));
    const struct {
        const char *argument[6], *says[2];
        int status;
    } bad[] = {
        {{"--trace", trace, profile}, {"t.jsonl:2", "context of 128"}, 1},
        {{"--against", serve, "--modes", "off", profile}, {"120 and answers of 9", "context of 128"}, 2},
        {{small}, {"prompt_tokens 64", "context of 80"}, 1},
        {{"--groups", "2", "--shared-tokens", "128", profile}, {"--shared-tokens 128", "128 tokens"}, 2},
        {{"--json", profile, profile}, {"--json", "the profile"}, 2},
        {{"--modes", "off,fixed", "--group-sync", profile}, {"--group-sync", "--modes"}, 2},
        {{"--modes", "fixed3x", profile}, {"fixed3x", "fixed4"}, 2},
        {{"--measure", "samples/tiny", "--prompt-tokens", "1000", out}, {"1000", "one of 1024"}, 2},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *argv[10] = {ts_weft(), "simulate"};
        for (int k = 0; k < 6 && bad[i].argument[k]; k++)
            argv[2 + k] = bad[i].argument[k];
        if (!strcmp(argv[2], "--measure") && access("samples/tiny/model.safetensors", R_OK))
            continue;
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, bad[i].status, "case %zu: %d %s", i, r.status, r.err);
        for (int k = 0; k < 2; k++)
            cr_expect_not_null(strstr(r.err, bad[i].says[k]), "case %zu: %s", i, r.err);
        ts_result_free(&r);
    }
    cr_expect_neq(access(out, F_OK), 0, "nothing was measured");
    /* Made-up lengths are random: the longest are cut, and it is said. */
    struct ts_result r = ts_run(ts_weft(), "simulate", "--modes", "off", "--load", "2", "--requests", "50", profile);
    cr_expect_eq(r.status, 0, "%s", r.err);
    cr_expect_not_null(strstr(r.out, "longer than the context of 128 tokens"), "%s", r.out);
    ts_result_free(&r);
    free(small);
    free(serve);
    free(trace);
}

Test(simulate_plot, names_cannot_move_the_cursor)
{
    begin(PROFILE("a \\u001b[2Jname\\u009b1m", ""));
    struct ts_result r = ts_run(ts_weft(), "simulate", "--modes", "off", "--load", "1", "--requests", "2", profile);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_expect_null(strchr(r.out, '\033'), "%s", r.out);
    cr_expect_null(strstr(r.out, "\xc2\x9b"));
    cr_expect_not_null(strstr(r.out, "a ?[2Jname"), "%s", r.out);
    ts_result_free(&r);
}
