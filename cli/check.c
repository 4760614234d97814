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
#include "cli/check_cluster.h"
#include "cli/check_rdma.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "config/config.h"
#include "config/units.h"
#include "model/backend.h"
#include "model/checkpoint.h"
#include "model/info.h"
#include "model/kv.h"
#include "model/team.h"
#include "model/tokenizer.h"

struct check {
    const struct cfg_config *c;
    const struct cfg_node *node;
    int problems, warnings;
    bool config_wrong, rdma;
    const char *file;
    int timeout_s;       /* for other nodes to answer */
    uint64_t revision;   /* of the model; 0: not known */
    const char *backend; /* name of the CPU path; NULL: none */
};

enum { PEER_TIMEOUT_S = 2 };
enum finding { FINE, WARNING, PROBLEM };

static void say(struct check *k, enum finding how, const char *part, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void say(struct check *k, enum finding how, const char *part, const char *fmt, ...)
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

static int64_t number_in(const char *path, const char *name, int64_t scale)
{
    char line[256];
    long long v = -1;
    FILE *f = fopen(path, "re");
    size_t n = strlen(name);
    while (f && v < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, name, n) && sscanf(line + n, " %lld", &v) != 1)
            v = -1;
    if (f)
        fclose(f);
    return v < 0 ? -1 : (int64_t)v * scale;
}

/* Bytes that a new process could use: of the machine, or less where a control group says so. -1: not known. */
static int64_t memory_available(void)
{
    int64_t machine = number_in("/proc/meminfo", "MemAvailable:", 1024),
            group = number_in("/sys/fs/cgroup/memory.max", "", 1);
    int64_t used = number_in("/sys/fs/cgroup/memory.current", "", 1);
    if (group >= 0 && used >= 0 && group - used < machine)
        return group - used > 0 ? group - used : 0;
    return machine;
}

static void check_cpu(struct check *k)
{
    static const char *const paths[] = {NULL, "scalar", "avx2", "avx512"};
    const struct cfg_config *c = k->c;
    const struct mdl_backend *be;
    struct cfg_error err;
    int cpus = mdl_team_default_threads(), threads = c->compute.threads ? c->compute.threads : cpus;
    const char *name = getenv("WEFT_CPU") ? getenv("WEFT_CPU") : paths[c->compute.cpu];
    if (mdl_backend_select(name, &be, &err))
        say(k, PROBLEM, "cpu", "%s", err.msg);
    else
        k->backend = be->name;
    if (!k->backend)
        return;
    if (threads > cpus)
        say(k, WARNING, "cpu", "%s path, %d threads on %d usable CPUs; set compute.threads to 0 or %d", be->name,
            threads, cpus, cpus);
    else
        say(k, FINE, "cpu", "%s path, %d threads on %d usable CPUs", be->name, threads, cpus);
}

static void check_files(struct check *k)
{
    struct rlimit limit;
    /* A connection may need a second descriptor while its client is watched. */
    rlim_t need = 2 * (rlim_t)k->c->limits.connections + 64;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < need)
        say(k, PROBLEM, "files",
            "limits.connections = %d needs up to %llu descriptors, %llu are allowed; raise the limit (ulimit -Hn, "
            "LimitNOFILE= of a "
            "systemd unit) or lower limits.connections",
            k->c->limits.connections, (unsigned long long)need, (unsigned long long)limit.rlim_max);
    else
        say(k, FINE, "files", "%d connections need up to %llu descriptors of %llu", k->c->limits.connections,
            (unsigned long long)need, (unsigned long long)limit.rlim_max);
}

/* ---- the model and its memory ---- */

static void memory_line(struct check *k, const char *what, int64_t bytes)
{
    char text[CFG_UNIT_TEXT_MAX];
    snprintf(text, sizeof text, "%.1f MiB", (double)bytes / (1 << 20));
    say(k, FINE, "memory", "%12s  %s", text, what);
}

static void check_memory(struct check *k, const struct mdl_config *m)
{
    const struct cfg_config *c = k->c;
    struct mdl_kv_layout layout;
    struct mdl_info_node n;
    struct cfg_error err;
    if (mdl_kv_layout_init(m, c->kv.block_tokens, &layout, &err)) {
        say(k, PROBLEM, "kv", "%s", err.msg);
        return;
    }
    int64_t pages = c->kv.memory / (int64_t)layout.block_bytes,
            context = c->model.context ? c->model.context : m->max_position;
    if (pages < 2) {
        say(k, PROBLEM, "kv", "kv.memory holds %lld pages of %zu bytes; raise it, or lower kv.block_tokens",
            (long long)pages, layout.block_bytes);
        k->config_wrong = true;
        return;
    }
    bool tight = pages * c->kv.block_tokens < context;
    say(k, tight ? WARNING : FINE, "kv", "%lld pages of %d tokens hold %lld tokens in all; a sequence may have %lld%s",
        (long long)pages, c->kv.block_tokens, (long long)pages * c->kv.block_tokens, (long long)context,
        tight ? ": the context is cut to what fits, raise kv.memory" : "");
    const struct mdl_info_ask ask = {.role = MDL_ROLE_ALL,
                                     .context = context < m->max_position ? context : m->max_position,
                                     .requests = c->engine.decode_actors * c->engine.decode_streams +
                                                 c->engine.prefill_actors * c->engine.prefill_streams};
    if (mdl_info_node(m, &ask, &n, &err)) {
        say(k, PROBLEM, "memory", "%s", err.msg);
        return;
    }
    int64_t states = n.windows + n.draft_rings + n.tails + n.rollback + n.bridge_rows,
            weights = n.memory - states - n.global_kv;
    bool below = c->kv.ssd.path[0] || c->kv.shared.path[0];
    int64_t host = below && c->kv.write_behind > c->kv.host ? c->kv.write_behind : c->kv.host;
    int64_t rows = n.tables && c->engram.store == CFG_ENGRAM_HOST ? c->engram.cache : 0;
    int64_t need = weights + states + c->kv.memory + host + rows, have = memory_available();
    memory_line(k, "weights (mapped from their files)", weights);
    memory_line(k, "pages of key-value rows (kv.memory)", c->kv.memory);
    if (host)
        memory_line(k, "host tier (kv.host, at least kv.write_behind)", host);
    memory_line(k, "windows and rings of all sequences (streams of all decode and prefill actors)", states);
    if (n.tables && c->engram.store == CFG_ENGRAM_MAPPED)
        memory_line(k, "Engram tables, read row by row from mapped files; not counted as needed", n.tables);
    if (rows)
        memory_line(k, "rows of Engram tables (engram.cache)", rows);
    if (have < 0)
        say(k, WARNING, "memory", "how much is available cannot be told here; %.1f MiB are needed",
            (double)need / (1 << 20));
    else
        say(k, need > have ? PROBLEM : FINE, "memory", "%.1f MiB needed, %.1f MiB available%s",
            (double)need / (1 << 20), (double)have / (1 << 20),
            need > have ? "; lower kv.memory or engine.decode_streams, or use a larger machine" : "");
}

static void check_fit(struct check *k, const struct mdl_config *m)
{
    struct cfg_report report = {0};
    if (cfg_config_check_model(k->c, m->window, m->max_position, m->n_draft ? m->draft_block : 0, &report))
        k->config_wrong = true;
    for (size_t i = 0; i < report.count; i++)
        say(k, PROBLEM, "config", "%s:%d: %s. %s", report.problems[i].file, report.problems[i].line,
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
        say(k, PROBLEM, "engram", "%s", err.msg);
    else if (!rows)
        say(k, FINE, "engram",
            "%lld rows of %d tables are taken from the mapped checkpoint; a step waits for the disk where memory does "
            "not hold them",
            (long long)all, ck->config.n_engram);
    if (!r && rows) {
        kv_rows_stat(rows, &s);
        say(k, FINE, "engram",
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
    if (mdl_checkpoint_open(path, &ck, &err)) {
        say(k, PROBLEM, "model", "%s", err.msg);
        return;
    }
    say(k, FINE, "model", "%s, revision %016llx, %d layers, context of up to %d tokens", path,
        (unsigned long long)ck->revision, ck->config.n_layers, ck->config.max_position);
    if (mdl_tokenizer_load(path, &tok, &err)) {
        say(k, PROBLEM, "model", "%s", err.msg);
    } else {
        if (mdl_tokenizer_vocab_size(tok) > ck->config.vocab_size)
            say(k, PROBLEM, "model", "the tokenizer has %d ids, the model only %d; they do not belong together",
                mdl_tokenizer_vocab_size(tok), ck->config.vocab_size);
        mdl_tokenizer_free(tok);
    }
    k->revision = ck->revision;
    check_fit(k, &ck->config);
    check_memory(k, &ck->config);
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

static void check_port(struct check *k)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const char *listen_at = k->node->listen, *colon = strrchr(listen_at, ':');
    struct addrinfo *ai;
    char host[CFG_ADDRESS_TEXT];
    if (!colon)
        return;
    bool v6 = listen_at[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)(colon - listen_at) - 2 * v6, listen_at + v6);
    int r = getaddrinfo(host, colon + 1, &hints, &ai);
    if (r) {
        say(k, PROBLEM, "port", "%s: %s; give an address of this machine", listen_at, gai_strerror(r));
        return;
    }
    int e = try_bind(ai);
    freeaddrinfo(ai);
    if (e)
        say(k, PROBLEM, "port", "%s: %s%s", listen_at, strerror(e),
            e == EADDRINUSE ? "; stop the program that has it, or choose another port"
            : e == EACCES   ? "; ports below 1024 need a privilege, choose a higher one"
                            : "; give an address of this machine");
    else
        say(k, FINE, "port", "%s is free", listen_at);
}

static void check_readers(struct check *k, const char *file)
{
    struct stat st;
    if (stat(file, &st) == 0 && st.st_mode & 077)
        say(k, WARNING, "security", "%s can be read or written by others (mode %03o); chmod 600 it", file,
            (unsigned)st.st_mode & 0777);
}

static void check_security(struct check *k)
{
    const struct cfg_config *c = k->c;
    struct gw_keys keys = {0};
    struct ssl_ctx_st *tls = NULL;
    struct cfg_error err;
    bool loopback = !strncmp(k->node->listen, "127.", 4) || !strncmp(k->node->listen, "localhost:", 10) ||
                    !strncmp(k->node->listen, "[::1]", 5);
    if (c->security.keys_file[0] && gw_keys_load(&keys, c->security.keys_file, &err))
        say(k, PROBLEM, "security", "%s", err.msg);
    else if (c->security.keys_file[0])
        say(k, FINE, "security", "%d API keys in %s", keys.listed, c->security.keys_file);
    else if (!loopback)
        say(k, WARNING, "security",
            "%s can be reached from other machines and no API key is asked for; set security.keys_file",
            k->node->listen);
    gw_keys_free(&keys);
    if (c->security.tls_cert[0] && gw_http_tls_new(c->security.tls_cert, c->security.tls_key, &tls, &err))
        say(k, PROBLEM, "security", "%s", err.msg);
    else if (c->security.tls_cert[0])
        say(k, FINE, "security", "TLS with %s", c->security.tls_cert);
    else if (!loopback)
        say(k, WARNING, "security",
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
        say(k, PROBLEM, "log", "%s: %s; log.file names a file that can be written", what, strerror(errno));
    else
        say(k, FINE, "log", "records go to %s", file);
}

static void check_tier(struct check *k, const char *key, const char *folder)
{
    if (!folder[0])
        return;
    if (access(folder, R_OK | W_OK | X_OK))
        say(k, PROBLEM, "kv", "%s: %s; %s names an existing folder that can be written", folder, strerror(errno), key);
    else
        say(k, FINE, "kv", "blocks are kept in %s", folder);
}

static void say_rdma(void *ctx, enum tp_rdma_finding how, const char *text)
{
    say(ctx, how == TP_RDMA_PROBLEM ? PROBLEM : how == TP_RDMA_WARNING ? WARNING : FINE, "rdma", "%s", text);
}

static void say_cluster(void *ctx, enum cli_finding how, const char *part, const char *text)
{
    say(ctx, how == CLI_PROBLEM ? PROBLEM : how == CLI_WARNING ? WARNING : FINE, part, "%s", text);
}

static void check_cluster(struct check *k)
{
    char numerics[64];
    snprintf(numerics, sizeof numerics, "cpu/%s", k->backend ? k->backend : "");
    cli_check_cluster(&(struct cli_check_cluster){.c = k->c,
                                                  .node = k->node,
                                                  .file = k->file,
                                                  .timeout_s = k->timeout_s,
                                                  .revision = k->revision,
                                                  .numerics = k->backend ? numerics : NULL,
                                                  .say = say_cluster,
                                                  .ctx = k});
}

/* Tiers on disk read and write pages and the host tier's memory in place, where the kernel may lock them. */
static void check_locked(struct check *k)
{
    const struct cfg_config *c = k->c;
    struct rlimit limit;
    int64_t need = c->kv.memory + (c->kv.write_behind > c->kv.host ? c->kv.write_behind : c->kv.host);
    if (!c->kv.ssd.path[0] || getrlimit(RLIMIT_MEMLOCK, &limit))
        return;
    if (limit.rlim_cur == RLIM_INFINITY || (int64_t)limit.rlim_cur >= need || geteuid() == 0)
        say(k, FINE, "memlock", "%.1f MiB for io_uring may be locked", (double)need / (1 << 20));
    else
        say(k, WARNING, "memlock",
            "%.1f MiB are registered with io_uring, %.1f MiB may be locked; without, every transfer costs a little "
            "more: "
            "raise the limit (ulimit -l, LimitMEMLOCK= of a systemd unit)",
            (double)need / (1 << 20), (double)limit.rlim_cur / (1 << 20));
}

/* ---- the command ---- */

static int check_node(struct check *k)
{
    say(k, FINE, "config", "node \"%s\"", k->node->name);
    check_model(k);
    check_cpu(k);
    check_files(k);
    if (k->node->roles & CFG_ROLE_GATEWAY) {
        check_port(k);
        check_security(k);
    }
    check_log(k);
    check_tier(k, "kv.ssd.path", k->c->kv.ssd.path);
    check_tier(k, "kv.shared.path", k->c->kv.shared.path);
    check_locked(k);
    check_cluster(k);
    if (k->rdma || k->c->transport.provider == CFG_PROVIDER_RDMA)
        cli_check_rdma(k->c, k->node, say_rdma, k);
    printf("%d problem%s, %d warning%s\n", k->problems, k->problems == 1 ? "" : "s", k->warnings,
           k->warnings == 1 ? "" : "s");
    return k->config_wrong ? CLI_USAGE : k->problems ? CLI_FAILED : CLI_OK;
}

int cli_check_run(int argc, char **argv)
{
    static struct cfg_config config;
    const char *name = NULL;
    bool rdma = false;
    int timeout_s = PEER_TIMEOUT_S;
    struct cfg_report report = {0};
    const struct cli_option options[] = {
        {CLI_TEXT, "node", 0, &name, "NAME", "which node of the configuration"},
        {CLI_INT, "timeout", 0, &timeout_s, "SECONDS", "how long the other nodes may take to answer (2)", 1, 600},
        {CLI_FLAG, "rdma", 0, &rdma, NULL, "look at RDMA devices, ports, GIDs and limits too"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "check [--node NAME] [--rdma] [--timeout SECONDS] FILE.conf",
        .intro = "Looks whether `weft serve` could run with this file on this machine: configuration, model, memory, "
                 "limits,\n"
                 "CPU, port, keys, certificate, log. Exit status 0: yes; 1: a problem with model or machine; 2: the "
                 "file is\n"
                 "wrong. Warnings do not count.",
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
    if (!k.node)
        return cli_error(CLI_USAGE,
                         name ? "check: there is no node \"%s\" in %s"
                              : "check: there are several nodes; choose one with --node NAME%.0s%.0s",
                         name ? name : "", argv[first]);
    return check_node(&k);
}
