#include "cli/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <unistd.h>

int run_dir_of(const struct cfg_config *c, const char *file, const char *given, char out[CFG_PATH_TEXT],
               struct cfg_error *err)
{
    int n = given                 ? snprintf(out, CFG_PATH_TEXT, "%s", given)
            : c->cluster.state[0] ? snprintf(out, CFG_PATH_TEXT, "%s/up", c->cluster.state)
                                  : snprintf(out, CFG_PATH_TEXT, "%s.run", file);
    return n < CFG_PATH_TEXT ? 0 : cfg_error_set(err, ENAMETOOLONG, "the path of the run folder is too long");
}

void run_dir_path(const char *dir, const char *name, const char *suffix, char out[RUN_PATH_TEXT])
{
    snprintf(out, RUN_PATH_TEXT, "%s/%s%s", dir, name, suffix);
}

int run_dir_lock(const char *dir, int *fd, struct cfg_error *err)
{
    char path[RUN_PATH_TEXT];
    run_dir_path(dir, RUN_SUPERVISOR, ".lock", path);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0)
        return cfg_error_set(err, errno, "%s: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    int e = errno;
    close(*fd);
    *fd = -1;
    return e == EWOULDBLOCK ? cfg_error_set(err, EEXIST, "a supervisor runs with %s", dir)
                            : cfg_error_set(err, e, "%s: %s", path, strerror(e));
}

static int boot_of_machine(char out[RUN_BOOT_TEXT])
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    bool there = f && fgets(out, RUN_BOOT_TEXT, f);
    if (f)
        fclose(f);
    if (!there)
        return -ENOENT;
    out[strcspn(out, "\n")] = 0;
    return 0;
}

int run_process_of(pid_t pid, struct run_process *out)
{
    enum { START_FIELD = 22, NAME_FIELD = 2 };
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f)
        fclose(f);
    line[n] = 0;
    char *at = strrchr(line, ')'); /* the name before it may hold anything */
    for (int field = NAME_FIELD; at && field < START_FIELD; field++) {
        at = strchr(at + 1, ' ');
    }
    if (!at || boot_of_machine(out->boot))
        return -ESRCH;
    out->pid = pid;
    out->draining = false;
    out->start = strtoull(at + 1, NULL, 10);
    return 0;
}

int run_process_open(const struct run_process *p)
{
    struct run_process now;
    int fd = pidfd_open(p->pid, 0);
    if (fd < 0)
        return errno == ENOSYS ? -ENOSYS : -ESRCH;
    struct pollfd end = {fd, POLLIN, 0};
    /* The descriptor holds the process, so what is read now is about this one or about nobody. One that has ended and
     * waits for its parent has ended. */
    if (poll(&end, 1, 0) > 0 || run_process_of(p->pid, &now) || now.start != p->start || strcmp(now.boot, p->boot)) {
        close(fd);
        return -ESRCH;
    }
    return fd;
}

int run_file_write(const char *dir, const char *name, const struct run_process *p, struct cfg_error *err)
{
    char path[RUN_PATH_TEXT], fresh[RUN_PATH_TEXT];
    run_dir_path(dir, name, ".pid", path);
    run_dir_path(dir, name, ".pid.new", fresh);
    FILE *f = fopen(fresh, "we");
    bool well = f && fprintf(f, "%d %llu %s%s\n", (int)p->pid, p->start, p->boot, p->draining ? " draining" : "") > 0;
    int e = errno;
    if (f && fclose(f)) {
        well = false;
        e = errno;
    }
    if (well && rename(fresh, path) == 0)
        return 0;
    e = well ? errno : e;
    unlink(fresh);
    return cfg_error_set(err, e, "%s: %s", path, strerror(e));
}

int run_file_read(const char *dir, const char *name, struct run_process *out)
{
    char path[RUN_PATH_TEXT];
    char told[16] = "";
    int pid;
    run_dir_path(dir, name, ".pid", path);
    FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    int n = fscanf(f, "%d %llu %39s%15s", &pid, &out->start, out->boot, told);
    fclose(f);
    out->pid = pid;
    out->draining = n == 4 && !strcmp(told, "draining");
    return n >= 3 && pid > 0 ? 0 : -EINVAL;
}

void run_file_remove(const char *dir, const char *name)
{
    char path[RUN_PATH_TEXT];
    run_dir_path(dir, name, ".pid", path);
    unlink(path);
}
