/* Loading, checking, explaining and dumping configurations. */
#include "tests/harness.h"
#include "tests/support/process.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "config/config.h"
#include "config/keys.h"

/* Loads text and returns every problem as it would be printed; the caller frees it. */
static char *problems_of(const char *text, struct cfg_config *c, int *rc)
{
    struct cfg_report report = {0};
    *rc = cfg_config_parse(text, strlen(text), "t.conf", c, &report);
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    cr_assert_not_null(f);
    cfg_report_print(&report, f);
    fclose(f);
    cfg_report_free(&report);
    return out;
}

static void expect_problem(const char *text, const char *want)
{
    static struct cfg_config c;
    int rc;
    char *out = problems_of(text, &c, &rc);
    cr_expect_eq(rc, -EINVAL, "%s\ngave %d", text, rc);
    cr_expect(strstr(out, want), "%s\nshould say:\n%s\nsaid:\n%s", text, want, out);
    free(out);
}

static void expect_fine(const char *text, struct cfg_config *c)
{
    int rc;
    char *out = problems_of(text, c, &rc);
    cr_expect_eq(rc, 0, "%s\nsaid:\n%s", text, out);
    cr_expect_str_eq(out, "");
    free(out);
}

static size_t count_lines(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

Test(config, where_nodes_tell_their_figures)
{
    static struct cfg_config c;
#define THREE(gateway, first, second)                                                                                  \
    "cluster = { secret_file = \"s\"; state = \"d\"; };\nnodes = (\n{ name = \"g\"; roles = [\"gateway\", "            \
    "\"prefill\"]; "                                                                                                   \
    "listen = \"h:1\"; port = 1; " gateway " },\n{ name = \"a\"; roles = [\"decode\", \"expert\"]; port = 2; " first   \
    " },\n{ name = \"b\"; roles = [\"kv\"]; port = 3; " second " });\n"
    expect_fine(THREE("", "metrics = \"0.0.0.0:9\";", "metrics = \"[::]:10\";"), &c);
    cr_expect_str_eq(c.nodes[1].metrics, "0.0.0.0:9");
    expect_fine(THREE("", "metrics = \"h:0\";", "metrics = \"h:0\";"), &c); /* any free port */
    expect_problem(THREE("metrics = \"h:2\";", "", ""), "t.conf:3: node \"g\" has metrics, and is a gateway");
    expect_problem(THREE("", "metrics = \"h:2\";", "metrics = \"h:2\";"),
                   "t.conf:5: node \"b\" listens at h:2 on host 127.0.0.1, as node \"a\" does");
    expect_problem(THREE("", "metrics = \"h:1\";", ""), "as node \"g\" does");
    expect_problem(THREE("", "metrics = \"nowhere\";", ""), "is not HOST:PORT");
}

Test(config, nodes_that_keep_blocks)
{
    static struct cfg_config c;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fprintf(f, "cluster = { secret_file = \"s\"; state = \"d\"; };\nnodes = (\n{ name = \"a\"; roles = [\"gateway\", "
               "\"prefill\", \"decode\", \"expert\"]; listen = \"h:1\"; port = 1; }");
    for (int i = 0; i < 65; i++)
        fprintf(f, ",\n{ name = \"k%d\"; roles = [\"kv\"]; port = %d; }", i, i + 2);
    fputs(" );", f);
    fclose(f);
    expect_problem(text, "t.conf:68: node \"k64\" is the 65th node with the role kv; there may be 64. Take the role");
    *strstr(text, ",\n{ name = \"k64\"") = 0;
    strcat(text, ");");
    expect_fine(text, &c);
    free(text);
#define PAIR                                                                                                           \
    "cluster = { secret_file = \"s\"; state = \"d\"; };\nnodes = ({ name = \"a\"; roles = [\"gateway\", \"prefill\", " \
    "\"decode\", \"expert\"]; listen = \"h:1\"; port = 1; }, { name = \"k\"; roles = [\"kv\"]; port = 2; });\n"
    expect_problem(PAIR "kv = { nodes = {\n find_timeout = \"2s\"; }; };",
                   "t.conf:4: kv.nodes.find_timeout is longer than kv.nodes.quiet_timeout");
    expect_fine(PAIR "kv = { nodes = { find_timeout = \"2s\"; quiet_timeout = \"2s\"; }; };", &c);
}

Test(config, tls_needs_certificate_and_key)
{
    static struct cfg_config c;
    expect_problem("security = { tls_cert = \"a.pem\"; };", "security.tls_cert is given without security.tls_key");
    expect_problem("security = {\n tls_key = \"a.key\"; };",
                   "t.conf:2: security.tls_key is given without security.tls_cert");
    expect_fine("security = { tls_cert = \"a.pem\"; tls_key = \"a.key\"; keys_file = \"k\"; debug = true; };", &c);
    cr_expect(c.security.debug);
    cr_expect_str_eq(c.security.keys_file, "k");
}

Test(config, the_sample_file_holds_the_defaults)
{
    static struct cfg_config sample, plain;
    struct cfg_report report = {0};
    cr_assert_eq(cfg_config_load("config/single.conf", &sample, &report), 0);
    cr_assert_not(cfg_report_any(&report));
    cfg_config_default(&plain);
    char *a = NULL, *b = NULL;
    size_t na = 0, nb = 0;
    FILE *fa = open_memstream(&a, &na), *fb = open_memstream(&b, &nb);
    cfg_config_dump(&sample, fa);
    cfg_config_dump(&plain, fb);
    fclose(fa);
    fclose(fb);
    cr_expect_str_eq(a, b);
    free(a);
    free(b);
}

Test(config, every_key_stands_in_the_sample_file)
{
    static struct cfg_config sample;
    struct cfg_report report = {0};
    cr_assert_eq(cfg_config_load("config/single.conf", &sample, &report), 0);
    for (int i = 0; i < cfg_n_keys; i++)
        if (!strstr(cfg_keys[i].path, "[]"))
            cr_expect_gt(sample.places[i].line, 0, "%s is not in config/single.conf", cfg_keys[i].path);
}

Test(config, an_empty_file_gives_the_defaults)
{
    static struct cfg_config c;
    expect_fine("", &c);
    cr_expect_str_eq(c.model.path, "samples/tiny");
    cr_expect_eq(c.compute.max_batch_rows, 512);
    cr_expect_eq(c.replay.rollback, 12);
    cr_expect_eq(c.limits.request_bytes, 16 << 20);
    cr_expect_eq(c.log.progress_after_us, 1000000);
    cr_expect_eq(c.log.level, CFG_LOG_INFO);
    cr_expect_float_eq(c.sampling.temperature, 1.0, 0);
    cr_expect_eq(c.n_nodes, 1);
    cr_expect_str_eq(c.nodes[0].name, "local");
    cr_expect(c.nodes[0].roles & CFG_ROLE_KV);
}

Test(config, every_type_of_value_arrives)
{
    static struct cfg_config c;
    expect_fine("model = { path = \"m \\\"x\\\"\"; context = 4096L; };\n"
                "compute : { cpu = \"avx2\", threads = 0x10 }\n"
                "replay = { exact = TRUE; bridge_window = \"full\"; };\n"
                "sampling = { temperature = 0; top_p = 0.25; };\n"
                "limits = { request_bytes = \"2 MiB\"; };\n"
                "log = { progress_after = 250; format = \"json\"; };\n"
                "nodes = ( { name = \"a\"; roles = [\"gateway\", \"prefill\"]; listen = \"[::1]:80\"; port = 7; },\n"
                "          { name = \"b\"; roles = (\"decode\", \"expert\"); host = \"10.0.0.2\"; port = 7; } );\n"
                "cluster = { secret_file = \"s\"; state = \"t\"; ping = \"20ms\"; silence = 60; };\n",
                &c);
    cr_expect_str_eq(c.model.path, "m \"x\"");
    cr_expect_eq(c.model.context, 4096);
    cr_expect_eq(c.compute.cpu, CFG_CPU_AVX2);
    cr_expect_eq(c.compute.threads, 16);
    cr_expect(c.replay.exact);
    cr_expect_eq(c.replay.bridge_window, CFG_BRIDGE_FULL);
    cr_expect_float_eq(c.sampling.temperature, 0.0, 0);
    cr_expect_float_eq(c.sampling.top_p, 0.25, 0);
    cr_expect_eq(c.limits.request_bytes, 2 << 20);
    cr_expect_eq(c.log.progress_after_us, 250000);
    cr_expect_eq(c.log.format, CFG_LOG_JSON);
    cr_assert_eq(c.n_nodes, 2);
    cr_expect_eq(c.nodes[0].roles, CFG_ROLE_GATEWAY | CFG_ROLE_PREFILL);
    cr_expect_str_eq(c.nodes[0].host, "127.0.0.1", "the default of a key inside a list");
    cr_expect_str_eq(c.nodes[0].listen, "[::1]:80");
    cr_expect_eq(c.nodes[0].place.line, 7);
    cr_expect_str_eq(c.nodes[1].host, "10.0.0.2");
    cr_expect_eq(c.nodes[1].port, 7);
    cr_expect_eq(c.cluster.ping_us, 20000);
    cr_expect_eq(c.cluster.silence_us, 60000);
    cr_expect_eq(cfg_config_node(&c, "b"), &c.nodes[1]);
    cr_expect_null(cfg_config_node(&c, "c"));
}

Test(config, all_mistakes_are_reported_in_one_run)
{
    static struct cfg_config c;
    int rc;
    char *out = problems_of("model = { path = 3; nmae = \"x\"; context = -1; };\n"
                            "compute = { threads = \"many\";\n"
                            "            cpu = \"avx51\"; };\n"
                            "bogus = 1;\n"
                            "limits = { request_bytes = \"16 MiBs\"; };\n"
                            "nodes = ( { name = \"a\"; roles = [\"gateway\"]; port = 1; },\n"
                            "          { name = \"a\"; roles = [\"prefill\", \"decode\", \"expert\"]; port = 2; } );\n"
                            "cluster = { secret_file = \"s\"; state = \"t\"; };\n",
                            &c, &rc);
    cr_assert_eq(rc, -EINVAL);
    static const char *const want[] = {
        "t.conf:1: model.path is an integer, not a value of type \"text\". Write a text in double quotes",
        "t.conf:1: unknown key model.nmae. Did you mean \"name\"?",
        "t.conf:1: model.context = -1 is out of range (0 to 16777216). Write an integer, 0 to 16777216 (default 0).",
        "t.conf:2: compute.threads is a text, not a value of type \"integer\".",
        "t.conf:3: compute.cpu: there is no \"avx51\". Did you mean \"avx512\"?",
        "t.conf:4: unknown key bogus. Take it out;",
        "t.conf:5: limits.request_bytes = \"16 MiBs\" is not a size.",
        "t.conf:6: node \"a\" has the role gateway but no listen.",
        "t.conf:7: the node name \"a\" is taken by the node at t.conf:6.",
    };
    const char *at = out;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const char *found = strstr(at, want[i]);
        cr_expect_not_null(found, "missing, or not in order of lines:\n%s\nin:\n%s", want[i], out);
        at = found ? found : at;
    }
    cr_expect_eq(count_lines(out), sizeof want / sizeof want[0], "nothing else is reported:\n%s", out);
    free(out);
}

Test(config, ranges_types_and_forms_are_checked)
{
    expect_problem("compute = { threads = 1025; };", "compute.threads = 1025 is out of range (0 to 1024)");
    expect_problem("compute = { threads = 1.5; };", "is a number with a fraction");
    expect_problem("compute = { threads = true; };", "is a truth value");
    expect_problem("compute = { threads = [1]; };", "is an array");
    expect_problem("compute = 1;", "compute is an integer, not a value of type \"group\"");
    expect_problem("replay = { exact = 1; };", "Write true or false (default false).");
    expect_problem("sampling = { top_p = 0; };", "sampling.top_p = 0 is out of range (above 0, up to 1)");
    expect_problem("sampling = { temperature = 1e999; };", "sampling.temperature = inf is out of range (0 to 2)");
    expect_problem("sampling = { temperature = \"1\"; };", "is a text, not a value of type \"number\"");
    expect_problem("limits = { request_bytes = \"1PiB\"; };", "is not a size");
    expect_problem("limits = { request_bytes = \"99999999TiB\"; };", "is out of range (1KiB to 1GiB)");
    expect_problem("limits = { request_bytes = 10; };", "limits.request_bytes = 10 is out of range");
    expect_problem("log = { progress_after = \"2h\"; };", "or a plain number of ms");
    expect_problem("log = { progress_after = true; };", "is a truth value");
    expect_problem("log = { level = 3; };", "log.level is an integer");
    expect_problem("model = { path = \"\"; };", "model.path is empty");
    expect_problem("model = { name = \"a\\x01\"; };", "model.name has a control character");
    expect_problem("model = { name = \"0123456789012345678901234567890123456789012345678901234567890123\"; };",
                   "model.name is longer than 63 bytes");
    expect_problem("compute = { top_p = 1.0; };", "unknown key compute.top_p. Did you mean sampling.top_p?");
}

/* libconfig alone would take these for small numbers. */
Test(config, wide_integers_are_not_cut)
{
    expect_problem("compute = { threads = 4294967297; };", "compute.threads = 4294967297 is out of range");
    expect_problem("compute = { threads = 0x100000001; };", "compute.threads = 4294967297 is out of range");
    expect_problem("compute = { threads = 99999999999999999999; };", "compute.threads = 9223372036854775807 is out");
    expect_problem("compute = { threads = -99999999999999999999; };", "compute.threads = -9223372036854775807 is out");
    expect_problem("a-4294967297 = 1;", "unknown key a-4294967297.");
    static struct cfg_config c;
    expect_fine("model = { name = \"4294967297\"; }; # 4294967297\n/* 4294967297 */\n", &c);
    cr_expect_str_eq(c.model.name, "4294967297");
}

Test(config, lists_of_groups_are_checked)
{
    expect_problem("nodes = ();", "nodes is empty. Name at least one");
    expect_problem("nodes = [1];", "nodes is an array, not a value of type \"list of groups\"");
    expect_problem("nodes = ( 1 );", "nodes: element 1 is an integer, not a group");
    expect_problem("nodes = (\n{ roles = [\"kv\"]; } );", "t.conf:2: nodes[].name is missing. Add name = ... .");
    expect_problem("nodes = ( { name = \"a\"; } );", "nodes[].roles is missing");
    expect_problem("nodes = ( { name = \"a\"; roles = []; } );", "nodes[].roles is empty");
    expect_problem("nodes = ( { name = \"a\"; roles = \"kv\"; } );", "nodes[].roles is a text");
    expect_problem("nodes = ( { name = \"a\"; roles = [\"gatway\"]; } );", "Did you mean \"gateway\"?");
    expect_problem("nodes = ( { name = \"a\"; roles = [\"kv\", \"kv\"]; } );", "names \"kv\" twice");
    expect_problem("nodes = ( { name = \"a\"; roles = (1); } );", "nodes[].roles is an integer");
    expect_problem("nodes = ( { name = \"a\"; roles = [\"kv\"]; colour = 1; } );", "unknown key nodes[].colour");
    expect_problem("nodes = ( { name = \"\"; roles = [\"kv\"]; } );", "nodes[].name is empty");
    expect_problem("nodes = ( { name = \"a\"; roles = [\"kv\"]; } );", "no node has the role \"gateway\"");
    expect_problem("nodes = ( { name = \"a\"; roles = [\"kv\"]; listen = \"h:1\"; } );", "not the role gateway");
    expect_problem("nodes = ( { name = \"a\"; roles = [\"gateway\"]; listen = \"nowhere\"; } );", "is not HOST:PORT");
    expect_problem("nodes = ( { name = \"a\"; roles = [\"gateway\"]; listen = \"h:1\"; },\n"
                   "          { name = \"b\"; roles = [\"gateway\"]; listen = \"h:1\"; } );",
                   "t.conf:2: node \"b\" listens at h:1 on host 127.0.0.1, as node \"a\" does");
}

Test(config, several_nodes_need_to_reach_each_other)
{
#define TWO(a, b, rest)                                                                                                \
    "nodes = ( { name = \"a\"; roles = [\"gateway\", \"prefill\", \"decode\"]; listen = \"h:1\"; " a " },\n"           \
    "          { name = \"b\"; roles = [\"expert\"]; " b " } );\n" rest
    static struct cfg_config c;
    expect_fine(TWO("port = 1;", "port = 2;", "cluster = { secret_file = \"s\"; state = \"t\"; };"), &c);
    expect_problem(TWO("port = 1;", "", ""), "t.conf:2: node \"b\" has no port where the others reach it. Add port");
    expect_problem(TWO("port = 1;", "port = 1;", ""),
                   "t.conf:2: node \"b\" is reached at 127.0.0.1:1, as node \"a\" is");
    expect_problem(TWO("port = 1;", "port = 2;", ""), "several nodes need cluster.secret_file. Add");
    expect_problem(TWO("port = 1;", "port = 2;", ""), "several nodes need cluster.state. Add");
    expect_problem("cluster = { ping = 2000; silence = 1000; };", "cluster.silence is shorter than cluster.ping");
#undef TWO
}

Test(config, impossible_combinations_are_reported)
{
    expect_problem("compute = { prefill_chunk = 1024; };",
                   "t.conf:1: compute.prefill_chunk = 1024 is more than compute.max_batch_rows = 512");
    expect_problem("\ncompute = { max_batch_rows = 100; };",
                   "t.conf:2: compute.prefill_chunk = 256 is more than compute.max_batch_rows = 100");
    expect_problem("compute = { max_batch_rows = 3; prefill_chunk = 3; };", "needs 4 rows");
    expect_problem("replay = { exact = true; rows = 200; };", "replay.rows = 200 has no meaning with replay.exact");
    expect_problem("replay = { rollback = 2; };", "speculation.draft_length = 3 is more than replay.rollback = 2");
    expect_problem("replay = { rows = 12; };", "replay.rows = 12 is not more than replay.rollback = 12");
    expect_problem("model = { context = 100; };\nsampling = { max_tokens = 101; };",
                   "t.conf:2: sampling.max_tokens = 101 is more than model.context = 100");
}

Test(config, combinations_with_the_model_are_reported)
{
    static struct cfg_config c;
    struct cfg_report report = {0};
    expect_fine("replay = { rows = 139; };\nmodel = { context = 5000; };\nspeculation = { draft_length = 5; };\n", &c);
    cr_expect_eq(cfg_config_check_model(&c, 128, 4096, 4, &report), -EINVAL);
    cr_assert_eq(report.count, 3);
    cr_expect_str_eq(report.problems[0].message,
                     "replay.rows = 139 is less than the sliding window of the model, 128, plus replay.rollback = 12");
    cr_expect_eq(report.problems[0].line, 1);
    cr_expect_str_eq(report.problems[0].file, "t.conf");
    cr_expect_eq(report.problems[1].line, 2);
    cr_expect_eq(report.problems[2].line, 3);
    cfg_report_free(&report);
    cr_expect_eq(cfg_config_check_model(&c, 127, 5000, 5, &report), 0);
    cr_expect_not(cfg_report_any(&report));
    cr_expect_eq(cfg_replay_rows(&c, 127), 139);
    expect_fine("", &c);
    cr_expect_eq(cfg_replay_rows(&c, 128), 140);
    char text[64];
    cfg_replay_text(&c, 128, true, text, sizeof text);
    cr_expect_str_eq(text, "rows = 140, bridge_window = truncate");
    c.replay.bridge_window = CFG_BRIDGE_FULL;
    cfg_replay_text(&c, 128, true, text, sizeof text);
    cr_expect_str_eq(text, "rows = 140, bridge_window = full");
    cfg_replay_text(&c, 128, false, text, sizeof text);
    cr_expect_str_eq(text, "exact = true");
    c.replay.exact = true;
    cfg_replay_text(&c, 128, true, text, sizeof text);
    cr_expect_str_eq(text, "exact = true");
    cr_expect_eq(cfg_config_check_model(&c, 128, 4096, 0, &report), 0, "a default draft length needs no drafter");
}

Test(config, text_that_is_no_configuration)
{
    expect_problem("a =", "t.conf:1: not in the form of a configuration file");
    expect_problem("log = {\n level = \"info\";\n level = \"debug\";\n};", "t.conf:3: a key is given twice");
    expect_problem("model = {\n name = \"a\n", "the file ends inside a string");
    expect_problem("/* never closed", "the file ends inside a comment");
    expect_problem("model = {\n name \"a\";\n};", "t.conf:2: a text stands where none can be. Write NAME = ");
    expect_problem("log = { level = \"info\", \"debug\" };", "t.conf:1: a text stands where none can be");
    expect_problem("\"a\"", "t.conf:1: a text stands where none can be");
    char deep[200];
    memset(deep, '(', sizeof deep);
    memcpy(deep, "a =", 3);
    deep[sizeof deep - 1] = 0;
    expect_problem(deep, "t.conf:1: brackets are nested too deeply");
    expect_problem("log.level = \"info\";", "t.conf:1: not in the form");
    expect_problem("@include \"x\"", "t.conf:1: @include is not possible in this place");
    static struct cfg_config c;
    struct cfg_report report = {0};
    cr_expect_eq(cfg_config_parse("a\0b", 3, "zero", &c, &report), -EINVAL);
    cr_assert_eq(report.count, 1);
    cr_expect_str_eq(report.problems[0].message, "a zero byte is in the file");
    cfg_report_free(&report);
}

Test(config, lines_are_right_far_down)
{
    enum { LINES = 70000 };
    static const char end[] = "x = 1;\n";
    char *text = malloc(LINES + sizeof end);
    cr_assert_not_null(text);
    memset(text, '\n', LINES);
    memcpy(text + LINES, end, sizeof end);
    expect_problem(text, "t.conf:70001: unknown key x.");
    free(text);
}

Test(config, more_problems_than_anyone_reads)
{
    char text[8192];
    size_t len = 0;
    for (int i = 0; i < CFG_PROBLEMS_MAX + 50; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "k%d = 1;\n", i);
    static struct cfg_config c;
    int rc;
    char *out = problems_of(text, &c, &rc);
    cr_expect_eq(rc, -EINVAL);
    cr_expect_eq(count_lines(out), CFG_PROBLEMS_MAX + 1);
    cr_expect(strstr(out, "... and 50 more\n"));
    free(out);
}

static char *load_problems(const char *path, struct cfg_config *c, int *rc)
{
    struct cfg_report report = {0};
    *rc = cfg_config_load(path, c, &report);
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    cfg_report_print(&report, f);
    fclose(f);
    cfg_report_free(&report);
    return out;
}

Test(config, included_files_keep_their_names_and_lines)
{
    static struct cfg_config c;
    char *dir = ts_temp_dir(), want[4096];
    cr_assert_not_null(dir);
    char sub[1024];
    snprintf(sub, sizeof sub, "%s/sub", dir);
    cr_assert_eq(mkdir(sub, 0700), 0);
    char *main_file = ts_write_file(dir, "main.conf",
                                    "x1 = 1;\n"
                                    "/* @include \"missing\" */\n"
                                    "  @include \"sub/one.conf\" # a comment\n"
                                    "x4 = 1;\n"
                                    "@include \"missing\"\n"
                                    "@include \"sub\"\n"
                                    "@include missing\n"
                                    "x8 = 1;\n");
    char *one = ts_write_file(dir, "sub/one.conf", "y1 = 1;\n@include \"two.conf\"\n\ny4 = 1;");
    char *two = ts_write_file(dir, "sub/two.conf", "# first\nmodel = { context = 77; };\nz3 = 1;\n");
    int rc;
    char *out = load_problems(main_file, &c, &rc);
    cr_expect_eq(rc, -EINVAL);
    snprintf(want, sizeof want,
             "%1$s/main.conf:1: unknown key x1. Take it out; `weft config --explain` lists all keys.\n"
             "%1$s/main.conf:4: unknown key x4. Take it out; `weft config --explain` lists all keys.\n"
             "%1$s/main.conf:5: the included file %1$s/missing cannot be read: No such file or directory. Names are "
             "looked up in the folder of the file that includes them; correct the name.\n"
             "%1$s/main.conf:6: the included file %1$s/sub cannot be read: Is a directory. Names are looked up in the "
             "folder of the file that includes them; correct the name.\n"
             "%1$s/main.conf:7: malformed @include. Write @include \"NAME\" alone on its line.\n"
             "%1$s/main.conf:8: unknown key x8. Take it out; `weft config --explain` lists all keys.\n"
             "%1$s/sub/one.conf:1: unknown key y1. Take it out; `weft config --explain` lists all keys.\n"
             "%1$s/sub/one.conf:4: unknown key y4. Take it out; `weft config --explain` lists all keys.\n"
             "%1$s/sub/two.conf:3: unknown key z3. Take it out; `weft config --explain` lists all keys.\n",
             dir);
    cr_expect_str_eq(out, want);
    cr_expect_eq(c.model.context, 77);
    int key = cfg_key_find("model.context");
    cr_expect_eq(c.places[key].line, 2);
    cr_expect_str_eq(c.files[c.places[key].file], two);
    free(out);
    free(main_file);
    free(one);
    free(two);
    ts_remove_dir(dir);
    free(dir);
}

Test(config, a_file_that_includes_itself_is_refused)
{
    static struct cfg_config c;
    char *dir = ts_temp_dir();
    cr_assert_not_null(dir);
    char *file = ts_write_file(dir, "self.conf", "@include \"self.conf\"\n");
    int rc;
    char *out = load_problems(file, &c, &rc);
    cr_expect_eq(rc, -EINVAL);
    cr_expect(strstr(out, "self.conf:1: @include more than 8 files deep. Does a file include itself?"), "%s", out);
    free(out);
    free(file);
    ts_remove_dir(dir);
    free(dir);
}

Test(config, files_that_cannot_be_read)
{
    static struct cfg_config c;
    int rc;
    char *out = load_problems("tests/no-such-file.conf", &c, &rc);
    cr_expect_eq(rc, -ENOENT);
    cr_expect(strstr(out, "tests/no-such-file.conf: cannot be read: No such file"), "%s", out);
    free(out);
    out = load_problems("tests", &c, &rc);
    cr_expect_eq(rc, -EISDIR);
    free(out);
    out = load_problems("/dev/zero", &c, &rc);
    cr_expect_eq(rc, -EINVAL);
    cr_expect(strstr(out, "not a regular file"), "%s", out);
    free(out);
}

Test(config, a_dump_loads_to_the_same_values)
{
    static struct cfg_config c, again;
    expect_fine("model = { path = \"a\\\\b \\\"c\\\"\"; };\n"
                "sampling = { temperature = 0.1; min_p = 1e-7; top_p = 1; };\n"
                "limits = { request_bytes = 1025; };\nlog = { progress_after = \"1500us\"; };\n"
                "nodes = ( { name = \"a\"; roles = [\"gateway\", \"prefill\", \"decode\", \"expert\"]; listen = "
                "\"x:1\"; } );\n",
                &c);
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    cfg_config_dump(&c, f);
    fclose(f);
    expect_fine(text, &again);
    free(text);
    cr_expect_str_eq(again.model.path, "a\\b \"c\"");
    cr_expect_float_eq(again.sampling.temperature, 0.1, 0);
    cr_expect_float_eq(again.sampling.min_p, 1e-7, 0);
    cr_expect_eq(again.limits.request_bytes, 1025);
    cr_expect_eq(again.log.progress_after_us, 1500);
    cr_assert_eq(again.n_nodes, 1);
    cr_expect_eq(again.nodes[0].roles, c.nodes[0].roles);
    cr_expect_str_eq(again.nodes[0].listen, "x:1");
}

/* The table is data; a slip in it would show far from here. */
Test(config, the_table_is_consistent)
{
    static struct cfg_config c;
    const char *group = "";
    for (int i = 0; i < cfg_n_keys; i++) {
        const struct cfg_key *k = &cfg_keys[i];
        cr_expect_eq(cfg_key_find(k->path), i, "%s is in the table twice", k->path);
        cr_expect(k->help && k->help[strlen(k->help) - 1] == '.', "%s: help is a sentence", k->path);
        if (k->type == CFG_GROUP || k->type == CFG_LIST) {
            group = k->path;
            continue;
        }
        cr_expect_eq(strncmp(k->path, group, strlen(group)), 0, "%s stands apart from its group", k->path);
        cr_expect_gt(k->size, 0, "%s has no field", k->path);
        cr_expect(k->required != (k->fallback != NULL), "%s: either required or with a default", k->path);
        cr_expect((k->type == CFG_ENUM || k->type == CFG_SET) == (k->values != NULL), "%s: values", k->path);
        if (k->type == CFG_INT || k->type == CFG_DOUBLE || k->type == CFG_SIZE || k->type == CFG_DURATION)
            cr_expect_lt(k->min, k->max, "%s has no range", k->path);
        /* A default is a legal value: a file that spells it out loads. */
        char value[4 * CFG_PATH_TEXT], text[5 * CFG_PATH_TEXT];
        if (strstr(k->path, "[]") || !k->fallback)
            continue;
        cfg_config_default(&c);
        cfg_key_print(i, &c, value, sizeof value);
        const char *inner = strchr(group, '.'); /* a group inside a group */
        if (inner)
            snprintf(text, sizeof text, "%.*s = { %s = { %s = %s; }; };", (int)(inner - group), group, inner + 1,
                     strrchr(k->path, '.') + 1, value);
        else
            snprintf(text, sizeof text, "%s = { %s = %s; };", group, strrchr(k->path, '.') + 1, value);
        expect_fine(text, &c);
    }
}

Test(config, docs_equal_the_table)
{
    char *want = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&want, &len);
    cfg_explain_markdown(f);
    fclose(f);
    char *have = ts_read_file("docs/CONFIG.md", NULL);
    cr_assert_not_null(have, "docs/CONFIG.md is missing; `make docs` writes it");
    cr_expect(strcmp(have, want) == 0, "docs/CONFIG.md is out of date; `make docs` writes it again");
    free(have);
    free(want);
}

Test(config, explain_names_a_key_a_group_or_nothing)
{
    struct cfg_error err;
    char *out = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&out, &len);
    cr_expect_eq(cfg_explain("compute.threads", f, &err), 0);
    cr_expect_eq(cfg_explain("replay", f, &err), 0);
    fclose(f);
    cr_expect(strstr(out, "compute.threads\n    integer, threads; 0 to 1024; default 0\n"), "%s", out);
    cr_expect(strstr(out, "replay.bridge_window\n    choice; one of truncate, full; default \"truncate\"\n"), "%s",
              out);
    cr_expect_null(strstr(out, "compute.cpu"), "%s", out);
    free(out);
    cr_expect_eq(cfg_explain("compute.thread", stdout, &err), -ENOENT);
    cr_expect_str_eq(err.msg, "there is no key \"compute.thread\"; did you mean \"compute.threads\"?");
}
