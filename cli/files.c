#include "cli/files.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int cli_file_read(const char *path, char **text, size_t *len, struct cfg_error *err)
{
    *text = NULL;
    *len = 0;
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!f)
        return cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    size_t capacity = 1 << 16;
    char *buf = malloc(capacity);
    while (buf) {
        *len += fread(buf + *len, 1, capacity - *len - 1, f);
        if (*len < capacity - 1)
            break;
        char *more = realloc(buf, capacity *= 2);
        if (!more)
            free(buf);
        buf = more;
    }
    int e = !buf ? ENOMEM : ferror(f) ? errno : 0;
    if (f != stdin)
        fclose(f);
    if (e) {
        free(buf);
        return cfg_error_set(err, e, "%s: %s", path, strerror(e));
    }
    buf[*len] = 0;
    *text = buf;
    return 0;
}

int cli_file_read_ids(const char *path, int32_t **ids, int *n, struct cfg_error *err)
{
    char *text;
    size_t len;
    *ids = NULL;
    *n = 0;
    int r = cli_file_read(path, &text, &len, err);
    if (r)
        return r;
    *ids = malloc((len / 2 + 1) * sizeof **ids);
    if (!*ids)
        r = cfg_error_set(err, ENOMEM, "%s: out of memory", path);
    for (char *p = text; !r;) {
        while (isspace((unsigned char)*p))
            p++;
        if (p == text + len)
            break;
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX || (*end && !isspace((unsigned char)*end)))
            r = cfg_error_set(err, EINVAL,
                              "%s: byte %zu: \"%.12s\" is no token id; ids are decimal numbers with white space "
                              "between them",
                              path, (size_t)(p - text), p);
        else
            (*ids)[(*n)++] = (int32_t)v;
        p = end;
    }
    free(text);
    if (r) {
        free(*ids);
        *ids = NULL;
    }
    return r;
}

int cli_file_make_dir(const char *path, struct cfg_error *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    if (!len || len >= sizeof part)
        return cfg_error_set(err, EINVAL, "\"%s\" is no usable folder name", path);
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i])
            continue;
        char c = part[i];
        part[i] = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            return cfg_error_set(err, errno, "cannot make the folder %s: %s", part, strerror(errno));
        part[i] = c;
    }
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        return cfg_error_set(err, ENOTDIR, "%s is not a folder", path);
    return 0;
}
