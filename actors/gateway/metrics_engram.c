/* Metrics of the row store of Engram tables (engram_store.h), as it last reported itself; all zero when tables are
 * mapped. */
#include <string.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/gateway.h"

void gw_take_engram(struct gw_context *g, struct act_msg *m)
{
    size_t bytes;
    const void *tail = act_msg_tail(m, &bytes);
    g->metrics.engram = *act_b_engram_stats(m);
    if (bytes >= sizeof g->metrics.engram_times)
        memcpy(&g->metrics.engram_times, tail, sizeof g->metrics.engram_times);
}

static void one(struct gw_bytes *b, const char *name, const char *type, const char *help, uint64_t v)
{
    gw_bytes_printf(b, "# HELP weft_engram_%s %s\n# TYPE weft_engram_%s %s\nweft_engram_%s %llu\n", name, help, name,
                    type, name, (unsigned long long)v);
}

void gw_metrics_engram(const struct gw_context *g, struct gw_bytes *b)
{
    const struct act_b_engram_stats *e = &g->metrics.engram;
    const struct act_times *h = &g->metrics.engram_times;
    uint64_t upto = 0;
    one(b, "rows_total", "counter", "Engram rows asked of the row store; none when tables are mapped.", e->rows);
    one(b, "rows_cached_total", "counter", "Of these, rows that memory had.", e->cached);
    one(b, "rows_shared_total", "counter", "Of these, rows that came with a read that was under way.", e->shared);
    one(b, "rows_ahead_total", "counter", "Of these, rows asked for before a step needed them.", e->ahead);
    one(b, "reads_total", "counter", "Pages read from the checkpoint's files.", e->reads);
    one(b, "read_bytes_total", "counter", "Bytes read from the checkpoint's files.", e->read_bytes);
    one(b, "errors_total", "counter", "Reads that failed; their rows came from the mapped checkpoint.", e->errors);
    one(b, "rows_evicted_total", "counter", "Rows in memory that made room for others.", e->evicted);
    one(b, "cache_rows", "gauge", "Rows in memory.", e->used);
    one(b, "cache_capacity_rows", "gauge", "Rows that memory has room for.", e->slots);
    one(b, "requests", "gauge", "Reads under way.", e->queue);
    gw_bytes_puts(b, "# HELP weft_engram_latency_seconds From a step's question for rows to the answer.\n"
                     "# TYPE weft_engram_latency_seconds histogram\n");
    for (int i = 0; i < ACT_TIMES_BOUNDS; i++) {
        upto += h->bucket[i];
        gw_bytes_printf(b, "weft_engram_latency_seconds_bucket{le=\"%g\"} %llu\n", 1e-9 * (double)act_times_bound[i],
                        (unsigned long long)upto);
    }
    gw_bytes_printf(b,
                    "weft_engram_latency_seconds_bucket{le=\"+Inf\"} %llu\nweft_engram_latency_seconds_sum %.9g\n"
                    "weft_engram_latency_seconds_count %llu\n",
                    (unsigned long long)h->count, 1e-9 * (double)h->sum_ns, (unsigned long long)h->count);
}
