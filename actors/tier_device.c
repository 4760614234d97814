#include "actors/tier_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct act_key) == sizeof(struct kv_key), "keys travel as they are");

enum { REPORT_NS = 500000000, TAG_REPORT = 1 };

/* Where a snapshot that the device may still have belongs. */
struct place {
    struct act_key base, key;
    uint32_t blocks, ids; /* full blocks before it, ids behind them */
};

enum { PLACES = 4096 };

struct tier {
    const struct act_engine *e;
    struct kv_device *device;
    struct act_timer report;
    struct place *place; /* [PLACES], the newest replaces the oldest */
    int n_places, next_place;
};

static int tier_start(struct act_self *self, void *state, const void *arg)
{
    struct tier *t = state;
    t->e = arg;
    t->device = t->e->device;
    t->place = calloc(PLACES, sizeof *t->place);
    if (!t->place)
        return -ENOMEM;
    act_timer_after(self, &t->report, REPORT_NS, TAG_REPORT);
    return 0;
}

static void give_pages(struct act_self *self, struct tier *t, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    uint32_t n = act_p_pages_ask(m)->pages;
    struct act_msg r;
    int status = n > INT32_MAX ? -EINVAL : act_msg_new(ACT_PAGES_GIVEN, ACT_NOBODY, (size_t)n * sizeof(uint32_t), &r);
    if (!status) {
        size_t bytes;
        int *pages = act_msg_tail(&r, &bytes);
        status = kv_device_take(t->device, (int)n, pages);
        if (status)
            act_msg_drop(&r);
    }
    if (status)
        r = act_msg_make(ACT_PAGES_GIVEN, ACT_NOBODY);
    *act_p_pages_given(&r) = (struct act_p_pages_given){.pages = status ? 0 : n, .status = status};
    if (act_reply(self, &p, &r))
        act_msg_drop(&r);
}

static void take_back(struct tier *t, struct act_msg *m, uint32_t n)
{
    size_t bytes;
    const uint32_t *page = act_msg_tail(m, &bytes);
    for (uint32_t i = 0; i < n && (i + 1) * sizeof *page <= bytes; i++)
        kv_device_release(t->device, (int)page[i]);
}

/* Clean rows first; tainted ones only for those who accept them, and never behind one another's taint. */
static int find_block(struct tier *t, const struct act_key *chain, bool clean_only, struct act_tier_block *out)
{
    struct kv_key key;
    struct kv_block_info info;
    int page = -1;
    for (int taint = KV_CLEAN; page < 0 && taint <= (clean_only ? KV_CLEAN : KV_TAINTED); taint++) {
        kv_key_block((const struct kv_key *)chain, (enum kv_taint)taint, &key);
        page = kv_device_find(t->device, &key, &info);
    }
    if (page < 0)
        return -1;
    *out = (struct act_tier_block){
        .chain = *chain, .page = (uint32_t)page, .taint = (uint32_t)info.taint, .hit = info.hit};
    return 0;
}

/* The longest kept snapshot of this prompt whose full blocks are all among the first `found`. */
static const struct place *find_snapshot(struct tier *t, const struct act_key *chain, uint32_t found,
                                         const int32_t *ids, uint32_t n_ids, const void **bytes, size_t *len)
{
    const struct place *best = NULL;
    uint32_t per = (uint32_t)t->e->layout.block_tokens;
    for (int i = 0; i < t->n_places; i++) {
        const struct place *p = &t->place[i];
        uint32_t pos = p->blocks * per + p->ids;
        struct kv_key key;
        struct kv_block_info info;
        size_t n;
        if (p->blocks > found || pos >= n_ids || memcmp(&p->base, &chain[p->blocks], sizeof p->base) ||
            (best && pos <= best->blocks * per + best->ids))
            continue;
        kv_key_extend((const struct kv_key *)&p->base, ids + p->blocks * per, (int)p->ids, &key);
        const void *b = memcmp(&key, &p->key, sizeof key) ? NULL : kv_device_snapshot_get(t->device, &key, &info, &n);
        if (b) {
            best = p;
            *bytes = b;
            *len = n;
        }
    }
    return best;
}

static void release_blocks(struct tier *t, const struct act_tier_block *block, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < n; i++)
        kv_device_release(t->device, (int)block[i].page);
}

static int make_found(struct tier *t, struct act_msg *m, struct act_msg *r)
{
    const struct act_p_kv_lookup *in = act_p_kv_lookup(m);
    size_t bytes, len = 0, room;
    const struct act_key *chain = act_msg_tail(m, &bytes);
    bool clean_only = in->flags & ACT_LOOKUP_CLEAN_ONLY;
    uint32_t found = 0, per = (uint32_t)t->e->layout.block_tokens;
    const void *snapshot = NULL;
    if (bytes < ((size_t)in->blocks + 1) * sizeof *chain + (size_t)in->ids * sizeof(int32_t))
        return -EINVAL;
    struct act_tier_block *block = malloc(((size_t)in->blocks + 1) * sizeof *block);
    if (!block)
        return -ENOMEM;
    while (found < in->blocks && !find_block(t, &chain[found + 1], clean_only, &block[found]))
        found++;
    const struct place *p = find_snapshot(t, chain, found, (const int32_t *)(const void *)(chain + in->blocks + 1),
                                          in->ids, &snapshot, &len);
    /* A snapshot restarts exactly, blocks alone are replayed; so a somewhat shorter snapshot is better than more
     * blocks. */
    if (p && 2 * (p->blocks * per + p->ids) >= found * per) {
        release_blocks(t, block, p->blocks, found);
        found = p->blocks;
    } else {
        p = NULL;
        len = 0;
    }
    int status = act_msg_new(ACT_KV_FOUND, ACT_NOBODY, (size_t)found * sizeof *block + len, r);
    if (status) {
        release_blocks(t, block, 0, found);
    } else {
        uint8_t *at = act_msg_tail(r, &room);
        memcpy(at, block, (size_t)found * sizeof *block);
        if (p)
            memcpy(at + (size_t)found * sizeof *block, snapshot, len);
        *act_p_kv_found(r) = (struct act_p_kv_found){.blocks = found, .snapshot = p ? p->blocks * per + p->ids : 0};
    }
    free(block);
    return status;
}

static void look_up(struct act_self *self, struct tier *t, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    struct act_msg r;
    size_t bytes;
    int status = make_found(t, m, &r);
    if (status) {
        r = act_msg_make(ACT_KV_FOUND, ACT_NOBODY);
        act_p_kv_found(&r)->status = status;
    }
    if (act_reply(self, &p, &r)) {
        release_blocks(t, act_msg_tail(&r, &bytes), 0, act_p_kv_found(&r)->blocks);
        act_msg_drop(&r);
    }
}

static void keep_snapshot(struct tier *t, struct act_msg *m)
{
    const struct act_p_snapshot *in = act_p_snapshot(m);
    size_t bytes, skip = sizeof(struct act_key) + (size_t)in->ids * sizeof(int32_t);
    const uint8_t *at = act_msg_tail(m, &bytes);
    struct place p = {.blocks = in->blocks, .ids = in->ids};
    if (bytes < skip)
        return;
    memcpy(&p.base, at, sizeof p.base);
    kv_key_extend((const struct kv_key *)&p.base, (const int32_t *)(const void *)(at + sizeof p.base), (int)in->ids,
                  (struct kv_key *)&p.key);
    if (kv_device_snapshot_put(t->device, (const struct kv_key *)&p.key, &(struct kv_block_info){KV_CLEAN, 0},
                               at + skip, bytes - skip))
        return;
    for (int i = 0; i < t->n_places; i++)
        if (!memcmp(&t->place[i].key, &p.key, sizeof p.key))
            return;
    t->place[t->next_place] = p;
    t->next_place = (t->next_place + 1) % PLACES;
    t->n_places += t->n_places < PLACES;
}

/* An answer whose asker is gone: the pages in it are nobody's. */
static void take_returned(struct tier *t, struct act_msg *m)
{
    size_t bytes;
    if (act_msg_returned_type(m) == ACT_PAGES_GIVEN)
        take_back(t, m, act_p_pages_given(m)->pages);
    else if (act_msg_returned_type(m) == ACT_KV_FOUND && m->buf)
        release_blocks(t, act_msg_tail(m, &bytes), 0, act_p_kv_found(m)->blocks);
}

static void publish(struct tier *t, struct act_msg *m)
{
    size_t bytes;
    const struct act_tier_block *b = act_msg_tail(m, &bytes);
    for (uint32_t i = 0; i < act_p_kv_store(m)->blocks && (i + 1) * sizeof *b <= bytes; i++) {
        struct kv_key key;
        kv_key_block((const struct kv_key *)&b[i].chain, (enum kv_taint)b[i].taint, &key);
        kv_device_publish(t->device, (int)b[i].page, &key,
                          &(struct kv_block_info){(enum kv_taint)b[i].taint, b[i].hit});
    }
}

static int make_report(struct tier *t, struct act_addr to, struct act_msg *r)
{
    struct kv_device_stats s;
    kv_device_stat(t->device, &s);
    if (act_msg_new(ACT_KV_STATS, to, 0, r))
        return -ENOMEM;
    *act_b_kv_stats(r) = (struct act_b_kv_stats){.bytes = (uint64_t)(s.held + s.cached) * t->e->layout.block_bytes,
                                                 .capacity = (uint64_t)s.pages * t->e->layout.block_bytes,
                                                 .hits = s.found,
                                                 .misses = s.missed,
                                                 .evicted = s.evicted,
                                                 .held = (uint64_t)s.held,
                                                 .cached = (uint64_t)s.cached};
    return 0;
}

static void answer_report(struct act_self *self, struct tier *t, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    struct act_msg r;
    if (make_report(t, ACT_NOBODY, &r) == 0 && act_reply(self, &p, &r))
        act_msg_drop(&r);
}

/* Unasked, to the observer. */
static void send_report(struct act_self *self, struct tier *t)
{
    struct act_msg r;
    if (act_addr_is_nobody(t->e->observer))
        return;
    act_timer_after(self, &t->report, REPORT_NS, TAG_REPORT);
    if (make_report(t, t->e->observer, &r) == 0 && act_send(self, &r))
        act_msg_drop(&r);
}

static int tier_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct tier *t = state;
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_PAGES_ASK:
            give_pages(self, t, &m[i]);
            break;
        case ACT_PAGES_BACK:
            take_back(t, &m[i], act_p_pages_back(&m[i])->pages);
            break;
        case ACT_KV_LOOKUP:
            look_up(self, t, &m[i]);
            break;
        case ACT_KV_STORE:
            publish(t, &m[i]);
            break;
        case ACT_SNAPSHOT:
            keep_snapshot(t, &m[i]);
            break;
        case ACT_KV_STAT:
            answer_report(self, t, &m[i]);
            break;
        case ACT_TIMER:
            send_report(self, t);
            break;
        case ACT_UNDELIVERABLE:
            take_returned(t, &m[i]);
            break;
        default:
            break;
        }
    }
    return 0;
}

static void tier_stop(struct act_self *self, void *state, int reason)
{
    (void)self;
    (void)reason;
    free(((struct tier *)state)->place);
}

const struct act_behaviour act_tier_device_behaviour = {
    .name = "tier-device",
    .state_size = sizeof(struct tier),
    .start = tier_start,
    .receive = tier_receive,
    .stop = tier_stop,
};
