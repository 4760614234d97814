/* The log, and boot epochs. */
#include "actors/runtime/log.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <unistd.h>

#include "actors/runtime/runtime.h"
#include "tests/harness.h"
#include "tests/support/process.h"

static int64_t fixed_wall(void *ctx)
{
    (void)ctx;
    return INT64_C(1700000000123456789);
}

static char *dir, path[512];

static void make_dir(void)
{
    dir = ts_temp_dir();
    cr_assert_not_null(dir);
    snprintf(path, sizeof path, "%s/file", dir);
}

static void remove_dir(void)
{
    unlink(path);
    strcat(path, ".old");
    unlink(path);
    rmdir(dir);
    free(dir);
}

TestSuite(log, .init = make_dir, .fini = remove_dir);
TestSuite(epoch, .init = make_dir, .fini = remove_dir);

static struct act_log *open_log(bool json, bool direct)
{
    struct act_log_config c = {.path = path, .level = ACT_LOG_INFO, .json = json, .wall = fixed_wall, .direct = direct};
    struct act_log *log;
    struct cfg_error err;
    cr_assert_eq(act_log_open(&c, &log, &err), 0, "%s", err.msg);
    return log;
}

static char *content(void)
{
    char *text = ts_read_file(path, NULL);
    cr_assert_not_null(text);
    return text;
}

Test(log, text)
{
    struct act_log *log = open_log(false, true);
    act_log_write(log, ACT_LOG_WARNING, "decode", 0x2a, "cannot %s\nnow", "go on");
    act_log_write(log, ACT_LOG_DEBUG, "decode", 0, "not at this level");
    act_log_write(NULL, ACT_LOG_ERROR, "decode", 0, "nowhere");
    cr_expect_not(act_log_on(log, ACT_LOG_DEBUG));
    cr_expect_not(act_log_on(NULL, ACT_LOG_ERROR));
    act_log_close(log);
    char *text = content();
    cr_expect_str_eq(text, "2023-11-14T22:13:20.123456Z warning decode 000000000000002a: cannot go on?now\n");
    free(text);
}

Test(log, an_event_has_fields)
{
    struct act_log *log = open_log(true, true);
    act_log_event(log, ACT_LOG_INFO, "request", 7, "request_end",
                  "id=%s total=%.3f n=%d half=-0.5 odd=01 word empty= last=1.", "a:b", 0.25, 12);
    act_log_event(log, ACT_LOG_DEBUG, "request", 7, "request_end", "not=here");
    act_log_close(log);
    char *text = content();
    json_t *j = json_loads(text, 0, NULL);
    cr_assert_not_null(j, "%s", text);
    cr_expect_str_eq(json_string_value(json_object_get(j, "event")), "request_end");
    cr_expect_null(json_object_get(j, "message"));
    cr_expect_str_eq(json_string_value(json_object_get(j, "id")), "a:b");
    cr_expect_float_eq(json_real_value(json_object_get(j, "total")), 0.25, 1e-9);
    cr_expect_eq(json_integer_value(json_object_get(j, "n")), 12);
    cr_expect_float_eq(json_real_value(json_object_get(j, "half")), -0.5, 1e-9);
    cr_expect_str_eq(json_string_value(json_object_get(j, "odd")), "01");
    cr_expect_str_eq(json_string_value(json_object_get(j, "empty")), "");
    cr_expect_str_eq(json_string_value(json_object_get(j, "last")), "1.");
    cr_expect_null(json_object_get(j, "word"));
    json_decref(j);
    free(text);
}

Test(log, an_event_as_text)
{
    struct act_log *log = open_log(false, true);
    act_log_event(log, ACT_LOG_INFO, "gateway", 0, "keys_read", "keys=%d", 3);
    act_log_close(log);
    char *text = content();
    cr_expect_str_eq(text, "2023-11-14T22:13:20.123456Z info    gateway: keys_read keys=3\n");
    free(text);
}

Test(log, reasons_have_names_without_blanks)
{
    cr_expect_str_eq(act_reason_name(0), "ordinary");
    cr_expect_str_eq(act_reason_name(-ENOLINK), "experts_missing");
    cr_expect_str_eq(act_reason_name(-ENOSPC), "ENOSPC");
    cr_expect_str_eq(act_reason_name(-9999), "unknown");
    for (int i = 0; i < 200; i++)
        cr_expect_null(strchr(act_reason_name(-i), ' '), "%d", i);
}

Test(log, json_lines_are_json)
{
    struct act_log *log = open_log(true, true);
    act_log_write(log, ACT_LOG_ERROR, "decode", 7, "a \"quote\", a \\ and\ta tab");
    act_log_close(log);
    char *text = content();
    json_t *j = json_loads(text, 0, NULL);
    cr_assert_not_null(j, "%s", text);
    cr_expect_str_eq(json_string_value(json_object_get(j, "message")), "a \"quote\", a \\ and\ta tab");
    cr_expect_str_eq(json_string_value(json_object_get(j, "level")), "error");
    cr_expect_str_eq(json_string_value(json_object_get(j, "request")), "0000000000000007");
    json_decref(j);
    free(text);
}

enum { THREADS = 4, RECORDS = 200 };

static void *write_many(void *arg)
{
    for (int i = 0; i < RECORDS; i++)
        act_log_write(arg, ACT_LOG_INFO, "thread", (uint64_t)i + 1, "x");
    return NULL;
}

Test(log, threads_lose_nothing_that_is_not_counted)
{
    struct act_log *log = open_log(false, false);
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, write_many, log), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    uint64_t dropped = act_log_dropped(log);
    act_log_close(log);
    char *text = content();
    uint64_t lines = 0;
    for (const char *p = text; (p = strstr(p, "thread ")); p++)
        lines++;
    cr_expect_eq(lines + dropped, THREADS * RECORDS);
    cr_expect_eq(strstr(text, "records were lost") != NULL, dropped > 0);
    free(text);
}

Test(log, opens_again_after_rotation)
{
    char old[600];
    struct act_log *log = open_log(false, true);
    act_log_write(log, ACT_LOG_INFO, "a", 0, "before");
    snprintf(old, sizeof old, "%s.old", path);
    cr_assert_eq(rename(path, old), 0);
    act_log_reopen(log);
    act_log_write(log, ACT_LOG_INFO, "a", 0, "after");
    act_log_close(log);
    char *text = content();
    cr_expect(strstr(text, "after") && !strstr(text, "before"), "%s", text);
    free(text);
}

Test(log, says_why_it_cannot_open)
{
    struct act_log_config c = {.path = "/nonexistent/folder/log"};
    struct act_log *log;
    struct cfg_error err;
    cr_assert_eq(act_log_open(&c, &log, &err), -ENOENT);
    cr_expect_not_null(strstr(err.msg, "/nonexistent/folder/log"));
    cr_expect_null(log);
}

Test(epoch, grows_whatever_the_clock_says)
{
    uint64_t e;
    struct cfg_error err;
    cr_assert_eq(act_epoch_next(path, 1000, &e, &err), 0, "%s", err.msg);
    cr_assert_eq(e, 1000);
    cr_assert_eq(act_epoch_next(path, 500, &e, &err), 0);
    cr_assert_eq(e, 1001, "the clock went back");
    cr_assert_eq(act_epoch_next(path, 5000, &e, &err), 0);
    cr_assert_eq(e, 5000);
    FILE *f = fopen(path, "w");
    fputs("not a number", f);
    fclose(f);
    cr_assert_eq(act_epoch_next(path, 1, &e, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, path));
    cr_assert_eq(act_epoch_next("/nonexistent/folder/epoch", 1, &e, &err), -ENOENT);
}
