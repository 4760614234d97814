/* Slots of the expert exchange, each side alone: addresses, what is taken for fresh and what is not, and when a slot
 * may be used again. The link is a double that keeps what it is asked. */
#include "tests/harness.h"

#include <errno.h>

#include "actors/exchange_slots.h"
#include "actors/expert_slots.h"
#include "actors/link.h"
#include "actors/runtime/peers.h"
#include "actors/runtime/sim.h"
#include "actors/slots.h"
#include "model/step.h"

#define MS INT64_C(1000000)

enum { HIDDEN = 128, SHARDS = 3, ROWS = 4, K = 2, ASKED = 12, NODE = 7, EPOCH = 1000, LINK = 9 };

static const struct act_slots_shape small = {.hidden = HIDDEN,
                                             .rows = ROWS,
                                             .pairs = ROWS * K,
                                             .shards = SHARDS,
                                             .each = 2,
                                             .places = 3,
                                             .nodes = 2,
                                             .rank = {[1] = 1, [NODE] = 2}};

static struct act_slots *open_shape(const struct act_slots_shape *shape)
{
    struct act_slots *s;
    struct cfg_error err;
    cr_assert_eq(act_slots_new(shape, true, true, &s, &err), 0, "%s", err.msg);
    s->epoch = 77;
    return s;
}

static struct act_slots *open_slots(void)
{
    return open_shape(&small);
}

/* ---- addresses ---- */

static void claim(uint8_t *used, size_t from, size_t bytes, size_t size)
{
    cr_assert_leq(from + bytes, size);
    cr_assert_eq(from % 64, 0u);
    for (size_t i = from; i < from + bytes; i++)
        cr_assert_eq(used[i]++, 0, "byte %zu has two owners", i);
}

Test(slots, no_byte_of_a_window_has_two_owners)
{
    struct act_slots *s = open_slots();
    uint8_t *out = calloc(1, s->results_bytes), *in = calloc(1, s->dispatches_bytes);
    for (int place = 0; place < 3; place++)
        for (int set = 0; set < ACT_SLOT_SETS; set++) {
            for (int shard = 0; shard < SHARDS; shard++) {
                claim(out, act_slots_outgoing(s, place, set, shard), s->dispatch_bytes, s->results_bytes);
                claim(out, act_slots_result(s, place, set, shard), s->result_bytes, s->results_bytes);
            }
            for (int at = 0; at < 2 * 2; at++) {
                claim(in, act_slots_dispatch(s, at / 2, place, set, at % 2), s->dispatch_bytes, s->dispatches_bytes);
                claim(in, act_slots_answer(s, at / 2, place, set, at % 2), s->result_bytes, s->dispatches_bytes);
            }
        }
    free(out);
    free(in);
    act_slots_free(s);
}

Test(slots, an_immediate_says_what_it_was_made_of)
{
    const struct act_slot_word w = {.member = 255, .other = 170, .set = 1, .sequence = 1234};
    uint32_t i = act_slot_immediate(ACT_PORT_SOURCES, &w);
    struct act_slot_word got = act_slot_word_of(i);
    cr_assert_eq(i >> 28, (uint32_t)ACT_PORT_SOURCES);
    cr_assert(got.member == 255 && got.other == 170 && got.set == 1 && got.sequence == 1234);
}

/* Nodes that compute other addresses know that of each other. */
Test(slots, other_sizes_have_another_fingerprint)
{
    struct act_slots *s = open_slots(), *t;
    struct cfg_error err;
    for (int k = 0; k < 8; k++) {
        struct act_slots_shape p = small;
        uint32_t *field[] = {&p.hidden, &p.rows, &p.pairs, &p.shards, &p.each, &p.places, &p.nodes};
        if (k < 7)
            *field[k] += k ? 1 : 32;
        else
            p.rank[3] = 1;
        cr_assert_eq(act_slots_new(&p, true, true, &t, &err), 0);
        cr_assert_neq(t->fingerprint, s->fingerprint, "case %d", k);
        act_slots_free(t);
    }
    struct act_slots_shape bad = small;
    bad.rows = 0;
    cr_assert_eq(act_slots_new(&bad, true, true, &t, &err), -EINVAL);
    act_slots_free(s);
}

/* A head counts bytes in 32 bits: what passes that is refused, with the most that is possible. */
Test(slots, a_slot_of_more_than_4_gib_is_refused)
{
    struct cfg_error err;
    struct act_slots_shape p = small;
    p.hidden = 5120;
    p.rows = 65535;
    p.pairs = p.rows * 8;
    cr_assert_eq(act_slots_check(&p, &err), -EINVAL);
    const char *at = strstr(err.msg, "experts.slot_rows = 65535"), *most = strstr(err.msg, "set it to ");
    cr_assert(at && most && strstr(err.msg, "4 GiB"), "%s", err.msg);
    p.rows = (uint32_t)atoi(most + strlen("set it to "));
    cr_assert(p.rows > 50000 && p.rows < 52429, "%u", p.rows);
    p.pairs = p.rows * 8;
    cr_assert_eq(act_slots_check(&p, &err), 0, "%s", err.msg);
    struct act_slots *s;
    p.rows = p.pairs = UINT32_MAX;
    cr_assert_eq(act_slots_new(&p, false, false, &s, &err), -EINVAL);
}

/* ---- two actors: one that plays a side, and the link ---- */

struct rig {
    void (*step[8])(struct rig *r); /* called 3 ms after each other */
    int at;
    struct act_slots *slots;
    struct act_self *self;
    struct act_addr link;
    uint16_t peer;
    struct act_timer timer;
    /* The link: */
    int puts, messages, fences;
    struct act_p_link_put put; /* the last one */
    struct act_promise promise;
    bool hold;  /* puts are not answered by themselves */
    int status; /* that they are answered with */
    /* The source: */
    struct mdl_config config;
    struct mdl_model model;
    struct act_map *map;
    struct act_experts experts;
    struct act_exchange e;
    struct mdl_exchange x;
    int32_t expert[ASKED * K];
    float weight[ASKED * K];
    uint8_t codes[ASKED * HIDDEN], scales[ASKED * HIDDEN / 32], have[ASKED * K];
    uint16_t result[ASKED * K * HIDDEN];
    bool again; /* a step that is lost is run again, as the actors do */
    int reruns;
    /* The shard: */
    struct act_expert_slots shard;
};

static struct rig rig;

static void ask(struct rig *r);

static void end_put(struct act_self *self, int status)
{
    struct act_msg m = act_msg_make(ACT_LINK_PUT_DONE, ACT_NOBODY);
    *act_p_link_put_done(&m) = (struct act_p_link_put_done){.status = status, .generation = LINK};
    cr_assert_eq(act_reply(self, &rig.promise, &m), 0);
}

static int link_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_LINK_PUT) {
            rig.puts++;
            rig.put = *act_p_link_put(&m[i]);
            rig.promise = act_promise_of(&m[i]);
            if (!rig.hold)
                end_put(self, rig.status);
        }
        if (m[i].type == ACT_PING) {
            end_put(self, rig.status);
            rig.status = 0;
        }
        rig.messages += m[i].type == ACT_EXPERT_DISPATCH;
        if (m[i].type == ACT_EXPERT_DISPATCH && rig.status)
            act_return(self, &m[i]); /* like puts */
        rig.fences += m[i].type == ACT_LINK_FENCE;
    }
    return 0;
}

static int side_start(struct act_self *self, void *state, const void *arg)
{
    (void)state;
    (void)arg;
    rig.self = self;
    act_timer_after(self, &rig.timer, 3 * MS, 1);
    return 0;
}

static int side_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_TIMER && act_p_timer(&m[i])->tag == 1) {
            if (rig.step[rig.at])
                rig.step[rig.at++](&rig);
            if (rig.at < 8 && rig.step[rig.at])
                act_timer_after(self, &rig.timer, 3 * MS, 1);
        } else if (rig.e.self) {
            act_exchange_message(&rig.e, &m[i]);
            if (rig.again && rig.e.lost) {
                rig.reruns++;
                ask(&rig);
            }
        } else if (m[i].type == ACT_LINK_PUT_DONE) {
            act_expert_slots_put_done(&rig.shard, &m[i]);
        }
    }
    return 0;
}

static void side_stop(struct act_self *self, void *state, int reason)
{
    (void)self;
    (void)state;
    (void)reason;
    if (rig.e.self)
        act_exchange_free(&rig.e);
    act_expert_slots_free(&rig.shard);
}

static void run_in(const struct act_slots_shape *shape, void (*const *step)(struct rig *r), int n)
{
    static const struct act_behaviour link = {.name = "link", .receive = link_receive}, side = {.name = "side",
                                                                                                .start = side_start,
                                                                                                .receive = side_receive,
                                                                                                .stop = side_stop};
    struct act_sim *sim;
    struct act_runtime *rt;
    struct act_addr who;
    struct cfg_error err;
    struct act_config c = {.node = 1, .epoch = 1, .workers = 1};
    c.worker[0] = (struct act_worker_config){.name = "w", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    rig = (struct rig){.slots = open_shape(shape)};
    memcpy(rig.step, step, (size_t)n * sizeof *step);
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = 1}, &sim, &err), 0);
    cr_assert_eq(act_sim_add(sim, &c, &rt, &err), 0);
    struct act_spawn spec = {.behaviour = &link};
    cr_assert_eq(act_runtime_spawn(rt, &spec, &rig.link, &err), 0);
    cr_assert_eq(act_peer_number(rt, NODE, EPOCH, &rig.peer), 0);
    cr_assert_eq(act_peer_route(rt, rig.peer, rig.link), 0);
    spec.behaviour = &side;
    cr_assert_eq(act_runtime_spawn(rt, &spec, &who, &err), 0);
    rig.slots->source[rig.slots->n_sources++] = ACT_NOBODY;
    rig.slots->source[rig.slots->n_sources++] = who;
    act_sim_run(sim, 1000 * MS, 100000);
    cr_assert_eq(rig.at, n, "step %d of %d", rig.at, n);
    act_sim_free(sim);
    act_slots_free(rig.slots);
    act_map_free(rig.map);
}

static void run(void (*const *step)(struct rig *r), int n)
{
    run_in(&small, step, n);
}

static struct act_msg word(unsigned port, const struct act_slot_word *w, uint16_t peer, uint32_t generation)
{
    struct act_msg m = act_msg_make(ACT_LINK_IMMEDIATE, ACT_NOBODY);
    *act_p_link_immediate(&m) = (struct act_p_link_immediate){
        .peer = peer, .class = TP_CLASS_EXPERT, .immediate = act_slot_immediate(port, w), .generation = generation};
    return m;
}

/* A head in which one thing is of somebody or something else; field -1: of none. */
static struct act_slot_head forged(struct act_slot_head h, int field)
{
    switch (field) {
    case 0:
        h.magic++;
        break;
    case 1:
        h.bytes = UINT32_MAX;
        break;
    case 2: /* of the process that was there before */
        h.epoch--;
        break;
    case 3: /* over the connection before */
        h.link--;
        break;
    case 4: /* another exchange */
        h.sequence++;
        break;
    case 5: /* one whose low bits are the same */
        h.sequence += ACT_SLOT_SEQUENCE + 1;
        break;
    case 6:
        h.map++;
        break;
    case 7: /* of the actor that was there before */
        h.source_generation++;
        break;
    case 8:
        h.source_index++;
        break;
    case 9:
        h.stream ^= 1;
        break;
    case 10:
        h.place ^= 1;
        break;
    case 11:
        h.shard ^= 1;
        break;
    case 12:
        h.set ^= 1;
        break;
    case 13:
        h.wave++;
        break;
    case 14: /* another shard that has the same number in its node */
        h.shard += 2;
        break;
    case 15:
        h.zero[3] = 1;
        break;
    default:
        break;
    }
    return h;
}

/* ---- the shard's side ---- */

enum { LOCAL = 1, PLACE = 2, SET = 1 };

static bool take(struct rig *r, struct act_slot_head h, const struct act_slot_word *w, uint32_t generation,
                 uint16_t peer)
{
    struct act_slot_work work;
    struct act_msg m = word(ACT_PORT_SHARDS, w, peer, generation);
    memcpy(r->slots->dispatches + act_slots_dispatch(r->slots, 1, PLACE, SET, LOCAL), &h, sizeof h);
    return act_expert_slots_take(&r->shard, &m, &work);
}

static void shard_steps(struct rig *r)
{
    const struct act_slot_head good = {.magic = ACT_SLOT_MAGIC,
                                       .bytes = 100,
                                       .epoch = EPOCH,
                                       .link = LINK,
                                       .sequence = 5001,
                                       .map = 3,
                                       .source_generation = 4,
                                       .source_index = 10,
                                       .rows = 2,
                                       .place = PLACE,
                                       .shard = 1,
                                       .set = SET};
    const struct act_slot_word w = {.member = LOCAL, .other = PLACE, .set = SET, .sequence = 5001 & ACT_SLOT_SEQUENCE};
    /* What the shard can know: not which exchange a source is in, nor its map. */
    static const int known[] = {0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 15};
    cr_assert_eq(act_expert_slots_init(&r->shard, r->self, r->slots, r->link, LOCAL, 1), 0);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        cr_assert(!take(r, forged(good, known[i]), &w, LINK, r->peer), "field %d", known[i]);
    struct act_slot_word other = w;
    other.sequence ^= 1;
    cr_assert(!take(r, good, &other, LINK, r->peer), "an older word");
    other = w;
    other.member = 0;
    cr_assert(!take(r, good, &other, LINK, r->peer), "another shard's");
    cr_assert(!take(r, good, &w, LINK + 1, r->peer), "another connection");
    cr_assert(!take(r, good, &w, LINK, (uint16_t)(r->peer + 1)), "nobody known");
    struct act_slot_work work;
    struct act_msg m = word(ACT_PORT_SHARDS, &w, r->peer, LINK);
    memcpy(r->slots->dispatches + act_slots_dispatch(r->slots, 1, PLACE, SET, LOCAL), &good, sizeof good);
    act_p_link_immediate(&m)->class = TP_CLASS_KV;
    cr_assert(!act_expert_slots_take(&r->shard, &m, &work), "another class");
    cr_assert_eq(r->shard.stale, 16u);
    cr_assert(take(r, good, &w, LINK, r->peer), "a fresh one");
    cr_assert(!take(r, good, &w, LINK, r->peer), "the same again");
    cr_assert(take(r, forged(good, 5), &w, LINK, r->peer), "the next one");
}

/* An answer that went as a message and came back: its source is gone, and the next one in its place needs the slot. */
static void give_back(struct rig *r, uint32_t generation, uint32_t sequence)
{
    struct act_msg m = act_msg_make(ACT_EXPERT_RESULT, ACT_NOBODY);
    *act_p_expert_result(&m) = (struct act_p_expert_result){.sequence = sequence, .map = 3, .rows = 2, .set = SET};
    m.type = ACT_UNDELIVERABLE;
    m.returned = ACT_EXPERT_RESULT;
    m.src = (struct act_addr){.generation = generation, .peer = r->peer, .index = 10};
    act_expert_slots_returned(&r->shard, &m);
}

static void give_others_back(struct rig *r)
{
    shard_steps(r);
    give_back(r, 5, 5001 + ACT_SLOT_SEQUENCE + 1);
    give_back(r, 4, 5001);
}

static void give_its_own_back(struct rig *r)
{
    cr_assert_eq(r->puts, 0, "a slot was answered in which another dispatch is");
    give_back(r, 4, 5001 + ACT_SLOT_SEQUENCE + 1);
    give_back(r, 4, 5001 + ACT_SLOT_SEQUENCE + 1); /* not while it is under way */
}

static void was_put(struct rig *r)
{
    struct act_slot_head h;
    memcpy(&h, r->slots->dispatches + act_slots_answer(r->slots, 1, PLACE, SET, LOCAL), sizeof h);
    cr_assert_eq(r->puts, 1);
    cr_assert_eq(h.bytes, 0u);
    cr_assert_eq(h.epoch, r->slots->epoch);
    cr_assert_eq(h.source_generation, 4u);
}

Test(slots, an_answer_whose_source_is_gone_frees_the_slot)
{
    void (*const steps[])(struct rig *) = {give_others_back, give_its_own_back, was_put};
    run(steps, 3);
}

Test(slots, a_shard_takes_a_dispatch_once_and_nothing_that_is_not_fresh)
{
    void (*const steps[])(struct rig *) = {shard_steps};
    run(steps, 1);
}

/* ---- the source's side ---- */

static void source_open(struct rig *r)
{
    r->config = (struct mdl_config){.n_layers = 2, .n_experts = 6, .hidden = HIDDEN};
    r->model.cfg = &r->config;
    cr_assert_eq(act_map_even(1, 2, 6, SHARDS, &r->map), 0);
    r->experts = (struct act_experts){
        .n = SHARDS, .map = r->map, .slots = r->slots, .link = r->link, .node = 1, .limits.deadline_ns = 5 * MS};
    cr_assert_eq(act_exchange_init(&r->e, r->self, &r->model, 0, &r->experts), 0);
    for (int s = 0; s < SHARDS; s++) {
        struct act_msg m = act_msg_make(ACT_EXPERT_SHARD, ACT_NOBODY);
        *act_p_expert_shard(&m) =
            (struct act_p_expert_shard){.shard = {.generation = 1, .peer = r->peer, .index = (uint32_t)(20 + s)},
                                        .index = (uint32_t)s,
                                        .link = LINK};
        act_exchange_message(&r->e, &m);
    }
}

/* One row for two experts of shard 1. */
static void ask(struct rig *r)
{
    r->x = (struct mdl_exchange){.rows = 1,
                                 .k = K,
                                 .codes = r->codes,
                                 .scales = r->scales,
                                 .expert = r->expert,
                                 .weight = r->weight,
                                 .result = r->result,
                                 .have = r->have,
                                 .pending = K};
    memset(r->have, 0, sizeof r->have);
    r->expert[0] = 2;
    r->expert[1] = 3;
    act_exchange_begin(&r->e);
    cr_assert_eq(r->e.providers.experts(r->e.providers.ctx, NULL, &r->x), 0);
}

static void ask_first(struct rig *r)
{
    source_open(r);
    ask(r);
}

/* What shard 1 would put for this sequence. */
static struct act_slot_head answer_to(const struct rig *r, uint32_t sequence)
{
    struct act_addr self = act_self_addr(r->self);
    return (struct act_slot_head){.magic = ACT_SLOT_MAGIC,
                                  .bytes = K * HIDDEN * sizeof(uint16_t),
                                  .epoch = EPOCH,
                                  .link = LINK,
                                  .sequence = sequence,
                                  .map = 1,
                                  .source_generation = self.generation,
                                  .source_index = self.index,
                                  .rows = 1,
                                  .place = 1,
                                  .shard = 1,
                                  .set = sequence & 1};
}

static bool tell(struct rig *r, struct act_slot_head h, uint32_t sequence, uint32_t generation, uint16_t peer)
{
    const struct act_slot_word w = {
        .member = 1, .other = 1, .set = sequence & 1, .sequence = sequence & ACT_SLOT_SEQUENCE};
    struct act_msg m = word(ACT_PORT_SOURCES, &w, peer, generation);
    uint8_t *at = r->slots->results + act_slots_result(r->slots, 1, sequence & 1, 1);
    memcpy(at, &h, sizeof h);
    memset(at + sizeof h, 0x3f, K * HIDDEN * sizeof(uint16_t));
    return act_exchange_message(&r->e, &m);
}

static void hear(struct rig *r)
{
    uint32_t q = r->e.sequence;
    cr_assert_eq(r->puts, 1);
    cr_assert_eq(r->messages, 0);
    for (int field = 0; field < 16; field++) {
        cr_assert(!tell(r, forged(answer_to(r, q), field), q, LINK, r->peer), "field %d", field);
        cr_assert_eq(r->x.pending, K, "field %d", field);
    }
    cr_assert(!tell(r, answer_to(r, q), q, LINK + 1, r->peer) && r->x.pending == K, "another connection");
    cr_assert(!tell(r, answer_to(r, q), q, LINK, (uint16_t)(r->peer + 1)) && r->x.pending == K, "another node");
    cr_assert(!tell(r, answer_to(r, q), q + 1, LINK, r->peer) && r->x.pending == K, "another set");
    const struct act_slot_word w = {.member = 2, .other = 1, .set = q & 1, .sequence = q & ACT_SLOT_SEQUENCE};
    struct act_msg m = word(ACT_PORT_SOURCES, &w, r->peer, LINK);
    struct act_slot_head h = answer_to(r, q);
    memcpy(r->slots->results + act_slots_result(r->slots, 1, q & 1, 1), &h, sizeof h);
    cr_assert(!act_exchange_message(&r->e, &m) && r->x.pending == K, "another source");
    m = word(ACT_PORT_SOURCES, &(struct act_slot_word){1, 1, q & 1, q & ACT_SLOT_SEQUENCE}, r->peer, LINK);
    act_p_link_immediate(&m)->class = TP_CLASS_KV;
    cr_assert(!act_exchange_message(&r->e, &m) && r->x.pending == K, "another class");
    cr_assert(tell(r, answer_to(r, q), q, LINK, r->peer), "the answer");
    cr_assert_eq(r->x.pending, 0);
    cr_assert_eq(r->result[0], 0x3f3f);
    cr_assert(!tell(r, answer_to(r, q), q, LINK, r->peer), "the same again");
}

Test(slots, a_source_takes_what_it_waits_for_and_nothing_else)
{
    void (*const steps[])(struct rig *) = {ask_first, hear};
    run(steps, 2);
}

static uint32_t first_sequence;

static void note_first(struct rig *r)
{
    ask_first(r);
    first_sequence = r->e.sequence;
}

/* Until sequences of the same set as the first one come up, of which there is no answer. */
static void ask_with_the_same_set(struct rig *r)
{
    do
        ask(r);
    while ((r->e.sequence ^ first_sequence) & 1);
}

static void was_a_message(struct rig *r)
{
    cr_assert_ge(r->messages, 1, "a slot was used before its shard had answered");
    cr_assert_eq(r->fences, 0, "before the deadline");
    r->messages = r->puts = 0;
    cr_assert(!tell(r, answer_to(r, first_sequence), first_sequence, LINK, r->peer), "late");
    cr_assert_eq(r->x.pending, K, "the answer to an exchange that is over was taken for another's");
    ask_with_the_same_set(r);
}

static void was_a_put(struct rig *r)
{
    cr_assert_ge(r->puts, 1, "the slot is free and is not used");
    cr_assert_eq(r->put.peer, r->peer);
}

Test(slots, a_slot_is_used_again_when_its_shard_has_answered)
{
    void (*const steps[])(struct rig *) = {note_first, ask_with_the_same_set, was_a_message, was_a_put};
    run(steps, 4);
}

static void wait(struct rig *r)
{
    (void)r;
}

static void move_link(struct rig *r)
{
    struct act_msg m = act_msg_make(ACT_EXPERT_SHARD, ACT_NOBODY);
    cr_assert_ge(r->fences, 1, "a slot that is not given back costs no connection");
    cr_assert_eq(r->puts, 1);
    *act_p_expert_shard(&m) = (struct act_p_expert_shard){
        .shard = {.generation = 1, .peer = r->peer, .index = 21}, .index = 1, .link = LINK + 1};
    act_exchange_message(&r->e, &m);
    r->puts = 0;
    ask_with_the_same_set(r);
}

Test(slots, a_slot_without_an_answer_is_used_again_over_the_next_connection)
{
    void (*const steps[])(struct rig *) = {note_first, wait, wait, wait, wait, wait, ask_with_the_same_set, move_link};
    run(steps, 8);
    cr_assert_ge(rig.puts, 1);
}

/* An actor that begins anew in the same place cannot know what is on its way to its slots. */
static void begin_anew(struct rig *r)
{
    act_exchange_free(&r->e);
    r->puts = r->messages = 0;
    act_map_free(r->map);
    source_open(r);
    ask_with_the_same_set(r);
    cr_assert_eq(r->e.slot[(first_sequence & 1) * SHARDS + 1].owed, true);
}

/* What the one before was to get comes to the one that has the place now: it frees the slot and is no answer. */
static void was_no_put(struct rig *r)
{
    cr_assert_ge(r->messages, 1, "the slot of the one before was used");
    r->messages = r->puts = 0;
    cr_assert(!tell(r, answer_to(r, first_sequence), first_sequence, LINK, r->peer));
    cr_assert_eq(r->x.pending, K, "the answer to the one before was taken");
    cr_assert_eq(r->e.slot[(first_sequence & 1) * SHARDS + 1].owed, false);
    ask_with_the_same_set(r);
}

static void was_not_fenced(struct rig *r)
{
    was_a_put(r);
    cr_assert_eq(r->fences, 0);
}

Test(slots, who_has_the_place_next_uses_what_the_one_before_left_when_it_is_answered)
{
    void (*const steps[])(struct rig *) = {note_first, begin_anew, was_no_put, was_not_fenced};
    run(steps, 4);
}

/* The sequences of the two meet: the slot is still the other's. */
static void begin_anew_at_the_same_sequence(struct rig *r)
{
    act_exchange_free(&r->e);
    act_map_free(r->map);
    source_open(r);
    r->puts = r->messages = 0;
    r->e.sequence = first_sequence - 2; /* two are counted from here */
    ask(r);
    cr_assert_eq(r->e.sequence, first_sequence);
    cr_assert_eq(r->puts + r->messages, 0);
}

static void is_not_the_others_answer(struct rig *r)
{
    cr_assert_eq(r->messages, 1);
    cr_assert_eq(r->puts, 0);
    cr_assert(!tell(r, answer_to(r, first_sequence), first_sequence, LINK, r->peer));
    cr_assert_eq(r->x.pending, K);
}

Test(slots, an_answer_to_the_one_before_is_not_taken_for_one_of_the_same_sequence)
{
    void (*const steps[])(struct rig *) = {note_first, begin_anew_at_the_same_sequence, is_not_the_others_answer};
    run(steps, 3);
}

/* The bytes of a put are the link's until it has ended. */
static void hold_puts(struct rig *r)
{
    r->hold = true;
    note_first(r);
}

static void hear_before_the_end(struct rig *r)
{
    cr_assert(tell(r, answer_to(r, first_sequence), first_sequence, LINK, r->peer));
    cr_assert_eq(r->puts, 1);
    ask_with_the_same_set(r);
}

static void waits_for_the_end(struct rig *r)
{
    cr_assert_eq(r->puts, 1, "bytes that the link may still read were changed");
    cr_assert_eq(r->messages, 0);
    struct act_msg m = act_msg_make(ACT_PING, r->link);
    cr_assert_eq(act_send(r->self, &m), 0);
}

static void goes_then(struct rig *r)
{
    cr_assert_eq(r->puts, 2);
    cr_assert_eq(r->messages, 0);
}

Test(slots, a_slot_is_not_written_while_it_is_put)
{
    void (*const steps[])(struct rig *) = {hold_puts, hear_before_the_end, waits_for_the_end, goes_then};
    run(steps, 4);
}

/* ---- a connection that takes no puts any more, before anybody has said so ---- */

static void tell_shards(struct rig *r, uint32_t link)
{
    for (int s = 0; s < SHARDS; s++) {
        struct act_msg m = act_msg_make(ACT_EXPERT_SHARD, ACT_NOBODY);
        *act_p_expert_shard(&m) =
            (struct act_p_expert_shard){.shard = {.generation = 1, .peer = r->peer, .index = (uint32_t)(20 + s)},
                                        .index = (uint32_t)s,
                                        .link = link};
        act_exchange_message(&r->e, &m);
        if (r->e.lost)
            ask(r);
    }
}

static void ask_over_an_ending_connection(struct rig *r)
{
    r->status = r->reruns % 2 ? -ESTALE : -ENOTCONN;
    r->again = true;
    ask_first(r);
}

/* Each shard was tried once, and is tried again after a while only. */
static void was_not_tried_again_at_once(struct rig *r)
{
    cr_assert_eq(r->puts, SHARDS);
    cr_assert_leq(r->messages, 1);
    cr_assert(r->reruns > 0 && r->reruns <= SHARDS, "%d", r->reruns);
    cr_assert(r->e.stalled);
    r->status = r->messages = 0;
    tell_shards(r, LINK + 1);
}

static void goes_over_the_next_one(struct rig *r)
{
    cr_assert_eq(r->puts, SHARDS + 1);
    cr_assert_eq(r->messages, 0);
    cr_assert(!r->e.stalled && !r->e.lost);
}

Test(slots, a_connection_that_takes_no_puts_is_not_tried_again_at_once)
{
    void (*const steps[])(struct rig *) = {ask_over_an_ending_connection, was_not_tried_again_at_once,
                                           goes_over_the_next_one};
    run(steps, 3);
}

/* The end of a put over the connection before says nothing of the one that is there now. */
static void hear_of_the_next_one_first(struct rig *r)
{
    r->hold = r->again = true;
    ask_first(r);
    r->experts.limits.deadline_ns = 50 * MS;
    tell_shards(r, LINK + 1); /* the step is lost and run again, with a slot that is still being put */
}

static void end_the_old_put(struct rig *r)
{
    struct act_msg m = act_msg_make(ACT_PING, r->link);
    cr_assert_eq(r->puts, 1, "bytes that the link may still read were changed");
    r->hold = false;
    r->status = -ESTALE;
    cr_assert_eq(act_send(r->self, &m), 0);
}

static void shard_is_used(struct rig *r)
{
    cr_assert_eq(r->puts, 2);
    cr_assert(!act_shard_in(&r->e.out, 1));
    cr_assert(!r->e.stalled);
}

Test(slots, the_end_of_an_older_put_does_not_leave_its_shard_out)
{
    void (*const steps[])(struct rig *) = {hear_of_the_next_one_first, end_the_old_put, shard_is_used};
    run(steps, 3);
}

/* The same between the word of the next connection and the step that is run again for it. */
static void end_a_put_of_the_one_before(struct rig *r)
{
    r->hold = true;
    ask_first(r);
    struct act_msg m = act_msg_make(ACT_EXPERT_SHARD, ACT_NOBODY);
    *act_p_expert_shard(&m) = (struct act_p_expert_shard){
        .shard = {.generation = 1, .peer = r->peer, .index = 21}, .index = 1, .link = LINK + 1};
    cr_assert(act_exchange_message(&r->e, &m), "the step is lost");
    m = act_msg_make(ACT_LINK_PUT_DONE, ACT_NOBODY);
    m.request = ACT_EXCHANGE_TAG | ((r->e.sequence & 1) * SHARDS + 1);
    act_p_link_put_done(&m)->status = -ESTALE;
    cr_assert(act_exchange_message(&r->e, &m));
    cr_assert(!act_shard_in(&r->e.out, 1));
}

Test(slots, the_end_of_a_put_says_nothing_of_the_next_connection)
{
    void (*const steps[])(struct rig *) = {end_a_put_of_the_one_before};
    run(steps, 1);
}

/* ---- waves ---- */

static const struct act_slots_shape few_pairs = {.hidden = HIDDEN,
                                                 .rows = ROWS,
                                                 .pairs = 5,
                                                 .shards = SHARDS,
                                                 .each = 2,
                                                 .places = 3,
                                                 .nodes = 2,
                                                 .rank = {[1] = 1, [NODE] = 2}};

/* Shard s has the experts 2s and 2s + 1; a slot has room for 4 rows and 5 pairs. */
static const struct {
    int32_t expert[K];
    uint8_t wave[K];
} cut[ASKED] = {
    {{2, 3}, {0, 0}}, {{2, 3}, {0, 0}}, {{2, 3}, {1, 1}}, /* the third would make 6 pairs */
    {{0, 2}, {0, 1}}, {{2, 4}, {1, 0}},                   /* each shard has waves of its own */
    {{1, 3}, {0, 1}},                                     /* 4 rows and 5 pairs fill a slot */
    {{3, 5}, {2, 0}}, {{0, 1}, {0, 0}},                   /* shard 0: 2, then 4 pairs */
    {{0, 1}, {1, 1}},                                     /* 6 pairs again */
    {{1, 4}, {1, 0}}, {{0, 5}, {1, 0}}, {{1, 4}, {1, 1}}, /* shard 2: 5 pairs would fit, the fifth row does not */
};

static void ask_for_waves(struct rig *r)
{
    source_open(r);
    for (int i = 0; i < ASKED * K; i++)
        r->expert[i] = cut[i / K].expert[i % K];
    r->x = (struct mdl_exchange){.rows = ASKED,
                                 .k = K,
                                 .codes = r->codes,
                                 .scales = r->scales,
                                 .expert = r->expert,
                                 .weight = r->weight,
                                 .result = r->result,
                                 .have = r->have,
                                 .pending = ASKED * K};
    act_exchange_begin(&r->e);
    cr_assert_eq(r->e.providers.experts(r->e.providers.ctx, NULL, &r->x), 0);
    for (int i = 0; i < ASKED * K; i++)
        cr_assert_eq(r->e.wave[i], cut[i / K].wave[i % K], "row %d: wave %d", i / K, r->e.wave[i]);
    static const int waves[SHARDS] = {2, 3, 2};
    for (int s = 0; s < SHARDS; s++) {
        cr_assert_eq(r->e.peer[s].waves, waves[s], "shard %d", s);
        for (int w = 0; w < waves[s]; w++) {
            struct act_dispatch_size size = act_exchange_size(&r->e, s, w);
            cr_assert(size.rows > 0 && size.rows <= few_pairs.rows && size.pairs <= few_pairs.pairs);
        }
    }
}

/* Two of each shard are under way at most. */
static void all_are_puts(struct rig *r)
{
    cr_assert_eq(r->puts, 2 * SHARDS);
    cr_assert_eq(r->messages, 0);
}

Test(slots, waves_are_cut_where_rows_or_pairs_of_a_slot_end)
{
    void (*const steps[])(struct rig *) = {ask_for_waves, all_are_puts};
    run_in(&few_pairs, steps, 2);
}
