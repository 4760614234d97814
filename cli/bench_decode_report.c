#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_decode.h"
#include "cli/conditions.h"
#include "cli/output.h"
#include "cli/plot.h"

int bd_add(struct bd_results *r, const struct bd_point *p, struct cfg_error *err)
{
    if (r->n == r->cap) {
        int cap = r->cap ? 2 * r->cap : 256;
        struct bd_point *more = realloc(r->point, (size_t)cap * sizeof *more);
        if (!more)
            return cfg_error_set(err, ENOMEM, "out of memory");
        r->point = more;
        r->cap = cap;
    }
    r->point[r->n++] = *p;
    return 0;
}

void bd_free(struct bd_results *r)
{
    json_decref(r->conditions);
    free(r->point);
}

void bd_mode_name(int mode, char out[16])
{
    if (mode == BD_DYNAMIC)
        snprintf(out, 16, "dynamic");
    else if (mode == 0)
        snprintf(out, 16, "off");
    else
        snprintf(out, 16, "fixed %d", mode);
}

/* ---- one way at one load, over its repeats ---- */

struct cell {
    int mode, load, n;
    double tokens[BD_REPEATS]; /* emitted, or expected where luck was left out */
    double seconds_of[BD_REPEATS];
    struct mdl_counters sum;
    int64_t rounds, skipped, probes;
    double seconds, planning;
    double mean, half; /* of tokens per second */
};

static struct cli_spec_runs runs_of(const struct cell *c, int from)
{
    return (struct cli_spec_runs){c->tokens + from, c->seconds_of + from};
}

static void make_cell(const struct bd_results *r, int mode, int load, struct cell *c)
{
    *c = (struct cell){.mode = mode, .load = load};
    for (int i = 0; i < r->n; i++) {
        const struct bd_point *p = &r->point[i];
        if (p->mode != mode || p->load != load || c->n == BD_REPEATS)
            continue;
        c->tokens[c->n] = p->expected >= 0 ? p->expected : (double)p->counters.emitted;
        c->seconds_of[c->n++] = p->seconds;
        mdl_counters_add(&c->sum, &p->counters);
        c->rounds += p->rounds;
        c->skipped += p->skipped;
        c->probes += p->probes;
        c->seconds += p->seconds;
        c->planning += p->planning;
    }
    cli_spec_rate(runs_of(c, 0), c->n, &c->mean, &c->half);
}

/* Different values of mode or load, in the order in which they occur first (loads) or off, 1, 2, ..., dynamic. */
static int list_loads(const struct bd_results *r, int *out)
{
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        int k = 0;
        while (k < n && out[k] != r->point[i].load)
            k++;
        if (k == n && n < BD_LOADS)
            out[n++] = r->point[i].load;
    }
    return n;
}

static int mode_rank(int mode)
{
    return mode == BD_DYNAMIC ? MDL_MAX_BLOCK + 1 : mode;
}

static int list_modes(const struct bd_results *r, int *out)
{
    int n = 0;
    for (int rank = 0; rank <= MDL_MAX_BLOCK + 1; rank++)
        for (int i = 0; i < r->n; i++)
            if (mode_rank(r->point[i].mode) == rank) {
                out[n++] = r->point[i].mode;
                break;
            }
    return n;
}

static void change(const struct cell *a, const struct cell *b, double *mean, double *half)
{
    cli_spec_change(runs_of(a, 0), runs_of(b, 0), a->n < b->n ? a->n : b->n, mean, half);
}

int bd_change(const struct bd_results *r, int load, int mode, int other, double *percent, double *half)
{
    struct cell a, b;
    make_cell(r, mode, load, &a);
    make_cell(r, other, load, &b);
    change(&a, &b, percent, half);
    return a.n < b.n ? a.n : b.n;
}

/* Repeats of one parity. */
static int every_second(const struct cell *from, int parity, struct cell *out)
{
    out->n = 0;
    for (int i = parity; i < from->n; i += 2) {
        out->tokens[out->n] = from->tokens[i];
        out->seconds_of[out->n++] = from->seconds_of[i];
    }
    return out->n;
}

/* The best other of the odd repeats is compared on the even ones, and the other way round: one that was chosen for its
 * luck does not keep it. With a single repeat there is nothing to keep apart. */
bool bd_judge(const struct bd_results *r, int load, struct bd_verdict *v)
{
    int modes[BD_MODES], n = list_modes(r, modes);
    struct cell dynamic, c, mine, half_of;
    double best = 0, most[2] = {0}, percent[2] = {NAN, NAN}, half[2] = {NAN, NAN};
    int chosen[2] = {0, 0}, found = 0, longest = 0;
    make_cell(r, BD_DYNAMIC, load, &dynamic);
    for (int m = 0; m < n && dynamic.n; m++) {
        make_cell(r, modes[m], load, &c);
        longest = modes[m] != BD_DYNAMIC && c.n > longest ? c.n : longest;
    }
    if (longest && longest < dynamic.n) /* all others were left out, the last ones after so many repeats */
        dynamic.n = longest;
    *v = (struct bd_verdict){.percent = NAN,
                             .half = NAN,
                             .low = INFINITY,
                             .rounds = dynamic.rounds,
                             .skipped = dynamic.skipped,
                             .probes = dynamic.probes,
                             .planning = dynamic.seconds > 0 ? dynamic.planning / dynamic.seconds : NAN};
    for (int m = 0; m < n; m++) {
        double mean, wide;
        make_cell(r, modes[m], load, &c);
        if (modes[m] == BD_DYNAMIC || !c.n || !dynamic.n)
            continue;
        change(&dynamic, &c, &mean, &wide);
        if (mean - wide < v->low || isinf(v->low)) {
            v->low = mean - wide;
            v->hardest = modes[m];
        }
        if (c.n < dynamic.n)
            continue; /* left out after some repeats: surely slower */
        if (!found++ || c.mean > best) {
            best = c.mean;
            v->best = modes[m];
        }
        for (int k = 0; k < 2; k++) {
            double rate;
            cli_spec_rate(runs_of(&half_of, 0), every_second(&c, k, &half_of), &rate, &wide);
            if (rate > most[k]) {
                most[k] = rate;
                chosen[k] = modes[m];
            }
        }
    }
    if (!found)
        return false;
    if (dynamic.n < 4) {
        make_cell(r, v->best, load, &c);
        change(&dynamic, &c, &v->percent, &v->half);
        return true;
    }
    for (int k = 0; k < 2; k++) {
        make_cell(r, chosen[1 - k], load, &c);
        int pairs = every_second(&dynamic, k, &mine);
        every_second(&c, k, &half_of);
        cli_spec_change(runs_of(&mine, 0), runs_of(&half_of, 0), pairs, &percent[k], &half[k]);
    }
    v->percent = (percent[0] + percent[1]) / 2;
    v->half = sqrt(half[0] * half[0] + half[1] * half[1]) / 2;
    return true;
}

/* ---- text ---- */

static void print_number(double v, int width, int digits)
{
    if (isnan(v))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, digits, v);
}

static void print_change(const struct cell *c, const struct cell *other)
{
    double percent = NAN, half = NAN;
    if (other->n && other->mode != c->mode)
        change(c, other, &percent, &half);
    print_number(percent, 9, 2);
    print_number(half, 6, 2);
}

static void print_row(const struct bd_results *r, const struct cell *c, const struct cell *longest,
                      const struct cell *off)
{
    char name[16];
    struct cli_spec_figures f = cli_spec_figures(&c->sum), whole = cli_spec_figures(&longest->sum);
    double raw = (double)(c->sum.steps + c->sum.offered) / c->seconds;
    bd_mode_name(c->mode, name);
    printf("%5d %-8s %10.1f", c->load, name, c->mean);
    print_number(c->half, 8, 1);
    printf(" %9.1f %10.1f", c->mean / c->load, raw);
    print_number(f.emitted_per_step, 8, 3);
    print_number(f.offered_per_step, 8, 3);
    print_number(100 * f.accepted_per_offered, 8, 1);
    print_number(100 * f.accepted_per_drafted, 8, 1);
    print_number(longest->n ? 100 * (1 - f.rows_per_step / whole.rows_per_step) : NAN, 8, 1);
    print_change(c, longest);
    print_change(c, off);
    if (!isnan(r->convert)) {
        double tokens;
        struct cfg_error err;
        if (!cli_spec_convert(c->mode == BD_DYNAMIC, c->mode > 0 ? c->mode : 0, r->convert, &tokens, &err))
            print_number(tokens * (double)c->sum.steps / c->seconds, 10, 1);
    }
    putchar('\n');
}

static void print_signed(double v)
{
    if (isfinite(v))
        printf(" %+6.2f", v);
    else
        printf(" %6s", "-");
}

static void print_dynamic(const struct bd_results *r, const int *loads, int n)
{
    bool head = false;
    for (int l = 0; l < n; l++) {
        struct bd_verdict v;
        char name[16], hardest[16];
        if (!bd_judge(r, loads[l], &v))
            continue;
        if (!head)
            puts("\ndynamic against the best of the others at each load, chosen on one half of the repeats and "
                 "compared on the "
                 "other;\nlow: the lowest end of its 95 % intervals against each of the others");
        head = true;
        bd_mode_name(v.best, name);
        bd_mode_name(v.hardest, hardest);
        printf("%5d  best: %-8s  dynamic", loads[l], name);
        print_signed(v.percent);
        printf(" %% +-");
        print_number(v.half, 0, 2);
        printf("   low");
        if (isfinite(v.low)) {
            print_signed(v.low);
            printf(" %% (%s)", hardest);
        } else {
            printf(" %6s", "-"); /* one repeat has no interval, so none reaches lowest */
        }
        printf("   planning");
        print_number(100 * v.planning, 0, 2);
        printf(" %%   rounds %lld, of these without the drafter %lld, probes %lld\n", (long long)v.rounds,
               (long long)v.skipped, (long long)v.probes);
    }
}

/* Whether tokens are those that were to be expected, and not those that came out. */
static bool luck_left_out(const struct bd_results *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->point[i].expected >= 0)
            return true;
    return false;
}

void bd_print(const struct bd_results *r)
{
    int loads[BD_LOADS], modes[BD_MODES], n_loads = list_loads(r, loads), n_modes = list_modes(r, modes), longest = 0;
    for (int m = 0; m < n_modes; m++)
        longest = modes[m] > longest ? modes[m] : longest;
    cli_conditions_print(r->conditions);
    bool assumed = !isnan(r->convert);
    static const char head[] = "%5s %-8s %10s %8s %9s %10s %8s %8s %8s %8s %8s %9s %6s %9s %6s%s\n";
    putchar('\n');
    printf(head, "seqs", "drafts", luck_left_out(r) ? "expected/s" : "emitted/s", "+-95%", "per user", "raw rows/s",
           "emitted", "offered", "accepted", "accepted", "rows", "speed", "", "speed", "",
           assumed ? "  converted" : "");
    printf(head, "", "", "", "", "", "", "/step", "/step", "/offered", "/drafted", "saved %", "change %", "+-95%",
           "change %", "+-95%", assumed ? "  tokens/s, assumed rate" : "");
    printf(head, "", "", "", "", "", "", "", "", "%", "%", "to longest", "to longest", "", "to off", "", "");
    for (int l = 0; l < n_loads; l++) {
        struct cell whole, off;
        make_cell(r, longest, loads[l], &whole);
        make_cell(r, 0, loads[l], &off);
        for (int m = 0; m < n_modes; m++) {
            struct cell c;
            make_cell(r, modes[m], loads[l], &c);
            if (c.n)
                print_row(r, &c, &whole, &off);
        }
    }
    print_dynamic(r, loads, n_loads);
}

/* ---- files ---- */

int bd_write_csv(const struct bd_results *r, const char *path, struct cfg_error *err)
{
    struct cli_output out;
    int bad = cli_output_begin(&out, path, err);
    if (bad)
        return bad;
    FILE *f = out.to;
    fputs("drafts,sequences,repeat,seconds,rounds,rounds_without_drafter,probes,steps,drafted,offered,accepted,emitted,"
          "emitted_per_second,raw_rows_per_second,emitted_per_step,accepted_per_offered,accepted_per_drafted,"
          "expected,expected_per_second\n",
          f);
    for (int i = 0; i < r->n; i++) {
        const struct bd_point *p = &r->point[i];
        const struct mdl_counters *c = &p->counters;
        struct cli_spec_figures s = cli_spec_figures(c);
        char name[16];
        bd_mode_name(p->mode, name);
        fprintf(f, "%s,%d,%d,%.9f,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%.6g,%.6g,%.6g", name, p->load, p->repeat,
                p->seconds, (long long)p->rounds, (long long)p->skipped, (long long)p->probes, (long long)c->steps,
                (long long)c->drafted, (long long)c->offered, (long long)c->accepted, (long long)c->emitted,
                (double)c->emitted / p->seconds, (double)(c->steps + c->offered) / p->seconds, s.emitted_per_step);
        const double ratio[] = {s.accepted_per_offered, s.accepted_per_drafted};
        for (int k = 0; k < 2; k++)
            fprintf(f, isnan(ratio[k]) ? "," : ",%.6g", ratio[k]);
        if (p->expected >= 0)
            fprintf(f, ",%.9g,%.6g\n", p->expected, p->expected / p->seconds);
        else
            fputs(",,\n", f);
    }
    return cli_output_end(&out, 0, err);
}

/* ---- plot ---- */

static const char *const colours[] = {"#222222", "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"};

static const char *colour_of(int mode)
{
    return mode == BD_DYNAMIC ? "#d62728" : colours[mode % (int)(sizeof colours / sizeof colours[0])];
}

static void plot_data(const struct bd_results *r, struct cli_plot *p, const int *modes, int n_modes, const int *loads,
                      int n_loads)
{
    for (int m = 0; m < n_modes; m++) {
        cli_plot_printf(p, "$m%d << EOD\n", m);
        for (int l = 0; l < n_loads; l++) {
            struct cell c;
            double tokens, scale = 1;
            struct cfg_error err;
            make_cell(r, modes[m], loads[l], &c);
            if (!c.n)
                continue;
            /* With a conversion, what is drawn is the converted rate, and the axis says so. */
            if (!isnan(r->convert) &&
                !cli_spec_convert(modes[m] == BD_DYNAMIC, modes[m] > 0 ? modes[m] : 0, r->convert, &tokens, &err))
                scale = tokens * (double)c.sum.steps / c.seconds / c.mean;
            cli_plot_printf(p, "%.9g %.9g %.9g %d\n", scale * c.mean / c.load, scale * c.mean,
                            isnan(c.half) ? 0 : scale * c.half, c.load);
        }
        cli_plot_printf(p, "EOD\n");
    }
}

/* Change of throughput against `off` and of dynamic against the best other: below zero is drawn like above. */
static int plot_changes(const struct bd_results *r, struct cli_plot *p, const int *modes, int n_modes, const int *loads,
                        int n_loads)
{
    int drawn = 0;
    for (int m = 0; m < n_modes; m++) {
        cli_plot_printf(p, "$c%d << EOD\n", m);
        for (int l = 0; l < n_loads; l++) {
            struct cell c, off;
            double mean, half;
            make_cell(r, modes[m], loads[l], &c);
            make_cell(r, 0, loads[l], &off);
            if (modes[m] == 0 || !c.n || !off.n)
                continue;
            change(&c, &off, &mean, &half);
            cli_plot_printf(p, "%d %.6g %.6g\n", loads[l], mean, isnan(half) ? 0 : half);
            drawn++;
        }
        cli_plot_printf(p, "EOD\n");
    }
    cli_plot_printf(p, "$best << EOD\n");
    for (int l = 0; l < n_loads; l++) {
        struct bd_verdict v;
        if (!bd_judge(r, loads[l], &v))
            continue;
        cli_plot_printf(p, "%d %.6g %.6g\n", loads[l], v.percent, isnan(v.half) ? 0 : v.half);
        drawn++;
    }
    cli_plot_printf(p, "EOD\n");
    return drawn;
}

int bd_plot(const struct bd_results *r, const char *path, struct cfg_error *err)
{
    int loads[BD_LOADS], modes[BD_MODES], n_loads = list_loads(r, loads), n_modes = list_modes(r, modes);
    struct cli_plot *p;
    int bad = cli_plot_begin(path, &p, err);
    if (bad)
        return bad;
    plot_data(r, p, modes, n_modes, loads, n_loads);
    int changes = plot_changes(r, p, modes, n_modes, loads, n_loads);
    bool off = n_modes && modes[0] == 0, dynamic = n_modes && modes[n_modes - 1] == BD_DYNAMIC;
    double bottom = cli_plot_conditions(p, r->conditions), legend = bottom + 0.06;
    bottom += 0.165;
    cli_plot_printf(p,
                    "set multiplot\nset grid lt 1 lw 0.7 lc rgb '#e0e0e0'\nset key font ',9' at screen 0.07,%g left "
                    "top horizontal maxrows 2 Left reverse samplen 3\n"
                    "set lmargin at screen 0.08\nset rmargin at screen %g\nset bmargin at screen %g\n"
                    "set tmargin at screen 0.93\n",
                    legend, changes ? 0.53 : 0.97, bottom);
    if (isnan(r->convert))
        cli_plot_printf(p,
                        "set title 'Speed per user against throughput per device (tokens %s)'\n"
                        "set xlabel \"tokens per second and user\\nnumbers at points: sequences at a time\"\n"
                        "set ylabel 'tokens per second and device'\n",
                        luck_left_out(r) ? "expected" : "emitted");
    else
        cli_plot_printf(p,
                        "set title 'Speed per user against throughput per device, CONVERTED'\n"
                        "set xlabel \"tokens per second and user = steps x (1 + drafts x %g), assumed rate\\n"
                        "numbers at points: sequences at a time\"\n"
                        "set ylabel 'tokens per second and device, converted'\n",
                        r->convert);
    cli_plot_printf(p, "set xrange [0:*]\nset yrange [0:*]\nset offsets 0, graph 0.04, graph 0.04, 0\nplot ");
    for (int m = 0; m < n_modes; m++) {
        char name[16];
        bd_mode_name(modes[m], name);
        cli_plot_printf(p,
                        "%s$m%d using 1:2:3 with yerrorbars pt 7 ps 0.7 lc rgb '%s' notitle, $m%d using 1:2 with lines "
                        "lw %d lc rgb '%s' title '%s'",
                        m ? ", " : "", m, colour_of(modes[m]), m, modes[m] == BD_DYNAMIC ? 3 : 1, colour_of(modes[m]),
                        name);
    }
    if (n_modes)
        cli_plot_printf(p, ", $m%d using 1:2:4 with labels offset 1.2,0.6 font ',8' notitle", n_modes - 1);
    cli_plot_printf(p, "\n");
    if (changes) {
        cli_plot_printf(
            p,
            "unset label\nunset offsets\nset lmargin at screen 0.62\nset rmargin at screen 0.97\n"
            "set title 'Change of throughput to %s%s'\nset xlabel 'sequences at a time'\n"
            "set ylabel 'per cent' offset 1,0\nset logscale x 2\nset xrange [%g:%g]\nset yrange [*:*]\n"
            "set xzeroaxis lt -1 lw 1.5\nset key at screen 0.99,%g right top vertical noreverse Right font ',9'\n"
            "plot ",
            off ? "off" : "the best other", isnan(r->convert) ? "" : ", as counted (NOT converted)", 0.8 * loads[0],
            1.25 * loads[n_loads - 1], legend);
        for (int m = 0; m < n_modes; m++) {
            double aside = pow(1.02, m - 0.5 * n_modes); /* bars of one load beside each other, not on each other */
            if (modes[m])
                cli_plot_printf(p,
                                "$c%d using ($1*%.3f):2:3 with yerrorbars pt 7 ps 0.6 lc rgb '%s' notitle, "
                                "$c%d using ($1*%.3f):2 with lines lc rgb '%s' notitle, ",
                                m, aside, colour_of(modes[m]), m, aside, colour_of(modes[m]));
        }
        cli_plot_printf(p, "%s\n",
                        dynamic ? "$best using 1:2:3 with yerrorbars pt 5 ps 0.8 lw 2 lc rgb '#000000' title "
                                  "'dynamic to the best other'"
                                : "0 lt -1 notitle");
    }
    cli_plot_printf(p, "unset multiplot\n");
    return cli_plot_end(p, err);
}
