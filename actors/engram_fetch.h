/* How a source of steps (Prefill, Decode) gets its Engram rows from the actor of the row store. Part of the exchange
 * (exchange.h), which hands over what concerns this; thread of its actor.
 *
 * Whatever becomes of the row store, a step gets its rows: what comes back, fails or is late is taken from the mapped
 * checkpoint, which has the same bytes. */
#ifndef WEFT_ACTORS_ENGRAM_FETCH_H
#define WEFT_ACTORS_ENGRAM_FETCH_H

#include "actors/runtime/runtime.h"
#include "model/step.h"

struct act_log;

/* Timers with this tag and the stream belong here. */
#define ACT_ENGRAM_TAG UINT64_C(0x454e4752000000)

struct act_engram_fetch {
    struct act_self *self;
    struct mdl_model *m;
    struct act_addr store; /* nobody: the mapped checkpoint */
    struct act_log *log;
    uint16_t stream;
    uint32_t sequence;
    int64_t late_ns;
    struct {
        struct mdl_engram_fetch *f; /* NULL: nothing is outstanding */
        struct mdl_step *step;
        uint64_t request;
    } wait[MDL_MAX_ENGRAM];
    struct act_timer timer;
    bool failing;    /* said so */
    uint64_t mapped; /* rows that were taken from the checkpoint instead */
};

void act_engram_init(struct act_engram_fetch *e, struct act_self *self, struct mdl_model *m, uint16_t stream,
                     struct act_addr store, struct act_log *log);
/* What mdl_providers.engram has to do. */
int act_engram_ask(struct act_engram_fetch *e, struct mdl_step *step, struct mdl_engram_fetch *f);
/* The step is over or begins again: answers on their way are late. */
void act_engram_abandon(struct act_engram_fetch *e);
/* ENGRAM_ROWS, a returned ENGRAM_READ, its TIMER: whether the step may go on. */
bool act_engram_message(struct act_engram_fetch *e, struct act_msg *m);
/* The rows of tokens from .. from + n - 1 of these ids will be asked for soon. */
void act_engram_ahead(struct act_engram_fetch *e, const int32_t *ids, int n_ids, int from, int n);

#endif
