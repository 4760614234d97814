#include "actors/engram_fetch.h"

#include <string.h>

#include "actors/runtime/log.h"
#include "model/modules.h"

#define LATE_NS INT64_C(2000000000)

void act_engram_init(struct act_engram_fetch *e, struct act_self *self, struct mdl_model *m, uint16_t stream,
                     struct act_addr store, struct act_log *log)
{
    *e = (struct act_engram_fetch){
        .self = self, .m = m, .store = store, .stream = stream, .log = log, .late_ns = LATE_NS};
}

static int take_mapped(struct act_engram_fetch *e, struct mdl_step *step, struct mdl_engram_fetch *f)
{
    e->mapped += (uint64_t)f->pending;
    return mdl_providers_local.engram(NULL, step, f);
}

int act_engram_ask(struct act_engram_fetch *e, struct mdl_step *step, struct mdl_engram_fetch *f)
{
    struct act_msg m;
    size_t bytes;
    if (act_addr_is_nobody(e->store))
        return mdl_providers_local.engram(NULL, step, f);
    if (act_msg_new(ACT_ENGRAM_READ, e->store, (size_t)f->pending * sizeof(uint64_t), &m))
        return take_mapped(e, step, f);
    uint64_t *row = act_msg_tail(&m, &bytes), n = 0;
    for (int i = 0; i < f->rows * f->columns; i++)
        if (!f->have[i])
            row[n++] = (uint64_t)f->row_ids[i];
    *act_p_engram_read(&m) = (struct act_p_engram_read){.rows = (uint32_t)n, .table = (uint32_t)f->slot};
    m.request = (uint64_t)++e->sequence << 16 | e->stream;
    uint64_t request = m.request;
    if (act_request(e->self, &m)) {
        act_msg_drop(&m);
        return take_mapped(e, step, f);
    }
    e->wait[f->slot].f = f;
    e->wait[f->slot].step = step;
    e->wait[f->slot].request = request;
    act_timer_after(e->self, &e->timer, e->late_ns, ACT_ENGRAM_TAG | e->stream);
    return 0;
}

void act_engram_abandon(struct act_engram_fetch *e)
{
    memset(e->wait, 0, sizeof e->wait);
    if (e->self)
        act_timer_cancel(e->self, &e->timer);
}

static void say(struct act_engram_fetch *e, bool failing, const char *why)
{
    if (e->log && failing != e->failing)
        act_log_write(e->log, failing ? ACT_LOG_WARNING : ACT_LOG_INFO, "engram", 0, "stream %u: %s", e->stream,
                      failing ? why : "rows come from the row store again");
    e->failing = failing;
}

static void deliver(struct act_engram_fetch *e, struct mdl_engram_fetch *f, const uint8_t *rows)
{
    size_t dim = (size_t)e->m->cfg->engram_dim, size = dim + dim / 32;
    for (int i = 0; i < f->rows * f->columns; i++)
        if (!f->have[i]) {
            mdl_engram_deliver(f, i / f->columns, i % f->columns, (int)dim, rows, rows + dim);
            rows += size;
        }
}

static bool fall_back(struct act_engram_fetch *e, int slot, const char *why)
{
    struct mdl_engram_fetch *f = e->wait[slot].f;
    say(e, true, why);
    e->wait[slot].f = NULL;
    take_mapped(e, e->wait[slot].step, f);
    return true;
}

bool act_engram_message(struct act_engram_fetch *e, struct act_msg *m)
{
    size_t bytes, dim = (size_t)e->m->cfg->engram_dim;
    bool went_on = false;
    if (m->type == ACT_TIMER) {
        for (int s = 0; s < MDL_MAX_ENGRAM && act_p_timer(m)->tag == (ACT_ENGRAM_TAG | e->stream); s++)
            if (e->wait[s].f)
                went_on |=
                    fall_back(e, s, "the row store has not answered in time; rows come from the mapped checkpoint");
        return went_on;
    }
    for (int s = 0; s < MDL_MAX_ENGRAM; s++) {
        struct mdl_engram_fetch *f = e->wait[s].f;
        if (!f || e->wait[s].request != m->request)
            continue;
        if (m->type == ACT_UNDELIVERABLE)
            return fall_back(e, s, "the row store is gone; rows come from the mapped checkpoint");
        const uint8_t *rows = act_msg_tail(m, &bytes);
        if (act_p_engram_rows(m)->status || bytes < (size_t)f->pending * (dim + dim / 32))
            return fall_back(e, s, "the row store cannot read; rows come from the mapped checkpoint");
        say(e, false, NULL);
        e->wait[s].f = NULL;
        deliver(e, f, rows);
        return true;
    }
    return false;
}

void act_engram_ahead(struct act_engram_fetch *e, const int32_t *ids, int n_ids, int from, int n)
{
    const struct mdl_config *cfg = e->m->cfg;
    int columns = (cfg->engram_ngram - 1) * cfg->engram_heads;
    n = from + n < n_ids ? n : n_ids - from;
    for (int s = 0; s < cfg->n_engram && n > 0 && !act_addr_is_nobody(e->store); s++) {
        struct act_msg m;
        size_t bytes;
        if (act_msg_new(ACT_ENGRAM_AHEAD, e->store, (size_t)n * (size_t)columns * sizeof(int64_t), &m))
            return;
        int64_t *row = act_msg_tail(&m, &bytes);
        for (int i = 0; i < n; i++) {
            int32_t history[MDL_MAX_ENGRAM];
            for (int k = 0; k < cfg->engram_ngram; k++)
                history[k] = from + i - k < 0 ? -1 : ids[from + i - k];
            mdl_engram_rows(cfg, &e->m->ck->engram[s], e->m->ck->engram_map, history,
                            row + (size_t)i * (size_t)columns);
        }
        *act_p_engram_ahead(&m) = (struct act_p_engram_ahead){.rows = (uint32_t)(n * columns), .table = (uint32_t)s};
        if (act_send(e->self, &m))
            act_msg_drop(&m);
    }
}
