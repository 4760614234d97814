/* The wire form of messages, made from messages.def: little-endian, every length checked, no pointers.
 *
 * One message: u32 length of what follows; u16 type, u16 flags, u16 attempt, u16 zero; u64 request; i64 time that
 * remains until the deadline in ns (INT64_MAX: none); source and destination address; inline fields; u32 length of the
 * buffer plus 1 (0: no buffer); body fields; tail. An address is u16 node, u64 boot epoch, u32 index, u32 generation
 * (nobody: zeros). Version and byte order are agreed when a connection opens. Functions touch only their arguments and
 * the peers of their runtime; any thread. */
#ifndef WEFT_ACTORS_RUNTIME_WIRE_H
#define WEFT_ACTORS_RUNTIME_WIRE_H

#include "actors/runtime/peers.h"

enum { ACT_WIRE_MAX = 64 << 20 }; /* bytes of one message, with its length */

/* Bytes that m takes; 0 when its type does not cross nodes or it does not fit the list. */
size_t act_wire_size(const struct act_msg *m);
/* Writes m into out, which has room for act_wire_size(m) bytes; m stays the caller's. now: for the deadline. rt turns
 * peer numbers into nodes and epochs. -EINVAL: not a message that may cross nodes; -ENOENT: an address with an unknown
 * peer; -EMSGSIZE. */
int act_wire_encode(struct act_runtime *rt, const struct act_msg *m, int64_t now, uint8_t *out, size_t *written);
/* Reads one message from the front of bytes. Returns 0 with *out (the caller owns it and its buffer) and the bytes
 * used; -EAGAIN: more bytes are needed, *used is how many in all, if known, else 4; -EPROTO: not a message, err says
 * what is wrong; -ENOMEM; -ESTALE: an address of an incarnation that is over, *out has the head and no buffer. */
int act_wire_decode(struct act_runtime *rt, const uint8_t *bytes, size_t size, int64_t now, struct act_msg *out,
                    size_t *used, struct cfg_error *err);

#endif
