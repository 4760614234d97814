#include "actors/ticket.h"

#include <stddef.h>

/* Short names for the table. */
enum {
    look = ACT_TICKET_DO_LOOK,
    grant = ACT_TICKET_DO_GRANT,
    refuse = ACT_TICKET_DO_REFUSE,
    take = ACT_TICKET_DO_TAKE,
    fail = ACT_TICKET_DO_FAIL,
    abort_ = ACT_TICKET_DO_ABORT,
    fence = ACT_TICKET_DO_FENCE,
    free_ = ACT_TICKET_DO_FREE,
    ask = ACT_TICKET_DO_ASK,
    ready = ACT_TICKET_DO_READY,
    close_ = ACT_TICKET_DO_CLOSE,
    end = ACT_TICKET_DO_END,
    count = ACT_TICKET_DO_COUNT,
};

#define ALWAYS ACT_TICKET_ALWAYS
#define IF(condition) ACT_TICKET_IF_##condition
#define RULE(state, event, condition, next, actions)                                                                   \
    {                                                                                                                  \
        ACT_TICKET_##state, ACT_TICKET_ON_##event, condition, ACT_TICKET_##next, actions                               \
    }

/* Every pair of a state and an event that can come to it is here, once per condition. */
static const struct act_ticket_rule rules[] = {
    /* Nobody's slot: late mail. A writer that thinks it has a ticket is told; a reader that waits for a word gets it.
     */
    RULE(FREE, RESERVE, ALWAYS, GRANTING, look),
    RULE(FREE, GRANT, ALWAYS, FREE, free_),
    RULE(FREE, REFUSE, ALWAYS, FREE, count),
    RULE(FREE, WRITE, ALWAYS, FREE, count),
    RULE(FREE, READY, ALWAYS, FREE, abort_ | count),
    RULE(FREE, RETURN, ALWAYS, FREE, count),
    RULE(FREE, ASK, ALWAYS, ASKING, ask),
    RULE(FREE, GRANTED, ALWAYS, FREE, close_),
    RULE(FREE, REFUSED, ALWAYS, FREE, count),
    RULE(FREE, FINISH, ALWAYS, FREE, count),
    RULE(FREE, ABORT, ALWAYS, FREE, close_),
    RULE(FREE, DRAINED, ALWAYS, FREE, count),
    RULE(FREE, CLOSED, ALWAYS, FREE, count),
    RULE(FREE, GIVE_UP, ALWAYS, FREE, count),
    RULE(FREE, LEASE, ALWAYS, FREE, count),
    RULE(FREE, DOWN, ALWAYS, FREE, count),

    /* The writer has no ticket yet, so nothing of it can land. */
    RULE(GRANTING, RESERVE, ALWAYS, GRANTING, count),
    RULE(GRANTING, GRANT, ALWAYS, OPEN, grant),
    RULE(GRANTING, REFUSE, ALWAYS, FREE, refuse | free_),
    RULE(GRANTING, WRITE, ALWAYS, GRANTING, count),
    RULE(GRANTING, READY, ALWAYS, GRANTING, count),
    RULE(GRANTING, RETURN, ALWAYS, FREE, free_),
    RULE(GRANTING, CLOSED, ALWAYS, FREE, free_),
    RULE(GRANTING, GIVE_UP, ALWAYS, FREE, refuse | free_),
    RULE(GRANTING, LEASE, ALWAYS, FREE, refuse | free_),
    RULE(GRANTING, DOWN, ALWAYS, FREE, free_),

    RULE(OPEN, RESERVE, ALWAYS, OPEN, count),
    RULE(OPEN, GRANT, ALWAYS, OPEN, count),
    RULE(OPEN, REFUSE, ALWAYS, OPEN, count),
    RULE(OPEN, WRITE, ALWAYS, OPEN, 0),
    RULE(OPEN, READY, IF(ALL), FREE, take),
    RULE(OPEN, READY, IF(FEWER), CLOSING, 0),
    RULE(OPEN, READY, IF(MORE), QUARANTINE, fail | abort_),
    RULE(OPEN, RETURN, ALWAYS, FREE, free_),
    RULE(OPEN, CLOSED, ALWAYS, FREE, fail | free_),
    RULE(OPEN, GIVE_UP, ALWAYS, QUARANTINE, abort_),
    RULE(OPEN, LEASE, ALWAYS, QUARANTINE, fail | abort_),
    RULE(OPEN, DOWN, ALWAYS, FREE, fail | free_),

    RULE(CLOSING, RESERVE, ALWAYS, CLOSING, count),
    RULE(CLOSING, GRANT, ALWAYS, CLOSING, count),
    RULE(CLOSING, REFUSE, ALWAYS, CLOSING, count),
    RULE(CLOSING, WRITE, IF(ALL), FREE, take),
    RULE(CLOSING, WRITE, IF(FEWER), CLOSING, 0),
    RULE(CLOSING, WRITE, IF(MORE), QUARANTINE, fail | abort_),
    RULE(CLOSING, READY, ALWAYS, CLOSING, count),
    RULE(CLOSING, RETURN, ALWAYS, FREE, fail | free_),
    RULE(CLOSING, CLOSED, ALWAYS, FREE, fail | free_),
    RULE(CLOSING, GIVE_UP, ALWAYS, QUARANTINE, abort_),
    RULE(CLOSING, LEASE, ALWAYS, QUARANTINE, fail | abort_),
    RULE(CLOSING, DOWN, ALWAYS, FREE, fail | free_),

    RULE(QUARANTINE, RESERVE, ALWAYS, QUARANTINE, count),
    RULE(QUARANTINE, GRANT, ALWAYS, QUARANTINE, count),
    RULE(QUARANTINE, REFUSE, ALWAYS, QUARANTINE, count),
    RULE(QUARANTINE, WRITE, ALWAYS, QUARANTINE, count),
    RULE(QUARANTINE, READY, ALWAYS, QUARANTINE, count),
    RULE(QUARANTINE, RETURN, ALWAYS, FREE, free_),
    RULE(QUARANTINE, CLOSED, ALWAYS, FREE, free_),
    RULE(QUARANTINE, GIVE_UP, ALWAYS, QUARANTINE, count),
    RULE(QUARANTINE, LEASE, ALWAYS, FENCING, fence),
    RULE(QUARANTINE, DOWN, ALWAYS, FREE, free_),

    RULE(FENCING, RESERVE, ALWAYS, FENCING, count),
    RULE(FENCING, GRANT, ALWAYS, FENCING, count),
    RULE(FENCING, REFUSE, ALWAYS, FENCING, count),
    RULE(FENCING, WRITE, ALWAYS, FENCING, count),
    RULE(FENCING, READY, ALWAYS, FENCING, count),
    RULE(FENCING, RETURN, ALWAYS, FREE, free_),
    RULE(FENCING, CLOSED, ALWAYS, FREE, free_),
    RULE(FENCING, GIVE_UP, ALWAYS, FENCING, count),
    RULE(FENCING, LEASE, ALWAYS, FENCING, fence),
    RULE(FENCING, DOWN, ALWAYS, FREE, free_),

    /* A job that ends while its question is out leaves a grant for nobody: FREE answers that. An ABORT means that the
     * grant is on its way and worth nothing any more. */
    RULE(ASKING, ASK, ALWAYS, ASKING, count),
    RULE(ASKING, GRANTED, ALWAYS, WRITING, 0),
    RULE(ASKING, REFUSED, ALWAYS, FREE, 0),
    RULE(ASKING, FINISH, ALWAYS, ASKING, count),
    RULE(ASKING, ABORT, ALWAYS, FREE, fail | close_ | end),
    RULE(ASKING, DRAINED, ALWAYS, ASKING, count),
    RULE(ASKING, CLOSED, ALWAYS, ASKING, count),
    RULE(ASKING, GIVE_UP, ALWAYS, FREE, end),
    RULE(ASKING, LEASE, ALWAYS, FREE, fail | end),
    RULE(ASKING, DOWN, ALWAYS, FREE, fail | end),

    RULE(WRITING, ASK, ALWAYS, WRITING, count),
    RULE(WRITING, GRANTED, ALWAYS, WRITING, count),
    RULE(WRITING, REFUSED, ALWAYS, WRITING, count),
    RULE(WRITING, FINISH, ALWAYS, CONFIRMING, ready),
    RULE(WRITING, ABORT, IF(QUIET), FREE, fail | close_ | end),
    RULE(WRITING, ABORT, IF(BUSY), DRAINING, fail),
    RULE(WRITING, DRAINED, ALWAYS, WRITING, 0),
    RULE(WRITING, CLOSED, ALWAYS, WRITING, count),
    RULE(WRITING, GIVE_UP, IF(QUIET), FREE, close_ | end),
    RULE(WRITING, GIVE_UP, IF(BUSY), DRAINING, 0),
    RULE(WRITING, LEASE, IF(QUIET), FREE, fail | close_ | end),
    RULE(WRITING, LEASE, IF(BUSY), DRAINING, fail),
    RULE(WRITING, DOWN, ALWAYS, FREE, fail | end),

    /* The reader has the sequence or says why not. One that is silent is lost: nobody else may hear of it, as its node
     * is well and its other parts too. */
    RULE(CONFIRMING, ASK, ALWAYS, CONFIRMING, count),
    RULE(CONFIRMING, GRANTED, ALWAYS, CONFIRMING, count),
    RULE(CONFIRMING, REFUSED, ALWAYS, CONFIRMING, count),
    RULE(CONFIRMING, FINISH, ALWAYS, CONFIRMING, count),
    RULE(CONFIRMING, ABORT, IF(QUIET), FREE, close_ | end),
    RULE(CONFIRMING, ABORT, IF(BUSY), DRAINING, 0),
    RULE(CONFIRMING, DRAINED, ALWAYS, CONFIRMING, 0),
    RULE(CONFIRMING, CLOSED, ALWAYS, FREE, end),
    RULE(CONFIRMING, GIVE_UP, IF(QUIET), FREE, close_ | end),
    RULE(CONFIRMING, GIVE_UP, IF(BUSY), DRAINING, 0),
    RULE(CONFIRMING, LEASE, IF(QUIET), FREE, fail | close_ | end),
    RULE(CONFIRMING, LEASE, IF(BUSY), DRAINING, fail),
    RULE(CONFIRMING, DOWN, ALWAYS, FREE, end),

    RULE(DRAINING, ASK, ALWAYS, DRAINING, count),
    RULE(DRAINING, GRANTED, ALWAYS, DRAINING, count),
    RULE(DRAINING, REFUSED, ALWAYS, DRAINING, count),
    RULE(DRAINING, FINISH, ALWAYS, DRAINING, count),
    RULE(DRAINING, ABORT, ALWAYS, DRAINING, count),
    RULE(DRAINING, DRAINED, ALWAYS, FREE, close_ | end),
    RULE(DRAINING, CLOSED, ALWAYS, DRAINING, count),
    RULE(DRAINING, GIVE_UP, ALWAYS, DRAINING, count),
    RULE(DRAINING, LEASE, ALWAYS, DRAINING, fence),
    RULE(DRAINING, DOWN, ALWAYS, FREE, end),
};

enum { RULES = sizeof rules / sizeof *rules };

static bool is_reader(enum act_ticket_state s)
{
    return s >= ACT_TICKET_GRANTING && s <= ACT_TICKET_FENCING;
}

bool act_ticket_can_come(enum act_ticket_state state, enum act_ticket_event event)
{
    if (state == ACT_TICKET_FREE || event >= ACT_TICKET_ON_CLOSED)
        return true;
    return is_reader(state) == (event < ACT_TICKET_ON_ASK);
}

static bool holds(const struct act_ticket *t, const struct act_ticket_rule *r, uint32_t seen, uint32_t expected)
{
    switch (r->condition) {
    case ACT_TICKET_IF_ALL:
        return seen == expected;
    case ACT_TICKET_IF_FEWER:
        return seen < expected;
    case ACT_TICKET_IF_MORE:
        return seen > expected;
    case ACT_TICKET_IF_QUIET:
        return !t->under_way;
    case ACT_TICKET_IF_BUSY:
        return t->under_way > 0;
    default:
        return true;
    }
}

static int64_t time_of(const struct act_ticket *ticket, const struct act_ticket_times *t)
{
    const int64_t second = 1000000000;
    int64_t granting = t->grant ? t->grant : 10 * second, lease = t->lease ? t->lease : 30 * second;
    int64_t confirm = t->confirm ? t->confirm : 5 * second;
    switch (ticket->state) {
    case ACT_TICKET_FREE:
        return INT64_MAX;
    case ACT_TICKET_GRANTING:
        return granting;
    case ACT_TICKET_ASKING: /* the reader's own deadline comes first, so that it answers */
        return granting + lease;
    case ACT_TICKET_QUARANTINE:
    case ACT_TICKET_DRAINING:
        return t->quarantine ? t->quarantine : 5 * second;
    case ACT_TICKET_FENCING:
        return t->fence ? t->fence : 5 * second;
    case ACT_TICKET_CONFIRMING: /* a reader that has everything answers at once */
        return ticket->under_way || lease < confirm ? lease : confirm;
    default:
        return lease;
    }
}

unsigned act_ticket_step(struct act_ticket *t, enum act_ticket_event event, uint32_t n, int64_t now,
                         const struct act_ticket_times *times)
{
    bool counts = t->state == ACT_TICKET_OPEN || t->state == ACT_TICKET_CLOSING;
    uint32_t seen = t->seen + (counts && event == ACT_TICKET_ON_WRITE);
    uint32_t expected = t->state == ACT_TICKET_OPEN && event == ACT_TICKET_ON_READY ? n : t->expected;
    const struct act_ticket_rule *r = NULL;
    for (int i = 0; i < RULES && !r; i++)
        if (rules[i].state == t->state && rules[i].event == event && holds(t, &rules[i], seen, expected))
            r = &rules[i];
    if (!r)
        return ACT_TICKET_DO_COUNT; /* of the other side: a defect of the caller */
    bool progress =
        r->next != t->state || (counts && event == ACT_TICKET_ON_WRITE) || event == ACT_TICKET_ON_LEASE ||
        ((t->state == ACT_TICKET_WRITING || t->state == ACT_TICKET_CONFIRMING) && event == ACT_TICKET_ON_DRAINED);
    t->seen = seen;
    t->expected = expected;
    t->state = r->next;
    if (r->next == ACT_TICKET_FREE || r->next == ACT_TICKET_GRANTING || r->next == ACT_TICKET_ASKING) {
        t->seen = t->expected = 0;
        if (progress && r->next == ACT_TICKET_FREE)
            t->under_way = 0;
    }
    if (progress) {
        int64_t time = time_of(t, times);
        t->deadline = time == INT64_MAX ? INT64_MAX : now + time;
    }
    return r->actions;
}

void act_ticket_touch(struct act_ticket *t, int64_t now, const struct act_ticket_times *times)
{
    if (t->state != ACT_TICKET_FREE)
        t->deadline = now + time_of(t, times);
}

/* ---- names and the printed table ---- */

const char *act_ticket_state_name(enum act_ticket_state state)
{
    static const char *const name[] = {"FREE",    "GRANTING", "OPEN",    "CLOSING",    "QUARANTINE",
                                       "FENCING", "ASKING",   "WRITING", "CONFIRMING", "DRAINING"};
    return state < ACT_TICKET_STATES ? name[state] : "?";
}

const char *act_ticket_event_name(enum act_ticket_event event)
{
    static const char *const name[] = {"RESERVE", "GRANT",   "REFUSE",  "WRITE",  "READY", "RETURN",
                                       "ASK",     "GRANTED", "REFUSED", "FINISH", "ABORT", "DRAINED",
                                       "CLOSED",  "GIVE_UP", "LEASE",   "DOWN"};
    return event < ACT_TICKET_EVENTS ? name[event] : "?";
}

const char *act_ticket_action_name(int bit)
{
    static const char *const name[] = {"look", "grant", "refuse", "take",  "fail", "abort", "fence",
                                       "free", "ask",   "ready",  "close", "end",  "count"};
    return bit >= 0 && bit < ACT_TICKET_ACTIONS ? name[bit] : "?";
}

const char *act_ticket_if_name(enum act_ticket_if condition)
{
    static const char *const name[] = {"", " (all seen)", " (some missing)", " (too many)", " (quiet)", " (under way)"};
    return condition <= ACT_TICKET_IF_BUSY ? name[condition] : "?";
}

const struct act_ticket_rule *act_ticket_rule(int i)
{
    return i >= 0 && i < RULES ? &rules[i] : NULL;
}

void act_ticket_print(FILE *f)
{
    fprintf(f, "| state | event | next | actions |\n|---|---|---|---|\n");
    for (int i = 0; i < RULES; i++) {
        const struct act_ticket_rule *r = &rules[i];
        fprintf(f, "| %s | %s%s | %s |", act_ticket_state_name(r->state), act_ticket_event_name(r->event),
                act_ticket_if_name(r->condition), r->next == r->state ? "" : act_ticket_state_name(r->next));
        const char *comma = " ";
        for (int b = 0; b < ACT_TICKET_ACTIONS; b++)
            if (r->actions >> b & 1) {
                fprintf(f, "%s%s", comma, act_ticket_action_name(b));
                comma = ", ";
            }
        fprintf(f, " |\n");
    }
}
