/* Rows of tables for `weft bench kv`: from a mapped file, through the cache of kvtiers/rows.h, and from the device.
 * Main thread. */
#ifndef WEFT_CLI_BENCH_KV_ROWS_H
#define WEFT_CLI_BENCH_KV_ROWS_H

#include "kvtiers/storage.h"

/* The published model: 24 rows per token and table, of 256 bytes and 8 of scales, which lie elsewhere in the file. */
enum { BENCH_ROWS_TOKEN = 24, BENCH_ROWS_A = 256, BENCH_ROWS_B = 8, BENCH_ROWS_MANY = 64 };

struct bench_kv_rows_arg {
    struct kv_storage *storage; /* of the folder */
    const char *folder;         /* a file is made in it, and removed */
    int rounds;
    double seconds; /* of a measurement, about */
    int depth;      /* of fio */
};

/* Medians of the rounds. */
struct bench_kv_rows_one {
    double us;   /* rows of one token, alone */
    double many; /* rows per second, of BENCH_ROWS_MANY tokens at a time */
};

struct bench_kv_rows {
    struct bench_kv_rows_one mapped, mapped_cold; /* the file is in memory; little of it is */
    struct bench_kv_rows_one cached, read;        /* all rows are in the cache; none is */
    double fio;                                   /* pages of 4 KiB per second, at random places; 0: no fio */
};

/* 0, or a negative errno with a sentence. */
int bench_kv_rows(const struct bench_kv_rows_arg *arg, struct bench_kv_rows *out, struct cfg_error *err);

#endif
