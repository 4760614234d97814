/* What a prompt takes for arrived of the blocks that are being read for it. */
#include "actors/prefill_load.h"

#include "tests/harness.h"

TestSuite(prefill_load);

enum { SOURCES = 3, BLOCKS = 4, LOOKUP = 7 };

static struct act_load reading(void)
{
    return (struct act_load){.n = BLOCKS, .sources = SOURCES, .ok = BLOCKS, .deadline = 100};
}

static void report(struct act_load *l, uint16_t number, int source, uint32_t blocks)
{
    const struct act_p_kv_rows r = {.source = (uint16_t)source, .number = number, .blocks = blocks};
    act_load_rows(l, LOOKUP, &r);
}

Test(prefill_load, it_is_whole_when_every_source_has_come_in_turn)
{
    struct act_load l = reading();
    report(&l, LOOKUP, 1, BLOCKS); /* the first has not come */
    cr_expect_not(act_load_ready(&l, 1));
    for (int s = 0; s < SOURCES; s++) {
        cr_expect_not(act_load_ready(&l, s));
        report(&l, LOOKUP, s, BLOCKS);
        cr_expect(act_load_ready(&l, s));
        cr_expect_eq(act_load_whole(&l), s == SOURCES - 1);
    }
    cr_expect_not(act_load_failed(&l, 1000));
}

Test(prefill_load, the_shortest_source_decides)
{
    struct act_load l = reading();
    report(&l, LOOKUP, 0, 3);
    report(&l, LOOKUP, 1, BLOCKS);
    report(&l, LOOKUP, 2, 2);
    cr_expect_eq(l.ok, 2);
    cr_expect(act_load_failed(&l, 0));
}

/* The prompt began again while its first read was under way: that one went to other pages. */
Test(prefill_load, rows_of_an_earlier_lookup_are_not_taken)
{
    struct act_load l = reading();
    for (int s = 0; s < SOURCES; s++)
        report(&l, LOOKUP - 1, s, BLOCKS);
    cr_expect_eq(l.settled, 0);
    cr_expect_not(act_load_whole(&l));
    report(&l, LOOKUP, 0, BLOCKS);
    cr_expect(act_load_ready(&l, 0));
}
