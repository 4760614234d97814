/* Errors as each protocol's clients expect them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "actors/gateway/bytes.h"
#include "actors/gateway/request.h"

static const char *openai_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "service_unavailable_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static const char *anthropic_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
    case 529:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

/* Arguments come from outside: cut at a character, and one line. */
static void tidy(char *s, size_t size)
{
    size_t n = strlen(s);
    if (n + 1 == size) {
        while (n > 0 && ((unsigned char)s[n - 1] & 0xc0) == 0x80)
            n--;
        if (n > 0 && (unsigned char)s[n - 1] >= 0xc0)
            n--;
        s[n] = 0;
    }
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

void gw_error_set(struct gw_error *err, enum gw_protocol protocol, int status, const char *param, const char *fmt, ...)
{
    char text[sizeof err->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    *err = (struct gw_error){.status = status};
    snprintf(err->type, sizeof err->type, "%s", protocol == GW_MESSAGES ? anthropic_type(status) : openai_type(status));
    snprintf(err->param, sizeof err->param, "%s", param ? param : "");
    int n = *err->param ? snprintf(err->message, sizeof err->message, "%s: ", err->param) : 0;
    size_t room = sizeof err->message - (size_t)n;
    memcpy(err->message + n, text, strnlen(text, room - 1));
    tidy(err->param, sizeof err->param);
    tidy(err->message, sizeof err->message);
}

static void nullable(struct gw_bytes *b, const char *key, const char *value)
{
    if (*value)
        gw_bytes_json_pair(b, true, key, value);
    else
        gw_bytes_printf(b, ",\"%s\":null", key);
}

static void error_object(struct gw_bytes *b, enum gw_protocol protocol, const struct gw_error *err)
{
    const char *type = *err->type ? err->type : "server_error";
    if (protocol == GW_MESSAGES) {
        gw_bytes_puts(b, "{\"type\":\"error\",\"error\":{");
        gw_bytes_json_pair(b, false, "type", *err->type ? err->type : "api_error");
        gw_bytes_json_pair(b, true, "message", err->message);
    } else {
        gw_bytes_puts(b, "{\"error\":{");
        gw_bytes_json_pair(b, false, "message", err->message);
        gw_bytes_json_pair(b, true, "type", type);
        nullable(b, "param", err->param);
        nullable(b, "code", err->code);
    }
    gw_bytes_puts(b, "}}");
}

static char *hand_over(struct gw_bytes *b, size_t *len)
{
    if (b->failed) {
        gw_bytes_free(b);
        return NULL;
    }
    *len = b->n;
    return b->p;
}

char *gw_error_body(enum gw_protocol protocol, const struct gw_error *err, size_t *len)
{
    struct gw_bytes b = {0};
    error_object(&b, protocol, err);
    return hand_over(&b, len);
}

char *gw_error_event(enum gw_protocol protocol, const struct gw_error *err, size_t *len)
{
    struct gw_bytes b = {0};
    if (protocol == GW_MESSAGES) {
        gw_bytes_puts(&b, "event: error\n");
    } else if (protocol == GW_RESPONSES) {
        gw_bytes_puts(&b, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":0");
        gw_bytes_json_pair(&b, true, "code", *err->code ? err->code : err->type);
        gw_bytes_json_pair(&b, true, "message", err->message);
        nullable(&b, "param", err->param);
        gw_bytes_puts(&b, "}\n\n");
        return hand_over(&b, len);
    }
    gw_bytes_puts(&b, "data: ");
    error_object(&b, protocol, err);
    gw_bytes_puts(&b, "\n\n");
    return hand_over(&b, len);
}
