/* A sequence inside a HANDOFF or REPLAY message. Whoever drops the message, wherever it was on its way, frees the
 * sequence too. */
#ifndef WEFT_ACTORS_HANDOFF_H
#define WEFT_ACTORS_HANDOFF_H

#include "actors/runtime/message.h"
#include "model/kv.h"

/* A HANDOFF or REPLAY (type) to dst with tail bytes; it owns seq from now on. -ENOMEM: seq is still the caller's. */
int act_handoff_new(enum act_type type, struct act_addr dst, struct mdl_seq *seq, size_t tail, struct act_msg *out);
/* Takes the sequence out of m: the caller owns it. */
struct mdl_seq *act_handoff_take(struct act_msg *m);

#endif
