#include "cli/output.h"
#include "cli/simulate_report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/conditions.h"

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
    json_decref(r->conditions);
    *r = (struct sim_report){0};
}

/* ---- figures ---- */

struct sim_figures sim_figures_of(const struct sim_point *p, const struct sim_profile *profile)
{
    const struct sim_outcome *o = &p->outcome;
    struct sim_figures f = {.devices = profile->one_process ? 1 : p->decode + (profile->encoder.n ? p->prefill : 0)};
    f.rate = o->seconds > 0 ? (double)o->tokens / o->seconds : 0;
    f.per_rank = f.rate / p->decode;
    f.per_device = f.rate / f.devices;
    f.offered = o->steps ? (double)o->offered / (double)o->steps : NAN;
    f.emitted = o->steps ? (double)o->stepped / (double)o->steps : NAN;
    f.user = 1 / sim_histogram_quantile(&o->user, 0.5);
    f.price = profile->price > 0 && f.rate > 0 ? profile->price * f.devices / 3600 / f.rate * 1e6 : NAN;
    return f;
}

bool sim_same_ranks(const struct sim_point *a, const struct sim_point *b)
{
    return a->decode == b->decode && a->prefill == b->prefill && a->decode_group == b->decode_group &&
           a->prefill_group == b->prefill_group;
}

void sim_ranks_text(const struct sim_point *p, const struct sim_profile *profile, char *out, size_t size)
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
    return sim_same_ranks(a, b) && a->open == b->open && a->value <= b->value && a->value >= b->value;
}

double sim_change_of(const struct sim_report *r, int i, const struct sim_profile *p)
{
    for (int k = 0; k < i; k++)
        if (same_place(r->point[k], r->point[i])) {
            double rate = sim_figures_of(r->point[k], p).rate;
            return rate > 0 ? 100 * (sim_figures_of(r->point[i], p).rate / rate - 1) : NAN;
        }
    return NAN;
}

void sim_load_text(const struct sim_point *p, char *out, size_t size)
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

static void print_number(double v, int width, int digits)
{
    if (isnan(v))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, digits, v);
}

static void print_notes(const struct sim_point *pt, const struct sim_profile *p)
{
    const struct sim_outcome *o = &pt->outcome;
    if (o->refused || o->failed || o->parked)
        printf("%37s refused %llu, failed %llu, parked %llu\n", "", (unsigned long long)o->refused,
               (unsigned long long)o->failed, (unsigned long long)o->parked);
    if (o->cut)
        printf("%37s %llu requests were longer than the context of %d tokens and were cut to it\n", "",
               (unsigned long long)o->cut, p->context);
    if (!o->requests)
        printf("%37s no request ended in the time that is counted\n", "");
}

void sim_report_print(const struct sim_report *r, const struct sim_profile *p)
{
    cli_conditions_print(r->conditions);
    puts("\ntimes in ms as p50/p99; change: of throughput, to the first mode; offered, emitted: per sequence and "
         "round; a "
         "user's speed is the\nmedian request's; -: nothing to take it from\n");
    printf("%9s %7s  %-19s %11s %9s %8s %8s %9s %10s  %-15s %-15s %-15s %-17s %s\n", "ranks d+p", "load", "mode",
           "tok/s/rank", "change", "offered", "emitted", "tok/s/dev", "tok/s/user", "queue", "first token",
           "between pieces", "end to end", p->price > 0 ? "per M tokens" : "");
    for (int i = 0; i < r->n; i++) {
        const struct sim_point *pt = r->point[i];
        const struct sim_outcome *o = &pt->outcome;
        const struct sim_histogram *const h[] = {&o->queue, &o->first_token, &o->gap, &o->whole};
        struct sim_figures f = sim_figures_of(pt, p);
        char load[24], change[16] = "-", text[4][32], ranks[48];
        double c = sim_change_of(r, i, p);
        if (!isnan(c))
            snprintf(change, sizeof change, "%+.1f %%", c);
        for (int k = 0; k < 4; k++)
            times(h[k], text[k], sizeof text[k]);
        sim_load_text(pt, load, sizeof load);
        sim_ranks_text(pt, p, ranks, sizeof ranks);
        printf("%9s %7s  %-19s %11.0f %9s", ranks, load, pt->mode, f.per_rank, change);
        print_number(f.offered, 8, 2);
        print_number(f.emitted, 8, 2);
        printf(" %9.0f", f.per_device);
        print_number(f.user, 10, 1);
        printf("  %-15s %-15s %-15s %-17s", text[0], text[1], text[2], text[3]);
        if (p->price > 0)
            print_number(f.price, 0, 3);
        printf("\n");
        print_notes(pt, p);
    }
}

int sim_report_ended(const struct sim_report *r, struct cfg_error *err)
{
    uint64_t refused = 0, failed = 0;
    for (int i = 0; i < r->n; i++) {
        const struct sim_outcome *o = &r->point[i]->outcome;
        if (o->requests)
            return 0;
        refused += o->refused;
        failed += o->failed;
    }
    if (refused || failed)
        return cfg_error_set(err, ENODATA,
                             "no request ended: %llu were refused, %llu failed; the described machine cannot hold this "
                             "load (decode.kv_tokens, decode.streams, ranks)",
                             (unsigned long long)refused, (unsigned long long)failed);
    return cfg_error_set(err, ENODATA,
                         "no request ended in the virtual time that was counted; give more of it (--seconds), or a "
                         "number of requests (--requests)");
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
    struct sim_figures f = sim_figures_of(pt, p);
    json_t *j =
        json_pack("{s:i,s:i,s:i,s:i,s:s,s:f,s:s,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "decode_ranks", pt->decode,
                  "decode_group", pt->decode_group, "prefill_group", pt->prefill_group, "prefill_ranks", pt->prefill,
                  "loop", pt->open ? "open" : "closed", pt->open ? "requests_per_second" : "requests_per_rank",
                  pt->value, "mode", pt->mode, "seconds", o->seconds, "requests", (json_int_t)o->requests, "refused",
                  (json_int_t)o->refused, "failed", (json_int_t)o->failed, "parked", (json_int_t)o->parked, "cut",
                  (json_int_t)o->cut, "output_tokens", (json_int_t)o->tokens, "prompt_tokens",
                  (json_int_t)o->prompt_tokens, "cached_tokens", (json_int_t)o->cached_tokens);
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
    json_t *all =
        json_pack("{s:i,s:s,s:O,s:o}", "format", 1, "profile", p->name, "conditions", r->conditions, "points", points);
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
        struct sim_figures g = sim_figures_of(pt, p);
        fprintf(f, "%d,%d,%d,%d,%s,%g,%s,%.6f,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%.9g,%.9g,%.9g,", pt->decode,
                pt->decode_group, pt->prefill, pt->prefill_group, pt->open ? "open" : "closed", pt->value, pt->mode,
                o->seconds, (unsigned long long)o->requests, (unsigned long long)o->refused,
                (unsigned long long)o->failed, (unsigned long long)o->parked, (unsigned long long)o->prompt_tokens,
                (unsigned long long)o->cached_tokens, (unsigned long long)o->tokens, g.rate, g.per_rank, g.per_device);
        if (isfinite(g.user))
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
