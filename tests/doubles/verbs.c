/* A double of libibverbs for tests: the real library, and steps of it that fail as adapters and limits make them fail.
 * The test opens it with RTLD_GLOBAL before weft-rdma.so is loaded, which then finds these functions first. No header
 * of the library is used, so that it is built everywhere: of a queue pair's attributes only the first, its new state,
 * is looked at. One thread. */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What happens, set by the test (dlsym). All zero: nothing does. */
extern struct verbs_faults {
    int state, skip, error; /* the skip + 1st change of a queue pair to this state fails with error */
    int cq_error;           /* no completion queue is made */
    int qp_error;           /* no queue pair is made */
    int srq_error;          /* no shared receive queue is made */
    int mr_error;           /* nothing is registered */
    size_t short_by;        /* the next registration leaves out so many bytes at its end */
    uint8_t retries;        /* times that adapters send again what is not acknowledged; 0: as they are told */
    int open;               /* queue pairs take remote writes from the beginning */
    uint64_t mr_size_max;   /* devices say that they register no more at once; 0: what they say */
    /* The first completion queue shows nothing of what has completed until a queue pair of it is destroyed; how much it
     * is. */
    int hold, held;
} verbs_faults;
struct verbs_faults verbs_faults;

/* Places in a device's attributes and in a queue pair's, and the bit that says that the latter is set; of the function
 * that takes completions in a device's context, and of the queue for these in a queue pair; the size of a completion,
 * and how many are held at most. */
enum {
    POLL_AT = 96,
    SEND_CQ_AT = 24,
    COMPLETION = 48,
    HELD_MAX = 256,
    MR_SIZE_MAX_AT = 80,
    ACCESS_AT = 32,
    RETRIES_AT = 131,
    ACCESS_SET = 1 << 3,
    RETRIES_SET = 1 << 10,
    REMOTE_WRITE = 2
};

int ibv_modify_qp(void *qp, const void *attributes, int mask);
int ibv_destroy_qp(void *qp);
void *ibv_create_qp(void *pd, void *attributes);
void *ibv_create_srq(void *pd, void *attributes);
int ibv_query_device(void *context, void *attributes);
void *ibv_create_cq(void *context, int entries, void *user, void *channel, int vector);
void *ibv_reg_mr(void *pd, void *at, size_t size, int access);
void *ibv_reg_mr_iova2(void *pd, void *at, size_t size, uint64_t address, unsigned access);

static void *real(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libibverbs.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

int ibv_modify_qp(void *qp, const void *attributes, int mask)
{
    int (*f)(void *, const void *, int);
    *(void **)&f = real("ibv_modify_qp");
    if (verbs_faults.error && *(const int *)attributes == verbs_faults.state && verbs_faults.skip-- == 0) {
        int error = verbs_faults.error;
        verbs_faults.error = 0;
        return error;
    }
    if (verbs_faults.retries && mask & RETRIES_SET)
        memcpy((char *)(uintptr_t)attributes + RETRIES_AT, &verbs_faults.retries, 1);
    if (verbs_faults.open && mask & ACCESS_SET)
        memcpy((char *)(uintptr_t)attributes + ACCESS_AT, &(int){REMOTE_WRITE}, sizeof(int));
    return f ? f(qp, attributes, mask) : ENOSYS;
}

static void *first_cq;
static int (*poll_device)(void *cq, int n, void *completions);
static unsigned char held[HELD_MAX][COMPLETION];

static int poll_cq(void *cq, int n, void *completions)
{
    if (cq == first_cq && verbs_faults.hold) {
        int got = poll_device(cq, HELD_MAX - verbs_faults.held, held[verbs_faults.held]);
        verbs_faults.held += got > 0 ? got : 0;
        return got < 0 ? got : 0;
    }
    if (cq != first_cq || verbs_faults.held == 0)
        return poll_device(cq, n, completions);
    n = n < verbs_faults.held ? n : verbs_faults.held;
    verbs_faults.held -= n;
    memcpy(completions, held, (size_t)n * COMPLETION);
    memmove(held, held[n], (size_t)verbs_faults.held * COMPLETION);
    return n;
}

int ibv_destroy_qp(void *qp)
{
    int (*f)(void *);
    *(void **)&f = real("ibv_destroy_qp");
    if (*(void **)((char *)qp + SEND_CQ_AT) == first_cq)
        verbs_faults.hold = 0;
    return f ? f(qp) : ENOSYS;
}

void *ibv_create_cq(void *context, int entries, void *user, void *channel, int vector)
{
    void *(*f)(void *, int, void *, void *, int);
    *(void **)&f = real("ibv_create_cq");
    errno = verbs_faults.cq_error ? verbs_faults.cq_error : ENOSYS;
    void *cq = verbs_faults.cq_error || !f ? NULL : f(context, entries, user, channel, vector);
    if (cq && !first_cq) {
        first_cq = cq;
        memcpy(&poll_device, (char *)context + POLL_AT, sizeof poll_device);
        memcpy((char *)context + POLL_AT, &(int (*)(void *, int, void *)){poll_cq}, sizeof poll_device);
    }
    return cq;
}

static void *make(const char *name, int error, void *pd, void *attributes)
{
    void *(*f)(void *, void *);
    *(void **)&f = real(name);
    errno = error ? error : ENOSYS;
    return error || !f ? NULL : f(pd, attributes);
}

void *ibv_create_qp(void *pd, void *attributes)
{
    return make("ibv_create_qp", verbs_faults.qp_error, pd, attributes);
}

void *ibv_create_srq(void *pd, void *attributes)
{
    return make("ibv_create_srq", verbs_faults.srq_error, pd, attributes);
}

int ibv_query_device(void *context, void *attributes)
{
    int (*f)(void *, void *);
    *(void **)&f = real("ibv_query_device");
    int r = f ? f(context, attributes) : ENOSYS;
    if (!r && verbs_faults.mr_size_max)
        memcpy((char *)attributes + MR_SIZE_MAX_AT, &verbs_faults.mr_size_max, sizeof verbs_faults.mr_size_max);
    return r;
}

static size_t shortened(size_t size)
{
    size_t by = verbs_faults.short_by < size ? verbs_faults.short_by : 0;
    verbs_faults.short_by = 0;
    return size - by;
}

void *ibv_reg_mr(void *pd, void *at, size_t size, int access)
{
    void *(*f)(void *, void *, size_t, int);
    *(void **)&f = real("ibv_reg_mr");
    errno = verbs_faults.mr_error;
    return f && !verbs_faults.mr_error ? f(pd, at, shortened(size), access) : NULL;
}

void *ibv_reg_mr_iova2(void *pd, void *at, size_t size, uint64_t address, unsigned access)
{
    void *(*f)(void *, void *, size_t, uint64_t, unsigned);
    *(void **)&f = real("ibv_reg_mr_iova2");
    errno = verbs_faults.mr_error;
    return f && !verbs_faults.mr_error ? f(pd, at, shortened(size), address, access) : NULL;
}
