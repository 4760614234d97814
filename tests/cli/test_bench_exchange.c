/* weft bench exchange: that the forms which it compares are what it says they are. Its figures are nobody's business
 * here. */
#include "tests/harness.h"

#include <jansson.h>
#include <unistd.h>

#include "tests/support/process.h"

static json_t *run_exchange(const char *const *more)
{
    const char *argv[16] = {ts_weft(), "bench", "exchange", "-r", "4", "-n", "2", "--json"};
    for (int i = 0; more[i]; i++)
        argv[8 + i] = more[i];
    struct ts_result r = ts_run_argv(NULL, argv);
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    json_t *j = json_loads(r.out, 0, NULL);
    cr_assert_not_null(j, "%s", r.out);
    ts_result_free(&r);
    return j;
}

static double number(const json_t *j, size_t line, const char *key)
{
    const json_t *v = json_object_get(json_array_get(j, line), key);
    cr_assert(json_is_number(v), "%s of line %d", key, (int)line);
    return json_number_value(v);
}

/* Messages and slots, in this order; all dispatches of each line go as it says. */
static void expect_forms(const json_t *j, const char *over)
{
    cr_assert_eq(json_array_size(j), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *line = json_array_get(j, i);
        cr_expect_str_eq(json_string_value(json_object_get(line, "over")), over);
        cr_expect_str_eq(json_string_value(json_object_get(line, "dispatches")), i ? "slots" : "messages");
        cr_expect_eq(number(j, i, "in_slots"), (double)i);
        cr_expect_eq(number(j, i, "begun_again"), 0.0);
        cr_expect_gt(number(j, i, "compute_ms"), 0.0);
        cr_expect_gt(number(j, i, "one_exchange_us"), 0.0);
        cr_expect_gt(number(j, i, "alternating_ms"), number(j, i, "overlapped_compute_ms"));
    }
}

Test(bench_exchange, both_forms_between_nodes)
{
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    json_t *j = run_exchange((const char *const[]){"--over", "tcp", NULL});
    expect_forms(j, "tcp");
    json_decref(j);
}

/* Of its two delays an exchange waits for each; in this process there are no slots. */
Test(bench_exchange, behind_a_link)
{
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    json_t *j = run_exchange((const char *const[]){"--delay", "2000", NULL});
    cr_assert_eq(json_array_size(j), 1);
    cr_expect_geq(number(j, 0, "exchange_ms"), 2 * 2 * 2.0, "two micro-batches, at least one layer each");
    json_decref(j);
}

/* In the guest: transport/test_rdma. */
Test(bench_exchange, over_rdma_or_an_error)
{
    struct ts_result r = ts_run(ts_weft(), "bench", "exchange", "--over", "rdma", "--device", "none_99");
    cr_expect_eq(r.status, 1);
    cr_expect(strstr(r.err, "rdma"), "%s", r.err);
    cr_expect_str_empty(r.out);
    ts_result_free(&r);
}
