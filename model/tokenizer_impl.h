/* Inside of the tokenizer; for model/tokenizer*.c only. */
#ifndef WEFT_MODEL_TOKENIZER_IMPL_H
#define WEFT_MODEL_TOKENIZER_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/tokenizer.h"

enum { TOK_MAX_STAGES = 32, TOK_MAX_IDS = 1 << 22 };

enum tok_stage_kind {
    TOK_SPLIT,        /* pieces are the matches and what lies between them */
    TOK_PREFIX_SPACE, /* a piece that does not begin with a space gets one */
};

struct tok_stage {
    enum tok_stage_kind kind;
    pcre2_code *code;
    bool drop_match, drop_gap; /* behaviour Removed, and Removed with invert */
};

enum { TOK_PRESENT = 1, TOK_ADDED = 2, TOK_SPECIAL = 4, TOK_TYPABLE = 8 };

struct tok_token {
    uint32_t off, len; /* in the pool */
    uint32_t flags;
};

/* A merge: the pair of ids is the key; slots with key TOK_NO_PAIR are empty. */
#define TOK_NO_PAIR UINT64_MAX
struct tok_merge {
    uint64_t pair;
    uint32_t rank, id;
};

/* A byte trie over added tokens: node 0 is the root; children of a node are a list. */
struct tok_trie_node {
    int32_t child, sibling; /* 0: none */
    int32_t id;             /* token that ends here, -1: none */
    uint8_t byte;
};
struct tok_trie {
    struct tok_trie_node *node;
    size_t n, cap;
    bool first[256]; /* bytes with which some token begins */
};

struct mdl_tokenizer {
    int n_ids;
    struct tok_token *token; /* [n_ids] */
    struct mdl_text pool;
    int32_t byte_id[256];    /* -1: a byte that valid UTF-8 has not and the vocabulary neither */
    struct tok_merge *merge; /* open addressing, power of two */
    uint32_t merge_mask;
    uint32_t *by_bytes; /* id + 1 of vocabulary tokens by their bytes, open addressing; 0: empty */
    uint32_t by_bytes_mask;
    bool ignore_merges;
    int n_stages;
    struct tok_stage stage[TOK_MAX_STAGES];
    struct tok_trie raw, normalized; /* added tokens by their flag; the first is matched first */
};

/* Compiles a split pattern. Errors name what is refused and where. */
int tok_pattern_compile(const char *pattern, size_t len, bool literal, pcre2_code **out, struct cfg_error *err);

static inline uint32_t tok_pair_hash(uint64_t pair)
{
    pair *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(pair >> 32) ^ (uint32_t)(pair >> 7);
}

static inline const struct tok_merge *tok_merge_find(const struct mdl_tokenizer *t, int32_t a, int32_t b)
{
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    for (uint32_t i = tok_pair_hash(pair) & t->merge_mask;; i = (i + 1) & t->merge_mask) {
        if (t->merge[i].pair == pair)
            return &t->merge[i];
        if (t->merge[i].pair == TOK_NO_PAIR)
            return NULL;
    }
}

/* The vocabulary (not added) token with these bytes, or -1. */
int32_t tok_find_bytes(const struct mdl_tokenizer *t, const char *bytes, size_t n);

/* Longest token of the trie that begins at s; *len is its length. -1: none. */
int32_t tok_trie_match(const struct tok_trie *t, const char *s, size_t n, size_t *len);

#endif
