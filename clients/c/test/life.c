/* SPDX-License-Identifier: Apache-2.0 */
/* Buffer space, fork, shutdown, signals, barriers. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../internal.h"
#include "fake.h"

static const uint64_t keys[2000];
static const float gradients[2000 * DIM];

static int pipes[2]; /* the test signals its agent to continue */

static void go_on(void)
{
	CHECK(write(pipes[1], "", 1) == 1);
}

static void pause_here(void)
{
	char byte;

	CHECK(read(pipes[0], &byte, 1) == 1);
}

static void serves(struct fake *f)
{
	fake_welcome(f);
	fake_serve(f);
}

static void serves_later(struct fake *f)
{
	fake_welcome(f);
	pause_here();
	fake_serve(f);
}

static void room(void)
{
	struct fake f;
	struct libra_session *s;
	libra_ticket t;
	int n = 0, code;

	/* Entries. */
	fake_start(&f, serves_later, NULL);
	struct libra_options o = options_for(&f);
	o.room_ms = 1;
	CHECK(libra_open(&s, &o) == LIBRA_OK);
	CHECK(libra_push(s, keys, gradients, 1, &t) == LIBRA_OK && !libra_accepted(s, t));
	CHECK(libra_wait(s, t, 1) == LIBRA_TIMEOUT && libra_wait(s, t, 0) == LIBRA_TIMEOUT);
	for (n = 1; (code = libra_push(s, keys, gradients, 1, NULL)) == LIBRA_OK; n++)
		;
	CHECK(n == ENTRIES && code == LIBRA_TIMEOUT && strstr(libra_last_error()->text, "no room within 1 ms"));
	CHECK(libra_wait(s, t + 1, 0) == LIBRA_USAGE); /* the second push has no ticket */
	go_on();
	CHECK(libra_wait(s, t, -1) == LIBRA_OK);
	while ((code = libra_flush(s, NULL)) == LIBRA_TIMEOUT)
		;
	CHECK(code == LIBRA_OK && libra_close(s) == LIBRA_OK);
	fake_stop(&f);

	/* Bytes, and without a limit. */
	fake_start(&f, serves_later, NULL);
	o.room_ms = 0;
	CHECK(libra_open(&s, &o) == LIBRA_OK);
	for (n = 0; n < 3; n++) /* of 20 bytes a key, which is 40,000 of 65,536 */
		if (libra_push(s, keys, gradients, n == 0 ? 2000 : 500, NULL) != LIBRA_OK)
			break;
	go_on();
	for (n = 0; n < 50; n++)
		CHECK(libra_push(s, keys, gradients, 2000, NULL) == LIBRA_OK);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

/* A child gets its own error from each function; the parent continues, and its end is noticed
 * although the child lives. */
static void forks(void)
{
	struct fake f;
	float row[DIM];
	int status, before, in_parent[2];
	struct libra_batch batch = {1, 1};
	struct libra_statistics statistics;
	libra_ticket t;

	CHECK(pipe(in_parent) == 0);
	fake_start(&f, serves, NULL);
	before = descriptors() + 1; /* the agent's end of the connection */
	struct libra_session *s = open_fake(&f);
	CHECK(libra_fd(s) >= 0);
	CHECK(libra_pull(s, keys, row, 1, &t) == LIBRA_OK);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char byte;
		/* Other descriptors of the test are the agent's memory and its copy of the socket. */
		CHECK(descriptors() <= before + 1);
		CHECK(libra_push(s, keys, gradients, 1, NULL) == LIBRA_FORKED);
		CHECK(strstr(libra_last_error()->text, "libra_push: the session belongs to the parent process"));
		CHECK(libra_pull(s, keys, row, 1, NULL) == LIBRA_FORKED);
		CHECK(libra_push_batch(s, &batch, gradients, NULL) == LIBRA_FORKED);
		CHECK(libra_statistics(s, &statistics, NULL) == LIBRA_FORKED);
		CHECK(libra_flush(s, NULL) == LIBRA_FORKED && libra_barrier(s, NULL) == LIBRA_FORKED);
		CHECK(libra_wait(s, t, -1) == LIBRA_FORKED && libra_accepted(s, t) == 1);
		CHECK(libra_fd(s) == -1 && libra_process(s) == LIBRA_FORKED && libra_shutdown(s) == LIBRA_FORKED);
		CHECK(!libra_alloc(s, 8) && libra_info(s)->dim == DIM);
		libra_free(s, row);
		/* What the child has mapped in the place of the session's memory remains. */
		char *own = mmap(s->header, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		CHECK(own == (char *)s->header);
		*own = 5;
		CHECK(libra_close(s) == LIBRA_OK && *own == 5);
		close(f.conn);
		close(in_parent[1]);
		_exit(read(in_parent[0], &byte, 1) == 0 ? 7 : 8); /* lives until the parent has closed */
	}
	CHECK(libra_wait(s, t, -1) == LIBRA_OK);
	CHECK(libra_push(s, keys, gradients, 1, NULL) == LIBRA_OK && libra_close(s) == LIBRA_OK);
	fake_stop(&f); /* the agent has seen the end */
	close(in_parent[1]);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	close(in_parent[0]);
}

static void *waits(void *session)
{
	CHECK(libra_flush(session, NULL) == LIBRA_CLOSED);
	CHECK(strstr(libra_last_error()->text, "shut down by this program"));
	return NULL;
}

static void hangs(struct fake *f)
{
	fake_welcome(f);
	pause_here();
}

static void shuts_down(void)
{
	struct fake f;
	pthread_t t[3];

	fake_start(&f, hangs, NULL);
	struct libra_session *s = open_fake(&f);
	float *array = libra_alloc(s, sizeof *array);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(t + i, NULL, waits, s) == 0);
	usleep(200000); /* they are waiting now, and one of them polls */
	CHECK(libra_shutdown(s) == LIBRA_OK && libra_shutdown(s) == LIBRA_OK);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	go_on();
	*array = 1; /* it exists until the end */
	CHECK(libra_push(s, keys, gradients, 1, NULL) == LIBRA_CLOSED);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

/* A program that polls learns of a shutdown by another thread, though the agent does nothing. */
static void shuts_a_poller_down(void)
{
	struct fake f;

	fake_start(&f, hangs, NULL);
	struct libra_session *s = open_fake(&f);
	struct pollfd p = {.fd = libra_fd(s), .events = POLLIN};
	CHECK(libra_process(s) == LIBRA_OK && poll(&p, 1, 0) == 0);
	CHECK(libra_shutdown(s) == LIBRA_OK);
	CHECK(poll(&p, 1, 60000) == 1 && libra_process(s) == LIBRA_CLOSED);
	go_on();
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

struct waiter {
	struct libra_session *s;
	libra_ticket ticket;
	int timeout_ms, want;
	_Atomic bool done;
};

static void *waits_for(void *argument)
{
	struct waiter *w = argument;

	CHECK(libra_wait(w->s, w->ticket, w->timeout_ms) == w->want);
	w->done = true;
	return NULL;
}

/* One thread polls for all. When it returns, another one does; and it is woken by its own event,
 * also alongside an event loop. */
static void takes_turns(void)
{
	struct fake f;
	pthread_t t[2];

	fake_start(&f, serves_later, NULL);
	struct libra_session *s = open_fake(&f);
	struct waiter w[2] = {{.s = s, .timeout_ms = 50, .want = LIBRA_TIMEOUT}, {.s = s, .timeout_ms = -1}};
	for (int i = 0; i < 2; i++) {
		CHECK(libra_push(s, keys, gradients, 1, &w[i].ticket) == LIBRA_OK);
		CHECK(pthread_create(t + i, NULL, waits_for, w + i) == 0);
		usleep(10000); /* most often it is asleep now */
	}
	CHECK(pthread_join(t[0], NULL) == 0);
	go_on();
	CHECK(pthread_join(t[1], NULL) == 0);
	CHECK(libra_wait(s, w[0].ticket, -1) == LIBRA_OK);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);

	fake_start(&f, serves_later, NULL);
	s = open_fake(&f);
	CHECK(libra_fd(s) >= 0);
	struct waiter beside = {.s = s, .timeout_ms = -1};
	CHECK(libra_push(s, keys, gradients, 1, &beside.ticket) == LIBRA_OK);
	CHECK(pthread_create(t, NULL, waits_for, &beside) == 0);
	usleep(10000);
	go_on();
	while (!beside.done)
		CHECK(libra_process(s) == LIBRA_OK);
	CHECK(pthread_join(t[0], NULL) == 0);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

/* The descriptor signals requests for which a call has waited without success. */
static void polls_after_wait(void)
{
	struct fake f;
	libra_ticket t;

	fake_start(&f, serves_later, NULL);
	struct libra_session *s = open_fake(&f);
	struct pollfd p = {.fd = libra_fd(s), .events = POLLIN};
	CHECK(libra_push(s, keys, gradients, 1, &t) == LIBRA_OK && libra_process(s) == LIBRA_OK);
	CHECK(libra_wait(s, t, 1) == LIBRA_TIMEOUT);
	go_on();
	CHECK(poll(&p, 1, 60000) == 1 && libra_process(s) == LIBRA_OK && libra_wait(s, t, 0) == LIBRA_OK);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

static void wakes_in_vain(struct fake *f)
{
	fake_welcome(f);
	pause_here();
	fake_wake(f);
	pause_here();
	fake_serve(f);
}

/* A look that receives an early or unnecessary wake-up leaves the descriptor ready for the next. */
static void polls_after_look(void)
{
	struct fake f;
	libra_ticket t;

	fake_start(&f, wakes_in_vain, NULL);
	struct libra_session *s = open_fake(&f);
	struct pollfd p = {.fd = libra_fd(s), .events = POLLIN};
	CHECK(libra_push(s, keys, gradients, 1, &t) == LIBRA_OK && libra_process(s) == LIBRA_OK);
	go_on();
	CHECK(poll(&p, 1, 60000) == 1);
	while (poll(&p, 1, 1) == 1) /* until a look at the socket is due */
		CHECK(libra_wait(s, t, 0) == LIBRA_TIMEOUT);
	go_on();
	CHECK(poll(&p, 1, 60000) == 1 && libra_process(s) == LIBRA_OK && libra_wait(s, t, 0) == LIBRA_OK);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int signal)
{
	(void)signal;
	alarms++;
}

/* Signals, whose handlers do not restart system calls, neither end a wait nor lose a request. */
static void signals(void)
{
	struct fake f;
	struct sigaction a = {.sa_handler = on_alarm}, old;
	struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	libra_ticket t;

	fake_start(&f, serves_later, NULL);
	struct libra_session *s = open_fake(&f);
	CHECK(libra_push(s, keys, gradients, 1, &t) == LIBRA_OK);
	CHECK(sigaction(SIGALRM, &a, &old) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
	while (alarms < 5)
		CHECK(libra_wait(s, t, 2) == LIBRA_TIMEOUT);
	go_on();
	CHECK(libra_wait(s, t, -1) == LIBRA_OK);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigaction(SIGALRM, &old, NULL) == 0);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

static void barriers_of(struct fake *f)
{
	static const struct {
		uint32_t status;
		uint64_t step, detail;
	} want[] = {{0, 20, 0}, {LIBRA_PARTY_GONE, 21, 4711ull << 32 | 3}, {0, 21, 0}, {LIBRA_BAD_STEP, 22, 90}, {0, 90, 0}, {0, 91, 0}, {LIBRA_DROPPED, 92, 0}, {0, 93, 0}, {LIBRA_REFUSED, 94, 0}, {0, 94, 0}};
	struct entry e;

	fake_welcome(f);
	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		CHECK(fake_next(f, &e) && e.op == BARRIER && e.step == want[i].step);
		fake_read(f);
		struct completion c = fake_answer(&e, want[i].status);
		c.detail = want[i].detail;
		fake_complete(f, c);
	}
	fake_serve(f);
}

/* The library counts the steps, and a step that has failed is due again. */
static void barriers(void)
{
	struct fake f;

	fake_start(&f, barriers_of, NULL);
	struct libra_session *s = open_fake(&f);
	CHECK(libra_barrier(s, NULL) == LIBRA_OK);
	CHECK(libra_barrier(s, NULL) == LIBRA_PARTY_GONE &&
	      strstr(libra_last_error()->text, "has ended (process 4711, client 3 in the agent's log): start all of them anew"));
	CHECK(libra_barrier(s, NULL) == LIBRA_OK);
	CHECK(libra_barrier(s, NULL) == LIBRA_BAD_STEP && strstr(libra_last_error()->text, "due, which is 90"));
	CHECK(libra_barrier(s, NULL) == LIBRA_OK && libra_barrier(s, NULL) == LIBRA_OK);
	CHECK(libra_barrier(s, NULL) == LIBRA_DROPPED && libra_barrier(s, NULL) == LIBRA_OK);
	CHECK(libra_barrier(s, NULL) == LIBRA_REFUSED && libra_barrier(s, NULL) == LIBRA_OK);
	CHECK(strstr(libra_last_error()->text, "barrier, job clicks: this host could not meet the other workers of the job"));
	CHECK(!strstr(libra_last_error()->text, "code 0"));
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

static void waits_for_others(struct fake *f)
{
	struct entry first, e;

	fake_welcome(f);
	CHECK(fake_next(f, &first) && first.op == BARRIER && first.step == 20);
	fake_read(f);
	CHECK(fake_next(f, &e) && e.op == BARRIER && e.step == 21);
	fake_read(f);
	struct completion c = fake_answer(&e, LIBRA_BAD_STEP);
	c.detail = 20;
	fake_complete(f, c);
	fake_complete(f, fake_answer(&first, LIBRA_OK));
	CHECK(fake_next(f, &e) && e.op == BARRIER && e.step == 21);
	fake_read(f);
	fake_complete(f, fake_answer(&e, LIBRA_OK));
	fake_serve(f);
}

/* A cancelled barrier is still pending: the one called in its place is refused, and the next is for
 * the next step. */
static void barrier_again(void)
{
	struct fake f;
	libra_ticket t;

	fake_start(&f, waits_for_others, NULL);
	struct libra_session *s = open_fake(&f);
	CHECK(libra_barrier(s, &t) == LIBRA_OK && libra_wait(s, t, 10) == LIBRA_TIMEOUT);
	CHECK(libra_barrier(s, NULL) == LIBRA_BAD_STEP && libra_wait(s, t, -1) == LIBRA_OK);
	CHECK(libra_barrier(s, NULL) == LIBRA_OK);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

static void refuses(struct fake *f)
{
	struct entry e;

	fake_welcome(f);
	CHECK(fake_next(f, &e));
	fake_read(f);
	struct completion c = fake_answer(&e, LIBRA_REFUSED);
	c.peer = LIBRA_PEER_SERVER;
	c.refusal = 12;
	c.acknowledged = 1;
	c.refused = 2;
	c.unknown = 3;
	fake_complete(f, c);
	CHECK(fake_next(f, &e) && e.op == FLUSH);
	fake_read(f);
	fake_complete(f, fake_answer(&e, LIBRA_REFUSED));
}

static void refusals(void)
{
	struct fake f;
	libra_ticket t;

	fake_start(&f, refuses, NULL);
	struct libra_session *s = open_fake(&f);
	CHECK(libra_push(s, keys, gradients, 3, &t) == LIBRA_OK && libra_wait(s, t, -1) == LIBRA_REFUSED);
	const struct libra_error *e = libra_last_error();
	CHECK(e->peer == LIBRA_PEER_SERVER && e->refusal == 12);
	CHECK(e->acknowledged == 1 && e->refused == 2 && e->unknown == 3);
	CHECK(strstr(e->text, "the parameter server refused a frame: frame type not served here; of its frames 1 were applied, 2 were not, 3 may have "
			       "been: is it the address of an aggregator or server, and"));
	CHECK(!strstr(e->text, "code"));
	CHECK(libra_close(s) == LIBRA_REFUSED);
	fake_stop(&f);
}

/* mappings counts the mappings of agents' shared memory. */
static int mappings(void)
{
	char line[512];
	int n = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		n += strstr(line, "memfd:") != NULL;
	fclose(maps);
	return n;
}

/* Two sessions at once, of which the newer ends first; a child has none of the library's
 * mappings. */
static void two_sessions(void)
{
	struct fake f[2];
	struct libra_session *s[2];
	int status, without;
	pid_t child;

	for (int i = 0; i < 2; i++) {
		fake_start(f + i, serves, NULL);
		s[i] = open_fake(f + i);
	}
	without = mappings() - 2; /* the fakes' own */
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		int left = mappings();
		CHECK(libra_close(s[1]) == LIBRA_OK && libra_close(s[0]) == LIBRA_OK);
		_exit(left == without ? 7 : 8);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	for (int i = 2; i-- > 0;) {
		CHECK(libra_close(s[i]) == LIBRA_OK);
		fake_stop(f + i);
	}
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(7);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

void test_life(void)
{
	CHECK(pipe(pipes) == 0);
	room();
	two_sessions();
	forks();
	shuts_down();
	shuts_a_poller_down();
	takes_turns();
	polls_after_wait();
	polls_after_look();
	signals();
	barriers();
	barrier_again();
	refusals();
}
