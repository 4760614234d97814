/* The cases of the shared tier (tests/support/shared_cases.def) on a disk in memory, whose machine may lose its power,
 * and on a real file system through io_uring: $WEFT_SHARED_DIR, or a local one. */
#include "tests/harness.h"
#include "tests/support/shared_world.h"

static const struct sw_kind memory = {.io = SW_MEMORY};
static const struct sw_kind folder = {.io = SW_URING, .fewer = 8};

#define SHARED_CASE(name)                                                                                              \
    Test(shared, name, .timeout = 3600)                                                                                \
    {                                                                                                                  \
        sw_run(&memory, sc_case_##name);                                                                               \
    }                                                                                                                  \
    Test(shared_folder, name, .timeout = 3600)                                                                         \
    {                                                                                                                  \
        sw_run(&folder, sc_case_##name);                                                                               \
    }
#include "tests/support/shared_cases.def"
