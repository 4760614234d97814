/* weft score as a program: which rows it writes, what its report says, what may not change them, and mistakes. */
#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"
#include "tests/harness.h"
#include "tests/support/model.h"
#include "tests/support/process.h"

enum { VOCAB = 512, WINDOW = 16, PROMPT = 60, MORE = 5, LONG = 170, REACH = 136 };

/* One run of score on mini8. */
struct scored {
    char *out;     /* folder */
    float *logits; /* [rows][VOCAB] */
    int rows;
    json_t *report;
};

/* Writes n ids by seed to DIR/name. */
static char *write_ids(const char *dir, const char *name, uint64_t seed, int n)
{
    char *text = malloc((size_t)n * 8 + 1), *at = text;
    for (int i = 0; i < n; i++)
        at += sprintf(at, "%u%c", ts_random(&seed, VOCAB), i % 7 == 6 ? '\n' : ' ');
    *at = 0;
    char *path = ts_write_file(dir, name, text);
    free(text);
    return path;
}

static struct scored score_argv(const char *dir, const char *name, const char *const *args)
{
    struct scored s = {0};
    char path[4096];
    const char *argv[32] = {ts_weft(), "score", "-m", TS_MINI8, "--out"};
    int n = 5;
    size_t len;
    cr_assert_gt(asprintf(&s.out, "%s/new/%s", dir, name), 0);
    argv[n++] = s.out;
    while (*args)
        argv[n++] = *args++;
    struct ts_result r = ts_run_argv(NULL, argv);
    cr_assert_eq(r.status, 0, "%s: %s", name, r.err);
    cr_assert(r.out_len == 0 && r.err_len == 0, "%s says %s%s", name, r.out, r.err);
    ts_result_free(&r);
    snprintf(path, sizeof path, "%s/logits.f32", s.out);
    s.logits = (float *)ts_read_file(path, &len);
    cr_assert(s.logits && len % (VOCAB * sizeof(float)) == 0, "%s: %zu bytes", name, len);
    s.rows = (int)(len / (VOCAB * sizeof(float)));
    snprintf(path, sizeof path, "%s/report.json", s.out);
    s.report = json_load_file(path, 0, NULL);
    cr_assert_not_null(s.report, "%s", path);
    return s;
}

#define SCORE(dir, name, ...) score_argv(dir, name, (const char *const[]){__VA_ARGS__, NULL})

static void scored_free(struct scored *s)
{
    json_decref(s->report);
    free(s->logits);
    free(s->out);
}

static int number(const struct scored *s, const char *key)
{
    json_t *j = json_object_get(s->report, key);
    return json_is_integer(j) ? (int)json_integer_value(j) : -1;
}

static void expect_shape(const struct scored *s, int rows, int first, const char *mode)
{
    cr_expect_eq(s->rows, rows, "%s: %d rows", s->out, s->rows);
    cr_expect_eq(number(s, "rows"), rows, "%s", s->out);
    cr_expect_eq(number(s, "first_position"), first, "%s: first %d", s->out, number(s, "first_position"));
    cr_expect_eq(number(s, "vocab_size"), VOCAB);
    cr_expect_str_eq(json_string_value(json_object_get(s->report, "mode")), mode);
}

/* Rows at..at+n-1 of a are rows bt.. of b. */
static void expect_same(const struct scored *a, int at, const struct scored *b, int bt, int n)
{
    cr_assert(at >= 0 && bt >= 0 && at + n <= a->rows && bt + n <= b->rows);
    for (int i = 0; i < n; i++)
        cr_expect_arr_eq(a->logits + (size_t)(at + i) * VOCAB, b->logits + (size_t)(bt + i) * VOCAB,
                         VOCAB * sizeof(float), "row %d of %s, row %d of %s", at + i, a->out, bt + i, b->out);
}

static bool same_row(const struct scored *a, int at, const struct scored *b, int bt)
{
    return !memcmp(a->logits + (size_t)at * VOCAB, b->logits + (size_t)bt * VOCAB, VOCAB * sizeof(float));
}

struct setting {
    char *dir, *ids, *more, *all; /* all: ids and more in one file */
};

static struct setting set_up(int prompt)
{
    struct setting s = {.dir = ts_temp_dir()};
    s.ids = write_ids(s.dir, "ids", 17, prompt);
    s.more = write_ids(s.dir, "more", 18, MORE);
    char *a = ts_read_file(s.ids, NULL), *b = ts_read_file(s.more, NULL), *both;
    cr_assert_gt(asprintf(&both, "%s\n%s", a, b), 0);
    s.all = ts_write_file(s.dir, "all", both);
    free(a);
    free(b);
    free(both);
    return s;
}

static void tear_down(struct setting *s)
{
    ts_remove_dir(s->dir);
    free(s->dir);
    free(s->ids);
    free(s->more);
    free(s->all);
}

Test(score, exact_rows)
{
    struct setting t = set_up(PROMPT);
    struct scored all = SCORE(t.dir, "all", "--ids", t.all, "--exact", "--all-positions");
    struct scored last = SCORE(t.dir, "last", "--ids", t.ids, "--exact");
    struct scored more = SCORE(t.dir, "more", "--ids", t.ids, "--exact", "--continue", t.more);
    struct scored both = SCORE(t.dir, "both", "--ids", t.ids, "--exact", "--continue", t.more, "--all-positions");
    expect_shape(&all, PROMPT + MORE, 0, "exact");
    expect_shape(&last, 1, PROMPT - 1, "exact");
    expect_shape(&more, 1 + MORE, PROMPT - 1, "exact");
    expect_shape(&both, PROMPT + MORE, 0, "exact");
    cr_expect(number(&more, "prompt_tokens") == PROMPT && number(&more, "continued_tokens") == MORE);
    expect_same(&all, PROMPT - 1, &last, 0, 1);
    expect_same(&all, PROMPT - 1, &more, 0, 1 + MORE);
    expect_same(&all, 0, &both, 0, PROMPT + MORE);
    int top = number(&last, "top1_after_prompt");
    for (int i = 0; i < VOCAB; i++)
        cr_expect_le(last.logits[i], last.logits[top], "id %d", i);
    cr_expect(number(&all, "replay") < 0 && number(&all, "decoder_replay_start") < 0, "exact has no replay");
    scored_free(&all);
    scored_free(&last);
    scored_free(&more);
    scored_free(&both);
    tear_down(&t);
}

Test(score, replay_rows)
{
    struct setting t = set_up(PROMPT);
    struct scored exact = SCORE(t.dir, "exact", "--ids", t.all, "--exact", "--all-positions");
    struct scored deflt = SCORE(t.dir, "default", "--ids", t.ids, "--all-positions", "--continue", t.more);
    struct scored r16 = SCORE(t.dir, "r16", "--ids", t.ids, "--replay", "16", "--all-positions");
    struct scored one = SCORE(t.dir, "one", "--ids", t.ids, "--replay", "16");
    struct scored full =
        SCORE(t.dir, "full", "--ids", t.ids, "--replay", "16", "--bridge-window", "full", "--all-positions");
    struct scored wide = SCORE(t.dir, "wide", "--ids", t.ids, "--replay", "60", "--all-positions");
    struct scored wider = SCORE(t.dir, "wider", "--ids", t.ids, "--replay", "1000", "--continue", t.more);
    expect_shape(&deflt, WINDOW + 12 + MORE, PROMPT - WINDOW - 12, "replay");
    cr_expect_eq(number(&deflt, "replay"), WINDOW + 12);
    cr_expect_eq(number(&deflt, "decoder_replay_start"), PROMPT - WINDOW - 12);
    cr_expect_str_eq(json_string_value(json_object_get(deflt.report, "bridge_window")), "truncate");
    expect_shape(&r16, 16, PROMPT - 16, "replay");
    expect_shape(&one, 1, PROMPT - 1, "replay");
    expect_same(&one, 0, &r16, 15, 1);
    cr_expect_not(same_row(&exact, PROMPT - 16, &r16, 0), "the first replayed row is an approximation");
    cr_expect_not(same_row(&full, 0, &r16, 0), "full differs from truncate");
    cr_expect_str_eq(json_string_value(json_object_get(full.report, "bridge_window")), "full");
    expect_shape(&wide, PROMPT, 0, "replay");
    expect_same(&exact, 0, &wide, 0, PROMPT);
    expect_same(&exact, PROMPT - 1, &wider, 0, 1 + MORE);
    struct scored *every[] = {&exact, &deflt, &r16, &one, &full, &wide, &wider};
    for (size_t i = 0; i < sizeof every / sizeof *every; i++)
        scored_free(every[i]);
    tear_down(&t);
}

Test(score, chunks_and_threads_change_nothing)
{
    struct setting t = set_up(PROMPT);
    static const char *const modes[][4] = {
        {"--exact"}, {"--replay", "20"}, {"--bridge-window", "full"}, {"--replay", "17", "--hit", "20"}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const char *const *m = modes[i];
        const char *const base[] = {
            "--ids", t.ids, "--continue", t.more, "--all-positions", "--dump", "layers,select,kv,draft",
            m[0],    m[1],  m[2],         m[3]};
        static const char *const sizes[][2] = {{"512", "1"}, {"1", "2"}, {"7", "3"}, {"32", "1"}};
        struct scored first = {0};
        char *dump = NULL;
        size_t dump_len = 0;
        for (int k = 0; k < 4; k++) {
            const char *args[20] = {"--chunk", sizes[k][0], "--threads", sizes[k][1]};
            int n = 4;
            for (size_t a = 0; a < sizeof base / sizeof *base && base[a]; a++)
                args[n++] = base[a];
            char name[32], path[4096];
            size_t len;
            snprintf(name, sizeof name, "%zu-%d", i, k);
            struct scored s = score_argv(t.dir, name, args);
            cr_expect_eq(number(&s, "threads"), atoi(sizes[k][1]));
            snprintf(path, sizeof path, "%s/dump.safetensors", s.out);
            char *bytes = ts_read_file(path, &len);
            cr_assert_not_null(bytes, "%s", path);
            if (k == 0) {
                first = s;
                dump = bytes;
                dump_len = len;
                continue;
            }
            cr_assert_eq(s.rows, first.rows);
            expect_same(&first, 0, &s, 0, s.rows);
            cr_expect(len == dump_len && !memcmp(bytes, dump, len), "dump of %s, chunk %s", m[0], sizes[k][0]);
            free(bytes);
            scored_free(&s);
        }
        free(dump);
        scored_free(&first);
    }
    tear_down(&t);
}

Test(score, replay_hits)
{
    struct setting t = set_up(PROMPT);
    struct scored cold =
        SCORE(t.dir, "cold", "--ids", t.ids, "--replay", "20", "--all-positions", "--continue", t.more);
    struct scored hit =
        SCORE(t.dir, "hit", "--ids", t.ids, "--replay", "20", "--all-positions", "--continue", t.more, "--hit", "40");
    struct scored drop =
        SCORE(t.dir, "drop", "--ids", t.ids, "--replay", "20", "--all-positions", "--hit", "40", "--drop-window");
    struct scored late = SCORE(t.dir, "late", "--ids", t.ids, "--replay", "20", "--all-positions", "--hit", "50");
    struct scored gone =
        SCORE(t.dir, "gone", "--ids", t.ids, "--replay", "20", "--all-positions", "--hit", "50", "--drop-window");
    expect_shape(&hit, 20 + MORE, 40, "replay");
    cr_expect(number(&hit, "hit") == 40 && number(&hit, "hit_asked") == 40);
    cr_expect_eq(number(&hit, "encoder_start"), 40, "the encoder goes on at the hit");
    expect_same(&cold, 0, &hit, 0, 20 + MORE);
    expect_shape(&drop, 20, 40, "replay");
    cr_expect_eq(number(&drop, "encoder_start"), 20, "max(0, 40 - max(16, 20))");
    cr_expect_not(same_row(&cold, 0, &drop, 0), "without window rows the encoder is replayed");
    cr_expect_eq(number(&late, "encoder_start"), 30, "fewer than R new tokens: replayed as well");
    cr_assert_eq(late.rows, gone.rows);
    expect_same(&late, 0, &gone, 0, late.rows);
    struct scored *every[] = {&cold, &hit, &drop, &late, &gone};
    for (size_t i = 0; i < 5; i++)
        scored_free(every[i]);
    tear_down(&t);
}

Test(score, exact_hits)
{
    struct setting t = set_up(LONG);
    struct scored cold = SCORE(t.dir, "cold", "--ids", t.ids, "--exact", "--all-positions", "--continue", t.more);
    struct scored hit =
        SCORE(t.dir, "hit", "--ids", t.ids, "--exact", "--all-positions", "--continue", t.more, "--hit", "140");
    struct scored least =
        SCORE(t.dir, "least", "--ids", t.ids, "--exact", "--hit", "136", "--chunk", "9", "--drop-window");
    struct scored miss = SCORE(t.dir, "miss", "--ids", t.ids, "--exact", "--all-positions", "--hit", "134");
    expect_shape(&hit, LONG - 140 + MORE, 140, "exact");
    cr_expect(number(&hit, "hit") == 140 && number(&hit, "hit_asked") == 140);
    expect_same(&cold, 140, &hit, 0, LONG - 140 + MORE);
    cr_expect_eq(number(&least, "hit"), REACH);
    expect_same(&cold, LONG - 1, &least, 0, 1);
    cr_expect(number(&miss, "hit") == 0 && number(&miss, "hit_asked") == 134, "a shorter prefix is a miss");
    expect_shape(&miss, LONG, 0, "exact");
    expect_same(&cold, 0, &miss, 0, LONG);
    struct scored *every[] = {&cold, &hit, &least, &miss};
    for (size_t i = 0; i < 4; i++)
        scored_free(every[i]);
    tear_down(&t);
}

Test(score, one_token_and_all_dumps)
{
    struct setting t = set_up(1);
    struct scored s = SCORE(t.dir, "one", "--ids", t.ids, "--dump", "layers,select,experts,kv,draft");
    char path[4096];
    struct mdl_st *dump;
    struct cfg_error err = {0};
    expect_shape(&s, 1, 0, "replay");
    json_t *draft = json_object_get(s.report, "draft");
    cr_expect_eq((int)json_array_size(json_object_get(draft, "ids")), 5);
    cr_expect_eq((int)json_array_size(json_object_get(draft, "confidence")), 5);
    cr_expect_eq((int)json_integer_value(json_object_get(draft, "token")), number(&s, "top1_after_prompt"));
    snprintf(path, sizeof path, "%s/dump.safetensors", s.out);
    cr_assert_eq(mdl_st_open(path, &dump, &err), 0, "%s", err.msg);
    /* No pair is complete, so the source of ratio 2 has tensors without rows. */
    static const struct {
        const char *name;
        int64_t rows, width;
    } kv[] = {{"kv.main.codes.1", 0, 32},  {"kv.main.scales.1", 0, 4}, {"kv.index.codes.1", 0, 32},
              {"kv.index.scales.1", 0, 2}, {"kv.main.codes.4", 1, 32}, {"kv.index.scales.4", 1, 2}};
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++) {
        const struct mdl_tensor *tensor = mdl_st_find(dump, kv[i].name);
        cr_assert_not_null(tensor, "%s", kv[i].name);
        cr_expect(tensor->ndim == 2 && tensor->shape[0] == kv[i].rows && tensor->shape[1] == kv[i].width,
                  "%s: %d dimensions, %lld x %lld", kv[i].name, tensor->ndim, (long long)tensor->shape[0],
                  (long long)tensor->shape[1]);
    }
    mdl_st_close(dump);
    scored_free(&s);
    tear_down(&t);
}

/* A draft starts from the token that follows, as in the golden blocks: expected ids and confidences are those of mini8.
 */
Test(score, draft_starts_from_the_continuation)
{
    struct setting t = set_up(1);
    struct mdl_st *golden;
    struct cfg_error err = {0};
    cr_assert_eq(mdl_st_open(TS_MINI8 "/golden.safetensors", &golden, &err), 0, "%s", err.msg);
    const struct mdl_tensor *main_ids = mdl_st_find(golden, "main/ids");
    json_t *j = json_load_file(TS_MINI8 "/golden.json", 0, NULL);
    json_t *want = json_object_get(json_object_get(json_object_get(json_object_get(j, "runs"), "main"), "drafts"), "3");
    cr_assert(main_ids && want);
    const int32_t *id = main_ids->data;
    char text[64];
    snprintf(text, sizeof text, "%d %d %d %d", id[0], id[1], id[2], id[3]);
    char *ids = ts_write_file(t.dir, "four", text);
    snprintf(text, sizeof text, "%d %d", id[4], id[5]);
    char *more = ts_write_file(t.dir, "two", text);
    struct scored s = SCORE(t.dir, "draft", "--ids", ids, "--continue", more, "--exact", "--dump", "draft");
    json_t *draft = json_object_get(s.report, "draft");
    cr_expect_eq((int)json_integer_value(json_object_get(draft, "token")), id[4]);
    cr_expect(json_equal(json_object_get(draft, "ids"), json_object_get(want, "ids")));
    for (size_t i = 0; i < 5; i++) {
        double c = json_real_value(json_array_get(json_object_get(draft, "confidence"), i));
        cr_expect_float_eq(c, json_real_value(json_array_get(json_object_get(want, "confidence"), i)), 0.02);
    }
    mdl_st_close(golden);
    json_decref(j);
    free(ids);
    free(more);
    scored_free(&s);
    tear_down(&t);
}

/* A row of an Engram table of each head and order lies behind those of the columns before it. */
Test(score, dump_of_many_engram_columns)
{
    struct setting t = set_up(3);
    char *model = NULL, *out = NULL, *dump_path = NULL;
    const char *tool = ts_program("tools/make_model");
    cr_assert(asprintf(&model, "%s/model", t.dir) > 0 && asprintf(&out, "%s/out", t.dir) > 0 &&
              asprintf(&dump_path, "%s/dump.safetensors", out) > 0);
    struct ts_result r = ts_run_argv(
        NULL, (const char *const[]){tool, "--out", model, "--engram-heads", "16", "--engram-ngram", "9", NULL});
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    r = ts_run_argv(NULL, (const char *const[]){ts_weft(), "score", "-m", model, "--ids", t.ids, "--out", out,
                                                "--exact", "--dump", "experts", NULL});
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    struct mdl_st *dump;
    struct cfg_error err = {0};
    cr_assert_eq(mdl_st_open(dump_path, &dump, &err), 0, "%s", err.msg);
    const struct mdl_tensor *rows = mdl_st_find(dump, "engram_rows.0");
    cr_assert(rows && rows->ndim == 2 && rows->shape[0] == 3 && rows->shape[1] == 128);
    const int32_t *id = rows->data;
    for (int i = 0; i < 3; i++)
        for (int k = 1; k < 128; k++)
            cr_assert_lt(id[i * 128 + k - 1], id[i * 128 + k], "row %d, column %d", i, k);
    mdl_st_close(dump);
    free(model);
    free(out);
    free(dump_path);
    tear_down(&t);
}

/* ---- mistakes ---- */

struct mistake {
    int status;
    const char *part;
    const char *args[12];
};

Test(score, mistakes)
{
    struct setting t = set_up(PROMPT);
    char *out = NULL;
    cr_assert_gt(asprintf(&out, "%s/out", t.dir), 0);
    char *empty = ts_write_file(t.dir, "empty", " \n "), *words = ts_write_file(t.dir, "words", "1 2 three 4");
    char *minus = ts_write_file(t.dir, "minus", "1 -2"), *large = ts_write_file(t.dir, "large", "1 2 511 512");
    const struct mistake mistakes[] = {
        {2, "--ids FILE", {"-m", TS_MINI8, "--out", out}},
        {2, "-m DIR", {"--ids", t.ids, "--out", out}},
        {2, "--out DIR", {"-m", TS_MINI8, "--ids", t.ids}},
        {2, "exclude each other", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--exact", "--replay", "20"}},
        {2, "--replay", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--replay", "0"}},
        {2, "--chunk", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--chunk", "-1"}},
        {2, "--bridge-window", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--bridge-window", "x"}},
        {2, "--drop-window", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--drop-windw"}},
        {1, "below the window of 16", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--replay", "15"}},
        {1, "--hit 7", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--hit", "7"}},
        {1, "below the 60 prompt tokens", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--hit", "60"}},
        {1, "layrs", {"-m", TS_MINI8, "--ids", t.ids, "--out", out, "--dump", "layrs"}},
        {1, "no token id", {"-m", TS_MINI8, "--ids", empty, "--out", out}},
        {1, "\"three 4\"", {"-m", TS_MINI8, "--ids", words, "--out", out}},
        {1, "\"-2\"", {"-m", TS_MINI8, "--ids", minus, "--out", out}},
        {1, "512", {"-m", TS_MINI8, "--ids", large, "--out", out}},
        {1, "512", {"-m", TS_MINI8, "--ids", t.ids, "--continue", large, "--out", out}},
        {1, "/nowhere", {"-m", "/nowhere", "--ids", t.ids, "--out", out}},
        {1, "/nowhere", {"-m", TS_MINI8, "--ids", "/nowhere", "--out", out}},
        {1, "folder", {"-m", TS_MINI8, "--ids", t.ids, "--out", t.ids}},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const char *argv[16] = {ts_weft(), "score"};
        for (int k = 0; mistakes[i].args[k]; k++)
            argv[k + 2] = mistakes[i].args[k];
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, mistakes[i].status, "case %zu: status %d, %s", i, r.status, r.err);
        cr_expect_not_null(strstr(r.err, mistakes[i].part), "case %zu: no \"%s\" in %s", i, mistakes[i].part, r.err);
        cr_expect_eq(r.out_len, 0u);
        ts_result_free(&r);
    }
    free(out);
    free(empty);
    free(words);
    free(minus);
    free(large);
    tear_down(&t);
}
