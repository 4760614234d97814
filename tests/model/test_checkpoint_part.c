/* A checkpoint of which only the layers up to the bridge are there, or are mapped: it computes what a hand-off in form
 * encoder consists of, bit for bit, and nothing of the rest is needed. */
#include "tests/harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/handoff.h"
#include "tests/support/model.h"
#include "tests/support/process.h"

static const char *const folders[] = {TS_MINI8, TS_EDGE, TS_TINY};

enum { PROMPT = 70, BLOCK = 8 };

static struct mdl_model *open_part(const char *dir, uint64_t revision)
{
    struct mdl_model *m;
    struct cfg_error err;
    cr_assert_eq(mdl_model_open_part(dir, MDL_PART_ENCODER, revision, 1, NULL, &m, &err), 0, "%s", err.msg);
    return m;
}

/* Rows and state of a prompt, as they are handed over. */
struct encoded {
    uint8_t *bytes;
    size_t len;
};

static struct encoded encode(struct mdl_model *m, int n, bool full_bridge)
{
    struct cfg_error err;
    struct mdl_prefill plan;
    struct mdl_segment seg;
    int replay = m->cfg->window + 8;
    const struct mdl_seq_params keep = {
        .max_tokens = n + 1, .block_tokens = BLOCK, .rollback = 8, .replay = replay, .full_bridge = full_bridge};
    struct mdl_step *step = ts_step(m, 16, n + 1);
    struct mdl_seq *s = ts_seq(m, keep);
    int32_t *ids = ts_ids(m, 3, n);
    cr_assert_eq(mdl_seq_reserve(s, n, &err), 0, "%s", err.msg);
    for (int b = 0; b < s->n_blocks; b++) /* rows that are not complete yet are nobody's */
        if (s->blocks[b])
            memset(s->blocks[b], 0, s->layout.block_bytes);
    const struct mdl_prefill_params how = {.replay = replay, .full_bridge = full_bridge};
    cr_assert_eq(mdl_prefill_begin(&plan, s, ids, n, &how, &err), 0, "%s", err.msg);
    while (mdl_prefill_next(&plan, 16, &seg) && !seg.layer_begin) {
        mdl_step_begin(step, NULL);
        cr_assert_eq(mdl_step_add(step, &seg, &err), 0, "%s", err.msg);
        cr_assert_eq(mdl_step_run(step), MDL_STEP_DONE);
        mdl_step_commit(step, 0, seg.n);
        mdl_prefill_advance(&plan, &seg);
    }
    size_t state = mdl_handoff_state_bytes(s, MDL_HANDOFF_ENCODER), rows = (size_t)s->n_blocks * s->layout.block_bytes;
    struct encoded e = {.len = state, .bytes = calloc(1, state + rows)};
    mdl_handoff_state_save(s, MDL_HANDOFF_ENCODER, e.bytes);
    for (int at = 0; at < n; at = at / BLOCK * BLOCK + BLOCK) {
        struct mdl_handoff_range r[MDL_HANDOFF_RANGES];
        int to = n - at < BLOCK ? n - at : BLOCK, k = mdl_handoff_ranges(&s->layout, m->cfg->n_kv_sources, 0, to, r);
        for (int i = 0; i < k; e.len += r[i++].size)
            memcpy(e.bytes + e.len, s->blocks[at / BLOCK] + r[i].offset, r[i].size);
    }
    free(ids);
    mdl_seq_free(s);
    mdl_step_free(step);
    return e;
}

static void check_same(struct mdl_model *part, struct mdl_model *whole, const char *what)
{
    for (int full = 0; full < 2; full++)
        for (int n = 1; n <= PROMPT; n += 23) {
            struct encoded a = encode(part, n, full), b = encode(whole, n, full);
            cr_assert_eq(a.len, b.len, "%s, %d tokens", what, n);
            cr_assert_eq(memcmp(a.bytes, b.bytes, a.len), 0, "%s, %d tokens: other bytes", what, n);
            free(a.bytes);
            free(b.bytes);
        }
}

/* What /proc says of a file's pages in this process. */
static size_t mapped_of(const char *file)
{
    char line[4500];
    size_t sum = 0;
    unsigned long from, to;
    FILE *f = fopen("/proc/self/maps", "re");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f))
        if (strstr(line, file) && sscanf(line, "%lx-%lx", &from, &to) == 2)
            sum += to - from;
    fclose(f);
    return sum;
}

Test(checkpoint_part, the_layers_up_to_the_bridge_are_mapped_and_no_others)
{
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char file[200];
        struct mdl_model *whole = ts_model(folders[i], 1);
        uint64_t revision = whole->ck->revision;
        snprintf(file, sizeof file, "%s/model", folders[i]);
        size_t all = mapped_of(file), bytes = whole->ck->mapped;
        struct mdl_model *part = open_part(folders[i], 0);
        int cut = part->cfg->cut;
        cr_expect_eq(part->ck->revision, revision, "%s", folders[i]);
        cr_expect_lt(part->ck->mapped, bytes, "%s: %zu bytes", folders[i], bytes);
        size_t now = mapped_of(file) - all;
        cr_expect(now >= part->ck->mapped && now < part->ck->mapped + (64 << 10),
                  /* whole pages of each file */ "%s: %zu bytes are mapped, not %zu", folders[i], now,
                  part->ck->mapped);
        cr_expect(!part->ck->head.data && !part->ck->norm && !part->ck->layers[cut].experts &&
                  part->ck->layers[cut].wkv.data);
        for (int l = cut + 1; l < part->cfg->n_layers; l++)
            cr_expect(!part->ck->layers[l].wq_a.data && !part->ck->layers[l].experts, "%s: layer %d", folders[i], l);
        check_same(part, whole, folders[i]);
        cr_log_info("%s: %zu of %zu bytes", folders[i], part->ck->mapped, bytes);
        mdl_model_close(part);
        mdl_model_close(whole);
    }
}

Test(checkpoint_part, files_of_the_other_layers_may_lack)
{
    struct cfg_error err;
    struct mdl_checkpoint *ck;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *dir = ts_encoder_only(folders[i]);
        struct mdl_model *whole = ts_model(folders[i], 1);
        cr_expect_eq(mdl_checkpoint_open(dir, &ck, &err), -EINVAL);
        cr_expect_eq(mdl_checkpoint_open_part(dir, MDL_PART_ENCODER, 0, &ck, &err), -EINVAL);
        cr_expect(strstr(err.msg, "model.revision"), "%s", err.msg);
        struct mdl_model *part = open_part(dir, whole->ck->revision);
        cr_expect_eq(part->ck->revision, whole->ck->revision);
        cr_expect(part->ck->revision_given && !whole->ck->revision_given);
        check_same(part, whole, dir);
        mdl_model_close(part);
        mdl_model_close(whole);
        ts_remove_dir(dir);
        free(dir);
    }
}

Test(checkpoint_part, a_whole_checkpoint_must_be_the_one_that_is_meant)
{
    struct cfg_error err;
    struct mdl_checkpoint *ck;
    for (int part = 0; part < 2; part++) {
        cr_expect_eq(mdl_checkpoint_open_part(TS_MINI8, (enum mdl_part)part, 0x1234, &ck, &err), -EINVAL);
        cr_expect(strstr(err.msg, "0000000000001234"), "%s", err.msg);
    }
}
