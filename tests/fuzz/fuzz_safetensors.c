/* Any bytes as a safetensors file: refused with a message, or every tensor it reports lies inside the image. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void open_and_touch(const uint8_t *image, size_t len)
{
    struct mdl_st *st;
    struct cfg_error err = {{0}};
    volatile uint8_t sink = 0;
    if (mdl_st_open_memory(image, len, "fuzz", &st, &err)) {
        if (!err.msg[0] || st)
            __builtin_trap();
        return;
    }
    for (size_t i = 0; i < mdl_st_count(st); i++) {
        const struct mdl_tensor *t = mdl_st_at(st, i);
        const uint8_t *p = t->data;
        if (mdl_st_find(st, t->name) != t || p < image || t->bytes > len || p + t->bytes > image + len)
            __builtin_trap();
        for (size_t k = 0; k < t->bytes; k++)
            sink ^= p[k];
    }
    (void)sink;
    mdl_st_close(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { DATA = 64 };
    open_and_touch(data, size);
    /* The same bytes as a header whose length is right, so that the fuzzer spends its time behind that check. */
    uint8_t *image = calloc(1, 8 + size + DATA);
    if (!image)
        return 0;
    for (int i = 0; i < 8; i++)
        image[i] = (uint8_t)((uint64_t)size >> 8 * i);
    memcpy(image + 8, data, size);
    open_and_touch(image, 8 + size + DATA);
    free(image);
    return 0;
}
