/* Files of figures that --from reads: what is forged, damaged or of another command is refused with the point and the
 * figure, before anything is written; what a run has written is taken. */
#include "tests/harness.h"

#include <errno.h>
#include <jansson.h>
#include <unistd.h>

#include "cli/bench_decode.h"
#include "cli/bench_prefill.h"
#include "cli/bench_serve_report.h"
#include "tests/support/process.h"

enum which { DECODE, PREFILL, SERVE };
static const char *const names[] = {"decode", "prefill", "serve"};
static const char *const recorded[] = {"tests/fixtures/bench/decode-recorded.json",
                                       "tests/fixtures/bench/prefill-recorded.json",
                                       "tests/fixtures/bench/serve-recorded.json"};

/* "points.3.accepted" of a value becomes the JSON text, or goes with NULL. */
static void put(json_t *at, const char *path, const char *json)
{
    char part[64];
    json_t *value = json ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
    cr_assert(!json || value, "%s", json);
    for (;;) {
        size_t n = strcspn(path, ".");
        bool last = !path[n];
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        if (json_is_array(at)) {
            size_t i = strtoul(part, NULL, 10);
            if (last) {
                if (value && i == json_array_size(at))
                    json_array_append_new(at, value);
                else if (value)
                    json_array_set_new(at, i, value);
                else
                    json_array_remove(at, i);
                return;
            }
            at = json_array_get(at, i);
        } else {
            if (last) {
                if (value)
                    json_object_set_new(at, part, value);
                else
                    json_object_del(at, part);
                return;
            }
            at = json_object_get(at, part);
        }
        cr_assert_not_null(at, "%s", path);
        path += n + 1;
    }
}

static int read_file(enum which which, const char *path, struct cfg_error *err)
{
    int r;
    if (which == DECODE) {
        struct bd_results got = {0};
        r = bd_read_json(path, &got, err);
        bd_free(&got);
    } else if (which == PREFILL) {
        struct bp_results got = {0};
        r = bp_read_json(path, &got, err);
        bp_free(&got);
    } else {
        static struct bs_results got;
        got = (struct bs_results){0};
        r = bs_read_json(path, &got, err);
        json_decref(got.conditions);
    }
    return r;
}

struct change {
    const char *path[4], *json[4]; /* up to the first NULL path */
    const char *says[2];           /* NULL: is taken */
};

static void check(enum which which, const char *file, const struct change *c, int n)
{
    char *dir = ts_temp_dir(), path[4200];
    snprintf(path, sizeof path, "%s/in.json", dir);
    for (int i = 0; i < n; i++) {
        struct cfg_error err = {{0}};
        json_t *root = json_load_file(file, 0, NULL);
        cr_assert_not_null(root);
        for (int k = 0; k < 4 && c[i].path[k]; k++)
            put(root, c[i].path[k], c[i].json[k]);
        cr_assert_eq(json_dump_file(root, path, JSON_REAL_PRECISION(12)), 0);
        json_decref(root);
        int r = read_file(which, path, &err);
        cr_expect_eq(r, c[i].says[0] ? -EINVAL : 0, "%s, case %d (%s): %d %s", names[which], i, c[i].path[0], r,
                     err.msg);
        for (int k = 0; k < 2 && c[i].says[k]; k++)
            cr_expect_not_null(strstr(err.msg, c[i].says[k]), "%s, case %d: \"%s\" is not in: %s", names[which], i,
                               c[i].says[k], err.msg);
    }
    ts_remove_dir(dir);
    free(dir);
}

#define CHECK(which, list) check(which, recorded[which], list, sizeof list / sizeof *list)

/* Point 1 of the file: fixed 3, 53 rounds of one sequence, 159 offered, 84 accepted (40, 26, 18), 137 emitted. Point 2:
 * dynamic, 150 rounds, 146 of them without the drafter, 20 offered, 8 accepted. Point 3: off, 170 rounds. */
Test(result_file, decode)
{
    static const struct change c[] = {
        {{"points.0.planning"}, {"0.1"}, {NULL}},
        {{"kind"}, {"\"decode\""}, {NULL}},
        {{"convert_rate"}, {"0.75"}, {NULL}},
        /* Labels. */
        {{"points.0.drafts"}, {"\"fixed 2\""}, {"point 1: \"drafted\" is 159", "106"}},
        {{"points.0.drafts"}, {"\"fixed 4\""}, {"point 1: \"drafted\" is 159", "212"}},
        {{"points.0.drafts"}, {"\"off\""}, {"point 1: \"drafted\" is 159", "in all 0"}},
        {{"points.0.drafts"}, {"\"fixed 3x\""}, {"point 1: \"drafts\" is \"fixed 3x\"", "none of off"}},
        {{"points.0.drafts"}, {"\"fixed 03\""}, {"\"fixed 03\"", "none of off"}},
        {{"points.0.drafts"}, {"\"fixed +3\""}, {"\"fixed +3\"", "none of off"}},
        {{"points.0.drafts"}, {"\"fixed  3\""}, {"\"fixed  3\"", "none of off"}},
        {{"points.0.drafts"}, {"\"fixed 0\""}, {"\"fixed 0\"", "none of off"}},
        {{"points.0.drafts"}, {"\"fixed 4294967299\""}, {"\"fixed 4294967299\"", "none of off"}},
        {{"points.0.drafts"}, {"\"fixed 33\""}, {"\"fixed 33\"", "none of off"}},
        {{"points.0.drafts"}, {"\"\""}, {"\"drafts\" is \"\"", "none of off"}},
        {{"points.0.drafts"}, {"3"}, {"point 1: \"drafts\" must be a text"}},
        {{"points.2.drafts"}, {"\"fixed 1\""}, {"point 3: \"drafted\" is 0", "170"}},
        /* Counters of a fixed length that agree with each other, but not with it. */
        {{"points.0.drafted"}, {"160"}, {"point 1: \"drafted\" is 160", "159"}},
        {{"points.0.offered", "points.0.offered_by_position"},
         {"158", "[53,53,52]"},
         {"point 1: \"offered\" is 158", "159"}},
        {{"points.0.offered_by_position"}, {"[53,53,52,1]"}, {"\"offered_by_position\", place 4", "the 0"}},
        {{"points.0.probes"}, {"1"}, {"point 1: \"probes\" is 1", "0"}},
        {{"points.0.rounds_without_drafter"}, {"1"}, {"point 1: \"rounds_without_drafter\" is 1", "0"}},
        {{"points.2.rounds_without_drafter"}, {"0"}, {"point 3: \"rounds_without_drafter\" is 0", "170"}},
        /* Totals. */
        {{"points.0.accepted"}, {"160"}, {"point 1: \"accepted\" is 160", "159"}},
        {{"points.0.emitted"}, {"138"}, {"point 1: \"emitted\" is 138", "137"}},
        {{"points.0.emitted"}, {"84"}, {"point 1: \"emitted\" is 84", "137"}},
        {{"points.0.accepted", "points.0.emitted"}, {"85", "138"}, {"\"accepted_by_position\" is 84", "85"}},
        {{"points.0.steps"}, {"54"}, {"point 1: \"steps\" is 54", "53"}},
        {{"points.0.rounds"}, {"52"}, {"point 1: \"steps\" is 53", "52"}},
        {{"points.0.rounds"}, {"0"}, {"point 1: \"rounds\" must be"}},
        {{"points.0.sequences"}, {"2"}, {"point 1: \"steps\" is 53", "106"}},
        {{"points.1.offered", "points.1.offered_by_position"},
         {"21", "[5,4,4,4,4]"},
         {"point 2: \"offered\" is 21", "20"}},
        {{"points.1.rounds_without_drafter"}, {"150"}, {"point 2: \"drafted\" is 20", "0"}},
        {{"points.1.rounds_without_drafter"}, {"151"}, {"point 2: \"rounds_without_drafter\" is 151", "150"}},
        {{"points.1.drafted"}, {"129"}, {"point 2: \"drafted\" is 129", "128"}},
        {{"points.1.probes"}, {"151"}, {"point 2: \"probes\" is 151", "150"}},
        /* By position. */
        {{"points.0.accepted_by_position"}, {"[40,22,22]"}, {NULL}},
        {{"points.0.accepted_by_position"}, {"[40,18,26]"}, {"place 3: 26 are more than the 18"}},
        {{"points.0.accepted_by_position"}, {"[54,15,15]"}, {"place 1: 54 are more than the 53"}},
        {{"points.0.accepted_by_position"}, {"[40,26,18,0,-1]"}, {"place 5"}},
        {{"points.0.accepted_by_position"}, {"[40,26,18.0]"}, {"place 3: must be a count"}},
        {{"points.0.accepted_by_position"}, {"[40,26]"}, {"\"accepted_by_position\" is 66", "84"}},
        {{"points.0.accepted_by_position"}, {"84"}, {"must be a list"}},
        {{"points.0.offered_by_position"}, {NULL}, {"\"offered_by_position\" is missing"}},
        {{"points.0.offered_by_position"},
         {"[53,53,53,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"},
         {"more than 32 places"}},
        /* Times and numbers. */
        {{"points.0.planning"}, {"0.2"}, {"point 1: \"planning\" is 0.2 s", "0.104"}},
        {{"points.0.planning"}, {"-1"}, {"point 1: \"planning\" must be"}},
        {{"points.0.planning"}, {"null"}, {"point 1: \"planning\" must be"}},
        {{"points.0.expected"}, {"100"}, {"point 2: \"expected\" must be in all points"}},
        {{"points.0.expected"}, {"52"}, {"point 1: \"expected\" is 52", "53 to 212"}},
        {{"points.0.expected"}, {"213"}, {"point 1: \"expected\" is 213", "53 to 212"}},
        {{"points.0.seconds"}, {"0"}, {"point 1: \"seconds\" must be"}},
        {{"points.0.seconds"}, {"-1"}, {"point 1: \"seconds\" must be"}},
        {{"points.0.seconds"}, {"1e30"}, {"point 1: \"seconds\" must be"}},
        {{"points.0.seconds"}, {"\"1\""}, {"point 1: \"seconds\" must be"}},
        {{"points.0.seconds"}, {NULL}, {"point 1: \"seconds\" is missing"}},
        {{"points.0.steps"}, {"53.0"}, {"point 1: \"steps\" must be an integer"}},
        {{"points.0.steps"}, {"9223372036854775807"}, {"point 1: \"steps\" must be an integer"}},
        {{"points.0.sequences"}, {"0"}, {"point 1: \"sequences\" must be"}},
        {{"points.0.repeat"}, {"512"}, {"point 1: \"repeat\" must be"}},
        {{"points.0.repeat"}, {"-1"}, {"point 1: \"repeat\" must be"}},
        {{"points.0.repeat"}, {"1"}, {"point 1: \"repeat\" is 1", "0"}},
        {{"points.6.repeat"}, {"0"}, {"point 7: \"repeat\" is 0", "1"}},
        {{"points.0.probess"}, {"0"}, {"point 1: \"probess\" is not a member"}},
        {{"points.1"}, {"7"}, {"point 2 must be an object"}},
        /* The file. */
        {{"convert_rate"}, {"1.5"}, {"\"convert_rate\" must be"}},
        {{"convert_rate"}, {"\"x\""}, {"\"convert_rate\" must be"}},
        {{"format"}, {"2"}, {"of another format than 1"}},
        {{"format"}, {NULL}, {"of another format than 1"}},
        {{"format"}, {"1.0"}, {"of another format than 1"}},
        {{"conditions.model"}, {"7"}, {"\"model\" is no text"}},
        {{"more"}, {"7"}, {"\"more\" is not a member"}},
        {{"points"}, {"[]"}, {"is not a result of `weft bench decode --json`"}},
        {{"kind"}, {"\"prefill\""}, {"it is a result of `weft bench prefill --json`"}},
        /* What it was counted on. */
        {{"setup"}, {"{\"devices\":1,\"experts\":8,\"redundant\":0,\"context\":128,\"drafts\":5}"}, {NULL}},
        {{"setup"},
         {"{\"devices\":1,\"experts\":8,\"redundant\":0,\"context\":128,\"drafts\":2}"},
         {"point 1: \"drafts\" is \"fixed 3\"", "2 are made at once"}},
        {{"setup"},
         {"{\"devices\":1,\"experts\":8,\"redundant\":0,\"context\":128,\"drafts\":4}"},
         {"point 2: \"drafted\" is 20", "at most 16"}},
        {{"setup"}, {"{\"devices\":1,\"experts\":8,\"redundant\":0,\"context\":128}"}, {"\"setup\" needs", "drafts"}},
        {{"setup"},
         {"{\"devices\":1e9,\"experts\":8,\"redundant\":0,\"context\":128,\"drafts\":5}"},
         {"\"setup\" needs", "\"devices\" must be"}},
        {{"setup"}, {"7"}, {"\"setup\" must be an object"}},
    };
    CHECK(DECODE, c);
}

/* More numbers of sequences than the report has room for. */
Test(result_file, decode_has_so_many_loads)
{
    char *dir = ts_temp_dir(), path[4200];
    snprintf(path, sizeof path, "%s/in.json", dir);
    for (int loads = BD_LOADS; loads <= BD_LOADS + 1; loads++) {
        json_t *root = json_load_file(recorded[DECODE], 0, NULL), *points = json_object_get(root, "points"),
               *off = json_deep_copy(json_array_get(points, 2));
        struct cfg_error err = {{0}};
        json_array_clear(points);
        for (int i = 1; i <= loads; i++) {
            json_t *p = json_deep_copy(off);
            json_object_set_new(p, "sequences", json_integer(i));
            json_object_set_new(p, "steps", json_integer(170 * i));
            json_object_set_new(p, "emitted", json_integer(170 * i));
            json_array_append_new(points, p);
        }
        cr_assert_eq(json_dump_file(root, path, 0), 0);
        cr_expect_eq(read_file(DECODE, path, &err), loads > BD_LOADS ? -EINVAL : 0, "%s", err.msg);
        cr_expect(loads <= BD_LOADS || strstr(err.msg, "point 25: more than 24 numbers"), "%s", err.msg);
        json_decref(off);
        json_decref(root);
    }
    ts_remove_dir(dir);
    free(dir);
}

/* Point 1: replay of 64 in chunks of 64, 2 steps. Point 2: exact, 512 in chunks of 64, 8 steps, 4096 rows. */
Test(result_file, prefill)
{
    static const struct change c[] = {
        {{"points.1.steps"}, {"7"}, {"point 2: \"steps\" is 7", "8"}},
        {{"points.1.steps"}, {"9"}, {"point 2: \"steps\" is 9", "8"}},
        {{"points.0.steps"}, {"0"}, {"point 1: \"steps\" must be"}},
        {{"points.1.layer_rows"}, {"4097"}, {"point 2: \"layer_rows\" is 4097", "512 tokens"}},
        {{"points.1.layer_rows"}, {"4608"}, {"point 3: \"layer_rows\" is 512", "576"}},
        {{"points.0.layer_rows"}, {"63"}, {"point 1: \"layer_rows\" is 63", "64"}},
        {{"points.0.shortest_step_seconds"}, {"0.004"}, {"point 1: \"longest_step_seconds\" is", "0.004"}},
        {{"points.1.seconds"}, {"0.05"}, {"point 2: \"seconds\" is 0.05", "0.0587"}},
        {{"points.1.seconds"}, {"1e30"}, {"point 2: \"seconds\" must be"}},
        {{"points.1.seconds"}, {"null"}, {"point 2: \"seconds\" must be"}},
        {{"points.1.longest_step_seconds"}, {NULL}, {"point 2: \"longest_step_seconds\" is missing"}},
        {{"points.0.repeat"}, {"1"}, {"point 1: \"repeat\" is 1", "0"}},
        {{"points.0.repeat"}, {"0.0"}, {"point 1: \"repeat\" must be an integer"}},
        {{"points.0.form"}, {"\"exactly\""}, {"point 1: \"form\" must be exact or replay"}},
        {{"points.0.more"}, {"1"}, {"point 1: \"more\" is not a member"}},
        {{"conditions.model"}, {"1"}, {"\"model\" is no text"}},
        {{"format"}, {"3"}, {"of another format"}},
        {{"kind"}, {"\"serve\""}, {"it is a result of `weft bench serve --json`"}},
    };
    CHECK(PREFILL, c);
}

/* Point 1: closed, 1 at a time, 32 whole answers in 4.513 s, 4096 and 2048 tokens. Point 4: open. */
Test(result_file, serve)
{
    static const char nothing[] = "{\"p50\":null,\"p90\":null,\"p99\":null,\"mean\":null}";
    static const struct change c[] = {
        {{"format", "kind"}, {"1", "\"serve\""}, {NULL}},
        {{"points.0.first_delivery_seconds", "points.0.delivery_seconds"}, {nothing, nothing}, {NULL}},
        {{"points.0.delivery_seconds"}, {"{\"p50\":-1,\"p90\":0,\"p99\":1,\"mean\":0}"}, {NULL}},
        {{"format"}, {"2"}, {"of another format"}},
        {{"format"}, {"\"1\""}, {"of another format"}},
        {{"kind"}, {"\"decode\""}, {"it is a result of `weft bench decode --json`"}},
        {{"points"}, {"[]"}, {"is not a result of `weft bench serve --json`"}},
        {{"more"}, {"1"}, {"\"more\" is not a member"}},
        /* Counts. */
        {{"points.0.whole"}, {"31"}, {"point 1: \"requests\" is 32", "31"}},
        {{"points.0.requests"}, {"4294967328"}, {"point 1: \"requests\" must be"}},
        {{"points.0.requests", "points.0.whole"}, {"33", "33"}, {"point 1: \"requests\" is 33", "32"}},
        {{"points.0.failed"}, {"-1"}, {"point 1: \"failed\" must be"}},
        {{"points.0.refused"}, {"0.0"}, {"point 1: \"refused\" must be an integer"}},
        {{"points.0.output_tokens"}, {"2049"}, {"point 1: \"output_tokens\" is 2049", "2048"}},
        {{"points.0.output_tokens"}, {"2047"}, {"point 1: \"output_tokens_per_second\" is"}},
        {{"points.0.prompt_tokens"}, {"4097"}, {"point 1: \"prompt_tokens\" is 4097", "4096"}},
        {{"points.0.prompt_tokens", "conditions.started_here"}, {"4097", "false"}, {NULL}},
        {{"points.0.prompt_tokens", "conditions.prompt_tokens"}, {"4097", "0"}, {NULL}},
        {{"points.0.prompt_tokens"}, {NULL}, {"point 1: \"prompt_tokens\" is missing"}},
        {{"points.0.output_tokens_per_second"}, {"454"}, {"point 1: \"output_tokens_per_second\" is 454", "453.8"}},
        {{"points.0.requests_done_per_second"}, {"8"}, {"point 1: \"requests_done_per_second\" is 8", "7.09"}},
        /* Loads and times. */
        {{"points.0.loop"}, {"\"round\""}, {"point 1: \"loop\" must be open or closed"}},
        {{"points.0.loop"}, {"\"open\""}, {"point 1: \"concurrency\" is not a member"}},
        {{"points.0.concurrency"}, {"1.5"}, {"point 1: \"concurrency\" is 1.5"}},
        {{"points.0.concurrency"}, {"0"}, {"point 1: \"concurrency\" must be"}},
        {{"points.3.requests_per_second"}, {"1e30"}, {"point 4: \"requests_per_second\" must be"}},
        {{"points.0.seconds"}, {"0"}, {"point 1: \"seconds\" must be"}},
        {{"points.0.seconds", "points.0.output_tokens_per_second", "points.0.requests_done_per_second"},
         {"4", "512", "8"},
         {"point 1: \"end_to_end_seconds.mean\" is", "0.125"}},
        {{"points.0.first_token_seconds.p50"}, {"-0.1"}, {"point 1: \"first_token_seconds.p50\" is -0.1", "0"}},
        {{"points.0.first_token_seconds.p99"}, {"4.6"}, {"point 1: \"first_token_seconds.p99\" is 4.6", "4.51"}},
        {{"points.0.first_token_seconds.p90"}, {"0.01"}, {"point 1: \"first_token_seconds.p90\" is 0.01"}},
        {{"points.0.first_token_seconds.p90"}, {"null"}, {"all or none of them null"}},
        {{"points.0.first_token_seconds.p90"}, {"\"x\""}, {"\"first_token_seconds.p90\" must be a number"}},
        {{"points.0.first_token_seconds.p90"}, {NULL}, {"\"first_token_seconds.p90\" must be a number"}},
        {{"points.0.first_token_seconds.p95"}, {"1"}, {"\"first_token_seconds\" needs"}},
        {{"points.0.first_token_seconds"}, {NULL}, {"point 1: \"first_token_seconds\" is missing"}},
        {{"points.0.first_token_seconds"}, {"[]"}, {"point 1: \"first_token_seconds\" must be an object"}},
        {{"points.0.end_to_end_seconds"}, {nothing}, {"point 1: \"end_to_end_seconds\" is of whole answers"}},
        {{"points.0.more"}, {"1"}, {"point 1: \"more\" is not a member"}},
        {{"points.0"}, {"null"}, {"point 1"}},
        /* Conditions. */
        {{"conditions.seed"}, {NULL}, {"\"conditions\": \"seed\" is missing"}},
        {{"conditions.cpus"}, {"\"2\""}, {"\"conditions\": \"cpus\" must be an integer"}},
        {{"conditions.started_here"}, {"1"}, {"\"conditions\": \"started_here\" must be true or false"}},
        {{"conditions.url"}, {"1"}, {"\"conditions\": \"url\" must be a text"}},
        {{"conditions.requests_per_point"}, {"31"}, {"point 1: \"requests\" is 32", "31"}},
        {{"conditions.max_tokens"}, {"63"}, {"point 1: \"output_tokens\" is 2048", "2016"}},
        {{"conditions.more"}, {"1"}, {"\"conditions\": \"more\" is not a member"}},
        {{"conditions.server.threads"}, {"\"2\""}, {"\"server.threads\" must be"}},
        {{"conditions.server.model"}, {"2"}, {"\"server.model\" must be a text"}},
        {{"conditions.server"}, {"{}"}, {NULL}},
        {{"conditions.server"}, {"7"}, {"\"conditions\": \"server\" must be an object"}},
    };
    CHECK(SERVE, c);
}

/* Whatever is named, the message says what it is, and nothing is written. */
Test(result_file, of_something_else)
{
    static const struct {
        const char *file, *is;
    } other[] = {
        {"tests/fixtures/bench/decode-recorded.json", "it is a result of `weft bench decode --json`"},
        {"tests/fixtures/bench/prefill-recorded.json", "it is a result of `weft bench prefill --json`"},
        {"tests/fixtures/bench/serve-recorded.json", "it is a result of `weft bench serve --json`"},
        {"samples/profiles/ep64-dp64.json", "it is a profile for `weft simulate`"},
        {"samples/tiny/calibration.json", "it is a calibration of `weft calibrate`"},
        {"samples/tiny/config.json", "is not a result of"},
        {"README.md", "not valid JSON"},
        {"tests", "expected a regular file"},
    };
    char *dir = ts_temp_dir(), out[3][4200];
    static const char *const option[] = {"--json", "--csv", "--plot"}, *const suffix[] = {"json", "csv", "svg"};
    for (int k = 0; k < 3; k++)
        snprintf(out[k], sizeof out[k], "%s/out.%s", dir, suffix[k]);
    for (int which = 0; which < 3; which++)
        for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
            if ((int)i == which || access(other[i].file, R_OK))
                continue;
            bool plot = system("command -v gnuplot >/dev/null 2>&1") == 0;
            struct ts_result r = ts_run(ts_weft(), "bench", names[which], "--from", other[i].file, option[0], out[0],
                                        option[1], out[1], plot ? option[2] : NULL, out[2]);
            cr_expect_eq(r.status, 2, "%s of %s: %s", names[which], other[i].file, r.err);
            cr_expect(strstr(r.err, other[i].is) && strstr(r.err, other[i].file), "%s: %s", names[which], r.err);
            cr_expect_str_eq(r.out, "");
            ts_result_free(&r);
            for (int k = 0; k < 3; k++)
                cr_expect(access(out[k], F_OK) != 0, "%s is there", out[k]);
        }
    ts_remove_dir(dir);
    free(dir);
}
