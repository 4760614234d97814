#include "config/version.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The description of the note in a segment of notes, NULL: it is not among them. */
static const uint8_t *find_note(const uint8_t *at, size_t bytes, size_t align, size_t *out_size)
{
    const uint8_t *end = at + bytes;
    while ((size_t)(end - at) >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        size_t name = (note->n_namesz + align - 1) / align * align, size = (note->n_descsz + align - 1) / align * align;
        at += sizeof *note;
        if ((size_t)(end - at) < name + note->n_descsz)
            break;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && !memcmp(at, "GNU", 4)) {
            *out_size = note->n_descsz;
            return at + name;
        }
        at += name + size < (size_t)(end - at) ? name + size : (size_t)(end - at);
    }
    return NULL;
}

/* Called first for the program itself; ends the walk there. */
static int of_program(struct dl_phdr_info *info, size_t size, void *ctx)
{
    char *out = ctx;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        size_t n = 0;
        const uint8_t *id = p->p_type != PT_NOTE ? NULL
                                                 : find_note((const uint8_t *)info->dlpi_addr + p->p_vaddr, p->p_memsz,
                                                             p->p_align == 8 ? 8 : 4, &n);
        for (size_t k = 0; id && k < n && 2 * k + 2 < CFG_BUILD_ID_TEXT; k++)
            snprintf(out + 2 * k, 3, "%02x", id[k]);
    }
    return 1;
}

void cfg_build_id(char out[CFG_BUILD_ID_TEXT])
{
    memset(out, 0, CFG_BUILD_ID_TEXT);
    dl_iterate_phdr(of_program, out);
}
