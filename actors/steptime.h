/* How long a decoding round takes on this machine, as a function of its requests and rows: what the planner weighs
 * drafts against.
 *
 * A table has curves over measured points. `plain` is the time of a verification with one row per request, `full` that
 * of one with a whole block of drafts per request, `between` those of so many drafts: drafts of one request cost other
 * things (experts, history) than rows of many requests, the first ones cost more than the last where experts are mixed,
 * and kernels take rows in tiles. A batch lies between two of these curves by its drafts per request, at its own number
 * of requests. Tables of other machines may have `plain` and `full` alone; there a batch lies between them at its own
 * number of rows, by its share of drafts. `draft` is the drafter's pass by requests, and every token that it picks
 * costs `pick_ns` on top. Lookups never fall with rows: noise must not make more work look cheaper.
 *
 * A plain object without clocks or files of its own; one owner. Measuring, reading and writing: steptime_file.h,
 * steptime_measure.h. Times are ns. */
#ifndef WEFT_ACTORS_STEPTIME_H
#define WEFT_ACTORS_STEPTIME_H

#include <stdbool.h>

enum { ACT_STEPTIME_POINTS = 48, ACT_STEPTIME_BETWEEN = 6 };

/* Ascending in at. Between points: a straight line, or with `padded` the next point, as where a batch is padded to a
 * measured size. Beyond the last point: the slope of the last piece. Before the first: the first. */
struct act_steptime_curve {
    int n;
    int at[ACT_STEPTIME_POINTS];
    double raw[ACT_STEPTIME_POINTS]; /* as measured and refreshed */
    double ns[ACT_STEPTIME_POINTS];  /* running maximum of raw */
    int seen[ACT_STEPTIME_POINTS];   /* rounds that have refreshed it */
};

struct act_steptime {
    int block; /* drafts per request on the `full` curve */
    bool padded;
    struct act_steptime_curve plain, full; /* by rows */
    struct act_steptime_level {
        int drafts; /* per request, ascending, 1..block-1 */
        struct act_steptime_curve curve;
    } between[ACT_STEPTIME_BETWEEN];
    int n_between;
    struct act_steptime_curve draft; /* by requests */
    double pick_ns;
    double usual_depth; /* drafts per request of late; 0: none yet */
    /* Share of a verification that is spent in expert shards; grows with the rows of others that these reported. 0:
     * unknown, their report is not used. */
    double expert_share;
    /* Kept by act_steptime_observe: what the machine takes now against the table as a whole. */
    double verify_scale, draft_scale;
};

/* An empty table of a block of so many drafts; scales 1. */
void act_steptime_init(struct act_steptime *t, int block);
/* Adds a point, or replaces the one at the same place. -ENOSPC when the curve is full, -EINVAL for at < 1 or ns that is
 * not positive and finite. */
int act_steptime_add(struct act_steptime_curve *c, int at, double ns);
/* The same for a batch of requests that verify so many drafts each, 0..block. -ENOSPC: too many different numbers. */
int act_steptime_add_batch(struct act_steptime *t, int requests, int drafts, double ns);
double act_steptime_at(const struct act_steptime *t, const struct act_steptime_curve *c, int at);
/* Whether there is enough in it to plan with. */
bool act_steptime_usable(const struct act_steptime *t);

/* Bounds of what a machine can take: for a verification, for a drafter's pass and for a token that it picks, ns. */
#define ACT_STEPTIME_VERIFY_LEAST 1e3
#define ACT_STEPTIME_DRAFT_LEAST 1e2
#define ACT_STEPTIME_MOST 1e12
#define ACT_STEPTIME_PICK_MOST 1e9
/* More rows take no less time, but for noise, which the lookups take out: by so many times is none. */
#define ACT_STEPTIME_NOISE 4
/* Whether its times can be those of a machine: within those bounds, none below the largest before it by more than
 * noise, and drafts not cheaper than none by more than that. Of a table from outside. NULL, or the name of the curve
 * that is wrong, with the point (from 1) and a reason. */
const char *act_steptime_doubt(const struct act_steptime *t, int *point, const char **why);
/* Of a table that was measured on a machine with other work, where a slow spell falls on some points and not on others:
 * raises what is so far below the others that it would be doubted, to what is just believed. */
void act_steptime_settle(struct act_steptime *t);

/* Verification of rows (at least one per request). other_rows: rows of other sources that the busiest expert shard
 * worked on together with this one's when it last reported, in proportion to all of this one's rows; 0: none, or
 * nothing is known. They lengthen the share of the experts whatever this source does. */
double act_steptime_verify_ns(const struct act_steptime *t, int requests, int rows, int other_rows);
/* A drafter's pass over so many requests that picks so many tokens in all; 0 for none. */
double act_steptime_draft_ns(const struct act_steptime *t, int requests, int drafts);

/* A round took that long. Moves the scales, and the points next to it, each step bounded: one odd round changes little,
 * and a slow spell lifts every choice alike, so that the planner does not swing between them. A point that has seldom
 * been seen moves faster: it rests on the few rounds of its measurement, and choices that it keeps from being made
 * would never correct it. */
void act_steptime_observe(struct act_steptime *t, int requests, int drafts, int rows, int other_rows, double draft_ns,
                          double verify_ns);

#endif
