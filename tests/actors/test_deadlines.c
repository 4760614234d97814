/* Every wait of the hand-off, of a move and of a request has a deadline. The table below is the inventory: who waits in
 * which state for whom, and for how long at most. For each row the system is driven into the state, in virtual time,
 * then the other side falls silent (it is not gone: nobody is told), or what is waited for is lost. The state has to
 * end within its deadline; then what the side that lives holds has to be back, while the other is still silent; then
 * the silent side dies and begins again, and every request has its end.
 *
 * What is not here, because it is a wait of another part:
 *
 *   kv nodes: lookups, reads, slots lent, puts, stores      tests/actors/test_kv_nodes.c
 *   device tier: lookups, pages, rows on their way          tests/actors/test_tiers.c, test_tier_faults.c
 *   expert exchange, slots, balancer and its successor      tests/actors/test_exchange.c, test_slots.c, test_balancer.c
 *   nodes: dial, each step of the handshake, pings, ends    tests/transport/test_net.c
 *   nodes that are connected and do nothing; no way for rows  tests/actors/test_handoff_net.c, test_move_net.c
 *   HTTP, drains                                            tests/actors/gateway/test_http.c, tests/server
 *
 * WEFT_ROW=N walks the row N alone.
 *
 * Waits without a clock of their own are those for one's turn: a prompt for a place or pages (they come back when what
 * is before it ends, and all of that is in this list), a parked sequence for pages. Actors of one worker do not fall
 * silent one by one: a question to one of them ends with it. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/decode_impl.h"
#include "actors/landing_impl.h"
#include "actors/prefill_impl.h"
#include "tests/support/engine_world.h"

#define MS INT64_C(1000000)

enum {
    GRANT_MS = 500,
    LEASE_MS = 1000,
    QUARANTINE_MS = 500,
    CONFIRM_MS = 300,
    FENCE_MS = 100, /* of ts_world_split */
    CHECK_MS = 10000,
    PATIENCE_MS = 10000, /* of placement.c */
    SHARD_MS = 300,
    STALL_MS = 1000,
    DEAF_MS = 350,
    SLACK_MS = 5, /* timers are late by a tick, and whoever has one does something yet */
};

/* ---- who may wait ---- */

enum who {
    READER,   /* a ticket at the Landing */
    WRITER,   /* and of a Prefill */
    BUSY,     /* a WRITER with writes under way */
    JOB,      /* of a Prefill */
    LEFT,     /* what is left of a WRITER */
    STREAM,   /* at a Decode that is left by moves */
    ARRIVING, /* at one that they go to */
    MOVER,    /* a WRITER of a move */
    MOVING,   /* one with writes under way */
    MOVED,    /* what is left of one */
    REQUEST,
};

enum request_state { AT_PREFILL, AT_DECODE, NOWHERE };

/* Who falls silent, or what happens else. */
enum {
    HERE = 1 << 0, /* processes */
    FAR = 1 << 1,
    OTHER = 1 << 2,
    CLIENT = 1 << 3,
    FAR_DECODE = 1 << 4, /* parts */
    EXPERTS_HERE = 1 << 5,
    EXPERTS_FAR = 1 << 6,
    HANG = 1 << 7, /* writes under way take an hour */
    DEAF = 1 << 8, /* the link does not fence, for DEAF_MS from the beginning of the wait */
    CANCEL = 1 << 9,
    DIES = 1 << 10, /* FAR ends, for good */
};

struct row {
    const char *name;
    enum who who; /* when somebody is in this state.. */
    int at;
    unsigned what;  /* ..this happens.. */
    enum who waits; /* ..and this wait.. */
    int in;
    int64_t ms;    /* ..ends within so long */
    unsigned free; /* processes that hold nothing then */
    bool moves;    /* with a second process with Decode, and a drain of the first */
    enum act_type lost, lost_at_client;
    int prefills; /* at a time; 0: as ever */
};

static const struct row rows[] = {
    /* The reader's end of a ticket. */
    {"ticket GRANTING: its own Decode does not answer", READER, ACT_TICKET_GRANTING, FAR_DECODE, READER,
     ACT_TICKET_GRANTING, GRANT_MS},
    {"ticket OPEN: the writer is silent", READER, ACT_TICKET_OPEN, HERE, READER, ACT_TICKET_OPEN, LEASE_MS, FAR},
    {"ticket CLOSING: announced writes do not come", READER, ACT_TICKET_CLOSING, HANG, READER, ACT_TICKET_CLOSING,
     LEASE_MS},
    {"ticket QUARANTINE: the writer is silent", READER, ACT_TICKET_OPEN, HERE, READER, ACT_TICKET_QUARANTINE,
     QUARANTINE_MS, FAR},
    {"ticket FENCING: the link does not fence", READER, ACT_TICKET_OPEN, HERE | DEAF, READER, ACT_TICKET_FENCING,
     DEAF_MS + FENCE_MS, FAR},
    /* The writer's. */
    {"ticket ASKING: the reader is silent", WRITER, ACT_TICKET_ASKING, FAR, WRITER, ACT_TICKET_ASKING,
     GRANT_MS + LEASE_MS, HERE},
    {"ticket WRITING: nothing is there to be written", WRITER, ACT_TICKET_WRITING, EXPERTS_HERE, WRITER,
     ACT_TICKET_WRITING, LEASE_MS, HERE},
    {"ticket CONFIRMING: the reader is silent", WRITER, ACT_TICKET_CONFIRMING, FAR, WRITER, ACT_TICKET_CONFIRMING,
     CONFIRM_MS, HERE},
    {"ticket DRAINING: own writes do not end", BUSY, 0, HANG | FAR, WRITER, ACT_TICKET_DRAINING, QUARANTINE_MS, HERE},
    {"what is left of a ticket: own writes do not end", BUSY, 0, HANG | FAR | CANCEL, LEFT, 0, 2 * LEASE_MS, HERE},
    /* Prefill. */
    {"job QUEUED: the reader of the job before it is silent", JOB, JOB_QUEUED, FAR, JOB, JOB_QUEUED,
     GRANT_MS + LEASE_MS, HERE, .prefills = 1},
    {"job RUNNING: the shards are silent", JOB, JOB_RUNNING, EXPERTS_HERE, JOB, JOB_RUNNING, 3 * STALL_MS, HERE},
    {"job CONFIRMING: the reader is silent", JOB, JOB_CONFIRMING, FAR, JOB, JOB_CONFIRMING, CONFIRM_MS, HERE},
    /* Decode. */
    {"place RESERVED: the writer is silent", READER, ACT_TICKET_OPEN, HERE, STREAM, DEC_RESERVED,
     LEASE_MS + QUARANTINE_MS + FENCE_MS, FAR},
    {"place RUNNING: the shards are silent", STREAM, DEC_RUNNING, EXPERTS_FAR, STREAM, DEC_RUNNING, 3 * STALL_MS, FAR},
    {"place ARRIVED: the requester is silent", ARRIVING, DEC_ARRIVED, CLIENT, ARRIVING, DEC_ARRIVED, LEASE_MS,
     FAR | OTHER, true},
    {"place LEAVING: the requester is silent", STREAM, DEC_LEAVING, CLIENT, STREAM, DEC_LEAVING, LEASE_MS, FAR | OTHER,
     true},
    {"move ASKING: the other side is silent", MOVER, ACT_TICKET_ASKING, OTHER, MOVER, ACT_TICKET_ASKING,
     GRANT_MS + LEASE_MS, FAR, true},
    {"move CONFIRMING: the other side is silent", MOVER, ACT_TICKET_CONFIRMING, OTHER, MOVER, ACT_TICKET_CONFIRMING,
     CONFIRM_MS, FAR, true},
    {"what is left of a move: own writes do not end", MOVING, 0, HANG | OTHER, MOVED, 0, 2 * LEASE_MS, FAR, true},
    /* A request. */
    {"request at Prefill: its prompt was lost", REQUEST, AT_PREFILL, 0, REQUEST, AT_PREFILL, CHECK_MS, HERE | FAR,
     .lost = ACT_PREFILL},
    {"request at Prefill: word of its failure was lost", WRITER, ACT_TICKET_ASKING, FAR, REQUEST, AT_PREFILL,
     GRANT_MS + LEASE_MS + CHECK_MS, HERE, .lost_at_client = ACT_FAILED},
    {"request at Decode: the reader is silent and has not confirmed", WRITER, ACT_TICKET_CONFIRMING, FAR, REQUEST,
     AT_DECODE, CONFIRM_MS + SLACK_MS, HERE},
    {"request at Decode: word of its end was lost", REQUEST, AT_DECODE, 0, REQUEST, AT_DECODE, 2 * CHECK_MS, HERE | FAR,
     .lost_at_client = ACT_TOKENS},
    {"request at Decode: word of its place's end was lost", REQUEST, AT_DECODE, DIES, REQUEST, AT_DECODE, 2 * CHECK_MS,
     HERE, .lost_at_client = ACT_ROUTE_LOST},
    {"request without a place: nobody is there", REQUEST, AT_DECODE, DIES, REQUEST, NOWHERE, PATIENCE_MS + 200, HERE},
};

enum { ROWS = sizeof rows / sizeof *rows };

/* ---- who waits now ---- */

static uint64_t name_of(uint64_t request, uint16_t attempt)
{
    return request << 20 | (uint64_t)attempt << 4 | 1;
}

/* 0, or a name of a wait that is there: of `want`, if it is not 0, else of any. */
static uint64_t pick(uint64_t name, bool there, uint64_t want, uint64_t found)
{
    return there && (want ? name == want : !found) ? name : found;
}

static uint64_t find_reader(const struct ts_world *w, int state, uint64_t want)
{
    const struct landing *l = w->inner[TS_PART_LANDING][TS_FAR].state;
    uint64_t found = 0;
    for (int i = 0; l && i < l->n_slots; i++)
        found = pick(name_of((uint64_t)l->slot[i].ticket.generation << 12 | (uint64_t)i, l->slot[i].attempt),
                     (int)l->slot[i].ticket.state == state, want, found);
    return found;
}

static uint64_t find_job(const struct ts_world *w, enum who who, int state, uint64_t want)
{
    const struct prefill *p = w->inner[TS_PART_PREFILL][0].state;
    uint64_t found = 0;
    if (p && who == LEFT)
        return p->left != NULL;
    for (const struct job *j = p ? p->first : NULL; j; j = j->next) {
        int ticket = j->sending.self ? (int)j->sending.ticket.state : ACT_TICKET_FREE;
        bool there = who == JOB ? (int)j->state == state
                     : who == BUSY
                         ? j->sending.puts && (ticket == ACT_TICKET_WRITING || ticket == ACT_TICKET_CONFIRMING)
                         : ticket == state;
        found = pick(name_of(j->request, j->attempt), there, want, found);
    }
    for (const struct act_left *l = p && who == WRITER ? p->left : NULL; l; l = l->next)
        found =
            pick(name_of(l->sending.request, l->sending.attempt), (int)l->sending.ticket.state == state, want, found);
    return found;
}

static uint64_t find_stream(const struct ts_world *w, enum who who, int state, uint64_t want)
{
    const struct decode *d = w->inner[TS_PART_DECODE][who == ARRIVING ? TS_OTHER : TS_FAR].state;
    uint64_t found = 0;
    if (d && who == MOVED)
        return d->left != NULL;
    for (int i = 0; d && i < d->e->limits.streams; i++) {
        const struct dec_stream *s = &d->stream[i];
        const struct act_sending *sending = s->move && s->move->sending.self ? &s->move->sending : NULL;
        bool there = who == MOVER    ? sending && (int)sending->ticket.state == state
                     : who == MOVING ? sending && sending->puts
                                     : (int)s->state == state;
        uint16_t attempt = who == MOVER || who == MOVING ? sending ? s->move->attempt : 0 : s->attempt;
        found = pick(name_of(s->request, attempt), there, want, found);
    }
    return found;
}

static uint64_t find_request(const struct ts_world *w, int state, uint64_t want)
{
    uint64_t found = 0;
    for (int i = 0; i < w->n; i++) {
        const struct ts_outcome *o = &w->got[i];
        bool there = o->place.self && !o->terminal &&
                     (state == AT_PREFILL  ? o->place.placed && !o->place.computed
                      : state == AT_DECODE ? o->place.placed && o->place.computed
                                           : !o->place.placed && o->place.replaced);
        found = pick(name_of(o->place.request, o->place.attempt), there, want, found);
    }
    return found;
}

static uint64_t find(const struct ts_world *w, enum who who, int state, uint64_t want)
{
    switch (who) {
    case READER:
        return find_reader(w, state, want);
    case WRITER:
    case BUSY:
    case JOB:
    case LEFT:
        return find_job(w, who, state, want);
    case REQUEST:
        return find_request(w, state, want);
    default:
        return find_stream(w, who, state, want);
    }
}

/* ---- what happens ---- */

static unsigned process_of(int index)
{
    return index >= TS_OTHER ? OTHER : index >= TS_FAR ? FAR : HERE;
}

static void set_silent(struct ts_world *w, unsigned what, bool silent)
{
    for (int part = 0; part < TS_PARTS; part++)
        for (int i = 0; i < TS_WORLD_ACTORS; i++) {
            unsigned process = process_of(i), shard = process == HERE ? EXPERTS_HERE : EXPERTS_FAR;
            bool is = what & process || (part == TS_PART_EXPERT && what & shard && process != OTHER) ||
                      (part == TS_PART_DECODE && what & FAR_DECODE && process == FAR);
            if (is)
                w->inner[part][i].silent = silent;
        }
    if (what & CLIENT)
        w->client_silent = silent;
}

static void end_actor(struct ts_world *w, struct act_addr who)
{
    struct act_msg m = act_msg_make(ACT_PING, w->client);
    *act_p_ping(&m) = (struct act_p_ping){.a = 3, .b = act_addr_number(act_current(w->rt, who))};
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
}

static void end_process(struct ts_world *w, unsigned process)
{
    const struct ts_far *f = process == OTHER ? &w->other : &w->far;
    if (process == HERE) {
        end_actor(w, w->e.prefill[0]);
        return;
    }
    end_actor(w, f->landing);
    end_actor(w, f->e.decode[0]);
    end_actor(w, f->replay);
}

static void happen(struct ts_world *w, const struct row *r, uint64_t who)
{
    set_silent(w, r->what, true);
    if (r->what & HANG)
        ts_wire_hang(&w->wire, INT64_C(3600000) * MS);
    w->wire.deaf = r->what & DEAF;
    if (r->what & CANCEL)
        ts_world_cancel(w, (int)(who >> 20) - 1);
    if (r->what & DIES)
        end_process(w, FAR);
}

static bool lose(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m, int *fail)
{
    enum act_type *lost = w->before_ctx;
    (void)who, (void)self, (void)fail;
    if (!*lost || m->type != *lost)
        return false;
    *lost = ACT_NONE;
    return true;
}

/* ---- a row ---- */

static bool all_ended(const struct ts_world *w)
{
    for (int i = 0; i < w->n; i++)
        if (!w->got[i].terminal && !w->got[i].cancelled)
            return false;
    return true;
}

/* Exact mode, where a request that goes on elsewhere has the same tokens. */
static void open_world(struct ts_world *w, const struct row *r, enum act_type *lost)
{
    ts_world_open(w, 64, 2);
    w->e.limits.replay = 0;
    w->e.limits.prefills = r->prefills ? r->prefills : w->e.limits.prefills;
    w->e.experts.limits = (struct act_exchange_limits){.deadline_ns = SHARD_MS * MS, .patience_ns = STALL_MS * MS};
    w->restart = !(r->what & DIES);
    w->wire.delay_max = MS / 2;
    ts_world_split(w, 64, MDL_HANDOFF_FULL);
    w->e.tickets.confirm = w->far.e.tickets.confirm = CONFIRM_MS * MS;
    if (r->moves)
        ts_world_add_other(w, 64);
    ts_world_requests(w, 3, 6);
    for (int i = 0; i < w->n; i++) {
        w->wanted[i].n_prompt = 60 + 10 * i;
        w->wanted[i].max_new = r->moves ? 60 : 12;
        w->wanted[i].start += MS;
        for (int k = 0; k < w->wanted[i].n_prompt; k++)
            w->wanted[i].prompt[k] = (i * 131 + k * 7 + 5) % w->m->cfg->vocab_size;
    }
    w->cost[TS_PART_DECODE] = MS / 10;
    w->client_loses = r->lost_at_client;
    *lost = r->lost;
    w->before = lose;
    w->before_ctx = lost;
}

static void drain_far(struct ts_world *w)
{
    struct act_msg m = act_msg_make(ACT_DRAIN, w->far.landing);
    bool speak = false;
    while (!speak && act_sim_run(w->sim, act_sim_now(w->sim) + MS, 1000000)) {
        speak = true;
        for (int i = 0; i < w->n; i++)
            speak &= w->got[i].n >= 4;
    }
    for (int i = 0; i < w->n; i++)
        cr_assert(!w->got[i].terminal, "request %d is over before it could move", i);
    cr_assert_eq(act_runtime_post(w->rt, &m), 0);
}

/* Goes on until the wait is there. 0: it does not come to that, which is a failure. */
static uint64_t until(struct ts_world *w, const struct row *r, enum who who, int state)
{
    uint64_t found;
    int64_t limit = act_sim_now(w->sim) + 20000 * MS;
    while (!(found = find(w, who, state, 0)) && !all_ended(w) && act_sim_run(w->sim, limit, 1))
        ;
    cr_expect(found, "%s: it never came so far", r->name);
    return found;
}

static void check_free(const struct ts_world *w, const struct row *r, unsigned process)
{
    const struct ts_far *f = process == OTHER ? &w->other : &w->far;
    const struct prefill *p = w->inner[TS_PART_PREFILL][0].state;
    const struct decode *d = w->inner[TS_PART_DECODE][process == OTHER ? TS_OTHER : TS_FAR].state;
    struct kv_device_stats s;
    kv_device_stat(process == HERE ? w->e.device : f->e.device, &s);
    if (process == HERE) {
        cr_expect_eq(s.held, 0, "%s: %d pages are held by the writer", r->name, s.held);
        cr_expect(!p || !p->left, "%s: something is left of a ticket", r->name);
        return;
    }
    cr_expect_le(s.held, f->e.limits.lease, "%s: %d pages are held by the reader%s", r->name, s.held,
                 process == OTHER ? ", the other one" : "");
    cr_expect_eq(f->stats.open, 0, "%s: %d tickets are open", r->name, f->stats.open);
    cr_expect(!d || !d->left, "%s: something is left of a move", r->name);
    for (int i = 0; d && i < d->e->limits.streams; i++)
        cr_expect_eq(d->stream[i].state, DEC_FREE, "%s: place %d is in state %d", r->name, i, d->stream[i].state);
}

/* What it has, it has right; it ends once, whole or with an end that a client is told. */
static void check_request(struct ts_world *w, const struct row *r, int i)
{
    const struct ts_outcome *o = &w->got[i];
    int32_t want[256];
    if (o->cancelled)
        return;
    ts_world_plain(w, &w->wanted[i], NULL, want);
    cr_assert_eq(o->terminal, 1, "%s: request %d has %d ends", r->name, i, o->terminal);
    bool whole = !o->status && o->finish == ACT_FINISH_LENGTH && o->n == w->wanted[i].max_new,
         failed = o->status == -EHOSTDOWN || o->status == -ENOLINK || o->finish == ACT_FINISH_ERROR;
    cr_expect(whole || failed, "%s: request %d ends with status %d, finish %d, %d tokens", r->name, i, o->status,
              o->finish, o->n);
    cr_expect_arr_eq(o->ids, want, (size_t)o->n * sizeof *want, "%s: request %d has other tokens", r->name, i);
}

static void finish(struct ts_world *w, const struct row *r)
{
    unsigned all[] = {HERE, FAR, OTHER};
    if (r->what & CLIENT) /* nobody is there whom the rest could be for */
        return;
    set_silent(w, r->what, false);
    for (int i = 0; i < 3; i++)
        if (r->what & all[i])
            end_process(w, all[i]);
    int64_t limit = act_sim_now(w->sim) + 60000 * MS;
    while (!all_ended(w) && act_sim_now(w->sim) < limit)
        act_sim_run(w->sim, act_sim_now(w->sim) + 5 * MS, 10000000);
    act_sim_run(w->sim, act_sim_now(w->sim) + 3000 * MS, 10000000);
    for (int i = 0; i < w->n; i++)
        check_request(w, r, i);
    for (int i = 0; i < 3; i++)
        if (r->free & all[i])
            check_free(w, r, all[i]);
}

/* False: there was no such wait, or it did not end in time. */
static bool wait_ends(struct ts_world *w, const struct row *r)
{
    uint64_t who = until(w, r, r->who, r->at);
    if (who)
        happen(w, r, who);
    uint64_t waits = who ? until(w, r, r->waits, r->in) : 0;
    int64_t began = act_sim_now(w->sim), limit = began + (r->ms + SLACK_MS) * MS, deaf = began + DEAF_MS * MS;
    bool more = true;
    while (more && waits && find(w, r->waits, r->in, waits)) {
        more = act_sim_run(w->sim, limit, 1);
        w->wire.deaf &= act_sim_now(w->sim) < deaf;
    }
    cr_expect(more, "%s: it waits for more than %d ms", r->name, (int)r->ms);
    return more && waits;
}

static void walk(const struct row *r)
{
    static struct ts_world w;
    enum act_type lost;
    open_world(&w, r, &lost);
    ts_world_start(&w, 1);
    if (r->moves)
        drain_far(&w);
    if (wait_ends(&w, r)) {
        act_sim_run(w.sim, act_sim_now(w.sim) + 4000 * MS, 10000000);
        bool tries_on = r->what & (EXPERTS_HERE | EXPERTS_FAR); /* here, where the silent ones are */
        for (unsigned process = HERE; process <= OTHER && !tries_on; process <<= 1)
            if (r->free & process)
                check_free(&w, r, process);
        finish(&w, r);
    }
    ts_world_close(&w);
}

Test(deadlines, every_wait_ends_and_leaves_nothing)
{
    const char *only = getenv("WEFT_ROW");
    for (int i = only ? atoi(only) : 0; i < (only ? atoi(only) + 1 : ROWS); i++)
        walk(&rows[i]);
}
