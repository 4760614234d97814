/* Implementation of config/source.h. */
#define _GNU_SOURCE
#include "config/source.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/report.h"

/* Where the scanner is between two lines: a directive counts only in plain text, as with comments in C. */
enum state { PLAIN, IN_COMMENT, IN_STRING };

enum { BRACKETS_MAX = 64 };

struct reader {
    struct cfg_source *source;
    struct cfg_report *report;
    enum state state;
    int depth; /* of includes */
    bool may_include;
    bool refused; /* libconfig must not see this text */
    char last;    /* last character that counted; 'w' for words, '"' for texts */
    char bracket[BRACKETS_MAX];
    int brackets;
};

static int add_file(struct reader *r, const char *name)
{
    struct cfg_source *s = r->source;
    if (s->n_files == CFG_FILES_MAX) {
        cfg_report_add(r->report, name, 0, "Join some of the files.", "more than %d files are included", CFG_FILES_MAX);
        return -EINVAL;
    }
    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    s->files[s->n_files] = copy;
    return s->n_files++;
}

static int append(struct cfg_source *s, const char *bytes, size_t len)
{
    if (s->len + len + 1 > s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4096;
        while (cap < s->len + len + 1)
            cap *= 2;
        char *text = realloc(s->text, cap);
        if (!text)
            return -ENOMEM;
        s->text = text;
        s->cap = cap;
    }
    memcpy(s->text + s->len, bytes, len);
    s->len += len;
    s->text[s->len] = 0;
    return 0;
}

/* Remembers that the next line of the text is line number (from 1) of file. */
static int begin_line(struct cfg_source *s, int file, int number)
{
    if (s->n_lines == s->cap_lines) {
        int cap = s->cap_lines ? s->cap_lines * 2 : 256;
        struct cfg_place *lines = realloc(s->lines, (size_t)cap * sizeof *lines);
        if (!lines)
            return -ENOMEM;
        s->lines = lines;
        s->cap_lines = cap;
    }
    s->lines[s->n_lines++] = (struct cfg_place){file, number};
    return 0;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

/* libconfig cuts integers to 32 bits unless they end in L, so that 4294967297 would silently be 1. Appends the word and
 * gives a wider integer its L; one that is wider still becomes the largest there is. */
static int append_word(struct cfg_source *s, const char *word, size_t len)
{
    char digits[32];
    size_t bare = len < sizeof digits ? len : sizeof digits - 1;
    memcpy(digits, word, bare);
    digits[bare] = 0;
    bool hex = len > 2 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X');
    size_t skip = hex ? 2 : 0, count = 0;
    while (skip + count < len &&
           (hex ? isxdigit((unsigned char)word[skip + count]) : isdigit((unsigned char)word[count])))
        count++;
    if (count == 0 || skip + count < len)
        return append(s, word, len);
    errno = 0;
    long long value = strtoll(digits, NULL, hex ? 16 : 10);
    if (errno == ERANGE || bare < len) {
        const char *largest = hex ? "0x7fffffffffffffffL" : "9223372036854775807L";
        return append(s, largest, strlen(largest));
    }
    int rc = append(s, word, len);
    return rc == 0 && value > INT32_MAX ? append(s, "L", 1) : rc;
}

static void refuse(struct reader *r, const char *remedy, const char *message)
{
    struct cfg_place at = r->source->lines[r->source->n_lines - 1];
    cfg_report_add(r->report, r->source->files[at.file], at.line, remedy, "%s", message);
    r->refused = true;
}

/* A text where the grammar has none: libconfig would say "syntax error" and lose the memory of the text. */
static void check_text(struct reader *r)
{
    char inner = r->brackets > 0 ? r->bracket[r->brackets - 1] : '{';
    bool fits = r->last && (strchr("=:([\"", r->last) || (r->last == ',' && inner != '{'));
    if (!fits && !r->refused)
        refuse(r, "Write NAME = \"TEXT\"; is a name, '=' or ';' missing before it?", "a text stands where none can be");
    r->last = '"';
}

static void check_bracket(struct reader *r, char c)
{
    if (strchr("([{", c) && r->brackets < BRACKETS_MAX)
        r->bracket[r->brackets++] = c;
    else if (strchr("([{", c) && !r->refused)
        refuse(r, "No key needs that.", "brackets are nested too deeply");
    else if (strchr(")]}", c) && r->brackets > 0)
        r->brackets--;
}

/* Appends one line and follows comments and strings through it, in which nothing has a meaning. */
static int add_line(struct reader *r, const char *p, const char *end)
{
    struct cfg_source *s = r->source;
    int rc = 0;
    while (p < end && rc == 0) {
        size_t n = 1;
        if (r->state == IN_COMMENT) {
            if (p[0] == '*' && p + 1 < end && p[1] == '/') {
                r->state = PLAIN;
                n = 2;
            }
        } else if (r->state == IN_STRING) {
            if (*p == '\\' && p + 1 < end)
                n = 2;
            else if (*p == '"')
                r->state = PLAIN;
        } else if (*p == '#' || (p[0] == '/' && p + 1 < end && p[1] == '/')) {
            n = (size_t)(end - p);
        } else if (p[0] == '/' && p + 1 < end && p[1] == '*') {
            r->state = IN_COMMENT;
            n = 2;
        } else if (*p == '"') {
            check_text(r);
            r->state = IN_STRING;
        } else if (is_word(*p)) {
            r->last = 'w';
            bool name = isalpha((unsigned char)*p); /* only names go on after '-' and '*' */
            while (p + n < end && (is_word(p[n]) || (name && (p[n] == '-' || p[n] == '*'))))
                n++;
            rc = append_word(s, p, n);
            p += n;
            continue;
        } else if (!isspace((unsigned char)*p)) {
            check_bracket(r, *p);
            r->last = *p;
        }
        rc = append(s, p, n);
        p += n;
    }
    return rc == 0 ? append(s, "\n", 1) : rc;
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++;
    return p;
}

static int read_path(struct reader *r, const char *path, const char *from, int from_line);

/* p is behind "@include". */
static int include(struct reader *r, const char *p, const char *end, int file, int number)
{
    const char *here = r->source->files[file];
    const char *open = skip_blanks(p, end);
    const char *close = open < end && *open == '"' ? memchr(open + 1, '"', (size_t)(end - open - 1)) : NULL;
    const char *rest = close ? skip_blanks(close + 1, end) : end;
    bool comment = rest < end && (*rest == '#' || (rest + 1 < end && rest[0] == '/' && rest[1] == '/'));
    if (!close || close == open + 1 || (rest < end && !comment)) {
        cfg_report_add(r->report, here, number, "Write @include \"NAME\" alone on its line.", "malformed @include");
        return 0;
    }
    if (!r->may_include) {
        cfg_report_add(r->report, here, number, "Put the text here instead.", "@include is not possible in this place");
        return 0;
    }
    if (r->depth == CFG_SOURCE_DEPTH_MAX) {
        cfg_report_add(r->report, here, number, "Does a file include itself? Take one of the directives out.",
                       "@include more than %d files deep", CFG_SOURCE_DEPTH_MAX);
        return 0;
    }
    const char *slash = strrchr(here, '/');
    bool absolute = open[1] == '/';
    char *path = NULL;
    if (asprintf(&path, "%.*s%.*s", slash && !absolute ? (int)(slash + 1 - here) : 0, here, (int)(close - open - 1),
                 open + 1) < 0)
        return -ENOMEM;
    r->depth++;
    int rc = read_path(r, path, here, number);
    r->depth--;
    free(path);
    return rc;
}

static int add_text(struct reader *r, const char *text, size_t len, int file)
{
    const char *name = r->source->files[file];
    if (memchr(text, 0, len)) {
        cfg_report_add(r->report, name, 0, "Is this a text file?", "a zero byte is in the file");
        return -EINVAL;
    }
    if (r->source->len + len > CFG_SOURCE_BYTES_MAX) {
        cfg_report_add(r->report, name, 0, "Make it shorter.", "the configuration is larger than %d bytes",
                       CFG_SOURCE_BYTES_MAX);
        return -EINVAL;
    }
    static const char word[] = "@include";
    int number = 0;
    for (const char *p = text, *end = text + len; p < end;) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        if (!eol)
            eol = end;
        number++;
        const char *start = skip_blanks(p, eol);
        size_t wl = sizeof word - 1;
        bool directive = r->state == PLAIN && (size_t)(eol - start) >= wl && memcmp(start, word, wl) == 0;
        int rc;
        if (directive) {
            rc = include(r, start + wl, eol, file, number);
        } else {
            rc = begin_line(r->source, file, number);
            if (rc == 0)
                rc = add_line(r, p, eol);
        }
        if (rc < 0)
            return rc;
        p = eol + 1;
    }
    if (r->state != PLAIN) {
        cfg_report_add(r->report, name, 0, "Close it.", "the file ends inside a %s",
                       r->state == IN_STRING ? "string" : "comment");
        return -EINVAL;
    }
    return 0;
}

/* Opens without waiting, so that a FIFO without a writer is refused like every other thing that is no file. */
static int read_whole(const char *path, char **text, size_t *len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    struct stat st;
    int rc = 0;
    if (fstat(fd, &st) != 0)
        rc = -errno;
    else if (S_ISDIR(st.st_mode))
        rc = -EISDIR;
    else if (!S_ISREG(st.st_mode))
        rc = -EINVAL;
    else if (st.st_size > CFG_SOURCE_BYTES_MAX)
        rc = -EFBIG;
    char *data = rc == 0 ? malloc((size_t)st.st_size + 1) : NULL;
    if (rc == 0 && !data)
        rc = -ENOMEM;
    size_t have = 0;
    while (rc == 0 && have < (size_t)st.st_size) {
        ssize_t n = read(fd, data + have, (size_t)st.st_size - have);
        if (n < 0)
            rc = -errno;
        if (n == 0)
            break;
        if (n > 0)
            have += (size_t)n;
    }
    close(fd);
    if (rc != 0 || !data) {
        free(data);
        return rc;
    }
    *text = data;
    *len = have;
    return 0;
}

/* from is the file and line that asked for path; NULL: the user did. A file that cannot be read is a problem, and the
 * others are still looked at; only the first file is indispensable. */
static int read_path(struct reader *r, const char *path, const char *from, int from_line)
{
    char *text = NULL;
    size_t len = 0;
    int rc = read_whole(path, &text, &len);
    if (rc == -ENOMEM)
        return rc;
    if (rc != 0 || !text) {
        const char *why = rc == -EINVAL ? "not a regular file" : strerror(-rc);
        if (!from) {
            cfg_report_add(r->report, path, 0, "Name a configuration file that can be read.", "cannot be read: %s",
                           why);
            return rc;
        }
        cfg_report_add(r->report, from, from_line,
                       "Names are looked up in the folder of the file that includes them; correct the name.",
                       "the included file %s cannot be read: %s", path, why);
        return 0;
    }
    int file = add_file(r, path);
    rc = file < 0 ? file : 0;
    if (rc == 0)
        rc = add_text(r, text, len, file);
    free(text);
    return rc;
}

/* An empty source still has a text. */
static int finish(struct reader *r, int rc)
{
    struct cfg_source *s = r->source;
    if (rc == 0 && r->refused)
        return -EINVAL;
    if (rc == 0 && !s->text)
        rc = begin_line(s, 0, 1);
    return rc == 0 ? append(s, "", 0) : rc;
}

int cfg_source_read(const char *path, struct cfg_source *s, struct cfg_report *report)
{
    *s = (struct cfg_source){0};
    struct reader r = {.source = s, .report = report, .state = PLAIN, .may_include = true};
    return finish(&r, read_path(&r, path, NULL, 0));
}

int cfg_source_set(const char *text, size_t len, const char *name, struct cfg_source *s, struct cfg_report *report)
{
    *s = (struct cfg_source){0};
    struct reader r = {.source = s, .report = report, .state = PLAIN};
    int file = add_file(&r, name);
    return finish(&r, file < 0 ? file : add_text(&r, text, len, file));
}

struct cfg_place cfg_source_place(const struct cfg_source *s, int line)
{
    if (s->n_lines == 0)
        return (struct cfg_place){0, 0};
    if (line < 1)
        line = 1;
    if (line > s->n_lines)
        line = s->n_lines;
    return s->lines[line - 1];
}

void cfg_source_free(struct cfg_source *s)
{
    for (int i = 0; i < s->n_files; i++)
        free(s->files[i]);
    free(s->text);
    free(s->lines);
    *s = (struct cfg_source){0};
}
