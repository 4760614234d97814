/* "Did you mean ...?" for misspelt keys, commands and options. Pure functions; any thread. */
#ifndef WEFT_CONFIG_SUGGEST_H
#define WEFT_CONFIG_SUGGEST_H

#include <stddef.h>

/* The entry of words[0..count) that word was probably meant to be, or NULL when none is near. Case does not count, nor
 * does '-' against '_'. The answer points into words; entries may be NULL and are passed over. */
const char *cfg_suggest(const char *word, const char *const *words, size_t count);

#endif
