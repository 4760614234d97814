/* How fast a whole model runs on this machine, next to what the machine can do: decoding at batch 1 against memory read
 * bandwidth over the bytes that must be read, prefill by prompt length in both modes. All in one run, each figure the
 * median of several repetitions. Weights are random: only the work counts.
 *
 *   bench_model MODEL_DIR [threads]      (make_model --preset mid makes a suitable model) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/decode.h"
#include "model/info.h"
#include "model/prefill.h"

enum { REPEATS = 5, STEPS = 16, MAX_TOKENS = 4096 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void check(int status, const struct cfg_error *err)
{
    if (status) {
        fprintf(stderr, "bench_model: %s\n", err->msg);
        exit(1);
    }
}

/* ---- memory ---- */

struct read_job {
    const uint64_t *data;
    uint64_t sum[1024];
};

static void read_items(void *ctx, int begin, int end, int thread)
{
    struct read_job *j = ctx;
    uint64_t s[8] = {0};
    for (const uint64_t *p = j->data + (size_t)begin * 4096, *e = j->data + (size_t)end * 4096; p < e; p += 8)
        for (int i = 0; i < 8; i++)
            s[i] += p[i];
    j->sum[thread] += s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

/* Bytes per second that the team reads from memory. */
static double read_bandwidth(struct mdl_team *team)
{
    enum { BLOCKS = 16384 }; /* of 32 KiB: 512 MiB, beyond any cache */
    struct read_job j = {.data = malloc((size_t)BLOCKS * 32768)};
    double took[REPEATS];
    if (!j.data)
        return 0;
    memset((void *)j.data, 1, (size_t)BLOCKS * 32768);
    for (int i = 0; i < REPEATS; i++) {
        double t = now();
        mdl_team_run(team, BLOCKS, 64, read_items, &j);
        took[i] = now() - t;
    }
    free((void *)j.data);
    return (double)BLOCKS * 32768 / median(took, REPEATS);
}

/* ---- the model ---- */

static int32_t *random_ids(int n, int vocab)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint64_t s = 88172645463325252u;
    for (int i = 0; ids && i < n; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        ids[i] = (int32_t)(s % (uint64_t)vocab);
    }
    return ids;
}

static double prefill_seconds(struct mdl_model *m, struct mdl_step *step, struct mdl_seq *seq, const int32_t *ids,
                              int n, bool exact)
{
    struct cfg_error err;
    struct mdl_prefill plan;
    double t = now();
    (void)m;
    mdl_seq_reset(seq);
    check(mdl_prefill_begin(&plan, seq, ids, n,
                            &(struct mdl_prefill_params){.exact = exact, .replay = seq->params.replay}, &err),
          &err);
    check(mdl_prefill_run(&plan, step, 0, NULL, NULL, &err), &err);
    return now() - t;
}

static void bench_prefill(struct mdl_model *m, struct mdl_step *step, struct mdl_seq *seq, const int32_t *ids)
{
    int r = seq->params.replay;
    printf("\nprefill, replay of %d rows, chunks of %d, one prompt alone (step time, not time to first token)\n", r,
           step->capacity);
    printf("%8s %14s %14s %8s\n", "tokens", "exact", "replay", "ratio");
    for (int n = m->cfg->window / 2; n < MAX_TOKENS; n *= 2) {
        double exact[3], replay[3];
        for (int i = 0; i < 3; i++) { /* alternating, so that other work disturbs both alike */
            exact[i] = prefill_seconds(m, step, seq, ids, n, true);
            replay[i] = prefill_seconds(m, step, seq, ids, n, false);
        }
        double e = median(exact, 3), p = median(replay, 3);
        printf("%8d %9.2f ms/t %9.2f ms/t %8.3f\n", n, 1e3 * e / n, 1e3 * p / n, p / e);
        fflush(stdout);
    }
}

static void bench_decode(struct mdl_model *m, struct mdl_seq *seq, double bandwidth)
{
    struct cfg_error err;
    struct mdl_decoder *d;
    struct mdl_info info;
    struct mdl_stream s = {.seq = seq, .next = 5, .limit = 1}, *list = &s;
    double took[REPEATS];
    check(mdl_decoder_new(m, 1, 0, MAX_TOKENS, &d, &err), &err);
    for (int i = 0; i < REPEATS; i++) {
        double t = now();
        for (int k = 0; k < STEPS; k++)
            check(mdl_decoder_round(d, &list, 1, &err), &err);
        took[i] = (now() - t) / STEPS;
    }
    mdl_info_compute(m->cfg, &info);
    double t = median(took, REPEATS), rate = (double)info.read_per_token / t;
    printf("\ndecode, batch 1, no drafting, context about %d tokens: %.1f ms per token, %.1f tokens/s\n", seq->len,
           1e3 * t, 1 / t);
    printf("  weights that a token must read: %.1f MB, read at %.2f GB/s, %.1f %% of the measured read bandwidth\n",
           (double)info.read_per_token / 1e6, rate / 1e9, 100 * rate / bandwidth);
    mdl_decoder_free(d);
}

int main(int argc, char **argv)
{
    struct cfg_error err;
    struct mdl_model *m;
    struct mdl_seq *seq;
    struct mdl_step *step;
    if (argc < 2) {
        /* `make bench` runs every program without arguments. */
        fprintf(stderr, "usage: bench_model MODEL_DIR [threads]; skipped\n");
        return 0;
    }
    check(mdl_model_open(argv[1], argc > 2 ? atoi(argv[2]) : 0, NULL, &m, &err), &err);
    int replay = m->cfg->cut < 0 ? 0 : m->cfg->window + 12;
    check(mdl_seq_new(m->cfg, &(struct mdl_seq_params){.max_tokens = MAX_TOKENS, .replay = replay}, &seq, &err), &err);
    check(mdl_step_new(m, 512, MAX_TOKENS, &step, &err), &err);
    int32_t *ids = random_ids(MAX_TOKENS, m->cfg->vocab_size);
    double bandwidth = read_bandwidth(m->team);
    printf("%s: cpu path %s, %d threads, memory read bandwidth %.2f GB/s\n", argv[1], m->exec.be->name,
           mdl_team_size(m->team), bandwidth / 1e9);
    if (ids && replay)
        bench_prefill(m, step, seq, ids);
    if (ids)
        bench_decode(m, seq, bandwidth);
    free(ids);
    mdl_step_free(step);
    mdl_seq_free(seq);
    mdl_model_close(m);
    return 0;
}
