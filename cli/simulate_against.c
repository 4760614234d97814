/* What the simulation says beside what `weft bench serve` has measured. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/simulate_measure.h"
#include "model/json_file.h"

static double member(const json_t *j, const char *a, const char *b)
{
    const json_t *v = json_object_get(j, a);
    v = b ? json_object_get(v, b) : v;
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void print_row(const char *name, double scale, double measured, double predicted)
{
    char text[2][24] = {"-", "-"};
    if (isfinite(measured))
        snprintf(text[0], sizeof text[0], "%.4g", scale * measured);
    if (isfinite(predicted))
        snprintf(text[1], sizeof text[1], "%.4g", scale * predicted);
    printf("  %-26s %12s %12s", name, text[0], text[1]);
    if (measured > 0 && isfinite(predicted))
        printf(" %+8.1f %%", 100 * (predicted / measured - 1));
    printf("\n");
}

static void print_point(const json_t *point, const struct sim_outcome *o)
{
    static const struct {
        const char *name, *key;
        size_t at;
    } rows[] = {
        {"first token", "first_token_seconds", offsetof(struct sim_outcome, first_token)},
        {"between pieces", "inter_token_seconds", offsetof(struct sim_outcome, gap)},
        {"end to end", "end_to_end_seconds", offsetof(struct sim_outcome, whole)},
        {"queue", "queue_seconds", offsetof(struct sim_outcome, queue)},
    };
    print_row("tokens per second", 1, member(point, "output_tokens_per_second", NULL), (double)o->tokens / o->seconds);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct sim_histogram *h = (const void *)((const char *)o + rows[i].at);
        char name[40];
        snprintf(name, sizeof name, "%s mean, ms", rows[i].name);
        print_row(name, 1e3, member(point, rows[i].key, "mean"), h->n ? h->sum / (double)h->n : NAN);
        snprintf(name, sizeof name, "%s p50, ms", rows[i].name);
        print_row(name, 1e3, member(point, rows[i].key, "p50"), sim_histogram_quantile(h, 0.5));
        snprintf(name, sizeof name, "%s p99, ms", rows[i].name);
        print_row(name, 1e3, member(point, rows[i].key, "p99"), sim_histogram_quantile(h, 0.99));
    }
}

static int run_point(const struct sim_profile *p, const struct act_plan_options *plan, const json_t *point,
                     uint64_t seed, struct cfg_error *err)
{
    static struct sim_outcome outcome;
    bool open = json_object_get(point, "requests_per_second") != NULL;
    double load = member(point, open ? "requests_per_second" : "concurrency", NULL);
    double requests = member(point, "requests", NULL);
    if (!(load > 0 && load <= 1e6) || !(requests >= 1 && requests <= 1e6))
        return cfg_error_set(err, EINVAL, "a point without load or requests");
    const struct sim_world_options o = {.plan = *plan, .decode = p->decode, .prefill = p->prefill, .seed = seed};
    const struct sim_load l = {.concurrency = open ? 0 : (int)load,
                               .rate = open ? load : 0,
                               .requests = (int)requests,
                               .speed = 1,
                               .fixed_lengths = true,
                               .block_tokens = p->block_tokens,
                               .seed = seed};
    int r = sim_world_run(p, &o, &l, &outcome, err);
    if (r)
        return r;
    printf("%s %g: %26s %12s %10s\n", open ? "requests per second" : "requests at a time", load, "measured",
           "predicted", "");
    print_point(point, &outcome);
    return 0;
}

/* Whether a server that says of itself how it drafts does so in the way that is to be predicted. */
static bool same_drafts(const char *says, const struct act_plan_options *plan, int block)
{
    int n = 0;
    if (!strcmp(says, "off"))
        return plan->mode == ACT_PLAN_OFF;
    if (sscanf(says, "fixed: %d a step", &n) == 1)
        return plan->mode == ACT_PLAN_FIXED && plan->length == n;
    if (sscanf(says, "dynamic: up to %d a step", &n) == 1)
        return plan->mode == ACT_PLAN_DYNAMIC && block == n &&
               (plan->budget == ACT_PLAN_EARLY_STOP) == (strstr(says, "budget early_stop") != NULL);
    return false;
}

/* A prediction beside another model's figures, or another way of drafting, would be taken for an error of prediction.
 */
static int check_server(const struct sim_profile *p, const char *mode, const struct act_plan_options *plan,
                        const json_t *server, const char *file, struct cfg_error *err)
{
    const char *revision = json_string_value(json_object_get(server, "model_revision")),
               *drafts = json_string_value(json_object_get(server, "speculation"));
    if (revision && p->model_revision[0] && strcmp(revision, p->model_revision))
        return cfg_error_set(err, EINVAL, "%s is of the model of revision %.16s, the profile of that of %s", file,
                             revision, p->model_revision);
    if (drafts && !same_drafts(drafts, plan, p->block))
        return cfg_error_set(
            err, EINVAL,
            "--against %s: its server drafted \"%.60s\", and --modes %s of a profile with blocks of %d "
            "is another way",
            file, drafts, mode, p->block);
    return 0;
}

int sim_against(struct sim_profile *p, const char *mode, const struct act_plan_options *plan, const char *file,
                uint64_t seed, struct cfg_error *err)
{
    json_t *j;
    size_t i;
    const json_t *point;
    int r = mdl_json_file(file, &j, err);
    if (r)
        return r;
    const json_t *conditions = json_object_get(j, "conditions"), *points = json_object_get(j, "points");
    double prompt = member(conditions, "prompt_tokens", NULL), output = member(conditions, "max_tokens", NULL);
    if (!json_array_size(points) || !(prompt >= 1 && prompt <= 1 << 22) || !(output >= 1 && output <= 1 << 22))
        r = cfg_error_set(err, EINVAL, "%s is not what `weft bench serve --json` writes for made up prompts", file);
    if (!r && prompt + output > p->context)
        r = cfg_error_set(err, EINVAL,
                          "%s: prompts of %g and answers of %g tokens are more than the profile's context of %d", file,
                          prompt, output, p->context);
    if (!r)
        r = check_server(p, mode, plan, json_object_get(conditions, "server"), file, err);
    p->prompt_tokens = r ? 1 : (int)prompt;
    p->output_tokens = r ? 1 : (int)output;
    if (!r)
        printf("%s\nmode %s; prompts of %d and answers of %d tokens; load average before the measurement %.1f\n",
               p->name, mode, p->prompt_tokens, p->output_tokens, member(conditions, "load_average_before", NULL));
    for (i = 0; !r && i < json_array_size(points); i++) {
        point = json_array_get(points, i);
        r = run_point(p, plan, point, seed, err);
    }
    json_decref(j);
    return r;
}
