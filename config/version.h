/* The version of the program, for every layer. */
#ifndef WEFT_CONFIG_VERSION_H
#define WEFT_CONFIG_VERSION_H

#define WEFT_VERSION "0.1.0"

#endif
