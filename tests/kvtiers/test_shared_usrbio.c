/* The cases of the shared tier (tests/support/shared_cases.def) through USRBIO, over a double of its library that does
 * one thing at a time which the real one may do, and all of it. */
#include "tests/harness.h"
#include "tests/support/shared_world.h"

#define KIND(name, ...)                                                                                                \
    static const struct sw_kind name = {                                                                               \
        .io = SW_USRBIO, .fewer = 24, .seeds = 1, .many_seeds = 2, .faults = {.errors_left = -1, __VA_ARGS__}}
KIND(full_rings, .again = 500);
KIND(out_of_order, .order = 700, .late = 500);
KIND(short_moves, .short_move = 150);
KIND(late_retries, .transient = 100, .calls = 200);
KIND(mixed, .again = 150, .order = 400, .late = 300, .short_move = 150, .transient = 60, .calls = 60);
/* One hard error per folder. */
static const struct sw_kind late_errors = {
    .io = SW_USRBIO,
    .fewer = 24,
    .errors = true,
    .seeds = 2,
    .many_seeds = 6,
    .faults = {.error = 8, .refuse = 4, .late = 300, .order = 300, .errors_left = 1}};

#define CASE_ON(suite, kind, name)                                                                                     \
    Test(suite, name, .timeout = 3600)                                                                                 \
    {                                                                                                                  \
        sw_run(&kind, sc_case_##name);                                                                                 \
    }
#define SHARED_CASE(name)                                                                                              \
    CASE_ON(usrbio_full_rings, full_rings, name)                                                                       \
    CASE_ON(usrbio_out_of_order, out_of_order, name)                                                                   \
    CASE_ON(usrbio_short_moves, short_moves, name)                                                                     \
    CASE_ON(usrbio_late_retries, late_retries, name)                                                                   \
    CASE_ON(usrbio_late_errors, late_errors, name)                                                                     \
    CASE_ON(usrbio_mixed, mixed, name)
#include "tests/support/shared_cases.def"
