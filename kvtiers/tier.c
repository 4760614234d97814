#include "kvtiers/tier.h"

#include <time.h>

static int64_t system_now(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t system_wall(void *ctx)
{
    (void)ctx;
    return (int64_t)time(NULL);
}

const struct kv_clock kv_clock_system = {system_now, system_wall, NULL};

void kv_op_finish(struct kv_tier_op *op, int count, int status)
{
    op->count = count;
    op->status = status;
    op->done(op);
}

bool kv_op_first(const struct kv_tier_op *op, int source, int64_t now)
{
    return source < op->wanted || now - op->began >= KV_AGE_NS;
}

bool kv_op_want(struct kv_tier_op *op, int sources)
{
    if (sources <= op->wanted)
        return false;
    op->wanted = sources;
    return true;
}

void kv_tier_want(struct kv_tier *t, struct kv_tier_op *op, int sources)
{
    if (t->ops->want)
        t->ops->want(t, op, sources);
    else
        kv_op_want(op, sources);
}

void kv_op_read_begin(struct kv_tier_op *op, int n_sources)
{
    op->settled = 0;
    op->status = 0;
    op->count = op->n;
    for (int s = 0; s < n_sources; s++) {
        op->ok[s] = op->n;
        op->left[s] = op->n;
    }
}

void kv_op_read_extent(struct kv_tier_op *op, int n_sources, int block, int source, int status)
{
    if (status && block < op->ok[source]) {
        op->ok[source] = block;
        op->status = status;
    }
    op->left[source]--;
    while (op->settled < n_sources && !op->left[op->settled]) {
        int s = op->settled++;
        op->count = op->ok[s] < op->count ? op->ok[s] : op->count;
        if (op->rows)
            op->rows(op, s, op->ok[s]);
        if (op->settled == n_sources) {
            op->done(op);
            return;
        }
    }
}
