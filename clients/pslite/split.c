/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hot keys in the keys of a message. Both ascend: a message that is much longer than the hot set is
 * merged with it; the keys of others are looked up.
 */
#include <stdlib.h>

#include "internal.h"

/* split_ascend returns whether keys ascend, and none is there twice. */
bool split_ascend(const uint64_t *keys, size_t n)
{
	for (size_t i = 1; i < n; i++)
		if (keys[i - 1] >= keys[i])
			return false;
	return true;
}

/*
 * skip returns the first place behind `at`, whose key is below x, that is not. It tries places at
 * growing distances.
 */
static size_t skip(const uint64_t *keys, size_t at, size_t n, uint64_t x)
{
	size_t step = 1;

	while (n - at > step && keys[at + step] < x) {
		at += step;
		step *= 2;
	}
	size_t high = n - at > step ? at + step : n;
	at++;
	while (at < high) {
		size_t mid = at + (high - at) / 2;
		if (keys[mid] < x)
			at = mid + 1;
		else
			high = mid;
	}
	return at;
}

/* next finds the next hot key at place *i of the message or later. */
static bool next(const struct hotset *hot, const uint64_t *keys, size_t n, size_t *i, size_t *j)
{
	while (*i < n && *j < hot->n) {
		if (keys[*i] == hot->keys[*j])
			return true;
		if (keys[*i] < hot->keys[*j])
			*i = skip(keys, *i, n, hot->keys[*j]);
		else
			*j = skip(hot->keys, *j, hot->n, keys[*i]);
	}
	return false;
}

/*
 * split_index divides the range of the hot keys into as many buckets as there are keys, or up to
 * twice as many, and notes where each begins. The array of keys has room for SPLIT_PAD more, which
 * repeat the last. Returns false if there is no memory.
 */
bool split_index(struct hotset *hot)
{
	uint64_t span = hot->keys[hot->n - 1] - hot->keys[0];

	hot->shift = 0;
	while (span >> hot->shift >= 2 * hot->n)
		hot->shift++;
	hot->buckets = (span >> hot->shift) + 1;
	hot->first = malloc((hot->buckets + 1) * sizeof *hot->first);
	if (!hot->first)
		return false;
	for (size_t i = 0; i < SPLIT_PAD; i++)
		hot->keys[hot->n + i] = hot->keys[hot->n - 1];
	size_t at = 0;
	for (size_t b = 0; b < hot->buckets; b++) {
		while ((hot->keys[at] - hot->keys[0]) >> hot->shift < b)
			at++;
		hot->first[b] = (uint32_t)at;
	}
	hot->first[hot->buckets] = (uint32_t)hot->n;
	return true;
}

/*
 * is_hot looks a key up. Hashed keys have few in a bucket, which are compared without branches that
 * depend on them; keys of later buckets do no harm.
 */
static inline bool is_hot(const struct hotset *hot, uint64_t key)
{
	uint64_t b = (key - hot->keys[0]) >> hot->shift;

	if (b >= hot->buckets)
		return false;
	size_t low = hot->first[b], high = hot->first[b + 1];
	const uint64_t *k = hot->keys + low;
	if (high - low <= SPLIT_PAD + 1)
		return (k[0] == key) | (k[1] == key) | (k[2] == key) | (k[3] == key);
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		if (hot->keys[mid] < key)
			low = mid + 1;
		else
			high = mid;
	}
	return hot->keys[low] == key;
}

/* longer returns whether a message is so much longer than the hot set that most of it is skipped. */
static bool longer(const struct hotset *hot, size_t n)
{
	return n / 8 > hot->n;
}

/* split_names returns whether a hot key is among keys, which need not ascend. */
bool split_names(const struct hotset *hot, const uint64_t *keys, size_t n)
{
	size_t i = 0, j = 0;

	if (longer(hot, n) && split_ascend(keys, n))
		return next(hot, keys, n, &i, &j);
	for (i = 0; i < n; i++)
		if (is_hot(hot, keys[i]))
			return true;
	return false;
}

/*
 * split_find returns how many hot keys are among ascending keys, and their places, with SIZE_MAX
 * behind them, in an array that the caller frees. It returns 0, too, if there is no memory: then
 * the message goes on as a whole.
 */
size_t split_find(const struct hotset *hot, const uint64_t *keys, size_t n, size_t **places)
{
	size_t i = 0, j = 0, found = 0;
	bool merges = longer(hot, n);

	*places = malloc(((merges ? hot->n : n) + 1) * sizeof **places);
	if (!*places)
		return 0;
	for (; !merges && i < n; i++) {
		(*places)[found] = i;
		found += is_hot(hot, keys[i]);
	}
	for (; merges && next(hot, keys, n, &i, &j); j++)
		(*places)[found++] = i++;
	(*places)[found] = SIZE_MAX;
	return found;
}
