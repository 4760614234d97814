/* The provider rdma against real devices: the kernel's soft-RoCE in the guest of tests/rdma/guest.sh (`make
 * test-rdma`), which says so in WEFT_IN_RDMA_GUEST. Elsewhere the tests that need a device are skipped. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/process.h"
#include "tests/support/rdma_rig.h"

Test(rdma, the_library_is_loaded_or_says_why_not)
{
    const struct tp_rdma_plugin *p = NULL;
    static struct tp_rdma_facts facts;
    struct cfg_error err = {""};
    if (tp_rdma_load(&p, &err)) {
        cr_expect(strstr(err.msg, "install"), "no cure in: %s", err.msg);
        cr_skip_test("%s", err.msg);
    }
    if (p->inspect(&facts, &err))
        cr_expect_gt(strlen(err.msg), 20);
}

static const struct tp_rdma_device *find_device(const struct tp_rdma_facts *f, const char *name)
{
    for (int i = 0; i < f->device_count; i++)
        if (strcmp(f->device[i].name, name) == 0)
            return &f->device[i];
    return NULL;
}

Test(rdma, devices_are_seen_as_they_are)
{
    const struct tp_rdma_plugin *p;
    static struct tp_rdma_facts facts;
    struct cfg_error err;
    struct tp_rdma_choice choice;
    struct tp_rdma_want want = {.devices = ""};
    rr_need_guest();
    cr_assert_eq(tp_rdma_load(&p, &err), 0, "%s", err.msg);
    cr_assert_eq(p->inspect(&facts, &err), 0, "%s", err.msg);
    cr_assert_eq(facts.device_count, 5);
    cr_expect(facts.has_cm);
    cr_expect(facts.has_uverbs);
    const struct tp_rdma_device *d = find_device(&facts, "rxe1");
    cr_assert_not_null(d);
    cr_expect_eq(d->error, 0);
    cr_assert_eq(d->port_count, 1);
    cr_expect(d->port[0].active);
    cr_expect(d->port[0].ethernet);
    cr_expect_eq(d->port[0].mtu, 4096);
    cr_expect_gt(d->srq_wr_max, 1000);
    cr_expect_str_eq(d->port[0].gid[0].netdev, "rdma1");
    cr_assert_eq(tp_rdma_address_parse("10.77.1.1", want.address), 0);
    cr_assert_eq(tp_rdma_choose(&facts, &want, &choice), 0, "%s", choice.why);
    cr_expect_str_eq(facts.device[choice.rail[0].device].name, "rxe1");
    cr_assert_eq(tp_rdma_address_parse("10.99.9.9", want.address), 0);
    cr_expect_neq(tp_rdma_choose(&facts, &want, &choice), 0);
    cr_expect(strstr(choice.why, "10.77.0.1 on rxe0"), "%s", choice.why);
}

static void expect_check(const char *shell, const char *want)
{
    struct ts_result r = ts_run("sh", "-c", shell);
    cr_expect(strstr(r.out, want), "%s\nshould say: %s\nsaid:\n%s%s", shell, want, r.out, r.err);
    ts_result_free(&r);
}

Test(rdma, weft_check_explains_the_machine)
{
    rr_need_guest();
    char *dir = ts_temp_dir(), shell[1024];
    char *path = ts_write_file(
        dir, "t.conf",
        "nodes = ({ name = \"a\"; host = \"10.77.1.1\"; listen = \"127.0.0.1:0\"; roles = [\"gateway\", \"prefill\", "
        "\"decode\", \"expert\", \"kv\"]; });\nkv = { memory = \"32MiB\"; };");
    cr_assert(dir && path);
    snprintf(shell, sizeof shell, "%s check --rdma %s", ts_weft(), path);
    expect_check(shell, "GID 1 10.77.1.1, RoCE v2, netdev rdma1 (best)");
    expect_check(shell, "ok       rdma      would use rxe1 port 1, GID 1");
    expect_check(shell, "CAP_IPC_LOCK");
    expect_check(shell, "completions are waited for asleep: a node has 4 workers, and this one may use 2 CPUs");
    /* Without the privilege, and with the limit that a login shell has. */
    snprintf(shell, sizeof shell,
             "ulimit -l 64; setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock %s check --rdma %s", ts_weft(), path);
    expect_check(shell, "problem  rdma      locked memory");
    expect_check(shell, "64 KiB may be locked");
    /* A library that is not there is no crash and no silence. */
    snprintf(shell, sizeof shell, "WEFT_RDMA_SO=/nowhere/x.so %s check --rdma %s", ts_weft(), path);
    expect_check(shell, "problem  rdma      weft-rdma.so is not there");
    free(path);
    ts_remove_dir(dir);
    free(dir);
}

/* The expert exchange between two nodes, with messages and with slots. */
Test(rdma, weft_bench_exchange_uses_slots)
{
    rr_need_guest();
    struct ts_result r = ts_run(ts_weft(), "bench", "exchange", "--over", "rdma", "--device", "rxe1", "--peer-device",
                                "rxe2", "-r", "2", "-n", "1", "--json");
    const char *second = strstr(r.out, "\"dispatches\":\"slots\"");
    cr_assert_eq(r.status, 0, "%s%s", r.out, r.err);
    cr_assert_not_null(second, "%s", r.out);
    cr_expect(strstr(r.out, "\"in_slots\":0.000") && strstr(second, "\"in_slots\":1.000"), "%s", r.out);
    ts_result_free(&r);
}

/* ---- what every provider passes -------------------------------------------------------------------------------- */

/* What is left of connections in the kernel is counted in test_rdma_faults. */
enum { MANY = 30 };

#define TR_CASE(name)                                                                                                  \
    Test(rdma_loop, name)                                                                                              \
    {                                                                                                                  \
        const struct tr_kind kind = {                                                                                  \
            .ops = rr_ops(), .set_up = rr_set_up_loop, .connections = MANY, .uses_base = true};                        \
        tr_case_##name(&kind);                                                                                         \
    }                                                                                                                  \
    Test(rdma_rails, name)                                                                                             \
    {                                                                                                                  \
        /* The loop looks and arms, as a worker does; above the provider keeps it informed by itself. */               \
        const struct tr_kind kind = {                                                                                  \
            .ops = rr_ops(), .set_up = rr_set_up_rails, .connections = MANY, .uses_base = true, .looks = true};        \
        tr_case_##name(&kind);                                                                                         \
    }
#include "tests/support/transport_cases.def"
#undef TR_CASE
