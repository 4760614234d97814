/* `weft kv` and `weft bench kv`, as programs. */
#include "tests/harness.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtiers/shared.h"
#include "kvtiers/ssd.h"
#include "model/config.h"
#include "model/kv.h"
#include "tests/support/kv_blocks.h"
#include "tests/support/process.h"

static char *folder, *conf;

static void fini(void)
{
    if (folder)
        ts_remove_dir(folder);
    free(folder);
    free(conf);
    folder = conf = NULL;
}

TestSuite(kv, .fini = fini, .timeout = 120);

/* That of mini8. */
static struct kv_layout layout(void)
{
    static struct mdl_config m;
    struct mdl_kv_layout ml;
    struct kv_layout l;
    struct cfg_error err;
    size_t bytes[MDL_MAX_SOURCES];
    cr_assert_eq(mdl_config_load("tests/golden/mini8", &m, &err), 0, "%s", err.msg);
    cr_assert_eq(mdl_kv_layout_init(&m, 32, &ml, &err), 0);
    for (int i = 0; i < m.n_kv_sources; i++)
        bytes[i] = ml.source[i].bytes;
    cr_assert_eq(kv_layout_init(KV_FORMAT_ROWS, 32, bytes, m.n_kv_sources, &l, &err), 0);
    return l;
}

/* A folder with five blocks of that layout, and the configuration that names it. */
static void make(void)
{
    const struct kv_layout l = layout();
    struct cfg_error err;
    struct kv_storage *s;
    struct kv_tier *t;
    char *text = NULL;
    folder = ts_temp_dir();
    cr_assert_gt(
        asprintf(&text,
                 "model = { path = \"tests/golden/mini8\"; };\n"
                 "kv = { block_tokens = 32; ssd = { path = \"%s\"; size = \"8MiB\"; reserve = \"1MiB\"; direct = "
                 "false; }; shared = { path = \"%s\"; }; };\n",
                 folder, folder),
        0);
    conf = ts_write_file(folder, "kv.conf", text);
    free(text);
    if (kv_storage_uring_new(folder, 16, &s, &err))
        cr_skip_test("no io_uring here: %s", err.msg);
    const struct kv_ssd_params p = {
        .storage = s, .folder = folder, .layout = l, .bytes = 8 << 20, .direct = false, .clock = kv_clock_system};
    cr_assert_eq(kv_ssd_new(&p, &t, &err), 0, "%s", err.msg);
    for (int i = 0; i < 8; i++) {
        t->ops->tick(t);
        ts_turn(s);
    }
    for (int i = 0; i < 5; i++)
        cr_assert(ts_store_one(t, s, &l, i));
    t->ops->free(t);
    kv_storage_free(s);
}

/* The same files as those of a kv node. */
Test(kv, looks_at_the_files_of_a_kv_node)
{
    char *text = NULL, *path = NULL, *dir = NULL;
    make();
    cr_assert_gt(asprintf(&dir, "%s/kv-0", folder), 0);
    cr_assert_eq(mkdir(dir, 0755), 0);
    static const char *const files[] = {"weft-kv.index", "weft-kv.000"};
    for (int i = 0; i < 2; i++) {
        char from[600], to[600];
        snprintf(from, sizeof from, "%s/%s", folder, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        cr_assert_eq(rename(from, to), 0, "%s", from);
    }
    cr_assert_gt(
        asprintf(&text,
                 "model = { path = \"tests/golden/mini8\"; };\n"
                 "kv = { block_tokens = 32; ssd = { reserve = \"1MiB\"; direct = false; }; "
                 "nodes = { path = \"%s\"; size = \"8MiB\"; }; };\n"
                 "cluster = { secret_file = \"%s/secret\"; state = \"%s\"; };\n"
                 "nodes = ( { name = \"all\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; port = "
                 "7101; listen = \"127.0.0.1:8000\"; },\n { name = \"kv-0\"; roles = [\"kv\"]; port = 7102; } );\n",
                 folder, folder, folder),
        0);
    path = ts_write_file(folder, "cluster.conf", text);
    struct ts_result r = ts_run(ts_weft(), "kv", "verify", path, "--node", "kv-0");
    cr_assert_eq(r.status, 0, "%s %s", r.out, r.err);
    cr_assert_str_eq(r.out, "5 blocks, 0 bad\n");
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "drop", path, "--node", "kv-0", "--all");
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert_str_eq(r.out, "5 blocks dropped\n");
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "ls", path, "--node", "all");
    cr_assert_eq(r.status, 2);
    cr_assert(strstr(r.err, "no node \"all\" with the role kv"), "%s", r.err);
    ts_result_free(&r);
    free(path);
    free(text);
    free(dir);
}

static struct ts_result kv(const char *verb, const char *more)
{
    return more ? ts_run(ts_weft(), "kv", verb, conf, more) : ts_run(ts_weft(), "kv", verb, conf);
}

Test(kv, lists_verifies_and_drops)
{
    make();
    struct ts_result r = kv("stat", NULL);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert(strstr(r.out, "blocks          5\n"), "%s", r.out);
    ts_result_free(&r);
    r = kv("ls", NULL);
    cr_assert_eq(r.status, 0);
    char key[65] = "";
    cr_assert_eq(sscanf(r.out, "%64s clean", key), 1);
    ts_result_free(&r);
    r = kv("verify", NULL);
    cr_assert_eq(r.status, 0);
    cr_assert(strstr(r.out, "5 blocks, 0 bad"), "%s", r.out);
    ts_result_free(&r);
    r = kv("drop", key);
    cr_assert(strstr(r.out, "1 blocks dropped"), "%s%s", r.out, r.err);
    ts_result_free(&r);
    char path[4200];
    snprintf(path, sizeof path, "%s/weft-kv.000", folder);
    FILE *f = fopen(path, "r+");
    cr_assert_not_null(f);
    fseek(f, 100, SEEK_SET);
    fputc(0x77, f);
    fseek(f, 9000, SEEK_SET);
    fputc(0x77, f);
    fclose(f);
    r = kv("verify", NULL);
    cr_assert_neq(r.status, 0, "damage is an exit status");
    cr_assert(strstr(r.out, "checksum"), "%s", r.out);
    ts_result_free(&r);
    r = kv("verify", NULL);
    cr_assert_eq(r.status, 0, "what was bad is gone: %s", r.out);
    ts_result_free(&r);
    r = kv("drop", "--all");
    cr_assert_eq(r.status, 0, "%s", r.err);
    ts_result_free(&r);
    r = kv("ls", NULL);
    cr_assert_str_eq(r.out, "");
    ts_result_free(&r);
}

/* Six blocks in a segment of the shared folder. */
static void make_shared(const char *node, struct kv_layout l)
{
    struct cfg_error err;
    struct kv_storage *s;
    struct kv_tier *t;
    cr_assert_eq(kv_storage_uring_new(folder, 16, &s, &err), 0, "%s", err.msg);
    const struct kv_shared_params p = {.storage = s,
                                       .folder = folder,
                                       .node = node,
                                       .layout = l,
                                       .bytes = 8 << 20,
                                       .segment_bytes = 4 << 20,
                                       .seal_ns = INT64_MAX / 2,
                                       .poll_ns = 1000000,
                                       .orphan_ns = INT64_MAX / 2,
                                       .removals_per_s = 8,
                                       .clock = kv_clock_system};
    cr_assert_eq(kv_shared_new(&p, &t, &err), 0, "%s", err.msg);
    for (int i = 0; i < 6; i++)
        cr_assert(ts_store_one(t, s, &l, i));
    t->ops->free(t); /* an orderly end seals */
    kv_storage_free(s);
}

/* Blocks of a shared folder: all of it works while others use it, and a drop is there for all later ones. */
Test(kv, looks_at_a_shared_folder_and_drops_from_it)
{
    make();
    make_shared("writer", layout());
    struct ts_result r = ts_run(ts_weft(), "kv", "ls", "--tier", "shared", conf);
    char key[2][65] = {"", ""};
    cr_assert_eq(sscanf(r.out, "%64s clean %*d %64s clean", key[0], key[1]), 2, "%s%s", r.out, r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "verify", "--tier", "shared", conf);
    cr_assert_str_eq(r.out, "6 blocks, 0 bad\n");
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "drop", "--tier", "shared", conf, key[0], key[1]);
    cr_assert_str_eq(r.out, "2 blocks dropped\n", "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "stat", "--tier", "shared", conf);
    cr_assert(strstr(r.out, "blocks          4\n"), "%s", r.out);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "drop", "--tier", "shared", conf, key[0]);
    cr_assert_str_eq(r.out, "0 blocks dropped\n", "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "drop", "--tier", "shared", conf, "--all");
    cr_assert_str_eq(r.out, "4 blocks dropped\n", "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "ls", "--tier", "shared", conf);
    cr_assert_str_eq(r.out, "");
    ts_result_free(&r);
    r = kv("stat", NULL);
    cr_assert(strstr(r.out, "blocks          5\n"), "the other tier has its own: %s", r.out);
    ts_result_free(&r);
}

/* Both headers of an index; a second time, they are as they were. */
static void flip_headers(const char *index)
{
    FILE *f = fopen(index, "r+");
    cr_assert_not_null(f);
    for (long page = 0; page < 2; page++) {
        fseek(f, page * KV_PAGE, SEEK_SET);
        int c = fgetc(f);
        fseek(f, page * KV_PAGE, SEEK_SET);
        fputc(c ^ 1, f);
    }
    cr_assert_eq(fclose(f), 0);
}

/* Who looks with another configuration, or at an index that is damaged, is refused, and everything stays. */
Test(kv, looking_at_what_it_does_not_know_changes_nothing)
{
    static const char *const verbs[] = {"ls", "stat", "verify"};
    char index[4200];
    make();
    snprintf(index, sizeof index, "%s/weft-kv.index", folder);
    for (int change = 0; change < 2; change++) {
        char *was = ts_read_file(conf, NULL), *at = strstr(was, "block_tokens = 32");
        cr_assert_not_null(at);
        if (!change)
            memcpy(at, "block_tokens = 64", 17);
        char *other = ts_write_file(folder, "other.conf", was);
        if (change)
            flip_headers(index);
        for (int v = 0; v < 3; v++) {
            struct ts_result r = ts_run(ts_weft(), "kv", verbs[v], other);
            cr_expect_eq(r.status, 1, "%s: %s%s", verbs[v], r.out, r.err);
            cr_expect(strstr(r.err, "the index is not read"), "%s: %s", verbs[v], r.err);
            ts_result_free(&r);
        }
        if (change)
            flip_headers(index);
        struct ts_result r = kv("verify", NULL);
        cr_expect_str_eq(r.out, "5 blocks, 0 bad\n", "%s", r.err);
        ts_result_free(&r);
        free(other);
        free(was);
    }
}

/* It makes no files, and does not need to be told the size that the files have. */
Test(kv, looks_at_files_of_any_size_and_makes_none)
{
    make();
    char *was = ts_read_file(conf, NULL), *at = strstr(was, "8MiB");
    cr_assert_not_null(at);
    memcpy(at, "1", 1);
    char *other = ts_write_file(folder, "other.conf", was);
    for (int v = 0; v < 2; v++) {
        struct ts_result r = ts_run(ts_weft(), "kv", v ? "verify" : "stat", other);
        cr_expect_eq(r.status, 0, "%s", r.err);
        cr_expect(strstr(r.out, v ? "5 blocks, 0 bad\n" : "blocks          5\n"), "%s", r.out);
        ts_result_free(&r);
    }
    char empty[4200];
    snprintf(empty, sizeof empty, "%s/empty", folder);
    cr_assert_eq(mkdir(empty, 0700), 0);
    char text[4400];
    snprintf(text, sizeof text, "model = { path = \"tests/golden/mini8\"; };\nkv = { ssd = { path = \"%s\"; }; };\n",
             empty);
    char *fresh = ts_write_file(folder, "fresh.conf", text);
    struct ts_result r = ts_run(ts_weft(), "kv", "stat", fresh);
    cr_expect_eq(r.status, 1, "%s%s", r.out, r.err);
    cr_expect(strstr(r.err, "no server has kept blocks here yet"), "%s", r.err);
    cr_expect_eq(rmdir(empty), 0, "nothing was made there: %s", strerror(errno));
    ts_result_free(&r);
    free(fresh);
    free(other);
    free(was);
}

/* A segment that is damaged as a whole has no block to name. */
Test(kv, verify_fails_for_damaged_files)
{
    glob_t g;
    char pattern[4400];
    make();
    make_shared("writer", layout());
    snprintf(pattern, sizeof pattern, "%s/seg-writer-*", folder);
    cr_assert_eq(glob(pattern, 0, NULL, &g), 0);
    FILE *f = fopen(g.gl_pathv[0], "w");
    cr_assert_not_null(f);
    static const char junk[2 * KV_PAGE] = "junk";
    cr_assert_eq(fwrite(junk, sizeof junk, 1, f), 1u);
    cr_assert_eq(fclose(f), 0);
    globfree(&g);
    struct ts_result r = ts_run(ts_weft(), "kv", "verify", "--tier", "shared", conf);
    cr_expect_eq(r.status, 1, "%s%s", r.out, r.err);
    cr_expect(strstr(r.err, "unusable        1 files") && strstr(r.err, "damaged"), "%s", r.err);
    ts_result_free(&r);
}

/* Of five damaged blocks in one segment verify names these five; segments of another layout are told of. */
Test(kv, names_bad_blocks_alone_and_what_is_of_no_use)
{
    make();
    make_shared("writer", layout());
    make_shared("other", ts_layout(256));
    struct kv_layout l = layout();
    glob_t g;
    char pattern[4400];
    snprintf(pattern, sizeof pattern, "%s/seg-writer-*", folder);
    cr_assert_eq(glob(pattern, 0, NULL, &g), 0);
    FILE *f = fopen(g.gl_pathv[0], "r+");
    cr_assert_not_null(f);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(fseek(f, i * (long)l.block_bytes, SEEK_SET), 0);
        int c = fgetc(f);
        cr_assert_eq(fseek(f, -1, SEEK_CUR), 0);
        fputc(c ^ 1, f);
    }
    fclose(f);
    globfree(&g);
    struct ts_result r = ts_run(ts_weft(), "kv", "verify", "--tier", "shared", conf);
    cr_assert(strstr(r.out, "6 blocks, 5 bad\n"), "%s", r.out);
    cr_assert_not(strstr(r.out, strerror(ENOENT)));
    ts_result_free(&r);
    char line[200];
    snprintf(line, sizeof line, "unusable        1 files, %zu bytes: other model or layout\n",
             6 * ts_layout(256).block_bytes + 2 * (size_t)KV_PAGE);
    r = ts_run(ts_weft(), "kv", "stat", "--tier", "shared", conf);
    cr_assert(strstr(r.out, line), "%s", r.out);
    cr_assert(strstr(r.out, "blocks          6\n"), "%s", r.out);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "ls", "--tier", "shared", conf);
    cr_assert(strstr(r.err, line), "%s", r.err);
    ts_result_free(&r);
}

/* Conversations that come back, and short questions that do not. */
static void make_trace(const char *path)
{
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    for (int i = 0; i < 60; i++) {
        int blocks = i % 3 ? 6 + i / 6 : 2;
        fprintf(f, "{\"t\":%d,\"prompt\":%d,\"output\":9,\"block_tokens\":16,\"block_bytes\":4096,\"blocks\":[", 10 * i,
                16 * blocks + 3);
        for (int b = 0; b < blocks; b++)
            fprintf(f, "%s\"%016x\"", b ? "," : "", i % 3 ? (i % 3) * 1000 + b : 100000 + i * 100 + b);
        fputs("]}\n", f);
    }
    fclose(f);
}

Test(kv, a_trace_says_what_tiers_are_worth_and_where_they_are_not)
{
    char trace[4200], svg[4300];
    make();
    snprintf(trace, sizeof trace, "%s/trace", folder);
    snprintf(svg, sizeof svg, "%s.svg", trace);
    make_trace(trace);
    struct ts_result r = ts_run(ts_weft(), "bench", "kv", "--trace", trace);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert(strstr(r.out, "60 requests over 590 s"), "%s", r.out);
    cr_assert(strstr(r.out, "     below 4         20      0.0     pays nothing"), "%s", r.out);
    cr_assert(strstr(r.out, "     4 to 15         "), "%s", r.out);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "bench", "kv", "--plot", svg);
    cr_assert_eq(r.status, 2, "there is nothing to draw");
    ts_result_free(&r);
    r = ts_run(ts_weft(), "bench", "kv", "--trace", trace, "--plot", svg);
    if (strstr(r.err, "gnuplot-nox"))
        cr_skip_test("%s", r.err);
    cr_assert_eq(r.status, 0, "%s", r.err);
    char *picture = ts_read_file(svg, NULL);
    cr_assert_not_null(picture);
    cr_expect(strstr(picture, "pays nothing"));
    cr_expect(strstr(picture, "none of them gets faster"));
    free(picture);
    ts_result_free(&r);
    /* Two prompts that have nothing in common. */
    FILE *f = fopen(trace, "w");
    for (int i = 0; i < 2; i++)
        fprintf(
            f,
            "{\"t\":%d,\"prompt\":40,\"output\":9,\"block_tokens\":16,\"block_bytes\":4096,\"blocks\":[\"%016x\"]}\n",
            i, i);
    fclose(f);
    r = ts_run(ts_weft(), "bench", "kv", "--trace", trace, "--plot", svg);
    cr_assert_eq(r.status, 0, "%s", r.err);
    picture = ts_read_file(svg, NULL);
    cr_expect(strstr(picture, "nothing is saved"));
    free(picture);
    ts_result_free(&r);
}

/* Lines whose numbers make no sense are named, and nothing is counted. */
Test(kv, a_trace_with_bad_numbers_is_refused)
{
#define LINE(t, prompt, tokens, bytes)                                                                                 \
    "{\"t\":" t ",\"prompt\":" prompt ",\"output\":1,\"block_tokens\":" tokens bytes                                   \
    ",\"blocks\":[\"00000000000000aa\"]}\n"
#define GOOD LINE("0", "40", "16", ",\"block_bytes\":4096")
    static const char *const trace[][2] = {
        {"", "no request"},
        {GOOD LINE("\"1\"", "40", "16", ",\"block_bytes\":4096"), ":2: t must be seconds"},
        {LINE("1e308", "40", "16", ",\"block_bytes\":4096"), "t must be seconds"},
        {LINE("0", "-40", "16", ",\"block_bytes\":4096"), "prompt and output"},
        {LINE("0", "40", "4294967312", ",\"block_bytes\":4096"), "full blocks"},
        {GOOD LINE("0", "40", "32", ",\"block_bytes\":4096"), ":2: blocks must"},
        {GOOD LINE("0", "40", "16", ",\"block_bytes\":8192"), ":2: block_bytes must"},
        {GOOD LINE("0", "40", "16", ""), ":2: block_bytes must"},
        {LINE("0", "40", "16", ",\"block_bytes\":-1"), "block_bytes must"},
        {LINE("0", "40", "16", ""), "no line says block_bytes"},
    };
#undef GOOD
#undef LINE
    folder = ts_temp_dir();
    for (size_t i = 0; i < sizeof trace / sizeof *trace; i++) {
        char *path = ts_write_file(folder, "trace", trace[i][0]);
        struct ts_result r = ts_run(ts_weft(), "bench", "kv", "--trace", path);
        cr_expect_eq(r.status, 1, "%s", trace[i][0]);
        cr_expect(strstr(r.err, trace[i][1]), "%s", r.err);
        cr_expect_str_eq(r.out, "");
        ts_result_free(&r);
        free(path);
    }
}

Test(kv, mistakes_are_said)
{
    make();
    struct ts_result r = kv("drop", NULL);
    cr_assert_eq(r.status, 2);
    ts_result_free(&r);
    r = kv("drop", "zz");
    cr_assert_eq(r.status, 2);
    ts_result_free(&r);
    r = kv("lst", NULL);
    cr_assert_eq(r.status, 2);
    ts_result_free(&r);
    r = kv("ls", "more");
    cr_assert_eq(r.status, 2);
    cr_assert(strstr(r.err, "ls takes one file"), "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "bench", "kv", "--trace", folder);
    cr_assert_eq(r.status, 1);
    cr_assert(strstr(r.err, "Is a directory"), "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "ls", "config/single.conf");
    cr_assert_eq(r.status, 2);
    cr_assert(strstr(r.err, "kv.ssd.path"), "%s", r.err);
    ts_result_free(&r);
    r = ts_run(ts_weft(), "kv", "stat", "--tier", "shared", conf);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert(strstr(r.out, "blocks          0"), "%s", r.out);
    cr_assert(strstr(r.out, "capacity        68719476736\n"), "kv.shared.size: %s", r.out);
    ts_result_free(&r);
}

/* A server has the files: they are left alone, and where its figures are is said. */
Test(kv, files_in_use_are_left_alone)
{
    const struct kv_layout l = layout();
    struct cfg_error err;
    struct kv_storage *s;
    struct kv_tier *t;
    make();
    cr_assert_eq(kv_storage_uring_new(folder, 16, &s, &err), 0, "%s", err.msg);
    const struct kv_ssd_params p = {
        .storage = s, .folder = folder, .layout = l, .bytes = 8 << 20, .direct = false, .clock = kv_clock_system};
    cr_assert_eq(kv_ssd_new(&p, &t, &err), 0, "%s", err.msg);
    struct ts_result r = kv("drop", "--all");
    cr_expect_eq(r.status, 1);
    cr_expect(strstr(r.err, "a server uses these files"), "%s", r.err);
    ts_result_free(&r);
    t->ops->free(t);
    kv_storage_free(s);
    r = kv("stat", NULL);
    cr_expect(strstr(r.out, "blocks          5\n"), "%s", r.out);
    ts_result_free(&r);
}
