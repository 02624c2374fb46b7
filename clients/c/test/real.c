/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs for tests with the real agent: `real WHAT`, with the agent's socket in LIBRA_AGENT. The job is "clicks", with
 * rows of two floats, of which 0 to 49 are hot.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../libra.h"

#define DIM 2
#define MAX 2000

#define CHECK(what)                                                                                       \
	do {                                                                                              \
		if (!(what)) {                                                                            \
			fprintf(stderr, "%s:%d: %s\nlast error: %s\n", __FILE__, __LINE__, #what,         \
				libra_last_error()->text);                                                \
			exit(1);                                                                          \
		}                                                                                         \
	} while (0)

static struct libra_session *dial(uint32_t parties)
{
	struct libra_options o = LIBRA_OPTIONS;
	struct libra_session *s;

	o.job = "clicks";
	o.client = "real";
	o.dim = DIM;
	o.entries = 16;
	o.buffer_bytes = 256 << 10;
	o.parties = parties;
	CHECK(libra_open(&s, &o) == LIBRA_OK);
	return s;
}

/* The same batch as the Go test's. */
static void batch(int seed, int n, uint64_t *keys, float *gradients)
{
	for (int i = 0; i < n; i++) {
		keys[i] = (uint64_t)((seed * 31 + i * 7) % 100);
		for (int j = 0; j < DIM; j++)
			gradients[i * DIM + j] = (float)(seed + i + 1) / (float)(3 * i + j + 7);
	}
}

static int threads_of_process(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/task");

	CHECK(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static void dispositions(struct sigaction all[NSIG])
{
	memset(all, 0, NSIG * sizeof *all);
	for (int i = 1; i < NSIG; i++)
		sigaction(i, NULL, all + i);
}

/* push_all makes the pushes that the Go test expects. */
static void push_all(void)
{
	static uint64_t keys[MAX];
	static float gradients[MAX * DIM], rows[MAX * DIM];
	static struct sigaction before[NSIG], after[NSIG];
	struct libra_statistics statistics;
	struct libra_batch prepared;
	libra_ticket t;
	int tasks = threads_of_process();

	dispositions(before);
	struct libra_session *s = dial(1);
	const struct libra_info *info = libra_info(s);
	CHECK(info->dim == DIM && info->hot_rows == 50 && info->mode == LIBRA_COMBINE && info->arithmetic == LIBRA_EXACT);

	for (int i = 0; i < 60; i++) { /* the caller may reuse its arrays at once */
		batch(i, 5 + i, keys, gradients);
		CHECK(libra_push(s, keys, gradients, (size_t)(5 + i), NULL) == LIBRA_OK);
		memset(gradients, 0xff, sizeof gradients);
	}
	batch(3, MAX, keys, gradients);
	for (int i = 0; i < 20; i++)
		CHECK(libra_push(s, keys, gradients, MAX, NULL) == LIBRA_OK);
	CHECK(libra_prepare(s, keys, 300, &prepared, NULL) == LIBRA_OK);
	for (int i = 0; i < 30; i++)
		CHECK(libra_push_batch(s, &prepared, gradients, NULL) == LIBRA_OK);
	CHECK(libra_pull_batch(s, &prepared, rows, NULL) == LIBRA_OK && rows[0] == 0); /* no step has ended */
	CHECK(libra_release(s, &prepared, NULL) == LIBRA_OK);

	uint64_t *shared_keys = libra_alloc(s, 100 * sizeof *keys);
	float *shared = libra_alloc(s, 100 * DIM * sizeof *shared);
	CHECK(shared_keys && shared);
	for (int i = 0; i < 20; i++) {
		batch(i + 1000, 100, shared_keys, shared);
		CHECK(libra_push(s, shared_keys, shared, 100, &t) == LIBRA_OK);
		CHECK(libra_wait(s, t, -1) == LIBRA_OK && libra_accepted(s, t));
	}
	CHECK(libra_flush(s, NULL) == LIBRA_OK);

	/* A failed push is not applied, and reported once. */
	const struct libra_error *e = libra_last_error();
	batch(7, 3, keys, gradients);
	gradients[5] = NAN;
	CHECK(libra_push(s, keys, gradients, 3, NULL) == LIBRA_OK);
	CHECK(libra_flush(s, NULL) == LIBRA_NOT_FINITE && e->index == 5 && e->key_known && e->key == keys[2]);
	CHECK(libra_flush(s, NULL) == LIBRA_OK);
	gradients[5] = 1e9f;
	CHECK(libra_push(s, keys, gradients, 3, &t) == LIBRA_OK && libra_wait(s, t, -1) == LIBRA_OUT_OF_RANGE);
	CHECK(libra_flush(s, NULL) == LIBRA_OUT_OF_RANGE);
	CHECK(libra_push_sums(s, keys, gradients, gradients, 2, NULL) == LIBRA_MODE);
	CHECK(strstr(e->text, "the job's mode is combine: sums in answers need mode fetchadd"));
	CHECK(libra_flush(s, NULL) == LIBRA_MODE);
	CHECK(libra_push_batch(s, &prepared, gradients, &t) == LIBRA_OK && libra_wait(s, t, -1) == LIBRA_NO_BATCH);
	CHECK(libra_flush(s, NULL) == LIBRA_NO_BATCH);

	CHECK(libra_statistics(s, &statistics, NULL) == LIBRA_OK);
	CHECK(statistics.keys_pushed >= 20 * MAX && statistics.pushes_acknowledged == 60 + 20 + 30 + 20);
	CHECK(statistics.pulls == 1 && statistics.keys_pulled == 300 && statistics.prepared_bytes == 0);

	CHECK(libra_barrier(s, NULL) == LIBRA_OK);
	for (uint64_t k = 0; k < 100; k++)
		keys[k] = k;
	CHECK(libra_pull(s, keys, rows, 100, NULL) == LIBRA_OK);
	for (int i = 0; i < 100 * DIM; i++) {
		uint32_t bits;
		memcpy(&bits, rows + i, 4);
		printf("%08x\n", bits);
	}

	dispositions(after);
#ifdef __SANITIZE_THREAD__ /* it has its own thread and handlers */
	(void)tasks;
#else
	CHECK(threads_of_process() == tasks);
	for (int i = 1; i < NSIG; i++)
		CHECK(before[i].sa_handler == after[i].sa_handler && before[i].sa_flags == after[i].sa_flags);
#endif
	CHECK(libra_close(s) == LIBRA_OK);
}

static void tick(int number) { (void)number; }

/* closes_among_signals opens and closes sessions: the place among the parties is free at once, also
 * while a timer interrupts. */
static void closes_among_signals(void)
{
	struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
	struct itimerval every = {{0, 200}, {0, 200}};
	struct timespec begin, end;

	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
	for (int i = 0; i < 50; i++) {
		struct libra_session *s = dial(1);
		clock_gettime(CLOCK_MONOTONIC, &begin);
		CHECK(libra_close(s) == LIBRA_OK);
		clock_gettime(CLOCK_MONOTONIC, &end);
		CHECK(end.tv_sec - begin.tv_sec < 5);
	}
}

/*
 * Push p has the keys F + 4p to F + 4p + 3, with F from LIBRA_FIRST, and the hot key p mod 50, all with gradients of 1.
 * Prints the numbers of acknowledged pushes. Ends when standard input does, with its last push acknowledged.
 */
static void push_until_killed(void)
{
	struct libra_session *s = dial(0);
	struct pollfd end = {.fd = 0, .events = POLLIN};
	uint64_t first = strtoull(getenv("LIBRA_FIRST"), NULL, 10), p = 0, told = 0;
	float ones[5 * DIM];
	libra_ticket t[8] = {0};

	for (int i = 0; i < 5 * DIM; i++)
		ones[i] = 1;
	for (; p % 8 || poll(&end, 1, 0) == 0; p++) {
		uint64_t key = first + 4 * p, keys[] = {key, key + 1, key + 2, key + 3, p % 50};
		if (t[p % 8]) {
			CHECK(libra_wait(s, t[p % 8], -1) == LIBRA_OK);
			printf("%llu\n", (unsigned long long)told++);
			fflush(stdout);
		}
		CHECK(libra_push(s, keys, ones, 5, &t[p % 8]) == LIBRA_OK);
	}
	for (; told < p; told++)
		CHECK(libra_wait(s, t[told % 8], -1) == LIBRA_OK);
	if (p)
		printf("%llu\n", (unsigned long long)p - 1);
	CHECK(libra_close(s) == LIBRA_OK);
}

struct role {
	struct libra_session *s;
	int what;
};

static void *until_it_fails(void *argument)
{
	struct role *r = argument;
	uint64_t keys[] = {1, 2, 77};
	float values[3 * DIM] = {0};
	struct libra_batch prepared;
	struct libra_statistics statistics;
	libra_ticket t;
	int code;

	do {
		switch (r->what) {
		case 0:
			code = libra_push(r->s, keys, values, 3, NULL);
			break;
		case 1:
			code = libra_push(r->s, keys, values, 3, &t);
			if (!code)
				code = libra_wait(r->s, t, -1);
			break;
		case 2:
			code = libra_pull(r->s, keys, values, 3, NULL);
			break;
		case 3:
			code = libra_flush(r->s, NULL);
			break;
		case 4: /* the other party never comes */
			code = libra_barrier(r->s, NULL);
			break;
		case 5:
			code = libra_prepare(r->s, keys, 3, &prepared, NULL);
			if (!code)
				code = libra_release(r->s, &prepared, NULL);
			break;
		default:
			code = libra_statistics(r->s, &statistics, NULL);
		}
	} while (code == LIBRA_OK);
	CHECK(code == LIBRA_AGENT_DIED && strstr(libra_last_error()->text, "has died"));
	return NULL;
}

/* Every call is in progress when the agent dies. */
static void outlive_agent(void)
{
	struct role roles[7];
	pthread_t t[7];
	struct libra_session *s = dial(2);

	for (int i = 0; i < 7; i++) {
		roles[i] = (struct role){s, i};
		CHECK(pthread_create(t + i, NULL, until_it_fails, roles + i) == 0);
	}
	puts("under way");
	fflush(stdout);
	for (int i = 0; i < 7; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(libra_close(s) == LIBRA_AGENT_DIED);
	puts("told");
}

/* A child of fork gets its own error and may open its own session; the parent continues. */
static void fork_once(void)
{
	struct libra_session *s = dial(0);
	uint64_t keys[] = {1, 60};
	float ones[] = {1, 1, 1, 1};
	int status;

	CHECK(libra_push(s, keys, ones, 2, NULL) == LIBRA_OK);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(libra_push(s, keys, ones, 2, NULL) == LIBRA_FORKED);
		struct libra_session *own = dial(0);
		CHECK(libra_push(own, keys, ones, 2, NULL) == LIBRA_OK && libra_close(own) == LIBRA_OK);
		CHECK(libra_close(s) == LIBRA_OK);
		exit(0);
	}
	for (int i = 0; i < 50; i++)
		CHECK(libra_push(s, keys, ones, 2, NULL) == LIBRA_OK);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(libra_push(s, keys, ones, 2, NULL) == LIBRA_OK && libra_close(s) == LIBRA_OK);
}

static void refusals(void)
{
	struct libra_options o = LIBRA_OPTIONS;
	struct libra_session *s;
	uint8_t hot_set[32] = {1};

	for (int i = 0; i < 4; i++) {
		o.job = i == 0 ? "nothing" : "clicks";
		o.dim = i == 1 ? DIM + 1 : DIM;
		o.hot_set = i == 2 ? hot_set : NULL;
		o.buffer_bytes = i == 3 ? 1ull << 40 : 0;
		int code = libra_open(&s, &o);
		printf("%s: %s\n", libra_code_name(code), libra_last_error()->text);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} programs[] = {{"push", push_all}, {"signals", closes_among_signals}, {"killed", push_until_killed}, {"outlive", outlive_agent},
			{"fork", fork_once}, {"refusals", refusals}};

	for (size_t i = 0; argc == 2 && i < sizeof programs / sizeof *programs; i++)
		if (strcmp(argv[1], programs[i].name) == 0) {
			programs[i].run();
			return 0;
		}
	fprintf(stderr, "usage: real push|signals|killed|outlive|fork|refusals\n");
	return 2;
}
