/* What RDMA devices this machine has: struct tp_rdma_facts from libibverbs and sysfs. Opens and closes devices, changes
 * nothing. Part of weft-rdma.so. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"

enum { TABLE_MAX = 256 };

static int mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0;
}

static const char *state_name(enum ibv_port_state s)
{
    switch (s) {
    case IBV_PORT_ACTIVE:
        return "active";
    case IBV_PORT_DOWN:
        return "down";
    case IBV_PORT_INIT:
        return "initialising";
    case IBV_PORT_ARMED:
        return "armed";
    case IBV_PORT_ACTIVE_DEFER:
        return "deferred";
    default:
        return "in no known state";
    }
}

static int number_in(const char *path, int otherwise)
{
    FILE *f = fopen(path, "re");
    int v;
    if (!f)
        return otherwise;
    if (fscanf(f, "%d", &v) != 1)
        v = otherwise;
    fclose(f);
    return v;
}

/* The kernel's distance between the memory node of the calling thread's CPU and that of the device; 0: not known. */
static int device_distance(const char *ibdev_path)
{
    char path[512];
    unsigned cpu, here;
    snprintf(path, sizeof path, "%s/device/numa_node", ibdev_path);
    int node = number_in(path, -1), distance = 0;
    if (node < 0 || getcpu(&cpu, &here))
        return 0;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%u/distance", here);
    FILE *f = fopen(path, "re");
    for (int i = 0; f && i <= node; i++)
        if (fscanf(f, "%d", &distance) != 1)
            distance = 0;
    if (f)
        fclose(f);
    return distance;
}

static bool is_empty(const union ibv_gid *g)
{
    /* An entry without an address has the default prefix, or nothing, and no interface id. */
    return g->global.interface_id == 0;
}

static void inspect_gids(struct ibv_gid_entry *table, ssize_t n, int number, struct tp_rdma_port *p)
{
    for (ssize_t i = 0; i < n; i++) {
        const struct ibv_gid_entry *e = &table[i];
        if ((int)e->port_num != number || is_empty(&e->gid))
            continue;
        if (p->gid_count == TP_RDMA_GIDS_MAX) {
            p->gids_left_out++;
            continue;
        }
        struct tp_rdma_gid *g = &p->gid[p->gid_count++];
        *g = (struct tp_rdma_gid){.index = (int)e->gid_index,
                                  .type = e->gid_type == IBV_GID_TYPE_ROCE_V2   ? TP_RDMA_GID_ROCE_V2
                                          : e->gid_type == IBV_GID_TYPE_ROCE_V1 ? TP_RDMA_GID_ROCE_V1
                                                                                : TP_RDMA_GID_IB};
        memcpy(g->raw, e->gid.raw, sizeof g->raw);
        if (!e->ndev_ifindex || !if_indextoname(e->ndev_ifindex, g->netdev))
            g->netdev[0] = '\0';
    }
}

static void inspect_ports(struct ibv_context *ctx, int ports, struct tp_rdma_device *d)
{
    struct ibv_gid_entry *table = calloc(TABLE_MAX, sizeof *table);
    ssize_t n = table ? ibv_query_gid_table(ctx, table, TABLE_MAX, 0) : 0;
    for (int i = 1; i <= ports && d->port_count < TP_RDMA_PORTS_MAX; i++) {
        struct ibv_port_attr a;
        if (ibv_query_port(ctx, (uint8_t)i, &a))
            continue;
        struct tp_rdma_port *p = &d->port[d->port_count++];
        *p = (struct tp_rdma_port){.number = i,
                                   .active = a.state == IBV_PORT_ACTIVE || a.state == IBV_PORT_ACTIVE_DEFER,
                                   .state = state_name(a.state),
                                   .ethernet = a.link_layer == IBV_LINK_LAYER_ETHERNET,
                                   .mtu = mtu_bytes(a.active_mtu),
                                   .mtu_max = mtu_bytes(a.max_mtu),
                                   .message_max = a.max_msg_sz};
        inspect_gids(table, n, i, p);
    }
    free(table);
}

static void inspect_device(struct ibv_device *dev, struct tp_rdma_device *d)
{
    struct ibv_device_attr a;
    *d = (struct tp_rdma_device){.distance = device_distance(dev->ibdev_path)};
    snprintf(d->name, sizeof d->name, "%s", ibv_get_device_name(dev));
    struct ibv_context *ctx = ibv_open_device(dev);
    d->error = !ctx ? (errno ? errno : EIO) : ibv_query_device(ctx, &a);
    if (ctx && !d->error) {
        d->mr_size_max = a.max_mr_size;
        d->mr_max = a.max_mr;
        d->qp_max = a.max_qp;
        d->qp_wr_max = a.max_qp_wr;
        d->cq_max = a.max_cq;
        d->cqe_max = a.max_cqe;
        d->srq_max = a.max_srq;
        d->srq_wr_max = a.max_srq_wr;
        inspect_ports(ctx, a.phys_port_cnt, d);
    }
    if (ctx)
        ibv_close_device(ctx);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(ibv_get_device_name(*(struct ibv_device *const *)a),
                  ibv_get_device_name(*(struct ibv_device *const *)b));
}

int tp_rdma_inspect(struct tp_rdma_facts *out, struct cfg_error *err)
{
    int n = 0;
    *out = (struct tp_rdma_facts){0};
    tp_rdma_facts_system(out);
    errno = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (!list && (!errno || errno == ENOSYS))
        return cfg_error_set(err, ENOSYS,
                             "rdma: this kernel has no RDMA devices (/sys/class/infiniband_verbs is not there); load "
                             "the adapter's driver and ib_uverbs, and give a container /dev/infiniband");
    if (!list)
        return cfg_error_set(err, errno,
                             "rdma: the devices cannot be listed (%s); load ib_uverbs, and give a container "
                             "/dev/infiniband",
                             strerror(errno));
    /* ibv_free_device_list walks the list to its end, in any order. */
    qsort(list, (size_t)n, sizeof *list, by_name);
    for (int i = 0; i < n; i++) {
        if (out->device_count == TP_RDMA_DEVICES_MAX)
            out->devices_left_out++;
        else
            inspect_device(list[i], &out->device[out->device_count++]);
    }
    ibv_free_device_list(list);
    return 0;
}
