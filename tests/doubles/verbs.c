/* A double of libibverbs for tests: the real library, and steps of it that fail as adapters and limits make them fail.
 * The test opens it with RTLD_GLOBAL before weft-rdma.so is loaded, which then finds these functions first. No header
 * of the library is used, so that it is built everywhere: of a queue pair's attributes only the first, its new state,
 * is looked at. One thread. */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/* What happens, set by the test (dlsym). All zero: nothing does. */
extern struct verbs_faults {
    int state, skip, error; /* the skip + 1st change of a queue pair to this state fails with error */
    int cq_error;           /* no completion queue is made */
    size_t short_by;        /* the next registration leaves out so many bytes at its end */
} verbs_faults;
struct verbs_faults verbs_faults;

int ibv_modify_qp(void *qp, const void *attributes, int mask);
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
    return f ? f(qp, attributes, mask) : ENOSYS;
}

void *ibv_create_cq(void *context, int entries, void *user, void *channel, int vector)
{
    void *(*f)(void *, int, void *, void *, int);
    *(void **)&f = real("ibv_create_cq");
    errno = verbs_faults.cq_error ? verbs_faults.cq_error : ENOSYS;
    return verbs_faults.cq_error || !f ? NULL : f(context, entries, user, channel, vector);
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
    return f ? f(pd, at, shortened(size), access) : NULL;
}

void *ibv_reg_mr_iova2(void *pd, void *at, size_t size, uint64_t address, unsigned access)
{
    void *(*f)(void *, void *, size_t, uint64_t, unsigned);
    *(void **)&f = real("ibv_reg_mr_iova2");
    return f ? f(pd, at, shortened(size), address, access) : NULL;
}
