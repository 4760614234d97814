/* How fast the CPU kernels are on this machine, next to what the machine can do: memory read bandwidth for one row,
 * dot-product peak for many. Everything is measured in one run, the median of several repetitions each.
 * With one thread CPU time is taken instead of elapsed time, so that other work on the machine disturbs it less.
 *
 *   bench_kernels [threads]      (default: every CPU of the affinity mask) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "model/backend.h"
#include "model/modules.h"
#include "model/numerics.h"

enum { REPEATS = 7 };

static struct mdl_team *team;
static int threads;

static double now(void)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of the median of several calls. */
static double median_of(void (*fn)(void *), void *ctx)
{
    double took[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        double t = now();
        fn(ctx);
        took[i] = now() - t;
    }
    qsort(took, REPEATS, sizeof *took, by_value);
    return took[REPEATS / 2];
}

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        exit(1);
    }
    return p;
}

static uint32_t rnd(void)
{
    static uint64_t s = 88172645463325252u;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (uint32_t)(s >> 32);
}

/* ---- what the machine can do ---- */

typedef uint64_t line __attribute__((vector_size(64)));

struct read_job {
    const line *data;
    int pieces;
    size_t piece;
    uint64_t sink[256];
};

static void read_items(void *ctx, int begin, int end, int thread)
{
    struct read_job *j = ctx;
    line a = {0}, b = {0}, c = {0}, d = {0};
    for (int p = begin; p < end; p++) {
        const line *at = j->data + (size_t)p * j->piece;
        for (size_t i = 0; i < j->piece; i += 4) {
            a += at[i];
            b += at[i + 1];
            c += at[i + 2];
            d += at[i + 3];
        }
    }
    a += b + c + d;
    j->sink[thread] += a[0] + a[3] + a[7];
}

static void read_all(void *ctx)
{
    struct read_job *j = ctx;
    mdl_team_run(team, j->pieces, 1, read_items, j);
}

static double read_bandwidth(const void *data, size_t bytes)
{
    struct read_job j = {.data = data, .piece = 16384};
    j.pieces = (int)(bytes / sizeof(line) / j.piece);
    double t = median_of(read_all, &j);
    return (double)j.pieces * (double)j.piece * sizeof(line) / t;
}

#if defined(__x86_64__)
enum { PEAK_STEPS = 2000000, PEAK_CHAINS = 16 };

__attribute__((target("avx512f,avx512bf16"))) static void peak_items(void *ctx, int begin, int end, int thread)
{
    float *sink = ctx;
    __m512 acc[PEAK_CHAINS];
    __m512i x = _mm512_set1_epi32(thread), w = _mm512_set1_epi32(begin + end);
    for (int i = 0; i < PEAK_CHAINS; i++)
        acc[i] = _mm512_setzero_ps();
    for (int s = 0; s < PEAK_STEPS; s++) {
        __asm__ volatile("" : "+v"(x), "+v"(w));
#pragma GCC unroll 16
        for (int i = 0; i < PEAK_CHAINS; i++)
            acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)x, (__m512bh)w);
    }
    for (int i = 1; i < PEAK_CHAINS; i++)
        acc[0] = _mm512_add_ps(acc[0], acc[i]);
    sink[thread] = _mm512_reduce_add_ps(acc[0]);
}

static void peak_run(void *ctx)
{
    mdl_team_run(team, threads, 1, peak_items, ctx);
}

static double dot_peak(void)
{
    float sink[256];
    return 64.0 * PEAK_STEPS * PEAK_CHAINS * threads / median_of(peak_run, sink);
}
#else
static double dot_peak(void)
{
    return 0;
}
#endif

/* ---- linear maps ---- */

static const char *const kind_name[] = {"FP8", "FP4", "BF16", "F32"};

static struct mdl_linear make_linear(enum mdl_wkind kind, int n, int k, const void *data, const uint8_t *scale)
{
    return (struct mdl_linear){.kind = kind, .n = n, .k = k, .data = data, .scale = scale};
}

struct linear_job {
    struct mdl_exec ex;
    struct mdl_linear w;
    const uint16_t *x;
    float *y;
    int rows;
};

static void linear_run(void *ctx)
{
    struct linear_job *j = ctx;
    mdl_linear_f32(&j->ex, &j->w, j->x, (size_t)j->w.k, j->rows, j->y, (size_t)j->w.n);
}

static double weight_bytes(const struct mdl_linear *w)
{
    double cells = (double)w->n * w->k;
    return w->kind == MDL_W_FP8 ? cells + cells / 1024 : w->kind == MDL_W_FP4 ? cells / 2 + cells / 32 : cells * 2;
}

static void bench_linear(const struct mdl_backend *be, double bandwidth, double peak, const void *data,
                         const uint8_t *scale, const uint16_t *x, float *y)
{
    int small = be == &mdl_backend_scalar;
    for (int kind = MDL_W_FP8; kind <= MDL_W_BF16; kind++) {
        int n = small ? 2048 : kind == MDL_W_BF16 ? 32768 : 65536;
        struct linear_job j = {{NULL, be, team}, make_linear((enum mdl_wkind)kind, n, 5120, data, scale), x, y, 1};
        double t = median_of(linear_run, &j), rate = weight_bytes(&j.w) / t;
        printf("%-7s %-4s 1 row      %5d x %d (%4.0f MB): %7.2f GB/s, %5.1f %% of read bandwidth\n", be->name,
               kind_name[kind], n, 5120, weight_bytes(&j.w) / 1e6, rate / 1e9, 100 * rate / bandwidth);
        for (int rows = 4; rows <= 512; rows *= 2) {
            if (rows == 16 || rows == 128 || rows == 256 || (small && rows > 8))
                continue;
            j.w = make_linear((enum mdl_wkind)kind, small ? 64 : 2304, 5120, data, scale);
            j.rows = rows;
            t = median_of(linear_run, &j);
            double flops = 2.0 * rows * j.w.n * j.w.k / t;
            printf("%-7s %-4s %3d rows   %5d x %d          : %7.1f GFLOP/s", be->name, kind_name[kind], rows, j.w.n,
                   5120, flops / 1e9);
            if (peak > 0)
                printf(", %5.1f %% of dot-product peak", 100 * flops / peak);
            printf("\n");
        }
    }
}

/* ---- the other kernels, one thread, working set in cache ---- */

struct small_job {
    const struct mdl_backend *be;
    uint16_t *keys, *q, *out;
    uint8_t *codes, *scales;
    float *prob, *score;
    int times;
};

enum { HEADS = 64, DIM = 512, KEYS = 640, INDEX_KEYS = 512, WIDTH = 5120 };

static void run_attention(void *ctx)
{
    struct small_job *j = ctx;
    static const float sink[HEADS];
    for (int i = 0; i < j->times; i++)
        mdl_attn_core(j->be, j->q, j->keys, KEYS, DIM, sink, 0, HEADS, j->prob, j->out);
}

static void run_index(void *ctx)
{
    struct small_job *j = ctx;
    for (int i = 0; i < j->times; i++)
        j->be->index_scores(j->q, j->prob, 32, 128, j->codes, j->scales, INDEX_KEYS, j->score);
}

static void run_dequant_q8(void *ctx)
{
    struct small_job *j = ctx;
    for (int i = 0; i < j->times; i++)
        j->be->dequant_q8(j->codes, j->scales, WIDTH, j->out);
}

static void run_dequant_q4k(void *ctx)
{
    struct small_job *j = ctx;
    for (int i = 0; i < j->times; i++)
        j->be->dequant_q4k(j->codes, j->scales, WIDTH, j->out);
}

static void run_softmax(void *ctx)
{
    struct small_job *j = ctx;
    float top;
    for (int i = 0; i < j->times; i++) {
        memset(j->score, 0, WIDTH * sizeof *j->score);
        j->be->softmax(j->score, WIDTH, 1.0f, &top);
    }
}

static void run_fakequant(void *ctx)
{
    struct small_job *j = ctx;
    for (int i = 0; i < j->times; i++)
        j->be->fakequant_q8(j->q, WIDTH, j->out);
}

static void run_swiglu(void *ctx)
{
    struct small_job *j = ctx;
    for (int i = 0; i < j->times; i++)
        j->be->swiglu(j->q, j->keys, 7.0f, 0.5f, WIDTH, j->out);
}

static void run_expand(void *ctx)
{
    struct small_job *j = ctx;
    for (int i = 0; i < j->times; i++)
        j->be->expand(j->q, j->prob, j->prob, WIDTH, j->out);
}

static void run_rms(void *ctx)
{
    struct small_job *j = ctx;
    for (int i = 0; i < j->times; i++)
        mdl_rms_row(j->be, j->q, j->keys, WIDTH, 1e-6f, j->out);
}

static void bench_small(struct small_job *j)
{
    static const struct {
        const char *what;
        void (*run)(void *ctx);
        double items;
        int times;
        const char *unit;
    } jobs[] = {
        {"attention, 64 heads x 640 keys x 512", run_attention, (double)HEADS * KEYS, 1, "ns per head and key"},
        {"index scores, 32 heads x 128", run_index, INDEX_KEYS, 4, "ns per key"},
        {"q8 row to bf16, 5120", run_dequant_q8, WIDTH, 100, "ns per value"},
        {"q4k row to bf16, 5120", run_dequant_q4k, WIDTH, 100, "ns per value"},
        {"softmax", run_softmax, WIDTH, 20, "ns per value"},
        {"fake-quantise a row of 5120", run_fakequant, WIDTH, 20, "ns per value"},
        {"activation of an expert, 5120", run_swiglu, WIDTH, 20, "ns per value"},
        {"four streams of 5120 mixed and written", run_expand, WIDTH, 20, "ns per value"},
        {"rms norm of a row of 5120", run_rms, WIDTH, 20, "ns per value"},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        j->times = jobs[i].times;
        double t = median_of(jobs[i].run, j) / jobs[i].times / jobs[i].items;
        printf("%-7s %-38s %8.3f %s\n", j->be->name, jobs[i].what, t * 1e9, jobs[i].unit);
    }
}

/* ---- the team ---- */

static void no_items(void *ctx, int begin, int end, int thread)
{
    (void)ctx, (void)begin, (void)end, (void)thread;
}

static void run_team(void *ctx)
{
    int *times = ctx;
    for (int i = 0; i < *times; i++)
        mdl_team_run(team, 2 * threads, 1, no_items, NULL);
}

static void print_conditions(void)
{
    char text[256] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(text, sizeof text, f))
        if (!strncmp(text, "model name", 10))
            break;
    if (f)
        fclose(f);
    text[strcspn(text, "\n")] = 0;
    char *name = strchr(text, ':');
    double load[3] = {0};
    if (getloadavg(load, 3) < 0)
        load[0] = NAN;
    printf("CPU %s; %ld online, %d threads used; load average before the run %.2f; best of %d, %s time\n",
           name ? name + 2 : text, sysconf(_SC_NPROCESSORS_ONLN), threads, load[0], REPEATS,
           threads == 1 ? "CPU" : "elapsed");
    if (load[0] > 0.5)
        printf("other work is running on this machine: these figures are not its best\n");
}

int main(int argc, char **argv)
{
    struct cfg_error err;
    threads = argc > 1 ? atoi(argv[1]) : mdl_team_default_threads();
    threads = threads < 1 ? 1 : threads > 256 ? 256 : threads;
    print_conditions();
    if (mdl_team_new(threads, &team, &err)) {
        fprintf(stderr, "bench_kernels: %s\n", err.msg);
        return 1;
    }
    size_t bytes = (size_t)65536 * 5120;
    uint8_t *data = must(aligned_alloc(64, bytes)), *scale = must(malloc((size_t)65536 * 160));
    for (size_t i = 0; i < bytes; i += 4) {
        /* Keeps E4M3 codes off NaN and bf16 values finite. */
        uint32_t v = rnd() & 0xbfbfbfbfu;
        memcpy(data + i, &v, 4);
    }
    memset(scale, 120, (size_t)65536 * 160);
    uint16_t *x = must(malloc((size_t)512 * 5120 * sizeof *x));
    for (size_t i = 0; i < (size_t)512 * 5120; i++)
        x[i] = mdl_to_bf16((float)(rnd() >> 8) * 0x1p-24f - 0.5f);
    float *y = must(malloc((size_t)512 * 2304 * sizeof *y));
    double bandwidth = read_bandwidth(data, bytes), peak = 0;
    printf("memory read bandwidth over %.0f MB: %.2f GB/s\n", (double)bytes / 1e6, bandwidth / 1e9);
    static const char *const names[] = {"avx512", "avx2", "scalar"};
    const struct mdl_backend *be;
    if (!mdl_backend_select("avx512", &be, NULL)) {
        peak = dot_peak();
        printf("dot-product peak (vdpbf16ps): %.1f GFLOP/s\n", peak / 1e9);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (mdl_backend_select(names[i], &be, &err)) {
            printf("%s: %s\n", names[i], err.msg);
            continue;
        }
        bench_linear(be, bandwidth, peak, data, scale, x, y);
        struct small_job j = {.be = be, .keys = x + 64 * 512, .q = x, .codes = data, .scales = scale, .prob = y};
        j.score = must(malloc(WIDTH * sizeof(float)));
        j.out = must(malloc((size_t)HEADS * DIM * sizeof(uint16_t)));
        bench_small(&j);
        free(j.score);
        free(j.out);
    }
    int times = 2000;
    printf("empty call of the team: %.2f us\n", median_of(run_team, &times) / times * 1e6);
    mdl_team_free(team);
    free(y);
    free(x);
    free(scale);
    free(data);
    return 0;
}
