/* `weft kv`: what the durable tiers of a configuration hold, without a server. Opens the files as the server would. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "config/config.h"
#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"
#include "model/config.h"
#include "model/kv.h"

enum { BATCH = 16, DROP_BATCH = 65536, DROPS_PER_S = 8, DEPTH = 128, US_PER_S = 1000000, WAIT_MS = 100, LOOK_S = 60 };

enum verb { LS, STAT, VERIFY, DROP };
enum which { SSD, SHARED };

struct tool {
    const struct cfg_config *c;
    enum which which;
    const char *path; /* of the tier's files */
    char node_path[CFG_PATH_TEXT];
    int64_t size; /* of the ssd tier */
    struct kv_layout layout;
    struct kv_storage *storage;
    struct kv_tier *tier;
    struct kv_tier_block *block; /* every block of the tier */
    size_t n, cap;
    bool no_memory;
    uint8_t *memory; /* BATCH blocks */
};

static void on_log(void *ctx, bool warning, const char *text)
{
    (void)ctx;
    if (warning)
        fprintf(stderr, "weft: %s\n", text);
}

static int make_layout(struct tool *k, struct cfg_error *err)
{
    struct mdl_config *m = malloc(sizeof *m);
    struct mdl_kv_layout l;
    size_t bytes[MDL_MAX_SOURCES];
    if (!m)
        return cfg_error_set(err, ENOMEM, "out of memory");
    int r = mdl_config_load(k->c->model.path, m, err);
    if (!r)
        r = mdl_kv_layout_init(m, k->c->kv.block_tokens, &l, err);
    for (int i = 0; !r && i < m->n_kv_sources; i++)
        bytes[i] = l.source[i].bytes;
    if (!r)
        r = kv_layout_init(KV_FORMAT_ROWS, (uint32_t)l.block_tokens, bytes, m->n_kv_sources, &k->layout, err);
    free(m);
    return r;
}

static int open_ssd(struct tool *k, struct cfg_error *err)
{
    const struct kv_ssd_params p = {.storage = k->storage,
                                    .folder = k->path,
                                    .layout = k->layout,
                                    .bytes = k->size,
                                    .reserve = k->c->kv.ssd.reserve,
                                    .keep_room = true,
                                    .direct = k->c->kv.ssd.direct,
                                    .clock = kv_clock_system,
                                    .log = on_log};
    return kv_ssd_new(&p, &k->tier, err);
}

/* A reader that writes and removes nothing, unless it drops: then segments without blocks go, too. */
static int open_shared(struct tool *k, bool drops, struct cfg_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "tool%d", (int)getpid());
    const struct kv_shared_params p = {.storage = k->storage,
                                       .folder = k->path,
                                       .node = name,
                                       .layout = k->layout,
                                       .bytes = drops ? INT64_MAX / 4 : k->c->kv.shared.size,
                                       .segment_bytes = k->c->kv.shared.segment,
                                       .seal_ns = INT64_MAX / 2,
                                       .poll_ns = INT64_MAX / 2,
                                       .orphan_ns = INT64_MAX / 2,
                                       .removals_per_s = drops ? DROPS_PER_S : 0,
                                       .direct = k->c->kv.shared.direct,
                                       .clock = kv_clock_system,
                                       .log = on_log};
    return kv_shared_new(&p, &k->tier, err);
}

/* Until the index is in memory. */
static int settle(struct tool *k, struct cfg_error *err)
{
    struct kv_tier_stats s;
    int64_t end = kv_clock_system.now(NULL) + INT64_C(1000000000) * LOOK_S;
    for (;;) {
        k->tier->ops->tick(k->tier);
        k->storage->ops->wait(k->storage, WAIT_MS);
        k->tier->ops->stat(k->tier, &s);
        if (!s.rebuilding)
            return 0;
        if (kv_clock_system.now(NULL) > end)
            return cfg_error_set(err, ETIMEDOUT, "the index was not read within %d s", LOOK_S);
    }
}

/* Whose files: this configuration's own, or those of one of its kv nodes. */
static int find_files(struct tool *k, const char *node, struct cfg_error *err)
{
    const struct cfg_config *c = k->c;
    const struct cfg_node *n = node ? cfg_config_node(c, node) : NULL;
    const char *path = node ? c->kv.nodes.path : k->which == SSD ? c->kv.ssd.path : c->kv.shared.path;
    if (node && (!n || !(n->roles & CFG_ROLE_KV)))
        return cfg_error_set(err, EINVAL, "the configuration has no node \"%s\" with the role kv", node);
    if (!path[0])
        return node ? cfg_error_set(err, EINVAL, "the configuration has no kv.nodes.path: its kv nodes keep no files")
                    : cfg_error_set(err, EINVAL,
                                    "the configuration has no kv.%s.path; give the folder there, or look at the other "
                                    "tier with --tier %s",
                                    k->which == SSD ? "ssd" : "shared", k->which == SSD ? "shared" : "ssd");
    k->size = node ? c->kv.nodes.size : c->kv.ssd.size;
    k->path = node ? k->node_path : path;
    return node && cfg_kv_folder(c, n, k->node_path, sizeof k->node_path)
               ? cfg_error_set(err, EINVAL, "kv.nodes.path is too long")
               : 0;
}

static int open_tier(struct tool *k, enum verb verb, const char *node, struct cfg_error *err)
{
    int r = find_files(k, node, err);
    if (!r)
        r = make_layout(k, err);
    if (!r)
        r = kv_storage_uring_new(k->path, DEPTH, &k->storage, err);
    if (!r)
        r = k->which == SSD ? open_ssd(k, err) : open_shared(k, verb == DROP, err);
    if (r == -EAGAIN)
        cfg_error_set(
            err, EAGAIN,
            "%s: a server uses these files; ask it (/metrics, weft status --json), or look at them when it has "
            "ended",
            k->path);
    if (!r)
        r = settle(k, err);
    k->memory = r ? NULL : aligned_alloc(KV_PAGE, BATCH * k->layout.block_bytes);
    return r || k->memory ? r : cfg_error_set(err, ENOMEM, "out of memory");
}

static void on_done(struct kv_tier_op *op)
{
    *(bool *)op->ctx = true;
}

static void run(struct tool *k, void (*verb)(struct kv_tier *, struct kv_tier_op *), struct kv_tier_block *block, int n,
                struct kv_tier_op *op)
{
    bool done = false;
    *op = (struct kv_tier_op){.block = block, .n = n, .done = on_done, .ctx = &done};
    verb(k->tier, op);
    while (!done) {
        k->tier->ops->tick(k->tier);
        k->storage->ops->wait(k->storage, WAIT_MS);
    }
}

static void print_key(const struct kv_key *key)
{
    for (int i = 0; i < KV_KEY_BYTES; i++)
        printf("%02x", key->b[i]);
}

static void on_print(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s)
{
    (void)ctx;
    print_key(key);
    printf(" %s %" PRId64 "\n", info->taint == KV_CLEAN ? "clean" : "tainted", age_s);
}

static void on_collect(void *ctx, const struct kv_key *key, const struct kv_block_info *info, int64_t age_s)
{
    struct tool *k = ctx;
    (void)info;
    (void)age_s;
    if (k->n == k->cap) {
        size_t cap = k->cap ? 2 * k->cap : 1024;
        struct kv_tier_block *p = realloc(k->block, cap * sizeof *p);
        if (!p) {
            k->no_memory = true;
            return;
        }
        k->block = p;
        k->cap = cap;
    }
    k->block[k->n++] = (struct kv_tier_block){.key = *key};
}

/* Files of a shared folder that hold nothing for this configuration. */
static void print_unusable(struct tool *k, FILE *f)
{
    static const char *const why[KV_UNUSABLE_KINDS] = {"other model or layout", "damaged", "cannot be read now"};
    struct kv_tier_stats s;
    k->tier->ops->stat(k->tier, &s);
    for (int i = 0; i < KV_UNUSABLE_KINDS; i++)
        if (s.unusable[i].files)
            fprintf(f, "unusable        %" PRIu64 " files, %" PRIu64 " bytes: %s\n", s.unusable[i].files,
                    s.unusable[i].bytes, why[i]);
}

static int print_stat(struct tool *k)
{
    struct kv_tier_stats s;
    k->tier->ops->stat(k->tier, &s);
    printf("tier            %s\nblocks          %" PRIu64 "\nbytes           %" PRIu64 "\ncapacity        %" PRIu64
           "\nblock           %d tokens, %d sources, %zu bytes\nlayout          %016" PRIx64 "\n",
           k->tier->ops->name, s.blocks, s.bytes, s.capacity, (int)k->layout.block_tokens, k->layout.n_sources,
           k->layout.block_bytes, kv_layout_id(&k->layout));
    print_unusable(k, stdout);
    return CLI_OK;
}

/* Reads every block. What does not fit its checksum is named; the tier drops it. A file that is damaged as a whole
 * holds no block that could be named. */
static int verify(struct tool *k)
{
    size_t bad = 0;
    struct kv_tier_stats s;
    k->tier->ops->each(k->tier, on_collect, k);
    if (k->no_memory)
        return cli_error(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < k->n; i++) {
        struct kv_tier_op op;
        k->block[i].bytes = k->memory;
        run(k, k->tier->ops->read, &k->block[i], 1, &op);
        if (op.count == 1)
            continue;
        bad++;
        print_key(&k->block[i].key);
        printf(" %s\n", op.status == -EBADMSG ? "checksum" : strerror(-op.status));
    }
    printf("%zu blocks, %zu bad%s\n", k->n, bad, bad && k->which == SSD ? ", dropped" : "");
    k->tier->ops->stat(k->tier, &s);
    return bad || s.unusable[KV_DAMAGED].files || s.unusable[KV_UNREADABLE].files ? CLI_FAILED : CLI_OK;
}

static bool parse_key(const char *text, struct kv_key *out)
{
    if (strlen(text) != 2 * KV_KEY_BYTES || strspn(text, "0123456789abcdef") != 2 * KV_KEY_BYTES)
        return false;
    for (int i = 0; i < KV_KEY_BYTES; i++) {
        unsigned v;
        sscanf(text + 2 * i, "%2x", &v);
        out->b[i] = (uint8_t)v;
    }
    return true;
}

static int drop(struct tool *k, int n, char **keys, bool all)
{
    size_t dropped = 0;
    if (all)
        k->tier->ops->each(k->tier, on_collect, k);
    for (int i = 0; i < n; i++) {
        struct kv_key key;
        if (!parse_key(keys[i], &key))
            return cli_error(CLI_USAGE, "\"%s\" is no key; `weft kv ls` prints them", keys[i]);
        on_collect(k, &key, &(struct kv_block_info){0}, 0);
    }
    if (k->no_memory)
        return cli_error(CLI_FAILED, "out of memory");
    for (size_t i = 0; i < k->n; i += DROP_BATCH) {
        struct kv_tier_op op;
        run(k, k->tier->ops->drop, k->block + i, k->n - i < DROP_BATCH ? (int)(k->n - i) : (int)DROP_BATCH, &op);
        dropped += (size_t)op.count;
        if (op.status < 0)
            return cli_error(CLI_FAILED, "blocks could not be dropped for good: %s", strerror(-op.status));
    }
    printf("%zu blocks dropped\n", dropped);
    return CLI_OK;
}

int cli_kv_run(int argc, char **argv)
{
    static struct cfg_config config;
    static const char *const verbs[] = {"ls", "stat", "verify", "drop", NULL}, *const tiers[] = {"ssd", "shared", NULL};
    struct cfg_report report = {0};
    struct cfg_error err = {{0}};
    const char *node = NULL;
    int which = SSD, verb, first;
    bool all = false;
    const struct cli_option options[] = {
        {CLI_CHOICE, "tier", 0, &which, "TIER", "ssd (the default) or shared", .choices = tiers},
        {CLI_TEXT, "node", 0, &node, "NAME", "the ssd tier of this kv node, in place of the configuration's own"},
        {CLI_FLAG, "all", 0, &all, NULL, "drop: every block"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "kv ls|stat|verify FILE.conf\nkv drop FILE.conf --all | KEY...",
        .intro =
            "Looks at the blocks that a configuration's durable tiers keep.\n"
            "ls: keys, taint and age in seconds. stat: how much. Both tell of files of a shared folder that are of no\n"
            "use to this configuration. verify: reads every block and drops what does not\n"
            "fit its checksum (in a shared folder it only names them); exit status 1 when there was any. drop: "
            "removes\n"
            "blocks for good, those of a shared folder for all processes that use it, also while they run; what these "
            "have\n"
            "in tiers of their own stays there, and may be stored again. Bytes of what was dropped stay in the ssd\n"
            "tier's files until others are written there, in a file of a shared folder until a server removes it:\n"
            "when all of its blocks are dropped, it is old, or room is needed.\n"
            "--node NAME, on the machine of that node: the files of a kv node.\n"
            "The ssd tier must not be in use by a server, which reports the same figures under /metrics, or to\n"
            "`weft status --json`.",
        .options = options,
        .min_args = 2,
        .max_args = -1,
    };
    int r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    if (cli_parse_choice(argv[first], "the first argument", verbs, &verb, &err))
        return cli_error(CLI_USAGE, "%s", err.msg);
    if (node && which == SHARED)
        return cli_error(CLI_USAGE, "a kv node has no shared tier; leave --tier or --node out");
    if (verb != DROP && (all || argc - first > 2))
        return cli_error(CLI_USAGE, "%s takes one file and nothing more; `weft kv --help` explains", verbs[verb]);
    if (verb == DROP && all == (argc - first > 2))
        return cli_error(CLI_USAGE, "drop takes keys, or --all");
    r = cfg_config_load(argv[first + 1], &config, &report);
    cfg_report_print(&report, stderr);
    cfg_report_free(&report);
    if (r)
        return CLI_USAGE;
    struct tool k = {.c = &config, .which = (enum which)which};
    r = open_tier(&k, (enum verb)verb, node, &err);
    if (r)
        r = cli_error(r == -EINVAL ? CLI_USAGE : CLI_FAILED, "%s", err.msg);
    else if (verb == LS)
        k.tier->ops->each(k.tier, on_print, NULL);
    else
        r = verb == STAT     ? print_stat(&k)
            : verb == VERIFY ? verify(&k)
                             : drop(&k, argc - first - 2, argv + first + 2, all);
    if (k.tier && verb != STAT && (!r || verb == VERIFY))
        print_unusable(&k, stderr);
    if (k.tier)
        k.tier->ops->free(k.tier);
    kv_storage_free(k.storage);
    free(k.block);
    free(k.memory);
    return r;
}
