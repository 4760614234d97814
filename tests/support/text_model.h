/* A folder with a model that has text: a golden model's weights beside the tokenizer fixture, cut down to its
 * vocabulary. What such a model writes is noise, but always the same noise. Main thread of a test. */
#ifndef WEFT_TESTS_SUPPORT_TEXT_MODEL_H
#define WEFT_TESTS_SUPPORT_TEXT_MODEL_H

/* Makes the folder and returns its path; ts_remove_dir and free it. Ends the test on failure. */
char *ts_text_model(const char *golden);

#endif
