/* Metrics of the tiers that keep blocks, one series per tier, as each last reported itself. */
#include <string.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/gateway.h"
#include "actors/tier_store.h"

static const char *const names[] = {"device", "host", "ssd", "shared", "kv"};

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
    {"hits_total", "counter", "Blocks that were looked up and here.", FIELD(hits), PLAIN},
    {"misses_total", "counter", "Blocks that were looked up and not here.", FIELD(misses), PLAIN},
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
    {"expired_blocks_total", "counter", "Blocks that grew older than kv.ttl.", FIELD(expired), PLAIN},
    {"recomputed_blocks_total", "counter",
     "Blocks below the device that were cheaper to compute than to read; counted at the device.", FIELD(recomputed),
     PLAIN},
    {"hedged_blocks_total", "counter", "Blocks asked of this tier because another one was late with them, or failed.",
     FIELD(hedged), PLAIN},
    {"hedge_won_blocks_total", "counter", "Blocks of these that came from here.", FIELD(won), PLAIN},
    {"oldest_seconds", "gauge", "Age of the oldest block, where the tier knows it.", FIELD(oldest_s), PLAIN},
};

static const struct {
    const char *kind;
    size_t field;
} errors[] = {{"io", FIELD(errors)}, {"checksum", FIELD(bad)},      {"short_read", FIELD(short_reads)},
              {"gone", FIELD(gone)}, {"no_space", FIELD(no_space)}, {"closed", FIELD(closed)}};

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

static uint64_t value(const struct gw_context *g, int tier, size_t field)
{
    return *(const uint64_t *)(const void *)((const uint8_t *)&g->metrics.tier[tier] + field);
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

static void latencies(const struct gw_context *g, struct gw_bytes *b, int verb)
{
    const char *name = times[verb].name;
    head(b, name, "histogram", times[verb].help);
    for (int t = 0; t < GW_TIERS; t++) {
        const struct act_times *h = &g->metrics.tier_times[t][verb];
        uint64_t upto = 0;
        for (int i = 0; i < ACT_TIMES_BOUNDS; i++) {
            upto += h->bucket[i];
            gw_bytes_printf(b, "weft_kv_tier_%s_bucket{tier=\"%s\",le=\"%g\"} %llu\n", name, names[t],
                            1e-9 * (double)act_times_bound[i], (unsigned long long)upto);
        }
        gw_bytes_printf(b,
                        "weft_kv_tier_%s_bucket{tier=\"%s\",le=\"+Inf\"} %llu\n"
                        "weft_kv_tier_%s_sum{tier=\"%s\"} %.9g\nweft_kv_tier_%s_count{tier=\"%s\"} %llu\n",
                        name, names[t], (unsigned long long)h->count, name, names[t], 1e-9 * (double)h->sum_ns, name,
                        names[t], (unsigned long long)h->count);
    }
}

void gw_metrics_tiers(const struct gw_context *g, struct gw_bytes *b)
{
    for (size_t i = 0; i < sizeof series / sizeof *series; i++) {
        head(b, series[i].name, series[i].type, series[i].help);
        for (int t = 0; t < GW_TIERS; t++) {
            double v = (double)value(g, t, series[i].field);
            gw_bytes_printf(b, "weft_kv_tier_%s{tier=\"%s\"} %.17g\n", series[i].name, names[t],
                            series[i].unit == SECONDS ? v * 1e-9 : v);
        }
    }
    head(b, "errors_total", "counter",
         "What failed, by kind: io, short_read: requests to the storage; checksum: bytes that do not fit; gone: blocks "
         "that went between lookup and read; no_space, closed (read-only or worn): blocks that were not kept.");
    for (int t = 0; t < GW_TIERS; t++)
        for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
            gw_bytes_printf(b, "weft_kv_tier_errors_total{tier=\"%s\",kind=\"%s\"} %llu\n", names[t], errors[k].kind,
                            (unsigned long long)value(g, t, errors[k].field));
    head(b, "requests", "gauge", "Requests to the storage under way.");
    for (int t = 0; t < GW_TIERS; t++)
        gw_bytes_printf(b, "weft_kv_tier_requests{tier=\"%s\"} %u\n", names[t], g->metrics.tier[t].queue);
    head(b, "blocks_in_flight", "gauge", "Blocks that are being read from the tier, and on their way into it.");
    for (int t = 0; t < GW_TIERS; t++)
        gw_bytes_printf(b,
                        "weft_kv_tier_blocks_in_flight{tier=\"%s\",verb=\"read\"} %u\n"
                        "weft_kv_tier_blocks_in_flight{tier=\"%s\",verb=\"store\"} %u\n",
                        names[t], g->metrics.tier[t].reading, names[t], g->metrics.tier[t].storing);
    for (int v = 0; v < ACT_TIER_VERBS; v++)
        latencies(g, b, v);
    head(b, "read_only", "gauge", "1 while the tier takes no blocks because writing failed.");
    for (int t = 0; t < GW_TIERS; t++)
        gw_bytes_printf(b, "weft_kv_tier_read_only{tier=\"%s\"} %d\n", names[t],
                        (g->metrics.tier[t].state & ACT_TIER_READ_ONLY) != 0);
    head(b, "rebuilding", "gauge", "1 while the tier reads its index after a start.");
    for (int t = 0; t < GW_TIERS; t++)
        gw_bytes_printf(b, "weft_kv_tier_rebuilding{tier=\"%s\"} %d\n", names[t],
                        (g->metrics.tier[t].state & ACT_TIER_REBUILDING) != 0);
}
