/* Safetensors files: one mapped file, its header checked completely before any tensor is handed out.
 *
 * Bytes come from outside, so everything is verified: header length, JSON, UTF-8, duplicate names, dtypes, shapes
 * (overflow), offsets inside the file, no overlaps, size = product of shape. Read-only and shared by any thread after
 * open; the mapping lives until close. */
#ifndef WEFT_MODEL_SAFETENSORS_H
#define WEFT_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "config/error.h"

enum mdl_dtype {
    MDL_F8_E4M3,
    MDL_F8_E8M0,
    MDL_I8,
    MDL_U8,
    MDL_BF16,
    MDL_F16,
    MDL_F32,
    MDL_F64,
    MDL_I16,
    MDL_I32,
    MDL_I64,
    MDL_BOOL,
    MDL_DTYPE_OTHER, /* a dtype that this program has no use for; its size is not checked against the shape */
    MDL_DTYPE_COUNT,
};

enum { MDL_ST_MAX_DIMS = 8 };

struct mdl_tensor {
    const char *name; /* owned by the file object */
    enum mdl_dtype dtype;
    const char *dtype_name; /* as the file spells it; owned by the file object */
    int ndim;
    int64_t shape[MDL_ST_MAX_DIMS]; /* a dimension may be 0: then there are no bytes */
    const void *data;               /* inside the mapping; alignment is only what the file gives */
    size_t bytes;
    uint64_t offset;  /* of data in the file */
    const char *file; /* path, owned by the file object */
};

struct mdl_st; /* opaque */

/* Maps path. Errors: -errno of open/mmap, -EINVAL for any defect of the header (message says which). */
int mdl_st_open(const char *path, struct mdl_st **out, struct cfg_error *err);
/* Parses a file image in memory (not copied, must outlive the object); the fuzz target uses this. */
int mdl_st_open_memory(const void *data, size_t len, const char *name, struct mdl_st **out, struct cfg_error *err);
/* Bytes from..to-1 of the mapping are not needed any more: whole pages of them are given back and must not be touched.
 * Returns how many bytes that was. */
size_t mdl_st_unmap(struct mdl_st *st, const void *from, const void *to);
size_t mdl_st_bytes(const struct mdl_st *st);
void mdl_st_close(struct mdl_st *st);

/* Tensors in file order. */
size_t mdl_st_count(const struct mdl_st *st);
const struct mdl_tensor *mdl_st_at(const struct mdl_st *st, size_t i);
/* NULL when absent. */
const struct mdl_tensor *mdl_st_find(const struct mdl_st *st, const char *name);

const char *mdl_dtype_name(enum mdl_dtype t);
/* Bytes per element; 0 for MDL_DTYPE_OTHER. */
size_t mdl_dtype_size(enum mdl_dtype t);

/* Writer, for dumps and generators: tensors are appended in any order and written in one go. Data is not copied and
 * must stay valid until mdl_st_writer_save. One thread. */
struct mdl_st_writer;
struct mdl_st_writer *mdl_st_writer_new(void); /* NULL: out of memory */
/* Errors: -EINVAL (dtype, rank, dimension or size that cannot be written, name not UTF-8), -EEXIST (name taken),
 * -ENOMEM. */
int mdl_st_writer_add(struct mdl_st_writer *w, const char *name, enum mdl_dtype dtype, int ndim, const int64_t *shape,
                      const void *data);
/* Produces len bytes of the tensor's data from offset on; called with ascending offsets, one tensor after the other.
 * index counts mdl_st_writer_add calls. Returns 0 or a negative errno, which ends the save. */
typedef int (*mdl_st_fill)(void *arg, size_t index, size_t offset, size_t len, void *out);
/* Writes to a temporary name beside path, then renames. Frees nothing. The data of tensors added with data NULL comes
 * from fill (may be NULL when there are none), so that files larger than memory can be written. */
int mdl_st_writer_save(struct mdl_st_writer *w, const char *path, struct cfg_error *err);
int mdl_st_writer_save_from(struct mdl_st_writer *w, const char *path, mdl_st_fill fill, void *arg,
                            struct cfg_error *err);
void mdl_st_writer_free(struct mdl_st_writer *w);

#endif
