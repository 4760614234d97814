/* A checkpoint without what a node does not need that computes prompts up to the bridge only. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"
#include "tests/support/model.h"
#include "tests/support/process.h"

struct part {
    struct mdl_st_writer *w;
    int cut;
};

static bool is_needed(const char *name, int cut)
{
    int layer = -1;
    if (sscanf(name, "layers.%d.", &layer) == 1)
        return layer < cut || (layer == cut && !strstr(name, ".ffn.experts."));
    return strncmp(name, "mtp.", 4) && strncmp(name, "head.", 5) && strncmp(name, "norm.", 5);
}

static int keep(void *arg, const struct mdl_tensor *t)
{
    struct part *p = arg;
    if (is_needed(t->name, p->cut))
        cr_assert_eq(mdl_st_writer_add(p->w, t->name, t->dtype, t->ndim, t->shape, t->data), 0, "%s", t->name);
    return 0;
}

char *ts_encoder_only(const char *dir)
{
    struct cfg_error err;
    struct mdl_checkpoint *ck;
    char path[4300], here[4096], *to = ts_temp_dir();
    cr_assert(to && getcwd(here, sizeof here));
    cr_assert_eq(mdl_checkpoint_open(dir, &ck, &err), 0, "%s", err.msg);
    struct part p = {mdl_st_writer_new(), ck->config.cut};
    cr_assert_eq(mdl_checkpoint_each(ck, keep, &p), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    cr_assert_eq(mdl_st_writer_save(p.w, path, &err), 0, "%s", err.msg);
    mdl_st_writer_free(p.w);
    mdl_checkpoint_close(ck);
    DIR *d = opendir(dir);
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (*e->d_name == '.' || strstr(e->d_name, "model.safetensors"))
            continue;
        char *from, *link;
        cr_assert(asprintf(&from, "%s/%s/%s", here, dir, e->d_name) > 0 && asprintf(&link, "%s/%s", to, e->d_name) > 0);
        cr_assert_eq(symlink(from, link), 0);
        free(from);
        free(link);
    }
    closedir(d);
    return to;
}
