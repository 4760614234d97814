/* A growable byte buffer and the pieces of JSON that replies are written from.
 *
 * Appending never reports a failure: out of memory sets `failed`, later appends do nothing, and whoever hands the
 * buffer on looks at it once. Zeroed memory is an empty buffer. One owner. */
#ifndef WEFT_GATEWAY_BYTES_H
#define WEFT_GATEWAY_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gw_bytes {
    char *p; /* p[n] is a NUL that is not counted, once anything was appended */
    size_t n, cap;
    bool failed;
};

void gw_bytes_free(struct gw_bytes *b);
void gw_bytes_add(struct gw_bytes *b, const void *data, size_t n);
void gw_bytes_puts(struct gw_bytes *b, const char *s);
void gw_bytes_printf(struct gw_bytes *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The inside of a JSON string, without quotes; invalid UTF-8 becomes U+FFFD. */
void gw_bytes_json_inner(struct gw_bytes *b, const char *s, size_t n);
/* With quotes. */
void gw_bytes_json(struct gw_bytes *b, const char *s, size_t n);
/* ,"key":"value" (the comma only when `more`). */
void gw_bytes_json_pair(struct gw_bytes *b, bool more, const char *key, const char *value);
/* A number; JSON has none that is not finite, so those become -9999. */
void gw_bytes_json_real(struct gw_bytes *b, double v);

#endif
