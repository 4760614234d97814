/* Inside of the Prefill actor, shared by its files. */
#ifndef WEFT_ACTORS_PREFILL_IMPL_H
#define WEFT_ACTORS_PREFILL_IMPL_H

#include "actors/engine.h"
#include "actors/prefill.h"
#include "actors/prefill_load.h"
#include "actors/recipe.h"
#include "actors/router.h"
#include "actors/sending.h"

enum {
    RETRY_NS = 5000000,
    TAG_RETRY = 1,
    TAG_REPORT = 2,
    TAG_READS = 3,
    TAG_TICKETS = 4,
    TOMBSTONES = 256,
    TAKEN_BACK_MAX = 4
};

enum job_state {
    JOB_QUEUED,    /* holds nothing */
    JOB_RESERVING, /* asked Decode for a place */
    JOB_LOOKUP,    /* asked the tier for blocks */
    JOB_PAGES,     /* asked the tier for pages, or about to ask again */
    JOB_RUNNING,
    JOB_SENDING,    /* all is computed, the rest is on its way to another process */
    JOB_CONFIRMING, /* all is sent; holds its ticket, and its pages while writes are under way */
};

struct job {
    struct job *next;
    enum job_state state;
    bool asked; /* an answer of this state is outstanding */
    bool later; /* or the timer lets it ask again */
    bool cancelled;
    bool replay;                 /* came from another process; its requester has heard of its prompt */
    bool again;                  /* it begins anew with another ticket, as soon as nothing holds it */
    int taken_back;              /* tickets, for what runs at the decoder */
    int64_t no_connection_since; /* ns: the decoder has none for its rows; 0: not known */
    uint16_t lookups;            /* KV_LOOKUPs so far; what an earlier one still brings is not for its pages */
    uint32_t history;            /* of RESERVE */
    int broken;                  /* the hand-off failed while the job was in a step: why */
    uint64_t request;
    uint16_t attempt;
    struct act_addr requester, decode;
    struct act_buf *buf; /* of PREFILL */
    struct act_recipe recipe;
    int max_tokens; /* of the sequence */
    uint32_t ticket;
    int hit, clean;           /* tokens whose rows came from the tier; of these, those of clean blocks */
    struct act_buf *snapshot; /* of KV_FOUND; the bytes are at snapshot_at */
    size_t snapshot_at;
    struct act_load load; /* of the hit, what is still being read */
    int64_t read_began;   /* ns */
    bool reported;
    uint32_t *pages;
    int n_pages, n_blocks;
    struct mdl_seq *seq;
    struct mdl_prefill plan;
    int segment;                /* in the running step, -1: none */
    float *logits;              /* while JOB_SENDING, form full */
    struct act_sending sending; /* of the sequence, to another process */
};

/* A cancel that came before its prompt. To have too few of them costs work only: the requester of a prompt that nobody
 * wants is gone, or has another attempt, and learns of this one when it begins (PREFILLING). */
struct tombstone {
    uint64_t request;
    uint16_t attempt;
};

struct prefill {
    struct act_self *self;
    const struct act_engine *e;
    struct job *first, **last;
    struct act_left *left; /* of jobs that are over */
    int active;            /* jobs beyond JOB_QUEUED */
    struct mdl_step *step;
    bool running, waiting;
    struct act_exchange exchange;
    bool lacks_rows;        /* the step waits for rows that are being read */
    bool waited_rows;       /* it did at some time */
    struct act_timer reads; /* looks after their deadlines */
    int64_t step_began;     /* ns */
    uint64_t token_ns;      /* what a row of a step costs, averaged; 0: not known yet */
    uint64_t read_ns;       /* what a token's rows cost that come from below, averaged; 0: not known yet */
    struct act_timer retry;
    struct tombstone tombstone[TOMBSTONES]; /* the newest replaces the oldest */
    unsigned next_tombstone;
    struct act_timer report, tickets;
    struct act_routers routers; /* of other nodes */
    uint32_t load_sequence;
    bool told_busy;
    bool draining; /* Routers of other nodes are told; the own one finishes what its gateway has taken */
    struct cfg_error err;
};

/* ---- prefill.c ---- */

/* The job's pages go back to the tier, unless writes from them are under way: then later. */
void pre_pages_return(struct prefill *p, struct job *j);
/* Forgets a job that is in no step. */
void pre_job_remove(struct prefill *p, struct job *j);
/* Tells the requester why, gives the place at Decode up, and forgets the job. */
void pre_job_fail(struct prefill *p, struct job *j, int status, const char *text);
/* HANDOFF.replayed of a job whose plan is made. */
uint32_t pre_replayed(const struct prefill *p, const struct job *j);
/* What was computed of a prompt that is given up serves the next one that begins like it. */
void pre_keep_finished(struct prefill *p, const struct job *j);
/* All that is to be computed here of a prompt for another process is; rows of its hit may still be on their way. */
bool pre_job_computed(struct job *j);
struct job *pre_job_find(struct prefill *p, uint64_t request, uint16_t attempt);
/* Nobody waits for it: it ends here and at Decode, or, while its rows are in a step, with that step. */
void pre_job_cancel(struct prefill *p, struct job *j);

/* ---- prefill_unwanted.c: prompts that nobody waits for any more ---- */

/* Hears of the nodes that are lost. */
void pre_watch_nodes(struct prefill *p);
/* Whether a cancel of this attempt came before it; the tombstone is used up. */
bool pre_was_cancelled(struct prefill *p, uint64_t request, uint16_t attempt);
/* An attempt ends those before it, whatever became of their cancels. False: it is over itself, or here already. */
bool pre_end_older(struct prefill *p, uint64_t request, uint16_t attempt);
/* CANCEL. */
void pre_take_cancel(struct prefill *p, const struct act_msg *m);
/* NODE_DOWN. */
void pre_take_node_down(struct prefill *p, struct act_msg *m);

/* ---- prefill_handoff.c ---- */

/* An event of the job's ticket; the job may be gone afterwards. */
void pre_ticket_event(struct prefill *p, struct job *j, enum act_ticket_event event);
/* TICKET_ABORT, TICKET_CLOSED. */
void pre_take_ticket_message(struct prefill *p, struct act_msg *m);
/* LINK_PUT_DONE. */
void pre_take_put_done(struct prefill *p, struct act_msg *m);
/* Deadlines of tickets that have passed, and the timer for the next one. */
void pre_look_at_tickets(struct prefill *p);
/* Jobs that begin anew: gives up what they have, so that they ask for a place again. */
void pre_begin_again(struct prefill *p);
/* The plan of the job is made: does it fit the blocks that its decoder has already? Else it begins anew. */
void pre_check_history(struct prefill *p, struct job *j);
/* Sends what another process may have already. The job may have failed afterwards. */
void pre_send_rows(struct prefill *p, struct job *j);
/* The sequence and its pages move to the Decode of this process. */
void pre_hand_off(struct prefill *p, struct job *j, const float *logits);
/* The rest of the sequence goes to another process. */
void pre_send_rest(struct prefill *p, struct job *j, const float *logits);
/* Once more for what found no room. */
void pre_send_what_waits(struct prefill *p);
/* REPLAY. */
void pre_take_replay(struct prefill *p, struct act_msg *m);

#endif
