#include "actors/kv_node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/figures.h"
#include "actors/link.h"
#include "actors/runtime/log.h"
#include "actors/tier_store.h"

_Static_assert(sizeof(struct act_key) == sizeof(struct kv_key), "keys travel as they are");

enum {
    TICK_NS = 100000000,
    QUEUE_MAX = 1024,
    FINDS_MAX = 4096,
    FENCE_PATIENCES = 10 /* puts that have not ended by then take their connection with them */
};

/* A question that is with the store. */
struct finding {
    struct finding *next;
    uint64_t id;
    struct act_promise promise;
};

/* A read. Its blocks have places in the pool from its beginning to its end. */
struct reading {
    struct reading *next;
    uint64_t id; /* 0: it waits for room in the pool */
    struct act_promise promise;
    struct act_addr reader;
    uint64_t request; /* of REMOTE_READ: with the reader it names this read */
    uint32_t load;
    int64_t since; /* when the reader was last heard of */
    int64_t came;
    int wanted; /* sources that a pass of the reader's waits for */
    bool held;  /* pieces of others go first */
    int n;
    int settled, ok[KV_SOURCES_MAX]; /* sources that the store has reported, and how much of each */
    int source, block;               /* what goes out next */
    int under_way;
    uint32_t window, slot_bytes, generation; /* window 0: bytes go in messages */
    uint64_t slot[ACT_REMOTE_SLOTS];         /* offsets there */
    bool slot_taken[ACT_REMOTE_SLOTS];
    bool read;  /* the store is done with the pool */
    int status; /* why not all blocks come; of the store, or of the reader */
    bool given_up;
    int64_t fence_at; /* ns: puts of a read that was given up have not ended by then */
    int place[ACT_REMOTE_READ_MAX];
    struct kv_key key[ACT_REMOTE_READ_MAX];
};

/* A piece on its way: being put into a slot, then (or at once) as a message at its reader. */
struct piece {
    struct piece *next;
    uint64_t id, reading;
    int slot;            /* -1: its bytes are in the message */
    bool putting;        /* not to be forgotten: somebody reads the pool */
    struct act_msg rows; /* what is said when the put is done */
};

/* Blocks that are with the store. */
struct keeping {
    struct keeping *next;
    uint64_t id;
    struct act_promise promise;
    struct act_buf *buf;
    size_t bytes;
    bool spoilt; /* a block whose sum did not fit, and what came behind it, were left out */
};

struct node {
    struct act_self *self;
    const struct act_kv_node_arg *arg;
    uint64_t layout, ids;
    struct finding *findings;
    int n_findings;
    struct reading *readings, *waiting, **waiting_end;
    int n_waiting;
    struct piece *pieces;
    struct keeping *keepings;
    size_t keeping_bytes;
    int *free_place, n_free;
    struct act_timer tick;
    uint64_t given_up;
    uint64_t finds, reads, stores, failed;
    int64_t reported; /* when */
    bool draining;
};

static uint8_t *bytes_of(const struct node *k, int place)
{
    return k->arg->buffer + (size_t)place * k->arg->layout.block_bytes;
}

/* 0, or why a question about n blocks of a layout is refused. */
static int refuse(const struct node *k, uint64_t layout, uint32_t n, uint32_t most)
{
    return k->draining ? -ESHUTDOWN : layout != k->layout || !n || n > most ? -EPROTO : 0;
}

/* ---- finding ---- */

static void answer_find(struct node *k, struct act_promise *p, uint32_t blocks, int status)
{
    struct act_msg r = act_msg_make(ACT_REMOTE_FOUND, ACT_NOBODY);
    k->failed += status < 0;
    *act_p_remote_found(&r) = (struct act_p_remote_found){.blocks = blocks, .status = status};
    act_reply(k->self, p, &r);
}

static int ask_store(struct node *k, const struct act_key *key, uint32_t n, uint64_t id)
{
    struct act_msg m;
    size_t bytes;
    int r = act_msg_new(ACT_TIER_FIND, *k->arg->store, (size_t)n * sizeof *key, &m);
    if (r)
        return r;
    memcpy(act_msg_tail(&m, &bytes), key, (size_t)n * sizeof *key);
    act_p_tier_find(&m)->blocks = n;
    m.request = id;
    r = act_request(k->self, &m);
    if (r)
        act_msg_drop(&m);
    return r;
}

static void take_find(struct node *k, struct act_msg *m)
{
    size_t bytes;
    const struct act_key *key = act_msg_tail(m, &bytes);
    uint32_t n = act_p_remote_find(m)->blocks;
    struct act_promise promise = act_promise_of(m);
    int r = refuse(k, act_b_remote_find(m)->layout, n, ACT_REMOTE_FIND_MAX);
    if (!r && bytes != (size_t)n * sizeof *key)
        r = -EPROTO;
    if (!r && k->n_findings == FINDS_MAX)
        r = -EAGAIN;
    struct finding *f = r ? NULL : calloc(1, sizeof *f);
    if (f)
        *f = (struct finding){.next = k->findings, .id = ++k->ids, .promise = promise};
    if (f && ask_store(k, key, n, f->id) == 0) {
        k->findings = f;
        k->n_findings++;
        return;
    }
    free(f);
    answer_find(k, &promise, 0, r ? r : -EAGAIN);
}

static void take_found(struct node *k, uint64_t id, uint32_t blocks)
{
    for (struct finding **at = &k->findings, *f; (f = *at); at = &f->next)
        if (f->id == id) {
            *at = f->next;
            k->n_findings--;
            answer_find(k, &f->promise, blocks, 0);
            free(f);
            return;
        }
}

/* ---- reading ---- */

static void answer_read(struct node *k, struct act_promise *p, uint32_t load, uint32_t blocks, int status)
{
    k->failed += status < 0;
    struct act_msg r = act_msg_make(ACT_REMOTE_DONE, ACT_NOBODY);
    *act_p_remote_done(&r) = (struct act_p_remote_done){.load = load, .blocks = blocks, .status = status};
    act_reply(k->self, p, &r);
}

static struct reading *reading_find(struct node *k, uint64_t id)
{
    struct reading *x = k->readings;
    while (x && x->id != id)
        x = x->next;
    return x;
}

static void start_waiting(struct node *k);

/* What goes out next of it goes before what others read ahead. */
static bool goes_first(const struct node *k, const struct reading *x)
{
    return x->source < x->wanted || act_now(k->self) - x->came >= KV_AGE_NS;
}

static bool has_to_wait(const struct node *k, const struct reading *x)
{
    if (goes_first(k, x))
        return false;
    for (const struct reading *y = k->readings; y; y = y->next)
        if (!y->given_up && goes_first(k, y) && (y->under_way || y->source < y->settled))
            return true;
    return false;
}

/* When neither the store nor a reader has anything of it in hand any more. */
static void end_if_over(struct node *k, struct reading *x)
{
    int sources = k->arg->layout.n_sources;
    if (!x->read || x->under_way || (x->source < sources && !x->given_up))
        return;
    struct reading **at = &k->readings;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    for (int i = 0; i < x->n; i++)
        k->free_place[k->n_free++] = x->place[i];
    int ok = x->given_up ? 0 : x->n;
    for (int s = 0; s < sources && !x->given_up; s++)
        ok = x->ok[s] < ok ? x->ok[s] : ok;
    answer_read(k, &x->promise, x->load, (uint32_t)ok, ok < x->n ? (x->status ? x->status : -EIO) : 0);
    free(x);
    start_waiting(k);
}

static void give_up(struct node *k, struct reading *x, int status)
{
    k->given_up += !x->given_up;
    x->given_up = true;
    x->fence_at = act_now(k->self) + FENCE_PATIENCES * k->arg->patience;
    if (x->status != -EREMOTEIO) /* the reader must know of that */
        x->status = status;
    end_if_over(k, x);
}

/* Writes the extents of a piece into its slot. The message waits for the end of that. */
static int put_piece(struct node *k, const struct reading *x, struct piece *p, int source, int first, int n)
{
    const struct kv_layout *l = &k->arg->layout;
    struct act_put_range range[ACT_REMOTE_READ_MAX];
    const struct act_put put = {.peer = x->reader.peer,
                                .class = TP_CLASS_KV,
                                .generation = x->generation,
                                .from_window = k->arg->window,
                                .to_window = x->window,
                                .request = p->id};
    for (int i = 0; i < n; i++)
        range[i] = (struct act_put_range){
            .from = (uint64_t)x->place[first + i] * l->block_bytes + l->offset[source],
            .to = x->slot[p->slot] + (uint64_t)i * l->bytes[source],
            .size = l->bytes[source],
        };
    return act_link_put(k->self, *k->arg->link, &put, range, n);
}

static int free_slot(const struct reading *x)
{
    int i = 0;
    while (i < ACT_REMOTE_SLOTS && x->slot_taken[i])
        i++;
    return i;
}

static int say_rows(struct node *k, struct piece *p)
{
    p->rows.request = p->id;
    int r = act_request(k->self, &p->rows);
    if (r)
        act_msg_drop(&p->rows);
    return r;
}

/* The next blocks of the source that is going out: as many as one piece takes; none when what is left failed. */
static int send_piece(struct node *k, struct reading *x)
{
    const struct kv_layout *l = &k->arg->layout;
    int s = x->source, room = x->window ? (int)x->slot_bytes : ACT_REMOTE_PIECE, most = room / (int)l->bytes[s],
        n = x->ok[s] - x->block;
    n = n < most ? n : most > 0 ? most : 1;
    bool put = x->window && n;
    struct piece *p = calloc(1, sizeof *p);
    size_t bytes;
    if (!p ||
        act_msg_new(ACT_REMOTE_ROWS, x->reader, (size_t)n * (sizeof(uint64_t) + (put ? 0 : l->bytes[s])), &p->rows)) {
        free(p);
        return -ENOMEM;
    }
    *p = (struct piece){
        .id = ++k->ids, .reading = x->id, .rows = p->rows, .putting = put, .slot = put ? free_slot(x) : -1};
    bool short_end = x->block + n == x->ok[s] && x->ok[s] < x->n;
    *act_p_remote_rows(&p->rows) = (struct act_p_remote_rows){.load = x->load,
                                                              .source = (uint16_t)s,
                                                              .first = (uint16_t)x->block,
                                                              .blocks = (uint16_t)n,
                                                              .slot = (uint16_t)(p->slot + 1),
                                                              .status = short_end ? (x->status ? x->status : -EIO) : 0};
    uint64_t *sum = act_msg_tail(&p->rows, &bytes);
    uint8_t *to = (uint8_t *)(sum + n);
    for (int i = 0; i < n; i++) {
        const uint8_t *from = bytes_of(k, x->place[x->block + i]) + l->offset[s];
        sum[i] = kv_extent_sum(&x->key[x->block + i], s, 0, from, l->bytes[s]);
        if (!put)
            memcpy(to + (size_t)i * l->bytes[s], from, l->bytes[s]);
    }
    int r = put ? put_piece(k, x, p, s, x->block, n) : say_rows(k, p);
    if (r) {
        act_msg_drop(&p->rows);
        free(p);
        return r;
    }
    if (put)
        x->slot_taken[p->slot] = true;
    p->next = k->pieces;
    k->pieces = p;
    x->under_way++;
    x->block += n;
    if (x->block == x->ok[s]) {
        x->source++;
        x->block = 0;
    }
    return 0;
}

static void send_on(struct node *k, struct reading *x)
{
    int r = 0;
    x->held = false;
    while (!r && !x->given_up && x->under_way < ACT_REMOTE_SLOTS && x->source < x->settled &&
           !(x->held = has_to_wait(k, x)))
        r = send_piece(k, x);
    if (r)
        give_up(k, x, r);
    else
        end_if_over(k, x);
}

/* Those that had to wait and have not any more. */
static void send_held(struct node *k)
{
    struct reading *x;
    do {
        for (x = k->readings; x && !(x->held && !has_to_wait(k, x)); x = x->next)
            ;
        if (x)
            send_on(k, x); /* it may be gone afterwards */
    } while (x);
}

static void settle(struct reading *x, int source, int ok)
{
    if (source != x->settled)
        return;
    x->ok[source] = ok < x->n ? ok : x->n;
    x->settled = source + 1;
}

static int begin(struct node *k, struct reading *x)
{
    struct act_msg m;
    size_t bytes;
    if (act_msg_new(ACT_TIER_READ, *k->arg->store, (size_t)x->n * sizeof(struct act_tier_place), &m))
        return -ENOMEM;
    struct act_tier_place *p = act_msg_tail(&m, &bytes);
    for (int i = 0; i < x->n; i++) {
        x->place[i] = k->free_place[--k->n_free];
        p[i] = (struct act_tier_place){.key = x->key[i], .address = (uint64_t)(uintptr_t)bytes_of(k, x->place[i])};
    }
    x->id = m.request = ++k->ids;
    *act_p_tier_read(&m) =
        (struct act_p_tier_read){.blocks = (uint32_t)x->n, .load = (uint32_t)x->id, .wanted = (uint32_t)x->wanted};
    if (act_request(k->self, &m) == 0) {
        x->since = act_now(k->self);
        x->next = k->readings;
        k->readings = x;
        return 0;
    }
    act_msg_drop(&m);
    for (int i = 0; i < x->n; i++)
        k->free_place[k->n_free++] = x->place[i];
    return -EAGAIN;
}

static struct reading *waiting_take(struct node *k, struct reading **at)
{
    struct reading *x = *at;
    *at = x->next;
    if (!*at)
        k->waiting_end = at;
    k->n_waiting--;
    return x;
}

static void refuse_reading(struct node *k, struct reading *x, int status)
{
    answer_read(k, &x->promise, x->load, 0, status);
    free(x);
}

/* Those that somebody waits for, then the others; oldest first, so that a large one is not starved by small ones. */
static void start_waiting(struct node *k)
{
    while (k->waiting) {
        struct reading **at = &k->waiting;
        while (*at && !goes_first(k, *at))
            at = &(*at)->next;
        at = *at ? at : &k->waiting;
        if ((*at)->n > k->n_free)
            return;
        struct reading *x = waiting_take(k, at);
        int r = begin(k, x);
        if (r)
            refuse_reading(k, x, r);
    }
}

static bool known(const struct node *k, const struct act_msg *m)
{
    for (const struct reading *x = k->readings; x; x = x->next)
        if (x->request == m->request && act_addr_equal(x->reader, m->src))
            return true;
    for (const struct reading *x = k->waiting; x; x = x->next)
        if (x->request == m->request && act_addr_equal(x->reader, m->src))
            return true;
    return false;
}

/* A slot takes an extent of every source at least, and this node can make puts. */
static bool window_fits(const struct node *k, const struct act_b_remote_read *b)
{
    size_t largest = 0;
    for (int s = 0; s < k->arg->layout.n_sources; s++)
        largest = k->arg->layout.bytes[s] > largest ? k->arg->layout.bytes[s] : largest;
    return !b->window || (b->slot_bytes >= largest && b->slot_bytes <= INT32_MAX && k->arg->window && k->arg->link &&
                          !act_addr_is_nobody(*k->arg->link));
}

static void take_read(struct node *k, struct act_msg *m)
{
    size_t bytes;
    const struct act_key *key = act_msg_tail(m, &bytes);
    const struct act_p_remote_read *in = act_p_remote_read(m);
    struct act_promise promise = act_promise_of(m);
    int r = refuse(k, act_b_remote_read(m)->layout, in->blocks, ACT_REMOTE_READ_MAX);
    if (!r && bytes != (size_t)in->blocks * sizeof *key)
        r = -EPROTO;
    if (!r && !window_fits(k, act_b_remote_read(m)))
        r = -EPROTO;
    if (!r && known(k, m)) /* a link delivered it twice */
        return;
    if (!r && k->n_waiting == QUEUE_MAX)
        r = -EAGAIN;
    struct reading *x = r ? NULL : calloc(1, sizeof *x);
    if (!x) {
        answer_read(k, &promise, in->load, 0, r ? r : -ENOMEM);
        return;
    }
    const struct act_b_remote_read *b = act_b_remote_read(m);
    *x = (struct reading){.promise = promise,
                          .window = b->window,
                          .slot_bytes = b->slot_bytes,
                          .generation = b->generation,
                          .slot = {b->slot_a, b->slot_b},
                          .reader = m->src,
                          .request = m->request,
                          .load = in->load,
                          .since = act_now(k->self),
                          .came = act_now(k->self),
                          .wanted = (int)(b->wanted < KV_SOURCES_MAX ? b->wanted : (uint32_t)KV_SOURCES_MAX),
                          .n = (int)in->blocks};
    memcpy(x->key, key, bytes);
    *k->waiting_end = x;
    k->waiting_end = &x->next;
    k->n_waiting++;
    start_waiting(k);
}

static void take_want(struct node *k, struct act_msg *m)
{
    const struct act_p_remote_want *in = act_p_remote_want(m);
    struct reading *lists[] = {k->readings, k->waiting};
    int sources = (int)(in->sources < KV_SOURCES_MAX ? in->sources : (uint32_t)KV_SOURCES_MAX);
    for (int i = 0; i < 2; i++)
        for (struct reading *x = lists[i]; x; x = x->next) {
            if (x->load != in->load || !act_addr_equal(x->reader, m->src) || sources <= x->wanted)
                continue;
            x->wanted = sources;
            if (!x->id || x->read)
                continue;
            struct act_msg on = act_msg_make(ACT_TIER_WANT, *k->arg->store);
            *act_p_tier_want(&on) = (struct act_p_tier_want){.load = (uint32_t)x->id, .sources = (uint32_t)sources};
            if (act_send(k->self, &on))
                act_msg_drop(&on); /* it is read in its turn */
        }
    start_waiting(k);
}

/* Of the store. */
static void take_rows(struct node *k, struct act_msg *m)
{
    struct reading *x = reading_find(k, act_p_tier_rows(m)->load);
    if (!x)
        return;
    settle(x, (int)act_p_tier_rows(m)->source, (int)act_p_tier_rows(m)->blocks);
    send_on(k, x);
}

static void take_read_end(struct node *k, uint64_t id, int blocks, int status)
{
    struct reading *x = reading_find(k, id);
    if (!x)
        return;
    x->read = true;
    x->status = x->given_up ? x->status : status;
    for (int s = x->settled; s < k->arg->layout.n_sources; s++)
        settle(x, s, blocks);
    send_on(k, x);
}

/* A piece has come to its end. status: the reader wants no more. */
static void take_taken(struct node *k, uint64_t id, int status)
{
    struct piece **at = &k->pieces, *p;
    while ((p = *at) && p->id != id)
        at = &p->next;
    if (!p)
        return;
    struct reading *x = reading_find(k, p->reading);
    *at = p->next;
    if (x && p->slot >= 0)
        x->slot_taken[p->slot] = false;
    if (p->putting) /* it did not come so far as to be said */
        act_msg_drop(&p->rows);
    free(p);
    if (!x)
        return;
    x->under_way--;
    x->since = act_now(k->self);
    if (status)
        give_up(k, x, status);
    else
        send_on(k, x);
}

/* The rows are in their slot: now they may be told of. Or it is not known what is there. */
static void take_put(struct node *k, uint64_t id, int status)
{
    struct piece *p = k->pieces;
    while (p && p->id != id)
        p = p->next;
    if (!p || !p->putting)
        return;
    const struct reading *x = reading_find(k, p->reading);
    if (!status && x && !x->given_up) {
        p->putting = false;
        status = say_rows(k, p);
        if (!status)
            return;
    } else if (status) {
        status = -EREMOTEIO;
    } else {
        status = -ECANCELED;
    }
    take_taken(k, id, status);
}

/* The reader has lost interest. */
static void take_cancel(struct node *k, const struct act_msg *m)
{
    for (struct reading *x = k->readings; x; x = x->next)
        if (x->request == m->request && act_addr_equal(x->reader, m->src)) {
            give_up(k, x, -ECANCELED);
            return;
        }
    for (struct reading **at = &k->waiting, *x; (x = *at); at = &x->next)
        if (x->request == m->request && act_addr_equal(x->reader, m->src)) {
            refuse_reading(k, waiting_take(k, at), -ECANCELED);
            return;
        }
}

/* ---- storing ---- */

static void answer_store(struct node *k, struct act_promise *p, uint32_t blocks, int status)
{
    k->failed += status < 0;
    struct act_msg r = act_msg_make(ACT_REMOTE_STORED, ACT_NOBODY);
    *act_p_remote_stored(&r) = (struct act_p_remote_stored){.blocks = blocks, .status = status};
    act_reply(k->self, p, &r);
}

/* Where the parts of the tail of REMOTE_STORE are; false: it is not as long as it says. */
static bool parts(const struct kv_layout *l, const uint8_t *tail, size_t bytes, uint32_t n,
                  const struct act_remote_block **block, const uint64_t **sum, const uint8_t **rows)
{
    *block = (const struct act_remote_block *)(const void *)tail;
    *sum = (const uint64_t *)(const void *)(tail + n * sizeof **block);
    *rows = tail + n * sizeof **block + (size_t)n * (size_t)l->n_sources * sizeof **sum;
    return bytes == (size_t)(*rows - tail) + (size_t)n * l->block_bytes;
}

static bool whole(const struct kv_layout *l, const struct act_remote_block *b, const uint64_t *sum, const uint8_t *rows)
{
    for (int s = 0; s < l->n_sources; s++)
        if (kv_extent_sum((const struct kv_key *)&b->key, s, 0, rows + l->offset[s], l->bytes[s]) != sum[s])
            return false;
    return true;
}

/* Hands the blocks up to the first one whose sum does not fit to the store, which reads them where they are: the answer
 * counts from the first one on. */
static int hand_down(struct node *k, const struct act_msg *in, uint32_t n, uint64_t id, bool *spoilt)
{
    const struct kv_layout *l = &k->arg->layout;
    const struct act_remote_block *block;
    const uint64_t *sum;
    const uint8_t *rows;
    struct act_msg m;
    size_t bytes;
    uint32_t good = 0;
    const uint8_t *tail = act_msg_tail(in, &bytes);
    if (!parts(l, tail, bytes, n, &block, &sum, &rows))
        return -EPROTO;
    if (act_msg_new(ACT_TIER_STORE, *k->arg->store, n * sizeof(struct act_tier_place), &m))
        return -ENOMEM;
    struct act_tier_place *p = act_msg_tail(&m, &bytes);
    for (uint32_t i = 0; i < n; i++, rows += l->block_bytes, sum += l->n_sources) {
        if (block[i].taint > KV_TAINTED || !whole(l, &block[i], sum, rows))
            break;
        p[good] =
            (struct act_tier_place){.address = (uint64_t)(uintptr_t)rows, .taint = block[i].taint, .hit = block[i].hit};
        memcpy(&p[good++].key, &block[i].key, sizeof p->key);
    }
    act_p_tier_store(&m)->blocks = good;
    *spoilt = good < n;
    m.request = id;
    int r = good ? act_request(k->self, &m) : -EBADMSG;
    if (r)
        act_msg_drop(&m);
    return r;
}

static void take_store(struct node *k, struct act_msg *m)
{
    uint32_t n = act_p_remote_store(m)->blocks;
    struct act_promise promise = act_promise_of(m);
    size_t bytes = m->buf->size;
    int r = refuse(k, act_b_remote_store(m)->layout, n, ACT_REMOTE_STORE_MAX);
    if (!r && k->keeping_bytes && k->keeping_bytes + bytes > k->arg->store_bytes)
        r = -EAGAIN;
    bool spoilt = false;
    struct keeping *x = r ? NULL : calloc(1, sizeof *x);
    if (!r)
        r = x ? hand_down(k, m, n, ++k->ids, &spoilt) : -ENOMEM;
    if (r) {
        free(x);
        answer_store(k, &promise, 0, r);
        return;
    }
    *x = (struct keeping){.next = k->keepings,
                          .id = k->ids,
                          .promise = promise,
                          .buf = act_msg_take(m),
                          .bytes = bytes,
                          .spoilt = spoilt};
    k->keepings = x;
    k->keeping_bytes += bytes;
}

static void take_stored(struct node *k, uint64_t id, uint32_t blocks, int status)
{
    for (struct keeping **at = &k->keepings, *x; (x = *at); at = &x->next)
        if (x->id == id) {
            *at = x->next;
            k->keeping_bytes -= x->bytes;
            answer_store(k, &x->promise, blocks, !status && x->spoilt ? -EBADMSG : status);
            act_buf_free(x->buf);
            free(x);
            return;
        }
}

/* ---- time, ends ---- */

static void report(struct node *k)
{
    const uint64_t v[ACT_KV_NODE_FIGURES] = {
        [ACT_KV_NODE_FINDS] = k->finds,          [ACT_KV_NODE_READS] = k->reads,
        [ACT_KV_NODE_STORES] = k->stores,        [ACT_KV_NODE_FAILED] = k->failed,
        [ACT_KV_NODE_GIVEN_UP] = k->given_up,    [ACT_KV_NODE_WAITING] = (uint64_t)k->n_waiting,
        [ACT_KV_NODE_KEEPING] = k->keeping_bytes};
    if (!k->arg->observer || act_now(k->self) - k->reported < ACT_FIGURES_EVERY_NS)
        return;
    k->reported = act_now(k->self);
    act_figures_send(k->self, *k->arg->observer, ACT_FIGURES_KV_NODE, v, ACT_KV_NODE_FIGURES);
}

/* A put whose end never comes: the connection that it goes over is ended, which ends it too. */
static void fence(struct node *k, struct reading *x)
{
    struct act_msg m = act_msg_make(ACT_LINK_FENCE, *k->arg->link);
    *act_p_link_fence(&m) =
        (struct act_p_link_fence){.peer = x->reader.peer, .class = TP_CLASS_KV, .generation = x->generation};
    x->fence_at = act_now(k->self) + FENCE_PATIENCES * k->arg->patience;
    if (act_request(k->self, &m))
        act_msg_drop(&m); /* once more then */
}

/* A reader that takes nothing for so long is given up, and so is a read that found no room. What is at the reader
 * counts as taken: the buffers were copied. */
static void on_tick(struct node *k)
{
    int64_t limit = act_now(k->self) - k->arg->patience;
    for (bool again = true; again;) {
        again = false;
        for (struct reading *x = k->readings; x && !again; x = x->next)
            if (x->under_way && x->since < limit) {
                uint64_t id = x->id;
                for (struct piece **at = &k->pieces, *p; (p = *at);) {
                    if (p->reading != id || p->putting) {
                        at = &p->next;
                        continue;
                    }
                    *at = p->next;
                    free(p);
                    x->under_way--;
                }
                x->since = INT64_MAX; /* puts end by themselves, or with their connection */
                give_up(k, x, -ETIMEDOUT);
                again = true;
            }
    }
    for (struct reading *x = k->readings; x; x = x->next)
        if (x->under_way && x->since == INT64_MAX && x->fence_at <= act_now(k->self))
            fence(k, x);
    while (k->waiting && k->waiting->since < limit)
        refuse_reading(k, waiting_take(k, &k->waiting), -EAGAIN);
    act_timer_after(k->self, &k->tick, TICK_NS, 0);
    report(k);
}

/* The store is gone, or a reader. */
static void take_returned(struct node *k, struct act_msg *m)
{
    switch (act_msg_returned_type(m)) {
    case ACT_TIER_FIND:
        take_found(k, m->request, 0);
        break;
    case ACT_TIER_READ:
        take_read_end(k, m->request, 0, -EIO);
        break;
    case ACT_TIER_STORE:
        take_stored(k, m->request, 0, -EIO);
        break;
    case ACT_REMOTE_ROWS:
        take_taken(k, m->request, -ECONNRESET);
        break;
    case ACT_LINK_PUT:
        take_put(k, m->request, -EREMOTEIO);
        break;
    default:
        break;
    }
}

static void take_drain(struct node *k)
{
    if (!k->draining)
        act_log_event(k->arg->log, ACT_LOG_INFO, "kv-node", 0, "kv_draining", "readings=%d", k->readings != NULL);
    k->draining = true;
    while (k->waiting)
        refuse_reading(k, waiting_take(k, &k->waiting), -ESHUTDOWN);
}

static void take(struct node *k, struct act_msg *m)
{
    switch (m->type) {
    case ACT_REMOTE_FIND:
        k->finds++;
        take_find(k, m);
        break;
    case ACT_REMOTE_READ:
        k->reads++;
        take_read(k, m);
        break;
    case ACT_REMOTE_WANT:
        take_want(k, m);
        break;
    case ACT_REMOTE_STORE:
        k->stores++;
        take_store(k, m);
        break;
    case ACT_REMOTE_TAKEN:
        take_taken(k, m->request, act_p_remote_taken(m)->status);
        break;
    case ACT_TIER_FOUND:
        take_found(k, m->request, act_p_tier_found(m)->blocks);
        break;
    case ACT_TIER_ROWS:
        take_rows(k, m);
        break;
    case ACT_TIER_DONE:
        take_read_end(k, m->request, (int)act_p_tier_done(m)->blocks, act_p_tier_done(m)->status);
        break;
    case ACT_TIER_STORED:
        take_stored(k, m->request, act_p_tier_stored(m)->blocks, act_p_tier_stored(m)->status);
        break;
    case ACT_LINK_PUT_DONE:
        take_put(k, m->request, act_p_link_put_done(m)->status);
        break;
    case ACT_CANCEL:
        take_cancel(k, m);
        break;
    case ACT_TIMER:
        on_tick(k);
        break;
    case ACT_DRAIN:
        take_drain(k);
        break;
    case ACT_UNDELIVERABLE:
        take_returned(k, m);
        break;
    default:
        break;
    }
}

static int length(const struct reading *x)
{
    int n = 0;
    for (; x; x = x->next)
        n++;
    return n;
}

static void tell_stats(const struct node *k)
{
    int keepings = 0;
    for (const struct keeping *x = k->keepings; x; x = x->next)
        keepings++;
    *k->arg->stats = (struct act_kv_node_stats){.findings = k->n_findings,
                                                .readings = length(k->readings),
                                                .waiting = k->n_waiting,
                                                .keepings = keepings,
                                                .free = k->n_free,
                                                .keeping_bytes = k->keeping_bytes,
                                                .given_up = k->given_up};
}

static int node_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct node *k = state;
    for (int i = 0; i < count; i++)
        take(k, &m[i]);
    send_held(k);
    act_working(self, k->findings || k->readings || k->keepings);
    if (count)
        act_progress(self);
    if (k->arg->stats)
        tell_stats(k);
    return 0;
}

static int node_start(struct act_self *self, void *state, const void *arg)
{
    struct node *k = state;
    k->self = self;
    k->arg = arg;
    k->layout = kv_layout_id(&k->arg->layout);
    k->waiting_end = &k->waiting;
    k->free_place = malloc((size_t)k->arg->buffers * sizeof *k->free_place);
    if (!k->free_place)
        return -ENOMEM;
    while (k->n_free < k->arg->buffers) {
        k->free_place[k->n_free] = k->n_free;
        k->n_free++;
    }
    act_timer_after(self, &k->tick, TICK_NS, 0);
    return 0;
}

#define FREE_LIST(type, head)                                                                                          \
    for (type *x_ = (head), *next_; x_; x_ = next_) {                                                                  \
        next_ = x_->next;                                                                                              \
        free(x_);                                                                                                      \
    }

static void node_stop(struct act_self *self, void *state, int reason)
{
    struct node *k = state;
    (void)self;
    (void)reason;
    FREE_LIST(struct finding, k->findings)
    FREE_LIST(struct reading, k->readings)
    FREE_LIST(struct reading, k->waiting)
    for (struct piece *p = k->pieces; p; p = p->next)
        if (p->putting)
            act_msg_drop(&p->rows);
    FREE_LIST(struct piece, k->pieces)
    for (struct keeping *x = k->keepings; x; x = x->next)
        act_buf_free(x->buf);
    FREE_LIST(struct keeping, k->keepings)
    free(k->free_place);
}

const struct act_behaviour act_kv_node_behaviour = {
    .name = "kv-node",
    .state_size = sizeof(struct node),
    .start = node_start,
    .receive = node_receive,
    .stop = node_stop,
};
