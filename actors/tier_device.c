#include "actors/tier_device.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(struct act_key) == sizeof(struct kv_key), "keys travel as they are");

enum { REPORT_NS = 500000000, TAG_REPORT = 1 };

struct tier {
    const struct act_engine *e;
    struct kv_device *device;
    struct act_timer report;
};

static int tier_start(struct act_self *self, void *state, const void *arg)
{
    struct tier *t = state;
    t->e = arg;
    t->device = t->e->device;
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
    *out = (struct act_tier_block){.chain = *chain, .page = (uint32_t)page, .taint = (uint32_t)info.taint, .hit = info.hit};
    return 0;
}

static void look_up(struct act_self *self, struct tier *t, struct act_msg *m)
{
    struct act_promise p = act_promise_of(m);
    size_t bytes;
    const struct act_key *chain = act_msg_tail(m, &bytes);
    uint32_t wanted = act_p_kv_lookup(m)->blocks, found = 0;
    bool clean_only = act_p_kv_lookup(m)->flags & ACT_LOOKUP_CLEAN_ONLY;
    struct act_msg r;
    if (wanted > bytes / sizeof *chain)
        wanted = (uint32_t)(bytes / sizeof *chain);
    if (act_msg_new(ACT_KV_FOUND, ACT_NOBODY, (size_t)wanted * sizeof(struct act_tier_block), &r)) {
        r = act_msg_make(ACT_KV_FOUND, ACT_NOBODY);
        act_p_kv_found(&r)->status = -ENOMEM;
    } else {
        size_t room;
        struct act_tier_block *block = act_msg_tail(&r, &room);
        while (found < wanted && !find_block(t, &chain[found], clean_only, &block[found]))
            found++;
        act_p_kv_found(&r)->blocks = found;
    }
    if (act_reply(self, &p, &r)) {
        if (r.buf)
            for (uint32_t i = 0; i < found; i++)
                kv_device_release(t->device, (int)((struct act_tier_block *)act_msg_tail(&r, &bytes))[i].page);
        act_msg_drop(&r);
    }
}

static void publish(struct tier *t, struct act_msg *m)
{
    size_t bytes;
    const struct act_tier_block *b = act_msg_tail(m, &bytes);
    for (uint32_t i = 0; i < act_p_kv_store(m)->blocks && (i + 1) * sizeof *b <= bytes; i++) {
        struct kv_key key;
        kv_key_block((const struct kv_key *)&b[i].chain, (enum kv_taint)b[i].taint, &key);
        kv_device_publish(t->device, (int)b[i].page, &key, &(struct kv_block_info){(enum kv_taint)b[i].taint, b[i].hit});
    }
}

static int make_report(struct tier *t, struct act_addr to, struct act_msg *r)
{
    struct kv_device_stats s;
    kv_device_stat(t->device, &s);
    if (act_msg_new(ACT_KV_STATS, to, 0, r))
        return -ENOMEM;
    *act_b_kv_stats(r) = (struct act_b_kv_stats){.bytes = (uint64_t)(s.held + s.cached) * t->e->layout.block_bytes,
                                                 .capacity = (uint64_t)s.pages * t->e->layout.block_bytes, .hits = s.found,
                                                 .misses = s.missed, .evicted = s.evicted, .held = (uint64_t)s.held,
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
        case ACT_KV_STAT:
            answer_report(self, t, &m[i]);
            break;
        case ACT_TIMER:
            send_report(self, t);
            break;
        default:
            break;
        }
    }
    return 0;
}

const struct act_behaviour act_tier_device_behaviour = {
    .name = "tier-device", .state_size = sizeof(struct tier), .start = tier_start, .receive = tier_receive,
};
