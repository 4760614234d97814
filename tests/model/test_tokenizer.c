/* The tokenizer on small files written here and on tests/fixtures/tokenizer (made by tests/js/make-fixture.mjs).
 * test_tokenizer_js.c compares with other implementations on a real vocabulary. */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

#define FIXTURE "tests/fixtures/tokenizer"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

/* A file with all bytes (id = byte), the given merges (ids from 256) and parts of the given JSON. */
static char *make_file(const char *merges, const char *pre_tokenizer, const char *added, const char *model_extra)
{
    json_t *vocab = json_object(), *list = json_array();
    for (int b = 0, next = 256; b < 256; b++) {
        bool plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        char utf8[5] = {0};
        mdl_utf8_put((uint32_t)(plain ? b : next++), utf8);
        json_object_set_new(vocab, utf8, json_integer(b));
    }
    char *copy = strdup(merges), *save = NULL;
    int id = 256;
    for (char *m = strtok_r(copy, "|", &save); m; m = strtok_r(NULL, "|", &save)) {
        char joined[64] = "";
        json_array_append_new(list, json_string(m));
        for (char *p = m; *p; p++)
            if (*p != ' ')
                strncat(joined, p, 1);
        if (!json_object_get(vocab, joined))
            json_object_set_new(vocab, joined, json_integer(id++));
    }
    free(copy);
    char *v = json_dumps(vocab, 0), *l = json_dumps(list, 0), *out;
    cr_assert(asprintf(&out,
                       "{\"added_tokens\":[%s],\"normalizer\":null,\"pre_tokenizer\":%s,\"model\":{\"type\":\"BPE\",%s"
                       "\"vocab\":%s,\"merges\":%s}}",
                       added, pre_tokenizer, model_extra, v, l) > 0);
    free(v);
    free(l);
    json_decref(vocab);
    json_decref(list);
    return out;
}

static struct mdl_tokenizer *parse(const char *merges, const char *pre_tokenizer, const char *added, const char *extra)
{
    struct mdl_tokenizer *tok;
    struct cfg_error err = {0};
    char *file = make_file(merges, pre_tokenizer, added, extra);
    cr_assert(mdl_tokenizer_parse(file, strlen(file), "test", &tok, &err) == 0, "%s", err.msg);
    free(file);
    return tok;
}

static struct mdl_tokenizer *load_fixture(void)
{
    struct mdl_tokenizer *tok;
    struct cfg_error err = {0};
    cr_assert(mdl_tokenizer_load(FIXTURE, &tok, &err) == 0, "%s", err.msg);
    return tok;
}

static struct mdl_ids encode(const struct mdl_tokenizer *tok, const char *text, size_t n, unsigned flags)
{
    struct mdl_tok_encoder *enc;
    struct mdl_ids ids = {0};
    struct cfg_error err = {0};
    cr_assert(mdl_tok_encoder_new(tok, &enc, &err) == 0);
    cr_assert(mdl_tok_encode(enc, text, n, flags, &ids, &err) == 0, "%s", err.msg);
    mdl_tok_encoder_free(enc);
    return ids;
}

/* The tokens of a text, each in brackets. */
static void expect_tokens(const struct mdl_tokenizer *tok, const char *text, unsigned flags, const char *want)
{
    struct mdl_ids ids = encode(tok, text, strlen(text), flags);
    struct mdl_text got = {0};
    mdl_text_add(&got, "", 0);
    for (size_t i = 0; i < ids.n; i++) {
        const char *bytes = "?";
        size_t n = 1;
        mdl_tokenizer_bytes(tok, ids.v[i], &bytes, &n);
        mdl_text_puts(&got, "[");
        mdl_text_add(&got, bytes, n);
        mdl_text_puts(&got, "]");
    }
    cr_expect(strcmp(got.s, want) == 0, "\"%s\" gives %s, not %s", text, got.s, want);
    mdl_text_free(&got);
    mdl_ids_free(&ids);
}

static void expect_same(const struct mdl_ids *a, const struct mdl_ids *b, const char *what)
{
    cr_expect(a->n == b->n && (a->n == 0 || memcmp(a->v, b->v, a->n * sizeof *a->v) == 0), "%s", what);
}

Test(tokenizer, merges_apply_by_rank_then_from_the_left)
{
    struct mdl_tokenizer *tok = parse("a b|b c|ab c|c c|cc cc", BYTE_LEVEL, "", "");
    expect_tokens(tok, "abc", 0, "[abc]");
    expect_tokens(tok, "bc", 0, "[bc]");
    expect_tokens(tok, "abbc", 0, "[ab][bc]");
    expect_tokens(tok, "ccccc", 0, "[cccc][c]");
    expect_tokens(tok, "ccc", 0, "[cc][c]");
    expect_tokens(tok, "xabcabx", 0, "[x][abc][ab][x]");
    expect_tokens(tok, "", 0, "");
    mdl_tokenizer_free(tok);
}

/* The definition, word for word: join the pair of lowest rank, leftmost first, until none is left. */
static struct mdl_ids naive(const json_t *merges, const struct mdl_tokenizer *tok, const char *s, size_t n)
{
    struct mdl_ids p = {0};
    for (size_t i = 0; i < n; i++)
        mdl_ids_add(&p, mdl_tokenizer_id(tok, s + i, 1));
    for (;;) {
        size_t best = json_array_size(merges), at = 0;
        int32_t joined = -1;
        for (size_t i = 0; i + 1 < p.n; i++)
            for (size_t r = 0; r < best; r++) {
                const char *m = json_string_value(json_array_get(merges, r)), *b = strchr(m, ' ') + 1;
                int32_t a_id = mdl_tokenizer_id(tok, m, (size_t)(b - m - 1)),
                        b_id = mdl_tokenizer_id(tok, b, strlen(b));
                char both[64];
                if (a_id != p.v[i] || b_id != p.v[i + 1])
                    continue;
                snprintf(both, sizeof both, "%.*s%s", (int)(b - m - 1), m, b);
                best = r;
                at = i;
                joined = mdl_tokenizer_id(tok, both, strlen(both));
            }
        if (joined < 0)
            return p;
        p.v[at] = joined;
        memmove(p.v + at + 1, p.v + at + 2, (p.n - at - 2) * sizeof *p.v);
        p.n--;
    }
}

Test(tokenizer, merging_equals_its_definition)
{
    static const char merges[] = "a b|b a|ab a|b b|a a|aa ab|ba b|c a|ca ba|bb aa|aba b|ab ab|abab abab|c c|aa a";
    struct mdl_tokenizer *tok = parse(merges, BYTE_LEVEL, "", "");
    char *file = make_file(merges, BYTE_LEVEL, "", ""), text[160];
    json_t *root = json_loads(file, 0, NULL);
    uint64_t state = 5;
    for (int round = 0; round < 400; round++) {
        size_t n = 1 + draw(&state, round < 350 ? 24 : 150);
        for (size_t i = 0; i < n; i++)
            text[i] = "abc"[draw(&state, round % 3 ? 3 : 2)];
        struct mdl_ids got = encode(tok, text, n, 0);
        struct mdl_ids want = naive(json_object_get(json_object_get(root, "model"), "merges"), tok, text, n);
        expect_same(&got, &want, "a random word");
        mdl_ids_free(&got);
        mdl_ids_free(&want);
    }
    json_decref(root);
    free(file);
    mdl_tokenizer_free(tok);
}

Test(tokenizer, merges_may_be_lists_of_two)
{
    json_error_t je;
    json_t *root = json_load_file(FIXTURE "/tokenizer.json", 0, &je), *m;
    cr_assert(root != NULL, "%s", je.text);
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    size_t i;
    json_array_foreach (merges, i, m) {
        const char *s = json_string_value(m), *space = strchr(s, ' ');
        json_array_set_new(merges, i, json_pack("[s#, s]", s, (int)(space - s), space + 1));
    }
    char *file = json_dumps(root, 0);
    struct mdl_tokenizer *lists, *strings = load_fixture();
    struct cfg_error err = {0};
    cr_assert(mdl_tokenizer_parse(file, strlen(file), "lists", &lists, &err) == 0, "%s", err.msg);
    struct mdl_ids a = encode(lists, file, 4000, 0), b = encode(strings, file, 4000, 0);
    cr_expect(a.n < 3500);
    expect_same(&a, &b, "lists and strings");
    mdl_ids_free(&a);
    mdl_ids_free(&b);
    mdl_tokenizer_free(lists);
    mdl_tokenizer_free(strings);
    free(file);
    json_decref(root);
}

Test(tokenizer, ignore_merges_takes_whole_words)
{
    /* "abc" cannot be built: after "b c" nothing joins a and bc */
    struct mdl_tokenizer *tok = parse("b c|a b|ab c", BYTE_LEVEL, "", "");
    expect_tokens(tok, "abc", 0, "[a][bc]");
    mdl_tokenizer_free(tok);
    tok = parse("b c|a b|ab c", BYTE_LEVEL, "", "\"ignore_merges\":true,");
    expect_tokens(tok, "abc", 0, "[abc]");
    expect_tokens(tok, "abcx", 0, "[a][bc][x]");
    mdl_tokenizer_free(tok);
}

#define SEQUENCE(steps) "{\"type\":\"Sequence\",\"pretokenizers\":[" steps "," BYTE_LEVEL "]}"
#define SPLIT(kind, pattern, behavior, invert)                                                                         \
    "{\"type\":\"Split\",\"pattern\":{\"" kind "\":\"" pattern "\"},\"behavior\":\"" behavior "\",\"invert\":" invert  \
    "}"

/* With these merges every piece of a's and b's becomes runs that show where the pieces end. */
static void expect_split(const char *steps, const char *text, const char *want)
{
    struct mdl_tokenizer *tok = parse("a a|aa aa|1 1|a 1|aa 1|\xc4\xa0 a|\xc4\xa0 \xc4\xa0", steps, "", "");
    expect_tokens(tok, text, 0, want);
    mdl_tokenizer_free(tok);
}

Test(tokenizer, splits)
{
    expect_split(BYTE_LEVEL, "aa1", "[aa1]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\d", "Isolated", "false")), "aa11aa", "[aa][1][1][aa]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\d", "Isolated", "true")), "aa11aa", "[aa][1][1][aa]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\d+", "Isolated", "false")), "aa11aa", "[aa][11][aa]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\d+", "Removed", "false")), "aa11aa", "[aa][aa]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\d+", "Removed", "true")), "aa11aa", "[11]");
    expect_split(SEQUENCE(SPLIT("String", "1.", "Isolated", "false")), "aa11.a", "[aa1][1][.][a]");
    /* a later split sees pieces, not the text around them */
    expect_split(SEQUENCE(SPLIT("Regex", "1", "Isolated", "false") "," SPLIT("Regex", "a(?=1)", "Isolated", "false")),
                 "aa1", "[aa][1]");
    expect_split(SEQUENCE(SPLIT("Regex", "a(?=1)", "Isolated", "false")), "aa1", "[a][a][1]");
    /* empty matches divide, also between characters of several bytes */
    expect_split(SEQUENCE(SPLIT("Regex", "(?=a)", "Isolated", "false")),
                 "aa1\xc3\xa9"
                 "a",
                 "[a][a1][\xc3][\xa9][a]");
    expect_split(SEQUENCE(SPLIT("Regex", "a*", "Isolated", "false")), "aa11aa", "[aa][1][1][aa]");
    expect_split(SEQUENCE(SPLIT("Regex", "^a", "Isolated", "false")), "aa\naa", "[a][a][\n][a][a]");
}

Test(tokenizer, spaces_are_unicode_white_space)
{
    const char *steps = SEQUENCE(SPLIT("Regex", "\\\\s", "Removed", "false"));
    expect_split(steps,
                 "a\xc2\x85"
                 "a\xe3\x80\x80"
                 "a\xc2\xa0"
                 "a\ta",
                 "[a][a][a][a][a]");                           /* U+0085 U+3000 U+00A0 */
    expect_split(steps, "\xef\xbb\xbf", "[\xef][\xbb][\xbf]"); /* U+FEFF is none */
    expect_split(steps, "\xe1\xa0\x8e", "[\xe1][\xa0][\x8e]"); /* nor U+180E */
    expect_split(SEQUENCE(SPLIT("Regex", "[^\\\\S]", "Removed", "false")), "a a", "[a][a]");
    expect_split(SEQUENCE(SPLIT("Regex", "[\\\\S]", "Removed", "false")), "a a", "[ ]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\S", "Removed", "false")), "a a", "[ ]");
}

/* Characters of Unicode 15 and 16 count, whatever the Unicode version of PCRE2. */
Test(tokenizer, properties_are_of_unicode_16)
{
    static const char face[] = "a\xf0\x9f\xab\xa8"
                               "a"; /* U+1FAE8, a symbol */
    static const char han[] = "a\xf0\xb1\x8d\x90"
                              "a"; /* U+31350, a letter */
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\p{S}", "Removed", "false")), face, "[a][a]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\p{So}", "Removed", "false")), face, "[a][a]");
    expect_split(SEQUENCE(SPLIT("Regex", "[\\\\p{P}\\\\p{S}]", "Removed", "false")), face, "[a][a]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\P{S}", "Removed", "false")), face, "[\xf0][\x9f][\xab][\xa8]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\p{^L}", "Removed", "true")), face, "[\xf0][\x9f][\xab][\xa8]");
    expect_split(SEQUENCE(SPLIT("Regex", "[^\\\\p{L}]", "Removed", "false")), face, "[a][a]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\p{L}", "Removed", "false")), han, "");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\p{Lu}", "Removed", "false")), han, "[a][\xf0][\xb1][\x8d][\x90][a]");
    expect_split(SEQUENCE(SPLIT("Regex", "\\\\p{Han}", "Removed", "false")),
                 "a\xe4\xb8\xad"
                 "a",
                 "[a][a]");
}

Test(tokenizer, byte_level_options)
{
    static const char prefix[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}";
    static const char regex[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}";
    expect_split(prefix, "aa", "[ ][aa]");
    expect_split(prefix, " a", "[ a]");
    expect_split(regex, "aa11  aa", "[aa][11][ ][ ][aa]");
    expect_split(BYTE_LEVEL, "aa11  aa", "[aa][11][  ][aa]");
    expect_split("{\"type\":\"ByteLevel\"}", "aa'll", "[ ][aa]['][l][l]");
}

static void expect_refused(int code, const char *merges, const char *pre_tokenizer, const char *added,
                           const char *extra, const char *word)
{
    struct mdl_tokenizer *tok = (void *)1;
    struct cfg_error err = {0};
    char *file = make_file(merges, pre_tokenizer, added, extra);
    int rc = mdl_tokenizer_parse(file, strlen(file), "test.json", &tok, &err);
    cr_expect(rc == code && tok == NULL, "%s: %d", word, rc);
    cr_expect(strstr(err.msg, word) && strstr(err.msg, "test.json"), "%s: %s", word, err.msg);
    if (rc == 0)
        mdl_tokenizer_free(tok);
    free(file);
}

Test(tokenizer, what_is_not_supported_is_refused_by_name)
{
    const int no = -ENOTSUP;
    expect_refused(no, "", "{\"type\":\"Metaspace\"}", "", "", "Metaspace");
    expect_refused(no, "", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "", "", "ByteLevel");
    expect_refused(no, "", "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," BYTE_LEVEL "]}", "", "", "last");
    expect_refused(no, "", SEQUENCE(SPLIT("Regex", "a", "MergedWithNext", "false")), "", "", "MergedWithNext");
    expect_refused(no, "", BYTE_LEVEL, "", "\"byte_fallback\":true,", "byte_fallback");
    expect_refused(no, "", BYTE_LEVEL, "", "\"dropout\":0.1,", "dropout");
    expect_refused(no, "", BYTE_LEVEL, "", "\"end_of_word_suffix\":\"</w>\",", "end_of_word_suffix");
    expect_refused(no, "", BYTE_LEVEL, "{\"id\":300,\"content\":\"<x>\",\"lstrip\":true}", "", "lstrip");
    expect_refused(no, "", BYTE_LEVEL, "{\"id\":300,\"content\":\"<x>\",\"rstrip\":true}", "", "rstrip");
    expect_refused(no, "", BYTE_LEVEL, "{\"id\":300,\"content\":\"<x>\",\"single_word\":true}", "", "single_word");
    expect_refused(no, "a b", BYTE_LEVEL, "{\"id\":256,\"content\":\"ab\",\"special\":true}", "", "forge");
    static const char *const patterns[][2] = {
        {"\\\\w+", "\\w"},
        {"a\\\\b", "\\b"},
        {"(?<n>a)", "group"},
        {"(?R)", "group"},
        {"(*ACCEPT)", "(*"},
        {"[a[b]]", "class inside"},
        {"[a&&b]", "&&"},
        {"[]a]", "]"},
        {"a{,3}", "repeat"},
        {"\\\\x{e9}\\\\xe9", "\\x7f"},
        {"(a)\\\\1", "\\1"},
        {"\\\\pL", "property"},
        {"[\\\\P{L}]", "negated category"},
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char steps[300];
        snprintf(steps, sizeof steps,
                 SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}"),
                 patterns[i][0]);
        expect_refused(no, "", steps, "", "", patterns[i][1]);
    }
}

Test(tokenizer, defects_are_named)
{
    expect_refused(-EINVAL, "", SEQUENCE(SPLIT("Regex", "(a", "Isolated", "false")), "", "", "compile");
    expect_refused(-EINVAL, "", SEQUENCE(SPLIT("Regex", "\\\\p{Klingon}", "Isolated", "false")), "", "", "compile");
    expect_refused(-EINVAL, "", SEQUENCE(SPLIT("Regex", "", "Isolated", "false")), "", "", "pattern");
    expect_refused(-EINVAL, "ab", BYTE_LEVEL, "", "", "merges[0]");
    expect_refused(-EINVAL, "a b c", BYTE_LEVEL, "", "", "merges[0]");
    expect_refused(-EINVAL, "a b|abc d", BYTE_LEVEL, "", "", "merges[1]");
    expect_refused(-EINVAL, "", BYTE_LEVEL, "{\"id\":97,\"content\":\"<x>\"}", "", "id 97");
    expect_refused(-EINVAL, "", BYTE_LEVEL, "{\"id\":300,\"content\":\"a\"}", "", "id 300");
    expect_refused(-EINVAL, "", BYTE_LEVEL, "{\"id\":-1,\"content\":\"<x>\"}", "", "id");
    expect_refused(-EINVAL, "", BYTE_LEVEL, "{\"id\":99999999,\"content\":\"<x>\"}", "", "id");
    expect_refused(-EINVAL, "", BYTE_LEVEL, "{\"id\":300,\"content\":\"\"}", "", "content");
    expect_refused(-EINVAL, "", BYTE_LEVEL, "{\"id\":300,\"content\":\"<x>\",\"special\":1}", "", "special");
    expect_refused(-EINVAL, "", BYTE_LEVEL, "{\"id\":300,\"content\":\"<x>\"},{\"id\":301,\"content\":\"<x>\"}", "",
                   "twice");
}

static void expect_root_refused(const char *file, const char *word)
{
    struct mdl_tokenizer *tok;
    struct cfg_error err = {0};
    cr_expect(mdl_tokenizer_parse(file, strlen(file), "t", &tok, &err) < 0 && strstr(err.msg, word), "%s: %s", word,
              err.msg);
}

Test(tokenizer, roots_that_are_no_tokenizer)
{
    expect_root_refused("", "JSON");
    expect_root_refused("[]", "object");
    expect_root_refused("{\"a\":1,\"a\":2}", "JSON");
    expect_root_refused("{}", "model");
    expect_root_refused("{\"model\":{\"type\":\"Unigram\"}}", "Unigram");
    expect_root_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "byte 0x00");
    expect_root_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "id 0");
    expect_root_refused("{\"normalizer\":{\"type\":\"NFC\"},\"model\":{}}", "NFC");
    expect_root_refused("{\"decoder\":{\"type\":\"Metaspace\"},\"model\":{}}", "Metaspace");
    struct mdl_tokenizer *tok;
    struct cfg_error err = {0};
    cr_expect(mdl_tokenizer_load("tests/no-such-folder", &tok, &err) == -ENOENT);
    cr_expect(strstr(err.msg, "tests/no-such-folder/tokenizer.json") != NULL, "%s", err.msg);
}

Test(tokenizer, a_file_cut_short_is_an_error)
{
    char *file = make_file("a b", BYTE_LEVEL, "{\"id\":300,\"content\":\"<x>\"}", "");
    size_t n = strlen(file);
    for (size_t cut = 0; cut < n; cut += 1 + cut % 7) {
        struct mdl_tokenizer *tok;
        struct cfg_error err = {0};
        cr_expect(mdl_tokenizer_parse(file, cut, "cut", &tok, &err) == -EINVAL && err.msg[0]);
    }
    free(file);
}

Test(tokenizer, added_tokens_are_found_leftmost_then_longest)
{
    struct mdl_tokenizer *tok = parse("a b|ab a", BYTE_LEVEL,
                                      "{\"id\":300,\"content\":\"ab!\",\"normalized\":false},"
                                      "{\"id\":301,\"content\":\"ab!cd\",\"normalized\":false},"
                                      "{\"id\":302,\"content\":\"!cde\",\"normalized\":false},"
                                      "{\"id\":303,\"content\":\"xab\",\"normalized\":true}",
                                      "");
    expect_tokens(tok, "ab!c", MDL_ENCODE_ADDED, "[ab!][c]");
    expect_tokens(tok, "ab!cde", MDL_ENCODE_ADDED, "[ab!cd][e]");
    expect_tokens(tok, "b!cde", MDL_ENCODE_ADDED, "[b][!cde]");
    expect_tokens(tok, "ab!ab!", MDL_ENCODE_ADDED, "[ab!][ab!]");
    expect_tokens(tok, "xab", MDL_ENCODE_ADDED, "[xab]");
    expect_tokens(tok, "xab!", MDL_ENCODE_ADDED, "[x][ab!]"); /* not normalized comes first, though it begins later */
    expect_tokens(tok, "ab!cd", 0, "[ab][!][c][d]");
    expect_tokens(tok, "xabab", 0, "[x][ab][ab]");
    mdl_tokenizer_free(tok);
}

Test(tokenizer, tokens_by_name_and_id)
{
    struct mdl_tokenizer *tok = load_fixture();
    const char *bytes;
    size_t n;
    cr_expect(mdl_tokenizer_vocab_size(tok) == 669);
    int32_t eot = mdl_tokenizer_added_id(tok, "<|EOT|>"),
            user = mdl_tokenizer_added_id(tok, "<\xef\xbd\x9cUser\xef\xbd\x9c>");
    cr_assert(eot > 0 && user > 0);
    cr_expect(mdl_tokenizer_is_special(tok, eot) && mdl_tokenizer_is_added(tok, eot) &&
              !mdl_tokenizer_is_typable(tok, eot));
    cr_expect(!mdl_tokenizer_is_special(tok, user) && mdl_tokenizer_is_added(tok, user) &&
              !mdl_tokenizer_is_typable(tok, user));
    int32_t the = mdl_tokenizer_id(tok, " the", 4);
    cr_assert(the > 258);
    cr_expect(!mdl_tokenizer_is_added(tok, the) && mdl_tokenizer_is_typable(tok, the));
    cr_expect(mdl_tokenizer_bytes(tok, the, &bytes, &n) && n == 4 && memcmp(bytes, " the", 4) == 0);
    cr_expect(mdl_tokenizer_id(tok, "\xff", 1) == 3 + 255);
    cr_expect(mdl_tokenizer_id(tok, "no such token", 13) == -1);
    cr_expect(mdl_tokenizer_added_id(tok, " the") == -1);
    cr_expect(!mdl_tokenizer_bytes(tok, 669, &bytes, &n) && !mdl_tokenizer_bytes(tok, -1, &bytes, &n));
    mdl_tokenizer_free(tok);
}

Test(tokenizer, every_token_encodes_to_bytes_that_come_back)
{
    struct mdl_tokenizer *tok = load_fixture();
    uint64_t state = 9;
    for (int round = 0; round < 300; round++) {
        struct mdl_text text = {0}, back = {0};
        mdl_text_add(&text, "", 0);
        for (uint32_t i = 0, n = draw(&state, 60); i < n; i++) {
            char c[4];
            uint32_t cp = draw(&state, 4) ? draw(&state, 0x250) : draw(&state, 0x20000);
            if (cp < 0xd800 || cp > 0xdfff)
                mdl_text_add(&text, c, (size_t)mdl_utf8_put(cp, c));
        }
        for (unsigned flags = 0; flags < 2; flags++) {
            struct mdl_ids ids = encode(tok, text.s, text.n, flags);
            back.n = 0;
            cr_assert(mdl_tok_decode(tok, ids.v, ids.n, 0, &back) == 0);
            cr_expect(back.n == text.n && memcmp(back.s ? back.s : "", text.s, text.n) == 0);
            mdl_ids_free(&ids);
        }
        mdl_text_free(&text);
        mdl_text_free(&back);
    }
    mdl_tokenizer_free(tok);
}

#define FFFD "\xef\xbf\xbd"

Test(tokenizer, invalid_utf8_is_replaced_by_maximal_subparts)
{
    static const char *const cases[][2] = {
        {"a\xff"
         "b",
         "a" FFFD "b"},
        {"\xc2", FFFD},
        {"\xe4\xbd", FFFD},
        {"\xe4\xbd"
         "a",
         FFFD "a"},
        {"\xf0\x9f\x99", FFFD},
        {"\xf0\x9f\x99\xf0\x9f\x99\x82", FFFD "\xf0\x9f\x99\x82"},
        {"\xc0\xaf", FFFD FFFD},
        {"\xe0\x80\x80", FFFD FFFD FFFD},
        {"\xed\xa0\x80", FFFD FFFD FFFD},
        {"\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD},
        {"\xf5\x80", FFFD FFFD},
        {"\x80\xbf", FFFD FFFD},
        {"\xef\xbb\xbf"
         "a",
         "\xef\xbb\xbf"
         "a"},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    };
    struct mdl_tokenizer *tok = load_fixture();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mdl_text out = {0};
        struct mdl_ids a = encode(tok, cases[i][0], strlen(cases[i][0]), 0),
                       b = encode(tok, cases[i][1], strlen(cases[i][1]), 0);
        cr_assert(mdl_utf8_repair(cases[i][0], strlen(cases[i][0]), &out) == 0);
        cr_expect(strcmp(out.s, cases[i][1]) == 0, "case %zu", i);
        cr_expect(mdl_utf8_valid(cases[i][1], strlen(cases[i][1])));
        cr_expect(mdl_utf8_valid(cases[i][0], strlen(cases[i][0])) == (strcmp(cases[i][0], cases[i][1]) == 0),
                  "case %zu", i);
        expect_same(&a, &b, cases[i][1]);
        mdl_ids_free(&a);
        mdl_ids_free(&b);
        mdl_text_free(&out);
    }
    mdl_tokenizer_free(tok);
}

Test(tokenizer, valid_equals_repaired_unchanged)
{
    uint64_t state = 77;
    for (int round = 0; round < 20000; round++) {
        char s[24];
        size_t n = draw(&state, sizeof s);
        for (size_t i = 0; i < n; i++)
            s[i] = (char)(draw(&state, 3) ? 0x80 + draw(&state, 128) : draw(&state, 256));
        struct mdl_text out = {0};
        mdl_text_add(&out, "", 0);
        cr_assert(mdl_utf8_repair(s, n, &out) == 0);
        cr_expect(mdl_utf8_valid(out.s, out.n));
        cr_expect(mdl_utf8_valid(s, n) == (out.n == n && memcmp(out.s, s, n) == 0));
        mdl_text_free(&out);
    }
}

Test(tokenizer, stream_never_emits_half_a_character)
{
    struct mdl_tokenizer *tok = load_fixture();
    uint64_t state = 3;
    for (int round = 0; round < 200; round++) {
        struct mdl_tok_stream s;
        struct mdl_text out = {0}, whole = {0};
        int32_t ids[64];
        mdl_tok_stream_init(&s, tok, 0);
        mdl_text_add(&out, "", 0);
        for (int i = 0; i < 64; i++) {
            ids[i] = (int32_t)(round % 2 ? draw(&state, 669) : 3 + draw(&state, 256));
            size_t before = out.n;
            cr_assert(mdl_tok_stream_push(&s, ids[i], &out) == 0);
            cr_expect(mdl_utf8_valid(out.s + before, out.n - before));
        }
        cr_assert(mdl_tok_stream_end(&s, &out) == 0);
        cr_assert(mdl_tok_decode(tok, ids, 64, 0, &whole) == 0);
        cr_expect(out.n == whole.n && memcmp(out.s, whole.s, out.n) == 0);
        mdl_text_free(&out);
        mdl_text_free(&whole);
    }
    mdl_tokenizer_free(tok);
}

Test(tokenizer, stream_decides_at_the_earliest_byte)
{
    struct mdl_tokenizer *tok = load_fixture();
    static const struct {
        int byte; /* -1: end */
        const char *out;
    } steps[] = {
        {'a', "a"},   {0xf0, ""}, {0x9f, ""},   {0x99, ""}, {0x82, "\xf0\x9f\x99\x82"}, {0xe4, ""}, {'b', FFFD "b"},
        {0xff, FFFD}, {0xe4, ""}, {0xe4, FFFD}, {0xbd, ""}, {0xa0, "\xe4\xbd\xa0"},     {0xc3, ""}, {-1, FFFD},
        {0xa9, FFFD}, {-1, ""},
    };
    struct mdl_tok_stream s;
    mdl_tok_stream_init(&s, tok, 0);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct mdl_text out = {0};
        mdl_text_add(&out, "", 0);
        int rc = steps[i].byte < 0 ? mdl_tok_stream_end(&s, &out) : mdl_tok_stream_push(&s, 3 + steps[i].byte, &out);
        cr_expect(rc == 0 && strcmp(out.s, steps[i].out) == 0, "step %zu: %s", i, out.s);
        mdl_text_free(&out);
    }
    mdl_tokenizer_free(tok);
}

Test(tokenizer, special_tokens_can_be_left_out)
{
    struct mdl_tokenizer *tok = load_fixture();
    const char *text = "ab<|EOT|>cd<\xef\xbd\x9cUser\xef\xbd\x9c>ef";
    struct mdl_ids ids = encode(tok, text, strlen(text), MDL_ENCODE_ADDED);
    struct mdl_text out = {0};
    cr_assert(mdl_tok_decode(tok, ids.v, ids.n, MDL_DECODE_SKIP_SPECIAL, &out) == 0);
    cr_expect(strcmp(out.s, "abcd<\xef\xbd\x9cUser\xef\xbd\x9c>ef") == 0, "%s",
              out.s); /* in the file User is not special */
    mdl_text_free(&out);
    mdl_ids_free(&ids);
    mdl_tokenizer_free(tok);
}

Test(tokenizer, ids_append_and_a_warm_encoder_changes_nothing)
{
    struct mdl_tokenizer *tok = load_fixture();
    struct mdl_tok_encoder *enc;
    struct cfg_error err = {0};
    struct mdl_ids all = {0};
    uint64_t state = 21;
    cr_assert(mdl_tok_encoder_new(tok, &enc, &err) == 0);
    for (int round = 0; round < 2000; round++) {
        char text[80];
        size_t n = draw(&state, sizeof text), before = all.n;
        for (size_t i = 0; i < n; i++)
            text[i] = "the miller's\n 123<|EOT|>"[draw(&state, 24)];
        struct mdl_ids cold = encode(tok, text, n, MDL_ENCODE_ADDED);
        cr_assert(mdl_tok_encode(enc, text, n, MDL_ENCODE_ADDED, &all, &err) == 0);
        struct mdl_ids tail = {all.v + before, all.n - before, 0};
        expect_same(&tail, &cold, "cold and warm");
        mdl_ids_free(&cold);
    }
    mdl_ids_free(&all);
    mdl_tok_encoder_free(enc);
    mdl_tokenizer_free(tok);
}

Test(tokenizer, long_words_and_long_spaces)
{
    struct mdl_tokenizer *tok = load_fixture();
    enum { N = 1 << 20 };
    char *text = malloc(N);
    for (int kind = 0; kind < 4; kind++) {
        memset(text, kind == 0 ? 'e' : kind == 1 ? ' ' : kind == 2 ? '\n' : '-', N);
        struct mdl_ids ids = encode(tok, text, N, MDL_ENCODE_ADDED);
        struct mdl_text back = {0};
        cr_assert(mdl_tok_decode(tok, ids.v, ids.n, 0, &back) == 0);
        cr_expect(back.n == N && memcmp(back.s, text, N) == 0);
        mdl_text_free(&back);
        mdl_ids_free(&ids);
    }
    free(text);
    mdl_tokenizer_free(tok);
}

Test(tokenizer, a_pattern_that_explodes_is_an_error_of_that_text)
{
    struct mdl_tokenizer *tok = parse("", SEQUENCE(SPLIT("Regex", "(a+)+(a+)+(a+)+[xy]", "Isolated", "false")), "", "");
    struct mdl_tok_encoder *enc;
    struct mdl_ids ids = {0};
    struct cfg_error err = {0};
    char text[2000];
    memset(text, 'a', sizeof text);
    cr_assert(mdl_tok_encoder_new(tok, &enc, &err) == 0);
    mdl_ids_add(&ids, 5);
    cr_expect(mdl_tok_encode(enc, text, sizeof text, 0, &ids, &err) < 0);
    cr_expect(strstr(err.msg, "split pattern") != NULL, "%s", err.msg);
    cr_expect(ids.n == 1);
    cr_expect(mdl_tok_encode(enc, "aax", 3, 0, &ids, &err) == 0 && ids.n == 4);
    mdl_ids_free(&ids);
    mdl_tok_encoder_free(enc);
    mdl_tokenizer_free(tok);
}

struct job {
    const struct mdl_tokenizer *tok;
    const char *text;
    size_t n;
    struct mdl_ids ids;
};

static void *work(void *arg)
{
    struct job *j = arg;
    struct mdl_tok_encoder *enc;
    struct cfg_error err = {0};
    if (mdl_tok_encoder_new(j->tok, &enc, &err))
        return arg;
    for (int i = 0; i < 20; i++) {
        j->ids.n = 0;
        if (mdl_tok_encode(enc, j->text, j->n, MDL_ENCODE_ADDED, &j->ids, &err))
            return arg;
    }
    mdl_tok_encoder_free(enc);
    return NULL;
}

Test(tokenizer, many_threads_share_one_tokenizer)
{
    struct mdl_tokenizer *tok = load_fixture();
    char *text = make_file("a b", BYTE_LEVEL, "", "");
    struct job job[4];
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) {
        job[i] = (struct job){.tok = tok, .text = text, .n = strlen(text)};
        cr_assert(pthread_create(&thread[i], NULL, work, &job[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        cr_assert(failed == NULL);
        expect_same(&job[i].ids, &job[0].ids, "threads");
    }
    for (int i = 0; i < 4; i++)
        mdl_ids_free(&job[i].ids);
    free(text);
    mdl_tokenizer_free(tok);
}
