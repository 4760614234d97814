#include "actors/steptime.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Of an observed deviation (as a logarithm), what the scale and the neighbouring points take over. */
static const double SCALE_GAIN = 1.0 / 16, POINT_GAIN = 1.0 / 64, DEVIATION_MAX = 0.35, POINT_DEVIATION_MAX = 0.15;
static const double DEPTH_GAIN = 1.0 / 64, PICK_GAIN = 1.0 / 16;

/* What the measurement of a point counts for beside rounds that were seen. */
enum { MEASURED_ROUNDS = 6 };

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
        memmove(&c->seen[i + 1], &c->seen[i], (size_t)(c->n - i) * sizeof *c->seen);
        c->n++;
    }
    c->at[i] = at;
    c->raw[i] = ns;
    c->seen[i] = 0;
    settle(c);
    return 0;
}

int act_steptime_add_batch(struct act_steptime *t, int requests, int drafts, double ns)
{
    int at = requests * (drafts + 1), i = 0;
    if (!drafts || drafts >= t->block)
        return act_steptime_add(drafts ? &t->full : &t->plain, at, ns);
    while (i < t->n_between && t->between[i].drafts < drafts)
        i++;
    if (i == t->n_between || t->between[i].drafts != drafts) {
        if (t->n_between == ACT_STEPTIME_BETWEEN)
            return -ENOSPC;
        memmove(&t->between[i + 1], &t->between[i], (size_t)(t->n_between - i) * sizeof t->between[0]);
        t->between[i] = (struct act_steptime_level){.drafts = drafts};
        t->n_between++;
    }
    return act_steptime_add(&t->between[i].curve, at, ns);
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

static int doubt_curve(const struct act_steptime_curve *c, double least, double noise, const char **why)
{
    for (int i = 0; i < c->n; i++) {
        *why = !(c->raw[i] >= least)               ? "is less than a machine can take"
               : !(c->raw[i] <= ACT_STEPTIME_MOST) ? "is more than a step takes"
               : c->raw[i] * noise < c->ns[i]      ? "is a fraction of the time of fewer rows, more than noise"
                                                   : NULL;
        if (*why)
            return i + 1;
    }
    return 0;
}

/* Batches that verify so many drafts per request, beside those of as many requests without any. */
static int doubt_drafts(const struct act_steptime *t, const struct act_steptime_curve *c, int drafts, const char **why)
{
    *why = "is a fraction of the time without drafts, more than noise";
    for (int i = 0; i < c->n; i++) {
        int requests = c->at[i] / (drafts + 1);
        if (requests && requests <= t->plain.at[t->plain.n - 1] &&
            c->raw[i] * ACT_STEPTIME_NOISE < act_steptime_at(t, &t->plain, requests))
            return i + 1;
    }
    return 0;
}

const char *act_steptime_doubt(const struct act_steptime *t, int *point, const char **why)
{
    if ((*point = doubt_curve(&t->plain, ACT_STEPTIME_VERIFY_LEAST, ACT_STEPTIME_NOISE, why)))
        return "plain";
    if ((*point = doubt_curve(&t->full, ACT_STEPTIME_VERIFY_LEAST, ACT_STEPTIME_NOISE, why)) ||
        (t->plain.n && (*point = doubt_drafts(t, &t->full, t->block, why))))
        return "full";
    for (int i = 0; i < t->n_between; i++) {
        const struct act_steptime_level *l = &t->between[i];
        if ((*point = doubt_curve(&l->curve, ACT_STEPTIME_VERIFY_LEAST, ACT_STEPTIME_NOISE, why)) ||
            (t->plain.n && (*point = doubt_drafts(t, &l->curve, l->drafts, why))))
            return "between";
    }
    /* What is left of a pass without its picks may be a tenth of it (steptime_measure.c). */
    return (*point = doubt_curve(&t->draft, ACT_STEPTIME_DRAFT_LEAST, 10 * ACT_STEPTIME_NOISE, why)) ? "draft" : NULL;
}

/* Somewhat more than the bound, for the digits that a file keeps. */
static void raise_to(struct act_steptime_curve *c, int i, double from, double noise)
{
    double least = 1.0001 * from / noise;
    c->raw[i] = c->raw[i] > least ? c->raw[i] : least;
}

static void settle_verify(const struct act_steptime *t, struct act_steptime_curve *c, int drafts)
{
    for (int i = 0; drafts && t->plain.n && i < c->n; i++) {
        int requests = c->at[i] / (drafts + 1);
        if (requests && requests <= t->plain.at[t->plain.n - 1])
            raise_to(c, i, act_steptime_at(t, &t->plain, requests), ACT_STEPTIME_NOISE);
    }
    settle(c);
    for (int i = 0; i < c->n; i++)
        raise_to(c, i, c->ns[i], ACT_STEPTIME_NOISE);
}

void act_steptime_settle(struct act_steptime *t)
{
    settle_verify(t, &t->plain, 0);
    settle_verify(t, &t->full, t->block);
    for (int i = 0; i < t->n_between; i++)
        settle_verify(t, &t->between[i].curve, t->between[i].drafts);
    for (int i = 0; i < t->draft.n; i++)
        raise_to(&t->draft, i, t->draft.ns[i], 10 * ACT_STEPTIME_NOISE);
}

/* 0: one row per request, 1: whole blocks. */
static double draft_part(const struct act_steptime *t, int requests, int rows)
{
    if (!t->block || !t->full.n || rows <= requests)
        return 0;
    double part = (double)(rows - requests) / rows * (t->block + 1) / t->block;
    return part < 1 ? part : 1;
}

/* Where a batch lies: between `low` and `high`, at those rows, `part` of the way. */
struct between {
    struct act_steptime_curve *low, *high;
    int low_at, high_at;
    double part;
};

/* Whether a level says something of so many requests: it was measured for them, or for as many as any other. */
static bool covers(const struct act_steptime *t, const struct act_steptime_level *l, int requests)
{
    int most = l->curve.n ? l->curve.at[l->curve.n - 1] / (l->drafts + 1) : 0;
    return most && (requests <= most || most >= t->plain.at[t->plain.n - 1]);
}

static struct between place(struct act_steptime *t, int requests, int rows)
{
    if (!t->n_between || rows <= requests)
        return (struct between){&t->plain, &t->full, rows, rows, draft_part(t, requests, rows)};
    if (rows > requests * (t->block + 1)) /* rows of others: as of more requests with whole blocks */
        requests = (rows + t->block) / (t->block + 1);
    double per = (double)(rows - requests) / requests;
    int low = 0, high = t->block;
    struct between b = {&t->plain, &t->full, requests, (t->block + 1) * requests, 0};
    for (int i = 0; i < t->n_between; i++) {
        struct act_steptime_level *l = &t->between[i];
        if (!covers(t, l, requests))
            continue;
        if (l->drafts <= per) {
            low = l->drafts;
            b.low = &l->curve;
            b.low_at = (low + 1) * requests;
        } else {
            high = l->drafts;
            b.high = &l->curve;
            b.high_at = (high + 1) * requests;
            break;
        }
    }
    b.part = high > low ? (per - low) / (high - low) : 0;
    return b;
}

/* The longest of the levels up to `drafts`, so that more drafts are not cheaper. */
static double level_ns(const struct act_steptime *t, const struct act_steptime_curve *c, int requests, int at)
{
    double ns = act_steptime_at(t, c, at);
    double least = c == &t->plain ? 0 : act_steptime_at(t, &t->plain, requests);
    for (int i = 0; i < t->n_between && c != &t->plain; i++) {
        const struct act_steptime_level *l = &t->between[i];
        if ((l->drafts + 1) * requests < at && covers(t, l, requests)) {
            double below = act_steptime_at(t, &l->curve, (l->drafts + 1) * requests);
            least = below > least ? below : least;
        }
    }
    return ns > least ? ns : least;
}

static double own_verify_ns(const struct act_steptime *t, int requests, int rows)
{
    struct between b = place((struct act_steptime *)t, requests, rows);
    if (!t->n_between || rows <= requests) {
        double plain = act_steptime_at(t, b.low, b.low_at);
        return b.part > 0 ? (1 - b.part) * plain + b.part * act_steptime_at(t, b.high, b.high_at) : plain;
    }
    if (rows > requests * (t->block + 1))
        requests = (rows + t->block) / (t->block + 1);
    double low = level_ns(t, b.low, requests, b.low_at);
    return b.part > 0 ? (1 - b.part) * low + b.part * level_ns(t, b.high, requests, b.high_at) : low;
}

double act_steptime_verify_ns(const struct act_steptime *t, int requests, int rows, int other_rows)
{
    double ns = own_verify_ns(t, requests, rows);
    if (other_rows > 0 && t->expert_share > 0)
        ns += t->expert_share * (own_verify_ns(t, requests, rows + other_rows) - ns);
    return t->verify_scale * ns;
}

double act_steptime_draft_ns(const struct act_steptime *t, int requests, int drafts)
{
    if (requests < 1 || drafts < 1)
        return 0;
    return t->draft_scale * (act_steptime_at(t, &t->draft, requests) + drafts * t->pick_ns);
}

static void nudge_point(struct act_steptime_curve *c, int i, double near, double deviation)
{
    double gain = 1.0 / (MEASURED_ROUNDS + c->seen[i]), most = POINT_DEVIATION_MAX;
    deviation = deviation > most ? most : deviation < -most ? -most : deviation;
    c->raw[i] *= exp((gain > POINT_GAIN ? gain : POINT_GAIN) * near * deviation);
    c->seen[i] += near >= 0.5 && c->seen[i] < 1 << 20;
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
    nudge_point(c, i, near, deviation);
    if (near < 1)
        nudge_point(c, i - 1, 1 - near, deviation);
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

/* The pass takes a round's error as other points do. What a token costs follows the errors of rounds with more drafts
 * per request than usual, less those of rounds with fewer: only the difference between depths tells it from the pass.
 */
static void observe_draft(struct act_steptime *t, int requests, int drafts, double d)
{
    double per = (double)drafts / requests, error = (exp(d) - 1) * act_steptime_draft_ns(t, requests, drafts);
    t->usual_depth += (per - t->usual_depth) * (t->usual_depth > 0 ? DEPTH_GAIN : 1);
    double more = per - t->usual_depth, pick = t->pick_ns;
    pick += PICK_GAIN * more / (1 + per * per) * error / (t->draft_scale * requests);
    t->pick_ns = pick > 0 ? pick : 0;
    nudge(&t->draft, requests, d);
}

void act_steptime_observe(struct act_steptime *t, int requests, int drafts, int rows, int other_rows, double draft_ns,
                          double verify_ns)
{
    if (requests < 1 || rows < requests)
        return;
    double d = deviation_of(verify_ns, act_steptime_verify_ns(t, requests, rows, other_rows));
    if (!isnan(d)) {
        struct between b = place(t, requests, rows);
        t->verify_scale *= exp(SCALE_GAIN * d);
        nudge(b.low, b.low_at, (1 - b.part) * d);
        if (b.part > 0)
            nudge(b.high, b.high_at, b.part * d);
    }
    d = deviation_of(draft_ns, act_steptime_draft_ns(t, requests, drafts));
    if (drafts > 0 && !isnan(d)) {
        observe_draft(t, requests, drafts, d);
        t->draft_scale *= exp(SCALE_GAIN * d);
    }
}
