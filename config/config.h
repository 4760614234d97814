/* The configuration of a process or a cluster: the parsed values and how to get them.
 *
 * One table (config/keys.c) names every key with its type, unit, range, default and help; parsing, validation,
 * `weft config --explain` and docs/CONFIG.md come from it. struct cfg_config is plain memory that the caller owns and
 * may copy; after loading it does not change and any thread may read it. The functions themselves touch only their
 * arguments. */
#ifndef WEFT_CONFIG_CONFIG_H
#define WEFT_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "config/error.h"
#include "config/report.h"

enum {
    CFG_PATH_TEXT = 1024,
    CFG_NAME_TEXT = 64,
    CFG_ADDRESS_TEXT = 256,
    CFG_NODES_MAX = 256,
    CFG_KV_NODES_MAX = 64, /* of these with the role kv */
    CFG_FILES_MAX = 16,    /* the file and what it includes */
    CFG_KEYS_MAX = 160,
};

enum cfg_cpu { CFG_CPU_AUTO, CFG_CPU_SCALAR, CFG_CPU_AVX2, CFG_CPU_AVX512 };
enum cfg_bridge_window { CFG_BRIDGE_TRUNCATE, CFG_BRIDGE_FULL };
enum cfg_handoff { CFG_HANDOFF_FULL, CFG_HANDOFF_ENCODER, CFG_HANDOFF_GLOBAL };
enum cfg_routing { CFG_ROUTING_AUTO, CFG_ROUTING_LOAD, CFG_ROUTING_PREFIX };
enum cfg_speculation { CFG_SPECULATION_OFF, CFG_SPECULATION_FIXED, CFG_SPECULATION_DYNAMIC };
enum cfg_acceptance { CFG_ACCEPTANCE_MATCH, CFG_ACCEPTANCE_REJECTION };
enum cfg_engram { CFG_ENGRAM_MAPPED, CFG_ENGRAM_HOST, CFG_ENGRAM_SSD };
enum cfg_budget { CFG_BUDGET_LAGGED, CFG_BUDGET_EARLY_STOP };
enum cfg_lost { CFG_LOST_TAKEOVER, CFG_LOST_WAIT };
enum cfg_provider { CFG_PROVIDER_TCP, CFG_PROVIDER_RDMA };
enum cfg_log_level { CFG_LOG_ERROR, CFG_LOG_WARNING, CFG_LOG_INFO, CFG_LOG_DEBUG };
enum cfg_log_format { CFG_LOG_TEXT, CFG_LOG_JSON };

/* Bits of cfg_node.roles. */
enum cfg_role {
    CFG_ROLE_GATEWAY = 1 << 0,
    CFG_ROLE_PREFILL = 1 << 1,
    CFG_ROLE_DECODE = 1 << 2,
    CFG_ROLE_EXPERT = 1 << 3,
    CFG_ROLE_KV = 1 << 4,
};

/* Where a key was given; line 0: nowhere, the default holds. */
struct cfg_place {
    int file; /* index in cfg_config.files */
    int line;
};
enum { CFG_LINE_COMMAND = -1 }; /* for the line, where the command line has said it instead */

struct cfg_node {
    struct cfg_place place; /* of the opening brace; first in every element of a list */
    char name[CFG_NAME_TEXT];
    unsigned roles;
    char host[CFG_ADDRESS_TEXT];
    char listen[CFG_ADDRESS_TEXT];  /* "HOST:PORT"; "": no gateway */
    char metrics[CFG_ADDRESS_TEXT]; /* "HOST:PORT" of a node without a gateway; "": none */
    char experts[CFG_NAME_TEXT];    /* group of expert shards that it uses or belongs to */
    int port;                       /* for the other nodes; 0: none, one node alone */
};

/* Every field is the key of the same path; docs/CONFIG.md explains each. */
struct cfg_config {
    struct {
        char path[CFG_PATH_TEXT];
        char name[CFG_NAME_TEXT];     /* "": last part of path */
        char revision[CFG_NAME_TEXT]; /* 16 hex digits; "": any */
        int context;                  /* tokens; 0: as many as the model allows */
    } model;
    struct {
        int cpu;     /* enum cfg_cpu */
        int threads; /* 0: one per core */
        int max_batch_rows, prefill_chunk;
    } compute;
    struct {
        int store;     /* enum cfg_engram */
        int64_t cache; /* bytes of rows in memory */
    } engram;
    struct {
        bool exact;
        int rows; /* 0: window of the model + rollback; cfg_replay_rows says how many */
        int rollback;
        int bridge_window; /* enum cfg_bridge_window */
    } replay;
    struct {
        int mode;         /* enum cfg_speculation */
        int draft_length; /* 0: off */
        int acceptance;   /* enum cfg_acceptance */
        int budget;       /* enum cfg_budget */
        double min_gain, probe_share;
        char table_file[CFG_PATH_TEXT]; /* "": step times are measured at every start */
        int64_t measure_us;
        bool group_sync;
    } speculation;
    struct {
        double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
        int top_k;      /* 0: all */
        int max_tokens; /* 0: to the end of the context */
    } sampling;
    struct {
        int64_t request_bytes, header_bytes;
        int requests;    /* at a time */
        int connections; /* at a time */
        int64_t keepalive_us, drain_us, stuck_us, retry_us;
        int64_t unread_bytes, unread_us; /* of one client's output */
    } limits;
    struct {
        int64_t memory, snapshots; /* bytes of KV pages, of snapshots */
        int block_tokens;
        int snapshot_blocks;     /* 0: none between the ends */
        int64_t snapshot_ttl_us; /* since its last use; 0: no limit */
        int64_t host;            /* bytes; 0: no host tier */
        int64_t write_behind;
        bool canary; /* checksums of finished blocks in the device tier */
        int64_t ttl_us, read_timeout_us, hedge_us;
        struct {
            char path[CFG_PATH_TEXT]; /* "": no ssd tier */
            int64_t size, reserve, write_per_day;
            bool direct;
        } ssd;
        struct {
            char path[CFG_PATH_TEXT]; /* "": no shared tier */
            int64_t size, segment, seal_us, poll_us, orphan_us;
            double removals; /* per second */
            bool direct;
            char usrbio[CFG_PATH_TEXT]; /* library; "": ordinary files */
        } shared;
        struct {
            int64_t memory, size, buffer, find_us, quiet_us;
            char path[CFG_PATH_TEXT]; /* "": no ssd tier */
        } nodes;
    } kv;
    struct {
        int decode_streams, prefill_streams;
        int64_t prefill_share_us;
        int expert_shards, prefill_actors, decode_actors;
        int routing; /* enum cfg_routing */
        int handoff; /* enum cfg_handoff */
        int64_t ticket_lease_us;
    } engine;
    struct {
        int wave_rows, slot_rows, spare;
        int lost; /* enum cfg_lost */
        int64_t deadline_us, patience_us, balance_us;
        double gain;
    } experts;
    struct {
        int provider; /* enum cfg_provider */
        struct {
            char devices[CFG_ADDRESS_TEXT];            /* "", "auto", or names separated by commas */
            int class_control, class_kv, class_expert; /* traffic class bytes; 0: the network's default */
            int64_t spin_us, register_max;             /* 0: none; 0: what the device allows */
            int64_t stripe_min;                        /* bytes */
        } rdma;
    } transport;
    struct {
        char keys_file[CFG_PATH_TEXT];                        /* "": no keys are asked for */
        char tls_cert[CFG_PATH_TEXT], tls_key[CFG_PATH_TEXT]; /* both or none */
        bool debug;
    } security;
    struct {
        int level, format;         /* enum cfg_log_level, enum cfg_log_format */
        char file[CFG_PATH_TEXT];  /* "": standard error */
        char trace[CFG_PATH_TEXT]; /* "": none */
        int64_t progress_after_us;
    } log;
    struct {
        char secret_file[CFG_PATH_TEXT], state[CFG_PATH_TEXT];
        int64_t connect_us, ping_us, silence_us, retry_us;
    } cluster;
    struct cfg_node nodes[CFG_NODES_MAX];
    int n_nodes; /* at least 1: without any in the file, one node with every role */

    char files[CFG_FILES_MAX][CFG_PATH_TEXT];
    struct cfg_place places[CFG_KEYS_MAX]; /* by number of the key in the table; keys of nodes are not here */
};

/* Every key at its default. */
void cfg_config_default(struct cfg_config *out);

/* Reads path and the files it includes. All problems go to the report, ordered by file and line (zero it before, free
 * it after). Returns 0; -EINVAL when anything was reported; -ENOENT, -EACCES, ... (reported as well) when path itself
 * cannot be read; -ENOMEM. *out is complete, but meant for use only after 0. */
/* Whether the node computes prompts up to the bridge and nothing else, so that it needs the layers below it only. */
bool cfg_node_is_encoder(const struct cfg_config *c, const struct cfg_node *n);
/* model.revision as a number; 0: any. */
uint64_t cfg_model_revision(const struct cfg_config *c);
int cfg_config_load(const char *path, struct cfg_config *out, struct cfg_report *report);

/* The same from memory, without includes; name stands for the file in messages. */
int cfg_config_parse(const char *text, size_t len, const char *name, struct cfg_config *out, struct cfg_report *report);

/* What depends on the model: window is its sliding window in tokens, max_position the longest context, in tokens, and
 * draft_block how many tokens its drafter can draft (0: it has none). Adds to the report and returns 0 or -EINVAL. */
int cfg_config_check_model(const struct cfg_config *c, int window, int max_position, int draft_block,
                           struct cfg_report *report);

/* Rows of bounded replay for a model with this window. */
int cfg_replay_rows(const struct cfg_config *c, int window);

/* How a prompt goes on behind a known prefix with a model of this window, as in a file without "replay.":
 * "exact = true", which it also is for a model without a cut, or "rows = 140, bridge_window = truncate". Tokens depend
 * on it, so nodes that work on the same prompts need the same. */
void cfg_replay_text(const struct cfg_config *c, int window, bool cut, char *out, size_t size);

/* Whether text is HOST:PORT with a port of 0 to 65535; an IPv6 address is in brackets. */
bool cfg_address_valid(const char *text);

/* HOST:PORT in two, an IPv6 address without its brackets: the host goes to host [size], *port points into text. Looks
 * at neither of them; the host may be a name. -EINVAL: there are no two parts, or no room. */
int cfg_address_split(const char *text, char *host, size_t size, const char **port);

/* Calls differs for every key that has another value in `is`, both as they stand in a file: for keys outside of the
 * list of nodes, except those that the command line has set in `was`; and for those of a node. Any thread. */
typedef void (*cfg_differs)(void *ctx, const char *key, const char *was, const char *is);
void cfg_config_compare(const struct cfg_config *was, const struct cfg_config *is, cfg_differs differs, void *ctx);
void cfg_node_compare(const struct cfg_node *was, const struct cfg_node *is, cfg_differs differs, void *ctx);
/* The value of this key (outside of the list of nodes) is of the command line. */
void cfg_config_overrides(struct cfg_config *c, const char *key);
/* Whether nodes that compute are to be ready for kv nodes: some are there, or kv.nodes says something about those that
 * may come. */
bool cfg_uses_kv_nodes(const struct cfg_config *c);

/* Where this kv node keeps its files. -ENAMETOOLONG. */
int cfg_kv_folder(const struct cfg_config *c, const struct cfg_node *n, char *out, size_t size);
/* "HOST:PORT" under which the other nodes reach it. */
void cfg_node_address(const struct cfg_node *n, char *out, size_t size);
/* "prefill,decode" */
void cfg_roles_text(unsigned roles, char *out, size_t size);

/* Where a key was given; line 0: nowhere, or there is no such key. */
struct cfg_place cfg_config_place(const struct cfg_config *c, const char *key);

/* The node with this name, or NULL. */
const struct cfg_node *cfg_config_node(const struct cfg_config *c, const char *name);

/* Prints every key of the table, or the one named key (path as in "compute.threads"), for people or as Markdown.
 * Returns 0, or -ENOENT with a message in err when there is no such key. */
int cfg_explain(const char *key, FILE *f, struct cfg_error *err);
void cfg_explain_markdown(FILE *f);

/* Prints c as a configuration file that loads to the same values. Keys at their default are printed too. */
void cfg_config_dump(const struct cfg_config *c, FILE *f);

#endif
