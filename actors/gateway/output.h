/* From tokens' text to what a client sees: reasoning, answer, tool calls, stop strings; a byte state machine.
 *
 * Text comes in pieces of any size, cut anywhere; the events are the same for every cut. Bytes that may begin a marker
 * or a stop string are held back until they cannot. Rules:
 *   - reasoning ends at </think>; newlines before it, before a tool block and at the start of a section are dropped; a
 *     stray </think> in the answer is dropped
 *   - a tool block may start inside reasoning or answer; after it closes everything is discarded
 *   - stop strings are looked for in the answer only, never in reasoning or in tool markup, and never partly emitted.
 *     Where several end at one byte, the longest counts
 *   - string="true" arguments become JSON strings and flow as their bytes arrive; others pass as raw JSON, held back
 *     until they are complete or long (what is no valid JSON becomes a string, or is closed where it broke when it has
 *     begun to flow, and the call is marked repaired); a call without arguments has {}
 *   - malformed markup is recovered and the call marked repaired: a missing wrapper; tags with or without the space
 *     behind the DSML token; any tag of the markup inside a value ends that value, so missing closing tags are implied;
 *     a JSON object in place of parameters; an unfinished call at the end is closed; a parameter without string="..."
 * is raw JSON when the function's schema gives it a type other than string, else a string
 *   - all arguments inside one more object "arguments" or "input" are taken out of it when the function's schema lists
 *     properties without it and does not say that there may be others; otherwise the object is an argument like others
 *   - a call begins for the client with its first argument, or with its end when it has none
 *   - an answer that the length cut off ends where it was cut: of an open call the arguments that came, without what
 *     would make JSON of them (GW_EV_CALL_CUT in place of GW_EV_CALL_END); of a call without arguments yet, of other
 *     markup, and of a character that is not whole, nothing
 *   - what cannot be a call is given back as text of the section it stood in, loose text inside a call as answer text
 *     behind it. Never a silent drop.
 * The markers arrive as text (the decoder is told not to skip them). Bytes that are no UTF-8 become U+FFFD; no event
 * cuts a character. One owner. */
#ifndef WEFT_GATEWAY_OUTPUT_H
#define WEFT_GATEWAY_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum gw_event_kind {
    GW_EV_REASONING,  /* text */
    GW_EV_TEXT,       /* text */
    GW_EV_CALL_BEGIN, /* text = function name, index = number of the call */
    GW_EV_CALL_ARGS,  /* text = next bytes of the JSON arguments */
    GW_EV_CALL_END,
    GW_EV_CALL_CUT, /* in place of the end: the text ended before the call did */
};

struct gw_event {
    enum gw_event_kind kind;
    int index;
    const char *text; /* borrowed for the call */
    size_t len;
};

typedef void gw_event_fn(void *ctx, const struct gw_event *ev);

struct gw_output;

struct gw_output_options {
    bool thinking;          /* the text begins inside reasoning */
    bool tools;             /* tool markup is looked for; else it is text */
    const json_t *declared; /* the tools' declarations in the chat form; borrowed, may be NULL */
    bool raw;       /* no reasoning and no markup: all is answer text as it comes, only stop strings are looked for */
    bool open_text; /* the text continues a given beginning: newlines at its start belong to it */
    int max_calls;  /* the output is done when so many calls are complete; 0: any number */
    const char *const *stop; /* [n_stop] borrowed */
    const size_t *stop_len;
    int n_stop;
    gw_event_fn *on_event;
    void *ctx;
};

/* NULL: out of memory. */
struct gw_output *gw_output_new(const struct gw_output_options *options);
void gw_output_free(struct gw_output *o);
/* Returns 0, or -ENOMEM. */
int gw_output_push(struct gw_output *o, const char *text, size_t len);
/* No more text comes: what was held back is decided. An open call is closed; cut: the text would go on, so it is not.
 */
int gw_output_end(struct gw_output *o, bool cut);

bool gw_output_stopped(const struct gw_output *o);     /* a stop string was found: generate no more */
const char *gw_output_stop(const struct gw_output *o); /* which one, NULL when none */
bool gw_output_done(const struct gw_output *o);        /* the tool block is closed, or max_calls: generate no more */
int gw_output_calls(const struct gw_output *o);
int gw_output_repaired(const struct gw_output *o);      /* calls that were malformed and recovered */
bool gw_output_in_reasoning(const struct gw_output *o); /* for counting reasoning tokens */

#endif
