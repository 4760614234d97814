#include "cli/output.h"
#include "cli/simulate_report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plot.h"

struct sim_point *sim_report_add(struct sim_report *r)
{
    if (r->n == r->cap) {
        int cap = r->cap ? 2 * r->cap : 16;
        void *p = realloc(r->point, (size_t)cap * sizeof(struct sim_point *));
        if (!p)
            return NULL;
        r->point = p;
        r->cap = cap;
    }
    struct sim_point *p = calloc(1, sizeof *p);
    if (p)
        r->point[r->n++] = p;
    return p;
}

void sim_report_free(struct sim_report *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->point[i]);
    free(r->point);
    *r = (struct sim_report){0};
}

/* ---- figures ---- */

struct figures {
    int devices;
    double rate, per_rank, per_device; /* tokens per second */
    double offered, emitted;           /* per sequence and round */
    double user;                       /* tokens per second of half the requests, at least */
    double price;                      /* of a million tokens; NAN: unknown */
};

static struct figures figures_of(const struct sim_point *p, const struct sim_profile *profile)
{
    const struct sim_outcome *o = &p->outcome;
    struct figures f = {.devices = profile->one_process ? 1 : p->decode + (profile->encoder.n ? p->prefill : 0)};
    f.rate = o->seconds > 0 ? (double)o->tokens / o->seconds : 0;
    f.per_rank = f.rate / p->decode;
    f.per_device = f.rate / f.devices;
    f.offered = o->steps ? (double)o->offered / (double)o->steps : 0;
    f.emitted = o->steps ? (double)o->stepped / (double)o->steps : 0;
    f.user = 1 / sim_histogram_quantile(&o->user, 0.5);
    f.price = profile->price > 0 && f.rate > 0 ? profile->price * f.devices / 3600 / f.rate * 1e6 : NAN;
    return f;
}

static bool same_ranks(const struct sim_point *a, const struct sim_point *b)
{
    return a->decode == b->decode && a->prefill == b->prefill && a->decode_group == b->decode_group &&
           a->prefill_group == b->prefill_group;
}

/* "64+8", and the groups where they are not all of a kind: "64+8/2", "128/64+8". */
static void ranks_text(const struct sim_point *p, const struct sim_profile *profile, char *out, size_t size)
{
    char d[16] = "", f[16] = "";
    if (p->decode_group)
        snprintf(d, sizeof d, "/%d", p->decode_group);
    if (p->prefill_group)
        snprintf(f, sizeof f, "/%d", p->prefill_group);
    if (profile->one_process)
        snprintf(out, size, "1");
    else
        snprintf(out, size, "%d%s+%d%s", p->decode, d, p->prefill, f);
}

static bool same_place(const struct sim_point *a, const struct sim_point *b)
{
    return same_ranks(a, b) && a->open == b->open && a->value <= b->value && a->value >= b->value;
}

/* Change of throughput against the first mode at this place, per cent; NAN for that mode itself. */
static double change_of(const struct sim_report *r, int i, const struct sim_profile *p)
{
    for (int k = 0; k < i; k++)
        if (same_place(r->point[k], r->point[i]))
            return 100 * (figures_of(r->point[i], p).rate / figures_of(r->point[k], p).rate - 1);
    return NAN;
}

static void load_text(const struct sim_point *p, char *out, size_t size)
{
    if (!p->open)
        snprintf(out, size, "%g", p->value);
    else if (p->value > 0)
        snprintf(out, size, "%g/s", p->value);
    else
        snprintf(out, size, "trace");
}

static void times(const struct sim_histogram *h, char *out, size_t size)
{
    if (!h->n)
        snprintf(out, size, "-");
    else
        snprintf(out, size, "%.4g/%.4g", 1e3 * sim_histogram_quantile(h, 0.5), 1e3 * sim_histogram_quantile(h, 0.99));
}

void sim_report_print(const struct sim_report *r, const struct sim_profile *p)
{
    printf("%s\n%d drafts per block; virtual time; times in ms as p50/p99; a user's speed is the median request's\n\n",
           p->name, p->block);
    printf("%9s %7s  %-19s %11s %9s %8s %8s %9s %10s  %-15s %-15s %-15s %-17s %s\n", "ranks d+p", "load", "mode",
           "tok/s/rank", "change", "offered", "emitted", "tok/s/dev", "tok/s/user", "queue", "first token",
           "between pieces", "end to end", p->price > 0 ? "per M tokens" : "");
    for (int i = 0; i < r->n; i++) {
        const struct sim_point *pt = r->point[i];
        const struct sim_outcome *o = &pt->outcome;
        struct figures f = figures_of(pt, p);
        char load[24], change[16] = "-", queue[32], first[32], gap[32], whole[32], ranks[48];
        double c = change_of(r, i, p);
        if (!isnan(c))
            snprintf(change, sizeof change, "%+.1f %%", c);
        load_text(pt, load, sizeof load);
        times(&o->queue, queue, sizeof queue);
        times(&o->first_token, first, sizeof first);
        times(&o->gap, gap, sizeof gap);
        times(&o->whole, whole, sizeof whole);
        ranks_text(pt, p, ranks, sizeof ranks);
        printf("%9s %7s  %-19s %11.0f %9s %8.2f %8.2f %9.0f %10.1f  %-15s %-15s %-15s %-17s", ranks, load, pt->mode,
               f.per_rank, change, f.offered, f.emitted, f.per_device, f.user, queue, first, gap, whole);
        if (!isnan(f.price))
            printf(" %.3f", f.price);
        printf("\n");
        if (o->refused || o->failed || o->parked)
            printf("%37s refused %llu, failed %llu, parked %llu\n", "", (unsigned long long)o->refused,
                   (unsigned long long)o->failed, (unsigned long long)o->parked);
    }
}

/* ---- files ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *histogram_json(const struct sim_histogram *h)
{
    return json_pack("{s:o,s:o,s:o,s:o,s:I}", "p50", number(sim_histogram_quantile(h, 0.5)), "p90",
                     number(sim_histogram_quantile(h, 0.9)), "p99", number(sim_histogram_quantile(h, 0.99)), "mean",
                     number(h->n ? h->sum / (double)h->n : NAN), "count", (json_int_t)h->n);
}

static json_t *point_json(const struct sim_report *r, int i, const struct sim_profile *p)
{
    const struct sim_point *pt = r->point[i];
    const struct sim_outcome *o = &pt->outcome;
    struct figures f = figures_of(pt, p);
    json_t *j = json_pack(
        "{s:i,s:i,s:i,s:i,s:s,s:f,s:s,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "decode_ranks", pt->decode, "decode_group",
        pt->decode_group, "prefill_group", pt->prefill_group, "prefill_ranks", pt->prefill, "loop",
        pt->open ? "open" : "closed", pt->open ? "requests_per_second" : "requests_per_rank", pt->value, "mode",
        pt->mode, "seconds", o->seconds, "requests", (json_int_t)o->requests, "refused", (json_int_t)o->refused,
        "failed", (json_int_t)o->failed, "parked", (json_int_t)o->parked, "output_tokens", (json_int_t)o->tokens,
        "prompt_tokens", (json_int_t)o->prompt_tokens, "cached_tokens", (json_int_t)o->cached_tokens);
    json_t *more = json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "steps", (json_int_t)o->steps, "drafted",
        (json_int_t)o->drafted, "offered", (json_int_t)o->offered, "accepted", (json_int_t)o->accepted, "emitted",
        (json_int_t)o->stepped, "output_tokens_per_second", f.rate, "tokens_per_second_and_rank", f.per_rank,
        "tokens_per_second_and_device", f.per_device, "tokens_per_second_and_user", number(f.user),
        "price_per_million_tokens", number(f.price), "queue_seconds", histogram_json(&o->queue), "first_token_seconds",
        histogram_json(&o->first_token), "inter_token_seconds", histogram_json(&o->gap), "end_to_end_seconds",
        histogram_json(&o->whole), "seconds_per_token", histogram_json(&o->user));
    if (j && more)
        json_object_update(j, more);
    json_decref(more);
    return j;
}

int sim_report_json(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err)
{
    json_t *points = json_array();
    for (int i = 0; i < r->n; i++)
        json_array_append_new(points, point_json(r, i, p));
    json_t *all = json_pack("{s:i,s:s,s:o}", "format", 1, "profile", p->name, "points", points);
    return cli_output_json(file, all, JSON_INDENT(1) | JSON_REAL_PRECISION(9), err);
}

int sim_report_csv(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err)
{
    struct cli_output out;
    int bad = cli_output_begin(&out, file, err);
    if (bad)
        return bad;
    FILE *f = out.to;
    fputs("decode_ranks,decode_group,prefill_ranks,prefill_group,loop,load,mode,seconds,requests,refused,failed,parked,"
          "prompt_tokens,cached_tokens,"
          "output_tokens,tokens_per_second,per_rank,per_device,per_user,price_per_million,steps,drafted,offered,"
          "accepted,emitted,queue_p50,queue_p90,queue_p99,first_token_p50,first_token_p90,first_token_p99,gap_p50,"
          "gap_p90,gap_p99,end_to_end_p50,end_to_end_p90,end_to_end_p99\n",
          f);
    for (int i = 0; i < r->n; i++) {
        const struct sim_point *pt = r->point[i];
        const struct sim_outcome *o = &pt->outcome;
        struct figures g = figures_of(pt, p);
        fprintf(f, "%d,%d,%d,%d,%s,%g,%s,%.6f,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%.9g,%.9g,%.9g,", pt->decode,
                pt->decode_group, pt->prefill, pt->prefill_group, pt->open ? "open" : "closed", pt->value, pt->mode,
                o->seconds, (unsigned long long)o->requests, (unsigned long long)o->refused,
                (unsigned long long)o->failed, (unsigned long long)o->parked, (unsigned long long)o->prompt_tokens,
                (unsigned long long)o->cached_tokens, (unsigned long long)o->tokens, g.rate, g.per_rank, g.per_device);
        if (!isnan(g.user))
            fprintf(f, "%.9g", g.user);
        fputc(',', f);
        if (!isnan(g.price))
            fprintf(f, "%.9g", g.price);
        fprintf(f, ",%llu,%llu,%llu,%llu,%llu", (unsigned long long)o->steps, (unsigned long long)o->drafted,
                (unsigned long long)o->offered, (unsigned long long)o->accepted, (unsigned long long)o->stepped);
        const struct sim_histogram *const h[] = {&o->queue, &o->first_token, &o->gap, &o->whole};
        static const double q[] = {0.5, 0.9, 0.99};
        for (int k = 0; k < 12; k++) {
            double v = sim_histogram_quantile(h[k / 3], q[k % 3]);
            fprintf(f, isnan(v) ? "," : ",%.6g", v);
        }
        fputc('\n', f);
    }
    return cli_output_end(&out, 0, err);
}

/* ---- plot ---- */

static bool same_line(const struct sim_point *a, const struct sim_point *b)
{
    return same_ranks(a, b) && a->open == b->open && !strcmp(a->mode, b->mode);
}

static bool begins_line(const struct sim_report *r, int i)
{
    for (int k = 0; k < i; k++)
        if (same_line(r->point[k], r->point[i]))
            return false;
    return true;
}

static bool same_mode(const struct sim_point *a, const struct sim_point *b)
{
    return strcmp(a->mode, b->mode) == 0;
}

/* How many different ones there are before the first one like i. */
static int place_of(const struct sim_report *r, int i, bool (*same)(const struct sim_point *, const struct sim_point *))
{
    int place = 0;
    for (int k = 0; !same(r->point[k], r->point[i]); k++) {
        bool seen = false;
        for (int j = 0; j < k; j++)
            seen |= same(r->point[j], r->point[k]);
        place += !seen;
    }
    return place;
}

/* Speed per user, throughput per device, load, first token in ms (99 of 100), what the other panel has upwards. */
static void plot_line(const struct sim_report *r, const struct sim_profile *p, struct cli_plot *to, int first)
{
    cli_plot_printf(to, "$l%d << EOD\n", first);
    for (int i = first; i < r->n; i++) {
        struct figures f = figures_of(r->point[i], p);
        if (same_line(r->point[i], r->point[first]) && isfinite(f.user))
            cli_plot_printf(to, "%.9g %.9g %g %.9g %.9g\n", f.user, f.per_device, r->point[i]->value,
                            1e3 * sim_histogram_quantile(&r->point[i]->outcome.first_token, 0.99),
                            isnan(f.price) ? f.per_device : f.price);
    }
    cli_plot_printf(to, "EOD\n");
}

static void plot_panel(const struct sim_report *r, const struct sim_profile *p, struct cli_plot *to,
                       const char *columns, bool labels)
{
    static const char *const colours[] = {"#4477aa", "#d62728", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#222222"};
    int lines = 0, sizes = 0;
    for (int i = 0; i < r->n; i++)
        sizes = place_of(r, i, same_ranks) + 1 > sizes ? place_of(r, i, same_ranks) + 1 : sizes;
    for (int i = 0; i < r->n; i++) {
        char ranks[48];
        if (!begins_line(r, i))
            continue;
        /* The size of the deployment decides the colour, the mode the dashes; of one size the mode decides both. */
        int dash = place_of(r, i, same_mode), colour = sizes > 1 ? place_of(r, i, same_ranks) : dash;
        ranks_text(r->point[i], p, ranks, sizeof ranks);
        cli_plot_printf(to, "%s$l%d using %s with linespoints pt 7 ps 0.5 lw 2 dt %d lc rgb '%s' title '%s %s'",
                        lines++ ? ", " : "plot ", i, columns, 1 + dash % 5, colours[colour % 7], ranks,
                        r->point[i]->mode);
        if (labels)
            cli_plot_printf(to, ", $l%d using %s:3 with labels offset 1.2,0.6 font ',8' notitle", i, columns);
    }
    cli_plot_printf(to, lines ? "\n" : "plot 0 notitle\n");
}

int sim_report_plot(const struct sim_report *r, const struct sim_profile *p, const char *file, struct cfg_error *err)
{
    struct cli_plot *to;
    bool prompts = p->encoder.n > 0; /* else the first token takes no time, and there is nothing to show of it */
    int bad = cli_plot_begin(file, &to, err);
    if (bad)
        return bad;
    for (int i = 0; i < r->n; i++)
        if (begins_line(r, i))
            plot_line(r, p, to, i);
    cli_plot_printf(to, "set label 1 \"");
    cli_plot_text(to, p->name);
    cli_plot_printf(
        to,
        "\" at screen 0.02,0.06 noenhanced font ',9'\n"
        "set label 2 \"numbers at points: %s; %d drafts per block, mean prompt %d and output %d tokens; "
        "price of a device %g an hour; simulated, not measured\" at screen 0.02,0.03 noenhanced font ',9'\n"
        "set multiplot\nset grid lc rgb '#dddddd'\nset bmargin at screen 0.17\nset tmargin at screen 0.94\n"
        "set lmargin at screen 0.08\nset rmargin at screen %g\nset key at screen 0.995,0.94 top right noenhanced font "
        "',9' samplen 2\n%s\n"
        "set title 'Speed per user against throughput per device'\n"
        "set xlabel 'tokens per second and user (median request)'\n"
        "set ylabel 'tokens per second and device, prefill ranks included'\n"
        "set xrange [0:*]\nset yrange [0:*]\n",
        r->n && r->point[0]->open ? "requests per second" : "requests at a time per decode rank", p->block,
        p->prompt_tokens, p->output_tokens, p->price, prompts ? 0.42 : 0.8, prompts ? "unset key" : "");
    plot_panel(r, p, to, "1:2", true);
    if (prompts)
        cli_plot_printf(to,
                        "unset label\nset lmargin at screen 0.51\nset rmargin at screen 0.82\n"
                        "set key at screen 0.995,0.94 top right noenhanced font ',9' samplen 2\n"
                        "set title 'First token against %s'\nset xlabel 'first token, p99, ms'\nset ylabel '%s'\n"
                        "set logscale xy\nset xrange [*:*]\nset yrange [*:*]\n",
                        p->price > 0 ? "cost" : "throughput",
                        p->price > 0 ? "price of a million output tokens" : "tokens per second and device");
    if (prompts)
        plot_panel(r, p, to, "4:5", false);
    cli_plot_printf(to, "unset multiplot\n");
    return cli_plot_end(to, err);
}
