/* POST /v1/completions. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/request_impl.h"

enum { DEFAULT_MAX_TOKENS = 16, MAX_PROMPT_IDS = 16 << 20 };

static bool take_text(struct gw_parse *p, const json_t *v)
{
    struct gw_request *r = p->out;
    size_t len = json_string_length(v);
    r->prompt = malloc(len + 1);
    if (!r->prompt)
        return gw_fail_memory(p);
    memcpy(r->prompt, json_string_value(v), len + 1);
    r->prompt_len = len;
    return true;
}

static bool take_ids(struct gw_parse *p, const json_t *list)
{
    struct gw_request *r = p->out;
    size_t n = json_array_size(list);
    if (n > MAX_PROMPT_IDS)
        return gw_fail(p, "prompt", "has %zu token ids; at most %d are allowed", n, MAX_PROMPT_IDS);
    r->prompt_ids = calloc(n, sizeof *r->prompt_ids);
    if (!r->prompt_ids)
        return gw_fail_memory(p);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!gw_want_int(p, gw_path(p, "prompt[%zu]", i), json_array_get(list, i), 0, INT_MAX, &id))
            return false;
        r->prompt_ids[i] = (int32_t)id;
    }
    r->n_prompt_ids = (int)n;
    return true;
}

/* A text, a list of one text, a list of ids, or a list of one list of ids. */
static bool read_prompt(struct gw_parse *p, const char *name, const json_t *v)
{
    const json_t *first = json_array_get(v, 0);
    if (json_is_string(v))
        return take_text(p, v);
    if (!json_is_array(v))
        return gw_fail(p, name, "must be a string, a list of one string or a list of token ids, not %s",
                       gw_json_kind(v));
    if (!first)
        return gw_fail(p, name, "must not be an empty list");
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(v) > 1)
            return gw_fail(p, name, "holds %zu prompts; one per request is supported by this server",
                           json_array_size(v));
        if (json_is_string(first))
            return take_text(p, first);
        v = first;
        if (json_array_size(v) == 0)
            return gw_fail(p, name, "must not be an empty list");
    }
    return take_ids(p, v);
}

static bool read_suffix(struct gw_parse *p, const char *name, const json_t *v)
{
    const char *s;
    if (!gw_want_string(p, name, v, &s))
        return false;
    return !*s || gw_fail(p, name, "not supported by this server: it writes only behind the prompt");
}

static bool read_echo(struct gw_parse *p, const char *name, const json_t *v)
{
    return gw_want_bool(p, name, v, &p->out->echo);
}

static bool read_logprobs(struct gw_parse *p, const char *name, const json_t *v)
{
    int64_t n;
    if (json_is_false(v))
        return true;
    if (!gw_want_int(p, name, v, 0, GW_MAX_TOP_LOGPROBS, &n))
        return false;
    p->out->logprobs = true;
    p->out->top_logprobs = (int)n;
    return true;
}

static bool read_format(struct gw_parse *p, const char *name, const json_t *v)
{
    return gw_check_format(p, name, v);
}

static bool finish(struct gw_parse *p)
{
    struct gw_request *r = p->out;
    if (!r->prompt && !r->prompt_ids)
        return gw_fail(p, "prompt", "is missing");
    if (r->echo && r->logprobs)
        return gw_fail(p, "logprobs", "together with echo is not supported by this server");
    if (!gw_member(p->root, "max_tokens"))
        r->max_tokens = DEFAULT_MAX_TOKENS; /* what the protocol says */
    return true;
}

static const struct gw_field fields[] = {
    {"prompt", read_prompt, NULL},
    {"model", gw_read_model, NULL},
    {"max_tokens", gw_read_max_tokens, NULL},
    {"temperature", gw_read_temperature, NULL},
    {"top_p", gw_read_top_p, NULL},
    {"top_k", gw_read_top_k, NULL},
    {"min_p", gw_read_min_p, NULL},
    {"presence_penalty", gw_read_penalty, NULL},
    {"frequency_penalty", gw_read_penalty, NULL},
    {"repetition_penalty", gw_read_penalty, NULL},
    {"seed", gw_read_seed, NULL},
    {"stop", gw_read_stop, NULL},
    {"stream", gw_read_stream, NULL},
    {"stream_options", gw_read_stream_options, NULL},
    {"logit_bias", gw_read_logit_bias, NULL},
    {"logprobs", read_logprobs, NULL},
    {"echo", read_echo, NULL},
    {"suffix", read_suffix, NULL},
    {"ignore_eos", gw_read_ignore_eos, NULL},
    {"n", gw_read_one, NULL},
    {"best_of", gw_read_one, NULL},
    {"response_format", read_format, NULL},
    {"cache_salt", gw_read_cache_salt, NULL},
    {"user", gw_read_user, NULL},
    {"metadata", NULL, NULL},
    {"store", NULL, NULL},
    {"service_tier", NULL, NULL},
    {"safety_identifier", NULL, NULL},
    {"prompt_cache_key", NULL, NULL},
    {"tools", NULL, "use /v1/chat/completions"},
    {"messages", NULL, "use /v1/chat/completions"},
    {"guided_json", NULL, "structured output"},
    {"guided_regex", NULL, "structured output"},
    {"guided_choice", NULL, "structured output"},
    {"guided_grammar", NULL, "structured output"},
    {"grammar", NULL, "structured output"},
    {"structured_outputs", NULL, "structured output"},
    {NULL, NULL, NULL},
};

const struct gw_codec gw_completions_codec = {fields, finish};
