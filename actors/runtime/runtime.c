/* Making, starting, stopping and freeing a runtime; messages from outside; boot epochs. */
#define _GNU_SOURCE
#include "actors/runtime/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ACTORS_DEFAULT = 64,
    LANE_DEFAULT = 256,
    LOCAL_DEFAULT = 65536,
    LANE_LIMIT = 1 << 20,
    SPIN_DEFAULT_US = 20,
    SPIN_LIMIT_US = 1000000,
};
#define AGE_DEFAULT INT64_C(20000000)

void *line_alloc(size_t size)
{
    size_t bytes = (size / 64 + 1) * 64;
    void *p = bytes > size ? aligned_alloc(64, bytes) : NULL;
    if (p)
        memset(p, 0, bytes);
    return p;
}

static int check(const struct act_config *c, struct cfg_error *err)
{
    if (c->workers < 1 || c->workers > ACT_WORKERS_MAX)
        return cfg_error_set(err, EINVAL, "%d workers; 1 to %d are possible", c->workers, ACT_WORKERS_MAX);
    if (c->epoch == 0)
        return cfg_error_set(err, EINVAL, "the boot epoch is 0; act_epoch_next gives one");
    if (c->lane_slots < 0 || c->lane_slots > LANE_LIMIT || c->reply_slots < 0 || c->reply_slots > LANE_LIMIT ||
        c->local_slots < 0 || c->spin_us < -1 || c->spin_us > SPIN_LIMIT_US || c->age_ns < 0)
        return cfg_error_set(err, EINVAL, "lane_slots, reply_slots, local_slots, spin_us or age_ns is out of range");
    int64_t actors = 0;
    for (int i = 0; i < c->workers; i++) {
        int n = c->worker[i].actors_max;
        if (n < 0)
            return cfg_error_set(err, EINVAL, "worker %d: actors_max is %d", i, n);
        actors += n ? n : ACTORS_DEFAULT;
    }
    if (actors >= ACT_INDEX_MAX)
        return cfg_error_set(err, EINVAL, "%lld actor slots; a process can have %d", (long long)actors,
                             ACT_INDEX_MAX - 1);
    return 0;
}

static int cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int make_worker(struct act_runtime *rt, int index, uint32_t *first, bool simulated, struct cfg_error *err)
{
    struct act_worker *w = &rt->worker[index];
    w->rt = rt;
    w->index = index;
    w->config = rt->config.worker[index];
    w->config.name[ACT_NAME_TEXT - 1] = 0;
    if (!w->config.name[0])
        snprintf(w->config.name, sizeof w->config.name, "worker%d", index);
    w->actor_count = w->config.actors_max ? w->config.actors_max : ACTORS_DEFAULT;
    w->first_index = *first;
    *first += (uint32_t)w->actor_count;
    w->actors = line_alloc((size_t)w->actor_count * sizeof *w->actors);
    w->batch = aligned_alloc(64, ACT_BATCH_LIMIT * sizeof *w->batch);
    w->in = line_alloc((size_t)rt->workers * sizeof(struct act_lane *));
    w->out = line_alloc((size_t)rt->workers * sizeof(struct act_lane *));
    if (!w->actors || !w->batch || !w->in || !w->out)
        return cfg_error_set(err, ENOMEM, "no memory for worker %s", w->config.name);
    for (int i = 0; i < w->actor_count; i++) {
        struct act_self *a = &w->actors[i];
        a->rt = rt;
        a->worker = w;
        a->index = w->first_index + (uint32_t)i;
        a->generation = 1;
        a->free_next = i + 1 < w->actor_count ? a + 1 : NULL;
        rt->worker_of[a->index] = (uint8_t)index;
    }
    w->free_head = &w->actors[0];
    w->free_tail = &w->actors[w->actor_count - 1];
    for (int i = 0; i < rt->workers; i++) {
        w->out[i] = &rt->lanes[index * rt->workers + i];
        w->in[i] = &rt->lanes[i * rt->workers + index];
    }
    w->random[0] = rt->world->random(rt->world_ctx);
    w->random[1] = rt->world->random(rt->world_ctx) | 1;
    w->now = rt->world->now(rt->world_ctx);
    act_wheel_init(&w->wheel, w->now);
    if (simulated)
        return 0;
    w->source_ops = w->config.source                  ? w->config.source
                    : w->config.kind == ACT_WORKER_IO ? &act_source_libevent
                                                      : &act_source_eventfd;
    return w->source_ops->open(w->config.source_arg, &w->source, err);
}

int runtime_make(const struct act_config *config, bool simulated, struct act_runtime **out, struct cfg_error *err)
{
    *out = NULL;
    int rc = check(config, err);
    if (rc != 0)
        return rc;
    struct act_runtime *rt = line_alloc(sizeof *rt);
    if (!rt)
        return cfg_error_set(err, ENOMEM, "no memory for the actor runtime");
    rt->config = *config;
    struct act_config *c = &rt->config;
    c->lane_slots = c->lane_slots ? c->lane_slots : LANE_DEFAULT;
    c->reply_slots = c->reply_slots ? c->reply_slots : LANE_DEFAULT;
    c->local_slots = c->local_slots ? c->local_slots : LOCAL_DEFAULT;
    c->age_ns = c->age_ns ? c->age_ns : AGE_DEFAULT;
    int spin = c->spin_us < 0 ? SPIN_DEFAULT_US : c->spin_us;
    rt->crowded = c->workers > cpus();
    rt->spin_ns = rt->crowded ? 0 : spin * INT64_C(1000);
    rt->world = c->world ? c->world : &act_world_system;
    rt->world_ctx = c->world_ctx;
    rt->workers = c->workers;
    pthread_mutex_init(&rt->peer_lock, NULL);
    uint32_t indices = 0;
    for (int i = 0; i < c->workers; i++)
        indices += (uint32_t)(c->worker[i].actors_max ? c->worker[i].actors_max : ACTORS_DEFAULT);
    rt->indices = indices;
    size_t lanes = (size_t)c->workers * (size_t)c->workers;
    rt->worker = line_alloc((size_t)c->workers * sizeof *rt->worker);
    rt->lanes = line_alloc(lanes * sizeof *rt->lanes);
    rt->worker_of = line_alloc(indices);
    rt->peer = calloc(ACT_PEERS_MAX, sizeof *rt->peer);
    rc = rt->worker && rt->lanes && rt->worker_of && rt->peer ? 0 : -ENOMEM;
    if (rc == 0) {
        rt->peer[0].node = c->node;
        rt->peer[0].epoch = c->epoch;
        atomic_init(&rt->peers, 1);
        for (int i = 0; i < c->workers && rc == 0; i++)
            for (int j = 0; j < c->workers && rc == 0; j++) {
                int64_t sent = i == j ? c->local_slots : c->lane_slots,
                        requests = i == j ? c->local_slots : c->reply_slots;
                rc = lane_init(&rt->lanes[i * c->workers + j], i, j, sent, requests, sent, requests);
            }
    }
    if (rc != 0)
        cfg_error_set(err, ENOMEM, "no memory for the actor runtime");
    uint32_t first = 0;
    for (int i = 0; i < c->workers && rc == 0; i++)
        rc = make_worker(rt, i, &first, simulated, err);
    if (rc != 0) {
        act_runtime_free(rt);
        return rc;
    }
    *out = rt;
    return 0;
}

int act_runtime_new(const struct act_config *config, struct act_runtime **out, struct cfg_error *err)
{
    return runtime_make(config, false, out, err);
}

int act_runtime_start(struct act_runtime *rt, struct cfg_error *err)
{
    for (int i = 0; i < rt->workers; i++) {
        struct act_worker *w = &rt->worker[i];
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            cfg_error_set(err, rc, "cannot start worker %s: %s", w->config.name, strerror(rc));
            act_runtime_stop(rt);
            return -rc;
        }
        w->started = true;
        rt->started = true;
        char name[16];
        snprintf(name, sizeof name, "%.15s", w->config.name);
        pthread_setname_np(w->thread, name);
        if (w->config.cpu >= 0) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET((unsigned)w->config.cpu, &set);
            if (pthread_setaffinity_np(w->thread, sizeof set, &set) != 0)
                act_log_write(rt->config.log, ACT_LOG_WARNING, w->config.name, 0, "cannot be pinned to CPU %d",
                              w->config.cpu);
        }
    }
    return 0;
}

void act_runtime_stop(struct act_runtime *rt)
{
    if (!rt->started)
        return;
    /* Seq_cst: before the looks at `sleeping`. Partner: worker_has_input. */
    atomic_store_explicit(&rt->stopping, true, memory_order_seq_cst);
    for (int i = 0; i < rt->workers; i++)
        if (rt->worker[i].started)
            worker_wake(&rt->worker[i]);
    for (int i = 0; i < rt->workers; i++)
        if (rt->worker[i].started) {
            pthread_join(rt->worker[i].thread, NULL);
            rt->worker[i].started = false;
        }
    rt->started = false;
}

void runtime_end_actors(struct act_runtime *rt, int reason)
{
    for (int i = 0; i < rt->workers; i++)
        worker_end_actors(&rt->worker[i], reason);
}

/* Messages and control records that were on their way when the threads ended. */
static void drop_all(struct act_runtime *rt)
{
    for (int i = 0; i < rt->workers; i++) {
        struct act_worker *w = &rt->worker[i];
        for (int j = 0; j < rt->workers; j++)
            if (w->out && w->out[j])
                lane_destroy(w->out[j]);
        /* Withdrawals free a watch that lies with a target; all actors have ended, so none does. */
        struct act_ctl *c =
            atomic_exchange_explicit(&w->control, NULL, memory_order_acquire); /* partner: worker_control */
        while (c) {
            struct act_ctl *next = c->next;
            control_drop(c);
            c = next;
        }
    }
}

void act_runtime_free(struct act_runtime *rt)
{
    if (!rt)
        return;
    act_runtime_stop(rt);
    for (int i = 0; rt->worker && i < rt->workers; i++)
        if (rt->worker[i].actors && rt->worker[i].out)
            worker_end_actors(&rt->worker[i], -ESHUTDOWN); /* never started */
    if (rt->worker && rt->lanes)
        drop_all(rt);
    for (int i = 0; rt->worker && i < rt->workers; i++) {
        struct act_worker *w = &rt->worker[i];
        nodes_destroy(w);
        if (w->source)
            w->source_ops->close(w->source);
        free(w->actors);
        free(w->batch);
        free(w->in);
        free(w->out);
    }
    free(rt->worker);
    free(rt->lanes);
    free(rt->worker_of);
    free(rt->peer);
    pthread_mutex_destroy(&rt->peer_lock);
    free(rt);
}

int act_runtime_spawn(struct act_runtime *rt, const struct act_spawn *spec, struct act_addr *out, struct cfg_error *err)
{
    *out = ACT_NOBODY;
    if (spec->worker < 0 || spec->worker >= rt->workers)
        return cfg_error_set(err, EINVAL, "there is no worker %d", spec->worker);
    if (rt->started)
        return cfg_error_set(err, EINVAL, "the runtime has started: actors spawn actors from now on");
    return actor_spawn(&rt->worker[spec->worker], spec, out, err);
}

int act_runtime_post(struct act_runtime *rt, struct act_msg *m)
{
    /* Acquire: partner is act_runtime_stop. */
    if (atomic_load_explicit(&rt->stopping, memory_order_acquire))
        return -ESHUTDOWN;
    int to = actor_worker(rt, m->dst);
    if (to < 0 || act_msg_check(m)) {
        return -EINVAL;
    }
    struct act_ctl *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->kind = CTL_MESSAGE;
    c->msg = *m;
    c->msg.src = ACT_NOBODY;
    c->msg.promise = 0;
    c->msg.flags = (uint16_t)((m->flags & ~(ACT_MSG_USER - 1u)) | ACT_MSG_CONTROL);
    m->buf = NULL;
    m->src = ACT_NOBODY;
    worker_control(&rt->worker[to], c);
    return 0;
}

int act_runtime_workers(const struct act_runtime *rt)
{
    return rt->workers;
}

uint16_t act_runtime_node(const struct act_runtime *rt)
{
    return rt->config.node;
}

uint64_t act_runtime_epoch(const struct act_runtime *rt)
{
    return rt->config.epoch;
}

int64_t act_runtime_now(const struct act_runtime *rt)
{
    return rt->world->now(rt->world_ctx);
}

/* ---- boot epochs ----------------------------------------------------------------------------- */

static int read_epoch(const char *path, uint64_t *out, struct cfg_error *err)
{
    *out = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? 0 : cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    unsigned long long n;
    int got = fscanf(f, "%llu", &n);
    fclose(f);
    if (got != 1)
        return cfg_error_set(err, EINVAL,
                             "%s does not hold a boot epoch (one number); if the file is damaged, remove it", path);
    *out = n;
    return 0;
}

static int write_epoch(const char *path, uint64_t epoch, struct cfg_error *err)
{
    char temp[4096], text[32];
    int n = snprintf(text, sizeof text, "%llu\n", (unsigned long long)epoch);
    if (snprintf(temp, sizeof temp, "%s.new", path) >= (int)sizeof temp)
        return cfg_error_set(err, ENAMETOOLONG, "%s: the path is too long", path);
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool ok = fd >= 0 && write(fd, text, (size_t)n) == n && fsync(fd) == 0;
    int e = errno;
    if (fd >= 0 && close(fd) != 0 && ok) {
        ok = false;
        e = errno;
    }
    if (!ok || rename(temp, path) != 0) {
        e = ok ? errno : e;
        return cfg_error_set(err, e, "cannot write %s: %s", path, strerror(e));
    }
    /* The new name must outlive a power failure too. */
    char *slash = strrchr(temp, '/');
    if (slash)
        slash[slash == temp] = 0;
    int dir = open(slash ? temp : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0) {
        fsync(dir);
        close(dir);
    }
    return 0;
}

int act_epoch_next(const char *path, int64_t wall_ns, uint64_t *out, struct cfg_error *err)
{
    uint64_t last;
    int rc = read_epoch(path, &last, err);
    if (rc != 0)
        return rc;
    if (last == UINT64_MAX)
        return cfg_error_set(err, EOVERFLOW, "%s holds the last possible epoch", path);
    uint64_t wall = wall_ns > 0 ? (uint64_t)wall_ns : 1;
    *out = last + 1 > wall ? last + 1 : wall;
    return write_epoch(path, *out, err);
}
