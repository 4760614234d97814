/* Any bytes as config.json: refused with a message, or a config whose roles and sizes are consistent. */
#include <stdint.h>
#include <string.h>

#include "model/config.h"
#include "model/info.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int ok)
{
    if (!ok)
        __builtin_trap();
}

static void check_roles(const struct mdl_config *c)
{
    for (int l = 0; l < c->n_layers; l++) {
        const struct mdl_layer_role *r = &c->layer[l];
        require(r->engram < c->n_engram && (r->engram < 0 || c->engram_layers[r->engram] == l));
        if (r->mode == MDL_LAYER_SWA) {
            require(r->ratio == 0 && r->kv_source == -1 && r->index_source == -1);
            continue;
        }
        require(r->kv_source >= 0 && r->kv_source < c->n_kv_sources && c->kv_sources[r->kv_source] <= l);
        require(r->index_source >= c->kv_sources[r->kv_source] && r->index_source <= l);
        require(r->ratio == c->kv_source_ratio[r->kv_source]);
        require((r->mode == MDL_LAYER_FULL) == (c->kv_sources[r->kv_source] == l));
    }
    require(c->cut >= 0 ? c->cut == c->kv_sources[c->n_kv_sources - 1] : c->cut_reason[0] != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mdl_config c;
    struct mdl_info info;
    struct cfg_error err = {{0}};
    if (mdl_config_parse((const char *)data, size, "fuzz", &c, &err)) {
        require(err.msg[0] != 0);
        return 0;
    }
    check_roles(&c);
    if ((int64_t)c.n_experts * c.n_layers + (int64_t)c.draft_experts * c.n_draft < 2000) {
        mdl_info_compute(&c, &info);
        require(info.total_bytes > 0);
    }
    return 0;
}
