#include "actors/tier_below.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/tier_store.h"

/* Blocks lent to the store below until it answers. */
struct below_run {
    struct below_run *next;
    uint32_t id;
    int n;
    int page[BELOW_RUN];
};

int below_start(struct below *b, struct act_self *self, const struct act_engine *e)
{
    b->self = self;
    b->e = e;
    if (act_addr_is_nobody(e->store))
        return 0;
    b->queue = calloc(BELOW_QUEUE, sizeof *b->queue);
    b->refused = calloc(BELOW_REFUSED, sizeof *b->refused);
    return b->queue && b->refused ? 0 : -ENOMEM;
}

static void load_free(struct below_load *l)
{
    while (l->waiters) {
        struct below_waiter *w = l->waiters;
        l->waiters = w->next;
        free(w);
    }
    free(l->key);
    free(l->page);
    free(l);
}

void below_stop(struct below *b)
{
    while (b->loads) {
        struct below_load *l = b->loads;
        b->loads = l->next;
        load_free(l);
    }
    while (b->runs) {
        struct below_run *r = b->runs;
        b->runs = r->next;
        free(r);
    }
    free(b->queue);
    free(b->refused);
}

static uint64_t address_of(const struct below *b, uint32_t page)
{
    return (uint64_t)(uintptr_t)kv_device_bytes(b->e->device, (int)page);
}

/* ---- reading ---- */

static void report(struct below *b, const struct below_load *l, const struct below_waiter *w, uint32_t source)
{
    uint32_t ok = l->ok[source] > w->offset ? l->ok[source] - w->offset : 0;
    struct act_msg m = act_msg_make(ACT_KV_ROWS, w->who);
    m.request = w->request;
    m.attempt = w->attempt;
    ok = ok < w->n ? ok : w->n;
    *act_p_kv_rows(&m) = (struct act_p_kv_rows){.first = w->offset,
                                                .blocks = ok,
                                                .source = (uint16_t)source,
                                                .number = w->number,
                                                .status = ok < w->n ? -EIO : 0};
    if (act_send(b->self, &m))
        act_msg_drop(&m); /* its deadline will tell */
}

static void settle(struct below *b, struct below_load *l, uint32_t source, uint32_t ok)
{
    l->ok[source] = ok;
    l->settled = source + 1;
    for (struct below_waiter *w = l->waiters; w; w = w->next)
        report(b, l, w, source);
}

static struct below_load *load_find(struct below *b, uint32_t id)
{
    struct below_load *l = b->loads;
    while (l && l->id != id)
        l = l->next;
    return l;
}

struct below_load *below_loading(struct below *b, const struct act_key *key, uint32_t *at)
{
    int64_t now = act_now(b->self);
    for (struct below_load *l = b->loads; l; l = l->next)
        for (uint32_t i = 0; i < l->n && now - l->began <= b->e->read_timeout_ns; i++)
            if (!memcmp(&l->key[i], key, sizeof *key)) {
                *at = i;
                return l;
            }
    return NULL;
}

bool below_may_read(const struct below *b, uint32_t n)
{
    struct kv_device_stats s;
    uint64_t all = n;
    for (const struct below_load *l = b->loads; l; l = l->next)
        all += l->n;
    kv_device_stat(b->e->device, &s);
    return all == n || 2 * all <= (uint64_t)s.pages;
}

int below_join(struct below *b, struct below_load *l, const struct below_waiter *asker)
{
    struct below_waiter *w = malloc(sizeof *w);
    if (!w)
        return -ENOMEM;
    *w = *asker;
    w->next = l->waiters;
    l->waiters = w;
    for (uint32_t s = 0; s < l->settled; s++)
        report(b, l, w, s);
    return 0;
}

int below_read(struct below *b, const struct act_key *key, const uint32_t *page, uint32_t n, uint32_t clean,
               int32_t hit, const struct below_waiter *asker)
{
    struct below_load *l = calloc(1, sizeof *l);
    struct act_msg m;
    size_t bytes;
    if (l) {
        *l = (struct below_load){.id = ++b->next_load, .n = n, .clean = clean, .hit = hit, .began = act_now(b->self)};
        l->key = malloc((size_t)n * sizeof *l->key);
        l->page = malloc((size_t)n * sizeof *l->page);
    }
    if (!l || !l->key || !l->page || below_join(b, l, asker) ||
        act_msg_new(ACT_TIER_READ, b->e->store, (size_t)n * sizeof(struct act_tier_place), &m)) {
        if (l)
            load_free(l);
        return -ENOMEM;
    }
    struct act_tier_place *p = act_msg_tail(&m, &bytes);
    for (uint32_t i = 0; i < n; i++) {
        l->key[i] = key[i];
        l->page[i] = page[i];
        p[i] = (struct act_tier_place){.address = address_of(b, page[i])};
        memcpy(&p[i].key, &key[i], sizeof p[i].key);
    }
    *act_p_tier_read(&m) = (struct act_p_tier_read){.blocks = n, .load = l->id};
    m.request = l->id;
    if (act_request(b->self, &m)) {
        act_msg_drop(&m);
        load_free(l);
        return -EAGAIN;
    }
    for (uint32_t i = 0; i < n; i++)
        kv_device_hold(b->e->device, (int)page[i]);
    l->next = b->loads;
    b->loads = l;
    return 0;
}

static bool waits(const struct below_load *l, struct act_msg *m)
{
    const struct below_waiter *w = l->waiters;
    while (w && !(w->request == m->request && w->attempt == m->attempt && w->number == act_p_kv_want(m)->number &&
                  act_addr_equal(w->who, m->src)))
        w = w->next;
    return w != NULL;
}

void below_want(struct below *b, struct act_msg *m)
{
    for (struct below_load *l = b->loads; l; l = l->next) {
        struct act_msg on = act_msg_make(ACT_TIER_WANT, b->e->store);
        if (act_p_kv_want(m)->sources <= l->wanted || !waits(l, m))
            continue;
        l->wanted = act_p_kv_want(m)->sources;
        *act_p_tier_want(&on) = (struct act_p_tier_want){.load = l->id, .sources = l->wanted};
        if (act_send(b->self, &on))
            act_msg_drop(&on); /* it is read in its turn */
    }
}

/* Whole blocks become findable here; the load lets go of all pages. */
static void load_end(struct below *b, struct below_load *l, uint32_t whole)
{
    struct below_load **at = &b->loads;
    for (uint32_t s = l->settled; s < (uint32_t)b->e->store_layout.n_sources; s++)
        settle(b, l, s, whole);
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    for (uint32_t i = 0; i < l->n; i++) {
        struct kv_block_info info = {i < l->clean ? KV_CLEAN : KV_TAINTED, i < l->clean ? 0 : l->hit};
        struct kv_key key;
        memcpy(&key, &l->key[i], sizeof key);
        if (i < whole && kv_device_publish(b->e->device, (int)l->page[i], &key, &info))
            below_keep(b, &key); /* the tiers above the one it came from */
    }
    for (uint32_t i = l->n; i--;) /* the beginning of a prefix stays the longest */
        kv_device_release(b->e->device, (int)l->page[i]);
    load_free(l);
}

/* ---- keeping ---- */

static const struct kv_key no_key;

static struct kv_key *refused_at(struct below *b, const struct kv_key *key)
{
    uint32_t v;
    memcpy(&v, key->b, sizeof v);
    return &b->refused[v % BELOW_REFUSED];
}

/* One replaces another whose place it has: that is offered when it is computed or read again. */
static void note_refused(struct below *b, const struct kv_key *key)
{
    struct kv_key *at = refused_at(b, key);
    b->n_refused += !memcmp(at, &no_key, sizeof no_key);
    *at = *key;
}

void below_found(struct below *b, const struct kv_key *key)
{
    if (!b->n_refused || memcmp(refused_at(b, key), key, sizeof *key))
        return;
    *refused_at(b, key) = no_key;
    b->n_refused--;
    below_keep(b, key);
}

void below_keep(struct below *b, const struct kv_key *key)
{
    if (!b->queue)
        return;
    if (b->queued == BELOW_QUEUE) {
        b->lost++;
        note_refused(b, key);
        return;
    }
    b->queue[(b->queue_at + b->queued++) % BELOW_QUEUE] = *key;
}

static int limit(const struct below *b)
{
    struct kv_device_stats s;
    kv_device_stat(b->e->device, &s);
    int most = s.pages / 4 < b->e->store_pages ? s.pages / 4 : b->e->store_pages;
    return most > 0 ? most : 1;
}

static bool offer(struct below *b, int most)
{
    struct below_run *r = calloc(1, sizeof *r);
    struct act_tier_place place[BELOW_RUN];
    struct act_msg m;
    size_t bytes;
    if (!r)
        return false;
    r->id = ++b->next_store;
    while (b->queued && r->n < most && r->n < BELOW_RUN) {
        const struct kv_key *key = &b->queue[b->queue_at];
        struct kv_block_info info;
        int page = kv_device_find(b->e->device, key, &info);
        if (page >= 0) {
            place[r->n] = (struct act_tier_place){
                .key = *key, .address = address_of(b, (uint32_t)page), .taint = (uint32_t)info.taint, .hit = info.hit};
            r->page[r->n++] = page;
        } else {
            b->lost++;
        }
        b->queue_at = (b->queue_at + 1) % BELOW_QUEUE;
        b->queued--;
    }
    int status = r->n ? act_msg_new(ACT_TIER_STORE, b->e->store, (size_t)r->n * sizeof *place, &m) : -ENODATA;
    if (!status) {
        memcpy(act_msg_tail(&m, &bytes), place, (size_t)r->n * sizeof *place);
        act_p_tier_store(&m)->blocks = (uint32_t)r->n;
        m.request = r->id;
        status = act_request(b->self, &m);
        if (status)
            act_msg_drop(&m);
    }
    if (status) {
        for (int i = 0; i < r->n; i++)
            kv_device_release(b->e->device, r->page[i]);
        b->lost += (uint64_t)r->n;
        free(r);
        return status == -ENODATA && b->queued;
    }
    b->pinned += r->n;
    r->next = b->runs;
    b->runs = r;
    return true;
}

void below_pump(struct below *b)
{
    if (!b->queue)
        return;
    int most = limit(b);
    while (b->queued && b->pinned < most && offer(b, most - b->pinned))
        ;
}

static void run_end(struct below *b, uint32_t id)
{
    struct below_run **at = &b->runs;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    struct below_run *r = *at;
    if (!r)
        return;
    *at = r->next;
    for (int i = r->n; i--;)
        kv_device_release(b->e->device, r->page[i]);
    b->pinned -= r->n;
    free(r);
}

static void take_refused(struct below *b, struct act_msg *m)
{
    size_t bytes;
    const struct kv_key *key = act_msg_tail(m, &bytes);
    for (uint32_t i = 0; i < act_p_tier_refused(m)->blocks && (i + 1) * sizeof *key <= bytes; i++)
        note_refused(b, &key[i]);
}

void below_message(struct below *b, struct act_msg *m)
{
    enum act_type type = m->type == ACT_UNDELIVERABLE ? act_msg_returned_type(m) : (enum act_type)m->type;
    struct below_load *l;
    switch (type) {
    case ACT_TIER_ROWS:
        l = load_find(b, act_p_tier_rows(m)->load);
        if (l && l->settled == act_p_tier_rows(m)->source)
            settle(b, l, l->settled, act_p_tier_rows(m)->blocks);
        break;
    case ACT_TIER_DONE:
    case ACT_TIER_READ: /* came back: nothing was read */
        l = load_find(b, (uint32_t)m->request);
        if (l)
            load_end(b, l, type == ACT_TIER_DONE ? act_p_tier_done(m)->blocks : 0);
        break;
    case ACT_TIER_REFUSED:
        take_refused(b, m);
        break;
    case ACT_TIER_STORED:
    case ACT_TIER_STORE:
        run_end(b, (uint32_t)m->request);
        break;
    default:
        break;
    }
}
