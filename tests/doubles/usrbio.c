/* A double of the USRBIO library for tests: the same functions over plain files, with what the real one may do at any
 * time: rings that are full, completions out of order, short reads, errors that come late. Which of it happens follows
 * from a seed. One thread. Built as a library of its own and loaded as the real one is. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvtiers/usrbio_api.h"

#define X(result, name, arguments) result name arguments;
HF3FS_FUNCTIONS(X)
#undef X

enum { ENTRIES_MAX = 512, FILES_MAX = 1024 };

/* What happens, per thousand. Set by the test (dlsym). */
extern struct usrbio_faults {
    unsigned again, short_move, error, late;
    int64_t errors_left; /* errors at most; -1: any number */
    uint64_t seed;
} usrbio_faults;
struct usrbio_faults usrbio_faults = {.seed = 1, .errors_left = -1};

struct entry {
    bool used, submitted;
    void *at;
    int fd;
    size_t offset;
    uint64_t len;
    const void *userdata;
};

struct ring {
    int entries, used;
    struct entry entry[ENTRIES_MAX];
};

static bool registered[FILES_MAX];

static unsigned draw(void)
{
    uint64_t *x = &usrbio_faults.seed;
    *x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*x >> 33) % 1000;
}

int hf3fs_extract_mount_point(char *mount_point, int size, const char *path)
{
    int n = (int)strlen(path);
    if (strstr(path, "not-3fs"))
        return -1;
    if (n < size)
        strcpy(mount_point, path);
    return n + 1;
}

int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *mount_point, size_t size, size_t block_size, int numa)
{
    (void)mount_point, (void)numa;
    *iov = (struct hf3fs_iov){.base = aligned_alloc(4096, size), .size = size, .block_size = block_size};
    return iov->base ? 0 : -ENOMEM;
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov)
{
    free(iov->base);
}

int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *mount_point, int entries, bool for_read, int io_depth,
                     int timeout, int numa, uint64_t flags)
{
    (void)mount_point, (void)timeout, (void)numa;
    struct ring *r = entries > ENTRIES_MAX ? NULL : calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->entries = entries;
    *ior = (struct hf3fs_ior){.iorh = r, .for_read = for_read, .io_depth = io_depth, .flags = flags};
    return 0;
}

void hf3fs_iordestroy(struct hf3fs_ior *ior)
{
    free(ior->iorh);
}

/* Positive: an errno. A file that is registered already, also one that was closed since: EINVAL. */
int hf3fs_reg_fd(int fd, uint64_t flags)
{
    (void)flags;
    if (fd < 0 || fd >= FILES_MAX || fcntl(fd, F_GETFD) < 0)
        return EBADF;
    if (registered[fd])
        return EINVAL;
    registered[fd] = true;
    return -fd - 1000;
}

void hf3fs_dereg_fd(int fd)
{
    if (fd >= 0 && fd < FILES_MAX)
        registered[fd] = false;
}

int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *at, int fd, size_t offset,
                  uint64_t len, const void *userdata)
{
    struct ring *r = ior->iorh;
    const uint8_t *p = at;
    if (read != ior->for_read || !len || p < iov->base || p + len > iov->base + iov->size)
        return -EINVAL;
    if (fd < 0 || fd >= FILES_MAX || !registered[fd])
        return -EBADF;
    if (!read && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
        return -EACCES;
    if (r->used == r->entries || draw() < usrbio_faults.again)
        return -EAGAIN;
    for (int i = 0; i < r->entries; i++)
        if (!r->entry[i].used) {
            r->entry[i] =
                (struct entry){.used = true, .at = at, .fd = fd, .offset = offset, .len = len, .userdata = userdata};
            r->used++;
            return i;
        }
    return -EAGAIN;
}

int hf3fs_submit_ios(const struct hf3fs_ior *ior)
{
    struct ring *r = ior->iorh;
    for (int i = 0; i < r->entries; i++)
        r->entry[i].submitted |= r->entry[i].used;
    return 0;
}

static int64_t move(const struct hf3fs_ior *ior, struct entry *e)
{
    uint64_t len = e->len;
    if (draw() < usrbio_faults.error && usrbio_faults.errors_left) {
        usrbio_faults.errors_left -= usrbio_faults.errors_left > 0;
        return -EIO;
    }
    if (len > 4096 && draw() < usrbio_faults.short_move)
        len = len / 2 / 4096 * 4096;
    ssize_t n =
        ior->for_read ? pread(e->fd, e->at, len, (off_t)e->offset) : pwrite(e->fd, e->at, len, (off_t)e->offset);
    return n < 0 ? -errno : n;
}

/* Completes some of what was submitted, in any order, and leaves the rest for later. */
int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqe, int count, int least,
                       const struct timespec *until)
{
    struct ring *r = ior->iorh;
    int n = 0, start = r->entries ? (int)(draw() % (unsigned)r->entries) : 0;
    (void)least, (void)until;
    for (int k = 0; k < r->entries && n < count; k++) {
        int i = (start + k * 7) % r->entries;
        struct entry *e = &r->entry[i];
        if (!e->used || !e->submitted || draw() < usrbio_faults.late)
            continue;
        cqe[n++] = (struct hf3fs_cqe){.index = i, .result = move(ior, e), .userdata = e->userdata};
        e->used = false;
        r->used--;
    }
    return n;
}
