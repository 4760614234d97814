/* Sizes, durations and suggestions. */
#include "tests/harness.h"

#include <errno.h>

#include "config/suggest.h"
#include "config/units.h"

Test(units, sizes)
{
    int64_t v = -1;
    cr_expect_eq(cfg_size_parse("64MiB", &v), 0);
    cr_expect_eq(v, 64 << 20);
    cr_expect_eq(cfg_size_parse("3 kB", &v), 0);
    cr_expect_eq(v, 3000);
    cr_expect_eq(cfg_size_parse("0B", &v), 0);
    cr_expect_eq(v, 0);
    cr_expect_eq(cfg_size_parse("8388607TiB", &v), 0);
    cr_expect_eq(v, INT64_C(8388607) << 40);
    cr_expect_eq(cfg_size_parse("8388608TiB", &v), -ERANGE);
    cr_expect_eq(cfg_size_parse("99999999999999999999B", &v), -ERANGE);
    static const char *const bad[] = {"", "64", "MiB", "64mib", "64MiB ", "-1B", "+1B", "1.5MiB", "1  B", " 1B", "1ms"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_eq(cfg_size_parse(bad[i], &v), -EINVAL, "\"%s\"", bad[i]);
    cr_expect_eq(v, INT64_C(8388607) << 40, "a failure leaves the value alone");
}

Test(units, durations)
{
    int64_t v = -1;
    static const struct {
        const char *text;
        int64_t us;
    } good[] = {{"5us", 5}, {"250ms", 250000}, {"1 s", 1000000}, {"2min", 120000000}, {"1h", 3600000000}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_expect_eq(cfg_duration_parse(good[i].text, &v), 0);
        cr_expect_eq(v, good[i].us, "\"%s\"", good[i].text);
    }
    cr_expect_eq(cfg_duration_parse("1MiB", &v), -EINVAL);
    cr_expect_eq(cfg_duration_unit("ms"), 1000);
    cr_expect_eq(cfg_duration_unit("KiB"), 0);
}

Test(units, formats_parse_back)
{
    static const int64_t values[] = {0, 1, 1000, 1023, 1024, 1025, 16 << 20, 1000000, 3600000000, INT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char text[CFG_UNIT_TEXT_MAX];
        int64_t v = -1;
        cfg_size_format(values[i], text);
        cr_expect_eq(cfg_size_parse(text, &v), 0);
        cr_expect_eq(v, values[i], "size \"%s\"", text);
        cfg_duration_format(values[i], text);
        cr_expect_eq(cfg_duration_parse(text, &v), 0);
        cr_expect_eq(v, values[i], "duration \"%s\"", text);
    }
    char text[CFG_UNIT_TEXT_MAX];
    cfg_size_format(16 << 20, text);
    cr_expect_str_eq(text, "16MiB");
    cfg_duration_format(250000, text);
    cr_expect_str_eq(text, "250ms");
}

Test(suggest, near_words_only)
{
    static const char *const words[] = {"threads", NULL, "prefill_chunk", "cpu", "name"};
    const size_t n = sizeof words / sizeof words[0];
    cr_expect_str_eq(cfg_suggest("thraeds", words, n), "threads", "neighbours swapped");
    cr_expect_str_eq(cfg_suggest("thread", words, n), "threads");
    cr_expect_str_eq(cfg_suggest("Prefill-Chunk", words, n), "prefill_chunk", "case and dashes do not count");
    cr_expect_str_eq(cfg_suggest("nmae", words, n), "name");
    cr_expect_null(cfg_suggest("colour", words, n));
    cr_expect_null(cfg_suggest("", words, n));
    cr_expect_null(cfg_suggest("x", words, n), "one letter is near to nothing");
}
