#include "actors/gateway/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

struct gw_trace {
    char *path;
    FILE *f;
    uint64_t salt;
    int64_t first; /* ns; 0: nothing yet */
    int block_tokens;
    size_t block_bytes;
};

int gw_trace_open(const char *path, int block_tokens, size_t block_bytes, struct gw_trace **out, struct cfg_error *err)
{
    struct gw_trace *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return cfg_error_set(err, ENOMEM, "trace: out of memory");
    *t = (struct gw_trace){
        .path = strdup(path), .f = fopen(path, "ae"), .block_tokens = block_tokens, .block_bytes = block_bytes};
    if (!t->f || !t->path) {
        int e = t->f ? ENOMEM : errno;
        gw_trace_free(t);
        return cfg_error_set(err, e, "%s: %s; log.trace names a file that can be written", path, strerror(e));
    }
    while (getrandom(&t->salt, sizeof t->salt, 0) != (ssize_t)sizeof t->salt)
        ;
    *out = t;
    return 0;
}

void gw_trace_add(struct gw_trace *t, int64_t now_ns, int prompt, int output, const struct kv_key *chain, int n_chain)
{
    if (!t)
        return;
    t->first = t->first ? t->first : now_ns;
    fprintf(t->f, "{\"t\":%.6f,\"prompt\":%d,\"output\":%d,\"block_tokens\":%d,\"block_bytes\":%zu,\"blocks\":[",
            1e-9 * (double)(now_ns - t->first), prompt, output, t->block_tokens, t->block_bytes);
    for (int i = 1; i < n_chain && i * t->block_tokens <= prompt; i++)
        fprintf(t->f, "%s\"%016" PRIx64 "\"", i > 1 ? "," : "",
                XXH3_64bits_withSeed(&chain[i], sizeof chain[i], t->salt));
    fputs("]}\n", t->f);
    fflush(t->f); /* into the page cache: whoever ends the process does not cut a line */
}

int gw_trace_reopen(struct gw_trace *t, struct cfg_error *err)
{
    FILE *f = t ? fopen(t->path, "ae") : NULL;
    if (!t)
        return 0;
    if (!f)
        return cfg_error_set(err, errno, "%s: %s; the trace goes on in the file that was open", t->path,
                             strerror(errno));
    fclose(t->f);
    t->f = f;
    return 0;
}

void gw_trace_free(struct gw_trace *t)
{
    if (!t)
        return;
    if (t->f)
        fclose(t->f);
    free(t->path);
    free(t);
}
