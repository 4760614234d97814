/* The request trace: arrivals, lengths and names of prompt blocks, no text, for `weft bench kv --trace`. One JSON
 * object per line; docs/FORMATS.md has the members. Names are hashed once more with a number that is drawn when the
 * file is opened and kept nowhere, so that they say which prompts begin alike within a file and nothing else. The io
 * worker's thread.
 *
 * Lines go to the file through a thread of the trace's own, so that no file holds up the worker. What a file does not
 * take (it is full, or slower than requests end) is lost line by line: no half lines. Lines that are lost are counted,
 * and said in the log when it begins and when it ends. */
#ifndef WEFT_GATEWAY_TRACE_H
#define WEFT_GATEWAY_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "actors/runtime/log.h"
#include "config/error.h"
#include "kvtiers/key.h"

struct gw_trace;

/* Appends to path. log: outlives it; NULL: none. */
int gw_trace_open(const char *path, int block_tokens, size_t block_bytes, struct act_log *log, struct gw_trace **out,
                  struct cfg_error *err);
/* A request that arrived at now_ns (monotonic); chain [n_chain]: root first, then the chain behind each block. NULL as
 * trace: nothing. */
void gw_trace_add(struct gw_trace *t, int64_t now_ns, int prompt, int output, const struct kv_key *chain, int n_chain);
/* Opens the file of that name again, for rotation: what was written so far may have another name. When that fails the
 * old one goes on. Times and hashed names go on as before, so that the parts of a trace can be joined. */
int gw_trace_reopen(struct gw_trace *t, struct cfg_error *err);
/* Lines that were not written. NULL: none. */
uint64_t gw_trace_lost(struct gw_trace *t);
/* Waits for the lines so far, for two seconds at most. */
void gw_trace_free(struct gw_trace *t);

#endif
