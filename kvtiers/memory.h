/* Large memory that storage reads into and writes from: caches of the tiers, pages of the device tier, rooms for what
 * is under way. It asks for huge pages: a device writes into few large pieces faster than into many of 4 KiB, and
 * pinning them costs less. Any thread. */
#ifndef WEFT_KVTIERS_MEMORY_H
#define WEFT_KVTIERS_MEMORY_H

#include <stddef.h>

/* Zeroed memory, aligned to 4 KiB, from 2 MiB on to 2 MiB; costs no room before it is touched. NULL: not to be had. */
void *kv_memory_new(size_t bytes);
/* p may be NULL. bytes: as given to kv_memory_new. */
void kv_memory_free(void *p, size_t bytes);

#endif
