/* What reading costs, as the tiers measure it: shared time, failed reads, and a tier that is not read any more. */
#include "tests/harness.h"

#include <math.h>

#include "actors/tier_cost.h"

#define MS INT64_C(1000000)

static void assert_near(double got, double want)
{
    cr_assert_lt(fabs(got - want), 1e-6 * want + 1e-12, "%g instead of %g", got, want);
}

Test(tier_cost, reads_side_by_side_share_their_time)
{
    struct act_tier_cost c = {0};
    for (int i = 0; i < 4; i++)
        act_tier_cost_began(&c, 10 * MS);
    for (int i = 0; i < 4; i++)
        act_tier_cost_ended(&c, 14 * MS);
    act_tier_cost_measure(&c, 4000, 20 * MS);
    assert_near(c.byte_ns, 1000); /* 4 ms for 4,000 bytes, not 16 ms */
}

Test(tier_cost, a_long_read_is_measured_as_a_whole)
{
    struct act_tier_cost c = {0};
    act_tier_cost_began(&c, 0);
    act_tier_cost_measure(&c, 0, 20 * MS);
    act_tier_cost_measure(&c, 0, 40 * MS);
    act_tier_cost_ended(&c, 50 * MS);
    act_tier_cost_measure(&c, 1000, 60 * MS);
    assert_near(c.byte_ns, 50000);
}

Test(tier_cost, a_failed_read_is_not_the_time_of_the_next_one)
{
    struct act_tier_cost c = {0};
    act_tier_cost_began(&c, 0);
    act_tier_cost_ended(&c, 2000 * MS); /* and brought nothing */
    act_tier_cost_measure(&c, 0, 2010 * MS);
    act_tier_cost_began(&c, 2020 * MS);
    act_tier_cost_ended(&c, 2021 * MS);
    act_tier_cost_measure(&c, 1000, 2030 * MS);
    assert_near(c.byte_ns, 1000);
}

Test(tier_cost, newer_reads_count_for_more)
{
    struct act_tier_cost c = {0};
    for (int i = 1; i <= 2; i++) {
        act_tier_cost_began(&c, i * 100 * MS);
        act_tier_cost_ended(&c, i * 100 * MS + (i == 1 ? 8 : 4) * MS);
        act_tier_cost_measure(&c, (uint64_t)i * 1000, i * 100 * MS + 50 * MS);
    }
    assert_near(c.byte_ns, 0.75 * 8000 + 0.25 * 4000);
}

/* Otherwise a tier that was slow once would never be read again. */
Test(tier_cost, what_is_not_read_is_forgotten)
{
    struct act_tier_cost c = {0};
    act_tier_cost_began(&c, 0);
    act_tier_cost_ended(&c, 64 * MS);
    act_tier_cost_measure(&c, 1000, 64 * MS);
    assert_near(c.byte_ns, 64000);
    for (int64_t t = 1; t <= 3000; t++) /* however often it is looked at */
        act_tier_cost_measure(&c, 1000, 64 * MS + t * ACT_TIER_COST_HALF_LIFE / 1000);
    assert_near(c.byte_ns, 8000);
}

Test(tier_cost, a_hang_is_not_what_reading_costs)
{
    struct act_tier_cost c = {0};
    act_tier_cost_began(&c, 0);
    act_tier_cost_measure(&c, 0, 100 * MS);
    act_tier_cost_skip(&c, 0, 40000 * MS);
    act_tier_cost_ended(&c, 40010 * MS);
    act_tier_cost_skip(&c, 1000, 40020 * MS);
    cr_assert_eq(c.byte_ns, 0);
    act_tier_cost_began(&c, 41000 * MS);
    act_tier_cost_ended(&c, 41001 * MS);
    act_tier_cost_measure(&c, 2000, 41020 * MS);
    assert_near(c.byte_ns, 1000);
}
