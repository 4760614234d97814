/* The provider inproc passes what every provider has to pass, and works across threads. */
#include "tests/harness.h"

#include <pthread.h>
#include <string.h>

#include "tests/support/transport_rig.h"
#include "transport/inproc.h"

static void set_up(struct tr_rig *r)
{
    r->world = tp_inproc_hub_new();
    cr_assert_not_null(r->world);
    for (int i = 0; i < 2; i++)
        r->config[i].provider = r->world;
    strcpy(r->address, "node-b");
}

static void tear_down(struct tr_rig *r)
{
    tp_inproc_hub_free(r->world);
}

static const struct tr_kind kind = {.ops = &tp_inproc, .set_up = set_up, .tear_down = tear_down};

#define TR_CASE(name)                                                                                                  \
    Test(inproc, name)                                                                                                 \
    {                                                                                                                  \
        tr_case_##name(&kind);                                                                                         \
    }
#include "tests/support/transport_cases.def"
#undef TR_CASE
