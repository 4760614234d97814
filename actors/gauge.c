#include "actors/gauge.h"

#include "actors/runtime/runtime.h"

struct gauge {
    struct act_gauge_arg *arg;
};

static void ask(struct act_self *self, const struct act_gauge_arg *g, int i)
{
    struct act_msg m = act_msg_make(ACT_LOAD_WANTED, g->who[i]);
    if (act_addr_is_nobody(g->who[i]))
        return;
    if (act_send(self, &m))
        act_msg_drop(&m);
    act_monitor(self, g->who[i], (uint32_t)i);
}

static int gauge_start(struct act_self *self, void *state, const void *arg)
{
    struct gauge *g = state;
    g->arg = (struct act_gauge_arg *)(uintptr_t)arg;
    for (int i = 0; i < g->arg->n; i++)
        ask(self, g->arg, i);
    return 0;
}

static int gauge_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct act_gauge_arg *a = ((struct gauge *)state)->arg;
    for (int k = 0; k < count; k++) {
        int i = 0;
        if (m[k].type == ACT_LOAD) {
            while (i < a->n && !act_addr_equal(a->who[i], act_p_load(&m[k])->who))
                i++;
            if (i < a->n)
                a->load[i] = *act_b_load(&m[k]);
        } else if (m[k].type == ACT_DOWN && act_p_down(&m[k])->tag < (uint32_t)a->n) {
            i = (int)act_p_down(&m[k])->tag;
            a->who[i] = act_current(act_self_runtime(self), act_p_down(&m[k])->who);
            a->load[i] = (struct act_b_load){0};
            ask(self, a, i);
        }
    }
    return 0;
}

const struct act_behaviour act_gauge_behaviour = {
    .name = "gauge", .state_size = sizeof(struct gauge), .start = gauge_start, .receive = gauge_receive};

struct act_b_load act_gauge_sum(const struct act_gauge_arg *g, unsigned role)
{
    struct act_b_load sum = {0};
    for (int i = 0; i < g->n; i++) {
        if (g->role[i] != role)
            continue;
        sum.running += g->load[i].running;
        sum.waiting += g->load[i].waiting;
        sum.tokens_outstanding += g->load[i].tokens_outstanding;
        sum.pages_free = g->load[i].pages_free;
        sum.pages_total = g->load[i].pages_total;
        sum.experts |= g->load[i].experts;
    }
    return sum;
}
