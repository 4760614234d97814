/* What the provider rdma says when a step fails: the device, the step, the memory, and what to look at. The steps fail
 * in tests/doubles/verbs.c, the rest is the kernel's soft-RoCE in the guest of tests/rdma/guest.sh. */
#include "tests/harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/support/process.h"
#include "tests/support/rdma_rig.h"
#include "transport/rdma_hello.h"

#if __has_include(<rdma/rdma_cma.h>)
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#define HAVE_CM
#endif

/* As tests/doubles/verbs.c has it. */
struct verbs_faults {
    int state, skip, error;
    int cq_error, qp_error, srq_error, mr_error;
    size_t short_by;
    uint8_t retries;
    int open;
    uint64_t mr_size_max;
    int hold, held;
};

enum { INIT = 1, RTR = 2, RTS = 3 }; /* states of a queue pair */
enum { TURNS = 10000 };              /* for what comes by itself, in 20 s at most */

static struct verbs_faults *faults;

/* Before anything has loaded the provider. */
static const struct tp_ops *ops(void)
{
    rr_need_guest();
    char *path = strdup(ts_program("tests/doubles/verbs.so"));
    void *verbs = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    cr_assert_not_null(verbs, "%s", dlerror());
    faults = dlsym(verbs, "verbs_faults");
    cr_assert_not_null(faults);
    *faults = (struct verbs_faults){0};
    free(path);
    return rr_ops();
}

static void set_up(struct tr_rig *r)
{
    rr_set_up_wire(r);
}

static struct tr_rig *open_rig(void)
{
    static struct tr_kind kind;
    kind = (struct tr_kind){.ops = ops(), .set_up = set_up, .uses_base = true};
    return tr_new(&kind);
}

static void expect_why(const struct tr_side *s, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_expect(strstr(s->why, parts[i]), "\"%s\" is missing in: %s", parts[i], s->why);
}

#define EXPECT_WHY(side, ...)                                                                                          \
    do {                                                                                                               \
        static const char *const parts_[] = {__VA_ARGS__};                                                             \
        expect_why(side, parts_, sizeof parts_ / sizeof *parts_);                                                      \
    } while (0)

/* On the side that accepts (the first that comes to RTR and RTS) and on the one that dials; whoever dials learns it. */
Test(rdma_reasons, a_queue_pair_that_cannot_go_on_is_named_with_the_step)
{
    static const struct {
        int state, skip;
        const char *device, *step;
    } at[] = {{INIT, 0, "rxe1", "cannot go to INIT"}, {INIT, 1, "rxe2", "cannot go to INIT"},
              {RTR, 0, "rxe2", "cannot go to RTR"},   {RTR, 1, "rxe1", "cannot go to RTR"},
              {RTS, 0, "rxe2", "cannot go to RTS"},   {RTS, 1, "rxe1", "cannot go to RTS"}};
    struct tr_rig *r = open_rig();
    long ids[] = {rr_resources("rxe1", "cm_id"), rr_resources("rxe2", "cm_id")};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct tp_channel *c;
        struct cfg_error err;
        int closed = r->side[0].closed + 1, accepted = r->side[1].accepted;
        *faults = (struct verbs_faults){.state = at[i].state, .skip = at[i].skip, .error = EINVAL};
        cr_assert_eq(r->kind->ops->connect(r->side[0].ep, r->bound, TP_CLASS_KV, NULL, &c, &err), 0, "%s", err.msg);
        tr_until(r, &r->side[0].closed, closed);
        cr_expect_eq(r->side[0].opened, 0);
        cr_expect_eq(r->side[1].accepted, accepted);
        cr_expect(strstr(r->side[0].why, at[i].device) && strstr(r->side[0].why, at[i].step) &&
                      strstr(r->side[0].why, strerror(EINVAL)),
                  "%s of %s: %s", at[i].step, at[i].device, r->side[0].why);
        if (at[i].state != INIT)
            EXPECT_WHY(&r->side[0], "MTU 4096, GID index 1, port 1", "RoCE versions");
        cr_expect_eq(r->side[0].ep->channels, 0);
        /* The other side, if it had accepted, learns it; what it refused it has forgotten. */
        cr_expect(r->side[1].ep->channels == 0 || strcmp(at[i].device, "rxe1") == 0, "%s of %s", at[i].step,
                  at[i].device);
        for (int turns = 0; r->side[1].ep->channels && turns < TURNS; turns++)
            tr_turn(r);
        cr_expect_eq(r->side[1].ep->channels, 0);
    }
    *faults = (struct verbs_faults){0};
    cr_expect_eq(rr_resources("rxe1", "cm_id"), ids[0]);
    cr_expect_eq(rr_resources("rxe2", "cm_id"), ids[1]);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c); /* the next one is as good as ever */
    tr_free(r);
}

/* The second device of either side fails, with both first ones up: the channel has one, and nothing of the other. */
Test(rdma_reasons, a_second_device_that_fails_is_done_without)
{
    struct tr_kind kind = {.ops = ops(), .set_up = rr_set_up_rails, .uses_base = true};
    struct tr_rig *r = tr_new(&kind);
    struct tp_channel *c[2];
    long qps[] = {rr_resources("rxe3", "qp"), rr_resources("rxe4", "qp")};
    for (int i = 0; i < 2; i++) {
        *faults = (struct verbs_faults){.state = RTR, .skip = 2 + i, .error = EINVAL};
        tr_join(r, TP_CLASS_KV, c);
        cr_expect_eq(faults->error, 0, "nothing has failed");
        memset(r->window[0], i + 1, TR_WINDOW);
        tr_put(r, c[0], 0, 0, TR_WINDOW, 1, 1);
        tr_until(r, &r->side[1].immediates, i + 1);
        cr_expect_arr_eq(r->window[0], r->window[1], TR_WINDOW);
        cr_expect_eq(rr_resources("rxe3", "qp"), qps[0], "side %d has failed", 1 - i);
        cr_expect_eq(rr_resources("rxe4", "qp"), qps[1], "side %d has failed", 1 - i);
    }
    tr_free(r);
}

/* The adapter gives up before this side does: soft-RoCE when it is told to try once more, since it takes 7 for ever. */
Test(rdma_reasons, a_write_without_acknowledgement_names_what_to_look_at)
{
    struct tr_kind kind = {.ops = ops(), .set_up = set_up, .uses_base = true};
    struct tr_rig *r = tr_prepare(&kind);
    faults->retries = 1;
    tr_open(r);
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    rr_shell("tc qdisc add dev rdma1 root netem loss 100%%");
    tr_put(r, c[0], 0, 0, 1000, 1, 1);
    tr_until(r, &r->side[0].closed, 1);
    rr_shell("tc qdisc del dev rdma1 root");
    cr_expect_eq(r->side[0].log[r->side[0].n - 1].status, -ETIMEDOUT);
    EXPECT_WHY(&r->side[0], "no acknowledgement from 10.77.1.2", "packets are lost", "RoCE version (here index 1)",
               "lossless settings");
    *faults = (struct verbs_faults){0};
    tr_free(r);
}

Test(rdma_reasons, a_completion_queue_against_the_limit_on_locked_memory)
{
    struct rlimit limit, low;
    struct tp_endpoint *ep;
    struct cfg_error err = {""};
    const struct tp_ops *rdma = ops();
    struct tr_kind kind = {.ops = rdma, .set_up = set_up, .uses_base = true};
    struct tr_rig *r = tr_prepare(&kind);
    getrlimit(RLIMIT_MEMLOCK, &limit);
    low = limit;
    low.rlim_cur = 64 << 10;
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    faults->cq_error = ENOMEM;
    int rc = rdma->open(&r->config[0], &ep, &err);
    struct tp_region *region;
    struct tp_key key;
    static uint8_t memory[4096];
    if (!rc) { /* devices are opened with their first use */
        rc = rdma->add_region(ep, memory, sizeof memory, &region, &key, &err);
        rdma->close(ep);
    }
    setrlimit(RLIMIT_MEMLOCK, &limit);
    *faults = (struct verbs_faults){0};
    cr_expect_eq(rc, -ENOMEM);
    cr_expect(strstr(err.msg, "a completion queue on rxe1") && strstr(err.msg, "64 KiB may be locked") &&
                  strstr(err.msg, "memlock"),
              "%s", err.msg);
    tr_open(r);
    tr_free(r);
}

/* Whatever a connection needs of its device: what could not be had is named, with the limit. */
Test(rdma_reasons, what_a_connection_needs_against_the_limit_on_locked_memory)
{
    static const struct {
        struct verbs_faults faults;
        const char *what;
    } at[] = {{{.mr_error = ENOMEM}, "receive buffers on rxe1"},
              {{.srq_error = ENOMEM}, "a shared receive queue on rxe1"},
              {{.qp_error = ENOMEM}, "a queue pair on rxe1"}};
    struct tr_rig *r = open_rig();
    struct tp_channel *c[2];
    struct rlimit limit, low;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    low = limit;
    low.rlim_cur = 64 << 10;
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct cfg_error err;
        int closed = r->side[0].closed + 1;
        *faults = at[i].faults;
        cr_assert_eq(r->kind->ops->connect(r->side[0].ep, r->bound, TP_CLASS_KV, NULL, &c[0], &err), 0, "%s", err.msg);
        tr_until(r, &r->side[0].closed, closed);
        cr_expect_eq(r->side[0].log[r->side[0].n - 1].status, -ENOMEM);
        cr_expect(strstr(r->side[0].why, at[i].what) && strstr(r->side[0].why, "64 KiB may be locked"), "%s: %s",
                  at[i].what, r->side[0].why);
    }
    *faults = (struct verbs_faults){0};
    tr_join(r, TP_CLASS_KV, c);
    faults->mr_error = ENOMEM; /* a frame that doesn't fit into its request needs send buffers */
    static uint8_t frame[5000];
    struct iovec v = {frame, sizeof frame};
    cr_expect_eq(c[0]->ops->send(c[0], &v, 1), -ENOTCONN);
    tr_until(r, &r->side[0].closed, sizeof at / sizeof *at + 1);
    EXPECT_WHY(&r->side[0], "registering send buffers on rxe1", "64 KiB may be locked");
    *faults = (struct verbs_faults){0};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    tr_free(r);
}

/* What the device registers at once decides, without a word in the configuration. */
Test(rdma_reasons, a_device_that_registers_little_at_once_gets_pieces)
{
    enum { PIECE = 300 << 10 };
    struct tr_kind kind = {.ops = ops(), .set_up = set_up, .uses_base = true};
    struct tr_rig *r = tr_prepare(&kind);
    struct tp_channel *c[2];
    long before = rr_resources("rxe1", "mr");
    faults->mr_size_max = PIECE;
    tr_open(r);
    cr_expect_eq(rr_resources("rxe1", "mr") - before, (TR_WINDOW + PIECE - 1) / PIECE);
    tr_join(r, TP_CLASS_KV, c);
    memset(r->window[0], 0x5a, TR_WINDOW);
    tr_put(r, c[0], 0, 0, TR_WINDOW, 1, 1);
    tr_until(r, &r->side[1].immediates, 1);
    cr_expect_arr_eq(r->window[0], r->window[1], TR_WINDOW);
    *faults = (struct verbs_faults){0};
    tr_free(r);
}

/* The other side's window is gone, or is not all registered: region, size, place and window are named, and the other
 * channel goes on. */
Test(rdma_reasons, a_write_that_the_other_side_refuses_is_named_and_ends_its_channel_only)
{
    struct tr_rig *r = open_rig();
    struct tp_channel *c[2], *other[2];
    struct cfg_error err;
    struct tp_region *extra;
    struct tp_key key;
    static uint8_t memory[4096];
    tr_join(r, TP_CLASS_EXPERT, other);
    tr_join(r, TP_CLASS_KV, c);
    cr_assert_eq(r->kind->ops->add_region(r->side[1].ep, memory, sizeof memory, &extra, &key, &err), 0, "%s", err.msg);
    r->kind->ops->remove_region(r->side[1].ep, extra);
    struct tp_put p = {
        .region = r->region[0], .from = r->window[0], .size = 777, .key = key, .offset = 33, .cookie = 5};
    cr_assert_eq(c[0]->ops->put(c[0], &p), 0);
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_eq(r->side[0].log[r->side[0].n - 1].status, -EACCES);
    EXPECT_WHY(&r->side[0], "the other side refused a write: no such window or range", "777 bytes", "region of 1048576",
               "to offset 33 of window");
    tr_send_number(r, other[0], 0, 100);
    tr_until(r, &r->side[1].frames, 1);
    tr_free(r);
}

Test(rdma_reasons, a_write_from_memory_that_is_not_registered_is_named_and_ends_its_channel_only)
{
    struct tr_rig *r = open_rig();
    struct tp_channel *c[2], *other[2];
    struct cfg_error err;
    struct tp_region *half;
    struct tp_key key;
    static uint8_t memory[1 << 16];
    tr_join(r, TP_CLASS_EXPERT, other);
    tr_join(r, TP_CLASS_KV, c);
    faults->short_by = sizeof memory / 2;
    cr_assert_eq(r->kind->ops->add_region(r->side[0].ep, memory, sizeof memory, &half, &key, &err), 0, "%s", err.msg);
    struct tp_put p = {
        .region = half, .from = memory + 40000, .size = 5000, .key = r->key[1], .offset = 44, .cookie = 6};
    cr_assert_eq(c[0]->ops->put(c[0], &p), 0);
    tr_until(r, &r->side[0].closed, 1);
    EXPECT_WHY(&r->side[0], "not registered", "5000 bytes", "region of 65536", "to offset 44 of window");
    tr_send_number(r, other[0], 0, 100);
    tr_until(r, &r->side[1].frames, 1);
    tr_free(r);
}

/* An adapter that does not ask whether a queue pair takes writes: nobody is told of one that came too early. */
Test(rdma_reasons, a_write_that_an_adapter_lets_through_too_early_is_not_told_of)
{
    struct tr_rig *r = open_rig();
    struct tp_channel *c[2];
    faults->open = 1;
    r->wary = true;
    tr_join(r, TP_CLASS_KV, c);
    tr_put(r, c[0], 0, 0, 8, 7, 1);
    tr_until(r, &r->side[1].closed, 1);
    cr_expect_eq(r->side[1].immediates, 0);
    cr_expect_eq(r->side[1].log[r->side[1].n - 1].status, -EACCES);
    EXPECT_WHY(&r->side[1], "before it had proved who it is");
    *faults = (struct verbs_faults){0};
    tr_free(r);
}

/* An adapter that shows what it has done only when the queue pair is destroyed: what was written before the end was
 * written, and nothing of it comes to what ended. */
Test(rdma_reasons, what_completed_before_the_end_counts_however_late_it_is_shown)
{
    struct tr_rig *r = open_rig();
    struct tp_channel *c[2];
    tr_join(r, TP_CLASS_KV, c);
    tr_put(r, c[0], 0, 0, 8, 1, 1);
    tr_until(r, &r->side[0].puts_done, 1);
    faults->hold = 1;
    tr_put(r, c[0], 0, 0, 8, 2, 2);
    tr_until(r, &faults->held, 1);
    cr_expect_eq(r->side[0].puts_done, 1);
    c[0]->ops->abort(c[0]);
    tr_until(r, &r->side[0].closed, 1);
    cr_expect_eq(faults->held, 0, "%d completions are left", faults->held);
    cr_assert_eq(r->side[0].puts_done, 2);
    const struct tr_event *e = &r->side[0].log[r->side[0].n - 2];
    cr_expect_eq(e->what, TR_PUT_DONE);
    cr_expect_eq(e->number, 2);
    cr_expect_eq(e->status, 0, "a put that arrived ended with %d", e->status);
    tr_join(r, TP_CLASS_KV, c);
    tr_send_number(r, c[1], 0, 100);
    tr_until(r, &r->side[0].frames, 1);
    tr_free(r);
}

/* ---- who speaks to the connection manager by hand --------------------------------------------------------------- */

#ifdef HAVE_CM

#define CM(X)                                                                                                          \
    X(rdma_create_event_channel)                                                                                       \
    X(rdma_destroy_event_channel)                                                                                      \
    X(rdma_create_id)                                                                                                  \
    X(rdma_destroy_id)                                                                                                 \
    X(rdma_resolve_addr) X(rdma_resolve_route) X(rdma_connect) X(rdma_get_cm_event) X(rdma_ack_cm_event)

static struct {
#define X(name) __typeof__(name) *name;
    CM(X)
#undef X
} cm;

static struct rdma_event_channel *open_cm(void)
{
    void *library = dlopen("librdmacm.so.1", RTLD_NOW);
    cr_assert_not_null(library, "%s", dlerror());
#define X(name)                                                                                                        \
    *(void **)&cm.name = dlsym(library, #name);                                                                        \
    cr_assert_not_null(cm.name, #name);
    CM(X)
#undef X
    struct rdma_event_channel *events = cm.rdma_create_event_channel();
    cr_assert_not_null(events);
    cr_assert_eq(fcntl(events->fd, F_SETFL, O_NONBLOCK), 0);
    return events;
}

/* The next event of the hand; why: what came with a refusal. */
static enum rdma_cm_event_type next_event(struct tr_rig *r, struct rdma_event_channel *events, char *why)
{
    struct rdma_cm_event *e;
    for (int turns = 0; cm.rdma_get_cm_event(events, &e); turns++) {
        cr_assert_lt(turns, TURNS, "no event comes");
        tr_turn(r);
    }
    enum rdma_cm_event_type type = e->event;
    if (type == RDMA_CM_EVENT_REJECTED)
        tp_rdma_refusal_read(e->param.conn.private_data, e->param.conn.private_data_len, why);
    cm.rdma_ack_cm_event(e);
    return type;
}

/* Asks side 1 for a lane with these bytes, from one address to another. What it says; why: "" unless it refuses. */
static enum rdma_cm_event_type ask(struct tr_rig *r, struct rdma_event_channel *events, const char *from,
                                   const char *to, const uint8_t *bytes, size_t size, struct rdma_cm_id **id,
                                   char why[TP_RDMA_REFUSAL])
{
    struct sockaddr_in a[2] = {{.sin_family = AF_INET}, {.sin_family = AF_INET}};
    inet_pton(AF_INET, from, &a[0].sin_addr);
    inet_pton(AF_INET, to, &a[1].sin_addr);
    a[1].sin_port = htons((uint16_t)atoi(strrchr(r->bound, ':') + 1));
    static uint32_t qp_num = 4; /* one that is used already counts as a stale connection */
    why[0] = '\0';
    cr_assert_eq(cm.rdma_create_id(events, id, NULL, RDMA_PS_TCP), 0);
    cr_assert_eq(cm.rdma_resolve_addr(*id, (struct sockaddr *)&a[0], (struct sockaddr *)&a[1], 20000), 0);
    cr_assert_eq(next_event(r, events, why), RDMA_CM_EVENT_ADDR_RESOLVED);
    cr_assert_eq(cm.rdma_resolve_route(*id, 20000), 0);
    cr_assert_eq(next_event(r, events, why), RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct rdma_conn_param p = {.private_data = bytes,
                                .private_data_len = (uint8_t)size,
                                .responder_resources = 1,
                                .initiator_depth = 1,
                                .retry_count = 7,
                                .rnr_retry_count = 7,
                                .srq = 1,
                                .qp_num = ++qp_num};
    cr_assert_eq(cm.rdma_connect(*id, &p), 0);
    return next_event(r, events, why);
}

static size_t in_use(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* The second lane fails at the side that is asked, again and again, then not; asked for once more, and without a
 * channel, it is refused. */
Test(rdma_reasons, a_lane_that_failed_may_be_asked_for_again_and_costs_nothing)
{
    enum { TRIES = 8, DEPTH = 2000 };
    struct tr_kind kind = {.ops = ops(), .set_up = rr_set_up_rails, .uses_base = true};
    struct tr_rig *r = tr_prepare(&kind);
    for (int i = 0; i < 2; i++) {
        r->config[i].depth = DEPTH;
        r->config[i].frame_max = TP_FRAME_MIN;
    }
    tr_open(r);
    struct rdma_event_channel *events = open_cm();
    struct rdma_cm_id *id[TRIES + 5];
    char why[TP_RDMA_REFUSAL];
    uint8_t bytes[TP_RDMA_ASK];
    int n = 0;
    struct tp_rdma_ask a = {
        .lanes = 2, .class = TP_CLASS_KV, .frame_max = TP_FRAME_MIN, .depth = DEPTH, .mtu = 4096, .channel = 77};
    tp_rdma_ask_write(&a, bytes);
    cr_assert_eq(ask(r, events, "10.77.1.1", "10.77.1.2", bytes, 3, &id[n++], why), RDMA_CM_EVENT_REJECTED);
    cr_expect_neq(why[0], '\0', "nonsense is refused without a word");
    a.lane = 1;
    tp_rdma_ask_write(&a, bytes);
    cr_assert_eq(ask(r, events, "10.77.2.1", "10.77.2.2", bytes, sizeof bytes, &id[n++], why), RDMA_CM_EVENT_REJECTED);
    cr_expect_str_eq(why, "no channel waits for this lane");
    a.lane = 0;
    tp_rdma_ask_write(&a, bytes);
    cr_assert_eq(ask(r, events, "10.77.1.1", "10.77.1.2", bytes, sizeof bytes, &id[n++], why),
                 RDMA_CM_EVENT_CONNECT_RESPONSE);
    cr_expect_eq(r->side[1].ep->channels, 1);
    a.lane = 1;
    tp_rdma_ask_write(&a, bytes);
    size_t before = 0;
    for (int i = 0; i < TRIES; i++) {
        *faults = (struct verbs_faults){.state = RTR, .error = EINVAL};
        cr_assert_eq(ask(r, events, "10.77.2.1", "10.77.2.2", bytes, sizeof bytes, &id[n++], why),
                     RDMA_CM_EVENT_REJECTED);
        cr_expect(strstr(why, "cannot go to RTR"), "%s", why);
        before = i == 0 ? in_use() : before;
    }
    /* A lane has 2 * DEPTH requests at least. */
    cr_expect_lt(in_use(), before + (size_t)DEPTH * 2 * 16, "what failed is not given back");
    cr_assert_eq(ask(r, events, "10.77.2.1", "10.77.2.2", bytes, sizeof bytes, &id[n++], why),
                 RDMA_CM_EVENT_CONNECT_RESPONSE);
    cr_assert_eq(ask(r, events, "10.77.2.1", "10.77.2.2", bytes, sizeof bytes, &id[n++], why), RDMA_CM_EVENT_REJECTED);
    cr_expect_str_eq(why, "no channel waits for this lane");
    cr_expect_eq(r->side[1].accepted, 0, "nobody has said START");
    while (n--)
        cm.rdma_destroy_id(id[n]);
    cm.rdma_destroy_event_channel(events);
    tr_free(r);
}

#endif
