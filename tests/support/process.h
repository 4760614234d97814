/* Starts a program for a test and collects what it said. Any thread. */
#ifndef WEFT_TESTS_SUPPORT_PROCESS_H
#define WEFT_TESTS_SUPPORT_PROCESS_H

#include <stddef.h>

enum { TS_ARGS_MAX = 63, TS_DEADLINE_S = 120 };

struct ts_result {
    int status; /* exit status; 128 + signal; -1: could not be started, or was stopped after TS_DEADLINE_S seconds */
    char *out;  /* standard output, zero-terminated; never NULL */
    char *err;  /* standard error, likewise */
    size_t out_len, err_len;
};

/* Runs argv[0] (found through PATH) with the arguments up to NULL; input goes to its standard input (NULL: empty).
 * Every result is released with ts_result_free. */
struct ts_result ts_run_argv(const char *input, const char *const argv[]);
#define ts_run(...) ts_run_argv(NULL, (const char *const[]){__VA_ARGS__, NULL})
#define ts_run_input(input, ...) ts_run_argv(input, (const char *const[]){__VA_ARGS__, NULL})
void ts_result_free(struct ts_result *r);

/* The weft program of this build: $WEFT_BIN, or build/weft. */
const char *ts_weft(void);
/* Path of a program of this build, such as "tools/NAME" or "tests/harness/plain_sample": beside ts_weft(). The answer
 * lives in static memory until the next call. */
const char *ts_program(const char *name);

/* Makes a new empty folder under $TMPDIR or /tmp and returns its path, which the caller frees; NULL on failure. */
char *ts_temp_dir(void);
/* Removes a folder with all that is in it. */
void ts_remove_dir(const char *path);
/* Writes text to DIR/NAME and returns the path, which the caller frees; NULL on failure. */
char *ts_write_file(const char *dir, const char *name, const char *text);
/* Reads a whole file, zero-terminated; the caller frees it. NULL on failure. len may be NULL. */
char *ts_read_file(const char *path, size_t *len);

#endif
