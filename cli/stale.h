/* What a configuration file says by now that a process which was started from it does not take up at SIGHUP: for weft
 * serve, which tells the log and weft status, and for the supervisor of weft up. Main thread. */
#ifndef WEFT_CLI_STALE_H
#define WEFT_CLI_STALE_H

#include "config/config.h"

/* One line for each, such as `kv.memory = "1GiB" ("512MiB" until then)`, freed by the caller; NULL: nothing, or no
 * memory. was: as the process was started; self: its node in it, NULL: all nodes are somebody else's. What happens to a
 * node that has another place in the list is left to the link. */
char *cli_stale(const struct cfg_config *was, const struct cfg_node *self, const struct cfg_config *is);

#endif
