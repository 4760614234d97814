/* From the configuration to what a node's actors start with: the model, the limits of the engine, the settings of the
 * gateway. Everything that can be wrong with a configuration for this model is found here, before an actor exists. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "actors/runtime/log.h"
#include "actors/server_impl.h"
#include "actors/speculate_start.h"
#include "model/chat.h"
#include "model/team.h"

/* A model without the chat's markers still serves completions. Who starts it learns of it before the first chat does.
 */
static void warn_of_missing_markers(const struct act_server *s)
{
    struct cfg_error why = {0};
    if (mdl_chat_check(s->tok, false, &why))
        act_log_write(s->log, ACT_LOG_WARNING, "serve", 0, "chats will be refused: %s", why.msg);
    else if (mdl_chat_check(s->tok, true, &why))
        act_log_write(s->log, ACT_LOG_WARNING, "serve", 0, "chats with tools will be refused: %s", why.msg);
}

static int open_model(struct act_server *s, struct cfg_error *err)
{
    static const char *const paths[] = {NULL, "scalar", "avx2", "avx512"};
    const struct cfg_config *c = s->config;
    const char *cpu = getenv("WEFT_CPU") ? NULL : paths[c->compute.cpu];
    enum mdl_part part = cfg_node_is_encoder(c, s->node) ? MDL_PART_ENCODER : MDL_PART_ALL;
    int r = mdl_model_open_part(c->model.path, part, cfg_model_revision(c), c->compute.threads, cpu, &s->m, err);
    if (!r && part == MDL_PART_ENCODER)
        act_log_event(s->log, ACT_LOG_INFO, "serve", 0, "encoder_only", "layers=%d of=%d mapped_mib=%zu revision=%s",
                      s->m->cfg->cut, s->m->cfg->n_layers, s->m->ck->mapped >> 20,
                      s->m->ck->revision_given ? "not_verified" : "verified");
    if (!r)
        r = mdl_tokenizer_load(c->model.path, &s->tok, err);
    if (!r)
        r = mdl_tok_encoder_new(s->tok, &s->enc[0], err);
    if (!r)
        r = mdl_tok_encoder_new(s->tok, &s->enc[1], err);
    if (!r && mdl_tokenizer_vocab_size(s->tok) > s->m->cfg->vocab_size)
        r = cfg_error_set(err, EINVAL, "%s: the tokenizer has %d ids, the model only %d", c->model.path,
                          mdl_tokenizer_vocab_size(s->tok), s->m->cfg->vocab_size);
    return r == -EINVAL ? -EBADMSG : r;
}

/* The first thing in the configuration that does not fit the model. */
static int check_config(const struct act_server *s, struct cfg_error *err)
{
    const struct mdl_config *m = s->m->cfg;
    struct cfg_report report = {0};
    int r = cfg_config_check_model(s->config, m->window, m->max_position, m->n_draft ? m->draft_block : 0, &report);
    if (r && report.count) {
        const struct cfg_problem *p = &report.problems[0];
        cfg_error_set(err, EINVAL, "%s:%d: %s. %s", p->file, p->line, p->message, p->remedy);
    } else if (r) {
        cfg_error_set(err, EINVAL, "the configuration does not fit the model");
    }
    cfg_report_free(&report);
    return r;
}

static int plan_engine(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    const struct mdl_config *m = s->m->cfg;
    struct act_engine *e = &s->engine;
    int per = c->kv.block_tokens;
    e->m = s->m;
    e->vocab = mdl_tokenizer_vocab_size(s->tok);
    int r = mdl_kv_layout_init(m, per, &e->layout, err);
    if (r)
        return r;
    int64_t pages = c->kv.memory / (int64_t)e->layout.block_bytes;
    if (pages < 2 || pages > INT32_MAX)
        return cfg_error_set(err, EINVAL, "kv.memory = %lld holds %lld pages of %zu bytes; give room for at least 2",
                             (long long)c->kv.memory, (long long)pages, e->layout.block_bytes);
    int context = c->model.context ? c->model.context : m->max_position;
    if (context > pages * per)
        context = (int)(pages * per);
    e->limits = (struct act_engine_limits){.context = context,
                                           .streams = c->engine.decode_streams,
                                           .prefills = c->engine.prefill_streams,
                                           .chunk = c->compute.prefill_chunk,
                                           .replay = c->replay.exact || m->cut < 0 ? 0 : cfg_replay_rows(c, m->window),
                                           .rollback = c->replay.rollback,
                                           .full_bridge = c->replay.bridge_window == CFG_BRIDGE_FULL,
                                           .lease = pages > 64 ? 8 : 1,
                                           .prefill_share_ns = c->engine.prefill_share_us * 1000};
    e->form = (enum mdl_handoff_form)c->engine.handoff;
    e->group_sync = c->speculation.group_sync;
    e->node = (uint16_t)(s->node - c->nodes + 1);
    e->tickets.lease = c->engine.ticket_lease_us * 1000;
    r = act_speculation_prepare(c, s->log, server_has(s, CFG_ROLE_DECODE), e, err);
    if (r)
        return r;
    e->snapshot_blocks = c->kv.snapshot_blocks;
    e->snapshots = c->kv.snapshots > 0 && e->limits.replay > 0 && e->limits.rollback > 0;
    r = server_kv_open(s, err);
    if (r || !server_has(s, CFG_ROLE_PREFILL | CFG_ROLE_DECODE))
        return r;
    r = kv_device_new((int)pages, e->layout.block_bytes, (size_t)c->kv.snapshots, &e->device, err);
    if (!r && c->kv.canary && kv_device_canary(e->device))
        r = cfg_error_set(err, ENOMEM, "no memory for kv.canary");
    if (!r)
        kv_device_ttl(e->device, c->kv.ttl_us * 1000, c->kv.snapshot_ttl_us * 1000);
    r = r ? r : server_tiers_open(s, err);
    return r ? r : server_engram_open(s, err);
}

static int plan_gateway(struct act_server *s, struct cfg_error *err)
{
    const struct cfg_config *c = s->config;
    struct gw_context *g = &s->gateway;
    struct gw_settings *set = &g->settings;
    int r = server_plan_http(s, "listen", s->node->listen, err);
    if (r)
        return r;
    set->default_max_tokens = c->sampling.max_tokens;
    set->max_requests = c->limits.requests;
    mdl_sampling_init(&set->sampling);
    set->sampling.temperature = c->sampling.temperature;
    set->sampling.top_p = c->sampling.top_p;
    set->debug = c->security.debug;
    set->keepalive_ms = (int)(c->limits.keepalive_us / 1000);
    g->model = s->m->cfg;
    g->tok = s->tok;
    g->here = g->there = (struct gw_prompts){.tok = s->tok,
                                             .enc = s->enc[0],
                                             .bos_id = s->m->cfg->bos_id,
                                             .vocab = s->m->cfg->vocab_size,
                                             .block_tokens = c->kv.block_tokens,
                                             .identity = {.revision = set->revision,
                                                          .format = KV_FORMAT_ROWS,
                                                          .block_tokens = (uint32_t)c->kv.block_tokens,
                                                          .numerics = set->numerics}};
    g->there.enc = s->enc[1];
    g->block_tokens = c->kv.block_tokens;
    g->drained = server_on_drained;
    if (c->log.trace[0] &&
        gw_trace_open(c->log.trace, c->kv.block_tokens, s->engine.layout.block_bytes, s->log, &g->trace, err))
        return -EINVAL;
    return 0;
}

int server_plan(struct act_server *s, struct cfg_error *err)
{
    int r = open_model(s, err);
    if (r)
        return r;
    if (server_has(s, CFG_ROLE_GATEWAY))
        warn_of_missing_markers(s);
    r = check_config(s, err);
    if (!r)
        r = plan_engine(s, err);
    if (!r && server_has(s, CFG_ROLE_GATEWAY))
        r = plan_gateway(s, err);
    else if (!r && s->node->metrics[0])
        r = server_plan_http(s, "metrics", s->node->metrics, err);
    return r;
}
