/* The real program: commands, help, mistakes on the command line, exit statuses. */
#include "tests/harness.h"
#include "tests/support/process.h"

#include <string.h>

#define EXPECT_RUN(r, want_status)                                                                                     \
    cr_expect_eq((r).status, want_status, "exit status %d\nout: %s\nerr: %s", (r).status, (r).out, (r).err)

Test(cli, help_lists_every_command_and_each_explains_itself)
{
    struct ts_result all = ts_run(ts_weft(), "--help");
    EXPECT_RUN(all, 0);
    cr_expect_str_eq(all.err, "");
    const char *p = strstr(all.out, "commands:\n");
    cr_assert_not_null(p, "%s", all.out);
    int commands = 0;
    for (p = strchr(p, '\n') + 1; strncmp(p, "  ", 2) == 0; p = strchr(p, '\n') + 1, commands++) {
        char name[64] = "";
        cr_assert_eq(sscanf(p, "%63s", name), 1);
        if (strcmp(name, "help") == 0)
            continue;
        struct ts_result one = ts_run(ts_weft(), name, "--help");
        EXPECT_RUN(one, 0);
        char want[128];
        snprintf(want, sizeof want, "usage: weft %s", name);
        cr_expect_eq(strncmp(one.out, want, strlen(want)), 0, "weft %s --help prints:\n%s", name, one.out);
        struct ts_result same = ts_run(ts_weft(), "help", name);
        cr_expect_str_eq(one.out, same.out);
        ts_result_free(&one);
        ts_result_free(&same);
    }
    cr_expect_ge(commands, 3);
    ts_result_free(&all);
}

Test(cli, version)
{
    struct ts_result a = ts_run(ts_weft(), "--version"), b = ts_run(ts_weft(), "version");
    EXPECT_RUN(a, 0);
    cr_expect_eq(strncmp(a.out, "weft ", 5), 0);
    /* The build id is that of the program asked, not of whoever asks. */
    const char *build = strstr(a.out, ", build ");
    cr_expect(build && strspn(build + 8, "0123456789abcdef") == 40 && !strcmp(build + 48, "\n"), "%s", a.out);
    cr_expect_str_eq(a.out, b.out);
    ts_result_free(&a);
    ts_result_free(&b);
}

static void expect_usage(struct ts_result r, const char *want)
{
    EXPECT_RUN(r, 2);
    cr_expect_str_eq(r.out, "");
    cr_expect(strstr(r.err, want), "should say: %s\nsaid: %s", want, r.err);
    ts_result_free(&r);
}

Test(cli, mistakes_end_with_status_2_and_a_pointer_to_help)
{
    expect_usage(ts_run(ts_weft()), "usage: weft COMMAND");
    expect_usage(ts_run(ts_weft(), "confgi"), "no command \"confgi\"; did you mean \"config\"? `weft --help`");
    expect_usage(ts_run(ts_weft(), "nonsense"), "no command \"nonsense\"; `weft --help` lists all");
    expect_usage(ts_run(ts_weft(), "help", "confgi"), "did you mean \"config\"?");
    expect_usage(ts_run(ts_weft(), "--frobnicate"), "unknown option \"--frobnicate\" before the command");
    expect_usage(ts_run(ts_weft(), "config", "--chekc", "x"), "did you mean \"--check\"? `weft config --help`");
    expect_usage(ts_run(ts_weft(), "config", "--chekc=x"), "did you mean \"--check\"?");
    expect_usage(ts_run(ts_weft(), "config", "-x"), "unknown option \"-x\"; `weft config --help`");
    expect_usage(ts_run(ts_weft(), "config", "--check"), "--check needs a value (FILE)");
    expect_usage(ts_run(ts_weft(), "config", "-c"), "--check needs a value (FILE)");
    expect_usage(ts_run(ts_weft(), "config", "--explain=3"), "--explain takes no value");
    expect_usage(ts_run(ts_weft(), "config"), "give one of --check, --dump and --explain");
    expect_usage(ts_run(ts_weft(), "config", "--check", "a", "b"), "KEY and --markdown go with --explain");
    expect_usage(ts_run(ts_weft(), "config", "--explain", "a", "b"), "unexpected argument \"b\"");
    expect_usage(ts_run(ts_weft(), "config", "--explain", "no.such.key"), "there is no key \"no.such.key\"");
    expect_usage(ts_run(ts_weft(), "version", "now"), "unexpected argument \"now\"");
}

Test(cli, config_check_reports_everything_with_file_and_line)
{
    char *dir = ts_temp_dir();
    cr_assert_not_null(dir);
    char *file = ts_write_file(dir, "bad.conf", "compute = {\n  thraeds = 4;\n  prefill_chunk = 0;\n};\nx = 1;\n");
    struct ts_result r = ts_run(ts_weft(), "config", "--check", file);
    EXPECT_RUN(r, 2);
    cr_expect_str_eq(r.out, "");
    char want[2048];
    snprintf(want, sizeof want, "%s:2: unknown key compute.thraeds. Did you mean \"threads\"?", file);
    cr_expect(strstr(r.err, want), "%s", r.err);
    snprintf(want, sizeof want, "%s:3: compute.prefill_chunk = 0 is out of range (1 to 65536).", file);
    cr_expect(strstr(r.err, want), "%s", r.err);
    snprintf(want, sizeof want, "%s:5: unknown key x.", file);
    cr_expect(strstr(r.err, want), "%s", r.err);
    ts_result_free(&r);
    free(file);
    ts_remove_dir(dir);
    free(dir);
}

Test(cli, config_check_dump_and_explain_succeed)
{
    struct ts_result r = ts_run(ts_weft(), "config", "--check", "config/single.conf");
    EXPECT_RUN(r, 0);
    cr_expect_str_eq(r.out, "config/single.conf: no problems\n");
    ts_result_free(&r);
    r = ts_run(ts_weft(), "config", "--dump", "config/single.conf");
    EXPECT_RUN(r, 0);
    cr_expect(strstr(r.out, "    max_batch_rows = 512;\n"), "%s", r.out);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "config", "--explain", "compute.cpu");
    EXPECT_RUN(r, 0);
    cr_expect(strstr(r.out, "one of auto, scalar, avx2, avx512"), "%s", r.out);
    ts_result_free(&r);
}

Test(cli, output_that_cannot_be_written_is_a_failure)
{
    struct ts_result r = ts_run("sh", "-c", "exec \"$0\" config --explain > /dev/full", ts_weft());
    EXPECT_RUN(r, 1);
    cr_expect(strstr(r.err, "cannot write to standard output"), "%s", r.err);
    ts_result_free(&r);
}
