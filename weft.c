/* The program: its table of commands and nothing else. Each command lives in cli/. */
#include <stddef.h>

#include "cli/cli.h"

static const struct cli_command commands[] = {
    {"score", "logits and inner values of given token ids", cli_score_run},
    {"config", "check, explain and print configuration files", cli_config_run},
    {"version", "print the version", cli_version_run},
    {"help", "explain a command", cli_help_run},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    return cli_main(commands, argc, argv);
}
