#include "tests/harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/safetensors.h"

/* A file image: length, header text, then data_len bytes 0, 1, 2, ... Freed by the caller. */
static uint8_t *image(const char *header, size_t data_len, size_t *len)
{
    size_t n = strlen(header);
    uint8_t *p = calloc(1, 8 + n + data_len + 1);
    cr_assert_not_null(p);
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)((uint64_t)n >> 8 * i);
    for (size_t i = 0; i < n; i++)
        p[8 + i] = (uint8_t)header[i];
    for (size_t i = 0; i < data_len; i++)
        p[8 + n + i] = (uint8_t)i;
    *len = 8 + n + data_len;
    return p;
}

static void expect_bad(const char *header, size_t data_len, const char *message)
{
    struct mdl_st *st;
    struct cfg_error err = {{0}};
    size_t len;
    uint8_t *p = image(header, data_len, &len);
    int rc = mdl_st_open_memory(p, len, "bad.safetensors", &st, &err);
    cr_expect_eq(rc, -EINVAL, "%s", header);
    cr_expect_null(st);
    cr_expect_not_null(strstr(err.msg, message), "%s: got \"%s\"", header, err.msg);
    cr_expect_not_null(strstr(err.msg, "bad.safetensors"), "%s", err.msg);
    mdl_st_close(st);
    free(p);
}

#define T(name, dtype, shape, begin, end)                                                                              \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

Test(safetensors, reads_tensors)
{
    size_t len;
    uint8_t *p =
        image("{\"__metadata__\":{\"format\":\"pt\"}," T("b", "I32", "[2]", 4, 12) "," T("a", "F32", "[]", 0, 4) "," T(
                  "z", "BF16", "[3,0]", 12, 12) "," T("odd", "F8_E5M2", "[3]", 12, 15) "}   ",
              15, &len);
    struct mdl_st *st;
    struct cfg_error err = {{0}};
    cr_assert_eq(mdl_st_open_memory(p, len, "x", &st, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_st_count(st), 4);
    cr_expect_str_eq(mdl_st_at(st, 0)->name, "a");
    cr_expect_str_eq(mdl_st_at(st, 1)->name, "b");
    cr_expect_null(mdl_st_at(st, 4));
    const struct mdl_tensor *t = mdl_st_find(st, "b");
    cr_assert_not_null(t);
    cr_expect_eq(t->dtype, MDL_I32);
    cr_expect_eq(t->ndim, 1);
    cr_expect_eq(t->shape[0], 2);
    cr_expect_eq(t->bytes, 8);
    cr_expect_eq(*(const uint8_t *)t->data, 4);
    cr_expect_str_eq(t->file, "x");
    cr_expect_eq(mdl_st_find(st, "a")->ndim, 0);
    cr_expect_eq(mdl_st_find(st, "z")->bytes, 0);
    t = mdl_st_find(st, "odd");
    cr_expect_eq(t->dtype, MDL_DTYPE_OTHER);
    cr_expect_str_eq(t->dtype_name, "F8_E5M2");
    cr_expect_null(mdl_st_find(st, "__metadata__"));
    cr_expect_null(mdl_st_find(st, "nope"));
    mdl_st_close(st);
    free(p);
}

Test(safetensors, empty_model)
{
    struct mdl_st *st;
    struct cfg_error err = {{0}};
    size_t len;
    uint8_t *p = image("{}", 0, &len);
    cr_assert_eq(mdl_st_open_memory(p, len, "x", &st, &err), 0, "%s", err.msg);
    cr_expect_eq(mdl_st_count(st), 0);
    cr_expect_null(mdl_st_find(st, "a"));
    mdl_st_close(st);
    free(p);
}

Test(safetensors, hostile_headers)
{
    expect_bad("", 0, "does not start with '{'");
    expect_bad("[]", 0, "does not start with '{'");
    expect_bad("{", 0, "not valid JSON");
    expect_bad("{}x", 0, "not valid JSON");
    expect_bad("{\"a\":3}", 0, "tensor a: its header entry is not an object");
    expect_bad("{\"a\xff\":3}", 0, "not valid JSON");
    expect_bad("{\"a\":{}}", 0, "tensor a: no dtype");
    expect_bad("{\"a\":{\"dtype\":4}}", 0, "tensor a: no dtype");
    expect_bad("{\"a\":{\"dtype\":\"F32\"}}", 0, "tensor a: no data_offsets");
    expect_bad("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a: no shape");
    expect_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "tensor a: no data_offsets");
    expect_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 8, "tensor a: no data_offsets");
    expect_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4, "tensor a: no data_offsets");
    expect_bad("{" T("a", "F32", "[1]", -4, 0) "}", 4, "negative or end before they begin");
    expect_bad("{" T("a", "F32", "[1]", 4, 0) "}", 4, "negative or end before they begin");
    expect_bad("{" T("a", "F32", "[1.0]", 0, 4) "}", 4, "not a whole number");
    expect_bad("{" T("a", "F32", "[-1]", 0, 4) "}", 4, "not a whole number");
    expect_bad("{" T("a", "F32", "[-1,-1]", 0, 4) "}", 4, "not a whole number");
    expect_bad("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "more than 8 dimensions");
    expect_bad("{" T("a", "F32", "[4294967296,4294967296]", 0, 4) "}", 4, "does not fit 64 bits");
    expect_bad("{" T("a", "F64", "[4611686018427387904]", 0, 0) "}", 0, "bytes of data, but its shape");
    expect_bad("{" T("a", "F32", "[99999999999999999999]", 0, 4) "}", 4, "too big integer");
    expect_bad("{" T("a", "F32", "[2]", 0, 4) "}", 4, "4 bytes of data, but its shape has 2 elements of F32");
    expect_bad("{" T("a", "F32", "[1]", 0, 4) "}", 3, "tensor a: data ends at byte 4 but the file has only 3");
    expect_bad("{" T("a", "F32", "[0]", 9000000000000000000, 9000000000000000000) "}", 3, "the file is truncated");
    expect_bad("{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, "duplicate object key");
    expect_bad("{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[1]", 4, 8) "}", 8, "tensors a and b overlap");
    expect_bad("{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 0, 4) "}", 4, "overlap");
    expect_bad("{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 5, 9) "}", 9,
               "1 bytes before tensor b belong to no");
    expect_bad("{" T("a", "F32", "[1]", 0, 4) "}", 5, "1 bytes at the end belong to no tensor");
    expect_bad("{" T("a\\u0000b", "F32", "[1]", 0, 4) "}", 4, "not valid JSON");
    /* Control bytes of a name never reach the message. */
    expect_bad("{\"a\\u001b[2J\":3}", 0, "tensor a?[2J: its header entry");
}

Test(safetensors, hostile_lengths)
{
    static const struct {
        uint64_t header;
        size_t len;
        const char *message;
    } cases[] = {
        {0, 0, "too short"},
        {0, 7, "too short"},
        {1, 8, "the header claims 1 bytes but the file has only 0"},
        {UINT64_MAX, 64, "the header claims 18446744073709551615 bytes"},
        {(uint64_t)1 << 63, 64, "the header claims 9223372036854775808 bytes"},
        {0, 64, "does not start with '{'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t p[64] = {0};
        struct mdl_st *st;
        struct cfg_error err = {{0}};
        for (int b = 0; b < 8; b++)
            p[b] = (uint8_t)(cases[i].header >> 8 * b);
        cr_expect_eq(mdl_st_open_memory(p, cases[i].len, "x", &st, &err), -EINVAL);
        cr_expect_not_null(strstr(err.msg, cases[i].message), "%s", err.msg);
        mdl_st_close(st);
    }
}

Test(safetensors, oversized_header)
{
    size_t header = ((size_t)64 << 20) + 1;
    uint8_t *p = calloc(1, header + 8);
    struct mdl_st *st;
    struct cfg_error err = {{0}};
    cr_assert_not_null(p);
    for (int b = 0; b < 8; b++)
        p[b] = (uint8_t)((uint64_t)header >> 8 * b);
    p[8] = '{';
    cr_expect_eq(mdl_st_open_memory(p, header + 8, "x", &st, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "expected at most 67108864"), "%s", err.msg);
    free(p);
}

Test(safetensors, deep_nesting)
{
    enum { DEPTH = 100000 };
    char *header = malloc(DEPTH + 8);
    cr_assert_not_null(header);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = 0;
    expect_bad(header, 0, "maximum parsing depth");
    free(header);
}

Test(safetensors, every_truncation_fails)
{
    size_t len;
    uint8_t *p = image("{" T("a", "F32", "[2]", 0, 8) "," T("b", "I8", "[3]", 8, 11) "}", 11, &len);
    for (size_t n = 0; n <= len; n++) {
        struct mdl_st *st;
        struct cfg_error err = {{0}};
        uint8_t *copy = malloc(n + 1); /* exact size, so that a sanitizer sees any read beyond */
        cr_assert_not_null(copy);
        memcpy(copy, p, n);
        int rc = mdl_st_open_memory(copy, n, "x", &st, &err);
        cr_expect_eq(rc, n == len ? 0 : -EINVAL, "%zu bytes", n);
        cr_expect_eq(rc == 0, st != NULL);
        mdl_st_close(st);
        free(copy);
    }
    free(p);
}

static void make_path(char path[64])
{
    snprintf(path, 64, "/tmp/weft-st-%ld.safetensors", (long)getpid());
}

Test(safetensors, write_and_read_back)
{
    static const uint8_t bytes[3] = {1, 2, 3};
    static const float floats[4] = {1, -2, 3.5f, 0};
    static const int64_t wide[1] = {-7};
    const int64_t three[] = {3}, square[] = {2, 2}, one[] = {1}, none[] = {4, 0};
    struct mdl_st_writer *w = mdl_st_writer_new();
    struct cfg_error err = {{0}};
    char path[64];
    make_path(path);
    cr_assert_not_null(w);
    cr_assert_eq(mdl_st_writer_add(w, "bytes", MDL_U8, 1, three, bytes), 0);
    cr_assert_eq(mdl_st_writer_add(w, "floats \"\xc3\xa9\"", MDL_F32, 2, square, floats), 0);
    cr_assert_eq(mdl_st_writer_add(w, "wide", MDL_I64, 1, one, wide), 0);
    cr_assert_eq(mdl_st_writer_add(w, "none", MDL_BF16, 2, none, NULL), 0);
    cr_expect_eq(mdl_st_writer_add(w, "wide", MDL_I64, 1, one, wide), -EEXIST);
    cr_expect_eq(mdl_st_writer_add(w, "__metadata__", MDL_I64, 1, one, wide), -EINVAL);
    cr_expect_eq(mdl_st_writer_add(w, "x", MDL_DTYPE_OTHER, 1, one, wide), -EINVAL);
    cr_expect_eq(mdl_st_writer_add(w, "x", MDL_I64, 9, one, wide), -EINVAL);
    cr_expect_eq(mdl_st_writer_add(w, "bad\xff", MDL_I64, 1, one, wide), -EINVAL);
    cr_assert_eq(mdl_st_writer_save(w, path, &err), 0, "%s", err.msg);
    mdl_st_writer_free(w);
    struct mdl_st *st;
    cr_assert_eq(mdl_st_open(path, &st, &err), 0, "%s", err.msg);
    cr_expect_eq(mdl_st_count(st), 4);
    const struct mdl_tensor *t = mdl_st_find(st, "floats \"\xc3\xa9\"");
    cr_assert_not_null(t);
    cr_expect_eq((uintptr_t)t->data % 4, 0);
    cr_expect_arr_eq(t->data, floats, sizeof floats);
    t = mdl_st_find(st, "wide");
    cr_expect_eq((uintptr_t)t->data % 8, 0);
    cr_expect_eq(memcmp(t->data, wide, sizeof wide), 0);
    cr_expect_eq(memcmp(mdl_st_find(st, "bytes")->data, bytes, sizeof bytes), 0);
    cr_expect_eq(mdl_st_find(st, "none")->shape[0], 4);
    mdl_st_close(st);
    unlink(path);
}

static int fill_counting(void *arg, size_t index, size_t offset, size_t len, void *out)
{
    (void)arg;
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)out)[i] = (uint8_t)((offset + i) * 7 + index);
    return index == 9 ? -EIO : 0;
}

Test(safetensors, streamed_data)
{
    const int64_t big[] = {3000001}, small[] = {5};
    struct mdl_st_writer *w = mdl_st_writer_new();
    struct cfg_error err = {{0}};
    char path[64];
    make_path(path);
    cr_assert_eq(mdl_st_writer_add(w, "small", MDL_U8, 1, small, NULL), 0);
    cr_assert_eq(mdl_st_writer_add(w, "big", MDL_U8, 1, big, NULL), 0);
    cr_expect_eq(mdl_st_writer_save(w, path, &err), -EINVAL);
    cr_expect_neq(access(path, F_OK), 0, "a failed save leaves nothing behind");
    cr_assert_eq(mdl_st_writer_save_from(w, path, fill_counting, NULL, &err), 0, "%s", err.msg);
    struct mdl_st *st;
    cr_assert_eq(mdl_st_open(path, &st, &err), 0, "%s", err.msg);
    const struct mdl_tensor *t = mdl_st_find(st, "big");
    cr_assert_not_null(t);
    const uint8_t *p = t->data;
    size_t wrong = 0;
    for (size_t i = 0; i < t->bytes; i++)
        wrong += p[i] != (uint8_t)(i * 7 + 1);
    cr_expect_eq(wrong, 0);
    mdl_st_close(st);
    unlink(path);
    mdl_st_writer_free(w);
}

Test(safetensors, save_errors_are_reported)
{
    struct mdl_st_writer *w = mdl_st_writer_new();
    struct cfg_error err = {{0}};
    cr_expect_eq(mdl_st_writer_save(w, "/no-such-directory/x.safetensors", &err), -ENOENT);
    cr_expect_not_null(strstr(err.msg, "/no-such-directory/"), "%s", err.msg);
    mdl_st_writer_free(w);
}

Test(safetensors, files_that_are_none)
{
    struct mdl_st *st;
    struct cfg_error err = {{0}};
    cr_expect_eq(mdl_st_open("tests/no-such-file", &st, &err), -ENOENT);
    cr_expect_not_null(strstr(err.msg, "tests/no-such-file"), "%s", err.msg);
    cr_expect_eq(mdl_st_open("tests", &st, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "not a regular file"), "%s", err.msg);
    cr_expect_eq(mdl_st_open("/dev/null", &st, &err), -EINVAL);
    cr_expect_eq(mdl_st_open("tests/fixtures/real-config/config.json", &st, &err), -EINVAL);
    cr_expect_not_null(strstr(err.msg, "not safetensors"), "%s", err.msg);
}

Test(safetensors, golden_files)
{
    static const struct {
        const char *path;
        size_t count;
    } cases[] = {
        {"tests/golden/mini8/model.safetensors", 772},
        {"tests/golden/mini8/golden.safetensors", 1072},
        {"tests/golden/edge/golden.safetensors", 986},
        {"tests/golden/modules/golden.safetensors", 191},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mdl_st *st;
        struct cfg_error err = {{0}};
        cr_assert_eq(mdl_st_open(cases[i].path, &st, &err), 0, "%s", err.msg);
        cr_expect_eq(mdl_st_count(st), cases[i].count);
        for (size_t k = 0; k < mdl_st_count(st); k++)
            cr_expect_eq(mdl_st_find(st, mdl_st_at(st, k)->name), mdl_st_at(st, k));
        mdl_st_close(st);
    }
}
