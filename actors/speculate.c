#include "actors/speculate.h"

#include <errno.h>
#include <stdlib.h>

int act_speculation_init(struct act_speculation *s, const struct act_plan_options *options, int block, int max_requests,
                         const struct act_steptime *table, const struct mdl_calibration *calibration)
{
    *s = (struct act_speculation){.calibration = calibration};
    if (table)
        s->table = *table;
    int r = act_plan_init(&s->plan, options, block, max_requests, table ? &s->table : NULL);
    s->request = calloc((size_t)max_requests, sizeof *s->request);
    s->spec = calloc((size_t)max_requests, sizeof *s->spec);
    return r ? r : s->request && s->spec ? 0 : -ENOMEM;
}

void act_speculation_free(struct act_speculation *s)
{
    act_plan_free(&s->plan);
    free(s->request);
    free(s->spec);
    s->request = NULL;
    s->spec = NULL;
}

void act_speculation_begin(struct act_speculation *s, struct mdl_stream *const *streams,
                           struct act_spec_stream *const *spec, int n, int other_rows)
{
    s->n = n;
    for (int i = 0; i < n; i++) {
        int cap = mdl_stream_draft_cap(streams[i]);
        s->spec[i] = spec[i];
        s->request[i].memory = &spec[i]->memory;
        s->request[i].cap = cap < spec[i]->room ? cap : spec[i]->room;
    }
    act_plan_draft(&s->plan, s->request, n, other_rows);
    for (int i = 0; i < n; i++)
        streams[i]->draft = s->request[i].draft;
}

void act_speculation_split(struct act_speculation *s, struct mdl_stream *const *streams, int n)
{
    for (int i = 0; i < n; i++) {
        const struct mdl_draft *g = &streams[i]->guess;
        s->request[i].drafted = g->n;
        for (int k = 0; k < g->n; k++)
            s->request[i].confidence[k] = mdl_calibrated(s->calibration, s->spec[i]->choice, k, g->confidence[k]);
    }
    act_plan_split(&s->plan, s->request, n);
    for (int i = 0; i < n; i++)
        streams[i]->offer = s->request[i].offer;
}

void act_speculation_end(struct act_speculation *s, double draft_ns, double verify_ns, bool refresh)
{
    act_plan_done(&s->plan, draft_ns, verify_ns, refresh);
}
