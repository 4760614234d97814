/* From the configuration and the checkpoint's files to the row store of Engram tables. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "actors/server_engram.h"
#include "actors/server_impl.h"

enum { DEPTH = 256 };

/* Rows asked for ahead wait here when nothing else is cached. */
#define AHEAD_BYTES (INT64_C(16) << 20)

static bool part_of(const struct mdl_checkpoint *ck, const char *folder, int layer, const char *what,
                    struct kv_rows_part *out)
{
    char name[64];
    snprintf(name, sizeof name, "layers.%d.engram.embed.%s", layer, what);
    const struct mdl_tensor *t = mdl_checkpoint_tensor(ck, name);
    size_t n = strlen(folder);
    if (!t || strncmp(t->file, folder, n))
        return false;
    for (out->file = t->file + n; *out->file == '/'; out->file++)
        ;
    out->offset = t->offset;
    out->bytes = (uint32_t)(t->bytes / (size_t)t->shape[0]);
    return true;
}

int act_server_engram_rows(const struct cfg_config *c, const struct mdl_checkpoint *ck, struct kv_storage **storage,
                           struct kv_rows **rows, struct cfg_error *err)
{
    const struct mdl_config *m = &ck->config;
    struct kv_rows_params p = {.folder = c->model.path,
                               .n_tables = m->n_engram,
                               .cache_bytes = c->engram.store == CFG_ENGRAM_HOST ? c->engram.cache : AHEAD_BYTES,
                               .direct = c->engram.store == CFG_ENGRAM_SSD,
                               .clock = kv_clock_system};
    *storage = NULL;
    *rows = NULL;
    if (!m->n_engram || c->engram.store == CFG_ENGRAM_MAPPED)
        return 0;
    if (m->n_engram > KV_ROWS_TABLES)
        return cfg_error_set(err, EINVAL, "%s: %d Engram tables; engram.store can read %d, use \"mapped\"",
                             c->model.path, m->n_engram, KV_ROWS_TABLES);
    for (int e = 0; e < m->n_engram; e++) {
        struct kv_rows_table *t = &p.table[e];
        t->n_parts = 2;
        t->rows = (uint64_t)m->engram_rows[e];
        if (!part_of(ck, c->model.path, m->engram_layers[e], "weight", &t->part[0]) ||
            !part_of(ck, c->model.path, m->engram_layers[e], "scale", &t->part[1]))
            return cfg_error_set(err, EINVAL,
                                 "%s: the tables of layer %d are not in files below it; use engram.store = "
                                 "\"mapped\"",
                                 c->model.path, m->engram_layers[e]);
    }
    int r = kv_storage_uring_new(c->model.path, DEPTH, storage, err);
    if (r)
        return r;
    p.storage = *storage;
    return kv_rows_new(&p, rows, err);
}

int server_engram_open(struct act_server *s, struct cfg_error *err)
{
    struct act_engram_store *e = &s->engram;
    int r = act_server_engram_rows(s->config, s->m->ck, &e->storage, &e->rows, err);
    e->clock = kv_clock_system;
    e->observer = &s->engine.observer;
    return r;
}

int server_spawn_engram(struct act_server *s, struct cfg_error *err)
{
    const struct act_spawn spec = {
        .behaviour = &act_engram_store_behaviour, .worker = SERVER_WORKER_TIER, .arg = &s->engram, .outbox = 1024};
    return s->engram.rows ? act_runtime_spawn(s->rt, &spec, &s->engine.experts.engram, err) : 0;
}

void server_engram_close(struct act_server *s)
{
    kv_rows_free(s->engram.rows);
    kv_storage_free(s->engram.storage);
    s->engram = (struct act_engram_store){0};
}
