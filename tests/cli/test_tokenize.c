/* weft tokenize: the command around the tokenizer. */
#include "tests/harness.h"
#include "tests/support/process.h"

#define FIXTURE "tests/fixtures/tokenizer"

static void expect_run(struct ts_result r, int status, const char *out, const char *err)
{
    cr_expect_eq(r.status, status, "exit status %d\nout: %s\nerr: %s", r.status, r.out, r.err);
    cr_expect_str_eq(r.out, out);
    cr_expect(strstr(r.err, err) && (*err || !*r.err), "should say: %s\nsaid: %s", err, r.err);
    ts_result_free(&r);
}

Test(tokenize, text_to_ids_and_back)
{
    struct ts_result ids = ts_run_input("The miller said <|EOT|>", ts_weft(), "tokenize", "-m", FIXTURE);
    cr_assert_eq(ids.status, 0, "%s", ids.err);
    cr_expect(strchr(ids.out, '\n') == ids.out + ids.out_len - 1, "one line: %s", ids.out);
    expect_run(ts_run_input(ids.out, ts_weft(), "tokenize", "-m", FIXTURE, "--decode"), 0, "The miller said <|EOT|>",
               "");
    expect_run(ts_run_input(ids.out, ts_weft(), "tokenize", "-m", FIXTURE, "-d", "--no-special"), 0, "The miller said ",
               "");
    struct ts_result plain =
        ts_run_input("The miller said <|EOT|>", ts_weft(), "tokenize", "-m", FIXTURE, "--no-special");
    cr_expect_str_neq(plain.out, ids.out);
    expect_run(ts_run_input(plain.out, ts_weft(), "tokenize", "-m", FIXTURE, "-d"), 0, "The miller said <|EOT|>", "");
    ts_result_free(&ids);
    ts_result_free(&plain);
}

Test(tokenize, files_and_json_lines)
{
    char *dir = ts_temp_dir(), *path = ts_write_file(dir, "text", "a!");
    expect_run(ts_run(ts_weft(), "tokenize", "-m", FIXTURE, path), 0, "100 36\n", "");
    expect_run(ts_run_input("\"a!\"\n\"\"\n\"\\u0000\"\n", ts_weft(), "tokenize", "-m", FIXTURE, "--json-lines"), 0,
               "[100,36]\n[]\n[3]\n", "");
    expect_run(ts_run_input("[100,36]\n[]\n[258]\n", ts_weft(), "tokenize", "-m", FIXTURE, "--json-lines", "-d"), 0,
               "\"a!\"\n\"\"\n\"\xef\xbf\xbd\"\n", "");
    ts_remove_dir(dir);
    free(path);
    free(dir);
}

Test(tokenize, mistakes)
{
    expect_run(ts_run(ts_weft(), "tokenize"), 2, "", "-m DIR");
    expect_run(ts_run(ts_weft(), "tokenize", "-m", "no-such-folder"), 1, "", "no-such-folder/tokenizer.json");
    expect_run(ts_run(ts_weft(), "tokenize", "-m", FIXTURE, "no-such-file"), 1, "", "no-such-file");
    expect_run(ts_run_input("12 x", ts_weft(), "tokenize", "-m", FIXTURE, "-d"), 1, "", "\"x\" is not an id");
    expect_run(ts_run_input("12 669", ts_weft(), "tokenize", "-m", FIXTURE, "-d"), 1, "", "id 669");
    expect_run(ts_run_input("5\n", ts_weft(), "tokenize", "-m", FIXTURE, "--json-lines"), 1, "", "line 1");
    expect_run(ts_run_input("\"a\"\n{\n", ts_weft(), "tokenize", "-m", FIXTURE, "--json-lines"), 1, "[100]\n",
               "line 2");
    expect_run(ts_run_input("[1,-1]\n", ts_weft(), "tokenize", "-m", FIXTURE, "--json-lines", "-d"), 1, "", "entry 1");
}
