/* tokenizer.json to the tables of struct mdl_tokenizer. Everything in the file is checked before use. */
#include "model/tokenizer_impl.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_FILE = 256 << 20 };

/* The byte-level alphabet: printable bytes of Latin-1 stand for themselves, the others are numbered from U+0100. */
struct alphabet {
    int16_t byte_of[512]; /* -1: not in the alphabet */
    uint16_t char_of[256];
};

static void alphabet_init(struct alphabet *a)
{
    int next = 256;
    memset(a->byte_of, 0xff, sizeof a->byte_of);
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        int c = plain ? b : next++;
        a->byte_of[c] = (int16_t)b;
        a->char_of[b] = (uint16_t)c;
    }
}

struct loader {
    struct mdl_tokenizer *t;
    struct alphabet abc;
    const json_t *vocab;
    struct cfg_error *err;
};

static int nomem(struct loader *l)
{
    return cfg_error_set(l->err, ENOMEM, "out of memory");
}

static const char *type_of(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    return s ? s : "(no type)";
}

/* key absent, null or false: false. */
static int get_flag(struct loader *l, const json_t *o, const char *where, const char *key, bool dflt, bool *out)
{
    const json_t *v = json_object_get(o, key);
    *out = dflt;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return cfg_error_set(l->err, EINVAL, "%s.%s must be true or false", where, key);
    *out = json_is_true(v);
    return 0;
}

static int get_id(struct loader *l, const json_t *v, const char *what, int32_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOK_MAX_IDS)
        return cfg_error_set(l->err, EINVAL, "%s must be an id from 0 to %d", what, TOK_MAX_IDS - 1);
    *out = (int32_t)json_integer_value(v);
    return 0;
}

/* Bytes of a vocabulary string. One with a character outside the alphabet is its own UTF-8 and cannot be typed. */
static int add_token_bytes(struct loader *l, const char *s, size_t n, struct tok_token *out)
{
    struct mdl_tokenizer *t = l->t;
    size_t off = t->pool.n;
    bool mapped = true;
    for (size_t i = 0; i < n && mapped;) {
        uint32_t cp;
        i += (size_t)mdl_utf8_get(s + i, &cp);
        mapped = cp < 512 && l->abc.byte_of[cp] >= 0;
        char byte = mapped ? (char)l->abc.byte_of[cp] : 0;
        if (mapped && mdl_text_add(&t->pool, &byte, 1))
            return nomem(l);
    }
    if (!mapped) {
        t->pool.n = off;
        if (mdl_text_add(&t->pool, s, n))
            return nomem(l);
    }
    if (t->pool.n > UINT32_MAX)
        return cfg_error_set(l->err, EINVAL, "the tokens together are longer than 4 GiB");
    *out = (struct tok_token){(uint32_t)off, (uint32_t)(t->pool.n - off), TOK_PRESENT | (mapped ? TOK_TYPABLE : 0)};
    return 0;
}

/* Highest id of vocabulary and added tokens decides the size of the table. */
static int size_table(struct loader *l, const json_t *added)
{
    int32_t top = -1, id = 0;
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)l->vocab, key, v) {
        if (get_id(l, v, "model.vocab: each value", &id))
            return -EINVAL;
        top = id > top ? id : top;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        if (get_id(l, json_object_get(json_array_get(added, i), "id"), "added_tokens: each id", &id))
            return -EINVAL;
        top = id > top ? id : top;
    }
    l->t->n_ids = top + 1;
    l->t->token = calloc((size_t)top + 1, sizeof *l->t->token);
    return l->t->token ? 0 : nomem(l);
}

static int load_vocab(struct loader *l)
{
    struct mdl_tokenizer *t = l->t;
    size_t count = json_object_size(l->vocab), slots = 16;
    while (slots < count * 2)
        slots *= 2;
    t->by_bytes = calloc(slots, sizeof *t->by_bytes);
    if (!t->by_bytes)
        return nomem(l);
    t->by_bytes_mask = (uint32_t)(slots - 1);
    const char *key;
    size_t len;
    json_t *v;
    json_object_keylen_foreach ((json_t *)l->vocab, key, len, v) {
        int32_t id = (int32_t)json_integer_value(v);
        struct tok_token *tk = &t->token[id];
        if (tk->flags)
            return cfg_error_set(l->err, EINVAL, "model.vocab: two tokens have id %d, one of them \"%s\"", id, key);
        int rc = add_token_bytes(l, key, len, tk);
        if (rc)
            return rc;
        if (!(tk->flags & TOK_TYPABLE))
            continue;
        uint32_t h = (uint32_t)XXH3_64bits(t->pool.s + tk->off, tk->len) & t->by_bytes_mask;
        while (t->by_bytes[h])
            h = (h + 1) & t->by_bytes_mask;
        t->by_bytes[h] = (uint32_t)id + 1;
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_id[b] = tok_find_bytes(t, &byte, 1);
        bool in_utf8 = b != 0xc0 && b != 0xc1 && b < 0xf5;
        if (t->byte_id[b] < 0 && in_utf8)
            return cfg_error_set(l->err, EINVAL,
                                 "model.vocab has no token for byte 0x%02x (U+%04X in the byte-level "
                                 "alphabet); a byte-level vocabulary has all of them",
                                 b, l->abc.char_of[b]);
    }
    /* So far every mapped token counts as typable; from here on only those that bytes and merges can build. */
    for (int i = 0; i < t->n_ids; i++)
        if (!t->ignore_merges)
            t->token[i].flags &= ~(uint32_t)TOK_TYPABLE;
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] >= 0)
            t->token[t->byte_id[b]].flags |= TOK_TYPABLE;
    return 0;
}

static int vocab_id(struct loader *l, const char *s, size_t n, int32_t *id)
{
    const json_t *v = json_object_getn(l->vocab, s, n);
    if (!v)
        return -ENOENT;
    *id = (int32_t)json_integer_value(v);
    return 0;
}

static int merge_parts(struct loader *l, const json_t *m, size_t i, const char *part[2], size_t len[2])
{
    if (json_is_string(m)) {
        const char *s = json_string_value(m), *space = strchr(s, ' ');
        size_t n = json_string_length(m);
        if (space && !strchr(space + 1, ' ')) {
            part[0] = s;
            len[0] = (size_t)(space - s);
            part[1] = space + 1;
            len[1] = n - len[0] - 1;
            return 0;
        }
    } else if (json_array_size(m) == 2 && json_is_string(json_array_get(m, 0)) &&
               json_is_string(json_array_get(m, 1))) {
        for (size_t k = 0; k < 2; k++) {
            part[k] = json_string_value(json_array_get(m, k));
            len[k] = json_string_length(json_array_get(m, k));
        }
        return 0;
    }
    return cfg_error_set(l->err, EINVAL, "model.merges[%zu] must be \"a b\" or [\"a\", \"b\"]", i);
}

static void put_merge(struct mdl_tokenizer *t, int32_t a, int32_t b, uint32_t rank, int32_t id)
{
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    uint32_t h = tok_pair_hash(pair) & t->merge_mask;
    while (t->merge[h].pair != TOK_NO_PAIR && t->merge[h].pair != pair)
        h = (h + 1) & t->merge_mask;
    t->merge[h] = (struct tok_merge){pair, rank, (uint32_t)id}; /* of a pair named twice the later rank counts */
}

static int load_merges(struct loader *l, const json_t *merges)
{
    struct mdl_tokenizer *t = l->t;
    size_t count = json_array_size(merges), slots = 16;
    if (count > TOK_MAX_IDS)
        return cfg_error_set(l->err, EINVAL, "model.merges has %zu entries; at most %d are allowed", count,
                             TOK_MAX_IDS);
    while (slots < count * 2)
        slots *= 2;
    t->merge = malloc(slots * sizeof *t->merge);
    if (!t->merge)
        return nomem(l);
    t->merge_mask = (uint32_t)(slots - 1);
    for (size_t i = 0; i < slots; i++)
        t->merge[i].pair = TOK_NO_PAIR;
    struct mdl_text joined = {0};
    int rc = 0;
    for (size_t i = 0; i < count && !rc; i++) {
        const char *part[2] = {0};
        size_t len[2] = {0};
        int32_t id[3];
        rc = merge_parts(l, json_array_get(merges, i), i, part, len);
        if (rc)
            break;
        joined.n = 0;
        if (mdl_text_add(&joined, part[0], len[0]) || mdl_text_add(&joined, part[1], len[1])) {
            rc = nomem(l);
        } else if (vocab_id(l, part[0], len[0], &id[0]) || vocab_id(l, part[1], len[1], &id[1]) ||
                   vocab_id(l, joined.s, joined.n, &id[2])) {
            rc = cfg_error_set(l->err, EINVAL,
                               "model.merges[%zu] joins \"%.*s\" and \"%.*s\"; both and their joined form "
                               "must be in model.vocab",
                               i, (int)len[0], part[0], (int)len[1], part[1]);
        } else {
            put_merge(t, id[0], id[1], (uint32_t)i, id[2]);
            t->token[id[2]].flags |= TOK_TYPABLE;
        }
    }
    mdl_text_free(&joined);
    return rc;
}

static int load_model(struct loader *l, const json_t *model, const json_t *added)
{
    static const char *const absent[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool byte_fallback;
    if (!json_is_object(model))
        return cfg_error_set(l->err, EINVAL, "model must be an object");
    if (strcmp(type_of(model), "BPE") != 0)
        return cfg_error_set(l->err, ENOTSUP, "model.type is %s; only BPE is supported", type_of(model));
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return cfg_error_set(l->err, ENOTSUP, "model.dropout is not supported");
    for (size_t i = 0; i < 2; i++)
        if (json_string_length(json_object_get(model, absent[i])))
            return cfg_error_set(l->err, ENOTSUP, "model.%s is not supported", absent[i]);
    if (get_flag(l, model, "model", "byte_fallback", false, &byte_fallback) ||
        get_flag(l, model, "model", "ignore_merges", false, &l->t->ignore_merges))
        return -EINVAL;
    if (byte_fallback)
        return cfg_error_set(l->err, ENOTSUP, "model.byte_fallback is not supported");
    l->vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_object(l->vocab) || !json_is_array(merges))
        return cfg_error_set(l->err, EINVAL, "model.vocab must be an object and model.merges a list");
    int rc = size_table(l, added);
    if (!rc)
        rc = load_vocab(l);
    if (!rc)
        rc = load_merges(l, merges);
    return rc;
}

static int trie_add(struct loader *l, struct tok_trie *t, const char *s, size_t n, int32_t id)
{
    size_t at = 0;
    t->first[(uint8_t)s[0]] = true;
    for (size_t i = 0; i < n; i++) {
        int32_t c = t->node[at].child;
        while (c && t->node[c].byte != (uint8_t)s[i])
            c = t->node[c].sibling;
        if (!c) {
            if (t->n == t->cap) {
                struct tok_trie_node *grown = realloc(t->node, t->cap * 2 * sizeof *grown);
                if (!grown)
                    return nomem(l);
                t->node = grown;
                t->cap *= 2;
            }
            c = (int32_t)t->n++;
            t->node[c] = (struct tok_trie_node){0, t->node[at].child, -1, (uint8_t)s[i]};
            t->node[at].child = c;
        }
        at = (size_t)c;
    }
    t->node[at].id = id;
    return 0;
}

static int trie_init(struct loader *l, struct tok_trie *t)
{
    t->cap = 256;
    t->node = malloc(t->cap * sizeof *t->node);
    if (!t->node)
        return nomem(l);
    t->node[0] = (struct tok_trie_node){0, 0, -1, 0};
    t->n = 1;
    return 0;
}

static int load_added_one(struct loader *l, const json_t *a, size_t i)
{
    static const char *const refused[] = {"lstrip", "rstrip", "single_word"};
    struct mdl_tokenizer *t = l->t;
    const json_t *content = json_object_get(a, "content");
    const char *s = json_string_value(content);
    size_t n = json_string_length(content), len;
    char where[40];
    snprintf(where, sizeof where, "added_tokens[%zu]", i);
    if (!s || n == 0 || n > 1024)
        return cfg_error_set(l->err, EINVAL, "%s.content must be a text of 1 to 1024 bytes", where);
    int32_t id = (int32_t)json_integer_value(json_object_get(a, "id")), known;
    for (size_t k = 0; k < 3; k++) {
        bool set;
        if (get_flag(l, a, where, refused[k], false, &set))
            return -EINVAL;
        if (set)
            return cfg_error_set(l->err, ENOTSUP, "%s (\"%s\") has %s, which is not supported", where, s, refused[k]);
    }
    bool special, normalized;
    if (get_flag(l, a, where, "special", false, &special) || get_flag(l, a, where, "normalized", !special, &normalized))
        return -EINVAL;
    if (vocab_id(l, s, n, &known) == 0 ? known != id : t->token[id].flags != 0)
        return cfg_error_set(l->err, EINVAL,
                             "%s (\"%s\") has id %d, which belongs to another token or differs from its id "
                             "in model.vocab",
                             where, s, id);
    for (int k = 0; k < 2; k++) {
        int32_t same = tok_trie_match(k ? &t->raw : &t->normalized, s, n, &len);
        if (same >= 0 && len == n)
            return cfg_error_set(l->err, EINVAL, "%s: \"%s\" is listed twice", where, s);
    }
    struct tok_token *tk = &t->token[id];
    if (special && (tk->flags & TOK_TYPABLE))
        return cfg_error_set(l->err, ENOTSUP,
                             "%s: special token \"%s\" can also be built by merges, so plain text could "
                             "forge it; such a file is not accepted",
                             where, s);
    if (!(tk->flags & TOK_TYPABLE)) { /* plain text that yields the id must get its own bytes back */
        if (mdl_text_add(&t->pool, s, n))
            return nomem(l);
        if (t->pool.n > UINT32_MAX)
            return cfg_error_set(l->err, EINVAL, "the tokens together are longer than 4 GiB");
        tk->off = (uint32_t)(t->pool.n - n);
        tk->len = (uint32_t)n;
    }
    tk->flags |= TOK_PRESENT | TOK_ADDED | (special ? TOK_SPECIAL : 0);
    return trie_add(l, normalized ? &t->normalized : &t->raw, s, n, id);
}

static int load_added(struct loader *l, const json_t *added)
{
    int rc = trie_init(l, &l->t->raw);
    if (!rc)
        rc = trie_init(l, &l->t->normalized);
    for (size_t i = 0; i < json_array_size(added) && !rc; i++)
        rc = load_added_one(l, json_array_get(added, i), i);
    return rc;
}

/* NULL, with the message set: too many steps. */
static struct tok_stage *new_stage(struct loader *l, enum tok_stage_kind kind)
{
    struct mdl_tokenizer *t = l->t;
    if (t->n_stages == TOK_MAX_STAGES) {
        cfg_error_set(l->err, ENOTSUP, "pre_tokenizer has more than %d steps", TOK_MAX_STAGES);
        return NULL;
    }
    struct tok_stage *st = &t->stage[t->n_stages++];
    st->kind = kind;
    return st;
}

static int load_split(struct loader *l, const json_t *o, const char *where)
{
    const json_t *pattern = json_object_get(o, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *literal = json_object_get(pattern, "String");
    const char *behavior = json_string_value(json_object_get(o, "behavior"));
    bool invert;
    if (json_is_string(regex) == json_is_string(literal))
        return cfg_error_set(l->err, EINVAL, "%s.pattern must be {\"Regex\": text} or {\"String\": text}", where);
    if (!behavior || (strcmp(behavior, "Isolated") && strcmp(behavior, "Removed")))
        return cfg_error_set(l->err, ENOTSUP, "%s.behavior is %s; only Isolated and Removed are supported", where,
                             behavior ? behavior : "missing");
    if (get_flag(l, o, where, "invert", false, &invert))
        return -EINVAL;
    struct tok_stage *st = new_stage(l, TOK_SPLIT);
    if (!st)
        return -ENOTSUP;
    st->drop_match = strcmp(behavior, "Removed") == 0 && !invert;
    st->drop_gap = strcmp(behavior, "Removed") == 0 && invert;
    const json_t *text = json_is_string(regex) ? regex : literal;
    int rc = tok_pattern_compile(json_string_value(text), json_string_length(text), text == literal, &st->code, l->err);
    return rc ? cfg_error_prefix(l->err, rc, "%s.pattern", where) : 0;
}

static int load_byte_level(struct loader *l, const json_t *o, const char *where)
{
    /* GPT-2's pattern, which use_regex stands for */
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    bool prefix, regex;
    if (get_flag(l, o, where, "add_prefix_space", true, &prefix) || get_flag(l, o, where, "use_regex", true, &regex))
        return -EINVAL;
    if (prefix && !new_stage(l, TOK_PREFIX_SPACE))
        return -ENOTSUP;
    if (!regex)
        return 0;
    struct tok_stage *st = new_stage(l, TOK_SPLIT);
    return st ? tok_pattern_compile(gpt2, sizeof gpt2 - 1, false, &st->code, l->err) : -ENOTSUP;
}

static int load_pre_tokenizer(struct loader *l, const json_t *o)
{
    bool sequence = strcmp(type_of(o), "Sequence") == 0;
    const json_t *list = json_object_get(o, "pretokenizers");
    size_t n = sequence ? json_array_size(list) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *step = sequence ? json_array_get(list, i) : o;
        char where[64] = "pre_tokenizer";
        if (sequence)
            snprintf(where, sizeof where, "pre_tokenizer.pretokenizers[%zu]", i);
        bool byte_level = strcmp(type_of(step), "ByteLevel") == 0;
        if (!byte_level && strcmp(type_of(step), "Split") != 0)
            return cfg_error_set(l->err, ENOTSUP, "%s is %s; only Split and ByteLevel are supported", where,
                                 type_of(step));
        if (byte_level != (i + 1 == n))
            return cfg_error_set(l->err, ENOTSUP, "%s: ByteLevel must be the last step, and there must be one", where);
        int rc = byte_level ? load_byte_level(l, step, where) : load_split(l, step, where);
        if (rc)
            return rc;
    }
    return n ? 0 : cfg_error_set(l->err, ENOTSUP, "pre_tokenizer must be ByteLevel or end with it");
}

static int load_root(struct loader *l, const json_t *root)
{
    const json_t *added = json_object_get(root, "added_tokens"), *norm = json_object_get(root, "normalizer");
    const json_t *decoder = json_object_get(root, "decoder");
    if (!json_is_object(root))
        return cfg_error_set(l->err, EINVAL, "a JSON object was expected");
    if (added && !json_is_array(added) && !json_is_null(added))
        return cfg_error_set(l->err, EINVAL, "added_tokens must be a list");
    bool no_norm =
        !norm || json_is_null(norm) ||
        (strcmp(type_of(norm), "Sequence") == 0 && json_array_size(json_object_get(norm, "normalizers")) == 0);
    if (!no_norm)
        return cfg_error_set(l->err, ENOTSUP, "normalizer %s is not supported", type_of(norm));
    if (decoder && !json_is_null(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0)
        return cfg_error_set(l->err, ENOTSUP, "decoder %s is not supported; only ByteLevel is", type_of(decoder));
    int rc = load_model(l, json_object_get(root, "model"), added);
    if (!rc)
        rc = load_added(l, added);
    if (!rc)
        rc = load_pre_tokenizer(l, json_object_get(root, "pre_tokenizer"));
    return rc;
}

int mdl_tokenizer_parse(const char *json, size_t len, const char *name, struct mdl_tokenizer **out,
                        struct cfg_error *err)
{
    struct loader l = {.err = err, .t = calloc(1, sizeof *l.t)};
    json_error_t je;
    *out = NULL;
    if (!l.t)
        return nomem(&l);
    alphabet_init(&l.abc);
    if (mdl_text_add(&l.t->pool, "", 0)) { /* so that it has an address from the start */
        mdl_tokenizer_free(l.t);
        return nomem(&l);
    }
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
    int rc = root ? load_root(&l, root)
                  : cfg_error_set(err, EINVAL, "not valid JSON: %s (line %d, column %d)", je.text, je.line, je.column);
    json_decref(root);
    if (rc) {
        mdl_tokenizer_free(l.t);
        return cfg_error_prefix(err, rc, "%s", name);
    }
    *out = l.t;
    return 0;
}

static int read_file(const char *path, struct mdl_text *out, struct cfg_error *err)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        int e = errno;
        return cfg_error_set(err, e, "%s: %s; a model directory holds its tokenizer under this name", path,
                             strerror(e));
    }
    char buf[1 << 16];
    size_t n;
    int rc = 0;
    while (!rc && (n = fread(buf, 1, sizeof buf, f)) > 0)
        rc = out->n + n > MAX_FILE ? -EFBIG : mdl_text_add(out, buf, n);
    if (!rc && ferror(f))
        rc = -(errno ? errno : EIO);
    fclose(f);
    if (rc)
        cfg_error_set(err, -rc, "%s: %s", path, rc == -EFBIG ? "larger than 256 MiB" : strerror(-rc));
    return rc;
}

int mdl_tokenizer_load(const char *dir, struct mdl_tokenizer **out, struct cfg_error *err)
{
    *out = NULL;
    size_t n = strlen(dir) + sizeof "/tokenizer.json";
    char *path = malloc(n);
    if (!path)
        return cfg_error_set(err, ENOMEM, "out of memory");
    snprintf(path, n, "%s/tokenizer.json", dir);
    struct mdl_text file = {0};
    int rc = read_file(path, &file, err);
    if (!rc)
        rc = mdl_tokenizer_parse(file.s ? file.s : "", file.n, path, out, err);
    mdl_text_free(&file);
    free(path);
    return rc;
}

void mdl_tokenizer_free(struct mdl_tokenizer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_stages; i++)
        pcre2_code_free(t->stage[i].code);
    free(t->token);
    mdl_text_free(&t->pool);
    free(t->merge);
    free(t->by_bytes);
    free(t->raw.node);
    free(t->normalized.node);
    free(t);
}
