#include "tests/support/chi_square.h"

#include <math.h>

#include "tests/harness.h"

/* Upper 1e-4 quantile of chi-square, Wilson and Hilferty's approximation. */
static double bound(int freedom)
{
    double k = freedom, z = 3.719, a = 1 - 2 / (9 * k) + z * sqrt(2 / (9 * k));
    return k * a * a * a;
}

double ts_chi_square(const int *count, const double *share, int n, int total, int *classes)
{
    double chi = 0, rest_expected = 0, rest_seen = 0;
    int found = 0;
    for (int i = 0; i < n; i++) {
        double expected = share[i] * total;
        if (expected < 8) {
            rest_expected += expected;
            rest_seen += count[i];
            continue;
        }
        chi += (count[i] - expected) * (count[i] - expected) / expected;
        found++;
    }
    if (rest_expected > 4) {
        chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        found++;
    } else if (rest_seen >= 8 * rest_expected + 12) {
        return INFINITY;
    }
    if (classes)
        *classes = found;
    return found > 1 ? chi / bound(found - 1) : INFINITY;
}

void ts_chi_square_check(const int *count, const double *share, int n, int total, const char *what)
{
    int classes = 0;
    double chi = ts_chi_square(count, share, n, total, &classes);
    cr_assert_lt(chi, 1, "%s: chi-square %.2f of its bound, %d classes", what, chi, classes);
}
