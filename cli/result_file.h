/* Figures of earlier runs in JSON files, read as bytes of unknown origin: which command a file is of, and members that
 * are there, of their type, within their bounds, and no others. Main thread. */
#ifndef WEFT_CLI_RESULT_FILE_H
#define WEFT_CLI_RESULT_FILE_H

#include <jansson.h>
#include <stdbool.h>

#include "config/error.h"

enum cli_result { CLI_RESULT_DECODE, CLI_RESULT_PREFILL, CLI_RESULT_SERVE };

/* The object in a result file, which the caller owns. -EINVAL, with a sentence: it cannot be read, is of a format that
 * is not known here, or of something else, which is named where it can be told. */
int cli_result_read(const char *path, enum cli_result kind, json_t **out, struct cfg_error *err);

enum cli_member_kind {
    CLI_MEMBER_END,     /* ends a table */
    CLI_MEMBER_INTEGER, /* int64_t *: least..most */
    CLI_MEMBER_NUMBER,  /* double *: least..most */
    CLI_MEMBER_TEXT,    /* const char **: as long as the object */
    CLI_MEMBER_FLAG,    /* bool * */
    CLI_MEMBER_OBJECT,  /* const json_t **: as long as the object */
    CLI_MEMBER_LIST,    /* the same */
};

struct cli_member {
    const char *name;
    enum cli_member_kind kind;
    void *to; /* NULL: is only looked at */
    double least, most;
    bool optional; /* *to keeps its value where it is not there */
};

/* Every member of the object is known and good, and none is missing. -EINVAL; where begins the sentence, such as a file
 * and the number of a point. */
int cli_members_read(const json_t *object, const char *where, const struct cli_member *members, struct cfg_error *err);

#endif
