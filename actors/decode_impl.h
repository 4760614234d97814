/* Inside of the Decode actor, shared by its files. */
#ifndef WEFT_ACTORS_DECODE_IMPL_H
#define WEFT_ACTORS_DECODE_IMPL_H

#include "actors/decode.h"
#include "actors/group.h"
#include "actors/recipe.h"
#include "actors/sending.h"
#include "actors/speculate.h"

enum { DEC_TAG_MOVES = 5 /* of a timer */, DEC_WATCHED = 16 };

enum dec_state {
    DEC_FREE,
    DEC_RESERVED, /* a prompt is being computed for this place */
    DEC_RUNNING,
    DEC_PARKED,
    DEC_ARRIVED, /* moved here; waits for its requester's word */
    DEC_LEAVING, /* moved away; holds nothing, waits until its requester has heard it */
    DEC_STATES,
};

/* On its way to another Decode. */
struct dec_move {
    struct act_addr to;
    uint16_t attempt; /* there */
    struct act_sending sending;
    int told;     /* ids in RESERVE */
    bool stopped; /* in no round any more */
    int64_t stopped_at;
};

struct decode;

/* A place for one sequence, from its reservation to its last token. */
struct dec_stream {
    struct decode *owner;
    enum dec_state state;
    uint32_t generation;
    uint64_t request;
    uint16_t attempt;
    uint64_t order; /* of admission: the highest is the youngest */
    struct act_addr requester;
    struct act_buf *recipe_buf;
    struct act_recipe recipe;
    struct mdl_seq *seq;
    struct mdl_stream run;
    struct act_spec_stream spec;
    float *draft_weights; /* [limits.draft][vocab], with rejection sampling: what the drafts were drawn from */
    uint64_t key;         /* of its random numbers, with rejection sampling */
    uint32_t *pages;      /* [seq->n_blocks] */
    int n_pages;
    uint8_t *aside; /* parked: the bytes of the pages */
    int32_t *ids;   /* prompt and output */
    int n_ids, n_new, max_new;
    uint32_t sent; /* output tokens reported */
    enum act_finish finish;
    bool in_round, cancelled, waits_for_page;
    uint32_t replayed; /* of its rows, as in HANDOFF */
    int32_t hit;
    struct dec_move *move; /* NULL: it stays */
    int64_t wait_until;    /* ns; DEC_ARRIVED, DEC_LEAVING */
    /* Log-probabilities of the tokens of the present round. */
    struct mdl_logprobs *logprobs; /* [MDL_ROUND_MAX], when asked for */
    int n_logprobs;
};

struct decode {
    struct act_self *self;
    const struct act_engine *e;
    struct mdl_decoder *decoder;
    struct mdl_sampler *sampler;
    struct act_exchange exchange;
    struct dec_stream *stream; /* [limits.streams] */
    struct mdl_stream **round; /* [limits.streams] */
    int n_round;
    struct act_speculation spec;
    struct act_group group;
    float *weights;                          /* [vocab], with rejection sampling */
    struct act_spec_stream **round_spec;     /* [limits.streams] */
    int64_t verify_began;                    /* ns */
    bool disturbed;                          /* the round shares the machine with a prompt, or was run twice */
    bool running;                            /* a round is in progress */
    bool waiting;                            /* for expert results */
    struct act_addr busy[ACT_INSTANCES_MAX]; /* Prefill actors with prompts: they get time between rounds */
    int n_busy;
    struct act_timer pause;
    bool paused;
    struct act_timer retry; /* asks an empty tier again */
    uint64_t order;
    uint32_t *lease; /* free pages */
    int n_lease, lease_cap;
    int asked;            /* pages asked for and not yet answered */
    bool tier_empty;      /* the last answer was: none */
    bool revoking;        /* the Landing was asked to take tickets back, and has not answered */
    bool none_to_come;    /* it answered that there are none */
    int64_t revoke_until; /* ns: pages of such tickets are waited for until then; 0: none are */
    bool refused;         /* not even a single page was to be had: not asked again before `retry`, or pages went back */
    struct act_decode_stats stats;
    int64_t round_began; /* ns */
    struct act_timer report, load, moves;
    struct act_left *left;                /* of moves that are over */
    struct act_addr watched[DEC_WATCHED]; /* Decodes of other nodes whose end it hears of */
    unsigned next_watched;
    uint32_t load_sequence;
    struct cfg_error err;
};

/* ---- decode_pages.c: pages, parking, publishing ---- */

/* Gives the sequence a page for every block that the next round may touch. False: it sits this round out. */
bool dec_pages_ensure(struct decode *d, struct dec_stream *s);
void dec_pages_ask(struct decode *d);
void dec_pages_given(struct decode *d, struct act_msg *m);
/* Sequences lack pages. True: tickets that nothing was written under are given up for them, and their pages are to
 * come; false: there are none, or they did not come. */
bool dec_pages_revoke(struct decode *d);
/* TICKETS_REVOKE, or that it came back. */
void dec_pages_revoked(struct decode *d, const struct act_msg *m);
/* The sequence has ended: finished blocks become findable, pages go back. */
void dec_pages_end(struct decode *d, struct dec_stream *s);
void dec_pages_return(struct decode *d, const uint32_t *page, int n);
/* Sets the youngest running sequence that is in no round aside. False: there is none beside `keep`. */
bool dec_park_youngest(struct decode *d, const struct dec_stream *keep);
/* Brings parked sequences back, oldest first, while pages are there. */
void dec_unpark(struct decode *d);

/* ---- decode_spec.c: planning of rounds ---- */

int dec_spec_start(struct decode *d);
enum mdl_choice dec_spec_choice(const struct decode *d, const struct dec_stream *s);
/* Of its random numbers by rejection (model/reject.h). */
uint64_t dec_spec_key(const struct decode *d, const struct dec_stream *s);
void dec_spec_stop(struct decode *d);
/* Before mdl_decoder_begin: how far each sequence of the round drafts. */
void dec_spec_round_begins(struct decode *d);
void dec_spec_round_ended(struct decode *d, int status);

/* ---- decode_move.c: sequences that move to another Decode, and from one ---- */

/* MOVE, MOVE_GO, MOVED, RESERVED, TICKET_ABORT, TICKET_CLOSED, LINK_PUT_DONE. */
void dec_move_message(struct decode *d, struct act_msg *m);
/* One of its messages came back. */
void dec_move_returned(struct decode *d, struct act_msg *m);
/* The sequence ends, or has to be parked: it does not move. status: what its requester hears, 0: nothing. */
void dec_move_drop(struct decode *d, struct dec_stream *s, int status);
/* DOWN: sequences that were on their way there stay. */
void dec_move_down(struct decode *d, struct act_msg *m);
/* Sends what there is room for. True: there is more to send at once. */
bool dec_move_push(struct decode *d);
/* Ends what has waited for too long. */
void dec_move_deadlines(struct decode *d);
/* A HANDOFF of a sequence that decoded elsewhere; more [n]: its ids behind those of its recipe. */
void dec_move_arrived(struct decode *d, struct dec_stream *s, const int32_t *more, int n);

/* ---- decode.c ---- */

/* The end of a sequence, outside a round. */
/* It ends with an error, which the log keeps: the requester learns of no more than the fact. dec_tokens_send and
 * dec_stream_end follow. */
void dec_stream_fail(struct decode *d, struct dec_stream *s, int status, const char *why);
void dec_stream_end(struct decode *d, struct dec_stream *s);

/* ---- decode_stats.c: figures for the observer ---- */

void dec_stats_round_began(struct decode *d);
void dec_stats_round_ended(struct decode *d);
/* The sequence leaves: its counters join the totals. */
void dec_stats_add(struct decode *d, const struct dec_stream *s);
void dec_stats_send(struct decode *d);

/* ---- decode_tokens.c: picking and reporting ---- */

mdl_pick_fn dec_pick;
/* Reports what is new, and the end. */
void dec_tokens_send(struct decode *d, struct dec_stream *s);

#endif
