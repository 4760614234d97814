/* The small functions of transport.h that belong to no provider. */
#include "transport/transport.h"

const char *tp_class_name(enum tp_class class)
{
    static const char *const names[TP_CLASSES] = {"control", "kv", "expert"};
    return (unsigned)class < TP_CLASSES ? names[class] : "?";
}

size_t tp_iov_size(const struct iovec *part, int n)
{
    size_t size = 0;
    for (int i = 0; i < n; i++)
        size += part[i].iov_len;
    return size;
}
