/* Making connections: the connection manager's events, the queue pairs' way to RTS, and what both sides agree on.
 *
 * The dialling side resolves, asks (rdma_hello.h), gets the reply, brings its queue pair up, and dials the other lanes
 * at the addresses of the reply. When all of them are up or have failed it says over lane 0 which are in use (START),
 * and the channel is open on its side; on the other side with that message. The queue pairs are this file's to move,
 * not the library's, so that a step that fails can be named. */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/dns.h>
#include <event2/util.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "transport/names.h"
#include "transport/rdma/rdma.h"

enum {
    BACKLOG = 128,
    RETRIES = 7,
    PORT_TRIES = 8,
    RESOLVE_MS =
        500, /* then it is tried again, to the channel's deadline: a kernel may miss that a neighbour answered */
};

static uint32_t bit(const struct rdma_lane *l)
{
    return UINT32_C(1) << l->index;
}

/* ---- addresses ----------------------------------------------------------------------------------------------- */

static void to_sockaddr(const uint8_t address[16], uint16_t port, struct sockaddr_in6 *out)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    *out = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    if (memcmp(address, mapped, sizeof mapped) != 0) {
        memcpy(&out->sin6_addr, address, 16);
        return;
    }
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&v4.sin_addr, address + 12, 4);
    memcpy(out, &v4, sizeof v4);
}

static uint16_t port_of(const struct sockaddr_in6 *a)
{
    /* The port is at the same place in both families. */
    return ntohs(a->sin6_port);
}

static void sockaddr_text(const struct sockaddr *a, char out[TP_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_in6 s = {0};
    memcpy(&s, a, a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof s);
    if (a->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)&s)->sin_addr, host, sizeof host);
    else
        inet_ntop(AF_INET6, &s.sin6_addr, host, sizeof host);
    snprintf(out, TP_ADDRESS_TEXT, a->sa_family == AF_INET ? "%s:%u" : "[%s]:%u", host, port_of(&s));
}

/* ---- queue pairs --------------------------------------------------------------------------------------------- */

/* The acknowledgement timer, 4.096 us times a power of two, so that all retries together take about half of the time
 * after which silence ends a channel. */
static uint8_t ack_timer(const struct rdma *ep)
{
    uint8_t t = 8;
    while (t < 24 && INT64_C(4096) << (t + 1) < ep->silence_ns / 2 / (RETRIES + 1))
        t++;
    return t;
}

static enum ibv_mtu mtu_code(int bytes)
{
    enum ibv_mtu m = IBV_MTU_256;
    while (m < IBV_MTU_4096 && 256 << (m - IBV_MTU_256 + 1) <= bytes)
        m++;
    return m;
}

/* To RTR and RTS. mtu: what both ports can carry. */
static int raise_qp(struct rdma_lane *l, int mtu, struct cfg_error *err)
{
    static const enum ibv_qp_state states[] = {IBV_QPS_RTR, IBV_QPS_RTS};
    static const char *const names[] = {"RTR", "RTS"};
    int gid = l->rail->gid_index;
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr a = {.qp_state = states[i]};
        int mask;
        if (rdma_init_qp_attr(l->id, &a, &mask))
            return cfg_error_set(err, errno ? errno : EIO, "%s: no attributes for %s (%s)", l->rail->name, names[i],
                                 strerror(errno));
        if (mask & IBV_QP_PATH_MTU) {
            a.path_mtu = mtu_code(mtu) < a.path_mtu ? mtu_code(mtu) : a.path_mtu;
            mtu = 128 << a.path_mtu;
        }
        if (mask & IBV_QP_AV)
            gid = a.ah_attr.grh.sgid_index;
        if (mask & IBV_QP_TIMEOUT)
            a.timeout = ack_timer(l->rail->ep);
        if (mask & IBV_QP_RETRY_CNT)
            a.retry_cnt = RETRIES;
        int rc = ibv_modify_qp(l->qp, &a, mask);
        if (rc)
            /* Whoever dialled reads what fits in a refusal. */
            return cfg_error_set(err, rc,
                                 "%s: a queue pair cannot go to %s (%s): MTU %d, GID index %d, port %u; RoCE versions "
                                 "and MTUs must fit, on both sides and on the way",
                                 l->rail->name, names[i], strerror(rc), mtu, gid, l->rail->port);
    }
    return 0;
}

static void agree(struct rdma_channel *c, uint32_t frame_max, uint32_t depth)
{
    const struct rdma *ep = rdma_of(c);
    c->base.frame_max = frame_max < ep->frame_max ? frame_max : ep->frame_max;
    c->base.credits_max = c->credits = depth < ep->depth ? depth : ep->depth;
    rdma_lane_shrink(&c->lane[0], (int)c->base.credits_max + RDMA_RESERVE);
}

/* ---- dialling ------------------------------------------------------------------------------------------------ */

static void lane_failed(struct rdma_lane *l, int reason, const char *why)
{
    struct rdma_channel *c = l->channel;
    /* Without lane 0 there is no channel; without another one there is less bandwidth. */
    if (l->index == 0 || !c->base.dialled || c->state != RDMA_OPENING) {
        rdma_fail(c, reason, "%s", why);
        return;
    }
    c->lanes_failed |= bit(l);
    rdma_mark(c);
}

static int connect_ms(const struct rdma *ep)
{
    return (int)(ep->connect_ns / 1000000) + 1;
}

/* from: NULL when the id is bound already. */
static void resolve(struct rdma_lane *l, struct sockaddr_in6 *from)
{
    struct cfg_error err;
    if (rdma_resolve_addr(l->id, (struct sockaddr *)from, (struct sockaddr *)&l->to, RESOLVE_MS) == 0)
        return;
    int e = errno;
    cfg_error_set(&err, e, "%s has no way to that address (%s)", l->rail->name, strerror(e));
    lane_failed(l, -e, err.msg);
}

static void dial_lane(struct rdma_channel *c, int index, struct rdma_rail *r, const struct sockaddr_in6 *to)
{
    struct rdma *ep = rdma_of(c);
    struct rdma_lane *l = &c->lane[index];
    struct sockaddr_in6 from;
    l->rail = r;
    l->to = *to;
    to_sockaddr(r->address, 0, &from);
    if (rdma_create_id(ep->cm, &l->id, l, RDMA_PS_TCP)) {
        l->id = NULL;
        lane_failed(l, -errno, strerror(errno));
        return;
    }
    uint8_t tos = (uint8_t)ep->config.traffic_class[c->base.class];
    if (tos)
        rdma_set_option(l->id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos);
    l->state = RDMA_RESOLVING;
    if (from.sin6_family != to->sin6_family)
        lane_failed(l, -EAFNOSUPPORT, "one side has an IPv4 address, the other an IPv6 one; use the same on both");
    else
        resolve(l, &from);
}

static void dial_first(struct rdma_channel *c)
{
    struct rdma *ep = rdma_of(c);
    c->lanes = 1;
    dial_lane(c, 0, &ep->rail[0], &c->to);
}

static void on_lookup(int error, struct evutil_addrinfo *found, void *ctx)
{
    struct rdma_channel *c = ctx;
    if (error == EVUTIL_EAI_CANCEL)
        return;
    c->lookup = NULL;
    if (error || !found) {
        rdma_fail(c, -EHOSTUNREACH, "%s", evutil_gai_strerror(error));
    } else {
        const struct addrinfo *a = tp_name_address(found);
        memcpy(&c->to, a->ai_addr, a->ai_addrlen < sizeof c->to ? a->ai_addrlen : sizeof c->to);
        dial_first(c);
    }
    if (found)
        evutil_freeaddrinfo(found);
}

static void look_up(struct rdma_channel *c, const char *host, const char *port)
{
    struct rdma *ep = rdma_of(c);
    const struct evutil_addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    if (!ep->dns)
        ep->dns =
            evdns_base_new(ep->base.host.base, EVDNS_BASE_INITIALIZE_NAMESERVERS | EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (!ep->dns)
        rdma_fail(c, -EHOSTUNREACH, "no resolver: /etc/resolv.conf cannot be used");
    else
        c->lookup = evdns_getaddrinfo(ep->dns, host, port, &hints, on_lookup, c);
}

int rdma_dial(struct tp_endpoint *base, const char *address, enum tp_class class, void *user, struct tp_channel **out,
              struct cfg_error *err)
{
    struct rdma *ep = (struct rdma *)base;
    const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *ai;
    char host[TP_ADDRESS_TEXT];
    const char *port;
    if (cfg_address_split(address, host, sizeof host, &port))
        return cfg_error_set(err, EINVAL, "%s: not HOST:PORT", address);
    int rc = rdma_rails(ep, NULL, err);
    if (rc)
        return rc;
    struct rdma_channel *c = rdma_channel_new(ep, class);
    if (!c)
        return cfg_error_set(err, ENOMEM, "rdma: no memory for a channel");
    c->base.dialled = c->told = true;
    c->base.user = user;
    base->host.random(base->host.ctx, &c->id, sizeof c->id);
    snprintf(c->base.peer, sizeof c->base.peer, "%s", address);
    c->deadline = rdma_now(ep) + ep->connect_ns;
    rdma_due(ep, c->deadline);
    if (getaddrinfo(host, port, &numeric, &ai) == 0) {
        memcpy(&c->to, ai->ai_addr, ai->ai_addrlen < sizeof c->to ? ai->ai_addrlen : sizeof c->to);
        freeaddrinfo(ai);
        dial_first(c);
    } else {
        look_up(c, host, port);
    }
    *out = &c->base;
    return 0;
}

static void address_resolved(struct rdma_lane *l)
{
    struct rdma *ep = rdma_of(l->channel);
    struct cfg_error err;
    struct rdma_rail *r = l->rail;
    if (!l->id->verbs || strcmp(ibv_get_device_name(l->id->verbs->device), r->name) != 0) {
        cfg_error_set(&err, EHOSTUNREACH, "the way to that address is over %s, not over %s, which is chosen here",
                      l->id->verbs ? ibv_get_device_name(l->id->verbs->device) : "no RDMA device", r->name);
        lane_failed(l, -EHOSTUNREACH, err.msg);
        return;
    }
    int rc = rdma_lane_make(l, r, &err);
    if (rc) {
        lane_failed(l, rc, err.msg);
        return;
    }
    l->state = RDMA_ROUTING;
    if (rdma_resolve_route(l->id, connect_ms(ep)))
        lane_failed(l, -errno, strerror(errno));
}

static void route_resolved(struct rdma_lane *l)
{
    struct rdma_channel *c = l->channel;
    struct rdma *ep = rdma_of(c);
    uint8_t bytes[TP_RDMA_ASK];
    const struct tp_rdma_ask ask = {.lane = (uint8_t)l->index,
                                    .lanes = (uint8_t)tp_rdma_lanes(c->base.class, ep->rails),
                                    .class = (uint8_t)c->base.class,
                                    .frame_max = ep->frame_max,
                                    .depth = (uint16_t)ep->depth,
                                    .mtu = (uint16_t)l->rail->mtu,
                                    .channel = c->id};
    tp_rdma_ask_write(&ask, bytes);
    struct rdma_conn_param p = {.private_data = bytes,
                                .private_data_len = sizeof bytes,
                                .responder_resources = 1,
                                .initiator_depth = 1,
                                .retry_count = RETRIES,
                                .rnr_retry_count = RETRIES,
                                .srq = 1,
                                .qp_num = l->qp->qp_num};
    l->state = RDMA_CONNECTING;
    if (rdma_connect(l->id, &p))
        lane_failed(l, -errno, strerror(errno));
}

static void replied(struct rdma_lane *l, const uint8_t *bytes, size_t size)
{
    struct rdma_channel *c = l->channel;
    struct rdma *ep = rdma_of(c);
    struct tp_rdma_reply r;
    struct cfg_error err;
    int rc = tp_rdma_reply_read(bytes, size, &r, &err);
    if (rc == 0)
        rc = raise_qp(l, r.mtu < l->rail->mtu ? r.mtu : l->rail->mtu, &err);
    if (rc == 0 && rdma_establish(l->id))
        rc = cfg_error_set(&err, errno, "the connection cannot be completed (%s)", strerror(errno));
    if (rc) {
        lane_failed(l, rc, err.msg);
        return;
    }
    l->state = RDMA_UP;
    c->lanes_up |= bit(l);
    if (l->index == 0) {
        agree(c, r.frame_max, r.depth);
        c->reply = r;
        int lanes = c->base.class == TP_CLASS_CONTROL ? 1 : r.lanes < ep->rails ? r.lanes : ep->rails;
        c->lanes = lanes;
        c->lanes_by = rdma_now(ep) + ep->connect_ns / 4;
        rdma_due(ep, c->lanes_by);
        for (int i = 1; i < lanes; i++) {
            struct sockaddr_in6 to;
            to_sockaddr(r.address[i], port_of(&c->to), &to);
            dial_lane(c, i, &ep->rail[i], &to);
        }
    } else {
        rdma_lane_shrink(l, (int)c->base.credits_max);
    }
    rdma_mark(c);
}

void rdma_lanes_trim(struct rdma_channel *c, int n)
{
    for (int i = n; i < RDMA_LANES; i++) {
        if (c->lane[i].id && c->lane[i].state == RDMA_UP)
            rdma_disconnect(c->lane[i].id);
        rdma_lane_free(&c->lane[i]);
    }
    c->lanes = n;
}

void rdma_lanes_ready(struct rdma_channel *c)
{
    uint32_t all = (UINT32_C(1) << c->lanes) - 1;
    if (!c->base.dialled || c->state != RDMA_OPENING || !(c->lanes_up & 1) || (c->lanes_up | c->lanes_failed) != all)
        return;
    /* Lanes are used up to the first that failed, so that both sides count alike. */
    int n = 1;
    while (c->lanes_up >> n & 1)
        n++;
    rdma_lanes_trim(c, n);
    uint8_t lanes = (uint8_t)n;
    if (!rdma_steer(c, RDMA_START, &lanes, 1)) {
        rdma_fail(c, -EIO, "%s: the first request was not taken", c->lane[0].rail->name);
        return;
    }
    const struct tp_host *h = &c->base.endpoint->host;
    c->state = RDMA_OPEN;
    c->deadline = TP_NEVER;
    c->heard = rdma_now(rdma_of(c));
    h->sink->opened(h->ctx, &c->base);
}

/* ---- listening ----------------------------------------------------------------------------------------------- */

static int listen_rail(struct rdma_rail *r, uint16_t port, struct cfg_error *err)
{
    struct sockaddr_in6 at;
    char text[TP_ADDRESS_TEXT];
    to_sockaddr(r->address, port, &at);
    sockaddr_text((struct sockaddr *)&at, text);
    if (rdma_create_id(r->ep->cm, &r->listener, r, RDMA_PS_TCP)) {
        r->listener = NULL;
        return cfg_error_set(err, errno, "%s: %s", text, strerror(errno));
    }
    rdma_set_option(r->listener, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &(int){1}, sizeof(int));
    if (rdma_bind_addr(r->listener, (struct sockaddr *)&at) || rdma_listen(r->listener, BACKLOG)) {
        int e = errno;
        rdma_destroy_id(r->listener);
        r->listener = NULL;
        return cfg_error_set(err, e, "%s on %s: %s; %s", text, r->name, strerror(e),
                             e == EADDRINUSE ? "stop the program that has it, or choose another port"
                                             : "give an address of an RDMA device of this machine");
    }
    return 0;
}

static void stop_listening(struct rdma *ep)
{
    for (int i = 0; i < ep->rails; i++) {
        if (ep->rail[i].listener)
            rdma_destroy_id(ep->rail[i].listener);
        ep->rail[i].listener = NULL;
    }
}

/* The same port on every rail; a free one when it is 0. */
static int listen_all(struct rdma *ep, uint16_t port, struct cfg_error *err)
{
    for (int i = 0; i < ep->rails; i++) {
        int rc = listen_rail(&ep->rail[i], port, err);
        if (rc) {
            stop_listening(ep);
            return rc;
        }
        if (i == 0)
            port = ntohs(rdma_get_src_port(ep->rail[0].listener));
    }
    return 0;
}

int rdma_listen_at(struct tp_endpoint *base, const char *address, char bound[TP_ADDRESS_TEXT], struct cfg_error *err)
{
    struct rdma *ep = (struct rdma *)base;
    char host[TP_ADDRESS_TEXT], *end;
    const char *port;
    uint8_t wanted[16];
    if (ep->listening || cfg_address_split(address, host, sizeof host, &port))
        return cfg_error_set(err, EINVAL, "%s: not HOST:PORT, or the endpoint listens already", address);
    long number = strtol(port, &end, 10);
    if (*end || number < 0 || number > 65535 || tp_rdma_address_parse(host, wanted))
        return cfg_error_set(err, EINVAL, "%s: an RDMA endpoint listens at an address and a port in numbers", address);
    int rc = rdma_rails(ep, host, err);
    if (rc)
        return rc;
    if (memcmp(ep->rail[0].address, wanted, 16) != 0) {
        char text[48];
        return cfg_error_set(err, EADDRNOTAVAIL, "%s: this endpoint's first device is %s with %s; listen there",
                             address, ep->rail[0].name, tp_rdma_address_text(ep->rail[0].address, text));
    }
    /* A port that is free on the first device may be taken on another one. */
    for (int i = 0; i < (number ? 1 : PORT_TRIES); i++) {
        rc = listen_all(ep, (uint16_t)number, err);
        if (rc != -EADDRINUSE)
            break;
    }
    if (rc)
        return rc;
    ep->listening = true;
    sockaddr_text(rdma_get_local_addr(ep->rail[0].listener), bound);
    return 0;
}

/* ---- being asked --------------------------------------------------------------------------------------------- */

static void refuse(struct rdma_cm_id *id, const char *why)
{
    uint8_t bytes[TP_RDMA_REFUSAL];
    tp_rdma_refusal_write(why, bytes);
    rdma_reject(id, bytes, sizeof bytes);
    rdma_destroy_id(id);
}

static struct rdma_channel *joining(struct rdma *ep, uint64_t id)
{
    struct rdma_channel *c = ep->channels;
    while (c && (c->id != id || c->base.dialled || c->state != RDMA_OPENING || c->failed))
        c = c->next;
    return c;
}

static int accept_lane(struct rdma_lane *l, struct rdma_rail *r, const struct tp_rdma_ask *ask, struct cfg_error *err)
{
    struct rdma_channel *c = l->channel;
    struct rdma *ep = rdma_of(c);
    uint8_t bytes[TP_RDMA_REPLY];
    int mtu = ask->mtu < r->mtu ? ask->mtu : r->mtu;
    int rc = rdma_lane_make(l, r, err);
    if (rc == 0)
        rc = raise_qp(l, mtu, err);
    if (rc)
        return rc;
    if (l->index == 0)
        agree(c, ask->frame_max, ask->depth);
    else
        rdma_lane_shrink(l, (int)c->base.credits_max);
    struct tp_rdma_reply reply = {.lanes = (uint8_t)(ask->lanes < ep->rails ? ask->lanes : ep->rails),
                                  .frame_max = c->base.frame_max,
                                  .depth = (uint16_t)c->base.credits_max,
                                  .mtu = (uint16_t)mtu};
    for (int i = 0; i < ep->rails; i++)
        memcpy(reply.address[i], ep->rail[i].address, 16);
    tp_rdma_reply_write(&reply, bytes);
    struct rdma_conn_param p = {.private_data = bytes,
                                .private_data_len = sizeof bytes,
                                .responder_resources = 1,
                                .initiator_depth = 1,
                                .rnr_retry_count = RETRIES,
                                .srq = 1,
                                .qp_num = l->qp->qp_num};
    if (rdma_accept(l->id, &p))
        return cfg_error_set(err, errno, "the connection cannot be accepted (%s)", strerror(errno));
    l->state = RDMA_UP;
    c->lanes_up |= bit(l);
    return 0;
}

static void asked(struct rdma_rail *r, struct rdma_cm_id *id, const uint8_t *bytes, size_t size)
{
    struct rdma *ep = r->ep;
    struct tp_rdma_ask ask;
    struct cfg_error err;
    struct rdma_channel *c = NULL;
    if (tp_rdma_ask_read(bytes, size, &ask, &err)) {
        refuse(id, err.msg);
        return;
    }
    if (ask.lane == 0) {
        c = rdma_channel_new(ep, (enum tp_class)ask.class);
        if (c) {
            c->id = ask.channel;
            c->deadline = rdma_now(ep) + ep->connect_ns;
            rdma_due(ep, c->deadline);
            sockaddr_text(rdma_get_peer_addr(id), c->base.peer);
        }
    } else {
        c = joining(ep, ask.channel);
    }
    if (!c || c->lane[ask.lane].id) {
        refuse(id, ask.lane ? "no channel waits for this lane" : "no memory for a channel");
        return;
    }
    struct rdma_lane *l = &c->lane[ask.lane];
    l->id = id;
    id->context = l;
    int rc = accept_lane(l, r, &ask, &err);
    if (rc == 0) {
        if (ask.lane >= c->lanes)
            c->lanes = ask.lane + 1;
        return;
    }
    l->id = NULL;
    refuse(id, err.msg);
    if (ask.lane == 0)
        rdma_channel_free(c);
    else
        rdma_lane_free(l);
}

/* ---- events -------------------------------------------------------------------------------------------------- */

static int refused_reason(int status)
{
    /* The reasons of InfiniBand's REJ message: 8 is a service that nobody offers. */
    return status == 8 || status == 28 ? -ECONNREFUSED : -ECONNABORTED;
}

static void lane_event(struct rdma_lane *l, const struct rdma_cm_event *e, const uint8_t *bytes, size_t size)
{
    struct rdma_channel *c = l->channel;
    char why[TP_RDMA_REFUSAL], text[TP_RDMA_WHY_TEXT];
    switch (e->event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        address_resolved(l);
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        route_resolved(l);
        break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        replied(l, bytes, size);
        break;
    case RDMA_CM_EVENT_REJECTED:
        tp_rdma_refusal_read(bytes, size, why);
        snprintf(text, sizeof text, "%s",
                 why[0]           ? why
                 : e->status == 8 ? "nobody listens there"
                                  : "the other side refused");
        lane_failed(l, refused_reason(e->status), text);
        break;
    case RDMA_CM_EVENT_ADDR_ERROR:
        if (e->status == -ETIMEDOUT && !c->failed && rdma_now(rdma_of(c)) < c->deadline) {
            resolve(l, NULL);
            break;
        }
        /* fall through */
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
        snprintf(text, sizeof text,
                 "%s has no way to that address (%s, %s); both sides must be in one network, on rails "
                 "that see each other",
                 l->rail->name, rdma_event_str(e->event), strerror(-e->status));
        lane_failed(l, e->status == -ETIMEDOUT || e->event == RDMA_CM_EVENT_UNREACHABLE ? -ETIMEDOUT : -EHOSTUNREACH,
                    text);
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
        /* What came before it is still taken. */
        for (int i = 0; i < c->lanes; i++)
            if (c->lane[i].rail)
                rdma_rail_take(c->lane[i].rail);
        rdma_fail(c, -ECONNRESET, "the other side ended the connection");
        break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        rdma_fail(c, -ENODEV, "%s was removed", l->rail->name);
        break;
    default:
        break;
    }
}

void rdma_cm_take(struct rdma *ep)
{
    struct rdma_cm_event *got;
    while (rdma_get_cm_event(ep->cm, &got) == 0) {
        uint8_t bytes[256] = {0};
        const struct rdma_cm_event e = *got;
        size_t size = e.param.conn.private_data_len;
        bool has_data = e.event == RDMA_CM_EVENT_CONNECT_REQUEST || e.event == RDMA_CM_EVENT_CONNECT_RESPONSE ||
                        e.event == RDMA_CM_EVENT_REJECTED;
        size = has_data && e.param.conn.private_data ? size < sizeof bytes ? size : sizeof bytes : 0;
        if (size)
            memcpy(bytes, e.param.conn.private_data, size);
        /* An id that has events which were not acknowledged cannot be destroyed. */
        rdma_ack_cm_event(got);
        if (e.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            asked(e.listen_id->context, e.id, bytes, size);
        } else {
            enum rdma_owner *owner = e.id->context;
            if (owner && *owner == RDMA_LANE)
                lane_event((struct rdma_lane *)(void *)owner, &e, bytes, size);
        }
    }
}
