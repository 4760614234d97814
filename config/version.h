/* Which program this is, for every layer. */
#ifndef WEFT_CONFIG_VERSION_H
#define WEFT_CONFIG_VERSION_H

#define WEFT_VERSION "0.1.0"

enum { CFG_BUILD_ID_TEXT = 2 * 20 + 1 };
/* The linker's build id of the running program in hexadecimal, its first 20 bytes; "" when it was linked without one.
 * It changes with every change of code, compiler or flags that changes the program. Any thread. */
void cfg_build_id(char out[CFG_BUILD_ID_TEXT]);

#endif
