/* SPDX-License-Identifier: Apache-2.0 */
/* Agents that break the protocol, end or die: no call crashes or hangs, and each reports what
 * happened. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake.h"

static const uint64_t key = 4;
static const float gradients[DIM];
static struct entry first;

/* misbehaves runs the agent's function after a first entry, and checks the request that waits for
 * it. */
static void misbehaves(void (*run)(struct fake *), int want, const char *text)
{
	struct fake f;
	libra_ticket t;
	float row[DIM];

	fake_start(&f, run, NULL);
	struct libra_session *s = open_fake(&f);
	CHECK(libra_push(s, &key, gradients, 1, &t) == LIBRA_OK);
	CHECK(libra_wait(s, t, -1) == want && strstr(libra_last_error()->text, text));
	CHECK(libra_push(s, &key, gradients, 1, NULL) == want && strstr(libra_last_error()->text, text));
	CHECK(libra_pull(s, &key, row, 1, NULL) == want);
	CHECK(libra_accepted(s, t) == 1);
	CHECK(libra_process(s) == want);
	fake_stop(&f); /* the agent has seen the end */
	CHECK(libra_shutdown(s) == LIBRA_OK && libra_process(s) == want); /* the first reason counts */
	CHECK(libra_close(s) == want);
}

static void begin(struct fake *f)
{
	fake_welcome(f);
	CHECK(fake_next(f, &first));
}

static void end(struct fake *f)
{
	char byte;

	while (recv(f->conn, &byte, 1, 0) > 0) /* until the client has noticed it */
		;
}

static void unknown_tag(struct fake *f)
{
	begin(f);
	fake_read(f);
	first.tag++;
	fake_complete(f, fake_answer(&first, 0));
	end(f);
}

static void zero_tag(struct fake *f)
{
	begin(f);
	fake_read(f);
	first.tag = 0;
	fake_complete(f, fake_answer(&first, 0));
	end(f);
}

static void other_op(struct fake *f)
{
	begin(f);
	fake_read(f);
	first.op = PULL;
	fake_complete(f, fake_answer(&first, 0));
	end(f);
}

static void not_read(struct fake *f)
{
	begin(f);
	fake_complete(f, fake_answer(&first, 0));
	end(f);
}

static void our_code(struct fake *f)
{
	begin(f);
	fake_read(f);
	fake_complete(f, fake_answer(&first, LIBRA_TIMEOUT));
	end(f);
}

static void tail_jumps(struct fake *f)
{
	begin(f);
	fake_read(f);
	atomic_store(&f->header->cq_tail, ENTRIES + 1);
	fake_wake(f);
	end(f);
}

static void head_jumps(struct fake *f)
{
	begin(f);
	atomic_store(&f->header->sq_head, 2);
	atomic_store(&f->header->cq_tail, 1);
	fake_wake(f);
	end(f);
}

static void head_goes_back(struct fake *f)
{
	begin(f);
	atomic_store(&f->header->sq_head, UINT32_MAX);
	atomic_store(&f->header->cq_tail, 1);
	fake_wake(f);
	end(f);
}

static void ends(struct fake *f)
{
	begin(f);
	memset(f->header->end_text, 'e', sizeof f->header->end_text); /* without a terminating zero */
	atomic_store(&f->header->end_code, LIBRA_JOB_ENDED);
}

static void ends_without_text(struct fake *f)
{
	begin(f);
	usleep(100000); /* the client sleeps: it sees the end of the socket first */
	atomic_store(&f->header->end_code, LIBRA_AGENT_CLOSED);
}

static void ends_with_our_code(struct fake *f)
{
	begin(f);
	atomic_store(&f->header->end_code, LIBRA_CLOSED);
}

static void dies(struct fake *f)
{
	begin(f);
}

static void dies_after_many_wakes(struct fake *f)
{
	fake_welcome(f);
	while (send(f->conn, "many", 4, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	CHECK(fake_next(f, &first));
}

/* The answers of an agent before it died count. */
static void answers_and_dies(struct fake *f)
{
	begin(f);
	fake_read(f);
	fake_complete(f, fake_answer(&first, 0));
}

static void answered(void)
{
	struct fake f;
	libra_ticket t;

	fake_start(&f, answers_and_dies, NULL);
	struct libra_session *s = open_fake(&f);
	CHECK(libra_push(s, &key, gradients, 1, &t) == LIBRA_OK);
	fake_stop(&f);
	CHECK(libra_wait(s, t, -1) == LIBRA_OK);
	CHECK(libra_flush(s, NULL) == LIBRA_AGENT_DIED);
	CHECK(libra_close(s) == LIBRA_AGENT_DIED);
}

/* A program that only pushes, and waits for nothing, also notices the death. */
static void pushes_on(void)
{
	struct fake f;
	int code;

	fake_start(&f, dies, NULL);
	struct libra_session *s = open_fake(&f);
	CHECK(libra_push(s, &key, gradients, 1, NULL) == LIBRA_OK);
	fake_stop(&f);
	usleep(150000); /* after which a call looks again, although there is room */
	code = libra_push(s, &key, gradients, 1, NULL);
	CHECK(code == LIBRA_AGENT_DIED && strstr(libra_last_error()->text, "(process 77) has died"));
	CHECK(libra_close(s) == LIBRA_AGENT_DIED);
}

#define WAKES 400 /* more than a socket holds */

static void takes_no_wake(struct fake *f)
{
	struct entry e;

	fake_welcome(f);
	for (int i = 0; i < WAKES; i++) {
		while (atomic_load(&f->header->sq_tail) == f->read)
			sched_yield();
		e = f->sq[f->read % ENTRIES];
		fake_read(f);
		atomic_store(&f->header->agent_sleeps, 1); /* the next push wakes it */
		fake_complete(f, fake_answer(&e, 0));
	}
	fake_serve(f);
}

/* An agent that receives no wake-ups holds up no push. */
static void wakes_in_vain(void)
{
	struct fake f;
	libra_ticket t;

	fake_start(&f, takes_no_wake, NULL);
	struct libra_session *s = open_fake(&f);
	for (int i = 0; i < WAKES; i++)
		CHECK(libra_push(s, &key, gradients, 1, &t) == LIBRA_OK && libra_wait(s, t, -1) == LIBRA_OK);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

void test_hostile(void)
{
	misbehaves(unknown_tag, LIBRA_PROTOCOL, "completion 0 fits no request");
	misbehaves(zero_tag, LIBRA_PROTOCOL, "completion 0 fits no request");
	misbehaves(other_op, LIBRA_PROTOCOL, "completion 0 fits no request");
	misbehaves(not_read, LIBRA_PROTOCOL, "completion 0 fits no request");
	misbehaves(our_code, LIBRA_PROTOCOL, "completion 0 fits no request");
	misbehaves(tail_jumps, LIBRA_PROTOCOL, "completions jumped from 0 to 9");
	misbehaves(head_jumps, LIBRA_PROTOCOL, "read 2 entries of 1");
	misbehaves(head_goes_back, LIBRA_PROTOCOL, "read 4294967295 entries of 1");
	misbehaves(ends, LIBRA_JOB_ENDED, "ended the session: eee");
	misbehaves(ends_without_text, LIBRA_AGENT_CLOSED, "the agent was stopped");
	misbehaves(ends_with_our_code, LIBRA_PROTOCOL, "ended the session with code 265");
	misbehaves(dies, LIBRA_AGENT_DIED, "(process 77) has died");
	misbehaves(dies_after_many_wakes, LIBRA_AGENT_DIED, "(process 77) has died");
	answered();
	pushes_on();
	wakes_in_vain();
}
