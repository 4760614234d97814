#include <stdlib.h>

#include "kvtiers/shared_impl.h"

enum { FIRST_BUCKETS = 1024 };

static struct shared_link **bucket_of(const struct shared_table *a, uint64_t hash)
{
    return &a->bucket[hash & (a->n_buckets - 1)];
}

bool shared_table_new(struct shared_table *a)
{
    a->bucket = calloc(FIRST_BUCKETS, sizeof(struct shared_link *));
    a->n_buckets = a->bucket ? FIRST_BUCKETS : 0;
    return a->bucket != NULL;
}

/* Without memory for more buckets the chains get longer. */
static void grow(struct shared_table *a)
{
    struct shared_table b = {.n_buckets = 2 * a->n_buckets, .n = a->n};
    b.bucket = calloc(b.n_buckets, sizeof(struct shared_link *));
    if (!b.bucket)
        return;
    for (size_t i = 0; i < a->n_buckets; i++)
        for (struct shared_link *l = a->bucket[i], *next; l; l = next) {
            next = l->next;
            l->next = *bucket_of(&b, l->hash);
            *bucket_of(&b, l->hash) = l;
        }
    free(a->bucket);
    *a = b;
}

void shared_table_add(struct shared_table *a, struct shared_link *l, uint64_t hash)
{
    if (a->n >= a->n_buckets)
        grow(a);
    l->hash = hash;
    l->next = *bucket_of(a, hash);
    *bucket_of(a, hash) = l;
    a->n++;
}

void shared_table_remove(struct shared_table *a, struct shared_link *l)
{
    struct shared_link **at = bucket_of(a, l->hash);
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    a->n--;
}

static struct shared_link *same_hash(struct shared_link *l, uint64_t hash)
{
    while (l && l->hash != hash)
        l = l->next;
    return l;
}

struct shared_link *shared_table_first(const struct shared_table *a, uint64_t hash)
{
    return same_hash(*bucket_of(a, hash), hash);
}

struct shared_link *shared_table_next(const struct shared_link *l)
{
    return same_hash(l->next, l->hash);
}

void shared_table_free(struct shared_table *a)
{
    free(a->bucket);
    *a = (struct shared_table){0};
}
