/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the agent: calls, which may poll before they sleep, and the poller of the
 * descriptor. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../internal.h"
#include "fake.h"

#define ROWS 1000
#define MUCH (LOOK_FLOATS / (ROWS * DIM) + 1) /* requests with more pending floats than polling allows */

static int pipes[2]; /* the test signals its agent to continue */

/* answers_sleepers answers some requests, and one more, when the client sleeps; and another when
 * the test requests it. */
static void answers_sleepers(struct fake *f)
{
	static const int counts[] = {MUCH, 1, 1};
	struct entry e[MUCH];
	char byte;

	fake_welcome(f);
	for (size_t i = 0; i < 3; i++) {
		for (int j = 0; j < counts[i]; j++) {
			CHECK(fake_next(f, e + j));
			fake_read(f);
		}
		if (i == 2)
			CHECK(read(pipes[0], &byte, 1) == 1);
		else
			while (!atomic_load(&f->header->client_sleeps))
				sched_yield();
		for (int j = 0; j < counts[i]; j++)
			fake_complete(f, fake_answer(e + j, 0));
	}
	fake_serve(f);
}

/* A call does not poll, whatever its time limit, while much is pending or polls have been
 * unsuccessful; nor longer than its time limit. */
static void sleeps(void)
{
	struct fake f;
	struct libra_session *s;
	libra_ticket t;

	fake_start(&f, answers_sleepers, NULL);
	struct libra_options o = options_for(&f);
	o.spin_us = 3600000000U;
	CHECK(libra_open(&s, &o) == LIBRA_OK);
	uint64_t *keys = libra_alloc(s, ROWS * 8);
	float *gradients = libra_alloc(s, ROWS * DIM * 4);
	CHECK(keys && gradients);
	for (int i = 0; i < MUCH; i++)
		CHECK(libra_push(s, keys, gradients, ROWS, &t) == LIBRA_OK);
	CHECK(libra_wait(s, t, -1) == LIBRA_OK);
	s->look_credit = -1;
	CHECK(libra_push(s, keys, gradients, 1, &t) == LIBRA_OK && libra_wait(s, t, -1) == LIBRA_OK);
	CHECK(libra_push(s, keys, gradients, 1, &t) == LIBRA_OK && s->look_credit >= 0);
	CHECK(libra_wait(s, t, 1) == LIBRA_TIMEOUT);
	CHECK(write(pipes[1], "", 1) == 1 && libra_wait(s, t, -1) == LIBRA_OK);
	libra_free(s, keys);
	libra_free(s, gradients);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

static void serves(struct fake *f)
{
	fake_welcome(f);
	fake_serve(f);
}

/* If a call for another request reads a completion or its wake-up, the descriptor stays readable,
 * even if it is requested later. */
static void tells_the_poller(void)
{
	const uint64_t key = 1;
	const float gradients[DIM] = {1};
	struct fake f;
	struct libra_session *s;
	libra_ticket one, other;

	fake_start(&f, serves, NULL);
	struct libra_options o = options_for(&f);
	o.spin_us = 1;
	CHECK(libra_open(&s, &o) == LIBRA_OK);
	struct pollfd p = {.events = POLLIN};
	for (int i = 0; i < 200; i++) {
		CHECK(libra_push(s, &key, gradients, 1, &one) == LIBRA_OK && libra_push(s, &key, gradients, 1, &other) == LIBRA_OK);
		CHECK(libra_wait(s, other, -1) == LIBRA_OK);
		p.fd = libra_fd(s);
		CHECK(poll(&p, 1, 10000) == 1 && libra_wait(s, one, 0) == LIBRA_OK);
		do /* a wake-up may come late */
			CHECK(libra_process(s) == LIBRA_OK);
		while (poll(&p, 1, 0) == 1);
	}
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

static void reads(struct fake *f)
{
	struct entry e;
	char byte;

	fake_welcome(f);
	CHECK(fake_next(f, &e));
	fake_read(f);
	CHECK(write(pipes[1], "", 1) == 1 && !fake_next(f, &e));
	for (int i = 0; i < 3; i++) /* wake-ups are not the end */
		CHECK(send(f->conn, "", 1, MSG_NOSIGNAL) == 1);
	usleep(10000); /* a client that does not wait has been notified now */
	CHECK(read(pipes[0], &byte, 1) == 1);
}

/* Space is free when the agent has read the entries, and libra_close has waited for the agent when
 * it returns, also after a shutdown. */
static void waits_for_the_agent(void)
{
	static const uint64_t keys[2000];
	static const float gradients[2000 * DIM];
	struct fake f;
	struct pollfd p = {.fd = pipes[0], .events = POLLIN};
	char byte;

	fake_start(&f, reads, NULL);
	struct libra_session *s = open_fake(&f);
	CHECK(libra_push(s, keys, gradients, 2000, NULL) == LIBRA_OK && read(pipes[0], &byte, 1) == 1);
	CHECK(libra_alloc(s, BUFFERS - 64));
	CHECK(write(pipes[1], "", 1) == 1 && libra_shutdown(s) == LIBRA_OK && libra_close(s) == LIBRA_OK);
	CHECK(poll(&p, 1, 0) == 0); /* the agent has ended the session */
	fake_stop(&f);
}

void test_waits(void)
{
	CHECK(pipe(pipes) == 0);
	sleeps();
	tells_the_poller();
	waits_for_the_agent();
}
