#include "actors/gateway/json_scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/bytes.h"

/* Past the string that opens at i (a quote); len when it does not close. */
static size_t skip_string(const char *s, size_t len, size_t i)
{
    for (i++; i < len; i++) {
        if (s[i] == '\\')
            i++;
        else if (s[i] == '"')
            return i + 1;
    }
    return len;
}

bool gw_json_too_deep(const char *text, size_t len, int limit, size_t *at)
{
    int depth = 0;
    for (size_t i = 0; i < len;) {
        char c = text[i];
        if (c == '"') {
            i = skip_string(text, len, i);
            continue;
        }
        if ((c == '{' || c == '[') && ++depth > limit) {
            *at = i;
            return true;
        }
        if ((c == '}' || c == ']') && depth > 0)
            depth--;
        i++;
    }
    *at = len;
    return false;
}

void gw_json_field_at(const char *text, size_t len, size_t at, char *out, size_t size)
{
    int depth = 0;
    bool key = true; /* the next string at depth 1 is a key */
    *out = 0;
    for (size_t i = 0; i < len && i < at;) {
        char c = text[i];
        if (c == '"') {
            size_t end = skip_string(text, len, i);
            if (depth == 1 && key && end <= at) {
                size_t n = end - i >= 2 ? end - i - 2 : 0;
                if (n >= size)
                    n = size - 1;
                memcpy(out, text + i + 1, n);
                out[n] = 0;
                key = false;
            }
            i = end;
            continue;
        }
        depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
        key |= c == ',' && depth == 1;
        if (depth < 1 || (depth == 1 && c == ','))
            *out = 0;
        i++;
    }
    for (char *p = out; *p; p++) /* it goes into messages */
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = '?';
}

static bool number_byte(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

static void widen_number(struct gw_bytes *b, const char *s, size_t n)
{
    char copy[64];
    size_t digits = 0;
    bool whole = true;
    for (size_t i = 0; i < n; i++) {
        digits += s[i] >= '0' && s[i] <= '9';
        whole &= s[i] != '.' && s[i] != 'e' && s[i] != 'E';
    }
    if (whole && digits > 300) {
        gw_bytes_puts(b, s[0] == '-' ? "-1e308" : "1e308");
        return;
    }
    if (whole && digits > 18) {
        gw_bytes_add(b, s, n);
        gw_bytes_puts(b, "e0");
        return;
    }
    if (!whole && n < sizeof copy) {
        memcpy(copy, s, n);
        copy[n] = 0;
        char *end;
        double v = strtod(copy, &end);
        if (!*end && isinf(v)) {
            gw_bytes_puts(b, v < 0 ? "-1e308" : "1e308");
            return;
        }
    }
    gw_bytes_add(b, s, n);
}

/* A copy of the text in which whole numbers of more than 18 digits, and numbers beyond a double's range, are written as
 * reals that the parser takes. NULL: out of memory. */
static char *widen(const char *text, size_t len, size_t *out_len)
{
    struct gw_bytes b = {0};
    gw_bytes_puts(&b, "");
    for (size_t i = 0; i < len;) {
        size_t end = i + 1;
        if (text[i] == '"') {
            end = skip_string(text, len, i);
            gw_bytes_add(&b, text + i, end - i);
        } else if ((text[i] >= '0' && text[i] <= '9') || text[i] == '-') {
            while (end < len && number_byte(text[end]))
                end++;
            widen_number(&b, text + i, end - i);
        } else {
            gw_bytes_add(&b, text + i, 1);
        }
        i = end;
    }
    if (b.failed)
        gw_bytes_free(&b);
    *out_len = b.n;
    return b.p;
}

json_t *gw_json_load(const char *text, size_t len, size_t flags, json_error_t *err)
{
    size_t at;
    memset(err, 0, sizeof *err);
    if (gw_json_too_deep(text, len, GW_JSON_DEPTH, &at)) {
        snprintf(err->text, sizeof err->text, "nested deeper than %d levels", GW_JSON_DEPTH);
        err->position = (int)at;
        err->line = 1;
        return NULL;
    }
    json_t *v = json_loadb(text, len, flags | JSON_DECODE_ANY, err);
    if (v || json_error_code(err) != json_error_numeric_overflow)
        return v;
    json_error_t again; /* the first one has the places of the client's text */
    size_t n;
    char *wide = widen(text, len, &n);
    if (wide)
        v = json_loadb(wide, n, flags | JSON_DECODE_ANY, &again);
    free(wide);
    return v;
}
