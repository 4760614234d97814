/* `weft serve` with tiers below the device: the text of exact mode is the same cold, from every tier, and after a
 * restart, and each hit is asserted. */
#include "tests/harness.h"

#include <signal.h>
#include <sys/stat.h>
#include <time.h>

#include "tests/support/answer.h"
#include "tests/support/less.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

static struct ts_server server;
static char *folder;

static void stop(void)
{
    unsetenv("WEFT_USRBIO_FAULTS");
    ts_server_free(&server);
    if (folder)
        ts_remove_dir(folder);
    free(folder);
    folder = NULL;
}

TestSuite(tiers, .fini = stop, .timeout = 300);

/* Blocks of 32 tokens of the sample model take 12 KiB: 1 MiB are 85 pages. */
#define COMMON                                                                                                         \
    "sampling = { temperature = 0.0; };\nreplay = { exact = %s; };\n"                                                  \
    "kv = { canary = true; block_tokens = 32; memory = \"1MiB\"; "

static void start(const char *exact, const char *more)
{
    char *text = NULL;
    cr_assert_gt(asprintf(&text, COMMON "%s };\n", exact, more), 0);
    ts_server_start(&server, NULL, text);
    free(text);
}

/* Prompts of some hundred tokens that differ from their beginning on. */
static char *prompt(int which)
{
    static const char *const words[] = {"In the beginning God created the heaven and the earth. ",
                                        "And the LORD spake unto Moses, saying, ",
                                        "Blessed is the man that walketh not in the counsel of the ungodly. ",
                                        "The words of the Preacher, the son of David, king in Jerusalem. "};
    char *p = calloc(1, 4096);
    sprintf(p, "%d. ", which);
    while (strlen(p) < 1500)
        strcat(p, words[which % 4]);
    return p;
}

static struct ts_answer ask(int which)
{
    char *p = prompt(which);
    struct ts_answer a = ts_ask(&server, TS_COMPLETIONS, p, 16, false, "");
    free(p);
    return a;
}

/* Other prompts take the device's pages. */
static void crowd_out(void)
{
    for (int i = 1; i < 12; i++) {
        struct ts_answer a = ask(i);
        ts_answer_free(&a);
    }
}

static int64_t ends(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 30;
}

static bool more(int64_t end)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    return ends() - 30 < end;
}

static void until_stored(const char *tier, double blocks)
{
    char name[96];
    snprintf(name, sizeof name, "weft_kv_tier_blocks{tier=\"%s\"}", tier);
    for (int64_t end = ends(); ts_metric(&server, name) < blocks && more(end);)
        ;
    cr_assert_ge(ts_metric(&server, name), blocks, "%s", tier);
}

static double blocks_read(const char *tier)
{
    char name[96];
    snprintf(name, sizeof name, "weft_kv_tier_read_blocks_total{tier=\"%s\"}", tier);
    return ts_metric(&server, name);
}

static void until_read(const char *tier)
{
    for (int64_t end = ends(); blocks_read(tier) < 1 && more(end);)
        ;
    cr_assert_ge(blocks_read(tier), 1.0, "nothing was read from %s", tier);
}

static void same(const struct ts_answer *cold, struct ts_answer hit, const char *where)
{
    cr_assert_str_eq(hit.text, cold->text, "%s", where);
    cr_assert_gt(hit.cached, 200, "%s: %d cached", where, hit.cached);
    ts_answer_free(&hit);
}

static double tier_metric(const char *series, const char *tier, const char *more)
{
    char name[128];
    snprintf(name, sizeof name, "weft_kv_tier_%s{tier=\"%s\"%s}", series, tier, more);
    return ts_metric(&server, name);
}

/* Dashboards and alerts need every series before anything happens. */
Test(tiers, figures_of_all_tiers_are_there_at_zero)
{
    static const char *const tier[] = {"device", "host", "ssd", "shared", "kv"},
                             *const verb[] = {"lookup", "read_first", "read", "store"},
                             *const kind[] = {"io", "checksum", "short_read", "gone", "no_space", "closed"};
    char name[64];
    start("true", "");
    for (int t = 0; t < 5; t++) {
        for (int v = 0; v < 4; v++) {
            snprintf(name, sizeof name, "%s_latency_seconds_bucket", verb[v]);
            cr_expect_eq(tier_metric(name, tier[t], ",le=\"0.001\""), 0, "%s %s", name, tier[t]);
            cr_expect_eq(tier_metric(name, tier[t], ",le=\"+Inf\""), 0, "%s %s", name, tier[t]);
            snprintf(name, sizeof name, "%s_latency_seconds_count", verb[v]);
            cr_expect_eq(tier_metric(name, tier[t], ""), 0, "%s %s", name, tier[t]);
        }
        for (int k = 0; k < 6; k++) {
            snprintf(name, sizeof name, ",kind=\"%s\"", kind[k]);
            cr_expect_eq(tier_metric("errors_total", tier[t], name), 0, "%s %s", name, tier[t]);
        }
        cr_expect_eq(tier_metric("blocks_in_flight", tier[t], ",verb=\"store\""), 0, "%s", tier[t]);
        cr_expect_eq(tier_metric("oldest_seconds", tier[t], ""), 0, "%s", tier[t]);
    }
}

/* How often a tier was asked, read and written, each with its time. */
static void until_timed(const char *tier, double reads, double stores)
{
    for (int64_t end = ends(); (tier_metric("read_latency_seconds_count", tier, "") < reads ||
                                tier_metric("store_latency_seconds_count", tier, "") < stores) &&
                               more(end);)
        ;
    double read = tier_metric("read_latency_seconds_count", tier, "");
    cr_expect_ge(read, reads, "%s", tier);
    cr_expect_eq(tier_metric("read_latency_seconds_bucket", tier, ",le=\"+Inf\""), read, "%s", tier);
    cr_expect_gt(tier_metric("read_latency_seconds_sum", tier, ""), 0, "%s", tier);
    cr_expect_ge(tier_metric("read_first_latency_seconds_count", tier, ""), read, "%s", tier);
    cr_expect_gt(tier_metric("lookup_latency_seconds_count", tier, ""), 0, "%s", tier);
    cr_expect_ge(tier_metric("store_latency_seconds_count", tier, ""), stores, "%s", tier);
}

/* Hits are counted in tokens of what prompts look for, once each, whatever else looks blocks up. */
static void until_hit(const char *tier, int tokens)
{
    for (int64_t end = ends(); tier_metric("hit_tokens_total", tier, "") < tokens && more(end);)
        ;
    double hit = tier_metric("hit_tokens_total", tier, ""), asked = tier_metric("asked_tokens_total", tier, ""),
           blocks = tier_metric("hits_total", tier, ""), others = tier_metric("misses_total", tier, "");
    cr_expect_ge(hit, tokens, "%s", tier);
    cr_expect_eq(hit, blocks * 32, "%s: %g tokens of %g blocks", tier, hit, blocks);
    cr_expect_eq(asked, (blocks + others) * 32, "%s: %g tokens of %g blocks", tier, asked, blocks + others);
}

Test(tiers, exact_text_is_the_same_from_the_host_tier)
{
    start("true", "host = \"16MiB\";");
    struct ts_answer cold = ask(0), hit = ask(0);
    int cached = hit.cached;
    cr_assert_eq(cold.cached, 0);
    same(&cold, hit, "device");
    until_hit("device", cached);
    cr_expect_eq(tier_metric("hit_tokens_total", "device", ""), cached);
    cr_expect_eq(tier_metric("asked_tokens_total", "device", ""), 2.0 * cached, "two prompts, all of whose blocks");
    crowd_out();
    hit = ask(0);
    cached = hit.cached;
    same(&cold, hit, "host");
    until_read("host");
    until_hit("host", cached);
    ts_answer_free(&cold);
}

static char *ssd_config(const char *more)
{
    char *text = NULL;
    cr_assert_gt(
        asprintf(&text, "write_behind = \"128KiB\"; ssd = { path = \"%s\"; size = \"32MiB\"; %s };", folder, more), 0);
    return text;
}

static void start_ssd(const char *exact)
{
    folder = ts_temp_dir();
    char *text = ssd_config("reserve = \"1MiB\";");
    start(exact, text);
    free(text);
}

static void restart_with(int signal, double blocks)
{
    kill(server.pid, signal);
    cr_assert_eq(ts_server_wait(&server), signal == SIGKILL ? 128 + SIGKILL : 0);
    cr_assert(ts_server_again(&server, NULL, 0));
    for (int64_t end = ends(); ts_metric(&server, "weft_kv_tier_blocks{tier=\"ssd\"}") < blocks && more(end);)
        ;
}

static void restart(int signal)
{
    restart_with(signal, 12);
}

/* Row 42, 54: after an orderly end and after kill -9 the blocks are there, and right. */
Test(tiers, exact_text_is_the_same_from_the_ssd_tier_and_after_restarts)
{
    start_ssd("true");
    struct ts_answer cold = ask(0);
    cr_assert_eq(cold.cached, 0);
    until_stored("ssd", 10);
    crowd_out();
    same(&cold, ask(0), "ssd");
    until_read("ssd");
    until_timed("ssd", 1, 1);
    restart(SIGTERM);
    same(&cold, ask(0), "after a restart");
    restart(SIGKILL);
    same(&cold, ask(0), "after kill -9");
    until_read("ssd");
    ts_answer_free(&cold);
}

/* The same folder under another block size: nothing of it is used, and the tier goes on with what is new. */
Test(tiers, row_42_another_block_size_after_a_restart)
{
    start_ssd("true");
    struct ts_answer cold = ask(0);
    until_stored("ssd", 10);
    kill(server.pid, SIGTERM);
    cr_assert_eq(ts_server_wait(&server), 0);
    char *tier = ssd_config(""), *text = NULL;
    cr_assert_gt(asprintf(&text,
                          "sampling = { temperature = 0.0; };\nreplay = { exact = true; };\n"
                          "kv = { canary = true; block_tokens = 64; memory = \"1MiB\"; %s };\n",
                          tier),
                 0);
    ts_server_free(&server);
    ts_server_start(&server, NULL, text);
    cr_assert_eq(ts_metric(&server, "weft_kv_tier_blocks{tier=\"ssd\"}"), 0);
    struct ts_answer other = ask(0);
    cr_assert_str_eq(other.text, cold.text);
    cr_assert_eq(other.cached, 0);
    until_stored("ssd", 5);
    kill(server.pid, SIGTERM);
    cr_assert_eq(ts_server_wait(&server), 0);
    cr_assert(ts_server_again(&server, NULL, 0));
    for (int64_t end = ends(); ts_metric(&server, "weft_kv_tier_blocks{tier=\"ssd\"}") < 5 && more(end);)
        ;
    same(&cold, ask(0), "after a restart under the other size");
    ts_answer_free(&cold);
    ts_answer_free(&other);
    free(tier);
    free(text);
}

/* A process without that history gives the same text for the same hit length. */
Test(tiers, replayed_hits_of_one_length_give_one_text)
{
    start_ssd("false");
    struct ts_answer cold = ask(0), first, second;
    until_stored("ssd", 10);
    restart(SIGTERM); /* snapshots are gone: the hit is replayed */
    first = ask(0);
    cr_assert_gt(first.cached, 200);
    restart(SIGTERM);
    second = ask(0);
    cr_assert_eq(first.cached, second.cached);
    cr_assert_str_eq(first.text, second.text);
    ts_answer_free(&cold);
    ts_answer_free(&first);
    ts_answer_free(&second);
}

/* ---- turns of a conversation that come when no window rows are left ---- */

enum { TURNS = 4 };

/* What follows turn `which` of a conversation of four, whose turns begin with each other. */
static struct ts_answer turn(int which)
{
    static const int sentences[TURNS] = {16, 32, 46, 48};
    char text[8192];
    int at = 0;
    for (int i = 0; i < sentences[which]; i++)
        at += sprintf(text + at, "%d And the LORD spake unto Moses, saying, Speak unto the children of Israel. ", i);
    return ts_ask(&server, TS_COMPLETIONS, text, 8, false, "");
}

static int blocks_of(const struct ts_answer *a)
{
    return a->prompt / 32;
}

/* What the turns say in processes that know nothing but the first one's blocks: the hit is that of the first turn. */
static void right_behind_the_first(struct ts_answer *want)
{
    for (int i = 0; i < TURNS; i++) {
        folder = ts_temp_dir();
        char *text = ssd_config("reserve = \"1MiB\";");
        start("false", text);
        struct ts_answer first = turn(0);
        cr_assert_eq(first.cached, 0);
        until_stored("ssd", blocks_of(&first));
        if (i) {
            restart_with(SIGTERM, blocks_of(&first));
            want[i] = turn(i);
            cr_assert_eq(want[i].cached, blocks_of(&first) * 32);
            ts_answer_free(&first);
        } else {
            want[0] = first;
        }
        stop();
        free(text);
    }
}

static void check_turn(const struct ts_answer *want, int which, const struct ts_answer *before, struct ts_answer got)
{
    cr_assert_eq(got.cached, which ? blocks_of(before) * 32 : 0, "turn %d of %d tokens: %d cached", which, got.prompt,
                 got.cached);
    cr_assert_str_eq(got.text, want[which].text, "turn %d", which);
    ts_answer_free(&got);
}

/* Each turn comes after a restart. What is kept grows with every one, and each says what it would have said right
 * behind the first turn's blocks. */
Test(tiers, what_is_kept_of_a_conversation_grows_over_restarts)
{
    struct ts_answer want[TURNS];
    right_behind_the_first(want);
    cr_assert_gt(want[1].prompt - want[0].prompt, 200);
    cr_assert_gt(want[2].prompt - want[1].prompt, 100);
    start_ssd("false");
    for (int i = 0; i < TURNS; i++) {
        check_turn(want, i, i ? &want[i - 1] : NULL, turn(i));
        until_hit("ssd", i ? blocks_of(&want[i - 1]) * 32 : 0);
        cr_expect_leq(tier_metric("asked_tokens_total", "ssd", ""), want[i].prompt,
                      "turn %d: once, under whatever names", i);
        until_stored("ssd", blocks_of(&want[i]));
        restart_with(i % 2 ? SIGKILL : SIGTERM, blocks_of(&want[i]));
    }
    for (int i = 0; i < TURNS; i++)
        ts_answer_free(&want[i]);
}

static char *shared_config(const char *more)
{
    char *text = NULL;
    cr_assert_gt(asprintf(&text,
                          "write_behind = \"128KiB\"; shared = { path = \"%s\"; size = \"64MiB\"; seal = \"100ms\"; "
                          "poll = \"20ms\"; %s };",
                          folder, more),
                 0);
    return text;
}

/* Two processes on one folder: what the first one computed, the second one reads. */
static void two_processes(const char *more)
{
    struct ts_server first, second;
    folder = ts_temp_dir();
    char *text = shared_config(more);
    start("true", text);
    first = server;
    start("true", text); /* under the same name, before the other one has written */
    second = server;
    server = first;
    struct ts_answer cold = ask(0);
    until_stored("shared", 10);
    server = second;
    until_stored("shared", 10);
    same(&cold, ask(0), "shared");
    until_read("shared");
    ts_answer_free(&cold);
    ts_server_free(&first);
    free(text);
}

Test(tiers, exact_text_is_the_same_from_the_shared_tier_of_another_process)
{
    two_processes("");
}

/* faults: as tests/doubles/usrbio_faults.h has them. */
static const char *through_usrbio(const char *faults)
{
    static char more[4200];
    setenv("WEFT_USRBIO_FAULTS", faults, 1);
    snprintf(more, sizeof more, "usrbio = \"%s\";", ts_program("tests/doubles/usrbio.so"));
    return more;
}

/* Files that take room and hold nothing are seen in the figures. */
Test(tiers, figures_tell_of_files_that_are_of_no_use)
{
    char path[4200];
    static const char junk[8192] = "no segment";
    folder = ts_temp_dir();
    snprintf(path, sizeof path, "%s/seg-other-0000000000000001-00000001", folder);
    FILE *f = fopen(path, "w");
    cr_assert(f && fwrite(junk, sizeof junk, 1, f) == 1 && !fclose(f));
    char *text = shared_config("");
    start("true", text);
    for (int64_t end = ends(); tier_metric("unusable_bytes", "shared", ",cause=\"damaged\"") == 0 && more(end);)
        ;
    cr_expect_eq(tier_metric("unusable_bytes", "shared", ",cause=\"damaged\""), sizeof junk);
    cr_expect_eq(tier_metric("unusable_bytes", "shared", ",cause=\"other_layout\""), 0);
    cr_expect_eq(tier_metric("unusable_bytes", "shared", ",cause=\"unreadable\""), 0);
    free(text);
}

/* Each turn comes to the other one of two processes that share a folder and keep no window rows. */
Test(tiers, what_is_kept_of_a_conversation_grows_from_process_to_process)
{
    struct ts_answer want[TURNS];
    struct ts_server both[2];
    right_behind_the_first(want);
    folder = ts_temp_dir();
    char *text = shared_config(""), *keys = NULL;
    cr_assert_gt(asprintf(&keys, "snapshots = \"0B\"; %s", text), 0);
    for (int i = 0; i < 2; i++) {
        start("false", keys);
        both[i] = server;
    }
    for (int i = 0; i < TURNS; i++) {
        server = both[i % 2];
        until_stored("shared", i ? blocks_of(&want[i - 1]) : 0);
        check_turn(want, i, i ? &want[i - 1] : NULL, turn(i));
    }
    server = both[1];
    ts_server_free(&both[0]);
    for (int i = 0; i < TURNS; i++)
        ts_answer_free(&want[i]);
    free(text);
    free(keys);
}

Test(tiers, and_through_usrbio)
{
    two_processes(through_usrbio(""));
}

Test(tiers, and_through_usrbio_with_short_moves)
{
    two_processes(through_usrbio("short=400"));
}

Test(tiers, and_through_usrbio_with_all_of_it_and_what_is_tried_again)
{
    two_processes(through_usrbio("again=150,order=400,late=300,short=150,transient=60,calls=60,seed=3"));
}

/* A file system that does not answer any more: requests go on, and the process ends when it is asked to. */
Test(tiers, a_shared_folder_that_hangs_keeps_no_process)
{
    if (!ts_more(0, 1))
        return; /* half a minute, so in make test-long only */
    folder = ts_temp_dir();
    char *text = shared_config(through_usrbio("late=1000"));
    start("true", text);
    free(text);
    for (int i = 0; i < 8; i++) {
        struct ts_answer a = ask(i % 4);
        cr_assert_gt(strlen(a.text), 0u);
        ts_answer_free(&a);
    }
    kill(server.pid, SIGTERM);
    int status = ts_server_wait(&server);
    char *log = ts_server_log(&server);
    cr_assert_eq(status, 0, "%d: %s", status, log);
    free(log);
}

/* Late errors cost hits. The text stays, and what is stored later is read. */
Test(tiers, errors_of_usrbio_cost_hits_and_no_text)
{
    folder = ts_temp_dir();
    char *text = shared_config(through_usrbio("error=100,late=300,order=300,seed=5"));
    start("true", text);
    struct ts_answer cold = ask(0);
    for (int i = 0; i < 20 && (!i || tier_metric("errors_total", "shared", ",kind=\"io\"") < 1); i++) {
        crowd_out();
        struct ts_answer again = ask(0);
        cr_assert_str_eq(again.text, cold.text, "round %d", i);
        ts_answer_free(&again);
    }
    cr_assert_ge(tier_metric("errors_total", "shared", ",kind=\"io\""), 1);
    ts_server_free(&server);
    unsetenv("WEFT_USRBIO_FAULTS");
    start("true", text);
    struct ts_answer first = ask(0);
    cr_assert_str_eq(first.text, cold.text);
    until_stored("shared", 10);
    crowd_out();
    same(&cold, ask(0), "after the errors");
    until_read("shared");
    ts_answer_free(&first);
    ts_answer_free(&cold);
    free(text);
}

/* Engram rows mapped, through memory, and past the page cache: one text. */
Test(tiers, engram_rows_give_one_text_wherever_they_come_from)
{
    static const char *const store[] = {"store = \"mapped\";", "store = \"host\"; cache = \"256KiB\";",
                                        "store = \"ssd\";"};
    struct ts_answer mapped = {0};
    for (int i = 0; i < 3; i++) {
        char *text = NULL;
        cr_assert_gt(asprintf(&text, "};\nengram = { %s ", store[i]), 0);
        if (i)
            ts_server_free(&server);
        start("false", text);
        free(text);
        struct ts_answer a = ask(0);
        cr_expect_eq(ts_metric(&server, "weft_engram_errors_total"), 0);
        if (!i) {
            cr_assert_eq(ts_metric(&server, "weft_engram_rows_total"), 0);
            mapped = a;
            continue;
        }
        for (int64_t end = ends(); ts_metric(&server, "weft_engram_reads_total") < 1 && more(end);)
            ;
        cr_assert_ge(ts_metric(&server, "weft_engram_rows_total"), 100);
        cr_assert_ge(ts_metric(&server, "weft_engram_rows_ahead_total"), 1);
        cr_assert_ge(ts_metric(&server, "weft_engram_latency_seconds_count"), 1);
        cr_assert_str_eq(a.text, mapped.text, "%s", store[i]);
        ts_answer_free(&a);
    }
    ts_answer_free(&mapped);
}

/* Lines of a trace are written beside the answers: at the end of the server they are there. */
static void end_of_trace(void)
{
    kill(server.pid, SIGTERM);
    cr_assert_eq(ts_server_wait(&server), 0);
}

/* A trace of the requests, and what its replay says of them. */
Test(tiers, a_trace_holds_no_text_and_is_replayed)
{
    char *text = NULL, path[4200];
    folder = ts_temp_dir();
    snprintf(path, sizeof path, "%s/trace", folder);
    cr_assert_gt(asprintf(&text, "};\nlog = { trace = \"%s\"; ", path), 0);
    start("true", text);
    free(text);
    for (int i = 0; i < 6; i++) {
        struct ts_answer a = ask(i % 3);
        ts_answer_free(&a);
    }
    end_of_trace();
    char *lines = ts_read_file(path, NULL);
    cr_assert_not_null(lines);
    int n = 0;
    for (const char *at = lines; (at = strstr(at, "\"blocks\":[\"")); at++)
        n++;
    cr_assert_eq(n, 6, "%s", lines);
    cr_assert_null(strstr(lines, "beginning"));
    free(lines);
    struct ts_result r = ts_run(ts_weft(), "bench", "kv", "--trace", path);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert(strstr(r.out, "6 requests"), "%s", r.out);
    const char *row = strstr(r.out, "no limit");
    double saved = 0, most = 0;
    for (; row; row = strstr(row + 1, "no limit"))
        if (sscanf(row, "no limit %lf", &saved) == 1)
            most = saved > most ? saved : most;
    cr_assert_gt(most, 40.0, "half of the prompts were seen before: %s", r.out);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "bench", "kv", "--trace", "README.md");
    cr_assert_eq(r.status, 1);
    cr_assert(strstr(r.err, "README.md:1"), "%s", r.err);
    ts_result_free(&r);
}

/* Rotation: after SIGHUP requests go to a new file of the name, and names of blocks go on to be comparable. */
Test(tiers, a_trace_is_opened_again_on_sighup)
{
    char *text = NULL, path[4200], moved[4300];
    folder = ts_temp_dir();
    snprintf(path, sizeof path, "%s/trace", folder);
    snprintf(moved, sizeof moved, "%s.1", path);
    cr_assert_gt(asprintf(&text, "};\nlog = { trace = \"%s\"; ", path), 0);
    start("true", text);
    free(text);
    struct ts_answer a = ask(0);
    ts_answer_free(&a);
    cr_assert_eq(rename(path, moved), 0);
    kill(server.pid, SIGHUP);
    for (int64_t end = ends(); access(path, F_OK) && more(end);)
        ts_metric(&server, "weft_draining");
    cr_assert_eq(access(path, F_OK), 0, "the file was not opened again");
    a = ask(0);
    ts_answer_free(&a);
    end_of_trace();
    char *before = ts_read_file(moved, NULL), *after = ts_read_file(path, NULL);
    cr_assert(before && after);
    const char *b = strstr(before, "\"blocks\":["), *c = strstr(after, "\"blocks\":[");
    cr_assert(b && c);
    cr_assert_eq(strncmp(b, c, 30), 0, "one block has two names:\n%s%s", before, after);
    cr_assert_null(strchr(strchr(before, '\n') + 1, '\n'), "one line each: %s", before);
    free(before);
    free(after);
}

/* Row 55: damage costs the block, not the answer. */
Test(tiers, damaged_files_are_recomputed)
{
    start_ssd("true");
    struct ts_answer cold = ask(0);
    until_stored("ssd", 10);
    kill(server.pid, SIGTERM);
    cr_assert_eq(ts_server_wait(&server), 0);
    char path[4200];
    snprintf(path, sizeof path, "%s/weft-kv.000", folder);
    FILE *f = fopen(path, "r+");
    cr_assert_not_null(f);
    for (long at = 3000; at < 200000; at += 20000) {
        fseek(f, at, SEEK_SET);
        fputc(0x5a, f);
    }
    fclose(f);
    cr_assert(ts_server_again(&server, NULL, 0));
    for (int64_t end = ends(); ts_metric(&server, "weft_kv_tier_blocks{tier=\"ssd\"}") < 10 && more(end);)
        ;
    struct ts_answer again = ask(0);
    cr_assert_str_eq(again.text, cold.text);
    for (int64_t end = ends();
         ts_metric(&server, "weft_kv_tier_errors_total{tier=\"ssd\",kind=\"checksum\"}") < 1 && more(end);)
        ;
    cr_assert_ge(ts_metric(&server, "weft_kv_tier_errors_total{tier=\"ssd\",kind=\"checksum\"}"), 1.0);
    ts_answer_free(&again);
    ts_answer_free(&cold);
}

enum { CLIENTS = 96, PROMPTS = 15 };

/* Shorter than the others: there are many. */
static char *crowd_body(int which)
{
    char *p = prompt(which);
    p[1000] = 0;
    char *body = ts_body(TS_COMPLETIONS, p, 4, false, "");
    free(p);
    return body;
}

/* All at once, every prompt by many: each gets the text that it had alone. */
static void crowd(struct ts_answer *alone)
{
    static struct ts_flow f[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        char *body = crowd_body(i % PROMPTS);
        cr_assert(ts_flow_open(&f[i], server.port, ts_path(TS_COMPLETIONS), body), "client %d", i);
        free(body);
    }
    while (ts_flows_turn(f, CLIENTS, 1000))
        ;
    for (int i = 0; i < CLIENTS; i++) {
        char *body = ts_flow_body(&f[i]);
        cr_assert_eq(ts_flow_status(&f[i]), 200, "client %d: %s", i, body);
        struct ts_answer a = ts_answer_of(TS_COMPLETIONS, body, false);
        cr_expect_str_eq(a.text, alone[i % PROMPTS].text, "client %d, %d cached", i, a.cached);
        ts_answer_free(&a);
        free(body);
        ts_flow_close(&f[i]);
    }
}

/* Row 39, with real clients: the pages hold a part of what they ask for, what is on the disk after a kill -9 is
 * read, and nothing is held in the end. */
Test(tiers, ninety_six_clients_get_the_text_of_one_from_tiny_tiers)
{
    static const char *const bad[] = {"io", "checksum", "short_read"};
    struct ts_answer alone[PROMPTS];
    char more[4400];
    folder = ts_temp_dir();
    snprintf(
        more, sizeof more,
        "host = \"4MiB\"; write_behind = \"128KiB\"; ssd = { path = \"%s\"; size = \"4MiB\"; reserve = \"1MiB\"; };",
        folder);
    start("true", more);
    for (int i = 0; i < PROMPTS; i++) {
        char *body = crowd_body(i);
        struct ts_reply r = ts_post(&server, ts_path(TS_COMPLETIONS), body);
        alone[i] = ts_answer_of(TS_COMPLETIONS, r.body, false);
        cr_assert_eq(alone[i].cached, 0);
        ts_reply_free(&r);
        free(body);
    }
    until_stored("ssd", 50);
    restart_with(SIGKILL, 50);
    crowd(alone);
    ts_until_metric(&server, "weft_num_requests_running", 0);
    ts_until_metric(&server, "weft_kv_pages_held", 8); /* a lease */
    until_read("host");
    until_read("ssd");
    cr_expect_gt(tier_metric("evicted_blocks_total", "device", ""), 0.0);
    for (int i = 0; i < 3; i++) {
        char kind[40];
        snprintf(kind, sizeof kind, ",kind=\"%s\"", bad[i]);
        cr_expect_eq(tier_metric("errors_total", "ssd", kind), 0.0, "%s", bad[i]);
    }
    for (int i = 0; i < PROMPTS; i++)
        ts_answer_free(&alone[i]);
}

Test(tiers, a_folder_that_is_not_there_is_said)
{
    char *dir = ts_temp_dir(), *conf = NULL;
    cr_assert_gt(
        asprintf(&conf, "model = { path = \"samples/tiny\"; };\nkv = { ssd = { path = \"%s/none\"; }; };\n", dir), 0);
    char *path = ts_write_file(dir, "bad.conf", conf);
    struct ts_result r = ts_run(ts_weft(), "serve", path);
    cr_assert_neq(r.status, 0);
    cr_assert_not_null(strstr(r.err, "/none"), "%s", r.err);
    ts_result_free(&r);
    ts_remove_dir(dir);
    free(conf);
    free(path);
    free(dir);
}
