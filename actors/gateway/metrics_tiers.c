/* Metrics of the tiers that keep blocks, one series per tier, as each last reported itself. Those that a kv node keeps
 * for other nodes are served_host and served_ssd. */
#include <stdio.h>
#include <string.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/gateway.h"
#include "actors/tier_store.h"
#include "config/config.h"

static const char *const names[] = {"device", "host", "ssd", "shared", "kv", "snapshots"};

_Static_assert(sizeof names / sizeof *names == (size_t)GW_TIERS && (int)GW_TIERS == (int)ACT_TIER_KINDS,
               "every tier has a name");

enum unit { PLAIN, SECONDS };

#define FIELD(f) offsetof(struct act_b_kv_stats, f)

static const struct {
    const char *name, *type, *help;
    size_t field;
    enum unit unit;
} series[] = {
    {"bytes", "gauge", "Bytes of blocks in the tier.", FIELD(bytes), PLAIN},
    {"capacity_bytes", "gauge", "Room for blocks.", FIELD(capacity), PLAIN},
    {"blocks", "gauge", "Blocks in the tier; of the device those that nobody uses.", FIELD(cached), PLAIN},
    {"hit_tokens_total", "counter", "Tokens that prompts looked for and found here.", FIELD(hit_tokens), PLAIN},
    {"asked_tokens_total", "counter",
     "Tokens that prompts looked for here: of tiers below others what those had not. Of snapshots: of whole prompts.",
     FIELD(asked_tokens), PLAIN},
    {"hits_total", "counter", "Blocks (snapshots) that were looked for and here.", FIELD(hits), PLAIN},
    {"misses_total", "counter", "Blocks (snapshots) that were looked for and not here.", FIELD(misses), PLAIN},
    {"read_blocks_total", "counter", "Blocks delivered.", FIELD(read), PLAIN},
    {"read_bytes_total", "counter", "Bytes delivered.", FIELD(read_bytes), PLAIN},
    {"read_seconds_total", "counter", "Time from the beginning to the end of reads, added up.", FIELD(read_ns),
     SECONDS},
    {"reads_total", "counter", "Reads of one or more blocks.", FIELD(reads), PLAIN},
    {"stored_blocks_total", "counter", "Blocks kept.", FIELD(stored), PLAIN},
    {"stored_bytes_total", "counter", "Bytes kept.", FIELD(stored_bytes), PLAIN},
    {"refused_blocks_total", "counter",
     "Blocks that were not kept: full, worn or read-only; of the device those that were not handed down.",
     FIELD(refused), PLAIN},
    {"evicted_blocks_total", "counter", "Blocks that made room for others.", FIELD(evicted), PLAIN},
    {"expired_blocks_total", "counter",
     "Blocks that grew older than kv.ttl; snapshots that were not used for kv.snapshot_ttl.", FIELD(expired), PLAIN},
    {"recomputed_blocks_total", "counter",
     "Blocks below the device that were cheaper to compute than to read; counted at the device.", FIELD(recomputed),
     PLAIN},
    {"hedged_blocks_total", "counter", "Blocks asked of this tier because another one was late with them, or failed.",
     FIELD(hedged), PLAIN},
    {"hedge_won_blocks_total", "counter", "Blocks of these that came from here.", FIELD(won), PLAIN},
    {"oldest_seconds", "gauge", "Age of the oldest block, where the tier knows it.", FIELD(oldest_s), PLAIN},
};

/* Series with a label more: what it says, and the figure. */
struct labelled {
    const char *is;
    size_t field;
};

static const struct labelled errors[] = {{"io", FIELD(errors)},
                                         {"checksum", FIELD(bad)},
                                         {"short_read", FIELD(short_reads)},
                                         {"gone", FIELD(gone)},
                                         {"no_space", FIELD(no_space)},
                                         {"closed", FIELD(closed)}},
                             unusable[] = {{"other_layout", FIELD(other_layout)},
                                           {"damaged", FIELD(damaged)},
                                           {"unreadable", FIELD(unreadable)}};

static const struct {
    const char *name, *help;
} times[ACT_TIER_VERBS] = {
    [ACT_TIER_LOOKUP] = {"lookup_latency_seconds", "From a question for blocks to its answer."},
    [ACT_TIER_FIRST] = {"read_first_latency_seconds",
                        "From the beginning of a read until the rows of the first source layer are there."},
    [ACT_TIER_WHOLE] = {"read_latency_seconds", "From the beginning to the end of a read of one or more blocks."},
    [ACT_TIER_KEEP] = {"store_latency_seconds",
                       "From the beginning to the end of a store of one or more blocks, flushed where the tier is "
                       "durable."},
};

/* A tier with series of its own: of this node's own prompts, or one that it keeps for other nodes. */
struct shown {
    char name[24];
    const struct act_b_kv_stats *last;
    const struct act_times *times; /* [ACT_TIER_VERBS] */
};

enum { SERVED = 2, SHOWN_MAX = GW_TIERS + SERVED };

static int list_tiers(const struct gw_context *g, struct shown out[SHOWN_MAX])
{
    static const enum act_tier_kind served[SERVED] = {ACT_TIER_HOST, ACT_TIER_SSD};
    static const struct act_b_kv_stats nothing;
    static const struct act_times never[ACT_TIER_VERBS];
    int n = 0;
    for (int t = 0; t < GW_TIERS && (!g->figures_only || g->roles & (CFG_ROLE_PREFILL | CFG_ROLE_DECODE)); t++) {
        snprintf(out[n].name, sizeof out->name, "%s", names[t]);
        out[n].last = &g->metrics.tier[t];
        out[n++].times = g->metrics.tier_times[t];
    }
    for (int k = 0; k < SERVED && g->served; k++, n++) {
        snprintf(out[n].name, sizeof out->name, "served_%s", names[served[k]]);
        out[n].last = &nothing;
        out[n].times = never;
        for (int i = 0; i < g->tiers->n; i++)
            if (g->tiers->row[i].tier == served[k] && act_addr_equal(g->tiers->row[i].who, *g->served)) {
                out[n].last = &g->tiers->row[i].last;
                out[n].times = g->tiers->row[i].times;
            }
    }
    return n;
}

static uint64_t value(const struct shown *t, size_t field)
{
    return *(const uint64_t *)(const void *)((const uint8_t *)t->last + field);
}

static void head(struct gw_bytes *b, const char *name, const char *type, const char *help)
{
    gw_bytes_printf(b, "# HELP weft_kv_tier_%s %s\n# TYPE weft_kv_tier_%s %s\n", name, help, name, type);
}

void gw_take_tier_times(struct gw_context *g, struct act_msg *m)
{
    size_t bytes;
    const void *tail = act_msg_tail(m, &bytes);
    uint32_t tier = act_p_tier_times(m)->tier;
    if (tier < GW_TIERS && bytes >= sizeof g->metrics.tier_times[tier])
        memcpy(g->metrics.tier_times[tier], tail, sizeof g->metrics.tier_times[tier]);
}

static void latencies(const struct shown *tier, int n, struct gw_bytes *b, int verb)
{
    const char *name = times[verb].name;
    head(b, name, "histogram", times[verb].help);
    for (int t = 0; t < n; t++) {
        const struct act_times *h = &tier[t].times[verb];
        uint64_t upto = 0;
        for (int i = 0; i < ACT_TIMES_BOUNDS; i++) {
            upto += h->bucket[i];
            gw_bytes_printf(b, "weft_kv_tier_%s_bucket{tier=\"%s\",le=\"%g\"} %llu\n", name, tier[t].name,
                            1e-9 * (double)act_times_bound[i], (unsigned long long)upto);
        }
        gw_bytes_printf(b,
                        "weft_kv_tier_%s_bucket{tier=\"%s\",le=\"+Inf\"} %llu\n"
                        "weft_kv_tier_%s_sum{tier=\"%s\"} %.9g\nweft_kv_tier_%s_count{tier=\"%s\"} %llu\n",
                        name, tier[t].name, (unsigned long long)h->count, name, tier[t].name, 1e-9 * (double)h->sum_ns,
                        name, tier[t].name, (unsigned long long)h->count);
    }
}

static void labels(const struct shown *tier, int n, struct gw_bytes *b, const char *name, const char *label,
                   const struct labelled *row, size_t rows)
{
    for (int t = 0; t < n; t++)
        for (size_t k = 0; k < rows; k++)
            gw_bytes_printf(b, "weft_kv_tier_%s{tier=\"%s\",%s=\"%s\"} %llu\n", name, tier[t].name, label, row[k].is,
                            (unsigned long long)value(&tier[t], row[k].field));
}

static void state(const struct shown *tier, int n, struct gw_bytes *b, const char *name, const char *help, uint32_t bit)
{
    head(b, name, "gauge", help);
    for (int t = 0; t < n; t++)
        gw_bytes_printf(b, "weft_kv_tier_%s{tier=\"%s\"} %d\n", name, tier[t].name, (tier[t].last->state & bit) != 0);
}

void gw_metrics_tiers(const struct gw_context *g, struct gw_bytes *b)
{
    struct shown tier[SHOWN_MAX];
    int n = list_tiers(g, tier);
    if (!n)
        return;
    for (size_t i = 0; i < sizeof series / sizeof *series; i++) {
        head(b, series[i].name, series[i].type, series[i].help);
        for (int t = 0; t < n; t++) {
            double v = (double)value(&tier[t], series[i].field);
            gw_bytes_printf(b, "weft_kv_tier_%s{tier=\"%s\"} %.17g\n", series[i].name, tier[t].name,
                            series[i].unit == SECONDS ? v * 1e-9 : v);
        }
    }
    head(b, "errors_total", "counter",
         "What failed, by kind: io, short_read: requests to the storage; checksum: bytes that do not fit; gone: blocks "
         "that went between lookup and read; no_space, closed (read-only or worn): blocks that were not kept.");
    labels(tier, n, b, "errors_total", "kind", errors, sizeof errors / sizeof *errors);
    head(b, "unusable_bytes", "gauge",
         "Bytes of files in the tier's folder that this process cannot use, by cause: other_layout: of another model, "
         "block size or version; damaged; unreadable: the file system fails to read them now.");
    labels(tier, n, b, "unusable_bytes", "cause", unusable, sizeof unusable / sizeof *unusable);
    head(b, "requests", "gauge", "Requests to the storage under way.");
    for (int t = 0; t < n; t++)
        gw_bytes_printf(b, "weft_kv_tier_requests{tier=\"%s\"} %u\n", tier[t].name, tier[t].last->queue);
    head(b, "blocks_in_flight", "gauge", "Blocks that are being read from the tier, and on their way into it.");
    for (int t = 0; t < n; t++)
        gw_bytes_printf(b,
                        "weft_kv_tier_blocks_in_flight{tier=\"%s\",verb=\"read\"} %u\n"
                        "weft_kv_tier_blocks_in_flight{tier=\"%s\",verb=\"store\"} %u\n",
                        tier[t].name, tier[t].last->reading, tier[t].name, tier[t].last->storing);
    for (int v = 0; v < ACT_TIER_VERBS; v++)
        latencies(tier, n, b, v);
    state(tier, n, b, "read_only", "1 while the tier takes no blocks because writing failed.", ACT_TIER_READ_ONLY);
    state(tier, n, b, "late", "1 while a read of the tier or a store to it takes so long that it is left alone.",
          ACT_TIER_LATE);
    state(tier, n, b, "rebuilding", "1 while the tier reads its index after a start.", ACT_TIER_REBUILDING);
}
