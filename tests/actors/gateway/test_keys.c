/* Files of API keys. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actors/gateway/keys.h"
#include "tests/support/process.h"

static int load(struct gw_keys *k, const char *text, struct cfg_error *err)
{
    char *dir = ts_temp_dir(), *path = ts_write_file(dir, "keys", text);
    cr_assert(dir && path);
    int r = gw_keys_load(k, path, err);
    free(path);
    ts_remove_dir(dir);
    free(dir);
    return r;
}

static struct gw_key *find(const struct gw_keys *k, const char *text)
{
    return gw_keys_find(k, text, strlen(text));
}

Test(keys, lines_with_names_and_limits)
{
    struct gw_keys k = {0};
    struct cfg_error err;
    cr_assert_eq(load(&k, "# comment\n\nsk-first-1\n  sk-second-2 \t team-a\r\nsk-third-3 team-b 2", &err), 0, "%s",
                 err.msg);
    cr_expect_eq(k.listed, 3);
    cr_assert(find(&k, "sk-first-1") && find(&k, "sk-second-2") && find(&k, "sk-third-3"));
    cr_expect_str_eq(find(&k, "sk-first-1")->name, "key-3");
    cr_expect_eq(find(&k, "sk-first-1")->limit, 0);
    cr_expect_str_eq(find(&k, "sk-second-2")->name, "team-a");
    cr_expect_str_eq(find(&k, "sk-third-3")->name, "team-b");
    cr_expect_eq(find(&k, "sk-third-3")->limit, 2);
    cr_expect_null(find(&k, "sk-third-33"));
    cr_expect_null(find(&k, "sk-third-"));
    cr_expect_null(find(&k, "team-b"));
    cr_expect_null(find(&k, "# comment"));
    cr_expect_null(find(&k, ""));
    gw_keys_free(&k);
}

Test(keys, mistakes_name_the_line_and_no_key)
{
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"", "holds no key"},
        {"# nothing\n", "holds no key"},
        {"sk-secret-1\nshort\n", ":2: a key has 8 to 256"},
        {"sk-secret-1\nsk-secret-1 again\n", ":2: this key stands in the file twice"},
        {"sk-secret-1 name 0\n", ":1: the number of requests"},
        {"sk-secret-1 name many\n", ":1: the number of requests"},
        {"sk-secret-1 na=me\n", ":1: a name has"},
        {"sk-secret-1 name 1 more\n", ":1: a line is KEY"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gw_keys k = {0};
        struct cfg_error err = {{0}};
        cr_expect_lt(load(&k, bad[i].text, &err), 0, "%s", bad[i].text);
        cr_expect(strstr(err.msg, bad[i].want), "%s: %s", bad[i].text, err.msg);
        cr_expect_not(strstr(err.msg, "secret"), "%s", err.msg);
        cr_expect_null(k.first);
        gw_keys_free(&k);
    }
}

Test(keys, a_long_line_is_refused)
{
    struct gw_keys k = {0};
    struct cfg_error err;
    char text[4000];
    memset(text, 'k', sizeof text - 1);
    text[sizeof text - 1] = 0;
    cr_expect_eq(load(&k, text, &err), -EINVAL);
    text[300] = 0;
    cr_expect_eq(load(&k, text, &err), -EINVAL);
    text[256] = 0;
    cr_expect_eq(load(&k, text, &err), 0, "%s", err.msg);
    cr_expect_not_null(find(&k, text));
    gw_keys_free(&k);
    cr_expect_eq(gw_keys_load(&k, "/nowhere/keys", &err), -ENOENT);
    cr_expect(strstr(err.msg, "security.keys_file"));
}

Test(keys, reading_again_keeps_requests_in_progress)
{
    struct gw_keys k = {0};
    struct cfg_error err;
    cr_assert_eq(load(&k, "sk-stays-1 a 1\nsk-leaves-2 b\n", &err), 0);
    struct gw_key *stays = find(&k, "sk-stays-1"), *leaves = find(&k, "sk-leaves-2");
    cr_expect(gw_key_enter(stays));
    cr_expect_not(gw_key_enter(stays), "its limit is 1");
    cr_expect(gw_key_enter(leaves));
    cr_expect(gw_key_enter(leaves), "it has no limit");
    cr_assert_eq(load(&k, "sk-new-3333 c\nsk-stays-1 a2 2\n", &err), 0);
    cr_expect_eq(find(&k, "sk-stays-1"), stays);
    cr_expect_eq(stays->running, 1);
    cr_expect(gw_key_enter(stays), "its limit is 2 now");
    cr_expect_null(find(&k, "sk-leaves-2"));
    cr_expect_eq(leaves->running, 2, "it lives while requests hold it");
    gw_key_leave(&k, leaves);
    gw_key_leave(&k, leaves);
    int n = 0;
    for (struct gw_key *x = k.first; x; x = x->next)
        n++;
    cr_expect_eq(n, 2);
    cr_expect_lt(load(&k, "bad\n", &err), 0);
    cr_expect_not_null(find(&k, "sk-new-3333"), "a file that is wrong changes nothing");
    gw_keys_free(&k);
}
