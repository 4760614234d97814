/* Files that commands write: whole or as they were, through links and pipes too. */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/output.h"
#include "tests/support/process.h"

static char *dir, path[4200];
static struct cfg_error err;

static void set_up(void)
{
    dir = ts_temp_dir();
    snprintf(path, sizeof path, "%s/out", dir);
}

static void tear_down(void)
{
    ts_remove_dir(dir);
    free(dir);
}

TestSuite(output, .init = set_up, .fini = tear_down);

static int entries(void)
{
    struct ts_result r = ts_run("ls", "-A", dir);
    int n = 0;
    for (const char *c = r.out; *c; c++)
        n += *c == '\n';
    ts_result_free(&r);
    return n;
}

static void expect_text(const char *want)
{
    char *text = ts_read_file(path, NULL);
    cr_assert_not_null(text);
    cr_expect_str_eq(text, want);
    free(text);
}

Test(output, is_there_when_it_is_whole)
{
    struct cli_output o;
    struct stat st;
    free(ts_write_file(dir, "out", "before"));
    cr_assert_eq(chmod(path, 0640), 0);
    cr_assert_eq(cli_output_begin(&o, path, &err), 0, "%s", err.msg);
    fputs("half", o.to);
    fflush(o.to);
    expect_text("before");
    cr_expect_eq(cli_output_end(&o, -EIO, &err), -EIO, "the caller's status comes back");
    expect_text("before");
    cr_assert_eq(cli_output_begin(&o, path, &err), 0);
    fputs("whole", o.to);
    cr_expect_eq(cli_output_end(&o, 0, &err), 0);
    expect_text("whole");
    cr_expect(stat(path, &st) == 0 && (st.st_mode & 07777) == 0640, "the mode of what was there");
    cr_expect_eq(entries(), 1, "nothing is left beside it");
}

Test(output, a_new_file_has_the_usual_mode)
{
    struct stat st;
    mode_t mask = umask(022);
    cr_assert_eq(cli_output_json(path, json_pack("[i]", 7), JSON_COMPACT, &err), 0, "%s", err.msg);
    umask(mask);
    expect_text("[7]");
    cr_expect(stat(path, &st) == 0 && (st.st_mode & 07777) == 0644);
    cr_expect_eq(cli_output_json(path, NULL, 0, &err), -ENOMEM);
    expect_text("[7]");
}

Test(output, a_link_stays_one)
{
    char link[4200];
    struct stat st;
    struct cli_output o;
    snprintf(link, sizeof link, "%s/link", dir);
    free(ts_write_file(dir, "out", "before"));
    cr_assert_eq(symlink("out", link), 0);
    cr_assert_eq(cli_output_begin(&o, link, &err), 0);
    fputs("new", o.to);
    cr_expect_eq(cli_output_end(&o, 0, &err), 0);
    expect_text("new");
    cr_expect(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
}

Test(output, a_pipe_is_written_as_it_is)
{
    struct cli_output o;
    char got[8] = "";
    cr_assert_eq(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDWR | O_NONBLOCK);
    cr_expect_eq(cli_output_check(path, &err), 0, "%s", err.msg);
    cr_assert_eq(cli_output_begin(&o, path, &err), 0, "%s", err.msg);
    fputs("text", o.to);
    cr_expect_eq(cli_output_end(&o, 0, &err), 0);
    cr_expect(read(fd, got, sizeof got) == 4 && !memcmp(got, "text", 4));
    close(fd);
}

Test(output, a_full_disk_is_told)
{
    struct cli_output o;
    if (access("/dev/full", W_OK))
        cr_skip_test("needs /dev/full");
    cr_assert_eq(cli_output_begin(&o, "/dev/full", &err), 0, "%s", err.msg);
    fputs("text", o.to);
    cr_expect_lt(cli_output_end(&o, 0, &err), 0);
    cr_expect_not_null(strstr(err.msg, "/dev/full cannot be written"), "%s", err.msg);
}

/* A measurement that fails leaves the file of the last one; one that cannot be kept is not begun. */
Test(output, of_a_command)
{
    char bad[4200];
    snprintf(bad, sizeof bad, "%s/none/out", dir);
    free(ts_write_file(dir, "out", "before"));
    static const char *const bench[] = {"decode", "prefill", "serve"};
    for (int i = 0; i < 3; i++) {
        struct ts_result r = ts_run(ts_weft(), "bench", bench[i], "-m", "/nowhere", "--json", path);
        cr_expect(r.status == 1 && strstr(r.err, "/nowhere"), "%s: %d %s", bench[i], r.status, r.err);
        ts_result_free(&r);
        expect_text("before");
        static const char *const option[] = {"--json", "--csv", "--table"};
        for (int k = 0; k < (i == 0 ? 3 : 2); k++) {
            r = ts_run(ts_weft(), "bench", bench[i], "-m", "/nowhere", option[k], bad);
            cr_expect(r.status == 1 && strstr(r.err, option[k]) && strstr(r.err, "none/out cannot be written"),
                      "%s: %d %s", bench[i], r.status, r.err);
            ts_result_free(&r);
        }
    }
    struct ts_result r = ts_run(ts_weft(), "calibrate", "-m", "/nowhere", "--text", "README.md", "--out", bad);
    cr_expect(r.status == 1 && strstr(r.err, "--out") && strstr(r.err, "cannot be written"), "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "simulate", "--measure", "/nowhere", bad);
    cr_expect(r.status == 1 && strstr(r.err, "none/out cannot be written"), "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "bench", "serve", "--from", "tests/fixtures/bench/serve-recorded.json", "--json", path,
               "--csv", path);
    cr_expect(r.status == 2 && strstr(r.err, "--json and --csv are one file"), "%s", r.err);
    ts_result_free(&r);
    expect_text("before");
    cr_expect_eq(entries(), 1);
}
