/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that pushes to two servers, for the test of LIBRA_KEYS_OUT in Go: push i to server r has
 * the keys 3, which is hot, 10 + 1000 i + r, and 2^64 - 1. Each is followed by pushes that cannot be
 * split, with the key 4.
 */
#include <stdlib.h>

#include "fake.h"
#include "host.h"

#define SERVERS 2
#define PUSHES  1280 /* to each server */

static void push(struct node *w, int server, int timestamp, bool pull, const uint64_t *keys, size_t n)
{
	static const float values[3];

	node_send(w, &(struct van_message){.recver = 8 + 2 * server, .timestamp = timestamp, .request = true,
					   .push = true, .pull = pull, .keys = keys, .n = n, .is_float = true,
					   .values = values, .floats = n});
}

void test_keys(const char *hot_file)
{
	struct node w, servers[SERVERS];

	fake_reset(1);
	for (int i = 0; i < SERVERS; i++)
		node_init(servers + i, VAN_SERVER, i);
	node_init(&w, VAN_WORKER, 0);
	node_set(&w, "LIBRA_HOT_SET", hot_file);
	node_set(&w, "LIBRA_KEYS_OUT", getenv("LIBRA_KEYS_OUT"));
	w.van = van_new(&w.host, VAN_WORKER);
	if (!w.van || !van_open(w.van, w.id, SERVERS)) {
		printf("%s\n", w.failed);
	} else {
		for (int i = 0; i < PUSHES * SERVERS; i++) {
			int server = i % SERVERS;
			uint64_t number = (uint64_t)(i / SERVERS);
			push(&w, server, i, false, (uint64_t[]){3, 10 + 1000 * number + (uint64_t)server, UINT64_MAX}, 3);
			push(&w, server, i, true, (uint64_t[]){4}, 1);
			push(&w, server, i, false, (uint64_t[]){5, 4}, 2);
			push(&w, server, i, false, NULL, 0);
		}
		van_stop(w.van);
	}
	node_free(&w);
	for (int i = 0; i < SERVERS; i++) {
		for (struct msg *m; (m = node_sent(servers + i));)
			msg_free(m);
		node_free(servers + i);
	}
}
