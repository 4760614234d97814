/* Implementation of config/error.h. */
#include "config/error.h"

#include <stdio.h>
#include <string.h>

/* Bytes of outside data may end up in a message; a terminal must not act on them. UTF-8 bytes pass. */
static void make_printable(char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c == 0x7f)
            *s = '?';
    }
}

void cfg_error_write(struct cfg_error *e, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
        make_printable(e->msg);
    }
}

int cfg_error_prefix(struct cfg_error *e, int err, const char *fmt, ...)
{
    if (e) {
        char old[CFG_ERROR_MAX];
        memcpy(old, e->msg, sizeof old);
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof e->msg)
            snprintf(e->msg + n, sizeof e->msg - (size_t)n, ": %s", old);
        make_printable(e->msg);
    }
    return err;
}
