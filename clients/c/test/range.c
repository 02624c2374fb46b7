/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs for tests with jobs of a range, and the agent's socket in LIBRA_AGENT: `range own JOB` owns a job, and
 * `range push JOB NUMBER PUSHES` pushes to it. Rows have two floats.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../libra.h"

#define DIM 2
#define ROWS 300 /* in the hot set: 7, 10, 13, ... */
#define EACH 40  /* rows of a push */

/* fail prints the code of the last error, which the test reads, and ends the program. */
static void fail(const char *what)
{
	const struct libra_error *e = libra_last_error();

	printf("%s\n", libra_code_name(e->code));
	fflush(stdout);
	fprintf(stderr, "%s: %s\n", what, e->text);
	exit(3);
}

#define CHECK(what)                  \
	do {                         \
		if (!(what))         \
			fail(#what); \
	} while (0)

/* dial opens a session. The job may have no owner yet, or still the one before. */
static struct libra_session *dial(const char *job, int owner)
{
	struct libra_options o = LIBRA_OPTIONS;
	struct libra_session *s;
	time_t end = time(NULL) + 60;
	int code;

	o.job = job;
	o.client = owner ? "owner" : "pusher";
	o.owner = owner;
	o.dim = DIM;
	while (((code = libra_open(&s, &o)) == LIBRA_NOT_OPEN || code == LIBRA_JOB_ENDED) && time(NULL) < end)
		;
	if (code)
		fail("libra_open");
	return s;
}

static uint64_t key_of(unsigned row)
{
	return 7 + 3 * (uint64_t)row;
}

/* Pushes PUSHES batches; number n adds NUMBER and n to EACH rows. Prints the number of each that is acknowledged, and
 * ends with its input. */
static int push(const char *job, int number, int pushes)
{
	struct libra_session *s = dial(job, 0);
	uint64_t keys[EACH];
	float gradients[EACH * DIM];
	struct pollfd in = {.fd = 0, .events = POLLIN};

	for (int n = 0; n < pushes && poll(&in, 1, 0) == 0; n++) {
		for (int i = 0; i < EACH; i++) {
			keys[i] = key_of((unsigned)(n * 7 + i * 11) % ROWS);
			gradients[i * DIM] = (float)number;
			gradients[i * DIM + 1] = (float)n;
		}
		CHECK(libra_push(s, keys, gradients, EACH, NULL) == LIBRA_OK);
		if (n % 8 == 7 || n == pushes - 1) {
			CHECK(libra_flush(s, NULL) == LIBRA_OK);
			printf("%d\n", n + 1);
			fflush(stdout);
		}
	}
	CHECK(libra_close(s) == LIBRA_OK);
	return 0;
}

struct harvest {
	libra_ticket ticket;
	bool now;
	uint64_t keys[ROWS], rows;
	float sums[ROWS * DIM];
};

static double total[ROWS][DIM];
static struct harvest next, now;

/* submit asks for a harvest. */
static void submit(struct libra_session *s, struct harvest *h, bool at_once)
{
	h->now = at_once;
	CHECK(libra_harvest(s, at_once, h->keys, h->sums, ROWS, &h->rows, &h->ticket) == LIBRA_OK);
}

/* take adds a harvest to the total if it is there. */
static bool take(struct libra_session *s, struct harvest *h)
{
	int code = h->ticket ? libra_wait(s, h->ticket, 0) : LIBRA_TIMEOUT;

	if (code == LIBRA_TIMEOUT)
		return false;
	if (code)
		fail("libra_harvest");
	h->ticket = 0;
	if (h->rows == 0 && !h->now && !now.ticket)
		abort(); /* it waits for sums, unless one behind it does not */
	for (uint64_t i = 0; i < h->rows; i++) {
		uint64_t row = (h->keys[i] - 7) / 3;
		if (h->keys[i] != key_of((unsigned)row) || row >= ROWS || (i > 0 && h->keys[i] <= h->keys[i - 1]))
			abort(); /* they are hot, and ascend */
		for (int j = 0; j < DIM; j++)
			total[row][j] += (double)h->sums[i * DIM + (unsigned)j];
	}
	return true;
}

/* Owns a job: adds up harvests as they come, and for each line of input takes one at once and prints "now". Prints the
 * sums when its input ends. */
static int own(const char *job)
{
	struct libra_session *s = dial(job, 1);
	struct pollfd p[2] = {{.fd = 0, .events = POLLIN}, {.fd = libra_fd(s), .events = POLLIN}};
	bool over = false;
	char line[64];

	CHECK(p[1].fd >= 0 && libra_info(s)->hot_rows == ROWS);
	printf("owns\n");
	fflush(stdout);
	submit(s, &next, false);
	for (;;) {
		p[0].fd = now.ticket || over ? -1 : 0; /* one at a time */
		if (poll(p, 2, -1) < 0)
			return 1;
		if (p[1].revents)
			CHECK(libra_process(s) == LIBRA_OK);
		if (take(s, &next) && !over)
			submit(s, &next, false);
		if (take(s, &now)) {
			if (over)
				break;
			printf("now\n");
			fflush(stdout);
		}
		if (p[0].fd == 0 && p[0].revents) {
			over = read(0, line, sizeof line) <= 0;
			submit(s, &now, true);
		}
	}
	while (next.ticket && !take(s, &next))
		;
	for (unsigned i = 0; i < ROWS; i++)
		printf("%" PRIu64 " %.0f %.0f\n", key_of(i), total[i][0], total[i][1]);
	CHECK(libra_close(s) == LIBRA_OK);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "own") == 0)
		return own(argv[2]);
	if (argc == 5 && strcmp(argv[1], "push") == 0)
		return push(argv[2], atoi(argv[3]), atoi(argv[4]));
	fprintf(stderr, "usage: range own JOB | range push JOB NUMBER PUSHES\n");
	return 2;
}
