/* Nodes with the role kv as processes: what one prefill node computed, another one that never saw it reads from them,
 * with the text of exact mode; through the death, the silence and the return of a kv node. */
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

static char *folder;

static void end(void)
{
    ts_cluster_end();
    if (folder)
        ts_remove_dir(folder);
    free(folder);
    folder = NULL;
}

TestSuite(kv_nodes, .fini = end, .timeout = 300);

enum { GATEWAY, P0, P1, D0, K0, K1, NODES, WAIT = 600, TOKENS = 12 };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [P1] = {.name = "p1", .roles = "\"prefill\", \"expert\"", .group = "p1"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    [K0] = {.name = "kv-0", .roles = "\"kv\""},
    [K1] = {.name = "kv-1", .roles = "\"kv\""},
};

/* Blocks of 32 tokens of the sample model take 12 KiB. With files, kv nodes keep little in memory. */
static void start_in(const char *exact, const char *device, bool files, const char *limits)
{
    char *more = NULL, *nodes_keys = NULL;
    folder = files ? ts_temp_dir() : NULL;
    cr_assert_gt(files ? asprintf(&nodes_keys, "memory = \"1MiB\"; path = \"%s\"; size = \"16MiB\"; %s", folder, limits)
                       : asprintf(&nodes_keys, "memory = \"8MiB\"; %s", limits),
                 0);
    cr_assert_gt(asprintf(&more,
                          "replay = { exact = %s; };\nsampling = { temperature = 0.0; };\n"
                          "kv = { memory = \"%s\"; snapshots = \"0B\"; block_tokens = 32; read_timeout = \"60s\"; "
                          "write_behind = \"512KiB\"; "
                          "ssd = { reserve = \"1MiB\"; }; nodes = { %s }; };\n",
                          exact, device, nodes_keys),
                 0);
    ts_cluster_start(nodes, NODES, "", more);
    free(more);
    free(nodes_keys);
}

static void start(const char *device, bool files, const char *limits)
{
    start_in("true", device, files, limits);
}

/* Where a node that is late must not be taken for one that has nothing. */
#define PATIENT "find_timeout = \"30s\"; quiet_timeout = \"60s\"; "

static struct ts_answer ask(int which)
{
    return ts_cluster_ask(&ts_cluster.node[GATEWAY], which, TOKENS);
}

/* A figure of the node's tiers of that name, added up; -1: the node does not answer. */
static json_int_t figure(int node, const char *tier, const char *key)
{
    char *text = ts_node_ask(&ts_cluster.node[node], "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL, *t;
    json_int_t sum = j ? 0 : -1;
    size_t i;
    json_array_foreach (json_object_get(j, "tiers"), i, t) {
        if (!strcmp(json_string_value(json_object_get(t, "tier")), tier))
            sum += json_integer_value(json_object_get(t, key));
    }
    json_decref(j);
    free(text);
    return sum;
}

/* Bytes that the node has written into windows of others. */
static json_int_t put_bytes(int node)
{
    char *text = ts_node_ask(&ts_cluster.node[node], "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL, *kv = json_object_get(json_object_get(j, "transport"), "kv");
    json_int_t n = json_integer_value(json_object_get(kv, "put_bytes_out"));
    json_decref(j);
    free(text);
    return n;
}

static void until(int node, const char *tier, const char *key, json_int_t least)
{
    json_int_t now = -1;
    for (int i = 0; i < WAIT && now < least; i++) {
        now = figure(node, tier, key);
        if (now < least)
            usleep(100000);
    }
    if (now < least)
        ts_cluster_show_logs();
    cr_assert_geq(now, least, "%s: %s of tier %s is %lld", ts_cluster.node[node].name, key, tier, (long long)now);
}

/* From now on this prefill node, in a new process, has all the work, and it knows both kv nodes. */
static void only_prefill(int on)
{
    char log[4300];
    for (int i = P0; i <= P1; i++)
        if (ts_cluster.node[i].pid)
            ts_node_kill(&ts_cluster.node[i]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 503);
    snprintf(log, sizeof log, "%s/%s.log", ts_cluster.dir, ts_cluster.node[on].name);
    unlink(log);
    ts_node_start(&ts_cluster.node[on]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    ts_node_wait_log(&ts_cluster.node[on], "node_up node=d0");
    for (int k = K0; k <= K1; k++) {
        char up[64];
        snprintf(up, sizeof up, "node_up node=%s", ts_cluster.node[k].name);
        if (ts_cluster.node[k].pid)
            ts_node_wait_log(&ts_cluster.node[on], up);
    }
}

Test(kv_nodes, what_one_prefill_node_computed_another_reads)
{
    start("4MiB", false, PATIENT);
    only_prefill(P0);
    struct ts_answer cold = ask(1);
    cr_assert_eq(cold.cached, 0);
    until(P0, "kv", "stored", 10);
    only_prefill(P1);
    struct ts_answer hit = ask(1);
    cr_assert_str_eq(hit.text, cold.text);
    cr_assert_gt(hit.cached, 200, "%d tokens cached", hit.cached);
    until(P1, "kv", "read", 7);
    /* Both nodes had their share. */
    until(K0, "host", "read", 1);
    until(K1, "host", "read", 1);
    /* Blocks of 12 KiB. */
    cr_assert_geq(put_bytes(K0) + put_bytes(K1), 7 * 12288);
    ts_answer_free(&hit);
    ts_answer_free(&cold);
}

/* A text of so many sentences, which begins like every longer one. */
static struct ts_answer ask_long(int sentences)
{
    char text[8192];
    int at = 0;
    for (int i = 0; i < sentences; i++)
        at += sprintf(text + at, "%d And the LORD spake unto Moses, saying, Speak unto the children of Israel. ", i);
    return ts_ask(&ts_cluster.node[GATEWAY].http, TS_COMPLETIONS, text, TOKENS, false, "");
}

/* The default mode, in which hits are replayed: each turn of a conversation comes to a prefill node that never saw it,
 * and finds all that was kept of the one before. */
Test(kv_nodes, what_is_kept_of_a_conversation_grows_from_node_to_node)
{
    static const int turn[] = {16, 32, 46};
    int before = 0;
    start_in("false", "4MiB", false, PATIENT);
    for (int i = 0; i < 3; i++) {
        only_prefill(i % 2 ? P1 : P0);
        struct ts_answer a = ask_long(turn[i]);
        cr_assert_eq(a.cached, before, "turn %d of %d tokens: %d cached", i, a.prompt, a.cached);
        before = a.prompt / 32 * 32;
        until(i % 2 ? P1 : P0, "kv", "stored", (before - a.cached) / 32);
        ts_answer_free(&a);
    }
}

/* What both nodes say of a tier of theirs. */
static void until_both(const char *tier, const char *key, json_int_t least)
{
    json_int_t now = -1;
    for (int i = 0; i < WAIT && now < least; i++) {
        now = figure(K0, tier, key) + figure(K1, tier, key);
        if (now < least)
            usleep(100000);
    }
    if (now < least)
        ts_cluster_show_logs();
    cr_assert_geq(now, least, "%s of tier %s is %lld", key, tier, (long long)now);
}

/* Both nodes are killed. What they had said to have is there again, and right. */
Test(kv_nodes, a_node_has_its_blocks_again_after_kill_9)
{
    start("4MiB", true, PATIENT);
    only_prefill(P0);
    struct ts_answer cold = ask(1);
    until_both("ssd", "blocks", 10);
    for (int k = K0; k <= K1; k++) {
        ts_node_kill(&ts_cluster.node[k]);
        ts_node_start(&ts_cluster.node[k]);
    }
    until_both("ssd", "blocks", 10);
    only_prefill(P1);
    struct ts_answer hit = ask(1);
    cr_assert_str_eq(hit.text, cold.text);
    cr_assert_gt(hit.cached, 200, "%d tokens cached", hit.cached);
    until_both("ssd", "read", 7);
    ts_answer_free(&hit);
    ts_answer_free(&cold);
}

/* ---- fates ---- */

enum { PROMPTS = 10 };

struct blow {
    pid_t pid;
    int signal, after_us;
};

static void *strike(void *arg)
{
    const struct blow *b = arg;
    usleep((useconds_t)b->after_us); /* somewhere within the prompts below; what it meets does not matter */
    kill(b->pid, b->signal);
    return NULL;
}

/* The device, and the blocks that wait to be stored, have not room for all prompts, so each is read from the nodes
 * again, one after another. Meanwhile the blow falls. */
static int all_prompts(struct ts_answer *cold, const struct blow *b, const char *when)
{
    pthread_t thread;
    int cached = 0;
    if (b)
        cr_assert_eq(pthread_create(&thread, NULL, strike, (void *)(uintptr_t)b), 0);
    for (int i = 0; i < PROMPTS; i++) {
        struct ts_answer a = ask(i);
        if (!cold[i].text) {
            cold[i] = a;
            continue;
        }
        cr_assert_str_eq(a.text, cold[i].text, "%s, prompt %d", when, i);
        cached += a.cached > 200;
        ts_answer_free(&a);
    }
    if (b)
        pthread_join(thread, NULL);
    return cached;
}

/* A slow machine may take what is late for a miss, so some rounds may pass before most are hits. */
static void until_hits(struct ts_answer *cold, const char *when)
{
    int hits = 0;
    for (int i = 0; i < 20 && hits <= PROMPTS / 2; i++) {
        only_prefill(P0);
        hits = all_prompts(cold, NULL, when);
    }
    cr_assert_gt(hits, PROMPTS / 2, "%s: %d of %d are hits", when, hits, PROMPTS);
}

/* Nothing is held for anybody. */
static void at_baseline(int node)
{
    json_int_t held = -1;
    for (int i = 0; i < WAIT && held; i++) {
        held = figure(node, "device", "held") + figure(node, "kv", "queue");
        if (held)
            usleep(100000);
    }
    cr_assert_eq(held, 0, "%lld pages are still held", (long long)held);
}

/* Until the files of both have this many blocks. Some may not have found room among those that wait to be stored: what
 * is then missing is computed again, and stored. */
static void until_stored(struct ts_answer *cold, json_int_t least, const char *when)
{
    json_int_t now = 0;
    for (int i = 0; i < 20 && now < least; i++) {
        all_prompts(cold, NULL, when);
        for (int t = 0; t < 20 && now < least; t++) {
            now = figure(K0, "ssd", "blocks") + figure(K1, "ssd", "blocks");
            usleep(100000);
        }
    }
    cr_assert_geq(now, least, "%s: %lld blocks are in files", when, (long long)now);
}

static void wait_back(int kv)
{
    ts_node_wait_log(&ts_cluster.node[kv], "node p0 is connected");
}

/* In mid-read a node is killed, stands still, drains, and comes back: every request is served with its text, and
 * nothing stays behind. */
Test(kv_nodes, a_node_may_die_stand_still_and_drain_while_it_is_read_from)
{
    static struct ts_answer cold[PROMPTS];
    start("1MiB", true, "");
    only_prefill(P0);
    until_stored(cold, 80, "cold");
    until_hits(cold, "warm");
    static const int signals[] = {SIGSTOP, SIGKILL, SIGTERM};
    for (int i = 0; i < 3; i++) {
        int k = i % 2 ? K1 : K0;
        struct ts_node *n = &ts_cluster.node[k];
        char when[32], log[4300];
        snprintf(when, sizeof when, "signal %d", signals[i]);
        all_prompts(cold, &(struct blow){n->pid, signals[i], 40000 + 30000 * i}, when);
        all_prompts(cold, NULL, when);
        at_baseline(P0);
        if (signals[i] == SIGSTOP)
            kill(n->pid, SIGCONT);
        if (signals[i] == SIGTERM) {
            int status;
            cr_assert_eq(waitpid(n->pid, &status, 0), n->pid);
            cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "an orderly end: %x", (unsigned)status);
        } else {
            ts_node_kill(n);
        }
        snprintf(log, sizeof log, "%s/%s.log", ts_cluster.dir, n->name);
        unlink(log);
        ts_node_start(n);
        wait_back(k);
    }
    until_stored(cold, 80, "all are back");
    until_hits(cold, "all are back");
    at_baseline(P0);
    for (int i = 0; i < PROMPTS; i++)
        ts_answer_free(&cold[i]);
}

/* ---- two tiers that have the same ---- */

enum { HEDGE_PROMPTS = 10 };

static double main_metric(const char *name)
{
    return ts_metric(&ts_cluster.node[0].http, name);
}

/* Every prompt says what it said cold. The tokens that came from the prefix cache. */
static int ask_all_again(char *const cold[HEDGE_PROMPTS], const char *when)
{
    int cached = 0;
    for (int i = 0; i < HEDGE_PROMPTS; i++) {
        struct ts_answer a = ts_cluster_ask(&ts_cluster.node[0], i, TOKENS);
        cr_assert_str_eq(a.text, cold[i], "%s: prompt %d", when, i);
        cached += a.cached;
        ts_answer_free(&a);
    }
    return cached;
}

/* What the disk has is read there first. It goes bad, and each read goes on at the kv node; that one stands still, and
 * dies, and what is read from neither is computed. */
Test(kv_nodes, reads_that_fail_on_disk_go_on_at_a_kv_node)
{
    static const struct ts_node two[] = {{.name = "main", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""},
                                         {.name = "kv-0", .roles = "\"kv\""}};
    static const char won[] = "weft_kv_tier_hedge_won_blocks_total{tier=\"kv\"}";
    char *more = NULL, *cold[HEDGE_PROMPTS], path[4300];
    folder = ts_temp_dir();
    cr_assert_gt(
        asprintf(&more,
                 "replay = { exact = true; };\nsampling = { temperature = 0.0; };\n"
                 "kv = { memory = \"1MiB\"; snapshots = \"0B\"; block_tokens = 32; write_behind = \"256KiB\"; "
                 "hedge = \"1us\"; ssd = { path = \"%s\"; size = \"16MiB\"; reserve = \"0B\"; direct = false; }; "
                 "nodes = { memory = \"8MiB\"; quiet_timeout = \"300ms\"; }; };\n",
                 folder),
        0);
    ts_cluster_start(two, 2, "", more);
    ts_node_wait_log(&ts_cluster.node[0], "node_up node=kv-0");
    for (int i = 0; i < HEDGE_PROMPTS; i++) {
        struct ts_answer a = ts_cluster_ask(&ts_cluster.node[0], i, TOKENS);
        cold[i] = strdup(a.text);
        ts_answer_free(&a);
        until(0, "ssd", "stored", 8 * (i + 1)); /* before the next one takes the pages */
        until(0, "kv", "stored", 8 * (i + 1));
    }
    int cached = ask_all_again(cold, "both are well");
    cr_assert_gt(cached, 100 * HEDGE_PROMPTS, "%d cached", cached);
    snprintf(path, sizeof path, "%s/weft-kv.000", folder);
    FILE *f = fopen(path, "r+");
    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, 0, SEEK_END), 0);
    for (long left = ftell(f), at = fseek(f, 0, SEEK_SET); at < left; at++)
        fputc(0x55, f);
    cr_assert_eq(fclose(f), 0);
    double before = main_metric(won);
    cached = ask_all_again(cold, "the disk is bad");
    cr_assert_gt(cached, 100 * HEDGE_PROMPTS, "%d cached", cached);
    for (int i = 0; i < WAIT && main_metric(won) == before; i++) /* figures are half a second old */
        usleep(100000);
    cr_assert_gt(main_metric(won), before);
    kill(ts_cluster.node[1].pid, SIGSTOP);
    ask_all_again(cold, "and the kv node stands still");
    kill(ts_cluster.node[1].pid, SIGCONT);
    ask_all_again(cold, "and goes on");
    ts_node_kill(&ts_cluster.node[1]);
    ask_all_again(cold, "and is dead");
    for (int i = 0; i < HEDGE_PROMPTS; i++)
        free(cold[i]);
    free(more);
}
