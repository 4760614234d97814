/* The compute team: every item once, in every size, and everything written before and after is seen. */
#include "tests/harness.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/team.h"

enum { ITEMS = 500 };

struct job {
    int size;
    const int *in; /* plain, written by the owner before each round */
    int out[ITEMS], times[ITEMS], bad;
};

static void add_one(void *ctx, int begin, int end, int thread)
{
    struct job *j = ctx;
    if (thread < 0 || thread >= j->size || begin >= end)
        j->bad = 1;
    for (int i = begin; i < end; i++) {
        j->out[i] = j->in[i] + 1;
        j->times[i]++;
    }
}

Test(team, every_item_once)
{
    static int in[ITEMS];
    static struct job j;
    for (int size = 1; size <= 5; size++) {
        struct mdl_team *team;
        struct cfg_error err;
        cr_assert_eq(mdl_team_new(size, &team, &err), 0);
        cr_assert_eq(mdl_team_size(team), size);
        for (int round = 0; round < 600; round++) {
            int n = round % 7 ? round % ITEMS : ITEMS, grain = 1 + round % 9;
            memset(&j, 0, sizeof j);
            j.size = size;
            j.in = in;
            for (int i = 0; i < ITEMS; i++)
                in[i] = round * i;
            /* Now and then the workers have gone to sleep. */
            if (round % 100 == 99)
                usleep(2000);
            mdl_team_run(team, n, grain, add_one, &j);
            cr_assert_eq(j.bad, 0);
            for (int i = 0; i < ITEMS; i++) {
                cr_assert_eq(j.times[i], i < n, "item %d of %d, size %d", i, n, size);
                cr_assert_eq(j.out[i], i < n ? round * i + 1 : 0);
            }
        }
        mdl_team_free(team);
    }
}

static void slow_item(void *ctx, int begin, int end, int thread)
{
    (void)thread;
    int *out = ctx;
    for (int i = begin; i < end; i++) {
        usleep(1000);
        out[i]++;
    }
}

/* The owner sleeps until the last worker is done. */
Test(team, waits_for_slow_items)
{
    struct mdl_team *team;
    struct cfg_error err;
    cr_assert_eq(mdl_team_new(3, &team, &err), 0);
    for (int round = 0; round < 20; round++) {
        int out[7] = {0};
        mdl_team_run(team, 7, 1, slow_item, out);
        for (int i = 0; i < 7; i++)
            cr_assert_eq(out[i], 1);
    }
    mdl_team_free(team);
}

struct meeting {
    int size;
    _Atomic int arrived, alone;
};

static void meet(void *ctx, int begin, int end, int thread)
{
    (void)begin, (void)end, (void)thread;
    struct meeting *m = ctx;
    atomic_fetch_add(&m->arrived, 1);
    for (int i = 0; i < 20000 && atomic_load(&m->arrived) < m->size; i++)
        usleep(1000);
    if (atomic_load(&m->arrived) < m->size)
        atomic_store(&m->alone, 1);
}

/* One item per thread, and none ends before all have begun: sleeping workers must come. */
Test(team, sleeping_workers_wake)
{
    for (int size = 2; size <= 4; size++) {
        struct mdl_team *team;
        struct cfg_error err;
        cr_assert_eq(mdl_team_new(size, &team, &err), 0);
        for (int round = 0; round < 5; round++) {
            struct meeting m = {.size = size};
            usleep(3000);
            mdl_team_run(team, size, 1, meet, &m);
            cr_assert_eq(atomic_load(&m.alone), 0, "a thread of %d waited in vain", size);
        }
        mdl_team_free(team);
    }
}

Test(team, starts_and_stops)
{
    for (int i = 0; i < 50; i++) {
        struct mdl_team *team;
        struct cfg_error err;
        cr_assert_eq(mdl_team_new(1 + i % 4, &team, &err), 0);
        if (i % 2) {
            int out[4] = {0};
            mdl_team_run(team, 4, 1, slow_item, out);
        }
        mdl_team_run(team, 0, 1, slow_item, NULL);
        mdl_team_free(team);
    }
    mdl_team_free(NULL);
    cr_assert_ge(mdl_team_default_threads(), 1);
}
