/* What rdma endpoints tell each other while they connect, and keys of registered memory: written, read, refused. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#include "transport/rdma_hello.h"

static const struct tp_rdma_ask good = {.lane = 1,
                                        .lanes = 3,
                                        .class = TP_CLASS_KV,
                                        .frame_max = 16384,
                                        .depth = 64,
                                        .mtu = 4096,
                                        .channel = UINT64_MAX - 5};

Test(rdma_hello, an_ask_reads_back)
{
    uint8_t bytes[56] = {0}; /* the connection manager pads */
    struct tp_rdma_ask a;
    struct cfg_error err;
    tp_rdma_ask_write(&good, bytes);
    cr_assert_eq(tp_rdma_ask_read(bytes, sizeof bytes, &a, &err), 0, "%s", err.msg);
    cr_expect_eq(a.lane, 1);
    cr_expect_eq(a.lanes, 3);
    cr_expect_eq(a.class, TP_CLASS_KV);
    cr_expect_eq(a.frame_max, 16384);
    cr_expect_eq(a.depth, 64);
    cr_expect_eq(a.mtu, 4096);
    cr_expect_eq(a.channel, UINT64_MAX - 5);
}

static void refused(const struct tp_rdma_ask *ask, int at, uint8_t value, size_t size, const char *want)
{
    uint8_t bytes[56] = {0};
    struct tp_rdma_ask a;
    struct cfg_error err = {""};
    tp_rdma_ask_write(ask, bytes);
    if (at >= 0)
        bytes[at] = value;
    cr_expect_eq(tp_rdma_ask_read(bytes, size, &a, &err), -EPROTO, "byte %d = %d", at, value);
    cr_expect(strstr(err.msg, want), "should say \"%s\": %s", want, err.msg);
}

Test(rdma_hello, asks_that_cannot_be)
{
    refused(&good, -1, 0, TP_RDMA_ASK - 1, "no endpoint of this program");
    refused(&good, 0, 'X', 56, "no endpoint of this program");
    refused(&good, 4, 9, 56, "version 9");
    refused(&good, 5, TP_RDMA_RAILS_MAX, 56, "lane 4");
    refused(&good, 6, 0, 56, "0 lanes");
    refused(&good, 7, TP_CLASSES, 56, "class 3");
    struct tp_rdma_ask a = good;
    a.frame_max = TP_FRAME_MIN - 1;
    refused(&a, -1, 0, 56, "frames of 4095 bytes");
    a = good;
    a.depth = TP_CREDITS_MIN - 1;
    refused(&a, -1, 0, 56, "depth 3");
}

Test(rdma_hello, a_reply_reads_back)
{
    uint8_t bytes[196] = {0};
    struct tp_rdma_reply r = {.lanes = 2, .frame_max = 8192, .depth = 9, .mtu = 1024}, back;
    struct cfg_error err;
    memset(r.address[3], 7, 16);
    tp_rdma_reply_write(&r, bytes);
    cr_assert_eq(tp_rdma_reply_read(bytes, sizeof bytes, &back, &err), 0, "%s", err.msg);
    cr_expect_eq(back.lanes, 2);
    cr_expect_eq(back.frame_max, 8192);
    cr_expect_eq(back.depth, 9);
    cr_expect_eq(back.mtu, 1024);
    cr_expect_arr_eq(back.address, r.address, sizeof r.address);
    bytes[5] = TP_RDMA_RAILS_MAX + 1;
    cr_expect_eq(tp_rdma_reply_read(bytes, sizeof bytes, &back, &err), -EPROTO);
    cr_expect_eq(tp_rdma_reply_read(bytes, 20, &back, &err), -EPROTO);
}

Test(rdma_hello, a_refusal_is_printable_text)
{
    uint8_t bytes[148];
    char why[TP_RDMA_REFUSAL], longest[300];
    memset(bytes, 0xff, sizeof bytes);
    tp_rdma_refusal_write("no memory", bytes);
    tp_rdma_refusal_read(bytes, sizeof bytes, why);
    cr_expect_str_eq(why, "no memory");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    tp_rdma_refusal_write(longest, bytes);
    tp_rdma_refusal_read(bytes, sizeof bytes, why);
    cr_expect_eq(strlen(why), TP_RDMA_REFUSAL - 5);
    memset(bytes + 4, 0x1b, 100);
    tp_rdma_refusal_read(bytes, sizeof bytes, why);
    cr_expect_eq(why[0], '?');
    memset(bytes, 'y', sizeof bytes);
    tp_rdma_refusal_read(bytes, sizeof bytes, why);
    cr_expect_str_eq(why, "");
}

static struct tp_rdma_window window(int pieces, int rails)
{
    struct tp_rdma_window w = {
        .base = 0x7f0000001000, .size = (uint64_t)pieces * 8192 - 100, .piece = 8192, .pieces = pieces, .rails = rails};
    for (int i = 0; i < pieces * rails; i++)
        w.rkey[i] = 0xabcd0000u + (uint32_t)i;
    return w;
}

Test(rdma_hello, keys_read_back)
{
    for (int rails = 1; rails <= TP_RDMA_RAILS_MAX; rails++)
        for (int pieces = 1; pieces * rails <= TP_RDMA_RKEYS_MAX; pieces++) {
            struct tp_rdma_window w = window(pieces, rails), back;
            struct tp_key key;
            tp_rdma_window_write(&w, &key);
            cr_assert_eq(tp_rdma_window_read(&key, &back), 0, "%d pieces, %d rails", pieces, rails);
            cr_expect_eq(back.base, w.base);
            cr_expect_eq(back.size, w.size);
            cr_expect_eq(back.piece, w.piece);
            cr_expect_arr_eq(back.rkey, w.rkey, (size_t)(pieces * rails) * sizeof w.rkey[0]);
        }
}

Test(rdma_hello, keys_that_cannot_be)
{
    struct tp_rdma_window w = window(3, 2), back;
    struct tp_key good_key, key;
    tp_rdma_window_write(&w, &good_key);
    for (int size = 0; size < TP_KEY_MAX + 1; size++) {
        key = good_key;
        key.size = (uint8_t)size;
        cr_expect_eq(tp_rdma_window_read(&key, &back) == 0, size == good_key.size, "size %d", size);
    }
    static const struct {
        int at;
        uint8_t value;
    } bad[] = {{20, 0}, {20, 4}, {21, 0}, {21, 3}, {21, 200}, {22, 0}, {16, 0}, {15, 0xff}};
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        key = good_key;
        key.byte[bad[i].at] = bad[i].value;
        cr_expect_eq(tp_rdma_window_read(&key, &back), -EINVAL, "byte %d = %d", bad[i].at, bad[i].value);
    }
    key = good_key;
    memset(key.byte, 0xff, 8); /* the range wraps */
    cr_expect_eq(tp_rdma_window_read(&key, &back), -EINVAL);
}
