/* weft simulate: the engine's actors in virtual time. What it says of a machine that a closed form can describe, of the
 * published point that the shipped profile was fitted to, and of profiles and traces that make no sense. */
#include "tests/harness.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/process.h"

#define PROFILE "samples/profiles/ep64-dp64.json"

/* One row, one block: 10 ms. Nothing varies; drafts are kept with a chance of sigmoid(BASE). */
#define FLAT(BASE, MORE)                                                                                               \
    "{\"name\":\"flat\",\"block\":4,\"plan_us\":0,\"noise\":0,\"table_error\":0,\"price_per_device_hour\":3.6,"        \
    "\"accept\":{\"base\":" BASE ",\"slope\":0,\"spread\":0,\"persist\":0},\"output_tokens\":101,"                     \
    "\"plain_us\":[[1,10000],[4096,10000]],\"full_us\":[[1,10000],[4096,10000]]" MORE "}"

struct fixture {
    char *dir, *profile;
    json_t *results;
};

static struct fixture begin(const char *text)
{
    struct fixture f = {.dir = ts_temp_dir()};
    f.profile = ts_write_file(f.dir, "profile.json", text);
    return f;
}

static void end(struct fixture *f)
{
    json_decref(f->results);
    ts_remove_dir(f->dir);
    free(f->profile);
    free(f->dir);
}

static const json_t *point(const struct fixture *f, size_t i)
{
    const json_t *p = json_array_get(json_object_get(f->results, "points"), i);
    cr_assert_not_null(p);
    return p;
}

static double figure(const struct fixture *f, size_t i, const char *name)
{
    return json_number_value(json_object_get(point(f, i), name));
}

static double quantile(const struct fixture *f, size_t i, const char *name, const char *which)
{
    return json_number_value(json_object_get(json_object_get(point(f, i), name), which));
}

/* Runs it with --json and reads that. */
#define RUN(f, ...)                                                                                                    \
    do {                                                                                                               \
        char results_file[512];                                                                                        \
        json_error_t why;                                                                                              \
        snprintf(results_file, sizeof results_file, "%s/out.json", (f)->dir);                                          \
        struct ts_result r = ts_run(ts_weft(), "simulate", "--json", results_file, __VA_ARGS__, (f)->profile);         \
        cr_assert_eq(r.status, 0, "%s", r.err);                                                                        \
        ts_result_free(&r);                                                                                            \
        json_decref((f)->results);                                                                                     \
        (f)->results = json_load_file(results_file, 0, &why);                                                          \
        cr_assert_not_null((f)->results, "%s", why.text);                                                              \
    } while (0)

Test(simulate, rounds_of_a_flat_machine_are_as_counted)
{
    struct fixture f = begin(FLAT("-20", ""));
    RUN(&f, "--modes", "off,fixed", "--load", "8", "--fixed-lengths", "--seconds", "40", "--warm", "5");
    for (size_t i = 0; i < 2; i++) {
        /* 101 tokens in 100 rounds and the first one before them; a new request may miss one round. */
        cr_expect_float_eq(figure(&f, i, "tokens_per_second_and_rank"), 8 * 100, 16);
        cr_expect_float_eq(quantile(&f, i, "inter_token_seconds", "p50"), 0.010, 0.0003);
        cr_expect_float_eq(quantile(&f, i, "end_to_end_seconds", "p50"), 1.0, 0.03);
        cr_expect_float_eq(figure(&f, i, "emitted"), figure(&f, i, "steps"), 0.5, "nothing is kept");
    }
    cr_expect_float_eq(figure(&f, 0, "offered"), 0, 0.5);
    cr_expect_gt(figure(&f, 1, "offered"), 3.8 * figure(&f, 1, "steps"));
    /* Prompts that take no time take no device; one at 3.6 an hour is 0.001 a second. */
    cr_expect_float_eq(figure(&f, 0, "price_per_million_tokens"),
                       0.001 / figure(&f, 0, "tokens_per_second_and_rank") * 1e6, 1e-6);
    end(&f);
}

/* Every row of the table has a value, or none, under each name; also where no answer ended. */
Test(simulate, rows_of_the_csv_have_as_many_columns_as_its_head)
{
    struct fixture f = begin(FLAT("-20", ""));
    char csv[512];
    snprintf(csv, sizeof csv, "%s/out.csv", f.dir);
    RUN(&f, "--modes", "off,fixed", "--load", "1,8", "--seconds", "0.5", "--warm", "0.1", "--csv", csv);
    char *text = ts_read_file(csv, NULL), *at = text, *save;
    int columns = 0, lines = 0;
    cr_assert_not_null(text);
    cr_expect_null(strstr(text, "nan"), "%s", text);
    for (char *line = strtok_r(at, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++) {
        int n = 1;
        for (const char *c = line; *c; c++)
            n += *c == ',';
        columns = lines ? columns : n;
        cr_expect_eq(n, columns, "%s", line);
    }
    cr_assert_eq(lines, 5);
    free(text);
    end(&f);
}

Test(simulate, drafts_that_are_always_kept_multiply_the_speed)
{
    struct fixture f = begin(FLAT("20", ""));
    RUN(&f, "--modes", "off,fixed,dynamic", "--load", "4", "--fixed-lengths", "--seconds", "40", "--warm", "5");
    for (size_t i = 1; i < 3; i++) {
        cr_expect_float_eq(figure(&f, i, "emitted") / figure(&f, i, "steps"), 5, 0.1);
        cr_expect_float_eq(figure(&f, i, "tokens_per_second_and_rank") / figure(&f, 0, "tokens_per_second_and_rank"), 5,
                           0.3);
        /* Each token is a piece for its reader: five come every 10 ms, at the same time. */
        cr_expect_float_eq(quantile(&f, i, "inter_token_seconds", "mean"), 0.002, 0.0004, "%g",
                           quantile(&f, i, "inter_token_seconds", "mean"));
        cr_expect_lt(quantile(&f, i, "inter_token_seconds", "p50"), 0.0001);
    }
    end(&f);
}

Test(simulate, prompts_take_their_time_and_queue)
{
    struct fixture f = begin(FLAT("-20", ",\"prompt_tokens\":400,\"prefill\":{\"encoder_us\":[[1,1000],[1000,1000000]],"
                                         "\"chunk\":100,\"prompts\":1}"));
    /* 0.4 s of prefill for each prompt, four steps of 100 rows. */
    RUN(&f, "--modes", "off", "--rate", "0.5", "--fixed-lengths", "--requests", "40");
    cr_expect_float_eq(quantile(&f, 0, "first_token_seconds", "p50"), 0.4, 0.02);
    RUN(&f, "--modes", "off", "--rate", "50", "--fixed-lengths", "--requests", "40");
    cr_expect_float_eq(quantile(&f, 0, "first_token_seconds", "p99"), 40 * 0.4, 1);
    cr_expect_float_eq(quantile(&f, 0, "queue_seconds", "p99"), 39 * 0.4, 1);
    RUN(&f, "--modes", "off", "--rate", "50", "--fixed-lengths", "--requests", "40", "--prefill", "4");
    cr_expect_lt(quantile(&f, 0, "first_token_seconds", "p99"), 7, "four ranks are no faster than one");
    end(&f);
}

/* Rows that are replayed take their place in a step like others: of four prompts of 100 tokens two fill a step of 200
 * rows, twice, then the other two. A millisecond a row, so pairs end at 400 and 800 ms. */
Test(simulate, replayed_rows_fill_a_step_like_others)
{
    static const char *const where[] = {",\"one_process\":true,\"share_us\":10000000", ""};
    for (size_t i = 0; i < 2; i++) {
        char more[512];
        snprintf(more, sizeof more,
                 ",\"prompt_tokens\":100%s,\"prefill\":{\"encoder_us\":[[1,1000],[1000,1000000]],"
                 "\"tail_us\":[[1,1000],[1000,1000000]],\"replay\":120,\"chunk\":200,\"prompts\":4}",
                 where[i]);
        char text[1024];
        snprintf(text, sizeof text, FLAT("-20", "%s"), more);
        struct fixture f = begin(text);
        RUN(&f, "--modes", "off", "--load", "4", "--fixed-lengths", "--requests", "4");
        cr_expect_float_eq(quantile(&f, 0, "first_token_seconds", "p50"), 0.4, 0.01, "%zu", i);
        cr_expect_float_eq(quantile(&f, 0, "first_token_seconds", "p99"), 0.8, 0.02, "%zu", i);
        end(&f);
    }
}

/* One process: a stream of 10 ms rounds beside a prompt of 10 layers, 24 ms each. Between two rounds are 5 ms for the
 * prompt. All of a layer in Prefill's own four phases: one phase of 6 ms each time. Four fifths of it in experts: a
 * layer's four phases of 1.2 ms go between two rounds, and its experts beside the next, which takes 29 ms then. */
Test(simulate, experts_of_a_prompt_go_on_beside_rounds)
{
    static const char *const experts[] = {"0", "0.8"};
    static const double longest[] = {0.016, 0.034}, first[] = {0.64, 0.34};
    for (size_t i = 0; i < 2; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 FLAT("-20", ",\"prompt_tokens\":240,\"one_process\":true,\"share_us\":5000,\"prefill\":{"
                             "\"encoder_us\":[[1,1000],[1000,1000000]],\"chunk\":500,\"layers_below\":10,"
                             "\"layers_behind\":10,\"expert_share\":%s,\"expert_parts\":16}"),
                 experts[i]);
        struct fixture f = begin(text);
        char *trace = ts_write_file(f.dir, "trace.jsonl",
                                    "{\"t\":0,\"prompt\":9,\"output\":200,\"block_tokens\":256,\"blocks\":[]}\n"
                                    "{\"t\":0.2,\"prompt\":240,\"output\":1,\"block_tokens\":256,\"blocks\":[]}\n");
        RUN(&f, "--modes", "off", "--trace", trace);
        cr_expect_float_eq(quantile(&f, 0, "first_token_seconds", "p99"), first[i], 0.03, "%zu: %g", i,
                           quantile(&f, 0, "first_token_seconds", "p99"));
        cr_expect_float_eq(quantile(&f, 0, "inter_token_seconds", "p99"), longest[i], 0.0015, "%zu: %g", i,
                           quantile(&f, 0, "inter_token_seconds", "p99"));
        free(trace);
        end(&f);
    }
}

Test(simulate, the_fitted_point_comes_back)
{
    struct fixture f = begin("");
    free(f.profile);
    f.profile = strdup(PROFILE);
    RUN(&f, "--load", "60", "--modes", "fixed,dynamic", "--seconds", "40");
    cr_expect_float_eq(figure(&f, 0, "tokens_per_second_and_rank"), 13730, 137);
    cr_expect_float_eq(figure(&f, 0, "emitted") / figure(&f, 0, "steps"), 3.30, 0.03);
    cr_expect_float_eq(figure(&f, 1, "tokens_per_second_and_rank"), 14466, 145);
    cr_expect_float_eq(figure(&f, 1, "offered") / figure(&f, 1, "steps"), 3.58, 0.06);
    cr_expect_float_eq(figure(&f, 1, "emitted") / figure(&f, 1, "steps"), 3.21, 0.03);
    end(&f);
}

/* A block of 4 with a chance for each draft, and a curve of one's own. */
#define CURVE(BASE, MICROSECONDS, PLAN)                                                                                \
    "{\"name\":\"curve\",\"block\":4,\"plan_us\":" PLAN ",\"noise\":0,\"table_error\":0,\"price_per_device_hour\":1,"  \
    "\"accept\":{\"base\":" BASE                                                                                       \
    ",\"slope\":0,\"spread\":0,\"persist\":0},\"output_tokens\":101,\"plain_us\":" MICROSECONDS                        \
    ",\"full_us\":" MICROSECONDS "}"

static double offered_per_step(const struct fixture *f, size_t i)
{
    return figure(f, i, "offered") / figure(f, i, "steps");
}

/* A millisecond of planning in a round of 10 is paid by those who plan. */
Test(simulate, planning_costs_what_the_profile_says)
{
    struct fixture f = begin(CURVE("-20", "[[1,10000],[4096,10000]]", "1000"));
    RUN(&f, "--modes", "off,fixed,dynamic,early-stop", "--load", "8", "--fixed-lengths", "--seconds", "40", "--warm",
        "5");
    double off = figure(&f, 0, "tokens_per_second_and_rank");
    cr_expect_float_eq(off, 800, 16);
    cr_expect_float_eq(figure(&f, 1, "tokens_per_second_and_rank") / off, 1, 0.01, "a fixed length is not planned");
    for (size_t i = 2; i < 4; i++)
        cr_expect_float_eq(figure(&f, i, "tokens_per_second_and_rank") / off, 10 / 11.0, 0.01);
    end(&f);
}

/* The first draft of a round costs more than it brings, all together are worth it: early stop stays where it is. */
Test(simulate, early_stop_stops_early)
{
    struct fixture f = begin(CURVE("3", "[[4,10000],[5,13000],[20,13100],[4096,60000]]", "0"));
    RUN(&f, "--modes", "dynamic,early-stop", "--load", "4", "--fixed-lengths", "--seconds", "20", "--warm", "5");
    cr_expect_gt(offered_per_step(&f, 0), 3.5, "%g drafts", offered_per_step(&f, 0));
    cr_expect_lt(offered_per_step(&f, 1), 0.2, "%g drafts", offered_per_step(&f, 1));
    end(&f);
}

/* Three drafts are 0.3 % faster than four: too little for a change of plan where one has to be worth 0.5 %. */
Test(simulate, hysteresis_keeps_the_plan)
{
    struct fixture f = begin(CURVE("0", "[[1,9776],[4097,1648176]]", "0"));
    RUN(&f, "--modes", "dynamic,without-hysteresis", "--load", "1", "--fixed-lengths", "--seconds", "40", "--warm",
        "5");
    cr_expect_float_eq(offered_per_step(&f, 0), 4, 0.25);
    cr_expect_float_eq(offered_per_step(&f, 1), 3, 0.25);
    end(&f);
}

Test(simulate, many_ranks_serve_as_many_times_the_load)
{
    struct fixture f = begin(FLAT("0", ",\"network_us\":20"));
    RUN(&f, "--modes", "dynamic", "--load", "3", "--decode", "1,150", "--prefill", "8", "--seconds", "1", "--warm",
        "1");
    double one = figure(&f, 0, "tokens_per_second_and_rank"), many = figure(&f, 1, "tokens_per_second_and_rank");
    cr_expect_float_eq(many / one, 1, 0.15, "%g and %g tokens per second and rank", one, many);
    cr_expect_float_eq(figure(&f, 1, "failed") + figure(&f, 1, "refused"), 0, 0.5);
    end(&f);
}

/* Eight ranks whose steps take 10 ms times exp(0.3 x): alone each has its mean, together all have the slowest, which is
 * 1.42 deviations up. Ranks of another group, and one that is alone, wait for nobody. */
Test(simulate, ranks_in_lockstep_wait_for_the_slowest)
{
    static const char *const lockstep[] = {"false", "true"}, *const ranks[] = {"8", "8/1", "8/4"};
    double speed[2][3];
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++) {
            struct fixture f = begin(FLAT("-20", ""));
            char *text = ts_read_file(f.profile, NULL), *noise = strstr(text, "0,\"table_error\""), all[2048];
            cr_assert_not_null(noise);
            text[strlen(text) - 1] = 0; /* the last brace */
            snprintf(all, sizeof all, "%.*s0.3%s,\"decode\":{\"lockstep\":%s}}", (int)(noise - text), text, noise + 1,
                     lockstep[k]);
            free(text);
            free(f.profile);
            f.profile = ts_write_file(f.dir, "noisy.json", all);
            RUN(&f, "--modes", "off", "--load", "3", "--decode", ranks[i], "--seconds", "20", "--warm", "3");
            speed[k][i] = figure(&f, 0, "tokens_per_second_and_rank");
            end(&f);
        }
    /* The mean of a step is 10.5 ms, of the slowest of 8 it is 15.6 ms, of 4 it is 13.9 ms. */
    cr_expect_float_eq(speed[1][1] / speed[0][1], 1, 0.03, "alone: %g and %g", speed[1][1], speed[0][1]);
    cr_expect_float_eq(speed[0][0] / speed[0][1], 1, 0.03, "without lockstep groups are but a number");
    cr_expect_float_eq(speed[1][0] / speed[0][0], 10.46 / 15.6, 0.06, "%g of %g", speed[1][0], speed[0][0]);
    cr_expect_float_eq(speed[1][2] / speed[0][2], 10.46 / 13.9, 0.06, "%g of %g", speed[1][2], speed[0][2]);
}

/* One budget for all ranks of a group: every rank takes the leader's, so plans come out otherwise than each alone. */
Test(simulate, ranks_of_a_group_may_plan_together)
{
    struct fixture f = begin("");
    free(f.profile);
    f.profile = strdup(PROFILE);
    double offered[2];
    for (int sync = 0; sync < 2; sync++) {
        RUN(&f, "--load", "30", "--modes", "dynamic", "--decode", "6", "--seconds", "1", "--warm", "1",
            sync ? "--group-sync" : "--seed=1");
        offered[sync] = figure(&f, 0, "offered") / figure(&f, 0, "steps");
        cr_expect_float_eq(figure(&f, 0, "failed"), 0, 0.1);
        cr_expect(offered[sync] > 2 && offered[sync] < 5, "%g drafts", offered[sync]);
    }
    cr_expect(fabs(offered[0] - offered[1]) > 1e-6);
    struct ts_result r = ts_run(ts_weft(), "simulate", "--decode", "65", "--group-sync", PROFILE);
    cr_expect_neq(r.status, 0);
    cr_expect_not_null(strstr(r.err, "at most 64"), "%s", r.err);
    ts_result_free(&r);
    end(&f);
}

/* A third of the pages that the sequences want: they are parked and come back, and nobody spins meanwhile, or virtual
 * time would stand still. */
Test(simulate, a_machine_short_of_memory_parks_and_goes_on)
{
    struct fixture f =
        begin(FLAT("0", ",\"prompt_tokens\":300,\"decode\":{\"streams\":16,\"kv_tokens\":2048,\"block_tokens\":64,"
                        "\"context\":1024}"));
    RUN(&f, "--modes", "dynamic", "--load", "12", "--fixed-lengths", "--requests", "60");
    cr_expect_float_eq(figure(&f, 0, "output_tokens"), 60 * 101, 0.1);
    cr_expect_gt(figure(&f, 0, "parked"), 0);
    cr_expect_float_eq(figure(&f, 0, "failed"), 0, 0.1);
    end(&f);
}

Test(simulate, a_seed_gives_the_same_run_and_another_one_another)
{
    struct fixture f = begin(FLAT("0.5", ",\"network_us\":20"));
    char *text[3];
    static const char *const seed[] = {"3", "3", "4"};
    for (int i = 0; i < 3; i++) {
        RUN(&f, "--modes", "dynamic", "--rate", "40", "--decode", "5", "--prefill", "2", "--seconds", "5", "--seed",
            seed[i]);
        text[i] = json_dumps(f.results, JSON_SORT_KEYS);
    }
    cr_expect_str_eq(text[0], text[1]);
    cr_expect_str_neq(text[0], text[2]);
    for (int i = 0; i < 3; i++)
        free(text[i]);
    end(&f);
}

Test(simulate, routing_decides_how_much_is_cached)
{
    struct fixture f = begin(FLAT("0", ",\"prompt_tokens\":1100,\"prefill\":{\"encoder_us\":[[1,100],[1000,100000]]}"));
    double cached[3], first[3];
    static const char *const routing[] = {"load", "prefix", "common"};
    for (int i = 0; i < 3; i++) {
        RUN(&f, "--modes", "off", "--rate", "20", "--requests", "400", "--prefill", "8", "--decode", "4", "--groups",
            "20", "--shared-tokens", "1024", "--routing", routing[i]);
        cached[i] = figure(&f, 0, "cached_tokens") / figure(&f, 0, "prompt_tokens");
        first[i] = quantile(&f, 0, "first_token_seconds", "mean");
    }
    cr_expect_gt(cached[0], 0.2);
    for (int i = 1; i < 3; i++) {
        cr_expect_gt(cached[i], cached[0] + 0.1, "%s: %g of the prompts instead of %g", routing[i], cached[i],
                     cached[0]);
        cr_expect_lt(first[i], first[0], "%s: %g s to the first token instead of %g", routing[i], first[i], first[0]);
    }
    end(&f);
}

Test(simulate, a_recorded_trace_is_replayed)
{
    struct fixture f = begin(FLAT("0", ""));
    char *path =
        ts_write_file(f.dir, "trace.jsonl",
                      "{\"t\":1.5,\"prompt\":600,\"output\":11,\"block_tokens\":256,\"block_bytes\":4096,"
                      "\"blocks\":[\"00000000000000aa\",\"00000000000000bb\"]}\n"
                      "{\"t\":-0.5,\"prompt\":600,\"output\":21,\"block_tokens\":256,\"block_bytes\":4096,"
                      "\"blocks\":[\"00000000000000aa\",\"00000000000000bb\"]}\n"
                      "{\"t\":0,\"prompt\":5,\"output\":1,\"block_tokens\":256,\"block_bytes\":4096,\"blocks\":[]}\n");
    RUN(&f, "--modes", "off", "--trace", path);
    cr_expect_float_eq(figure(&f, 0, "requests"), 3, 0.1);
    cr_expect_float_eq(figure(&f, 0, "output_tokens"), 33, 0.1);
    cr_expect_float_eq(figure(&f, 0, "cached_tokens"), 512, 0.1, "the later one finds the blocks of the earlier one");
    cr_expect_float_eq(figure(&f, 0, "seconds"), 2.1, 0.05, "two seconds until the last, ten rounds of that");
    free(path);
    end(&f);
}

/* What a step of prompts needs: times up to a whole chunk in both halves of the layers, the layers, and the experts. */
static void check_prompts(const char *profile)
{
    json_error_t why;
    json_t *all = json_load_file(profile, 0, &why);
    const json_t *p = json_object_get(all, "prefill");
    cr_assert_not_null(p, "%s", why.text);
    /* As many prompts as are computed at a time, each with all that is replayed, or a chunk of them. */
    json_int_t chunk = json_integer_value(json_object_get(p, "chunk")),
               tails =
                   json_integer_value(json_object_get(p, "prompts")) * json_integer_value(json_object_get(p, "replay"));
    const json_int_t most[] = {chunk, tails < chunk ? tails : chunk};
    static const char *const curve[] = {"encoder_us", "tail_us"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *c = json_object_get(p, curve[i]);
        const json_t *last = json_array_get(c, json_array_size(c) - 1);
        cr_expect_eq(json_integer_value(json_array_get(last, 0)), most[i], "%s", curve[i]);
    }
    cr_expect_eq(json_integer_value(json_object_get(p, "layers_below")), 4);
    cr_expect_eq(json_integer_value(json_object_get(p, "layers_behind")), 4);
    cr_expect_eq(json_integer_value(json_object_get(p, "expert_parts")), 4, "8 experts on 2 shards");
    double share = json_real_value(json_object_get(p, "expert_share"));
    cr_expect(share > 0 && share < 1, "%g", share);
    json_decref(all);
}

/* What it predicts depends on the machine; that a profile comes out, is taken back and predicts every point does not.
 */
Test(simulate, this_machine_is_measured_and_its_server_predicted)
{
    struct fixture f =
        begin("{\"conditions\":{\"prompt_tokens\":32,\"max_tokens\":9,\"load_average_before\":0},\"points\":["
              "{\"loop\":\"closed\",\"concurrency\":2,\"requests\":6,\"output_tokens_per_second\":100,"
              "\"first_token_seconds\":{\"p50\":0.01,\"p99\":0.02,\"mean\":0.0123}},"
              "{\"loop\":\"open\",\"requests_per_second\":5,\"requests\":6,\"output_tokens_per_second\":100}]}");
    char profile[512];
    snprintf(profile, sizeof profile, "%s/here.json", f.dir);
    struct ts_result r = ts_run(ts_weft(), "simulate", "--measure", "samples/tiny", "--threads", "1", "--prompt-tokens",
                                "32", "--output-tokens", "8", "--modes", "fixed", "--against", f.profile, profile);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_expect(strstr(r.out, "requests at a time 2"), "%s", r.out);
    cr_expect(strstr(r.out, "requests per second 5"), "%s", r.out);
    const char *mean = strstr(r.out, "first token mean, ms");
    double measured = 0, predicted = 0;
    cr_assert(mean && sscanf(mean, "first token mean, ms %lf %lf", &measured, &predicted) == 2, "%s", r.out);
    cr_expect_float_eq(measured, 12.3, 0.01);
    cr_expect_gt(predicted, 0);
    ts_result_free(&r);
    check_prompts(profile);
    r = ts_run(ts_weft(), "simulate", "--modes", "fixed,off", "--load", "3", "--requests", "20", profile);
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "simulate", "--against", profile, profile);
    cr_expect_eq(r.status, 2);
    cr_expect(strstr(r.err, "bench serve --json"), "%s", r.err);
    ts_result_free(&r);
    end(&f);
}

/* A file of another model, or of a server that drafted in another way, is not what is predicted. */
Test(simulate, what_was_measured_is_what_is_predicted)
{
    static const struct {
        const char *server, *modes, *says; /* says NULL: is predicted */
    } at[] = {
        {"{}", "fixed2", NULL},
        {"{\"speculation\":\"off\"}", "off", NULL},
        {"{\"speculation\":\"off\"}", "fixed", "its server drafted \"off\", and --modes fixed"},
        {"{\"speculation\":\"fixed: 4 a step, acceptance match\"}", "fixed", NULL},
        {"{\"speculation\":\"fixed: 3 a step, acceptance match\"}", "fixed3", NULL},
        {"{\"speculation\":\"fixed: 3 a step, acceptance match\"}", "fixed", "blocks of 4 is another way"},
        {"{\"speculation\":\"fixed: 4 a step, acceptance match\"}", "dynamic", "--modes dynamic"},
        {"{\"speculation\":\"dynamic: up to 4 a step, budget lagged, acceptance match\"}", "dynamic", NULL},
        {"{\"speculation\":\"dynamic: up to 4 a step, budget early_stop, acceptance match\"}", "dynamic", "early_stop"},
        {"{\"speculation\":\"dynamic: up to 4 a step, budget early_stop, acceptance match\"}", "early-stop", NULL},
        {"{\"speculation\":\"dynamic: up to 5 a step, budget lagged, acceptance match\"}", "dynamic", "blocks of 4"},
        {"{\"model_revision\":\"00000000000000aa\"}", "fixed", NULL},
        {"{\"model_revision\":\"00000000000000ab\"}", "fixed", "is of the model of revision 00000000000000ab"},
    };
    struct fixture f = begin(FLAT("0", ",\"model_revision\":\"00000000000000aa\""));
    char text[600];
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        snprintf(
            text, sizeof text,
            "{\"conditions\":{\"server\":%s,\"prompt_tokens\":32,\"max_tokens\":9},\"points\":[{\"loop\":\"closed\","
            "\"concurrency\":2,\"requests\":6,\"output_tokens_per_second\":100}]}",
            at[i].server);
        char *file = ts_write_file(f.dir, "served.json", text);
        struct ts_result r = ts_run(ts_weft(), "simulate", "--modes", at[i].modes, "--against", file, f.profile);
        cr_expect_eq(r.status, at[i].says ? 2 : 0, "case %zu: %s", i, r.err);
        cr_expect(!at[i].says || strstr(r.err, at[i].says), "case %zu: %s", i, r.err);
        cr_expect(!at[i].says || !*r.out, "case %zu: %s", i, r.out);
        ts_result_free(&r);
        free(file);
    }
    end(&f);
}

Test(simulate, bad_profiles_are_refused)
{
    static const char *const bad[][2] = {
        {"{", "expected"},
        {"[]", "must be an object"},
        {"{\"block\":5}", "plan_us must be a number"},
        {"{\"block\":99}", "block must be 1 to"},
        {"{\"blok\":5}", "blok is not a member"},
        {FLAT("30", ""), "accept.base must be a number"},
        {FLAT("0", ",\"decode\":{\"block_tokens\":17}"), "must be even"},
        {FLAT("0", ",\"decode\":{\"kv_tokens\":1024,\"block_tokens\":1024}"), "2 to"},
        {FLAT("0", ",\"prefill\":{\"encoder_us\":[[1,2],[2,\"x\"]]}"), "prefill.encoder_us[1]"},
        {FLAT("0", ",\"exchange_us\":[[1,2]]"), "at least two points"},
        {FLAT("0", ",\"exchange_us\":[[-4,2],[1,1]]"), "exchange_us[0]"},
        {FLAT("0", ",\"one_process\":3"), "true or false"},
        {FLAT("0", ",\"draft_us\":[[1,0.01],[2,2]]"), "draft_us[0]: the time is less than a machine can take"},
        {FLAT("0", ",\"between_us\":[{\"drafts\":2,\"us\":[[3,10],[6,10000]]}]"),
         "between_us[0]: the time is a fraction"},
        {FLAT("0", ",\"prefill\":{\"encoder_us\":[[1,1],[2,2]],\"group\":{\"ranks\":8}}"), "weights_us must be"},
    };
    char *dir = ts_temp_dir();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *path = ts_write_file(dir, "p.json", bad[i][0]);
        struct ts_result r = ts_run(ts_weft(), "simulate", path);
        cr_expect_eq(r.status, 1, "%s", bad[i][0]);
        cr_expect(strstr(r.err, bad[i][1]), "%s: %s", bad[i][0], r.err);
        ts_result_free(&r);
        free(path);
    }
    ts_remove_dir(dir);
    free(dir);
}

Test(simulate, bad_command_lines_and_traces_are_refused)
{
    static const char *const option[][3] = {
        {"--load", "0", "--load 0"},         {"--modes", "fixed9", "fixed9"}, {"--modes", "quick", "quick"},
        {"--decode", "1.5", "--decode 1.5"}, {"--rate", "-1", "--rate -1"},   {"--load", "1,2,x", "--load 1,2,x"},
        {"--routing", "other", "--routing"},
    };
    static const char *const trace[][2] = {
        {"", "no request"},
        {"{\"t\":0}\n", "prompt and output"},
        {"nonsense\n", "JSON object"},
        {"{\"t\":0,\"prompt\":100,\"output\":1,\"block_tokens\":256,\"blocks\":[\"00000000000000aa\"]}\n",
         "full blocks"},
        {"{\"t\":0,\"prompt\":300,\"output\":1,\"block_tokens\":256,\"blocks\":[\"xx\"]}\n", "hexadecimal"},
    };
    for (size_t i = 0; i < sizeof option / sizeof *option; i++) {
        struct ts_result r = ts_run(ts_weft(), "simulate", option[i][0], option[i][1], PROFILE);
        cr_expect_eq(r.status, 2, "%s %s", option[i][0], option[i][1]);
        cr_expect(strstr(r.err, option[i][2]), "%s", r.err);
        ts_result_free(&r);
    }
    char *dir = ts_temp_dir();
    for (size_t i = 0; i < sizeof trace / sizeof *trace; i++) {
        char *path = ts_write_file(dir, "t.jsonl", trace[i][0]);
        struct ts_result r = ts_run(ts_weft(), "simulate", "--trace", path, PROFILE);
        cr_expect_eq(r.status, 1, "%s", trace[i][0]);
        cr_expect(strstr(r.err, trace[i][1]), "%s", r.err);
        ts_result_free(&r);
        free(path);
    }
    ts_remove_dir(dir);
    free(dir);
}
