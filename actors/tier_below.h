/* What the device tier's actor has under way with the tiers below it (actors/tier_store.h): reads into its pages, and
 * blocks that are being kept there. Part of that actor; nobody else calls this. */
#ifndef WEFT_ACTORS_TIER_BELOW_H
#define WEFT_ACTORS_TIER_BELOW_H

#include "actors/engine.h"
#include "actors/tier_device.h"

enum { BELOW_RUN = 16, BELOW_QUEUE = 8192, BELOW_REFUSED = 4096 };

/* Who waits for blocks of a load: its blocks offset .. offset + n - 1. */
struct below_waiter {
    struct below_waiter *next;
    struct act_addr who;
    uint64_t request;
    uint16_t attempt, number; /* number: of its lookup */
    uint32_t offset, n;
};

struct below_load {
    struct below_load *next;
    uint32_t id;
    uint32_t n, settled; /* blocks; sources reported so far */
    uint32_t wanted;     /* sources that somebody waits for */
    int64_t began;       /* ns */
    uint32_t ok[KV_SOURCES_MAX];
    struct below_waiter *waiters;
    struct act_key *key; /* [n] of the blocks */
    uint32_t clean;      /* so many of them, from the first on; the others came about behind a hit of `hit` tokens */
    int32_t hit;
    uint32_t *page; /* [n], each held once by the load: nobody else gets them while bytes may arrive */
};

struct below {
    struct act_self *self;
    const struct act_engine *e;
    struct below_load *loads;
    uint32_t next_load, next_store;
    struct kv_key *queue; /* [BELOW_QUEUE] published and not yet offered below */
    int queue_at, queued;
    struct below_run *runs;
    int pinned;
    struct kv_key *refused; /* [BELOW_REFUSED], by hash: blocks that some tier below has not kept; zero: none */
    int n_refused;
    uint64_t lost;       /* blocks that were not offered below: too many at a time, or evicted before their turn */
    uint64_t recomputed; /* blocks below that were cheaper to compute than to read */
};

int below_start(struct below *b, struct act_self *self, const struct act_engine *e);
void below_stop(struct below *b);

/* Reads n blocks into pages [n], which the caller has taken for the asker. Those from `clean` on came about behind a
 * replayed hit of `hit` tokens. -ENOMEM, -EAGAIN: nothing was begun. */
int below_read(struct below *b, const struct act_key *key, const uint32_t *page, uint32_t n, uint32_t clean,
               int32_t hit, const struct below_waiter *asker);
/* The load that is bringing this block in time, and which of its blocks it is; NULL: none. */
struct below_load *below_loading(struct below *b, const struct act_key *key, uint32_t *at);
/* Whether n more pages may be read into. A tier that hangs keeps what it was given to read into, so that reads may have
 * half of the pages, or one of them as many as it needs. */
bool below_may_read(const struct below *b, uint32_t n);
/* One more waits for blocks of a load, whose pages it holds; what is settled already is reported at once. -ENOMEM. */
int below_join(struct below *b, struct below_load *l, const struct below_waiter *asker);
/* A pass of the asker waits for so many sources of what this lookup of its request brings. */
void below_want(struct below *b, struct act_msg *m);
/* A block was published: it shall be kept below too. */
void below_keep(struct below *b, const struct kv_key *key);
/* A block was found on the device: it is offered once more if a tier has refused it. In the order of a prefix. */
void below_found(struct below *b, const struct kv_key *key);
/* Offers what is queued, as far as the limit allows. */
void below_pump(struct below *b);
/* TIER_ROWS, TIER_DONE, TIER_STORED, TIER_REFUSED, and TIER_READ, TIER_STORE that came back. */
void below_message(struct below *b, struct act_msg *m);

#endif
