/* group_sync: one draft budget for all Decode actors of a deployment, for backends whose ranks must run steps of one
 * shape. Off by default, where every Decode plans its own batch.
 *
 * The first Decode actor of the decode node with the lowest number leads: it plans as ever, but for the member with the
 * most requests, and tells the others how deep to draft and how many drafts per request to verify. They tell it how
 * many requests they have. A figure is used from the member's next step on, so it lags by the message; one that is
 * late, lost or old is not waited for: the member then plans for itself.
 *
 * Part of a Decode actor's state; that actor alone calls it. */
#ifndef WEFT_ACTORS_GROUP_H
#define WEFT_ACTORS_GROUP_H

#include "actors/engine.h"
#include "actors/runtime/runtime.h"

enum { ACT_GROUP_NODES = 256, ACT_GROUP_FRESH_MS = 1000, ACT_GROUP_REPEAT_MS = 100 };

struct act_group {
    struct act_self *self;
    const struct act_engine *e;
    bool asked; /* for the other nodes */
    struct act_group_node {
        uint16_t node, peer;
        struct act_addr landing; /* nobody: the place is free */
    } node[ACT_GROUP_NODES];
    struct act_group_member {
        struct act_addr addr;
        int requests;
        int64_t until;
    } member[ACT_GROUP_NODES]; /* of whom this one is the leader */
    uint32_t sequence;         /* of the last figure or count that was sent */
    int64_t sent_at;
    int sent_depth, sent_requests;
    uint32_t sent_share;
    /* The last figure that came. */
    struct act_addr leader;
    uint16_t leader_node;
    uint32_t seen;
    struct act_plan_given given;
    int64_t until;
};

void act_group_init(struct act_group *g, struct act_self *self, const struct act_engine *e);
/* Before a step of n requests is planned: the figure to plan with, or NULL: plan for yourself. *scale: for how many
 * times its own requests a leader plans, at least 1. */
const struct act_plan_given *act_group_before(struct act_group *g, int n, double *scale);
/* After it: a leader tells what it has chosen. */
void act_group_after(struct act_group *g, int n, const struct act_plan_choice *choice);
/* GROUP_BUDGET, GROUP_COUNT, NODE_UP, NODE_DOWN. */
void act_group_message(struct act_group *g, struct act_msg *m);

#endif
