/* Text to token ids and back, as a Hugging Face tokenizer.json describes it: byte-level BPE.
 *
 * What is understood, and what is refused by name when the file asks for it:
 *   model          BPE with byte-level alphabet; merges as "a b" or ["a","b"]; ignore_merges. Refused: other models,
 *                  dropout, byte_fallback, prefixes and suffixes of subwords.
 *   normalizer     none (null or an empty Sequence). Refused: any other.
 *   pre_tokenizer  ByteLevel (add_prefix_space, use_regex), alone or last in a Sequence after any number of Split
 *                  (pattern Regex or String, behavior Isolated or Removed, invert). Refused: other kinds.
 *   added_tokens   matched on the raw text, leftmost first, then longest; those with normalized false before those
 *                  with normalized true. Refused: lstrip, rstrip, single_word.
 *   decoder        ByteLevel or none. post_processor is not applied: whoever writes a prompt writes its begin token.
 * Regular expressions mean what Oniguruma (which defines the format) takes them to mean, with the character properties
 * of Unicode 16; they are translated to PCRE2, and constructs on which the two differ are translated or refused.
 *
 * A tokenizer is immutable after load: any number of threads may share it. What a thread needs while it encodes lives
 * in its own struct mdl_tok_encoder. A struct mdl_tok_stream decodes one stream of ids.
 *
 * Invalid UTF-8 in text to encode is replaced by U+FFFD as model/utf8.h says; so the bytes of a valid text, and only
 * of a valid text, come back from decode unchanged. */
#ifndef WEFT_MODEL_TOKENIZER_H
#define WEFT_MODEL_TOKENIZER_H

#include "config/error.h"
#include "model/utf8.h"

struct mdl_tokenizer;
struct mdl_tok_encoder;

/* A growable list of ids; zeroed memory is an empty one. */
struct mdl_ids {
    int32_t *v;
    size_t n, cap;
};
void mdl_ids_free(struct mdl_ids *ids);
int mdl_ids_add(struct mdl_ids *ids, int32_t id); /* 0 or -ENOMEM */

/* Reads DIR/tokenizer.json. On failure *out is NULL. Errors: -errno of the file, -EINVAL (content: message names the
 * key), -ENOTSUP (a valid file that asks for something refused above), -ENOMEM. */
int mdl_tokenizer_load(const char *dir, struct mdl_tokenizer **out, struct cfg_error *err);
/* The same from memory; name is used in messages. */
int mdl_tokenizer_parse(const char *json, size_t len, const char *name, struct mdl_tokenizer **out,
                        struct cfg_error *err);
void mdl_tokenizer_free(struct mdl_tokenizer *tok);

/* Highest id + 1. A model's vocabulary may be larger (padding) but must not be smaller. */
int mdl_tokenizer_vocab_size(const struct mdl_tokenizer *tok);

/* The bytes of an id (not NUL-terminated, owned by the tokenizer); false when no token has this id. Bytes of one token
 * need not be valid UTF-8. An added token's bytes are its content as written in the file, unless it is typable. */
bool mdl_tokenizer_bytes(const struct mdl_tokenizer *tok, int32_t id, const char **bytes, size_t *n);
/* The id of the added token with this content, else of the token with these bytes, else -1. */
int32_t mdl_tokenizer_id(const struct mdl_tokenizer *tok, const char *bytes, size_t n);
/* The id of the added token with this content, or -1. */
int32_t mdl_tokenizer_added_id(const struct mdl_tokenizer *tok, const char *content);
/* Added: matched in raw text when MDL_ENCODE_ADDED is set. Special: an added token marked special in the file (hidden
 * by MDL_DECODE_SKIP_SPECIAL). Typable: an id that ordinary text can produce without MDL_ENCODE_ADDED; a marker that
 * must not be forged from user text must not be typable (files with typable special tokens are refused at load). */
bool mdl_tokenizer_is_added(const struct mdl_tokenizer *tok, int32_t id);
bool mdl_tokenizer_is_special(const struct mdl_tokenizer *tok, int32_t id);
bool mdl_tokenizer_is_typable(const struct mdl_tokenizer *tok, int32_t id);

/* Scratch memory and a cache of recent words for one thread, bound to tok, which must outlive it. About 1.5 MiB. The
 * cache changes speed, never ids. */
int mdl_tok_encoder_new(const struct mdl_tokenizer *tok, struct mdl_tok_encoder **out, struct cfg_error *err);
void mdl_tok_encoder_free(struct mdl_tok_encoder *enc);

enum {
    MDL_ENCODE_ADDED = 1, /* added tokens written in the text become their ids; without it they are plain text */
};

/* Appends the ids of len bytes of text to *out. Linear in len up to a logarithm, also for one endless word.
 * Errors: -EFBIG (more than 1 GiB), -ENOMEM, -EINVAL (a split pattern exceeded its matching limit on this text); *out
 * then has its former length. */
int mdl_tok_encode(struct mdl_tok_encoder *enc, const char *text, size_t len, unsigned flags, struct mdl_ids *out,
                   struct cfg_error *err);

enum {
    MDL_DECODE_SKIP_SPECIAL = 1, /* special tokens yield no text */
};

/* One stream of ids to text. Plain memory, nothing to free; tok must outlive it. */
struct mdl_tok_stream {
    const struct mdl_tokenizer *tok;
    unsigned flags;
    struct mdl_utf8 utf8;
};
void mdl_tok_stream_init(struct mdl_tok_stream *s, const struct mdl_tokenizer *tok, unsigned flags);
/* Appends the text that id completes. Always whole characters: bytes that may still become one are held back, bytes
 * that cannot any more become U+FFFD at once. An id without a token yields nothing. 0 or -ENOMEM. */
int mdl_tok_stream_push(struct mdl_tok_stream *s, int32_t id, struct mdl_text *out);
/* The end: an unfinished character becomes U+FFFD. The stream may be used again. */
int mdl_tok_stream_end(struct mdl_tok_stream *s, struct mdl_text *out);

/* The text of n ids: a stream pushed and ended. */
int mdl_tok_decode(const struct mdl_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags, struct mdl_text *out);

#endif
