/* A whole node in one object: model, runtime and the actors that the configuration asks for.
 *
 * Made, started, drained and freed by the main thread; everything else happens on the runtime's workers. */
#ifndef WEFT_ACTORS_SERVER_H
#define WEFT_ACTORS_SERVER_H

#include "config/config.h"
#include "config/error.h"

struct act_server;
struct act_log;

/* node: name in the configuration, NULL: the only one. log outlives the server. */
int act_server_new(const struct cfg_config *config, const char *node, struct act_log *log, struct act_server **out,
                   struct cfg_error *err);
/* Starts the workers and waits until the gateway accepts. *port is the one it is bound to. */
int act_server_start(struct act_server *s, int *port, struct cfg_error *err);
/* Refuses new requests from now on. */
void act_server_drain(struct act_server *s);
/* Whether the last request has ended after act_server_drain. wait_ms: how long to wait for it. */
int act_server_drained(struct act_server *s, int wait_ms);
void act_server_free(struct act_server *s);

#endif
