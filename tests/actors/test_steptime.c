/* Step-time tables: lookup, refresh, files, measuring. */
#include "tests/harness.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "actors/steptime_file.h"
#include "model/sampler.h"

static struct act_steptime table(void)
{
    struct act_steptime t;
    act_steptime_init(&t, 3);
    act_steptime_add(&t.plain, 1, 100);
    act_steptime_add(&t.plain, 4, 130);
    act_steptime_add(&t.plain, 8, 210);
    act_steptime_add(&t.full, 4, 110);
    act_steptime_add(&t.full, 8, 170);
    act_steptime_add(&t.draft, 1, 20);
    act_steptime_add(&t.draft, 2, 30);
    t.pick_ns = 2;
    return t;
}

Test(steptime, lookup)
{
    struct act_steptime t = table();
    cr_expect_float_eq(act_steptime_verify_ns(&t, 1, 1, 0), 100, 1e-9);
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 2, 0), 110, 1e-9, "between points a line");
    cr_expect_float_eq(act_steptime_verify_ns(&t, 10, 10, 0), 250, 1e-9, "beyond the last the slope goes on");
    cr_expect_float_eq(act_steptime_verify_ns(&t, 1, 4, 0), 110, 1e-9, "whole blocks are on their own curve");
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 8, 0), 170, 1e-9);
    /* 4 requests, 4 drafts: two thirds of whole blocks. */
    cr_expect_float_eq(act_steptime_verify_ns(&t, 4, 8, 0), 210 + 2.0 / 3 * (170 - 210), 1e-9);
    cr_expect_float_eq(act_steptime_draft_ns(&t, 2, 6), 42, 1e-9);
    cr_expect_float_eq(act_steptime_draft_ns(&t, 2, 0), 0, 1e-9, "no drafts, no drafter");
    t.padded = true;
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 2, 0), 130, 1e-9, "a padded batch costs what the next size costs");
}

/* With mixtures of experts the first draft of a request costs more than the last, and rows of other requests cost other
 * things: each measured number of drafts is priced as measured, also for a single request. */
Test(steptime, drafts_of_one_request)
{
    struct act_steptime t;
    act_steptime_init(&t, 5);
    for (int n = 1; n <= 4; n *= 2) {
        cr_assert_eq(act_steptime_add_batch(&t, n, 5, 100 + 170 * n), 0);
        cr_assert_eq(act_steptime_add_batch(&t, n, 1, 100 + 90 * n), 0);
        cr_assert_eq(act_steptime_add_batch(&t, n, 0, 100 + 50 * n), 0);
    }
    act_steptime_add(&t.draft, 1, 1);
    for (int n = 1; n <= 4; n++) {
        cr_expect_float_eq(act_steptime_verify_ns(&t, n, n, 0), 100 + 50 * n, 1e-9);
        cr_expect_float_eq(act_steptime_verify_ns(&t, n, 2 * n, 0), 100 + 90 * n, 1e-9);
        cr_expect_float_eq(act_steptime_verify_ns(&t, n, 4 * n, 0), 100 + 130 * n, 1e-9);
        cr_expect_float_eq(act_steptime_verify_ns(&t, n, 6 * n, 0), 100 + 170 * n, 1e-9);
    }
    cr_expect_ge(act_steptime_verify_ns(&t, 1, 20, 0), act_steptime_verify_ns(&t, 1, 6, 0));
    /* A step of the kernels, seen with one request alone. */
    double before = act_steptime_verify_ns(&t, 2, 8, 0);
    cr_assert_eq(act_steptime_add_batch(&t, 1, 3, 195), 0);
    cr_assert_eq(act_steptime_add_batch(&t, 1, 4, 260), 0);
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 8, 0), before, 1e-9, "what was not measured for two says nothing");
    cr_expect_lt(act_steptime_verify_ns(&t, 1, 4, 0), 200 + 1e-9);
    cr_expect_gt(act_steptime_verify_ns(&t, 1, 5, 0), 250);
    for (int i = 0; i < 3000; i++) /* the machine has become twice as slow where one draft is verified */
        act_steptime_observe(&t, 2, 2, 4, 0, 1, 2 * (100 + 90 * 2));
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 4, 0) / (2 * (100 + 90 * 2)), 1, 0.05);
    t.between[0].curve.raw[0] = t.between[0].curve.ns[0] = 1; /* noise */
    double last = 0;
    for (int rows = 1; rows <= 6; rows++) {
        cr_expect_ge(act_steptime_verify_ns(&t, 1, rows, 0), last - 1e-9, "%d rows", rows);
        last = act_steptime_verify_ns(&t, 1, rows, 0);
    }
}

Test(steptime, more_rows_never_look_cheaper)
{
    struct act_steptime t = table();
    act_steptime_add(&t.plain, 6, 90);
    double last = 0;
    for (int rows = 1; rows < 20; rows++) {
        double now = act_steptime_verify_ns(&t, rows, rows, 0);
        cr_expect_ge(now, last, "%d rows", rows);
        last = now;
    }
}

/* Rows of others at the shards make the share of the experts longer, whatever is verified here; no report changes
 * nothing. */
Test(steptime, rows_of_shards)
{
    struct act_steptime t = table();
    double own = act_steptime_verify_ns(&t, 2, 2, 0);
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 2, 8), own, 1e-9, "without a known share they are not used");
    t.expert_share = 0.5;
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 2, 0), own, 1e-9);
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 2, 8), 110 + 0.5 * (200 - 110), 1e-9, "2 + 8 rows take 200");
    double four = (1 - 8.0 / 9) * 170 + 8.0 / 9 * 140;
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 6, 0), four, 1e-9);
    cr_expect_float_eq(act_steptime_verify_ns(&t, 2, 6, 8), four + 0.5 * (260 - four), 1e-9, "6 + 8 rows take 260");
}

Test(steptime, points)
{
    struct act_steptime t;
    act_steptime_init(&t, 0);
    cr_expect_not(act_steptime_usable(&t));
    cr_expect_eq(act_steptime_add(&t.plain, 0, 1), -EINVAL);
    cr_expect_eq(act_steptime_add(&t.plain, 1, 0), -EINVAL);
    cr_expect_eq(act_steptime_add(&t.plain, 1, NAN), -EINVAL);
    for (int i = ACT_STEPTIME_POINTS; i > 0; i--)
        cr_assert_eq(act_steptime_add(&t.plain, i, i), 0);
    cr_expect_eq(act_steptime_add(&t.plain, 1000, 1), -ENOSPC);
    cr_expect_eq(act_steptime_add(&t.plain, 7, 70), 0, "a point may be replaced");
    cr_expect(act_steptime_usable(&t), "without a drafter one curve is enough");
    cr_expect_float_eq(act_steptime_verify_ns(&t, 7, 7, 0), 70, 1e-9);
}

/* A block that was measured a third too dear is seldom chosen, so the few times that it is must put it right, while
 * what is seen all the time stays. */
Test(steptime, a_point_that_is_seldom_seen_is_soon_right)
{
    struct act_steptime t = table();
    double plain = act_steptime_verify_ns(&t, 1, 1, 0), full = act_steptime_verify_ns(&t, 1, t.block + 1, 0);
    for (int i = 0; i < t.full.n; i++)
        act_steptime_add(&t.full, t.full.at[i], 1.33 * t.full.raw[i]);
    cr_assert_float_eq(act_steptime_verify_ns(&t, 1, t.block + 1, 0) / full, 1.33, 0.01);
    for (int i = 0; i < 12; i++) {
        for (int k = 0; k < 50; k++)
            act_steptime_observe(&t, 1, 0, 1, 0, 0, plain);
        act_steptime_observe(&t, 1, 0, t.block + 1, 0, 0, full);
    }
    cr_expect_float_eq(act_steptime_verify_ns(&t, 1, t.block + 1, 0) / full, 1, 0.1);
    cr_expect_float_eq(act_steptime_verify_ns(&t, 1, 1, 0) / plain, 1, 0.02);
}

/* Whatever the table said at first, what rounds really take is learned; a single odd round is not believed. */
Test(steptime, refresh)
{
    struct act_steptime t = table(), before = t;
    act_steptime_observe(&t, 1, 0, 1, 0, 0, 1e9);
    cr_expect_float_eq(act_steptime_verify_ns(&t, 1, 1, 0) / act_steptime_verify_ns(&before, 1, 1, 0), 1, 0.05);
    act_steptime_observe(&t, 1, 0, 1, 0, 0, NAN);
    act_steptime_observe(&t, 1, 0, 0, 0, 0, 5);
    for (int i = 0; i < 4000; i++) {
        int n = 1 + i % 3, drafts = i % 2 ? 3 * n : 0;
        double noise = 0.8 + 0.4 * mdl_random_unit(1, (uint64_t)i, 0);
        act_steptime_observe(&t, n, drafts, n + drafts, 0, noise * 3 * (15.0 + 4 * n + drafts),
                             noise * (300 + 40 * (n + drafts)));
    }
    for (int n = 1; n <= 3; n++) {
        cr_expect_float_eq(act_steptime_verify_ns(&t, n, n, 0) / (300 + 40 * n), 1, 0.12, "%d: %g", n,
                           act_steptime_verify_ns(&t, n, n, 0));
        cr_expect_float_eq(act_steptime_verify_ns(&t, n, 4 * n, 0) / (300 + 160 * n), 1, 0.12, "%d: %g", n,
                           act_steptime_verify_ns(&t, n, 4 * n, 0));
        cr_expect_float_eq(act_steptime_draft_ns(&t, n, 3 * n) / (3 * (15.0 + 7 * n)), 1, 0.15, "%d: %g", n,
                           act_steptime_draft_ns(&t, n, 3 * n));
    }
}

/* What a token costs was measured as nothing, by noise, or as far too much: rounds of different depth put it right, and
 * the pass with it. */
Test(steptime, the_price_of_a_token_is_learned)
{
    for (int high = 0; high < 2; high++) {
        struct act_steptime t = table();
        t.pick_ns = high ? 60 : 0;
        for (int i = 0; i < 6000; i++) {
            int depth = i % 4 == 0 ? 3 : 1;
            act_steptime_observe(&t, 1, depth, 1 + depth, 0, 100.0 + 20 * depth,
                                 act_steptime_verify_ns(&t, 1, 1 + depth, 0));
        }
        for (int depth = 1; depth <= 3; depth += 2)
            cr_expect_float_eq(act_steptime_draft_ns(&t, 1, depth) / (100.0 + 20 * depth), 1, 0.05, "%d: %g", depth,
                               act_steptime_draft_ns(&t, 1, depth));
        cr_expect_float_eq(t.draft_scale * t.pick_ns, 20, 5, "%g", t.draft_scale * t.pick_ns);
    }
}

/* ---- files ---- */

/* Of a file that is measured here, up to the curves. */
#define HEAD                                                                                                           \
    "{\"format\":3,\"model\":\"000000000000002a\",\"machine\":\"a machine, 2 threads\",\"build\":\"0, scalar\","       \
    "\"build_id\":\"abcd\",\"streams\":8,\"context\":16,\"block\":3,\"padded\":false,"

static const struct act_steptime_identity here = {42, "a machine, 2 threads", "0, scalar", "abcd", 8, 16};

static void path_of(char *out, size_t size)
{
    snprintf(out, size, "/tmp/weft-steptime-%d.json", (int)getpid());
}

static int read_back(const struct act_steptime_identity *id, int block, struct act_steptime *t, struct cfg_error *err)
{
    char path[64];
    path_of(path, sizeof path);
    return act_steptime_read(path, id, block, t, err);
}

/* The table of above with times that a machine can take. */
static struct act_steptime real_table(void)
{
    struct act_steptime t = table();
    struct act_steptime_curve *const curve[] = {&t.plain, &t.full, &t.draft};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < curve[k]->n; i++)
            act_steptime_add(curve[k], curve[k]->at[i], 1000 * curve[k]->raw[i]);
    act_steptime_add_batch(&t, 4, 1, 120000);
    t.pick_ns *= 1000;
    return t;
}

Test(steptime, file)
{
    char path[64];
    struct cfg_error err = {0};
    struct act_steptime t = real_table(), got;
    path_of(path, sizeof path);
    unlink(path);
    t.expert_share = 0.25;
    cr_assert_eq(read_back(&here, 3, &got, &err), -ENOENT);
    cr_assert_eq(act_steptime_write(path, &here, &t, &err), 0, "%s", err.msg);
    cr_assert_eq(read_back(&here, 3, &got, &err), 0, "%s", err.msg);
    for (int n = 1; n < 12; n++)
        for (int rows = n; rows <= 4 * n; rows++) {
            cr_expect_float_eq(act_steptime_verify_ns(&got, n, rows, 20), act_steptime_verify_ns(&t, n, rows, 20),
                               1e-3);
            cr_expect_float_eq(act_steptime_draft_ns(&got, n, rows), act_steptime_draft_ns(&t, n, rows), 1e-3);
        }
    /* Each part alone is enough; a program without a build id has no table that could be its own. */
    const struct act_steptime_identity others[] = {{43, "a machine, 2 threads", "0, scalar", "abcd", 8, 16},
                                                   {42, "a machine, 4 threads", "0, scalar", "abcd", 8, 16},
                                                   {42, "a machine, 2 threads", "0, avx2", "abcd", 8, 16},
                                                   {42, "a machine, 2 threads", "0, scalar", "abce", 8, 16},
                                                   {42, "a machine, 2 threads", "0, scalar", "", 8, 16},
                                                   {42, "a machine, 2 threads", "0, scalar", "abcd", 9, 16},
                                                   {42, "a machine, 2 threads", "0, scalar", "abcd", 8, 15}};
    const char *const names[] = {"another model",     "another machine",    "another build ",
                                 "another build_id",  "without a build id", "up to 8 sequences at a time, here are 9",
                                 "16 tokens, here 15"};
    for (int i = 0; i < 7; i++) {
        cr_expect_eq(read_back(&others[i], 3, &got, &err), -EINVAL, "%s", names[i]);
        cr_expect_not_null(strstr(err.msg, names[i]), "%s", err.msg);
        cr_expect_not(act_steptime_usable(&got));
    }
    cr_expect_eq(read_back(&here, 4, &got, &err), -EINVAL, "another block");
    struct act_steptime_identity fewer = here;
    fewer.streams = 2;
    cr_expect_eq(read_back(&fewer, 3, &got, &err), 0, "what covers more covers fewer");
    /* Made for 64, but the time was over at 8. */
    struct act_steptime_identity many = here;
    many.streams = 64;
    cr_assert_eq(act_steptime_write(path, &many, &t, &err), 0);
    cr_expect_eq(read_back(&many, 3, &got, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "cut short at 8 of 64"), "%s", err.msg);
    unlink(path);
    cr_expect_eq(act_steptime_write("/nowhere/at/all", &here, &t, &err), -EIO);
}

/* Times that no machine takes are refused with the curve and the point, and noise is not. plain: 1, 4 and 8 requests,
 * 100, 130 and 210 us; full: 1 and 2 requests, 110 and 170 us; between: 4 with one draft, 120 us; draft: 20 and 30. */
Test(steptime, doubtful_times_are_refused)
{
    static const struct {
        const char *curve;
        int point; /* from 0 */
        const char *pair;
        const char *says; /* NULL: is taken */
    } at[] = {
        {"plain", 1, "[4,99000]", NULL},
        {"plain", 2, "[8,40000]", NULL},
        {"plain", 2, "[8,30000]", "\"plain\", point 3: the time is a fraction of the time of fewer rows"},
        {"plain", 0, "[1,0]", "\"plain\", point 1: needs a number of rows and a time above 0"},
        {"plain", 0, "[1,-5]", "\"plain\", point 1: needs"},
        {"plain", 0, "[1,999]", "\"plain\", point 1: the time is less than a machine can take"},
        {"plain", 2, "[8,1e30]", "\"plain\", point 3: the time is more than a step takes"},
        {"plain", 2, "[8,1.1e12]", "\"plain\", point 3: the time is more than a step takes"},
        {"plain", 2, "[8,\"x\"]", "\"plain\", point 3: needs"},
        {"plain", 2, "[8,210000,1]", "\"plain\", point 3: needs"},
        {"plain", 2, "[8.0,210000]", "\"plain\", point 3: needs"},
        {"plain", 2, "[4,210000]", "\"plain\", point 3: the numbers of rows must ascend"},
        {"plain", 2, "[3,210000]", "\"plain\", point 3: the numbers of rows must ascend"},
        {"plain", 2, "[16777217,210000]", "\"plain\", point 3: needs"},
        {"full", 0, "[4,30000]", NULL},
        {"full", 0, "[4,20000]", "\"full\", point 1: the time is a fraction of the time without drafts"},
        {"full", 1, "[8,27000]", "\"full\", point 2: the time is a fraction of the time of fewer rows"},
        {"between", 0, "[8,30000]", "\"between\", point 1: the time is a fraction of the time without drafts"},
        {"between", 0, "[8,900]", "\"between\", point 1: the time is less than a machine can take"},
        {"draft", 1, "[2,2000]", NULL}, /* of a pass without its picks little may be left */
        {"draft", 1, "[2,400]", "\"draft\", point 2: the time is a fraction"},
        {"draft", 0, "[1,99]", "\"draft\", point 1: the time is less than a machine can take"},
        {"draft", 1, "[2,1e300]", "\"draft\", point 2: the time is more than a step takes"},
    };
    static const struct {
        const char *name, *json, *says;
    } member[] = {
        {"pick_ns", "-1", "\"pick_ns\" must be a number from 0"},
        {"pick_ns", "1e10", "\"pick_ns\" must be"},
        {"pick_ns", "\"2\"", "\"pick_ns\" must be"},
        {"expert_share", "1.5", "\"expert_share\" must be"},
        {"expert_share", "null", "\"expert_share\" must be"},
        {"padded", "0", "\"padded\" must be true or false"},
        {"plain", "[[1,1e400]]", "not valid JSON"},
    };
    char path[64], text[300];
    struct cfg_error err = {0};
    struct act_steptime t = real_table(), got;
    path_of(path, sizeof path);
    for (size_t i = 0; i < sizeof at / sizeof *at + sizeof member / sizeof *member; i++) {
        cr_assert_eq(act_steptime_write(path, &here, &t, &err), 0, "%s", err.msg);
        json_t *root = json_load_file(path, 0, NULL);
        size_t m = i - sizeof at / sizeof *at;
        bool point = i < sizeof at / sizeof *at;
        const char *says = point ? at[i].says : member[m].says;
        cr_assert_not_null(root);
        if (point) {
            json_t *list = json_object_get(root, at[i].curve);
            list = strcmp(at[i].curve, "between") ? list : json_object_get(json_array_get(list, 0), "points");
            json_array_set_new(list, (size_t)at[i].point, json_loads(at[i].pair, 0, NULL));
        } else if (!strstr(member[m].json, "e400")) {
            json_object_set_new(root, member[m].name, json_loads(member[m].json, JSON_DECODE_ANY, NULL));
        }
        cr_assert_eq(json_dump_file(root, path, 0), 0);
        json_decref(root);
        if (!point && strstr(member[m].json, "e400")) {
            FILE *f = fopen(path, "w");
            snprintf(text, sizeof text, "{\"format\":3,\"%s\":%s}", member[m].name, member[m].json);
            fputs(text, f);
            fclose(f);
        }
        cr_expect_eq(read_back(&here, 3, &got, &err), says ? -EINVAL : 0, "case %zu: %s", i, err.msg);
        cr_expect(!says || strstr(err.msg, says), "case %zu: \"%s\" is not in: %s", i, says, err.msg);
        cr_expect_eq(act_steptime_usable(&got), !says, "case %zu", i);
    }
    unlink(path);
}

/* Who it is that measures: the program by its code, the machine by its processor and the threads at work. */
Test(steptime, identity)
{
    struct mdl_model *one, *two;
    struct cfg_error err;
    struct act_steptime_identity a, b;
    cr_assert_eq(mdl_model_open("tests/golden/mini8", 1, NULL, &one, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_model_open("tests/golden/mini8", 2, "scalar", &two, &err), 0, "%s", err.msg);
    act_steptime_identity(one, 4, 16, &a);
    act_steptime_identity(two, 4, 16, &b);
    cr_expect_eq(a.revision, one->ck->revision);
    cr_expect_eq(strspn(a.build_id, "0123456789abcdef"), strlen(a.build_id));
    cr_expect_eq(strlen(a.build_id), 40u, "\"%s\"", a.build_id);
    cr_expect_str_eq(a.build_id, b.build_id);
    cr_expect_str_neq(a.machine, b.machine);
    cr_expect(strstr(a.machine, "1 threads") && strstr(b.machine, "2 threads"), "%s, %s", a.machine, b.machine);
    cr_expect_not_null(strstr(b.build, "scalar"), "%s", b.build);
    cr_expect(a.streams == 4 && a.context == 16);
    mdl_model_close(one);
    mdl_model_close(two);
}

Test(steptime, damaged_files_are_refused)
{
    static const char *const bad[][2] = {
        {"", ""},
        {"{", ""},
        {"[]", "format 3"},
        {"{\"format\": 2}", "format 3"},
        {"{\"format\": 4}", "format 3"},
        {HEAD "\"plain\":[[1,-5]],\"between\":[],\"full\":[],\"draft\":[],\"pick_ns\":1,\"expert_share\":0}",
         "\"plain\", point 1"},
        {HEAD "\"plain\":[[8,5]],\"between\":[],\"full\":[],\"draft\":[[1,1]],\"pick_ns\":1,\"expert_share\":0}",
         "not complete"},
        {HEAD "\"plain\":[[8,5]],\"between\":[],\"full\":[[4,5]],\"draft\":[[1,1]],\"pick_ns\":1,\"expert_share\":7}",
         "\"expert_share\" must be a number from 0 to 1"},
        {HEAD "\"plain\":[[99999999999,5]],\"between\":[],\"full\":[[4,5]],\"draft\":[[1,1]],\"pick_ns\":1,"
              "\"expert_share\":0}",
         "\"plain\", point 1"},
        {HEAD "\"plain\":[[8,5]],\"between\":[{\"drafts\":3,\"points\":[]}],\"full\":[[4,5]],\"draft\":[[1,1]],"
              "\"pick_ns\":1,\"expert_share\":0}",
         "must ascend in 1..2"},
        {HEAD "\"plain\":[[7,5000]],\"between\":[],\"full\":[[4,5000]],\"draft\":[[1,1000]],\"pick_ns\":1,\"expert_"
              "share\":0}",
         "cut short at 7 of 8"},
    };
    char path[64];
    path_of(path, sizeof path);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct act_steptime got;
        struct cfg_error err = {0};
        FILE *f = fopen(path, "w");
        fputs(bad[i][0], f);
        fclose(f);
        cr_expect_eq(read_back(&here, 3, &got, &err), -EINVAL, "file %zu", i);
        cr_expect_neq(err.msg[0], 0);
        cr_expect_not_null(strstr(err.msg, bad[i][1]), "file %zu: %s", i, err.msg);
        cr_expect_not(act_steptime_usable(&got));
    }
    unlink(path);
}

/* ---- measuring ---- */

static int64_t ticking_clock(void *ctx)
{
    return *(int64_t *)ctx += 1000;
}

Test(steptime, measure)
{
    struct mdl_model *m;
    struct cfg_error err;
    int64_t clock = 0;
    cr_assert_eq(mdl_model_open("tests/golden/mini8", 1, NULL, &m, &err), 0, "%s", err.msg);
    struct act_steptime t;
    struct act_steptime_measure how = {.streams = 6,
                                       .block = m->cfg->draft_block,
                                       .context = 9,
                                       .limit_ns = INT64_MAX,
                                       .now = ticking_clock,
                                       .ctx = &clock};
    cr_assert_eq(act_steptime_measure(m, &how, &t, &err), 0, "%s", err.msg);
    cr_expect(act_steptime_usable(&t));
    cr_expect_eq(t.plain.at[0], 1);
    cr_expect_eq(t.plain.at[t.plain.n - 1], 6, "the largest batch is measured");
    cr_expect_eq(t.full.at[t.full.n - 1], 6 * (m->cfg->draft_block + 1));
    cr_expect_eq(t.n_between, m->cfg->draft_block - 1);
    cr_expect_eq(t.between[0].curve.at[t.between[0].curve.n - 1], 12);
    how.limit_ns = 0;
    cr_assert_eq(act_steptime_measure(m, &how, &t, &err), 0, "%s", err.msg);
    cr_expect_eq(t.plain.n, 1, "no time: the smallest batch only");
    how.block = 0;
    cr_assert_eq(act_steptime_measure(m, &how, &t, &err), 0, "%s", err.msg);
    cr_expect(act_steptime_usable(&t), "a model without a drafter has a table too");
    how.block = m->cfg->draft_block + 1;
    cr_expect_eq(act_steptime_measure(m, &how, &t, &err), -EINVAL);
    mdl_model_close(m);
}

/* One spell of slow readings, one of fast ones, one after the other. */
static int64_t unsteady_clock(void *ctx)
{
    int64_t *c = ctx;
    return c[0] += c[1]++ / c[2] % 2 ? 1000 : 400000;
}

/* Whatever else the machine did while a table was measured, the next start takes it. */
Test(steptime, what_was_measured_is_read_again)
{
    struct mdl_model *m;
    struct cfg_error err;
    char path[64];
    path_of(path, sizeof path);
    cr_assert_eq(mdl_model_open("tests/golden/mini8", 1, NULL, &m, &err), 0, "%s", err.msg);
    struct act_steptime_identity id = here;
    id.streams = 4;
    for (int64_t spell = 150; spell < 1500; spell += 150) {
        int64_t clock[3] = {0, 0, spell};
        struct act_steptime t, got;
        const struct act_steptime_measure how = {.streams = 4,
                                                 .block = m->cfg->draft_block,
                                                 .context = 9,
                                                 .limit_ns = INT64_MAX,
                                                 .now = unsteady_clock,
                                                 .ctx = clock};
        cr_assert_eq(act_steptime_measure(m, &how, &t, &err), 0, "%s", err.msg);
        cr_assert_eq(act_steptime_write(path, &id, &t, &err), 0, "%s", err.msg);
        cr_expect_eq(read_back(&id, m->cfg->draft_block, &got, &err), 0, "spell %d: %s", (int)spell, err.msg);
    }
    unlink(path);
    mdl_model_close(m);
}
