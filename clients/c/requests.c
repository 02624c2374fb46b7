/* SPDX-License-Identifier: Apache-2.0 */
/* One function per request. */
#include <stdio.h>
#include <string.h>

#include "internal.h"

/* An array of the caller, and its place for the agent. */
struct part {
	const void *from;
	uint64_t bytes;
	uint64_t at; /* in the area, or in the request's extent */
	bool copied;
};

/* place checks whether an array is in the area; if not, it needs space in the request's extent. */
static void place(const struct libra_session *s, struct part *p, uint64_t *room)
{
	uint64_t at = (uint64_t)((uintptr_t)p->from - (uintptr_t)s->area);

	p->copied = p->bytes && (at > s->info.buffer_bytes || s->info.buffer_bytes - at < p->bytes || at % 8);
	if (!p->bytes)
		p->at = 0;
	else if (!p->copied)
		p->at = at;
	else {
		p->at = *room;
		*room += (p->bytes + 7) & ~(uint64_t)7;
	}
}

struct want {
	const char *what; /* name of the function */
	enum op op;
	bool asynchronous; /* also without a ticket */
	const struct libra_batch *batch;
	const uint64_t *keys;
	const float *gradients;
	void *result;
	uint64_t n;
	uint64_t result_bytes; /* if it differs from the rows' size */
	uint64_t *sum_keys;    /* array for keys */
	uint64_t *rows;        /* variable for the number of rows of a reduce or harvest */
	uint64_t first;        /* first row of the sums; of a harvest, NOW or 0 */
};

/* has_number returns whether an operation returns the number of its rows. */
static bool has_number(enum op op)
{
	return op == REDUCE || op == HARVEST;
}

static bool has_rows(enum op op)
{
	return op == PUSH || op == PUSH_SUMS || op == PULL || op == SUMS || has_number(op);
}

static int check(struct libra_session *s, const struct want *w, uint64_t *row_bytes)
{
	bool rows = has_rows(w->op);
	int code = session_check(s, w->what);

	if (code)
		return code;
	if (w->n && !w->batch && !w->keys && !w->sum_keys && (rows || w->op == PREPARE))
		return error_set(LIBRA_USAGE, "%s: keys is NULL", w->what);
	if (w->n && (w->op == PUSH || w->op == PUSH_SUMS) && !w->gradients)
		return error_set(LIBRA_USAGE, "%s: gradients is NULL", w->what);
	if ((has_number(w->op) && !w->rows) || ((w->op == PREPARE || w->op == STATS ||
	     (w->n && (w->op == PULL || w->op == PUSH_SUMS || w->op == SUMS || has_number(w->op)))) && !w->result))
		return error_set(LIBRA_USAGE, "%s: the place for the result is NULL", w->what);
	if (w->n > UINT32_MAX || (rows && __builtin_mul_overflow(w->n * 4, (uint64_t)s->info.dim, row_bytes)) ||
	    *row_bytes > s->info.buffer_bytes)
		return error_set(LIBRA_TOO_LARGE, "%s: %llu rows of %u floats do not fit the session's buffers of %llu "
				 "bytes: ask for more buffer_bytes, or send fewer at a time", w->what,
				 (unsigned long long)w->n, s->info.dim, (unsigned long long)s->info.buffer_bytes);
	return LIBRA_OK;
}

static int request(struct libra_session *s, const struct want *w, libra_ticket *ticket)
{
	uint64_t row_bytes = 0, room = 0;
	uint32_t index;
	int code = check(s, w, &row_bytes);

	if (code)
		return code;

	/* Sums of cold rows must not change, so the array's contents are sent along and come
	 * back. */
	bool in_place = w->op == PUSH_SUMS && w->result == (const void *)w->gradients;
	struct part keys = {.from = w->keys, .bytes = w->keys ? w->n * 8 : 0};
	struct part gradients = {.from = w->gradients, .bytes = w->gradients ? row_bytes : 0};
	struct part result = {.from = w->result,
			      .bytes = w->op == PREPARE ? 0 : row_bytes ? row_bytes : w->result_bytes};
	if (w->sum_keys)
		keys = (struct part){.from = w->sum_keys, .bytes = w->n * 8};
	if (!w->result || in_place)
		result.bytes = 0;
	place(s, &keys, &room);
	place(s, &gradients, &room);
	place(s, &result, &room);

	pthread_mutex_lock(&s->lock);
	code = ring_reserve(s, w->what, room, &index);
	if (code) {
		pthread_mutex_unlock(&s->lock);
		return code;
	}
	uint64_t extent = s->requests[index].extent.offset;
	pthread_mutex_unlock(&s->lock);

	struct part *parts[] = {&keys, &gradients, &result};
	for (size_t i = 0; i < 3; i++) {
		if (!parts[i]->copied)
			continue;
		parts[i]->at += extent;
		if ((parts[i] != &result || w->op == PUSH_SUMS) && !(parts[i] == &keys && w->sum_keys))
			memcpy(s->area + parts[i]->at, parts[i]->from, parts[i]->bytes);
	}
	if (in_place)
		result = gradients;

	struct entry e = {
		.dim = has_rows(w->op) ? s->info.dim : 0,
		.batch = w->batch ? w->batch->handle : 0,
		.keys = keys.at,
		.values = w->op == PULL || w->op == STATS || w->op == SUMS || has_number(w->op) ? result.at : gradients.at,
		.sums = w->op == PUSH_SUMS ? result.at : 0,
		.n = w->op == RELEASE ? 0 : (uint32_t)w->n,
		.step = w->first,
	};

	pthread_mutex_lock(&s->lock);
	struct request *r = s->requests + index;
	r->op = (uint8_t)w->op;
	r->n = w->n;
	r->kept = ticket || !w->asynchronous;
	r->rows = w->rows;
	r->result = w->op == PREPARE || result.copied ? w->result : NULL;
	r->keys = w->sum_keys && keys.copied ? w->sum_keys : NULL;
	r->keys_at = keys.at;
	r->result_at = result.at;
	r->result_bytes = result.bytes;
	r->hold = result.copied || r->keys;
	libra_ticket t = (uint64_t)r->generation << 32 | index;
	code = ring_submit(s, w->what, index, &e);
	pthread_mutex_unlock(&s->lock);
	if (code)
		return code;
	if (ticket)
		*ticket = t;
	else if (!w->asynchronous)
		return libra_wait(s, t, -1);
	return LIBRA_OK;
}

int libra_push(struct libra_session *s, const uint64_t *keys, const float *gradients, size_t n, libra_ticket *ticket)
{
	return request(s, &(struct want){.what = __func__, .op = PUSH, .asynchronous = true, .keys = keys,
					 .gradients = gradients, .n = n}, ticket);
}

int libra_push_sums(struct libra_session *s, const uint64_t *keys, const float *gradients, float *sums, size_t n,
		    libra_ticket *ticket)
{
	return request(s, &(struct want){.what = __func__, .op = PUSH_SUMS, .keys = keys, .gradients = gradients,
					 .result = sums, .n = n}, ticket);
}

int libra_pull(struct libra_session *s, const uint64_t *keys, float *rows, size_t n, libra_ticket *ticket)
{
	return request(s, &(struct want){.what = __func__, .op = PULL, .keys = keys, .result = rows, .n = n}, ticket);
}

int libra_prepare(struct libra_session *s, const uint64_t *keys, size_t n, struct libra_batch *batch,
		  libra_ticket *ticket)
{
	return request(s, &(struct want){.what = __func__, .op = PREPARE, .keys = keys, .result = batch, .n = n}, ticket);
}

/* with_batch makes a request that names a prepared batch. */
static int with_batch(struct libra_session *s, struct want w, const struct libra_batch *batch, libra_ticket *ticket)
{
	if (!batch || !batch->handle)
		return error_set(LIBRA_USAGE, "%s: the batch is NULL, or libra_prepare has not made it", w.what);
	w.batch = batch;
	w.n = batch->n;
	return request(s, &w, ticket);
}

int libra_release(struct libra_session *s, const struct libra_batch *batch, libra_ticket *ticket)
{
	return with_batch(s, (struct want){.what = __func__, .op = RELEASE, .asynchronous = true}, batch, ticket);
}

int libra_push_batch(struct libra_session *s, const struct libra_batch *batch, const float *gradients,
		     libra_ticket *ticket)
{
	return with_batch(s, (struct want){.what = __func__, .op = PUSH, .asynchronous = true, .gradients = gradients},
			  batch, ticket);
}

int libra_push_sums_batch(struct libra_session *s, const struct libra_batch *batch, const float *gradients,
			  float *sums, libra_ticket *ticket)
{
	return with_batch(s, (struct want){.what = __func__, .op = PUSH_SUMS, .gradients = gradients, .result = sums},
			  batch, ticket);
}

int libra_pull_batch(struct libra_session *s, const struct libra_batch *batch, float *rows, libra_ticket *ticket)
{
	return with_batch(s, (struct want){.what = __func__, .op = PULL, .result = rows}, batch, ticket);
}

int libra_flush(struct libra_session *s, libra_ticket *ticket)
{
	return request(s, &(struct want){.what = __func__, .op = FLUSH}, ticket);
}

int libra_barrier(struct libra_session *s, libra_ticket *ticket)
{
	return request(s, &(struct want){.what = __func__, .op = BARRIER}, ticket);
}

int libra_reduce(struct libra_session *s, uint64_t *keys, float *sums, size_t n, uint64_t *rows, libra_ticket *ticket)
{
	if (n && !keys)
		return error_set(LIBRA_USAGE, "%s: keys is NULL", __func__);
	return request(s, &(struct want){.what = __func__, .op = REDUCE, .result = n ? sums : NULL, .n = n,
					 .sum_keys = n ? keys : NULL, .rows = rows}, ticket);
}

int libra_sums(struct libra_session *s, uint64_t first, uint64_t *keys, float *sums, size_t n, libra_ticket *ticket)
{
	if (n && !keys)
		return error_set(LIBRA_USAGE, "%s: keys is NULL", __func__);
	return request(s, &(struct want){.what = __func__, .op = SUMS, .result = sums, .n = n, .sum_keys = keys,
					 .first = first}, ticket);
}

int libra_harvest(struct libra_session *s, int now, uint64_t *keys, float *sums, size_t n, uint64_t *rows,
		  libra_ticket *ticket)
{
	if (n && !keys)
		return error_set(LIBRA_USAGE, "%s: keys is NULL", __func__);
	if (!session_check(s, __func__) && !s->owner)
		return error_set(LIBRA_NOT_OWNER, "%s: %s", __func__, libra_code_text(LIBRA_NOT_OWNER));
	return request(s, &(struct want){.what = __func__, .op = HARVEST, .result = n ? sums : NULL, .n = n,
					 .sum_keys = n ? keys : NULL, .rows = rows, .first = now ? NOW : 0}, ticket);
}

int libra_statistics(struct libra_session *s, struct libra_statistics *statistics, libra_ticket *ticket)
{
	return request(s, &(struct want){.what = __func__, .op = STATS, .result = statistics,
					 .result_bytes = sizeof *statistics}, ticket);
}
