#include "tests/support/cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/process.h"
#include "transport/net.h"
#include "transport/tcp.h"

struct ts_cluster ts_cluster;
const char *ts_cluster_keys = "";

/* Below the ports that the kernel gives to outgoing connections, and in a block of this process's own: what was free a
 * moment ago is then still so, also when suites run beside each other. */
static int free_port(void)
{
    enum { FIRST = 10000, BLOCK = 32, BLOCKS = 700 };
    static int next;
    for (int i = 0; i < BLOCK; i++) {
        int port = FIRST + getpid() % BLOCKS * BLOCK + next++ % BLOCK, one = 1;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in a = {
            .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        bool free_now = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
        if (fd >= 0)
            close(fd);
        if (free_now)
            return port;
    }
    cr_assert_fail("no free port");
    return 0;
}

void ts_cluster_end(void)
{
    for (int i = 0; i < ts_cluster.n; i++)
        if (ts_cluster.node[i].pid > 0) {
            kill(ts_cluster.node[i].pid, SIGKILL);
            waitpid(ts_cluster.node[i].pid, NULL, 0);
        }
    if (ts_cluster.dir)
        ts_remove_dir(ts_cluster.dir);
    free(ts_cluster.dir);
    memset(&ts_cluster, 0, sizeof ts_cluster);
}

void ts_cluster_show_logs(void)
{
    for (int i = 0; i < ts_cluster.n; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/%s.log", ts_cluster.dir, ts_cluster.node[i].name);
        char *log = ts_read_file(path, NULL);
        printf("== %s\n%s\n", ts_cluster.node[i].name, log ? log : "");
        free(log);
    }
}

void ts_node_start(struct ts_node *n)
{
    int out[2];
    char conf[4200], log[4300], c;
    snprintf(conf, sizeof conf, "%s/weft.conf", ts_cluster.dir);
    snprintf(log, sizeof log, "%s/%s.log", ts_cluster.dir, n->name);
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
        ts_cluster_show_logs();
        cr_assert_fail("node %s did not start", n->name);
    }
}

void ts_node_kill(struct ts_node *n)
{
    kill(n->pid, SIGKILL);
    waitpid(n->pid, NULL, 0);
    n->pid = 0;
}

void ts_node_wait_ready(const struct ts_node *n, int status)
{
    for (int i = 0; i < 600; i++) {
        struct ts_reply r = ts_get(&n->http, "/health/ready");
        bool so = r.status == status;
        ts_reply_free(&r);
        if (so)
            return;
        usleep(100000);
    }
    ts_cluster_show_logs();
    cr_assert_fail("the readiness of node %s does not become %d", n->name, status);
}

void ts_cluster_write(const struct ts_node *nodes, int n, const char *engine, const char *more)
{
    char *text = NULL, *list = NULL, secret[65];
    size_t size, listed;
    if (access("samples/tiny/config.json", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    ts_cluster.dir = ts_temp_dir();
    cr_assert_not_null(ts_cluster.dir);
    FILE *f = open_memstream(&list, &listed);
    for (ts_cluster.n = 0; ts_cluster.n < n; ts_cluster.n++) {
        struct ts_node *to = &ts_cluster.node[ts_cluster.n];
        *to = nodes[ts_cluster.n];
        to->port = free_port();
        fprintf(f, "%s{ name = \"%s\"; roles = [%s]; port = %d; ", ts_cluster.n ? ",\n" : "", to->name, to->roles,
                to->port);
        if (to->host)
            fprintf(f, "host = \"%s\"; ", to->host);
        if (to->group)
            fprintf(f, "experts = \"%s\"; ", to->group);
        if (strstr(to->roles, "gateway"))
            fprintf(f, "listen = \"127.0.0.1:%d\"; ", to->http.port = free_port());
        else if (to->metrics)
            fprintf(f, "metrics = \"127.0.0.1:%d\"; ", to->http.port = free_port());
        fprintf(f, "}");
    }
    fclose(f);
    for (int i = 0; i < 64; i++)
        secret[i] = "0123456789abcdef"[(i * 7 + 3) % 16];
    secret[64] = 0;
    free(ts_write_file(ts_cluster.dir, "secret", secret));
    char path[4200];
    snprintf(path, sizeof path, "%s/secret", ts_cluster.dir);
    chmod(path, 0600);
    f = open_memstream(&text, &size);
    fprintf(f,
            "model = { path = \"samples/tiny\"; name = \"tiny\"; };\ncompute = { threads = 1; };\n"
            "%sengine = { expert_shards = 1; %s };\n"
            "cluster = { secret_file = \"%s\"; state = \"%s/state\"; %s };\n%s\nnodes = (\n%s\n);\n",
            strstr(more, "kv = {") ? "" : "kv = { memory = \"64MiB\"; snapshots = \"8MiB\"; };\n", engine, path,
            ts_cluster.dir, ts_cluster_keys, more, list);
    fclose(f);
    free(ts_write_file(ts_cluster.dir, "weft.conf", text));
    free(text);
    free(list);
}

void ts_cluster_write_sample(const char *file, const char *folder)
{
    char *text = ts_read_file(file, NULL), *out = NULL;
    size_t size;
    if (access("samples/tiny/config.json", R_OK))
        cr_skip_test("needs the sample model in samples/tiny");
    cr_assert_not_null(text, "%s", file);
    ts_cluster.dir = ts_temp_dir();
    FILE *f = open_memstream(&out, &size);
    for (const char *at = text; *at;) {
        static const char *const before[] = {" port = ", "listen = \"127.0.0.1:", "metrics = \"127.0.0.1:"};
        const char *from = at;
        for (int k = 0; k < 3 && at == from; k++)
            if (!strncmp(at, before[k], strlen(before[k]))) {
                int port = free_port();
                fprintf(f, "%s%d", before[k], port);
                at += strlen(before[k]) + strspn(at + strlen(before[k]), "0123456789");
                if (k == 1 && !ts_cluster.node[0].http.port)
                    ts_cluster.node[0].http.port = port;
            }
        if (at == from && !strncmp(at, folder, strlen(folder))) {
            fprintf(f, "%s/state", ts_cluster.dir);
            at += strlen(folder);
        } else if (at == from) {
            fputc(*at++, f);
        }
    }
    fclose(f);
    free(ts_write_file(ts_cluster.dir, "weft.conf", out));
    free(out);
    free(text);
}

void ts_cluster_start(const struct ts_node *nodes, int n, const char *engine, const char *more)
{
    ts_cluster_write(nodes, n, engine, more);
    for (int i = n - 1; i >= 0; i--)
        ts_node_start(&ts_cluster.node[i]);
    for (int i = 0; i < n; i++)
        if (ts_cluster.node[i].http.port)
            ts_node_wait_ready(&ts_cluster.node[i], 200);
}

char *ts_cluster_complete(const struct ts_server *s, const char *prompt)
{
    return ts_cluster_complete_to(s, prompt, TS_CLUSTER_TOKENS);
}

/* The answer to a completion; fails on any other status than 200. */
static struct ts_answer completion(const struct ts_server *s, const char *prompt, int tokens, const char *more)
{
    char *body = ts_body(TS_COMPLETIONS, prompt, tokens, false, more);
    struct ts_reply r = ts_post(s, ts_path(TS_COMPLETIONS), body);
    if (r.status != 200)
        ts_cluster_show_logs();
    cr_assert_eq(r.status, 200, "%d %s", r.status, r.body ? r.body : "");
    struct ts_answer a = ts_answer_of(TS_COMPLETIONS, r.body, false);
    ts_reply_free(&r);
    free(body);
    return a;
}

char *ts_cluster_complete_to(const struct ts_server *s, const char *prompt, int tokens)
{
    struct ts_answer a = completion(s, prompt, tokens, "\"temperature\":0");
    char *text = strdup(a.text);
    ts_answer_free(&a);
    return text;
}

void ts_cluster_prompt(int which, char out[TS_CLUSTER_LONG])
{
    int at = snprintf(out, TS_CLUSTER_LONG, "%d. ", which);
    while (at < 1300)
        at += snprintf(out + at, TS_CLUSTER_LONG - (size_t)at,
                       "In the beginning God created the heaven and the earth. ");
}

struct ts_answer ts_cluster_ask(const struct ts_node *n, int which, int tokens)
{
    char prompt[TS_CLUSTER_LONG];
    ts_cluster_prompt(which, prompt);
    return completion(&n->http, prompt, tokens, "");
}

const char *const ts_cluster_prompts[TS_CLUSTER_PROMPTS] = {
    "Once upon a time", "In the beginning", "The quick brown fox jumps",
    "It was a dark and stormy night, and the rain fell in torrents upon the roofs of the city and upon "
    "the long road that led from it; nobody was abroad but the watchman with his lamp, who counted the "
    "hours, and an old dog that followed him from door to door, as it had done for as long as anybody "
    "could remember. Then, all at once, there was a"};

void ts_cluster_ask_alone(const char *more, char *want[TS_CLUSTER_PROMPTS])
{
    struct ts_server alone;
    char keys[512];
    snprintf(keys, sizeof keys, "compute = { threads = 1; };\n%s", more);
    ts_server_start(&alone, NULL, keys);
    for (int i = 0; i < TS_CLUSTER_PROMPTS; i++)
        want[i] = ts_cluster_complete(&alone, ts_cluster_prompts[i]);
    ts_server_free(&alone);
}

void ts_cluster_check(const struct ts_server *s, char *const want[TS_CLUSTER_PROMPTS], const char *when)
{
    for (int i = 0; i < TS_CLUSTER_PROMPTS; i++) {
        char *got = ts_cluster_complete(s, ts_cluster_prompts[i]);
        if (strcmp(got, want[i]))
            ts_cluster_show_logs();
        cr_assert_str_eq(got, want[i], "%s: \"%s\"", when, ts_cluster_prompts[i]);
        free(got);
    }
}

void ts_cluster_forget(char *want[TS_CLUSTER_PROMPTS])
{
    for (int i = 0; i < TS_CLUSTER_PROMPTS; i++)
        free(want[i]);
}

void ts_node_wait_log(const struct ts_node *n, const char *what)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s.log", ts_cluster.dir, n->name);
    bool found = false;
    for (int i = 0; i < 600 && !found; i++) {
        char *log = ts_read_file(path, NULL);
        found = log && strstr(log, what);
        free(log);
        if (!found)
            usleep(100000);
    }
    if (!found)
        ts_cluster_show_logs();
    cr_assert(found, "%s never says \"%s\"", n->name, what);
}

char *ts_node_ask(const struct ts_node *n, const char *question)
{
    char path[4200], address[64];
    uint8_t secret[TP_SECRET];
    struct cfg_error err;
    struct tp_answer a;
    snprintf(path, sizeof path, "%s/secret", ts_cluster.dir);
    snprintf(address, sizeof address, "127.0.0.1:%d", n->port);
    cr_assert_eq(tp_secret_load(path, secret, &err), 0, "%s", err.msg);
    const struct tp_ask ask = {.ops = &tp_tcp,
                               .secret = secret,
                               .tool = "test",
                               .address = address,
                               .name = n->name,
                               .number = (uint16_t)(n - ts_cluster.node + 1),
                               .question = question,
                               .size = strlen(question),
                               .timeout_ns = INT64_C(30000000000)};
    if (tp_net_ask(&ask, &a, &err))
        return NULL;
    char *text = strndup((const char *)a.bytes, a.size);
    free(a.bytes);
    return text;
}
