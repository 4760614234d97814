#include "actors/eplb.h"

#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

/* ---- the algorithm ---- */

/* Memory for one layer. */
struct scratch {
    int *order, *bin, *rank; /* of packing */
    float *weight, *bin_weight;
    int *fill;
    int *node_expert; /* [experts] node-major: which expert stands at this place */
    int *copy_of;     /* [copies of a node] place in the node */
    int *copies;      /* [experts of a node] */
};

static int scratch_new(const struct act_eplb_shape *s, struct scratch *t)
{
    size_t n = (size_t)s->copies;
    *t = (struct scratch){.order = malloc(n * sizeof(int)),
                          .bin = malloc(n * sizeof(int)),
                          .rank = malloc(n * sizeof(int)),
                          .weight = malloc(n * sizeof(float)),
                          .bin_weight = malloc(n * sizeof(float)),
                          .fill = malloc(n * sizeof(int)),
                          .node_expert = malloc(n * sizeof(int)),
                          .copy_of = malloc(n * sizeof(int)),
                          .copies = malloc(n * sizeof(int))};
    return t->order && t->bin && t->rank && t->weight && t->bin_weight && t->fill && t->node_expert && t->copy_of &&
                   t->copies
               ? 0
               : -ENOMEM;
}

static void scratch_free(struct scratch *t)
{
    free(t->order);
    free(t->bin);
    free(t->rank);
    free(t->weight);
    free(t->bin_weight);
    free(t->fill);
    free(t->node_expert);
    free(t->copy_of);
    free(t->copies);
}

/* By weight, descending; equal ones keep their order. n is small and this runs seldom. */
static void sort_by_weight(const float *weight, int n, int *order)
{
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && weight[order[at - 1]] < weight[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* n items into `bins` bins of n / bins each: heaviest first, into the lightest bin with room. */
static void pack(struct scratch *t, const float *weight, int n, int bins)
{
    int each = n / bins;
    if (each == 1) {
        for (int i = 0; i < n; i++) {
            t->bin[i] = i;
            t->rank[i] = 0;
        }
        return;
    }
    sort_by_weight(weight, n, t->order);
    memset(t->fill, 0, (size_t)bins * sizeof *t->fill);
    for (int b = 0; b < bins; b++)
        t->bin_weight[b] = 0.0f;
    for (int i = 0; i < n; i++) {
        int item = t->order[i], best = -1;
        for (int b = 0; b < bins; b++)
            if (t->fill[b] < each && (best < 0 || t->bin_weight[b] < t->bin_weight[best]))
                best = b;
        t->bin[item] = best;
        t->rank[item] = t->fill[best]++;
        t->bin_weight[best] += weight[item];
    }
}

/* Copies 0..n-1 are the experts themselves; each further one goes to the most load per copy. */
static void replicate(const float *load, int n, int target, int *copy_of, int *copies)
{
    for (int i = 0; i < n; i++) {
        copy_of[i] = i;
        copies[i] = 1;
    }
    for (int i = n; i < target; i++) {
        int best = 0;
        for (int e = 1; e < n; e++)
            if (load[e] / (float)copies[e] > load[best] / (float)copies[best])
                best = e;
        copy_of[i] = best;
        copies[best]++;
    }
}

/* Experts of node 0 first, then of node 1, ..; group by group in the order in which they were packed. */
static void split_over_nodes(struct scratch *t, const struct act_eplb_shape *s, const float *load)
{
    int size = s->experts / s->groups, each = s->groups / s->nodes;
    for (int g = 0; g < s->groups; g++) {
        t->weight[g] = 0.0f;
        for (int i = 0; i < size; i++)
            t->weight[g] += load[g * size + i];
    }
    pack(t, t->weight, s->groups, s->nodes);
    for (int g = 0; g < s->groups; g++)
        for (int i = 0; i < size; i++)
            t->node_expert[(t->bin[g] * each + t->rank[g]) * size + i] = g * size + i;
}

static int plan_layer(const struct act_eplb_shape *s, struct scratch *t, const float *load, int32_t *expert,
                      int32_t *count)
{
    int per_node = s->experts / s->nodes, copies = s->copies / s->nodes, each = s->copies / s->shards;
    float *local = malloc((size_t)per_node * sizeof *local);
    if (!local)
        return -ENOMEM;
    split_over_nodes(t, s, load);
    for (int node = 0; node < s->nodes; node++) {
        const int *ids = t->node_expert + node * per_node;
        for (int i = 0; i < per_node; i++)
            local[i] = load[ids[i]];
        replicate(local, per_node, copies, t->copy_of, t->copies);
        for (int i = 0; i < copies; i++)
            t->weight[i] = local[t->copy_of[i]] / (float)t->copies[t->copy_of[i]];
        pack(t, t->weight, copies, s->shards / s->nodes);
        for (int i = 0; i < copies; i++)
            expert[node * copies + t->bin[i] * each + t->rank[i]] = ids[t->copy_of[i]];
        for (int i = 0; count && i < per_node; i++)
            count[ids[i]] = t->copies[i];
    }
    free(local);
    return 0;
}

int act_eplb_plan(const struct act_eplb_shape *shape, const float *load, int32_t *expert, int32_t *count)
{
    struct act_eplb_shape s = *shape;
    if (s.layers < 1 || s.experts < 1 || s.groups < 1 || s.nodes < 1 || s.shards < 1 || s.experts % s.groups ||
        s.shards % s.nodes || s.copies % s.shards || s.copies < s.experts)
        return -EINVAL;
    if (s.groups % s.nodes)
        s.groups = s.nodes = 1;
    struct scratch t;
    int r = scratch_new(&s, &t);
    for (int l = 0; l < s.layers && !r; l++)
        r = plan_layer(&s, &t, load + (size_t)l * (size_t)s.experts, expert + (size_t)l * (size_t)s.copies,
                       count ? count + (size_t)l * (size_t)s.experts : NULL);
    scratch_free(&t);
    return r;
}

/* ---- from a plan to a placement ---- */

/* The assignment of n rows to n columns with the least cost (the Hungarian method with potentials, O(n^3)); column of
 * row i in to[i]. work: (n + 1) * 4 values. */
static void assign(const int *cost, int n, int *to, int *work)
{
    int *u = work, *v = u + n + 1, *row_of = v + n + 1, *way = row_of + n + 1;
    memset(work, 0, (size_t)(n + 1) * 4 * sizeof *work);
    for (int i = 1; i <= n; i++) {
        int least[ACT_SHARDS_MAX + 1];
        bool done[ACT_SHARDS_MAX + 1] = {false};
        int at = 0;
        row_of[0] = i;
        for (int j = 0; j <= n; j++)
            least[j] = 1 << 30;
        do {
            int row = row_of[at], step = 1 << 30, next = 0;
            done[at] = true;
            for (int j = 1; j <= n; j++) {
                if (done[j])
                    continue;
                int c = cost[(row - 1) * n + j - 1] - u[row] - v[j];
                if (c < least[j]) {
                    least[j] = c;
                    way[j] = at;
                }
                if (least[j] < step) {
                    step = least[j];
                    next = j;
                }
            }
            for (int j = 0; j <= n; j++) {
                if (done[j]) {
                    u[row_of[j]] += step;
                    v[j] -= step;
                } else {
                    least[j] -= step;
                }
            }
            at = next;
        } while (row_of[at]);
        for (; at; at = way[at])
            row_of[at] = row_of[way[at]];
    }
    for (int j = 1; j <= n; j++)
        to[row_of[j] - 1] = j - 1;
}

static bool among(const int32_t *list, int n, int32_t expert)
{
    for (int i = 0; i < n; i++)
        if (list[i] == expert)
            return true;
    return false;
}

/* How much busier the busiest shard may be than in the plan, for the sake of moving less. */
#define PLAN_SLACK 1.03f

struct mover {
    const struct act_map *before;
    struct act_map *after;
    const int *shard; /* [alive] of the deployment */
    int alive;
    int *cost, *to, *work;
    const int32_t *want; /* [experts] copies, of the layer at hand */
    float *sum;          /* [alive] */
    float *each;         /* [experts] load of one copy */
    int *order;          /* [experts] */
};

/* Experts that stay keep their slot; the others fill what is left. */
static void fill_slots(const struct mover *m, int layer, int shard, const int32_t *wanted)
{
    struct act_map *a = m->after;
    int32_t *slot = act_map_slots(a, layer, shard);
    const int32_t *old = m->before ? act_map_slots(m->before, layer, shard) : NULL;
    int both = m->before && m->before->slots < a->slots ? m->before->slots : a->slots, next = 0;
    for (int i = 0; old && i < both; i++)
        if (old[i] >= 0 && among(wanted, a->slots, old[i]))
            slot[i] = old[i];
    for (int i = 0; i < a->slots; i++) {
        if (wanted[i] < 0 || among(slot, a->slots, wanted[i]))
            continue;
        while (slot[next] >= 0)
            next++;
        slot[next] = wanted[i];
    }
}

/* The plan with its shards renamed: new shard i becomes the shard that lacks least of it. */
static void rename_layer(const struct mover *m, int layer, const int32_t *expert)
{
    int n = m->alive, slots = m->after->slots;
    for (int i = 0; i < n; i++)
        m->to[i] = i;
    for (int i = 0; i < n && m->before; i++)
        for (int j = 0; j < n; j++) {
            const int32_t *old = act_map_slots(m->before, layer, m->shard[j]);
            int lacking = 0;
            for (int k = 0; k < slots; k++)
                lacking += !among(expert + i * slots, k, expert[i * slots + k]) &&
                           !among(old, m->before->slots, expert[i * slots + k]);
            m->cost[i * n + j] = lacking;
        }
    if (m->before)
        assign(m->cost, n, m->to, m->work);
    for (int i = 0; i < n; i++)
        fill_slots(m, layer, m->shard[m->to[i]], expert + i * slots);
}

static void clear_layer(const struct mover *m, int layer)
{
    int32_t *slot = act_map_slots(m->after, layer, 0);
    for (int i = 0; i < m->after->shards * m->after->slots; i++)
        slot[i] = -1;
}

/* Shards that hold an expert, as it stands. */
static int holders(const struct mover *m, int layer, int expert)
{
    int n = 0;
    for (int j = 0; j < m->alive; j++)
        n += among(act_map_slots(m->after, layer, m->shard[j]), m->after->slots, expert);
    return n;
}

/* What each shard has to do when an expert's load is spread over its copies. */
static void sum_up(const struct mover *m, int layer, const float *load)
{
    const struct act_map *a = m->after;
    for (int e = 0; e < a->experts; e++) {
        int n = holders(m, layer, e);
        m->each[e] = n ? load[e] / (float)n : load[e];
    }
    for (int j = 0; j < m->alive; j++) {
        const int32_t *slot = act_map_slots(a, layer, m->shard[j]);
        m->sum[j] = 0.0f;
        for (int k = 0; k < a->slots; k++)
            m->sum[j] += slot[k] >= 0 && !among(slot, k, slot[k]) ? m->each[slot[k]] : 0.0f;
    }
}

static float busiest(const struct mover *m)
{
    float most = 0.0f;
    for (int j = 0; j < m->alive; j++)
        most = m->sum[j] > most ? m->sum[j] : most;
    return most;
}

static int moved(const struct mover *m, int layer)
{
    int n = 0;
    for (int j = 0; j < m->alive; j++) {
        const int32_t *slot = act_map_slots(m->after, layer, m->shard[j]);
        const int32_t *old = act_map_slots(m->before, layer, m->shard[j]);
        for (int k = 0; k < m->after->slots; k++)
            n += slot[k] >= 0 && !among(slot, k, slot[k]) && !among(old, m->before->slots, slot[k]);
    }
    return n;
}

/* Of the shards that hold the expert (holds) or lack it and have room, the busiest or the idlest; -1: none. */
static int pick_shard(const struct mover *m, int layer, int expert, bool holds)
{
    int best = -1;
    for (int j = 0; j < m->alive; j++) {
        const int32_t *slot = act_map_slots(m->after, layer, m->shard[j]);
        bool has = among(slot, m->after->slots, expert);
        if (has != holds || (!holds && !among(slot, m->after->slots, -1)))
            continue;
        if (best < 0 || (holds ? m->sum[j] > m->sum[best] : m->sum[j] < m->sum[best]))
            best = j;
    }
    return best;
}

static void put_slot(const struct mover *m, int layer, int shard, int32_t from, int32_t to)
{
    int32_t *slot = act_map_slots(m->after, layer, m->shard[shard]);
    for (int k = 0; k < m->after->slots; k++)
        if (slot[k] == from) {
            slot[k] = to;
            return;
        }
}

/* As many copies as the plan has: surplus ones leave the busiest shards, new ones join the idlest, heaviest first, and
 * experts that are nowhere before all others. */
static void match_counts(const struct mover *m, int layer, const float *load)
{
    int experts = m->after->experts;
    for (int e = 0; e < experts; e++)
        for (int n = holders(m, layer, e); n > m->want[e]; n--) {
            int j = pick_shard(m, layer, e, true);
            put_slot(m, layer, j, e, -1);
            m->sum[j] -= m->each[e];
        }
    for (int e = 0; e < experts; e++)
        m->each[e] = load[e] / (float)m->want[e];
    sort_by_weight(m->each, experts, m->order);
    for (int nowhere = 1; nowhere >= 0; nowhere--)
        for (int i = 0; i < experts; i++) {
            int e = m->order[i], n = holders(m, layer, e), j;
            if (nowhere ? n > 0 : n == m->want[e])
                continue;
            for (; n < (nowhere ? 1 : m->want[e]) && (j = pick_shard(m, layer, e, false)) >= 0; n++) {
                put_slot(m, layer, j, -1, e);
                m->sum[j] += m->each[e];
            }
        }
}

/* Exchanges one expert of the busiest shard for a lighter one of another, or for an empty slot. False: no exchange
 * makes the busier of the two less busy. */
static bool swap_once(const struct mover *m, int layer)
{
    int slots = m->after->slots, busy = 0, other = -1, mine = 0, theirs = 0;
    for (int j = 1; j < m->alive; j++)
        busy = m->sum[j] > m->sum[busy] ? j : busy;
    int32_t *a = act_map_slots(m->after, layer, m->shard[busy]);
    float best = m->sum[busy] * 0.999f;
    for (int j = 0; j < m->alive; j++) {
        const int32_t *b = act_map_slots(m->after, layer, m->shard[j]);
        for (int i = 0; i < slots && j != busy; i++)
            for (int k = 0; k < slots && a[i] >= 0 && !among(b, slots, a[i]); k++) {
                if (b[k] >= 0 && among(a, slots, b[k]))
                    continue;
                float by = m->each[a[i]] - (b[k] >= 0 ? m->each[b[k]] : 0.0f);
                float left = m->sum[busy] - by, right = m->sum[j] + by;
                float most = left > right ? left : right;
                if (most < best) {
                    best = most;
                    other = j;
                    mine = i;
                    theirs = k;
                }
            }
    }
    if (other < 0)
        return false;
    int32_t *b = act_map_slots(m->after, layer, m->shard[other]);
    float by = m->each[a[mine]] - (b[theirs] >= 0 ? m->each[b[theirs]] : 0.0f);
    int32_t keep = a[mine];
    a[mine] = b[theirs];
    b[theirs] = keep;
    m->sum[busy] -= by;
    m->sum[other] += by;
    return true;
}

/* What is there, changed as far as it takes to be about as good as the plan. */
static float repair_layer(const struct mover *m, int layer, const float *load, float goal)
{
    clear_layer(m, layer);
    for (int j = 0; j < m->alive; j++) {
        const int32_t *old = act_map_slots(m->before, layer, m->shard[j]);
        int32_t *slot = act_map_slots(m->after, layer, m->shard[j]);
        for (int k = 0; k < m->before->slots; k++) {
            if (old[k] < 0 || among(old, k, old[k]))
                continue;
            if (k < m->after->slots)
                slot[k] = old[k];
            else
                put_slot(m, layer, j, -1, old[k]);
        }
    }
    sum_up(m, layer, load);
    match_counts(m, layer, load);
    sum_up(m, layer, load);
    for (int i = 0; i < 4 * m->alive && busiest(m) > goal * PLAN_SLACK && swap_once(m, layer); i++)
        ;
    return busiest(m);
}

/* The plan's own arrangement when it is clearly better than a repair, or moves no more. */
static void place_layer(const struct mover *m, int layer, const int32_t *expert, const float *load)
{
    rename_layer(m, layer, expert);
    if (!m->before)
        return;
    sum_up(m, layer, load);
    float goal = busiest(m);
    int moves = moved(m, layer);
    float most = repair_layer(m, layer, load, goal);
    if (most > goal * PLAN_SLACK || moved(m, layer) >= moves) {
        clear_layer(m, layer);
        rename_layer(m, layer, expert);
    }
}

/* Shared memory of all layers. */
static int mover_new(struct mover *m, int experts)
{
    size_t a = (size_t)m->alive, e = (size_t)experts;
    m->cost = malloc(a * a * sizeof(int));
    m->to = malloc(a * sizeof(int));
    m->work = malloc((a + 1) * 4 * sizeof(int));
    m->sum = malloc(a * sizeof(float));
    m->each = malloc(e * sizeof(float));
    m->order = malloc(e * sizeof(int));
    return m->cost && m->to && m->work && m->sum && m->each && m->order ? 0 : -ENOMEM;
}

static void mover_free(struct mover *m)
{
    free(m->cost);
    free(m->to);
    free(m->work);
    free(m->sum);
    free(m->each);
    free(m->order);
}

int act_eplb_place(uint32_t version, int layers, int experts, int shards, int slots, const struct act_shard_set *gone,
                   const float *load, const struct act_map *before, struct act_map **out)
{
    int shard[ACT_SHARDS_MAX], alive = 0;
    *out = NULL;
    if (shards < 1 || shards > ACT_SHARDS_MAX || layers < 1 || experts < 1 ||
        (before && (before->layers != layers || before->experts != experts || before->shards != shards)))
        return -EINVAL;
    for (int s = 0; s < shards; s++)
        if (!act_shard_in(gone, s))
            shard[alive++] = s;
    if (!alive)
        return -EHOSTDOWN;
    int need = (experts + alive - 1) / alive;
    slots = slots > need ? slots : need;
    slots = slots < experts ? slots : experts;
    struct act_eplb_shape shape = {layers, experts, slots * alive, 1, 1, alive};
    size_t n = (size_t)experts, copies = (size_t)shape.copies;
    int32_t *expert = malloc((size_t)layers * copies * sizeof *expert),
            *count = malloc((size_t)layers * n * sizeof *count);
    struct mover m = {.before = before, .shard = shard, .alive = alive};
    int r = mover_new(&m, experts);
    if (!r)
        r = expert && count ? act_eplb_plan(&shape, load, expert, count) : -ENOMEM;
    if (!r)
        r = act_map_new(version, layers, experts, shards, slots, &m.after);
    for (size_t i = 0; i < (size_t)layers * n && !r; i++)
        count[i] = count[i] < alive ? count[i] : alive;
    for (size_t l = 0; l < (size_t)layers && !r; l++) {
        m.want = count + l * n;
        place_layer(&m, (int)l, expert + l * copies, load + l * n);
    }
    if (!r)
        r = act_map_index(m.after);
    if (r)
        act_map_free(m.after);
    else
        *out = m.after;
    free(expert);
    free(count);
    mover_free(&m);
    return r;
}

/* ---- what a plan costs and gains ---- */

int act_eplb_moves(const struct act_map *before, const struct act_map *after)
{
    int moves = 0;
    for (int l = 0; l < after->layers; l++)
        for (int e = 0; e < after->experts; e++) {
            int n;
            const uint16_t *o = act_map_owners(after, l, e, &n);
            for (int i = 0; i < n; i++)
                moves += !act_map_holds(before, l, o[i], e);
        }
    return moves;
}

static double layer_imbalance(const struct act_map *p, int layer, const struct act_shard_set *gone, const float *load)
{
    double of[ACT_SHARDS_MAX] = {0}, sum = 0, most = 0;
    int alive = 0;
    for (int e = 0; e < p->experts; e++) {
        int n, serving = 0;
        const uint16_t *o = act_map_owners(p, layer, e, &n);
        for (int i = 0; i < n; i++)
            serving += !act_shard_in(gone, o[i]);
        for (int i = 0; i < n; i++)
            if (!act_shard_in(gone, o[i]))
                of[o[i]] += (double)load[e] / serving;
        sum += serving ? (double)load[e] : 0.0;
    }
    for (int s = 0; s < p->shards; s++) {
        alive += !act_shard_in(gone, s);
        most = of[s] > most ? of[s] : most;
    }
    return sum > 0 && alive ? most * alive / sum : 0.0;
}

double act_eplb_imbalance(const struct act_map *p, const struct act_shard_set *gone, const float *load)
{
    double sum = 0;
    int n = 0;
    for (int l = 0; l < p->layers; l++) {
        double one = layer_imbalance(p, l, gone, load + (size_t)l * (size_t)p->experts);
        sum += one;
        n += one > 0;
    }
    return n ? sum / n : 1.0;
}

bool act_eplb_worth(const struct act_map *before, const struct act_map *after, const struct act_shard_set *gone,
                    const float *load, double gain)
{
    return act_eplb_imbalance(before, gone, load) - act_eplb_imbalance(after, gone, load) > gain;
}
