#include "kvtiers/placement.h"

#include <string.h>
#include <xxhash.h>

uint64_t kv_place_id(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

int kv_place(const struct kv_key *key, const uint64_t *id, const bool *there, int n)
{
    int best = -1;
    uint64_t most = 0;
    for (int i = 0; i < n; i++) {
        if (!there[i])
            continue;
        uint64_t score = XXH3_64bits_withSeed(key->b, sizeof key->b, id[i]);
        /* Of equal scores the lower id, not the place in the list. */
        if (best < 0 || score > most || (score == most && id[i] < id[best])) {
            best = i;
            most = score;
        }
    }
    return best;
}
