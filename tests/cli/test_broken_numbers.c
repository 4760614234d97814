/* A checkpoint whose numbers are broken: every command that works with logits says so, and measures nothing. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/safetensors.h"
#include "tests/harness.h"
#include "tests/support/model.h"
#include "tests/support/process.h"
#include "tests/support/text_model.h"

/* mini8 with a tokenizer, and NaN in the row of the output head of token 7. */
static char *broken_model(void)
{
    char *dir = ts_text_model(TS_MINI8), *path = NULL;
    size_t len;
    char *bytes = ts_read_file(TS_MINI8 "/model.safetensors", &len);
    struct mdl_st *st;
    struct cfg_error err = {0};
    cr_assert(bytes && asprintf(&path, "%s/model.safetensors", dir) > 0);
    cr_assert_eq(mdl_st_open_memory(bytes, len, "mini8", &st, &err), 0, "%s", err.msg);
    const struct mdl_tensor *head = mdl_st_find(st, "head.weight");
    cr_assert(head && head->dtype == MDL_BF16);
    size_t at = (size_t)((const char *)head->data - bytes) + 7 * 2 * (size_t)head->shape[1];
    mdl_st_close(st);
    memcpy(bytes + at, "\xc0\x7f", 2);
    unlink(path);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(bytes, 1, len, f) == len && fclose(f) == 0);
    free(bytes);
    free(path);
    return dir;
}

Test(broken_numbers, are_named)
{
    char *dir = broken_model(), *text = ts_write_file(dir, "text", "And it came to pass. "), *long_text, *out = NULL;
    char *ids = ts_write_file(dir, "ids", "1 2 3");
    cr_assert_gt(asprintf(&out, "%s/out", dir), 0);
    char *many = calloc(1, 8192);
    for (int i = 0; i < 200; i++)
        strcat(many, "And it came to pass in the days. ");
    long_text = ts_write_file(dir, "long", many);
    const char *const argv[][12] = {
        {ts_weft(), "generate", "-m", dir, "-p", "x", "-t", "0"},
        {ts_weft(), "score", "-m", dir, "--ids", ids, "--out", out},
        {ts_weft(), "perplexity", "-m", dir, "--text", text},
        {ts_weft(), "fidelity", "-m", dir, "--text", long_text, "--prompts", "1", "--length", "40"},
    };
    for (size_t i = 0; i < sizeof argv / sizeof *argv; i++) {
        struct ts_result r = ts_run_argv(NULL, argv[i]);
        cr_expect_eq(r.status, 1, "%s: status %d, %s", argv[i][1], r.status, r.out);
        cr_expect_not_null(strstr(r.err, "the logit of token 7 is not a number"), "%s: %s", argv[i][1], r.err);
        ts_result_free(&r);
    }
    /* The rows are there for those who look for the reason. */
    struct stat st;
    char path[4096];
    snprintf(path, sizeof path, "%s/logits.f32", out);
    cr_expect(stat(path, &st) == 0 && st.st_size == 512 * 4);
    ts_remove_dir(dir);
    free(dir);
    free(text);
    free(long_text);
    free(many);
    free(ids);
    free(out);
}
