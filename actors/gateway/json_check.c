#include "actors/gateway/json_check.h"

#include <string.h>

#include "actors/gateway/json_scan.h"

enum state {
    VALUE,       /* a value must come */
    FIRST_VALUE, /* behind '[': a value or ']' */
    FIRST_KEY,   /* behind '{': a key or '}' */
    KEY,         /* behind ',' in an object */
    COLON,
    AFTER, /* behind a value */
    STRING,
    ESCAPE,    /* behind '\' */
    HEX,       /* in the digits of \u */
    LOW_SLASH, /* behind a high surrogate: '\' must come, */
    LOW_U,     /* and 'u' */
    LITERAL,
    MINUS,      /* numbers: behind '-', */
    ZERO,       /* a leading 0, */
    DIGITS,     /* digits of the whole part, */
    POINT,      /* '.', */
    FRACTION,   /* its digits, */
    EXP,        /* 'e', */
    EXP_SIGN,   /* its sign */
    EXP_DIGITS, /* and digits */
};

static const char *const literals[] = {"true", "false", "null"};

static bool is_digit(char b)
{
    return b >= '0' && b <= '9';
}

static bool in_list(const struct gw_json_check *c)
{
    return c->depth && (c->lists >> (c->depth - 1) & 1);
}

static bool open_level(struct gw_json_check *c, bool list)
{
    if (c->depth == GW_JSON_DEPTH)
        return false;
    uint64_t bit = UINT64_C(1) << c->depth;
    c->lists = list ? c->lists | bit : c->lists & ~bit;
    c->depth++;
    c->state = list ? FIRST_VALUE : FIRST_KEY;
    return true;
}

static bool open_string(struct gw_json_check *c, bool key)
{
    c->state = STRING;
    c->key = key;
    return true;
}

static bool begin_value(struct gw_json_check *c, char b)
{
    if (b == '{' || b == '[')
        return open_level(c, b == '[');
    if (b == '"')
        return open_string(c, false);
    if (b == '-' || is_digit(b)) {
        c->state = b == '-' ? MINUS : b == '0' ? ZERO : DIGITS;
        return true;
    }
    for (uint8_t i = 0; i < 3; i++)
        if (b == literals[i][0]) {
            c->state = LITERAL;
            c->literal = i;
            c->at = 1;
            return true;
        }
    return false;
}

static bool after_value(struct gw_json_check *c, char b)
{
    if (b == ',' && c->depth) {
        c->state = in_list(c) ? VALUE : KEY;
        return true;
    }
    if (c->depth && b == (in_list(c) ? ']' : '}')) {
        c->depth--;
        c->state = AFTER;
        return true;
    }
    return false;
}

static bool string_byte(struct gw_json_check *c, char b)
{
    if (b == '"')
        c->state = c->key ? COLON : AFTER;
    else if (b == '\\')
        c->state = ESCAPE;
    return (unsigned char)b >= 0x20;
}

static bool escape_byte(struct gw_json_check *c, char b)
{
    if (b == 'u') {
        c->state = HEX;
        c->at = 0;
        c->unit = 0;
        c->low = false;
        return true;
    }
    c->state = STRING;
    return b && strchr("\"\\/bfnrt", b);
}

/* Surrogates come in pairs or not at all: what would be half a pair is refused at its second digit. */
static bool hex_byte(struct gw_json_check *c, char b)
{
    static const char digits[] = "0123456789abcdef";
    char lower = b >= 'A' && b <= 'F' ? (char)(b + 32) : b;
    const char *d = b ? strchr(digits, lower) : NULL;
    if (!d)
        return false;
    c->unit = (uint16_t)(c->unit << 4 | (d - digits));
    c->at++;
    if (c->low && c->at == 1 && c->unit != 0xd)
        return false;
    if (c->at == 2 && c->low != (c->unit >> 2 == 0xdc >> 2))
        return false;
    if (c->at == 4)
        c->state = c->unit >> 10 == 0xd800 >> 10 ? LOW_SLASH : STRING;
    return true;
}

static bool number_byte(struct gw_json_check *c, char b)
{
    bool digit = is_digit(b), whole = c->state == ZERO || c->state == DIGITS;
    if (digit) {
        static const uint8_t next[] = {[DIGITS] = DIGITS,  [POINT] = FRACTION,      [FRACTION] = FRACTION,
                                       [EXP] = EXP_DIGITS, [EXP_SIGN] = EXP_DIGITS, [EXP_DIGITS] = EXP_DIGITS};
        if (c->state == ZERO)
            return false;
        c->state = c->state == MINUS ? (b == '0' ? ZERO : DIGITS) : next[c->state];
        return true;
    }
    if (b == '.' && whole)
        c->state = POINT;
    else if ((b == 'e' || b == 'E') && (whole || c->state == FRACTION))
        c->state = EXP;
    else if ((b == '+' || b == '-') && c->state == EXP)
        c->state = EXP_SIGN;
    else
        return false;
    return true;
}

static bool number_done(const struct gw_json_check *c)
{
    return c->state == ZERO || c->state == DIGITS || c->state == FRACTION || c->state == EXP_DIGITS;
}

static bool step(struct gw_json_check *c, char b)
{
    switch ((enum state)c->state) {
    case STRING:
        return string_byte(c, b);
    case ESCAPE:
        return escape_byte(c, b);
    case HEX:
        return hex_byte(c, b);
    case LOW_SLASH:
        c->state = LOW_U;
        return b == '\\';
    case LOW_U:
        c->state = HEX;
        c->at = 0;
        c->unit = 0;
        c->low = true;
        return b == 'u';
    case LITERAL:
        if (b != literals[c->literal][c->at])
            return false;
        if (!literals[c->literal][++c->at])
            c->state = AFTER;
        return true;
    default:
        break;
    }
    if (c->state >= MINUS) {
        if (number_byte(c, b))
            return true;
        if (!number_done(c))
            return false;
        c->state = AFTER;
    }
    if (b == ' ' || b == '\n' || b == '\r' || b == '\t')
        return true;
    switch ((enum state)c->state) {
    case FIRST_VALUE:
        return b == ']' ? after_value(c, b) : begin_value(c, b);
    case FIRST_KEY:
        return b == '}' ? after_value(c, b) : b == '"' && open_string(c, true);
    case KEY:
        return b == '"' && open_string(c, true);
    case COLON:
        c->state = VALUE;
        return b == ':';
    case AFTER:
        return after_value(c, b);
    default:
        return begin_value(c, b);
    }
}

bool gw_json_check_byte(struct gw_json_check *c, char byte)
{
    struct gw_json_check next = *c;
    if (!step(&next, byte))
        return false;
    *c = next;
    return true;
}

bool gw_json_check_done(const struct gw_json_check *c)
{
    return c->depth == 0 && (c->state == AFTER || number_done(c));
}

/* What ends the open scalar. */
static void close_scalar(const struct gw_json_check *c, struct gw_bytes *out)
{
    static const char *const ends[] = {
        [VALUE] = "null",          [KEY] = "\"\":null", [COLON] = ":null", [STRING] = "\"", [ESCAPE] = "\\\"",
        [LOW_SLASH] = "\\udc00\"", [LOW_U] = "udc00\"", [MINUS] = "0",     [POINT] = "0",   [EXP] = "0",
        [EXP_SIGN] = "0",          [EXP_DIGITS] = NULL,
    };
    if (c->state == LITERAL) {
        gw_bytes_puts(out, literals[c->literal] + c->at);
    } else if (c->state == HEX) {
        gw_bytes_puts(out, (c->low ? "dc00" : "0000") + c->at);
        bool high = !c->low && c->at >= 2 && c->unit >> 4 * (c->at - 2) >> 2 == 0xd8 >> 2;
        gw_bytes_puts(out, high ? "\\udc00\"" : "\"");
    } else if (c->state < sizeof ends / sizeof *ends && ends[c->state]) {
        gw_bytes_puts(out, ends[c->state]);
    }
    bool string = c->state >= STRING && c->state <= LOW_U;
    if (string && c->key)
        gw_bytes_puts(out, ":null");
}

void gw_json_check_close(const struct gw_json_check *c, struct gw_bytes *out)
{
    close_scalar(c, out);
    for (int d = c->depth; d > 0; d--)
        gw_bytes_puts(out, c->lists >> (d - 1) & 1 ? "]" : "}");
}
