/* SPDX-License-Identifier: Apache-2.0 */
/*
 * van.h - hot pairs of a ps-lite program through the host's agent
 *
 * The logic of Libra's van, without ps-lite: zmq.cc connects it with ps-lite, test/host.c with a
 * fake of it. docs/pslite.md describes what it does.
 */
#ifndef VAN_H
#define VAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum van_role { VAN_SCHEDULER, VAN_SERVER, VAN_WORKER };

/* struct van_message - what the van looks at in a data message of ps-lite */
struct van_message {
	int sender, recver, app, customer, timestamp, head;
	bool request, push, pull, simple;
	bool lens;              /* each key has its own number of values */
	const uint64_t *keys;   /* NULL unless they have 64 bits */
	size_t n;
	bool is_float;          /* the values are floats */
	const float *values;
	size_t floats;
};

/*
 * struct van_rest - what remains of a push without its hot pairs; the caller frees the arrays,
 * which are NULL if n is 0
 */
struct van_rest {
	uint64_t *keys;
	float *values;
	size_t n, floats;
};

/* What becomes of a message. */
enum van_way {
	VAN_PASS,  /* it goes on as it is */
	VAN_SPLIT, /* its rest goes on */
	VAN_TAKEN  /* it does not go on: the van has kept or used it */
};

/*
 * struct van_host - what the van needs of its program. `self` is passed to all functions, which any
 * thread may call.
 *
 * The van keeps messages as pointers that only the host understands; it gives each to accept or
 * drop.
 */
struct van_host {
	void *self;
	const char *(*variable)(void *self, const char *name); /* of the environment, or NULL */
	void *(*keep)(void *self, void *message);              /* takes a message of van_receive; must not call the van */
	void *(*harvest)(void *self, int timestamp, const uint64_t *keys, size_t n, const float *sums, size_t floats);
	bool (*returned)(void *self); /* whether the handle has, from the last of `harvest`, and keeps nothing of it */
	bool (*exists)(void *self, int app, int customer); /* whether a customer can accept messages */
	void (*accept)(void *self, void *kept);            /* hands a message to its customer */
	void (*drop)(void *self, void *kept);
	void (*fail)(void *self, const char *text); /* ends the process; the van does nothing more if it returns */
	void (*warn)(void *self, const char *text);
};

struct van;

/*
 * van_new - read the variables and the hot set, and start the van's thread
 *
 * Fails by host->fail, and then returns NULL.
 */
struct van *van_new(const struct van_host *host, enum van_role role);

/*
 * van_open - open the sessions with the agent, when ps-lite has given this node its number
 *
 * A server creates its job, a worker waits for those of all servers. LIBRA_KEYS_OUT gets its file. Returns false after
 * host->fail. Later calls return at once.
 */
bool van_open(struct van *v, int node, int servers);

/*
 * van_send - before a data message is sent
 *
 * VAN_SPLIT: its hot pairs were submitted, the rest is to be sent, even if it is empty. VAN_TAKEN:
 * the answer to a harvest.
 */
enum van_way van_send(struct van *v, const struct van_message *m, struct van_rest *rest);

/*
 * van_receive - after a data message was received
 *
 * VAN_TAKEN: host->keep was called with `message`, and host->accept will be.
 */
enum van_way van_receive(struct van *v, const struct van_message *m, void *message);

/*
 * van_stop - wait for pushes, give the last sums to the handle, 5 seconds at most for each, and end
 * the sessions
 *
 * Messages pass unchanged then.
 */
void van_stop(struct van *v);

/*
 * van_free - end what van_stop has not ended, at once, and free the van. No other call may be in
 * progress
 */
void van_free(struct van *v);

#ifdef __cplusplus
}
#endif

#endif
