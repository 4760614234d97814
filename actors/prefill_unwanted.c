/* Prompts that nobody waits for any more: cancelled ones, those of a node that is lost, attempts that a later one has
 * taken the place of. A queue of them would keep everybody else waiting. */
#include "actors/prefill_impl.h"

void pre_watch_nodes(struct prefill *p)
{
    struct act_msg m = act_msg_make(ACT_NODES_WATCH, p->e->link);
    if (!act_addr_is_nobody(p->e->link) && act_send(p->self, &m))
        act_msg_drop(&m);
}

/* A cancel may overtake the prompt that it means. */
bool pre_was_cancelled(struct prefill *p, uint64_t request, uint16_t attempt)
{
    bool yes = false;
    for (int i = 0; i < TOMBSTONES; i++)
        if (request && p->tombstone[i].request == request) {
            yes |= p->tombstone[i].attempt >= attempt;
            p->tombstone[i].request = 0;
        }
    return yes;
}

bool pre_end_older(struct prefill *p, uint64_t request, uint16_t attempt)
{
    bool newest = true;
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        if (j->request != request)
            continue;
        newest &= j->attempt < attempt;
        if (j->attempt < attempt)
            pre_job_cancel(p, j);
    }
    return newest;
}

void pre_take_cancel(struct prefill *p, const struct act_msg *m)
{
    bool known = false;
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        known |= j->request == m->request && j->attempt >= m->attempt;
        if (j->request == m->request && j->attempt <= m->attempt)
            pre_job_cancel(p, j);
    }
    if (!known)
        p->tombstone[p->next_tombstone++ % TOMBSTONES] = (struct tombstone){m->request, m->attempt};
}

/* The node may come back in the same life; its requests that were here are then on their way under new attempts, for it
 * has lost this node too. Only what the decoder has may have been heard of, and go on: that is for the Landing to
 * know. */
void pre_take_node_down(struct prefill *p, struct act_msg *m)
{
    for (struct job *j = p->first, *next; j; j = next) {
        next = j->next;
        if (j->requester.peer == act_p_node_down(m)->peer && j->state != JOB_CONFIRMING)
            pre_job_cancel(p, j);
    }
}
