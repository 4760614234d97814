/* Inside of the output machine, shared by output.c (sections, stop strings) and tool_calls.c (tool markup). */
#ifndef WEFT_GATEWAY_OUTPUT_IMPL_H
#define WEFT_GATEWAY_OUTPUT_IMPL_H

#include "actors/gateway/bytes.h"
#include "actors/gateway/json_check.h"
#include "actors/gateway/output.h"
#include "actors/gateway/request.h"
#include "model/utf8.h"

enum { GW_TAG_MAX = 512, GW_NAME_MAX = 256, GW_BLOCK_SPACE = 256, GW_VALUE_HELD = 1024 };

enum gw_output_state {
    GW_OUT_TEXT,  /* reasoning or answer; also between the calls of a block */
    GW_OUT_CALL,  /* inside an invoke element, outside of its parameters */
    GW_OUT_VALUE, /* inside a parameter */
    GW_OUT_DONE,
};

/* A parameter that the function does not have, around all arguments. */
enum gw_wrapper {
    GW_WRAPPER_NONE,
    GW_WRAPPER_MAYBE, /* the value is held back: it may be an object */
    GW_WRAPPER_OPEN,  /* its members flow as arguments */
};

struct gw_stop_match {
    const char *text;
    size_t len;
    size_t *fail; /* [len] failure function: longest proper border of each prefix */
    size_t at;    /* bytes of it that the newest text ends with */
};

struct gw_output {
    struct gw_output_options opt;
    enum gw_output_state state;
    bool reasoning;  /* of GW_OUT_TEXT */
    bool at_start;   /* nothing of this section was emitted: its newlines are dropped */
    size_t newlines; /* held back at the end of the section's text */

    struct mdl_utf8 utf8;
    struct mdl_text chars; /* complete characters of one push */
    char tag[GW_TAG_MAX];  /* bytes that may become a marker or a tag; the first is '<' */
    size_t tag_len;

    struct gw_stop_match stop[GW_MAX_STOPS];
    char held[GW_MAX_STOP_BYTES + 1]; /* answer text that may begin a stop string */
    size_t n_held;
    int stopped; /* index of the stop string found, -1 none */

    struct gw_bytes text; /* pending event, of this kind */
    enum gw_event_kind kind;
    int index;

    /* Tool markup. */
    bool in_block;          /* behind an opening wrapper */
    bool skip_space;        /* between elements of a block */
    struct gw_bytes opener; /* the wrapper and the space behind it until a call begins; given back when none does */
    int calls, repaired;
    struct gw_bytes name; /* of a call that the client does not know of yet */
    bool call_repaired, has_args, string_value, value_newline;
    const json_t *schema;  /* of the open call's function; borrowed from the options, NULL: nothing is known */
    char key[GW_NAME_MAX]; /* of the open value */
    enum gw_wrapper wrapper;
    struct gw_bytes loose; /* text inside a call that belongs to no parameter */
    struct gw_bytes value; /* a value that is not a string: its first GW_VALUE_HELD bytes, then it flows */
    struct gw_json_check json;
    bool value_flows, value_bad; /* bad: it is no JSON from here on */
};

/* output.c */
void gw_out_flush(struct gw_output *o);
void gw_out_emit(struct gw_output *o, enum gw_event_kind kind, const char *s, size_t n);
/* Text of the current section, through newline rules and (answer) stop strings. */
void gw_out_section_text(struct gw_output *o, const char *s, size_t n);
/* The section ends: what might have begun a stop string is text, newlines behind it are dropped. The answer begins. */
void gw_out_answer(struct gw_output *o);

/* tool_values.c */
void gw_args(struct gw_output *o, const char *s, size_t n);
void gw_value_begin(struct gw_output *o, const char *name, bool has_string, bool string);
void gw_value_byte(struct gw_output *o, char c);
/* implied: its closing tag is missing. */
void gw_value_end(struct gw_output *o, bool implied);
/* The text ends inside it: what was held back follows, nothing is closed. */
void gw_value_cut(struct gw_output *o);
/* A JSON object that stands in place of parameters: parsed, and its n bytes of text. */
void gw_value_object(struct gw_output *o, const json_t *object, const char *text, size_t n);

/* tool_calls.c */
/* Tells of the open call unless that was done. */
void gw_call_announce(struct gw_output *o);
/* Whether the n bytes at tag may still become a tag of the markup when more follow. */
bool gw_tag_viable(const char *tag, size_t n);
/* Whether they hold the DSML token, so that they are markup even when cut off. */
bool gw_tag_is_markup(const char *tag, size_t n);
/* A complete tag, '>' included. false: none of the markup, so it is text. */
bool gw_tag_take(struct gw_output *o, const char *tag, size_t n);
/* One byte in GW_OUT_CALL or GW_OUT_VALUE that is not part of a tag. */
void gw_call_byte(struct gw_output *o, char c);
/* One byte of GW_OUT_TEXT that may stand between elements of a block. false: it is text of the section. */
bool gw_between_byte(struct gw_output *o, char c);
/* Closes what is open. */
void gw_calls_end(struct gw_output *o);
/* Leaves it open: the text was cut off. */
void gw_calls_cut(struct gw_output *o);
void gw_calls_free(struct gw_output *o);

#endif
