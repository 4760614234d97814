/* JSON files that are written: whole or not at all, and only files are replaced. */
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/json_file.h"
#include "tests/support/process.h"

static char *dir;

static void begin(void)
{
    dir = ts_temp_dir();
}

static void end(void)
{
    ts_remove_dir(dir);
    free(dir);
}

TestSuite(json_file, .init = begin, .fini = end);

static int put(const char *path, int value, struct cfg_error *err)
{
    json_t *root = json_pack("{s:i}", "v", value);
    int r = mdl_json_file_write(path, root, 0, err);
    json_decref(root);
    return r;
}

static int value_in(const char *path)
{
    json_t *root;
    struct cfg_error err;
    if (mdl_json_file(path, &root, &err))
        return -1;
    int v = (int)json_integer_value(json_object_get(root, "v"));
    json_decref(root);
    return v;
}

Test(json_file, files_are_replaced_where_links_lead_and_keep_their_mode)
{
    char path[4200], link[4200], other[4200];
    struct cfg_error err;
    struct stat sb;
    snprintf(path, sizeof path, "%s/file", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(other, sizeof other, "%s/file.new", dir);
    char *foreign = ts_write_file(dir, "file.new", "another file");
    cr_assert_eq(put(path, 1, &err), 0, "%s", err.msg);
    cr_assert_eq(value_in(path), 1);
    cr_assert(chmod(path, 0640) == 0 && symlink("file", link) == 0);
    cr_assert_eq(put(link, 2, &err), 0, "%s", err.msg);
    cr_expect_eq(value_in(path), 2);
    cr_expect(lstat(link, &sb) == 0 && S_ISLNK(sb.st_mode));
    cr_expect(stat(path, &sb) == 0 && (sb.st_mode & 07777) == 0640);
    char *text = ts_read_file(other, NULL);
    cr_expect(text && !strcmp(text, "another file"), "a file of like name was overwritten");
    free(text);
    free(foreign);
}

Test(json_file, what_is_no_file_is_written_to_and_stays_what_it_is)
{
    char path[4200], got[64] = "";
    struct cfg_error err;
    struct stat sb;
    snprintf(path, sizeof path, "%s/pipe", dir);
    cr_assert_eq(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    cr_assert_geq(fd, 0);
    cr_assert_eq(put(path, 3, &err), 0, "%s", err.msg);
    cr_expect(stat(path, &sb) == 0 && S_ISFIFO(sb.st_mode), "it was replaced");
    cr_expect_gt(read(fd, got, sizeof got - 1), 0);
    cr_expect_str_eq(got, "{\"v\": 3}");
    close(fd);
}

Test(json_file, what_cannot_be_written_is_said_and_leaves_nothing)
{
    char path[4200], none[4200];
    struct cfg_error err;
    snprintf(path, sizeof path, "%s/here", dir);
    snprintf(none, sizeof none, "%s/none/file", dir);
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_expect_eq(put(path, 4, &err), -EIO);
    cr_expect(strstr(err.msg, "/here cannot be written"), "%s", err.msg);
    cr_expect_eq(put(none, 4, &err), -EIO);
    cr_expect_eq(mdl_json_file_write(path, NULL, 0, &err), -EIO);
    cr_assert_eq(rmdir(path), 0);
    cr_expect_eq(rmdir(dir), 0, "something was left behind");
    cr_assert_eq(mkdir(dir, 0700), 0);
}
