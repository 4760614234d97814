/* UTF-8 from outside: a growable text buffer and a decoder that turns any bytes into valid UTF-8.
 *
 * Policy for invalid bytes, everywhere in this project: each maximal subpart of an ill-formed sequence becomes one
 * U+FFFD, which is what the WHATWG decoder (TextDecoder in browsers) does. A byte order mark is kept.
 * Buffers and states are plain memory owned by the caller; different ones may be used by different threads. */
#ifndef WEFT_MODEL_UTF8_H
#define WEFT_MODEL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes [0, n) of s; when cap is not 0, s[n] is a NUL that is not counted. Zeroed memory is an empty buffer. */
struct mdl_text {
    char *s;
    size_t n, cap;
};

void mdl_text_free(struct mdl_text *t);
/* Append; 0 or -ENOMEM (the buffer is then as it was). */
int mdl_text_add(struct mdl_text *t, const void *bytes, size_t n);
int mdl_text_puts(struct mdl_text *t, const char *s);

/* A decoder that sees one byte at a time. Zeroed memory is the start. Holds back only bytes that may still become one
 * valid character, never more than three. */
struct mdl_utf8 {
    uint8_t held[4];
    uint8_t n, need;   /* bytes held, bytes still missing */
    uint8_t low, high; /* range of the next byte */
};

/* Takes one byte, appends whatever is decided by it. 0 or -ENOMEM. */
int mdl_utf8_push(struct mdl_utf8 *u, uint8_t byte, struct mdl_text *out);
/* Ends the text: an unfinished character becomes one U+FFFD. The state is then at the start again. */
int mdl_utf8_end(struct mdl_utf8 *u, struct mdl_text *out);

/* True when all n bytes are valid UTF-8 (no surrogates, no overlong forms, at most U+10FFFF). */
bool mdl_utf8_valid(const void *bytes, size_t n);
/* Appends n bytes with invalid ones replaced. */
int mdl_utf8_repair(const void *bytes, size_t n, struct mdl_text *out);

/* Decodes one character of valid UTF-8 at s, returns its length in bytes (1..4). */
int mdl_utf8_get(const char *s, uint32_t *cp);
/* Writes cp (below 0x110000) as UTF-8 to out, returns its length. */
int mdl_utf8_put(uint32_t cp, char out[4]);

#endif
