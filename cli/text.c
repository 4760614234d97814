#include "cli/text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the character at s, 0: it is none. */
static size_t character(const unsigned char *s)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;
    unsigned code = n > 1 ? s[0] & (0x7fu >> n) : s[0];
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    return n && code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? n : 0;
}

void cli_text_clean(char *text)
{
    for (unsigned char *s = (unsigned char *)text; *s;) {
        size_t n = character(s);
        bool control = (n == 1 && (*s < 0x20 || *s == 0x7f)) || (n == 2 && *s == 0xc2 && s[1] < 0xa0);
        for (size_t i = 0; control && i < n; i++)
            s[i] = '?';
        if (!n)
            *s = '?';
        s += n ? n : 1;
    }
}

void cli_text_clean_json(json_t *value)
{
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_string(value)) {
        char *copy = strdup(json_string_value(value));
        if (copy) {
            cli_text_clean(copy);
            json_string_set(value, copy);
        }
        free(copy);
    } else if (json_is_object(value)) {
        json_object_foreach (value, key, one)
            cli_text_clean_json(one);
    } else {
        json_array_foreach (value, i, one)
            cli_text_clean_json(one);
    }
}
