/* The text of a configuration with its @include directives replaced by the files they name, and the way back from a
 * line of that text to file and line. Internal to config/; one thread at a time.
 *
 * libconfig has includes of its own, but its scanner ends the process when it cannot read one (a folder, for example),
 * so it never sees the directive. */
#ifndef WEFT_CONFIG_SOURCE_H
#define WEFT_CONFIG_SOURCE_H

#include <stddef.h>

#include "config/config.h"

enum {
    CFG_SOURCE_BYTES_MAX = 4 << 20, /* all files together */
    CFG_SOURCE_DEPTH_MAX = 8,       /* includes inside includes */
};

struct cfg_source {
    char *text; /* zero-terminated, no zero inside */
    size_t len, cap;
    char *files[CFG_FILES_MAX]; /* as named by the user, or folder of the including file + name in the directive */
    int n_files;
    struct cfg_place *lines; /* [n_lines], text line i + 1 */
    int n_lines, cap_lines;
};

/* Reads path and what it includes (relative names start at the folder of the file that holds the directive). A
 * directive stands alone on its line: @include "NAME". Problems go to the report; returns 0, or a negative errno when
 * the text is not usable. The caller calls cfg_source_free either way. */
int cfg_source_read(const char *path, struct cfg_source *s, struct cfg_report *report);
/* The same for text in memory, in which nothing may be included. */
int cfg_source_set(const char *text, size_t len, const char *name, struct cfg_source *s, struct cfg_report *report);
/* Where line (from 1) of the text comes from. */
struct cfg_place cfg_source_place(const struct cfg_source *s, int line);
void cfg_source_free(struct cfg_source *s);

#endif
