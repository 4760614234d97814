/* Counters of the gateway in the Prometheus text format; every series is there from the start. */
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/gateway.h"
#include "actors/runtime/stats.h"
#include "config/config.h"
#include "config/version.h"

static const double bounds[GW_HISTOGRAM_BUCKETS] = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};

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

static void labelled(struct gw_bytes *b, const char *name, const char *help, const char *label,
                     const char *const *values, const uint64_t *counts, int n)
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
    single(b, "http_connections_accepted_total", "counter", "Connections accepted.", (double)s.accepted);
    single(b, "http_connections_refused_total", "counter", "Connections refused beyond limits.connections.",
           (double)s.refused_connections);
    single(b, "http_requests_total", "counter", "Complete requests received.", (double)s.requests);
    single(b, "http_refused_total", "counter", "Requests refused for their form, size or slowness.", (double)s.refused);
    single(b, "http_received_bytes_total", "counter", "Bytes received from clients.", (double)s.bytes_in);
    single(b, "http_sent_bytes_total", "counter", "Bytes sent to clients.", (double)s.bytes_out);
    single(b, "http_unsent_bytes", "gauge", "Bytes that wait for slow clients.", (double)s.unsent);
    single(b, "disconnected_clients_total", "counter", "Clients that went away before their answer ended.",
           (double)s.gone);
    single(b, "stuck_clients_total", "counter", "Clients that stopped reading.", (double)s.stuck);
}

static void load_metrics(const struct gw_context *g, struct gw_bytes *b)
{
    const struct gw_metrics *m = &g->metrics;
    single(b, "num_requests_running", "gauge", "Requests that have produced a token.", m->running);
    single(b, "num_requests_waiting", "gauge", "Requests before their first token.", m->waiting);
    single(b, "prompt_tokens_total", "counter", "Prompt tokens of requests whose prompt was computed.",
           (double)m->prompt_tokens);
    single(b, "generation_tokens_total", "counter", "Tokens generated.", (double)m->generated_tokens);
    single(b, "prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache.",
           (double)m->prompt_tokens);
    single(b, "prefix_cache_hits_total", "counter", "Prompt tokens that came from the prefix cache.",
           (double)m->cached_tokens);
}

static void step_metrics(const struct gw_decode_figures *d, struct gw_bytes *b)
{
    single(b, "num_sequences_decoding", "gauge", "Sequences that generate now.", d->running);
    single(b, "num_sequences_reserved", "gauge", "Places at the decoder that wait for their prompt.", d->reserved);
    single(b, "num_sequences_parked", "gauge", "Sequences set aside for want of KV pages.", d->parked_now);
    single(b, "num_preemptions_total", "counter", "Sequences set aside for want of KV pages.", (double)d->parked);
    single(b, "decode_steps_total", "counter", "Decode steps.", (double)d->steps);
    single(b, "decode_step_seconds_total", "counter", "Time from the beginning to the end of decode steps.",
           1e-9 * (double)d->step_ns);
    single(b, "decode_step_sequences_total", "counter", "Sequences of all decode steps together.",
           (double)d->step_sequences);
    single(b, "decode_batch_size", "gauge", "Sequences of the last decode step, 0 at rest.", d->batch);
    single(b, "decode_last_step_seconds", "gauge", "How long the last decode step took.", 1e-6 * d->last_step_us);
    single(b, "sequences_cancelled_total", "counter", "Sequences given up while they generated.", (double)d->cancelled);
    single(b, "sequences_resumed_total", "counter", "Parked sequences that came back.", (double)d->resumed);
}

static void per_place(struct gw_bytes *b, const char *name, const char *help, const uint64_t *counts, int n)
{
    head(b, name, "counter", help);
    for (int i = 0; i < n; i++)
        gw_bytes_printf(b, "weft_%s{position=\"%d\"} %llu\n", name, i, (unsigned long long)counts[i]);
}

static void draft_metrics(const struct gw_decode_figures *d, struct gw_bytes *b)
{
    single(b, "spec_decode_num_offered_blocks_total", "counter",
           "Drafts given to verification: of one request in one step.", d->places ? (double)d->offered_at[0] : 0);
    single(b, "spec_decode_num_offered_tokens_total", "counter", "Draft tokens given to verification.",
           (double)d->offered);
    single(b, "spec_decode_num_accepted_tokens_total", "counter", "Draft tokens kept.", (double)d->accepted);
    single(b, "spec_decode_num_drafted_tokens_total", "counter", "Draft tokens made, verified or not.",
           (double)d->drafted);
    single(b, "spec_decode_emitted_tokens_total", "counter",
           "Tokens that came out of decode steps: drafts kept, and one of the target's own per request and step, "
           "except where a draft that was kept ends the text.",
           (double)d->emitted);
    single(b, "spec_decode_request_steps_total", "counter",
           "Requests in decode steps; emitted tokens divided by it are the tokens per step.", (double)d->request_steps);
    single(b, "spec_decode_steps_without_draft_total", "counter", "Decode steps in which nothing was drafted.",
           (double)d->undrafted);
    single(b, "spec_decode_probe_steps_total", "counter",
           "Decode steps that were planned otherwise than is best, to look: with the whole block, or with the best "
           "plan of "
           "another length.",
           (double)d->probes);
    single(b, "spec_decode_planned_seconds_total", "counter",
           "What planned steps were expected to take; only steps that nothing disturbed.",
           1e-9 * (double)d->planned_ns);
    single(b, "spec_decode_planned_took_seconds_total", "counter", "What the same steps took.",
           1e-9 * (double)d->planned_took_ns);
    if (!d->places) /* no drafter, or speculation is off */
        return;
    per_place(b, "spec_decode_num_offered_tokens_per_pos_total", "Draft tokens given to verification, by place.",
              d->offered_at, d->places);
    per_place(b, "spec_decode_num_accepted_tokens_per_pos_total", "Draft tokens kept, by place.", d->accepted_at,
              d->places);
}

static void kv_metrics(const struct gw_context *g, struct gw_bytes *b)
{
    const struct gw_metrics *m = &g->metrics;
    double page = (double)g->page_bytes, pages = page > 0 ? (double)m->kv.capacity / page : 0;
    single(b, "kv_pages", "gauge", "Pages of the device tier.", pages);
    single(b, "kv_pages_held", "gauge", "Pages that sequences hold.", (double)m->kv.held);
    single(b, "kv_pages_cached", "gauge", "Pages that hold finished blocks nobody uses.", (double)m->kv.cached);
    single(b, "kv_cache_usage_perc", "gauge", "Share of pages held by sequences, 0 to 1.",
           pages > 0 ? (double)m->kv.held / pages : 0);
    single(b, "kv_pages_evicted_total", "counter", "Cached pages whose room was wanted.", (double)m->kv.evicted);
}

static void worker_metrics(const struct gw_context *g, struct gw_bytes *b)
{
    static const struct {
        const char *name, *help;
    } gauge[] = {{"worker_progress_age_seconds", "Since work last progressed; 0 when idle, growing when stuck."},
                 {"worker_loop_age_seconds", "Since the loop last turned; 0 while it waits for work."},
                 {"worker_actors", "Actors alive."},
                 {"worker_messages_waiting", "Messages in mailboxes."}};
    struct act_runtime *rt = g->self ? act_self_runtime(g->self) : NULL;
    for (int i = 0; rt && i < 4; i++) {
        head(b, gauge[i].name, "gauge", gauge[i].help);
        for (int w = 0; w < act_runtime_workers(rt); w++) {
            struct act_stats_worker s;
            if (act_stats_worker(rt, w, &s))
                continue;
            const double value[] = {1e-9 * (double)s.progress_age_ns, 1e-9 * (double)s.turn_age_ns, s.actors,
                                    s.waiting};
            gw_bytes_printf(b, "weft_%s{worker=\"%s\"} %.9g\n", gauge[i].name, s.name, value[i]);
        }
    }
}

/* Inside of a label's quotes. */
static void label_text(struct gw_bytes *b, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            gw_bytes_add(b, "\\", 1);
        gw_bytes_add(b, *s == '\n' ? " " : s, 1);
    }
}

static void build_info(const struct gw_context *g, struct gw_bytes *b)
{
    head(b, "build_info", "gauge", "What runs here; always 1.");
    gw_bytes_puts(b, "weft_build_info{version=\"" WEFT_VERSION "\",model=\"");
    label_text(b, g->settings.model_name);
    gw_bytes_printf(b, "\",model_revision=\"%016llx\",numerics=\"", (unsigned long long)g->settings.revision);
    label_text(b, g->settings.numerics);
    gw_bytes_puts(b, "\"} 1\n");
}

/* Under the names that every Prometheus client uses. */
static void process_metrics(const struct gw_context *g, struct gw_bytes *b)
{
    struct rusage ru;
    struct rlimit files = {0};
    long pages = 0;
    int fds = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*s %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        fds++;
    if (d)
        closedir(d);
    getrusage(RUSAGE_SELF, &ru);
    getrlimit(RLIMIT_NOFILE, &files);
    struct mallinfo2 heap = mallinfo2();
    const struct {
        const char *name, *type, *help;
        double value;
    } row[] = {
        {"process_start_time_seconds", "gauge", "Start of the process since the Unix epoch.",
         (double)g->settings.started_at},
        {"process_cpu_seconds_total", "counter", "User and system time.",
         (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) +
             1e-6 * (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec)},
        {"process_resident_memory_bytes", "gauge", "Resident memory.", (double)pages * (double)sysconf(_SC_PAGESIZE)},
        {"weft_heap_bytes", "gauge", "Bytes allocated from the C library and not yet freed.",
         (double)heap.uordblks + (double)heap.hblkhd},
        {"process_open_fds", "gauge", "Open descriptors.",
         fds > 3 ? fds - 3 : 0}, /* without ., .. and the folder's own */
        {"process_max_fds", "gauge", "Most descriptors that the process may open.", (double)files.rlim_cur},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        gw_bytes_printf(b, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", row[i].name, row[i].help, row[i].name, row[i].type,
                        row[i].name, row[i].value);
}

/* What only requests of clients have. */
static void request_metrics(const struct gw_context *g, struct gw_bytes *b)
{
    static const char *const outcomes[] = {"stop", "length", "tool_calls", "cancelled", "error"};
    static const char *const refusals[] = {"bad_request", "api_key", "busy", "draining", "too_long"};
    const struct gw_metrics *m = &g->metrics;
    labelled(b, "request_success_total", "Requests by how they ended.", "finished_reason", outcomes, m->outcome,
             GW_OUTCOMES);
    single(b, "requests_replaced_total", "counter",
           "Times that a request went on at another place because a part of the engine had ended.",
           (double)m->replaced);
    single(b, "requests_moved_total", "counter",
           "Times that a running sequence went over to another node, as planned, state and all.", (double)m->moved);
    labelled(b, "requests_refused_total", "Requests refused, by cause.", "cause", refusals, m->refused, GW_REFUSALS);
    histogram(b, "request_queue_time_seconds", "From the request to the beginning of its prompt's computation.",
              &m->queue);
    histogram(b, "request_prefill_time_seconds", "Computation of the prompt.", &m->prefill);
    histogram(b, "time_to_first_token_seconds", "From the request to its first token.", &m->first_token);
    histogram(b, "inter_token_latency_seconds", "Between tokens of a stream.", &m->inter_token);
    histogram(b, "request_decode_time_seconds", "From the first token to the end.", &m->decode);
    histogram(b, "e2e_request_latency_seconds", "From the request to its end.", &m->total);
    histogram(b, "token_delivery_seconds", "From the making of a stream's tokens to their writing for the client.",
              &m->delivery);
    single(b, "api_keys", "gauge", "API keys in use.", g->keys.listed);
}

/* A gateway has every series, a node without one those of its roles; all at zero from the start. */
int gw_metrics_text(const struct gw_context *g, struct gw_bytes *b)
{
    bool gateway = !g->figures_only, decode = gateway || g->roles & CFG_ROLE_DECODE,
         computes = decode || g->roles & CFG_ROLE_PREFILL;
    if (gateway)
        load_metrics(g, b);
    single(b, "draining", "gauge", "1 while nothing new is taken.", g->draining);
    if (decode) {
        step_metrics(&g->metrics.decoder, b);
        draft_metrics(&g->metrics.decoder, b);
    }
    if (computes)
        kv_metrics(g, b);
    gw_metrics_engine(g, b);
    gw_metrics_tiers(g, b);
    if (computes)
        gw_metrics_engram(g, b);
    if (gateway)
        request_metrics(g, b);
    http_metrics(g, b);
    worker_metrics(g, b);
    if (g->node_metrics)
        g->node_metrics(g->ready_ctx, b);
    single(b, "log_records_lost_total", "counter", "Records that came faster than the log could be written.",
           g->log ? (double)act_log_dropped(g->log) : 0);
    if (g->trace)
        single(b, "trace_lines_lost_total", "counter",
               "Lines of the request trace that its file did not take, or not as fast as requests ended.",
               (double)gw_trace_lost(g->trace));
    build_info(g, b);
    process_metrics(g, b);
    return b->failed ? -ENOMEM : 0;
}
