/* The provider rdma as the program sees it. All that needs libibverbs and librdmacm lives in weft-rdma.so
 * (transport/rdma/), which is loaded when rdma is asked for; the program itself links none of it and starts where the
 * libraries are absent. Nothing falls back to tcp: what cannot be had is refused with its cause and cure.
 *
 * Also here, as plain data and pure functions, so that they can be tested without any device: what the machine has
 * (tp_rdma_facts), which devices and GIDs would be used and why (tp_rdma_choose), and what stands in the way
 * (tp_rdma_judge). `weft check` prints them, and the provider opens exactly what they chose. Any thread. */
#ifndef WEFT_TRANSPORT_RDMA_H
#define WEFT_TRANSPORT_RDMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/error.h"

struct tp_ops;

enum {
    TP_RDMA_DEVICES_MAX = 16,
    TP_RDMA_PORTS_MAX = 4,
    TP_RDMA_GIDS_MAX = 16, /* entries kept per port; empty ones are not */
    TP_RDMA_RAILS_MAX = 4, /* devices that one endpoint uses */
    TP_RDMA_CLASSES = 3,
    TP_RDMA_NAME_TEXT = 64,
    TP_RDMA_WHY_TEXT = 512,
    TP_RDMA_FRAME = 16 << 10, /* bytes of a frame unless configured */
    TP_RDMA_DEPTH = 64,       /* frames and immediates under way, likewise */
    TP_RDMA_RESERVE = 4,      /* receives of a channel beyond depth, for what steers it */
    TP_RDMA_POOL = 256,       /* receive buffers that are registered at a time */
};

/* ---- what the machine has -------------------------------------------------------------------------------------- */

enum tp_rdma_gid_type { TP_RDMA_GID_IB, TP_RDMA_GID_ROCE_V1, TP_RDMA_GID_ROCE_V2 };

struct tp_rdma_gid {
    int index; /* in the port's table */
    enum tp_rdma_gid_type type;
    uint8_t raw[16]; /* as an IPv6 address; IPv4 ones are mapped */
    char netdev[32]; /* "" when the entry names none */
};

struct tp_rdma_port {
    int number; /* from 1 */
    bool active;
    const char *state; /* "active", "down", ...; static */
    bool ethernet;     /* RoCE; else InfiniBand */
    int mtu, mtu_max;  /* bytes of payload per packet; mtu is what the netdev leaves room for */
    uint64_t message_max;
    int gid_count, gids_left_out;
    struct tp_rdma_gid gid[TP_RDMA_GIDS_MAX];
};

struct tp_rdma_device {
    char name[TP_RDMA_NAME_TEXT];
    int error;    /* a positive errno: it could not be opened, and nothing below is known */
    int distance; /* from the calling thread's memory node, as the kernel counts: 10 is local; 0: not known */
    uint64_t mr_size_max;
    int mr_max, qp_max, qp_wr_max, cq_max, cqe_max, srq_max, srq_wr_max;
    int port_count;
    struct tp_rdma_port port[TP_RDMA_PORTS_MAX];
};

struct tp_rdma_facts {
    int device_count, devices_left_out;
    struct tp_rdma_device device[TP_RDMA_DEVICES_MAX];
    bool has_uverbs;     /* the kernel's verbs interface is there: /dev/infiniband/uverbs*, even when not usable */
    bool has_cm;         /* its connection manager: /dev/infiniband/rdma_cm can be opened */
    uint64_t locked_max; /* RLIMIT_MEMLOCK in bytes; UINT64_MAX: none */
    uint64_t locked_max_hard;
    bool lock_privilege; /* CAP_IPC_LOCK: the limit does not hold */
};

/* Reads memory limits and device files, which need no library; devices stay at 0. */
void tp_rdma_facts_system(struct tp_rdma_facts *out);

/* ---- the choice ------------------------------------------------------------------------------------------------ */

struct tp_rdma_want {
    /* The node's own address, an IPv4 (mapped) or IPv6 one; all zero: none is given, the nearest device is taken. */
    uint8_t address[16];
    /* "": the device that has the address, alone. "auto": with it every usable device that is as near. Else names,
     * separated by commas; the first one is primary, and has the address if one is given. */
    const char *devices;
    uint64_t window_bytes; /* memory that others write to, or that is written from; 0: not known */
    int peers;             /* nodes that it has a channel of every class with; 0: not known */
    bool known;            /* judge: what the machine has was said before */
};

/* One device, and the way it is used. Rail i of one node talks to rail i of another. */
struct tp_rdma_rail {
    int device, port; /* indexes in the facts */
    int gid;          /* index in the port's gid[] */
    uint8_t address[16];
};

struct tp_rdma_choice {
    int rail_count; /* 0: rdma cannot be used */
    struct tp_rdma_rail rail[TP_RDMA_RAILS_MAX];
    char why[TP_RDMA_WHY_TEXT]; /* one sentence: the choice, or what stands in its way and what to do */
};

/* Chooses ports and GIDs: active ports with an address that the connection manager can route, RoCE v2 before anything
 * else, IPv4 before IPv6, never link-local. Returns 0, or -ENODEV, -EADDRNOTAVAIL, -EINVAL (a name in want->devices)
 * with rail_count 0. */
int tp_rdma_choose(const struct tp_rdma_facts *facts, const struct tp_rdma_want *want, struct tp_rdma_choice *out);

/* Why this port cannot be a rail, with the cure; "" when it can. gid: the entry that it would use, -1 none. */
void tp_rdma_port_usable(const struct tp_rdma_device *d, const struct tp_rdma_port *p, int *gid,
                         char why[TP_RDMA_WHY_TEXT]);

enum tp_rdma_finding { TP_RDMA_FINE, TP_RDMA_WARNING, TP_RDMA_PROBLEM };

/* Devices, out of so many, that a channel of this class (enum tp_class) has a connection on: what steers nodes needs
 * one, what carries much is spread over all. */
int tp_rdma_lanes(int class, int rails);
/* Connections with so many peers on the rail-th of the devices in use. */
int tp_rdma_connections(int peers, int rail);
/* Bytes that an endpoint on so many devices has registered in all when it has a channel of every class with each of its
 * peers, as the kernel counts them: windows on every device, receive buffers on each device for the connections there,
 * and each channel's send buffers on its first device. At the default depth and size of frames. */
uint64_t tp_rdma_register_bytes(uint64_t window_bytes, int peers, int rails);

/* Calls say once per finding: the interface, every device with its limits, ports and GID table (not those when they
 * are known), the choice, locked memory against what will be registered, limits against peers. Returns the number of
 * problems. */
int tp_rdma_judge(const struct tp_rdma_facts *facts, const struct tp_rdma_want *want,
                  void (*say)(void *ctx, enum tp_rdma_finding how, const char *text), void *ctx);

/* ---- an endpoint ----------------------------------------------------------------------------------------------- */

/* tp_endpoint_config.provider of rdma. Copied by open; devices may be freed after it. NULL stands for all zero. */
struct tp_rdma_config {
    const char *devices; /* as in struct tp_rdma_want; NULL: "" */
    /* The node's own address, a number; NULL or "": the one that is listened at, else the nearest device's. */
    const char *address;
    int traffic_class[TP_RDMA_CLASSES]; /* the byte of the IP header, by enum tp_class; 0: the network's default */
    uint64_t register_max;              /* bytes per registration, below the device's own limit; 0: that limit */
    uint64_t stripe_min;                /* puts of so many bytes are striped over several devices; 0: 128 KiB */
};

/* ---- the library ----------------------------------------------------------------------------------------------- */

enum { TP_RDMA_ABI = 4 };

/* What weft-rdma.so exports as "tp_rdma_plugin". */
struct tp_rdma_plugin {
    uint32_t abi; /* TP_RDMA_ABI of its sources */
    /* Fills devices, ports and GIDs (and what tp_rdma_facts_system fills). Returns 0; -ENOSYS, -EACCES... when there
     * is no verbs interface, with devices at 0 and a message. Changes nothing. */
    int (*inspect)(struct tp_rdma_facts *out, struct cfg_error *err);
    const struct tp_ops *ops;
};

/* Loads weft-rdma.so once ($WEFT_RDMA_SO; else beside the program, else ../lib/weft/ from there). Returns 0, or
 * -ENOTSUP with what is missing and the cure. The answer stays the same for the life of the process. */
int tp_rdma_load(const struct tp_rdma_plugin **out, struct cfg_error *err);

/* "10.0.0.1" or an IPv6 address, for people and for the connection manager. */
const char *tp_rdma_address_text(const uint8_t address[16], char out[48]);
/* The reverse: numbers only. Returns 0 or -EINVAL. */
int tp_rdma_address_parse(const char *text, uint8_t out[16]);

#endif
