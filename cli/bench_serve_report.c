#include "cli/bench_serve_report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/conditions.h"
#include "cli/output.h"
#include "cli/plot.h"
#include "cli/result_file.h"
#include "cli/text.h"

enum { FORMAT = 1 };
static const double TIME_MAX = 1e6, TOKENS_MAX = 1e12;

const double bs_quantile[BS_QUANTILES] = {0.5, 0.9, 0.99};

static const char *const column_name[BS_COLUMNS] = {"first_token", "inter_token",    "end_to_end", "queue",
                                                    "prefill",     "first_delivery", "delivery",   "user_token"};

static double throughput(const struct bs_point *p)
{
    return (double)p->output_tokens / p->seconds;
}

/* ---- figures ---- */

static void set_column(struct bs_point *p, enum bs_column c, struct load_list *l)
{
    double sum = 0;
    for (int q = 0; q < BS_QUANTILES; q++)
        p->value[c][q] = load_list_quantile(l, bs_quantile[q]);
    for (size_t i = 0; i < l->n; i++)
        sum += l->v[i];
    p->mean[c] = l->n ? sum / (double)l->n : NAN;
}

static void count_sample(struct bs_point *p, const struct load_sample *s)
{
    p->requests++;
    p->whole += s->whole;
    p->refused += s->status == 429 || s->status == 503;
    p->failed += !s->whole && s->status != 429 && s->status != 503;
    p->prompt_tokens += s->whole && s->prompt_tokens > 0 ? s->prompt_tokens : 0; /* a server may not say them */
    p->output_tokens += s->whole ? s->output_tokens : 0;
}

void bs_take(struct bs_point *p, struct load_run *run, int n)
{
    struct load_list first = {0}, end = {0}, queue = {0}, prefill = {0}, user = {0};
    for (int i = 0; i < n; i++) {
        const struct load_sample *s = &run->sample[i];
        count_sample(p, s);
        if (s->first > 0)
            load_list_add(&first, s->first - s->start);
        if (s->whole)
            load_list_add(&end, s->end - s->start);
        if (s->queue >= 0)
            load_list_add(&queue, s->queue);
        if (s->prefill >= 0)
            load_list_add(&prefill, s->prefill);
        if (s->whole && s->output_tokens > 1 && s->first > 0 && s->last > s->first)
            load_list_add(&user, (s->last - s->first) / (s->output_tokens - 1));
    }
    p->seconds = run->ended - run->began;
    struct load_list *const lists[BS_COLUMNS] = {
        &first, &run->gap, &end, &queue, &prefill, &run->first_delivery, &run->delivery, &user};
    for (int c = 0; c < BS_COLUMNS; c++)
        set_column(p, (enum bs_column)c, lists[c]);
    free(first.v);
    free(end.v);
    free(queue.v);
    free(prefill.v);
    free(user.v);
}

/* ---- conditions ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));
    return v ? v : "unknown";
}

static int number_of(const json_t *o, const char *key)
{
    return (int)json_integer_value(json_object_get(o, key));
}

static void sum_points(const struct bs_results *r, struct bs_point *sum)
{
    *sum = (struct bs_point){0};
    for (int i = 0; i < r->n; i++) {
        sum->requests += r->point[i].requests;
        sum->whole += r->point[i].whole;
        sum->refused += r->point[i].refused;
        sum->failed += r->point[i].failed;
        sum->prompt_tokens += r->point[i].prompt_tokens;
    }
}

/* As texts, for the picture. A server that was not started here may run on any machine, which it does not say. */
static json_t *condition_texts(const struct bs_results *r)
{
    const json_t *c = r->conditions, *v = json_object_get(c, "server");
    json_t *t = json_object();
    struct bs_point sum;
    bool here = json_is_true(json_object_get(c, "started_here"));
    int prompt = number_of(c, "prompt_tokens");
    const char *config = text_of(c, "config");
    sum_points(r, &sum);
    cli_condition_set(t, "model", "%s, revision %s, %s, %d threads, context of %d tokens", text_of(v, "model"),
                      text_of(v, "model_revision"), text_of(v, "numerics"), number_of(v, "threads"),
                      number_of(v, "context"));
    cli_condition_set(t, "drafts", "%s", text_of(v, "speculation"));
    cli_condition_set(t, "server", "weft %s, %s%s%s", text_of(v, "version"),
                      here ? "started for this run on the same machine" : text_of(c, "url"),
                      here && config[0] ? ", configuration " : "", here ? config : "");
    cli_condition_set(t, here ? "machine" : "client's machine", "%s, %d CPUs, Linux %s, load average %.2f before",
                      text_of(c, "cpu"), number_of(c, "cpus"), text_of(c, "system"),
                      json_number_value(json_object_get(c, "load_average_before")));
    cli_condition_set(t, "requests",
                      "%d for each load behind %d that do not count, seed %d; prompts %s %d tokens, "
                      "answers of %d, one completion a connection",
                      number_of(c, "requests_per_point"), number_of(c, "warmup"), number_of(c, "seed"),
                      prompt ? "of" : "of a file, in the mean",
                      prompt      ? prompt
                      : sum.whole ? (int)(sum.prompt_tokens / sum.whole)
                                  : 0,
                      number_of(c, "max_tokens"));
    cli_condition_set(t, "answers", "%d of %d whole, %d refused, %d failed; speeds are of whole ones only", sum.whole,
                      sum.requests, sum.refused, sum.failed);
    cli_condition_set(t, "run", "%s, times as a client sees them: queue, prefill, decode, protocol and socket",
                      text_of(c, "time"));
    return t;
}

/* ---- output ---- */

static void quantiles_text(const double q[BS_QUANTILES], double scale, int digits, char *out, size_t size)
{
    if (isfinite(q[0]) && isfinite(q[1]) && isfinite(q[2]))
        snprintf(out, size, "%.*f/%.*f/%.*f", digits, scale * q[0], digits, scale * q[1], digits, scale * q[2]);
    else
        snprintf(out, size, "-");
}

void bs_print(const struct bs_results *r, bool deliveries)
{
    const json_t *c = r->conditions, *v = json_object_get(c, "server");
    cli_text_clean_json(r->conditions); /* of a server, or of a file */
    printf("model %s (%s, %d threads), weft %s, %s, %s\n", text_of(v, "model"), text_of(v, "numerics"),
           number_of(v, "threads"), text_of(v, "version"), text_of(c, "cpu"),
           json_is_true(json_object_get(c, "started_here")) ? "server started here, on the same machine"
                                                            : text_of(c, "url"));
    printf("%d CPUs with a load of %.1f before; %d requests per row, %d output tokens each; times in ms as "
           "p50/p90/p99\n\n",
           number_of(c, "cpus"), json_number_value(json_object_get(c, "load_average_before")),
           number_of(c, "requests_per_point"), number_of(c, "max_tokens"));
    printf("%-12s %9s %7s %9s %9s %10s  %-22s %-22s %-24s %-22s\n", "load", "whole", "refused", "req/s", "tok/s",
           "tok/s/user", "first token", "between pieces", "end to end", "queue");
    for (int i = 0; i < r->n; i++) {
        const struct bs_point *p = &r->point[i];
        char load[24], whole[24];
        snprintf(load, sizeof load, p->open ? "%g /s" : "%g at once", p->load);
        snprintf(whole, sizeof whole, "%d/%d", p->whole, p->requests);
        printf("%-12s %9s %7d %9.2f %9.1f", load, whole, p->refused, p->whole / p->seconds, throughput(p));
        if (isfinite(p->value[BS_USER_TOKEN][0]))
            printf(" %10.1f", 1 / p->value[BS_USER_TOKEN][0]);
        else
            printf(" %10s", "-");
        static const enum bs_column shown[] = {BS_FIRST_TOKEN, BS_INTER_TOKEN, BS_END_TO_END, BS_QUEUE};
        for (size_t k = 0; k < sizeof shown / sizeof *shown; k++) {
            char text[40];
            const double *q = p->value[shown[k]];
            quantiles_text(q, 1e3, 1, text, sizeof text);
            printf("  %-*s", k == 2 ? 22 : 20, text);
        }
        putchar('\n');
    }
    if (!deliveries)
        return;
    puts("\nfrom the making of a token in the engine to its arrival at the client, us as p50/p90/p99 (target: 1000):");
    for (int i = 0; i < r->n; i++) {
        const struct bs_point *p = &r->point[i];
        const double *f = p->value[BS_FIRST_DELIVERY], *d = p->value[BS_DELIVERY];
        char first[40], later[40];
        quantiles_text(f, 1e6, 0, first, sizeof first);
        quantiles_text(d, 1e6, 0, later, sizeof later);
        printf("  %g %s: first token %s, later ones %s\n", p->load, p->open ? "/s" : "at once", first, later);
    }
}

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *point_json(const struct bs_point *p)
{
    json_t *j = json_pack("{s:s,s:f,s:i,s:i,s:i,s:i,s:f,s:I,s:I,s:f,s:f}", "loop", p->open ? "open" : "closed",
                          p->open ? "requests_per_second" : "concurrency", p->load, "requests", p->requests, "whole",
                          p->whole, "refused", p->refused, "failed", p->failed, "seconds", p->seconds, "prompt_tokens",
                          (json_int_t)p->prompt_tokens, "output_tokens", (json_int_t)p->output_tokens,
                          "output_tokens_per_second", (double)p->output_tokens / p->seconds, "requests_done_per_second",
                          p->whole / p->seconds);
    for (int c = 0; c < BS_COLUMNS; c++) {
        char key[64];
        snprintf(key, sizeof key, "%s_seconds", column_name[c]);
        json_object_set_new(j, key,
                            json_pack("{s:o,s:o,s:o,s:o}", "p50", number(p->value[c][0]), "p90", number(p->value[c][1]),
                                      "p99", number(p->value[c][2]), "mean", number(p->mean[c])));
    }
    return j;
}

int bs_write_json(const struct bs_results *r, const char *path, struct cfg_error *err)
{
    json_t *points = json_array(), *all;
    for (int i = 0; i < r->n; i++)
        json_array_append_new(points, point_json(&r->point[i]));
    all = json_pack("{s:i,s:s,s:O,s:o}", "format", FORMAT, "kind", "serve", "conditions", r->conditions, "points",
                    points);
    return cli_output_json(path, all, JSON_INDENT(1) | JSON_REAL_PRECISION(9), err);
}

int bs_write_csv(const struct bs_results *r, const char *path, struct cfg_error *err)
{
    struct cli_output out;
    int bad = cli_output_begin(&out, path, err);
    if (bad)
        return bad;
    FILE *f = out.to;
    fputs("loop,load,requests,whole,refused,failed,seconds,prompt_tokens,output_tokens,output_tokens_per_second", f);
    for (int c = 0; c < BS_COLUMNS; c++)
        fprintf(f, ",%s_p50,%s_p90,%s_p99,%s_mean", column_name[c], column_name[c], column_name[c], column_name[c]);
    fputc('\n', f);
    for (int i = 0; i < r->n; i++) {
        const struct bs_point *p = &r->point[i];
        fprintf(f, "%s,%g,%d,%d,%d,%d,%.6f,%lld,%lld,%.3f", p->open ? "open" : "closed", p->load, p->requests, p->whole,
                p->refused, p->failed, p->seconds, (long long)p->prompt_tokens, (long long)p->output_tokens,
                (double)p->output_tokens / p->seconds);
        for (int c = 0; c < BS_COLUMNS; c++) {
            for (int q = 0; q <= BS_QUANTILES; q++) {
                double v = q < BS_QUANTILES ? p->value[c][q] : p->mean[c];
                fprintf(f, isfinite(v) ? ",%.9f" : ",", v);
            }
        }
        fputc('\n', f);
    }
    return cli_output_end(&out, 0, err);
}

/* ---- reading ---- */

static int bad_figure(struct cfg_error *err, const char *where, const char *what, double is, const char *why,
                      double should)
{
    return cfg_error_set(err, EINVAL, "%s: \"%s\" is %.9g, %s %.9g", where, what, is, why, should);
}

/* Quantiles and mean of a figure: all there, in order and within the run, or all null. */
static int read_column(const json_t *o, const char *where, enum bs_column column, struct bs_point *p,
                       struct cfg_error *err)
{
    static const char *const names[BS_QUANTILES + 1] = {"p50", "p90", "p99", "mean"};
    bool clocks = column == BS_FIRST_DELIVERY || column == BS_DELIVERY; /* between two clocks */
    double *const to[BS_QUANTILES + 1] = {&p->value[column][0], &p->value[column][1], &p->value[column][2],
                                          &p->mean[column]};
    double least = clocks ? -TIME_MAX : 0, most = clocks ? TIME_MAX : p->seconds * (1 + 1e-6);
    char what[80];
    int nulls = 0;
    for (int q = 0; q <= BS_QUANTILES; q++) {
        const json_t *v = json_object_get(o, names[q]);
        snprintf(what, sizeof what, "%s_seconds.%s", column_name[column], names[q]);
        *to[q] = json_is_number(v) ? json_number_value(v) : NAN;
        nulls += json_is_null(v);
        if (!json_is_number(v) && !json_is_null(v))
            return cfg_error_set(err, EINVAL, "%s: \"%s\" must be a number or null", where, what);
        if (*to[q] < least)
            return bad_figure(err, where, what, *to[q], "below", least);
        if (*to[q] > most)
            return bad_figure(err, where, what, *to[q], "more than what a run can have of it,", most);
        if (q && q < BS_QUANTILES && *to[q] < *to[q - 1])
            return bad_figure(err, where, what, *to[q], "less than the quantile below it,", *to[q - 1]);
    }
    if (json_object_size(o) != BS_QUANTILES + 1 || (nulls && nulls != BS_QUANTILES + 1))
        return cfg_error_set(err, EINVAL, "%s: \"%s_seconds\" needs p50, p90, p99 and mean, all or none of them null",
                             where, column_name[column]);
    return 0;
}

/* What a run says of itself. */
struct conditions {
    int64_t requests, prompt, output;
    bool here;
};

static int check_counts(const struct bs_point *p, const struct conditions *c, const char *where, struct cfg_error *err)
{
    double prompt = (double)p->prompt_tokens, output = (double)p->output_tokens, e2e = p->mean[BS_END_TO_END];
    if (p->whole + p->refused + p->failed != p->requests)
        return bad_figure(err, where, "requests", p->requests, "but whole, refused and failed are",
                          p->whole + p->refused + p->failed);
    if (p->requests != c->requests)
        return bad_figure(err, where, "requests", p->requests, "but the conditions say", (double)c->requests);
    if (output > (double)p->whole * (double)c->output)
        return bad_figure(err, where, "output_tokens", output, "more than the whole answers can have,",
                          (double)p->whole * (double)c->output);
    if (!p->whole && p->prompt_tokens)
        return bad_figure(err, where, "prompt_tokens", prompt, "but the whole answers are", 0);
    if (c->here && c->prompt && prompt != (double)p->whole * (double)c->prompt)
        return bad_figure(err, where, "prompt_tokens", prompt, "but those of the whole answers are",
                          (double)p->whole * (double)c->prompt);
    if (isfinite(e2e) != (p->whole > 0))
        return cfg_error_set(err, EINVAL, "%s: \"end_to_end_seconds\" is of whole answers, and there are %d", where,
                             p->whole);
    if (isfinite(p->mean[BS_USER_TOKEN]) && p->output_tokens <= p->whole)
        return cfg_error_set(err, EINVAL,
                             "%s: \"user_token_seconds\" is of tokens behind the first, and there are none", where);
    if (!p->open && p->whole && p->whole * e2e > p->load * p->seconds * (1 + 1e-6))
        return bad_figure(err, where, "end_to_end_seconds.mean", e2e, "but so many at a time in so long take at most",
                          p->load * p->seconds / p->whole);
    return 0;
}

static int check_rate(const char *where, const char *what, double is, double count, double seconds,
                      struct cfg_error *err)
{
    double should = count / seconds;
    return fabs(is - should) <= 1e-6 * should ? 0
                                              : bad_figure(err, where, what, is, "but counts and seconds give", should);
}

static int read_point(const json_t *j, const struct conditions *c, const char *where, struct bs_point *p,
                      struct cfg_error *err)
{
    int64_t count[4];
    const char *loop = json_string_value(json_object_get(j, "loop"));
    bool open = loop && !strcmp(loop, "open");
    double tokens_rate, requests_rate;
    const json_t *column[BS_COLUMNS];
    char key[BS_COLUMNS][40];
    struct cli_member members[12 + BS_COLUMNS] = {
        {"loop", CLI_MEMBER_TEXT, &loop},
        {open ? "requests_per_second" : "concurrency", CLI_MEMBER_NUMBER, &p->load, open ? 1e-9 : 1, BS_LOAD_MAX},
        {"requests", CLI_MEMBER_INTEGER, &count[0], 1, BS_REQUESTS_MAX},
        {"whole", CLI_MEMBER_INTEGER, &count[1], 0, BS_REQUESTS_MAX},
        {"refused", CLI_MEMBER_INTEGER, &count[2], 0, BS_REQUESTS_MAX},
        {"failed", CLI_MEMBER_INTEGER, &count[3], 0, BS_REQUESTS_MAX},
        {"seconds", CLI_MEMBER_NUMBER, &p->seconds, 1e-9, TIME_MAX},
        {"prompt_tokens", CLI_MEMBER_INTEGER, &p->prompt_tokens, 0, TOKENS_MAX},
        {"output_tokens", CLI_MEMBER_INTEGER, &p->output_tokens, 0, TOKENS_MAX},
        {"output_tokens_per_second", CLI_MEMBER_NUMBER, &tokens_rate, 0, 1e18},
        {"requests_done_per_second", CLI_MEMBER_NUMBER, &requests_rate, 0, 1e18},
    };
    for (int k = 0; k < BS_COLUMNS; k++) {
        snprintf(key[k], sizeof key[k], "%s_seconds", column_name[k]);
        members[11 + k] = (struct cli_member){key[k], CLI_MEMBER_OBJECT, &column[k]};
    }
    if (!loop || (!open && strcmp(loop, "closed")))
        return cfg_error_set(err, EINVAL, "%s: \"loop\" must be open or closed", where);
    int r = cli_members_read(j, where, members, err);
    if (r)
        return r;
    p->open = open;
    p->requests = (int)count[0];
    p->whole = (int)count[1];
    p->refused = (int)count[2];
    p->failed = (int)count[3];
    if (!open && p->load != floor(p->load))
        return cfg_error_set(err, EINVAL, "%s: \"concurrency\" is %g, no integer", where, p->load);
    for (int k = 0; k < BS_COLUMNS && !r; k++)
        r = read_column(column[k], where, (enum bs_column)k, p, err);
    if (!r)
        r = check_counts(p, c, where, err);
    if (!r)
        r = check_rate(where, "output_tokens_per_second", tokens_rate, (double)p->output_tokens, p->seconds, err);
    if (!r)
        r = check_rate(where, "requests_done_per_second", requests_rate, p->whole, p->seconds, err);
    return r;
}

/* server: the answer of any server's /version; what of it is shown has its type. */
static int check_server(const json_t *server, const char *path, struct cfg_error *err)
{
    static const char *const texts[] = {"version", "model", "model_revision", "numerics", "speculation"};
    static const char *const numbers[] = {"threads", "context"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const json_t *v = json_object_get(server, texts[i]);
        if (v && !json_is_string(v))
            return cfg_error_set(err, EINVAL, "%s: \"conditions\": \"server.%s\" must be a text", path, texts[i]);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *v = json_object_get(server, numbers[i]);
        if (v && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX))
            return cfg_error_set(err, EINVAL, "%s: \"conditions\": \"server.%s\" must be a number of things", path,
                                 numbers[i]);
    }
    return 0;
}

static int read_conditions(const json_t *j, const char *path, struct conditions *c, struct cfg_error *err)
{
    const json_t *server;
    char where[300];
    const struct cli_member members[] = {
        {"server", CLI_MEMBER_OBJECT, &server},
        {"url", CLI_MEMBER_TEXT, NULL},
        {"started_here", CLI_MEMBER_FLAG, &c->here},
        {"config", CLI_MEMBER_TEXT, NULL},
        {"time", CLI_MEMBER_TEXT, NULL},
        {"system", CLI_MEMBER_TEXT, NULL},
        {"cpu", CLI_MEMBER_TEXT, NULL},
        {"cpus", CLI_MEMBER_INTEGER, NULL, 1, 1 << 20},
        {"load_average_before", CLI_MEMBER_NUMBER, NULL, 0, 1e6},
        {"requests_per_point", CLI_MEMBER_INTEGER, &c->requests, 1, BS_REQUESTS_MAX},
        {"prompt_tokens", CLI_MEMBER_INTEGER, &c->prompt, 0, 1 << 20},
        {"max_tokens", CLI_MEMBER_INTEGER, &c->output, 1, 1 << 20},
        {"warmup", CLI_MEMBER_INTEGER, NULL, 0, 1000},
        {"seed", CLI_MEMBER_INTEGER, NULL, 0, 1 << 30},
        {.kind = CLI_MEMBER_END},
    };
    snprintf(where, sizeof where, "%.250s, \"conditions\"", path);
    int r = cli_members_read(j, where, members, err);
    return r ? r : check_server(server, path, err);
}

static int read_root(const json_t *root, const char *path, struct bs_results *r, struct cfg_error *err)
{
    struct conditions c = {0};
    const json_t *points, *conditions;
    const struct cli_member members[] = {
        {"format", CLI_MEMBER_INTEGER, NULL, FORMAT, FORMAT, true},
        {"kind", CLI_MEMBER_TEXT, NULL, .optional = true},
        {"conditions", CLI_MEMBER_OBJECT, &conditions},
        {"points", CLI_MEMBER_LIST, &points},
        {.kind = CLI_MEMBER_END},
    };
    int bad = cli_members_read(root, path, members, err);
    if (bad)
        return bad;
    r->conditions = json_incref((json_t *)conditions);
    bad = read_conditions(conditions, path, &c, err);
    if (!bad && json_array_size(points) > BS_POINTS_MAX)
        bad = cfg_error_set(err, EINVAL, "%s has more than %d points", path, BS_POINTS_MAX);
    for (size_t i = 0; !bad && i < json_array_size(points); i++) {
        char where[300];
        snprintf(where, sizeof where, "%.250s, point %zu", path, i + 1);
        bad = read_point(json_array_get(points, i), &c, where, &r->point[i], err);
        r->n += !bad;
    }
    return bad;
}

int bs_read_json(const char *path, struct bs_results *r, struct cfg_error *err)
{
    json_t *root;
    int bad = cli_result_read(path, CLI_RESULT_SERVE, &root, err);
    if (!bad)
        bad = read_root(root, path, r, err);
    json_decref(root);
    return bad;
}

/* ---- plot ---- */

static void plot_value(struct cli_plot *p, double v)
{
    if (isfinite(v))
        cli_plot_printf(p, " %.9g", v);
    else
        cli_plot_printf(p, " NaN");
}

/* The points of a loop by load: load, throughput, speed of the median user and of the slowest tenth's fastest, then of
 * first token and of the time between pieces the quantiles in ms, requests that were not answered whole. */
static int plot_loop(const struct bs_results *r, struct cli_plot *p, bool open)
{
    int order[BS_POINTS_MAX], n = 0;
    for (int i = 0; i < r->n; i++) {
        if (r->point[i].open != open)
            continue;
        int at = n++;
        for (; at > 0 && r->point[order[at - 1]].load > r->point[i].load; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    cli_plot_printf(p, "$%s << EOD\n", open ? "open" : "closed");
    for (int k = 0; k < n; k++) {
        const struct bs_point *at = &r->point[order[k]];
        const double *user = at->value[BS_USER_TOKEN];
        cli_plot_printf(p, "%g %.9g", at->load, throughput(at));
        plot_value(p, 1 / user[0]);
        plot_value(p, 1 / user[1]);
        for (int q = 0; q < BS_QUANTILES; q++)
            plot_value(p, 1e3 * at->value[BS_FIRST_TOKEN][q]);
        for (int q = 0; q < BS_QUANTILES; q++)
            plot_value(p, 1e3 * at->value[BS_INTER_TOKEN][q]);
        cli_plot_printf(p, " %d\n", at->requests - at->whole);
    }
    cli_plot_printf(p, "EOD\n");
    return n;
}

static void panel(struct cli_plot *p, double left, const char *title, const char *xlabel, const char *ylabel)
{
    cli_plot_printf(p,
                    "set lmargin at screen %g\nset rmargin at screen %g\nset title '%s'\nset xlabel '%s'\n"
                    "set ylabel '%s' offset 1,0\n",
                    left, left + 0.255, title, xlabel, ylabel);
}

static bool any_of(const struct bs_results *r, bool open, enum bs_column column)
{
    for (int i = 0; i < r->n; i++)
        if (r->point[i].open == open && isfinite(r->point[i].value[column][0]))
            return true;
    return false;
}

/* sign 1: the most of all quantiles, -1: the least; seconds. */
static double most_of(const struct bs_results *r, bool open, enum bs_column column, int sign)
{
    double most = NAN;
    for (int i = 0; i < r->n; i++)
        for (int q = 0; q < BS_QUANTILES && r->point[i].open == open; q++)
            most = sign * fmax(sign * most, sign * r->point[i].value[column][q]);
    return most;
}

/* A panel without anything in it, which gnuplot would not draw by itself. */
static void plot_nothing(struct cli_plot *p)
{
    cli_plot_printf(
        p, "unset logscale\nset xrange [0:1]\nset yrange [0:1]\nset label 100 'no answer has one' at graph 0.5, "
           "graph 0.5 center\nplot NaN notitle\nunset label 100\n");
}

/* Three quantiles of a column over the load, upwards from column `first` of the data. */
static void plot_quantiles(const struct bs_results *r, struct cli_plot *p, bool open, enum bs_column column, int first)
{
    static const char *const names[BS_QUANTILES] = {"p50", "p90", "p99"};
    int points = 0;
    for (int i = 0; i < r->n; i++)
        points += r->point[i].open == open;
    if (!any_of(r, open, column)) {
        plot_nothing(p);
        return;
    }
    /* One value alone has no extent, which gnuplot would complain of. */
    char range[64] = "*:*";
    if (!(most_of(r, open, column, 1) > most_of(r, open, column, -1)))
        snprintf(range, sizeof range, "%g:%g", 500 * most_of(r, open, column, 1), 2000 * most_of(r, open, column, 1));
    cli_plot_printf(p, "unset logscale\nset logscale y 10\nset yrange [%s]\n%s\nplot ", range,
                    open || points < 2
                        ? "set xrange [0:*]\nset offsets 0, graph 0.05, 0, 0"
                        : "set logscale x 2\nset xrange [*:*]\nset offsets graph 0.05, graph 0.05, 0, 0");
    for (int q = 0; q < BS_QUANTILES; q++)
        cli_plot_printf(p, "$%s using 1:%d with linespoints pt 7 ps 0.7 lw 1.5 lc rgb '%s' title '%s'%s",
                        open ? "open" : "closed", first + q, cli_plot_colour(q), names[q],
                        q + 1 < BS_QUANTILES ? ", " : "\n");
}

static void plot_users(const struct bs_results *r, struct cli_plot *p, bool open)
{
    const char *loop = open ? "open" : "closed";
    if (!any_of(r, open, BS_USER_TOKEN)) {
        plot_nothing(p);
        return;
    }
    cli_plot_printf(p, "unset logscale\nset xrange [0:*]\nset yrange [0:*]\nset offsets 0, graph 0.17, graph 0.06, 0\n"
                       "set key bottom left font ',9'\n");
    cli_plot_printf(
        p,
        "plot $%s using 3:2 with linespoints pt 7 ps 0.7 lw 1.5 lc rgb '%s' title 'median user', $%s using "
        "4:2 with linespoints pt 6 ps 0.7 dt 2 lc rgb '%s' title 'nine of ten have this or more', $%s "
        "using 3:2:(sprintf('%%g%s', $1).($11 > 0 ? sprintf(': %%d not whole', $11) : '')) with labels offset "
        "1.5,0.5 left font ',9' notitle\nunset offsets\n",
        loop, cli_plot_colour(0), loop, cli_plot_colour(1), loop, open ? " /s" : "");
}

static void plot_row(const struct bs_results *r, struct cli_plot *p, bool open, double bottom, double top)
{
    const char *load =
        open ? "requests per second, arriving at random (open loop)" : "requests at a time (closed loop)";
    cli_plot_printf(p, "set bmargin at screen %g\nset tmargin at screen %g\nset key top left font ',9'\n", bottom, top);
    panel(p, 0.06, "Time to first token", load, "sent to first text at the client, ms");
    plot_quantiles(r, p, open, BS_FIRST_TOKEN, 5);
    cli_plot_printf(p, "unset label\n"); /* the conditions, which one panel has drawn for all */
    panel(p, 0.39, "Time between pieces of text", load, "between two pieces of one answer, ms");
    plot_quantiles(r, p, open, BS_INTER_TOKEN, 8);
    panel(p, 0.72, "Speed per user against throughput (numbers: load)",
          "tokens per second and user, behind the first token", "tokens per second, all users");
    plot_users(r, p, open);
}

int bs_plot(const struct bs_results *r, const char *path, struct cfg_error *err)
{
    enum { WIDTH = 1400, ROW = 470, CONDITIONS = 180 };
    int loops[2] = {0};
    struct cli_plot *p;
    for (int i = 0; i < r->n; i++)
        loops[r->point[i].open]++;
    int rows = (loops[0] > 0) + (loops[1] > 0), height = CONDITIONS + rows * ROW;
    int bad = cli_plot_begin_sized(path, WIDTH, height, &p, err);
    if (bad)
        return bad;
    json_t *texts = condition_texts(r);
    double low = cli_plot_conditions(p, texts), row = (1 - low) / rows;
    json_decref(texts);
    for (int open = 0; open < 2; open++)
        if (loops[open])
            plot_loop(r, p, open);
    cli_plot_printf(p, "set multiplot\nset grid lt 1 lw 0.7 lc rgb '#e0e0e0'\n");
    for (int open = 0, k = rows - 1; open < 2; open++) {
        if (!loops[open])
            continue;
        double bottom = low + k-- * row;
        plot_row(r, p, open, bottom + 70.0 / height, bottom + row - 40.0 / height);
    }
    cli_plot_printf(p, "unset multiplot\n");
    return cli_plot_end(p, err);
}
