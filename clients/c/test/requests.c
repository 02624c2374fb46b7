/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to an agent that behaves. */
#define _GNU_SOURCE
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "../internal.h"
#include "fake.h"

static void agent_serves(struct fake *f)
{
	fake_welcome(f);
	fake_serve(f);
}

static void each_request(struct libra_session *s)
{
	uint64_t keys[] = {10, 20, 30, 40};
	float gradients[4 * DIM], rows[4 * DIM], sums[4 * DIM];
	struct libra_statistics statistics;
	struct libra_batch batch;
	libra_ticket t[3];

	for (int i = 0; i < 4 * DIM; i++) {
		gradients[i] = (float)i;
		sums[i] = -1;
	}
	CHECK(libra_push(s, keys, gradients, 4, NULL) == LIBRA_OK);
	CHECK(libra_push(s, keys, gradients, 4, &t[0]) == LIBRA_OK);
	CHECK(libra_wait(s, t[0], -1) == LIBRA_OK);
	CHECK(libra_wait(s, t[0], -1) == LIBRA_USAGE); /* void */
	CHECK(libra_push(s, NULL, NULL, 0, &t[0]) == LIBRA_OK && libra_wait(s, t[0], -1) == LIBRA_OK);

	CHECK(libra_pull(s, keys, rows, 4, NULL) == LIBRA_OK);
	for (int i = 0; i < 4 * DIM; i++)
		CHECK(rows[i] == (float)(keys[i / DIM] + (uint64_t)(i % DIM)));

	CHECK(libra_push_sums(s, keys, gradients, sums, 4, NULL) == LIBRA_OK);
	for (int i = 0; i < 4 * DIM; i++)
		CHECK(sums[i] == (i % DIM == 0 ? 2 * gradients[i] : -1)); /* cold ones unchanged */
	memcpy(sums, gradients, sizeof sums);
	CHECK(libra_push_sums(s, keys, sums, sums, 4, NULL) == LIBRA_OK);
	for (int i = 0; i < 4 * DIM; i++)
		CHECK(sums[i] == (i % DIM == 0 ? 2 : 1) * gradients[i]);

	CHECK(libra_prepare(s, keys, 4, &batch, NULL) == LIBRA_OK && batch.n == 4 && batch.handle == 4);
	CHECK(libra_push_batch(s, &batch, gradients, NULL) == LIBRA_OK);
	CHECK(libra_push_sums_batch(s, &batch, gradients, sums, NULL) == LIBRA_OK && sums[DIM] == 2 * DIM);
	CHECK(libra_pull_batch(s, &batch, rows, NULL) == LIBRA_OK && rows[3 * DIM + 1] == 4);
	CHECK(libra_release(s, &batch, NULL) == LIBRA_OK);
	CHECK(libra_release(s, &batch, &t[0]) == LIBRA_OK && libra_wait(s, t[0], -1) == LIBRA_OK);

	uint64_t sum_keys[3], reduced = 0;
	float *lent = libra_alloc(s, 3 * DIM * sizeof *lent);
	CHECK(libra_barrier(s, NULL) == LIBRA_OK);
	CHECK(libra_reduce(s, NULL, NULL, 0, &reduced, &t[0]) == LIBRA_OK && libra_wait(s, t[0], -1) == LIBRA_OK && reduced == 700);
	CHECK(libra_reduce(s, sum_keys, rows, 3, &reduced, NULL) == LIBRA_OK && reduced == 700 && sum_keys[2] == 1002 &&
	      rows[3 * DIM - 1] == 3 * DIM - 1);
	uint64_t all_keys[701];
	float all[701 * DIM];
	all_keys[700] = 5;
	all[700 * DIM] = 5; /* the agent wrote no more than there are */
	CHECK(libra_reduce(s, all_keys, all, 701, &reduced, NULL) == LIBRA_OK && all_keys[699] == 1699 && all_keys[700] == 5 &&
	      all[700 * DIM - 1] == 700 * DIM - 1 && all[700 * DIM] == 5);
	CHECK(libra_reduce(s, sum_keys, lent, 3, &reduced, NULL) == LIBRA_OK && sum_keys[0] == 1000 && lent[DIM] == DIM);
	CHECK(libra_reduce(s, NULL, rows, 1, &reduced, NULL) == LIBRA_USAGE && libra_reduce(s, sum_keys, NULL, 1, &reduced, NULL) == LIBRA_USAGE);
	CHECK(libra_sums(s, 5, sum_keys, rows, 3, NULL) == LIBRA_OK && sum_keys[2] == 1007 && rows[3 * DIM - 1] == 8 * DIM - 1);
	CHECK(libra_sums(s, 0, sum_keys, lent, 3, NULL) == LIBRA_OK && sum_keys[0] == 1000 && lent[DIM] == DIM);
	libra_free(s, lent);
	CHECK(libra_sums(s, 0, NULL, NULL, 0, NULL) == LIBRA_OK);
	CHECK(libra_reduce(s, NULL, NULL, 0, NULL, NULL) == LIBRA_USAGE && libra_sums(s, 0, NULL, rows, 1, NULL) == LIBRA_USAGE);
	CHECK(libra_sums(s, 0, sum_keys, NULL, 1, NULL) == LIBRA_USAGE && libra_sums(s, 0, sum_keys, rows, BUFFERS, NULL) == LIBRA_TOO_LARGE);
	CHECK(libra_statistics(s, &statistics, NULL) == LIBRA_OK);
	CHECK(statistics.pushes_accepted == 0 && statistics.job_server_rtt_ns == 13 && statistics.wakes_of_agent == 8);

	/* The program owns results when it takes them, in any order. */
	float many[3][DIM];
	for (int i = 0; i < 3; i++)
		CHECK(libra_pull(s, keys + i, many[i], 1, &t[i]) == LIBRA_OK);
	for (int i = 2; i >= 0; i--)
		CHECK(libra_wait(s, t[i], 60000) == LIBRA_OK && many[i][0] == (float)keys[i]);
	for (uint64_t i = 0; i < 3; i++) {
		CHECK((i == 0 ? libra_reduce(s, sum_keys, many[0], 1, &reduced, &t[0]) :
				libra_sums(s, i, sum_keys + i, many[i], 1, &t[i])) == LIBRA_OK);
		while (!libra_accepted(s, t[i])) /* then only results need space */
			sched_yield();
	}
	for (int i = 2; i >= 0; i--)
		CHECK(libra_wait(s, t[i], 60000) == LIBRA_OK && sum_keys[i] == 1000 + (uint64_t)i && many[i][0] == (float)(i * DIM));
	CHECK(libra_accepted(s, t[0]) == 1);
	CHECK(libra_flush(s, NULL) == LIBRA_OK);
}

static void failures(struct libra_session *s)
{
	uint64_t keys[] = {10, 20};
	float gradients[] = {1, 2, 3, 4, NAN, 6};
	libra_ticket t;

	CHECK(libra_push(s, keys, gradients, 2, &t) == LIBRA_OK);
	CHECK(libra_wait(s, t, -1) == LIBRA_NOT_FINITE);
	const struct libra_error *e = libra_last_error();
	CHECK(e->code == LIBRA_NOT_FINITE && e->index == 4 && e->key_known && e->key == 20);
	CHECK(strcmp(e->text, "push of 2 keys, job clicks: a gradient is NaN or infinite: number 4, key 20: look where it comes "
					     "from; clipping and a lower learning rate often help") == 0);

	CHECK(libra_push(s, NULL, gradients, 1, NULL) == LIBRA_USAGE && strstr(e->text, "libra_push: keys is NULL"));
	CHECK(libra_push(s, keys, NULL, 1, NULL) == LIBRA_USAGE && strstr(e->text, "gradients is NULL"));
	CHECK(libra_pull(s, keys, NULL, 1, NULL) == LIBRA_USAGE);
	CHECK(libra_prepare(s, keys, 2, NULL, NULL) == LIBRA_USAGE);
	CHECK(libra_push_batch(s, NULL, gradients, NULL) == LIBRA_USAGE);
	CHECK(libra_push_batch(s, &(struct libra_batch){0, 3}, gradients, NULL) == LIBRA_USAGE);
	CHECK(libra_push(NULL, keys, gradients, 1, NULL) == LIBRA_USAGE);
	CHECK(libra_wait(s, 12345, 0) == LIBRA_USAGE && strstr(e->text, "no request has this ticket"));
	CHECK(libra_push(s, keys, gradients, SIZE_MAX / 2, NULL) == LIBRA_TOO_LARGE);
	CHECK(libra_prepare(s, keys, SIZE_MAX / 8 + 1, &(struct libra_batch){0, 0}, NULL) == LIBRA_TOO_LARGE); /* of 0 bytes, modulo 2^64 */
	CHECK(libra_push(s, keys, gradients, BUFFERS / 20 + 1, NULL) == LIBRA_TOO_LARGE && strstr(e->text, "buffer_bytes"));
	CHECK(libra_close(NULL) == LIBRA_OK);
}

/* Arrays of libra_alloc are not copied, and reduce the space for others. */
static void buffers(struct libra_session *s)
{
	uint64_t *keys = libra_alloc(s, 8 * sizeof *keys);
	float *gradients = libra_alloc(s, 8 * DIM * sizeof *gradients), *rows = libra_alloc(s, 8 * DIM * sizeof *rows);
	uint64_t other[8] = {0};

	CHECK(keys && gradients && rows && (uintptr_t)rows % 64 == 0);
	for (uint64_t i = 0; i < 8; i++)
		keys[i] = i * 100;
	memset(gradients, 0, 8 * DIM * sizeof *gradients);
	CHECK(libra_push(s, keys, gradients, 8, NULL) == LIBRA_OK);
	CHECK(libra_pull(s, keys, rows, 8, NULL) == LIBRA_OK && rows[7 * DIM] == 700);
	CHECK(libra_pull(s, keys + 1, rows + 1, 1, NULL) == LIBRA_OK && rows[1] == 100); /* not a multiple of 8 */
	CHECK(libra_push(s, other, gradients, 8, NULL) == LIBRA_OK);

	CHECK(libra_flush(s, NULL) == LIBRA_OK);
	void *all = libra_alloc(s, BUFFERS - 64 - 128 - 128);
	CHECK(all);
	CHECK(!libra_alloc(s, 1) && libra_last_error()->code == LIBRA_TOO_LARGE);
	CHECK(libra_push(s, keys, gradients, 8, NULL) == LIBRA_OK);
	CHECK(libra_flush(s, NULL) == LIBRA_OK);
	CHECK(libra_push(s, other, gradients, 8, NULL) == LIBRA_TOO_LARGE);
	CHECK(strstr(libra_last_error()->text, "arrays of libra_alloc"));
	libra_free(s, all);
	libra_free(s, NULL);
	CHECK(libra_push(s, other, gradients, 8, NULL) == LIBRA_OK);
	void *empty = libra_alloc(s, 0); /* must not be where another array is */
	CHECK(empty && empty != (void *)keys && empty != (void *)gradients);
	libra_free(s, empty);
	libra_free(s, keys);
	libra_free(s, keys);
	CHECK(strstr(libra_last_error()->text, "is not from libra_alloc"));
}

static void *pushes_and_pulls(void *session)
{
	struct libra_session *s = session;
	uint64_t keys[50];
	float gradients[50 * DIM] = {0}, rows[50 * DIM];
	libra_ticket t;

	for (uint64_t i = 0; i < 200; i++) {
		for (uint64_t k = 0; k < 50; k++)
			keys[k] = i * 50 + k;
		CHECK(libra_push(s, keys, gradients, i % 50, i % 3 ? NULL : &t) == LIBRA_OK);
		if (i % 3 == 0)
			CHECK(libra_wait(s, t, -1) == LIBRA_OK);
		CHECK(libra_pull(s, keys, rows, 50, &t) == LIBRA_OK);
		while (libra_wait(s, t, i % 2 ? -1 : 1) == LIBRA_TIMEOUT)
			;
		for (uint64_t k = 0; k < 50 * DIM; k++)
			CHECK(rows[k] == (float)(keys[k / DIM] + k % DIM));
	}
	return NULL;
}

static void threads(struct libra_session *s)
{
	pthread_t t[4];

	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(t + i, NULL, pushes_and_pulls, s) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(libra_flush(s, NULL) == LIBRA_OK);
}

/* An event loop, alone and alongside threads that wait by themselves. */
static void polls(struct libra_session *s)
{
	uint64_t key = 5;
	float row[DIM];
	libra_ticket t;
	pthread_t other;
	struct pollfd p = {.fd = libra_fd(s), .events = POLLIN};

	CHECK(p.fd >= 0 && libra_fd(s) == p.fd);
	for (int i = 0; i < 400; i++) {
		if (i == 200)
			CHECK(pthread_create(&other, NULL, pushes_and_pulls, s) == 0);
		memset(row, 0, sizeof row);
		CHECK(libra_pull(s, &key, row, 1, &t) == LIBRA_OK);
		for (;;) {
			int code = libra_wait(s, t, 0);
			if (code == LIBRA_OK)
				break;
			CHECK(code == LIBRA_TIMEOUT && poll(&p, 1, 60000) == 1 && libra_process(s) == LIBRA_OK);
		}
		CHECK(row[0] == 5);
	}
	CHECK(pthread_join(other, NULL) == 0);
}

/* Places, slots and tickets of requests: survivors of mutations. */
static void slots(struct libra_session *s)
{
	static const uint64_t keys[3] = {1, 2, 3};
	float gradients[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, sums[9] = {0};
	uint64_t sum_keys[3] = {0}, other[512], rows = 0;
	libra_ticket t;

	/* the place of the sums after an odd number of gradients */
	CHECK(libra_push_sums(s, keys, gradients, sums, 3, NULL) == LIBRA_OK && sums[3] == 8);
	/* keys of sums that wait in the buffers for libra_wait, where the sums themselves are in lent memory */
	float *lent = libra_alloc(s, 3 * DIM * 4);
	CHECK(lent && libra_reduce(s, sum_keys, lent, 3, &rows, &t) == LIBRA_OK);
	memset(other, 0xff, sizeof other);
	CHECK(libra_flush(s, NULL) == LIBRA_OK); /* the reduce is answered */
	static float zeros[512 * DIM];
	CHECK(libra_push(s, other, zeros, 512, NULL) == LIBRA_OK && libra_flush(s, NULL) == LIBRA_OK);
	CHECK(libra_wait(s, t, -1) == LIBRA_OK && sum_keys[0] == 1000 && sum_keys[2] == 1002);
	libra_free(s, lent);
	/* requests without a ticket leave nothing behind */
	for (int i = 0; i < 40 * ENTRIES; i++)
		CHECK(libra_push(s, keys, gradients, 3, NULL) == LIBRA_OK);
	CHECK(libra_flush(s, NULL) == LIBRA_OK && s->requests_room <= 4 * ENTRIES);
	/* a ticket is never 0 */
	for (uint32_t i = 0; i < s->requests_room; i++)
		s->requests[i].generation = UINT32_MAX;
	CHECK(libra_flush(s, &t) == LIBRA_OK && t >> 32 != 0 && libra_wait(s, t, -1) == LIBRA_OK);
}

struct same {
	struct libra_session *s;
	libra_ticket ticket;
	pthread_barrier_t begins;
	int rounds, codes[2];
};

static void *waits_for_same(void *argument)
{
	struct same *w = argument;

	for (int i = 0; i < w->rounds; i++) {
		pthread_barrier_wait(&w->begins);
		w->codes[1] = libra_wait(w->s, w->ticket, -1);
		pthread_barrier_wait(&w->begins);
	}
	return NULL;
}

/* If two threads wait for the same ticket, one gets the result. */
static void same_ticket(struct libra_session *s)
{
	static uint64_t keys[1500];
	static float rows[1500 * DIM];
	struct same w = {.s = s, .rounds = 300};
	pthread_t other;

	CHECK(pthread_barrier_init(&w.begins, NULL, 2) == 0 && pthread_create(&other, NULL, waits_for_same, &w) == 0);
	for (int i = 0; i < w.rounds; i++) {
		CHECK(libra_pull(s, keys, rows, 1500, &w.ticket) == LIBRA_OK);
		pthread_barrier_wait(&w.begins);
		w.codes[0] = libra_wait(s, w.ticket, -1);
		pthread_barrier_wait(&w.begins);
		CHECK((w.codes[0] == LIBRA_OK && w.codes[1] == LIBRA_USAGE) || (w.codes[0] == LIBRA_USAGE && w.codes[1] == LIBRA_OK));
	}
	CHECK(pthread_join(other, NULL) == 0 && pthread_barrier_destroy(&w.begins) == 0);
}

/* harvests takes harvests as their owner, by all forms of the call. */
static void harvests(void)
{
	struct fake f;
	struct libra_session *s;
	uint64_t keys[701], rows = 0;
	float sums[701 * DIM];
	libra_ticket t[2];

	fake_start(&f, agent_serves, NULL);
	struct libra_options o = options_for(&f);
	o.owner = 1;
	CHECK(libra_open(&s, &o) == LIBRA_OK && f.hello.owner == 1);
	keys[700] = 5;
	CHECK(libra_harvest(s, 0, keys, sums, 701, &rows, NULL) == LIBRA_OK && rows == 700 && keys[0] == 1000 && keys[699] == 1699 &&
	      keys[700] == 5 && sums[700 * DIM - 1] == 700 * DIM - 1);
	CHECK(libra_harvest(s, 7, keys, sums, 2, &rows, NULL) == LIBRA_OK && rows == 700 && keys[0] == 1001);
	float *lent = libra_alloc(s, 2 * DIM * sizeof *lent);
	CHECK(lent && libra_harvest(s, 1, keys, lent, 2, &rows, &t[0]) == LIBRA_OK &&
	      libra_harvest(s, 0, NULL, NULL, 0, &rows, &t[1]) == LIBRA_OK);
	CHECK(libra_wait(s, t[1], -1) == LIBRA_OK && rows == 700 && libra_wait(s, t[0], -1) == LIBRA_OK && lent[DIM] == DIM);
	libra_free(s, lent);
	CHECK(libra_sums(s, 5, keys, sums, 3, NULL) == LIBRA_OK && keys[2] == 1007);
	CHECK(libra_harvest(s, 0, NULL, sums, 1, &rows, NULL) == LIBRA_USAGE && libra_harvest(s, 0, keys, NULL, 1, &rows, NULL) == LIBRA_USAGE);
	CHECK(libra_harvest(s, 0, NULL, NULL, 0, NULL, NULL) == LIBRA_USAGE);
	CHECK(libra_harvest(s, 0, keys, sums, BUFFERS, &rows, NULL) == LIBRA_TOO_LARGE);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);

	fake_start(&f, agent_serves, NULL);
	s = open_fake(&f);
	CHECK(libra_harvest(s, 1, keys, sums, 1, &rows, NULL) == LIBRA_NOT_OWNER && strstr(libra_last_error()->text, "options.owner"));
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
	CHECK(f.answered == 1); /* the flush of libra_close */
}

void test_requests(void)
{
	struct fake f;
	struct libra_session *s;

	CHECK(strcmp(libra_version(), LIBRA_VERSION) == 0);
	CHECK(strcmp(libra_code_name(LIBRA_NO_JOB), "NO_JOB") == 0 && strcmp(libra_code_name(12345), "UNKNOWN") == 0);
	CHECK(strstr(libra_code_text(LIBRA_FORKED), "after fork") && libra_code_text(12345));
	harvests();
	fake_start(&f, agent_serves, NULL);
	s = open_fake(&f);
	each_request(s);
	failures(s);
	buffers(s);
	threads(s);
	polls(s);
	slots(s);
	same_ticket(s);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);

	fake_start(&f, agent_serves, NULL);
	struct libra_options o = options_for(&f);
	o.spin_us = 3600000000U;
	CHECK(libra_open(&s, &o) == LIBRA_OK);
	threads(s);
	CHECK(s->look_credit > 0 && s->floats == 0); /* it polled, and all polls were successful */
	pthread_mutex_lock(&s->lock);
	s->look_ns = 1; /* any poll takes longer than the limit of its count */
	s->look_credit = 0;
	ring_sleep(s, now_ns(CLOCK_MONOTONIC) + 1000000);
	CHECK(s->look_credit == -LOOK_LOSS);
	pthread_mutex_unlock(&s->lock);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}
