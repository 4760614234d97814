#include "cli/bench_kv_fio.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- writing down what passes ---- */

enum { FILES_MAX = 16 };

struct recorder {
    struct kv_storage base;
    struct kv_storage *inner;
    FILE *log;
    int file[FILES_MAX], n_files; /* those in the log */
    char name[FILES_MAX][1024];
};

static const char *name_of(struct recorder *r, int file)
{
    char link[64];
    int i = 0;
    while (i < r->n_files && r->file[i] != file)
        i++;
    if (i < r->n_files)
        return r->name[i];
    if (i == FILES_MAX)
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, r->name[i], sizeof r->name[i] - 1);
    if (n <= 0)
        return NULL;
    r->name[i][n] = 0;
    r->file[r->n_files++] = file;
    fprintf(r->log, "%s add\n%s open\n", r->name[i], r->name[i]);
    return r->name[i];
}

static void recorder_submit(struct kv_storage *s, struct kv_io *io)
{
    struct recorder *r = (struct recorder *)s;
    const char *name = r->log && io->op == KV_IO_READ ? name_of(r, io->file) : NULL;
    if (name)
        fprintf(r->log, "%s read %llu %zu\n", name, (unsigned long long)io->offset, io->len);
    r->inner->ops->submit(r->inner, io);
}

static int recorder_poll(struct kv_storage *s)
{
    struct recorder *r = (struct recorder *)s;
    return r->inner->ops->poll(r->inner);
}

static int recorder_wait(struct kv_storage *s, int timeout_ms)
{
    struct recorder *r = (struct recorder *)s;
    return r->inner->ops->wait(r->inner, timeout_ms);
}

static int recorder_descriptor(struct kv_storage *s)
{
    struct recorder *r = (struct recorder *)s;
    return r->inner->ops->descriptor(r->inner);
}

static int recorder_register(struct kv_storage *s, void *base, size_t len)
{
    struct recorder *r = (struct recorder *)s;
    return r->inner->ops->register_memory(r->inner, base, len);
}

static void recorder_stat(struct kv_storage *s, struct kv_storage_stats *out)
{
    struct recorder *r = (struct recorder *)s;
    r->inner->ops->stat(r->inner, out);
}

static void recorder_free(struct kv_storage *s)
{
    bench_kv_record_end(s);
    free(s);
}

struct kv_storage *bench_kv_recorder_new(struct kv_storage *inner)
{
    static const struct kv_storage_ops ops = {
        .name = "recorder",
        .submit = recorder_submit,
        .poll = recorder_poll,
        .wait = recorder_wait,
        .descriptor = recorder_descriptor,
        .register_memory = recorder_register,
        .stat = recorder_stat,
        .free = recorder_free,
    };
    struct recorder *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->base.ops = &ops;
    r->inner = inner;
    return &r->base;
}

int bench_kv_record(struct kv_storage *recorder, const char *path)
{
    struct recorder *r = (struct recorder *)recorder;
    r->log = fopen(path, "w");
    if (!r->log)
        return -errno;
    r->n_files = 0;
    fputs("fio version 2 iolog\n", r->log);
    return 0;
}

int bench_kv_record_end(struct kv_storage *recorder)
{
    struct recorder *r = (struct recorder *)recorder;
    if (!r->log)
        return 0;
    for (int i = 0; i < r->n_files; i++)
        fprintf(r->log, "%s close\n", r->name[i]);
    bool bad = ferror(r->log);
    bad |= fclose(r->log) != 0;
    r->log = NULL;
    return bad ? -EIO : 0;
}

/* ---- fio ---- */

bool bench_kv_fio_available(void)
{
    return system("command -v fio >/dev/null 2>&1") == 0;
}

/* Terse form 3: field 7 is the read bandwidth in KiB/s, field 48 the write bandwidth. */
static double run(const char *arguments, int field)
{
    char command[4096], line[8192], *at = NULL;
    double value = 0;
    snprintf(command, sizeof command,
             "fio --name=x --direct=1 --ioengine=io_uring --fixedbufs=1 --allow_file_create=0 --group_reporting=1 "
             "--output-format=terse --terse-version=3 %s 2>/dev/null",
             arguments);
    FILE *f = popen(command, "r");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "3;", 2))
            continue;
        at = line;
        for (int i = 1; at && i < field; i++)
            at = strchr(at, ';') ? strchr(at, ';') + 1 : NULL;
        if (at)
            value = strtod(at, NULL) * 1024;
    }
    return pclose(f) == 0 ? value : 0;
}

double bench_kv_fio_replay(const char *log, int depth)
{
    char arguments[2048];
    snprintf(arguments, sizeof arguments, "--iodepth=%d '--read_iolog=%s'", depth, log);
    return run(arguments, 7);
}

double bench_kv_fio(const char *file, enum bench_kv_fio_job job, long long size, int depth, double seconds)
{
    static const char extents[] = "--bssplit=48k/75:92k/25 --blockalign=4k";
    bool write = job == BENCH_FIO_WRITE || job == BENCH_FIO_WRITE_NEW;
    char arguments[2048], how[64];
    snprintf(how, sizeof how, "--time_based=1 --runtime=%d", seconds < 1 ? 1 : (int)seconds);
    if (job == BENCH_FIO_WRITE_NEW) /* the room comes with posix_fallocate */
        snprintf(how, sizeof how, "--allow_file_create=1 --unlink=1");
    snprintf(arguments, sizeof arguments, "'--filename=%s' --rw=%s %s --iodepth=%d --size=%lld %s", file,
             write ? "write" : "randread", job == BENCH_FIO_PAGES ? "--bs=4k" : extents, depth, size, how);
    return run(arguments, write ? 48 : 7);
}
