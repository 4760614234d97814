/* The provider tcp passes what every provider has to pass, and takes nonsense from outside calmly. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/transport_rig.h"
#include "transport/names.h"
#include "transport/tcp.h"

static const struct tr_kind kind = {.ops = &tp_tcp, .uses_base = true};

#define TR_CASE(name)                                                                                                  \
    Test(tcp, name)                                                                                                    \
    {                                                                                                                  \
        tr_case_##name(&kind);                                                                                         \
    }
#include "tests/support/transport_cases.def"
#undef TR_CASE

/* A plain socket to where the rig listens. */
static int stranger(const struct tr_rig *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(r->bound, ':') + 1))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_ge(fd, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* Turns until the other end of fd is closed; what came before is counted. */
static size_t until_closed(struct tr_rig *r, int fd)
{
    char bytes[4096];
    size_t got = 0;
    for (int i = 0; i < 20000; i++) {
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            return got;
        got += n > 0 ? (size_t)n : 0;
        tr_turn(r);
    }
    cr_assert_fail("the connection is still open");
    return got;
}

Test(tcp, strangers_are_turned_away)
{
    static const char *const first[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "WEFTtp\x07\x00@@@@@@@@",
                                        "WEFTtp\x01\x09@@@@@@@@"};
    struct tr_rig *r = tr_new(&kind);
    for (int i = 0; i < 3; i++) {
        int fd = stranger(r);
        cr_assert_eq(send(fd, first[i], 16, MSG_NOSIGNAL), 16);
        until_closed(r, fd);
        close(fd);
    }
    cr_expect_eq(r->side[1].n, 0, "nobody above hears of them");
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_CONTROL, c);
    tr_free(r);
}

Test(tcp, who_says_nothing_is_turned_away_in_time)
{
    struct tr_rig *r = tr_prepare(&kind);
    r->config[1].connect_ns = 20 * 1000000;
    tr_open(r);
    int fd = stranger(r);
    until_closed(r, fd);
    close(fd);
    cr_expect_eq(r->side[1].ep->channels, 0);
    tr_free(r);
}

Test(tcp, nonsense_after_the_preamble_ends_the_channel)
{
    static const uint8_t items[][32] = {
        {9, 0, 0, 0, 1},                    /* an unknown kind */
        {1, 0, 0, 0, 0, 0, 0, 0},           /* an empty frame */
        {1, 0, 0, 0, 255, 255, 255, 255},   /* an endless frame */
        {1, 1, 0, 0, 4},                    /* flags that a frame has not */
        {3, 0, 0, 0, 5},                    /* puts done that nobody asked for */
        {5, 0, 0, 0, 1},                    /* an end with bytes */
        {2, 0, 0, 0, 16, 0, 0, 0, 1, 2, 3}, /* a put into a region that is not there */
    };
    struct tr_rig *r = tr_new(&kind);
    for (int i = 0; i < (int)(sizeof items / sizeof items[0]); i++) {
        int fd = stranger(r);
        cr_assert_eq(send(fd, "WEFTtp\x01\x00\x00\x00\x01\x00\x08\x00\x00\x00", 16, MSG_NOSIGNAL), 16);
        cr_assert_eq(send(fd, items[i], sizeof items[i], MSG_NOSIGNAL), sizeof items[i]);
        /* After a refusal the other side waits for this one to close. */
        if (i < 6) {
            until_closed(r, fd);
        } else {
            tr_until(r, &r->side[1].accepted, i + 1);
            shutdown(fd, SHUT_WR);
        }
        tr_until(r, &r->side[1].closed, i + 1);
        cr_expect_eq(r->side[1].log[r->side[1].n - 1].status, i < 6 ? -EPROTO : -EACCES, "item %d", i);
        close(fd);
    }
    cr_expect_eq(r->side[1].frames, 0);
    cr_expect_eq(r->side[1].ep->channels, 0);
    tr_free(r);
}

/* One side has the resolver of the C library, the other that of the event loop. */
Test(tcp, both_sides_of_a_name_mean_the_same_address)
{
    struct addrinfo four = {.ai_family = AF_INET}, more = {.ai_family = AF_INET6},
                    six = {.ai_family = AF_INET6, .ai_next = &four};
    cr_expect_eq(tp_name_address(&six), &four);
    six.ai_next = &more;
    cr_expect_eq(tp_name_address(&six), &six);
    four.ai_next = &six;
    cr_expect_eq(tp_name_address(&four), &four);
}

/* Who has not been told a key cannot guess it. */
Test(tcp, keys_of_regions_are_random_as_a_whole)
{
    struct tr_rig *r = tr_new(&kind);
    uint8_t memory[64];
    uint32_t low[4];
    for (int i = 0; i < 4; i++) {
        struct tp_region *region;
        struct tp_key key;
        struct cfg_error err;
        cr_assert_eq(tp_tcp.add_region(r->side[0].ep, memory, sizeof memory, &region, &key, &err), 0, "%s", err.msg);
        memcpy(&low[i], key.byte, sizeof low[i]);
        tp_tcp.remove_region(r->side[0].ep, region);
    }
    cr_expect(low[1] - low[0] > 1000 || low[2] - low[1] > 1000 || low[3] - low[2] > 1000, "they are counted");
    tr_free(r);
}

Test(tcp, names_are_looked_up)
{
    struct tr_rig *r = tr_new(&kind);
    struct tp_channel *c;
    struct cfg_error err;
    char address[64];
    snprintf(address, sizeof address, "localhost%s", strrchr(r->bound, ':'));
    cr_assert_eq(tp_tcp.connect(r->side[0].ep, address, TP_CLASS_KV, NULL, &c, &err), 0, "%s", err.msg);
    tr_until(r, &r->side[0].opened, 1);
    cr_expect_eq(tp_tcp.connect(r->side[0].ep, "no-port", TP_CLASS_KV, NULL, &c, &err), -EINVAL);
    cr_assert_eq(tp_tcp.connect(r->side[0].ep, "name.invalid:1", TP_CLASS_KV, NULL, &c, &err), 0);
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_lt(r->side[0].log[r->side[0].n - 1].status, 0);
    tr_free(r);
}

Test(tcp, what_keeps_an_endpoint_from_listening_is_said_with_its_cure)
{
    struct tr_rig *r = tr_new(&kind);
    char bound[TP_ADDRESS_TEXT];
    struct cfg_error err;
    cr_expect_eq(tp_tcp.listen(r->side[0].ep, "192.0.2.77:0", bound, &err), -EADDRNOTAVAIL);
    cr_expect(strstr(err.msg, "192.0.2.77:0: Cannot assign requested address; give an address of this machine"), "%s",
              err.msg);
    cr_expect_eq(tp_tcp.listen(r->side[0].ep, r->bound, bound, &err), -EADDRINUSE);
    cr_expect(strstr(err.msg, "Address already in use; another process has this port"), "%s", err.msg);
    tr_free(r);
}
