#define _GNU_SOURCE
#include "tests/support/actor_rig.h"

#include <stdatomic.h>
#include <time.h>

#include "tests/harness.h"

void ts_rig_init(struct ts_rig *rig, enum ts_rig_mode mode, int workers)
{
    memset(rig, 0, sizeof *rig);
    rig->mode = mode;
    rig->config.node = 1;
    rig->config.epoch = 7;
    rig->config.workers = workers;
    for (int i = 0; i < workers; i++) {
        rig->config.worker[i].kind = ACT_WORKER_ENGINE;
        rig->config.worker[i].cpu = -1;
    }
    rig->sim_config.seed = 1;
}

void ts_rig_open(struct ts_rig *rig)
{
    struct cfg_error err = {{0}};
    int rc;
    if (rig->mode == TS_RIG_SIM) {
        rc = act_sim_new(&rig->sim_config, &rig->sim, &err);
        cr_assert_eq(rc, 0, "%s", err.msg);
        rc = act_sim_add(rig->sim, &rig->config, &rig->rt, &err);
    } else {
        rc = act_runtime_new(&rig->config, &rig->rt, &err);
    }
    cr_assert_eq(rc, 0, "%s", err.msg);
}

struct act_addr ts_rig_spawn_spec(struct ts_rig *rig, const struct act_spawn *spec)
{
    struct cfg_error err = {{0}};
    struct act_addr addr;
    int rc = act_runtime_spawn(rig->rt, spec, &addr, &err);
    cr_assert_eq(rc, 0, "%s", err.msg);
    return addr;
}

struct act_addr ts_rig_spawn(struct ts_rig *rig, int worker, const struct act_behaviour *behaviour, const void *arg)
{
    struct act_spawn spec = {.behaviour = behaviour, .worker = worker, .arg = arg};
    return ts_rig_spawn_spec(rig, &spec);
}

void ts_rig_start(struct ts_rig *rig)
{
    struct cfg_error err = {{0}};
    if (rig->mode == TS_RIG_THREADS)
        cr_assert_eq(act_runtime_start(rig->rt, &err), 0, "%s", err.msg);
}

static void nap(void)
{
    struct timespec t = {0, 500000};
    nanosleep(&t, NULL);
}

bool ts_rig_until(struct ts_rig *rig, const _Atomic long *flag, long value)
{
    if (rig->mode == TS_RIG_SIM) {
        for (long i = 0; i < 5000000; i++)
            if (atomic_load_explicit(flag, memory_order_acquire) >= value)
                return true;
            else if (!act_sim_step(rig->sim))
                break;
        return atomic_load_explicit(flag, memory_order_acquire) >= value;
    }
    for (int i = 0; i < 40000; i++) {
        /* Acquire: what the actors wrote before they raised it. */
        if (atomic_load_explicit(flag, memory_order_acquire) >= value)
            return true;
        nap();
    }
    return false;
}

/* Asleep with nothing in its mailboxes: whoever has put something into a lane has woken the receiver. */
static uint64_t work_done(const struct ts_rig *rig, bool *idle)
{
    uint64_t sum = 0;
    *idle = true;
    for (int i = 0; i < rig->config.workers; i++) {
        struct act_stats_worker s;
        act_stats_worker(rig->rt, i, &s);
        sum += s.turns + s.batches + s.sent + s.timers;
        *idle = *idle && s.turns > 0 && s.turn_age_ns == 0 && s.waiting == 0 && s.runnable == 0;
    }
    return sum;
}

void ts_rig_settle(struct ts_rig *rig)
{
    if (rig->mode == TS_RIG_SIM) {
        act_sim_run(rig->sim, act_sim_now(rig->sim) + INT64_C(1000000000), 5000000);
        return;
    }
    /* All asleep at three looks, and nobody did anything in between. */
    uint64_t last = UINT64_MAX;
    for (int i = 0, still = 0; i < 40000 && still < 3; i++) {
        bool idle;
        uint64_t now = work_done(rig, &idle);
        still = idle && now == last ? still + 1 : 0;
        last = now;
        nap();
    }
}

int ts_rig_close(struct ts_rig *rig)
{
    int left = 0;
    if (rig->mode == TS_RIG_THREADS)
        act_runtime_stop(rig->rt);
    for (int i = 0; i < rig->config.workers; i++)
        for (int j = 0; j < rig->config.workers; j++) {
            int messages = 0, requests = 0;
            act_stats_lane(rig->rt, i, j, &messages, &requests);
            left += abs(messages) + abs(requests);
        }
    if (rig->mode == TS_RIG_SIM)
        act_sim_free(rig->sim);
    else
        act_runtime_free(rig->rt);
    return left;
}
