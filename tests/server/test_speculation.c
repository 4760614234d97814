/* A server that plans its drafts: the same text, counters that agree with each other wherever they are shown, blocks in
 * the log that `weft calibrate` reads, files that do not fit. */
#include "tests/harness.h"

#include <jansson.h>
#include <signal.h>
#include <unistd.h>

#include "tests/support/less.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

static struct ts_server server;

static void stop(void)
{
    ts_server_free(&server);
}

TestSuite(speculation, .fini = stop);

static json_t *complete(const char *prompt, double temperature, int tokens)
{
    struct ts_reply r =
        ts_postf(&server, "/v1/completions", "{\"prompt\":\"%s\",\"max_tokens\":%d,\"temperature\":%g,\"seed\":5}",
                 prompt, tokens, temperature);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *j = json_loads(r.body, 0, NULL);
    ts_reply_free(&r);
    cr_assert_not_null(j);
    return j;
}

static const char *text_of(const json_t *j)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(j, "choices"), 0), "text"));
}

static int64_t drafts_of(const json_t *j, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(json_object_get(j, "usage"), "speculation"), key));
}

static const char *const prompts[] = {"Genesis 20", "And the king of Israel said", "LIBERTY, n.",
                                      "And it came to pass"};

static void ask_all(char *text[8])
{
    for (int i = 0; i < 8; i++) {
        json_t *j = complete(prompts[i / 2], i % 2 ? 0.7 : 0, 48);
        text[i] = strdup(text_of(j));
        json_decref(j);
    }
}

Test(speculation, every_mode_gives_the_same_text)
{
    static const char *const config[] = {
        "speculation = { mode = \"off\"; };",
        "speculation = { mode = \"fixed\"; draft_length = 5; };",
        "speculation = { mode = \"dynamic\"; draft_length = 5; min_gain = 0.0; probe_share = 0.2; };",
        "speculation = { mode = \"dynamic\"; draft_length = 4; budget = \"early_stop\"; probe_share = 0.2; };",
        "speculation = { mode = \"fixed\"; draft_length = 0; };",
    };
    char *first[8] = {0}, *now[8];
    for (size_t c = 0; c < sizeof config / sizeof *config; c++) {
        ts_server_start(&server, NULL, config[c]);
        ask_all(c ? now : first);
        for (int i = 0; c && i < 8; i++) {
            cr_expect_str_eq(now[i], first[i], "%s", config[c]);
            free(now[i]);
        }
        ts_server_free(&server);
    }
    for (int i = 0; i < 8; i++)
        free(first[i]);
}

enum { PLACES = 3 };

/* Adds one request's list to the sum of all, and returns what the list itself comes to. */
static int64_t by_place(const json_t *usage, const char *key, int64_t sum[PLACES])
{
    const json_t *list = json_object_get(json_object_get(usage, "speculation"), key);
    int64_t own = 0;
    cr_expect_leq(json_array_size(list), PLACES);
    for (size_t k = 0; k < json_array_size(list) && k < PLACES; k++) {
        int64_t n = json_integer_value(json_array_get(list, k));
        own += n;
        sum[k] += n;
    }
    return own;
}

static void expect_places(const char *what, const int64_t sum[PLACES])
{
    for (int k = 0; k < PLACES; k++) {
        char name[128];
        snprintf(name, sizeof name, "weft_spec_decode_num_%s_tokens_per_pos_total{position=\"%d\"}", what, k);
        cr_expect_eq(ts_metric(&server, name), (double)sum[k], "%s: %g, %lld", name, ts_metric(&server, name),
                     (long long)sum[k]);
    }
}

Test(speculation, counters_agree_wherever_they_are_shown)
{
    ts_server_start(&server, NULL, "speculation = { mode = \"fixed\"; draft_length = 3; };");
    int64_t steps = 0, drafted = 0, offered = 0, accepted = 0, emitted = 0;
    int64_t offered_at[PLACES] = {0}, accepted_at[PLACES] = {0};
    for (int i = 0; i < 4; i++) {
        json_t *j = complete(prompts[i], 0, 40);
        int64_t own[] = {drafts_of(j, "steps"), drafts_of(j, "drafted"), drafts_of(j, "offered"),
                         drafts_of(j, "accepted")};
        int64_t tokens = json_integer_value(json_object_get(json_object_get(j, "usage"), "completion_tokens"));
        /* The first token comes from the prompt, the others from steps: drafts, and one of the target's own each,
         * except where a draft that was kept ends the text. */
        int64_t more = own[0] + own[3] - (tokens - 1);
        const char *why =
            json_string_value(json_object_get(json_array_get(json_object_get(j, "choices"), 0), "finish_reason"));
        cr_expect(more == 0 || (more == 1 && !strcmp(why, "stop")), "%lld steps, %lld accepted, %lld tokens, %s",
                  (long long)own[0], (long long)own[3], (long long)tokens, why);
        cr_expect(own[1] >= own[2] && own[2] >= own[3] && own[2] <= 3 * own[0]);
        cr_expect_eq(drafts_of(j, "emitted"), tokens - 1);
        cr_expect_eq(by_place(json_object_get(j, "usage"), "offered_by_position", offered_at), own[2]);
        cr_expect_eq(by_place(json_object_get(j, "usage"), "accepted_by_position", accepted_at), own[3]);
        steps += own[0];
        drafted += own[1];
        offered += own[2];
        accepted += own[3];
        emitted += tokens - 1;
        json_decref(j);
    }
    ts_until_metric(&server, "weft_spec_decode_request_steps_total", (double)steps);
    cr_expect_eq(ts_metric(&server, "weft_spec_decode_num_drafted_tokens_total"), (double)drafted);
    cr_expect_eq(ts_metric(&server, "weft_spec_decode_num_offered_tokens_total"), (double)offered);
    cr_expect_eq(ts_metric(&server, "weft_spec_decode_num_accepted_tokens_total"), (double)accepted);
    cr_expect_eq(ts_metric(&server, "weft_spec_decode_emitted_tokens_total"), (double)emitted);
    expect_places("offered", offered_at);
    expect_places("accepted", accepted_at);
    static const char *const says[] = {
        "offered=", "accepted=", "emitted=", "steps=",
        /* the start says what is on */
        "speculation mode=fixed length=3 acceptance=match calibrated=greedy,match,reject"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        ts_server_wait_log(&server, says[i]);
}

static json_t *usage_of(const char *path, const char *body)
{
    struct ts_reply r = ts_post(&server, path, body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *j = json_loads(r.body, 0, NULL), *usage = json_incref(json_object_get(j, "usage"));
    cr_assert_not_null(usage, "%s", r.body);
    json_decref(j);
    ts_reply_free(&r);
    return usage;
}

/* Every protocol tells the same counters, and with them those of the places. */
Test(speculation, usage_of_every_protocol_has_them)
{
    static const struct {
        const char *path, *body;
    } ask[] = {
        {"/v1/completions", "{\"prompt\":\"Genesis 20\",\"max_tokens\":24,\"temperature\":0}"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Genesis 20\"}],\"max_tokens\":24,"
                                 "\"temperature\":0}"},
        {"/v1/responses", "{\"input\":\"Genesis 20\",\"max_output_tokens\":24,\"temperature\":0}"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"Genesis 20\"}],\"max_tokens\":24,"
                         "\"temperature\":0}"},
    };
    ts_server_start(&server, NULL, "speculation = { mode = \"fixed\"; draft_length = 3; };");
    double emitted = 0;
    for (size_t i = 0; i < sizeof ask / sizeof *ask; i++) {
        json_t *usage = usage_of(ask[i].path, ask[i].body), *own = json_object_get(usage, "speculation");
        int64_t at[PLACES] = {0},
                tokens = json_integer_value(json_object_get(usage, i < 2 ? "completion_tokens" : "output_tokens"));
        cr_expect_eq(json_integer_value(json_object_get(own, "emitted")), tokens - 1, "%s", ask[i].path);
        cr_expect_eq(by_place(usage, "offered_by_position", at), json_integer_value(json_object_get(own, "offered")),
                     "%s", ask[i].path);
        cr_expect_eq(json_array_size(json_object_get(own, "accepted_by_position")), PLACES, "%s", ask[i].path);
        emitted += (double)(tokens - 1);
        json_decref(usage);
    }
    ts_until_metric(&server, "weft_spec_decode_emitted_tokens_total", emitted);
}

/* A stop string that ends in the middle of a step: what the step brought behind it was emitted and is no part of the
 * answer. */
Test(speculation, a_stop_string_leaves_tokens_behind_it)
{
    ts_server_start(&server, NULL, "speculation = { mode = \"fixed\"; draft_length = 5; };");
    json_t *j = complete(prompts[0], 0, 40);
    char *text = strdup(text_of(j));
    json_decref(j);
    int cut = 0;
    for (size_t n = 2; n + 3 < strlen(text); n++) {
        if (strspn(text + n, "abcdefghijklmnopqrstuvwxyz ") < 3)
            continue;
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":40,\"temperature\":0,\"stop\":[\"%.3s\"]}",
                 prompts[0], text + n);
        json_t *usage = usage_of("/v1/completions", body), *own = json_object_get(usage, "speculation");
        int64_t tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
        int64_t emitted = json_integer_value(json_object_get(own, "emitted"));
        cr_expect(!own || emitted >= tokens - 1, "%lld of %lld", (long long)emitted, (long long)tokens);
        cut += emitted > tokens - 1;
        json_decref(usage);
    }
    cr_expect_gt(cut, 0, "no answer ended in the middle of a step");
    free(text);
}

/* Off: nothing is drafted, and nothing says otherwise. */
Test(speculation, off_drafts_nothing)
{
    ts_server_start(&server, NULL, "speculation = { mode = \"off\"; };");
    json_t *j = complete(prompts[0], 0, 20);
    cr_expect_null(json_object_get(json_object_get(j, "usage"), "speculation"));
    json_decref(j);
    ts_until_metric(&server, "weft_spec_decode_request_steps_total", 19);
    cr_expect_eq(ts_metric(&server, "weft_spec_decode_num_drafted_tokens_total"), 0);
    cr_expect_eq(ts_metric(&server, "weft_spec_decode_steps_without_draft_total"), 19);
}

Test(speculation, rejection_is_served_too)
{
    ts_server_start(&server, NULL,
                    "speculation = { mode = \"fixed\"; draft_length = 3; acceptance = \"rejection\"; };");
    int64_t accepted = 0;
    for (int i = 0; i < 4; i++) {
        json_t *j = complete(prompts[i], 0.8, 40);
        accepted += drafts_of(j, "accepted");
        json_decref(j);
    }
    cr_expect_gt(accepted, 0);
    struct ts_reply r = ts_post(&server, "/v1/completions",
                                "{\"prompt\":\"Genesis\",\"max_tokens\":12,\"temperature\":1,\"logprobs\":3}");
    cr_expect_eq(r.status, 200, "%s", r.body);
    cr_expect_not_null(strstr(r.body, "token_logprobs"), "%s", r.body);
    ts_reply_free(&r);
}

/* The log of a server at level debug is enough to fit the confidences of its own traffic. */
Test(speculation, logged_blocks_can_be_fitted)
{
    static const char *const format[] = {"text", "json"};
    for (int f = 0; f < 2; f++) {
        char config[256], *dir = ts_temp_dir(), out[4200], log[4200];
        snprintf(
            config, sizeof config,
            "speculation = { mode = \"fixed\"; draft_length = 5; }; log = { level = \"debug\"; format = \"%s\"; };",
            format[f]);
        ts_server_start(&server, NULL, config);
        for (int i = 0; i < 8; i++)
            json_decref(complete(prompts[i % 4], 0, 96 + 8 * i));
        kill(server.pid, SIGTERM);
        cr_assert_eq(ts_server_wait(&server), 0);
        char *text = ts_server_log(&server);
        char *path = ts_write_file(dir, "log", text);
        snprintf(log, sizeof log, "%s", path);
        snprintf(out, sizeof out, "%s/calibration.json", dir);
        free(text);
        free(path);
        struct ts_result r = ts_run(ts_weft(), "calibrate", "-m", "samples/tiny", "--log", log, "-o", out);
        cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
        cr_expect_not_null(strstr(r.out, "greedy: calibration error"), "%s", r.out);
        ts_result_free(&r);
        cr_expect_eq(access(out, R_OK), 0);
        ts_server_free(&server);
        ts_remove_dir(dir);
        free(dir);
    }
}

/* The next logged block at or behind `at`: of which request, and how many of its drafts were kept. NULL: there is none.
 */
static const char *next_block(const char *at, unsigned *number, int *kept)
{
    at = strstr(at, " probe number=");
    cr_assert(!at || sscanf(at, " probe number=%u choice=%*s kept=%d", number, kept) == 2, "%.200s", at);
    return at ? at + 1 : NULL;
}

/* The block in which a text ends is logged like those before it, with the drafts that came out: were it left out, the
 * sample would be chosen by its outcome. */
Test(speculation, the_block_that_ends_a_text_is_logged)
{
    enum { REQUESTS = TS_LESS > 1 ? 3 : 12, MOST = 160 };
    struct {
        bool stopped;
        int64_t steps, accepted;
    } request[REQUESTS];
    int n = 0, ended = 0;
    ts_server_start(&server, NULL,
                    "speculation = { mode = \"fixed\"; draft_length = 5; }; log = { level = \"debug\"; };");
    for (int seed = 0; seed < REQUESTS; seed++) {
        struct ts_reply r =
            ts_postf(&server, "/v1/completions",
                     "{\"prompt\":\"%s\",\"max_tokens\":400,\"temperature\":1.3,\"seed\":%d}", prompts[seed % 4], seed);
        cr_assert_eq(r.status, 200, "%s", r.body);
        json_t *j = json_loads(r.body, 0, NULL), *choice = json_array_get(json_object_get(j, "choices"), 0);
        ts_reply_free(&r);
        int64_t tokens = json_integer_value(json_object_get(json_object_get(j, "usage"), "completion_tokens"));
        /* So long before max_tokens that every step has a whole block. */
        request[n].stopped =
            !strcmp(json_string_value(json_object_get(choice, "finish_reason")), "stop") && tokens < MOST - 8;
        request[n].steps = drafts_of(j, "steps");
        request[n].accepted = drafts_of(j, "accepted");
        n += request[n].steps > 0;
        json_decref(j);
    }
    kill(server.pid, SIGTERM);
    cr_assert_eq(ts_server_wait(&server), 0);
    char *log = ts_server_log(&server);
    if (strstr(log, "records were lost"))
        cr_skip_test("the log could not be written as fast as it came");
    unsigned number = 0, now;
    int kept, blocks[REQUESTS] = {0}, sum[REQUESTS] = {0}, at = -1;
    for (const char *line = log; (line = next_block(line, &now, &kept)); number = now) {
        at += at < 0 || now != number; /* one request after the other */
        cr_assert_lt(at, n);
        blocks[at]++;
        sum[at] += kept;
    }
    for (int i = 0; i < n; i++) {
        cr_expect(blocks[i] > 0 && blocks[i] <= request[i].steps);
        if (!request[i].stopped)
            continue;
        cr_expect_eq(blocks[i], request[i].steps, "%d: %d blocks of %d steps", i, blocks[i], (int)request[i].steps);
        cr_expect_eq(sum[i], request[i].accepted, "%d: %d kept, %d accepted", i, sum[i], (int)request[i].accepted);
        ended++;
    }
    cr_expect(TS_LESS > 1 || ended > 0, "%d of %d texts ended by themselves", ended, n);
    free(log);
}

/* A table that was measured by other code, with other threads or for fewer sequences is measured anew and replaced,
 * with a word about what differs; the next start takes it. */
Test(speculation, a_table_of_another_place_is_not_used)
{
    const char *scripted = ts_program("tests/server/weft_scripted"); /* the same sources, linked otherwise */
    const struct {
        const char *program;
        int threads, streams;
        const char *differs; /* NULL: nothing does */
    } start[] = {
        {NULL, 1, 2, "no step-time table of format"},
        {NULL, 1, 2, NULL},
        {NULL, 2, 2, "another machine ("},
        {NULL, 2, 3, "up to 2 sequences at a time, here are 3"},
        {NULL, 2, 2, NULL},
        {scripted, 2, 3, "another build_id ("},
        {scripted, 2, 3, NULL},
    };
    char *dir = ts_temp_dir(), *path = ts_write_file(dir, "table", "{\"format\":1,\"model\":\"else\"}");
    for (size_t i = 0; i < sizeof start / sizeof *start; i++) {
        char config[4500];
        snprintf(config, sizeof config,
                 "speculation = { mode = \"dynamic\"; draft_length = 5; table_file = \"%s\"; measure = \"60s\"; };\n"
                 "engine = { decode_streams = %d; }; compute = { threads = %d; };",
                 path, start[i].streams, start[i].threads);
        ts_server_start(&server, start[i].program, config);
        kill(server.pid, SIGTERM);
        cr_assert_eq(ts_server_wait(&server), 0);
        char *log = ts_server_log(&server);
        const char *differs = start[i].differs;
        cr_expect_not_null(strstr(log, differs ? "source=measured" : "source=file"), "start %zu: %s", i, log);
        cr_expect_eq(strstr(log, "measured anew") != NULL, differs != NULL, "start %zu: %s", i, log);
        cr_expect(!differs || strstr(log, differs), "start %zu should say \"%s\": %s", i, differs, log);
        free(log);
        ts_server_free(&server);
    }
    free(path);
    ts_remove_dir(dir);
    free(dir);
}
