/* Any bytes as tokenizer.json: refused with a message, or a tokenizer that encodes and gives the text back. The text is
 * the end of the input itself, with a few added tokens of the file. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 200 };

static void require(int ok)
{
    if (!ok)
        __builtin_trap();
}

/* An added token that plain text can also produce is written one way and decodes to what the plain text is. */
static int has_typable_added(const struct mdl_tokenizer *tok)
{
    for (int32_t id = 0; id < mdl_tokenizer_vocab_size(tok); id++)
        if (mdl_tokenizer_is_added(tok, id) && mdl_tokenizer_is_typable(tok, id))
            return 1;
    return 0;
}

static void make_text(const struct mdl_tokenizer *tok, const uint8_t *data, size_t size, struct mdl_text *text)
{
    size_t n = size < MAX_TEXT ? size : MAX_TEXT;
    mdl_text_add(text, data + size - n, n);
    for (int32_t id = mdl_tokenizer_vocab_size(tok) - 1, left = 4; id >= 0 && left; id--) {
        const char *bytes;
        if (mdl_tokenizer_is_added(tok, id) && mdl_tokenizer_bytes(tok, id, &bytes, &n)) {
            mdl_text_add(text, bytes, n);
            left--;
        }
    }
}

/* Steps that drop text (Removed) or put a space first change it; otherwise decoding gives the repaired text back. */
static void check(const struct mdl_tokenizer *tok, const struct mdl_text *text, unsigned flags, int unchanged)
{
    struct mdl_tok_encoder *enc;
    struct mdl_ids ids = {0};
    struct mdl_text back = {0}, want = {0};
    struct cfg_error err = {{0}};
    require(mdl_tok_encoder_new(tok, &enc, &err) == 0);
    if (mdl_tok_encode(enc, text->s, text->n, flags, &ids, &err)) {
        require(err.msg[0] && ids.n == 0);
    } else {
        for (size_t i = 0; i < ids.n; i++)
            require(ids.v[i] >= 0 && ids.v[i] < mdl_tokenizer_vocab_size(tok) &&
                    (flags || mdl_tokenizer_is_typable(tok, ids.v[i])));
        require(mdl_tok_decode(tok, ids.v, ids.n, 0, &back) == 0 && mdl_utf8_valid(back.s ? back.s : "", back.n));
        mdl_utf8_repair(text->s, text->n, &want);
        require(!unchanged || (back.n == want.n && (want.n == 0 || memcmp(back.s, want.s, want.n) == 0)));
    }
    mdl_text_free(&back);
    mdl_text_free(&want);
    mdl_ids_free(&ids);
    mdl_tok_encoder_free(enc);
}

static int mentions(const uint8_t *data, size_t size, const char *word)
{
    return memmem(data, size, word, strlen(word)) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mdl_tokenizer *tok;
    struct cfg_error err = {{0}};
    if (mdl_tokenizer_parse((const char *)data, size, "fuzz", &tok, &err)) {
        require(tok == NULL && err.msg[0] != 0);
        return 0;
    }
    struct mdl_text text = {0};
    make_text(tok, data, size, &text);
    /* escapes could hide the words, so they count as mentions */
    int unchanged = !mentions(data, size, "Removed") && !mentions(data, size, "\\u") &&
                    mentions(data, size, "\"add_prefix_space\":false");
    check(tok, &text, 0, unchanged);
    check(tok, &text, MDL_ENCODE_ADDED, unchanged && !has_typable_added(tok));
    mdl_text_free(&text);
    mdl_tokenizer_free(tok);
    return 0;
}
