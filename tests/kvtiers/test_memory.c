/* Large memory: whole, zeroed, aligned, and given back to the last page. */
#include "tests/harness.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kvtiers/memory.h"

static const size_t sizes[] = {1, 4096, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (5 << 20) + 12345};
enum { SIZES = sizeof sizes / sizeof *sizes };

Test(memory, every_byte_is_there_and_zero)
{
    for (int i = 0; i < SIZES; i++) {
        uint8_t *p = kv_memory_new(sizes[i]);
        cr_assert_not_null(p);
        cr_assert_eq((uintptr_t)p % (sizes[i] < 2 << 20 ? 4096 : 2 << 20), 0, "%zu", sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            cr_assert_eq(p[k], 0);
        memset(p, 0xa5, sizes[i]);
        cr_assert(p[0] == 0xa5 && p[sizes[i] - 1] == 0xa5);
        kv_memory_free(p, sizes[i]);
    }
    kv_memory_free(NULL, 4096);
}

Test(memory, sizes_that_cannot_be)
{
    cr_assert_null(kv_memory_new(0));
    cr_assert_null(kv_memory_new(SIZE_MAX));
    cr_assert_null(kv_memory_new(SIZE_MAX / 2));
}

/* Lines of the list of mappings: pieces that are left over would add to them. */
static int mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    int n = 0;
    for (int c; f && (c = fgetc(f)) != EOF;)
        n += c == '\n';
    if (f)
        fclose(f);
    return n;
}

Test(memory, nothing_stays_behind)
{
    mappings(); /* the buffers of its own */
    int before = mappings();
    for (int round = 0; round < 50; round++)
        for (int i = 0; i < SIZES; i++) {
            void *keep = kv_memory_new(sizes[i]), *other = kv_memory_new(sizes[(i + 1) % SIZES]);
            cr_assert(keep && other);
            kv_memory_free(keep, sizes[i]);
            kv_memory_free(other, sizes[(i + 1) % SIZES]);
        }
    cr_assert_leq(mappings(), before + 2);
}
