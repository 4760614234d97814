/* Stop strings over text that arrives in pieces: the text before the first stop string, and how much of it is certain.
 *
 * A tail that may still become a stop string is held back until it cannot. Plain memory of its owner. */
#ifndef WEFT_CLI_STOPS_H
#define WEFT_CLI_STOPS_H

#include <stdbool.h>
#include <stdio.h>

#include "model/utf8.h"

struct cli_stops {
    const char *const *stop; /* borrowed */
    int n;
    size_t longest;
    struct mdl_text text; /* everything so far */
    size_t done;          /* bytes of text that are certain */
    size_t printed;       /* of these, bytes that cli_stops_print wrote */
    bool hit;             /* a stop string came: text before it is all there is */
};

int cli_stops_init(struct cli_stops *s, const char *const *stop, int n);
void cli_stops_free(struct cli_stops *s);
/* 0 or -ENOMEM. */
int cli_stops_push(struct cli_stops *s, const char *piece, size_t len);
/* No more text will come: what was held back is certain now. */
void cli_stops_end(struct cli_stops *s);
/* Writes what became certain since the last call. */
void cli_stops_print(struct cli_stops *s, FILE *to);

#endif
