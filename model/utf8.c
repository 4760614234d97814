#include "model/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

void mdl_text_free(struct mdl_text *t)
{
    free(t->s);
    *t = (struct mdl_text){0};
}

int mdl_text_add(struct mdl_text *t, const void *bytes, size_t n)
{
    if (n >= t->cap - t->n || t->cap == 0) {
        size_t cap = t->cap < 64 ? 64 : t->cap;
        while (cap - t->n <= n) {
            if (cap > SIZE_MAX / 4)
                return -ENOMEM;
            cap *= 2;
        }
        char *s = realloc(t->s, cap);
        if (!s)
            return -ENOMEM;
        t->s = s;
        t->cap = cap;
    }
    if (n)
        memcpy(t->s + t->n, bytes, n);
    t->n += n;
    t->s[t->n] = 0;
    return 0;
}

int mdl_text_puts(struct mdl_text *t, const char *s)
{
    return mdl_text_add(t, s, strlen(s));
}

/* What a lead byte promises: bytes to follow and the range of the first of them; need 0: not a lead byte. */
static void lead(uint8_t b, uint8_t *need, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (b >= 0xc2 && b <= 0xdf) {
        *need = 1;
    } else if (b >= 0xe0 && b <= 0xef) {
        *need = 2;
        if (b == 0xe0)
            *low = 0xa0;
        if (b == 0xed)
            *high = 0x9f; /* no surrogates */
    } else if (b >= 0xf0 && b <= 0xf4) {
        *need = 3;
        if (b == 0xf0)
            *low = 0x90;
        if (b == 0xf4)
            *high = 0x8f;
    } else {
        *need = 0;
    }
}

int mdl_utf8_push(struct mdl_utf8 *u, uint8_t byte, struct mdl_text *out)
{
    if (u->need) {
        if (byte >= u->low && byte <= u->high) {
            u->held[u->n++] = byte;
            u->low = 0x80;
            u->high = 0xbf;
            if (--u->need)
                return 0;
            size_t n = u->n;
            u->n = 0;
            return mdl_text_add(out, u->held, n);
        }
        int rc = mdl_utf8_end(u, out); /* the byte itself starts anew */
        if (rc)
            return rc;
    }
    if (byte < 0x80)
        return mdl_text_add(out, &byte, 1);
    lead(byte, &u->need, &u->low, &u->high);
    if (!u->need)
        return mdl_text_add(out, replacement, 3);
    u->held[0] = byte;
    u->n = 1;
    return 0;
}

int mdl_utf8_end(struct mdl_utf8 *u, struct mdl_text *out)
{
    bool open = u->need != 0;
    *u = (struct mdl_utf8){0};
    return open ? mdl_text_add(out, replacement, 3) : 0;
}

bool mdl_utf8_valid(const void *bytes, size_t n)
{
    const uint8_t *p = bytes, *end = p + n;
    while (p < end) {
        uint64_t word;
        while (end - p >= 8 && (memcpy(&word, p, 8), !(word & UINT64_C(0x8080808080808080))))
            p += 8;
        if (p == end)
            break;
        if (*p < 0x80) {
            p++;
            continue;
        }
        uint8_t need, low, high;
        lead(*p++, &need, &low, &high);
        if (!need || end - p < need || *p < low || *p > high)
            return false;
        for (p++; --need; p++)
            if ((*p & 0xc0) != 0x80)
                return false;
    }
    return true;
}

int mdl_utf8_repair(const void *bytes, size_t n, struct mdl_text *out)
{
    const uint8_t *p = bytes;
    struct mdl_utf8 u = {0};
    for (size_t i = 0; i < n; i++) {
        int rc = mdl_utf8_push(&u, p[i], out);
        if (rc)
            return rc;
    }
    return mdl_utf8_end(&u, out);
}

int mdl_utf8_get(const char *s, uint32_t *cp)
{
    const uint8_t *p = (const uint8_t *)s;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] < 0xe0) {
        *cp = (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
        return 2;
    }
    if (p[0] < 0xf0) {
        *cp = (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
        return 3;
    }
    *cp = (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    return 4;
}

int mdl_utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}
