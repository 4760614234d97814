/* Counts of random events against expected shares. */
#ifndef WEFT_TESTS_SUPPORT_CHI_SQUARE_H
#define WEFT_TESTS_SUPPORT_CHI_SQUARE_H

/* Chi-square of count [n], `total` events, divided by the bound that right shares [n] exceed once in 10,000; above 1
 * they are wrong. Classes with few expected events are joined. `classes`: how many remain; NULL: not asked. */
double ts_chi_square(const int *count, const double *share, int n, int total, int *classes);
/* Ends the test where they are wrong. */
void ts_chi_square_check(const int *count, const double *share, int n, int total, const char *what);

#endif
