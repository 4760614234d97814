#include "tests/support/doubled_grant.h"

#include "tests/harness.h"

void ts_doubled_grant_free(struct ts_doubled_grant *d)
{
    act_msg_drop(&d->grant);
}

static bool is_writing(const struct ts_world *w)
{
    for (int i = 0; i < TS_WIRE_ENDS; i++)
        if (w->wire.end[i].first)
            return true;
    return false;
}

bool ts_double_grant(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                     int *fail)
{
    struct ts_doubled_grant *d = w->before_ctx;
    (void)fail;
    if (who->part != d->part || who->index != d->index)
        return false;
    bool granted = m->type == ACT_RESERVED && m->flags & ACT_MSG_REPLY && !act_p_reserved(m)->status && m->buf;
    if (granted && !d->request) {
        d->grant = *m;
        d->grant.buf = act_buf_copy(m->buf->data, m->buf->size);
        d->request = m->request;
    } else if (d->request && !d->cancelled && is_writing(w)) {
        ts_world_cancel(w, (int)d->request - 1);
        d->cancelled = true;
    } else if (d->heard && d->doubled < TS_DOUBLES && m->type != ACT_RESERVED && is_writing(w)) {
        struct act_msg again = d->grant; /* soon: what runs has to end before the writer leaves */
        again.dst = act_self_addr(self);
        again.flags = 0;
        again.buf = act_buf_copy(d->grant.buf->data, d->grant.buf->size);
        cr_assert_eq(act_forward(self, &again), 0);
        d->doubled++;
    }
    d->heard |= d->cancelled && m->type == ACT_CANCEL && m->request == d->request;
    return false;
}
