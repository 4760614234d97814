/* TLS: certificates made here, requests through it, and what is not TLS. */
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/gateway/http_impl.h"
#include "tests/harness.h"
#include "tests/support/http_peer.h"

#define HOST "Host: a\r\n"

static struct http_server S;
static char dir[64], cert[96], key[96], other_cert[96], other_key[96], locked_key[96], text_file[96];

static void save_key(const char *path, EVP_PKEY *k, const char *passphrase)
{
    FILE *f = fopen(path, "w");
    cr_assert(f &&
              PEM_write_PrivateKey(f, k, passphrase ? EVP_aes_256_cbc() : NULL, NULL, 0, NULL, (void *)passphrase));
    fclose(f);
}

static void save_cert(const char *path, const char *subject, EVP_PKEY *k)
{
    X509 *x = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    ASN1_TIME_set_string(X509_getm_notAfter(x), "20991231235958Z");
    X509_set_pubkey(x, k);
    X509_NAME *name = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)subject, -1, -1, 0);
    X509_set_issuer_name(x, name);
    cr_assert(X509_sign(x, k, EVP_sha256()));
    FILE *f = fopen(path, "w");
    cr_assert(f && PEM_write_X509(f, x));
    fclose(f);
    X509_free(x);
}

static void make_files(void)
{
    snprintf(dir, sizeof dir, "/tmp/weft-tls-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
    snprintf(other_cert, sizeof other_cert, "%s/other-cert.pem", dir);
    snprintf(other_key, sizeof other_key, "%s/other.pem", dir);
    snprintf(locked_key, sizeof locked_key, "%s/locked.pem", dir);
    snprintf(text_file, sizeof text_file, "%s/text", dir);
    EVP_PKEY *k = EVP_EC_gen("P-256"), *other = EVP_EC_gen("P-256");
    save_cert(cert, "weft test", k);
    save_cert(other_cert, "weft test 2", other);
    save_key(key, k, NULL);
    save_key(other_key, other, NULL);
    save_key(locked_key, k, "secret");
    FILE *f = fopen(text_file, "w");
    cr_assert(f && fputs("not a certificate\n", f) >= 0);
    fclose(f);
    EVP_PKEY_free(k);
    EVP_PKEY_free(other);
}

static void remove_files(void)
{
    unlink(cert);
    unlink(key);
    unlink(other_cert);
    unlink(other_key);
    unlink(locked_key);
    unlink(text_file);
    rmdir(dir);
}

TestSuite(http_tls, .init = make_files, .fini = remove_files);

/* ---- a client ---- */

struct tls_client {
    SSL_CTX *ctx;
    struct bufferevent *bev;
    char data[1 << 16];
    size_t len;
    bool connected, closed, eof;
};

static void on_data(struct bufferevent *bev, void *arg)
{
    struct tls_client *c = arg;
    c->len += bufferevent_read(bev, c->data + c->len, sizeof c->data - 1 - c->len);
    c->data[c->len] = 0;
}

static void on_change(struct bufferevent *bev, short what, void *arg)
{
    struct tls_client *c = arg;
    (void)bev;
    c->connected |= !!(what & BEV_EVENT_CONNECTED);
    c->eof |= !!(what & BEV_EVENT_EOF);
    c->closed |= !!(what & (BEV_EVENT_EOF | BEV_EVENT_ERROR));
}

static void tls_open(struct tls_client *c, int max_version)
{
    const struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((unsigned short)S.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memset(c, 0, sizeof *c);
    c->ctx = SSL_CTX_new(TLS_client_method());
    if (max_version)
        SSL_CTX_set_max_proto_version(c->ctx, max_version);
    c->bev =
        bufferevent_openssl_socket_new(S.base, -1, SSL_new(c->ctx), BUFFEREVENT_SSL_CONNECTING, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(c->bev, on_data, NULL, on_change, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    cr_assert_eq(bufferevent_socket_connect(c->bev, (const struct sockaddr *)&sa, sizeof sa), 0);
}

static void tls_puts(struct tls_client *c, const char *text)
{
    bufferevent_write(c->bev, text, strlen(text));
}

static void tls_close(struct tls_client *c)
{
    bufferevent_free(c->bev);
    SSL_CTX_free(c->ctx);
}

static struct ssl_ctx_st *start(const struct gw_http_limits *limits)
{
    struct ssl_ctx_st *tls;
    struct cfg_error err;
    cr_assert_eq(gw_http_tls_new(cert, key, &tls, &err), 0, "%s", err.msg);
    http_server_start(&S, limits, tls);
    return tls;
}

static void stop(struct ssl_ctx_st *tls)
{
    HTTP_WAIT(&S, http_stats(&S).connections == 0);
    cr_expect_not(S.unknown_gone);
    http_server_stop(&S);
    gw_http_tls_free(tls);
}

Test(http_tls, requests)
{
    const struct gw_http_limits limits = http_limits();
    static const int version[] = {TLS1_2_VERSION, 0};
    for (int i = 0; i < 2; i++) {
        static struct tls_client c;
        struct ssl_ctx_st *tls = start(&limits);
        tls_open(&c, version[i]);
        tls_puts(&c, "POST /t HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello"
                     "GET /stream HTTP/1.1\r\n" HOST "\r\n");
        HTTP_WAIT(&S, S.n_held == 1);
        gw_exchange_write(S.held[0], "part", 4);
        HTTP_WAIT(&S, strstr(c.data, "4\r\npart\r\n"));
        cr_expect(strstr(c.data, "POST /t? 2 5 hello\n"));
        gw_exchange_end(S.held[0]);
        tls_puts(&c, "GET /big/30000 HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
        HTTP_WAIT(&S, c.closed);
        cr_expect(c.eof, "the end was not announced");
        cr_expect_gt(c.len, 30000);
        cr_expect_eq(http_stats(&S).bytes_out, c.len);
        tls_close(&c);
        stop(tls);
    }
}

/* The name in the certificate that the server showed to this client. */
static void shown_name(const struct tls_client *c, char out[64])
{
    X509 *x = SSL_get1_peer_certificate(bufferevent_openssl_get_ssl(c->bev));
    cr_assert_not_null(x);
    X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, out, 64);
    X509_free(x);
}

Test(http_tls, another_certificate_is_for_new_connections)
{
    const struct gw_http_limits limits = http_limits();
    static struct tls_client before, after;
    struct ssl_ctx_st *tls = start(&limits), *other;
    struct cfg_error err;
    char name[64], until[32];
    tls_open(&before, 0);
    tls_puts(&before, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
    HTTP_WAIT(&S, S.n_held == 1);
    cr_assert_eq(gw_http_tls_new(other_cert, other_key, &other, &err), 0, "%s", err.msg);
    gw_http_tls_until(other, until);
    cr_expect_str_eq(until, "2099-12-31T23:59:58Z");
    gw_http_set_tls(S.http, other);
    gw_http_tls_free(tls);
    tls_open(&after, 0);
    tls_puts(&after, "GET /new HTTP/1.1\r\n" HOST "\r\n");
    HTTP_WAIT(&S, strstr(after.data, "GET /new?"));
    shown_name(&after, name);
    cr_expect_str_eq(name, "weft test 2");
    gw_exchange_write(S.held[0], "still here", 10);
    gw_exchange_end(S.held[0]);
    tls_puts(&before, "GET /again HTTP/1.1\r\n" HOST "\r\n");
    HTTP_WAIT(&S, strstr(before.data, "still here") && strstr(before.data, "GET /again?"));
    shown_name(&before, name);
    cr_expect_str_eq(name, "weft test");
    tls_close(&before);
    tls_close(&after);
    stop(other);
}

Test(http_tls, gone_is_noticed)
{
    const struct gw_http_limits limits = http_limits();
    static struct tls_client c;
    struct ssl_ctx_st *tls = start(&limits);
    for (int i = 0; i < 3; i++) {
        tls_open(&c, 0);
        tls_puts(&c, i == 1 ? "GET /stream HTTP/1.1\r\n" HOST "\r\n" : "GET /hold HTTP/1.1\r\n" HOST "\r\n");
        HTTP_WAIT(&S, S.n_held == i + 1);
        if (i == 2) { /* much behind it: reading is held back */
            static char junk[100000];
            evbuffer_add(bufferevent_get_output(c.bev), junk, sizeof junk);
            HTTP_WAIT(&S, S.http->conns->held_back && !evbuffer_get_length(bufferevent_get_output(c.bev)));
        }
        tls_close(&c);
        HTTP_WAIT(&S, S.gone == i + 1);
        HTTP_WAIT(&S, http_stats(&S).connections == 0);
    }
    cr_expect_eq(S.why, GW_GONE_CLIENT);
    stop(tls);
}

Test(http_tls, not_tls)
{
    static const char *const garbage[] = {"GET / HTTP/1.1\r\n" HOST "\r\n",
                                          "\x16\x03\x01\xff\xff\x01garbage garbage garbage", "\x80\x2e\x01\x00\x02 old",
                                          "\xff\xff\xff\xff\xff\xff\xff\xff"};
    const struct gw_http_limits limits = http_limits();
    struct ssl_ctx_st *tls = start(&limits);
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        struct http_client c;
        http_client_open(&c, &S);
        http_client_puts(&c, garbage[i]);
        if (i)
            shutdown(c.fd, SHUT_WR); /* may be the beginning of a longer record */
        HTTP_WAIT(&S, c.eof);
        cr_expect_null(strstr(c.data, "HTTP/1.1"));
        http_client_close(&c, false);
    }
    cr_expect_eq(S.requests + S.refusals + S.gone, 0);
    stop(tls);
}

Test(http_tls, handshake_has_a_time_limit)
{
    struct gw_http_limits limits = http_limits();
    limits.idle_ms = 30;
    struct http_client c;
    struct ssl_ctx_st *tls = start(&limits);
    http_client_open(&c, &S);
    http_client_puts(&c, "\x16\x03\x01");
    HTTP_WAIT(&S, c.eof);
    http_client_close(&c, false);
    stop(tls);
}

Test(http_tls, connection_limit)
{
    struct gw_http_limits limits = http_limits();
    limits.connections = 0;
    static struct tls_client c;
    struct ssl_ctx_st *tls = start(&limits);
    tls_open(&c, 0);
    HTTP_WAIT(&S, c.closed);
    cr_expect(!strncmp(c.data, "HTTP/1.1 503 ", 13));
    tls_close(&c);
    stop(tls);
}

Test(http_tls, bad_files)
{
    struct ssl_ctx_st *tls;
    const struct {
        const char *cert, *key, *file, *word;
    } table[] = {
        {"/nonexistent/cert.pem", key, "/nonexistent/cert.pem", "No such file"},
        {cert, "/nonexistent/key.pem", "/nonexistent/key.pem", "No such file"},
        {text_file, key, text_file, "certificate chain"},
        {cert, text_file, text_file, "private key"},
        {cert, other_key, other_key, "mismatch"},
        {cert, locked_key, locked_key, "passphrase"},
        {key, cert, key, "certificate chain"},
        {dir, key, dir, "certificate chain"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct cfg_error err = {{0}};
        cr_expect_lt(gw_http_tls_new(table[i].cert, table[i].key, &tls, &err), 0);
        cr_expect_null(tls);
        cr_expect(strstr(err.msg, table[i].file) && strstr(err.msg, table[i].word), "%s", err.msg);
        cr_expect(strstr(err.msg, "give a PEM"));
    }
}
