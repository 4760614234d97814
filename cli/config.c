/* `weft config`: checks, explains and prints configurations. */
#include "cli/cli.h"
#include "cli/options.h"

#include "config/config.h"

#include <stdio.h>
#include <stdlib.h>

struct arguments {
    const char *check, *dump;
    bool explain, markdown;
};

static int run_explain(const struct arguments *a, const char *key)
{
    struct cfg_error err;
    if (a->markdown && key)
        return cli_error(CLI_USAGE, "config: --markdown explains all keys; leave \"%s\" out", key);
    if (a->markdown)
        cfg_explain_markdown(stdout);
    else if (cfg_explain(key, stdout, &err) != 0)
        return cli_error(CLI_USAGE, "config: %s", err.msg);
    return CLI_OK;
}

static int run_file(const char *path, bool dump)
{
    struct cfg_report report = {0};
    struct cfg_config *c = malloc(sizeof *c);
    if (!c)
        return cli_error(CLI_FAILED, "out of memory");
    int rc = cfg_config_load(path, c, &report);
    if (rc == 0 && dump)
        cfg_config_dump(c, stdout);
    else if (rc == 0)
        printf("%s: no problems\n", path);
    cfg_report_print(&report, stderr);
    if (rc != 0 && !cfg_report_any(&report))
        cli_error(CLI_USAGE, "out of memory");
    cfg_report_free(&report);
    free(c);
    return rc == 0 ? CLI_OK : CLI_USAGE;
}

int cli_config_run(int argc, char **argv)
{
    struct arguments a = {0};
    const struct cli_option options[] = {
        {CLI_TEXT, "check", 'c', &a.check, "FILE", "report every problem of FILE; exit status 2 if there is any"},
        {CLI_TEXT, "dump", 'd', &a.dump, "FILE", "print every value that results from FILE"},
        {CLI_FLAG, "explain", 'e', &a.explain, NULL, "explain KEY, a group of keys, or all"},
        {CLI_FLAG, "markdown", 0, &a.markdown, NULL, "with --explain: the page docs/CONFIG.md"},
        {CLI_END},
    };
    const struct cli_usage usage = {
        .synopsis = "config --check FILE\nconfig --dump FILE\nconfig --explain [KEY | --markdown]",
        .intro = "Checks and explains configuration files.",
        .options = options,
        .max_args = 1,
    };
    int first;
    int status = cli_options_parse(&usage, argc, argv, &first);
    if (status != CLI_GO_ON)
        return status;
    if ((a.check != NULL) + (a.dump != NULL) + a.explain != 1)
        return cli_error(CLI_USAGE, "config: give one of --check, --dump and --explain; `weft config --help` explains");
    if (!a.explain && (first < argc || a.markdown))
        return cli_error(CLI_USAGE, "config: KEY and --markdown go with --explain; `weft config --help` explains");
    if (a.explain)
        return run_explain(&a, argv[first]);
    return run_file(a.check ? a.check : a.dump, a.dump != NULL);
}
