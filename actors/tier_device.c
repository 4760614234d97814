#include "actors/tier_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/figures.h"
#include "actors/tier_below.h"
#include "actors/tier_store.h"

_Static_assert(sizeof(struct act_key) == sizeof(struct kv_key), "keys travel as they are");

enum { REPORT_NS = 500000000, TAG_REPORT = 1, TAG_LATE = 2 };

/* Where a snapshot that the device may still have belongs. */
struct place {
    struct act_key base, key;
    uint32_t blocks, ids; /* full blocks before it, ids behind them */
};

enum { PLACES = 4096 };

/* A lookup: what was asked, and the blocks so far, each held once for the asker. */
struct question {
    struct question *next;
    uint32_t id;
    struct act_promise promise;
    struct below_waiter asker;
    struct act_buf *buf; /* of KV_LOOKUP */
    const struct act_key *chain;
    const int32_t *ids;
    struct act_p_kv_lookup in;
    uint64_t token_ns;
    int64_t since; /* ns, when it came: for the tiers below, and for pages, it waits until read_timeout_ns later */
    int want;      /* pages that it waits for */
    uint32_t replay, run_least;
    uint32_t found;
    uint32_t clean;                /* blocks of the hit that are clean: all, until it is known how many there are */
    uint32_t below;                /* of these, while blocks behind them are looked for, those that come from below */
    uint32_t asked;                /* tiers below that were asked for the clean ones, as bits */
    bool dear;                     /* some of the clean ones are there and not worth reading */
    struct act_tier_block block[]; /* [in.blocks + 1] */
};

/* Pages that come back when a connection is gone. */
struct fenced {
    struct fenced *next;
    uint64_t id;
    uint32_t n;
    struct act_buf *buf; /* of PAGES_FENCED */
};

struct tier {
    struct fenced *fenced;
    uint64_t next_fence;
    const struct act_engine *e;
    struct kv_device *device;
    struct below below;
    struct question *questions;             /* that wait for the tiers below */
    struct question *short_of, **short_end; /* that wait for pages, oldest first; they hold nothing */
    uint32_t next_question;
    struct act_timer report, late;
    struct place *place; /* [PLACES], the newest replaces the oldest */
    int n_places, next_place;
    /* Of lookups that were answered: what a lookup finds again after waiting for pages counts once. */
    uint64_t asked_blocks, hit_blocks, snapshot_asked_tokens, snapshot_hit_tokens;
};

static int tier_start(struct act_self *self, void *state, const void *arg)
{
    struct tier *t = state;
    t->e = arg;
    t->device = t->e->device;
    t->short_end = &t->short_of;
    t->place = calloc(PLACES, sizeof *t->place);
    if (!t->place)
        return -ENOMEM;
    act_timer_after(self, &t->report, REPORT_NS, TAG_REPORT);
    return below_start(&t->below, self, t->e);
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

/* From the last one on: what was released first is evicted first, and a prefix is of use without its end only. */
static void release_pages(struct tier *t, const uint32_t *page, uint32_t n, size_t bytes)
{
    n = n <= bytes / sizeof *page ? n : (uint32_t)(bytes / sizeof *page);
    while (n)
        kv_device_release(t->device, (int)page[--n]);
}

static void take_back(struct tier *t, struct act_msg *m, uint32_t n)
{
    size_t bytes;
    const uint32_t *page = act_msg_tail(m, &bytes);
    release_pages(t, page, n, bytes);
}

static void end_fence(struct tier *t, uint64_t id)
{
    struct fenced **at = &t->fenced, *f;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    if (!(f = *at))
        return;
    *at = f->next;
    const uint32_t *page = (const uint32_t *)(const void *)f->buf->data;
    release_pages(t, page, f->n, f->buf->size);
    act_buf_free(f->buf);
    free(f);
}

/* Without a link there is no connection that could touch them. */
static void take_fenced(struct act_self *self, struct tier *t, struct act_msg *m)
{
    const struct act_p_pages_fenced in = *act_p_pages_fenced(m);
    struct act_msg fence = act_msg_make(ACT_LINK_FENCE, t->e->link);
    struct fenced *f = malloc(sizeof *f);
    if (!f)
        return; /* the pages stay out of use */
    *f = (struct fenced){.next = t->fenced, .id = ++t->next_fence, .n = in.pages};
    f->buf = act_msg_take(m);
    t->fenced = f;
    fence.request = f->id;
    *act_p_link_fence(&fence) =
        (struct act_p_link_fence){.peer = in.peer, .class = in.class, .generation = in.generation};
    if (act_addr_is_nobody(t->e->link) || act_request(self, &fence))
        end_fence(t, f->id);
}

/* Length of the clean part of a hit. */
static uint32_t clean_tokens(const struct tier *t, const struct question *q)
{
    return q->clean * (uint32_t)t->e->layout.block_tokens;
}

/* The name under which a block would be part of the hit: clean, or behind exactly the clean ones. */
static struct act_key block_key(const struct tier *t, const struct question *q, uint32_t block)
{
    const struct kv_key *chain = (const struct kv_key *)&q->chain[block + 1];
    struct act_key key;
    if (block < q->clean)
        kv_key_block(chain, (struct kv_key *)&key);
    else
        kv_key_behind(chain, clean_tokens(t, q), q->replay, (struct kv_key *)&key);
    return key;
}

static struct act_tier_block block_at(const struct tier *t, const struct question *q, uint32_t block, uint32_t page)
{
    bool clean = block < q->clean;
    return (struct act_tier_block){.chain = q->chain[block + 1],
                                   .page = page,
                                   .replayed = clean ? 0 : q->replay,
                                   .hit = clean ? 0 : (int32_t)clean_tokens(t, q)};
}

/* Takes the next block into the hit if it is here. */
static bool find_next(struct tier *t, struct question *q)
{
    struct act_key key = block_key(t, q, q->found);
    struct kv_block_info info;
    int page = kv_device_find(t->device, (const struct kv_key *)&key, &info);
    if (page < 0)
        return false;
    below_found(&t->below, (const struct kv_key *)&key);
    q->block[q->found] = block_at(t, q, q->found, (uint32_t)page);
    q->found++;
    return true;
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
    while (n > from)
        kv_device_release(t->device, (int)block[--n].page);
}

/* What is asked of the tiers below: which blocks, and why not. */
struct plan {
    uint32_t n;              /* blocks behind question.found that come from below */
    struct below_load *load; /* they are on their way already, from its block `at` on; NULL: to be read */
    uint32_t at;
    const struct place *snapshot;
    const void *snapshot_bytes;
    size_t snapshot_len;
};

/* A snapshot restarts exactly, blocks alone are replayed; so a somewhat shorter snapshot is better than more blocks. */
static void plan_snapshot(struct tier *t, struct question *q, struct plan *p)
{
    uint32_t per = (uint32_t)t->e->layout.block_tokens, total = q->found + p->n,
             clean = total < q->clean ? total : q->clean;
    p->snapshot = find_snapshot(t, q->chain, clean, q->ids, q->in.ids, &p->snapshot_bytes, &p->snapshot_len);
    if (!p->snapshot || 2 * (p->snapshot->blocks * per + p->snapshot->ids) < total * per) {
        p->snapshot = NULL;
        p->snapshot_len = 0;
        return;
    }
    if (p->snapshot->blocks < q->found) {
        release_blocks(t, q->block, p->snapshot->blocks, q->found);
        q->found = p->snapshot->blocks;
    }
    p->n = p->snapshot->blocks - q->found;
}

/* Gives the blocks from below their pages. */
static void plan_pages(struct tier *t, struct question *q, struct plan *p)
{
    int pages[256];
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t page, at = q->found + i;
        if (p->load) {
            page = p->load->page[p->at + i];
            kv_device_hold(t->device, (int)page);
        } else {
            if (i % 256 == 0)
                kv_device_take(t->device, p->n - i < 256 ? (int)(p->n - i) : 256, pages);
            page = (uint32_t)pages[i % 256];
        }
        q->block[at] = block_at(t, q, at, page);
    }
}

static int begin_read(struct tier *t, const struct question *q, const struct plan *p)
{
    struct below_waiter asker = q->asker;
    asker.n = p->n;
    asker.offset = p->load ? p->at : 0;
    if (p->load)
        return below_join(&t->below, p->load, &asker);
    struct act_key *key = malloc((size_t)p->n * sizeof *key);
    uint32_t *page = malloc((size_t)p->n * sizeof *page);
    int r = -ENOMEM;
    if (key && page) {
        for (uint32_t i = 0; i < p->n; i++) {
            key[i] = block_key(t, q, q->found + i);
            page[i] = q->block[q->found + i].page;
        }
        uint32_t clean = q->clean > q->found ? q->clean - q->found : 0;
        r = below_read(&t->below, key, page, p->n, clean, (int32_t)clean_tokens(t, q), &asker);
    }
    free(key);
    free(page);
    return r;
}

/* Says that nothing will come: the asker counts on as many reports as there are sources. */
static void report_nothing(struct act_self *self, struct tier *t, const struct question *q, uint32_t n)
{
    for (int s = 0; s < t->e->store_layout.n_sources; s++) {
        struct act_msg m = act_msg_make(ACT_KV_ROWS, q->asker.who);
        m.request = q->asker.request;
        m.attempt = q->asker.attempt;
        *act_p_kv_rows(&m) =
            (struct act_p_kv_rows){.source = (uint16_t)s, .number = q->asker.number, .status = n ? -EIO : 0};
        if (act_send(self, &m))
            act_msg_drop(&m);
    }
}

static void question_free(struct question *q)
{
    act_buf_free(q->buf);
    free(q);
}

/* A hit is not cut short because pages are, or reads have many: the prompt needs them anyway. It waits, and is looked
 * up anew. */
static bool wait_for_pages(struct tier *t, struct question *q, const struct plan *p)
{
    if (p->load || !p->n || ((int)p->n <= kv_device_available(t->device) && below_may_read(&t->below, p->n)))
        return false;
    release_blocks(t, q->block, 0, q->found);
    q->want = (int)(q->found + p->n);
    q->found = 0;
    q->next = NULL;
    *t->short_end = q;
    t->short_end = &q->next;
    return true;
}

/* The answer: blocks that are here, blocks that are coming, a snapshot. Then their reading begins. */
static void answer(struct act_self *self, struct tier *t, struct question *q, struct plan *p)
{
    uint32_t per = (uint32_t)t->e->layout.block_tokens;
    struct act_msg r;
    size_t bytes;
    plan_snapshot(t, q, p);
    if (wait_for_pages(t, q, p))
        return;
    plan_pages(t, q, p);
    uint32_t total = q->found + p->n, snapshot = p->snapshot_len ? p->snapshot->blocks * per + p->snapshot->ids : 0;
    t->asked_blocks += q->in.blocks;
    t->hit_blocks += q->found;
    t->snapshot_asked_tokens += q->in.ids;
    t->snapshot_hit_tokens += snapshot;
    if (act_msg_new(ACT_KV_FOUND, ACT_NOBODY, (size_t)total * sizeof *q->block + p->snapshot_len, &r)) {
        release_blocks(t, q->block, 0, total);
        r = act_msg_make(ACT_KV_FOUND, ACT_NOBODY);
        act_p_kv_found(&r)->status = -ENOMEM;
        total = 0;
        p->n = 0;
    } else {
        uint8_t *at = act_msg_tail(&r, &bytes);
        memcpy(at, q->block, (size_t)total * sizeof *q->block);
        if (p->snapshot_len)
            memcpy(at + (size_t)total * sizeof *q->block, p->snapshot_bytes, p->snapshot_len);
        *act_p_kv_found(&r) = (struct act_p_kv_found){.blocks = total, .loading = p->n, .snapshot = snapshot};
    }
    if (act_reply(self, &q->promise, &r)) {
        release_blocks(t, q->block, 0, total);
        act_msg_drop(&r);
    } else if (p->n && begin_read(t, q, p)) {
        report_nothing(self, t, q, p->n);
    }
    question_free(q);
}

/* Blocks that are being brought for somebody else. */
static void plan_join(struct tier *t, const struct question *q, struct plan *p)
{
    struct act_key key = block_key(t, q, q->found);
    p->load = below_loading(&t->below, &key, &p->at);
    for (p->n = 0; p->load && q->found + p->n < q->in.blocks && p->at + p->n < p->load->n; p->n++) {
        key = block_key(t, q, q->found + p->n);
        if (memcmp(&key, &p->load->key[p->at + p->n], sizeof key))
            break;
    }
}

/* For the blocks from `first` on; its answer finds the question (take_below). */
static int ask_below(struct act_self *self, struct tier *t, struct question *q, uint32_t first)
{
    uint32_t n = q->in.blocks - first;
    struct act_msg m;
    size_t bytes;
    int r = act_msg_new(ACT_TIER_FIND, t->e->store, (size_t)n * sizeof(struct act_key), &m);
    if (r)
        return r;
    struct act_key *key = act_msg_tail(&m, &bytes);
    for (uint32_t i = 0; i < n; i++)
        key[i] = block_key(t, q, first + i);
    *act_p_tier_find(&m) = (struct act_p_tier_find){
        .blocks = n, .asked = q->asked, .block_ns = q->token_ns * (uint64_t)t->e->layout.block_tokens};
    m.request = q->id = ++t->next_question;
    r = act_request(self, &m);
    if (r) {
        act_msg_drop(&m);
        return r;
    }
    q->next = t->questions;
    t->questions = q;
    return 0;
}

/* The hit ends before this block. */
static void cut(struct tier *t, struct question *q, struct plan *p, uint32_t end)
{
    if (q->found > end) {
        release_blocks(t, q->block, end, q->found);
        q->found = end;
    }
    p->n = p->n < end - q->found ? p->n : end - q->found;
}

/* A hit that is too short to be of use brings nothing, nor does what came about behind its clean blocks. */
static void drop_useless(struct tier *t, struct question *q, struct plan *p)
{
    uint32_t per = (uint32_t)t->e->layout.block_tokens;
    if (q->found + p->n > q->clean && (q->found + p->n - q->clean) * per <= q->run_least)
        cut(t, q, p, q->clean);
    if ((q->found + p->n) * per < q->in.least)
        cut(t, q, p, 0);
}

static bool may_ask_below(const struct tier *t, const struct question *q)
{
    return !act_addr_is_nobody(t->e->store) && !(q->in.flags & ACT_LOOKUP_HERE_ONLY);
}

/* A snapshot that is preferred to whatever hit this prompt can have (plan_snapshot). */
static bool has_snapshot(const struct tier *t, const struct question *q)
{
    uint32_t per = (uint32_t)t->e->layout.block_tokens;
    for (int i = 0; i < t->n_places; i++) {
        const struct place *p = &t->place[i];
        uint32_t pos = p->blocks * per + p->ids;
        struct kv_key key;
        if (p->blocks > q->clean || pos >= q->in.ids || 2 * pos < q->in.blocks * per ||
            memcmp(&p->base, &q->chain[p->blocks], sizeof p->base))
            continue;
        kv_key_extend((const struct kv_key *)&p->base, q->ids + p->blocks * per, (int)p->ids, &key);
        if (!memcmp(&key, &p->key, sizeof key) && kv_device_snapshot_has(t->device, &key))
            return true;
    }
    return false;
}

/* Whether blocks behind the clean ones are worth looking for. Behind a hit that is replayed from its beginning all are
 * clean. */
static bool may_have_run(const struct tier *t, const struct question *q)
{
    return !(q->in.flags & ACT_LOOKUP_CLEAN_ONLY) && clean_tokens(t, q) > q->replay &&
           (q->in.blocks - q->clean) * (uint32_t)t->e->layout.block_tokens > q->run_least && !has_snapshot(t, q);
}

/* It is known how many clean blocks there are: q->found here and p->n below. What came about behind them? */
static void find_run(struct act_self *self, struct tier *t, struct question *q, struct plan *p)
{
    q->clean = q->found + p->n;
    if (may_have_run(t, q)) {
        if (p->load) /* whoever reads may have found more */
            plan_join(t, q, p);
        while (!p->n && q->found < q->in.blocks && find_next(t, q))
            ;
        if (!p->n && q->found < q->in.blocks && may_ask_below(t, q))
            plan_join(t, q, p);
        q->below = p->n;
        if (!p->load && !q->dear && q->found + p->n < q->in.blocks && may_ask_below(t, q) &&
            !ask_below(self, t, q, q->found + p->n))
            return;
    }
    drop_useless(t, q, p);
    answer(self, t, q, p);
}

static void take_below(struct act_self *self, struct tier *t, struct act_msg *m)
{
    struct question **at = &t->questions;
    struct plan p = {0};
    while (*at && (*at)->id != (uint32_t)m->request)
        at = &(*at)->next;
    struct question *q = *at;
    if (!q)
        return;
    *at = q->next;
    bool run = q->clean < q->in.blocks; /* that was the second question */
    p.n = q->below;
    if (m->type == ACT_TIER_FOUND) {
        p.n += act_p_tier_found(m)->blocks;
        q->asked = act_p_tier_found(m)->asked;
        q->dear = act_p_tier_found(m)->dear > 0;
        t->below.recomputed += act_p_tier_found(m)->dear;
    }
    p.n = p.n < q->in.blocks - q->found ? p.n : q->in.blocks - q->found;
    /* Others may have published or begun to read the same blocks meanwhile. */
    while (p.n && find_next(t, q))
        p.n--;
    if (p.n) {
        uint32_t n = p.n;
        plan_join(t, q, &p);
        if (!p.load)
            p.n = n;
    }
    if (!run) {
        find_run(self, t, q, &p);
        return;
    }
    drop_useless(t, q, &p);
    answer(self, t, q, &p);
}

static void begin_question(struct act_self *self, struct tier *t, struct question *q)
{
    struct plan p = {0};
    q->clean = q->in.blocks;
    q->found = q->below = q->asked = 0;
    q->dear = false;
    while (q->found < q->in.blocks && find_next(t, q))
        ;
    if (may_ask_below(t, q) && q->found < q->in.blocks) {
        plan_join(t, q, &p);
        if (!p.load && !ask_below(self, t, q, q->found))
            return;
    }
    find_run(self, t, q, &p);
}

static void look_up(struct act_self *self, struct tier *t, struct act_msg *m)
{
    const struct act_p_kv_lookup *in = act_p_kv_lookup(m);
    struct act_promise promise = act_promise_of(m);
    size_t bytes;
    const struct act_key *chain = act_msg_tail(m, &bytes);
    bool fits = bytes >= ((size_t)in->blocks + 1) * sizeof *chain + (size_t)in->ids * sizeof(int32_t);
    struct question *q = fits ? calloc(1, sizeof *q + ((size_t)in->blocks + 1) * sizeof *q->block) : NULL;
    if (!q) {
        struct act_msg r = act_msg_make(ACT_KV_FOUND, ACT_NOBODY);
        act_p_kv_found(&r)->status = fits ? -ENOMEM : -EINVAL;
        act_reply(self, &promise, &r);
        return;
    }
    *q = (struct question){.promise = promise,
                           .asker = {.who = m->src, .request = m->request, .attempt = m->attempt, .number = in->number},
                           .chain = chain,
                           .ids = (const int32_t *)(const void *)(chain + in->blocks + 1),
                           .in = *in,
                           .since = act_now(self),
                           .token_ns = act_b_kv_lookup(m)->token_ns,
                           .replay = act_b_kv_lookup(m)->replay,
                           .run_least = act_b_kv_lookup(m)->run_least};
    q->buf = act_msg_take(m);
    begin_question(self, t, q);
}

/* When pages have come back, or it has taken too long: then with what is on the device, which needs no page. */
static void retry_short(struct act_self *self, struct tier *t)
{
    int64_t now = act_now(self);
    struct question **at = &t->short_of, *q;
    bool in_turn = true; /* one that came earlier waited below meanwhile: late ones may be anywhere */
    while ((q = *at)) {
        bool late = now - q->since > t->e->read_timeout_ns;
        in_turn &= late || (kv_device_available(t->device) >= q->want && below_may_read(&t->below, (uint32_t)q->want));
        if (!late && !in_turn) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        if (!*at)
            t->short_end = at;
        if (late)
            q->in.flags |= ACT_LOOKUP_HERE_ONLY;
        begin_question(self, t, q);
    }
}

/* The tiers below are silent: what is here has to do. What they say later finds no question. */
static void answer_late(struct act_self *self, struct tier *t)
{
    int64_t now = act_now(self), first = INT64_MAX;
    for (struct question **at = &t->questions, *q; (q = *at);) {
        if (now - q->since <= t->e->read_timeout_ns) {
            first = q->since < first ? q->since : first;
            at = &q->next;
            continue;
        }
        struct plan p = {0};
        *at = q->next;
        drop_useless(t, q, &p);
        answer(self, t, q, &p);
    }
    for (const struct question *q = t->short_of; q; q = q->next)
        first = q->since < first ? q->since : first;
    if (first != INT64_MAX)
        act_timer_at(self, &t->late, first + t->e->read_timeout_ns + 1, TAG_LATE);
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
static void take_returned(struct act_self *self, struct tier *t, struct act_msg *m)
{
    size_t bytes;
    if (act_msg_returned_type(m) == ACT_PAGES_GIVEN)
        take_back(t, m, act_p_pages_given(m)->pages);
    else if (act_msg_returned_type(m) == ACT_KV_FOUND && m->buf)
        release_blocks(t, act_msg_tail(m, &bytes), 0, act_p_kv_found(m)->blocks);
    else if (act_msg_returned_type(m) == ACT_LINK_FENCE) /* with the link every connection has ended */
        end_fence(t, m->request);
    else if (act_msg_returned_type(m) == ACT_TIER_FIND)
        take_below(self, t, m);
    else
        below_message(&t->below, m);
}

static void publish(struct tier *t, struct act_msg *m)
{
    size_t bytes;
    const struct act_tier_block *b = act_msg_tail(m, &bytes);
    for (uint32_t i = 0; i < act_p_kv_store(m)->blocks && (i + 1) * sizeof *b <= bytes; i++) {
        const struct kv_key *chain = (const struct kv_key *)&b[i].chain;
        struct kv_block_info info = {b[i].replayed ? KV_TAINTED : KV_CLEAN, b[i].hit};
        struct kv_key key;
        if (b[i].replayed)
            kv_key_behind(chain, (uint32_t)b[i].hit, b[i].replayed, &key);
        else
            kv_key_block(chain, &key);
        if (kv_device_publish(t->device, (int)b[i].page, &key, &info))
            below_keep(&t->below, &key);
    }
}

static int make_report(struct tier *t, struct act_addr to, struct act_msg *r)
{
    const uint64_t per = (uint64_t)t->e->layout.block_tokens;
    struct kv_device_stats s;
    kv_device_stat(t->device, &s);
    if (act_msg_new(ACT_KV_STATS, to, 0, r))
        return -ENOMEM;
    *act_b_kv_stats(r) = (struct act_b_kv_stats){.bytes = (uint64_t)(s.held + s.cached) * t->e->layout.block_bytes,
                                                 .capacity = (uint64_t)s.pages * t->e->layout.block_bytes,
                                                 .hits = t->hit_blocks,
                                                 .misses = t->asked_blocks - t->hit_blocks,
                                                 .hit_tokens = t->hit_blocks * per,
                                                 .asked_tokens = t->asked_blocks * per,
                                                 .evicted = s.evicted,
                                                 .expired = s.expired,
                                                 .bad = s.changed,
                                                 .refused = t->below.lost,
                                                 .recomputed = t->below.recomputed,
                                                 .held = (uint64_t)s.held,
                                                 .cached = (uint64_t)s.cached};
    return 0;
}

static int make_snapshot_report(struct tier *t, struct act_addr to, struct act_msg *r)
{
    struct kv_device_stats s;
    kv_device_stat(t->device, &s);
    if (act_msg_new(ACT_KV_STATS, to, 0, r))
        return -ENOMEM;
    act_p_kv_stats(r)->tier = ACT_TIER_SNAPSHOTS;
    *act_b_kv_stats(r) = (struct act_b_kv_stats){.bytes = s.snapshot_bytes,
                                                 .capacity = s.snapshot_limit,
                                                 .hits = s.snapshots_found,
                                                 .misses = s.snapshots_missed,
                                                 .hit_tokens = t->snapshot_hit_tokens,
                                                 .asked_tokens = t->snapshot_asked_tokens,
                                                 .stored = s.snapshots_stored,
                                                 .evicted = s.snapshots_evicted,
                                                 .expired = s.snapshots_expired,
                                                 .cached = (uint64_t)s.snapshots};
    return 0;
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
    if (make_snapshot_report(t, t->e->observer, &r) == 0 && act_send(self, &r))
        act_msg_drop(&r);
    act_figures_send(self, t->e->observer, ACT_FIGURES_BLOCKS, (const uint64_t *)kv_device_lives(t->device),
                     (int)(KV_LIVES * sizeof(struct kv_life_times) / sizeof(uint64_t)));
}

static int tier_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct tier *t = state;
    kv_device_clock(t->device, act_now(self));
    for (int i = 0; i < count; i++) {
        switch (m[i].type) {
        case ACT_PAGES_ASK:
            give_pages(self, t, &m[i]);
            break;
        case ACT_PAGES_BACK:
            take_back(t, &m[i], act_p_pages_back(&m[i])->pages);
            break;
        case ACT_PAGES_FENCED:
            take_fenced(self, t, &m[i]);
            break;
        case ACT_LINK_FENCE:
            end_fence(t, m[i].request);
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
        case ACT_TIMER:
            if (act_p_timer(&m[i])->tag == TAG_REPORT) /* every turn looks after the late ones */
                send_report(self, t);
            break;
        case ACT_UNDELIVERABLE:
            take_returned(self, t, &m[i]);
            break;
        case ACT_TIER_FOUND:
            take_below(self, t, &m[i]);
            break;
        case ACT_KV_WANT:
            below_want(&t->below, &m[i]);
            break;
        case ACT_TIER_ROWS:
        case ACT_TIER_DONE:
        case ACT_TIER_STORED:
        case ACT_TIER_REFUSED:
            below_message(&t->below, &m[i]);
            break;
        default:
            break;
        }
    }
    retry_short(self, t);
    answer_late(self, t);
    below_pump(&t->below);
    return 0;
}

static void tier_stop(struct act_self *self, void *state, int reason)
{
    (void)self;
    (void)reason;
    struct tier *t = state;
    struct question *waiting[] = {t->questions, t->short_of};
    for (int i = 0; i < 2; i++)
        for (struct question *q = waiting[i], *next; q; q = next) {
            next = q->next;
            release_blocks(t, q->block, 0, q->found);
            question_free(q);
        }
    while (t->fenced)
        end_fence(t, t->fenced->id);
    below_stop(&t->below);
    free(t->place);
}

const struct act_behaviour act_tier_device_behaviour = {
    .name = "tier-device",
    .state_size = sizeof(struct tier),
    .start = tier_start,
    .receive = tier_receive,
    .stop = tier_stop,
};
