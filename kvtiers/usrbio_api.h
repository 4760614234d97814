/* The part of the USRBIO interface (library libhf3fs_api_shared.so of 3FS) that storage uses: memory layouts and
 * functions as that library has them. Only usrbio.c and the double in tests/doubles include this.
 *
 * Most functions return 0 or a count, or a negative errno. hf3fs_reg_fd does not: a positive number is an errno,
 * anything else is success. */
#ifndef WEFT_KVTIERS_USRBIO_API_H
#define WEFT_KVTIERS_USRBIO_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Memory that is shared with the file system's process. */
struct hf3fs_iov {
    uint8_t *base;
    void *iovh;
    char id[16];
    char mount_point[256];
    size_t size, block_size;
    int numa;
};

/* A ring, for reads or for writes. io_depth 0: what is prepared is begun. */
struct hf3fs_ior {
    struct hf3fs_iov iov;
    void *iorh;
    char mount_point[256];
    bool for_read;
    int io_depth, priority, timeout;
    uint64_t flags;
};

/* A completion: bytes moved or a negative errno. */
struct hf3fs_cqe {
    int32_t index, reserved;
    int64_t result;
    const void *userdata;
};

enum { HF3FS_FORBID_READ_HOLES = 2 };

/* Every function that is used, as X(result, name, arguments). */
#define HF3FS_FUNCTIONS(X)                                                                                             \
    X(int, hf3fs_extract_mount_point, (char *mount_point, int size, const char *path))                                 \
    X(int, hf3fs_iovcreate,                                                                                            \
      (struct hf3fs_iov * iov, const char *mount_point, size_t size, size_t block_size, int numa))                     \
    X(void, hf3fs_iovdestroy, (struct hf3fs_iov * iov))                                                                \
    X(int, hf3fs_iorcreate4,                                                                                           \
      (struct hf3fs_ior * ior, const char *mount_point, int entries, bool for_read, int io_depth, int timeout,         \
       int numa, uint64_t flags))                                                                                      \
    X(void, hf3fs_iordestroy, (struct hf3fs_ior * ior))                                                                \
    X(int, hf3fs_reg_fd, (int fd, uint64_t flags))                                                                     \
    X(void, hf3fs_dereg_fd, (int fd))                                                                                  \
    X(int, hf3fs_prep_io,                                                                                              \
      (const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *at, int fd, size_t offset,           \
       uint64_t len, const void *userdata))                                                                            \
    X(int, hf3fs_submit_ios, (const struct hf3fs_ior *ior))                                                            \
    X(int, hf3fs_wait_for_ios,                                                                                         \
      (const struct hf3fs_ior *ior, struct hf3fs_cqe *cqe, int count, int least, const struct timespec *until))

#endif
