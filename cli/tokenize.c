#include "cli/tokenize.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

static const char help[] =
    "usage: weft tokenize -m DIR [options] [FILE|-]\n"
    "Writes the token ids of a text (standard input by default), separated by spaces.\n"
    "  -m, --model DIR   directory with tokenizer.json\n"
    "  -d, --decode      the other way: ids separated by white space in, text out\n"
    "      --no-special  added tokens written in the text are plain text; with --decode: special tokens are left out\n"
    "      --json-lines  one JSON string per line in, one JSON list of ids per line out (with --decode the reverse)\n"
    "  -h, --help        this text\n";

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
    enum { NO_SPECIAL = 256, JSON_LINES };
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"decode", no_argument, NULL, 'd'},
        {"no-special", no_argument, NULL, NO_SPECIAL},
        {"json-lines", no_argument, NULL, JSON_LINES},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct job j = {0};
    const char *dir = NULL;
    int c;
    optind = 1;
    while ((c = getopt_long(argc, argv, "m:dh", options, NULL)) != -1) {
        switch (c) {
        case 'm':
            dir = optarg;
            break;
        case 'd':
            j.decode = true;
            break;
        case NO_SPECIAL:
            j.no_special = true;
            break;
        case JSON_LINES:
            j.json_lines = true;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            fputs(help, stderr);
            return 2;
        }
    }
    if (!dir || argc - optind > 1) {
        fprintf(stderr, "weft tokenize: %s\n%s", dir ? "at most one file" : "-m DIR is missing", help);
        return 2;
    }
    if (run(&j, dir, optind < argc ? argv[optind] : "-")) {
        fprintf(stderr, "weft tokenize: %s\n", j.err.msg);
        return 1;
    }
    return 0;
}
