/* The provider rdma where it is more than any provider, and where it can fail in ways of its own: several devices,
 * smaller MTUs and depths, registration in pieces, locked memory, peers that are killed, wires that are cut. Runs in
 * the guest of tests/rdma/guest.sh. */
#include "tests/harness.h"

#include <errno.h>
#include <event2/event.h>
#include <linux/capability.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/rdma_rig.h"
#include "transport/rdma_hello.h"

enum { BIG = 512 << 10 };

static struct tr_kind kind_of(void (*set_up)(struct tr_rig *r))
{
    return (struct tr_kind){.ops = rr_ops(), .set_up = set_up, .uses_base = true};
}

static void fill(uint8_t *bytes, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 31 + (i >> 8) * 7 + seed);
}

/* Puts size bytes with an immediate, and looks at them when it has come. */
static void put_and_compare(struct tr_rig *r, struct tp_channel *c, size_t from, size_t to, size_t size, unsigned seed)
{
    int immediates = r->side[1].immediates + 1, done = r->side[0].puts_done + 1;
    fill(r->window[0] + from, size, seed);
    tr_put(r, c, from, to, size, seed, seed);
    tr_until(r, &r->side[1].immediates, immediates);
    tr_until(r, &r->side[0].puts_done, done);
    cr_expect_arr_eq(r->window[0] + from, r->window[1] + to, size, "%zu bytes from %zu to %zu", size, from, to);
}

/* ---- several devices ------------------------------------------------------------------------------------------- */

Test(rdma_faults, large_puts_use_every_device_and_frames_only_the_first)
{
    const struct tr_kind kind = kind_of(rr_set_up_rails);
    struct tr_rig *r = tr_new(&kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    /* What a second device sends meanwhile is the stripes', all but the packets that made its connection. */
    long before = rr_counter("rxe3", "sent_pkts");
    for (int i = 0; i < 100; i++)
        tr_send_number(r, c[0], (uint64_t)i, 4000);
    tr_until(r, &r->side[1].frames, 100);
    rr_shell("sleep 0.05"); /* the kernel keeps counters for 12 ms */
    long frames = rr_counter("rxe3", "sent_pkts");
    cr_expect_lt(frames - before, 5, "frames keep to the first device");
    for (unsigned i = 0; i < 8; i++)
        put_and_compare(r, c[0], 4096 * i, 100 + i, BIG, i + 1);
    rr_shell("sleep 0.05");
    long packets = rr_counter("rxe3", "sent_pkts") - frames;
    cr_expect_ge(packets, 8 * (BIG / 2) / 4096, "half of the bytes go over the second device");
    tr_free(r);
}

/* The bytes that the second wire delays are there when the first tells of them, and when their writer is told. */
static void look(struct tr_side *s, const struct tr_event *e, const uint8_t *bytes)
{
    int *wrong = s->ctx;
    (void)bytes;
    if (e->what == TR_IMMEDIATE || e->what == TR_FRAME || e->what == TR_PUT_DONE) {
        uint8_t want = (uint8_t)e->number;
        for (size_t i = 0; i < BIG; i++)
            *wrong += s->rig->window[1][i] != want;
    }
}

Test(rdma_faults, what_tells_of_a_stripe_waits_for_the_slowest_device)
{
    const struct tr_kind kind = kind_of(rr_set_up_rails);
    struct tr_rig *r = tr_new(&kind);
    struct tp_channel *c[2];
    int wrong = 0;
    tr_join(r, TP_CLASS_KV, c);
    for (int i = 0; i < 2; i++) {
        r->side[i].on_event = look;
        r->side[i].ctx = &wrong;
    }
    rr_shell("tc qdisc add dev rdma3 root netem delay 30ms");
    for (int i = 1; i <= 6; i++) {
        memset(r->window[0], i, BIG);
        if (i % 2) {
            tr_put(r, c[0], 0, 0, BIG, i, (uint64_t)i);
            tr_until(r, &r->side[1].immediates, (i + 1) / 2);
        } else {
            tr_put(r, c[0], 0, 0, BIG, -1, (uint64_t)i);
            tr_send_number(r, c[0], (uint64_t)i, 8);
            tr_until(r, &r->side[1].frames, i / 2);
        }
        tr_until(r, &r->side[0].puts_done, i);
    }
    rr_shell("tc qdisc del dev rdma3 root");
    cr_expect_eq(wrong, 0, "%d bytes came later than what told of them", wrong);
    tr_free(r);
}

Test(rdma_faults, a_rail_that_does_not_reach_is_left_out)
{
    const struct tr_kind kind = kind_of(rr_set_up_rails);
    struct tr_rig *r = tr_prepare(&kind);
    /* rxe0 is a network of its own. */
    rr_config[1].devices = "rxe2,rxe0";
    r->config[0].connect_ns = INT64_C(8000000000);
    tr_open(r);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    put_and_compare(r, c[0], 0, 0, BIG, 1);
    tr_free(r);
}

/* A striped put with an immediate costs two credits, a frame one: the last one that is left is not enough for both. */
Test(rdma_faults, stripes_with_an_odd_number_of_credits)
{
    const struct tr_kind kind = kind_of(rr_set_up_rails);
    struct tr_rig *r = tr_prepare(&kind);
    r->config[0].depth = r->config[1].depth = 5;
    tr_open(r);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    memset(r->window[0], 0x5a, TR_WINDOW);
    enum { PUTS = 24 };
    for (int i = 0; i < PUTS; i++) {
        tr_put(r, c[0], 0, 0, 128 << 10, i, (uint64_t)i);
        if (i % 3 == 0)
            tr_send_number(r, c[0], (uint64_t)i / 3, 8);
    }
    tr_until(r, &r->side[0].puts_done, PUTS);
    tr_until(r, &r->side[1].immediates, PUTS);
    tr_until(r, &r->side[1].frames, PUTS / 3);
    cr_expect(r->side[1].in_order);
    cr_expect_arr_eq(r->window[0], r->window[1], 128 << 10);
    tr_free(r);
}

/* ---- classes --------------------------------------------------------------------------------------------------- */

/* Whether a packet of RoCE with this traffic class is among those that a socket has seen. */
static bool seen_class(int fd, int class)
{
    uint8_t p[256];
    bool seen = false;
    for (ssize_t n; (n = recv(fd, p, sizeof p, MSG_DONTWAIT)) > 0;) {
        size_t head = (size_t)(p[0] & 15) * 4;
        bool roce = n >= 28 && p[0] >> 4 == 4 && p[9] == IPPROTO_UDP && (p[head + 2] << 8 | p[head + 3]) == 4791;
        seen |= roce && (p[1] & 0xfc) == class;
    }
    return seen;
}

/* Each class has a connection of its own, whose packets, data and acknowledgements, carry its byte. */
Test(rdma_faults, packets_carry_the_traffic_class)
{
    const struct tr_kind kind = kind_of(rr_set_up_wire);
    struct tr_rig *r = tr_prepare(&kind);
    struct tp_channel *c[2];
    const int class[TP_CLASSES] = {[TP_CLASS_CONTROL] = 0, [TP_CLASS_KV] = 104, [TP_CLASS_EXPERT] = 40};
    int fd[2];
    for (int i = 0; i < 2; i++) {
        memcpy(rr_config[i].traffic_class, class, sizeof class);
        struct sockaddr_ll at = {.sll_family = AF_PACKET,
                                 .sll_protocol = htons(ETH_P_IP),
                                 .sll_ifindex = (int)if_nametoindex(i ? "rdma2" : "rdma1")};
        fd[i] = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP));
        cr_assert_eq(bind(fd[i], (struct sockaddr *)&at, sizeof at), 0);
    }
    tr_open(r);
    for (int k = 0; k < TP_CLASSES; k++) {
        tr_join(r, (enum tp_class)k, c);
        for (int i = 0; i < 2; i++)
            seen_class(fd[i], 0); /* what made the connection, and the class before */
        tr_send_number(r, c[0], 1, 64);
        tr_send_number(r, c[1], 1, 64);
        tr_until(r, &r->side[1].frames, k + 1);
        tr_until(r, &r->side[0].frames, k + 1);
        for (int i = 0; i < 2; i++)
            cr_expect(seen_class(fd[i], class[k]), "class %d, towards side %d", k, i);
    }
    close(fd[0]);
    close(fd[1]);
    tr_free(r);
}

/* ---- what is agreed -------------------------------------------------------------------------------------------- */

Test(rdma_faults, the_smaller_of_both_sides)
{
    const struct tr_kind kind = kind_of(rr_set_up_wire);
    struct tr_rig *r = tr_prepare(&kind);
    r->config[0].depth = 200;
    r->config[0].frame_max = 5000;
    r->config[1].depth = 5;
    r->config[1].frame_max = 9000;
    tr_open(r);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_EXPERT, c);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(c[i]->credits_max, 5);
        cr_expect_eq(c[i]->frame_max, 5000);
    }
    r->side[1].check_payload = r->side[0].check_payload = true;
    for (int i = 0; i < 300; i++) {
        tr_send_number(r, c[0], (uint64_t)i, 5000);
        tr_send_number(r, c[1], (uint64_t)i, 64);
        tr_put(r, c[0], 0, 0, 3000, i, (uint64_t)i);
    }
    tr_until(r, &r->side[1].frames, 300);
    tr_until(r, &r->side[0].frames, 300);
    tr_until(r, &r->side[1].immediates, 300);
    cr_expect(r->side[0].in_order && r->side[1].in_order && r->side[0].payload_ok && r->side[1].payload_ok);
    tr_free(r);
}

Test(rdma_faults, ports_with_different_mtus)
{
    const struct tr_kind kind = kind_of(rr_set_up_wire);
    rr_shell("ip link set rdma2 mtu 1500");
    for (int way = 0; way < 2; way++) {
        struct tr_rig *r = tr_prepare(&kind);
        if (way) {
            rr_config[0].devices = "rxe2";
            rr_config[1].devices = "rxe1";
            strcpy(r->address, "10.77.1.1:0");
        }
        tr_open(r);
        struct tp_channel *c[2];
        tr_join(r, TP_CLASS_KV, c);
        r->side[1].check_payload = true;
        for (unsigned i = 0; i < 4; i++) {
            put_and_compare(r, c[0], 0, 3, BIG, i + 1);
            tr_send_number(r, c[0], i, c[0]->frame_max);
        }
        tr_until(r, &r->side[1].frames, 4);
        cr_expect(r->side[1].payload_ok);
        tr_free(r);
    }
    rr_shell("ip link set rdma2 mtu 4200");
}

/* How often a receiver of this device, or one that it sent to, had no buffer. */
static long not_ready(const char *device)
{
    rr_shell("sleep 0.05"); /* the kernel keeps counters for 12 ms */
    return rr_counter(device, "send_rnr_err") + rr_counter(device, "rcvd_rnr_err");
}

/* Everybody sends all that is accepted, and nobody takes anything meanwhile. */
static void send_at_once(int channels, uint32_t depth, int rounds)
{
    static struct tp_channel *c[24][2];
    const struct tr_kind kind = kind_of(rr_set_up_loop);
    struct tr_rig *r = tr_prepare(&kind);
    r->config[0].depth = r->config[1].depth = depth;
    tr_open(r);
    long before = not_ready("rxe0");
    for (int i = 0; i < channels; i++)
        tr_join(r, (enum tp_class)(i % TP_CLASSES), c[i]);
    uint8_t bytes[64] = {0};
    struct iovec v = {bytes, sizeof bytes};
    int sent = 0;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < channels; i++)
            while (c[i][0]->ops->send(c[i][0], &v, 1) == 0)
                sent++;
        cr_assert_ge(sent, channels * (int)depth / 2 * (round + 1));
        tr_until(r, &r->side[1].frames, sent);
        for (int k = 0; k < 3; k++)
            tr_turn(r);
    }
    cr_expect_eq(not_ready("rxe0"), before, "%d channels of depth %u: a receiver was not ready", channels, depth);
    tr_free(r);
}

Test(rdma_faults, receive_queues_never_run_empty)
{
    send_at_once(24, 16, 20);
    send_at_once(3, 200, 2); /* each needs most of what an endpoint begins with */
}

/* Turns of side 1 alone, until it has so many frames: what comes to side 0 stays where it is. */
static void until_frames_of_side_1(struct tr_rig *r, int n)
{
    time_t limit = time(NULL) + 60;
    while (r->side[1].frames < n && time(NULL) < limit)
        r->kind->ops->poll(r->side[1].ep);
    cr_assert_eq(r->side[1].frames, n);
}

/* Credits come back in so few messages that they have buffers beside all the frames that the other side may send. */
Test(rdma_faults, credits_need_no_buffers_of_frames)
{
    enum { DEPTH = TP_RDMA_POOL - TP_RDMA_RESERVE }; /* an endpoint begins with what one channel needs */
    const struct tr_kind kind = kind_of(rr_set_up_wire);
    struct tr_rig *r = tr_prepare(&kind);
    r->config[0].depth = r->config[1].depth = DEPTH;
    tr_open(r);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    long before = not_ready("rxe1");
    uint8_t bytes[8] = {0};
    struct iovec v = {bytes, sizeof bytes};
    for (int i = 0; i < DEPTH; i++) {
        cr_assert_eq(c[0]->ops->send(c[0], &v, 1), 0);
        until_frames_of_side_1(r, i + 1);
    }
    for (int i = 0; i < DEPTH; i++)
        cr_assert_eq(c[1]->ops->send(c[1], &v, 1), 0);
    long after = not_ready("rxe1");
    cr_expect_eq(after, before, "side 0 was not ready %ld times", after - before);
    tr_until(r, &r->side[0].frames, DEPTH);
    tr_free(r);
}

/* The longest time without a turn: all that may be under way both ways has completed when the first is taken. */
Test(rdma_faults, completions_have_a_place_however_late_they_are_taken)
{
    enum { DEPTH = 2000 }; /* of receives; twice as many are more than a completion queue begins with */
    const struct tr_kind kind = kind_of(rr_set_up_wire);
    struct tr_rig *r = tr_prepare(&kind);
    for (int i = 0; i < 2; i++) {
        r->config[i].depth = DEPTH;
        r->config[i].frame_max = TP_FRAME_MIN;
    }
    tr_open(r);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    uint8_t bytes[8] = {0};
    struct iovec v = {bytes, sizeof bytes};
    for (int i = 0; i < DEPTH; i++)
        cr_assert_eq(c[1]->ops->send(c[1], &v, 1), 0);
    memset(r->window[0], 1, DEPTH);
    struct tp_put p = {.region = r->region[0], .size = 1, .key = r->key[1]};
    for (int i = 0; i < DEPTH; i++) {
        p.from = r->window[0] + i;
        p.offset = (uint64_t)i;
        cr_assert_eq(c[0]->ops->put(c[0], &p), 0);
    }
    const volatile uint8_t *last = r->window[1] + DEPTH - 1;
    for (time_t limit = time(NULL) + 60; !*last && time(NULL) < limit;)
        usleep(10000);
    cr_assert_eq(*last, 1);
    tr_until(r, &r->side[0].puts_done, DEPTH);
    tr_until(r, &r->side[0].frames, DEPTH);
    for (int i = 0; i < r->side[0].n; i++)
        cr_assert_eq(r->side[0].log[i].status, 0, "%s", r->side[0].why);
    cr_expect_eq(r->side[0].closed + r->side[1].closed, 0, "%s; %s", r->side[0].why, r->side[1].why);
    tr_free(r);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

Test(rdma_faults, regions_are_registered_in_pieces)
{
    const struct tr_kind kind = kind_of(rr_set_up_loop);
    struct tr_rig *r = tr_prepare(&kind);
    rr_config[0].register_max = 300 << 10; /* 4 pieces */
    rr_config[1].register_max = 140 << 10; /* 8, at other places */
    long before = rr_resources("rxe0", "mr");
    tr_open(r);
    cr_expect_eq(rr_resources("rxe0", "mr") - before, 4 + 8);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    put_and_compare(r, c[0], 0, 0, TR_WINDOW, 1);
    put_and_compare(r, c[0], 1, 7, TR_WINDOW - 7, 2);
    put_and_compare(r, c[0], (300 << 10) - 5, (140 << 10) - 3, 11, 3);
    put_and_compare(r, c[0], (300 << 10) - 1, (140 << 10) - 1, 1, 4);
    struct tp_region *extra;
    struct tp_key key;
    struct cfg_error err;
    static uint8_t memory[2 << 20];
    long some = rr_resources("rxe0", "mr");
    cr_assert_eq(kind.ops->add_region(r->side[0].ep, memory, sizeof memory, &extra, &key, &err), 0, "%s", err.msg);
    cr_expect_eq(rr_resources("rxe0", "mr") - some, 7);
    kind.ops->remove_region(r->side[0].ep, extra);
    cr_expect_eq(rr_resources("rxe0", "mr"), some, "a region that is removed is registered no more");
    /* As many pieces as a window may have, and one more. */
    const size_t most = (size_t)TP_RDMA_RKEYS_MAX * rr_config[1].register_max;
    cr_assert_lt(most, sizeof memory);
    cr_expect_eq(kind.ops->add_region(r->side[1].ep, memory, most, &extra, &key, &err), 0, "%s", err.msg);
    cr_expect_eq(kind.ops->add_region(r->side[1].ep, memory, most + 1, &extra, &key, &err), -ENOMEM);
    char said[64];
    snprintf(said, sizeof said, "%d registrations", TP_RDMA_RKEYS_MAX + 1);
    cr_expect(strstr(err.msg, said), "%s", err.msg);
    tr_free(r);
}

/* A piece is registered on every device, and all of them count. */
Test(rdma_faults, pieces_count_on_every_device)
{
    const struct tr_kind kind = kind_of(rr_set_up_rails);
    struct tr_rig *r = tr_prepare(&kind);
    rr_config[0].register_max = 256 << 10;
    tr_open(r);
    struct tp_region *extra;
    struct tp_key key;
    struct cfg_error err;
    static uint8_t memory[4 << 20];
    const size_t most = (size_t)(TP_RDMA_RKEYS_MAX / 2) * (256 << 10);
    cr_assert_lt(most, sizeof memory);
    cr_expect_eq(kind.ops->add_region(r->side[0].ep, memory, most, &extra, &key, &err), 0, "%s", err.msg);
    cr_expect_eq(kind.ops->add_region(r->side[0].ep, memory, most + 1, &extra, &key, &err), -ENOMEM);
    cr_expect(strstr(err.msg, "on each of 2 devices"), "%s", err.msg);
    tr_free(r);
}

/* What the kernel counts as registered by this process, in bytes. */
static uint64_t pinned(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f) && sscanf(line, "VmPin: %llu kB", &kib) != 1)
        ;
    fclose(f);
    return (uint64_t)kib << 10;
}

/* Each side as a node with three peers, all of which are the other side. */
Test(rdma_faults, what_is_registered_is_what_weft_check_says)
{
    enum { PEERS = 3 };
    for (int rails = 1; rails <= 2; rails++) {
        const struct tr_kind kind = kind_of(rails == 1 ? rr_set_up_wire : rr_set_up_rails);
        struct tr_rig *r = tr_new(&kind);
        /* The rig's windows begin in the middle of a page. */
        uint64_t windows = 2 * tp_rdma_register_bytes(TR_WINDOW + 4096, 0, rails),
                 all = windows + 2 * tp_rdma_register_bytes(0, PEERS, rails);
        cr_expect_eq(pinned(), windows, "%d devices: %llu KiB", rails, (unsigned long long)(pinned() >> 10));
        int sent = 0;
        for (int i = 0; i < PEERS * TP_CLASSES; i++) {
            struct tp_channel *c[2];
            tr_join(r, (enum tp_class)(i % TP_CLASSES), c);
            for (int side = 0; side < 2; side++)
                tr_send_number(r, c[side], 0, 4096); /* too large to go without a send buffer */
            sent++;
            for (int side = 0; side < 2; side++)
                tr_until(r, &r->side[side].frames, sent);
        }
        cr_expect_eq(pinned(), all, "%d devices: %llu KiB are registered, %llu said", rails,
                     (unsigned long long)(pinned() >> 10), (unsigned long long)(all >> 10));
        tr_free(r);
        cr_expect_eq(pinned(), 0);
    }
}

/* Runs f in a process of its own that may lock 64 KiB. Returns its exit status. */
static int in_a_tight_process(int (*f)(void))
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
        struct __user_cap_data_struct data[2] = {{0}};
        struct rlimit limit = {64 << 10, 64 << 10};
        if (setrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capset, &head, data))
            _exit(99);
        _exit(f());
    }
    cr_assert_gt(pid, 0);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int64_t zero_clock(void *ctx)
{
    (void)ctx;
    return 1;
}

static void no_wake(void *ctx)
{
    (void)ctx;
}

static int try_to_register(void)
{
    const struct tp_rdma_plugin *p;
    struct tp_rdma_config config = {.devices = "rxe0"};
    struct tp_endpoint_config e = {.provider = &config,
                                   .host = {.now = zero_clock, .wake = no_wake, .base = event_base_new()}};
    struct tp_endpoint *ep;
    struct tp_region *region;
    struct tp_key key;
    struct cfg_error err = {""};
    static uint8_t memory[1 << 20];
    if (tp_rdma_load(&p, &err) || p->ops->open(&e, &ep, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    int rc = p->ops->add_region(ep, memory, sizeof memory, &region, &key, &err);
    fprintf(stderr, "%s\n", err.msg);
    bool said = strstr(err.msg, "1024 KiB") && strstr(err.msg, "64 KiB may be locked") && strstr(err.msg, "memlock");
    p->ops->close(ep);
    event_base_free(e.host.base);
    return rc == -ENOMEM && said ? 0 : 2;
}

Test(rdma_faults, a_limit_on_locked_memory_is_named)
{
    rr_need_guest();
    cr_expect_eq(in_a_tight_process(try_to_register), 0);
}

/* ---- peers and wires that go away ------------------------------------------------------------------------------ */

/* What it accepts may write from now on. */
static void greet(struct tr_side *s, const struct tr_event *e, const uint8_t *bytes)
{
    (void)bytes;
    if (e->what == TR_ACCEPTED)
        tr_send_number(s->rig, e->c, 0, 8);
}

/* A process that listens, offers its window and takes what comes, until it is killed. It writes its address and key to
 * fd. */
static void be_a_peer(int fd, const struct tr_kind *kind)
{
    struct tr_rig *r = tr_new(kind);
    r->side[1].on_event = greet;
    if (write(fd, r->bound, sizeof r->bound) < 0 || write(fd, &r->key[1], sizeof r->key[1]) < 0)
        _exit(1);
    for (;;)
        tr_turn(r);
}

static pid_t start_peer(const struct tr_kind *kind, struct tr_rig *r)
{
    int fd[2];
    cr_assert_eq(pipe(fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(fd[0]);
        be_a_peer(fd[1], kind);
    }
    close(fd[1]);
    cr_assert_gt(pid, 0);
    cr_assert_eq(read(fd[0], r->bound, sizeof r->bound), (ssize_t)sizeof r->bound);
    cr_assert_eq(read(fd[0], &r->key[1], sizeof r->key[1]), (ssize_t)sizeof r->key[1]);
    close(fd[0]);
    return pid;
}

/* A channel to a peer that is another process. */
static struct tp_channel *join_peer(struct tr_rig *r)
{
    struct tp_channel *c;
    struct cfg_error err;
    int frames = r->side[0].frames + 1;
    cr_assert_eq(r->kind->ops->connect(r->side[0].ep, r->bound, TP_CLASS_KV, NULL, &c, &err), 0, "%s", err.msg);
    tr_until(r, &r->side[0].frames, frames);
    return c;
}

Test(rdma_faults, a_peer_is_killed_in_the_middle_of_transfers)
{
    const struct tr_kind kind = kind_of(rr_set_up_rails);
    /* Processes before this one's endpoints: they share nothing with it. */
    struct tr_rig *r = tr_prepare(&kind);
    for (int i = 0; i < 2; i++) {
        r->config[i].depth = 16;
        rr_config[i].register_max = 220 << 10; /* so many writes that not all of them have a place */
    }
    enum { PEERS = 2 };
    pid_t peer[PEERS];
    struct {
        char bound[TP_ADDRESS_TEXT];
        struct tp_key key;
    } at[PEERS];
    for (int i = 0; i < PEERS; i++) {
        peer[i] = start_peer(&kind, r);
        memcpy(at[i].bound, r->bound, sizeof r->bound);
        at[i].key = r->key[1];
    }
    tr_open(r);
    long qps = rr_resources("rxe1", "qp"), qps_second = rr_resources("rxe3", "qp");
    for (int i = 0; i < PEERS; i++) {
        memcpy(r->bound, at[i].bound, sizeof r->bound);
        r->key[1] = at[i].key;
        struct tp_channel *c = join_peer(r);
        int done = r->side[0].puts_done, closed = r->side[0].closed + 1, accepted = 0;
        struct tp_put p = {.region = r->region[0], .from = r->window[0], .size = TR_WINDOW, .key = r->key[1]};
        for (; accepted < 2; accepted++) {
            p.cookie = (uint64_t)accepted;
            cr_assert_eq(c->ops->put(c, &p), 0);
        }
        tr_until(r, &r->side[0].puts_done, done + accepted); /* some have arrived */
        for (int k = 1; k <= 3; k += 2)
            rr_shell("tc qdisc add dev rdma%d root netem delay 500ms", k);
        int arrived = accepted; /* more are posted, or wait for a place */
        for (p.cookie = (uint64_t)accepted; c->ops->put(c, &p) == 0; p.cookie++)
            accepted++;
        cr_assert_gt(accepted, arrived);
        kill(peer[i], SIGKILL);
        waitpid(peer[i], NULL, 0);
        tr_until(r, &r->side[0].closed, closed);
        for (int k = 1; k <= 3; k += 2)
            rr_shell("tc qdisc del dev rdma%d root", k);
        cr_expect_eq(r->side[0].puts_done - done, accepted, "every put has one end");
        const struct tr_event *e = &r->side[0].log[r->side[0].n - 1];
        cr_expect_eq(e->what, TR_CLOSED);
        cr_expect(e->status == -ECONNRESET || e->status == -ETIMEDOUT, "%d", e->status);
        cr_expect_eq(r->side[0].ep->channels, 0);
        cr_expect_eq(rr_resources("rxe1", "qp"), qps, "no queue pair is left, round %d", i);
        cr_expect_eq(rr_resources("rxe3", "qp"), qps_second, "no queue pair is left, round %d", i);
    }
    tr_free(r);
}

Test(rdma_faults, a_wire_that_is_cut_ends_the_channel_in_time)
{
    const struct tr_kind kind = kind_of(rr_set_up_wire);
    struct tr_rig *r = tr_prepare(&kind);
    r->config[0].silence_ns = r->config[1].silence_ns = INT64_C(1000000000);
    tr_open(r);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    put_and_compare(r, c[0], 0, 0, 100000, 1);
    rr_shell("tc qdisc add dev rdma1 root netem loss 100%%");
    tr_put(r, c[0], 0, 0, 100000, 2, 2);
    tr_send_number(r, c[0], 0, 100);
    tr_until(r, &r->side[0].closed, 1);
    rr_shell("tc qdisc del dev rdma1 root");
    cr_expect_eq(r->side[0].log[r->side[0].n - 1].status, -ETIMEDOUT);
    cr_expect(strstr(r->side[0].why, "nothing was heard from 10.77.1.2") &&
                  strstr(r->side[0].why, "RoCE version (here"),
              "%s", r->side[0].why);
    cr_expect_eq(r->side[0].puts_done, 2);
    cr_expect_eq(r->side[0].ep->channels, 0);
    tr_free(r);
}

Test(rdma_faults, lost_packets_are_sent_again)
{
    const struct tr_kind kind = kind_of(rr_set_up_wire);
    struct tr_rig *r = tr_new(&kind);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    rr_shell("tc qdisc add dev rdma1 root netem loss 1%%");
    r->side[1].check_payload = true;
    for (unsigned i = 0; i < 10; i++) {
        put_and_compare(r, c[0], 0, 0, BIG, i + 1);
        tr_send_number(r, c[0], i, 10000);
    }
    tr_until(r, &r->side[1].frames, 10);
    rr_shell("tc qdisc del dev rdma1 root");
    cr_expect(r->side[1].payload_ok && r->side[1].in_order);
    tr_free(r);
}

/* Of a long life with many connections an endpoint keeps what the first one needed. */
Test(rdma_faults, connections_that_ended_take_nothing_of_an_endpoint)
{
    enum { ROUNDS = 6, KINDS = 5, DEPTH = 200 }; /* of these a few fill what an endpoint begins with */
    static const char *const what[KINDS] = {"qp", "cq", "mr", "srq", "cm_id"}, *const device[2] = {"rxe1", "rxe4"};
    const struct tr_kind kind = kind_of(rr_set_up_rails);
    struct tr_rig *r = tr_prepare(&kind);
    r->config[0].depth = r->config[1].depth = DEPTH;
    tr_open(r);
    long first[2][KINDS], entries[2];
    for (int i = 0; i <= ROUNDS; i++) {
        struct tp_channel *c[2];
        tr_join(r, TP_CLASS_KV, c);
        for (int k = 0; k < 2; k++) /* with send buffers */
            tr_send_number(r, c[k], 0, 5000);
        tr_until(r, &r->side[0].frames, i + 1);
        tr_until(r, &r->side[1].frames, i + 1);
        if (i % 2)
            c[0]->ops->abort(c[0]);
        else
            c[0]->ops->finish(c[0]);
        for (int k = 0; k < 2; k++)
            tr_until(r, &r->side[k].closed, i + 1);
        for (int d = 0; d < 2 && i == 0; d++) {
            for (int k = 0; k < KINDS; k++)
                first[d][k] = rr_resources(device[d], what[k]);
            entries[d] = rr_completions(device[d]);
        }
    }
    for (int d = 0; d < 2; d++) {
        for (int k = 0; k < KINDS; k++)
            cr_expect_eq(rr_resources(device[d], what[k]), first[d][k], "%s of %s", what[k], device[d]);
        cr_expect_gt(entries[d], 0);
        cr_expect_eq(rr_completions(device[d]), entries[d], "completion queues of %s", device[d]);
    }
    tr_free(r);
}

Test(rdma_faults, nothing_is_left_in_the_kernel)
{
    static const char *const what[] = {"qp", "cq", "mr", "srq", "cm_id", "pd"}, *const device[2] = {"rxe1", "rxe2"};
    const struct tr_kind kind = kind_of(rr_set_up_rails);
    long before[2][6];
    for (int i = 0; i < 12; i++)
        before[i % 2][i / 2] = rr_resources(device[i % 2], what[i / 2]);
    for (int round = 0; round < 2; round++) {
        struct tr_rig *r = tr_new(&kind);
        struct tp_channel *c[2];
        for (int i = 0; i < 10; i++) {
            tr_join(r, TP_CLASS_KV, c);
            tr_put(r, c[0], 0, 0, BIG, 1, 1);
            tr_send_number(r, c[1], 0, 5000);
        }
        if (round)
            tr_until(r, &r->side[1].immediates, 10);
        tr_free(r); /* with all of them open, and in the first round in the middle of it */
    }
    for (int i = 0; i < 12; i++)
        cr_expect_eq(rr_resources(device[i % 2], what[i / 2]), before[i % 2][i / 2], "%s of %s", what[i / 2],
                     device[i % 2]);
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

Test(rdma_faults, what_cannot_be_is_refused_with_a_cure)
{
    const struct tr_kind kind = kind_of(rr_set_up_wire);
    struct cfg_error err;
    struct tp_endpoint *ep;
    char bound[TP_ADDRESS_TEXT];
    struct tr_rig *r = tr_prepare(&kind);
    rr_config[0].devices = "mlx5_0";
    cr_expect_eq(kind.ops->open(&r->config[0], &ep, &err), -ENOTSUP, "no such device");
    cr_expect(strstr(err.msg, "no RDMA device mlx5_0"), "%s", err.msg);
    rr_config[0] = (struct tp_rdma_config){.address = "10.99.0.1"};
    cr_expect_eq(kind.ops->open(&r->config[0], &ep, &err), -ENOTSUP, "no such address");
    cr_expect(strstr(err.msg, "10.77.1.1 on rxe1"), "%s", err.msg);
    rr_config[0] = (struct tp_rdma_config){.address = "10.77.1.1"};
    r->config[0].connect_ns = INT64_C(3000000000); /* of a connection that comes to nothing */
    tr_open(r);
    cr_expect_eq(kind.ops->listen(r->side[0].ep, "10.77.2.1:0", bound, &err), -EADDRNOTAVAIL);
    cr_expect(strstr(err.msg, "rxe1 with 10.77.1.1"), "%s", err.msg);
    cr_expect_eq(kind.ops->listen(r->side[0].ep, "10.77.1.1:x", bound, &err), -EINVAL);
    /* A port that another endpoint has. */
    char taken[TP_ADDRESS_TEXT];
    snprintf(taken, sizeof taken, "10.77.1.1%s", strrchr(r->bound, ':'));
    cr_expect_eq(kind.ops->listen(r->side[0].ep, taken, bound, &err), 0, "%s", err.msg);
    struct tp_channel *c;
    cr_assert_eq(kind.ops->connect(r->side[0].ep, "10.77.2.2:9", TP_CLASS_KV, NULL, &c, &err), 0);
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_lt(r->side[0].log[r->side[0].n - 1].status, 0);
    tr_free(r);
}
