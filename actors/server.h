/* A whole node in one object: model, runtime and the actors that the configuration asks for.
 *
 * Made, started, drained and freed by the main thread; everything else happens on the runtime's workers. */
#ifndef WEFT_ACTORS_SERVER_H
#define WEFT_ACTORS_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "config/error.h"

struct act_server;
struct act_log;
struct tp_ops;
struct mdl_config;

enum { ACT_SERVER_WORKERS = 4 }; /* threads with actors: io, engine, helper, tier */

/* node: name in the configuration, NULL: the only one. config and log outlive the server. -EINVAL: the configuration is
 * at fault, alone or for this model; other errors: the model or the machine is. */
int act_server_new(const struct cfg_config *config, const char *node, struct act_log *log, struct act_server **out,
                   struct cfg_error *err);
/* Starts the workers and waits until the gateway accepts. *port is the one it is bound to. */
int act_server_start(struct act_server *s, int *port, struct cfg_error *err);
/* Where it is to be reached, such as "http://127.0.0.1:8000", and of a node without a gateway its figures; valid after
 * start. */
void act_server_url(const struct act_server *s, char *out, size_t size);
/* What the operator should know about who can reach it; NULL: nothing. */
const char *act_server_warning(const struct act_server *s);
/* Whether it can serve nothing more, because the gateway or a part of the engine has ended. */
bool act_server_failed(struct act_server *s);
/* Reads the API keys, the certificate and the list of nodes again; what is wrong with them goes to the log and the old
 * ones stay. */
void act_server_reload(struct act_server *s);
/* What the configuration says by now and the server does not take up, a line each, for weft status; NULL: nothing. The
 * server frees it. */
void act_server_set_stale(struct act_server *s, char *lines);
/* Whether a tool has asked for a drain (weft drain). */
bool act_server_drain_asked(struct act_server *s);
/* Refuses new requests from now on. */
void act_server_drain(struct act_server *s);
/* Ends the requests that still run, each with an error for its client. */
void act_server_cut(struct act_server *s);
/* After the drain, or the cut: whoever asked for it (weft drain) may hear what became of the requests. Waits for that,
 * if somebody wants to, for at most wait_ms. */
void act_server_farewell(struct act_server *s, int wait_ms);
/* Whether the last request has ended after act_server_drain. wait_ms: how long to wait for it. */
int act_server_drained(struct act_server *s, int wait_ms);
void act_server_free(struct act_server *s);
/* Bytes of the windows that such a node has for the exchange with experts of other nodes (experts.slot_rows); 0: none.
 * Of the arguments alone, any thread. */
int64_t act_server_slot_bytes(const struct cfg_config *c, const struct cfg_node *node, const struct mdl_config *m);
/* -EINVAL: no node can have slots of this size; experts.slot_rows is to be lower. */
int act_server_slots_check(const struct cfg_config *c, const struct cfg_node *node, const struct mdl_config *m,
                           struct cfg_error *err);

#endif
