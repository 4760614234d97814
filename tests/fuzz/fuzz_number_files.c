/* Any bytes as one of the JSON files with figures: recorded counters of decoding or of prompts, what clients of a
 * server saw, step times, a calibration, a profile of a machine, a request trace. The first byte says which. Refused
 * with a message, or numbers that can be used. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "actors/steptime_file.h"
#include "cli/bench_decode.h"
#include "cli/bench_prefill.h"
#include "cli/bench_serve_report.h"
#include "cli/simulate.h"
#include "model/calibration.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCK = 5 };

static void require(int ok)
{
    if (!ok)
        __builtin_trap();
}

static void check_table(const struct act_steptime *t)
{
    require(act_steptime_usable(t));
    for (int n = 1; n < 4096; n *= 3) {
        double ns = act_steptime_verify_ns(t, n, n * (t->block + 1), 0);
        require(isfinite(ns) && ns > 0 && act_steptime_draft_ns(t, n, n) >= 0);
    }
}

static int try_counters(const char *path, struct cfg_error *err)
{
    struct bd_results r = {.n = 0};
    int rc = bd_read_json(path, &r, err);
    for (int i = 0; !rc && i < r.n; i++) {
        const struct bd_point *p = &r.point[i];
        const struct mdl_counters *c = &p->counters;
        require(c->accepted <= c->offered && c->offered <= c->drafted && p->seconds > 0);
        require(c->steps == p->rounds * p->load && c->emitted == c->steps + c->accepted);
        require(p->mode == BD_DYNAMIC || (p->mode >= 0 && c->offered == p->mode * c->steps));
    }
    if (!rc) {
        struct bd_verdict v;
        bd_judge(&r, r.point[0].load, &v);
    }
    bd_free(&r);
    return rc;
}

static int try_prompts(const char *path, struct cfg_error *err)
{
    struct bp_results r = {.n = 0};
    int rc = bp_read_json(path, &r, err);
    for (int i = 0; !rc && i < r.n; i++) {
        const struct bp_point *p = &r.point[i];
        struct bp_figures f;
        require(p->seconds > 0 && p->longest >= p->shortest && p->steps >= 1 && p->layer_rows >= p->tokens);
        require(bp_figures(&r, p->exact, p->tokens, p->chunk, &f) && f.rate > 0 && isfinite(f.rate));
    }
    bp_free(&r);
    return rc;
}

static int try_served(const char *path, struct cfg_error *err)
{
    static struct bs_results r;
    r = (struct bs_results){.n = 0};
    int rc = bs_read_json(path, &r, err);
    for (int i = 0; !rc && i < r.n; i++) {
        const struct bs_point *p = &r.point[i];
        require(p->whole + p->refused + p->failed == p->requests && p->seconds > 0 && p->load > 0);
        for (int c = 0; c < BS_COLUMNS; c++)
            require(isnan(p->value[c][0]) || (p->value[c][0] <= p->value[c][1] && p->value[c][1] <= p->value[c][2]));
    }
    json_decref(r.conditions);
    return rc;
}

static int try_steptimes(const char *path, struct cfg_error *err)
{
    const struct act_steptime_identity id = {
        .revision = 1, .machine = "m", .build = "b", .build_id = "i", .streams = 1, .context = 1};
    struct act_steptime t;
    int rc = act_steptime_read(path, &id, BLOCK, &t, err);
    if (!rc)
        check_table(&t);
    return rc;
}

static int try_calibration(const char *path, struct cfg_error *err)
{
    struct mdl_calibration c;
    int rc = mdl_calibration_read(path, 1, BLOCK, &c, err);
    for (int k = 0; k < BLOCK; k++)
        for (int choice = 0; choice < MDL_CHOICES; choice++) {
            float p = mdl_calibrated(&c, (enum mdl_choice)choice, k, 0.25f);
            require(p >= 0 && p <= 1);
        }
    return rc;
}

static int try_profile(const uint8_t *data, size_t size, struct cfg_error *err)
{
    json_error_t why;
    struct sim_profile p;
    struct act_steptime t;
    json_t *j = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, &why);
    int rc = j ? sim_profile_read(j, &p, err) : cfg_error_set(err, EINVAL, "%s", why.text);
    json_decref(j);
    if (rc)
        return rc;
    check_table(&p.table);
    require(sim_profile_believed(&p, 1, &t) == 0 && isfinite(sim_group_ns(&p.decode_group, 7)));
    require(p.kv_tokens / p.block_tokens >= 2 && p.context >= 1 && p.prompts >= 1 && p.streams >= 1);
    return 0;
}

static int try_trace(const char *path, struct cfg_error *err)
{
    struct sim_trace t;
    int rc = sim_trace_read(path, &t, err);
    for (int i = 0; !rc && i < t.n; i++)
        require(t.arrival[i].at >= 0 && t.arrival[i].prompt >= 1 && (t.arrival[i].n_chain == 0) == !t.arrival[i].chain);
    if (!rc)
        sim_trace_free(&t);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int file = -1;
    static char path[64];
    struct cfg_error err = {{0}};
    if (!size)
        return 0;
    if (file < 0)
        file = memfd_create("figures", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (file < 0 || ftruncate(file, 0) || pwrite(file, data + 1, size - 1, 0) != (ssize_t)size - 1)
        return 0;
    int rc = data[0] == 'c'   ? try_counters(path, &err)
             : data[0] == 'f' ? try_prompts(path, &err)
             : data[0] == 'v' ? try_served(path, &err)
             : data[0] == 's' ? try_steptimes(path, &err)
             : data[0] == 'k' ? try_calibration(path, &err)
             : data[0] == 't' ? try_trace(path, &err)
                              : try_profile(data + 1, size - 1, &err);
    require(!rc || err.msg[0]);
    return 0;
}
