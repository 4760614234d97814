/* Rejection sampling as the Decode actor does it: its picks, its numbers and its planner, over a made-up network that
 * is known exactly, so that the texts' distribution is too. A step here is the decoder's (model/decode.c), without a
 * network. Every trial is a request of its own with a seed of its own. */
#include "tests/harness.h"

#include "actors/decode_impl.h"
#include "model/reject.h"
#include "tests/support/chi_square.h"

enum { TOKENS = 4, BLOCK = 4, LENGTH = 8, CONTEXT = LENGTH + BLOCK + 2, REQUESTS = 2, TRIALS = 40000, CLASSES = 256 };

/* Chances of a token behind another one: the target's, and the drafter's by place in the block. */
struct network {
    int tokens;
    float p[TOKENS][TOKENS], q[BLOCK][TOKENS][TOKENS];
    double confidence[REQUESTS][BLOCK][TOKENS]; /* by place and the token before it */
};

struct bench {
    const struct network *net;
    struct act_engine e;
    struct decode d;
    struct dec_stream stream[REQUESTS];
    struct act_b_prefill body;
    struct mdl_seq seq[REQUESTS];
    int32_t ids[REQUESTS][CONTEXT + 1];
    float logits[TOKENS];
    int n;
    bool trim; /* offers what the trial's number says */
    int trial;
};

static const int32_t prompt = 0;

static void open_bench(struct bench *b, const struct network *net, int n, const struct act_plan_options *plan)
{
    *b = (struct bench){.net = net, .n = n};
    b->e.plan = *plan;
    b->e.rejection = true;
    b->e.vocab = net->tokens;
    b->e.limits.draft = BLOCK;
    b->e.limits.streams = n;
    b->body.flags = ACT_RECIPE_IGNORE_EOS;
    mdl_calibration_identity(&b->e.calibration, BLOCK);
    act_steptime_init(&b->e.steptime, BLOCK);
    b->d.e = &b->e;
    b->d.sampler = mdl_sampler_new(TOKENS);
    b->d.weights = malloc(TOKENS * sizeof *b->d.weights);
}

static void close_bench(struct bench *b)
{
    for (int i = 0; i < b->n; i++)
        free(b->stream[i].draft_weights);
    mdl_sampler_free(b->d.sampler);
    free(b->d.weights);
}

/* The pick of the Decode actor, given these chances. */
static int32_t pick(struct bench *b, struct dec_stream *s, int pos, const float *chance, bool draft)
{
    for (int i = 0; i < b->net->tokens; i++)
        b->logits[i] = logf(chance[i]);
    int32_t id = dec_pick(s, pos, b->logits, draft);
    cr_assert(id >= 0 && id < b->net->tokens, "%d", id);
    return id;
}

static void begin_stream(struct bench *b, int i, uint64_t seed)
{
    struct dec_stream *s = &b->stream[i];
    float *weights = s->draft_weights;
    b->seq[i] = (struct mdl_seq){.len = 1, .params.max_tokens = CONTEXT};
    b->ids[i][0] = prompt;
    *s = (struct dec_stream){.owner = &b->d,
                             .request = (uint64_t)i + 1,
                             .recipe = {.body = &b->body, .n_prompt = 1, .n_ids = 1},
                             .ids = b->ids[i],
                             .n_ids = 1,
                             .max_new = CONTEXT,
                             .seq = &b->seq[i],
                             .draft_weights = weights};
    mdl_sampling_init(&s->recipe.sampling);
    s->recipe.sampling.seed = seed;
    s->spec.choice = dec_spec_choice(&b->d, s);
    s->spec.room = BLOCK;
    s->key = dec_spec_key(&b->d, s);
    s->run = (struct mdl_stream){.seq = &b->seq[i], .pick_ctx = s, .limit = BLOCK + 1};
    s->run.next = pick(b, s, 1, b->net->p[prompt], false);
}

static void draft(struct bench *b, struct dec_stream *s)
{
    struct mdl_draft *g = &s->run.guess;
    int32_t before = s->run.next;
    for (g->n = 0; g->n < s->run.draft; g->n++) {
        double c = b->net->confidence[s - b->stream][g->n][before];
        g->confidence[g->n] = (float)log(c / (1 - c));
        before = g->ids[g->n] = pick(b, s, s->seq->len + 1 + g->n, b->net->q[g->n][before], true);
    }
}

static void accept(struct bench *b, struct dec_stream *s)
{
    int start = s->seq->len, i = 0;
    int32_t before = s->run.next;
    do
        s->run.next = pick(b, s, start + i + 1, b->net->p[before], false);
    while (i < s->run.offer && (before = s->run.next) == s->run.guess.ids[i++]);
    s->seq->len = s->n_ids - 1;
}

static void round_of(struct bench *b, const int *who, int n)
{
    struct mdl_stream *run[REQUESTS];
    struct act_spec_stream *spec[REQUESTS];
    for (int k = 0; k < n; k++) {
        run[k] = &b->stream[who[k]].run;
        spec[k] = &b->stream[who[k]].spec;
    }
    act_speculation_begin(&b->d.spec, run, spec, n, 0);
    for (int k = 0; k < n; k++)
        draft(b, &b->stream[who[k]]);
    act_speculation_split(&b->d.spec, run, n);
    for (int k = 0; k < n; k++) {
        struct dec_stream *s = &b->stream[who[k]];
        if (b->trim)
            s->run.offer = (b->trial + s->n_ids) % (BLOCK + 1);
        accept(b, s);
    }
    act_speculation_end(&b->d.spec, 1, 1, false);
}

/* Texts of all requests, with one seed. */
static void write_texts(struct bench *b, uint64_t seed)
{
    cr_assert_eq(act_speculation_init(&b->d.spec, &b->e.plan, BLOCK, b->n, &b->e.steptime, &b->e.calibration), 0);
    for (int i = 0; i < b->n; i++)
        begin_stream(b, i, seed);
    for (int left = b->n; left > 0;) {
        int who[REQUESTS];
        left = 0;
        for (int i = 0; i < b->n; i++)
            if (b->stream[i].n_ids < 1 + LENGTH)
                who[left++] = i;
        if (left)
            round_of(b, who, left);
    }
    act_speculation_free(&b->d.spec);
}

/* Share of every text of so many tokens. */
static int text_shares(const struct network *net, int length, double *share)
{
    int classes = 1;
    for (int k = 0; k < length; k++)
        classes *= net->tokens;
    cr_assert_leq(classes, CLASSES);
    for (int c = 0; c < classes; c++) {
        int before = prompt, rest = c;
        share[c] = 1;
        for (int k = 0; k < length; k++, rest /= net->tokens) {
            double sum = 0;
            for (int v = 0; v < net->tokens; v++)
                sum += (double)net->p[before][v];
            share[c] *= (double)net->p[before][rest % net->tokens] / sum;
            before = rest % net->tokens;
        }
    }
    return classes;
}

static int class_of(const struct bench *b, int request, int from, int length)
{
    int c = 0;
    for (int k = length - 1; k >= 0; k--)
        c = c * b->net->tokens + b->ids[request][1 + from + k];
    return c;
}

/* Texts of `length` tokens of every request, over many seeds; chi-square over its bound. */
static void check_texts(struct bench *b, int length, double *chi)
{
    static int count[REQUESTS][CLASSES];
    double share[CLASSES];
    int classes = text_shares(b->net, length, share);
    memset(count, 0, sizeof count);
    for (b->trial = 0; b->trial < TRIALS; b->trial++) {
        write_texts(b, (uint64_t)b->trial);
        for (int i = 0; i < b->n; i++)
            count[i][class_of(b, i, 0, length)]++;
    }
    for (int i = 0; i < b->n; i++)
        chi[i] = ts_chi_square(count[i], share, classes, TRIALS, NULL);
}

/* ---- picks ---- */

/* A network whose drafter guesses otherwise at every place, and nowhere as the target does. */
static struct network scattered(void)
{
    struct network net = {.tokens = TOKENS};
    for (int before = 0; before < TOKENS; before++)
        for (int v = 0; v < TOKENS; v++) {
            net.p[before][v] = (float)(0.05 + mdl_random_unit(1, (uint64_t)(before * TOKENS + v), 0));
            for (int place = 0; place < BLOCK; place++) {
                double u = mdl_random_unit(2, (uint64_t)(before * TOKENS + v), (uint32_t)place);
                net.q[place][before][v] = (float)(0.02 + u * u);
                net.confidence[0][place][before] = 0.5;
            }
        }
    return net;
}

/* Drafts that are judged by what another one was drawn from, or a draw from what is left of one that was not offered,
 * would be seen in the tokens of every place. */
Test(rejection, whole_and_trimmed_blocks_keep_the_distribution)
{
    struct network net = scattered();
    const struct act_plan_options plan = {.mode = ACT_PLAN_FIXED, .length = BLOCK};
    for (int trim = 0; trim < 2; trim++) {
        struct bench b;
        double chi[REQUESTS];
        open_bench(&b, &net, 1, &plan);
        b.trim = trim;
        check_texts(&b, 4, chi);
        cr_expect_lt(chi[0], 1, "%s blocks: chi-square %.2f of its bound", trim ? "trimmed" : "whole", chi[0]);
        close_bench(&b);
    }
}

/* ---- numbers ---- */

/* Two tokens, the drafter's even, confidences by request as given; steps of so many rows run at these speeds. */
static struct network two_tokens(const double (*confidence)[BLOCK][2])
{
    struct network net = {.tokens = 2};
    for (int before = 0; before < 2; before++) {
        net.p[before][0] = before ? 0.6f : 0.75f;
        net.p[before][1] = 1 - net.p[before][0];
        for (int place = 0; place < BLOCK; place++) {
            net.q[place][before][0] = net.q[place][before][1] = 0.5f;
            for (int i = 0; i < REQUESTS; i++)
                net.confidence[i][place][before] = confidence[i][place][before];
        }
    }
    return net;
}

static void set_speeds(struct bench *b, const double *speed, int rows)
{
    struct act_steptime *t = &b->e.steptime;
    act_steptime_init(t, BLOCK);
    t->padded = true;
    for (int n = 1; n <= rows; n++) {
        act_steptime_add(&t->plain, n, 1 / speed[n - 1]);
        act_steptime_add(&t->full, n, 1 / speed[n - 1]);
    }
    act_steptime_add(&t->draft, 1, 1e-9);
}

/* Four rows pay if the third draft is likely, which the second one says; one, two and three never do. So what a block
 * drew at its second place, rejected at its first, decides whether the next block, whose first place that is, is
 * verified. With one number for both, half of the drafts would be offered because of what they are. */
Test(rejection, overlapping_blocks_keep_the_distribution)
{
    static const double speed[] = {1, 0.5, 0.37, 0.37, 0.2};
    static const double confidence[REQUESTS][BLOCK][2] = {{{0.8, 0.8}, {0.9, 0.9}, {0.95, 0.001}, {0.01, 0.01}}};
    struct network net = two_tokens(confidence);
    const struct act_plan_options plan = {.mode = ACT_PLAN_DYNAMIC, .length = 3, .probe_share = 0.2};
    struct bench b;
    double chi[REQUESTS];
    open_bench(&b, &net, 1, &plan);
    set_speeds(&b, speed, 5);
    check_texts(&b, 6, chi);
    cr_expect_lt(chi[0], 1, "chi-square %.2f of its bound", chi[0]);
    close_bench(&b);
}

/* Two requests with one seed at the same places: the second draft of one, which knows its first, takes the row of the
 * other's first, or leaves it. */
Test(rejection, requests_with_one_seed_keep_the_distribution)
{
    static const double speed[] = {1, 1, 0.95, 0.9, 0.1, 0.1};
    static const double confidence[REQUESTS][BLOCK][2] = {{{0.8, 0.8}, {0.9, 0.001}, {0.01, 0.01}, {0.01, 0.01}},
                                                          {{0.3, 0.3}, {0.1, 0.1}, {0.01, 0.01}, {0.01, 0.01}}};
    struct network net = two_tokens(confidence);
    const struct act_plan_options plan = {.mode = ACT_PLAN_DYNAMIC, .length = 2, .probe_share = 0.2};
    for (int early = 0; early < 2; early++) {
        struct bench b;
        double chi[REQUESTS];
        open_bench(&b, &net, 2, &plan);
        b.e.plan.budget = early ? ACT_PLAN_EARLY_STOP : ACT_PLAN_LAGGED;
        set_speeds(&b, speed, 6);
        check_texts(&b, 6, chi);
        for (int i = 0; i < REQUESTS; i++)
            cr_expect_lt(chi[i], 1, "%s, request %d: chi-square %.2f of its bound", early ? "early stop" : "lagged", i,
                         chi[i]);
        close_bench(&b);
    }
}
