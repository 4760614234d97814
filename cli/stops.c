#define _GNU_SOURCE
#include "cli/stops.h"

#include <string.h>

int cli_stops_init(struct cli_stops *s, const char *const *stop, int n)
{
    *s = (struct cli_stops){.stop = stop, .n = n};
    for (int i = 0; i < n; i++)
        s->longest = strlen(stop[i]) > s->longest ? strlen(stop[i]) : s->longest;
    return 0;
}

void cli_stops_free(struct cli_stops *s)
{
    mdl_text_free(&s->text);
}

/* Where the first stop string begins at or behind `from`; n when there is none. */
static size_t find_stop(const struct cli_stops *s, size_t from)
{
    size_t first = s->text.n;
    for (int i = 0; i < s->n; i++) {
        size_t len = strlen(s->stop[i]);
        const char *at = len ? memmem(s->text.s + from, s->text.n - from, s->stop[i], len) : NULL;
        if (at && (size_t)(at - s->text.s) < first)
            first = (size_t)(at - s->text.s);
    }
    return first;
}

/* Bytes at the end that could be the beginning of a stop string. */
static size_t open_tail(const struct cli_stops *s)
{
    size_t most = s->longest ? s->longest - 1 : 0;
    if (most > s->text.n - s->done)
        most = s->text.n - s->done;
    for (size_t k = most; k > 0; k--)
        for (int i = 0; i < s->n; i++)
            if (strlen(s->stop[i]) > k && !memcmp(s->text.s + s->text.n - k, s->stop[i], k))
                return k;
    return 0;
}

int cli_stops_push(struct cli_stops *s, const char *piece, size_t len)
{
    if (s->hit || !len)
        return 0;
    int r = mdl_text_add(&s->text, piece, len);
    if (r)
        return r;
    size_t at = find_stop(s, s->done);
    s->hit = at < s->text.n;
    s->done = s->hit ? at : s->text.n - open_tail(s);
    return 0;
}

void cli_stops_end(struct cli_stops *s)
{
    if (!s->hit)
        s->done = s->text.n;
}

void cli_stops_print(struct cli_stops *s, FILE *to)
{
    if (s->done > s->printed)
        fwrite(s->text.s + s->printed, 1, s->done - s->printed, to);
    s->printed = s->done;
}
