/* `weft tokenize`. */
#include "cli/tokenize.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "model/tokenizer.h"

struct job {
    const struct mdl_tokenizer *tok;
    struct mdl_tok_encoder *enc;
    bool decode, no_special, json_lines;
    struct cfg_error err;
};

static int encode(struct job *j, const char *s, size_t n, struct mdl_ids *ids)
{
    ids->n = 0;
    return mdl_tok_encode(j->enc, s, n, j->no_special ? 0 : MDL_ENCODE_ADDED, ids, &j->err);
}

static int decode(struct job *j, const struct mdl_ids *ids, struct mdl_text *out)
{
    out->n = 0;
    for (size_t i = 0; i < ids->n; i++)
        if (ids->v[i] < 0 || ids->v[i] >= mdl_tokenizer_vocab_size(j->tok))
            return cfg_error_set(&j->err, EINVAL, "id %d is not in the vocabulary (0 to %d)", ids->v[i],
                                 mdl_tokenizer_vocab_size(j->tok) - 1);
    int rc = mdl_tok_decode(j->tok, ids->v, ids->n, j->no_special ? MDL_DECODE_SKIP_SPECIAL : 0, out);
    return rc ? cfg_error_set(&j->err, ENOMEM, "out of memory") : 0;
}

static int read_ids(struct job *j, const char *s, struct mdl_ids *ids)
{
    static const char white[] = " \t\r\n";
    ids->n = 0;
    for (s += strspn(s, white); *s; s += strspn(s, white)) {
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno || v < 0 || v > INT32_MAX || !(*end == 0 || strchr(white, *end)))
            return cfg_error_set(&j->err, EINVAL, "\"%.20s\" is not an id; ids are separated by white space", s);
        if (mdl_ids_add(ids, (int32_t)v))
            return cfg_error_set(&j->err, ENOMEM, "out of memory");
        s = end;
    }
    return 0;
}

static int run_whole(struct job *j, FILE *in)
{
    struct mdl_text text = {0}, decoded = {0};
    struct mdl_ids ids = {0};
    char buf[1 << 14];
    size_t n;
    int rc = mdl_text_add(&text, "", 0);
    while (!rc && (n = fread(buf, 1, sizeof buf, in)) > 0)
        rc = mdl_text_add(&text, buf, n);
    if (rc)
        cfg_error_set(&j->err, ENOMEM, "out of memory");
    else if (ferror(in))
        rc = cfg_error_set(&j->err, EIO, "the input cannot be read");
    if (!rc && j->decode) {
        rc = read_ids(j, text.s, &ids);
        if (!rc)
            rc = decode(j, &ids, &decoded);
        if (!rc)
            fwrite(decoded.s, 1, decoded.n, stdout);
    } else if (!rc) {
        rc = encode(j, text.s, text.n, &ids);
        for (size_t i = 0; !rc && i < ids.n; i++)
            printf("%s%d", i ? " " : "", ids.v[i]);
        if (!rc)
            putchar('\n');
    }
    mdl_ids_free(&ids);
    mdl_text_free(&text);
    mdl_text_free(&decoded);
    return rc;
}

static int json_line(struct job *j, const json_t *v, struct mdl_ids *ids, struct mdl_text *text)
{
    int rc;
    if (!j->decode) {
        if (!json_is_string(v))
            return cfg_error_set(&j->err, EINVAL, "a JSON string was expected");
        rc = encode(j, json_string_value(v), json_string_length(v), ids);
        if (rc)
            return rc;
        putchar('[');
        for (size_t i = 0; i < ids->n; i++)
            printf("%s%d", i ? "," : "", ids->v[i]);
        puts("]");
        return 0;
    }
    if (!json_is_array(v))
        return cfg_error_set(&j->err, EINVAL, "a JSON list of ids was expected");
    ids->n = 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *id = json_array_get(v, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return cfg_error_set(&j->err, EINVAL, "entry %zu is not an id", i);
        if (mdl_ids_add(ids, (int32_t)json_integer_value(id)))
            return cfg_error_set(&j->err, ENOMEM, "out of memory");
    }
    rc = decode(j, ids, text);
    if (rc)
        return rc;
    json_t *s = json_stringn(text->s ? text->s : "", text->n);
    char *line = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    json_decref(s);
    if (!line)
        return cfg_error_set(&j->err, ENOMEM, "out of memory");
    puts(line);
    free(line);
    return 0;
}

static int run_lines(struct job *j, FILE *in)
{
    struct mdl_ids ids = {0};
    struct mdl_text text = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0;
    for (size_t number = 1; !rc && (n = getline(&line, &cap, in)) >= 0; number++) {
        json_error_t je;
        json_t *v = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
        rc = v ? json_line(j, v, &ids, &text) : cfg_error_set(&j->err, EINVAL, "not valid JSON: %s", je.text);
        json_decref(v);
        if (rc)
            cfg_error_prefix(&j->err, rc, "line %zu", number);
    }
    if (!rc && ferror(in))
        rc = cfg_error_set(&j->err, EIO, "the input cannot be read");
    free(line);
    mdl_ids_free(&ids);
    mdl_text_free(&text);
    return rc;
}

static int run(struct job *j, const char *dir, const char *path)
{
    struct mdl_tokenizer *tok;
    FILE *in = stdin;
    int rc = mdl_tokenizer_load(dir, &tok, &j->err);
    if (rc)
        return rc;
    j->tok = tok;
    rc = mdl_tok_encoder_new(tok, &j->enc, &j->err);
    if (!rc && strcmp(path, "-") != 0) {
        in = fopen(path, "rb");
        if (!in) {
            int e = errno;
            rc = cfg_error_set(&j->err, e, "%s: %s", path, strerror(e));
        }
    }
    if (!rc)
        rc = j->json_lines ? run_lines(j, in) : run_whole(j, in);
    if (in && in != stdin)
        fclose(in);
    mdl_tok_encoder_free(j->enc);
    mdl_tokenizer_free(tok);
    if (fflush(stdout) && !rc)
        rc = cfg_error_set(&j->err, EIO, "the output cannot be written");
    return rc;
}

int cli_tokenize_run(int argc, char **argv)
{
    struct job j = {0};
    const char *dir = NULL;
    int first;
    const struct cli_option options[] = {
        {CLI_TEXT, "model", 'm', &dir, "DIR", "folder with tokenizer.json (required)"},
        {CLI_FLAG, "decode", 'd', &j.decode, NULL, "the other way: ids in, text out"},
        {CLI_FLAG, "no-special", 0, &j.no_special, NULL,
         "added tokens written in the text are plain text; with --decode:\nspecial tokens are left out"},
        {CLI_FLAG, "json-lines", 0, &j.json_lines, NULL,
         "a JSON string per line in, a JSON list of ids per line out; with\n--decode the reverse"},
        {.kind = CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "tokenize -m DIR [options] [FILE]",
        .intro = "Writes the token ids of a text, separated by spaces. Invalid UTF-8 is replaced by U+FFFD.",
        .options = options,
        .max_args = 1,
        .args_help = "FILE is standard input when absent or \"-\".",
    };
    int r = cli_options_parse(&usage, argc, argv, &first);
    if (r != CLI_GO_ON)
        return r;
    if (!dir)
        return cli_error(CLI_USAGE, "tokenize needs -m DIR; see `weft tokenize --help`");
    if (run(&j, dir, first < argc ? argv[first] : "-"))
        return cli_error(CLI_FAILED, "%s", j.err.msg);
    return CLI_OK;
}
