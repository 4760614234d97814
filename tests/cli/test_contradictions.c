/* Options of measuring that would be left out of account, or say two things at once: refused as a mistake of the
 * command line, with the names of both. */
#include "tests/harness.h"

#include <unistd.h>

#include "tests/support/process.h"

#define TINY "-m", "samples/tiny"
#define FROM_DECODE "--from", "tests/fixtures/bench/decode-recorded.json"
#define FROM_SERVE "--from", "tests/fixtures/bench/serve-recorded.json"
#define FROM_PREFILL "--from", "tests/fixtures/bench/prefill-recorded.json"
#define PROFILE "samples/profiles/ep64-sketch.json"

struct line {
    const char *argument[12], *first, *second;
};

static void check(const char *const *command, const struct line *line, int n)
{
    for (int i = 0; i < n; i++) {
        const char *argv[20] = {ts_weft()};
        int argc = 1;
        for (int k = 0; command[k]; k++)
            argv[argc++] = command[k];
        for (int k = 0; k < 12 && line[i].argument[k]; k++)
            argv[argc++] = line[i].argument[k];
        struct ts_result r = ts_run_argv(NULL, argv);
        cr_expect_eq(r.status, 2, "%s, line %d: %d %s", command[0], i, r.status, r.err);
        cr_expect(strstr(r.err, line[i].first) && strstr(r.err, line[i].second), "%s, line %d: %s", command[0], i,
                  r.err);
        cr_expect_str_eq(r.out, "", "it has begun");
        ts_result_free(&r);
    }
}

#define CHECK(line, ...) check((const char *const[]){__VA_ARGS__, NULL}, line, sizeof line / sizeof *line)

Test(contradictions, bench_decode)
{
    static const struct line of_file[] = {
        {{FROM_DECODE, TINY}, "--from", "--model"},
        {{FROM_DECODE, "--concurrency", "1"}, "--concurrency", "--from"},
        {{FROM_DECODE, "--modes", "off"}, "--modes", "--from"},
        {{FROM_DECODE, "--context", "64"}, "--context", "--from"},
        {{FROM_DECODE, "--grow", "64"}, "--grow", "--from"},
        {{FROM_DECODE, "--text", "x"}, "--text", "--from"},
        {{FROM_DECODE, "--accept", "all"}, "--accept", "--from"},
        {{FROM_DECODE, "-t", "1"}, "--temperature", "--from"},
        {{FROM_DECODE, "--repeats", "1"}, "--repeats", "--from"},
        {{FROM_DECODE, "--seconds", "1"}, "--seconds", "--from"},
        {{FROM_DECODE, "--warm", "1"}, "--warm", "--from"},
        {{FROM_DECODE, "--prune", "1"}, "--prune", "--from"},
        {{FROM_DECODE, "--budget", "lagged"}, "--budget", "--from"},
        {{FROM_DECODE, "--min-gain", "0"}, "--min-gain", "--from"},
        {{FROM_DECODE, "--probe-share", "0"}, "--probe-share", "--from"},
        {{FROM_DECODE, "--table", "x"}, "--table", "--from"},
        {{FROM_DECODE, "--threads", "1"}, "--threads", "--from"},
        {{FROM_DECODE, "--clock", "cpu"}, "--clock", "--from"},
        {{FROM_DECODE, "--seed", "1"}, "--seed", "--from"},
        {{FROM_DECODE, "--preset", "decode-131k", "--convert", "0.5"}, "--preset decode-131k", "--convert"},
        {{TINY, "--preset", "decode-131k", "--context", "64"}, "--preset decode-131k", "--context"},
        {{TINY, "--preset", "decode-131k", "--modes", "3"}, "--preset decode-131k", "--modes"},
        {{TINY, "--preset", "decode-131k", "--accept", "all"}, "--preset decode-131k", "--accept"},
        {{TINY, "--clock", "cpu", "--threads", "2"}, "--clock cpu", "--threads"},
        {{FROM_DECODE, "--json", "/tmp/weft-one", "--csv", "/tmp/weft-one"}, "--json", "--csv"},
        {{FROM_DECODE, "--csv", "/tmp/weft-one.svg", "--plot", "/tmp/weft-one.svg"}, "--csv", "--plot"},
        {{FROM_DECODE, "--json", "tests/fixtures/bench/decode-recorded.json"}, "--json", "--from"},
        {{TINY, "--seed", "1", "--seed", "2"}, "--seed", "twice"},
    };
    static const struct line of_modes[] = {
        {{TINY, "--modes", ""}, "--modes", "\"\""},
        {{TINY, "--modes", "off,,2"}, "--modes", "\"\""},
        {{TINY, "--modes", "off,2,"}, "--modes", "\"\""},
        {{TINY, "--modes", "off,2,2"}, "--modes", "twice"},
        {{TINY, "--modes", "off,0"}, "--modes", "twice"},
        {{TINY, "-c", "1,2,1"}, "--concurrency", "twice"},
        {{TINY, "--modes", "off,2", "--budget", "lagged"}, "--budget", "--modes"},
        {{TINY, "--modes", "off,2", "--min-gain", "0"}, "--min-gain", "--modes"},
        {{TINY, "--modes", "off,2", "--probe-share", "0"}, "--probe-share", "--modes"},
        {{TINY, "--modes", "off,2", "--prune", "5", "--repeats", "9"}, "--prune", "--modes"},
        {{TINY, "--modes", "off,2", "--table", "/tmp/weft-one"}, "--table", "--modes"},
        {{TINY, "--modes", "off", "--accept", "all"}, "--accept", "--modes"},
        {{TINY, "--prune", "5"}, "--prune", "--repeats"},
        {{TINY, "--warm", "0.1", "--seconds", "0.2"}, "--warm", "--seconds"},
    };
    CHECK(of_file, "bench", "decode");
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    CHECK(of_modes, "bench", "decode");
}

Test(contradictions, bench_prefill)
{
    static const struct line line[] = {
        {{FROM_PREFILL, TINY}, "--from", "--model"},
        {{FROM_PREFILL, "-p", "64"}, "--prompt-tokens", "--from"},
        {{FROM_PREFILL, "-c", "64"}, "--chunk", "--from"},
        {{FROM_PREFILL, "--form", "both"}, "--form", "--from"},
        {{FROM_PREFILL, "--replay", "64"}, "--replay", "--from"},
        {{FROM_PREFILL, "--repeats", "1"}, "--repeats", "--from"},
        {{FROM_PREFILL, "--threads", "1"}, "--threads", "--from"},
        {{FROM_PREFILL, "--clock", "wall"}, "--clock", "--from"},
        {{FROM_PREFILL, "--seed", "1"}, "--seed", "--from"},
        {{TINY, "--form", "exact", "--replay", "64"}, "--form exact", "--replay"},
        {{TINY, "--clock", "cpu", "--threads", "1"}, "--clock cpu", "--threads"},
        {{TINY, "--json", "/tmp/weft-one", "--csv", "/tmp/weft-one"}, "--json", "--csv"},
    };
    static const struct line lists[] = {
        {{TINY, "-p", "64,64"}, "--prompt-tokens", "twice"},
        {{TINY, "-c", "64,32,64"}, "--chunk", "twice"},
    };
    CHECK(line, "bench", "prefill");
    if (access("samples/tiny/model.safetensors", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    CHECK(lists, "bench", "prefill");
}

Test(contradictions, bench_serve)
{
    static const struct line line[] = {
        {{FROM_SERVE, "--url", "http://127.0.0.1:1"}, "--url", "--from"},
        {{FROM_SERVE, TINY}, "--model", "--from"},
        {{FROM_SERVE, "--config", "x"}, "--config", "--from"},
        {{FROM_SERVE, "-c", "1"}, "--concurrency", "--from"},
        {{FROM_SERVE, "-r", "1"}, "--rate", "--from"},
        {{FROM_SERVE, "-n", "1"}, "--requests", "--from"},
        {{FROM_SERVE, "--warmup", "1"}, "--warmup", "--from"},
        {{FROM_SERVE, "--prompts", "x"}, "--prompts", "--from"},
        {{FROM_SERVE, "--prompt-tokens", "1"}, "--prompt-tokens", "--from"},
        {{FROM_SERVE, "--max-tokens", "1"}, "--max-tokens", "--from"},
        {{FROM_SERVE, "--seed", "1"}, "--seed", "--from"},
        {{FROM_SERVE, "--limit", "1"}, "--limit", "--from"},
        {{"--url", "http://127.0.0.1:1", TINY}, "--url", "--model"},
        {{"--url", "http://127.0.0.1:1", "--config", "x"}, "--url", "--config"},
        {{"--prompts", "x", "--prompt-tokens", "1"}, "--prompts", "--prompt-tokens"},
        {{"-c", "8", "-n", "4"}, "--concurrency 8", "--requests 4"},
        {{"-c", ""}, "--concurrency", "integers"},
        {{"-c", "1,"}, "--concurrency", "integers"},
        {{"-r", ""}, "--rate", "numbers"},
        {{"-r", "1,,2"}, "--rate", "numbers"},
        {{"-r", "inf"}, "--rate", "numbers"},
        {{"-c", "1.5"}, "--concurrency", "integers"},
    };
    CHECK(line, "bench", "serve");
}

Test(contradictions, other_benchmarks)
{
    static const struct line kv[] = {
        {{"--plot", "x.svg"}, "--plot", "--trace"},
        {{"--trace", "x", "--path", "/tmp"}, "--path", "--trace"},
        {{"--trace", "x", "--blocks", "256"}, "--blocks", "--trace"},
        {{"--trace", "x", "--ops", "1"}, "--ops", "--trace"},
        {{"--trace", "x", "--rounds", "1"}, "--rounds", "--trace"},
        {{"--trace", "x", "--seconds", "1"}, "--seconds", "--trace"},
        {{"--trace", "x", "--json"}, "--json", "--trace"},
    };
    static const struct line exchange[] = {
        {{"--over", "tcp", "--delay", "5"}, "--delay", "--over delay"},
        {{"--slot-rows", "5"}, "--slot-rows", "--over tcp"},
        {{"--over", "tcp", "--device", "rxe0"}, "--device", "--over rdma"},
        {{"--peer-device", "rxe0"}, "--peer-device", "--over rdma"},
    };
    static const struct line transport[] = {
        {{"-p", "tcp", "--device", "rxe0"}, "--device", "--provider rdma"},
        {{"-p", "inproc", "--peer-device", "rxe0"}, "--peer-device", "--provider rdma"},
        {{"-p", "tcp", "--spin", "5"}, "--spin", "--provider rdma"},
    };
    CHECK(kv, "bench", "kv");
    CHECK(exchange, "bench", "exchange");
    CHECK(transport, "bench", "transport");
}

Test(contradictions, calibrate)
{
    static const struct line line[] = {
        {{TINY, "--log", "x", "--text", "y"}, "--log", "--text"},
        {{TINY, "--log", "x", "-t", "1"}, "--temperature", "--log"},
        {{TINY, "--log", "x", "--prompts", "2"}, "--prompts", "--log"},
        {{TINY, "--log", "x", "--length", "4"}, "--length", "--log"},
        {{TINY, "--log", "x", "--tokens", "4"}, "--tokens", "--log"},
        {{TINY, "--log", "x", "--seed", "4"}, "--seed", "--log"},
        {{TINY, "--log", "x", "--threads", "4"}, "--threads", "--log"},
        {{TINY, "--log", "x", "--probes", "x"}, "--log", "--probes"},
        {{TINY, "--text", "x", "--dry-run", "--out", "y"}, "--dry-run", "--out"},
        {{TINY, "--text", "x", "--probes", "/tmp/weft-one", "--out", "/tmp/weft-one"}, "--out", "--probes"},
        {{TINY, "--text", "x", "--choices", ""}, "--choices", "none of greedy"},
        {{TINY, "--text", "x", "--choices", "greedy", "-t", "2"}, "--temperature", "--choices greedy"},
        {{TINY, "--text", "x", "--choices", "greedy", "--seed", "2"}, "--seed", "--choices greedy"},
    };
    CHECK(line, "calibrate");
}

Test(contradictions, simulate)
{
    static const struct line line[] = {
        {{PROFILE, "--threads", "1"}, "--threads", "--measure"},
        {{PROFILE, "--drafts", "1"}, "--drafts", "--measure"},
        {{PROFILE, "--prompt-tokens", "16"}, "--prompt-tokens", "--measure"},
        {{PROFILE, "--output-tokens", "16"}, "--output-tokens", "--measure"},
        {{PROFILE, "--measure", "x", "--load", "1"}, "--load", "--measure"},
        {{PROFILE, "--measure", "x", "--json", "/tmp/weft-one"}, "--json", "--measure"},
        {{PROFILE, "--measure", "x", "--modes", "off"}, "--measure with --modes", "--against"},
        {{PROFILE, "--measure", "x", "--seed", "1"}, "--measure with --seed", "--against"},
        {{PROFILE, "--against", "x", "--load", "1"}, "--load", "--against"},
        {{PROFILE, "--against", "x", "--decode", "1"}, "--decode", "--against"},
        {{PROFILE, "--against", "x", "--plot", "x.svg"}, "--plot", "--against"},
        {{PROFILE, "--speed", "2"}, "--speed", "--trace"},
        {{PROFILE, "--speed", "2", "--trace", "x", "--load", "1"}, "--speed", "--load"},
        {{PROFILE, "--trace", "x", "--rate", "1"}, "--trace", "--rate"},
        {{PROFILE, "--trace", "x", "--groups", "1", "--shared-tokens", "8"}, "--trace", "--groups"},
        {{PROFILE, "--trace", "x", "--fixed-lengths"}, "--trace", "--fixed-lengths"},
        {{PROFILE, "--trace", "x", "--seconds", "8"}, "--trace with --seconds", "--load"},
        {{PROFILE, "--trace", "x", "--warm", "8"}, "--trace with --warm", "--load"},
        {{PROFILE, "--groups", "4"}, "--groups", "--shared-tokens"},
        {{PROFILE, "--shared-tokens", "4"}, "--shared-tokens", "--groups"},
        {{PROFILE, "--requests", "4", "--seconds", "4"}, "--requests", "--seconds"},
        {{PROFILE, "--requests", "4", "--warm", "4"}, "--requests", "--warm"},
        {{PROFILE, "--json", "/tmp/weft-one", "--csv", "/tmp/weft-one"}, "--json", "--csv"},
        {{PROFILE, "--modes", "fixed3x"}, "--modes", "fixed3x"},
        {{PROFILE, "--modes", "fixed03"}, "--modes", "fixed03"},
        {{PROFILE, "--against", "x", "--modes", "off,fixed"}, "--modes off,fixed", "--against"},
        {{PROFILE, "--modes", ""}, "--modes", "\"\""},
        {{PROFILE, "--modes", "off,"}, "--modes", "\"\""},
    };
    CHECK(line, "simulate");
}
