#include "actors/gateway/status_page.h"

/* The file as it is, with a NUL behind it. The build runs in the project's folder. */
__asm__(".pushsection .rodata\n"
        ".global gw_status_page\n"
        "gw_status_page:\n"
        ".incbin \"actors/gateway/status_page.html\"\n"
        ".byte 0\n"
        ".popsection\n");
