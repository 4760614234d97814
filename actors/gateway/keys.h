/* API keys: a file with one per line, and who is using them.
 *
 *     # a comment
 *     KEY [NAME [REQUESTS AT A TIME]]
 *
 * A key has 8 to 256 printable characters without blanks. Only hashes are kept; comparing takes the same time whichever
 * key was sent and however much of it was right. One thread: the gateway's. */
#ifndef WEFT_GATEWAY_KEYS_H
#define WEFT_GATEWAY_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "config/error.h"

enum { GW_KEY_HASH = 32, GW_KEY_NAME = 64, GW_KEY_MIN = 8, GW_KEY_MAX = 256, GW_KEYS_MAX = 4096 };

struct gw_key {
    struct gw_key *next;
    unsigned char hash[GW_KEY_HASH];
    char name[GW_KEY_NAME]; /* "key-LINE" where the file gives none */
    int limit;              /* requests at a time, 0: no limit of its own */
    int running;
    bool listed; /* false: no longer in the file; lives until its last request has ended */
};

/* Zeroed: no file was read, everybody is let in. */
struct gw_keys {
    struct gw_key *first;
    int listed;
};

/* Reads the file; replaces what was read before, requests in progress keep their key. All or nothing: on an error
 * (which names the line, never a key) the old keys stay. */
int gw_keys_load(struct gw_keys *k, const char *path, struct cfg_error *err);
void gw_keys_free(struct gw_keys *k);
/* The key with this text, NULL: there is none. */
struct gw_key *gw_keys_find(const struct gw_keys *k, const char *text, size_t len);
/* One more request; false when its limit is reached. */
bool gw_key_enter(struct gw_key *key);
void gw_key_leave(struct gw_keys *k, struct gw_key *key);

#endif
