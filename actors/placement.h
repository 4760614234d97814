/* Where one request runs: its attempts, and what becomes of it when a part of the engine that works for it ends.
 *
 * Part of the state of the actor that owns a request (the gateway's Request, clients in tests); that actor alone calls
 * it. The owner asks the Router for a place, sends its prompt there, and hands every message here first. When Prefill
 * or Decode of the present place is gone, the older attempt is cancelled and the owner is told to ask again, with all
 * tokens it has: the request goes on from there. Messages of older attempts are worth nothing any more.
 *
 * It is not placed again and again. Each part of the engine that says that what it needs is not to be had (-ENOLINK: it
 * has waited as long as it may) is asked once; a request that no other place is left for fails at once. All else is
 * tried for `patience`, counted from the first end since the last tokens, and at least twice more.
 *
 * A place from which nothing is heard for a while is asked whether it still has the attempt (PLACE_CHECK); who has not
 * says so with FAILED, and who is no more does not get it. So no request waits for a word that was lost.
 *
 * A planned move (decode_move.c) is asked for by the Router and done by Decode; the owner has no part in it. It ends
 * with MOVED behind the last tokens of the old place; only then is the new one told to go on. */
#ifndef WEFT_ACTORS_PLACEMENT_H
#define WEFT_ACTORS_PLACEMENT_H

#include "actors/runtime/runtime.h"

enum { ACT_PLACE_AVOID = 16 };

enum act_place_event {
    ACT_PLACE_NONE,   /* nothing changed; the message is the owner's to look at */
    ACT_PLACE_STALE,  /* of an attempt that was given up: not to be looked at */
    ACT_PLACE_ASK,    /* call act_place_ask with the tokens as they are now */
    ACT_PLACE_GO,     /* prefill and decode are known: send PREFILL to act_place.prefill under act_place.attempt */
    ACT_PLACE_FAILED, /* no place, or too many attempts: status and retry_ms say more */
    ACT_PLACE_MOVED,  /* the sequence goes on at another Decode, under a new attempt; nothing is to be done */
};

/* The tag of the timer message that belongs to act_place_message. */
enum {
    ACT_PLACE_TAG = 0x706c,
    ACT_PLACE_CHECK_TAG = 0x7063, /* likewise; an owner of many places calls act_place_look for each of them */
};

struct act_place {
    struct act_self *self;
    struct act_addr router;
    uint64_t request;
    uint16_t attempt; /* of the present place */
    uint16_t last;    /* the highest attempt that was given to anybody */
    struct act_addr prefill, decode;
    bool asked, placed;
    bool computed;                          /* the prompt is in: Prefill's end no longer matters */
    bool decoding;                          /* tokens have come: nor does its word that the hand-off failed */
    int64_t patience;                       /* ns, 0: 10 s; set by the owner */
    int64_t since;                          /* ns: when the first attempt ended since the last tokens */
    struct act_addr avoid[ACT_PLACE_AVOID]; /* these have failed it since then */
    int n_avoid;
    int tries;    /* attempts since the last tokens */
    int spared;   /* beside those: that ended with the connection which another transfer's trouble had ended */
    int replaced; /* attempts after the first, in all, but for planned moves */
    bool moving;  /* Decode was asked to move the sequence to `to`, as attempt to_attempt */
    struct act_addr to;
    uint16_t to_attempt;
    int64_t move_after; /* ns: not before then is it asked again; while moving, when it is taken for unheard */
    int moved;          /* planned moves */
    struct act_timer wait, check;
    int64_t heard; /* ns: the last word about this attempt */
    /* Why it failed: -EAGAIN too busy, -ESHUTDOWN draining, -EHOSTDOWN nobody there, -ENOLINK the experts of every
     * place that there is are not there. */
    int status;
    uint32_t retry_ms;
    int reason; /* of the last end of a place, negative errno */
};

void act_place_init(struct act_place *p, struct act_self *self, struct act_addr router, uint64_t request);
/* Asks for a place for a prompt of ids tokens and up to max_tokens more. chain [n_chain]: the root, then the chain
 * behind each full block. -EAGAIN, -ENOMEM: could not ask. */
int act_place_ask(struct act_place *p, int ids, int max_tokens, const struct act_key *chain, int n_chain);
/* Looks at a message of the owner's batch. */
enum act_place_event act_place_message(struct act_place *p, struct act_msg *m);
/* Asks a place of which nothing was heard for long, when that is due. */
void act_place_look(struct act_place *p);
/* The prompt was computed, or tokens came. Attempts count from anew with tokens only: a prompt that is computed again
 * and again, and lost behind that each time, is none. */
void act_place_progress(struct act_place *p, bool tokens);
/* Cancels what runs at the present place, as far as this attempt. */
void act_place_cancel(struct act_place *p, int reason);
/* For Prefill, Decode and Landing: the answer to a PLACE_CHECK about what they do not have. */
void act_place_unknown(struct act_self *self, const struct act_msg *m);
/* The request has ended, in whatever way: the Router forgets it. Nothing is cancelled. */
void act_place_end(struct act_place *p);

#endif
