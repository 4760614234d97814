#include "actors/steptime.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Of an observed deviation (as a logarithm), what the scale and the neighbouring points take over. */
static const double SCALE_GAIN = 1.0 / 16, POINT_GAIN = 1.0 / 64, DEVIATION_MAX = 0.35;

void act_steptime_init(struct act_steptime *t, int block)
{
    *t = (struct act_steptime){.block = block, .verify_scale = 1, .draft_scale = 1};
}

static void settle(struct act_steptime_curve *c)
{
    for (int i = 0; i < c->n; i++)
        c->ns[i] = i && c->ns[i - 1] > c->raw[i] ? c->ns[i - 1] : c->raw[i];
}

int act_steptime_add(struct act_steptime_curve *c, int at, double ns)
{
    if (at < 1 || !(ns > 0) || !isfinite(ns))
        return -EINVAL;
    int i = 0;
    while (i < c->n && c->at[i] < at)
        i++;
    if (i == c->n || c->at[i] != at) {
        if (c->n == ACT_STEPTIME_POINTS)
            return -ENOSPC;
        memmove(&c->at[i + 1], &c->at[i], (size_t)(c->n - i) * sizeof *c->at);
        memmove(&c->raw[i + 1], &c->raw[i], (size_t)(c->n - i) * sizeof *c->raw);
        c->n++;
    }
    c->at[i] = at;
    c->raw[i] = ns;
    settle(c);
    return 0;
}

/* The first point at or behind `at`; c->n: there is none. */
static int point_behind(const struct act_steptime_curve *c, int at)
{
    int i = 0;
    while (i < c->n && c->at[i] < at)
        i++;
    return i;
}

double act_steptime_at(const struct act_steptime *t, const struct act_steptime_curve *c, int at)
{
    if (!c->n)
        return 0;
    int i = point_behind(c, at);
    if (i == 0)
        return c->ns[0];
    if (i == c->n) {
        int last = c->n - 1;
        double slope = c->n > 1 ? (c->ns[last] - c->ns[last - 1]) / (c->at[last] - c->at[last - 1]) : 0;
        return c->ns[last] + slope * (at - c->at[last]);
    }
    if (t->padded || c->at[i] == at)
        return c->ns[i];
    double part = (double)(at - c->at[i - 1]) / (c->at[i] - c->at[i - 1]);
    return c->ns[i - 1] + part * (c->ns[i] - c->ns[i - 1]);
}

bool act_steptime_usable(const struct act_steptime *t)
{
    return t->plain.n > 0 && (!t->block || (t->full.n > 0 && t->draft.n > 0));
}

/* 0: one row per request, 1: whole blocks. */
static double draft_part(const struct act_steptime *t, int requests, int rows)
{
    if (!t->block || !t->full.n || rows <= requests)
        return 0;
    double part = (double)(rows - requests) / rows * (t->block + 1) / t->block;
    return part < 1 ? part : 1;
}

static double own_verify_ns(const struct act_steptime *t, int requests, int rows)
{
    double part = draft_part(t, requests, rows), plain = act_steptime_at(t, &t->plain, rows);
    return part > 0 ? (1 - part) * plain + part * act_steptime_at(t, &t->full, rows) : plain;
}

double act_steptime_verify_ns(const struct act_steptime *t, int requests, int rows, int shard_rows)
{
    double ns = own_verify_ns(t, requests, rows);
    if (shard_rows > rows && t->expert_share > 0)
        ns += t->expert_share * (own_verify_ns(t, requests, shard_rows) - ns);
    return t->verify_scale * ns;
}

double act_steptime_draft_ns(const struct act_steptime *t, int requests, int drafts)
{
    if (requests < 1 || drafts < 1)
        return 0;
    return t->draft_scale * (act_steptime_at(t, &t->draft, requests) + drafts * t->pick_ns);
}

/* Moves the points around `at` by their nearness. */
static void nudge(struct act_steptime_curve *c, int at, double deviation)
{
    int i = point_behind(c, at);
    if (i == c->n)
        i--;
    if (i < 0)
        return;
    double near = i && c->at[i] > at ? (double)(at - c->at[i - 1]) / (c->at[i] - c->at[i - 1]) : 1;
    c->raw[i] *= exp(POINT_GAIN * near * deviation);
    if (near < 1)
        c->raw[i - 1] *= exp(POINT_GAIN * (1 - near) * deviation);
    settle(c);
}

/* NaN: the figure says nothing. */
static double deviation_of(double seen, double expected)
{
    if (!(seen > 0) || !(expected > 0) || !isfinite(seen))
        return NAN;
    double d = log(seen / expected);
    return d > DEVIATION_MAX ? DEVIATION_MAX : d < -DEVIATION_MAX ? -DEVIATION_MAX : d;
}

void act_steptime_observe(struct act_steptime *t, int requests, int drafts, int rows, int shard_rows, double draft_ns,
                          double verify_ns)
{
    if (requests < 1 || rows < requests)
        return;
    double d = deviation_of(verify_ns, act_steptime_verify_ns(t, requests, rows, shard_rows));
    if (!isnan(d)) {
        double part = draft_part(t, requests, rows);
        t->verify_scale *= exp(SCALE_GAIN * d);
        nudge(&t->plain, rows, (1 - part) * d);
        if (part > 0)
            nudge(&t->full, rows, part * d);
    }
    d = deviation_of(draft_ns, act_steptime_draft_ns(t, requests, drafts));
    if (drafts > 0 && !isnan(d)) {
        t->draft_scale *= exp(SCALE_GAIN * d);
        nudge(&t->draft, requests, d);
    }
}
