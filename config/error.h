/* Error reports shared by every layer.
 *
 * A function that can fail returns 0 or a negative errno and, when it does fail, leaves one sentence in the caller's
 * struct cfg_error that names the cause and the cure. The struct is plain memory owned by the caller; any thread may
 * use its own. */
#ifndef WEFT_CONFIG_ERROR_H
#define WEFT_CONFIG_ERROR_H

#include <stdarg.h>

#define CFG_ERROR_MAX 1024

struct cfg_error {
    char msg[CFG_ERROR_MAX]; /* UTF-8, no newline at the end, truncated if longer; "" when nothing failed */
};

/* Writes the message (printf style) and returns -err, so that "return cfg_error_set(e, EINVAL, ...)" reads as one
 * step. err is a positive errno. e may be NULL: then only the code is returned. Control bytes in arguments that came
 * from outside are replaced by '?', so a message is always one printable line. */
#define cfg_error_set(e, err, ...)                                                                                     \
    __extension__({                                                                                                    \
        int cfg_error_code_ = (err);                                                                                   \
        cfg_error_write(e, __VA_ARGS__);                                                                               \
        -cfg_error_code_;                                                                                              \
    })

/* The part of cfg_error_set that writes the message. A macro around it lets compilers and analysers see the code that
 * is returned, and with it that what a failed function did not set is not used. */
void cfg_error_write(struct cfg_error *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " (printf style) before an existing message and returns err unchanged (err is already negative). */
int cfg_error_prefix(struct cfg_error *e, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
