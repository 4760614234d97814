/* The handshake that begins every channel: who is there, in which incarnation, with which model, and the proof that it
 * knows the cluster's secret. docs/FORMATS.md ("Handshake") has the bytes.
 *
 *     dialler                      acceptor
 *     HELLO{self, nonce}      ──▶
 *                             ◀──  CHALLENGE{self, nonce, proof over both}
 *     PROOF{proof, windows}   ──▶
 *                             ◀──  WELCOME{proof, windows}
 *
 * Either side may answer REFUSE{code, reason} instead. A proof is keyed BLAKE2b over a word for the step and all that
 * was said before, so it fits no other conversation, direction or step. Windows (memory that the other side may write)
 * are told only to who has proved itself.
 *
 * These functions touch only their arguments; any thread. What they parse comes from outside. */
#ifndef WEFT_TRANSPORT_HANDSHAKE_H
#define WEFT_TRANSPORT_HANDSHAKE_H

#include "transport/transport.h"

enum {
    TP_PROTOCOL = 4, /* version of handshake, frames and messages */
    TP_NAME_TEXT = 64,
    TP_NUMERICS_TEXT = 32,
    TP_REPLAY_TEXT = 64,
    TP_SECRET = 32,
    TP_NONCE = 32,
    TP_PROOF = 32,
    TP_WINDOWS_MAX = 16,
    TP_REASON_TEXT = 512,
    TP_HANDSHAKE_MAX = 4096, /* bytes of one handshake frame at most */
};

/* First byte of every frame on a channel of net.h. */
enum tp_frame {
    TP_FRAME_HELLO = 1,
    TP_FRAME_CHALLENGE = 2,
    TP_FRAME_PROOF = 3,
    TP_FRAME_WELCOME = 4,
    TP_FRAME_REFUSE = 5,
    TP_FRAME_DATA = 16,
    TP_FRAME_PING = 17,
    TP_FRAME_PONG = 18,
};

/* Why a peer was refused; part of the wire form. */
enum tp_refusal {
    TP_REFUSED_VERSION = 1,   /* another protocol version */
    TP_REFUSED_SECRET = 2,    /* another cluster secret */
    TP_REFUSED_STRANGER = 3,  /* its name or number is not in the configuration, or means another node there */
    TP_REFUSED_STALE = 4,     /* a newer incarnation of it was seen */
    TP_REFUSED_DUPLICATE = 5, /* another process lives under this name */
    TP_REFUSED_MODEL = 6,     /* another model revision */
    TP_REFUSED_FORMAT = 7,    /* another KV format, other numerics, or another replay */
    TP_REFUSED_ROLE = 8,      /* the other side is not who was wanted, or does not talk to this kind */
    TP_REFUSED_BUSY = 9,      /* too many handshakes at a time, or none possible now; worth another try */
};

enum tp_kind { TP_KIND_NODE = 1, TP_KIND_TOOL = 2 };

/* What a side says about itself. */
struct tp_hello {
    uint8_t kind; /* enum tp_kind */
    uint8_t class;
    char name[TP_NAME_TEXT];
    uint16_t number; /* of the node in the configuration, from 1; 0: a tool */
    uint64_t epoch;  /* of this boot */
    uint32_t roles;
    uint64_t model; /* revision */
    uint32_t kv_format, block_tokens;
    char numerics[TP_NUMERICS_TEXT];
    char replay[TP_REPLAY_TEXT]; /* how prompts go on behind a known prefix (cfg_replay_text); "": nothing to it */
    char wanted[TP_NAME_TEXT];   /* whom the dialler wants to reach; from the acceptor: "" */
    uint16_t wanted_number;
    uint32_t generation; /* of this class's channel between these two, counted by the dialler */
    uint8_t nonce[TP_NONCE];
};

struct tp_window {
    uint32_t id; /* chosen by its owner; both sides know what it means */
    uint64_t size;
    struct tp_key key;
};

/* Each writes one frame into out and returns its length. */
size_t tp_hello_encode(const struct tp_hello *h, uint8_t out[TP_HANDSHAKE_MAX]);
/* The acceptor's answer to hello (a frame of hello_size bytes). */
size_t tp_challenge_encode(const struct tp_hello *h, const uint8_t secret[TP_SECRET], const uint8_t *hello,
                           size_t hello_size, uint8_t out[TP_HANDSHAKE_MAX]);
/* PROOF (step TP_FRAME_PROOF) or WELCOME; said and said_size: all frames before, one after the other. */
size_t tp_proof_encode(enum tp_frame step, const uint8_t secret[TP_SECRET], const uint8_t *said, size_t said_size,
                       const struct tp_window *windows, int n, uint8_t out[TP_HANDSHAKE_MAX]);
size_t tp_refuse_encode(enum tp_refusal code, const char *reason, uint8_t out[TP_HANDSHAKE_MAX]);

/* Each parses one frame: 0, or -EPROTO with a sentence. A HELLO of another version is -EPROTONOSUPPORT. */
int tp_hello_decode(const uint8_t *frame, size_t size, struct tp_hello *out, struct cfg_error *err);
int tp_proof_decode(const uint8_t *frame, size_t size, struct tp_window windows[TP_WINDOWS_MAX], int *n,
                    struct cfg_error *err);
int tp_refuse_decode(const uint8_t *frame, size_t size, enum tp_refusal *code, char reason[TP_REASON_TEXT]);

/* Whether the proof in a CHALLENGE (said: the HELLO), PROOF or WELCOME frame is right. Constant time. */
bool tp_proof_check(const uint8_t secret[TP_SECRET], const uint8_t *said, size_t said_size, const uint8_t *frame,
                    size_t size);

/* Reads the cluster's secret: the key is the BLAKE2b hash of the file without white space at its ends, which must be 16
 * bytes or more. */
int tp_secret_load(const char *path, uint8_t out[TP_SECRET], struct cfg_error *err);

#endif
