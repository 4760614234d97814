/* The end of a node that was asked to end: what it has to do then, what becomes of it, and who is told. */
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "actors/server_impl.h"

/* What a node had when its drain began, and what came before others had heard of it. */
struct fate {
    const char *what; /* as a member of the answer */
    uint64_t had, finished, moved;
    uint64_t left; /* cancelled by who wanted it, or failed */
    uint64_t open; /* not ended yet; of a node that ends: cut off */
};

/* Thread of the io worker, whose the gateway's counts are. */
static struct fate requests_fate(const struct act_server *s)
{
    const struct gw_context *g = &s->gateway;
    const uint64_t *was = g->drain.outcome, *is = g->metrics.outcome;
    struct fate f = {.what = "requests"};
    for (int i = 0; i < GW_OUTCOMES; i++) {
        bool well = i == GW_OUT_STOP || i == GW_OUT_LENGTH || i == GW_OUT_TOOL_CALLS;
        *(well ? &f.finished : &f.left) += g->draining ? is[i] - was[i] : 0;
    }
    f.left -= f.left < g->drain.cut ? f.left : g->drain.cut; /* they end as errors */
    f.open = g->drain.cut ? g->drain.cut : (uint64_t)g->requests;
    f.had = f.finished + f.left + f.open;
    return f;
}

/* The counts are not read at one moment. */
static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static struct fate prompts_fate(const uint64_t was[ACT_TALLIES], const uint64_t is[ACT_TALLIES])
{
    uint64_t ended = is[ACT_TALLY_PROMPTS_ENDED] - was[ACT_TALLY_PROMPTS_ENDED],
             failed = is[ACT_TALLY_PROMPTS_FAILED] - was[ACT_TALLY_PROMPTS_FAILED];
    struct fate f = {.what = "prompts", .left = failed, .finished = minus(ended, failed)};
    f.open = minus(is[ACT_TALLY_PROMPTS], is[ACT_TALLY_PROMPTS_ENDED]);
    f.had = ended + f.open;
    return f;
}

static struct fate sequences_fate(const uint64_t was[ACT_TALLIES], const uint64_t is[ACT_TALLIES])
{
    struct fate f = {.what = "sequences"};
    f.finished = is[ACT_TALLY_SEQUENCES_FINISHED] - was[ACT_TALLY_SEQUENCES_FINISHED];
    f.moved = is[ACT_TALLY_SEQUENCES_MOVED] - was[ACT_TALLY_SEQUENCES_MOVED];
    f.left = is[ACT_TALLY_SEQUENCES_LEFT] - was[ACT_TALLY_SEQUENCES_LEFT];
    f.open = minus(is[ACT_TALLY_SEQUENCES],
                   is[ACT_TALLY_SEQUENCES_FINISHED] + is[ACT_TALLY_SEQUENCES_MOVED] + is[ACT_TALLY_SEQUENCES_LEFT]);
    f.had = f.finished + f.moved + f.left + f.open;
    return f;
}

static void add_fate(json_t *j, const struct fate *f)
{
    json_object_set_new(j, f->what,
                        json_pack("{s:I, s:I, s:I, s:I, s:I}", "had", (json_int_t)f->had, "finished",
                                  (json_int_t)f->finished, "moved", (json_int_t)f->moved, "left", (json_int_t)f->left,
                                  "open", (json_int_t)f->open));
}

json_t *server_drain_json(struct act_server *s)
{
    uint64_t was[ACT_TALLIES], is[ACT_TALLIES];
    act_tally_read(&s->tally, is);
    pthread_mutex_lock(&s->lock);
    bool draining = s->draining, ended = s->settled;
    memcpy(was, s->tally_was, sizeof was);
    pthread_mutex_unlock(&s->lock);
    if (!draining)
        return NULL;
    json_t *j = json_pack("{s:b}", "ended", ended);
    const struct fate requests = requests_fate(s), prompts = prompts_fate(was, is), sequences = sequences_fate(was, is);
    if (j && server_has(s, CFG_ROLE_GATEWAY))
        add_fate(j, &requests);
    if (j && server_has(s, CFG_ROLE_PREFILL))
        add_fate(j, &prompts);
    if (j && server_has(s, CFG_ROLE_DECODE))
        add_fate(j, &sequences);
    return j;
}

void server_drain_begins(struct act_server *s)
{
    uint64_t is[ACT_TALLIES];
    act_tally_read(&s->tally, is);
    pthread_mutex_lock(&s->lock);
    memcpy(s->tally_was, is, sizeof is);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

bool server_drain_settled(struct act_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool settled = s->settled;
    pthread_mutex_unlock(&s->lock);
    return settled;
}

void server_drain_told(struct act_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->farewell = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void act_server_farewell(struct act_server *s, int wait_ms)
{
    const struct timespec sent = {0, 50000000}; /* for an answer that is on its way when the connection ends */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += wait_ms % 1000 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->lock);
    s->settled = true;
    while (s->watched && !s->farewell && pthread_cond_timedwait(&s->changed, &s->lock, &until) == 0)
        ;
    bool told = s->farewell;
    pthread_mutex_unlock(&s->lock);
    if (told)
        nanosleep(&sent, NULL);
}
