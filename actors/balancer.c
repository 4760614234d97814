#include "actors/balancer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/eplb.h"

enum { SOURCES_MAX = 1024, TAG_LOOK = 1, TAG_STAGE = 2 };

enum stage {
    STAGE_IDLE,
    STAGE_LOADING,   /* PLAN was sent, READY is waited for */
    STAGE_SWITCHING, /* SWITCH was sent, SWITCHED is waited for */
    STAGE_ADOPTING,  /* the same, of a map that was in use before this balancer was in charge */
};

struct source {
    struct act_addr addr;
    uint32_t version; /* that it reported or confirmed */
    bool owes;        /* SWITCHED */
};

struct balancer {
    struct act_self *self;
    const struct act_balancer_arg *arg;
    struct act_addr shard[ACT_SHARDS_MAX];
    struct act_shard_set gone;
    struct act_shard_set owes; /* READY */
    bool regroup;              /* a shard has gone or come since the last plan */
    bool charge;               /* this one decides */
    int asked;                 /* MAP_ASK without an answer yet: no plan is made before, */
    int64_t asked_at;          /* but for those that are late */
    struct source source[SOURCES_MAX];
    int n_sources;
    const struct act_map *map; /* in use */
    struct act_map *own, *next;
    uint32_t version; /* the highest ever seen */
    float *load;      /* [layers][experts] moving average */
    float *fresh;     /* since the last look */
    uint64_t pairs;   /* since the last plan */
    enum stage stage;
    struct act_balance result;
    struct act_timer look, late;
};

static int64_t or_default(int64_t ns, int64_t fallback)
{
    return ns ? ns : fallback;
}

static size_t cells(const struct balancer *b)
{
    return (size_t)b->map->layers * (size_t)b->map->experts;
}

/* ---- sending ---- */

static int send_map(struct balancer *b, enum act_type type, struct act_addr to, const struct act_map *map)
{
    struct act_msg m;
    size_t bytes;
    int r = act_msg_new(type, to, act_map_bytes(map), &m);
    if (r)
        return r;
    act_map_write(map, act_msg_tail(&m, &bytes));
    if (type == ACT_EXPERT_PLAN)
        act_p_expert_plan(&m)->map = map->version;
    else
        act_p_expert_switch(&m)->map = map->version;
    r = act_request(b->self, &m);
    if (r)
        act_msg_drop(&m);
    return r;
}

static void send_retire(struct balancer *b, int shard)
{
    struct act_msg m = act_msg_make(ACT_EXPERT_RETIRE, b->shard[shard]);
    act_p_expert_retire(&m)->map = b->map->version;
    if (act_send(b->self, &m))
        act_msg_drop(&m);
}

/* ---- stages ---- */

static bool any(const struct act_shard_set *s)
{
    for (size_t i = 0; i < sizeof s->word / sizeof *s->word; i++)
        if (s->word[i])
            return true;
    return false;
}

static void give_up(struct balancer *b)
{
    act_map_free(b->next);
    b->next = NULL;
    b->stage = STAGE_IDLE;
    b->owes = (struct act_shard_set){{0}};
    act_timer_cancel(b->self, &b->late);
}

static void retire_all(struct balancer *b)
{
    act_timer_cancel(b->self, &b->late);
    b->stage = STAGE_IDLE;
    if (b->regroup)
        act_timer_after(b->self, &b->look, 0, TAG_LOOK);
    for (int s = 0; s < b->map->shards; s++)
        if (!act_addr_is_nobody(b->shard[s]))
            send_retire(b, s);
}

static void finish(struct balancer *b)
{
    retire_all(b);
    if (b->arg->log)
        act_log_write(b->arg->log, ACT_LOG_INFO, "experts", 0,
                      "map %u: %d experts loaded; busiest shard %.2f of the mean before, %.2f now", b->map->version,
                      b->result.moved, b->result.before, b->result.after);
    b->result.map = b->map;
    if (b->arg->changed)
        b->arg->changed(b->arg->ctx, &b->result);
}

static void look_at_switch(struct balancer *b)
{
    for (int i = 0; i < b->n_sources; i++)
        if (b->source[i].owes)
            return;
    if (b->stage == STAGE_SWITCHING)
        finish(b);
    else if (b->stage == STAGE_ADOPTING)
        retire_all(b);
}

static void begin_switch(struct balancer *b)
{
    b->stage = STAGE_SWITCHING;
    act_map_free(b->own);
    b->map = b->own = b->next;
    b->next = NULL;
    b->result.sources = 0;
    for (int i = 0; i < b->n_sources; i++)
        b->source[i].owes = send_map(b, ACT_EXPERT_SWITCH, b->source[i].addr, b->map) == 0;
    act_timer_after(b->self, &b->late, or_default(b->arg->deadline_ns, INT64_C(60000000000)), TAG_STAGE);
    look_at_switch(b);
}

static void look_at_loading(struct balancer *b)
{
    if (b->stage == STAGE_LOADING && !any(&b->owes))
        begin_switch(b);
}

static void begin_loading(struct balancer *b)
{
    b->stage = STAGE_LOADING;
    b->result.shards = 0;
    for (int s = 0; s < b->map->shards; s++)
        if (!act_addr_is_nobody(b->shard[s]) && send_map(b, ACT_EXPERT_PLAN, b->shard[s], b->next) == 0)
            act_shard_add(&b->owes, s);
    act_timer_after(b->self, &b->late, or_default(b->arg->deadline_ns, INT64_C(60000000000)), TAG_STAGE);
    look_at_loading(b);
}

static uint32_t next_version(const struct balancer *b)
{
    uint32_t v = b->version + 1;
    while (b->arg->ranks && v % (uint32_t)b->arg->ranks != (uint32_t)b->arg->rank)
        v++;
    return v;
}

static void plan(struct balancer *b)
{
    struct act_map *next;
    int slots = b->arg->slots ? b->arg->slots : b->arg->experts->map->slots;
    if (act_eplb_place(next_version(b), b->map->layers, b->map->experts, b->map->shards, slots, &b->gone, b->load,
                       b->map, &next))
        return;
    double gain = b->arg->gain > 0 ? b->arg->gain : 0.1;
    bool worth = act_eplb_worth(b->map, next, &b->gone, b->load, gain);
    b->pairs = 0;
    if (!worth && !b->regroup) {
        act_map_free(next);
        return;
    }
    b->regroup = false;
    b->version = next->version;
    b->next = next;
    b->result = (struct act_balance){.moved = act_eplb_moves(b->map, next),
                                     .before = act_eplb_imbalance(b->map, &b->gone, b->load),
                                     .after = act_eplb_imbalance(next, &b->gone, b->load)};
    begin_loading(b);
}

/* The look at the load, every so often; and at once when a shard has gone or come. */
static void look(struct balancer *b)
{
    uint64_t least = b->arg->least_pairs ? b->arg->least_pairs : 64 * (uint64_t)cells(b);
    for (int s = 0; s < b->map->shards; s++)
        if (act_addr_is_nobody(b->shard[s]) && !act_shard_in(&b->gone, s)) {
            act_shard_add(&b->gone, s); /* it had an interval's time to show up */
            b->regroup = true;
        }
    if (b->asked && act_now(b->self) - b->asked_at < or_default(b->arg->deadline_ns, INT64_C(60000000000)))
        return;
    if (!b->charge || !b->n_sources || b->stage != STAGE_IDLE || (b->pairs < least && !b->regroup))
        return;
    for (size_t i = 0; i < cells(b); i++) {
        b->load[i] = 0.5f * b->load[i] + b->fresh[i];
        b->fresh[i] = 0.0f;
    }
    plan(b);
}

/* ---- messages ---- */

static int shard_of(const struct balancer *b, struct act_addr addr)
{
    for (int s = 0; s < b->map->shards; s++)
        if (act_addr_equal(b->shard[s], addr))
            return s;
    return -1;
}

static struct source *source_of(struct balancer *b, struct act_addr addr)
{
    for (int i = 0; i < b->n_sources; i++)
        if (act_addr_equal(b->source[i].addr, addr))
            return &b->source[i];
    return NULL;
}

/* A shard is not where it was: its next incarnation, or nobody. During a roll-out it counts as having answered. */
static void move_shard(struct balancer *b, int s, struct act_addr to)
{
    bool was = act_shard_in(&b->gone, s), is = act_addr_is_nobody(to);
    if (!is && act_addr_equal(to, b->shard[s]) && !was)
        return;
    b->shard[s] = to;
    act_shard_remove(&b->owes, s);
    if (is)
        act_shard_add(&b->gone, s);
    else
        act_shard_remove(&b->gone, s);
    if (!is) {
        act_monitor(b->self, to, 0);
        /* It begins with what its configuration says; a plan of the present map tells it what it holds now. */
        if (b->charge && b->map->version > b->arg->experts->map->version)
            send_map(b, ACT_EXPERT_PLAN, to, b->map);
    }
    if (was != is) {
        b->regroup = true;
        if (b->stage == STAGE_LOADING)
            give_up(b); /* that plan is for other shards */
        act_timer_after(b->self, &b->look, 0, TAG_LOOK);
    }
    look_at_loading(b);
}

static void shard_lost(struct balancer *b, int s)
{
    move_shard(b, s, act_current(act_self_runtime(b->self), b->shard[s]));
}

static void source_lost(struct balancer *b, struct act_addr addr)
{
    struct source *s = source_of(b, addr);
    if (!s)
        return;
    *s = b->source[--b->n_sources];
    look_at_switch(b);
}

static void ask_map(struct balancer *b, struct act_addr source)
{
    struct act_msg m = act_msg_make(ACT_EXPERT_MAP_ASK, source);
    act_p_expert_map_ask(&m)->map = b->version;
    if (act_request(b->self, &m)) {
        act_msg_drop(&m);
        return;
    }
    b->asked++;
    b->asked_at = act_now(b->self);
}

/* One of the questions has its end. */
static void answered(struct balancer *b)
{
    b->asked -= b->asked > 0;
    if (!b->asked && b->regroup)
        act_timer_after(b->self, &b->look, 0, TAG_LOOK);
}

static struct source *add_source(struct balancer *b, struct act_addr addr)
{
    struct source *s = source_of(b, addr);
    if (s || b->n_sources == SOURCES_MAX)
        return s;
    s = &b->source[b->n_sources++];
    *s = (struct source){.addr = addr};
    act_monitor(b->self, addr, 0);
    return s;
}

static void take_counts(struct balancer *b, struct act_msg *m)
{
    const struct act_p_expert_counts *p = act_p_expert_counts(m);
    size_t bytes;
    const uint32_t *count = act_msg_tail(m, &bytes);
    struct source *s = add_source(b, m->src);
    if (!b->charge) { /* it may have heard of the end of the one before first */
        if (s)
            s->version = p->map;
        return;
    }
    if (p->layers != b->map->layers || p->experts != b->map->experts || bytes < cells(b) * sizeof *count)
        return;
    for (size_t i = 0; i < cells(b); i++) {
        b->fresh[i] += (float)count[i];
        b->pairs += count[i];
    }
    if (!s)
        return;
    if (b->regroup) /* that was noticed before there was a source */
        act_timer_after(b->self, &b->look, 0, TAG_LOOK);
    s->version = p->map;
    if (p->map > b->version)
        ask_map(b, m->src);
    else if (p->map < b->map->version && !s->owes)
        s->owes = send_map(b, ACT_EXPERT_SWITCH, m->src, b->map) == 0;
}

/* Whether experts are where nobody is. */
static bool needs_the_gone(const struct balancer *b)
{
    for (int s = 0; s < b->map->shards; s++)
        for (int l = 0; act_shard_in(&b->gone, s) && l < b->map->layers; l++)
            for (int i = 0; i < b->map->slots; i++)
                if (act_map_slots(b->map, l, s)[i] >= 0)
                    return true;
    return false;
}

/* The answer to ask_map: what was in use before this balancer began. */
static void take_map(struct balancer *b, struct act_msg *m)
{
    struct act_map *map;
    size_t bytes;
    const void *tail = act_msg_tail(m, &bytes);
    answered(b);
    if (!b->charge || act_map_read(tail, bytes, &map))
        return;
    if (map->version <= b->version || map->layers != b->map->layers || map->experts != b->map->experts ||
        map->shards != b->map->shards) {
        act_map_free(map);
        return;
    }
    give_up(b);
    b->version = map->version;
    act_map_free(b->own);
    b->map = b->own = map;
    b->stage = STAGE_ADOPTING;
    b->regroup |= needs_the_gone(b);
    act_timer_after(b->self, &b->late, or_default(b->arg->deadline_ns, INT64_C(60000000000)), TAG_STAGE);
    for (int i = 0; i < b->n_sources; i++)
        if (b->source[i].version < map->version && !act_addr_equal(b->source[i].addr, m->src))
            b->source[i].owes = send_map(b, ACT_EXPERT_SWITCH, b->source[i].addr, map) == 0;
    look_at_switch(b);
}

/* Who is in charge from now on. One that is not any more leaves a map half rolled out to the one that is. */
static void take_charge(struct balancer *b, struct act_addr who)
{
    bool charge = !who.peer && who.index == act_self_addr(b->self).index && !act_addr_is_nobody(who);
    if (charge == b->charge)
        return;
    b->charge = charge;
    give_up(b);
    b->pairs = 0;
    memset(b->fresh, 0, cells(b) * sizeof *b->fresh);
    if (b->arg->log)
        act_log_write(b->arg->log, ACT_LOG_INFO, "experts", 0, "the balancer of this node is %s charge, at map %u",
                      charge ? "in" : "no longer in", b->map->version);
    b->asked = 0;
    for (int i = 0; i < b->n_sources && charge; i++) {
        b->source[i].owes = false;
        ask_map(b, b->source[i].addr);
    }
    if (charge && b->regroup)
        act_timer_after(b->self, &b->look, 0, TAG_LOOK);
}

static void take_ready(struct balancer *b, struct act_msg *m)
{
    const struct act_p_expert_ready *p = act_p_expert_ready(m);
    int s = shard_of(b, m->src);
    if (s < 0)
        return;
    if (b->stage == STAGE_LOADING && p->map == b->next->version) {
        b->result.shards += act_shard_in(&b->owes, s);
        act_shard_remove(&b->owes, s);
        look_at_loading(b);
    } else if (p->map == b->map->version && p->status == 0) {
        send_retire(b, s); /* a shard that came later */
    }
}

static void take_switched(struct balancer *b, struct act_msg *m)
{
    struct source *s = source_of(b, m->src);
    if (!s || act_p_expert_switched(m)->map < b->map->version)
        return;
    s->version = act_p_expert_switched(m)->map;
    b->result.sources += s->owes;
    s->owes = false;
    look_at_switch(b);
}

static void take_returned(struct balancer *b, struct act_msg *m)
{
    enum act_type type = act_msg_returned_type(m);
    int s = shard_of(b, m->src);
    if (m->flags & ACT_MSG_LATE) { /* its stage was over before */
        if (type == ACT_EXPERT_MAP_ASK)
            answered(b);
        return;
    }
    if ((type == ACT_EXPERT_PLAN || type == ACT_EXPERT_RETIRE) && s >= 0)
        shard_lost(b, s);
    if (type == ACT_EXPERT_MAP_ASK)
        answered(b);
    if (type == ACT_EXPERT_SWITCH || type == ACT_EXPERT_MAP_ASK)
        source_lost(b, m->src);
}

static void take_down(struct balancer *b, struct act_addr who)
{
    int s = shard_of(b, who);
    if (s >= 0)
        shard_lost(b, s);
    else
        source_lost(b, who);
}

/* Shards that did not get ready: their plan is given up, the next look makes another. Sources that did not switch use
 * an older map for longer, which costs speed only. */
static void take_late(struct balancer *b)
{
    if (b->stage == STAGE_LOADING) {
        if (b->arg->log)
            act_log_write(b->arg->log, ACT_LOG_WARNING, "experts", 0,
                          "map %u is given up: a shard did not load in time", b->next->version);
        give_up(b);
    } else if (b->stage != STAGE_IDLE) {
        for (int i = 0; i < b->n_sources; i++)
            b->source[i].owes = false;
        look_at_switch(b);
    }
}

static int balancer_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct balancer *b = state;
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_EXPERT_COUNTS:
            take_counts(b, &m[i]);
            break;
        case ACT_EXPERT_READY:
            take_ready(b, &m[i]);
            break;
        case ACT_EXPERT_SWITCHED:
            take_switched(b, &m[i]);
            break;
        case ACT_EXPERT_SWITCH:
            take_map(b, &m[i]);
            break;
        case ACT_EXPERT_SHARD:
            if (act_p_expert_shard(&m[i])->index == ACT_SHARD_BALANCER)
                take_charge(b, act_p_expert_shard(&m[i])->shard);
            else if (act_p_expert_shard(&m[i])->index < (uint32_t)b->map->shards)
                move_shard(b, (int)act_p_expert_shard(&m[i])->index, act_p_expert_shard(&m[i])->shard);
            break;
        case ACT_DOWN:
            take_down(b, act_p_down(&m[i])->who);
            break;
        case ACT_UNDELIVERABLE:
            take_returned(b, &m[i]);
            break;
        case ACT_TIMER:
            if (act_p_timer(&m[i])->tag == TAG_STAGE)
                take_late(b);
            else if (!act_timer_pending(&b->look))
                act_timer_after(self, &b->look, or_default(b->arg->interval_ns, INT64_C(30000000000)), TAG_LOOK);
            look(b);
            break;
        default:
            break;
        }
    }
    return 0;
}

static void balancer_stop(struct act_self *self, void *state, int reason)
{
    struct balancer *b = state;
    (void)self;
    (void)reason;
    act_map_free(b->own);
    act_map_free(b->next);
    free(b->load);
    free(b->fresh);
}

static int balancer_start(struct act_self *self, void *state, const void *arg)
{
    struct balancer *b = state;
    b->self = self;
    b->arg = arg;
    const struct act_experts *e = b->arg->experts;
    b->charge = act_addr_is_nobody(e->finder);
    b->map = e->map;
    b->version = b->map->version;
    b->load = calloc(cells(b), sizeof *b->load);
    b->fresh = calloc(cells(b), sizeof *b->fresh);
    if (!b->load || !b->fresh) {
        free(b->load);
        free(b->fresh);
        return -ENOMEM;
    }
    for (int s = 0; s < e->n; s++) {
        struct act_addr now = act_current(act_self_runtime(self), e->shard[s]);
        b->shard[s] = act_addr_is_nobody(now) ? e->shard[s] : now;
        if (!act_addr_is_nobody(b->shard[s]))
            act_monitor(self, b->shard[s], 0);
    }
    act_experts_find(self, e);
    act_timer_after(self, &b->look, or_default(b->arg->interval_ns, INT64_C(30000000000)), TAG_LOOK);
    return 0;
}

const struct act_behaviour act_balancer_behaviour = {
    .name = "balancer",
    .state_size = sizeof(struct balancer),
    .start = balancer_start,
    .receive = balancer_receive,
    .stop = balancer_stop,
};
