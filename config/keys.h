/* The table of keys and the walk over it. Internal to config/. The table is constant; any thread. */
#ifndef WEFT_CONFIG_KEYS_H
#define WEFT_CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

enum cfg_type {
    CFG_GROUP,    /* { ... } */
    CFG_LIST,     /* ( { ... }, ... ): paths of its keys start with "NAME[]." */
    CFG_BOOL,     /* bool */
    CFG_INT,      /* int */
    CFG_DOUBLE,   /* double */
    CFG_SIZE,     /* int64_t, bytes */
    CFG_DURATION, /* int64_t, microseconds */
    CFG_TEXT,     /* char[size] */
    CFG_ADDRESS,  /* char[size]: "HOST:PORT" */
    CFG_ENUM,     /* int, index in values */
    CFG_SET,      /* unsigned, bit i for values[i]; written as an array of texts */
};

struct cfg_key {
    const char *path; /* "group.key"; in a list "list[].key" */
    enum cfg_type type;
    const char *unit;          /* for people; of a plain number where texts with units are possible; NULL: none */
    double min, max;           /* inclusive; in unit. CFG_LIST: number of elements */
    bool above_min;            /* min itself is outside */
    bool required;             /* CFG_TEXT, CFG_ADDRESS, CFG_SET in a list: no default */
    const char *fallback;      /* the default as text, as in a file but without quotes; NULL for groups and lists */
    const char *const *values; /* CFG_ENUM, CFG_SET; NULL-terminated */
    size_t offset, size;       /* in struct cfg_config, or in the element of the list; size: of the field */
    size_t count_offset;       /* CFG_LIST: of the int with the number of elements. size is that of one element, which
                                  starts with its struct cfg_place */
    const char *help;          /* sentences */
};

extern const struct cfg_key cfg_keys[];
extern const int cfg_n_keys;

/* Name of the type for people, such as "integer". */
const char *cfg_type_name(enum cfg_type type);
/* Number of the key with this path, -1: none. */
int cfg_key_find(const char *path);
/* Whether key i stands directly below the group or list prefix ("" for the top level, "nodes[]", ...); if so, *name is
 * the last part of its path. */
bool cfg_key_below(int i, const char *prefix, const char **name);
/* Sets the field of key i in base (struct cfg_config or element) to its default. */
void cfg_key_set_default(int i, void *base);
/* The range in words, such as "0 to 1024", "at least 1" or "one of a, b"; "" when there is none. */
void cfg_key_range(int i, char *out, size_t size);
/* The value of key i in base as it stands in a file, or (pretty) as people read it; needs at least 2 KiB for texts. */
void cfg_key_print(int i, const void *base, char *out, size_t size);

#endif
