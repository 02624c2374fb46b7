/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free and lent extents of the buffer area.
 *
 * Their lists are in the process's own memory, because the agent can also write to the area.
 * Extents are multiples of a cache line. First fit keeps requests in few pages, which stay in the
 * cache; the list of free extents is short because requests free them in nearly the same order.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define LINE 64u

static bool insert(struct extent **list, size_t *n, size_t *room, size_t at, struct extent e)
{
	if (*n == *room) {
		size_t more = *room ? *room * 2 : 16;
		struct extent *l = realloc(*list, more * sizeof *l);
		if (!l)
			return false;
		*list = l;
		*room = more;
	}
	memmove(*list + at + 1, *list + at, (*n - at) * sizeof **list);
	(*list)[at] = e;
	++*n;
	return true;
}

static void erase(struct extent *list, size_t *n, size_t at)
{
	memmove(list + at, list + at + 1, (*n - at - 1) * sizeof *list);
	--*n;
}

bool buffers_init(struct buffers *b, uint64_t bytes)
{
	memset(b, 0, sizeof *b);
	b->bytes = bytes & ~(uint64_t)(LINE - 1);
	return insert(&b->free, &b->frees, &b->free_room, 0, (struct extent){0, b->bytes});
}

void buffers_destroy(struct buffers *b)
{
	free(b->free);
	free(b->lent);
}

/* buffers_take finds an extent for a request. Zero bytes need none. */
bool buffers_take(struct buffers *b, uint64_t bytes, struct extent *e)
{
	*e = (struct extent){0, 0};
	if (bytes > b->bytes)
		return false;
	bytes = (bytes + LINE - 1) & ~(uint64_t)(LINE - 1);
	if (bytes == 0)
		return true;
	/* There is at most one more free extent than taken ones. Memory for them is allocated here,
	 * where a failure can be reported, so that freeing never fails. */
	if (b->taken + 2 > b->free_room) {
		size_t more = b->free_room * 2;
		struct extent *l = realloc(b->free, more * sizeof *l);
		if (!l)
			return false;
		b->free = l;
		b->free_room = more;
	}
	for (size_t i = 0; i < b->frees; i++) {
		struct extent *f = b->free + i;
		if (f->bytes < bytes)
			continue;
		*e = (struct extent){f->offset, bytes};
		f->offset += bytes;
		f->bytes -= bytes;
		if (f->bytes == 0)
			erase(b->free, &b->frees, i);
		b->taken++;
		return true;
	}
	return false;
}

/* buffers_give frees an extent and merges it with its neighbours. */
void buffers_give(struct buffers *b, struct extent e)
{
	if (e.bytes == 0)
		return;
	b->taken--;

	size_t low = 0, high = b->frees;
	while (low < high) {
		size_t mid = (low + high) / 2;
		if (b->free[mid].offset < e.offset)
			low = mid + 1;
		else
			high = mid;
	}
	bool after = low > 0 && b->free[low - 1].offset + b->free[low - 1].bytes == e.offset;
	bool before = low < b->frees && e.offset + e.bytes == b->free[low].offset;
	if (after && before) {
		b->free[low - 1].bytes += e.bytes + b->free[low].bytes;
		erase(b->free, &b->frees, low);
	} else if (after) {
		b->free[low - 1].bytes += e.bytes;
	} else if (before) {
		b->free[low].offset = e.offset;
		b->free[low].bytes += e.bytes;
	} else {
		insert(&b->free, &b->frees, &b->free_room, low, e);
	}
}

static size_t lent_at(const struct buffers *b, uint64_t offset)
{
	size_t low = 0, high = b->lents;
	while (low < high) {
		size_t mid = (low + high) / 2;
		if (b->lent[mid].offset < offset)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* buffers_lend records an extent of libra_alloc. */
bool buffers_lend(struct buffers *b, struct extent e)
{
	return insert(&b->lent, &b->lents, &b->lent_room, lent_at(b, e.offset), e);
}

/* buffers_return frees the lent extent at an offset. It returns false if there is none. */
bool buffers_return(struct buffers *b, uint64_t offset)
{
	size_t i = lent_at(b, offset);
	if (i == b->lents || b->lent[i].offset != offset)
		return false;
	struct extent e = b->lent[i];
	erase(b->lent, &b->lents, i);
	buffers_give(b, e);
	return true;
}
