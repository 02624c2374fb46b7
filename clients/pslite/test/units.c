/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The van's logic on a fake of ps-lite and of the agent. `fake NAME FILE [ARGUMENT]` runs one test
 * with a hot set.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "../internal.h"
#include "fake.h"
#include "host.h"
#include "units.h"

const char *hot_file;

void setup(struct node *n, enum van_role role, int rank, int servers)
{
	node_init(n, role, rank);
	node_set(n, "LIBRA_HOT_SET", hot_file);
	node_customer(n);
	n->van = van_new(&n->host, role);
	CHECK(n->van && van_open(n->van, n->id, servers));
}

/* push sends keys[n] with values 1, 2, ... from a worker to a server. */
void push_as(struct node *w, int server, int customer, int timestamp, const uint64_t *keys, size_t n)
{
	float values[64];

	for (size_t i = 0; i < n; i++)
		values[i] = (float)(i + 1);
	node_send(w, &(struct van_message){.recver = server, .customer = customer, .timestamp = timestamp,
					   .request = true, .push = true, .keys = keys, .n = n, .is_float = true,
					   .values = values, .floats = n});
}

void pull_as(struct node *w, int server, int timestamp)
{
	node_send(w, &(struct van_message){.recver = server, .timestamp = timestamp, .request = true, .pull = true,
					   .keys = (uint64_t[]){1}, .n = 1, .is_float = true});
}

struct msg *response(int server, int customer, int timestamp)
{
	return msg_new(&(struct van_message){.sender = server, .recver = 9, .customer = customer,
					     .timestamp = timestamp, .push = true});
}

struct msg *pull(int timestamp, const uint64_t *keys, size_t n)
{
	return msg_new(&(struct van_message){.sender = 9, .recver = 8, .timestamp = timestamp, .request = true,
					     .pull = true, .keys = keys, .n = n, .is_float = true});
}

/* answer is what a server's handle does with a harvest. */
void answer(struct node *s, struct msg *m)
{
	node_send(s, &(struct van_message){.recver = m->m.sender, .timestamp = m->m.timestamp, .push = true});
	msg_free(m);
}

/* open_gate lets a node get a request, so that it gets others at once. */
void open_gate(struct node *n)
{
	node_receive(n, msg_new(&(struct van_message){.sender = 9, .recver = n->id, .request = true, .simple = true}));
	msg_free(node_wait(n));
}

/* A push loses its hot pairs, whose response waits for both sides, in whatever order they come. */
static void test_push(void)
{
	struct node w, s;
	struct msg *m;
	const uint64_t mixed[] = {3, 4, 6, 8, 300, 301}, hot[] = {9, 12}, cold[] = {1, 2};

	fake_reset(1);
	fake_automatic(true, false, true);
	node_init(&s, VAN_SERVER, 0);
	setup(&w, VAN_WORKER, 0, 1);
	push_as(&w, 8, 0, 5, mixed, 6);
	m = node_sent(&s);
	CHECK(m && m->m.timestamp == 5 && m->m.n == 3 && m->m.floats == 3 && m->m.request && m->m.push);
	CHECK(m->m.keys[0] == 4 && m->m.keys[1] == 8 && m->m.keys[2] == 301);
	CHECK(m->m.values[0] == 2 && m->m.values[1] == 4 && m->m.values[2] == 6);
	msg_free(m);
	/* The response is first. Those of other customers and timestamps pass. */
	node_receive(&w, response(8, 0, 5));
	fake_turn(0, false);
	CHECK(!node_take(&w));
	node_receive(&w, response(8, 1, 5));
	msg_free(node_wait(&w));
	node_receive(&w, response(8, 0, 6));
	msg_free(node_wait(&w));
	fake_acknowledge(0);
	m = node_wait(&w);
	CHECK(m->m.timestamp == 5 && m->m.customer == 0);
	msg_free(m);
	/* The acknowledgement is first. Nothing remains of the push, which goes on nevertheless. */
	push_as(&w, 8, 1, 6, hot, 2);
	m = node_sent(&s);
	CHECK(m && m->m.n == 0 && m->m.timestamp == 6 && m->m.customer == 1);
	msg_free(m);
	fake_acknowledge(0);
	fake_turn(0, false);
	node_receive(&w, response(8, 1, 6));
	m = node_take(&w);
	CHECK(m && m->m.customer == 1);
	msg_free(m);
	/* No hot key. */
	push_as(&w, 8, 0, 7, cold, 2);
	m = node_sent(&s);
	CHECK(m && m->m.n == 2);
	msg_free(m);
	CHECK(fake_pushes(0) == 2);
	van_stop(w.van);
	node_free(&w);
	node_free(&s);
}

/* All other messages travel whole. */
static void test_whole(void)
{
	struct node w, s, w2;
	const uint64_t keys[] = {3, 4}, wrong[] = {4, 3}, twice[] = {3, 3};
	const float values[] = {1, 2, 3}, nan_[] = {NAN, 1}, inf_[] = {-INFINITY, 1}, large[] = {8589934592.f, 1},
		    least[] = {8589934080.f, 1};
	const struct van_message good = {.recver = 8, .request = true, .push = true, .keys = keys, .n = 2, .is_float = true,
					 .values = values, .floats = 2};
	struct van_message bad[12];
	struct msg *m;

	for (size_t i = 0; i < 12; i++)
		bad[i] = good;
	bad[0].app = 1;
	bad[1].head = 1;
	bad[2].pull = true;
	bad[3].simple = true;
	bad[4].lens = true;
	bad[5].is_float = false;
	bad[6].floats = 3;
	bad[7].keys = wrong;
	bad[8].keys = twice;
	bad[9].values = nan_;
	bad[10].values = inf_;
	bad[11].values = large;
	fake_reset(1);
	node_init(&s, VAN_SERVER, 0);
	node_init(&w2, VAN_WORKER, 1);
	setup(&w, VAN_WORKER, 0, 1);
	for (size_t i = 0; i < 12; i++) {
		node_send(&w, bad + i);
		m = node_sent(&s);
		CHECK(m && m->m.n == 2 && m->m.floats == bad[i].floats);
		msg_free(m);
	}
	CHECK(fake_pushes(0) == 0);
	bad[0] = good;
	bad[0].values = least;
	node_send(&w, bad);
	m = node_sent(&s);
	CHECK(m && m->m.n == 1 && fake_pushes(0) == 1);
	msg_free(m);
	van_stop(w.van);
	node_free(&w2);
	node_free(&w);
	node_free(&s);
}

/* A pull waits for a harvest that was requested after its arrival, and answered by the handle. */
static void test_pull(void)
{
	struct node s, w;
	const uint64_t hot[] = {2, 3}, cold[] = {1, 2};
	struct msg *m;

	fake_reset(1);
	fake_automatic(true, true, false);
	setup(&s, VAN_SERVER, 0, 1);
	setup(&w, VAN_WORKER, 0, 1);
	open_gate(&s);
	node_receive(&s, pull(1, cold, 2));
	m = node_take(&s);
	CHECK(m && m->m.timestamp == 1);
	msg_free(m);
	fake_turn(0, true);
	CHECK(fake_harvests(0, false) == 1 && fake_harvests(0, true) == 0);
	fake_freeze(0); /* the one that is due is empty when the push comes */
	push_as(&w, 8, 0, 0, hot, 2);
	msg_free(node_sent(&s));
	node_receive(&s, pull(2, hot, 2));
	fake_turn(0, true);
	CHECK(fake_harvests(0, true) == 1);
	fake_answer(0);
	fake_turn(0, true);
	CHECK(!node_take(&s));
	fake_freeze(0);
	/* This one came too late for the harvest, and waits for the next. */
	node_receive(&s, pull(3, hot, 2));
	fake_answer(0);
	m = node_wait(&s);
	CHECK(m->m.timestamp == -2 && m->m.sender == 8 && m->m.n == 1 && m->m.keys[0] == 3 && m->m.values[0] == 2);
	fake_turn(0, true);
	CHECK(!node_take(&s)); /* it is queued, and not yet answered */
	answer(&s, m);
	CHECK(!node_sent(&s));
	m = node_take(&s);
	CHECK(m && m->m.timestamp == 2 && !node_take(&s));
	msg_free(m);
	push_as(&w, 8, 0, 1, hot, 2);
	msg_free(node_sent(&s));
	fake_turn(0, true);
	fake_freeze(0);
	fake_answer(0);
	m = node_wait(&s);
	CHECK(m->m.timestamp == -3);
	answer(&s, m);
	m = node_wait(&s);
	CHECK(m->m.timestamp == 3);
	/* A handle's answers to others, and late ones, go on. */
	node_send(&s, &(struct van_message){.recver = 9, .timestamp = -1, .push = true});
	node_send(&s, &(struct van_message){.recver = 9, .timestamp = -3, .push = true});
	for (int i = 0; i < 2; i++) {
		msg_free(m);
		m = node_sent(&w);
		CHECK(m);
	}
	msg_free(m);
	fake_automatic(true, true, true);
	van_stop(w.van);
	van_stop(s.van);
	node_free(&w);
	node_free(&s);
}

/* With LIBRA_STALENESS a pull passes while the last harvest is young. */
static void test_staleness(void)
{
	struct node s;
	const uint64_t hot[] = {3};
	struct msg *m;

	fake_reset(1);
	node_init(&s, VAN_SERVER, 0);
	node_set(&s, "LIBRA_HOT_SET", hot_file);
	node_set(&s, "LIBRA_STALENESS", "3600000");
	node_customer(&s);
	s.van = van_new(&s.host, VAN_SERVER);
	CHECK(s.van && van_open(s.van, 8, 1));
	open_gate(&s);
	node_receive(&s, pull(1, hot, 1)); /* there was no harvest yet */
	msg_free(node_wait(&s));
	node_receive(&s, pull(2, hot, 1));
	m = node_take(&s);
	CHECK(m && m->m.timestamp == 2);
	msg_free(m);
	van_stop(s.van);
	node_free(&s);
}

/* Requests wait until their customer exists; responses do not. Without a hot set, too. */
static void test_gate(void)
{
	struct node s;
	struct msg *m;

	node_init(&s, VAN_SERVER, 0);
	s.van = van_new(&s.host, VAN_SERVER);
	CHECK(s.van && van_open(s.van, 8, 1));
	for (int i = 0; i < 3; i++) {
		m = msg_new(&(struct van_message){.recver = 8, .timestamp = i, .request = true});
		CHECK(van_receive(s.van, &m->m, m) == VAN_TAKEN);
	}
	m = msg_new(&(struct van_message){.recver = 8, .timestamp = 9});
	CHECK(van_receive(s.van, &m->m, m) == VAN_PASS);
	msg_free(m);
	node_customer(&s);
	for (int i = 0; i < 3; i++) {
		m = node_wait(&s);
		CHECK(m->m.timestamp == i);
		msg_free(m);
	}
	m = msg_new(&(struct van_message){.recver = 8, .request = true});
	CHECK(van_receive(s.van, &m->m, m) == VAN_PASS);
	msg_free(m);
	m = msg_new(&(struct van_message){.recver = 8, .app = 1, .request = true}); /* never comes */
	CHECK(van_receive(s.van, &m->m, m) == VAN_TAKEN);
	van_stop(s.van);
	van_free(s.van);
	s.van = NULL;
	CHECK(s.dropped == 1);
	node_free(&s);
}

/* A customer that was there long enough before its first request gets that at once. */
static void test_early(void)
{
	struct node s;
	bool open = false;

	node_init(&s, VAN_SERVER, 0);
	s.van = van_new(&s.host, VAN_SERVER);
	CHECK(s.van && van_open(s.van, 8, 1));
	node_customer(&s);
	for (int i = 0; i < 10000 && !open; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
		pthread_mutex_lock(&s.van->lock);
		open = s.van->gate.n == 1 && s.van->gate.known->open;
		pthread_mutex_unlock(&s.van->lock);
	}
	CHECK(open);
	struct msg *m = msg_new(&(struct van_message){.recver = 8, .request = true});
	CHECK(van_receive(s.van, &m->m, m) == VAN_PASS);
	msg_free(m);
	van_stop(s.van);
	node_free(&s);
}

/* A worker waits for the owners of jobs; what cannot be mended by waiting is an error. */
static void test_open(void)
{
	struct node w;

	fake_reset(1);
	fake_refuse(LIBRA_NOT_OPEN, 3);
	setup(&w, VAN_WORKER, 0, 2);
	van_stop(w.van);
	node_free(&w);
	fake_refuse(LIBRA_NO_JOB, 1);
	node_init(&w, VAN_WORKER, 0);
	node_set(&w, "LIBRA_HOT_SET", hot_file);
	w.van = van_new(&w.host, VAN_WORKER);
	CHECK(!van_open(w.van, 9, 2) && strstr(w.failed, "fake code 4"));
	node_free(&w);
}

/*
 * Prints the errors of a variable, and the hot set's fingerprint: `fake settings FILE NAME=VALUE`.
 */
static void settings(char *argument)
{
	struct node n;
	char *equals = argument ? strchr(argument, '=') : NULL;

	node_init(&n, VAN_SERVER, 0);
	node_set(&n, "LIBRA_HOT_SET", hot_file);
	if (equals) {
		*equals = 0;
		node_set(&n, argument, equals + 1);
	}
	n.van = van_new(&n.host, VAN_SERVER);
	if (!n.van)
		printf("%s\n", n.failed);
	for (size_t i = 0; n.van && i < 32; i++)
		printf("%02x", n.van->hot.fingerprint[i]);
	if (n.van)
		printf(" %zu %u\n", n.van->hot.n, n.van->hot.dim);
	node_free(&n);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {{"split", test_split}, {"push", test_push}, {"whole", test_whole}, {"pull", test_pull},
		     {"staleness", test_staleness}, {"gate", test_gate}, {"early", test_early}, {"stop", test_stop}, {"open", test_open},
		     {"dead", test_dead}, {"before", test_before}, {"after", test_after},
		     {"agent", test_agent}, {"unanswered", test_unanswered}, {"busy", test_busy}};

	hot_file = argc > 2 ? argv[2] : "";
	if (argc > 2 && strcmp(argv[1], "settings") == 0) {
		settings(argc > 3 ? argv[3] : NULL);
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "keys") == 0) {
		test_keys(hot_file);
		return 0;
	}
	for (size_t i = 0; argc == 3 && i < sizeof tests / sizeof *tests; i++)
		if (strcmp(tests[i].name, argv[1]) == 0) {
			tests[i].run();
			return 0;
		}
	fprintf(stderr, "usage: fake TEST FILE | fake settings FILE NAME=VALUE\n");
	return 2;
}
