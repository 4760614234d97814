/* Which blocks a Decode actor logs for `weft calibrate`: all of the rounds that were to be verified whole whatever the
 * drafter would say, and none that was verified whole because it looked good. */
#include "tests/harness.h"

#include "actors/runtime/log.h"
#include "tests/support/engine_world.h"
#include "tests/support/process.h"

enum { REQUESTS = 4, NEW = 100, STEPS = 4 * NEW };

/* A request's part in a round, as its tokens tell. */
struct part {
    int64_t made_at; /* of the same round: the same */
    int request, drafted, offered;
};

struct seen {
    struct part part[STEPS];
    int n, drafted[REQUESTS], offered[REQUESTS], steps[REQUESTS];
};

static void on_tokens(void *ctx, struct act_msg *m)
{
    struct seen *s = ctx;
    const struct act_p_tokens *p = act_p_tokens(m);
    int i = (int)m->request - 1;
    if (!p->count)
        return;
    const struct act_b_tokens *b = act_b_tokens(m);
    if (!b->steps)
        return; /* the prompt's own token */
    cr_assert_eq((int)b->steps, s->steps[i] + 1, "a message for every step");
    cr_assert_lt(s->n, STEPS);
    s->part[s->n++] = (struct part){.made_at = b->made_at,
                                    .request = i,
                                    .drafted = (int)p->drafted - s->drafted[i],
                                    .offered = (int)b->offered - s->offered[i]};
    s->steps[i] = (int)b->steps;
    s->drafted[i] = (int)p->drafted;
    s->offered[i] = (int)b->offered;
}

struct counts {
    int logged; /* blocks in the log */
    int whole;  /* blocks that were verified whole, also those in which a request ended */
    int fair;   /* of these, in rounds that verified all that was drafted */
};

static struct counts count(const struct seen *s, int block)
{
    struct counts c = {0};
    for (int i = 0; i < s->n; i++) {
        const struct part *p = &s->part[i];
        int trimmed = 0;
        for (int k = 0; k < s->n; k++)
            if (s->part[k].made_at == p->made_at)
                trimmed += s->part[k].drafted - s->part[k].offered;
        bool whole = p->offered == block;
        c.whole += whole;
        c.fair += whole && !trimmed;
    }
    return c;
}

/* row_ns: of a round's 1000 ns and more, each row. */
static struct counts run(const struct act_plan_options *plan, double row_ns)
{
    static struct ts_world w;
    static struct seen seen;
    char *dir = ts_temp_dir(), path[4200];
    snprintf(path, sizeof path, "%s/log", dir);
    const struct act_log_config config = {.path = path, .level = ACT_LOG_DEBUG, .direct = true};
    struct act_log *log;
    struct cfg_error err;
    memset(&seen, 0, sizeof seen);
    cr_assert_eq(act_log_open(&config, &log, &err), 0, "%s", err.msg);
    ts_world_open(&w, 96, 2);
    w.e.limits.replay = 0;
    w.e.limits.lease = 24;
    int block = w.m->cfg->draft_block;
    w.e.log = log;
    w.e.limits.draft = block;
    w.e.plan = *plan;
    w.e.plan.length = block;
    /* The first draft is sure or hopeless, in turn, the others are as sure as the first: a block looks good or bad. */
    for (int k = 0; k < block; k++)
        w.e.calibration.at[MDL_CHOICE_GREEDY][k] =
            k ? (struct mdl_calibration_place){1, 6} : (struct mdl_calibration_place){0.2, 0};
    w.e.calibration.fitted[MDL_CHOICE_GREEDY] = true;
    act_steptime_init(&w.e.steptime, block);
    for (int n = 1; n <= 64; n *= 2) {
        act_steptime_add(&w.e.steptime.plain, n, 1000 + row_ns * n);
        act_steptime_add(&w.e.steptime.full, n, 1000 + row_ns * n);
    }
    act_steptime_add(&w.e.steptime.draft, 1, 1);
    w.on_tokens = on_tokens;
    w.before_ctx = &seen;
    ts_world_split(&w, 96, MDL_HANDOFF_FULL); /* prompts do not wait for what decodes, so that requests run together */
    ts_world_requests(&w, REQUESTS, 7);
    for (int i = 0; i < w.n; i++) {
        w.wanted[i].max_new = NEW;
        w.wanted[i].temperature = 0;
        w.wanted[i].start = 1000;
    }
    ts_world_run(&w, 7);
    ts_world_close(&w);
    act_log_close(log);
    struct counts c = count(&seen, block);
    char *text = ts_read_file(path, NULL);
    for (const char *at = text; at && (at = strstr(at, "probe number=")); at++)
        c.logged++;
    free(text);
    ts_remove_dir(dir);
    free(dir);
    return c;
}

Test(probes, rounds_that_are_verified_whole_are_logged)
{
    struct counts c = run(&(struct act_plan_options){.mode = ACT_PLAN_FIXED}, 1);
    cr_expect_gt(c.fair, 50);
    cr_expect_eq(c.logged, c.fair);
    c = run(&(struct act_plan_options){.mode = ACT_PLAN_DYNAMIC}, 0.1);
    cr_expect_gt(c.fair, 50);
    cr_expect_eq(c.logged, c.fair);
}

/* Each of these rounds has blocks that are verified whole beside others that are not. */
Test(probes, blocks_that_were_verified_because_they_looked_good_are_not)
{
    static const double row_ns[] = {30, 60, 120};
    for (int i = 0; i < 3; i++) {
        struct counts c = run(&(struct act_plan_options){.mode = ACT_PLAN_DYNAMIC}, row_ns[i]);
        cr_expect_gt(c.whole, c.fair + 20, "%d whole blocks, %d fair ones", c.whole, c.fair);
        cr_expect_eq(c.logged, c.fair, "%d logged, %d fair ones", c.logged, c.fair);
    }
}

/* Every round stops by its own blocks, except the probes. */
Test(probes, early_stop_has_none_but_its_probes)
{
    struct act_plan_options o = {.mode = ACT_PLAN_DYNAMIC, .budget = ACT_PLAN_EARLY_STOP};
    struct counts c = run(&o, 30);
    cr_expect_gt(c.fair, 5, "rounds that happen to be whole");
    cr_expect_eq(c.logged, 0);
    o.probe_share = 0.2;
    c = run(&o, 400);
    cr_expect(c.logged > 0 && c.logged <= c.fair, "%d logged, %d fair ones", c.logged, c.fair);
}
