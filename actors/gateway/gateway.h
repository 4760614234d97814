/* The gateway: an actor on an io worker that owns the HTTP server and starts one Request actor per generation. On a
 * node without that role the same actor answers /metrics, /health/... and /version alone, where nodes[].metrics says
 * (figures_only); then there are no requests, and it stays until the process ends.
 *
 * Everything in struct gw_context belongs to the io worker's thread: the gateway and its Request actors share it there.
 * What other threads want to know (metrics) is asked through HTTP like by everybody else. */
#ifndef WEFT_GATEWAY_GATEWAY_H
#define WEFT_GATEWAY_GATEWAY_H

#include "actors/gateway/http.h"
#include "actors/gateway/keys.h"
#include "actors/gateway/prompt.h"
#include "actors/gateway/request.h"
#include "actors/gateway/trace.h"
#include "actors/gateway/text.h"
#include "actors/tier_times.h"
#include "actors/tier_watch.h"
#include "actors/runtime/log.h"
#include "actors/runtime/runtime.h"
#include "model/config.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

enum { GW_HISTOGRAM_BUCKETS = 20, GW_DRAIN_CUT = 1 /* of DRAIN.flags */ };

/* Cumulative counts per upper bound, as Prometheus wants them. */
struct gw_histogram {
    uint64_t bucket[GW_HISTOGRAM_BUCKETS], count;
    double sum;
};

enum gw_outcome { GW_OUT_STOP, GW_OUT_LENGTH, GW_OUT_TOOL_CALLS, GW_OUT_CANCELLED, GW_OUT_ERROR, GW_OUTCOMES };
enum gw_refusal { GW_REF_BAD_REQUEST, GW_REF_KEY, GW_REF_BUSY, GW_REF_DRAINING, GW_REF_TOO_LONG, GW_REFUSALS };

enum { GW_REQUEST_ID = 65, GW_DRAFT_PLACES = 32, GW_TIERS = 6 };

/* What Decode last said about itself. */
struct gw_decode_figures {
    uint64_t steps, step_ns, step_sequences, cancelled, parked, resumed, drafted, offered, accepted, emitted;
    uint64_t request_steps, undrafted, probes, planned_ns, planned_took_ns;
    uint32_t running, reserved, parked_now, batch, last_step_us, lease;
    int places; /* guesses per step at most */
    uint64_t offered_at[GW_DRAFT_PLACES], accepted_at[GW_DRAFT_PLACES];
};

/* The same of one Decode actor; a restarted one begins at zero, so its predecessor's totals stay as `past`. */
struct gw_decode_part {
    struct act_addr from;
    struct gw_decode_figures now, past;
};

struct gw_metrics {
    int running, waiting; /* requests with a first token, and before it */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t below_tokens; /* of the cached ones, from the tiers below the device */
    uint64_t outcome[GW_OUTCOMES], refused[GW_REFUSALS];
    struct {
        uint64_t capacity, held, cached, evicted; /* bytes; pages; pages; pages */
    } kv;
    struct act_b_kv_stats tier[GW_TIERS]; /* by enum act_tier_kind */
    struct act_times tier_times[GW_TIERS][ACT_TIER_VERBS];
    struct act_b_engram_stats engram;
    struct act_times engram_times;
    uint64_t replaced;                                                           /* attempts after the first */
    uint64_t moved;                                                              /* planned moves of sequences */
    struct gw_decode_figures decoder;                                            /* of all Decode actors together */
    struct gw_histogram first_token, inter_token, total, queue, prefill, decode; /* seconds */
    struct gw_histogram delivery; /* seconds from a token's making to its leaving for the client */
};

struct gw_settings {
    char host[256];
    int port;
    char model_name[128];
    int64_t started_at; /* Unix seconds */
    uint64_t revision;
    char numerics[32];      /* backend and CPU path */
    char speculation[64];   /* how many tokens are drafted, as people read it */
    int context;            /* tokens */
    int default_max_tokens; /* 0: to the end of the context */
    int max_requests;       /* at a time; more get 429 */
    int threads;            /* of the compute team */
    struct mdl_sampling sampling;
    struct gw_http_limits http;
    int keepalive_ms; /* comments while a stream has nothing to say */
    int64_t retry_ns; /* a request whose place ended is placed again for so long; 0: 10 s */
    int64_t stuck_ns; /* not ready when work has made no progress for this long */
    bool debug;       /* /debug on loopback */
};

struct gw_bytes;

struct gw_context {
    struct gw_settings settings;
    bool figures_only;
    unsigned roles;                /* of the node; which series there are */
    struct act_tier_watch *tiers;  /* gets a copy of what tiers report; NULL: nobody does */
    const struct act_addr *served; /* the actor whose tiers in `tiers` are kept for other nodes; NULL: none */
    void (*node_metrics)(void *ctx, struct gw_bytes *b); /* of the node as a whole (ready_ctx); NULL: none */
    const struct mdl_config *model;
    const struct mdl_tokenizer *tok;
    struct gw_prompts here, there; /* for this thread, and for the helper's */
    int block_tokens;
    size_t page_bytes;
    struct act_addr router, tier, helper; /* helper: runs jobs */
    struct act_log *log;
    struct gw_trace *trace;         /* of requests; NULL: none. Freed by whoever made the context */
    const char *keys_file;          /* NULL: no key is asked for */
    struct gw_keys keys;            /* freed by whoever made the context, after the Request actors */
    const char *tls_cert, *tls_key; /* files; NULL: plain HTTP */
    struct ssl_ctx_st *tls; /* of them, replaced on RELOAD; freed by whoever made the context. NULL: plain HTTP */
    const char *lost;       /* the part of the engine that is not there; NULL: all are */
    struct cfg_error *start_error; /* why the gateway could not start; may be NULL */
    struct gw_http *http;
    struct act_self *self; /* of the gateway actor; NULL once it has stopped */
    struct gw_metrics metrics;
    struct gw_figures *figures;         /* FIGURES by sender and kind, freed by the gateway actor */
    struct gw_decode_part *decode_part; /* [n_decode_parts], freed by the gateway actor */
    int n_decode_parts;
    bool draining;
    struct {
        uint64_t outcome[GW_OUTCOMES]; /* of metrics, when the drain began */
        uint64_t cut;                  /* requests that were cut off */
    } drain;
    int requests;        /* Request actors alive */
    struct gw_job *jobs; /* of those that generate; owned by the actors */
    int bound_port;
    void (*ready)(void *ctx, int port); /* called once it accepts; thread of the io worker */
    void (*drained)(void *ctx);         /* DRAIN was asked for, the last request has ended and its answer has left */
    void (*failed)(void *ctx);          /* it has ended, or a part of the engine has: nothing more can be served */
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
    enum gw_protocol protocol;
    struct gw_request request;    /* parsed already, unless it is unread or there is text only */
    struct gw_prompt_job *unread; /* a long body, not parsed yet; or NULL */
    struct gw_text_job *text;     /* no generation, but a long text; or NULL */
    uint64_t id;
    char public_id[GW_REQUEST_ID]; /* what the client calls the request, else the id in hexadecimal digits */
    struct gw_key *key;            /* NULL: none was asked for */
    bool trace;                    /* time stamps in the stream */
    bool gone;                     /* the client went away: the exchange is dead */
    bool cut;                      /* the server ends: nothing more is waited for */
    struct gw_job *prev, *next;    /* in g->jobs */
    struct act_self *self;
};

/* DECODE_STATS of one of the Decode actors; the sum is in g->metrics.decoder. */
void gw_take_figures(struct gw_context *g, struct act_msg *m);

/* TIER_TIMES. */
void gw_take_tier_times(struct gw_context *g, struct act_msg *m);
/* ENGRAM_STATS (metrics_engram.c), and that part of /metrics. */
void gw_take_engram(struct gw_context *g, struct act_msg *m);
void gw_metrics_engram(const struct gw_context *g, struct gw_bytes *b);

/* FIGURES of any actor. */
void gw_take_engine_figures(struct gw_context *g, struct act_msg *m);
void gw_free_engine_figures(struct gw_context *g);

void gw_observe(struct gw_histogram *h, double seconds);
/* The part of /metrics about the tiers that keep blocks (metrics_tiers.c). */
void gw_metrics_tiers(const struct gw_context *g, struct gw_bytes *b);
/* About prompts' tokens, blocks of the device, the hand-off and the expert exchange (metrics_engine.c). */
void gw_metrics_engine(const struct gw_context *g, struct gw_bytes *b);
/* The text of /metrics, appended. 0 or -ENOMEM. */
int gw_metrics_text(const struct gw_context *g, struct gw_bytes *out);
/* The id of a request for X-Request-Id and the log: the client's own when it is one (up to 64 of letters, digits and
 * ._:-), else one made here. The same for every call on an exchange that has a job. */
void gw_request_id(struct gw_context *g, struct gw_exchange *x, char out[GW_REQUEST_ID]);
/* Whether the client may go on; refuses it otherwise. *key: whose request it is, NULL when no key is asked for. */
bool gw_admit(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol, struct gw_key **key);
/* Answers with an error in the protocol's shape. */
void gw_answer_error(struct gw_context *g, struct gw_exchange *x, enum gw_protocol protocol,
                     const struct gw_error *err);
/* Answers with what the job came to. */
void gw_text_answer(struct gw_context *g, struct gw_exchange *x, struct gw_text_job *j);

#endif
