#include "actors/gateway/keys.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1024 };

static void hash_of(const char *text, size_t len, unsigned char out[GW_KEY_HASH])
{
    crypto_generichash(out, GW_KEY_HASH, (const unsigned char *)text, len, NULL, 0);
}

/* Looks at every key, so that the time says nothing about which one it was. */
static struct gw_key *find_hash(const struct gw_keys *k, const unsigned char hash[GW_KEY_HASH])
{
    struct gw_key *found = NULL;
    for (struct gw_key *x = k->first; x; x = x->next)
        if (sodium_memcmp(x->hash, hash, GW_KEY_HASH) == 0)
            found = x;
    return found;
}

struct gw_key *gw_keys_find(const struct gw_keys *k, const char *text, size_t len)
{
    unsigned char hash[GW_KEY_HASH];
    if (len < GW_KEY_MIN || len > GW_KEY_MAX)
        return NULL;
    hash_of(text, len, hash);
    struct gw_key *x = find_hash(k, hash);
    return x && x->listed ? x : NULL;
}

bool gw_key_enter(struct gw_key *key)
{
    if (key->limit && key->running >= key->limit)
        return false;
    key->running++;
    return true;
}

static void drop_unlisted(struct gw_keys *k)
{
    for (struct gw_key **p = &k->first; *p;) {
        struct gw_key *x = *p;
        if (x->listed || x->running) {
            p = &x->next;
            continue;
        }
        *p = x->next;
        free(x);
    }
}

void gw_key_leave(struct gw_keys *k, struct gw_key *key)
{
    key->running--;
    if (!key->listed)
        drop_unlisted(k);
}

void gw_keys_free(struct gw_keys *k)
{
    while (k->first) {
        struct gw_key *x = k->first;
        k->first = x->next;
        free(x);
    }
    *k = (struct gw_keys){0};
}

static bool printable(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f)
            return false;
    return true;
}

/* One line, without its end, into *x. 1: a key; 0: empty or a comment; negative: wrong. */
static int read_line(char *line, int number, const char *path, struct gw_key *x, struct cfg_error *err)
{
    char *save, *key = strtok_r(line, " \t\r", &save), *name, *limit, *end;
    if (!key || key[0] == '#')
        return 0;
    size_t len = strlen(key);
    if (len < GW_KEY_MIN || len > GW_KEY_MAX || !printable(key))
        return cfg_error_set(err, EINVAL, "%s:%d: a key has %d to %d printable characters without blanks", path, number,
                             GW_KEY_MIN, GW_KEY_MAX);
    hash_of(key, len, x->hash);
    name = strtok_r(NULL, " \t\r", &save);
    limit = name ? strtok_r(NULL, " \t\r", &save) : NULL;
    if (name && (strlen(name) >= GW_KEY_NAME || !printable(name) || strpbrk(name, "=\"\\")))
        return cfg_error_set(err, EINVAL, "%s:%d: a name has up to %d printable characters, without = \" and \\", path,
                             number, GW_KEY_NAME - 1);
    if (name)
        memcpy(x->name, name, strlen(name) + 1);
    else
        snprintf(x->name, sizeof x->name, "key-%d", number);
    long n = limit ? strtol(limit, &end, 10) : 0;
    if (limit && (*end || n < 1 || n > 65536))
        return cfg_error_set(err, EINVAL, "%s:%d: the number of requests at a time is 1 to 65536", path, number);
    if (limit && strtok_r(NULL, " \t\r", &save))
        return cfg_error_set(err, EINVAL, "%s:%d: a line is KEY [NAME [REQUESTS AT A TIME]]", path, number);
    x->limit = (int)n;
    x->listed = true;
    return 1;
}

static int add_key(struct gw_keys *k, const struct gw_key *from, int number, const char *path, struct cfg_error *err)
{
    if (find_hash(k, from->hash))
        return cfg_error_set(err, EEXIST, "%s:%d: this key stands in the file twice; take one out", path, number);
    if (k->listed == GW_KEYS_MAX)
        return cfg_error_set(err, E2BIG, "%s: more than %d keys; give fewer", path, GW_KEYS_MAX);
    struct gw_key *x = malloc(sizeof *x);
    if (!x)
        return cfg_error_set(err, ENOMEM, "%s: out of memory", path);
    *x = *from;
    x->next = k->first;
    k->first = x;
    k->listed++;
    return 0;
}

static int read_file(struct gw_keys *k, FILE *f, const char *path, struct cfg_error *err)
{
    char line[LINE_MAX_BYTES];
    int r = 0;
    for (int number = 1; r >= 0 && fgets(line, sizeof line, f); number++) {
        struct gw_key x = {0};
        size_t n = strcspn(line, "\n");
        if (!line[n] && !feof(f)) {
            r = cfg_error_set(err, EINVAL, "%s:%d: the line is longer than %d bytes", path, number, LINE_MAX_BYTES - 2);
            break;
        }
        line[n] = 0;
        r = read_line(line, number, path, &x, err);
        if (r == 1)
            r = add_key(k, &x, number, path, err);
    }
    sodium_memzero(line, sizeof line);
    if (r >= 0 && ferror(f))
        r = cfg_error_set(err, EIO, "%s: cannot be read", path);
    if (r >= 0 && !k->listed)
        r = cfg_error_set(err, EINVAL, "%s holds no key; write one per line, or leave security.keys_file out", path);
    return r < 0 ? r : 0;
}

/* Takes the keys of `fresh` over. A key that is known keeps its place, because requests point at it. */
static void take_over(struct gw_keys *k, struct gw_keys *fresh)
{
    for (struct gw_key *x = k->first; x; x = x->next)
        x->listed = false;
    while (fresh->first) {
        struct gw_key *x = fresh->first, *old = find_hash(k, x->hash);
        fresh->first = x->next;
        if (old) {
            memcpy(old->name, x->name, sizeof old->name);
            old->limit = x->limit;
            old->listed = true;
            free(x);
        } else {
            x->next = k->first;
            k->first = x;
        }
    }
    k->listed = fresh->listed;
    drop_unlisted(k);
}

int gw_keys_load(struct gw_keys *k, const char *path, struct cfg_error *err)
{
    struct gw_keys fresh = {0};
    if (sodium_init() < 0)
        return cfg_error_set(err, EIO, "API keys: libsodium cannot be used");
    FILE *f = fopen(path, "re");
    if (!f) {
        int e = errno;
        return cfg_error_set(err, e, "the API keys in %s cannot be read: %s; security.keys_file names the file", path,
                             strerror(e));
    }
    int r = read_file(&fresh, f, path, err);
    fclose(f);
    if (r)
        gw_keys_free(&fresh);
    else
        take_over(k, &fresh);
    return r;
}
