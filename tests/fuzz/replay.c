/* Replays the corpus of one fuzz target through its entry point, without libFuzzer, so that every test run checks it.
 *
 * The target is named by the program (fuzz_NAME reads tests/fuzz/corpus/NAME); files or folders may be given instead.
 * Each file is tried whole, cut at many lengths, and with single bytes changed by a fixed sequence. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CUTS = 64, CHANGES = 128 };

/* A copy of exactly the right size, so that a sanitizer sees a read past the end. */
static void try_input(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void try_variants(uint8_t *data, size_t size)
{
    try_input(data, size);
    for (size_t i = 0; i < CUTS; i++)
        try_input(data, size * i / CUTS);
    uint32_t state = 1;
    for (int i = 0; size && i < CHANGES; i++) {
        state = state * 1664525u + 1013904223u;
        size_t at = (size_t)(state >> 8) % size;
        uint8_t old = data[at];
        state = state * 1664525u + 1013904223u;
        data[at] = (uint8_t)(state >> 24);
        try_input(data, size);
        data[at] = old;
    }
}

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    int bad = !data || size < 0 || fread(data, 1, (size_t)size, f) != (size_t)size;
    fclose(f);
    if (bad)
        fprintf(stderr, "%s: cannot be read\n", path);
    else
        try_variants(data, (size_t)size);
    free(data);
    return bad;
}

static int replay_path(const char *path, int *count)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        return 1;
    }
    if (!S_ISDIR(st.st_mode)) {
        ++*count;
        return replay_file(path);
    }
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort);
    if (n < 0) {
        perror(path);
        return 1;
    }
    int bad = 0;
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.') {
            char *full = NULL;
            bad |= asprintf(&full, "%s/%s", path, names[i]->d_name) < 0 || replay_path(full, count);
            free(full);
        }
        free(names[i]);
    }
    free(names);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0, count = 0;
    try_input((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        bad |= replay_path(argv[i], &count);
    const char *name = strrchr(argv[0], '/');
    name = name ? name + 1 : argv[0];
    if (argc == 1 && strncmp(name, "fuzz_", 5) == 0) {
        char path[4096];
        struct stat st;
        snprintf(path, sizeof path, "tests/fuzz/corpus/%s", name + 5);
        if (stat(path, &st) == 0)
            bad |= replay_path(path, &count);
    }
    printf("%d corpus files replayed\n", count);
    return bad;
}
