/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-reduces of processes that have to agree what they reduce.
 *
 * The first rows of the push, the seal, make the sums tell whether all processes agree: a 1, the digits of a hash of the kind, and
 * their squares. If both sums of a digit are those of processes that all have it, all have it: their mean is the digit, and their
 * variance is zero. Sums of a job are less than 2^17, so digits of 4 bits leave room for 582 processes.
 * The seal has the least keys, because keys far apart cost more: those of the caller are shifted.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

#define DIGITS 16
#define SEAL (1 + 2 * DIGITS) /* gradients of a seal, in as many rows as they need */

/* The arguments of libra_all_reduce that its requests need. */
struct reduction {
	const uint64_t *keys; /* of the rows of this request */
	const float *gradients;
	uint64_t n;
	uint64_t rows; /* of the seal, before them, or 0 */
	uint64_t shift;
	uint64_t seal;
	uint32_t dim;
};

/* hash is FNV-1a, and the end of SplitMix64, which spreads what differs. */
static uint64_t hash(const uint8_t *bytes, size_t n)
{
	uint64_t h = 0xcbf29ce484222325;

	for (size_t i = 0; i < n; i++)
		h = (h ^ bytes[i]) * 0x100000001b3;
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9;
	h = (h ^ h >> 27) * 0x94d049bb133111eb;
	return h ^ h >> 31;
}

/* gradient returns number i of a seal. */
static float gradient(uint64_t seal, uint64_t i)
{
	if (i == 0 || i >= SEAL)
		return i == 0;
	unsigned digit = seal >> (i - 1) % DIGITS * 4 & 15;
	return (float)(i <= DIGITS ? digit : digit * digit);
}

/* seal_rows returns the number of rows of a seal. */
uint64_t seal_rows(const struct libra_session *s)
{
	return (SEAL + s->info.dim - 1) / s->info.dim;
}

static void fill(const struct want *w, uint64_t *keys, float *gradients)
{
	const struct reduction *r = w->of;

	for (uint64_t i = 0; i < r->rows; i++)
		*keys++ = i;
	for (uint64_t i = 0; i < r->rows * r->dim; i++)
		*gradients++ = gradient(r->seal, i);
	for (uint64_t i = 0; i < r->n; i++)
		keys[i] = r->keys[i] + r->shift;
	if (r->n)
		memcpy(gradients, r->gradients, r->n * r->dim * 4);
}

int libra_all_reduce(struct libra_session *s, const struct libra_reduction *mine, struct libra_reduced *all, libra_ticket *ticket)
{
	int code = session_check(s, __func__);

	if (code)
		return code;
	if (!mine || !all || !ticket)
		return error_set(LIBRA_USAGE, "%s: reduction, result or ticket is NULL", __func__);
	if ((mine->n && (!mine->keys || !mine->gradients)) || (mine->kind_bytes && !mine->kind) || (mine->room && (!mine->sum_keys || !mine->sums)))
		return error_set(LIBRA_USAGE, "%s: an array of the reduction is NULL", __func__);

	const uint64_t shift = seal_rows(s), row = 8 + 4 * (uint64_t)s->info.dim;
	const uint64_t most = s->info.buffer_bytes / 2 / row; /* rows of a request: the buffers hold those there and back */
	if (most <= shift)
		return error_set(LIBRA_TOO_LARGE, "%s: rows of %u floats do not fit the session's buffers of %llu bytes: ask for more "
				 "buffer_bytes", __func__, s->info.dim, (unsigned long long)s->info.buffer_bytes);
	for (uint64_t i = 0; i < mine->n; i++)
		if (mine->keys[i] > UINT64_MAX - shift)
			return error_set(LIBRA_USAGE, "%s: key %llu is above 2^64 - %llu", __func__, (unsigned long long)mine->keys[i],
					 (unsigned long long)shift + 1);

	struct reduction r = {.shift = shift, .seal = hash(mine->kind, mine->kind_bytes), .dim = s->info.dim};
	struct want w = {.what = __func__, .op = PUSH, .asynchronous = true, .reduction = true, .fill = fill, .of = &r};
	pthread_mutex_lock(&s->lock);
	uint64_t done = s->pushed; /* by a call that found no room for the rest */
	if (!done)
		s->refused.state = VACANT;
	pthread_mutex_unlock(&s->lock);
	while (done < shift + mine->n) {
		uint64_t begin = done ? done - shift : 0;
		r.rows = done ? 0 : shift;
		r.n = mine->n - begin < most - r.rows ? mine->n - begin : most - r.rows;
		r.keys = mine->keys + begin;
		r.gradients = mine->gradients + begin * r.dim;
		w.n = r.rows + r.n;
		w.first = (begin - r.rows) * r.dim; /* those of the seal are before it */
		code = request(s, &w, NULL);
		if (code)
			return code;
		done += r.rows + r.n;
		pthread_mutex_lock(&s->lock);
		s->pushed = done;
		pthread_mutex_unlock(&s->lock);
	}
	uint64_t no_key;
	float no_sum;
	w = (struct want){.what = __func__, .op = REDUCE, .reduction = true, .seal = r.seal, .result = mine->room ? mine->sums : &no_sum,
			  .sum_keys = mine->room ? mine->sum_keys : &no_key,
			  .n = shift + (mine->room < most - shift ? mine->room : most - shift), .rows = &all->rows};
	code = request(s, &w, ticket);
	if (code)
		return code;
	pthread_mutex_lock(&s->lock);
	s->pushed = 0;
	pthread_mutex_unlock(&s->lock);
	return LIBRA_OK;
}

/*
 * seal_check reads the seal of the sums that the agent has written. *rows is the number of its rows that are there: those of
 * zeros are left out.
 */
int seal_check(struct libra_session *s, const struct request *r, uint64_t *rows)
{
	const uint64_t *keys = (const uint64_t *)(s->area + r->keys_at), shift = seal_rows(s);
	const float *sums = (const float *)(s->area + r->result_at);
	uint64_t n = r->answer.detail < r->n ? r->answer.detail : r->n, at = 0, dim = s->info.dim;
	float processes = n && keys[0] == 0 ? sums[0] : 0;

	for (uint64_t row = 0; row < shift; row++) {
		bool zero = true, equal = at < n && keys[at] == row;
		for (uint64_t i = 0; i < dim; i++) {
			float want = processes * gradient(r->seal, row * dim + i);
			zero = zero && want == 0;
			equal = equal && sums[at * dim + i] == want;
		}
		if (!zero && !equal)
			return LIBRA_MISMATCH;
		at += !zero;
	}
	if (processes < 1 || (at < n && keys[at] < shift))
		return LIBRA_MISMATCH;
	r->rows[1] = (uint64_t)processes;
	*rows = at;
	return LIBRA_OK;
}
