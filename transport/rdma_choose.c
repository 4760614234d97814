/* Which RDMA devices and GIDs an endpoint uses, and why; and what `weft check` has to say about a machine. Pure
 * functions over struct tp_rdma_facts. */
#include "transport/rdma.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "transport/transport.h"

static const char *gid_type_name(enum tp_rdma_gid_type t)
{
    return t == TP_RDMA_GID_ROCE_V2 ? "RoCE v2" : t == TP_RDMA_GID_ROCE_V1 ? "RoCE v1" : "InfiniBand";
}

static bool is_zero(const uint8_t a[16])
{
    static const uint8_t zero[16];
    return memcmp(a, zero, 16) == 0;
}

static bool is_v4(const uint8_t a[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(a, mapped, sizeof mapped) == 0;
}

static bool is_link_local(const uint8_t a[16])
{
    return a[0] == 0xfe && (a[1] & 0xc0) == 0x80;
}

/* Higher is better; 0: cannot be used. */
static int gid_rank(const struct tp_rdma_gid *g)
{
    if (g->type != TP_RDMA_GID_ROCE_V2 || is_link_local(g->raw))
        return 0;
    return is_v4(g->raw) ? 2 : 1;
}

static void ethernet_usable(const struct tp_rdma_device *d, const struct tp_rdma_port *p, int *gid,
                            char why[TP_RDMA_WHY_TEXT])
{
    bool v1 = false, local = false;
    const char *netdev = "";
    int best = 0;
    for (int i = 0; i < p->gid_count; i++) {
        const struct tp_rdma_gid *g = &p->gid[i];
        int rank = gid_rank(g);
        if (rank > best) {
            best = rank;
            *gid = i;
        }
        v1 |= g->type == TP_RDMA_GID_ROCE_V1 && !is_link_local(g->raw);
        local |= is_link_local(g->raw);
        if (g->netdev[0])
            netdev = g->netdev;
    }
    if (*gid >= 0)
        return;
    if (v1)
        snprintf(
            why, TP_RDMA_WHY_TEXT,
            "its GIDs with an address are RoCE v1 only, which no router passes; allow RoCE v2 on the device (in its "
            "driver or firmware settings, or /sys/kernel/config/rdma_cm/%s/ports/%d/default_roce_mode)",
            d->name, p->number);
    else if (local)
        snprintf(why, TP_RDMA_WHY_TEXT,
                 "its GIDs are link-local only, so peers cannot be reached by address; give its netdev %s an IPv4 or a "
                 "global IPv6 address (ip addr add ADDRESS/PREFIX dev %s)",
                 netdev, netdev[0] ? netdev : "NETDEV");
    else
        snprintf(why, TP_RDMA_WHY_TEXT,
                 "its GID table is empty; give its netdev an address and bring it up. In a container the network "
                 "namespace must be the one that holds the netdev");
}

void tp_rdma_port_usable(const struct tp_rdma_device *d, const struct tp_rdma_port *p, int *gid,
                         char why[TP_RDMA_WHY_TEXT])
{
    *gid = -1;
    why[0] = '\0';
    if (!p->active)
        snprintf(why, TP_RDMA_WHY_TEXT, "it is %s; %s", p->state,
                 p->ethernet ? "bring its netdev up (ip link set NETDEV up) and check cable and switch port"
                             : "check the cable, and that a subnet manager (opensm) runs");
    else if (p->ethernet)
        ethernet_usable(d, p, gid, why);
    else if (p->gid_count == 0)
        snprintf(why, TP_RDMA_WHY_TEXT, "its GID table is empty; check that a subnet manager (opensm) runs");
    else
        *gid = 0;
}

/* Whether the port has this address; InfiniBand's addresses are those of its IPoIB netdev, which the GIDs do not show.
 */
static int gid_with_address(const struct tp_rdma_port *p, const uint8_t address[16])
{
    int found = -1;
    for (int i = 0; i < p->gid_count; i++)
        if (memcmp(p->gid[i].raw, address, 16) == 0 && (found < 0 || p->gid[i].type == TP_RDMA_GID_ROCE_V2))
            found = i;
    return found;
}

/* The rail that device d would be: through the address if it is given, else through its best port. */
static bool device_rail(const struct tp_rdma_facts *f, int d, const uint8_t *address, struct tp_rdma_rail *out,
                        char why[TP_RDMA_WHY_TEXT])
{
    const struct tp_rdma_device *dev = &f->device[d];
    bool found = false;
    char reason[TP_RDMA_WHY_TEXT] = "it has no port";
    if (dev->error)
        snprintf(reason, sizeof reason, "it cannot be opened (%s); the user needs /dev/infiniband/uverbs*",
                 strerror(dev->error));
    for (int p = 0; p < dev->port_count && !dev->error && !found; p++) {
        const struct tp_rdma_port *port = &dev->port[p];
        int gid;
        tp_rdma_port_usable(dev, port, &gid, reason);
        if (gid < 0)
            continue;
        if (address) {
            int g = gid_with_address(port, address);
            if (g < 0 && port->ethernet) {
                snprintf(reason, sizeof reason, "it does not have the address");
                continue;
            }
            if (g >= 0 && port->gid[g].type == TP_RDMA_GID_ROCE_V1) {
                snprintf(reason, sizeof reason, "the address has a RoCE v1 GID only; allow RoCE v2 on the device");
                continue;
            }
            gid = g >= 0 ? g : gid;
        }
        *out = (struct tp_rdma_rail){.device = d, .port = p, .gid = gid};
        memcpy(out->address, address ? address : port->gid[gid].raw, 16);
        found = true;
    }
    if (!found)
        snprintf(why, TP_RDMA_WHY_TEXT, "%.63s: %.400s", dev->name, reason);
    return found;
}

static int fail(struct tp_rdma_choice *out, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct tp_rdma_choice *out, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->why, sizeof out->why, fmt, ap);
    va_end(ap);
    out->rail_count = 0;
    return -code;
}

/* Further than any known distance, so that devices that say where they are come first. */
static int distance_rank(const struct tp_rdma_device *d)
{
    return d->distance > 0 ? d->distance : 1000;
}

/* Primary by address, or the nearest one (the first by name among equals: the facts are in the order of names). */
static int choose_primary(const struct tp_rdma_facts *f, const uint8_t *address, struct tp_rdma_choice *out)
{
    char why[TP_RDMA_WHY_TEXT], first[TP_RDMA_WHY_TEXT] = "", text[48];
    char have[256] = "";
    int best = -1;
    for (int d = 0; d < f->device_count; d++) {
        struct tp_rdma_rail r;
        bool ok = device_rail(f, d, address, &r, why);
        if (ok && (best < 0 || distance_rank(&f->device[d]) < distance_rank(&f->device[best]))) {
            best = d;
            out->rail[0] = r;
        }
        if (!ok && !first[0])
            snprintf(first, sizeof first, "%s", why);
        if (address && device_rail(f, d, NULL, &r, why)) {
            size_t n = strlen(have);
            snprintf(have + n, sizeof have - n, "%s%s on %.63s", n ? ", " : "", tp_rdma_address_text(r.address, text),
                     f->device[d].name);
        }
    }
    if (best >= 0)
        return 0;
    if (address && have[0])
        return fail(out, EADDRNOTAVAIL,
                    "no usable RDMA port has this node's address %s; set the node's host to an address of one: %s",
                    tp_rdma_address_text(address, text), have);
    return fail(out, ENODEV, "no RDMA port can be used: %.440s", first);
}

/* Adds device d as a rail; false: it cannot be one, or all rails are taken. */
static bool add_rail(const struct tp_rdma_facts *f, int d, const uint8_t *address, struct tp_rdma_choice *out,
                     char why[TP_RDMA_WHY_TEXT])
{
    if (out->rail_count == TP_RDMA_RAILS_MAX) {
        snprintf(why, TP_RDMA_WHY_TEXT, "at most %d devices can be used by one node", TP_RDMA_RAILS_MAX);
        return false;
    }
    if (!device_rail(f, d, address, &out->rail[out->rail_count], why))
        return false;
    out->rail_count++;
    return true;
}

static int choose_named(const struct tp_rdma_facts *f, const uint8_t *address, const char *names,
                        struct tp_rdma_choice *out)
{
    char why[TP_RDMA_WHY_TEXT];
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ", ");
        int d = 0;
        while (d < f->device_count && (strlen(f->device[d].name) != n || strncmp(f->device[d].name, p, n) != 0))
            d++;
        for (int r = 0; r < out->rail_count; r++)
            if (d == out->rail[r].device)
                return fail(out, EINVAL, "the device %.*s is named twice", (int)n, p);
        if (d == f->device_count)
            return fail(out, EINVAL, "there is no RDMA device %.*s; `rdma link` and `ibv_devices` list them", (int)n,
                        p);
        if (!add_rail(f, d, out->rail_count == 0 ? address : NULL, out, why))
            return fail(out, EINVAL, "a device that is asked for cannot be used: %.440s", why);
        p += n + strspn(p + n, ", ");
    }
    return 0;
}

/* By distance from the calling thread's memory, no farther than the primary; InfiniBand has no address to offer. */
static void choose_near(const struct tp_rdma_facts *f, struct tp_rdma_choice *out)
{
    char why[TP_RDMA_WHY_TEXT];
    int primary = out->rail[0].device;
    for (int d = 0; d < f->device_count && out->rail_count < TP_RDMA_RAILS_MAX; d++)
        if (d != primary && distance_rank(&f->device[d]) <= distance_rank(&f->device[primary]) &&
            f->device[d].port_count && f->device[d].port[0].ethernet)
            add_rail(f, d, NULL, out, why);
}

static void explain_choice(const struct tp_rdma_facts *f, const struct tp_rdma_want *want, struct tp_rdma_choice *out)
{
    char text[48];
    size_t n = 0;
    for (int i = 0; i < out->rail_count && n < sizeof out->why; i++) {
        const struct tp_rdma_rail *r = &out->rail[i];
        const struct tp_rdma_device *d = &f->device[r->device];
        const struct tp_rdma_port *p = &d->port[r->port];
        n += (size_t)snprintf(out->why + n, sizeof out->why - n, "%s%s port %d, GID %d (%s, %s)", i ? "; " : "",
                              d->name, p->number, p->gid[r->gid].index, tp_rdma_address_text(r->address, text),
                              gid_type_name(p->gid[r->gid].type));
    }
    const char *why = *want->devices && strcmp(want->devices, "auto") != 0 ? "as named in the configuration"
                      : out->rail_count > 1     ? "the address's device and those that are as near"
                      : !is_zero(want->address) ? "it has the node's address"
                                                : "the nearest usable device";
    if (n < sizeof out->why)
        snprintf(out->why + n, sizeof out->why - n, ": %s", why);
}

int tp_rdma_choose(const struct tp_rdma_facts *facts, const struct tp_rdma_want *want, struct tp_rdma_choice *out)
{
    const uint8_t *address = is_zero(want->address) ? NULL : want->address;
    *out = (struct tp_rdma_choice){0};
    if (facts->device_count == 0)
        return fail(out, ENODEV, "%s",
                    facts->has_uverbs
                        ? "the kernel's verbs interface is there, but no RDMA device; load the adapter's driver (for "
                          "soft-RoCE: rdma link add rxe0 type rxe netdev NETDEV)"
                        : "this machine has no RDMA device: /dev/infiniband/uverbs* is not there; load the adapter's "
                          "driver and ib_uverbs. A container must be given /dev/infiniband");
    int rc;
    if (*want->devices && strcmp(want->devices, "auto") != 0) {
        rc = choose_named(facts, address, want->devices, out);
    } else {
        rc = choose_primary(facts, address, out);
        out->rail_count = rc == 0;
        if (rc == 0 && *want->devices)
            choose_near(facts, out);
    }
    if (rc == 0)
        explain_choice(facts, want, out);
    return rc;
}

/* ---- weft check ------------------------------------------------------------------------------------------------ */

struct judge {
    void (*say)(void *ctx, enum tp_rdma_finding how, const char *text);
    void *ctx;
    int problems;
};

static void tell(struct judge *j, enum tp_rdma_finding how, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void tell(struct judge *j, enum tp_rdma_finding how, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    j->problems += how == TP_RDMA_PROBLEM;
    j->say(j->ctx, how, text);
}

static void judge_device(struct judge *j, const struct tp_rdma_device *d)
{
    char text[48], why[TP_RDMA_WHY_TEXT], size[32] = "any size", where[32] = "not known";
    if (d->error) {
        tell(j, TP_RDMA_WARNING,
             "%s: cannot be opened (%s); the user needs read and write access to "
             "/dev/infiniband/uverbs*",
             d->name, strerror(d->error));
        return;
    }
    if (d->mr_size_max < UINT64_C(1) << 50)
        snprintf(size, sizeof size, "up to %llu MiB each", (unsigned long long)(d->mr_size_max >> 20));
    if (d->distance)
        snprintf(where, sizeof where, "%d", d->distance);
    tell(j, TP_RDMA_FINE,
         "%s: distance %s (10 is local); %d queue pairs of %d requests, %d completion queues of %d, %d shared receive "
         "queues of %d, %d registrations of %s",
         d->name, where, d->qp_max, d->qp_wr_max, d->cq_max, d->cqe_max, d->srq_max, d->srq_wr_max, d->mr_max, size);
    for (int i = 0; i < d->port_count; i++) {
        const struct tp_rdma_port *p = &d->port[i];
        int gid;
        tp_rdma_port_usable(d, p, &gid, why);
        tell(j, TP_RDMA_FINE, "%s port %d: %s, %s, MTU %d of %d, %d GIDs%s", d->name, p->number, p->state,
             p->ethernet ? "Ethernet (RoCE)" : "InfiniBand", p->mtu, p->mtu_max, p->gid_count + p->gids_left_out,
             p->gids_left_out ? ", not all shown" : "");
        for (int g = 0; g < p->gid_count; g++)
            tell(j, TP_RDMA_FINE, "%s port %d: GID %d %s, %s%s%s%s", d->name, p->number, p->gid[g].index,
                 tp_rdma_address_text(p->gid[g].raw, text), gid_type_name(p->gid[g].type),
                 p->gid[g].netdev[0] ? ", netdev " : "", p->gid[g].netdev, g == gid ? " (best)" : "");
        if (gid < 0)
            tell(j, TP_RDMA_WARNING, "%s port %d cannot be used: %s", d->name, p->number, why);
        if (p->active && p->mtu < p->mtu_max)
            tell(j, TP_RDMA_WARNING,
                 "%s port %d: MTU %d, the device can do %d; raise the netdev's MTU (to %d or more, and on every switch "
                 "between) for fewer packets per byte",
                 d->name, p->number, p->mtu, p->mtu_max, p->mtu_max + 104);
    }
}

static void judge_machine(struct judge *j, const struct tp_rdma_facts *f)
{
    for (int d = 0; d < f->device_count; d++)
        judge_device(j, &f->device[d]);
    if (f->devices_left_out)
        tell(j, TP_RDMA_WARNING, "%d more devices are not looked at", f->devices_left_out);
    if (f->device_count && !f->has_cm)
        tell(j, TP_RDMA_PROBLEM,
             "connections cannot be made: /dev/infiniband/rdma_cm cannot be opened; load rdma_ucm, and give a "
             "container the device");
}

int tp_rdma_lanes(int class, int rails)
{
    return class == TP_CLASS_CONTROL ? 1 : rails;
}

int tp_rdma_connections(int peers, int rail)
{
    int n = 0;
    for (int class = 0; class < TP_CLASSES; class ++)
        n += tp_rdma_lanes(class, rail + 1) > rail ? peers : 0;
    return n;
}

uint64_t tp_rdma_register_bytes(uint64_t window_bytes, int peers, int rails)
{
    const int per_pool = TP_RDMA_POOL / (TP_RDMA_DEPTH + TP_RDMA_RESERVE);
    uint64_t frames = (uint64_t)peers * TP_CLASSES * TP_RDMA_DEPTH;
    for (int rail = 0; rail < rails; rail++)
        frames += (uint64_t)((tp_rdma_connections(peers, rail) + per_pool - 1) / per_pool) * TP_RDMA_POOL;
    return window_bytes * (uint64_t)rails + frames * TP_RDMA_FRAME;
}

static void judge_memory(struct judge *j, const struct tp_rdma_facts *f, const struct tp_rdma_want *w, int rails)
{
    uint64_t bytes = tp_rdma_register_bytes(w->window_bytes, w->peers, rails > 1 ? rails : 1);
    char how_much[64] = "";
    snprintf(how_much, sizeof how_much, "%llu MiB will be registered", (unsigned long long)(bytes >> 20));
    if (rails > 1)
        snprintf(how_much + strlen(how_much), sizeof how_much - strlen(how_much), " on %d devices together", rails);
    if (f->lock_privilege)
        tell(j, TP_RDMA_FINE, "locked memory: %s; this process may lock any amount (CAP_IPC_LOCK)", how_much);
    else if (f->locked_max == UINT64_MAX)
        tell(j, TP_RDMA_FINE, "locked memory: %s; there is no limit", how_much);
    else
        tell(j, f->locked_max < bytes ? TP_RDMA_PROBLEM : TP_RDMA_FINE, "locked memory: %s, %llu KiB may be locked%s",
             how_much, (unsigned long long)(f->locked_max >> 10),
             f->locked_max >= bytes ? ""
             : f->locked_max_hard >= bytes
                 ? "; raise the soft limit (ulimit -l unlimited)"
                 : "; raise RLIMIT_MEMLOCK: LimitMEMLOCK=infinity in a systemd unit, memlock in "
                   "/etc/security/limits.conf, --ulimit memlock=-1 for a container");
}

static void judge_limits(struct judge *j, const struct tp_rdma_facts *f, const struct tp_rdma_want *w,
                         const struct tp_rdma_choice *c)
{
    for (int i = 0; i < c->rail_count; i++) {
        const struct tp_rdma_device *d = &f->device[c->rail[i].device];
        int connections = tp_rdma_connections(w->peers, i);
        if (w->window_bytes > d->mr_size_max)
            tell(j, TP_RDMA_FINE, "%s: %llu MiB are registered in pieces of up to %llu MiB", d->name,
                 (unsigned long long)(w->window_bytes >> 20), (unsigned long long)(d->mr_size_max >> 20));
        if (d->mr_size_max && w->window_bytes / d->mr_size_max >= (uint64_t)d->mr_max)
            tell(j, TP_RDMA_PROBLEM,
                 "%s: that needs more registrations than the %d that the device has; lower "
                 "kv.memory",
                 d->name, d->mr_max);
        if (connections > d->qp_max)
            tell(j, TP_RDMA_PROBLEM,
                 "%s: %d connections are expected, it has %d queue pairs; use fewer nodes, or "
                 "another device",
                 d->name, connections, d->qp_max);
    }
}

int tp_rdma_judge(const struct tp_rdma_facts *facts, const struct tp_rdma_want *want,
                  void (*say)(void *ctx, enum tp_rdma_finding how, const char *text), void *ctx)
{
    struct judge j = {.say = say, .ctx = ctx};
    struct tp_rdma_choice choice;
    if (!want->known)
        judge_machine(&j, facts);
    if (tp_rdma_choose(facts, want, &choice))
        tell(&j, TP_RDMA_PROBLEM, "%s", choice.why);
    else
        tell(&j, TP_RDMA_FINE, "would use %s", choice.why);
    judge_memory(&j, facts, want, choice.rail_count);
    judge_limits(&j, facts, want, &choice);
    return j.problems;
}
