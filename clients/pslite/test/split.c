/* SPDX-License-Identifier: Apache-2.0 */
#include "../internal.h"
#include "fake.h"
#include "host.h"

/* Hot and cold keys are told apart as a simple search does, whatever the numbers of keys. */
void test_split(void)
{
	struct hotset hot = {.dim = 1};
	uint64_t seed = 1, hots[200 + SPLIT_PAD], keys[2000];

	hot.keys = hots;
	for (int round = 0; round < 20000; round++) {
		size_t n = random_of(&seed) % (round % 2 ? 200 : round % 5 ? 8 : 2000), *places = NULL, found = 0, want = 0;
		uint64_t base = round % 7 ? random_of(&seed) % 100 : UINT64_MAX - 100000, key = base;
		uint64_t most = 1 + random_of(&seed) % 40;
		hot.n = 1 + random_of(&seed) % (round % 3 ? 200 : 5);
		for (size_t i = 0; i < hot.n; i++)
			hots[i] = key += 1 + random_of(&seed) % most;
		if (round % 4 == 0) /* most share a bucket */
			hots[hot.n - 1] = UINT64_MAX;
		CHECK(split_index(&hot));
		key = base - random_of(&seed) % (1 + base % 100);
		for (size_t i = 0; i < n; i++)
			keys[i] = key += 1 + random_of(&seed) % (1 + random_of(&seed) % 40);
		found = split_find(&hot, keys, n, &places);
		for (size_t i = 0; i < n; i++) {
			bool is = false;
			for (size_t j = 0; j < hot.n; j++)
				is |= hots[j] == keys[i];
			if (is)
				CHECK(want < found && places[want++] == i);
		}
		CHECK(want == found && split_names(&hot, keys, n) == (want > 0) && places[found] == SIZE_MAX);
		free(places);
		free(hot.first);
	}
	hot.n = 1;
	hots[0] = 5;
	CHECK(split_index(&hot) && split_names(&hot, (uint64_t[]){9, 5, 1}, 3) && !split_names(&hot, (uint64_t[]){9, 1}, 2));
	free(hot.first);
	CHECK(!split_ascend((uint64_t[]){1, 1}, 2) && split_ascend((uint64_t[]){1, 2}, 2) && split_ascend(NULL, 0));
}
