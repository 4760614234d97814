/* Safetensors reader and writer. The reader owns the mapping, the tensor list and the copied names; everything is
 * checked while opening, so users of struct mdl_tensor never check again. See safetensors.h for who may call. */
#include "model/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/nametab.h"

enum {
    HEADER_MAX = 64 << 20, /* a header of 96,085 tensors is about 12 MB; parsing needs some ten times the text */
    WRITE_CHUNK = 1 << 20,
    DATA_ALIGN = 64,
};

static const struct {
    const char *name;
    size_t size;
} dtypes[MDL_DTYPE_COUNT] = {
    [MDL_F8_E4M3] = {"F8_E4M3", 1},   [MDL_F8_E8M0] = {"F8_E8M0", 1}, [MDL_I8] = {"I8", 1},   [MDL_U8] = {"U8", 1},
    [MDL_BF16] = {"BF16", 2},         [MDL_F16] = {"F16", 2},         [MDL_F32] = {"F32", 4}, [MDL_F64] = {"F64", 8},
    [MDL_I16] = {"I16", 2},           [MDL_I32] = {"I32", 4},         [MDL_I64] = {"I64", 8}, [MDL_BOOL] = {"BOOL", 1},
    [MDL_DTYPE_OTHER] = {"other", 0},
};

const char *mdl_dtype_name(enum mdl_dtype t)
{
    return (unsigned)t < MDL_DTYPE_COUNT ? dtypes[t].name : "invalid";
}

size_t mdl_dtype_size(enum mdl_dtype t)
{
    return (unsigned)t < MDL_DTYPE_COUNT ? dtypes[t].size : 0;
}

static enum mdl_dtype dtype_from_name(const char *s)
{
    for (int t = 0; t < MDL_DTYPE_OTHER; t++)
        if (!strcmp(s, dtypes[t].name))
            return (enum mdl_dtype)t;
    return MDL_DTYPE_OTHER;
}

struct mdl_st {
    char *path;
    void *map; /* NULL when the image belongs to the caller */
    size_t map_len;
    struct mdl_tensor *tensors; /* by offset */
    size_t count;
    char *strings; /* names and foreign dtype names, each with its 0 */
    struct mdl_nametab names;
};

/* The parts of an open in progress that every check needs. */
struct parse {
    struct mdl_st *st;
    const uint8_t *data;        /* first byte after the header */
    uint64_t data_at, data_len; /* data_at: in the file */
    char *next;                 /* free part of st->strings */
    struct cfg_error *err;
};

static char *keep(struct parse *p, const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = memcpy(p->next, s, n);
    p->next += n;
    return copy;
}

static int bad(struct parse *p, const char *name, const char *what)
{
    return cfg_error_set(p->err, EINVAL, "%s: tensor %.200s: %s", p->st->path, name, what);
}

static int parse_shape(struct parse *p, const char *name, const json_t *shape, struct mdl_tensor *t, uint64_t *elements)
{
    if (!json_is_array(shape))
        return bad(p, name, "no shape list in the header");
    if (json_array_size(shape) > MDL_ST_MAX_DIMS)
        return bad(p, name, "more than 8 dimensions");
    t->ndim = (int)json_array_size(shape);
    *elements = 1;
    for (int i = 0; i < t->ndim; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return bad(p, name, "a dimension is not a whole number of at least 0");
        t->shape[i] = json_integer_value(d);
        if (__builtin_mul_overflow(*elements, (uint64_t)t->shape[i], elements))
            return bad(p, name, "the product of the shape does not fit 64 bits");
    }
    return 0;
}

static int parse_tensor(struct parse *p, const char *name, const json_t *v, struct mdl_tensor *t)
{
    const json_t *dtype = json_object_get(v, "dtype"), *span = json_object_get(v, "data_offsets");
    const json_t *begin = json_array_get(span, 0), *end = json_array_get(span, 1);
    uint64_t elements = 1, bytes = 0;
    if (!json_is_object(v))
        return bad(p, name, "its header entry is not an object");
    if (!json_is_string(dtype))
        return bad(p, name, "no dtype in the header");
    if (json_array_size(span) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return bad(p, name, "no data_offsets pair of integers in the header");
    int rc = parse_shape(p, name, json_object_get(v, "shape"), t, &elements);
    if (rc)
        return rc;
    int64_t b = json_integer_value(begin), e = json_integer_value(end);
    if (b < 0 || e < b)
        return bad(p, name, "its data_offsets are negative or end before they begin");
    if ((uint64_t)e > p->data_len)
        return cfg_error_set(p->err, EINVAL,
                             "%s: tensor %.200s: data ends at byte %" PRId64 " but the file has only %" PRIu64
                             " bytes of data; the file is truncated, copy it again",
                             p->st->path, name, e, p->data_len);
    t->dtype = dtype_from_name(json_string_value(dtype));
    if (t->dtype != MDL_DTYPE_OTHER &&
        (__builtin_mul_overflow(elements, dtypes[t->dtype].size, &bytes) || bytes != (uint64_t)(e - b)))
        return cfg_error_set(p->err, EINVAL,
                             "%s: tensor %.200s: %" PRId64 " bytes of data, but its shape has %" PRIu64
                             " elements of %s",
                             p->st->path, name, e - b, elements, dtypes[t->dtype].name);
    t->name = keep(p, name);
    t->dtype_name = t->dtype == MDL_DTYPE_OTHER ? keep(p, json_string_value(dtype)) : dtypes[t->dtype].name;
    t->data = p->data + b;
    t->bytes = (size_t)(e - b);
    t->offset = p->data_at + (uint64_t)b;
    t->file = p->st->path;
    return 0;
}

static int by_offset(const void *x, const void *y)
{
    const struct mdl_tensor *a = x, *b = y;
    uintptr_t pa = (uintptr_t)a->data, pb = (uintptr_t)b->data;
    return pa != pb ? (pa > pb) - (pa < pb) : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* The format leaves no byte of the data unnamed and none named twice. */
static int check_cover(struct parse *p)
{
    struct mdl_st *st = p->st;
    uint64_t at = 0;
    qsort(st->tensors, st->count, sizeof *st->tensors, by_offset);
    for (size_t i = 0; i < st->count; i++) {
        const struct mdl_tensor *t = &st->tensors[i];
        uint64_t begin = (uint64_t)((const uint8_t *)t->data - p->data);
        if (begin < at)
            return cfg_error_set(p->err, EINVAL, "%s: tensors %.200s and %.200s overlap", st->path,
                                 st->tensors[i - 1].name, t->name);
        if (begin > at)
            return cfg_error_set(p->err, EINVAL, "%s: %" PRIu64 " bytes before tensor %.200s belong to no tensor",
                                 st->path, begin - at, t->name);
        at = begin + t->bytes;
    }
    if (at != p->data_len)
        return cfg_error_set(p->err, EINVAL, "%s: %" PRIu64 " bytes at the end belong to no tensor", st->path,
                             p->data_len - at);
    return 0;
}

static int parse_tensors(struct parse *p, json_t *root)
{
    struct mdl_st *st = p->st;
    const char *name;
    json_t *v;
    size_t n = 0, text = 1;
    json_object_foreach (root, name, v) {
        const char *dtype = json_string_value(json_object_get(v, "dtype"));
        n++;
        text += strlen(name) + 1 + (dtype ? strlen(dtype) + 1 : 0);
    }
    st->tensors = calloc(n ? n : 1, sizeof *st->tensors);
    st->strings = p->next = malloc(text);
    if (!st->tensors || !st->strings)
        return cfg_error_set(p->err, ENOMEM, "%s: out of memory", st->path);
    json_object_foreach (root, name, v) {
        if (!strcmp(name, "__metadata__"))
            continue;
        int rc = parse_tensor(p, name, v, &st->tensors[st->count]);
        if (rc)
            return rc;
        st->count++;
    }
    int rc = check_cover(p);
    if (!rc && mdl_nametab_init(&st->names, st->count))
        rc = cfg_error_set(p->err, ENOMEM, "%s: out of memory", st->path);
    for (size_t i = 0; !rc && i < st->count; i++)
        mdl_nametab_put(&st->names, &st->tensors[i]); /* names are distinct: the JSON parser refused doubles */
    return rc;
}

static int parse_image(struct mdl_st *st, const void *image, size_t len, struct cfg_error *err)
{
    const uint8_t *bytes = image;
    if (!bytes || len < 8)
        return cfg_error_set(err, EINVAL, "%s: %zu bytes, too short for a safetensors file", st->path, len);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | bytes[i];
    if (header > len - 8)
        return cfg_error_set(err, EINVAL,
                             "%s: the header claims %" PRIu64 " bytes but the file has only %zu after its "
                             "length; the file is truncated or not safetensors",
                             st->path, header, len - 8);
    if (header > HEADER_MAX)
        return cfg_error_set(err, EINVAL, "%s: the header claims %" PRIu64 " bytes, expected at most %d", st->path,
                             header, HEADER_MAX);
    if (!header || bytes[8] != '{')
        return cfg_error_set(err, EINVAL, "%s: the header does not start with '{'; not a safetensors file", st->path);
    json_error_t je;
    json_t *root = json_loadb((const char *)bytes + 8, (size_t)header, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return cfg_error_set(err, EINVAL, "%s: the header is not valid JSON at byte %d: %s", st->path, je.position,
                             je.text);
    struct parse p = {st, bytes + 8 + header, 8 + header, len - 8 - header, NULL, err};
    int rc = parse_tensors(&p, root);
    json_decref(root);
    return rc;
}

/* NULL: out of memory, the message is set. */
static struct mdl_st *new_file(const char *path, struct cfg_error *err)
{
    struct mdl_st *st = calloc(1, sizeof *st);
    if (st && !(st->path = strdup(path))) {
        free(st);
        st = NULL;
    }
    if (!st)
        cfg_error_set(err, ENOMEM, "%s: out of memory", path);
    return st;
}

static int finish_open(struct mdl_st *st, int rc, struct mdl_st **out)
{
    if (rc)
        mdl_st_close(st);
    *out = rc ? NULL : st;
    return rc;
}

int mdl_st_open_memory(const void *data, size_t len, const char *name, struct mdl_st **out, struct cfg_error *err)
{
    struct mdl_st *st = new_file(name, err);
    *out = NULL;
    return st ? finish_open(st, parse_image(st, data, len, err), out) : -ENOMEM;
}

static int map_file(struct mdl_st *st, struct cfg_error *err)
{
    struct stat sb;
    int fd = open(st->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &sb)) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return cfg_error_set(err, e, "%s: %s", st->path, strerror(e));
    }
    if (!S_ISREG(sb.st_mode) || sb.st_size < 8) {
        close(fd);
        return cfg_error_set(err, EINVAL, "%s: %s", st->path,
                             S_ISREG(sb.st_mode) ? "too short for a safetensors file" : "not a regular file");
    }
    st->map_len = (size_t)sb.st_size;
    void *map = mmap(NULL, st->map_len, PROT_READ, MAP_PRIVATE, fd, 0);
    int e = errno;
    close(fd);
    if (map == MAP_FAILED)
        return cfg_error_set(err, e, "%s: cannot map %zu bytes: %s", st->path, st->map_len, strerror(e));
    st->map = map;
    return 0;
}

int mdl_st_open(const char *path, struct mdl_st **out, struct cfg_error *err)
{
    struct mdl_st *st = new_file(path, err);
    *out = NULL;
    if (!st)
        return -ENOMEM;
    int rc = map_file(st, err);
    if (!rc)
        rc = parse_image(st, st->map, st->map_len, err);
    return finish_open(st, rc, out);
}

/* The addresses stay taken, so that close may unmap them all. */
size_t mdl_st_unmap(struct mdl_st *st, const void *from, const void *to)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)from + page - 1) / page * page,
              end = (uintptr_t)to / page * page;
    if (!st->map || end <= first)
        return 0;
    void *at =
        mmap((void *)first, end - first, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return at == MAP_FAILED ? 0 : end - first;
}

size_t mdl_st_bytes(const struct mdl_st *st)
{
    return st->map_len;
}

void mdl_st_close(struct mdl_st *st)
{
    if (!st)
        return;
    if (st->map)
        munmap(st->map, st->map_len);
    mdl_nametab_free(&st->names);
    free(st->tensors);
    free(st->strings);
    free(st->path);
    free(st);
}

size_t mdl_st_count(const struct mdl_st *st)
{
    return st->count;
}

const struct mdl_tensor *mdl_st_at(const struct mdl_st *st, size_t i)
{
    return i < st->count ? &st->tensors[i] : NULL;
}

const struct mdl_tensor *mdl_st_find(const struct mdl_st *st, const char *name)
{
    return mdl_nametab_get(&st->names, name);
}

struct entry {
    char *name;
    enum mdl_dtype dtype;
    int ndim;
    int64_t shape[MDL_ST_MAX_DIMS];
    const void *data;
    size_t bytes;
};

struct mdl_st_writer {
    struct entry *entries;
    size_t count, cap;
    json_t *taken; /* set of names */
};

struct mdl_st_writer *mdl_st_writer_new(void)
{
    struct mdl_st_writer *w = calloc(1, sizeof *w);
    if (w && !(w->taken = json_object())) {
        free(w);
        return NULL;
    }
    return w;
}

void mdl_st_writer_free(struct mdl_st_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->count; i++)
        free(w->entries[i].name);
    free(w->entries);
    json_decref(w->taken);
    free(w);
}

int mdl_st_writer_add(struct mdl_st_writer *w, const char *name, enum mdl_dtype dtype, int ndim, const int64_t *shape,
                      const void *data)
{
    size_t bytes = mdl_dtype_size(dtype);
    if (!bytes || ndim < 0 || ndim > MDL_ST_MAX_DIMS || !strcmp(name, "__metadata__"))
        return -EINVAL;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(bytes, (size_t)shape[i], &bytes))
            return -EINVAL;
    if (json_object_get(w->taken, name))
        return -EEXIST;
    if (w->count == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        struct entry *e = realloc(w->entries, cap * sizeof *e);
        if (!e)
            return -ENOMEM;
        w->entries = e;
        w->cap = cap;
    }
    struct entry e = {strdup(name), dtype, ndim, {0}, data, bytes};
    if (!e.name)
        return -ENOMEM;
    if (json_object_set_new(w->taken, name, json_true())) {
        free(e.name);
        return -EINVAL;
    }
    for (int i = 0; i < ndim; i++)
        e.shape[i] = shape[i];
    w->entries[w->count++] = e;
    return 0;
}

/* Wide elements first, so that every tensor lies at a multiple of its element size. */
static size_t *write_order(const struct mdl_st_writer *w)
{
    size_t *order = malloc((w->count + 1) * sizeof *order), n = 0;
    for (size_t size = 8; order && size; size /= 2)
        for (size_t i = 0; i < w->count; i++)
            if (mdl_dtype_size(w->entries[i].dtype) == size)
                order[n++] = i;
    return order;
}

/* Header text, padded with spaces so that the data begins at a multiple of DATA_ALIGN. */
static char *header_text(const struct mdl_st_writer *w, const size_t *order, size_t *len)
{
    json_t *root = json_object();
    uint64_t at = 0;
    for (size_t k = 0; root && k < w->count; k++) {
        const struct entry *e = &w->entries[order[k]];
        json_t *shape = json_array();
        for (int i = 0; i < e->ndim; i++)
            json_array_append_new(shape, json_integer(e->shape[i]));
        json_t *v = json_pack("{s:s, s:o, s:[I,I]}", "dtype", mdl_dtype_name(e->dtype), "shape", shape, "data_offsets",
                              (json_int_t)at, (json_int_t)at + (json_int_t)e->bytes);
        if (json_object_set_new(root, e->name, v)) {
            json_decref(root);
            return NULL;
        }
        at += e->bytes;
    }
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text)
        return NULL;
    size_t n = strlen(text), padded = (n + 8 + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN - 8;
    char *out = realloc(text, padded + 1);
    if (!out) {
        free(text);
        return NULL;
    }
    memset(out + n, ' ', padded - n);
    *len = padded;
    return out;
}

static int write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static int write_entry(int fd, const struct entry *e, size_t index, mdl_st_fill fill, void *arg, void *chunk)
{
    if (e->data)
        return write_all(fd, e->data, e->bytes);
    if (e->bytes && !fill)
        return -EINVAL;
    for (size_t at = 0; at < e->bytes; at += WRITE_CHUNK) {
        size_t n = e->bytes - at < WRITE_CHUNK ? e->bytes - at : WRITE_CHUNK;
        int rc = fill(arg, index, at, n, chunk);
        if (!rc)
            rc = write_all(fd, chunk, n);
        if (rc)
            return rc;
    }
    return 0;
}

static int write_file(int fd, const struct mdl_st_writer *w, mdl_st_fill fill, void *arg)
{
    size_t *order = write_order(w), header_len = 0;
    char *header = order ? header_text(w, order, &header_len) : NULL, *chunk = malloc(WRITE_CHUNK);
    int rc = header && chunk ? 0 : -ENOMEM;
    if (!rc) {
        uint8_t len[8];
        for (int i = 0; i < 8; i++)
            len[i] = (uint8_t)((uint64_t)header_len >> 8 * i);
        if (!(rc = write_all(fd, len, 8)))
            rc = write_all(fd, header, header_len);
        for (size_t k = 0; !rc && k < w->count; k++)
            rc = write_entry(fd, &w->entries[order[k]], order[k], fill, arg, chunk);
    }
    free(chunk);
    free(header);
    free(order);
    return rc;
}

int mdl_st_writer_save_from(struct mdl_st_writer *w, const char *path, mdl_st_fill fill, void *arg,
                            struct cfg_error *err)
{
    size_t n = strlen(path) + 32;
    char *tmp = malloc(n);
    if (!tmp)
        return cfg_error_set(err, ENOMEM, "%s: out of memory", path);
    snprintf(tmp, n, "%s.tmp-%ld", path, (long)getpid());
    int rc = 0, fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = cfg_error_set(err, errno, "%s: %s", tmp, strerror(errno));
    } else {
        rc = write_file(fd, w, fill, arg);
        if (close(fd) && !rc)
            rc = -errno;
        if (!rc && rename(tmp, path))
            rc = -errno;
        if (rc) {
            unlink(tmp);
            cfg_error_set(err, -rc, "%s: cannot write: %s", path, strerror(-rc));
        }
    }
    free(tmp);
    return rc;
}

int mdl_st_writer_save(struct mdl_st_writer *w, const char *path, struct cfg_error *err)
{
    return mdl_st_writer_save_from(w, path, NULL, NULL, err);
}
