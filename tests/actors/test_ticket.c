/* The state machine of tickets: the printed table is the code's, every pair is in it, and every interleaving of a
 * reader and a writer with lost, late and doubled messages keeps the pages safe and comes to an end. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "actors/ticket.h"

static const struct act_ticket_times times = {.grant = 1, .lease = 10, .quarantine = 100, .fence = 1000, .confirm = 4};

/* ---- the table ---- */

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    cr_assert_not_null(f, "%s is missing", path);
    char *text = calloc(1, 1 << 20);
    cr_assert_lt(fread(text, 1, (1 << 20) - 1, f), (size_t)(1 << 20) - 1);
    fclose(f);
    return text;
}

Test(ticket, the_documented_table_is_the_code)
{
    char *doc = read_file("docs/FORMATS.md"), *printed = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&printed, &len);
    act_ticket_print(f);
    fclose(f);
    cr_expect(strstr(doc, printed), "docs/FORMATS.md has another table; print it with act_ticket_print:\n%s", printed);
    free(printed);
    free(doc);
}

/* Conditions that together leave nothing out. */
static bool complete(unsigned conditions)
{
    const unsigned counts = 1u << ACT_TICKET_IF_ALL | 1u << ACT_TICKET_IF_FEWER | 1u << ACT_TICKET_IF_MORE;
    const unsigned quiet = 1u << ACT_TICKET_IF_QUIET | 1u << ACT_TICKET_IF_BUSY;
    return conditions == 1u << ACT_TICKET_ALWAYS || conditions == counts || conditions == quiet;
}

Test(ticket, every_pair_of_state_and_event_has_its_rules)
{
    unsigned there[ACT_TICKET_STATES][ACT_TICKET_EVENTS] = {0};
    const struct act_ticket_rule *r;
    for (int i = 0; (r = act_ticket_rule(i)); i++) {
        cr_expect(act_ticket_can_come(r->state, r->event), "%s, %s cannot come", act_ticket_state_name(r->state),
                  act_ticket_event_name(r->event));
        cr_expect(!(there[r->state][r->event] >> r->condition & 1), "%s, %s is there twice",
                  act_ticket_state_name(r->state), act_ticket_event_name(r->event));
        there[r->state][r->event] |= 1u << r->condition;
    }
    for (int s = 0; s < ACT_TICKET_STATES; s++)
        for (int e = 0; e < ACT_TICKET_EVENTS; e++)
            if (act_ticket_can_come((enum act_ticket_state)s, (enum act_ticket_event)e))
                cr_expect(complete(there[s][e]), "%s, %s: conditions leave something out",
                          act_ticket_state_name((enum act_ticket_state)s),
                          act_ticket_event_name((enum act_ticket_event)e));
}

/* How long a state waits for a word: every one does so until a time of its own. */
static int64_t time_in(enum act_ticket_state s)
{
    const struct act_ticket_times *t = &times;
    const int64_t time[ACT_TICKET_STATES] = {
        [ACT_TICKET_GRANTING] = t->grant,      [ACT_TICKET_OPEN] = t->lease,
        [ACT_TICKET_CLOSING] = t->lease,       [ACT_TICKET_QUARANTINE] = t->quarantine,
        [ACT_TICKET_FENCING] = t->fence,       [ACT_TICKET_ASKING] = t->grant + t->lease,
        [ACT_TICKET_WRITING] = t->lease,       [ACT_TICKET_CONFIRMING] = t->confirm,
        [ACT_TICKET_DRAINING] = t->quarantine,
    };
    return time[s];
}

/* The fence is asked for again as long as there is no answer: the question or the answer may have been lost. */
Test(ticket, a_fence_is_asked_for_again)
{
    const struct act_ticket_times few = {.quarantine = 50, .fence = 10};
    static const enum act_ticket_state from[] = {ACT_TICKET_QUARANTINE, ACT_TICKET_DRAINING};
    for (int k = 0; k < 2; k++) {
        struct act_ticket t = {.state = from[k], .deadline = 100, .under_way = 1};
        for (int i = 0; i < 3; i++) {
            int64_t now = t.deadline;
            cr_assert_eq(act_ticket_step(&t, ACT_TICKET_ON_LEASE, 0, now, &few), ACT_TICKET_DO_FENCE);
            cr_assert(t.deadline > now && t.deadline <= now + 50);
        }
        act_ticket_step(&t, ACT_TICKET_ON_DOWN, 0, 1000, &few);
        cr_assert_eq(t.state, ACT_TICKET_FREE);
    }
}

/* Each rule, from its own state: the next state, the actions, and a deadline unless the slot is free. */
Test(ticket, each_rule_does_what_the_table_says)
{
    const struct act_ticket_rule *r;
    for (int i = 0; (r = act_ticket_rule(i)); i++) {
        struct act_ticket t = {.state = r->state, .deadline = 5, .under_way = r->condition == ACT_TICKET_IF_BUSY};
        uint32_t n = 3;
        t.seen = r->condition == ACT_TICKET_IF_ALL ? 3 : r->condition == ACT_TICKET_IF_MORE ? 4 : 1;
        if (r->event == ACT_TICKET_ON_WRITE && r->state == ACT_TICKET_CLOSING) {
            t.expected = 3;
            t.seen -= r->condition == ACT_TICKET_IF_ALL;
        }
        unsigned actions = act_ticket_step(&t, r->event, n, 7, &times);
        cr_expect_eq(t.state, r->next, "rule %d", i);
        cr_expect_eq(actions, r->actions, "rule %d", i);
        cr_expect(t.state == ACT_TICKET_FREE ? t.deadline == INT64_MAX || r->state == ACT_TICKET_FREE
                                             : t.deadline < 5000,
                  "rule %d: no deadline", i);
        if (t.state == ACT_TICKET_FREE)
            continue;
        cr_expect(r->next == r->state || t.deadline == 7 + time_in(t.state), "rule %d: %s until %d", i,
                  act_ticket_state_name(t.state), (int)t.deadline);
        act_ticket_touch(&t, 7, &(struct act_ticket_times){0});
        cr_expect(t.deadline > 7 && t.deadline <= INT64_C(60000000007), "rule %d: no deadline by default", i);
    }
}

/* While own writes are under way it is for them to come to an end; then the reader has to speak. */
Test(ticket, a_reader_that_has_everything_is_waited_for_less_long)
{
    struct act_ticket t = {.state = ACT_TICKET_WRITING, .under_way = 2};
    act_ticket_step(&t, ACT_TICKET_ON_FINISH, 0, 100, &times);
    cr_expect_eq(t.state, ACT_TICKET_CONFIRMING);
    cr_expect_eq(t.deadline, 100 + times.lease);
    t.under_way = 0;
    act_ticket_step(&t, ACT_TICKET_ON_DRAINED, 0, 103, &times);
    cr_expect_eq(t.deadline, 103 + times.confirm);
    act_ticket_touch(&t, 104, &(struct act_ticket_times){.lease = 2, .confirm = 7});
    cr_expect_eq(t.deadline, 106, "it is never longer than the lease");
    cr_expect(act_ticket_step(&t, ACT_TICKET_ON_LEASE, 0, 106, &times) & ACT_TICKET_DO_FAIL,
              "nobody learns that the reader is silent");
}

/* ---- all interleavings ---- */

enum { N = 2 }; /* writes of the ticket */

/* A whole little world: the two ends and what is between them. Messages are there or not; a doubled one stays. */
struct world {
    struct act_ticket reader, writer;
    uint8_t posted;                      /* writes that the writer has begun */
    uint8_t landed;                      /* bits: writes whose bytes and immediate are at the reader */
    uint8_t flying;                      /* bits: begun, not landed, and the connection stands */
    uint8_t reserve, granted, refused;   /* messages under way */
    uint8_t ready, abort, closed, taken; /* closed: writer to reader; taken: reader to writer */
    uint8_t owner;                       /* pages: 0 free, 1 the ticket's, 2 the sequence's */
    uint8_t asked, down;                 /* the story's own budget: one question, one broken connection */
    uint8_t opened;                      /* the question was heard: from then on the slot has another generation */
    uint8_t failed, ended, given_up;
};

static struct world *seen;
static size_t n_seen, cap_seen;
static uint32_t *table;
static size_t table_size;

static uint64_t hash_of(const struct world *w)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < sizeof *w; i++)
        h = (h ^ ((const uint8_t *)w)[i]) * 1099511628211u;
    return h;
}

/* Adds a state unless it is known. */
static void add(struct world w)
{
    w.reader.deadline = w.writer.deadline = 0; /* time is "may pass now" */
    w.reader.generation = w.writer.generation = 0;
    for (size_t i = hash_of(&w) % table_size;; i = (i + 1) % table_size) {
        if (table[i] && memcmp(&seen[table[i] - 1], &w, sizeof w))
            continue;
        if (table[i])
            return;
        cr_assert_lt(n_seen, cap_seen, "too many states");
        seen[n_seen++] = w;
        table[i] = (uint32_t)n_seen;
        return;
    }
}

static void check(const struct world *w, const char *what)
{
    /* The heart of it: bytes that can still land have a page of the ticket's under them. */
    cr_assert(!w->flying || w->owner == 1, "%s: writes can land in pages of somebody else (reader %s, writer %s)", what,
              act_ticket_state_name(w->reader.state), act_ticket_state_name(w->writer.state));
}

static void reader_does(struct world *w, unsigned a)
{
    if (a & ACT_TICKET_DO_GRANT)
        w->granted = 1;
    if (a & ACT_TICKET_DO_REFUSE)
        w->refused = 1;
    if (a & ACT_TICKET_DO_TAKE) {
        cr_assert_eq(w->landed, (1 << N) - 1, "a sequence was taken with writes missing");
        w->owner = 2;
        w->taken = 1;
    }
    if (a & ACT_TICKET_DO_FAIL)
        w->failed = 1;
    if (a & ACT_TICKET_DO_ABORT)
        w->abort = 1;
    if (a & ACT_TICKET_DO_FREE)
        w->owner = 0;
}

static void writer_does(struct world *w, unsigned a)
{
    if (a & ACT_TICKET_DO_ASK)
        w->reserve = 1;
    if (a & ACT_TICKET_DO_READY)
        w->ready = 1;
    if (a & ACT_TICKET_DO_CLOSE)
        w->closed = 1;
    if (a & ACT_TICKET_DO_FAIL)
        w->failed = 1;
    if (a & ACT_TICKET_DO_END)
        w->ended = 1;
}

static void reader_on(struct world w, enum act_ticket_event e, uint32_t n, const char *what);

/* The connection is gone: nothing flies any more, and both ends learn of it. */
static struct world broken(struct world w)
{
    w.flying = 0;
    w.writer.under_way = 0;
    writer_does(&w, act_ticket_step(&w.writer, ACT_TICKET_ON_DOWN, 0, 0, &times));
    reader_does(&w, act_ticket_step(&w.reader, ACT_TICKET_ON_DOWN, 0, 0, &times));
    return w;
}

static void finish(struct world w, unsigned actions, const char *what)
{
    check(&w, what);
    add(w);
    if (actions & ACT_TICKET_DO_FENCE) {
        w = broken(w);
        check(&w, "fence");
        add(w);
    }
}

static void reader_on(struct world w, enum act_ticket_event e, uint32_t n, const char *what)
{
    unsigned a = act_ticket_step(&w.reader, e, n, 0, &times);
    if (e == ACT_TICKET_ON_RESERVE && a & ACT_TICKET_DO_LOOK)
        w.owner = 1;
    reader_does(&w, a);
    finish(w, a, what);
}

static void writer_on(struct world w, enum act_ticket_event e, const char *what)
{
    unsigned a = act_ticket_step(&w.writer, e, 0, 0, &times);
    writer_does(&w, a);
    finish(w, a, what);
}

/* A message is delivered, delivered and kept (a double comes later), or lost. */
#define MESSAGE(field, deliver)                                                                                        \
    if (w.field) {                                                                                                     \
        struct world kept = w, gone = w;                                                                               \
        gone.field = 0;                                                                                                \
        add(gone);                                                                                                     \
        for (int twice = 0; twice < 2; twice++) {                                                                      \
            struct world at = twice ? kept : gone;                                                                     \
            deliver;                                                                                                   \
        }                                                                                                              \
    }

static void expand(const struct world *state)
{
    struct world w = *state;
    /* A reader answers a question once: after that the slot has another generation, and this world is one ticket. */
    MESSAGE(reserve,
            if (at.reader.state != ACT_TICKET_FREE || !at.owner) reader_on(at, ACT_TICKET_ON_RESERVE, 0, "RESERVE"))
    MESSAGE(granted, writer_on(at, ACT_TICKET_ON_GRANTED, "RESERVED"))
    MESSAGE(refused, writer_on(at, ACT_TICKET_ON_REFUSED, "RESERVED"))
    MESSAGE(ready, reader_on(at, ACT_TICKET_ON_READY, N, "KV_READY"))
    MESSAGE(abort, writer_on(at, ACT_TICKET_ON_ABORT, "TICKET_ABORT"))
    MESSAGE(closed, reader_on(at, ACT_TICKET_ON_CLOSED, 0, "TICKET_CLOSED"))
    MESSAGE(closed, reader_on(at, ACT_TICKET_ON_RETURN, 0, "TICKET_CLOSED, -EAGAIN"))
    MESSAGE(taken, writer_on(at, ACT_TICKET_ON_CLOSED, "TICKET_CLOSED"))
    if (!w.asked) {
        struct world at = w;
        at.asked = 1;
        writer_on(at, ACT_TICKET_ON_ASK, "ASK");
    }
    if (w.reader.state == ACT_TICKET_GRANTING) {
        reader_on(w, ACT_TICKET_ON_GRANT, 0, "GRANT");
        reader_on(w, ACT_TICKET_ON_REFUSE, 0, "REFUSE");
    }
    if (w.writer.state == ACT_TICKET_WRITING && w.posted < N) {
        struct world at = w;
        at.flying |= (uint8_t)(1 << at.posted++);
        at.writer.under_way++;
        check(&at, "post");
        add(at);
    }
    if (w.writer.state == ACT_TICKET_WRITING && w.posted == N)
        writer_on(w, ACT_TICKET_ON_FINISH, "FINISH");
    for (int i = 0; i < N; i++)
        if (w.flying >> i & 1) { /* lands; the writer's completion with it */
            struct world at = w;
            at.flying &= (uint8_t) ~(1 << i);
            at.landed |= (uint8_t)(1 << i);
            if (!--at.writer.under_way)
                writer_does(&at, act_ticket_step(&at.writer, ACT_TICKET_ON_DRAINED, 0, 0, &times));
            reader_on(at, ACT_TICKET_ON_WRITE, 0, "WRITE");
        }
    if (w.given_up < 2) { /* either side's request is cancelled, at any time */
        struct world at = w;
        at.given_up++;
        reader_on(at, ACT_TICKET_ON_GIVE_UP, 0, "GIVE_UP");
        writer_on(at, ACT_TICKET_ON_GIVE_UP, "GIVE_UP");
    }
    if (!w.down) {
        struct world at = w;
        at.down = 1;
        at = broken(at);
        check(&at, "DOWN");
        add(at);
    }
    reader_on(w, ACT_TICKET_ON_LEASE, 0, "lease of the reader");
    writer_on(w, ACT_TICKET_ON_LEASE, "lease of the writer");
}

/* With everything lost from here on, deadlines alone bring both ends to FREE. */
static void check_end(struct world w)
{
    for (int i = 0; i < 8 && (w.reader.state || w.writer.state); i++) {
        if (w.writer.state) {
            unsigned a = act_ticket_step(&w.writer, ACT_TICKET_ON_LEASE, 0, 0, &times);
            if (a & ACT_TICKET_DO_FENCE)
                w = broken(w);
        }
        if (w.reader.state) {
            unsigned a = act_ticket_step(&w.reader, ACT_TICKET_ON_LEASE, 0, 0, &times);
            reader_does(&w, a);
            if (a & ACT_TICKET_DO_FENCE)
                w = broken(w);
        }
    }
    cr_assert_eq(w.reader.state, ACT_TICKET_FREE, "the reader's end never comes from %s",
                 act_ticket_state_name(w.reader.state));
    cr_assert_eq(w.writer.state, ACT_TICKET_FREE, "the writer's end never comes from %s",
                 act_ticket_state_name(w.writer.state));
    cr_assert_neq(w.owner, 1, "pages stay with a ticket that is free");
}

Test(ticket, every_interleaving_is_safe_and_ends)
{
    cap_seen = 1 << 20;
    table_size = 1 << 22;
    seen = malloc(cap_seen * sizeof *seen);
    table = calloc(table_size, sizeof *table);
    n_seen = 0;
    struct world start;
    memset(&start, 0, sizeof start);
    add(start);
    int taken = 0, failed = 0;
    for (size_t i = 0; i < n_seen; i++) {
        struct world w = seen[i];
        taken += w.owner == 2;
        failed += w.failed;
        check_end(w);
        expand(&w);
    }
    cr_expect_gt(n_seen, 10000u, "only %zu states", n_seen);
    cr_expect(taken && failed);
    free(seen);
    free(table);
}
