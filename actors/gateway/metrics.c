/* Counters of the gateway in the Prometheus text format; every series is there from the start. */
#include "actors/gateway/bytes.h"
#include "actors/gateway/gateway.h"

static const double bounds[GW_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                    0.5, 1, 2.5, 5, 10, 30, 60, 300};

void gw_observe(struct gw_histogram *h, double seconds)
{
    for (int i = 0; i < GW_HISTOGRAM_BUCKETS; i++)
        h->bucket[i] += seconds <= bounds[i];
    h->count++;
    h->sum += seconds;
}

static void head(struct gw_bytes *b, const char *name, const char *type, const char *help)
{
    gw_bytes_printf(b, "# HELP weft_%s %s\n# TYPE weft_%s %s\n", name, help, name, type);
}

static void single(struct gw_bytes *b, const char *name, const char *type, const char *help, double value)
{
    head(b, name, type, help);
    gw_bytes_printf(b, "weft_%s %.17g\n", name, value);
}

static void histogram(struct gw_bytes *b, const char *name, const char *help, const struct gw_histogram *h)
{
    head(b, name, "histogram", help);
    for (int i = 0; i < GW_HISTOGRAM_BUCKETS; i++)
        gw_bytes_printf(b, "weft_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)h->bucket[i]);
    gw_bytes_printf(b, "weft_%s_bucket{le=\"+Inf\"} %llu\nweft_%s_sum %.9g\nweft_%s_count %llu\n", name,
                    (unsigned long long)h->count, name, h->sum, name, (unsigned long long)h->count);
}

static void labelled(struct gw_bytes *b, const char *name, const char *help, const char *label, const char *const *values,
                     const uint64_t *counts, int n)
{
    head(b, name, "counter", help);
    for (int i = 0; i < n; i++)
        gw_bytes_printf(b, "weft_%s{%s=\"%s\"} %llu\n", name, label, values[i], (unsigned long long)counts[i]);
}

static void http_metrics(const struct gw_context *g, struct gw_bytes *b)
{
    struct gw_http_stats s = {0};
    if (g->http)
        gw_http_stat(g->http, &s);
    single(b, "http_connections", "gauge", "Open connections.", s.connections);
    single(b, "http_requests_total", "counter", "Complete requests received.", (double)s.requests);
    single(b, "http_refused_total", "counter", "Requests refused for their form, size or slowness.", (double)s.refused);
    single(b, "disconnected_clients_total", "counter", "Clients that went away before their answer ended.", (double)s.gone);
    single(b, "stuck_clients_total", "counter", "Clients that stopped reading.", (double)s.stuck);
}

int gw_metrics_text(const struct gw_context *g, struct gw_bytes *b)
{
    static const char *const outcomes[] = {"stop", "length", "tool_calls", "cancelled", "error"};
    static const char *const refusals[] = {"bad_request", "api_key", "busy", "draining", "too_long"};
    const struct gw_metrics *m = &g->metrics;
    single(b, "num_requests_running", "gauge", "Requests that have produced a token.", m->running);
    single(b, "num_requests_waiting", "gauge", "Requests before their first token.", m->waiting);
    single(b, "decode_batch_size", "gauge", "Sequences in the last decode step that was reported, 0 at rest.", m->batch);
    single(b, "decode_step_seconds", "gauge", "Time of the last decode step that was reported.", 1e-6 * m->step_us);
    single(b, "decode_steps_total", "counter", "Decode steps, as far as reported.", (double)m->steps);
    single(b, "prompt_tokens_total", "counter", "Prompt tokens of requests whose prompt was computed.", (double)m->prompt_tokens);
    single(b, "prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache.", (double)m->prompt_tokens);
    single(b, "prefix_cache_hits_total", "counter", "Prompt tokens that came from the prefix cache.", (double)m->cached_tokens);
    single(b, "generation_tokens_total", "counter", "Tokens generated.", (double)m->generated_tokens);
    single(b, "spec_decode_num_draft_tokens_total", "counter", "Draft tokens of ended requests.", (double)m->drafted);
    single(b, "spec_decode_num_accepted_tokens_total", "counter", "Draft tokens of ended requests that were kept.", (double)m->accepted);
    single(b, "num_preemptions_total", "counter", "Sequences set aside for want of KV pages.", (double)m->preempted);
    double page = (double)g->page_bytes, pages = page > 0 ? (double)m->kv.capacity / page : 0;
    single(b, "kv_pages", "gauge", "Pages of the device tier.", pages);
    single(b, "kv_pages_held", "gauge", "Pages that sequences hold.", (double)m->kv.held);
    single(b, "kv_pages_cached", "gauge", "Pages that hold finished blocks nobody uses.", (double)m->kv.cached);
    single(b, "kv_cache_usage_perc", "gauge", "Share of pages held by sequences, 0 to 1.", pages > 0 ? (double)m->kv.held / pages : 0);
    single(b, "kv_pages_evicted_total", "counter", "Cached pages whose room was wanted.", (double)m->kv.evicted);
    labelled(b, "request_success_total", "Requests by how they ended.", "finished_reason", outcomes, m->outcome, GW_OUTCOMES);
    labelled(b, "requests_refused_total", "Requests refused, by cause.", "cause", refusals, m->refused, GW_REFUSALS);
    histogram(b, "time_to_first_token_seconds", "From the request to its first token.", &m->first_token);
    histogram(b, "inter_token_latency_seconds", "Between tokens of a stream.", &m->inter_token);
    histogram(b, "e2e_request_latency_seconds", "From the request to its end.", &m->total);
    histogram(b, "request_prefill_time_seconds", "From the request to the end of its prefill, queueing included.", &m->prefill);
    histogram(b, "request_decode_time_seconds", "From the first token to the end.", &m->decode);
    http_metrics(g, b);
    return b->failed ? -12 : 0;
}
