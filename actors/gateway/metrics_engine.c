/* Metrics of the engine's actors as they last reported themselves (FIGURES): where prompts' tokens came from, how long
 * blocks of the device live, the hand-off between nodes, the expert exchange. Every series is there at zero. Of the io
 * worker's thread. */
#include <stdlib.h>
#include <string.h>

#include "actors/exchange.h"
#include "actors/figures.h"
#include "actors/gateway/bytes.h"
#include "actors/gateway/gateway.h"
#include "config/config.h"
#include "kvtiers/device.h"

/* Of one actor; a restarted one begins at zero, so its predecessor's totals stay as `past`. */
struct part {
    struct act_addr from;
    uint32_t kind;
    uint64_t now[ACT_FIGURES_MOST], past[ACT_FIGURES_MOST];
};

struct gw_figures {
    struct part *part;
    int n;
    uint64_t sum[ACT_FIGURES_KINDS][ACT_FIGURES_MOST];
};

static struct part *find_part(struct gw_figures *f, struct act_addr from, uint32_t kind)
{
    for (int i = 0; i < f->n; i++)
        if (f->part[i].kind == kind && f->part[i].from.index == from.index && f->part[i].from.peer == from.peer)
            return &f->part[i];
    struct part *more = realloc(f->part, ((size_t)f->n + 1) * sizeof *more);
    if (!more)
        return NULL;
    f->part = more;
    more += f->n++;
    *more = (struct part){.from = from, .kind = kind};
    return more;
}

/* What only says how things are now does not outlive its actor. */
static bool is_gauge(uint32_t kind, int at)
{
    return (kind == ACT_FIGURES_LANDING && at == ACT_LANDING_OPEN) ||
           (kind == ACT_FIGURES_SHARD && at == ACT_SHARD_WAITING) ||
           (kind == ACT_FIGURES_KV_NODE && at >= ACT_KV_NODE_WAITING);
}

void gw_take_engine_figures(struct gw_context *g, struct act_msg *m)
{
    size_t bytes;
    uint32_t kind = act_p_figures(m)->kind;
    const uint64_t *at = act_msg_tail(m, &bytes);
    int n = (int)(bytes / sizeof *at);
    if (!g->figures)
        g->figures = calloc(1, sizeof *g->figures);
    struct part *p =
        g->figures && kind < ACT_FIGURES_KINDS && n <= ACT_FIGURES_MOST ? find_part(g->figures, m->src, kind) : NULL;
    if (!p)
        return;
    bool other = !act_addr_equal(p->from, m->src);
    p->from = m->src;
    for (int i = 0; i < n; i++) {
        if (other && !is_gauge(kind, i))
            p->past[i] += p->now[i];
        p->now[i] = at[i];
    }
    uint64_t *sum = g->figures->sum[kind];
    memset(sum, 0, sizeof g->figures->sum[kind]);
    for (int k = 0; k < g->figures->n; k++)
        for (int i = 0; i < ACT_FIGURES_MOST && g->figures->part[k].kind == kind; i++)
            sum[i] += g->figures->part[k].now[i] + g->figures->part[k].past[i];
}

void gw_free_engine_figures(struct gw_context *g)
{
    if (g->figures)
        free(g->figures->part);
    free(g->figures);
    g->figures = NULL;
}

/* ---- the text ---- */

static const uint64_t *sums(const struct gw_context *g, enum act_figures_kind kind)
{
    static const uint64_t none[ACT_FIGURES_MOST];
    return g->figures ? g->figures->sum[kind] : none;
}

static void head(struct gw_bytes *b, const char *name, const char *type, const char *help)
{
    gw_bytes_printf(b, "# HELP weft_%s %s\n# TYPE weft_%s %s\n", name, help, name, type);
}

static void prompt_tokens(const struct gw_metrics *m, struct gw_bytes *b)
{
    const struct {
        const char *source;
        uint64_t tokens;
    } row[] = {{"computed", m->prompt_tokens - m->cached_tokens},
               {"device", m->cached_tokens - m->below_tokens},
               {"below", m->below_tokens}};
    head(b, "prompt_tokens_by_source_total", "counter",
         "Prompt tokens by where their rows came from: computed; device: pages and snapshots in memory; below: the "
         "tiers "
         "below the device.");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        gw_bytes_printf(b, "weft_prompt_tokens_by_source_total{source=\"%s\"} %llu\n", row[i].source,
                        (unsigned long long)row[i].tokens);
}

static void block_lives(const struct gw_context *g, struct gw_bytes *b)
{
    static const struct {
        const char *name, *help;
    } lives[KV_LIVES] = {
        [KV_LIFE_WHOLE] = {"kv_block_lifetime_seconds",
                           "From a block's finishing until its page was taken for another."},
        [KV_LIFE_IDLE] = {"kv_block_idle_before_evict_seconds",
                          "From a block's last use until its page was taken for another."},
        [KV_LIFE_GAP] = {"kv_block_reuse_gap_seconds", "From a use of a block to the next one."},
    };
    struct kv_life_times t[KV_LIVES];
    _Static_assert(sizeof t <= ACT_FIGURES_MOST * sizeof(uint64_t), "the histograms fit a report");
    memcpy(t, sums(g, ACT_FIGURES_BLOCKS), sizeof t);
    for (int k = 0; k < KV_LIVES; k++) {
        uint64_t upto = 0;
        head(b, lives[k].name, "histogram", lives[k].help);
        for (int i = 0; i < KV_LIFE_BOUNDS; i++)
            gw_bytes_printf(b, "weft_%s_bucket{le=\"%g\"} %llu\n", lives[k].name, 1e-9 * (double)kv_life_bound[i],
                            (unsigned long long)(upto += t[k].bucket[i]));
        gw_bytes_printf(b, "weft_%s_bucket{le=\"+Inf\"} %llu\nweft_%s_sum %.9g\nweft_%s_count %llu\n", lives[k].name,
                        (unsigned long long)t[k].count, lives[k].name, 1e-9 * (double)t[k].sum_ns, lives[k].name,
                        (unsigned long long)t[k].count);
    }
}

struct row {
    const char *name, *type, *help;
};

static void rows(const struct gw_context *g, struct gw_bytes *b, enum act_figures_kind kind, const struct row *row,
                 int n)
{
    const uint64_t *v = sums(g, kind);
    for (int i = 0; i < n; i++) {
        head(b, row[i].name, row[i].type, row[i].help);
        gw_bytes_printf(b, "weft_%s %llu\n", row[i].name, (unsigned long long)v[i]);
    }
}

static void landing(const struct gw_context *g, struct gw_bytes *b)
{
    static const struct row row[ACT_LANDING_FIGURES] = {
        [ACT_LANDING_GRANTED] = {"landing_tickets_granted_total", "counter",
                                 "Places given to sequences whose prompt another process computes."},
        [ACT_LANDING_REFUSED] = {"landing_tickets_refused_total", "counter", "Such places refused."},
        [ACT_LANDING_TAKEN] = {"landing_sequences_total", "counter", "Sequences that arrived whole and went on."},
        [ACT_LANDING_FAILED] = {"landing_failed_total", "counter", "Hand-offs that failed."},
        [ACT_LANDING_REVOKED] = {"landing_tickets_revoked_total", "counter",
                                 "Places taken back before they were written."},
        [ACT_LANDING_FENCED] = {"landing_tickets_fenced_total", "counter",
                                "Quarantines that ended without the writer's word."},
        [ACT_LANDING_STALE] = {"landing_stale_messages_total", "counter", "Messages for places that are over."},
        [ACT_LANDING_HELD] = {"landing_held_blocks_total", "counter",
                              "Blocks of such sequences that were here already and were not sent."},
        [ACT_LANDING_OPEN] = {"landing_tickets_open", "gauge", "Places in use, quarantine included."},
    };
    rows(g, b, ACT_FIGURES_LANDING, row, ACT_LANDING_FIGURES);
}

static void shards(const struct gw_context *g, struct gw_bytes *b)
{
    static const struct row row[ACT_SHARD_FIGURES] = {
        [ACT_SHARD_DISPATCHES] = {"expert_shard_dispatches_total", "counter", "Dispatches that shards here took."},
        [ACT_SHARD_ROWS] = {"expert_shard_rows_total", "counter", "Rows of these."},
        [ACT_SHARD_PAIRS] = {"expert_shard_pairs_total", "counter", "Rows times their experts here."},
        [ACT_SHARD_REFUSED] = {"expert_shard_refused_total", "counter", "Dispatches that could not be worked on."},
        [ACT_SHARD_LOADED] = {"expert_shard_loaded_experts_total", "counter",
                              "Experts that a new placement has brought here."},
        [ACT_SHARD_WAITING] = {"expert_shard_waiting", "gauge", "Dispatches that wait or are worked on."},
    };
    rows(g, b, ACT_FIGURES_SHARD, row, ACT_SHARD_FIGURES);
}

static void kv_node(const struct gw_context *g, struct gw_bytes *b)
{
    static const struct row row[ACT_KV_NODE_FIGURES] = {
        [ACT_KV_NODE_FINDS] = {"kv_node_lookups_total", "counter", "Questions of other nodes for blocks."},
        [ACT_KV_NODE_READS] = {"kv_node_reads_total", "counter", "Reads of other nodes."},
        [ACT_KV_NODE_STORES] = {"kv_node_stores_total", "counter", "Stores of other nodes."},
        [ACT_KV_NODE_FAILED] = {"kv_node_failed_total", "counter",
                                "Of these three, those that ended with an error: no room, other blocks, draining, the "
                                "storage."},
        [ACT_KV_NODE_GIVEN_UP] = {"kv_node_given_up_total", "counter",
                                  "Reads that their reader did not want or did not take any more."},
        [ACT_KV_NODE_WAITING] = {"kv_node_reads_waiting", "gauge", "Reads that wait for room in kv.nodes.buffer."},
        [ACT_KV_NODE_KEEPING] = {"kv_node_storing_bytes", "gauge", "Bytes on their way into the tiers."},
    };
    rows(g, b, ACT_FIGURES_KV_NODE, row, ACT_KV_NODE_FIGURES);
}

static void exchange(const struct gw_context *g, struct gw_bytes *b)
{
#define FIELD(f) offsetof(struct act_exchange_counters, f)
    static const struct {
        const char *name, *help;
        size_t field;
    } row[] = {
        {"exchanges_total", "Exchanges of a step's layer with the shards.", FIELD(exchanges)},
        {"dispatches_total", "Dispatches to shards.", FIELD(dispatched)},
        {"results_total", "Results of shards.", FIELD(results)},
        {"slot_dispatches_total", "Of the dispatches, those that were written into slots of another node.",
         FIELD(puts)},
        {"slot_fences_total", "Connections that were ended because a slot was not given back.", FIELD(fences)},
        {"late_results_total", "Results of exchanges that were over.", FIELD(late)},
        {"returned_dispatches_total", "Dispatches that came back: their shard is gone.", FIELD(returned)},
        {"refused_dispatches_total", "Dispatches that a shard which is alive did not compute.", FIELD(refused)},
        {"deadlines_passed_total", "Exchanges in which a shard did not answer in time.", FIELD(expired)},
        {"lost_exchanges_total", "Exchanges that were given up with a shard; their step began again.", FIELD(lost)},
        {"stalls_total", "Times that experts without an owner had to be waited for.", FIELD(stalled)},
        {"pairs_total", "Rows times their experts.", FIELD(pairs)},
        {"taken_over_pairs_total", "Of these, computed by a shard that does not own the expert.", FIELD(taken_over)},
        {"map_switches_total", "Placements of experts taken from the balancer.", FIELD(switches)},
        {"missing", "Actors for which nobody computes some of the experts now.", FIELD(missing)},
    };
    static const struct {
        const char *source;
        enum act_figures_kind kind;
    } sources[] = {{"prefill", ACT_FIGURES_PREFILL_EXCHANGE}, {"decode", ACT_FIGURES_DECODE_EXCHANGE}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char name[64];
        snprintf(name, sizeof name, "expert_%s", row[i].name);
        head(b, name, strstr(name, "_total") ? "counter" : "gauge", row[i].help);
        for (int s = 0; s < 2; s++)
            gw_bytes_printf(b, "weft_%s{source=\"%s\"} %llu\n", name, sources[s].source,
                            (unsigned long long)sums(g, sources[s].kind)[row[i].field / sizeof(uint64_t)]);
    }
#undef FIELD
}

void gw_metrics_engine(const struct gw_context *g, struct gw_bytes *b)
{
    bool all = !g->figures_only, decode = g->roles & CFG_ROLE_DECODE, prefill = g->roles & CFG_ROLE_PREFILL;
    if (all)
        prompt_tokens(&g->metrics, b);
    if (all || decode || prefill) {
        block_lives(g, b);
        exchange(g, b);
    }
    if (all || decode)
        landing(g, b);
    if (g->roles & CFG_ROLE_EXPERT)
        shards(g, b);
    if (g->served)
        kv_node(g, b);
}
