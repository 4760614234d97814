/* The order in which a kv node serves reads: what a pass of a reader's waits for, then what is read ahead; and none of
 * them waits for ever. Store and reader are doubles that answer when they are told. */
#include "tests/harness.h"

#include <stdlib.h>

#include "actors/kv_node.h"
#include "actors/runtime/sim.h"
#include "actors/tier_store.h"

#define MS INT64_C(1000000)

enum { SOURCES = 2, EXTENT = 256 << 10, LOADS = 8, SEEN_MAX = 256 };

/* A read that is with the store. */
struct read {
    uint32_t load, wanted, blocks; /* load: the node's name for it */
    struct act_promise promise;
    bool done;
};

struct piece {
    uint32_t load, source;
    struct act_promise promise;
    bool taken;
};

static struct rig {
    struct act_sim *sim;
    struct act_runtime *rt;
    struct act_addr store, node, reader;
    struct kv_layout layout;
    uint8_t *buffer;
    struct act_kv_node_arg arg;
    struct act_self *store_self, *reader_self;
    struct read read[LOADS]; /* in the order in which the node asked for them */
    int n_reads, n_wants;
    struct piece piece[SEEN_MAX]; /* in the order in which they came */
    int n_pieces, ended;
    void (*job)(uint32_t load, uint32_t n); /* what the reader, or the store, does next */
    uint32_t job_load, job_n;
} rig;

/* ---- doubles ---- */

static int store_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    rig.store_self = self;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_TIER_READ) {
            cr_assert_lt(rig.n_reads, LOADS);
            rig.read[rig.n_reads++] = (struct read){.load = act_p_tier_read(&m[i])->load,
                                                    .wanted = act_p_tier_read(&m[i])->wanted,
                                                    .blocks = act_p_tier_read(&m[i])->blocks,
                                                    .promise = act_promise_of(&m[i])};
        } else if (m[i].type == ACT_TIER_WANT) {
            for (int k = 0; k < rig.n_reads; k++)
                if (rig.read[k].load == act_p_tier_want(&m[i])->load)
                    rig.read[k].wanted = act_p_tier_want(&m[i])->sources;
            rig.n_wants++;
        } else if (m[i].type == ACT_RELOAD) {
            rig.job(rig.job_load, rig.job_n);
        }
    }
    return 0;
}

static int reader_receive(struct act_self *self, void *state, struct act_msg *m, int count)
{
    (void)state;
    rig.reader_self = self;
    for (int i = 0; i < count; i++) {
        if (m[i].type == ACT_REMOTE_ROWS) {
            cr_assert_lt(rig.n_pieces, SEEN_MAX);
            rig.piece[rig.n_pieces++] = (struct piece){.load = act_p_remote_rows(&m[i])->load,
                                                       .source = act_p_remote_rows(&m[i])->source,
                                                       .promise = act_promise_of(&m[i])};
        } else if (m[i].type == ACT_REMOTE_DONE) {
            cr_assert_eq(act_p_remote_done(&m[i])->status, 0, "load %u: %d", act_p_remote_done(&m[i])->load,
                         act_p_remote_done(&m[i])->status);
            rig.ended++;
        } else if (m[i].type == ACT_RELOAD) {
            rig.job(rig.job_load, rig.job_n);
        }
    }
    return 0;
}

static const struct act_behaviour store_behaviour = {.name = "store", .receive = store_receive},
                                  reader_behaviour = {.name = "reader", .receive = reader_receive};

/* ---- what they do when they are told ---- */

static void run(int64_t ns)
{
    act_sim_run(rig.sim, act_sim_now(rig.sim) + ns, 1000000);
}

static void tell(struct act_addr who, void (*job)(uint32_t, uint32_t), uint32_t load, uint32_t n)
{
    struct act_msg m = act_msg_make(ACT_RELOAD, who);
    rig.job = job;
    rig.job_load = load;
    rig.job_n = n;
    cr_assert_eq(act_runtime_post(rig.rt, &m), 0);
    run(MS / 10);
}

static void send_read(uint32_t load, uint32_t blocks, uint32_t wanted)
{
    struct act_msg m;
    size_t bytes;
    cr_assert_eq(act_msg_new(ACT_REMOTE_READ, rig.node, blocks * sizeof(struct kv_key), &m), 0);
    memset(act_msg_tail(&m, &bytes), (int)load, blocks * sizeof(struct kv_key));
    *act_p_remote_read(&m) = (struct act_p_remote_read){.blocks = blocks, .load = load};
    *act_b_remote_read(&m) = (struct act_b_remote_read){.layout = kv_layout_id(&rig.layout), .wanted = wanted};
    m.request = load;
    cr_assert_eq(act_request(rig.reader_self, &m), 0);
}

static void send_ahead(uint32_t load, uint32_t blocks)
{
    send_read(load, blocks, 0);
}

static void send_wanted(uint32_t load, uint32_t blocks)
{
    send_read(load, blocks, 1);
}

static void send_want(uint32_t load, uint32_t sources)
{
    struct act_msg m = act_msg_make(ACT_REMOTE_WANT, rig.node);
    *act_p_remote_want(&m) = (struct act_p_remote_want){.load = load, .sources = sources};
    cr_assert_eq(act_send(rig.reader_self, &m), 0);
}

static void take_piece(uint32_t at, uint32_t unused)
{
    struct act_msg r = act_msg_make(ACT_REMOTE_TAKEN, ACT_NOBODY);
    (void)unused;
    rig.piece[at].taken = true;
    act_p_remote_taken(&r)->load = rig.piece[at].load;
    cr_assert_eq(act_reply(rig.reader_self, &rig.piece[at].promise, &r), 0);
}

static void nothing(uint32_t load, uint32_t n)
{
    (void)load;
    (void)n;
}

/* The store has all of its read number `at`. */
static void finish_read(uint32_t at, uint32_t unused)
{
    struct read *r = &rig.read[at];
    (void)unused;
    for (uint32_t s = 0; s < SOURCES; s++) {
        struct act_msg m = act_msg_make(ACT_TIER_ROWS, rig.node);
        *act_p_tier_rows(&m) = (struct act_p_tier_rows){.load = r->load, .source = s, .blocks = r->blocks};
        cr_assert_eq(act_send(rig.store_self, &m), 0);
    }
    struct act_msg m = act_msg_make(ACT_TIER_DONE, ACT_NOBODY);
    *act_p_tier_done(&m) = (struct act_p_tier_done){.load = r->load, .blocks = r->blocks};
    cr_assert_eq(act_reply(rig.store_self, &r->promise, &m), 0);
    r->done = true;
}

static void spawn(const struct act_behaviour *b, const void *arg, struct act_addr *out)
{
    struct cfg_error err;
    const struct act_spawn spec = {.behaviour = b, .arg = arg};
    cr_assert_eq(act_runtime_spawn(rig.rt, &spec, out, &err), 0, "%s", err.msg);
}

static void open_rig(void)
{
    struct cfg_error err;
    static const size_t bytes[SOURCES] = {EXTENT, EXTENT};
    memset(&rig, 0, sizeof rig);
    cr_assert_eq(act_sim_new(&(struct act_sim_config){.seed = 1}, &rig.sim, &err), 0);
    struct act_config c = {.epoch = 1, .workers = 1};
    c.worker[0] = (struct act_worker_config){.name = "tier", .kind = ACT_WORKER_ENGINE, .cpu = -1};
    cr_assert_eq(act_sim_add(rig.sim, &c, &rig.rt, &err), 0);
    cr_assert_eq(kv_layout_init(KV_FORMAT_ROWS, 256, bytes, SOURCES, &rig.layout, &err), 0);
    rig.buffer = aligned_alloc(KV_PAGE, ACT_REMOTE_READ_MAX * rig.layout.block_bytes);
    memset(rig.buffer, 5, ACT_REMOTE_READ_MAX * rig.layout.block_bytes);
    rig.arg = (struct act_kv_node_arg){.layout = rig.layout,
                                       .store = &rig.store,
                                       .buffer = rig.buffer,
                                       .buffers = ACT_REMOTE_READ_MAX,
                                       .store_bytes = 1 << 20,
                                       .patience = 60000 * MS};
    spawn(&store_behaviour, NULL, &rig.store);
    spawn(&act_kv_node_behaviour, &rig.arg, &rig.node);
    spawn(&reader_behaviour, NULL, &rig.reader);
    tell(rig.store, nothing, 0, 0);
    tell(rig.reader, nothing, 0, 0);
}

/* Everything comes to its end, one piece after the other. */
static void close_rig(int loads)
{
    for (int i = 0; i < 1000 && rig.ended < loads; i++) {
        for (uint32_t k = 0; k < (uint32_t)rig.n_reads; k++)
            if (!rig.read[k].done)
                tell(rig.store, finish_read, k, 0);
        for (uint32_t k = 0; k < (uint32_t)rig.n_pieces; k++)
            if (!rig.piece[k].taken)
                tell(rig.reader, take_piece, k, 0);
        run(MS);
    }
    cr_assert_eq(rig.ended, loads, "%d of %d reads have ended", rig.ended, loads);
    act_sim_free(rig.sim);
    free(rig.buffer);
}

static int pieces_of(uint32_t load)
{
    int n = 0;
    for (int i = 0; i < rig.n_pieces; i++)
        n += rig.piece[i].load == load;
    return n;
}

/* Takes the oldest piece of a load that was not taken. */
static void take_next(uint32_t load)
{
    for (uint32_t i = 0; i < (uint32_t)rig.n_pieces; i++)
        if (rig.piece[i].load == load && !rig.piece[i].taken) {
            tell(rig.reader, take_piece, i, 0);
            return;
        }
    cr_assert_fail("load %u has no piece under way", load);
}

/* ---- */

/* Of two reads that are on their way, four pieces for each source, the one that a pass waits for goes on alone until
 * that source is out; then both do. */
Test(kv_node_order, pieces_that_a_pass_waits_for_go_first)
{
    open_rig();
    for (uint32_t load = 1; load <= 2; load++) {
        tell(rig.reader, send_ahead, load, 8);
        tell(rig.store, finish_read, load - 1, 0);
    }
    cr_assert_eq(pieces_of(1), 2);
    cr_assert_eq(pieces_of(2), 2, "nobody waits: both go out");
    tell(rig.reader, send_want, 2, 1);
    cr_assert_eq(rig.n_wants, 0, "the store has no part in it any more");
    take_next(1);
    take_next(1);
    cr_assert_eq(pieces_of(1), 2, "what is read ahead goes before what is waited for");
    take_next(2);
    cr_assert_eq(pieces_of(2), 3);
    cr_assert_eq(pieces_of(1), 2);
    take_next(2);
    cr_assert_eq(pieces_of(2), 4, "its first source is out");
    cr_assert_eq(pieces_of(1), 4, "and the other one goes on");
    close_rig(2);
}

/* The other read is held back for so long and no longer. */
Test(kv_node_order, pieces_do_not_wait_for_ever)
{
    open_rig();
    for (uint32_t load = 1; load <= 2; load++) {
        tell(rig.reader, send_ahead, load, 8);
        tell(rig.store, finish_read, load - 1, 0);
    }
    tell(rig.reader, send_want, 2, SOURCES);
    take_next(1);
    take_next(1);
    run(KV_AGE_NS / 2);
    cr_assert_eq(pieces_of(1), 2);
    run(KV_AGE_NS);
    cr_assert_eq(pieces_of(1), 4, "it has waited long enough");
    close_rig(2);
}

/* Reads that find no room in the pool: the one that a pass waits for begins first, and the store is told. */
Test(kv_node_order, a_read_that_a_pass_waits_for_gets_room_first)
{
    open_rig();
    tell(rig.reader, send_ahead, 1, ACT_REMOTE_READ_MAX);
    tell(rig.reader, send_ahead, 2, ACT_REMOTE_READ_MAX - 1);
    tell(rig.reader, send_ahead, 3, ACT_REMOTE_READ_MAX - 2);
    cr_assert_eq(rig.n_reads, 1, "%d reads", rig.n_reads);
    tell(rig.reader, send_want, 1, 1);
    cr_assert_eq(rig.read[0].wanted, 1u, "the store is told of a read that is with it");
    tell(rig.reader, send_want, 3, 1);
    tell(rig.store, finish_read, 0, 0);
    while (rig.ended < 1)
        take_next(1);
    cr_assert_eq(rig.n_reads, 2);
    cr_assert_eq(rig.read[1].blocks, ACT_REMOTE_READ_MAX - 2u, "the other one got the room");
    cr_assert_eq(rig.read[1].wanted, 1u, "the store does not know");
    close_rig(3);
}

/* And one that has waited for so long begins before what came later, whoever waits for that. */
Test(kv_node_order, reads_do_not_wait_for_room_for_ever)
{
    open_rig();
    tell(rig.reader, send_ahead, 1, ACT_REMOTE_READ_MAX);
    tell(rig.reader, send_ahead, 2, ACT_REMOTE_READ_MAX - 1);
    run(KV_AGE_NS);
    tell(rig.reader, send_wanted, 3, ACT_REMOTE_READ_MAX - 2);
    tell(rig.store, finish_read, 0, 0);
    while (rig.ended < 1)
        take_next(1);
    cr_assert_eq(rig.n_reads, 2);
    cr_assert_eq(rig.read[1].blocks, ACT_REMOTE_READ_MAX - 1u, "it has waited long enough");
    close_rig(3);
}
