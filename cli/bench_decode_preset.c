/* Presets of `weft bench decode`: published curves, what they need, and whether that is there. */
#include <errno.h>
#include <stdio.h>

#include "cli/bench_decode.h"
#include "cli/conditions.h"

const char *const bd_preset_names[] = {"none", "decode-131k", NULL};

const struct bd_preset_needs *bd_preset_needs(enum bd_preset preset)
{
    static const struct bd_preset_needs decode_131k = {
        .setup = {.devices = 64, .experts = 384, .redundant = 64, .context = 131072, .drafts = 3},
        .drafts = 3,
        .rate = 0.75};
    return preset == BD_PRESET_DECODE_131K ? &decode_131k : NULL;
}

int bd_preset_check(enum bd_preset preset, const struct bd_setup *have, const char *where, struct cfg_error *err)
{
    const struct bd_preset_needs *p = bd_preset_needs(preset);
    const struct bd_setup *needs = &p->setup;
    const struct {
        int needs, have;
        bool exact; /* else at least so many */
        const char *what;
    } item[] = {
        {needs->devices, have->devices, true, "devices in one group (EP64/DP64)"},
        {needs->experts, have->experts, true, "experts"},
        {needs->redundant, have->redundant, true, "redundant experts"},
        {needs->context, have->context, false, "tokens of context"},
        {needs->drafts, have->drafts, false, "drafts at once"},
    };
    char list[320] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof item / sizeof *item; i++)
        if (item[i].exact ? item[i].have != item[i].needs : item[i].have < item[i].needs)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%d %s (%s: %d)", n ? "; " : "", item[i].needs,
                                  item[i].what, where, item[i].have);
    return n ? cfg_error_set(err, ENOTSUP, "preset %s needs %s", bd_preset_names[preset], list) : 0;
}

int bd_preset_apply(enum bd_preset preset, struct bd_results *r, struct cfg_error *err)
{
    const struct bd_preset_needs *p = bd_preset_needs(preset);
    if (!r->setup.devices)
        return cfg_error_set(err, ENOTSUP,
                             "preset %s: the file does not say what its counters were taken on (\"setup\")",
                             bd_preset_names[preset]);
    int bad = bd_preset_check(preset, &r->setup, "recorded", err);
    if (!bad && r->setup.context != p->setup.context) /* a model may have room for more, a curve is of one context */
        bad = cfg_error_set(err, ENOTSUP, "preset %s needs %d tokens of context (recorded: %d)",
                            bd_preset_names[preset], p->setup.context, r->setup.context);
    for (int i = 0; i < r->n && !bad; i++) {
        char name[16];
        bd_mode_name(r->point[i].mode, name);
        if (r->point[i].mode != p->drafts)
            bad = cfg_error_set(err, ENOTSUP, "preset %s needs %d drafts in every step (recorded: %s)",
                                bd_preset_names[preset], p->drafts, name);
    }
    if (bad)
        return bad;
    r->convert = p->rate;
    cli_condition_set(r->conditions, "preset",
                      "%s: %d tokens of context, EP%d/DP%d, %d + %d experts, %d drafts at %g %%",
                      bd_preset_names[preset], p->setup.context, p->setup.devices, p->setup.devices, p->setup.experts,
                      p->setup.redundant, p->drafts, 100 * p->rate);
    return 0;
}
