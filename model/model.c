#include "model/model.h"

#include <errno.h>
#include <stdlib.h>

int mdl_model_open(const char *dir, int threads, const char *cpu, struct mdl_model **out, struct cfg_error *err)
{
    return mdl_model_open_part(dir, MDL_PART_ALL, 0, threads, cpu, out, err);
}

int mdl_model_open_part(const char *dir, enum mdl_part part, uint64_t revision, int threads, const char *cpu,
                        struct mdl_model **out, struct cfg_error *err)
{
    *out = NULL;
    struct mdl_model *m = calloc(1, sizeof *m);
    if (!m)
        return cfg_error_set(err, ENOMEM, "model: out of memory");
    int r = mdl_backend_select(cpu ? cpu : getenv("WEFT_CPU"), &m->exec.be, err);
    if (!r)
        r = mdl_checkpoint_open_part(dir, part, revision, &m->ck, err);
    if (!r)
        r = mdl_team_new(threads ? threads : mdl_team_default_threads(), &m->team, err);
    if (r) {
        mdl_model_close(m);
        return r;
    }
    m->cfg = &m->ck->config;
    m->exec.cfg = m->cfg;
    m->exec.team = m->team;
    mdl_rope_init(m->cfg, &m->rope);
    *out = m;
    return 0;
}

void mdl_model_close(struct mdl_model *m)
{
    if (!m)
        return;
    mdl_team_free(m->team);
    mdl_checkpoint_close(m->ck);
    free(m);
}
