/* Requests as storages see them: what short transfers and passing errors become (kv_io_start), over a storage that does
 * as the test says; and what the kernel is asked for by the one over io_uring. */
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtiers/storage.h"
#include "tests/support/process.h"

enum { SECTOR = 4096, ASKED_MAX = 32 };

/* Answers each request at once with the next result of the list; its last one stands for all that follow. */
static struct scripted {
    struct kv_storage base;
    const int64_t *result;
    int n;
    int asked;
    struct {
        size_t len;
        uint64_t offset;
        const uint8_t *bytes;
    } seen[ASKED_MAX];
} scripted;

static int ended;

static void scripted_submit(struct kv_storage *base, struct kv_io *io)
{
    struct scripted *s = (struct scripted *)base;
    cr_assert_lt(s->asked, ASKED_MAX, "it is asked again and again");
    s->seen[s->asked].len = io->len;
    s->seen[s->asked].offset = io->offset;
    s->seen[s->asked].bytes = io->bytes;
    io->result = s->result[s->asked < s->n ? s->asked : s->n - 1];
    s->asked++;
    io->done(io);
}

static const struct kv_storage_ops scripted_ops = {.name = "scripted", .submit = scripted_submit};

static void note_end(struct kv_io *io)
{
    (void)io;
    ended++;
}

/* The result of a request of four sectors at the second one. */
static int64_t move(unsigned flags, const int64_t *result, int n)
{
    static uint8_t bytes[4 * SECTOR];
    scripted = (struct scripted){.base.ops = &scripted_ops, .result = result, .n = n};
    struct kv_io io = {
        .op = KV_IO_READ, .flags = flags, .bytes = bytes, .len = sizeof bytes, .offset = SECTOR, .done = note_end};
    ended = 0;
    kv_io_start(&scripted.base, &io);
    cr_assert_eq(ended, 1, "%d ends", ended);
    cr_assert(io.bytes == bytes && io.len == sizeof bytes && io.offset == SECTOR, "the request is as it was");
    for (int i = 0; i < scripted.asked; i++) {
        cr_assert_eq(scripted.seen[i].bytes - bytes, (ptrdiff_t)(scripted.seen[i].offset - SECTOR));
        cr_assert_eq(scripted.seen[i].offset + scripted.seen[i].len, 5u * SECTOR);
    }
    return io.result;
}

#define MOVE(flags, ...)                                                                                               \
    move(flags, (const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

Test(storage_moves, what_passes_is_tried_again_and_not_for_ever)
{
    cr_expect_eq(MOVE(0, -EAGAIN, -EINTR, 4 * SECTOR), 4 * SECTOR);
    cr_expect_eq(scripted.asked, 3);
    cr_expect_eq(MOVE(0, -EAGAIN), -EAGAIN);
    cr_expect(scripted.asked > 3 && scripted.asked < 16, "%d times", scripted.asked);
    cr_expect_eq(MOVE(0, -EIO, 4 * SECTOR), -EIO);
    cr_expect_eq(scripted.asked, 1, "an error that stays is told at once");
}

Test(storage_moves, a_short_transfer_goes_on_behind_what_was_moved)
{
    cr_expect_eq(MOVE(0, 100, 4 * SECTOR - 100), 4 * SECTOR);
    cr_expect_eq(scripted.seen[1].offset, SECTOR + 100u);
    cr_expect_eq(MOVE(0, 100, 0), 100, "the file ends there");
    cr_expect_eq(MOVE(0, 100, -EIO), -EIO);
}

/* Direct requests begin at sectors, so the torn one is moved again. */
Test(storage_moves, a_direct_transfer_goes_on_at_a_sector)
{
    cr_expect_eq(MOVE(KV_OPEN_DIRECT, SECTOR + 100, 3 * SECTOR), 4 * SECTOR);
    cr_expect_eq(scripted.seen[1].offset, 2u * SECTOR);
    cr_expect_eq(MOVE(KV_OPEN_DIRECT, SECTOR + 100, 100), SECTOR + 100, "the file ends inside a sector");
    cr_expect_eq(scripted.seen[scripted.asked - 1].offset, 2u * SECTOR);
}

/* ---- what the kernel is asked for ---- */

static struct kv_storage *open_folder(char **folder)
{
    struct kv_storage *s;
    struct cfg_error err;
    *folder = ts_temp_dir();
    if (kv_storage_uring_new(*folder, 8, &s, &err))
        cr_skip_test("no io_uring here: %s", err.msg);
    return s;
}

static void close_folder(struct kv_storage *s, char *folder)
{
    kv_storage_free(s);
    ts_remove_dir(folder);
    free(folder);
}

static int flags_of(int64_t file)
{
    return fcntl((int)file, F_GETFL);
}

Test(storage_moves, files_are_opened_past_the_page_cache_when_asked)
{
    char *folder;
    struct kv_storage *s = open_folder(&folder);
    struct kv_io plain = {.op = KV_IO_OPEN, .path = "a", .flags = KV_OPEN_WRITE | KV_OPEN_CREATE},
                 direct = {.op = KV_IO_OPEN, .path = "a", .flags = KV_OPEN_WRITE | KV_OPEN_DIRECT};
    cr_assert_ge(kv_io_run(s, &plain), 0);
    cr_expect_not(flags_of(plain.result) & O_DIRECT);
    if (kv_io_run(s, &direct) != -EINVAL) { /* the file system can */
        cr_assert_ge(direct.result, 0);
        cr_expect(flags_of(direct.result) & O_DIRECT);
        close((int)direct.result);
    }
    close((int)plain.result);
    close_folder(s, folder);
}

/* What cannot be flushed says so, which shows that the kernel was asked: a pipe. */
Test(storage_moves, a_flush_reaches_the_file)
{
    char *folder, path[4200];
    struct kv_storage *s = open_folder(&folder);
    snprintf(path, sizeof path, "%s/pipe", folder);
    cr_assert_eq(mkfifo(path, 0600), 0);
    struct kv_io pipe = {.op = KV_IO_OPEN, .path = "pipe", .flags = KV_OPEN_WRITE},
                 file = {.op = KV_IO_OPEN, .path = "a", .flags = KV_OPEN_WRITE | KV_OPEN_CREATE},
                 here = {.op = KV_IO_OPEN, .path = "", .flags = KV_OPEN_FOLDER};
    struct kv_io *all[] = {&pipe, &file, &here};
    for (int i = 0; i < 3; i++) {
        cr_assert_ge(kv_io_run(s, all[i]), 0, "%d: %d", i, (int)all[i]->result);
        struct kv_io sync = {.op = KV_IO_SYNC, .file = (int)all[i]->result, .flags = all[i]->flags & KV_OPEN_FOLDER};
        cr_expect_eq(kv_io_run(s, &sync), i ? 0 : -EINVAL, "%d: %d", i, (int)sync.result);
        close((int)all[i]->result);
    }
    close_folder(s, folder);
}
