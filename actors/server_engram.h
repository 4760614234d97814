/* Opens the row store of Engram tables as a configuration asks for it. For the server itself, and for weft check. */
#ifndef WEFT_ACTORS_SERVER_ENGRAM_H
#define WEFT_ACTORS_SERVER_ENGRAM_H

#include "config/config.h"
#include "kvtiers/rows.h"
#include "model/checkpoint.h"

/* Over the files of this checkpoint. *rows NULL: the tables are mapped, or there are none. Both are freed by the
 * caller, rows first, also after an error. */
int act_server_engram_rows(const struct cfg_config *c, const struct mdl_checkpoint *ck, struct kv_storage **storage,
                           struct kv_rows **rows, struct cfg_error *err);

#endif
