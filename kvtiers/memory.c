#include "kvtiers/memory.h"

#include <stdint.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define PAGE ((size_t)4096)

void *kv_memory_new(size_t bytes)
{
    size_t more = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    if (!bytes || bytes > SIZE_MAX - HUGE_PAGE - PAGE)
        return NULL;
    size_t used = (bytes + PAGE - 1) / PAGE * PAGE;
    uint8_t *p = mmap(NULL, used + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (!more)
        return p;
    /* Only whole aligned pieces become huge pages; what lies before and behind goes back. */
    size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (before)
        munmap(p, before);
    munmap(p + before + used, more - before);
    madvise(p + before, used, MADV_HUGEPAGE); /* a wish: memory works without, a little slower */
    return p + before;
}

void kv_memory_free(void *p, size_t bytes)
{
    if (p)
        munmap(p, bytes);
}
