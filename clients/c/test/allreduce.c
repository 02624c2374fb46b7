/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduces with an agent that adds up what it gets from here as often as there are processes. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "../internal.h"
#include "fake.h"

#define ROWS 8000

/* What the agent's job looks like. What changes while the agent runs is atomic. */
struct job {
	float processes;
	bool other;     /* one of them gave another kind, */
	bool spread;    /* or two, whose digits have the same mean, */
	_Atomic bool stranger; /* or is no all-reduce, and has a row of its own where seals are */
	uint32_t stall; /* entries after which the agent reads no further for a while */
	_Atomic uint64_t drop; /* key that another process was refused for, if it is not 0 */
};

static uint64_t sum_keys[ROWS + 11];
static float sums[(ROWS + 11) * DIM];
static uint32_t pushes;
static _Atomic uint32_t sealed; /* rows of the seal that are not zero */

static void agent_adds(struct fake *f)
{
	const struct job *job = f->argument;
	uint32_t rows = 0, refused = 0;
	bool ended = false; /* the step */
	struct entry e;

	fake_welcome(f);
	pushes = 0;
	while (fake_next(f, &e)) {
		uint64_t *keys = (uint64_t *)(f->area + e.keys);
		float *values = (float *)(f->area + e.values);
		struct completion c = fake_answer(&e, 0);
		if (e.op == PUSH) {
			if (ended)
				rows = refused = 0;
			ended = false;
			for (int i = 1; i <= 16 && keys[0] == 0; i++)
				CHECK(values[0] == 1 && values[i] <= 15 && values[i + 16] == values[i] * values[i]);
			if (job->stall && pushes == job->stall)
				usleep(50000);
			pushes++;
			for (uint32_t i = 0; i < e.n * DIM; i++)
				if (!isfinite(values[i]) && !c.status) {
					c.status = LIBRA_NOT_FINITE;
					c.detail = i;
					c.key = keys[i / DIM];
					c.key_known = 1;
					refused++;
				}
			for (uint32_t i = 0; i < e.n; i++) {
				bool zero = true;
				CHECK(rows < ROWS + 11);
				sum_keys[rows] = keys[i];
				for (int d = 0; d < DIM; d++) {
					sums[rows * DIM + d] = values[i * DIM + d] * job->processes;
					zero = zero && sums[rows * DIM + d] == 0;
				}
				rows += !zero; /* zeros are left out */
			}
			if (sum_keys[0] == 0 && rows <= 11)
				sealed = rows;
		} else if (e.op == REDUCE || e.op == SUMS) {
			uint32_t first = e.op == SUMS ? (uint32_t)e.step : 0;
			CHECK(first + (e.op == SUMS ? e.n : 0) <= rows);
			if (e.op == REDUCE && job->other)
				sums[1] = sums[1] == 15 * job->processes ? sums[1] - 1 : sums[1] + 1;
			if (e.op == REDUCE && job->spread)
				sums[17] += 2;
			if (e.op == REDUCE && job->stranger && sealed < 11) {
				CHECK(rows == sealed);
				sum_keys[rows] = 10;
				sums[rows++ * DIM] = 1;
			} else if (e.op == REDUCE && job->stranger) {
				sum_keys[0] = 3;
			}
			ended = true;
			if (refused || job->drop) {
				c.status = LIBRA_DROPPED;
				c.key = job->drop ? job->drop : 11;
				c.key_known = 1;
			} else {
				uint32_t n = e.n < rows - first ? e.n : rows - first;
				memcpy(keys, sum_keys + first, n * 8);
				memcpy(values, sums + first * DIM, n * DIM * 4);
				c.detail = e.op == REDUCE ? rows : 0;
			}
		}
		fake_read(f);
		fake_complete(f, c);
	}
}

static uint64_t keys[ROWS], all_keys[ROWS];
static float gradients[ROWS * DIM], all[ROWS * DIM];

static struct libra_reduction reduction(size_t n, size_t room)
{
	for (size_t i = 0; i < n; i++) {
		keys[i] = i * 3;
		for (size_t d = 0; d < DIM; d++)
			gradients[i * DIM + d] = (float)(i + d + 1);
	}
	memset(all_keys, 0xff, sizeof all_keys);
	memset(all, 0, sizeof all);
	return (struct libra_reduction){"weights", 7, keys, gradients, n, room ? all_keys : NULL, room ? all : NULL, room};
}

/* reduces makes one, takes the rows beyond its room, and returns the code. */
static int reduces(const struct job *job, struct libra_reduction r, struct libra_reduced *reduced, int32_t room_ms)
{
	struct fake f;
	libra_ticket t;
	int code;

	fake_start(&f, agent_adds, job);
	struct libra_options o = options_for(&f);
	struct libra_session *s;
	o.room_ms = room_ms;
	CHECK(libra_open(&s, &o) == LIBRA_OK);
	while ((code = libra_all_reduce(s, &r, reduced, &t)) == LIBRA_TIMEOUT)
		;
	if (!code)
		code = libra_wait(s, t, 60000);
	if (!code) {
		CHECK(r.room == ROWS || all_keys[r.room] == UINT64_MAX); /* nothing beyond the room */
		CHECK(r.room == ROWS || all[r.room * DIM] == 0);
		uint64_t first = r.room < BUFFERS / 2 / (8 + 4 * DIM) - 11 ? r.room : BUFFERS / 2 / (8 + 4 * DIM) - 11;
		for (; first < reduced->rows; first += 500) {
			size_t n = reduced->rows - first < 500 ? reduced->rows - first : 500;
			CHECK(libra_sums(s, first, all_keys + first, all + first * DIM, n, NULL) == LIBRA_OK);
		}
	}
	struct libra_error e = *libra_last_error();
	libra_shutdown(s);
	libra_close(s);
	fake_stop(&f);
	*error_new(e.code) = e;
	return code;
}

/* One after the other in a session, of every kind: also those whose seal has a row of zeros, which sums leave out. */
static void many_in_turn(void)
{
	struct job job = {.processes = 2};
	struct libra_reduction r = reduction(0, 0);
	struct libra_reduced reduced;
	libra_ticket t;
	struct fake f;
	int short_ones = 0;

	fake_start(&f, agent_adds, &job);
	struct libra_session *s = open_fake(&f);
	for (uint64_t kind = 0; short_ones < 3; kind++) {
		r.kind = &kind, r.kind_bytes = sizeof kind;
		CHECK(kind < 100000);
		CHECK(libra_all_reduce(s, &r, &reduced, &t) == LIBRA_OK && libra_wait(s, t, -1) == LIBRA_OK);
		CHECK(reduced.rows == 0 && reduced.processes == 2);
		if (sealed == 11)
			continue;
		short_ones++;
		job.stranger = true;
		CHECK(libra_all_reduce(s, &r, &reduced, &t) == LIBRA_OK && libra_wait(s, t, -1) == LIBRA_MISMATCH);
		job.stranger = false;
	}

	/* In arrays of the session, and after failures. */
	uint64_t *lent_keys = libra_alloc(s, 6 * sizeof *lent_keys);
	float *lent = libra_alloc(s, 6 * DIM * sizeof *lent);
	CHECK(lent_keys && lent);
	for (int i = 0; i < 4; i++) {
		for (uint64_t k = 0; k < 3; k++) {
			lent_keys[k] = 100 + k;
			lent[k * DIM] = 1, lent[k * DIM + 1] = 2, lent[k * DIM + 2] = i == 1 ? NAN : 3;
		}
		job.drop = i == 2 ? 11 + 5 : 0;
		r = (struct libra_reduction){NULL, 0, lent_keys, lent, 3, lent_keys + 3, lent + 3 * DIM, 3};
		CHECK(libra_all_reduce(s, &r, &reduced, &t) == LIBRA_OK);
		CHECK(libra_wait(s, t, -1) == (i == 1 ? LIBRA_NOT_FINITE : i == 2 ? LIBRA_DROPPED : LIBRA_OK));
		CHECK(lent_keys[0] == 100 && lent[1] == 2);
	}
	CHECK(reduced.rows == 3 && lent_keys[5] == 102 && lent[6 * DIM - 1] == 6);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

void test_all_reduce(void)
{
	const size_t sizes[] = {0, 1, 5, 1627, 1628, 1700, ROWS}, rooms[] = {0, 1, 4, 2000, ROWS};
	struct libra_reduced reduced;
	struct job job = {.processes = 3};

	/* Small ones and those of several pushes, with and without room for all rows. */
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (size_t j = 0; j < sizeof rooms / sizeof *rooms; j++) {
			job.stall = j == 3 ? 2 : 0;
			CHECK(reduces(&job, reduction(sizes[i], rooms[j]), &reduced, j == 3 ? 1 : 0) == LIBRA_OK);
			CHECK(reduced.rows == sizes[i] && reduced.processes == 3);
			for (size_t k = 0; k < sizes[i] * DIM; k++)
				CHECK(all_keys[k / DIM] == keys[k / DIM] && all[k] == 3 * gradients[k]);
		}
	CHECK(pushes == (ROWS + 11 + 1637) / 1638);

	/* Whatever the kind, the seal is understood, and another one of the same job is not. */
	job = (struct job){.processes = 582};
	for (size_t i = 0; i < 64; i++) {
		struct libra_reduction r = reduction(2, 2);
		uint64_t kind = i * i;
		r.kind = &kind, r.kind_bytes = i % 9;
		job.other = i % 2;
		CHECK(reduces(&job, r, &reduced, 0) == (i % 2 ? LIBRA_MISMATCH : LIBRA_OK));
	}
	CHECK(strstr(libra_last_error()->text, "all-reduce, job clicks: the processes reduce different things"));
	job.other = false;
	job.stranger = true;
	CHECK(reduces(&job, reduction(2, 2), &reduced, 0) == LIBRA_MISMATCH);
	job.stranger = false;
	job.spread = true;
	CHECK(reduces(&job, reduction(2, 2), &reduced, 0) == LIBRA_MISMATCH);
	job = (struct job){.processes = 0};
	CHECK(reduces(&job, reduction(2, 2), &reduced, 0) == LIBRA_MISMATCH);
	many_in_turn();

	/* The own refused push comes before the dropped step, and is told as the caller knows it, also in a later part. */
	job = (struct job){.processes = 2};
	struct libra_reduction r = reduction(ROWS, ROWS);
	const size_t places[] = {0, 4, 1626 * DIM + 1, 1627 * DIM, ROWS * DIM - 1};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		r = reduction(ROWS, ROWS);
		gradients[places[i]] = gradients[ROWS * DIM - 1] = i % 2 ? NAN : INFINITY; /* the first is told */
		CHECK(reduces(&job, r, &reduced, 0) == LIBRA_NOT_FINITE);
		const struct libra_error *e = libra_last_error();
		CHECK(e->index == places[i] && e->key_known && e->key == places[i] / DIM * 3);
		char text[64];
		snprintf(text, sizeof text, ": number %zu, key %zu", places[i], places[i] / DIM * 3);
		CHECK(strstr(e->text, text));
	}
	job.drop = 11 + 77; /* on its way */
	CHECK(reduces(&job, reduction(4, 4), &reduced, 0) == LIBRA_DROPPED && libra_last_error()->key == 77);

	/* Usage. */
	job = (struct job){.processes = 1};
	r = reduction(4, 4);
	keys[3] = UINT64_MAX - 11;
	CHECK(reduces(&job, r, &reduced, 0) == LIBRA_OK && all_keys[3] == UINT64_MAX - 11);
	keys[3] = UINT64_MAX - 10;
	CHECK(reduces(&job, r, &reduced, 0) == LIBRA_USAGE && strstr(libra_last_error()->text, "key 18446744073709551605 is above 2^64 - 12"));
	r.keys = NULL;
	CHECK(reduces(&job, r, &reduced, 0) == LIBRA_USAGE && strstr(libra_last_error()->text, "is NULL"));
	r = reduction(4, 4);
	r.sums = NULL;
	CHECK(reduces(&job, r, &reduced, 0) == LIBRA_USAGE);
	r = reduction(4, 4);
	r.kind = NULL;
	CHECK(reduces(&job, r, &reduced, 0) == LIBRA_USAGE);
	CHECK(libra_all_reduce(NULL, &r, &reduced, NULL) == LIBRA_USAGE);
}
