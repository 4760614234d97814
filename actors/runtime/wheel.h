/* A hierarchical timer wheel: six levels of 64 slots over ticks of 2^16 ns (65.5 us). Adding and removing take constant
 * time; a timer fires in the first tick that begins at its time or later. One worker owns a wheel and alone touches it.
 */
#ifndef WEFT_ACTORS_RUNTIME_WHEEL_H
#define WEFT_ACTORS_RUNTIME_WHEEL_H

#include <stdint.h>

#include "actors/runtime/runtime.h"

enum { ACT_WHEEL_LEVELS = 6, ACT_WHEEL_BITS = 6, ACT_WHEEL_SLOTS = 64, ACT_TICK_BITS = 16 };

enum act_timer_state { ACT_TIMER_IDLE, ACT_TIMER_PENDING, ACT_TIMER_DUE };

struct act_wheel {
    uint64_t tick; /* the last one that was handled */
    uint64_t sequence;
    long count;
    uint64_t occupied[ACT_WHEEL_LEVELS]; /* bit per slot */
    struct act_timer *slot[ACT_WHEEL_LEVELS][ACT_WHEEL_SLOTS];
};

void act_wheel_init(struct act_wheel *w, int64_t now);
/* t is idle; t->at is set. */
void act_wheel_add(struct act_wheel *w, struct act_timer *t);
/* t is pending. */
void act_wheel_remove(struct act_wheel *w, struct act_timer *t);
/* Takes out every timer that is due by now and hands it to fire (as idle); fire may add and remove timers, also those
 * that are due now. */
void act_wheel_advance(struct act_wheel *w, int64_t now, void (*fire)(void *ctx, struct act_timer *t), void *ctx);
/* The time at which act_wheel_advance next has something to do (a timer, or moving timers to a lower level); ACT_NEVER
 * when there is no timer. */
int64_t act_wheel_next(const struct act_wheel *w);

#endif
