/* Certificates and keys for the HTTP server. Interface: http.h. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <time.h>

#include "actors/gateway/http.h"

/* A key with a passphrase would be asked for on the terminal; a server has none. */
static int no_passphrase(char *buf, int size, int writing, void *arg)
{
    (void)buf;
    (void)size;
    (void)writing;
    (void)arg;
    return -1;
}

/* The first report names a file that cannot be opened; otherwise the last one says most. */
static const char *failure(void)
{
    unsigned long first = ERR_peek_error();
    const char *reason =
        ERR_SYSTEM_ERROR(first) ? strerror(ERR_GET_REASON(first)) : ERR_reason_error_string(ERR_peek_last_error());
    return reason ? reason : "unknown reason";
}

int gw_http_tls_new(const char *cert_file, const char *key_file, struct ssl_ctx_st **out, struct cfg_error *err)
{
    const char *what = NULL, *file = NULL;
    ERR_clear_error();
    SSL_CTX *ctx = *out = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return cfg_error_set(err, ENOMEM, "TLS: out of memory");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1) {
        what = "the certificate chain cannot be read from";
        file = cert_file;
    } else if (SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) != 1) {
        what = "no private key for that certificate in";
        file = key_file;
    }
    if (!what)
        return 0;
    int r = cfg_error_set(err, EINVAL,
                          "TLS: %s %s (%s); give a PEM certificate chain and its private key without a passphrase",
                          what, file, failure());
    ERR_clear_error();
    SSL_CTX_free(ctx);
    *out = NULL;
    return r;
}

void gw_http_tls_until(struct ssl_ctx_st *tls, char out[32])
{
    struct tm tm;
    const X509 *cert = SSL_CTX_get0_certificate(tls);
    if (!cert || ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) != 1 || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
        memcpy(out, "unknown", sizeof "unknown");
}

void gw_http_tls_free(struct ssl_ctx_st *tls)
{
    SSL_CTX_free(tls);
}
