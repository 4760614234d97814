/* Split patterns of tokenizer.json: Oniguruma's notation, translated to PCRE2 where the two mean different things by
 * the same letters, refused where a translation would only be a guess. Called by the loader alone. */
#include "model/tokenizer_impl.h"
#include "model/tokenizer_unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Unicode White_Space. PCRE2's own \s also takes U+180E. */
#define SPACES                                                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                                     \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

enum { MAX_PATTERN = 1 << 16 };

struct translation {
    const char *p, *start, *end;
    struct mdl_text out;
    bool in_class;
    struct cfg_error *err;
};

static int refuse(struct translation *t, const char *what)
{
    return cfg_error_set(t->err, ENOTSUP, "%s at byte %zd of the pattern is not supported", what, t->p - t->start);
}

static const char *const categories[] = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs",
};

static bool is_category(const char *name)
{
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        if (strcmp(name, categories[i]) == 0)
            return true;
    return false;
}

/* The recent characters of a category or of its group ("L" has "Lu"). */
static int put_recent(struct translation *t, const char *category)
{
    char text[32];
    int rc = 0;
    for (size_t i = 0; i < sizeof tok_recent / sizeof *tok_recent && !rc; i++) {
        if (strncmp(tok_recent[i].category, category, strlen(category)) != 0)
            continue;
        snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", (unsigned)tok_recent[i].first, (unsigned)tok_recent[i].last);
        rc = mdl_text_puts(&t->out, text);
    }
    return rc;
}

/* \p{X}: a general category with the recent characters added; anything else as a script (PCRE2 would take the script's
 * extensions too). */
static int property(struct translation *t)
{
    const char *close = memchr(t->p, '}', (size_t)(t->end - t->p));
    char name[48], text[80];
    if (t->end - t->p < 5 || t->p[2] != '{' || !close || close - t->p - 3 >= (ptrdiff_t)sizeof name)
        return refuse(t, "a property other than \\p{Name}");
    bool negated = (t->p[1] == 'P') != (t->p[3] == '^');
    const char *from = t->p + 3 + (t->p[3] == '^'), *open = t->in_class ? "" : negated ? "[^" : "[";
    snprintf(name, sizeof name, "%.*s", (int)(close - from), from);
    bool category = is_category(name);
    if (category && negated && t->in_class)
        return refuse(t, "a negated category inside a class");
    if (category)
        snprintf(text, sizeof text, "%s\\p{%s}", open, name);
    else
        snprintf(text, sizeof text, "\\%c{sc:%s}", negated ? 'P' : 'p', name);
    t->p = close + 1;
    int rc = mdl_text_puts(&t->out, text);
    if (!rc && category)
        rc = put_recent(t, name);
    return rc || !category || t->in_class ? rc : mdl_text_puts(&t->out, "]");
}

static int hex_escape(struct translation *t, int digits)
{
    char text[16];
    unsigned v = 0;
    if (t->end - t->p < 2 + digits)
        return refuse(t, "an escape cut short");
    for (int i = 0; i < digits; i++) {
        char c = t->p[2 + i];
        unsigned d = c >= '0' && c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 32) - 'a') + 10;
        if (d > 15)
            return refuse(t, "an escape with a digit that is not hexadecimal");
        v = v * 16 + d;
    }
    if (digits == 2 && v >= 0x80)
        return refuse(t, "a byte escape above \\x7f");
    snprintf(text, sizeof text, "\\x{%x}", v);
    t->p += 2 + digits;
    return mdl_text_puts(&t->out, text);
}

static int escape(struct translation *t)
{
    if (t->end - t->p < 2)
        return refuse(t, "a backslash at the end");
    char c = t->p[1];
    const char *text = NULL;
    switch (c) {
    case 's':
        text = t->in_class ? SPACES : "[" SPACES "]";
        break;
    case 'S':
        text = t->in_class ? NOT_SPACES : "[^" SPACES "]";
        break;
    case 'v':
        text = "\\x{b}";
        break;
    case 'p':
    case 'P':
        return property(t);
    case 'u':
        return hex_escape(t, 4);
    case 'x':
        if (t->end - t->p > 2 && t->p[2] == '{')
            break;
        return hex_escape(t, 2);
    case 'd':
    case 'D':
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e':
        break;
    default:
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            char what[4] = {'\\', c, 0};
            return refuse(t, what);
        }
        if ((unsigned char)c >= 0x80) { /* an escaped letter of another script is that letter */
            t->p++;
            return 0;
        }
    }
    int rc = text ? mdl_text_puts(&t->out, text) : mdl_text_add(&t->out, t->p, 2);
    t->p += 2;
    return rc;
}

/* "(": only the group kinds that both notations share. */
static int group(struct translation *t)
{
    size_t left = (size_t)(t->end - t->p);
    if (left > 1 && t->p[1] == '*')
        return refuse(t, "(*");
    if (left > 2 && t->p[1] == '?') {
        const char *q = t->p + 2;
        bool known = *q == ':' || *q == '=' || *q == '!' || *q == '>';
        known |= *q == '<' && left > 3 && (q[1] == '=' || q[1] == '!');
        if (*q == 'i' || *q == '-') {
            while (q < t->end && (*q == 'i' || *q == '-'))
                q++;
            known = q < t->end && (*q == ':' || *q == ')');
        }
        if (!known)
            return refuse(t, "this kind of group (?...)");
    }
    return mdl_text_add(&t->out, t->p++, 1);
}

static int translate(struct translation *t)
{
    int rc = 0;
    while (!rc && t->p < t->end) {
        char c = *t->p, next = t->p + 1 < t->end ? t->p[1] : 0;
        if (c == '\\') {
            rc = escape(t);
        } else if (t->in_class && (c == '[' || (c == '&' && next == '&'))) {
            rc = refuse(t, c == '[' ? "a class inside a class" : "&& inside a class");
        } else if (c == '[') {
            t->in_class = true;
            size_t n = next == '^' ? 2 : 1;
            if (t->p + n < t->end && t->p[n] == ']')
                return refuse(t, "a class that begins with ]");
            rc = mdl_text_add(&t->out, t->p, n);
            t->p += n;
        } else if (c == '(' && !t->in_class) {
            rc = group(t);
        } else if (c == '{' && next == ',' && !t->in_class) {
            rc = refuse(t, "a repeat without a lower bound");
        } else {
            t->in_class &= c != ']';
            rc = mdl_text_add(&t->out, t->p++, 1);
        }
    }
    return rc;
}

static int compile(const char *pattern, size_t len, uint32_t options, pcre2_code **out, struct cfg_error *err)
{
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    if (!ctx)
        return cfg_error_set(err, ENOMEM, "out of memory");
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE at;
    *out = pcre2_compile((PCRE2_SPTR)pattern, len, options, &code, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!*out) {
        char text[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return cfg_error_set(err, EINVAL, "the pattern does not compile: %s", text);
    }
    /* Where the system forbids code generation PCRE2 interprets the pattern instead: the same matches, more slowly. */
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return 0;
}

int tok_pattern_compile(const char *pattern, size_t len, bool literal, pcre2_code **out, struct cfg_error *err)
{
    *out = NULL;
    if (len == 0 || len > MAX_PATTERN)
        return cfg_error_set(err, EINVAL, "a pattern of %zu bytes; 1 to %d are allowed", len, MAX_PATTERN);
    if (literal)
        return compile(pattern, len, PCRE2_UTF | PCRE2_LITERAL, out, err);
    struct translation t = {.p = pattern, .start = pattern, .end = pattern + len, .err = err};
    int rc = translate(&t);
    if (rc == -ENOMEM)
        cfg_error_set(err, ENOMEM, "out of memory");
    if (!rc) /* Oniguruma's ^ and $ always match at lines */
        rc = compile(t.out.s, t.out.n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE, out, err);
    mdl_text_free(&t.out);
    return rc;
}
