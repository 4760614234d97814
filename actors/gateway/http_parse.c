/* Requests from bytes: a guard, libhttp-parser behind it, and the framing of bodies. Interface: http_parse.h. */
#include "actors/gateway/http_parse.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEPT_BODY = 64 << 10, SIZE_DIGITS = 15 };

__attribute__((format(printf, 3, 4))) static enum gw_parse bad(struct gw_parser *p, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->reason, sizeof p->reason, fmt, ap);
    va_end(ap);
    p->status = status;
    return GW_PARSE_BAD;
}

static enum gw_parse no_memory(struct gw_parser *p)
{
    return bad(p, 503, "out of memory");
}

/* ---- head: texts from libhttp-parser ---- */

static bool text_add(struct gw_parser *p, const char *s, size_t n)
{
    if (p->text_len + n + 1 > p->text_cap) {
        size_t cap = 2 * p->text_cap > p->text_len + n + 1 ? 2 * p->text_cap : p->text_len + n + 1024;
        char *t = realloc(p->text, cap);
        if (!t) {
            no_memory(p);
            return false;
        }
        p->text = t;
        p->text_cap = cap;
    }
    if (n)
        memcpy(p->text + p->text_len, s, n);
    p->text_len += n;
    p->text[p->text_len] = 0;
    return true;
}

/* The text so far is complete; the next one begins behind its NUL. */
static bool text_end(struct gw_parser *p)
{
    return text_add(p, "", 1);
}

static int on_url(http_parser *lib, const char *s, size_t n)
{
    return text_add(lib->data, s, n) ? 0 : -1;
}

static int on_field(http_parser *lib, const char *s, size_t n)
{
    struct gw_parser *p = lib->data;
    if (p->in_value || !p->n_headers) {
        if (p->n_headers == GW_HTTP_MAX_HEADERS) {
            bad(p, 431, "more than %d headers", GW_HTTP_MAX_HEADERS);
            return -1;
        }
        if (!text_end(p))
            return -1;
        p->name_at[p->n_headers++] = p->text_len;
        p->in_value = false;
    }
    return text_add(p, s, n) ? 0 : -1;
}

static int on_value(http_parser *lib, const char *s, size_t n)
{
    struct gw_parser *p = lib->data;
    if (!p->in_value) {
        if (!text_end(p))
            return -1;
        p->value_at[p->n_headers - 1] = p->text_len;
        p->in_value = true;
    }
    return text_add(p, s, n) ? 0 : -1;
}

/* libhttp-parser stops here; the body is not its business. */
static int on_head(http_parser *lib)
{
    lib->upgrade = 0; /* an offer that this server does not take up; the request is answered as it is */
    return 1;
}

static int on_complete(http_parser *lib)
{
    struct gw_parser *p = lib->data;
    p->phase = GW_PHASE_DONE;
    http_parser_pause(lib, 1);
    return 0;
}

static const http_parser_settings settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_head,
    .on_message_complete = on_complete,
};

/* ---- head: meaning ---- */

/* Splits the request target; absolute forms lose scheme and authority. */
static bool set_target(struct gw_parser *p)
{
    struct http_parser_url u;
    char *target = p->text;
    if (!strcmp(target, "*")) {
        p->request.path = target;
        return true;
    }
    http_parser_url_init(&u);
    if (http_parser_parse_url(target, strlen(target), 0, &u))
        return false;
    char *query = u.field_set & (1 << UF_QUERY) ? target + u.field_data[UF_QUERY].off : NULL;
    if (query)
        query[u.field_data[UF_QUERY].len] = 0;
    p->request.query = query ? query : "";
    if (u.field_set & (1 << UF_PATH)) {
        char *path = target + u.field_data[UF_PATH].off;
        path[u.field_data[UF_PATH].len] = 0;
        p->request.path = path;
    } else {
        p->request.path = "/"; /* an absolute form may have none */
    }
    return true;
}

static void set_headers(struct gw_parser *p)
{
    for (int i = 0; i < p->n_headers; i++) {
        char *value = p->text + p->value_at[i];
        size_t n = strlen(value);
        while (n && (value[n - 1] == ' ' || value[n - 1] == '\t'))
            value[--n] = 0;
        p->header[i] = (struct gw_header){p->text + p->name_at[i], value};
    }
    p->request.header = p->header;
    p->request.n_headers = p->n_headers;
}

/* The value of a header that may appear once; *count says how often it did. */
static const char *single(const struct gw_parser *p, const char *name, int *count)
{
    const char *value = NULL;
    *count = 0;
    for (int i = 0; i < p->n_headers; i++)
        if (!strcasecmp(p->header[i].name, name)) {
            value = p->header[i].value;
            ++*count;
        }
    return value;
}

static enum gw_parse check_headers(struct gw_parser *p)
{
    int n;
    for (int i = 0; i < p->n_headers; i++)
        if (strpbrk(p->header[i].name, " \t"))
            return bad(p, 400, "a header name with a blank");
    single(p, "Host", &n);
    if (n > 1 || (!n && !p->request.http_1_0))
        return bad(p, 400, n ? "more than one Host header" : "HTTP/1.1 without a Host header");
    const char *expect = single(p, "Expect", &n);
    if (n && !p->request.http_1_0) {
        if (strcasecmp(expect, "100-continue") != 0)
            return bad(p, 417, "Expect: only 100-continue is supported");
        p->expects_continue = true;
    }
    return GW_PARSE_MORE;
}

/* How the body is framed; exactly one reading is allowed. */
static enum gw_parse check_framing(struct gw_parser *p)
{
    int n_length, n_coding;
    const char *length = single(p, "Content-Length", &n_length);
    const char *coding = single(p, "Transfer-Encoding", &n_coding);
    if (n_coding) {
        if (n_length || n_coding > 1 || p->request.http_1_0)
            return bad(p, 400, "Transfer-Encoding %s",
                       n_length       ? "together with Content-Length"
                       : n_coding > 1 ? "given twice"
                                      : "in HTTP/1.0");
        if (strcasecmp(coding, "chunked") != 0)
            return bad(p, 501, "Transfer-Encoding: only chunked is supported");
        p->phase = GW_PHASE_CHUNK_SIZE;
        return GW_PARSE_HEAD;
    }
    if (!n_length)
        return GW_PARSE_REQUEST;
    size_t digits = strspn(length, "0123456789");
    if (n_length > 1 || !digits || length[digits])
        return bad(p, 400, "Content-Length %s", n_length > 1 ? "given twice" : "is not a number");
    uint64_t bytes = digits > 18 ? UINT64_MAX : strtoull(length, NULL, 10);
    if (bytes > p->body_bytes)
        return bad(p, 413, "the request body is larger than %zu bytes", p->body_bytes);
    p->left = bytes;
    p->phase = GW_PHASE_LENGTH;
    return bytes ? GW_PARSE_HEAD : GW_PARSE_REQUEST;
}

static enum gw_parse head_complete(struct gw_parser *p)
{
    struct gw_http_request *r = &p->request;
    set_headers(p);
    r->method = http_method_str((enum http_method)p->lib.method);
    r->http_1_0 = p->lib.http_major == 1 && p->lib.http_minor == 0;
    p->head_method = p->lib.method == HTTP_HEAD;
    p->keep_alive = http_should_keep_alive(&p->lib);
    if (p->lib.http_major != 1)
        return bad(p, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    if (p->lib.method == HTTP_CONNECT)
        return bad(p, 400, "CONNECT: this server is not a proxy");
    if (!set_target(p))
        return bad(p, 400, "malformed HTTP request (target)");
    return check_headers(p) == GW_PARSE_BAD ? GW_PARSE_BAD : check_framing(p);
}

/* ---- head: bytes ---- */

/* One byte of the head. NULL or what is wrong with it; *end: it was the last one. */
static const char *guard(struct gw_parser *p, char ch, bool *end)
{
    char last = p->last;
    p->last = ch;
    if (last == '\r') {
        if (ch != '\n')
            return "carriage return without line feed";
        *end = p->line_bytes == 0;
        p->lines++;
        p->line_bytes = 0;
        return NULL;
    }
    if (ch == '\r')
        return NULL;
    if (ch == '\n')
        return "line feed without carriage return";
    if (((unsigned char)ch < 32 && ch != '\t') || ch == 127)
        return "control character";
    if (p->lines == 0 && (ch == '\t' || (ch == ' ' && (last == ' ' || ++p->blanks > 2))))
        return "blanks in the request line";
    if (p->line_bytes == 0 && (ch == ' ' || ch == '\t'))
        return "line that begins with a blank";
    p->line_bytes++;
    return NULL;
}

static enum gw_parse feed_head(struct gw_parser *p, const char *s, size_t len, size_t *used)
{
    const char *wrong = NULL;
    bool end = false;
    size_t n = 0;
    while (n < len && !end && p->head_bytes < p->header_bytes) {
        wrong = guard(p, s[n], &end);
        if (wrong)
            break;
        n++;
        p->head_bytes++;
    }
    /* The library first: an error at an earlier byte is reported before the guard's, however the bytes were cut. */
    if (n && http_parser_execute(&p->lib, &settings, s, n) != n && HTTP_PARSER_ERRNO(&p->lib) != HPE_PAUSED)
        return p->status
                   ? GW_PARSE_BAD
                   : bad(p, 400, "malformed HTTP request (%s)", http_errno_description(HTTP_PARSER_ERRNO(&p->lib)));
    *used = n;
    if (wrong)
        return bad(p, 400, "malformed HTTP request (%s)", wrong);
    if (end)
        return p->phase == GW_PHASE_DONE ? head_complete(p) : bad(p, 400, "malformed HTTP request");
    if (p->head_bytes == p->header_bytes)
        return bad(p, 431, "the request head is larger than %zu bytes", p->header_bytes);
    return GW_PARSE_MORE;
}

/* ---- body ---- */

static enum gw_parse feed_data(struct gw_parser *p, const char *s, size_t len, size_t *used)
{
    size_t n = len < p->left ? len : (size_t)p->left;
    if (p->body_len + n + 1 > p->body_cap) {
        size_t cap = 2 * p->body_cap > p->body_len + n + 1 ? 2 * p->body_cap : p->body_len + n + 4096;
        char *b = realloc(p->body, cap);
        if (!b)
            return no_memory(p);
        p->body = b;
        p->body_cap = cap;
    }
    memcpy(p->body + p->body_len, s, n);
    p->body_len += n;
    p->body[p->body_len] = 0;
    p->left -= n;
    *used = n;
    if (p->left)
        return GW_PARSE_MORE;
    if (p->phase == GW_PHASE_LENGTH)
        return GW_PARSE_REQUEST;
    p->phase = GW_PHASE_CHUNK_CR;
    return GW_PARSE_MORE;
}

static int hex_digit(char ch)
{
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    ch |= 0x20;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

static enum gw_parse bad_chunk(struct gw_parser *p)
{
    return bad(p, 400, "malformed chunked body");
}

static enum gw_parse chunk_size(struct gw_parser *p, char ch)
{
    int digit = hex_digit(ch);
    if (digit >= 0) {
        if (p->size_digits++ == SIZE_DIGITS)
            return bad(p, 400, "chunk size of more than %d digits", SIZE_DIGITS);
        p->left = p->left * 16 + (uint64_t)digit;
        return GW_PARSE_MORE;
    }
    if (!p->size_digits || (ch != '\r' && ch != ';'))
        return bad_chunk(p);
    if (p->left > p->body_bytes - p->body_len)
        return bad(p, 413, "the request body is larger than %zu bytes", p->body_bytes);
    p->phase = ch == ';' ? GW_PHASE_CHUNK_EXTENSION : GW_PHASE_CHUNK_SIZE_LF;
    return GW_PARSE_MORE;
}

/* A byte of an extension or a trailer; neither is kept. next: the phase after its line's carriage return. */
static enum gw_parse skip_text(struct gw_parser *p, char ch, enum gw_phase next)
{
    if (ch == '\r') {
        p->phase = next;
        return GW_PARSE_MORE;
    }
    if (((unsigned char)ch < 32 && ch != '\t') || ch == 127)
        return bad_chunk(p);
    if (p->extra_bytes++ == p->header_bytes)
        return bad(p, 431, "chunk extensions and trailers are larger than %zu bytes", p->header_bytes);
    return GW_PARSE_MORE;
}

/* One byte that frames chunks. */
static enum gw_parse feed_frame(struct gw_parser *p, char ch)
{
    switch (p->phase) {
    case GW_PHASE_CHUNK_SIZE:
        return chunk_size(p, ch);
    case GW_PHASE_CHUNK_EXTENSION:
        return skip_text(p, ch, GW_PHASE_CHUNK_SIZE_LF);
    case GW_PHASE_CHUNK_SIZE_LF:
        p->phase = p->left ? GW_PHASE_CHUNK_DATA : GW_PHASE_TRAILER_START;
        p->size_digits = 0;
        break;
    case GW_PHASE_CHUNK_CR:
        p->phase = GW_PHASE_CHUNK_LF;
        return ch == '\r' ? GW_PARSE_MORE : bad_chunk(p);
    case GW_PHASE_CHUNK_LF:
        p->phase = GW_PHASE_CHUNK_SIZE;
        break;
    case GW_PHASE_TRAILER_START:
        if (ch == '\r') {
            p->phase = GW_PHASE_END_LF;
            return GW_PARSE_MORE;
        }
        p->phase = GW_PHASE_TRAILER;
        return skip_text(p, ch, GW_PHASE_TRAILER_LF);
    case GW_PHASE_TRAILER:
        return skip_text(p, ch, GW_PHASE_TRAILER_LF);
    case GW_PHASE_TRAILER_LF:
        p->phase = GW_PHASE_TRAILER_START;
        break;
    default: /* GW_PHASE_END_LF */
        return ch == '\n' ? GW_PARSE_REQUEST : bad_chunk(p);
    }
    return ch == '\n' ? GW_PARSE_MORE : bad_chunk(p);
}

/* ---- the whole ---- */

static void no_library_limit(void)
{
    http_parser_set_max_header_size(UINT32_MAX); /* its own count depends on how the bytes were cut; the guard counts */
}

static void clear(struct gw_parser *p)
{
    p->phase = GW_PHASE_HEAD;
    p->head_bytes = p->lines = p->line_bytes = p->blanks = 0;
    p->last = 0;
    p->text_len = p->body_len = 0;
    p->n_headers = 0;
    p->in_value = p->keep_alive = p->head_method = p->expects_continue = false;
    p->left = 0;
    p->size_digits = 0;
    p->extra_bytes = 0;
    p->status = 0;
    p->request = (struct gw_http_request){.method = "", .path = "", .query = "", .body = "", .peer = ""};
    http_parser_init(&p->lib, HTTP_REQUEST);
    p->lib.data = p;
}

void gw_parser_init(struct gw_parser *p, const struct gw_http_limits *limits)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, no_library_limit);
    memset(p, 0, sizeof *p);
    p->header_bytes = limits->header_bytes;
    p->body_bytes = limits->body_bytes;
    clear(p);
}

void gw_parser_next(struct gw_parser *p)
{
    clear(p);
    if (p->body_cap > KEPT_BODY) {
        free(p->body);
        p->body = NULL;
        p->body_cap = 0;
    }
}

void gw_parser_free(struct gw_parser *p)
{
    free(p->text);
    free(p->body);
}

char *gw_parser_take_body(struct gw_parser *p, size_t *len)
{
    char *body = p->body_len ? p->body : NULL;
    *len = p->body_len;
    if (body) {
        p->body = NULL;
        p->body_len = p->body_cap = 0;
    }
    return body;
}

bool gw_parser_begun(const struct gw_parser *p)
{
    return p->head_bytes > 0;
}

enum gw_parse gw_parser_feed(struct gw_parser *p, const char *data, size_t len, size_t *used)
{
    enum gw_parse r = GW_PARSE_MORE;
    size_t at = 0;
    while (at < len && r == GW_PARSE_MORE) {
        size_t n = 1;
        if (p->phase == GW_PHASE_HEAD) {
            if (!p->head_bytes && (data[at] == '\r' || data[at] == '\n')) {
                at++;
                continue;
            }
            n = 0;
            r = feed_head(p, data + at, len - at, &n);
        } else if (p->phase == GW_PHASE_LENGTH || p->phase == GW_PHASE_CHUNK_DATA) {
            r = feed_data(p, data + at, len - at, &n);
        } else {
            r = feed_frame(p, data[at]);
        }
        at += n;
    }
    if (r == GW_PARSE_REQUEST) {
        p->request.body = p->body_len ? p->body : "";
        p->request.len = p->body_len;
    }
    *used = at;
    return r;
}
