#include "actors/exchange.h"

#include <errno.h>
#include <string.h>

#include "actors/exchange_wire.h"

static bool is_local(const struct act_exchange *e, const struct mdl_exchange *x)
{
    return x->layer >= e->m->cfg->n_layers || !e->n_shards;
}

static bool on_shard(const struct act_shard *s, int32_t expert)
{
    return expert >= s->first && expert < s->first + s->count;
}

static int make_dispatch(struct act_exchange *e, const struct mdl_exchange *x, const struct act_shard *s,
                         struct act_msg *out)
{
    struct act_dispatch_size size = {.hidden = (uint32_t)e->m->cfg->hidden};
    for (int r = 0; r < x->rows; r++) {
        uint32_t n = 0;
        for (int k = 0; k < x->k; k++)
            n += on_shard(s, x->expert[r * x->k + k]);
        size.rows += n > 0;
        size.pairs += n;
    }
    if (!size.rows)
        return 0;
    int status = act_msg_new(ACT_EXPERT_DISPATCH, s->addr, act_dispatch_bytes(&size), out);
    if (status)
        return status;
    struct act_p_expert_dispatch *p = act_p_expert_dispatch(out);
    *p = (struct act_p_expert_dispatch){.sequence = e->sequence,
                                        .map = e->map,
                                        .stream = e->stream,
                                        .layer = (uint16_t)x->layer,
                                        .rows = (uint16_t)size.rows};
    size_t bytes, hidden = size.hidden;
    struct act_dispatch d;
    act_dispatch_place(&size, act_msg_tail(out, &bytes), &d);
    for (int r = 0; r < x->rows; r++) {
        uint32_t n = 0;
        for (int k = 0; k < x->k; k++) {
            int at = r * x->k + k;
            if (on_shard(s, x->expert[at])) {
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
    return 1;
}

static void send_unsent(struct act_exchange *e)
{
    int left = 0;
    for (int i = 0; i < e->n_unsent; i++) {
        if (act_request(e->self, &e->unsent[i]) == 0)
            e->counters.dispatched++;
        else
            e->unsent[left++] = e->unsent[i];
    }
    e->n_unsent = left;
}

static int dispatch(void *ctx, struct mdl_step *step, struct mdl_exchange *x)
{
    struct act_exchange *e = ctx;
    (void)step;
    if (is_local(e, x))
        return mdl_experts_compute(e->m, x, 0,
                                   x->layer < e->m->cfg->n_layers ? e->m->cfg->n_experts : e->m->cfg->draft_experts);
    act_exchange_abandon(e);
    if (e->losses > ACT_EXCHANGE_LOSSES)
        return -EHOSTDOWN;
    e->current = x;
    for (int i = 0; i < e->n_shards; i++) {
        /* A shard that was restarted lives on under its next generation. */
        struct act_addr now = act_current(act_self_runtime(e->self), e->shard[i].addr);
        e->shard[i].addr = act_addr_is_nobody(now) ? e->shard[i].addr : now;
        int r = make_dispatch(e, x, &e->shard[i], &e->unsent[e->n_unsent]);
        if (r < 0)
            return r;
        e->n_unsent += r;
    }
    send_unsent(e);
    return 0;
}

void act_exchange_abandon(struct act_exchange *e)
{
    for (int i = 0; i < e->n_unsent; i++)
        act_msg_drop(&e->unsent[i]);
    e->n_unsent = 0;
    e->current = NULL;
    e->lost = false;
    e->sequence++;
}

void act_exchange_init(struct act_exchange *e, struct act_self *self, struct mdl_model *m, uint16_t stream,
                       const struct act_shard *shard, int n_shards)
{
    *e = (struct act_exchange){.self = self, .m = m, .stream = stream, .n_shards = n_shards, .map = 1};
    memcpy(e->shard, shard, (size_t)n_shards * sizeof *shard);
    e->providers = (struct mdl_providers){e, dispatch, mdl_providers_local.engram, mdl_providers_local.kv};
}

static const struct act_shard *shard_of(const struct act_exchange *e, struct act_addr src)
{
    for (int i = 0; i < e->n_shards; i++)
        if (act_addr_equal(e->shard[i].addr, src))
            return &e->shard[i];
    return NULL;
}

static bool take_result(struct act_exchange *e, struct act_msg *m)
{
    const struct act_p_expert_result *p = act_p_expert_result(m);
    const struct act_shard *s = shard_of(e, m->src);
    struct mdl_exchange *x = e->current;
    if (!s || !x || p->sequence != e->sequence || p->layer != x->layer || p->stream != e->stream || p->map != e->map) {
        e->counters.late++;
        return false;
    }
    size_t bytes, hidden = (size_t)e->m->cfg->hidden, row = hidden * sizeof(uint16_t), want = 0;
    const uint8_t *at = act_msg_tail(m, &bytes);
    for (int i = 0; i < x->rows * x->k; i++)
        want += on_shard(s, x->expert[i]) ? row : 0;
    if (bytes < want) {
        e->lost = true; /* a short answer is no answer */
        return true;
    }
    e->counters.results++;
    e->losses = 0;
    e->shard_rows = e->shard_rows_of == e->sequence && e->shard_rows > p->rows ? e->shard_rows : p->rows;
    e->shard_rows_of = e->sequence;
    for (int i = 0; i < x->rows * x->k; i++)
        if (on_shard(s, x->expert[i])) {
            mdl_exchange_deliver(x, i / x->k, i % x->k, (int)hidden, (const uint16_t *)(const void *)at);
            at += row;
        }
    return x->pending == 0;
}

bool act_exchange_message(struct act_exchange *e, struct act_msg *m)
{
    switch (m->type) {
    case ACT_EXPERT_RESULT:
        return take_result(e, m);
    case ACT_ROOM:
        send_unsent(e);
        return false;
    case ACT_UNDELIVERABLE:
        if (act_msg_returned_type(m) != ACT_EXPERT_DISPATCH)
            return false;
        e->counters.returned++;
        if (e->current && shard_of(e, m->src) && !e->lost) {
            e->lost = true;
            e->losses++;
        }
        return e->lost;
    default:
        return false;
    }
}
