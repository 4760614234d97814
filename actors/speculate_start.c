#include "actors/speculate_start.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "actors/runtime/log.h"
#include "actors/steptime_file.h"

static int64_t monotonic_now(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void read_calibration(const struct cfg_config *c, struct act_log *log, struct act_engine *e)
{
    char path[CFG_PATH_TEXT + 32];
    struct cfg_error why;
    snprintf(path, sizeof path, "%s/" MDL_CALIBRATION_FILE, c->model.path);
    int r = mdl_calibration_read(path, e->m->ck->revision, e->m->cfg->draft_block, &e->calibration, &why);
    if (r && r != -ENOENT)
        act_log_write(log, ACT_LOG_WARNING, "serve", 0, "confidences are used as they are: %s", why.msg);
}

/* The ways of choosing that have a vector of their own; the others use the head as it is. */
static const char *calibrated(const struct mdl_calibration *c, char out[32])
{
    size_t n = 0;
    for (int m = 0; m < MDL_CHOICES; m++)
        if (c->fitted[m])
            n += (size_t)snprintf(out + n, 32 - n, "%s%s", n ? "," : "", mdl_choice_names[m]);
    return n ? out : "no";
}

static int make_table(const struct cfg_config *c, struct act_log *log, struct act_engine *e, struct cfg_error *err)
{
    struct act_steptime_identity id;
    struct cfg_error why;
    const char *path = c->speculation.table_file;
    act_steptime_identity(e->m, e->limits.streams, ACT_STEPTIME_CONTEXT, &id);
    int r = path[0] ? act_steptime_read(path, &id, e->limits.draft, &e->steptime, &why) : -ENOENT;
    if (!r) {
        act_log_event(log, ACT_LOG_INFO, "serve", 0, "step_times", "source=file path=%s", path);
        return 0;
    }
    if (r != -ENOENT)
        act_log_write(log, ACT_LOG_WARNING, "serve", 0, "step times are measured anew: %s", why.msg);
    int64_t began = monotonic_now(NULL);
    const struct act_steptime_measure how = {.streams = e->limits.streams,
                                             .block = e->limits.draft,
                                             .context = ACT_STEPTIME_CONTEXT,
                                             .limit_ns = c->speculation.measure_us * 1000,
                                             .now = monotonic_now};
    r = act_steptime_measure(e->m, &how, &e->steptime, err);
    if (r)
        return r;
    act_log_event(log, ACT_LOG_INFO, "serve", 0, "step_times",
                  "source=measured sizes=%d largest=%d streams=%d seconds=%.2f", e->steptime.plain.n,
                  e->steptime.plain.at[e->steptime.plain.n - 1], e->limits.streams,
                  1e-9 * (double)(monotonic_now(NULL) - began));
    if (path[0] && act_steptime_write(path, &id, &e->steptime, &why))
        act_log_write(log, ACT_LOG_WARNING, "serve", 0, "step times are not kept: %s", why.msg);
    return 0;
}

int act_speculation_prepare(const struct cfg_config *c, struct act_log *log, bool decodes, struct act_engine *e,
                            struct cfg_error *err)
{
    static const char *const mode_name[] = {"off", "fixed", "dynamic"};
    int block = e->m->cfg->n_draft ? e->m->cfg->draft_block : 0;
    bool off = !block || c->speculation.mode == CFG_SPECULATION_OFF || !c->speculation.draft_length;
    e->limits.draft = off ? 0 : c->speculation.draft_length < block ? c->speculation.draft_length : block;
    e->plan = (struct act_plan_options){.mode = off                                            ? ACT_PLAN_OFF
                                                : c->speculation.mode == CFG_SPECULATION_FIXED ? ACT_PLAN_FIXED
                                                                                               : ACT_PLAN_DYNAMIC,
                                        .budget = c->speculation.budget == CFG_BUDGET_EARLY_STOP ? ACT_PLAN_EARLY_STOP
                                                                                                 : ACT_PLAN_LAGGED,
                                        .length = e->limits.draft,
                                        .min_gain = c->speculation.min_gain,
                                        .probe_share = c->speculation.probe_share};
    mdl_calibration_identity(&e->calibration, block);
    act_steptime_init(&e->steptime, e->limits.draft);
    e->log = log;
    e->rejection = !off && c->speculation.acceptance == CFG_ACCEPTANCE_REJECTION;
    char list[32];
    int r = 0;
    if (!decodes)
        return 0;
    if (!off)
        read_calibration(c, log, e);
    if (e->plan.mode == ACT_PLAN_DYNAMIC)
        r = make_table(c, log, e, err);
    if (!r)
        act_log_event(log, ACT_LOG_INFO, "serve", 0, "speculation", "mode=%s length=%d acceptance=%s calibrated=%s",
                      mode_name[e->plan.mode], e->limits.draft, e->rejection ? "rejection" : "match",
                      calibrated(&e->calibration, list));
    return r;
}

void act_speculation_describe(const struct act_engine *e, char *out, size_t size)
{
    const char *acceptance = e->rejection ? "rejection" : "match";
    if (e->plan.mode == ACT_PLAN_OFF)
        snprintf(out, size, "off");
    else if (e->plan.mode == ACT_PLAN_FIXED)
        snprintf(out, size, "fixed: %d a step, acceptance %s", e->plan.length, acceptance);
    else
        snprintf(out, size, "dynamic: up to %d a step, budget %s, acceptance %s", e->plan.length,
                 e->plan.budget == ACT_PLAN_EARLY_STOP ? "early_stop" : "lagged", acceptance);
}
