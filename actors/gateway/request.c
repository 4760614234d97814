/* From bytes to a neutral request: JSON with limits, the protocol's table of fields, then what spans several fields. */
#include "actors/gateway/request.h"

#include <stdlib.h>
#include <string.h>

#include "actors/gateway/json_scan.h"
#include "actors/gateway/request_impl.h"

static const struct gw_codec *codec_of(enum gw_protocol protocol)
{
    switch (protocol) {
    case GW_CHAT:
        return &gw_chat_codec;
    case GW_COMPLETIONS:
        return &gw_completions_codec;
    case GW_RESPONSES:
        return &gw_responses_codec;
    case GW_MESSAGES:
        break;
    }
    return &gw_messages_codec;
}

/* The parser's own words are kept; the field in which it stopped is found by its position. */
static json_t *load_body(struct gw_parse *p, const char *body, size_t len)
{
    json_error_t je;
    char field[sizeof p->path];
    json_t *root = gw_json_load(body, len, JSON_REJECT_DUPLICATES, &je);
    if (root && json_is_object(root))
        return root;
    if (root) {
        gw_fail(p, NULL, "the body must be a JSON object, not %s", gw_json_kind(root));
        json_decref(root);
        return NULL;
    }
    if (json_error_code(&je) == json_error_out_of_memory) {
        gw_fail_memory(p);
        return NULL;
    }
    gw_json_field_at(body, len, je.position > 0 ? (size_t)je.position : 0, field, sizeof field);
    if (json_error_code(&je) == json_error_null_character)
        gw_fail(p, field, "a string holds \\u0000, which no text may contain");
    else
        gw_fail(p, field, "the body is not valid JSON: %.150s (line %d, byte %d)", je.text, je.line, je.position);
    return NULL;
}

static const struct gw_field *find_field(const struct gw_codec *c, const char *name)
{
    for (const struct gw_field *f = c->field; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

static bool read_fields(struct gw_parse *p, const struct gw_codec *c)
{
    const char *name;
    json_t *v;
    json_object_foreach ((json_t *)p->root, name, v) {
        const struct gw_field *f = find_field(c, name);
        if (json_is_null(v))
            continue;
        if (!f)
            return gw_fail(p, name, "this field is not supported by this server");
        if (f->why)
            return gw_fail(p, name, "not supported by this server: %s", f->why);
        if (f->read && !f->read(p, f->name, v))
            return false;
    }
    return true;
}

static bool parse(struct gw_parse *p, const char *body, size_t len)
{
    struct gw_request *r = p->out;
    const struct gw_codec *c = codec_of(p->protocol);
    memset(p->err, 0, sizeof *p->err);
    memset(r, 0, sizeof *r);
    r->protocol = p->protocol;
    r->temperature = r->top_p = r->repetition_penalty = 1;
    r->parallel_tools = true;
    json_t *root = load_body(p, body, len);
    if (!root) {
        gw_request_free(r);
        return false;
    }
    p->root = root;
    p->messages = json_array();
    p->conversation = json_object();
    bool ok = !json_object_set_new(p->conversation, "messages", p->messages) || gw_fail_memory(p);
    ok = ok && read_fields(p, c) && c->finish(p);
    json_decref(p->conversation);
    json_decref(p->calls);
    json_decref(p->tool_names);
    json_decref(root);
    if (!ok)
        gw_request_free(r);
    return ok;
}

bool gw_request_parse(enum gw_protocol protocol, const char *body, size_t len, struct gw_request *out,
                      struct gw_error *err)
{
    struct gw_parse p = {.protocol = protocol, .out = out, .err = err};
    return parse(&p, body, len);
}

bool gw_request_parse_count(const char *body, size_t len, struct gw_request *out, struct gw_error *err)
{
    struct gw_parse p = {.protocol = GW_MESSAGES, .count = true, .out = out, .err = err};
    return parse(&p, body, len);
}

void gw_request_free(struct gw_request *r)
{
    free(r->forced);
    json_decref(r->conversation);
    json_decref(r->tools);
    json_decref(r->settings);
    free(r->prompt);
    free(r->prompt_ids);
    free(r->bias);
    for (int i = 0; i < r->n_stop; i++)
        free(r->stop[i].text);
    memset(r, 0, sizeof *r);
}

bool gw_request_check_ids(const struct gw_request *r, int vocab, struct gw_error *err)
{
    for (int i = 0; i < r->n_prompt_ids; i++)
        if (r->prompt_ids[i] >= vocab) {
            gw_error_set(err, r->protocol, 400, "prompt", "token id %d at place %d; the model has ids below %d",
                         r->prompt_ids[i], i, vocab);
            return false;
        }
    for (int i = 0; i < r->n_bias; i++)
        if (r->bias[i].id >= vocab) {
            gw_error_set(err, r->protocol, 400, "logit_bias", "token id %d; the model has ids below %d", r->bias[i].id,
                         vocab);
            return false;
        }
    return true;
}
