/* SPDX-License-Identifier: Apache-2.0 */
/* Hot keys in the keys of a message: both ascend, so they are merged. */
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
 * growing distances: most are near, and messages are much shorter or much longer than the hot set.
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

/* split_names returns whether a hot key is among keys, which need not ascend. */
bool split_names(const struct hotset *hot, const uint64_t *keys, size_t n)
{
	size_t i = 0, j = 0;

	if (split_ascend(keys, n))
		return next(hot, keys, n, &i, &j);
	for (i = 0; i < n; i++) {
		j = 0;
		size_t one = 0;
		if (next(hot, keys + i, 1, &one, &j))
			return true;
	}
	return false;
}

/*
 * split_find returns how many hot keys are among ascending keys, and their places in an array that
 * the caller frees. It returns 0, too, if there is no memory: then the message goes on as a whole.
 */
size_t split_find(const struct hotset *hot, const uint64_t *keys, size_t n, size_t **places)
{
	size_t i = 0, j = 0, found = 0;

	*places = NULL;
	if (!next(hot, keys, n, &i, &j))
		return 0;
	*places = malloc((n - i < hot->n - j ? n - i : hot->n - j) * sizeof **places);
	if (!*places)
		return 0;
	do {
		(*places)[found++] = i++;
		j++;
	} while (next(hot, keys, n, &i, &j));
	return found;
}
