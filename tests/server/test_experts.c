/* Expert shards as processes of their own over tcp: the tokens of one process, through their death, silence and return;
 * and a deployment in which every node decodes and is a shard too. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/answer.h"
#include "tests/support/process.h"
#include "tests/support/server.h"

enum { NODES_MAX = 8, TOKENS = 60 };

struct node {
    const char *name, *roles, *group; /* group NULL: the unnamed one */
    struct ts_server http;            /* port 0: no gateway */
    int port;
    pid_t pid; /* 0: not running */
};

static struct {
    char *dir;
    struct node node[NODES_MAX];
    int n;
} cluster;

static int free_port(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static void end_cluster(void)
{
    for (int i = 0; i < cluster.n; i++)
        if (cluster.node[i].pid > 0) {
            kill(cluster.node[i].pid, SIGKILL);
            waitpid(cluster.node[i].pid, NULL, 0);
        }
    if (cluster.dir)
        ts_remove_dir(cluster.dir);
    free(cluster.dir);
    memset(&cluster, 0, sizeof cluster);
}

TestSuite(experts, .fini = end_cluster, .timeout = 300);

static void show_logs(void)
{
    for (int i = 0; i < cluster.n; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/%s.log", cluster.dir, cluster.node[i].name);
        char *log = ts_read_file(path, NULL);
        printf("== %s\n%s\n", cluster.node[i].name, log ? log : "");
        free(log);
    }
}

/* Starts a node and waits for its first line, which it prints when it accepts. */
static void start(struct node *n)
{
    int out[2];
    char conf[4200], log[4300], c;
    snprintf(conf, sizeof conf, "%s/weft.conf", cluster.dir);
    snprintf(log, sizeof log, "%s/%s.log", cluster.dir, n->name);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    n->pid = fork();
    if (n->pid == 0) {
        int err = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], 1);
        dup2(err, 2);
        execl(ts_weft(), ts_weft(), "serve", "--node", n->name, conf, NULL);
        _exit(127);
    }
    close(out[1]);
    struct pollfd p = {out[0], POLLIN, 0};
    bool up = poll(&p, 1, 60000) > 0 && read(out[0], &c, 1) == 1;
    close(out[0]);
    if (!up) {
        show_logs();
        cr_assert_fail("node %s did not start", n->name);
    }
}

static void kill_node(struct node *n)
{
    kill(n->pid, SIGKILL);
    waitpid(n->pid, NULL, 0);
    n->pid = 0;
}

static void start_cluster(const struct node *nodes, int n, const char *more)
{
    char *text = NULL, *list = NULL, secret[65];
    size_t size, listed;
    if (access("samples/tiny/config.json", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    cluster.dir = ts_temp_dir();
    cr_assert_not_null(cluster.dir);
    FILE *f = open_memstream(&list, &listed);
    for (cluster.n = 0; cluster.n < n; cluster.n++) {
        struct node *to = &cluster.node[cluster.n];
        *to = nodes[cluster.n];
        to->port = free_port();
        fprintf(f, "%s{ name = \"%s\"; roles = [%s]; port = %d; ", cluster.n ? ",\n" : "", to->name, to->roles,
                to->port);
        if (to->group)
            fprintf(f, "experts = \"%s\"; ", to->group);
        if (strstr(to->roles, "gateway"))
            fprintf(f, "listen = \"127.0.0.1:%d\"; ", to->http.port = free_port());
        fprintf(f, "}");
    }
    fclose(f);
    for (int i = 0; i < 64; i++)
        secret[i] = "0123456789abcdef"[(i * 7 + 3) % 16];
    secret[64] = 0;
    free(ts_write_file(cluster.dir, "secret", secret));
    char path[4200];
    snprintf(path, sizeof path, "%s/secret", cluster.dir);
    chmod(path, 0600);
    f = open_memstream(&text, &size);
    fprintf(f,
            "model = { path = \"samples/tiny\"; name = \"tiny\"; };\ncompute = { threads = 1; };\n"
            "kv = { memory = \"64MiB\"; snapshots = \"8MiB\"; };\nengine = { expert_shards = 1; };\n"
            "cluster = { secret_file = \"%s\"; state = \"%s/state\"; };\n%s\nnodes = (\n%s\n);\n",
            path, cluster.dir, more, list);
    fclose(f);
    free(ts_write_file(cluster.dir, "weft.conf", text));
    free(text);
    free(list);
    for (int i = n - 1; i >= 0; i--)
        start(&cluster.node[i]);
}

/* The text of a greedy completion, freed by the caller. */
static char *complete(const struct ts_server *s, const char *prompt)
{
    char *body = ts_body(TS_COMPLETIONS, prompt, TOKENS, false, "\"temperature\":0");
    struct ts_reply r = ts_post(s, ts_path(TS_COMPLETIONS), body);
    if (r.status != 200)
        show_logs();
    cr_assert_eq(r.status, 200, "%d %s", r.status, r.body ? r.body : "");
    struct ts_answer a = ts_answer_of(TS_COMPLETIONS, r.body, false);
    char *text = strdup(a.text);
    ts_answer_free(&a);
    ts_reply_free(&r);
    free(body);
    return text;
}

static const char *const prompts[] = {"Once upon a time", "In the beginning", "The quick brown fox jumps", "It was a"};

enum { PROMPTS = sizeof prompts / sizeof *prompts };

/* What one process says. */
static void ask_alone(char *want[PROMPTS])
{
    struct ts_server alone;
    ts_server_start(&alone, NULL, "compute = { threads = 1; };\n");
    for (int i = 0; i < PROMPTS; i++)
        want[i] = complete(&alone, prompts[i]);
    ts_server_free(&alone);
}

static void check(const struct ts_server *s, char *const want[PROMPTS], const char *when)
{
    for (int i = 0; i < PROMPTS; i++) {
        char *got = complete(s, prompts[i]);
        if (strcmp(got, want[i]))
            show_logs();
        cr_assert_str_eq(got, want[i], "%s: \"%s\"", when, prompts[i]);
        free(got);
    }
}

static void forget(char *want[PROMPTS])
{
    for (int i = 0; i < PROMPTS; i++)
        free(want[i]);
}

static bool log_says(const char *node, const char *what)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s.log", cluster.dir, node);
    bool found = false;
    for (int i = 0; i < 600 && !found; i++) { /* it is written in the background */
        char *log = ts_read_file(path, NULL);
        found = log && strstr(log, what);
        free(log);
        if (!found)
            usleep(100000);
    }
    return found;
}

static const struct node apart[] = {{.name = "main", .roles = "\"gateway\", \"prefill\", \"decode\""},
                                    {.name = "e0", .roles = "\"expert\""},
                                    {.name = "e1", .roles = "\"expert\""},
                                    {.name = "e2", .roles = "\"expert\""}};

Test(experts, shards_in_processes_give_the_tokens_of_one_process_through_every_fate)
{
    char *want[PROMPTS];
    ask_alone(want);
    start_cluster(apart, 4, "experts = { deadline = \"500ms\"; balance = \"1s\"; spare = 2; };");
    const struct ts_server *s = &cluster.node[0].http;
    check(s, want, "all there");
    kill_node(&cluster.node[2]);
    check(s, want, "one is dead");
    kill(cluster.node[3].pid, SIGSTOP);
    check(s, want, "one is dead, one stands still");
    cr_assert(log_says("main", "has not answered in time"), "the shard that stood still was not noticed");
    kill(cluster.node[3].pid, SIGCONT);
    start(&cluster.node[2]);
    check(s, want, "both are back");
    kill_node(&cluster.node[1]); /* the one with the balancer */
    kill_node(&cluster.node[2]);
    check(s, want, "one of three is left");
    forget(want);
}

/* Whatever becomes of the experts, a request ends. */
Test(experts, without_any_shard_requests_fail_after_the_patience)
{
    start_cluster(apart, 2, "experts = { deadline = \"300ms\"; patience = \"500ms\"; };");
    const struct ts_server *s = &cluster.node[0].http;
    free(complete(s, prompts[0]));
    kill_node(&cluster.node[1]);
    char *body = ts_body(TS_COMPLETIONS, prompts[1], TOKENS, false, "\"temperature\":0");
    struct ts_reply r = ts_post(s, ts_path(TS_COMPLETIONS), body);
    cr_assert(r.status >= 500 || (r.body && strstr(r.body, "error")), "%d %s", r.status, r.body ? r.body : "");
    ts_reply_free(&r);
    free(body);
    start(&cluster.node[1]);
    for (int i = 0;; i++) { /* the link tries again by itself */
        body = ts_body(TS_COMPLETIONS, prompts[1], TOKENS, false, "\"temperature\":0");
        r = ts_post(s, ts_path(TS_COMPLETIONS), body);
        bool well = r.status == 200;
        ts_reply_free(&r);
        free(body);
        if (well)
            break;
        cr_assert_lt(i, 60, "the shard is back and is not used");
    }
}

Test(experts, every_node_decodes_and_is_a_shard)
{
    static const struct node nodes[] = {{.name = "n0", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""},
                                        {.name = "n1", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""},
                                        {.name = "n2", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""},
                                        {.name = "n3", .roles = "\"gateway\", \"prefill\", \"decode\", \"expert\""}};
    char *want[PROMPTS];
    ask_alone(want);
    start_cluster(nodes, 4, "experts = { deadline = \"1s\"; };");
    for (int i = 0; i < 4; i++)
        check(&cluster.node[i].http, want, cluster.node[i].name);
    kill_node(&cluster.node[3]);
    for (int i = 0; i < 3; i++)
        check(&cluster.node[i].http, want, "one of four is dead");
    forget(want);
}

/* Groups of two and of three shards beside each other; neither uses the other's, so one outlives a death in the other.
 */
Test(experts, groups_of_different_sizes_in_one_deployment_give_the_same_tokens)
{
    static const struct node nodes[] = {
        {.name = "a", .roles = "\"gateway\", \"prefill\", \"decode\"", .group = "two"},
        {.name = "b", .roles = "\"gateway\", \"prefill\", \"decode\"", .group = "three"},
        {.name = "two0", .roles = "\"expert\"", .group = "two"},
        {.name = "two1", .roles = "\"expert\"", .group = "two"},
        {.name = "three0", .roles = "\"expert\"", .group = "three"},
        {.name = "three1", .roles = "\"expert\"", .group = "three"},
        {.name = "three2", .roles = "\"expert\"", .group = "three"},
    };
    char *want[PROMPTS];
    ask_alone(want);
    start_cluster(nodes, 7, "experts = { deadline = \"1s\"; lost = \"wait\"; };");
    check(&cluster.node[0].http, want, "group of two");
    check(&cluster.node[1].http, want, "group of three");
    kill_node(&cluster.node[3]);
    check(&cluster.node[1].http, want, "a shard of the other group is dead");
    /* Nobody stands in for it here: requests wait until the balancer has had the survivor load its experts. */
    check(&cluster.node[0].http, want, "one of two is dead");
    forget(want);
}
