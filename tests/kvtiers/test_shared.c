/* The cases of the shared tier (tests/support/shared_cases.def) on a disk in memory, whose machine may lose its power,
 * and on a real file system through io_uring: $WEFT_SHARED_DIR, or a local one. */
#include "tests/harness.h"

#include "tests/support/process.h"
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

/* What a tier has reported durable a later process finds and reads. `make test-shared` runs the two halves one after
 * the other ($WEFT_SHARED_PHASE: write, read; $WEFT_SHARED_KEPT: where the list is), between which copies of the file
 * system fail, are mended, and others fail. */
Test(shared_kept, what_is_reported_durable_is_read_later, .timeout = 3600)
{
    const char *phase = getenv("WEFT_SHARED_PHASE"), *list = getenv("WEFT_SHARED_KEPT");
    if (list) {
        bool writes = phase && !strcmp(phase, "write");
        cr_assert_gt(writes ? sw_keep(&folder, "kept", list, 1) : sw_check_kept(&folder, "kept", list), 0);
        return;
    }
    char path[4200], notes[4200], *dir = ts_temp_dir();
    snprintf(path, sizeof path, "%s/weft-kept-XXXXXX", sw_parent(&folder, 0));
    cr_assert(dir && mkdtemp(path));
    snprintf(notes, sizeof notes, "%s/list", dir);
    const char *name = strrchr(path, '/') + 1;
    int stored = sw_keep(&folder, name, notes, 40);
    cr_assert_eq(sw_check_kept(&folder, name, notes), stored);
    ts_remove_dir(path);
    ts_remove_dir(dir);
    free(dir);
}
