/* A ticket: the right of one Prefill (the writer) to write the rows of one prompt into pages of another process (the
 * reader's). Both ends as state machines, without actors, messages or clocks; whoever owns a ticket feeds it events and
 * does what it answers. The table of rules is in ticket.c and printed in docs/FORMATS.md.
 *
 * Two things must hold whatever is lost, late, doubled or dead:
 *   - the reader's pages are used for something else only when nothing of the writer's can land in them any more: when
 *     the writer said so after its own writes had ended, or when the connection that they use is gone (the fence);
 *   - every state but FREE ends by itself, because each has a deadline.
 *
 * Ready is KV_READY(n) and n writes seen, in either order. */
#ifndef WEFT_ACTORS_TICKET_H
#define WEFT_ACTORS_TICKET_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum act_ticket_state {
    ACT_TICKET_FREE,
    /* The reader. */
    ACT_TICKET_GRANTING,   /* place and pages are being looked for; the writer has no answer yet */
    ACT_TICKET_OPEN,       /* writes come */
    ACT_TICKET_CLOSING,    /* all writes are announced, some are not here yet */
    ACT_TICKET_QUARANTINE, /* given up; pages wait for the writer's word */
    ACT_TICKET_FENCING,    /* given up, without a word; pages wait for the connection's end */
    /* The writer. */
    ACT_TICKET_ASKING, /* RESERVE is out */
    ACT_TICKET_WRITING,
    ACT_TICKET_CONFIRMING, /* KV_READY is out */
    ACT_TICKET_DRAINING,   /* given up; own writes are still under way */
    ACT_TICKET_STATES,
};

enum act_ticket_event {
    /* Of the reader. */
    ACT_TICKET_ON_RESERVE, /* a new question */
    ACT_TICKET_ON_GRANT,   /* place and pages are there */
    ACT_TICKET_ON_REFUSE,  /* there are none */
    ACT_TICKET_ON_WRITE,   /* one that was not here before; doubles are not events */
    ACT_TICKET_ON_READY,   /* KV_READY; step's n: writes in all */
    ACT_TICKET_ON_RETURN,  /* TICKET_CLOSED, -EAGAIN: nothing was written or will be, the writer asks for another one */
    /* Of the writer. */
    ACT_TICKET_ON_ASK,
    ACT_TICKET_ON_GRANTED,
    ACT_TICKET_ON_REFUSED,
    ACT_TICKET_ON_FINISH,  /* all is written */
    ACT_TICKET_ON_ABORT,   /* TICKET_ABORT */
    ACT_TICKET_ON_DRAINED, /* the last own write has ended */
    /* Of both. */
    ACT_TICKET_ON_CLOSED,  /* TICKET_CLOSED; to the reader: nothing of this ticket will come any more. To the writer:
                              the sequence was taken */
    ACT_TICKET_ON_GIVE_UP, /* this side's request was cancelled or failed */
    ACT_TICKET_ON_LEASE,   /* the state's deadline passed */
    ACT_TICKET_ON_DOWN,    /* the other side, or the connection that writes use, is gone: nothing can land any more */
    ACT_TICKET_EVENTS,
};

/* What the owner does, in this order. */
enum act_ticket_action {
    ACT_TICKET_DO_LOOK = 1 << 0,   /* reader: look for place and pages */
    ACT_TICKET_DO_GRANT = 1 << 1,  /* reader: answer with the ticket */
    ACT_TICKET_DO_REFUSE = 1 << 2, /* reader: answer that there is none */
    ACT_TICKET_DO_TAKE = 1 << 3,   /* reader: the pages become the sequence's; tell the writer (TICKET_CLOSED, 0) */
    ACT_TICKET_DO_FAIL = 1 << 4,   /* the requester learns that this place is lost */
    ACT_TICKET_DO_ABORT = 1 << 5,  /* reader: send TICKET_ABORT */
    ACT_TICKET_DO_FENCE = 1 << 6,  /* end the connection that writes use; DOWN follows */
    ACT_TICKET_DO_FREE = 1 << 7,   /* reader: pages and place go back */
    ACT_TICKET_DO_ASK = 1 << 8,    /* writer: send RESERVE */
    ACT_TICKET_DO_READY = 1 << 9,  /* writer: send KV_READY */
    ACT_TICKET_DO_CLOSE = 1 << 10, /* writer: send TICKET_CLOSED: nothing more will come */
    ACT_TICKET_DO_END = 1 << 11,   /* writer: the job is over on this side */
    ACT_TICKET_DO_COUNT = 1 << 12, /* stale or doubled: count it */
};
enum { ACT_TICKET_ACTIONS = 13 };

/* Deadlines of the states, ns from entering them or from the last progress in them. 0: 10 s, 30 s, 5 s, 5 s, 5 s.
 * confirm: from the end of the writer's last write to the reader's word; no longer than lease. */
struct act_ticket_times {
    int64_t grant, lease, quarantine, fence, confirm;
};

struct act_ticket {
    enum act_ticket_state state;
    uint32_t generation;     /* reader: of the slot, changes with every use. writer: the reader's, once granted */
    uint32_t seen, expected; /* reader: writes here, writes announced */
    uint32_t under_way;      /* writer: own writes that have not ended; kept by the owner */
    int64_t deadline;        /* INT64_MAX: none */
};

/* Applies the event at time now; n as the event says, else 0. Returns the actions to do. */
unsigned act_ticket_step(struct act_ticket *t, enum act_ticket_event event, uint32_t n, int64_t now,
                         const struct act_ticket_times *times);

/* The name of a ticket in an immediate of ACT_PORT_LANDING: 12 bits of the slot, 16 of the generation. */
enum { ACT_TICKET_SLOTS_MAX = 1 << 12 };
static inline uint32_t act_ticket_immediate(uint32_t slot, uint32_t generation)
{
    return UINT32_C(1) << 28 | (slot & (ACT_TICKET_SLOTS_MAX - 1)) << 16 | (generation & 0xffff);
}

/* Progress without an event: the writer has sent something. */
void act_ticket_touch(struct act_ticket *t, int64_t now, const struct act_ticket_times *times);

/* ---- the table, for docs and tests ----------------------------------------------------------- */

/* "QUARANTINE", "WRITE", "free" */
const char *act_ticket_state_name(enum act_ticket_state state);
const char *act_ticket_event_name(enum act_ticket_event event);
const char *act_ticket_action_name(int bit);

/* When a rule holds. */
enum act_ticket_if {
    ACT_TICKET_ALWAYS,
    ACT_TICKET_IF_ALL,   /* with this event all announced writes are seen */
    ACT_TICKET_IF_FEWER, /* not yet */
    ACT_TICKET_IF_MORE,  /* more were seen than are announced */
    ACT_TICKET_IF_QUIET, /* no own write is under way */
    ACT_TICKET_IF_BUSY,  /* some are */
};
const char *act_ticket_if_name(enum act_ticket_if condition);

struct act_ticket_rule {
    enum act_ticket_state state;
    enum act_ticket_event event;
    enum act_ticket_if condition;
    enum act_ticket_state next;
    unsigned actions;
};

/* The rules in the table's order; NULL behind the last one. */
const struct act_ticket_rule *act_ticket_rule(int i);
/* Whether the event can come to the side that the state belongs to (FREE: to either). */
bool act_ticket_can_come(enum act_ticket_state state, enum act_ticket_event event);
/* The table as docs/FORMATS.md has it. */
void act_ticket_print(FILE *f);

#endif
