/* What the parts of the Landing actor share; its own worker alone calls them. */
#ifndef WEFT_ACTORS_LANDING_IMPL_H
#define WEFT_ACTORS_LANDING_IMPL_H

#include "actors/landing.h"
#include "actors/recipe.h"
#include "actors/router.h"

enum { LAND_TAG_RETRY = 2 };

struct land_slot {
    struct act_ticket ticket;
    uint64_t request;
    uint16_t attempt;
    struct act_addr writer, requester;
    struct act_promise promise; /* of RESERVE, until it is answered */
    struct act_buf *buf;        /* of RESERVE */
    struct act_recipe recipe;
    int max_new;
    int decode;     /* whose place it has or asked for */
    uint32_t place; /* there */
    bool placed, asked_held, asked_pages, later;
    uint32_t *pages; /* [blocks of the prompt] */
    int n_pages;
    int held;       /* the first so many of them are of this process's own history: nobody writes to them */
    uint32_t link;  /* the connection that the writer's puts use; 0: it is of this process, or has no ticket yet */
    bool revoked;   /* its pages are needed by what runs; the writer knows, or the requester will */
    uint64_t order; /* of questions: the highest is the youngest */
    struct mdl_seq *seq;
    struct act_buf *ready;
    struct act_p_kv_ready announced;
};

/* A sequence that Decode has: whom to tell when it ends. */
struct land_handed {
    uint64_t request;
    uint16_t attempt;
    struct act_addr requester;
};

struct land_decoder {
    struct act_addr addr;
    struct act_b_load load;
    uint32_t given;             /* places since that report */
    struct land_handed *handed; /* [limits.streams], by place */
};

struct landing {
    struct act_landing_stats own, *stats;
    struct act_self *self;
    const struct act_landing_arg *arg;
    const struct act_engine *e;
    struct act_addr replay;
    struct land_slot *slot;
    int n_slots;
    struct land_decoder decode[ACT_INSTANCES_MAX];
    struct act_timer lease, retry, load;
    uint64_t order;
    int64_t grants_after;         /* ns: running sequences lack pages until then */
    uint32_t link[ACT_PEERS_MAX]; /* connections of class kv, by node; 0: none */
    struct act_routers routers;   /* of other nodes */
    uint32_t load_sequence;
    bool draining; /* Routers of other nodes are told; the own one finishes what its gateway has taken */
    struct cfg_error err;
};

/* What cannot be sent is dropped: deadlines do without it. */
static inline void land_send(struct landing *l, struct act_msg *m)
{
    if (act_send(l->self, m))
        act_msg_drop(m);
}

static inline bool land_is_moved(const struct land_slot *s)
{
    return s->recipe.body->flags & ACT_RECIPE_MOVED;
}

/* Tokens that there are rows for at most when the ticket is ready. */
static inline int land_most_tokens(const struct landing *l, const struct land_slot *s)
{
    int n = s->recipe.n_ids + (land_is_moved(s) ? act_move_slack(l->e) : 0), most = s->recipe.n_ids + s->max_new;
    return n < most ? n : most;
}

/* Of a ready ticket (landing_take.c). The sequence goes to Decode, or to Replay before. 0; -errno: what came cannot be
 * used, err says more if there is more to say, and the place is given up with the slot. */
int land_hand_on(struct landing *l, struct land_slot *s);

/* ---- landing.c ---- */

/* An event of the slot's ticket; the slot may be free afterwards. status: what whoever is told of an end hears. */
void land_step(struct landing *l, struct land_slot *s, enum act_ticket_event event, int status);
void land_return_pages(struct landing *l, const uint32_t *page, int n);
struct land_slot *land_find_slot(struct landing *l, uint64_t request, uint16_t attempt);

/* ---- landing_pages.c ---- */

/* The slot has its place: looks for its pages, which ends in GRANT or REFUSE. */
void land_pages_ask(struct landing *l, struct land_slot *s);
/* KV_FOUND, PAGES_GIVEN. */
void land_pages_take(struct landing *l, struct act_msg *m);
/* The timer for those that found none. */
void land_pages_again(struct landing *l);
/* TICKETS_REVOKE. */
void land_revoke(struct landing *l, struct act_msg *m);

#endif
