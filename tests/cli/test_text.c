/* Texts from outside on their way to a terminal or into a picture. */
#include "tests/harness.h"

#include <string.h>

#include "cli/text.h"

Test(text, what_a_terminal_acts_on_is_replaced)
{
    static const char *const texts[][2] = {
        {"", ""},
        {"plain 1.5 %", "plain 1.5 %"},
        {"a\033[31mb\tc\x7f", "a?[31mb?c?"},
        {"\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xc2\x9bm", "??m"},         /* CSI as one character */
        {"\xc2\xa0", "\xc2\xa0"},     /* the first behind them */
        {"\xff\xfe", "??"},           /* no UTF-8 */
        {"\xe2\x82", "??"},           /* cut */
        {"\xc0\xaf", "??"},           /* longer than need be */
        {"\xed\xa0\x80", "???"},      /* half of a pair */
        {"\xf4\x90\x80\x80", "????"}, /* beyond the last */
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[32];
        strcpy(text, texts[i][0]);
        cli_text_clean(text);
        cr_expect_str_eq(text, texts[i][1], "case %zu", i);
    }
}

Test(text, of_every_text_in_a_value)
{
    json_t *j = json_pack("{s:s,s:[s,i,{s:s}]}", "a", "x\001", "b", "y\033", 3, "c", "z\177");
    cli_text_clean_json(j);
    char *all = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS);
    cr_expect_str_eq(all, "{\"a\":\"x?\",\"b\":[\"y?\",3,{\"c\":\"z?\"}]}");
    free(all);
    json_decref(j);
}
