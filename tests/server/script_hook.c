/* Linked into a second weft program for tests (--wrap=dec_pick): what the network says is overruled, so that the
 * engine, the sampler and the gateway work on chosen tokens. $WEFT_SCRIPT names a file with one token id a line, read
 * again when a sequence gives its first token; behind the last line comes the end of text. A negative
 * number is the error with which the step fails there. A line "!ID" makes the
 * drafter guess something else at that place, so that the step ends with it. One sequence at a time. */
#include <stdio.h>
#include <stdlib.h>

#include "actors/decode_impl.h"

enum { SCRIPT_MAX = 4096 };

mdl_pick_fn __real_dec_pick, __wrap_dec_pick;

static int32_t script[SCRIPT_MAX];
static bool wrong_guess[SCRIPT_MAX];
static int n_script;

static void read_script(void)
{
    const char *path = getenv("WEFT_SCRIPT");
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[64];
    n_script = 0;
    while (f && n_script < SCRIPT_MAX && fgets(line, sizeof line, f)) {
        wrong_guess[n_script] = line[0] == '!';
        script[n_script++] = atoi(line + (line[0] == '!'));
    }
    if (f)
        fclose(f);
}

int32_t __wrap_dec_pick(void *ctx, int pos, float *logits, bool draft)
{
    struct dec_stream *s = ctx;
    int at = pos - s->recipe.n_ids, vocab = s->owner->e->vocab;
    float top = logits[0];
    if (at == 0 && !draft)
        read_script();
    int32_t id = at >= 0 && at < n_script ? script[at] : s->owner->e->m->cfg->eos_id;
    if (id < 0 && !draft)
        return id;
    if (id < 0)
        id = s->owner->e->m->cfg->eos_id;
    if (draft && at >= 0 && at < n_script && wrong_guess[at])
        id = (id + 1) % vocab;
    for (int i = 1; i < vocab; i++)
        top = logits[i] > top ? logits[i] : top;
    logits[id] = top + 20;
    return __real_dec_pick(ctx, pos, logits, draft);
}
