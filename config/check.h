/* Combinations of keys that cannot work together. Internal to config/. */
#ifndef WEFT_CONFIG_CHECK_H
#define WEFT_CONFIG_CHECK_H

#include "config/config.h"

/* Adds every impossible combination in c to the report. */
void cfg_check_combinations(const struct cfg_config *c, struct cfg_report *report);

#endif
