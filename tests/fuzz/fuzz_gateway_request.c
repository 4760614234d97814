/* Any bytes as the body of any protocol: refused with an error that is JSON, or a request that the chat form takes and
 * that a reply can be written for. The first byte chooses the protocol. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/reply.h"
#include "model/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int ok)
{
    if (!ok)
        __builtin_trap();
}

static void check_json(const char *text, size_t len)
{
    json_t *v = json_loadb(text, len, 0, NULL);
    require(v != NULL);
    json_decref(v);
}

static void check_error(enum gw_protocol protocol, const struct gw_error *err)
{
    size_t len;
    require(err->status == 400 && err->message[0] && err->type[0]);
    char *body = gw_error_body(protocol, err, &len);
    require(body != NULL);
    check_json(body, len);
    free(body);
}

static void check_reply(const struct gw_request *r)
{
    static const struct gw_usage usage = {5, 1, 2, 1};
    static const struct gw_event events[] = {
        {GW_EV_REASONING, 0, "a", 1},  {GW_EV_TEXT, 0, "b", 1},    {GW_EV_CALL_BEGIN, 0, "f", 1},
        {GW_EV_CALL_ARGS, 0, "{}", 2}, {GW_EV_CALL_END, 0, "", 0},
    };
    struct gw_bytes out = {0};
    struct gw_reply *reply = gw_reply_new(r, "id", "model", 0);
    require(reply && gw_reply_begin(reply, &usage, &out) == 0);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        require(gw_reply_event(reply, &events[i], &out) == 0);
    require(gw_reply_finish(reply, GW_FINISH_STOP, NULL, &usage, &out) == 0 && out.n > 0);
    if (!r->stream)
        check_json(out.p, out.n);
    else
        require(out.n > 2 && memcmp(out.p + out.n - 2, "\n\n", 2) == 0);
    gw_bytes_free(&out);
    gw_reply_free(reply);
}

static void check_request(const struct gw_request *r)
{
    struct cfg_error err = {{0}};
    struct gw_error e;
    require(r->max_tokens >= 0 && r->n_stop <= GW_MAX_STOPS && r->n_bias <= GW_MAX_LOGIT_BIAS);
    require((r->conversation != NULL) == (r->protocol != GW_COMPLETIONS));
    if (r->conversation) {
        struct mdl_chat_prompt prompt = {0};
        require(mdl_chat_render(r->conversation, NULL, &prompt, &err) == 0);
        mdl_chat_prompt_free(&prompt);
    } else {
        require((r->prompt != NULL) != (r->prompt_ids != NULL));
    }
    if (!gw_request_check_ids(r, 1000, &e))
        check_error(r->protocol, &e);
    check_reply(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gw_request r;
    struct gw_error err;
    if (size == 0)
        return 0;
    int which = data[0] % 5;
    enum gw_protocol protocol = which == 4 ? GW_MESSAGES : (enum gw_protocol)which;
    const char *body = (const char *)data + 1;
    bool ok = which == 4 ? gw_request_parse_count(body, size - 1, &r, &err)
                         : gw_request_parse(protocol, body, size - 1, &r, &err);
    if (!ok) {
        check_error(protocol, &err);
        return 0;
    }
    check_request(&r);
    gw_request_free(&r);
    return 0;
}
