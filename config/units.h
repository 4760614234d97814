/* Sizes and durations with units. Pure functions; any thread. */
#ifndef WEFT_CONFIG_UNITS_H
#define WEFT_CONFIG_UNITS_H

#include <stddef.h>
#include <stdint.h>

enum { CFG_UNIT_TEXT_MAX = 32 };

/* "64MiB" to bytes: B, KiB, MiB, GiB, TiB (powers of 1,024) and kB, MB, GB, TB (powers of 1,000); one space may stand
 * between number and unit. Whole numbers, no sign. 0, or -EINVAL (no such form), -ERANGE (does not fit). */
int cfg_size_parse(const char *text, int64_t *bytes);

/* "250ms" to microseconds: us, ms, s, min, h; otherwise as above. */
int cfg_duration_parse(const char *text, int64_t *us);

/* Microseconds in one of the units of cfg_duration_parse, bytes in one of cfg_size_parse; 0: no such unit. */
int64_t cfg_duration_unit(const char *unit);
int64_t cfg_size_unit(const char *unit);

/* The shortest exact form, such as "64MiB" or "250ms"; parses back to the same value. */
void cfg_size_format(int64_t bytes, char out[CFG_UNIT_TEXT_MAX]);
void cfg_duration_format(int64_t us, char out[CFG_UNIT_TEXT_MAX]);

#endif
