/* Buffers: one owner, counts, double frees. */
#include "actors/runtime/buffer.h"

#include <errno.h>

#include "actors/runtime/message.h"
#include "tests/harness.h"

static int released;

static void count_release(void *ctx, void *data, size_t capacity)
{
    released += ctx == &released && data != NULL && capacity == 10;
}

Test(buffer, counts_what_lives)
{
    long before = act_buf_live();
    struct act_buf *a = act_buf_new(100), *b = act_buf_copy("hello", 5), *c = act_buf_new(0);
    cr_assert(a && b && c);
    cr_assert_eq(act_buf_live(), before + 3);
    cr_assert_eq((uintptr_t)a->data % ACT_BUF_ALIGN, 0);
    cr_assert_eq(a->size, 100);
    cr_assert_arr_eq(b->data, "hello", 5);
    cr_assert_eq(act_buf_free(a), 0);
    cr_assert_eq(act_buf_free(b), 0);
    cr_assert_eq(act_buf_free(c), 0);
    cr_assert_eq(act_buf_free(NULL), 0);
    cr_assert_eq(act_buf_live(), before);
}

Test(buffer, catches_a_double_free)
{
    long before = act_buf_live(), faults = act_buf_faults();
    int old = act_buf_quarantine(8);
    struct act_buf *a = act_buf_new(10);
    cr_assert_eq(act_buf_free(a), 0);
    cr_assert_eq(act_buf_free(a), -EALREADY);
    cr_assert_eq(act_buf_faults(), faults + 1);
    cr_assert_eq(act_buf_live(), before);
    for (int i = 0; i < 20; i++) /* more than it keeps */
        act_buf_free(act_buf_new(1));
    act_buf_quarantine(old);
}

Test(buffer, shared_ones_live_until_the_last_owner)
{
    char bytes[10] = "123456789";
    released = 0;
    struct act_buf *a = act_buf_wrap(bytes, sizeof bytes, count_release, &released);
    cr_assert_not(act_buf_is_shared(a));
    struct act_buf *b = act_buf_share(a), *c = act_buf_share(a);
    cr_assert(act_buf_is_shared(a));
    act_buf_free(a);
    act_buf_free(b);
    cr_assert_eq(released, 0);
    act_buf_free(c);
    cr_assert_eq(released, 1);
}

Test(buffer, messages_own_theirs)
{
    long before = act_buf_live();
    struct act_msg m;
    cr_assert_eq(act_msg_new(ACT_PREFILL, ACT_NOBODY, 40, &m), 0);
    cr_assert_null(act_msg_check(&m));
    size_t tail;
    uint8_t *t = act_msg_tail(&m, &tail);
    cr_assert_eq(tail, 40);
    cr_assert_eq((size_t)(t - m.buf->data) % 16, 0);
    cr_assert_ge((size_t)(t - m.buf->data), sizeof(struct act_b_prefill));
    cr_assert_eq(act_b_prefill(&m)->seed, 0);
    act_msg_drop(&m);
    cr_assert_null(m.buf);
    cr_assert_not_null(act_msg_check(&m), "PREFILL without its buffer");
    cr_assert_null(act_b_prefill(&m));
    cr_assert_eq(act_buf_live(), before);
}
