/* weft generate as a program: text, stop strings, JSON, batches that go on where they stopped, and mistakes. The model
 * is a random one with a small tokenizer; it writes noise, and the same noise every time. */
#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/utf8.h"
#include "cli/engine.h"
#include "tests/harness.h"
#include "tests/support/model.h"
#include "tests/support/process.h"
#include "tests/support/text_model.h"

#define PROMPT "Hello there"

/* generate -m DIR with the arguments behind it, which must succeed. */
#define GENERATE(dir, ...) must(ts_run(ts_weft(), "generate", "-m", dir, "--threads", "1", __VA_ARGS__))

static struct ts_result must(struct ts_result r)
{
    if (r.status != 0)
        cr_assert_fail("exit status %d: %s", r.status, r.err);
    return r;
}

static json_t *parse(const char *text, size_t len)
{
    json_error_t e;
    json_t *j = json_loadb(text, len, JSON_ALLOW_NUL, &e);
    cr_assert_not_null(j, "%s: %.200s", e.text, text);
    return j;
}

static int whole(const json_t *j, const char *key)
{
    return (int)json_integer_value(json_object_get(j, key));
}

static void end_dir(char *dir)
{
    ts_remove_dir(dir);
    free(dir);
}

/* ---- one prompt ---- */

Test(generate, text_does_not_depend_on_speculation)
{
    char *dir = ts_text_model(TS_MINI8);
    static const char *const recipes[][2] = {{"0", "0"}, {"1", "7"}, {"0.6", "8"}};
    static const char *const drafts[] = {"1", "3", "5"};
    for (int i = 0; i < 3; i++) {
        const char *t = recipes[i][0], *seed = recipes[i][1];
        struct ts_result plain = GENERATE(dir, "-p", PROMPT, "-n", "40", "-t", t, "--seed", seed);
        cr_assert_eq(strncmp(plain.out, PROMPT, strlen(PROMPT)), 0, "the prompt comes first: %s", plain.out);
        cr_assert_eq(plain.out[plain.out_len - 1], '\n');
        cr_assert_str_eq(plain.err, "");
        struct ts_result other = GENERATE(dir, "-p", PROMPT, "-n", "40", "-t", t, "--seed", seed, "--no-spec");
        cr_assert(other.out_len == plain.out_len && !memcmp(other.out, plain.out, plain.out_len), "temperature %s", t);
        ts_result_free(&other);
        other =
            GENERATE(dir, "-p", PROMPT, "-n", "40", "-t", t, "--seed", seed, "--draft", drafts[i], "--threads", "2");
        cr_assert(other.out_len == plain.out_len && !memcmp(other.out, plain.out, plain.out_len), "draft %s",
                  drafts[i]);
        ts_result_free(&other);
        ts_result_free(&plain);
    }
    end_dir(dir);
}

Test(generate, seed_is_the_text)
{
    char *dir = ts_text_model(TS_MINI8);
    struct ts_result a = GENERATE(dir, "-p", PROMPT, "-n", "30", "--seed", "1");
    struct ts_result b = GENERATE(dir, "-p", PROMPT, "-n", "30", "--seed", "1");
    struct ts_result c = GENERATE(dir, "-p", PROMPT, "-n", "30", "--seed", "2");
    cr_expect(a.out_len == b.out_len && !memcmp(a.out, b.out, a.out_len));
    cr_expect(a.out_len != c.out_len || memcmp(a.out, c.out, a.out_len));
    ts_result_free(&a);
    ts_result_free(&b);
    ts_result_free(&c);
    end_dir(dir);
}

Test(generate, number_of_tokens)
{
    char *dir = ts_text_model(TS_MINI8);
    static const char *const counts[] = {"1", "2", "6", "7", "19"};
    char *longest = NULL;
    for (size_t i = 5; i-- > 0;) {
        struct ts_result r = GENERATE(dir, "-p", PROMPT, "-n", counts[i], "--ignore-eos", "--json");
        json_t *j = parse(r.out, r.out_len), *ids = json_object_get(j, "ids"), *usage = json_object_get(j, "usage");
        cr_assert_eq((int)json_array_size(ids), atoi(counts[i]));
        cr_assert_eq(whole(usage, "completion_tokens"), atoi(counts[i]));
        cr_assert_str_eq(json_string_value(json_object_get(j, "finish_reason")), "length");
        /* A shorter run is the beginning of a longer one. */
        char *text = json_dumps(ids, JSON_COMPACT);
        if (longest)
            cr_assert_eq(strncmp(longest, text, strlen(text) - 1), 0, "%s, %s", longest, text);
        free(longest);
        longest = text;
        json_decref(j);
        ts_result_free(&r);
    }
    free(longest);
    /* The context ends before the number asked for. */
    struct ts_result r = GENERATE(dir, "-p", PROMPT, "-n", "5000", "--ignore-eos", "--json");
    json_t *j = parse(r.out, r.out_len), *usage = json_object_get(j, "usage");
    cr_assert_eq(whole(usage, "prompt_tokens") + whole(usage, "completion_tokens"), 1024, "the model's context");
    cr_assert_str_eq(json_string_value(json_object_get(j, "finish_reason")), "length");
    json_decref(j);
    ts_result_free(&r);
    end_dir(dir);
}

Test(generate, json_fields)
{
    char *dir = ts_text_model(TS_MINI8);
    struct ts_result r = GENERATE(dir, "-p", PROMPT, "-n", "12", "-t", "0", "--json", "--logprobs", "3", "--replay",
                                  "17", "--bridge-window", "full", "--frequency-penalty", "0.5", "--seed", "9");
    struct ts_result text = GENERATE(dir, "-p", PROMPT, "-n", "12", "-t", "0", "--frequency-penalty", "0.5", "--replay",
                                     "17", "--bridge-window", "full");
    json_t *j = parse(r.out, r.out_len), *c = json_object_get(j, "counters"), *recipe = json_object_get(j, "recipe");
    json_t *lp = json_object_get(j, "logprobs"), *ids = json_object_get(j, "ids"), *t = json_object_get(j, "text");
    cr_expect_eq(memchr(r.out, '\n', r.out_len) - (void *)r.out, (long)r.out_len - 1, "one line");
    cr_expect_eq(json_string_length(t) + strlen(PROMPT) + 1, text.out_len, "the text without the prompt");
    cr_expect_arr_eq(json_string_value(t), text.out + strlen(PROMPT), json_string_length(t));
    cr_expect_eq((int)json_array_size(lp), 12);
    for (size_t i = 0; i < json_array_size(lp); i++) {
        json_t *one = json_array_get(lp, i), *top = json_object_get(one, "top");
        cr_expect_eq(whole(one, "id"), (int)json_integer_value(json_array_get(ids, i)));
        cr_expect_eq((int)json_array_size(top), 3);
        cr_expect_lt(json_real_value(json_object_get(one, "logprob")), 0.0);
    }
    cr_expect_eq(whole(c, "emitted"), 11, "the first token comes from the prompt");
    cr_expect_eq(whole(c, "emitted"), whole(c, "accepted") + whole(c, "steps"));
    cr_expect_ge(whole(c, "drafted"), whole(c, "offered"));
    cr_expect_eq((int)json_array_size(json_object_get(c, "offered_by_position")), 5);
    static const char *const keys[] = {"model_revision",
                                       "cpu_path",
                                       "seed",
                                       "temperature",
                                       "top_k",
                                       "top_p",
                                       "min_p",
                                       "repetition_penalty",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "mode",
                                       "replay",
                                       "bridge_window"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        cr_expect_not_null(json_object_get(recipe, keys[i]), "the recipe lacks %s", keys[i]);
    cr_expect_eq(whole(recipe, "seed"), 9);
    cr_expect_eq(whole(recipe, "replay"), 17);
    cr_expect_str_eq(json_string_value(json_object_get(recipe, "bridge_window")), "full");
    cr_expect_float_eq(json_number_value(json_object_get(recipe, "frequency_penalty")), 0.5, 1e-12);
    json_decref(j);
    ts_result_free(&r);
    ts_result_free(&text);
    r = GENERATE(dir, "-p", PROMPT, "-n", "3", "--exact", "--json", "--no-spec");
    j = parse(r.out, r.out_len);
    recipe = json_object_get(j, "recipe");
    cr_expect_str_eq(json_string_value(json_object_get(recipe, "mode")), "exact");
    cr_expect_null(json_object_get(recipe, "replay"));
    cr_expect_null(json_object_get(j, "logprobs"), "only when asked for");
    cr_expect_eq(whole(json_object_get(j, "counters"), "offered"), 0);
    json_decref(j);
    ts_result_free(&r);
    end_dir(dir);
}

Test(generate, standard_input_and_stats)
{
    char *dir = ts_text_model(TS_MINI8);
    struct ts_result a = must(ts_run_input(PROMPT, ts_weft(), "generate", "-m", dir, "-", "-n", "9", "--stats"));
    struct ts_result b = GENERATE(dir, "-p", PROMPT, "-n", "9");
    cr_expect_eq(a.out_len + strlen(PROMPT), b.out_len);
    cr_expect_arr_eq(a.out, b.out + strlen(PROMPT), a.out_len);
    static const char *const words[] = {"prompt", "output",  "9 tokens", "steps",
                                        "drafts", "offered", "accepted", "cpu path"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        cr_expect_not_null(strstr(a.err, words[i]), "no \"%s\" in %s", words[i], a.err);
    ts_result_free(&a);
    ts_result_free(&b);
    end_dir(dir);
}

/* A stop string may begin and end anywhere, also inside a token; what is printed ends right before its first
 * occurrence. */
Test(generate, stop_strings_never_show)
{
    char *dir = ts_text_model(TS_MINI8);
    struct ts_result all = GENERATE(dir, "-p", PROMPT, "-n", "36", "--seed", "3");
    const char *text = all.out + strlen(PROMPT);
    size_t len = all.out_len - strlen(PROMPT) - 1;
    for (size_t at = 3; at + 8 < len; at += 11) {
        /* Whole characters, without a zero byte. */
        size_t from = at, to = at + 2 + at % 5;
        while ((text[from] & 0xc0) == 0x80)
            from++;
        while (to < len && (text[to] & 0xc0) == 0x80)
            to++;
        char stop[32];
        snprintf(stop, sizeof stop, "%.*s", (int)(to - from), text + from);
        if (strlen(stop) != to - from || to >= len)
            continue;
        const char *first = memmem(text, len, stop, to - from);
        struct ts_result r =
            GENERATE(dir, "-p", PROMPT, "-n", "36", "--seed", "3", "--stop", "never \x01", "--stop", stop);
        cr_assert_eq(r.out_len, (size_t)(first - all.out) + 1, "stop \"%s\": \"%s\"", stop, r.out);
        cr_assert_arr_eq(r.out, all.out, r.out_len - 1, "stop \"%s\"", stop);
        ts_result_free(&r);
        r = GENERATE(dir, "-p", PROMPT, "-n", "36", "--seed", "3", "--stop", stop, "--json");
        json_t *j = parse(r.out, r.out_len);
        cr_assert_str_eq(json_string_value(json_object_get(j, "finish_reason")), "stop");
        cr_assert_eq(json_string_length(json_object_get(j, "text")), (size_t)(first - text));
        json_decref(j);
        ts_result_free(&r);
        /* The same beginning with another end is no stop: the text held back for it comes in the end. */
        snprintf(stop + (to - from) - 1, sizeof stop - (to - from) + 1, "\x02");
        if (mdl_utf8_valid(stop, strlen(stop))) {
            r = GENERATE(dir, "-p", PROMPT, "-n", "36", "--seed", "3", "--stop", stop);
            cr_assert(r.out_len == all.out_len && !memcmp(r.out, all.out, all.out_len), "almost stop \"%s\"", stop);
            ts_result_free(&r);
        }
    }
    /* The end of the text, cut by -n, could have become a stop: it is printed. */
    char tail[64];
    size_t from = len - 1;
    while ((text[from] & 0xc0) == 0x80)
        from--;
    snprintf(tail, sizeof tail, "%.*s and on", (int)(len - from), text + from);
    struct ts_result r = GENERATE(dir, "-p", PROMPT, "-n", "36", "--seed", "3", "--stop", tail);
    cr_assert(r.out_len == all.out_len && !memcmp(r.out, all.out, all.out_len), "open end \"%s\"", tail);
    ts_result_free(&r);
    ts_result_free(&all);
    end_dir(dir);
}

Test(generate, conversation)
{
    char *dir = ts_text_model(TS_MINI8);
    char *chat = ts_write_file(dir, "chat.json", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}");
    char *think =
        ts_write_file(dir, "think.json", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"thinking\":true}");
    struct ts_result r = GENERATE(dir, "--chat", chat, "-n", "10", "--json");
    json_t *j = parse(r.out, r.out_len);
    cr_expect_not_null(json_object_get(j, "content"));
    cr_expect(!json_object_get(j, "text") && !json_object_get(j, "reasoning_content"));
    struct ts_result text = GENERATE(dir, "--chat", chat, "-n", "10");
    size_t len = json_string_length(json_object_get(j, "content"));
    cr_expect_eq(text.out_len, len + 1, "only the answer is printed");
    cr_expect_arr_eq(text.out, json_string_value(json_object_get(j, "content")), len);
    json_decref(j);
    ts_result_free(&r);
    ts_result_free(&text);
    r = GENERATE(dir, "--chat", think, "-n", "10", "--json");
    j = parse(r.out, r.out_len);
    cr_expect(json_object_get(j, "content") && json_object_get(j, "reasoning_content"));
    json_decref(j);
    ts_result_free(&r);
    free(chat);
    free(think);
    end_dir(dir);
}

/* ---- batches ---- */

enum { LINES = 9 };

static const char batch_text[] = "{\"prompt\":\"Hello there\",\"id\":\"first\",\"max_tokens\":9}\n"
                                 "{\"prompt\":\"The road goes on\",\"max_tokens\":30}\n"
                                 "\n"
                                 "this is no JSON\n"
                                 "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"id\":{\"n\":3}}\n"
                                 "{\"question\":\"?\"}\n"
                                 "   \t\n"
                                 "{\"prompt\":\"x\",\"max_tokens\":0}\n"
                                 "{\"prompt\":\"short\",\"max_tokens\":1}\n"
                                 "{\"prompt\":\"too long for the context, it does not fit\",\"max_tokens\":900}\n"
                                 "{\"prompt\":\"last one\"}";

/* Line n of a text, parsed. */
static json_t *line_of(const char *text, size_t len, int n)
{
    const char *at = text, *end = text + len, *stop;
    for (; n > 0; n--)
        at = (const char *)memchr(at, '\n', (size_t)(end - at)) + 1;
    stop = memchr(at, '\n', (size_t)(end - at));
    cr_assert_not_null(stop);
    return parse(at, (size_t)(stop - at));
}

static int count_lines(const char *text, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; i++)
        n += text[i] == '\n';
    return n;
}

Test(generate, batch)
{
    char *dir = ts_text_model(TS_MINI8), *file = ts_write_file(dir, "batch.jsonl", batch_text);
    struct ts_result r = GENERATE(dir, "--batch", file, "-n", "14", "--context", "200", "--seed", "5");
    struct ts_result one =
        GENERATE(dir, "--batch", file, "-n", "14", "--context", "200", "--seed", "5", "--parallel", "1");
    struct ts_result three =
        GENERATE(dir, "--batch", file, "-n", "14", "--context", "200", "--seed", "5", "--parallel", "3", "--no-spec");
    cr_assert_eq(count_lines(r.out, r.out_len), LINES);
    cr_expect(r.out_len == one.out_len && !memcmp(r.out, one.out, r.out_len), "--parallel changes nothing");
    static const char *const want[LINES] = {NULL,         NULL, "column",        NULL, "give an object",
                                            "max_tokens", NULL, "--context 200", NULL};
    for (int i = 0; i < LINES; i++) {
        json_t *j = line_of(r.out, r.out_len, i), *k = line_of(three.out, three.out_len, i);
        cr_expect_eq(whole(j, "index"), i);
        cr_expect(json_equal(json_object_get(j, "ids"), json_object_get(k, "ids")), "line %d without speculation", i);
        if (want[i]) {
            const char *error = json_string_value(json_object_get(j, "error"));
            cr_expect_str_eq(json_string_value(json_object_get(j, "finish_reason")), "error");
            cr_expect(error && strstr(error, want[i]), "line %d: %s", i, error ? error : "no error");
        } else {
            cr_expect_null(json_object_get(j, "error"), "line %d", i);
            cr_expect_gt((int)json_array_size(json_object_get(j, "ids")), 0, "line %d", i);
        }
        json_decref(j);
        json_decref(k);
    }
    json_t *first = line_of(r.out, r.out_len, 0), *chat = line_of(r.out, r.out_len, 3),
           *tiny = line_of(r.out, r.out_len, 6);
    cr_expect_str_eq(json_string_value(json_object_get(first, "id")), "first");
    cr_expect_eq(whole(json_object_get(chat, "id"), "n"), 3, "an id of any kind comes back");
    cr_expect_not_null(json_object_get(chat, "content"));
    cr_expect_eq((int)json_array_size(json_object_get(tiny, "ids")), 1);
    /* A line of a batch is what the prompt gives alone. */
    struct ts_result alone = GENERATE(dir, "-p", "Hello there", "-n", "9", "--seed", "5", "--json");
    json_t *j = parse(alone.out, alone.out_len);
    cr_expect(json_equal(json_object_get(j, "ids"), json_object_get(first, "ids")));
    cr_expect(json_equal(json_object_get(j, "text"), json_object_get(first, "text")));
    cr_expect(json_equal(json_object_get(j, "counters"), json_object_get(first, "counters")));
    json_decref(j);
    json_decref(first);
    json_decref(chat);
    json_decref(tiny);
    ts_result_free(&alone);
    ts_result_free(&r);
    ts_result_free(&one);
    ts_result_free(&three);
    free(file);
    end_dir(dir);
}

Test(generate, batch_goes_on_where_it_stopped)
{
    char *dir = ts_text_model(TS_MINI8), *file = ts_write_file(dir, "batch.jsonl", batch_text), *out = NULL;
    cr_assert_gt(asprintf(&out, "%s/out.jsonl", dir), 0);
    struct ts_result r =
        GENERATE(dir, "--batch", file, "--out", out, "-n", "14", "--context", "200", "--parallel", "3");
    cr_assert_eq(r.out_len, 0u, "results go to the file");
    ts_result_free(&r);
    size_t len, again;
    char *full = ts_read_file(out, &len);
    cr_assert_eq(count_lines(full, len), LINES);
    /* Cut at the ends of lines, one byte behind and before them, in the middle, at nothing, at everything. */
    size_t at = 0;
    for (int i = 0; i <= LINES; i++) {
        size_t end = i < LINES ? (size_t)((char *)memchr(full + at, '\n', len - at) - full) + 1 : len;
        const size_t cuts[] = {at, at + (i % 2 ? 1 : 40), end - 1};
        for (int c = 0; c < 3; c++) {
            if (cuts[c] > len || (c && i % 3))
                continue;
            FILE *f = fopen(out, "wb");
            cr_assert(f && fwrite(full, 1, cuts[c], f) == cuts[c] && fclose(f) == 0);
            r = GENERATE(dir, "--batch", file, "--out", out, "-n", "14", "--context", "200", "--parallel", "2");
            char *now = ts_read_file(out, &again);
            cr_assert(again == len && !memcmp(now, full, len), "cut at byte %zu of %zu", cuts[c], len);
            cr_assert_eq(strstr(r.err, "going on") != NULL, count_lines(full, cuts[c]) > 0, "%s", r.err);
            ts_result_free(&r);
            free(now);
        }
        at = end;
    }
    free(full);
    free(file);
    free(out);
    end_dir(dir);
}

static void note_prompt(void *ctx, struct cli_job *job, int done)
{
    int *calls = ctx;
    cr_expect_lt(calls[1], done, "job of %d tokens", job->n_prompt);
    calls[0]++;
    calls[1] = done;
}

/* What the progress display of a long prompt is fed by. */
Test(generate, prompt_is_followed_step_by_step)
{
    char *dir = ts_text_model(TS_MINI8);
    struct cli_engine e;
    struct cfg_error err = {0};
    struct cli_engine_options o = {
        .model_dir = dir, .threads = 1, .exact = true, .draft = 0, .parallel = 1, .chunk = 7};
    cr_assert_eq(cli_engine_open(&o, &e, &err), 0, "%s", err.msg);
    cr_assert_eq(cli_engine_prepare(&e, 22, 20, &err), 0, "%s", err.msg);
    int32_t *ids = ts_ids(e.m, 5, 20);
    int calls[2] = {0, 0};
    struct cli_job job = {.prompt = ids, .n_prompt = 20, .max_new = 2, .on_prompt = note_prompt, .ctx = calls};
    mdl_sampling_init(&job.sampling);
    cli_job_start(&e, &job);
    cr_expect(calls[0] == 3 && calls[1] == 20, "%d calls up to %d", calls[0], calls[1]);
    cli_job_free(&job);
    free(ids);
    cli_engine_close(&e);
    end_dir(dir);
}

/* Nothing is appended to, or cut from, a file that an earlier run of the same batch did not write. */
Test(generate, batch_leaves_other_files_alone)
{
    char *dir = ts_text_model(TS_MINI8), *file = ts_write_file(dir, "batch.jsonl", batch_text);
    char *longer =
        ts_write_file(dir, "longer.jsonl", "{\"index\":0,\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17");
    char *none = ts_write_file(dir, "none.jsonl", "");
    const struct {
        const char *batch, *out, *part;
    } cases[] = {{file, file, "something else"},
                 {none, longer, "more than the 0 prompts"},
                 {file, "/dev/zero", "no regular file"},
                 {file, "/dev/full", "no regular file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *before = i < 2 ? ts_read_file(cases[i].out, NULL) : NULL;
        struct ts_result r = ts_run(ts_weft(), "generate", "-m", dir, "--batch", cases[i].batch, "--out", cases[i].out);
        cr_expect_eq(r.status, 1, "%s: status %d", cases[i].out, r.status);
        cr_expect_not_null(strstr(r.err, cases[i].part), "%s: %s", cases[i].out, r.err);
        ts_result_free(&r);
        char *after = i < 2 ? ts_read_file(cases[i].out, NULL) : NULL;
        cr_expect(!before || !strcmp(before, after), "%s was changed", cases[i].out);
        free(before);
        free(after);
    }
    free(file);
    free(longer);
    free(none);
    end_dir(dir);
}

Test(generate, empty_batch)
{
    char *dir = ts_text_model(TS_MINI8), *file = ts_write_file(dir, "batch.jsonl", "\n \n");
    struct ts_result r = GENERATE(dir, "--batch", file);
    cr_expect_eq(r.out_len, 0u);
    ts_result_free(&r);
    free(file);
    end_dir(dir);
}

/* ---- mistakes ---- */

struct mistake {
    int status;
    const char *part; /* of the message */
    const char *args[10];
};

Test(generate, mistakes)
{
    char *dir = ts_text_model(TS_MINI8), *bad = ts_write_file(dir, "bad.json", "{\"messages\": 3");
    char *empty = ts_write_file(dir, "empty.json", "{\"messages\": []}");
    const struct mistake mistakes[] = {
        {2, "-m DIR", {"-p", "x"}},
        {2, "exactly one", {"-m", dir}},
        {2, "exactly one", {"-m", dir, "-p", "x", "-"}},
        {2, "exactly one", {"-m", dir, "-p", "x", "--batch", bad}},
        {2, "-p TEXT", {"-m", dir, "Hello"}},
        {2, "exclude each other", {"-m", dir, "-p", "x", "--exact", "--replay", "20"}},
        {2, "exclude each other", {"-m", dir, "-p", "x", "--no-spec", "--draft", "2"}},
        {2, "--out belongs to --batch", {"-m", dir, "-p", "x", "--out", "y"}},
        {2, "--tokens", {"-m", dir, "-p", "x", "-n", "0"}},
        {2, "--tokens", {"-m", dir, "-p", "x", "-n", "many"}},
        {2, "--temperature", {"-m", dir, "-p", "x", "-t", "-1"}},
        {2, "--top-p", {"-m", dir, "-p", "x", "--top-p", "1.5"}},
        {2, "--seed", {"-m", dir, "-p", "x", "--seed", "9223372036854775808"}},
        {2, "--bridge-window", {"-m", dir, "-p", "x", "--bridge-window", "half"}},
        {2, "--temperature", {"-m", dir, "-p", "x", "--temprature", "1"}},
        {2, "--stop", {"-m", dir, "-p", "x", "--stop", "\xbf"}},
        {2, "--stop", {"-m", dir, "-p", "x", "--stop", ""}},
        {2, "needs a value", {"-m", dir, "-p"}},
        {1, "at most 5", {"-m", dir, "-p", "x", "--draft", "6"}},
        {1, "window", {"-m", dir, "-p", "x", "--replay", "9"}},
        {1, "/nowhere", {"-m", "/nowhere", "-p", "x"}},
        {1, "/nowhere", {"-m", dir, "--chat", "/nowhere"}},
        {1, "/nowhere", {"-m", dir, "--batch", "/nowhere"}},
        {1, "/nowhere/out", {"-m", dir, "--batch", bad, "--out", "/nowhere/out"}},
        {1, "bad.json", {"-m", dir, "--chat", bad}},
        {1, "messages", {"-m", dir, "--chat", empty}},
        {1, "tokenizer", {"-m", TS_MINI8, "-p", "x"}},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const struct mistake *m = &mistakes[i];
        const char *argv[14] = {ts_weft(), "generate"};
        for (int k = 0; m->args[k]; k++)
            argv[k + 2] = m->args[k];
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, m->status, "case %zu: status %d, %s", i, r.status, r.err);
        cr_expect_not_null(strstr(r.err, m->part), "case %zu: no \"%s\" in %s", i, m->part, r.err);
        cr_expect_eq(count_lines(r.err, r.err_len), 1, "case %zu: one line: %s", i, r.err);
        cr_expect_eq(r.out_len, 0u, "case %zu prints %s", i, r.out);
        ts_result_free(&r);
    }
    struct ts_result r = ts_run(ts_weft(), "generate", "--help");
    cr_expect(r.status == 0 && strstr(r.out, "usage: weft generate") && strstr(r.out, "--batch"));
    ts_result_free(&r);
    /* An unusable prompt: more tokens than the context. */
    char *text = malloc(6001);
    memset(text, 'x', 6000);
    text[6000] = 0;
    for (int i = 0; i < 6000; i += 2)
        text[i] = ' ';
    r = ts_run_input(text, ts_weft(), "generate", "-m", dir, "-", "-n", "3");
    cr_expect_eq(r.status, 1);
    cr_expect_not_null(strstr(r.err, "context is 1024"), "%s", r.err);
    ts_result_free(&r);
    free(text);
    free(bad);
    free(empty);
    end_dir(dir);
}
