#include "actors/exchange.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actors/exchange_slots.h"
#include "actors/exchange_wire.h"
#include "actors/slots.h"

enum {
    MS = 1000000,
    OUT_NS = 100 * MS, /* left out after the first return; doubled by each further one, up to: */
    OUT_DOUBLINGS = 6,
    STALL_NS = 20 * MS, /* between two looks for shards that are back */
    WAVES_MAX = 256,
};

static bool is_local(const struct act_exchange *e, const struct mdl_exchange *x)
{
    return x->layer >= e->m->cfg->n_layers || !e->experts->n;
}

/* ---- what is sent ---- */

/* Of `rows` rows to a shard. */
static int wave_rows(struct act_exchange *e, int shard, int rows)
{
    int limit = e->experts->limits.rows ? e->experts->limits.rows : ACT_EXCHANGE_ROWS;
    int least = (rows + WAVES_MAX - 1) / WAVES_MAX, slots = act_exchange_slot_rows(e, shard, rows);
    limit = slots && slots < limit ? slots : limit;
    return limit > least ? limit : least;
}

/* Experts of the pair's row at the pair's shard, if it is the first of them; else 0. */
static int pairs_from(const struct act_exchange *e, int pair, int k)
{
    int begin = pair / k * k, n = 0;
    for (int j = begin; j < begin + k; j++) {
        bool same = e->shard[j] == e->shard[pair];
        if (same && j < pair)
            return 0;
        n += same;
    }
    return n;
}

/* Gives every pair its wave: of the rows that a shard gets, as many as it has room for, the next, .. Until a pair's
 * wave is known its place has what pairs_from says. */
static void cut_waves(struct act_exchange *e, const struct mdl_exchange *x)
{
    struct {
        int rows, pairs, wave;
    } at[ACT_SHARDS_MAX] = {0};
    int rows[ACT_SHARDS_MAX] = {0}, most[ACT_SHARDS_MAX], pairs[ACT_SHARDS_MAX];
    for (int i = 0; i < x->rows * x->k; i++) {
        e->wave[i] = (uint8_t)pairs_from(e, i, x->k);
        rows[e->shard[i]] += e->wave[i] > 0;
    }
    for (int s = 0; s < e->experts->n; s++) {
        most[s] = wave_rows(e, s, rows[s]);
        pairs[s] = act_exchange_slot_rows(e, s, rows[s]) ? (int)e->experts->slots->shape.pairs : INT_MAX;
    }
    for (int i = 0; i < x->rows * x->k; i++) {
        int s = e->shard[i], n = e->wave[i];
        if (n && (at[s].rows == most[s] || at[s].pairs + n > pairs[s])) {
            at[s].wave++;
            at[s].rows = at[s].pairs = 0;
        }
        at[s].rows += n > 0;
        at[s].pairs += n;
        e->wave[i] = (uint8_t)at[s].wave;
    }
    for (int s = 0; s < e->experts->n; s++)
        e->peer[s].waves = rows[s] ? at[s].wave + 1 : 0;
}

static bool in_wave(const struct act_exchange *e, int pair, int shard, int wave)
{
    return e->shard[pair] == shard && e->wave[pair] == wave;
}

struct act_dispatch_size act_exchange_size(const struct act_exchange *e, int shard, int wave)
{
    const struct mdl_exchange *x = e->current;
    struct act_dispatch_size size = {.hidden = (uint32_t)e->m->cfg->hidden};
    for (int r = 0; r < x->rows; r++) {
        uint32_t n = 0;
        for (int k = 0; k < x->k; k++)
            n += in_wave(e, r * x->k + k, shard, wave);
        size.rows += n > 0;
        size.pairs += n;
    }
    return size;
}

void act_exchange_fill(const struct act_exchange *e, int shard, int wave, struct act_dispatch d)
{
    const struct mdl_exchange *x = e->current;
    size_t hidden = (size_t)e->m->cfg->hidden;
    for (int r = 0; r < x->rows; r++) {
        uint32_t n = 0;
        for (int k = 0; k < x->k; k++) {
            int at = r * x->k + k;
            if (in_wave(e, at, shard, wave)) {
                *d.pair++ = (struct act_dispatch_pair){(uint32_t)x->expert[at], x->weight[at]};
                n++;
            }
        }
        if (!n)
            continue;
        *d.pairs++ = n;
        memcpy(d.codes, x->codes + (size_t)r * hidden, hidden);
        memcpy(d.scales, x->scales + (size_t)r * hidden / 32, hidden / 32);
        d.codes += hidden;
        d.scales += hidden / 32;
    }
}

static int make_dispatch(struct act_exchange *e, int shard, int wave, struct act_msg *out)
{
    const struct mdl_exchange *x = e->current;
    struct act_dispatch_size size = act_exchange_size(e, shard, wave);
    int status = act_msg_new(ACT_EXPERT_DISPATCH, e->peer[shard].addr, act_dispatch_bytes(&size), out);
    if (status)
        return status;
    *act_p_expert_dispatch(out) = (struct act_p_expert_dispatch){.sequence = e->sequence,
                                                                 .map = e->map->version,
                                                                 .stream = e->stream,
                                                                 .layer = (uint16_t)x->layer,
                                                                 .rows = (uint16_t)size.rows,
                                                                 .set = (uint8_t)(e->sequence & 1),
                                                                 .wave = (uint8_t)wave};
    size_t bytes;
    struct act_dispatch d;
    act_dispatch_place(&size, act_msg_tail(out, &bytes), &d);
    act_exchange_fill(e, shard, wave, d);
    return 0;
}

static int send_wave(struct act_exchange *e, int shard, int wave)
{
    struct act_msg m;
    int r = act_exchange_slot_send(e, shard, wave);
    if (r)
        return r < 0 ? r : 0;
    r = make_dispatch(e, shard, wave, &m);
    if (r)
        return r;
    r = act_request(e->self, &m);
    if (r)
        act_msg_drop(&m);
    return r;
}

/* Sends what may be sent. Without room the rest follows on ROOM; behind a slot that is in use, on its end. */
static int push(struct act_exchange *e)
{
    for (int s = 0; s < e->experts->n && e->current; s++) {
        struct act_exchange_peer *p = &e->peer[s];
        while (p->sent < p->waves && p->sent - p->answered < ACT_EXCHANGE_WAVES) {
            int r = send_wave(e, s, p->sent);
            if (r == -EINPROGRESS)
                break;
            if (r)
                return r == -EAGAIN ? 0 : r;
            p->sent++;
            e->counters.dispatched++;
        }
    }
    return 0;
}

/* ---- shards that come and go ---- */

int64_t act_exchange_deadline(const struct act_exchange *e)
{
    int64_t ns = e->experts->limits.deadline_ns;
    return ns ? ns : INT64_C(5000) * MS;
}

/* Left out for `least`, longer with each failure in a row: trying a shard that hangs costs a deadline each time.
 * One line when an episode begins, one when it ends (back_in_service). */
static void out_of_service(struct act_exchange *e, int shard, int64_t least, const char *why)
{
    struct act_exchange_peer *p = &e->peer[shard];
    if (!p->fails && e->experts->log)
        act_log_write(e->experts->log, ACT_LOG_WARNING, "experts", 0,
                      "stream %u, step of sequence %u: shard %d of %d %s; it is left out, the step begins again",
                      e->stream, e->sequence, shard, e->experts->n, why);
    int doublings = p->fails < OUT_DOUBLINGS ? p->fails : OUT_DOUBLINGS;
    p->fails++;
    p->out_until = act_now(e->self) + (least << doublings);
    act_shard_add(&e->out, shard);
}

/* One that refused some exchanges and answers others stays what it is until a whole step has ended (settle). */
static void back_in_service(struct act_exchange *e, int shard)
{
    struct act_exchange_peer *p = &e->peer[shard];
    if (p->refuses)
        return;
    if (p->fails && e->experts->log)
        act_log_write(e->experts->log, ACT_LOG_INFO, "experts", 0, "stream %u: shard %d of %d answers again", e->stream,
                      shard, e->experts->n);
    p->fails = 0;
}

/* A step has ended. A shard that refused is believed again when it has answered and has refused nothing. */
static void settle(struct act_exchange *e)
{
    for (int s = 0; s < e->experts->n; s++) {
        struct act_exchange_peer *p = &e->peer[s];
        if (p->refuses && p->answers && !p->refusals) {
            p->refuses = false;
            back_in_service(e, s);
        }
        p->refusals = 0;
        p->answers = false;
    }
}

/* A shard that is there under another address, or over another connection: what was known of it does not count. */
static void begin_anew(struct act_exchange_peer *p, struct act_addr addr, uint32_t link)
{
    p->addr = addr;
    p->link = link;
    p->refuses = false;
    p->refusals = 0;
}

/* A shard that was restarted lives on under its next generation; one whose time is over is tried again. */
static void look_at_peers(struct act_exchange *e)
{
    int64_t now = act_now(e->self);
    for (int s = 0; s < e->experts->n; s++) {
        struct act_exchange_peer *p = &e->peer[s];
        struct act_addr present = act_current(act_self_runtime(e->self), p->addr);
        if (!act_addr_is_nobody(present) && !act_addr_equal(present, p->addr)) {
            begin_anew(p, present, p->link);
            act_shard_remove(&e->out, s);
        }
        if (act_addr_is_nobody(p->addr))
            act_shard_add(&e->out, s);
        else if (p->out_until <= now)
            act_shard_remove(&e->out, s);
        p->waves = p->sent = p->answered = 0;
        memset(p->have, 0, sizeof p->have);
    }
}

/* Whether some expert has nobody who computes it without these. */
static bool is_missing(const struct act_exchange *e, const struct act_shard_set *without)
{
    const struct act_map *map = e->map;
    int there = 0;
    for (int s = 0; s < e->experts->n; s++)
        there += !act_shard_in(without, s);
    if (!e->experts->limits.no_takeover || there == e->experts->n || !there)
        return e->experts->n && !there;
    for (int i = 0; i < map->layers * map->experts; i++) {
        int n, out = 0;
        const uint16_t *owner = act_map_owners(map, i / map->experts, i % map->experts, &n);
        for (int k = 0; k < n; k++)
            out += act_shard_in(without, owner[k]);
        if (out == n)
            return true;
    }
    return false;
}

/* Shards whose time is over are worth a try; that one answers again is known only when it has, or was found anew. */
enum act_experts_state act_exchange_experts(struct act_exchange *e)
{
    struct act_shard_set out = {{0}}, doubtful = {{0}};
    int64_t now = act_now(e->self);
    for (int s = 0; s < e->experts->n; s++) {
        const struct act_exchange_peer *p = &e->peer[s];
        bool gone = act_addr_is_nobody(p->addr) ||
                    (!p->addr.peer && act_addr_is_nobody(act_current(act_self_runtime(e->self), p->addr)));
        if (gone || p->out_until > now)
            act_shard_add(&out, s);
        if (gone || p->fails)
            act_shard_add(&doubtful, s);
    }
    if (e->stalled || is_missing(e, &out))
        e->state = ACT_EXPERTS_MISSING;
    else
        e->state = e->state && is_missing(e, &doubtful) ? ACT_EXPERTS_DOUBTFUL : ACT_EXPERTS_THERE;
    bool there = e->state == ACT_EXPERTS_THERE;
    e->counters.missing = !there;
    e->complete |= there;
    e->gave_up_told &= !there;
    if (there == e->missing_told && e->complete) {
        e->missing_told = !there;
        if (e->experts->log)
            act_log_event(e->experts->log, there ? ACT_LOG_INFO : ACT_LOG_ERROR, "experts", 0,
                          there ? "experts_back" : "experts_missing", "stream=%u shards=%d", e->stream, e->experts->n);
    }
    return e->state;
}

static int peer_of(const struct act_exchange *e, struct act_addr src)
{
    for (int s = 0; s < e->experts->n; s++)
        if (act_addr_equal(e->peer[s].addr, src))
            return s;
    return -1;
}

static void lose(struct act_exchange *e)
{
    e->losses += !e->lost;
    e->counters.lost += !e->lost;
    e->lost = true;
}

/* A shard that is alive does not compute what it was asked: no memory, or it sees nonsense. The step is run again, with
 * the shard as long as that may have been bad luck, then without it. */
static void refused(struct act_exchange *e, int shard)
{
    struct act_exchange_peer *p = &e->peer[shard];
    e->counters.refused++;
    if (++p->refusals >= ACT_EXCHANGE_REFUSALS && !act_shard_in(&e->out, shard)) {
        p->refuses = true;
        out_of_service(e, shard, OUT_NS, "refuses what it is asked");
    }
    lose(e);
}

/* The step fails: says so, with what is known of the cause; once for all that fail while experts are missing. */
static int give_up(struct act_exchange *e, int status, const char *why)
{
    int out = 0;
    for (int s = 0; s < e->experts->n; s++)
        out += act_shard_in(&e->out, s);
    snprintf(e->reason, sizeof e->reason, "%s; %d of %d expert shards are left out", why, out, e->experts->n);
    if (e->experts->log && !(e->gave_up && e->gave_up_told))
        act_log_write(e->experts->log, ACT_LOG_ERROR, "experts", 0,
                      "stream %u, step of sequence %u fails: %s; the lines before say which and why", e->stream,
                      e->sequence, e->reason);
    e->gave_up_told |= e->gave_up;
    return status;
}

const char *act_exchange_reason(const struct act_exchange *e, int status, const char *other)
{
    return (status == -EHOSTDOWN || status == -ENOLINK) && e->reason[0] ? e->reason : other;
}

/* ---- an exchange ---- */

static int grow(struct act_exchange *e, int pairs)
{
    if (pairs <= e->capacity)
        return 0;
    free(e->shard);
    free(e->wave);
    e->shard = malloc((size_t)pairs * sizeof *e->shard);
    e->wave = malloc((size_t)pairs);
    e->capacity = e->shard && e->wave ? pairs : 0;
    return e->capacity ? 0 : -ENOMEM;
}

static void set_timer(struct act_exchange *e, int64_t ns)
{
    act_timer_after(e->self, &e->timer, ns, ACT_EXCHANGE_TAG | e->stream);
}

/* Nobody can compute some of the experts: the step waits and looks again, up to a limit for all its waits. */
static int stall(struct act_exchange *e)
{
    int64_t most = e->experts->limits.patience_ns;
    e->gave_up = e->waited > (most ? most : INT64_C(30000) * MS);
    if (e->gave_up)
        return give_up(e, -ENOLINK, "nobody computes some experts, experts.patience is over");
    e->stalled = true;
    e->stalled_at = act_now(e->self);
    e->counters.stalled++;
    set_timer(e, STALL_NS);
    return 0;
}

static void count_pairs(struct act_exchange *e, const struct mdl_exchange *x)
{
    for (int i = 0; i < x->rows * x->k; i++) {
        e->counters.taken_over += !act_map_holds(e->map, x->layer, e->shard[i], x->expert[i]);
        if (e->counts)
            e->counts[(size_t)x->layer * (size_t)e->map->experts + (size_t)x->expert[i]]++;
    }
    e->counters.pairs += (uint64_t)(x->rows * x->k);
}

static int dispatch(void *ctx, struct mdl_step *step, struct mdl_exchange *x)
{
    struct act_exchange *e = ctx;
    const struct act_exchange_limits *l = &e->experts->limits;
    (void)step;
    if (is_local(e, x))
        return mdl_experts_compute(e->m, x, 0,
                                   x->layer < e->m->cfg->n_layers ? e->m->cfg->n_experts : e->m->cfg->draft_experts);
    act_exchange_abandon(e);
    if (e->losses > ACT_EXCHANGE_LOSSES)
        return give_up(e, -EHOSTDOWN, "a step lost its exchange with the experts too often");
    int r = grow(e, x->rows * x->k);
    if (r)
        return r;
    e->current = x;
    e->counters.exchanges++;
    look_at_peers(e);
    /* Sources begin their turns at different shards. */
    uint32_t turn = e->sequence + (uint32_t)act_addr_number(act_self_addr(e->self)) * 7u + e->stream;
    if (act_map_choose(e->map, x->layer, x->expert, x->rows, x->k, &e->out, !l->no_takeover, turn, e->shard))
        return stall(e);
    cut_waves(e, x);
    count_pairs(e, x);
    set_timer(e, act_exchange_deadline(e));
    return push(e);
}

/* mdl_providers.engram */
static int ask_engram(void *ctx, struct mdl_step *step, struct mdl_engram_fetch *f)
{
    return act_engram_ask(&((struct act_exchange *)ctx)->engram, step, f);
}

void act_exchange_abandon(struct act_exchange *e)
{
    if (e->stalled)
        e->waited += act_now(e->self) - e->stalled_at;
    e->current = NULL;
    e->lost = e->stalled = false;
    e->sequence++;
    if (e->self)
        act_timer_cancel(e->self, &e->timer);
}

/* ---- maps ---- */

static void report(struct act_exchange *e)
{
    size_t n = (size_t)e->map->layers * (size_t)e->map->experts * sizeof *e->counts, bytes;
    struct act_msg m;
    struct act_addr present = act_current(act_self_runtime(e->self), e->balancer);
    e->balancer = act_addr_is_nobody(present) ? e->balancer : present;
    e->reported = act_now(e->self);
    if (!e->counts || act_addr_is_nobody(e->balancer) || act_msg_new(ACT_EXPERT_COUNTS, e->balancer, n, &m))
        return;
    *act_p_expert_counts(&m) = (struct act_p_expert_counts){
        .map = e->map->version, .layers = (uint16_t)e->map->layers, .experts = (uint16_t)e->map->experts};
    memcpy(act_msg_tail(&m, &bytes), e->counts, n);
    if (act_send(e->self, &m)) {
        act_msg_drop(&m);
        return;
    }
    memset(e->counts, 0, n);
}

static void apply_switch(struct act_exchange *e)
{
    if (!e->next)
        return;
    act_map_free(e->own);
    e->map = e->own = e->next;
    e->next = NULL;
    e->counters.switches++;
    struct act_msg r = act_msg_make(ACT_EXPERT_SWITCHED, ACT_NOBODY);
    act_p_expert_switched(&r)->map = e->map->version;
    if (act_reply(e->self, &e->promise, &r))
        act_msg_drop(&r);
}

/* The newest map counts; an older one is answered as switched, since this source will never use it. */
static bool take_switch(struct act_exchange *e, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    struct act_map *map;
    size_t bytes;
    const void *tail = act_msg_tail(m, &bytes);
    const struct act_map *newest = e->next ? e->next : e->map;
    if (act_map_read(tail, bytes, &map) || map->layers != e->map->layers || map->experts != e->map->experts ||
        map->shards != e->experts->n) {
        act_return(e->self, m);
        return false;
    }
    bool newer = map->version > newest->version;
    if (newer && e->next) { /* the one that waited is never used */
        struct act_msg r = act_msg_make(ACT_EXPERT_SWITCHED, ACT_NOBODY);
        act_p_expert_switched(&r)->map = e->next->version;
        if (act_reply(e->self, &e->promise, &r))
            act_msg_drop(&r);
        act_map_free(e->next);
    }
    if (newer) {
        e->next = map;
        e->promise = p;
        if (!e->in_step)
            apply_switch(e);
        return false;
    }
    act_map_free(map);
    struct act_msg r = act_msg_make(ACT_EXPERT_SWITCHED, ACT_NOBODY);
    act_p_expert_switched(&r)->map = e->map->version;
    if (act_reply(e->self, &p, &r))
        act_msg_drop(&r);
    return false;
}

/* What this source uses, for a balancer that began anew. */
static void tell_map(struct act_exchange *e, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    const struct act_map *newest = e->next ? e->next : e->map;
    struct act_msg r;
    size_t bytes;
    if (act_msg_new(ACT_EXPERT_SWITCH, ACT_NOBODY, act_map_bytes(newest), &r)) {
        act_return(e->self, m);
        return;
    }
    act_map_write(newest, act_msg_tail(&r, &bytes));
    act_p_expert_switch(&r)->map = newest->version;
    if (act_reply(e->self, &p, &r))
        act_msg_drop(&r);
}

void act_exchange_begin(struct act_exchange *e)
{
    act_exchange_abandon(e);
    act_engram_abandon(&e->engram);
    apply_switch(e);
    e->in_step = true;
    e->others_told = false;
    e->gave_up = false;
    e->reason[0] = 0;
}

void act_exchange_end(struct act_exchange *e)
{
    act_exchange_abandon(e);
    act_engram_abandon(&e->engram);
    e->in_step = false;
    e->other_rows = e->others_told ? e->other_rows : 0;
    e->losses = 0;
    if (!e->gave_up) /* who comes after those that have waited in vain does not wait all over again */
        e->waited = 0;
    settle(e);
    apply_switch(e);
    if (e->counts && act_now(e->self) - e->reported >= e->experts->report_ns)
        report(e);
}

/* ---- messages ---- */

/* A shard gets a part of this source's rows, and of the others': what the others add is in proportion. */
static void note_others(struct act_exchange *e, int shard, int others)
{
    const struct mdl_exchange *x = e->current;
    int own = 0;
    for (int i = 0; others && i < x->rows * x->k; i++)
        own += e->shard[i] == shard && pairs_from(e, i, x->k) > 0;
    others = own ? (int)((int64_t)others * x->rows / own) : 0;
    e->other_rows = e->other_rows_of == e->sequence && e->other_rows > others ? e->other_rows : others;
    e->other_rows_of = e->sequence;
    e->others_told = true;
}

/* at [bytes]: rows of the pairs of a wave, in their order. */
static bool take_rows(struct act_exchange *e, int s, const struct act_p_expert_result *p, const uint8_t *at,
                      size_t bytes)
{
    struct mdl_exchange *x = e->current;
    struct act_exchange_peer *peer = &e->peer[s];
    bool empty = bytes == 0;                                     /* a refusal */
    if (act_shard_in(&e->out, s) && !empty && !peer->refusals) { /* slow, but alive */
        peer->out_until = act_now(e->self);
        back_in_service(e, s);
    }
    if (!x || p->sequence != e->sequence || p->map != e->map->version || p->layer != x->layer ||
        p->wave >= peer->sent || peer->have[p->wave / 64] >> (p->wave % 64) & 1) {
        e->counters.late++;
        return false;
    }
    size_t hidden = (size_t)e->m->cfg->hidden, row = hidden * sizeof(uint16_t), want = 0;
    for (int i = 0; i < x->rows * x->k; i++)
        want += in_wave(e, i, s, p->wave) ? row : 0;
    if (bytes != want) { /* an answer of another size is no answer */
        refused(e, s);
        return true;
    }
    e->counters.results++;
    peer->answers = true;
    back_in_service(e, s);
    note_others(e, s, p->rows);
    peer->have[p->wave / 64] |= UINT64_C(1) << (p->wave % 64);
    peer->answered++;
    for (int i = 0; i < x->rows * x->k; i++)
        if (in_wave(e, i, s, p->wave)) {
            mdl_exchange_deliver(x, i / x->k, i % x->k, (int)hidden, (const uint16_t *)(const void *)at);
            at += row;
        }
    if (x->pending == 0) {
        act_timer_cancel(e->self, &e->timer);
        return true;
    }
    if (push(e))
        lose(e);
    return e->lost;
}

static bool take_result(struct act_exchange *e, struct act_msg *m)
{
    const struct act_p_expert_result *p = act_p_expert_result(m);
    size_t bytes;
    const uint8_t *at = act_msg_tail(m, &bytes);
    int s = peer_of(e, m->src);
    if (s < 0) {
        e->counters.late++;
        return false;
    }
    act_exchange_slot_answered(e, s, p->sequence, p->wave);
    return take_rows(e, s, p, at, bytes);
}

/* The same that was put into a slot here. */
static bool take_put(struct act_exchange *e, struct act_msg *m)
{
    struct act_slot_result r;
    if (!act_exchange_slot_result(e, m, &r)) {
        e->counters.late++;
        return false;
    }
    return take_rows(e, r.shard, &r.head, r.rows, r.bytes);
}

/* A dispatch that did not get there is run again; what waited for its slot goes now. A connection that takes no puts
 * any more ends, which the finder may say later: until then, and for a while, its shard is left out. */
static bool take_put_done(struct act_exchange *e, struct act_msg *m)
{
    int status, s = act_exchange_slot_put_done(e, m, &status);
    if (s >= 0 && (status == -ENOTCONN || status == -ESTALE) && !act_shard_in(&e->out, s))
        out_of_service(e, s, OUT_NS, "is not reached any more");
    if (s >= 0 && status == -ENOMEM)
        refused(e, s);
    if (s >= 0 || (e->current && !e->lost && !e->stalled && push(e)))
        lose(e);
    return e->lost;
}

/* One of this process that refuses is alive. A dispatch of which nothing came back was lost with it, or is late. */
static bool take_returned(struct act_exchange *e, struct act_msg *m)
{
    int s = peer_of(e, m->src);
    bool told = !(m->flags & ACT_MSG_ABANDONED); /* which exchange it was */
    if (m->flags & ACT_MSG_LATE)                 /* the exchange has had its own deadline */
        return false;
    e->counters.returned++;
    if (s < 0 || (told && act_p_expert_dispatch(m)->sequence != e->sequence))
        return false;
    struct act_addr present = act_current(act_self_runtime(e->self), e->peer[s].addr);
    if (act_addr_is_nobody(present))
        out_of_service(e, s, OUT_NS, "is gone");
    else if (e->current && act_addr_equal(present, e->peer[s].addr))
        refused(e, s);
    if (e->current)
        lose(e);
    return e->lost;
}

/* A shard was found, or is known to be gone (nobody). */
static bool take_shard(struct act_exchange *e, const struct act_p_expert_shard *p)
{
    if (p->index == ACT_SHARD_BALANCER) {
        e->balancer = p->shard;
        report(e);
    }
    if (p->index >= (uint32_t)e->experts->n)
        return false;
    struct act_exchange_peer *peer = &e->peer[p->index];
    bool same = act_addr_equal(peer->addr, p->shard) && peer->link == p->link;
    bool owes = e->current && peer->answered < peer->waves;
    if (!same)
        begin_anew(peer, p->shard, p->link);
    peer->fails = 0;
    peer->out_until = 0;
    if (owes && !same)
        lose(e);
    e->lost |= e->stalled; /* it may be the one that is waited for */
    return e->lost;
}

static bool take_timer(struct act_exchange *e)
{
    if (!e->current || e->lost)
        return false;
    if (!e->stalled) {
        e->counters.expired++;
        for (int s = 0; s < e->experts->n; s++)
            if (e->peer[s].answered < e->peer[s].sent)
                out_of_service(e, s, act_exchange_deadline(e), "has not answered in time");
        lose(e);
    }
    e->lost = true;
    return true;
}

bool act_exchange_message(struct act_exchange *e, struct act_msg *m)
{
    switch (m->type) {
    case ACT_EXPERT_RESULT:
        return act_p_expert_result(m)->stream == e->stream && take_result(e, m);
    case ACT_LINK_IMMEDIATE:
        return take_put(e, m);
    case ACT_LINK_PUT_DONE:
        return act_exchange_is_put(m) && take_put_done(e, m);
    case ACT_EXPERT_SWITCH:
        return take_switch(e, m);
    case ACT_EXPERT_MAP_ASK:
        tell_map(e, m);
        return false;
    case ACT_EXPERT_SHARD:
        return m->src.peer == 0 && take_shard(e, act_p_expert_shard(m));
    case ACT_ROOM:
        if (e->current && !e->lost && !e->stalled && push(e))
            lose(e);
        return e->lost;
    case ACT_ENGRAM_ROWS:
        return act_engram_message(&e->engram, m);
    case ACT_TIMER:
        return act_p_timer(m)->tag == ACT_COMPUTED_TAG ||
               (act_p_timer(m)->tag == (ACT_EXCHANGE_TAG | e->stream) && take_timer(e)) ||
               act_engram_message(&e->engram, m);
    case ACT_UNDELIVERABLE:
        if (act_msg_returned_type(m) == ACT_ENGRAM_READ)
            return act_engram_message(&e->engram, m);
        if (act_msg_returned_type(m) == ACT_LINK_PUT)
            return act_exchange_is_put(m) && take_put_done(e, m);
        if (act_msg_returned_type(m) != ACT_EXPERT_DISPATCH)
            return false;
        if (!(m->flags & ACT_MSG_ABANDONED) && act_p_expert_dispatch(m)->stream != e->stream)
            return false;
        return take_returned(e, m);
    default:
        return false;
    }
}

/* ---- life ---- */

void act_experts_find(struct act_self *self, const struct act_experts *experts)
{
    struct act_msg m = act_msg_make(ACT_EXPERT_FIND, experts->finder);
    if (!act_addr_is_nobody(experts->finder) && act_send(self, &m))
        act_msg_drop(&m);
}

int act_exchange_init(struct act_exchange *e, struct act_self *self, struct mdl_model *m, uint16_t stream,
                      const struct act_experts *experts)
{
    *e = (struct act_exchange){.self = self, .m = m, .stream = stream, .experts = experts, .map = experts->map};
    e->providers = (struct mdl_providers){e, dispatch, ask_engram, mdl_providers_local.kv};
    act_engram_init(&e->engram, self, m, stream, experts->engram, experts->log);
    for (int s = 0; s < experts->n; s++)
        e->peer[s].addr = experts->shard[s];
    e->balancer = experts->balancer;
    if (act_exchange_slots_init(e))
        return -ENOMEM;
    act_experts_find(self, experts);
    if (!experts->n || !experts->balanced)
        return 0;
    e->counts = calloc((size_t)e->map->layers * (size_t)e->map->experts, sizeof *e->counts);
    if (!e->counts)
        return -ENOMEM;
    report(e);
    return 0;
}

void act_exchange_free(struct act_exchange *e)
{
    act_exchange_abandon(e);
    act_exchange_slots_free(e);
    act_map_free(e->own);
    act_map_free(e->next);
    free(e->counts);
    free(e->shard);
    free(e->wave);
    e->own = e->next = NULL;
    e->map = NULL;
    e->counts = NULL;
    e->shard = NULL;
    e->wave = NULL;
    e->capacity = 0;
}
