/* A link that knows nothing but puts: between the processes of a split world (engine_world.h), in its virtual time. A
 * put is read and lands when its time has come, as a one-sided write does: whoever has reused the pages at either end
 * by then sees it. Connections, one to each process with a Landing, end when they are fenced, and where the test says
 * so. */
#ifndef WEFT_TESTS_SUPPORT_PUT_WIRE_H
#define WEFT_TESTS_SUPPORT_PUT_WIRE_H

#include "actors/runtime/runtime.h"
#include "kvtiers/device.h"

struct ts_put;

/* A process's part. */
struct ts_wire_end {
    struct kv_device *device;
    struct act_addr *landing; /* NULL: nobody puts there */
    const struct act_addr *decode;
    uint32_t generation; /* of the connection to it; its lowest bit is the end's */
    struct ts_put *first, **last;
    int64_t last_due;
    bool broken; /* the connection ends as soon as the link runs */
};

enum { TS_WIRE_ENDS = 3 }; /* the first one is Prefill's */

struct ts_wire {
    int64_t delay_max; /* virtual ns that a put takes at most */
    int break_at;      /* the connection ends when this put comes (from 1 on); 0: never */
    int breaks;        /* so do those behind it, this many in all; 0: one */
    int hold_at;       /* this put, and those behind it, take a while longer; 0: none */
    int64_t hold_ns;
    int fail_at;  /* this put cannot be made, and the connection stays; 0: none */
    bool half;    /* of what is under way at an end, what was next lands, without a word to anybody */
    bool deaf;    /* it is asked for fences in vain */
    bool forgets; /* a put that a connection's end has cut off never has an end */
    size_t bytes; /* of all puts that came */
    int puts, landed, lost, refused, fences, ends;
    size_t page_bytes;
    struct ts_wire_end end[TS_WIRE_ENDS];
    struct act_timer timer;
};

/* Whether something is under way to this page of a process. */
bool ts_wire_writes_to(const struct ts_wire *w, const struct kv_device *device, uint32_t page);

/* What is under way takes so much longer. */
void ts_wire_hang(struct ts_wire *w, int64_t ns);
/* The process with this device has ended, and the next one has another. Its connections, and those over which it had
 * something under way, end; that is told when the link gets its next message. Between two steps. */
void ts_wire_process_ended(struct ts_wire *w, const struct kv_device *device, struct kv_device *next);

extern const struct act_behaviour ts_wire_behaviour; /* arg: struct ts_wire * */

#endif
