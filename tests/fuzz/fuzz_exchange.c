/* Fuzz target: the expert exchange as another node may play it. The first byte of the input says what it is: a dispatch
 * in a slot of a shard, a dispatch as a message, a result in a slot of a source, a result as a message. In slots the
 * next two bytes say where the others are written over what would be right, so that all checks are reached. Every put
 * must stay inside the windows, every dispatch is answered once at most, and a source takes whole answers or none. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "actors/exchange.h"
#include "actors/exchange_slots.h"
#include "actors/exchange_wire.h"
#include "actors/expert.h"
#include "actors/link.h"
#include "actors/runtime/peers.h"
#include "actors/runtime/sim.h"
#include "actors/slots.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SHARDS = 3, SHARD = 1, K = 2, NODE = 7, EPOCH = 1000, LINK = 9, PLACE = 0, MS = 1000000 };

struct world {
    const uint8_t *data;
    size_t size;
    struct mdl_model *m;
    struct act_map *map;
    struct act_slots *slots;
    struct act_addr link, shard;
    struct act_experts experts;
    struct act_expert_arg arg;
    struct act_exchange e;
    uint16_t peer;
    bool begun;
    int asked, answers;
    struct mdl_exchange x;
    int32_t expert[K];
    float weight[K];
    uint8_t have[K], *codes, *scales;
    uint16_t *result;
};

static void check(bool right)
{
    if (!right)
        abort();
}

/* ---- the link: nothing is ever put outside the windows ---- */

static int link_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct world *w = *(struct world **)state;
    for (int i = 0; i < count; i++) {
        if (m[i].type != ACT_LINK_PUT)
            continue;
        size_t bytes;
        const struct act_put_range *r = act_msg_tail(&m[i], &bytes);
        bool results = act_b_link_put(&m[i])->to_window == ACT_WINDOW_RESULTS;
        size_t from = results ? w->slots->dispatches_bytes : w->slots->results_bytes;
        size_t to = results ? w->slots->results_bytes : w->slots->dispatches_bytes;
        check(bytes == sizeof *r && r->size <= from && r->from <= from - r->size && r->size <= to &&
              r->to <= to - r->size);
        w->answers += results;
        struct act_promise p = act_promise_of(&m[i]);
        struct act_msg done = act_msg_make(ACT_LINK_PUT_DONE, ACT_NOBODY);
        act_reply(self, &p, &done);
    }
    return 0;
}

/* ---- what the other node writes ---- */

static void overwrite(const struct world *w, uint8_t *slot, size_t size)
{
    size_t at = w->size > 2 ? (size_t)(w->data[1] | w->data[2] << 8) % size : size;
    size_t n = w->size > 3 ? w->size - 3 : 0;
    if (at < size)
        memcpy(slot + at, w->data + 3, n < size - at ? n : size - at);
}

static struct act_slot_head head_of(struct act_self *self, uint32_t sequence, uint32_t bytes)
{
    struct act_addr me = act_self_addr(self);
    return (struct act_slot_head){.magic = ACT_SLOT_MAGIC,
                                  .bytes = bytes,
                                  .epoch = EPOCH,
                                  .link = LINK,
                                  .sequence = sequence,
                                  .map = 1,
                                  .source_generation = me.generation,
                                  .source_index = me.index,
                                  .rows = 1,
                                  .place = PLACE,
                                  .shard = SHARD,
                                  .set = sequence & 1};
}

static struct act_msg word(const struct world *w, unsigned port, unsigned member, unsigned other, uint32_t sequence)
{
    const struct act_slot_word at = {member, other, sequence & 1, sequence & ACT_SLOT_SEQUENCE};
    struct act_msg m = act_msg_make(ACT_LINK_IMMEDIATE, w->shard);
    *act_p_link_immediate(&m) = (struct act_p_link_immediate){
        .peer = w->peer, .class = TP_CLASS_EXPERT, .immediate = act_slot_immediate(port, &at), .generation = LINK};
    return m;
}

static void dispatch_in_slot(struct world *w, struct act_self *self)
{
    const struct act_dispatch_size size = {1, K, (uint32_t)w->m->cfg->hidden, 0};
    struct act_slot_head h = head_of(self, 5, (uint32_t)act_dispatch_bytes(&size));
    uint8_t *at = w->slots->dispatches + act_slots_dispatch(w->slots, 1, PLACE, 1, SHARD);
    struct act_dispatch d;
    memcpy(at, &h, sizeof h);
    act_dispatch_place(&size, at + sizeof h, &d);
    d.pairs[0] = K;
    for (uint32_t k = 0; k < K; k++)
        d.pair[k] = (struct act_dispatch_pair){k, 0.5f};
    overwrite(w, at, w->slots->dispatch_bytes);
    for (int twice = 0; twice < 2; twice++) { /* the second time it is old */
        struct act_msg m = word(w, ACT_PORT_SHARDS, SHARD, PLACE, 5);
        check(act_send(self, &m) == 0);
    }
    w->asked = 1;
}

static void dispatch_as_message(struct world *w, struct act_self *self)
{
    struct act_p_expert_dispatch head = {0};
    size_t n = w->size - 1 < sizeof head ? w->size - 1 : sizeof head, bytes;
    struct act_msg m;
    memcpy(&head, w->data + 1, n);
    check(act_msg_new(ACT_EXPERT_DISPATCH, w->shard, w->size - 1 - n, &m) == 0);
    *act_p_expert_dispatch(&m) = head;
    uint8_t *tail = act_msg_tail(&m, &bytes);
    if (w->size - 1 - n)
        memcpy(tail, w->data + 1 + n, w->size - 1 - n);
    check(act_request(self, &m) == 0);
    w->asked = 1;
}

static void ask(struct world *w)
{
    int first = w->m->cfg->n_experts * SHARD / SHARDS;
    w->x = (struct mdl_exchange){.rows = 1,
                                 .k = K,
                                 .codes = w->codes,
                                 .scales = w->scales,
                                 .expert = w->expert,
                                 .weight = w->weight,
                                 .result = w->result,
                                 .have = w->have,
                                 .pending = K};
    for (int k = 0; k < K; k++)
        w->expert[k] = first + k;
    act_exchange_begin(&w->e);
    check(w->e.providers.experts(w->e.providers.ctx, NULL, &w->x) == 0);
}

static void result_in_slot(struct world *w, struct act_self *self)
{
    ask(w);
    uint32_t sequence = w->e.sequence;
    struct act_slot_head h = head_of(self, sequence, (uint32_t)(K * w->m->cfg->hidden) * sizeof(uint16_t));
    uint8_t *at = w->slots->results + act_slots_result(w->slots, PLACE, sequence & 1, SHARD);
    memcpy(at, &h, sizeof h);
    overwrite(w, at, w->slots->result_bytes);
    struct act_msg m = word(w, ACT_PORT_SOURCES, PLACE, SHARD, sequence);
    act_exchange_message(&w->e, &m);
}

static void result_as_message(struct world *w)
{
    ask(w);
    struct act_p_expert_result head = {.sequence = w->e.sequence, .map = 1};
    size_t n = w->size - 1 < sizeof head ? w->size - 1 : sizeof head, bytes;
    struct act_msg m;
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)&head)[i] ^= w->data[1 + i];
    check(act_msg_new(ACT_EXPERT_RESULT, ACT_NOBODY, w->size - 1 - n, &m) == 0);
    *act_p_expert_result(&m) = head;
    uint8_t *tail = act_msg_tail(&m, &bytes);
    if (w->size - 1 - n)
        memcpy(tail, w->data + 1 + n, w->size - 1 - n);
    m.src = w->e.peer[SHARD].addr;
    act_exchange_message(&w->e, &m);
    act_msg_drop(&m);
}

/* ---- the source, which also plays the other node ---- */

static int side_start(struct act_self *self, void *state, const void *arg)
{
    struct world *w = *(struct world **)state = (struct world *)(uintptr_t)arg;
    w->slots->source[w->slots->n_sources++] = act_self_addr(self);
    check(act_exchange_init(&w->e, self, w->m, 0, &w->experts) == 0);
    act_yield(self);
    return 0;
}

static void begin(struct world *w, struct act_self *self)
{
    for (uint32_t s = 0; s < SHARDS; s++) {
        struct act_msg m = act_msg_make(ACT_EXPERT_SHARD, ACT_NOBODY);
        *act_p_expert_shard(&m) = (struct act_p_expert_shard){
            .shard = {.generation = 1, .peer = w->peer, .index = 20 + s}, .index = s, .link = LINK};
        act_exchange_message(&w->e, &m);
    }
    if (w->data[0] % 4 == 0)
        dispatch_in_slot(w, self);
    else if (w->data[0] % 4 == 1)
        dispatch_as_message(w, self);
    else if (w->data[0] % 4 == 2)
        result_in_slot(w, self);
    else
        result_as_message(w);
    check(w->x.pending == 0 || w->x.pending == K);
}

static int side_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct world *w = *(struct world **)state;
    if (!w->begun)
        begin(w, self);
    w->begun = true;
    for (int i = 0; i < count; i++)
        w->answers += m[i].type == ACT_EXPERT_RESULT || m[i].type == ACT_UNDELIVERABLE;
    return 0;
}

static void side_stop(struct act_self *self, void *state, int reason)
{
    (void)self;
    (void)reason;
    act_exchange_free(&(*(struct world **)state)->e);
}

static int keep_world(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    *(const void **)state = arg;
    return 0;
}

/* ---- a world for each input; the model is opened once ---- */

static void open_slots(struct world *w)
{
    struct cfg_error err;
    const struct act_slots_shape shape = {.hidden = (uint32_t)w->m->cfg->hidden,
                                          .rows = 2,
                                          .pairs = 2 * K,
                                          .shards = SHARDS,
                                          .each = 2,
                                          .places = 2,
                                          .nodes = 2,
                                          .rank = {[1] = 1, [NODE] = 2}};
    check(act_slots_new(&shape, true, true, &w->slots, &err) == 0);
    w->slots->epoch = EPOCH;
    check(act_map_even(1, w->m->cfg->n_layers, w->m->cfg->n_experts, SHARDS, &w->map) == 0);
    w->codes = calloc(1, (size_t)w->m->cfg->hidden);
    w->scales = calloc(1, (size_t)w->m->cfg->hidden / 32);
    w->result = calloc(K, (size_t)w->m->cfg->hidden * sizeof *w->result);
    check(w->codes && w->scales && w->result);
}

static void spawn(struct act_runtime *rt, const struct act_behaviour *b, const void *arg, struct act_addr *out)
{
    const struct act_spawn spec = {.behaviour = b, .arg = arg, .outbox = 64};
    struct cfg_error err;
    check(act_runtime_spawn(rt, &spec, out, &err) == 0);
}

static void run(struct world *w)
{
    static const struct act_behaviour link = {
        .name = "link", .state_size = sizeof(void *), .start = keep_world, .receive = link_receive};
    static const struct act_behaviour side = {
        .name = "side", .state_size = sizeof(void *), .start = side_start, .receive = side_receive, .stop = side_stop};
    struct act_config c = {.node = 1, .epoch = 1, .workers = 1};
    struct act_sim *sim;
    struct act_runtime *rt;
    struct act_addr who;
    struct cfg_error err;
    c.worker[0] = (struct act_worker_config){.name = "w", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    check(act_sim_new(&(struct act_sim_config){.seed = 1}, &sim, &err) == 0 && act_sim_add(sim, &c, &rt, &err) == 0);
    spawn(rt, &link, w, &w->link);
    check(act_peer_number(rt, NODE, EPOCH, &w->peer) == 0 && act_peer_route(rt, w->peer, w->link) == 0);
    w->arg = (struct act_expert_arg){
        .m = w->m, .map = w->map, .index = SHARD, .slots = w->slots, .link = w->link, .local = SHARD};
    spawn(rt, &act_expert_behaviour, &w->arg, &w->shard);
    w->experts = (struct act_experts){
        .n = SHARDS, .map = w->map, .slots = w->slots, .link = w->link, .node = 1, .limits.deadline_ns = 5 * MS};
    spawn(rt, &side, w, &who);
    act_sim_run(sim, 2 * MS, 100000);
    check(w->begun && w->answers <= w->asked + 1); /* the source's own dispatch is not answered */
    act_sim_free(sim);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mdl_model *model;
    struct cfg_error err;
    if (!model && mdl_model_open("tests/golden/mini8", 1, NULL, &model, &err))
        abort();
    if (!size || size > 1 << 16)
        return 0;
    struct world w = {.data = data, .size = size, .m = model};
    open_slots(&w);
    run(&w);
    act_slots_free(w.slots);
    act_map_free(w.map);
    free(w.codes);
    free(w.scales);
    free(w.result);
    return 0;
}
