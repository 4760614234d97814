/* The writer's end of a hand-off to another process: a ticket, the rows that are sent while the prompt is computed, and
 * the state behind it. Part of a job of the Prefill actor, or of a sequence that leaves a Decode actor; that actor
 * alone calls it. What the reader's end does is in landing.h, the rules of the ticket in ticket.h.
 *
 * A write is a message, so its bytes are copied when it is sent and no write of this end is ever under way; the reader
 * takes a write only under the generation of its ticket. */
#ifndef WEFT_ACTORS_SENDING_H
#define WEFT_ACTORS_SENDING_H

#include "actors/engine.h"
#include "actors/runtime/runtime.h"

struct act_sending {
    struct act_ticket ticket;
    struct act_self *self;
    const struct act_engine *e;
    struct act_addr reader;
    uint64_t request;
    uint16_t attempt;
    uint32_t slot; /* of the ticket, at the reader */
    enum mdl_handoff_form form;
    int sent;        /* tokens whose rows are on their way */
    uint32_t writes; /* made */
};

/* RESERVE is about to be sent to reader. form: what is handed over, if it turns out to be another process. */
void act_sending_ask(struct act_sending *s, struct act_self *self, const struct act_engine *e, struct act_addr reader,
                     uint64_t request, uint16_t attempt, enum mdl_handoff_form form);
/* RESERVED came. True: a ticket of another process; false: refused, or a decoder of this process. */
bool act_sending_reserved(struct act_sending *s, struct act_msg *m);
/* Whether the RESERVED in m gave the ticket that s has. */
bool act_sending_is_mine(const struct act_sending *s, struct act_msg *m);
/* Whether there is a ticket that rows are written under. */
bool act_sending_writing(const struct act_sending *s);
/* Sends the rows of the tokens up to `end` that were not sent yet: end is even, or the last. 0; -EAGAIN: no room for
 * all of them, to be called again; -ENOMEM. */
int act_sending_rows(struct act_sending *s, const struct mdl_seq *seq, int end);
/* All that is left: rows up to the end, then the state, then `last`: what KV_READY ends with. known: its body but for
 * `state`. Errors as above. After 0 a prompt's sequence is not needed any more. */
int act_sending_finish(struct act_sending *s, const struct mdl_seq *seq, const void *last, size_t last_bytes,
                       const struct act_b_kv_ready *known);
/* An event of the ticket: GIVE_UP, LEASE, DOWN. Returns what its owner has to do: DO_FAIL, DO_END. */
unsigned act_sending_event(struct act_sending *s, enum act_ticket_event event);
/* TICKET_ABORT or TICKET_CLOSED with s's request and attempt, or for nobody (s NULL: it is answered). */
unsigned act_sending_message(struct act_self *self, struct act_sending *s, struct act_msg *m);
/* RESERVED for a job that is gone: the ticket is closed at once. */
void act_sending_unwanted(struct act_self *self, struct act_msg *m);

#endif
