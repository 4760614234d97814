/* HTTP/1.1 requests from bytes: no sockets, no events. For the HTTP server and its tests.
 *
 * libhttp-parser reads the request line and the headers. It is built to accept more than the standard allows (bare line
 * feeds, folded lines, blanks in names, any bytes around chunks), and what two programs read differently can be used to
 * smuggle a request past one of them. So a guard looks at every byte of a head before libhttp-parser does, and the body
 * is framed here. The result does not depend on how the bytes were cut into pieces. */
#ifndef WEFT_GATEWAY_HTTP_PARSE_H
#define WEFT_GATEWAY_HTTP_PARSE_H

#include <http_parser.h>

#include "actors/gateway/http.h"

enum { GW_HTTP_MAX_HEADERS = 100 };

enum gw_parse {
    GW_PARSE_MORE,
    GW_PARSE_HEAD,    /* the head is complete and a body follows */
    GW_PARSE_REQUEST, /* the request is complete */
    GW_PARSE_BAD,     /* status and reason say why; nothing more can be read from this connection */
};

enum gw_phase {
    GW_PHASE_HEAD,
    GW_PHASE_LENGTH, /* a body with Content-Length */
    GW_PHASE_CHUNK_SIZE,
    GW_PHASE_CHUNK_EXTENSION,
    GW_PHASE_CHUNK_SIZE_LF,
    GW_PHASE_CHUNK_DATA,
    GW_PHASE_CHUNK_CR,
    GW_PHASE_CHUNK_LF,
    GW_PHASE_TRAILER_START,
    GW_PHASE_TRAILER,
    GW_PHASE_TRAILER_LF,
    GW_PHASE_END_LF,
    GW_PHASE_DONE,
};

struct gw_parser {
    http_parser lib;
    enum gw_phase phase;
    size_t header_bytes, body_bytes; /* limits */

    /* The guard: what it must remember of the head so far. */
    size_t head_bytes, lines, line_bytes, blanks;
    char last;

    char *text; /* request target, names and values, each NUL-terminated */
    size_t text_len, text_cap;
    size_t name_at[GW_HTTP_MAX_HEADERS], value_at[GW_HTTP_MAX_HEADERS];
    int n_headers;
    bool in_value;

    char *body;
    size_t body_len, body_cap;
    uint64_t left; /* of the body or of the chunk */
    int size_digits;
    size_t extra_bytes; /* chunk extensions and trailers */

    struct gw_header header[GW_HTTP_MAX_HEADERS];
    struct gw_http_request request; /* from GW_PARSE_HEAD on; after GW_PARSE_BAD as far as it is known, "" otherwise */
    bool keep_alive, head_method, expects_continue;

    int status; /* of GW_PARSE_BAD */
    char reason[160];
};

void gw_parser_init(struct gw_parser *p, const struct gw_http_limits *limits);
/* Ready for the connection's next request; the last one's texts are gone. */
void gw_parser_next(struct gw_parser *p);
void gw_parser_free(struct gw_parser *p);
/* The body of a complete request for the caller to free; NULL and 0 when it is empty or was taken before. */
char *gw_parser_take_body(struct gw_parser *p, size_t *len);
/* Takes bytes until something is to be said; *used counts them. Not to be called again after REQUEST or BAD. */
enum gw_parse gw_parser_feed(struct gw_parser *p, const char *data, size_t len, size_t *used);
/* Whether a request has begun; blank lines between requests do not begin one. */
bool gw_parser_begun(const struct gw_parser *p);

#endif
