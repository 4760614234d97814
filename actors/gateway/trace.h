/* The request trace: arrivals, lengths and names of prompt blocks, no text, for `weft bench kv --trace`. One JSON
 * object per line; docs/FORMATS.md has the members. Names are hashed once more with a number that is drawn when the
 * file is opened and kept nowhere, so that they say which prompts begin alike within a file and nothing else. The io
 * worker's thread. */
#ifndef WEFT_GATEWAY_TRACE_H
#define WEFT_GATEWAY_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "config/error.h"
#include "kvtiers/key.h"

struct gw_trace;

/* Appends to path. */
int gw_trace_open(const char *path, int block_tokens, size_t block_bytes, struct gw_trace **out, struct cfg_error *err);
/* A request that arrived at now_ns (monotonic); chain [n_chain]: root first, then the chain behind each block. NULL as
 * trace: nothing. */
void gw_trace_add(struct gw_trace *t, int64_t now_ns, int prompt, int output, const struct kv_key *chain, int n_chain);
/* Opens the file of that name again, for rotation: what was written so far may have another name. When that fails the
 * old one goes on. Times and hashed names go on as before, so that the parts of a trace can be joined. */
int gw_trace_reopen(struct gw_trace *t, struct cfg_error *err);
void gw_trace_free(struct gw_trace *t);

#endif
