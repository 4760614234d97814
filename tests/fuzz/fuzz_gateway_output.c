/* Any text through the output machine, cut in three ways: the events must be equal, arguments must be JSON objects, and
 * no stop string may be read by the client. The first byte holds options, the second the length of a stop string, which
 * follows, and whether the text is cut off; control bytes of the text stand for pieces of the markup. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/output.h"
#include "model/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 4096 };

static const char *const pieces[] = {
    [1] = "<" MDL_CHAT_DSML " ",
    [2] = "</" MDL_CHAT_DSML " ",
    [3] = "<" MDL_CHAT_DSML " invoke name=\"f\">",
    [4] = "<" MDL_CHAT_DSML " parameter name=\"a\" string=\"true\">",
    [5] = "<" MDL_CHAT_DSML " parameter name=\"b\" string=\"false\">",
    [6] = "<" MDL_CHAT_DSML " calls>",
    [7] = "</think>",
    [8] = "</" MDL_CHAT_DSML "invoke>",
    [11] = "</" MDL_CHAT_DSML " parameter>",
    [12] = "</" MDL_CHAT_DSML " calls>",
    [14] = MDL_CHAT_DSML,
    [15] = "<" MDL_CHAT_DSML " parameter name=\"arguments\" string=\"true\">",
    [16] = "<" MDL_CHAT_DSML " parameter name=\"arguments\" string=\"false\">",
    [17] = "<" MDL_CHAT_DSML " parameter name=\"b\">",
};

/* Of f: a wrapper "arguments" is none of its parameters, b is no text. */
static json_t *declared(void)
{
    static json_t *j;
    if (!j)
        j = json_pack("[{s:s, s:{s:s, s:{s:{s:{s:s}}}}}]", "type", "function", "function", "name", "f", "parameters",
                      "properties", "b", "type", "integer");
    return j;
}

struct record {
    struct gw_bytes log, text, args; /* everything; answer text; arguments of the open call */
    int kind, calls;
};

static void require(int ok)
{
    if (!ok)
        __builtin_trap();
}

static void on_event(void *ctx, const struct gw_event *ev)
{
    struct record *r = ctx;
    if (ev->kind != (enum gw_event_kind)r->kind || ev->kind == GW_EV_CALL_BEGIN || ev->kind >= GW_EV_CALL_END)
        gw_bytes_printf(&r->log, "\n%d.%d ", (int)ev->kind, ev->index);
    gw_bytes_add(&r->log, ev->text, ev->len);
    r->kind = ev->kind;
    if (ev->kind == GW_EV_TEXT)
        gw_bytes_add(&r->text, ev->text, ev->len);
    if (ev->kind == GW_EV_CALL_BEGIN) {
        require(ev->index == r->calls++ && ev->len > 0);
        r->args.n = 0;
    }
    if (ev->kind == GW_EV_CALL_ARGS)
        gw_bytes_add(&r->args, ev->text, ev->len);
    if (ev->kind == GW_EV_CALL_END) {
        json_error_t err; /* numbers that are too large for the parser are JSON all the same */
        json_t *v = json_loadb(r->args.p, r->args.n, JSON_ALLOW_NUL, &err);
        require(json_is_object(v) || (!v && json_error_code(&err) == json_error_numeric_overflow));
        json_decref(v);
    }
}

/* step 0: lengths that vary. */
static void run(const struct gw_output_options *base, const char *text, size_t len, size_t step, bool cut,
                struct record *r)
{
    struct gw_output_options opt = *base;
    memset(r, 0, sizeof *r);
    r->kind = -1;
    opt.on_event = on_event;
    opt.ctx = r;
    struct gw_output *o = gw_output_new(&opt);
    require(o != NULL);
    uint32_t state = (uint32_t)len;
    for (size_t i = 0; i < len;) {
        state = state * 1664525u + 1013904223u;
        size_t n = step ? step : 1 + (state >> 24) % 23;
        if (n > len - i)
            n = len - i;
        require(gw_output_push(o, text + i, n) == 0);
        i += n;
    }
    require(gw_output_end(o, cut) == 0);
    require(gw_output_calls(o) == r->calls && gw_output_repaired(o) <= r->calls);
    if (r->calls == 0 && opt.n_stop && r->text.n)
        require(!memmem(r->text.p, r->text.n, opt.stop[0], opt.stop_len[0]));
    gw_bytes_printf(&r->log, "\n%d %d %d", gw_output_stopped(o), gw_output_done(o), gw_output_repaired(o));
    gw_output_free(o);
}

static void drop(struct record *r)
{
    gw_bytes_free(&r->log);
    gw_bytes_free(&r->text);
    gw_bytes_free(&r->args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t stop_len = data[1] % 8, from = 2 + stop_len;
    if (size < from || size > MAX_TEXT)
        return 0;
    const char *stop = (const char *)data + 2;
    struct gw_output_options opt = {
        .thinking = data[0] & 1,
        .tools = data[0] & 2,
        .raw = (data[0] & 12) == 12,
        .open_text = data[0] & 16,
        .max_calls = data[0] >> 6,
        .declared = data[0] & 32 ? declared() : NULL,
        .stop = &stop,
        .stop_len = &stop_len,
        .n_stop = stop_len != 0,
    };
    struct gw_bytes text = {0};
    gw_bytes_puts(&text, "");
    for (size_t i = from; i < size; i++) {
        const char *piece = data[i] < sizeof pieces / sizeof *pieces ? pieces[data[i]] : NULL;
        if (piece)
            gw_bytes_puts(&text, piece);
        else
            gw_bytes_add(&text, data + i, 1);
    }
    bool cut = data[1] & 8;
    struct record whole, other;
    run(&opt, text.p, text.n, text.n, cut, &whole);
    for (size_t step = 0; step < 2; step++) {
        run(&opt, text.p, text.n, step, cut, &other);
        require(other.log.n == whole.log.n && memcmp(other.log.p, whole.log.p, whole.log.n) == 0);
        drop(&other);
    }
    drop(&whole);
    gw_bytes_free(&text);
    return 0;
}
