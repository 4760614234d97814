/* `weft check`: whether a node of a configuration could be served here, before it is. Opens what the server would open,
 * changes nothing, and says for every finding what to do. */
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/gateway/http.h"
#include "actors/gateway/keys.h"
#include "actors/server_engram.h"
#include "cli/check_impl.h"
#include "cli/check_rdma.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/supervisor.h"
#include "config/config.h"
#include "model/backend.h"
#include "model/checkpoint.h"
#include "model/team.h"
#include "model/tokenizer.h"

enum { PEER_TIMEOUT_S = 2 };

void cli_check_say(struct check *k, enum finding how, const char *part, const char *fmt, ...)
{
    static const char *const word[] = {"ok", "warning", "problem"};
    va_list ap;
    k->problems += how == PROBLEM;
    k->warnings += how == WARNING;
    printf("%-8s %-9s ", word[how], part);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

/* ---- the machine ---- */

static void check_cpu(struct check *k)
{
    static const char *const paths[] = {NULL, "scalar", "avx2", "avx512"};
    const struct cfg_config *c = k->c;
    const struct mdl_backend *be;
    struct cfg_error err;
    int cpus = mdl_team_default_threads(), threads = c->compute.threads ? c->compute.threads : cpus;
    const char *name = getenv("WEFT_CPU") ? getenv("WEFT_CPU") : paths[c->compute.cpu];
    if (mdl_backend_select(name, &be, &err))
        cli_check_say(k, PROBLEM, "cpu", "%s", err.msg);
    else
        k->backend = be->name;
    k->threads += threads;
    if (!k->backend)
        return;
    if (threads > cpus)
        cli_check_say(k, WARNING, "cpu", "%s path, %d threads on %d usable CPUs; set compute.threads to 0 or %d",
                      be->name, threads, cpus, cpus);
    else
        cli_check_say(k, FINE, "cpu", "%s path, %d threads on %d usable CPUs", be->name, threads, cpus);
}

static void check_files(struct check *k)
{
    struct rlimit limit;
    /* A connection may need a second descriptor while its client is watched. */
    rlim_t need = 2 * (rlim_t)k->c->limits.connections + 64;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < need)
        cli_check_say(
            k, PROBLEM, "files",
            "limits.connections = %d needs up to %llu descriptors, %llu are allowed; raise the limit (ulimit -Hn, "
            "LimitNOFILE= of a "
            "systemd unit) or lower limits.connections",
            k->c->limits.connections, (unsigned long long)need, (unsigned long long)limit.rlim_max);
    else
        cli_check_say(k, FINE, "files", "%d connections need up to %llu descriptors of %llu", k->c->limits.connections,
                      (unsigned long long)need, (unsigned long long)limit.rlim_max);
}

/* ---- the model ---- */

static void check_fit(struct check *k, const struct mdl_config *m)
{
    struct cfg_report report = {0};
    if (cfg_config_check_model(k->c, m->window, m->max_position, m->n_draft ? m->draft_block : 0, &report))
        k->config_wrong = true;
    for (size_t i = 0; i < report.count; i++)
        cli_check_say(k, PROBLEM, "config", "%s:%d: %s. %s", report.problems[i].file, report.problems[i].line,
                      report.problems[i].message, report.problems[i].remedy);
    cfg_report_free(&report);
}

/* Where Engram rows will come from: the files are opened as the server opens them. */
static void check_engram(struct check *k, const struct mdl_checkpoint *ck)
{
    struct kv_storage *storage;
    struct kv_rows *rows;
    struct kv_rows_stats s;
    struct cfg_error err;
    int64_t all = 0;
    for (int e = 0; e < ck->config.n_engram; e++)
        all += ck->config.engram_rows[e];
    if (!all)
        return;
    int r = act_server_engram_rows(k->c, ck, &storage, &rows, &err);
    if (r)
        cli_check_say(k, PROBLEM, "engram", "%s", err.msg);
    else if (!rows)
        cli_check_say(
            k, FINE, "engram",
            "%lld rows of %d tables are taken from the mapped checkpoint; a step waits for the disk where memory does "
            "not hold them",
            (long long)all, ck->config.n_engram);
    if (!r && rows) {
        kv_rows_stat(rows, &s);
        cli_check_say(
            k, FINE, "engram",
            "%lld rows of %d tables, %zu bytes each, are read ahead from the checkpoint's files%s; %llu of them (%.1f "
            "%%) fit in memory",
            (long long)all, ck->config.n_engram, kv_rows_bytes(rows),
            k->c->engram.store == CFG_ENGRAM_SSD ? " past the page cache" : "", (unsigned long long)s.slots,
            (double)s.slots < (double)all ? 100.0 * (double)s.slots / (double)all : 100.0);
    }
    kv_rows_free(rows);
    kv_storage_free(storage);
}

static void check_model(struct check *k)
{
    struct mdl_checkpoint *ck;
    struct mdl_tokenizer *tok;
    struct cfg_error err;
    const char *path = k->c->model.path;
    enum mdl_part part = cfg_node_is_encoder(k->c, k->node) ? MDL_PART_ENCODER : MDL_PART_ALL;
    if (mdl_checkpoint_open_part(path, part, cfg_model_revision(k->c), &ck, &err)) {
        cli_check_say(k, PROBLEM, "model", "%s", err.msg);
        return;
    }
    cli_check_say(k, FINE, "model", "%s, revision %016llx, %d layers, context of up to %d tokens", path,
                  (unsigned long long)ck->revision, ck->config.n_layers, ck->config.max_position);
    if (ck->revision_given)
        cli_check_say(
            k, WARNING, "model",
            "%s has not all files, so that model.revision is believed and not verified: only names, shapes and "
            "types of what is there were",
            path);
    if (mdl_tokenizer_load(path, &tok, &err)) {
        cli_check_say(k, PROBLEM, "model", "%s", err.msg);
    } else {
        if (mdl_tokenizer_vocab_size(tok) > ck->config.vocab_size)
            cli_check_say(k, PROBLEM, "model",
                          "the tokenizer has %d ids, the model only %d; they do not belong together",
                          mdl_tokenizer_vocab_size(tok), ck->config.vocab_size);
        mdl_tokenizer_free(tok);
    }
    k->revision = ck->revision;
    cfg_replay_text(k->c, ck->config.window, ck->config.cut >= 0, k->replay, sizeof k->replay);
    check_fit(k, &ck->config);
    cli_check_memory(k, &ck->config);
    if (k->node->roles & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE))
        check_engram(k, ck);
    mdl_checkpoint_close(ck);
}

/* ---- what clients and other programs touch ---- */

static int try_bind(const struct addrinfo *ai)
{
    int e = EADDRNOTAVAIL;
    for (; ai; ai = ai->ai_next) {
        int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        e = bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, 1) ? errno : 0;
        close(fd);
        if (!e)
            return 0;
    }
    return e;
}

/* Where it answers HTTP; "": nowhere. */
static const char *address_of(const struct cfg_node *n)
{
    return n->roles & CFG_ROLE_GATEWAY ? n->listen : n->metrics;
}

static void check_port(struct check *k)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const char *listen_at = address_of(k->node), *colon = strrchr(listen_at, ':');
    struct addrinfo *ai;
    char host[CFG_ADDRESS_TEXT];
    if (!colon)
        return;
    bool v6 = listen_at[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)(colon - listen_at) - 2 * v6, listen_at + v6);
    int r = getaddrinfo(host, colon + 1, &hints, &ai);
    if (r) {
        cli_check_say(k, PROBLEM, "port", "%s: %s; give an address of this machine", listen_at, gai_strerror(r));
        return;
    }
    int e = try_bind(ai);
    freeaddrinfo(ai);
    char lock[CFG_PATH_TEXT + CFG_NAME_TEXT + 8];
    if (e == EADDRINUSE && cli_node_runs(k->c, k->node, lock))
        cli_check_say(k, FINE, "port", "%s is taken, and node \"%s\" runs here", listen_at, k->node->name);
    else if (e)
        cli_check_say(k, PROBLEM, "port", "%s: %s%s", listen_at, strerror(e),
                      e == EADDRINUSE ? "; stop the program that has it, or choose another port"
                      : e == EACCES   ? "; ports below 1024 need a privilege, choose a higher one"
                                      : "; give an address of this machine");
    else
        cli_check_say(k, FINE, "port", "%s is free", listen_at);
}

static void check_readers(struct check *k, const char *file)
{
    struct stat st;
    if (stat(file, &st) == 0 && st.st_mode & 077)
        cli_check_say(k, WARNING, "security", "%s can be read or written by others (mode %03o); chmod 600 it", file,
                      (unsigned)st.st_mode & 0777);
}

static void check_security(struct check *k)
{
    const struct cfg_config *c = k->c;
    const char *address = address_of(k->node);
    struct gw_keys keys = {0};
    struct ssl_ctx_st *tls = NULL;
    struct cfg_error err;
    bool loopback =
        !strncmp(address, "127.", 4) || !strncmp(address, "localhost:", 10) || !strncmp(address, "[::1]", 5);
    if (c->security.keys_file[0] && gw_keys_load(&keys, c->security.keys_file, &err))
        cli_check_say(k, PROBLEM, "security", "%s", err.msg);
    else if (c->security.keys_file[0])
        cli_check_say(k, FINE, "security", "%d API keys in %s", keys.listed, c->security.keys_file);
    else if (!loopback)
        cli_check_say(k, WARNING, "security",
                      "%s can be reached from other machines and no API key is asked for; set security.keys_file",
                      address);
    gw_keys_free(&keys);
    if (c->security.tls_cert[0] && gw_http_tls_new(c->security.tls_cert, c->security.tls_key, &tls, &err))
        cli_check_say(k, PROBLEM, "security", "%s", err.msg);
    else if (c->security.tls_cert[0])
        cli_check_say(k, FINE, "security", "TLS with %s", c->security.tls_cert);
    else if (!loopback)
        cli_check_say(k, WARNING, "security",
                      "nothing is encrypted; set security.tls_cert and security.tls_key, or put a TLS proxy before it");
    gw_http_tls_free(tls);
    if (c->security.keys_file[0])
        check_readers(k, c->security.keys_file);
    if (c->security.tls_key[0])
        check_readers(k, c->security.tls_key);
}

static void check_log(struct check *k)
{
    char folder[CFG_PATH_TEXT];
    const char *file = k->c->log.file, *slash = strrchr(file, '/');
    if (!file[0])
        return;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - file) + (slash == file) : 1, slash ? file : ".");
    const char *what = access(file, F_OK) == 0 ? file : folder;
    if (access(what, W_OK))
        cli_check_say(k, PROBLEM, "log", "%s: %s; log.file names a file that can be written", what, strerror(errno));
    else
        cli_check_say(k, FINE, "log", "records go to %s", file);
}

static void say_rdma(void *ctx, enum tp_rdma_finding how, const char *text)
{
    /* The line says already what it is about. */
    if (strncmp(text, "rdma: ", 6) == 0)
        text += 6;
    cli_check_say(ctx, how == TP_RDMA_PROBLEM ? PROBLEM : how == TP_RDMA_WARNING ? WARNING : FINE, "rdma", "%s", text);
}

static void say_cluster(void *ctx, enum cli_finding how, const char *part, const char *text)
{
    cli_check_say(ctx, how == CLI_PROBLEM ? PROBLEM : how == CLI_WARNING ? WARNING : FINE, part, "%s", text);
}

static void check_cluster(struct check *k)
{
    char numerics[64];
    snprintf(numerics, sizeof numerics, "cpu/%s", k->backend ? k->backend : "");
    cli_check_cluster(&(struct cli_check_cluster){.c = k->c,
                                                  .node = k->node,
                                                  .file = k->file,
                                                  .peers = k->peers,
                                                  .timeout_s = k->timeout_s,
                                                  .revision = k->revision,
                                                  .numerics = k->backend ? numerics : NULL,
                                                  .replay = k->replay,
                                                  .say = say_cluster,
                                                  .ctx = k});
}

/* ---- the command ---- */

static void check_node(struct check *k)
{
    cli_check_say(k, FINE, "config", "node \"%s\"", k->node->name);
    check_model(k);
    check_cpu(k);
    if (k->node->roles & CFG_ROLE_GATEWAY)
        check_files(k);
    if (address_of(k->node)[0]) {
        check_port(k);
        check_security(k);
    }
    check_log(k);
    cli_check_tiers(k);
    check_cluster(k);
    if (k->rdma || k->c->transport.provider == CFG_PROVIDER_RDMA)
        cli_check_rdma(k->c, k->node, k->slot_bytes, k->rdma_known, say_rdma, k);
    k->rdma_known = true;
}

static int conclude(const struct check *k)
{
    printf("%d problem%s, %d warning%s\n", k->problems, k->problems == 1 ? "" : "s", k->warnings,
           k->warnings == 1 ? "" : "s");
    return k->config_wrong ? CLI_USAGE : k->problems ? CLI_FAILED : CLI_OK;
}

/* Every node that `weft up` would start here, and what they need together. */
static int check_all(struct check *k)
{
    int which[CFG_NODES_MAX], n, cpus = mdl_team_default_threads();
    struct cfg_error err;
    if (sup_local(k->c, which, &n, &err))
        return cli_error(CLI_USAGE, "check: %s", err.msg);
    for (int i = 0; i < n; i++) {
        k->node = &k->c->nodes[which[i]];
        k->peers = i + 1 < n ? CLI_PEERS_NONE : CLI_PEERS_ELSEWHERE;
        check_node(k);
        putchar('\n');
    }
    cli_check_memory_of_all(k, n);
    if (k->threads > cpus)
        cli_check_say(k, WARNING, "cpu",
                      "%d threads of the %d nodes of this machine share %d usable CPUs; set compute.threads (1 or more "
                      "for each node)",
                      k->threads, n, cpus);
    return conclude(k);
}

int cli_check_run(int argc, char **argv)
{
    static struct cfg_config config;
    const char *name = NULL;
    bool rdma = false;
    int timeout_s = PEER_TIMEOUT_S;
    struct cfg_report report = {0};
    const struct cli_option options[] = {
        {CLI_TEXT, "node", 0, &name, "NAME", "this node of the file alone (every one that weft up would start here)"},
        {CLI_INT, "timeout", 0, &timeout_s, "SECONDS", "how long the other nodes may take to answer (2)", 1, 600},
        {CLI_FLAG, "rdma", 0, &rdma, NULL, "look at RDMA devices, ports, GIDs and limits too"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "check [--node NAME] [--rdma] [--timeout SECONDS] FILE.conf",
        .intro = "Looks whether `weft serve` could run with this file on this machine: configuration, model, memory, "
                 "limits,\n"
                 "CPU, port, keys, certificate, log, folders of tiers; of a deployment also its secret and the other\n"
                 "nodes. Exit status 0: yes; 1: a problem with model or machine; 2: the file is wrong. Warnings do\n"
                 "not count.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    int first, r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    r = cfg_config_load(argv[first], &config, &report);
    cfg_report_print(&report, stderr);
    cfg_report_free(&report);
    if (r)
        return CLI_USAGE;
    struct check k = {.c = &config,
                      .rdma = rdma,
                      .file = argv[first],
                      .timeout_s = timeout_s,
                      .node = name                  ? cfg_config_node(&config, name)
                              : config.n_nodes == 1 ? &config.nodes[0]
                                                    : NULL};
    if (!k.node && name)
        return cli_error(CLI_USAGE, "check: there is no node \"%s\" in %s", name, argv[first]);
    if (!k.node)
        return check_all(&k);
    check_node(&k);
    return conclude(&k);
}
