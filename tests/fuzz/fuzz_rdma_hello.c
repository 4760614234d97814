/* Fuzz target: any bytes as what another rdma endpoint says while it connects, and as a key of its memory. What reads
 * must write to the same again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma_hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tp_rdma_ask ask;
    struct tp_rdma_reply reply;
    struct tp_rdma_window w;
    struct tp_key key = {0}, again;
    struct cfg_error err;
    char why[TP_RDMA_REFUSAL];
    uint8_t out[TP_RDMA_REPLY];
    if (tp_rdma_ask_read(data, size, &ask, &err) == 0) {
        tp_rdma_ask_write(&ask, out);
        if (memcmp(out, data, 24) != 0)
            abort();
    }
    if (tp_rdma_reply_read(data, size, &reply, &err) == 0) {
        tp_rdma_reply_write(&reply, out);
        if (memcmp(out, data, 6) != 0 || memcmp(out + 8, data + 8, TP_RDMA_REPLY - 8) != 0)
            abort();
    }
    tp_rdma_refusal_read(data, size, why);
    if (strlen(why) >= sizeof why)
        abort();
    key.size = (uint8_t)(size < 255 ? size : 255);
    memcpy(key.byte, data, size < TP_KEY_MAX ? size : TP_KEY_MAX);
    if (tp_rdma_window_read(&key, &w) == 0) {
        tp_rdma_window_write(&w, &again);
        if (again.size != key.size || memcmp(again.byte, key.byte, key.size) != 0)
            abort();
    }
    return 0;
}
