/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a hot set, as `libra hotset build` writes it. Numbers in it are big-endian. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MAGIC    "LIBRAHOT"
#define VERSION  1
#define HEAD     72 /* bytes: magic, version, dimension, number of keys, and numbers about their choice */
#define MAX_DIM  65535
#define MAX_KEYS ((UINT64_C(1) << 24) - 1)

static uint64_t number(const uint8_t *from, unsigned bytes)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < bytes; i++)
		n = n << 8 | from[i];
	return n;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* get reads a part of the file, and adds it to the checksum. */
static bool get(FILE *f, void *to, size_t n, struct sha256 *sum)
{
	if (fread(to, 1, n, f) != n)
		return false;
	sha256_add(sum, to, n);
	return true;
}

/*
 * The fingerprint is the SHA-256 of dimension, number of keys, and keys in the order of their
 * ranks.
 */
static const char *read_keys(struct hotset *hot, FILE *f, uint64_t n, struct sha256 *sum)
{
	struct sha256 print;
	uint8_t b[8];

	sha256_begin(&print);
	for (uint64_t i = 0; i < 16; i++) {
		uint8_t byte = (uint8_t)((i < 8 ? hot->dim : n) >> (56 - 8 * (i % 8)));
		sha256_add(&print, &byte, 1);
	}
	for (uint64_t i = 0; i < 2 * n; i++) {
		if (!get(f, b, sizeof b, sum))
			return "it is truncated";
		if (i >= n)
			continue; /* the counts */
		if (hot->n == i) { /* more memory as keys arrive: the number may be damaged */
			size_t room = i ? 2 * i : 1024;
			uint64_t *keys = realloc(hot->keys, room * sizeof *keys);
			if (!keys)
				return "there is no memory for it";
			hot->keys = keys;
			hot->n = room;
		}
		hot->keys[i] = number(b, 8);
		sha256_add(&print, b, sizeof b);
	}
	hot->n = n;
	sha256_end(&print, hot->fingerprint);
	uint64_t *keys = realloc(hot->keys, (n + SPLIT_PAD) * sizeof *keys);
	if (!keys)
		return "there is no memory for it";
	hot->keys = keys;
	return NULL;
}

static const char *read_file(struct hotset *hot, FILE *f)
{
	struct sha256 sum;
	uint8_t head[HEAD], want[32], got[32];

	sha256_begin(&sum);
	if (!get(f, head, sizeof head, &sum) || memcmp(head, MAGIC, 8))
		return "it is no hot set of Libra";
	if (number(head + 8, 4) != VERSION)
		return "its version differs: use a van of the release that wrote it";
	uint64_t dim = number(head + 12, 4), n = number(head + 16, 8);
	if (dim < 1 || dim > MAX_DIM || n > MAX_KEYS)
		return "it announces too many keys or values";
	if (n == 0)
		return "it has no keys";
	hot->dim = (uint32_t)dim;
	const char *wrong = read_keys(hot, f, n, &sum);
	if (wrong)
		return wrong;
	sha256_end(&sum, want);
	if (fread(got, 1, sizeof got, f) != sizeof got)
		return "it is truncated";
	if (memcmp(want, got, sizeof got))
		return "its checksum is wrong: it was damaged";
	qsort(hot->keys, hot->n, sizeof *hot->keys, compare);
	if (!split_ascend(hot->keys, hot->n))
		return "it has a key twice";
	return split_index(hot) ? NULL : "there is no memory for it";
}

bool hotset_read(struct hotset *hot, const char *path, char *error, size_t room)
{
	FILE *f = fopen(path, "re");
	const char *wrong;

	*hot = (struct hotset){0};
	if (!f) {
		snprintf(error, room, "LIBRA_HOT_SET: %s: %s: name a file of libra hotset build", path, strerror(errno));
		return false;
	}
	wrong = read_file(hot, f);
	if (wrong)
		snprintf(error, room, "LIBRA_HOT_SET: %s: %s%s%s: name a file of libra hotset build", path, wrong,
			 ferror(f) ? ", or cannot be read: " : "", ferror(f) ? strerror(errno) : "");
	fclose(f);
	if (wrong)
		hotset_free(hot);
	return !wrong;
}

void hotset_free(struct hotset *hot)
{
	free(hot->keys);
	free(hot->first);
	*hot = (struct hotset){0};
}
