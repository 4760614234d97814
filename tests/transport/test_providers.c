/* From a configuration to a provider: what is asked for is what there is, or there is none. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/providers.h"
#include "transport/tcp.h"

static struct cfg_config config;
static struct tp_provider provider;

static int provider_of(int kind, const char *host, struct cfg_error *err)
{
    cfg_config_default(&config);
    config.transport.provider = kind;
    strcpy(config.transport.rdma.devices, "a,b");
    config.transport.rdma.class_kv = 104;
    snprintf(config.nodes[0].host, sizeof config.nodes[0].host, "%s", host);
    return tp_provider_of(&config, &config.nodes[0], &provider, err);
}

Test(providers, tcp_is_the_default)
{
    struct cfg_error err;
    cfg_config_default(&config);
    cr_expect_eq(config.transport.provider, CFG_PROVIDER_TCP);
    cr_assert_eq(provider_of(CFG_PROVIDER_TCP, "no.such.host.invalid", &err), 0, "nobody is looked up for it");
    cr_expect_eq(provider.ops, &tp_tcp);
    cr_expect_null(provider.config);
}

Test(providers, rdma_is_rdma_or_an_error)
{
    struct cfg_error err = {""};
    int rc = provider_of(CFG_PROVIDER_RDMA, "10.1.2.3", &err);
    if (rc) {
        cr_expect_eq(rc, -ENOTSUP);
        cr_expect(strstr(err.msg, "install"), "%s", err.msg);
        return;
    }
    const struct tp_rdma_config *c = provider.config;
    cr_expect_str_eq(provider.ops->name, "rdma");
    cr_expect_str_eq(c->address, "10.1.2.3");
    cr_expect_str_eq(c->devices, "a,b");
    cr_expect_eq(c->traffic_class[TP_CLASS_KV], 104);
    cr_expect_eq(c->traffic_class[TP_CLASS_EXPERT], 0);
    cr_expect_eq(provider_of(CFG_PROVIDER_RDMA, "no.such.host.invalid", &err), -EINVAL);
    cr_expect(strstr(err.msg, "no.such.host.invalid"), "%s", err.msg);
}

Test(providers, loopback)
{
    static const struct {
        const char *text;
        bool is;
    } a[] = {{"127.0.0.1", true}, {"127.9.9.9", true}, {"::1", true}, {"10.0.0.1", false}, {"fd00::1", false}};
    for (size_t i = 0; i < sizeof a / sizeof *a; i++) {
        uint8_t bytes[16];
        cr_assert_eq(tp_rdma_address_parse(a[i].text, bytes), 0);
        cr_expect_eq(tp_address_is_loopback(bytes), a[i].is, "%s", a[i].text);
    }
}
