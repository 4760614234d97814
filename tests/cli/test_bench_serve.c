/* weft bench serve: both loops against a server of its own, and its files. */
#include "tests/harness.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/process.h"

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
    cr_expect_eq(json_array_size(points), 3);
    size_t i;
    json_array_foreach (points, i, p) {
        cr_expect_str_eq(json_string_value(json_object_get(p, "loop")), i < 2 ? "closed" : "open");
        cr_expect_eq(json_integer_value(json_object_get(p, "whole")), 5);
        cr_expect_eq(json_integer_value(json_object_get(p, "output_tokens")), 30, "five times six tokens");
        cr_expect_eq(json_integer_value(json_object_get(p, "prompt_tokens")), 200, "five times forty");
        static const char *const columns[] = {"first_token", "inter_token",    "end_to_end", "queue",
                                              "prefill",     "first_delivery", "delivery"};
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
