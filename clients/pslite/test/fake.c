/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"
#include "host.h"

#define MOST 4096 /* requests of a session */
#define MAX_DIM 4

enum what { FREE, PUSH, HARVEST };

struct request {
	enum what what;
	uint64_t keys[FAKE_ROWS];
	float values[FAKE_ROWS * MAX_DIM];
	size_t n;
	bool added, frozen, done, now;
	int code; /* when done */
	uint64_t *to_keys, *rows;
	float *to_sums;
};

struct job {
	double bank[FAKE_ROWS][MAX_DIM];
	unsigned pushes;
};

struct libra_session {
	struct libra_info info;
	int job, fd, ended;
	bool owner;
	unsigned looks; /* calls of libra_process */
	struct request *requests[MOST];
	size_t n;
	void *arrays[8]; /* of libra_alloc */
	size_t n_arrays;
	struct libra_session *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct job jobs[FAKE_JOBS];
static struct libra_session *sessions;
static bool adds, acknowledges, harvests;
static unsigned dim;
static int refusal, refusals;
static _Thread_local struct libra_error error;

static int failed(int code)
{
	error.code = code;
	snprintf(error.text, sizeof error.text, "fake code %d", code);
	return code;
}

const struct libra_error *libra_last_error(void)
{
	return &error;
}

void fake_reset(unsigned d)
{
	CHECK(!sessions);
	memset(jobs, 0, sizeof jobs);
	dim = d;
	adds = acknowledges = harvests = true;
	refusals = 0;
}

static void add(struct job *j, struct request *r)
{
	for (size_t i = 0; !r->added && i < r->n; i++)
		for (unsigned k = 0; k < dim; k++)
			j->bank[r->keys[i] / 3 - 1][k] += (double)r->values[i * dim + k];
	r->added = true;
}

static void freeze(struct job *j, struct request *r)
{
	r->frozen = true;
	for (size_t i = 0; i < FAKE_ROWS; i++) {
		bool any = false;
		for (unsigned k = 0; k < dim; k++)
			any |= j->bank[i][k] != 0;
		if (!any)
			continue;
		r->to_keys[*r->rows] = 3 * (i + 1);
		for (unsigned k = 0; k < dim; k++) {
			r->to_sums[*r->rows * dim + k] = (float)j->bank[i][k];
			j->bank[i][k] = 0;
		}
		++*r->rows;
	}
}

static void complete(struct libra_session *s, struct request *r)
{
	r->done = true;
	CHECK(write(s->fd, &(uint64_t){1}, 8) == 8);
}

/*
 * step does what the aggregator does by itself. A harvest that is not at once waits until there is
 * another.
 */
static void step(int job)
{
	struct job *j = jobs + job;
	bool now = false;

	for (struct libra_session *s = sessions; s; s = s->next)
		for (size_t i = 0; s->job == job && i < s->n; i++) {
			struct request *r = s->requests[i];
			if (r->what == PUSH && adds)
				add(j, r);
			if (r->what == PUSH && acknowledges && r->added && !r->done)
				complete(s, r);
			now |= r->what == HARVEST && r->now && !r->done;
		}
	for (struct libra_session *s = sessions; s && harvests && now; s = s->next)
		for (size_t i = 0; s->job == job && i < s->n; i++) {
			struct request *r = s->requests[i];
			if (r->what != HARVEST || r->done)
				continue;
			freeze(j, r);
			complete(s, r);
		}
}

static struct request *submit(struct libra_session *s, enum what what, libra_ticket *ticket)
{
	struct request *r = calloc(1, sizeof *r);

	CHECK(r && s->n < MOST);
	r->what = what;
	s->requests[s->n++] = r;
	*ticket = s->n;
	return r;
}

int libra_open(struct libra_session **session, const struct libra_options *o)
{
	struct libra_session *s;

	pthread_mutex_lock(&lock);
	bool refuse = refusals > 0;
	if (refuse)
		refusals--;
	pthread_mutex_unlock(&lock);
	*session = NULL;
	if (refuse)
		return failed(refusal);
	s = calloc(1, sizeof *s);
	CHECK(s && strncmp(o->job, "hot/", 4) == 0 && o->dim == dim && o->hot_set);
	s->job = atoi(o->job + 4);
	s->owner = o->owner;
	s->info = (struct libra_info){.dim = dim, .exponent = -30, .hot_rows = FAKE_ROWS, .buffer_bytes = o->buffer_bytes};
	s->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_lock(&lock);
	s->next = sessions;
	sessions = s;
	pthread_mutex_unlock(&lock);
	*session = s;
	return LIBRA_OK;
}

const struct libra_info *libra_info(const struct libra_session *s)
{
	return &s->info;
}

int libra_fd(struct libra_session *s)
{
	return s->fd;
}

int libra_process(struct libra_session *s)
{
	uint64_t count;

	pthread_mutex_lock(&lock);
	CHECK(read(s->fd, &count, 8) == 8 || true);
	s->looks++;
	int code = s->ended;
	pthread_mutex_unlock(&lock);
	return code ? failed(code) : LIBRA_OK;
}

int libra_push(struct libra_session *s, const uint64_t *keys, const float *values, size_t n, libra_ticket *ticket)
{
	pthread_mutex_lock(&lock);
	int code = s->ended;
	CHECK(n <= FAKE_ROWS);
	if (!code) {
		struct request *r = submit(s, PUSH, ticket);
		memcpy(r->keys, keys, n * 8);
		memcpy(r->values, values, n * dim * 4);
		r->n = n;
		jobs[s->job].pushes++;
		step(s->job);
	}
	pthread_mutex_unlock(&lock);
	return code ? failed(code) : LIBRA_OK;
}

int libra_harvest(struct libra_session *s, int now, uint64_t *keys, float *sums, size_t n, uint64_t *rows,
		  libra_ticket *ticket)
{
	pthread_mutex_lock(&lock);
	int code = s->ended;
	CHECK(n == FAKE_ROWS && s->owner);
	if (!code) {
		struct request *r = submit(s, HARVEST, ticket);
		r->now = now;
		r->to_keys = keys;
		r->to_sums = sums;
		r->rows = rows;
		*rows = 0;
		step(s->job);
	}
	pthread_mutex_unlock(&lock);
	return code ? failed(code) : LIBRA_OK;
}

int libra_wait(struct libra_session *s, libra_ticket ticket, int timeout_ms)
{
	CHECK(timeout_ms == 0);
	pthread_mutex_lock(&lock);
	struct request *r = s->requests[ticket - 1];
	int code = r->done ? r->code : s->ended ? s->ended : LIBRA_TIMEOUT;
	if (code != LIBRA_TIMEOUT)
		r->what = FREE;
	pthread_mutex_unlock(&lock);
	return code ? failed(code) : LIBRA_OK;
}

void *libra_alloc(struct libra_session *s, size_t bytes)
{
	CHECK(s->n_arrays < 8);
	return s->arrays[s->n_arrays++] = calloc(1, bytes);
}

int libra_shutdown(struct libra_session *s)
{
	(void)s;
	return LIBRA_OK;
}

int libra_close(struct libra_session *s)
{
	if (!s)
		return LIBRA_OK;
	pthread_mutex_lock(&lock);
	struct libra_session **at = &sessions;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	pthread_mutex_unlock(&lock);
	close(s->fd);
	for (size_t i = 0; i < s->n; i++)
		free(s->requests[i]);
	for (size_t i = 0; i < s->n_arrays; i++)
		free(s->arrays[i]);
	free(s);
	return LIBRA_OK;
}

void fake_automatic(bool a, bool b, bool c)
{
	pthread_mutex_lock(&lock);
	adds = a;
	acknowledges = b;
	harvests = c;
	pthread_mutex_unlock(&lock);
}

unsigned fake_pushes(int job)
{
	pthread_mutex_lock(&lock);
	unsigned n = jobs[job].pushes;
	pthread_mutex_unlock(&lock);
	return n;
}

unsigned fake_harvests(int job, bool now)
{
	unsigned n = 0;

	pthread_mutex_lock(&lock);
	for (struct libra_session *s = sessions; s; s = s->next)
		for (size_t i = 0; s->job == job && i < s->n; i++)
			n += s->requests[i]->what == HARVEST && !s->requests[i]->done && s->requests[i]->now == now;
	pthread_mutex_unlock(&lock);
	return n;
}

void fake_add(int job)
{
	pthread_mutex_lock(&lock);
	for (struct libra_session *s = sessions; s; s = s->next)
		for (size_t i = 0; s->job == job && i < s->n; i++)
			if (s->requests[i]->what == PUSH)
				add(jobs + job, s->requests[i]);
	pthread_mutex_unlock(&lock);
}

/* oldest finds the oldest request that is not done. */
static struct request *oldest(int job, enum what what, bool frozen, struct libra_session **of)
{
	for (struct libra_session *s = sessions; s; s = s->next)
		for (size_t i = 0; s->job == job && i < s->n; i++) {
			struct request *r = s->requests[i];
			if (r->what == what && !r->done && r->frozen == frozen) {
				*of = s;
				return r;
			}
		}
	CHECK(!"there is a request");
	return NULL;
}

void fake_fail(int job, int code)
{
	struct libra_session *s;

	pthread_mutex_lock(&lock);
	struct request *r = oldest(job, PUSH, false, &s);
	r->code = code;
	complete(s, r);
	pthread_mutex_unlock(&lock);
}

void fake_acknowledge(int job)
{
	struct libra_session *s;

	pthread_mutex_lock(&lock);
	struct request *r = oldest(job, PUSH, false, &s);
	add(jobs + job, r);
	complete(s, r);
	pthread_mutex_unlock(&lock);
}

void fake_freeze(int job)
{
	struct libra_session *s;

	pthread_mutex_lock(&lock);
	freeze(jobs + job, oldest(job, HARVEST, false, &s));
	pthread_mutex_unlock(&lock);
}

void fake_answer(int job)
{
	struct libra_session *s;

	pthread_mutex_lock(&lock);
	struct request *r = oldest(job, HARVEST, true, &s);
	complete(s, r);
	pthread_mutex_unlock(&lock);
}

void fake_end(int job, int code)
{
	pthread_mutex_lock(&lock);
	for (struct libra_session *s = sessions; s; s = s->next)
		if (s->job == job) {
			s->ended = code;
			CHECK(write(s->fd, &(uint64_t){1}, 8) == 8);
		}
	pthread_mutex_unlock(&lock);
}

void fake_refuse(int code, int times)
{
	pthread_mutex_lock(&lock);
	refusal = code;
	refusals = times;
	pthread_mutex_unlock(&lock);
}

void fake_turn(int job, bool owner)
{
	for (int turn = 0; turn < 2; turn++) { /* the first may have begun before */
		pthread_mutex_lock(&lock);
		struct libra_session *s = sessions;
		while (s && (s->job != job || s->owner != owner))
			s = s->next;
		CHECK(s);
		unsigned before = s->looks;
		CHECK(write(s->fd, &(uint64_t){1}, 8) == 8);
		while (s->looks == before) {
			pthread_mutex_unlock(&lock);
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
			pthread_mutex_lock(&lock);
		}
		pthread_mutex_unlock(&lock);
	}
}
