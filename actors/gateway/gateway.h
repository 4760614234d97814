/* The gateway: an actor on an io worker that owns the HTTP server and starts one Request actor per generation.
 *
 * Everything in struct gw_context belongs to the io worker's thread: the gateway and its Request actors share it there.
 * What other threads want to know (metrics) is asked through HTTP like by everybody else. */
#ifndef WEFT_GATEWAY_GATEWAY_H
#define WEFT_GATEWAY_GATEWAY_H

#include "actors/gateway/http.h"
#include "actors/gateway/request.h"
#include "actors/runtime/log.h"
#include "actors/runtime/runtime.h"
#include "kvtiers/key.h"
#include "model/config.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

enum { GW_HISTOGRAM_BUCKETS = 16 };

/* Cumulative counts per upper bound, as Prometheus wants them. */
struct gw_histogram {
    uint64_t bucket[GW_HISTOGRAM_BUCKETS], count;
    double sum;
};

enum gw_outcome { GW_OUT_STOP, GW_OUT_LENGTH, GW_OUT_TOOL_CALLS, GW_OUT_CANCELLED, GW_OUT_ERROR, GW_OUTCOMES };
enum gw_refusal { GW_REF_BAD_REQUEST, GW_REF_KEY, GW_REF_BUSY, GW_REF_DRAINING, GW_REF_TOO_LONG, GW_REFUSALS };

struct gw_metrics {
    int running, waiting;  /* requests with a first token, and before it */
    uint64_t prompt_tokens, cached_tokens, generated_tokens, drafted, accepted, preempted;
    int batch;             /* sequences of the last reported decode step; 0 at rest */
    uint32_t step_us;      /* how long it took */
    uint64_t steps;
    uint64_t outcome[GW_OUTCOMES], refused[GW_REFUSALS];
    struct {
        uint64_t capacity, held, cached, evicted; /* bytes; pages; pages; pages */
    } kv;
    struct gw_histogram first_token, inter_token, total, queue, prefill, decode; /* seconds */
};

struct gw_settings {
    char host[256];
    int port;
    char model_name[128];
    int64_t started_at;     /* Unix seconds */
    uint64_t revision;
    char numerics[32];      /* backend and CPU path */
    int context;            /* tokens */
    int default_max_tokens; /* 0: to the end of the context */
    int max_requests;       /* at a time; more get 429 */
    struct mdl_sampling sampling;
    struct gw_http_limits http;
    int keepalive_ms;       /* comments while a stream has nothing to say */
    bool debug;             /* /debug on loopback */
};

struct gw_context {
    struct gw_settings settings;
    const struct mdl_config *model;
    const struct mdl_tokenizer *tok;
    struct mdl_tok_encoder *enc;
    struct kv_identity identity; /* without the tenant's salt */
    int block_tokens;
    size_t page_bytes;
    struct act_addr prefill, decode, tier;
    struct act_log *log;
    struct gw_http *http;
    struct act_self *self;       /* of the gateway actor; NULL once it has stopped */
    struct gw_metrics metrics;
    bool draining;
    int requests;                /* Request actors alive */
    int bound_port;
    void (*ready)(void *ctx, int port); /* called once it accepts; thread of the io worker */
    char failure[512];                  /* why it did not start */
    void (*drained)(void *ctx);         /* DRAIN was asked for, the last request has ended and its answer has left */
    void *ready_ctx;
};

/* arg: struct gw_context *, settings and links filled in. */
extern const struct act_behaviour gw_gateway_behaviour;
/* arg: struct gw_job *. */
extern const struct act_behaviour gw_request_behaviour;

/* What a Request actor starts with; it owns the struct and all in it, and the exchange until it has ended it. */
struct gw_job {
    struct gw_context *g;
    struct gw_exchange *x;
    struct gw_request request;
    uint64_t id;
    bool gone; /* the client went away: the exchange is dead */
    struct act_self *self;
};

void gw_observe(struct gw_histogram *h, double seconds);
/* The text of /metrics, appended. 0 or -ENOMEM. */
struct gw_bytes;
int gw_metrics_text(const struct gw_context *g, struct gw_bytes *out);
/* Answers with an error in the protocol's shape. */
void gw_answer_error(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol, const struct gw_error *err);
/* The prompt of a request as ids (appended). False: err says what is wrong with it. */
bool gw_prompt_ids(struct gw_context *g, struct gw_request *r, struct mdl_ids *out, struct gw_error *err);

#endif
