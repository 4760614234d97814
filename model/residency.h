/* Which experts of a mapped checkpoint are in memory. Reading weights brings them in anyway, page by page and while a
 * step waits; loading does it beforehand, releasing gives memory back. Results never depend on it. */
#ifndef WEFT_MODEL_RESIDENCY_H
#define WEFT_MODEL_RESIDENCY_H

#include "model/model.h"

/* Bytes of one routed expert's weights and scales, as far as they are in quantised form; others are never released. */
size_t mdl_expert_bytes(const struct mdl_model *m, int layer, int expert);
/* Brings every page of the expert in: as long as reading so many bytes takes. Any thread. */
void mdl_expert_load(const struct mdl_model *m, int layer, int expert);
/* Tells the kernel that this process does not need the pages. They stay in the file. */
void mdl_expert_release(const struct mdl_model *m, int layer, int expert);

#endif
