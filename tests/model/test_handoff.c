/* A sequence as bytes: what goes on behind a hand-off has the bits of what goes on in one process, in each form. */
#include "model/handoff.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/model.h"

static const char *const folders[] = {TS_MINI8, TS_EDGE};

enum { BLOCK = 6, OUTPUT = 20, LONGEST = 90 };

static struct mdl_seq_params params_of(int replay, int rollback, int extra, bool full_bridge)
{
    return (struct mdl_seq_params){.max_tokens = LONGEST + OUTPUT + 1,
                                   .block_tokens = BLOCK,
                                   .rollback = rollback,
                                   .replay = replay,
                                   .full_bridge = full_bridge,
                                   .window_extra = extra};
}

/* What arrives: pieces of rows in the order of sending, then the state. */
struct mail {
    struct {
        int from, to;
        uint8_t *bytes;
        size_t len;
    } piece[LONGEST + 1];
    int pieces;
    uint8_t *state;
    size_t len;
};

static void mail_free(struct mail *m)
{
    for (int i = 0; i < m->pieces; i++)
        free(m->piece[i].bytes);
    free(m->state);
}

/* Rows of tokens at..end-1, block by block; at and all pieces but the last begin and end at even tokens. */
static int send_rows(struct mail *mail, const struct mdl_seq *s, int at, int end)
{
    while (at < end) {
        int edge = (at / BLOCK + 1) * BLOCK, to = end < edge ? end : edge;
        size_t len = 0;
        uint8_t *bytes = malloc(s->layout.block_bytes);
        struct mdl_handoff_range r[MDL_HANDOFF_RANGES];
        int n = mdl_handoff_ranges(&s->layout, s->cfg->n_kv_sources, at % BLOCK, (to - 1) % BLOCK + 1, r);
        for (int i = 0; i < n; len += r[i++].size)
            memcpy(bytes + len, s->blocks[at / BLOCK] + r[i].offset, r[i].size);
        mail->piece[mail->pieces].from = at;
        mail->piece[mail->pieces].to = to;
        mail->piece[mail->pieces].bytes = bytes;
        mail->piece[mail->pieces++].len = len;
        at = to;
    }
    return at;
}

/* Computes the prompt as far as the form needs it, chunk by chunk, and sends what is finished after each of them. */
static struct mail send(struct mdl_step *step, struct mdl_seq *s, const int32_t *ids, int n, int chunk,
                        const struct mdl_prefill_params *how, enum mdl_handoff_form form, float *logits)
{
    struct mail mail = {0};
    struct mdl_prefill plan;
    struct mdl_segment seg;
    struct cfg_error err;
    int sent = 0, whole = mdl_handoff_tokens(form, n);
    if (mdl_prefill_begin(&plan, s, ids, n, how, &err))
        cr_assert_fail("%s", err.msg);
    sent = send_rows(&mail, s, 0, plan.hit & ~1);
    while (mdl_prefill_next(&plan, chunk, &seg)) {
        if (form != MDL_HANDOFF_FULL && seg.layer_begin > 0)
            break;
        mdl_step_begin(step, NULL);
        cr_assert_eq(mdl_step_add(step, &seg, &err), 0, "%s", err.msg);
        cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
        if (logits && seg.logits_from < seg.n)
            memcpy(logits, mdl_step_logits(step, 0, seg.n - 1), (size_t)s->cfg->vocab_size * sizeof *logits);
        mdl_step_commit(step, 0, seg.n);
        mdl_prefill_advance(&plan, &seg);
        int end = plan.encoder_at < n ? plan.encoder_at & ~1 : n;
        sent = send_rows(&mail, s, sent, end < whole ? end : whole);
    }
    mail.len = mdl_handoff_state_bytes(s, form);
    mail.state = malloc(mail.len);
    mdl_handoff_state_save(s, form, mail.state);
    return mail;
}

static void load_rows(struct mdl_seq *s, int from, int to, const uint8_t *bytes)
{
    struct mdl_handoff_range r[MDL_HANDOFF_RANGES];
    int n = mdl_handoff_ranges(&s->layout, s->cfg->n_kv_sources, from % BLOCK, (to - 1) % BLOCK + 1, r);
    for (int i = 0; i < n; bytes += r[i++].size) {
        cr_assert_gt(r[i].size, 0);
        cr_assert_le(r[i].offset + r[i].size, s->layout.block_bytes);
        memcpy(s->blocks[from / BLOCK] + r[i].offset, bytes, r[i].size);
    }
}

/* Takes it all in, rows in another order, and computes what is left. */
static void receive(struct mdl_step *step, const struct mail *mail, struct mdl_seq *s, const int32_t *ids, int n,
                    const struct mdl_prefill_params *how, enum mdl_handoff_form form, float *logits)
{
    struct mdl_prefill plan;
    struct cfg_error err;
    cr_assert_eq(mdl_seq_reserve(s, n, &err), 0, "%s", err.msg);
    for (int i = mail->pieces - 1; i >= 0; i--)
        load_rows(s, mail->piece[i].from, mail->piece[i].to, mail->piece[i].bytes);
    if (mdl_handoff_state_load(s, form, ids, n, mail->state, mail->len, &err))
        cr_assert_fail("%s", err.msg);
    if (form == MDL_HANDOFF_FULL)
        return;
    struct mdl_prefill_params p = *how;
    p.hit = mdl_handoff_tokens(form, n);
    p.hit_window = false;
    int r = form == MDL_HANDOFF_ENCODER ? mdl_prefill_resume(&plan, s, ids, n, how, &err)
                                        : mdl_prefill_begin(&plan, s, ids, n, &p, &err);
    cr_assert_eq(r, 0, "%s", err.msg);
    cr_assert_eq(mdl_prefill_run(&plan, step, 7, NULL, NULL, &err), 0, "%s", err.msg);
    memcpy(logits, mdl_step_logits(step, 0, step->segment[0].n - 1), (size_t)s->cfg->vocab_size * sizeof *logits);
}

/* Greedy decoding with the drafter's own guesses, the events counted. */
static struct mdl_counters decode(struct mdl_model *m, struct mdl_seq *s, const float *logits, int draft, int32_t *out)
{
    struct mdl_decoder *d;
    struct cfg_error err;
    cr_assert_eq(mdl_decoder_new(m, 1, draft, LONGEST + OUTPUT + 1, &d, &err), 0, "%s", err.msg);
    struct mdl_stream stream = {.seq = s, .draft = draft, .next = mdl_argmax(logits, m->cfg->vocab_size)};
    struct mdl_stream *list = &stream;
    for (int n = 0; n < OUTPUT; n += stream.n_emitted) {
        stream.limit = OUTPUT - n;
        cr_assert_eq(mdl_decoder_round(d, &list, 1, &err), 0, "%s", err.msg);
        memcpy(out + n, stream.emitted, (size_t)stream.n_emitted * sizeof *out);
    }
    mdl_decoder_free(d);
    return stream.counters;
}

struct given {
    int n, replay, chunk;
    int extra_to; /* rollback and window rows that the receiver keeps beyond the sender's; may be negative */
    bool full_bridge, exact;
    int hit;
};

static void check(struct mdl_model *m, struct mdl_step *step, struct given g, enum mdl_handoff_form form)
{
    char what[160];
    struct cfg_error err;
    size_t vocab = (size_t)m->cfg->vocab_size;
    float *logits = malloc(3 * vocab * sizeof *logits), *here = logits + vocab, *there = logits + 2 * vocab;
    int32_t *ids = ts_ids(m, (uint64_t)g.n, g.n), a[OUTPUT + MDL_ROUND_MAX], b[OUTPUT + MDL_ROUND_MAX];
    struct mdl_seq_params keep = params_of(g.replay, 8, 4, g.full_bridge);
    struct mdl_prefill_params how = {.exact = g.exact, .replay = g.replay, .full_bridge = g.full_bridge, .hit = g.hit};
    snprintf(what, sizeof what, "%s of %d, R %d, chunks of %d, hit %d, other side %+d", mdl_handoff_name(form), g.n,
             g.replay, g.chunk, g.hit, g.extra_to);
    struct mdl_seq *first = ts_seq(m, keep), *one = ts_seq(m, keep), *sender = ts_seq(m, keep);
    if (g.hit) { /* rows of an earlier prompt that began alike */
        struct mail none = send(step, first, ids, g.hit, 16, &(struct mdl_prefill_params){.replay = g.replay},
                                MDL_HANDOFF_FULL, logits);
        mail_free(&none);
        cr_assert_eq(mdl_seq_copy_prefix(one, first, g.hit, false, &err), 0, "%s", err.msg);
        cr_assert_eq(mdl_seq_copy_prefix(sender, first, g.hit, false, &err), 0, "%s", err.msg);
    }
    keep.rollback += g.extra_to;
    keep.window_extra += g.extra_to > 0 ? g.extra_to : 0;
    struct mdl_seq *receiver = ts_seq(m, keep);
    struct mail mail = send(step, sender, ids, g.n, g.chunk, &how, form, there);
    receive(step, &mail, receiver, ids, g.n, &how, form, there);
    /* The same in one process. */
    struct mdl_prefill_params whole = how;
    if (form == MDL_HANDOFF_GLOBAL) {
        struct mdl_seq *cold = ts_seq(m, params_of(g.replay, 8, 4, g.full_bridge));
        struct mail none = send(step, cold, ids, g.n, 16, &how, MDL_HANDOFF_FULL, logits);
        mail_free(&none);
        whole.hit = mdl_handoff_tokens(form, g.n);
        mdl_seq_reset(one);
        cr_assert_eq(mdl_seq_copy_prefix(one, cold, whole.hit, false, &err), 0, "%s", err.msg);
        mdl_seq_free(cold);
    }
    struct mail none = send(step, one, ids, g.n, 16, &whole, MDL_HANDOFF_FULL, here);
    mail_free(&none);
    struct ts_scope scope = {.visible = g.extra_to != 0};
    ts_same_state(one, receiver, scope, what);
    cr_assert_arr_eq(here, there, vocab * sizeof *here, "%s: logits", what);
    int draft = m->cfg->draft_block < 3 ? m->cfg->draft_block : 3;
    struct mdl_counters ca = decode(m, one, here, draft, a), cb = decode(m, receiver, there, draft, b);
    cr_assert_arr_eq(a, b, sizeof *a * OUTPUT, "%s: tokens", what);
    cr_assert_arr_eq(&ca, &cb, sizeof ca, "%s: counters of speculation", what);
    ts_same_state(one, receiver, scope, what);
    mail_free(&mail);
    mdl_seq_free(first);
    mdl_seq_free(one);
    mdl_seq_free(sender);
    mdl_seq_free(receiver);
    free(logits);
    free(ids);
}

static void check_lengths(enum mdl_handoff_form form, struct given g)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, LONGEST, LONGEST + OUTPUT + 1);
        for (g.n = 1; g.n <= LONGEST; g.n += g.n < 20 ? 1 : g.n < 40 ? 5 : 17)
            if (g.n > g.hit)
                check(m, step, g, form);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

Test(handoff, full_has_the_bits_of_one_process)
{
    check_lengths(MDL_HANDOFF_FULL, (struct given){.replay = 24, .chunk = 16});
    check_lengths(MDL_HANDOFF_FULL, (struct given){.replay = 16, .chunk = 5, .full_bridge = true});
}

Test(handoff, full_of_an_exact_prompt)
{
    check_lengths(MDL_HANDOFF_FULL, (struct given){.replay = 0, .chunk = 16, .exact = true});
}

Test(handoff, encoder_has_the_bits_of_full)
{
    check_lengths(MDL_HANDOFF_ENCODER, (struct given){.replay = 24, .chunk = 16});
    check_lengths(MDL_HANDOFF_ENCODER, (struct given){.replay = 16, .chunk = 5, .full_bridge = true});
}

Test(handoff, global_has_the_bits_of_a_hit)
{
    check_lengths(MDL_HANDOFF_GLOBAL, (struct given){.replay = 24, .chunk = 16});
    check_lengths(MDL_HANDOFF_GLOBAL, (struct given){.replay = 16, .chunk = 5, .full_bridge = true});
}

Test(handoff, a_prompt_behind_a_hit_travels_with_it)
{
    check_lengths(MDL_HANDOFF_FULL, (struct given){.replay = 24, .chunk = 16, .hit = 18});
    check_lengths(MDL_HANDOFF_ENCODER, (struct given){.replay = 24, .chunk = 16, .hit = 18});
}

Test(handoff, rings_of_other_lengths)
{
    for (int extra = -8; extra <= 8; extra += 8) {
        check_lengths(MDL_HANDOFF_FULL, (struct given){.replay = 24, .chunk = 16, .extra_to = extra});
        check_lengths(MDL_HANDOFF_ENCODER, (struct given){.replay = 24, .chunk = 16, .extra_to = extra});
    }
}

/* ---- in the middle of an output ---- */

/* Whatever the model says, its tokens are these; of the drafts every fourth is wrong. */
struct teller {
    int vocab;
};

static int32_t told(int vocab, int pos)
{
    return (int32_t)(((unsigned)pos * 2654435761u >> 7) % (unsigned)vocab);
}

static int32_t tell(void *ctx, int pos, float *logits, bool draft)
{
    const struct teller *t = ctx;
    (void)logits;
    bool wrong = draft && ((unsigned)pos * 40503u >> 5) % 4 == 0;
    return (told(t->vocab, pos) + wrong) % t->vocab;
}

static struct mdl_seq *move(struct mdl_model *m, const struct mdl_seq *s)
{
    struct mail mail = {0};
    struct mdl_seq *to = ts_seq(m, s->params);
    send_rows(&mail, s, 0, s->len);
    mail.len = mdl_handoff_state_bytes(s, MDL_HANDOFF_FULL);
    mail.state = malloc(mail.len);
    mdl_handoff_state_save(s, MDL_HANDOFF_FULL, mail.state);
    receive(NULL, &mail, to, s->ids, s->len, NULL, MDL_HANDOFF_FULL, NULL);
    mail_free(&mail);
    return to;
}

static void one_round(struct mdl_decoder *d, struct mdl_stream *s, int draft)
{
    struct cfg_error err;
    s->draft = draft;
    s->limit = MDL_ROUND_MAX;
    cr_assert_eq(mdl_decoder_round(d, &s, 1, &err), 0, "%s", err.msg);
}

/* Between any two rounds, behind kept and rejected drafts, at every phase of a compressor's group and around the turns
 * of the rings: what has moved is what stayed, is what a twin has that never drafted, and drafts the same with the same
 * confidence. */
Test(handoff, a_sequence_moves_between_any_two_rounds)
{
    for (size_t f = 0; f < 2; f++) {
        struct mdl_model *m = ts_model(folders[f], 1);
        struct mdl_step *step = ts_step(m, LONGEST, LONGEST + OUTPUT + 1);
        struct mdl_decoder *d;
        struct cfg_error err;
        int block = m->cfg->draft_block;
        struct teller teller = {m->cfg->vocab_size};
        cr_assert_eq(mdl_decoder_new(m, 1, block, LONGEST + OUTPUT + 1, &d, &err), 0, "%s", err.msg);
        for (int n = 20; n < 24; n++) {
            int32_t *ids = ts_ids(m, (uint64_t)n, n);
            struct mdl_seq *a = ts_seq(m, params_of(24, 8, 4, false));
            float *logits = malloc((size_t)m->cfg->vocab_size * sizeof *logits);
            struct mail none =
                send(step, a, ids, n, 16, &(struct mdl_prefill_params){.replay = 24}, MDL_HANDOFF_FULL, logits);
            mail_free(&none);
            struct mdl_stream stays = {.seq = a, .next = told(teller.vocab, n), .pick = tell, .pick_ctx = &teller},
                              plain = stays;
            plain.seq = ts_seq_clone(a);
            int64_t accepted = 0;
            for (int k = 0; stays.seq->len + block + 2 < LONGEST; k++) {
                char what[96];
                snprintf(what, sizeof what, "%s, prompt of %d, round %d, %d tokens", folders[f], n, k, stays.seq->len);
                while (plain.seq->len < stays.seq->len)
                    one_round(d, &plain, 0);
                struct mdl_stream moved = stays;
                moved.seq = move(m, stays.seq);
                ts_same_state(stays.seq, moved.seq, (struct ts_scope){0}, what);
                ts_same_state(plain.seq, moved.seq, (struct ts_scope){0}, what);
                one_round(d, &stays, (k * 3 + 2) % (block + 1));
                one_round(d, &moved, (k * 3 + 2) % (block + 1));
                cr_assert_eq(stays.n_emitted, moved.n_emitted, "%s", what);
                cr_assert_arr_eq(stays.emitted, moved.emitted, (size_t)stays.n_emitted * sizeof *stays.emitted, "%s",
                                 what);
                cr_assert_eq(stays.guess.n, moved.guess.n, "%s", what);
                cr_assert_arr_eq(stays.guess.ids, moved.guess.ids, (size_t)stays.guess.n * sizeof *stays.guess.ids,
                                 "%s: drafts", what);
                cr_assert_arr_eq(stays.guess.confidence, moved.guess.confidence,
                                 (size_t)stays.guess.n * sizeof *stays.guess.confidence, "%s: confidences", what);
                ts_same_state(stays.seq, moved.seq, (struct ts_scope){0}, what);
                mdl_seq_free(stays.seq);
                stays = moved; /* and on from there, so that it moves every time */
                accepted = stays.counters.accepted;
            }
            cr_expect_gt(accepted, 5);
            mdl_seq_free(stays.seq);
            mdl_seq_free(plain.seq);
            free(logits);
            free(ids);
        }
        mdl_decoder_free(d);
        mdl_step_free(step);
        mdl_model_close(m);
    }
}

/* Every cut, every wrong number and every other prompt is refused with a reason, and leaves an empty sequence. */
Test(handoff, what_does_not_fit_is_refused)
{
    struct mdl_model *m = ts_model(TS_MINI8, 1);
    struct mdl_step *step = ts_step(m, LONGEST, LONGEST);
    struct mdl_seq *s = ts_seq(m, params_of(24, 8, 4, false)), *to = ts_seq(m, params_of(24, 8, 4, false)),
                   *other = ts_seq(m, params_of(20, 8, 4, false)), *bare = ts_seq(m, params_of(0, 8, 4, false));
    struct mdl_prefill_params how = {.replay = 24};
    struct cfg_error err = {0};
    int n = 41;
    int32_t *ids = ts_ids(m, 1, n);
    for (int form = 0; form < MDL_HANDOFF_FORMS; form++) {
        mdl_seq_reset(s);
        struct mail mail = send(step, s, ids, n, 16, &how, (enum mdl_handoff_form)form, NULL);
        enum mdl_handoff_form f = (enum mdl_handoff_form)form;
        for (size_t len = 0; len < mail.len; len += len < 400 ? 1 : 997) {
            cr_assert_eq(mdl_handoff_state_load(to, f, ids, n, mail.state, len, &err), -EINVAL, "%zu bytes", len);
            cr_assert_eq(to->encoded, 0);
        }
        cr_expect_eq(mdl_handoff_state_load(to, f, ids, n - 1, mail.state, mail.len, &err), -EINVAL);
        cr_expect_eq(
            mdl_handoff_state_load(to, (enum mdl_handoff_form)((form + 1) % 3), ids, n, mail.state, mail.len, &err),
            -EINVAL);
        if (f == MDL_HANDOFF_ENCODER) {
            cr_expect_eq(mdl_handoff_state_load(other, f, ids, n, mail.state, mail.len, &err), -EINVAL);
            cr_expect(strstr(err.msg, "replay settings"), "%s", err.msg);
        }
        size_t head = 56 + (f == MDL_HANDOFF_GLOBAL ? 1 : 1 + (size_t)(f ? m->cfg->cut : m->cfg->n_layers)) * 8;
        for (size_t at = 0; at < head * 8;
             at++) { /* one bit of the numbers is another: refused, or of no consequence */
            mail.state[at / 8] ^= (uint8_t)(1 << at % 8);
            int r = mdl_handoff_state_load(to, f, ids, n, mail.state, mail.len, &err);
            cr_assert(r == 0 || r == -EINVAL, "bit %zu: %d", at, r);
            cr_assert_eq(to->encoded, r ? 0 : mdl_handoff_tokens(f, n));
            mail.state[at / 8] ^= (uint8_t)(1 << at % 8);
        }
        if (f != MDL_HANDOFF_ENCODER) { /* one row more than the form has, and all numbers are right */
            size_t row = MDL_HC * ((size_t)m->cfg->hidden * sizeof(uint16_t) + sizeof(float));
            uint64_t longer = mail.len + row;
            uint32_t from = (uint32_t)n - 1;
            mail.state = realloc(mail.state, longer);
            cr_assert_not_null(mail.state);
            memset(mail.state + mail.len, 0, row);
            memcpy(mail.state + 36, &from, sizeof from);
            memcpy(mail.state + 48, &longer, sizeof longer);
            cr_expect_eq(mdl_handoff_state_load(to, f, ids, n, mail.state, longer, &err), -EINVAL);
            cr_expect_eq(mdl_handoff_state_load(bare, f, ids, n, mail.state, longer, &err), -EINVAL);
            cr_expect(strstr(err.msg, "bridge rows"), "%s", err.msg);
        }
        mail_free(&mail);
    }
    free(ids);
    mdl_seq_free(bare);
    mdl_seq_free(s);
    mdl_seq_free(to);
    mdl_seq_free(other);
    mdl_step_free(step);
    mdl_model_close(m);
}
