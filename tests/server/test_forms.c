/* Every form of hand-off, by how experts are sharded, by provider, with history from a kv node: what real processes say
 * is what one process says, tokens, log-probabilities and counts of drafts.
 *
 *   full, encoder   a prompt that nobody has seen: as one process says it. One that the kv node has: as one process
 *                   says it behind a hit of that length.
 *   global          always as one process says it behind a hit of H, the largest even number below the prompt's length:
 *                   prompts here have one token more than whole blocks, so that one process can have that hit.
 *
 * None of these keeps window rows of prompts, so that every hit is replayed and differs from a cold prompt, which is
 * looked at, too. For each form, the nodes that compute prompts are started again, over those that stay; what they had
 * computed before comes back from the kv node. Over rdma (in the guest of `make test-rdma`), no process has anything
 * that could carry a byte over tcp, and the provider's counters show what it carried. */
#include <jansson.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/answer.h"
#include "tests/support/cluster.h"
#include "tests/support/deployment.h"
#include "tests/support/process.h"
#include "tests/support/rdma_rig.h"

static void end(void);

TestSuite(forms, .fini = end, .timeout = 900);

enum { BLOCK = 32, BLOCK_BYTES = 12288, BLOCKS = 2, TOLD = BLOCKS * BLOCK + 1, NODES_MAX = 5 };
enum { PROMPTS = 26 }; /* differ in their first letter */
enum form { FULL, ENCODER, GLOBAL, FORMS };
static const char *const form_names[FORMS] = {"full", "encoder", "global"};

/* Which nodes there are. The first one has HTTP; the first `again` ones are started again for each form, the last one
 * is the kv node. */
struct shape {
    const char *name;
    int n, again;
    bool all_do_all; /* else node 0 computes prompts, and node 1 alone decodes */
    struct {
        const char *name, *roles;
        int side; /* which host and devices over rdma */
    } node[NODES_MAX];
    const char *host[2], *devices[2];
    const char *others; /* a device beside the first that carries parts of large puts */
};

static const struct shape shapes[] = {
    {.name = "one shard",
     .n = 4,
     .again = 1,
     .node = {{"front", "\"gateway\", \"prefill\"", 0},
              {"back", "\"decode\"", 0},
              {"e0", "\"expert\"", 0},
              {"kv", "\"kv\"", 0}},
     .host = {"10.77.0.1", "10.77.0.1"},
     .devices = {"rxe0", "rxe0"}},
    {.name = "two shards",
     .n = 5,
     .again = 1,
     .node = {{"front", "\"gateway\", \"prefill\"", 0},
              {"back", "\"decode\"", 1},
              {"e0", "\"expert\"", 0},
              {"e1", "\"expert\"", 1},
              {"kv", "\"kv\"", 1}},
     .host = {"10.77.1.1", "10.77.1.2"},
     .devices = {"rxe1,rxe3", "rxe2,rxe4"},
     .others = "rxe3"},
    {.name = "every node decodes and is a shard",
     .n = 3,
     .again = 2,
     .all_do_all = true,
     .node = {{"n0", "\"gateway\", \"prefill\", \"decode\", \"expert\"", 0},
              {"n1", "\"gateway\", \"prefill\", \"decode\", \"expert\"", 1},
              {"kv", "\"kv\"", 1}},
     .host = {"10.77.1.1", "10.77.1.2"},
     .devices = {"rxe1", "rxe2"}},
};

struct said {
    json_t *choices, *drafts;
    int prompt, cached;
};

static int tokens; /* of each answer */
static struct ts_server alone;
static struct said cold[PROMPTS], hit[PROMPTS]; /* what it has said */
static char *conf;                              /* with FORM and DEVICES in their places */
static time_t started[NODES_MAX];               /* the process of each node */

static void forget(struct said *a)
{
    json_decref(a->choices);
    json_decref(a->drafts);
    *a = (struct said){NULL};
}

static void end(void)
{
    ts_cluster_end();
    if (alone.pid)
        ts_server_free(&alone);
    for (int i = 0; i < PROMPTS; i++) {
        forget(&cold[i]);
        forget(&hit[i]);
    }
    free(conf);
    conf = NULL;
}

/* ---- prompts and answers ---- */

static struct said ask(const struct ts_server *s, int prompt)
{
    char text[1024], more[96] = "\"temperature\":0,\"logprobs\":true,\"top_logprobs\":2,\"ignore_eos\":true";
    snprintf(text, sizeof text,
             "%c. In the beginning God created the heaven and the earth. And the earth was without form, and void; and "
             "darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God "
             "said, Let there be",
             'A' + prompt);
    char *body = ts_body(TS_CHAT, text, tokens, false, more);
    struct ts_reply r = ts_post(s, ts_path(TS_CHAT), body);
    if (r.status != 200)
        ts_cluster_show_logs();
    cr_assert_eq(r.status, 200, "%d %s", r.status, r.body ? r.body : "");
    json_t *j = json_loads(r.body, 0, NULL), *usage = json_object_get(j, "usage");
    struct said a = {.choices = json_incref(json_object_get(j, "choices")),
                     .drafts = json_incref(json_object_get(usage, "speculation")),
                     .prompt = (int)json_integer_value(json_object_get(usage, "prompt_tokens")),
                     .cached = (int)json_integer_value(
                         json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"))};
    cr_assert(a.choices && a.drafts && a.prompt == TOLD, "%s", r.body);
    json_decref(j);
    ts_reply_free(&r);
    free(body);
    return a;
}

/* What one process says to a prompt that it has not seen, and once more. Kept. */
static void ask_alone(int prompt)
{
    if (cold[prompt].choices)
        return;
    cold[prompt] = ask(&alone, prompt);
    hit[prompt] = ask(&alone, prompt);
    cr_assert_eq(cold[prompt].cached, 0);
    cr_assert_eq(hit[prompt].cached, BLOCKS * BLOCK);
    cr_assert(!json_equal(cold[prompt].choices, hit[prompt].choices), "a hit without window rows is an approximation");
}

static void expect_same(const struct said *got, const struct said *want, const char *when)
{
    if (json_equal(got->choices, want->choices) && json_equal(got->drafts, want->drafts))
        return;
    char *g = json_dumps(got->choices, JSON_COMPACT), *w = json_dumps(want->choices, JSON_COMPACT),
         *gd = json_dumps(got->drafts, JSON_COMPACT), *wd = json_dumps(want->drafts, JSON_COMPACT);
    ts_cluster_show_logs();
    cr_expect_fail("%s: got %s %s\nwant %s %s", when, g, gd, w, wd);
    free(g);
    free(w);
    free(gd);
    free(wd);
}

/* ---- what was carried ---- */

/* Sums over the nodes that compute prompts, and the other sides'. */
static struct sums {
    long long rows;     /* bytes of rows that were put into a decoder's pages */
    long long state;    /* bytes of messages of class kv that came to those that decode */
    long long returned; /* bytes that the kv node has put */
    long long stored;   /* blocks that it has confirmed */
} sums;                 /* at the last look */

static void look(const struct shape *s)
{
    sums = (struct sums){0};
    for (int i = 0; i < s->n; i++) {
        bool keeps = i == s->n - 1, computes = i < s->again, decodes = i == 1 || s->all_do_all;
        if (!keeps && !computes && !decodes)
            continue;
        json_t *j = ts_status_of(i);
        if (keeps) {
            sums.returned = ts_carried(j, "kv", "put_bytes_out");
        } else if (computes) {
            sums.rows += ts_carried(j, "kv", "put_bytes_out");
            sums.stored += ts_tier_figure(j, "kv", "stored");
        }
        if (!keeps && decodes)
            sums.state += ts_carried(j, "kv", "message_bytes_in");
        json_decref(j);
    }
}

/* ---- nodes ---- */

static const char node_keys[] =
    "replay = { exact = false; };\nspeculation = { draft_length = 1; };\n"
    "kv = { memory = \"4MiB\"; snapshots = \"0B\"; block_tokens = 32; read_timeout = \"120s\";\n"
    "       nodes = { memory = \"8MiB\"; find_timeout = \"60s\"; quiet_timeout = \"120s\"; }; };\n"
    "experts = { deadline = \"120s\"; };\nlimits = { stuck = \"120s\"; };\n";

static void start_alone(int n)
{
    char keys[1024];
    tokens = n;
    snprintf(keys, sizeof keys, "compute = { threads = 1; };\n%s", node_keys);
    ts_server_start(&alone, NULL, keys);
}

static void write_nodes(const struct shape *s, bool rdma)
{
    struct ts_node node[NODES_MAX];
    char more[1200], path[4200];
    memset(node, 0, sizeof node);
    for (int i = 0; i < s->n; i++)
        node[i] = (struct ts_node){
            .name = s->node[i].name, .roles = s->node[i].roles, .host = rdma ? s->host[s->node[i].side] : NULL};
    snprintf(more, sizeof more,
             "transport = { provider = \"%s\"; rdma = { devices = \"DEVICES\"; stripe_min = \"8KiB\"; }; };\n%s",
             rdma ? "rdma" : "tcp", node_keys);
    /* Emulated, on a busy host, under a sanitizer: nothing is late. */
    ts_cluster_write(node, s->n, "handoff = \"FORM\"; ticket_lease = \"600s\";", more);
    snprintf(path, sizeof path, "%s/weft.conf", ts_cluster.dir);
    conf = ts_read_file(path, NULL);
}

static char *replaced(const char *text, const char *what, const char *with)
{
    char *out = NULL;
    const char *at = strstr(text, what);
    cr_assert(at && asprintf(&out, "%.*s%s%s", (int)(at - text), text, with, at + strlen(what)) > 0);
    return out;
}

static void start_node(const struct shape *s, int i, enum form form)
{
    char path[4200];
    char *with_form = replaced(conf, "FORM", form_names[form]),
         *whole = replaced(with_form, "DEVICES", s->devices[s->node[i].side]);
    free(ts_write_file(ts_cluster.dir, "weft.conf", whole));
    snprintf(path, sizeof path, "%s/%s.log", ts_cluster.dir, s->node[i].name);
    unlink(path); /* of the process before */
    started[i] = time(NULL);
    ts_node_start(&ts_cluster.node[i]);
    free(whole);
    free(with_form);
}

static void start_front(const struct shape *s, enum form form)
{
    for (int i = s->again - 1; i >= 0; i--)
        start_node(s, i, form);
    sums.rows = sums.stored = 0;
    sums.state = s->all_do_all ? 0 : sums.state;
    for (int i = 0; i < s->again; i++) {
        ts_node_wait_ready(&ts_cluster.node[i], 200);
        for (int k = 0; k < s->n; k++)
            if (k != i) {
                char up[64];
                snprintf(up, sizeof up, "node_up node=%s", s->node[k].name);
                ts_node_wait_log(&ts_cluster.node[i], up);
            }
    }
}

/* ---- what they have done ---- */

/* Blocks are kept when the kv node has said so. */
static void until_stored(const struct shape *s, long long blocks)
{
    for (int i = 0; i < 600 && sums.stored < blocks; i++) {
        usleep(100000);
        look(s);
    }
    if (sums.stored < blocks)
        ts_cluster_show_logs();
    cr_assert_geq(sums.stored, blocks, "%lld blocks are kept", sums.stored);
}

/* What a node may have sent to ask the others of a class whether they are there, and to answer them: 12 bytes each,
 * once a second. */
static long long pings_of(const struct shape *s, int node)
{
    return (long long)(time(NULL) - started[node] + 1) * (s->n - 1) * 2 * 12;
}

/* One-sided slots carried rows of experts, both ways; over rdma nothing else could have carried a byte. */
static void check_nodes(const struct shape *s, bool rdma, const char *when)
{
    for (int i = 0; i < s->n; i++) {
        struct ts_node *n = &ts_cluster.node[i];
        json_t *j = ts_status_of(i);
        char *text = json_dumps(json_object_get(j, "transport"), JSON_COMPACT);
        cr_expect_str_eq(json_string_value(json_object_get(json_object_get(j, "transport"), "provider")),
                         rdma ? "rdma" : "tcp");
        if (i < s->n - 1) {
            long long puts = ts_carried(j, "expert", "put_bytes_out");
            long long messages = ts_carried(j, "expert", "message_bytes_out") - pings_of(s, i);
            cr_expect(puts > 5000 && puts > 4 * messages, "%s, %s: %s", when, n->name, text);
        }
        if (rdma) {
            /* A queue pair per node and class: this is what must not grow when nodes come and go. */
            cr_expect_geq(ts_carried(j, "held", "queue_pairs"), 3 * (s->n - 1), "%s, %s: %s", when, n->name, text);
            cr_expect_geq(ts_carried(j, "held", "regions"), 1, "%s, %s: %s", when, n->name, text);
            cr_expect_eq(ts_tcp_sockets(n->pid, n->http.port), 0, "%s, %s", when, n->name);
            cr_expect_eq(ts_tcp_sockets(n->pid, 0) > 0, n->http.port > 0, "%s, %s", when, n->name);
        }
        free(text);
        json_decref(j);
    }
}

/* Bytes that a process has registered, as the kernel counts them. */
static long long registered_by(pid_t pid)
{
    struct ts_result r = ts_run("rdma", "-j", "resource", "show", "mr");
    json_t *list = json_loads(r.out, 0, NULL), *mr;
    long long sum = 0;
    size_t i;
    cr_assert_not_null(list, "%s%s", r.out, r.err);
    json_array_foreach (list, i, mr) {
        if (json_integer_value(json_object_get(mr, "pid")) == pid)
            sum += json_integer_value(json_object_get(mr, "mrlen"));
    }
    json_decref(list);
    ts_result_free(&r);
    return sum;
}

/* What weft check says a node will register is what it registers: not less, and not more than for connections that it
 * does not have now. */
static void expect_registered(int node)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/weft.conf", ts_cluster.dir);
    struct ts_result r =
        ts_run(ts_weft(), "check", "--rdma", "--timeout", "60", "--node", ts_cluster.node[node].name, path);
    const char *at = strstr(r.out, "locked memory: ");
    long long said = at ? atoll(at + 15) << 20 : 0, has = registered_by(ts_cluster.node[node].pid);
    cr_expect_geq(said, has, "%s\n%s", ts_cluster.node[node].name, r.out);
    cr_expect_leq(said, has + (32 << 20), "%s\n%s", ts_cluster.node[node].name, r.out);
    ts_result_free(&r);
}

/* ---- the matrix ---- */

/* A prompt that nobody has seen. Returns whether its rows went to another process. */
static bool ask_cold(const struct shape *s, enum form form, int prompt, long long state[FORMS], const char *when)
{
    struct said got;
    const struct sums before = sums;
    ask_alone(prompt);
    got = ask(&ts_cluster.node[s->all_do_all ? prompt % s->again : 0].http, prompt);
    look(s);
    long long rows = sums.rows - before.rows;
    if (rows) {
        cr_expect_geq(rows, BLOCKS * BLOCK_BYTES, "%s: %lld bytes of rows", when, rows);
        state[form] = sums.state - before.state;
    }
    cr_expect_eq(got.cached, 0, "%s: %d cached", when, got.cached);
    expect_same(&got, form == GLOBAL ? &hit[prompt] : &cold[prompt], when);
    forget(&got);
    return rows > 0;
}

/* One that the kv node has, and whoever computes it now has never seen. */
static void ask_kept(const struct shape *s, int prompt, const char *when)
{
    const struct sums before = sums;
    struct said got = ask(&ts_cluster.node[0].http, prompt);
    look(s);
    cr_expect_eq(got.cached, BLOCKS * BLOCK, "%s: %d cached", when, got.cached);
    long long bytes = sums.returned - before.returned;
    cr_expect_geq(bytes, BLOCKS * BLOCK_BYTES, "%s: %lld bytes from the kv node", when, bytes);
    expect_same(&got, &hit[prompt], when);
    forget(&got);
}

static void every_form(const struct shape *s, bool rdma)
{
    static const enum form order[] = {FULL, ENCODER, GLOBAL, FULL};
    long long state[FORMS] = {0}, other = s->others && rdma ? rr_counter(s->others, "sent_pkts") : 0;
    int prompt = 0;
    char when[160];
    sums = (struct sums){0};
    write_nodes(s, rdma);
    for (int i = s->n - 1; i >= s->again; i--)
        start_node(s, i, FULL);
    for (int k = 0; k < 4; k++) {
        snprintf(when, sizeof when, "%s, %s over %s", s->name, form_names[order[k]], rdma ? "rdma" : "tcp");
        start_front(s, order[k]);
        int last = prompt - 1, first = prompt;
        if (k < 3) /* where every node does all, a prompt may stay where it was computed */
            while (!ask_cold(s, order[k], prompt++, state, when))
                cr_assert(s->all_do_all && prompt < PROMPTS, "%s: no rows are sent", when);
        if (k)
            ask_kept(s, last, when);
        check_nodes(s, rdma, when);
        if (k < 3) {
            until_stored(s, (long long)(prompt - first) * BLOCKS);
            for (int i = 0; i < s->again; i++)
                ts_node_kill(&ts_cluster.node[i]);
        }
    }
    printf("%s over %s: %lld, %lld, %lld bytes of state in forms full, encoder, global\n", s->name,
           rdma ? "rdma" : "tcp", state[FULL], state[ENCODER], state[GLOBAL]);
    /* Window rows of all layers; of some of them, and what goes into the others over the last rows; nothing. */
    cr_expect(state[FULL] > 40000 && state[ENCODER] > state[FULL] + 10000 && state[GLOBAL] < 20000,
              "%lld, %lld, %lld bytes", state[FULL], state[ENCODER], state[GLOBAL]);
    for (int i = 0; rdma && s == shapes && i < s->n; i += s->n - 1)
        expect_registered(i);
    if (s->others && rdma)
        cr_expect_gt(rr_counter(s->others, "sent_pkts") - other, 10, "the second device carries its part");
    ts_cluster_end();
    free(conf);
    conf = NULL;
}

Test(forms, every_form_and_sharding_over_tcp_gives_what_one_process_says)
{
    if (getenv("WEFT_IN_RDMA_GUEST"))
        cr_skip_test("outside the guest of `make test-rdma`");
    start_alone(16);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        every_form(&shapes[i], false);
}

Test(forms, every_form_and_sharding_over_rdma_gives_what_one_process_says)
{
    rr_need_guest();
    start_alone(4); /* emulated: slow */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        every_form(&shapes[i], true);
}
