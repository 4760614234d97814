/* Fuzz target: any bytes as a configuration. What loads must also survive --dump and loading again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const struct cfg_config *c)
{
    static struct cfg_config again;
    struct cfg_report report = {0};
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f)
        return;
    cfg_config_dump(c, f);
    fclose(f);
    if (cfg_config_parse(text, len, "dump", &again, &report) != 0) {
        cfg_report_print(&report, stderr);
        fwrite(text, 1, len, stderr);
        abort();
    }
    cfg_report_free(&report);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cfg_config c;
    struct cfg_report report = {0};
    int rc = cfg_config_parse((const char *)data, size, "fuzz", &c, &report);
    if ((rc == 0) != !cfg_report_any(&report))
        abort();
    if (rc == 0)
        check_round_trip(&c);
    cfg_report_free(&report);
    return 0;
}
