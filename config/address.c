/* Texts of the form HOST:PORT. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

bool cfg_address_valid(const char *text)
{
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return false;
    size_t digits = strlen(colon + 1), host = (size_t)(colon - text);
    if (digits < 1 || digits > 5 || atoi(colon + 1) > 65535)
        return false;
    if (text[0] == '[')
        return host > 2 && text[host - 1] == ']' && !strpbrk(text, " \t");
    return !memchr(text, ':', host) && !strpbrk(text, " \t[]/");
}

void cfg_node_address(const struct cfg_node *n, char *out, size_t size)
{
    bool v6 = strchr(n->host, ':') != NULL;
    snprintf(out, size, "%s%s%s:%d", v6 ? "[" : "", n->host, v6 ? "]" : "", n->port);
}

int cfg_kv_folder(const struct cfg_config *c, const struct cfg_node *n, char *out, size_t size)
{
    return snprintf(out, size, "%s/%s", c->kv.nodes.path, n->name) < (int)size ? 0 : -ENAMETOOLONG;
}

int cfg_address_split(const char *text, char *host, size_t size, const char **port)
{
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || !colon[1] || (size_t)(colon - text) >= size)
        return -EINVAL;
    size_t n = (size_t)(colon - text);
    if (text[0] == '[' && n > 2 && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    memcpy(host, text, n);
    host[n] = 0;
    *port = colon + 1;
    return 0;
}
