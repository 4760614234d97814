/* The program: its table of commands and nothing else. Each command lives in cli/. */
#include <stddef.h>

#include "cli/cli.h"
#include "cli/model_info.h"
#include "cli/tokenize.h"

static const struct cli_command commands[] = {
    {"serve", "serve a model over HTTP", cli_serve_run},
    {"check", "whether a configuration could be served on this machine", cli_check_run},
    {"up", "start the nodes of a deployment that belong to this machine, and watch them", cli_up_run},
    {"down", "end what `weft up` started", cli_down_run},
    {"status", "every node of a deployment: health, progress, load", cli_status_run},
    {"drain", "let a node of a deployment finish and end", cli_drain_run},
    {"generate", "text from a prompt, a conversation or a file of prompts", cli_generate_run},
    {"fidelity", "distance of bounded replay and prefix hits from exact mode", cli_fidelity_run},
    {"perplexity", "how well a model predicts a text", cli_perplexity_run},
    {"score", "logits and inner values of given token ids", cli_score_run},
    {"model", "what a checkpoint holds and what a node needs for it", cli_model_run},
    {"calibrate", "fit the drafter's confidences to what is kept", cli_calibrate_run},
    {"simulate", "what planned verification gains on a machine that is described by a profile", cli_simulate_run},
    {"tokenize", "text to token ids and back", cli_tokenize_run},
    {"kv", "what the tiers of a configuration hold: list, verify, drop", cli_kv_run},
    {"bench", "measure a part of Weft on this machine", cli_bench_run},
    {"config", "check, explain and print configuration files", cli_config_run},
    {"version", "print the version", cli_version_run},
    {"help", "explain a command", cli_help_run},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return cli_main(commands, argc, argv);
}
