/* The log: records go through rings to one writer thread, so that no worker waits for a file.
 *
 * Each thread that logs takes a ring of its own on its first record (64 threads can; later ones share one
 * under a lock). A full ring drops records and counts them; the next one that fits says how many were lost. Any thread.
 */
#ifndef WEFT_ACTORS_RUNTIME_LOG_H
#define WEFT_ACTORS_RUNTIME_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "config/error.h"

enum act_log_level { ACT_LOG_ERROR, ACT_LOG_WARNING, ACT_LOG_INFO, ACT_LOG_DEBUG };
enum { ACT_LOG_TEXT_MAX = 472 };

struct act_log_config {
    const char *path; /* appended to; NULL: standard error */
    enum act_log_level level;
    bool json;                  /* one JSON object per line; else text */
    int64_t (*wall)(void *ctx); /* time of the records; NULL: CLOCK_REALTIME */
    void *wall_ctx;
    bool direct; /* write in the caller's thread, at once: simulation, tests, short programs */
};

struct act_log;

int act_log_open(const struct act_log_config *config, struct act_log **out, struct cfg_error *err);
/* Writes what is in the rings and closes. No thread logs any more. NULL is allowed. */
void act_log_close(struct act_log *log);
/* Closes the file and opens it again, after the records before: for log rotation. Async: the writer does it. */
void act_log_reopen(struct act_log *log);
/* Whether a record of this level would be written. log may be NULL: false. */
bool act_log_on(const struct act_log *log, enum act_log_level level);
/* One record: who (an actor's or thread's name, a literal), request (0: none), and a text, cut at ACT_LOG_TEXT_MAX - 1
 * bytes. log may be NULL. */
void act_log_write(struct act_log *log, enum act_log_level level, const char *who, uint64_t request, const char *fmt,
                   ...) __attribute__((format(printf, 5, 6)));
/* The same for an event with fields: what it is called (a literal), then "key=value key=value" with values without
 * blanks. A text line is "EVENT key=value ..."; a JSON line has "event" and one member per field, numbers as numbers.
 */
void act_log_event(struct act_log *log, enum act_log_level level, const char *who, uint64_t request, const char *event,
                   const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* What a negative errno stands for between the actors, as the value of such a field; ordinary for 0. */
const char *act_reason_name(int reason);
/* Records that were dropped because a ring was full. */
uint64_t act_log_dropped(const struct act_log *log);

#endif
