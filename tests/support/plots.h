/* What a command has gnuplot draw: a gnuplot of the test's own, first in PATH, keeps what it is told and writes a few
 * bytes as the picture. So what is drawn is known as numbers, also on machines without gnuplot. */
#ifndef WEFT_TESTS_SUPPORT_PLOTS_H
#define WEFT_TESTS_SUPPORT_PLOTS_H

/* For every program that this one starts from now on; dir is the test's own folder and outlives them. */
void ts_plots_record(const char *dir);
/* What the last plot was told; freed by the caller. NULL: nothing was drawn. */
char *ts_plots_told(const char *dir);
/* The rows of a data block, "$NAME << EOD": the first `columns` numbers of each, columns <= 8. Returns how many, -1:
 * there is no such block. More than `most` end the test. */
int ts_plots_data(const char *told, const char *name, int columns, int most, double out[][8]);

#endif
