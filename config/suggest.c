/* Implementation of config/suggest.h: edit distance with neighbouring swaps. */
#include "config/suggest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { WORD_MAX = 64 }; /* longer words get no suggestion */

static bool same_char(char a, char b)
{
    if (a == '_')
        a = '-';
    if (b == '_')
        b = '-';
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Insertions, deletions, replacements and swaps of neighbours that lead from a to b. Both at most WORD_MAX long. */
static int distance(const char *a, int na, const char *b, int nb)
{
    int rows[3][WORD_MAX + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= nb; j++)
        last[j] = j;
    for (int i = 1; i <= na; i++) {
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            bool same = same_char(a[i - 1], b[j - 1]);
            row[j] = min3(last[j] + 1, row[j - 1] + 1, last[j - 1] + !same);
            if (i > 1 && j > 1 && same_char(a[i - 1], b[j - 2]) && same_char(a[i - 2], b[j - 1]))
                row[j] = min3(row[j], before[j - 2] + 1, row[j]);
        }
        int *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[nb];
}

const char *cfg_suggest(const char *word, const char *const *words, size_t count)
{
    size_t len = strlen(word);
    if (len == 0 || len > WORD_MAX)
        return NULL;
    const char *best = NULL;
    int limit = (int)len / 3 > 1 ? (int)len / 3 + 1 : 2; /* first distance that is too far */
    if (len <= 2)
        limit = 1;
    for (size_t i = 0; i < count; i++) {
        size_t n = words[i] ? strlen(words[i]) : 0;
        if (n == 0 || n > WORD_MAX)
            continue;
        int d = distance(word, (int)len, words[i], (int)n);
        if (d < limit) {
            limit = d;
            best = words[i];
        }
    }
    return best;
}
