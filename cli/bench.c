/* `weft bench NAME`: the benchmarks, by name. */
#include <stdio.h>
#include <string.h>

#include "cli/bench_actors.h"
#include "cli/bench_decode.h"
#include "cli/bench_eplb.h"
#include "cli/bench_exchange.h"
#include "cli/bench_kv.h"
#include "cli/bench_overlap.h"
#include "cli/bench_prefill.h"
#include "cli/bench_serve.h"
#include "cli/bench_transport.h"
#include "cli/cli.h"
#include "config/suggest.h"

static const struct cli_command benches[] = {
    {"actors", "messages between workers, beside the bare ring under them", cli_bench_actors_run},
    {"eplb", "how evenly a skewed trace falls on expert shards, before and after balancing", cli_bench_eplb_run},
    {"decode", "decoding with and without drafts: throughput over numbers of sequences", cli_bench_decode_run},
    {"exchange", "the expert exchange behind compute, with an injected link delay", cli_bench_exchange_run},
    {"kv", "reading and writing each tier, beside memcpy and fio", cli_bench_kv_run},
    {"overlap", "first token of a hit whose rows come from a slow tier", cli_bench_overlap_run},
    {"prefill", "one prompt alone through the model: step time over lengths and chunks", cli_bench_prefill_run},
    {"serve", "a server under load: first token, between tokens, queueing, throughput", cli_bench_serve_run},
    {"transport", "frames and puts of each provider, beside what is under it", cli_bench_transport_run},
    {NULL, NULL, NULL},
};

enum { BENCHES_MAX = 32 };

static void print_help(FILE *f)
{
    fputs("usage: weft bench NAME [OPTIONS]\n\nMeasures a part of Weft on this machine.\n\nbenchmarks:\n", f);
    for (const struct cli_command *b = benches; b->name; b++)
        fprintf(f, "  %-12s %s\n", b->name, b->summary);
    fputs("\n`weft bench NAME --help` explains one.\n", f);
}

int cli_bench_run(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return CLI_OK;
    }
    const char *names[BENCHES_MAX];
    size_t count = 0;
    for (const struct cli_command *b = benches; b->name; b++) {
        if (strcmp(b->name, argv[1]) == 0)
            return b->run(argc - 1, argv + 1);
        names[count++] = b->name;
    }
    const char *near = cfg_suggest(argv[1], names, count);
    if (near)
        return cli_error(CLI_USAGE, "there is no benchmark \"%s\"; did you mean \"%s\"?", argv[1], near);
    return cli_error(CLI_USAGE, "there is no benchmark \"%s\"; `weft bench --help` lists all", argv[1]);
}
