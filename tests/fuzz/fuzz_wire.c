/* Fuzz target: any bytes as a message from another node. What decodes must encode to the same bytes again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "actors/runtime/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct act_runtime *runtime(void)
{
    static struct act_config c = {.node = 1, .epoch = 1, .workers = 1};
    struct act_runtime *rt;
    struct cfg_error err;
    c.worker[0].kind = ACT_WORKER_ENGINE;
    c.worker[0].cpu = -1;
    if (act_runtime_new(&c, &rt, &err) != 0)
        abort();
    return rt;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct act_runtime *rt = runtime(); /* a new one each time: it remembers incarnations */
    struct act_msg m;
    size_t used, written;
    struct cfg_error err;
    int rc = act_wire_decode(rt, data, size, 0, &m, &used, &err);
    if (rc == 0) {
        uint8_t *again = malloc(used);
        if (used > size || act_wire_size(&m) != used || act_wire_encode(rt, &m, 0, again, &written) != 0 ||
            memcmp(again, data, used) != 0)
            abort();
        free(again);
        act_msg_drop(&m);
    } else if (m.buf) {
        abort();
    }
    act_runtime_free(rt);
    return 0;
}
