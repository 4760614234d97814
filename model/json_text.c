#include "model/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int write_string(const char *s, size_t n, struct mdl_text *out)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    int rc = mdl_text_puts(out, "\"");
    for (size_t i = 0; i < n && !rc; i++) {
        unsigned char c = (unsigned char)s[i];
        const char *special = c ? strchr(plain, c) : NULL;
        char esc[8];
        if (special)
            snprintf(esc, sizeof esc, "\\%c", letter[special - plain]);
        else if (c < 0x20)
            snprintf(esc, sizeof esc, "\\u%04x", c);
        rc = special || c < 0x20 ? mdl_text_puts(out, esc) : mdl_text_add(out, s + i, 1);
    }
    return rc ? rc : mdl_text_puts(out, "\"");
}

static int write_real(double v, struct mdl_text *out)
{
    char e[40], digits[24], text[64];
    int p = 1, n = 0;
    do
        snprintf(e, sizeof e, "%.*e", p - 1, v);
    while (strtod(e, NULL) != v && p++ < 17);
    const char *s = e;
    bool negative = *s == '-';
    for (s += negative; *s != 'e'; s++)
        if (*s != '.')
            digits[n++] = *s;
    int exp = atoi(s + 1);
    if (exp < -4 || exp >= 16)
        snprintf(text, sizeof text, "%.1s%s%.*se%c%02d", digits, n > 1 ? "." : "", n - 1, digits + 1,
                 exp < 0 ? '-' : '+', abs(exp));
    else if (exp < 0)
        snprintf(text, sizeof text, "0.%.*s%.*s", -exp - 1, "000", n, digits);
    else if (n > exp + 1)
        snprintf(text, sizeof text, "%.*s.%.*s", exp + 1, digits, n - exp - 1, digits + exp + 1);
    else
        snprintf(text, sizeof text, "%.*s%.*s.0", n, digits, exp + 1 - n, "0000000000000000");
    int rc = negative ? mdl_text_puts(out, "-") : 0;
    return rc ? rc : mdl_text_puts(out, text);
}

static int write_object(const json_t *v, struct mdl_text *out)
{
    const char *key;
    size_t len;
    json_t *item;
    bool first = true;
    int rc = mdl_text_puts(out, "{");
    json_object_keylen_foreach ((json_t *)v, key, len, item) {
        if (!rc && !first)
            rc = mdl_text_puts(out, ", ");
        first = false;
        if (!rc)
            rc = write_string(key, len, out);
        if (!rc)
            rc = mdl_text_puts(out, ": ");
        if (!rc)
            rc = mdl_json_write(item, out);
    }
    return rc ? rc : mdl_text_puts(out, "}");
}

static int write_array(const json_t *v, struct mdl_text *out)
{
    int rc = mdl_text_puts(out, "[");
    for (size_t i = 0; i < json_array_size(v) && !rc; i++) {
        rc = i ? mdl_text_puts(out, ", ") : 0;
        if (!rc)
            rc = mdl_json_write(json_array_get(v, i), out);
    }
    return rc ? rc : mdl_text_puts(out, "]");
}

int mdl_json_write(const json_t *v, struct mdl_text *out)
{
    char text[32];
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return write_object(v, out);
    case JSON_ARRAY:
        return write_array(v, out);
    case JSON_STRING:
        return write_string(json_string_value(v), json_string_length(v), out);
    case JSON_REAL:
        return write_real(json_real_value(v), out);
    case JSON_INTEGER:
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return mdl_text_puts(out, text);
    case JSON_TRUE:
        return mdl_text_puts(out, "true");
    case JSON_FALSE:
        return mdl_text_puts(out, "false");
    default:
        return mdl_text_puts(out, "null");
    }
}
