/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small agent in a thread of the test, for behaviour that the real one does not show. Each test gives the function
 * that the agent's thread runs.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "../libra.h"
#include "../protocol.h"

#define CHECK(what)                                                                                       \
	do {                                                                                              \
		if (!(what)) {                                                                            \
			fprintf(stderr, "%s:%d: %s: %s\nlast error: %s\n", __FILE__, __LINE__, __func__, #what, \
				libra_last_error()->text);                                                \
			exit(1);                                                                          \
		}                                                                                         \
	} while (0)

#define JOB "clicks"
#define DIM 3
#define ENTRIES 8
#define BUFFERS 65536

struct fake {
	char path[108];
	pthread_t thread;
	int listener, conn, memfd;
	uint8_t *memory;
	struct header *header;
	struct entry *sq;
	struct completion *cq;
	uint8_t *area;
	uint32_t read, answered;
	struct hello hello;
	void (*run)(struct fake *);
	const void *argument; /* of the test for its agent */
};

struct options_of_fake {
	struct welcome welcome;
	int fds;       /* that are sent */
	size_t length; /* of WELCOME */
	int seals;
	bool file;      /* instead of memory that can be sealed */
	uint64_t bytes; /* of the memory */
	uint64_t magic;
};

/* fake_start runs an agent's function in a thread, fake_stop waits for its end. */
void fake_start(struct fake *f, void (*run)(struct fake *), const void *argument);
void fake_stop(struct fake *f);

/* The rest is for that thread. */
void fake_accept(struct fake *f); /* and receive HELLO */
struct options_of_fake fake_defaults(void);
void fake_welcome_with(struct fake *f, struct options_of_fake o);
void fake_welcome(struct fake *f); /* accept and welcome */
void fake_wake(struct fake *f);
/* fake_next returns false at the end of the session. Until fake_read the entry counts as unread. */
bool fake_next(struct fake *f, struct entry *e);
void fake_read(struct fake *f);
void fake_complete(struct fake *f, struct completion c);
struct completion fake_answer(const struct entry *e, uint32_t status);
void fake_serve(struct fake *f); /* as a real one, to the end of the session: see fake.c */
void fake_hang_up(struct fake *f);

/* open_fake opens a session with it. */
struct libra_session *open_fake(const struct fake *f);
struct libra_options options_for(const struct fake *f);
int descriptors(void); /* that this process has open */

void test_open(void);
void test_requests(void);
void test_hostile(void);
void test_life(void);
void test_waits(void);
void test_buffers(void);

#endif
