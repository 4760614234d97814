/* A double of the USRBIO library for tests: the same functions over plain files, with what the real one may do at any
 * time: rings that are full, completions out of order, short moves, errors that come late, calls that fail. Which of it
 * happens follows from a seed. As the real one it keeps the file of a descriptor that was closed without dereg_fd, may
 * write to the memory of a read from prep_io on, and fetches the bytes of a write until its completion. A ring belongs
 * to one thread, rings of several threads may be used at once. Built as a library of its own and loaded as the real one
 * is. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtiers/usrbio_api.h"
#include "tests/doubles/usrbio_faults.h"

#define X(result, name, arguments) result name arguments;
HF3FS_FUNCTIONS(X)
#undef X

enum { ENTRIES_MAX = 512, FILES_MAX = 1024, GARBAGE = 0xa5 };

extern struct usrbio_faults usrbio_faults;
struct usrbio_faults usrbio_faults = {.seed = 1, .errors_left = -1};
extern struct usrbio_counts usrbio_counts;
struct usrbio_counts usrbio_counts;

/* Everything of this file but a ring's entries; a call holds it from beginning to end. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct entry {
    bool used, submitted;
    uint8_t *at;
    int fd;
    size_t offset;
    uint64_t len, number;
    const void *userdata;
};

struct ring {
    int entries, used;
    uint64_t numbers; /* given to requests so far */
    struct entry entry[ENTRIES_MAX];
};

/* The descriptor under which the library keeps the file; 0: not registered. */
static int registered[FILES_MAX];
static struct ring *rings[64];

static unsigned draw(void)
{
    uint64_t *x = &usrbio_faults.seed;
    *x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*x >> 33);
}

static bool happens(unsigned per_thousand, uint64_t *count)
{
    bool yes = per_thousand && draw() % 1000 < per_thousand;
    *count += yes;
    return yes;
}

__attribute__((constructor)) static void from_environment(void)
{
    const struct {
        const char *name;
        unsigned *value;
    } names[] = {{"again=", &usrbio_faults.again},
                 {"order=", &usrbio_faults.order},
                 {"late=", &usrbio_faults.late},
                 {"short=", &usrbio_faults.short_move},
                 {"transient=", &usrbio_faults.transient},
                 {"error=", &usrbio_faults.error},
                 {"refuse=", &usrbio_faults.refuse},
                 {"calls=", &usrbio_faults.calls},
                 {"open=", &usrbio_faults.open}};
    const char *text = getenv("WEFT_USRBIO_FAULTS"), *at;
    for (size_t i = 0; text && i < sizeof names / sizeof names[0]; i++)
        if ((at = strstr(text, names[i].name)))
            *names[i].value = (unsigned)strtoul(at + strlen(names[i].name), NULL, 10);
    if (text && (at = strstr(text, "seed=")))
        usrbio_faults.seed = strtoull(at + 5, NULL, 10);
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
    pthread_mutex_lock(&lock);
    usrbio_counts.iovs += iov->base != NULL;
    pthread_mutex_unlock(&lock);
    return iov->base ? 0 : -ENOMEM;
}

/* Whether memory of a request in flight, of any ring, is in [at, at + len). */
static bool in_flight(const uint8_t *at, uint64_t len)
{
    for (int k = 0; k < 64; k++)
        for (int i = 0; rings[k] && i < rings[k]->entries; i++) {
            const struct entry *e = &rings[k]->entry[i];
            if (e->used && at < e->at + e->len && e->at < at + len)
                return true;
        }
    return false;
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov)
{
    pthread_mutex_lock(&lock);
    usrbio_counts.misuses += in_flight(iov->base, iov->size);
    usrbio_counts.iovs--;
    pthread_mutex_unlock(&lock);
    free(iov->base);
}

int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *mount_point, int entries, bool for_read, int io_depth,
                     int timeout, int numa, uint64_t flags)
{
    (void)mount_point, (void)timeout, (void)numa;
    int place = 0;
    pthread_mutex_lock(&lock);
    while (place < 64 && rings[place])
        place++;
    bool fails = happens(usrbio_faults.open, &usrbio_counts.unopened);
    struct ring *r = fails || entries > ENTRIES_MAX || place == 64 ? NULL : calloc(1, sizeof *r);
    if (r) {
        r->entries = entries;
        rings[place] = r;
        usrbio_counts.rings++;
        usrbio_counts.misuses += for_read && !(flags & HF3FS_FORBID_READ_HOLES);
        *ior = (struct hf3fs_ior){.iorh = r, .for_read = for_read, .io_depth = io_depth, .flags = flags};
    }
    pthread_mutex_unlock(&lock);
    return r ? 0 : -ENOMEM;
}

void hf3fs_iordestroy(struct hf3fs_ior *ior)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 64; i++)
        if (rings[i] == ior->iorh)
            rings[i] = NULL;
    usrbio_counts.rings--;
    free(ior->iorh);
    pthread_mutex_unlock(&lock);
}

/* Positive: an errno. A file that is registered already, also one that was closed since: EINVAL. Success is the
 * negative of a descriptor. */
int hf3fs_reg_fd(int fd, uint64_t flags)
{
    (void)flags;
    int r = EBADF;
    pthread_mutex_lock(&lock);
    if (fd >= 0 && fd < FILES_MAX && registered[fd]) {
        r = EINVAL;
    } else if (usrbio_faults.errors_left && happens(usrbio_faults.refuse, &usrbio_counts.refused)) {
        usrbio_faults.errors_left -= usrbio_faults.errors_left > 0;
        r = ENOMEM;
    } else if (fd >= 0 && fd < FILES_MAX) {
        int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        r = own < 0 ? errno : -own;
        registered[fd] = own > 0 ? own : 0;
        usrbio_counts.descriptors += own > 0;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

void hf3fs_dereg_fd(int fd)
{
    pthread_mutex_lock(&lock);
    if (fd >= 0 && fd < FILES_MAX && registered[fd]) {
        struct stat a, b;
        usrbio_counts.misuses += fstat(fd, &a) || fstat(registered[fd], &b) || a.st_ino != b.st_ino;
        close(registered[fd]);
        registered[fd] = 0;
        usrbio_counts.descriptors--;
    }
    pthread_mutex_unlock(&lock);
}

static int prepare(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, uint8_t *at, int fd,
                   size_t offset, uint64_t len, const void *userdata)
{
    struct ring *r = ior->iorh;
    if (read != ior->for_read || !len || at < iov->base || at + len > iov->base + iov->size)
        return -EINVAL;
    if (fd < 0 || fd >= FILES_MAX || !registered[fd])
        return -EBADF;
    if (!read && (fcntl(registered[fd], F_GETFL) & O_ACCMODE) == O_RDONLY)
        return -EACCES;
    if (r->used == r->entries || happens(usrbio_faults.again, &usrbio_counts.again))
        return -EAGAIN;
    usrbio_counts.misuses += in_flight(at, len);
    for (int i = 0; i < r->entries; i++)
        if (!r->entry[i].used) {
            r->entry[i] = (struct entry){.used = true,
                                         .at = at,
                                         .fd = registered[fd],
                                         .offset = offset,
                                         .len = len,
                                         .number = r->numbers++,
                                         .userdata = userdata};
            r->used++;
            if (read)
                memset(at, GARBAGE, len);
            return i;
        }
    return -EAGAIN;
}

int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *at, int fd, size_t offset,
                  uint64_t len, const void *userdata)
{
    pthread_mutex_lock(&lock);
    int r = prepare(ior, iov, read, at, fd, offset, len, userdata);
    pthread_mutex_unlock(&lock);
    return r;
}

int hf3fs_submit_ios(const struct hf3fs_ior *ior)
{
    struct ring *r = ior->iorh;
    pthread_mutex_lock(&lock);
    bool fails = happens(usrbio_faults.calls, &usrbio_counts.calls);
    for (int i = 0; !fails && i < r->entries; i++)
        r->entry[i].submitted |= r->entry[i].used;
    pthread_mutex_unlock(&lock);
    return fails ? -EINTR : 0;
}

static int64_t move(const struct hf3fs_ior *ior, const struct entry *e)
{
    uint64_t len = e->len;
    usrbio_counts.moves++;
    if (usrbio_faults.errors_left && happens(usrbio_faults.error, &usrbio_counts.errors)) {
        usrbio_faults.errors_left -= usrbio_faults.errors_left > 0;
        return -EIO;
    }
    if (happens(usrbio_faults.transient, &usrbio_counts.transients))
        return draw() & 1 ? -EAGAIN : -EINTR;
    if (len > 1 && happens(usrbio_faults.short_move, &usrbio_counts.short_moves))
        len = 1 + draw() % (len - 1);
    ssize_t n =
        ior->for_read ? pread(e->fd, e->at, len, (off_t)e->offset) : pwrite(e->fd, e->at, len, (off_t)e->offset);
    return n < 0 ? -errno : n;
}

/* The next request to look at, of those with numbers from `from` on; NULL: none is left. */
static struct entry *next_entry(struct ring *r, uint64_t from)
{
    struct entry *best = NULL;
    for (int i = 0; i < r->entries; i++) {
        struct entry *e = &r->entry[i];
        if (e->used && e->submitted && e->number >= from && (!best || e->number < best->number))
            best = e;
    }
    return best;
}

/* Completes some of what was submitted and leaves the rest for later. */
int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqe, int count, int least,
                       const struct timespec *until)
{
    struct ring *r = ior->iorh;
    (void)least, (void)until;
    pthread_mutex_lock(&lock);
    if (happens(usrbio_faults.calls, &usrbio_counts.calls)) {
        pthread_mutex_unlock(&lock);
        return -EINTR;
    }
    /* All, the oldest first; or from somewhere to the newest, then those before. */
    uint64_t middle = 0;
    struct entry *e = next_entry(r, 0);
    if (e && r->used > 1 && happens(usrbio_faults.order, &usrbio_counts.reordered))
        for (int k = 1 + (int)(draw() % (unsigned)(r->used - 1)); e && k > 0; k--, e = next_entry(r, middle))
            middle = e->number + 1;
    int n = 0;
    for (int round = 0; round < 2; round++)
        for (e = next_entry(r, round ? 0 : middle); e && n < count && !(round && e->number >= middle);
             e = next_entry(r, e->number + 1)) {
            if (happens(usrbio_faults.late, &usrbio_counts.late))
                continue;
            cqe[n++] =
                (struct hf3fs_cqe){.index = (int32_t)(e - r->entry), .result = move(ior, e), .userdata = e->userdata};
            e->used = false;
            r->used--;
        }
    pthread_mutex_unlock(&lock);
    return n;
}
