/* `weft model info DIR`: what a model weighs and what serving it takes, as a table or as JSON. Owns its checkpoint for
 * the length of one report. See model_info.h for who may call. */
#include "cli/model_info.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "model/checkpoint.h"
#include "model/info.h"

/* By enum mdl_role. */
static const char *const role_names[] = {"all", "prefill", "decode", "expert", NULL};

struct report {
    const char *dir;
    struct mdl_config config;
    struct mdl_info info;
    struct mdl_info_ask ask;
    struct mdl_info_node node;
    bool has_weights;
    uint64_t revision;
    int64_t vision_tensors, vision_bytes; /* only known when the weights are there */
};

/* 1234567 as "1,234,567". */
static const char *grouped(int64_t v, char out[32])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRId64, v), at = 0;
    for (int i = 0; i < n; i++) {
        out[at++] = digits[i];
        if ((n - 1 - i) % 3 == 0 && i + 1 < n && digits[i] != '-')
            out[at++] = ',';
    }
    out[at] = 0;
    return out;
}

static const char *human(int64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)bytes;
    int u = 0;
    for (; v >= 999.95 && u < 6; u++)
        v /= 1000;
    snprintf(out, 32, u ? "%.2f %s" : "%.0f %s", v, units[u]);
    return out;
}

static void title(const char *name)
{
    printf("\n%s\n", name);
}

static void row(const char *name, int64_t bytes, const char *note)
{
    char a[32], b[32];
    printf("  %-38s %12s %22s B%s%s\n", name, human(bytes, a), grouped(bytes, b), note ? "  " : "", note ? note : "");
}

/* A rate that is known per two tokens. */
static const char *per_token(int64_t per_2, char out[32])
{
    grouped(per_2 / 2, out);
    if (per_2 % 2)
        strcat(out, ".5");
    return out;
}

static void print_head(const struct report *r)
{
    const struct mdl_config *c = &r->config;
    printf("%s\n", r->dir);
    printf("  %d layers, width %d, %d heads of %d, window %d, %d experts (%d per token), vocabulary %d\n", c->n_layers,
           c->hidden, c->n_heads, c->head_dim, c->window, c->n_experts, c->topk_experts, c->vocab_size);
    if (c->cut >= 0)
        printf("  encoder: layers 0-%d, decoder: layers %d-%d\n", c->cut - 1, c->cut, c->n_layers - 1);
    else
        printf("  exact mode only: %s\n", c->cut_reason);
    if (r->has_weights)
        printf("  weights present and checked, revision %016" PRIx64 "\n", r->revision);
    else
        printf("  no weights here: sizes follow from config.json\n");
}

static void print_weights(const struct report *r)
{
    char a[32], b[32], c[32];
    printf("\n%-40s %12s %24s %12s\n", "weights, by class", "size", "exact", "tensors");
    for (int k = 0; k < MDL_CLASS_COUNT; k++)
        if (r->info.tensors[k])
            printf("  %-38s %12s %22s B %12s\n", mdl_class_name((enum mdl_class)k), human(r->info.bytes[k], a),
                   grouped(r->info.bytes[k], b), grouped(r->info.tensors[k], c));
    printf("  %-38s %12s %22s B %12s\n", "text model", human(r->info.total_bytes, a), grouped(r->info.total_bytes, b),
           grouped(r->info.total_tensors, c));
    if (r->has_weights)
        printf("  %-38s %12s %22s B %12s\n", "vision (not used)", human(r->vision_bytes, a),
               grouped(r->vision_bytes, b), grouped(r->vision_tensors, c));
    else if (r->config.has_vision)
        printf("  %-38s %12s\n", "vision (not used)", "unknown without weights");
    row("read per decoded token, no drafting", r->info.read_per_token, NULL);
}

static void print_kv(const struct report *r)
{
    const struct mdl_info *i = &r->info;
    char a[32], b[32];
    title("global KV only, bytes per token");
    for (int s = 0; s < i->n_sources; s++) {
        const struct mdl_info_source *src = &i->source[s];
        char name[48];
        snprintf(name, sizeof name, "layer %d, a row per %s", src->layer, src->ratio == 1 ? "token" : "2 tokens");
        printf("  %-38s %12s  (main %" PRId64 " + index %" PRId64 " per row)\n", name,
               per_token((src->main_row + src->index_row) * 2 / src->ratio, a), src->main_row, src->index_row);
    }
    printf("  %-38s %12s  (main %s + index keys ", "global KV", per_token(i->kv_per_2_tokens, a),
           per_token(i->kv_main_per_2_tokens, b));
    printf("%s)\n", per_token(i->kv_index_per_2_tokens, b));
    title("fixed per request, whatever its length");
    row("window rows of all layers", i->window_bytes, NULL);
    row("drafter rings", i->draft_ring_bytes, NULL);
    row("tails of unfinished pairs", i->tail_bytes, NULL);
    row("fixed", i->fixed_bytes, NULL);
    char note[64];
    snprintf(note, sizeof note, "(%d rows per layer, on top)", i->rollback_rows);
    row("rows kept for rollback", i->rollback_bytes, note);
}

static void print_node(const struct report *r)
{
    const struct mdl_info_node *n = &r->node;
    char a[32], b[32], name[160];
    if (r->ask.role == MDL_ROLE_EXPERT)
        snprintf(name, sizeof name, "an expert node: %d of %d experts of every layer", n->experts_per_layer,
                 r->config.n_experts);
    else
        snprintf(name, sizeof name, "%s, %s request%s of %s tokens%s",
                 r->ask.role == MDL_ROLE_ALL       ? "a node with all roles"
                 : r->ask.role == MDL_ROLE_PREFILL ? "a prefill node"
                                                   : "a decode node",
                 grouped(r->ask.requests, a), r->ask.requests == 1 ? "" : "s", grouped(r->ask.context, b),
                 r->ask.ep ? ", experts on other nodes" : "");
    title(name);
    for (int k = 0; k < MDL_CLASS_COUNT; k++)
        if (n->weights[k] && k != MDL_CLASS_ENGRAM_TABLE)
            row(mdl_class_name((enum mdl_class)k), n->weights[k], NULL);
    if (r->ask.role != MDL_ROLE_EXPERT) {
        const struct {
            const char *name;
            int64_t bytes;
        } state[] = {
            {"global KV", n->global_kv},
            {"window rows", n->windows},
            {"drafter rings", n->draft_rings},
            {"tails of unfinished pairs", n->tails},
            {"rows kept for rollback", n->rollback},
            {"rows kept at the cut for the replay", n->bridge_rows},
        };
        for (size_t i = 0; i < sizeof state / sizeof state[0]; i++)
            if (state[i].bytes)
                row(state[i].name, state[i].bytes, NULL);
    }
    row("in memory", n->memory, NULL);
    if (n->tables)
        row("Engram tables", n->tables, "(mapped file, read by row)");
    if (n->decoder_tail_weights)
        row("decoder weights for the prompt's tail", n->decoder_tail_weights,
            "(only when this node replays it itself)");
}

static void print_savings(const struct report *r)
{
    const struct mdl_info *i = &r->info;
    char a[32], b[32];
    title("what the structure saves");
    if (i->skipped_layers)
        printf("  prefill: %d of %d layers run for the last tokens of a prompt only\n", i->skipped_layers,
               r->config.n_layers);
    else
        printf("  prefill: no layer is skipped (%s)\n", r->config.cut_reason);
    if (i->kv_per_2_tokens)
        printf("  global KV: %s bytes per token instead of %s if every sparse layer kept its own rows (%.1f times)\n",
               per_token(i->kv_per_2_tokens, a), per_token(i->kv_unshared_per_2_tokens, b),
               (double)i->kv_unshared_per_2_tokens / (double)i->kv_per_2_tokens);
}

static void set_int(json_t *obj, const char *key, int64_t v)
{
    json_object_set_new(obj, key, json_integer(v));
}

static json_t *rate(int64_t per_2)
{
    return per_2 % 2 ? json_real((double)per_2 / 2) : json_integer(per_2 / 2);
}

/* "engram tables" as a key: "engram_tables". */
static void set_class(json_t *obj, int cls, json_t *v)
{
    char key[32];
    snprintf(key, sizeof key, "%s", mdl_class_name((enum mdl_class)cls));
    for (char *p = key; *p; p++)
        if (*p == ' ')
            *p = '_';
    json_object_set_new(obj, key, v);
}

static json_t *weights_json(const struct report *r)
{
    json_t *o = json_object(), *classes = json_object();
    for (int k = 0; k < MDL_CLASS_COUNT; k++) {
        json_t *c = json_object();
        set_int(c, "tensors", r->info.tensors[k]);
        set_int(c, "bytes", r->info.bytes[k]);
        set_class(classes, k, c);
    }
    json_object_set_new(o, "classes", classes);
    set_int(o, "tensors", r->info.total_tensors);
    set_int(o, "bytes", r->info.total_bytes);
    set_int(o, "read_per_token", r->info.read_per_token);
    json_object_set_new(o, "present", json_boolean(r->has_weights));
    if (r->has_weights) {
        char revision[24];
        snprintf(revision, sizeof revision, "%016" PRIx64, r->revision);
        json_object_set_new(o, "revision", json_string(revision));
        set_int(o, "vision_tensors", r->vision_tensors);
        set_int(o, "vision_bytes", r->vision_bytes);
    }
    return o;
}

static json_t *kv_json(const struct mdl_info *i)
{
    json_t *o = json_object(), *sources = json_array();
    for (int s = 0; s < i->n_sources; s++) {
        json_t *src = json_object();
        set_int(src, "layer", i->source[s].layer);
        set_int(src, "ratio", i->source[s].ratio);
        set_int(src, "main_row_bytes", i->source[s].main_row);
        set_int(src, "index_row_bytes", i->source[s].index_row);
        json_array_append_new(sources, src);
    }
    json_object_set_new(o, "sources", sources);
    json_object_set_new(o, "bytes_per_token", rate(i->kv_per_2_tokens));
    json_object_set_new(o, "main_bytes_per_token", rate(i->kv_main_per_2_tokens));
    json_object_set_new(o, "index_bytes_per_token", rate(i->kv_index_per_2_tokens));
    json_object_set_new(o, "unshared_bytes_per_token", rate(i->kv_unshared_per_2_tokens));
    return o;
}

static json_t *fixed_json(const struct mdl_info *i)
{
    json_t *o = json_object();
    set_int(o, "window_bytes", i->window_bytes);
    set_int(o, "draft_ring_bytes", i->draft_ring_bytes);
    set_int(o, "tail_bytes", i->tail_bytes);
    set_int(o, "bytes", i->fixed_bytes);
    set_int(o, "encoder_window_bytes", i->encoder_window_bytes);
    set_int(o, "rollback_rows", i->rollback_rows);
    set_int(o, "rollback_bytes", i->rollback_bytes);
    return o;
}

static json_t *node_json(const struct report *r)
{
    const struct mdl_info_node *n = &r->node;
    json_t *o = json_object(), *w = json_object();
    json_object_set_new(o, "role", json_string(role_names[r->ask.role]));
    set_int(o, "ep", r->ask.ep);
    if (r->ask.role != MDL_ROLE_EXPERT) {
        set_int(o, "context", r->ask.context);
        set_int(o, "requests", r->ask.requests);
    }
    for (int k = 0; k < MDL_CLASS_COUNT; k++)
        if (k != MDL_CLASS_ENGRAM_TABLE)
            set_class(w, k, json_integer(n->weights[k]));
    json_object_set_new(o, "weights", w);
    set_int(o, "experts_per_layer", n->experts_per_layer);
    set_int(o, "global_kv", n->global_kv);
    set_int(o, "windows", n->windows);
    set_int(o, "draft_rings", n->draft_rings);
    set_int(o, "tails", n->tails);
    set_int(o, "rollback", n->rollback);
    set_int(o, "bridge_rows", n->bridge_rows);
    set_int(o, "memory_bytes", n->memory);
    set_int(o, "engram_table_bytes", n->tables);
    set_int(o, "decoder_tail_weights", n->decoder_tail_weights);
    return o;
}

static int print_json(const struct report *r)
{
    const struct mdl_config *c = &r->config;
    json_t *root = json_object();
    json_object_set_new(root, "model", json_string(r->dir));
    set_int(root, "layers", c->n_layers);
    set_int(root, "cut", c->cut);
    if (c->cut < 0)
        json_object_set_new(root, "cut_reason", json_string(c->cut_reason));
    set_int(root, "prefill_skipped_layers", r->info.skipped_layers);
    json_object_set_new(root, "weights", weights_json(r));
    json_object_set_new(root, "global_kv", kv_json(&r->info));
    json_object_set_new(root, "fixed_per_request", fixed_json(&r->info));
    json_object_set_new(root, "node", node_json(r));
    char *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    if (!text)
        return cli_error(CLI_FAILED, "out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

static bool has_file(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    bool found = false;
    if (path) {
        snprintf(path, n, "%s/%s", dir, name);
        found = !access(path, F_OK);
    }
    free(path);
    return found;
}

static int add_vision(void *arg, const struct mdl_tensor *t)
{
    struct report *r = arg;
    if (!strncmp(t->name, "vision.", 7) || !strncmp(t->name, "aligner.", 8) || !strncmp(t->name, "image_", 6)) {
        r->vision_tensors++;
        r->vision_bytes += (int64_t)t->bytes;
    }
    return 0;
}

/* Config alone, or the whole checkpoint where weights lie beside it. */
static int load(struct report *r, struct cfg_error *err)
{
    r->has_weights = has_file(r->dir, "model.safetensors") || has_file(r->dir, "model.safetensors.index.json");
    if (!r->has_weights)
        return mdl_config_load(r->dir, &r->config, err);
    struct mdl_checkpoint *ck;
    int rc = mdl_checkpoint_open(r->dir, &ck, err);
    if (rc)
        return rc;
    r->config = ck->config;
    r->revision = ck->revision;
    mdl_checkpoint_each(ck, add_vision, r);
    mdl_checkpoint_close(ck);
    return 0;
}

static int info_run(int argc, char **argv)
{
    static struct report r;
    struct cfg_error err = {{0}};
    bool json = false;
    int role = MDL_ROLE_ALL, first;
    memset(&r, 0, sizeof r);
    r.ask.requests = 1;
    const struct cli_option options[] = {
        {CLI_CHOICE, "role", 0, &role, "ROLE",
         "what a node of this role holds: prefill, decode, expert, or all in one (default)", .choices = role_names},
        {CLI_INT, "ep", 0, &r.ask.ep, "N",
         "the routed experts are spread over N expert nodes (default: on the node itself)", 1, 1 << 20},
        {CLI_INT64, "context", 0, &r.ask.context, "N", "tokens of one request (default: the model's longest)", 1, 1e12},
        {CLI_INT64, "requests", 0, &r.ask.requests, "N", "requests held at once (default: 1)", 1, 1e12},
        {CLI_FLAG, "json", 0, &json, NULL, "one JSON object instead of tables"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "model info DIR [options]",
        .intro =
            "What is in a model: bytes by class, KV bytes per token, fixed bytes per request, what a node holds, what\n"
            "the structure saves. A folder with nothing but config.json is enough; weights are checked when they\n"
            "are there.",
        .options = options,
        .min_args = 1,
        .max_args = 1,
    };
    int status = cli_options_parse(&usage, argc, argv, &first);
    if (status != CLI_GO_ON)
        return status;
    r.dir = argv[first];
    r.ask.role = (enum mdl_role)role;
    if (load(&r, &err))
        return cli_error(CLI_FAILED, "%s", err.msg);
    if (!r.ask.context)
        r.ask.context = r.config.max_position;
    if (mdl_info_node(&r.config, &r.ask, &r.node, &err))
        return cli_error(CLI_USAGE, "%s", err.msg);
    mdl_info_compute(&r.config, &r.info);
    if (json)
        return print_json(&r);
    print_head(&r);
    print_weights(&r);
    print_kv(&r);
    print_node(&r);
    print_savings(&r);
    return CLI_OK;
}

int cli_model_run(int argc, char **argv)
{
    static char info_name[] = "model info";
    bool help = argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
    if (!help && (argc < 2 || strcmp(argv[1], "info") != 0))
        return cli_error(CLI_USAGE, "model: expected a report, and there is one: info; `weft model --help` explains");
    if (!help) {
        argv[1] = info_name;
        argv++;
        argc--;
    }
    return info_run(argc, argv);
}
