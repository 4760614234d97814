/* Texts from outside (names in files, answers of servers, file names) on their way to a terminal or into a picture.
 * Any thread. */
#ifndef WEFT_CLI_TEXT_H
#define WEFT_CLI_TEXT_H

#include <jansson.h>

/* In place: what a terminal would act on (control characters, C1 ones included) and bytes that are no UTF-8 become '?'.
 */
void cli_text_clean(char *text);
/* Of every text in a value, those of nested objects and lists too; keys stay. */
void cli_text_clean_json(json_t *value);

#endif
