/* The pages of a hand-off: what a decoder has of a prompt already is not sent again, and tickets that nothing was
 * written under make room for sequences that run. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#include "tests/support/engine_world.h"

#define MS INT64_C(1000000)

enum { FIRST = 40, SAID = 24, SECOND = 7, TURNS = 2 };

/* ---- the decoder's own history ---- */

struct mode {
    const char *name;
    int replay;
    bool snapshots;
    enum mdl_handoff_form form;
    bool none; /* what the decoder keeps of the first turn is tainted */
};

static const struct mode modes[] = {
    {"exact", 0, false, MDL_HANDOFF_FULL},
    {"replay from a snapshot", 24, true, MDL_HANDOFF_FULL},
    {"replay from a snapshot, encoder", 24, true, MDL_HANDOFF_ENCODER},
    {"replay", 24, false, MDL_HANDOFF_FULL},
    {"replay, encoder", 24, false, MDL_HANDOFF_ENCODER},
    {"replay, global", 24, true, MDL_HANDOFF_GLOBAL, true},
};

struct outcome {
    size_t bytes;
    uint64_t held;
    int reserves;
    struct ts_outcome got[TURNS];
};

struct script {
    bool without; /* the Landing is told to use nothing of its own */
    int reserves;
};

static bool look_at_reserve(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                            int *fail)
{
    struct script *s = w->before_ctx;
    size_t bytes;
    (void)self, (void)fail;
    if (who->part != TS_PART_LANDING || m->type != ACT_RESERVE)
        return false;
    s->reserves++;
    if (s->without)
        ((struct act_b_prefill *)act_msg_tail(m, &bytes))->history = 1;
    return false;
}

/* A conversation of two turns: the second one's prompt is the first turn, its answer, and more. */
static void converse(const struct mode *mode, const int32_t *said, struct script *s, struct outcome *out)
{
    struct ts_world w;
    ts_world_open(&w, 64, 2);
    w.e.limits.replay = mode->replay;
    w.e.snapshots = mode->snapshots;
    ts_world_split(&w, 64, mode->form);
    ts_world_requests(&w, 1, 3);
    w.before = look_at_reserve;
    w.before_ctx = s;
    struct ts_wanted *first = &w.wanted[0], *second = &w.wanted[1];
    first->n_prompt = FIRST;
    for (int k = 0; k < FIRST; k++)
        first->prompt[k] = (k * 37 + 11) % w.m->cfg->vocab_size;
    first->max_new = SAID;
    first->temperature = 1;
    first->logprobs = true;
    if (said) {
        w.n = TURNS;
        *second = *first;
        second->n_prompt = FIRST + SAID + SECOND;
        memcpy(second->prompt + FIRST, said, SAID * sizeof *said);
        for (int k = 0; k < SECOND; k++)
            second->prompt[FIRST + SAID + k] = (k * 13 + 5) % w.m->cfg->vocab_size;
        second->start = 3000 * MS;
    }
    ts_world_run(&w, 7);
    for (int i = 0; i < w.n; i++) {
        cr_assert_eq(w.got[i].terminal, 1, "%s, turn %d", mode->name, i);
        cr_assert_eq(w.got[i].status, 0, "%s, turn %d: status %d", mode->name, i, w.got[i].status);
        cr_assert_eq(w.got[i].place.replaced, 0, "%s, turn %d: a prompt that begins again keeps its place", mode->name,
                     i);
        out->got[i] = w.got[i];
    }
    out->bytes = w.wire.bytes;
    out->held = w.far.stats.held;
    out->reserves = s->reserves;
    ts_world_check_baseline(&w);
    ts_world_close(&w);
}

/* With a history of the decoder's and without it a prompt gives the same, bit for bit, in every mode: its rows are
 * those that Prefill would have written. */
Test(handoff_pages, what_a_decoder_has_is_not_sent_again)
{
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        static struct outcome first, with, without;
        const struct mode *m = &modes[i];
        converse(m, NULL, &(struct script){0}, &first);
        cr_assert_eq(first.held, 0u);
        converse(m, first.got[0].ids, &(struct script){0}, &with);
        converse(m, first.got[0].ids, &(struct script){.without = true}, &without);
        cr_expect_eq(without.held, 0u);
        cr_expect_eq(with.held == 0, m->none, "%s: %d blocks were held", m->name, (int)with.held);
        cr_expect_eq(with.bytes < without.bytes, !m->none, "%s: %zu bytes", m->name, with.bytes);
        cr_assert_eq(with.got[1].cached, without.got[1].cached);
        cr_assert_eq(with.got[1].n, without.got[1].n);
        for (int k = 0; k < with.got[1].n; k++) {
            cr_assert_eq(with.got[1].ids[k], without.got[1].ids[k], "%s, token %d", m->name, k);
            cr_assert_eq(memcmp(&with.got[1].logprob[k], &without.got[1].logprob[k], sizeof(float)), 0,
                         "%s, log-probability %d", m->name, k);
        }
        /* Turn 1 published (FIRST + SAID) / 16 blocks, of which those behind a replayed hit are of no use. */
        bool replayed = m->replay && !m->snapshots;
        cr_expect(m->none || replayed || with.held == (FIRST + SAID - 1) / TS_WORLD_BLOCK, "%s: %d blocks are held",
                  m->name, (int)with.held);
        cr_log_info("%s: %d blocks held, %zu bytes instead of %zu, %d questions", m->name, (int)with.held, with.bytes,
                    without.bytes, with.reserves);
    }
}

/* ---- running sequences come first ---- */

enum { STREAMS = 4, PROMPTS = 3, LONG = 150 };

static const int64_t begin_ns = 4 * MS;

struct crowd {
    int revoked, parked;
};

static bool count_revoked(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                          int *fail)
{
    struct crowd *c = w->before_ctx;
    (void)fail;
    if (who->part == TS_PART_EXPERT && who->index < TS_FAR && act_now(self) > begin_ns)
        act_busy(self, 20 * MS); /* many of these make a step of a prompt, in which Prefill listens */
    c->revoked += who->part == TS_PART_PREFILL && who->index < TS_FAR && m->type == ACT_TICKET_ABORT &&
                  act_p_ticket_abort(m)->reason == -EAGAIN;
    return false;
}

/* One sequence decodes and grows; prompts that take long to compute have tickets for most of the decoder's pages. */
static void grow_beside_prompts(struct ts_world *w, struct crowd *c, uint64_t seed)
{
    ts_world_open(w, 64, 1);
    w->e.limits.lease = 1;
    w->e.limits.replay = 0; /* what begins again may hit, with the same bits */
    w->e.limits.prefills = PROMPTS;
    ts_world_split(w, 20, MDL_HANDOFF_FULL);
    w->e.tickets.grant = w->e.tickets.lease = 20000 * MS;
    w->far.e.tickets = w->e.tickets;
    ts_world_requests(w, 1 + PROMPTS, (unsigned)seed);
    for (int i = 0; i < w->n; i++) {
        struct ts_wanted *q = &w->wanted[i];
        q->n_prompt = i ? 90 : 16;
        q->max_new = i ? 8 : LONG;
        for (int k = 0; k < q->n_prompt; k++)
            q->prompt[k] = (k * 29 + 7 * i + 3) % w->m->cfg->vocab_size;
        q->start = i ? begin_ns : 0;
    }
    w->before = count_revoked;
    w->before_ctx = c;
    w->cost[TS_PART_DECODE] = MS / 50;
    ts_world_run(w, seed);
    for (int i = 0; i < w->n; i++)
        c->parked += w->got[i].parked;
}

Test(handoff_pages, unwritten_tickets_are_taken_back_before_a_sequence_is_parked)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct ts_world w;
        struct crowd c = {0};
        grow_beside_prompts(&w, &c, seed);
        cr_log_info("seed %d: %d tickets taken back, parked %d times", (int)seed, c.revoked, c.parked);
        cr_expect_gt(c.revoked, 0, "seed %d: no ticket was taken back", (int)seed);
        cr_expect_eq(c.parked, 0, "seed %d: parked %d times", (int)seed, c.parked);
        for (int i = 0; i < w.n; i++) {
            ts_world_check_same(&w, i);
            cr_expect_eq(w.got[i].place.replaced, 0, "seed %d: request %d was placed again: %d", (int)seed, i,
                         w.got[i].place.reason);
        }
        ts_world_check_baseline(&w);
        ts_world_close(&w);
    }
}
