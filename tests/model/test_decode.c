/* Decoding rounds against plain decoding, bit for bit: the tokens, the state they leave, and the counters. How many
 * guesses come true is up to the test: the pick of a draft may look into the plain run. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sampler.h"
#include "tests/harness.h"
#include "tests/support/model.h"

static const char *const folders[] = {TS_MINI8, TS_EDGE};

enum { PROMPT = 21, OUTPUT = 26, LENGTH = PROMPT + OUTPUT + 1 };

/* What a stream is to be: the plain run of a prompt, token by token, its sequence OUTPUT tokens behind the prompt. */
struct plain {
    struct ts_run run; /* ids: prompt, then the tokens that were picked; the last one was not run */
    struct mdl_sampler *sampler;
    struct mdl_sampling recipe; /* temperature 0: greedy, without sampler */
    int replay;                 /* R of the prefill, 0: exact */
};

static int32_t pick_token(struct plain *p, int pos, const float *logits, int n_history)
{
    int32_t id = -1;
    struct cfg_error err;
    if (p->recipe.temperature <= 0)
        return mdl_argmax(logits, p->run.m->cfg->vocab_size);
    cr_assert_eq(mdl_sampler_sample(p->sampler, &p->recipe, logits, p->run.m->cfg->vocab_size, p->run.ids, n_history,
                                    PROMPT, pos, &id, NULL, &err),
                 0);
    return id;
}

static void start_prompt(struct ts_run *r, struct mdl_step *step, int replay)
{
    struct mdl_prefill_params params = {.exact = !replay, .replay = replay};
    ts_run_prefill(r, step, PROMPT, &params, NULL);
}

static struct plain plain_run(struct mdl_model *m, struct mdl_step *step, uint64_t seed, double temperature, int replay)
{
    struct plain p = {.replay = replay};
    size_t vocab = (size_t)m->cfg->vocab_size;
    mdl_sampling_init(&p.recipe);
    p.recipe.temperature = temperature;
    p.recipe.seed = seed;
    p.recipe.top_p = 0.9;
    p.recipe.repetition_penalty = 1.2;
    p.recipe.frequency_penalty = 0.5;
    p.sampler = mdl_sampler_new(m->cfg->vocab_size);
    p.run = ts_run_new(m, (struct mdl_seq_params){.replay = replay}, seed, LENGTH);
    start_prompt(&p.run, step, replay);
    for (int pos = PROMPT; pos < LENGTH; pos++) {
        p.run.ids[pos] = pick_token(&p, pos, p.run.logits + (size_t)(pos - 1) * vocab, pos);
        if (pos + 1 < LENGTH)
            ts_run_decode(&p.run, step, pos + 1, 1);
    }
    return p;
}

static void plain_free(struct plain *p)
{
    mdl_sampler_free(p->sampler);
    ts_run_free(&p->run);
}

/* A stream of rounds that should give the plain run's tokens. */
struct spec {
    struct plain *plain;
    struct mdl_seq *seq;
    struct mdl_stream stream;
    int luck; /* of 100 guesses, how many are made right; -1: the drafter's own */
    uint64_t random;
    int picked;        /* final picks so far */
    int fail_at;       /* pick that fails, 0: none; counted from 1 */
    int draft_fail_at; /* position whose guess fails, 0: none */
    int finish_at;     /* pick that ends the stream, 0: none */
    int wrong_at;      /* position whose guess is made wrong, 0: none */
    int emitted;       /* tokens taken over by take_round */
};

static int32_t pick(void *ctx, int pos, float *logits, bool draft)
{
    struct spec *s = ctx;
    const int32_t *right = s->plain->run.ids;
    int vocab = s->plain->run.m->cfg->vocab_size;
    cr_assert_lt(pos, LENGTH, "position %d", pos);
    if (draft) {
        if (pos == s->draft_fail_at)
            return -EDOM;
        if (s->luck < 0)
            return pick_token(s->plain, pos, logits, s->seq->len + 1);
        if (pos == s->wrong_at)
            return (right[pos] + 1) % vocab;
        bool lucky = (int)ts_random(&s->random, 100) < s->luck;
        return lucky ? right[pos] : (right[pos] + 1 + (int32_t)ts_random(&s->random, 3)) % vocab;
    }
    if (++s->picked == s->fail_at)
        return -EDOM;
    int32_t id = pick_token(s->plain, pos, logits, pos);
    s->stream.finished = s->picked == s->finish_at;
    logits[0] = INFINITY; /* a pick may spoil its copy */
    return id;
}

static struct spec spec_new(struct plain *plain, struct mdl_step *step, int draft, int luck, int max_tokens)
{
    const struct ts_run *p = &plain->run;
    struct ts_run r =
        ts_run_new(p->m, (struct mdl_seq_params){.replay = plain->replay, .max_tokens = max_tokens}, 0, LENGTH);
    memcpy(r.ids, p->ids, LENGTH * sizeof *r.ids);
    start_prompt(&r, step, plain->replay);
    struct spec s = {.plain = plain, .seq = r.seq, .luck = luck, .random = (uint64_t)(draft * 100 + luck)};
    s.stream = (struct mdl_stream){.seq = r.seq, .next = p->ids[PROMPT], .draft = draft, .limit = OUTPUT};
    r.seq = NULL;
    ts_run_free(&r);
    return s;
}

/* pick_ctx points to the spec itself, so it is set where the spec has come to rest. */
static void spec_ready(struct spec *s)
{
    s->stream.pick = pick;
    s->stream.pick_ctx = s;
}

static struct mdl_decoder *new_decoder(struct mdl_model *m, int streams, int draft)
{
    struct mdl_decoder *d;
    struct cfg_error err;
    if (mdl_decoder_new(m, streams, draft, LENGTH, &d, &err))
        cr_assert_fail("%s", err.msg);
    return d;
}

/* Checks a round's tokens against the plain run. */
static void take_round(struct spec *s, const char *what)
{
    const struct mdl_stream *t = &s->stream;
    cr_assert_eq(t->status, 0, "%s", what);
    cr_assert(t->n_emitted >= 1 && t->n_emitted <= t->limit && t->n_emitted <= t->guess.n + 1, "%s: %d tokens", what,
              t->n_emitted);
    for (int i = 0; i < t->n_emitted; i++)
        cr_assert_eq(t->emitted[i], s->plain->run.ids[PROMPT + 1 + s->emitted + i], "%s: token %d", what,
                     s->emitted + i);
    s->emitted += t->n_emitted;
    cr_assert_eq(t->next, t->emitted[t->n_emitted - 1], "%s", what);
    cr_assert_eq(s->seq->len, PROMPT + s->emitted, "%s", what);
}

/* ended: by a guess that was kept, so that the last step has no token of the target's own. */
static void check_counters(const struct spec *s, bool ended, const char *what)
{
    const struct mdl_counters *c = &s->stream.counters;
    int64_t offered = 0, accepted = 0;
    for (int i = 0; i < MDL_MAX_BLOCK; i++) {
        offered += c->offered_at[i];
        accepted += c->accepted_at[i];
        cr_assert_le(c->accepted_at[i], c->offered_at[i], "%s: position %d", what, i);
        if (i)
            cr_assert_le(c->accepted_at[i], c->accepted_at[i - 1], "%s: position %d", what, i);
    }
    cr_assert_eq(offered, c->offered, "%s", what);
    cr_assert_eq(accepted, c->accepted, "%s", what);
    cr_assert_eq(c->emitted, c->accepted + c->steps - ended, "%s", what);
    cr_assert_eq(c->emitted, s->emitted, "%s", what);
    cr_assert_ge(c->drafted, c->offered, "%s", what);
}

static void run_to_end(struct mdl_decoder *d, struct spec *s, const char *what)
{
    struct mdl_stream *streams[] = {&s->stream};
    struct cfg_error err;
    while (s->emitted < OUTPUT) {
        s->stream.limit = OUTPUT - s->emitted;
        cr_assert_eq(mdl_decoder_round(d, streams, 1, &err), 0, "%s", what);
        take_round(s, what);
    }
}

/* ---- the output does not depend on drafts ---- */

static void check_lengths(const char *folder, double temperature, bool replay)
{
    struct mdl_model *m = ts_model(folder, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct plain p = plain_run(m, step, 41, temperature, replay ? m->cfg->window : 0);
    int64_t partial = 0;
    for (int draft = 0; draft <= m->cfg->draft_block; draft++) {
        struct mdl_decoder *d = new_decoder(m, 1, draft);
        for (int luck = -1; luck <= 100; luck = luck < 0 ? 60 : luck + 40) {
            char what[96];
            snprintf(what, sizeof what, "%s, temperature %g, draft %d, luck %d", folder, temperature, draft, luck);
            struct spec s = spec_new(&p, step, draft, luck, LENGTH);
            spec_ready(&s);
            run_to_end(d, &s, what);
            ts_same_state(p.run.seq, s.seq, (struct ts_scope){0}, what);
            check_counters(&s, false, what);
            const struct mdl_counters *c = &s.stream.counters;
            if (luck == 100)
                cr_assert(c->accepted == c->offered && c->steps == (OUTPUT + draft) / (draft + 1), "%s: %d steps", what,
                          (int)c->steps);
            if (draft == 0)
                cr_assert(c->steps == OUTPUT && c->offered == 0);
            if (luck == 60 && draft > 1)
                partial += c->accepted > 0 && c->accepted < c->offered;
            mdl_seq_free(s.seq);
        }
        mdl_decoder_free(d);
    }
    cr_assert_eq(partial, m->cfg->draft_block - 1, "guesses were to be accepted in part");
    plain_free(&p);
    mdl_step_free(step);
    mdl_model_close(m);
}

Test(decode, greedy_mini8)
{
    check_lengths(TS_MINI8, 0, false);
}

Test(decode, greedy_edge)
{
    check_lengths(TS_EDGE, 0, false);
}

Test(decode, greedy_after_replay)
{
    check_lengths(TS_MINI8, 0, true);
}

Test(decode, sampled_mini8)
{
    check_lengths(TS_MINI8, 1, false);
}

Test(decode, sampled_edge)
{
    check_lengths(TS_EDGE, 1, true);
}

/* No pick at all: greedy, with the drafter's own best guesses. */
Test(decode, greedy_without_pick)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
        struct plain p = plain_run(m, step, 12, 0, 0);
        struct mdl_decoder *d = new_decoder(m, 1, m->cfg->draft_block);
        struct spec s = spec_new(&p, step, m->cfg->draft_block, -1, LENGTH);
        run_to_end(d, &s, folders[f]);
        ts_same_state(p.run.seq, s.seq, (struct ts_scope){0}, folders[f]);
        check_counters(&s, false, folders[f]);
        mdl_seq_free(s.seq);
        mdl_decoder_free(d);
        plain_free(&p);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* A different seed gives a different text, or the tests above would say nothing about the recipe. */
Test(decode, recipe_matters)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct plain a = plain_run(m, step, 41, 1, 0), b = plain_run(m, step, 41, 0, 0);
    cr_assert_neq(memcmp(a.run.ids + PROMPT, b.run.ids + PROMPT, OUTPUT * sizeof(int32_t)), 0);
    plain_free(&a);
    plain_free(&b);
    mdl_step_free(step);
    mdl_model_close(m);
}

/* ---- several streams ---- */

Test(decode, streams_with_different_drafts)
{
    enum { STREAMS = 5 };
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 2);
        struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
        struct mdl_decoder *d = new_decoder(m, STREAMS, m->cfg->draft_block);
        struct plain p[STREAMS];
        struct spec s[STREAMS];
        for (int i = 0; i < STREAMS; i++) {
            p[i] = plain_run(m, step, (uint64_t)i + 60, i % 2, i == 3 ? m->cfg->window : 0);
            s[i] = spec_new(&p[i], step, i == 4 ? m->cfg->draft_block + 9 : i % (m->cfg->draft_block + 1), 70, LENGTH);
            spec_ready(&s[i]);
        }
        for (int round = 0;; round++) {
            struct mdl_stream *streams[STREAMS];
            struct cfg_error err;
            int n = 0;
            /* They come one after the other, leave when they are done, and stand at changing places. */
            for (int i = 0; i < STREAMS; i++) {
                int k = (i + round) % STREAMS;
                s[k].stream.limit = OUTPUT - s[k].emitted;
                if (s[k].stream.limit && round >= k)
                    streams[n++] = &s[k].stream;
            }
            if (!n)
                break;
            cr_assert_eq(mdl_decoder_round(d, streams, n, &err), 0);
            for (int i = 0; i < n; i++)
                take_round(streams[i]->pick_ctx, folders[f]);
        }
        for (int i = 0; i < STREAMS; i++) {
            char what[64];
            snprintf(what, sizeof what, "%s, stream %d", folders[f], i);
            ts_same_state(p[i].run.seq, s[i].seq, (struct ts_scope){0}, what);
            check_counters(&s[i], false, what);
            mdl_seq_free(s[i].seq);
            plain_free(&p[i]);
        }
        mdl_decoder_free(d);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* ---- any plan ---- */

struct scheme {
    uint64_t random;
    int trimmed; /* drafts that were not offered */
};

static void random_plan(void *ctx, struct mdl_stream *const *streams, int n)
{
    struct scheme *c = ctx;
    for (int i = 0; i < n; i++) {
        cr_assert_eq(streams[i]->offer, streams[i]->guess.n, "all is offered unless the plan says less");
        streams[i]->offer = (int)ts_random(&c->random, (uint32_t)streams[i]->guess.n + 1);
        c->trimmed += streams[i]->guess.n - streams[i]->offer;
    }
}

/* Streams draft any number of tokens in every round, and any part of these is verified. */
Test(decode, any_plan_gives_the_plain_run)
{
    enum { STREAMS = 4 };
    for (int seed = 1; seed <= 8; seed++) {
        struct mdl_model *m = ts_model(folders[seed % 2], 1);
        struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
        struct mdl_decoder *d = new_decoder(m, STREAMS, m->cfg->draft_block);
        struct scheme scheme = {.random = (uint64_t)seed};
        struct plain p[STREAMS];
        struct spec s[STREAMS];
        mdl_decoder_set_plan(d, random_plan, &scheme);
        for (int i = 0; i < STREAMS; i++) {
            p[i] = plain_run(m, step, (uint64_t)(seed * 10 + i), i % 2, 0);
            s[i] = spec_new(&p[i], step, 0, i == 0 ? -1 : 40 + 20 * i, LENGTH);
            spec_ready(&s[i]);
        }
        for (;;) {
            struct mdl_stream *streams[STREAMS];
            struct cfg_error err;
            int n = 0;
            for (int i = 0; i < STREAMS; i++) {
                s[i].stream.limit = OUTPUT - s[i].emitted;
                s[i].stream.draft = (int)ts_random(&scheme.random, (uint32_t)m->cfg->draft_block + 1);
                if (s[i].stream.limit)
                    streams[n++] = &s[i].stream;
            }
            if (!n)
                break;
            cr_assert_eq(mdl_decoder_round(d, streams, n, &err), 0);
            for (int i = 0; i < n; i++)
                take_round(streams[i]->pick_ctx, "any plan");
        }
        cr_assert_gt(scheme.trimmed, 0);
        for (int i = 0; i < STREAMS; i++) {
            ts_same_state(p[i].run.seq, s[i].seq, (struct ts_scope){0}, "any plan");
            check_counters(&s[i], false, "any plan");
            mdl_seq_free(s[i].seq);
            plain_free(&p[i]);
        }
        mdl_decoder_free(d);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* A plan may not offer what is not there. */
static void greedy_plan(void *ctx, struct mdl_stream *const *streams, int n)
{
    (void)ctx;
    for (int i = 0; i < n; i++)
        streams[i]->offer = i % 2 ? 99 : -3;
}

Test(decode, a_plan_is_held_to_what_was_drafted)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct mdl_decoder *d = new_decoder(m, 2, 5);
    struct plain p = plain_run(m, step, 41, 0, 0);
    struct spec a = spec_new(&p, step, 4, 100, LENGTH), b = spec_new(&p, step, 4, 100, LENGTH);
    struct mdl_stream *streams[] = {&a.stream, &b.stream};
    struct cfg_error err;
    spec_ready(&a);
    spec_ready(&b);
    mdl_decoder_set_plan(d, greedy_plan, NULL);
    cr_assert_eq(mdl_decoder_round(d, streams, 2, &err), 0);
    take_round(&a, "none");
    take_round(&b, "all");
    cr_assert_eq(a.stream.n_emitted, 1);
    cr_assert_eq(b.stream.n_emitted, 5);
    cr_assert_eq(a.stream.counters.drafted, 4);
    cr_assert_eq(a.stream.counters.offered, 0);
    mdl_seq_free(a.seq);
    mdl_seq_free(b.seq);
    mdl_decoder_free(d);
    plain_free(&p);
    mdl_step_free(step);
    mdl_model_close(m);
}

static void count_plans(void *ctx, struct mdl_stream *const *streams, int n)
{
    (void)streams;
    (void)n;
    ++*(int *)ctx;
}

/* Streams that draft nothing cost no step of the drafter: the round begins with the verification, as it does where
 * there is no drafter. With one draft among them it does not. */
Test(decode, without_drafts_the_drafter_does_not_run)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct mdl_decoder *d = new_decoder(m, 2, 5);
    struct plain p = plain_run(m, step, 41, 0, 0);
    for (int drafts = 0; drafts < 2; drafts++) {
        struct spec a = spec_new(&p, step, 0, 100, LENGTH), b = spec_new(&p, step, drafts, 100, LENGTH);
        struct mdl_stream *streams[] = {&a.stream, &b.stream};
        struct cfg_error err;
        int plans = 0, r;
        spec_ready(&a);
        spec_ready(&b);
        mdl_decoder_set_plan(d, count_plans, &plans);
        cr_assert_eq(mdl_decoder_begin(d, streams, 2, &mdl_providers_local, &err), 0);
        cr_expect_eq(plans, drafts ? 0 : 1, "%d drafts: %d steps are to be verified", drafts, plans);
        while ((r = mdl_decoder_advance(d, &err)) == MDL_STEP_MORE)
            ;
        cr_assert_eq(r, 0);
        cr_expect_eq(plans, 1);
        mdl_seq_free(a.seq);
        mdl_seq_free(b.seq);
    }
    mdl_decoder_free(d);
    plain_free(&p);
    mdl_step_free(step);
    mdl_model_close(m);
}

/* Every number of kept and of rejected drafts from every place around a turn of the rings and every phase of a
 * compressor's group, against a twin that never drafted. Then a second round, over what the rejected rows left. */
Test(decode, rejected_drafts_leave_no_trace_at_any_phase)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
        int block = m->cfg->draft_block;
        struct mdl_decoder *d = new_decoder(m, 1, block);
        struct plain p = plain_run(m, step, 77, 0, 0);
        for (int from = PROMPT; from + block + 3 < LENGTH; from++) {
            struct ts_run base = ts_run_new(m, (struct mdl_seq_params){0}, 0, LENGTH);
            memcpy(base.ids, p.run.ids, LENGTH * sizeof *base.ids);
            start_prompt(&base, step, 0);
            ts_run_decode(&base, step, from, 1);
            for (int offer = 0; offer <= block; offer++)
                for (int right = 0; right <= offer; right++) {
                    char what[96];
                    snprintf(what, sizeof what, "%s, position %d, %d of %d", folders[f], from, right, offer);
                    struct spec s = {
                        .plain = &p, .seq = ts_seq_clone(base.seq), .luck = 100, .wrong_at = from + 1 + right};
                    s.stream =
                        (struct mdl_stream){.seq = s.seq, .next = p.run.ids[from], .draft = offer, .limit = block + 1};
                    spec_ready(&s);
                    struct mdl_stream *list = &s.stream;
                    struct cfg_error err;
                    cr_assert_eq(mdl_decoder_round(d, &list, 1, &err), 0);
                    cr_assert_eq(s.stream.n_emitted, right + 1, "%s", what);
                    struct ts_run twin = ts_run_new(m, (struct mdl_seq_params){0}, 0, LENGTH);
                    memcpy(twin.ids, p.run.ids, LENGTH * sizeof *twin.ids);
                    mdl_seq_free(twin.seq);
                    twin.seq = ts_seq_clone(base.seq);
                    ts_run_decode(&twin, step, from + right + 1, 1);
                    ts_same_state(twin.seq, s.seq, (struct ts_scope){0}, what);
                    s.stream.draft = 0;
                    cr_assert_eq(mdl_decoder_round(d, &list, 1, &err), 0);
                    ts_run_decode(&twin, step, from + right + 2, 1);
                    ts_same_state(twin.seq, s.seq, (struct ts_scope){0}, what);
                    ts_run_free(&twin);
                    mdl_seq_free(s.seq);
                }
            ts_run_free(&base);
        }
        mdl_decoder_free(d);
        plain_free(&p);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* ---- ends ---- */

Test(decode, limit)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct plain p = plain_run(m, step, 41, 0, 0);
    struct mdl_decoder *d = new_decoder(m, 1, 5);
    struct spec s = spec_new(&p, step, 5, 100, LENGTH);
    struct mdl_stream *streams[] = {&s.stream};
    struct cfg_error err;
    const int limits[] = {1, 2, 4, 1, 6, 9};
    spec_ready(&s);
    for (int i = 0; i < 6; i++) {
        s.stream.limit = limits[i];
        cr_assert_eq(mdl_decoder_round(d, streams, 1, &err), 0);
        take_round(&s, "limit");
        cr_assert_eq(s.stream.n_emitted, limits[i] < 6 ? limits[i] : 6, "limit %d", limits[i]);
        cr_assert_eq(s.stream.guess.n, s.stream.n_emitted - 1, "no guess beyond the limit is verified");
    }
    mdl_seq_free(s.seq);
    mdl_decoder_free(d);
    plain_free(&p);
    mdl_step_free(step);
    mdl_model_close(m);
}

Test(decode, finished_ends_the_round)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct plain p = plain_run(m, step, 41, 0, 0);
    struct mdl_decoder *d = new_decoder(m, 1, 5);
    for (int at = 1; at <= 6; at++) {
        struct spec s = spec_new(&p, step, 5, 100, LENGTH);
        struct mdl_stream *streams[] = {&s.stream};
        struct cfg_error err;
        spec_ready(&s);
        s.finish_at = at;
        cr_assert_eq(mdl_decoder_round(d, streams, 1, &err), 0);
        take_round(&s, "finished");
        cr_assert_eq(s.stream.n_emitted, at, "the token that ends is the last one");
        cr_assert_eq(s.picked, at, "nothing is picked behind it");
        cr_assert(s.stream.finished);
        check_counters(&s, at <= 5, "finished");
        cr_assert_eq(s.stream.counters.accepted, at <= 5 ? at : 5, "the guess that ends the text was kept");
        /* What is there equals the plain run of that length. */
        struct ts_run twin = ts_run_new(m, (struct mdl_seq_params){0}, 0, LENGTH);
        memcpy(twin.ids, p.run.ids, LENGTH * sizeof *twin.ids);
        ts_run_decode(&twin, step, PROMPT + at, 3);
        ts_same_state(twin.seq, s.seq, (struct ts_scope){0}, "finished");
        ts_run_free(&twin);
        mdl_seq_free(s.seq);
    }
    mdl_decoder_free(d);
    plain_free(&p);
    mdl_step_free(step);
    mdl_model_close(m);
}

Test(decode, context_end)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct plain p = plain_run(m, step, 41, 0, 0);
    struct mdl_decoder *d = new_decoder(m, 1, 5);
    for (int room = 1; room < 9; room++) {
        struct spec s = spec_new(&p, step, 5, 100, PROMPT + room);
        struct mdl_stream *streams[] = {&s.stream};
        struct cfg_error err = {0};
        spec_ready(&s);
        while (s.emitted < room) {
            cr_assert_eq(mdl_decoder_round(d, streams, 1, &err), 0, "%s", err.msg);
            take_round(&s, "context end");
        }
        cr_assert_eq(s.emitted, room);
        cr_assert_eq(s.stream.counters.steps, (room + 5) / 6, "guesses fill the room exactly");
        struct ts_image before = ts_image_take(s.seq, 0);
        cr_assert_eq(mdl_decoder_round(d, streams, 1, &err), -ENOSPC, "a full sequence has no room for a round");
        cr_assert_not_null(strstr(err.msg, "limit"), "%s", err.msg);
        struct ts_image now = ts_image_take(s.seq, 0);
        cr_assert(ts_image_same(&before, &now));
        ts_image_free(&before);
        ts_image_free(&now);
        mdl_seq_free(s.seq);
    }
    mdl_decoder_free(d);
    plain_free(&p);
    mdl_step_free(step);
    mdl_model_close(m);
}

/* ---- a pick that fails ---- */

Test(decode, failed_pick_costs_its_stream_only)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct plain p = plain_run(m, step, 41, 0, 0), q = plain_run(m, step, 42, 0, 0);
    struct mdl_decoder *d = new_decoder(m, 2, 5);
    for (int at = 1; at <= 6; at++) {
        struct spec bad = spec_new(&p, step, 5, 100, LENGTH), good = spec_new(&q, step, 3, 80, LENGTH);
        struct mdl_stream *streams[] = {&bad.stream, &good.stream};
        struct cfg_error err;
        spec_ready(&bad);
        spec_ready(&good);
        bad.fail_at = at;
        struct ts_image before = ts_image_take(bad.seq, PROMPT);
        cr_assert_eq(mdl_decoder_round(d, streams, 2, &err), 0);
        take_round(&good, "the other stream");
        cr_assert_eq(bad.stream.status, -EDOM);
        cr_assert_eq(bad.stream.n_emitted, 0);
        cr_assert_eq(bad.stream.next, p.run.ids[PROMPT], "the token that is due stays due");
        struct ts_image now = ts_image_take(bad.seq, PROMPT);
        cr_assert(ts_image_same(&before, &now), "failure at pick %d left a trace", at);
        check_counters(&bad, false, "a round that failed does not count");
        /* Both go on. */
        bad.fail_at = 0;
        run_to_end(d, &bad, "after a failure");
        run_to_end(d, &good, "beside a failure");
        ts_same_state(p.run.seq, bad.seq, (struct ts_scope){0}, "after a failure");
        ts_same_state(q.run.seq, good.seq, (struct ts_scope){0}, "beside a failure");
        check_counters(&bad, false, "after a failure");
        ts_image_free(&before);
        ts_image_free(&now);
        mdl_seq_free(bad.seq);
        mdl_seq_free(good.seq);
    }
    mdl_decoder_free(d);
    plain_free(&p);
    plain_free(&q);
    mdl_step_free(step);
    mdl_model_close(m);
}

Test(decode, failed_guess_shortens_the_draft)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct plain p = plain_run(m, step, 41, 0, 0);
    struct mdl_decoder *d = new_decoder(m, 1, 5);
    for (int k = 0; k < 5; k++) {
        struct spec s = spec_new(&p, step, 5, 100, LENGTH);
        struct mdl_stream *streams[] = {&s.stream};
        struct cfg_error err;
        spec_ready(&s);
        s.draft_fail_at = PROMPT + 1 + k;
        cr_assert_eq(mdl_decoder_round(d, streams, 1, &err), 0);
        cr_assert_eq(s.stream.guess.n, k);
        take_round(&s, "short draft");
        cr_assert_eq(s.stream.n_emitted, k + 1);
        check_counters(&s, false, "short draft");
        mdl_seq_free(s.seq);
    }
    mdl_decoder_free(d);
    plain_free(&p);
    mdl_step_free(step);
    mdl_model_close(m);
}

/* ---- what a decoder refuses ---- */

Test(decode, refuses)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LENGTH, LENGTH);
    struct plain p = plain_run(m, step, 41, 0, 0);
    struct cfg_error err = {0};
    struct mdl_decoder *d;
    cr_expect_eq(mdl_decoder_new(m, 1, -1, LENGTH, &d, &err), -EINVAL);
    cr_expect_null(d);
    cr_expect_eq(mdl_decoder_new(m, 1, m->cfg->draft_block + 1, LENGTH, &d, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "0 to 5"), "%s", err.msg);
    cr_expect_eq(mdl_decoder_new(m, 0, 2, LENGTH, &d, &err), -EINVAL);
    cr_expect_null(d);
    d = new_decoder(m, 1, 2);
    struct spec s = spec_new(&p, step, 2, 50, LENGTH);
    spec_ready(&s);
    struct mdl_stream *streams[] = {&s.stream, &s.stream};
    cr_expect_eq(mdl_decoder_round(d, streams, 0, &err), -EINVAL);
    cr_expect_eq(mdl_decoder_round(d, streams, 2, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "1 to 1"), "%s", err.msg);
    mdl_decoder_free(d);
    d = new_decoder(m, 2, 2);
    struct ts_image before = ts_image_take(s.seq, PROMPT);
    cr_expect_eq(mdl_decoder_round(d, streams, 2, &err), -EINVAL, "one sequence in two streams");
    s.stream.next = m->cfg->vocab_size;
    s.stream.draft = 0;
    cr_expect_eq(mdl_decoder_round(d, streams, 1, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "vocabulary"), "%s", err.msg);
    struct ts_image now = ts_image_take(s.seq, PROMPT);
    cr_expect(ts_image_same(&before, &now));
    ts_image_free(&before);
    ts_image_free(&now);
    mdl_seq_free(s.seq);
    mdl_decoder_free(d);
    mdl_decoder_free(NULL);
    plain_free(&p);
    mdl_step_free(step);
    mdl_model_close(m);
}

Test(decode, argmax_takes_the_lowest_of_equals)
{
    const float x[] = {1.0f, 3.0f, 2.0f, 3.0f, -INFINITY};
    cr_expect_eq(mdl_argmax(x, 5), 1);
    cr_expect_eq(mdl_argmax(x, 1), 0);
    cr_expect_eq(mdl_argmax(x + 2, 3), 1);
}
