/* The cases of transport_cases.def. */
#include "tests/support/transport_rig.h"

#include <errno.h>
#include <string.h>

#include "tests/harness.h"

static int count(const struct tr_side *s, enum tr_what what, int status)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += s->log[i].what == what && s->log[i].status == status;
    return n;
}

/* Place of the first such event, -1: there is none. */
static int place(const struct tr_side *s, enum tr_what what, uint64_t number)
{
    for (int i = 0; i < s->n; i++)
        if (s->log[i].what == what && s->log[i].number == number)
            return i;
    return -1;
}

void tr_case_frames_cross_in_order(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_CONTROL, c);
    r->side[1].check_payload = true;
    for (uint64_t i = 0; i < 1000; i++)
        tr_send_number(r, c[0], i, 8 + i % 200);
    tr_until(r, &r->side[1].frames, 1000);
    cr_expect(r->side[1].in_order);
    cr_expect(r->side[1].payload_ok);
    cr_expect_eq(c[0]->frames_out, 1000);
    cr_expect_eq(c[1]->frames_in, 1000);
    cr_expect_eq(c[0]->bytes_out, c[1]->bytes_in);
    tr_free(r);
}

void tr_case_frames_of_every_size(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_CONTROL, c);
    cr_assert_ge(c[0]->frame_max, TP_FRAME_MIN);
    cr_assert_eq(c[0]->frame_max, c[1]->frame_max);
    r->side[1].check_payload = true;
    uint32_t max = c[0]->frame_max, sizes[] = {8, 9, 63, 64, 65, 255, 256, 4095, 4096, max / 2, max - 1, max};
    int n = sizeof sizes / sizeof sizes[0];
    for (int i = 0; i < n; i++)
        tr_send_number(r, c[0], (uint64_t)i, sizes[i]);
    tr_until(r, &r->side[1].frames, n);
    cr_expect(r->side[1].payload_ok);
    for (int i = 0, k = 0; i < r->side[1].n; i++)
        if (r->side[1].log[i].what == TR_FRAME)
            cr_expect_eq(r->side[1].log[i].size, sizes[k++]);
    uint8_t one = 1;
    tr_send(r, c[0], &one, 1);
    tr_until(r, &r->side[1].frames, n + 1);
    cr_expect_eq(r->side[1].log[r->side[1].n - 1].size, 1);
    tr_free(r);
}

void tr_case_both_directions_at_once(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_EXPERT, c);
    for (int i = 0; i < 2; i++)
        r->side[i].check_payload = true;
    for (uint64_t i = 0; i < 500; i++)
        for (int k = 0; k < 2; k++)
            tr_send_number(r, c[k], i, 3000);
    for (int i = 0; i < 2; i++) {
        tr_until(r, &r->side[i].frames, 500);
        cr_expect(r->side[i].in_order);
        cr_expect(r->side[i].payload_ok);
    }
    tr_free(r);
}

void tr_case_a_sender_without_credit_waits_for_room(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_prepare(kind);
    r->config[0].depth = r->config[1].depth = 8;
    tr_open(r);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_CONTROL, c);
    cr_assert_le(c[0]->credits_max, 8);
    cr_assert_ge(c[0]->credits_max, TP_CREDITS_MIN);
    /* Nobody takes anything meanwhile, so a bounded number is accepted. */
    uint32_t size = c[0]->frame_max;
    uint8_t *bytes = calloc(1, size);
    struct iovec v = {bytes, size};
    int rc, sent = 0;
    while (sent < 100000 && (rc = c[0]->ops->send(c[0], &v, 1)) == 0)
        memcpy(bytes, &(uint64_t){(uint64_t)++sent}, 8);
    cr_assert_eq(rc, -EAGAIN);
    cr_assert_ge(sent, 1);
    cr_assert_lt(sent, 100000, "a sender must meet a limit");
    cr_expect_eq(r->side[0].rooms, 0);
    tr_until(r, &r->side[0].rooms, 1);
    tr_until(r, &r->side[1].frames, sent);
    cr_expect_eq(c[0]->ops->send(c[0], &v, 1), 0, "after ROOM there is room");
    tr_until(r, &r->side[1].frames, sent + 1);
    cr_expect(r->side[1].in_order);
    free(bytes);
    tr_free(r);
}

void tr_case_puts_land_before_their_immediate(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    enum { PUTS = 100, SIZE = 5000, LAST = 700000 + SIZE - 1 };
    r->side[1].watch = r->window[1] + LAST;
    for (int i = 0; i < PUTS; i++) {
        memset(r->window[0] + (size_t)i * SIZE, i + 1, SIZE);
        tr_put(r, c[0], (size_t)i * SIZE, 700000, SIZE, 1000 + i, (uint64_t)i);
    }
    tr_until(r, &r->side[1].immediates, PUTS);
    tr_until(r, &r->side[0].puts_done, PUTS);
    uint64_t next = 1000, cookie = 0;
    for (int i = 0; i < r->side[1].n; i++)
        if (r->side[1].log[i].what == TR_IMMEDIATE)
            cr_expect_eq(r->side[1].log[i].number, next++);
    for (int i = 0; i < r->side[0].n; i++)
        if (r->side[0].log[i].what == TR_PUT_DONE) {
            cr_expect_eq(r->side[0].log[i].status, 0);
            cr_expect_eq(r->side[0].log[i].number, cookie++);
        }
    /* A later put may have arrived already, an earlier one may not be what is seen. */
    for (int i = 0; i < PUTS; i++)
        cr_expect_ge(r->side[1].watched[i], i + 1, "immediate %d came before its bytes", i);
    cr_expect_eq(r->window[1][LAST], PUTS);
    cr_expect_eq(r->window[1][700000 - 1], 0, "nothing beside the range is written");
    cr_expect_eq(r->window[1][LAST + 1], 0, "nothing beside the range is written");
    cr_expect_eq(c[0]->puts_out, PUTS);
    cr_expect_eq(c[0]->put_bytes_out, PUTS * SIZE);
    tr_free(r);
}

static void look_at_window(struct tr_side *s, const struct tr_event *e, const uint8_t *bytes)
{
    int *late = s->ctx;
    (void)bytes;
    if (e->what == TR_FRAME)
        *late += s->rig->window[1][e->number * 1000 + 999] != (uint8_t)(e->number + 1);
}

void tr_case_puts_and_frames_keep_their_order(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    int late = 0;
    tr_join(r, TP_CLASS_KV, c);
    r->side[1].on_event = look_at_window;
    r->side[1].ctx = &late;
    for (int i = 0; i < 50; i++) {
        memset(r->window[0] + (size_t)i * 1000, i + 1, 1000);
        tr_put(r, c[0], (size_t)i * 1000, (size_t)i * 1000, 1000, -1, (uint64_t)i);
        tr_send_number(r, c[0], (uint64_t)i, 8);
    }
    tr_until(r, &r->side[1].frames, 50);
    tr_until(r, &r->side[0].puts_done, 50);
    cr_expect_eq(late, 0, "%d frames came before the put that they were sent after", late);
    cr_expect_eq(r->side[1].immediates, 0, "a put without immediate tells nobody");
    tr_free(r);
}

void tr_case_puts_of_every_size(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    size_t sizes[] = {1, 2, 63, 4096, 4097, 65536, 65537, 300000, TR_WINDOW};
    int n = sizeof sizes / sizeof sizes[0];
    tr_join(r, TP_CLASS_KV, c);
    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < sizes[i]; k++)
            r->window[0][TR_WINDOW - sizes[i] + k] = (uint8_t)(k * 7 + (size_t)i);
        memset(r->window[1], 0, TR_WINDOW);
        tr_put(r, c[0], TR_WINDOW - sizes[i], TR_WINDOW - sizes[i], sizes[i], i, (uint64_t)i);
        tr_until(r, &r->side[1].immediates, i + 1);
        tr_until(r, &r->side[0].puts_done, i + 1);
        cr_expect_arr_eq(r->window[0] + TR_WINDOW - sizes[i], r->window[1] + TR_WINDOW - sizes[i], sizes[i], "size %zu",
                         sizes[i]);
    }
    tr_free(r);
}

void tr_case_a_put_outside_the_window_is_refused(const struct tr_kind *kind)
{
    static const struct {
        uint64_t offset;
        size_t size;
    } bad[] = {{TR_WINDOW - 99, 100}, {TR_WINDOW, 1}, {UINT64_MAX - 50, 100}};
    for (int i = 0; i < 3; i++) {
        struct tr_rig *r = tr_new(kind);
        struct tp_channel *c[2];
        tr_join(r, TP_CLASS_KV, c);
        struct tp_put p = {.region = r->region[0],
                           .from = r->window[0],
                           .size = bad[i].size,
                           .key = r->key[1],
                           .offset = bad[i].offset,
                           .with_immediate = true,
                           .cookie = 5};
        memset(r->window[0], 0xee, 100);
        int rc = c[0]->ops->put(c[0], &p);
        if (rc == 0) { /* or it was refused here, where the range is known */
            tr_until(r, &r->side[0].closed, 1);
            cr_expect_eq(r->side[0].puts_done, 1);
            cr_expect_eq(count(&r->side[0], TR_PUT_DONE, 0), 0);
        } else {
            cr_expect_eq(rc, -EINVAL);
        }
        cr_expect_eq(r->side[1].immediates, 0);
        for (int k = 0; k < TR_WINDOW; k++)
            cr_assert_eq(r->window[1][k], 0, "byte %d was written", k);
        tr_free(r);
    }
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    struct tp_put p = {.region = r->region[0], .from = r->window[0], .size = 8, .key = r->key[1], .cookie = 5};
    for (int k = 0; k < p.key.size; k++)
        p.key.byte[k] ^= 0x5a;
    int rc = c[0]->ops->put(c[0], &p);
    if (rc == 0) {
        tr_until(r, &r->side[0].closed, 1);
        cr_expect_eq(count(&r->side[0], TR_PUT_DONE, 0), 0);
    }
    tr_free(r);
}

void tr_case_a_put_outside_the_own_region_is_refused(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    struct tp_put p = {.region = r->region[0], .from = r->window[0], .size = 0, .key = r->key[1]};
    cr_expect_eq(c[0]->ops->put(c[0], &p), -EINVAL);
    p.size = TR_WINDOW + 1;
    cr_expect_eq(c[0]->ops->put(c[0], &p), -EINVAL);
    p.size = 2;
    p.from = r->window[0] + TR_WINDOW - 1;
    cr_expect_eq(c[0]->ops->put(c[0], &p), -EINVAL);
    p.from = r->window[0] - 1;
    cr_expect_eq(c[0]->ops->put(c[0], &p), -EINVAL);
    p.from = r->window[0] + TR_WINDOW - 2;
    p.with_immediate = true;
    cr_expect_eq(c[0]->ops->put(c[0], &p), 0, "the channel is as good as before");
    tr_until(r, &r->side[1].immediates, 1);
    tr_free(r);
}

void tr_case_a_removed_region_takes_no_put(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    struct cfg_error err;
    struct tp_region *extra;
    struct tp_key key;
    uint8_t *memory = calloc(1, 4096);
    tr_join(r, TP_CLASS_KV, c);
    cr_assert_eq(kind->ops->add_region(r->side[1].ep, memory, 4096, &extra, &key, &err), 0, "%s", err.msg);
    cr_expect_eq(r->side[1].ep->regions, 2);
    cr_expect_eq(r->side[1].ep->region_bytes, TR_WINDOW + 4096);
    struct tp_put p = {.region = r->region[0],
                       .from = r->window[0],
                       .size = 16,
                       .key = key,
                       .with_immediate = true,
                       .immediate = 1,
                       .cookie = 1};
    memset(r->window[0], 0x11, 16);
    cr_assert_eq(c[0]->ops->put(c[0], &p), 0);
    tr_until(r, &r->side[1].immediates, 1);
    tr_until(r, &r->side[0].puts_done, 1);
    cr_expect_eq(memory[15], 0x11);
    kind->ops->remove_region(r->side[1].ep, extra);
    cr_expect_eq(r->side[1].ep->regions, 1);
    memset(memory, 0, 4096);
    cr_assert_eq(c[0]->ops->put(c[0], &p), 0);
    tr_until(r, &r->side[0].closed, 1);
    tr_until(r, &r->side[1].closed, 1);
    cr_expect_eq(count(&r->side[0], TR_PUT_DONE, 0), 1, "the second one failed");
    cr_expect_eq(count(&r->side[0], TR_CLOSED, -EACCES), 1, "%s", r->side[0].why);
    cr_expect(strstr(r->side[0].why, "window"), "%s", r->side[0].why);
    cr_expect_eq(r->side[0].puts_done, 2);
    cr_expect_eq(memory[0], 0);
    tr_free(r);
    free(memory);
}

/* Puts with the true key, of a few bytes and of many, in both directions and with only one side trusted. */
void tr_case_a_put_before_trust_is_refused(const struct tr_kind *kind)
{
    enum { FEW = 8 };
    struct tr_rig *r = tr_new(kind);
    r->wary = true;
    memset(r->window[0], 0x11, TR_WINDOW);
    for (int i = 0; i < 4; i++) {
        struct tp_channel *c[2];
        int from = i & 1, to = 1 - from, many = i >> 1;
        int closed[2] = {r->side[0].closed, r->side[1].closed}, done = r->side[from].puts_done;
        tr_join(r, TP_CLASS_KV, c);
        cr_expect(!c[0]->trusted && !c[1]->trusted);
        /* Whoever writes is trusting; nobody trusts it. */
        cr_assert_eq(c[from]->ops->trust(c[from]), 0);
        memset(r->window[from], 0x11, TR_WINDOW);
        memset(r->window[to], 0x22, TR_WINDOW);
        tr_put(r, c[from], 0, 0, many ? TR_WINDOW : FEW, many ? -1 : 7, (uint64_t)i);
        for (int k = 0; k < 2; k++)
            tr_until(r, &r->side[k].closed, closed[k] + 1);
        cr_expect_eq(r->side[from].puts_done, done + 1);
        cr_expect_eq(count(&r->side[from], TR_PUT_DONE, 0), 0, "put %d arrived", i);
        cr_expect_eq(r->side[to].immediates, 0, "put %d was told of", i);
        cr_expect_eq(r->side[from].log[r->side[from].n - 1].status, -EACCES, "%s", r->side[from].why);
        for (int k = 0; k < TR_WINDOW; k++)
            cr_assert_eq(r->window[to][k], 0x22, "byte %d was written by put %d", k, i);
    }
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    for (int i = 0; i < 2; i++) { /* twice does no harm */
        cr_expect_eq(c[1]->ops->trust(c[1]), 0);
        cr_expect(c[1]->trusted);
    }
    memset(r->window[0], 0x33, TR_WINDOW);
    tr_put(r, c[0], 0, 0, TR_WINDOW, 1, 9);
    tr_until(r, &r->side[1].immediates, 1);
    cr_expect_arr_eq(r->window[0], r->window[1], TR_WINDOW);
    c[1]->ops->abort(c[1]);
    cr_expect_eq(c[1]->ops->trust(c[1]), -ENOTCONN);
    tr_free(r);
}

void tr_case_finish_loses_nothing(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    memset(r->window[0], 0x42, TR_WINDOW);
    for (uint64_t i = 0; i < 20; i++)
        tr_send_number(r, c[0], i, 4000);
    tr_put(r, c[0], 0, 0, 200000, 9, 77);
    c[0]->ops->finish(c[0]);
    struct iovec v = {r->window[0], 8};
    cr_expect_eq(c[0]->ops->send(c[0], &v, 1), -ENOTCONN, "nothing is accepted after finish");
    tr_until(r, &r->side[0].closed, 1);
    tr_until(r, &r->side[1].closed, 1);
    cr_expect_eq(r->side[1].frames, 20);
    cr_expect(r->side[1].in_order);
    cr_expect_eq(r->side[1].immediates, 1);
    cr_expect_eq(r->window[1][199999], 0x42);
    cr_expect_eq(count(&r->side[0], TR_PUT_DONE, 0), 1);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(count(&r->side[i], TR_CLOSED, 0), 1, "side %d", i);
        cr_expect_eq(r->side[i].ep->channels, 0);
        cr_expect_eq(r->side[i].log[r->side[i].n - 1].what, TR_CLOSED, "the last event");
    }
    tr_free(r);
}

void tr_case_abort_ends_both_sides_once(const struct tr_kind *kind)
{
    for (int who = 0; who < 2; who++) {
        struct tr_rig *r = tr_new(kind);
        struct tp_channel *c[2];
        tr_join(r, TP_CLASS_KV, c);
        for (uint64_t i = 0; i < 5; i++)
            tr_send_number(r, c[0], i, 100);
        tr_put(r, c[0], 0, 0, 100000, 1, 3);
        c[who]->ops->abort(c[who]);
        struct iovec v = {r->window[0], 8};
        cr_expect_eq(c[who]->ops->send(c[who], &v, 1), -ENOTCONN);
        tr_until(r, &r->side[0].closed, 1);
        tr_until(r, &r->side[1].closed, 1);
        cr_expect_eq(count(&r->side[who], TR_CLOSED, -ECANCELED), 1);
        cr_expect_eq(count(&r->side[1 - who], TR_CLOSED, -ECONNRESET), 1);
        cr_expect_eq(r->side[0].puts_done, 1, "a put has its end");
        /* The fence: the side that aborted has its window to itself from here on. */
        memset(r->window[who], 0x77, TR_WINDOW);
        for (int i = 0; i < 20; i++)
            tr_turn(r);
        for (int i = 0; i < TR_WINDOW; i++)
            cr_assert_eq(r->window[who][i], 0x77);
        for (int i = 0; i < 2; i++) {
            cr_expect_eq(r->side[i].closed, 1);
            cr_expect_eq(r->side[i].ep->channels, 0);
            cr_expect_eq(r->side[i].log[r->side[i].n - 1].what, TR_CLOSED, "the last event");
        }
        tr_free(r);
    }
}

void tr_case_every_put_has_one_end_when_the_other_side_dies(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    int accepted = 0;
    struct tp_put p = {.region = r->region[0], .from = r->window[0], .size = 50000, .key = r->key[1]};
    for (; accepted < 16; accepted++) {
        p.cookie = 100 + (uint64_t)accepted;
        if (c[0]->ops->put(c[0], &p))
            break;
    }
    cr_assert_ge(accepted, 1);
    tr_kill(r, 1);
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_eq(r->side[0].puts_done, accepted);
    for (int i = 0; i < accepted; i++)
        cr_expect_ge(place(&r->side[0], TR_PUT_DONE, 100 + (uint64_t)i), 0);
    cr_expect_eq(r->side[0].log[r->side[0].n - 1].what, TR_CLOSED);
    cr_expect_lt(r->side[0].log[r->side[0].n - 1].status, 0);
    cr_expect_eq(r->side[0].ep->channels, 0);
    tr_free(r);
}

void tr_case_nobody_listens(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c;
    struct cfg_error err;
    char bound[TP_ADDRESS_TEXT];
    memcpy(bound, r->bound, sizeof bound);
    tr_kill(r, 1);
    cr_assert_eq(kind->ops->connect(r->side[0].ep, bound, TP_CLASS_CONTROL, NULL, &c, &err), 0, "%s", err.msg);
    struct iovec v = {r->window[0], 8};
    cr_expect_eq(c->ops->send(c, &v, 1), -ENOTCONN, "not before OPENED");
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_eq(r->side[0].opened, 0);
    cr_expect_eq(r->side[0].log[0].status, -ECONNREFUSED);
    cr_expect_eq(r->side[0].ep->channels, 0);
    tr_free(r);
}

void tr_case_many_connections_leave_nothing(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    for (int i = 0; i < (kind->connections ? kind->connections : 200); i++) {
        struct tp_channel *c[2];
        tr_join(r, (enum tp_class)(i % TP_CLASSES), c);
        tr_send_number(r, c[0], 0, 100);
        if (i % 2)
            c[i / 2 % 2]->ops->abort(c[i / 2 % 2]);
        else
            c[i / 2 % 2]->ops->finish(c[i / 2 % 2]);
        tr_until(r, &r->side[0].closed, i + 1);
        tr_until(r, &r->side[1].closed, i + 1);
        cr_assert_eq(r->side[0].ep->channels, 0);
        cr_assert_eq(r->side[1].ep->channels, 0);
    }
    tr_free(r);
}

void tr_case_classes_are_apart(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_prepare(kind);
    r->config[0].depth = r->config[1].depth = 8;
    tr_open(r);
    struct tp_channel *c[TP_CLASSES][2];
    for (int i = 0; i < TP_CLASSES; i++) {
        tr_join(r, (enum tp_class)i, c[i]);
        cr_expect_eq(c[i][1]->class, (enum tp_class)i, "the accepting side knows the class");
        cr_expect_eq(c[i][0]->class, (enum tp_class)i);
        cr_expect(c[i][0]->dialled);
        cr_expect_not(c[i][1]->dialled);
    }
    /* One is full; the others are not. */
    uint8_t *bytes = calloc(1, c[1][0]->frame_max);
    struct iovec v = {bytes, c[1][0]->frame_max};
    int sent = 0;
    while (sent < 100000 && c[1][0]->ops->send(c[1][0], &v, 1) == 0)
        sent++;
    v.iov_len = 8;
    cr_expect_eq(c[0][0]->ops->send(c[0][0], &v, 1), 0);
    cr_expect_eq(c[2][0]->ops->send(c[2][0], &v, 1), 0);
    tr_until(r, &r->side[1].frames, sent + 2);
    /* One ends; the others do not. */
    c[1][0]->ops->abort(c[1][0]);
    tr_until(r, &r->side[1].closed, 1);
    tr_send(r, c[0][0], bytes, 8);
    tr_send(r, c[2][1], bytes, 8);
    tr_until(r, &r->side[1].frames, sent + 3);
    tr_until(r, &r->side[0].frames, 1);
    cr_expect_eq(r->side[0].closed, 1);
    free(bytes);
    tr_free(r);
}

void tr_case_what_is_no_use_is_refused(const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    struct tp_channel *c[2];
    struct cfg_error err;
    char bound[TP_ADDRESS_TEXT];
    tr_join(r, TP_CLASS_CONTROL, c);
    uint8_t *bytes = calloc(1, c[0]->frame_max + 1);
    struct iovec v = {bytes, c[0]->frame_max + 1};
    cr_expect_eq(c[0]->ops->send(c[0], &v, 1), -EMSGSIZE);
    v.iov_len = 0;
    cr_expect_eq(c[0]->ops->send(c[0], &v, 1), -EMSGSIZE);
    cr_expect_neq(kind->ops->listen(r->side[1].ep, r->address, bound, &err), 0, "an endpoint listens once");
    cr_expect_neq(err.msg[0], 0);
    tr_send_number(r, c[0], 0, 8);
    tr_until(r, &r->side[1].frames, 1);
    free(bytes);
    tr_free(r);
}
