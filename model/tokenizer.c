/* Encoding and decoding with a loaded tokenizer; struct mdl_tok_encoder belongs to one thread at a time. */
#include "model/tokenizer_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    MAX_TEXT = 1 << 30,
    JIT_STACK_MIN = 32 << 10,
    JIT_STACK_MAX = 8 << 20,
    CACHE_WORDS = 1 << 14,
    WORD_BYTES = 30,
    KEEP_PARTS = 1 << 16, /* room for words of so many bytes is kept */
    WORD_IDS = 8,
};

/* One cache line; a word that hashes to the same slot replaces it. len 0: empty. */
struct word {
    uint8_t len, n;
    char bytes[WORD_BYTES];
    int32_t ids[WORD_IDS];
};

/* A part of the piece under work: a list through prev and next; id -1: merged into the part before it. */
struct part {
    int32_t id, prev, next;
};

/* A merge that was possible when it was queued. Ordered by rank, then by position. */
struct candidate {
    uint64_t order; /* rank << 32 | position */
    int32_t id;
};

struct mdl_tok_encoder {
    const struct mdl_tokenizer *tok;
    pcre2_match_data *match;
    pcre2_match_context *ctx;
    pcre2_jit_stack *jit_stack;
    struct word *cache;
    struct part *part;
    struct candidate *heap;
    size_t cap, n_heap; /* cap parts, 3 * cap candidates */
    struct mdl_text repaired, prefixed;
    struct mdl_ids *out;
    struct cfg_error *err;
};

void mdl_ids_free(struct mdl_ids *ids)
{
    free(ids->v);
    *ids = (struct mdl_ids){0};
}

static int ids_reserve(struct mdl_ids *ids, size_t more)
{
    if (ids->cap - ids->n >= more)
        return 0;
    size_t cap = ids->cap < 64 ? 64 : ids->cap;
    while (cap - ids->n < more)
        cap *= 2;
    int32_t *v = realloc(ids->v, cap * sizeof *v);
    if (!v)
        return -ENOMEM;
    ids->v = v;
    ids->cap = cap;
    return 0;
}

int mdl_ids_add(struct mdl_ids *ids, int32_t id)
{
    int rc = ids_reserve(ids, 1);
    if (!rc)
        ids->v[ids->n++] = id;
    return rc;
}

int mdl_tok_encoder_new(const struct mdl_tokenizer *tok, struct mdl_tok_encoder **out, struct cfg_error *err)
{
    struct mdl_tok_encoder *e = calloc(1, sizeof *e);
    *out = NULL;
    if (e) {
        e->tok = tok;
        e->match = pcre2_match_data_create(1, NULL);
        e->ctx = pcre2_match_context_create(NULL);
        e->jit_stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
        e->cache = calloc(CACHE_WORDS, sizeof *e->cache);
    }
    if (!e || !e->match || !e->ctx || !e->cache) {
        mdl_tok_encoder_free(e);
        return cfg_error_set(err, ENOMEM, "out of memory for a tokenizer's encoder");
    }
    if (e->jit_stack) /* none where code generation is forbidden */
        pcre2_jit_stack_assign(e->ctx, NULL, e->jit_stack);
    *out = e;
    return 0;
}

void mdl_tok_encoder_free(struct mdl_tok_encoder *e)
{
    if (!e)
        return;
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->ctx);
    if (e->jit_stack)
        pcre2_jit_stack_free(e->jit_stack);
    free(e->cache);
    free(e->part);
    free(e->heap);
    mdl_text_free(&e->repaired);
    mdl_text_free(&e->prefixed);
    free(e);
}

static int nomem(struct mdl_tok_encoder *e)
{
    return cfg_error_set(e->err, ENOMEM, "out of memory while encoding a text");
}

static void heap_push(struct mdl_tok_encoder *e, struct candidate c)
{
    size_t i = e->n_heap++;
    for (; i && e->heap[(i - 1) / 2].order > c.order; i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = c;
}

static struct candidate heap_pop(struct mdl_tok_encoder *e)
{
    struct candidate top = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= e->n_heap)
            break;
        k += k + 1 < e->n_heap && e->heap[k + 1].order < e->heap[k].order;
        if (e->heap[k].order >= last.order)
            break;
        e->heap[i] = e->heap[k];
        i = k;
    }
    e->heap[i] = last;
    return top;
}

static void offer(struct mdl_tok_encoder *e, int32_t pos)
{
    int32_t next = e->part[pos].next;
    const struct tok_merge *m = tok_merge_find(e->tok, e->part[pos].id, e->part[next].id);
    if (m)
        heap_push(e, (struct candidate){(uint64_t)m->rank << 32 | (uint32_t)pos, (int32_t)m->id});
}

static int reserve_parts(struct mdl_tok_encoder *e, size_t n)
{
    if (n <= e->cap)
        return 0;
    size_t cap = e->cap ? e->cap : 256;
    while (cap < n)
        cap *= 2;
    free(e->part);
    free(e->heap);
    e->part = malloc(cap * sizeof *e->part);
    e->heap = malloc(3 * cap * sizeof *e->heap);
    e->cap = e->part && e->heap ? cap : 0;
    return e->cap ? 0 : nomem(e);
}

/* What one huge word needed is not kept for the next. */
static void trim_parts(struct mdl_tok_encoder *e)
{
    if (e->cap <= KEEP_PARTS)
        return;
    free(e->part);
    free(e->heap);
    e->part = NULL;
    e->heap = NULL;
    e->cap = 0;
}

/* Applies the merges to a piece: always the one of lowest rank, of equals the leftmost. Appends the ids. A queued merge
 * whose parts have changed since is recognised by what the pair would become now. */
static int merge_piece(struct mdl_tok_encoder *e, const char *s, size_t n)
{
    const struct mdl_tokenizer *t = e->tok;
    int rc = reserve_parts(e, n);
    if (rc)
        return rc;
    struct part *p = e->part;
    for (size_t i = 0; i < n; i++)
        p[i] = (struct part){t->byte_id[(uint8_t)s[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    e->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        offer(e, (int32_t)i);
    while (e->n_heap) {
        struct candidate c = heap_pop(e);
        int32_t pos = (int32_t)(uint32_t)c.order, next = p[pos].next;
        if (p[pos].id < 0 || next < 0)
            continue;
        const struct tok_merge *m = tok_merge_find(t, p[pos].id, p[next].id);
        if (!m || (int32_t)m->id != c.id)
            continue;
        p[pos].id = c.id;
        p[next].id = -1;
        p[pos].next = p[next].next;
        if (p[pos].next >= 0) {
            p[p[pos].next].prev = pos;
            offer(e, pos);
        }
        if (p[pos].prev >= 0)
            offer(e, p[pos].prev);
    }
    rc = ids_reserve(e->out, n) ? nomem(e) : 0;
    for (int32_t i = 0; !rc && i >= 0; i = p[i].next)
        e->out->v[e->out->n++] = p[i].id;
    trim_parts(e);
    return rc;
}

/* A piece that no split divides any further. */
static int encode_piece(struct mdl_tok_encoder *e, const char *s, size_t n)
{
    const struct mdl_tokenizer *t = e->tok;
    struct word *w = NULL;
    if (n <= WORD_BYTES) {
        w = &e->cache[XXH3_64bits(s, n) % CACHE_WORDS];
        if (w->len == n && memcmp(w->bytes, s, n) == 0) {
            if (ids_reserve(e->out, w->n))
                return nomem(e);
            memcpy(e->out->v + e->out->n, w->ids, w->n * sizeof *w->ids);
            e->out->n += w->n;
            return 0;
        }
    }
    size_t before = e->out->n;
    int32_t whole = t->ignore_merges ? tok_find_bytes(t, s, n) : -1;
    int rc = whole < 0 ? merge_piece(e, s, n) : mdl_ids_add(e->out, whole) ? nomem(e) : 0;
    size_t made = e->out->n - before;
    if (!rc && w && made <= WORD_IDS) {
        w->len = (uint8_t)n;
        w->n = (uint8_t)made;
        memcpy(w->bytes, s, n);
        memcpy(w->ids, e->out->v + before, made * sizeof *w->ids);
    }
    return rc;
}

static int encode_stage(struct mdl_tok_encoder *e, int stage, const char *s, size_t n);

static int next_stage(struct mdl_tok_encoder *e, int stage, bool drop, const char *s, size_t from, size_t to)
{
    return drop || from == to ? 0 : encode_stage(e, stage + 1, s + from, to - from);
}

/* Divides s into matches and gaps and hands each on. A pattern sees one piece at a time, as if it were the whole text.
 * An empty match divides, too. */
static int encode_split(struct mdl_tok_encoder *e, int stage, const char *s, size_t n)
{
    const struct tok_stage *st = &e->tok->stage[stage];
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(e->match);
    size_t at = 0, done = 0; /* search from here; handed on up to here */
    int rc = 0;
    while (!rc && at <= n) {
        int m = pcre2_match(st->code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, e->match, e->ctx);
        if (m == PCRE2_ERROR_NOMATCH)
            break;
        if (m < 0)
            return cfg_error_set(e->err, m == PCRE2_ERROR_NOMEMORY ? ENOMEM : EINVAL,
                                 "split pattern %d of the tokenizer "
                                 "exceeded its limits on a text of %zu bytes (PCRE2 error %d)",
                                 stage, n, m);
        size_t from = found[0], to = found[1];
        if (to < from)
            to = from;
        if (from == to) { /* go on behind the next character */
            uint32_t cp;
            at = from + (from < n ? (size_t)mdl_utf8_get(s + from, &cp) : 1);
        } else {
            at = to;
        }
        rc = next_stage(e, stage, st->drop_gap, s, done, from);
        if (!rc)
            rc = next_stage(e, stage, st->drop_match, s, from, to);
        done = to;
    }
    return rc ? rc : next_stage(e, stage, st->drop_gap, s, done, n);
}

/* At most TOK_MAX_STAGES deep. */
static int encode_stage(struct mdl_tok_encoder *e, int stage, const char *s, size_t n)
{
    if (stage == e->tok->n_stages)
        return encode_piece(e, s, n);
    if (e->tok->stage[stage].kind == TOK_SPLIT)
        return encode_split(e, stage, s, n);
    if (*s == ' ')
        return encode_stage(e, stage + 1, s, n);
    e->prefixed.n = 0;
    if (mdl_text_add(&e->prefixed, " ", 1) || mdl_text_add(&e->prefixed, s, n))
        return nomem(e);
    return encode_stage(e, stage + 1, e->prefixed.s, e->prefixed.n);
}

int32_t tok_trie_match(const struct tok_trie *t, const char *s, size_t n, size_t *len)
{
    int32_t best = -1;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t c = t->node[at].child;
        while (c && t->node[c].byte != (uint8_t)s[i])
            c = t->node[c].sibling;
        if (!c)
            break;
        at = (size_t)c;
        if (t->node[at].id >= 0) {
            best = t->node[at].id;
            *len = i + 1;
        }
    }
    return best;
}

/* Added tokens of one trie become ids; what lies between them goes to the other trie or to the splits. */
static int encode_added(struct mdl_tok_encoder *e, const struct tok_trie *trie, const char *s, size_t n)
{
    const struct tok_trie *then = trie == &e->tok->raw ? &e->tok->normalized : NULL;
    size_t from = 0;
    int rc = 0;
    for (size_t i = 0; i <= n && !rc;) {
        size_t len = 0;
        int32_t id = i < n && trie->first[(uint8_t)s[i]] ? tok_trie_match(trie, s + i, n - i, &len) : -1;
        if (id < 0 && i < n) {
            i++;
            continue;
        }
        if (i > from)
            rc = then ? encode_added(e, then, s + from, i - from) : encode_stage(e, 0, s + from, i - from);
        if (!rc && id >= 0 && mdl_ids_add(e->out, id))
            rc = nomem(e);
        i += len ? len : 1;
        from = i;
    }
    return rc;
}

int mdl_tok_encode(struct mdl_tok_encoder *e, const char *text, size_t len, unsigned flags, struct mdl_ids *out,
                   struct cfg_error *err)
{
    size_t before = out->n;
    e->out = out;
    e->err = err;
    if (len > MAX_TEXT)
        return cfg_error_set(err, EFBIG, "a text of %zu bytes; at most 1 GiB can be encoded at once", len);
    if (!mdl_utf8_valid(text, len)) {
        e->repaired.n = 0;
        if (mdl_utf8_repair(text, len, &e->repaired))
            return nomem(e);
        text = e->repaired.s;
        len = e->repaired.n;
    }
    int rc = 0;
    if (len)
        rc = flags & MDL_ENCODE_ADDED ? encode_added(e, &e->tok->raw, text, len) : encode_stage(e, 0, text, len);
    if (rc)
        out->n = before;
    return rc;
}

int mdl_tokenizer_vocab_size(const struct mdl_tokenizer *t)
{
    return t->n_ids;
}

static uint32_t flags_of(const struct mdl_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids ? t->token[id].flags : 0;
}

bool mdl_tokenizer_bytes(const struct mdl_tokenizer *t, int32_t id, const char **bytes, size_t *n)
{
    if (!(flags_of(t, id) & TOK_PRESENT))
        return false;
    *bytes = t->pool.s + t->token[id].off;
    *n = t->token[id].len;
    return true;
}

int32_t tok_find_bytes(const struct mdl_tokenizer *t, const char *bytes, size_t n)
{
    for (uint32_t h = (uint32_t)XXH3_64bits(bytes, n) & t->by_bytes_mask; t->by_bytes[h];
         h = (h + 1) & t->by_bytes_mask) {
        const struct tok_token *tk = &t->token[t->by_bytes[h] - 1];
        if (tk->len == n && memcmp(t->pool.s + tk->off, bytes, n) == 0)
            return (int32_t)t->by_bytes[h] - 1;
    }
    return -1;
}

static int32_t find_added(const struct mdl_tokenizer *t, const char *s, size_t n)
{
    size_t len = 0;
    int32_t id = tok_trie_match(&t->raw, s, n, &len);
    if (id >= 0 && len == n)
        return id;
    id = tok_trie_match(&t->normalized, s, n, &len);
    return id >= 0 && len == n ? id : -1;
}

int32_t mdl_tokenizer_id(const struct mdl_tokenizer *t, const char *bytes, size_t n)
{
    int32_t id = find_added(t, bytes, n);
    return id >= 0 ? id : tok_find_bytes(t, bytes, n);
}

int32_t mdl_tokenizer_added_id(const struct mdl_tokenizer *t, const char *content)
{
    return find_added(t, content, strlen(content));
}

bool mdl_tokenizer_is_added(const struct mdl_tokenizer *t, int32_t id)
{
    return flags_of(t, id) & TOK_ADDED;
}

bool mdl_tokenizer_is_special(const struct mdl_tokenizer *t, int32_t id)
{
    return flags_of(t, id) & TOK_SPECIAL;
}

bool mdl_tokenizer_is_typable(const struct mdl_tokenizer *t, int32_t id)
{
    return flags_of(t, id) & TOK_TYPABLE;
}

void mdl_tok_stream_init(struct mdl_tok_stream *s, const struct mdl_tokenizer *tok, unsigned flags)
{
    *s = (struct mdl_tok_stream){.tok = tok, .flags = flags};
}

int mdl_tok_stream_push(struct mdl_tok_stream *s, int32_t id, struct mdl_text *out)
{
    const char *bytes;
    size_t n;
    if ((s->flags & MDL_DECODE_SKIP_SPECIAL) && mdl_tokenizer_is_special(s->tok, id))
        return 0;
    if (!mdl_tokenizer_bytes(s->tok, id, &bytes, &n))
        return 0;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = mdl_utf8_push(&s->utf8, (uint8_t)bytes[i], out);
    return rc;
}

int mdl_tok_stream_end(struct mdl_tok_stream *s, struct mdl_text *out)
{
    return mdl_utf8_end(&s->utf8, out);
}

int mdl_tok_decode(const struct mdl_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags, struct mdl_text *out)
{
    struct mdl_tok_stream s;
    mdl_tok_stream_init(&s, tok, flags);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = mdl_tok_stream_push(&s, ids[i], out);
    return rc ? rc : mdl_tok_stream_end(&s, out);
}
