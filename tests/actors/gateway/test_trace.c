/* The request trace: whole lines or none, also when its disk is full, slow or hangs, and never at the worker's cost. */
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "actors/gateway/trace.h"
#include "tests/support/process.h"

enum { TOKENS = 16, BYTES = 4096, PATIENCE_S = 30 };

static char *folder, path[4200], log_path[4200];
static struct act_log *lines_log;

static void init(void)
{
    struct cfg_error err;
    folder = ts_temp_dir();
    snprintf(path, sizeof path, "%s/trace", folder);
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    const struct act_log_config c = {.path = log_path, .level = ACT_LOG_INFO, .direct = true};
    cr_assert_eq(act_log_open(&c, &lines_log, &err), 0, "%s", err.msg);
}

static void fini(void)
{
    act_log_close(lines_log);
    ts_remove_dir(folder);
    free(folder);
}

TestSuite(trace, .init = init, .fini = fini, .timeout = 120);

static struct gw_trace *open_trace(const char *at)
{
    struct cfg_error err;
    struct gw_trace *t;
    cr_assert_eq(gw_trace_open(at, TOKENS, BYTES, lines_log, &t, &err), 0, "%s", err.msg);
    return t;
}

/* One request with so many full blocks. */
static void add(struct gw_trace *t, int number, int blocks)
{
    struct kv_key *chain = calloc((size_t)blocks + 1, sizeof *chain);
    cr_assert_not_null(chain);
    for (int i = 1; i <= blocks; i++)
        memcpy(&chain[i], &i, sizeof i);
    gw_trace_add(t, 1000000000 + number, blocks * TOKENS + 1, number, chain, blocks + 1);
    free(chain);
}

static char *file_text(const char *at)
{
    FILE *f = fopen(at, "re");
    char *text = NULL;
    size_t len = 0;
    cr_assert_not_null(f, "%s", at);
    cr_assert_ge(getdelim(&text, &len, 0, f), 0, "%s is empty", at);
    fclose(f);
    return text;
}

/* Each line is an object; the requests that they are of, in order. */
static int numbers(const char *at, int *out, int most)
{
    char *text = file_text(at), *save = NULL;
    int n = 0;
    cr_assert_eq(text[strlen(text) - 1], '\n', "the last line is whole");
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *j = json_loads(line, 0, NULL);
        cr_assert_not_null(j, "no JSON: %.80s", line);
        cr_assert_eq(json_integer_value(json_object_get(j, "block_tokens")), TOKENS);
        cr_assert_eq(json_integer_value(json_object_get(j, "block_bytes")), BYTES);
        cr_assert_eq((json_int_t)json_array_size(json_object_get(j, "blocks")),
                     (json_integer_value(json_object_get(j, "prompt")) - 1) / TOKENS);
        if (n < most)
            out[n] = (int)json_integer_value(json_object_get(j, "output"));
        n++;
        json_decref(j);
    }
    free(text);
    return n;
}

static int times_in(const char *at, const char *what)
{
    char *text = file_text(at);
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++)
        n++;
    free(text);
    return n;
}

static void wait_lost(struct gw_trace *t, uint64_t lost)
{
    for (int i = 0; i < PATIENCE_S * 1000 && gw_trace_lost(t) < lost; i++)
        usleep(1000);
    cr_assert_eq(gw_trace_lost(t), lost);
}

Test(trace, lines_go_on_in_another_file)
{
    struct gw_trace *t = open_trace(path);
    struct cfg_error err;
    char old[4300];
    int got[64];
    for (int i = 0; i < 20; i++)
        add(t, i, i * 7);
    snprintf(old, sizeof old, "%s.1", path);
    cr_assert_eq(rename(path, old), 0);
    cr_assert_eq(gw_trace_reopen(t, &err), 0);
    for (int i = 20; i < 50; i++)
        add(t, i, 3);
    gw_trace_free(t);
    cr_assert_eq(numbers(old, got, 64), 20);
    cr_assert_eq(numbers(path, got + 20, 44), 30);
    for (int i = 0; i < 50; i++)
        cr_assert_eq(got[i], i);
    t = open_trace(path);
    add(t, 50, 1);
    gw_trace_free(t);
    cr_assert_eq(numbers(path, got, 64), 31, "a file that is there is gone on with");
}

/* A limit of the size of files stands for a disk that is full in the middle of a line. */
Test(trace, a_full_disk_leaves_no_half_lines)
{
    enum { LARGE = 2000 }; /* blocks of a line of 40 KB */
    struct rlimit had, low;
    int got[8];
    struct gw_trace *t = open_trace(path);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &had), 0);
    low = had;
    low.rlim_cur = 64 << 10;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
    add(t, 0, LARGE);
    for (int i = 1; i < 5; i++)
        add(t, i, LARGE);
    wait_lost(t, 4);
    add(t, 5, 10); /* there is room for a short one */
    for (int i = 0; i < PATIENCE_S * 1000 && !times_in(log_path, "trace_goes_on"); i++)
        usleep(1000);
    add(t, 6, LARGE);
    wait_lost(t, 5);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &had), 0);
    add(t, 7, LARGE);
    gw_trace_free(t);
    signal(SIGXFSZ, before);
    cr_assert_eq(numbers(path, got, 8), 3);
    cr_assert(got[0] == 0 && got[1] == 5 && got[2] == 7);
    cr_assert_eq(times_in(log_path, "trace_lines_lost reason=file_too_big"), 2, "once per episode");
    cr_assert_eq(times_in(log_path, "trace_goes_on"), 2);
}

Test(trace, a_device_that_takes_nothing_costs_the_lines)
{
    struct gw_trace *t = open_trace("/dev/full");
    for (int i = 0; i < 100; i++)
        add(t, i, 5);
    wait_lost(t, 100);
    gw_trace_free(t);
    cr_assert_eq(times_in(log_path, "trace_lines_lost reason=no_space"), 1);
    cr_assert_eq(gw_trace_lost(NULL), 0u);
    gw_trace_add(NULL, 0, 0, 0, NULL, 0);
    gw_trace_free(NULL);
}

/* A pipe that nobody reads stands for a file system that hangs. */
Test(trace, a_file_that_hangs_holds_up_nobody)
{
    enum { LARGE = 2000, LINES = 150 }; /* 6 MB */
    cr_assert_eq(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    cr_assert_ge(reader, 0);
    struct gw_trace *t = open_trace(path);
    for (int i = 0; i < LINES; i++)
        add(t, i, LARGE); /* ends, so it does not wait for the pipe */
    cr_assert_gt(gw_trace_lost(t), 0u, "what is held is bounded");
    cr_assert_lt(gw_trace_lost(t), (uint64_t)LINES);
    gw_trace_free(t); /* and so does this */
    cr_assert_eq(times_in(log_path, "trace_lines_lost reason=too_slow"), 1);
    cr_assert_eq(fcntl(reader, F_SETFL, 0), 0);
    size_t lines = 0;
    char some[4096], last = 0;
    for (ssize_t n; (n = read(reader, some, sizeof some)) > 0; last = some[n - 1])
        for (ssize_t i = 0; i < n; i++)
            lines += some[i] == '\n';
    close(reader);
    cr_assert_gt(lines, 0u);
    cr_assert_eq(last, '\n');
}

Test(trace, what_cannot_be_opened_is_said)
{
    struct cfg_error err;
    struct gw_trace *t;
    cr_assert_eq(gw_trace_open(folder, TOKENS, BYTES, NULL, &t, &err), -EISDIR);
    cr_assert_not_null(strstr(err.msg, "log.trace"), "%s", err.msg);
    cr_assert_null(t);
    t = open_trace(path);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert_eq(gw_trace_reopen(t, &err), -EISDIR);
    add(t, 1, 1);
    gw_trace_free(t);
    cr_assert_eq(rmdir(path), 0);
}
