#include "actors/figures.h"

#include <string.h>

void act_figures_send(struct act_self *self, struct act_addr observer, enum act_figures_kind kind,
                      const uint64_t *counters, int n)
{
    struct act_msg m;
    size_t bytes;
    if (act_addr_is_nobody(observer) || act_msg_new(ACT_FIGURES, observer, (size_t)n * sizeof *counters, &m))
        return;
    act_p_figures(&m)->kind = kind;
    memcpy(act_msg_tail(&m, &bytes), counters, (size_t)n * sizeof *counters);
    if (act_send(self, &m))
        act_msg_drop(&m);
}
