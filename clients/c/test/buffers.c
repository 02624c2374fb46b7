/* SPDX-License-Identifier: Apache-2.0 */
/* The buffer area's bookkeeping against a map of its cache lines. */
#include <string.h>

#include "../internal.h"
#include "fake.h"

#define LINES 200

static struct extent taken[LINES];
static bool used[LINES];

static void mark(struct extent e, bool to)
{
	for (uint64_t i = e.offset / 64; i < (e.offset + e.bytes) / 64; i++) {
		CHECK(i < LINES && used[i] != to);
		used[i] = to;
	}
}

void test_buffers(void)
{
	struct buffers b;
	struct extent e;
	size_t n = 0;
	uint32_t random = 1;

	CHECK(buffers_init(&b, LINES * 64 + 63));
	CHECK(!buffers_take(&b, LINES * 64 + 1, &e) && !buffers_take(&b, UINT64_MAX, &e));
	CHECK(buffers_take(&b, 0, &e) && e.bytes == 0);
	buffers_give(&b, e);
	for (int i = 0; i < 20000; i++) {
		random = random * 1664525 + 1013904223;
		uint64_t bytes = 1 + (random >> 16) % 600;
		if (random >> 31 && buffers_take(&b, bytes, &e)) {
			CHECK(e.bytes >= bytes && e.bytes < bytes + 64);
			mark(e, true);
			taken[n++] = e;
		} else if (n) {
			size_t at = (random >> 8) % n;
			mark(taken[at], false);
			buffers_give(&b, taken[at]);
			taken[at] = taken[--n];
		}
	}
	while (n) {
		mark(taken[--n], false);
		buffers_give(&b, taken[n]);
	}
	CHECK(b.frees == 1 && b.taken == 0); /* one piece again */
	CHECK(buffers_take(&b, LINES * 64, &e) && e.offset == 0);
	buffers_give(&b, e);
	buffers_destroy(&b);
}
