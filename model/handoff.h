/* A sequence behind its prompt as bytes, so that another process goes on with it. Three forms:
 *
 *   full      global rows; window rows of every layer, drafter rows, tails. The receiver decodes at once.
 *   encoder   global rows; window rows of the layers below the cut, tails, and the bridge rows of the last R tokens.
 * The receiver runs the layers from the cut on over these R tokens (mdl_prefill_resume): the same bits as full, and the
 * sender needs no weights from the cut on. global    global rows below H, the largest even number below the prompt's
 * length, and nothing else. The receiver goes on as behind a prefix hit of H without window rows: bit-equal to that,
 * and so an approximation.
 *
 * encoder and global exist for prompts that were computed with a bounded replay; an exact prompt has only full.
 *
 * Global rows are written into the receiver's blocks while the prompt is still computed, in pieces that may arrive in
 * any order; the rest, the state, comes last. Bytes are in docs/FORMATS.md. Both sides have the same model, row format
 * and block size, which they have told each other before; sizes are checked again here, because a wrong row is a wrong
 * token.
 *
 * Called by whoever owns the sequence. */
#ifndef WEFT_MODEL_HANDOFF_H
#define WEFT_MODEL_HANDOFF_H

#include "model/kv.h"
#include "model/prefill.h"

enum mdl_handoff_form { MDL_HANDOFF_FULL, MDL_HANDOFF_ENCODER, MDL_HANDOFF_GLOBAL, MDL_HANDOFF_FORMS };

/* "full", "encoder", "global" */
const char *mdl_handoff_name(enum mdl_handoff_form form);

struct mdl_handoff_range {
    size_t offset, size; /* bytes of a block */
};
enum { MDL_HANDOFF_RANGES = 3 * MDL_MAX_SOURCES };

/* Where in a block of this layout, of so many sources, the global rows lie that tokens from..to-1 of the block
 * complete: ascending, none empty, the same in both processes. from is even, to too or the prompt's end. Returns how
 * many. */
int mdl_handoff_ranges(const struct mdl_kv_layout *l, int sources, int from, int to,
                       struct mdl_handoff_range out[MDL_HANDOFF_RANGES]);

/* Tokens whose global rows the form sends, of a prompt of n. */
int mdl_handoff_tokens(enum mdl_handoff_form form, int n);

/* full: every layer of every token of the prompt is committed; encoder, global: the layers below the cut. */
size_t mdl_handoff_state_bytes(const struct mdl_seq *seq, enum mdl_handoff_form form);
void mdl_handoff_state_save(const struct mdl_seq *seq, enum mdl_handoff_form form, uint8_t *out);
/* Into a sequence whose blocks are attached and hold the rows; takes ids [n], the whole prompt. Rings may be of other
 * lengths than the sender's: what does not fit is left out, what the sender did not have is not there. -EINVAL with the
 * reason in err when the bytes do not fit this model, this prompt or each other; the sequence is then empty. */
int mdl_handoff_state_load(struct mdl_seq *seq, enum mdl_handoff_form form, const int32_t *ids, int n,
                           const uint8_t *bytes, size_t len, struct cfg_error *err);

#endif
