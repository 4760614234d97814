#include "cli/stale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPUTES = CFG_ROLE_PREFILL | CFG_ROLE_DECODE };

static void differs(void *ctx, const char *key, const char *was, const char *is)
{
    fprintf(ctx, "%s = %s (%s until then)\n", key, is, was);
}

static bool has_kv(const struct cfg_config *c)
{
    bool has = false;
    for (int i = 0; i < c->n_nodes; i++)
        has |= (c->nodes[i].roles & CFG_ROLE_KV) != 0;
    return has;
}

/* Names of the expert nodes of a group, in order. */
static char *members(const struct cfg_config *c, const char *group)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    for (int i = 0; f && i < c->n_nodes; i++)
        if (c->nodes[i].roles & CFG_ROLE_EXPERT && !strcmp(c->nodes[i].experts, group))
            fprintf(f, " %s", c->nodes[i].name);
    return f && fclose(f) == 0 ? text : NULL;
}

/* A group's shards are numbered over its nodes. */
static void look_at_group(FILE *f, const struct cfg_config *was, const struct cfg_node *self,
                          const struct cfg_config *is)
{
    char *before = members(was, self->experts), *now = members(is, self->experts);
    if (before && now && strcmp(before, now))
        fprintf(f, "the expert group \"%s\" is%s (%s until then): all its nodes have to be started again\n",
                self->experts, now[0] ? now : " empty", before[0] ? before + 1 : "empty");
    free(before);
    free(now);
}

static void look_at_node(FILE *f, const struct cfg_config *was, const struct cfg_node *self,
                         const struct cfg_config *is)
{
    const struct cfg_node *now = cfg_config_node(is, self->name);
    if (now)
        cfg_node_compare(self, now, differs, f);
    if (self->roles & (COMPUTES | CFG_ROLE_EXPERT) && was->n_nodes > 1)
        look_at_group(f, was, self, is);
    if (self->roles & COMPUTES && was->n_nodes > 1 && !cfg_uses_kv_nodes(was) && has_kv(is))
        fprintf(f, "kv nodes: this node was started without any, and without kv.nodes, and does not use them\n");
}

char *cli_stale(const struct cfg_config *was, const struct cfg_node *self, const struct cfg_config *is)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    cfg_config_compare(was, is, differs, f);
    if ((was->n_nodes > 1) != (is->n_nodes > 1))
        fprintf(f, "%d node%s (%d until then): one node alone has no connections to others\n", is->n_nodes,
                is->n_nodes == 1 ? "" : "s", was->n_nodes);
    if (self)
        look_at_node(f, was, self, is);
    if (fclose(f) || !size) {
        free(text);
        return NULL;
    }
    return text;
}
