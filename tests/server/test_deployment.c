/* Operating a deployment: what weft status says of its nodes, and weft drain under load. */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

TestSuite(deployment, .fini = ts_cluster_end, .timeout = 300);

enum { GATEWAY, P0, D0, D1, NODES };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    [D1] = {.name = "d1", .roles = "\"decode\", \"expert\"", .group = "d1"},
};

static char *conf(void)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/weft.conf", ts_cluster.dir);
    return path;
}

/* What weft status says, as JSON. */
static json_t *status(int *exit_status)
{
    struct ts_result r = ts_run(ts_weft(), "status", "--json", conf());
    json_t *j = json_loads(r.out, 0, NULL);
    cr_assert_not_null(j, "%s%s", r.out, r.err);
    *exit_status = r.status;
    ts_result_free(&r);
    return j;
}

static json_t *node_of(json_t *status_json, int i)
{
    return json_array_get(json_object_get(status_json, "nodes"), (size_t)i);
}

static const char *health_of(json_t *status_json, int i)
{
    const char *h = json_string_value(json_object_get(node_of(status_json, i), "health"));
    return h ? h : "unreachable";
}

static int load_of(int i, const char *what)
{
    int rc;
    json_t *j = status(&rc), *d = json_object_get(json_object_get(node_of(j, i), "load"), "decode");
    int n = (int)json_integer_value(json_object_get(d, what));
    json_decref(j);
    return n;
}

/* Until weft status has this exit status. */
static json_t *wait_status(int want)
{
    int rc;
    for (int i = 0; i < 300; i++) {
        json_t *j = status(&rc);
        if (rc == want)
            return j;
        json_decref(j);
        usleep(100000);
    }
    ts_cluster_show_logs();
    cr_assert_fail("weft status does not come to exit status %d", want);
    return NULL;
}

Test(deployment, status_tells_the_nodes_that_are_well_from_those_that_are_not)
{
    ts_cluster_start(nodes, NODES, "", "");
    json_t *j = wait_status(0);
    for (int i = 0; i < NODES; i++) {
        json_t *n = node_of(j, i);
        cr_expect_str_eq(health_of(j, i), "ok");
        cr_expect_str_eq(json_string_value(json_object_get(n, "name")), nodes[i].name);
        cr_expect_gt(json_integer_value(json_object_get(n, "epoch")), 1);
        cr_expect_eq(json_integer_value(json_object_get(n, "pid")), ts_cluster.node[i].pid);
        cr_expect_eq(json_array_size(json_object_get(n, "peers")), NODES - 1);
    }
    struct ts_result c = ts_run(ts_weft(), "check", conf()); /* their ports are taken, by themselves */
    cr_expect_eq(c.status, 0, "%s%s", c.out, c.err);
    cr_expect(strstr(c.out, " is taken, and node \"gateway\" runs here"), "%s", c.out);
    ts_result_free(&c);
    for (int t = 0; load_of(D0, "pages_free") <= 0; t++) { /* the first report comes a little later */
        cr_assert_lt(t, 300, "the load of a decode node is not known");
        usleep(100000);
    }
    json_int_t before = json_integer_value(json_object_get(node_of(j, P0), "epoch"));
    json_decref(j);
    ts_node_kill(&ts_cluster.node[P0]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 503);
    struct ts_reply q =
        ts_post(&ts_cluster.node[GATEWAY].http, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}");
    cr_expect_eq(q.status, 503, "nothing is full: %d %s", q.status, q.body);
    cr_expect(strstr(q.body, "no prefill node is connected"), "%s", q.body);
    ts_reply_free(&q);
    j = wait_status(1);
    cr_expect_str_eq(health_of(j, GATEWAY), "lost");
    cr_expect_str_eq(health_of(j, P0), "unreachable");
    cr_expect_str_eq(health_of(j, D0), "ok");
    json_decref(j);
    struct ts_result r = ts_run(ts_weft(), "status", conf());
    cr_expect(strstr(r.out, "gateway: takes no requests, as no prefill node is connected"), "%s", r.out);
    ts_result_free(&r);
    ts_node_start(&ts_cluster.node[P0]);
    j = wait_status(0);
    cr_expect_gt(json_integer_value(json_object_get(node_of(j, P0), "epoch")), before, "a new epoch");
    json_decref(j);
}

static void write_rows(const char *replay)
{
    char *text = ts_read_file(conf(), NULL), *out = NULL, *old = strstr(text, "replay = ");
    cr_assert(asprintf(&out, "%.*s%s\n", old ? (int)(old - text) : (int)strlen(text), text, replay) > 0);
    free(ts_write_file(ts_cluster.dir, "weft.conf", out));
    free(text);
    free(out);
}

/* Tokens behind a known prefix depend on how long its replay is: nodes that prompts go through need the same, and those
 * with experts or blocks alone have nothing to do with it. */
Test(deployment, a_node_with_another_replay_is_refused_where_tokens_depend_on_it)
{
    enum { G, P, D, E, N };
    static const struct ts_node apart[N] = {
        [G] = {.name = "gateway", .roles = "\"gateway\""},
        [P] = {.name = "p0", .roles = "\"prefill\""},
        [D] = {.name = "d0", .roles = "\"decode\""},
        [E] = {.name = "e0", .roles = "\"expert\""},
    };
    struct ts_node *const n = ts_cluster.node;
    ts_cluster_start(apart, N, "", "");
    char *want = ts_cluster_complete(&n[G].http, ts_cluster_prompts[0]);
    ts_node_kill(&n[P]);
    ts_node_kill(&n[E]);
    write_rows("replay = { rows = 200; };");
    struct ts_result r = ts_run(ts_weft(), "check", "--node", "p0", conf());
    cr_expect(strstr(r.out, "d0 at ") && strstr(r.out, "here it is replay.rows = 200"), "%s%s", r.out, r.err);
    ts_result_free(&r);
    ts_node_start(&n[E]);
    ts_node_start(&n[P]);
    for (int i = G; i <= D; i++)
        ts_node_wait_log(&n[i], "with replay.rows = 200, bridge_window = truncate");
    ts_node_wait_ready(&n[G], 503);
    ts_node_kill(&n[P]);
    write_rows("");
    ts_node_start(&n[P]);
    ts_node_wait_ready(&n[G], 200);
    char *got = ts_cluster_complete(&n[G].http, ts_cluster_prompts[0]);
    cr_expect_str_eq(got, want);
    free(got);
    free(want);
}

/* The stream that the drained node has ends whole; what comes meanwhile runs elsewhere; the node ends by itself. */
Test(deployment, a_drained_node_finishes_and_the_others_go_on)
{
    ts_cluster_start(nodes, NODES, "", "");
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    int fd = ts_connect(s->port), at = 0;
    cr_assert(ts_send_request(fd, "POST", "/v1/completions",
                              "{\"prompt\":\"Once\",\"max_tokens\":400,\"ignore_eos\":true,\"stream\":true,"
                              "\"stream_options\":{\"include_usage\":true}}"));
    for (int i = 0; i < 300 && !at; i++)
        at = load_of(D0, "running") ? D0 : load_of(D1, "running") ? D1 : 0;
    cr_assert(at, "no decode node reports the stream");
    struct ts_node *n = &ts_cluster.node[at];
    struct ts_result r = ts_run(ts_weft(), "drain", "--wait", "0", conf(), n->name);
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    ts_node_wait_log(&ts_cluster.node[GATEWAY], "part_draining");
    for (int i = 0; i < 4; i++)
        free(ts_cluster_complete(s, ts_cluster_prompts[i % 3]));
    cr_expect(ts_read_until(fd, "\"completion_tokens\":400"), "the stream was cut off");
    close(fd);
    r = ts_run(ts_weft(), "drain", conf(), n->name); /* a second time: waits, or finds it gone already */
    cr_expect(r.status == 0 || strstr(r.err, "refused") || strstr(r.err, "did not say"), "%s%s", r.out, r.err);
    ts_result_free(&r);
    int end;
    cr_assert_eq(waitpid(n->pid, &end, 0), n->pid);
    n->pid = 0;
    cr_expect(WIFEXITED(end) && WEXITSTATUS(end) == 0, "it ended with %x", end);
    free(ts_cluster_complete(s, ts_cluster_prompts[0]));
}

Test(deployment, a_drained_gateway_refuses_new_requests_and_ends)
{
    ts_cluster_start(nodes, NODES, "", "");
    struct ts_node *n = &ts_cluster.node[GATEWAY];
    int fd = ts_connect(n->http.port);
    cr_assert(ts_send_request(fd, "POST", "/v1/completions",
                              "{\"prompt\":\"Once\",\"max_tokens\":300,\"ignore_eos\":true,\"stream\":true,"
                              "\"stream_options\":{\"include_usage\":true}}"));
    cr_assert(ts_read_until(fd, "data: "));
    struct ts_result r = ts_run(ts_weft(), "drain", "--wait", "0", conf(), "gateway");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    cr_expect(ts_read_until(fd, "\"completion_tokens\":300"), "the stream was cut off");
    close(fd);
    int end;
    cr_assert_eq(waitpid(n->pid, &end, 0), n->pid);
    n->pid = 0;
    cr_expect(WIFEXITED(end) && WEXITSTATUS(end) == 0, "it ended with %x", end);
}

/* As ts_cluster_start, and nobody gives up a node that the test has stopped. */
static void start_patient(const char *more)
{
    ts_cluster_write(nodes, NODES, "", more);
    char *text = ts_read_file(conf(), NULL), *at = strstr(text, "state = "), *out = NULL;
    cr_assert(at && asprintf(&out, "%.*ssilence = \"5min\"; %s", (int)(at - text), text, at) > 0);
    free(ts_write_file(ts_cluster.dir, "weft.conf", out));
    for (int i = NODES - 1; i >= 0; i--)
        ts_node_start(&ts_cluster.node[i]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    free(text);
    free(out);
}

/* The only decode node that is left drains and has a stream yet; it stands still, so that this stays so. What comes is
 * told to come back: 503, and why. */
Test(deployment, while_every_decode_node_drains_new_requests_get_503)
{
    start_patient("");
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    struct ts_node *n = &ts_cluster.node[D1];
    ts_node_kill(&ts_cluster.node[D0]);
    int fd = ts_connect(s->port);
    cr_assert(ts_send_request(fd, "POST", "/v1/completions",
                              "{\"prompt\":\"Once\",\"max_tokens\":900,\"ignore_eos\":true,\"stream\":true}"));
    cr_assert(ts_read_until(fd, "data: "));
    struct ts_result r = ts_run(ts_weft(), "drain", "--wait", "0", conf(), "d1");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    ts_node_wait_log(&ts_cluster.node[GATEWAY], "part_draining");
    kill(n->pid, SIGSTOP);
    struct ts_reply a = ts_post(s, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}");
    cr_expect_eq(a.status, 503, "%d %s", a.status, a.body);
    cr_expect(strstr(a.body, "\"draining\""), "%s", a.body);
    ts_reply_free(&a);
    kill(n->pid, SIGCONT);
    cr_expect(ts_read_until(fd, "[DONE]"), "the stream was cut off");
    close(fd);
}

enum { STREAMS = 16 };

static int begin_stream(const struct ts_node *gateway)
{
    int fd = ts_connect(gateway->http.port);
    cr_assert(ts_send_request(fd, "POST", "/v1/completions",
                              "{\"prompt\":\"Once\",\"max_tokens\":900,\"ignore_eos\":true,\"stream\":true,"
                              "\"stream_options\":{\"include_usage\":true}}"));
    cr_assert(ts_read_until(fd, "data: "));
    return fd;
}

static void wait_end(struct ts_node *n, int status)
{
    int end;
    cr_assert_eq(waitpid(n->pid, &end, 0), n->pid);
    n->pid = 0;
    cr_expect(WIFEXITED(end) && WEXITSTATUS(end) == status, "%s ended with %x", n->name, end);
}

struct fate {
    int had, finished, moved, cut;
};

/* What weft drain of this node says of what the node had; it ends so, and so does the node. */
static struct fate drained(struct ts_node *n, int status, const char *what)
{
    struct fate f = {0};
    struct ts_result r = ts_run(ts_weft(), "drain", conf(), n->name);
    cr_expect_eq(r.status, status, "%d\n%s%s", r.status, r.out, r.err);
    cr_expect(strstr(r.out, "has ended, and stays away"), "%s%s", r.out, r.err);
    const char *at = strstr(r.out, ": of "), *moved = at ? strstr(at, " moved") : NULL,
               *cut = at ? strstr(at, " cut") : NULL;
    cr_expect(at && cut && strstr(at, what) && sscanf(at, ": of %d %*s %d finished", &f.had, &f.finished) == 2, "%s",
              r.out);
    while (moved && moved[-1] != ' ')
        moved--;
    while (cut && cut[-1] != ' ')
        cut--;
    f.moved = moved ? atoi(moved) : 0;
    f.cut = cut ? atoi(cut) : 0;
    ts_result_free(&r);
    wait_end(n, status);
    return f;
}

static int busy_node(void)
{
    for (int i = 0; i < 300; i++) {
        int at = load_of(D0, "running") ? D0 : load_of(D1, "running") ? D1 : 0;
        if (at)
            return at;
    }
    cr_assert_fail("no decode node reports a stream");
    return 0;
}

/* Sequences move, or end where they are where that does not come to pass in time. */
Test(deployment, weft_drain_says_what_became_of_sequences)
{
    int fd[STREAMS];
    ts_cluster_start(nodes, NODES, "",
                     "limits = { drain = \"5min\"; stuck = \"5min\"; };\nspeculation = { mode = \"off\"; };\n");
    for (int i = 0; i < STREAMS; i++)
        fd[i] = begin_stream(&ts_cluster.node[GATEWAY]);
    struct fate f = drained(&ts_cluster.node[busy_node()], 0, "sequence");
    cr_expect(f.had > 0 && f.had == f.finished + f.moved && !f.cut, "%d %d %d %d", f.had, f.finished, f.moved, f.cut);
    cr_expect_gt(f.moved, 0, "of %d sequences none moved", f.had);
    for (int i = 0; i < STREAMS; i++) {
        cr_expect(ts_read_until(fd[i], "\"completion_tokens\":900"), "stream %d was cut off", i);
        close(fd[i]);
    }
    struct ts_result r = ts_run(ts_weft(), "drain", conf(), "p0"); /* it has nothing to do */
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_expect_null(strstr(r.out, ": of "), "%s", r.out);
    ts_result_free(&r);
}

/* Prompts that wait at the prefill node for their turn, and are to go to the node that is drained. */
Test(deployment, a_drained_node_waits_for_what_was_placed_there)
{
    enum { WORDS = 150, PROMPTS = 24 };
    int fd[PROMPTS];
    char body[WORDS * 5 + 200], *at = body + sprintf(body, "{\"max_tokens\":2,\"ignore_eos\":true,\"prompt\":\"");
    start_patient("limits = { drain = \"5min\"; stuck = \"5min\"; };\n");
    const struct ts_node *gateway = &ts_cluster.node[GATEWAY];
    kill(ts_cluster.node[P0].pid, SIGSTOP); /* so that all of them wait */
    for (int i = 0; i < PROMPTS; i++) {
        char *end = at + sprintf(at, "%d", i); /* no two begin alike */
        for (int k = 0; k < WORDS; k++)
            end += sprintf(end, " once");
        strcpy(end, "\"}");
        fd[i] = ts_connect(gateway->http.port);
        cr_assert(ts_send_request(fd[i], "POST", "/v1/completions", body));
    }
    ts_until_metric(&gateway->http, "weft_num_requests_waiting", PROMPTS);
    pid_t drain = fork();
    if (drain == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(ts_weft(), ts_weft(), "drain", conf(), "d0", NULL);
        _exit(1);
    }
    ts_node_wait_log(gateway, "part_draining");
    kill(ts_cluster.node[P0].pid, SIGCONT);
    int end;
    cr_assert_eq(waitpid(drain, &end, 0), drain);
    cr_expect(WIFEXITED(end) && WEXITSTATUS(end) == 0, "weft drain ended with %x", end);
    wait_end(&ts_cluster.node[D0], 0);
    for (int i = 0; i < PROMPTS; i++) {
        cr_expect(ts_read_until(fd[i], "\"finish_reason\":\"length\""), "request %d", i);
        close(fd[i]);
    }
    char path[4200];
    snprintf(path, sizeof path, "%s/gateway.log", ts_cluster.dir);
    char *log = ts_read_file(path, NULL);
    cr_expect_null(strstr(log, "placed_again"), "%s", log);
    free(log);
}

/* Its only stream stands still with the nodes that decode until weft drain has told of it. */
Test(deployment, weft_drain_says_what_became_of_requests)
{
    start_patient("limits = { drain = \"5min\"; stuck = \"5min\"; };\n");
    struct ts_node *gateway = &ts_cluster.node[GATEWAY];
    int fd = begin_stream(gateway), said[2], end;
    char text[4096] = "", c;
    for (int i = D0; i <= D1; i++)
        kill(ts_cluster.node[i].pid, SIGSTOP);
    cr_assert_eq(pipe2(said, O_CLOEXEC), 0);
    pid_t drain = fork();
    if (drain == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(said[1], 1);
        execl(ts_weft(), ts_weft(), "drain", conf(), "gateway", NULL);
        _exit(127);
    }
    close(said[1]);
    for (size_t n = 0; n < sizeof text - 1 && read(said[0], &c, 1) == 1;) {
        text[n++] = c;
        text[n] = 0;
        if (fd < 0 || !strstr(text, "gateway: 1 request left\n"))
            continue;
        for (int i = D0; i <= D1; i++)
            kill(ts_cluster.node[i].pid, SIGCONT);
        cr_expect(ts_read_until(fd, "\"completion_tokens\":900"), "the stream was cut off");
        close(fd);
        fd = -1;
    }
    cr_expect_lt(fd, 0, "%s", text);
    close(said[0]);
    cr_assert_eq(waitpid(drain, &end, 0), drain);
    cr_expect(WIFEXITED(end) && WEXITSTATUS(end) == 0, "%x", end);
    cr_expect(strstr(text, "gateway: of 1 request 1 finished here, 0 cut off\n"), "%s", text);
    wait_end(gateway, 0);
}

/* Where there is no other node to go on, and no time. */
Test(deployment, weft_drain_says_what_was_cut_off)
{
    int fd[STREAMS];
    ts_cluster_start(nodes, D1, "", "limits = { drain = \"0us\"; };\nspeculation = { mode = \"off\"; };\n");
    for (int i = 0; i < STREAMS; i++)
        fd[i] = begin_stream(&ts_cluster.node[GATEWAY]);
    struct fate f = drained(&ts_cluster.node[D0], 3, "(other nodes go on with them");
    cr_expect(f.cut > 0 && f.had == f.finished + f.cut, "%d %d %d %d", f.had, f.finished, f.moved, f.cut);
    f = drained(&ts_cluster.node[GATEWAY], 3, "(their clients got an error)");
    cr_expect(f.cut > 0 && f.had >= f.cut, "%d %d %d %d", f.had, f.finished, f.moved, f.cut);
    for (int i = 0; i < STREAMS; i++)
        close(fd[i]);
}

/* weft drain of a node that is killed meanwhile. */
Test(deployment, weft_drain_does_not_call_a_killed_node_drained)
{
    char said[4300];
    start_patient("limits = { drain = \"5min\"; stuck = \"5min\"; };\n");
    struct ts_node *gateway = &ts_cluster.node[GATEWAY];
    int fd = begin_stream(gateway), end;
    for (int i = D0; i <= D1; i++)
        kill(ts_cluster.node[i].pid, SIGSTOP);
    snprintf(said, sizeof said, "%s/said", ts_cluster.dir);
    pid_t drain = fork();
    if (drain == 0) {
        int out = open(said, O_WRONLY | O_CREAT, 0600);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out, 1);
        dup2(out, 2);
        execl(ts_weft(), ts_weft(), "drain", conf(), "gateway", NULL);
        _exit(127);
    }
    ts_node_wait_log(gateway, "draining");
    ts_node_kill(gateway);
    cr_assert_eq(waitpid(drain, &end, 0), drain);
    char *text = ts_read_file(said, NULL);
    cr_expect(WIFEXITED(end) && WEXITSTATUS(end) == 1, "%x %s", end, text);
    cr_expect(text && strstr(text, "did not say what became of its requests"), "%s", text ? text : "");
    free(text);
    close(fd);
}

/* weft check beside a deployment that runs: peers that fit, one with another secret, one with another model's blocks.
 */
Test(deployment, check_asks_the_other_nodes)
{
    ts_cluster_start(nodes, NODES, "", "");
    struct ts_result r = ts_run(ts_weft(), "check", "--node", "d1", conf());
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "ok       peer      gateway at") && strstr(r.out, ": connected in "), "%s", r.out);
    cr_expect(strstr(r.out, "node \"d1\" runs here already"), "%s", r.out);
    ts_result_free(&r);
    char *text = ts_read_file(conf(), NULL), *kv = strstr(text, "kv = { memory"), *changed = NULL;
    cr_assert(kv && asprintf(&changed, "%.*skv = { block_tokens = 32; memory%s", (int)(kv - text), text,
                             kv + strlen("kv = { memory")) > 0);
    free(ts_write_file(ts_cluster.dir, "other.conf", changed));
    char other[4300];
    snprintf(other, sizeof other, "%s/other.conf", ts_cluster.dir);
    r = ts_run(ts_weft(), "check", "--node", "d1", other);
    cr_expect_eq(r.status, 1, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "problem  peer      p0 at") && strstr(r.out, "here it is 32"), "%s", r.out);
    ts_result_free(&r);
    free(ts_write_file(ts_cluster.dir, "secret", "another secret of enough bytes"));
    r = ts_run(ts_weft(), "check", "--node", "d1", conf());
    cr_expect_eq(r.status, 1, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "problem  peer      p0 at") && strstr(r.out, "the secrets differ"), "%s", r.out);
    ts_result_free(&r);
    free(changed);
    free(text);
}

/* ---- the list of nodes changes ---- */

static void hang_up(const struct ts_node *n)
{
    kill(n->pid, SIGHUP);
}

/* Until the node has so many peers in its list, all connected. */
static void wait_peers(int i, size_t want)
{
    for (int t = 0; t < 300; t++) {
        int rc;
        size_t k, up = 0;
        json_t *j = status(&rc), *peers = json_object_get(node_of(j, i), "peers"), *p;
        json_array_foreach (peers, k, p)
            up += json_is_true(json_object_get(p, "up"));
        bool so = json_array_size(peers) == want && up == want;
        json_decref(j);
        if (so)
            return;
        usleep(100000);
    }
    ts_cluster_show_logs();
    cr_assert_fail("node %s does not come to %zu connected peers", nodes[i].name, want);
}

/* SIGHUP reads the list again: a node that was added at its end is connected and used, one that was taken out is let
 * go, also when it does not end. */
Test(deployment, sighup_connects_added_nodes_and_lets_removed_ones_go)
{
    ts_cluster_write(nodes, NODES, "", "limits = { drain = \"0us\"; };\n");
    char *whole = ts_read_file(conf(), NULL), *last = strstr(whole, ",\n{ name = \"d1\""), *less = NULL;
    cr_assert(last && asprintf(&less, "%.*s\n);\n", (int)(last - whole), whole) > 0);
    free(ts_write_file(ts_cluster.dir, "weft.conf", less));
    for (int i = D0; i >= GATEWAY; i--)
        ts_node_start(&ts_cluster.node[i]);
    ts_node_wait_ready(&ts_cluster.node[GATEWAY], 200);
    wait_peers(GATEWAY, NODES - 2);
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    free(ts_cluster_complete(s, ts_cluster_prompts[0]));
    free(ts_write_file(ts_cluster.dir, "weft.conf", whole));
    ts_node_start(&ts_cluster.node[D1]); /* nobody knows it yet */
    for (int i = GATEWAY; i <= D0; i++)
        hang_up(&ts_cluster.node[i]);
    for (int i = GATEWAY; i <= D1; i++)
        wait_peers(i, NODES - 1);
    ts_node_kill(&ts_cluster.node[D0]); /* now only the added one can decode */
    ts_node_wait_log(&ts_cluster.node[GATEWAY], "is lost: ");
    free(ts_cluster_complete(s, ts_cluster_prompts[1]));
    ts_node_start(&ts_cluster.node[D0]);
    wait_peers(GATEWAY, NODES - 1);
    free(ts_write_file(ts_cluster.dir, "weft.conf", less));
    for (int i = GATEWAY; i <= D0; i++)
        hang_up(&ts_cluster.node[i]);
    for (int i = GATEWAY; i <= D0; i++)
        wait_peers(i, NODES - 2);
    ts_node_wait_log(&ts_cluster.node[D1], "node gateway (127.0.0.1:");
    free(ts_cluster_complete(s, ts_cluster_prompts[2]));
    free(less);
    free(whole);
}

/* A file that is wrong, or in which a node that stays has another place, changes nothing and is reported. */
Test(deployment, sighup_with_a_wrong_list_changes_nothing)
{
    ts_cluster_start(nodes, NODES, "", "");
    char *whole = ts_read_file(conf(), NULL);
    wait_peers(GATEWAY, NODES - 1);
    free(ts_write_file(ts_cluster.dir, "weft.conf", "nodes = ("));
    hang_up(&ts_cluster.node[GATEWAY]);
    ts_node_wait_log(&ts_cluster.node[GATEWAY], "the node list was not read again");
    /* One from the middle: the nodes in front of it keep their own places. */
    char *less = strdup(whole), *entry = strstr(less, "{ name = \"d0\""), *next = strstr(less, "{ name = \"d1\"");
    cr_assert(entry && next);
    memmove(entry, next, strlen(next) + 1);
    free(ts_write_file(ts_cluster.dir, "weft.conf", less));
    for (int i = GATEWAY; i <= D1; i++)
        hang_up(&ts_cluster.node[i]);
    for (int i = GATEWAY; i <= D1; i++)
        ts_node_wait_log(&ts_cluster.node[i], i == D0 ? "itself is not in it" : "has another place in it");
    free(less);
    free(ts_write_file(ts_cluster.dir, "weft.conf", whole));
    free(ts_cluster_complete(&ts_cluster.node[GATEWAY].http, ts_cluster_prompts[0]));
    wait_peers(GATEWAY, NODES - 1);
    free(whole);
}
