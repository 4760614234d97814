/* Implementation of wheel.h. A timer of level L lies in the slot of the tick at which it moves down a level, or fires.
 */
#include "actors/runtime/wheel.h"

#include <string.h>

static uint64_t tick_of(int64_t at)
{
    if (at <= 0)
        return 0;
    uint64_t t = (uint64_t)at;
    return (t >> ACT_TICK_BITS) + ((t & ((1u << ACT_TICK_BITS) - 1)) != 0);
}

void act_wheel_init(struct act_wheel *w, int64_t now)
{
    memset(w, 0, sizeof *w);
    w->tick = now > 0 ? (uint64_t)now >> ACT_TICK_BITS : 0;
}

static void insert(struct act_wheel *w, struct act_timer *t, uint64_t tick)
{
    uint64_t delta = tick - w->tick, most = (UINT64_C(1) << (ACT_WHEEL_BITS * ACT_WHEEL_LEVELS)) - 1;
    if (delta > most) {
        delta = most;
        tick = w->tick + most; /* looked at again then; t->at still says when it is due */
    }
    int level = 0;
    while (delta >> (ACT_WHEEL_BITS * (level + 1)))
        level++;
    unsigned slot = (unsigned)(tick >> (ACT_WHEEL_BITS * level)) & (ACT_WHEEL_SLOTS - 1);
    struct act_timer **head = &w->slot[level][slot];
    t->next = *head;
    t->link = head;
    if (*head)
        (*head)->link = &t->next;
    *head = t;
    t->level = (uint8_t)level;
    t->slot = (uint8_t)slot;
    t->state = ACT_TIMER_PENDING;
    w->occupied[level] |= UINT64_C(1) << slot;
}

void act_wheel_add(struct act_wheel *w, struct act_timer *t)
{
    uint64_t tick = tick_of(t->at);
    t->sequence = ++w->sequence;
    insert(w, t, tick > w->tick ? tick : w->tick + 1);
    w->count++;
}

static void detach(struct act_wheel *w, struct act_timer *t)
{
    *t->link = t->next;
    if (t->next)
        t->next->link = t->link;
    if (!w->slot[t->level][t->slot])
        w->occupied[t->level] &= ~(UINT64_C(1) << t->slot);
    t->next = NULL;
    t->link = NULL;
    t->state = ACT_TIMER_IDLE;
}

void act_wheel_remove(struct act_wheel *w, struct act_timer *t)
{
    detach(w, t);
    w->count--;
}

/* The next tick at which a slot of this level is looked at; UINT64_MAX: none. The present slot itself was handled, so a
 * timer in it is due a whole turn later. */
static uint64_t next_of_level(const struct act_wheel *w, int level)
{
    uint64_t bits = w->occupied[level];
    if (!bits)
        return UINT64_MAX;
    uint64_t base = w->tick >> (ACT_WHEEL_BITS * level);
    unsigned turn = (unsigned)(base + 1) & (ACT_WHEEL_SLOTS - 1);
    uint64_t rotated = turn ? bits >> turn | bits << (ACT_WHEEL_SLOTS - turn) : bits;
    return (base + 1 + (uint64_t)__builtin_ctzll(rotated)) << (ACT_WHEEL_BITS * level);
}

static uint64_t next_tick(const struct act_wheel *w)
{
    uint64_t next = UINT64_MAX;
    for (int level = 0; level < ACT_WHEEL_LEVELS; level++) {
        uint64_t n = next_of_level(w, level);
        next = n < next ? n : next;
    }
    return next;
}

int64_t act_wheel_next(const struct act_wheel *w)
{
    uint64_t next = w->count ? next_tick(w) : UINT64_MAX;
    return next > (uint64_t)INT64_MAX >> ACT_TICK_BITS ? ACT_NEVER : (int64_t)(next << ACT_TICK_BITS);
}

/* Timers of the slot that begins at this tick move to lower levels, or into the slot of level 0 that is due now. */
static void move_down(struct act_wheel *w, int level)
{
    unsigned slot = (unsigned)(w->tick >> (ACT_WHEEL_BITS * level)) & (ACT_WHEEL_SLOTS - 1);
    struct act_timer *list = w->slot[level][slot];
    w->slot[level][slot] = NULL;
    w->occupied[level] &= ~(UINT64_C(1) << slot);
    while (list) {
        struct act_timer *t = list;
        list = t->next;
        uint64_t tick = tick_of(t->at);
        insert(w, t, tick > w->tick ? tick : w->tick);
    }
}

void act_wheel_advance(struct act_wheel *w, int64_t now, void (*fire)(void *ctx, struct act_timer *t), void *ctx)
{
    uint64_t target = now > 0 ? (uint64_t)now >> ACT_TICK_BITS : 0;
    while (w->count) {
        uint64_t tick = next_tick(w);
        if (tick > target)
            break;
        w->tick = tick;
        for (int level = ACT_WHEEL_LEVELS - 1; level > 0; level--)
            if ((tick & ((UINT64_C(1) << (ACT_WHEEL_BITS * level)) - 1)) == 0)
                move_down(w, level);
        struct act_timer **head = &w->slot[0][tick & (ACT_WHEEL_SLOTS - 1)];
        while (*head) {
            struct act_timer *t = *head;
            act_wheel_remove(w, t);
            fire(ctx, t);
        }
    }
    if (target > w->tick)
        w->tick = target;
}
