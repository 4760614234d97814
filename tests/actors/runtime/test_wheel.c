/* The timer wheel against a list that is searched. */
#include "actors/runtime/wheel.h"

#include "tests/harness.h"

enum { TIMERS = 400, STEPS = 4000 };

static struct act_timer timer[TIMERS];
static bool pending[TIMERS]; /* the reference */
static int64_t now;
static int wrong, fired_now;

static uint64_t state;

static uint64_t draw(uint64_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 20) % n;
}

static int64_t begin_of(int64_t at)
{
    int64_t tick = (int64_t)1 << ACT_TICK_BITS;
    return at <= 0 ? 0 : (at + tick - 1) / tick * tick;
}

static void fire(void *ctx, struct act_timer *t)
{
    size_t i = (size_t)(t - timer);
    wrong += !pending[i] || t->at > now;
    pending[i] = false;
    fired_now++;
    (void)ctx;
}

/* Everything from the next tick to years away. */
static int64_t far(void)
{
    int64_t range = (int64_t)1 << (10 + draw(50));
    return (int64_t)draw((uint64_t)range);
}

Test(wheel, fires_what_a_searched_list_fires)
{
    static struct act_wheel w;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        state = seed;
        now = (int64_t)draw(UINT64_C(1) << 40);
        memset(timer, 0, sizeof timer);
        memset(pending, 0, sizeof pending);
        act_wheel_init(&w, now);
        for (int step = 0; step < STEPS; step++) {
            int i = (int)draw(TIMERS);
            if (!pending[i]) {
                timer[i].at = now + far() - 1000;
                act_wheel_add(&w, &timer[i]);
                pending[i] = true;
            } else if (draw(3) == 0) {
                act_wheel_remove(&w, &timer[i]);
                pending[i] = false;
            }
            if (draw(4) != 0)
                continue;
            int64_t added = now, next = act_wheel_next(&w);
            int64_t first = ACT_NEVER;
            for (int j = 0; j < TIMERS; j++)
                if (pending[j] && begin_of(timer[j].at) < first)
                    first = begin_of(timer[j].at);
            /* It may wake to move timers down, but never after the first one is due (one tick for those of the past).
             */
            int64_t latest = (added >> ACT_TICK_BITS << ACT_TICK_BITS) + (2 << ACT_TICK_BITS);
            cr_assert(next <= (first > latest ? first : latest), "seed %d step %d: next %lld, first due %lld",
                      (int)seed, step, (long long)next, (long long)first);
            now += draw(2) ? far() : next == ACT_NEVER ? 1 : next - now > 0 ? next - now : 1;
            act_wheel_advance(&w, now, fire, NULL);
            cr_assert_eq(wrong, 0, "seed %d step %d: one fired that was not due", (int)seed, step);
            for (int j = 0; j < TIMERS; j++)
                cr_assert(!pending[j] || begin_of(timer[j].at) > now || timer[j].at <= added + (1 << ACT_TICK_BITS),
                          "seed %d step %d: timer of %lld still waits at %lld", (int)seed, step, (long long)timer[j].at,
                          (long long)now);
        }
        /* All that is left fires when its time has come. */
        now = INT64_MAX - 1;
        act_wheel_advance(&w, now, fire, NULL);
        cr_assert_eq(w.count, 0);
        cr_assert_eq(act_wheel_next(&w), ACT_NEVER);
    }
}

Test(wheel, a_time_that_never_comes_does_not_fire)
{
    static struct act_wheel w;
    struct act_timer t = {.at = ACT_NEVER};
    memset(timer, 0, sizeof timer);
    now = 0;
    fired_now = 0;
    act_wheel_init(&w, 0);
    act_wheel_add(&w, &t);
    now = INT64_C(1) << 61;
    act_wheel_advance(&w, now, fire, NULL);
    cr_assert_eq(fired_now, 0);
    act_wheel_remove(&w, &t);
    cr_assert_eq(w.count, 0);
}
