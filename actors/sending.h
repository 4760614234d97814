/* The writer's end of a hand-off to another process: a ticket, the rows that are put into the reader's pages while the
 * prompt is computed, and the state behind them. Part of a job of the Prefill actor, or of a sequence that leaves a
 * Decode actor; that actor alone calls it. What the reader's end does is in landing.h, the rules of the ticket in
 * ticket.h.
 *
 * Rows go as one-sided writes from this node's pages into the reader's (link.h, "Puts"), over the connection that the
 * ticket names and no other. While a write is under way its pages must not change and must not go back to the tier:
 * `puts` counts them. A writer of the reader's own process copies the rows itself. */
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
    uint32_t link; /* the connection that writes use; 0: the reader is of this process */
    enum mdl_handoff_form form;
    uint32_t *to; /* [blocks of the prompt] pages of the reader */
    int n_to;
    int held;        /* the first so many of them have their rows already */
    int sent;        /* tokens whose rows are on their way */
    uint32_t writes; /* made */
    int puts;        /* that have not ended, also when the ticket has */
    bool again;      /* its owner asks for another ticket when this one is closed */
    bool lost;       /* one of them has failed: what the reader has is unknown */
};

/* RESERVE is about to be sent to reader. form: what is handed over, if it turns out to be another process. */
void act_sending_ask(struct act_sending *s, struct act_self *self, const struct act_engine *e, struct act_addr reader,
                     uint64_t request, uint16_t attempt, enum mdl_handoff_form form);
/* RESERVED came. True: a ticket; false: refused, or a decoder of this process. */
bool act_sending_reserved(struct act_sending *s, struct act_msg *m);
/* Whether the RESERVED in m gave the ticket that s has. */
bool act_sending_is_mine(const struct act_sending *s, struct act_msg *m);
/* Whether there is a ticket that rows are written under. */
bool act_sending_writing(const struct act_sending *s);
/* Writes the rows of the tokens up to `end` that were not written yet: end is even, or the last. page [blocks]: pages
 * that hold them here. 0; -EAGAIN: no room for all of them, to be called again; -ENOMEM; -EPROTO: the ticket has no
 * room for them. */
int act_sending_rows(struct act_sending *s, const uint32_t *page, int end);
/* All that is left: rows up to the end, then the state, then `last`: what KV_READY ends with. known: its body but for
 * `state`. Errors as above. After 0 a prompt's sequence is not needed any more; its pages are while there are `puts`.
 */
int act_sending_finish(struct act_sending *s, const struct mdl_seq *seq, const uint32_t *page, const void *last,
                       size_t last_bytes, const struct act_b_kv_ready *known);
/* An event of the ticket: GIVE_UP, LEASE, DOWN. Returns what its owner has to do: DO_FAIL, DO_END. */
unsigned act_sending_event(struct act_sending *s, enum act_ticket_event event);
/* LINK_PUT_DONE, or a LINK_PUT that came back. Returns the same. */
unsigned act_sending_put_done(struct act_sending *s, struct act_msg *m);
/* TICKET_ABORT or TICKET_CLOSED with s's request and attempt, or for nobody (s NULL: it is answered). */
unsigned act_sending_message(struct act_self *self, struct act_sending *s, struct act_msg *m);
/* RESERVED for a job that is gone: the ticket is closed at once. */
void act_sending_unwanted(struct act_self *self, struct act_msg *m);

/* ---- what is left of those that are over ---- */

/* A sending whose owner has no use for it any more, while its writes are under way; or that lost some: to the reader's
 * question whether more will come there is no answer then, so that it ends the connection instead. An actor has a list
 * of them, to which it gives what is not of its living sendings. */
struct act_left {
    struct act_left *next;
    struct act_sending sending;
    uint32_t *page; /* that writes read; they go back to the tier when these have ended */
    int n_pages;
    int64_t keep_until;
};

/* The sending is over for its owner, its ticket given up if it still has one. page [n]: go back to the tier, now or
 * later. s is empty afterwards. */
void act_sending_end(struct act_sending *s, struct act_left **list, const uint32_t *page, int n);
/* LINK_PUT_DONE, or a LINK_PUT that came back, of one on the list. */
void act_left_put_done(struct act_left **list, struct act_msg *m);
/* The one that m is for; NULL: none. */
struct act_sending *act_left_find(struct act_left *list, const struct act_msg *m);
/* RESERVED came for nobody: whether it gave the ticket of one on the list, whose writes may be under way. A link
 * doubled it then, and it is no reason to say that nothing will come. */
bool act_left_has(const struct act_left *list, struct act_msg *m);
/* Does what is due. Returns the next time at which something is. */
int64_t act_left_deadlines(struct act_left **list, int64_t now);
/* The actor ends: connections are ended before the pages go back. */
void act_left_abandon(struct act_left **list);

#endif
