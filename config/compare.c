/* What two readings of a configuration differ in. */
#include "config/config.h"

#include <string.h>

#include "config/keys.h"

static void compare(int i, const void *was, const void *is, cfg_differs differs, void *ctx)
{
    char a[2 * CFG_PATH_TEXT], b[2 * CFG_PATH_TEXT];
    cfg_key_print(i, was, a, sizeof a);
    cfg_key_print(i, is, b, sizeof b);
    if (strcmp(a, b))
        differs(ctx, cfg_keys[i].path, a, b);
}

void cfg_config_compare(const struct cfg_config *was, const struct cfg_config *is, cfg_differs differs, void *ctx)
{
    for (int i = 0; i < cfg_n_keys; i++)
        if (cfg_keys[i].type != CFG_GROUP && cfg_keys[i].type != CFG_LIST && !strstr(cfg_keys[i].path, "[]") &&
            was->places[i].line != CFG_LINE_COMMAND)
            compare(i, was, is, differs, ctx);
}

void cfg_node_compare(const struct cfg_node *was, const struct cfg_node *is, cfg_differs differs, void *ctx)
{
    for (int i = 0; i < cfg_n_keys; i++)
        if (!strncmp(cfg_keys[i].path, "nodes[].", 8))
            compare(i, was, is, differs, ctx);
}

void cfg_config_overrides(struct cfg_config *c, const char *key)
{
    c->places[cfg_key_find(key)].line = CFG_LINE_COMMAND;
}

bool cfg_uses_kv_nodes(const struct cfg_config *c)
{
    bool uses = false;
    for (int i = 0; i < c->n_nodes; i++)
        uses |= (c->nodes[i].roles & CFG_ROLE_KV) != 0;
    for (int i = 0; i < cfg_n_keys; i++)
        uses |= !strncmp(cfg_keys[i].path, "kv.nodes.", 9) && c->places[i].line > 0;
    return c->n_nodes > 1 && uses;
}
