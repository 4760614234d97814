/* Fuzz target: any bytes as what another process sends: the preamble and the items of a TCP channel, and frames of the
 * handshake. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/handshake.h"
#include "transport/tcp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void tcp(const uint8_t *data, size_t size)
{
    enum tp_class class;
    uint32_t frame_max, depth;
    struct tp_tcp_item item;
    struct cfg_error err;
    if (size >= TP_TCP_PREAMBLE && tp_tcp_parse_preamble(data, &class, &frame_max, &depth, &err) == 0 &&
        (class >= TP_CLASSES || frame_max < TP_FRAME_MIN || depth < TP_CREDITS_MIN))
        abort();
    int head = tp_tcp_parse_head(data, size, 65536, &item, &err);
    if (head > 0 && ((size_t)head > size || (item.kind == TP_TCP_FRAME && item.size > 65536)))
        abort();
}

static void handshake(const uint8_t *data, size_t size)
{
    static const uint8_t secret[TP_SECRET] = {1};
    struct tp_hello h;
    struct tp_window windows[TP_WINDOWS_MAX];
    enum tp_refusal code;
    char reason[TP_REASON_TEXT];
    uint8_t again[TP_HANDSHAKE_MAX];
    struct cfg_error err;
    int n;
    /* What decodes encodes to the same bytes. */
    if (size && tp_hello_decode(data, size, &h, &err) == 0 && data[0] == TP_FRAME_HELLO &&
        (tp_hello_encode(&h, again) != size || memcmp(again, data, size)))
        abort();
    if (size && tp_proof_decode(data, size, windows, &n, &err) == 0 && (n < 0 || n > TP_WINDOWS_MAX))
        abort();
    if (size && tp_refuse_decode(data, size, &code, reason) == 0 && strlen(reason) >= sizeof reason)
        abort();
    if (tp_proof_check(secret, data, size, data, size))
        abort(); /* nobody knows the secret by chance */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tcp(data, size);
    handshake(data, size);
    return 0;
}
