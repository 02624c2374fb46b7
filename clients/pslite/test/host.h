/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small ps-lite in one process: nodes with their vans, customers and a server's store.
 *
 * A test calls the functions itself, or node_run starts the two threads that a node of ps-lite has:
 * one receives and shows messages to the van, the other is the customer's, which takes its messages
 * in any order.
 */
#ifndef HOST_H
#define HOST_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "../van.h"

#define CHECK(what)                                                                        \
	do {                                                                               \
		if (!(what)) {                                                             \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, __func__, #what); \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

struct msg {
	struct van_message m; /* points to arrays of its own */
	struct msg *next;
};

struct queue {
	struct msg *first;
	size_t n;
};

struct node {
	int id;
	enum van_role role;
	struct van *van;
	struct van_host host;
	const char *variables[16]; /* name, value, ... */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool customer;          /* it has been made */
	struct queue incoming;  /* from other nodes, to the receiving thread */
	struct queue accepted;  /* by the customer */
	bool busy;              /* its handle has not returned from a harvest */
	unsigned dropped, warned;
	char failed[1024];      /* text of host->fail */

	bool stop;
	pthread_t receiver, worker;
	uint64_t seed;
	double *store; /* of a server: dim values of each key below `keys` */
	size_t keys, dim;
	unsigned harvests; /* that the handle had */
	void (*handle)(struct node *, struct msg *); /* called for each message that the customer takes */
	void *argument;
};

/* node_init makes a node, node_free ends it. Messages go to `peer`. */
void node_init(struct node *n, enum van_role role, int rank);
void node_set(struct node *n, const char *name, const char *value);
void node_free(struct node *n);
void node_run(struct node *n);
void node_end(struct node *n); /* the threads */

struct msg *msg_new(const struct van_message *m);
void msg_free(struct msg *m);

/* node_send is Van::Send, node_receive what the receiving thread does. */
void node_send(struct node *n, const struct van_message *m);
void node_receive(struct node *n, struct msg *m);
void node_customer(struct node *n); /* makes the customer */
struct msg *node_take(struct node *n); /* what the customer has accepted, or NULL */
struct msg *node_wait(struct node *n); /* waits for it */
struct msg *node_sent(struct node *n); /* what was sent to a node that does not run, or NULL */
const char *node_failed(struct node *n); /* waits for a failure */

/* The nodes that messages are sent to, by number. */
extern struct node *net[64];

uint64_t random_of(uint64_t *seed);

#endif
