/* Finds and loads weft-rdma.so, and reads what the system says about RDMA without any library. */
#include "transport/rdma.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CAP_IPC_LOCK_BIT = 14 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct tp_rdma_plugin *loaded;
static struct cfg_error load_error;

/* Paths to try, in order; returns how many. */
static int candidates(char path[3][PATH_MAX])
{
    char exe[PATH_MAX - 64];
    const char *given = getenv("WEFT_RDMA_SO");
    if (given && *given) {
        snprintf(path[0], PATH_MAX, "%s%s", strchr(given, '/') ? "" : "./", given);
        return 1;
    }
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return 0;
    exe[n] = '\0';
    *strrchr(exe, '/') = '\0';
    snprintf(path[0], PATH_MAX, "%s/weft-rdma.so", exe);
    snprintf(path[1], PATH_MAX, "%s/../lib/weft/weft-rdma.so", exe);
    return 2;
}

static void load(void)
{
    char path[3][PATH_MAX];
    int n = candidates(path);
    const char *found = NULL;
    for (int i = 0; i < n && !found; i++)
        if (access(path[i], F_OK) == 0)
            found = path[i];
    if (!found) {
        cfg_error_set(&load_error, ENOTSUP,
                      "rdma: weft-rdma.so is not there (looked at %s%s%s); it is built when libibverbs-dev and "
                      "librdmacm-dev are installed: install them, build again, and install weft-rdma.so with the "
                      "program",
                      n ? path[0] : "no path", n > 1 ? " and " : "", n > 1 ? path[1] : "");
        return;
    }
    void *so = dlopen(found, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        cfg_error_set(&load_error, ENOTSUP,
                      "rdma: %s; install the libraries that it names (packages libibverbs1, librdmacm1 and "
                      "ibverbs-providers)",
                      dlerror());
        return;
    }
    const struct tp_rdma_plugin *p = dlsym(so, "tp_rdma_plugin");
    if (!p || p->abi != TP_RDMA_ABI) {
        cfg_error_set(&load_error, ENOTSUP,
                      "rdma: %s belongs to another version of the program; install the one that was built with it",
                      found);
        dlclose(so);
        return;
    }
    loaded = p; /* stays open: its code may be running whenever it could be closed */
}

int tp_rdma_load(const struct tp_rdma_plugin **out, struct cfg_error *err)
{
    pthread_once(&once, load);
    if (!loaded)
        return cfg_error_set(err, ENOTSUP, "%s", load_error.msg);
    *out = loaded;
    return 0;
}

static bool has_capability(int bit)
{
    char line[256];
    unsigned long long mask = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "CapEff: %llx", &mask) == 1)
            break;
    if (f)
        fclose(f);
    return mask >> bit & 1;
}

void tp_rdma_facts_system(struct tp_rdma_facts *out)
{
    struct rlimit limit;
    glob_t g;
    if (getrlimit(RLIMIT_MEMLOCK, &limit))
        limit.rlim_cur = limit.rlim_max = 0;
    out->locked_max = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
    out->locked_max_hard = limit.rlim_max == RLIM_INFINITY ? UINT64_MAX : limit.rlim_max;
    out->lock_privilege = has_capability(CAP_IPC_LOCK_BIT);
    out->has_uverbs = glob("/dev/infiniband/uverbs*", 0, NULL, &g) == 0;
    if (out->has_uverbs)
        globfree(&g);
    int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
    out->has_cm = fd >= 0;
    if (fd >= 0)
        close(fd);
}

const char *tp_rdma_address_text(const uint8_t address[16], char out[48])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    bool v4 = memcmp(address, mapped, sizeof mapped) == 0;
    if (!inet_ntop(v4 ? AF_INET : AF_INET6, address + (v4 ? 12 : 0), out, 48))
        snprintf(out, 48, "?");
    return out;
}

int tp_rdma_address_parse(const char *text, uint8_t out[16])
{
    uint8_t v4[4];
    if (inet_pton(AF_INET, text, v4) == 1) {
        memset(out, 0, 10);
        out[10] = out[11] = 0xff;
        memcpy(out + 12, v4, 4);
        return 0;
    }
    return inet_pton(AF_INET6, text, out) == 1 ? 0 : -EINVAL;
}
