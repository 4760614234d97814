#include "model/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES = 100 }; /* of new files that are tried: one may be another program's, or left by one that died */

int mdl_json_file(const char *path, json_t **out, struct cfg_error *err)
{
    struct stat sb;
    json_error_t je;
    if (stat(path, &sb))
        return cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(sb.st_mode) || sb.st_size > MDL_JSON_FILE_MAX)
        return cfg_error_set(err, EINVAL, "%s: expected a regular file of at most %d bytes", path, MDL_JSON_FILE_MAX);
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    if (!*out)
        return cfg_error_set(err, EINVAL, "%s:%d:%d: not valid JSON: %s", path, je.line, je.column, je.text);
    return 0;
}

/* A new file beside path. Its descriptor, or -1 with errno. */
static int open_new(const char *path, char fresh[PATH_MAX])
{
    int fd = -1;
    errno = EEXIST;
    for (int k = 0; k < NAMES && fd < 0 && errno == EEXIST; k++) {
        if (snprintf(fresh, PATH_MAX, "%s.%d.%d.new", path, (int)getpid(), k) >= PATH_MAX) {
            errno = ENAMETOOLONG;
            break;
        }
        fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return fd;
}

/* Closes fd. 0 or an errno. */
static int write_all(int fd, const json_t *root, size_t flags)
{
    FILE *f = fdopen(fd, "w");
    if (!f) {
        int e = errno;
        close(fd);
        return e;
    }
    int e = json_dumpf(root, f, flags) || ferror(f) ? EIO : 0;
    return fclose(f) ? errno : e;
}

int mdl_json_file_write(const char *path, const json_t *root, size_t flags, struct cfg_error *err)
{
    struct stat sb;
    char real[PATH_MAX], fresh[PATH_MAX];
    bool there = stat(path, &sb) == 0, replaced = !there || S_ISREG(sb.st_mode);
    const char *to = there && replaced && realpath(path, real) ? real : path;
    int fd = !root ? -1 : replaced ? open_new(to, fresh) : open(path, O_WRONLY | O_CLOEXEC);
    int e = !root ? ENOMEM : fd < 0 ? errno : 0;
    if (!e && there && replaced && fchmod(fd, sb.st_mode & 07777))
        e = errno;
    if (fd >= 0) {
        int bad = write_all(fd, root, flags);
        e = e ? e : bad;
    }
    if (!e && replaced && rename(fresh, to))
        e = errno;
    if (e && fd >= 0 && replaced)
        unlink(fresh);
    return e ? cfg_error_set(err, EIO, "%s cannot be written: %s", path, strerror(e)) : 0;
}
