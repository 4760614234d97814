/* A grant that comes again and again when its request was cancelled and has left its writer, whose writes are
 * under way. To be called from what stands before the writer, the Prefill or Decode of a split world (engine_world.h).
 */
#ifndef WEFT_TESTS_SUPPORT_DOUBLED_GRANT_H
#define WEFT_TESTS_SUPPORT_DOUBLED_GRANT_H

#include "tests/support/engine_world.h"

struct ts_doubled_grant {
    enum ts_part part; /* of the writer */
    int index;
    struct act_msg grant;
    uint64_t request;      /* that the grant is for; 0: none has come */
    bool cancelled, heard; /* by the writer */
    int doubled;
};

enum { TS_DOUBLES = 50 };

/* before_ctx is a struct ts_doubled_grant. */
bool ts_double_grant(struct ts_world *w, const struct ts_inner *who, struct act_self *self, struct act_msg *m,
                     int *fail);
void ts_doubled_grant_free(struct ts_doubled_grant *d);

#endif
