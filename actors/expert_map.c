#include "actors/expert_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 1024, EXPERTS_MAX = 4096 };

int act_map_new(uint32_t version, int layers, int experts, int shards, int slots, struct act_map **out)
{
    *out = NULL;
    if (layers < 1 || layers > LAYERS_MAX || experts < 1 || experts > EXPERTS_MAX || shards < 1 ||
        shards > ACT_SHARDS_MAX || slots < 1 || slots > experts)
        return -EINVAL;
    struct act_map *p = calloc(1, sizeof *p);
    size_t n = (size_t)layers * (size_t)shards * (size_t)slots;
    if (p)
        *p = (struct act_map){
            .version = version, .layers = layers, .experts = experts, .shards = shards, .slots = slots, .refs = 1};
    if (p && (p->slot = malloc(n * sizeof *p->slot))) {
        memset(p->slot, 0xff, n * sizeof *p->slot);
        *out = p;
        return 0;
    }
    free(p);
    return -ENOMEM;
}

struct act_map *act_map_share(struct act_map *p)
{
    p->refs++;
    return p;
}

void act_map_free(struct act_map *p)
{
    if (!p || --p->refs)
        return;
    free(p->slot);
    free(p->first);
    free(p->owner);
    free(p);
}

int act_map_even(uint32_t version, int layers, int experts, int shards, struct act_map **out)
{
    int r = act_map_new(version, layers, experts, shards, (experts + shards - 1) / (shards > 0 ? shards : 1), out);
    if (r)
        return r;
    struct act_map *p = *out;
    for (int l = 0; l < layers; l++)
        for (int s = 0; s < shards; s++)
            for (int e = experts * s / shards, i = 0; e < experts * (s + 1) / shards; e++)
                act_map_slots(p, l, s)[i++] = e;
    r = act_map_index(p);
    if (r) {
        act_map_free(p);
        *out = NULL;
    }
    return r;
}

/* Whether an earlier slot of the same shard holds the same expert: a second copy there is of no use. */
static bool is_copy(const int32_t *slots, int at)
{
    for (int i = 0; i < at; i++)
        if (slots[i] == slots[at])
            return true;
    return false;
}

/* Calls for every owner; counts when `owner` is NULL. */
static int index_layer(struct act_map *p, int layer, uint32_t *next, uint16_t *owner)
{
    for (int s = 0; s < p->shards; s++) {
        const int32_t *slots = act_map_slots(p, layer, s);
        for (int i = 0; i < p->slots; i++) {
            if (slots[i] < 0 || is_copy(slots, i))
                continue;
            if (slots[i] >= p->experts)
                return -EINVAL;
            uint32_t at = next[slots[i]]++;
            if (owner)
                owner[at] = (uint16_t)s;
        }
    }
    return 0;
}

int act_map_index(struct act_map *p)
{
    size_t experts = (size_t)p->experts, n = (size_t)p->layers * experts;
    uint32_t *next = calloc(experts, sizeof *next);
    p->first = calloc(n + 1, sizeof *p->first);
    p->owner = malloc((size_t)p->layers * (size_t)p->shards * (size_t)p->slots * sizeof *p->owner);
    int r = next && p->first && p->owner ? 0 : -ENOMEM;
    for (int l = 0; l < p->layers && !r; l++) {
        uint32_t *first = p->first + (size_t)l * experts;
        memset(next, 0, experts * sizeof *next);
        r = index_layer(p, l, next, NULL);
        for (size_t e = 0; e < experts && !r; e++) {
            r = next[e] ? 0 : -EINVAL;
            first[e + 1] = first[e] + next[e];
        }
        memcpy(next, first, experts * sizeof *next);
        if (!r)
            r = index_layer(p, l, next, p->owner);
    }
    free(next);
    return r;
}

bool act_map_holds(const struct act_map *p, int layer, int shard, int expert)
{
    int n;
    const uint16_t *o = act_map_owners(p, layer, expert, &n);
    for (int i = 0; i < n; i++)
        if (o[i] == shard)
            return true;
    return false;
}

/* ---- the form that travels ---- */

enum { HEAD_WORDS = 6 };

size_t act_map_bytes(const struct act_map *p)
{
    return HEAD_WORDS * sizeof(uint32_t) + (size_t)p->layers * (size_t)p->shards * (size_t)p->slots * sizeof(uint16_t);
}

void act_map_write(const struct act_map *p, void *to)
{
    const uint32_t head[HEAD_WORDS] = {p->version,          (uint32_t)p->layers, (uint32_t)p->experts,
                                       (uint32_t)p->shards, (uint32_t)p->slots,  0};
    memcpy(to, head, sizeof head);
    uint16_t *at = (uint16_t *)(void *)((uint8_t *)to + sizeof head);
    size_t n = (size_t)p->layers * (size_t)p->shards * (size_t)p->slots;
    for (size_t i = 0; i < n; i++)
        at[i] = p->slot[i] < 0 ? UINT16_MAX : (uint16_t)p->slot[i];
}

int act_map_read(const void *from, size_t bytes, struct act_map **out)
{
    uint32_t head[HEAD_WORDS];
    *out = NULL;
    if (bytes < sizeof head)
        return -EBADMSG;
    memcpy(head, from, sizeof head);
    for (int i = 1; i < HEAD_WORDS; i++)
        if (head[i] > EXPERTS_MAX)
            return -EBADMSG;
    if (bytes != sizeof head + (size_t)head[1] * head[3] * head[4] * sizeof(uint16_t))
        return -EBADMSG;
    struct act_map *p;
    int r = act_map_new(head[0], (int)head[1], (int)head[2], (int)head[3], (int)head[4], &p);
    if (r)
        return r == -EINVAL ? -EBADMSG : r;
    const uint8_t *at = (const uint8_t *)from + sizeof head;
    for (size_t i = 0; i < (size_t)p->layers * (size_t)p->shards * (size_t)p->slots; i++) {
        uint16_t e;
        memcpy(&e, at + i * sizeof e, sizeof e);
        p->slot[i] = e == UINT16_MAX ? -1 : e;
    }
    r = act_map_index(p);
    if (r) {
        act_map_free(p);
        return r == -EINVAL ? -EBADMSG : r;
    }
    *out = p;
    return 0;
}

/* ---- which replica a token uses ---- */

struct chooser {
    const struct act_map *p;
    const struct act_shard_set *out;
    int layer, in_service;
    bool takeover;
    uint32_t pairs[ACT_SHARDS_MAX];
};

/* The shard that stands in for an expert whose owners are all out of service. */
static int stand_in(const struct chooser *c, int expert)
{
    int skip = c->in_service ? (expert + c->layer) % c->in_service : 0;
    for (int s = 0; s < c->p->shards && c->takeover; s++)
        if (!act_shard_in(c->out, s) && !skip--)
            return s;
    return -1;
}

/* The only shard that can take the pair; -2 when there is a choice. */
static int forced(const struct chooser *c, int expert)
{
    int n, one = -1;
    const uint16_t *o = act_map_owners(c->p, c->layer, expert, &n);
    for (int i = 0; i < n; i++) {
        if (act_shard_in(c->out, o[i]))
            continue;
        if (one >= 0)
            return -2;
        one = o[i];
    }
    return one >= 0 ? one : stand_in(c, expert);
}

static int least_loaded(const struct chooser *c, int expert, const int16_t *row, int k, uint32_t turn)
{
    int n, best = -1;
    bool best_has = false;
    const uint16_t *o = act_map_owners(c->p, c->layer, expert, &n);
    for (int i = 0; i < n; i++) {
        int s = o[((uint32_t)i + turn) % (uint32_t)n];
        if (act_shard_in(c->out, s))
            continue;
        bool has = false;
        for (int j = 0; j < k; j++)
            has |= row[j] == s;
        if (best < 0 || c->pairs[s] < c->pairs[best] || (c->pairs[s] == c->pairs[best] && has && !best_has)) {
            best = s;
            best_has = has;
        }
    }
    return best;
}

int act_map_choose(const struct act_map *p, int layer, const int32_t *expert, int rows, int k,
                   const struct act_shard_set *out_of_service, bool takeover, uint32_t turn, int16_t *shard)
{
    struct chooser c = {.p = p, .out = out_of_service, .layer = layer, .takeover = takeover};
    int without = 0;
    for (int s = 0; s < p->shards; s++)
        c.in_service += !act_shard_in(out_of_service, s);
    for (int i = 0; i < rows * k; i++) {
        shard[i] = (int16_t)forced(&c, expert[i]);
        if (shard[i] >= 0)
            c.pairs[shard[i]]++;
        without += shard[i] == -1;
    }
    for (int i = 0; i < rows * k; i++) {
        if (shard[i] != -2)
            continue;
        const int16_t *row = shard + i / k * k;
        shard[i] = (int16_t)least_loaded(&c, expert[i], row, k, turn + (uint32_t)(i / k));
        c.pairs[shard[i]]++;
    }
    return without;
}
