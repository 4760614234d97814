/* The actor that stands for the gateway. For each request it does what the gateway's Request does: asks the Router for
 * a place, sends its prompt there, takes tokens, asks again when the place is lost. Requests arrive in a closed loop,
 * at random, or as in a trace. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "actors/placement.h"
#include "actors/recipe.h"
#include "cli/simulate.h"
#include "kvtiers/key.h"

enum { TAG_NEXT = 1, TAG_AGAIN = 2, TAG_END = 3, SLOT_BITS = 24, RETRY_NS = 20000000, MIN_STEP_NS = 1000000 };

static const int64_t IDLE_NS = 5000000000;

/* Members have reported by then. */
static const int64_t BEGIN_NS = 250000000;

struct request {
    struct act_place place;
    uint64_t id;     /* place in the table + 1, and above SLOT_BITS how often that was used; 0: free */
    uint64_t number; /* names its luck */
    int prompt, output, got;
    const struct act_key *chain; /* as given by a trace */
    int n_chain;
    int64_t start, first, last; /* ns */
    uint32_t steps, offered, drafted, accepted;
    bool queued;
};

struct load {
    struct act_self *self;
    struct sim_load_arg *arg;
    const struct sim_load *l;
    struct sim_outcome *out;
    struct request **request; /* [n]; each stays where it is, because it holds a timer */
    int n, cap, *free, n_free;
    uint64_t made, ended, random;
    int64_t from, until; /* ns: what happens between them is counted */
    int64_t next_at;     /* ns, open loop: of the next request */
    int64_t skipped;     /* ns in which nobody was served and which were left out; these times count it */
    struct sim_arrival next;
    int begun; /* closed loop: of the first requests */
    int again; /* closed loop: requests that were refused and are to be made once more */
    struct act_timer timer, retry, end;
};

/* ---- histograms ---- */

static const double BIN_WIDTH = 0.005, BIN_LEAST = 1e-6;

void sim_histogram_add(struct sim_histogram *h, double seconds)
{
    double at = seconds > BIN_LEAST ? log(seconds / BIN_LEAST) / BIN_WIDTH : 0;
    h->bin[at < SIM_BINS - 1 ? (int)at : SIM_BINS - 1]++;
    h->n++;
    h->sum += seconds;
}

double sim_histogram_quantile(const struct sim_histogram *h, double q)
{
    uint64_t rank = (uint64_t)ceil(q * (double)h->n), seen = 0;
    rank = rank ? rank : 1;
    for (int i = 0; h->n && i < SIM_BINS; i++)
        if ((seen += h->bin[i]) >= rank)
            return BIN_LEAST * exp((i + 0.5) * BIN_WIDTH);
    return NAN;
}

/* ---- requests ---- */

/* With what was left out. */
static int64_t load_now(const struct load *l)
{
    return act_now(l->self) + l->skipped;
}

static bool counted(const struct load *l)
{
    int64_t now = load_now(l);
    return now >= l->from && now < l->until;
}

static bool enough(const struct load *l)
{
    return (l->l->requests && l->made >= (uint64_t)l->l->requests) || load_now(l) >= l->until;
}

static struct request *take_slot(struct load *l)
{
    if (l->n_free)
        return l->request[l->free[--l->n_free]];
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 256;
        void *a = realloc(l->request, (size_t)cap * sizeof(struct request *));
        l->request = a ? a : l->request;
        void *b = a ? realloc(l->free, (size_t)cap * sizeof *l->free) : NULL;
        l->free = b ? b : l->free;
        if (!a || !b)
            return NULL;
        l->cap = cap;
    }
    struct request *r = l->n < 1 << SLOT_BITS ? calloc(1, sizeof *r) : NULL;
    if (r)
        l->request[l->n++] = r;
    if (r)
        r->id = (uint64_t)l->n; /* use 0 */
    return r;
}

static struct request *find(const struct load *l, uint64_t id)
{
    uint64_t slot = (id & ((1u << SLOT_BITS) - 1)) - 1;
    struct request *r = slot < (uint64_t)l->n ? l->request[slot] : NULL;
    return r && r->id == id && r->place.self ? r : NULL;
}

static void put_word(struct act_key *key, uint64_t a, uint64_t b)
{
    for (int i = 0; i < 4; i++) {
        uint64_t v = sim_hash(a + (uint64_t)i, b);
        memcpy(key->byte + 8 * i, &v, sizeof v);
    }
}

/* Names of a made-up prompt's blocks: those it shares with its group, then its own. */
static void make_chain(const struct load *l, const struct request *r, struct act_key *out)
{
    uint64_t group = 1 + r->number % (uint64_t)l->l->groups;
    for (int b = 0; b < r->n_chain; b++)
        put_word(&out[b], b * l->l->block_tokens <= l->l->shared_tokens ? group : r->number + (UINT64_C(1) << 40),
                 (uint64_t)b);
    put_word(&out[0], 0, 0); /* the root is everybody's */
}

static int copy_chain(const struct load *l, const struct request *r, struct act_key *out)
{
    if (r->chain)
        memcpy(out, r->chain, (size_t)r->n_chain * sizeof *out);
    else if (r->n_chain)
        make_chain(l, r, out);
    return r->n_chain;
}

static void end(struct load *l, struct request *r);

static void ask(struct load *l, struct request *r)
{
    struct act_key *chain = malloc(((size_t)r->n_chain + 1) * sizeof *chain);
    int n = chain ? copy_chain(l, r, chain) : 0;
    if (act_place_ask(&r->place, r->prompt + r->got, r->output - r->got, chain, n)) {
        l->out->failed++;
        end(l, r);
    }
    free(chain);
}

static void begin(struct load *l, const struct sim_arrival *a)
{
    struct request *r = take_slot(l);
    l->made++;
    if (!r) {
        l->out->failed++;
        l->ended++;
        return;
    }
    uint64_t id = r->id;
    *r = (struct request){.id = id,
                          .number = sim_hash(l->l->seed, l->made) >> 24,
                          .prompt = a->prompt > SIM_TAIL ? a->prompt : SIM_TAIL + 1,
                          .output = a->output > 1 ? a->output : 1,
                          .chain = a->chain,
                          .n_chain = a->n_chain,
                          .start = act_now(l->self)};
    int context = l->arg->profile->context, most = context - SIM_TAIL - 2;
    l->out->cut += r->prompt > most || r->output > context - r->prompt;
    r->prompt = r->prompt < most ? r->prompt : most;
    r->output = r->output < context - r->prompt ? r->output : context - r->prompt;
    if (l->l->groups && !l->l->trace)
        r->n_chain = 1 + r->prompt / l->l->block_tokens;
    if (1 + r->prompt / l->l->block_tokens < r->n_chain)
        r->n_chain = 1 + r->prompt / l->l->block_tokens;
    act_busy(l->self, (int64_t)(1e3 * l->arg->profile->request_us));
    act_place_init(&r->place, l->self, l->arg->router, r->id);
    ask(l, r);
}

/* ---- arrivals ---- */

static int around(struct load *l, int mean)
{
    if (l->l->fixed_lengths)
        return mean;
    double v = 1 - log(sim_uniform(&l->random)) * (double)mean;
    return v < 1 << 22 ? (int)v : 1 << 22;
}

static struct sim_arrival make_up(struct load *l)
{
    int prompt = l->arg->profile->prompt_tokens, shared = l->l->shared_tokens;
    prompt = shared ? shared + around(l, prompt > shared ? prompt - shared : 1) : around(l, prompt);
    return (struct sim_arrival){.prompt = prompt, .output = around(l, l->arg->profile->output_tokens)};
}

/* Open loop: when nobody is served and the next request is far away, the time between is left out, up to a while before
 * it; else every actor's timers would be run through all of it. */
static void wait_for_next(struct load *l)
{
    int64_t idle = (l->next_at < l->until ? l->next_at : l->until) - load_now(l) - IDLE_NS;
    if (l->made == l->ended && idle > 0) {
        l->skipped += idle;
        if (l->until != INT64_MAX)
            act_timer_at(l->self, &l->end, l->until - l->skipped, TAG_END);
    }
    act_timer_at(l->self, &l->timer, l->next_at - l->skipped, TAG_NEXT);
}

static void set_next(struct load *l)
{
    const struct sim_trace *t = l->l->trace;
    if (t && l->made >= (uint64_t)t->n)
        return;
    if (t) {
        l->next = t->arrival[l->made];
        l->next_at = BEGIN_NS + (int64_t)(1e9 * l->next.at / l->l->speed);
    } else {
        l->next = make_up(l);
        l->next_at += (int64_t)(-1e9 * log(sim_uniform(&l->random)) / l->l->rate);
    }
    wait_for_next(l);
}

static void begin_made_up(struct load *l)
{
    struct sim_arrival a = make_up(l);
    if (l->l->trace) /* its lengths, one after the other */
        a = l->l->trace->arrival[l->made % (uint64_t)l->l->trace->n];
    begin(l, &a);
}

static void finish_if_over(struct load *l)
{
    bool all = l->l->concurrency ? l->l->requests && l->ended >= (uint64_t)l->l->requests
               : l->l->requests  ? l->ended >= (uint64_t)l->l->requests
                                 : l->l->trace && l->ended >= (uint64_t)l->l->trace->n;
    if (all && l->until == INT64_MAX) {
        l->until = load_now(l);
        l->arg->done = true;
    }
}

static void end(struct load *l, struct request *r)
{
    int slot = (int)((r->id & ((1u << SLOT_BITS) - 1)) - 1);
    act_place_end(&r->place);
    act_timer_cancel(l->self, &r->place.wait);
    r->id += UINT64_C(1) << SLOT_BITS;
    r->place.self = NULL;
    l->free[l->n_free++] = slot;
    l->ended++;
    finish_if_over(l);
    if (l->l->concurrency && !enough(l))
        begin_made_up(l);
    else if (!l->l->concurrency && act_timer_pending(&l->timer))
        wait_for_next(l);
}

static void refused(struct load *l, struct request *r)
{
    l->out->refused += counted(l);
    if (l->l->concurrency && !enough(l)) { /* at once would spin: nothing has changed yet */
        l->again++;
        if (!act_timer_pending(&l->retry))
            act_timer_after(l->self, &l->retry, RETRY_NS, TAG_AGAIN);
        int slot = (int)((r->id & ((1u << SLOT_BITS) - 1)) - 1);
        act_place_end(&r->place);
        r->id += UINT64_C(1) << SLOT_BITS;
        r->place.self = NULL;
        l->free[l->n_free++] = slot;
        l->made--;
        return;
    }
    end(l, r);
}

/* ---- messages ---- */

static void send_prompt(struct load *l, struct request *r)
{
    struct act_msg m;
    size_t bytes;
    int n = r->prompt + r->got;
    if (act_msg_new(ACT_PREFILL, r->place.prefill, act_recipe_tail(n, r->n_chain, 0, 0), &m)) {
        l->out->failed++;
        end(l, r);
        return;
    }
    m.request = r->id;
    m.attempt = r->place.attempt;
    *act_p_prefill(&m) =
        (struct act_p_prefill){.ids = (uint32_t)n, .blocks = (uint32_t)r->n_chain, .decode = r->place.decode};
    *act_b_prefill(&m) = (struct act_b_prefill){.requester = act_self_addr(l->self),
                                                .max_tokens = (uint32_t)(r->output - r->got),
                                                .committed = (uint32_t)r->got,
                                                .top_p = 1,
                                                .repetition = 1,
                                                .chain = (uint32_t)r->n_chain,
                                                .flags = ACT_RECIPE_IGNORE_EOS};
    int32_t *ids = act_msg_tail(&m, &bytes);
    memset(ids, 0, (size_t)n * sizeof *ids);
    sim_compute_name(r->number, n, ids + n - SIM_TAIL);
    copy_chain(l, r, (struct act_key *)(void *)(ids + n));
    if (act_send(l->self, &m)) {
        act_msg_drop(&m);
        l->out->failed++;
        end(l, r);
    }
}

static double since(int64_t a, int64_t b)
{
    return 1e-9 * (double)(b - a);
}

static void count_request(struct load *l, const struct request *r)
{
    struct sim_outcome *o = l->out;
    o->requests++;
    o->prompt_tokens += (uint64_t)r->prompt;
    sim_histogram_add(&o->first_token, since(r->start, r->first));
    sim_histogram_add(&o->whole, since(r->start, r->last));
    if (r->got > 1 && r->last > r->first)
        sim_histogram_add(&o->user, since(r->first, r->last) / (r->got - 1));
}

static void take_tokens(struct load *l, struct request *r, struct act_msg *m)
{
    const struct act_p_tokens *p = act_p_tokens(m);
    const struct act_b_tokens *b = act_b_tokens(m);
    int64_t now = act_now(l->self);
    struct sim_outcome *o = l->out;
    if ((int)p->first != r->got)
        return; /* cannot be: sent in order */
    if (counted(l)) {
        o->tokens += p->count;
        if (r->got && p->count)
            sim_histogram_add(&o->gap, since(r->last, now));
        for (uint32_t k = 1; k < p->count; k++) /* the gateway writes each token as a piece of its own */
            sim_histogram_add(&o->gap, 0);
        if (b) {
            o->steps += b->steps - r->steps;
            o->offered += b->offered - r->offered;
            o->drafted += p->drafted - r->drafted;
            o->accepted += p->accepted - r->accepted;
            o->stepped += b->steps > r->steps ? p->count : 0;
        }
    }
    if (b) {
        r->steps = b->steps;
        r->offered = b->offered;
        r->drafted = p->drafted;
        r->accepted = p->accepted;
    }
    r->first = r->got ? r->first : now;
    r->last = p->count ? now : r->last;
    r->got += p->count;
    act_busy(l->self, (int64_t)(1e3 * l->arg->profile->token_us));
    act_place_progress(&r->place, true);
    if (p->finish == ACT_FINISH_NONE)
        return;
    if (p->finish == ACT_FINISH_ERROR)
        o->failed++;
    else if (counted(l))
        count_request(l, r);
    end(l, r);
}

static void take_message(struct load *l, struct request *r, struct act_msg *m)
{
    switch (act_place_message(&r->place, m)) {
    case ACT_PLACE_NONE:
        break;
    case ACT_PLACE_STALE:
    case ACT_PLACE_MOVED:
        return;
    case ACT_PLACE_ASK:
        ask(l, r);
        return;
    case ACT_PLACE_GO:
        send_prompt(l, r);
        return;
    case ACT_PLACE_FAILED:
        refused(l, r);
        return;
    }
    if (m->type == ACT_TOKENS) {
        take_tokens(l, r, m);
    } else if (m->type == ACT_PREFILLING) {
        if (counted(l) && !r->queued)
            sim_histogram_add(&l->out->queue, since(r->start, act_now(l->self)));
        r->queued = true;
    } else if (m->type == ACT_PREFILLED) {
        l->out->cached_tokens += counted(l) ? act_p_prefilled(m)->cached : 0;
        act_place_progress(&r->place, true);
    } else if (m->type == ACT_PARKED) {
        l->out->parked += counted(l);
    } else if (m->type == ACT_FAILED) {
        l->out->failed++;
        end(l, r);
    }
}

/* Of a closed loop. Where a time is counted the first requests come one after the other during half of the time before
 * it: a crowd at the beginning would queue as nothing does later. */
static void begin_closed(struct load *l)
{
    int64_t spread = l->until == INT64_MAX ? 0 : (l->from - BEGIN_NS) / 2, step = MIN_STEP_NS;
    int64_t due = spread ? 1 + l->l->concurrency * (act_now(l->self) - BEGIN_NS) / spread : l->l->concurrency;
    for (; l->begun < due && l->begun < l->l->concurrency && !enough(l); l->begun++)
        begin_made_up(l);
    step = spread && spread / l->l->concurrency > step ? spread / l->l->concurrency : step;
    if (l->begun < l->l->concurrency && !enough(l))
        act_timer_after(l->self, &l->timer, step, TAG_NEXT);
}

static void take_timer(struct load *l, uint64_t tag)
{
    if (tag == TAG_NEXT && l->l->concurrency) {
        begin_closed(l);
    } else if (tag == TAG_NEXT && !enough(l)) {
        begin(l, &l->next);
        if (!enough(l))
            set_next(l);
    } else if (tag == TAG_AGAIN) {
        int n = l->again;
        l->again = 0;
        for (int i = 0; i < n && !enough(l); i++)
            begin_made_up(l);
    } else if (tag == TAG_END) {
        l->arg->done = true;
    } else if (tag == ACT_PLACE_TAG) { /* one of those that wait; asking early does no harm */
        for (int i = 0; i < l->n; i++)
            if (l->request[i]->place.self && !l->request[i]->place.placed && !l->request[i]->place.asked)
                ask(l, l->request[i]);
    } else if (tag == ACT_PLACE_CHECK_TAG) {
        for (int i = 0; i < l->n; i++)
            act_place_look(&l->request[i]->place);
    }
}

static int load_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    struct load *l = state;
    (void)self;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_TIMER) {
            take_timer(l, act_p_timer(&m[i])->tag);
            continue;
        }
        struct request *r = find(l, m[i].request);
        if (r)
            take_message(l, r, &m[i]);
    }
    return 0;
}

static void load_stop(struct act_self *self, void *state, int reason)
{
    struct load *l = state;
    (void)self;
    (void)reason;
    int64_t until = l->until < load_now(l) ? l->until : load_now(l);
    l->out->seconds = since(l->from, until);
    for (int i = 0; i < l->n; i++) {
        act_timer_cancel(l->self, &l->request[i]->place.wait); /* the runtime goes over what runs behind this */
        act_timer_cancel(l->self, &l->request[i]->place.check);
        free(l->request[i]);
    }
    free(l->request);
    free(l->free);
}

static int load_start(struct act_self *self, void *state, const void *arg)
{
    struct load *l = state;
    struct sim_load_arg *a = (struct sim_load_arg *)arg;
    bool finite = a->load->requests || (a->load->trace && !a->load->concurrency);
    *l = (struct load){.self = self, .arg = a, .l = a->load, .out = a->out, .random = sim_hash(a->load->seed, 7)};
    l->from = BEGIN_NS + (finite ? 0 : (int64_t)(1e9 * a->load->warm));
    l->until = finite ? INT64_MAX : l->from + (int64_t)(1e9 * a->load->seconds);
    l->next_at = BEGIN_NS;
    if (!finite)
        act_timer_at(self, &l->end, l->until, TAG_END);
    if (a->load->concurrency)
        act_timer_at(self, &l->timer, BEGIN_NS, TAG_NEXT);
    else
        set_next(l);
    return 0;
}

const struct act_behaviour sim_load_behaviour = {
    .name = "load",
    .state_size = sizeof(struct load),
    .start = load_start,
    .receive = load_receive,
    .stop = load_stop,
};
