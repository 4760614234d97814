/* Implementation of rdma_rig.h. */
#include "tests/support/rdma_rig.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/process.h"

struct tp_rdma_config rr_config[2];

void rr_need_guest(void)
{
    if (!getenv("WEFT_IN_RDMA_GUEST"))
        cr_skip_test("needs the guest of `make test-rdma`");
}

const struct tp_ops *rr_ops(void)
{
    const struct tp_rdma_plugin *p;
    struct cfg_error err;
    rr_need_guest();
    cr_assert_eq(tp_rdma_load(&p, &err), 0, "%s", err.msg);
    return p->ops;
}

static void set_up(struct tr_rig *r, const char *address, const char *devices0, const char *devices1)
{
    rr_config[0] = (struct tp_rdma_config){.devices = devices0};
    rr_config[1] = (struct tp_rdma_config){.devices = devices1};
    for (int i = 0; i < 2; i++) {
        r->config[i].provider = &rr_config[i];
        /* An emulated machine on a busy host. */
        r->config[i].connect_ns = r->config[i].silence_ns = INT64_C(30000000000);
    }
    snprintf(r->address, sizeof r->address, "%s:0", address);
}

void rr_set_up_loop(struct tr_rig *r)
{
    set_up(r, "10.77.0.1", "rxe0", "rxe0");
}

void rr_set_up_wire(struct tr_rig *r)
{
    set_up(r, "10.77.1.2", "rxe1", "rxe2");
}

void rr_set_up_rails(struct tr_rig *r)
{
    set_up(r, "10.77.1.2", "rxe1,rxe3", "rxe2,rxe4");
}

long rr_counter(const char *device, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters/%s", device, name);
    char *text = ts_read_file(path, NULL);
    long v = text ? strtol(text, NULL, 10) : -1;
    free(text);
    return v;
}

long rr_resources(const char *device, const char *what)
{
    struct ts_result r = ts_run("rdma", "resource", "show", device);
    char word[32];
    snprintf(word, sizeof word, " %s ", what);
    const char *at = strstr(r.out, word);
    long v = at ? strtol(at + strlen(word), NULL, 10) : -1;
    cr_expect_ge(v, 0, "no %s of %s in: %s%s", what, device, r.out, r.err);
    ts_result_free(&r);
    return v;
}

long rr_completions(const char *device)
{
    struct ts_result r = ts_run("rdma", "-j", "resource", "show", "cq");
    json_t *list = json_loads(r.out, 0, NULL), *cq;
    long sum = 0;
    size_t i;
    cr_assert_not_null(list, "%s%s", r.out, r.err);
    json_array_foreach (list, i, cq) {
        const char *name = json_string_value(json_object_get(cq, "ifname"));
        if (name && !strcmp(name, device) && json_integer_value(json_object_get(cq, "pid")) == getpid())
            sum += (long)json_integer_value(json_object_get(cq, "cqe"));
    }
    json_decref(list);
    ts_result_free(&r);
    return sum;
}

void rr_shell(const char *fmt, ...)
{
    char command[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    struct ts_result r = ts_run("sh", "-c", command);
    cr_assert_eq(r.status, 0, "%s: %s%s", command, r.out, r.err);
    ts_result_free(&r);
}
