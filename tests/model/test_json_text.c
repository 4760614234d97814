/* JSON as the model was trained to read it. */
#include "tests/harness.h"

#include <jansson.h>

#include "model/json_text.h"

static void expect(const char *json, const char *want)
{
    json_error_t je;
    json_t *v = json_loads(json, JSON_DECODE_ANY, &je);
    struct mdl_text out = {0};
    cr_assert(v != NULL, "%s: %s", json, je.text);
    cr_assert(mdl_json_write(v, &out) == 0);
    cr_expect(strcmp(out.s, want) == 0, "%s gives %s, not %s", json, out.s, want);
    mdl_text_free(&out);
    json_decref(v);
}

Test(json_text, values_and_separators)
{
    expect("[1,-2,true,false,null,\"a\",[],{}]", "[1, -2, true, false, null, \"a\", [], {}]");
    expect("{\"b\":1,\"a\":{\"c\":[2,3]}}", "{\"b\": 1, \"a\": {\"c\": [2, 3]}}");
    expect("9223372036854775807", "9223372036854775807");
}

Test(json_text, strings_escape_only_what_must_be)
{
    expect("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\"", "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\"");
    expect("\"\\u00e9\\u4e2d\\ud83d\\ude42\"", "\"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x99\x82\"");
}

Test(json_text, reals_are_the_shortest_that_read_back)
{
    static const char *const cases[][2] = {
        {"1.0", "1.0"},
        {"0.1", "0.1"},
        {"-0.0", "-0.0"},
        {"1e15", "1000000000000000.0"},
        {"1e16", "1e+16"},
        {"1e22", "1e+22"},
        {"1.5e300", "1.5e+300"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"1e-7", "1e-07"},
        {"123.456", "123.456"},
        {"100.0", "100.0"},
        {"2.5e-9", "2.5e-09"},
        {"5e-324", "5e-324"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"9007199254740993.0", "9007199254740992.0"},
        {"-12345.678", "-12345.678"},
        {"0.00123", "0.00123"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i][0], cases[i][1]);
}
