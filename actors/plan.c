#include "actors/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A draft that might be verified. */
struct act_plan_item {
    float survival;
    int position, request;
};

enum {
    EVIDENCE_MAX = 64,
    PROBE_EVERY = 32,      /* rounds between probes, at least */
    QUIET_ROUNDS = 16,     /* a search serves so many rounds in which nothing was drafted */
    SNAPSHOT_REQUESTS = 64 /* so many requests show how survivals scatter; fewer are averaged over earlier blocks */
};

static const double PRIOR = 0.8, PRIOR_GAIN = 1.0 / 128, FLAT = 1e-9;
static const double PROBE_NEAR = 0.1; /* loss of speed up to which probes have their whole share */
static const float SURVIVAL_FLOOR = 1e-6f;

int act_plan_init(struct act_plan *p, const struct act_plan_options *options, int block, int max_requests,
                  struct act_steptime *table)
{
    *p = (struct act_plan){.options = *options, .table = table, .block = block, .max_requests = max_requests};
    if (block < 0 || block > ACT_PLAN_BLOCK_MAX || max_requests < 1 || options->length < 0)
        return -EINVAL;
    if (options->mode == ACT_PLAN_DYNAMIC && block && (!table || !act_steptime_usable(table)))
        return -EINVAL;
    if (p->options.length > block)
        p->options.length = block;
    double survival = 1;
    for (int j = 0; j < block; j++)
        p->prior[j] = survival *= PRIOR;
    size_t items = (size_t)max_requests * (size_t)block;
    p->item = malloc((items + 1) * sizeof *p->item);
    p->gain = malloc(((items + 1) * (size_t)block + 1) * sizeof *p->gain);
    p->newest = malloc(((items + 1) * (size_t)block + 1) * sizeof *p->newest);
    p->verify_ns = malloc((items + 1) * sizeof *p->verify_ns);
    if (!p->item || !p->gain || !p->newest || !p->verify_ns) {
        act_plan_free(p);
        return -ENOMEM;
    }
    return 0;
}

void act_plan_free(struct act_plan *p)
{
    free(p->item);
    free(p->gain);
    free(p->newest);
    free(p->verify_ns);
    p->item = NULL;
    p->gain = p->newest = p->verify_ns = NULL;
}

/* ---- memory that travels ---- */

size_t act_plan_memory_save(const struct act_plan_memory *m, void *out)
{
    uint8_t *at = out;
    uint32_t n = (uint32_t)m->n;
    memcpy(at, &n, sizeof n);
    at += sizeof n;
    for (int i = 0; i < m->n; i++) {
        int k = (m->next - m->n + i + ACT_PLAN_MEMORY) % ACT_PLAN_MEMORY;
        uint32_t depth = (uint32_t)m->depth[k];
        memcpy(at, &depth, sizeof depth);
        at += sizeof depth;
        memcpy(at, m->survival[k], depth * sizeof(float));
        at += depth * sizeof(float);
    }
    return (size_t)(at - (uint8_t *)out);
}

static bool falls(const float *survival, uint32_t n)
{
    float before = 1;
    for (uint32_t j = 0; j < n; before = survival[j++])
        if (!(survival[j] >= 0 && survival[j] <= before))
            return false;
    return true;
}

int act_plan_memory_load(const void *from, size_t bytes, struct act_plan_memory *out)
{
    const uint8_t *at = from, *end = at + bytes;
    uint32_t n = 0;
    memset(out, 0, sizeof *out);
    if (!bytes)
        return 0;
    bool good = bytes >= sizeof n;
    if (good)
        memcpy(&n, at, sizeof n);
    at += sizeof n;
    good = good && n <= ACT_PLAN_MEMORY;
    for (uint32_t i = 0; good && i < n; i++) {
        uint32_t depth;
        good = (size_t)(end - at) >= sizeof depth;
        if (!good)
            break;
        memcpy(&depth, at, sizeof depth);
        at += sizeof depth;
        good = depth > 0 && depth <= ACT_PLAN_BLOCK_MAX && (size_t)(end - at) >= depth * sizeof(float);
        if (!good)
            break;
        memcpy(out->survival[i], at, depth * sizeof(float));
        at += depth * sizeof(float);
        out->depth[i] = (int)depth;
        good = falls(out->survival[i], depth);
    }
    if (good && at == end) {
        out->n = (int)n;
        out->next = (int)n % ACT_PLAN_MEMORY;
        return 0;
    }
    memset(out, 0, sizeof *out);
    return -EPROTO;
}

/* ---- what drafts promise ---- */

/* By falling survival; of equals the earlier position, then the earlier request: never by what was drafted. */
static int compare_items(const void *a, const void *b)
{
    const struct act_plan_item *x = a, *y = b;
    if (x->survival != y->survival)
        return x->survival < y->survival ? 1 : -1;
    return x->position != y->position ? x->position - y->position : x->request - y->request;
}

static double *curve_of(const struct act_plan *p, double *gains, int depth)
{
    return gains + (size_t)(depth - 1) * ((size_t)p->max_requests * (size_t)p->block + 1);
}

/* Adds `weight` times the sums of the largest survivals of the items, for every depth and budget. */
static void add_gains(struct act_plan *p, double *gains, int items, double weight)
{
    qsort(p->item, (size_t)items, sizeof *p->item, compare_items);
    for (int depth = 1; depth <= p->options.length; depth++) {
        double *gain = curve_of(p, gains, depth), sum = 0;
        int k = 0;
        for (int i = 0; i < items; i++)
            if (p->item[i].position < depth)
                gain[++k] += weight * (sum += (double)p->item[i].survival);
    }
}

static int cap_of(const struct act_plan *p, const struct act_plan_request *r)
{
    return r->cap < p->options.length ? (r->cap > 0 ? r->cap : 0) : p->options.length;
}

/* Sum of min(cap, depth): the largest budget of a depth. */
static int drafts_of(const struct act_plan *p, const struct act_plan_request *r, int n, int depth)
{
    int sum = 0;
    for (int i = 0; i < n; i++) {
        int cap = cap_of(p, &r[i]);
        sum += cap < depth ? cap : depth;
    }
    return sum;
}

/* Survival of draft `position` in the block `back` blocks ago; older than what is known: the oldest one that is deep
 * enough, at last the prior. A block that was drafted less deep says nothing of what lies behind its end, except that
 * it is no likelier. */
static float recall(const struct act_plan *p, const struct act_plan_memory *m, int back, int position)
{
    if (!m->n)
        return (float)p->prior[position];
    int at = (m->next - 1 - (back < m->n ? back : back % m->n) + 2 * ACT_PLAN_MEMORY) % ACT_PLAN_MEMORY;
    int depth = m->depth[at];
    if (position < depth)
        return m->survival[at][position];
    double last = depth ? (double)m->survival[at][depth - 1] : 1, before = depth ? p->prior[depth - 1] : 1;
    return (float)(before > 0 ? last * p->prior[position] / before : 0);
}

static void clear_gains(struct act_plan *p, double *gains, int n)
{
    for (int depth = 1; depth <= p->options.length; depth++)
        memset(curve_of(p, gains, depth), 0, ((size_t)n * (size_t)p->options.length + 1) * sizeof(double));
}

static void add_block(struct act_plan *p, double *gains, const struct act_plan_request *r, int n, int back,
                      double weight)
{
    static const struct act_plan_memory nothing;
    int items = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < cap_of(p, &r[i]); j++)
            p->item[items++] = (struct act_plan_item){recall(p, back < 0 ? &nothing : r[i].memory, back, j), j, i};
    add_gains(p, gains, items, weight);
}

/* Which requests, with which caps. */
static uint64_t company_of(struct act_plan *p, const struct act_plan_request *r, int n)
{
    uint64_t hash = UINT64_C(1469598103934665603);
    for (int i = 0; i < n; i++) {
        if (!r[i].memory->name)
            r[i].memory->name = ++p->names;
        hash = (hash ^ (r[i].memory->name * 64 + (uint64_t)cap_of(p, &r[i]))) * UINT64_C(1099511628211);
    }
    return hash | 1;
}

/* Expected gains of a new company: what its requests remember. Many requests show in one block how survivals scatter;
 * of a few, the long run counts too: a plan made from one bad block would turn drafting off and then learn nothing
 * more. */
static void recall_gains(struct act_plan *p, const struct act_plan_request *r, int n)
{
    int blocks = (SNAPSHOT_REQUESTS + n - 1) / n;
    blocks = blocks < ACT_PLAN_MEMORY ? blocks : ACT_PLAN_MEMORY;
    double prior = blocks == ACT_PLAN_MEMORY ? 0.5 : 0;
    p->company = company_of(p, r, n);
    p->learned = false;
    /* The assumption that a planner starts with is worth nothing beside the first block that is seen. */
    p->evidence = p->blocks_seen < EVIDENCE_MAX ? (int)p->blocks_seen : EVIDENCE_MAX;
    clear_gains(p, p->gain, n);
    if (prior > 0)
        add_block(p, p->gain, r, n, -1, prior);
    for (int back = 0; back < blocks; back++)
        add_block(p, p->gain, r, n, back, (1 - prior) / blocks);
}

/* The same company: the last block joins the running means, with more weight the more requests it shows. */
static void learn_gains(struct act_plan *p, const struct act_plan_request *r, int n)
{
    if (!p->learned)
        return;
    double weight = n / 256.0;
    weight = weight < 1.0 / 64 ? 1.0 / 64 : weight > 0.25 ? 0.25 : weight;
    weight = weight > 1.0 / (p->evidence + 1) ? weight : 1.0 / (p->evidence + 1);
    p->evidence += p->evidence < EVIDENCE_MAX;
    p->learned = false;
    clear_gains(p, p->newest, n);
    add_block(p, p->newest, r, n, 0, 1);
    for (int depth = 1; depth <= p->options.length; depth++) {
        double *gain = curve_of(p, p->gain, depth);
        const double *newest = curve_of(p, p->newest, depth);
        for (int k = 1; k <= n * p->options.length; k++)
            gain[k] += weight * (newest[k] - gain[k]);
    }
}

/* ---- the search ---- */

struct search {
    int n, other_rows;
    int drafts[ACT_PLAN_BLOCK_MAX + 1];      /* most drafts by depth */
    double draft_ns[ACT_PLAN_BLOCK_MAX + 1]; /* by depth */
};

static int budget_limit(const struct act_plan *p, const struct search *s, int depth)
{
    int most = s->drafts[depth], room = p->options.max_rows ? p->options.max_rows - s->n : most;
    return most < room ? most : room > 0 ? room : 0;
}

/* The times of a search, looked up once; depth and budget then only combine them. */
static void look_up_times(struct act_plan *p, struct search *s)
{
    double scale = p->scale > 1 ? p->scale : 1;
    int n = (int)(scale * s->n + 0.5);
    for (int depth = 1; depth <= p->options.length; depth++)
        s->draft_ns[depth] = act_steptime_draft_ns(p->table, n, (int)(scale * s->drafts[depth] + 0.5));
    for (int k = 0; k <= s->drafts[p->options.length]; k++)
        p->verify_ns[k] = act_steptime_verify_ns(p->table, n, (int)(scale * (s->n + k) + 0.5), s->other_rows);
}

static struct act_plan_choice evaluate(const struct act_plan *p, const struct search *s, int depth, int budget)
{
    return (struct act_plan_choice){.depth = depth,
                                    .budget = budget,
                                    .tokens = s->n + (depth ? curve_of(p, p->gain, depth)[budget] : 0),
                                    .ns = s->draft_ns[depth] + p->verify_ns[budget]};
}

static double speed(const struct act_plan_choice *c)
{
    return c->tokens / c->ns;
}

/* Of all budgets of a depth above 0; of equals the one with less work. */
static struct act_plan_choice search_depth(const struct act_plan *p, const struct search *s, int depth)
{
    const double *gain = curve_of(p, p->gain, depth);
    int limit = budget_limit(p, s, depth), found = 0;
    double top = 0;
    for (int k = 1; k <= limit; k++) {
        double now = (s->n + gain[k]) / (s->draft_ns[depth] + p->verify_ns[k]);
        if (now > top) {
            top = now;
            found = k;
        }
    }
    return evaluate(p, s, found ? depth : 0, found);
}

/* Of all depths and budgets; of equals the one with less work. Keeps the best of another depth in rival. */
static struct act_plan_choice search_all(struct act_plan *p, struct search *s)
{
    look_up_times(p, s);
    struct act_plan_choice best = evaluate(p, s, 0, 0);
    p->rival = best;
    for (int depth = 1; depth <= p->options.length; depth++) {
        if (s->drafts[depth] == s->drafts[depth - 1])
            break; /* no request can use more */
        struct act_plan_choice c = search_depth(p, s, depth);
        if (speed(&c) > speed(&best)) {
            p->rival = best;
            best = c;
        } else if (p->rival.depth == best.depth || speed(&c) > speed(&p->rival)) {
            p->rival = c;
        }
    }
    return best;
}

static struct act_plan_choice whole_block(const struct act_plan *p, const struct search *s)
{
    int depth = p->options.length;
    while (depth > 0 && s->drafts[depth] == s->drafts[depth - 1])
        depth--;
    return evaluate(p, s, depth, depth ? budget_limit(p, s, depth) : 0);
}

/* The last plan stays, or else the whole block, unless the best promises more by min_gain. */
static struct act_plan_choice hold(const struct act_plan *p, const struct search *s, struct act_plan_choice best)
{
    double bar = (1 + p->options.min_gain);
    struct act_plan_choice old = p->best;
    if (p->options.min_gain <= 0)
        return best;
    if (p->last_requests == s->n && p->last_caps == s->drafts[p->options.length] &&
        old.budget <= (old.depth ? budget_limit(p, s, old.depth) : 0)) {
        struct act_plan_choice now = evaluate(p, s, old.depth, old.budget);
        return speed(&best) < bar * speed(&now) ? now : best;
    }
    struct act_plan_choice whole = whole_block(p, s);
    return speed(&best) < bar * speed(&whole) ? whole : best;
}

/* Rows that cost nothing are taken along. */
static struct act_plan_choice fill(const struct act_plan *p, const struct search *s, struct act_plan_choice c)
{
    int limit = c.depth ? budget_limit(p, s, c.depth) : 0;
    while (c.depth && c.budget < limit) {
        struct act_plan_choice more = evaluate(p, s, c.depth, c.budget + 1);
        if (more.ns > c.ns * (1 + FLAT) || more.tokens <= c.tokens)
            break;
        c = more;
    }
    return c;
}

static bool equal(const struct act_plan_choice *a, const struct act_plan_choice *b)
{
    return a->depth == b->depth && a->budget == b->budget;
}

/* Saves up for a round of `what` in place of the best; true: there is enough for it. */
static bool saved_up(const struct act_plan *p, const struct act_plan_choice *what, double *credit)
{
    const struct act_plan_choice *best = &p->best;
    double cost = what->ns - what->tokens / speed(best);
    /* What lies far behind is looked at less often, it would have to change much. */
    double behind = 1 - speed(what) / speed(best), share = p->options.probe_share / 2;
    share /= behind > PROBE_NEAR ? behind < 2 * PROBE_NEAR ? behind / PROBE_NEAR : 2 : 1;
    *credit += share * best->ns;
    return p->since_probe >= PROBE_EVERY && *credit >= cost;
}

/* Whether this round looks at another plan than the best: when the time that it costs above that has been saved up. A
 * rival that is nearly as good costs next to nothing and is looked at often; only so is it found that it is better. */
static bool probe_now(struct act_plan *p)
{
    p->since_probe++;
    if (p->options.probe_share <= 0 || !p->whole.depth)
        return false;
    bool rival = !equal(&p->rival, &p->best) && saved_up(p, &p->rival, &p->rival_credit);
    bool whole =
        !equal(&p->whole, &p->best) && !equal(&p->whole, &p->rival) && saved_up(p, &p->whole, &p->whole_credit);
    if (!rival && !whole)
        return false;
    rival = rival && !(whole && p->rival_was_last);
    p->rival_was_last = rival;
    *(rival ? &p->rival_credit : &p->whole_credit) = 0;
    p->since_probe = 0;
    p->choice = rival ? p->rival : p->whole;
    return true;
}

/* As deep as was said, and of the drafts the share that was said, as far as these requests have use for it. */
static struct act_plan_choice as_given(const struct act_plan *p, const struct search *s)
{
    int depth = p->given->depth < p->options.length ? p->given->depth : p->options.length;
    while (depth > 0 && s->drafts[depth] == s->drafts[depth - 1])
        depth--;
    if (depth <= 0)
        return evaluate(p, s, 0, 0);
    int limit = budget_limit(p, s, depth), budget = (int)(p->given->share * s->n + 0.5);
    return evaluate(p, s, depth, budget < limit ? budget : limit);
}

/* Finds the best choice and what the whole block would give. While drafts don't pay nothing new is learned, and a
 * search in every round would be the larger part of what planning costs. */
static void search_or_keep(struct act_plan *p, const struct act_plan_request *r, struct search *s)
{
    bool same = company_of(p, r, s->n) == p->company;
    if (same && !p->learned && p->quiet < QUIET_ROUNDS && p->best_scale == p->scale &&
        p->best_other_rows == s->other_rows) {
        p->quiet++;
        return;
    }
    if (same)
        learn_gains(p, r, s->n);
    else
        recall_gains(p, r, s->n);
    struct act_plan_choice best = search_all(p, s);
    p->whole = whole_block(p, s);
    p->best = fill(p, s, hold(p, s, best));
    p->quiet = 0;
    p->best_scale = p->scale;
    p->best_other_rows = s->other_rows;
}

static void plan_dynamic(struct act_plan *p, const struct act_plan_request *r, int n)
{
    struct search s = {.n = n, .other_rows = p->other_rows};
    for (int depth = 1; depth <= p->options.length; depth++)
        s.drafts[depth] = drafts_of(p, r, n, depth);
    search_or_keep(p, r, &s);
    p->choice = p->given ? as_given(p, &s) : p->best;
    p->probe = !p->given && probe_now(p);
    p->last_requests = n;
    p->last_caps = s.drafts[p->options.length];
}

void act_plan_draft(struct act_plan *p, struct act_plan_request *r, int n, int other_rows)
{
    p->requests = n;
    p->other_rows = other_rows;
    p->probe = p->split = false;
    if (p->options.mode == ACT_PLAN_DYNAMIC && p->options.length) {
        plan_dynamic(p, r, n);
    } else {
        int depth = p->options.mode == ACT_PLAN_FIXED ? p->options.length : 0;
        p->choice = (struct act_plan_choice){.depth = depth, .budget = drafts_of(p, r, n, depth)};
        if (p->options.max_rows && n + p->choice.budget > p->options.max_rows)
            p->choice.budget = p->options.max_rows > n ? p->options.max_rows - n : 0;
    }
    for (int i = 0; i < n; i++) {
        int cap = cap_of(p, &r[i]);
        r[i].draft = cap < p->choice.depth ? cap : p->choice.depth;
        r[i].drafted = r[i].offer = 0;
    }
}

/* ---- the split ---- */

static void remember(struct act_plan *p, const struct act_plan_request *r, const float *survival)
{
    struct act_plan_memory *m = r->memory;
    if (!r->drafted)
        return;
    m->depth[m->next] = r->drafted;
    memcpy(m->survival[m->next], survival, (size_t)r->drafted * sizeof *survival);
    m->next = (m->next + 1) % ACT_PLAN_MEMORY;
    m->n = m->n < ACT_PLAN_MEMORY ? m->n + 1 : m->n;
    p->learned = true;
    p->blocks_seen++;
    for (int j = 0; j < r->drafted; j++) {
        /* The first blocks count in full, at every position those that reached it. */
        double gain = 1.0 / (double)++p->seen[j], before = j ? (double)survival[j - 1] : 1;
        gain = gain > PRIOR_GAIN ? gain : PRIOR_GAIN;
        p->kept[j] += gain * ((double)survival[j] - p->kept[j]);
        p->kept_before[j] += gain * (before - p->kept_before[j]);
    }
    double product = 1, chance = PRIOR;
    for (int j = 0; j < p->block; j++) {
        if (p->seen[j])
            chance = p->kept_before[j] > 0 ? p->kept[j] / p->kept_before[j] : 0;
        p->prior[j] = product *= chance < 1 ? chance : 1;
    }
}

static void survivals(const struct act_plan_request *r, float *out)
{
    float product = 1;
    for (int j = 0; j < r->drafted; j++) {
        float c = r->confidence[j];
        product *= c >= 0 ? (c < 1 ? c : 1) : 0; /* a confidence that is no number counts as none */
        out[j] = product;
    }
}

/* The paper's synchronous form: in falling order, up to the first draft that lowers the speed. */
static int early_stop(const struct act_plan *p, int items)
{
    struct search s = {.n = p->requests, .other_rows = p->other_rows};
    double tokens = s.n, draft_ns = act_steptime_draft_ns(p->table, s.n, p->drafts), best;
    best = tokens / (draft_ns + act_steptime_verify_ns(p->table, s.n, s.n, s.other_rows));
    int k = 0;
    for (; k < items; k++) {
        tokens += (double)p->item[k].survival;
        double now = tokens / (draft_ns + act_steptime_verify_ns(p->table, s.n, s.n + k + 1, s.other_rows));
        if (now <= best || (p->options.max_rows && s.n + k + 1 > p->options.max_rows))
            break;
        best = now;
    }
    return k;
}

void act_plan_split(struct act_plan *p, struct act_plan_request *r, int n)
{
    float survival[ACT_PLAN_BLOCK_MAX];
    int items = 0, budget = p->choice.budget;
    bool dynamic = p->options.mode == ACT_PLAN_DYNAMIC;
    p->drafts = 0;
    for (int i = 0; i < n; i++) {
        r[i].offer = 0;
        r[i].drafted = r[i].drafted < r[i].draft ? r[i].drafted : r[i].draft;
        p->drafts += r[i].drafted;
        survivals(&r[i], survival);
        for (int j = 0; j < r[i].drafted; j++)
            p->item[items++] = (struct act_plan_item){survival[j], j, i};
        if (dynamic && !p->split)
            remember(p, &r[i], survival);
    }
    qsort(p->item, (size_t)items, sizeof *p->item, compare_items);
    bool stops = dynamic && !p->probe && !p->given && p->options.budget == ACT_PLAN_EARLY_STOP;
    p->untrimmed = !stops && items && budget >= items;
    if (stops)
        budget = early_stop(p, items);
    budget = budget < items ? budget : items;
    for (int k = 0; k < budget; k++)
        if (!dynamic || p->probe || p->untrimmed || p->item[k].survival >= SURVIVAL_FLOOR)
            r[p->item[k].request].offer++;
    p->rows = n;
    for (int i = 0; i < n; i++)
        p->rows += r[i].offer;
    if (p->split)
        return;
    p->split = true;
    p->counters.rounds++;
    p->counters.skipped += !p->drafts;
    p->counters.probes += p->probe;
    p->counters.trimmed += (uint64_t)(p->drafts - (p->rows - n));
}

void act_plan_done(struct act_plan *p, double draft_ns, double verify_ns, bool refresh)
{
    if (!refresh || !p->table || p->options.mode != ACT_PLAN_DYNAMIC)
        return;
    /* Of the batch that ran: early stop, or survivals of nearly 0, may have left drafts of the chosen budget out. */
    p->counters.expected_ns += act_steptime_draft_ns(p->table, p->requests, p->drafts) +
                               act_steptime_verify_ns(p->table, p->requests, p->rows, p->other_rows);
    p->counters.seen_ns += draft_ns + verify_ns;
    act_steptime_observe(p->table, p->requests, p->drafts, p->rows, p->other_rows, draft_ns, verify_ns);
}

struct act_plan_choice act_plan_best(struct act_plan *p, const float *survival, const int *cap, int n, int other_rows)
{
    struct search s = {.n = n, .other_rows = other_rows};
    int items = 0;
    p->company = 0;
    clear_gains(p, p->gain, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < p->options.length && j < cap[i]; j++) {
            p->item[items++] = (struct act_plan_item){survival[i * p->block + j], j, i};
            for (int depth = j + 1; depth <= p->options.length; depth++)
                s.drafts[depth]++;
        }
    add_gains(p, p->gain, items, 1);
    return search_all(p, &s);
}
