#include "cli/nodes.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/load_client.h"

enum { AT_A_TIME = 64 };

int cli_nodes_config(const char *file, struct cfg_config *out)
{
    struct cfg_report report = {0};
    int r = cfg_config_load(file, out, &report);
    cfg_report_print(&report, stderr);
    cfg_report_free(&report);
    return r ? CLI_USAGE : CLI_OK;
}

const struct cfg_node *cli_nodes_find(const struct cfg_config *c, const char *file, const char *command,
                                      const char *name)
{
    const struct cfg_node *n = cfg_config_node(c, name);
    if (!n)
        cli_error(CLI_USAGE, "%s: there is no node \"%s\" in %s", command, name, file);
    return n;
}

int cli_nodes_open(const struct cfg_config *c, const char *file, struct cli_nodes *out, struct cfg_error *err)
{
    *out = (struct cli_nodes){.c = c, .file = file};
    if (c->n_nodes < 2)
        return 0;
    int r = tp_provider_of(c, &c->nodes[0], &out->provider, err);
    out->provider.address[0] = 0; /* this machine may be none of the nodes': the nearest device */
    return r ? r : tp_secret_load(c->cluster.secret_file, out->secret, err);
}

void cli_answer_clear(struct cli_answer *a)
{
    json_decref(a->json);
    a->json = NULL;
}

/* ---- a node of several ---- */

/* What to do about it, by what went wrong. */
static const char *advice(int status)
{
    switch (-status) {
    case ECONNREFUSED:
        return "; nothing listens there: start it (weft up, or weft serve --node), or look at its log";
    case ETIMEDOUT:
        return "; its machine is off, a packet filter is between, the process stands still, or another one has its "
               "port";
    case EHOSTUNREACH:
    case ENETUNREACH:
        return "; no route leads there: look at host in the file and at the network";
    case EADDRNOTAVAIL:
        return "; host in the file is no address that can be reached from here";
    default:
        return "";
    }
}

static void ask_one(const struct cli_nodes *nodes, int i, const char *tool, const char *question, int64_t timeout_ns,
                    struct cli_answer *out)
{
    const struct cfg_node *n = &nodes->c->nodes[i];
    struct tp_answer answer;
    struct cfg_error err;
    char prefix[CFG_NAME_TEXT + CFG_ADDRESS_TEXT + 32];
    const struct tp_ask ask = {.ops = nodes->provider.ops,
                               .provider = nodes->provider.config,
                               .secret = nodes->secret,
                               .tool = tool,
                               .address = out->address,
                               .name = n->name,
                               .number = (uint16_t)(i + 1),
                               .question = question,
                               .size = strlen(question),
                               .timeout_ns = timeout_ns};
    out->status = tp_net_ask(&ask, &answer, &err);
    out->hello = answer.node;
    out->connect_ns = answer.connect_ns;
    out->answer_ns = answer.answer_ns;
    if (out->status) {
        int len = snprintf(prefix, sizeof prefix, "node %s at %s: ", n->name, out->address);
        bool named = !strncmp(err.msg, prefix, (size_t)len);
        snprintf(out->why, sizeof out->why, "%s%s", err.msg + (named ? len : 0), advice(out->status));
        return;
    }
    json_error_t je;
    out->json = question[0] ? json_loadb((char *)answer.bytes, answer.size, 0, &je) : NULL;
    free(answer.bytes);
    if (question[0] && !json_is_object(out->json)) {
        cli_answer_clear(out);
        out->status = -EPROTO;
        snprintf(out->why, sizeof out->why, "its answer cannot be read; is it of another version?");
    }
}

/* ---- the only node of a file ---- */

static double oldest(json_t *health)
{
    size_t i;
    json_t *w;
    double age = 0;
    json_array_foreach (json_object_get(health, "workers"), i, w) {
        double a = json_real_value(json_object_get(w, "progress_age_seconds"));
        age = a > age ? a : age;
    }
    return age;
}

/* One node alone has no connections to others; what there is, it tells every client. */
static void ask_alone(const struct cli_nodes *nodes, struct cli_answer *out)
{
    const struct cfg_node *n = &nodes->c->nodes[0];
    struct load_target t = {0};
    struct cfg_error err;
    char url[CFG_ADDRESS_TEXT + 16], roles[128], *body = NULL;
    if (nodes->c->security.tls_cert[0]) {
        out->status = -ENOTSUP;
        snprintf(out->why, sizeof out->why,
                 "it serves over TLS, which this command does not speak; `curl https://%s/health/ready` does",
                 n->listen);
        return;
    }
    snprintf(url, sizeof url, "http://%s", n->listen);
    int r = load_target_set(&t, url, &err);
    int code = r ? r : load_fetch(&t, "GET", "/health/ready", NULL, &body, &err);
    json_t *health = code > 0 ? json_loads(body, 0, NULL) : NULL;
    const char *status = json_string_value(json_object_get(health, "status"));
    if (code < 0) {
        out->status = code;
        snprintf(out->why, sizeof out->why, "%s", err.msg);
    } else if (!status) {
        out->status = -EPROTO;
        snprintf(out->why, sizeof out->why, "what answers at %s is not weft", n->listen);
    } else {
        cfg_roles_text(n->roles, roles, sizeof roles);
        out->json = json_pack("{s:s, s:s, s:s, s:f}", "node", n->name, "roles", roles, "health", status,
                              "progress_age_s", oldest(health));
    }
    json_decref(health);
    free(body);
    load_target_clear(&t);
}

/* ---- all of them ---- */

struct round {
    const struct cli_nodes *nodes;
    const int *which;
    int n, next; /* next: under lock */
    const char *tool, *question;
    int64_t timeout_ns;
    struct cli_answer *out;
    pthread_mutex_t lock;
};

static void *work(void *arg)
{
    struct round *r = arg;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        int i = r->next++;
        pthread_mutex_unlock(&r->lock);
        if (i >= r->n)
            return NULL;
        if (r->nodes->c->n_nodes < 2)
            ask_alone(r->nodes, &r->out[i]);
        else
            ask_one(r->nodes, r->which[i], r->tool, r->question, r->timeout_ns, &r->out[i]);
    }
}

void cli_nodes_ask(const struct cli_nodes *nodes, const int *which, int n, const char *tool, const char *question,
                   int64_t timeout_ns, struct cli_answer *out)
{
    struct round r = {.nodes = nodes,
                      .which = which,
                      .n = n,
                      .tool = tool,
                      .question = question,
                      .timeout_ns = timeout_ns,
                      .out = out,
                      .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread[AT_A_TIME];
    int started = 0;
    for (int i = 0; i < n; i++) {
        const struct cfg_node *node = &nodes->c->nodes[which[i]];
        out[i] = (struct cli_answer){0};
        if (nodes->c->n_nodes < 2)
            snprintf(out[i].address, sizeof out[i].address, "%s", node->listen);
        else
            cfg_node_address(node, out[i].address, sizeof out[i].address);
    }
    while (started < AT_A_TIME && started < n - 1 && pthread_create(&thread[started], NULL, work, &r) == 0)
        started++;
    work(&r);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&r.lock);
}
