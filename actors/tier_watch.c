#include "actors/tier_watch.h"

#include <stdint.h>
#include <string.h>

#include "actors/tier_store.h"

static const char *const names[] = {"device", "host", "ssd", "shared", "kv", "snapshots"};
_Static_assert(sizeof names / sizeof *names == (size_t)ACT_TIER_KINDS, "every tier has a name");

static int watch_start(struct act_self *self, void *state, const void *arg)
{
    (void)self;
    *(const void **)state = arg;
    return 0;
}

void act_tier_watch_take(struct act_tier_watch *w, struct act_msg *m)
{
    bool stats = m->type == ACT_KV_STATS;
    uint32_t tier = stats ? act_p_kv_stats(m)->tier : act_p_tier_times(m)->tier;
    size_t bytes;
    int i = 0;
    while (i < w->n && !(w->row[i].tier == tier && act_addr_equal(w->row[i].who, m->src)))
        i++;
    if (i == ACT_TIER_WATCH_MAX || tier >= ACT_TIER_KINDS || (i == w->n && !stats))
        return;
    if (i == w->n)
        memset(&w->row[w->n++], 0, sizeof w->row[i]);
    w->row[i].who = m->src;
    w->row[i].tier = tier;
    if (stats) {
        w->row[i].last = *act_b_kv_stats(m);
        return;
    }
    const void *tail = act_msg_tail(m, &bytes);
    if (bytes >= sizeof w->row[i].times)
        memcpy(w->row[i].times, tail, sizeof w->row[i].times);
}

static int watch_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct act_tier_watch *w = *(struct act_tier_watch **)state;
    (void)self;
    for (int i = 0; i < count; i++)
        if (m[i].type == ACT_KV_STATS || m[i].type == ACT_TIER_TIMES)
            act_tier_watch_take(w, &m[i]);
    return 0;
}

const struct act_behaviour act_tier_watch_behaviour = {.name = "tier-watch",
                                                       .state_size = sizeof(struct act_tier_watch *),
                                                       .start = watch_start,
                                                       .receive = watch_receive};

static void number(json_t *o, const char *key, uint64_t v)
{
    json_object_set_new(o, key, json_integer((json_int_t)v));
}

json_t *act_tier_watch_json(const struct act_tier_watch *w, struct act_addr store)
{
    json_t *list = json_array();
    for (int i = 0; list && i < w->n; i++) {
        const struct act_b_kv_stats *s = &w->row[i].last;
        json_t *o = json_pack("{s:s, s:b}", "tier", names[w->row[i].tier], "served",
                              act_addr_equal(w->row[i].who, store) && !act_addr_is_nobody(store));
        if (!o)
            break;
        number(o, "blocks", s->cached);
        number(o, "held", s->held);
        number(o, "bytes", s->bytes);
        number(o, "capacity", s->capacity);
        number(o, "hits", s->hits);
        number(o, "misses", s->misses);
        number(o, "hit_tokens", s->hit_tokens);
        number(o, "asked_tokens", s->asked_tokens);
        number(o, "read", s->read);
        number(o, "read_bytes", s->read_bytes);
        number(o, "stored", s->stored);
        number(o, "stored_bytes", s->stored_bytes);
        number(o, "refused", s->refused);
        number(o, "evicted", s->evicted);
        number(o, "errors", s->errors);
        number(o, "bad", s->bad);
        number(o, "queue", s->queue);
        json_object_set_new(o, "read_only", json_boolean(s->state & ACT_TIER_READ_ONLY));
        json_object_set_new(o, "late", json_boolean(s->state & ACT_TIER_LATE));
        json_array_append_new(list, o);
    }
    return list;
}
