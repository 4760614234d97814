/* Which of a name's addresses stands for a node. Both sides look the name up by themselves, in resolvers that order
 * addresses in their own ways, and have to come to the same one: the first IPv4 address, or, where there is none, the
 * first of all. Any thread. */
#ifndef WEFT_TRANSPORT_NAMES_H
#define WEFT_TRANSPORT_NAMES_H

#include <netdb.h>
#include <sys/socket.h>

/* list: of getaddrinfo, not empty; the result is part of it. */
static inline const struct addrinfo *tp_name_address(const struct addrinfo *list)
{
    const struct addrinfo *at = list;
    while (at && at->ai_family != AF_INET)
        at = at->ai_next;
    return at ? at : list;
}

#endif
