/* What a request takes before the engine hears of it, for a profile (simulate_measure.h): a connection over loopback,
 * the gateway's own parsers at its other end, on a thread that sleeps until it comes, and a short answer. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "actors/gateway/http_parse.h"
#include "actors/gateway/request.h"
#include "cli/load_client.h"
#include "cli/simulate_measure.h"

enum { TIMES = 41, READ_BYTES = 65536, LIMIT_BYTES = 1 << 26 };

/* One request of a connection: its body as the gateway understands it. */
static bool understand(int fd)
{
    static char data[READ_BYTES];
    const struct gw_http_limits limits = {.header_bytes = READ_BYTES, .body_bytes = LIMIT_BYTES};
    struct gw_parser p;
    enum gw_parse said = GW_PARSE_MORE;
    gw_parser_init(&p, &limits);
    while (said == GW_PARSE_MORE || said == GW_PARSE_HEAD) {
        ssize_t n = recv(fd, data, sizeof data, 0);
        size_t at = 0, used = 0;
        if (n <= 0)
            break;
        for (; at < (size_t)n && (said == GW_PARSE_MORE || said == GW_PARSE_HEAD); at += used)
            said = gw_parser_feed(&p, data + at, (size_t)n - at, &used);
    }
    struct gw_request request;
    struct gw_error why;
    size_t len = 0;
    char *body = said == GW_PARSE_REQUEST ? gw_parser_take_body(&p, &len) : NULL;
    bool good = body && gw_request_parse(GW_COMPLETIONS, body, len, &request, &why);
    if (good)
        gw_request_free(&request);
    free(body);
    gw_parser_free(&p);
    return good;
}

/* arg: the listening socket. Ends when that is shut down. */
static void *serve(void *arg)
{
    static const char yes[] = "HTTP/1.1 200 OK\r\n\r\n", no[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    int fd;
    while ((fd = accept(*(const int *)arg, NULL, NULL)) >= 0) {
        const char *answer = understand(fd) ? yes : no;
        if (send(fd, answer, strlen(answer), MSG_NOSIGNAL) < 0)
            perror("answer");
        close(fd);
    }
    return NULL;
}

/* As `weft bench serve` makes them. */
static char *body_of(const int32_t *ids, int n)
{
    json_t *prompt = json_array();
    for (int i = 0; prompt && i < n; i++)
        json_array_append_new(prompt, json_integer(ids[i]));
    json_t *j = json_pack("{s:o,s:i,s:b,s:b,s:i,s:{s:b}}", "prompt", prompt, "max_tokens", 1, "stream", 1, "ignore_eos",
                          1, "seed", 1, "stream_options", "include_usage", 1);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median, in ns. */
static int ask(const struct load_target *t, const char *body, double *out, struct cfg_error *err)
{
    double took[TIMES];
    for (int i = 0; i < TIMES; i++) {
        char *answer = NULL;
        double began = load_now();
        int status = load_fetch(t, "POST", "/v1/completions", body, &answer, err);
        took[i] = load_now() - began;
        free(answer);
        if (status != 200)
            return status < 0 ? status : cfg_error_set(err, EPROTO, "a request of one's own was not understood");
    }
    qsort(took, TIMES, sizeof *took, by_value);
    *out = 1e9 * took[TIMES / 2];
    return 0;
}

int sim_measure_request(const int32_t *ids, int n, double *ns, struct cfg_error *err)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    struct load_target target = {.address = NULL};
    char url[64], *body = body_of(ids, n);
    pthread_t thread;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = body ? 0 : cfg_error_set(err, ENOMEM, "out of memory");
    if (!r && (fd < 0 || bind(fd, (struct sockaddr *)&at, len) || listen(fd, 16) ||
               getsockname(fd, (struct sockaddr *)&at, &len)))
        r = cfg_error_set(err, errno, "a socket on 127.0.0.1: %s", strerror(errno));
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    if (!r)
        r = load_target_set(&target, url, err);
    int made = r ? -1 : pthread_create(&thread, NULL, serve, &fd);
    if (made > 0)
        r = cfg_error_set(err, made, "a thread: %s", strerror(made));
    if (!r)
        r = ask(&target, body, ns, err);
    if (fd >= 0)
        shutdown(fd, SHUT_RDWR);
    if (made == 0)
        pthread_join(thread, NULL);
    if (fd >= 0)
        close(fd);
    load_target_clear(&target);
    free(body);
    return r;
}
