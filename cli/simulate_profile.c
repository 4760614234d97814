#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/simulate.h"
#include "cli/text.h"

enum { SEQUENCES_MAX = 4096 };

uint64_t sim_hash(uint64_t a, uint64_t b)
{
    uint64_t z = (a ^ b * UINT64_C(0x9e3779b97f4a7c15)) + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

double sim_uniform(uint64_t *state)
{
    *state = sim_hash(*state, 1);
    return ((double)(*state >> 11) + 0.5) * 0x1p-53;
}

double sim_normal(uint64_t *state)
{
    double r = sqrt(-2 * log(sim_uniform(state)));
    return r * cos(2 * M_PI * sim_uniform(state));
}

double sim_group_ns(const struct sim_group *g, int ranks)
{
    if (!g->ranks || ranks < 1)
        return 0;
    double of = g->ranks, now = ranks, away = of > 1 ? (now - 1) / now / ((of - 1) / of) : 1;
    return 1e3 * (g->weights_us * (of / now - 1) + g->exchange_us * (away - 1) + g->peer_us * (now - of));
}

/* ---- members ---- */

enum kind { NUMBER, INTEGER, FLAG, TEXT, CURVE, GROUP };

struct member {
    const char *name;
    enum kind kind;
    void *to;
    double least, most;
    bool needed;
};

static int read_curve(const json_t *list, const char *name, struct act_steptime_curve *out, struct cfg_error *err)
{
    size_t i;
    json_t *p;
    out->n = 0;
    json_array_foreach ((json_t *)list, i, p) {
        const json_t *at = json_array_get(p, 0), *us = json_array_get(p, 1);
        json_int_t n = json_integer_value(at);
        double v = json_number_value(us);
        if (!json_is_integer(at) || !json_is_number(us) || n < 1 || n > 1 << 24 || !(v > 0 && v <= 1e9) ||
            act_steptime_add(out, (int)n, 1e3 * v))
            return cfg_error_set(err, EINVAL, "%s[%zu] must be [rows, microseconds], both positive, at most %d points",
                                 name, i, ACT_STEPTIME_POINTS);
    }
    return out->n < 2 ? cfg_error_set(err, EINVAL, "%s needs at least two points [rows, microseconds]", name) : 0;
}

static int read_members(const json_t *j, const char *where, const struct member *m, struct cfg_error *err);

static int read_group(const json_t *j, struct sim_group *g, const char *name, struct cfg_error *err)
{
    const struct member members[] = {
        {"ranks", INTEGER, &g->ranks, 1, 65536, true},
        {"weights_us", NUMBER, &g->weights_us, 0, 1e9, true},
        {"exchange_us", NUMBER, &g->exchange_us, 0, 1e9, true},
        {"peer_us", NUMBER, &g->peer_us, 0, 1e9, true},
        {.name = NULL},
    };
    return read_members(j, name, members, err);
}

/* [{"drafts": 2, "us": curve}, ...] */
static int read_levels(const json_t *list, const char *name, struct act_steptime *out, struct cfg_error *err)
{
    size_t i;
    json_t *one;
    if (!json_is_array(list))
        return cfg_error_set(err, EINVAL, "%s must be a list", name);
    json_array_foreach ((json_t *)list, i, one) {
        struct act_steptime_curve curve;
        int drafts = 0;
        char where[64];
        const struct member members[] = {
            {"drafts", INTEGER, &drafts, 1, ACT_PLAN_BLOCK_MAX, true},
            {"us", CURVE, &curve, 0, 0, true},
            {.name = NULL},
        };
        snprintf(where, sizeof where, "%s[%zu]", name, i);
        int r = read_members(one, where, members, err);
        for (int k = 0; !r && k < curve.n; k++) {
            int requests = curve.at[k] / (drafts + 1);
            if (drafts >= out->block || curve.at[k] % (drafts + 1) ||
                act_steptime_add_batch(out, requests, drafts, curve.raw[k]))
                r = cfg_error_set(err, EINVAL,
                                  "%s: rows must be requests times (drafts + 1), of fewer drafts than a block, for at "
                                  "most %d numbers of them",
                                  where, ACT_STEPTIME_BETWEEN);
        }
        if (r)
            return r;
    }
    return 0;
}

static int read_member(const json_t *v, const char *name, const struct member *m, struct cfg_error *err)
{
    double x = json_number_value(v);
    bool in = x >= m->least && x <= m->most;
    switch (m->kind) {
    case NUMBER:
        if (!json_is_number(v) || !in)
            return cfg_error_set(err, EINVAL, "%s must be a number from %g to %g", name, m->least, m->most);
        *(double *)m->to = x;
        return 0;
    case INTEGER:
        if (!json_is_integer(v) || !in)
            return cfg_error_set(err, EINVAL, "%s must be %.0f to %.0f", name, m->least, m->most);
        *(int *)m->to = (int)x;
        return 0;
    case FLAG:
        if (!json_is_boolean(v))
            return cfg_error_set(err, EINVAL, "%s must be true or false", name);
        *(bool *)m->to = json_is_true(v);
        return 0;
    case TEXT:
        if (!json_is_string(v))
            return cfg_error_set(err, EINVAL, "%s must be a text", name);
        snprintf(m->to, (size_t)m->most, "%s", json_string_value(v));
        cli_text_clean(m->to);
        return 0;
    case CURVE:
        return read_curve(v, name, m->to, err);
    case GROUP:
        return read_group(v, m->to, name, err);
    }
    return 0;
}

/* Every member of the object is known, every needed one is there. */
static int read_members(const json_t *j, const char *where, const struct member *m, struct cfg_error *err)
{
    const char *key;
    json_t *v;
    char name[64];
    if (!json_is_object(j))
        return cfg_error_set(err, EINVAL, "%s must be an object", *where ? where : "a profile");
    json_object_foreach ((json_t *)j, key, v) {
        const struct member *k = m;
        while (k->name && strcmp(k->name, key))
            k++;
        snprintf(name, sizeof name, "%s%s%.30s", where, *where ? "." : "", key);
        if (!k->name)
            return cfg_error_set(err, EINVAL, "%s is not a member of a profile; docs/FORMATS.md lists them", name);
        int r = k->to ? read_member(v, name, k, err) : 0;
        if (r)
            return r;
    }
    for (; m->name; m++)
        if (m->needed && !json_object_get(j, m->name)) {
            snprintf(name, sizeof name, "%s%s%s", where, *where ? "." : "", m->name);
            if (m->kind == NUMBER)
                return cfg_error_set(err, EINVAL, "%s must be a number from %g to %g", name, m->least, m->most);
            return cfg_error_set(err, EINVAL, "%s is missing", name);
        }
    return 0;
}

static int read_accept(const json_t *j, struct sim_profile *p, struct cfg_error *err)
{
    const struct member members[] = {
        {"base", NUMBER, &p->base, -20, 20, true},
        {"slope", NUMBER, &p->slope, -20, 20, true},
        {"spread", NUMBER, &p->spread, 0, 20, true},
        {"persist", NUMBER, &p->persist, 0, 1, true},
        {.name = NULL},
    };
    return read_members(j, "accept", members, err);
}

static int read_prefill(const json_t *j, struct sim_profile *p, struct cfg_error *err)
{
    const struct member members[] = {
        {"encoder_us", CURVE, &p->encoder, 0, 0, true},
        {"tail_us", CURVE, &p->tail, 0, 0, false},
        {"replay", INTEGER, &p->replay, 0, 65536, false},
        {"chunk", INTEGER, &p->chunk, 16, 65536, false},
        {"prompts", INTEGER, &p->prompts, 1, 1024, false},
        {"ranks", INTEGER, &p->prefill, 1, 4096, false},
        {"layers_below", INTEGER, &p->layers[0], 1, 1024, false},
        {"layers_behind", INTEGER, &p->layers[1], 1, 1024, false},
        {"expert_share", NUMBER, &p->expert_share, 0, 1, false},
        {"expert_parts", INTEGER, &p->expert_parts, 1, 4096, false},
        {"common_op_us", NUMBER, &p->common_op_us, 0, 1e9, false},
        {"common_token_us", NUMBER, &p->common_token_us, 0, 1e6, false},
        {"group", GROUP, &p->prefill_group, 0, 0, false},
        {.name = NULL},
    };
    return read_members(j, "prefill", members, err);
}

static int read_decode(const json_t *j, struct sim_profile *p, struct cfg_error *err)
{
    double tokens = (double)p->kv_tokens;
    const struct member members[] = {
        {"streams", INTEGER, &p->streams, 1, SEQUENCES_MAX, false},
        {"kv_tokens", NUMBER, &tokens, 1024, 1e10, false},
        {"block_tokens", INTEGER, &p->block_tokens, 16, 65536, false},
        {"context", INTEGER, &p->context, 64, 1 << 22, false},
        {"ranks", INTEGER, &p->decode, 1, 16384, false},
        {"group", GROUP, &p->decode_group, 0, 0, false},
        {"lockstep", FLAG, &p->lockstep, 0, 0, false},
        {.name = NULL},
    };
    int r = read_members(j, "decode", members, err);
    if (!r && p->block_tokens % 2)
        r = cfg_error_set(err, EINVAL, "decode.block_tokens must be even");
    p->kv_tokens = (int64_t)tokens;
    return r;
}

static int finish(struct sim_profile *p, struct cfg_error *err)
{
    for (int n = 1; !p->table.draft.n && n <= SEQUENCES_MAX; n *= SEQUENCES_MAX) /* part of the step times */
        if (act_steptime_add(&p->table.draft, n, 1))
            break;
    p->table.pick_ns *= 1e3; /* from us */
    if (!act_steptime_usable(&p->table))
        return cfg_error_set(err, EINVAL, "plain_us and full_us need at least two points [rows, microseconds] each");
    int point;
    const char *why, *curve = act_steptime_doubt(&p->table, &point, &why);
    if (curve && (strcmp(curve, "draft") || p->table.draft.raw[0] != 1)) /* 1: of above */
        return cfg_error_set(err, EINVAL, "%s_us[%d]: the time %s", curve, point - 1, why);
    if (p->kv_tokens / p->block_tokens < 2 || p->kv_tokens / p->block_tokens > 1 << 24)
        return cfg_error_set(err, EINVAL, "decode.kv_tokens must be 2 to %d blocks of decode.block_tokens", 1 << 24);
    if ((int64_t)p->context > p->kv_tokens)
        p->context = (int)p->kv_tokens;
    if (p->prompt_tokens >= p->context || p->output_tokens > p->context - p->prompt_tokens)
        return cfg_error_set(err, EINVAL,
                             "prompt_tokens %d and output_tokens %d, the mean lengths, are more than the context of %d "
                             "tokens (decode.context, and not more than decode.kv_tokens)",
                             p->prompt_tokens, p->output_tokens, p->context);
    return 0;
}

int sim_profile_read(const json_t *j, struct sim_profile *p, struct cfg_error *err)
{
    *p = (struct sim_profile){.replay = 128,
                              .chunk = 4096,
                              .common_op_us = 500,
                              .common_token_us = 0.2,
                              .prompts = 8,
                              .layers = {8, 8},
                              .expert_parts = 1,
                              .streams = 256,
                              .block_tokens = 256,
                              .context = 131072,
                              .kv_tokens = INT64_C(1) << 23,
                              .decode = 1,
                              .prefill = 1,
                              .prompt_tokens = 64};
    act_steptime_init(&p->table, 1);
    const struct member members[] = {
        {"name", TEXT, p->name, 0, sizeof p->name, false},
        {"model_revision", TEXT, p->model_revision, 0, sizeof p->model_revision, false},
        {"block", INTEGER, &p->block, 1, ACT_PLAN_BLOCK_MAX, true},
        {"plan_us", NUMBER, &p->plan_us, 0, 1e6, true},
        {"noise", NUMBER, &p->noise, 0, 1, true},
        {"table_error", NUMBER, &p->table_error, 0, 1, true},
        {"price_per_device_hour", NUMBER, &p->price, 0, 1e6, true},
        {"accept", GROUP, NULL, 0, 0, true},
        {"output_tokens", INTEGER, &p->output_tokens, 1, 1 << 22, true},
        {"prompt_tokens", INTEGER, &p->prompt_tokens, 1, 1 << 22, false},
        {"plain_us", CURVE, &p->table.plain, 0, 0, true},
        {"full_us", CURVE, &p->table.full, 0, 0, true},
        {"between_us", GROUP, NULL, 0, 0, false},
        {"draft_us", CURVE, &p->table.draft, 0, 0, false},
        {"pick_us", NUMBER, &p->table.pick_ns, 0, 1e6, false},
        {"exchange_us", CURVE, &p->exchange, 0, 0, false},
        {"network_us", NUMBER, &p->network_us, 0, 1e6, false},
        {"emit_us", NUMBER, &p->emit_us, 0, 1e6, false},
        {"request_us", NUMBER, &p->request_us, 0, 1e6, false},
        {"token_us", NUMBER, &p->token_us, 0, 1e6, false},
        {"share_us", NUMBER, &p->share_us, 0, 1e8, false},
        {"one_process", FLAG, &p->one_process, 0, 0, false},
        {"prefill", GROUP, NULL, 0, 0, false},
        {"decode", GROUP, NULL, 0, 0, false},
        {.name = NULL},
    };
    const json_t *prefill = json_object_get(j, "prefill"), *decode = json_object_get(j, "decode");
    int r = read_members(j, "", members, err);
    if (!r)
        r = read_accept(json_object_get(j, "accept"), p, err);
    if (!r && prefill)
        r = read_prefill(prefill, p, err);
    if (!r && decode)
        r = read_decode(decode, p, err);
    p->table.block = p->block;
    const json_t *levels = json_object_get(j, "between_us");
    if (!r && levels)
        r = read_levels(levels, "between_us", &p->table, err);
    return r ? r : finish(p, err);
}

static void blur(struct act_steptime_curve *c, double error, uint64_t *random)
{
    for (int i = 0; i < c->n; i++)
        act_steptime_add(c, c->at[i], c->raw[i] * exp(error * sim_normal(random)));
}

int sim_profile_believed(const struct sim_profile *p, uint64_t seed, struct act_steptime *out)
{
    *out = p->table;
    for (int i = 0; p->exchange.n && i < out->plain.n; i++)
        act_steptime_add(&out->plain, out->plain.at[i],
                         out->plain.raw[i] + act_steptime_at(out, &p->exchange, out->plain.at[i]));
    for (int i = 0; p->exchange.n && i < out->full.n; i++)
        act_steptime_add(&out->full, out->full.at[i],
                         out->full.raw[i] + act_steptime_at(out, &p->exchange, out->full.at[i]));
    for (int k = 0; k < out->n_between; k++) {
        struct act_steptime_curve *c = &out->between[k].curve;
        for (int i = 0; p->exchange.n && i < c->n; i++)
            act_steptime_add(c, c->at[i], c->raw[i] + act_steptime_at(out, &p->exchange, c->at[i]));
        blur(c, p->table_error, &seed);
    }
    blur(&out->plain, p->table_error, &seed);
    blur(&out->full, p->table_error, &seed);
    blur(&out->draft, p->table_error, &seed);
    return act_steptime_usable(out) ? 0 : -EINVAL;
}
