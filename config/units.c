/* Implementation of config/units.h. */
#include "config/units.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct unit {
    const char *name;
    int64_t scale;
};

/* Largest first within the binary and the decimal row: formatting takes the first that divides. */
static const struct unit sizes[] = {
    {"TiB", INT64_C(1) << 40},
    {"GiB", INT64_C(1) << 30},
    {"MiB", INT64_C(1) << 20},
    {"KiB", INT64_C(1) << 10},
    {"TB", 1000000000000},
    {"GB", 1000000000},
    {"MB", 1000000},
    {"kB", 1000},
    {"B", 1},
    {NULL, 0},
};
static const struct unit durations[] = {
    {"h", 3600000000}, {"min", 60000000}, {"s", 1000000}, {"ms", 1000}, {"us", 1}, {NULL, 0},
};

static int64_t scale_of(const struct unit *units, const char *name)
{
    for (; units->name; units++)
        if (strcmp(units->name, name) == 0)
            return units->scale;
    return 0;
}

static int parse(const struct unit *units, const char *text, int64_t *out)
{
    const char *p = text;
    int64_t n = 0;
    int big = 0;
    for (; isdigit((unsigned char)*p); p++)
        big |= __builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *p - '0', &n);
    if (p == text)
        return -EINVAL;
    if (*p == ' ')
        p++;
    int64_t scale = scale_of(units, p);
    if (scale == 0)
        return -EINVAL;
    if (big || __builtin_mul_overflow(n, scale, &n))
        return -ERANGE;
    *out = n;
    return 0;
}

static void format(const struct unit *units, int64_t value, char *out)
{
    while (units[1].name && (value == 0 || value % units->scale != 0))
        units++;
    snprintf(out, CFG_UNIT_TEXT_MAX, "%" PRId64 "%s", value / units->scale, units->name);
}

int cfg_size_parse(const char *text, int64_t *bytes)
{
    return parse(sizes, text, bytes);
}

int cfg_duration_parse(const char *text, int64_t *us)
{
    return parse(durations, text, us);
}

int64_t cfg_size_unit(const char *unit)
{
    return scale_of(sizes, unit);
}

int64_t cfg_duration_unit(const char *unit)
{
    return scale_of(durations, unit);
}

void cfg_size_format(int64_t bytes, char out[CFG_UNIT_TEXT_MAX])
{
    format(sizes, bytes, out);
}

void cfg_duration_format(int64_t us, char out[CFG_UNIT_TEXT_MAX])
{
    format(durations, us, out);
}
