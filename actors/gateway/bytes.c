#include "actors/gateway/bytes.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/utf8.h"

void gw_bytes_free(struct gw_bytes *b)
{
    free(b->p);
    *b = (struct gw_bytes){0};
}

/* Room for n bytes and the NUL. */
static bool reserve(struct gw_bytes *b, size_t n)
{
    if (b->failed)
        return false;
    if (b->cap - b->n > n)
        return true;
    size_t cap = b->cap < 256 ? 256 : b->cap;
    while (cap - b->n <= n) {
        if (cap > SIZE_MAX / 4) {
            b->failed = true;
            return false;
        }
        cap *= 2;
    }
    char *p = realloc(b->p, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void gw_bytes_add(struct gw_bytes *b, const void *data, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->n, data, n);
    b->n += n;
    b->p[b->n] = 0;
}

void gw_bytes_puts(struct gw_bytes *b, const char *s)
{
    gw_bytes_add(b, s, strlen(s));
}

void gw_bytes_printf(struct gw_bytes *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !reserve(b, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
}

static void escape(struct gw_bytes *b, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        gw_bytes_add(b, s + from, i - from);
        from = i + 1;
        char esc[6] = {'\\', (char)c};
        size_t len = 2;
        if (c == '\n') {
            esc[1] = 'n';
        } else if (c == '\t') {
            esc[1] = 't';
        } else if (c == '\r') {
            esc[1] = 'r';
        } else if (c < 0x20) {
            memcpy(esc + 1, "u00", 3);
            esc[4] = hex[c >> 4];
            esc[5] = hex[c & 15];
            len = 6;
        }
        gw_bytes_add(b, esc, len);
    }
    gw_bytes_add(b, s + from, n - from);
}

void gw_bytes_json_inner(struct gw_bytes *b, const char *s, size_t n)
{
    if (mdl_utf8_valid(s, n)) {
        escape(b, s, n);
        return;
    }
    struct mdl_text t = {0};
    if (mdl_utf8_repair(s, n, &t))
        b->failed = true;
    else
        escape(b, t.s ? t.s : "", t.n);
    mdl_text_free(&t);
}

void gw_bytes_json(struct gw_bytes *b, const char *s, size_t n)
{
    gw_bytes_add(b, "\"", 1);
    gw_bytes_json_inner(b, s, n);
    gw_bytes_add(b, "\"", 1);
}

void gw_bytes_json_pair(struct gw_bytes *b, bool more, const char *key, const char *value)
{
    gw_bytes_printf(b, "%s\"%s\":", more ? "," : "", key);
    gw_bytes_json(b, value, strlen(value));
}

void gw_bytes_json_real(struct gw_bytes *b, double v)
{
    gw_bytes_printf(b, "%.9g", isfinite(v) ? v : -9999.0);
}
