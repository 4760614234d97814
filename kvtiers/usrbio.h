/* Storage through USRBIO, the user-space ring of the 3FS file system: reads and writes go through shared memory to the
 * file system's own process; everything else goes the usual way (io_uring on the mounted folder).
 *
 * The library is loaded at run time; programs start where it is absent. Requests pass through a piece of memory that
 * the file system has registered, so their bytes are copied once. The interface, as far as it is used, is declared in
 * usrbio_api.h. It has no descriptor to wait on: poll by turns. */
#ifndef WEFT_KVTIERS_USRBIO_H
#define WEFT_KVTIERS_USRBIO_H

#include "kvtiers/storage.h"

/* folder: in a mounted 3FS. library: what dlopen takes; "": libhf3fs_api_shared.so. depth: requests in each of the two
 * rings. Errors name what is missing. */
int kv_storage_usrbio_new(const char *folder, const char *library, int depth, struct kv_storage **out,
                          struct cfg_error *err);

#endif
