#include "kvtiers/ssd_impl.h"

void ssd_sweep(struct ssd *t)
{
    int places = t->n_slabs * t->slab_blocks;
    for (int i = 0; t->p.ttl_s && i < SSD_SWEEP && i < places; i++) {
        ssd_expire(t, t->sweep_at);
        t->sweep_at = (t->sweep_at + 1) % places;
    }
}

/* Blocks of a slab have about one age. */
int64_t ssd_oldest(struct ssd *t)
{
    for (int i = 0; i < SSD_AGE_SLABS && t->age_at < t->n_slabs; i++, t->age_at++) {
        const struct ssd_slab *s = &t->slab[t->age_at];
        if (s->visible && (!t->age_best || s->first_s < t->age_best))
            t->age_best = s->first_s;
    }
    if (t->age_at == t->n_slabs) {
        t->oldest_s = t->age_best;
        t->age_best = t->age_at = 0;
    }
    return t->oldest_s ? t->p.clock.wall(t->p.clock.ctx) - t->oldest_s : 0;
}
