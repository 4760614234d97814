/* The client of an engine world. It does what the gateway's Request does: asks for a place, sends the prompt there,
 * collects tokens, and goes on elsewhere when its place is lost. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#include "actors/link.h"
#include "actors/recipe.h"
#include "tests/support/engine_world.h"

/* ---- the client ---- */

struct client {
    struct ts_world *w;
};

static void make_chain(const int32_t *ids, int chain, struct kv_key *key)
{
    kv_key_root(
        &(struct kv_identity){
            .revision = 1, .format = KV_FORMAT_ROWS, .block_tokens = TS_WORLD_BLOCK, .numerics = "test"},
        key);
    for (int b = 0; b + 1 < chain; b++)
        kv_key_extend(&key[b], ids + b * TS_WORLD_BLOCK, TS_WORLD_BLOCK, &key[b + 1]);
}

/* Prompt and output so far; returns their number. */
static int all_ids(const struct ts_world *w, int i, int32_t *out)
{
    memcpy(out, w->wanted[i].prompt, (size_t)w->wanted[i].n_prompt * sizeof *out);
    memcpy(out + w->wanted[i].n_prompt, w->got[i].ids, (size_t)w->got[i].n * sizeof *out);
    return w->wanted[i].n_prompt + w->got[i].n;
}

static void ask(struct ts_world *w, int i)
{
    int32_t ids[2 * TS_WORLD_IDS];
    struct kv_key key[2 * TS_WORLD_IDS / TS_WORLD_BLOCK + 1];
    int n = all_ids(w, i, ids), chain = 1 + n / TS_WORLD_BLOCK;
    make_chain(ids, chain, key);
    cr_assert_eq(
        act_place_ask(&w->got[i].place, n, w->wanted[i].max_new - w->got[i].n, (const struct act_key *)key, chain), 0);
}

static void send_prompt(struct act_self *self, struct ts_world *w, int i)
{
    const struct ts_wanted *q = &w->wanted[i];
    struct ts_outcome *o = &w->got[i];
    int32_t ids[2 * TS_WORLD_IDS];
    int n = all_ids(w, i, ids), chain = 1 + n / TS_WORLD_BLOCK;
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_PREFILL, o->place.prefill, act_recipe_tail(n, chain, 0, q->n_stop), &m), 0);
    m.request = (uint64_t)i + 1;
    m.attempt = o->place.attempt;
    *act_p_prefill(&m) =
        (struct act_p_prefill){.ids = (uint32_t)n, .blocks = (uint32_t)chain, .decode = o->place.decode};
    *act_b_prefill(&m) =
        (struct act_b_prefill){.requester = act_self_addr(self),
                               .seed = q->seed,
                               .max_tokens = (uint32_t)(q->max_new - o->n),
                               .committed = (uint32_t)o->n,
                               .temperature = q->temperature,
                               .top_p = 1,
                               .repetition = 1,
                               .chain = (uint32_t)chain,
                               .stop_ids = (uint32_t)q->n_stop,
                               .top_logprobs = q->logprobs ? 2 : 0,
                               .flags = ACT_RECIPE_IGNORE_EOS | (q->logprobs ? ACT_RECIPE_LOGPROBS : 0u)};
    uint8_t *at = act_msg_tail(&m, &bytes);
    memcpy(at, ids, (size_t)n * sizeof(int32_t));
    make_chain(ids, chain, (struct kv_key *)(void *)(at + (size_t)n * sizeof(int32_t)));
    memcpy(at + (size_t)n * sizeof(int32_t) + (size_t)chain * sizeof(struct kv_key), q->stop,
           (size_t)q->n_stop * sizeof(int32_t));
    cr_assert_eq(act_send(self, &m), 0);
}

static void end(struct act_self *self, struct ts_outcome *o)
{
    o->terminal++;
    o->ended = act_now(self);
    act_place_end(&o->place);
}

static void take_logprobs(struct ts_outcome *o, const struct act_p_tokens *p, const uint8_t *at, size_t bytes)
{
    for (int i = 0; i < p->count && p->flags & ACT_TOKENS_LOGPROBS; i++) {
        uint32_t n;
        cr_assert_ge(bytes, 8);
        memcpy(&o->logprob[o->n + i], at, sizeof(float));
        memcpy(&n, at + 4, sizeof n);
        cr_assert_ge(bytes, 8 + 8 * n);
        at += 8 + 8 * n;
        bytes -= 8 + 8 * n;
    }
}

static void kill_one(struct act_self *self, struct ts_world *w, const struct ts_kill *k, const struct ts_far *f)
{
    struct act_addr who = k->shard                      ? (k->other ? &w->far.e : &w->e)->experts.shard[k->index]
                          : k->role == CFG_ROLE_PREFILL ? w->e.prefill[k->index]
                          : k->role == CFG_ROLE_KV      ? f->landing
                          : k->role == CFG_ROLE_EXPERT  ? f->replay
                          : w->split                    ? f->e.decode[k->index]
                                                        : w->e.decode[k->index];
    struct act_msg drain = act_msg_make(ACT_DRAIN, act_current(w->rt, who));
    if (!k->drain)
        act_exit(self, act_current(w->rt, who), -EIO);
    else if (!act_addr_is_nobody(drain.dst))
        cr_assert_eq(act_send(self, &drain), 0);
}

/* Tokens from src, behind which more are to come. */
static void kill_at_tokens(struct act_self *self, struct ts_world *w, struct act_addr src)
{
    const struct ts_far *from = &w->far;
    for (int i = 0; i < w->other.e.n_decode; i++)
        if (w->other.e.decode[i].index == src.index)
            from = &w->other;
    w->tokens++;
    for (int i = 0; i < w->n_kills; i++)
        if (w->kill[i].tokens == w->tokens)
            kill_one(self, w, &w->kill[i], from);
}

static void take_tokens(struct act_self *self, struct ts_world *w, struct ts_outcome *o, struct act_msg *m)
{
    const struct act_p_tokens *p = act_p_tokens(m);
    size_t bytes;
    const int32_t *ids = act_msg_tail(m, &bytes);
    cr_assert_eq((int)p->first, o->n, "tokens out of order: %d instead of %d", (int)p->first, o->n);
    take_logprobs(o, p, (const uint8_t *)(ids + p->count), bytes - (size_t)p->count * sizeof *ids);
    o->drafted = o->drafted_before + (int)p->drafted;
    o->accepted = o->accepted_before + (int)p->accepted;
    if (p->count) {
        o->steps = (int)act_b_tokens(m)->steps;
        o->offered = (int)act_b_tokens(m)->offered;
    }
    for (int i = 0; i < p->count; i++)
        o->ids[o->n++] = ids[i];
    if (!p->finish)
        kill_at_tokens(self, w, m->src);
    if (p->first && act_now(self) - o->last > o->gap)
        o->gap = act_now(self) - o->last;
    o->last = act_now(self);
    act_place_progress(&o->place, true);
    if (p->finish) {
        o->finish = p->finish;
        end(self, o);
    }
}

static void take_timer(struct act_self *self, struct ts_world *w, int tag)
{
    if (tag < TS_WORLD_REQUESTS) {
        act_place_init(&w->got[tag].place, self, w->e.router, (uint64_t)tag + 1);
        w->got[tag].place.patience = w->patience;
        ask(w, tag);
    } else if (tag < 2 * TS_WORLD_REQUESTS) {
        struct ts_outcome *o = &w->got[tag - TS_WORLD_REQUESTS];
        o->cancelled = !o->terminal;
        if (o->place.self) {
            act_place_cancel(&o->place, -1);
            act_place_end(&o->place);
        } else { /* overtakes its prompt */
            act_cancel(self, w->e.prefill[0], (uint64_t)(tag - TS_WORLD_REQUESTS) + 1, 0, -1);
            act_cancel(self, w->members.decode[0], (uint64_t)(tag - TS_WORLD_REQUESTS) + 1, 0, -1);
        }
    } else {
        const struct ts_kill *k = &w->kill[tag - 2 * TS_WORLD_REQUESTS];
        kill_one(self, w, k, k->other ? &w->other : &w->far);
    }
}

static void take_message(struct act_self *self, struct ts_world *w, struct act_msg *m)
{
    struct ts_outcome *o = &w->got[m->request - 1];
    w->lost_late += m->type == ACT_ROUTE_LOST && (o->terminal || o->cancelled);
    if (o->cancelled && m->type == ACT_MOVED)
        act_return(self, m);
    if (o->cancelled || (o->terminal && m->type != ACT_TOKENS)) /* a Request would be gone by now */
        return;
    o->parked += m->type == ACT_PARKED;
    switch (act_place_message(&o->place, m)) {
    case ACT_PLACE_NONE:
        break;
    case ACT_PLACE_STALE:
        return;
    case ACT_PLACE_MOVED:
        o->drafted_before = o->drafted;
        o->accepted_before = o->accepted;
        return;
    case ACT_PLACE_ASK:
        ask(w, (int)m->request - 1);
        return;
    case ACT_PLACE_GO:
        send_prompt(self, w, (int)m->request - 1);
        return;
    case ACT_PLACE_FAILED:
        o->status = o->place.status;
        end(self, o);
        return;
    }
    if (m->type == ACT_TOKENS && w->deaf)
        act_stop(self, 0);
    else if (m->type == ACT_TOKENS) {
        if (w->on_tokens)
            w->on_tokens(w->before_ctx, m);
        take_tokens(self, w, o, m);
    } else if (m->type == ACT_PREFILLED) {
        o->cached = (int)act_p_prefilled(m)->cached;
        act_place_progress(&o->place, false);
    } else if (m->type == ACT_FAILED) {
        o->status = act_p_failed(m)->status;
        end(self, o);
    }
}

/* ---- for tests that look into the engine ---- */

static void take_report(struct act_self *self, struct ts_world *w, struct act_msg *m)
{
    struct ts_report r = {.who = m->src, .at = act_now(self), .role = CFG_ROLE_DECODE};
    if (m->type == ACT_DECODE_STATS) {
        const struct act_b_decode_stats *b = act_b_decode_stats(m);
        r.work = b->running + b->reserved + b->parked_now;
        r.lease = (int)b->lease;
    } else {
        const struct act_b_load *b = act_b_load(m);
        bool landing = act_addr_equal(m->src, w->far.landing) || (w->two && act_addr_equal(m->src, w->other.landing));
        r.role = landing ? CFG_ROLE_KV : act_p_load(m)->role;
        r.work = b->running + b->waiting + b->tokens_outstanding;
    }
    int i = 0;
    while (i < w->n_reports && !act_addr_equal(w->report[i].who, r.who))
        i++;
    cr_assert_lt(i, TS_WORLD_REPORTS);
    w->report[i] = r;
    w->n_reports += i == w->n_reports;
}

static void end_all(struct act_self *self, struct ts_world *w)
{
    const struct act_engine *e[3] = {&w->e, &w->far.e, &w->other.e};
    for (int i = 0; i < 2 + w->two; i++) {
        for (int k = 0; k < e[i]->n_prefill; k++)
            act_exit(self, act_current(w->rt, e[i]->prefill[k]), -EIO);
        for (int k = 0; k < e[i]->n_decode; k++)
            act_exit(self, act_current(w->rt, e[i]->decode[k]), -EIO);
    }
    for (int i = 0; i < w->split + w->two; i++) {
        act_exit(self, act_current(w->rt, (i ? &w->other : &w->far)->replay), -EIO);
        act_exit(self, act_current(w->rt, (i ? &w->other : &w->far)->landing), -EIO);
    }
}

static void want_reports(struct act_self *self, struct ts_world *w)
{
    for (int i = 0; i < w->e.n_prefill + w->split + w->two; i++) {
        struct act_addr who = i < w->e.n_prefill    ? w->e.prefill[i]
                              : i == w->e.n_prefill ? w->far.landing
                                                    : w->other.landing;
        struct act_msg m = act_msg_make(ACT_LOAD_WANTED, act_current(w->rt, who));
        if (!act_addr_is_nobody(m.dst))
            cr_assert_eq(act_send(self, &m), 0);
    }
}

/* The inverse of act_addr_number. */
static struct act_addr addr_of(uint64_t number)
{
    return (struct act_addr){.generation = (uint32_t)(number >> 32),
                             .peer = number >> 20 & (ACT_PEERS_MAX - 1),
                             .index = number & (ACT_INDEX_MAX - 1)};
}

static bool is_lost(struct ts_world *w, struct act_msg *m)
{
    if (!w->client_loses || m->type != w->client_loses || (m->type == ACT_TOKENS && !act_p_tokens(m)->finish))
        return false;
    w->client_loses = ACT_NONE;
    return true;
}

static int client_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct ts_world *w = ((struct client *)state)->w;
    for (int i = 0; i < count && !w->client_silent; i++) {
        if (m[i].type == ACT_TIMER && act_p_timer(&m[i])->tag == ACT_PLACE_CHECK_TAG) {
            for (int k = 0; k < w->n; k++)
                act_place_look(&w->got[k].place);
        } else if (m[i].type == ACT_TIMER && act_p_timer(&m[i])->tag != ACT_PLACE_TAG)
            take_timer(self, w, (int)act_p_timer(&m[i])->tag);
        else if (m[i].type == ACT_TIMER) { /* one of the waiting requests; asking too often does no harm */
            for (int k = 0; k < w->n; k++)
                if (w->got[k].place.self && !w->got[k].place.placed && !w->got[k].place.asked && !w->got[k].terminal &&
                    !w->got[k].cancelled)
                    ask(w, k);
        } else if (m[i].type == ACT_LOAD || m[i].type == ACT_DECODE_STATS)
            take_report(self, w, &m[i]);
        else if (m[i].type == ACT_PING && act_p_ping(&m[i])->a == 2)
            take_timer(self, w, TS_WORLD_REQUESTS + (int)act_p_ping(&m[i])->b);
        else if (m[i].type == ACT_PING && act_p_ping(&m[i])->a == 3)
            act_exit(self, addr_of(act_p_ping(&m[i])->b), -EIO);
        else if (m[i].type == ACT_PING && act_p_ping(&m[i])->a)
            end_all(self, w);
        else if (m[i].type == ACT_PING)
            want_reports(self, w);
        else if (m[i].request && !is_lost(w, &m[i]))
            take_message(self, w, &m[i]);
    }
    return 0;
}

/* What the link says when a node is up. */
static void tell_router(struct act_self *self, const struct ts_world *w)
{
    const struct act_node_actor a[] = {{.kind = ACT_NODE_PREFILL, .addr = w->e.prefill[0]},
                                       {.kind = ACT_NODE_DECODE, .addr = w->far.landing},
                                       {.kind = ACT_NODE_DECODE, .addr = w->other.landing}};
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_NODE_UP, w->e.router, sizeof a, &m), 0);
    memcpy(act_msg_tail(&m, &bytes), a, sizeof a);
    *act_p_node_up(&m) = (struct act_p_node_up){.actors = 3};
    cr_assert_eq(act_send(self, &m), 0);
}

/* And to the Decode actors of the second process of the first, and the other way round. */
static void tell_decoders(struct act_self *self, const struct ts_world *w)
{
    const struct ts_far *f[] = {&w->far, &w->other};
    for (int i = 0; i < 2; i++) {
        const struct act_node_actor a = {.kind = ACT_NODE_DECODE, .addr = f[!i]->landing};
        struct act_msg m;
        size_t bytes;
        cr_assert_eq(act_msg_new(ACT_NODE_UP, f[i]->e.decode[0], sizeof a, &m), 0);
        memcpy(act_msg_tail(&m, &bytes), &a, sizeof a);
        *act_p_node_up(&m) = (struct act_p_node_up){.node = f[!i]->e.node, .peer = (uint16_t)(1 + i), .actors = 1};
        cr_assert_eq(act_send(self, &m), 0);
    }
}

static int client_start(struct act_self *self, void *state, const void *arg)
{
    struct ts_world *w = ((struct client *)state)->w = (struct ts_world *)arg;
    if (w->two)
        tell_router(self, w);
    if (w->two && w->far.e.group_sync)
        tell_decoders(self, w);
    for (int i = 0; i < w->n; i++) {
        if (w->got[i].cancelled || w->got[i].terminal) /* of an earlier life */
            continue;
        act_timer_at(self, &w->timer[i], w->wanted[i].start, (uint64_t)i);
        if (w->wanted[i].cancel)
            act_timer_at(self, &w->timer[TS_WORLD_REQUESTS + i], w->wanted[i].cancel,
                         (uint64_t)(TS_WORLD_REQUESTS + i));
    }
    for (int i = 0; i < w->n_kills; i++)
        if (!w->kill[i].tokens)
            act_timer_at(self, &w->timer[2 * TS_WORLD_REQUESTS + i], w->kill[i].at,
                         (uint64_t)(2 * TS_WORLD_REQUESTS + i));
    return 0;
}

const struct act_behaviour ts_world_client = {
    .name = "client",
    .state_size = sizeof(struct client),
    .start = client_start,
    .receive = client_receive,
};
