/* Checks JSON text as its bytes arrive, and knows how to end it early. Zeroed memory is the start of a value. */
#ifndef WEFT_GATEWAY_JSON_CHECK_H
#define WEFT_GATEWAY_JSON_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "actors/gateway/bytes.h"

struct gw_json_check {
    uint8_t state;   /* what is expected next */
    uint8_t depth;   /* open objects and lists, at most GW_JSON_DEPTH */
    uint8_t literal; /* which of true, false, null, and */
    uint8_t at;      /* how much of it, or hex digits of an escape */
    bool key;        /* the open string is a key */
    bool low;        /* the open escape must be a low surrogate */
    uint16_t unit;   /* hex digits so far */
    uint64_t lists;  /* bit d: level d is a list */
};

/* false: with this byte the text is no beginning of a JSON value; the state is then as before. */
bool gw_json_check_byte(struct gw_json_check *c, char byte);
/* Whether the text is a whole value. A number may still go on. */
bool gw_json_check_done(const struct gw_json_check *c);
/* Appends what makes a whole value of the text so far. */
void gw_json_check_close(const struct gw_json_check *c, struct gw_bytes *out);

#endif
