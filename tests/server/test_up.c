/* weft up and weft down: a deployment under its supervisor, through the deaths of nodes and of the supervisor itself.
 */
#include <dirent.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/cluster.h"
#include "tests/support/process.h"

enum { GATEWAY, P0, D0, NODES };

static const struct ts_node nodes[NODES] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
};

static const char *in_dir(const char *name)
{
    static char path[8][4300];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", ts_cluster.dir, name);
    return path[next];
}

static void fini(void)
{
    if (ts_cluster.dir) {
        struct ts_result r = ts_run(ts_weft(), "down", "--now", in_dir("weft.conf"));
        ts_result_free(&r);
        if (access(in_dir("else"), F_OK) == 0) {
            r = ts_run(ts_weft(), "down", "--now", "--run", in_dir("else"), in_dir("weft.conf"));
            ts_result_free(&r);
        }
    }
    ts_cluster_end();
}

TestSuite(up, .fini = fini, .timeout = 300);

static struct ts_result weft(const char *command, const char *option)
{
    return option ? ts_run(ts_weft(), command, option, in_dir("weft.conf"))
                  : ts_run(ts_weft(), command, in_dir("weft.conf"));
}

/* Runs a command that has this exit status and says this; the rest of what it says is returned. */
static void expect(const char *command, const char *option, int status, const char *want)
{
    struct ts_result r = weft(command, option);
    cr_assert_eq(r.status, status, "weft %s: %d\n%s%s", command, r.status, r.out, r.err);
    cr_assert(strstr(r.out, want) || strstr(r.err, want), "weft %s should say: %s\nsaid:\n%s%s", command, want, r.out,
              r.err);
    ts_result_free(&r);
}

static long number_of(int node, const char *what)
{
    struct ts_result r = weft("status", "--json");
    json_t *j = json_loads(r.out, 0, NULL);
    cr_assert_not_null(j, "%s%s", r.out, r.err);
    long n = (long)json_integer_value(json_object_get(json_array_get(json_object_get(j, "nodes"), (size_t)node), what));
    json_decref(j);
    ts_result_free(&r);
    return n;
}

static void wait_well(void)
{
    for (int i = 0; i < 300; i++) {
        struct ts_result r = weft("status", NULL);
        int status = r.status;
        ts_result_free(&r);
        if (!status)
            return;
        usleep(100000);
    }
    cr_assert_fail("the deployment does not become well");
}

/* Waits until the file has the text. */
static void wait_text(const char *name, const char *want)
{
    char *text = NULL;
    for (int i = 0; i < 300; i++) {
        free(text);
        text = ts_read_file(in_dir(name), NULL);
        if (text && strstr(text, want)) {
            free(text);
            return;
        }
        usleep(100000);
    }
    cr_assert_fail("%s never says \"%s\":\n%s", name, want, text ? text : "");
}

static pid_t supervisor(void)
{
    char *text = ts_read_file(in_dir("state/up/_supervisor.pid"), NULL);
    pid_t pid = text ? atoi(text) : 0;
    free(text);
    cr_assert_gt(pid, 0);
    return pid;
}

/* Children of this process whose ends it has not taken. */
static int zombies_of(pid_t parent)
{
    int n = 0;
    DIR *d = opendir("/proc");
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[300];
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        char *text = atoi(e->d_name) > 0 ? ts_read_file(path, NULL) : NULL, *at = text ? strrchr(text, ')') : NULL;
        n += at && at[2] == 'Z' && atoi(at + 4) == parent;
        free(text);
    }
    closedir(d);
    return n;
}

/* An orphan may wait for its new parent to take its end. */
static bool has_ended(long pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    char *text = ts_read_file(path, NULL), *at = text ? strrchr(text, ')') : NULL;
    bool ended = !at || at[2] == 'Z';
    free(text);
    return ended;
}

static void expect_all_gone(const long pid[NODES])
{
    for (int i = 0; i < NODES; i++) {
        char name[128];
        snprintf(name, sizeof name, "state/up/%s.pid", nodes[i].name);
        cr_expect_neq(access(in_dir(name), F_OK), 0, "%s is left", name);
        cr_expect(has_ended(pid[i]), "node %s lives", nodes[i].name);
    }
}

Test(up, a_deployment_comes_up_is_watched_and_goes_down)
{
    ts_cluster_write(nodes, NODES, "", "");
    expect("up", "--detach", 0, "3 nodes are up");
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    free(ts_cluster_complete(s, ts_cluster_prompts[0])); /* at once: up has waited until the nodes found each other */
    expect("up", "--detach", 0, "is up already (supervisor: pid");
    long epoch = number_of(D0, "epoch"), pid = number_of(D0, "pid");
    kill((pid_t)pid, SIGKILL);
    wait_text("state/up/_supervisor.log", "node d0 is up");
    wait_well();
    cr_expect_gt(number_of(D0, "epoch"), epoch);
    free(ts_cluster_complete(s, ts_cluster_prompts[1]));
    cr_expect_eq(zombies_of(supervisor()), 0, "the supervisor has not taken the end of a node");
    long all[NODES];
    for (int i = 0; i < NODES; i++)
        all[i] = number_of(i, "pid");
    expect("down", NULL, 0, "3 nodes have ended");
    expect_all_gone(all);
    expect("down", NULL, 0, "nothing of");
    expect("up", "-d", 0, "3 nodes are up");
    expect("down", "--now", 0, "3 nodes have ended");
}

/* What is said to do next works as it is said. */
Test(up, hints_name_the_folder_that_was_given)
{
    char *want = NULL;
    ts_cluster_write(nodes, NODES, "", "");
    struct ts_result r = ts_run(ts_weft(), "up", "-d", "--run", in_dir("else"), in_dir("weft.conf"));
    cr_expect(asprintf(&want, "weft down --run %s %s ends them", in_dir("else"), in_dir("weft.conf")) > 0);
    cr_expect(r.status == 0 && strstr(r.out, want), "should say %s:\n%s%s", want, r.out, r.err);
    free(want);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "drain", in_dir("weft.conf"), "p0");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    cr_expect(asprintf(&want, "weft up --node p0 --run %s %s starts it again", in_dir("else"), in_dir("weft.conf")) >
              0);
    wait_text("else/_supervisor.log", want);
    free(want);
    r = ts_run(ts_weft(), "down", "--run", in_dir("else"), in_dir("weft.conf"));
    cr_expect(r.status == 0 && strstr(r.out, "nodes have ended"), "%s%s", r.out, r.err);
    ts_result_free(&r);
}

/* Which one, why, and that the others do not stay. */
Test(up, a_node_that_cannot_start_is_named_with_the_end_of_its_log)
{
    ts_cluster_write(nodes, NODES, "", "");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)ts_cluster.node[P0].port)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0);
    struct ts_result r = weft("up", NULL);
    cr_expect_eq(r.status, 1);
    cr_expect(strstr(r.out, "node p0 has ended instead of accepting (exit status 1)") &&
                  strstr(r.out, "Address already in use"),
              "%s%s", r.out, r.err);
    ts_result_free(&r);
    expect("down", NULL, 0, "nothing of");
    close(fd);
    expect("up", "-d", 0, "3 nodes are up");
    expect("down", NULL, 0, "3 nodes have ended");
}

Test(up, a_configuration_that_does_not_fit_the_model_is_a_usage_error)
{
    ts_cluster_write(nodes, NODES, "decode_streams = 4;", "speculation = { draft_length = 10; };");
    struct ts_result r = weft("up", "-d");
    cr_expect_eq(r.status, 2, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "(exit status 2)") && strstr(r.out, "draft_length"), "%s%s", r.out, r.err);
    ts_result_free(&r);
    expect("down", NULL, 0, "nothing of");
}

/* A pid is no identity: this test's own pid in a file that is not about it survives weft down. */
Test(up, stale_pid_files_harm_nobody)
{
    ts_cluster_write(nodes, NODES, "", "");
    char text[128], path[4400];
    expect("up", "-d", 0, "3 nodes are up");
    expect("down", NULL, 0, "3 nodes have ended");
    snprintf(text, sizeof text, "%d 1 00000000-0000-0000-0000-000000000000\n", (int)getpid());
    snprintf(path, sizeof path, "%s/state/up", ts_cluster.dir);
    free(ts_write_file(path, "d0.pid", text));
    free(ts_write_file(path, "p0.pid", "what is this\n"));
    free(ts_write_file(path, "_supervisor.pid", text));
    expect("down", NULL, 0, "3 stale pid files removed");
    free(ts_write_file(path, "d0.pid", text));
    expect("up", "-d", 0, "3 nodes are up");
    expect("down", NULL, 0, "3 nodes have ended");
}

Test(up, nodes_outlive_a_killed_supervisor_and_down_finds_them)
{
    ts_cluster_write(nodes, NODES, "", "");
    expect("up", "-d", 0, "3 nodes are up");
    long all[NODES];
    for (int i = 0; i < NODES; i++)
        all[i] = number_of(i, "pid");
    kill(supervisor(), SIGKILL);
    free(ts_cluster_complete(&ts_cluster.node[GATEWAY].http, ts_cluster_prompts[0]));
    for (int i = 0; i < 300; i++) { /* until its lock is free */
        struct ts_result r = weft("up", "-d");
        bool seen = strstr(r.err, "runs already");
        cr_expect_eq(r.status, 1);
        ts_result_free(&r);
        if (seen)
            break;
        cr_assert_lt(i, 299, "weft up does not see the nodes that are left");
    }
    expect("down", NULL, 0, "their supervisor is gone");
    expect_all_gone(all);
}

Test(up, a_drained_node_stays_away)
{
    ts_cluster_write(nodes, NODES, "", "");
    expect("up", "-d", 0, "3 nodes are up");
    struct ts_result r = ts_run(ts_weft(), "drain", in_dir("weft.conf"), "p0");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    wait_text("state/up/_supervisor.log", "node p0 has ended as it was asked to, and stays away");
    expect("status", NULL, 1, "gateway: takes no requests, as no prefill node is connected");
    cr_expect_eq(zombies_of(supervisor()), 0, "the supervisor has not taken the end of a node");
    expect("up", NULL, 0, "node p0 is up, too"); /* without the others noticing */
    expect("status", NULL, 0, "3 of 3 nodes well");
    free(ts_cluster_complete(&ts_cluster.node[GATEWAY].http, ts_cluster_prompts[0]));
    expect("up", NULL, 1, "is up already");
    expect("down", NULL, 0, "3 nodes have ended");
}

/* Nodes that start at this moment read the old file or the new one. */
static void write_conf(const char *text)
{
    char fresh[4300];
    snprintf(fresh, sizeof fresh, "%s", in_dir("weft.conf.new"));
    free(ts_write_file(ts_cluster.dir, "weft.conf.new", text));
    cr_assert_eq(rename(fresh, in_dir("weft.conf")), 0);
}

/* Writes weft.conf again, with `from` replaced. */
static void edit(const char *from, const char *to)
{
    char *text = ts_read_file(in_dir("weft.conf"), NULL), *at = strstr(text, from), *out = NULL;
    cr_assert(at && asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    write_conf(out);
    free(out);
    free(text);
}

/* A command that goes on while the test does other things; what it says goes to the file of that name. */
static pid_t begin_weft(const char *command, const char *option, const char *said)
{
    char conf[4300], out[4300];
    snprintf(conf, sizeof conf, "%s", in_dir("weft.conf"));
    snprintf(out, sizeof out, "%s", in_dir(said));
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fd, 1);
        dup2(fd, 2);
        if (option)
            execl(ts_weft(), ts_weft(), command, option, conf, NULL);
        else
            execl(ts_weft(), ts_weft(), command, conf, NULL);
        _exit(127);
    }
    cr_assert_gt(pid, 0);
    return pid;
}

static int end_of(pid_t pid)
{
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const char long_stream[] = "{\"prompt\":\"Once\",\"max_tokens\":900,\"ignore_eos\":true,\"stream\":true,"
                                  "\"stream_options\":{\"include_usage\":true}}";

static int begin_stream(int node)
{
    int fd = ts_connect(ts_cluster.node[node].http.port);
    cr_assert(ts_send_request(fd, "POST", "/v1/completions", long_stream));
    cr_assert(ts_read_until(fd, "data: "));
    return fd;
}

static void expect_whole(int fd, const char *whose)
{
    cr_expect(ts_read_until(fd, "\"completion_tokens\":900"), "the stream of %s was cut off", whose);
    close(fd);
}

static void expect_not_in(const char *name, const char *text)
{
    char *all = ts_read_file(in_dir(name), NULL);
    cr_expect(all && !strstr(all, text), "%s says: %s", name, text);
    free(all);
}

/* The streams stand still with the only node that decodes, until the test lets them go on; nobody gives it up. */
static pid_t hold_streams(void)
{
    pid_t d0 = (pid_t)number_of(D0, "pid");
    cr_assert_gt(d0, 0);
    kill(d0, SIGSTOP);
    return d0;
}

/* What still runs at limits.drain is cut off, and goes on elsewhere where there is an elsewhere; the node leaves. */
Test(up, a_node_whose_drain_passes_its_limit_stays_away_too)
{
    ts_cluster_write(nodes, NODES, "", "limits = { drain = \"50ms\"; stuck = \"5min\"; };\n");
    edit("state = ", "silence = \"5min\"; state = ");
    expect("up", "-d", 0, "3 nodes are up");
    int fd = begin_stream(GATEWAY);
    pid_t d0 = hold_streams();
    struct ts_result r = ts_run(ts_weft(), "drain", in_dir("weft.conf"), "gateway");
    cr_expect_eq(r.status, 3, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "gateway: of 1 request 0 finished here, 1 cut off (their clients got an error)\n"), "%s",
              r.out);
    ts_result_free(&r);
    wait_text("state/up/_supervisor.log",
              "node gateway has ended as it was asked to, what still ran there was cut off, and stays away");
    wait_text("state/up/gateway.log", "requests were cut off: limits.drain passed");
    kill(d0, SIGCONT);
    close(fd);
    expect("up", NULL, 0, "node gateway is up, too");
    free(ts_cluster_complete(&ts_cluster.node[GATEWAY].http, ts_cluster_prompts[0]));
    expect("down", "--now", 0, "3 nodes have ended");
}

/* What the tiers of a node say of this, added up. */
static long tiers_of(int node, const char *tier, const char *key)
{
    struct ts_result r = weft("status", "--json");
    json_t *j = json_loads(r.out, 0, NULL), *t;
    size_t k;
    long n = 0;
    json_array_foreach (json_object_get(json_array_get(json_object_get(j, "nodes"), (size_t)node), "tiers"), k, t)
        if (!strcmp(json_string_value(json_object_get(t, "tier")), tier))
            n += (long)json_integer_value(json_object_get(t, key));
    json_decref(j);
    ts_result_free(&r);
    return n;
}

static void until_tier(int node, const char *tier, const char *key)
{
    for (int i = 0; i < 300 && tiers_of(node, tier, key) < 1; i++)
        usleep(100000);
    cr_assert_gt(tiers_of(node, tier, key), 0, "node %d: %s of its tier %s stays 0", node, key, tier);
}

/* A kv node and a prefill node come and go with SIGHUP alone; the others are not started again. The new kv
 * node has its share of what is computed from then on. */
Test(up, nodes_that_are_added_to_the_file_are_started_and_used_at_sighup)
{
    static const struct ts_node with[NODES + 3] = {
        [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
        [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
        [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
        [NODES] = {.name = "kv-0", .roles = "\"kv\""},
        [NODES + 1] = {.name = "kv-1", .roles = "\"kv\""},
        [NODES + 2] = {.name = "p1", .roles = "\"prefill\", \"expert\"", .group = "p1"},
    };
    ts_cluster_write(
        with, NODES + 3, "",
        "kv = { memory = \"4MiB\"; snapshots = \"0B\"; block_tokens = 32; nodes = { memory = \"8MiB\"; }; };\n"
        "replay = { exact = true; };\n");
    char *all = ts_read_file(in_dir("weft.conf"), NULL), *kv1 = strstr(all, ",\n{ name = \"kv-1\"");
    cr_assert_not_null(kv1);
    edit(kv1, "\n);\n");
    expect("up", "-d", 0, "4 nodes are up");
    long epoch[NODES + 1];
    for (int i = 0; i <= NODES; i++)
        epoch[i] = number_of(i, "epoch");
    write_conf(all);
    kill(supervisor(), SIGHUP);
    wait_text("state/up/_supervisor.log", "node p1 is new in ");
    wait_text("state/up/p0.log", "kv_node_added node=kv-1 nodes=2");
    wait_text("state/up/p1.log", "node_up node=d0");
    wait_text("state/up/p1.log", "node_up node=kv-1");
    wait_well();
    for (int i = 0; i <= NODES; i++)
        cr_expect_eq(number_of(i, "epoch"), epoch[i], "node %s was started again", with[i].name);
    char prompt[1600] = "";
    while (strlen(prompt) < 1300)
        strcat(prompt, "In the beginning God created the heaven and the earth. ");
    const struct ts_server *s = &ts_cluster.node[GATEWAY].http;
    free(ts_cluster_complete(s, prompt));
    until_tier(NODES + 1, "host", "stored");
    expect("status", NULL, 0, "keeps host ");
    /* Taken off again: they drain and end, and the others go on. */
    edit(kv1, "\n);\n");
    kill(supervisor(), SIGHUP);
    wait_text("state/up/_supervisor.log", "node kv-1 has left (exit status 0)");
    wait_text("state/up/_supervisor.log", "node p1 has left (exit status 0)");
    wait_well();
    expect("status", NULL, 0, "4 of 4 nodes well");
    /* A file that is wrong changes nothing. */
    edit("\"kv\"", "\"kw\"");
    kill(supervisor(), SIGHUP);
    wait_text("state/up/_supervisor.log", "the nodes stay as they are");
    wait_text("state/up/d0.log", "the node list was not read again: ");
    edit("\"kw\"", "\"kv\"");
    free(ts_cluster_complete(s, ts_cluster_prompts[1]));
    free(all);
    expect("down", NULL, 0, "4 nodes have ended");
}

static const struct ts_node two_fronts[NODES + 1] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    [NODES] = {.name = "front", .roles = "\"gateway\""},
};

/* One gateway drains because weft drain has asked, the other because the file has it no more: the end of the whole
 * deployment is no second signal for them. */
Test(up, weft_down_does_not_cut_off_what_drains_already)
{
    ts_cluster_write(two_fronts, NODES + 1, "", "limits = { drain = \"5min\"; stuck = \"5min\"; };\n");
    edit("state = ", "silence = \"5min\"; state = ");
    expect("up", "-d", 0, "4 nodes are up");
    int first = begin_stream(GATEWAY), second = begin_stream(NODES);
    pid_t d0 = hold_streams();
    struct ts_result r = ts_run(ts_weft(), "drain", "--wait", "0", in_dir("weft.conf"), "gateway");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    wait_text("state/up/gateway.log", "draining");
    char *text = ts_read_file(in_dir("weft.conf"), NULL), *last = text ? strstr(text, ",\n{ name = \"front\"") : NULL;
    cr_assert_not_null(last);
    edit(last, "\n);\n");
    free(text);
    kill(supervisor(), SIGHUP);
    wait_text("state/up/front.log", "draining");
    pid_t down = begin_weft("down", NULL, "down.out");
    wait_text("state/up/gateway.log", "drains_already"); /* it was told */
    kill(d0, SIGCONT);
    expect_whole(first, "the gateway that weft drain has asked");
    expect_whole(second, "the gateway that was taken off the list");
    cr_expect_eq(end_of(down), 0);
    wait_text("down.out", "3 nodes have ended");
    expect_not_in("state/up/front.log", "cut off");
    expect_not_in("state/up/_supervisor.log", "cut off");
}

/* Who was told survives the one who told. */
Test(up, nor_does_it_when_the_supervisor_was_killed_while_it_ended_them)
{
    ts_cluster_write(nodes, NODES, "", "limits = { drain = \"5min\"; stuck = \"5min\"; };\n");
    edit("state = ", "silence = \"5min\"; state = ");
    expect("up", "-d", 0, "3 nodes are up");
    int fd = begin_stream(GATEWAY);
    pid_t s = supervisor(), d0 = hold_streams();
    kill(s, SIGTERM);
    wait_text("state/up/gateway.log", "draining");
    wait_text("state/up/gateway.pid", " draining");
    kill(s, SIGKILL);
    pid_t down = begin_weft("down", NULL, "down.out");
    wait_text("down.out", "their supervisor is gone");
    kill(d0, SIGCONT);
    expect_whole(fd, "the gateway");
    cr_expect_eq(end_of(down), 0);
    expect_not_in("state/up/gateway.log", "cut off");
}

/* With --now nobody wonders; else the exit status tells. */
Test(up, weft_down_says_what_was_cut_off)
{
    for (int at_once = 0; at_once < 2; at_once++) {
        ts_cluster_write(nodes, NODES, "", "limits = { drain = \"50ms\"; stuck = \"5min\"; };\n");
        edit("state = ", "silence = \"5min\"; state = ");
        expect("up", "-d", 0, "3 nodes are up");
        int fd = begin_stream(GATEWAY);
        pid_t d0 = hold_streams(), down = begin_weft("down", at_once ? "--now" : NULL, "down.out");
        wait_text("state/up/gateway.log", "requests were cut off: ");
        kill(d0, SIGCONT);
        cr_expect_eq(end_of(down), at_once ? 0 : 3);
        wait_text("down.out", "node gateway has ended; what still ran there was cut off\n");
        close(fd);
        ts_cluster_end();
    }
}

/* A node stands still, so the start is not over when SIGHUP comes; the file is read again when it is. A start that was
 * over before the node could be stopped is tried again. */
Test(up, sighup_while_the_nodes_start_is_not_lost)
{
    ts_cluster_write(two_fronts, NODES + 1, "", "");
    char *all = ts_read_file(in_dir("weft.conf"), NULL), *last = strstr(all, ",\n{ name = \"front\"");
    cr_assert_not_null(last);
    bool caught = false;
    for (int k = 0; k < 10 && !caught; k++) {
        char *text = NULL;
        edit(last, "\n);\n");
        unlink(in_dir("state/up/_supervisor.log"));
        pid_t up = begin_weft("up", "-d", "up.out"), d0 = 0;
        for (int i = 0; i < 30000 && !d0; i++, usleep(1000)) {
            free(text);
            text = ts_read_file(in_dir("state/up/d0.pid"), NULL);
            d0 = text ? atoi(text) : 0;
        }
        free(text);
        cr_assert_gt(d0, 0, "node d0 is not started");
        kill(d0, SIGSTOP);
        text = ts_read_file(in_dir("up.out"), NULL);
        caught = text && !strstr(text, "nodes are up");
        free(text);
        write_conf(all);
        if (caught) {
            kill(supervisor(), SIGHUP);
            wait_text("up.out", "is read again when the nodes are up");
        }
        kill(d0, SIGCONT);
        cr_assert_eq(end_of(up), 0);
        if (caught)
            wait_text("state/up/_supervisor.log", "node front is new in ");
        else
            expect("down", NULL, 0, "nodes have ended");
    }
    free(all);
    cr_assert(caught, "every start was over at once");
    wait_text("state/up/front.log", "accepting");
    wait_well();
    expect("down", NULL, 0, "4 nodes have ended");
}

static const struct ts_node kv_later[NODES + 1] = {
    [GATEWAY] = {.name = "gateway", .roles = "\"gateway\""},
    [P0] = {.name = "p0", .roles = "\"prefill\", \"expert\"", .group = "p0"},
    [D0] = {.name = "d0", .roles = "\"decode\", \"expert\"", .group = "d0"},
    [NODES] = {.name = "kv-0", .roles = "\"kv\""},
};

/* Brings the deployment up without its last node, then writes the whole file, with `from` replaced, and hangs up. */
static void up_and_add_last(const char *from, const char *to)
{
    char *all = ts_read_file(in_dir("weft.conf"), NULL), *last = strstr(all, ",\n{ name = \"kv-0\"");
    cr_assert_not_null(last);
    edit(last, "\n);\n");
    expect("up", "-d", 0, "3 nodes are up");
    write_conf(all);
    if (from)
        edit(from, to);
    free(all);
    kill(supervisor(), SIGHUP);
    wait_text("state/up/_supervisor.log", "node kv-0 is new in ");
    wait_text("state/up/kv-0.log", "node_up node=p0");
    wait_well();
}

/* Where the file speaks of kv nodes, those that compute are ready for the first one. */
Test(up, the_first_kv_node_may_come_with_sighup)
{
    ts_cluster_write(
        kv_later, NODES + 1, "",
        "kv = { memory = \"4MiB\"; snapshots = \"0B\"; block_tokens = 32; nodes = { memory = \"8MiB\"; }; };\n");
    up_and_add_last(NULL, NULL);
    wait_text("state/up/p0.log", "kv_node_added node=kv-0 nodes=1");
    char prompt[1600] = "";
    while (strlen(prompt) < 1300)
        strcat(prompt, "In the beginning God created the heaven and the earth. ");
    free(ts_cluster_complete(&ts_cluster.node[GATEWAY].http, prompt));
    until_tier(NODES, "host", "stored");
    expect_not_in("state/up/p0.log", "not taken up");
    expect("down", NULL, 0, "4 nodes have ended");
}

/* Whatever waits for the next start of a node stands in three places: supervisor, node, weft status. */
Test(up, what_sighup_does_not_change_is_said)
{
    ts_cluster_write(kv_later, NODES + 1, "", "");
    up_and_add_last("threads = 1", "threads = 2");
    wait_text("state/up/_supervisor.log",
              "it has compute.threads = 2 (1 until then), which takes effect when nodes are started");
    wait_text("state/up/d0.log", "not taken up before the next start: compute.threads = 2 (1 until then)");
    wait_text("state/up/p0.log", "not taken up before the next start: kv nodes: ");
    expect("status", NULL, 0, "d0: does not know before its next start: compute.threads = 2 (1 until then)");
    expect("status", NULL, 0, "p0: does not know before its next start: kv nodes: this node was started without any");
    struct ts_result r = ts_run(ts_weft(), "drain", in_dir("weft.conf"), "d0");
    cr_expect_eq(r.status, 0, "%s%s", r.out, r.err);
    ts_result_free(&r);
    wait_text("state/up/_supervisor.log", "node d0 has ended as it was asked to, and stays away");
    expect("up", NULL, 0, "node d0 is up, too");
    r = weft("status", NULL);
    cr_expect(r.status == 0 && !strstr(r.out, "d0: does not know"), "%s%s", r.out, r.err);
    ts_result_free(&r);
    /* Another one in front, by which all would have other numbers. */
    edit("nodes = (\n", "nodes = (\n{ name = \"x\"; roles = [\"kv\"]; host = \"127.0.0.2\"; port = 9; },\n");
    kill(supervisor(), SIGHUP);
    wait_text("state/up/_supervisor.log", "the nodes stay as they are, as node gateway has another place in ");
    wait_text("state/up/p0.log", "has another place in it");
    edit("{ name = \"x\"; roles = [\"kv\"]; host = \"127.0.0.2\"; port = 9; },\n", "");
    /* An entry of its own, and a group whose shards are numbered by its nodes. */
    edit("roles = [\"kv\"]; ", "roles = [\"kv\", \"expert\"]; experts = \"d0\"; ");
    kill(supervisor(), SIGHUP);
    wait_text("state/up/_supervisor.log", "the entry of node kv-0 has changed");
    wait_text("state/up/kv-0.log", "not taken up before the next start: nodes[].roles = ");
    wait_text("state/up/d0.log",
              "the expert group \"d0\" is d0 kv-0 (d0 until then): all its nodes have to be started again");
    expect("down", NULL, 0, "4 nodes have ended");
}

/* Something keeps the node from starting: the pauses double, and it is back when that has gone. */
Test(up, a_node_that_fails_again_begins_again_ever_later)
{
    ts_cluster_write(nodes, NODES, "", "");
    expect("up", "-d", 0, "3 nodes are up");
    pid_t s = supervisor();
    kill(s, SIGSTOP);
    kill((pid_t)number_of(D0, "pid"), SIGKILL);
    int fd = open(in_dir("state/d0.lock"), O_RDWR | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    kill(s, SIGCONT);
    wait_text("state/up/_supervisor.log", "restart 1 in 0.5 s");
    wait_text("state/up/_supervisor.log", "restart 2 in 1.0 s");
    wait_text("state/up/_supervisor.log", "another process runs node \"d0\" here");
    close(fd);
    wait_text("state/up/_supervisor.log", "node d0 is up");
    wait_well();
    expect("down", NULL, 0, "3 nodes have ended");
}

/* Without --detach it stays, and a signal ends it with its nodes. */
Test(up, in_the_foreground_a_signal_drains_and_ends_it)
{
    int out[2], status;
    char c, said[4096];
    size_t n = 0;
    ts_cluster_write(nodes, NODES, "", "");
    char conf[4300];
    snprintf(conf, sizeof conf, "%s", in_dir("weft.conf"));
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(out[1], 1);
        execl(ts_weft(), ts_weft(), "up", conf, NULL);
        _exit(127);
    }
    close(out[1]);
    struct pollfd p = {out[0], POLLIN, 0};
    while (n < sizeof said - 1 && poll(&p, 1, 60000) > 0 && read(out[0], &c, 1) == 1) {
        said[n++] = c;
        said[n] = 0;
        if (strstr(said, "so does Ctrl-C"))
            break;
    }
    cr_expect(strstr(said, "so does Ctrl-C"), "%s", said);
    int fd = ts_connect(ts_cluster.node[GATEWAY].http.port);
    cr_assert(ts_send_request(fd, "POST", "/v1/completions",
                              "{\"prompt\":\"Once\",\"max_tokens\":200,\"ignore_eos\":true,\"stream\":true,"
                              "\"stream_options\":{\"include_usage\":true}}"));
    cr_assert(ts_read_until(fd, "data: "));
    kill(pid, SIGTERM);
    cr_expect(ts_read_until(fd, "\"completion_tokens\":200"), "the stream was cut off");
    close(fd);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", status);
    close(out[0]);
    expect("down", NULL, 0, "nothing of");
}

Test(up, the_secret_of_a_deployment_on_one_machine_is_made)
{
    ts_cluster_write(nodes, NODES, "", "");
    unlink(in_dir("secret"));
    expect("up", "-d", 0, "the secret of this deployment");
    expect("status", NULL, 0, "3 of 3 nodes well");
    expect("down", NULL, 0, "3 nodes have ended");
}

/* One that other machines might reach gets none: 0.0.0.0 stands for all addresses of this one. */
Test(up, no_secret_is_made_where_other_machines_may_reach_a_node)
{
    for (int i = 0; i < NODES; i++) { /* any of them, the last one too */
        struct ts_node reached[NODES];
        memcpy(reached, nodes, sizeof nodes);
        reached[i].host = "0.0.0.0";
        ts_cluster_write(reached, NODES, "", "");
        unlink(in_dir("secret"));
        struct ts_result r = weft("up", "-d");
        cr_expect_eq(r.status, 1, "%s%s", r.out, r.err);
        cr_expect_not_null(strstr(r.err, "`openssl rand -hex 32 > FILE; chmod 600 FILE` makes one"), "%s%s", r.out,
                           r.err);
        cr_expect_neq(access(in_dir("secret"), F_OK), 0, "it was made, and node %d can be reached", i);
        ts_result_free(&r);
    }
}

/* As they are shipped, but for their ports and folders. */
Test(up, the_sample_deployments_come_up_and_answer)
{
    static const char *const sample[][2] = {{"config/cluster-local.conf", "build/cluster-local"},
                                            {"config/cluster-ep.conf", "build/cluster-ep"}};
    for (int i = 0; i < 2; i++) {
        ts_cluster_write_sample(sample[i][0], sample[i][1]);
        expect("up", "-d", 0, "nodes are up");
        expect("status", NULL, 0, " nodes well");
        struct ts_reply r = ts_post(&ts_cluster.node[0].http, "/v1/completions",
                                    "{\"prompt\":\"Once upon a time\",\"max_tokens\":8,\"temperature\":0}");
        cr_expect_eq(r.status, 200, "%s: %s", sample[i][0], r.body ? r.body : "");
        ts_reply_free(&r);
        expect("down", NULL, 0, "nodes have ended");
        ts_cluster_end();
    }
}
