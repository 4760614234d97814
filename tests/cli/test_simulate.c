/* weft simulate: the published point that the shipped profile was fitted to, and profiles that make no sense. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/process.h"

#define PROFILE "samples/profiles/ep64-dp64.json"

static double column(const char *out, const char *line, int skip)
{
    const char *at = strstr(out, line);
    cr_assert_not_null(at, "%s", out);
    at += strlen(line);
    for (char *end; skip--; at = end + strspn(end, " %"))
        strtod(at, &end);
    return strtod(at, NULL);
}

Test(simulate, the_fitted_point_comes_back)
{
    struct ts_result r = ts_run(ts_weft(), "simulate", "--load", "60", PROFILE);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_expect_float_eq(column(r.out, "60  fixed", 0), 13730, 137);
    cr_expect_float_eq(column(r.out, "60  fixed", 3), 3.30, 0.03);
    cr_expect_float_eq(column(r.out, "60  dynamic", 0), 14466, 290);
    cr_expect_float_eq(column(r.out, "60  dynamic", 2), 3.58, 0.2);
    cr_expect_float_eq(column(r.out, "60  dynamic", 3), 3.21, 0.03);
    struct ts_result again = ts_run(ts_weft(), "simulate", "--load", "60", PROFILE);
    cr_expect_str_eq(again.out, r.out, "two runs differ");
    ts_result_free(&again);
    ts_result_free(&r);
}

Test(simulate, bad_profiles_are_refused)
{
    static const char *const bad[][2] = {
        {"{", "expected"},
        {"{\"block\":5}", "plan_us must be a number"},
        {"{\"block\":99,\"plan_us\":0,\"noise\":0,\"table_error\":0,\"price_per_device_hour\":0,"
         "\"accept\":{\"base\":0,\"slope\":0,\"spread\":0,\"persist\":0},\"output_tokens\":1}",
         "block must be 1 to"},
        {"{\"block\":5,\"plan_us\":0,\"noise\":0,\"table_error\":0,\"price_per_device_hour\":0,"
         "\"accept\":{\"base\":0,\"slope\":0,\"spread\":0,\"persist\":0},\"output_tokens\":1,\"plain_us\":[[1,-2]]}",
         "at least two points"},
    };
    char *dir = ts_temp_dir();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *path = ts_write_file(dir, "p.json", bad[i][0]);
        struct ts_result r = ts_run(ts_weft(), "simulate", path);
        cr_expect_eq(r.status, 1, "%s", bad[i][0]);
        cr_expect(strstr(r.err, bad[i][1]), "%s", r.err);
        ts_result_free(&r);
        free(path);
    }
    ts_remove_dir(dir);
    free(dir);
    struct ts_result r = ts_run(ts_weft(), "simulate", "--load", "0", PROFILE);
    cr_expect_eq(r.status, 2);
    ts_result_free(&r);
}
