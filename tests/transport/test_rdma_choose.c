/* Which RDMA devices and GIDs are chosen, and what is said about a machine; on machines that are made up here. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#include "transport/rdma.h"

static struct tp_rdma_facts facts;
static struct tp_rdma_choice choice;

static struct tp_rdma_port *add_device(const char *name, int distance)
{
    struct tp_rdma_device *d = &facts.device[facts.device_count++];
    *d = (struct tp_rdma_device){.distance = distance,
                                 .mr_size_max = UINT64_MAX,
                                 .mr_max = 1000,
                                 .qp_max = 1000,
                                 .qp_wr_max = 1000,
                                 .cq_max = 100,
                                 .cqe_max = 1000,
                                 .srq_max = 100,
                                 .srq_wr_max = 1000,
                                 .port_count = 1};
    snprintf(d->name, sizeof d->name, "%s", name);
    d->port[0] = (struct tp_rdma_port){
        .number = 1, .active = true, .state = "active", .ethernet = true, .mtu = 4096, .mtu_max = 4096};
    return &d->port[0];
}

static void add_gid(struct tp_rdma_port *p, int index, enum tp_rdma_gid_type type, const char *address)
{
    struct tp_rdma_gid *g = &p->gid[p->gid_count++];
    *g = (struct tp_rdma_gid){.index = index, .type = type, .netdev = "eth7"};
    cr_assert_eq(tp_rdma_address_parse(address, g->raw), 0, "%s", address);
}

static void set_up(void)
{
    facts = (struct tp_rdma_facts){.has_uverbs = true, .has_cm = true, .locked_max = UINT64_MAX};
}

TestSuite(rdma_choose, .init = set_up);

static int choose(const char *address, const char *devices)
{
    struct tp_rdma_want want = {.devices = devices};
    if (*address)
        cr_assert_eq(tp_rdma_address_parse(address, want.address), 0);
    int rc = tp_rdma_choose(&facts, &want, &choice);
    cr_expect_neq(choice.why[0], 0, "every answer has a reason");
    cr_expect_eq(rc == 0, choice.rail_count > 0);
    return rc;
}

#define EXPECT_WHY(part) cr_expect(strstr(choice.why, part), "should say \"%s\": %s", part, choice.why)

Test(rdma_choose, nothing_here)
{
    cr_expect_eq(choose("", ""), -ENODEV);
    EXPECT_WHY("no RDMA device");
    facts.has_uverbs = false;
    cr_expect_eq(choose("10.0.0.1", ""), -ENODEV);
    EXPECT_WHY("/dev/infiniband");
}

Test(rdma_choose, routable_v2_before_all_others)
{
    struct tp_rdma_port *p = add_device("mlx5_0", 10);
    add_gid(p, 0, TP_RDMA_GID_ROCE_V1, "fe80::1");
    add_gid(p, 1, TP_RDMA_GID_ROCE_V2, "fe80::1");
    add_gid(p, 2, TP_RDMA_GID_ROCE_V1, "10.0.0.1");
    add_gid(p, 3, TP_RDMA_GID_ROCE_V2, "fd00::1");
    add_gid(p, 4, TP_RDMA_GID_ROCE_V2, "10.0.0.1");
    cr_assert_eq(choose("", ""), 0, "%s", choice.why);
    cr_expect_eq(p->gid[choice.rail[0].gid].index, 4);
    EXPECT_WHY("GID 4 (10.0.0.1, RoCE v2)");
    cr_assert_eq(choose("fd00::1", ""), 0, "%s", choice.why);
    cr_expect_eq(p->gid[choice.rail[0].gid].index, 3, "the address that the node has");
    /* In any order. */
    set_up();
    p = add_device("mlx5_0", 10);
    add_gid(p, 0, TP_RDMA_GID_ROCE_V2, "10.0.0.1");
    add_gid(p, 1, TP_RDMA_GID_ROCE_V2, "fd00::1");
    add_gid(p, 2, TP_RDMA_GID_ROCE_V2, "fe80::1");
    cr_assert_eq(choose("", ""), 0, "%s", choice.why);
    cr_expect_eq(p->gid[choice.rail[0].gid].index, 0);
    set_up();
    p = add_device("mlx5_0", 10);
    add_gid(p, 0, TP_RDMA_GID_ROCE_V2, "fe80::1");
    add_gid(p, 1, TP_RDMA_GID_ROCE_V2, "fd00::1");
    cr_assert_eq(choose("", ""), 0, "%s", choice.why);
    cr_expect_eq(p->gid[choice.rail[0].gid].index, 1);
}

Test(rdma_choose, what_makes_a_table_useless_is_said)
{
    struct tp_rdma_port *p = add_device("mlx5_0", 10);
    cr_expect_eq(choose("", ""), -ENODEV);
    EXPECT_WHY("GID table is empty");
    add_gid(p, 0, TP_RDMA_GID_ROCE_V2, "fe80::1");
    cr_expect_eq(choose("", ""), -ENODEV);
    EXPECT_WHY("link-local only");
    EXPECT_WHY("ip addr add ADDRESS/PREFIX dev eth7");
    add_gid(p, 1, TP_RDMA_GID_ROCE_V1, "10.0.0.1");
    cr_expect_eq(choose("", ""), -ENODEV);
    EXPECT_WHY("RoCE v1 only");
    add_gid(p, 2, TP_RDMA_GID_ROCE_V2, "10.0.0.1");
    p->active = false;
    p->state = "down";
    cr_expect_eq(choose("", ""), -ENODEV);
    EXPECT_WHY("it is down");
    p->active = true;
    cr_expect_eq(choose("", ""), 0);
    facts.device[0].error = EACCES;
    cr_expect_eq(choose("", ""), -ENODEV);
    EXPECT_WHY("Permission denied");
}

Test(rdma_choose, an_address_that_is_not_there)
{
    add_gid(add_device("mlx5_0", 10), 1, TP_RDMA_GID_ROCE_V2, "10.0.0.1");
    add_gid(add_device("mlx5_1", 10), 1, TP_RDMA_GID_ROCE_V2, "10.0.1.1");
    cr_expect_eq(choose("192.168.0.1", ""), -EADDRNOTAVAIL);
    EXPECT_WHY("192.168.0.1");
    EXPECT_WHY("10.0.0.1 on mlx5_0");
    EXPECT_WHY("10.0.1.1 on mlx5_1");
}

Test(rdma_choose, the_nearest_and_those_as_near)
{
    static const struct {
        const char *name, *address;
        int distance;
    } device[] = {{"mlx5_0", "10.0.0.1", 21}, {"mlx5_1", "10.0.1.1", 10}, {"mlx5_2", "10.0.2.1", 0},
                  {"mlx5_3", "10.0.3.1", 10}, {"mlx5_4", "10.0.4.1", 10}, {"mlx5_5", "10.0.5.1", 10},
                  {"mlx5_6", "10.0.6.1", 10}};
    for (int i = 0; i < 7; i++)
        add_gid(add_device(device[i].name, device[i].distance), 1, TP_RDMA_GID_ROCE_V2, device[i].address);
    cr_assert_eq(choose("", ""), 0, "%s", choice.why);
    cr_expect_eq(choice.rail_count, 1);
    cr_expect_eq(choice.rail[0].device, 1, "distance 10");
    cr_assert_eq(choose("", "auto"), 0, "%s", choice.why);
    cr_assert_eq(choice.rail_count, TP_RDMA_RAILS_MAX);
    static const int want[TP_RDMA_RAILS_MAX] = {1, 3, 4, 5};
    for (int i = 0; i < TP_RDMA_RAILS_MAX; i++)
        cr_expect_eq(choice.rail[i].device, want[i]);
    cr_assert_eq(choose("10.0.0.1", "auto"), 0, "%s", choice.why);
    cr_expect_eq(choice.rail[0].device, 0, "the address decides");
    cr_expect_eq(choice.rail_count, TP_RDMA_RAILS_MAX, "all of the others are as near, or nearer");
}

Test(rdma_choose, devices_by_name)
{
    add_gid(add_device("rxe1", 0), 1, TP_RDMA_GID_ROCE_V2, "10.77.1.1");
    add_gid(add_device("rxe2", 0), 1, TP_RDMA_GID_ROCE_V2, "10.77.2.1");
    add_device("rxe3", 0);
    cr_assert_eq(choose("", "rxe2,rxe1"), 0, "%s", choice.why);
    cr_expect_eq(choice.rail_count, 2);
    cr_expect_eq(choice.rail[0].device, 1);
    cr_expect_eq(choice.rail[1].device, 0);
    EXPECT_WHY("as named in the configuration");
    cr_assert_eq(choose("10.77.1.1", "rxe1, rxe2"), 0, "%s", choice.why);
    cr_expect_eq(choose("10.77.1.1", "rxe2,rxe1"), -EINVAL, "the first has the address");
    cr_expect_eq(choose("", "rxe"), -EINVAL);
    EXPECT_WHY("no RDMA device rxe;");
    cr_expect_eq(choose("", "rxe1,rxe1"), -EINVAL);
    EXPECT_WHY("twice");
    cr_expect_eq(choose("", "rxe1,rxe3"), -EINVAL);
    EXPECT_WHY("rxe3: its GID table is empty");
}

Test(rdma_choose, infiniband_needs_no_address_of_its_own)
{
    struct tp_rdma_port *p = add_device("mlx5_0", 10);
    p->ethernet = false;
    add_gid(p, 0, TP_RDMA_GID_IB, "fe80::2:c903:0:1");
    cr_assert_eq(choose("10.0.0.1", ""), 0, "%s", choice.why);
    cr_expect_eq(choice.rail[0].gid, 0);
    p->gid_count = 0;
    cr_expect_eq(choose("10.0.0.1", ""), -ENODEV);
    EXPECT_WHY("opensm");
}

/* ---- what weft check says -------------------------------------------------------------------------------------- */

static char said[16384];

static void collect(void *ctx, enum tp_rdma_finding how, const char *text)
{
    static const char *const word[] = {"fine", "warning", "problem"};
    size_t n = strlen(said);
    (void)ctx;
    snprintf(said + n, sizeof said - n, "%s: %s\n", word[how], text);
}

static int judge(uint64_t bytes, int peers)
{
    struct tp_rdma_want want = {.devices = "", .window_bytes = bytes, .peers = peers};
    said[0] = '\0';
    return tp_rdma_judge(&facts, &want, collect, NULL);
}

#define EXPECT_SAID(part) cr_expect(strstr(said, part), "should say \"%s\":\n%s", part, said)

Test(rdma_choose, a_good_machine_has_no_problem)
{
    struct tp_rdma_port *p = add_device("mlx5_0", 10);
    add_gid(p, 3, TP_RDMA_GID_ROCE_V2, "10.0.0.1");
    cr_expect_eq(judge(64 << 20, 0), 0, "%s", said);
    EXPECT_SAID("fine: mlx5_0: distance 10");
    EXPECT_SAID("fine: mlx5_0 port 1: GID 3 10.0.0.1, RoCE v2, netdev eth7 (best)");
    EXPECT_SAID("fine: would use mlx5_0 port 1, GID 3");
    cr_expect_not(strstr(said, "warning"), "%s", said);
    p->mtu = 1024;
    judge(64 << 20, 0);
    EXPECT_SAID("warning: mlx5_0 port 1: MTU 1024, the device can do 4096");
}

Test(rdma_choose, locked_memory_against_what_will_be_registered)
{
    add_gid(add_device("mlx5_0", 10), 3, TP_RDMA_GID_ROCE_V2, "10.0.0.1");
    facts.locked_max = facts.locked_max_hard = 64 << 10;
    cr_expect_eq(judge(64 << 20, 0), 1, "%s", said);
    EXPECT_SAID("64 MiB will be registered, 64 KiB may be locked");
    EXPECT_SAID("LimitMEMLOCK=infinity");
    facts.locked_max_hard = UINT64_MAX;
    cr_expect_eq(judge(64 << 20, 0), 1);
    EXPECT_SAID("ulimit -l unlimited");
    facts.lock_privilege = true;
    cr_expect_eq(judge(64 << 20, 0), 0, "%s", said);
    EXPECT_SAID("64 MiB will be registered; this process may lock any amount");
    facts.lock_privilege = false;
    cr_expect_eq(judge(64 << 10, 0), 0, "%s", said);
}

Test(rdma_choose, what_is_registered_on_two_devices_counts_twice)
{
    add_gid(add_device("mlx5_0", 10), 3, TP_RDMA_GID_ROCE_V2, "10.0.0.1");
    add_gid(add_device("mlx5_1", 10), 3, TP_RDMA_GID_ROCE_V2, "10.0.1.1");
    facts.locked_max = facts.locked_max_hard = 100 << 20;
    struct tp_rdma_want want = {.devices = "auto", .window_bytes = 64 << 20};
    said[0] = '\0';
    cr_expect_eq(tp_rdma_judge(&facts, &want, collect, NULL), 1, "%s", said);
    EXPECT_SAID("128 MiB will be registered on 2 devices together, 102400 KiB may be locked");
    want.peers = 3; /* 29 MiB for frames, not twice the 21 MiB of one device */
    said[0] = '\0';
    cr_expect_eq(tp_rdma_judge(&facts, &want, collect, NULL), 1, "%s", said);
    EXPECT_SAID("157 MiB will be registered on 2 devices together");
    want.peers = 0;
    want.devices = "mlx5_1";
    said[0] = '\0';
    cr_expect_eq(tp_rdma_judge(&facts, &want, collect, NULL), 0, "%s", said);
}

/* Three connections share a pool of 256 receive buffers on a device; a channel's 64 send buffers are on its first
 * device, and what steers nodes has no connection on another one. tests/transport/test_rdma_faults.c holds it against
 * what the kernel counts. */
Test(rdma_choose, what_an_endpoint_registers)
{
    const uint64_t frame = 16384, window = 1 << 20;
    cr_expect_eq(tp_rdma_register_bytes(0, 0, 1), 0);
    cr_expect_eq(tp_rdma_register_bytes(window, 0, 4), 4 * window);
    cr_expect_eq(tp_rdma_register_bytes(0, 1, 1), (256 + 3 * 64) * frame);
    cr_expect_eq(tp_rdma_register_bytes(0, 3, 1), (3 * 256 + 9 * 64) * frame);
    cr_expect_eq(tp_rdma_register_bytes(window, 3, 2), 2 * window + ((3 + 2) * 256 + 9 * 64) * frame);
    cr_expect_eq(tp_rdma_register_bytes(window, 4, 3), 3 * window + ((4 + 3 + 3) * 256 + 12 * 64) * frame);
    cr_expect_eq(tp_rdma_connections(5, 0), 15);
    cr_expect_eq(tp_rdma_connections(5, 1), 10);
}

Test(rdma_choose, limits_of_the_device)
{
    add_gid(add_device("mlx5_0", 10), 3, TP_RDMA_GID_ROCE_V2, "10.0.0.1");
    facts.device[0].mr_size_max = 16 << 20;
    cr_expect_eq(judge(64 << 20, 0), 0, "%s", said);
    EXPECT_SAID("in pieces of up to 16 MiB");
    facts.device[0].mr_max = 4;
    cr_expect_eq(judge(64 << 20, 0), 1, "%s", said);
    EXPECT_SAID("more registrations than the 4");
    facts.device[0].qp_max = 8;
    cr_expect_eq(judge(1 << 20, 3), 1, "%s", said);
    EXPECT_SAID("9 connections are expected, it has 8 queue pairs");
    facts.has_cm = false;
    cr_expect_eq(judge(1 << 20, 0), 1, "%s", said);
    EXPECT_SAID("rdma_ucm");
}
