#define _GNU_SOURCE
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(struct cfg_error *err, const char *path, int e)
{
    return cfg_error_set(err, e, "%s cannot be written: %s", path, strerror(e));
}

/* A new file beside path, with the mode of what is there. Its descriptor, or negative errno. */
static int open_beside(const char *path, const struct stat *there, char **fresh)
{
    if (asprintf(fresh, "%s.XXXXXX", path) < 0) {
        *fresh = NULL;
        return -ENOMEM;
    }
    int fd = mkostemp(*fresh, O_CLOEXEC), e = errno;
    if (fd < 0) {
        free(*fresh);
        *fresh = NULL;
        return -e;
    }
    mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, there ? there->st_mode & 07777 : 0666 & ~mask);
    return fd;
}

/* *regular: it has to be replaced, and *there (may be NULL) is what is replaced. */
static int look(const char *path, struct stat *st, bool *regular, const struct stat **there)
{
    *there = NULL;
    *regular = true;
    if (!*path)
        return ENOENT;
    if (stat(path, st))
        return errno == ENOENT ? 0 : errno;
    if (S_ISDIR(st->st_mode))
        return EISDIR;
    *there = st;
    *regular = S_ISREG(st->st_mode);
    return access(path, W_OK) ? errno : 0;
}

int cli_output_begin(struct cli_output *o, const char *path, struct cfg_error *err)
{
    struct stat st;
    const struct stat *there;
    bool regular;
    *o = (struct cli_output){.to = NULL};
    int e = look(path, &st, &regular, &there), fd = -1;
    if (e)
        return failed(err, path, e);
    o->path = there && regular ? realpath(path, NULL) : strdup(path);
    if (!o->path)
        return failed(err, path, errno);
    fd = regular ? open_beside(o->path, there, &o->fresh) : open(path, O_WRONLY | O_CLOEXEC);
    e = fd < 0 && regular ? -fd : errno;
    if (fd >= 0 && (o->to = fdopen(fd, "w")))
        return 0;
    if (fd >= 0)
        close(fd);
    if (o->fresh)
        unlink(o->fresh);
    free(o->fresh);
    free(o->path);
    *o = (struct cli_output){.to = NULL};
    return failed(err, path, e);
}

int cli_output_end(struct cli_output *o, int status, struct cfg_error *err)
{
    int e = ferror(o->to) ? EIO : 0;
    if (fclose(o->to) && !e)
        e = errno;
    if (o->fresh && !e && !status && rename(o->fresh, o->path))
        e = errno;
    if (o->fresh && (e || status))
        unlink(o->fresh);
    if (e && !status)
        status = failed(err, o->path, e);
    free(o->fresh);
    free(o->path);
    *o = (struct cli_output){.to = NULL};
    return status;
}

int cli_output_check(const char *path, struct cfg_error *err)
{
    struct stat st;
    const struct stat *there;
    bool regular;
    char *fresh = NULL;
    int e = look(path, &st, &regular, &there), fd;
    if (e)
        return failed(err, path, e);
    if (!regular)
        return 0;
    char *real = there ? realpath(path, NULL) : strdup(path);
    if (!real)
        return failed(err, path, errno);
    fd = open_beside(real, there, &fresh);
    free(real);
    if (fd < 0)
        return failed(err, path, -fd);
    close(fd);
    unlink(fresh);
    free(fresh);
    return 0;
}

/* The folder's real name and the file's own. */
static bool place_of(const char *path, char folder[PATH_MAX], char **own, const char **base)
{
    char *copy = strdup(path);
    *own = strdup(path);
    bool well = copy && *own && realpath(dirname(copy), folder);
    *base = *own ? basename(*own) : "";
    free(copy);
    return well;
}

bool cli_output_same(const char *a, const char *b)
{
    struct stat x, y;
    char there[2][PATH_MAX], *own[2];
    const char *base[2];
    if (!strcmp(a, "/dev/null"))
        return false;
    if (!strcmp(a, b))
        return true;
    if (!stat(a, &x) && !stat(b, &y))
        return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    bool both = place_of(a, there[0], &own[0], &base[0]), also = place_of(b, there[1], &own[1], &base[1]);
    bool same = both && also && !strcmp(there[0], there[1]) && !strcmp(base[0], base[1]);
    free(own[0]);
    free(own[1]);
    return same;
}

int cli_output_json(const char *path, json_t *all, size_t flags, struct cfg_error *err)
{
    struct cli_output o;
    int r = all ? cli_output_begin(&o, path, err) : cfg_error_set(err, ENOMEM, "%s: out of memory", path);
    if (!r) {
        bool bad = json_dumpf(all, o.to, flags) && !ferror(o.to); /* an error of the stream is told at its end */
        r = cli_output_end(&o, bad ? cfg_error_set(err, ENOMEM, "%s: out of memory", path) : 0, err);
    }
    json_decref(all);
    return r;
}
