/* Prefill and decode as processes of their own over tcp: the tokens of one process through the death, the silence and
 * the return of each node. test_forms.c has every form of hand-off. */
#include <jansson.h>
#include <signal.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/model.h"
#include "tests/support/process.h"

TestSuite(cluster, .fini = ts_cluster_end, .timeout = 300);

enum { GATEWAY, P0, P1, D0, D1, NODES };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [P1] = {.name = "p1", .roles = "\"prefill\", \"expert\"", .group = "p1"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    [D1] = {.name = "d1", .roles = "\"decode\", \"expert\"", .group = "d1"},
};

/* In exact mode, where a request that goes on elsewhere has the same tokens. */
Test(cluster, every_node_may_die_stand_still_and_come_back)
{
    char *want[TS_CLUSTER_PROMPTS];
    ts_cluster_ask_alone("replay = { exact = true; };\n", want);
    ts_cluster_start(nodes, NODES, "", "replay = { exact = true; };\n");
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    ts_cluster_check(s, want, "all there");
    for (int i = P0; i < NODES; i++) {
        struct ts_node *n = &ts_cluster.node[i];
        kill(n->pid, SIGSTOP);
        ts_cluster_check(s, want, "one stands still");
        kill(n->pid, SIGCONT);
        ts_node_kill(n);
        ts_cluster_check(s, want, "one is dead");
        ts_node_start(n);
        ts_cluster_check(s, want, "it is back");
    }
    ts_node_kill(&ts_cluster.node[D0]);
    ts_node_kill(&ts_cluster.node[D1]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 503);
    ts_node_start(&ts_cluster.node[D1]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    ts_cluster_check(s, want, "one of two is back");
    ts_cluster_forget(want);
}

/* A prefill node of form encoder runs without the layers behind the bridge, here without their tensors: the text is
 * that of one process. In form full the same node does not start. */
Test(cluster, a_prefill_node_of_form_encoder_does_without_later_layers)
{
    enum { P = 1, FOUR = 4 };
    static const struct ts_node four[FOUR] = {
        {.name = "gateway", .roles = "\"gateway\""},
        [P] = {.name = "p0", .roles = "\"prefill\""},
        {.name = "d0", .roles = "\"decode\""},
        {.name = "e0", .roles = "\"expert\""},
    };
    char *want[TS_CLUSTER_PROMPTS], conf[4200], *part = NULL;
    struct mdl_checkpoint *ck;
    struct cfg_error err;
    const struct ts_server *s = &ts_cluster.node[0].http;
    ts_cluster_ask_alone("", want);
    cr_assert_eq(mdl_checkpoint_open(TS_TINY, &ck, &err), 0, "%s", err.msg);
    char *dir = ts_encoder_only(TS_TINY);
    ts_cluster_write(four, FOUR, "handoff = \"encoder\";", "");
    snprintf(conf, sizeof conf, "%s/weft.conf", ts_cluster.dir);
    char *whole = ts_read_file(conf, NULL), *at = strstr(whole, "path = \"samples/tiny\"");
    cr_assert(at && asprintf(&part, "%.*spath = \"%s\"; revision = \"%016llx\"%s", (int)(at - whole), whole, dir,
                             (unsigned long long)ck->revision, at + strlen("path = \"samples/tiny\"")) > 0);
    for (int i = FOUR - 1; i >= 0; i--) {
        free(ts_write_file(ts_cluster.dir, "weft.conf", i == P ? part : whole));
        ts_node_start(&ts_cluster.node[i]);
    }
    ts_node_wait_ready(&ts_cluster.node[0], 200);
    ts_node_wait_log(&ts_cluster.node[P], "encoder_only");
    ts_node_wait_log(&ts_cluster.node[P], "revision=not_verified");
    free(ts_write_file(ts_cluster.dir, "weft.conf", part));
    struct ts_result r = ts_run(ts_weft(), "check", "--node", "p0", "--timeout", "1", conf);
    cr_expect(strstr(r.out, "warning  model") && strstr(r.out, "believed and not verified"), "%s%s", r.out, r.err);
    ts_result_free(&r);
    ts_cluster_check(s, want, "encoder layers only");
    ts_node_kill(&ts_cluster.node[P]);
    char *full = strstr(part, "\"encoder\"");
    memcpy(full, "\"full\"   ", strlen("\"encoder\""));
    free(ts_write_file(ts_cluster.dir, "weft.conf", part));
    r = ts_run(ts_weft(), "serve", "--node", "p0", conf);
    cr_expect(r.status != 0 && strstr(r.err, "is missing"), "%d: %s", r.status, r.err);
    ts_result_free(&r);
    ts_remove_dir(dir);
    mdl_checkpoint_close(ck);
    ts_cluster_forget(want);
    free(dir);
    free(whole);
    free(part);
}

/* ---- a conversation ---- */

static json_int_t rows_sent_by(int i)
{
    char *text = ts_node_ask(&ts_cluster.node[i], "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    cr_assert(j != NULL, "%s does not answer", ts_cluster.node[i].name);
    json_int_t n =
        json_integer_value(json_object_get(json_object_get(json_object_get(j, "transport"), "kv"), "put_bytes_out"));
    json_decref(j);
    free(text);
    return n;
}

/* A second turn begins with the first one, which the decode node has computed or received: only the rest is sent. The
 * text is that of one process, and that of nodes that have seen nothing before. */
Test(cluster, a_second_turn_sends_only_what_the_decode_node_lacks)
{
    enum { PREFILL = 1, PAIR = 3, SAID = 100, MORE = 30 };
    static const struct ts_node pair[PAIR] = {
        {.name = "gateway", .roles = "\"gateway\""},
        [PREFILL] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
        {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    };
    static const char more[] = "replay = { exact = true; };\nkv = { memory = \"16MiB\"; block_tokens = 32; };\n";
    const struct ts_server *s = &ts_cluster.node[0].http;
    struct ts_server alone;
    char *second = NULL;
    ts_cluster_start(pair, PAIR, "", more);
    char *first = ts_cluster_complete_to(s, ts_cluster_prompts[0], SAID);
    cr_assert_gt(asprintf(&second, "%s%s And then", ts_cluster_prompts[0], first), 0);
    json_int_t before = rows_sent_by(PREFILL);
    char *warm = ts_cluster_complete_to(s, second, MORE);
    json_int_t rest = rows_sent_by(PREFILL) - before;
    ts_cluster_end();
    ts_cluster_start(pair, PAIR, "", more);
    before = rows_sent_by(PREFILL);
    char *cold = ts_cluster_complete_to(s, second, MORE);
    json_int_t whole = rows_sent_by(PREFILL) - before;
    ts_cluster_end();
    ts_server_start(&alone, NULL, "compute = { threads = 1; };\nreplay = { exact = true; };\n");
    char *one = ts_cluster_complete_to(&alone, second, MORE);
    ts_server_free(&alone);
    cr_expect_str_eq(warm, one);
    cr_expect_str_eq(cold, one);
    cr_log_info("%lld bytes of %lld", (long long)rest, (long long)whole);
    cr_expect_gt(rest, 0);
    cr_expect_lt(rest, whole / 2, "%lld bytes of %lld were sent", (long long)rest, (long long)whole);
    free(first);
    free(second);
    free(warm);
    free(cold);
    free(one);
}

/* ---- clients that leave: every node that worked for them lets go ---- */

enum { DECODE = 2, SPREAD = 5, WAIT = 300, LONG = 900 /* tokens */ };

static const struct ts_node spread[SPREAD] = {
    {.name = "gateway", .roles = "\"gateway\""},
    {.name = "p0", .roles = "\"prefill\""},
    [DECODE] = {.name = "d0", .roles = "\"decode\""},
    {.name = "e0", .roles = "\"expert\""},
    {.name = "e1", .roles = "\"expert\""},
};

/* What a node holds of requests: pages that are not free, requests of its roles, in its Router's books, and to its
 * peers; and its descriptors. */
struct held {
    json_int_t pages, work, fds;
    json_int_t dispatched; /* bytes to expert nodes so far */
};

static struct held held_by(int i)
{
    struct ts_node *n = &ts_cluster.node[i];
    char *text = ts_node_ask(n, "status");
    json_t *j = text ? json_loads(text, 0, NULL) : NULL, *load = json_object_get(j, "load"), *part, *peer;
    cr_assert(j != NULL, "%s does not answer", n->name);
    struct held h = {.fds = ts_server_fds(&(struct ts_server){.pid = n->pid})};
    const char *role;
    size_t k;
    json_object_foreach (load, role, part) {
        h.work += json_integer_value(json_object_get(part, "running")) +
                  json_integer_value(json_object_get(part, "waiting")) +
                  json_integer_value(json_object_get(part, "requests")) +
                  json_integer_value(json_object_get(part, "placed"));
        h.pages += json_integer_value(json_object_get(part, "pages")) -
                   json_integer_value(json_object_get(part, "pages_free"));
    }
    json_array_foreach (json_object_get(j, "peers"), k, peer)
        h.work += json_integer_value(json_object_get(peer, "requests"));
    const json_t *expert = json_object_get(json_object_get(j, "transport"), "expert");
    h.dispatched = json_integer_value(json_object_get(expert, "message_bytes_out")) +
                   json_integer_value(json_object_get(expert, "put_bytes_out"));
    json_decref(j);
    free(text);
    return h;
}

/* Waits until the node holds what it held before. */
static void until_held(int i, struct held before)
{
    struct held h = held_by(i);
    for (int k = 0; k < WAIT && (h.work || h.pages != before.pages || h.fds != before.fds); k++) {
        usleep(100000);
        h = held_by(i);
    }
    if (h.work || h.pages != before.pages || h.fds != before.fds)
        ts_cluster_show_logs();
    cr_assert(!h.work && h.pages == before.pages && h.fds == before.fds,
              "%s: %lld requests, %lld pages (%lld before), %lld descriptors (%lld)", ts_cluster.node[i].name,
              (long long)h.work, (long long)h.pages, (long long)before.pages, (long long)h.fds, (long long)before.fds);
}

/* n streams, a few at a time, each left behind so many bytes of it. */
static void leave_many(const struct ts_server *s, int n)
{
    enum { AT_A_TIME = 6 };
    struct ts_flow f[AT_A_TIME];
    size_t leave[AT_A_TIME];
    for (int i = 0; i < AT_A_TIME; i++)
        f[i] = (struct ts_flow){.fd = -1, .ended = true};
    for (int started = 0, open = 1; open;) {
        open = 0;
        for (int i = 0; i < AT_A_TIME; i++) {
            bool early = f[i].fd >= 0 && f[i].ended && f[i].len;
            if (early)
                ts_cluster_show_logs();
            cr_assert_not(early, "it has ended: %s", f[i].data);
            if (f[i].fd >= 0 && f[i].len >= leave[i])
                ts_flow_close(&f[i]);
            if (f[i].fd < 0 && started < n) {
                char *body = ts_body(TS_COMPLETIONS, ts_cluster_prompts[started % TS_CLUSTER_PROMPTS], LONG, true,
                                     "\"ignore_eos\":true");
                cr_assert(ts_flow_open(&f[i], s->port, ts_path(TS_COMPLETIONS), body));
                free(body);
                leave[i] = started % 3 ? (size_t)(started * 97 % 6000) : 0;
                started++;
            }
            open += f[i].fd >= 0;
        }
        ts_flows_turn(f, AT_A_TIME, 1);
    }
}

/* One prefill, one decode and two expert nodes work for each request. Answers of LONG tokens are left early: none of
 * the nodes goes on with them (what the decoder sends to the experts shows it), and nothing stays behind. There are
 * fewer pages than requests, so a page that each of them kept would be missed. */
Test(cluster, clients_that_leave_free_every_node)
{
    char *want[TS_CLUSTER_PROMPTS];
    static const char more[] = "kv = { memory = \"1MiB\"; block_tokens = 32; };\n";
    enum { EACH = 60 / TS_LESS, ROUNDS = 2 };
    struct held before[SPREAD];
    ts_cluster_start(spread, SPREAD, "", more);
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    json_int_t none = held_by(DECODE).dispatched;
    for (int i = 0; i < TS_CLUSTER_PROMPTS; i++)
        want[i] = ts_cluster_complete(s, ts_cluster_prompts[i]);
    for (int i = 0; i < SPREAD; i++)
        for (int k = 0; k < WAIT && (before[i] = held_by(i)).work; k++)
            usleep(100000);
    json_int_t token = (before[DECODE].dispatched - none) / (TS_CLUSTER_PROMPTS * TS_CLUSTER_TOKENS);
    for (int round = 0; round < ROUNDS; round++) {
        leave_many(s, EACH);
        for (int i = 0; i < SPREAD; i++)
            until_held(i, before[i]);
    }
    cr_expect_gt(ts_metric(s, "weft_disconnected_clients_total"), EACH * ROUNDS * 3 / 4);
    json_int_t tokens = (held_by(DECODE).dispatched - before[DECODE].dispatched) / token;
    cr_expect_lt(tokens, (json_int_t)EACH * ROUNDS * LONG / 3, "%lld tokens were decoded for clients that had left",
                 (long long)tokens);
    ts_cluster_check(s, want, "after clients that left");
    ts_cluster_forget(want);
}
