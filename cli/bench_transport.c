/* `weft bench transport`: latency of frames and bandwidth of puts of each provider, beside what the thing under it does
 * without it, in turns within one run. The two ends are two processes with an event loop each, as nodes are (for
 * inproc, one thread). Main thread; the processes that it starts end with it. */
#include "cli/bench_transport.h"

#include <errno.h>
#include <event2/event.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actors/runtime/spin.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "transport/inproc.h"
#include "transport/rdma.h"
#include "transport/tcp.h"

enum { ROUNDS_MAX = 64, SPAN = 8 << 20, LIMIT_S = 120, LOOKS_PER_CLOCK = 4 };

static const char *const providers[] = {"all", "inproc", "tcp", "rdma", NULL};
enum { ALL, INPROC, TCP, RDMA };
#define POLLING_NS INT64_C(10000000000) /* longer than any wait here */

static struct {
    int provider, size, put, trips, puts, rounds, spin_us;
    const char *device, *peer_device;
    bool json, no_anchor;
} options = {
    .size = 64, .put = 65536, .trips = 2000, .puts = 2000, .rounds = 5, .spin_us = 50, .device = "", .peer_device = ""};

/* ---- one end --------------------------------------------------------------------------------------------------- */

struct end {
    const struct tp_ops *ops;
    struct tp_endpoint *ep;
    struct event_base *base;
    struct event *timer;
    struct tp_channel *channel;
    struct tp_region *region;
    struct tp_key key;
    uint8_t *memory;
    bool echo, closed, woken;
    int frames, done, opened, failed;
    int64_t spin_ns, look_ns, idle_since; /* as in a worker: longest, present, begin of the wait; ns */
    int64_t due;                          /* when poll wants to be called */
};

static int64_t now_ns(void *ctx)
{
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void random_bytes(void *ctx, void *out, size_t size)
{
    (void)ctx;
    if (getentropy(out, size))
        memset(out, 7, size);
}

static void wake(void *ctx)
{
    ((struct end *)ctx)->woken = true;
}

static void on_open(void *ctx, struct tp_channel *c)
{
    struct end *e = ctx;
    e->channel = c;
    e->opened++;
    e->failed |= c->ops->trust(c);
}

static void send_bytes(struct end *e, const void *bytes, size_t size)
{
    struct iovec v = {(void *)(uintptr_t)bytes, size};
    if (e->ops->send(e->channel, &v, 1))
        e->failed = 1;
}

static void on_frame(void *ctx, struct tp_channel *c, const uint8_t *bytes, size_t size)
{
    struct end *e = ctx;
    (void)c;
    e->frames++;
    if (e->echo)
        send_bytes(e, bytes, size);
}

/* The end of a row of puts is told by an immediate; the answer is a frame. */
static void on_immediate(void *ctx, struct tp_channel *c, uint32_t immediate)
{
    struct end *e = ctx;
    (void)c;
    send_bytes(e, &immediate, sizeof immediate);
}

static void on_put_done(void *ctx, struct tp_channel *c, uint64_t cookie, int status)
{
    struct end *e = ctx;
    (void)c;
    (void)cookie;
    e->done++;
    e->failed |= status;
}

static void on_room(void *ctx, struct tp_channel *c)
{
    (void)ctx;
    (void)c;
}

static void on_closed(void *ctx, struct tp_channel *c, int reason, const char *why)
{
    struct end *e = ctx;
    (void)c;
    if (reason && !e->echo)
        cli_error(CLI_FAILED, "%s: the connection ended: %s %s", e->ops->name, strerror(-reason), why);
    e->closed = true;
    e->channel = NULL;
}

static const struct tp_sink sink = {.accepted = on_open,
                                    .opened = on_open,
                                    .frame = on_frame,
                                    .immediate = on_immediate,
                                    .put_done = on_put_done,
                                    .room = on_room,
                                    .closed = on_closed};

static void on_timer(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    (void)ctx;
}

static int end_open(struct end *e, const struct tp_ops *ops, const void *provider, int64_t spin_ns,
                    struct cfg_error *err)
{
    *e = (struct end){.ops = ops, .base = event_base_new(), .spin_ns = spin_ns, .look_ns = spin_ns};
    e->memory = mmap(NULL, SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    e->timer = e->base ? event_new(e->base, -1, 0, on_timer, NULL) : NULL;
    if (!e->timer || e->memory == MAP_FAILED)
        return cfg_error_set(err, ENOMEM, "no memory");
    memset(e->memory, 1, SPAN);
    const struct tp_endpoint_config c = {.provider = provider,
                                         .connect_ns = INT64_C(30000000000),
                                         .silence_ns = INT64_C(30000000000),
                                         .host = {.sink = &sink,
                                                  .ctx = e,
                                                  .now = now_ns,
                                                  .random = random_bytes,
                                                  .wake = wake,
                                                  .base = e->base,
                                                  .looks = ops->look != NULL}};
    int rc = ops->open(&c, &e->ep, err);
    if (rc == 0)
        rc = ops->add_region(e->ep, e->memory, SPAN, &e->region, &e->key, err);
    return rc;
}

static void end_close(struct end *e)
{
    if (e->ep)
        e->ops->close(e->ep);
    if (e->timer)
        event_free(e->timer);
    if (e->base)
        event_base_free(e->base);
    if (e->memory && e->memory != MAP_FAILED)
        munmap(e->memory, SPAN);
}

/* One turn, as an io worker makes it: what is there and what is due, then a while of looking, then the event loop. */
static bool take(struct end *e, bool (*how)(struct tp_endpoint *ep))
{
    if (!how || !how(e->ep))
        return false;
    if (e->idle_since)
        e->look_ns = act_spin_next(e->look_ns, e->spin_ns, now_ns(NULL) - e->idle_since);
    e->idle_since = 0;
    return true;
}

static void turn(struct end *e)
{
    if (take(e, e->ops->look))
        return;
    int64_t now = now_ns(NULL);
    if (e->woken || now >= e->due || !e->ops->look) {
        e->woken = false;
        e->due = e->ops->poll(e->ep);
    }
    e->idle_since = e->spin_ns ? now : 0;
    for (int64_t end = now + e->look_ns; now < end; now = now_ns(NULL))
        for (int i = 0; i < LOOKS_PER_CLOCK; i++)
            if (take(e, e->ops->look))
                return;
    if (take(e, e->ops->arm))
        return;
    int64_t wait = e->due == TP_NEVER ? INT64_C(1000000000) : e->due - now;
    if (e->woken || wait <= 0) {
        event_base_loop(e->base, EVLOOP_NONBLOCK);
        return;
    }
    struct timeval t = {wait / 1000000000, wait % 1000000000 / 1000};
    if (!evtimer_pending(e->timer, NULL))
        event_add(e->timer, &t);
    event_base_loop(e->base, EVLOOP_ONCE);
}

/* Both ends of one thread, for inproc; other NULL: this one only. */
static bool until(struct end *e, struct end *other, const int *what, int n)
{
    int64_t limit = now_ns(NULL) + LIMIT_S * INT64_C(1000000000);
    for (int i = 0; *what < n && !e->closed && !e->failed; i++) {
        if (other) {
            e->ops->poll(e->ep);
            other->ops->poll(other->ep);
        } else {
            turn(e);
        }
        if (i % 1024 == 0 && now_ns(NULL) > limit)
            return false;
    }
    return *what >= n;
}

/* ---- the other process ----------------------------------------------------------------------------------------- */

struct where {
    char bound[TP_ADDRESS_TEXT];
    struct tp_key key;
};

static void be_the_other(int fd, const struct tp_ops *ops, const void *provider, int64_t spin_ns, const char *address)
{
    struct end e;
    struct where w;
    struct cfg_error err;
    memset(&w, 0, sizeof w);
    int rc = end_open(&e, ops, provider, spin_ns, &err);
    e.echo = true;
    if (rc == 0)
        rc = ops->listen(e.ep, address, w.bound, &err);
    if (rc) {
        cli_error(CLI_FAILED, "%s", err.msg);
        _exit(1);
    }
    w.key = e.key;
    if (write(fd, &w, sizeof w) != sizeof w)
        _exit(1);
    while (!e.closed)
        turn(&e);
    end_close(&e);
    _exit(0);
}

/* ---- measuring ------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(v[i]))
            v[kept++] = v[i];
    qsort(v, (size_t)kept, sizeof *v, compare);
    return kept ? v[kept / 2] : NAN;
}

static double measure_latency(struct end *e, struct end *other)
{
    double *took = malloc((size_t)options.trips * sizeof *took), answer = NAN;
    int i = 0;
    for (; took && i < options.trips; i++) {
        int frames = e->frames + 1;
        int64_t start = now_ns(NULL);
        send_bytes(e, e->memory, (size_t)options.size);
        if (!until(e, other, &e->frames, frames))
            break;
        took[i] = (double)(now_ns(NULL) - start) / 2000;
    }
    if (took && i == options.trips)
        answer = median(took, i);
    free(took);
    return answer;
}

static double measure_bandwidth(struct end *e, struct end *other, const struct tp_key *key)
{
    int frames = e->frames + 1, before = e->done;
    int64_t start = now_ns(NULL);
    size_t at = 0;
    for (int i = 0; i < options.puts;) {
        struct tp_put p = {.region = e->region,
                           .from = e->memory + at,
                           .size = (size_t)options.put,
                           .key = *key,
                           .offset = at,
                           .with_immediate = i + 1 == options.puts};
        int rc = e->ops->put(e->channel, &p);
        if (rc == 0) {
            i++;
            at = at + 2 * (size_t)options.put <= SPAN ? at + (size_t)options.put : 0;
        } else if (rc != -EAGAIN || !until(e, other, &e->done, e->done + 1)) {
            return NAN;
        }
    }
    if (!until(e, other, &e->frames, frames) || !until(e, other, &e->done, before + options.puts))
        return NAN;
    return (double)options.put * options.puts / ((double)(now_ns(NULL) - start) * 1e-9) / (1 << 20);
}

struct figures {
    double latency[ROUNDS_MAX], bandwidth[ROUNDS_MAX], anchor_latency[ROUNDS_MAX], anchor_bandwidth[ROUNDS_MAX];
};

static void cell(int width, const char *fmt, double value)
{
    char text[32] = "-";
    if (!isnan(value))
        snprintf(text, sizeof text, fmt, value);
    printf("  %*s", width, text);
}

static void print_heading(void)
{
    printf("frames of %d bytes, us one way; puts of %d bytes, MiB/s; medians of %d rounds of %d round trips and %d "
           "puts\nbeside each, what is under it does without it in the same run; ratios to that\n\n"
           "%-14s  %10s  %10s  %6s  %11s  %11s  %6s  %s\n",
           options.size, options.put, options.rounds, options.trips, options.puts, "provider", "one way", "beside",
           "ratio", "puts", "beside", "ratio", "beside is");
}

static void print(const char *name, struct figures *f, const char *anchor, bool *first)
{
    int n = options.rounds;
    double lat = median(f->latency, n), bw = median(f->bandwidth, n), alat = median(f->anchor_latency, n),
           abw = median(f->anchor_bandwidth, n);
    if (options.json) {
        printf("%s{\"provider\":\"%s\",\"frame_bytes\":%d,\"put_bytes\":%d,\"rounds\":%d", *first ? "" : ",", name,
               options.size, options.put, n);
        const struct {
            const char *key;
            double value;
        } v[] = {
            {"latency_us", lat}, {"bandwidth_mib_s", bw}, {"anchor_latency_us", alat}, {"anchor_bandwidth_mib_s", abw}};
        for (size_t i = 0; i < sizeof v / sizeof *v; i++)
            if (!isnan(v[i].value))
                printf(",\"%s\":%.3f", v[i].key, v[i].value);
        printf(",\"anchor\":\"%s\"}", anchor);
    } else {
        if (*first)
            print_heading();
        printf("%-14s", name);
        cell(10, "%.2f", lat);
        cell(10, "%.2f", alat);
        cell(6, "%.2f", lat / alat);
        cell(11, "%.1f", bw);
        cell(11, "%.1f", abw);
        cell(6, "%.2f", bw / abw);
        printf("  %s\n", isnan(alat) && isnan(abw) ? "-" : anchor);
    }
    fflush(stdout);
    *first = false;
}

/* One round of a provider over two processes. */
static int round_of(const struct tp_ops *ops, const void *mine, const void *theirs, int64_t spin_ns,
                    const char *address, double *latency, double *bandwidth)
{
    int fd[2], rc = -EIO;
    struct end e;
    struct where w;
    struct cfg_error err = {"the other process did not start"};
    if (pipe(fd))
        return -errno;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd[0]);
        be_the_other(fd[1], ops, theirs, spin_ns, address);
    }
    close(fd[1]);
    bool there = pid > 0 && read(fd[0], &w, sizeof w) == sizeof w;
    close(fd[0]);
    e = (struct end){.ops = ops};
    if (there)
        rc = end_open(&e, ops, mine, spin_ns, &err);
    if (rc == 0)
        rc = ops->connect(e.ep, w.bound, TP_CLASS_KV, NULL, &e.channel, &err);
    if (rc == 0 && until(&e, NULL, &e.opened, 1)) {
        measure_latency(&e, NULL); /* warms up */
        *latency = measure_latency(&e, NULL);
        *bandwidth = measure_bandwidth(&e, NULL, &w.key);
        if (e.channel)
            ops->finish(e.channel);
        int never = 0;
        until(&e, NULL, &never, 1);
    } else if (rc) {
        cli_error(CLI_FAILED, "%s", err.msg);
    }
    end_close(&e);
    if (pid > 0) {
        if (rc)
            kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return rc;
}

static int run_inproc(bool *first)
{
    struct figures f;
    struct cfg_error err;
    for (int i = 0; i < options.rounds; i++) {
        struct tp_inproc_hub *hub = tp_inproc_hub_new();
        struct end a = {0}, b = {0};
        char bound[TP_ADDRESS_TEXT];
        f.latency[i] = f.bandwidth[i] = f.anchor_latency[i] = f.anchor_bandwidth[i] = NAN;
        int rc = hub ? end_open(&a, &tp_inproc, hub, 0, &err) : -ENOMEM;
        rc = rc ? rc : end_open(&b, &tp_inproc, hub, 0, &err);
        b.echo = true;
        rc = rc ? rc : tp_inproc.listen(b.ep, "b", bound, &err);
        rc = rc ? rc : tp_inproc.connect(a.ep, "b", TP_CLASS_KV, NULL, &a.channel, &err);
        if (rc == 0 && until(&a, &b, &a.opened, 1) && until(&a, &b, &b.opened, 1)) {
            f.latency[i] = measure_latency(&a, &b);
            f.bandwidth[i] = measure_bandwidth(&a, &b, &b.key);
            if (!options.no_anchor)
                f.anchor_bandwidth[i] = cli_anchor_copy_bandwidth(options.put, (int64_t)options.put * options.puts);
        }
        end_close(&a);
        end_close(&b);
        tp_inproc_hub_free(hub);
        if (rc)
            return cli_error(CLI_FAILED, "inproc: %s", hub ? err.msg : "no memory");
    }
    print("inproc", &f, "memcpy", first);
    return CLI_OK;
}

static int run_tcp(bool *first)
{
    struct figures f;
    for (int i = 0; i < options.rounds; i++) {
        f.latency[i] = f.bandwidth[i] = f.anchor_latency[i] = f.anchor_bandwidth[i] = NAN;
        if (round_of(&tp_tcp, NULL, NULL, 0, "127.0.0.1:0", &f.latency[i], &f.bandwidth[i]))
            return CLI_FAILED;
        if (options.no_anchor)
            continue;
        f.anchor_latency[i] = cli_anchor_tcp_latency(options.size, options.trips);
        f.anchor_bandwidth[i] = cli_anchor_tcp_bandwidth(options.put, options.puts);
    }
    print("tcp", &f, "sockets", first);
    return CLI_OK;
}

/* The device that an end uses; "" takes the nearest. */
static int find_place(const struct tp_rdma_facts *facts, const char *devices, struct cli_rdma_place *out,
                      struct cfg_error *err)
{
    struct tp_rdma_want want = {.devices = devices};
    struct tp_rdma_choice c;
    int rc = tp_rdma_choose(facts, &want, &c);
    if (rc)
        return cfg_error_set(err, -rc, "rdma: %s", c.why);
    const struct tp_rdma_device *d = &facts->device[c.rail[0].device];
    snprintf(out->device, sizeof out->device, "%s", d->name);
    out->gid = d->port[c.rail[0].port].gid[c.rail[0].gid].index;
    tp_rdma_address_text(c.rail[0].address, out->address);
    return 0;
}

int cli_rdma_places(const struct tp_rdma_plugin *plugin, const char *devices, const char *peer,
                    struct cli_rdma_place out[2], struct cfg_error *err)
{
    static struct tp_rdma_facts facts;
    int rc = plugin->inspect(&facts, err);
    rc = rc ? rc : find_place(&facts, devices, &out[0], err);
    return rc ? rc : find_place(&facts, peer, &out[1], err);
}

static int run_rdma(bool *first, bool wanted)
{
    const struct tp_rdma_plugin *p;
    struct cfg_error err;
    struct cli_rdma_place place[2];
    const char *peer = *options.peer_device ? options.peer_device : options.device;
    int rc = tp_rdma_load(&p, &err);
    rc = rc ? rc : cli_rdma_places(p, options.device, peer, place, &err);
    if (rc && !wanted) {
        fprintf(stderr, "left out: %s\n", err.msg);
        return CLI_OK;
    }
    if (rc)
        return cli_error(CLI_FAILED, "%s", err.msg);
    const struct tp_rdma_config mine = {.devices = *options.device ? options.device : place[0].device},
                                theirs = {.devices = *peer ? peer : place[1].device};
    /* Like against like: both poll without end, or both sleep until an event; and the way that nodes go. */
    const struct {
        const char *name, *anchor;
        int64_t spin_ns;
        bool events, compared;
    } form[] = {{"rdma, polling", "perftest", POLLING_NS, false, true},
                {"rdma, sleeping", "perftest -e", 0, true, true},
                {"rdma, adaptive", "-", options.spin_us * INT64_C(1000), false, false}};
    enum { FORMS = sizeof form / sizeof *form };
    static struct figures f[FORMS];
    char address[64];
    snprintf(address, sizeof address, strchr(place[1].address, ':') ? "[%s]:0" : "%s:0", place[1].address);
    for (int i = 0; i < options.rounds * FORMS; i++) {
        int k = i % FORMS, round = i / FORMS;
        double *v[] = {&f[k].latency[round], &f[k].bandwidth[round], &f[k].anchor_latency[round],
                       &f[k].anchor_bandwidth[round]};
        *v[0] = *v[1] = *v[2] = *v[3] = NAN;
        if (round_of(p->ops, &mine, &theirs, form[k].spin_ns, address, v[0], v[1]))
            return CLI_FAILED;
        if (options.no_anchor || !form[k].compared)
            continue;
        *v[2] = cli_anchor_rdma_latency(place, options.size, options.trips, form[k].events);
        *v[3] = cli_anchor_rdma_bandwidth(place, options.put, options.puts);
    }
    for (int k = 0; k < FORMS; k++)
        print(form[k].name, &f[k], form[k].anchor, first);
    return CLI_OK;
}

int cli_bench_transport_run(int argc, char **argv)
{
    bool spin_given = false; /* what is said of rdma alone asks for it */
    const struct cli_option table[] = {
        {CLI_CHOICE, "provider", 'p', &options.provider, "NAME", "all (those that are here), inproc, tcp or rdma", 0, 0,
         providers, NULL},
        {CLI_INT, "size", 's', &options.size, "N", "bytes of a frame", 1, TP_FRAME_MIN, NULL, NULL},
        {CLI_INT, "put", 0, &options.put, "N", "bytes of a put", 1, SPAN, NULL, NULL},
        {CLI_INT, "trips", 0, &options.trips, "N", "round trips of a round", 1, 10000000, NULL, NULL},
        {CLI_INT, "puts", 0, &options.puts, "N", "puts of a round", 5, 10000000, NULL, NULL},
        {CLI_INT, "rounds", 'r', &options.rounds, "N", "rounds; provider and anchor take turns", 1, ROUNDS_MAX, NULL,
         NULL},
        {CLI_TEXT, "device", 0, &options.device, "NAME", "RDMA device of one end, or several, separated by commas"},
        {CLI_TEXT, "peer-device", 0, &options.peer_device, "NAME", "of the other end; without it the same"},
        {CLI_INT, "spin", 0, &options.spin_us, "US", "of the adaptive form: transport.rdma.spin", 0, 1000000,
         .given = &spin_given},
        {CLI_FLAG, "no-anchor", 0, &options.no_anchor, NULL, "without the figures beside", 0, 0, NULL, NULL},
        {CLI_FLAG, "json", 0, &options.json, NULL, "a JSON array instead of text", 0, 0, NULL, NULL},
        {.kind = CLI_END},
    };
    static const struct cli_rule rules[] = {
        {CLI_NEEDS, "device", "provider=rdma provider=all"},
        {CLI_NEEDS, "peer-device", "provider=rdma provider=all"},
        {CLI_NEEDS, "spin", "provider=rdma provider=all"},
        {CLI_RULES_END},
    };
    const struct cli_usage usage = {
        .rules = rules,
        .synopsis = "bench transport [OPTIONS]",
        .intro =
            "Measures the transport between two processes of this machine: half a round trip of a frame, and puts\n"
            "until the other end says that the last one is there. Medians over rounds. Beside them, measured in\n"
            "the same run: memcpy for inproc; blocking sockets over loopback for tcp; for rdma perftest's\n"
            "ib_send_lat and ib_write_bw over the same devices; latency once when both poll without end and once when\n"
            "both sleep until a completion wakes them (-e). The adaptive form is that of nodes.",
        .options = table};
    bool first = true;
    int status = cli_options_parse(&usage, argc, argv, NULL);
    if (status != CLI_GO_ON)
        return status;
    if (options.json)
        putchar('[');
    status = CLI_OK;
    if (options.provider == ALL || options.provider == INPROC)
        status = run_inproc(&first);
    if (status == CLI_OK && (options.provider == ALL || options.provider == TCP))
        status = run_tcp(&first);
    if (status == CLI_OK && (options.provider == ALL || options.provider == RDMA))
        status = run_rdma(&first, options.provider == RDMA || *options.device || *options.peer_device || spin_given);
    if (options.json)
        puts("]");
    return status;
}
