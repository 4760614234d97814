/* Two endpoints of one provider on one thread, and what they have called back; and the cases that every provider has
 * to pass. A provider's suite describes itself with a struct tr_kind and lists the cases:
 *
 *     #define TR_CASE(name) Test(tcp, name) { tr_case_##name(&kind); }
 *     #include "tests/support/transport_cases.def"
 */
#ifndef WEFT_TESTS_SUPPORT_TRANSPORT_RIG_H
#define WEFT_TESTS_SUPPORT_TRANSPORT_RIG_H

#include "transport/transport.h"

struct event_base;
struct tr_rig;

struct tr_kind {
    const struct tp_ops *ops;
    /* Sets config[i].provider and address; NULL: none and "127.0.0.1:0". Skips the test where the provider cannot be.
     */
    void (*set_up)(struct tr_rig *r);
    void (*tear_down)(struct tr_rig *r);
    /* Lets time pass when nothing is due; NULL: waits a little in the event loop. */
    void (*idle)(struct tr_rig *r, int64_t until);
    int connections; /* one after the other, of many_connections_leave_nothing; 0: 200 */
    bool uses_base;
    bool looks; /* the loop looks at the endpoints and arms them before it waits */
};

enum { TR_LOG = 4096, TR_WINDOW = 1 << 20 };

enum tr_what { TR_ACCEPTED, TR_OPENED, TR_FRAME, TR_IMMEDIATE, TR_PUT_DONE, TR_ROOM, TR_CLOSED };

struct tr_event {
    enum tr_what what;
    struct tp_channel *c;
    uint64_t number; /* immediate, cookie; FRAME: its first bytes, little-endian */
    size_t size;     /* FRAME */
    int status;      /* PUT_DONE, CLOSED */
};

struct tr_side {
    struct tr_rig *rig;
    struct tp_endpoint *ep;
    struct tp_channel *last; /* the newest one that was accepted or opened and has not ended */
    struct tr_event log[TR_LOG];
    int n;
    int frames, immediates, puts_done, closed, rooms, accepted, opened;
    uint64_t next_frame; /* cases that send counting frames: the number expected next */
    bool in_order;       /* they came so */
    bool check_payload;  /* byte i of a frame beyond the first 8 must be (number + i) & 255 */
    bool payload_ok;
    int64_t poll_at;
    char why[256]; /* of the last CLOSED */
    /* Reads the window when an immediate comes: what the byte at this place was. */
    const uint8_t *watch;
    uint8_t watched[256];
    int n_watched;
    void (*on_event)(struct tr_side *s, const struct tr_event *e, const uint8_t *bytes);
    void *ctx;
};

struct tr_rig {
    const struct tr_kind *kind;
    struct tp_endpoint_config config[2];
    struct tr_side side[2];
    struct event_base *base;
    char address[TP_ADDRESS_TEXT], bound[TP_ADDRESS_TEXT];
    uint8_t *window[2];
    struct tp_region *region[2];
    struct tp_key key[2];
    void *world; /* the kind's */
    bool wary;   /* channels are not trusted as soon as they are open */
    int64_t now; /* virtual clock of kinds that have one; 0: the real one */
    bool woken;
};

struct tr_rig *tr_new(const struct tr_kind *kind);
/* Like tr_new, with its endpoints made by tr_open: between the two the configurations may be changed. */
struct tr_rig *tr_prepare(const struct tr_kind *kind);
void tr_open(struct tr_rig *r);
void tr_free(struct tr_rig *r);
/* Closes one endpoint, as the death of its process would. */
void tr_kill(struct tr_rig *r, int side);
/* One turn of everything. */
void tr_turn(struct tr_rig *r);
/* Turns until *what is at least n; ends the test when it does not come to that. */
void tr_until(struct tr_rig *r, const int *what, int n);
/* A channel from side 0 to side 1, open on both. */
void tr_join(struct tr_rig *r, enum tp_class class, struct tp_channel *c[2]);
/* send with retries; ends the test on other errors. */
void tr_send(struct tr_rig *r, struct tp_channel *c, const void *bytes, size_t size);
/* A frame of this number and size, see tr_side.check_payload. */
void tr_send_number(struct tr_rig *r, struct tp_channel *c, uint64_t number, size_t size);
/* put with retries, from the window of the channel's side at `from` to the other's at `to`. */
void tr_put(struct tr_rig *r, struct tp_channel *c, size_t from, size_t to, size_t size, int64_t immediate,
            uint64_t cookie);

#define TR_CASE(name) void tr_case_##name(const struct tr_kind *kind);
#include "tests/support/transport_cases.def"
#undef TR_CASE

#endif
