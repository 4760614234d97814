/* What two readings of a file differ in, and which deployments are ready for kv nodes. */
#include "tests/harness.h"

#include <string.h>

#include "config/config.h"

TestSuite(compare);

static struct cfg_config *parsed(const char *text)
{
    struct cfg_report report = {0};
    struct cfg_config *c = calloc(1, sizeof *c);
    cr_assert_eq(cfg_config_parse(text, strlen(text), "t.conf", c, &report), 0, "%s", text);
    cfg_report_free(&report);
    return c;
}

static void note(void *ctx, const char *key, const char *was, const char *is)
{
    fprintf(ctx, "%s: %s, %s\n", key, was, is);
}

static void expect_differences(const struct cfg_config *a, const struct cfg_config *b, const char *want)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    cfg_config_compare(a, b, note, f);
    cfg_node_compare(&a->nodes[0], &b->nodes[0], note, f);
    fclose(f);
    cr_expect_str_eq(text, want);
    free(text);
}

#define TWO(kv)                                                                                                        \
    "cluster = { secret_file = \"s\"; state = \"st\"; };\n" kv                                                         \
    "nodes = ( { name = \"a\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; port = 1; listen = "        \
    "\"127.0.0.1:2\"; },\n{ name = \"b\"; roles = [\"decode\"]; port = 3; } );\n"

Test(compare, keys_and_entries_that_differ)
{
    struct cfg_config *a = parsed("model = { path = \"here\"; };\nlimits = { requests = 8; drain = \"2s\"; };\n"),
                      *b = parsed("limits = { requests = 9; drain = \"2000ms\"; };\nmodel = { path = \"there\"; };\n"
                                  "kv = { memory = \"1GiB\"; };\n"),
                      *c = parsed("nodes = ( { name = \"local\"; roles = [\"gateway\", \"prefill\", \"decode\", "
                                  "\"expert\"]; listen = \"127.0.0.1:9\"; } );\n");
    expect_differences(a, a, "");
    char want[256];
    snprintf(want, sizeof want, "model.path: \"here\", \"there\"\nlimits.requests: 8, 9\n");
    b->kv.memory = a->kv.memory;
    expect_differences(a, b, want);
    cfg_config_overrides(a, "model.path"); /* then the file has no say */
    expect_differences(a, b, "limits.requests: 8, 9\n");
    a->limits.requests = b->limits.requests;
    expect_differences(b, b, "");
    memcpy(&b->limits, &c->limits, sizeof b->limits);
    memcpy(&b->model, &c->model, sizeof b->model);
    memcpy(b->nodes[0].name, c->nodes[0].name, sizeof c->nodes[0].name);
    b->nodes[0].roles = c->nodes[0].roles;
    expect_differences(b, c, "nodes[].listen: \"127.0.0.1:8000\", \"127.0.0.1:9\"\n");
    free(a);
    free(b);
    free(c);
}

Test(compare, nodes_are_ready_for_kv_nodes_where_the_file_speaks_of_them)
{
    struct cfg_config *none = parsed(TWO("")), *expected = parsed(TWO("kv = { nodes = { memory = \"1GiB\"; }; };\n")),
                      *alone = parsed("kv = { nodes = { memory = \"1GiB\"; }; };\n");
    cr_expect_not(cfg_uses_kv_nodes(none));
    cr_expect(cfg_uses_kv_nodes(expected));
    cr_expect_not(cfg_uses_kv_nodes(alone), "there are no other nodes");
    none->nodes[1].roles |= CFG_ROLE_KV;
    cr_expect(cfg_uses_kv_nodes(none));
    free(none);
    free(expected);
    free(alone);
}
