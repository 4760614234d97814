/* weft calibrate: collecting blocks, fitting, its files and refusals. */
#include "tests/harness.h"

#include <unistd.h>

#include "model/calibration.h"
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
        {{"-m", "samples/tiny", "--text", "a", "--log", "b"}, "either", 2},
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

/* The calibration that is shipped belongs to the model that is shipped. */
Test(calibrate, the_sample_models_own)
{
    need_model();
    struct ts_result r = ts_run(ts_weft(), "model", "info", "samples/tiny", "--json");
    struct mdl_calibration c;
    struct cfg_error err;
    cr_assert_eq(r.status, 0, "%s", r.err);
    const char *at = strstr(r.out, "\"revision\"");
    cr_assert_not_null(at, "%s", r.out);
    uint64_t revision = strtoull(strpbrk(at + 11, "0123456789abcdef"), NULL, 16);
    cr_expect_eq(mdl_calibration_read("samples/tiny/" MDL_CALIBRATION_FILE, revision, 5, &c, &err), 0, "%s", err.msg);
    for (int m = 0; m < MDL_CHOICES; m++)
        cr_expect(c.fitted[m], "%s", mdl_choice_names[m]);
    ts_result_free(&r);
}
