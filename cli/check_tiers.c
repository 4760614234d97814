/* The part of `weft check` about what keeps blocks: the node's own tiers on disks, and the kv nodes of a deployment. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/check_impl.h"
#include "kvtiers/storage.h"

#define MIB(bytes) ((double)(bytes) / (1 << 20))

/* ---- a folder of files ---- */

/* "FILE:LINE: " of a key that a file gives; else nothing. */
static const char *place_of(const struct check *k, const char *key, char out[CFG_PATH_TEXT + 16])
{
    const struct cfg_place at = cfg_config_place(k->c, key);
    out[0] = 0;
    if (at.line)
        snprintf(out, CFG_PATH_TEXT + 16, "%s:%d: ", k->c->files[at.file], at.line);
    return out;
}

/* Room that the tier's files have taken already. */
static int64_t taken_in(const char *folder)
{
    int64_t bytes = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (!strncmp(e->d_name, "weft-kv.", 8) && fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (int64_t)st.st_blocks * 512;
    }
    if (d)
        closedir(d);
    return bytes;
}

/* want: bytes of files that are to be there, of which `taken` are. who: "the ssd tier", ... */
static void check_room(struct check *k, const char *folder, const char *size_key, const char *who, int64_t want,
                       int64_t taken)
{
    char place[CFG_PATH_TEXT + 16];
    struct statvfs v;
    int64_t reserve = k->c->kv.ssd.reserve;
    if (statvfs(folder, &v))
        return;
    int64_t room = (int64_t)v.f_bavail * (int64_t)v.f_frsize;
    if (want - taken > room - reserve)
        cli_check_say(k, PROBLEM, "kv",
                      "%s%s: %s will take %.1f MiB, %.1f MiB of it are there; %.1f MiB are free, and kv.ssd.reserve = "
                      "%.1f MiB stay so; lower %s or make room",
                      place_of(k, size_key, place), folder, who, MIB(want), MIB(taken), MIB(room), MIB(reserve),
                      size_key);
    else
        cli_check_say(k, FINE, "kv", "%s: %s will take %.1f MiB, %.1f MiB of it are there; %.1f MiB are free", folder,
                      who, MIB(want), MIB(taken), MIB(room));
}

/* Opens what the tier would open: io_uring, and a file without a name past the page cache. */
static bool check_folder(struct check *k, const char *key, const char *folder, bool direct)
{
    char place[CFG_PATH_TEXT + 16];
    struct kv_storage *storage;
    struct cfg_error err;
    place_of(k, key, place);
    if (access(folder, R_OK | W_OK | X_OK)) {
        cli_check_say(k, PROBLEM, "kv", "%s%s: %s; %s names an existing folder that can be written", place, folder,
                      strerror(errno), key);
        return false;
    }
    if (kv_storage_uring_new(folder, 1, &storage, &err)) {
        cli_check_say(k, PROBLEM, "kv", "%s%s: %s", place, folder, err.msg);
        return false;
    }
    kv_storage_free(storage);
    int fd = direct ? open(folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600) : -1;
    if (direct && fd < 0 && errno == EINVAL)
        cli_check_say(k, PROBLEM, "kv",
                      "%s%s: this file system has no direct I/O; take another one, or set kv.ssd.direct = false", place,
                      folder);
    bool well =
        !direct || fd >= 0 || errno != EINVAL; /* EOPNOTSUPP: it has no files without a name, which says nothing */
    if (fd >= 0)
        close(fd);
    return well;
}

/* Tiers on disk read and write pages and the host tier's memory in place, where the kernel may lock them. */
static void check_locked(struct check *k, int64_t need)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit))
        return;
    if (limit.rlim_cur == RLIM_INFINITY || (int64_t)limit.rlim_cur >= need || geteuid() == 0)
        cli_check_say(k, FINE, "memlock", "%.1f MiB for io_uring may be locked", MIB(need));
    else
        cli_check_say(k, WARNING, "memlock",
                      "%.1f MiB are registered with io_uring, %.1f MiB may be locked; without, every transfer costs a "
                      "little more: raise the limit (ulimit -l, LimitMEMLOCK= of a systemd unit)",
                      MIB(need), MIB(limit.rlim_cur));
}

/* ---- a node that computes ---- */

static void check_own_tiers(struct check *k)
{
    const struct cfg_config *c = k->c;
    if (c->kv.ssd.path[0] && check_folder(k, "kv.ssd.path", c->kv.ssd.path, c->kv.ssd.direct)) {
        check_room(k, c->kv.ssd.path, "kv.ssd.size", "the ssd tier", c->kv.ssd.size, taken_in(c->kv.ssd.path));
        check_locked(k, c->kv.memory + (c->kv.write_behind > c->kv.host ? c->kv.write_behind : c->kv.host));
    }
    if (c->kv.shared.path[0] && check_folder(k, "kv.shared.path", c->kv.shared.path, c->kv.shared.direct))
        cli_check_say(k, FINE, "kv", "blocks are kept in %s", c->kv.shared.path);
}

/* ---- kv nodes ---- */

static bool is_kv(const struct cfg_node *n)
{
    return (n->roles & CFG_ROLE_KV) != 0;
}

/* Blocks go to kv nodes from the host tier, where they have half of kv.write_behind. */
static void check_ways(struct check *k, int kv_nodes)
{
    char place[CFG_PATH_TEXT + 16];
    const struct cfg_config *c = k->c;
    if (k->block_bytes && c->kv.write_behind / 2 < (int64_t)k->block_bytes)
        cli_check_say(k, PROBLEM, "kv",
                      "%sa block of %d tokens is %zu bytes, and half of kv.write_behind = %.1f MiB has no room for one "
                      "on its way to a kv node: none would ever be kept; raise kv.write_behind or lower "
                      "kv.block_tokens",
                      place_of(k, "kv.write_behind", place), c->kv.block_tokens, k->block_bytes,
                      MIB(c->kv.write_behind));
    else
        cli_check_say(k, FINE, "kv", "%d kv node%s keep%s finished blocks of this node", kv_nodes,
                      kv_nodes == 1 ? "" : "s", kv_nodes == 1 ? "s" : "");
}

static void check_kv_memory(struct check *k)
{
    char place[CFG_PATH_TEXT + 16];
    const struct cfg_config *c = k->c;
    int64_t blocks = k->block_bytes ? c->kv.nodes.memory / (int64_t)k->block_bytes : 0;
    if (!k->block_bytes)
        return;
    if (!blocks)
        cli_check_say(k, PROBLEM, "kv",
                      "%skv.nodes.memory = %.1f MiB has no room for a block of %d tokens, %zu bytes; raise it or lower "
                      "kv.block_tokens",
                      place_of(k, "kv.nodes.memory", place), MIB(c->kv.nodes.memory), c->kv.block_tokens,
                      k->block_bytes);
    else
        cli_check_say(k, FINE, "kv", "memory for %lld blocks of %d tokens for other nodes (kv.nodes.memory)",
                      (long long)blocks, c->kv.block_tokens);
}

/* All kv nodes of this machine have their files below the same folder. */
static void check_kv_files(struct check *k)
{
    char folder[CFG_PATH_TEXT], who[CFG_NAME_TEXT + 64];
    const struct cfg_config *c = k->c;
    int here = 0;
    int64_t taken = 0;
    if (!c->kv.nodes.path[0]) {
        cli_check_say(k, FINE, "kv", "nothing of it outlives the process; kv.nodes.path would keep it in files");
        return;
    }
    if (cfg_kv_folder(c, k->node, folder, sizeof folder)) {
        cli_check_say(k, PROBLEM, "kv", "kv.nodes.path is too long; %d bytes are possible with the node's name",
                      CFG_PATH_TEXT - CFG_NAME_TEXT - 2);
        return;
    }
    /* The node makes its own folder in it; and, before that, cluster.state. */
    const char *there = access(folder, F_OK) ? c->kv.nodes.path : folder;
    size_t len = strlen(c->cluster.state);
    if (access(there, F_OK) && !strncmp(there, c->cluster.state, len) && !there[len]) {
        cli_check_say(k, FINE, "kv", "%s is made at the start, as cluster.state", there);
        return;
    }
    if (!check_folder(k, "kv.nodes.path", there, c->kv.ssd.direct))
        return;
    for (int i = 0; i < c->n_nodes; i++) {
        const struct cfg_node *n = &c->nodes[i];
        char other[CFG_PATH_TEXT];
        if (!is_kv(n) || strcmp(n->host, k->node->host) || cfg_kv_folder(c, n, other, sizeof other))
            continue;
        here++;
        taken += taken_in(other);
    }
    snprintf(who, sizeof who, here == 1 ? "the kv node %s" : "this and the other kv nodes of host %s",
             here == 1 ? k->node->name : k->node->host);
    check_room(k, c->kv.nodes.path, "kv.nodes.size", who, here * c->kv.nodes.size, taken);
    check_locked(k, c->kv.nodes.memory + c->kv.nodes.buffer);
}

/* A folder for nobody is a sign of a list that is not what it was meant to be. */
static void check_unused(struct check *k)
{
    char place[CFG_PATH_TEXT + 16];
    if (k->c->kv.nodes.path[0])
        cli_check_say(k, WARNING, "kv",
                      "%skv.nodes.path has no effect, as no node of a deployment has the role \"kv\"; give the role to "
                      "one, or take it out",
                      place_of(k, "kv.nodes.path", place));
}

void cli_check_tiers(struct check *k)
{
    int n = 0;
    for (int i = 0; i < k->c->n_nodes && k->c->n_nodes > 1; i++)
        n += is_kv(&k->c->nodes[i]);
    if (check_computes(k))
        check_own_tiers(k);
    if (!n)
        check_unused(k);
    else if (check_computes(k))
        check_ways(k, n);
    if (check_keeps(k)) {
        check_kv_memory(k);
        check_kv_files(k);
    }
}
