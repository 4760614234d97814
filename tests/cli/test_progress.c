/* The progress display, with a clock of the test's own. */
#include "tests/harness.h"
#include "tests/support/process.h"

#include <fcntl.h>
#include <pty.h>
#include <string.h>
#include <unistd.h>

#include "cli/progress.h"

static double fake_time;

static double fake_now(void)
{
    return fake_time;
}

static struct cli_progress begin(FILE *f, double total)
{
    struct cli_progress p;
    cli_progress_start(&p, "reading", "tokens", total);
    p.out = f;
    p.now = fake_now;
    p.start = fake_time = 100;
    return p;
}

Test(progress, nothing_within_the_first_second)
{
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    struct cli_progress p = begin(f, 10);
    fake_time = 100.9;
    cli_progress_update(&p, 9);
    cli_progress_end(&p);
    fclose(f);
    cr_expect_str_eq(out, "");
    free(out);
}

Test(progress, shows_rate_and_time_left_and_clears_the_line)
{
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    struct cli_progress p = begin(f, 1000);
    fake_time = 102;
    cli_progress_update(&p, 40);
    fake_time = 102.05;
    cli_progress_update(&p, 41);
    fake_time = 102.5;
    cli_progress_update(&p, 50);
    cli_progress_end(&p);
    fclose(f);
    cr_expect_str_eq(out, "\r\033[Kreading: 40 of 1000 tokens (4 %), 20/s, 48 s left"
                          "\r\033[Kreading: 50 of 1000 tokens (5 %), 20/s, 48 s left\r\033[K");
    free(out);
}

Test(progress, an_unknown_total_shows_the_rate_alone)
{
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    struct cli_progress p = begin(f, 0);
    fake_time = 104;
    cli_progress_update(&p, 1);
    fclose(f);
    cr_expect_str_eq(out, "\r\033[Kreading: 1 tokens, 0.25/s");
    free(out);
}

Test(progress, long_times_are_readable)
{
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    struct cli_progress p = begin(f, 1000);
    fake_time = 110;
    cli_progress_update(&p, 100);
    fake_time = 1100;
    cli_progress_update(&p, 100);
    fclose(f);
    cr_expect(strstr(out, "1 min 30 s left"), "%s", out);
    cr_expect(strstr(out, "2 h 30 min left"), "%s", out);
    free(out);
}

/* Makes fd standard error and returns whether a display would be drawn. */
static bool draws_on(int fd)
{
    struct cli_progress p;
    int saved = dup(STDERR_FILENO);
    cr_assert_ge(saved, 0);
    fflush(stderr);
    dup2(fd, STDERR_FILENO);
    cli_progress_start(&p, "reading", "tokens", 0);
    dup2(saved, STDERR_FILENO);
    close(saved);
    return p.out != NULL;
}

Test(progress, only_a_terminal_gets_a_display)
{
    int master, slave, null = open("/dev/null", O_WRONLY);
    cr_assert_ge(null, 0);
    setenv("TERM", "xterm", 1);
    cr_expect_not(draws_on(null));
    close(null);
    if (openpty(&master, &slave, NULL, NULL, NULL) != 0)
        cr_skip_test("no pseudo terminal here");
    cr_expect(draws_on(slave));
    setenv("TERM", "dumb", 1);
    cr_expect_not(draws_on(slave));
    close(master);
    close(slave);
}
